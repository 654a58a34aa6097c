//! Compares a guest with its request, its definition and the machine. Four layers are compared,
//! each with the next: the request when it was made (if recorded), its definition, the running XML,
//! and reality: threads, memory, open devices, the host's settings, the guest's own view. Pure:
//! everything comes in as values. The rules on a domain by itself are those of [`crate::check`].

pub mod boot;
mod definition;
mod devices;
pub mod files;
pub mod guest;
mod host;
pub mod identity;
pub mod load;
mod memory;
mod nccl;
pub mod partition;
mod peers;
mod plan;
pub mod process;
mod report;
mod threads;
pub mod tuning;
mod versions;
pub mod vgpu;

pub(crate) use host::{BALANCING, GOVERNOR, THP, UNHEALTHY};
pub(crate) use peers::REJECTED;
pub use report::{Between, Differs, Finding};

use crate::check;
use crate::domain::DomainXml;
use crate::fabric::Domain;
use crate::finding::{Rule, Severity};
use crate::placement::Occupancy;
use crate::shell::domain;
use crate::topology::Topology;
use crate::versions::Versions;
use partition::Partitions;
use process::Process;
use report::Report;
use std::collections::BTreeSet;
use tuning::Tuning;

/// A domain that cannot be read.
const NOT_COMPARED: Rule = Rule::error("not-compared", "a domain that cannot be read");

/// A domain and everything it is compared with.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The definition used by the next start.
    pub definition: &'a DomainXml,
    /// The running XML; `None` if it does not run.
    pub live: Option<&'a DomainXml>,
    /// Its process; `None` if it does not run, or not here.
    pub process: Option<&'a Process>,
    /// The guest's own view; `None` if the agent could not be asked.
    pub guest: Option<&'a guest::View>,
    /// The host; `None` if the domain is on another one.
    pub host: Option<Host<'a>>,
    /// The state of NVLink partitions; `None` if guests of whole GPUs need none from Fabric
    /// Manager.
    pub partitions: Option<&'a Partitions>,
}

/// The host of a domain.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// Its topology.
    pub topology: &'a Topology,
    /// Its kernel settings.
    pub tuning: &'a Tuning,
    /// The occupancy by other domains, without the domain itself.
    pub others: &'a Occupancy,
    /// Its versions.
    pub versions: &'a Versions,
    /// Version of Fabric Manager if it controls the NVSwitches; `None` if it does not, or unknown.
    pub manager: Option<&'a str>,
}

/// Every rule, one by one.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    let own = [
        threads::RULES,
        memory::RULES,
        devices::RULES,
        guest::RULES,
        nccl::RULES,
        versions::RULES,
        host::RULES,
        peers::RULES,
        partition::RULES,
        vgpu::RULES,
        files::RULES,
        definition::RULES,
        identity::RULES,
        boot::RULES,
        plan::RULES,
        crate::load::VERIFY_RULES,
    ];
    own.into_iter().flatten().chain([&NOT_COMPARED]).chain(check::rules())
}

/// Compares a guest with its expected state.
pub fn verify(subject: &Subject<'_>) -> Vec<Finding> {
    let mut report = Report::default();
    let topology = subject.host.map(|host| host.topology);
    if let Some(xml) = subject.live {
        let live = check::guest::Guest::read(xml);
        definition::compare(subject.definition, xml, &mut report);
        if let (Some(process), Some(topology)) = (subject.process, topology) {
            threads::compare(&live, process, topology, &mut report);
            memory::compare(&live, process, topology, &mut report);
            devices::compare(&live, process, topology, &mut report);
        }
        if let Some(topology) = topology {
            peers::compare(subject.definition, xml, topology, &mut report);
        }
        if let Some(view) = subject.guest {
            guest::compare(&live, view, topology, &mut report);
            if let (Some(file), Some(topology)) = (&view.nccl, topology) {
                nccl::compare(xml, file, topology, &mut report);
            }
            if let Some(host) = subject.host {
                versions::compare(&live, view, host, &mut report);
            }
        }
    }
    if let Some(topology) = topology {
        nccl::compare_seeded(subject, topology, &mut report);
    }
    files::compare(subject, &mut report);
    if let Some(partitions) = subject.partitions {
        let name = subject.definition.name();
        let domain = Domain { name, uuid: subject.definition.uuid().unwrap_or_default() };
        partition::compare(&domain, partitions, &mut report);
    }
    let defined = check::guest::Guest::read(subject.definition);
    plan::compare(subject.definition, &defined, topology, &mut report);
    if let Some(host) = subject.host {
        memory::next_start(&defined, subject.process, host, &mut report);
        host::compare(&defined, host.topology, host.tuning, &mut report);
        let (of, runs) = ((host.topology, host.others), subject.live.is_some());
        vgpu::compare(subject.definition, runs, of, &mut report);
        report.extend(by_rules(subject, host));
    }
    report.finish()
}

