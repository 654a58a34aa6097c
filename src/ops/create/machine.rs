//! Requirements of a guest on its machine that libvirt checks only when defining or starting it,
//! after its disks were copied: KVM, vhost-net, networks that are up.

use super::CreateError;
use crate::domain::guest::VirtType;
use crate::domain::{DomainXml, Element};
use crate::error::{Coded as _, Result};
use crate::fsroot::FsRoot;
use gpuvm_core::doctor::{NO_VHOST, NO_VHOST_HINT};

/// Refuses a guest with hardware virtualization on a machine without KVM.
pub(super) fn refuse_without_kvm(virt: VirtType, root: &FsRoot) -> Result<()> {
    if virt != VirtType::Kvm || root.exists("dev/kvm") {
        return Ok(());
    }
    Err(CreateError::NoKvm.hint(
        "`--virt-type qemu` emulates the CPU, many times slower; `sudo modprobe kvm_intel` or \
         `sudo modprobe kvm_amd` loads KVM where the firmware has virtualization on",
    ))
}

/// The warning that the kernel does not serve the NICs of a guest that asks for it, so that libvirt
/// refuses its start; none: it does, or nothing asks for it.
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
    use crate::error::Error;

    /// The code of a refusal; none: not refused.
    fn code(answer: Result<()>) -> Option<&'static str> {
        answer.err().map(|error: Error| error.refusal().expect("a refusal").code)
    }

    #[test]
    fn what_the_machine_lacks_is_said_with_the_way_round_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let xml = |driver: &str| {
            let nic = "<interface type='network'><source network='n'/>";
            let text = format!("<domain><devices>{nic}{driver}</interface></devices></domain>");
            DomainXml::parse(&text).unwrap()
        };
        let (kernel, own) = (xml("<driver name='vhost' queues='2'/>"), xml(""));
        assert_eq!(code(refuse_without_kvm(VirtType::Kvm, &root)), Some("create-no-kvm"));
        assert_eq!(code(refuse_without_kvm(VirtType::Qemu, &root)), None);
        let warning = without_vhost(&kernel, &root).unwrap();
        assert!(warning.contains("`sudo modprobe vhost_net`"), "{warning}");
        assert_eq!(without_vhost(&own, &root), None);
        let hint = refuse_without_kvm(VirtType::Kvm, &root).unwrap_err();
        assert!(hint.refusal().unwrap().hint.contains("`--virt-type qemu`"));
        std::fs::create_dir(dir.path().join("dev")).unwrap();
        for node in ["kvm", "vhost-net"] {
            std::fs::write(dir.path().join("dev").join(node), "").unwrap();
        }
        assert_eq!(code(refuse_without_kvm(VirtType::Kvm, &root)), None);
        assert_eq!(without_vhost(&kernel, &root), None);
        assert_eq!(networks_of(&kernel), ["n"]);
    }
}
