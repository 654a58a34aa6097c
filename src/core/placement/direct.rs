//! Says which way the transfers between a guest's GPUs and NICs below one switch take.

use super::explain::Reasons;
use super::reason::{DirectReason, Peers, Topic};
use crate::bdf::Bdf;
use crate::occupancy::Occupancy;
use crate::p2p::{Block, Op, Route, Way};
use crate::request::{P2pWish, Request};
use crate::topology::{DeviceKind, OtherFunction, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// The requesters and the bridges at which they meet GPUs of the guest, each with these GPUs.
type Meetings = BTreeMap<(Bdf, Bdf), Vec<Bdf>>;

/// Describes the way of each NIC that meets GPUs of the guest below a switch, and of GPUs with ATS
/// that meet each other. Unknown ways are not reported: registers are readable by root only.
pub(super) fn explain(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
    devices: &[Bdf],
    reasons: &mut Reasons,
) {
    let meetings = meetings(topology, devices);
    if meetings.is_empty() {
        return;
    }
    let others = held.domains.iter().flat_map(|held| {
        let domain = &held.domain;
        let functions = held.devices.iter().filter(|bdf| !devices.contains(bdf));
        functions.map(move |bdf| OtherFunction { function: *bdf, domain: domain.clone() })
    });
    let is_asked = request.p2p == P2pWish::Auto;
    let found = topology.direct_ports(devices, &others.collect::<Vec<_>>());
    if let (Err(why), true) = (&found, is_asked) {
        reasons.compromise(Topic::P2p, DirectReason::Refused { why: why.clone() });
    }
    let ports: Vec<Bdf> =
        found.map(|found| found.ports.iter().map(|port| port.at).collect()).unwrap_or_default();
    for ((from, meets), gpus) in meetings {
        let port = topology.divergence(from, gpus[0]).map(|port| port.bdf);
        let port = port.filter(|port| ports.contains(port));
        let now = |op| worst(&gpus, |gpu| topology.route(from, gpu, op));
        let Some(writes) = now(Op::Write) else { continue };
        // Their way once the port is set, as the guest will run.
        let reads = match port {
            Some(port) => worst(&gpus, |gpu| topology.route_once_set(from, gpu, Op::Read, port)),
            None => now(Op::Read),
        };
        let is_gpu = topology.device(from).is_some_and(|one| one.kind() == DeviceKind::Gpu);
        let peers = Peers { from, is_gpu, gpus, meets };
        let say = |is_compromise, why| {
            if is_compromise {
                reasons.compromise(Topic::P2p, why);
            } else {
                reasons.say(Topic::P2p, why);
            }
        };
        said(peers, port, is_asked, writes, reads, say);
    }
}

/// Describes one meeting. `port`: the one that passes translated requests, or would with
/// `--p2p auto`; `reads`: their way with it.
fn said(
    peers: Peers,
    port: Option<Bdf>,
    is_asked: bool,
    writes: Route,
    reads: Option<Route>,
    mut say: impl FnMut(bool, DirectReason),
) {
    let reads = reads.filter(|reads| reads.way != Way::Switch);
    match (writes.way, port) {
        (Way::Switch, Some(port)) => {
            say(false, DirectReason::Direct { peers, port, is_set: true, reads });
        }
        (Way::Root, Some(port)) if is_asked => {
            say(false, DirectReason::Direct { peers, port, is_set: false, reads });
        }
        (Way::Root, offer) => {
            say(is_asked, DirectReason::Root { peers, why: writes.blocked, offer });
        }
        (Way::Rejected, _) => say(true, DirectReason::Rejected { peers, why: writes.blocked }),
        (Way::Switch, None) => {
            // Unknown ways are no reason.
            let reads = reads.filter(|reads| reads.way != Way::Unknown);
            if let Some(reads) = reads {
                say(is_asked, DirectReason::Reads { peers, reads });
            }
        }
        (Way::Unknown, _) => {}
    }
}

/// The worst of the routes with each GPU, with the reasons of all that are as bad.
fn worst(gpus: &[Bdf], route: impl Fn(Bdf) -> Option<Route>) -> Option<Route> {
    let all: Vec<Route> = gpus.iter().filter_map(|gpu| route(*gpu)).collect();
    let way = all.iter().map(|route| route.way).max()?;
    let blocked: BTreeSet<Block> =
        all.into_iter().filter(|route| route.way == way).flat_map(|route| route.blocked).collect();
    Some(Route { way, blocked: blocked.into_iter().collect() })
}

/// The pairs of which `--p2p auto` sets ports.
fn meetings(topology: &Topology, devices: &[Bdf]) -> Meetings {
    let mut all = Meetings::new();
    for (from, gpu) in topology.direct_pairs(devices) {
        if let Some(meeting) = topology.meeting(from.bdf, gpu.bdf) {
            all.entry((from.bdf, meeting.at.bdf)).or_default().push(gpu.bdf);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::p2p::{Acs, Ats, bits};
    use crate::placement::plan;
    use crate::request::{DeviceWish, Extras, GpuWish};
    use crate::topology::PciDevice;
    use crate::topology::direct::tests::host;

    /// The reasons of a guest with a GPU and a NIC below one switch, and which are compromises.
    fn said(p2p: P2pWish, change: impl Fn(&mut PciDevice)) -> Vec<(String, bool)> {
        let (topology, gpu, nic) = host(change);
        let mut reasons = Reasons::default();
        let request = Request { p2p, ..Request::for_gpus(0) };
        explain(&topology, &Occupancy::default(), &request, &[gpu, nic], &mut reasons);
        let port = topology.divergence(nic, gpu).unwrap().bdf.to_string();
        let text = |text: String| {
            let text = text.replace(&port, "PORT").replace(&nic.to_string(), "NIC");
            text.split_once(": ").map_or(text.clone(), |(_, way)| way.to_owned())
        };
        { reasons.0 }
            .into_iter()
            .map(|why| (text(why.because.to_string()), why.compromise))
            .collect()
    }

    #[test]
    fn the_way_and_what_decides_it_are_said() {
        let plain = |_: &mut PciDevice| {};
        let set = |device: &mut PciDevice| {
            device.acs = device.acs.map(|acs| Acs { ctl: acs.ctl | bits::DT, ..acs });
        };
        let old = |device: &mut PciDevice| {
            device.ats = Some(Ats { present: false, enabled: false });
        };
        let strict = |device: &mut PciDevice| device.devctl = Some(0);
        let root = "over the root complex at about half the rate: ";
        let direct = "direct, as bit DT of PORT is set";
        let before = format!("{direct} before the guest starts");
        let (asked, not_asked) = (P2pWish::Auto, P2pWish::Off);
        let offer = "bit DT of PORT is off; --p2p auto sets bit DT of PORT";
        let reads = "reads return over the root complex: relaxed ordering of NIC is off";
        let egress = |device: &mut PciDevice| {
            device.acs = device.acs.map(|acs| Acs { ctl: acs.ctl | bits::EC, ..acs });
        };
        let unread = |device: &mut PciDevice| {
            set(device);
            device.devctl = None;
        };
        let unknown = "the way of reads is not known: registers of NIC are unknown";
        let both = format!(
            "{root}bit DT of PORT is off, bit EC of PORT is on; --p2p auto sets bit DT of PORT"
        );
        for (wish, change, wanted, is_compromise) in [
            (asked, &plain as &dyn Fn(&mut _), before.clone(), false),
            (asked, &set, direct.to_owned(), false),
            (not_asked, &set, direct.to_owned(), false),
            (not_asked, &plain, format!("{root}{offer}"), false),
            (asked, &old, format!("{root}NIC has no ATS, bit DT of PORT is off"), true),
            (asked, &strict, format!("{before}; {reads}"), false),
            // Egress control is passed as well, once the bit is set.
            (asked, &egress, before.clone(), false),
            (not_asked, &egress, both, false),
            (asked, &unread, format!("{direct}; {unknown}"), false),
        ] {
            assert_eq!(said(wish, change), [(wanted, is_compromise)]);
        }
        let blocking = |device: &mut PciDevice| {
            device.acs = device.acs.map(|acs| Acs { ctl: acs.ctl | bits::TB, ..acs });
        };
        let tb = ("port PORT rejects translated requests (ACS bit TB is on)".to_owned(), true);
        let rejected = ("rejected: bit TB of PORT is on".to_owned(), true);
        assert_eq!(said(P2pWish::Auto, blocking), [tb, rejected.clone()]);
        assert_eq!(said(P2pWish::Off, blocking), [rejected]);
        // Writes turn at the switch by themselves, reads of a NIC without relaxed ordering do not.
        let completions = |device: &mut PciDevice| {
            let ctl = |acs: Acs| acs.ctl & !(bits::RR | bits::EC | bits::DT) | bits::CR;
            device.acs = device.acs.map(|acs| Acs { ctl: ctl(acs), ..acs });
        };
        let slow = |device: &mut PciDevice| {
            completions(device);
            device.devctl = Some(0);
        };
        let only_reads = format!("writes go through the switch; {reads}");
        assert_eq!(said(P2pWish::Off, slow), [(only_reads, false)]);
        assert_eq!(said(P2pWish::Off, completions), []);
        // Where registers are unknown, only the refusal is.
        assert_eq!(said(P2pWish::Off, |device| device.acs = None), []);
        assert_eq!(said(P2pWish::Auto, |device| device.acs = None).len(), 1);
    }

    #[test]
    fn ports_of_gpus_that_meet_are_described_too() {
        let (topology, first, _) = host(|device| {
            if device.kind() == DeviceKind::Gpu {
                device.ats = Some(Ats { present: true, enabled: false });
            }
        });
        let mut parts = topology.parts().clone();
        parts.fabric.links.clear();
        let topology = Topology::new(parts).unwrap();
        let is_other =
            |gpu: &&PciDevice| gpu.bdf != first && topology.meeting(first, gpu.bdf).is_some();
        let second = topology.gpus().find(is_other).unwrap().bdf;
        let mut reasons = Reasons::default();
        let request = Request { p2p: P2pWish::Auto, ..Request::for_gpus(0) };
        let devices = [first, second];
        explain(&topology, &Occupancy::default(), &request, &devices, &mut reasons);
        let ports = topology.direct_ports(&devices, &[]).unwrap().ports;
        let said: Vec<String> = reasons.0.into_iter().map(|why| why.because.to_string()).collect();
        assert_eq!((said.len(), ports.len()), (2, 2), "{said:?}");
        for port in ports {
            assert!(said.iter().any(|one| one.contains(&format!("bit DT of {}", port.at))));
        }
        let begin = format!("GPU {first} and GPU {second} meet at switch ");
        assert!(said.iter().any(|one| one.starts_with(&begin)), "{said:?}");
    }

    #[test]
    fn a_plan_has_the_reason() {
        let (topology, gpu, nic) = host(|_| {});
        let (gpus, nics) = (GpuWish::Exact(vec![gpu]), DeviceWish::Exact(vec![nic]));
        let extras = Extras { nics, ..Extras::default() };
        let request = Request { gpus, extras, p2p: P2pWish::Auto, ..Request::for_gpus(0) };
        let placement = plan(&topology, &Occupancy::default(), &request).unwrap();
        let of = |why: &&crate::placement::Reason| why.choice == Topic::P2p;
        let because = placement.reasons.iter().find(of).unwrap().because.to_string();
        assert!(because.contains("direct, as bit DT of"), "{because}");
    }
}
