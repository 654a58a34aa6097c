//! Model names of PCI functions by id, and the GPUs that a name refers to. Unlisted ids are printed
//! as numbers.

use super::vendor::{VENDOR_ATI, VENDOR_HABANA, VENDOR_INTEL, VENDOR_MELLANOX, VENDOR_NVIDIA};
use super::{PciDevice, Topology};

/// Models by vendor and device id (gpuvm-hardware(7), DEVICE IDS, the PCI ID list, the drivers'
/// tables).
const MODELS: &[(u16, u16, &str)] = &[
    (VENDOR_NVIDIA, 0x1db1, "V100 SXM2 16 GB"),
    (VENDOR_NVIDIA, 0x1db5, "V100 SXM2 32 GB"),
    (VENDOR_NVIDIA, 0x1db8, "V100 SXM3 32 GB"),
    (VENDOR_NVIDIA, 0x1eb8, "T4"),
    (VENDOR_NVIDIA, 0x20b0, "A100 SXM4 40 GB"),
    (VENDOR_NVIDIA, 0x20b2, "A100 SXM4 80 GB"),
    (VENDOR_NVIDIA, 0x20b3, "A100 SXM4 64 GB"),
    (VENDOR_NVIDIA, 0x20bd, "A800 SXM4 40 GB"),
    (VENDOR_NVIDIA, 0x20f3, "A800 SXM4 80 GB"),
    (VENDOR_NVIDIA, 0x2324, "H800 SXM5"),
    (VENDOR_NVIDIA, 0x2329, "H20"),
    (VENDOR_NVIDIA, 0x232c, "H20-3e"),
    (VENDOR_NVIDIA, 0x2330, "H100 SXM5 80 GB"),
    (VENDOR_NVIDIA, 0x2335, "H200 SXM 141 GB"),
    (VENDOR_NVIDIA, 0x233b, "H200 NVL"),
    (VENDOR_NVIDIA, 0x2901, "B200 SXM"),
    (VENDOR_NVIDIA, 0x2941, "GB200"),
    (VENDOR_NVIDIA, 0x3182, "B300 SXM6"),
    (VENDOR_NVIDIA, 0x31c2, "GB300"),
    (VENDOR_NVIDIA, 0x15f8, "P100 PCIe 16 GB"),
    (VENDOR_NVIDIA, 0x15f9, "P100 SXM2 16 GB"),
    (VENDOR_NVIDIA, 0x1b38, "P40"),
    (VENDOR_NVIDIA, 0x1db4, "V100 PCIe 16 GB"),
    (VENDOR_NVIDIA, 0x1db6, "V100 PCIe 32 GB"),
    (VENDOR_NVIDIA, 0x1e04, "RTX 2080 Ti"),
    (VENDOR_NVIDIA, 0x1e30, "Quadro RTX 6000/8000"),
    (VENDOR_NVIDIA, 0x20b5, "A100 PCIe 80 GB"),
    (VENDOR_NVIDIA, 0x20b7, "A30"),
    (VENDOR_NVIDIA, 0x20f1, "A100 PCIe 40 GB"),
    (VENDOR_NVIDIA, 0x2204, "RTX 3090"),
    (VENDOR_NVIDIA, 0x2206, "RTX 3080"),
    (VENDOR_NVIDIA, 0x2230, "RTX A6000"),
    (VENDOR_NVIDIA, 0x2231, "RTX A5000"),
    (VENDOR_NVIDIA, 0x2235, "A40"),
    (VENDOR_NVIDIA, 0x2236, "A10"),
    (VENDOR_NVIDIA, 0x2321, "H100 NVL"),
    (VENDOR_NVIDIA, 0x2331, "H100 PCIe"),
    (VENDOR_NVIDIA, 0x2342, "GH200 120 GB"),
    (VENDOR_NVIDIA, 0x2345, "GH200 480 GB"),
    (VENDOR_NVIDIA, 0x2684, "RTX 4090"),
    (VENDOR_NVIDIA, 0x26b1, "RTX 6000 Ada"),
    (VENDOR_NVIDIA, 0x26b5, "L40"),
    (VENDOR_NVIDIA, 0x26b9, "L40S"),
    (VENDOR_NVIDIA, 0x27b8, "L4"),
    (VENDOR_NVIDIA, 0x2b85, "RTX 5090"),
    (VENDOR_NVIDIA, 0x2bb1, "RTX PRO 6000 Blackwell Workstation"),
    (VENDOR_NVIDIA, 0x2bb5, "RTX PRO 6000 Blackwell Server"),
    (VENDOR_NVIDIA, 0x2e12, "GB10"),
    (VENDOR_ATI, 0x66a1, "Instinct MI50 32 GB"),
    (VENDOR_ATI, 0x738c, "Instinct MI100"),
    (VENDOR_ATI, 0x7408, "Instinct MI250X"),
    (VENDOR_ATI, 0x740c, "Instinct MI250X"),
    (VENDOR_ATI, 0x740f, "Instinct MI210"),
    (VENDOR_ATI, 0x74a0, "Instinct MI300A"),
    (VENDOR_ATI, 0x74a1, "Instinct MI300X"),
    (VENDOR_ATI, 0x74a2, "Instinct MI308X"),
    (VENDOR_ATI, 0x74a5, "Instinct MI325X"),
    (VENDOR_ATI, 0x75a0, "Instinct MI350X"),
    (VENDOR_ATI, 0x75a3, "Instinct MI355X"),
    (VENDOR_INTEL, 0x0bd5, "Data Center GPU Max 1550"),
    (VENDOR_INTEL, 0x0bda, "Data Center GPU Max 1100"),
    (VENDOR_INTEL, 0x56c0, "Data Center GPU Flex 170"),
    (VENDOR_INTEL, 0x56c1, "Data Center GPU Flex 140"),
    (VENDOR_HABANA, 0x1000, "Gaudi"),
    (VENDOR_HABANA, 0x1020, "Gaudi 2"),
    (VENDOR_HABANA, 0x1060, "Gaudi 3"),
    (VENDOR_NVIDIA, 0x1ac2, "NVSwitch 1"),
    (VENDOR_NVIDIA, 0x1af1, "NVSwitch 2"),
    (VENDOR_NVIDIA, 0x22a3, "NVSwitch 3"),
    (VENDOR_MELLANOX, 0x1013, "ConnectX-4"),
    (VENDOR_MELLANOX, 0x1015, "ConnectX-4 Lx"),
    (VENDOR_MELLANOX, 0x1017, "ConnectX-5"),
    (VENDOR_MELLANOX, 0x1019, "ConnectX-5 Ex"),
    (VENDOR_MELLANOX, 0x101b, "ConnectX-6"),
    (VENDOR_MELLANOX, 0x101d, "ConnectX-6 Dx"),
    (VENDOR_MELLANOX, 0x101f, "ConnectX-6 Lx"),
    (VENDOR_MELLANOX, 0x1021, "ConnectX-7"),
    (VENDOR_MELLANOX, 0x1023, "ConnectX-8"),
    (VENDOR_MELLANOX, 0xa2d6, "BlueField-2"),
    (VENDOR_MELLANOX, 0xa2dc, "BlueField-3"),
];

