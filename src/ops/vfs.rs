//! The settings of a guest's virtual functions on their cards, before it starts and after it is
//! removed.
//!
//! libvirt sets the MAC address and VLAN of each at every start and reverts them at every stop,
//! over the card's network device, which must be up. It does not support trust and spoof check:
//! gpuvm's steps set them before the guest starts, and `delete` restores the values from before the
//! guest was created, which are in its metadata.

use crate::apply::nic::{NicStep, boot, guard};
use crate::apply::{Step, owner};
use crate::bdf::Bdf;
use crate::cards::{functions_of, link_up};
use crate::domain::guest::Guarded;
use crate::domain::nic_request::NicWish;
use crate::domain::{DomainXml, pf_of_nic};
use crate::error::{Class, Coded, Result, classed};
use crate::fsroot::FsRoot;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::machine::command_there;
use crate::hypervisor::network::VfPool;
use crate::placement::Occupancy;
use crate::request::{Extras, Guard, Request, VfSettings};
use crate::shell::word;
use crate::topology::{DeviceKind, PciDevice, Sriov, Topology};
use crate::world::World;
use std::collections::BTreeSet;

/// The reason a guest does not get its virtual functions.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "vf-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum VfsError {
    /// The card of the virtual function has no Ethernet device of the host.
    #[error(
        "{bdf} cannot be configured: its card {pf} has no Ethernet device on the host, through \
         which that is done"
    )]
    NoNetdev { bdf: String, pf: String },
    /// The network would hand out a virtual function that another guest has by its address.
    #[error(
        "network `{network}` would hand out {bdf}, which domain `{domain}` names by its PCI address"
    )]
    HandedOut { network: String, bdf: Bdf, domain: String },
    /// The network has fewer virtual functions left.
    #[error(
        "requested {asked} virtual {} of network `{network}`, only {free} of {all} are left",
        if *asked == 1 { "function" } else { "functions" }
    )]
    Short { network: String, asked: usize, free: usize, all: usize },
}

impl Coded for VfsError {}

/// The preparation of a guest's virtual functions before it starts.
#[derive(Debug, Default)]
pub struct VfClaim {
    /// The steps.
    pub steps: Vec<Step>,
    /// The settings they make.
    pub guarded: Vec<Guarded>,
}

/// The network device of a virtual function's card, and its number there; none if not known.
fn place(topology: &Topology, bdf: Bdf) -> Option<(String, u32)> {
    let pf = pf_of_nic(topology, bdf)?;
    let netdev = pf.net.as_ref()?.netdevs.first()?.clone();
    let number = functions_of(topology, pf.bdf).iter().position(|vf| vf.bdf == bdf)?;
    Some((netdev, u32::try_from(number).ok()?))
}

/// The steps that the virtual functions among a guest's devices need for its request. Refuses
/// settings for one whose card has no network device, which is needed to set them.
pub fn claim(
    devices: &[Bdf],
    request: &Request,
    topology: &Topology,
    world: &World,
) -> Result<VfClaim> {
    let mut claim = VfClaim::default();
    let mut wishes = Vec::new();
    for &bdf in devices {
        let Some(Sriov::Vf { pf }) = topology.device(bdf).and_then(|vf| vf.sriov.clone()) else {
            continue;
        };
        let settings = request.extras.settings_of(bdf);
        refuse_unset((bdf, pf), &settings, topology)?;
        wishes.push((bdf, settings.guard));
    }
    let set = wishes.iter().find(|(_, guard)| !guard.is_empty()).map(|(bdf, _)| *bdf);
    refuse_there("", set, "create ...", world)?;
    claim.steps = cards_up(wishes.iter().map(|(bdf, _)| *bdf), topology, world)?;
    for (bdf, to) in wishes.into_iter().filter(|(_, guard)| !guard.is_empty()) {
        let was = now(bdf, topology, world)?.within(to);
        claim.steps.extend(step(bdf, to, was, false, topology));
        claim.guarded.push(Guarded { bdf, to, was });
    }
    Ok(claim)
}

