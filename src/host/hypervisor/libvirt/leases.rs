//! DHCP leases of a libvirt network, which the binding lacks.
#![allow(unsafe_code)] // one call that fills an array of structures

use super::super::Lease;
use super::super::network::NetworkLease;
use super::super::storage::xml;
use super::Libvirt;
use super::call::{Failed, is_unsupported};
use nix::libc;
use serde::Deserialize;
use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr};
use std::ptr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use virt::error::{Error, ErrorNumber};
use virt::network::Network;
use virt::sys;

/// The leases of IPv4 addresses that a network has given to an interface.
pub(super) fn leases(libvirt: &Libvirt, network: &str, mac: &str) -> Result<Vec<Lease>, Failed> {
    let found = match libvirt.connection().lookup_network_by_name(network) {
        // An interface on a bridge or on the host's network.
        Err(e) if e.code().is(ErrorNumber::NoNetwork) || e.code().is(ErrorNumber::NoSupport) => {
            return Ok(Vec::new());
        }
        found => found?,
    };
    let Some(server) = server(&found)? else {
        return Ok(Vec::new());
    };
    let given = match of_mac(&found, mac) {
        // Drivers without networks of their own have no leases.
        Err(e) if is_unsupported(&e) => Vec::new(),
        given => given?,
    };
    Ok(given.into_iter().map(|ip| Lease { server, ip, mac: mac.to_owned() }).collect())
}

/// The address of a network's own DHCP server.
fn server(network: &Network) -> Result<Option<Ipv4Addr>, Error> {
    let text = network.xml_desc(0)?;
    // With an unknown form of the document, no server is known.
    let Ok(document) = xml::read::<Document>(&text) else { return Ok(None) };
    let mut with_dhcp = document.ips.into_iter().filter(|ip| ip.dhcp.is_some());
    Ok(with_dhcp.find_map(|ip| ip.address?.parse().ok()))
}

/// A network's definition, as far as needed.
#[derive(Debug, Deserialize)]
struct Document {
    /// Its own addresses.
    #[serde(default, rename = "ip")]
    ips: Vec<Ip>,
}

/// An address of a network.
#[derive(Debug, Deserialize)]
struct Ip {
    /// The address.
    #[serde(rename = "@address")]
    address: Option<String>,
    /// Its DHCP settings; `None` without DHCP.
    dhcp: Option<Dhcp>,
}

/// The addresses of a network's DHCP server.
#[derive(Debug, Deserialize)]
struct Dhcp {
    #[serde(default)]
    range: Vec<Range>,
    #[serde(default)]
    host: Vec<Host>,
}

#[derive(Debug, Deserialize)]
struct Range {
    #[serde(rename = "@start")]
    start: Option<IpAddr>,
    #[serde(rename = "@end")]
    end: Option<IpAddr>,
    lease: Option<Term>,
}

#[derive(Debug, Deserialize)]
struct Host {
    /// The address.
    #[serde(rename = "@ip")]
    ip: Option<IpAddr>,
    lease: Option<Term>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Term {
    /// Its number; 0: infinite.
    #[serde(rename = "@expiry")]
    expiry: u64,
    /// Its unit; minutes by default.
    #[serde(rename = "@unit")]
    unit: Option<Unit>,
}

/// The unit of a term.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Unit {
    /// Seconds.
    Seconds,
    /// Minutes.
    Minutes,
    /// Hours.
    Hours,
}

impl Document {
    /// Returns the lease time of an address; `None` if infinite. By default dnsmasq leases IPv4
    /// addresses for an hour and IPv6 ones for a day (dnsmasq(8), --dhcp-range).
    fn term(&self, ip: IpAddr) -> Option<Duration> {
        let dhcp = || self.ips.iter().filter_map(|own| own.dhcp.as_ref());
        let own = dhcp().flat_map(|dhcp| &dhcp.host).find(|host| host.ip == Some(ip));
        let within = |range: &&Range| {
            range.start.is_some_and(|start| start <= ip) && range.end.is_some_and(|end| ip <= end)
        };
        let range = || dhcp().flat_map(|dhcp| &dhcp.range).find(within);
        let term = own.and_then(|host| host.lease).or_else(|| range()?.lease);
        let seconds = match term {
            None if ip.is_ipv4() => 3600,
            None => 24 * 3600,
            Some(Term { expiry: 0, .. }) => return None,
            Some(Term { expiry, unit }) => expiry.saturating_mul(match unit {
                Some(Unit::Seconds) => 1,
                None | Some(Unit::Minutes) => 60,
                Some(Unit::Hours) => 3600,
            }),
        };
        Some(Duration::from_secs(seconds))
    }
}

