//! `verify`: whether guests are as they should be. [`gpuvm_core::verify`] makes the comparison;
//! this module collects the data: definitions and live XML, processes, the host's settings, and the
//! agents' reports on their guests.

pub mod metrics;
pub mod watch;

use crate::agent::{has_agent, view};
use crate::autostart::lacking;
use crate::discover::{files, process, tuning};
use crate::disks;
use crate::domain::DomainXml;
use crate::domain::claims::Claims;
use crate::error::{Coded as _, Doing as _, Error, Result};
use crate::fabric::compared;
use crate::formats;
use crate::fsroot::FsRoot;
use crate::history::{HistoryError, measured};
use crate::hypervisor::{DomainSummary, Hypervisor, HypervisorError, HypervisorErrorKind, XmlOf};
use crate::lookup::{LISTED, no_domain};
use crate::placement::Occupancy;
use crate::recognise::presences;
use crate::top::{Top, TopRequest};
use crate::topology::{FabricModel, Topology};
use crate::world::World;
use gpuvm_core::load::GuestLoad;
use gpuvm_core::measure::{Reading, Suite, newest};
use gpuvm_core::verify::boot::with_lacks;
use gpuvm_core::verify::identity::with_devices;
use gpuvm_core::verify::load::with_load;
use gpuvm_core::verify::partition::{self, Partitions};
use gpuvm_core::verify::tuning::Tuning;
use gpuvm_core::verify::{self, Finding, Subject, not_compared};
use gpuvm_core::versions::Versions;
use gpuvm_host::fabric::config::Config;
use gpuvm_host::fabric::program::versions;
use serde::Serialize;
use std::collections::BTreeMap;
use std::iter::successors;
use std::time::Duration;

/// A request to compare domains.
#[derive(Debug, Clone)]
pub struct Verify {
    /// The domains; none for all of them. Of several, one that cannot be read does not prevent the
    /// others.
    pub names: Vec<String>,
    /// How long to wait for each guest's agent; zero: not at all.
    pub agent_wait: Duration,
    /// How long to sample how guests run; zero: not at all.
    pub sample: Duration,
}

/// The findings about one domain.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verified {
    /// Name of the domain; empty: none, such as for an NVLink partition that is active for no
    /// guest.
    pub domain: String,
    /// Whether it runs.
    pub running: bool,
    /// Differences, errors first.
    pub findings: Vec<Finding>,
    /// Number of rules applied.
    pub rules: usize,
    /// Parts that were not compared, and why.
    pub not_checked: Vec<String>,
}

impl Verified {
    /// The answer for a domain that could not be compared.
    fn not_compared(summary: &DomainSummary, error: &Error) -> Verified {
        Verified {
            domain: summary.name.clone(),
            running: summary.state.is_active(),
            findings: vec![not_compared(&summary.name, error.whole())],
            rules: 0,
            not_checked: Vec::new(),
        }
    }

    /// The findings that belong to no domain.
    fn without_guest(findings: Vec<Finding>) -> Verified {
        let (domain, rules) = (String::new(), partition::RULES.len());
        Verified { domain, running: false, findings, rules, not_checked: Vec::new() }
    }

    /// Whether the domain could be compared.
    pub fn is_compared(&self) -> bool {
        !self.findings.iter().any(Finding::is_not_compared)
    }
}

/// A domain's name for messages; an empty one means no domain.
pub fn called(domain: &str) -> &str {
    if domain.is_empty() { "this host" } else { domain }
}

/// The results.
#[derive(Debug)]
pub struct Compared {
    /// The result of each domain.
    pub all: Vec<Verified>,
    /// The state of NVLink partitions; `None` if Fabric Manager manages none here.
    pub partitions: Option<Partitions>,
    /// The usage of running guests during the sample; empty without one.
    pub loads: Vec<GuestLoad>,
    /// The last measurements in guests.
    pub measured: Vec<LastMeasured>,
}

/// The last measurements in a guest.
#[derive(Debug)]
pub struct LastMeasured {
    /// The domain.
    pub domain: String,
    /// When the last run was, in seconds since 1970, UTC.
    pub at_s: u64,
    /// The last value of each quantity by suite; `None` if an older version did not record it.
    pub readings: Vec<(Option<Suite>, Reading)>,
}

