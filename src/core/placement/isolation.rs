//! What a guest of this size on this board can reach over NVLink (gpuvm-hardware(7), ISOLATION),
//! and whether the IOMMU isolates its devices, said plainly. Chooses nothing.

use super::devices::Devices;
use super::explain::{Reasons, count, domains, list};
use super::reason::Topic;
use super::taken::Taken;
use crate::bdf::Bdf;
use crate::topology::{DeviceKind, FabricModel, Isolated, Topology};

/// Adds the reason.
pub(super) fn explain(
    topology: &Topology,
    taken: &Taken<'_>,
    devices: &Devices,
    reasons: &mut Reasons,
) {
    let gpus = topology.gpus().count();
    let switches: Vec<Bdf> = topology.of_kind(DeviceKind::NvSwitch).map(|d| d.bdf).collect();
    match topology.fabric().model {
        FabricModel::SharedNvswitch => reasons.say(
            Topic::Isolation,
            "the NVSwitches stay with Fabric Manager, which opens only the NVLinks of this \
             partition; it has to run and the partition has to be activated before start"
                .into(),
        ),
        FabricModel::FullPassthrough if devices.gpus.len() == gpus => {
            let text = "the guest owns every GPU of the host: no other guest is on its NVLinks";
            reasons.say(Topic::Isolation, text.into());
        }
        FabricModel::FullPassthrough if owns_boards(topology, devices) => reasons.say(
            Topic::Isolation,
            format!(
                "the guest owns every GPU and all {} of its board: no other guest is on the board's \
                 NVLinks; those between boards stay off as long as no guest turns them on at both ends",
                count(devices.switches.len(), "NVSwitch")
            ),
        ),
        FabricModel::FullPassthrough if !devices.switches.is_empty() => reasons.compromise(
            Topic::Isolation,
            format!(
                "not isolated on NVLink: the guest holds {} and can reprogram {}, since stock QEMU \
                 filters no access to an NVSwitch; isolated are guests with all GPUs of a board, or \
                 of 1 GPU while no guest holds an NVSwitch",
                count(devices.switches.len(), "NVSwitch"),
                if devices.switches.len() == 1 { "it" } else { "them" },
            ),
        ),
        FabricModel::FullPassthrough => {
            let holders: Vec<&str> = switches.iter().filter_map(|&b| taken.device(b)).collect();
            if holders.is_empty() {
                reasons.say(
                    Topic::Isolation,
                    "no NVSwitch is handed out: isolated on NVLink as long as no other guest \
                     holds one"
                        .into(),
                );
            } else {
                let names = domains(holders);
                let text = format!(
                    "not isolated on NVLink: {names} holds NVSwitches that these GPUs have links to, \
                     and stock QEMU filters no access to an NVSwitch"
                );
                reasons.compromise(Topic::Isolation, text);
            }
        }
        FabricModel::None => direct_links(topology, devices, reasons),
    }
}

/// Whether every NVSwitch of the boards that the GPUs are on goes to the guest, so that all their GPUs do, too.
fn owns_boards(topology: &Topology, devices: &Devices) -> bool {
    let mut partitions = topology.partitions().iter();
    let own = partitions.find(|partition| Some(partition.id) == devices.partition);
    own.is_some_and(|own| {
        !own.nvswitch_pool.is_empty()
            && own.nvswitch_pool.iter().all(|switch| devices.switches.contains(switch))
    })
}

/// Says where direct NVLinks leave the set.
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
    if out.is_empty() {
        let text = "no NVLink leads out of the set";
        reasons.say(Topic::Isolation, text.into());
    } else {
        let text = format!(
            "direct NVLinks lead to {}, which stay outside: nothing in stock QEMU blocks them",
            list(out)
        );
        reasons.compromise(Topic::Isolation, text);
    }
}

/// Says whether the IOMMU isolates functions: only where that is known.
pub(super) fn iommu(topology: &Topology, functions: &[Bdf], reasons: &mut Reasons) {
    match topology.isolates(functions) {
        _ if functions.is_empty() => {}
        Isolated::Yes => reasons.say(
            Topic::Iommu,
            "the IOMMU keeps these devices to the guest's own memory: each has an IOMMU group, and neither \
             pcie_acs_override= nor VFIO's unsafe interrupts are on"
                .into(),
        ),
        Isolated::No(weak) => {
            for weakness in weak {
                reasons.compromise(Topic::Iommu, weakness.says());
            }
        }
        Isolated::Unknown => reasons.say(
            Topic::Iommu,
            "whether the IOMMU isolates these devices is unknown: the record does not say how VFIO is set; `gpuvm \
             host capture FILE` on the host records it"
                .into(),
        ),
    }
}