/// Compares the threads and the memory of a guest's process with its running XML.
pub fn of_process(live: &DomainXml, process: &Process, topology: &Topology) -> Vec<Finding> {
    let mut report = Report::default();
    let live = check::guest::Guest::read(live);
    threads::compare(&live, process, topology, &mut report);
    memory::compare(&live, process, topology, &mut report);
    report.finish()
}

/// Adds the known facts about the disks of a definition to findings on the domain.
pub fn with_disks(
    mut findings: Vec<Finding>,
    definition: &DomainXml,
    facts: &[check::DiskFact],
) -> Vec<Finding> {
    findings.extend(check::disks(definition, facts).into_iter().map(|finding| {
        let check::Finding { rule, severity, says, hint } = finding;
        Finding { rule, severity, says: of_rule(says, "of the definition"), hint }
    }));
    findings.sort_by_key(|finding| (finding.severity, finding.says.between));
    findings
}

/// The finding of a rule of `check` about a document.
fn of_rule(says: check::InXml, document: &str) -> Differs {
    let at = format!("{} {document}, line {}", says.path, says.line);
    let (between, message) = (Between::Rule, says.message);
    Differs { between, message, expected: None, found: None, at }
}

/// The finding that a domain could not be compared, and why.
pub fn not_compared(name: &str, why: String) -> Finding {
    let at = format!("domain `{name}`");
    let says = Differs { between: Between::Rule, message: why, expected: None, found: None, at };
    let hint = format!("`virsh dumpxml {name}` shows what libvirt has of it", name = domain(name));
    Finding::by(&NOT_COMPARED, says, hint)
}

/// Returns `check`'s findings in the running XML, and additional ones in the definition. Conflicts
/// with stopped domains do no harm yet, so they are warnings.
fn by_rules(subject: &Subject<'_>, host: Host<'_>) -> Vec<Finding> {
    let running = host.others.domains.iter().filter(|held| held.active).cloned().collect();
    let active = Occupancy { domains: running, ..host.others.clone() };
    let mut seen: BTreeSet<(&str, String)> = BTreeSet::new();
    let mut findings = Vec::new();
    let documents =
        [(subject.live, "of the running XML"), (Some(subject.definition), "of the definition")];
    for (document, name) in documents {
        let Some(document) = document else { continue };
        for (others, all) in [(&active, false), (host.others, true)] {
            for finding in check::check(document, host.topology, others, host.versions) {
                // For a running guest, its actual resources are more precise.
                let of_start = [check::HUGE_PAGES_SHORT, check::HUGE_PAGES_NOT_MOUNTED];
                // Types of vGPUs are compared by themselves, and a running guest has its own.
                let is_vgpu = finding.rule == check::VGPU_RETYPED
                    || finding.rule == check::VGPU_UNAVAILABLE && subject.live.is_some();
                let pages = of_start.contains(&finding.rule) && subject.live.is_some();
                if is_vgpu || pages || !seen.insert((finding.rule, finding.says.message.clone())) {
                    continue;
                }
                let defined_only = all && check::is_on_others(finding.rule);
                let severity = match finding.rule {
                    _ if defined_only => Severity::Warning,
                    // Creating it was a choice; a claim about it may be false.
                    check::OPEN_PORTS => Severity::Error,
                    _ => finding.severity,
                };
                let check::Finding { rule, says, hint, .. } = finding;
                findings.push(Finding { rule, severity, says: of_rule(says, name), hint });
            }
        }
    }
    findings
}

/// Parts that cannot be compared, one phrase each.
pub fn unchecked(subject: &Subject<'_>) -> Vec<String> {
    let mut missing = Vec::new();
    let mut add = |so: bool, phrase: &str| {
        if so {
            missing.push(phrase.to_owned());
        }
    };
    let runs = subject.live.is_some();
    add(!runs, "threads, memory and open devices (the domain is off)");
    add(subject.host.is_none(), "host and process (the connection is to another machine)");
    let lost = runs && subject.host.is_some() && subject.process.is_none();
    add(lost, "threads, memory and open devices (no process of the domain is seen)");
    if let Some(process) = subject.process {
        add(process.memory.is_none(), "memory by node (this user may not read numa_maps)");
        add(process.opened.is_none(), "open devices (this user may not read /proc/PID/fd)");
        add(true, "which I/O thread serves a disk (only QEMU knows)");
    }
    add(runs && subject.guest.is_none(), "the guest's own view (no agent answers)");
    if let Some(view) = subject.guest {
        view.untold.iter().for_each(|phrase| add(true, phrase));
        versions::unchecked(subject).into_iter().for_each(|phrase| add(true, phrase));
    }
    if let Some(host) = subject.host {
        add(host.tuning.governors.is_empty(), "frequency governors (the host shows none)");
        add(*host.versions == Versions::default(), "versions of QEMU and libvirt");
        for phrase in check::unchecked(host.topology) {
            add(true, phrase);
        }
    }
    add(matches!(subject.definition.record(), Ok(None)), "the plan (gpuvm did not make it)");
    add(subject.definition.record().is_err(), "the plan (its record cannot be read)");
    missing
}

#[cfg(test)]
mod tests;
