//! Text forms of network and NIC requests: a NIC of the host, a guest's fixed address, MAC
//! addresses and VLANs.

use super::request::Dhcp;
use crate::bdf::Bdf;
use crate::ethernet::mac;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A network card of the host, as named by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Card {
    /// By its PCI address.
    At(Bdf),
    /// By its network device.
    Netdev(String),
}

impl FromStr for Card {
    type Err = String;
    fn from_str(text: &str) -> Result<Card, String> {
        if let Ok(bdf) = text.parse() {
            return Ok(Card::At(bdf));
        }
        let good = |c: char| !c.is_whitespace() && !matches!(c, '/' | ':') && !c.is_control();
        if (1..=super::MOST_NAME).contains(&text.len()) && text.chars().all(good) {
            return Ok(Card::Netdev(text.to_owned()));
        }
        Err("it is neither a PCI address nor a network device's name".into())
    }
}

impl FromStr for Dhcp {
    type Err = String;
    fn from_str(text: &str) -> Result<Dhcp, String> {
        if text == "off" { Ok(Dhcp::Off) } else { Ok(Dhcp::Span(text.parse()?)) }
    }
}

/// A fixed address of one guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedAddress {
    /// Its owner.
    pub who: Who,
    /// The address.
    pub ip: Ipv4Addr,
    /// The host name that goes with it.
    pub name: Option<String>,
}

/// The owner of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// The interface of this MAC address, lower case.
    Mac(String),
    /// The guest of this name.
    Guest(String),
}

impl FromStr for FixedAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<FixedAddress, String> {
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
        Ok(FixedAddress { who, ip, name })
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
    fn a_card_is_an_address_or_a_name() {
        assert_eq!("86:00.0".parse(), Ok(Card::At("0000:86:00.0".parse().unwrap())));
        assert_eq!("enp134s0f0".parse(), Ok(Card::Netdev("enp134s0f0".into())));
        for bad in ["", "86:00", "a/b", "eth0 ", "an-interface-name"] {
            assert!(bad.parse::<Card>().is_err(), "{bad}");
        }
    }

    #[test]
    fn fixed_addresses_are_of_interfaces_or_guests() {
        let read: FixedAddress = "52:54:00:AA:00:01=10.0.0.9,name=a.lab".parse().unwrap();
        assert_eq!(read.who, Who::Mac("52:54:00:aa:00:01".into()));
        assert_eq!((read.ip, read.name.as_deref()), (Ipv4Addr::new(10, 0, 0, 9), Some("a.lab")));
        let read: FixedAddress = "train-a=10.0.0.9".parse().unwrap();
        assert_eq!((read.who, read.name), (Who::Guest("train-a".into()), None));
        for (bad, said) in [
            ("train-a", "it is not MAC=IP"),
            ("=10.0.0.9", "it is not MAC=IP"),
            ("a=10.0.0", "not an IPv4 address"),
            ("a=10.0.0.9,x", "not name="),
            ("a=10.0.0.9,name=-x", "not name="),
            ("a=10.0.0.9,name=a..b", "not name="),
            ("01:00:5e:00:00:01=10.0.0.9", "is a multicast address"),
            ("52:54:00=10.0.0.9", "not a MAC address"),
        ] {
            let error = bad.parse::<FixedAddress>().unwrap_err();
            assert!(error.contains(said), "{bad}: {error}");
        }
        assert_eq!("off".parse(), Ok(Dhcp::Off));
        assert!("10.0.0.9-10.0.0.2".parse::<Dhcp>().unwrap_err().contains("before it begins"));
    }
}
