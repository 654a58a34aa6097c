//! A guest with its place, as data.

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
