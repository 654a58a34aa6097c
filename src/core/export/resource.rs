//! Names of devices on other platforms: resources of Kubernetes, PCI aliases of Nova.

use super::PlatformError;
use crate::topology::model::{ids, model};
use crate::topology::vendor::{VENDOR_MELLANOX, VENDOR_NVIDIA};
use crate::topology::{DeviceKind, PciDevice};
use std::str::FromStr;

/// Resources that NVIDIA's device plugin for KubeVirt announces, by device id: names of the PCI ID
/// list, upper case, blanks, slashes and dots as underscores, all else left out
/// (gpuvm-export(7), RESOURCE NAMES).
const NVIDIA: &[(u16, &str)] = &[
    (0x15f8, "GP100GL_TESLA_P100_PCIE_16GB"),
    (0x15f9, "GP100GL_TESLA_P100_SXM2_16GB"),
    (0x1b38, "GP102GL_TESLA_P40"),
    (0x1db1, "GV100GL_TESLA_V100_SXM2_16GB"),
    (0x1db4, "GV100GL_TESLA_V100_PCIE_16GB"),
    (0x1db5, "GV100GL_TESLA_V100_SXM2_32GB"),
    (0x1db6, "GV100GL_TESLA_V100_PCIE_32GB"),
    (0x1db8, "GV100GL_TESLA_V100_SXM3_32GB"),
    (0x1e04, "TU102_GEFORCE_RTX_2080_TI"),
    (0x1e30, "TU102GL_QUADRO_RTX_6000_8000"),
    (0x1eb8, "TU104GL_TESLA_T4"),
    (0x20b0, "GA100_A100_SXM4_40GB"),
    (0x20b2, "GA100_A100_SXM4_80GB"),
    (0x20b3, "GA100_A100SXM64GB"),
    (0x20b5, "GA100_A100_PCIE_80GB"),
    (0x20b7, "GA100GL_A30_PCIE"),
    (0x20f1, "GA100_A100_PCIE_40GB"),
    (0x20f3, "GA100_A800SXM480GB"),
    (0x2204, "GA102_GEFORCE_RTX_3090"),
    (0x2206, "GA102_GEFORCE_RTX_3080"),
    (0x2230, "GA102GL_RTX_A6000"),
    (0x2231, "GA102GL_RTX_A5000"),
    (0x2235, "GA102GL_A40"),
    (0x2236, "GA102GL_A10"),
    (0x2324, "GH100_H800"),
    (0x2330, "GH100_H100_SXM5_80GB"),
    (0x2331, "GH100_H100_PCIE"),
    (0x2335, "GH100_H200_SXM_141GB"),
    (0x2684, "AD102_GEFORCE_RTX_4090"),
    (0x26b5, "AD102GL_L40"),
    (0x26b9, "AD102GL_L40S"),
    (0x27b8, "AD104GL_L4"),
    (0x2901, "GB100_B200"),
    (0x2bb5, "GB202GL_RTX_PRO_6000_BLACKWELL_SERVER_EDITION"),
    (0x3182, "GB110_B300_SXM6_AC"),
];

/// The most characters of a resource's name, and of its prefix.
const MOST: (usize, usize) = (63, 253);
/// The most characters of an alias (nova/pci/request.py, `_ALIAS_SCHEMA`).
const MOST_ALIAS: usize = 256;

/// A name that the caller gives to devices with these ids: `15b3:101c=example.com/CX6_VF`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceWish {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// The name.
    pub name: String,
}

impl ResourceWish {
    /// Vendor and device id, as `lspci -n` prints them.
    pub fn ids(&self) -> String {
        format!("{:04x}:{:04x}", self.vendor, self.device)
    }

    /// Whether it is of this device.
    pub fn is_of(&self, device: &PciDevice) -> bool {
        (self.vendor, self.device) == (device.vendor, device.device)
    }
}

impl FromStr for ResourceWish {
    type Err = String;
    fn from_str(text: &str) -> Result<ResourceWish, String> {
        let form = || format!("`{text}` is not ID=NAME, such as 10de:2330=nvidia.com/H100");
        let (ids, name) = text.split_once('=').ok_or_else(form)?;
        let (vendor, device) = ids.split_once(':').ok_or_else(form)?;
        let id = |text: &str| {
            let is_id = text.len() == 4 && text.bytes().all(|b| b.is_ascii_hexdigit());
            is_id.then(|| u16::from_str_radix(text, 16).ok()).flatten().ok_or_else(form)
        };
        let (vendor, device) = (id(vendor)?, id(device)?);
        if name.is_empty() {
            return Err(form());
        }
        Ok(ResourceWish { vendor, device, name: name.to_owned() })
    }
}

