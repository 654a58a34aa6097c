//! Undoes steps. Each undo verifies at that moment that what it ends, removes or restores is
//! exactly what was made ([`Proof`]); anything else, or anything needed by somebody else, stays and
//! is reported. Undoing is idempotent, and stops where something that may still run needs the rest.

use super::bind::BindError;
use super::bundle::BundleStep;
use super::disk::{self, unfinished};
use super::domain::{gone_is_good, is_active, of_uuid, refuse_elsewhere, row};
use super::journal::Journal;
use super::made::{volume_file, volume_place};
use super::needed::UNBORN;
use super::partition::PartitionStep;
use super::step::LET_GO_S;
use super::{
    Left, Observer, Step, StepError, attach, bind, detach, file, firmware, kept, moved, ours,
    overlay, pages, partition, snapshot, vcpus, volume,
};
use crate::discover::openers::in_use;
use crate::discover::silent::Silent;
use crate::fsroot::FsRoot;
use crate::hypervisor::storage::NewVolume;
use crate::hypervisor::uses::Uses;
use crate::hypervisor::{DomainState, Hypervisor, HypervisorErrorKind, XmlOf};
use crate::identity::{FileId, Identity, Mark, Proof, sum_of, uuid_of};
use crate::input;
use gpuvm_core::domain::live::Plugged;
use gpuvm_core::domain::{DomainXml, differences};
use gpuvm_core::topology::is_vfio;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a guest that was asked to shut down is watched for its end, in seconds.
const ENDING_S: u64 = 15;
/// A step to be undone, and what it made.
#[derive(Debug, Clone)]
pub(super) struct Done {
    /// Its number in the journal.
    pub number: usize,
    /// The step.
    pub step: Step,
    /// What it made, as far as known.
    pub made: Option<Identity>,
    /// When it began, in nanoseconds since 1970.
    pub begun_ns: Option<u64>,
}

/// The change whose steps are undone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Of<'a> {
    /// Its random name; none: older versions gave none.
    pub change: Option<&'a str>,
    /// Whether the machine has not booted since.
    pub same_boot: bool,
    /// The names of running guests that may be ended; none: those started by this very run.
    pub ends: Option<&'a [String]>,
}

#[derive(Debug, Default)]
pub(super) struct Undone {
    /// Numbers of those that were undone.
    pub undone: Vec<usize>,
    /// Numbers of those whose products are left to others.
    pub handed_over: Vec<usize>,
    /// Those that could not be undone, the first one first.
    pub left: Vec<Left>,
}

impl Of<'_> {
    /// Returns the proof of what a step has made.
    pub fn proof(&self, done: &Done) -> Proof<'_> {
        Proof {
            mark: Mark::new(self.change, done.number),
            made: done.made.clone(),
            begun_ns: done.begun_ns,
            same_boot: self.same_boot,
            ends: self.ends,
        }
    }
}

/// Undoes steps, given the last first. Failures to write the journal are ignored: undoing is
/// idempotent.
pub(super) fn undo_all(
    steps: impl IntoIterator<Item = Done>,
    of: Of<'_>,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    mut journal: Option<&mut Journal>,
) -> Undone {
    let mut all = Undone::default();
    let mut steps = steps.into_iter().filter(|done| done.step.is_undone());
    for done in steps.by_ref() {
        observer.undoing(&done.step);
        let proof = of.proof(&done);
        let mut undone = undo(&done.step, hypervisor, &proof);
        if matches!(&undone, Err(error) if error.is_away()) && hypervisor.reconnect().is_ok() {
            undone = undo(&done.step, hypervisor, &proof);
        }
        // One that stays since others have it by now is still the one that was made.
        let is_gone = undone.is_ok();
        match undone {
            Ok(()) => all.undone.push(done.number),
            // The definition is gone, and its NVRAM is not ours to remove.
            Err(why @ StepError::NvramStays { .. }) => {
                observer.handed_over(&done.step, &why);
                all.undone.push(done.number);
            }
            Err(why) if why.is_handed_over() => {
                observer.handed_over(&done.step, &why);
                all.handed_over.push(done.number);
            }
            Err(error) => {
                let ends = error.ends_undoing(&done.step);
                all.left.push(Left { step: done.step, error });
                if ends {
                    break;
                }
                continue;
            }
        }
        if let Some(journal) = &mut journal {
            let _ = journal.undone(done.number);
            let state = journal.state().filter(|_| is_gone);
            kept::forget(state.as_deref(), &done.step, done.made.as_ref(), hypervisor);
        }
    }
    all.left.extend(steps.map(|rest| Left { step: rest.step, error: StepError::NotReached }));
    all
}

