//! The NICs of a guest: the template's or one per requested network, each with a stable MAC address
//! and a queue for each vCPU, up to [`USUAL_QUEUES`].

use super::addresses::{Seats, has_vhost};
use super::device::hostdev_bdf;
use super::element::Element;
use super::guest::{Guest, mac};
use super::nic_request::{NicWish, USUAL_QUEUES};
use super::pci::{Buses, Controller, PciAddress, pci_address};
use super::placed::{NicSeat, VfNic};
use super::{DomainXml, DomainXmlError};
use crate::bdf::Bdf;
use crate::topology::{PciDevice, Sriov, Topology};
use std::collections::BTreeSet;

/// Number of a guest's first virtual function in the hash of MAC addresses, far above other NICs,
/// so that its MAC does not change when a NIC is added or removed.
const FIRST_VF: u32 = 1 << 16;
/// The increment of a NIC's number if another domain has its address, far above virtual functions.
const ROUND: u32 = 1 << 20;
/// Class and subclass of Ethernet controllers.
const CLASS_ETHERNET: u32 = 0x0200;

/// Finds the wanted state of each NIC, and the places of those to be removed. `is_new` means that
/// the document belongs to another domain, whose MAC addresses must not be used again.
pub(super) fn nics(
    seats: &mut Seats<'_>,
    guest: &Guest,
    is_new: bool,
) -> Result<(Vec<NicSeat>, Vec<usize>), DomainXmlError> {
    let found: Vec<Element<'_>> = seats.named("interface").collect();
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
        let own = || needs_mac.then(|| own_mac(guest, number(nics.len())));
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
        let own = || own_mac(guest, number(nics.len()));
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

/// Gives new NICs their ports, after those of the document's own NICs, so that the guest numbers
/// all of them in the order requested.
pub(super) fn seat_new(seats: &mut Seats<'_>, nics: &mut [NicSeat]) -> Result<(), DomainXmlError> {
    let found = seats.named("interface").count();
    for nic in nics.iter_mut().filter(|nic| nic.nth >= found) {
        nic.address = seats.port()?;
    }
    Ok(())
}

/// Addresses for NICs that a guest gets, and the root ports that are made for them.
pub(crate) struct NicPorts {
    /// In the order of the NICs; `None` if libvirt chooses.
    pub addresses: Vec<Option<PciAddress>>,
    /// The ports.
    pub made: Vec<Controller>,
}

impl DomainXml {
    /// Root ports on the root bus that support hotplug and are free, or would be without these
    /// devices.
    pub fn ports_without(&self, gone: &[Element<'_>]) -> Result<BTreeSet<u8>, DomainXmlError> {
        if !self.is_pcie() {
            return Ok(BTreeSet::new());
        }
        let buses = self.buses_without(gone)?;
        Ok(self.free_ports(&buses).collect())
    }

    /// Root ports that support hotplug and are free, or would be without these devices: those on
    /// the root bus and below expander buses.
    pub fn all_ports_without(&self, gone: &[Element<'_>]) -> Result<BTreeSet<u8>, DomainXmlError> {
        if !self.is_pcie() {
            return Ok(BTreeSet::new());
        }
        let buses = self.buses_without(gone)?;
        let below = buses.bridges.keys().filter(|index| buses.expander_above(**index).is_some());
        let below = below.copied().filter(|index| buses.is_free_port(*index));
        let below = below.filter(|index| !self.is_fixed_port(*index));
        Ok(below.chain(self.free_ports(&buses)).collect())
    }

    /// Its PCI buses without these devices.
    fn buses_without(&self, gone: &[Element<'_>]) -> Result<Buses, DomainXmlError> {
        let devices = self.root().child("devices");
        let mut buses = devices.map(Buses::read).transpose()?.unwrap_or_default();
        gone.iter().filter_map(|nic| pci_address(*nic)).for_each(|at| buses.release(at));
        Ok(buses)
    }

    /// Finds addresses for `count` NICs once those at the places `gone` are removed: free root
    /// ports of the root bus, then new ones. `only`: the allowed ports; none is made then.
    pub(crate) fn nic_ports(
        &self,
        count: usize,
        gone: &[usize],
        only: Option<&BTreeSet<u8>>,
    ) -> Result<Option<NicPorts>, DomainXmlError> {
        if !self.is_pcie() {
            let addresses = vec![None; count];
            return Ok(only.is_none().then_some(NicPorts { addresses, made: Vec::new() }));
        }
        let devices = self.root().child("devices").into_iter();
        let nics = devices.flat_map(|devices| devices.children("interface")).enumerate();
        let gone: Vec<Element<'_>> =
            nics.filter_map(|(nth, nic)| gone.contains(&nth).then_some(nic)).collect();
        let mut buses = self.buses_without(&gone)?;
        let is_one = |port: &u8| only.is_none_or(|only| only.contains(port));
        let mut free: Vec<u8> = self.free_ports(&buses).filter(is_one).collect();
        free.truncate(count);
        let mut made = Vec::new();
        while free.len() < count {
            if only.is_some() {
                return Ok(None);
            }
            let port = buses.add_last_port()?;
            free.push(port.index);
            made.push(port);
        }
        let addresses = free.into_iter().map(|port| Some(PciAddress::behind(port))).collect();
        Ok(Some(NicPorts { addresses, made }))
    }
}

/// Returns the default queues of a NIC in a guest with this many vCPUs.
pub fn usual_queues(vcpus: u32) -> u32 {
    vcpus.min(USUAL_QUEUES)
}

/// The network or bridge that a domain's interface is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// Its MAC address, lower case.
    pub mac: String,
    /// The libvirt network.
    pub network: Option<String>,
    /// The host's bridge; for a running domain also that of its network.
    pub bridge: Option<String>,
}

/// Finds the NIC of each wish among those on networks, by its MAC address, otherwise the first
/// other one on its network; `None` if no NIC is left for it.
pub fn matched(there: &[Hook], wishes: &[&NicWish]) -> Vec<Option<usize>> {
    let mut found: Vec<Option<usize>> = wishes
        .iter()
        .map(|wish| {
            let mac = wish.settings.mac.as_ref()?;
            there.iter().position(|hook| hook.network.is_some() && hook.mac == *mac)
        })
        .collect();
    for (at, wish) in wishes.iter().enumerate() {
        if found[at].is_none() {
            let is_it = |(nth, hook): &(usize, &Hook)| {
                hook.network.as_ref() == Some(&wish.network) && !found.contains(&Some(*nth))
            };
            found[at] = there.iter().enumerate().find(is_it).map(|(nth, _)| nth);
        }
    }
    found
}

/// Returns the connections of a domain's interfaces, in order.
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

/// A device of the host that leads to a NIC of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NicDevice {
    /// A network device: its bridge, or the lower device of its macvtap.
    Named(String),
    /// The PCI address of the virtual function that it is.
    Function(String),
}

/// Returns the host's devices that lead to the NICs with a MAC address. Of a running domain the
/// document also has the bridges of its networks.
pub fn nic_devices(xml: &DomainXml, mac: &str) -> Vec<NicDevice> {
    let devices = xml.root().children("devices");
    let nics = devices.flat_map(|devices| devices.children("interface"));
    let is_it = |nic: &Element<'_>| {
        let own = nic.child("mac").and_then(|own| own.attr("address"));
        own.is_some_and(|own| own.eq_ignore_ascii_case(mac))
    };
    let of = |nic: Element<'_>| {
        let source = nic.child("source");
        let attr = |name| source.and_then(|source| source.attr(name));
        let named = [attr("bridge"), attr("dev")].into_iter().flatten();
        let named: Vec<_> = named.map(|name| NicDevice::Named(name.into_owned())).collect();
        named.into_iter().chain(hostdev_bdf(nic).map(NicDevice::Function))
    };
    nics.filter(is_it).flat_map(of).collect()
}

