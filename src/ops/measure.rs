//! `measure`: runs the measuring programs that a guest has, by its agent or by ssh, and judges
//! their results ([`gpuvm_core::measure`]). Nothing is installed; fio makes a file in the guest and
//! removes it.

mod inside;
mod rdma;

use crate::apply::{HostLock, LockError, now_s};
use crate::by_ssh::SshWanted;
use crate::discover::expected::expected;
use crate::doctor::diagnose;
use crate::domain::DomainXml;
use crate::domain::claims::Claims;
use crate::error::{Class, Coded, Error, Result, classed, usage};
use crate::exec::Executed;
use crate::guest::find_alive;
use crate::history::measured;
use crate::hypervisor::machine::{Machine, command_there};
use crate::hypervisor::{Hypervisor, XmlOf};
use crate::identity::random_uuid;
use crate::lookup::find;
use crate::shell::word;
use crate::topology::{Proximity, Topology};
use crate::verify::{Verify, verify};
use crate::words::count;
use crate::world::World;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::measure::{
    Basis, Call, Candidate, Faulty, FioFile, GpuState, Line, MeasureReport, NcclLog, NicGpu,
    NicLinks, NicTransfer, NotMeasured, OwnExpected, Parts, Promise, Reading, Run, Shape, Suite,
    Taken, Tool, What, candidates, judge, median, one_line, read,
};
use gpuvm_core::nccl::bus;
use gpuvm_core::p2p::{Op, Way};
use gpuvm_core::topology::pairs::{rate, rate_between};
use gpuvm_core::topology::vendor::VENDOR_NVIDIA;
use gpuvm_core::topology::{DeviceKind, Moment};
use inside::{Inside, SHORT_S, Shown};
use rdma::{Gpus, Peer};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use strum::IntoEnumIterator as _;

/// Use of a GPU in percent from which it counts as busy.
const BUSY_PERCENT: u32 = 5;
/// The exit status of timeout(1) if it ended the program, and of one that it had to kill.
const TIMED_OUT: [u8; 2] = [124, 137];
/// The status of a program that signal 9 ended.
const KILLED: u8 = 137;
/// How much a guest's clock may be ahead of this host's when a program reaches its limit.
const CLOCKS: Duration = Duration::from_secs(1);
/// The most time for all runs of one program: a guest decides how many cells it lists.
const MOST_RUNS: Duration = Duration::from_secs(1800);
/// How long the guest's load is sampled while causes are looked for.
const SAMPLE: Duration = Duration::from_secs(1);

/// The reason why a guest is not measured.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "measure-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum MeasureError {
    /// Something computes on its GPUs.
    #[error("GPU {gpu} of domain `{name}` is in use: {why}")]
    Busy { name: String, gpu: usize, why: String },
    /// Another measurement runs on this host.
    #[error("another measurement runs on this host")]
    Running,
}

impl Coded for MeasureError {}

/// A request to measure a guest.
#[derive(Debug, Clone)]
pub struct MeasureRequest {
    /// The domain.
    pub name: String,
    /// How much.
    pub suite: Suite,
    /// The programs; empty: all.
    pub only: Vec<Tool>,
    /// Directories of the guest in which programs are looked for first.
    pub directories: Vec<String>,
    /// The way by ssh; `None`: by the guest's agent.
    pub ssh: Option<SshWanted>,
    /// The guest on the other side of RDMA; `None`: another NIC of this one.
    pub peer: Option<String>,
    /// The file or block device of the guest that fio reads; `None`: one that it makes.
    pub file: Option<String>,
    /// Whether GPUs that are in use are measured, too.
    pub force: bool,
    /// Scales expected values.
    pub threshold: f64,
}

