//! Whether packets of this host to an address arrive at a guest: the route leads directly over a
//! device of the guest's NIC, and the kernel's neighbour table has the NIC's MAC address there. A
//! guest's own word proves nothing.

use super::network::{link_messages, links, neighbour, way_to};
use crate::fsroot::FsRoot;
use gpuvm_core::domain::DomainXml;
use gpuvm_core::domain::nics::{NicDevice, nic_devices};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

/// How long the kernel takes to forget a neighbour that no longer answers: 5 s until it asks, and
/// three questions a second apart.
const FORGETS: Duration = Duration::from_secs(9);

/// Where packets to an address arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// At the guest.
    Guest,
    /// At the guest, by the word of another machine's libvirt: its lease has the guest's MAC
    /// address.
    Leased,
    /// At another machine, with this MAC address.
    Other(String),
    /// Nobody has answered yet.
    Silent,
    /// Somewhere else: not directly over a device of the guest's NIC.
    Elsewhere,
}

/// Finds where packets to an address of a running guest's NIC arrive, and waits up to `patience`
/// for an answer; longer while an entry of another neighbour may be out of date. Errors: those of
/// the kernel.
pub fn reach(live: &DomainXml, mac: &str, ip: IpAddr, patience: Duration) -> io::Result<Reach> {
    let Some(way) = way_to(ip)?.filter(|way| way.direct) else { return Ok(Reach::Elsewhere) };
    let devices = devices(live, mac);
    let links = links(&link_messages(&[])?);
    let leads = links.iter().filter(|link| link.index == way.index).any(|link| {
        let own = |name: &String| devices.contains(name);
        own(&link.name) || link.over.as_ref().is_some_and(own)
    });
    if !leads {
        return Ok(Reach::Elsewhere);
    }
    let begun = Instant::now();
    loop {
        let found = neighbour(way.index, ip)?;
        let (wait, answer) = match found {
            Some(found) if found.mac.eq_ignore_ascii_case(mac) => return Ok(Reach::Guest),
            Some(found) if found.confirmed => return Ok(Reach::Other(found.mac)),
            Some(found) => (patience.max(FORGETS), Reach::Other(found.mac)),
            None => (patience, Reach::Silent),
        };
        if begun.elapsed() >= wait || !ask_for(ip) {
            return Ok(answer);
        }
    }
}

/// Names of the host's network devices that lead to a NIC of a running guest.
fn devices(live: &DomainXml, mac: &str) -> Vec<String> {
    let of = |device| match device {
        NicDevice::Named(name) => vec![name],
        NicDevice::Function(bdf) => {
            let path = format!("sys/bus/pci/devices/{bdf}/physfn/net");
            FsRoot::live().and_then(|root| root.names(&path)).unwrap_or_default()
        }
    };
    nic_devices(live, mac).into_iter().flat_map(of).collect()
}

/// Makes the kernel ask for an address (ARP, NDP), and waits as long as an answer on one machine
/// takes. It sends a byte to UDP's discard port (RFC 863), which triggers the request. Returns
/// whether it could be sent.
pub fn ask_for(ip: IpAddr) -> bool {
    const DISCARD: u16 = 9;
    let from: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((from, 0));
    let is_sent = socket.and_then(|socket| socket.send_to(&[0], (ip, DISCARD))).is_ok();
    if is_sent {
        std::thread::sleep(Duration::from_millis(100));
    }
    is_sent
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A running guest with one NIC on this device.
    fn guest(source: &str) -> DomainXml {
        let text = format!(
            "<domain type='kvm'><name>a</name><devices><interface type='bridge'><mac \
             address='52:54:00:00:00:01'/><source {source}/></interface></devices></domain>"
        );
        DomainXml::parse(&text).unwrap()
    }

    #[test]
    fn addresses_of_this_machine_and_unrouted_ones_are_not_the_guests() {
        let found = |source: &str, ip: &str| {
            let ip = ip.parse().unwrap();
            reach(&guest(source), "52:54:00:00:00:01", ip, Duration::ZERO).unwrap()
        };
        // The host's own, IPv4 and IPv6, even where the guest's NIC claims to be on that device.
        for ip in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "0.0.0.0"] {
            assert_eq!(found("bridge='lo'", ip), Reach::Elsewhere, "{ip}");
        }
        // Nothing leads to a bridge that this host does not have.
        assert_eq!(found("bridge='gpuvm-none0'", "192.0.2.7"), Reach::Elsewhere);
    }
}
