//! The edits of a guest's devices: all of them for a new guest, only the places of passed-through
//! functions for an existing one. [`super::addresses`] chooses the places.

use super::addresses::Seats;
use super::claims::{Claims, Passed};
use super::device::hostdev_bdf;
use super::edit::DomainEdit;
use super::element::Element;
use super::guest::Guest;
use super::nics::{nics, pf_of_nic, seat_new, vf_nic};
use super::overrides::{Override, links, overrides};
use super::pci::PciAddress;
use super::placed::{DevicePlace, HostdevSeat, VfNic};
use super::setting::Setting;
use super::{DomainXml, DomainXmlError};
use crate::bdf::Bdf;
use crate::placement::Placement;
use crate::topology::{DeviceKind, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// Finds the edits of the devices, in an order in which they can also be made one by one.
pub(super) fn device_edits(
    current: &DomainXml,
    guest: &Guest,
    placement: &Placement,
    topology: &Topology,
) -> Result<Vec<DomainEdit>, DomainXmlError> {
    let mut seats = Seats::new(current, placement)?;
    seats.passes |= !guest.vf_pools.is_empty();
    let free = seats.free_ports();
    let groups = seats.groups();
    let kept = seats.kept_or_dropped(&groups, false);
    let (mut nics, dropped_nics) = nics(&mut seats, guest, current.name() != guest.name.as_str())?;
    let addresses = seats.addresses(&dropped_nics)?;
    seat_new(&mut seats, &mut nics)?;
    seats.implied_controllers(true)?;
    let disks = seats.disks(guest, topology)?;
    let balloon = seats.balloon()?;
    for _ in free..guest.spare_ports {
        seats.port()?;
    }
    let seated = match kept {
        Some(kept) => kept,
        None => seats.expanders(&groups)?,
    };
    let hostdevs = hostdevs(Some(guest), placement, topology, &seated);
    let overrides = properties(&mut seats, &hostdevs, guest.abilities.port_speed_dgts);
    let smmus = seats.smmus(&seated);
    let mut edits = vec![DomainEdit::SetAddresses { addresses }];
    edits.push(seats.controllers_edit());
    edits.push(DomainEdit::SetDisks { disks });
    edits.push(DomainEdit::SetInterfaces { nics, dropped: dropped_nics });
    edits.push(DomainEdit::SetHostdevs { hostdevs });
    let mdevs = placement.vgpus.iter().filter_map(|vgpu| vgpu.uuid.clone());
    edits.extend(mdevs.map(|uuid| DomainEdit::AddMdev { uuid }));
    edits.push(DomainEdit::SetOverrides { overrides });
    edits.extend(smmus.map(|buses| DomainEdit::Set { setting: Setting::Smmus { buses } }));
    edits.extend(balloon);
    Ok(edits)
}

/// Finds the edits that move the passed-through functions of a document to their places and change
/// nothing else about them: a root port each, below one expander bus per group of the plan. With
/// `stays`, functions below one expander bus per guest cell stay there. `port_speed_dgts` is as in
/// [`Abilities`](super::guest::Abilities).
pub fn seat_edits(
    current: &DomainXml,
    placement: &Placement,
    topology: &Topology,
    port_speed_dgts: Option<u32>,
    stays: bool,
) -> Result<Vec<DomainEdit>, DomainXmlError> {
    let mut seats = Seats::new(current, placement)?;
    let groups = seats.groups();
    let kept = seats.kept_or_dropped(&groups, stays);
    let addresses = seats.addresses(&[])?;
    seats.implied_controllers(false)?;
    let seated = match kept {
        Some(kept) => kept,
        None => seats.expanders(&groups)?,
    };
    Ok(moved(seats, placement, topology, addresses, &seated, port_speed_dgts))
}

/// Finds the edits that give these functions of a document other places, and leave all others where
/// they are.
pub fn reseat_edits(
    current: &DomainXml,
    placement: &Placement,
    topology: &Topology,
    port_speed_dgts: Option<u32>,
    misplaced: &[Bdf],
) -> Result<Vec<DomainEdit>, DomainXmlError> {
    let mut seats = Seats::new(current, placement)?;
    let groups = seats.groups();
    let addresses = seats.addresses(&[])?;
    seats.implied_controllers(false)?;
    let seated = seats.beside_kept(&groups, misplaced)?;
    Ok(moved(seats, placement, topology, addresses, &seated, port_speed_dgts))
}

/// The edits that move functions to these places.
fn moved(
    mut seats: Seats<'_>,
    placement: &Placement,
    topology: &Topology,
    addresses: Vec<(DevicePlace, PciAddress)>,
    seated: &BTreeMap<Bdf, PciAddress>,
    port_speed_dgts: Option<u32>,
) -> Vec<DomainEdit> {
    let mut hostdevs = hostdevs(None, placement, topology, seated);
    keep_names(&seats, &mut hostdevs);
    let overrides = properties(&mut seats, &hostdevs, port_speed_dgts);
    vec![
        DomainEdit::SetAddresses { addresses },
        seats.controllers_edit(),
        DomainEdit::SetHostdevs { hostdevs },
        DomainEdit::SetOverrides { overrides },
    ]
}

/// How functions come to a document and leave it.
#[derive(Debug, Clone, Copy)]
pub struct FunctionChange<'a> {
    /// Those that leave it.
    pub gone: &'a [Bdf],
    /// Root ports for those that come, free in the running guest; `None` for any, also new ones.
    pub ports: Option<&'a BTreeSet<u8>>,
    /// Virtual functions as NICs: those that come, and those that stay with other settings.
    pub vfs: &'a BTreeMap<Bdf, VfNic>,
    /// As in [`Abilities`](super::guest::Abilities).
    pub port_speed_dgts: Option<u32>,
}

