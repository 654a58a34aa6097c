//! The guest's PCI buses: addresses, controllers, and the allocation of free ones. Knows neither
//! the host nor the owners of devices.

use super::DomainXmlError;
use super::element::{Element, number};
use super::fragment::{Fragment, Want};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// An address on the guest's PCI buses; `bus` is the index of the controller that it hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PciAddress {
    /// Index of the controller.
    pub bus: u8,
    /// Slot, 0 to 31.
    pub slot: u8,
    /// Function, 0 to 7.
    pub function: u8,
    /// Whether other functions of the slot are in use; only for function 0.
    pub multifunction: bool,
}

impl PciAddress {
    /// The address of the only device behind a port.
    pub fn behind(port: u8) -> PciAddress {
        PciAddress { bus: port, slot: 0, function: 0, multifunction: false }
    }

    /// Returns the wanted state of its element.
    pub(super) fn fragment(self) -> Fragment {
        let address = Fragment::new("address")
            .attr("type", "pci")
            .attr("domain", "0x0000")
            .attr("bus", format!("0x{:02x}", self.bus))
            .attr("slot", format!("0x{:02x}", self.slot))
            .attr("function", format!("0x{:x}", self.function));
        if self.multifunction { address.attr("multifunction", "on") } else { address }
    }
}

/// A controller that we set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Controller {
    /// libvirt's `type`: `pci`, `virtio-serial`, `usb`, `scsi`.
    pub kind: &'static str,
    /// Index among those of its type.
    pub index: u8,
    /// Model; `None` for libvirt's only one.
    pub model: Option<&'static str>,
    /// For an expander bus: its bus number in the guest.
    pub bus_nr: Option<u8>,
    /// For an expander bus: the guest cell that it belongs to.
    pub cell: Option<u32>,
    /// Name for overrides, with libvirt's prefix for users' names; `None` for that of the document.
    pub alias: Option<String>,
    /// Its address; `None` for that of the document.
    pub address: Option<PciAddress>,
}

/// The guest PCI address of a device or controller; none if it has none or another kind.
pub(super) fn pci_address(device: Element<'_>) -> Option<PciAddress> {
    let address = device.child("address").filter(|a| a.attr("type").as_deref() == Some("pci"))?;
    let field = |name: &str| u8::try_from(number(&address.attr(name)?)?).ok();
    let (bus, slot) = (field("bus")?, field("slot")?);
    Some(PciAddress { bus, slot, function: field("function").unwrap_or(0), multifunction: false })
}

/// Reads the index of a PCI controller, as text without leading zeros.
fn pci_index(controller: Element<'_>) -> Option<String> {
    let is_pci = controller.attr("type").is_some_and(|kind| kind == "pci");
    is_pci.then(|| number(&controller.attr("index")?).map(|index| index.to_string()))?
}

/// Whether a model that libvirt chose, or an alias of ours, is that of a root port.
fn is_of_port(child: Element<'_>) -> bool {
    let name = child.attr("name").unwrap_or_default();
    match child.name() {
        "alias" => name.starts_with("ua-") && name.ends_with("-port"),
        _ => name != "pxb-pcie",
    }
}

/// Whether a model that libvirt chose is that of an expander bus.
fn is_of_expander(model: Element<'_>) -> bool {
    model.attr("name").is_some_and(|name| name == "pxb-pcie")
}

impl Controller {
    /// A root port.
    pub fn port(index: u8, address: PciAddress) -> Controller {
        Controller { address: Some(address), ..Controller::known_port(index) }
    }

    /// A root port that the document has.
    pub fn known_port(index: u8) -> Controller {
        let (model, alias) = (Some("pcie-root-port"), None);
        Controller { kind: "pci", index, model, bus_nr: None, cell: None, alias, address: None }
    }

    /// The root of the PCI buses, which every machine has.
    pub(super) fn root() -> Fragment {
        let root = Fragment::new("controller").key(pci_index, 0).attr("type", "pci");
        root.attr("index", 0).attr("model", "pcie-root")
    }

