//! IPv4 subnets and spans of addresses.

use serde::Serialize;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// An IPv4 subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub struct Subnet {
    /// Its first address, with all host bits 0.
    base: u32,
    /// Length of the prefix, 0 to 32.
    prefix: u8,
}

impl Subnet {
    /// The subnet of this prefix that holds an address; none where the prefix is longer than 32.
    pub fn around(ip: Ipv4Addr, prefix: u8) -> Option<Subnet> {
        let host_bits = 32_u8.checked_sub(prefix)?;
        let mask = u32::MAX.checked_shl(host_bits.into()).unwrap_or(0);
        Some(Subnet { base: ip.to_bits() & mask, prefix })
    }

    /// The length of its prefix.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Its first address, which no host has.
    pub fn base(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base)
    }

    /// Its broadcast address.
    pub fn broadcast(self) -> Ipv4Addr {
        let hosts = u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
        Ipv4Addr::from_bits(self.base | hosts)
    }

    /// The span of host addresses; none in subnets of fewer than four addresses.
    pub fn hosts(self) -> Option<Span> {
        let (first, last) = (self.base.checked_add(1)?, self.broadcast().to_bits().checked_sub(1)?);
        Span::new(Ipv4Addr::from_bits(first), Ipv4Addr::from_bits(last))
    }

    /// Whether an address is in it.
    pub fn contains(self, ip: Ipv4Addr) -> bool {
        Subnet::around(ip, self.prefix) == Some(self)
    }

    /// Whether some address is in both.
    pub fn overlaps(self, other: Subnet) -> bool {
        self.contains(other.base()) || other.contains(self.base())
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base(), self.prefix)
    }
}

impl From<Subnet> for String {
    fn from(subnet: Subnet) -> String {
        subnet.to_string()
    }
}

/// A network's range: its subnet and the host's own address there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The subnet.
    pub subnet: Subnet,
    /// The host's address; `None` for the first that a host can have.
    own: Option<Ipv4Addr>,
}

impl Range {
    /// A range with this address for the host; none if the prefix is longer than 32.
    pub fn of(own: Ipv4Addr, prefix: u8) -> Option<Range> {
        let subnet = Subnet::around(own, prefix)?;
        Some(Range { subnet, own: (own != subnet.base()).then_some(own) })
    }

    /// The host's address; none where the subnet has room for none.
    pub fn own(self) -> Option<Ipv4Addr> {
        self.own.or_else(|| Some(self.subnet.hosts()?.first))
    }
}

impl FromStr for Range {
    type Err = String;
    fn from_str(text: &str) -> Result<Range, String> {
        let read = || {
            let (ip, prefix) = text.split_once('/')?;
            Range::of(ip.parse().ok()?, prefix.parse().ok()?)
        };
        read().ok_or_else(|| "it is not an IPv4 range such as 192.168.123.0/24".into())
    }
}

/// An address range, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Span {
    /// The first.
    pub first: Ipv4Addr,
    /// The last, not before the first.
    pub last: Ipv4Addr,
}

impl Span {
    /// A run; none where its end is before its beginning.
    pub fn new(first: Ipv4Addr, last: Ipv4Addr) -> Option<Span> {
        (first <= last).then_some(Span { first, last })
    }

    /// Whether an address is in it.
    pub fn contains(self, ip: Ipv4Addr) -> bool {
        self.first <= ip && ip <= self.last
    }

    /// How many addresses it has; counting all of IPv4 takes 33 bits.
    pub fn count(self) -> u64 {
        u64::from(self.last.to_bits()) - u64::from(self.first.to_bits()) + 1
    }

