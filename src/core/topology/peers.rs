//! Functions that reach each other below a switch: ports that do not keep IOMMU groups apart, and
//! the way of what two functions send each other.
//!
//! The kernel forms IOMMU groups once, by the ACS control of that time. Whoever clears bits later
//! leaves the groups as they are, and they claim more than the hardware isolates.

use super::{DeviceKind, PciDevice, Sriov, Topology};
use crate::bdf::Bdf;
use crate::p2p::{self, Acs, End, Op, Port, Route, Translation, bits};
use std::collections::BTreeSet;

/// Root ports of NVIDIA's Grace and Vera, whose firmware leaves source validation off on purpose
/// (rdma-core, kernel-boot/rdma_topo).
const GRACE: [(u16, u16); 5] =
    [(0x10de, 0x22b1), (0x10de, 0x22b2), (0x10de, 0x22b8), (0x10de, 0x2f95), (0x10de, 0x2f96)];

/// A port, or a function of several in one slot, whose ACS does not keep functions of different
/// IOMMU groups apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenPort {
    /// Its address.
    pub at: Bdf,
    /// Whether it is a port.
    pub is_port: bool,
    /// Bits that must be on: those that isolate, of those that it has.
    pub wanted: u16,
    /// Bits of these that are off.
    pub open: u16,
}

impl OpenPort {
    /// Returns the command that turns the bits on, until the next boot or reset.
    pub fn command(&self) -> String {
        let OpenPort { at, wanted, .. } = self;
        format!("setpci -s {at} ECAP_ACS+6.w={wanted:x}:{wanted:x}")
    }
}

/// An open port, and which functions reach which by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Opening {
    port: OpenPort,
    below: Vec<Member>,
    beyond: Vec<Member>,
    /// Whether those below it reach each other by it.
    within: bool,
}

/// A function and its IOMMU group.
type Member = (Bdf, u32);

impl Opening {
    /// Whether a function of these reaches one that is not of these, or is reached by one.
    fn concerns(&self, functions: &[Bdf]) -> bool {
        let crosses = |from: &[Member], to: &[Member]| {
            from.iter().any(|(a, of_a)| {
                let own = functions.contains(a);
                to.iter().any(|(b, of_b)| of_a != of_b && own != functions.contains(b))
            })
        };
        crosses(&self.below, &self.beyond) || self.within && crosses(&self.below, &self.below)
    }

    /// Whether it connects different groups at all.
    fn is_real(&self) -> bool {
        let differ = |from: &[Member], to: &[Member]| {
            from.iter().any(|(_, a)| to.iter().any(|(_, b)| a != b))
        };
        differ(&self.below, &self.beyond) || self.within && differ(&self.below, &self.below)
    }
}

pub(super) fn openings(topology: &Topology) -> Vec<Opening> {
    let open = topology.devices().iter().filter_map(|device| {
        let acs = device.acs.filter(|acs| acs.open() != 0)?;
        let found = match device.kind() {
            _ if is_grace(device) => None,
            DeviceKind::Bridge => Some(of_port(topology, device, acs)),
            DeviceKind::HostBridge => None,
            _ => of_function(topology, device, acs),
        };
        found.filter(Opening::is_real)
    });
    open.collect()
}

fn of_port(topology: &Topology, port: &PciDevice, acs: Acs) -> Opening {
    let open = acs.open();
    let is_below = |bdf: Bdf, of: Bdf| topology.way_up(bdf).skip(1).any(|above| above.bdf == of);
    let root = topology.host_bridge(port.bdf);
    // Redirected requests are those to peers right beside the port; a request with the id of
    // another function is translated as that one's, wherever below the root complex that is.
    let is_beyond = |bdf: Bdf| match port.parent {
        Some(parent) if open & bits::SV == 0 => is_below(bdf, parent),
        _ => topology.host_bridge(bdf) == root,
    };
    let (mut below, mut beyond) = (Vec::new(), Vec::new());
    for device in topology.devices() {
        let Some(group) = device.iommu_group.filter(|_| is_endpoint(device)) else { continue };
        if is_below(device.bdf, port.bdf) {
            below.push((device.bdf, group));
        } else if open & (bits::SV | bits::RR | bits::CR) != 0 && is_beyond(device.bdf) {
            beyond.push((device.bdf, group));
        }
    }
    let within = open & bits::UF != 0;
    let port = OpenPort { at: port.bdf, is_port: true, wanted: acs.isolating(), open };
    Opening { port, below, beyond, within }
}