/// When a lease was granted or renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    /// This long ago.
    Ago(Duration),
    /// With an infinite lease, whose end gives no age.
    ForEver,
}

/// Returns when a network leased an address to an interface; none if unknown.
pub(super) fn given(network: &Network, mac: &str, ip: IpAddr) -> Option<Given> {
    let row =
        of_network(network, None).ok()?.into_iter().find(|row| row.mac == mac && row.ip == ip)?;
    // dnsmasq writes 0 as the expiry of infinite leases.
    let term = xml::read::<Document>(&network.xml_desc(0).ok()?).ok()?.term(ip);
    let Some(term) = term.filter(|_| row.expires_s > 0) else { return Some(Given::ForEver) };
    let begun = Duration::from_secs(row.expires_s).checked_sub(term)?;
    SystemTime::now().duration_since(UNIX_EPOCH + begun).ok().map(Given::Ago)
}

/// The IPv4 addresses that an interface has from a network.
fn of_mac(network: &Network, mac: &str) -> Result<Vec<Ipv4Addr>, Error> {
    let Ok(mac) = CString::new(mac) else { return Ok(Vec::new()) };
    let rows = of_network(network, Some(&mac))?.into_iter();
    let v4 = |ip| if let IpAddr::V4(ip) = ip { Some(ip) } else { None };
    Ok(rows.filter_map(|row| v4(row.ip)).collect())
}

/// Returns a network's leases of an interface, or of all.
pub(super) fn of_network(
    network: &Network,
    mac: Option<&CStr>,
) -> Result<Vec<NetworkLease>, Error> {
    let mut rows: *mut sys::virNetworkDHCPLeasePtr = ptr::null_mut();
    let mac = mac.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: the network lives, the text is NULL or ends with NUL, and libvirt puts an array of
    // its own into `rows`.
    let count = unsafe { sys::virNetworkGetDHCPLeases(network.as_ptr(), mac, &mut rows, 0) };
    let Ok(count) = usize::try_from(count) else { return Err(Error::last_error()) };
    // SAFETY: texts of a row are NULL or end with NUL, and live as long as the row.
    let text = |text: *const std::ffi::c_char| {
        if text.is_null() {
            None
        } else {
            Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        }
    };
    let mut found = Vec::new();
    for at in 0..count {
        // SAFETY: the array has `count` rows, each of them one that libvirt made.
        let row = unsafe { *rows.add(at) };
        // SAFETY: the same.
        let lease = unsafe { &*row };
        let ip = text(lease.ipaddr).and_then(|ip| ip.parse().ok());
        found.extend(ip.map(|ip| NetworkLease {
            mac: text(lease.mac).unwrap_or_default().to_ascii_lowercase(),
            ip,
            host_name: text(lease.hostname).filter(|name| !name.is_empty()),
            expires_s: u64::try_from(lease.expirytime).unwrap_or_default(),
        }));
        // SAFETY: a row is freed once.
        unsafe { sys::virNetworkDHCPLeaseFree(row) };
    }
    // SAFETY: libvirt allocated the array by malloc for its caller to free.
    unsafe { libc::free(rows.cast()) };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_how_long_an_address_is_given() {
        let network = "<network><name>a</name><ip address='10.0.0.1' netmask='255.255.255.0'><dhcp>\
             <range start='10.0.0.2' end='10.0.0.9'/>\
             <range start='10.0.0.10' end='10.0.0.19'><lease expiry='24' unit='hours'/></range>\
             <range start='10.0.0.20' end='10.0.0.29'><lease expiry='0'/></range>\
             <host mac='52:54:00:00:00:01' ip='10.0.0.15'><lease expiry='5'/></host></dhcp></ip>\
             <ip family='ipv6' address='fd00::1' prefix='64'><dhcp><range start='fd00::2' \
             end='fd00::9'/></dhcp></ip>\
             <ip address='10.0.1.1'/></network>";
        let network: Document = xml::read(network).unwrap();
        for (ip, seconds) in [
            ("10.0.0.5", Some(3600)),
            ("10.0.0.12", Some(24 * 3600)),
            ("10.0.0.15", Some(300)),
            ("10.0.0.25", None),
            ("fd00::3", Some(24 * 3600)),
            ("10.0.1.7", Some(3600)),
        ] {
            let term = network.term(ip.parse().unwrap());
            assert_eq!(term.map(|term| term.as_secs()), seconds, "{ip}");
        }
    }
}
