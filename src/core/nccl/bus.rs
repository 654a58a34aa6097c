//! The bus numbers that a guest's firmware assigns. The `bus` of a libvirt address is the index of
//! a controller; the bus numbers that the guest, and NCCL in it, sees are assigned by firmware.
//!
//! SeaBIOS and OVMF assign the same numbers: each root bus has its own number (0, and `busNr` of an
//! expander bus), and the bridges below it take the following ones, depth first, by slot and
//! function (SeaBIOS src/fw/pciinit.c; edk2 PciBusDxe/PciLib.c). Linux keeps them. The integration
//! tests compare this with what QEMU shows after each of them.

use super::filled::{refuse_unfilled, unplaced};
use super::{NcclError, is_withheld};
use crate::bdf::Bdf;
use crate::check::guest::{Controller, Guest};
use crate::domain::DomainXml;
use crate::domain::read::GuestAddress;
use std::collections::{BTreeMap, BTreeSet};

/// The last bus number of PCI.
pub(super) const LAST: u32 = 255;

/// The buses of a guest.
#[derive(Debug)]
pub struct Buses<'g, 't> {
    guest: &'g Guest<'t>,
    /// Number of the bus behind a controller, by the controller's index.
    numbers: BTreeMap<u32, u8>,
    /// A device on the root bus whose address libvirt will choose; it may get a port that renumbers
    /// the others.
    unplaced: Option<String>,
}

/// Whether a controller is a root of buses: the machine's own or an expander.
fn is_root(controller: &Controller<'_>) -> bool {
    matches!(controller.model.as_str(), "pcie-root" | "pci-root") || is_expander(controller)
}

/// Whether a controller is an expander bus.
fn is_expander(controller: &Controller<'_>) -> bool {
    matches!(controller.model.as_str(), "pcie-expander-bus" | "pci-expander-bus")
}

/// The addresses on the host and in the guest of the functions that are passed through. One that is
/// not known is left out: of a machine without PCI Express, of an argument of QEMU, on a bus whose
/// number is not settled.
pub fn addresses(domain: &DomainXml) -> Vec<(Bdf, Bdf)> {
    let guest = Guest::read(domain);
    let controllers = "/domain/devices/controller";
    let is_unread = guest.faults.iter().any(|fault| fault.spot.path().starts_with(controllers));
    if !domain.is_pcie() || is_unread || refuse_unfilled(domain, &guest).is_err() {
        return Vec::new();
    }
    let Ok(buses) = Buses::new(domain, &guest) else { return Vec::new() };
    let shown = guest.passed.iter().filter(|one| !one.by_argument && !is_withheld(one));
    let placed = shown.filter_map(|one| {
        let (bdf, at) = (one.bdf.value, one.at.as_ref()?.value);
        Some((bdf, buses.address(at, bdf).ok()?))
    });
    placed.collect()
}

/// Returns a controller's place on the bus above it.
fn place(controller: &Controller<'_>) -> Option<(u32, u32, u32)> {
    let at = controller.address.as_ref()?;
    Some((at.controller, at.slot, at.function))
}

impl<'g, 't> Buses<'g, 't> {
    /// Numbers the buses of a guest.
    ///
    /// # Errors
    ///
    /// Where a PCI controller has no address yet or is below itself, or numbers of two root buses
    /// overlap.
    pub fn new(domain: &DomainXml, guest: &'g Guest<'t>) -> Result<Buses<'g, 't>, NcclError> {
        refuse_misplaced(guest)?;
        let mut below: BTreeMap<u32, Vec<&Controller<'_>>> = BTreeMap::new();
        let mut roots = BTreeMap::from([(0, 0)]);
        for controller in guest.controllers.values() {
            let what = || format!("PCI controller {} ({})", controller.index, controller.model);
            let no_address = || NcclError::NoAddress { what: what() };
            if is_expander(controller) {
                let root = controller.bus_number.as_ref().ok_or_else(no_address)?.value;
                if roots.insert(root, controller.index).is_some() {
                    let limit = root.saturating_sub(1);
                    return Err(NcclError::BusNumbers { root, reached: root, limit });
                }
            } else if !is_root(controller) {
                let (above, ..) = place(controller).ok_or_else(no_address)?;
                below.entry(above).or_default().push(controller);
            }
        }
        for bridges in below.values_mut() {
            bridges.sort_by_key(|bridge| place(bridge));
        }
        let limits: Vec<u32> =
            roots.keys().skip(1).map(|next| LAST.min(next - 1)).chain([LAST]).collect();
        let mut numbers = BTreeMap::new();
        for ((&root, &index), limit) in roots.iter().zip(limits) {
            number(index, root, &Root { root, limit, below: &below }, &mut numbers)?;
        }
        Ok(Buses { guest, numbers, unplaced: unplaced(domain) })
    }

