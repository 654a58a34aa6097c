//! Any domain, whoever made it, made as good as a fresh plan: "tune the domain that is there". Pure.
//!
//! The domain says itself what was asked for: its functions, its vCPUs, its memory (`wish`). The planner finds its place
//! with the domain itself left out of what is taken, and it stays where it is if that is as good (`place`). What an item
//! switches becomes edits of the splice editor (`work`), so all else stays byte for byte. At last our own checker looks
//! at the result: an error that was not there before refuses the whole ([`TuneError::Unsound`]).
//!
//! Does not know whether a file system takes O_DIRECT or what QEMU can do: it is told ([`Given`]).

mod cpu;
mod devices;
mod disks;
mod iothreads;
pub mod items;
mod nics;
mod place;
mod refuse;
mod request;
pub mod together;
mod wish;
mod words;
mod work;

pub use items::{Item, ItemName, Items};

use crate::check::{Finding, check};
use crate::domain::guest::{Abilities, DiskIo};
use crate::domain::{DomainXml, DomainXmlError};
use crate::finding::Severity;
use crate::placement::{Occupancy, Placement, PlanError, Reason};
use crate::topology::Topology;
use crate::versions::Versions;
use serde::Serialize;
use std::collections::BTreeMap;

/// What a domain is tuned by.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    /// The host.
    pub topology: &'a Topology,
    /// What is taken, without the domain itself.
    pub others: &'a Occupancy,
    /// What shall be done.
    pub items: &'a Items,
    /// Whether cores and memory of other nodes than those of the devices may be taken.
    pub allow_remote: bool,
    /// How disks are read and written best, by path; those that are not named: past the host's cache, natively.
    pub disks: &'a BTreeMap<String, DiskIo>,
    /// What the hypervisor can do.
    pub abilities: Abilities,
    /// What it is, for our checker.
    pub versions: &'a Versions,
}

/// One thing that becomes another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// The thing.
    pub item: ItemName,
    /// What it was.
    pub was: String,
    /// What it is.
    pub now: String,
}

/// A domain that was tuned.
#[derive(Debug, Clone)]
pub struct Tuned {
    /// Where it is; none: nothing that depends on it was asked for.
    pub placement: Option<Placement>,
    /// Its definition.
    pub after: DomainXml,
    /// What is different, in words; empty exactly where the definition is what it was.
    pub changes: Vec<Change>,
    /// Why it is so, and what is a compromise.
    pub reasons: Vec<Reason>,
    /// What our checker finds in it.
    pub findings: Vec<Finding>,
}

/// Says why a domain cannot be tuned.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "tune-")]
pub enum TuneError {
    /// It runs on something else than QEMU.
    #[error("it is of type `{kind}`, and only `kvm` and `qemu` run on QEMU")]
    #[strum(to_string = "hypervisor-type")]
    Kind {
        /// The type.
        kind: String,
    },
    /// It cannot be understood, or an edit cannot be made.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Xml(#[from] DomainXmlError),
    /// There is no place for it.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Plan(#[from] PlanError),
    /// What is asked for cannot be had.
    #[error("--{item}: {message}")]
    #[strum(to_string = "setting")]
    Item {
        /// The thing.
        item: ItemName,
        /// Why not.
        message: String,
        /// What would help.
        hint: String,
    },
    /// It would be wrong afterwards.
    #[error("it would fail `check`:{}", lines(.0))]
    Unsound(Vec<Finding>),
}

/// Findings, one line each.
fn lines(findings: &[Finding]) -> String {
    findings.iter().map(|f| format!("\n  {}: {}", f.says.path, f.says.message)).collect()
}

impl TuneError {
    /// Makes the error that an item cannot be had.
    fn item(item: ItemName, message: impl Into<String>, hint: impl Into<String>) -> TuneError {
        TuneError::Item { item, message: message.into(), hint: hint.into() }
    }
}

/// Makes a domain what its items say; changes nothing where it is so already.
pub fn tune(current: &DomainXml, given: &Given<'_>) -> Result<Tuned, TuneError> {
    let claims = refuse::understood(current, given)?;
    let mut items = given.items.clone();
    // Memory that is no whole pages of the new size would not start.
    let repaged = matches!(items.huge_pages, Item::On | Item::To(_));
    if repaged && items.memory_rounding.is_kept() {
        items.memory_rounding = Item::On;
    }
    let guest = wish::Guest::read(current, &claims, &Given { items: &items, ..*given })?;
    let placement = match items.need_a_place() {
        true => Some(place::place(current, &guest, &Given { items: &items, ..*given })?),
        false => None,
    };
    if repaged
        && items.cells.is_kept()
        && placement.as_ref().is_some_and(|p| place::is_same_cells(&claims, p))
    {
        items.cells = Item::On;
        items.unnamed.insert(ItemName::Cells);
    }
    let given = &Given { items: &items, ..*given };
    let mut work = work::Work::new(current, &guest, placement.as_ref(), given);
    cpu::apply(&mut work)?;
    devices::apply(&mut work)?;
    request::apply(&mut work)?;
    let work::Work { xml: after, mut changes, mut reasons, .. } = work;
    changes.sort_by_key(|change| change.item);
    let judge = |xml| check(xml, given.topology, given.others, given.versions);
    let findings = judge(&after);
    let before = judge(current);
    let is_new = |finding: &&Finding| {
        finding.severity == Severity::Error && !before.iter().any(|b| b.rule == finding.rule)
    };
    let unsound: Vec<Finding> = findings.iter().filter(is_new).cloned().collect();
    if !unsound.is_empty() && !changes.is_empty() {
        return Err(TuneError::Unsound(unsound));
    }
    let planned = placement.iter().flat_map(|placement| placement.reasons.clone());
    reasons.splice(0..0, planned);
    Ok(Tuned { placement, after, changes, reasons, findings })
}
