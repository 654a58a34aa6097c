//! The NICs of a guest: the template's or one per network that is asked for, each with a stable MAC address and as many
//! queues as the guest has vCPUs.

use super::DomainXmlError;
use super::edit::NicSeat;
use super::element::Element;
use super::guest::mac;
use super::seats::{Seats, has_vhost};

/// Queues of a tap device at most (`MAX_TAP_QUEUES` of the kernel).
const MOST_QUEUES: u32 = 256;

/// Finds what each NIC shall be, and the places of those that shall not be there. `is_new` says that the document is of
/// another domain, whose MAC addresses must not be used twice.
pub(super) fn nics(
    seats: &mut Seats<'_>,
    is_new: bool,
) -> Result<(Vec<NicSeat>, Vec<usize>), DomainXmlError> {
    let found: Vec<Element<'_>> = seats.named("interface").collect();
    let name = seats.guest.name.as_str();
    let queues = seats.placement.vcpus().min(MOST_QUEUES);
    let vhost = has_vhost(seats.guest);
    let mut wanted = seats.guest.networks.iter();
    let (mut nics, mut dropped, mut networks) = (Vec::new(), Vec::new(), Vec::new());
    for (nth, nic) in found.iter().enumerate() {
        let is_network = nic.attr("type").is_some_and(|kind| kind == "network");
        let network = if is_network { wanted.next() } else { None };
        if is_network && network.is_none() && !seats.guest.networks.is_empty() {
            dropped.push(nth);
            continue;
        }
        let now = || nic.child("source")?.attr("network").map(Into::into);
        networks.extend(network.cloned().or_else(now));
        let needs_mac = is_new || nic.child("mac").is_none();
        nics.push(NicSeat {
            nth,
            network: network.cloned(),
            mac: needs_mac.then(|| mac(name, number(nics.len()))),
            queues: (network.is_some() || takes_queues(*nic)).then_some(queues),
            vhost,
            address: None,
        });
    }
    let mut new: Vec<String> = wanted.cloned().collect();
    for network in &seats.guest.added_networks {
        if !networks.contains(network) && !new.contains(network) {
            new.push(network.clone());
        }
    }
    for (place, network) in (found.len()..).zip(new) {
        nics.push(NicSeat {
            nth: place,
            network: Some(network),
            mac: Some(mac(name, number(nics.len()))),
            queues: Some(queues),
            vhost,
            address: seats.port()?,
        });
    }
    Ok((nics, dropped))
}

/// A count as a NIC number.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Whether queues can be set on a NIC of the document: virtio, and of a kind that libvirt takes queues for.
fn takes_queues(nic: Element<'_>) -> bool {
    let model = nic.child("model").and_then(|model| model.attr("type"));
    let kind = nic.attr("type").unwrap_or_default();
    model.is_some_and(|model| model.starts_with("virtio"))
        && matches!(kind.as_ref(), "network" | "bridge" | "direct" | "ethernet" | "vhostuser")
}
