//! How near two PCI functions are, in the words of `nvidia-smi topo -m`.
//!
//! Computed from the bridge path, the root complex and the node of each, and from the NVLinks that
//! discovery found; no tool is run. NVIDIA documents the levels in NVML's `nvmlGpuTopologyLevel_t`:
//! one PCIe switch, several switches, one host bridge, one NUMA node, the system. It knows nothing
//! of bandwidth.

use super::{DeviceKind, PciDevice, Topology};
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// How near two functions are; nearer is smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Proximity {
    /// The same function.
    Same,
    /// Connected by this many NVLinks.
    NvLink(u32),
    /// At most one PCIe switch or bridge between them.
    Pix,
    /// Several PCIe switches or bridges, but no host bridge.
    Pxb,
    /// Through a common host bridge.
    Phb,
    /// Through several host bridges of one node.
    Node,
    /// Through the link between nodes.
    Sys,
}

impl fmt::Display for Proximity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Proximity::Same => "X",
            Proximity::NvLink(links) => return f.pad(&format!("NV{links}")),
            Proximity::Pix => "PIX",
            Proximity::Pxb => "PXB",
            Proximity::Phb => "PHB",
            Proximity::Node => "NODE",
            Proximity::Sys => "SYS",
        };
        f.pad(word)
    }
}

impl Serialize for Proximity {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// The place of a function in the tree, to compare with another's. Computed once if one function is
/// compared with many.
#[derive(Debug, Clone)]
pub struct Way<'a> {
    device: &'a PciDevice,
    /// It and the bridges above it, root port first.
    down: Vec<Bdf>,
    /// The host bridge above it, by the kernel's name; empty if unknown.
    root: Cow<'a, str>,
    /// Its node, or the only one of the host.
    node: Option<NodeId>,
    /// The package of that node's cores.
    package: Option<u32>,
}

impl Topology {
    /// How near two functions are. Unknown distances count as far: an unknown function is
    /// [`Proximity::Sys`] from every other.
    pub fn proximity(&self, a: Bdf, b: Bdf) -> Proximity {
        if a == b {
            return Proximity::Same;
        }
        let (Some(first), Some(second)) = (self.device(a), self.device(b)) else {
            return Proximity::Sys;
        };
        let gpus = first.kind() == DeviceKind::Gpu && second.kind() == DeviceKind::Gpu;
        match if gpus { self.nvlinks(a, b) } else { 0 } {
            0 => self.way(first).over_pcie(&self.way(second)),
            links => Proximity::NvLink(links),
        }
    }

    fn nvlinks(&self, a: Bdf, b: Bdf) -> u32 {
        let ends = (a.min(b), a.max(b));
        self.fabric().links.iter().find(|link| (link.a, link.b) == ends).map_or(0, |l| l.links)
    }

    /// Returns the place of one of its functions.
    pub fn way<'a>(&self, device: &'a PciDevice) -> Way<'a> {
        let mut down = self.path_to_root(device.bdf);
        down.reverse();
        let root = match (&device.root, down.first()) {
            (Some(root), _) => Cow::Borrowed(root.as_str()),
            // Without the kernel's name, the bus directly below the host bridge identifies it.
            (None, Some(top)) => Cow::Owned(format!("pci{:04x}:{:02x}", top.segment(), top.bus())),
            (None, None) => Cow::default(),
        };
        let first = device.node.and_then(|node| self.node(node)?.pcpus.first());
        let package = first.and_then(|pcpu| Some(self.core_of(pcpu)?.package));
        Way { device, down, root, node: device.node, package }
    }
}

impl Topology {
    /// Returns the host bridge above a function, by the kernel's name (`pci0000:17`); none if
    /// unknown.
    pub fn host_bridge(&self, bdf: Bdf) -> Option<Cow<'_, str>> {
        let device = self.device(bdf)?;
        let root = match &device.root {
            Some(root) => Cow::Borrowed(root.as_str()),
            None => self.way(device).root,
        };
        (!root.is_empty()).then_some(root)
    }
}

