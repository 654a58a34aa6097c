//! Domains by name.

use crate::domain::{DomainXml, DomainXmlError};
use crate::error::{Class, Error, Refusal, Result, classed};
use crate::hypervisor::{DomainSummary, Hypervisor, HypervisorError};
use crate::world::World;
use std::path::PathBuf;

/// Finds the domain of this name.
pub fn find(
    hypervisor: &dyn Hypervisor,
    name: &str,
) -> std::result::Result<DomainSummary, HypervisorError> {
    let mut rows = hypervisor.domains()?;
    match rows.iter().position(|row| row.name == name) {
        Some(at) => Ok(rows.swap_remove(at)),
        None => Err(no_domain(name, &rows)),
    }
}

/// The same for a verb about several domains or guests, whose name is in a list of its own.
pub fn not_found(name: &str, rows: &[DomainSummary]) -> Refusal {
    Refusal::new(Class::NotFound, no_domain(name, rows).to_string(), LISTED)
}

/// Refuses a guest whose recorded request this program does not understand.
pub(crate) fn refuse_unread(xml: &DomainXml) -> Result<()> {
    match xml.unread_request() {
        None => Ok(()),
        Some(error) => Err(unread(xml, &error)),
    }
}

/// The error that the request of a guest cannot be read.
fn unread(xml: &DomainXml, error: &DomainXmlError) -> Error {
    let name = xml.name();
    let message = format!("gpuvm made domain `{name}`, and its record cannot be read: {error}");
    classed(Class::Refused, message, unread_hint(xml))
}

/// The hint of a record that this program does not understand.
pub(crate) fn unread_hint(xml: &DomainXml) -> &'static str {
    if xml.has_whole_request() {
        "a later gpuvm may have made it: that one, or a newer one, reads it"
    } else if xml.has_request() {
        "an edit has damaged <gpuvm:request>; a backup of the definition has it"
    } else {
        "an edit has removed <gpuvm:request>; a backup of the definition has it"
    }
}

/// The hint of a name that no domain has.
pub const LISTED: &str = "`gpuvm list` shows the domains that are there";

/// The same where these definitions are all that a recorded host has of its domains.
pub fn hint_of_domains(world: &World, domain_xml: &[PathBuf]) -> &'static str {
    if world.is_recorded() && domain_xml.is_empty() {
        "add --domain-xml PATH with the domain's definition"
    } else {
        LISTED
    }
}

/// The error that none of these domains has this name.
pub fn no_domain(name: &str, rows: &[DomainSummary]) -> HypervisorError {
    HypervisorError::no_domain(name, rows.iter().map(|row| row.name.as_str()))
}
