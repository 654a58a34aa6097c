//! libvirt's network XML; elements not named here are ignored.

use serde::{Deserialize, Serialize};

/// A network.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename = "network")]
pub struct Document {
    /// Its name.
    pub name: String,
    /// Its UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// How its packets are forwarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Forward>,
    /// Its bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<Bridge>,
    /// Largest packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// Its own addresses.
    #[serde(default, rename = "ip", skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<Ip>,
}

/// How a network's packets are forwarded.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Forward {
    /// `nat`, `bridge`, `hostdev`; libvirt's default is `nat`.
    #[serde(default, rename = "@mode", skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The host's network device.
    #[serde(default, rename = "@dev", skip_serializing_if = "Option::is_none")]
    pub dev: Option<String>,
    /// Whether libvirt binds and releases functions.
    #[serde(default, rename = "@managed", skip_serializing_if = "Option::is_none")]
    pub managed: Option<String>,
    /// The card whose virtual functions are handed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pf: Option<Dev>,
    /// The host's network devices.
    #[serde(default, rename = "interface", skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Dev>,
}

/// A network device of the host.
#[derive(Debug, Serialize, Deserialize)]
pub struct Dev {
    /// Its name; none of an interface given in another way.
    #[serde(default, rename = "@dev", skip_serializing_if = "Option::is_none")]
    pub dev: Option<String>,
}

/// A bridge.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Bridge {
    /// Its name; libvirt chooses one where none is given.
    #[serde(default, rename = "@name", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it runs the spanning tree protocol.
    #[serde(default, rename = "@stp", skip_serializing_if = "Option::is_none")]
    pub stp: Option<String>,
    /// How long it listens before it forwards, in seconds.
    #[serde(default, rename = "@delay", skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
}

/// The largest packet.
#[derive(Debug, Serialize, Deserialize)]
pub struct Mtu {
    /// In bytes.
    #[serde(rename = "@size")]
    pub size: u32,
}

/// An address of a network's own.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Ip {
    /// `ipv6`; `None` for IPv4.
    #[serde(default, rename = "@family", skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// The host's address.
    #[serde(default, rename = "@address", skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The mask, where no prefix is given.
    #[serde(default, rename = "@netmask", skip_serializing_if = "Option::is_none")]
    pub netmask: Option<String>,
    /// Length of the prefix.
    #[serde(default, rename = "@prefix", skip_serializing_if = "Option::is_none")]
    pub prefix: Option<u8>,
    /// Its DHCP settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp: Option<Dhcp>,
}

/// The addresses of a network's DHCP server.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Dhcp {
    /// Dynamic ranges.
    #[serde(default, rename = "range", skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<DhcpRange>,
    /// Static leases.
    #[serde(default, rename = "host", skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<DhcpHost>,
}

/// A dynamic range.
#[derive(Debug, Serialize, Deserialize)]
pub struct DhcpRange {
    /// The first.
    #[serde(rename = "@start")]
    pub start: String,
    /// The last.
    #[serde(rename = "@end")]
    pub end: String,
}

/// A static lease.
#[derive(Debug, Serialize, Deserialize)]
pub struct DhcpHost {
    /// MAC address of its interface; none if it is identified by name.
    #[serde(default, rename = "@mac", skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its host name.
    #[serde(default, rename = "@name", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address.
    #[serde(default, rename = "@ip", skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
}

/// A document as text, indented.
pub fn write(document: &Document) -> String {
    let mut text = String::new();
    let mut serializer = quick_xml::se::Serializer::new(&mut text);
    serializer.indent(' ', 2);
    document.serialize(serializer).expect("plain values with names that XML takes");
    text.push('\n');
    text
}

/// Reads a document. Errors: the fault in it.
pub fn read(text: &str) -> Result<Document, String> {
    quick_xml::de::from_str(text).map_err(|error| error.to_string())
}
