//! The device nodes of a function, by number.

use crate::fsroot::{Dir, FsError, FsRoot, NodeNumber};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::{DeviceKind, Topology};

/// The deepest level of devices below a function's directory; an NVMe namespace's partition is at
/// 4.
const DEEPEST: usize = 5;
/// Major number of `/dev/nvidia0` and its like, registered with the kernel
/// (Documentation/admin-guide/devices.txt).
const NVIDIA_MAJOR: u64 = 195;
/// Minor number of the control node of all NVSwitches, which may stay open.
const NVSWITCH_CONTROL: u64 = 255;

/// A device node of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Path of the node, as udev names it.
    pub path: String,
    /// Its number.
    pub number: NodeNumber,
}

/// Finds the device nodes through which guests use functions: VFIO's nodes of the function itself
/// and of its IOMMU group.
pub fn vfio(root: &FsRoot, bdf: Bdf) -> Result<Vec<Node>, FsError> {
    let mut nodes = Vec::new();
    let Some(dir) = root.dir(&format!("sys/bus/pci/devices/{bdf}"))? else { return Ok(nodes) };
    if let Some(group) = dir.link_name("iommu_group")?
        && let Some(dir) = root.dir(&format!("sys/class/vfio/{group}"))?
    {
        add(&dir, false, &format!("vfio/{group}"), &mut nodes)?;
    }
    // With iommufd a process opens a node of the function itself.
    if let Some(dir) = dir.dir("vfio-dev")? {
        below(&dir, 1, &mut nodes)?;
    }
    Ok(nodes)
}

/// Finds the device nodes of a function that is neither a storage controller nor a NIC, from its
/// files alone.
pub fn plain(root: &FsRoot, bdf: Bdf) -> Result<Vec<Node>, FsError> {
    let mut nodes = Vec::new();
    let Some(dir) = root.dir(&format!("sys/bus/pci/devices/{bdf}"))? else { return Ok(nodes) };
    below(&dir, DEEPEST, &mut nodes)?;
    nodes.extend(gpu(root, bdf)?);
    nodes.extend(nvswitches(root, bdf)?);
    Ok(nodes)
}

/// Finds the device nodes of a function.
pub fn nodes(root: &FsRoot, topology: &Topology, bdf: Bdf) -> Result<Vec<Node>, FsError> {
    let mut nodes = Vec::new();
    let Some(dir) = root.dir(&format!("sys/bus/pci/devices/{bdf}"))? else { return Ok(nodes) };
    below(&dir, DEEPEST, &mut nodes)?;
    // With native multipath the namespaces of an NVMe drive are not below its controller.
    let drives = topology.parts().drives.iter().filter(|drive| drive.bdf == Some(bdf));
    for drive in drives {
        let parts = drive.partitions.iter().map(|part| &part.name);
        for name in std::iter::once(&drive.name).chain(parts) {
            if let Some(dir) = root.dir(&format!("sys/class/block/{name}"))? {
                add(&dir, true, name, &mut nodes)?;
            }
        }
    }
    if let Some(device) = topology.device(bdf) {
        if let Some(group) = device.iommu_group
            && let Some(dir) = root.dir(&format!("sys/class/vfio/{group}"))?
        {
            add(&dir, false, &format!("vfio/{group}"), &mut nodes)?;
        }
        match device.kind() {
            DeviceKind::Gpu => nodes.extend(gpu(root, bdf)?),
            DeviceKind::NvSwitch => nodes.extend(nvswitches(root, bdf)?),
            _ => {}
        }
    }
    nodes.sort_by(|a, b| (a.number, &a.path).cmp(&(b.number, &b.path)));
    nodes.dedup_by_key(|node| node.number);
    Ok(nodes)
}

/// Adds the nodes of all devices below a directory. Functions below a bridge have nodes of their
/// own.
fn below(dir: &Dir<'_>, depth: usize, nodes: &mut Vec<Node>) -> Result<(), FsError> {
    for name in dir.names()? {
        if name.parse::<Bdf>().is_ok() || dir.link(&name)?.is_some() {
            continue;
        }
        let Some(child) = dir.dir(&name)? else { continue };
        let block = dir.path().rsplit('/').next() == Some("block") || child.exists("partition");
        add(&child, block || child.exists("queue"), &name, nodes)?;
        if depth > 0 {
            below(&child, depth - 1, nodes)?;
        }
    }
    Ok(())
}

/// Adds the node of a device's directory, if it has one.
fn add(dir: &Dir<'_>, block: bool, name: &str, nodes: &mut Vec<Node>) -> Result<(), FsError> {
    let Some(text) = dir.read("dev")? else { return Ok(()) };
    let Some(number) = NodeNumber::parse(block, &text) else {
        return Err(dir.malformed("dev", 1, crate::fsroot::not(&text, "two numbers as 195:0")));
    };
    let event = dir.read_if_any("uevent")?.unwrap_or_default();
    let named = event.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    nodes.push(Node { path: format!("/dev/{}", named.unwrap_or(name)), number });
    Ok(())
}

/// Finds the node of a GPU bound to NVIDIA's driver, which is not in sysfs.
fn gpu(root: &FsRoot, bdf: Bdf) -> Result<Option<Node>, FsError> {
    let path = format!("proc/driver/nvidia/gpus/{bdf}/information");
    let text = root.read(&path)?.unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let minor = lines.find(|(key, _)| key.trim() == "Device Minor");
    let minor = minor.and_then(|(_, value)| value.trim().parse().ok());
    Ok(minor.map(|minor| Node {
        path: format!("/dev/nvidia{minor}"),
        number: NodeNumber { block: false, major: NVIDIA_MAJOR, minor },
    }))
}

/// Finds the nodes of all NVSwitches bound to NVIDIA's driver: they cannot be assigned to
/// functions, so a process with one open holds all.
fn nvswitches(root: &FsRoot, bdf: Bdf) -> Result<Vec<Node>, FsError> {
    let list = "proc/driver/nvidia-nvswitch/devices";
    let switches = root.names(list)?;
    if !switches.contains(&bdf.to_string()) {
        return Ok(Vec::new());
    }
    let text = root.read("proc/devices")?.unwrap_or_default();
    let major = text.lines().find_map(|line| line.trim().strip_suffix(" nvidia-nvswitch"));
    let Some(major) = major.and_then(|major| major.trim().parse().ok()) else {
        return Ok(Vec::new());
    };
    let node = |minor| Node {
        path: format!("/dev/nvidia-nvswitch{minor}"),
        number: NodeNumber { block: false, major, minor },
    };
    Ok((0..NVSWITCH_CONTROL).map(node).collect())
}
