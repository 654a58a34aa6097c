//! `network list`: every network, its uplink, and how many guests use it.

use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::table::Table;
use gpuvm_ops::networks::facts::{NetworkRow, all};

/// Runs the verb.
pub fn run(cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("network list")?;
    let rows = all(cx)?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-network-list", &rows)?;
    } else if rows.is_empty() {
        cx.output.progress("there is no network; `gpuvm network create default` makes one");
    } else {
        cx.output.table(&table(&rows))?;
    }
    Ok(EXIT_DONE)
}

fn table(rows: &[NetworkRow]) -> Table {
    let dash = || "-".to_owned();
    let mut table = Table::new([
        "NAME",
        "KIND",
        "STATE",
        "AUTOSTART",
        "BRIDGE",
        "NIC",
        "MTU",
        "RANGE",
        "GUESTS",
        "LEASES",
    ]);
    for NetworkRow { network, active, autostart, persistent, guests, leases } in rows {
        let state = match (active, persistent) {
            (true, true) => "up",
            (true, false) => "up, gone when it ends",
            (false, _) => "down",
        };
        let mut names: Vec<&str> = guests.iter().map(|guest| guest.domain.as_str()).collect();
        names.dedup();
        table.push([
            network.name.clone(),
            network.kind.to_string(),
            state.to_owned(),
            if *autostart { "yes" } else { "no" }.to_owned(),
            network.bridge.clone().unwrap_or_else(dash),
            if network.nics.is_empty() { dash() } else { network.nics.join(",") },
            network.mtu.map_or_else(dash, |mtu| mtu.to_string()),
            network.range.map_or_else(dash, |range| range.to_string()),
            if names.is_empty() { dash() } else { names.join(",") },
            leases.to_string(),
        ]);
    }
    table
}
