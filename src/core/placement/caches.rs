//! How a guest sees the L3 caches that its vCPUs share on the host: by dies and by the source of
//! its cache leaves. Knows pins and the host's caches, not how cores were chosen.
//!
//! A guest's kernel finds the vCPUs below one L3 by their APIC ids. QEMU gives sockets, dies, cores
//! and threads each a field of whole bits in it (QEMU, `include/hw/i386/topology.h`). With the
//! host's leaves (`host-cache-info`) AMD's leaf 0x8000001D says how many ids share a cache, which
//! the kernel rounds up to a power of two (Linux, `cacheinfo_amd_init_llc_id`); QEMU cuts Intel's
//! leaf 4 to the guest's package. With QEMU's own leaves (`l3-cache`) each die has one L3 (QEMU,
//! `target/i386/cpu.c`: `legacy_l3_cache`).

use super::types::{GuestCache, GuestTopology};
use super::window::is_amd;
use crate::cpuset::CpuSet;
use crate::topology::Topology;
use std::iter::repeat_n;

/// The most dies of a package: AMD's leaf 0x8000001E has three bits for them.
const MOST_DIES: u32 = 8;

/// Returns the bits needed to number this many items.
fn bits(things: u32) -> u32 {
    things.max(1).next_power_of_two().trailing_zeros()
}

/// The L3 cache of each vCPU, as indexes in the host's record; none if a vCPU is not pinned to one
/// pcpu, or its cache is unknown.
pub fn caches_of(topology: &Topology, pins: &[CpuSet]) -> Option<Vec<usize>> {
    let cache = |pin: &CpuSet| topology.l3_place(pin.first().filter(|_| pin.len() == 1)?);
    pins.iter().map(cache).collect()
}

/// Returns the number of APIC id bits that share an L3 of the host; none if unknown: an offline
/// thread has an id, too, and Intel's leaf counts ids that the package could have.
fn host_bits(topology: &Topology) -> Option<u32> {
    let is_amd = topology.machine().cpu_vendor.as_deref().is_some_and(is_amd);
    let most = topology.parts().l3.iter().map(|cache| cache.pcpus.len()).max()?;
    let known = is_amd && topology.parts().offline.is_empty();
    known.then(|| bits(u32::try_from(most).unwrap_or(u32::MAX)))
}

/// The largest APIC id that interrupts reach without remapping.
const LAST_PLAIN_ID: u64 = 254;

/// The largest APIC id of a guest.
fn last_id(shape: GuestTopology) -> u64 {
    let GuestTopology { sockets, dies, cores, threads } = shape;
    [(sockets, 0), (dies, bits(dies)), (cores, bits(cores)), (threads, bits(threads))]
        .into_iter()
        .fold(0, |id, (number, field)| id << field | u64::from(number.max(1) - 1))
}

/// Whether some vCPU has an APIC id that interrupts reach only with remapping; 255 is the broadcast
/// id.
pub fn needs_remapping(shape: GuestTopology) -> bool {
    last_id(shape) > LAST_PLAIN_ID
}

/// Returns the L3 cache that the guest sees for each vCPU, as non-decreasing numbers.
fn seen(shape: GuestTopology, cache: GuestCache, host: Option<u32>) -> impl Iterator<Item = u32> {
    let GuestTopology { sockets, dies, cores, threads } = shape;
    let (core_at, die_at) = (bits(threads), bits(cores) + bits(threads));
    let all = (0..sockets).flat_map(move |socket| (0..dies).map(move |die| (socket, die)));
    let group = move |(socket, die): (u32, u32), core: u32| {
        let number = (socket << bits(dies) | die) << die_at | core << core_at;
        match (cache, host) {
            (GuestCache::Passthrough, Some(shared)) => number >> shared,
            (GuestCache::Passthrough, None) => socket,
            (GuestCache::Emulate, _) => number >> die_at,
        }
    };
    all.flat_map(move |die| {
        (0..cores).flat_map(move |core| repeat_n(group(die, core), threads as usize))
    })
}

/// Whether two numberings group alike; the first is non-decreasing.
fn is_same(seen: impl Iterator<Item = u32>, there: &[usize]) -> bool {
    let mut met = vec![false; there.iter().max().map_or(0, |most| most + 1)];
    let (mut last, mut left) = (None, there.iter());
    for group in seen {
        let Some(&cache) = left.next() else { return false };
        // A cache seen before this group is split over two groups.
        let is_good = match last {
            Some((same, before)) if same == group => before == cache,
            _ => !std::mem::replace(&mut met[cache], true),
        };
        if !is_good {
            return false;
        }
        last = Some((group, cache));
    }
    left.next().is_none()
}

/// Whether a guest with these pins sees its vCPUs grouped by L3 cache as on the host; none if
/// unknown.
pub fn shows_caches(
    topology: &Topology,
    pins: &[CpuSet],
    shape: GuestTopology,
    cache: GuestCache,
) -> Option<bool> {
    let there = caches_of(topology, pins)?;
    // A document's topology may not multiply out to its vCPUs.
    let vcpus = [shape.sockets, shape.dies, shape.cores, shape.threads];
    let vcpus = vcpus.iter().try_fold(1u32, |all, part| all.checked_mul(*part))?;
    (vcpus as usize == pins.len()).then(|| is_same(seen(shape, cache, host_bits(topology)), &there))
}

