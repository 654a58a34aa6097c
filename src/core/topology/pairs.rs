//! Pairs of functions that meet below a PCIe switch, and the route of their transfers.

use super::{DeviceKind, Matrix, Moment, PciDevice, Proximity, Topology};
use crate::bdf::Bdf;
use crate::p2p::{Block, Op, Route, Way};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The relation of two functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PairKind {
    /// Two GPUs without NVLinks between them.
    GpuGpu,
    /// A GPU and a NIC.
    GpuNic,
    /// A GPU and an NVMe drive.
    GpuNvme,
}

/// The route of transfers from one of two functions to the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PairRoute {
    /// The function that reads or writes.
    pub from: Bdf,
    /// The function whose memory is read or written.
    pub to: Bdf,
    /// Its kind of access.
    pub op: Op,
    /// The way.
    pub way: Way,
    /// Why it is not the switch.
    pub blocked: Vec<Block>,
}

/// Two functions that meet below a switch.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pair {
    /// The GPU, of two the first.
    pub a: Bdf,
    /// Its name in `host matrix`.
    pub a_name: String,
    /// The other one.
    pub b: Bdf,
    /// Its name.
    pub b_name: String,
    /// Their kinds.
    pub kind: PairKind,
    /// The bridge that both are below.
    pub meets: Bdf,
    /// The ways of the other one's writes and reads; of two GPUs also those of the first.
    pub routes: Vec<PairRoute>,
    /// The rate of the slowest link between them in one direction, in GB/s, as NCCL counts; none if
    /// a link is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gb_s: Option<f64>,
    /// The expected rate of the slowest of these routes: half if it goes over the root; `None` if
    /// not known, or rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_gb_s: Option<f64>,
}

impl Pair {
    /// The way that decides, of an operation of the other function on the GPU.
    pub fn way(&self, op: Op) -> Way {
        let of_op = self.routes.iter().filter(|route| route.op == op);
        of_op.map(|route| route.way).max().unwrap_or(Way::Unknown)
    }

    /// Every reason, each once.
    pub fn blocked(&self) -> BTreeSet<Block> {
        self.routes.iter().flat_map(|route| route.blocked.iter().copied()).collect()
    }
}

/// A port that decides on some pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PairPort {
    /// The port.
    pub bdf: Bdf,
    /// Its ACS capability; `None` if unknown.
    pub cap: Option<u16>,
    /// Its ACS control; `None` if unknown.
    pub ctl: Option<u16>,
    /// Whether an argument of the kernel (`pci=config_acs=`) sets it at each boot.
    pub at_boot: bool,
    /// UUIDs of the guests for which gpuvm has set its bit DT; none if it has not, or on a recorded
    /// host.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub guests: BTreeSet<String>,
}

/// All pairs of a host.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pairs {
    /// Those that meet below a switch.
    pub pairs: Vec<Pair>,
    /// Number of the others, which meet at a root complex or across sockets.
    pub elsewhere: usize,
    /// The ports that decide, by address.
    pub ports: Vec<PairPort>,
}

/// Units of 0.1 GT/s and the rate of a lane, in GB/s times 80 (NCCL 2.28, graph/topo.cc,
/// kvDictPciGen).
const LANES: [(u32, f64); 6] =
    [(25, 15.0), (50, 30.0), (80, 60.0), (160, 120.0), (320, 240.0), (640, 480.0)];

impl Pairs {
    /// The pairs of a GPU with another GPU, a NIC or an NVMe drive; `among`: only of these
    /// functions, `None` for all. Virtual functions of NICs count as NICs; those of drives count
    /// among these only.
    pub fn of(topology: &Topology, among: Option<&[Bdf]>) -> Pairs {
        Pairs::at(topology, among, Moment::Start)
    }

