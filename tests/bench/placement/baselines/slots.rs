//! nvidia-vm: fixed slots of GPUs, each with fixed pcpus, taken by the lowest index
//! (gpuvm-nvidia-vm(7), SLOTS).
//!
//! Generalised to any host: a GPU owns the cores of its package divided by the package's GPUs, in
//! order. An operator who takes the lowest free index is the best that the tool's user can be
//! (gpuvm-placement(7), METRICS).

use super::super::model::{Ask, Place, Policy};
use super::host::{Host, lowest};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::Topology;

/// The slots, lowest index first.
#[derive(Debug, Clone, Copy)]
pub struct Slots;

impl Policy for Slots {
    fn name(&self) -> String {
        "nvidia-vm slots".into()
    }

    fn lacks(&self) -> &'static [&'static str] {
        &["L3 groups", "PCIe switches", "NICs near GPUs", "drives near GPUs", "memory by node"]
    }

    fn place(&self, topology: &Topology, guests: &[Place], ask: &Ask) -> Option<Place> {
        let host = Host::new(topology, guests);
        let owned = Owned::new(&host);
        let count = ask.gpus as usize;
        (0..host.gpus.len()).step_by(count.max(1)).find_map(|index| {
            let gpus = host.gpus.get(index..index + count)?;
            if gpus.is_empty() || gpus.iter().any(|gpu| !gpu.free) {
                return None;
            }
            let threads = owned.threads(&host, index, count, ask.vcpus as usize)?;
            // The tool knows only its own guests; if another planner's guest holds a slot's pcpus,
            // the slot counts as in use.
            if !threads.iter().all(|&thread| host.threads[thread].free) {
                return None;
            }
            let gpus: Vec<Bdf> = gpus.iter().map(|gpu| gpu.bdf).collect();
            Some(Place {
                along: host.switches(&gpus)?,
                gpus,
                nics: lowest(&host.nics, ask.nics)?,
                nvmes: lowest(&host.nvmes, ask.nvmes)?,
                pins: host.pins(&threads),
                memory: host.first_touch(ask.memory, &threads)?,
                ..Place::default()
            })
        })
    }
}

/// The cores that belong to each GPU.
struct Owned {
    /// Package and place among the package's GPUs, by GPU index.
    seats: Vec<(usize, usize)>,
    /// Cores of each package, by lowest pcpu.
    cores: Vec<Vec<usize>>,
    /// Cores that each GPU of a package owns.
    share: Vec<usize>,
}

impl Owned {
    /// Deals the cores out. A GPU whose package is not known is taken to be on the package that its
    /// index suggests, as the tool itself assumed.
    fn new(host: &Host<'_>) -> Owned {
        let mut cores = vec![Vec::new(); host.packages];
        for (at, core) in host.cores.iter().enumerate() {
            cores[core.package].push(at);
        }
        let mut number = vec![0; host.packages];
        let mut seats = Vec::new();
        for (index, gpu) in host.gpus.iter().enumerate() {
            let first = gpu.node.and_then(|node| host.nodes[node].cores.first());
            let guess = index * host.packages / host.gpus.len();
            let package = first.map_or(guess, |&core| host.cores[core].package);
            seats.push((package, number[package]));
            number[package] += 1;
        }
        let share = |(cores, gpus): (&Vec<usize>, &usize)| cores.len() / gpus.max(&1);
        let share = cores.iter().zip(&number).map(share).collect();
        Owned { seats, cores, share }
    }

