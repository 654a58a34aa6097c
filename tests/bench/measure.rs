//! Time and peak memory of whole commands, measured by a child of our own for each, and medians of
//! rotations.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// One figure with its target.
pub struct Verdict {
    /// The measured quantity.
    pub what: String,
    /// The measured value.
    pub value: f64,
    /// The largest acceptable value.
    pub limit: f64,
    /// Unit, after the number.
    pub unit: &'static str,
    /// Whether a miss fails the run; otherwise it is a goal still to be reached.
    pub gate: bool,
}

impl Verdict {
    /// Whether the target is met.
    pub fn met(&self) -> bool {
        self.value <= self.limit
    }

    /// The value as text.
    pub fn measured(&self) -> String {
        format!("{:.3}{}", self.value, self.unit)
    }

    /// The target as text.
    pub fn target(&self) -> String {
        format!("<= {:.3}{}", self.limit, self.unit)
    }
}

/// A command with the measurements of its runs.
pub struct Subject {
    /// Name in the table.
    pub name: &'static str,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Wall time of each run, in ms.
    pub times_ms: Vec<f64>,
    /// Time on CPUs of each run, in ms: little affected by a busy machine.
    pub cpu_ms: Vec<f64>,
    /// Largest resident set seen, in MiB.
    pub peak_mib: f64,
}

impl Subject {
    /// A command that has not run.
    pub fn new(name: &'static str, command: &[&str]) -> Subject {
        let command = command.iter().map(ToString::to_string).collect();
        Subject { name, command, times_ms: Vec::new(), cpu_ms: Vec::new(), peak_mib: 0.0 }
    }

    /// Median time, in ms.
    pub fn median_ms(&self) -> f64 {
        median(&self.times_ms)
    }
}

/// The middle value; NaN without values.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The `q`-quantile of the values; NaN without values.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let at = ((sorted.len() as f64 - 1.0) * q).round().max(0.0) as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// Runs every subject once per round, in rotation; the first round warms caches and does not count.
pub fn rotate(subjects: &mut [Subject], rounds: usize) {
    for round in 0..=rounds {
        for subject in subjects.iter_mut() {
            let (ms, mib, cpu_ms) = once(&subject.command);
            if round > 0 {
                subject.times_ms.push(ms);
                subject.cpu_ms.push(cpu_ms);
                subject.peak_mib = subject.peak_mib.max(mib);
            }
        }
    }
}

/// Runs a command in a child of its own that measures it: time in ms, peak memory in MiB, time on
/// CPUs in ms.
fn once(command: &[String]) -> (f64, f64, f64) {
    let me = std::env::current_exe().expect("the benchmark knows its own path");
    let output = Command::new(me).arg("measure").args(command).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut fields = text.split_whitespace().map(str::parse::<f64>);
    match (fields.next(), fields.next(), fields.next()) {
        (Some(Ok(ms)), Some(Ok(mib)), Some(Ok(cpu))) if output.status.success() => (ms, mib, cpu),
        _ => panic!("{command:?} failed: {text}{}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// The measuring child: runs the command, prints time in ms, peak memory in MiB, CPU time in ms.
pub fn child(command: &[String]) -> ExitCode {
    let started = Instant::now();
    let output = Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output();
    let ms = started.elapsed().as_secs_f64() * 1000.0;
    match output {
        Ok(output) if output.status.success() && !output.stdout.is_empty() => {}
        Ok(output) => {
            eprintln!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
            return ExitCode::FAILURE;
        }
        Err(error) => {
            eprintln!("{}: {error}", command[0]);
            return ExitCode::FAILURE;
        }
    }
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("children were waited for");
    #[allow(clippy::cast_precision_loss)]
    let mib = usage.max_rss() as f64 / 1024.0;
    #[allow(clippy::cast_precision_loss)]
    let of = |time: TimeVal| time.num_microseconds() as f64 / 1e3;
    let cpu_ms = of(usage.user_time()) + of(usage.system_time());
    println!("{ms} {mib} {cpu_ms}");
    ExitCode::SUCCESS
}
