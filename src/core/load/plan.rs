//! The assigned pins and nodes of a guest, from its running XML.

use super::sample::GuestPlan;
use crate::cpuset::{CpuSet, NodeSet};
use crate::domain::DomainXml;
use crate::domain::claims::{Claims, VcpuId};

impl GuestPlan {
    /// Reads pins and nodes of a running domain; `nodes_of` names the nodes of pcpus, for a guest
    /// whose memory is not bound.
    pub fn of(domain: &DomainXml, nodes_of: impl Fn(&CpuSet) -> NodeSet) -> GuestPlan {
        let claims = Claims::read(domain);
        let default = claims.default_pin.as_ref().map(|pin| &pin.value);
        let pinned = |pins: &[crate::domain::claims::Pin<'_>], id: u32| {
            let own = pins.iter().find(|pin| pin.of.value == id).map(|pin| &pin.cpuset.value);
            own.or(default).map(|pin| (id, pin.clone()))
        };
        let vcpus = claims.plugged.iter();
        let bound = claims.bindings.iter().map(|binding| &binding.nodes.value);
        let bound = bound.fold(NodeSet::new(), |all, nodes| all.or(nodes));
        let iothreads = claims.iothreads.keys();
        let mut plan = GuestPlan {
            name: claims.name.clone(),
            uuid: domain.uuid().unwrap_or_default().to_ascii_lowercase(),
            vcpus: u32::try_from(claims.plugged.len()).unwrap_or(u32::MAX),
            vcpu_pins: vcpus.filter_map(|VcpuId(id)| pinned(&claims.vcpu_pins, id)).collect(),
            iothread_pins: iothreads.filter_map(|id| pinned(&claims.iothread_pins, *id)).collect(),
            emulator_pin: claims.emulator_pin.as_ref().map(|pin| &pin.value).or(default).cloned(),
            nodes: None,
        };
        let nodes = if bound.is_empty() {
            let vcpus = plan.vcpu_pins.values();
            nodes_of(&vcpus.fold(CpuSet::new(), |all, pin| all.or(pin)))
        } else {
            bound
        };
        plan.nodes = Some(nodes).filter(|nodes| !nodes.is_empty());
        plan
    }
}
