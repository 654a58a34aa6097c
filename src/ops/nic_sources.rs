//! The sources of a domain's NICs, and whether they exist: libvirt defines a domain whose network,
//! bridge or network device is missing, and fails at its start.

use crate::domain::{DomainXml, Element};
use crate::error::Result;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::network::NetworkState;
use crate::shell::word;
use gpuvm_core::check::NicFact;
use std::fmt;
use std::path::Path;

/// The obstacle to connecting a NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoSource {
    /// The libvirt network does not exist.
    Network(String),
    /// The libvirt network is not active.
    Down(String),
    /// The bridge does not exist.
    Bridge(String),
    /// The network device of a macvtap does not exist.
    Device(String),
    /// A macvtap is not possible on the loopback device.
    Loopback(String),
}

impl fmt::Display for NoSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoSource::Network(name) => write!(f, "there is no network `{name}`"),
            NoSource::Down(name) => write!(f, "network `{name}` is not active"),
            NoSource::Bridge(name) => write!(f, "the host has no bridge `{name}`"),
            NoSource::Device(name) => write!(f, "the host has no network device `{name}`"),
            NoSource::Loopback(name) => {
                write!(f, "`{name}` is the loopback device, on which no macvtap can stand")
            }
        }
    }
}

impl NoSource {
    /// The remedy; `domain`: the domain's name.
    pub(crate) fn hint(&self, domain: &str) -> String {
        let domain = word(domain);
        let another = format!("`gpuvm set {domain} --network NAME` takes another one");
        match self {
            NoSource::Network(name) => {
                format!("`gpuvm network create {}` makes it, {another}", word(name))
            }
            NoSource::Down(name) => format!("`virsh net-start {}` starts it", word(name)),
            NoSource::Bridge(name) => format!(
                "`gpuvm network host-bridge create {} --nic NIC` makes it, {another}",
                word(name)
            ),
            NoSource::Device(_) | NoSource::Loopback(_) => {
                format!("`gpuvm nic list` shows the host's NICs; {another}")
            }
        }
    }
}

/// Returns the obstacles to connecting the NICs of a domain, by their place in the definition.
/// Bridges and network devices are looked for only where the domain's machine is this one.
pub(crate) fn missing(
    xml: &DomainXml,
    hypervisor: &dyn Hypervisor,
) -> Result<Vec<(usize, NoSource)>> {
    let devices = xml.root().children("devices");
    let nics: Vec<_> = devices.flat_map(|devices| devices.children("interface")).collect();
    if nics.iter().all(|nic| nic.child("source").is_none()) {
        return Ok(Vec::new());
    }
    let has_network = |nic: &Element<'_>| named(*nic, "network").is_some();
    let known = if nics.iter().any(has_network) {
        hypervisor.networks().all_networks()?
    } else {
        Vec::new()
    };
    let is_there = |name: &str| {
        !hypervisor.has_guests_here() || Path::new("/sys/class/net").join(name).exists()
    };
    let all = nics.into_iter().enumerate();
    Ok(all.filter_map(|(nth, nic)| Some((nth, no_source(nic, &known, &is_there)?))).collect())
}

/// The name in an attribute of a NIC's `<source>`.
fn named(nic: Element<'_>, attribute: &str) -> Option<String> {
    Some(nic.child("source")?.attr(attribute)?.into_owned())
}

/// The obstacle to connecting a NIC; `None` if none is known.
fn no_source(
    nic: Element<'_>,
    known: &[NetworkState],
    is_there: &dyn Fn(&str) -> bool,
) -> Option<NoSource> {
    match nic.attr("type")?.as_ref() {
        "network" => {
            let name = named(nic, "network")?;
            match known.iter().find(|network| network.name == name) {
                None => Some(NoSource::Network(name)),
                Some(network) => (!network.active).then_some(NoSource::Down(name)),
            }
        }
        "bridge" => {
            // A switch of Open vSwitch in user space is no network device.
            let is_ovs = nic.child("virtualport").is_some();
            let name = named(nic, "bridge").filter(|name| !is_ovs && !is_there(name))?;
            Some(NoSource::Bridge(name))
        }
        "direct" => {
            let name = named(nic, "dev")?;
            if name == "lo" {
                return Some(NoSource::Loopback(name));
            }
            (!is_there(&name)).then_some(NoSource::Device(name))
        }
        _ => None,
    }
}

/// The same as facts for the checker, but for networks that are only down, which is no mistake of
/// the definition. An embedded QEMU driver has no networks of its own, so none is missing there.
pub(crate) fn facts(xml: &DomainXml, hypervisor: &dyn Hypervisor) -> Result<Vec<NicFact>> {
    let name = xml.name();
    let is_embedded = hypervisor.opened_uri().contains(":///embed");
    let is_mistake = |(_, missing): &(usize, NoSource)| match missing {
        NoSource::Down(_) => false,
        NoSource::Network(_) => !is_embedded,
        NoSource::Bridge(_) | NoSource::Device(_) | NoSource::Loopback(_) => true,
    };
    let fact = |(nth, missing): (usize, NoSource)| NicFact {
        nth,
        why: missing.to_string(),
        hint: missing.hint(&name),
    };
    Ok(missing(xml, hypervisor)?.into_iter().filter(is_mistake).map(fact).collect())
}