/// The settings of the virtual functions among a guest's devices once it gets others, for its
/// record, and the steps that make those that are new; `had`: those that it has. Refuses as
/// [`claim`] does.
pub fn reclaim(
    devices: &[Bdf],
    extras: &Extras,
    had: Vec<Guarded>,
    topology: &Topology,
    world: &World,
) -> Result<VfClaim> {
    let mut change = VfClaim { steps: Vec::new(), guarded: had };
    change.guarded.retain(|one| devices.contains(&one.bdf));
    let mut wishes = Vec::new();
    for &bdf in devices {
        let Some(Sriov::Vf { pf }) = topology.device(bdf).and_then(|vf| vf.sriov.clone()) else {
            continue;
        };
        let settings = extras.settings_of(bdf);
        refuse_unset((bdf, pf), &settings, topology)?;
        let old = change.guarded.iter().find(|one| one.bdf == bdf);
        if !settings.guard.is_empty() && old.is_none_or(|old| old.to != settings.guard) {
            wishes.push((bdf, settings.guard));
        }
    }
    refuse_there("", wishes.first().map(|(bdf, _)| *bdf), "set ...", world)?;
    change.steps = cards_up(devices.iter().copied(), topology, world)?;
    for (bdf, to) in wishes {
        let now = now(bdf, topology, world)?;
        let at = change.guarded.iter().position(|one| one.bdf == bdf);
        let old = at.map(|at| change.guarded.remove(at).was).unwrap_or_default();
        // Its values from before the guest had it stay known.
        let was = Guard { trust: old.trust.or(now.trust), spoof: old.spoof.or(now.spoof) };
        change.steps.extend(step(bdf, to, now.within(to), false, topology));
        change.guarded.push(Guarded { bdf, to, was: was.within(to) });
    }
    Ok(change)
}

/// Refuses settings of a virtual function whose card has no network device, which is needed to set
/// them.
fn refuse_unset((bdf, pf): (Bdf, Bdf), settings: &VfSettings, topology: &Topology) -> Result<()> {
    if place(topology, bdf).is_some() || *settings == VfSettings::default() {
        return Ok(());
    }
    Err(VfsError::NoNetdev { bdf: bdf.to_string(), pf: pf.to_string() }
        .hint("leave vlan=, trust=, spoof= and mac= out of --vf"))
}

/// The current trust and spoof check settings of a virtual function; unknown on a recorded host.
fn now(bdf: Bdf, topology: &Topology, world: &World) -> Result<Guard> {
    match place(topology, bdf)
        .filter(|_| world.settings.host.is_none() && world.is_here().unwrap_or(false))
    {
        Some((netdev, number)) => Ok(guard(&netdev, number)?),
        None => Ok(Guard::default()),
    }
}

/// Refuses to set trust or spoof check of a virtual function on another machine.
fn refuse_there(name: &str, bdf: Option<Bdf>, verb: &str, world: &World) -> Result<()> {
    let Some(bdf) = bdf.filter(|_| !world.is_recorded()) else { return Ok(()) };
    let Some(host) = world.machine()?.elsewhere().map(str::to_owned) else { return Ok(()) };
    let message =
        format!("what virtual function {bdf} may do is set by gpuvm on its machine `{host}`");
    let name = if name.is_empty() { "".into() } else { word(name) };
    let command = format!("{verb} {name}");
    Err(classed(
        Class::OtherMachine,
        message,
        format!("`{}`", command_there(&host, command.trim_end())),
    ))
}

/// The step that changes the settings of a virtual function; none if they are already as wanted.
/// `back`: its guest no longer exists.
fn step(bdf: Bdf, to: Guard, was: Guard, back: bool, topology: &Topology) -> Option<Step> {
    let to = to.beyond(was);
    let (netdev, vf) = place(topology, bdf).filter(|_| !to.is_empty())?;
    Some(NicStep::SetGuard { netdev, vf, to, was: was.within(to), back }.into())
}

