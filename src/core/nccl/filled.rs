//! Checks that libvirt has completed a definition so that it can start: every PCI device has an
//! address of its own.

use super::{About, NcclError, Note};
use crate::check::guest::Guest;
use crate::domain::read::GuestAddress;
use crate::domain::{DomainXml, Element, is_on_pci};
use crate::words;
use std::collections::{BTreeMap, BTreeSet};

fn devices(domain: &DomainXml) -> impl Iterator<Item = Element<'_>> {
    domain.root().child("devices").into_iter().flat_map(Element::elements)
}

/// Returns an attribute as an owned string.
fn attr(element: Option<Element<'_>>, name: &str) -> Option<String> {
    element.and_then(|element| element.attr(name)).map(|value| value.into_owned())
}

/// Refuses PCI controllers without an index or with another's, places in other segments than 0, and
/// devices in one place.
pub fn refuse_unfilled(domain: &DomainXml, guest: &Guest<'_>) -> Result<(), NcclError> {
    let of_pci = |device: &Element<'_>| {
        device.name() == "controller" && device.attr("type").as_deref() == Some("pci")
    };
    for controller in devices(domain).filter(of_pci) {
        if controller.attr("index").is_none() {
            return Err(NcclError::NoAddress { what: controller.path() });
        }
    }
    let read = devices(domain)
        .filter(of_pci)
        .filter_map(|controller| crate::domain::read::number(&controller.attr("index")?).ok());
    let mut indices = BTreeSet::new();
    if let Some(index) = read.into_iter().find(|index| !indices.insert(*index)) {
        return Err(NcclError::SameIndex { index });
    }
    let mut taken: BTreeMap<GuestAddress, String> = BTreeMap::new();
    for address in &guest.addresses {
        let (at, path) = (address.value, address.spot.path());
        if at.segment != 0 {
            return Err(NcclError::OtherSegment { path, segment: at.segment });
        }
        if let Some(first) = taken.insert(at, path.clone()) {
            return Err(NcclError::SameAddress { first, second: path });
        }
    }
    Ok(())
}

/// Notes NICs that are left out because their network decides their kind only when the guest
/// starts.
pub fn note_networks(domain: &DomainXml, notes: &mut Vec<Note>) {
    let is_open = |device: &Element<'_>| {
        let source = device.child("source");
        // For a running guest libvirt has recorded the device that the network assigned.
        let is_given = ["bridge", "portid"].iter().any(|name| attr(source, name).is_some());
        device.name() == "interface"
            && device.attr("type").as_deref() == Some("network")
            && !is_given
    };
    let names: BTreeSet<String> = devices(domain)
        .filter(is_open)
        .filter_map(|device| attr(device.child("source"), "network"))
        .collect();
    if names.is_empty() {
        return;
    }
    let networks = words::nouns(names.len(), "network");
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    let says = format!(
        "left out: NICs of {networks} {names}; whether one hands out a function of the host is not \
         known before the start"
    );
    notes.push(Note { about: About::Networks, says, compromise: false });
}

/// Returns a device whose address libvirt has yet to choose.
pub fn unplaced(domain: &DomainXml) -> Option<String> {
    let is_open = |device: &Element<'_>| match device.child("address") {
        None => is_pci(*device),
        Some(address) => {
            address.attr("type").as_deref() == Some("pci") && address.attr("bus").is_none()
        }
    };
    devices(domain).find(is_open).map(|device| device.path())
}

/// Whether libvirt gives such a device an address on PCI: as where gpuvm seats one, and where
/// libvirt alone does.
fn is_pci(device: Element<'_>) -> bool {
    let (kind, model) = (attr(Some(device), "type"), attr(Some(device), "model"));
    let (kind, model) = (kind.as_deref(), model.as_deref());
    let by_libvirt = match device.name() {
        "memballoon" => model.is_none(),
        "controller" => kind == Some("usb") && model != Some("none"),
        "hostdev" => kind == Some("mdev") && model.is_none(),
        // Without a model libvirt chooses, and chooses one on PCI for some machine types.
        "watchdog" => model.is_none(),
        "input" => attr(Some(device), "bus").is_none() && kind == Some("passthrough"),
        _ => false,
    };
    by_libvirt || is_on_pci(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(devices: &str) -> DomainXml {
        DomainXml::parse(&format!("<domain><devices>{devices}</devices></domain>")).unwrap()
    }

    #[test]
    fn pci_devices_without_an_address_are_found() {
        for device in [
            "<hostdev type='pci'/>",
            "<hostdev type='mdev' model='vfio-pci'/>",
            "<watchdog model='i6300esb'/>",
            "<input type='tablet' bus='virtio'/>",
            "<iommu model='virtio'/>",
            "<memory model='virtio-mem'/>",
            "<memory model='virtio-pmem'/>",
            "<crypto model='virtio'/>",
            "<disk><target dev='vda'/></disk>",
            "<sound><address type='pci'/></sound>",
        ] {
            assert!(unplaced(&domain(device)).is_some(), "{device}");
        }
        for device in [
            "<hostdev type='usb'/>",
            "<hostdev type='pci'><address type='unassigned'/></hostdev>",
            "<watchdog model='itco'/>",
            "<input type='tablet' bus='usb'/>",
            "<iommu model='intel'/>",
            "<memory model='dimm'/>",
            "<disk><target dev='sda' bus='sata'/></disk>",
            "<sound><address type='pci' bus='0x01'/></sound>",
        ] {
            assert_eq!(unplaced(&domain(device)), None, "{device}");
        }
    }

    #[test]
    fn a_network_that_may_hand_out_a_nic_is_noted() {
        let said = |devices: &str| {
            let mut notes = Vec::new();
            note_networks(&domain(devices), &mut notes);
            notes.into_iter().map(|note| note.says).collect::<Vec<_>>()
        };
        let open = "<interface type='network'><source network='vfs'/></interface>";
        let notes = said(open);
        assert!(notes.len() == 1 && notes[0].contains("NICs of network vfs;"), "{notes:?}");
        assert_eq!(said(&open.replace("/></", " bridge='virbr0'/></")), [""; 0]);
        assert_eq!(said(&open.replace("'network'", "'bridge'")), [""; 0]);
    }

    #[test]
    fn controllers_and_places_are_one_each() {
        let refused = |devices: &str| {
            let domain = domain(devices);
            refuse_unfilled(&domain, &Guest::read(&domain))
        };
        let what = "domain/devices/controller".to_owned();
        assert_eq!(refused("<controller type='pci'/>"), Err(NcclError::NoAddress { what }));
        let twice = "<controller type='pci' index='3'/>".repeat(2);
        assert_eq!(refused(&twice), Err(NcclError::SameIndex { index: 3 }));
        assert_eq!(refused("<controller type='usb'/><controller type='usb'/>"), Ok(()));
        let device = "<rng><address type='pci' bus='1'/></rng>";
        let path = |place: &str| format!("/domain/devices/{place}/address");
        let (first, second) = (path("rng[1]"), path("rng[2]"));
        assert_eq!(refused(&device.repeat(2)), Err(NcclError::SameAddress { first, second }));
        let other = device.replace(" bus", " domain='0x10000' bus");
        let segment = 0x10000;
        assert_eq!(refused(&other), Err(NcclError::OtherSegment { path: path("rng"), segment }));
    }
}