/// The usual value of a quantity in a guest.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Usual {
    /// How much was measured: a longer run has values of its own. `None` if it is not known, as of
    /// runs by the first version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suite: Option<Suite>,
    /// The GPUs that the guest had.
    pub shape: Shape,
    /// The quantity, with the median.
    #[serde(flatten)]
    pub reading: Reading,
    /// The unit.
    pub unit: &'static str,
    /// The smallest and the largest value.
    pub range: [f64; 2],
    /// Number of runs.
    pub runs: usize,
    /// When the last run was, in seconds since 1970, UTC.
    pub last_s: u64,
}

/// Measures a guest. `progress` is called before each program.
pub fn measure(
    world: &World,
    request: &MeasureRequest,
    progress: &dyn Fn(&str),
) -> Result<MeasureReport> {
    world.refuse_without_running_guests("measure")?;
    let hypervisor = &*world.hypervisor()?;
    refuse_elsewhere(hypervisor, &request.name)?;
    let row = find_alive(hypervisor, &request.name, "nothing can be measured in it")?;
    refuse_peer(hypervisor, request)?;
    let lock = lock(world)?;
    let directories = &request.directories[..];
    let guest = Inside::open(world, &request.name, directories, request.ssh.as_ref())?;
    let shown = idle_gpus(&guest, request)?;
    let (peer, peer_note) = peer(world, request)?.unzip();
    let useless = request.peer.as_ref().filter(|_| peer.is_none());
    let useless = useless.map(|name| format!("no program of this run needs guest `{name}`"));
    let Links { promise, nics, gpus: of_host } = links(world, hypervisor, &request.name);
    let NoGpus { note, fault, why: lack } = NoGpus::of(&shown, of_host);
    let gpus = shown.into_gpus();
    let is_without_gpus = gpus.is_empty() && lack.is_none();
    let mut runs = measured::read(world.state(), &row.uuid)?;
    runs.retain(|run| run.suite == Some(request.suite));
    let own = own_expected(world)?;
    let mut report = MeasureReport {
        domain: request.name.clone(),
        peer: request.peer.clone().filter(|_| peer.is_some()),
        suite: request.suite,
        shape: Shape::of(&gpus),
        lines: Vec::new(),
        faults: fault.into_iter().collect(),
        passed: Vec::new(),
        notes: note.into_iter().chain(peer_note.flatten()).chain(useless).collect(),
        not_measured: Vec::new(),
    };
    let own_gpus = Gpus::of(&gpus, nics);
    let judged = Judged(Basis { runs: &runs, own: &own, threshold: request.threshold });
    for tool in wanted(request) {
        if let Some(why) = lack.clone().filter(|_| tool.least_gpus() > 0) {
            report.not_measured.push(NotMeasured { tool, why });
            continue;
        }
        let done = if tool.is_pair() {
            let ends = (&guest, &own_gpus, peer.as_ref());
            let how = (tool, request.suite);
            let is_named = peer.is_some() || !request.only.is_empty();
            rdma::measure(world, ends, how, is_named, &mut report, &judged, progress)
        } else {
            let how = (tool, request, promise);
            measure_alone(&guest, how, &mut report, &judged, progress)
        };
        or_skipped(tool, done, &mut report);
        // The clocks come back up once nothing computes.
        if tool.least_gpus() > 0
            && let Ok(Shown::Gpus(now)) = guest.gpus()
        {
            report.notes.extend(throttled(&now));
        }
    }
    if is_without_gpus {
        report.not_measured.retain(|one| one.tool.least_gpus() == 0 || !request.only.is_empty());
    } else if !gpus.is_empty() {
        report_gpus(&guest, gpus, of_host, &mut report);
    }
    let mut said = BTreeSet::new();
    report.notes.retain(|note| said.insert(note.clone()));
    remember(world, &row.uuid, &mut report);
    drop(lock);
    explain(world, &mut report);
    Ok(report)
}

/// Takes the lock of measurements.
fn lock(world: &World) -> Result<HostLock> {
    measured::lock(world.state()).map_err(|error| match error {
        LockError::Held { .. } => {
            MeasureError::Running.hint("wait until it ends: two at a time slow each other down")
        }
        other => other.into(),
    })
}

