//! vGPU types of each card, the number creatable now, and the holders of existing ones: `vgpu
//! list`.

use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::placement::{ExistingVgpu, Occupancy, VgpuOffer, shared_cards};
use crate::topology::model::model;
use crate::topology::{Mig, PciDevice, Sriov, Topology, VfKind, VgpuInterface};
use serde::Serialize;

/// A card whose driver shares it among guests, or may.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VgpuCard {
    /// Address.
    pub bdf: Bdf,
    /// Index among the host's GPUs; `None` if it is set aside.
    pub index: Option<usize>,
    /// Model, or the ids.
    pub model: String,
    /// Node.
    pub node: Option<NodeId>,
    /// Driver that has it.
    pub driver: Option<String>,
    /// By which interface.
    pub interface: VgpuInterface,
    /// Maximum number of virtual functions; `None` without SR-IOV.
    pub total_vfs: Option<u32>,
    /// Virtual functions that it has.
    pub enabled_vfs: Option<u32>,
    /// Its virtual functions.
    pub vfs: Vec<VgpuFunction>,
    /// MIG mode; `None` if it has none, or NVML did not report it.
    pub mig: Option<Mig>,
    /// Types that it offers.
    pub types: Vec<VgpuOffer>,
    /// vGPUs that exist, or that domains have by their definition.
    pub vgpus: Vec<ExistingVgpu>,
    /// Why no guest gets a vGPU of it; `None` if nothing speaks against it.
    pub closed: Option<String>,
    /// Where licences of its vGPUs come from: the guest has to get one.
    pub licence: &'static str,
}

/// A virtual function of a card.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VgpuFunction {
    /// Address.
    pub bdf: Bdf,
    /// What it is.
    pub kind: Option<VfKind>,
    /// Number of the type that is set; `None` if none is.
    pub type_id: Option<u32>,
    /// Driver that has it.
    pub driver: Option<String>,
    /// Why it gets no vGPU, to follow "is"; `None` if it is not excluded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded: Option<String>,
}

/// Lists the cards.
pub fn cards(topology: &Topology, held: &Occupancy) -> Vec<VgpuCard> {
    let shared = shared_cards(topology, held).into_iter();
    let listed = shared.filter_map(|shared| {
        let card = topology.device(shared.bdf)?;
        let (total_vfs, enabled_vfs) = match card.sriov {
            Some(Sriov::Pf { total, enabled }) => (Some(total), Some(enabled)),
            _ => (None, None),
        };
        let excluded = |vf: &PciDevice| {
            let found = shared.excluded.iter().find(|(bdf, _)| *bdf == vf.bdf);
            found.map(|(_, why)| why.clone())
        };
        let function = |vf: &PciDevice| VgpuFunction {
            bdf: vf.bdf,
            kind: topology.vf_kind(vf),
            type_id: vf.vgpu_type(),
            driver: vf.driver.clone(),
            excluded: excluded(vf),
        };
        Some(VgpuCard {
            bdf: card.bdf,
            index: topology.gpus().position(|gpu| gpu.bdf == card.bdf),
            model: model(card),
            node: card.node,
            driver: card.driver.clone(),
            interface: shared.interface,
            total_vfs,
            enabled_vfs,
            vfs: topology.vfs_of(card.bdf).map(function).collect(),
            mig: card.mig,
            types: shared.offers,
            vgpus: shared.existing,
            closed: shared.closed,
            licence: "guest",
        })
    });
    listed.collect()
}
