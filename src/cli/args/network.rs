//! The verbs on libvirt's networks.

use super::heading::BEHAVIOUR;
use super::late::Late;
use super::{ChangeArgs, HostBridgeVerb, LockArgs};
use crate::network::{Card, Dhcp, FixedAddress, Kind, Mode, Range};
use clap::{Args, Subcommand, ValueEnum};

/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm network list
  gpuvm network list --json";
/// Examples of `show`.
const SHOW: &str = "Examples:
  gpuvm network show default
  gpuvm network show default --xml";
/// Examples of `create`.
const CREATE: &str = "Examples:
  gpuvm network create lab --kind nat --range 192.168.123.0/24 --nic enp6s0
  gpuvm network create lab --kind nat --static train-a=192.168.123.45 \\
    --replace --diff
  gpuvm network create private-net
  gpuvm network create macvtap-net --nic enp6s0 --mode bridge
  gpuvm network create lan --kind bridge --bridge br0
  gpuvm network create iovnet0 --nic enp134s0f0 --vfs 16 --dry-run";
/// Examples of `delete`.
const DELETE: &str = "Examples:
  gpuvm network delete lab --dry-run
  gpuvm network delete lab --yes";

/// Examples of `undo`.
const UNDO: &str = "Examples:
  gpuvm network undo lab --diff
  gpuvm network undo lab --yes";
/// Examples of `doctor`.
const DOCTOR: &str = "Examples:
  gpuvm network doctor train-a
  gpuvm network doctor train-a --json";

/// A verb on networks.
#[derive(Debug, Subcommand)]
pub enum NetworkVerb {
    /// List libvirt networks, their guests and leases
    ///
    /// With kind, state, bridge or NIC, and range.
    #[command(after_long_help = LIST, alias = "ls")]
    List,
    /// Show a network: addresses, leases, guests, reachability
    #[command(after_long_help = SHOW)]
    Show(Late<NetworkShowArgs>),
    /// Define and start a libvirt network
    ///
    /// Refused, with every reason: a range that overlaps another network, an address or a route of
    /// the host; a static address outside the range or inside the DHCP range; an MTU above the
    /// NIC's; a NIC that is part of a bridge or bond; passthrough of the NIC with the default
    /// route. Without --range takes the first free one of 192.168.123.0/24 to 192.168.254.0/24
    /// (`default` begins with 192.168.122.0/24).
    ///
    /// The names of nvidia-vm need no --kind: `default` is nat, `private-net` private,
    /// `macvtap-net` macvtap in mode bridge (on the NIC with the default route unless --nic is
    /// given), `iovnet0` sriov. If a step fails, the previous ones are undone. IPv4 only.
    #[command(after_long_help = CREATE)]
    Create(Box<NetworkCreateArgs>),
    /// Delete a network
    ///
    /// Lists what will be deleted and the guests on it, then asks for the network's name, or takes
    /// --yes. Virtual functions stay; `gpuvm nic vfs` removes them.
    #[command(after_long_help = DELETE, aliases = ["rm", "remove"])]
    Delete(Late<NetworkDeleteArgs>),
    /// Revert the last change or the deletion of a network
    ///
    /// `create --replace` and `delete` save the network in /var/lib/gpuvm/networks. Restores its
    /// definition, including the UUID, its state and its autostart. Refused if it has been edited
    /// since, unless --force is given. Lists guests that lose their links, then asks, or takes
    /// --yes. Virtual functions stay as they are.
    #[command(after_long_help = UNDO)]
    Undo(Late<NetworkUndoArgs>),
    /// Manage bridges over the host's own NICs
    #[command(subcommand)]
    HostBridge(HostBridgeVerb),
    /// Find faults in a guest's network path
    ///
    /// Follows the path from each of the guest's NICs to the host's NIC. Each hop is ok, broken or
    /// not checked: the guest's own NIC (through its agent), the link, the libvirt network, tap,
    /// macvtap or virtual function, the bridge and its spanning tree state, bonds, VLANs and NICs
    /// below it, the MTU of each, DHCP server, forwarding, firewall (nftables and iptables; traces
    /// DNS, DHCP and outbound packets through the rules), and the address. Each finding names the
    /// expected and the found value, its place, and the remedy.
    ///
    /// Changes nothing and sends no packet. Exits with 3 if the path is broken, not for a mere
    /// warning. Only root sees the firewall.
    #[command(after_long_help = DOCTOR)]
    Doctor(Late<NetworkDoctorArgs>),
}

/// A network's kind on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NetworkKindArg {
    /// NAT behind the host's address, with DHCP
    Nat,
    /// Host and guests only, with DHCP
    Private,
    /// On a host NIC, with addresses of its network; --mode decides who reaches whom
    Macvtap,
    /// On a bridge of the host
    Bridge,
    /// Virtual functions of a NIC, one per guest NIC
    Sriov,
}

impl From<NetworkKindArg> for Kind {
    fn from(arg: NetworkKindArg) -> Kind {
        match arg {
            NetworkKindArg::Nat => Kind::Nat,
            NetworkKindArg::Private => Kind::Private,
            NetworkKindArg::Macvtap => Kind::Macvtap(Mode::Bridge),
            NetworkKindArg::Bridge => Kind::Bridge,
            NetworkKindArg::Sriov => Kind::Sriov,
        }
    }
}

