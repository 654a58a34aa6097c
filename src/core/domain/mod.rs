//! libvirt domain XML: reads it, edits it in place, compares it. All other parts stay
//! byte-identical. No I/O.

mod addresses;
pub mod arguments;
mod bundled;
pub mod claims;
pub mod cloned;
mod device;
mod device_edits;
mod difference;
pub mod disk_change;
pub mod disks;
pub mod edit;
mod edits;
mod element;
mod fragment;
pub mod guest;
mod host_devices;
pub(crate) mod iommufd;
pub mod live;
pub mod nic_request;
pub mod nics;
mod occupancy;
pub mod order;
mod overrides;
pub mod pci;
pub mod placed;
pub mod rate;
pub mod read;
mod record;
pub mod setting;
mod shape;
mod splice;
mod state;
mod tree;
pub mod view;
mod window;

use crate::host_device::HostDevice;
use crate::request::Template;
use claims::{Claims, Passed};
pub use device::is_on_pci;
use device::is_our_hostdev;
pub use device_edits::{
    FunctionChange, function_edits, is_bound_by_us, reseat_edits, seat_edits, unseat_edits,
};
pub use difference::{Difference, differences};
pub use edit::DomainEdit;
pub use edits::{MOST_FILL_THREADS, check_architecture, edits, window_edits};
pub use element::Element;
use fragment::Fragment;
pub use nics::{Hook, hooks, pf_of_nic};
pub use occupancy::bound_memory;
pub use overrides::Override;
use read::At;
use splice::Splicer;

/// A libvirt domain's XML, well-formed and with `<domain>` at its root.
#[derive(Clone)]
pub struct DomainXml {
    /// The document and the places of its elements.
    tree: tree::Tree,
}

/// The error of a text that is not domain XML, or of an edit that cannot be made.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "xml-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum DomainXmlError {
    /// Not well-formed, or refused on purpose (DOCTYPE).
    #[error("domain XML, line {line}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        message: String,
    },
    /// A value that libvirt does not allow there.
    #[error("domain XML, {path}: {message}")]
    Value {
        /// Path of the element or attribute.
        path: String,
        message: String,
    },
}

impl DomainXml {
    /// Reads a document.
    pub fn parse(text: &str) -> Result<DomainXml, DomainXmlError> {
        Ok(DomainXml { tree: tree::Tree::parse(text.to_owned())? })
    }

    /// Returns the document.
    pub fn text(&self) -> &str {
        &self.tree.text
    }

