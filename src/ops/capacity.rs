//! `capacity`: the guests that still fit on a host. Changes nothing.

use crate::error::Result;
use crate::guest::needs_template;
use crate::placement::{Capacity, Occupancy, capacity as counted, check_model};
use crate::request::Request;
use crate::taken::{Taken, taken_for_new};
use crate::topology::Topology;
use crate::world::World;
use gpuvm_core::metrics::{HostNumbers, host};
use std::time::SystemTime;

/// A request for a host's capacity.
#[derive(Debug, Clone)]
pub struct CapacityRequest {
    /// The kind of guest counted; its number of GPUs is replaced by each size.
    pub like: Request,
    /// The sizes; none: every size that the board offers.
    pub sizes: Vec<u32>,
    /// The source of the domains' occupancy.
    pub taken: Taken,
}

/// The guests that still fit on a host.
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
    /// The occupancy of the domains.
    pub held: Occupancy,
}

impl Fits {
    /// The numbers for monitoring. `kept_cores`: cores of every node that stay with the host.
    pub fn metrics(&self, kept_cores: u32) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        host(&HostNumbers {
            topology: &self.topology,
            held: &self.held,
            capacity: &self.capacity,
            kept_cores,
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("GPUVM_COMMIT").unwrap_or("unknown"),
            at_s: now.as_secs(),
        })
    }
}

/// Counts the guests that fit.
pub fn capacity(world: &World, wanted: &CapacityRequest) -> Result<Fits> {
    let topology = world.topology()?;
    if let Some(model) = &wanted.like.gpu_model {
        check_model(&topology, model)?;
    }
    let held = taken_for_new(world, &wanted.taken, &topology, wanted.sizes != [0])?;
    let mut capacity = counted(&topology, &held, &wanted.like, &wanted.sizes);
    capacity.warnings.extend(needs_template(&topology));
    let no_gpus = topology.without("GPU");
    let is_empty = held.domains.is_empty();
    Ok(Fits { capacity, is_empty, no_gpus, topology, held })
}
