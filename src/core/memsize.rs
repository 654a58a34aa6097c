//! Amounts of memory, in KiB as libvirt and the kernel count them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::str::FromStr;

/// The most decimals that a size may have.
const MOST_DECIMALS: usize = 9;

/// An amount of memory in KiB. JSON shows the number of KiB.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct MemSize(u64);

/// The error of a text that is not an amount of memory.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "size-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum MemSizeError {
    /// Not a number with a known unit.
    #[error("`{text}` is not a size such as 180G, 1.5T or 4194304K (powers of 1024)")]
    Form { text: String },
    /// A number alone, which other tools read as KiB, MiB or bytes.
    #[error("`{text}` has no unit: did you mean {text}G?")]
    NoUnit { text: String },
    /// Larger than 2^63 bytes.
    #[error("`{text}` is more memory than any machine has")]
    TooLarge { text: String },
}

impl MemSize {
    /// An amount of KiB.
    pub const fn from_kib(kib: u64) -> MemSize {
        MemSize(kib)
    }

    /// An amount of GiB.
    pub const fn from_gib(gib: u64) -> MemSize {
        MemSize(gib << 20)
    }

    /// The amount in KiB.
    pub const fn kib(self) -> u64 {
        self.0
    }

    /// Whether it is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The largest multiple of `unit` that is not above `self`; `unit` is not zero.
    pub fn round_down(self, unit: MemSize) -> MemSize {
        MemSize(self.0 / unit.0 * unit.0)
    }

    /// The smallest multiple of `unit` that is not below `self`; `unit` is not zero.
    pub fn round_up(self, unit: MemSize) -> MemSize {
        MemSize(self.0.div_ceil(unit.0).saturating_mul(unit.0))
    }

    /// `self` times `part` over `whole`, rounded down to KiB; `whole` is not zero.
    pub fn share(self, part: u64, whole: u64) -> MemSize {
        let kib = u128::from(self.0) * u128::from(part) / u128::from(whole);
        MemSize(u64::try_from(kib).unwrap_or(u64::MAX))
    }

    /// The exact amount as an option takes it, in the largest unit that divides it: `180G`.
    pub fn typed(self) -> String {
        let units = [(20u32, "G"), (10, "M")];
        match units.into_iter().find(|(shift, _)| self.0.is_multiple_of(1 << shift)) {
            Some((shift, unit)) => format!("{}{unit}", self.0 >> shift),
            None => format!("{}K", self.0),
        }
    }

    /// `self` minus `other`, or zero if `other` is larger.
    pub fn saturating_sub(self, other: MemSize) -> MemSize {
        MemSize(self.0.saturating_sub(other.0))
    }
}

impl Add for MemSize {
    type Output = MemSize;
    fn add(self, other: MemSize) -> MemSize {
        MemSize(self.0.saturating_add(other.0))
    }
}

impl Sub for MemSize {
    type Output = MemSize;
    fn sub(self, other: MemSize) -> MemSize {
        self.saturating_sub(other)
    }
}

impl Sum for MemSize {
    fn sum<I: Iterator<Item = MemSize>>(iter: I) -> MemSize {
        iter.fold(MemSize(0), Add::add)
    }
}

impl fmt::Display for MemSize {
    /// Prints the largest binary unit with at most one decimal, JSON has the exact figure.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30u32, "TiB"), (20, "GiB"), (10, "MiB")];
        let Some((shift, unit)) = units.into_iter().find(|(shift, _)| self.0 >> shift != 0) else {
            return write!(f, "{} KiB", self.0);
        };
        if self.0.is_multiple_of(1 << shift) {
            write!(f, "{} {unit}", self.0 >> shift)
        } else {
            #[allow(clippy::cast_precision_loss)] // one decimal is printed
            let value = self.0 as f64 / (1u64 << shift) as f64;
            write!(f, "{value:.1} {unit}")
        }
    }
}

