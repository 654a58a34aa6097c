//! Guests: as they are planned, and as a hypervisor has them.

use crate::hypervisor::{DomainSummary, Hypervisor, HypervisorError, HypervisorErrorKind};
use crate::placement::{Occupancy, Placement};
use crate::request::{DomainName, Request};
use crate::topology::Topology;

/// A guest with its place and its name, and what they were made from.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The host.
    pub topology: Topology,
    /// What was wanted.
    pub request: Request,
    /// Where it goes.
    pub placement: Placement,
    /// Its name.
    pub name: DomainName,
    /// What was taken on the host.
    pub occupancy: Occupancy,
}

/// The domain of this name among those that are there.
pub fn find(hypervisor: &dyn Hypervisor, name: &str) -> Result<DomainSummary, HypervisorError> {
    let found = hypervisor.domains()?.into_iter().find(|row| row.name == name);
    found.ok_or_else(|| HypervisorError {
        kind: HypervisorErrorKind::NoDomain,
        doing: format!("find domain `{name}`"),
        message: format!("{} has no domain of this name", hypervisor.uri()),
    })
}
