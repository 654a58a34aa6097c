//! Ubicloud: the lowest partition of the right size that is free, and the first cores that fit.

use super::super::model::{Ask, Place, Policy};
use super::host::{Host, lowest};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::Topology;
use std::collections::BTreeSet;

/// Is Ubicloud's choice of partition (gpuvm-placement(7), OTHER PLANNERS).
#[derive(Debug, Clone, Copy)]
pub struct Ubicloud;

impl Policy for Ubicloud {
    fn name(&self) -> String {
        "ubicloud lowest partition".into()
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[
            "nodes",
            "L3 groups",
            "PCIe switches",
            "NICs near GPUs",
            "drives near GPUs",
            "memory by node",
        ]
    }

    fn place(&self, topology: &Topology, guests: &[Place], ask: &Ask) -> Option<Place> {
        let host = Host::new(topology, guests);
        let (gpus, along) = devices(&host, ask)?;
        let threads = first_cores(&host, ask.vcpus as usize)?;
        Some(Place {
            gpus,
            along,
            nics: lowest(&host.nics, ask.nics)?,
            nvmes: lowest(&host.nvmes, ask.nvmes)?,
            pins: host.pins(&threads),
            memory: host.first_touch(ask.memory, &threads)?,
            ..Place::default()
        })
    }
}

/// GPUs and NVSwitches of the lowest partition that is free; any GPUs on hosts without partitions.
fn devices(host: &Host<'_>, ask: &Ask) -> Option<(Vec<Bdf>, Vec<Bdf>)> {
    let mut partitions: Vec<_> = host.topology.partitions().iter().collect();
    if partitions.is_empty() || ask.gpus == 0 {
        return Some((lowest(&host.gpus, ask.gpus)?, Vec::new()));
    }
    partitions.sort_by_key(|partition| partition.id);
    let free: BTreeSet<Bdf> = host.gpus.iter().filter(|gpu| gpu.free).map(|gpu| gpu.bdf).collect();
    partitions.into_iter().find_map(|partition| {
        let fits = partition.gpus.len() == ask.gpus as usize
            && partition.gpus.iter().all(|gpu| free.contains(gpu));
        let along = if fits { host.switches(&partition.gpus)? } else { return None };
        Some((partition.gpus.clone(), along))
    })
}

/// Threads of the first whole cores that hold so many vCPUs.
fn first_cores(host: &Host<'_>, vcpus: usize) -> Option<Vec<usize>> {
    let whole = (0..host.cores.len()).filter(|&core| host.is_whole(core));
    let threads = whole.flat_map(|core| host.cores[core].threads.clone());
    let threads: Vec<usize> = threads.take(vcpus).collect();
    (threads.len() == vcpus).then_some(threads)
}

#[cfg(test)]
mod tests {
    use super::super::testhost::{ask, dgx2, join};
    use super::*;

    /// "Lowest free partition id of the right size" (gpuvm-placement(7), OTHER PLANNERS): after a
    /// guest of one GPU the next of eight goes to the other board, and its cores start where the
    /// first guest's end, whatever the node.
    #[test]
    fn takes_the_lowest_partition_and_the_first_cores() {
        let host = dgx2();
        let mut guests = Vec::new();
        for (gpus, vcpus, first, pcpus) in
            [(1, 5, 0, "0-2,48-49"), (8, 46, 8, "3-25,51-73"), (2, 10, 2, "26-30,74-78")]
        {
            let place = Ubicloud.place(&host, &guests, &ask(gpus, vcpus)).unwrap();
            let wanted: Vec<Bdf> =
                host.gpus().skip(first).take(gpus as usize).map(|gpu| gpu.bdf).collect();
            assert_eq!((place.gpus.clone(), join(&place.pins).as_str()), (wanted, pcpus));
            guests.push(place);
        }
        assert!(Ubicloud.place(&host, &guests, &ask(16, 92)).is_none());
    }
}