/// Refuses guests of another machine.
fn refuse_elsewhere(hypervisor: &dyn Hypervisor, name: &str) -> Result<()> {
    let Machine::Elsewhere { host } = hypervisor.machine() else { return Ok(()) };
    let message = format!(
        "domain `{name}` runs on machine `{host}`, whose topology gives the expected values"
    );
    let command = format!("measure {}", word(name));
    let hint = format!("`{}`", command_there(&host, &command));
    Err(classed(Class::OtherMachine, message, hint))
}

/// Adds the values to the history of the guest.
fn remember(world: &World, uuid: &str, report: &mut MeasureReport) {
    if report.lines.is_empty() {
        return;
    }
    let readings = report.lines.iter().map(|line| line.reading.clone()).collect();
    let (suite, shape) = (Some(report.suite), report.shape.clone());
    let run = Run { at_s: now_s(), suite, shape, readings };
    if let Some(why) = run.too_large() {
        report.notes.push(format!("this run is not remembered: {why}"));
    } else if let Err(error) = measured::add(world.state(), uuid, run) {
        world.warning(&format!("this run is not remembered: {error}"));
    }
}

/// Enters the guest on the other side; the note says why its GPUs are not known.
fn peer<'a>(
    world: &'a World,
    request: &'a MeasureRequest,
) -> Result<Option<(Peer<'a>, Option<String>)>> {
    let needs = wanted(request).any(Tool::is_pair);
    let Some(name) = request.peer.as_ref().filter(|_| needs) else { return Ok(None) };
    // An address that the caller names is that of the measured guest.
    let ssh = request.ssh.as_ref().map(|ssh| SshWanted { address: None, ..ssh.clone() });
    let inside = Inside::open(world, name, &request.directories, ssh.as_ref())?;
    let shown = idle_gpus(&inside, request)?;
    let links = links(world, &*world.hypervisor()?, name);
    let NoGpus { note, .. } = NoGpus::of(&shown, links.gpus);
    let gpus = shown.into_gpus();
    let note =
        note.or_else(|| missing(&gpus, links.gpus)).map(|note| format!("guest `{name}`: {note}"));
    Ok(Some((Peer { inside, gpus: Gpus::of(&gpus, links.nics) }, note)))
}

impl Gpus {
    /// The GPUs that a guest's driver shows, with the links of its NICs.
    fn of(gpus: &[GpuState], nics: NicLinks) -> Gpus {
        Gpus { at: gpus.iter().map(|gpu| gpu.at).collect(), nics }
    }
}

/// Refuses a guest on the other side that is the same one, or does not run.
fn refuse_peer(hypervisor: &dyn Hypervisor, request: &MeasureRequest) -> Result<()> {
    let Some(peer) = &request.peer else { return Ok(()) };
    if *peer == request.name {
        let message = format!("`{peer}` cannot be its own peer");
        return Err(usage(message, "without --peer, its own NICs are measured in pairs"));
    }
    find_alive(hypervisor, peer, "nothing can be measured with it").map(drop)
}

/// The GPUs of a guest; refused if one is in use.
fn idle_gpus(guest: &Inside<'_>, request: &MeasureRequest) -> Result<Shown> {
    let shown = guest.gpus()?;
    if let Shown::Gpus(gpus) = &shown
        && let Some((gpu, why)) = busy(gpus).filter(|_| !request.force)
    {
        let name = guest.name.to_owned();
        let hint = "end what uses it, or measure all the same with --force";
        return Err(MeasureError::Busy { name, gpu, why }.hint(hint));
    }
    Ok(shown)
}

