//! Guests: as they are asked for and planned, and as a hypervisor has them.

mod name;
mod planned;
mod render;

pub use name::NameRequest;
pub use planned::Planned;
pub use render::{Extra, RenderError, path_text, render, template_file};

use crate::domain::guest::VirtType;
use crate::domain::wish::NicWish;
use crate::error::{Class, NoPlace, Result, classed};
use crate::hypervisor::{DomainSummary, Hypervisor, HypervisorError, HypervisorErrorKind};
use crate::placement::{Occupancy, Placement, nearest, plan};
use crate::request::{Request, Template};
use crate::shell::word;
use crate::storage::{StorageRequest, refuse_unfit};
use crate::taken::{Taken, taken};
use crate::topology::Topology;
use crate::world::World;
use std::path::PathBuf;

/// A guest that is asked for.
#[derive(Debug, Clone)]
pub struct GuestRequest {
    /// Its devices, size and place; what it says of the template is read from that.
    pub request: Request,
    /// Its name.
    pub name: NameRequest,
    /// The definition that it is made of; none: the one of the host's architecture.
    pub template: Option<PathBuf>,
    /// How it runs.
    pub virt: VirtType,
    /// Its NICs; none: those of the template.
    pub networks: Vec<NicWish>,
    /// Where what is taken is read from.
    pub taken: Taken,
}

/// Reads the host and what is taken on it, and finds a guest's place and name. `disks`: those of a guest whose definition is
/// written; none where it is only planned.
pub fn resolve(
    world: &World,
    wanted: &GuestRequest,
    disks: Option<&StorageRequest>,
) -> Result<Planned> {
    let mut request = wanted.request.clone();
    if let Some(path) = &wanted.template {
        let remaps_interrupts = template_file(path)?.can_remap_interrupts();
        request.template = Template { is_given: true, remaps_interrupts };
    }
    let topology = world.topology()?;
    let occupancy = taken(world, &wanted.taken)?;
    let placement = match place(&topology, &occupancy, &request) {
        Ok(placement) => placement,
        Err(refused) => {
            if let Some(disks) = disks {
                // What no other size mends is said first: sizes would be offered in vain.
                render::refuse_foreign(wanted, &topology)?;
                refuse_unfit(disks, &occupancy, world)?;
            }
            return Err(refused.into());
        }
    };
    let placement = match wanted.virt {
        VirtType::Kvm => placement,
        VirtType::Qemu => placement.emulated(),
    };
    let name = name::named(&wanted.name, &topology, &placement, &occupancy)?;
    Ok(Planned { topology, request, placement, name, occupancy })
}

/// Finds the guest's place.
fn place(
    topology: &Topology,
    occupancy: &Occupancy,
    request: &Request,
) -> Result<Placement, NoPlace> {
    plan(topology, occupancy, request).map_err(|error| {
        let nearest = nearest(topology, occupancy, request);
        NoPlace { error, request: Box::new(request.clone()), nearest }
    })
}

/// The domain of this name, which has to have a guest that can be asked for something; `so`: what else follows for it, as in
/// "so it has no address".
pub fn find_alive(hypervisor: &dyn Hypervisor, name: &str, so: &str) -> Result<DomainSummary> {
    let row = find(hypervisor, name)?;
    if row.state.has_guest() {
        return Ok(row);
    }
    let (is, hint) = match row.state.is_active() {
        true => ("has crashed", restart_hint(name)),
        false => ("does not run", format!("`gpuvm start {}` starts it", word(name))),
    };
    Err(classed(Class::WrongState, format!("domain `{name}` {is}, so {so}"), hint))
}

/// What helps where a guest has crashed and its process is kept.
pub fn restart_hint(name: &str) -> String {
    let name = word(name);
    format!("`gpuvm restart {name}` ends it and starts it again; `gpuvm stop {name}` only ends it")
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
