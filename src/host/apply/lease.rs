//! Releases an address at a DHCP server of this machine on behalf of a guest that no longer does.

use super::Observer;
use crate::discover::network::is_own_address;
use crate::hypervisor::{
    Definition, DomainSummary, Hypervisor, HypervisorError, HypervisorErrorKind, XmlOf, definitions,
};
use gpuvm_core::domain::nics::hooks;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};

const SERVER_PORT: u16 = 67;
/// The smallest message that every server accepts (RFC 1542, 2.1).
const SMALLEST: usize = 300;

/// Whether a server is one of this machine: whether its address is.
pub fn is_of_this_machine(server: Ipv4Addr) -> bool {
    is_own_address(server.into())
}

/// Releases an address unless a domain has the interface's MAC address: the domain it is released
/// for is gone, so the lease belongs to that one. A failure is reported but not an error, since a
/// lease expires by itself.
pub(super) fn give_back(
    hypervisor: &dyn Hypervisor,
    (server, ip): (Ipv4Addr, Ipv4Addr),
    mac: &str,
    observer: &mut dyn Observer,
) {
    let mut stays =
        |why: String| observer.note(&format!("the lease of {ip} stays until it ends: {why}"));
    match mac_owner(hypervisor, mac, None) {
        Ok(None) => {}
        Ok(Some(owner)) => {
            let name = owner.name;
            return stays(format!("domain `{name}` has the MAC address {mac}"));
        }
        Err(error) => return stays(error.to_string()),
    }
    let released = mac_bytes(mac).map(|mac| release(server, ip, mac));
    if let Some(Err(error)) = released {
        stays(error.to_string());
    }
}

/// Finds a domain with this MAC address, in its definition or while it runs, other than the one of
/// the UUID `but`; one that runs if any does. Errors: a definition cannot be read, so that the
/// owner is unknown.
pub fn mac_owner(
    hypervisor: &dyn Hypervisor,
    mac: &str,
    but: Option<&str>,
) -> Result<Option<DomainSummary>, HypervisorError> {
    let mut found: Option<DomainSummary> = None;
    let read = definitions(hypervisor, |row| match (row.state.is_active(), row.persistent) {
        (true, true) => &[XmlOf::Live, XmlOf::Public],
        (true, false) => &[XmlOf::Live],
        (false, _) => &[XmlOf::Public],
    })?;
    for Definition { summary: row, xml, .. } in read {
        if but.is_some_and(|but| row.uuid.eq_ignore_ascii_case(but)) {
            continue;
        }
        let xml = xml.map_err(|error| HypervisorError {
            kind: HypervisorErrorKind::Other,
            doing: format!("read the MAC addresses of domain `{}`", row.name),
            message: error.to_string(),
        })?;
        if hooks(&xml).iter().any(|hook| hook.mac.eq_ignore_ascii_case(mac)) {
            if row.state.is_active() {
                return Ok(Some(row));
            }
            found.get_or_insert(row);
        }
    }
    Ok(found)
}

/// Tells a server of this machine that an interface is done with its address. There is no answer; a
/// server that did not lease this address to this interface ignores it.
fn release(server: Ipv4Addr, ip: Ipv4Addr, mac: [u8; 6]) -> io::Result<()> {
    // From the server's own address, so that nothing reaches another host with that address.
    let socket = UdpSocket::bind((server, 0))?;
    socket.send_to(&message(server, ip, mac), (server, SERVER_PORT)).map(|_| ())
}

/// The message DHCPRELEASE (RFC 2131, table 5).
fn message(server: Ipv4Addr, ip: Ipv4Addr, mac: [u8; 6]) -> Vec<u8> {
    // A request by Ethernet, whose addresses are of 6 bytes.
    let mut bytes = vec![1, 1, 6, 0];
    // A sequence number of our own, to which no reply is sent; no time, no flags.
    bytes.extend(std::process::id().to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(ip.octets());
    // Three unused address fields.
    bytes.extend([0; 12]);
    bytes.extend(mac);
    // Padding of the hardware address, two name fields, then the magic cookie.
    bytes.extend([0; 10 + 64 + 128]);
    bytes.extend([99, 130, 83, 99]);
    // Kind of message, server, end.
    bytes.extend([53, 1, 7, 54, 4]);
    bytes.extend(server.octets());
    bytes.push(255);
    bytes.resize(bytes.len().max(SMALLEST), 0);
    bytes
}

/// Reads a MAC address.
fn mac_bytes(mac: &str) -> Option<[u8; 6]> {
    let parts: Vec<u8> =
        mac.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect::<Option<_>>()?;
    parts.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_its_parts_at_their_places() {
        let (server, ip) = (Ipv4Addr::new(192, 168, 122, 1), Ipv4Addr::new(192, 168, 122, 7));
        let mac = mac_bytes("52:54:00:aa:bb:01").unwrap();
        let bytes = message(server, ip, mac);
        assert_eq!(bytes.len(), SMALLEST);
        assert_eq!((&bytes[12..16], &bytes[28..34]), (&ip.octets()[..], &mac[..]));
        let end = [99, 130, 83, 99, 53, 1, 7, 54, 4, 192, 168, 122, 1, 255];
        assert_eq!(bytes[236..250], end);
    }

    #[test]
    fn malformed_interface_addresses_are_ignored() {
        for bad in ["", "52:54", "52:54:00:aa:bb:zz", "52:54:00:aa:bb:01:02"] {
            assert_eq!(mac_bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_addresses_of_this_machine_are_its_own() {
        assert!(is_of_this_machine(Ipv4Addr::LOCALHOST));
        // A documentation address (RFC 5737), which no machine has.
        assert!(!is_of_this_machine(Ipv4Addr::new(192, 0, 2, 1)));
    }
}
