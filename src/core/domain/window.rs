//! Tells UEFI the size of the guest's 64-bit MMIO window, which the plan chooses
//! (`placement::window`).
//!
//! QEMU's `pcihole64` is the window that ACPI reports to the guest; OVMF ignores it and makes its
//! own. Since edk2-stable202211 (tianocore/edk2 pull request 3381) that is an eighth of the address
//! space. The age of a firmware cannot be read from its file; on a host with older firmware the
//! template can carry the argument itself.

use super::DomainXml;
use super::element::Element;
use super::fragment::Fragment;
use super::overrides::{NAMESPACE, of_qemu};

/// The name that OVMF reads the size of its window from, in MiB. libvirt reserves such names in its
/// own `<sysinfo>` element.
const FILE: &str = "name=opt/ovmf/X-PciMmio64Mb,";
/// The QEMU option that passes it.
const OPTION: &str = "-fw_cfg";

impl DomainXml {
    /// Whether the guest starts with UEFI.
    pub fn is_uefi(&self) -> bool {
        let os = self.root().child("os");
        let named = os.and_then(|os| os.attr("firmware")).is_some_and(|firmware| firmware == "efi");
        let loader = os.and_then(|os| os.child("loader")?.attr("type"));
        named || loader.is_some_and(|kind| kind == "pflash")
    }

    /// Whether a window of at least this many MiB is set for UEFI; a size given in another way is
    /// left to the admin.
    pub(super) fn sets_window(&self, mib: u64) -> bool {
        let lines = of_qemu(self.root()).filter(|line| line.name().ends_with(":commandline"));
        let mut sizes = lines.flat_map(of_qemu).filter_map(|argument| {
            let text = argument.attr("value")?;
            let rest = text.strip_prefix(FILE)?;
            Some(rest.strip_prefix("string=").map_or(Some(u64::MAX), |size| size.parse().ok()))
        });
        sizes.next().is_some_and(|size| size.is_some_and(|size| size >= mib))
    }
}

/// Returns the wanted state of a domain whose UEFI makes a window of this many MiB.
pub(super) fn fragment(domain: Fragment, mib: u64) -> Fragment {
    let argument = |part: &'static str, value: String| {
        Fragment::new("qemu:arg").key(part_of_ours, part).attr("value", value)
    };
    let line = Fragment::new("qemu:commandline")
        .child(argument("option", OPTION.to_owned()))
        .child(argument("file", format!("{FILE}string={mib}")));
    domain.attr("xmlns:qemu", NAMESPACE).child(line)
}

/// Whether an argument of QEMU is one that we write.
pub(super) fn is_ours(argument: &str) -> bool {
    let size = argument.strip_prefix(FILE).and_then(|rest| rest.strip_prefix("string="));
    argument == OPTION || size.is_some_and(|size| size.chars().all(|c| c.is_ascii_digit()))
}

/// Returns which of our two arguments a QEMU argument is: the option before the file, or the file
/// after the option.
fn part_of_ours(argument: Element<'_>) -> Option<String> {
    let all: Vec<Element<'_>> = argument.parent()?.children("qemu:arg").collect();
    let ours = all.windows(2).find(|pair| {
        let value = |at: usize| pair[at].attr("value").unwrap_or_default();
        value(0) == OPTION && value(1).starts_with(FILE)
    })?;
    let is = |at: usize| ours[at].node == argument.node;
    [(0, "option"), (1, "file")].into_iter().find(|(at, _)| is(*at)).map(|(_, part)| part.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_is_written_once_and_a_larger_one_stays() {
        let write = |text: &str, mib| {
            let mut xml = DomainXml::parse(text).unwrap();
            xml.apply(&super::super::DomainEdit::SetFirmwareWindow { mib }).unwrap();
            xml
        };
        let mut xml = write("<domain>\n  <name>a</name>\n</domain>\n", 4096);
        let arguments = "    <qemu:arg value='-fw_cfg'/>\n    <qemu:arg \
                    value='name=opt/ovmf/X-PciMmio64Mb,string=4096'/>\n";
        assert!(xml.text().contains(arguments), "{}", xml.text());
        assert!(xml.sets_window(4096) && !xml.sets_window(4097));
        xml = write(xml.text(), 8192);
        assert_eq!(xml.text().matches("fw_cfg").count(), 1, "{}", xml.text());
        assert!(xml.sets_window(8192), "{}", xml.text());
        let again = write(xml.text(), 8192);
        assert_eq!(again.text(), xml.text());
        // Other arguments that an admin passed to QEMU stay where they are.
        let other = xml.text().replace(
            "value='-fw_cfg'/>",
            "value='-fw_cfg'/><qemu:arg value='name=opt/x,file=y'/><qemu:arg value='-fw_cfg'/>",
        );
        assert_eq!(write(&other, 9000).text(), other.replace("8192", "9000"));
        let file = xml.text().replace("string=8192", "file=/x");
        assert!(DomainXml::parse(&file).unwrap().sets_window(u64::MAX));
    }

    #[test]
    fn a_window_and_properties_of_devices_share_a_namespace() {
        use super::super::{DomainEdit, Override};
        let overrides = vec![Override {
            alias: "ua-gpu0".into(),
            property: "x-nv-gpudirect-clique",
            kind: "unsigned",
            value: "0".into(),
        }];
        let mib = 4096;
        let edits = [DomainEdit::SetOverrides { overrides }, DomainEdit::SetFirmwareWindow { mib }];
        let mut xml = DomainXml::parse("<domain>\n  <name>a</name>\n</domain>\n").unwrap();
        xml.apply_all(&edits).unwrap();
        assert_eq!(xml.text().matches("xmlns:qemu").count(), 1, "{}", xml.text());
        assert!(xml.sets_window(4096) && xml.text().contains("ua-gpu0"), "{}", xml.text());
    }

    #[test]
    fn uefi_is_named_or_loaded_from_flash() {
        for (os, is_uefi) in [
            ("<os firmware='efi'/>", true),
            ("<os><loader type='pflash'>/f</loader></os>", true),
            ("<os firmware='bios'/>", false),
            ("<os><loader type='rom'>/f</loader></os>", false),
            ("", false),
        ] {
            let xml = DomainXml::parse(&format!("<domain>{os}</domain>")).unwrap();
            assert_eq!(xml.is_uefi(), is_uefi, "{os}");
        }
    }
}
