//! A plan without some of its functions: reasons of those left out are removed.

use super::chosen::Devices;
use super::explain::Reasons;
use super::isolation;
use super::reason::{Because, GpuReason, Topic, TreeReason};
use super::result::Placement;
use super::taken::Taken;
use super::types::GuestPcie;
use crate::bdf::Bdf;
use crate::occupancy::Occupancy;
use crate::topology::{DeviceKind, Topology};

/// Topics that depend on which NVSwitches the guest has.
const OF_SWITCHES: [Topic; 4] =
    [Topic::Nvswitches, Topic::Isolation, Topic::Partition, Topic::Trust];

impl Placement {
    /// Leaves out functions that the guest does not get. `others`: the occupancy by other guests.
    pub fn leave_out(&mut self, functions: &[Bdf], topology: &Topology, others: &Occupancy) {
        if functions.is_empty() {
            return;
        }
        let stays = |bdf: &Bdf| !functions.contains(bdf);
        self.devices.retain(stays);
        let GuestPcie { groups, links, cliques, beside_gpu } = &mut self.guest_pcie;
        links.retain(|link| stays(&link.device));
        beside_gpu.retain(stays);
        cliques.iter_mut().for_each(|clique| clique.retain(stays));
        groups.iter_mut().for_each(|group| group.devices.retain(stays));
        groups.retain(|group| !group.devices.is_empty());
        let ports =
            |devices: &[Bdf]| devices.iter().filter(|bdf| !beside_gpu.contains(bdf)).count();
        self.reasons.retain_mut(|reason| match &mut reason.because {
            Because::Gpus(
                GpuReason::Unbound { functions, .. } | GpuReason::NoGroup { functions },
            )
            | Because::Tree(
                TreeReason::Away { devices: functions }
                | TreeReason::NearNone { devices: functions, .. },
            ) => {
                functions.retain(stays);
                !functions.is_empty()
            }
            Because::Tree(TreeReason::Bus { devices, ports: number, .. }) => {
                devices.retain(stays);
                *number = ports(devices);
                !devices.is_empty()
            }
            _ => true,
        });
        let is_switch = |bdf: &Bdf| {
            topology.device(*bdf).is_some_and(|device| device.kind() == DeviceKind::NvSwitch)
        };
        if functions.iter().any(is_switch) {
            self.without_switches(topology, others);
        }
    }

    /// Updates the reasons that depend on its NVSwitches.
    fn without_switches(&mut self, topology: &Topology, others: &Occupancy) {
        let of_kind = |kind| {
            let found = topology.among(&self.devices, kind, false);
            found.into_iter().map(|device| device.bdf).collect::<Vec<Bdf>>()
        };
        let (gpus, switches) = (of_kind(DeviceKind::Gpu), of_kind(DeviceKind::NvSwitch));
        let devices = Devices { partition: self.partition, gpus, switches, ..Devices::default() };
        let mut reasons = Reasons::default();
        isolation::explain(topology, &Taken::new(topology, others), &devices, &mut reasons);
        self.reasons.retain(|reason| !OF_SWITCHES.contains(&reason.choice));
        self.reasons.append(&mut reasons.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::*;
    use crate::request::Request;
    use crate::topology::file::from_json;

    #[test]
    fn nothing_is_said_of_a_function_that_is_left_out() {
        let host = from_json(include_str!("../../../topologies/dgx-2.json")).unwrap();
        let others = Occupancy::default();
        let mut placement = plan(&host, &others, &Request::for_gpus(2)).unwrap();
        let switch = placement.devices[2];
        let says = |placement: &Placement, text: &str| {
            placement.reasons.iter().filter(|one| one.because.to_string().contains(text)).count()
        };
        assert!(says(&placement, &switch.to_string()) > 1);
        assert_eq!(says(&placement, "the guest holds 1 NVSwitch"), 1);
        placement.leave_out(&[switch], &host, &others);
        assert_eq!(says(&placement, &switch.to_string()), 0);
        assert_eq!(says(&placement, "the guest holds 1 NVSwitch"), 0);
        assert!(placement.shared_fabric().is_none(), "it holds no switch, and nobody else does");
        assert_eq!(placement.guest_pcie.links.len(), 2);
    }
}