    /// The address in the guest of a function that is passed through.
    ///
    /// # Errors
    ///
    /// Where it is on no bus of the guest, or on one whose number may still change through devices
    /// without an address.
    pub fn address(&self, at: GuestAddress, bdf: Bdf) -> Result<Bdf, NcclError> {
        let controller = at.controller;
        let bus = self.numbers.get(&controller).copied();
        let bus = bus.ok_or(NcclError::Unconnected { bdf, controller })?;
        if let (None, 1.., Some(what)) = (self.expander(controller), bus, &self.unplaced) {
            return Err(NcclError::NoAddress { what: what.clone() });
        }
        let narrow = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
        let address = Bdf::new(at.segment, bus, narrow(at.slot), narrow(at.function));
        address.map_err(|error| NcclError::Unreadable {
            path: format!("guest address of {bdf}"),
            message: error.to_string(),
        })
    }

    /// Returns the guest NUMA cell of devices on a controller's bus: that of its expander bus;
    /// `None` if no particular cell.
    pub fn cell_of(&self, controller: u32) -> Option<u32> {
        self.expander(controller)?.cell.as_ref().map(|cell| cell.value)
    }

    /// The expander bus that a controller is or is below; it has a number, so that this ends at a
    /// root.
    fn expander(&self, controller: u32) -> Option<&'g Controller<'t>> {
        let mut next = self.guest.controller(controller)?;
        while !is_root(next) {
            next = self.guest.controller(next.address.as_ref()?.controller)?;
        }
        is_expander(next).then_some(next)
    }
}

/// A root bus whose subordinate buses are being numbered.
struct Root<'b, 'g, 't> {
    root: u32,
    /// The highest number that a bus below it may have, 255 at most.
    limit: u32,
    /// The bridges of a bus, by its controller's index.
    below: &'b BTreeMap<u32, Vec<&'g Controller<'t>>>,
}

/// Numbers a bus and, consecutively, those behind its bridges; returns the last number. It ends at
/// the limit, however long the chain of bridges is.
fn number(
    index: u32,
    own: u32,
    of: &Root<'_, '_, '_>,
    numbers: &mut BTreeMap<u32, u8>,
) -> Result<u32, NcclError> {
    let Root { root, limit, below } = *of;
    let narrow = u8::try_from(own).ok().filter(|_| own <= limit);
    numbers.insert(index, narrow.ok_or(NcclError::BusNumbers { root, reached: own, limit })?);
    let mut bridges = below.get(&index).into_iter().flatten();
    bridges.try_fold(own, |last, bridge| number(bridge.index, last + 1, of, numbers))
}