    /// A PCI controller to be removed.
    pub(super) fn dropped(index: u8) -> Fragment {
        Fragment::gone("controller").key(pci_index, index)
    }

    /// Returns the wanted state of its element.
    pub(super) fn fragment(&self) -> Fragment {
        let controller = Fragment::new("controller");
        let mut controller = match (self.kind, self.model) {
            ("pci", _) => controller.key(pci_index, self.index),
            // Only made if the document has none of its type, so that no element has this key.
            _ => controller.key(|_| None, self.index),
        };
        controller = controller.attr("type", self.kind).attr("index", self.index);
        controller = match self.model {
            Some(model) => controller.attr("model", model),
            None => controller.want("model", Want::Absent),
        };
        if let Some(bus_nr) = self.bus_nr {
            let node = self.cell.map(|cell| Fragment::new("node").text(cell));
            let target = Fragment::new("target").attr("busNr", bus_nr);
            let target = target.want("chassis", Want::Absent).want("port", Want::Absent);
            controller = controller.child(target.children(node).only("node"));
        }
        controller = match self.model {
            Some("pcie-expander-bus") => {
                controller.only_where("model", is_of_port).only_where("alias", is_of_port)
            }
            Some("pcie-root-port") => {
                // The previous target of an expander bus of this index.
                let target = Fragment::new("target").if_there().want("busNr", Want::Absent);
                let target = target.only("node").drop_empty();
                controller.child(target).only_where("model", is_of_expander)
            }
            _ => controller,
        };
        let alias = self.alias.as_ref().map(|alias| Fragment::new("alias").attr("name", alias));
        controller.children(alias).children(self.address.map(PciAddress::fragment))
    }
}

/// A PCI controller of a document.
#[derive(Debug, Clone)]
pub(super) struct Bridge {
    /// Its model: `pcie-root-port`.
    pub model: String,
    /// Its address; none where libvirt is to choose one, and for roots.
    pub address: Option<PciAddress>,
    /// For an expander bus: its bus number.
    pub bus_nr: Option<u8>,
    /// For an expander bus: its guest cell.
    pub cell: Option<u32>,
}

/// The occupancy of the guest's PCI buses.
#[derive(Debug, Clone, Default)]
pub(super) struct Buses {
    /// PCI controllers by index.
    pub bridges: BTreeMap<u8, Bridge>,
    used: BTreeSet<(u8, u8)>,
    /// The slot of the root bus that takes the next root ports, and the function of the next one.
    filling: Option<(u8, u8)>,
}

/// Slots of the root bus that machine type q35 or libvirt reserve: host bridge, first video, ISA
/// bridge.
const RESERVED: [u8; 3] = [0, 1, 31];

/// An expander bus that is wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpanderSize {
    /// Its guest cell.
    pub cell: Option<u32>,
    /// Its number of root ports.
    pub ports: usize,
}

/// An expander bus with its root ports.
#[derive(Debug)]
pub(super) struct Expander {
    pub bus: Controller,
    pub ports: Vec<Controller>,
}

impl Buses {
    /// Reads the controllers and the addresses of a document's devices.
    pub fn read(devices: Element<'_>) -> Result<Buses, DomainXmlError> {
        let mut buses = Buses::default();
        for device in devices.elements() {
            let address = pci_address(device);
            buses.used.extend(address.map(|address| (address.bus, address.slot)));
            if device.name() != "controller" || device.attr("type").as_deref() != Some("pci") {
                continue;
            }
            let index = device.attr("index").and_then(|index| number(&index));
            let Some(index) = index.and_then(|index| u8::try_from(index).ok()) else {
                let message = "a PCI controller needs an index from 0 to 255".into();
                return Err(DomainXmlError::Value { path: device.path(), message });
            };
            let target = device.child("target");
            let bus_nr = target.and_then(|target| number(&target.attr("busNr")?));
            let cell = target.and_then(|target| target.child("node")?.text().parse().ok());
            let bus_nr = bus_nr.and_then(|number| u8::try_from(number).ok());
            let model = device.attr("model").unwrap_or_default().into_owned();
            buses.bridges.insert(index, Bridge { model, address, bus_nr, cell });
        }
        Ok(buses)
    }

