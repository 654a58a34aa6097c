//! Tunes a guest's devices in order, the agent's channel and the places of passed-through
//! functions.

use super::cpu::is_of_one_node;
use super::describe::has_agent;
use super::functions::settings_now;
use super::work::Work;
use super::{Item, ItemName, TuneError, convert, disks, iothreads, nics};
use crate::bdf::Bdf;
use crate::check::misplaced;
use crate::domain::claims::Claims;
use crate::domain::nics::free_vf_mac;
use crate::domain::placed::VfNic;
use crate::domain::setting::Setting;
use crate::domain::{
    DomainEdit, DomainXml, FunctionChange, function_edits, hooks, pf_of_nic, reseat_edits,
    seat_edits, unseat_edits,
};
use crate::placement::Placement;
use crate::request::VfSettings;
use std::collections::BTreeMap;

/// The property for the link speed of a root port.
const SPEED: &str = "x-speed";
/// The fastest link configurable for a root port, in units of 0.1 GT/s.
const FASTEST_DGTS: u32 = 640;

/// Applies these settings. The agent's channel comes first, since its controller gets a place, too.
pub(super) fn apply(work: &mut Work<'_>) -> Result<(), TuneError> {
    agent(work)?;
    // Those get the settings of virtio below.
    convert::apply(work)?;
    // In the order in which libvirt writes a driver's attributes.
    disks::driver_words(work)?;
    iothreads::apply(work)?;
    disks::queues(work)?;
    // After everything that looks up a disk by its file.
    disks::convert(work)?;
    nics::apply(work)?;
    places(work)
}

/// Tunes the channel of the guest's agent.
fn agent(work: &mut Work<'_>) -> Result<(), TuneError> {
    let there = has_agent(&work.xml);
    match work.given.items.agent {
        Item::On if !there => {
            // Its controller gets a place, which is not another place of functions.
            let are_placed = seats(work)?.is_some_and(|edits| changes_nothing(&work.xml, &edits));
            work.set(ItemName::Agent, Setting::Agent { there: true })?;
            match seats(work)?.filter(|_| are_placed) {
                Some(edits) => work.make(ItemName::Agent, &edits),
                None => Ok(()),
            }
        }
        Item::Off if there => work.set(ItemName::Agent, Setting::Agent { there: false }),
        _ => Ok(()),
    }
}

/// Adapts a plan to a guest without cells: an expander bus cannot name one.
fn without_cells(xml: &DomainXml, placement: &Placement) -> Placement {
    let mut placement = placement.clone();
    if Claims::read(xml).cells.is_empty() {
        placement.cells.clear();
        placement.guest_pcie.groups.iter_mut().for_each(|group| group.cell = None);
    }
    placement
}

/// Gives the guest the functions of its plan, NVSwitches with GPUs; present functions keep their
/// places.
fn functions(work: &mut Work<'_>, item: ItemName) -> Result<(), TuneError> {
    let Some(placement) = work.placement else { return Ok(()) };
    let had: Vec<Bdf> = work.guest.claims.passed.iter().map(|passed| passed.bdf.value).collect();
    let is_kept = |bdf: &Bdf| placement.devices.contains(bdf);
    let gone: Vec<Bdf> = had.iter().copied().filter(|bdf| !is_kept(bdf)).collect();
    let comes = placement.devices.iter().any(|bdf| !had.contains(bdf));
    if comes && !work.xml.is_pcie() {
        let message = "passed-through devices need a machine with PCI Express, such as q35";
        return Err(TuneError::item(item, message, "--vcpus and --memory change it"));
    }
    let has = work.xml.sets_property(SPEED).then_some(FASTEST_DGTS);
    let fastest = work.given.abilities.port_speed_dgts.or(has);
    let placement = &without_cells(&work.xml, placement);
    let (gone, vfs) = (&gone[..], &vf_nics(work, placement, &had)?);
    let ports = work.given.items.size().functions.ports.as_ref();
    let change = FunctionChange { gone, ports, vfs, port_speed_dgts: fastest };
    let Some(mut edits) = function_edits(&work.xml, placement, work.given.topology, change)? else {
        let what = match item {
            ItemName::Nvme => "NVMe drive",
            ItemName::Vf => "virtual function",
            _ => "NIC",
        };
        return Err(TuneError::NoPort { what });
    };
    if !work.given.items.size().vgpu.is_kept() {
        let gets: Vec<String> =
            placement.vgpus.iter().filter_map(|vgpu| vgpu.uuid.clone()).collect();
        let lost = work.xml.mdevs().into_iter().filter(|uuid| !gets.contains(uuid));
        edits.extend(lost.map(|uuid| DomainEdit::DropMdev { uuid }));
        edits.extend(gets.into_iter().map(|uuid| DomainEdit::AddMdev { uuid }));
    }
    work.make(item, &edits)
}