    /// The same at a moment; [`Moment::Running`]: a running guest has these functions.
    pub fn at(topology: &Topology, among: Option<&[Bdf]>, moment: Moment) -> Pairs {
        let is_among = |device: &&PciDevice| among.is_none_or(|all| all.contains(&device.bdf));
        let gpus: Vec<&PciDevice> = topology.gpus().filter(is_among).collect();
        let others = |kind| topology.of_kind(kind).filter(is_among);
        let names: BTreeMap<Bdf, String> =
            Matrix::of(topology, true).devices.into_iter().map(|row| (row.bdf, row.name)).collect();
        let named = |bdf: Bdf| names.get(&bdf).cloned().unwrap_or_else(|| bdf.to_string());
        let mut all = Vec::new();
        for (at, gpu) in gpus.iter().enumerate() {
            let linked = |other: &PciDevice| {
                matches!(topology.proximity(gpu.bdf, other.bdf), Proximity::NvLink(_))
            };
            let more = gpus[at + 1..].iter().copied().filter(|other| !linked(other));
            all.extend(more.map(|other| (*gpu, other, PairKind::GpuGpu)));
            all.extend(others(DeviceKind::Nic).map(|nic| (*gpu, nic, PairKind::GpuNic)));
            let drives = others(DeviceKind::Nvme).filter(|d| among.is_some() || !d.is_vf());
            all.extend(drives.map(|drive| (*gpu, drive, PairKind::GpuNvme)));
        }
        let number = all.len();
        let mut ports = BTreeSet::new();
        let mut pairs = Vec::new();
        for (a, b, kind) in all {
            let Some(meeting) = topology.meeting(a.bdf, b.bdf) else { continue };
            let ends = [(b.bdf, a.bdf), (a.bdf, b.bdf)];
            let ends = &ends[..if kind == PairKind::GpuGpu { 2 } else { 1 }];
            let routes = ends.iter().flat_map(|&(from, to)| {
                [Op::Write, Op::Read].into_iter().filter_map(move |op| {
                    let Route { way, blocked } = topology.route_of(from, to, op, moment)?;
                    Some(PairRoute { from, to, op, way, blocked })
                })
            });
            let routes: Vec<PairRoute> = routes.collect();
            let decide = ends.iter().flat_map(|&(from, to)| [(from, to), (to, from)]);
            ports.extend(
                decide.filter_map(|(from, to)| topology.divergence(from, to)).map(|p| p.bdf),
            );
            let way = routes.iter().map(|route| route.way).max().unwrap_or(Way::Unknown);
            let gb_s = rate_between(topology, a.bdf, b.bdf, way);
            let expected_gb_s = gb_s.and_then(|full| match way {
                Way::Switch => Some(full),
                Way::Root => Some(full / 2.0),
                Way::Unknown | Way::Rejected => None,
            });
            let (a_name, b_name) = (named(a.bdf), named(b.bdf));
            let (a, b, meets) = (a.bdf, b.bdf, meeting.at.bdf);
            pairs.push(Pair { a, a_name, b, b_name, kind, meets, routes, gb_s, expected_gb_s });
        }
        let ports = ports.into_iter().map(|bdf| port(topology, bdf)).collect();
        Pairs { elsewhere: number - pairs.len(), pairs, ports }
    }
}

/// The rate of the path to a function, in GB/s as NCCL counts; none if a link is not known. A single
/// slow lane has less than 1.
pub fn rate(topology: &Topology, function: Bdf) -> Option<f64> {
    rate_to(topology, function, None)
}

/// The rate of the slowest link between two functions, in GB/s as NCCL counts; none if a link is not
/// known. Transfers that turn at a switch use no link above it.
pub fn rate_between(topology: &Topology, a: Bdf, b: Bdf, way: Way) -> Option<f64> {
    let meeting = topology.meeting(a, b).filter(|_| way == Way::Switch);
    let top = meeting.map(|meeting| meeting.at.bdf);
    Some(rate_to(topology, a, top)?.min(rate_to(topology, b, top)?))
}

/// The same of the part of the path below a bridge.
fn rate_to(topology: &Topology, function: Bdf, top: Option<Bdf>) -> Option<f64> {
    let mut least = None;
    for device in topology.way_up(function).take_while(|device| Some(device.bdf) != top) {
        let link = device.link_max.as_ref()?;
        let (speed, width) = (link.speed_dgts?, link.width.filter(|width| *width > 0)?);
        let (_, lane) = LANES.iter().find(|(known, _)| *known == speed)?;
        let rate = lane * f64::from(width) / 80.0;
        least = Some(least.map_or(rate, |least: f64| least.min(rate)));
    }
    least
}

