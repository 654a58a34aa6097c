//! Naive first fit: the lowest free GPUs and the lowest free pcpus, as a script with a list would
//! do it.

use super::super::model::{Ask, Place, Policy};
use super::host::{Host, lowest};
use gpuvm_core::topology::Topology;

/// Is first fit by number.
#[derive(Debug, Clone, Copy)]
pub struct FirstFit;

impl Policy for FirstFit {
    fn name(&self) -> String {
        "naive first fit".into()
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[
            "nodes",
            "SMT siblings",
            "L3 groups",
            "PCIe switches",
            "NVLink partitions",
            "NICs near GPUs",
            "drives near GPUs",
            "memory by node",
        ]
    }

    fn place(&self, topology: &Topology, guests: &[Place], ask: &Ask) -> Option<Place> {
        let host = Host::new(topology, guests);
        let gpus = lowest(&host.gpus, ask.gpus)?;
        let mut free: Vec<usize> =
            (0..host.threads.len()).filter(|&thread| host.threads[thread].free).collect();
        free.sort_unstable_by_key(|&thread| host.threads[thread].pcpu);
        let threads = free.get(..ask.vcpus as usize)?;
        Some(Place {
            along: host.switches(&gpus).unwrap_or_default(),
            gpus,
            nics: lowest(&host.nics, ask.nics)?,
            nvmes: lowest(&host.nvmes, ask.nvmes)?,
            pins: host.pins(threads),
            memory: host.first_touch(ask.memory, threads)?,
            ..Place::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testhost::{ask, dgx2, join};
    use super::*;

    /// Each guest gets the lowest GPUs and the lowest pcpus, so the third one has vCPUs on the
    /// siblings of the first ones' cores and on the other socket's.
    #[test]
    fn takes_the_lowest_numbers() {
        let host = dgx2();
        let mut guests = Vec::new();
        for (gpus, vcpus, pcpus, nodes) in
            [(4, 22, "0-21", 1), (8, 46, "22-67", 2), (4, 22, "68-89", 2)]
        {
            let place = FirstFit.place(&host, &guests, &ask(gpus, vcpus)).unwrap();
            assert_eq!(join(&place.pins), pcpus);
            assert_eq!(place.memory.len(), nodes, "{:?}", place.memory);
            guests.push(place);
        }
        assert_eq!(guests[1].gpus, host.gpus().skip(4).take(8).map(|g| g.bdf).collect::<Vec<_>>());
        assert!(FirstFit.place(&host, &guests, &ask(1, 5)).is_none());
    }
}
