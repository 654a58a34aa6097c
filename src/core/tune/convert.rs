//! Makes disks on SATA and IDE, and NICs of models that are emulated, ones of virtio: only on
//! request, and where the guest has the drivers.

use super::work::Work;
use super::{ItemName, TuneError};
use crate::domain::disks::disk_name;
use crate::domain::setting::{DiskTuning, NicTuning, Setting};
use crate::domain::{DomainXml, Element};
use crate::shell::word;
use std::collections::BTreeSet;

/// Buses of disks that are emulated register by register.
const BUSES: [&str; 2] = ["sata", "ide"];
/// Models of NICs of which the same is true.
const MODELS: [&str; 6] = ["e1000", "e1000e", "igb", "rtl8139", "pcnet", "ne2k_pci"];

pub(super) fn apply(work: &mut Work<'_>) -> Result<(), TuneError> {
    if !work.given.items.convert_devices {
        return Ok(());
    }
    let (disks, nics) = (disks(&work.xml), nics(&work.xml));
    if let Some((message, hint)) = lacks(&work.xml, !disks.is_empty(), !nics.is_empty()) {
        return Err(TuneError::item(ItemName::ConvertDevices, message, hint));
    }
    if !disks.is_empty() {
        work.set(ItemName::ConvertDevices, Setting::Disks { disks })?;
    }
    if !nics.is_empty() {
        work.set(ItemName::ConvertDevices, Setting::Nics { nics })?;
    }
    Ok(())
}

fn devices<'x>(xml: &'x DomainXml, name: &'x str) -> impl Iterator<Item = Element<'x>> {
    xml.root().child("devices").into_iter().flat_map(move |devices| devices.children(name))
}

fn of(device: Element<'_>, child: &str, name: &str) -> Option<String> {
    Some(device.child(child)?.attr(name)?.into_owned())
}

/// The disks that are not on virtio, with the names that they get; drives of CDs and floppies stay.
fn disks(xml: &DomainXml) -> Vec<DiskTuning> {
    let taken: BTreeSet<String> =
        devices(xml, "disk").filter_map(|disk| of(disk, "target", "dev")).collect();
    let mut free = (0..).map(disk_name).filter(|name| !taken.contains(name));
    let is_emulated = |disk: Element<'_>| {
        let is_disk = disk.attr("device").is_none_or(|device| device == "disk");
        is_disk && of(disk, "target", "bus").is_some_and(|bus| BUSES.contains(&bus.as_str()))
    };
    let all = devices(xml, "disk").enumerate().filter(|(_, disk)| is_emulated(*disk));
    let tuned = all.filter_map(|(nth, _)| {
        Some(DiskTuning { nth, on_virtio: Some(free.next()?), ..DiskTuning::default() })
    });
    tuned.collect()
}

fn nics(xml: &DomainXml) -> Vec<NicTuning> {
    let is_emulated = |nic: Element<'_>| {
        of(nic, "model", "type").is_some_and(|model| MODELS.contains(&model.as_str()))
    };
    let all = devices(xml, "interface").enumerate().filter(|(_, nic)| is_emulated(*nic));
    all.map(|(nth, _)| NicTuning { nth, on_virtio: true, ..NicTuning::default() }).collect()
}

/// Why the guest may lack the drivers, and the remedy; `None` if it has them. `disks`, `nics`:
/// whether some are added. Linux has them. Windows has those of a kind of which it has a device
/// already.
fn lacks(xml: &DomainXml, disks: bool, nics: bool) -> Option<(&'static str, String)> {
    if xml.is_macos() && (disks || nics) {
        let hint = "leave --convert-devices out";
        return Some(("macOS is set up for the devices that it has", hint.to_owned()));
    }
    if !is_windows(xml) {
        return None;
    }
    let has = |device: &str, child: &str, name: &str| {
        devices(xml, device)
            .any(|one| of(one, child, name).is_some_and(|v| v.starts_with("virtio")))
    };
    let name = word(&xml.name()).into_owned();
    let hint = format!(
        "install the drivers of virtio-win in it, add a small disk with `gpuvm disk add {name} \
         size=1G`, and start it once"
    );
    if disks && !has("disk", "target", "bus") {
        let message = "Windows boots from a disk on virtio only once it has the driver, and this \
                       guest has no such disk";
        return Some((message, hint));
    }
    if nics && !has("interface", "model", "type") && !has("disk", "target", "bus") {
        let message =
            "this guest runs Windows and has no device of virtio, so it may lack the drivers";
        return Some((message, hint));
    }
    None
}

