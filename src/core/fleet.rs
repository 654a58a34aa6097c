//! Many hosts: what each has left, and which one a guest costs the others least. Knows no
//! connection and reads no host; who asks several at once is `gpuvm_ops::fleet`.

use crate::bdf::Bdf;
use crate::occupancy::Occupancy;
use crate::placement::{
    Capacity, DeviceState, Placement, PlanError, capacity, device_states, plan,
};
use crate::request::Request;
use crate::topology::{DeviceKind, Proximity, Topology};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The capacity of a host and its free part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostCapacity {
    /// GPUs.
    pub gpus: u32,
    /// GPUs that a guest could get now.
    pub free_gpus: u32,
    /// GPUs of the largest guest that fits; `None` if no guest with GPUs fits.
    pub largest: Option<u32>,
    /// NVLink partitions that the board offers.
    pub partitions: u32,
    /// Those of them whose GPUs are all free.
    pub free_partitions: u32,
    /// Defined domains.
    pub guests: u32,
    /// Those of them that run.
    pub running: u32,
    /// Guests that fit, by number of GPUs.
    pub sizes: Vec<crate::placement::Size>,
    /// GPUs that are not offered, and the limits of the numbers.
    pub findings: Vec<String>,
    /// The MAC addresses of its domains.
    #[serde(skip)]
    pub macs: Vec<MacOfDomain>,
}

/// A MAC address of a domain's NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MacOfDomain {
    /// The address, lower case.
    pub mac: String,
    /// The domain's name.
    pub domain: String,
}

/// Returns the MAC addresses of all domains, each once.
pub fn macs(held: &Occupancy) -> Vec<MacOfDomain> {
    let of = |one: &crate::occupancy::Held| {
        let domain = one.domain.clone();
        let own = one.macs.clone().into_iter();
        own.map(move |mac| MacOfDomain { mac: mac.to_lowercase(), domain: domain.clone() })
    };
    let mut all: Vec<MacOfDomain> = held.domains.iter().flat_map(of).collect();
    all.sort_by(|a, b| (&a.mac, &a.domain).cmp(&(&b.mac, &b.domain)));
    all.dedup();
    all
}

/// Returns the warnings of each host, in the order of `hosts`, about MAC addresses that a domain of
/// an earlier host has, too: on one network frames of one would reach the other.
pub fn shared_macs(hosts: &[(&str, &[MacOfDomain])]) -> Vec<Vec<String>> {
    let mut known: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let mut all = Vec::new();
    for (host, macs) in hosts {
        let mut warnings = Vec::new();
        for one in *macs {
            match known.get(one.mac.as_str()) {
                Some((other, domain)) if other != host => warnings.push(format!(
                    "domain `{}` has MAC address {}, as domain `{domain}` of host `{other}` has: \
                     on one network each would get frames of the other",
                    one.domain, one.mac
                )),
                Some(_) => {}
                None => drop(known.insert(&one.mac, (host, &one.domain))),
            }
        }
        all.push(warnings);
    }
    all
}

/// Counts the guests of the default shape that still fit on a host; `gpus`: of these sizes, or of
/// every size that its board offers.
pub fn host_capacity(topology: &Topology, held: &Occupancy, gpus: &[u32]) -> HostCapacity {
    let Capacity { sizes, largest, never_placed, warnings, .. } =
        capacity(topology, held, &Request::for_gpus(1), gpus);
    let all: Vec<_> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let states = device_states(topology, held, &all);
    let free: BTreeSet<_> = all
        .iter()
        .zip(states)
        .filter(|(_, (state, _))| *state == DeviceState::Free)
        .map(|(bdf, _)| *bdf)
        .collect();
    let partitions = topology.partitions();
    let is_free = |gpus: &[Bdf]| !gpus.is_empty() && gpus.iter().all(|gpu| free.contains(gpu));
    let free_partitions = partitions.iter().filter(|one| is_free(&one.gpus)).count();
    let names: BTreeSet<&str> = held.domains.iter().map(|one| one.domain.as_str()).collect();
    let running: BTreeSet<&str> =
        held.domains.iter().filter(|one| one.active).map(|one| one.domain.as_str()).collect();
    HostCapacity {
        gpus: number(all.len()),
        free_gpus: number(free.len()),
        largest: largest.filter(|&gpus| gpus > 0),
        partitions: number(partitions.len()),
        free_partitions: number(free_partitions),
        guests: number(names.len()),
        running: number(running.len()),
        sizes,
        findings: never_placed.into_iter().chain(warnings).collect(),
        macs: macs(held),
    }
}

/// A place for a guest on one of several hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The place.
    pub placement: Placement,
    /// The loss of later guests: for each size the guests that fit no longer, times their GPUs.
    pub lost: u64,
}

/// Finds a place on a host, and its cost to later guests of the host.
pub fn offer(topology: &Topology, held: &Occupancy, request: &Request) -> Result<Offer, PlanError> {
    let placement = plan(topology, held, request)?;
    let lost = lost(topology, held, &placement);
    Ok(Offer { placement, lost })
}

/// The loss of a host's later guests by a place on it.
pub fn lost(topology: &Topology, held: &Occupancy, placement: &Placement) -> u64 {
    let count = |held: &Occupancy| capacity(topology, held, &Request::for_gpus(1), &[]).sizes;
    let before = count(held);
    let mut with = held.clone();
    with.domains.push(placement.held("a new guest"));
    let after = count(&with);
    let lost = before.iter().zip(&after).map(|(before, after)| {
        u64::from(before.now.saturating_sub(after.now)) * u64::from(before.gpus)
    });
    lost.sum()
}

