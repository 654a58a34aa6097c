//! Guests placed together against the same guests placed one after the other, on random sets of
//! guests.

use super::hosts::{self, Host};
use super::stream::Random;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::placement::Occupancy;
use gpuvm_core::placement::joint::{JointGuest, in_order, joint};
use gpuvm_core::request::{DeviceWish, Near, PinPolicy, Request};
use gpuvm_core::topology::{DeviceKind, Topology};
use std::fmt::Write as _;

const HOSTS: [&str; 5] = ["dgx-1", "dgx-2", "dgx-a100", "dgx-h100", "epyc-nps4"];
const SEED: u64 = 20_261_123;

/// What came of the sets on one host.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// The host.
    pub host: String,
    /// Sets of guests.
    pub sets: u32,
    /// Sets that are refused one after the other, and have places together.
    pub only_together: u32,
    /// Sets that are refused either way.
    pub refused: u32,
    /// Sets that cost less together.
    pub less: u32,
    /// Sets of which it is not proven that nothing costs less.
    pub unproven: u32,
}

/// A random set of guests that fill a part of a host, in random order.
pub fn set(random: &mut Random, topology: &Topology) -> Vec<Request> {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let gpus = number(topology.gpus().count());
    let nics = topology.devices().iter().filter(|device| device.kind() == DeviceKind::Nic);
    let mut nics = nics.count() / 2;
    let pcpus = number(topology.pcpus().len());
    let memory: u64 = topology.nodes().iter().map(|node| node.memory_kib.kib()).sum();
    let mut left = gpus / 2 + number(random.below(gpus as usize / 2 + 1));
    let mut all: Vec<Request> = (0..random.below(3))
        .map(|_| {
            // A guest without GPUs, of up to a quarter of the host's cores.
            let vcpus = 2 + number(random.below(pcpus as usize / 4));
            let vcpus = Some(vcpus.next_multiple_of(2));
            let memory_kib = Some(MemSize::from_gib(4));
            Request { vcpus, memory_kib, ..Request::for_gpus(0) }
        })
        .collect();
    while left > 0 && all.len() < 12 {
        let size = [1, 1, 1, 1, 2, 2, 2, 4, 4, 8][random.below(10)];
        if size > left {
            continue;
        }
        left -= size;
        let mut request = Request::for_gpus(size);
        if random.below(2) == 0 {
            // Between a fifth of the GPUs' share and two fifths more than it.
            let fifths = 1 + number(random.below(7));
            request.vcpus = Some((pcpus / gpus * size * fifths / 5).next_multiple_of(2).max(2));
            let share = memory / u64::from(gpus) * u64::from(size) / 5 * u64::from(fifths);
            request.memory_kib = Some(MemSize::from_kib(share));
        }
        if nics > 0 && random.below(3) == 0 {
            nics -= 1;
            request.extras.nics = DeviceWish::Count(1);
            request.extras.nic_near = if random.below(2) == 0 { Near::Node } else { Near::Any };
        }
        all.insert(random.below(all.len() + 1), request);
    }
    all
}

/// Requests as guests.
pub fn named(requests: &[Request]) -> Vec<JointGuest<'_>> {
    requests.iter().map(|request| JointGuest { name: "guest", request, sets: &[] }).collect()
}

/// Places this many random sets either way.
///
/// # Panics
///
/// Where guests together cost more, or have no place although they have one after the other.
pub fn compare(sets: u32) -> Vec<Row> {
    let each = sets / u32::try_from(HOSTS.len()).unwrap_or(1);
    let row = |name: &str| {
        let Host { name, topology } = hosts::named(name);
        let mut random = Random(SEED);
        let mut row = Row { host: name, sets: each, ..Row::default() };
        for _ in 0..each {
            let requests = set(&mut random, &topology);
            let (wanted, held) = (named(&requests), Occupancy::default());
            match (in_order(&topology, &held, &wanted), joint(&topology, &held, &wanted)) {
                (Ok(one), Ok(all)) => {
                    assert!(all.cost <= one.cost, "{}: {requests:?}", row.host);
                    row.less += u32::from(all.cost < one.cost);
                    row.unproven += u32::from(!all.is_best);
                }
                (Err(_), Ok(all)) => {
                    row.only_together += 1;
                    row.unproven += u32::from(!all.is_best);
                }
                (Err(_), Err(_)) => row.refused += 1,
                (Ok(_), Err(error)) => panic!("{}: {error:?} of {requests:?}", row.host),
            }
        }
        row
    };
    HOSTS.into_iter().map(row).collect()
}

/// The rows as a table.
pub fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<12}{:>6}{:>16}{:>14}{:>12}{:>12}\n",
        "host", "sets", "only together", "refused both", "costs less", "not proven"
    );
    for row in rows {
        let Row { host, sets, only_together, refused, less, unproven } = row;
        let _ = writeln!(
            text,
            "{host:<12}{sets:>6}{only_together:>16}{refused:>14}{less:>12}{unproven:>12}"
        );
    }
    text
}

/// Fifty guests of a DGX-2: twelve with GPUs, the others small and unpinned.
pub fn fifty() -> Vec<Request> {
    let small = Request {
        vcpus: Some(2),
        memory_kib: Some(MemSize::from_gib(4)),
        pins: PinPolicy::None,
        ..Request::for_gpus(0)
    };
    let mut all = vec![small; 38];
    for gpus in [1, 1, 2, 1, 1, 1, 4, 1, 1, 1, 1, 1] {
        let memory_kib = Some(MemSize::from_gib(16));
        all.push(Request { vcpus: Some(2 * gpus), memory_kib, ..Request::for_gpus(gpus) });
    }
    all
}

#[cfg(test)]
#[allow(clippy::print_stdout)]
mod tests {
    use super::*;

    #[test]
    fn together_is_never_worse_than_one_after_the_other() {
        let sets = std::env::var("GPUVM_JOINT_SETS").ok().and_then(|sets| sets.parse().ok());
        let rows = compare(sets.unwrap_or(50));
        println!("{}", table(&rows));
        let gained: u32 = rows.iter().map(|row| row.only_together + row.less).sum();
        assert!(gained > 0, "{}", table(&rows));
    }

    #[test]
    fn fifty_guests_have_places() {
        let (host, requests) = (hosts::named("dgx-2"), fifty());
        let wanted = named(&requests);
        let start = std::time::Instant::now();
        let found = joint(&host.topology, &Occupancy::default(), &wanted).unwrap();
        println!("50 guests on a DGX-2: {:?}, best {}", start.elapsed(), found.is_best);
        assert_eq!(found.placements.len(), 50);
    }
}
