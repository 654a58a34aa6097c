//! Versions of the components that a guest runs on. Values and comparisons only.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A version of up to three numbers: `6.12`, `10.0.2`; what follows them in a name is not looked
/// at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Reads the leading numbers of a text, at least two: `6.1.0-18-amd64` is 6.1.0. None if it has
    /// fewer.
    pub fn read(text: &str) -> Option<Version> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let mut numbers = text[..end].split('.').map(|number| number.parse().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        Some(Version(major, minor, numbers.next().flatten().unwrap_or(0)))
    }

    /// Converts libvirt's version number: a million for the first component, a thousand for the
    /// second.
    pub fn of_libvirt(number: u32) -> Version {
        Version(number / 1_000_000, number / 1000 % 1000, number % 1000)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version(major, minor, micro) = self;
        write!(f, "{major}.{minor}.{micro}")
    }
}

/// What a hypervisor says of its own versions; none: it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Versions {
    /// libvirt's, of the daemon.
    pub libvirt: Option<Version>,
    /// That of the QEMU that guests run in.
    pub qemu: Option<Version>,
}

/// The oldest libvirt of which it is measured that its schema has `dma_translation`.
const DMA_TRANSLATION: Version = Version(11, 3, 0);

impl Versions {
    /// Whether an IOMMU that only remaps interrupts translates DMA all the same: libvirt cannot
    /// tell it not to.
    pub fn translates_dma(&self) -> bool {
        self.libvirt.is_some_and(|version| version < DMA_TRANSLATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_kernels_and_distributions_write() {
        for (text, version) in [
            ("6.12", Some(Version(6, 12, 0))),
            ("6.1.0-18-amd64", Some(Version(6, 1, 0))),
            ("5.15.0-1040-nvidia", Some(Version(5, 15, 0))),
            ("10.0.2.1", Some(Version(10, 0, 2))),
            ("6.18.44-fc", Some(Version(6, 18, 44))),
            ("6", None),
            ("", None),
            ("v6.1", None),
            (".6.1", None),
            ("6.99999999999", None),
        ] {
            assert_eq!(Version::read(text), version, "{text}");
        }
        assert_eq!(Version::of_libvirt(11_003_000), Version(11, 3, 0));
        assert!(Version(6, 9, 0) < Version(6, 12, 0));
        assert_eq!(Version(9, 2, 0).to_string(), "9.2.0");
    }
}
