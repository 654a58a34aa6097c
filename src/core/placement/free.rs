//! Free functions and cores.

use super::affinity::Homes;
use super::groups;
use super::taken::Taken;
use super::types::DeviceState;
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeSet};
use crate::occupancy::Occupancy;
use crate::topology::{DeviceKind, PciDevice, SetAside, Topology};

/// Why no guest gets an NVSwitch in the shared model, as words to follow its name.
pub const FABRIC_MANAGERS: &str = "stays with Fabric Manager, which sets up the NVLinks of guests";

/// Returns whether functions can be passed through now, and why not, as words to follow a
/// function's name.
pub fn device_states(
    topology: &Topology,
    held: &Occupancy,
    functions: &[Bdf],
) -> Vec<(DeviceState, Option<String>)> {
    let taken = Taken::new(topology, held);
    let aside = |bdf| {
        let device = topology.device(bdf)?;
        topology.set_aside(device).or_else(|| device.drive_share().map(SetAside::Share))
    };
    let is_extra = |bdf| {
        let kind = topology.device(bdf).map(PciDevice::kind);
        matches!(kind, Some(DeviceKind::Nic | DeviceKind::Nvme))
    };
    let state = |&bdf: &Bdf| match groups::block(topology, &taken, bdf) {
        None if topology.is_fabric_managers(bdf) => {
            (DeviceState::Host, Some(FABRIC_MANAGERS.to_owned()))
        }
        None if is_extra(bdf) && groups::beside_peer(topology, bdf).is_some() => {
            (DeviceState::Blocked, groups::beside_peer(topology, bdf))
        }
        None => match (groups::remains(topology, bdf), aside(bdf)) {
            (Some(why), _) => (DeviceState::Data, Some(why)),
            (None, Some(why)) => (DeviceState::Display, Some(why.why().into_owned())),
            (None, None) => (DeviceState::Free, None),
        },
        Some(block) => (block.state(), Some(block.why(1))),
    };
    functions.iter().map(state).collect()
}

/// Pcpus of cores of these nodes that a guest could have: no domain holds them, and none is among
/// the first `kept` cores of its node, which are reserved for the host.
pub fn idle_cores(topology: &Topology, held: &Occupancy, kept: u32, nodes: &NodeSet) -> CpuSet {
    let (homes, taken) = (Homes::new(topology, kept), Taken::new(topology, held));
    let seats = nodes.iter().flat_map(|node| homes.seats(node));
    let free = seats.filter(|seat| taken.is_free(seat.at));
    free.flat_map(|seat| seat.core.pcpus.iter()).collect()
}