/// The mode of macvtap on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// Guests reach each other and the LAN, not the host
    Bridge,
    /// Guests reach only the LAN
    Private,
    /// Guests reach everything through a switch that reflects packets
    Vepa,
    /// One guest owns the NIC
    Passthrough,
}

impl From<ModeArg> for Mode {
    fn from(arg: ModeArg) -> Mode {
        match arg {
            ModeArg::Bridge => Mode::Bridge,
            ModeArg::Private => Mode::Private,
            ModeArg::Vepa => Mode::Vepa,
            ModeArg::Passthrough => Mode::Passthrough,
        }
    }
}

/// Arguments of `network show`.
#[derive(Debug, Args)]
pub struct NetworkShowArgs {
    /// Network name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print the definition and change nothing
    #[arg(long, conflicts_with = "json", help_heading = BEHAVIOUR)]
    pub xml: bool,
}

/// Arguments of `network create`.
#[derive(Debug, Args)]
pub struct NetworkCreateArgs {
    /// Network name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Kind: nat, private, macvtap, bridge, sriov
    ///
    /// nat: behind the host's address, with DHCP. private: host and guests only, with DHCP.
    /// macvtap: on a host NIC, with addresses of its network; --mode decides who reaches whom.
    /// bridge: on a bridge of the host. sriov: virtual functions of a NIC, one per guest NIC.
    /// Default: the kind of the nvidia-vm network with this name.
    #[arg(long, value_name = "KIND", hide_possible_values = true)]
    pub kind: Option<NetworkKindArg>,
    /// Host NIC, by name or PCI address
    ///
    /// For macvtap and sriov the NIC to use, for nat the only outgoing NIC.
    #[arg(long, value_name = "NIC")]
    pub nic: Option<Card>,
    /// Mode of macvtap
    ///
    /// Default: bridge.
    #[arg(long, value_name = "MODE", hide_short_help = true)]
    pub mode: Option<ModeArg>,
    /// Bridge name
    ///
    /// An existing host bridge for bridge, a new one for nat and private.
    #[arg(long, value_name = "BRIDGE")]
    pub bridge: Option<String>,
    /// IPv4 range, such as 192.168.123.0/24
    ///
    /// Of nat and private. The host gets the first address, or the one given, as in
    /// 192.168.123.9/24.
    #[arg(long, value_name = "IPV4/BITS")]
    pub range: Option<Range>,
    /// DHCP address range, or `off`
    ///
    /// Default: the longest range without static addresses.
    #[arg(long, value_name = "FIRST-LAST|off")]
    pub dhcp: Option<Dhcp>,
    /// Fixed address of a guest; repeatable
    ///
    /// WHO is a MAC address, or the name of a guest with a NIC on the network. Key: name=HOST, the
    /// host name to hand out.
    #[arg(long = "static", value_name = "WHO=IP[,KEY=VALUE]")]
    pub statics: Vec<FixedAddress>,
    /// MTU of the network
    ///
    /// Of nat and private; the others have that of their NIC or bridge.
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// Virtual functions, now and at every boot
    ///
    /// Of sriov. Default: as many as the NIC has.
    #[arg(long, value_name = "N")]
    pub vfs: Option<u32>,
    /// Replace an existing network
    ///
    /// Its range and the name of its bridge stay unless they are given.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub replace: bool,
    /// Do not start it with libvirt
    #[arg(long, help_heading = BEHAVIOUR)]
    pub no_autostart: bool,
    /// Define it without starting it
    #[arg(long, help_heading = BEHAVIOUR)]
    pub no_start: bool,
    /// Do not ask for confirmation
    ///
    /// Before guests lose their links, or virtual functions are removed.
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// Print the steps and change nothing
    ///
    /// Prints who will reach whom as well.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// Print the definition as a diff and change nothing
    #[arg(long, conflicts_with = "dry_run", help_heading = BEHAVIOUR)]
    pub diff: bool,
    /// Print the definition and change nothing
    #[arg(long, conflicts_with_all = ["dry_run", "diff", "json"], help_heading = BEHAVIOUR)]
    pub xml: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `network delete`.
#[derive(Debug, Args)]
pub struct NetworkDeleteArgs {
    /// Network name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Do not ask for confirmation
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `network undo`.
#[derive(Debug, Args)]
pub struct NetworkUndoArgs {
    /// Network name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Undo despite later changes, which are lost
    #[arg(long, help_heading = BEHAVIOUR)]
    pub force: bool,
    /// Do not ask for confirmation
    ///
    /// Before guests lose their links.
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// How it is made or shown.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// Arguments of `network doctor`.
#[derive(Debug, Args)]
pub struct NetworkDoctorArgs {
    /// Domain name
    #[arg(value_name = "GUEST")]
    pub name: String,
    /// Time limit for the guest agent
    ///
    /// 0 does not ask the agent.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, help_heading = BEHAVIOUR)]
    pub agent_wait: u64,
}
