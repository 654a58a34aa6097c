//! Tunes any domain, whoever made it, to be as good as a fresh plan. Pure.
//!
//! The domain itself defines the request: its functions, its vCPUs, its memory (`wish`). The
//! planner finds its place, ignoring the domain's own resources, and it stays where it is if that
//! is as good (`place`). Each setting becomes edits of the splice editor (`work`), so everything
//! else stays byte for byte. Finally the checker judges the result: a new error refuses the whole
//! change ([`TuneError::Unsound`]).
//!
//! Whether a file system supports O_DIRECT and what QEMU can do are inputs ([`Given`]).

mod convert;
mod cpu;
mod describe;
mod devices;
mod disks;
mod functions;
mod gpus;
mod iommufd;
mod iothreads;
pub mod items;
pub mod kinds;
mod left;
mod nics;
mod place;
mod refuse;
mod request;
mod request_of_domain;
mod resize;
pub mod several;
#[cfg(test)]
mod testing;
pub mod together;
mod work;

pub use gpus::candidates;
pub use items::{Item, ItemName, Items};
pub use left::{Left, left_alone};

use crate::check::{Finding, check};
use crate::domain::guest::{Abilities, DiskIo, mdev_uuid};
use crate::domain::{DomainXml, DomainXmlError};
use crate::finding::Severity;
use crate::occupancy::OwnVgpus;
use crate::placement::{Occupancy, Placement, PlanError, Reason};
use crate::request::{Allow, Request};
use crate::topology::Topology;
use crate::versions::Versions;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// The inputs of tuning a domain.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    /// The host.
    pub topology: &'a Topology,
    /// The occupancy by other domains.
    pub others: &'a Occupancy,
    /// The settings.
    pub items: &'a Items,
    /// Which rules may be broken.
    pub allow: Allow,
    /// The best cache and I/O mode of disks, by path; the default is to bypass the host's cache
    /// with native I/O.
    pub disks: &'a BTreeMap<String, DiskIo>,
    /// The features of the hypervisor.
    pub abilities: Abilities,
    /// Its versions, for the checker.
    pub versions: &'a Versions,
}

/// One thing that becomes another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// The thing.
    pub item: ItemName,
    /// The previous value.
    pub was: String,
    /// The new value.
    pub now: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { item, was, now } = self;
        // Its description does not show the difference.
        if was == now {
            write!(f, "{item}: {now} (changed)")
        } else {
            write!(f, "{item}: {was} -> {now}")
        }
    }
}

/// A tuned domain.
#[derive(Debug, Clone)]
pub struct Tuned {
    /// Its placement; `None` if no setting depends on it.
    pub placement: Option<Placement>,
    /// Its definition.
    pub after: DomainXml,
    /// The changes as text; empty exactly if the definition is unchanged.
    pub changes: Vec<Change>,
    /// The reasons, with compromises marked.
    pub reasons: Vec<Reason>,
    /// The checker's findings.
    pub findings: Vec<Finding>,
}

/// The reason a domain cannot be tuned.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "tune-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum TuneError {
    /// It does not run on QEMU.
    #[error("its type is `{kind}`; only `kvm` and `qemu` run on QEMU")]
    #[strum(to_string = "hypervisor-type")]
    Kind { kind: String },
    /// It cannot be parsed, or an edit cannot be made.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Xml(#[from] DomainXmlError),
    /// There is no place for it.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Plan(#[from] PlanError),
    /// A setting is impossible.
    #[error("--{item}: {message}")]
    #[strum(to_string = "setting")]
    Item { item: ItemName, message: String, hint: String },
    /// The running guest has no place for another device.
    #[error("the running guest has no free root port for another {what}")]
    NoPort {
        /// The device: NIC, NVMe drive.
        what: &'static str,
    },
    /// It would be wrong afterwards.
    #[error("it would fail `check`:{}", lines(.0))]
    Unsound(Vec<Finding>),
}

fn lines(findings: &[Finding]) -> String {
    findings.iter().map(|f| format!("\n  {}: {}", f.says.path, f.says.message)).collect()
}

