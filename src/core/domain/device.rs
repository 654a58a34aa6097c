//! Properties of a device in a document: its identity among its siblings, and where it belongs on
//! the guest's PCI buses. Reads only; knows no host.

use super::element::{Element, number};
use crate::bdf::Bdf;

/// The place of a device that has no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seat {
    /// Below a root port of its own: PCI Express devices, all of virtio.
    Port,
    /// On the root bus: devices of conventional PCI, and those that must be on it.
    Slot,
}

/// Returns the path of a disk's source.
pub(super) fn disk_path(disk: Element<'_>) -> Option<String> {
    let source = disk.child("source")?;
    ["file", "dev"].into_iter().find_map(|name| source.attr(name)).map(Into::into)
}

/// The path of a disk recorded in our metadata.
pub(super) fn remembered_path(disk: Element<'_>) -> Option<String> {
    disk.attr("path").map(Into::into)
}

/// The host address of a passed-through PCI function, as text, of a `<hostdev>` or an interface of
/// type hostdev; none for others.
pub(super) fn hostdev_bdf(hostdev: Element<'_>) -> Option<String> {
    let kind = if hostdev.name() == "interface" { "hostdev" } else { "pci" };
    if hostdev.attr("type")? != kind {
        return None;
    }
    let address = hostdev.find("source/address")?;
    let field = |name: &str| address.attr(name).map_or(Some(0), |text| number(&text));
    let narrow = |name: &str| u8::try_from(field(name)?).ok();
    let bdf = Bdf::new(field("domain")?, narrow("bus")?, narrow("slot")?, narrow("function")?);
    Some(bdf.ok()?.to_string())
}

/// Whether a hostdev was written by us, by its alias.
pub(super) fn is_our_hostdev(hostdev: Element<'_>) -> bool {
    let alias = hostdev.child("alias").and_then(|alias| alias.attr("name"));
    alias.is_some_and(|name| {
        ["ua-gpu", "ua-vgpu", "ua-nvswitch", "ua-pci", "ua-vf"].iter().any(|prefix| {
            name.strip_prefix(prefix).is_some_and(|rest| {
                !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit())
            })
        })
    })
}

/// Whether a disk is on virtio, by its bus, otherwise by its target name.
fn is_virtio_disk(disk: Element<'_>) -> bool {
    let Some(target) = disk.child("target") else { return false };
    match target.attr("bus") {
        Some(bus) => bus == "virtio",
        None => target.attr("dev").is_some_and(|dev| dev.starts_with("vd")),
    }
}

/// The name of a device's `<model>`, or of its `model` attribute.
fn model(device: Element<'_>) -> String {
    let child = device.child("model");
    let inner = child.and_then(|model| model.attr("type").or_else(|| model.attr("name")));
    inner.or_else(|| device.attr("model")).map(Into::into).unwrap_or_default()
}

/// Whether gpuvm gives such a device a place on PCI.
pub fn is_on_pci(device: Element<'_>) -> bool {
    seat(device).is_some()
}

