//! Searches the kernel's log for facts that no file has: texts, each with the rule that it belongs
//! to.

use crate::bdf::Bdf;
use crate::finding::{Rule, Severity};
use crate::verify::UNHEALTHY;
use crate::xid::{KINDS, Xid, XidAction, XidKind};
use serde::Serialize;

/// A text of the kernel's log, or of QEMU's and libvirt's in it.
#[derive(Debug, Clone, Copy)]
pub struct Pattern {
    /// The text to look for.
    pub text: &'static str,
    /// Another text of which the line must have one; empty: it needs none.
    pub with: &'static [&'static str],
    /// The rule that it belongs to.
    pub rule: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Its meaning and the remedy.
    pub means: &'static str,
}

/// Makes a pattern of a message about a stopped guest or device.
const fn fatal(text: &'static str, rule: &'static str, means: &'static str) -> Pattern {
    Pattern { text, with: &[], rule, severity: Severity::Error, means }
}

/// A pattern of which a line must also have one of these texts.
const fn with(pattern: Pattern, with: &'static [&'static str]) -> Pattern {
    Pattern { with, ..pattern }
}

/// Makes a pattern of a possible fault.
const fn doubt(text: &'static str, rule: &'static str, means: &'static str) -> Pattern {
    Pattern { text, with: &[], rule, severity: Severity::Warning, means }
}

/// Rules that only the kernel's log can break.
pub(super) const RULES: &[&Rule] = &[
    &Rule::error("iommu-fault", "a device that used memory outside of its guest"),
    &Rule::error("iommu-width", "an IOMMU with fewer address bits than a guest has"),
    &Rule::warning("gpu-rom", "a GPU whose ROM cannot be read"),
    &Rule::warning("pcie-atomics", "a GPU without PCIe atomics"),
];

