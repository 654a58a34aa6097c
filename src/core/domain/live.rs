//! The parts of a new definition that a running domain can take: thread pins and interface
//! bandwidths. The rest waits for the next start.

use super::device::hostdev_bdf;
use super::{Difference, DomainXml, Element, differences};
use crate::bdf::Bdf;
use crate::cpuset::CpuSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A thread of a running guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum GuestThread {
    /// The vCPU of this number.
    Vcpu(u32),
    /// All threads of QEMU that are neither a vCPU nor an I/O thread.
    Emulator,
    /// The I/O thread of this number, from 1.
    Iothread(u32),
}

impl fmt::Display for GuestThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuestThread::Vcpu(number) => write!(f, "vCPU {number}"),
            GuestThread::Emulator => f.write_str("the emulator"),
            GuestThread::Iothread(number) => write!(f, "I/O thread {number}"),
        }
    }
}

/// A device that is attached to a running guest or detached, by its identifying properties.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Plugged {
    /// A disk, by its path on the host.
    Disk(String),
    /// A NIC on a network, by its MAC address.
    Nic(String),
    /// A passed-through function, by its address on the host.
    Function(Bdf),
}

impl fmt::Display for Plugged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plugged::Disk(path) => write!(f, "disk {path}"),
            Plugged::Nic(mac) => write!(f, "NIC {mac}"),
            Plugged::Function(bdf) => write!(f, "device {bdf}"),
        }
    }
}

impl Plugged {
    /// Finds it among the devices of a domain.
    pub fn find<'t>(&self, domain: &'t DomainXml) -> Option<Element<'t>> {
        let devices = domain.root().children("devices").flat_map(Element::elements);
        match self {
            Plugged::Disk(path) => domain.disk(path),
            Plugged::Nic(own) => interfaces(domain).find(|nic| mac(*nic).as_ref() == Some(own)),
            Plugged::Function(own) => {
                let address = own.to_string();
                let is = |device: &Element<'_>| hostdev_bdf(*device).as_ref() == Some(&address);
                devices.filter(|device| matches!(device.name(), "hostdev" | "interface")).find(is)
            }
        }
    }
}

/// A thread that is to run elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The thread.
    pub thread: GuestThread,
    /// Where it is to run.
    pub to: CpuSet,
    /// Where it runs.
    pub from: CpuSet,
}

/// An interface whose bandwidth is to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bandwidth {
    /// Its MAC address.
    pub mac: String,
    /// The wanted interface.
    pub to: String,
    /// The interface as it is.
    pub from: String,
}

/// The changes to a running domain and those that wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveChanges {
    /// Threads that move.
    pub moves: Vec<Move>,
    /// Interfaces whose bandwidth changes.
    pub bandwidths: Vec<Bandwidth>,
    /// Differences that wait for the next start.
    pub waits: Vec<Difference>,
}

/// Finds the changes of a definition that a running domain, given by its live XML, can take. `all`
/// is every pcpu of the host, where unpinned threads run.
pub fn live_changes(live: &DomainXml, wanted: &DomainXml, all: &CpuSet) -> LiveChanges {
    let (now, then) = (pins(live, all), pins(wanted, all));
    // A thread that does not run yet has no pin to change.
    let moves = then.into_iter().filter_map(|(thread, to)| {
        let from = now.get(&thread)?.clone();
        (from != to).then_some(Move { thread, to, from })
    });
    let moves: Vec<Move> = moves.collect();
    let (bandwidths, with) = bandwidths(live, wanted);
    let is_reported = |difference: &Difference| !is_pin(&difference.path);
    let waits = differences(wanted, &with).into_iter().filter(is_reported).collect();
    LiveChanges { moves, bandwidths, waits }
}

/// Whether a path belongs to a pin.
fn is_pin(path: &str) -> bool {
    ["vcpupin", "emulatorpin", "iothreadpin"]
        .iter()
        .any(|name| path.starts_with(&format!("domain/cputune/{name}")))
}

/// Where each thread of a domain may run.
fn pins(domain: &DomainXml, all: &CpuSet) -> BTreeMap<GuestThread, CpuSet> {
    let claims = super::claims::Claims::read(domain);
    let default = claims.default_pin.as_ref().map_or(all, |pin| &pin.value);
    let mut pins: BTreeMap<GuestThread, CpuSet> = BTreeMap::new();
    for vcpu in 0..claims.vcpus.value {
        pins.insert(GuestThread::Vcpu(vcpu), default.clone());
    }
    for &id in claims.iothreads.keys() {
        pins.insert(GuestThread::Iothread(id), default.clone());
    }
    let emulator = claims.emulator_pin.as_ref().map_or(default, |pin| &pin.value);
    pins.insert(GuestThread::Emulator, emulator.clone());
    for pin in &claims.vcpu_pins {
        pins.entry(GuestThread::Vcpu(pin.of.value)).and_modify(|p| *p = pin.cpuset.value.clone());
    }
    for pin in &claims.iothread_pins {
        pins.entry(GuestThread::Iothread(pin.of.value))
            .and_modify(|p| *p = pin.cpuset.value.clone());
    }
    pins
}

