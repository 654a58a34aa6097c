//! Rules on sets of GPUs and their NVSwitches.

use super::guest::Guest;
use super::report::Report;
use crate::bdf::Bdf;
use crate::domain::claims::Passed;
use crate::domain::read::Spot;
use crate::finding::Rule;
use crate::placement::{Occupancy, not_ready, shared_fabric};
use crate::topology::{DeviceKind, FabricModel, NoPartition, Partition, Topology, Trust};
use crate::{shell, words};
use std::collections::BTreeSet;

/// The guest starts; its NVLink transfers fail or are corrupted (gpuvm-hardware(7), SHARED
/// NVSWITCH).
const NO_PARTITION: Rule =
    Rule::error("gpus-no-partition", "a set of GPUs that is not an NVLink partition of the host");
/// CUDA says "system not ready" forever.
const COUNT: Rule =
    Rule::error("nvswitch-count", "another number of NVSwitches than the set of GPUs needs");
/// The NVSwitch's links lead to GPUs of other guests.
const FOREIGN: Rule =
    Rule::error("nvswitch-foreign", "an NVSwitch of a board that no passed GPU is on");
/// Fabric Manager on the host would lose the NVSwitch.
const SHARED: Rule =
    Rule::error("nvswitch-shared", "a passed NVSwitch where Fabric Manager keeps the switches");

/// Its NVLinks reach GPUs of other guests, and CUDA waits for Fabric Manager.
const NOT_BLOCKED: Rule = Rule::warning(
    "nvlinks-not-blocked",
    "some of a board's GPUs without its NVSwitches, whose NVLinks nothing blocks",
);
/// Fabric Manager, on the host or in the guest of all GPUs, loses the NVSwitches.
const BRIDGE: Rule = Rule::error(
    "nvswitch-bridge",
    "a passed NIC that Fabric Manager reaches the NVSwitches by, in a guest without all GPUs of \
     the board",
);
/// The guest's own Fabric Manager reaches no NVSwitch.
const NO_BRIDGE: Rule = Rule::warning(
    "nvswitch-bridge-missing",
    "all GPUs of a board without the NICs that Fabric Manager reaches its NVSwitches by",
);
/// `start` refuses it; libvirt starts it.
const STRANGERS: Rule = Rule::warning(
    "nvlinks-of-strangers",
    "GPUs that share NVLink with other guests on a host whose guests belong to strangers",
);

/// `start` refuses it; libvirt starts it, and CUDA ends with error 802.
const NOT_READY: Rule = Rule::warning(
    "partition-not-ready",
    "GPUs whose NVLink partition Fabric Manager would not activate now",
);

/// The id of that rule.
pub const NOT_READY_ID: &str = NOT_READY.id;

/// Rules of this module.
pub const RULES: &[Rule] =
    &[NO_PARTITION, COUNT, FOREIGN, SHARED, NOT_BLOCKED, BRIDGE, NO_BRIDGE, STRANGERS, NOT_READY];

/// Checks that the partition of a guest which is off can be activated, by the decision of `start`.
pub fn ready<'t>(
    guest: &Guest<'t>,
    topology: &Topology,
    others: &Occupancy,
    report: &mut Report<'t>,
) {
    let functions: Vec<Bdf> = guest.passed.iter().map(|passed| passed.bdf.value).collect();
    let Some((gpus, why)) = not_ready(topology, others, &functions) else { return };
    let first = guest.passed.iter().find(|passed| gpus.contains(&passed.bdf.value));
    if let Some(first) = first {
        let (message, hint) = (format!("`start` refuses it: {}", why.what()), why.hint());
        report.add(&NOT_READY, first.device, message, hint);
    }
}

/// Checks that a guest whose NVLinks others reach is not one of strangers, by the rule of `start`.
pub fn strangers<'t>(
    guest: &Guest<'t>,
    topology: &Topology,
    others: &Occupancy,
    report: &mut Report<'t>,
) {
    let is_gpu = |bdf: Bdf| topology.device(bdf).is_some_and(|d| d.kind() == DeviceKind::Gpu);
    let first = guest.passed.iter().find(|passed| is_gpu(passed.bdf.value));
    let first = first.or(guest.passed.first());
    let Some(first) = first.filter(|_| Trust::refuses(topology.machine().trust, true)) else {
        return;
    };
    let functions: Vec<Bdf> = guest.passed.iter().map(|passed| passed.bdf.value).collect();
    if let Some(why) = shared_fabric(topology, others, &functions) {
        let message = format!("`start` refuses it: {why}");
        report.add(&STRANGERS, first.device, message, why.advice(topology));
    }
}

