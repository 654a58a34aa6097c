//! `verify`: whether guests are what they should be, once or again and again. The comparison is [`crate::verify`]'s.

pub mod agent;
mod metrics;
pub(super) mod watch;

use super::args::VerifyArgs;
use super::change::name_unfinished;
use super::context::Context;
use super::error::{EXIT_DONE, EXIT_FAILED, EXIT_FOUND, coded, usage};
use crate::discover::{files, process, tuning};
use crate::domain::DomainXml;
use crate::domain::claims::Claims;
use crate::domain::setting::AGENT;
use crate::fsroot::FsRoot;
use crate::hypervisor::{
    DomainState, DomainSummary, Hypervisor, HypervisorError, HypervisorErrorKind, XmlOf,
};
use crate::placement::Occupancy;
use crate::topology::Topology;
use crate::verify::{self, Differs, Finding, Subject};
use crate::versions::Versions;
use anyhow::Context as _;
use gpuvm_ops::files::FileError;
use gpuvm_ops::gone;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Is the answer for one domain, as JSON shows it.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Answer {
    /// Name of the domain.
    pub domain: String,
    /// Whether it runs.
    pub running: bool,
    /// What differs: errors first.
    pub findings: Vec<Finding>,
    /// How many rules were applied.
    pub rules: usize,
    /// What was not compared, and why.
    pub not_checked: Vec<String>,
}

impl Answer {
    /// The answer for a domain that could not be compared.
    fn not_compared(summary: &DomainSummary, error: &anyhow::Error) -> Answer {
        Answer {
            domain: summary.name.clone(),
            running: is_running(summary),
            findings: vec![verify::not_compared(&summary.name, super::error::whole(error))],
            rules: 0,
            not_checked: Vec::new(),
        }
    }

    /// Whether the domain could be compared.
    pub fn is_compared(&self) -> bool {
        !self.findings.iter().any(Finding::is_not_compared)
    }
}

/// Runs the verb.
pub fn run(args: &VerifyArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if cx.global.host.is_some() {
        return Err(usage(
            "`verify` compares with what runs, so it does not take --host",
            "`gpuvm check FILE --host HOST` judges a domain on a recorded host",
        ));
    }
    if let Some(path) = &args.metrics
        && path.extension().is_none_or(|end| end != "prom")
    {
        cx.output.warning(&format!("the node exporter reads no {}: no .prom", path.display()));
    }
    if let Some(seconds) = args.watch {
        return watch::run(args, cx, Duration::from_secs(seconds));
    }
    let answers = round(args, cx)?;
    if args.all {
        name_unfinished(cx.output);
        for left in gone::left_or_warn(cx) {
            cx.output.warning(&format!("{}; `gpuvm recover --gone` gives it back", left.text()));
        }
    }
    match (cx.output.json, answers.as_slice()) {
        (true, [answer]) if !args.all => cx.output.json("gpuvm-verify", answer)?,
        (true, answers) => cx.output.json_rows("gpuvm-verify-all", &answers)?,
        (false, []) => cx.output.progress("no domain is defined"),
        (false, answers) => cx.output.text(&answers.iter().map(text).collect::<String>())?,
    }
    if !answers.iter().all(Answer::is_compared) {
        return Ok(EXIT_FAILED);
    }
    let clean = answers.iter().all(|answer| answer.findings.is_empty());
    Ok(if clean { EXIT_DONE } else { EXIT_FOUND })
}

/// Compares every domain that is asked for, once, and writes the numbers.
fn round(args: &VerifyArgs, cx: &Context<'_>) -> anyhow::Result<Vec<Answer>> {
    let begun = Instant::now();
    let hypervisor = cx.hypervisor()?;
    let host = Machine::read(cx, &*hypervisor)?;
    let mut answers = Vec::new();
    for summary in hypervisor.domains()? {
        if args.name.as_ref().is_some_and(|name| *name != summary.name) {
            continue;
        }
        let wait = Duration::from_secs(args.agent_wait);
        let answer = host.compare(&*hypervisor, &summary, wait);
        answers.extend(if args.all { of_many(&summary, answer)? } else { Some(answer?) });
    }
    if let Some(name) = args.name.as_ref().filter(|_| answers.is_empty()) {
        let hint = "`gpuvm list` shows the domains that are there";
        return Err(coded(
            HypervisorErrorKind::NoDomain.into(),
            format!("there is no domain `{name}`"),
            hint,
        ));
    }
    if let Some(path) = &args.metrics {
        metrics::write(path, &answers, begun.elapsed()).map_err(FileError::of(path))?;
    }
    Ok(answers)
}

/// The answer for one of many domains: one that cannot be read does not keep the others from being compared, and one that
/// was deleted since it was listed has none.
fn of_many(
    summary: &DomainSummary,
    answer: anyhow::Result<Answer>,
) -> anyhow::Result<Option<Answer>> {
    let kind = |error: &anyhow::Error| {
        let mut causes = error.chain();
        causes.find_map(|cause| cause.downcast_ref::<HypervisorError>().map(|error| error.kind))
    };
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) => match kind(&error) {
            Some(HypervisorErrorKind::NoDomain) => Ok(None),
            // Nor could any other domain be read.
            Some(HypervisorErrorKind::NoConnection) => Err(error),
            _ => Ok(Some(Answer::not_compared(summary, &error))),
        },
    }
}

