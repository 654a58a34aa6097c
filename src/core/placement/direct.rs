//! Says which way the transfers between a guest's GPUs and NICs below one switch take.

use super::explain::Reasons;
use super::reason::{DirectReason, Peers, Topic};
use crate::bdf::Bdf;
use crate::occupancy::Occupancy;
use crate::p2p::{Block, Code, Op, Way};
use crate::request::{P2pWish, Request};
use crate::topology::{DeviceKind, OtherFunction, Topology};
use std::collections::BTreeMap;

/// The NICs and the bridges at which they meet GPUs of the guest, each with these GPUs.
type Meetings = BTreeMap<(Bdf, Bdf), Vec<Bdf>>;

/// Describes the way of each NIC that meets GPUs of the guest below a switch. Unknown ways are not
/// reported: registers are readable by root only.
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
    let ports = found.map(|found| found.ports).unwrap_or_default();
    for ((nic, meets), gpus) in meetings {
        let first = gpus[0];
        let blocked = |op| topology.route(nic, first, op).map(|route| (route.way, route.blocked));
        let (Some((way, blocks)), Some((_, reads))) = (blocked(Op::Write), blocked(Op::Read))
        else {
            continue;
        };
        let port = topology.divergence(nic, first).map(|port| port.bdf);
        let port = ports.iter().find(|known| Some(known.at) == port);
        let is_other = |block: &Block| block.code != Code::NoDt;
        let reads: Vec<Block> = reads.into_iter().filter(is_other).collect();
        let peers = Peers { nic, gpus, meets };
        match (way, port) {
            (Way::Switch, Some(port)) => {
                let (port, is_set) = (port.at, true);
                reasons.say(Topic::P2p, DirectReason::Direct { peers, port, is_set, reads });
            }
            (Way::Root, Some(port)) if is_asked => {
                let (port, is_set) = (port.at, false);
                reasons.say(Topic::P2p, DirectReason::Direct { peers, port, is_set, reads });
            }
            (Way::Root, port) => {
                let offer = port.map(|port| port.at);
                let why = DirectReason::Root { peers, why: blocks, offer };
                if is_asked {
                    reasons.compromise(Topic::P2p, why);
                } else {
                    reasons.say(Topic::P2p, why);
                }
            }
            (Way::Switch | Way::Unknown | Way::Rejected, _) => {}
        }
    }
}

fn meetings(topology: &Topology, devices: &[Bdf]) -> Meetings {
    let own = |kind| {
        let own = devices.iter().filter_map(|bdf| topology.device(*bdf));
        own.filter(move |device| device.kind() == kind).map(|device| device.bdf)
    };
    let mut all = Meetings::new();
    for nic in own(DeviceKind::Nic) {
        for gpu in own(DeviceKind::Gpu) {
            if let Some(meeting) = topology.meeting(nic, gpu) {
                all.entry((nic, meeting.at.bdf)).or_default().push(gpu);
            }
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
        for (wish, change, wanted, is_compromise) in [
            (asked, &plain as &dyn Fn(&mut _), before.clone(), false),
            (asked, &set, direct.to_owned(), false),
            (not_asked, &set, direct.to_owned(), false),
            (not_asked, &plain, format!("{root}{offer}"), false),
            (asked, &old, format!("{root}NIC has no ATS, bit DT of PORT is off"), true),
            (asked, &strict, format!("{before}; {reads}"), false),
        ] {
            assert_eq!(said(wish, change), [(wanted, is_compromise)]);
        }
        let refused = said(P2pWish::Auto, |device| {
            device.acs = device.acs.map(|acs| Acs { ctl: acs.ctl | bits::TB, ..acs });
        });
        let tb = "port PORT rejects translated requests (ACS bit TB is on)";
        assert_eq!(refused, [(tb.to_owned(), true)]);
        // Where registers are unknown, only the refusal is.
        assert_eq!(said(P2pWish::Off, |device| device.acs = None), []);
        assert_eq!(said(P2pWish::Auto, |device| device.acs = None).len(), 1);
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