impl FromStr for MemSize {
    type Err = MemSizeError;

    /// Reads a number with K, M, G or T (also KiB or KB, both 1024 bytes, as `virt-install` and
    /// QEMU do); a bare number is refused, since similar tools read it as KiB, MiB or bytes. Up to
    /// nine decimals are allowed, as in `1.9T`; the result is rounded up to a whole KiB.
    fn from_str(text: &str) -> Result<MemSize, MemSizeError> {
        let short = || text.chars().take(40).collect::<String>();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = text.split_at(digits);
        let (decimals, unit) = match rest.strip_prefix('.') {
            None => ("", rest),
            Some(rest) => rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count()),
        };
        let has_point = rest.starts_with('.');
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "k" | "kib" | "kb" => 0,
            "m" | "mib" | "mb" => 10,
            "g" | "gib" | "gb" => 20,
            "t" | "tib" | "tb" => 30,
            "" if !number.is_empty() && has_point != decimals.is_empty() => {
                return Err(MemSizeError::NoUnit { text: short() });
            }
            _ => return Err(MemSizeError::Form { text: short() }),
        };
        if number.is_empty() || has_point == decimals.is_empty() || decimals.len() > MOST_DECIMALS {
            return Err(MemSizeError::Form { text: short() });
        }
        let number: u64 = number.parse().map_err(|_| MemSizeError::TooLarge { text: short() })?;
        // At most nine digits, so nothing is lost.
        let scale = 10_u128.pow(u32::try_from(decimals.len()).unwrap_or_default());
        let part = decimals.parse::<u128>().unwrap_or_default();
        let kib = ((u128::from(number) * scale + part) << shift).div_ceil(scale);
        match u64::try_from(kib) {
            Ok(kib) if kib < 1 << 53 => Ok(MemSize(kib)),
            _ => Err(MemSizeError::TooLarge { text: short() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_values_are_read_back() {
        for text in ["180G", "1536M", "4194305K", "2048G"] {
            assert_eq!(text.parse::<MemSize>().unwrap().typed(), text);
        }
    }

    #[test]
    fn a_number_alone_is_answered_with_a_unit() {
        for text in ["64", "1.5"] {
            let error = text.parse::<MemSize>().unwrap_err().to_string();
            assert_eq!(error, format!("`{text}` has no unit: did you mean {text}G?"));
        }
    }

    #[test]
    fn refuses_invalid_sizes() {
        for text in [
            "",
            "G",
            "12",
            "1.G",
            ".5G",
            "1.5",
            "1.5.2G",
            "1,5G",
            "1.0123456789G",
            "-1G",
            "1 0G",
            "1P",
            "0x10G",
            "99999999999999999999G",
            "9007199254740992K",
        ] {
            assert!(text.parse::<MemSize>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn reads_units_of_1024() {
        for (text, kib) in [
            ("4K", 4),
            ("2M", 2048),
            ("1 GiB", 1 << 20),
            ("2TB", 2 << 30),
            ("0g", 0),
            ("1.5G", 1536 << 10),
            ("1.9T", 2_040_109_466),
            ("0.25 MiB", 256),
            ("0.001K", 1),
        ] {
            assert_eq!(text.parse::<MemSize>().unwrap().kib(), kib, "{text}");
        }
    }

    #[test]
    fn prints_for_people() {
        for (kib, text) in
            [(4, "4 KiB"), (2048, "2 MiB"), (1_516_912_640, "1.4 TiB"), (189_614_080, "180.8 GiB")]
        {
            assert_eq!(MemSize::from_kib(kib).to_string(), text);
        }
    }

    #[test]
    fn a_share_does_not_overflow() {
        assert_eq!(MemSize::from_kib(u64::MAX).share(1, 1).kib(), u64::MAX);
        assert_eq!(MemSize::from_kib(1_516_912_640).share(1, 16).kib(), 94_807_040);
    }
}
