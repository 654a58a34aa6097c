//! A request for a network, and the planned network.

use super::subnet::{Range, Span};
use super::{Kind, Network, Static};

/// The requested DHCP range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dhcp {
    /// The longest span without static addresses.
    Longest,
    /// This span.
    Span(Span),
    /// Nothing.
    Off,
}

/// A request for a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The host's network device: that of macvtap, the card of virtual functions, or the only
    /// uplink of NAT.
    pub nic: Option<String>,
    /// The host's bridge, or the name of the one that libvirt makes.
    pub bridge: Option<String>,
    /// Its range; `None` for one that is free.
    pub range: Option<Range>,
    /// DHCP range; `None` for the default of its kind.
    pub dhcp: Option<Dhcp>,
    /// Static addresses of guests.
    pub statics: Vec<Static>,
    /// MTU in bytes; `None` for libvirt's default.
    pub mtu: Option<u32>,
}

impl Request {
    /// A request for no more than a kind.
    pub fn bare(name: &str, kind: Kind) -> Request {
        let (nic, bridge, range, dhcp, mtu) = (None, None, None, None, None);
        Request { name: name.to_owned(), kind, nic, bridge, range, dhcp, statics: Vec::new(), mtu }
    }
}

/// A network that can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The network.
    pub network: Network,
    /// Notes for the user before it is made.
    pub notes: Vec<String>,
}
