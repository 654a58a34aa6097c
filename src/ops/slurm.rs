//! Guests of Slurm's jobs: a prolog makes one, an epilog deletes it, and `reconcile` deletes those
//! whose job is gone. A guest belongs to a job if its record says so and is its own: the record of
//! its UUID, which only root writes, and metadata of that UUID. A name proves nothing.

#[cfg(test)]
mod tests;

use crate::apply::{HostLock, LockError};
use crate::bdf::Bdf;
use crate::change::Change;
use crate::create::{self, CreateRequest, Created, Waits};
use crate::delete::{Delete, delete};
use crate::domain::DomainXml;
use crate::domain::view::View;
use crate::error::{Class, Coded, Error, Result, classed};
use crate::guest::refuse_without_groups;
use crate::history::guest::{SlurmJob, job as job_of};
use crate::hypervisor::{DomainSummary, Hypervisor, HypervisorErrorKind, XmlOf};
use crate::placement::{Occupancy, VgpuOffer, shared_cards, whole_gpus};
use crate::recover::{Recover, recover};
use crate::request::{GpuWish, VgpuWish};
use crate::session::Session;
use crate::shell::word;
use crate::topology::model::model;
use crate::topology::{PciDevice, Topology};
use crate::unfinished;
use crate::world::World;
use gpuvm_core::slurm::{
    GRES, GresRequest, JobError, SlurmConfError, VgpuCount, gpu_type, gpus_by_file, vgpu_type,
};
use gpuvm_core::versions::Stack;
use gpuvm_host::slurm::{NodeJob, SlurmError};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

/// The verb of a prolog's change, as its journal has it.
const PROLOG: &str = "slurm prolog";
/// The verb of an epilog's change.
const EPILOG: &str = "slurm epilog";
/// The verb of a change of `slurm reconcile`.
const RECONCILE: &str = "slurm reconcile";
/// Changes that were made for jobs, which finish or undo each other's.
const VERBS: [&str; 3] = [PROLOG, EPILOG, RECONCILE];
/// The directory of the locks of jobs.
const LOCKS: &str = "/run/gpuvm/slurm";
/// How many locks there are: a job has that of its number, modulo this. A node has far fewer jobs
/// at a time, whose numbers are near each other.
const LOCK_COUNT: u32 = 1024;

/// Errors that the machine has, and not the request: of these Slurm hears, and drains the node.
/// Everything else is a refusal, for which the job is cancelled.
const FAULTS: [&str; 41] = [
    "apply-",
    "create-no-firmware",
    "create-no-kvm",
    "create-no-qemu",
    "discovery-",
    "fabric-address",
    "fabric-call",
    "fabric-interrupted",
    "fabric-library",
    "fabric-library-version",
    "fabric-list",
    "fabric-list-damaged",
    "fabric-list-version",
    "fabric-manager",
    "fabric-silent",
    "fabric-unknown-modules",
    "fabric-versions",
    "history-",
    "internal",
    "journal-",
    "libvirt-denied",
    "libvirt-error",
    "libvirt-no-connection",
    "libvirt-no-library",
    "lock-",
    "other-machine",
    "program-",
    "slurm-answer",
    "slurm-job-",
    "slurm-mediated",
    "slurm-no-gpus",
    "slurm-no-whole-gpus",
    "slurm-unanswered",
    "step-",
    "storage-not-mounted",
    "storage-pool-inactive",
    "storage-silent",
    "storage-unreadable",
    "system",
    "timeout",
    "unfinished",
];

