//! The verbs on bridges of the host over its own NICs.

use super::LockArgs;
use super::heading::BEHAVIOUR;
use super::late::Late;
use crate::hostnet::{BondMode, HostIp};
use clap::{Args, Subcommand, ValueEnum};
use gpuvm_ops::host_bridge::DELETED;
use gpuvm_ops::host_bridge::delete::DeleteHostBridge;
use gpuvm_ops::host_bridge::guard::Guarded;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};

/// Examples of `create`.
const CREATE: &str = "Examples:
  gpuvm network host-bridge create br0 --nic enp6s0 --dhcp
  gpuvm network host-bridge create br0 --nic enp6s0 \\
    --address 192.168.1.5/24 --gateway 192.168.1.1 --dns 192.168.1.1
  gpuvm network host-bridge create br0 --nic enp6s0 --nic enp7s0 \\
    --bond 802.3ad --dhcp --mtu 9000
  gpuvm network host-bridge create br5 --nic enp6s0 --vlan 5
  gpuvm network host-bridge create br0 --nic enp6s0 --dhcp \\
    --print-for netplan";
/// Examples of `confirm`.
const CONFIRM: &str = "Examples:
  gpuvm network host-bridge confirm
  gpuvm network host-bridge confirm br0";
/// Examples of `show`.
const SHOW: &str = "Examples:
  gpuvm network host-bridge show
  gpuvm network host-bridge show br0 --json";
/// Examples of `delete`.
const DELETE: &str = "Examples:
  gpuvm network host-bridge delete br0 --dry-run
  gpuvm network host-bridge delete br0 --yes";

/// A verb on bridges of the host.
#[derive(Debug, Subcommand)]
pub enum HostBridgeVerb {
    /// Create a bridge over host NICs; reverts unless confirmed
    ///
    /// Over a NIC, a bond or a VLAN, on hosts that netplan configures: applies a netplan file of
    /// its own, which netplan validates, until the next boot. The bridge must come up and get its
    /// address, and its gateway must answer; then `confirm` from a new login saves it in
    /// /etc/netplan. Otherwise everything is reverted: if the gateway does not answer, if it is not
    /// confirmed in time, if this program or the login is killed, and at a reboot. The NIC's
    /// settings in other netplan files are kept and take no effect while the bridge exists.
    ///
    /// On hosts configured by systemd-networkd alone, NetworkManager or ifupdown, prints what to do
    /// there and changes nothing. IPv4 only.
    #[command(after_long_help = CREATE)]
    Create(Box<HostBridgeCreateArgs>),
    /// Keep the change that `create` or `delete` applied
    ///
    /// Must run from a login that was made after the change, which proves that the host is
    /// reachable.
    #[command(after_long_help = CONFIRM)]
    Confirm(Late<HostBridgeConfirmArgs>),
    /// Show host bridges and changes waiting for confirmation
    ///
    /// Ports, addresses, and what created them.
    #[command(after_long_help = SHOW)]
    Show(Late<HostBridgeShowArgs>),
    /// Delete a bridge that `create` made; reverts unless confirmed
    ///
    /// Its NICs return to their settings in other netplan files. Lists who loses a link, and asks.
    /// As with `create` the change lasts until the next boot, is checked, and is reverted unless
    /// confirmed. While `create` waits for `confirm`, reverts it at once. `gpuvm host undo` does
    /// the same if the bridge is the last change of the host.
    #[command(after_long_help = DELETE, aliases = ["rm", "remove"])]
    Delete(Late<HostBridgeDeleteArgs>),
}

/// What configures a host's network, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ManagerArg {
    /// netplan
    Netplan,
}

/// How long a confirmation is waited for.
#[derive(Debug, Clone, Args)]
pub struct ConfirmWithinArgs {
    /// Revert if not confirmed in time
    ///
    /// By `gpuvm network host-bridge confirm`.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    #[arg(help_heading = BEHAVIOUR)]
    pub confirm_within: u64,
}

