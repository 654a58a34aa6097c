//! Access Control Services, Address Translation Services and device control of a function, from
//! its config space (PCI Express Base Specification 6.0: 7.5.3.4, 7.7.11, 10.5.1).

use serde::{Deserialize, Serialize};

/// Bits of ACS capability and control.
pub mod bits {
    /// Source validation: a request carries the id of a function below the port.
    pub const SV: u16 = 1 << 0;
    /// Translation blocking: translated requests are rejected.
    pub const TB: u16 = 1 << 1;
    /// Peer-to-peer requests are redirected to the root complex.
    pub const RR: u16 = 1 << 2;
    /// Peer-to-peer completions are redirected to the root complex.
    pub const CR: u16 = 1 << 3;
    /// Upstream forwarding: requests redirected below continue upwards.
    pub const UF: u16 = 1 << 4;
    /// Egress control: a vector decides which peers are reached.
    pub const EC: u16 = 1 << 5;
    /// Direct translated: translated requests go to the peer, whatever is redirected.
    pub const DT: u16 = 1 << 6;
    /// Bits without which functions of different IOMMU groups reach each other: those that Linux
    /// requires between groups.
    pub const ISOLATING: u16 = SV | RR | CR | UF;
    /// Bits that redirect, of those.
    pub const REDIRECTING: u16 = RR | CR | UF;
}

/// ACS of a port or a function; both registers are 0 if it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Acs {
    /// Capability: the bits that it has.
    pub cap: u16,
    /// Control: the bits that are on.
    pub ctl: u16,
}

impl Acs {
    /// Whether one of these bits is on.
    pub fn is_on(self, bits: u16) -> bool {
        self.ctl & bits != 0
    }

    /// Returns the isolating bits that it has. One that it lacks is hard-wired to on, by the
    /// specification.
    pub fn isolating(self) -> u16 {
        self.cap & bits::ISOLATING
    }

    /// Returns the isolating bits that it has and that are off.
    pub fn open(self) -> u16 {
        self.isolating() & !self.ctl
    }
}

/// Names bits as the specification does: `SV, RR`.
pub fn names(of: u16) -> String {
    let all = [
        (bits::SV, "SV"),
        (bits::TB, "TB"),
        (bits::RR, "RR"),
        (bits::CR, "CR"),
        (bits::UF, "UF"),
        (bits::EC, "EC"),
        (bits::DT, "DT"),
    ];
    let named = all.into_iter().filter(|(bit, _)| of & bit != 0).map(|(_, name)| name);
    named.collect::<Vec<_>>().join(", ")
}

/// ATS of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Ats {
    /// Whether it has the capability.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub present: bool,
    /// Whether it is on. Linux turns it on while the function is attached to an IOMMU domain, so
    /// with `iommu=pt` only while a guest has the function.
    pub enabled: bool,
}

/// The default of [`Ats::present`].
fn yes() -> bool {
    true
}

/// Whether [`Ats::present`] is not written.
fn is_yes(present: &bool) -> bool {
    *present
}

/// Registers of a function; a value that could not be read is none, never "off".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registers {
    /// ACS.
    pub acs: Option<Acs>,
    /// ATS.
    pub ats: Option<Ats>,
    /// Device control of the PCI Express capability.
    pub devctl: Option<u16>,
}

/// Bit of device control: relaxed ordering may be used.
const RELAXED: u16 = 1 << 4;
/// Offset of the first extended capability, and the end of config space.
const EXTENDED: u16 = 0x100;
/// See [`EXTENDED`].
const END: u16 = 0x1000;
const ACS: u16 = 0x000d;
const ATS: u16 = 0x000f;
/// Id of the PCI Express capability.
const EXPRESS: u8 = 0x10;
/// The value that a function returns if it does not answer.
const ONES: u32 = u32::MAX;

/// Lower and upper half of a double word.
fn halves(word: u32) -> (u16, u16) {
    ((word & 0xffff) as u16, (word >> 16) as u16)
}

