//! The report on the host's bridges: `network host-bridge show`.

use super::paths;
use crate::apply::hostnet::{Waiting, waiting};
use crate::error::{Class, Result, classed};
use crate::hostnet::{HostIp, netplan};
use crate::input;
use crate::network::host::{HostNetwork, Link};
use crate::networks::this_host;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// One bridge.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostBridgeRow {
    /// Its name.
    pub name: String,
    /// Whether it is up; `None` if it does not exist.
    pub up: Option<bool>,
    /// Its ports.
    pub ports: Vec<BridgePort>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// The host's addresses on it.
    pub addresses: Vec<HostIp>,
    /// Whether the host's default route uses it.
    pub default_route: bool,
    /// The file that creates it, if that is ours.
    pub file: Option<PathBuf>,
    /// Whether that file persists; otherwise it is lost at the next boot.
    pub kept: bool,
    /// Seconds left to confirm it; `None` if it does not wait.
    pub confirm_within_s: Option<u64>,
}

/// A port.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BridgePort {
    /// Its name.
    pub name: String,
    /// The NICs of a bond, or the device below it.
    pub over: Vec<String>,
}

/// The existing bridges, and those of gpuvm that should exist; with a name only that one.
pub fn bridges(name: Option<&str>) -> Result<Vec<HostBridgeRow>> {
    let (host, waits) = (this_host()?, waiting()?);
    let names = names(&host).into_iter().filter(|found| name.is_none_or(|name| name == found));
    let rows: Vec<HostBridgeRow> = names.map(|name| row(name, &host, &waits)).collect();
    match name {
        Some(name) if rows.is_empty() => Err(classed(
            Class::NotFound,
            format!("this host has no bridge {name}"),
            "`gpuvm network host-bridge show` shows which it has",
        )),
        _ => Ok(rows),
    }
}

/// Names of the existing bridges, and of those that gpuvm's files define.
fn names(host: &HostNetwork) -> Vec<String> {
    let there = host.links.iter().filter(|link| link.is_bridge()).map(|link| link.name.clone());
    let mut names: Vec<String> = there.collect();
    for dir in [netplan::KEPT, netplan::TRIED] {
        for path in input::list(&Path::new("/").join(dir)).unwrap_or_default() {
            let text = input::state(&path).ok().flatten().unwrap_or_default();
            names.extend(netplan::made(&text).map(str::to_owned));
        }
    }
    names.sort();
    names.dedup();
    names
}

fn row(name: String, host: &HostNetwork, waits: &[Waiting]) -> HostBridgeRow {
    let (kept, tried) = paths(&name);
    let file = [&kept, &tried].into_iter().find(|path| path.exists()).cloned();
    let link = host.link(&name);
    let wait = waits.iter().find(|waiting| waiting.bridge == name);
    let held = host.addresses.iter().filter(|held| held.link == name);
    HostBridgeRow {
        up: link.map(|link| link.up),
        ports: ports(host, &name),
        mtu: link.map(|link| link.mtu),
        addresses: held.map(|held| HostIp { ip: held.ip, subnet: held.subnet }).collect(),
        default_route: link.is_some_and(|link| host.carries_default_route(link)),
        kept: kept.exists(),
        file,
        confirm_within_s: wait.map(Waiting::left_s),
        name,
    }
}

pub(super) fn ports(host: &HostNetwork, bridge: &str) -> Vec<BridgePort> {
    let of = |master: &str| {
        let ports = host.links.iter().filter(|link| link.master.as_deref() == Some(master));
        ports.collect::<Vec<_>>()
    };
    let port = |link: &Link| BridgePort {
        name: link.name.clone(),
        over: match &link.over {
            Some(over) => vec![over.clone()],
            None => of(&link.name).into_iter().map(|nic| nic.name.clone()).collect(),
        },
    };
    of(bridge).into_iter().map(port).collect()
}
