//! The occupancy of domains on a host: those of its hypervisor, or those in files that accompany a
//! recorded host.

use crate::domain::DomainXml;
use crate::error::{Doing as _, Result, usage};
use crate::input::{self, DOMAIN_BYTES, InputError};
use crate::moved;
use crate::partition::readiness;
use crate::placement::Occupancy;
use crate::topology::Topology;
use crate::world::World;
use gpuvm_core::versions::Stack;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The source of the domains' occupancy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// Assume that nothing is in use, whatever domains exist.
    pub assume_empty: bool,
    /// Domains of a recorded host: files, or directories of files.
    pub domain_xml: Vec<PathBuf>,
    /// The libvirt and QEMU of a recorded host; `None` for those of its record, or usual ones.
    pub assume: Option<Stack>,
}

/// The occupancy of the domains.
pub fn taken(world: &World, of: &Taken) -> Result<Occupancy> {
    world.refuse_assumed(of.assume)?;
    let mut occupancy = world.occupancy_to_look(of.assume_empty)?;
    let mut known = Vec::new();
    for (path, xml) in domains_of_files(world, &of.domain_xml)? {
        let failed =
            || format!("cannot determine the resources of the domain in `{}`", path.display());
        let held = xml.held(is_active(&xml)).doing(failed)?;
        if !held.active {
            let recorded = xml.valid_devices(&held.devices).into_iter();
            known.extend(recorded.map(|one| (held.domain.clone(), one)));
        }
        occupancy.domains.push(held);
    }
    if let Some(root) = world.root()?.filter(|_| !known.is_empty()) {
        moved::relocate(&root, &mut occupancy.domains, &known)?;
    }
    Ok(occupancy)
}

/// The same for a guest that does not exist yet, with the reasons why NVLink partitions cannot be
/// activated for it. `has_gpus`: whether it gets any; Fabric Manager is not asked for others.
pub fn taken_for_new(
    world: &World,
    of: &Taken,
    topology: &Topology,
    has_gpus: bool,
) -> Result<Occupancy> {
    let occupancy = taken(world, of)?;
    warn_of_unread(world, &occupancy);
    if !has_gpus {
        return Ok(occupancy);
    }
    let readiness = readiness(world, topology, of.assume_empty)?;
    Ok(Occupancy { readiness, ..occupancy })
}

/// Warns of domains that may have devices which are not known.
fn warn_of_unread(world: &World, occupancy: &Occupancy) {
    let all = occupancy.domains.iter();
    let all = all.flat_map(|held| held.unread.iter().map(|why| (held.domain.as_str(), why)));
    for (domain, why) in all.collect::<BTreeSet<_>>() {
        world.warning(&format!(
            "a QEMU argument may give domain `{domain}` devices that count as free: {why}"
        ));
    }
}

/// The same for guests that exist, of which those that are off need NVLink partitions at their next
/// start.
pub fn taken_for_off<'d>(
    world: &World,
    of: &Taken,
    topology: &Topology,
    guests: impl Iterator<Item = &'d DomainXml>,
) -> Result<Occupancy> {
    let occupancy = taken(world, of)?;
    ready_for_off(world, occupancy, topology, guests, of.assume_empty)
}

/// The occupancy, with the reasons why partitions cannot be activated for those of these guests
/// that are off. Fabric Manager is not asked for guests without GPUs of the board. `assume_empty`:
/// resources of domains are not a reason.
pub fn ready_for_off<'d>(
    world: &World,
    occupancy: Occupancy,
    topology: &Topology,
    mut guests: impl Iterator<Item = &'d DomainXml>,
    assume_empty: bool,
) -> Result<Occupancy> {
    let runs = |name: &str| occupancy.domains.iter().any(|one| one.domain == name && one.active);
    let needs = |guest: &DomainXml| {
        let devices = guest.held(false).map(|held| held.devices).unwrap_or_default();
        !runs(&guest.name()) && topology.ruled().any(|bdf| devices.contains(&bdf))
    };
    if guests.any(needs) {
        Ok(Occupancy { readiness: readiness(world, topology, assume_empty)?, ..occupancy })
    } else {
        Ok(occupancy)
    }
}

/// The domains of a recorded host in these files or directories of files.
pub fn domains_of_files(world: &World, paths: &[PathBuf]) -> Result<Vec<(PathBuf, DomainXml)>> {
    if !paths.is_empty() && !world.is_recorded() {
        return Err(usage(
            "--domain-xml names the domains of a recorded host, and --host is not given",
            "without --host the domains of this machine are read from libvirt",
        ));
    }
    let mut domains = Vec::new();
    for path in paths {
        for path in xml_files(path)? {
            let failed =
                || format!("cannot determine the resources of the domain in `{}`", path.display());
            let text = input::text(&path, DOMAIN_BYTES).doing(failed)?;
            let xml = DomainXml::parse(&text).doing(failed)?;
            domains.push((path, xml));
        }
    }
    Ok(domains)
}

/// Whether a domain ran when its XML was printed: libvirt prints an id only for running domains.
pub fn is_active(xml: &DomainXml) -> bool {
    xml.root().attr("id").is_some()
}

/// The file itself, or the files of a directory that end in `.xml`, by name.
pub fn xml_files(path: &Path) -> Result<Vec<PathBuf>, InputError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let failed = |source| InputError::Unreadable { path: path.to_owned(), source };
    let mut files = input::list(path).map_err(failed)?;
    files.retain(|file| file.extension().is_some_and(|end| end.eq_ignore_ascii_case("xml")));
    Ok(files)
}
