//! `device list`: who has which function, and whether a guest can have it.

use crate::apply::bind::boot;
use crate::bdf::Bdf;
use crate::cli::args::DeviceListArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::names::{model, plain};
use crate::cli::table::Table;
use crate::cpuset::NodeId;
use crate::holders::{Take, Use};
use crate::placement::{DeviceState, Occupancy, device_states};
use crate::topology::{DeviceKind, PciDevice, Topology, is_vfio};
use gpuvm_ops::uses::uses;
use serde::Serialize;
use std::collections::BTreeSet;

/// Is one row.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Row {
    /// Address.
    bdf: Bdf,
    /// What it is.
    kind: DeviceKind,
    /// Model, or the ids.
    model: String,
    /// Node.
    node: Option<NodeId>,
    /// Driver that has it.
    driver: Option<String>,
    /// IOMMU group.
    iommu_group: Option<u32>,
    /// The kernel's ways to reset it, in the order that it tries them.
    reset_methods: Vec<String>,
    /// Whether it is bound to vfio-pci at boot.
    at_boot: bool,
    /// Domains that have it, running or not.
    domains: Vec<String>,
    /// Who uses it.
    used_by: Vec<Use>,
    /// Whether it can be passed through now.
    passable: bool,
    /// Why not, to be read after its address.
    why: Vec<String>,
}

/// Runs the verb.
pub fn run(args: &DeviceListArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let topology = cx.topology()?;
    let held = cx.taken(&args.taken)?;
    let listed = |device: &&PciDevice| match device.kind() {
        DeviceKind::Bridge | DeviceKind::HostBridge => false,
        DeviceKind::Other => args.all,
        _ => true,
    };
    let devices: Vec<&PciDevice> = topology.devices().iter().filter(listed).collect();
    let functions: Vec<Bdf> = devices.iter().map(|device| device.bdf).collect();
    let uses = uses(cx, &topology, &held, &functions)?;
    let at_boot = cx.root()?.map(|root| boot::functions(&root)).transpose()?.unwrap_or_default();
    let row = |device: &&PciDevice| row(device, &topology, &held, &uses, &at_boot);
    let rows: Vec<Row> = devices.iter().map(row).collect();
    if cx.output.json {
        cx.output.json_rows("gpuvm-device-list", &rows)?;
    } else if rows.is_empty() {
        cx.output.progress(&topology.without("GPU, NVSwitch, NIC or NVMe drive"));
    } else {
        cx.output.table(&table(&rows))?;
    }
    Ok(EXIT_DONE)
}

/// One row.
fn row(
    device: &PciDevice,
    topology: &Topology,
    held: &Occupancy,
    uses: &[Use],
    at_boot: &BTreeSet<Bdf>,
) -> Row {
    let bdf = device.bdf;
    let mut why: Vec<String> = Vec::new();
    if let Some(excluded) = held.excluded.iter().find(|excluded| excluded.bdf == bdf) {
        why.push(format!("is excluded: {}", excluded.reason).trim_end_matches([':', ' ']).into());
    }
    if device.is_silent() {
        why.push("does not answer".into());
    }
    let having = held.domains.iter().filter(|domain| domain.devices.contains(&bdf));
    let domains: BTreeSet<String> = having.clone().map(|domain| domain.domain.clone()).collect();
    let off = having.filter(|domain| !domain.active);
    why.extend(off.map(|domain| format!("is held by domain `{}`, which is off", domain.domain)));
    let take = Take::new(topology, uses, &[bdf]);
    why.extend(take.hindrances.into_iter().map(|hindrance| hindrance.why));
    if why.is_empty() {
        let told = device_states(topology, held, &[bdf]);
        let data = told.into_iter().filter(|(state, _)| *state == DeviceState::Data);
        why.extend(data.filter_map(|(_, why)| why));
    }
    why.dedup();
    Row {
        bdf,
        kind: device.kind(),
        model: model(device),
        node: device.node,
        driver: device.driver.clone(),
        iommu_group: device.iommu_group,
        reset_methods: device.reset_methods.clone(),
        at_boot: at_boot.contains(&bdf),
        domains: domains.into_iter().collect(),
        used_by: uses.iter().filter(|used| used.bdf == bdf).cloned().collect(),
        passable: why.is_empty(),
        why,
    }
}

/// The kind in a word.
fn kind(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Gpu => "GPU",
        DeviceKind::NvSwitch => "NVSwitch",
        DeviceKind::Nic => "NIC",
        DeviceKind::Nvme => "NVMe",
        _ => "other",
    }
}

/// The rows as a table.
fn table(rows: &[Row]) -> Table {
    let mut table =
        Table::new(["ADDRESS", "KIND", "MODEL", "NODE", "DRIVER", "GROUP", "RESET", "STATE"]);
    for row in rows {
        let dash = || "-".to_owned();
        let reset = row.reset_methods.join(",");
        let bound = row.driver.as_deref().is_some_and(is_vfio);
        let mut state = match row.why.split_first() {
            None if bound => "free, bound for guests".to_owned(),
            None => "free".to_owned(),
            Some((first, [])) => plain(first),
            Some((first, more)) => format!("{}, and {} more", plain(first), more.len()),
        };
        if row.at_boot {
            state += ", at boot";
        }
        table.push([
            row.bdf.to_string(),
            kind(row.kind).to_owned(),
            row.model.clone(),
            row.node.map_or_else(dash, |node| node.to_string()),
            row.driver.clone().unwrap_or_else(dash),
            row.iommu_group.map_or_else(dash, |group| group.to_string()),
            if reset.is_empty() { dash() } else { reset },
            state,
        ]);
    }
    table
}
