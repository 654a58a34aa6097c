//! The program that configures a host's network. gpuvm supports netplan with systemd-networkd;
//! gpuvm-networks(7), OTHER NETWORK MANAGERS, has the configurations of others.

use serde::Serialize;
use std::fmt;

/// The program that configures a host's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Manager {
    /// netplan, with systemd-networkd behind it.
    Netplan,
    /// netplan, with NetworkManager behind it.
    NetplanNm,
    /// systemd-networkd alone.
    Networkd,
    /// NetworkManager.
    Nm,
    /// ifupdown.
    Ifupdown,
    /// Nothing that is known here.
    Unknown,
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Manager::Netplan => "netplan",
            Manager::NetplanNm => "NetworkManager, by netplan",
            Manager::Networkd => "systemd-networkd",
            Manager::Nm => "NetworkManager",
            Manager::Ifupdown => "ifupdown",
            Manager::Unknown => "nothing that is known here",
        })
    }
}
