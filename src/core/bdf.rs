//! PCI addresses.
//!
//! A [`Bdf`] can only hold an address that PCI can express; nothing is masked. It does not know
//! which devices exist.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A PCI function's address: segment, bus, device, function.
///
/// Ordering is that of `lspci`: by segment, bus, device, function. Segments may exceed 16 bits
/// (Intel VMD shows `10000:`), so they are kept in 32.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf {
    /// PCI segment, libvirt's `domain=`.
    segment: u32,
    /// Bus, 0 to 255.
    bus: u8,
    /// Device, libvirt's `slot=`, 0 to 31.
    device: u8,
    /// Function, 0 to 7.
    function: u8,
}

/// The error of a text or number that is not a PCI address.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "pci-address-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum BdfError {
    /// The text does not have the form of an address.
    #[error("`{text}` is not a PCI address such as 0000:34:00.0")]
    Form { text: String },
    /// A field is above PCI's range.
    #[error("PCI {field} {value:#x} is above {max:#x}")]
    Range { field: &'static str, value: u32, max: u32 },
}

impl Bdf {
    /// Makes an address; `device` is at most 31 and `function` at most 7.
    pub fn new(segment: u32, bus: u8, device: u8, function: u8) -> Result<Bdf, BdfError> {
        for (field, value, max) in [("device", device, 31), ("function", function, 7)] {
            if value > max {
                return Err(BdfError::Range { field, value: value.into(), max: max.into() });
            }
        }
        Ok(Bdf { segment, bus, device, function })
    }

    /// Returns a number that sorts like the address, for use as a lookup key.
    pub fn key(self) -> u64 {
        let [bus, device, function] = [self.bus, self.device, self.function].map(u64::from);
        u64::from(self.segment) << 24 | bus << 16 | device << 8 | function
    }

    /// PCI segment, libvirt's `domain=`.
    pub fn segment(self) -> u32 {
        self.segment
    }

    /// Bus, 0 to 255.
    pub fn bus(self) -> u8 {
        self.bus
    }

    /// Device, libvirt's `slot=`, 0 to 31.
    pub fn device(self) -> u8 {
        self.device
    }

    /// Function, 0 to 7.
    pub fn function(self) -> u8 {
        self.function
    }

    /// Whether two functions are of one slot.
    pub fn is_of_slot(self, other: Bdf) -> bool {
        let slot = |bdf: Bdf| (bdf.segment, bdf.bus, bdf.device);
        slot(self) == slot(other)
    }
}

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bdf { segment, bus, device, function } = self;
        write!(f, "{segment:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl fmt::Debug for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Bdf {
    type Err = BdfError;

    /// Reads `0000:34:00.0` or, in segment 0, `34:00.0`, as sysfs, `lspci` and `nvidia-smi` print
    /// them.
    fn from_str(text: &str) -> Result<Bdf, BdfError> {
        let bad = || BdfError::Form { text: text.chars().take(40).collect() };
        let hex = |part: &str, longest: usize| {
            let good =
                (1..=longest).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
            if good { u32::from_str_radix(part, 16).map_err(|_| bad()) } else { Err(bad()) }
        };
        let (rest, function) = text.rsplit_once('.').ok_or_else(bad)?;
        let (rest, device) = rest.rsplit_once(':').ok_or_else(bad)?;
        let (segment, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        let narrow = |value: u32| u8::try_from(value).map_err(|_| bad());
        let (bus, device) = (narrow(hex(bus, 2)?)?, narrow(hex(device, 2)?)?);
        Bdf::new(hex(segment, 8)?, bus, device, narrow(hex(function, 1)?)?)
    }
}

impl Serialize for Bdf {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bdf {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Bdf, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_invalid_addresses() {
        let bad = [
            "",
            ":",
            ".",
            "34",
            "34:00",
            "0000:34:00",
            "0000:34:00.8",
            "0000:34:20.0",
            "0000:134:00.0",
            "0000:34:00.00",
            "g000:34:00.0",
            "+1:34:00.0",
            "0000:34:00.0 ",
            "123456789:34:00.0",
            "::.",
            "0000:34:00.-1",
            "ä:34:00.0",
        ];
        for text in bad {
            assert!(text.parse::<Bdf>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn reads_every_spelling_and_prints_one() {
        for (text, printed) in [
            ("0000:34:00.0", "0000:34:00.0"),
            ("34:00.0", "0000:34:00.0"),
            ("00000000:E7:1F.7", "0000:e7:1f.7"),
            ("10000:01:00.0", "10000:01:00.0"),
        ] {
            assert_eq!(text.parse::<Bdf>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn orders_as_lspci_does() {
        let mut all: Vec<Bdf> = ["0001:00:00.0", "0000:a0:00.0", "0000:0a:1f.0", "0000:0a:02.1"]
            .map(|t| t.parse().unwrap())
            .to_vec();
        all.sort();
        let printed: Vec<String> = all.iter().map(Bdf::to_string).collect();
        assert_eq!(printed, ["0000:0a:02.1", "0000:0a:1f.0", "0000:a0:00.0", "0001:00:00.0"]);
    }
}