impl Way<'_> {
    /// Whether the function's node is known.
    pub fn has_node(&self) -> bool {
        self.node.is_some()
    }

    /// Whether both functions are known to be on nodes of one package.
    pub fn is_on_package_of(&self, other: &Way<'_>) -> bool {
        self.package.is_some() && self.package == other.package
    }

    /// How near two functions are over PCIe, ignoring NVLinks.
    pub fn over_pcie(&self, other: &Way<'_>) -> Proximity {
        if self.device.bdf == other.device.bdf {
            return Proximity::Same;
        }
        let both = self.down.iter().zip(&other.down);
        let common = both.take_while(|(a, b)| a == b).count();
        if common > 0 {
            // Below the common bridge each further switch adds two bridges, so at most one bridge
            // means no further switch.
            let further = |down: &[Bdf]| down.len().saturating_sub(common + 1) > 1;
            let several = further(&self.down) || further(&other.down);
            return if several { Proximity::Pxb } else { Proximity::Pix };
        }
        if self.root == other.root {
            return Proximity::Phb;
        }
        match (self.node, other.node) {
            (Some(a), Some(b)) if a == b => Proximity::Node,
            _ => Proximity::Sys,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::file::from_json;

    /// A host with a switch below each of two root ports of one root complex, and one more root
    /// complex on its node.
    fn host() -> Topology {
        let device = |bdf: &str, parent: Option<&str>, root: &str, class: &str| {
            let parent = parent.map_or(String::new(), |p| format!("\"parent\":\"{p}\","));
            format!(
                "{{\"bdf\":\"{bdf}\",{parent}\"root\":\"{root}\",\"class\":\"{class}\",\
                 \"vendor\":\"0x10de\",\"device\":\"0x0001\",\"node\":0}}"
            )
        };
        let (bridge, end) = ("0x060400", "0x020000");
        let devices = [
            device("0000:00:01.0", None, "pci0000:00", bridge),
            device("0000:00:02.0", None, "pci0000:00", bridge),
            device("0000:01:00.0", Some("0000:00:01.0"), "pci0000:00", bridge),
            device("0000:02:00.0", Some("0000:01:00.0"), "pci0000:00", bridge),
            device("0000:02:01.0", Some("0000:01:00.0"), "pci0000:00", bridge),
            device("0000:03:00.0", Some("0000:02:00.0"), "pci0000:00", end),
            device("0000:04:00.0", Some("0000:02:01.0"), "pci0000:00", bridge),
            device("0000:05:00.0", Some("0000:04:00.0"), "pci0000:00", bridge),
            device("0000:06:00.0", Some("0000:05:00.0"), "pci0000:00", end),
            device("0000:07:00.0", Some("0000:00:02.0"), "pci0000:00", end),
            device("0000:07:00.1", Some("0000:00:02.0"), "pci0000:00", end),
            device("0000:80:00.0", None, "pci0000:80", end),
        ];
        from_json(&format!(
            "{{\"format\":\"gpuvm-host\",\"version\":1,\"host\":{{\"machine\":{{}},\
             \"nodes\":[{{\"os_index\":0,\"pcpus\":\"0\",\"memory_kib\":1}}],\
             \"cores\":[{{\"package\":0,\"core_id\":0,\"node\":0,\"pcpus\":\"0\"}}],\
             \"devices\":[{}]}}}}",
            devices.join(",")
        ))
        .unwrap()
    }

    #[test]
    fn levels_follow_the_bridges() {
        let host = host();
        for (a, b, wanted) in [
            ("99:00.0", "03:00.0", Proximity::Sys),
            ("03:00.0", "03:00.0", Proximity::Same),
            ("07:00.0", "07:00.1", Proximity::Pix),
            ("02:00.0", "03:00.0", Proximity::Pix),
            ("03:00.0", "06:00.0", Proximity::Pxb),
            ("03:00.0", "07:00.0", Proximity::Phb),
            ("03:00.0", "80:00.0", Proximity::Node),
        ] {
            let (a, b) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!(host.proximity(a, b), wanted, "{a} {b}");
            assert_eq!(host.proximity(b, a), wanted, "{b} {a}");
        }
    }
}
