//! Which guests may be moved, and the refusals of a place.

use super::{RoomError, RoomRequest};
use crate::bdf::Bdf;
use crate::domain::DomainXml;
use crate::domain::disk_change::target_of;
use crate::domain::view::gpu_indexes;
use crate::domain_history::starts_saved;
use crate::error::{Coded as _, Error, Result, dump_and_define};
use crate::guest::{refuse_iommufd, stop_first};
use crate::hypervisor::{DomainState, DomainSummary, Hypervisor, XmlOf};
use crate::partition;
use crate::placement::{Held, Occupancy, Placement};
use crate::request::{GpuWish, Near, Request, VgpuCardName, VgpuWish};
use crate::set::SetRequest;
use crate::shell::word;
use crate::startable::{refuse_disks, refuse_networks_down};
use crate::stop::{self, Down, way_down};
use crate::topology::{DeviceKind, Topology, Trust};
use crate::tune::subject::Subject;
use crate::tune::subjects::{Subjects, refused};
use crate::world::World;
use gpuvm_core::guest::gpus_of;
use gpuvm_core::placement::reason::{Because, BesideReason, Reason, Topic};
use gpuvm_core::tune::items::Resize;
use gpuvm_core::tune::kinds::Kinds;
use gpuvm_core::tune::{Item, Items, TuneError, Tuned, together, tune};
use std::collections::BTreeSet;

/// Whether a guest's record says that it may be moved.
pub(super) fn is_movable(xml: &DomainXml) -> bool {
    let record = xml.record().ok().flatten().filter(|_| xml.is_ours());
    record.is_some_and(|record| record.request.movable)
}

/// Refuses a guest that cannot be moved as it is now.
pub(super) fn refuse_fixed(hypervisor: &dyn Hypervisor, row: &DomainSummary) -> Result<()> {
    let refused = |why: String, hint: String| {
        Err(RoomError::Fixed { name: row.name.clone(), why }.hint(hint))
    };
    if !row.persistent {
        let why = "has no persistent definition, so it would not outlive a stop".to_owned();
        return refused(why, dump_and_define(&row.name));
    }
    if !matches!(row.state, DomainState::Running | DomainState::ShutOff) {
        let (is, hint) = stop_first(row);
        return refused(is.to_owned(), hint);
    }
    match starts_saved(hypervisor, &row.name).into_iter().next() {
        None => match runs_otherwise(hypervisor, row)? {
            None => Ok(()),
            Some(what) => {
                let name = word(&row.name);
                let hint = format!(
                    "`gpuvm restart {name}` starts it as it is defined; `virsh dumpxml {name}` and \
                     `virsh dumpxml --inactive {name}` show both"
                );
                refused(format!("runs with other {what} than it is defined with"), hint)
            }
        },
        Some(saved) => {
            let hint = format!("`gpuvm start {}`, then again", word(&row.name));
            refused(format!("has {saved}"), hint)
        }
    }
}

/// Settings that a guest runs with and its definition does not have: they would be lost by a stop,
/// and the plan is made for the definition; `None` if it is off, or there are none.
fn runs_otherwise(
    hypervisor: &dyn Hypervisor,
    row: &DomainSummary,
) -> Result<Option<&'static str>> {
    if !row.state.is_active() {
        return Ok(None);
    }
    let read = |of| -> Result<DomainXml> { Ok(DomainXml::parse(&hypervisor.xml(&row.name, of)?)?) };
    let (runs, defined) = (read(XmlOf::Live)?, read(XmlOf::Inactive)?);
    let (held, wanted) = (runs.held(false)?, defined.held(false)?);
    let disks = |xml: &DomainXml| -> Vec<String> { xml.disks().filter_map(target_of).collect() };
    let nics = |xml: &DomainXml| {
        xml.root().find("devices").map_or(0, |devices| {
            devices.elements().filter(|device| device.name() == "interface").count()
        })
    };
    let sorted = |devices: &[Bdf]| devices.iter().copied().collect::<BTreeSet<Bdf>>();
    let differs = [
        ("devices", sorted(&held.devices) != sorted(&wanted.devices)),
        ("pins", held.vcpu_pins != wanted.vcpu_pins),
        ("memory", held.memory != wanted.memory),
        ("disks", disks(&runs) != disks(&defined)),
        ("NICs", nics(&runs) != nics(&defined)),
    ];
    Ok(differs.into_iter().find(|(_, differs)| *differs).map(|(what, _)| what))
}