/// Returns the earlier values of a guest, by GPUs and by quantity.
pub fn usual(world: &World, name: &str) -> Result<Vec<Usual>> {
    let hypervisor = world.hypervisor()?;
    let row = find(&*hypervisor, name)?;
    let runs = measured::read(world.state(), &row.uuid)?;
    let mut all: Vec<Usual> = Vec::new();
    let mut values: Vec<Vec<f64>> = Vec::new();
    let mut places = BTreeMap::new();
    for run in &runs {
        let Shape { model, gpus, driver } = &run.shape;
        for reading in &run.readings {
            let of_run = (run.suite, model, gpus, driver);
            let key = (of_run, reading.what, reading.device.as_deref());
            let at = *places.entry(key).or_insert_with(|| {
                let (shape, reading) = (run.shape.clone(), reading.clone());
                let (unit, range) = (reading.what.unit(), [reading.value; 2]);
                let suite = run.suite;
                all.push(Usual { suite, shape, reading, unit, range, runs: 0, last_s: 0 });
                values.push(Vec::new());
                all.len() - 1
            });
            values[at].push(reading.value);
            let one = &mut all[at];
            one.range = [one.range[0].min(reading.value), one.range[1].max(reading.value)];
            (one.runs, one.last_s) = (one.runs + 1, run.at_s);
        }
    }
    for (one, values) in all.iter_mut().zip(&values) {
        one.reading.value = median(values).unwrap_or(one.reading.value);
    }
    Ok(all)
}

/// The programs of a request, in a fixed order.
fn wanted(request: &MeasureRequest) -> impl Iterator<Item = Tool> + '_ {
    Tool::iter().filter(|tool| request.only.is_empty() || request.only.contains(tool))
}

/// A GPU that is in use, and why it counts as such.
fn busy(gpus: &[GpuState]) -> Option<(usize, String)> {
    gpus.iter().enumerate().find_map(|(at, gpu)| match gpu.processes {
        0 if gpu.busy_percent <= BUSY_PERCENT => None,
        0 => Some((at, format!("{} % of its time", gpu.busy_percent))),
        1 => Some((at, "1 process computes on it".to_owned())),
        many => Some((at, format!("{many} processes compute on it"))),
    })
}

/// Reports the state of GPUs after the runs. `before`: the state at their begin, `of_host`: how
/// many the host gives the guest.
fn report_gpus(
    guest: &Inside<'_>,
    before: Vec<GpuState>,
    of_host: usize,
    report: &mut MeasureReport,
) {
    // One that the driver has lost meanwhile is missing, too.
    let number = of_host.max(before.len());
    let (after, note) = match guest.gpus() {
        Ok(Shown::Gpus(after)) => (after, None),
        // It answered before.
        Ok(Shown::None(why) | Shown::Unknown(why)) => {
            report.faults.push(Faulty { code: "gpu-fault", tool: None, message: why });
            (before, None)
        }
        Ok(Shown::NoProgram) => (before, Some("nvidia-smi was removed during the runs".into())),
        Err(error) => (before, Some(one_line(&error.whole()))),
    };
    report.notes.extend(note);
    report.notes.extend(throttled(&after));
    report.faults.extend(faulty(&after, number));
}

/// The faults of cards that their driver reports. `of_host`: how many the guest has.
fn faulty(gpus: &[GpuState], of_host: usize) -> Vec<Faulty> {
    let fault = |code, message| Faulty { code, tool: None, message };
    let each = gpus.iter().enumerate().flat_map(|(at, gpu)| {
        let all = gpu.faults.iter().map(move |fault| format!("GPU {at}: {fault}"));
        all.map(|message| fault("gpu-fault", message))
    });
    let missing = missing(gpus, of_host).map(|message| fault("gpu-missing", message));
    each.chain(missing).collect()
}

/// How many GPUs of a guest its driver does not show, in words; `None` if it shows all.
fn missing(gpus: &[GpuState], of_host: usize) -> Option<String> {
    let has = gpus.len();
    let all = count(of_host, "GPU");
    (has < of_host).then(|| format!("NVIDIA's driver in the guest shows {has} of its {all}"))
}

