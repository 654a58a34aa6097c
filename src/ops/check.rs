//! `check`: the checker's findings in a domain, and the skipped checks.

use crate::backing;
use crate::disks;
use crate::domain::DomainXml;
use crate::error::{Doing as _, Result};
use crate::formats;
use crate::hypervisor::XmlOf;
use crate::lookup::refuse_unread;
use crate::nic_sources;
use crate::placement::Occupancy;
use crate::source::{Source, definition};
use crate::taken::{Taken, ready_for_off, taken};
use crate::world::World;
use gpuvm_core::check::{self, Finding, Note};
use gpuvm_core::tune::together::without_member;
use gpuvm_core::versions::Versions;
use serde::Serialize;

/// A request to check a domain.
#[derive(Debug, Clone)]
pub struct Check {
    /// The domain.
    pub source: Source,
    /// Where the host's other domains are read from.
    pub taken: Taken,
}

/// The findings in a domain.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Checked {
    /// Name of the domain.
    pub domain: String,
    /// The findings: errors first, then by line.
    pub findings: Vec<Finding>,
    /// Deviations that this host or the request does not allow to improve.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// Number of rules applied.
    pub rules: usize,
    /// Skipped checks, and why.
    pub not_checked: Vec<String>,
}

/// Checks a domain; changes nothing.
pub fn check(world: &World, wanted: &Check) -> Result<Checked> {
    let (domain, running) = read(&wanted.source, world)?;
    if let Err(error) = refuse_unread(&domain) {
        world.warning(&error.whole());
    }
    let topology = world.topology_as_known(wanted.taken.assume)?;
    let mut not_checked = Vec::new();
    let others = others(&wanted.taken, world, &mut not_checked)?;
    let others = if world.is_recorded() {
        others
    } else {
        let guest = std::iter::once(&domain);
        let empty = wanted.taken.assume_empty;
        let ready = ready_for_off(world, others.clone(), &topology, guest, empty);
        ready.unwrap_or_else(|error| {
            not_checked.push(format!("whether NVLink partitions are ready ({error})"));
            others
        })
    };
    let others = without_member(&others, &domain, false);
    let versions = if world.is_recorded() {
        let known = wanted.taken.assume.or(topology.machine().stack);
        known.map(|stack| stack.versions()).unwrap_or_default()
    } else {
        world.hypervisor().map(|hypervisor| hypervisor.versions()).unwrap_or_default()
    };
    if versions == Versions::default() {
        not_checked.push("versions of QEMU and libvirt".to_owned());
    }
    let (mut findings, mut notes) = check::judge(&domain, &topology, &others, &versions);
    let naming = |text: &mut String| *text = wanted.source.naming(text, &domain.name());
    findings.iter_mut().for_each(|finding| naming(&mut finding.hint));
    notes.iter_mut().for_each(|note| naming(&mut note.message));
    let on_disks = match world.settings.host {
        Some(_) => Err("--host is given".to_owned()),
        None => of_disks(&domain, world).map_err(|error| error.to_string()),
    };
    match on_disks {
        Ok((found, unseen)) => {
            findings.extend(found);
            not_checked.extend(unseen);
        }
        Err(why) => not_checked.push(format!("disks and what NICs are connected to ({why})")),
    }
    findings.sort_by_key(|finding| (finding.severity, finding.says.line));
    if running {
        findings.retain(|finding| finding.rule != check::HUGE_PAGES_SHORT);
        not_checked.push("free huge pages (the domain runs and holds its own)".to_owned());
    }
    not_checked.extend(check::unchecked(&topology).into_iter().map(str::to_owned));
    let name = Some(domain.name()).filter(|name| !name.is_empty());
    let domain = name.unwrap_or_else(|| wanted.source.named().to_owned());
    Ok(Checked { domain, findings, notes, rules: check::rules().count(), not_checked })
}

/// Reads the domain, and whether it runs.
fn read(source: &Source, world: &World) -> Result<(DomainXml, bool)> {
    let name = match source {
        Source::File(file) => return Ok((definition(file)?, false)),
        Source::Domain(name) => name,
    };
    let hypervisor = world.hypervisor()?;
    let xml = hypervisor.xml(name, XmlOf::Inactive)?;
    let summary = hypervisor.domains()?.into_iter().find(|summary| summary.name == *name);
    let running = summary.is_some_and(|summary| summary.state.is_active());
    let domain = DomainXml::parse(&xml).doing(|| format!("cannot read `{name}`"))?;
    Ok((domain, running))
}

/// The occupancy of other domains; if unknown it is not checked.
fn others(of: &Taken, world: &World, not_checked: &mut Vec<String>) -> Result<Occupancy> {
    if !of.domain_xml.is_empty() {
        return taken(world, of);
    }
    let why = match world.occupancy(of.assume_empty) {
        _ if world.is_recorded() => "--host is given without --domain-xml".to_owned(),
        Ok(others) => return Ok(others),
        Err(error) => error.to_string(),
    };
    not_checked.push(format!("other domains ({why})"));
    Ok(Occupancy::default())
}

/// Returns findings on a domain's disks, those that others use, that do not exist, or are of
/// another format; and on the sources of its NICs; and the parts that could not be examined.
fn of_disks(domain: &DomainXml, world: &World) -> Result<(Vec<Finding>, Option<String>)> {
    let hypervisor = world.hypervisor()?;
    let own = match domain.uuid() {
        Some(uuid) => Some(uuid),
        None => hypervisor.domain(&domain.name())?.map(|row| row.uuid),
    };
    let mut facts = disks::facts(domain, own.as_deref(), false, &*hypervisor)?;
    facts.extend(disks::missing(domain, &*hypervisor)?);
    if hypervisor.has_guests_here() {
        facts.extend(backing::facts(domain, &world.state_root()));
        facts.extend(formats::facts(domain, &world.state_root()));
    }
    let unseen = disks::unseen(&*hypervisor).map(str::to_owned);
    let mut findings = check::disks(domain, &facts);
    findings.extend(check::nics(domain, &nic_sources::facts(domain, &*hypervisor)?));
    Ok((findings, unseen))
}

#[cfg(test)]
mod tests;