    /// Whether a PCI controller is an expander bus or is below one; returns that bus's index.
    pub fn expander_above(&self, index: u8) -> Option<u8> {
        let mut next = index;
        for _ in 0..=self.bridges.len() {
            let bridge = self.bridges.get(&next)?;
            if bridge.model.ends_with("expander-bus") {
                return Some(next);
            }
            next = bridge.address?.bus;
        }
        None
    }

    /// Indexes of an expander bus and of all controllers below it.
    pub fn below(&self, expander: u8) -> Vec<u8> {
        let is_below = |index: &u8| self.expander_above(*index) == Some(expander);
        self.bridges.keys().copied().filter(is_below).collect()
    }

    /// Root ports of the root bus below which nothing is, by index.
    pub fn free_root_ports(&self) -> impl Iterator<Item = u8> {
        let is_port = |index: &u8| {
            let bridge = self.bridges.get(index);
            bridge.is_some_and(|bridge| {
                bridge.model == "pcie-root-port" && bridge.address.is_some_and(|at| at.bus == 0)
            })
        };
        let is_idle = |index: &u8| !self.used.iter().any(|(bus, _)| bus == index);
        self.bridges.keys().copied().filter(move |index| is_port(index) && is_idle(index))
    }

    /// Root ports below an expander bus with nothing behind them, by index.
    pub fn free_ports_below(&self, expander: u8) -> Vec<u8> {
        let below = self.below(expander).into_iter();
        below.filter(|index| self.is_free_port(*index)).collect()
    }

    /// Whether a controller is a root port with nothing behind it.
    pub fn is_free_port(&self, index: u8) -> bool {
        let is_port = self.bridges.get(&index).is_some_and(|b| b.model == "pcie-root-port");
        is_port && !self.used.iter().any(|(bus, _)| *bus == index)
    }

    /// Releases the slot of a device that goes.
    pub fn release(&mut self, address: PciAddress) {
        self.used.remove(&(address.bus, address.slot));
    }

    /// Returns how many bus numbers, from 0, the root bus and the buses below it take.
    fn buses_of_root(&self) -> usize {
        let on_root = |&index: &u8| index != 0 && self.expander_above(index).is_none();
        1 + self.bridges.keys().copied().filter(on_root).count()
    }

    /// Forgets a controller and the addresses in use behind it.
    pub fn forget(&mut self, index: u8) {
        if let Some(address) = self.bridges.remove(&index).and_then(|bridge| bridge.address) {
            self.used.remove(&(address.bus, address.slot));
        }
        self.used.retain(|(bus, _)| *bus != index);
    }

    /// Whether the bus numbers of expander buses leave room for the buses below each and for those
    /// of the root.
    pub fn bus_numbers_fit(&self) -> bool {
        let expanders = self.bridges.iter().filter(|(_, b)| b.model.ends_with("expander-bus"));
        let ranges =
            expanders.map(|(&index, bridge)| Some((bridge.bus_nr?, self.below(index).len())));
        let Some(mut ranges) = ranges.collect::<Option<Vec<_>>>() else { return false };
        ranges.sort_unstable();
        let mut end = self.buses_of_root();
        ranges.into_iter().all(|(start, length)| {
            let fits = usize::from(start) >= end;
            end = usize::from(start) + length;
            // libvirt takes 1 to 254 as an expander's number.
            fits && end <= 256 && start < u8::MAX
        })
    }

