//! What a network is to be, and what a plan makes of it.

use super::subnet::{Range, Span};
use super::{Kind, Network, Static};

/// What DHCP is to hand out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dhcp {
    /// The longest run that has no static address.
    Longest,
    /// This run.
    Span(Span),
    /// Nothing.
    Off,
}

/// What a network is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The host's network device: that of macvtap, the card of virtual functions, or the only one that NAT goes by.
    pub nic: Option<String>,
    /// The host's bridge, or the name of the one that libvirt makes.
    pub bridge: Option<String>,
    /// Its range; none: one that is free.
    pub range: Option<Range>,
    /// What DHCP hands out; none: what is usual.
    pub dhcp: Option<Dhcp>,
    /// Addresses for one guest each.
    pub statics: Vec<Static>,
    /// Largest packet, in bytes; none: libvirt's default.
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
    /// What is worth knowing before it is made.
    pub notes: Vec<String>,
}
