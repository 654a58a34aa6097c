//! Finds the GPUs of a guest that can transfer peer-to-peer over PCIe, bypassing host memory. Knows
//! their place on the host, not how cliques are written.

use super::explain::{Reasons, list};
use super::reason::{GpuReason, Topic};
use super::types::PlanError;
use crate::bdf::Bdf;
use crate::topology::{Proximity, Topology};

/// PCI vendor ID of GPUs whose driver uses cliques.
const NVIDIA: u16 = 0x10de;
/// The most cliques that the capability can express: four bits (gpuvm-hardware(7), PEER-TO-PEER
/// CLIQUES).
const MOST: usize = 16;

/// Finds the cliques: GPUs below one PCIe switch, whose transfers need not leave it. A guest
/// without two such GPUs is refused, since the claim would be false.
pub(super) fn cliques(
    topology: &Topology,
    gpus: &[Bdf],
    reasons: &mut Reasons,
) -> Result<Vec<Vec<Bdf>>, PlanError> {
    let impossible = |what: String, hint: &str| {
        Err(PlanError::Impossible {
            what: format!("no clique for peer-to-peer over PCIe: {what}"),
            hint: hint.into(),
        })
    };
    let is_foreign = |bdf: &&Bdf| topology.device(**bdf).is_none_or(|gpu| gpu.vendor != NVIDIA);
    if let Some(foreign) = gpus.iter().find(is_foreign) {
        return impossible(format!("{foreign} is not an NVIDIA GPU"), "leave --p2p-clique out");
    }
    if gpus.len() < 2 {
        return impossible(
            "it takes two GPUs".into(),
            "leave --p2p-clique out, or ask for more GPUs",
        );
    }
    let mut cliques: Vec<Vec<Bdf>> = Vec::new();
    for &gpu in gpus {
        let near = |clique: &&mut Vec<Bdf>| over_pcie(topology, clique[0], gpu) <= Proximity::Pxb;
        match cliques.iter_mut().find(near) {
            Some(clique) => clique.push(gpu),
            None => cliques.push(vec![gpu]),
        }
    }
    if cliques.iter().all(|clique| clique.len() == 1) {
        let way = over_pcie(topology, gpus[0], gpus[1]);
        let what = format!(
            "no two of {} hang below one PCIe switch; {} and {} meet at {way}",
            list(gpus),
            gpus[0],
            gpus[1]
        );
        return impossible(what, other_gpus(topology));
    }
    if cliques.len() > MOST {
        return impossible(format!("{} are more than {MOST}", cliques.len()), "ask for fewer GPUs");
    }
    for clique in cliques.iter().filter(|clique| clique.len() > 1) {
        reasons.say(Topic::P2p, GpuReason::Clique { gpus: clique.clone() });
    }
    Ok(cliques)
}

/// The hint where none of a guest's GPUs is near another.
fn other_gpus(topology: &Topology) -> &'static str {
    let all: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let is_near = |(at, &gpu): (usize, &Bdf)| {
        all[at + 1..].iter().any(|&other| over_pcie(topology, gpu, other) <= Proximity::Pxb)
    };
    if all.iter().enumerate().any(is_near) {
        "`gpuvm host matrix` shows which GPUs are near; --gpu names them"
    } else {
        "leave --p2p-clique out: no two GPUs of this host hang below one PCIe switch"
    }
}

/// Returns how near two GPUs are over PCIe, whatever NVLinks they have.
fn over_pcie(topology: &Topology, a: Bdf, b: Bdf) -> Proximity {
    match (topology.device(a), topology.device(b)) {
        (Some(a), Some(b)) => topology.way(a).over_pcie(&topology.way(b)),
        _ => Proximity::Sys,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{Occupancy, plan};
    use crate::request::{GpuWish, Request};
    use crate::topology::file;

    /// A plan with cliques on a recorded host.
    fn planned(host: &str, gpus: GpuWish) -> Result<Vec<Vec<Bdf>>, PlanError> {
        let topology = file::from_json(host).unwrap();
        let request = Request { gpus, p2p_clique: true, ..Request::for_gpus(0) };
        plan(&topology, &Occupancy::default(), &request).map(|place| place.guest_pcie.cliques)
    }

    #[test]
    fn gpus_of_one_switch_are_a_clique() {
        let dgx2 = include_str!("../../../topologies/dgx-2.json");
        let cliques = planned(dgx2, GpuWish::Count(8)).unwrap();
        assert!(cliques.iter().all(|clique| clique.len() > 1), "{cliques:?}");
        assert_eq!(cliques.iter().map(Vec::len).sum::<usize>(), 8);
        let topology = file::from_json(dgx2).unwrap();
        for clique in &cliques {
            assert!(
                clique.iter().all(|gpu| over_pcie(&topology, clique[0], *gpu) <= Proximity::Pxb)
            );
        }
        let firsts: Vec<Bdf> = cliques.iter().map(|clique| clique[0]).collect();
        assert!(over_pcie(&topology, firsts[0], firsts[1]) > Proximity::Pxb);
    }

    #[test]
    fn unkeepable_promises_are_refused() {
        let dgx2 = include_str!("../../../topologies/dgx-2.json");
        for (gpus, word) in [(0, "two GPUs"), (1, "two GPUs")] {
            let error = planned(dgx2, GpuWish::Count(gpus)).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let h100 = include_str!("../../../topologies/dgx-h100.json");
        let error = planned(h100, GpuWish::Count(8)).unwrap_err().to_string();
        assert!(error.contains("one PCIe switch"), "{error}");
    }
}
