//! Performs single steps. Repeating a step that an interrupted run may have done is harmless.

use super::bundle::BundleStep;
use super::disk::{self, DiskError, Making};
use super::domain::{gone_is_good, is_active, of_uuid, refuse_elsewhere, row, started_again};
use super::journal::JournalError;
use super::made::volume_place;
use super::owner::Owner as _;
use super::partition::{self, Watched};
use super::setting::SettingError;
use super::step::MadeSnapshot;
use super::undo::undo;
use super::{
    Observer, Step, StepError, attach, bind, compare, copy, detach, drive, file, grow, lease,
    moved, needed, ours, owner, pages, snapshot, vcpus, volume,
};
use crate::fsroot::FsRoot;
use crate::hypervisor::storage::Progress;
use crate::hypervisor::{
    AskedBy, DomainState, Hypervisor, HypervisorError, HypervisorErrorKind, Keep, XmlOf,
};
use crate::identity::{Identity, Mark, Proof};
use gpuvm_core::domain::DomainXml;
use gpuvm_core::domain::live::Plugged;
use gpuvm_core::image::Summing;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// Refuses a step whose product already exists, before it is recorded: what a journal records as
/// begun is ours.
#[expect(clippy::too_many_lines, reason = "one arm for each variant")]
pub(super) fn expects(step: &Step, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
    refuse_elsewhere(step, hypervisor)?;
    match step {
        Step::CreateDirectory { path }
        | Step::CreateDisk { path, .. }
        | Step::WriteBundle(BundleStep { path, .. }) => absent(path)?,
        Step::DefineDomain { name, .. } if row(hypervisor, name)?.is_some() => {
            let message = format!("{} has a domain of this name", hypervisor.uri());
            return Err(refused(HypervisorErrorKind::Exists, step, message).into());
        }
        Step::StartDomain { name, .. } if row(hypervisor, name)? == Some(DomainState::Running) => {
            let message = "it runs already".to_owned();
            return Err(refused(HypervisorErrorKind::WrongState, step, message).into());
        }
        Step::DefineDomain { xml, .. } => {
            drive::expect_domain(xml, false, hypervisor)?;
            needed::expects_disks(xml, false, hypervisor)?;
        }
        Step::StartDomain { name, .. } => {
            // If its definition cannot be read, it cannot be started either.
            if let Ok(xml) = hypervisor.xml(name, XmlOf::Inactive) {
                drive::expect_domain(&xml, true, hypervisor)?;
                needed::expects_disks(&xml, true, hypervisor)?;
            }
        }
        Step::AttachDisk { name, path, .. } => {
            attach::expects(hypervisor, name, &Plugged::Disk(path.clone()))?;
        }
        Step::AttachDevice { name, device, .. } => attach::expects(hypervisor, name, device)?,
        Step::RenameDomain { to, .. } if row(hypervisor, to)?.is_some() => {
            let message = format!("{} has a domain of this name", hypervisor.uri());
            return Err(refused(HypervisorErrorKind::Exists, step, message).into());
        }
        Step::MoveFile { from, to, file } => moved::expects(from, to, file)?,
        Step::MakeSnapshot { .. } | Step::RevertSnapshot { .. } | Step::DeleteSnapshot(_) => {
            snapshot::expects(step, hypervisor)?;
        }
        Step::WipeDrive(step) => step.expects(hypervisor)?,
        Step::UndefineDomain { name, .. } if is_active(row(hypervisor, name)?) => {
            return Err(started_again(step).into());
        }
        Step::MakePool { name, .. }
            if hypervisor.storage().pools()?.iter().any(|pool| pool.name == *name) =>
        {
            let message = format!("{} has a pool of this name", hypervisor.uri());
            return Err(refused(HypervisorErrorKind::Exists, step, message).into());
        }
        Step::MakeVolume { pool, volume, .. } => {
            let volumes = hypervisor.storage().volumes(pool)?;
            if volumes.iter().any(|other| other.name == volume.name) {
                let message = "the pool has a volume of this name".to_owned();
                return Err(refused(HypervisorErrorKind::Exists, step, message).into());
            }
            if let Some(path) = volume_place(pool, &volume.name, hypervisor)? {
                // Where libvirt cannot make the volume, it deletes what is there.
                absent(&path)?;
            }
        }
        Step::BindDevice { bdf, to, was, force } => {
            bind::on_this_machine(hypervisor, *force, |binder| {
                binder.expect(*bdf, was)?;
                binder.expect_free(*bdf, to.driver.as_deref())
            })?;
            drive::expect_function(*bdf)?;
        }
        Step::ReleaseDevice { bdf, was, force } => {
            bind::on_this_machine(hypervisor, *force, |binder| {
                binder.expect(*bdf, was)?;
                binder.expect_free(*bdf, None)
            })?;
        }
        Step::ResetDevice { bdf, .. } => {
            owner::on_this_machine(hypervisor, false, |owner| owner.free(&[*bdf]).map(drop))?;
        }
        Step::Array(step) => step.expects()?,
        Step::Nic(step) => step.expects(hypervisor)?,
        Step::SetPages(step) => pages::on_this_machine(|pages| pages.expect(step))?,
        Step::Network(step) => step.expects(hypervisor)?,
        Step::EditText(step) => step.expects()?,
        Step::HostNet(step) => step.expects()?,
        Step::Set(step) => step.expects(&FsRoot::live().map_err(SettingError::from)?)?,
        _ => {}
    }
    Ok(())
}

