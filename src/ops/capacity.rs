//! `capacity`: the guests that still fit on a host. Changes nothing.

use crate::error::Result;
use crate::guest::{
    BY_GROUPS, needs_template, refuse_lacks, refuse_old_libvirt, refuse_without_groups,
};
use crate::placement::{
    Capacity, Occupancy, VgpuCapacity, capacity as counted, check_model, offered, vgpu_guests,
};
use crate::request::Request;
use crate::taken::{Taken, taken_for_new};
use crate::topology::Topology;
use crate::world::World;
use gpuvm_core::iommufd::Lack;
use gpuvm_core::metrics::{HostNumbers, host};
use std::time::SystemTime;

/// A request for a host's capacity.
#[derive(Debug, Clone)]
pub struct CapacityRequest {
    /// The kind of guest counted; its number of GPUs is replaced by each size.
    pub like: Request,
    /// The sizes; none for every size that the board offers.
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
    let topology = world.topology_with(wanted.taken.assume)?;
    if let Some(model) = &wanted.like.gpu_model {
        check_model(&topology, model)?;
    }
    let held = taken_for_new(world, &wanted.taken, &topology, wanted.sizes != [0])?;
    let (sizes, left_out) = joined(world, wanted, &topology)?;
    let like = Request { vgpu: None, ..wanted.like.clone() };
    let mut capacity = counted(&topology, &held, &like, &sizes);
    if let Some(vgpu) = &wanted.like.vgpu {
        let of_type = vgpu_guests(&topology, &held, &like, vgpu)?;
        refuse_apart(world, wanted, &topology, &of_type)?;
        capacity.vgpus = vec![of_type];
    }
    capacity.warnings.extend(left_out);
    capacity.warnings.extend(needs_template(&topology));
    let no_gpus = topology.without("GPU");
    let is_empty = held.domains.is_empty();
    Ok(Fits { capacity, is_empty, no_gpus, topology, held })
}

/// Returns the sizes to count (`None` for all that the board offers), and which others there are
/// whose devices could not reach each other by iommufd. Refuses iommufd as `plan` does.
fn joined(
    world: &World,
    wanted: &CapacityRequest,
    topology: &Topology,
) -> Result<(Vec<u32>, Option<String>)> {
    let CapacityRequest { like, sizes, taken } = wanted;
    if !like.is_by_iommufd() && !topology.lacks_vfio_groups() {
        return Ok((sizes.clone(), None));
    }
    let way = world.way(topology, world.stack(topology, taken.assume))?;
    refuse_without_groups(&way)?;
    if !like.is_by_iommufd() {
        return Ok((sizes.clone(), None));
    }
    let gpus: Vec<_> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let mut lacks = way.lacks(true, &gpus);
    let nics = like.extras.nics.number() + like.extras.vfs.number();
    let apart = |gpus: u32| way.lack_among(gpus as usize, nics);
    let needs_it = topology.has_coherent_gpus() && sizes[..] != [0];
    // A lack of all guests comes alone, unless one size was named: `plan` does the same.
    if sizes.is_empty() && !lacks.is_empty() {
        refuse_lacks(&lacks, needs_it)?;
    }
    let asked = if sizes.is_empty() { offered(topology) } else { sizes.iter().copied().collect() };
    let (out, fit): (Vec<u32>, Vec<u32>) = asked.into_iter().partition(|&n| apart(n).is_some());
    let first = out.first().and_then(|&gpus| apart(gpus));
    // Guests with vGPUs are judged by these, and have no whole GPUs.
    if like.vgpu.is_some() && sizes.is_empty() {
        return Ok((if fit.is_empty() { vec![0] } else { fit }, None));
    }
    if fit.is_empty() || !sizes.is_empty() {
        lacks.extend(first);
        return refuse_lacks(&lacks, needs_it).map(|()| (sizes.clone(), None));
    }
    let out = out.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let left_out = first.map(|Lack { what, remedy, .. }| {
        format!("guests with {out} GPUs are not counted: {what}; {remedy}, and {BY_GROUPS}")
    });
    Ok((fit, left_out))
}

/// Refuses vGPUs that libvirt is too old for, and guests whose vGPUs and NICs could not reach each
/// other by iommufd, as `plan` does.
/// Mediated devices stay with their groups and do not count.
fn refuse_apart(
    world: &World,
    wanted: &CapacityRequest,
    topology: &Topology,
    vgpus: &VgpuCapacity,
) -> Result<()> {
    let CapacityRequest { like, taken, .. } = wanted;
    let is_function = vgpus.type_id.parse::<u32>().is_ok();
    if !like.is_by_iommufd() && !is_function {
        return Ok(());
    }
    let way = world.way(topology, world.stack(topology, taken.assume))?;
    if is_function {
        refuse_old_libvirt(&way)?;
    }
    if !like.is_by_iommufd() {
        return Ok(());
    }
    let of_each = vgpus.guests.as_ref().filter(|_| is_function).map_or(0, |each| each.vgpus);
    let nics = like.extras.nics.number() + like.extras.vfs.number();
    let lack: Vec<Lack> = way.lack_among(of_each as usize, nics).into_iter().collect();
    refuse_lacks(&lack, false)
}
