//! `measure`: runs the measuring programs that a guest has, by its agent, and judges their results
//! ([`gpuvm_core::measure`]). Nothing is installed; fio makes a file in the guest and removes it.

use crate::apply::now_s;
use crate::doctor::diagnose;
use crate::domain::DomainXml;
use crate::domain::claims::Claims;
use crate::error::{Class, Coded, Error, Result, classed};
use crate::exec::{ExecWanted, Executed, exec};
use crate::guest::find_alive;
use crate::history::measured;
use crate::hypervisor::machine::{Machine, command_there};
use crate::hypervisor::{Hypervisor, XmlOf};
use crate::identity::random_uuid;
use crate::lookup::find;
use crate::shell::word;
use crate::topology::{Proximity, Topology};
use crate::verify::{Verify, verify};
use crate::world::World;
use gpuvm_core::measure::{
    Call, Candidate, Faulty, GpuState, Line, MeasureReport, NotMeasured, Promise, Reading, Run,
    Shape, Suite, Tool, What, candidates, judge, median, read, read_gpus, smi_paths,
};
use gpuvm_core::topology::pairs::rate;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;
use strum::IntoEnumIterator as _;

/// How much longer than a program's own limit its end is waited for.
const GRACE: Duration = Duration::from_secs(10);
/// The most seconds of a short command in the guest.
const SHORT_S: u64 = 30;
/// Use of a GPU in percent from which it counts as busy.
const BUSY_PERCENT: u32 = 5;
/// The exit status of timeout(1) if it ended the program, and of one that it had to kill.
pub(crate) const TIMED_OUT: [u8; 2] = [124, 137];
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
    /// Whether GPUs that are in use are measured, too.
    pub force: bool,
    /// Scales expected values.
    pub threshold: f64,
}

/// The usual value of a quantity in a guest.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Usual {
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
    world.refuse_without_guests("measure")?;
    let hypervisor = &*world.hypervisor()?;
    if let Machine::Elsewhere { host } = hypervisor.machine() {
        let message = format!(
            "domain `{}` runs on machine `{host}`, whose topology gives the expected values",
            request.name
        );
        let command = format!("measure {}", word(&request.name));
        let hint = format!("`{}`", command_there(&host, &command));
        return Err(classed(Class::OtherMachine, message, hint));
    }
    let row = find_alive(hypervisor, &request.name, "nothing can be measured in it")?;
    let lock = measured::lock(world.state()).map_err(|error| -> Error {
        match error {
            crate::apply::LockError::Held { .. } => {
                MeasureError::Running.hint("wait until it ends: two at a time slow each other down")
            }
            other => other.into(),
        }
    })?;
    let guest = Guest { world, request };
    let (gpus, smi_note) = guest.gpus()?;
    if let Some((gpu, why)) = busy(&gpus).filter(|_| !request.force) {
        let name = request.name.clone();
        let hint = "end what uses it, or measure all the same with --force";
        return Err(MeasureError::Busy { name, gpu, why }.hint(hint));
    }
    let shape = Shape {
        model: gpus.first().map(|gpu| gpu.name.clone()).unwrap_or_default(),
        gpus: gpus.len(),
        driver: gpus.first().map(|gpu| gpu.driver.clone()).unwrap_or_default(),
    };
    let promise = promise(world, hypervisor, &request.name);
    let runs = measured::read(world.state(), &row.uuid)?;
    let mut report = MeasureReport {
        domain: request.name.clone(),
        suite: request.suite,
        shape,
        lines: Vec::new(),
        faults: Vec::new(),
        notes: smi_note.into_iter().collect(),
        not_measured: Vec::new(),
    };
    for tool in wanted(request) {
        guest.measure(tool, (promise, &runs), &mut report, progress)?;
    }
    if gpus.is_empty() {
        report.not_measured.retain(|one| one.tool.least_gpus() == 0 || !request.only.is_empty());
    } else if let Ok((after, _)) = guest.gpus() {
        report.notes.extend(throttled(&after));
    }
    if !report.lines.is_empty() {
        let readings = report.lines.iter().map(|line| line.reading.clone()).collect();
        let run = Run { at_s: now_s(), shape: report.shape.clone(), readings };
        if let Err(error) = measured::add(world.state(), &row.uuid, run) {
            world.warning(&format!("this run is not remembered: {error}"));
        }
    }
    drop(lock);
    explain(world, &mut report);
    Ok(report)
}