/// Compares every requested domain once.
pub fn verify(world: &World, wanted: &Verify) -> Result<Compared> {
    let hypervisor = world.hypervisor()?;
    let host = Machine::read(world, &*hypervisor)?;
    let mut all = Vec::new();
    let summaries = hypervisor.domains()?;
    for summary in &summaries {
        if !wanted.names.is_empty() && !wanted.names.contains(&summary.name) {
            continue;
        }
        let found = host.compare(world, &*hypervisor, summary, wanted.agent_wait);
        all.extend(if wanted.names.len() == 1 { Some(found?) } else { of_many(summary, found)? });
    }
    let is_sampled = wanted.sample > Duration::ZERO && host.here.is_some();
    let loads = if is_sampled { sample(world, wanted.sample, &mut all) } else { Vec::new() };
    let is_there = |name: &str| summaries.iter().any(|summary| summary.name == name);
    if let Some(name) = wanted.names.iter().find(|name| !is_there(name)) {
        return Err(no_domain(name, &summaries).hint(LISTED));
    }
    if let Some(partitions) = host.partitions.as_ref().filter(|_| wanted.names.is_empty()) {
        let known: Vec<&str> = summaries.iter().map(|summary| summary.uuid.as_str()).collect();
        let stale = partition::without_guest(partitions, &known);
        all.extend((!stale.is_empty()).then(|| Verified::without_guest(stale)));
    }
    let is_wanted =
        |row: &&DomainSummary| wanted.names.is_empty() || wanted.names.contains(&row.name);
    let measured = summaries.iter().filter(is_wanted).filter_map(|row| last_measured(world, row));
    let measured = measured.collect();
    Ok(Compared { all, partitions: host.partitions, loads, measured })
}

/// The last measurements in a guest; none if there are none, or only root can read them. Others
/// that cannot be read are reported.
fn last_measured(world: &World, row: &DomainSummary) -> Option<LastMeasured> {
    let denied = |error: &HistoryError| {
        matches!(error, HistoryError::File { source, .. }
            if source.kind() == std::io::ErrorKind::PermissionDenied)
    };
    let runs = measured::read(world.state(), &row.uuid)
        .inspect_err(|error| {
            if !denied(error) {
                world.warning(&format!("no measurements of `{}`: {error}", row.name));
            }
        })
        .ok()?;
    let at_s = runs.last()?.at_s;
    Some(LastMeasured { domain: row.name.clone(), at_s, readings: newest(&runs) })
}

/// Adds the findings of a sample of running guests. If they cannot be sampled, that is reported.
fn sample(world: &World, interval: Duration, all: &mut [Verified]) -> Vec<GuestLoad> {
    let running = all.iter().filter(|one| one.running).map(|one| one.domain.clone());
    let names: Vec<String> = running.collect();
    if names.is_empty() {
        return Vec::new();
    }
    let sampled = Top::open(world, TopRequest { names, once: true }).map(|mut top| {
        top.sample();
        std::thread::sleep(interval);
        top.sample();
        top.report()
    });
    for one in all.iter_mut().filter(|one| one.running) {
        let load = sampled
            .as_ref()
            .map(|report| report.guests.iter().find(|guest| guest.name == one.domain));
        match load {
            Ok(Some(load)) => {
                one.findings = with_load(std::mem::take(&mut one.findings), &load.findings);
            }
            Ok(None) => one.not_checked.push("how it runs (it has ended)".to_owned()),
            Err(error) => one.not_checked.push(format!("how it runs ({})", error.whole())),
        }
    }
    sampled.map(|report| report.guests).unwrap_or_default()
}

/// The answer for one of many domains: one that cannot be read does not prevent the others, and one
/// that was deleted since it was listed has none.
fn of_many(summary: &DomainSummary, found: Result<Verified>) -> Result<Option<Verified>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) => match kind(&error) {
            Some(HypervisorErrorKind::NoDomain) => Ok(None),
            // No other domain could be read either.
            Some(HypervisorErrorKind::NoConnection) => Err(error),
            _ => Ok(Some(Verified::not_compared(summary, &error))),
        },
    }
}