    /// The smallest index that no PCI controller has.
    fn free_index(&self) -> Result<u8, DomainXmlError> {
        let free = (1..=u8::MAX).find(|index| !self.bridges.contains_key(index));
        free.ok_or_else(|| full("a guest has at most 256 PCI controllers"))
    }

    /// Takes a free slot of the root bus, from `first` on.
    pub fn root_slot(&mut self, first: u8) -> Result<u8, DomainXmlError> {
        let is_free = |slot: &u8| !RESERVED.contains(slot) && !self.used.contains(&(0, *slot));
        let slot = (first..32).chain(2..first).find(is_free);
        let slot = slot.ok_or_else(|| full("no slot of the guest's root bus is free"))?;
        self.used.insert((0, slot));
        Ok(slot)
    }

    /// Takes an address for a root port on the root bus, eight to a slot as libvirt does.
    pub fn port_address(&mut self) -> Result<PciAddress, DomainXmlError> {
        let (slot, function) = match self.filling.filter(|(_, function)| *function < 8) {
            Some(next) => next,
            None => (self.root_slot(2)?, 0),
        };
        self.filling = Some((slot, function + 1));
        Ok(PciAddress { bus: 0, slot, function, multifunction: function == 0 })
    }

    /// Makes a root port on the root bus.
    pub fn add_port(&mut self) -> Result<Controller, DomainXmlError> {
        let address = self.port_address()?;
        self.add_bridge(address)
    }

    /// Makes a root port behind all others of the root bus, so that the bus numbers below those
    /// stay as they are.
    pub fn add_last_port(&mut self) -> Result<Controller, DomainXmlError> {
        let ports = self.bridges.values().filter(|bridge| bridge.model == "pcie-root-port");
        let slots = ports.filter_map(|port| Some(port.address.filter(|at| at.bus == 0)?.slot));
        let slot = self.root_slot(slots.max().map_or(2, |last| last.saturating_add(1)))?;
        self.add_bridge(PciAddress { bus: 0, slot, function: 0, multifunction: false })
    }

    /// Makes a root port at an address.
    pub fn add_bridge(&mut self, address: PciAddress) -> Result<Controller, DomainXmlError> {
        let index = self.free_index()?;
        let model = "pcie-root-port".to_owned();
        let bridge = Bridge { model, address: Some(address), bus_nr: None, cell: None };
        self.bridges.insert(index, bridge);
        Ok(Controller::port(index, address))
    }

    /// Makes expander buses with the given numbers of root ports, and assigns bus numbers, the
    /// highest to the last. Call it when the root bus is complete.
    pub fn add_expanders(
        &mut self,
        sizes: &[ExpanderSize],
    ) -> Result<Vec<Expander>, DomainXmlError> {
        let kept = self.bridges.values().filter_map(|bridge| bridge.bus_nr).min();
        let ports: usize = sizes.iter().map(|size| size.ports + 1).sum();
        // libvirt takes 1 to 254 as an expander's number: one without ports is not the last bus.
        let is_empty = sizes.last().is_some_and(|size| size.ports == 0);
        let end = kept.map_or(256 - usize::from(is_empty), usize::from);
        let Some(mut bus_nr) = end.checked_sub(ports).filter(|n| *n >= self.buses_of_root()) else {
            return Err(full("the guest's devices need more than 256 PCI buses"));
        };
        let mut made = Vec::new();
        for &ExpanderSize { cell, ports: count } in sizes {
            if count > 32 {
                return Err(full("an expander bus has 32 slots, fewer than a cell's devices"));
            }
            let slot = self.root_slot(16)?;
            let address = PciAddress { bus: 0, slot, function: 0, multifunction: false };
            let mut expander = self.add_bridge(address)?;
            expander.model = Some("pcie-expander-bus");
            expander.bus_nr = u8::try_from(bus_nr).ok();
            expander.cell = cell;
            if let Some(bridge) = self.bridges.get_mut(&expander.index) {
                bridge.model = "pcie-expander-bus".into();
                bridge.bus_nr = expander.bus_nr;
                bridge.cell = cell;
            }
            let bus = expander.index;
            let slots = (0..32).take(count);
            let port =
                |slot| self.add_bridge(PciAddress { bus, slot, function: 0, multifunction: false });
            let ports = slots.map(port).collect::<Result<Vec<_>, _>>()?;
            bus_nr += count + 1;
            made.push(Expander { bus: expander, ports });
        }
        Ok(made)
    }
}

