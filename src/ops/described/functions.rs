//! Passed-through NICs, virtual functions and NVMe drives of a running guest of a file, which it
//! gets without a restart where it has free root ports.

use super::{AppliedGuest, DescribedGuest, GuestAction, resized};
use crate::error::Result;
use crate::request::Request;
use crate::set::{SetRequest, set};
use crate::world::World;
use gpuvm_core::guest::{GuestDifference, Opt};
use gpuvm_core::tune::Item;
use gpuvm_core::tune::items::OtherFunctions;

const OPTIONS: [Opt; 3] = [Opt::Nic, Opt::Vf, Opt::Nvme];

/// The functions that a guest of this request gets, of the kinds that differ.
pub(super) fn changed(request: &Request, differs: impl Fn(Opt) -> bool) -> OtherFunctions {
    let extras = &request.extras;
    let [nic, vf, nvme] = OPTIONS.map(differs);
    OtherFunctions {
        nics: nic.then(|| extras.nics.clone()),
        vfs: vf.then(|| extras.vfs.clone()),
        vf_settings: if vf { extras.vf_settings.clone() } else { Vec::new() },
        nvmes: nvme.then(|| extras.nvmes.clone()),
        nic_near: (nic || vf).then_some(extras.nic_near),
        nvme_near: nvme.then_some(extras.nvme_near),
        ports: None,
    }
}

/// Whether all that differs of a running guest is its functions, and they can change at once.
pub(super) fn is_live(
    world: &World,
    guest: &DescribedGuest,
    differences: &[GuestDifference],
) -> Result<bool> {
    if differences.iter().any(|one| !OPTIONS.contains(&one.option)) {
        return Ok(false);
    }
    let mut found = AppliedGuest::new(guest.name.as_str(), GuestAction::Change);
    found.differences = differences.to_vec();
    let wanted = resized(guest, &found, &world.topology()?);
    Ok(wanted.is_some_and(|wanted| at_once(world, &wanted).is_some()))
}

/// The change of a running guest that gives it the functions at once, if that is all that is
/// wanted; `None` if it takes a restart.
pub(super) fn at_once(world: &World, wanted: &SetRequest) -> Option<SetRequest> {
    let SetRequest { vcpus, max_vcpus, memory, gpus, gpu_set, functions, networks, .. } = wanted;
    let is_more = vcpus.is_some()
        || max_vcpus.is_some()
        || memory.is_some()
        || gpus.is_some()
        || gpu_set.is_some()
        || !wanted.vgpu.is_kept()
        || networks.is_some()
        || wanted.huge_pages != Item::Keep;
    if is_more || functions.is_kept() {
        return None;
    }
    let live = SetRequest { live: true, ..wanted.clone() };
    set(world, &live).is_ok().then_some(live)
}
