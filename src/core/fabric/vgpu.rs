//! The partitions that vGPUs need where Fabric Manager activates them with virtual functions
//! (`FABRIC_MODE=2`): CUDA in a guest waits for that also with a vGPU of one GPU.
//!
//! Only vGPUs of a whole card use NVLink: several of them need the partition of exactly their cards.
//! A smaller one needs that of its card, which guests with other vGPUs of this card use, too. Those
//! backed by MIG need none. That smaller ones need the partition of one GPU is not documented.

use super::need::{Need, NeedRefusal, NeededGpu, none};
use crate::bdf::Bdf;
use crate::topology::{
    FabricModel, GuestVgpu, MdevType, NoPartition, PciDevice, Sriov, Topology, Vgpu, is_mig_backed,
    plain_name,
};

/// The part of its card that a vGPU has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardShare {
    /// All of it.
    Whole,
    /// A part of it.
    Part,
    /// A GPU instance of MIG, or a part of one.
    Mig,
}

/// A vGPU on its card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardVgpu {
    /// The card.
    pub card: Bdf,
    /// The virtual function that is it, or the parent of its mediated device.
    pub function: Bdf,
    /// The part of the card.
    pub share: CardShare,
}

/// Whether a type's frame buffer is all of a card's memory.
fn is_whole_type(topology: &Topology, card: &PciDevice, name: &str) -> bool {
    !is_mig_backed(name) && topology.vgpus_that_fit(card, name) == Some(1)
}

/// The part of its card that a vGPU has; `number`: how many vGPUs of the card its guest has.
fn share(topology: &Topology, vgpu: &GuestVgpu, number: usize) -> CardShare {
    if is_mig_backed(plain_name(&vgpu.name)) {
        return CardShare::Mig;
    }
    let part_unless = |is_whole| if is_whole { CardShare::Whole } else { CardShare::Part };
    if number > 1 {
        return CardShare::Part;
    }
    let function = topology.device(vgpu.function);
    if let Some(Vgpu::Mdev { types, .. }) = function.and_then(|function| function.vgpu.as_ref()) {
        let is_it = |of: &&MdevType| of.id == vgpu.type_id;
        return part_unless(types.iter().find(is_it).and_then(|of| of.max_instances) == Some(1));
    }
    let Some(card) = topology.device(vgpu.card) else { return CardShare::Part };
    let is_set = function.is_some_and(|vf| vf.vgpu_type().is_some());
    let mut others = topology.vfs_of(vgpu.card).filter(|vf| vf.bdf != vgpu.function);
    part_unless(if is_set {
        // The driver offers nothing beside a vGPU of the whole card.
        others.all(|vf| match &vf.vgpu {
            Some(Vgpu::Vfio { current, creatable }) => *current == 0 && creatable.is_empty(),
            _ => true,
        })
    } else {
        others.all(|vf| vf.vgpu_type().is_none()) && is_whole_type(topology, card, &vgpu.name)
    })
}

/// Returns a guest's vGPUs of the GPUs of an NVLink board.
fn of_board(topology: &Topology, vgpus: &[GuestVgpu]) -> Vec<CardVgpu> {
    let ruled: Vec<Bdf> = topology.ruled().collect();
    let on_board = vgpus.iter().filter(|vgpu| ruled.contains(&vgpu.card));
    let one = |vgpu: &GuestVgpu| {
        let number = vgpus.iter().filter(|other| other.card == vgpu.card).count();
        let GuestVgpu { card, function, .. } = *vgpu;
        CardVgpu { card, function, share: share(topology, vgpu, number) }
    };
    on_board.map(one).collect()
}