/// Undoes one step that was done, or may have been.
#[expect(clippy::too_many_lines, reason = "one arm for each variant")]
pub(super) fn undo(
    step: &Step,
    hypervisor: &dyn Hypervisor,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    refuse_elsewhere(step, hypervisor)?;
    let undone = match step {
        Step::CreateDirectory { path } => directory(path, proof),
        Step::CreateDisk { path, .. } => file(path, hypervisor, proof),
        Step::WriteBundle(step) => bundle(step, proof),
        Step::DefineDomain { name, xml } => definition(hypervisor, name, xml, proof),
        Step::StartDomain { name, uuid } => run(hypervisor, name, uuid.as_deref(), proof),
        Step::PauseDomain { name, uuid, paused } => pause(hypervisor, name, uuid, !paused),
        Step::Autostart { name, uuid, on } => autostart(hypervisor, name, uuid, !on),
        Step::UndefineDomain { name, xml } => define_again(hypervisor, name, xml),
        Step::RedefineDomain { name, xml, before } => {
            define_as_before(hypervisor, name, (xml, before), proof)
        }
        Step::RenameDomain { name, to, uuid } => rename_back(hypervisor, name, to, uuid),
        Step::MoveFile { from, to, file } => moved::back(from, to, file),
        Step::MakeSnapshot { name, uuid, snapshot } => {
            snapshot::undo(hypervisor, (name, uuid, snapshot), proof)
        }
        Step::MakePool { name, .. } => pool(hypervisor, name, proof),
        Step::MakeVolume { pool, volume, .. } => volume_of(hypervisor, pool, volume, proof),
        // Not by force: processes that have it open by now appeared since.
        Step::BindDevice { bdf, was, .. } | Step::ReleaseDevice { bdf, was, .. } => {
            match bind::on_this_machine(hypervisor, false, |binder| binder.set(*bdf, was)) {
                // A function that is gone needs no undo.
                Err(BindError::Absent { .. }) => Ok(()),
                undone => undone.map_err(StepError::from),
            }
        }
        Step::SetFile { path, text, was, program, kept } => {
            let set = if *program { file::set_program } else { file::set_file };
            written(path, text.as_deref(), was.as_deref(), set)?;
            if *kept { ours::keep(path, was.as_deref()).map_err(StepError::from) } else { Ok(()) }
        }
        Step::Remember { path, text, was } => {
            written(path, text.as_deref(), was.as_deref(), file::set_private_file)
        }
        Step::PinThread { name, thread, was, .. } => {
            if running(hypervisor, name, proof)? {
                hypervisor.pin(name, *thread, was).map_err(StepError::from)
            } else {
                Ok(())
            }
        }
        Step::PlugVcpus { name, was, .. } => {
            if running(hypervisor, name, proof)? {
                vcpus::unplug(hypervisor, name, *was)
            } else {
                Ok(())
            }
        }
        Step::UpdateDevice { name, was, .. } => {
            if running(hypervisor, name, proof)? {
                hypervisor.update(name, was).map_err(StepError::from)
            } else {
                Ok(())
            }
        }
        Step::AttachDisk { name, path, .. } => {
            if running(hypervisor, name, proof)? {
                detach::device(hypervisor, None, name, &Plugged::Disk(path.clone()), LET_GO_S)
            } else {
                Ok(())
            }
        }
        Step::AttachDevice { name, device, .. } => {
            if running(hypervisor, name, proof)? {
                detach::device(hypervisor, None, name, device, LET_GO_S)
            } else {
                Ok(())
            }
        }
        Step::DetachDevice { name, device, xml, .. } => {
            if running(hypervisor, name, proof)? {
                attach::device(hypervisor, name, device, xml)
            } else {
                Ok(())
            }
        }
        Step::DetachDisk { name, path, xml: Some(xml), .. } => {
            if running(hypervisor, name, proof)? {
                attach::device(hypervisor, name, &Plugged::Disk(path.clone()), xml)
            } else {
                Ok(())
            }
        }
        Step::Array(step) => step.undo().map_err(StepError::from),
        Step::Nic(step) => step.undo(hypervisor).map_err(StepError::from),
        Step::Network(step) => step.undo(hypervisor),
        Step::SetPages(step) => {
            pages::on_this_machine(|pages| pages.undo(step)).map_err(StepError::from)
        }
        Step::EditText(step) => step.undo().map_err(StepError::from),
        Step::Set(step) => step.undo().map_err(StepError::from),
        Step::HostNet(step) => step.undo().map_err(StepError::from),
        // Without a record of its beginning nothing was changed.
        Step::ActivatePartition(_) | Step::DeactivatePartition(_) if proof.made.is_none() => Ok(()),
        Step::ActivatePartition(step) => {
            partition::on_this_machine(hypervisor, |switch| switch.undo_activation(step))
                .map_err(StepError::from)
                .map(|()| reset(step, hypervisor))
        }
        // Its guest is off, and its partition is not activated again.
        Step::DeactivatePartition(step) if step.may_wait => Ok(()),
        Step::DeactivatePartition(step) => {
            partition::on_this_machine(hypervisor, |switch| switch.undo_deactivation(step))
                .map_err(StepError::from)
        }
        Step::ShutDownDomain { name, uuid, wait_s, restarts: true, .. } => {
            run_again(hypervisor, name, uuid.as_deref(), *wait_s)
        }
        // Nothing to undo, or undone with the volume, or not to be undone.
        Step::ShutDownDomain { restarts: false, .. }
        | Step::ResetDevice { .. }
        | Step::EndDomain { .. }
        | Step::DropNvram { .. }
        | Step::DetachDisk { xml: None, .. }
        | Step::ReleaseLease { .. }
        | Step::WipeDrive(_)
        | Step::RevertSnapshot { .. }
        | Step::DeleteSnapshot(_)
        | Step::DeleteDisk { .. }
        | Step::GrowVolume { .. }
        | Step::GrowDisk { .. }
        | Step::FillVolume { .. }
        | Step::CheckVolume { .. }
        | Step::CheckSource { .. }
        | Step::CompareDisk { .. }
        | Step::CheckAsMade { .. }
        | Step::SealVolume { .. }
        | Step::DeleteVolume { .. } => Ok(()),
    };
    gone_is_good(undone)
}

