//! `gpu test`: tests GPUs between guests, as the policy of `/etc/gpuvm/test.toml` says. A guest is
//! made of the policy's image with these GPUs alone, without NICs, seed or data disk; its agent runs
//! NVIDIA's own programs; then the guest and all that was made for it are undone. The whole test is
//! one change: `recover` undoes it where this program is killed.
//!
//! Nothing is concluded from a test that does not come to its end: a GPU is excluded only for a
//! fault that a program of the guest has reported.

mod inside;
mod pending;
/// The state of each GPU of a group that failed, while none of them fails alone.
fn together(gpus: usize, outcome: &Outcome) -> String {
    format!("failed together with {}: {}", count(gpus - 1, "other"), outcome.why.join("; "))
}

#[cfg(test)]
mod tests;

use crate::apply::{Aftermath, ApplyError, now_s};
use crate::bdf::Bdf;
use crate::change::{Change, Part};
use crate::create::{self, CreateRequest};
use crate::discover::cards::cards;
use crate::discover::identity;
use crate::discover::test_policy::{FILE, OnFail, TestMode, TestPolicy, test_policy};
use crate::domain::DomainXml;
use crate::error::{Class, Coded, Error, Result, classed};
use crate::exclude::{ExclusionChange, GpuName, exclude, locate};
use crate::fsroot::FsRoot;
use crate::guest::{GuestRequest, NameRequest};
use crate::history::gpus::{self, GpuRecord, GpuRecords, GpuState, GpuTest, Tenant, TestVerdict};
use crate::identity::random_uuid;
use crate::image::Sha256;
use crate::images::{self, Image};
use crate::input::open_regular;
use crate::request::{DomainName, GpuWish, PinPolicy, Request};
use crate::session::Session;
use crate::shell::word;
use crate::storage::{DataRequest, ImageRequest, Keyless, OsDisk, SeedRequest, StorageRequest};
use crate::taken::Taken;
use crate::topology::{DeviceKind, Topology};
use crate::words::count;
use crate::world::World;
use crate::{apply, memsize::MemSize};
use gpuvm_core::measure::one_line;
use inside::{Probe, SPEEDS};
use pending::pending;
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// The begin of the names of test guests.
const NAME: &str = "gpuvm-test-";

/// The reason GPUs are not tested.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "gpu-test-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum GpuTestError {
    /// The policy names no image, or not its checksum.
    #[error("/{FILE} has no `{key}`, so gpuvm has no trusted image to test GPUs with")]
    NoImage { key: &'static str },
    /// The image is not the one of the policy.
    #[error("image `{image}` has SHA-256 {sum}, and /{FILE} states {stated}")]
    OtherImage { image: String, sum: Box<Sha256>, stated: Box<Sha256> },
    /// The image could not be read.
    #[error("image `{image}` cannot be read: {error}")]
    Unreadable { image: String, error: String },
    /// It is no GPU.
    #[error("{bdf} is not a GPU")]
    NotGpu { bdf: String },
    /// The GPU is shared among guests.
    #[error("{bdf} is not tested as a whole: {how}")]
    Shared { bdf: String, how: String },
    /// Another test runs on this host.
    #[error("another test of GPUs runs on this host")]
    Running,
    /// The test guest could not be removed completely.
    #[error("test guest `{name}` could not be removed completely: {left}")]
    Left { name: String, left: String },
}

impl Coded for GpuTestError {}

/// The GPUs to test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpusToTest {
    /// These, in one guest.
    Named(Vec<GpuName>),
    /// Those that are not tested since their last guest and that nothing uses, in guests with the
    /// GPUs that a guest had.
    Pending,
}

/// A request to test GPUs.
#[derive(Debug, Clone)]
pub struct GpuTestRequest {
    /// The GPUs.
    pub gpus: GpusToTest,
    /// Level of DCGM's diagnostics, 1 to 4; `None` for that of the policy.
    pub level: Option<u8>,
}

