//! `network host-bridge show`: the bridges of the host, whoever made them.

use super::super::super::args::HostBridgeShowArgs;
use super::super::super::codes::Class;
use super::super::super::context::Context;
use super::super::super::error::{EXIT_DONE, classed};
use super::super::super::table::Table;
use super::paths;
use crate::apply::hostnet::waiting;
use crate::hostnet::HostIp;
use crate::hostnet::netplan;
use crate::network::host::HostNetwork;
use gpuvm_ops::networks::this_host as host;
use serde::Serialize;
use std::path::PathBuf;

/// Is one bridge.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Row {
    /// Its name.
    name: String,
    /// Whether it is up; none: it is not there.
    up: Option<bool>,
    /// Its ports.
    ports: Vec<Port>,
    /// Largest packet, in bytes.
    mtu: Option<u32>,
    /// The host's addresses on it.
    addresses: Vec<HostIp>,
    /// Whether the host's default route goes by it.
    default_route: bool,
    /// The file that makes it, where that is ours.
    file: Option<PathBuf>,
    /// Whether that file is kept; one that is not is forgotten at the next boot.
    kept: bool,
    /// Seconds that are left to confirm it; none: it does not wait.
    confirm_within_s: Option<u64>,
}

/// Is a port.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Port {
    /// Its name.
    name: String,
    /// The NICs under it, where it is a bond, or what it stands on.
    over: Vec<String>,
}

/// Runs the verb.
pub fn run(args: &HostBridgeShowArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("network host-bridge show")?;
    cx.refuse_elsewhere("network host-bridge show")?;
    print(args.name.as_deref(), cx)?;
    Ok(EXIT_DONE)
}

/// Prints one bridge, or all.
pub fn print(name: Option<&str>, cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rows = rows()?;
    if let Some(name) = name {
        rows.retain(|row| row.name == name);
        if rows.is_empty() {
            let message = format!("this host has no bridge {name}");
            return Err(classed(
                Class::NotFound,
                message,
                "`gpuvm network host-bridge show` says which it has",
            ));
        }
    }
    if cx.output.json {
        cx.output.json_rows("gpuvm-host-bridge-list", &rows)?;
    } else if rows.is_empty() {
        cx.output.progress("this host has no bridge");
    } else {
        cx.output.table(&table(&rows))?;
    }
    Ok(())
}

/// The bridges that are there, and those of ours that should be.
fn rows() -> anyhow::Result<Vec<Row>> {
    let host = host()?;
    let waits = waiting()?;
    let there = host.links.iter().filter(|link| link.is_bridge()).map(|link| link.name.clone());
    let mut names: Vec<String> = there.collect();
    for dir in [netplan::KEPT, netplan::TRIED] {
        let entries = std::fs::read_dir(std::path::Path::new("/").join(dir));
        for entry in entries.into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            names.extend(netplan::made(&text).map(str::to_owned));
        }
    }
    names.sort();
    names.dedup();
    let row = |name: String| {
        let (kept, tried) = paths(&name);
        let file = [&kept, &tried].into_iter().find(|path| path.exists()).cloned();
        let link = host.link(&name);
        let wait = waits.iter().find(|waiting| waiting.bridge == name);
        let held = host.addresses.iter().filter(|held| held.link == name);
        Row {
            up: link.map(|link| link.up),
            ports: ports(&host, &name),
            mtu: link.map(|link| link.mtu),
            addresses: held.map(|held| HostIp { ip: held.ip, subnet: held.subnet }).collect(),
            default_route: link.is_some_and(|link| host.carries_default_route(link)),
            kept: kept.exists(),
            file,
            confirm_within_s: wait.map(crate::apply::hostnet::Waiting::left_s),
            name,
        }
    };
    Ok(names.into_iter().map(row).collect())
}

/// The ports of a bridge.
fn ports(host: &HostNetwork, bridge: &str) -> Vec<Port> {
    let of = |master: &str| {
        let ports = host.links.iter().filter(|link| link.master.as_deref() == Some(master));
        ports.collect::<Vec<_>>()
    };
    let port = |link: &crate::network::host::Link| Port {
        name: link.name.clone(),
        over: match &link.over {
            Some(over) => vec![over.clone()],
            None => of(&link.name).into_iter().map(|nic| nic.name.clone()).collect(),
        },
    };
    of(bridge).into_iter().map(port).collect()
}

/// The rows for people.
fn table(rows: &[Row]) -> Table {
    let head = ["NAME", "STATE", "PORTS", "MTU", "ADDRESSES", "FILE"];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    for row in rows {
        let state = match (row.up, row.confirm_within_s, &row.file) {
            (_, Some(left), _) => format!("waits {left} s to be confirmed"),
            (None, _, _) => "not there".into(),
            (Some(up), _, file) => {
                let kept = if file.is_some() && !row.kept { ", until the next boot" } else { "" };
                format!("{}{kept}", if up { "up" } else { "down" })
            }
        };
        let port = |port: &Port| match port.over.is_empty() {
            true => port.name.clone(),
            false => format!("{} ({})", port.name, port.over.join(",")),
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