/// The functions that an open function connects: the others of its slot. Virtual functions are kept
/// apart by their card.
fn of_function(topology: &Topology, function: &PciDevice, acs: Acs) -> Option<Opening> {
    let is_physical = |device: &PciDevice| !device.is_vf();
    let slot = |bdf: Bdf| (bdf.segment(), bdf.bus(), bdf.device());
    let (wanted, open) = (acs.isolating() & (bits::RR | bits::CR), acs.open());
    let group = function.iommu_group.filter(|_| is_physical(function) && open & wanted != 0)?;
    let others = topology.devices().iter().filter(|other| {
        other.bdf != function.bdf && slot(other.bdf) == slot(function.bdf) && is_physical(other)
    });
    let beyond = others.filter_map(|other| Some((other.bdf, other.iommu_group?))).collect();
    let open = open & wanted;
    let port = OpenPort { at: function.bdf, is_port: false, wanted, open };
    Some(Opening { port, below: vec![(function.bdf, group)], beyond, within: false })
}

/// Whether it is a root port of Grace or Vera.
pub(super) fn is_grace(device: &PciDevice) -> bool {
    GRACE.contains(&(device.vendor, device.device))
}

/// Whether a function is none of the bridges.
fn is_endpoint(device: &PciDevice) -> bool {
    !matches!(device.kind(), DeviceKind::Bridge | DeviceKind::HostBridge)
}

/// When transfers are made, which decides whose ATS counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Once a guest with the functions has started: the kernel turns the ATS that they have on.
    Start,
    /// Now, in a running guest that has the functions.
    Running,
}

/// Where two functions meet below a switch.
#[derive(Debug, Clone)]
pub struct Meeting<'t> {
    /// The bridge that both are below.
    pub at: &'t PciDevice,
    /// The ports above each up to that bridge, its own first; at least one each.
    ports: [Vec<&'t PciDevice>; 2],
}

impl Meeting<'_> {
    /// Number of ports from the first function up to that bridge: fewer are nearer.
    pub fn steps(&self) -> usize {
        self.ports[0].len()
    }
}

impl Topology {
    /// Returns open ports by which a guest with these functions reaches others, or is reached; of
    /// no function: all open ports of the host.
    pub fn open_ports(&self, functions: &[Bdf]) -> Vec<OpenPort> {
        let concerns = |opening: &&Opening| functions.is_empty() || opening.concerns(functions);
        self.openings.iter().filter(concerns).map(|opening| opening.port).collect()
    }

    /// Returns the ports above functions with an IOMMU group whose ACS is not known.
    pub fn unread_ports(&self) -> BTreeSet<Bdf> {
        let grouped = self.devices().iter().filter(|d| is_endpoint(d) && d.iommu_group.is_some());
        let above = grouped.flat_map(|device| self.way_up(device.bdf).skip(1));
        above.filter(|bridge| bridge.acs.is_none()).map(|bridge| bridge.bdf).collect()
    }

