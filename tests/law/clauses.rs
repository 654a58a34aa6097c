//! The clauses of the consistency law, each checked for one host and size.

use super::fake;
use super::pairs::Asked;
use gpuvm::check::{self, HUGE_PAGES_NOT_MOUNTED, HUGE_PAGES_SHORT};
use gpuvm::cpuset::CpuSet;
use gpuvm::domain::claims::Claims;
use gpuvm::domain::{DomainXml, Element};
use gpuvm::finding::Severity;
use gpuvm::placement::{Placement, Topic, capacity};
use gpuvm::request::{GpuWish, Request};
use gpuvm::tune::{Given, Items, tune};
use gpuvm::versions::Versions;
use std::collections::BTreeMap;
use std::fmt;

/// A clause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Clause {
    /// `export` writes the plan.
    Export,
    /// libvirt's schema accepts it.
    Valid,
    /// The XML equals the plan.
    Same,
    /// `create` accepts, or refuses for a reason that the plan named.
    Create,
    /// `check` finds nothing.
    Check,
    /// `tune --check` finds nothing to change.
    Tune,
    /// `capacity` agrees with `plan`.
    Capacity,
    /// `verify` of the running guest finds nothing.
    Verify,
    /// The program reports the same as the library.
    Program,
}

/// A broken clause.
#[derive(Debug)]
pub struct Broken {
    /// The clause.
    pub clause: Clause,
    /// The difference.
    pub how: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.clause, self.how)
    }
}

/// The result for a pair of host and size.
#[derive(Default)]
pub struct Outcome {
    /// Clauses that were checked.
    pub asked: Vec<Clause>,
    /// Those that are broken.
    pub broken: Vec<Broken>,
    /// What `export` wrote.
    pub xml: Option<DomainXml>,
}

impl Outcome {
    /// Notes a clause.
    fn note(&mut self, clause: Clause, broken: impl IntoIterator<Item = String>) {
        self.asked.push(clause);
        self.broken.extend(broken.into_iter().map(|how| Broken { clause, how }));
    }
}

/// Judges a pair.
pub fn judge(asked: &Asked<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.note(Clause::Capacity, counted(asked));
    let Ok(placement) = &asked.answer else { return outcome };
    let xml = match asked.export(placement) {
        Ok(xml) => xml,
        // One missing option may be named, if the plan named it as well.
        Err(error) => {
            let named =
                placement.reasons.iter().any(|r| r.choice == Topic::Template && r.compromise);
            outcome
                .note(Clause::Export, (!named || !error.contains("--template")).then_some(error));
            return outcome;
        }
    };
    outcome.note(Clause::Export, []);
    outcome.note(Clause::Same, same(placement, &xml));
    outcome.note(Clause::Create, created(asked, placement, &xml));
    outcome.note(Clause::Check, checked(asked, placement, &xml));
    outcome.note(Clause::Tune, tuned(asked, &xml));
    outcome.note(Clause::Verify, fake::verified(asked, placement, &xml));
    outcome.xml = Some(xml);
    outcome
}

/// Whether `capacity` counts guests of this size exactly if `plan` can place one.
fn counted(asked: &Asked<'_>) -> Option<String> {
    let GpuWish::Count(gpus @ 1..) = asked.request.gpus else { return None };
    let like = Request { gpus: GpuWish::Count(1), ..asked.request.clone() };
    let capacity = capacity(asked.topology, &asked.others, &like, &[gpus]);
    let counted = capacity.sizes.first().map_or(0, |size| size.empty);
    match (&asked.answer, counted) {
        (Ok(_), 0) => Some("planned, and capacity counts none".into()),
        (Err(error), 1..) => Some(format!("refused ({error}), and capacity counts {counted}")),
        (Err(error), 0) => {
            let why = capacity.next.map(|next| next.even_empty.unwrap_or(next.what));
            let same = why.as_deref() == Some(error.to_string().as_str());
            (!same).then(|| format!("refused ({error}), and capacity says {why:?}"))
        }
        _ => None,
    }
}

