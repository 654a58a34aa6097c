//! Rule on the way between GPUs and NICs below one switch, by the routing of [`crate::p2p`].

use super::Case;
use super::report::{Report, Wrong};
use crate::bdf::Bdf;
use crate::finding::Rule;
use crate::p2p::{Block, Code, Op, Route, Way};
use crate::topology::{DeviceKind, PciDevice};
use crate::verify::REJECTED;
use std::collections::{BTreeMap, BTreeSet};

/// GPUDirect is then as slow as two ways through the root.
pub const ACS_REDIRECT: Rule = Rule::note(
    "acs-redirect",
    "a NIC whose traffic with a GPU below its switch goes over the root",
);

const CONFIG: &str = "sys/bus/pci/devices/N/config";

/// NICs below one port, and the GPUs that they meet below one switch.
#[derive(Default)]
struct Pairs {
    nics: BTreeSet<Bdf>,
    gpus: BTreeSet<Bdf>,
    /// Whether writes go over the root, too, not only reads.
    writes: bool,
    blocked: BTreeSet<Block>,
}

/// Finds pairs of a GPU and a NIC below a switch whose traffic goes over the root.
pub(super) fn judge(case: &Case<'_>, report: &mut Report<'_>) {
    let host = case.topology;
    rejected(case, report);
    let is_physical = |nic: &&PciDevice| !nic.is_vf();
    let mut found: BTreeMap<(Bdf, Bdf), Pairs> = BTreeMap::new();
    let mut unknown = BTreeSet::new();
    for nic in host.of_kind(DeviceKind::Nic).filter(is_physical) {
        for gpu in host.gpus() {
            let Some(meeting) = host.meeting(nic.bdf, gpu.bdf) else { continue };
            let Some(port) = host.divergence(nic.bdf, gpu.bdf) else { continue };
            for op in [Op::Write, Op::Read] {
                let Some(Route { way, blocked }) = host.route(nic.bdf, gpu.bdf, op) else {
                    continue;
                };
                match way {
                    Way::Unknown => unknown.extend(blocked.iter().map(|block| block.at)),
                    Way::Root => {
                        let pairs = found.entry((meeting.at.bdf, port.bdf)).or_default();
                        pairs.nics.insert(nic.bdf);
                        pairs.gpus.insert(gpu.bdf);
                        pairs.writes |= op == Op::Write;
                        pairs.blocked.extend(blocked);
                    }
                    Way::Switch | Way::Rejected => {}
                }
            }
        }
    }
    if !unknown.is_empty() {
        report.skip(&ACS_REDIRECT, format!("/{CONFIG} of {} is not known", list(&unknown)));
    }
    for ((at, port), pairs) in found {
        report.add(&ACS_REDIRECT, wrong(case, at, port, &pairs));
    }
}

/// Finds NICs that send translated requests, and whose ports on the way to a GPU reject these.
fn rejected(case: &Case<'_>, report: &mut Report<'_>) {
    let host = case.topology;
    let mut found: BTreeMap<(Bdf, Bdf), BTreeSet<Bdf>> = BTreeMap::new();
    let mut unknown = BTreeSet::new();
    for nic in host.of_kind(DeviceKind::Nic).filter(|nic| nic.ats.is_none_or(|ats| ats.enabled)) {
        for gpu in host.gpus() {
            let Some(route) = host.route(nic.bdf, gpu.bdf, Op::Write) else { continue };
            if nic.ats.is_none() {
                unknown.insert(nic.bdf);
                continue;
            }
            for block in route.blocked.iter().filter(|_| route.way == Way::Rejected) {
                found.entry((block.at, nic.bdf)).or_default().insert(gpu.bdf);
            }
        }
    }
    if !unknown.is_empty() {
        report.skip(&REJECTED, format!("/{CONFIG} of {} is not known", list(&unknown)));
    }
    for ((port, nic), gpus) in found {
        let block = Block { code: Code::Tb, at: port };
        let wrong = Wrong {
            message: format!(
                "port {port} rejects requests of NIC {nic}, whose ATS is on, to GPUs below its \
                 switch: {}",
                list(&gpus)
            ),
            values: ("bit TB off".into(), "bit TB on".into()),
            at: format!("ACSCtl of `lspci -vvv -s {port}`"),
            hint: host.block_advice(&block),
            fix: vec![format!("setpci -s {port} ECAP_ACS+6.w=00:02")],
        };
        report.of(&REJECTED, nic, wrong);
    }
}

/// Addresses as a list, the first few.
fn list(all: &BTreeSet<Bdf>) -> String {
    let named: Vec<String> = all.iter().take(4).map(Bdf::to_string).collect();
    match all.len().saturating_sub(named.len()) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// The fault of the pairs that a port decides on.
fn wrong(case: &Case<'_>, at: Bdf, port: Bdf, pairs: &Pairs) -> Wrong {
    let Pairs { nics, gpus, writes, blocked } = pairs;
    let what = if *writes { "writes and reads" } else { "reads" };
    let plural = |all: &BTreeSet<Bdf>, noun: &str| match all.len() {
        1 => format!("{noun} {}", list(all)),
        _ => format!("{noun}s {}", list(all)),
    };
    let message = format!(
        "{} and {} meet at switch {at}, and {what} of the NIC's memory requests go over the root: \
         GPUDirect RDMA reaches about half its speed",
        plural(nics, "NIC"),
        plural(gpus, "GPU"),
    );
    let control = case.topology.device(port).and_then(|port| port.acs);
    let control = control.map(|acs| format!(" (ACS control {:#06x})", acs.ctl)).unwrap_or_default();
    let found: Vec<String> = blocked.iter().map(Block::to_string).collect();
    let hints: Vec<String> =
        blocked.iter().map(|block| case.topology.block_advice(block)).collect();
    let fix = blocked.iter().filter_map(command).map(|command| format!("# {command}")).collect();
    Wrong {
        message,
        values: ("direct through the switch".into(), found.join("; ") + &control),
        at: format!("ACSCtl of `lspci -vvv -s {port}`"),
        hint: hints.join("; "),
        fix,
    }
}

/// The command for one reason, if there is one.
fn command(block: &Block) -> Option<String> {
    match block.code {
        Code::NoAts => Some(format!("mlxconfig -d {} set ATS_ENABLED=true; then reboot", block.at)),
        Code::NoDt => Some(format!("setpci -s {} ECAP_ACS+6.w=40:40", block.at)),
        _ => None,
    }
}