/// How well a place suits its guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// The fewest NVLinks between two of its GPUs; `None` if it has fewer than two.
    pub nvlinks: Option<u32>,
    /// Whether all its functions have an IOMMU group; a record of a host with its IOMMU off, or of
    /// a virtual machine, has none.
    pub has_groups: bool,
    /// How near the NIC is that is nearest to the GPU farthest from all, of its own NICs or, if it
    /// has none, those of the host; `None` if no GPU, or no NIC.
    pub nic: Option<Proximity>,
}

/// How well a place suits its guest.
pub fn fit(topology: &Topology, placement: &Placement) -> Fit {
    let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let gpus: Vec<Bdf> = gpus.into_iter().filter(|bdf| placement.devices.contains(bdf)).collect();
    let pairs =
        gpus.iter().enumerate().flat_map(|(at, one)| gpus[..at].iter().map(move |b| (*one, *b)));
    let links = |(a, b)| match topology.proximity(a, b) {
        Proximity::NvLink(links) => links,
        _ => 0,
    };
    let all: Vec<Bdf> = topology.of_kind(DeviceKind::Nic).map(|nic| nic.bdf).collect();
    let own = all.iter().copied().filter(|nic| placement.devices.contains(nic));
    let own: Vec<Bdf> = own.collect();
    let nics = if own.is_empty() { all } else { own };
    let nearest = |gpu: &Bdf| nics.iter().map(|nic| topology.proximity(*gpu, *nic)).min();
    let has_group = |bdf: &Bdf| topology.iommu_group(*bdf).is_some();
    Fit {
        nvlinks: pairs.map(links).min(),
        has_groups: placement.devices.iter().all(has_group),
        nic: gpus.iter().filter_map(nearest).max(),
    }
}

/// A number of things on a host.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::file::from_json;

    #[test]
    fn a_place_is_judged_by_its_links_and_its_nics() {
        let dgx2 = include_str!("../../topologies/dgx-2.json");
        let dgx1 = include_str!("../../topologies/dgx-1.json");
        let guest = include_str!("../../topologies/h100-guest.json");
        for (text, gpus, links, nic) in [
            (dgx1, 8, Some(0), Some(Proximity::Pix)),
            (include_str!("../../topologies/dgx-h100.json"), 8, Some(18), Some(Proximity::Pxb)),
            (guest, 1, None, Some(Proximity::Phb)),
            (dgx2, 1, None, Some(Proximity::Pix)),
            (dgx2, 0, None, None),
        ] {
            let host = from_json(text).unwrap();
            let request = Request { vcpus: Some(4), ..Request::for_gpus(gpus) };
            let placement = plan(&host, &Occupancy::default(), &request).unwrap();
            let has_groups = text != guest;
            assert_eq!(fit(&host, &placement), Fit { nvlinks: links, has_groups, nic });
        }
    }

    #[test]
    fn equal_mac_addresses_of_two_hosts_are_warned_of_once() {
        let of = |mac: &str, domain: &str| MacOfDomain { mac: mac.into(), domain: domain.into() };
        let (a, b) = ([of("m1", "job"), of("m2", "x")], [of("m1", "job"), of("m3", "y")]);
        let warned = shared_macs(&[("a", &a), ("b", &b), ("c", &[])]);
        assert_eq!(warned.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 0]);
        let says = "domain `job` has MAC address m1, as domain `job` of host `a` has";
        assert!(warned[1][0].starts_with(says), "{warned:?}");
        // Two of one host are for `network doctor`.
        assert_eq!(shared_macs(&[("a", &[of("m1", "x"), of("m1", "y")])]), [Vec::<String>::new()]);
    }

    /// The recorded DGX-2.
    fn dgx2() -> Topology {
        from_json(include_str!("../../topologies/dgx-2.json")).unwrap()
    }

    /// It with guests of these sizes, one after the other.
    fn with(topology: &Topology, guests: &[u32]) -> Occupancy {
        let mut held = Occupancy::default();
        for (gpus, at) in guests.iter().zip(0..) {
            let placed = plan(topology, &held, &Request::for_gpus(*gpus)).unwrap();
            held.domains.push(placed.held(&format!("guest-{at}")));
        }
        held
    }

    #[test]
    fn a_host_counts_its_total_and_free_resources() {
        let topology = dgx2();
        let empty = host_capacity(&topology, &Occupancy::default(), &[]);
        assert_eq!((empty.gpus, empty.free_gpus, empty.guests), (16, 16, 0));
        assert_eq!(empty.largest, Some(16));
        assert_eq!(empty.partitions, empty.free_partitions);
        let half = host_capacity(&topology, &with(&topology, &[8]), &[]);
        assert_eq!((half.gpus, half.free_gpus, half.guests, half.running), (16, 8, 1, 0));
        assert_eq!(half.largest, Some(8));
        assert!(half.free_partitions < half.partitions);
        let asked: Vec<u32> = host_capacity(&topology, &Occupancy::default(), &[4, 8])
            .sizes
            .iter()
            .map(|size| size.gpus)
            .collect();
        assert_eq!(asked, [4, 8]);
    }

    #[test]
    fn a_host_that_is_broken_into_already_loses_less() {
        let topology = dgx2();
        let wanted = Request::for_gpus(4);
        let on = |guests: &[u32]| offer(&topology, &with(&topology, guests), &wanted).unwrap().lost;
        let (empty, half, fitting) = (on(&[]), on(&[8]), on(&[8, 4]));
        assert!(fitting < half && half < empty, "{fitting} {half} {empty}");
        assert!(offer(&topology, &with(&topology, &[8, 8]), &wanted).is_err());
    }
}
