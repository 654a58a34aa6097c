//! Other passed-through functions of a guest: those bound for it and given back, the settings of
//! its virtual functions on their cards, and a running guest that gets or loses NICs and drives.

use super::{SetError, SetRequest, gpus, nics};
use crate::apply::{LET_GO_S, LiveStep, Step};
use crate::bdf::Bdf;
use crate::claim::{claim, give_back_some};
use crate::doctor;
use crate::domain::guest::{Bound, Guarded};
use crate::domain::live::Plugged;
use crate::domain::setting::Setting;
use crate::domain::{DomainEdit, DomainXml, Element};
use crate::error::{Coded as _, Error, Result, usage};
use crate::history::guest::set_guarded;
use crate::p2p;
use crate::partition;
use crate::recognise;
use crate::request::{DeviceWish, VfSettings};
use crate::shell::word;
use crate::storage::remains;
use crate::topology::{DeviceIdentity, KnownDevice, Topology};
use crate::tune::extra::Extra;
use crate::tune::subject::Subject;
use crate::tune::subjects::Subjects;
use crate::world::World;
use crate::{gpu_states, vfs, vgpu};
use gpuvm_core::placement::ExtraKind;
use gpuvm_core::tune::items::OtherFunctions;
use gpuvm_core::tune::kinds::Kinds;
use gpuvm_core::tune::{Change, ItemName, Tuned};
use std::collections::BTreeSet;

/// The functions that a definition gets, and those that it loses.
pub(crate) struct Moves {
    pub(crate) comes: Vec<Bdf>,
    pub(crate) gone: Vec<Bdf>,
}

impl Moves {
    pub(crate) fn between(before: &DomainXml, after: &DomainXml) -> Result<Moves> {
        let (had, has) = (before.held(false)?.devices, after.held(false)?.devices);
        let less = |all: &[Bdf], some: &[Bdf]| -> Vec<Bdf> {
            all.iter().copied().filter(|bdf| !some.contains(bdf)).collect()
        };
        Ok(Moves { comes: less(&has, &had), gone: less(&had, &has) })
    }

    /// Records in a definition the functions bound for a guest of ours, with these functions.
    pub(crate) fn rebind(
        &self,
        before: &DomainXml,
        after: &mut DomainXml,
        more: &[Bound],
        world: &World,
    ) -> Result<()> {
        recognise::record(world, before, after, &self.comes)?;
        if before.is_ours() {
            let mut bound: Vec<Bound> = before.bound()?;
            bound.retain(|bound| !self.gone.contains(&bound.bdf));
            bound.extend(more.iter().cloned());
            after.apply(&DomainEdit::Set { setting: Setting::Bound { bound } })?;
        }
        Ok(())
    }

    /// Whether none comes or goes.
    fn is_none(&self) -> bool {
        self.comes.is_empty() && self.gone.is_empty()
    }

    /// Whether GPUs or NVSwitches are among them.
    fn has_gpus(&self, kinds: &Kinds<'_>) -> bool {
        self.comes.iter().chain(&self.gone).any(|bdf| kinds.is_of_board(*bdf))
    }
}

/// The functions of a request in words of the command.
pub(super) fn words(functions: &OtherFunctions) -> Vec<String> {
    let mut words = Vec::new();
    for (kind, option) in
        [(ExtraKind::Nic, "nic"), (ExtraKind::Vf, "vf"), (ExtraKind::Nvme, "nvme")]
    {
        let settings = |nth: usize| {
            let one = functions.vf_settings.get(nth).filter(|_| kind == ExtraKind::Vf);
            one.map(VfSettings::to_string).unwrap_or_default()
        };
        match functions.of(kind) {
            None => {}
            Some(DeviceWish::Count(0)) => words.push(format!("--no-{option}")),
            Some(DeviceWish::Count(count)) => {
                words.push(format!("--{option} {count}{}", settings(0)));
            }
            Some(DeviceWish::Exact(bdfs)) => words.extend(
                bdfs.iter()
                    .enumerate()
                    .map(|(nth, bdf)| format!("--{option} {bdf}{}", settings(nth))),
            ),
        }
    }
    words
}

