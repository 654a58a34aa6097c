//! Which guests a libvirt can run, by its domain capabilities.

use gpuvm_core::topology::software::GuestSupport;
use serde::Deserialize;
use std::path::PathBuf;
use virt::connect::Connect;
use virt::error::ErrorNumber;

/// libvirt's domain capabilities, as far as needed.
#[derive(Debug, Deserialize)]
struct Capabilities {
    path: PathBuf,
    #[serde(default)]
    os: Boot,
    #[serde(default)]
    devices: Devices,
}

#[derive(Debug, Default, Deserialize)]
struct Devices {
    #[serde(default)]
    hostdev: Hostdev,
}

/// The options of a passed-through device.
#[derive(Debug, Default, Deserialize)]
struct Hostdev {
    #[serde(default, rename = "enum")]
    lists: Vec<ValueList>,
}

impl Capabilities {
    /// Whether it offers iommufd for functions of the host; a libvirt that does not know it has no
    /// such list.
    fn offers_iommufd(&self) -> bool {
        let lists = self.devices.hostdev.lists.iter();
        let mut lists = lists.filter(|list| list.name == "iommufd");
        lists.any(|list| list.values.iter().any(|value| value == "yes"))
    }
}

#[derive(Debug, Default, Deserialize)]
struct Boot {
    #[serde(default, rename = "enum")]
    lists: Vec<ValueList>,
}

/// The values that an attribute can have.
#[derive(Debug, Deserialize)]
struct ValueList {
    #[serde(rename = "@name")]
    name: String,
    #[serde(default, rename = "value")]
    values: Vec<String>,
}

/// Why libvirt does not report the abilities of guests.
struct Refused {
    why: String,
    /// Whether the caller may not ask.
    is_denied: bool,
}

/// libvirt's report of the guests that it can run.
pub(super) struct Supported {
    pub(super) support: GuestSupport,
    /// Why KVM cannot be used; `None` if it can, or QEMU is missing.
    pub(super) no_kvm: Option<String>,
}

/// The capabilities of guests of a kind: `qemu`, `kvm`.
fn capabilities(connection: &Connect, virt: &str) -> Result<Capabilities, Refused> {
    let asked = connection.domain_capabilities(None, None, None, Some(virt), 0);
    let text = asked.map_err(|error| Refused {
        why: error.message().trim().replace('\n', "; "),
        is_denied: matches!(
            error.code().known(),
            Some(ErrorNumber::OperationDenied | ErrorNumber::AccessDenied)
        ),
    })?;
    let read = quick_xml::de::from_str(&text);
    read.map_err(|error| Refused { why: error.to_string(), is_denied: false })
}

/// Why guests of a kind cannot have this machine type; `None` if they can, or the query is not
/// permitted. Without KVM, the query is about emulation, which has the same types.
pub(super) fn refuses_machine(connection: &Connect, machine: &str, virt: &str) -> Option<String> {
    let ask = |virt| connection.domain_capabilities(None, None, Some(machine), Some(virt), 0);
    let error = ask(virt).or_else(|_| ask("qemu")).err()?;
    let is_it = error.message().contains(machine);
    is_it.then(|| error.message().trim().replace('\n', "; "))
}

/// Asks which guests it can run; `None` if the caller has no permission to ask. Emulation works
/// without KVM.
pub(super) fn supported(connection: &Connect) -> Option<Supported> {
    let kvm = capabilities(connection, "kvm");
    // A read-only connection gets no answer.
    if kvm.as_ref().is_err_and(|refused| refused.is_denied) {
        return None;
    }
    let emulated = if kvm.is_err() { capabilities(connection, "qemu").ok() } else { None };
    let Some(found) = kvm.as_ref().ok().or(emulated.as_ref()) else {
        return Some(Supported { support: GuestSupport::default(), no_kvm: None });
    };
    let has_efi =
        |list: &ValueList| list.name == "firmware" && list.values.iter().any(|v| v == "efi");
    let support = GuestSupport {
        emulator: Some(found.path.display().to_string()),
        has_firmware: found.os.lists.iter().any(has_efi),
        no_kvm: None,
    };
    Some(Supported { support, no_kvm: kvm.err().map(|refused| refused.why) })
}

/// Whether it offers iommufd for functions of the host; `None` if it does not report the abilities
/// of guests.
pub(super) fn offers_iommufd(connection: &Connect) -> Option<bool> {
    let ask = |virt| capabilities(connection, virt).ok();
    let found = ask("kvm").or_else(|| ask("qemu"))?;
    Some(found.offers_iommufd())
}

/// The QEMU program that guests run in.
pub(super) fn emulator(connection: &Connect) -> Option<PathBuf> {
    let path = |virt| Some(capabilities(connection, virt).ok()?.path);
    path("qemu").or_else(|| path("kvm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iommufd_is_offered_where_libvirt_lists_it() {
        let read = |list: &str| -> bool {
            let text = format!(
                "<domainCapabilities><path>/usr/bin/qemu-system-x86_64</path><domain>kvm</domain>\
                 <os supported='yes'><enum name='firmware'><value>efi</value></enum></os><devices>\
                 <disk supported='yes'><enum name='bus'><value>virtio</value></enum></disk>\
                 <hostdev supported='yes'><enum name='mode'><value>subsystem</value></enum>\
                 <enum name='pciBackend'/>{list}</hostdev></devices></domainCapabilities>"
            );
            let read: Capabilities = quick_xml::de::from_str(&text).unwrap();
            read.offers_iommufd()
        };
        let both = "<enum name='iommufd'><value>yes</value><value>no</value></enum>";
        assert!(read(both));
        // The kernel has no /dev/iommu.
        assert!(!read("<enum name='iommufd'><value>no</value></enum>"));
        // A libvirt before 12.1 does not know it.
        assert!(!read(""));
        let bare = "<domainCapabilities><path>/q</path></domainCapabilities>";
        let bare: Capabilities = quick_xml::de::from_str(bare).unwrap();
        assert!(!bare.offers_iommufd());
    }
}