/// Says that GPUs are no partition, or none that is known; `unknown`: those without a module id.
fn no_partition(gpus: usize, unknown: usize) -> String {
    match (gpus, unknown) {
        (1, 0) => "the passed GPU is not an NVLink partition of this host".to_owned(),
        (1, _) => {
            "the module id of the passed GPU is unknown, and so is its NVLink partition".to_owned()
        }
        (number, 0) => {
            format!("the {number} passed GPUs do not form an NVLink partition of this host")
        }
        (number, unknown) => format!(
            "the {number} passed GPUs do not form a known NVLink partition of this host: the \
             module ids of {unknown} are unknown"
        ),
    }
}

/// Checks GPUs and NVSwitches.
pub fn check<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let of_kind = |kind: DeviceKind| -> Vec<&Passed<'t>> {
        let is = |p: &&Passed<'t>| topology.device(p.bdf.value).is_some_and(|d| d.kind() == kind);
        guest.passed.iter().filter(is).collect()
    };
    let (gpus, switches) = (of_kind(DeviceKind::Gpu), of_kind(DeviceKind::NvSwitch));
    let fabric = topology.fabric();
    let set: BTreeSet<Bdf> = gpus.iter().map(|passed| passed.bdf.value).collect();
    let list_of: Vec<Bdf> = set.iter().copied().collect();
    bridge(guest, topology, &gpus, &list_of, report);
    let Some(first) = gpus.first() else { return };
    if topology.keeps_links_on(&list_of) {
        let message = format!(
            "nothing blocks the NVLinks of {}: other guests may reach them, and CUDA ends with \
             error 802",
            words::count(set.len(), "passed GPU")
        );
        report.add(&NOT_BLOCKED, first.device, message, SHARE.to_owned());
    }
    let passes = fabric.model == FabricModel::FullPassthrough;
    let splits = guest.asked.as_ref().is_some_and(|asked| asked.allow.split);
    let partition = match topology.partition_of(&list_of) {
        Ok(Some(partition)) => partition,
        Ok(None) => return,
        // As good as the same number of single GPUs: equally isolated, and no NVLinks between them
        // were promised.
        Err(_) if splits && switches.is_empty() && passes => return,
        Err(NoPartition { unknown }) => {
            let message = no_partition(set.len(), unknown);
            if splits && unknown == 0 {
                report.note(&NO_PARTITION, first.device, format!("{message}, as was allowed"));
                return;
            }
            let hint = match unknown {
                0 => nearest(&set, &fabric.partitions),
                _ => topology.how_modules(),
            };
            report.add(&NO_PARTITION, first.device, message, hint);
            return;
        }
    };
    if fabric.model == FabricModel::SharedNvswitch {
        for switch in switches {
            let message = format!("{} belongs to Fabric Manager on the host", switch.bdf.value);
            report.add(&SHARED, switch.bdf.spot, message, "pass the GPUs only");
        }
    } else {
        of_partition(guest, (partition, topology), first.device, &switches, report);
    }
}