/// Refuses a place at which others reach the NVLinks of the new guest, as `create` would.
pub(super) fn refuse_shared(
    topology: &Topology,
    wanted: &RoomRequest,
    placement: &Placement,
) -> Result<()> {
    let Some(why) = placement.shared_fabric() else { return Ok(()) };
    let said = topology.machine().trust;
    if Trust::refuses(said, wanted.accept_shared_fabric) {
        let advice = why.advice(topology);
        return Err(RoomError::SharedFabric { why: why.to_string() }.hint(advice));
    }
    Ok(())
}

/// Refuses a place whose functions could not be passed through as requested, as `create` does.
pub(super) fn refuse_impassable(
    world: &World,
    topology: &Topology,
    (wanted, request): (&RoomRequest, &Request),
    placement: &Placement,
) -> Result<()> {
    let stack = world.stack(topology, wanted.guest.taken.assume);
    refuse_iommufd(world, (topology, stack), request, placement)
}

/// Refuses a place from which its NICs and drives are farther than requested when it was made.
pub(super) fn refuse_far(subject: &Subject, tuned: &Tuned) -> Result<()> {
    let Some(record) = subject.xml.record().ok().flatten() else { return Ok(()) };
    let extras = record.request.extras;
    let reasons = tuned.placement.iter().flat_map(|placement| &placement.reasons);
    for Reason { choice, because, .. } in reasons {
        let (option, near) = match choice {
            Topic::Nics | Topic::Vfs => ("--nic-near", extras.nic_near),
            Topic::Nvmes => ("--nvme-near", extras.nvme_near),
            _ => continue,
        };
        let is_far = match because {
            Because::Beside(BesideReason::OffSwitch { .. }) => near == Near::Switch,
            Because::Beside(BesideReason::OffNode { .. }) => near != Near::Any,
            _ => false,
        };
        if is_far {
            let name = subject.name.clone();
            let hint = format!("`gpuvm show {}` shows what it has", word(&name));
            let near = if near == Near::Switch { "switch" } else { "node" };
            let why = format!("was made with {option} {near}, and then {because}");
            return Err(RoomError::Fixed { name, why }.hint(hint));
        }
    }
    Ok(())
}

/// The compromises accepted for a guest's place.
pub(super) fn accepted(wanted: &RoomRequest) -> SetRequest {
    let accept_shared_fabric = wanted.accept_shared_fabric;
    SetRequest { accept_shared_fabric, ..SetRequest::default() }
}

pub(super) fn of_kind(devices: &[Bdf], topology: &Topology) -> Vec<Bdf> {
    let kind = |bdf: &Bdf| topology.device(*bdf).map(|device| device.kind());
    devices.iter().copied().filter(|bdf| kind(bdf) == Some(DeviceKind::Gpu)).collect()
}

/// The settings of a move to these GPUs; `None` if the guest has none, and its pins and bound
/// memory are planned again.
pub(super) fn items(gpus: Option<GpuWish>, vgpu: Option<&VgpuWish>, xml: &DomainXml) -> Items {
    match (gpus, vgpu) {
        (Some(gpus), _) => Items { resize: Resize::gpus(Some(gpus)), ..Items::default() },
        (None, Some(there)) => {
            let was = xml.record().ok().flatten().and_then(|record| record.request.vgpu);
            let had = was.as_ref().and_then(|wish| wish.gpu);
            // A card that was not named stays so, and one that was is now another one.
            let vgpu_said = was.map(|was| VgpuWish { gpu: had.and(there.gpu), ..was });
            let vgpu = Item::To(there.clone());
            let resize = Resize { vgpu, vgpu_said, ..Resize::default() };
            Items { resize: Some(resize), ..Items::default() }
        }
        (None, None) => Items {
            pins: anew(xml, "cputune/vcpupin"),
            topology: anew(xml, "cputune/vcpupin"),
            emulator: anew(xml, "cputune/emulatorpin"),
            iothread_pins: anew(xml, "cputune/iothreadpin"),
            cells: anew(xml, "cpu/numa"),
            memory_nodes: anew(xml, "numatune"),
            unnamed: Items::all().unnamed,
            ..Items::default()
        },
    }
}

