//! The verbs on libvirt's networks.

use super::heading::BEHAVIOUR;
use super::nic::PfName;
use super::vf::mac;
use super::{HostBridgeVerb, LockArgs};
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
    #[command(after_long_help = LIST)]
    List,
    /// Show a network: addresses, leases, guests, reachability
    #[command(after_long_help = SHOW)]
    Show(NetworkShowArgs),
    /// Define and start a libvirt network
    ///
    /// Refused, with every reason: a range that overlaps another network, an address or a route of the host; a static address
    /// outside the range or inside the DHCP range; an MTU above the NIC's; a NIC that is part of a bridge or bond; passthrough of
    /// the NIC with the default route. Without --range takes the first free one of 192.168.123.0/24 to 192.168.254.0/24 (`default`
    /// begins with 192.168.122.0/24).
    ///
    /// The names of nvidia-vm need no --kind: `default` is nat, `private-net` private, `macvtap-net` macvtap in mode bridge (on the
    /// NIC with the default route unless --nic is given), `iovnet0` sriov. If a step fails, the previous ones are undone. IPv4
    /// only.
    #[command(after_long_help = CREATE)]
    Create(Box<NetworkCreateArgs>),
    /// Delete a network
    ///
    /// Lists what will be deleted and the guests on it, then asks for the network's name, or takes --yes. Virtual functions stay;
    /// `gpuvm nic vfs` removes them.
    #[command(after_long_help = DELETE)]
    Delete(NetworkDeleteArgs),
    /// Revert the last change or the deletion of a network
    ///
    /// `create --replace` and `delete` save the network in /var/lib/gpuvm/networks. Restores its definition, including the UUID,
    /// its state and its autostart. Refused if somebody has edited it since, unless --force is given. Lists guests that lose their
    /// links, then asks, or takes --yes. Virtual functions stay as they are.
    #[command(after_long_help = UNDO)]
    Undo(NetworkUndoArgs),
    /// Manage bridges over the host's own NICs
    #[command(subcommand)]
    HostBridge(HostBridgeVerb),
    /// Find what breaks a guest's network path
    ///
    /// Follows the path from each of the guest's NICs to the host's NIC. Each hop is ok, broken or not checked: the guest's own NIC
    /// (through its agent), the link, the libvirt network, tap, macvtap or virtual function, the bridge and its spanning tree
    /// state, bonds, VLANs and NICs below it, the MTU of each, DHCP server, forwarding, firewall (nftables and iptables; traces
    /// DNS, DHCP and outbound packets through the rules), and the address. Each finding names what was expected, what was found,
    /// where, and what to do.
    ///
    /// Changes nothing and sends no packet. Exits with 3 if the path is broken, not for a mere warning. Only root sees the firewall.
    #[command(after_long_help = DOCTOR)]
    Doctor(NetworkDoctorArgs),
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
    /// nat: behind the host's address, with DHCP. private: host and guests only, with DHCP. macvtap: on a host NIC, with
    /// addresses of its network; --mode decides who reaches whom. bridge: on a bridge of the host. sriov: virtual functions of a
    /// NIC, one per guest NIC. Default: the kind of the nvidia-vm network with this name.
    #[arg(long, value_name = "KIND", hide_possible_values = true)]
    pub kind: Option<NetworkKindArg>,
    /// Host NIC, by name or PCI address
    ///
    /// For macvtap and sriov the NIC to use, for nat the only outgoing NIC.
    #[arg(long, value_name = "NIC")]
    pub nic: Option<PfName>,
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
    /// Of nat and private. The host gets the first address, or the one given, as in 192.168.123.9/24.
    #[arg(long, value_name = "IPV4/BITS")]
    pub range: Option<Range>,
    /// DHCP address range, or `off`
    ///
    /// Default: the longest range without static addresses.
    #[arg(long, value_name = "FIRST-LAST|off")]
    pub dhcp: Option<DhcpArg>,
    /// Fixed address of a guest; repeatable
    ///
    /// WHO is a MAC address, or the name of a guest with a NIC on the network. Key: name=HOST, the host name to hand out.
    #[arg(long = "static", value_name = "WHO=IP[,KEY=VALUE]")]
    pub statics: Vec<StaticArg>,
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
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// Print the definition as a diff and change nothing
    #[arg(long, conflicts_with = "dry_run", help_heading = BEHAVIOUR)]
    pub diff: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
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

/// What DHCP hands out, on the command line.
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

/// A static address on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticArg {
    /// Who gets it.
    pub who: Who,
    /// The address.
    pub ip: Ipv4Addr,
    /// The host name that goes with it.
    pub name: Option<String>,
}

/// Who gets an address.
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
