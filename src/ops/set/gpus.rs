//! Other GPUs of a guest: which it may have, and who reaches its NVLinks then.

use super::{SetError, SetRequest};
use crate::bdf::Bdf;
use crate::error::{Coded as _, Result};
use crate::history::guest::accepts_shared_fabric;
use crate::placement::{Occupancy, Placement, shared_nvlink};
use crate::request::GpuWish;
use crate::topology::{DeviceKind, FabricModel, PciDevice, Topology, Trust};
use crate::tune::subject::Subject;
use crate::tune::subjects::Subjects;
use crate::world::World;
use gpuvm_core::domain::DomainXml;
use gpuvm_core::domain::claims::Claims;
use gpuvm_core::guest::gpus_of;
use gpuvm_core::tune::candidates;
use gpuvm_core::tune::together::without;

pub(super) fn number(subject: &Subject, subjects: &Subjects) -> Option<u32> {
    u32::try_from(gpus_of(&subject.xml, subjects.topology()).len()).ok()
}

/// Whether its GPUs were chosen by a plan: its record has their number alone.
pub(super) fn were_counted(subject: &Subject) -> bool {
    let record = subject.xml.record().ok().flatten().filter(|_| subject.xml.is_ours());
    record.is_some_and(|record| matches!(record.request.gpus, GpuWish::Count(_)))
}

/// The sets of GPUs of which the guest gets one, the nearest first; one that stays as it is where
/// it has that number already.
pub(super) fn choices(
    subject: &Subject,
    subjects: &Subjects,
    wanted: &SetRequest,
) -> Result<Vec<Option<GpuWish>>> {
    let own = gpus_of(&subject.xml, subjects.topology());
    if let Some(set) = &wanted.gpu_set {
        let is_own = set.len() == own.len() && set.iter().all(|gpu| own.contains(gpu));
        let wish = if set.is_empty() { GpuWish::Count(0) } else { GpuWish::Exact(set.clone()) };
        return Ok(vec![(!is_own).then_some(wish)]);
    }
    let Some(count) = wanted.gpus else { return Ok(vec![None]) };
    if own.len() == count as usize {
        // With its NVSwitches, if it has not all, or others.
        let is_whole = has_its_switches(&subject.xml, &own, subjects.topology());
        return Ok(vec![(!is_whole).then_some(GpuWish::Exact(own))]);
    }
    let others = without(subjects.occupancy(), &subject.name);
    let sets = candidates(subjects.topology(), &others, &own, count);
    Ok(sets.into_iter().map(Some).collect())
}

/// Whether a guest with these GPUs has the NVSwitches that their partition takes; true where they
/// are of none.
fn has_its_switches(xml: &DomainXml, gpus: &[Bdf], topology: &Topology) -> bool {
    let Ok(Some(partition)) = topology.partition_of(gpus) else { return true };
    let passed = Claims::read(xml).passed;
    let passed: Vec<Bdf> = passed.iter().map(|passed| passed.bdf.value).collect();
    let switches = topology.among(&passed, DeviceKind::NvSwitch, false);
    let is_of_pool = |switch: &&PciDevice| partition.nvswitch_pool.contains(&switch.bdf);
    topology.fabric().model != FabricModel::FullPassthrough
        || switches.len() == partition.nvswitches as usize && switches.iter().all(is_of_pool)
}

/// Refuses GPUs by which others reach the NVLinks of a guest, by its index, unless that was
/// accepted.
pub(crate) fn refuse_shared(
    subjects: &Subjects,
    at: usize,
    placement: Option<&Placement>,
    wanted: &SetRequest,
    world: &World,
) -> Result<()> {
    let has_gpus = wanted.gpus.is_some() || wanted.gpu_set.is_some();
    // NICs and drives change nothing on NVLink, but they may be below ports that do not redirect.
    let is_on_nvlink = placement.is_some_and(|place| place.shared_nvlink().is_some());
    if !has_gpus && (wanted.functions.is_kept() || is_on_nvlink) {
        return Ok(());
    }
    allowed(subjects, &subjects.all[at], placement, wanted, world)
}

pub(crate) fn allowed(
    subjects: &Subjects,
    subject: &Subject,
    placement: Option<&Placement>,
    wanted: &SetRequest,
    world: &World,
) -> Result<()> {
    let Some(why) = placement.and_then(Placement::shared_fabric) else { return Ok(()) };
    let said = subjects.topology().machine().trust;
    let is_accepted = wanted.accept_shared_fabric
        || placement.is_some_and(|at| at.shared_nvlink().is_some())
            && shares_itself(subject, subjects)?
        // The UUID in a file proves nothing.
        || !subject.is_file && subject.xml.uuid().is_some_and(|uuid| was_accepted(world, &uuid));
    if Trust::refuses(said, is_accepted) {
        return Err(
            SetError::SharedFabric { why: why.to_string() }.hint(why.advice(subjects.topology()))
        );
    }
    Ok(())
}

/// Whether others can reach its NVLinks by its own functions, whoever else is there: it was
/// accepted for that, and for others, too. Functions that a neighbour was given later were accepted
/// for the neighbour alone.
fn shares_itself(subject: &Subject, subjects: &Subjects) -> Result<bool> {
    let had = subject.xml.held(false)?.devices;
    Ok(shared_nvlink(subjects.topology(), &Occupancy::default(), &had).is_some())
}

/// Whether its record says that it was accepted when it was made.
fn was_accepted(world: &World, uuid: &str) -> bool {
    accepts_shared_fabric(world.state(), &uuid.trim().to_ascii_lowercase())
}
