//! Our planner against the exact optimum, on small hosts with random occupancy.

use super::exact;
use super::hosts::{self, Host};
use super::model::Place;
use super::optimum::{Board, Want};
use super::ours::held;
use super::stream::Random;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::placement::{Occupancy, plan};
use gpuvm_core::request::{DeviceWish, Request};
use gpuvm_core::topology::{Core, DeviceKind, Topology};

/// Random guests: some on whole partitions, some on any GPUs, with cores of their nodes or of
/// others.
pub fn occupancy(topology: &Topology, random: &mut Random) -> Vec<Place> {
    let mut gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let mut cores: Vec<&Core> = topology.cores().iter().collect();
    let mut guests: Vec<Place> = Vec::new();
    for _ in 0..random.below(4) {
        let mut guest = Place::default();
        let parts = topology.partitions();
        if !parts.is_empty() && random.below(2) == 0 {
            let part = &parts[random.below(parts.len())];
            if part.gpus.len() < gpus.len() && part.gpus.iter().all(|gpu| gpus.contains(gpu)) {
                guest.gpus.clone_from(&part.gpus);
            }
        } else if gpus.len() > 1 {
            guest.gpus = vec![gpus[random.below(gpus.len())]];
        }
        gpus.retain(|gpu| !guest.gpus.contains(gpu));
        for _ in 0..random.below(5) {
            let near = |core: &&Core| {
                let home = guest.gpus.first().and_then(|gpu| topology.device(*gpu)?.node);
                home.is_none_or(|home| home == core.node)
            };
            let wanted: Vec<usize> = match random.below(3) {
                0 => (0..cores.len()).collect(),
                _ => (0..cores.len()).filter(|at| near(&cores[*at])).collect(),
            };
            if !wanted.is_empty() {
                let core = cores.remove(wanted[random.below(wanted.len())]);
                guest.pins.extend(core.pcpus.iter().map(CpuSet::of));
            }
        }
        if guest.pins.is_empty() {
            // A guest without pins would float over all; one on a core of its own does not.
            let core = cores.remove(random.below(cores.len()));
            guest.pins.extend(core.pcpus.iter().map(CpuSet::of));
        }
        let nics: Vec<Bdf> = topology.of_kind(DeviceKind::Nic).map(|nic| nic.bdf).collect();
        let nic = nics[random.below(nics.len())];
        if random.below(3) == 0 && guests.iter().all(|other| !other.nics.contains(&nic)) {
            guest.nics = vec![nic];
        }
        guests.push(guest);
    }
    guests
}

/// The set that our planner takes for a guest of default size; `None` if it refuses.
fn ours(host: &Topology, guests: &[Place], want: Want) -> Option<Vec<Bdf>> {
    let domains = guests.iter().enumerate().map(|(at, guest)| held(host, at, guest)).collect();
    let occupancy = Occupancy { domains, ..Occupancy::default() };
    let [gpus, nics, nvmes] = want.map(|number| u32::try_from(number).unwrap());
    let mut request = Request::for_gpus(gpus);
    request.extras.nics = DeviceWish::Count(nics);
    request.extras.nvmes = DeviceWish::Count(nvmes);
    let placement = plan(host, &occupancy, &request).ok()?;
    let is_gpu = |bdf: &&Bdf| host.device(**bdf).is_some_and(|d| d.kind() == DeviceKind::Gpu);
    Some(placement.devices.iter().filter(is_gpu).copied().collect())
}

const CASES: u64 = 25;

/// Compares our planner with the optimum on a host: every size of guest, on random occupancies,
/// with NICs and drives if `devices` says so. Returns how many guests were compared, and how many
/// of these had a place.
fn assert_optimal(host: &Host, devices: bool) -> (usize, usize) {
    let topology = &host.topology;
    let gpus = topology.gpus().count();
    let aligned = topology.partitions().len() == 2 * gpus - 1;
    let values = if aligned { exact::Board::new(gpus).values(0.9) } else { vec![] };
    let (mut cases, mut placed, mut missed) = (0, 0, Vec::new());
    for seed in 0..CASES {
        let mut random = Random(seed);
        let guests = occupancy(topology, &mut random);
        for size in 1..=gpus {
            let want =
                if devices { [size, random.below(3), random.below(2)] } else { [size, 0, 0] };
            let board = Board::new(topology, &guests, want, &values);
            let best = board.keys(size).into_iter().min();
            let index = |bdf: &Bdf| board.gpus.iter().position(|gpu| gpu == bdf).unwrap();
            let found = ours(topology, &guests, want);
            let found = found.map(|set| board.key(&set.iter().map(index).collect::<Vec<_>>()));
            cases += 1;
            placed += usize::from(best.is_some());
            if found != best {
                let at = format!("{}, seed {seed}, wanted {want:?}", host.name);
                missed.push(format!("{at}: ours {found:?}, the optimum {best:?}"));
            }
        }
    }
    assert!(missed.is_empty(), "{} of {cases} missed\n{}", missed.len(), missed.join("\n"));
    (cases, placed)
}

#[test]
fn ours_is_the_exact_optimum_on_every_small_host() {
    for host in hosts::small() {
        let (cases, placed) = assert_optimal(&host, false);
        assert!(cases >= 100 && placed >= 30, "{}: {placed} of {cases}", host.name);
    }
}

#[test]
fn ours_is_the_exact_optimum_with_nics_and_drives() {
    for host in hosts::small() {
        let (cases, placed) = assert_optimal(&host, true);
        assert!(cases >= 100 && placed >= 10, "{}: {placed} of {cases}", host.name);
    }
}
