//! The matrix of proximities between a host's devices for guests, from [`Topology::proximity`].

use super::{DeviceKind, PciDevice, Proximity, Topology};
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId};
use crate::words::natural;
use serde::Serialize;
use std::collections::BTreeMap;

/// A device of the matrix.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MatrixRow {
    /// `GPU0`, `mlx5_0`, `nvme0n1`.
    pub name: String,
    /// Address.
    pub bdf: Bdf,
    /// Its kind.
    pub kind: DeviceKind,
    /// Pcpus of its node; only for GPUs, as in `nvidia-smi topo -m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_affinity: Option<CpuSet>,
    /// Its node; only for GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_affinity: Option<NodeId>,
    /// Whether its node is not recorded, so that it may be nearer to others than `SYS` says.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_unknown: bool,
}

/// How near devices are to each other.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Matrix {
    /// GPUs by address, then NICs, then drives, each by name.
    pub devices: Vec<MatrixRow>,
    /// A row for each device, in the same order both ways.
    pub proximity: Vec<Vec<Proximity>>,
}

impl Matrix {
    /// The matrix of a host; `nvme`: with NVMe drives.
    pub fn of(topology: &Topology, nvme: bool) -> Matrix {
        let mut devices: Vec<MatrixRow> = topology
            .gpus()
            .enumerate()
            .map(|(index, gpu)| MatrixRow {
                cpu_affinity: gpu.node.and_then(|id| Some(topology.node(id)?.pcpus.clone())),
                numa_affinity: gpu.node,
                ..row(format!("GPU{index}"), gpu)
            })
            .collect();
        let mut nics: Vec<MatrixRow> = topology
            .of_kind(DeviceKind::Nic)
            .flat_map(|nic| nic.net.iter().flat_map(|net| &net.rdma).map(move |name| (name, nic)))
            .map(|(name, nic)| row(name.clone(), nic))
            .collect();
        nics.sort_by(|a, b| natural(&a.name, &b.name));
        devices.extend(nics);
        if nvme {
            let mut names: BTreeMap<Bdf, &str> = BTreeMap::new();
            for drive in &topology.parts().drives {
                if let Some(bdf) = drive.bdf {
                    names.entry(bdf).or_insert(&drive.name);
                }
            }
            let name = |bdf: Bdf| names.get(&bdf).map_or(bdf.to_string(), |&name| name.into());
            let mut drives: Vec<MatrixRow> =
                topology.drives().map(|drive| row(name(drive.bdf), drive)).collect();
            drives.sort_by(|a, b| natural(&a.name, &b.name));
            devices.extend(drives);
        }
        let near =
            |a: &MatrixRow| devices.iter().map(|b| topology.proximity(a.bdf, b.bdf)).collect();
        let proximity = devices.iter().map(near).collect();
        Matrix { devices, proximity }
    }
}

fn row(name: String, device: &PciDevice) -> MatrixRow {
    let (cpu_affinity, numa_affinity) = (None, None);
    let node_unknown = device.node.is_none();
    MatrixRow {
        name,
        bdf: device.bdf,
        kind: device.kind(),
        cpu_affinity,
        numa_affinity,
        node_unknown,
    }
}
