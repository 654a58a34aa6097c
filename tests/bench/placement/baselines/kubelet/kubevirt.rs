//! KubeVirt on top of the kubelet: which vCPU runs on which of the pod's pcpus (gpuvm-placement(7),
//! OTHER PLANNERS).

use super::super::host::Host;

/// Maps vCPUs to a pod's threads on guest cores of `smt` vCPUs; `None` if some guest core cannot be
/// made of threads of one core or of one cell. With NUMA passthrough a guest core never has threads
/// of two cells.
pub fn map(
    host: &Host<'_>,
    owned: &[usize],
    vcpus: usize,
    smt: usize,
    passthrough: bool,
) -> Option<Vec<usize>> {
    let smt = smt.max(1);
    let mut mapped = Vec::new();
    let mut fragments: Vec<Vec<usize>> = vec![Vec::new(); host.nodes.len()];
    for (node, own) in by_core(host, owned).into_iter().enumerate() {
        for core in own {
            let mut threads = core.into_iter();
            while threads.len() >= smt && mapped.len() < vcpus {
                mapped.extend(threads.by_ref().take(smt));
            }
            fragments[node].extend(threads);
        }
    }
    for cell in &mut fragments {
        while cell.len() >= smt && mapped.len() < vcpus {
            mapped.extend(cell.drain(..smt));
        }
    }
    if !passthrough {
        mapped.extend(fragments.into_iter().flatten());
    }
    mapped.truncate(vcpus);
    (mapped.len() == vcpus).then_some(mapped)
}

/// A pod's threads by cell, and within it by core, in the order of the host.
fn by_core(host: &Host<'_>, owned: &[usize]) -> Vec<Vec<Vec<usize>>> {
    let mut sorted = owned.to_vec();
    sorted.sort_unstable();
    let mut cells: Vec<Vec<Vec<usize>>> = vec![Vec::new(); host.nodes.len()];
    let mut last = None;
    for thread in sorted {
        let core = host.threads[thread].core;
        let cell = &mut cells[host.cores[core].node];
        match cell.last_mut() {
            Some(threads) if last == Some(core) => threads.push(thread),
            _ => cell.push(vec![thread]),
        }
        last = Some(core);
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::super::super::testhost::{even, numbers, rows, set};
    use super::*;
    use gpuvm_core::topology::Topology;

    /// A case: pod's pcpus, vCPUs, guest threads, NUMA passthrough, and the pcpu of each vCPU
    /// (`None` if refused).
    type Case = (&'static str, usize, usize, bool, Option<&'static [u32]>);

    /// On two cells of four cores: cell 0 has 0,8 1,9 2,10 3,11. By the rules of
    /// gpuvm-placement(7), OTHER PLANNERS.
    const CASES: [Case; 9] = [
        // Full cores, cell by cell.
        ("0-1,8-9,4,12", 6, 2, true, Some(&[0, 8, 1, 9, 4, 12])),
        // One thread for each guest core takes whole cores thread by thread.
        ("0-1,8-9", 4, 1, true, Some(&[0, 8, 1, 9])),
        // Full cores come first, fragments of a cell after them.
        ("0-1,2,10", 4, 2, true, Some(&[2, 10, 0, 1])),
        // Fragments of one cell make a guest core, those of two cells do not with passthrough.
        ("0,1,4,5", 4, 2, true, Some(&[0, 1, 4, 5])),
        ("0,4", 2, 2, true, None),
        ("0,4", 2, 2, false, Some(&[0, 4])),
        // Too few pcpus.
        ("0,8", 3, 1, true, None),
        // More pcpus than vCPUs: the rest is for the emulator.
        ("0-1,8-9", 2, 2, true, Some(&[0, 8])),
        // A guest core of one thread may be a fragment.
        ("0,4,12", 3, 1, true, Some(&[0, 4, 12])),
    ];

    #[test]
    fn vcpus_follow_cores_then_fragments() {
        let topology = Topology::new(even(2, 1, 4)).unwrap();
        let host = Host::new(&topology, &[]);
        for (pod, vcpus, smt, passthrough, wanted) in CASES {
            let pod = set(pod);
            let all = 0..host.threads.len();
            let owned: Vec<usize> = all.filter(|&t| pod.contains(host.threads[t].pcpu)).collect();
            let got = map(&host, &owned, vcpus, smt, passthrough);
            let got = got.map(|threads| numbers(&host.pins(&threads)));
            assert_eq!(got.as_deref(), wanted, "{pod} {vcpus} {smt} {passthrough}");
        }
    }

    /// A core of four threads serves two guest cores of two, and its odd thread is a fragment.
    #[test]
    fn left_over_threads_of_a_core_are_fragments() {
        let topology = Topology::new(rows(&[(0, 0, 0, "0-3/4-7")])).unwrap();
        let host = Host::new(&topology, &[]);
        let got = map(&host, &[0, 1, 2, 4, 5, 6], 6, 2, true).unwrap();
        assert_eq!(numbers(&host.pins(&got)), [0, 1, 4, 5, 2, 6]);
    }
}