    /// Returns where two functions meet below a switch; `None` if they do not.
    pub fn meeting(&self, a: Bdf, b: Bdf) -> Option<Meeting<'_>> {
        let above = |bdf: Bdf| self.way_up(bdf).skip(1).collect::<Vec<_>>();
        let (a, b) = (above(a), above(b));
        let is_common = |bridge: &&PciDevice| b.iter().any(|other| other.bdf == bridge.bdf);
        let at = a.iter().copied().find(is_common)?;
        let ports = [a, b].map(|ports| {
            ports.into_iter().take_while(|port| port.bdf != at.bdf).collect::<Vec<_>>()
        });
        ports.iter().all(|ports| !ports.is_empty()).then_some(Meeting { at, ports })
    }

    /// Returns the route of transfers from one function to another; `None` if they do not meet
    /// below a switch. ATS counts where the function has it, since the kernel turns it on for a
    /// guest.
    pub fn route(&self, from: Bdf, to: Bdf, op: Op) -> Option<Route> {
        self.route_of(from, to, op, Moment::Start)
    }

    /// The same at a moment: of functions that a running guest has, ATS counts only while it is on.
    pub fn route_of(&self, from: Bdf, to: Bdf, op: Op, moment: Moment) -> Option<Route> {
        let [from, to] = self.ends(from, to, moment)?;
        Some(p2p::route(&from, &to, op))
    }

    /// Returns the route once a port passes translated requests; `None` if they do not meet below a
    /// switch.
    pub fn route_once_set(&self, from: Bdf, to: Bdf, op: Op, port: Bdf) -> Option<Route> {
        let mut ends = self.ends(from, to, Moment::Start)?;
        for at in ends.iter_mut().flat_map(|end| &mut end.ports).filter(|at| at.at == port) {
            at.acs = at.acs.map(|acs| Acs { ctl: acs.ctl | acs.cap & bits::DT, ..acs });
        }
        let [from, to] = &ends;
        Some(p2p::route(from, to, op))
    }

    /// Returns the port that decides on the requests of one function to another; `None` if they do
    /// not meet below a switch.
    pub fn divergence(&self, from: Bdf, to: Bdf) -> Option<&PciDevice> {
        self.meeting(from, to)?.ports[0].last().copied()
    }

    /// Whether the kernel was started with ATS off for all functions.
    pub(super) fn is_without_ats(&self) -> bool {
        self.machine().kernel_arguments.iter().any(|argument| is_without_ats(argument))
    }

    /// Two functions that meet below a switch.
    fn ends(&self, from: Bdf, to: Bdf, moment: Moment) -> Option<[End; 2]> {
        let Meeting { ports: [from_ports, to_ports], .. } = self.meeting(from, to)?;
        let is_off = self.is_without_ats();
        let end = |function: Bdf, ports: Vec<&PciDevice>| {
            let device = self.device(function)?;
            let translation = device.ats.map(|ats| match (ats.present, is_off) {
                (false, _) => Translation::Absent,
                (true, true) => Translation::Off,
                (true, false) if moment == Moment::Running && !ats.enabled => Translation::Off,
                (true, false) => Translation::On,
            });
            let ports = ports.iter().map(|port| Port { at: port.bdf, acs: port.acs }).collect();
            // The bit of a virtual function is wired to 0.
            let ordered_by = match device.sriov {
                Some(Sriov::Vf { pf }) => pf,
                _ => function,
            };
            let devctl = self.device(ordered_by).and_then(|device| device.devctl);
            let relaxed = devctl.map(p2p::is_relaxed);
            Some(End { function, translation, relaxed, ordered_by, ports })
        };
        Some([end(from, from_ports)?, end(to, to_ports)?])
    }
}