    /// Returns the longest span within it without any of these addresses, the first among equals;
    /// none if nothing is left.
    pub fn without(self, taken: &[Ipv4Addr]) -> Option<Span> {
        let mut inside: Vec<u64> =
            taken.iter().filter(|ip| self.contains(**ip)).map(|ip| ip.to_bits().into()).collect();
        inside.sort_unstable();
        let mut best: Option<(u64, u64)> = None;
        let mut from = u64::from(self.first.to_bits());
        for stop in inside.into_iter().chain([u64::from(self.last.to_bits()) + 1]) {
            let length = stop.saturating_sub(from);
            if length > best.map_or(0, |(_, length)| length) {
                best = Some((from, length));
            }
            from = stop + 1;
        }
        let (from, length) = best?;
        let address = |number: u64| u32::try_from(number).ok().map(Ipv4Addr::from_bits);
        Span::new(address(from)?, address(from + length - 1)?)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Span, String> {
        let read = || {
            let (first, last) = text.split_once('-')?;
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        let (first, last) =
            read().ok_or("it is not a run of addresses such as 192.168.123.100-192.168.123.254")?;
        Span::new(first, last).ok_or_else(|| format!("it ends at {last}, before it begins"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address.
    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_are_read_with_or_without_the_hosts_address() {
        for (text, subnet, own, broadcast) in [
            ("192.168.123.0/24", "192.168.123.0/24", Some("192.168.123.1"), "192.168.123.255"),
            ("192.168.123.254/24", "192.168.123.0/24", Some("192.168.123.254"), "192.168.123.255"),
            ("10.7.0.0/8", "10.0.0.0/8", Some("10.7.0.0"), "10.255.255.255"),
            ("10.0.0.4/30", "10.0.0.4/30", Some("10.0.0.5"), "10.0.0.7"),
            ("10.0.0.4/31", "10.0.0.4/31", None, "10.0.0.5"),
            ("0.0.0.0/0", "0.0.0.0/0", Some("0.0.0.1"), "255.255.255.255"),
        ] {
            let range: Range = text.parse().unwrap();
            assert_eq!(range.subnet.to_string(), subnet, "{text}");
            assert_eq!(range.own(), own.map(ip), "{text}");
            assert_eq!(range.subnet.broadcast(), ip(broadcast), "{text}");
        }
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0/8", "a/8", "10.0.0.0/-1", "::/8"] {
            assert!(bad.parse::<Range>().is_err(), "{bad}");
        }
    }

    #[test]
    fn subnets_overlap_where_one_holds_the_other() {
        let subnet = |text: &str| text.parse::<Range>().unwrap().subnet;
        for (a, b, expected) in [
            ("10.0.0.0/8", "10.1.2.0/24", true),
            ("10.1.2.0/24", "10.1.3.0/24", false),
            ("10.1.2.0/23", "10.1.3.0/24", true),
            ("0.0.0.0/0", "10.1.3.0/24", true),
        ] {
            assert_eq!(subnet(a).overlaps(subnet(b)), expected, "{a} {b}");
            assert_eq!(subnet(b).overlaps(subnet(a)), expected, "{b} {a}");
        }
    }

    #[test]
    fn the_rest_of_a_run_is_its_longest_part() {
        let whole: Span = "10.0.0.2-10.0.0.254".parse().unwrap();
        assert_eq!((whole.count(), whole.without(&[])), (253, Some(whole)));
        for (taken, left) in [
            (&["10.0.0.45"][..], Some("10.0.0.46-10.0.0.254")),
            (&["10.0.0.200", "10.0.0.2"], Some("10.0.0.3-10.0.0.199")),
            (&["10.0.0.254", "10.0.0.254", "10.9.9.9"], Some("10.0.0.2-10.0.0.253")),
        ] {
            let taken: Vec<Ipv4Addr> = taken.iter().map(|text| ip(text)).collect();
            assert_eq!(whole.without(&taken), left.map(|text| text.parse().unwrap()), "{taken:?}");
        }
        let one: Span = "10.0.0.2-10.0.0.2".parse().unwrap();
        assert_eq!(one.without(&[ip("10.0.0.2")]), None);
        let end: Span = "255.255.255.254-255.255.255.255".parse().unwrap();
        assert_eq!(end.without(&[]), Some(end));
        assert!(
            "10.0.0.9-10.0.0.2".parse::<Span>().is_err() && "10.0.0.9".parse::<Span>().is_err()
        );
    }
}
