//! Explains which GPUs a guest of this size on this board can reach over NVLink (gpuvm-hardware(7),
//! ISOLATION), and whether the IOMMU isolates its devices. Chooses nothing.

use super::chosen::Devices;
use super::explain::Reasons;
use super::reason::{Because, IsolationReason, Reason, Topic};
use super::taken::Taken;
use crate::bdf::Bdf;
use crate::fabric::{Obstacle, need};
use crate::occupancy::Occupancy;
use crate::topology::model::model;
use crate::topology::{DeviceKind, FabricModel, Isolated, PciDevice, Topology, Trust, Weakness};

/// Returns why a guest with these functions and other guests are not isolated from each other, on
/// NVLink or by ports below which they are; `None` if they are. `others`: the resources of the
/// other guests. The common rule of `create`, `set` and `start`, which accept it where [`Trust`]
/// does.
pub fn shared_fabric(
    topology: &Topology,
    others: &Occupancy,
    functions: &[Bdf],
) -> Option<IsolationReason> {
    shared_nvlink(topology, others, functions).or_else(|| open_ports(topology, functions))
}

/// Returns the ports that do not redirect the traffic of these functions; `None` if all do, or they
/// are not known.
fn open_ports(topology: &Topology, functions: &[Bdf]) -> Option<IsolationReason> {
    let open = if functions.is_empty() { Vec::new() } else { topology.open_ports(functions) };
    (!open.is_empty()).then_some(IsolationReason::WeakIommu(Weakness::OpenPorts(open)))
}

/// The same on NVLink.
pub fn shared_nvlink(
    topology: &Topology,
    others: &Occupancy,
    functions: &[Bdf],
) -> Option<IsolationReason> {
    let of_kind = |kind| -> Vec<Bdf> {
        let all = topology.of_kind(kind).map(|device| device.bdf);
        all.filter(|bdf| functions.contains(bdf)).collect()
    };
    let (gpus, switches) = (of_kind(DeviceKind::Gpu), of_kind(DeviceKind::NvSwitch));
    if gpus.is_empty() {
        return None;
    }
    let partition = topology.partition_of(&gpus).ok().flatten().map(|partition| partition.id);
    let devices = Devices { partition, gpus, switches, ..Devices::default() };
    let mut own = Reasons(Vec::new());
    reach(topology, &Taken::new(topology, others), &devices, &mut own);
    own.0.into_iter().filter(is_open).find_map(|reason| match reason.because {
        Because::Isolation(why) => Some(why),
        _ => None,
    })
}

/// Returns why the NVLink partition of a guest with these functions would not be activated now, and
/// its GPUs; `None` if it would be, or it needs none.
pub fn not_ready(
    topology: &Topology,
    others: &Occupancy,
    functions: &[Bdf],
) -> Option<(Vec<Bdf>, Obstacle)> {
    let need = need(topology, functions).ok()??;
    let why = others.readiness.obstacle(need.partition)?;
    Some((need.gpus.into_iter().map(|gpu| gpu.bdf).collect(), why))
}

/// Whether a reason says that guests are not isolated over NVLink.
fn is_open(reason: &Reason) -> bool {
    reason.choice == Topic::Isolation && reason.compromise
}

pub(super) fn explain(
    topology: &Topology,
    taken: &Taken<'_>,
    devices: &Devices,
    reasons: &mut Reasons,
) {
    let mut own = Reasons(Vec::new());
    if !devices.gpus.is_empty() {
        reach(topology, taken, devices, &mut own);
    }
    let open = own.0.iter().any(is_open) || open_ports(topology, &devices.all()).is_some();
    let said = topology.machine().trust;
    for reason in own.0 {
        // Guests that trust each other need not be isolated, but they need CUDA.
        let is_harmless =
            !matches!(reason.because, Because::Isolation(IsolationReason::LinksStayOn));
        if reason.choice == Topic::Isolation && is_harmless && said == Some(Trust::OneTenant) {
            reasons.say(reason.choice, reason.because)
        } else {
            reasons.0.push(reason)
        }
    }
    match said {
        _ if !open => {}
        Some(Trust::OneTenant) => reasons.say(Topic::Trust, IsolationReason::Trust(said)),
        _ => match &topology.machine().trust_unread {
            None => reasons.compromise(Topic::Trust, IsolationReason::Trust(said)),
            Some(why) => {
                reasons.compromise(Topic::Trust, IsolationReason::TrustUnread(why.clone()));
            }
        },
    }
}