/// The texts, in the order in which a line is compared with them; then comes [`Xid`].
pub const PATTERNS: [Pattern; 27] = [
    fatal(
        "VFIO is not viable",
        "group-shared",
        "a device of the same IOMMU group has a driver of the host: `gpuvm device list` shows it",
    ),
    fatal(
        "due to platform RMRR requirement",
        "group-legacy-rmrr",
        "the firmware keeps memory for the device: change its setting, or use another slot",
    ),
    fatal(
        "no interrupt remapping support",
        "irq-remap",
        "turn interrupt remapping on in the firmware",
    ),
    doubt("DMAR: DRHD: handling fault", "iommu-fault", "a device used memory that was not its own"),
    fatal(
        "IO_PAGE_FAULT",
        "iommu-fault",
        "a device used an address that its guest does not have: a driver of the guest, or a device that was not reset",
    ),
    with(
        fatal(
            "DMA Write",
            "iommu-fault",
            "a device wrote to an address that its guest does not have: a driver of the guest, or a device that was not reset",
        ),
        &["DMAR:"],
    ),
    with(
        fatal(
            "DMA Read",
            "iommu-fault",
            "a device read from an address that its guest does not have: a driver of the guest, or a device that was not reset",
        ),
        &["DMAR:"],
    ),
    fatal(
        "is not sufficient for the mapped address",
        "iommu-width",
        "the IOMMU has fewer address bits than the CPU: limit the guest's with `<maxphysaddr mode='passthrough' limit='39'/>` (the width that the line names)",
    ),
    with(
        fatal("can't reserve [mem", "console-holds-gpu", "a console has the GPU's memory"),
        &["vfio", "nvidia", "amdgpu", "NVRM"],
    ),
    with(
        fatal(
            "can't assign; no space",
            "bar-window",
            "the firmware left too little address space for this BAR: turn on Above 4G Decoding, or boot with pci=realloc",
        ),
        &["[mem"],
    ),
    fatal(
        "This PCI I/O region assigned to your NVIDIA device is invalid",
        "bar-window",
        "the firmware gave the GPU no address space: turn on Above 4G Decoding, or boot with pci=realloc",
    ),
    fatal(
        "from D3cold to D0",
        "d3cold",
        "a device did not come back from power saving: `options vfio-pci disable_idle_d3=1`",
    ),
    fatal(
        "after resume; giving up",
        "d3cold",
        "a device did not come back from power saving: `options vfio-pci disable_idle_d3=1`; power the host off and on",
    ),
    fatal(
        "Refused to change power state",
        "d3cold",
        "a device did not change its power state: `options vfio-pci disable_idle_d3=1`; power the host off and on",
    ),
    fatal(
        "Unable to power on device, stuck in D3",
        "d3cold",
        "a device did not come back from power saving: `options vfio-pci disable_idle_d3=1`; power the host off and on",
    ),
    fatal(
        "fallen off the bus",
        "d3cold",
        "a GPU no longer answers: power the host off and on, and look at its slot and power",
    ),
    fatal(
        "after FLR; giving up",
        "reset-missing",
        "the device did not come back from its reset: power the host off and on; another guest cannot have it before",
    ),
    fatal(
        "after bus reset; giving up",
        "reset-missing",
        "the device did not come back from its reset: power the host off and on; another guest cannot have it before",
    ),
    fatal(
        "reset recovery - restoring BARs",
        "reset-missing",
        "the device was reset behind the guest's back and may be unusable until the host is powered off and on",
    ),
    fatal(
        "unexpected WPR2 already up",
        "reset-missing",
        "the GPU was not reset between guests: it needs a reset of function or bus",
    ),
    fatal(
        "RmInitAdapter failed",
        "reset-missing",
        "the driver cannot start the GPU: 0x22:0x56 is a dead bus, 0x62 a GSP that did not boot",
    ),
    fatal(
        "with non-zero usage count",
        "holders",
        "a program has the GPU open and its driver waits: `gpuvm gpu list` names it; end it before the GPU is bound to vfio-pci",
    ),
    fatal(
        "RLIMIT_MEMLOCK",
        "memlock",
        "the guest's memory could not be locked: look at the units of libvirt's daemons",
    ),
    doubt(
        "Unable to locate a BIOS ROM",
        "gpu-rom",
        "the driver found no ROM, as of a GPU that the firmware started: give the guest a ROM file with `<rom file='..'/>`",
    ),
    doubt(
        "Invalid PCI ROM header signature",
        "gpu-rom",
        "the GPU's ROM cannot be read, as of a GPU that the firmware started: give the guest a ROM file with `<rom file='..'/>`",
    ),
    doubt(
        "PCI rejects atomics",
        "pcie-atomics",
        "ROCm needs PCIe atomics: give the GPU a root port of its own in the guest, and a slot of the host whose ports route them",
    ),
    with(
        doubt(
            "AER:",
            "aspm",
            "errors on a PCIe link: look at slot, riser and power saving of links",
        ),
        &["rror"],
    ),
];

/// Lines of a log with the same text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Entry {
    /// The rule that they belong to.
    pub rule: &'static str,
    /// How bad they are.
    pub severity: Severity,
    /// The text that was found, or the meaning of the Xid.
    pub text: &'static str,
    /// How many lines have it.
    pub lines: usize,
    /// Number of the first one, from 1.
    pub first_line: usize,
    /// The first one.
    pub example: String,
    /// Devices that they name, by address.
    pub devices: Vec<Bdf>,
    /// The Xid; `None` if the lines have none that was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xid: Option<u32>,
    /// Its meaning and the remedy.
    pub hint: String,
}

/// The meaning of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// A text, by its place in the table.
    Text(usize),
    /// An Xid about hardware, by its place in NVIDIA's catalog.
    Hardware(usize),
    /// Another one.
    Program,
}

impl Sign {
    fn of_line(line: &str) -> Option<Sign> {
        let has_text = |pattern: &Pattern| {
            let Pattern { text, with, .. } = pattern;
            has(line, text) && (with.is_empty() || with.iter().any(|other| line.contains(other)))
        };
        if let Some(at) = PATTERNS.iter().position(has_text) {
            return Some(Sign::Text(at));
        }
        let number = Xid::parse(line)?.number;
        let at = KINDS.iter().position(|kind| kind.number == number);
        Some(at.map_or(Sign::Program, Sign::Hardware))
    }