    /// The pcpus of a slot: of each package all first threads, then all siblings; none where the
    /// slot has too few. Each package gives in proportion to the slot's GPUs there.
    fn threads(
        &self,
        host: &Host<'_>,
        index: usize,
        count: usize,
        vcpus: usize,
    ) -> Option<Vec<usize>> {
        let (mut first, mut second) = (Vec::<usize>::new(), Vec::<usize>::new());
        let mut done = 0;
        for package in 0..self.cores.len() {
            let ranks: Vec<usize> = self.seats[index..index + count]
                .iter()
                .filter(|(p, _)| *p == package)
                .map(|s| s.1)
                .collect();
            let share = self.share[package];
            let owned = ranks.iter().flat_map(|rank| &self.cores[package][rank * share..][..share]);
            let cores: Vec<usize> = owned.copied().collect();
            let wanted = (done + ranks.len()) * vcpus / count - done * vcpus / count;
            done += ranks.len();
            let nth = |n: usize| {
                let of = cores.iter().map(move |&core| host.cores[core].threads.clone().nth(n));
                of.flatten().collect::<Vec<usize>>()
            };
            let deep = (0..host.smt()).map(nth).collect::<Vec<_>>();
            let siblings: Vec<usize> = deep.iter().skip(1).flatten().copied().collect();
            let firsts = wanted.div_ceil(host.smt()).min(deep[0].len());
            first.extend(&deep[0][..firsts]);
            second.extend(siblings.get(..wanted - firsts)?);
        }
        first.extend(second);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testhost::{ask, dgx2, even, join, numbers};
    use super::*;
    use gpuvm_core::topology::Topology;

    /// The pcpus of all 31 slots: GPUs, index, first and last of the first threads, first and last
    /// of the siblings; from the table of gpuvm-nvidia-vm(7), PINS with c0 = 24 x (index div 8) + 3
    /// x (index mod 8).
    const SLOTS: [(u32, u32, &str); 31] = [
        (1, 0, "0-2,48-49"),
        (1, 1, "3-5,51-52"),
        (1, 2, "6-8,54-55"),
        (1, 3, "9-11,57-58"),
        (1, 4, "12-14,60-61"),
        (1, 5, "15-17,63-64"),
        (1, 6, "18-20,66-67"),
        (1, 7, "21-23,69-70"),
        (1, 8, "24-26,72-73"),
        (1, 9, "27-29,75-76"),
        (1, 10, "30-32,78-79"),
        (1, 11, "33-35,81-82"),
        (1, 12, "36-38,84-85"),
        (1, 13, "39-41,87-88"),
        (1, 14, "42-44,90-91"),
        (1, 15, "45-47,93-94"),
        (2, 0, "0-4,48-52"),
        (2, 2, "6-10,54-58"),
        (2, 4, "12-16,60-64"),
        (2, 6, "18-22,66-70"),
        (2, 8, "24-28,72-76"),
        (2, 10, "30-34,78-82"),
        (2, 12, "36-40,84-88"),
        (2, 14, "42-46,90-94"),
        (4, 0, "0-10,48-58"),
        (4, 4, "12-22,60-70"),
        (4, 8, "24-34,72-82"),
        (4, 12, "36-46,84-94"),
        (8, 0, "0-22,48-70"),
        (8, 8, "24-46,72-94"),
        (16, 0, "0-22,24-46,48-70,72-94"),
    ];

    /// The number of vCPUs that the tool gave to this many GPUs (gpuvm-nvidia-vm(7), SIZES).
    fn vcpus(gpus: u32) -> u32 {
        match gpus {
            1 => 5,
            16 => 92,
            _ => 6 * gpus - 2,
        }
    }

    #[test]
    fn every_slot_has_its_pcpus() {
        let topology = dgx2();
        let host = Host::new(&topology, &[]);
        let owned = Owned::new(&host);
        for (gpus, index, pcpus) in SLOTS {
            let (index, count) = (index as usize, gpus as usize);
            let threads = owned.threads(&host, index, count, vcpus(gpus) as usize).unwrap();
            assert_eq!(join(&host.pins(&threads)), pcpus, "{gpus} GPUs at {index}");
        }
    }

    /// "vCPU 0-22 on CPU 0-22, vCPU 23-45 on CPU 48-70" (gpuvm-nvidia-vm(7), PINS), with six
    /// NVSwitches (SIZES).
    #[test]
    fn siblings_come_after_all_first_threads() {
        let place = Slots.place(&dgx2(), &[], &ask(8, 46)).unwrap();
        assert_eq!(numbers(&place.pins), (0..23).chain(48..71).collect::<Vec<u32>>());
        assert_eq!(place.along.len(), 6);
        assert!(place.emulator.is_empty());
    }

    /// Index is a multiple of count and ranges must not overlap (gpuvm-nvidia-vm(7), SLOTS): guests
    /// in order of arrival with the index that each gets.
    #[test]
    fn takes_the_lowest_free_index() {
        let host = dgx2();
        let gpus: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
        let mut guests = Vec::new();
        for (count, index) in
            [(1, Some(0)), (2, Some(2)), (8, Some(8)), (1, Some(1)), (4, Some(4)), (1, None)]
        {
            let place = Slots.place(&host, &guests, &ask(count, vcpus(count)));
            let at = place.as_ref().map(|p| gpus.iter().position(|g| *g == p.gpus[0]).unwrap());
            assert_eq!(at, index, "{count}");
            guests.extend(place);
        }
    }

    /// A slot with a GPU that does not respond is never used, and its neighbours are.
    #[test]
    fn passes_over_a_dead_gpu() {
        let mut parts = dgx2().parts().clone();
        let dead = parts.devices.iter_mut().find(|d| d.bdf == "36:00.0".parse().unwrap()).unwrap();
        dead.device = 0xffff;
        let host = Topology::new(parts).unwrap();
        let place = Slots.place(&host, &[], &ask(2, 10)).unwrap();
        let next: Vec<Bdf> = host.gpus().skip(2).take(2).map(|gpu| gpu.bdf).collect();
        assert_eq!((place.gpus, join(&place.pins).as_str()), (next, "6-10,54-58"));
    }

    /// Hosts without GPUs are refused, not divided by.
    #[test]
    fn a_host_without_gpus_is_refused() {
        let host = Topology::new(even(2, 1, 4)).unwrap();
        assert!(Slots.place(&host, &[], &ask(1, 2)).is_none());
    }
}