/// The result of a test of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TestedGpu {
    /// Its address.
    pub bdf: Bdf,
    /// The verdict.
    pub verdict: TestVerdict,
    /// Its reasons, a phrase each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// Level of DCGM's diagnostics.
    pub level: u8,
    /// Its recorded state now; absent: the policy's mode is off, and nothing is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<GpuState>,
    /// Whether it was excluded because of this test.
    pub excluded: bool,
}

/// The outcome of one test guest.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    verdict: TestVerdict,
    why: Vec<String>,
}

impl Outcome {
    fn unknown(why: impl Into<String>) -> Outcome {
        Outcome { verdict: TestVerdict::Unknown, why: vec![why.into()] }
    }

    /// The verdict on faults that were found.
    fn of(faults: Vec<String>) -> Outcome {
        let verdict = if faults.is_empty() { TestVerdict::Passed } else { TestVerdict::Failed };
        Outcome { verdict, why: faults.iter().map(|text| one_line(text)).collect() }
    }
}

/// Tests GPUs, the result of each by address; of a preview there are none.
pub fn test(session: &mut Session<'_>, request: &GpuTestRequest) -> Result<Vec<TestedGpu>> {
    let world = session.world();
    let root = FsRoot::live()?;
    let topology = world.topology()?;
    let policy = test_policy(&root)?;
    let sha256 = policy.sha256;
    let bench = Bench::new(world, root, policy, request.level)?;
    let is_preview = session.is_preview();
    let _lock = if is_preview { None } else { Some(lock(session)?) };
    let groups = match &request.gpus {
        GpusToTest::Named(names) => vec![bench.named(&topology, names)?],
        GpusToTest::Pending => pending(world, &bench.root, &bench.policy, &topology)?,
    };
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(stated) = sha256.filter(|_| !is_preview) {
        bench.check_image(stated)?;
    }
    let is_named = matches!(request.gpus, GpusToTest::Named(_));
    let mut all = Vec::new();
    for group in groups {
        all.extend(bench.test_group(session, &group, is_named)?);
    }
    all.sort_by_key(|tested| tested.bdf);
    Ok(all)
}

/// Takes the lock of tests: each takes GPUs whole, and two would exclude GPUs for each other's use.
fn lock(session: &Session<'_>) -> Result<apply::HostLock> {
    let (world, wait) = (session.world(), session.manner().lock_wait);
    let waiting = |holder: Option<i32>| {
        let who = holder.map_or(String::new(), |pid| format!(" (process {pid})"));
        world.note(&format!("waiting for another test of GPUs{who}"));
        ControlFlow::Continue(())
    };
    gpus::lock(world.state(), wait, waiting).map_err(|error| match error {
        apply::LockError::Held { .. } => GpuTestError::Running
            .hint("wait until it ends, or let this one wait longer with --lock-wait SECONDS"),
        other => other.into(),
    })
}

/// The host, its policy, and the image of its test guests.
struct Bench<'w> {
    world: &'w World,
    root: FsRoot,
    policy: TestPolicy,
    image: Image,
    level: u8,
}