/// The vGPUs of a guest at its new place; `None` if it has none.
pub(super) fn vgpu_at(request: &Request, placement: &Placement) -> Option<VgpuWish> {
    let wish = request.vgpu.as_ref()?;
    let mut cards: Vec<Bdf> = placement.vgpus.iter().map(|vgpu| vgpu.card).collect();
    cards.dedup();
    let gpu = match cards[..] {
        [card] => Some(VgpuCardName::At(card)),
        _ => None,
    };
    Some(VgpuWish { gpu, ..wish.clone() })
}

/// Indexes of the GPUs that a guest holds, and of the cards of its vGPUs.
pub(super) fn cards(xml: &DomainXml, topology: &Topology) -> Vec<usize> {
    let vgpus = xml.vgpus().unwrap_or_default();
    let mut all = gpus_of(xml, topology);
    all.extend(vgpus.iter().map(|vgpu| vgpu.card));
    gpu_indexes(topology, &all)
}

/// Why a guest stays at its place, and the way out; `None` if it can be moved.
pub(super) fn fixed(xml: &DomainXml, topology: &Topology) -> Option<(String, String)> {
    let devices = xml.held(false).map(|held| held.devices).unwrap_or_default();
    let name = word(&xml.name()).into_owned();
    if devices.iter().any(|bdf| topology.is_coherent(*bdf)) {
        let why = "has GPUs with coherent memory, whose cells, buses and SMMUv3s are made with it";
        let hint = format!("`gpuvm delete {name} --keep-data` ends it and keeps its data disks");
        return Some((why.to_owned(), hint));
    }
    let kinds = Kinds::new(topology, xml);
    let vgpus = xml.vgpus().unwrap_or_default();
    let is_recorded = |bdf: &Bdf| vgpus.iter().any(|vgpu| vgpu.function == *bdf);
    let is_other = |uuid: &String| !vgpus.iter().any(|vgpu| vgpu.is_device(uuid));
    if devices.iter().any(|bdf| kinds.is_vgpu(*bdf) && !is_recorded(bdf))
        || xml.mdevs().iter().any(is_other)
    {
        let why = "has a vGPU that gpuvm did not set up";
        return Some((why.to_owned(), format!("`gpuvm set {name} --no-vgpu` removes it")));
    }
    None
}

/// The planned state of a setting: planned again if the definition has it.
pub(super) fn anew<T>(xml: &DomainXml, path: &str) -> Item<T> {
    if xml.root().find(path).is_some() { Item::On } else { Item::Keep }
}

/// A guest at its new place, beside the resources of others at that time and of the new guest.
pub(super) fn moved(
    subject: &Subject,
    subjects: &Subjects,
    (now, new): (&Occupancy, &Held),
    (gpus, vgpu, topology): (&[Bdf], Option<&VgpuWish>, &Topology),
) -> Result<Tuned, TuneError> {
    let gpus = (!gpus.is_empty()).then(|| GpuWish::Exact(gpus.to_vec()));
    let items = items(gpus, vgpu, &subject.xml);
    let mut others = together::without_member(now, &subject.xml, true);
    others.domains.push(new.clone());
    let given = subjects.beside(&others, &items, topology);
    tune(&subject.xml, &given)
}

/// Refuses a guest that runs and would not hear that it is to shut down, or could not start again
/// at its new place, as far as that is free: `is_free`.
pub(super) fn refuse_unready(
    world: &World,
    subject: &Subject,
    tuned: &Tuned,
    is_free: bool,
) -> Result<()> {
    // Whether a recorded guest would react and start is unknown.
    if subject.is_file {
        return Ok(());
    }
    let (hypervisor, name) = (world.hypervisor()?, &subject.name);
    let (step, state) = way_down(&*hypervisor, name, Down { force: false, wait_s: 0 })?;
    if step.is_none() {
        return Ok(());
    }
    stop::refuse_still("stop", name, state, step.as_ref())?;
    refuse_disks(&subject.xml, world)?;
    refuse_networks_down(&subject.xml, world)?;
    if is_free {
        let live = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
        partition::to_move(world, &live, &tuned.after, true)?;
    }
    Ok(())
}

/// The error that a guest cannot be moved.
pub(super) fn cannot_move(subject: &Subject, error: &TuneError) -> Error {
    let message = format!("domain `{}` cannot be moved", subject.name);
    refused(subject, &message, error, |_| false)
}
