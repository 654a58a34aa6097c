//! Whether a guest can get a function of the host now: the one answer for all lists. The planner
//! decides; the host's users are added, whom a plan does not know.

use crate::bdf::Bdf;
use crate::error::Result;
use crate::function_users::{Take, Use};
use crate::placement::{DeviceState, Occupancy, device_states};
use crate::topology::{DeviceKind, Topology};
use crate::world::World;
use gpuvm_core::versions::Stack;

/// Whether a function is available.
pub(crate) struct Availability {
    /// Its state.
    pub(crate) state: DeviceState,
    /// Why it is not available, to be read after its address; empty: it is.
    pub(crate) why: Vec<String>,
    /// The planner's words, to be read after its address: also why only its address takes it, or
    /// only with others, although it is available.
    pub(crate) said: Option<String>,
}

impl Availability {
    /// Judges a function; `uses` has those of all members of its IOMMU group. `nothing`: why no
    /// guest gets any function ([`nothing_passes`]).
    pub(crate) fn of(
        topology: &Topology,
        held: &Occupancy,
        (uses, nothing): (&[Use], Option<&str>),
        bdf: Bdf,
    ) -> Availability {
        let states = device_states(topology, held, &[bdf]).pop();
        let (mut state, mut said) = states.unwrap_or((DeviceState::Free, None));
        if state == DeviceState::Free {
            said = together(topology, bdf);
        }
        let take = Take::new(topology, uses, &[bdf]);
        let used = take.hindrances.into_iter().filter(|found| found.kind.is_some());
        let mut why: Vec<String> = used.map(|found| found.why).collect();
        match state {
            DeviceState::Free | DeviceState::Display => {
                let lacks_group = lacks_group(topology, bdf);
                if !why.is_empty() {
                    state = DeviceState::Host;
                } else if nothing.is_some() {
                    state = DeviceState::Barred;
                } else if lacks_group.is_some() {
                    state = DeviceState::Blocked;
                }
                why.extend(nothing.map(str::to_owned));
                why.extend(lacks_group);
                said = why.first().cloned().or(said);
            }
            DeviceState::Held => {}
            // The users say the same, with more detail.
            DeviceState::Host | DeviceState::Blocked | DeviceState::Data if !why.is_empty() => {}
            _ => why.splice(0..0, said.clone()).for_each(drop),
        }
        Availability { state, why, said }
    }
}

/// Why no guest gets any function of a host, to follow its address: the kernel has no VFIO groups,
/// without which its libvirt passes none through. `None` if nothing stands against it, as far as is
/// known. `assume`: libvirt and QEMU that are named for a recorded host.
pub(crate) fn nothing_passes(
    world: &World,
    topology: &Topology,
    assume: Option<Stack>,
) -> Result<Option<String>> {
    if !topology.lacks_vfio_groups() {
        return Ok(None);
    }
    let lack = world.way(topology, world.stack(topology, assume))?.groups();
    Ok(lack.map(|lack| format!("cannot be passed through: {}", lack.what)))
}

/// That a GPU goes to a guest only with the other GPUs of its IOMMU group.
fn together(topology: &Topology, bdf: Bdf) -> Option<String> {
    let is_gpu = |bdf: Bdf| topology.device(bdf).is_some_and(|d| d.kind() == DeviceKind::Gpu);
    let group = topology.iommu_group(bdf).filter(|_| is_gpu(bdf))?;
    let others = group.members.iter().filter(|other| **other != bdf && is_gpu(**other));
    let others: Vec<String> = others.map(ToString::to_string).collect();
    let number = group.number;
    (!others.is_empty()).then(|| {
        format!("is free, only together with {} (IOMMU group {number})", others.join(", "))
    })
}

/// Why a function without an IOMMU group is not available.
fn lacks_group(topology: &Topology, bdf: Bdf) -> Option<String> {
    if topology.iommu_group(bdf).is_some() {
        return None;
    }
    let is_known = topology.machine().iommu.is_some()
        || topology.devices().iter().any(|device| device.iommu_group.is_some());
    let why = if is_known {
        "has no IOMMU group: the IOMMU is off or absent"
    } else {
        "has no IOMMU group in this record, so whether it can be passed through is not known"
    };
    Some(why.to_owned())
}