/// Refuses a path where something is, be it a link to nothing.
pub fn absent(path: &Path) -> Result<(), DiskError> {
    match path.symlink_metadata() {
        Ok(_) => Err(DiskError::Exists { path: path.to_owned() }),
        // Any other problem is reported when it is made.
        Err(_) => Ok(()),
    }
}

/// Makes the error of a domain that is not as expected.
fn refused(kind: HypervisorErrorKind, step: &Step, message: String) -> HypervisorError {
    HypervisorError { kind, doing: step.to_string(), message }
}

/// How a step marks its products.
pub(super) struct Ours<'o> {
    /// The step's own name.
    pub mark: &'o Mark,
    /// Called with a file's identity before it gets its name.
    pub made: &'o mut dyn FnMut(Identity) -> Result<(), JournalError>,
    /// Whether the step was planned by an interrupted run.
    pub later: bool,
}

impl Ours<'_> {
    /// Makes a file or a directory.
    fn making(
        &mut self,
        make: impl FnOnce(&mut Making<'_>) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        let token = self.mark.token().unwrap_or_else(|| format!("gpuvm-{}", std::process::id()));
        let mut made = |id| (self.made)(Identity::File(id));
        make(&mut Making { token: &token, made: &mut made })
    }
}

/// Refuses a step about a domain whose name belongs to another one by now.
fn expects_domain(step: &Step, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
    match step.domain() {
        Some((name, Some(uuid))) => of_uuid(hypervisor, name, &uuid).map(drop),
        _ => Ok(()),
    }
}

