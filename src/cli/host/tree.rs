//! The PCIe tree of `host show`. Bridges that lead to a single device are folded into it, unless
//! `--all` is given.

use super::tables::{Wide, table};
use crate::bdf::Bdf;
use crate::cli::names::{model, short, slow_link};
use crate::topology::{DeviceKind, Mig, PciDevice, Sriov, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// The most levels drawn; PCIe has far fewer, a forged record may have more.
const DEEPEST: usize = 24;

struct Tree<'a> {
    topology: &'a Topology,
    /// Functions directly below a bridge, by address.
    below: BTreeMap<Bdf, Vec<&'a PciDevice>>,
    /// Names of endpoints: GPU index, network and drive names.
    names: BTreeMap<Bdf, String>,
    all: bool,
    /// Rows of the table so far.
    rows: Vec<Vec<String>>,
}

/// The tree as a table of at most `width` columns; `all`: every function, and nothing folded.
pub fn tree(topology: &Topology, all: bool, width: usize) -> String {
    let mut shown: BTreeSet<Bdf> = BTreeSet::new();
    for device in topology.devices().iter().filter(|device| all || worth_showing(device, topology))
    {
        for bdf in topology.path_to_root(device.bdf) {
            // The bridges above were added with an earlier function.
            if !shown.insert(bdf) {
                break;
            }
        }
    }
    let (below, rows) = (BTreeMap::new(), Vec::new());
    let mut tree = Tree { topology, below, names: names(topology), all, rows };
    let mut roots: BTreeMap<(u32, String), Vec<&PciDevice>> = BTreeMap::new();
    for device in topology.devices().iter().filter(|device| shown.contains(&device.bdf)) {
        match device.parent {
            Some(bridge) => tree.below.entry(bridge).or_default().push(device),
            None => {
                let root = device.root.clone().unwrap_or_else(|| "below the host".into());
                roots.entry((device.bdf.segment(), root)).or_default().push(device);
            }
        }
    }
    if roots.is_empty() {
        return String::new();
    }
    let head = ["device", "address", "model", "node", "group", "driver", "remarks"];
    tree.rows.push(head.map(ToOwned::to_owned).to_vec());
    for ((_, root), devices) in roots {
        let node = common_node(&devices);
        let empty = String::new;
        tree.rows.push(vec![root, empty(), empty(), node, empty(), empty(), empty()]);
        tree.draw(&devices, "", 1);
    }
    // Columns that are empty on this host (no driver, no IOMMU, no remarks) are left out.
    let kept: Vec<usize> = (0..head.len())
        .filter(|&column| tree.rows.iter().skip(1).any(|row| !row[column].is_empty()))
        .collect();
    let pick = |row: &Vec<String>| kept.iter().map(|&column| row[column].clone()).collect();
    table(tree.rows.iter().map(pick).collect(), width, Wide::Cut)
}

/// Whether a function is drawn by default: one that a guest may get, or one that does not respond.
/// Virtual functions are not, but those that are GPUs in their own right (AMD's GIM).
fn worth_showing(device: &PciDevice, topology: &Topology) -> bool {
    let dead = matches!(device.vendor, 0 | 0xffff);
    let virtual_function = device.is_vf() && topology.gpus().all(|gpu| gpu.bdf != device.bdf);
    let kind = device.kind();
    !virtual_function
        && (dead
            || matches!(
                kind,
                DeviceKind::Gpu | DeviceKind::NvSwitch | DeviceKind::Nic | DeviceKind::Nvme
            ))
}

/// Names of GPUs, NICs and drives.
fn names(topology: &Topology) -> BTreeMap<Bdf, String> {
    let mut names: BTreeMap<Bdf, String> = BTreeMap::new();
    for (index, gpu) in topology.gpus().enumerate() {
        names.insert(gpu.bdf, format!("GPU{index}"));
    }
    for (gpu, _) in topology.displays() {
        names.insert(gpu.bdf, "display".to_owned());
    }
    for drive in &topology.parts().drives {
        if let Some(bdf) = drive.bdf {
            let name = names.entry(bdf).or_default();
            if !name.is_empty() {
                name.push(' ');
            }
            name.push_str(&drive.name);
        }
    }
    for device in topology.devices() {
        if let Some(net) = &device.net {
            let faces: Vec<&str> =
                net.netdevs.iter().chain(&net.rdma).map(String::as_str).collect();
            if !faces.is_empty() {
                names.insert(device.bdf, faces.join(" "));
            }
        }
    }
    names
}

/// Returns the common node of these devices if there is one.
fn common_node(devices: &[&PciDevice]) -> String {
    let nodes: BTreeSet<_> = devices.iter().filter_map(|device| device.node).collect();
    match nodes.into_iter().collect::<Vec<_>>()[..] {
        [node] => node.to_string(),
        _ => String::new(),
    }
}