/// The model of a function, or its ids.
pub fn model(device: &PciDevice) -> String {
    let PciDevice { vendor, device: id, .. } = *device;
    MODELS
        .iter()
        .find(|(v, d, _)| (*v, *d) == (vendor, id))
        .map_or_else(|| ids(device), |(_, _, name)| (*name).to_owned())
}

/// The ids of a function, as `lspci -n` prints them.
pub fn ids(device: &PciDevice) -> String {
    format!("{:04x}:{:04x}", device.vendor, device.device)
}

/// Normalizes a name: no capitals, blanks, dashes.
fn bare(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// How well a name matches a model; larger is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fits {
    /// Not at all.
    Not,
    /// The model's name contains it.
    Part,
    /// It equals whole words of the model's name: `L4` is a word of `L4`, not of `L40`.
    Words,
    /// It is the whole name or the ids.
    Whole,
}

/// Returns how well a name matches the model of a function.
fn fits(device: &PciDevice, name: &str) -> Fits {
    let ids = ids(device);
    let hex = name.strip_prefix("0x").unwrap_or(name);
    let named = model(device);
    let (wanted, full) = (bare(name), bare(&named));
    let words: Vec<String> = named.split([' ', '/', '-']).map(bare).collect();
    let run = |first: usize| {
        let mut joined = String::new();
        words[first..].iter().any(|word| {
            joined.push_str(word);
            joined == wanted
        })
    };
    match () {
        () if wanted.is_empty() => Fits::Not,
        () if wanted == full || name.eq_ignore_ascii_case(&ids) => Fits::Whole,
        () if hex.len() == 4 && ids.ends_with(&format!(":{}", hex.to_ascii_lowercase())) => {
            Fits::Whole
        }
        () if (0..words.len()).any(run) => Fits::Words,
        () if named != ids && full.contains(&wanted) => Fits::Part,
        () => Fits::Not,
    }
}