/// Intel's 100 and 200 series root ports, whose ACS registers are double words at +4 and +8
/// (Linux, drivers/pci/quirks.c).
fn has_wide_acs(vendor: u16, device: u16) -> bool {
    vendor == 0x8086
        && matches!(
            device,
            0xa110..=0xa11f | 0xa167..=0xa16a | 0xa290..=0xa29f | 0xa2e7..=0xa2ee | 0x9d10..=0x9d1b
        )
}

impl Registers {
    /// Reads them; `read` returns the double word at an offset, none beyond the readable part.
    pub fn read(ids: (u16, u16), mut read: impl FnMut(u16) -> Option<u32>) -> Registers {
        if read(0).is_none_or(|ids| ids == ONES) {
            return Registers::default();
        }
        let devctl = devctl(&mut read);
        let mut found = extended(&mut read);
        if has_wide_acs(ids.0, ids.1) {
            found.acs = None;
        }
        Registers { devctl, ..found }
    }
}

/// Returns the offset of ACS control; `None` if the function has none, or it cannot be read.
pub fn control_at(ids: (u16, u16), read: impl Fn(u16) -> Option<u32>) -> Option<u16> {
    let mut at = EXTENDED;
    for _ in 0..(END - EXTENDED) / 8 {
        let word = read(at).filter(|word| *word != ONES)?;
        let (id, next) = (halves(word).0, (word >> 20) as u16 & 0xffc);
        if id == ACS {
            return Some(at + 6).filter(|_| !has_wide_acs(ids.0, ids.1));
        }
        if next < EXTENDED {
            return None;
        }
        at = next;
    }
    None
}

/// Whether device control has relaxed ordering on.
pub fn is_relaxed(devctl: u16) -> bool {
    devctl & RELAXED != 0
}

/// Follows the list of capabilities to the PCI Express capability.
fn devctl(read: &mut impl FnMut(u16) -> Option<u32>) -> Option<u16> {
    let has_list = halves(read(4)?).1 & 1 << 4 != 0;
    let mut at = if has_list { halves(read(0x34)?).0 & 0xfc } else { 0 };
    // A cyclic list would be followed for ever: no more than fit.
    for _ in 0..(EXTENDED - 0x40) / 4 {
        if at < 0x40 {
            break;
        }
        let word = read(at).filter(|word| *word != ONES)?;
        let [id, next, ..] = word.to_le_bytes();
        if id == EXPRESS {
            return read(at + 8).filter(|word| *word != ONES).map(|word| halves(word).0);
        }
        at = u16::from(next & 0xfc);
    }
    None
}

/// Follows the list of extended capabilities. If it breaks off, missing capabilities are unknown.
fn extended(read: &mut impl FnMut(u16) -> Option<u32>) -> Registers {
    let mut found = Registers::default();
    let mut at = EXTENDED;
    for _ in 0..(END - EXTENDED) / 8 {
        let Some(word) = read(at).filter(|word| *word != ONES) else { return found };
        let (id, next) = (halves(word).0, (word >> 20) as u16 & 0xffc);
        // Nothing is where the list says that something is.
        if id == u16::MAX || word == 0 && at != EXTENDED {
            return found;
        }
        if [ACS, ATS].contains(&id) {
            let Some(both) = read(at + 4).filter(|word| *word != ONES) else { return found };
            let (cap, ctl) = halves(both);
            if id == ACS {
                found.acs.get_or_insert(Acs { cap, ctl });
            } else {
                found.ats.get_or_insert(Ats { present: true, enabled: ctl & 1 << 15 != 0 });
            }
        }
        if next == 0 {
            // The end: missing capabilities do not exist.
            found.acs.get_or_insert(Acs { cap: 0, ctl: 0 });
            found.ats.get_or_insert(Ats { present: false, enabled: false });
            return found;
        }
        if next < EXTENDED {
            return found;
        }
        at = next;
    }
    found
}