/// Starts a guest that was asked to shut down. One that has not done so yet may still do it.
fn run_again(
    hypervisor: &dyn Hypervisor,
    name: &str,
    uuid: Option<&str>,
    wait_s: u64,
) -> Result<(), StepError> {
    let until = Instant::now() + Duration::from_secs(wait_s.min(ENDING_S));
    loop {
        let now = match uuid {
            Some(uuid) => of_uuid(hypervisor, name, uuid)?,
            None => hypervisor.domain(name)?,
        };
        match now {
            None => return Ok(()),
            Some(row) if !row.state.is_active() => return Ok(hypervisor.start(name)?),
            Some(_) if Instant::now() >= until => return Ok(()),
            Some(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// Stops a domain's vCPUs or lets them go on, unless another has its name by now or it is off.
fn pause(
    hypervisor: &dyn Hypervisor,
    name: &str,
    uuid: &str,
    paused: bool,
) -> Result<(), StepError> {
    let row = hypervisor.domains()?.into_iter().find(|row| row.name == name);
    let was = if paused { DomainState::Running } else { DomainState::Paused };
    match row {
        Some(row) if row.uuid == uuid && row.state == was => Ok(hypervisor.pause(name, paused)?),
        _ => Ok(()),
    }
}

/// Sets back whether a domain starts with the host, unless another has its name by now.
fn autostart(
    hypervisor: &dyn Hypervisor,
    name: &str,
    uuid: &str,
    on: bool,
) -> Result<(), StepError> {
    match hypervisor.domain(name)? {
        Some(row) if row.uuid == uuid => Ok(hypervisor.set_autostart(name, on)?),
        _ => Ok(()),
    }
}

/// Resets the GPUs of a partition after its deactivation, to clear a guest's data. A failed reset
/// is ignored, since each GPU is reset before its next guest starts.
fn reset(step: &PartitionStep, hypervisor: &dyn Hypervisor) {
    let Ok(root) = FsRoot::live() else { return };
    for gpu in &step.gpus {
        // `driver_override` is not read: that blocks forever while an unbind hangs.
        let dir = root.dir(&format!("sys/bus/pci/devices/{}", gpu.bdf)).ok().flatten();
        let bound = dir.and_then(|dir| dir.link_name("driver").ok().flatten());
        if bound.as_deref().is_some_and(is_vfio) {
            let _ = bind::on_this_machine(hypervisor, false, |binder| binder.reset(gpu.bdf));
        }
    }
}

/// Makes the error of something that a step did not make.
fn not_ours<T>(what: impl ToString, why: &str) -> Result<T, StepError> {
    Err(StepError::NotOurs { what: what.to_string(), why: why.to_owned() })
}

/// Makes the error of a file that cannot be inspected.
pub(super) fn unseen(path: &Path) -> impl FnOnce(std::io::Error) -> StepError + '_ {
    move |source| disk::DiskError::Other { path: path.to_owned(), source }.into()
}

/// Whether the file at a path is what a step made; false: it does not exist.
fn is_made(path: &Path, proof: &Proof<'_>) -> Result<bool, StepError> {
    if let Some(why) = Silent::read().why(path) {
        return not_ours(path.display(), &why);
    }
    let Some(now) = FileId::at(path).map_err(unseen(path))? else { return Ok(false) };
    match &proof.made {
        Some(Identity::File(made)) if made.is(&now, proof.same_boot) => Ok(true),
        Some(Identity::File(made)) if made.may_be(&now) => not_ours(path.display(), UNBORN),
        Some(_) => not_ours(path.display(), "it was made anew since"),
        // It gets its name only after its identity is in the journal.
        None => not_ours(path.display(), "it was made by somebody else, or by an older gpuvm"),
    }
}

/// Removes a directory that was made, unless it is not empty.
fn directory(path: &Path, proof: &Proof<'_>) -> Result<(), StepError> {
    if let Some(token) = proof.mark.token() {
        disk::delete_directory(&unfinished(path, &token))?;
    }
    if is_made(path, proof)? {
        disk::delete_directory(path)?;
    }
    Ok(())
}

/// Removes a bundle that was made.
fn bundle(step: &BundleStep, proof: &Proof<'_>) -> Result<(), StepError> {
    if let Some(token) = proof.mark.token() {
        step.drop_unfinished(&token)?;
    }
    if is_made(&step.path, proof)? {
        step.delete()?;
    }
    Ok(())
}

/// Removes an image that was made, unless it is in use as a disk by now.
fn file(path: &Path, hypervisor: &dyn Hypervisor, proof: &Proof<'_>) -> Result<(), StepError> {
    if let Some(token) = proof.mark.token() {
        disk::delete(&unfinished(path, &token))?;
    }
    if is_made(path, proof)? {
        unused(hypervisor, path)?;
        if let Some(by) = in_use(path, false) {
            return Err(StepError::InUse { what: path.display().to_string(), by });
        }
        disk::delete(path)?;
    }
    Ok(())
}

/// Refuses a file or volume that somebody uses.
fn unused(hypervisor: &dyn Hypervisor, path: &Path) -> Result<(), StepError> {
    let what = || path.display().to_string();
    let users = match Uses::read(hypervisor) {
        // The uses of a definition that cannot be parsed are unknown, so everything stays.
        Err(error) if error.kind == HypervisorErrorKind::BadXml => {
            return Err(StepError::InUse { what: what(), by: format!("perhaps another: {error}") });
        }
        users => users?.of(path),
    };
    let Some(first) = users.first() else { return Ok(()) };
    Err(StepError::InUse { what: what(), by: first.to_string() })
}

/// Ends a guest that was started.
fn run(
    hypervisor: &dyn Hypervisor,
    name: &str,
    uuid: Option<&str>,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    let made = match &proof.made {
        Some(Identity::Run { uuid, id }) => Some((uuid.as_str(), *id)),
        _ => uuid.map(|uuid| (uuid, None)),
    };
    let Some(row) = hypervisor.domain(name)? else { return Ok(()) };
    if !is_active(Some(row.state)) {
        return Ok(());
    }
    let Some((uuid, id)) = made else {
        return Err(StepError::StartedSince { name: name.to_owned() });
    };
    of_uuid(hypervisor, name, uuid)?;
    let is_it = id.is_none() || hypervisor.run_id(name)? == id;
    end(hypervisor, name, is_it, proof)
}

/// Ends a running guest of ours if it is exactly the run that was started, or if its name was
/// confirmed.
fn end(
    hypervisor: &dyn Hypervisor,
    name: &str,
    is_it: bool,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    match proof.ends {
        Some(names) if names.iter().any(|known| known == name) => {}
        Some(_) => return Err(StepError::NotConfirmed { name: name.to_owned() }),
        None if is_it => {}
        None => return Err(StepError::StartedSince { name: name.to_owned() }),
    }
    Ok(hypervisor.destroy(name)?)
}

/// Removes a definition that was made.
fn definition(
    hypervisor: &dyn Hypervisor,
    name: &str,
    xml: &str,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    let Some(row) = hypervisor.domain(name)? else { return Ok(()) };
    let uuid = match &proof.made {
        Some(Identity::Domain { uuid, .. }) => Some(uuid.clone()),
        _ => uuid_of(xml),
    };
    let Some(uuid) = uuid else {
        return not_ours(format!("domain `{name}`"), "an older gpuvm did not record its UUID");
    };
    of_uuid(hypervisor, name, &uuid)?;
    if is_active(Some(row.state)) {
        // Undefined while running, it would disappear when it stops, and its disks with this undo.
        end(hypervisor, name, false, proof)?;
    }
    firmware::undefine_made(hypervisor, (name, &uuid), proof.made.as_ref())
}

/// Restores a removed definition unless its name is taken by now.
fn define_again(hypervisor: &dyn Hypervisor, name: &str, xml: &str) -> Result<(), StepError> {
    match (hypervisor.domain(name)?, uuid_of(xml)) {
        (Some(_), Some(uuid)) => of_uuid(hypervisor, name, &uuid).map(drop),
        _ => Ok(hypervisor.define(xml)?),
    }
}

/// Gives a domain its name back, unless another one has it by now.
fn rename_back(
    hypervisor: &dyn Hypervisor,
    name: &str,
    to: &str,
    uuid: &str,
) -> Result<(), StepError> {
    match hypervisor.domain(to)? {
        Some(row) if row.uuid == uuid => {}
        // It was not renamed yet, or somebody else has done so since.
        _ => return Ok(()),
    }
    of_uuid(hypervisor, name, uuid)?;
    Ok(hypervisor.rename(to, name)?)
}

/// Restores the previous definition unless somebody has edited the new one since.
fn define_as_before(
    hypervisor: &dyn Hypervisor,
    name: &str,
    (xml, before): (&str, &str),
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    // A domain undefined meanwhile is not restored.
    if row(hypervisor, name)?.is_none() {
        return Ok(());
    }
    if let Some(uuid) = uuid_of(before) {
        of_uuid(hypervisor, name, &uuid)?;
    }
    let now = hypervisor.xml(name, XmlOf::Inactive)?;
    let ours = match &proof.made {
        _ if now == before => return Ok(()),
        Some(Identity::Definition { sum, .. }) => *sum == sum_of(&now),
        // Killed before it was read back.
        _ => match (DomainXml::parse(xml), DomainXml::parse(&now)) {
            (Ok(xml), Ok(now)) => differences(&xml, &now).is_empty(),
            _ => xml == now,
        },
    };
    if !ours {
        return Err(StepError::Edited { name: name.to_owned() });
    }
    // Started since the change was interrupted, it has written where only the new definition looks.
    match overlay::written_since(xml, before).filter(|_| hypervisor.machine().is_here()) {
        Some(path) => Err(StepError::WrittenSince { name: name.to_owned(), path }),
        None => Ok(hypervisor.define(before)?),
    }
}

/// Whether the same run of the guest whose live state was changed still runs; another run never had
/// that change.
fn running(hypervisor: &dyn Hypervisor, name: &str, proof: &Proof<'_>) -> Result<bool, StepError> {
    let Some(row) = hypervisor.domain(name)?.filter(|row| is_active(Some(row.state))) else {
        return Ok(false);
    };
    match &proof.made {
        Some(Identity::Run { uuid, id }) => {
            Ok(row.uuid == *uuid && (id.is_none() || hypervisor.run_id(name)? == *id))
        }
        _ => Ok(true),
    }
}

/// Undefines a pool that was made, unless somebody else has a volume in it by now.
fn pool(hypervisor: &dyn Hypervisor, name: &str, proof: &Proof<'_>) -> Result<(), StepError> {
    let storage = hypervisor.storage();
    let Some(now) = storage.pool_uuid(name)? else { return Ok(()) };
    if proof.mark.uuid() != Some(now) {
        return not_ours(format!("pool `{name}`"), "its UUID is another");
    }
    let pools = storage.pools()?;
    // An inactive pool cannot be listed, and nobody can create volumes in it either.
    let is_active = pools.iter().any(|pool| pool.name == name && pool.active);
    if is_active && let Some(volume) = storage.volumes(name)?.first() {
        let (what, by) = (format!("pool `{name}`"), format!("volume `{}`", volume.name));
        return Err(StepError::InUse { what, by });
    }
    Ok(storage.forget_pool(name)?)
}

/// Deletes the file of a volume that libvirt does not know, as while it copies another one in the
/// pool; anything else at its place stays.
fn unknown_volume(
    hypervisor: &dyn Hypervisor,
    pool: &str,
    new: &NewVolume,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    let Some(Identity::Volume { file: Some(made), .. }) = &proof.made else { return Ok(()) };
    let Some(place) = volume_place(pool, &new.name, hypervisor)? else { return Ok(()) };
    match volume_file(hypervisor, &place).map_err(unseen(&place))? {
        Some(file) if made.is(&file, proof.same_boot) => {
            unused(hypervisor, &place)?;
            Ok(disk::delete(&place)?)
        }
        _ => Ok(()),
    }
}

/// Deletes a volume that was made, unless it is in use as a disk by now.
fn volume_of(
    hypervisor: &dyn Hypervisor,
    pool: &str,
    new: &NewVolume,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    let storage = hypervisor.storage();
    if let Some(token) = proof.mark.token() {
        volume::drop_unfinished(hypervisor, (pool, &new.name), &token)?;
    }
    let Some(now) = storage.volume_id(pool, &new.name)? else {
        return unknown_volume(hypervisor, pool, new, proof);
    };
    let file = volume_file(hypervisor, &now.path).map_err(unseen(&now.path))?;
    let what = || format!("volume `{}` of pool `{pool}`", new.name);
    match &proof.made {
        Some(Identity::Volume { key, file: made }) => {
            let same = match (made, &file) {
                (Some(made), Some(file)) if made.is(file, proof.same_boot) => true,
                (Some(made), Some(file)) if made.may_be(file) => return not_ours(what(), UNBORN),
                (Some(_), Some(_)) => false,
                (made, file) => made.is_none() && file.is_none(),
            };
            if !same || *key != now.key {
                return not_ours(what(), "it was made anew since");
            }
        }
        // It gets its name only after its identity is in the journal, or nothing identifies it.
        _ => return not_ours(what(), "it is not proven that this change made it"),
    }
    unused(hypervisor, &now.path)?;
    Ok(storage.delete_volume(pool, &new.name)?)
}

/// Restores a file's previous text, unless somebody has written another since.
fn written<E: Into<StepError>>(
    path: &Path,
    text: Option<&str>,
    was: Option<&str>,
    set: impl FnOnce(&Path, Option<&str>) -> Result<(), E>,
) -> Result<(), StepError> {
    let now = input::state_bytes(path).map_err(unseen(path))?;
    let is = |text: Option<&str>| now.as_deref() == text.map(str::as_bytes);
    match (is(was), is(text)) {
        (true, _) => Ok(()),
        (_, true) => set(path, was).map_err(E::into),
        _ => not_ours(path.display(), "somebody has changed it since"),
    }
}
