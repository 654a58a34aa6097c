//! What the vendor's driver of a GPU offers of vGPUs, as data, and what the names of types tell.

use crate::bdf::Bdf;
use crate::memsize::MemSize;
use serde::{Deserialize, Serialize};

/// A function's offer of vGPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "interface", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Vgpu {
    /// Mediated devices: `mdev_supported_types` at a card, or at each of its virtual functions.
    Mdev {
        /// Types, by id.
        types: Vec<MdevType>,
        /// Mediated devices that exist.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        devices: Vec<Mdev>,
    },
    /// A virtual function on the vendor's own VFIO driver: `nvidia/current_vgpu_type`.
    Vfio {
        /// Number of the type that is set; 0: none.
        current: u32,
        /// Numbers of the types that can be set now.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        creatable: Vec<u32>,
    },
    /// A card with such virtual functions.
    Card {
        /// Types that any of them offers, by number.
        types: Vec<VfioType>,
    },
}

/// A type of mediated devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MdevType {
    /// Name of its directory (`nvidia-468`).
    pub id: String,
    /// Its name, without the vendor's in front (`A100-4C`).
    pub name: String,
    /// How many can be created now.
    pub available: u32,
    /// Frame buffer of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_buffer_kib: Option<MemSize>,
    /// How many a card can have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_instances: Option<u32>,
}

/// A mediated device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Mdev {
    /// Its UUID.
    pub uuid: String,
    /// Id of its type; `None` if not readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub type_id: Option<String>,
}

/// A type of virtual functions on the vendor's VFIO driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VfioType {
    /// Its number.
    pub id: u32,
    /// Its name, without the vendor's in front (`H200X-141C`).
    pub name: String,
    /// The GPU instances that back it; `None` if MIG does not, or is off, or NVML was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigInstances>,
}

/// GPU instances of MIG that back vGPUs of a type, as NVML reports them. Numbers that it
/// does not report are unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MigInstances {
    /// Number of their profile, which `nvidia-smi mig -cgi` takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<u32>,
    /// Instances of this profile that the card has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// The most vGPUs of the type in one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vgpus_each: Option<u32>,
}

impl MigInstances {
    /// Whether it is known how many vGPUs they have room for.
    pub fn are_known(self) -> bool {
        self.count.is_some() && self.vgpus_each.is_some()
    }
}

/// A vGPU that is planned or recorded for a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GuestVgpu {
    /// The card that it is a share of.
    pub card: Bdf,
    /// The virtual function that is it, or the parent of its mediated device.
    pub function: Bdf,
    /// The type: its number, or the name of its directory below `mdev_supported_types`.
    pub type_id: String,
    /// The type's name.
    pub name: String,
    /// UUID of its mediated device; `None` if it is a virtual function, or not chosen yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

impl GuestVgpu {
    /// The number of its type; `None` if it is a mediated device.
    pub fn number(&self) -> Option<u32> {
        self.type_id.parse().ok().filter(|_| self.uuid.is_none())
    }

    /// Whether it is a mediated device.
    pub fn is_mdev(&self) -> bool {
        self.number().is_none()
    }

    /// Whether it is the mediated device of this UUID.
    pub fn is_device(&self, uuid: &str) -> bool {
        self.uuid.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(uuid))
    }
}

/// A GPU's MIG mode, as NVML reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Mig {
    /// Whether it is on.
    pub enabled: bool,
    /// Whether it is on after the next reset of the GPU.
    pub pending: bool,
}

impl Mig {
    /// The mode, in words.
    pub fn words(self) -> &'static str {
        match (self.enabled, self.pending) {
            (true, true) => "on",
            (true, false) => "on, off after a reset",
            (false, true) => "off, on after a reset",
            (false, false) => "off",
        }
    }
}

/// Returns a type's name without the vendor's in front: `NVIDIA H200X-18C`, `GRID A100-4C`.
pub fn plain_name(name: &str) -> &str {
    let name = name.trim();
    ["NVIDIA ", "GRID "].iter().fold(name, |name, prefix| name.strip_prefix(prefix).unwrap_or(name))
}

/// Whether a request means a type: by its name, the last word of it, or its id; whatever the case,
/// with or without the vendor's name in front.
pub fn is_type_named(wanted: &str, name: &str, id: &str) -> bool {
    let wanted = plain_name(wanted);
    let last = name.rsplit(' ').next().unwrap_or_default();
    [name, last, id].iter().any(|word| word.eq_ignore_ascii_case(wanted))
}

/// Whether two types are of the same model of GPU: their names differ after the first `-` only.
pub fn are_of_one_model(one: &str, other: &str) -> bool {
    let model = |name: &str| plain_name(name).split('-').next().map(str::to_ascii_lowercase);
    model(one) == model(other)
}

/// Returns the frame buffer that a type's name tells: the number before the letter of its series,
/// in GiB; 0 is half a GiB (`M60-0B`). `None` if the name has another form.
pub fn frame_buffer(name: &str) -> Option<MemSize> {
    let last = name.rsplit('-').next().filter(|last| *last != name)?;
    let digits = last.bytes().take_while(u8::is_ascii_digit).count();
    let (number, series) = last.split_at(digits);
    let is_series = series.starts_with(['A', 'B', 'C', 'Q', 'G']);
    match number.parse::<u64>().ok().filter(|_| is_series)? {
        0 => Some(MemSize::from_kib(512 << 10)),
        gib @ 1..=4096 => Some(MemSize::from_gib(gib)),
        _ => None,
    }
}

/// Whether a type is backed by a GPU instance of MIG: its name has the number of slices before the
/// frame buffer (`A100-1-5C`, `DC-1-2Q`).
pub fn is_mig_backed(name: &str) -> bool {
    let mut words = name.rsplit('-');
    let has_slices = words.nth(1).is_some_and(|slices| slices.parse::<u8>().is_ok());
    has_slices && frame_buffer(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_buffer_is_in_the_name() {
        for (name, gib, is_mig) in [
            ("H200X-141C", Some(141), false),
            ("A100-4C", Some(4), false),
            ("A100-1-5C", Some(5), true),
            ("H100-1-10CME", Some(10), true),
            ("RTX Pro 6000 Blackwell DC-1-2Q", Some(2), true),
            ("T4-1B4", Some(1), false),
            ("mtty-1", None, false),
            ("18C", None, false),
            ("", None, false),
            ("X-99999C", None, false),
        ] {
            assert_eq!(frame_buffer(name), gib.map(MemSize::from_gib), "{name}");
            assert_eq!(is_mig_backed(name), is_mig, "{name}");
        }
        assert_eq!(frame_buffer("M60-0B"), Some(MemSize::from_kib(512 << 10)));
        for name in ["NVIDIA H200X-18C", "H200X-18C", " GRID H200X-18C "] {
            assert_eq!(plain_name(name), "H200X-18C");
        }
    }
}