/// Returns the vGPUs of a domain of the GPUs of an NVLink board: the recorded ones, and those of a
/// domain that others made, by its functions and the UUIDs of its mediated devices.
pub fn vgpus_of_domain(
    topology: &Topology,
    recorded: &[GuestVgpu],
    functions: &[Bdf],
    mdevs: &[String],
) -> Vec<CardVgpu> {
    let mut all = recorded.to_vec();
    for vf in topology.devices() {
        let card = match vf.sriov {
            Some(Sriov::Vf { pf }) => pf,
            _ => vf.bdf,
        };
        let vgpu = |type_id: String, name: Option<&str>, uuid| {
            let (function, name) = (vf.bdf, name.unwrap_or_default().to_owned());
            GuestVgpu { card, function, type_id, name, uuid }
        };
        match &vf.vgpu {
            Some(Vgpu::Vfio { current, .. }) if functions.contains(&vf.bdf) => {
                let known = all.iter().any(|one| one.function == vf.bdf);
                let name = topology.device(card);
                let name = name.and_then(|card| topology.vgpu_type_name(card, *current));
                all.extend((!known).then(|| vgpu(current.to_string(), name, None)));
            }
            Some(Vgpu::Mdev { types, devices }) => {
                for mdev in devices {
                    let is_it = |uuid: &str| uuid.eq_ignore_ascii_case(&mdev.uuid);
                    let known = all.iter().filter_map(|one| one.uuid.as_deref()).any(is_it);
                    if known || !mdevs.iter().any(|uuid| is_it(uuid)) {
                        continue;
                    }
                    let of = types.iter().find(|of| Some(&of.id) == mdev.type_id.as_ref());
                    let type_id = mdev.type_id.clone().unwrap_or_default();
                    let uuid = Some(mdev.uuid.clone());
                    all.push(vgpu(type_id, of.map(|of| of.name.as_str()), uuid));
                }
            }
            _ => {}
        }
    }
    of_board(topology, &all)
}

/// Returns the partitions that must be active for a guest with these vGPUs: one for all cards that
/// it has as a whole, and one for each card of which it has a part.
pub fn needs_of_vgpus(topology: &Topology, vgpus: &[GuestVgpu]) -> Result<Vec<Need>, NeedRefusal> {
    if topology.fabric().model != FabricModel::SharedNvswitch {
        return Ok(Vec::new());
    }
    let all = of_board(topology, vgpus);
    let of = |share| all.iter().filter(move |one: &&CardVgpu| one.share == share);
    let whole: Vec<(Bdf, Bdf)> = of(CardShare::Whole).map(|one| (one.card, one.function)).collect();
    let mut needs = Vec::new();
    if !whole.is_empty() {
        needs.push(need(topology, &whole)?);
    }
    for one in of(CardShare::Part) {
        let is_known = |need: &Need| need.gpus.iter().any(|gpu| gpu.bdf == one.card);
        if needs.iter().any(is_known) {
            continue;
        }
        let is_own = |vf: &PciDevice| all.iter().any(|own| own.function == vf.bdf);
        let others = topology.vfs_of(one.card).filter(|vf| !is_own(vf)).map(|vf| vf.bdf);
        let beside = others.collect();
        needs.push(Need { beside, ..need(topology, &[(one.card, one.function)])? });
    }
    Ok(needs)
}

/// The partition of exactly these cards, each with the guest's function of it. Which function is of
/// which GPU of Fabric Manager's list is known by module ids only.
fn need(topology: &Topology, cards: &[(Bdf, Bdf)]) -> Result<Need, NeedRefusal> {
    let gpus: Vec<Bdf> = cards.iter().map(|(card, _)| *card).collect();
    let unknown = topology.without_module(&gpus);
    if unknown > 0 {
        let (gpus, how) = (gpus.len(), topology.how_modules());
        return Err(NeedRefusal::UnknownGpus { gpus, unknown, how });
    }
    let Ok(Some(partition)) = topology.partition_of(&gpus).map_err(|NoPartition { .. }| ()) else {
        return Err(none(topology, &gpus));
    };
    let modules = &topology.fabric().module_ids;
    let needed = |&(bdf, vf): &(Bdf, Bdf)| NeededGpu {
        bdf,
        module: modules.iter().find(|(known, _)| *known == bdf).map(|(_, module)| *module),
        vf: Some(vf),
    };
    let mut gpus: Vec<NeededGpu> = cards.iter().map(needed).collect();
    gpus.sort_by_key(|gpu| (gpu.module, gpu.bdf));
    Ok(Need { partition: partition.id.0, gpus, beside: Vec::new() })
}