impl TuneError {
    /// Makes the error of an impossible setting.
    fn item(item: ItemName, message: impl Into<String>, hint: impl Into<String>) -> TuneError {
        TuneError::Item { item, message: message.into(), hint: hint.into() }
    }
}

/// The request that tuning a domain plans with these settings; an error if it cannot be tuned.
pub fn planned_request(current: &DomainXml, given: &Given<'_>) -> Result<Request, TuneError> {
    let claims = refuse::understood(current, given)?;
    let items = resize::items(current, &claims, given)?;
    let guest =
        request_of_domain::Guest::read(current, &claims, &Given { items: &items, ..*given })?;
    Ok(guest.request)
}

/// Names planned mediated devices otherwise than those that the domain has.
fn with_new_mdevs(placement: Placement, current: &DomainXml) -> Placement {
    let key = current.uuid().unwrap_or_else(|| current.name());
    let had = current.mediated();
    let names = (0..).map(|nth| mdev_uuid(&key, nth)).filter(|name| !had.contains(name));
    let new: Vec<String> = names.take(placement.vgpus.len()).collect();
    placement.with_mdevs(|nth| new[nth].clone())
}

/// Applies settings to a domain; changes nothing that is already so. vGPUs that it has as requested
/// and whose card has no room are planned again, and stay where no other place exists.
pub fn tune(current: &DomainXml, given: &Given<'_>) -> Result<Tuned, TuneError> {
    let tuned = tune_so(current, given);
    if let Err(TuneError::Plan(_)) = &tuned
        && let Some(items) = resize::with_own_vgpus(current, given)
    {
        return tune_so(current, &Given { items: &items, ..*given });
    }
    tuned
}

/// Applies exactly these settings.
fn tune_so(current: &DomainXml, given: &Given<'_>) -> Result<Tuned, TuneError> {
    let claims = refuse::understood(current, given)?;
    let mut items = if given.items.resize.is_some() {
        resize::items(current, &claims, given)?
    } else {
        given.items.clone()
    };
    items.keep_chosen(current);
    // A guest whose memory is not a whole number of the new pages would not start.
    let repaged = matches!(items.huge_pages, Item::On | Item::To(_));
    if repaged && items.memory_rounding.is_kept() {
        items.memory_rounding = Item::On;
    }
    let kinds = kinds::Kinds::new(given.topology, current);
    place::refuse_arguments(current, &claims, &items, (given.topology, &kinds))?;
    let mut guest =
        request_of_domain::Guest::read(current, &claims, &Given { items: &items, ..*given })?;
    let placement = if items.need_a_place() {
        let placement = place::place(current, &guest, &Given { items: &items, ..*given })?;
        Some(with_new_mdevs(placement, current))
    } else {
        None
    };
    if let (Some(placement), true) = (&placement, items.moves_functions()) {
        if items.size().functions.ports.is_none() {
            guest.take(placement);
        } else {
            guest.take_functions(placement);
            items = items.without_moves();
        }
    }
    if repaged
        && items.cells.is_kept()
        && placement.as_ref().is_some_and(|p| place::is_same_cells(&claims, p))
    {
        items.cells = Item::On;
        items.unnamed.insert(ItemName::Cells);
    }
    let given = &Given { items: &items, ..*given };
    // vGPUs that it, and others that are planned with it, give up are cleared before it gets others.
    let stay = given.items.size().vgpu.is_kept();
    let mut given_up = given.others.own_vgpus.vgpus.clone();
    if !stay {
        given_up.extend(guest.vgpus.iter().cloned());
    }
    let own_vgpus = OwnVgpus { vgpus: given_up, stay };
    let others = &Occupancy { own_vgpus, ..given.others.clone() };
    let judge = |xml| check(xml, given.topology, others, given.versions);
    let before = judge(current);
    let faults = before.iter().map(|finding| finding.rule).collect();
    let mut work = work::Work::new(current, &guest, placement.as_ref(), given, faults);
    cpu::apply(&mut work)?;
    iommufd::apply(&mut work)?;
    devices::apply(&mut work)?;
    request::apply(&mut work)?;
    let work::Work { xml: after, mut changes, mut reasons, .. } = work;
    changes.sort_by_key(|change| change.item);
    let findings = judge(&after);
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
