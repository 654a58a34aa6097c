//! More vCPUs of a running guest of a file, which it gets without a restart where it has room.

use super::{AppliedGuest, DescribedGuest, GuestAction, resized};
use crate::apply::{LiveStep, Step};
use crate::domain::DomainXml;
use crate::error::Result;
use crate::guest::still;
use crate::hypervisor::{DomainSummary, Hypervisor, XmlOf};
use crate::set::{SetRequest, set};
use crate::world::World;
use gpuvm_core::domain::claims::Claims;
use gpuvm_core::guest::{GuestDifference, Opt};
use gpuvm_core::tune::Item;

const OPTION: Opt = Opt::Vcpus;

/// Whether all that differs of a running guest is that it gets more vCPUs, and it can at once.
pub(super) fn is_live(
    world: &World,
    guest: &DescribedGuest,
    differences: &[GuestDifference],
) -> Result<bool> {
    if differences.iter().any(|one| one.option != OPTION) {
        return Ok(false);
    }
    let mut found = AppliedGuest::new(guest.name.as_str(), GuestAction::Change);
    found.differences = differences.to_vec();
    let wanted = resized(guest, &found, &world.topology()?);
    Ok(wanted.is_some_and(|wanted| at_once(world, &wanted).is_some()))
}

/// The command that resumes a paused guest, if the only difference then is that it gets more vCPUs
/// for which it has room.
pub(super) fn wake(
    summary: &DomainSummary,
    guest: &DescribedGuest,
    differences: &[GuestDifference],
    hypervisor: &dyn Hypervisor,
) -> Result<Option<String>> {
    let Some((_, wake)) = still(summary.state, &summary.name) else { return Ok(None) };
    let request = &guest.create.guest.request;
    let vcpus = request.vcpus_at_start.or(request.vcpus);
    let Some(vcpus) = vcpus.filter(|_| differences.iter().all(|one| one.option == OPTION)) else {
        return Ok(None);
    };
    let live = DomainXml::parse(&hypervisor.xml(&summary.name, XmlOf::Live)?)?;
    Ok(has_room(&live, vcpus).then_some(wake))
}

/// Whether a running guest has fewer vCPUs, and room for so many.
fn has_room(live: &DomainXml, vcpus: u32) -> bool {
    let claims = Claims::read(live);
    claims.plugged.len() < vcpus as usize && vcpus <= claims.vcpus.value
}

/// Whether the only difference of a running guest from its next start, of these vCPUs, is that it
/// has fewer, and `apply` gives it the rest at once.
pub(super) fn comes_at_once(
    runs: &[GuestDifference],
    summary: &DomainSummary,
    live: &DomainXml,
    vcpus: u32,
) -> bool {
    let is_still = still(summary.state, &summary.name).is_some();
    !is_still && runs.iter().all(|one| one.option == OPTION) && has_room(live, vcpus)
}

/// The change of a running guest that gives it more vCPUs at once, if that is all that is wanted;
/// `None` if it takes a restart, also to take some, which its kernel may refuse.
pub(super) fn at_once(world: &World, wanted: &SetRequest) -> Option<SetRequest> {
    let SetRequest { max_vcpus, memory, gpus, gpu_set, functions, networks, huge_pages, .. } =
        wanted;
    let is_more = max_vcpus.is_some()
        || memory.is_some()
        || gpus.is_some()
        || gpu_set.is_some()
        || networks.is_some()
        || !functions.is_kept()
        || *huge_pages != Item::Keep;
    if is_more {
        return None;
    }
    let live = SetRequest { live: true, ..wanted.clone() };
    let steps = set(world, &live).ok()?.steps();
    let takes = |step: &Step| match step {
        Step::Live(LiveStep::PlugVcpus { vcpus, was, .. }) => vcpus < was,
        _ => false,
    };
    (!steps.iter().any(takes)).then_some(live)
}
