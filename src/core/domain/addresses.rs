//! The guest's PCI places: an address and a root port for every PCI device, an expander bus for
//! each group of passed-through functions. libvirt would put devices without an address on any free
//! port, including those of an expander bus, and so in the wrong guest cell.

use super::device::{Seat, hostdev_bdf, is_on_usb, is_on_virtio_serial, is_our_hostdev, seat};
use super::edit::DomainEdit;
use super::element::Element;
use super::guest::{Guest, VirtType};
use super::order::device_name;
use super::pci::{Buses, Controller, Expander, ExpanderSize, PciAddress, pci_address};
use super::placed::{DevicePlace, HostdevSeat};
use super::{DomainXml, DomainXmlError};
use crate::bdf::Bdf;
use crate::placement::Placement;
use std::collections::{BTreeMap, BTreeSet};

/// Passed-through functions that go below one expander bus.
pub(super) struct CellGroup {
    /// The guest cell of the bus; `None` if the bus belongs to none.
    cell: Option<u32>,
    devices: Vec<Bdf>,
}

/// An allocation of PCI places to the devices of one guest.
pub(super) struct Seats<'a> {
    /// The document's devices; none where it has none.
    pub devices: Option<Element<'a>>,
    /// Its placement.
    pub placement: &'a Placement,
    /// Whether the machine has PCI Express; without it, libvirt chooses addresses.
    pub is_pcie: bool,
    /// Whether the guest has a passed-through function, now or from its start, so that all its
    /// memory stays mapped.
    pub passes: bool,
    /// Addresses and bus numbers in use.
    buses: Buses,
    controllers: Vec<Controller>,
    /// PCI controllers to remove.
    pub dropped: Vec<u8>,
}