/// The root ports that functions of a running guest may get: those that are free in it, or become
/// free; `None` if it is off, or is not changed.
pub(super) fn ports(
    subject: &Subject,
    subjects: &Subjects,
    wanted: &SetRequest,
) -> Result<Option<BTreeSet<u8>>> {
    let Some(live) = subject.live.as_ref().filter(|_| !wanted.functions.is_kept()) else {
        return Ok(None);
    };
    let kinds = Kinds::new(subjects.topology(), &subject.xml);
    let is_left = |bdf: &Bdf| match kinds.extra(*bdf).and_then(|kind| wanted.functions.of(kind)) {
        Some(DeviceWish::Exact(named)) => !named.contains(bdf),
        Some(DeviceWish::Count(count)) => *count == 0,
        None => false,
    };
    let left = subject.xml.held(false)?.devices.into_iter().filter(is_left);
    let left: Vec<Plugged> = left.map(Plugged::Function).collect();
    let left: Vec<Element<'_>> = left.iter().filter_map(|device| device.find(live)).collect();
    Ok(Some(live.all_ports_without(&left)?))
}

/// The functions that a request names by address.
fn named(wanted: &SetRequest) -> Vec<Bdf> {
    let mut named = wanted.gpu_set.clone().unwrap_or_default();
    for kind in ExtraKind::ALL {
        if let Some(DeviceWish::Exact(functions)) = wanted.functions.of(kind) {
            named.extend(functions);
        }
    }
    named
}

/// The setting that a function belongs to.
fn item_of(kinds: &Kinds<'_>, bdf: Bdf) -> ItemName {
    match kinds.extra(bdf) {
        Some(ExtraKind::Nvme) => ItemName::Nvme,
        Some(ExtraKind::Nic) => ItemName::Nic,
        Some(ExtraKind::Vf) => ItemName::Vf,
        None if kinds.is_vgpu(bdf) => ItemName::Vgpu,
        None => ItemName::Gpus,
    }
}

/// Records the devices that are at the addresses which a request names, and which the guest has
/// already: another device in the place of one that is gone, or one that was not recorded.
fn accept(
    subject: &Subject,
    tuned: &mut Tuned,
    topology: &Topology,
    wanted: &SetRequest,
    world: &World,
) -> Result<()> {
    let named = named(wanted);
    let stale = subject.xml.stale_devices(&subject.xml.held(false)?.devices);
    if named.is_empty() && stale.is_empty() {
        return Ok(());
    }
    let (before, kinds) = (tuned.after.known_devices(), Kinds::new(topology, &subject.xml));
    recognise::record(world, &subject.xml, &mut tuned.after, &named)?;
    for KnownDevice { bdf, identity } in stale {
        let was = format!("record of {bdf} ({identity}), which it has no longer");
        tuned.changes.push(Change { item: item_of(&kinds, bdf), was, now: "none".to_owned() });
    }
    for KnownDevice { bdf, identity } in tuned.after.known_devices() {
        let was = before.iter().find(|one| one.bdf == bdf).map(|one| &one.identity);
        if was == Some(&identity) {
            continue;
        }
        let item = item_of(&kinds, bdf);
        let was = was.map_or_else(|| "not recorded".to_owned(), DeviceIdentity::to_string);
        let (was, now) = (format!("{bdf} ({was})"), format!("{bdf} ({identity})"));
        tuned.changes.push(Change { item, was, now });
    }
    Ok(())
}

/// The data that a guest may overwrite on functions that it gets. The data on its own drive, which
/// has moved, is its own.
fn losses(name: &str, gets: &[Bdf], subjects: &Subjects) -> Vec<String> {
    let own = subjects.occupancy().domains.iter().filter(|held| held.domain == name);
    let is_own = |bdf: &Bdf| own.clone().any(|held| held.is_moved_here(*bdf));
    let foreign: Vec<Bdf> = gets.iter().copied().filter(|bdf| !is_own(bdf)).collect();
    remains(subjects.topology(), &foreign)
}