/// The kind of the hypervisor's error among the causes of an error.
fn kind(error: &Error) -> Option<HypervisorErrorKind> {
    let mut causes =
        successors(Some(error as &(dyn std::error::Error + 'static)), |cause| cause.source());
    causes.find_map(|cause| cause.downcast_ref::<HypervisorError>().map(|error| error.kind))
}

/// The machine that domains run on, if it is this one.
struct Here {
    root: FsRoot,
    topology: Topology,
    tuning: Tuning,
    /// The processes of domains, by UUID.
    processes: BTreeMap<String, u32>,
    /// The version of Fabric Manager, if it controls the NVSwitches.
    manager: Option<String>,
}

/// The machine that domains run on.
struct Machine {
    /// Its files; none if it is another machine.
    here: Option<Here>,
    all: Occupancy,
    versions: Versions,
    /// The state of its NVLink partitions; `None` if Fabric Manager manages none.
    partitions: Option<Partitions>,
    /// The parts that cannot be compared on this machine.
    untold: Vec<String>,
}

impl Machine {
    fn read(world: &World, hypervisor: &dyn Hypervisor) -> Result<Machine> {
        // Domains of the test driver run on no machine.
        let is_here = hypervisor.has_guests_here();
        let mut machine = Machine {
            here: None,
            all: Occupancy::default(),
            versions: hypervisor.versions(),
            partitions: None,
            untold: Vec::new(),
        };
        if is_here {
            let root = FsRoot::live()?;
            let (mut tuning, processes) = (tuning::read(&root)?, process::all(&root)?);
            match files::read(&root) {
                Ok(files) => tuning.file_limit = files.of_next_guest(machine.versions.qemu),
                Err(error) => machine.untold.push(format!("the limit of open files ({error})")),
            }
            let topology = world.topology()?;
            let is_shared = topology.fabric().model == FabricModel::SharedNvswitch;
            // The driver for virtual GPUs has versions of its own.
            let manager = if is_shared && !Config::read(&root)?.is_of_vgpu() {
                versions(&root).of_guests().map(str::to_owned)
            } else {
                None
            };
            machine.here = Some(Here { topology, root, tuning, processes, manager });
            match world.occupancy(false) {
                Ok(all) => machine.all = all,
                Err(error) => machine.untold.push(format!("other domains ({})", error.whole())),
            }
        }
        machine.read_partitions(world, hypervisor)?;
        Ok(machine)
    }

    /// Reads the state of NVLink partitions. Like `fabric show`, also for guests of libvirt's test
    /// driver, if Fabric Manager's configuration says that it manages partitions.
    fn read_partitions(&mut self, world: &World, hypervisor: &dyn Hypervisor) -> Result<()> {
        let elsewhere = !hypervisor.machine().is_here();
        if elsewhere || self.here.is_none() && Config::read(&FsRoot::live()?)?.mode.is_none() {
            return Ok(());
        }
        let read = match &self.here {
            Some(here) => compared(world, &here.topology),
            None => compared(world, &world.topology()?),
        };
        match read {
            Ok((partitions, untold)) => {
                self.partitions = partitions;
                self.untold.extend(untold);
            }
            Err(error) => self.untold.push(format!("NVLink partitions ({})", error.whole())),
        }
        Ok(())
    }

    fn compare(
        &self,
        world: &World,
        hypervisor: &dyn Hypervisor,
        summary: &DomainSummary,
        wait: Duration,
    ) -> Result<Verified> {
        let name = &summary.name;
        let parse = |which| {
            let text = hypervisor.xml(name, which)?;
            DomainXml::parse(&text).doing(|| format!("cannot read `{name}`"))
        };
        let running = summary.state.is_active();
        let definition = parse(XmlOf::Public)?;
        let live = if running { Some(parse(XmlOf::Live)?) } else { None };
        let asks = wait > Duration::ZERO && summary.state.has_guest();
        let here = self.here.as_ref();
        let pid = here.filter(|_| running).and_then(|here| {
            here.processes.get(&summary.uuid.to_ascii_lowercase()).map(|&pid| (&here.root, pid))
        });
        let process = pid.map(|(root, pid)| process::read(root, pid)).transpose()?.flatten();
        let guest = live.as_ref().filter(|live| asks && has_agent(live));
        let guest = guest.and_then(|live| view(hypervisor, name, &Claims::read(live), wait));
        let mut others = self.all.clone();
        others.domains.retain(|held| held.domain != *name);
        let host = here.map(|here| verify::Host {
            topology: &here.topology,
            tuning: &here.tuning,
            others: &others,
            versions: &self.versions,
            manager: here.manager.as_deref(),
        });
        let subject = Subject {
            definition: &definition,
            live: live.as_ref(),
            process: process.as_ref(),
            guest: guest.as_ref(),
            host,
            partitions: self.partitions.as_ref(),
        };
        let mut not_checked = [verify::unchecked(&subject), self.untold.clone()].concat();
        not_checked.extend(disks::unseen(hypervisor).map(str::to_owned));
        let findings = verify::verify(&subject);
        let findings =
            self.beside(world, hypervisor, summary, &definition, findings, &mut not_checked);
        Ok(Verified {
            domain: name.clone(),
            running,
            findings,
            rules: verify::rules().count(),
            not_checked,
        })
    }

    /// Adds findings on disks, devices and the start with the host.
    fn beside(
        &self,
        world: &World,
        hypervisor: &dyn Hypervisor,
        summary: &DomainSummary,
        definition: &DomainXml,
        mut findings: Vec<Finding>,
        not_checked: &mut Vec<String>,
    ) -> Vec<Finding> {
        let (name, here) = (&summary.name, self.here.as_ref());
        let mut on_disks = disks::missing(definition, hypervisor).unwrap_or_else(|error| {
            not_checked.push(format!("whether the disks exist ({})", error.whole()));
            Vec::new()
        });
        if hypervisor.has_guests_here() {
            on_disks.extend(formats::facts(definition, &world.state_root()));
        }
        match here.map(|here| presences(&here.root, definition)).transpose() {
            Ok(all) => findings = with_devices(findings, definition, &all.unwrap_or_default()),
            Err(error) => not_checked.push(format!("its devices ({})", error.whole())),
        }
        if let Some(here) = here.filter(|_| summary.persistent) {
            match lacking(world, definition, Some(&here.topology)) {
                Ok(lacks) => findings = with_lacks(findings, name, &lacks),
                Err(error) => {
                    not_checked.push(format!("its start with the host ({})", error.whole()))
                }
            }
        }
        verify::with_disks(findings, definition, &on_disks)
    }
}

#[cfg(test)]
mod tests;