/// Checks the NVSwitches of a guest that has the GPUs of a partition, the first of which is passed
/// at `gpu`.
fn of_partition<'t>(
    guest: &Guest<'t>,
    (partition, topology): (&Partition, &Topology),
    gpu: Spot<'t>,
    switches: &[&Passed<'t>],
    report: &mut Report<'t>,
) {
    let number = partition.gpus.len();
    let count = u32::try_from(switches.len()).unwrap_or(u32::MAX);
    if count != partition.nvswitches {
        let message = format!(
            "partition {} of {} needs {}, the guest gets {count}",
            partition.id,
            words::count(number, "GPU"),
            words::count(partition.nvswitches, "NVSwitch")
        );
        let from = list(&partition.nvswitch_pool);
        let name = shell::word(&guest.name);
        let hint = if is_refused(partition, topology) {
            format!(
                "`gpuvm set {name} --gpus {number} --accept-shared-fabric` gives it so many of {from}"
            )
        } else {
            format!("`gpuvm set {name} --gpus {number}` gives it so many of {from}")
        };
        let spot = switches.last().map_or(gpu, |switch| switch.device);
        report.add(&COUNT, spot, message, hint);
    }
    let foreign = |p: &&&Passed<'t>| !partition.nvswitch_pool.contains(&p.bdf.value);
    for switch in switches.iter().filter(foreign).filter(|_| partition.nvswitches > 0) {
        let message =
            format!("NVSwitch {} is not on the board of the passed GPUs", switch.bdf.value);
        let hint = format!("take it from {}", list(&partition.nvswitch_pool));
        report.add(&FOREIGN, switch.bdf.spot, message, hint);
    }
}

/// Whether `set` refuses a partition with its NVSwitches unless that is accepted.
fn is_refused(partition: &Partition, topology: &Topology) -> bool {
    let switches = partition.nvswitch_pool.iter().take(partition.nvswitches as usize);
    let functions: Vec<Bdf> = partition.gpus.iter().chain(switches).copied().collect();
    let is_shared = shared_fabric(topology, &Occupancy::default(), &functions).is_some();
    let trust = topology.machine().trust;
    is_shared && Trust::refuses(trust, false) && !Trust::refuses(trust, true)
}

/// The hint for guests with some GPUs of an H100 or later board.
const SHARE: &str = "share the NVSwitches: FABRIC_MODE=1 in \
                     /usr/share/nvidia/nvswitch/fabricmanager.cfg, then `systemctl enable \
                     nvidia-fabricmanager` and `systemctl restart nvidia-fabricmanager`";

/// Checks that only a guest with all GPUs has the NICs in front of NVSwitches that are not PCI
/// functions.
fn bridge<'t>(
    guest: &Guest<'t>,
    topology: &Topology,
    gpus: &[&Passed<'t>],
    set: &[Bdf],
    report: &mut Report<'t>,
) {
    let functions = &topology.fabric().bridge;
    let needs = topology.behind_bridge(set).is_some();
    let passed = guest.passed.iter().filter(|p| functions.contains(&p.bdf.value));
    for function in passed.clone().filter(|_| !needs) {
        let message = format!(
            "NIC {} is in front of the board's NVSwitches, which Fabric Manager reaches by it",
            function.bdf.value
        );
        let hint = "pass another NIC: `gpuvm nic list` shows them".to_owned();
        report.add(&BRIDGE, function.bdf.spot, message, hint);
    }
    let missing = functions.len() - passed.count();
    let Some(first) = gpus.first().filter(|_| needs && (missing > 0 || functions.is_empty()))
    else {
        return;
    };
    let (which, hint) = if functions.is_empty() {
        ("which are not known".to_owned(), SHARE.to_owned())
    } else {
        (list(functions), format!("pass them along, or {SHARE}"))
    };
    let message = format!(
        "the {} passed GPUs have no NVLink without the NICs in front of their NVSwitches, {which}",
        set.len()
    );
    report.add(&NO_BRIDGE, first.device, message, hint);
}

/// Formats addresses for a message.
fn list(all: &[Bdf]) -> String {
    if all.is_empty() {
        return "nowhere: it needs none".to_owned();
    }
    all.iter().map(Bdf::to_string).collect::<Vec<_>>().join(", ")
}

/// Names the smallest partition around a set, or the largest inside it.
fn nearest(set: &BTreeSet<Bdf>, partitions: &[Partition]) -> String {
    let around = partitions.iter().filter(|p| set.iter().all(|gpu| p.gpus.contains(gpu)));
    let inside = partitions.iter().filter(|p| p.gpus.iter().all(|gpu| set.contains(gpu)));
    let around = around.min_by_key(|p| p.gpus.len());
    match around.or_else(|| inside.max_by_key(|p| p.gpus.len())) {
        Some(partition) => format!("partition {} is {}", partition.id, list(&partition.gpus)),
        None => "`gpuvm host show` lists the partitions".to_owned(),
    }
}
