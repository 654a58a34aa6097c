//! Xid messages, which the NVIDIA driver writes to the kernel's log when a GPU fails. Parses lines
//! of text, from the journal, dmesg or the kernel's buffer; reads no log.
//!
//! The form and the actions are those of NVIDIA's public Xid catalog (gpuvm-hardware(7), HEALTH OF
//! GPUS).

use crate::bdf::Bdf;

/// The driver's mark of such a line.
const MARK: &str = "NVRM: Xid (";

/// One message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid<'t> {
    /// The GPU.
    pub gpu: Bdf,
    /// The number.
    pub number: u32,
    /// The text after the number, without a separator; may be empty.
    pub text: &'t str,
}

/// The immediate action in NVIDIA's catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum XidAction {
    /// Nothing.
    Ignore,
    /// Restart the program, or, of a GPU that is passed through, the guest's.
    RestartProgram,
    /// Reset the GPU.
    ResetGpu,
    /// Restart the host.
    RestartHost,
}

/// A number of the catalog for a hardware fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XidKind {
    /// The number.
    pub number: u32,
    /// Its meaning.
    pub name: &'static str,
    /// The immediate action.
    pub action: XidAction,
    /// Whether the vendor or support is to be asked when it was logged.
    pub support: bool,
}

/// Makes an entry of the table.
const fn kind(number: u32, name: &'static str, action: XidAction, support: bool) -> XidKind {
    XidKind { number, name, action, support }
}

/// Numbers of hardware faults, with the catalog's immediate action; programs cause the others. For
/// 48 and 74 the catalog names a flow chart, whose text asks for a reset.
pub const KINDS: [XidKind; 15] = [
    kind(48, "uncorrectable memory error", XidAction::ResetGpu, false),
    kind(62, "halted microcontroller", XidAction::ResetGpu, true),
    kind(63, "row remapped or page retired", XidAction::Ignore, false),
    kind(64, "failed to remap a row or retire a page", XidAction::ResetGpu, true),
    kind(74, "NVLink error", XidAction::ResetGpu, true),
    kind(79, "fallen off the bus", XidAction::RestartHost, true),
    kind(92, "high rate of corrected memory errors", XidAction::Ignore, true),
    kind(94, "contained memory error", XidAction::RestartProgram, false),
    kind(95, "uncontained memory error", XidAction::ResetGpu, false),
    kind(109, "context switch timeout", XidAction::ResetGpu, true),
    kind(110, "security fault", XidAction::ResetGpu, false),
    kind(119, "GSP did not answer", XidAction::ResetGpu, false),
    kind(120, "GSP error", XidAction::ResetGpu, false),
    kind(136, "NVLink training failed", XidAction::ResetGpu, false),
    kind(140, "unrecovered memory error", XidAction::ResetGpu, true),
];

impl<'t> Xid<'t> {
    /// Parses a line with anything before the driver's mark; `None` if it has no such message.
    pub fn parse(line: &'t str) -> Option<Xid<'t>> {
        let (_, rest) = line.split_once(MARK)?;
        let (place, rest) = rest.split_once("): ")?;
        // `PCI:0000:41:00`, with a MIG instance behind it, or before 2014 without `PCI:`.
        let place = place.split_whitespace().next()?;
        let place = place.strip_prefix("PCI:").unwrap_or(place);
        let gpu = if place.contains('.') { place.parse() } else { format!("{place}.0").parse() };
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, text) = rest.split_at(end);
        let text = text.trim_start_matches([',', ':', ' ']).trim_end();
        Some(Xid { gpu: gpu.ok()?, number: number.parse().ok()?, text })
    }

    /// The catalog's entry; none if the number is about a program, or not in the table.
    pub fn kind(&self) -> Option<&'static XidKind> {
        KINDS.iter().find(|kind| kind.number == self.number)
    }
}

/// The messages in a text, in its order.
pub fn xids(text: &str) -> impl Iterator<Item = Xid<'_>> {
    text.lines().filter_map(Xid::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_the_driver_is_read() {
        for (line, gpu, number, text) in [
            (
                "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen \
                 off the bus.",
                "0000:41:00.0",
                79,
                "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            ),
            (
                "NVRM: Xid (0000:03:00): 14, Channel 00000001",
                "0000:03:00.0",
                14,
                "Channel 00000001",
            ),
            (
                "Nov 24 19:00:01 host kernel: NVRM: Xid (PCI:0000:b7:00 GPU-I:05): 94, pid=7\r",
                "0000:b7:00.0",
                94,
                "pid=7",
            ),
            ("3,9,1,-;NVRM: Xid (PCI:10000:b7:00): 64", "10000:b7:00.0", 64, ""),
            ("[  9.1] NVRM: Xid (PCI:0000:41:00.0): 48: x", "0000:41:00.0", 48, "x"),
        ] {
            let found = Xid::parse(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(
                (found.gpu.to_string().as_str(), found.number, found.text),
                (gpu, number, text)
            );
        }
    }

    #[test]
    fn anything_else_is_no_message() {
        for line in [
            "",
            "NVRM: Xid",
            "NVRM: Xid (",
            "NVRM: Xid (): 79",
            "NVRM: Xid (PCI:0000:41:00) 79",
            "NVRM: Xid (PCI:0000:41:00): ",
            "NVRM: Xid (PCI:0000:41:00): x79",
            "NVRM: Xid (PCI:0000:41:00): 99999999999",
            "NVRM: Xid (PCI:zz:41:00): 79",
            "NVRM: Xid (PCI:0000:41:00.9): 79",
            "NVRM: GPU at PCI:0000:41:00: GPU-8b1c1a7d-0d4e-41f2-9c3a-6f00d5e1b2c3",
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20009, Non-fatal",
        ] {
            assert_eq!(Xid::parse(line), None, "{line}");
        }
    }

    #[test]
    fn the_table_is_sorted_and_a_programs_error_is_not_in_it() {
        assert!(KINDS.is_sorted_by(|a, b| a.number < b.number));
        let text = "NVRM: Xid (PCI:0000:41:00): 31, pid=1\nx\nNVRM: Xid (PCI:0000:41:00): 79";
        let kinds: Vec<_> = xids(text).map(|xid| xid.kind().map(|kind| kind.action)).collect();
        assert_eq!(kinds, [None, Some(XidAction::RestartHost)]);
    }
}
