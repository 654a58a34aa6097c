//! Current users of the host's functions: from its topology and its domains, and for a live or
//! captured directory also from its processes.

use crate::bdf::Bdf;
use crate::error::Result;
use crate::function_users::{self, Use};
use crate::placement::Occupancy;
use crate::topology::Topology;
use crate::world::World;

/// The current users of functions and of those that share their IOMMU groups.
pub fn current_users(
    world: &World,
    topology: &Topology,
    held: &Occupancy,
    functions: &[Bdf],
) -> Result<Vec<Use>> {
    let all = function_users::with_groups(topology, functions);
    let mut uses = function_users::known(topology, held, &all);
    if let Some(root) = world.root()? {
        let seen = function_users::read(&root, topology, &all)?;
        if seen.hidden > 0 && root.is_live() {
            let hidden = seen.hidden;
            world.warning(&format!("{hidden} processes of others are not looked into"));
        }
        uses.extend(seen.uses);
    }
    Ok(uses)
}
