//! States and requests with the place that the model finds, as JSON: `tests/export/nova_cases.py`
//! asks Nova's own planner for the same.

use super::pci::Affinity;
use super::{Cell, Host, Nova, parts};
use crate::model::{Ask, Place, Policy as _};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::Topology;
use serde_json::{Value, json};

/// KiB of a MiB, in which Nova counts.
const MIB: u64 = 1024;

/// A case: the host with its guests, the request, the place of the model; and this place. `None` if
/// no flavor can be made for the request.
pub fn case(
    topology: &Topology,
    guests: &[Place],
    ask: &Ask,
    (packing, preferred): (bool, bool),
) -> Option<(Value, Option<Place>)> {
    let host = Host::new(topology, guests);
    let cells = host.cells_for(ask)?;
    let (vcpus, sizes) = (parts(u64::from(ask.vcpus), cells), parts(ask.memory.kib(), cells));
    let wanted: Vec<Cell> = vcpus
        .into_iter()
        .zip(sizes)
        .map(|(vcpus, kib)| Cell { vcpus, memory: MemSize::from_kib(kib) })
        .collect();
    let affinity = if preferred { Affinity::Preferred } else { Affinity::Legacy };
    let nova = Nova { packing, affinity };
    let found = nova.fit(&host, ask, &wanted).map(|fitted| {
        let cells = fitted.cells.iter().map(|(node, packed)| {
            let pcpus = packed.threads.iter().map(|&thread| host.threads[thread].pcpu.0);
            json!({ "node": host.nodes[*node].id.0, "pcpus": pcpus.collect::<Vec<_>>() })
        });
        let got = fitted.devices;
        let devices = got.gpus.iter().chain(&got.nics).chain(&got.nvmes).map(ToString::to_string);
        json!({ "cells": cells.collect::<Vec<_>>(), "devices": devices.collect::<Vec<_>>() })
    });
    let case = json!({
        "packing": packing,
        "policy": if preferred { "preferred" } else { "legacy" },
        "cells": (0..host.nodes.len()).map(|node| cell(&host, node)).collect::<Vec<_>>(),
        "devices": devices(&host),
        "guest": wanted
            .iter()
            .map(|cell| json!({ "vcpus": cell.vcpus, "mib": cell.memory.kib().div_ceil(MIB) }))
            .collect::<Vec<_>>(),
        "wanted": { "gpus": ask.gpus, "nics": ask.nics, "nvmes": ask.nvmes },
        "model": found,
    });
    Some((case, nova.place(topology, guests, ask)))
}

/// A node: its cores, the pcpus that guests have, its memory.
fn cell(host: &Host<'_>, node: usize) -> Value {
    let of = &host.nodes[node];
    let numbers = |core: usize, held: bool| -> Vec<u32> {
        let threads = host.cores[core].threads.clone().map(|thread| host.threads[thread]);
        threads.filter(|thread| !held || !thread.free).map(|thread| thread.pcpu.0).collect()
    };
    let cores: Vec<Vec<u32>> = of.cores.iter().map(|&core| numbers(core, false)).collect();
    let pinned: Vec<u32> = of.cores.iter().flat_map(|&core| numbers(core, true)).collect();
    let package = of.cores.first().map_or(0, |&core| host.cores[core].package);
    json!({
        "id": of.id.0, "package": package, "cores": cores, "pinned": pinned,
        "mib": of.memory.kib() / MIB, "used_mib": (of.memory - of.free).kib().div_ceil(MIB),
    })
}

/// The free functions of each kind, in the order in which they are found.
fn devices(host: &Host<'_>) -> Value {
    let list = |list: &[super::super::host::Device]| -> Vec<Value> {
        let free = list.iter().filter(|device| device.free);
        free.map(|device| {
            let node = device.node.map(|node| host.nodes[node].id.0);
            let (vendor, product) = device.product;
            let ids = (format!("{vendor:04x}"), format!("{product:04x}"));
            json!({ "bdf": device.bdf.to_string(), "vendor": ids.0, "product": ids.1, "node": node })
        })
        .collect()
    };
    json!({ "gpus": list(&host.gpus), "nics": list(&host.nics), "nvmes": list(&host.nvmes) })
}
