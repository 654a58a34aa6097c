//! DHCP leases of a libvirt network, which the binding does not know.
#![allow(unsafe_code)] // one call that fills an array of structures

use super::super::network::NetworkLease;
use super::super::storage::xml;
use super::super::{HypervisorError, Lease};
use super::{Libvirt, error, is_unsupported};
use nix::libc;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr};
use std::ptr;
use virt::error::{Error, ErrorNumber};
use virt::network::Network;
use virt::sys;

/// The leases of IPv4 addresses that a network has given to an interface.
pub(super) fn leases(
    libvirt: &Libvirt,
    network: &str,
    mac: &str,
) -> Result<Vec<Lease>, HypervisorError> {
    let doing = format!("read the leases of network `{network}`");
    let found = match libvirt.connection().lookup_network_by_name(network) {
        // An interface of a bridge or of the host.
        Err(e) if e.code().is(ErrorNumber::NoNetwork) || e.code().is(ErrorNumber::NoSupport) => {
            return Ok(Vec::new());
        }
        found => found.map_err(|e| error(&doing, &e))?,
    };
    let Some(server) = server(&found).map_err(|e| error(&doing, &e))? else {
        return Ok(Vec::new());
    };
    let given = match given(&found, mac) {
        // Drivers without networks of their own have no leases.
        Err(e) if is_unsupported(&e) => Vec::new(),
        given => given.map_err(|e| error(&doing, &e))?,
    };
    Ok(given.into_iter().map(|ip| Lease { server, ip, mac: mac.to_owned() }).collect())
}

/// The address of a network's own DHCP server.
fn server(network: &Network) -> Result<Option<Ipv4Addr>, Error> {
    let text = network.xml_desc(0)?;
    // Of another form than that of today, it has no server that we know.
    let Ok(document) = xml::read::<Document>(&text) else { return Ok(None) };
    let mut with_dhcp = document.ips.into_iter().filter(|ip| ip.dhcp.is_some());
    Ok(with_dhcp.find_map(|ip| ip.address?.parse().ok()))
}

/// Is what is read of a network's definition.
#[derive(Debug, Deserialize)]
struct Document {
    /// Its own addresses.
    #[serde(default, rename = "ip")]
    ips: Vec<Ip>,
}

/// Is an address of a network.
#[derive(Debug, Deserialize)]
struct Ip {
    /// The address.
    #[serde(rename = "@address")]
    address: Option<String>,
    /// Whether addresses are given there.
    dhcp: Option<IgnoredAny>,
}

/// The IPv4 addresses that an interface has from a network.
fn given(network: &Network, mac: &str) -> Result<Vec<Ipv4Addr>, Error> {
    let Ok(mac) = CString::new(mac) else { return Ok(Vec::new()) };
    let rows = of_network(network, Some(&mac))?.into_iter();
    let v4 = |ip| if let IpAddr::V4(ip) = ip { Some(ip) } else { None };
    Ok(rows.filter_map(|row| v4(row.ip)).collect())
}

/// What a network has given to an interface, or to all of them.
pub(super) fn of_network(
    network: &Network,
    mac: Option<&CStr>,
) -> Result<Vec<NetworkLease>, Error> {
    let mut rows: *mut sys::virNetworkDHCPLeasePtr = ptr::null_mut();
    let mac = mac.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: the network lives, the text is NULL or ends with NUL, and libvirt puts an array of its own into `rows`.
    let count = unsafe { sys::virNetworkGetDHCPLeases(network.as_ptr(), mac, &mut rows, 0) };
    let Ok(count) = usize::try_from(count) else { return Err(Error::last_error()) };
    // SAFETY: texts of a row are NULL or end with NUL, and live as long as the row.
    let text = |text: *const std::ffi::c_char| match text.is_null() {
        true => None,
        false => Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()),
    };
    let mut found = Vec::new();
    for at in 0..count {
        // SAFETY: the array has `count` rows, each of them one that libvirt made.
        let row = unsafe { *rows.add(at) };
        // SAFETY: the same.
        let told = unsafe { &*row };
        let ip = text(told.ipaddr).and_then(|ip| ip.parse().ok());
        found.extend(ip.map(|ip| NetworkLease {
            mac: text(told.mac).unwrap_or_default().to_ascii_lowercase(),
            ip,
            host_name: text(told.hostname).filter(|name| !name.is_empty()),
            expires_s: u64::try_from(told.expirytime).unwrap_or_default(),
        }));
        // SAFETY: a row is given back once.
        unsafe { sys::virNetworkDHCPLeaseFree(row) };
    }
    // SAFETY: libvirt took the array from malloc and leaves it to its caller.
    unsafe { libc::free(rows.cast()) };
    Ok(found)
}