    fn order(self) -> usize {
        match self {
            Sign::Text(at) => at,
            Sign::Hardware(at) => PATTERNS.len() + at,
            Sign::Program => usize::MAX,
        }
    }

    /// Makes the entry of its first line.
    fn entry(self, first_line: usize, line: &str) -> Entry {
        let (rule, severity, text, xid, hint) = match self {
            Sign::Text(at) => {
                let Pattern { rule, severity, text, means, .. } = PATTERNS[at];
                (rule, severity, text, None, means.to_owned())
            }
            Sign::Hardware(at) => {
                let kind = &KINDS[at];
                let severity = match kind.action {
                    XidAction::Ignore => Severity::Note,
                    XidAction::RestartProgram => Severity::Warning,
                    XidAction::ResetGpu | XidAction::RestartHost => Severity::Error,
                };
                (UNHEALTHY.id, severity, kind.name, Some(kind.number), remedy(kind))
            }
            Sign::Program => {
                let hint = "not an Xid of hardware: what used the GPU has caused it; NVIDIA's Xid \
                            catalog says more";
                (UNHEALTHY.id, Severity::Warning, "Xid", None, hint.to_owned())
            }
        };
        let shown = line.trim().chars().filter(|c| !c.is_control()).take(SHOWN).collect();
        let devices = Vec::new();
        Entry { rule, severity, text, lines: 0, first_line, example: shown, devices, xid, hint }
    }
}

/// The remedy in NVIDIA's catalog.
fn remedy(kind: &XidKind) -> String {
    let action = match kind.action {
        XidAction::Ignore => "nothing to do at once",
        XidAction::RestartProgram => "restart the guest that has the GPU",
        XidAction::ResetGpu => "reset the GPU before a guest gets it",
        XidAction::RestartHost => "restart the host",
    };
    let support = if kind.support { ", and ask the vendor" } else { "" };
    format!("{action}{support}; `gpuvm gpu list` shows the health of GPUs")
}

/// The most devices listed of one text.
const MOST_DEVICES: usize = 32;
/// The most characters shown of a line.
const SHOWN: usize = 200;

/// Searches a log; each line counts for the first text that it has.
pub fn search<'t>(lines: impl Iterator<Item = &'t str>) -> Vec<Entry> {
    let mut found: Vec<(Sign, Entry)> = Vec::new();
    for (number, line) in (1..).zip(lines) {
        let Some(sign) = Sign::of_line(line) else { continue };
        let at = found.iter().position(|(known, _)| *known == sign).unwrap_or_else(|| {
            found.push((sign, sign.entry(number, line)));
            found.len() - 1
        });
        let entry = &mut found[at].1;
        entry.lines += 1;
        for bdf in addresses(line) {
            if !entry.devices.contains(&bdf) && entry.devices.len() < MOST_DEVICES {
                entry.devices.push(bdf);
            }
        }
    }
    found.sort_by_key(|(sign, _)| sign.order());
    found.iter_mut().for_each(|(_, entry)| entry.devices.sort());
    found.into_iter().map(|(_, entry)| entry).collect()
}

/// Whether a text is a log of the kernel: a line of it is one of journalctl or dmesg.
pub fn is_kernel_log(text: &str) -> bool {
    text.lines().any(|line| line.contains(" kernel: ") || has_time(line) || is_record(line))
}

/// Whether a line begins with dmesg's time, `[   12.345678] `, after a level or none.
fn has_time(line: &str) -> bool {
    let Some((before, rest)) = line.split_once('[') else { return false };
    let Some((time, _)) = rest.split_once(']') else { return false };
    let is_level = |c: char| c.is_ascii_alphanumeric() || "<>: ".contains(c);
    let is_time = |c: char| c.is_ascii_alphanumeric() || ".: +".contains(c);
    before.len() < 24
        && before.chars().all(is_level)
        && (5..40).contains(&time.len())
        && time.chars().all(is_time)
        && time.contains(['.', ':'])
}

