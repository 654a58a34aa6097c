//! How near two PCI functions are, in the words of `nvidia-smi topo -m`.
//!
//! Computed from the bridge path, the root complex and the node of each, and from the NVLinks that discovery found;
//! no tool is asked. NVIDIA documents the levels in NVML's `nvmlGpuTopologyLevel_t`: one PCIe switch, several
//! switches, one host bridge, one NUMA node, the system. It knows nothing of bandwidth.

use super::{PciDevice, Topology};
use crate::bdf::Bdf;
use serde::{Serialize, Serializer};
use std::fmt;

/// Is how near two functions are; the nearer, the smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Proximity {
    /// The same function.
    Same,
    /// So many NVLinks.
    NvLink(u32),
    /// At most one PCIe switch or bridge between them.
    Pix,
    /// Several PCIe switches or bridges, but no host bridge.
    Pxb,
    /// The host bridge that both hang below.
    Phb,
    /// Several host bridges of one node.
    Node,
    /// The link between nodes.
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

impl Topology {
    /// How near two functions are. What the record does not tell is taken as far: an unknown function is
    /// [`Proximity::Sys`] from every other.
    pub fn proximity(&self, a: Bdf, b: Bdf) -> Proximity {
        if a == b {
            return Proximity::Same;
        }
        let (Some(first), Some(second)) = (self.device(a), self.device(b)) else {
            return Proximity::Sys;
        };
        match self.nvlinks(a, b) {
            0 => self.over_pcie(first, second),
            links => Proximity::NvLink(links),
        }
    }

    /// NVLinks between two GPUs.
    fn nvlinks(&self, a: Bdf, b: Bdf) -> u32 {
        let ends = (a.min(b), a.max(b));
        self.fabric().links.iter().find(|link| (link.a, link.b) == ends).map_or(0, |l| l.links)
    }

    /// How near two different functions are over PCIe.
    fn over_pcie(&self, a: &PciDevice, b: &PciDevice) -> Proximity {
        let (up_a, up_b) = (self.path_to_root(a.bdf), self.path_to_root(b.bdf));
        let common = up_a.iter().rev().zip(up_b.iter().rev()).take_while(|(a, b)| a == b).count();
        if common > 0 {
            // Below the common bridge each further switch adds two bridges, so at most one means: no further switch.
            let further = |up: &[Bdf]| up.len().saturating_sub(common + 1) > 1;
            return if further(&up_a) || further(&up_b) { Proximity::Pxb } else { Proximity::Pix };
        }
        let root = |device: &PciDevice, up: &[Bdf]| match (&device.root, up.last()) {
            (Some(root), _) => Some(root.clone()),
            // Without the kernel's name, functions on the bus right below one host bridge share it.
            (None, Some(top)) => Some(format!("pci{:04x}:{:02x}", top.segment(), top.bus())),
            (None, None) => None,
        };
        if root(a, &up_a) == root(b, &up_b) {
            return Proximity::Phb;
        }
        let only = match self.nodes() {
            [node] => Some(node.os_index),
            _ => None,
        };
        match (a.node.or(only), b.node.or(only)) {
            (Some(a), Some(b)) if a == b => Proximity::Node,
            _ => Proximity::Sys,
        }
    }
}