#[expect(clippy::too_many_lines, reason = "one arm for each variant")]
pub(super) fn perform(
    step: &Step,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    ours: &mut Ours<'_>,
) -> Result<(), StepError> {
    refuse_elsewhere(step, hypervisor)?;
    if let Some(why) = needed::stays(step, ours.later, hypervisor)? {
        observer.note(&why);
        return Ok(());
    }
    expects_domain(step, hypervisor)?;
    match step {
        Step::CreateDirectory { path } => {
            ours.making(|making| disk::create_directory(path, making))?
        }
        Step::CreateDisk { path, bytes, preallocate, from, sha256 } => {
            let (from, sha256) = (from.as_deref(), *sha256);
            let content = disk::Content { from, sha256, preallocate: *preallocate };
            interruptible(observer, *bytes, |progress| {
                Ok(ours.making(|making| disk::create(path, *bytes, content, making, progress))?)
            })?;
        }
        Step::WriteBundle(step) => interruptible(observer, step.bytes(), |progress| {
            Ok(ours.making(|making| step.perform(making, progress))?)
        })?,
        Step::DefineDomain { xml, .. } => hypervisor.define(xml)?,
        Step::StartDomain { name, .. } => hypervisor.start(name)?,
        Step::Autostart { name, on, .. } => hypervisor.set_autostart(name, *on)?,
        Step::ShutDownDomain { name, by, wait_s, .. } => {
            shut_down(hypervisor, observer, name, *by, *wait_s)?;
        }
        Step::PauseDomain { name, paused, .. } => hypervisor.pause(name, *paused)?,
        Step::EndDomain { name, .. } => hypervisor.destroy(name)?,
        Step::UndefineDomain { name, xml } => {
            // Its NVRAM and TPM state are removed last, by steps of their own.
            let tpm = DomainXml::parse(xml).is_ok_and(|xml| xml.has_tpm());
            hypervisor.undefine_but(name, Keep { nvram: true, tpm, no_tpm: false })?;
            // Started between the last check and the undefine: it keeps running, with disks about
            // to be deleted.
            if is_active(row(hypervisor, name)?) {
                hypervisor.define(xml)?;
                return Err(started_again(step).into());
            }
        }
        Step::DropNvram { name, xml, tpm } => drop_state(hypervisor, observer, (name, xml, *tpm))?,
        Step::RedefineDomain { name, xml, before } => redefine(hypervisor, name, xml, before)?,
        Step::RenameDomain { name, to, .. } => hypervisor.rename(name, to)?,
        Step::MoveFile { from, to, file } => moved::file(from, to, file)?,
        Step::MakeSnapshot { .. } | Step::RevertSnapshot { .. } | Step::DeleteSnapshot(_) => {
            if let Step::RevertSnapshot { xml, .. } = step {
                let disks = snapshot::disk_states(xml, hypervisor);
                (ours.made)(Identity::Disks { disks }).map_err(DiskError::from)?;
            }
            snapshot::perform(step, hypervisor, observer, (ours.mark, ours.later))?;
        }
        Step::AttachDisk { name, path, xml } => {
            attach::device(hypervisor, name, &Plugged::Disk(path.clone()), xml)?;
        }
        Step::DetachDisk { name, path, wait_s, .. } => {
            let device = Plugged::Disk(path.clone());
            detach::device(hypervisor, Some(observer), name, &device, *wait_s)?;
        }
        Step::AttachDevice { name, device, xml } => attach::device(hypervisor, name, device, xml)?,
        Step::DetachDevice { name, device, wait_s, .. } => {
            detach::device(hypervisor, Some(observer), name, device, *wait_s)?;
        }
        Step::GrowDisk { .. } => grow::disk(step, ours.later, hypervisor, observer)?,
        Step::ReleaseLease { server, ip, mac } => {
            lease::give_back(hypervisor, (*server, *ip), mac, observer);
        }
        Step::DeleteDisk { path, .. } => disk::delete(path)?,
        Step::MakePool { name, path } => {
            hypervisor.storage().make_pool(name, path, ours.mark.uuid().as_deref())?
        }
        Step::MakeVolume { pool, volume, from } => {
            let new = volume::New { pool, volume, from: from.as_ref() };
            let token = ours.mark.token();
            volume::make(new, token.as_deref(), (hypervisor, observer), ours.made)?;
        }
        Step::GrowVolume { pool, name, bytes } => {
            hypervisor.storage().grow_volume(pool, name, *bytes)?;
        }
        Step::FillVolume { pool, name, source, bytes, sha256 } => {
            let mut file = Summing::new(disk::open(source)?);
            fill(hypervisor, observer, (pool, name), &mut file, *bytes)?;
            copy::same(source, file.end(), (*sha256, *bytes))?;
        }
        Step::CheckSource { path, bytes, modified_ns } => {
            disk::expect_unwritten(path, *bytes, *modified_ns)?;
        }
        Step::CheckVolume { .. } => copy::check(step, hypervisor, observer)?,
        Step::CompareDisk { .. } => compare::disk(step, hypervisor, observer)?,
        Step::CheckAsMade { .. } => compare::as_made(step, hypervisor, observer)?,
        Step::SealVolume { pool, name, content } => {
            let content = content.bytes()?;
            let bytes = content.len() as u64;
            fill(hypervisor, observer, (pool, name), &mut &content[..], bytes)?;
        }
        Step::DeleteVolume { pool, name, .. } => hypervisor.storage().delete_volume(pool, name)?,
        Step::BindDevice { bdf, to, was, force } => {
            bind::on_this_machine(hypervisor, *force, |binder| binder.change(*bdf, was, to))?;
        }
        Step::ReleaseDevice { bdf, was, force } => {
            bind::on_this_machine(hypervisor, *force, |binder| binder.release(*bdf, was))?;
        }
        Step::ResetDevice { bdf, .. } => {
            bind::on_this_machine(hypervisor, false, |binder| binder.reset(*bdf))?;
        }
        Step::SetFile { path, text, program, kept, .. } => {
            let set = if *program { file::set_program } else { file::set_file };
            set(path, text.as_deref())?;
            if *kept {
                ours::keep(path, text.as_deref())?;
            }
        }
        Step::Remember { path, text, .. } => file::set_private_file(path, text.as_deref())?,
        Step::PinThread { name, thread, pcpus, .. } => hypervisor.pin(name, *thread, pcpus)?,
        Step::PlugVcpus { name, vcpus, .. } => vcpus::plug(hypervisor, name, *vcpus)?,
        Step::UpdateDevice { name, xml, .. } => hypervisor.update(name, xml)?,
        Step::WipeDrive(step) => step.perform(hypervisor, observer)?,
        Step::Array(step) => step.perform()?,
        Step::Nic(step) => step.perform(hypervisor)?,
        Step::SetPages(step) => pages::on_this_machine(|pages| pages.perform(step))?,
        Step::Network(step) => step.perform(hypervisor)?,
        Step::EditText(step) => step.perform()?,
        Step::Set(step) => step.perform()?,
        Step::HostNet(step) => step.perform(observer)?,
        Step::ActivatePartition(step) => partition::on_this_machine(hypervisor, |switch| {
            switch.activate(step, &mut Watched(Some(observer)), ours.made)
        })?,
        Step::DeactivatePartition(step) => partition::on_this_machine(hypervisor, |switch| {
            switch.deactivate(step, &mut Watched(Some(observer)), ours.made)
        })?,
    }
    Ok(())
}

