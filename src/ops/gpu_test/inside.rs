//! The programs of a test in its guest, and the faults that they report.

use super::Outcome;
use crate::apply::ApplyError;
use crate::error::{Error, Result};
use crate::exec::Inside;
use crate::hypervisor::DomainState;
use crate::measure::{Ended, links, own_expected, taken, why};
use crate::session::Running;
use crate::world::World;
use gpuvm_core::measure::{
    Basis, Call, GpuState, Parts, Shape, Suite, Taken, Tool, Verdict, diagnostics, judge, one_line,
    read_gpus, smi_paths,
};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The time between two looks at the guest.
const LOOK: Duration = Duration::from_millis(500);
/// The most seconds of a short command in the guest.
const SHORT_S: u64 = 60;
/// The level from which on speeds are measured, too.
pub(super) const SPEEDS: u8 = 2;

/// One test in its guest.
pub(super) struct Probe<'a> {
    pub(super) world: &'a World,
    /// The domain.
    pub(super) name: &'a str,
    /// Number of its GPUs.
    pub(super) gpus: usize,
    /// Level of DCGM's diagnostics.
    pub(super) level: u8,
    /// When it has to end.
    pub(super) until: Instant,
    /// The same in seconds from its begin.
    pub(super) limit_s: u64,
}

/// Why a test ends early.
enum Stop {
    /// This says nothing of the GPUs.
    Unknown(String),
    /// A signal, after which all is undone.
    Signal(ApplyError),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Unknown(error.whole())
    }
}

type Found<T> = std::result::Result<T, Stop>;

