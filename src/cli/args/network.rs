//! The verbs on libvirt's networks.

use super::nic::PfName;
use super::vf::mac;
use super::{HostBridgeVerb, LockArgs, NameArgs};
use crate::network::{Dhcp, Mode, Range};
use clap::{Args, Subcommand, ValueEnum};
use std::net::Ipv4Addr;
use std::str::FromStr;

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
  gpuvm network create lab --kind nat --static train-a=192.168.123.45 --replace --diff
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

/// Is a verb on networks.
#[derive(Debug, Subcommand)]
pub enum NetworkVerb {
    /// List libvirt's networks: kind, state, bridge or NIC, range, guests and leases
    #[command(after_help = LIST)]
    List,
    /// Show one network: its addresses, leases and guests, and who reaches whom on it
    #[command(after_help = SHOW)]
    Show(NetworkShowArgs),
    /// Make a network, define it, start it, and read it back
    ///
    /// Refused, with every reason: a range that overlaps another network's, an address or a route of the host; a static
    /// address outside the range or among those that DHCP hands out; an MTU above the NIC's; a NIC that is part of a
    /// bridge or bond; one with the default route for passthrough. Without --range the first of 192.168.123.0/24 to
    /// 192.168.254.0/24 that is free is taken (`default` begins with 192.168.122.0/24). The replaced tool's names need no
    /// --kind: `default` is nat, `private-net` private, `macvtap-net` macvtap in mode bridge, on the NIC with the default
    /// route where no other is named, `iovnet0` sriov. What fails on the way is undone. IPv4 alone.
    #[command(after_help = CREATE)]
    Create(Box<NetworkCreateArgs>),
    /// Delete a network
    ///
    /// Names what goes and the guests that are on it, then asks for the network's name, or takes --yes. Virtual functions
    /// of a card stay: `gpuvm nic vfs` takes them away.
    #[command(after_help = DELETE)]
    Delete(NetworkDeleteArgs),
    /// Take the last change or the deletion of a network back
    ///
    /// `create --replace` and `delete` keep the network as it was, in /var/lib/gpuvm/networks. It gets its definition
    /// back, to the UUID, and is up, and starts with libvirt, if it was and did. Refused where somebody has edited it
    /// since, unless --force. Guests that lose their links are named, then it asks, or takes --yes. Virtual functions
    /// stay as they are.
    #[command(after_help = UNDO)]
    Undo(NetworkUndoArgs),
    /// Make bridges of the host over its own NICs, by netplan, without being cut off
    #[command(subcommand)]
    HostBridge(HostBridgeVerb),
    /// Walk from each of a guest's NICs to the host's NIC, and name what breaks the path
    ///
    /// Each hop is ok, broken or not checked: the guest's own NIC (by its agent, where that answers), the link, the libvirt
    /// network, tap or macvtap or virtual function, bridge and what its spanning tree protocol waits for, bonds, VLANs and
    /// NICs below it, MTU on each, DHCP server, forwarding, firewall (nftables and iptables; DNS, DHCP and what guests send
    /// out are walked through the rules), and the address. Each finding says what was expected, what was found, where, and
    /// what to do. Nothing is changed and no packet is sent. Ends with 3 where the path is broken; a warning alone does not.
    /// The firewall is seen by root alone.
    #[command(after_help = DOCTOR)]
    Doctor(NetworkDoctorArgs),
}

/// Is a network's kind on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NetworkKindArg {
    /// Behind the host's address, with DHCP
    Nat,
    /// With the host and other guests alone, with DHCP
    Private,
    /// On a NIC of the host, each guest with an address of the NIC's network; --mode says who reaches whom
    Macvtap,
    /// On a bridge that the host has
    Bridge,
    /// On virtual functions of a card, one for each NIC of a guest
    Sriov,
}

/// Is the mode of macvtap on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// Guests reach each other and the LAN, not the host
    Bridge,
    /// Guests reach the LAN alone
    Private,
    /// Guests reach all by the switch, where that sends packets back
    Vepa,
    /// One guest has the NIC for itself
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

/// Is what `network show` takes.
#[derive(Debug, Args)]
pub struct NetworkShowArgs {
    /// The network.
    #[command(flatten)]
    pub network: NameArgs,
    /// Print its definition
    #[arg(long, conflicts_with = "json")]
    pub xml: bool,
}