/// Whether a domain runs.
fn is_running(summary: &DomainSummary) -> bool {
    !matches!(summary.state, DomainState::ShutOff | DomainState::Crashed)
}

/// Is the machine that domains run on, where that is this one.
struct Here {
    /// Its files.
    root: FsRoot,
    /// What it has.
    topology: Topology,
    /// How its kernel is set.
    tuning: verify::tuning::Tuning,
    /// The processes of domains, by UUID.
    processes: BTreeMap<String, u32>,
}

/// Is the machine that domains run on.
struct Machine {
    /// Its files; none where it is another one.
    here: Option<Here>,
    /// What all domains hold.
    all: Occupancy,
    /// What it runs.
    versions: Versions,
    /// What cannot be compared on it.
    untold: Vec<String>,
}

impl Machine {
    /// Reads it.
    fn read(cx: &Context<'_>, hypervisor: &dyn Hypervisor) -> anyhow::Result<Machine> {
        // What the test driver has is nowhere.
        let is_here = hypervisor.has_guests_here();
        let mut machine = Machine {
            here: None,
            all: Occupancy::default(),
            versions: hypervisor.versions(),
            untold: Vec::new(),
        };
        if is_here {
            let root = FsRoot::live()?;
            let (mut tuning, processes) = (tuning::read(&root)?, process::all(&root)?);
            match files::read(&root) {
                Ok(files) => tuning.file_limit = files.of_next_guest(machine.versions.qemu),
                Err(error) => machine.untold.push(format!("the limit of open files ({error})")),
            }
            machine.here = Some(Here { topology: cx.topology()?, root, tuning, processes });
            match cx.occupancy(false) {
                Ok(all) => machine.all = all,
                Err(error) => machine.untold.push(format!("other domains ({})", error.whole())),
            }
        }
        Ok(machine)
    }

    /// Compares one domain.
    fn compare(
        &self,
        hypervisor: &dyn Hypervisor,
        summary: &DomainSummary,
        wait: Duration,
    ) -> anyhow::Result<Answer> {
        let name = &summary.name;
        let failed = || format!("cannot read `{name}`");
        let parse = |which| -> anyhow::Result<DomainXml> {
            DomainXml::parse(&hypervisor.xml(name, which)?).with_context(failed)
        };
        let running = is_running(summary);
        let definition = parse(XmlOf::Public)?;
        let live = if running { Some(parse(XmlOf::Live)?) } else { None };
        let here = self.here.as_ref();
        let pid = here.filter(|_| running).and_then(|here| {
            here.processes.get(&summary.uuid.to_ascii_lowercase()).map(|&pid| (&here.root, pid))
        });
        let process = pid.map(|(root, pid)| process::read(root, pid)).transpose()?.flatten();
        let guest = live.as_ref().filter(|live| wait > Duration::ZERO && has_agent(live));
        let guest = guest.and_then(|live| agent::view(hypervisor, name, &Claims::read(live), wait));
        let mut others = self.all.clone();
        others.domains.retain(|held| held.domain != *name);
        let host = here.map(|here| verify::Host {
            topology: &here.topology,
            tuning: &here.tuning,
            others: &others,
            versions: &self.versions,
        });
        let subject = Subject {
            definition: &definition,
            live: live.as_ref(),
            process: process.as_ref(),
            guest: guest.as_ref(),
            host,
        };
        Ok(Answer {
            domain: name.clone(),
            running,
            findings: verify::verify(&subject),
            rules: verify::rules().count(),
            not_checked: [verify::unchecked(&subject), self.untold.clone()].concat(),
        })
    }
}

/// Whether a running guest's agent listens.
pub fn has_agent(live: &DomainXml) -> bool {
    let channels = live.root().child("devices").into_iter().flat_map(|d| d.children("channel"));
    let mut targets = channels.filter_map(|channel| channel.child("target"));
    targets.any(|target| {
        target.attr("name").as_deref() == Some(AGENT)
            && target.attr("state").as_deref() == Some("connected")
    })
}

/// One finding for people.
fn finding_text(finding: &Finding) -> String {
    let Finding { rule, severity, says, hint } = finding;
    let Differs { message, at, .. } = says;
    format!("{severity}: {message}\n  {at} ({rule})\n  hint: {hint}\n")
}

/// The answer for people.
fn text(answer: &Answer) -> String {
    let Answer { domain, running, findings, rules, not_checked } = answer;
    let mut text: String = findings.iter().map(finding_text).collect();
    let state = if *running { "running" } else { "off" };
    if !answer.is_compared() {
        return text + &format!("{domain} ({state}): not compared\n");
    }
    let found = match findings.len() {
        0 => "as it should be".to_owned(),
        1 => "1 difference".to_owned(),
        many => format!("{many} differences"),
    };
    write!(text, "{domain} ({state}): {found}, {rules} rules checked").expect("text");
    if !not_checked.is_empty() {
        write!(text, ", not checked: {}", not_checked.join(", ")).expect("text");
    }
    text + "\n"
}
