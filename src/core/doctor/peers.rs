//! Rule on the way between GPUs and NICs below one switch, by the routing of [`crate::p2p`].

use super::Case;
use super::report::{Report, Wrong};
use crate::bdf::Bdf;
use crate::finding::Rule;
use crate::p2p::{Block, Code, Op, Route, Way};
use crate::topology::vendor::VENDOR_MELLANOX;
use crate::topology::{DeviceKind, PciDevice};
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
    let hints: Vec<String> = blocked.iter().map(|block| hint(case, block)).collect();
    let fix = blocked.iter().filter_map(command).map(|command| format!("# {command}")).collect();
    Wrong {
        message,
        values: ("direct through the switch".into(), found.join("; ") + &control),
        at: format!("ACSCtl of `lspci -vvv -s {port}`"),
        hint: hints.join("; "),
        fix,
    }
}

fn hint(case: &Case<'_>, block: &Block) -> String {
    let at = block.at;
    let is_mellanox = || case.topology.device(at).is_some_and(|nic| nic.vendor == VENDOR_MELLANOX);
    match block.code {
        Code::NoAts if is_mellanox() => format!(
            "`mlxconfig -d {at} set ATS_ENABLED=true` and a reboot of the host give the NIC ATS"
        ),
        Code::NoAts => format!("{at} has no ATS, without which no isolating setting is direct"),
        Code::AtsOff | Code::Tb => {
            "remove `pci=noats` from the kernel's arguments and reboot".into()
        }
        Code::NoDt => format!(
            "`setpci -s {at} ECAP_ACS+6.w=40:40` lets translated requests pass until the next boot \
             or reset, `pci=config_acs=1x111x1@{}` of kernel 6.11 and later at each boot; guests \
             stay isolated",
            path(case, at)
        ),
        Code::DtUnsupported => format!("{at} cannot pass translated requests on: use another slot"),
        Code::Egress => format!("turn egress control of {at} off"),
        Code::CrWithoutRo => {
            format!("turn on relaxed ordering of {at}, by its driver or firmware: reads need it")
        }
        Code::Unknown => format!("`lspci -vvv -s {at}` as root shows its registers"),
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

/// A port as the kernel's arguments name it: the root port, then device and function of each
/// bridge down to it, which renumbered buses leave as they are.
fn path(case: &Case<'_>, port: Bdf) -> String {
    let mut down = case.topology.path_to_root(port);
    let top = down.pop();
    let below = down.iter().rev().map(|bdf| format!("/{:02x}.{}", bdf.device(), bdf.function()));
    top.map(|top| top.to_string()).unwrap_or_default() + &below.collect::<String>()
}