impl Probe<'_> {
    /// Runs the test. Errors: a signal has come, and everything is undone.
    pub(super) fn run(&self, running: &mut Running<'_, '_>) -> Result<Outcome> {
        match self.tested(running) {
            Ok(faults) => Ok(Outcome::of(faults)),
            Err(Stop::Unknown(why)) => Ok(Outcome::unknown(one_line(&why))),
            Err(Stop::Signal(error)) => Err(error.into()),
        }
    }

    fn tested(&self, running: &mut Running<'_, '_>) -> Found<Vec<String>> {
        self.wait_for_agent(running)?;
        let mut faults = Vec::new();
        let gpus = self.gpus(running)?;
        let number = gpus.len();
        faults.extend(gpus.iter().enumerate().flat_map(|(at, gpu)| {
            gpu.faults.iter().map(move |fault| match number {
                1 => fault.clone(),
                _ => format!("{fault} of GPU {at}"),
            })
        }));
        let dcgmi = self.need(running, "dcgmi", &Tool::Dcgmi.paths(&[]))?;
        let call = diagnostics(self.level);
        let ended = self.end_of(running, &dcgmi, &call.words, call.limit_s)?;
        let found = taken(&call, &ended).map_err(|why| self.stopped(Tool::Dcgmi, &why))?;
        self.report(Tool::Dcgmi, &found);
        if found.passed.is_empty() && found.faults.is_empty() {
            return Err(self.stopped(Tool::Dcgmi, "no test passed"));
        }
        faults.extend(found.faults.into_iter().map(|fault| fault.message));
        // A GPU that a test was skipped on has not passed it.
        if faults.is_empty() && !found.partly.is_empty() {
            let why = format!("it skipped {}, and others passed", found.partly.join(", "));
            return Err(self.stopped(Tool::Dcgmi, &why));
        }
        if self.level >= SPEEDS {
            let shape = Shape::of(&gpus);
            for tool in [Tool::Nvbandwidth, Tool::AllReducePerf] {
                if number >= tool.least_gpus() {
                    faults.extend(self.speeds(running, tool, &shape)?);
                }
            }
        }
        Ok(faults)
    }

    /// Reports parts of a program's test that neither passed nor failed.
    fn report(&self, tool: Tool, found: &Taken) {
        for text in found.warnings.iter().chain(&found.skipped) {
            self.world.note(&format!("{tool}: {text}"));
        }
    }

    /// A program that says nothing useful; past the limit that is the reason.
    fn stopped(&self, tool: impl std::fmt::Display, why: &str) -> Stop {
        match self.left_s() {
            Ok(_) => Stop::Unknown(format!("{tool}: {why}")),
            Err(over) => over,
        }
    }

    /// Seconds until the test has to end.
    fn left_s(&self) -> Found<u64> {
        let left_s = self.until.saturating_duration_since(Instant::now()).as_secs();
        let over = || Stop::Unknown(format!("the test did not end within {} s", self.limit_s));
        Some(left_s).filter(|left_s| *left_s > 0).ok_or_else(over)
    }

    /// Waits a moment, unless a signal has come or the time is over.
    fn pause(&self, running: &mut Running<'_, '_>) -> Found<()> {
        running.transaction.go_on().map_err(Stop::Signal)?;
        self.left_s()?;
        std::thread::sleep(LOOK);
        Ok(())
    }

    fn wait_for_agent(&self, running: &mut Running<'_, '_>) -> Found<()> {
        let left_s = self.left_s()?;
        self.world.progress(&format!("waiting up to {left_s} s for the agent of `{}`", self.name));
        loop {
            let row = running.hypervisor.domain(self.name).map_err(Error::from)?;
            match row.map(|row| row.state) {
                Some(DomainState::Running) => {}
                Some(DomainState::Crashed) => {
                    return Err(Stop::Unknown("the test guest has crashed".to_owned()));
                }
                Some(DomainState::ShutOff) | None => {
                    let why = "the test guest has ended before its agent was running";
                    return Err(Stop::Unknown(why.to_owned()));
                }
                Some(_) => {}
            }
            if Inside::of(running.hypervisor, self.name).is_ok() {
                return Ok(());
            }
            self.pause(running).map_err(|stop| match stop {
                Stop::Unknown(why) => {
                    Stop::Unknown(format!("{why}: the guest agent was not running"))
                }
                signal @ Stop::Signal(_) => signal,
            })?;
        }
    }

    /// Runs a program of the guest to its end; the guest ends it at its limit, or that of the test.
    fn end_of(
        &self,
        running: &mut Running<'_, '_>,
        program: &str,
        words: &[String],
        limit_s: u64,
    ) -> Found<Ended> {
        let limit_s = limit_s.min(self.left_s()?);
        let bounded = ["/usr/bin/timeout", "-k", "5"].map(str::to_owned).into_iter();
        let command = bounded.chain([limit_s.to_string(), program.to_owned()]);
        let command: Vec<String> = command.chain(words.iter().cloned()).collect();
        let begin = Instant::now();
        let pid = Inside::of(running.hypervisor, self.name)?.begin(&command, None)?;
        loop {
            let ended = Inside::of(running.hypervisor, self.name)?.ended(pid)?;
            if let Some(ended) = ended {
                return Ok(Ended::of(ended, begin.elapsed(), limit_s));
            }
            self.pause(running)?;
        }
    }

    /// The first of these paths at which the guest has a program.
    fn first(&self, running: &mut Running<'_, '_>, paths: &[String]) -> Found<Option<String>> {
        let words: Vec<String> =
            ["-1d", "--"].map(str::to_owned).into_iter().chain(paths.iter().cloned()).collect();
        let listed = self.end_of(running, "/bin/ls", &words, SHORT_S)?;
        // 2: some are missing. Any other status says nothing of the image.
        if listed.status > 2 {
            return Err(self.stopped("/bin/ls", &why(&listed)));
        }
        let there = String::from_utf8_lossy(&listed.stdout).into_owned();
        let there: BTreeSet<&str> = there.lines().collect();
        Ok(paths.iter().find(|path| there.contains(path.as_str())).cloned())
    }

    /// The same for a program that the test needs.
    fn need(&self, running: &mut Running<'_, '_>, name: &str, paths: &[String]) -> Found<String> {
        let found = self.first(running, paths)?;
        found.ok_or_else(|| Stop::Unknown(format!("the image has no {name}")))
    }

    /// The guest's GPUs by its driver, which has to have all of them.
    fn gpus(&self, running: &mut Running<'_, '_>) -> Found<Vec<GpuState>> {
        let smi = self.need(running, "nvidia-smi", &smi_paths(&[]))?;
        let words = ["-q", "-x"].map(str::to_owned);
        let ended = self.end_of(running, &smi, &words, SHORT_S)?;
        if ended.is_timeout {
            return Err(self.stopped("nvidia-smi", &format!("it took longer than {SHORT_S} s")));
        }
        if ended.status != 0 {
            return Err(Stop::Unknown(format!("nvidia-smi: {}", why(&ended))));
        }
        let gpus = read_gpus(&String::from_utf8_lossy(&ended.stdout));
        let gpus = gpus.map_err(|error| Stop::Unknown(format!("nvidia-smi: {error}")))?;
        if gpus.len() == self.gpus && !gpus.is_empty() {
            return Ok(gpus);
        }
        let (has, all) = (gpus.len(), self.gpus);
        Err(Stop::Unknown(format!("nvidia-smi lists {has} of the guest's {all} GPUs")))
    }

    /// The faults in measured speeds; none if the image does not have the program.
    fn speeds(
        &self,
        running: &mut Running<'_, '_>,
        tool: Tool,
        shape: &Shape,
    ) -> Found<Vec<String>> {
        let Some(program) = self.first(running, &tool.paths(&[]))? else {
            self.world.note(&format!("{tool} is not run: the image does not have it"));
            return Ok(Vec::new());
        };
        let promise = links(self.world, running.hypervisor, self.name).promise;
        let own = own_expected(self.world).map_err(|error| self.stopped(tool, &error.whole()))?;
        let calls: Vec<Call> = tool.calls(Suite::Quick, &Parts::of_gpus(shape.gpus));
        let mut faults = Vec::new();
        for call in calls {
            let ended = self.end_of(running, &program, &call.words, call.limit_s)?;
            let found = taken(&call, &ended).map_err(|why| self.stopped(tool, &why))?;
            self.report(tool, &found);
            faults.extend(found.faults.into_iter().map(|fault| fault.message));
            let lines = found.readings.into_iter();
            let lines =
                lines.map(|reading| judge(tool, reading, (shape, promise), Basis::of(&own)));
            for line in lines.filter(|line| line.verdict == Verdict::Low) {
                let device = line.reading.device.map(|device| format!(" of {device}"));
                faults.push(format!(
                    "{}{} is {:.1} {}, expected {:.1} ({})",
                    line.reading.what,
                    device.unwrap_or_default(),
                    line.reading.value,
                    line.unit,
                    line.expected.unwrap_or_default(),
                    line.source.unwrap_or_default()
                ));
            }
        }
        Ok(faults)
    }
}
