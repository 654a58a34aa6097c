//! `device list`: the holder of each function, and whether a guest can have it.

use crate::cli::args::DeviceListArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::names::plain;
use crate::cli::table::Table;
use crate::topology::{DeviceKind, is_vfio};
use gpuvm_ops::devices::{ListedDevice, devices};

/// Runs the verb.
pub fn run(args: &DeviceListArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let (topology, held) = (cx.topology_with(args.held.assume)?, cx.taken(&args.held)?);
    let rows = devices(cx, &topology, &held, (args.all, args.held.assume))?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-device-list", &rows)?;
    } else if rows.is_empty() {
        cx.output.progress(&topology.without("GPU, NVSwitch, NIC or NVMe drive"));
    } else {
        cx.output.table(&table(&rows))?;
    }
    Ok(EXIT_DONE)
}

/// Returns the word for a kind.
fn kind(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Gpu => "GPU",
        DeviceKind::NvSwitch => "NVSwitch",
        DeviceKind::Nic => "NIC",
        DeviceKind::Nvme => "NVMe",
        _ => "other",
    }
}

fn table(rows: &[ListedDevice]) -> Table {
    let mut table =
        Table::new(["ADDRESS", "KIND", "MODEL", "NODE", "DRIVER", "GROUP", "RESET", "STATE"]);
    for row in rows {
        let dash = || "-".to_owned();
        let reset = row.reset_methods.join(",");
        let bound = row.driver.as_deref().is_some_and(is_vfio);
        let mut state = match row.why.split_first() {
            None if row.aside.is_some() => row.aside.clone().unwrap_or_default(),
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