impl<'w> Bench<'w> {
    fn new(
        world: &'w World,
        root: FsRoot,
        policy: TestPolicy,
        level: Option<u8>,
    ) -> Result<Bench<'w>> {
        let lacks = |key| {
            GpuTestError::NoImage { key }.hint(
                "gpuvm-guide(7) lists its keys under GPUS BETWEEN GUESTS; `gpuvm gpu include BDF \
                 --untested` records a GPU as clean that was tested otherwise",
            )
        };
        let name = policy.image.as_ref().ok_or_else(|| lacks("image"))?;
        if policy.sha256.is_none() {
            return Err(lacks("sha256"));
        }
        let image = images::resolve(&*world.hypervisor()?, images::POOL, Some(name))?;
        let level = level.unwrap_or(policy.level);
        Ok(Bench { world, root, policy, image, level })
    }

    /// Refuses an image that is not the one of the policy.
    fn check_image(&self, stated: Sha256) -> Result<()> {
        let (image, path) = (self.image.name.to_string(), &self.image.path);
        let reporter = self.world.reporter();
        reporter.detail(&format!("compute the SHA-256 of {}", path.display()));
        let file = open_regular(path)?;
        let bytes = file.metadata().map_or(0, |meta| meta.len());
        let summed = Sha256::of(file, &mut |through| {
            reporter.bytes(through, bytes);
            true
        });
        reporter.bytes(0, 0);
        let sum = summed.map_err(|error| {
            let error = error.to_string();
            GpuTestError::Unreadable { image: image.clone(), error }.refusal("")
        })?;
        if sum == stated {
            return Ok(());
        }
        let hint = format!(
            "if you have changed the image on purpose, state its new sum: `sha256sum {}`",
            word(&path.to_string_lossy())
        );
        let (sum, stated) = (Box::new(sum), Box::new(stated));
        Err(GpuTestError::OtherImage { image, sum, stated }.hint(hint))
    }

    /// The addresses of named GPUs, each once.
    fn named(&self, topology: &Topology, names: &[GpuName]) -> Result<Vec<Bdf>> {
        let mut gpus = Vec::new();
        for name in names {
            let bdf = locate(&self.root, topology, name)?;
            if topology.device(bdf).is_none_or(|gpu| gpu.kind() != DeviceKind::Gpu) {
                let hint = "`gpuvm gpu list` shows the GPUs";
                return Err(GpuTestError::NotGpu { bdf: bdf.to_string() }.hint(hint));
            }
            if let Some(how) = shared(topology, bdf) {
                let hint = "`gpuvm vgpu list` shows its vGPUs and their guests";
                return Err(GpuTestError::Shared { bdf: bdf.to_string(), how }.hint(hint));
            }
            gpus.push(bdf);
        }
        gpus.sort();
        gpus.dedup();
        Ok(gpus)
    }

    /// Tests GPUs in one guest. If it fails, each GPU is tested alone, since programs of the guest
    /// number them in their own way. `is_named`: what stops the test is an error.
    fn test_group(
        &self,
        session: &mut Session<'_>,
        gpus: &[Bdf],
        is_named: bool,
    ) -> Result<Vec<TestedGpu>> {
        let outcome = match self.run(session, gpus) {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return Ok(Vec::new()),
            Err(error) if is_named || matches!(error, Error::Apply(_)) => return Err(error),
            // Its GPUs are in no partition of their own, or one is in use meanwhile.
            Err(_) if gpus.len() > 1 => return self.test_each(session, gpus),
            Err(error) => Outcome::unknown(error.whole()),
        };
        if gpus.len() == 1 || outcome.verdict != TestVerdict::Failed {
            return gpus.iter().map(|&gpu| self.record(session, gpu, &outcome)).collect();
        }
        let mut alone = Vec::new();
        for &gpu in gpus {
            let single = self.run(session, &[gpu]);
            let unknown = |error: Error| match error {
                Error::Apply(_) => Err(error),
                other => Ok(Some(Outcome::unknown(other.whole()))),
            };
            let single = single.or_else(unknown)?;
            alone.push(single.unwrap_or_else(|| Outcome::unknown("it was not tested alone")));
        }
        if !alone.iter().any(|one| one.verdict == TestVerdict::Failed) {
            // Which one it is, or whether it is a link between them, is not known.
            alone.fill(Outcome::unknown(together(gpus.len(), &outcome)));
        }
        let all = gpus.iter().zip(&alone);
        all.map(|(&gpu, outcome)| self.record(session, gpu, outcome)).collect()
    }

    fn test_each(&self, session: &mut Session<'_>, gpus: &[Bdf]) -> Result<Vec<TestedGpu>> {
        let mut all = Vec::new();
        for gpu in gpus {
            all.extend(self.test_group(session, std::slice::from_ref(gpu), false)?);
        }
        Ok(all)
    }

    /// Makes a guest with these GPUs, runs the tests in it, and undoes all of it; `None`: its steps
    /// were only shown.
    fn run(&self, session: &mut Session<'_>, gpus: &[Bdf]) -> Result<Option<Outcome>> {
        self.world.offer_to_test(gpus);
        let outcome = self.run_offered(session, gpus);
        self.world.offer_to_test(&[]);
        outcome
    }

    fn run_offered(&self, session: &mut Session<'_>, gpus: &[Bdf]) -> Result<Option<Outcome>> {
        let uuid = random_uuid()?;
        let name = format!("{NAME}{}", uuid.split('-').next().unwrap_or_default());
        let wanted = self.guest(gpus, &name, &uuid)?;
        let plan = |world: &World| planned(world, &wanted);
        session.check_first(plan)?;
        if !session.is_preview() {
            self.begin(session, gpus, Tenant { uuid, name: name.clone() })?;
        }
        let until = Instant::now() + Duration::from_secs(self.policy.timeout_s);
        let (gpus, level, world) = (gpus.len(), self.level, self.world);
        let probe =
            Probe { world, name: &name, gpus, level, until, limit_s: self.policy.timeout_s };
        let made = session.run_and(plan, |running, _| -> Result<Outcome> {
            let outcome = probe.run(running)?;
            let left = match running.transaction.take_back() {
                Aftermath::Undone { left, .. } if left.is_empty() => None,
                Aftermath::Undone { left, .. } => left.first().map(ToString::to_string),
                Aftermath::Unfinished => Some("a step cannot be undone".to_owned()),
            };
            // A signal that came meanwhile has nothing more to undo.
            running.keep();
            match left {
                None => Ok(outcome),
                Some(left) => {
                    let name = probe.name.to_owned();
                    Err(GpuTestError::Left { name, left }.hint("`gpuvm recover` tries again"))
                }
            }
        });
        match made {
            Ok((_, outcome)) => Ok(outcome),
            Err(Error::Apply(error @ ApplyError::Failed { .. })) if !error.needs_recovery() => {
                Ok(Some(Outcome::unknown(Error::Apply(error).whole())))
            }
            Err(error) => Err(error),
        }
    }

    /// The request for the test guest.
    fn guest(&self, gpus: &[Bdf], name: &str, uuid: &str) -> Result<CreateRequest> {
        let request = Request {
            gpus: GpuWish::Exact(gpus.to_vec()),
            memory_kib: Some(self.policy.memory),
            vcpus: self.policy.vcpus,
            // Without speeds to measure, it takes no cores from guests that are planned meanwhile.
            pins: if self.level < SPEEDS { PinPolicy::None } else { PinPolicy::Auto },
            ..Request::for_gpus(0)
        };
        let usual = StorageRequest::default();
        let size = MemSize::from_kib(self.image.virtual_bytes.div_ceil(1024));
        let storage = StorageRequest {
            image: ImageRequest::Named(self.image.name.clone()),
            os_disk: OsDisk::Overlay,
            os_size: size,
            pool: self.policy.pool.clone().unwrap_or(usual.pool),
            data: DataRequest::None,
            ..StorageRequest::default()
        };
        Ok(CreateRequest {
            guest: GuestRequest {
                request,
                name: NameRequest::Exact(DomainName::new(name)?),
                template: self.policy.template.clone(),
                virt: self.policy.virt_type,
                networks: Vec::new(),
                taken: Taken::default(),
                place: None,
            },
            storage,
            seed: SeedRequest { keyless: Keyless::Accepted, ..SeedRequest::default() },
            uuid: Some(uuid.to_owned()),
            private_net: false,
            without_nics: true,
            reserve_pages: false,
            // The image is the host's own: no tenant's data is in the guest.
            accept_shared_fabric: true,
            starts: true,
            applied: None,
            job: None,
        })
    }

    /// Records that GPUs are used before the test guest has them, so that they are where the test
    /// is killed.
    fn begin(&self, session: &mut Session<'_>, gpus: &[Bdf], tenant: Tenant) -> Result<()> {
        if self.policy.mode == TestMode::Off {
            return Ok(());
        }
        let _lock = session.lock()?;
        for &gpu in gpus {
            self.write(gpu, |before| match before {
                Some(before) if before.state != GpuState::Clean => None,
                _ => Some((GpuState::Used, Some(tenant.clone()), None)),
            })?;
        }
        Ok(())
    }

    /// Records the outcome of a test, and excludes a GPU that has failed.
    fn record(&self, session: &mut Session<'_>, bdf: Bdf, outcome: &Outcome) -> Result<TestedGpu> {
        let Outcome { verdict, why } = outcome.clone();
        let (level, mut state) = (self.level, None);
        if self.policy.mode != TestMode::Off {
            let _lock = session.lock()?;
            let test = GpuTest { at_s: now_s(), level, verdict, why: why.clone() };
            self.write(bdf, |before| {
                let now = match verdict {
                    TestVerdict::Passed => GpuState::Clean,
                    TestVerdict::Failed => GpuState::Failed,
                    TestVerdict::Unknown => before.map_or(GpuState::Used, |before| before.state),
                };
                state = Some(now);
                Some((now, before.and_then(|before| before.by.clone()), Some(test.clone())))
            })?;
        }
        let fails = verdict == TestVerdict::Failed;
        let excluded = fails && self.policy.on_fail == OnFail::Exclude;
        if excluded {
            let uuid = cards(&self.root)?.remove(&bdf).and_then(|card| card.uuid);
            let device = uuid.map_or(GpuName::At(bdf), GpuName::Uuid);
            let reason = Some(one_line(&format!("test: {}", why.join("; "))));
            exclude(session, &ExclusionChange::Exclude { device, reason })?;
        }
        Ok(TestedGpu { bdf, verdict, why, level, state, excluded })
    }

    /// Writes the record of a GPU, as `change` has it: its state, last guest and test; `None` leaves
    /// it.
    fn write(
        &self,
        bdf: Bdf,
        change: impl FnOnce(Option<&GpuRecord>) -> Option<(GpuState, Option<Tenant>, Option<GpuTest>)>,
    ) -> Result<()> {
        let records: GpuRecords = self.world.gpu_records(&self.root, self.policy.mode)?;
        let located = records.located(&self.root)?;
        let old = located.get(&bdf).map_or(&[][..], Vec::as_slice);
        let before = old.first().map(|document| &document.record);
        let Some((state, by, test)) = change(before) else { return Ok(()) };
        let known = before.map(|before| &before.identity);
        let identity = identity::renewed(&self.root, bdf, known)?;
        let Some(identity) = identity.or_else(|| known.cloned()) else {
            let message = format!("{bdf} cannot be identified, so its state cannot be recorded");
            let hint = "`gpuvm gpu list` shows the GPUs that answer";
            return Err(classed(Class::Refused, message, hint));
        };
        let mut record = GpuRecord::now(bdf, identity, state);
        record.by = by;
        record.tested_s = match &test {
            Some(test) if test.verdict == TestVerdict::Passed => Some(test.at_s),
            _ => before.and_then(|before| before.tested_s),
        };
        if let Some(before) = before.filter(|before| before.state == state) {
            record.since_s = before.since_s;
        }
        record.last_test = test.or_else(|| before.and_then(|before| before.last_test.clone()));
        Ok(gpus::write(&records.replace(old, &record)?)?)
    }
}

/// Plans the test guest: an interrupted run is undone as a whole, also once it runs.
fn planned(world: &World, wanted: &CreateRequest) -> Result<Change<DomainXml>> {
    let mut change = create::create(world, wanted)?;
    change.verb = "gpu test";
    change.again = "gpuvm gpu test".to_owned();
    change.parts.retain(|part| !matches!(part, Part::Complete));
    Ok(change)
}

/// How a GPU is shared among guests, so that it is not tested as a whole; `None` if it is not.
fn shared(topology: &Topology, bdf: Bdf) -> Option<String> {
    let gpu = topology.device(bdf)?;
    if gpu.is_vf() {
        return Some("it is a share of another GPU".to_owned());
    }
    if gpu.mig.is_some_and(|mig| mig.enabled) {
        return Some("it is in MIG mode".to_owned());
    }
    let vgpus: u32 = topology.vgpus_of(gpu).iter().map(|(_, number)| number).sum();
    match vgpus {
        0 => None,
        1 => Some("it has a vGPU".to_owned()),
        many => Some(format!("it has {many} vGPUs")),
    }
}