/// The functions that a request names and the guest has already, of which another device is there
/// now: refused like those that it gets, and their data is named.
fn refuse_replaced(
    subject: &Subject,
    extra: &mut Extra,
    subjects: &Subjects,
    named: &[Bdf],
    world: &World,
) -> Result<()> {
    let (name, topology) = (&subject.name, subjects.topology());
    let new = recognise::accepted(world, &subject.xml, named)?;
    if new.is_empty() {
        return Ok(());
    }
    recognise::refuse_of_others(name, &new, subjects.occupancy())?;
    // Functions are bound for it at its start.
    claim(name, &new, topology, subjects.occupancy(), world)?;
    extra.losses.extend(losses(name, &new, subjects));
    Ok(())
}

/// Refuses functions that cannot be added or removed now, and those by which others reach the
/// NVLinks of the guest; binds added ones, returns removed ones, and sets up its virtual functions.
pub(super) fn settle(
    subject: &Subject,
    tuned: &mut Tuned,
    extra: &mut Extra,
    (subjects, wanted): (&Subjects, &SetRequest),
    world: &World,
) -> Result<()> {
    let moves = Moves::between(&subject.xml, &tuned.after)?;
    let sets = wanted.functions.vfs.is_some();
    refuse_replaced(subject, extra, subjects, &named(wanted), world)?;
    let vgpus = vgpu::claim::lost(&subject.xml, &tuned.after)?;
    if moves.is_none() && !sets && vgpus.is_empty() && tuned.after.mdevs() == subject.xml.mdevs() {
        return accept(subject, tuned, subjects.topology(), wanted, world);
    }
    let (name, topology) = (subject.name.clone(), subjects.topology());
    let has_gpus = moves.has_gpus(&Kinds::new(topology, &subject.xml));
    let moves_some = !moves.is_none() || !wanted.vgpu.is_kept();
    if moves_some && subject.running && (has_gpus || subject.live.is_none()) {
        return Err(runs(name, has_gpus, wanted));
    }
    if has_gpus {
        gpus::allowed(subjects, subject, tuned.placement.as_ref(), wanted, world)?;
        // Its active partition ends before anything is bound for it.
        extra.first.splice(0..0, partition::to_change(world, &subject.xml, &tuned.after)?);
    } else {
        doctor::before(world, topology, subjects.occupancy(), &moves.comes, &[])?;
    }
    let claimed = claim(&name, &moves.comes, topology, subjects.occupancy(), world)?;
    extra.losses.extend(losses(&name, &moves.comes, subjects));
    extra.first.extend(claimed.steps);
    let is_ours = subject.xml.is_ours();
    moves.rebind(&subject.xml, &mut tuned.after, &claimed.bound, world)?;
    recognise::record(world, &subject.xml, &mut tuned.after, &named(wanted))?;
    let back = set_up(subject, tuned, extra, (topology, wanted, is_ours), world)?;
    if let Some(live) = &subject.live {
        extra.last.extend(plugged(live, &tuned.after, &moves, wanted)?);
        let at_once = [ItemName::Nic, ItemName::Vf, ItemName::Nvme, ItemName::Request];
        let later = tuned.changes.iter().filter(|change| !at_once.contains(&change.item));
        let later = later.filter(|change| change.item != ItemName::Network);
        extra.waits = Some(later.map(|change| change.item.to_string()).collect());
    }
    extra.last.extend(give_back_some(&subject.xml, &moves.gone, world)?);
    extra.last.extend(gpu_states::once_taken(world, &subject.xml, &moves.gone)?);
    let cleared = vgpu::claim::give_back_these(&subject.xml, &vgpus, world)?;
    if world.has_guests_here()? {
        vgpu::claim::refuse_uncleared(&subject.xml, &tuned.after, &cleared, topology)?;
    }
    extra.last.extend(cleared);
    if subject.live.is_some() {
        extra.last.extend(p2p::claim::once_taken(&tuned.after, world)?);
    }
    extra.last.extend(back);
    Ok(())
}

/// The refusal of devices that a running guest cannot get or lose.
fn runs(name: String, has_gpus: bool, wanted: &SetRequest) -> Error {
    let stop = format!("`gpuvm stop {}` first", word(&name));
    let what = match () {
        () if has_gpus => "GPUs",
        () if !wanted.vgpu.is_kept() => "vGPUs",
        () => "its devices",
    };
    let live = format!("`{}` changes it at once", wanted.line(true));
    let is_live = !has_gpus && nics::not_live(wanted).is_none();
    let hint = if is_live { format!("{live}; or {stop}") } else { stop };
    SetError::Runs { name, what }.hint(hint)
}

