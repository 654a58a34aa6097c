//! Compares the way of transfers between a running guest's NICs and GPUs with the request for
//! direct ones. Judged by registers of the host: the kernel sets ATS of a function for as long as a
//! guest has it, and a reset of a port loses its bits.

use super::report::{Between, Report, Wrong};
use crate::bdf::Bdf;
use crate::domain::DomainXml;
use crate::finding::Rule;
use crate::p2p::{Block, Code, Op, Way};
use crate::request::P2pWish;
use crate::topology::{DeviceKind, Moment, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// GPUDirect RDMA is then half as fast.
const REDIRECTED: Rule = Rule::warning(
    "p2p-redirected",
    "a running guest with --p2p auto whose NIC and GPU exchange data over the root complex",
);
/// No fallback: the transfers fail.
pub(crate) const REJECTED: Rule = Rule::error(
    "p2p-rejected",
    "a NIC with ATS whose requests to a GPU are rejected by a port on the way",
);

/// Rules of this module.
pub const RULES: &[Rule] = &[REDIRECTED, REJECTED];

/// The GPUs that a NIC reaches in one way, and why.
#[derive(Default)]
struct Reached {
    gpus: BTreeSet<Bdf>,
    /// Whether its writes do, too, not only its reads.
    writes: bool,
    blocked: BTreeSet<Block>,
}

/// Judges the ways between NICs and GPUs of a running guest.
pub fn compare(definition: &DomainXml, live: &DomainXml, topology: &Topology, report: &mut Report) {
    let devices = live.held(false).unwrap_or_default().devices;
    let of = |kind| {
        let own = devices.iter().filter_map(|bdf| topology.device(*bdf));
        own.filter(move |device| device.kind() == kind)
    };
    // A record by a later version is reported elsewhere.
    let record = definition.record().ok().flatten();
    let is_asked = record.is_some_and(|record| record.request.p2p == P2pWish::Auto);
    for nic in of(DeviceKind::Nic) {
        let mut ways: BTreeMap<Way, Reached> = BTreeMap::new();
        for gpu in of(DeviceKind::Gpu) {
            for op in [Op::Write, Op::Read] {
                let route = topology.route_of(nic.bdf, gpu.bdf, op, Moment::Running);
                let Some(route) = route else { continue };
                let reached = ways.entry(route.way).or_default();
                reached.gpus.insert(gpu.bdf);
                reached.writes |= op == Op::Write;
                reached.blocked.extend(route.blocked);
            }
        }
        for (way, reached) in ways {
            match way {
                Way::Root if is_asked => add(&REDIRECTED, nic.bdf, &reached, topology, report),
                Way::Rejected => add(&REJECTED, nic.bdf, &reached, topology, report),
                Way::Root | Way::Switch | Way::Unknown => {}
            }
        }
    }
}

fn add(rule: &'static Rule, nic: Bdf, reached: &Reached, topology: &Topology, report: &mut Report) {
    let Reached { gpus, writes, blocked } = reached;
    let gpus: Vec<String> = gpus.iter().map(Bdf::to_string).collect();
    let what = if *writes { "transfers" } else { "reads" };
    let why: Vec<String> = blocked.iter().map(Block::to_string).collect();
    let hints: Vec<String> = blocked
        .iter()
        .map(|block| match block.code {
            Code::NoDt => "`gpuvm host p2p restore` sets it again".to_owned(),
            _ => topology.block_advice(block),
        })
        .collect();
    let way = if rule.id == REJECTED.id { "rejected" } else { "over the root complex" };
    let at = blocked.iter().next_back().map_or(nic, |block| block.at);
    let wrong = Wrong {
        what: format!("{what} of {nic} and {}", gpus.join(", ")),
        expected: "through their switch".into(),
        found: format!("{way}: {}", why.join(", ")),
        at: format!("`lspci -vvv -s {at}`"),
        hint: &hints.join("; "),
    };
    report.differs(rule, Between::Host, wrong);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::guest::NAMESPACE;
    use crate::p2p::{Acs, Ats};
    use crate::request::Request;
    use crate::topology::PciDevice;
    use crate::topology::direct::tests::host;

    /// The findings on a guest with a GPU and a NIC of a DGX-2 below one switch, the NIC's port
    /// named PORT.
    fn found(p2p: P2pWish, change: impl Fn(&mut PciDevice)) -> Vec<(&'static str, String)> {
        let (topology, gpu, nic) = host(|device| {
            // Its ports are set, as for a guest that runs.
            device.acs = device.acs.map(|acs| Acs { ctl: 0x5d, ..acs });
            device.ats = device.ats.map(|ats| Ats { enabled: ats.present, ..ats });
            change(device);
        });
        let hostdev = |bdf: Bdf| {
            format!(
                "<hostdev type='pci'><source><address domain='0' bus='{:#x}' slot='{:#x}' \
                 function='{}'/></source></hostdev>",
                bdf.bus(),
                bdf.device(),
                bdf.function()
            )
        };
        let request = serde_json::to_string(&Request { p2p, ..Request::for_gpus(1) }).unwrap();
        let xml = format!(
            "<domain type='kvm'><name>a</name><metadata><gpuvm:guest xmlns:gpuvm='{NAMESPACE}'>\
             <gpuvm:request>{request}</gpuvm:request></gpuvm:guest></metadata>\
             <memory unit='GiB'>4</memory><vcpu>4</vcpu><devices>{}{}</devices></domain>",
            hostdev(gpu),
            hostdev(nic)
        );
        let xml = DomainXml::parse(&xml).unwrap();
        let mut report = Report::default();
        compare(&xml, &xml, &topology, &mut report);
        let port = topology.divergence(nic, gpu).unwrap().bdf.to_string();
        let text = |text: String| text.replace(&port, "PORT").replace(&nic.to_string(), "NIC");
        let found = report.finish().into_iter();
        found.map(|one| (one.rule, text(one.says.message + "; " + &one.hint))).collect()
    }

    #[test]
    fn transfers_that_are_not_direct_are_found_where_direct_ones_are_requested() {
        let with = |ctl| {
            move |device: &mut PciDevice| {
                device.acs = device.acs.map(|acs| Acs { ctl, ..acs });
            }
        };
        assert_eq!(found(P2pWish::Auto, |_| {}), []);
        // A reset has cleared the bit.
        let lost = found(P2pWish::Auto, with(0x1d));
        assert_eq!(lost.len(), 1, "{lost:?}");
        let (rule, said) = &lost[0];
        assert_eq!(*rule, "p2p-redirected");
        assert!(said.starts_with("transfers of NIC and "), "{said}");
        assert!(said.contains(
            "found over the root complex: bit DT of PORT is off; `gpuvm host p2p restore`"
        ));
        assert_eq!(found(P2pWish::Off, with(0x1d)), []);
        let off = found(P2pWish::Auto, |device| {
            device.ats = device.ats.map(|ats| Ats { enabled: false, ..ats });
        });
        assert!(off[0].1.contains("ATS of NIC is off; `lspci"), "{off:?}");
        // The rest of the registers counts as well: egress control, and completions of reads.
        let egress = found(P2pWish::Auto, |device| {
            with(0x79)(device);
            device.ats = device.ats.map(|ats| Ats { enabled: false, ..ats });
        });
        assert!(egress[0].1.contains("ATS of NIC is off, bit EC of PORT is on"), "{egress:?}");
        let back = found(P2pWish::Auto, |device| {
            with(0x59)(device);
            device.ats = device.ats.map(|ats| Ats { enabled: false, ..ats });
            device.devctl = Some(0);
        });
        assert!(back[0].1.starts_with("reads of NIC and "), "{back:?}");
        let strict = found(P2pWish::Auto, |device| device.devctl = Some(0));
        assert!(strict[0].1.starts_with("reads of NIC and "), "{strict:?}");
        // No request is needed for what fails.
        let rejected = found(P2pWish::Off, with(0x5f));
        assert_eq!(rejected[0].0, "p2p-rejected");
        assert!(rejected[0].1.contains("rejected: bit TB of PORT is on; `setpci -s PORT"));
        assert_eq!(found(P2pWish::Auto, |device| device.acs = None), []);
    }
}