/// Letters, digits and underscores of a model's name: `ConnectX-6 Dx` as `CONNECTX_6_DX`.
fn upper(name: &str) -> String {
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    parts.map(str::to_ascii_uppercase).collect::<Vec<_>>().join("_")
}

/// The model of a device; `None` if gpuvm knows none.
fn known(device: &PciDevice) -> Option<String> {
    let name = model(device);
    (name != ids(device)).then_some(name)
}

/// The domain of a device's vendor, as a prefix of resources.
fn domain(device: &PciDevice) -> &'static str {
    match device.vendor {
        VENDOR_NVIDIA => "nvidia.com",
        VENDOR_MELLANOX => "mellanox.com",
        0x1002 | 0x1022 => "amd.com",
        0x8086 => "intel.com",
        0x1da3 => "habana.ai",
        _ => "example.com",
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) name: String,
    /// Whether NVIDIA's device plugin announces it, and not KubeVirt.
    pub(super) is_external: bool,
}

pub(super) fn resource(
    device: &PciDevice,
    given: Option<&ResourceWish>,
) -> Result<Resource, PlatformError> {
    let is_gpu = device.vendor == VENDOR_NVIDIA && device.kind() == DeviceKind::Gpu;
    let example = || {
        let what =
            known(device).map_or_else(|| kind_word(device).to_ascii_uppercase(), |n| upper(&n));
        format!("{}/{what}", domain(device))
    };
    if let Some(given) = given {
        let name = given.name.clone();
        if let Some(why) = not_a_resource(&name) {
            let ids = given.ids();
            return Err(PlatformError::ResourceName { name, ids, why, example: example() });
        }
        let is_external = is_gpu && name.starts_with("nvidia.com/");
        return Ok(Resource { name, is_external });
    }
    let listed = NVIDIA.iter().find(|(id, _)| is_gpu && *id == device.device);
    let name = match listed {
        Some((_, name)) => Some(format!("nvidia.com/{name}")),
        // NVIDIA's plugin takes the name of its own PCI ID list, which gpuvm does not know here.
        None if is_gpu => None,
        None => known(device).map(|_| example()),
    };
    let name = name.ok_or_else(|| unknown(device, example()))?;
    Ok(Resource { name, is_external: listed.is_some() })
}

/// The alias of a device in Nova.
pub(super) fn alias(
    device: &PciDevice,
    given: Option<&ResourceWish>,
) -> Result<String, PlatformError> {
    let example = || known(device).map_or_else(|| kind_word(device).to_owned(), |n| short(&n));
    let Some(given) = given else {
        return known(device).map(|name| short(&name)).ok_or_else(|| unknown(device, example()));
    };
    // A resource of Kubernetes is accepted, too: the part after its prefix.
    let name = given.name.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_begun = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !is_begun || name.len() > MOST_ALIAS || !name.chars().all(is_plain) {
        let why = "is not an alias: a letter or digit, then letters, digits, `-`, `_` and `.`";
        let (name, ids) = (given.name.clone(), given.ids());
        return Err(PlatformError::ResourceName { name, ids, why, example: example() });
    }
    Ok(name)
}

/// The word for a device without a model.
pub(super) fn kind_word(device: &PciDevice) -> &'static str {
    match device.kind() {
        DeviceKind::Gpu => "gpu",
        DeviceKind::Nic => "nic",
        DeviceKind::Nvme => "nvme",
        _ => "device",
    }
}

/// The error of a device without a name.
fn unknown(device: &PciDevice, example: String) -> PlatformError {
    PlatformError::UnknownDevice { bdf: device.bdf, ids: ids(device), example }
}

/// A model's name in short: its words up to the first with a digit, of `ConnectX` all, as `cx6dx`.
fn short(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("ConnectX-") {
        return format!("cx{}", upper(rest).replace('_', "").to_ascii_lowercase());
    }
    let mut short = String::new();
    for word in name.split([' ', '/']) {
        short.extend(word.chars().filter(char::is_ascii_alphanumeric));
        if word.contains(|c: char| c.is_ascii_digit()) {
            break;
        }
    }
    short.to_ascii_lowercase()
}