/// Records the settings of its virtual functions on their cards, and applies them before a running
/// guest gets them; others are applied at its start. Returns the steps for those that it loses.
fn set_up(
    subject: &Subject,
    tuned: &mut Tuned,
    extra: &mut Extra,
    (topology, wanted, is_ours): (&Topology, &SetRequest, bool),
    world: &World,
) -> Result<Vec<Step>> {
    if !is_ours {
        let guards = wanted.functions.vf_settings.iter().any(|one| !one.guard.is_empty());
        if guards {
            let message = "gpuvm did not make the guest, so trust= and spoof= are not kept for it";
            let hint = "leave them out; `ip link set dev NETDEV vf N trust on` sets them by hand";
            return Err(usage(message, hint));
        }
        return Ok(Vec::new());
    }
    let record = tuned.after.record()?.filter(|_| wanted.functions.vfs.is_some());
    let Some(record) = record else { return Ok(Vec::new()) };
    let (had, devices) = (subject.xml.guarded()?, tuned.after.held(false)?.devices);
    let changed = vfs::reclaim(&devices, &record.request.extras, had.clone(), topology, world)?;
    if changed.guarded == had {
        return Ok(Vec::new());
    }
    let guarded = changed.guarded;
    let setting = Setting::Guarded { guarded: guarded.clone() };
    tuned.after.apply(&DomainEdit::Set { setting })?;
    let hypervisor = world.hypervisor()?;
    if let Some(uuid) = subject.xml.uuid().filter(|_| hypervisor.has_guests_here()) {
        let of = (uuid.as_str(), subject.name.as_str(), hypervisor.uri());
        extra.first.extend(set_guarded(world.state(), of, &guarded)?);
    }
    if subject.live.is_some() {
        extra.first.extend(changed.steps);
    }
    let is_gone = |one: &Guarded| !devices.contains(&one.bdf);
    let gone: Vec<Guarded> = had.into_iter().filter(is_gone).collect();
    vfs::give_back_these(&subject.xml.uuid().unwrap_or_default(), gone, world)
}

/// The steps that give a running guest the functions of its definition. Refuses other settings of
/// virtual functions that stay.
fn plugged(
    live: &DomainXml,
    after: &DomainXml,
    moves: &Moves,
    wanted: &SetRequest,
) -> Result<Vec<Step>> {
    let name = &wanted.name;
    let vfs = wanted.functions.vfs.is_some().then(|| after.held(false)).transpose()?;
    for bdf in vfs.into_iter().flat_map(|held| held.devices) {
        let part = |of: &DomainXml, child: &str| {
            let element = Plugged::Function(bdf).find(of)?;
            Some(
                element
                    .find(child)?
                    .attr(if child == "mac" { "address" } else { "id" })?
                    .into_owned(),
            )
        };
        let differs = |child: &str| part(live, child) != part(after, child);
        let is_kept = Plugged::Function(bdf).find(live).is_some();
        if is_kept && (differs("mac") || differs("vlan/tag")) {
            let what = format!("the MAC address or VLAN of virtual function {bdf}");
            let hint = format!("`{}` changes its next start", wanted.line(false));
            return Err(SetError::NotLive { name: name.clone(), what }.hint(hint));
        }
    }
    let gone = moves.gone.iter().filter_map(|&bdf| {
        let device = Plugged::Function(bdf);
        let xml = device.find(live)?.xml().to_owned();
        Some(Step::Live(LiveStep::DetachDevice {
            name: name.clone(),
            device,
            wait_s: LET_GO_S,
            xml,
        }))
    });
    let comes = moves.comes.iter().filter_map(|&bdf| {
        let device = Plugged::Function(bdf);
        let xml = device.find(after)?.xml().to_owned();
        Some(Step::Live(LiveStep::AttachDevice { name: name.clone(), device, xml }))
    });
    Ok(gone.chain(comes).collect())
}