/// Whether an argument of the kernel turns ATS off for all functions.
fn is_without_ats(argument: &str) -> bool {
    let values = argument.strip_prefix("pci=").unwrap_or_default();
    values.split(',').any(|value| value == "noats")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::p2p::Way;
    use crate::topology::file::from_json;
    use crate::topology::{Parts, Weakness};

    /// A root port, a switch below it with two ports, a function below each, and a second root
    /// port with a function. Every function has a group of its own.
    fn host(change: impl FnOnce(&mut Parts)) -> Topology {
        let text = include_str!("../../../topologies/dual-socket.json");
        let mut parts = from_json(text).unwrap().parts().clone();
        let device = |bdf: &str, parent: Option<&str>, class: &str, group: u32| -> PciDevice {
            let acs = (class == "0x060400").then_some(Acs { cap: 0x5f, ctl: 0x1d });
            let json = serde_json::json!({ "bdf": bdf, "parent": parent, "class": class,
                "root": "pci0000:00", "vendor": "0x10b5", "device": "0x9797",
                "iommu_group": group, "acs": acs, "node": 0 });
            serde_json::from_value(json).unwrap()
        };
        let (bridge, nic) = ("0x060400", "0x020000");
        parts.drives.clear();
        parts.devices = vec![
            device("0000:00:01.0", None, bridge, 1),
            device("0000:00:02.0", None, bridge, 2),
            device("0000:01:00.0", Some("0000:00:01.0"), bridge, 3),
            device("0000:02:00.0", Some("0000:01:00.0"), bridge, 4),
            device("0000:02:01.0", Some("0000:01:00.0"), bridge, 5),
            device("0000:03:00.0", Some("0000:02:00.0"), nic, 6),
            device("0000:04:00.0", Some("0000:02:01.0"), nic, 7),
            device("0000:05:00.0", Some("0000:00:02.0"), nic, 8),
        ];
        parts.devices[2].acs = Some(Acs { cap: 0, ctl: 0 });
        change(&mut parts);
        Topology::new(parts).unwrap()
    }

    /// An address on segment 0.
    fn at(text: &str) -> Bdf {
        text.parse().unwrap()
    }

    /// Sets ACS control of a device.
    fn set(parts: &mut Parts, bdf: &str, ctl: u16) {
        let device = parts.devices.iter_mut().find(|device| device.bdf == at(bdf)).unwrap();
        device.acs = Some(Acs { cap: 0x5f, ctl });
    }

    /// Addresses of open ports for a guest with these functions.
    fn open(host: &Topology, functions: &[&str]) -> Vec<String> {
        let functions: Vec<Bdf> = functions.iter().map(|text| at(text)).collect();
        host.open_ports(&functions).iter().map(|port| port.at.to_string()).collect()
    }

    #[test]
    fn each_bit_opens_a_port_to_those_that_it_lets_through() {
        let (a, b, c) = ("03:00.0", "04:00.0", "05:00.0");
        for (ctl, reaches) in [
            (0x1d, [false; 3]),
            (0x5d, [false; 3]),
            // Requests or completions go to the sibling; the other root port is out of reach.
            (0x1d & !bits::RR, [true, true, false]),
            (0x1d & !bits::CR, [true, true, false]),
            // An id of another function is possible below the whole root complex.
            (0x1d & !bits::SV, [true, true, true]),
            // Only one function is below: nothing comes back to it.
            (0x1d & !bits::UF, [false; 3]),
        ] {
            let host = host(|parts| set(parts, "02:00.0", ctl));
            let found = [a, b, c].map(|one| open(&host, &[one]) == ["0000:02:00.0"]);
            assert_eq!(found, reaches, "{ctl:#x}");
            assert_eq!(open(&host, &[a, b, c]), [""; 0], "one guest has all");
            assert_eq!(open(&host, &[]).is_empty(), reaches == [false; 3]);
        }
        // Requests that a root port does not forward go back down, to both below it.
        let forwards = host(|parts| set(parts, "00:01.0", 0x1d & !bits::UF));
        assert_eq!(open(&forwards, &[a]), ["0000:00:01.0"]);
        assert_eq!((open(&forwards, &[c]), open(&forwards, &[a, b])), (vec![], vec![]));
    }

    #[test]
    fn ports_of_one_group_of_grace_and_unknown_ones_are_not_open() {
        let same = |parts: &mut Parts| {
            set(parts, "02:00.0", 0);
            parts.devices.iter_mut().for_each(|device| device.iommu_group = Some(1));
        };
        assert_eq!(open(&host(same), &[]), [""; 0]);
        let grace = |parts: &mut Parts| {
            set(parts, "00:01.0", 0);
            (parts.devices[0].vendor, parts.devices[0].device) = (0x10de, 0x22b1);
        };
        assert_eq!(open(&host(grace), &[]), [""; 0]);
        let unknown = host(|parts| parts.devices[3].acs = None);
        assert_eq!(open(&unknown, &[]), [""; 0]);
        assert_eq!(unknown.unread_ports(), BTreeSet::from([at("02:00.0")]));
        assert_eq!(host(|_| {}).unread_ports(), BTreeSet::new());
    }

    #[test]
    fn functions_of_one_slot_are_kept_apart_by_their_own_control() {
        let with = |ctl: u16, is_vf: bool| {
            host(|parts| {
                let mut second = parts.devices[5].clone();
                (second.bdf, second.iommu_group) = (at("03:00.1"), Some(9));
                second.sriov = is_vf.then_some(Sriov::Vf { pf: at("03:00.0") });
                parts.devices.insert(6, second);
                parts.devices[5].acs = Some(Acs { cap: 0x4c, ctl });
            })
        };
        assert_eq!(open(&with(0x0c, false), &["03:00.0"]), [""; 0]);
        let host = with(0x08, false);
        let [port] = host.open_ports(&[at("03:00.1")])[..] else { panic!("not open") };
        assert_eq!(port.command(), "setpci -s 0000:03:00.0 ECAP_ACS+6.w=c:c");
        let says = Weakness::OpenPorts(vec![port]).says();
        assert!(says.contains("function 0000:03:00.0 does not redirect (ACS RR is off)"), "{says}");
        assert_eq!(open(&with(0, true), &[]), [""; 0], "its card keeps virtual functions apart");
    }

    #[test]
    fn two_functions_meet_at_the_bridge_above_both_of_their_ports() {
        let host = host(|_| {});
        let meeting = host.meeting(at("03:00.0"), at("04:00.0")).unwrap();
        assert_eq!(meeting.at.bdf, at("01:00.0"));
        assert_eq!(host.divergence(at("03:00.0"), at("04:00.0")).unwrap().bdf, at("02:00.0"));
        assert!(host.meeting(at("03:00.0"), at("05:00.0")).is_none(), "at the root complex");
        assert!(host.meeting(at("03:00.0"), at("03:00.0")).is_none());
        let route = host.route(at("03:00.0"), at("04:00.0"), Op::Write).unwrap();
        assert_eq!(route.way, Way::Root, "{route:?}");
        assert_eq!(meeting.steps(), 1);
    }

    #[test]
    fn ats_counts_by_its_bit_while_a_guest_runs_and_ordering_by_the_physical_function() {
        use crate::p2p::{Ats, Block, Code};
        let with = |enabled: bool, devctl: u16, is_vf: bool| {
            host(|parts| {
                set(parts, "02:00.0", 0x5d);
                let mut vf = parts.devices[5].clone();
                parts.devices[5].devctl = Some(devctl);
                parts.devices[5].ats = Some(Ats { present: true, enabled });
                vf.bdf = at("03:00.1");
                vf.sriov = is_vf.then_some(Sriov::Vf { pf: at("03:00.0") });
                (vf.devctl, vf.ats) = (Some(0), Some(Ats { present: true, enabled }));
                parts.devices.insert(6, vf);
            })
        };
        let (pf, vf, peer) = (at("03:00.0"), at("03:00.1"), at("04:00.0"));
        let host = with(false, 0x10, true);
        let route = |from: Bdf, op, moment| host.route_of(from, peer, op, moment).unwrap();
        assert_eq!(route(pf, Op::Write, Moment::Start).way, Way::Switch);
        let off = route(pf, Op::Write, Moment::Running);
        assert_eq!(off.blocked, [Block { code: Code::AtsOff, at: pf }]);
        assert_eq!(host.route(vf, peer, Op::Read).unwrap().way, Way::Switch);
        let strict = with(true, 0, true);
        let back = strict.route_of(vf, peer, Op::Read, Moment::Running).unwrap();
        assert_eq!(back.blocked, [Block { code: Code::CrWithoutRo, at: pf }]);
        // A second function of the card has a bit of its own.
        let second = with(true, 0x10, false).route(vf, peer, Op::Read).unwrap();
        assert_eq!(second.blocked, [Block { code: Code::CrWithoutRo, at: vf }]);
    }

    #[test]
    fn a_port_once_set_passes_translated_requests_whatever_it_redirects() {
        use crate::p2p::Ats;
        let host = host(|parts| {
            set(parts, "02:00.0", 0x1d | bits::EC);
            parts.devices[5].ats = Some(Ats { present: true, enabled: false });
        });
        let (from, to, port) = (at("03:00.0"), at("04:00.0"), at("02:00.0"));
        assert_eq!(host.route(from, to, Op::Write).unwrap().way, Way::Root);
        assert_eq!(host.route_once_set(from, to, Op::Write, port).unwrap().way, Way::Switch);
        let read = host.route_once_set(from, to, Op::Read, port).unwrap();
        assert_eq!(read.way, Way::Unknown, "its ordering is not known");
        assert_eq!(host.route_once_set(from, to, Op::Write, to).unwrap().way, Way::Root);
    }
}
