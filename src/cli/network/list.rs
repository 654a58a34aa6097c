//! `network list`: every network, where it leads, and how many are on it.

use super::super::context::Context;
use super::super::error::EXIT_DONE;
use super::super::table::Table;
use super::guests::{GuestNic, Guests};
use super::read;
use crate::hypervisor::network::NetworkState;
use crate::network::Network;
use serde::Serialize;

/// Is one row.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Row {
    /// What it is.
    #[serde(flatten)]
    network: Network,
    /// Whether it is up.
    active: bool,
    /// Whether it comes up with libvirt.
    autostart: bool,
    /// Whether its definition outlives it.
    persistent: bool,
    /// The interfaces on it.
    guests: Vec<GuestNic>,
    /// Addresses that it has given away now.
    leases: usize,
}

/// Runs the verb.
pub fn run(cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("network list")?;
    let hypervisor = cx.hypervisor()?;
    let networks = hypervisor.networks();
    let states = networks.all_networks()?;
    let guests = Guests::read(&*hypervisor)?;
    let mut rows = Vec::new();
    for state in states {
        let network = read(&state)?;
        let leases = if state.active { networks.network_leases(&state.name)?.len() } else { 0 };
        let NetworkState { active, autostart, persistent, .. } = state;
        let guests = guests.on(&network);
        rows.push(Row { network, active, autostart, persistent, guests, leases });
    }
    if cx.output.json {
        cx.output.json_rows("gpuvm-network-list", &rows)?;
    } else if rows.is_empty() {
        cx.output.progress("there is no network; `gpuvm network create default` makes one");
    } else {
        cx.output.table(&table(&rows))?;
    }
    Ok(EXIT_DONE)
}

/// The rows as a table.
fn table(rows: &[Row]) -> Table {
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
    for Row { network, active, autostart, persistent, guests, leases } in rows {
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