impl Shown {
    fn into_gpus(self) -> Vec<GpuState> {
        match self {
            Shown::Gpus(gpus) => gpus,
            Shown::None(_) | Shown::Unknown(_) | Shown::NoProgram => Vec::new(),
        }
    }
}

/// What a report says where a guest shows no GPU.
#[derive(Default)]
struct NoGpus {
    note: Option<String>,
    /// That the driver shows none of the GPUs that the host gives the guest.
    fault: Option<Faulty>,
    /// Why programs that need GPUs do not run; `None` for a guest that has none by its host either.
    why: Option<String>,
}

impl NoGpus {
    /// `of_host`: how many GPUs the host gives the guest.
    fn of(shown: &Shown, of_host: usize) -> NoGpus {
        let unknown = |note: String, why: &str| {
            let why = format!("the guest's GPUs are not known: {why}");
            NoGpus { note: Some(note), fault: None, why: Some(why) }
        };
        match shown {
            Shown::Gpus(gpus) if !gpus.is_empty() => NoGpus::default(),
            Shown::Gpus(_) | Shown::None(_) if of_host > 0 => {
                let message = missing(&[], of_host).unwrap_or_default();
                let why = Some(message.clone());
                let fault = Some(Faulty { code: "gpu-missing", tool: None, message });
                NoGpus { note: None, fault, why }
            }
            Shown::None(words) => {
                let why = "NVIDIA's driver in the guest shows no GPU".to_owned();
                NoGpus { note: Some(words.clone()), fault: None, why: Some(why) }
            }
            Shown::Unknown(why) => unknown(why.clone(), why),
            Shown::NoProgram if of_host > 0 => {
                let (its, are) = (count(of_host, "GPU"), if of_host == 1 { "is" } else { "are" });
                let note = format!("the guest has no nvidia-smi, so its {its} {are} not known");
                unknown(note, "it has no nvidia-smi")
            }
            Shown::Gpus(_) | Shown::NoProgram => NoGpus::default(),
        }
    }
}

/// Reports a program that measured nothing, or not all: the values of others are kept where the
/// guest cannot be asked any more.
fn or_skipped(tool: Tool, done: Result<()>, report: &mut MeasureReport) {
    if let Err(error) = done {
        report.not_measured.push(NotMeasured { tool, why: one_line(&error.whole()) });
    }
}

fn throttled(gpus: &[GpuState]) -> Vec<String> {
    let throttled = gpus.iter().enumerate().filter(|(_, gpu)| !gpu.throttled.is_empty());
    let text = |(at, gpu): (usize, &GpuState)| {
        format!("the clocks of GPU {at} are lowered by {}", gpu.throttled.join(" and "))
    };
    throttled.map(text).collect()
}

/// The links that the host gives a guest.
#[derive(Default)]
pub(crate) struct Links {
    pub(crate) promise: Promise,
    nics: NicLinks,
    /// How many of NVIDIA's GPUs it has; 0 if the host cannot be read.
    gpus: usize,
}

/// Returns the links of the guest's GPUs and NICs. Nothing is promised where the host cannot be
/// read.
pub(crate) fn links(world: &World, hypervisor: &dyn Hypervisor, name: &str) -> Links {
    let find = || -> Result<Links> {
        let topology: Topology = world.topology()?;
        let live = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
        Ok(links_of(&live, &topology))
    };
    find().unwrap_or_default()
}