/// Arguments of `network host-bridge create`.
#[derive(Debug, Args)]
pub struct HostBridgeCreateArgs {
    /// Bridge name, at most 15 characters
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Host NIC below the bridge; repeat for a bond
    #[arg(long, value_name = "NIC", required = true)]
    pub nic: Vec<String>,
    /// Bond the NICs in this mode
    ///
    /// Modes: 802.3ad (needs an LACP group on the switch), balance-xor and balance-rr (need a
    /// static group), active-backup. balance-tlb, balance-alb and broadcast do not work under a
    /// bridge.
    #[arg(long, value_name = "MODE")]
    pub bond: Option<BondMode>,
    /// Get the host's address on the bridge by DHCP
    ///
    /// Without --dhcp and --address the host has no address on the bridge.
    #[arg(long, conflicts_with = "address")]
    pub dhcp: bool,
    /// Host address on the bridge, with prefix length
    #[arg(long, value_name = "IPV4/BITS")]
    pub address: Option<HostIp>,
    /// Gateway of the default route
    #[arg(long, value_name = "IPV4", requires = "address")]
    pub gateway: Option<Ipv4Addr>,
    /// Name server; repeatable
    #[arg(long, value_name = "IP", requires = "address")]
    pub dns: Vec<IpAddr>,
    /// VLAN of the bridge, 1 to 4094
    ///
    /// Without --bond the NIC keeps its own addresses as well.
    #[arg(long, value_name = "ID")]
    pub vlan: Option<u32>,
    /// MTU of the NICs and everything above them
    ///
    /// Default: unchanged.
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// The wait.
    #[command(flatten)]
    pub within: ConfirmWithinArgs,
    /// Print the commands for a host that netplan configures
    ///
    /// Changes nothing. gpuvm-networks(7), OTHER NETWORK MANAGERS, has the configurations of
    /// others.
    #[arg(long, value_name = "MANAGER", value_enum, conflicts_with_all = ["dry_run", "json"])]
    #[arg(help_heading = BEHAVIOUR, hide_short_help = true)]
    pub print_for: Option<ManagerArg>,
    /// Do not ask for confirmation
    ///
    /// Before the NICs lose their addresses. `confirm` is still required.
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// Print the steps and change nothing
    ///
    /// Prints the netplan file as well.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// Be the process that makes the change and reverts it
    #[arg(long, hide = true)]
    pub guard: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `network host-bridge confirm`.
#[derive(Debug, Args)]
pub struct HostBridgeConfirmArgs {
    /// Bridge name; default: the one awaiting confirmation
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
}

/// Arguments of `network host-bridge show`.
#[derive(Debug, Args)]
pub struct HostBridgeShowArgs {
    /// Bridge name; default: all bridges
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
}

/// Arguments of `network host-bridge delete`.
#[derive(Debug, Args)]
pub struct HostBridgeDeleteArgs {
    /// Bridge name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The wait.
    #[command(flatten)]
    pub within: ConfirmWithinArgs,
    /// Do not ask for confirmation
    ///
    /// `confirm` is still required.
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// Be the process that makes the change and reverts it
    #[arg(long, hide = true)]
    pub guard: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

impl HostBridgeDeleteArgs {
    /// Returns their request.
    pub fn wanted(&self) -> DeleteHostBridge {
        DeleteHostBridge { name: self.name.clone(), within_s: self.within.confirm_within }
    }

    /// How that is to be done; `quiet`: without progress.
    pub fn guarded(&self, quiet: bool) -> Guarded {
        let Self { name, within, yes, dry_run, guard: _, lock } = self;
        let mut words: Vec<String> = DELETED.split(' ').map(str::to_owned).collect();
        words.push(name.clone());
        for (option, number) in
            [("--confirm-within", within.confirm_within), ("--lock-wait", lock.lock_wait)]
        {
            words.extend([option.to_owned(), number.to_string()]);
        }
        words.extend(quiet.then(|| "--quiet".to_owned()));
        words.push("--guard".to_owned());
        let words = words.into_iter().map(OsString::from).collect();
        Guarded { asks: !yes, dry_run: *dry_run, words }
    }
}