/// Returns the earlier values of a guest, by GPUs and by quantity.
pub fn usual(world: &World, name: &str) -> Result<Vec<Usual>> {
    let hypervisor = world.hypervisor()?;
    let row = find(&*hypervisor, name)?;
    let runs = measured::read(world.state(), &row.uuid)?;
    let mut all: Vec<Usual> = Vec::new();
    let mut values: Vec<Vec<f64>> = Vec::new();
    for run in &runs {
        for reading in &run.readings {
            let is_same = |one: &Usual| {
                let same = one.reading.what == reading.what && one.reading.device == reading.device;
                same && one.shape == run.shape
            };
            let at = all.iter().position(is_same).unwrap_or_else(|| {
                let (shape, reading) = (run.shape.clone(), reading.clone());
                let (unit, range) = (reading.what.unit(), [reading.value; 2]);
                all.push(Usual { shape, reading, unit, range, runs: 0, last_s: 0 });
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

fn throttled(gpus: &[GpuState]) -> Vec<String> {
    let throttled = gpus.iter().enumerate().filter(|(_, gpu)| !gpu.throttled.is_empty());
    let text = |(at, gpu): (usize, &GpuState)| {
        format!("the clocks of GPU {at} are lowered by {}", gpu.throttled.join(" and "))
    };
    throttled.map(text).collect()
}

/// Returns the links of the guest's GPUs. Nothing is promised where the host cannot be read.
pub(crate) fn promise(world: &World, hypervisor: &dyn Hypervisor, name: &str) -> Promise {
    let find = || -> Result<Promise> {
        let topology: Topology = world.topology()?;
        let live = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
        let claims = Claims::read(&live);
        let passed: BTreeSet<_> = claims.passed.iter().map(|one| one.bdf.value).collect();
        let gpus: Vec<_> =
            topology.gpus().map(|gpu| gpu.bdf).filter(|bdf| passed.contains(bdf)).collect();
        let paths: Option<Vec<u32>> = gpus.iter().map(|&gpu| rate(&topology, gpu)).collect();
        let linked = |a, b| matches!(topology.proximity(a, b), Proximity::NvLink(_));
        let nvlink = gpus.iter().skip(1).any(|&gpu| linked(gpus[0], gpu));
        Ok(Promise { path_gb_s: paths.and_then(|paths| paths.into_iter().min()), nvlink })
    };
    find().unwrap_or_default()
}

/// Adds the findings that can explain slow values.
fn explain(world: &World, report: &mut MeasureReport) {
    let slow: Vec<What> = report.slow();
    if slow.is_empty() {
        return;
    }
    let mut found: Vec<Candidate> = Vec::new();
    let names = vec![report.domain.clone()];
    let wanted = Verify { names, agent_wait: Duration::from_secs(3), sample: SAMPLE };
    match verify(world, &wanted) {
        Ok(compared) => {
            found.extend(compared.all.into_iter().flat_map(|one| one.findings).map(|one| {
                Candidate { rule: one.rule.into(), message: one.says.message, hint: one.hint }
            }))
        }
        Err(error) => report.notes.push(not_asked("verify", &error)),
    }
    match diagnose(world, None) {
        Ok(diagnosed) => found.extend(diagnosed.findings.into_iter().map(|one| Candidate {
            rule: one.rule.into(),
            message: one.says.message,
            hint: one.hint,
        })),
        Err(error) => report.notes.push(not_asked("host doctor", &error)),
    }
    for line in report.lines.iter_mut().filter(|line| !line.verdict.is_good()) {
        let rules = candidates(line.reading.what);
        let fits = rules.iter().flat_map(|rule| found.iter().filter(move |one| one.rule == *rule));
        line.candidates = fits.cloned().collect();
    }
}

fn not_asked(verb: &str, error: &Error) -> String {
    format!("`{verb}` gives no causes: {}", error.whole())
}

/// A guest in which programs are run.
struct Guest<'a> {
    world: &'a World,
    request: &'a MeasureRequest,
}

impl Guest<'_> {
    /// Runs a program of the guest; it is ended at its limit.
    fn run(&self, program: &str, words: &[String], limit_s: u64) -> Result<Executed> {
        let bounded = ["/usr/bin/timeout".to_owned(), "-k".to_owned(), "5".to_owned()];
        let command = bounded.into_iter().chain([limit_s.to_string(), program.to_owned()]);
        let wanted = ExecWanted {
            name: self.request.name.clone(),
            command: command.chain(words.iter().cloned()).collect(),
            input: None,
            limit: Some(Duration::from_secs(limit_s) + GRACE),
        };
        exec(self.world, &wanted)
    }

    /// The first of these paths at which the guest has a program.
    fn first(&self, paths: &[String]) -> Result<Option<String>> {
        let words: Vec<String> =
            ["-1d", "--"].map(str::to_owned).into_iter().chain(paths.iter().cloned()).collect();
        let listed = self.run("/bin/ls", &words, SHORT_S)?;
        let there = String::from_utf8_lossy(&listed.stdout).into_owned();
        let there: BTreeSet<&str> = there.lines().collect();
        Ok(paths.iter().find(|path| there.contains(path.as_str())).cloned())
    }

    /// The guest's GPUs by its driver, and why they are not known if it has none.
    fn gpus(&self) -> Result<(Vec<GpuState>, Option<String>)> {
        let Some(smi) = self.first(&smi_paths(&self.request.directories))? else {
            return Ok((Vec::new(), None));
        };
        let words = ["-q", "-x"].map(str::to_owned);
        let ended = self.run(&smi, &words, 60)?;
        if ended.status != 0 {
            return Ok((Vec::new(), Some(format!("nvidia-smi: {}", why(&ended)))));
        }
        match read_gpus(&String::from_utf8_lossy(&ended.stdout)) {
            Ok(gpus) => Ok((gpus, None)),
            Err(error) => Ok((Vec::new(), Some(format!("nvidia-smi: {error}")))),
        }
    }

    /// Runs a measuring program and judges its values.
    fn measure(
        &self,
        tool: Tool,
        (promise, runs): (Promise, &[Run]),
        report: &mut MeasureReport,
        progress: &dyn Fn(&str),
    ) -> Result<()> {
        let gpus = report.shape.gpus;
        let mut skip = |why: String| report.not_measured.push(NotMeasured { tool, why });
        if gpus < tool.least_gpus() {
            let need = if tool.least_gpus() == 1 { "a GPU" } else { "2 GPUs" };
            skip(format!("it needs {need} with NVIDIA's driver; the guest has {gpus}"));
            return Ok(());
        }
        let Some(program) = self.first(&tool.paths(&self.request.directories))? else {
            skip("the guest does not have it".to_owned());
            return Ok(());
        };
        let file = format!("/var/tmp/gpuvm-measure-{}", random_uuid()?);
        for call in tool.calls(self.request.suite, gpus, &file) {
            progress(&format!("{tool}: up to {} s", call.limit_s));
            let ended = match self.run(&program, &call.words, call.limit_s) {
                Ok(ended) => ended,
                Err(error) => {
                    report.not_measured.push(NotMeasured { tool, why: error.whole() });
                    continue;
                }
            };
            if tool == Tool::Fio && ended.status != 0 {
                // It removes its file only if it ends well.
                let _ = self.run("/bin/rm", &["-f".to_owned(), file.clone()], SHORT_S);
            }
            match taken(&call, &ended) {
                Ok((readings, faults)) => {
                    report.faults.extend(faults);
                    for reading in readings {
                        let threshold = self.request.threshold;
                        let of = (&report.shape, promise);
                        let line: Line = judge(tool, reading, of, (runs, threshold));
                        report.lines.push(line);
                    }
                }
                Err(why) => report.not_measured.push(NotMeasured { tool, why }),
            }
        }
        Ok(())
    }
}

/// The values of a program, or why it has none. DCGM ends with an error if a test fails, and says
/// which.
pub(crate) fn taken(
    call: &Call,
    ended: &Executed,
) -> std::result::Result<(Vec<Reading>, Vec<Faulty>), String> {
    if TIMED_OUT.contains(&ended.status) {
        return Err(format!("it took longer than {} s and was ended", call.limit_s));
    }
    if ended.cut_off {
        return Err("its output has more than 1 MiB".to_owned());
    }
    let output = String::from_utf8_lossy(&ended.stdout);
    match read(call, &output) {
        Ok(taken) if ended.status == 0 || !taken.faults.is_empty() => {
            Ok((taken.readings, taken.faults))
        }
        Ok(_) => Err(why(ended)),
        Err(_) if ended.status != 0 => Err(why(ended)),
        Err(error) => Err(error.to_string()),
    }
}

/// Why a program failed: its last line, and its status.
pub(crate) fn why(ended: &Executed) -> String {
    let last = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
    };
    let status = format!("it ended with status {}", ended.status);
    match last(&ended.stderr).or_else(|| last(&ended.stdout)) {
        Some(line) => format!("{status}: {}", line.chars().take(200).collect::<String>()),
        None => status,
    }
}

#[cfg(test)]
mod tests;
