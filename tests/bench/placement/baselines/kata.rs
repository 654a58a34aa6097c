//! Kata Containers: a sandbox is right-sized to one node if everything fits there, otherwise spread
//! over all (gpuvm-placement(7), OTHER PLANNERS).
//!
//! Kata pins one vCPU to one pcpu but books nothing between sandboxes, so two of them would run on
//! the same pcpus (issue 13539, quoted there); here it takes free pcpus, as if it did. Devices are
//! the caller's: the lowest free.

use super::super::model::{Ask, Place, Policy};
use super::host::{Host, lowest};
use gpuvm_core::cpuset::NodeId;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::Topology;

/// Is Kata with automatic right-sizing.
#[derive(Debug, Clone, Copy)]
pub struct Kata;

impl Policy for Kata {
    fn name(&self) -> String {
        "kata right-sizing".into()
    }

    fn lacks(&self) -> &'static [&'static str] {
        &["what other sandboxes pin", "L3 groups", "PCIe switches", "NVLink partitions"]
    }

    fn place(&self, topology: &Topology, guests: &[Place], ask: &Ask) -> Option<Place> {
        let host = Host::new(topology, guests);
        let gpus = lowest(&host.gpus, ask.gpus)?;
        let nics = lowest(&host.nics, ask.nics)?;
        let nvmes = lowest(&host.nvmes, ask.nvmes)?;
        let devices = [&gpus[..], &nics, &nvmes].concat();
        let node = |bdf| topology.device(bdf).and_then(|device| device.node);
        let at: Vec<NodeId> = devices.into_iter().filter_map(node).collect();
        let (threads, memory) = match fitting(&host, ask, &at) {
            Some(node) => (on(&host, node, ask.vcpus as usize)?, vec![(node, ask.memory)]),
            None => everywhere(&host, ask)?,
        };
        Some(Place {
            along: host.switches(&gpus).unwrap_or_default(),
            memory: memory.into_iter().map(|(node, size)| (host.nodes[node].id, size)).collect(),
            pins: host.pins(&threads),
            gpus,
            nics,
            nvmes,
            ..Place::default()
        })
    }
}

/// The smallest node that has the pcpus, the memory and all these nodes' devices; equal ones by
/// number.
fn fitting(host: &Host<'_>, ask: &Ask, devices: &[NodeId]) -> Option<usize> {
    let fits = |&node: &usize| {
        host.free_threads(node) >= ask.vcpus as usize
            && !host.nodes[node].cores.is_empty()
            && host.nodes[node].free >= ask.memory
            && devices.iter().all(|device| *device == host.nodes[node].id)
    };
    let size = |&node: &usize| (host.all_threads(node), host.nodes[node].memory, node);
    (0..host.nodes.len()).filter(fits).min_by_key(size)
}

/// Free threads of a node, core by core.
fn on(host: &Host<'_>, node: usize, number: usize) -> Option<Vec<usize>> {
    let cores = host.nodes[node].cores.iter();
    let threads: Vec<usize> = cores.flat_map(|&core| host.free_of(core)).take(number).collect();
    (threads.len() == number).then_some(threads)
}

/// vCPUs and memory over all nodes with cores, in proportion to their numbers of pcpus; `None` if
/// some node lacks its part.
#[allow(clippy::type_complexity)] // threads, and memory by node
fn everywhere(host: &Host<'_>, ask: &Ask) -> Option<(Vec<usize>, Vec<(usize, MemSize)>)> {
    let all = host.threads.len();
    let (mut threads, mut memory) = (Vec::new(), Vec::new());
    let (mut below, mut before, mut given) = (0, 0, MemSize::default());
    for node in (0..host.nodes.len()).filter(|&node| !host.nodes[node].cores.is_empty()) {
        below += host.all_threads(node);
        let vcpus = ask.vcpus as usize * below / all;
        let until = ask.memory.share(below as u64, all as u64);
        threads.extend(on(host, node, vcpus - before)?);
        if until - given > host.nodes[node].free {
            return None;
        }
        if until > given {
            memory.push((node, until - given));
        }
        (before, given) = (vcpus, until);
    }
    Some((threads, memory))
}

#[cfg(test)]
mod tests {
    use super::super::testhost::{GPU, add, ask, join, only_free, rows};
    use super::*;
    use gpuvm_core::topology::Parts;

    /// Nodes of eight, four and four pcpus in cores of one thread.
    fn uneven() -> Parts {
        rows(&[(0, 0, 0, "0/1/2/3/4/5/6/7"), (0, 1, 1, "8/9/10/11"), (0, 2, 2, "12/13/14/15")])
    }

    /// Free pcpus, vCPUs, GiB, nodes of devices; the node (none if all nodes). By the rules of
    /// gpuvm-placement(7), OTHER PLANNERS.
    #[test]
    fn the_smallest_node_that_fits_is_taken() {
        let topology = Topology::new(uneven()).unwrap();
        for (free, vcpus, gib, devices, wanted) in [
            ("0-15", 2, 4, vec![], Some(1)),
            ("0-15", 5, 4, vec![], Some(0)),
            ("0-15", 2, 4, vec![2], Some(2)),
            ("0-15", 2, 4, vec![2, 2], Some(2)),
            ("0-15", 2, 4, vec![1, 2], None),
            ("0-15", 9, 4, vec![], None),
            ("0-15", 2, 80, vec![], None),
            ("0-9", 4, 4, vec![], Some(0)),
            ("0-9", 2, 4, vec![2], None),
        ] {
            let mut host = Host::new(&topology, &[]);
            only_free(&mut host, free);
            let devices: Vec<NodeId> = devices.into_iter().map(NodeId).collect();
            let ask = Ask { memory: MemSize::from_gib(gib), ..ask(0, vcpus) };
            assert_eq!(fitting(&host, &ask, &devices), wanted, "{vcpus} {gib} {devices:?} {free}");
        }
    }

    /// A large sandbox has vCPUs and memory on all nodes in proportion to their pcpus.
    #[test]
    fn the_rest_goes_everywhere() {
        let mut parts = uneven();
        add(&mut parts, GPU, 0x10, &[Some(1), Some(2)]);
        let topology = Topology::new(parts).unwrap();
        let place = Kata.place(&topology, &[], &ask(2, 8)).unwrap();
        assert_eq!(join(&place.pins), "0-3,8-9,12-13");
        let gib: Vec<u64> = place.memory.iter().map(|(_, size)| size.kib() >> 20).collect();
        assert_eq!(gib, [4, 2, 2]);
        // One GPU left would be on node 2, and nothing holds the others: refused only because of
        // missing GPUs.
        assert!(Kata.place(&topology, &[place], &ask(1, 1)).is_none());
    }
}