/// Where a device sits on PCI; none if it is not a PCI device. Follows libvirt's
/// `qemu_domain_address.c` for x86 and Arm; video and sound are conventional PCI there, or take no
/// port.
pub(super) fn seat(device: Element<'_>) -> Option<Seat> {
    let kind = device.attr("type").unwrap_or_default();
    let model = model(device);
    let bus = device.attr("bus").unwrap_or_default();
    let is_virtio = model.starts_with("virtio");
    match device.name() {
        "disk" => is_virtio_disk(device).then_some(Seat::Port),
        "controller" => match kind.as_ref() {
            "virtio-serial" | "nvme" => Some(Seat::Port),
            "scsi" => Some(if is_virtio || model.is_empty() { Seat::Port } else { Seat::Slot }),
            "usb" => matches!(model.as_str(), "qemu-xhci" | "nec-xhci").then_some(Seat::Port),
            "sata" => device.attr("index").is_some_and(|index| index != "0").then_some(Seat::Slot),
            _ => None,
        },
        "interface" if model == "usb-net" => None,
        "interface" if is_virtio || kind == "hostdev" || kind == "vdpa" => Some(Seat::Port),
        "interface" if matches!(model.as_str(), "e1000e" | "igb" | "vmxnet3") => Some(Seat::Port),
        "interface" | "sound" => (model != "usb").then_some(Seat::Slot),
        "hostdev" => match kind.as_ref() {
            "pci" => Some(Seat::Port),
            "mdev" if model == "vfio-pci" => Some(Seat::Port),
            "scsi_host" => Some(Seat::Port),
            _ => None,
        },
        "input" => (bus == "virtio").then_some(Seat::Port),
        "video" => (!matches!(model.as_str(), "none" | "ramfb")).then_some(Seat::Slot),
        "memballoon" | "rng" | "vsock" | "crypto" | "memory" => is_virtio.then_some(Seat::Port),
        "filesystem" | "shmem" => Some(Seat::Port),
        "iommu" => is_virtio.then_some(Seat::Slot),
        "watchdog" => (model == "i6300esb").then_some(Seat::Slot),
        "serial" => {
            let target = device.child("target").and_then(|target| target.attr("type"));
            target.is_some_and(|kind| kind == "pci-serial").then_some(Seat::Slot)
        }
        "panic" => (model == "pvpanic").then_some(Seat::Slot),
        _ => None,
    }
}

/// Whether a channel or a console needs a virtio-serial controller.
pub(super) fn is_on_virtio_serial(device: Element<'_>) -> bool {
    let target = device.child("target").and_then(|target| target.attr("type"));
    matches!(device.name(), "channel" | "console") && target.is_some_and(|kind| kind == "virtio")
}

/// Whether a device is on USB.
pub(super) fn is_on_usb(device: Element<'_>) -> bool {
    let target = device.child("target").and_then(|target| target.attr("bus"));
    device.name() != "controller"
        && (device.attr("bus").is_some_and(|bus| bus == "usb")
            || target.is_some_and(|bus| bus == "usb")
            || device.attr("type").is_some_and(|kind| kind == "usb")
            || matches!(device.name(), "hub" | "redirdev"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::DomainXml;

    #[test]
    fn devices_sit_where_libvirt_puts_them() {
        for (device, wanted) in [
            ("<interface type='hostdev'/>", Some(Seat::Port)),
            ("<interface type='vdpa'/>", Some(Seat::Port)),
            ("<interface type='network'><model type='virtio'/></interface>", Some(Seat::Port)),
            ("<interface type='network'><model type='igb'/></interface>", Some(Seat::Port)),
            ("<interface type='network'><model type='rtl8139'/></interface>", Some(Seat::Slot)),
            ("<interface type='network'><model type='usb-net'/></interface>", None),
            ("<hostdev type='mdev' model='vfio-pci'/>", Some(Seat::Port)),
            ("<hostdev type='mdev' model='vfio-ap'/>", None),
            ("<hostdev type='scsi_host'/>", Some(Seat::Port)),
            ("<hostdev type='usb'/>", None),
            ("<controller type='sata' index='0'/>", None),
            ("<controller type='sata' index='1'/>", Some(Seat::Slot)),
        ] {
            let xml = DomainXml::parse(&format!("<domain><devices>{device}</devices></domain>"));
            let xml = xml.unwrap();
            let found = xml.root().child("devices").unwrap().elements().next().unwrap();
            assert_eq!(seat(found), wanted, "{device}");
        }
    }

    #[test]
    fn usb_devices_are_recognised_by_bus_target_and_type() {
        for (device, on_usb) in [
            ("<disk><target bus='usb'/></disk>", true),
            ("<disk><target bus='sata'/></disk>", false),
            ("<input bus='usb'/>", true),
            ("<input bus='ps2'/>", false),
            ("<hostdev type='usb'/>", true),
            ("<hub/>", true),
            ("<controller type='usb'/>", false),
        ] {
            let xml = DomainXml::parse(&format!("<domain><devices>{device}</devices></domain>"));
            let xml = xml.unwrap();
            let found = xml.root().child("devices").unwrap().elements().next().unwrap();
            assert_eq!(is_on_usb(found), on_usb, "{device}");
        }
    }
}