/// Why a name is not that of an extended resource; `None` if it is one.
fn not_a_resource(name: &str) -> Option<&'static str> {
    let Some((prefix, rest)) = name.split_once('/') else {
        return Some("is not a resource: DOMAIN/NAME");
    };
    let is_label = |label: &str| {
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        label.len() <= MOST.0
            && edge(label.chars().next())
            && edge(label.chars().last())
            && label.chars().all(good)
    };
    if prefix.len() > MOST.1 || !prefix.split('.').all(is_label) {
        return Some("has a prefix that is not a domain in lower case");
    }
    if prefix == "kubernetes.io" || prefix.ends_with(".kubernetes.io") {
        return Some("has the prefix of Kubernetes itself");
    }
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_name = rest.len() <= MOST.0
        && edge(rest.chars().next())
        && edge(rest.chars().last())
        && rest.chars().all(good);
    (!is_name).then_some("has a last part that is not 1 to 63 letters, digits, `-`, `_` and `.`")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of these ids and class.
    fn device(vendor: u16, device: u16, class: &str) -> PciDevice {
        let json = serde_json::json!({ "bdf": "01:00.0", "class": class,
            "vendor": format!("{vendor:#06x}"), "device": format!("{device:#06x}") });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn ids_and_names_are_read() {
        let wish: ResourceWish = "10DE:2330=nvidia.com/GH100".parse().unwrap();
        assert_eq!((wish.ids().as_str(), wish.name.as_str()), ("10de:2330", "nvidia.com/GH100"));
        for bad in ["", "10de:2330", "10de=x", "10de:233=x", "10de:2330=", "+0de:2330=x", "x:y=z"] {
            assert!(bad.parse::<ResourceWish>().is_err(), "{bad}");
        }
    }

    #[test]
    fn names_follow_the_model() {
        for (vendor, id, class, name, short) in [
            (0x10de, 0x2330, "0x030200", "nvidia.com/GH100_H100_SXM5_80GB", "h100"),
            (0x10de, 0x1db8, "0x030200", "nvidia.com/GV100GL_TESLA_V100_SXM3_32GB", "v100"),
            (0x10de, 0x2bb5, "0x030200", NVIDIA[33].1, "rtxpro6000"),
            (0x15b3, 0x101b, "0x020700", "mellanox.com/CONNECTX_6", "cx6"),
            (0x15b3, 0x101d, "0x020000", "mellanox.com/CONNECTX_6_DX", "cx6dx"),
            (0x15b3, 0xa2dc, "0x020000", "mellanox.com/BLUEFIELD_3", "bluefield3"),
            (0x1002, 0x74a1, "0x120000", "amd.com/INSTINCT_MI300X", "instinctmi300x"),
        ] {
            let device = device(vendor, id, class);
            let found = resource(&device, None).unwrap();
            assert!(found.name.ends_with(name), "{found:?}");
            assert_eq!(found.is_external, vendor == 0x10de);
            assert_eq!(alias(&device, None).unwrap(), short);
        }
        // A GPU whose name in the PCI ID list is not known, an NVMe drive, a virtual function.
        let h20 = device(0x10de, 0x2329, "0x030200");
        assert!(matches!(resource(&h20, None), Err(PlatformError::UnknownDevice { .. })));
        assert_eq!(alias(&h20, None).unwrap(), "h20");
        for (vendor, id, class) in [(0x144d, 0xa80a, "0x010802"), (0x15b3, 0x1018, "0x020000")] {
            let device = device(vendor, id, class);
            assert!(matches!(resource(&device, None), Err(PlatformError::UnknownDevice { .. })));
            assert!(matches!(alias(&device, None), Err(PlatformError::UnknownDevice { .. })));
        }
    }

    #[test]
    fn given_names_are_those_of_the_platform() {
        let drive = device(0x144d, 0xa80a, "0x010802");
        let wish = |name: &str| ResourceWish { vendor: 0x144d, device: 0xa80a, name: name.into() };
        let long = format!("example.com/{}", "x".repeat(64));
        for bad in [
            "NVME",
            "/NVME",
            "example.com/",
            "Example.com/x",
            "a..b/x",
            "-a.b/x",
            "a b/x",
            "kubernetes.io/x",
            "x.kubernetes.io/y",
            "a.b/c/d",
            "a.b/-c",
            "a.b/c\nd",
            &long,
        ] {
            let refused = resource(&drive, Some(&wish(bad)));
            assert!(matches!(refused, Err(PlatformError::ResourceName { .. })), "{bad}");
        }
        let given = resource(&drive, Some(&wish("samsung.com/PM9A3"))).unwrap();
        assert_eq!((given.name.as_str(), given.is_external), ("samsung.com/PM9A3", false));
        assert_eq!(alias(&drive, Some(&wish("samsung.com/PM9A3"))).unwrap(), "pm9a3");
        for bad in ["", "a:b", "a,b", "a\"b", "a/", "a b"] {
            let refused = alias(&drive, Some(&wish(bad)));
            assert!(matches!(refused, Err(PlatformError::ResourceName { .. })), "{bad}");
        }
    }

    #[test]
    fn the_table_is_in_order_and_has_names_of_the_form() {
        assert!(NVIDIA.is_sorted_by_key(|(id, _)| *id));
        for (_, name) in NVIDIA {
            assert_eq!(not_a_resource(&format!("nvidia.com/{name}")), None, "{name}");
            assert_eq!(upper(name), *name);
        }
    }
}