/// Finds the edits that give a document the functions of a placement: those that it has stay where
/// they are, the others come (see `Seats::beside_kept`); `None` if too few ports are free.
pub fn function_edits(
    current: &DomainXml,
    placement: &Placement,
    topology: &Topology,
    change: FunctionChange<'_>,
) -> Result<Option<Vec<DomainEdit>>, DomainXmlError> {
    let FunctionChange { gone, ports, vfs, port_speed_dgts } = change;
    let mut seats = Seats::new(current, placement)?;
    let groups = seats.groups();
    let mut edits = Vec::new();
    let seated = match ports {
        Some(ports) => match seats.beside_running(&groups, gone, ports) {
            Some(seated) => seated,
            None => return Ok(None),
        },
        None => {
            let addresses = seats.addresses(&[])?;
            edits.push(DomainEdit::SetAddresses { addresses });
            seats.implied_controllers(false)?;
            seats.beside_kept(&groups, gone)?
        }
    };
    let mut hostdevs = hostdevs(None, placement, topology, &seated);
    keep_names(&seats, &mut hostdevs);
    let iommufd = way_of_others(current);
    for seat in &mut hostdevs {
        seat.nic = vfs.get(&seat.bdf).cloned();
        seat.iommufd = iommufd.filter(|_| seat.kept.is_none());
    }
    let overrides = properties(&mut seats, &hostdevs, port_speed_dgts);
    edits.push(seats.controllers_edit());
    edits.push(DomainEdit::SetHostdevs { hostdevs });
    edits.push(DomainEdit::SetOverrides { overrides });
    let devices = gone.to_vec();
    edits.push(DomainEdit::Set { setting: Setting::Gone { devices } });
    Ok(Some(edits))
}

/// The own setting of iommufd of a function that comes, so that it goes the way of those that are
/// there: two ways in one guest pin its memory twice. `None` where these differ, or go as the
/// domain says.
fn way_of_others(current: &DomainXml) -> Option<bool> {
    let is_function = |passed: &&Passed<'_>| passed.is_hostdev();
    let claims = Claims::read(current);
    let mut ways = claims.passed.iter().filter(is_function).map(|passed| passed.iommufd);
    let first = ways.next()?;
    (first != current.is_by_iommufd() && ways.all(|way| way == first)).then_some(first)
}

/// Finds the edits that leave the places of passed-through functions to libvirt.
pub fn unseat_edits(
    current: &DomainXml,
    placement: &Placement,
) -> Result<Vec<DomainEdit>, DomainXmlError> {
    let mut seats = Seats::new(current, placement)?;
    seats.drop_expanders(|_, _| true);
    if seats.dropped.is_empty() {
        return Ok(Vec::new());
    }
    let devices = placement.devices.clone();
    let unseated = DomainEdit::Set { setting: Setting::Unseated { devices } };
    let overrides = DomainEdit::SetOverrides { overrides: Vec::new() };
    Ok(vec![unseated, seats.controllers_edit(), overrides])
}