/// The reason that a job gets no guest.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "slurm-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum SlurmJobError {
    /// Slurm does not run the program, or not as a prolog.
    #[error("{variable} is not set to {what}: Slurm sets it for prologs and epilogs")]
    #[strum(to_string = "job-unknown")]
    Unknown { variable: &'static str, what: &'static str },
    /// The program is not root.
    #[error("only root makes and deletes guests of jobs")]
    #[strum(to_string = "job-not-root")]
    NotRoot,
    /// The host has no GPUs of that type.
    #[error("the job requests GPUs of type `{of}`, and the host has {has}")]
    #[strum(to_string = "type-absent")]
    Type {
        of: String,
        /// The types that the host has.
        has: String,
    },
    /// Slurm chose GPUs that the host does not have.
    #[error("SLURM_JOB_GPUS is `{indexes}`, and the host has {has} whole GPUs")]
    #[strum(to_string = "job-gpus")]
    Indexes { indexes: String, has: usize },
    /// Slurm chose a GPU of another type than the job requests.
    #[error(
        "SLURM_JOB_GPUS is `{indexes}`: {bdf} is of type `{is}`, and the job requests `{of}`, so \
         gres.conf was made for other GPUs"
    )]
    #[strum(to_string = "job-gpu-type")]
    OtherType { indexes: String, bdf: String, is: String, of: String },
}

impl Coded for SlurmJobError {}
impl Coded for SlurmConfError {}
impl Coded for JobError {}
impl Coded for SlurmError {}

/// A refusal of a job, with the remedy.
pub fn job_refused(error: SlurmJobError) -> Error {
    let hint = match &error {
        SlurmJobError::Unknown { .. } => {
            "`gpuvm man slurm` has the lines of slurm.conf that run it"
        }
        SlurmJobError::NotRoot => "slurmd runs it as root; `sudo` does elsewhere",
        SlurmJobError::Type { .. } => "`gpuvm slurm conf` prints the types for gres.conf",
        SlurmJobError::Indexes { .. } | SlurmJobError::OtherType { .. } => {
            "`gpuvm slurm conf --files` prints the lines of gres.conf for this host"
        }
    };
    error.hint(hint)
}

/// A refusal of a job's request, with its remedy.
pub fn request_refused(error: JobError) -> Error {
    let hint = match &error {
        JobError::Key { .. } | JobError::Value { .. } => {
            "`sbatch --comment='image=NAME vcpus=N memory=SIZE'`, each of them optional"
        }
        JobError::TooMuch { key: "vcpus", .. } => {
            "`sbatch --cpus-per-task=N` requests the CPUs from Slurm; the limits are what Slurm \
             allotted, what the guest gets by itself, and --max-job-vcpus of `gpuvm slurm prolog`"
        }
        JobError::TooMuch { .. } => {
            "`sbatch --mem=SIZE` requests it where Slurm counts memory; the limits are what Slurm \
             allotted, what the guest gets by itself, and --max-job-memory of `gpuvm slurm prolog`"
        }
        JobError::Image { .. } => {
            "leave image= out of the comment; --job-image of `gpuvm slurm prolog` allows an image"
        }
        JobError::Gres { .. } | JobError::Types { .. } => {
            "`sbatch --gres=gpuvm:N`, or gpuvm:TYPE:N"
        }
    };
    error.hint(hint)
}

/// Refuses a node whose jobs could get no function, as each plan of it would be.
pub fn refuse_impassable(world: &World, topology: &Topology, assume: Option<Stack>) -> Result<()> {
    if !topology.lacks_vfio_groups() {
        return Ok(());
    }
    refuse_without_groups(&world.way(topology, world.stack(topology, assume))?)
}