/// Says which GPUs the guest reaches over NVLink, and which guests reach it.
fn reach(topology: &Topology, taken: &Taken<'_>, devices: &Devices, reasons: &mut Reasons) {
    let gpus = topology.gpus().count();
    let switches: Vec<Bdf> = topology.of_kind(DeviceKind::NvSwitch).map(|d| d.bdf).collect();
    match topology.fabric().model {
        FabricModel::SharedNvswitch => {
            reasons.say(Topic::Isolation, IsolationReason::FabricManager);
            match need(topology, &devices.gpus) {
                Ok(Some(need)) => match taken.readiness.obstacle(need.partition) {
                    None => reasons.say(Topic::Partition, IsolationReason::Partition(need)),
                    Some(why) => {
                        let why = IsolationReason::NotNow { need, why };
                        reasons.compromise(Topic::Partition, why);
                    }
                },
                Ok(None) => {}
                Err(refusal) => {
                    reasons.compromise(Topic::Partition, IsolationReason::NoPartition(refusal));
                }
            }
        }
        FabricModel::FullPassthrough if devices.gpus.len() == gpus => {
            reasons.say(Topic::Isolation, IsolationReason::WholeHost);
            let bridge = &topology.fabric().bridge;
            let is_whole = !bridge.is_empty()
                && bridge.iter().all(|function| devices.extras.nics.contains(function));
            if topology.behind_bridge(&devices.gpus).is_some() && !is_whole {
                let functions = bridge.clone();
                reasons.compromise(Topic::Nvswitches, IsolationReason::NoBridge { functions });
            }
        }
        FabricModel::FullPassthrough if owns_boards(topology, devices) => {
            let switches = devices.switches.len();
            reasons.say(Topic::Isolation, IsolationReason::WholeBoard { switches });
        }
        FabricModel::FullPassthrough if !devices.switches.is_empty() => {
            let switches = devices.switches.len();
            reasons.compromise(Topic::Isolation, IsolationReason::HoldsSwitches { switches });
        }
        FabricModel::FullPassthrough => {
            let holders = switches.iter().filter_map(|&b| taken.device(b));
            let domains: Vec<String> = holders.map(str::to_owned).collect();
            if domains.is_empty() && topology.keeps_links_on(&devices.gpus) {
                reasons.compromise(Topic::Isolation, IsolationReason::LinksStayOn);
            } else if domains.is_empty() {
                reasons.say(Topic::Isolation, IsolationReason::NoSwitchHeld);
            } else {
                reasons.compromise(Topic::Isolation, IsolationReason::SwitchesOfOthers { domains });
            }
        }
        FabricModel::None => direct_links(topology, devices, reasons),
    }
}

/// Whether every NVSwitch of the boards that the GPUs are on belongs to the guest, and so all their
/// GPUs.
fn owns_boards(topology: &Topology, devices: &Devices) -> bool {
    let mut partitions = topology.partitions().iter();
    let own = partitions.find(|partition| Some(partition.id) == devices.partition);
    own.is_some_and(|own| {
        !own.nvswitch_pool.is_empty()
            && own.nvswitch_pool.iter().all(|switch| devices.switches.contains(switch))
    })
}

/// Adds where direct NVLinks leave the set.
fn direct_links(topology: &Topology, devices: &Devices, reasons: &mut Reasons) {
    let inside = |bdf: &Bdf| devices.gpus.contains(bdf);
    let mut out: Vec<Bdf> = Vec::new();
    for link in &topology.fabric().links {
        match (inside(&link.a), inside(&link.b)) {
            (true, false) => out.push(link.b),
            (false, true) => out.push(link.a),
            _ => {}
        }
    }
    out.sort();
    out.dedup();
    let unread = topology.links_unread(&devices.gpus);
    if devices.gpus.iter().any(|gpu| topology.is_of_rack(*gpu)) {
        // The host's own other GPUs are in the same partition, also where no board is recognised.
        let is_other = |gpu: &PciDevice| topology.is_of_rack(gpu.bdf) && !inside(&gpu.bdf);
        if out.is_empty() && !topology.gpus().any(is_other) {
            reasons.say(Topic::Isolation, IsolationReason::Rack);
        } else {
            reasons.compromise(Topic::Isolation, IsolationReason::Rack);
        }
    } else if out.is_empty() && !unread.is_empty() {
        reasons.compromise(Topic::Isolation, IsolationReason::LinksUnread { to: unread });
    } else if out.is_empty() && has_unknown_nvlinks(topology, devices) {
        reasons.say(Topic::Isolation, IsolationReason::NvLinksUnread);
    } else if out.is_empty() {
        reasons.say(Topic::Isolation, IsolationReason::NoLinkOut);
    } else {
        reasons.compromise(Topic::Isolation, IsolationReason::LinksOut { to: out });
    }
}

/// Whether some of the GPUs are on SXM modules, all of which have NVLinks, beside others of the
/// host, and no link of the host is known.
fn has_unknown_nvlinks(topology: &Topology, devices: &Devices) -> bool {
    let is_on_module = |bdf: &Bdf| topology.device(*bdf).is_some_and(|d| model(d).contains("SXM"));
    topology.fabric().links.is_empty()
        && devices.gpus.iter().any(is_on_module)
        && topology.gpus().any(|gpu| !devices.gpus.contains(&gpu.bdf))
}

/// Adds whether the IOMMU isolates functions, if known.
pub(super) fn iommu(topology: &Topology, functions: &[Bdf], reasons: &mut Reasons) {
    match topology.isolates(functions) {
        _ if functions.is_empty() => {}
        Isolated::Yes => reasons.say(Topic::Iommu, IsolationReason::Iommu),
        Isolated::No(weak) => {
            for weakness in weak {
                reasons.compromise(Topic::Iommu, IsolationReason::WeakIommu(weakness));
            }
        }
        Isolated::Unknown => reasons.say(Topic::Iommu, IsolationReason::UnknownIommu),
    }
}