impl<'a> Seats<'a> {
    /// Reads a document whose functions are to be placed.
    pub fn new(
        current: &'a DomainXml,
        placement: &'a Placement,
    ) -> Result<Seats<'a>, DomainXmlError> {
        let devices = current.root().child("devices");
        let buses = devices.map(Buses::read).transpose()?.unwrap_or_default();
        let is_pcie = current.is_pcie();
        let (controllers, dropped) = (Vec::new(), Vec::new());
        let passes = placement.passes_devices();
        Ok(Seats { devices, placement, is_pcie, passes, buses, controllers, dropped })
    }

    /// Returns the guest addresses that functions keep; none if they get new ones, for which room
    /// has been made. With `stays`, functions below one expander bus per cell, as older versions
    /// placed them, stay there.
    pub fn kept_or_dropped(
        &mut self,
        groups: &[CellGroup],
        stays: bool,
    ) -> Option<BTreeMap<Bdf, PciAddress>> {
        let kept = self.kept_addresses(groups, Spread::No);
        let kept = kept
            .or_else(|| self.kept_addresses(&by_cell(groups), Spread::No).filter(|_| stays))
            .or_else(|| self.kept_addresses(groups, Spread::Below).filter(|_| stays))
            .or_else(|| self.kept_addresses(groups, Spread::Plugged).filter(|_| stays));
        match kept {
            None => self.drop_expanders(|_, _| true),
            // Empty expander buses of cells that the guest no longer has.
            Some(_) => {
                let cells = self.placement.cells.len();
                self.drop_expanders(|cell, idle| {
                    idle && cell.is_some_and(|cell| cell as usize >= cells)
                });
            }
        }
        kept
    }

    /// Returns the edit of the controllers.
    pub fn controllers_edit(self) -> DomainEdit {
        let Seats { controllers, dropped, .. } = self;
        DomainEdit::SetControllers { controllers, dropped }
    }

    /// The elements of the devices.
    pub fn elements(&self) -> impl Iterator<Item = Element<'a>> + use<'a> {
        self.devices.into_iter().flat_map(Element::elements)
    }

    /// Returns the hostdevs and the interfaces of type hostdev.
    pub fn hostdevs(&self) -> impl Iterator<Item = Element<'a>> + use<'a> {
        self.elements().filter(|device| matches!(device.name(), "hostdev" | "interface"))
    }

    /// Returns the devices of a kind.
    pub fn named(&self, name: &'static str) -> impl Iterator<Item = Element<'a>> + use<'a> {
        self.elements().filter(move |device| device.name() == name)
    }

    /// Returns groups of functions with the cell that each belongs to; every function is in exactly
    /// one.
    pub fn groups(&self) -> Vec<CellGroup> {
        let only = (self.placement.cells.len() == 1).then_some(0);
        let mut left: BTreeSet<Bdf> = self.placement.devices.iter().copied().collect();
        let mut groups = Vec::new();
        for group in &self.placement.guest_pcie.groups {
            let devices = group.devices.iter().copied().filter(|bdf| left.remove(bdf)).collect();
            groups.push(CellGroup { cell: group.cell.or(only), devices });
        }
        let rest = self.placement.devices.iter().copied().filter(|bdf| left.remove(bdf));
        groups.push(CellGroup { cell: only, devices: rest.collect() });
        groups.retain(|group| !group.devices.is_empty());
        groups
    }

    /// Whether a hostdev, or an interface of type hostdev, was put there by this plan or an earlier
    /// one.
    pub fn is_planned(&self, hostdev: Element<'_>) -> bool {
        let bdf = hostdev_bdf(hostdev).and_then(|bdf| bdf.parse().ok());
        is_our_hostdev(hostdev) || bdf.is_some_and(|bdf| self.placement.devices.contains(&bdf))
    }

    /// Returns the current guest addresses of functions; none unless all are at their planned
    /// places.
    fn kept_addresses(
        &self,
        groups: &[CellGroup],
        spread: Spread,
    ) -> Option<BTreeMap<Bdf, PciAddress>> {
        let planned: Vec<_> = self.hostdevs().filter(|hostdev| self.is_planned(*hostdev)).collect();
        let at = |hostdev| Some((hostdev_bdf(hostdev)?.parse().ok()?, pci_address(hostdev)?));
        let found: BTreeMap<Bdf, PciAddress> = planned.iter().copied().filter_map(at).collect();
        let is_pluggable = |bdf: &Bdf| {
            let its = |hostdev: &&Element<'_>| hostdev_bdf(**hostdev) == Some(bdf.to_string());
            planned.iter().find(its).is_some_and(|hostdev| is_pluggable(*hostdev))
        };
        let mut expanders = BTreeSet::new();
        for CellGroup { cell, devices } in groups {
            // The expander bus of a function, or none: it is on the root bus.
            let above = |bdf| {
                let port = self.buses.bridges.get(&found.get(bdf)?.bus)?;
                let at = port.address?.bus;
                if port.model != "pcie-root-port" {
                    return None;
                }
                if at == 0 && spread == Spread::Plugged && is_pluggable(bdf) {
                    return Some(None);
                }
                let bridge = self.buses.bridges.get(&at)?;
                let good = bridge.model == "pcie-expander-bus" && bridge.cell == *cell;
                good.then_some(Some(at))
            };
            let above = devices.iter().map(above).collect::<Option<BTreeSet<Option<u8>>>>()?;
            let above: BTreeSet<u8> = above.into_iter().flatten().collect();
            let is_one = above.len() == 1 || spread != Spread::No;
            if !is_one || !above.into_iter().all(|expander| expanders.insert(expander)) {
                return None;
            }
        }
        let count = groups.iter().map(|group| group.devices.len()).sum::<usize>();
        let ports: BTreeSet<u8> = found.values().map(|address| address.bus).collect();
        let alone = planned.len() - self.paired(&found).len();
        let all = planned.len() == count && ports.len() == alone;
        (all && self.buses.bus_numbers_fit()).then_some(found)
    }

    /// Removes expander buses with no functions but those of this plan or an earlier one, if `goes`
    /// agrees given the bus's cell and whether it is empty.
    pub fn drop_expanders(&mut self, goes: impl Fn(Option<u32>, bool) -> bool) {
        let expanders: Vec<u8> = self.buses.bridges.keys().copied().collect();
        for index in expanders {
            if self.buses.expander_above(index) != Some(index) {
                continue;
            }
            let below = self.buses.below(index);
            let is_bridge = |device: Element<'_>| {
                device.name() == "controller" && device.attr("type").as_deref() == Some("pci")
            };
            let sits = |device: Element<'_>| {
                pci_address(device).is_some_and(|address| below.contains(&address.bus))
            };
            let idle = !self.elements().any(|device| !is_bridge(device) && sits(device));
            if !goes(self.buses.bridges.get(&index).and_then(|bridge| bridge.cell), idle) {
                continue;
            }
            let is_foreign = |device: Element<'_>| {
                let ours = match device.name() {
                    "controller" => is_bridge(device),
                    "hostdev" | "interface" => self.is_planned(device),
                    _ => false,
                };
                !ours && sits(device)
            };
            if !self.elements().any(is_foreign) {
                for &index in below.iter().rev() {
                    self.buses.forget(index);
                }
                self.dropped.extend(below);
            }
        }
    }

    /// Returns an address behind a new root port; none if libvirt chooses addresses.
    pub fn port(&mut self) -> Result<Option<PciAddress>, DomainXmlError> {
        if !self.is_pcie {
            return Ok(None);
        }
        let port = self.buses.add_port()?;
        let address = PciAddress::behind(port.index);
        self.controllers.push(port);
        Ok(Some(address))
    }

    /// How many root ports of the root bus are free; to be asked before others are made.
    pub fn free_ports(&self) -> u32 {
        u32::try_from(self.buses.free_root_ports().count()).unwrap_or(u32::MAX)
    }

    /// Allocates addresses for devices of the document that have none.
    pub fn addresses(
        &mut self,
        dropped_nics: &[usize],
    ) -> Result<Vec<(DevicePlace, PciAddress)>, DomainXmlError> {
        let mut addresses = Vec::new();
        let mut counts = BTreeMap::new();
        for device in self.elements() {
            let count = counts.entry(device.name()).or_insert(0_usize);
            let nth = *count;
            *count += 1;
            let skipped = match device.name() {
                "memballoon" => self.passes,
                "interface" => dropped_nics.contains(&nth) || self.is_planned(device),
                "hostdev" => self.is_planned(device),
                _ => false,
            };
            let (Some(name), false) = (device_name(device.name()), skipped || !self.is_pcie) else {
                continue;
            };
            let kind = device.child("address").and_then(|address| address.attr("type"));
            if pci_address(device).is_some() || kind.is_some_and(|kind| kind != "pci") {
                continue;
            }
            let is_port = device.attr("model").is_some_and(|model| model == "pcie-root-port");
            let address = match seat(device) {
                _ if is_port => Some(self.buses.port_address()?),
                Some(Seat::Port) => self.port()?,
                Some(Seat::Slot) => {
                    let slot = self.buses.root_slot(4)?;
                    Some(PciAddress { bus: 0, slot, function: 0, multifunction: false })
                }
                None => None,
            };
            addresses.extend(address.map(|address| (DevicePlace { name, nth }, address)));
        }
        Ok(addresses)
    }

    /// Writes out the controllers that libvirt would add by itself, so that they get an address,
    /// too; with `rules_out_usb`, an unused USB controller is disabled.
    pub fn implied_controllers(&mut self, rules_out_usb: bool) -> Result<(), DomainXmlError> {
        if !self.is_pcie {
            return Ok(());
        }
        let has = |seats: &Seats<'_>, kind: &str| {
            seats.named("controller").any(|c| c.attr("type").as_deref() == Some(kind))
        };
        let is_scsi = |device: Element<'_>| {
            let bus = device.child("target").and_then(|target| target.attr("bus"));
            bus.is_some_and(|bus| bus == "scsi")
        };
        let wants_usb = self.elements().any(is_on_usb);
        let wanted = [
            ("virtio-serial", None, self.elements().any(is_on_virtio_serial)),
            ("scsi", Some("virtio-scsi"), self.elements().any(is_scsi)),
            ("usb", Some(if wants_usb { "qemu-xhci" } else { "none" }), wants_usb || rules_out_usb),
        ];
        for (kind, model, wanted) in wanted {
            if wanted && !has(self, kind) {
                let address = if model == Some("none") { None } else { self.port()? };
                let (bus_nr, cell) = (None, None);
                self.controllers.push(Controller {
                    kind,
                    index: 0,
                    model,
                    bus_nr,
                    cell,
                    alias: None,
                    address,
                });
            }
        }
        Ok(())
    }

    /// Returns the edit of the memory balloon.
    pub fn balloon(&mut self) -> Result<Option<DomainEdit>, DomainXmlError> {
        if self.passes {
            return Ok(Some(DomainEdit::SetBalloon { address: None }));
        }
        if self.named("memballoon").next().is_some() {
            return Ok(None);
        }
        let address = self.port()?;
        Ok(address.map(|address| DomainEdit::SetBalloon { address: Some(address) }))
    }

    /// Returns the functions that share a slot with another function of the same card, as on the
    /// host, each with function 0 of that slot. They stay together.
    pub fn paired(&self, found: &BTreeMap<Bdf, PciAddress>) -> BTreeMap<Bdf, Bdf> {
        let mut paired = BTreeMap::new();
        for (&bdf, at) in found.iter().filter(|(_, at)| at.function > 0) {
            let first = found.iter().find(|(other, place)| {
                place.function == 0
                    && (place.bus, place.slot) == (at.bus, at.slot)
                    && other.is_of_slot(bdf)
            });
            paired.extend(first.map(|(first, _)| (bdf, *first)));
        }
        paired
    }

    /// Returns those of these functions that the plan puts into the slot of the GPU of their card,
    /// each with that GPU.
    fn beside<'b>(&self, devices: impl Iterator<Item = &'b Bdf>) -> BTreeMap<Bdf, Bdf> {
        let devices: Vec<Bdf> = devices.copied().collect();
        let first = |of: Bdf| {
            let is_first = |bdf: &Bdf| bdf.function() == 0 && bdf.is_of_slot(of);
            devices.iter().copied().find(is_first)
        };
        let planned = self.placement.guest_pcie.beside_gpu.iter().copied();
        let planned = planned.filter(|bdf| devices.contains(bdf));
        planned.filter_map(|bdf| Some((bdf, first(bdf)?))).collect()
    }

    /// Returns the addresses of the hostdevs of a document.
    pub fn hostdev_addresses(&self) -> BTreeMap<Bdf, PciAddress> {
        let at = |hostdev| Some((hostdev_bdf(hostdev)?.parse().ok()?, pci_address(hostdev)?));
        self.hostdevs().filter_map(at).collect()
    }

    /// Makes the expander buses and gives each function its port.
    pub fn expanders(
        &mut self,
        groups: &[CellGroup],
    ) -> Result<BTreeMap<Bdf, PciAddress>, DomainXmlError> {
        let found = self.hostdev_addresses();
        let beside = self.beside(groups.iter().flat_map(|group| &group.devices));
        let paired: BTreeMap<Bdf, Bdf> = beside.into_iter().chain(self.paired(&found)).collect();
        let alone = |devices: &[Bdf]| -> Vec<Bdf> {
            devices.iter().copied().filter(|bdf| !paired.contains_key(bdf)).collect()
        };
        let sizes: Vec<ExpanderSize> = groups
            .iter()
            .map(|group| ExpanderSize { cell: group.cell, ports: alone(&group.devices).len() })
            .collect();
        let made = self.buses.add_expanders(&sizes)?;
        let mut seated = BTreeMap::new();
        for (Expander { bus, ports }, group) in made.into_iter().zip(groups) {
            for (bdf, port) in alone(&group.devices).into_iter().zip(&ports) {
                let multifunction = paired.values().any(|first| *first == bdf);
                let first = PciAddress { multifunction, ..PciAddress::behind(port.index) };
                seated.insert(bdf, first);
                for (mate, _) in paired.iter().filter(|(_, first)| **first == bdf) {
                    let at = found.get(mate).filter(|at| at.function > 0);
                    let function = at.map_or(mate.function(), |at| at.function);
                    seated.insert(*mate, PciAddress { function, multifunction: false, ..first });
                }
            }
            self.controllers.push(bus);
            self.controllers.extend(ports);
        }
        self.dropped.retain(|index| !self.buses.bridges.contains_key(index));
        Ok(seated)
    }

    /// Gives functions that come a place, and leaves the others where they are, after those that
    /// are `gone`. Who comes gets a free port below an expander bus of its group, else one below a
    /// new expander bus. The ports of those that are gone stay, since without them the bus numbers
    /// behind would change; an expander bus that is left without functions goes.
    pub fn beside_kept(
        &mut self,
        groups: &[CellGroup],
        gone: &[Bdf],
    ) -> Result<BTreeMap<Bdf, PciAddress>, DomainXmlError> {
        let mut found = self.hostdev_addresses();
        gone.iter().filter_map(|bdf| found.get(bdf)).for_each(|at| self.buses.release(*at));
        self.drop_left(gone);
        // Those that only leave their place come again.
        found.retain(|bdf, _| !gone.contains(bdf));
        let mut seated = BTreeMap::new();
        let mut beside: BTreeMap<Bdf, Bdf> = BTreeMap::new();
        let mut wanting: Vec<CellGroup> = Vec::new();
        for CellGroup { cell, devices } in groups {
            let (stay, come): (Vec<Bdf>, Vec<Bdf>) =
                devices.iter().copied().partition(|bdf| found.contains_key(bdf));
            seated.extend(stay.iter().map(|bdf| (*bdf, found[bdf])));
            let above = stay.iter().filter_map(|bdf| self.buses.expander_above(found[bdf].bus));
            let above: BTreeSet<u8> = above.collect();
            above.iter().for_each(|expander| self.move_to_cell(*expander, *cell));
            let free = above.iter().flat_map(|expander| self.buses.free_ports_below(*expander));
            let free: Vec<u8> = free.collect();
            let paired = self.beside(come.iter());
            beside.extend(paired.clone());
            let come: Vec<Bdf> = come.into_iter().filter(|bdf| !paired.contains_key(bdf)).collect();
            seated.extend(
                come.iter().copied().zip(free.iter().map(|port| PciAddress::behind(*port))),
            );
            let rest: Vec<Bdf> = come.into_iter().skip(free.len()).collect();
            wanting.extend((!rest.is_empty()).then_some(CellGroup { cell: *cell, devices: rest }));
        }
        let sizes: Vec<ExpanderSize> = wanting
            .iter()
            .map(|group| ExpanderSize { cell: group.cell, ports: group.devices.len() })
            .collect();
        let made = self.buses.add_expanders(&sizes)?;
        for (Expander { bus, ports }, group) in made.into_iter().zip(wanting) {
            let places = ports.iter().map(|port| PciAddress::behind(port.index));
            seated.extend(group.devices.into_iter().zip(places));
            self.controllers.push(bus);
            self.controllers.extend(ports);
        }
        for (bdf, first) in beside {
            let Some(at) = seated.get_mut(&first) else { continue };
            at.multifunction = true;
            let at = PciAddress { function: bdf.function(), multifunction: false, ..*at };
            seated.insert(bdf, at);
        }
        self.dropped.retain(|index| !self.buses.bridges.contains_key(index));
        Ok(seated)
    }

    /// Gives functions that come to a running guest the free ones of these ports, below an expander
    /// bus of their group first, then on the root bus, and leaves the others where they are; `None`
    /// if there are too few.
    pub fn beside_running(
        &mut self,
        groups: &[CellGroup],
        gone: &[Bdf],
        ports: &BTreeSet<u8>,
    ) -> Option<BTreeMap<Bdf, PciAddress>> {
        let found = self.hostdev_addresses();
        gone.iter().filter_map(|bdf| found.get(bdf)).for_each(|at| self.buses.release(*at));
        let mut free: BTreeSet<u8> =
            ports.iter().copied().filter(|port| self.buses.is_free_port(*port)).collect();
        let mut seated = BTreeMap::new();
        for CellGroup { devices, .. } in groups {
            let (stay, come): (Vec<Bdf>, Vec<Bdf>) =
                devices.iter().copied().partition(|bdf| found.contains_key(bdf));
            seated.extend(stay.iter().map(|bdf| (*bdf, found[bdf])));
            let above = |bdf: &Bdf| self.buses.expander_above(found[bdf].bus);
            let above: BTreeSet<u8> = stay.iter().filter_map(above).collect();
            for bdf in come {
                let is_near = |port: &&u8| {
                    self.buses.expander_above(**port).is_some_and(|bus| above.contains(&bus))
                };
                let on_root = |port: &&u8| self.buses.expander_above(**port).is_none();
                let port = free.iter().find(is_near).or_else(|| free.iter().find(on_root));
                let port = *port?;
                free.remove(&port);
                seated.insert(bdf, PciAddress::behind(port));
            }
        }
        Some(seated)
    }

    /// Returns the expander buses above GPUs with coherent memory, which have an SMMUv3 each;
    /// `None` if the guest has no such GPU.
    pub fn smmus(&self, seated: &BTreeMap<Bdf, PciAddress>) -> Option<Vec<u8>> {
        let gpus = self.placement.initiators.as_ref()?.gpus.iter();
        let ports = gpus.filter_map(|own| Some(seated.get(&own.gpu)?.bus));
        Some(ports.filter_map(|port| self.buses.expander_above(port)).collect())
    }

    /// Removes expander buses that had functions which are gone, and have nothing else.
    fn drop_left(&mut self, gone: &[Bdf]) {
        let goes = |device: Element<'_>| {
            let bdf = hostdev_bdf(device).and_then(|bdf| bdf.parse().ok());
            bdf.is_some_and(|bdf: Bdf| gone.contains(&bdf))
        };
        let is_bridge = |device: Element<'_>| {
            device.name() == "controller" && device.attr("type").as_deref() == Some("pci")
        };
        let expanders: Vec<u8> = self.buses.bridges.keys().copied().collect();
        for index in expanders {
            if self.buses.expander_above(index) != Some(index) {
                continue;
            }
            let below = self.buses.below(index);
            let sits = |device: Element<'_>| {
                pci_address(device).is_some_and(|address| below.contains(&address.bus))
            };
            let had = self.elements().any(|device| goes(device) && sits(device));
            let has = |device| !is_bridge(device) && !goes(device) && sits(device);
            if had && !self.elements().any(has) {
                for &index in below.iter().rev() {
                    self.buses.forget(index);
                }
                self.dropped.extend(below);
            }
        }
    }

    /// Moves an expander bus to another guest cell: cells are renumbered when nodes are added or
    /// removed.
    fn move_to_cell(&mut self, expander: u8, cell: Option<u32>) {
        let Some(bridge) = self.buses.bridges.get_mut(&expander) else { return };
        let Some(bus_nr) = bridge.bus_nr.filter(|_| bridge.model == "pcie-expander-bus") else {
            return;
        };
        if bridge.cell == cell {
            return;
        }
        bridge.cell = cell;
        let (index, model, bus_nr) = (expander, Some("pcie-expander-bus"), Some(bus_nr));
        let (alias, address) = (None, None);
        let kind = "pci";
        self.controllers.push(Controller { kind, index, model, bus_nr, cell, alias, address });
    }

    /// Gives each root port of a passed-through function an alias derived from the function's.
    pub fn name_ports(&mut self, hostdevs: &[HostdevSeat]) -> BTreeMap<Bdf, String> {
        let mut names = BTreeMap::new();
        for HostdevSeat { bdf, alias, address, .. } in hostdevs {
            if address.function > 0 {
                continue; // its port has the alias of function 0
            }
            let name = format!("{alias}-port");
            let mut made = self.controllers.iter_mut();
            match made.find(|made| made.kind == "pci" && made.index == address.bus) {
                Some(made) => made.alias = Some(name.clone()),
                None => self.controllers.push(Controller {
                    alias: Some(name.clone()),
                    ..Controller::known_port(address.bus)
                }),
            }
            names.insert(*bdf, name);
        }
        names
    }
}

/// How far the functions of a group may be from each other in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spread {
    /// Below one expander bus.
    No,
    /// Below several expander buses of their cell, as they are where some came later.
    Below,
    /// The same, or on the root bus, where NICs and drives are that came to the running guest.
    Plugged,
}

/// Whether a function is one that we give to running guests: a NIC or a drive, by its alias.
fn is_pluggable(hostdev: Element<'_>) -> bool {
    let alias = hostdev.child("alias").and_then(|alias| alias.attr("name"));
    alias.is_some_and(|name| name.starts_with("ua-pci") || name.starts_with("ua-vf"))
}

/// Merges the groups of functions of the same cell.
fn by_cell(groups: &[CellGroup]) -> Vec<CellGroup> {
    let mut joined: BTreeMap<Option<u32>, Vec<Bdf>> = BTreeMap::new();
    for CellGroup { cell, devices } in groups {
        joined.entry(*cell).or_default().extend(devices);
    }
    joined.into_iter().map(|(cell, devices)| CellGroup { cell, devices }).collect()
}

/// Whether the host's kernel can move packets for the guest (vhost).
pub(super) fn has_vhost(guest: &Guest) -> bool {
    guest.virt == VirtType::Kvm
}
