//! Whether a domain passes its functions through by iommufd.

use super::{DomainXml, Element};

impl DomainXml {
    /// Whether the domain says that its functions are passed through by iommufd.
    pub fn is_by_iommufd(&self) -> bool {
        is_enabled(self.root())
    }

    /// Whether its caller opens /dev/iommu and hands the file to libvirt (`fdgroup`).
    pub fn has_iommufd_of_caller(&self) -> bool {
        self.root().child("iommufd").is_some_and(|iommufd| iommufd.attr("fdgroup").is_some())
    }

    /// The devices of a name that say it for themselves, by their places among those of the name.
    pub(super) fn devices_that_choose(&self, name: &'static str) -> Vec<usize> {
        let devices = self.root().child("devices").into_iter();
        let devices = devices.flat_map(|devices| devices.children(name)).enumerate();
        devices.filter(|(_, device)| own(*device).is_some()).map(|(nth, _)| nth).collect()
    }

    /// How many of its devices say for themselves that they are passed through by iommufd, or not.
    pub fn devices_with_iommufd(&self) -> usize {
        ["hostdev", "interface"].map(|name| self.devices_that_choose(name).len()).iter().sum()
    }

    /// Whether its memory is in files, as huge pages are, and its changes are not theirs.
    pub fn has_private_files(&self) -> bool {
        has_private_files(self.root())
    }
}

/// Whether a device is an SMMUv3 that is nested in the host's.
pub(crate) fn is_nested_smmu(device: Element<'_>) -> bool {
    let accel = || device.child("driver").and_then(|driver| driver.attr("accel"));
    is_smmu(device) && accel().is_some_and(|accel| accel == "on")
}

/// Whether a device is an SMMUv3.
pub(crate) fn is_smmu(device: Element<'_>) -> bool {
    device.name() == "iommu" && device.attr("model").as_deref() == Some("smmuv3")
}

/// Whether an element `<domain>` says that functions are passed through by iommufd.
pub(super) fn is_enabled(root: Element<'_>) -> bool {
    let enabled = root.child("iommufd").and_then(|iommufd| iommufd.attr("enabled"));
    enabled.is_some_and(|enabled| enabled == "yes")
}

/// The own setting of a device.
pub(crate) fn own(device: Element<'_>) -> Option<bool> {
    let own = device.child("driver")?.attr("iommufd")?;
    Some(own == "yes")
}

/// Whether memory of a domain is in files, of which the guest gets private copies once it writes:
/// libvirt's default. A cell may say it for itself.
pub(crate) fn has_private_files(root: Element<'_>) -> bool {
    let Some(backing) = root.child("memoryBacking") else { return false };
    let of = |name, attribute: &str| backing.child(name).and_then(|one| one.attr(attribute));
    let source = of("source", "type");
    let is_file = source.is_some_and(|source| matches!(&*source, "file" | "memfd"));
    if !is_file && backing.child("hugepages").is_none() {
        return false;
    }
    let is_shared = of("access", "mode").is_some_and(|mode| mode == "shared");
    let cells = root.find("cpu/numa").into_iter().flat_map(|numa| numa.children("cell"));
    let cells = cells.map(|cell| cell.attr("memAccess").map_or(is_shared, |own| own == "shared"));
    let cells: Vec<bool> = cells.collect();
    if cells.is_empty() { !is_shared } else { cells.contains(&false) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::DomainEdit;
    use crate::domain::setting::Setting;

    #[test]
    fn all_functions_are_passed_through_in_one_way() {
        let device =
            |driver: &str| format!("<hostdev mode='subsystem' type='pci'>{driver}</hostdev>");
        let domain = |element: &str, drivers: [&str; 2]| {
            let [first, second] = drivers.map(device);
            format!(
                "<domain><name>a</name>{element}<cpu/><devices>{first}{second}</devices></domain>"
            )
        };
        let made = |text: &str, on: bool| {
            let mut xml = DomainXml::parse(text).unwrap();
            let edit = |xml: &DomainXml| DomainEdit::Set { setting: Setting::iommufd(xml, on) };
            xml.apply(&edit(&xml)).unwrap();
            assert!(!xml.would_change(&edit(&xml)), "{}", xml.text());
            assert_eq!(xml.is_by_iommufd(), on);
            xml.text().to_owned()
        };
        let on = "<iommufd enabled='yes'/>";
        let groups = domain("", ["", ""]);
        assert_eq!(made(&groups, true), domain(on, ["", ""]));
        assert_eq!(made(&groups, false), groups);
        assert_eq!(made(&domain(on, ["", ""]), false), groups);
        let (yes, no) = ("<driver iommufd='yes'/>", "<driver iommufd='no'/>");
        assert_eq!(made(&domain("", [yes, yes]), true), domain(on, ["", ""]));
        assert_eq!(made(&domain(on, [no, ""]), true), domain(on, ["", ""]));
        assert_eq!(made(&domain("", [yes, no]), false), groups);
        // Other settings of a driver stay.
        let named = "<driver name='vfio' iommufd='yes'/>";
        assert_eq!(
            made(&domain("", [named, ""]), false),
            domain("", ["<driver name='vfio'/>", ""])
        );
    }

    #[test]
    fn shared_memory_of_files_differs_from_private() {
        for (backing, cells, is_private) in [
            ("", "", false),
            ("<hugepages/>", "", true),
            ("<hugepages/><access mode='shared'/>", "", false),
            ("<hugepages/><access mode='private'/>", "", true),
            ("<source type='memfd'/>", "", true),
            ("<source type='anonymous'/>", "", false),
            ("<hugepages/>", "<cell memAccess='shared'/>", false),
            ("<hugepages/>", "<cell memAccess='shared'/><cell/>", true),
            ("<hugepages/><access mode='shared'/>", "<cell memAccess='private'/><cell/>", true),
        ] {
            let text = format!(
                "<domain><memoryBacking>{backing}</memoryBacking><cpu><numa>{cells}</numa></cpu>\
                 </domain>"
            );
            let xml = DomainXml::parse(&text).unwrap();
            assert_eq!(xml.has_private_files(), is_private, "{text}");
        }
    }
}