/// The steps that bring up the network devices of these functions' cards.
fn cards_up(
    functions: impl Iterator<Item = Bdf>,
    topology: &Topology,
    world: &World,
) -> Result<Vec<Step>> {
    let root = world.root()?.filter(|root| root.is_live());
    let cards: BTreeSet<Bdf> =
        functions.filter_map(|bdf| Some(pf_of_nic(topology, bdf)?.bdf)).collect();
    let cards = cards.into_iter().filter_map(|pf| topology.device(pf));
    let steps = cards.map(|card: &PciDevice| link_up(card, root.as_ref()));
    Ok(steps.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// The steps that a defined guest's virtual functions need before it starts.
pub fn claim_of(xml: &DomainXml, topology: &Topology, world: &World) -> Result<Vec<Step>> {
    refuse_there(&xml.name(), xml.guarded()?.first().map(|first| first.bdf), "start", world)?;
    let mut steps = cards_up(xml.held(false)?.devices.into_iter(), topology, world)?;
    for Guarded { bdf, to, .. } in xml.guarded()? {
        steps.extend(step(bdf, to, now(bdf, topology, world)?.within(to), false, topology));
    }
    Ok(steps)
}

/// The steps that a guest's virtual functions need once it is removed.
pub fn give_back(xml: &DomainXml, world: &World) -> Result<Vec<Step>> {
    let guarded = xml.guarded()?;
    refuse_there(&xml.name(), guarded.first().map(|first| first.bdf), "delete", world)?;
    give_back_these(&xml.uuid().unwrap_or_default(), guarded, world)
}

/// The steps that restore the settings of these functions of the guest with this UUID.
pub fn give_back_these(uuid: &str, guarded: Vec<Guarded>, world: &World) -> Result<Vec<Step>> {
    if guarded.is_empty() || !world.has_guests_here()? {
        return Ok(Vec::new());
    }
    let topology = world.topology()?;
    let mut steps = Vec::new();
    let all: Vec<Bdf> = guarded.iter().map(|guarded| guarded.bdf).collect();
    let others = owner::runs_with(&*world.hypervisor()?, uuid, &all);
    for Guarded { bdf, was, .. } in guarded {
        if let Some((_, name)) = others.iter().find(|(other, _)| *other == bdf) {
            let warning = format!(
                "{bdf} is in use by domain `{name}`, which runs, so its settings are left as they \
                 are"
            );
            world.warning(&warning);
            continue;
        }
        steps.extend(step(bdf, was, now(bdf, &topology, world)?.within(was), true, &topology));
    }
    Ok(steps)
}

/// The same for a guest that no longer exists: settings changed by others since are left alone.
pub fn give_back_of_gone(uuid: &str, guarded: &[Guarded], world: &World) -> Result<Vec<Step>> {
    let topology = world.topology()?;
    let mut ours = Vec::new();
    for one in guarded {
        if now(one.bdf, &topology, world)?.within(one.to) == one.to {
            ours.push(one.clone());
        }
    }
    give_back_these(uuid, ours, world)
}

/// A hint with the commands that recreate missing functions.
pub fn made_by(root: &FsRoot, topology: &Topology, mut absent: BTreeSet<Bdf>) -> Result<String> {
    let at_boot = boot::functions(root)?;
    let mut commands = Vec::new();
    for card in topology.devices() {
        let Some(Sriov::Pf { total, .. }) = card.sriov else { continue };
        let mut least = 0;
        for bdf in absent.clone() {
            let number = number_of(root, card.bdf, bdf)?.filter(|number| *number < total);
            if let Some(number) = number {
                least = least.max(number + 1);
                absent.remove(&bdf);
            }
        }
        if least > 0 {
            if card.kind() == DeviceKind::Gpu {
                commands.push(format!("gpuvm vgpu vfs {} --on --at-boot", card.bdf));
                continue;
            }
            let before = at_boot.get(&card.bdf).map_or(0, |at_boot| at_boot.count);
            commands.push(format!("gpuvm nic vfs {} --count {}", card.bdf, least.max(before)));
        }
    }
    if !absent.is_empty() {
        // The function is no longer on its bus, or its card is not known.
        commands.push("echo 1 | sudo tee /sys/bus/pci/rescan".into());
    }
    let commands: Vec<String> = commands.iter().map(|command| format!("`{command}`")).collect();
    Ok(format!(
        "{} may bring back what is missing; `gpuvm device list --all` shows what is there",
        commands.join(" and ")
    ))
}

/// The number of the virtual function with this address on a card; `None` if it cannot belong to
/// the card. The kernel computes the addresses this way (PCI Express Base Specification, SR-IOV:
/// First VF Offset, VF Stride).
fn number_of(root: &FsRoot, pf: Bdf, vf: Bdf) -> Result<Option<u32>> {
    let Some(dir) = root.dir(&format!("sys/bus/pci/devices/{pf}"))? else { return Ok(None) };
    let place = dir.number::<u32>("sriov_offset")?.zip(dir.number::<u32>("sriov_stride")?);
    let Some((offset, stride)) = place.filter(|(_, stride)| *stride > 0) else { return Ok(None) };
    let id = |bdf: Bdf| {
        u32::from(bdf.bus()) << 8 | u32::from(bdf.device()) << 3 | u32::from(bdf.function())
    };
    let beyond = id(vf).checked_sub(id(pf) + offset).filter(|_| pf.segment() == vf.segment());
    Ok(beyond.filter(|beyond| beyond % stride == 0).map(|beyond| beyond / stride))
}

/// Which of these networks hand out virtual functions. Refuses those that libvirt could not
/// provide, if the guest is to start.
pub fn pools(
    networks: &[NicWish],
    held: &Occupancy,
    starts: bool,
    hypervisor: &dyn Hypervisor,
) -> Result<Vec<String>> {
    if networks.is_empty() {
        return Ok(Vec::new());
    }
    let mut pools = Vec::new();
    for pool in hypervisor.networks().vf_pools()? {
        let asked = networks.iter().filter(|network| network.network == pool.name).count();
        if asked == 0 {
            continue;
        }
        if let Some(why) = lacks(&pool, asked, held).filter(|_| starts) {
            let hint =
                "`gpuvm nic list` shows who has them; `gpuvm nic vfs PF --count N` makes more";
            return Err(why.hint(hint));
        }
        pools.push(pool.name);
    }
    Ok(pools)
}

/// The reason a network cannot hand out this many more functions; `None` if it can, or libvirt does
/// not list them. libvirt hands out the first one it has not handed out, and does not check whether
/// a guest has that one by its address.
fn lacks(pool: &VfPool, asked: usize, held: &Occupancy) -> Option<VfsError> {
    let VfPool { name, functions } = pool;
    let running = || held.domains.iter().filter(|domain| domain.active);
    let holder = |bdf: &Bdf| running().find(|domain| domain.devices.contains(bdf));
    // A function that libvirt handed out is only in the live XML, not in the definition.
    let by_address = |bdf: &Bdf| {
        let name = &holder(bdf)?.domain;
        let mut its = running().filter(|domain| domain.domain == *name);
        its.all(|domain| domain.devices.contains(bdf)).then_some(name)
    };
    let left: Vec<&Bdf> =
        functions.iter().filter(|bdf| holder(bdf).is_none() || by_address(bdf).is_some()).collect();
    if let Some((bdf, domain)) =
        left.iter().take(asked).find_map(|bdf| Some((bdf, by_address(bdf)?)))
    {
        return Some(VfsError::HandedOut {
            network: name.clone(),
            bdf: **bdf,
            domain: domain.clone(),
        });
    }
    let (all, free) = (functions.len(), left.len());
    let short = all > 0 && free < asked;
    short.then(|| VfsError::Short { network: name.clone(), asked, free, all })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Held;

    #[test]
    fn a_pool_gives_free_functions_that_no_guest_names() {
        let bdf = |function: u8| Bdf::new(0, 0x86, 0x10, function).unwrap();
        let pool = VfPool { name: "p".into(), functions: vec![bdf(0), bdf(2), bdf(4)] };
        let runs = |domain: &str, devices: Vec<Bdf>| Held {
            domain: domain.into(),
            active: true,
            devices,
            ..Held::default()
        };
        let why = |asked, domains: Vec<Held>| {
            let held = Occupancy { domains, ..Occupancy::default() };
            lacks(&pool, asked, &held).map(|why| why.to_string())
        };
        // The live XML and the definition.
        let handed = |name: &str, function| [runs(name, vec![bdf(function)]), runs(name, vec![])];
        assert_eq!(why(3, vec![]), None);
        assert_eq!(why(2, handed("a", 0).to_vec()), None);
        let two = [handed("a", 0), handed("b", 2)].concat();
        let said = "requested 2 virtual functions of network `p`, only 1 of 3 are left";
        assert_eq!(why(2, two).as_deref(), Some(said));
        let said = "network `p` would hand out 0000:86:10.0, which domain `own` names by its PCI \
                    address";
        assert_eq!(why(1, vec![runs("own", vec![bdf(0)])]).as_deref(), Some(said));
        assert_eq!(why(1, vec![runs("own", vec![bdf(4)])]), None);
        let empty = VfPool { name: "p".into(), functions: vec![] };
        assert!(lacks(&empty, 1, &Occupancy::default()).is_none());
    }
}
