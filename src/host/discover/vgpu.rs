//! What a driver offers of vGPUs: types of mediated devices, and types of virtual functions on
//! NVIDIA's own VFIO driver. Changes nothing, and does not know who has one.

use crate::fsroot::{Dir, FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::domain::arguments::is_uuid;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::{
    DeviceKind, Mdev, MdevType, Parts, Sriov, VfioType, Vgpu, frame_buffer, plain_name,
};
use std::collections::BTreeMap;

/// The most lines that are read of a list of types; NVIDIA's longest have some thirty.
const MOST_TYPES: usize = 512;

/// Types by number, each with its name.
pub type Types = Vec<(u32, String)>;

/// Reads vGPU types of GPUs into the parts of a host.
pub fn lay(root: &FsRoot, parts: &mut Parts) -> Result<(), FsError> {
    let mut names: BTreeMap<Bdf, BTreeMap<u32, String>> = BTreeMap::new();
    for device in &mut parts.devices {
        if device.kind() != DeviceKind::Gpu {
            continue;
        }
        let Some(dir) = root.dir(&format!("sys/bus/pci/devices/{}", device.bdf))? else { continue };
        if let Some(types) = dir.dir("mdev_supported_types")? {
            device.vgpu = Some(mdev(&dir, &types)?);
        } else if let Some(Sriov::Vf { pf }) = device.sriov
            && let Some((vgpu, offered)) = vfio(&dir)?
        {
            device.vgpu = Some(vgpu);
            names.entry(pf).or_default().extend(offered);
        }
    }
    for device in &mut parts.devices {
        if let Some(names) = names.remove(&device.bdf) {
            let types =
                names.into_iter().map(|(id, name)| VfioType { id, name, mig: None }).collect();
            device.vgpu.get_or_insert(Vgpu::Card { types });
        }
    }
    Ok(())
}

/// Reads types and devices of a parent of mediated devices.
fn mdev(parent: &Dir<'_>, list: &Dir<'_>) -> Result<Vgpu, FsError> {
    let mut types = Vec::new();
    for id in list.names()? {
        let Some(dir) = list.dir(&id)? else { continue };
        let name = dir.read_if_any("name")?.unwrap_or_default();
        let name = plain_name(&name);
        let description = dir.read_if_any("description")?.unwrap_or_default();
        let megabytes = field(&description, "framebuffer").and_then(|n| n.checked_mul(1 << 10));
        let max_instances = field(&description, "max_instance");
        types.push(MdevType {
            name: if name.is_empty() { id.clone() } else { name.to_owned() },
            available: dir.number("available_instances")?.unwrap_or(0),
            frame_buffer_kib: megabytes.map(MemSize::from_kib).or_else(|| frame_buffer(name)),
            max_instances: max_instances.and_then(|most| u32::try_from(most).ok()),
            id,
        });
    }
    let mut devices = Vec::new();
    for uuid in parent.names()?.into_iter().filter(|name| is_uuid(name)) {
        let Some(dir) = parent.dir(&uuid)? else { continue };
        devices.push(Mdev { type_id: dir.link_name("mdev_type")?, uuid });
    }
    Ok(Vgpu::Mdev { types, devices })
}

/// Returns a number of a type's description: `num_heads=1, framebuffer=4096M, max_instance=10`.
fn field(description: &str, name: &str) -> Option<u64> {
    let mut fields = description.split([',', '\n']).filter_map(|field| field.split_once('='));
    let (_, value) = fields.find(|(key, _)| key.trim() == name)?;
    let digits = value.trim().trim_end_matches(['M', 'm']);
    digits.parse().ok()
}

/// Reads a virtual function of NVIDIA's VFIO driver, and the names of its types; `None` if it is
/// none.
fn vfio(function: &Dir<'_>) -> Result<Option<(Vgpu, Types)>, FsError> {
    let Some(dir) = function.dir("nvidia")? else { return Ok(None) };
    let Some(current) = dir.number("current_vgpu_type")? else { return Ok(None) };
    // Reading fails while the function is not ready.
    let offered = types(&dir.read_if_any("creatable_vgpu_types")?.unwrap_or_default());
    let creatable = offered.iter().map(|(number, _)| *number).collect();
    Ok(Some((Vgpu::Vfio { current, creatable }, offered)))
}

/// Reads lines as `1428 : NVIDIA H200X-141C`; a heading has no number in front. Names have blanks.
pub fn types(text: &str) -> Types {
    let one = |line: &str| {
        let (number, name) = line.split_once(':')?;
        Some((number.trim().parse().ok()?, plain_name(name).to_owned()))
    };
    text.lines().filter_map(one).take(MOST_TYPES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types_keep_their_blanks() {
        let text = "ID    : vGPU Name\n1428  : NVIDIA H200X-141C\n\
                    1610 : NVIDIA RTX Pro 6000 Blackwell DC-1-2Q\n0x7 : no\nrest\n";
        let expected = [(1428, "H200X-141C"), (1610, "RTX Pro 6000 Blackwell DC-1-2Q")];
        assert_eq!(types(text), expected.map(|(number, name)| (number, name.to_owned())));
        assert!(types("").is_empty());
    }

    #[test]
    fn a_description_has_numbers() {
        let text = "num_heads=1, frl_config=60, framebuffer=4096M, max_instance=10";
        assert_eq!(field(text, "framebuffer"), Some(4096));
        assert_eq!(field(text, "max_instance"), Some(10));
        assert_eq!(field(text, "heads"), None);
        assert_eq!(field("framebuffer=x", "framebuffer"), None);
    }
}