/// A refusal of Slurm's configuration, with the remedy.
pub fn conf_refused(error: SlurmConfError) -> Error {
    let hint = match &error {
        SlurmConfError::NoGpus => "`gpuvm gpu list` shows the GPUs and their state",
        SlurmConfError::NoWholeGpus { .. } => {
            "`gpuvm gpu list` shows why; --vgpu TYPE counts vGPUs of a type, which `gpuvm vgpu \
             list` shows"
        }
        SlurmConfError::Mediated { bdf } => {
            let hint = format!(
                "leave --files out: then gpuvm chooses the GPUs; or `gpuvm device bind {bdf} \
                 --at-boot` keeps it whole"
            );
            return error.hint(hint);
        }
        SlurmConfError::NoVfioGroups => {
            "`gpuvm host doctor` shows the remedy; without --files no VFIO group is needed"
        }
        SlurmConfError::NoVgpu { .. } => "`gpuvm vgpu list` shows the types",
        SlurmConfError::NodeName { .. } => "--node-name NAME gives another one",
        SlurmConfError::NoGroup { .. } => {
            "`gpuvm host doctor` says why; without --files no VFIO group is needed"
        }
        SlurmConfError::SharedGroup { .. } => "leave --files out: then gpuvm chooses the GPUs",
        SlurmConfError::NoCores { .. } | SlurmConfError::NoMemory { .. } => {
            "it is reserved on each NUMA node; `gpuvm host show` shows what each has"
        }
        SlurmConfError::UnevenCores => "leave --reserve-cores out",
    };
    error.hint(hint)
}

/// An error in an answer of Slurm, with the remedy.
pub fn slurm_failed(error: SlurmError) -> Error {
    let hint = match &error {
        SlurmError::Unanswered { .. } => {
            "`scontrol ping` tells whether slurmctld answers; --programs DIR names the directory of \
             Slurm's programs"
        }
        SlurmError::Answer { .. } => {
            "`squeue --version` tells the version; it was tested with 22.05"
        }
    };
    error.hint(hint)
}

/// Whether an error of this code is the machine's, so that Slurm has to drain the node.
pub fn is_fault(code: &str) -> bool {
    FAULTS.iter().any(|fault| match fault.strip_suffix('-') {
        Some(_) => code.starts_with(fault),
        None => code == *fault,
    })
}

/// The actions for a job that begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Begun {
    /// Its guest was made.
    Made,
    /// It has its guest already.
    Kept,
    /// It requests no GPUs of guests.
    NoGpus,
    /// It has ended, so that it gets none.
    Ended,
    /// Its guest was refused, and it was cancelled.
    Cancelled,
}

/// The answer of a prolog.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Prolog {
    /// The job.
    pub job: u32,
    /// The action.
    pub done: Begun,
    /// The guest; `None` if the job has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<Created>,
    /// Why the job was cancelled; `None` if it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The answer of an epilog.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Epilog {
    /// The job.
    pub job: u32,
    /// The guests that were deleted.
    pub deleted: Vec<String>,
}

/// A guest of a job.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobGuest {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Its job.
    pub job: SlurmJob,
    /// Whether it runs.
    pub runs: bool,
}

/// The answer of `slurm reconcile`.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reconciled {
    /// Guests whose jobs are gone, which were or would be deleted.
    pub deleted: Vec<JobGuest>,
    /// Guests whose jobs have the node.
    pub kept: Vec<JobGuest>,
    /// Guests whose job's prolog or epilog runs.
    pub busy: Vec<JobGuest>,
    /// Guests of other clusters.
    pub others: Vec<JobGuest>,
}