/// Returns the physical function through which a virtual function can be configured: an Ethernet
/// card with a network device. libvirt sets MAC addresses through no other.
pub fn pf_of_nic(topology: &Topology, bdf: Bdf) -> Option<&PciDevice> {
    let Some(Sriov::Vf { pf }) = topology.device(bdf)?.sriov else { return None };
    let pf = topology.device(pf)?;
    let has_netdev = pf.net.as_ref().is_some_and(|net| !net.netdevs.is_empty());
    (pf.class >> 8 == CLASS_ETHERNET && has_netdev).then_some(pf)
}

/// Returns a MAC address for virtual function number `nth` of a guest of this key ([`mac`]) beside
/// others that have these addresses.
pub fn free_vf_mac(key: &str, nth: u32, taken: &[String]) -> String {
    free_mac(key, FIRST_VF + nth, taken)
}

/// Returns a guest's virtual function number `nth` as a NIC.
pub(super) fn vf_nic(guest: &Guest, bdf: Bdf, nth: u32) -> VfNic {
    let settings = guest.record.request.extras.settings_of(bdf);
    let own = || own_mac(guest, FIRST_VF + nth);
    VfNic { mac: settings.mac.unwrap_or_else(own), vlan: settings.vlan }
}

/// The MAC address of a guest's NIC number `nic`: that of its key, unless another domain has it.
fn own_mac(guest: &Guest, nic: u32) -> String {
    free_mac(guest.mac_key(), nic, &guest.taken_macs)
}

/// The same for a guest of this key beside others that have these addresses.
pub(super) fn free_mac(key: &str, nic: u32, taken: &[String]) -> String {
    let numbers = (0..=u32::MAX / ROUND).map(|round| nic.saturating_add(round * ROUND));
    let mut macs = numbers.map(|number| mac(key, number));
    macs.find(|mac| !taken.contains(mac)).unwrap_or_default()
}

/// Converts a count to a NIC number.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Whether queues can be set on a NIC of the document: virtio, and of a type for which libvirt
/// accepts queues.
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