/// Whether a function is bound by us before a guest starts, and not by libvirt at each start: the
/// GPUs and NVSwitches of an NVLink board. Unbinding their driver can hang, and other guests' links
/// depend on them (gpuvm-hardware(7), BINDING AND RESET). And GPUs with coherent memory, whose own
/// driver of VFIO libvirt would take away at each stop.
pub fn is_bound_by_us(topology: &Topology, bdf: Bdf) -> bool {
    match kind(topology, bdf) {
        DeviceKind::Gpu if topology.is_vgpu_function(bdf) => false,
        DeviceKind::Gpu => topology.fabric().board.is_some() || topology.is_coherent(bdf),
        kind => kind == DeviceKind::NvSwitch,
    }
}

/// Gives each passed-through function its alias and its binding mode. Without a guest no function
/// becomes a NIC.
fn hostdevs(
    guest: Option<&Guest>,
    placement: &Placement,
    topology: &Topology,
    seated: &BTreeMap<Bdf, PciAddress>,
) -> Vec<HostdevSeat> {
    let mut numbers = BTreeMap::new();
    let mut hostdevs = Vec::new();
    for &bdf in &placement.devices {
        let Some(&address) = seated.get(&bdf) else { continue };
        let word = match kind(topology, bdf) {
            DeviceKind::Gpu if topology.is_vgpu_function(bdf) => "vgpu",
            DeviceKind::Gpu => "gpu",
            DeviceKind::NvSwitch => "nvswitch",
            _ if pf_of_nic(topology, bdf).is_some() => "vf",
            _ => "pci",
        };
        let number = numbers.entry(word).or_insert(0);
        let nic = guest.filter(|_| word == "vf").map(|guest| vf_nic(guest, bdf, *number));
        let alias = format!("ua-{word}{number}");
        *number += 1;
        // A vGPU stays on the vendor's own driver of VFIO.
        let managed = !is_bound_by_us(topology, bdf) && word != "vgpu";
        let (kept, iommufd) = (None, None);
        let cells = placement.initiators.as_ref().and_then(|all| all.cells_of(bdf));
        hostdevs.push(HostdevSeat { bdf, alias, managed, kept, iommufd, nic, cells, address });
    }
    hostdevs
}

/// Returns the aliases of passed-through functions.
fn aliases(hostdevs: &[HostdevSeat]) -> BTreeMap<Bdf, String> {
    hostdevs.iter().map(|hostdev| (hostdev.bdf, hostdev.alias.clone())).collect()
}

/// Returns the kind of a function, which its alias is made from.
fn kind(topology: &Topology, bdf: Bdf) -> DeviceKind {
    match topology.device(bdf).map(crate::topology::PciDevice::kind) {
        Some(kind @ (DeviceKind::Gpu | DeviceKind::NvSwitch)) => kind,
        _ => DeviceKind::Other,
    }
}

/// Returns the properties of passed-through functions and of their ports.
fn properties(
    seats: &mut Seats<'_>,
    hostdevs: &[HostdevSeat],
    fastest: Option<u32>,
) -> Vec<Override> {
    let mut properties = overrides(&seats.placement.guest_pcie, &aliases(hostdevs));
    if let Some(fastest) = fastest.filter(|_| seats.is_pcie) {
        let ports = seats.name_ports(hostdevs);
        properties.extend(links(&seats.placement.guest_pcie, fastest, &ports));
    }
    properties
}

/// Keeps the aliases of functions, which other elements may refer to, and everything but their
/// places.
fn keep_names(seats: &Seats<'_>, hostdevs: &mut [HostdevSeat]) {
    let name = |device: Element<'_>| {
        let name = device.child("alias")?.attr("name")?.into_owned();
        name.starts_with("ua-").then_some(name)
    };
    let mut taken: BTreeSet<String> = seats.elements().filter_map(name).collect();
    for seat in hostdevs {
        let bdf = seat.bdf.to_string();
        let found = seats.hostdevs().find(|h| hostdev_bdf(*h).as_ref() == Some(&bdf));
        seat.kept = found.map(|found| match found.name() {
            "interface" => "interface",
            _ => "hostdev",
        });
        if let Some(name) = found.and_then(name) {
            seat.alias = name;
            continue;
        }
        let base = seat.alias.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
        let names = (0..).map(|number| format!("{base}{number}"));
        let mut names = std::iter::once(seat.alias.clone()).chain(names);
        // The port has a name, too; one that is free may still have that of a function that is
        // gone.
        let is_free =
            |name: &String| !taken.contains(name) && !taken.contains(&format!("{name}-port"));
        seat.alias = names.find(is_free).expect("numbers do not end");
        taken.insert(seat.alias.clone());
    }
}
