//! The name of a guest: as requested, or derived from its GPUs.

use crate::bdf::Bdf;
use crate::domain::view::gpu_indexes;
use crate::placement::{Occupancy, Placement};
use crate::request::{DomainName, RequestError};
use crate::topology::{GuestVgpu, Topology};

/// How the name of a new guest is chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NameRequest {
    /// From its GPUs or vGPUs: `gpuvm-2g0-1`, `gpuvm-2v-H200X-18C`, with a number appended if a
    /// domain has that name.
    #[default]
    Usual,
    /// This name.
    Exact(DomainName),
    /// This base, followed by the GPUs.
    Base(String),
}

/// The name of a guest with the given placement.
pub(super) fn named(
    wanted: &NameRequest,
    topology: &Topology,
    placement: &Placement,
    held: &Occupancy,
) -> Result<DomainName, RequestError> {
    let gpus = || (gpu_indexes(topology, &placement.devices), displays(topology, placement));
    match wanted {
        NameRequest::Exact(name) => Ok(name.clone()),
        NameRequest::Base(base) => suffixed(&with_vgpus(base, &placement.vgpus), &gpus()),
        NameRequest::Usual => default_name(&gpus(), &placement.vgpus, held),
    }
}

/// The GPUs of a guest that are set aside, for its name: they have an address and no index. vGPUs
/// are named by their type: 16 addresses would be longer than a name may be.
fn displays(topology: &Topology, placement: &Placement) -> Vec<Bdf> {
    let shown = topology.all_aside().map(|(gpu, _)| gpu.bdf);
    let is_vgpu = |bdf: &Bdf| placement.vgpus.iter().any(|vgpu| vgpu.function == *bdf);
    shown.filter(|bdf| placement.devices.contains(bdf) && !is_vgpu(bdf)).collect()
}

/// The most characters of a vGPU type in a name.
const MOST_TYPE: usize = 48;

/// Appends the number and type of vGPUs, which all have one type, to a base: `-2v-H200X-18C`.
fn with_vgpus(base: &str, vgpus: &[GuestVgpu]) -> String {
    let Some(first) = vgpus.first() else { return base.to_owned() };
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "_.+".contains(c) { c } else { '-' };
    let name: String = first.name.chars().take(MOST_TYPE).map(allowed).collect();
    format!("{base}-{}v-{name}", vgpus.len())
}

/// A guest's GPUs as its name shows them: indexes, and addresses of displays.
type NamedGpus = (Vec<usize>, Vec<Bdf>);

/// Appends the GPUs to a base as `nvidia-vm` did (gpuvm-nvidia-vm(7), COMMAND LINES): `-1g8`,
/// `-2g0-1`; nothing without GPUs. GPUs that are not consecutive are listed one by one, `-2g0+5`,
/// so that the name does not claim those between. A display is named by its address, `-1g00.02.0`,
/// since it has no index.
fn suffixed(base: &str, (indexes, displays): &NamedGpus) -> Result<DomainName, RequestError> {
    let count = indexes.len() + displays.len();
    let name = match indexes[..] {
        [] if count == 0 => base.to_owned(),
        [first, .., last] if displays.is_empty() && last - first + 1 == count => {
            format!("{base}-{count}g{first}-{last}")
        }
        _ => {
            let address = |bdf: &Bdf| match bdf.segment() {
                0 => bdf.to_string().split_off("0000:".len()).replace(':', "."),
                _ => bdf.to_string().replace(':', "."),
            };
            let indexes = indexes.iter().map(usize::to_string);
            let each: Vec<String> = indexes.chain(displays.iter().map(address)).collect();
            format!("{base}-{count}g{}", each.join("+"))
        }
    };
    DomainName::new(&name)
}

/// The default name of a guest: `gpuvm-2g0-1`, `gpuvm-2v-H200X-18C`, without GPUs `gpuvm-0g`; `.2`,
/// `.3` and so on are added while a domain has that name. The same host and domains give the same
/// name.
fn default_name(
    gpus: &NamedGpus,
    vgpus: &[GuestVgpu],
    held: &Occupancy,
) -> Result<DomainName, RequestError> {
    let has_none = gpus.0.is_empty() && gpus.1.is_empty() && vgpus.is_empty();
    let base = if has_none { "gpuvm-0g" } else { "gpuvm" };
    let plain = suffixed(&with_vgpus(base, vgpus), gpus)?;
    let taken = |name: &str| held.domains.iter().any(|domain| domain.domain == name);
    if !taken(plain.as_str()) {
        return Ok(plain);
    }
    let mut number = 2;
    while taken(&format!("{plain}.{number}")) {
        number += 1;
    }
    DomainName::new(&format!("{plain}.{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Held;

    #[test]
    fn names_as_the_replaced_tool_did() {
        let run = |range: std::ops::Range<usize>| range.collect::<Vec<_>>();
        for (base, indexes, name) in [
            ("testme", run(8..16), "testme-8g8-15"),
            ("nvme-passthrough", run(0..16), "nvme-passthrough-16g0-15"),
            ("disk-passthrough", run(9..10), "disk-passthrough-1g9"),
            ("2gpu-vm", run(0..2), "2gpu-vm-2g0-1"),
            ("odd", vec![0, 5], "odd-2g0+5"),
            ("plain", vec![], "plain"),
        ] {
            assert_eq!(suffixed(base, &(indexes, vec![])).unwrap().as_str(), name);
        }
        for (indexes, display, name) in [
            (vec![], "0000:00:02.0", "x-1g00.02.0"),
            (vec![0, 2], "0001:0a:00.1", "x-3g0+2+0001.0a.00.1"),
        ] {
            let gpus = (indexes, vec![display.parse().unwrap()]);
            assert_eq!(suffixed("x", &gpus).unwrap().as_str(), name);
        }
        assert!(suffixed(&"x".repeat(128), &(vec![0], vec![])).is_err());
    }

    #[test]
    fn a_default_name_avoids_those_that_are_there() {
        let held = |names: &[&str]| Occupancy {
            domains: names
                .iter()
                .map(|&name| Held { domain: name.into(), ..Held::default() })
                .collect(),
            ..Occupancy::default()
        };
        let name = |indexes: &[usize], names: &[&str]| {
            let gpus = (indexes.to_vec(), vec![]);
            default_name(&gpus, &[], &held(names)).unwrap().as_str().to_owned()
        };
        assert_eq!(name(&[0, 1], &[]), "gpuvm-2g0-1");
        assert_eq!(name(&[], &[]), "gpuvm-0g");
        assert_eq!(name(&[], &["gpuvm-0g", "gpuvm-0g.2"]), "gpuvm-0g.3");
        let card: Bdf = "0000:3b:00.0".parse().unwrap();
        let (type_id, name) = ("nvidia-468".to_owned(), "GRID A100-4C".to_owned());
        let vgpu = GuestVgpu { card, function: card, type_id, name, uuid: None };
        let (gpus, vgpus) = ((vec![], vec![]), vec![vgpu; 16]);
        let name = |names: &[&str]| default_name(&gpus, &vgpus, &held(names)).unwrap().to_string();
        assert_eq!(name(&[]), "gpuvm-16v-GRID-A100-4C");
        assert_eq!(name(&["gpuvm-16v-GRID-A100-4C"]), "gpuvm-16v-GRID-A100-4C.2");
    }
}