    /// Its root, to read.
    pub fn root(&self) -> Element<'_> {
        self.tree.root()
    }

    /// The domain's name; empty where it has none.
    pub fn name(&self) -> String {
        self.root().child("name").map(|name| name.text().into_owned()).unwrap_or_default()
    }

    /// The domain's UUID; none where libvirt is to choose one.
    pub fn uuid(&self) -> Option<String> {
        self.root().child("uuid").map(|uuid| uuid.text().into_owned())
    }

    /// Makes one edit. Nothing is changed where it fails.
    pub fn apply(&mut self, edit: &DomainEdit) -> Result<(), DomainXmlError> {
        self.apply_all(std::slice::from_ref(edit))
    }

    /// Makes several edits, parsing and writing the document only once. Nothing is changed where
    /// one fails.
    pub fn apply_all(&mut self, edits: &[DomainEdit]) -> Result<(), DomainXmlError> {
        let mut wanted = Fragment::new("domain");
        for edit in edits {
            wanted.join(edit.fragment());
        }
        let splicer = Splicer::new(&self.tree, &wanted);
        if !splicer.is_empty() {
            self.tree = tree::Tree::parse(splicer.finish())?;
        }
        Ok(())
    }

    /// Whether an edit would change something.
    pub fn would_change(&self, edit: &DomainEdit) -> bool {
        !Splicer::new(&self.tree, &edit.fragment()).is_empty()
    }

    /// Whether the machine type has PCI Express.
    pub fn is_pcie(&self) -> bool {
        let machine = self.root().find("os/type").and_then(|kind| kind.attr("machine"));
        machine.is_some_and(|machine| {
            let named = |name: &str| {
                machine
                    .strip_prefix(name)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            };
            named("q35") || named("pc-q35") || named("virt")
        })
    }

    /// Whether the guest has an IOMMU that gives its interrupts the addresses of more than 255
    /// vCPUs: it can have one, and that remaps, with the I/O APIC in QEMU, without which libvirt
    /// refuses it.
    pub fn remaps_interrupts(&self) -> bool {
        let is = |path: &str, name: &str, value: &str| {
            let named = self.root().find(path).and_then(|element| element.attr(name));
            named.is_some_and(|named| named == value)
        };
        let has_intels =
            ["intremap", "eim"].iter().all(|name| is("devices/iommu/driver", name, "on"))
                && is("features/ioapic", "driver", "qemu");
        self.can_remap_interrupts() && (has_intels || self.has_amds_iommu())
    }

    /// Whether it has such an IOMMU or can get one: libvirt supports it on q35 only, and only one.
    pub fn can_remap_interrupts(&self) -> bool {
        let machine = self.root().find("os/type").and_then(|kind| kind.attr("machine"));
        let is_q35 = machine.is_some_and(|machine| {
            machine == "q35" || machine.starts_with("pc-q35-") || machine.starts_with("q35-")
        });
        let iommu = self.root().find("devices/iommu");
        let is_intels = |iommu: Element<'_>| iommu.attr("model").is_some_and(|of| of == "intel");
        is_q35 && (iommu.is_none_or(is_intels) || self.has_amds_iommu())
    }

    /// Whether it has an AMD IOMMU that remaps interrupts: libvirt 12.2 and later set `intremap`,
    /// `xtsup` and the I/O APIC of QEMU themselves where there are more than 255 vCPUs.
    fn has_amds_iommu(&self) -> bool {
        let Some(iommu) = self.root().find("devices/iommu") else { return false };
        let is_off = |driver: Element<'_>| {
            ["intremap", "xtsup"].iter().any(|name| driver.attr(name).is_some_and(|on| on == "off"))
        };
        iommu.attr("model").is_some_and(|of| of == "amd")
            && !iommu.child("driver").is_some_and(is_off)
    }

    /// Facts that a plan needs about it as a template that the admin named.
    pub fn as_template(&self) -> Template {
        let claims = Claims::read(self);
        let passed = claims.passed.into_iter();
        let passed = passed.filter(|passed| !is_our_hostdev(passed.device.element()));
        let (functions, fixed): (Vec<_>, Vec<_>) = passed.partition(Passed::is_hostdev);
        let functions_of =
            |all: Vec<Passed<'_>>| all.iter().map(|passed| passed.bdf.value).collect();
        Template {
            is_given: true,
            is_x86: self.is_x86(),
            is_pcie: self.is_pcie(),
            remaps_interrupts: self.can_remap_interrupts(),
            is_by_iommufd: self.is_by_iommufd(),
            functions: functions_of(functions),
            fixed_functions: functions_of(fixed),
            unread: claims.unread.into_iter().map(|unread| unread.message).collect(),
            host_devices: claims.host_devices.into_iter().map(|one| one.value).collect(),
        }
    }

    /// Whether the guest's architecture is x86; without one libvirt uses the host's, which counts
    /// as x86 here.
    pub fn is_x86(&self) -> bool {
        let arch = self.root().find("os/type").and_then(|kind| kind.attr("arch"));
        arch.is_none_or(|arch| matches!(arch.as_ref(), "x86_64" | "i686"))
    }

    /// The mediated devices of the host that it has, by UUID in lower case: those of its devices,
    /// then those of QEMU's arguments.
    pub fn mediated(&self) -> Vec<String> {
        let uuid = |device: At<'_, HostDevice>| match device.value {
            HostDevice::Mediated(uuid) => Some(uuid),
            _ => None,
        };
        host_devices::host_devices(self.root()).into_iter().filter_map(uuid).collect()
    }

    /// Whether an argument of QEMU with this option, without its dash, replaces the setting of an
    /// element of the definition.
    pub fn is_replaced(&self, option: &str) -> bool {
        arguments::replacing(self.root()).iter().any(|said| said.value.option == option)
    }

    /// Whether the guest is macOS, which depends on the CPU that it sees.
    pub fn is_macos(&self) -> bool {
        arguments::is_macos(self.root())
    }

    /// Whether the guest runs without hardware virtualization.
    pub fn is_emulated(&self) -> bool {
        self.root().attr("type").is_some_and(|kind| kind == "qemu")
    }
}

impl PartialEq for DomainXml {
    fn eq(&self, other: &DomainXml) -> bool {
        self.text() == other.text()
    }
}

impl Eq for DomainXml {}

impl std::fmt::Debug for DomainXml {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
pub(crate) mod tests;
