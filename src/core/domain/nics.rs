//! The NICs of a guest: the template's or one per network that is asked for, each with a stable MAC address and a
//! queue for each vCPU, up to [`USUAL_QUEUES`].

use super::element::Element;
use super::guest::{Guest, mac};
use super::placed::{NicSeat, VfNic};
use super::seats::{Seats, has_vhost};
use super::wish::{NicWish, USUAL_QUEUES};
use super::{DomainXml, DomainXmlError};
use crate::bdf::Bdf;
use crate::topology::{PciDevice, Sriov, Topology};

/// Number of the first virtual function among a guest's NICs, as far as MAC addresses go: they do not change when a NIC
/// comes or goes.
const FIRST_VF: u32 = 1 << 16;
/// Class and subclass of Ethernet controllers.
const CLASS_ETHERNET: u32 = 0x0200;

/// Finds what each NIC shall be, and the places of those that shall not be there. `is_new` says that the document is of
/// another domain, whose MAC addresses must not be used twice.
pub(super) fn nics(
    seats: &mut Seats<'_>,
    guest: &Guest,
    is_new: bool,
) -> Result<(Vec<NicSeat>, Vec<usize>), DomainXmlError> {
    let found: Vec<Element<'_>> = seats.named("interface").collect();
    let name = guest.name.as_str();
    let queues = usual_queues(seats.placement.vcpus());
    let vhost = has_vhost(guest);
    let pools = &guest.vf_pools;
    let is_pool = |wish: &NicWish| pools.contains(&wish.network);
    let mut wanted = guest.networks.iter();
    let (mut nics, mut dropped, mut networks) = (Vec::new(), Vec::new(), Vec::new());
    for (nth, nic) in found.iter().enumerate().filter(|(_, nic)| !seats.is_planned(**nic)) {
        let is_network = nic.attr("type").is_some_and(|kind| kind == "network");
        let wish = if is_network { wanted.next() } else { None };
        if is_network && wish.is_none() && !guest.networks.is_empty() {
            dropped.push(nth);
            continue;
        }
        let now = || nic.child("source")?.attr("network").map(Into::into);
        let is_vf = wish.is_some_and(is_pool);
        let settings = wish.map(|wish| wish.settings.clone()).unwrap_or_default();
        let network = wish.map(|wish| wish.network.clone());
        networks.extend(network.clone().or_else(now));
        let needs_mac = is_new || nic.child("mac").is_none();
        let own = || needs_mac.then(|| mac(name, number(nics.len())));
        let emulated = is_vf || settings.is_emulated();
        let takes = !emulated && (wish.is_some() || takes_queues(*nic));
        nics.push(NicSeat {
            nth,
            network,
            mac: settings.mac.clone().or_else(own),
            queues: takes.then_some(settings.queues.unwrap_or(queues)),
            vhost,
            is_vf,
            settings,
            address: None,
        });
    }
    let mut new: Vec<NicWish> = wanted.cloned().collect();
    for network in &guest.added_networks {
        if !networks.contains(network) && !new.iter().any(|wish| wish.network == *network) {
            new.push(NicWish::on(network));
        }
    }
    for (place, wish) in (found.len()..).zip(new) {
        let is_vf = is_pool(&wish);
        let NicWish { network, settings } = wish;
        let own = || mac(name, number(nics.len()));
        let takes = !is_vf && !settings.is_emulated();
        nics.push(NicSeat {
            nth: place,
            network: Some(network),
            mac: Some(settings.mac.clone().unwrap_or_else(own)),
            queues: takes.then_some(settings.queues.unwrap_or(queues)),
            vhost,
            is_vf,
            settings,
            address: None,
        });
    }
    Ok((nics, dropped))
}

/// Gives the NICs that are new to the document, their ports: after those of the document's own, so
/// that the guest numbers all of them in the order that they were asked for in.
pub(super) fn seat_new(seats: &mut Seats<'_>, nics: &mut [NicSeat]) -> Result<(), DomainXmlError> {
    let found = seats.named("interface").count();
    for nic in nics.iter_mut().filter(|nic| nic.nth >= found) {
        nic.address = seats.port()?;
    }
    Ok(())
}

