//! `capacity`: what still fits on a host. Changes nothing.

use crate::error::Result;
use crate::guest::needs_template;
use crate::placement::{Capacity, Occupancy, capacity as counted, check_model};
use crate::request::Request;
use crate::taken::{Taken, taken_for_new};
use crate::topology::Topology;
use crate::world::World;

/// A request for a host's capacity.
#[derive(Debug, Clone)]
pub struct CapacityRequest {
    /// The kind of guest counted; its number of GPUs is replaced by each size.
    pub like: Request,
    /// The sizes; none: every size that the board offers.
    pub sizes: Vec<u32>,
    /// The source of what domains hold.
    pub taken: Taken,
}

/// What still fits on a host.
#[derive(Debug)]
pub struct Fits {
    /// How many guests of which sizes.
    pub capacity: Capacity,
    /// Whether no domain was there.
    pub is_empty: bool,
    /// The text for a host without GPUs.
    pub no_gpus: String,
    /// The host.
    pub topology: Topology,
    /// What domains hold.
    pub held: Occupancy,
}

/// Counts the guests that fit.
pub fn capacity(world: &World, wanted: &CapacityRequest) -> Result<Fits> {
    let topology = world.topology()?;
    if let Some(model) = &wanted.like.gpu_model {
        check_model(&topology, model)?;
    }
    let held = taken_for_new(world, &wanted.taken, (&topology, wanted.sizes != [0]))?;
    let mut capacity = counted(&topology, &held, &wanted.like, &wanted.sizes);
    capacity.warnings.extend(needs_template(&topology));
    let no_gpus = topology.without("GPU");
    let is_empty = held.domains.is_empty();
    Ok(Fits { capacity, is_empty, no_gpus, topology, held })
}
