//! A host with the data derived from it, and the parts that do not work.

use crate::bdf::Bdf;
use crate::capture::checked;
use crate::error::Result;
use crate::placement::Exclusion;
use crate::topology::{DeviceKind, Parts, PciDevice, Topology};
use crate::world::World;
use gpuvm_core::versions::Stack;
use serde::Serialize;
use std::collections::BTreeMap;

/// A host, and the facts derived from it.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShownHost<'a> {
    /// The host, as in a recorded host's file.
    pub host: &'a Parts,
    /// GPUs by index.
    pub gpus: Vec<Bdf>,
    /// The kind of each PCI function.
    pub kinds: BTreeMap<Bdf, DeviceKind>,
    /// Missing, unresponsive, excluded and unhealthy devices, one line each; empty: none.
    pub degraded: Vec<String>,
}

/// Reads the host, with the libvirt and QEMU that are named for a recorded one; this machine, with
/// notes on differences of hwloc.
pub fn read(world: &World, named: Option<Stack>) -> Result<Topology> {
    let topology = world.topology_with(named)?;
    if world.settings.host.is_none() && world.is_here()? {
        Ok(checked(topology)?)
    } else {
        Ok(topology)
    }
}

/// The data derived from a host.
pub fn shown<'a>(world: &World, topology: &'a Topology) -> Result<ShownHost<'a>> {
    Ok(ShownHost {
        host: topology.parts(),
        gpus: topology.gpus().map(|gpu| gpu.bdf).collect(),
        kinds: topology.devices().iter().map(|d| (d.bdf, d.kind())).collect(),
        degraded: degraded(topology, &world.excluded()?),
    })
}

/// The devices that are missing, do not respond, are excluded or unhealthy, one line each.
fn degraded(topology: &Topology, excluded: &[Exclusion]) -> Vec<String> {
    let mut lines = topology.fabric().degraded.clone();
    let silent = topology.devices().iter().filter(|device| device.may_be_silent_gpu());
    for bdf in silent.map(|device| device.bdf.to_string()) {
        // The fabric's census names missing devices on boards that it knows.
        if !lines.iter().any(|line| line.contains(&bdf)) {
            lines.push(format!("{bdf} does not answer"));
        }
    }
    for Exclusion { bdf, reason, .. } in excluded {
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        lines.push(format!("{} is excluded{reason}", name(topology, *bdf)));
    }
    for device in topology.devices() {
        if let Some(health) = device.health.as_ref().filter(|health| health.is_over()) {
            lines.push(format!("{} is unhealthy: {}", name(topology, device.bdf), health.why()));
        }
    }
    lines
}

/// Names a GPU or an NVSwitch.
fn name(topology: &Topology, bdf: Bdf) -> String {
    let index = topology.gpus().position(|gpu| gpu.bdf == bdf);
    match (index, topology.device(bdf).map(PciDevice::kind)) {
        (Some(index), _) => format!("GPU {index} ({bdf})"),
        (None, Some(DeviceKind::NvSwitch)) => format!("NVSwitch {bdf}"),
        (None, _) => bdf.to_string(),
    }
}
