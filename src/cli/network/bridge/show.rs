//! `network host-bridge show`: the bridges of the host, whoever made them.

use crate::cli::args::HostBridgeShowArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::table::Table;
use gpuvm_ops::host_bridge::facts::{BridgePort, HostBridgeRow, bridges};

/// Runs the verb.
pub fn run(args: &HostBridgeShowArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("network host-bridge show")?;
    cx.refuse_elsewhere("network host-bridge show")?;
    print(args.name.as_deref(), cx)?;
    Ok(EXIT_DONE)
}

/// Prints one bridge, or all.
pub fn print(name: Option<&str>, cx: &Context<'_>) -> anyhow::Result<()> {
    let rows = bridges(name)?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-host-bridge-list", &rows)?;
    } else if rows.is_empty() {
        cx.output.progress("this host has no bridge");
    } else {
        cx.output.table(&table(&rows))?;
    }
    Ok(())
}

fn table(rows: &[HostBridgeRow]) -> Table {
    let head = ["NAME", "STATE", "PORTS", "MTU", "ADDRESSES", "FILE"];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    for row in rows {
        let state = match (row.up, row.confirm_within_s, &row.file) {
            (_, Some(left), _) => format!("waits {left} s for confirmation"),
            (None, _, _) => "not there".into(),
            (Some(up), _, file) => {
                let kept = if file.is_some() && !row.kept { ", until the next boot" } else { "" };
                format!("{}{kept}", if up { "up" } else { "down" })
            }
        };
        let port = |port: &BridgePort| {
            if port.over.is_empty() {
                port.name.clone()
            } else {
                format!("{} ({})", port.name, port.over.join(","))
            }
        };
        let ports: Vec<String> = row.ports.iter().map(port).collect();
        let mut addresses: Vec<String> = row.addresses.iter().map(ToString::to_string).collect();
        if row.default_route {
            addresses.push("default route".into());
        }
        cells.push(vec![
            row.name.clone(),
            state,
            dash(ports.join(" ")),
            dash(row.mtu.map_or(String::new(), |mtu| mtu.to_string())),
            dash(addresses.join(", ")),
            dash(row.file.as_ref().map_or(String::new(), |file| file.display().to_string())),
        ]);
    }
    Table::of(cells)
}
