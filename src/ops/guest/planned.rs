//! A planned guest, as data.

use crate::placement::{Occupancy, Placement};
use crate::request::{DomainName, Request};
use crate::topology::Topology;

/// A guest with its placement and name, and the data they were derived from.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The host.
    pub topology: Topology,
    /// The request.
    pub request: Request,
    /// The placement.
    pub placement: Placement,
    /// Its name.
    pub name: DomainName,
    /// What was in use on the host.
    pub occupancy: Occupancy,
}
