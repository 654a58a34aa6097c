//! The verbs on bridges of the host over its own NICs.

use super::LockArgs;
use crate::hostnet::others::Manager;
use crate::hostnet::{BondMode, HostIp};
use clap::{Args, Subcommand, ValueEnum};
use std::net::{IpAddr, Ipv4Addr};

/// Examples of `create`.
const CREATE: &str = "Examples:
  gpuvm network host-bridge create br0 --nic enp6s0 --dhcp
  gpuvm network host-bridge create br0 --nic enp6s0 --address 192.168.1.5/24 --gateway 192.168.1.1 --dns 192.168.1.1
  gpuvm network host-bridge create br0 --nic enp6s0 --nic enp7s0 --bond 802.3ad --dhcp --mtu 9000
  gpuvm network host-bridge create br5 --nic enp6s0 --vlan 5
  gpuvm network host-bridge create br0 --nic enp6s0 --dhcp --print-for networkd";
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

/// Is a verb on bridges of the host.
#[derive(Debug, Subcommand)]
pub enum HostBridgeVerb {
    /// Make a bridge over a NIC, a bond or a VLAN of the host, and take it back unless it is confirmed
    ///
    /// For hosts that netplan configures: a file of its own, which netplan itself checks, is put in force until the next
    /// boot. The bridge has to come up, have its address, and its gateway has to answer; then `confirm`, from a login that
    /// is new, keeps it in /etc/netplan. Otherwise all is taken back: when the gateway is silent, when nobody confirms in
    /// time, when this program or the login is killed, and at a reboot. What other files of netplan's say of the NIC stays,
    /// and rests while the bridge is there. Where systemd-networkd alone, NetworkManager or ifupdown configures the host,
    /// what to do there is printed and nothing is changed. IPv4 alone.
    #[command(after_help = CREATE)]
    Create(Box<HostBridgeCreateArgs>),
    /// Keep what `create` or `delete` has put in force
    ///
    /// To be run from a login that was made after the change: that shows that the host can be reached.
    #[command(after_help = CONFIRM)]
    Confirm(HostBridgeConfirmArgs),
    /// Show the bridges of the host: ports, addresses, who made them, what waits to be confirmed
    #[command(after_help = SHOW)]
    Show(HostBridgeShowArgs),
    /// Take a bridge away that `create` made; its NICs get back what other files of netplan's say
    ///
    /// Names who loses a link, and asks. As with `create` it holds until the next boot, is looked at, and is taken back
    /// unless it is confirmed. While `create` waits for `confirm`, this takes it back at once. `gpuvm host undo` does the
    /// same where it is the host's last change.
    #[command(after_help = DELETE)]
    Delete(HostBridgeDeleteArgs),
}

/// Is what configures a host's network, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ManagerArg {
    /// netplan
    Netplan,
    /// systemd-networkd
    Networkd,
    /// NetworkManager
    Nm,
    /// ifupdown
    Ifupdown,
}

impl From<ManagerArg> for Manager {
    fn from(arg: ManagerArg) -> Manager {
        match arg {
            ManagerArg::Netplan => Manager::Netplan,
            ManagerArg::Networkd => Manager::Networkd,
            ManagerArg::Nm => Manager::Nm,
            ManagerArg::Ifupdown => Manager::Ifupdown,
        }
    }
}

/// Is how long a confirmation is waited for.
#[derive(Debug, Clone, Args)]
pub struct ConfirmWithinArgs {
    /// How long it waits for `gpuvm network host-bridge confirm` before it takes all back
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub confirm_within: u64,
}

/// Is what `network host-bridge create` takes.
#[derive(Debug, Args)]
pub struct HostBridgeCreateArgs {
    /// Name of the bridge, at most 15 characters
    #[arg(value_name = "NAME")]
    pub name: String,
    /// NIC that it leads over; repeat for a bond
    #[arg(long, value_name = "NIC", required = true)]
    pub nic: Vec<String>,
    /// Bond the NICs: 802.3ad, active-backup, balance-xor or balance-rr
    ///
    /// 802.3ad needs a group with LACP on the switch, balance-xor and balance-rr a static one. balance-tlb, balance-alb and
    /// broadcast do not work under a bridge.
    #[arg(long, value_name = "MODE")]
    pub bond: Option<BondMode>,
    /// Ask DHCP for the host's address on the bridge; without this and --address it has none
    #[arg(long, conflicts_with = "address")]
    pub dhcp: bool,
    /// The host's address on the bridge, with its prefix
    #[arg(long, value_name = "IPV4/BITS")]
    pub address: Option<HostIp>,
    /// Router of the default route
    #[arg(long, value_name = "IPV4", requires = "address")]
    pub gateway: Option<Ipv4Addr>,
    /// Name server; repeat for more
    #[arg(long, value_name = "IP", requires = "address")]
    pub dns: Vec<IpAddr>,
    /// VLAN that the bridge is in, 1 to 4094; without --bond the NIC keeps its own addresses beside it
    #[arg(long, value_name = "ID")]
    pub vlan: Option<u32>,
    /// Largest packet in bytes, of the NICs and of all over them; default: as it is
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// The wait.
    #[command(flatten)]
    pub within: ConfirmWithinArgs,
    /// Print what makes it where this configures the host, and change nothing
    #[arg(long, value_name = "MANAGER", value_enum, conflicts_with_all = ["dry_run", "json"])]
    pub print_for: Option<ManagerArg>,
    /// Do not ask before the NICs lose their addresses; it is confirmed nevertheless
    #[arg(short, long)]
    pub yes: bool,
    /// Print the steps and the file, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Be the process that makes the change and takes it back
    #[arg(long, hide = true)]
    pub guard: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is what `network host-bridge confirm` takes.
#[derive(Debug, Args)]
pub struct HostBridgeConfirmArgs {
    /// The bridge; default: the one that waits
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
}

/// Is what `network host-bridge show` takes.
#[derive(Debug, Args)]
pub struct HostBridgeShowArgs {
    /// The bridge; default: all of the host
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
}

/// Is what `network host-bridge delete` takes.
#[derive(Debug, Args)]
pub struct HostBridgeDeleteArgs {
    /// The bridge
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The wait.
    #[command(flatten)]
    pub within: ConfirmWithinArgs,
    /// Do not ask; it is confirmed nevertheless
    #[arg(short, long)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Be the process that makes the change and takes it back
    #[arg(long, hide = true)]
    pub guard: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
