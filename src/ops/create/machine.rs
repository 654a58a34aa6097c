//! Requirements of a guest on its machine that libvirt checks only when defining or starting it,
//! after its disks were copied: KVM, vhost-net, networks that are up.

use super::{CreateError, CreateRequest};
use crate::discover::facts;
use crate::doctor::absent;
use crate::domain::guest::VirtType;
use crate::domain::{DomainXml, Element};
use crate::error::{Coded as _, Error};
use crate::fsroot::FsRoot;
use crate::guest::template_of;
use crate::hypervisor::Hypervisor;
use crate::topology::{Facts, Topology};
use crate::world::World;
use gpuvm_core::doctor::{
    Case, Connection, NO_FIRMWARE, NO_KVM, NO_QEMU, NO_VHOST, NO_VHOST_HINT, missing,
};
use gpuvm_core::versions::Versions;
use std::collections::BTreeSet;

/// The parts that a machine lacks and the guest needs: KVM, QEMU, firmware. `hypervisor`: `None` if
/// no libvirt answers; `root`: the machine's files, if they are here.
pub(super) fn lacks(
    world: &World,
    wanted: &CreateRequest,
    topology: &Topology,
    hypervisor: Option<&dyn Hypervisor>,
    root: Option<&FsRoot>,
) -> Vec<Error> {
    let connection = match hypervisor {
        Some(hypervisor) => Connection::Answers(hypervisor.guest_support()),
        None => absent(world),
    };
    let needs_efi = template_of(&wanted.guest, topology).is_ok_and(|xml| needs_efi(&xml));
    let facts = root.map(facts::read_needs).unwrap_or_default();
    reasons(wanted.guest.virt, needs_efi, topology, facts, &connection)
}

/// Whether the firmware of a definition is UEFI that libvirt chooses.
fn needs_efi(xml: &DomainXml) -> bool {
    let firmware = xml.root().child("os").and_then(|os| os.attr("firmware"));
    firmware.is_some_and(|firmware| firmware == "efi")
}

/// The same by the known facts about the machine.
fn reasons(
    virt: VirtType,
    needs_efi: bool,
    topology: &Topology,
    mut facts: Facts,
    connection: &Connection,
) -> Vec<Error> {
    // libvirt's test driver runs guests without QEMU.
    if *connection == Connection::Answers(None) {
        facts.software = None;
    }
    // A libvirt with a QEMU chooses the firmware itself, by the machine type of the guest.
    let support = connection.support();
    let chooses = support.is_some_and(|support| support.emulator.is_some());
    let versions = &Versions::default();
    let (traits, fixed, offers_iommufd) = (None, &BTreeSet::new(), None);
    let (facts, guests) = (&facts, None);
    let case =
        Case { topology, facts, guests, versions, offers_iommufd, connection, traits, fixed };
    let reason = |rule: &str, what: String, hint: String| match rule {
        rule if rule == NO_KVM.id && virt == VirtType::Kvm => {
            Some(CreateError::NoKvm { what }.hint(hint))
        }
        rule if rule == NO_QEMU.id => Some(CreateError::NoQemu { what }.hint(hint)),
        rule if rule == NO_FIRMWARE.id && needs_efi && !chooses => {
            Some(CreateError::NoFirmware { what }.hint(hint))
        }
        _ => None,
    };
    let found = missing(&case).into_iter();
    found.filter_map(|found| reason(found.rule, found.says.message, found.hint)).collect()
}

/// The warning that the kernel does not serve the NICs of a guest that asks for it, so that libvirt
/// refuses its start; `None` if it does, or nothing asks for it.
pub(super) fn without_vhost(xml: &DomainXml, root: &FsRoot) -> Option<String> {
    let asks = |nic: Element<'_>| {
        nic.child("driver")
            .and_then(|driver| driver.attr("name"))
            .is_some_and(|name| name == "vhost")
    };
    if root.exists("dev/vhost-net") || !nics(xml).any(asks) {
        return None;
    }
    Some(format!("{NO_VHOST}; {NO_VHOST_HINT}"))
}