/// The guest's topology with the fewest dies, and the source of its cache leaves, that show the
/// host's L3 caches; `None` if no even split into dies shows them.
pub fn with_caches(
    topology: &Topology,
    pins: &[CpuSet],
    shape: GuestTopology,
) -> Option<(GuestTopology, GuestCache)> {
    let there = caches_of(topology, pins)?;
    let host = host_bits(topology);
    let all = shape.dies * shape.cores;
    let dies = || (1..=MOST_DIES.min(all)).filter(|dies| all.is_multiple_of(*dies));
    let shapes = || dies().map(|dies| GuestTopology { dies, cores: all / dies, ..shape });
    // An IOMMU for interrupt remapping is not added just for dies.
    let most = last_id(shape).max(LAST_PLAIN_ID);
    [GuestCache::Passthrough, GuestCache::Emulate].into_iter().find_map(|cache| {
        let fits = |shape: &GuestTopology| {
            last_id(*shape) <= most && is_same(seen(*shape, cache, host), &there)
        };
        Some((shapes().find(fits)?, cache))
    })
}

/// Whether each vCPU is pinned to a pcpu that no other vCPU of the guest is pinned to. No other
/// guest of ours uses it either.
pub fn has_own_pcpus(pins: &[CpuSet]) -> bool {
    let all = pins.iter().fold(CpuSet::new(), |all, pin| all.or(pin));
    !pins.is_empty() && all.len() == pins.len() && pins.iter().all(|pin| pin.len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{Occupancy, plan};
    use crate::request::Request;

    /// The caches that a guest with this many GPUs of a recorded host sees.
    fn shown(host: &str, gpus: u32) -> (GuestTopology, Option<GuestCache>, Option<bool>) {
        let text = match host {
            "dgx-2" => include_str!("../../../topologies/dgx-2.json"),
            _ => include_str!("../../../topologies/dgx-a100.json"),
        };
        let topology = crate::topology::file::from_json(text).unwrap();
        let place = plan(&topology, &Occupancy::default(), &Request::for_gpus(gpus)).unwrap();
        let shows = place
            .cache
            .and_then(|cache| shows_caches(&topology, &place.vcpu_pins, place.topology, cache));
        (place.topology, place.cache, shows)
    }

    #[test]
    fn guests_see_the_caches_of_their_host() {
        for (host, gpus) in [("dgx-2", 1), ("dgx-2", 16), ("dgx-a100", 1), ("dgx-a100", 8)] {
            let (shape, cache, shows) = shown(host, gpus);
            assert_eq!(cache, Some(GuestCache::Passthrough), "{host} {gpus}: {shape:?}");
            assert_eq!(shows, Some(true), "{host} {gpus}: {shape:?}");
        }
    }

    #[test]
    fn fields_of_an_apic_id_are_whole_bits() {
        let shape = GuestTopology { sockets: 1, dies: 2, cores: 3, threads: 2 };
        // Ids 0 to 5 and 8 to 13.
        let seen = |shape, cache, host| seen(shape, cache, host).collect::<Vec<u32>>();
        let by_host = seen(shape, GuestCache::Passthrough, Some(3));
        assert_eq!(by_host, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
        assert_eq!(seen(shape, GuestCache::Emulate, None), by_host);
        // A larger host cache would contain both dies.
        assert_eq!(seen(shape, GuestCache::Passthrough, Some(4)), [0; 12]);
        let flat = GuestTopology { dies: 1, cores: 6, ..shape };
        assert_eq!(
            seen(flat, GuestCache::Passthrough, Some(3)),
            [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
        );
    }

    #[test]
    fn apic_ids_stay_small_enough_for_a_guest_without_remapping() {
        let shape = GuestTopology { sockets: 2, dies: 4, cores: 15, threads: 2 };
        assert_eq!(last_id(shape), 253);
        assert_eq!(last_id(GuestTopology { dies: 3, cores: 20, ..shape }), 423);
        assert_eq!(last_id(GuestTopology { sockets: 1, dies: 1, cores: 1, threads: 1 }), 0);
    }

    #[test]
    fn groups_are_compared_whatever_their_numbers() {
        assert!(is_same([4, 4, 9].into_iter(), &[7, 7, 1]));
        for (seen, there) in [
            (vec![4, 4, 9], vec![7, 1, 1]),
            (vec![4, 4, 4], vec![7, 7, 1]),
            (vec![4, 5, 6], vec![7, 7, 7]),
            (vec![4, 5, 6], vec![7, 1, 7]),
            (vec![4, 5], vec![7, 1, 2]),
            (vec![4, 5, 6], vec![7, 1]),
        ] {
            assert!(!is_same(seen.iter().copied(), &there), "{seen:?} {there:?}");
        }
    }

    #[test]
    fn pins_are_exclusive_where_each_is_one_pcpu_of_its_own() {
        let set = |text: &str| -> CpuSet { text.parse().unwrap() };
        assert!(has_own_pcpus(&[set("1"), set("5")]));
        for pins in [vec![], vec![set("1"), set("1")], vec![set("1"), set("2-3")], vec![set("")]] {
            assert!(!has_own_pcpus(&pins), "{pins:?}");
        }
    }
}