/// The differences between a guest and its plan.
fn same(placement: &Placement, xml: &DomainXml) -> Vec<String> {
    let claims = Claims::read(xml);
    let mut wrong = Vec::new();
    let mut compare = |what: &str, planned: String, written: String| {
        if planned != written {
            wrong.push(format!("{what}: {planned} planned, {written} written"));
        }
    };
    compare("vCPUs", placement.vcpus().to_string(), claims.vcpus.value.to_string());
    compare("memory", placement.memory().to_string(), claims.memory.value.to_string());
    let pins = |pins: &[CpuSet]| {
        let pins = pins.iter().enumerate().filter(|(_, pin)| !pin.is_empty());
        pins.map(|(at, pin)| format!("{at}:{pin}")).collect::<Vec<_>>().join(" ")
    };
    let mut written = vec![CpuSet::new(); placement.vcpu_pins.len()];
    for pin in &claims.vcpu_pins {
        written[pin.of.value as usize] = pin.cpuset.value.clone();
    }
    compare("pins", pins(&placement.vcpu_pins), pins(&written));
    let emulator = claims.emulator_pin.as_ref().map(|pin| pin.value.to_string());
    compare("emulator", placement.emulator_pin.to_string(), emulator.unwrap_or_default());
    let threads = placement.iothread_pins.len().to_string();
    compare("I/O threads", threads, claims.iothreads.len().to_string());
    let written: Vec<CpuSet> =
        claims.iothread_pins.iter().map(|pin| pin.cpuset.value.clone()).collect();
    compare("I/O threads' pins", pins(&placement.iothread_pins), pins(&written));
    for (cell, planned) in placement.cells.iter().enumerate().filter(|_| !claims.cells.is_empty()) {
        let written = claims.cells.get(cell).map(|cell| cell.memory.value.to_string());
        compare("memory of a cell", planned.memory_kib.to_string(), written.unwrap_or_default());
        let binding = claims.binding(Some(cell as u32)).map(|b| b.nodes.value.to_string());
        compare("nodes of a cell", planned.host_nodes.to_string(), binding.unwrap_or_default());
    }
    let mut devices: Vec<_> = claims.passed.iter().map(|passed| passed.bdf.value).collect();
    let mut planned = placement.devices.clone();
    devices.sort_unstable();
    planned.sort_unstable();
    compare("devices", format!("{planned:?}"), format!("{devices:?}"));
    let cells = |group: &gpuvm::placement::PcieGroup| format!("{:?}", group.cell);
    let planned: Vec<String> = placement.guest_pcie.groups.iter().map(cells).collect();
    compare("cells of buses", planned.join(" "), buses(xml).join(" "));
    wrong
}

/// The cells of expander buses, in order.
fn buses(xml: &DomainXml) -> Vec<String> {
    let devices = xml.root().child("devices");
    let controllers = devices.into_iter().flat_map(|devices| devices.children("controller"));
    let is = |bus: &Element<'_>| bus.attr("model").as_deref() == Some("pcie-expander-bus");
    let nodes = controllers.filter(is).map(|bus| bus.find("target/node"));
    let cell = |node: Option<Element<'_>>| node.and_then(|n| n.text().trim().parse::<u32>().ok());
    nodes.map(|node| format!("{:?}", cell(node))).collect()
}

/// The refusals of `create` that the plan did not name.
fn created(asked: &Asked<'_>, placement: &Placement, xml: &DomainXml) -> Vec<String> {
    let errors = found(asked, placement, xml).filter(|f| f.severity == Severity::Error);
    errors.map(|finding| format!("{} ({})", finding.says.message, finding.rule)).collect()
}

/// The findings of `check`.
pub fn checked(asked: &Asked<'_>, placement: &Placement, xml: &DomainXml) -> Vec<String> {
    let findings = found(asked, placement, xml);
    findings.map(|finding| format!("{} ({})", finding.says.message, finding.rule)).collect()
}

/// The findings of our checker, except parts that the host lacks before a start and the plan named
/// with the command that fixes them: huge pages that are not reserved, a page size that is not
/// mounted.
fn found(
    asked: &Asked<'_>,
    placement: &Placement,
    xml: &DomainXml,
) -> impl Iterator<Item = check::Finding> {
    let named: Vec<&str> =
        [(HUGE_PAGES_SHORT, Topic::HugePages), (HUGE_PAGES_NOT_MOUNTED, Topic::Hugetlbfs)]
            .into_iter()
            .filter(|(_, choice)| {
                placement.reasons.iter().any(|r| r.compromise && r.choice == *choice)
            })
            .map(|(rule, _)| rule)
            .collect();
    let found = check::check(xml, asked.topology, &asked.others, &Versions::default());
    found.into_iter().filter(move |finding| !named.contains(&finding.rule))
}

/// The changes that `tune --check` would make.
pub fn tuned(asked: &Asked<'_>, xml: &DomainXml) -> Vec<String> {
    let (items, disks) = (Items::all(), BTreeMap::new());
    let given = Given {
        topology: asked.topology,
        others: &asked.others,
        items: &items,
        allow: gpuvm::request::Allow::default(),
        disks: &disks,
        abilities: Default::default(),
        versions: &Versions::default(),
    };
    match tune(xml, &given) {
        Err(error) => vec![error.to_string()],
        Ok(tuned) => {
            let change = |c: &gpuvm::tune::Change| format!("{}: {} -> {}", c.item, c.was, c.now);
            tuned.changes.iter().map(change).collect()
        }
    }
}