/// Whether a line is a record of /dev/kmsg, `6,339,5140900,-;text`, or of journalctl's JSON.
fn is_record(line: &str) -> bool {
    let header = line.split(';').next().unwrap_or_default();
    let mut numbers = header.split(',').take(3);
    line.contains("\"_TRANSPORT\"") && line.contains("\"kernel\"")
        || numbers.clone().count() == 3
            && numbers.all(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether a line has a text; a single word as a word only: `NVRM: Xid (`, not `fooXid`.
fn has(line: &str, text: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric());
    line.match_indices(text).any(|(at, _)| {
        is_edge(line[..at].chars().next_back()) && is_edge(line[at + text.len()..].chars().next())
    })
}

/// The PCI addresses that a line names: `0000:17:00.0`, or `PCI:0000:17:00` as NVIDIA's driver
/// writes it.
fn addresses(line: &str) -> impl Iterator<Item = Bdf> {
    let words = line.split(|c: char| !(c.is_ascii_hexdigit() || c == ':' || c == '.'));
    words.filter_map(|word| {
        let word = word.trim_matches(|c| c == ':' || c == '.');
        // A time of day has two digits where an address has its segment, of four and more.
        let mut fields = word.split(':');
        let first = fields.next().unwrap_or_default();
        let rest = fields.count();
        // The IOMMU's faults leave the segment out: `01:00.0`, which no time of day is.
        if (first.len(), rest) == (2, 1) && word.len() == 7 && word.as_bytes()[5] == b'.' {
            return format!("0000:{word}").parse().ok();
        }
        let with_function = if word.contains('.') { word.to_owned() } else { format!("{word}.0") };
        (first.len() > 3 && rest == 2).then(|| with_function.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pattern_is_found_and_belongs_to_a_rule() {
        for (at, pattern) in PATTERNS.iter().enumerate() {
            assert!(super::super::rules().any(|rule| rule.id == pattern.rule), "{}", pattern.rule);
            let other = pattern.with.first().copied().unwrap_or_default();
            let line = format!("[  12.3] vfio-pci 0000:86:00.0: {} x {other}", pattern.text);
            let found = search([line.as_str()].into_iter());
            assert_eq!((found.len(), found[0].text), (1, PATTERNS[at].text));
            assert_eq!(found[0].devices, ["0000:86:00.0".parse().unwrap()]);
        }
    }

    /// Lines that users posted, one of each kind, in our order.
    const POSTED: [(&str, &str); 16] = [
        ("NVRM: Attempting to remove device 0000:01:00.0 with non-zero usage count!", "holders"),
        ("vfio-pci 0000:01:00.0: not ready 65535ms after FLR; giving up", "reset-missing"),
        ("vfio-pci 0000:01:00.0: not ready 65535ms after bus reset; giving up", "reset-missing"),
        ("nvidia 0000:01:00.0: not ready 65535ms after resume; giving up", "d3cold"),
        (
            "nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device \
             inaccessible",
            "d3cold",
        ),
        ("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:667)", "reset-missing"),
        (
            "DMAR: intel_iommu_map: iommu width (39) is not sufficient for the mapped address \
             (8800001000)",
            "iommu-width",
        ),
        ("vfio_pin_pages_remote: RLIMIT_MEMLOCK (65536) exceeded", "memlock"),
        ("amdgpu 0000:01:00.0: amdgpu: Unable to locate a BIOS ROM", "gpu-rom"),
        (
            "vfio-pci 0000:01:00.0: Invalid PCI ROM header signature: expecting 0xaa55, got \
             0xffff",
            "gpu-rom",
        ),
        ("kfd kfd: skipped device 1002:67df, PCI rejects atomics", "pcie-atomics"),
        (
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=01:00.0 domain=0x000e address=0xfff \
             flags=0x0008]",
            "iommu-fault",
        ),
        (
            "DMAR: [DMA Write NO_PASID] Request device [01:00.0] fault addr 0x8f000000 [fault \
             reason 0x05] PTE Write access is not set",
            "iommu-fault",
        ),
        (
            "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: BAR0 is 0M @ \
             0x0 (PCI:0000:01:00.0)",
            "bar-window",
        ),
        (
            "vfio-pci 0000:01:00.0: Device is ineligible for IOMMU domain attach due to \
             platform RMRR requirement.  Contact your platform vendor.",
            "group-legacy-rmrr",
        ),
        (
            "pci 0000:01:00.0: BAR 1 [mem size 0x800000000 64bit pref]: can't assign; no space",
            "bar-window",
        ),
    ];

    #[test]
    fn posted_lines_are_findings_and_name_their_device() {
        for (line, rule) in POSTED {
            let found = search([line].into_iter());
            assert_eq!(found.iter().map(|entry| entry.rule).collect::<Vec<_>>(), [rule], "{line}");
            let named: Vec<_> = found[0].devices.iter().map(Bdf::to_string).collect();
            let names = line.contains("01:00.0").then(|| "0000:01:00.0".to_owned());
            assert_eq!(named, Vec::from_iter(names), "{line}");
            let level =
                if ["gpu-rom", "pcie-atomics"].contains(&rule) { "warning" } else { "error" };
            assert_eq!(found[0].severity.to_string(), level, "{line}");
        }
        // Messages of healthy machines at each boot.
        let healthy = [
            "pcieport 0000:00:1c.0: AER: enabled with IRQ 122",
            "pci 0000:00:1c.0: bridge window [io size 0x1000]: can't assign; no space",
            "pci 0000:00:1c.0: BAR 13 [io size 0x1000]: can't assign; no space",
            "pnp 00:01: can't reserve [mem 0xfed00000-0xfed003ff]",
            "floppy0: DMA Write underrun",
        ];
        assert_eq!(search(healthy.into_iter()), []);
        // Times of day and numbers are no addresses.
        let none =
            search(["Nov 24 01:00:07 AMD-Vi: IO_PAGE_FAULT at 01:00:07 of 12.5"].into_iter());
        assert!(none[0].devices.is_empty(), "{:?}", none[0].devices);
    }

    #[test]
    fn lines_of_one_text_are_one_entry() {
        let log = [
            "Nov 24 19:00:01 host kernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
            "Nov 24 19:00:02 host kernel: NVRM: Xid (PCI:0000:86:00): 48, pid=1",
            "Nov 24 19:00:02 host kernel: NVRM: Xid (PCI:0000:17:00): 48, pid=1",
            "kernel: OXidation AERO nothing",
            "pcieport 0000:85:00.0: AER: Corrected error received: 0000:86:00.0\u{1b}[31m",
            "",
            "kernel: NVRM: Xid (PCI:0000:86:00): 13, Graphics Exception",
            "kernel: Xid of nothing",
        ];
        let found = search(log.into_iter());
        let said: Vec<_> = found.iter().map(|e| (e.text, e.lines, e.first_line)).collect();
        let memory = ("uncorrectable memory error", 2, 2);
        assert_eq!(said, [("fallen off the bus", 1, 1), ("AER:", 1, 5), memory, ("Xid", 1, 7)]);
        assert_eq!(
            (found[2].devices.len(), found[2].xid, found[2].rule),
            (2, Some(48), UNHEALTHY.id)
        );
        assert!(found[2].hint.starts_with("reset the GPU"), "{}", found[2].hint);
        assert!(!found[1].example.contains('\u{1b}'));
        assert!(search(["\u{0}\u{fffd}", "::", ":.:.:", "19:00:02 Xid"].into_iter()).is_empty());
    }

    #[test]
    fn only_what_has_lines_of_the_kernel_is_its_log() {
        for line in [
            "Nov 24 10:00:00 host kernel: usb 1-1: new device",
            "[    0.000000] Linux version 6.12",
            "[Tue Nov 24 10:00:00 2026] x",
            "<6>[   12.345678] x",
            "kern  :info  : [    1.5] x",
            "6,339,5140900,-;x",
            r#"{"_TRANSPORT":"kernel","MESSAGE":"x"}"#,
        ] {
            assert!(is_kernel_log(line), "{line}");
        }
        let none =
            ["", "-- No entries --\n", "No journal files were found.\n", "[x]", "a,b,c", "1"];
        for text in none {
            assert!(!is_kernel_log(text), "{text}");
        }
    }
}