/// The links of a running guest on its host.
fn links_of(live: &DomainXml, topology: &Topology) -> Links {
    let claims = Claims::read(live);
    let passed: BTreeSet<_> = claims.passed.iter().map(|one| one.bdf.value).collect();
    let gpus: Vec<Bdf> =
        topology.gpus().map(|gpu| gpu.bdf).filter(|bdf| passed.contains(bdf)).collect();
    let paths: Option<Vec<f64>> = gpus.iter().map(|&gpu| rate(topology, gpu)).collect();
    let links = |a, b| match topology.proximity(a, b) {
        Proximity::NvLink(links) => links,
        _ => 0,
    };
    let pairs = gpus.iter().enumerate();
    let pairs = pairs.flat_map(|(at, &a)| gpus[at + 1..].iter().map(move |&b| (a, b)));
    let nvlinks = pairs.map(|(a, b)| links(a, b)).min().unwrap_or(0);
    let promise = Promise {
        path_gb_s: paths.and_then(|paths| paths.into_iter().reduce(f64::min)),
        nvlinks,
        ..Promise::default()
    };
    let is_nvidia = |bdf: &&Bdf| {
        let device = topology.device(**bdf);
        device.is_some_and(|it| it.kind() == DeviceKind::Gpu && it.vendor == VENDOR_NVIDIA)
    };
    let number = passed.iter().filter(is_nvidia).count();
    Links { promise, nics: nic_links(live, topology), gpus: number }
}

/// The links of a running guest's NICs. A function whose address in the guest is not known is left
/// out.
fn nic_links(live: &DomainXml, topology: &Topology) -> NicLinks {
    let all = bus::addresses(live);
    let of = |wanted: DeviceKind| {
        let is_kind = move |host: Bdf| topology.device(host).is_some_and(|d| d.kind() == wanted);
        all.iter().copied().filter(move |(host, _)| is_kind(*host))
    };
    let mut found = NicLinks::default();
    for (nic, nic_at) in of(DeviceKind::Nic) {
        found.nics.insert(nic_at, rate(topology, nic));
        for (gpu, gpu_at) in of(DeviceKind::Gpu) {
            found.pairs.insert((nic_at, gpu_at), nic_gpu(topology, nic, gpu));
        }
    }
    found
}

/// The relation of a NIC to a GPU of one running guest.
fn nic_gpu(topology: &Topology, nic: Bdf, gpu: Bdf) -> NicGpu {
    let steps = topology.meeting(nic, gpu).map(|meeting| meeting.steps());
    // The memory of a coherent GPU is reached by another link than its PCIe one.
    let is_coherent =
        topology.device(gpu).is_some_and(|gpu| topology.coherent_model(gpu).is_some());
    let transfer = |op| {
        // Without a switch in common they meet at the root complex.
        let route = topology.route_of(nic, gpu, op, Moment::Running);
        let way = route.map_or(Way::Root, |route| route.way);
        let gb_s = match steps {
            None if is_coherent => rate(topology, nic),
            _ => rate_between(topology, nic, gpu, way),
        };
        NicTransfer { way, gb_s }
    };
    NicGpu { steps, write: transfer(Op::Write), read: transfer(Op::Read) }
}

/// Adds the findings that can explain slow values.
fn explain(world: &World, report: &mut MeasureReport) {
    let slow: Vec<What> = report.slow();
    if slow.is_empty() {
        return;
    }
    // Each with whether it is about the guest on the other side.
    let mut found: Vec<(bool, Candidate)> = Vec::new();
    let of_peer = report.peer.clone().filter(|_| slow.iter().any(|what| what.tool().is_pair()));
    let names = std::iter::once(report.domain.clone()).chain(of_peer).collect();
    let wanted = Verify { names, agent_wait: Duration::from_secs(3), sample: SAMPLE };
    match verify(world, &wanted) {
        Ok(compared) => {
            for one in compared.all {
                let is_peer = one.domain != report.domain;
                found.extend(one.findings.into_iter().map(|finding| {
                    let of =
                        if is_peer { format!("guest `{}`: ", one.domain) } else { String::new() };
                    let (rule, message) = (finding.rule.into(), of + &finding.says.message);
                    (is_peer, Candidate { rule, message, hint: finding.hint })
                }));
            }
        }
        Err(error) => report.notes.push(not_asked("verify", &error)),
    }
    match diagnose(world, None, None) {
        Ok(diagnosed) => found.extend(diagnosed.findings.into_iter().map(|one| {
            let (rule, message) = (one.rule.into(), one.says.message);
            (false, Candidate { rule, message, hint: one.hint })
        })),
        Err(error) => report.notes.push(not_asked("host doctor", &error)),
    }
    for line in report.lines.iter_mut().filter(|line| !line.verdict.is_good()) {
        line.candidates = fitting(&found, line.reading.what);
    }
}