/// Returns the networks of the NICs of a definition.
pub(super) fn networks_of(xml: &DomainXml) -> Vec<String> {
    let network = |nic: Element<'_>| Some(nic.child("source")?.attr("network")?.into_owned());
    nics(xml).filter_map(network).collect()
}

/// Returns the NICs of a definition.
fn nics(xml: &DomainXml) -> impl Iterator<Item = Element<'_>> {
    xml.root().child("devices").into_iter().flat_map(|devices| devices.children("interface"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::topology::file::from_json;
    use gpuvm_core::topology::software::{GuestSupport, UnusableKvm};

    #[test]
    fn all_missing_parts_are_named_at_once_with_remedies() {
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let topology = from_json(include_str!("../../../topologies/dual-socket.json")).unwrap();
        let said = |virt, connection: &Connection| -> Vec<(&'static str, String)> {
            let facts = facts::read_needs(&FsRoot::at(dir.path()).unwrap());
            let found = reasons(virt, true, &topology, facts, connection).into_iter();
            let refusals = found.map(|error| error.refusal().cloned().expect("a refusal"));
            refusals.map(|one| (one.code, format!("{} | {}", one.message, one.hint))).collect()
        };
        let codes = |said: &[(&'static str, String)]| -> Vec<&'static str> {
            said.iter().map(|(code, _)| *code).collect()
        };
        file("dev/null", "");
        file("etc/os-release", "ID=debian\n");
        let why = "Failed to connect socket".to_owned();
        let absent = Connection::Absent { why, is_library: false };
        let all = said(VirtType::Kvm, &absent);
        assert_eq!(codes(&all), ["create-no-kvm", "create-no-qemu", "create-no-firmware"]);
        assert!(all[0].1.contains("no /dev/kvm") && all[0].1.contains("`--virt-type qemu`"));
        assert!(all[1].1.ends_with("| `sudo apt install qemu-system-x86`"), "{}", all[1].1);
        assert!(all[2].1.ends_with("| `sudo apt install ovmf`"), "{}", all[2].1);
        assert_eq!(codes(&said(VirtType::Qemu, &absent)), codes(&all)[1..]);
        // The test driver needs none of these, and libvirt's word counts before its files.
        assert_eq!(codes(&said(VirtType::Qemu, &Connection::Answers(None))), [""; 0]);
        let support = GuestSupport {
            emulator: Some("/opt/qemu".into()),
            no_kvm: Some(UnusableKvm { why: "it is a plain file".into(), command: None }),
            has_firmware: true,
        };
        file("dev/kvm", "");
        let answers = Connection::Answers(Some(support.clone()));
        let shut = said(VirtType::Kvm, &answers);
        assert_eq!(codes(&shut), ["create-no-kvm"]);
        assert!(shut[0].1.contains("cannot run guests with it: it is a plain file"), "{shut:?}");
        assert_eq!(said(VirtType::Qemu, &answers), []);
        let good = GuestSupport { no_kvm: None, ..support };
        assert_eq!(said(VirtType::Kvm, &Connection::Answers(Some(good))), []);
    }

    #[test]
    fn a_nic_that_asks_for_vhost_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let xml = |driver: &str| {
            let nic = "<interface type='network'><source network='n'/>";
            let text = format!("<domain><devices>{nic}{driver}</interface></devices></domain>");
            DomainXml::parse(&text).unwrap()
        };
        let (kernel, own) = (xml("<driver name='vhost' queues='2'/>"), xml(""));
        let warning = without_vhost(&kernel, &root).unwrap();
        assert!(warning.contains("`sudo modprobe vhost_net`"), "{warning}");
        assert_eq!(without_vhost(&own, &root), None);
        std::fs::create_dir(dir.path().join("dev")).unwrap();
        std::fs::write(dir.path().join("dev/vhost-net"), "").unwrap();
        assert_eq!(without_vhost(&kernel, &root), None);
        assert_eq!(networks_of(&kernel), ["n"]);
        assert!(needs_efi(&DomainXml::parse("<domain><os firmware='efi'/></domain>").unwrap()));
        assert!(!needs_efi(&own));
    }
}