/// Changes a definition if it is unchanged since the plan: somebody else's edit is never lost.
fn redefine(
    hypervisor: &dyn Hypervisor,
    name: &str,
    xml: &str,
    before: &str,
) -> Result<(), StepError> {
    if hypervisor.xml(name, XmlOf::Inactive)? != before {
        return Err(StepError::Edited { name: name.to_owned() });
    }
    Ok(hypervisor.define(xml)?)
}

/// Fills a volume, given by pool and name; a signal cancels.
fn fill(
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    (pool, name): (&str, &str),
    from: &mut dyn Read,
    bytes: u64,
) -> Result<(), StepError> {
    interruptible(observer, bytes, |progress| {
        Ok(hypervisor.storage().upload(pool, name, from, progress)?)
    })
}

/// Runs a long operation with a progress callback that can cancel it; a signal does.
fn interruptible(
    observer: &mut dyn Observer,
    bytes: u64,
    long: impl FnOnce(Progress<'_>) -> Result<(), StepError>,
) -> Result<(), StepError> {
    let mut signal = None;
    let mut progress = |through: u64| {
        observer.progress(through, bytes);
        signal = observer.interrupted();
        signal.is_none()
    };
    let done = long(&mut progress);
    match signal {
        Some(signal) => Err(StepError::Signal { signal }),
        None => done,
    }
}

/// Performs a step of an interrupted run, which may already be done.
pub(super) fn perform_again(
    step: &Step,
    begun: bool,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    (proof, ours): (&Proof<'_>, &mut Ours<'_>),
) -> Result<(), StepError> {
    if let Step::StartDomain { name, .. } = step
        && row(hypervisor, name)? == Some(DomainState::Running)
    {
        // It was started, and may have been used since: not to be repeated.
        return Ok(());
    }
    if let (
        Step::EndDomain { name, .. }
        | Step::ShutDownDomain { name, .. }
        | Step::RevertSnapshot { of: MadeSnapshot { name, .. }, .. },
        Some(ends),
    ) = (step, proof.ends)
        && is_active(row(hypervisor, name)?)
        && !ends.contains(name)
    {
        // It may be the run to be ended, or one started since.
        expects_domain(step, hypervisor)?;
        return Err(StepError::NotConfirmed { name: name.clone() });
    }
    if begun && !step.takes_away() && !step.is_of_host() {
        undo(step, hypervisor, proof)?;
    }
    let done = perform(step, hypervisor, observer, ours);
    match done {
        // The domain to remove is gone, and another has its name.
        Err(StepError::OtherDomain { .. }) if step.takes_away() => Ok(()),
        done if step.takes_away() => gone_is_good(done),
        done => done,
    }
}

/// Removes the NVRAM, or (`tpm`) the TPM state, of a domain that is undefined. One that is defined
/// has its state, whoever defined it: the same UUID and document do not tell an admin's restored
/// backup from a definition that an interrupted run left.
fn drop_state(
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    (name, xml, tpm): (&str, &str, bool),
) -> Result<(), HypervisorError> {
    let what = if tpm { "TPM state" } else { "NVRAM" };
    let rows = hypervisor.domains()?;
    let uuid = DomainXml::parse(xml).ok().and_then(|xml| xml.uuid());
    if rows.iter().any(|row| row.name == name || Some(&row.uuid) == uuid.as_ref()) {
        observer.note(&format!("the {what} of domain `{name}` stays: it was defined again"));
        return Ok(());
    }
    match hypervisor.define(xml) {
        // As where swtpm is no longer installed; nothing else is left to do.
        Err(error) if tpm => {
            observer.note(&format!("the TPM state of domain `{name}` stays: {error}"));
            return Ok(());
        }
        defined => defined?,
    }
    let has_tpm = DomainXml::parse(xml).is_ok_and(|xml| xml.has_tpm());
    hypervisor.undefine_but(name, Keep { nvram: tpm, tpm: has_tpm && !tpm, no_tpm: tpm })
}

/// Asks a guest to shut down and waits until it is off.
fn shut_down(
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    name: &str,
    by: AskedBy,
    wait_s: u64,
) -> Result<(), StepError> {
    // A transient domain disappears when it stops.
    let is_off = || -> Result<bool, HypervisorError> { Ok(!is_active(row(hypervisor, name)?)) };
    if is_off()? {
        return Ok(());
    }
    let run = hypervisor.run_id(name)?;
    let asked = match hypervisor.shutdown(name, by) {
        Err(error) if by == AskedBy::Agent => {
            observer.note(&format!("the agent does not help ({error}); pressing the power button"));
            hypervisor.shutdown(name, AskedBy::PowerButton)
        }
        asked => asked,
    };
    let until = Instant::now() + Duration::from_secs(wait_s);
    loop {
        if is_off()? {
            return Ok(());
        }
        if hypervisor.run_id(name).is_ok_and(|now| now.is_some() && now != run) {
            observer.note(&format!("domain `{name}` was off, and somebody has started it again"));
            return Ok(());
        }
        // A guest whose request fails may still be shutting down.
        asked.clone()?;
        if let Some(signal) = observer.interrupted() {
            return Err(StepError::Signal { signal });
        }
        if Instant::now() >= until {
            return Err(StepError::StillRuns { name: name.to_owned(), wait_s });
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