/// The findings that can explain a bad value, the most likely cause first. Those of the guest on the
/// other side, which come with `true`, explain RDMA alone.
fn fitting(found: &[(bool, Candidate)], what: What) -> Vec<Candidate> {
    let is_pair = what.tool().is_pair();
    let rules = candidates(what);
    let fits = rules.iter().flat_map(|rule| {
        found.iter().filter(move |(is_peer, one)| one.rule == *rule && (is_pair || !is_peer))
    });
    fits.map(|(_, one)| one.clone()).collect()
}

fn not_asked(verb: &str, error: &Error) -> String {
    format!("`{verb}` gives no causes: {}", error.whole())
}

/// Reads the speeds that the admin of this host expects.
pub(crate) fn own_expected(world: &World) -> Result<Vec<OwnExpected>> {
    let Some(root) = world.root()? else { return Ok(Vec::new()) };
    Ok(expected(&root)?)
}

/// How values are judged.
struct Judged<'a>(Basis<'a>);

impl Judged<'_> {
    /// Adds the values of a program, with verdicts.
    fn add(&self, tool: Tool, taken: Taken, promise: Promise, report: &mut MeasureReport) {
        report.faults.extend(taken.faults);
        report.passed.extend(taken.passed);
        report.notes.extend(taken.warnings.iter().map(|warning| format!("{tool}: {warning}")));
        let skipped = taken.skipped.into_iter().map(|why| NotMeasured { tool, why });
        report.not_measured.extend(skipped);
        for reading in taken.readings {
            let of = (&report.shape, promise);
            let line: Line = judge(tool, reading, of, self.0);
            report.lines.push(line);
        }
    }
}

/// Runs a measuring program that needs no other one, and judges its values.
fn measure_alone(
    guest: &Inside<'_>,
    (tool, request, promise): (Tool, &MeasureRequest, Promise),
    report: &mut MeasureReport,
    judged: &Judged<'_>,
    progress: &dyn Fn(&str),
) -> Result<()> {
    let gpus = report.shape.gpus;
    let mut skip = |why: String| report.not_measured.push(NotMeasured { tool, why });
    if gpus < tool.least_gpus() {
        let need = if tool.least_gpus() == 1 { "a GPU" } else { "2 GPUs" };
        skip(format!("it needs {need} with NVIDIA's driver; the guest has {gpus}"));
        return Ok(());
    }
    let Some(program) = guest.find(|directories| tool.paths(directories))? else {
        skip("the guest does not have it".to_owned());
        return Ok(());
    };
    let made = format!("/var/tmp/gpuvm-measure-{}", random_uuid()?);
    let file = request.file.clone().map_or_else(|| FioFile::Own(made.clone()), FioFile::Existing);
    let (cells, numactl) = if tool == Tool::Stream { guest.cells()? } else { (Vec::new(), None) };
    let until = Instant::now() + MOST_RUNS;
    for call in tool.calls(request.suite, &Parts { gpus, file, cells, numactl }) {
        if Instant::now() >= until {
            let why = format!("its runs took longer than {} s", MOST_RUNS.as_secs());
            report.not_measured.push(NotMeasured { tool, why });
            break;
        }
        progress(&format!("{tool}: up to {} s", call.limit_s));
        // What binds the program comes first.
        let command = [&call.before[..], std::slice::from_ref(&program), &call.words[..]].concat();
        let ended = match guest.run(&command[0], &command[1..], call.limit_s) {
            Ok(ended) => ended,
            Err(error) => {
                report.not_measured.push(NotMeasured { tool, why: error.whole() });
                continue;
            }
        };
        if tool == Tool::Fio && ended.status != 0 && request.file.is_none() {
            // It removes its file only if it ends well.
            let _ = guest.run("/bin/rm", &["-f".to_owned(), made.clone()], SHORT_S);
        }
        if tool == Tool::AllReducePerf {
            let log = NcclLog::read(&String::from_utf8_lossy(&ended.stdout));
            report.notes.extend(log.notes(&report.shape));
        }
        match taken(&call, &ended) {
            Ok(found) => judged.add(tool, found, promise, report),
            Err(why) => {
                let of = call.device.map(|device| format!("{device}: ")).unwrap_or_default();
                report.not_measured.push(NotMeasured { tool, why: format!("{of}{why}") });
            }
        }
    }
    Ok(())
}