fn port(topology: &Topology, bdf: Bdf) -> PairPort {
    let acs = topology.device(bdf).and_then(|device| device.acs);
    let arguments = topology.machine().kernel_arguments.iter();
    // A path names it by its last part alone, so the whole path is looked for.
    let names = [format!("@{bdf}"), format!("@{}", topology.kernel_path(bdf))];
    let is_named = |value: &str| {
        let named = |name: &String| value.strip_suffix(name.as_str()).is_some();
        value.split([';', ',']).any(|one| names.iter().any(|name| one.ends_with(name.as_str())))
            || names.iter().any(named)
    };
    let mut set = arguments.filter_map(|argument| argument.split_once("config_acs="));
    let at_boot = set.any(|(_, value)| is_named(value));
    PairPort {
        bdf,
        cap: acs.map(|acs| acs.cap),
        ctl: acs.map(|acs| acs.ctl),
        at_boot,
        guests: BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::p2p::{Acs, Ats, Code, bits};
    use crate::topology::Link;
    use crate::topology::file::from_json;

    /// A DGX-2, whose GPUs 0 and 1 are below a switch with a NIC.
    fn host(change: impl Fn(&mut PciDevice)) -> Topology {
        let text = include_str!("../../../topologies/dgx-2.json");
        let mut parts = from_json(text).unwrap().parts().clone();
        for device in &mut parts.devices {
            device.acs = Some(match device.kind() {
                DeviceKind::Bridge => Acs { cap: 0x5f, ctl: 0x1d },
                _ => Acs { cap: 0, ctl: 0 },
            });
            let present = device.kind() == DeviceKind::Nic;
            device.ats = Some(Ats { present, enabled: present });
            device.devctl = Some(1 << 4);
            device.link_max = Some(Link { speed_dgts: Some(80), width: Some(16) });
            change(device);
        }
        Topology::new(parts).unwrap()
    }

    fn first(topology: &Topology, kind: PairKind) -> Pair {
        let all = Pairs::of(topology, None);
        all.pairs.into_iter().find(|pair| pair.kind == kind).expect("such a pair")
    }

    #[test]
    fn a_pair_goes_over_the_root_until_its_port_passes_translated_requests() {
        let pair = first(&host(|_| {}), PairKind::GpuNic);
        assert_eq!((pair.way(Op::Write), pair.way(Op::Read)), (Way::Root, Way::Root));
        assert_eq!((pair.gb_s, pair.expected_gb_s), (Some(12.0), Some(6.0)));
        let codes: Vec<Code> = pair.blocked().iter().map(|block| block.code).collect();
        assert_eq!(codes, [Code::NoDt]);
        let direct = |device: &mut PciDevice| {
            if let Some(acs) = &mut device.acs {
                acs.ctl |= acs.cap & bits::DT;
            }
        };
        let pair = first(&host(direct), PairKind::GpuNic);
        assert_eq!((pair.way(Op::Write), pair.way(Op::Read)), (Way::Switch, Way::Switch));
        assert_eq!((pair.expected_gb_s, pair.blocked().len()), (Some(12.0), 0));
        // Without relaxed ordering, completions of reads return over the root.
        let strict = |device: &mut PciDevice| {
            direct(device);
            device.devctl = Some(0);
        };
        let pair = first(&host(strict), PairKind::GpuNic);
        assert_eq!((pair.way(Op::Write), pair.way(Op::Read)), (Way::Switch, Way::Root));
        // ATS that a running guest's NIC has off, and a single slow lane, whose rate is not 0.
        let off = |device: &mut PciDevice| {
            direct(device);
            device.ats = device.ats.map(|ats| Ats { enabled: false, ..ats });
            device.link_max = Some(Link { speed_dgts: Some(25), width: Some(1) });
        };
        let topology = host(off);
        let pair = first(&topology, PairKind::GpuNic);
        assert_eq!((pair.way(Op::Write), pair.expected_gb_s), (Way::Switch, Some(0.1875)));
        let running = Pairs::at(&topology, Some(&[pair.a, pair.b]), Moment::Running).pairs;
        assert_eq!((running[0].way(Op::Write), running[0].gb_s), (Way::Root, Some(0.1875)));
        assert_eq!(running[0].expected_gb_s, Some(0.09375));
        // An unreadable fact is unknown, and nothing is expected of it.
        let pair = first(&host(|device| device.acs = None), PairKind::GpuNic);
        assert_eq!((pair.way(Op::Write), pair.expected_gb_s), (Way::Unknown, None));
    }

    #[test]
    fn pairs_are_those_below_a_switch_and_ports_those_that_decide() {
        let topology = host(|_| {});
        let all = Pairs::of(&topology, None);
        assert!(all.pairs.iter().all(|pair| pair.kind != PairKind::GpuGpu), "they have NVLinks");
        assert!(all.elsewhere > all.pairs.len() && !all.ports.is_empty());
        for port in &all.ports {
            assert_eq!((port.cap, port.ctl, port.at_boot), (Some(0x5f), Some(0x1d), false));
        }
        let nic = all.pairs.iter().find(|pair| pair.kind == PairKind::GpuNic).unwrap();
        let own = Pairs::of(&topology, Some(&[nic.a, nic.b]));
        assert_eq!((own.pairs.len(), own.elsewhere), (1, 0));
        let path = topology.divergence(nic.b, nic.a).unwrap().bdf;
        let mut parts = topology.parts().clone();
        parts.machine.kernel_arguments = vec![format!("pci=config_acs=1x111x1@{path}")];
        let set = Pairs::of(&Topology::new(parts).unwrap(), None).ports;
        let set: Vec<Bdf> = set.iter().filter(|port| port.at_boot).map(|port| port.bdf).collect();
        assert_eq!(set, [path]);
    }
}