impl<'a> Tree<'a> {
    /// Draws sibling functions and everything below them.
    fn draw(&mut self, devices: &[&'a PciDevice], indent: &str, level: usize) {
        for (position, &device) in devices.iter().enumerate() {
            let last = position + 1 == devices.len();
            let (mut path, mut end) = (Vec::new(), device);
            let mut below = self.below.get(&end.bdf).cloned().unwrap_or_default();
            // A bridge with one child is folded into it; the root port stays visible.
            while let ([only], false) = (below.as_slice(), self.all) {
                if path.len() >= 32 {
                    break;
                }
                path.push(end);
                end = *only;
                below = self.below.get(&end.bdf).cloned().unwrap_or_default();
            }
            let label = self.label(end, path.first().copied());
            let branch = if last { "└─ " } else { "├─ " };
            self.rows.push(self.row(format!("{indent}{branch}{label}"), end));
            if level < DEEPEST {
                let deeper = format!("{indent}{}", if last { "   " } else { "│  " });
                self.draw(&below, &deeper, level + 1);
            } else if !below.is_empty() {
                let more = format!("{indent}   … {} further down", below.len());
                self.rows.push([vec![more], vec![String::new(); 6]].concat());
            }
        }
    }

    /// The row of a function. For bridges, group, driver and remarks are shown only with `--all`.
    fn row(&self, label: String, device: &PciDevice) -> Vec<String> {
        let number =
            |number: Option<u32>| number.map_or(String::new(), |number| number.to_string());
        let bridge = device.kind() == DeviceKind::Bridge && !self.all;
        vec![
            label,
            short(device.bdf),
            model(device),
            number(device.node.map(|node| node.0)),
            number(device.iommu_group.filter(|_| !bridge)),
            device.driver.clone().filter(|_| !bridge).unwrap_or_default(),
            if bridge { String::new() } else { remarks(device, self.topology).join(", ") },
        ]
    }

    /// Returns the label of a function; `top`: the first of the bridges folded into it.
    fn label(&self, device: &PciDevice, top: Option<&PciDevice>) -> String {
        let name = self.names.get(&device.bdf);
        let own = match (device.kind(), name) {
            (_, Some(name)) => name.clone(),
            _ if matches!(device.vendor, 0 | 0xffff) => "does not answer".into(),
            (DeviceKind::NvSwitch, None) => "NVSwitch".into(),
            (DeviceKind::Nic, None) => "NIC".into(),
            (DeviceKind::Nvme, None) => "NVMe".into(),
            (DeviceKind::Gpu, None) => "GPU".into(),
            (DeviceKind::HostBridge, None) => "host bridge".into(),
            (DeviceKind::Bridge, None) if device.parent.is_none() => "root port".into(),
            (DeviceKind::Bridge, None) if self.all => "bridge".into(),
            (DeviceKind::Bridge, None) => "switch".into(),
            (DeviceKind::Other, None) => format!("class {:06x}", device.class),
        };
        match top {
            Some(top) if top.parent.is_none() => format!("{} › {own}", short(top.bdf)),
            _ => own,
        }
    }
}

/// Returns the remarkable facts: a slow link, virtual functions, vGPUs, use by the host.
fn remarks(device: &PciDevice, topology: &Topology) -> Vec<String> {
    let mut remarks: Vec<String> = slow_link(device).into_iter().collect();
    match &device.sriov {
        Some(Sriov::Pf { enabled, total }) if *enabled > 0 => {
            remarks.push(format!("{enabled} of {total} VFs"));
        }
        Some(Sriov::Vf { pf }) => remarks.push(format!("VF of {}", short(*pf))),
        _ => {}
    }
    remarks.extend(vgpu_type(device, topology));
    remarks.extend(device.mig.filter(|mig| mig.enabled || mig.pending).map(mig_mode));
    let used = device.net.iter().flat_map(|net| &net.used_by);
    remarks.extend(used.map(|used| format!("host: {used}")));
    remarks
}

/// A GPU's MIG mode as a remark.
fn mig_mode(mig: Mig) -> String {
    format!("MIG {}", mig.words())
}

/// The vGPU type of a virtual function.
fn vgpu_type(device: &PciDevice, topology: &Topology) -> Option<String> {
    let Some(Sriov::Vf { pf }) = device.sriov else { return None };
    let number = device.vgpu_type()?;
    let name = topology.vgpu_type_name(topology.device(pf)?, number);
    Some(name.map_or_else(|| format!("vGPU type {number}"), |name| format!("vGPU {name}")))
}