/// Makes the error that the guest's PCI buses are full.
fn full(message: &str) -> DomainXmlError {
    DomainXmlError::Value { path: "domain/devices".into(), message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::DomainXml;

    /// The buses of a document with these devices.
    fn buses(devices: &str) -> Result<Buses, DomainXmlError> {
        let xml =
            DomainXml::parse(&format!("<domain><devices>{devices}</devices></domain>")).unwrap();
        Buses::read(xml.root().child("devices").unwrap())
    }

    #[test]
    fn refuses_controllers_without_a_number() {
        for index in ["", "index='x'", "index='256'", "index='-1'"] {
            assert!(
                buses(&format!("<controller type='pci' {index} model='pcie-root-port'/>")).is_err()
            );
        }
    }

    #[test]
    fn bus_numbers_must_not_overlap() {
        let port = |index: u8, bus: u8| {
            format!(
                "<controller type='pci' index='{index}' model='pcie-root-port'><address type='pci' \
                 bus='{bus}' slot='{index}'/></controller>"
            )
        };
        let expander = |index: u8, number: &str| {
            format!(
                "<controller type='pci' index='{index}' model='pcie-expander-bus'><target \
                 {number}/><address type='pci' bus='0' slot='{index}'/></controller>"
            )
        };
        for (devices, fits) in [
            (String::new(), true),
            (expander(1, "busNr='254'") + &port(2, 1), true),
            (expander(1, "busNr='255'") + &port(2, 1), false),
            (expander(1, "busNr='1'") + &port(2, 1), true),
            (expander(1, "busNr='1'") + &port(2, 0), false),
            (expander(1, "") + &port(2, 1), false),
            (expander(1, "busNr='9'") + &port(2, 1) + &expander(3, "busNr='10'"), false),
            (expander(1, "busNr='9'") + &port(2, 1) + &expander(3, "busNr='11'"), true),
        ] {
            assert_eq!(buses(&devices).unwrap().bus_numbers_fit(), fits, "{devices}");
        }
    }

    #[test]
    fn expander_buses_take_the_highest_numbers_and_leave_room() {
        let size = |cell, ports| ExpanderSize { cell, ports };
        let mut free = buses("").unwrap();
        let made = free.add_expanders(&[size(Some(0), 2), size(Some(1), 8)]).unwrap();
        let numbers: Vec<_> =
            made.iter().map(|one| (one.bus.bus_nr.unwrap(), one.ports.len())).collect();
        assert_eq!(numbers, [(244, 2), (247, 8)]);
        assert!(free.bus_numbers_fit());
        // libvirt takes 1 to 254 as an expander's number.
        let last = buses("").unwrap().add_expanders(&[size(None, 2), size(None, 0)]).unwrap();
        assert_eq!(last[1].bus.bus_nr, Some(254));
        assert!(buses("").unwrap().add_expanders(&[size(None, 33)]).is_err());
        assert!(buses("").unwrap().add_expanders(&[size(None, 32); 8]).is_err());
    }

    #[test]
    fn a_loop_of_controllers_does_not_hang() {
        let looped = "<controller type='pci' index='1' model='x'><address type='pci' bus='2' slot='1'/></controller>
            <controller type='pci' index='2' model='x'><address type='pci' bus='1' slot='1'/></controller>";
        let buses = buses(looped).unwrap();
        assert_eq!((buses.expander_above(1), buses.bus_numbers_fit()), (None, true));
    }
}