/// Is what `network create` takes.
#[derive(Debug, Args)]
pub struct NetworkCreateArgs {
    /// Name of the network
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Where its guests are; default: what the replaced tool meant by the name
    #[arg(long, value_name = "KIND")]
    pub kind: Option<NetworkKindArg>,
    /// NIC of the host, by name or PCI address: that of macvtap, the card of virtual functions, or the only one that nat
    /// goes by
    #[arg(long, value_name = "NIC")]
    pub nic: Option<PfName>,
    /// Mode of macvtap; default: bridge
    #[arg(long, value_name = "MODE")]
    pub mode: Option<ModeArg>,
    /// The host's bridge; of nat and private the name of the one that is made
    #[arg(long, value_name = "BRIDGE")]
    pub bridge: Option<String>,
    /// Range of nat and private, such as 192.168.123.0/24; the host has its first address, or the one that is given
    #[arg(long, value_name = "IPV4/BITS")]
    pub range: Option<Range>,
    /// Addresses that DHCP hands out to everybody, or `off`; default: the longest run without static ones
    #[arg(long, value_name = "FIRST-LAST|off")]
    pub dhcp: Option<DhcpArg>,
    /// Address that a guest always gets, by its MAC address, or by its name where it has a NIC there; repeat for more
    #[arg(long = "static", value_name = "MAC|GUEST=IP[,name=HOST]")]
    pub statics: Vec<StaticArg>,
    /// Largest packet in bytes, of nat and private; the others have that of their NIC or bridge
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// Virtual functions that the card is to have, now and at every boot; default: those that it has
    #[arg(long, value_name = "N")]
    pub vfs: Option<u32>,
    /// Make a network of this name anew, as it is asked for here; its range and the name of its bridge stay unless they are
    /// named
    #[arg(long)]
    pub replace: bool,
    /// Do not let it start with libvirt
    #[arg(long)]
    pub no_autostart: bool,
    /// Define it and do not start it
    #[arg(long)]
    pub no_start: bool,
    /// Do not ask before guests lose their links, or virtual functions are taken away
    #[arg(short, long)]
    pub yes: bool,
    /// Print the steps and who reaches whom, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print its definition as a diff, and change nothing
    #[arg(long, conflicts_with = "dry_run")]
    pub diff: bool,
    /// Print its definition, and change nothing
    #[arg(long, conflicts_with_all = ["dry_run", "diff", "json"])]
    pub xml: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is what `network delete` takes.
#[derive(Debug, Args)]
pub struct NetworkDeleteArgs {
    /// The network.
    #[command(flatten)]
    pub network: NameArgs,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is what `network undo` takes.
#[derive(Debug, Args)]
pub struct NetworkUndoArgs {
    /// Name of the network
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Undo it also where it was edited since
    #[arg(long)]
    pub force: bool,
    /// Do not ask before guests lose their links
    #[arg(short, long)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print how its definition would change, and change nothing
    #[arg(long, conflicts_with = "dry_run")]
    pub diff: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is what `network doctor` takes.
#[derive(Debug, Args)]
pub struct NetworkDoctorArgs {
    /// Name of the guest
    #[arg(value_name = "GUEST")]
    pub name: String,
    /// How long the guest's agent may take to answer all questions, in seconds; 0 asks none
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub agent_wait: u64,
}

/// Is what DHCP hands out, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DhcpArg(pub Dhcp);

impl FromStr for DhcpArg {
    type Err = String;
    fn from_str(text: &str) -> Result<DhcpArg, String> {
        Ok(DhcpArg(match text {
            "off" => Dhcp::Off,
            span => Dhcp::Span(span.parse()?),
        }))
    }
}

/// Is a static address on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticArg {
    /// Who gets it.
    pub who: Who,
    /// The address.
    pub ip: Ipv4Addr,
    /// The host name that goes with it.
    pub name: Option<String>,
}

/// Is who gets an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// The interface of this MAC address, lower case.
    Mac(String),
    /// The guest of this name.
    Guest(String),
}

impl FromStr for StaticArg {
    type Err = String;
    fn from_str(text: &str) -> Result<StaticArg, String> {
        let (first, name) = match text.split_once(',') {
            Some((first, rest)) => {
                let name = rest.strip_prefix("name=").filter(|name| is_host_name(name));
                let wrong = || format!("`{rest}` is not name= with a host name");
                (first, Some(name.ok_or_else(wrong)?.to_owned()))
            }
            None => (text, None),
        };
        let wrong = || "it is not MAC=IP or GUEST=IP, such as train-a=192.168.122.45".to_owned();
        let (who, ip) = first.split_once('=').ok_or_else(wrong)?;
        let ip = ip.parse().map_err(|_| format!("`{ip}` is not an IPv4 address"))?;
        let who = match who {
            "" => return Err(wrong()),
            // No guest's name has a colon.
            who if who.contains(':') => Who::Mac(mac(who)?),
            who => Who::Guest(who.to_owned()),
        };
        Ok(StaticArg { who, ip, name })
    }
}

/// Whether a text is a host name (RFC 1123).
fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        (1..=63).contains(&label.len())
            && label.chars().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_addresses_are_of_interfaces_or_guests() {
        let read: StaticArg = "52:54:00:AA:00:01=10.0.0.9,name=a.lab".parse().unwrap();
        assert_eq!(read.who, Who::Mac("52:54:00:aa:00:01".into()));
        assert_eq!((read.ip, read.name.as_deref()), (Ipv4Addr::new(10, 0, 0, 9), Some("a.lab")));
        let read: StaticArg = "train-a=10.0.0.9".parse().unwrap();
        assert_eq!((read.who, read.name), (Who::Guest("train-a".into()), None));
        for (bad, said) in [
            ("train-a", "it is not MAC=IP"),
            ("=10.0.0.9", "it is not MAC=IP"),
            ("a=10.0.0", "not an IPv4 address"),
            ("a=10.0.0.9,x", "not name="),
            ("a=10.0.0.9,name=-x", "not name="),
            ("a=10.0.0.9,name=a..b", "not name="),
            ("01:00:5e:00:00:01=10.0.0.9", "is of a group"),
            ("52:54:00=10.0.0.9", "not a MAC address"),
        ] {
            let error = bad.parse::<StaticArg>().unwrap_err();
            assert!(error.contains(said), "{bad}: {error}");
        }
        assert_eq!("off".parse(), Ok(DhcpArg(Dhcp::Off)));
        assert!("10.0.0.9-10.0.0.2".parse::<DhcpArg>().unwrap_err().contains("before it begins"));
    }
}