/// Takes the lock of a job, so that its prolog, its epilog and `reconcile` follow each other;
/// `None` if another of them has it for longer than `wait`.
pub fn lock_job(world: &World, id: u32, wait: Duration) -> Result<Option<HostLock>> {
    let number = (id % LOCK_COUNT).to_string();
    let dir = world.state().map_or(Path::new(LOCKS).to_owned(), |state| state.join("slurm"));
    match HostLock::take_in(&dir.join(number), wait, |_| ControlFlow::Continue(())) {
        Ok(lock) => Ok(Some(lock)),
        Err(LockError::Held { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The job of this number among those of its node, if it has the node and is to get a guest; `None`
/// if it has ended.
pub fn running(jobs: &[NodeJob], id: u32) -> Option<&NodeJob> {
    jobs.iter().find(|job| job.id == id).filter(|job| job.is_running())
}

/// The GPUs of a job: how many, or those that Slurm chose by device files (`chosen`: the value of
/// SLURM_JOB_GPUS), and the model where the host has several. `None` if it requests none.
pub fn gpus(
    world: &World,
    job: &NodeJob,
    (gres, chosen): (&str, Option<&str>),
) -> Result<Option<(GpuWish, Option<String>)>> {
    let chosen = chosen.filter(|text| gres != GRES && !text.is_empty());
    let request = GresRequest::read(&job.gres, gres).map_err(request_refused)?;
    if request.count == 0 && chosen.is_none() {
        return Ok(None);
    }
    let topology = world.topology()?;
    if let Some(text) = chosen {
        let gpus = chosen_gpus(&topology, text, request.of.as_deref())?;
        return Ok(Some((GpuWish::Exact(gpus), None)));
    }
    let models = topology.gpu_models();
    let model = match &request.of {
        None => None,
        Some(of) => {
            let whole = whole_gpus(&topology).0;
            let types: BTreeSet<String> = whole.iter().map(|gpu| gpu_type(&model(gpu))).collect();
            let found = models.iter().find(|(_, name, _)| gpu_type(name) == *of);
            let Some((ids, ..)) = found.filter(|_| types.contains(of)) else {
                let has: Vec<String> = types.into_iter().collect();
                let has = if has.is_empty() { "none".into() } else { has.join(", ") };
                return Err(job_refused(SlurmJobError::Type { of: of.clone(), has }));
            };
            Some(ids.clone()).filter(|_| models.len() > 1)
        }
    };
    Ok(Some((GpuWish::Count(request.count), model)))
}

/// The GPUs that Slurm chose, by the order of their device files; `of`: the type that they are of.
fn chosen_gpus(topology: &Topology, text: &str, of: Option<&str>) -> Result<Vec<Bdf>> {
    let all = gpus_by_file(topology).map_err(conf_refused)?;
    let gpus = text.split(',').map(|index| all.get(index.trim().parse::<usize>().ok()?).copied());
    let indexes = || text.to_owned();
    let wrong = || SlurmJobError::Indexes { indexes: indexes(), has: all.len() };
    let gpus: Option<Vec<&PciDevice>> = gpus.collect();
    let gpus = gpus.ok_or_else(|| job_refused(wrong()))?;
    // A type of the admin's own says nothing about the model.
    let of_gpu = |gpu: &PciDevice| gpu_type(&model(gpu));
    if let Some(of) = of.filter(|of| topology.gpus().any(|gpu| of_gpu(gpu) == *of))
        && let Some(gpu) = gpus.iter().find(|gpu| of_gpu(gpu) != of)
    {
        let (bdf, is, of) = (gpu.bdf.to_string(), of_gpu(gpu), of.to_owned());
        return Err(job_refused(SlurmJobError::OtherType { indexes: indexes(), bdf, is, of }));
    }
    Ok(gpus.into_iter().map(|gpu| gpu.bdf).collect())
}

/// Counts vGPUs of a type: as many as the GPUs have that offer it now, those that exist included.
/// A GPU whose MIG mode does not permit the type has none.
pub fn vgpu_count(topology: &Topology, name: &str) -> Result<VgpuCount> {
    let cards = shared_cards(topology, &Occupancy::default());
    let all = cards.iter().flat_map(|card| &card.offers);
    let all = all.filter(|offer| offer.is_named(name));
    // A function has one vGPU at most.
    let places = |offer: &VgpuOffer| offer.creatable + offer.in_use;
    let most = |offer: &VgpuOffer| offer.max_instances.unwrap_or_else(|| places(offer));
    let counted = all.filter(|offer| most(offer) > 0).map(|offer| VgpuCount {
        name: offer.name.clone(),
        count: most(offer),
        unknown_instances: offer.has_unknown_instances(),
    });
    let none = || conf_refused(SlurmConfError::NoVgpu { name: name.to_owned() });
    let sum = |all: VgpuCount, one: VgpuCount| VgpuCount {
        count: all.count + one.count,
        unknown_instances: all.unknown_instances || one.unknown_instances,
        ..all
    };
    counted.reduce(sum).ok_or_else(none)
}

/// The vGPUs of a job, by the type of its request; none: it requests whole GPUs, or none.
pub fn vgpus(world: &World, job: &NodeJob, gres: &str) -> Result<Option<VgpuWish>> {
    let request = GresRequest::read(&job.gres, gres).map_err(request_refused)?;
    let Some(word) = request.of.filter(|_| request.count > 0) else { return Ok(None) };
    let topology = world.topology()?;
    let cards = shared_cards(&topology, &Occupancy::default());
    let mut offers = cards.iter().flat_map(|card| &card.offers);
    let named = offers.find(|offer| vgpu_type(&offer.name) == word);
    Ok(named.map(|offer| VgpuWish {
        type_name: offer.name.clone(),
        count: request.count,
        gpu: None,
    }))
}

/// Makes the guest of a job, which has the lock of the job. Another guest of the job, of before it
/// was requeued, goes first.
pub fn prolog(
    session: &mut Session<'_>,
    world: &World,
    wanted: &CreateRequest,
    waits: Waits,
) -> Result<(Begun, Created)> {
    settle(session, world)?;
    let Some(job) = &wanted.job else {
        return Err(classed(Class::Internal, "a guest of no job", ""));
    };
    let is_same = |other: &SlurmJob| (&other.cluster, other.id) == (&job.cluster, job.id);
    for guest in guests(world, is_same)? {
        if guest.job.submitted_s == job.submitted_s && (guest.runs || !wanted.starts) {
            let JobGuest { name, runs, .. } = guest;
            let kept = Created { name, started: runs, ..Created::default() };
            return Ok((Begun::Kept, kept));
        }
        delete_guest(session, &guest, PROLOG)?;
    }
    let plan = |world: &World| {
        let mut change = create::create(world, wanted)?;
        change.verb = PROLOG;
        Ok(change)
    };
    Ok((Begun::Made, create::make(session, world, wanted, waits, plan)?))
}

/// Deletes the guests of a job, which has the lock of the job. Returns their names.
pub fn epilog(
    session: &mut Session<'_>,
    world: &World,
    cluster: &str,
    id: u32,
) -> Result<Vec<String>> {
    settle(session, world)?;
    let mut deleted = Vec::new();
    for guest in guests(world, |job| job.cluster == cluster && job.id == id)? {
        if delete_guest(session, &guest, EPILOG)? {
            deleted.push(guest.name);
        }
    }
    Ok(deleted)
}

/// Deletes the guests of this cluster whose job does not have its node any more; `ask` returns the
/// jobs of a node. Nothing is deleted where Slurm does not answer. What fails for one guest keeps
/// no other from being deleted; the first such error is returned.
pub fn reconcile(
    session: &mut Session<'_>,
    world: &World,
    cluster: &str,
    ask: impl Fn(&str) -> Result<Vec<NodeJob>>,
) -> Result<Reconciled> {
    let mut done = Reconciled::default();
    if !session.is_preview() {
        settle(session, world)?;
    }
    // Before Slurm is asked: the job of an existing guest has begun.
    let (own, others) =
        guests(world, |_| true)?.into_iter().partition(|g| g.job.cluster == cluster);
    done.others = others;
    let own: Vec<JobGuest> = own;
    let mut jobs: BTreeMap<String, Option<Vec<NodeJob>>> = BTreeMap::new();
    let mut failed: Vec<Error> = Vec::new();
    for guest in own {
        let SlurmJob { id, node, submitted_s, .. } = &guest.job;
        if !jobs.contains_key(node) {
            let answer = ask(node).map_err(|error| failed.push(error)).ok();
            jobs.insert(node.clone(), answer);
        }
        let Some(Some(known)) = jobs.get(node) else {
            done.kept.push(guest);
            continue;
        };
        let is_its = |job: &&NodeJob| (job.id, job.submitted_s) == (*id, *submitted_s);
        if known.iter().find(is_its).is_some_and(NodeJob::is_known) {
            done.kept.push(guest);
            continue;
        }
        let Some(_lock) = lock_job(world, *id, Duration::ZERO)? else {
            done.busy.push(guest);
            continue;
        };
        if session.is_preview() {
            done.deleted.push(guest);
            continue;
        }
        match delete_guest(session, &guest, RECONCILE) {
            Ok(true) => done.deleted.push(guest),
            Ok(false) => {}
            Err(error) => failed.push(error),
        }
    }
    match failed.into_iter().next() {
        None => Ok(done),
        Some(error) => Err(error),
    }
}

/// Finishes or undoes the remains of killed prologs, epilogs and runs of `reconcile`; no other
/// changes.
fn settle(session: &mut Session<'_>, world: &World) -> Result<()> {
    let left = unfinished::all(world.state())?.readable;
    let changes = left.iter().filter_map(|orphan| Some(&orphan.story.as_ref()?.change));
    let ours = changes.filter(|change| VERBS.contains(&change.verb.as_str()));
    let end: Vec<String> = ours.map(|change| change.subject.clone()).collect();
    // The remains are opened by the recovery.
    drop(left);
    if end.is_empty() {
        return Ok(());
    }
    let outcome = recover(session, &Recover { end, only: &VERBS, ..Recover::default() })?;
    for settled in &outcome.settled {
        world.progress(&format!("{} was interrupted, and is settled now", settled.name()));
    }
    outcome.failed.into_iter().next().map_or(Ok(()), Err)
}

/// The guests of jobs of this kind.
fn guests(world: &World, is_wanted: impl Fn(&SlurmJob) -> bool) -> Result<Vec<JobGuest>> {
    let hypervisor = &*world.hypervisor()?;
    let mut found = Vec::new();
    for row in hypervisor.domains()? {
        if let Some(job) = made_for(&row, hypervisor, world)?.filter(&is_wanted) {
            let runs = row.state.is_active();
            found.push(JobGuest { name: row.name, uuid: row.uuid, job, runs });
        }
    }
    Ok(found)
}

/// The job that a domain was made for; `None` for none, or the domain was defined by others.
fn made_for(
    row: &DomainSummary,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<Option<SlurmJob>> {
    let is_here = world.owner(&row.uuid, hypervisor).other_hypervisor().is_none();
    let Some(job) = job_of(world.state(), &row.uuid).filter(|_| is_here) else { return Ok(None) };
    // Somebody may have defined another one with its UUID.
    let xml = match hypervisor.xml(&row.name, XmlOf::Inactive) {
        Ok(xml) => DomainXml::parse(&xml)?,
        // Another job's, which has ended since the domains were listed.
        Err(error) if error.kind == HypervisorErrorKind::NoDomain => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let is_made = View::of(&xml, None)?.remembered.is_some_and(|record| record.request.is_some());
    Ok(Some(job).filter(|_| is_made && xml.is_ours()))
}

/// Deletes a guest, if it is still that of its job. Returns whether something was done.
fn delete_guest(session: &mut Session<'_>, guest: &JobGuest, verb: &'static str) -> Result<bool> {
    let JobGuest { name, uuid, job, .. } = guest;
    let plan = |world: &World| {
        let hypervisor = &*world.hypervisor()?;
        let row = hypervisor.domain(name)?.filter(|row| row.uuid == *uuid);
        let Some(row) = row else { return Ok(Change::new(verb, name, Vec::new(), Vec::new())) };
        if made_for(&row, hypervisor, world)?.as_ref() != Some(job) {
            let message = format!("domain `{name}` no longer belongs to job {}", job.id);
            let hint = format!("`gpuvm show {}` shows it", word(name));
            return Err(classed(Class::Changed, message, hint));
        }
        let change = delete(world, &Delete { name: name.clone(), keep_data: false })?;
        // Whoever ends a job has agreed to it.
        Ok(Change { verb, question: None, ..change })
    };
    session.run(plan).map(|done| done.made)
}