impl Topology {
    /// Returns the GPUs that a name matches best, among those that count. The name may be a model
    /// name, part of one, or a device id.
    pub fn gpus_of_model(&self, name: &str) -> Vec<&PciDevice> {
        let best = self.gpus().map(|gpu| fits(gpu, name)).max().unwrap_or(Fits::Not);
        self.gpus().filter(|gpu| best > Fits::Not && fits(gpu, name) == best).collect()
    }

    /// Models of the GPUs that count, by the lowest index: ids, name, how many.
    pub fn gpu_models(&self) -> Vec<(String, String, u32)> {
        let mut models: Vec<(String, String, u32)> = Vec::new();
        for gpu in self.gpus() {
            let ids = ids(gpu);
            match models.iter_mut().find(|(other, ..)| *other == ids) {
                Some((_, _, number)) => *number += 1,
                None => models.push((ids, model(gpu), 1)),
            }
        }
        models
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GPU of this device id.
    fn gpu(vendor: u16, device: u16) -> PciDevice {
        let json = serde_json::json!({ "bdf": "01:00.0", "class": "0x030200",
            "vendor": format!("{vendor:#06x}"), "device": format!("{device:#06x}") });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn names_mean_the_models_that_they_fit_best() {
        let (l4, l40, l40s) =
            (gpu(VENDOR_NVIDIA, 0x27b8), gpu(VENDOR_NVIDIA, 0x26b5), gpu(VENDOR_NVIDIA, 0x26b9));
        for (name, of_l4, of_l40, of_l40s) in [
            ("L4", Fits::Whole, Fits::Part, Fits::Part),
            ("l40", Fits::Not, Fits::Whole, Fits::Part),
            ("L40S", Fits::Not, Fits::Not, Fits::Whole),
            ("0x27B8", Fits::Whole, Fits::Not, Fits::Not),
            ("10de:26b5", Fits::Not, Fits::Whole, Fits::Not),
            ("", Fits::Not, Fits::Not, Fits::Not),
            ("10de", Fits::Not, Fits::Not, Fits::Not),
        ] {
            let all = [&l4, &l40, &l40s].map(|gpu| fits(gpu, name));
            assert_eq!(all, [of_l4, of_l40, of_l40s], "{name}");
        }
        let card = gpu(VENDOR_NVIDIA, 0x2b85);
        for name in ["RTX 5090", "rtx5090", "5090", "RTX-5090", "2b85"] {
            assert!(fits(&card, name) >= Fits::Words, "{name}");
        }
        assert_eq!(fits(&card, "4090"), Fits::Not);
        assert_eq!(fits(&gpu(VENDOR_NVIDIA, 0x2330), "H100"), Fits::Words);
        assert_eq!(fits(&gpu(VENDOR_NVIDIA, 0xfff0), "fff0"), Fits::Whole);
    }
}
