//! Reasons for devices besides GPUs, as data and as text.

use super::{GpuName, label};
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::placement::ExtraKind;
use crate::placement::explain::{count, list};
use crate::topology::Proximity;
use crate::words::are;
use std::fmt;

/// A device that was taken, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BesideGpu {
    /// The device.
    pub device: Bdf,
    /// The guest's GPU that it is nearest to, and how near.
    pub gpu: Option<(GpuName, Proximity)>,
    /// Its node.
    pub node: Option<NodeId>,
}

impl fmt::Display for BesideGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.gpu, self.node) {
            (Some((gpu, proximity)), _) => {
                write!(f, "{} beside GPU {gpu} ({proximity})", self.device)
            }
            (None, Some(node)) => write!(f, "{} on node {node}", self.device),
            (None, None) => self.device.fmt(f),
        }
    }
}

/// A reason for devices besides GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BesideReason {
    /// The chosen devices.
    Taken {
        /// Devices.
        devices: Vec<BesideGpu>,
        /// Their kind.
        kind: ExtraKind,
        /// How many are available; `None` if they were named.
        of: Option<usize>,
    },
    /// On the node of a GPU, but below no PCIe switch with one.
    OffSwitch {
        /// Devices.
        devices: Vec<Bdf>,
    },
    /// Not on the node of any GPU.
    OffNode {
        /// Devices.
        devices: Vec<Bdf>,
    },
    /// The kernel reports no node for them.
    Unknown {
        /// Devices.
        devices: Vec<Bdf>,
    },
    /// GPUs without a device on their node.
    NoneOnNode {
        /// The kind of the devices.
        kind: ExtraKind,
        /// GPUs.
        gpus: Vec<GpuName>,
        /// Why devices that are there are not available, a line each with its address.
        refused: Vec<String>,
    },
    /// GPUs without a device on their switch.
    NoneOnSwitch {
        /// The kind of the devices.
        kind: ExtraKind,
        /// GPUs.
        gpus: Vec<GpuName>,
        /// Why devices that are there are not available, a line each with its address.
        refused: Vec<String>,
    },
}

impl fmt::Display for BesideReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BesideReason::Taken { devices, of: None, .. } => {
                write!(f, "{}, as requested", list(devices))
            }
            BesideReason::Taken { devices, kind, of: Some(free) } => {
                write!(f, "{}, of {} available", list(devices), count(*free, kind.noun()))
            }
            BesideReason::OffSwitch { devices } => write!(
                f,
                "{} {} below no PCIe switch with a GPU of the guest, on the node of one",
                list(devices),
                are(devices.len())
            ),
            BesideReason::OffNode { devices } => write!(
                f,
                "{} {} not on the node of any GPU of the guest",
                list(devices),
                are(devices.len())
            ),
            BesideReason::Unknown { devices } => write!(
                f,
                "whether {} {} on the node of a GPU of the guest is unknown: the kernel names no \
                 node",
                list(devices),
                are(devices.len())
            ),
            BesideReason::NoneOnNode { kind, gpus, refused } => {
                none(f, *kind, "node", gpus, refused)
            }
            BesideReason::NoneOnSwitch { kind, gpus, refused } => {
                none(f, *kind, "switch", gpus, refused)
            }
        }
    }
}

/// Writes that GPUs have no device on their node or switch, and why those there are not taken.
fn none(
    f: &mut fmt::Formatter<'_>,
    kind: ExtraKind,
    place: &str,
    gpus: &[GpuName],
    refused: &[String],
) -> fmt::Result {
    let (noun, gpus) = (kind.noun(), label(gpus));
    match refused {
        [] => write!(f, "no {noun} on the {place} of {gpus}"),
        lines => write!(f, "no {noun} available on the {place} of {gpus}: {}", list(lines)),
    }
}