/// Whether the guest is Windows: by its entry of libosinfo, or by settings that only Windows needs.
fn is_windows(xml: &DomainXml) -> bool {
    let metadata = xml.root().child("metadata").into_iter().flat_map(Element::elements);
    let mut systems = metadata.flat_map(Element::elements).filter_map(|os| os.attr("id"));
    let says = systems.next();
    match says {
        Some(id) if id.starts_with("http") => id.contains("microsoft.com"),
        _ => xml.root().find("features/hyperv").is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Items;
    use super::super::testing::made;
    use super::*;

    /// A guest with these devices, and this in front of them.
    fn guest(before: &str, devices: &str) -> DomainXml {
        let text = format!(
            "<domain type='kvm'><name>a</name><memory unit='GiB'>1</memory><vcpu>1</vcpu>\
             <os><type machine='q35'>hvm</type></os>{before}<devices>{devices}</devices></domain>"
        );
        DomainXml::parse(&text).unwrap()
    }

    fn items() -> Items {
        Items { convert_devices: true, ..Items::default() }
    }

    const OLD: &str = "<disk type='file' device='disk'><driver name='qemu' type='raw'/>\
        <source file='/a.img'/><target dev='sda' bus='sata' rotation_rate='1'/><boot order='1'/>\
        <address type='drive' controller='0' bus='0' target='0' unit='0'/></disk>\
        <disk type='file' device='cdrom'><target dev='sdb' bus='sata'/><readonly/></disk>\
        <disk type='file' device='disk'><source file='/b.img'/><target dev='vda' bus='virtio'/></disk>\
        <interface type='network'><source network='n'/><model type='e1000e'/>\
        <address type='pci' domain='0' bus='1' slot='0' function='0'/></interface>";

    #[test]
    fn old_models_become_those_of_virtio_and_keep_what_is_theirs() {
        let before = guest("", OLD);
        let tuned = made(&before, &items()).unwrap();
        let text = tuned.after.text();
        for kept in
            ["<boot order='1'/>", "dev='sdb' bus='sata'", "dev='vda' bus='virtio'", "bus='1'"]
        {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        let virtio = text.replace('"', "'");
        assert!(virtio.contains("<target dev='vdb' bus='virtio'/>"), "{text}");
        assert!(
            virtio.contains("<model type='virtio'/>") && !text.contains("type='drive'"),
            "{text}"
        );
        let [change] = &tuned.changes[..] else { panic!("{:?}", tuned.changes) };
        assert_eq!(change.was, "sda on sata, sdb on sata, vda on virtio, e1000e NIC");
        assert_eq!(change.now, "vdb on virtio, sdb on sata, vda on virtio, virtio NIC");
        assert!(made(&tuned.after, &items()).unwrap().changes.is_empty());
        // Never by default.
        assert!(!made(&before, &Items::all()).unwrap().after.text().contains("vdb"));
    }

    #[test]
    fn windows_needs_a_sign_of_the_drivers_and_macos_is_left_alone() {
        let windows = "<features><hyperv><relaxed state='on'/></hyperv></features>";
        let bare = OLD.replace("dev='vda' bus='virtio'", "dev='sdc' bus='sata'");
        let refused = made(&guest(windows, &bare), &items()).unwrap_err().to_string();
        assert!(refused.starts_with("--convert-devices: Windows boots from"), "{refused}");
        assert!(made(&guest(windows, OLD), &items()).is_ok());
        assert!(made(&guest("", &bare), &items()).is_ok());
        let mac =
            "<metadata><l:l xmlns:l='l'><l:os id='http://apple.com/macos/11'/></l:l></metadata>";
        assert!(made(&guest(mac, OLD), &items()).is_err());
        // Linux may have the features of Hyper-V's as well.
        let linux = "<metadata><l:l xmlns:l='l'><l:os id='http://debian.org/debian/12'/></l:l>\
                     </metadata><features><hyperv><relaxed state='on'/></hyperv></features>";
        assert!(made(&guest(linux, &bare), &items()).is_ok());
    }
}