/// Refuses controllers that are below themselves, and another controller in place of the root bus.
fn refuse_misplaced(guest: &Guest<'_>) -> Result<(), NcclError> {
    if let Some(root) = guest.controller(0)
        && (is_expander(root) || !(is_root(root) || root.model.is_empty()))
    {
        return Err(NcclError::NotRoot { model: root.model.clone() });
    }
    let mut seen = BTreeSet::new();
    for controller in guest.controllers.values() {
        let (mut way, mut next) = (BTreeSet::new(), Some(controller));
        while let Some(at) = next.filter(|at| !is_root(at) && !seen.contains(&at.index)) {
            if !way.insert(at.index) {
                return Err(NcclError::ControllerLoop { controller: at.index });
            }
            next = at.address.as_ref().and_then(|above| guest.controller(above.controller));
        }
        seen.extend(way);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(devices: &str) -> DomainXml {
        let os = "<os><type arch='x86_64' machine='q35'>hvm</type></os>";
        DomainXml::parse(&format!("<domain>{os}<devices>{devices}</devices></domain>")).unwrap()
    }

    fn controller(index: u32, model: &str, at: (u32, u32, u32)) -> String {
        let (bus, slot, function) = at;
        format!(
            "<controller type='pci' index='{index}' model='{model}'><address type='pci' \
             bus='{bus}' slot='{slot}' function='{function}'/></controller>"
        )
    }

    fn port(index: u32, bus: u32, slot: u32, function: u32) -> String {
        controller(index, "pcie-root-port", (bus, slot, function))
    }

    fn expander(index: u32, number: u32, slot: u32) -> String {
        controller(index, "pcie-expander-bus", (0, slot, 0))
            .replace("><address", &format!("><target busNr='{number}'/><address"))
    }

    /// The number of the bus behind each controller, or why there is none.
    fn numbers(devices: &str) -> Result<Vec<(u32, u8)>, NcclError> {
        let domain = domain(devices);
        let guest = Guest::read(&domain);
        Ok(Buses::new(&domain, &guest)?.numbers.into_iter().collect())
    }

    #[test]
    fn buses_are_not_numbered_where_a_place_is_missing_or_two_overlap() {
        let unplaced = "<controller type='pci' index='1' model='pcie-root-port'/>";
        let nameless = controller(1, "pcie-expander-bus", (0, 1, 0));
        for (devices, what) in [(unplaced, "pcie-root-port"), (&nameless, "pcie-expander-bus")] {
            let what = format!("PCI controller 1 ({what})");
            assert_eq!(numbers(devices), Err(NcclError::NoAddress { what }));
        }
        let devices = expander(1, 1, 1) + &port(2, 0, 2, 0);
        let reached = |root, reached, limit| Err(NcclError::BusNumbers { root, reached, limit });
        assert_eq!(numbers(&devices), reached(0, 1, 0));
        let devices = expander(1, 255, 1) + &port(2, 1, 0, 0);
        assert_eq!(numbers(&devices), reached(255, 256, 255));
        let devices = expander(1, 9, 1) + &port(2, 1, 0, 0) + &expander(3, 10, 2);
        assert_eq!(numbers(&devices), reached(9, 10, 9));
    }

    #[test]
    fn buses_are_numbered_depth_first_by_slot_and_function() {
        // As shown by QEMU 10.0 after SeaBIOS and after OVMF: expander at 64 with ports at slots 0,
        // 2, 1; expander at 128 with a port, a switch of two ports below it, and another port;
        // ports of one slot on the root bus.
        let devices = [
            expander(1, 64, 16),
            port(2, 1, 0, 0),
            port(3, 1, 2, 0),
            port(4, 1, 1, 0),
            expander(5, 128, 17),
            port(6, 5, 0, 0),
            port(7, 5, 1, 0),
            controller(8, "pcie-switch-upstream-port", (6, 0, 0)),
            controller(9, "pcie-switch-downstream-port", (8, 0, 0)),
            controller(10, "pcie-switch-downstream-port", (8, 1, 0)),
            port(11, 0, 5, 1),
            port(12, 0, 5, 0),
        ];
        let (of_root, of_first) =
            ([(0, 0), (12, 1), (11, 2)], [(1, 64), (2, 65), (4, 66), (3, 67)]);
        let of_second = [(5, 128), (6, 129), (8, 130), (9, 131), (10, 132), (7, 133)];
        let mut expected = [&of_root[..], &of_first, &of_second].concat();
        expected.sort_unstable();
        assert_eq!(numbers(&devices.concat()).unwrap(), expected);
    }

    #[test]
    fn a_device_without_an_address_may_move_those_of_the_root_bus_only() {
        let devices = [port(1, 0, 2, 0), expander(2, 64, 16), port(3, 2, 0, 0)].concat();
        let bdf: Bdf = "34:00.0".parse().unwrap();
        let at = |controller| GuestAddress { segment: 0, controller, slot: 0, function: 0 };
        let address = |more: &str, controller| {
            let domain = domain(&(devices.clone() + more));
            let guest = Guest::read(&domain);
            Buses::new(&domain, &guest).unwrap().address(at(controller), bdf)
        };
        let placed = |text: &str| Ok(text.parse().unwrap());
        assert_eq!(address("", 1), placed("01:00.0"));
        assert_eq!(address("<disk><target dev='sda' bus='sata'/></disk>", 1), placed("01:00.0"));
        let missing = NcclError::NoAddress { what: "domain/devices/interface".into() };
        assert_eq!(address("<interface type='network'/>", 1), Err(missing));
        assert_eq!(address("<interface type='network'/>", 3), placed("41:00.0"));
        let unconnected = |controller| Err(NcclError::Unconnected { bdf, controller });
        assert_eq!(address("", 9), unconnected(9));
        assert_eq!(address(&port(7, 8, 0, 0), 7), unconnected(7));
    }

    #[test]
    fn addresses_of_functions_that_nccl_would_refuse_are_known_all_the_same() {
        let hostdev = |bus: u32, slot: u32, more: &str| {
            format!(
                "<hostdev mode='subsystem' type='pci'><source><address domain='0' bus='0x4b' \
                 slot='{slot}' function='0'/></source><address type='pci' domain='0' bus='{bus}' \
                 slot='{slot}' function='0'/>{more}</hostdev>"
            )
        };
        let xml = |devices: &str| domain(&format!("{}{devices}", port(1, 0, 2, 0)));
        let found = |devices: &str| -> Vec<String> {
            let all = addresses(&xml(devices)).into_iter();
            all.map(|(host, guest)| format!("{host} {guest}")).collect()
        };
        // Two NICs on one bus, one of them not at device 00, and an address without a controller.
        let two = hostdev(1, 0, "") + &hostdev(1, 1, "");
        let known = ["0000:4b:00.0 0000:01:00.0", "0000:4b:01.0 0000:01:01.0"];
        assert_eq!(found(&two), known);
        assert_eq!(found(&(two.clone() + &hostdev(9, 2, ""))), known);
        // One place twice, and a controller without a place.
        assert_eq!(found(&(two.clone() + &two)), [""; 0]);
        let unplaced = "<controller type='pci' index='3' model='pcie-root-port'/>";
        assert_eq!(found(&(two + unplaced)), [""; 0]);
    }

    #[test]
    fn controllers_below_themselves_and_endless_chains_are_refused() {
        let not_root = |model: &str| Err(NcclError::NotRoot { model: model.into() });
        assert_eq!(numbers(&port(0, 0, 0, 0)), not_root("pcie-root-port"));
        let away = port(0, 7, 0, 0) + &expander(7, 64, 1);
        assert_eq!(numbers(&away), not_root("pcie-root-port"));
        assert_eq!(numbers(&expander(0, 64, 1)), not_root("pcie-expander-bus"));
        let looped = |controller| Err(NcclError::ControllerLoop { controller });
        assert_eq!(numbers(&port(3, 3, 0, 0)), looped(3));
        assert_eq!(numbers(&(port(7, 8, 0, 0) + &port(8, 7, 0, 0))), looped(7));
        // A chain that would overflow any stack.
        let chain: String =
            (1..20_000).map(|index| controller(index, "pci-bridge", (index - 1, 1, 0))).collect();
        let reached = NcclError::BusNumbers { root: 0, reached: 256, limit: 255 };
        assert_eq!(numbers(&chain), Err(reached));
    }

    #[test]
    fn root_buses_above_the_last_number_or_of_one_number_are_refused() {
        let reached = |root, reached, limit| Err(NcclError::BusNumbers { root, reached, limit });
        let devices = expander(1, u32::MAX, 1) + &port(2, 1, 0, 0);
        assert_eq!(numbers(&devices), reached(u32::MAX, u32::MAX, 255));
        assert_eq!(numbers(&expander(1, 256, 1)), reached(256, 256, 255));
        let twice = expander(1, 64, 1) + &expander(2, 64, 2);
        assert_eq!(numbers(&twice), reached(64, 64, 63));
        assert_eq!(numbers(&expander(1, 0, 1)), reached(0, 0, 0));
        for (said, devices) in [
            ("two root buses of the guest have number 64", &twice),
            ("two root buses of the guest have number 0", &expander(1, 0, 1)),
            ("an expander bus has number 256, and 255 is the last", &expander(1, 256, 1)),
            (
                "the PCI buses below bus 9 need number 10, and root bus 10 begins there",
                &(expander(1, 9, 1) + &port(2, 1, 0, 0) + &expander(3, 10, 2)),
            ),
            (
                "the PCI buses below bus 255 need numbers up to 256, and 255 is the last one",
                &(expander(1, 255, 1) + &port(2, 1, 0, 0)),
            ),
        ] {
            let error = numbers(devices).unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }
}
