//! Domains by name.

use crate::error::{Class, Refusal};
use crate::hypervisor::{DomainSummary, Hypervisor, HypervisorError};

/// Finds the domain of this name.
pub fn find(hypervisor: &dyn Hypervisor, name: &str) -> Result<DomainSummary, HypervisorError> {
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

/// The hint of a name that no domain has.
pub const LISTED: &str = "`gpuvm list` shows the domains that are there";

/// The error that none of these domains has this name.
pub fn no_domain(name: &str, rows: &[DomainSummary]) -> HypervisorError {
    HypervisorError::no_domain(name, rows.iter().map(|row| row.name.as_str()))
}