/// The interfaces whose bandwidth changes, and the running domain with them changed.
fn bandwidths(live: &DomainXml, wanted: &DomainXml) -> (Vec<Bandwidth>, DomainXml) {
    let mut found = Vec::new();
    let mut text = live.text().to_owned();
    for interface in interfaces(live) {
        let Some(mac) = mac(interface) else { continue };
        let same = |other: &Element<'_>| self::mac(*other).as_deref() == Some(mac.as_str());
        let Some(other) = interfaces(wanted).find(same) else { continue };
        let (now, then) = (bandwidth(interface), bandwidth(other));
        if now == then {
            continue;
        }
        let from = interface.xml().to_owned();
        let to = match (&now, &then) {
            (Some(now), Some(then)) => from.replacen(now.as_str(), then, 1),
            (Some(now), None) => from.replacen(now.as_str(), "<bandwidth/>", 1),
            (None, Some(then)) => from.replacen("</interface>", &format!("{then}</interface>"), 1),
            (None, None) => continue,
        };
        text = text.replacen(&from, &to, 1);
        found.push(Bandwidth { mac, to, from });
    }
    // If the changed text cannot be parsed, the domain is compared unchanged.
    let with = DomainXml::parse(&text).unwrap_or_else(|_| live.clone());
    (found, with)
}

fn interfaces(domain: &DomainXml) -> impl Iterator<Item = Element<'_>> {
    let devices = domain.root().children("devices");
    devices.flat_map(|devices| devices.children("interface"))
}

/// The MAC address of an interface.
fn mac(interface: Element<'_>) -> Option<String> {
    let mac = interface.child("mac")?.attr("address")?;
    Some(mac.to_ascii_lowercase())
}

/// The bandwidth of an interface, as written in the document.
fn bandwidth(interface: Element<'_>) -> Option<String> {
    Some(interface.child("bandwidth")?.xml().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(vcpu: &str, tune: &str, bandwidth: &str, memory: &str) -> DomainXml {
        DomainXml::parse(&format!(
            "<domain type='qemu'><name>a</name><memory>{memory}</memory>{vcpu}<iothreads>1</iothreads>\
             <cputune>{tune}</cputune><devices><interface type='network'><mac \
             address='52:54:00:AA:00:01'/>\
             {bandwidth}</interface></devices></domain>"
        ))
        .unwrap()
    }

    #[test]
    fn threads_move_and_the_rest_waits() {
        let live = domain("<vcpu>2</vcpu>", "<vcpupin vcpu='0' cpuset='0'/>", "", "1024");
        let wanted = domain(
            "<vcpu>2</vcpu>",
            "<vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='3'/>\
             <emulatorpin cpuset='1'/><iothreadpin iothread='1' cpuset='1'/><iothreadpin iothread='2' cpuset='1'/>",
            "",
            "2048",
        );
        let changes = live_changes(&live, &wanted, &"0-3".parse().unwrap());
        let moves: Vec<_> = changes
            .moves
            .iter()
            .map(|m| (m.thread, m.from.to_string(), m.to.to_string()))
            .collect();
        let expected = [
            (GuestThread::Vcpu(0), "0", "2"),
            (GuestThread::Vcpu(1), "0-3", "3"),
            (GuestThread::Emulator, "0-3", "1"),
            (GuestThread::Iothread(1), "0-3", "1"),
        ]
        .map(|(thread, from, to)| (thread, from.to_owned(), to.to_owned()));
        assert_eq!(moves, expected);
        let waits: Vec<_> = changes.waits.iter().map(|d| d.path.as_str()).collect();
        assert_eq!(waits, ["domain/memory"]);
    }

    #[test]
    fn bandwidths_change_where_an_interface_stays() {
        let limit = |kib: u32| format!("<bandwidth><inbound average='{kib}'/></bandwidth>");
        let of = |text: &str| domain("<vcpu>1</vcpu>", "", text, "1024");
        let all = "0".parse().unwrap();
        for (now, then, has) in [
            (String::new(), limit(100), "average='100'"),
            (limit(100), limit(200), "average='200'"),
            (limit(100), String::new(), "<bandwidth/>"),
        ] {
            let changes = live_changes(&of(&now), &of(&then), &all);
            assert_eq!(changes.bandwidths.len(), 1, "{now} {then}");
            let bandwidth = &changes.bandwidths[0];
            assert_eq!(bandwidth.mac, "52:54:00:aa:00:01");
            assert!(bandwidth.to.contains(has), "{}", bandwidth.to);
            assert_eq!(changes.waits, []);
        }
        assert!(live_changes(&of(&limit(1)), &of(&limit(1)), &all).bandwidths.is_empty());
    }
}