/// The virtual functions that come as NICs, and those that stay with another MAC address or VLAN.
fn vf_nics(
    work: &Work<'_>,
    placement: &Placement,
    had: &[Bdf],
) -> Result<BTreeMap<Bdf, VfNic>, TuneError> {
    let topology = work.given.topology;
    let mut macs: Vec<String> = hooks(&work.xml).into_iter().map(|hook| hook.mac).collect();
    let others = &work.given.others.domains;
    macs.extend(others.iter().flat_map(|held| held.macs.iter().map(|mac| mac.to_lowercase())));
    let key = work.xml.uuid().unwrap_or_else(|| work.xml.name());
    let mut nics = BTreeMap::new();
    let vfs = placement.devices.iter().copied().filter(|vf| pf_of_nic(topology, *vf).is_some());
    for (nth, vf) in (0..).zip(vfs) {
        let said = work.given.items.size().functions.settings_of(vf);
        let is_new = !had.contains(&vf);
        let now = if is_new { VfSettings::default() } else { settings_now(&work.xml, vf) };
        let then = now.over(&said);
        if !is_new && (&then.mac, then.vlan) == (&now.mac, now.vlan) {
            continue;
        }
        if let Some(mac) = said.mac.filter(|mac| now.mac.as_ref() != Some(mac))
            && macs.contains(&mac)
        {
            let message = format!("another NIC has the MAC address {mac}");
            return Err(TuneError::item(ItemName::Vf, message, "leave mac= out"));
        }
        if now.mac.is_none() && !is_new {
            let message = format!("{vf} is passed without a MAC address and VLAN of its own");
            let hint = "remove it first; added again, it gets them";
            return Err(TuneError::item(ItemName::Vf, message, hint));
        }
        let mac = then.mac.unwrap_or_else(|| free_vf_mac(&key, nth, &macs));
        macs.push(mac.clone());
        nics.insert(vf, VfNic { mac, vlan: then.vlan });
    }
    Ok(nics)
}

/// Tunes the places of passed-through functions in the guest's PCIe tree.
fn places(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::Pcie;
    if let Some(item) = work.given.items.first_moved() {
        return functions(work, item);
    }
    if work.guest.hostdevs.is_empty() || !work.xml.is_pcie() {
        return Ok(());
    }
    let edits = match (work.given.items.pcie, work.placement) {
        (Item::Off, Some(placement)) => unseat_edits(&work.xml, placement)?,
        _ => match seats(work)? {
            Some(edits) => edits,
            None => return Ok(()),
        },
    };
    work.make(item, &edits)
}

/// The places of functions by their plan, also of functions without one yet; `None` if they stay
/// unchanged.
fn seats(work: &Work<'_>) -> Result<Option<Vec<DomainEdit>>, TuneError> {
    let items = work.given.items;
    if work.guest.hostdevs.is_empty() || !work.xml.is_pcie() || items.first_moved().is_some() {
        return Ok(None);
    }
    let (Item::On, Some(placement)) = (items.pcie, work.placement) else { return Ok(None) };
    let has = work.xml.sets_property(SPEED).then_some(FASTEST_DGTS);
    let fastest = work.given.abilities.port_speed_dgts.or(has);
    // A GPU changes its place in the guest only on request.
    let stays = items.unnamed.contains(&ItemName::Pcie);
    // On one node no place is nearer than another.
    let topology = work.given.topology;
    let placement = &without_cells(&work.xml, placement);
    let one_node = is_of_one_node(topology);
    let misplaced = if stays && one_node { misplaced(&work.xml, topology) } else { None };
    if let Some(misplaced) = misplaced {
        let misplaced: Vec<Bdf> = misplaced.into_iter().collect();
        if misplaced.is_empty() {
            return Ok(None);
        }
        return Ok(Some(reseat_edits(&work.xml, placement, topology, fastest, &misplaced)?));
    }
    Ok(Some(seat_edits(&work.xml, placement, work.given.topology, fastest, stays)?))
}

/// Whether the edits leave a definition unchanged.
fn changes_nothing(xml: &DomainXml, edits: &[DomainEdit]) -> bool {
    edits.iter().all(|edit| !xml.would_change(edit))
}