/// The values of a program, or why it has none. DCGM ends with an error if a test fails, and says
/// which.
pub(crate) fn taken(call: &Call, ended: &Ended) -> std::result::Result<Taken, String> {
    if ended.is_timeout {
        return Err(format!("it took longer than {} s and was ended", call.limit_s));
    }
    if ended.cut_off {
        return Err("its output has more than 1 MiB".to_owned());
    }
    let output = String::from_utf8_lossy(&ended.stdout);
    match read(call, &output) {
        Ok(taken) if ended.status == 0 || !taken.faults.is_empty() => Ok(taken),
        Ok(taken) if !taken.warnings.is_empty() => Ok(taken),
        Ok(_) => Err(why(ended)),
        Err(error) if ended.status == 0 => Err(error.to_string()),
        Err(error) if error.is_reason() => Err(format!("{}: {error}", status(ended))),
        Err(_) => Err(why(ended)),
    }
}

/// How a program of a guest ended.
pub(crate) struct Ended {
    how: Executed,
    /// Whether it was ended at its limit.
    pub(crate) is_timeout: bool,
}

impl Ended {
    /// Judges the end of a program after this time: it may have the statuses of timeout(1) for
    /// other reasons, such as the guest's lack of memory.
    pub(crate) fn of(how: Executed, took: Duration, limit_s: u64) -> Ended {
        let is_late = took + CLOCKS >= Duration::from_secs(limit_s);
        let is_timeout = is_late && TIMED_OUT.contains(&how.status);
        Ended { how, is_timeout }
    }
}

impl std::ops::Deref for Ended {
    type Target = Executed;

    fn deref(&self) -> &Executed {
        &self.how
    }
}

/// The status of a program that failed, in words.
fn status(ended: &Executed) -> String {
    match ended.status {
        KILLED => format!("it was killed (status {KILLED}), such as for lack of memory"),
        status => format!("it ended with status {status}"),
    }
}

/// Why a program failed: its status, and its last line that says something. Ends of JSON do not,
/// nor do the lines with which nccl-tests repeats a failure at each level (` .. PID: Test failure`)
/// and perftest one of the connection.
pub(crate) fn why(ended: &Executed) -> String {
    let last = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let says = |line: &&str| line.contains(char::is_alphanumeric);
        let repeated = [": Test failure ", "Unable to open file descriptor for socket connection"];
        let is_repeated = |line: &str| repeated.iter().any(|part| line.contains(part));
        let lines = || text.lines().rev().map(str::trim).filter(says);
        lines().find(|line| !is_repeated(line)).or_else(|| lines().next()).map(str::to_owned)
    };
    let status = status(ended);
    match last(&ended.stderr).or_else(|| last(&ended.stdout)) {
        Some(line) => format!("{status}: {}", one_line(&line)),
        None => status,
    }
}

#[cfg(test)]
mod tests;
