//! Facts on GPUs and NVSwitches beyond the kernel's list: whether they still respond, and the
//! NVIDIA driver's reports.
//!
//! The kernel reads a function's ids once, when it finds it, so a GPU that fell off the bus looks
//! unchanged. Its config space reads all ones then. All of `config` is never read
//! (gpuvm-hardware(7), DISCOVERY): it is slow, and some devices malfunction. The first four bytes
//! of these few functions, which hold the ids, are the one exception.

use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::{DeviceKind, Parts};
use std::collections::BTreeMap;

/// The NVIDIA driver's directory, with one for each GPU; missing if it is not loaded.
const GPUS: &str = "proc/driver/nvidia/gpus";

/// Gives GPUs and NVSwitches that read all ones the ids that they read. Virtual functions always
/// read all ones: their ids are those of the physical function.
pub fn mark_silent(root: &FsRoot, parts: &mut Parts) -> Result<(), FsError> {
    for device in &mut parts.devices {
        let is_virtual = device.is_vf();
        if is_virtual || !matches!(device.kind(), DeviceKind::Gpu | DeviceKind::NvSwitch) {
            continue;
        }
        let Some(dir) = root.dir(&format!("sys/bus/pci/devices/{}", device.bdf))? else { continue };
        if dir.begins("config", &[0xff; 4]) {
            (device.vendor, device.device) = (0xffff, 0xffff);
        }
    }
    Ok(())
}

/// The NVIDIA driver's report of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Card {
    /// Its UUID, with `GPU-` in front; none where the driver could not read it.
    pub uuid: Option<String>,
    /// Whether the driver was configured to ignore it (`NVreg_ExcludedGpus`).
    pub is_excluded: bool,
}

/// Reads the NVIDIA driver's report of each GPU that it is bound to.
pub fn cards(root: &FsRoot) -> Result<BTreeMap<Bdf, Card>, FsError> {
    let mut cards = BTreeMap::new();
    for name in root.names(GPUS)? {
        let Ok(bdf) = name.parse() else { continue };
        let Some(text) = root.read(&format!("{GPUS}/{name}/information"))? else { continue };
        cards.insert(bdf, card(&text));
    }
    Ok(cards)
}

/// Reads lines such as `GPU UUID:  GPU-8b1c1a7d-...` and `GPU Excluded:  No`.
fn card(text: &str) -> Card {
    let value = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    };
    let uuid = value("GPU UUID").filter(|uuid| is_uuid(uuid));
    Card {
        uuid: uuid.map(str::to_ascii_lowercase).map(|uuid| uuid.replacen("gpu-", "GPU-", 1)),
        is_excluded: value("GPU Excluded") == Some("Yes"),
    }
}

/// Whether a text is a GPU's UUID: the driver prints question marks for one that it does not know.
pub fn is_uuid(text: &str) -> bool {
    let Some(("GPU", rest)) = text.split_at_checked(3) else { return false };
    let groups: Vec<&str> = rest.split('-').collect();
    let hex = |group: &&str| group.bytes().all(|byte| byte.is_ascii_hexdigit());
    groups.iter().map(|group| group.len()).eq([0, 8, 4, 4, 4, 12]) && groups.iter().all(hex)
}

/// Adds the UUIDs of GPUs.
pub fn identify(root: &FsRoot, parts: &mut Parts) -> Result<(), FsError> {
    let cards = cards(root)?;
    for device in &mut parts.devices {
        device.uuid = cards.get(&device.bdf).and_then(|card| card.uuid.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_driver_prints_and_no_unknown_uuid() {
        let text = "Model: \t\t Tesla V100\nIRQ:   \t\t 120\nGPU UUID: \t \
                    GPU-8B1C1A7D-0d4e-41f2-9c3a-6f00d5e1b2c3\nGPU Excluded:\t Yes\n";
        let uuid = "GPU-8b1c1a7d-0d4e-41f2-9c3a-6f00d5e1b2c3".to_owned();
        assert_eq!(card(text), Card { uuid: Some(uuid), is_excluded: true });
        let unknown = "GPU UUID: \t GPU-????????-????-????-????-????????????\nGPU Excluded:\t No";
        assert_eq!(card(unknown), Card::default());
        for text in ["", "GPU", "GPU-", "MIG-8b1c1a7d-0d4e-41f2-9c3a-6f00d5e1b2c3", "GPU-1-2-3-4-5"]
        {
            assert!(!is_uuid(text), "{text}");
        }
    }
}