/// Queues of a NIC of a guest with so many vCPUs, where nobody asks for another number.
pub fn usual_queues(vcpus: u32) -> u32 {
    vcpus.min(USUAL_QUEUES)
}

/// What an interface of a domain hangs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// Its MAC address, lower case.
    pub mac: String,
    /// libvirt's network.
    pub network: Option<String>,
    /// The host's bridge; of a running domain also that of its network.
    pub bridge: Option<String>,
}

/// What the interfaces of a domain hang on, in their order.
pub fn hooks(xml: &DomainXml) -> Vec<Hook> {
    let devices = xml.root().children("devices");
    let nics = devices.flat_map(|devices| devices.children("interface"));
    let attr = |nic: Element<'_>, child: &str, name: &str| {
        Some(nic.child(child)?.attr(name)?.into_owned())
    };
    nics.map(|nic| Hook {
        mac: attr(nic, "mac", "address").unwrap_or_default().to_ascii_lowercase(),
        network: attr(nic, "source", "network"),
        bridge: attr(nic, "source", "bridge"),
    })
    .collect()
}

/// The card of a virtual function that can be set up over it: an Ethernet card with a network device. libvirt sets MAC
/// addresses over no other.
pub fn pf_of_nic(topology: &Topology, bdf: Bdf) -> Option<&PciDevice> {
    let Some(Sriov::Vf { pf }) = topology.device(bdf)?.sriov else { return None };
    let pf = topology.device(pf)?;
    let has_netdev = pf.net.as_ref().is_some_and(|net| !net.netdevs.is_empty());
    (pf.class >> 8 == CLASS_ETHERNET && has_netdev).then_some(pf)
}

/// What a guest's virtual function number `nth` is as a NIC.
pub(super) fn vf_nic(guest: &Guest, bdf: Bdf, nth: u32) -> VfNic {
    let settings = guest.record.request.extras.settings_of(bdf);
    let own = || mac(guest.name.as_str(), FIRST_VF + nth);
    VfNic { mac: settings.mac.unwrap_or_else(own), vlan: settings.vlan }
}

/// A count as a NIC number.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Whether queues can be set on a NIC of the document: virtio, and of a kind that libvirt takes queues for.
pub fn takes_queues(nic: Element<'_>) -> bool {
    let model = nic.child("model").and_then(|model| model.attr("type"));
    let kind = nic.attr("type").unwrap_or_default();
    model.is_some_and(|model| model.starts_with("virtio"))
        && matches!(kind.as_ref(), "network" | "bridge" | "direct" | "ethernet" | "vhostuser")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_ethernet_card_with_a_device_is_set_up_over() {
        use crate::placement::tests::testhost::{HostSpec, device};
        let face = serde_json::json!({"netdevs": ["eth0"]});
        for (class, has_netdev, is_found) in
            [(0x02_0000, true, true), (0x02_0700, true, false), (0x02_0000, false, false)]
        {
            let mut parts = HostSpec::even(1, 8, 64, 0).parts();
            let mut pf = device(0x50, class, 0x1017, None);
            pf.net = has_netdev.then(|| serde_json::from_value(face.clone()).unwrap());
            let mut vf = device(0x51, class, 0x1018, None);
            vf.sriov = Some(Sriov::Vf { pf: pf.bdf });
            parts.devices.extend([pf.clone(), vf.clone()]);
            let host = Topology::new(parts).unwrap();
            let found = pf_of_nic(&host, vf.bdf).map(|pf| pf.bdf);
            assert_eq!(found, is_found.then_some(pf.bdf), "{class:x} {has_netdev}");
            assert_eq!(pf_of_nic(&host, pf.bdf).map(|pf| pf.bdf), None);
        }
    }
}
