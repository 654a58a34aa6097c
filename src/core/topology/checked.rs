//! Checks on a host's data before it becomes a [`super::Topology`]: every reference must resolve.

use super::{Core, Parts, Sriov, TopologyError};
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use std::collections::BTreeMap;

/// Indexes values by key; an error if a key appears twice.
pub(super) fn index<K: Ord + ToString + Copy>(
    kind: &'static str,
    keys: impl Iterator<Item = K>,
) -> Result<BTreeMap<K, usize>, TopologyError> {
    let mut map = BTreeMap::new();
    for (position, key) in keys.enumerate() {
        if map.insert(key, position).is_some() {
            return Err(TopologyError::Twice { kind, id: key.to_string() });
        }
    }
    Ok(map)
}

/// Makes the error that `id` of `kind` refers to something missing.
pub(super) fn dangling(
    kind: &'static str,
    id: impl ToString,
    names: &'static str,
    missing: impl ToString,
) -> TopologyError {
    TopologyError::Dangling { kind, id: id.to_string(), names, missing: missing.to_string() }
}

/// Checks that a core has pcpus and that its node holds them.
pub(super) fn check_core(
    core: &Core,
    parts: &Parts,
    nodes: &BTreeMap<NodeId, usize>,
) -> Result<(), TopologyError> {
    let id = || format!("{} of package {}", core.core_id, core.package);
    let Some(&position) = nodes.get(&core.node) else {
        return Err(dangling("core", id(), "node", core.node));
    };
    if core.pcpus.is_empty() {
        let reason = "no online pcpu".into();
        return Err(TopologyError::Contradiction { kind: "core", id: id(), reason });
    }
    if !core.pcpus.is_subset(&parts.nodes[position].pcpus) {
        let reason = format!("pcpus {} are not all on node {}", core.pcpus, core.node);
        return Err(TopologyError::Contradiction { kind: "core", id: id(), reason });
    }
    Ok(())
}

/// The deepest nesting of bridges: each has a bus of its own, and a segment has 256.
const DEEPEST: usize = 256;

/// Checks that parents, nodes, partitions and drives refer to existing items, and that no bridge is
/// above itself.
pub(super) fn check_devices(
    parts: &Parts,
    devices: &BTreeMap<Bdf, usize>,
    nodes: &BTreeMap<NodeId, usize>,
) -> Result<(), TopologyError> {
    for device in &parts.devices {
        if let Some(node) = device.node.filter(|node| !nodes.contains_key(node)) {
            return Err(dangling("PCI function", device.bdf, "node", node));
        }
        let mut above = device.parent;
        for _ in 0..=DEEPEST {
            let Some(bdf) = above else { break };
            let Some(&position) = devices.get(&bdf) else {
                return Err(dangling("PCI function", device.bdf, "bridge", bdf));
            };
            above = parts.devices[position].parent;
        }
        if above.is_some() {
            let reason = "it stands above itself, or below more bridges than PCI has buses".into();
            let id = device.bdf.to_string();
            return Err(TopologyError::Contradiction { kind: "PCI function", id, reason });
        }
        if let Some(Sriov::Vf { pf }) = device.sriov
            && !devices.contains_key(&pf)
        {
            return Err(dangling("virtual function", device.bdf, "physical function", pf));
        }
    }
    for node in &parts.nodes {
        if let Some(gpu) = node.gpu.filter(|gpu| !devices.contains_key(gpu)) {
            return Err(dangling("node", node.os_index, "PCI function", gpu));
        }
    }
    index("partition", parts.fabric.partitions.iter().map(|p| p.id))?;
    for partition in &parts.fabric.partitions {
        for bdf in partition.gpus.iter().chain(&partition.nvswitch_pool) {
            if !devices.contains_key(bdf) {
                return Err(dangling("partition", partition.id, "PCI function", bdf));
            }
        }
    }
    let fabric = &parts.fabric;
    let ends = fabric.links.iter().flat_map(|link| [link.a, link.b]);
    for bdf in ends.chain(fabric.module_ids.iter().map(|(bdf, _)| *bdf)) {
        if !devices.contains_key(&bdf) {
            return Err(dangling("fabric", "NVLink", "PCI function", bdf));
        }
    }
    for drive in &parts.drives {
        if let Some(bdf) = drive.bdf.filter(|bdf| !devices.contains_key(bdf)) {
            return Err(dangling("drive", &drive.name, "PCI function", bdf));
        }
    }
    Ok(())
}
