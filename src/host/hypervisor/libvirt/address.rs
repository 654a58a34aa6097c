//! The addresses of a guest through libvirt: leases, the guest's agent, the host's ARP table.

use super::super::{Addresses, Hypervisor as _, HypervisorError, Lease};
use super::Libvirt;
use super::call::Call::Reads;
use super::call::{Failed, call};
use super::leases::{self, Given};
use crate::discover::network::answered_ago;
use crate::discover::process;
use crate::discover::reach::{Reach, ask_for, reach};
use crate::fsroot::FsRoot;
use gpuvm_core::domain::DomainXml;
use gpuvm_core::network::{AddressSource, GuestAddress};
use std::cell::{Cell, OnceCell};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use virt::domain::{Domain, DomainRunningReason, DomainStateReason, Interface};
use virt::enumutil::Enum;
use virt::network::Network;
use virt::sys;

/// How long an agent may take to answer. libvirt gives up after 5 s on one that does not answer at
/// all, but never on one that answers only the first message; with our own limit no guest can block
/// us.
const AGENT_WAIT: Duration = Duration::from_secs(6);

/// How long after a timeout no agent is asked: as long as libvirt delays further requests, which
/// would make each address lookup take seconds.
const AGENT_REST: Duration = Duration::from_secs(30);

impl Addresses for Libvirt {
    fn addresses(&self, name: &str, macs: &[String]) -> Result<Vec<GuestAddress>, HypervisorError> {
        call(Reads, format_args!("read the addresses of domain `{name}`"), || {
            Ok(addresses(self, &self.find(name)?, macs))
        })
    }

    fn reach(&self, name: &str, address: &GuestAddress) -> Result<Reach, HypervisorError> {
        call(Reads, format_args!("find where packets to {} arrive", address.ip), || {
            let domain = self.find(name).map_err(|failed| {
                failed.named(format_args!("read the addresses of domain `{name}`"))
            })?;
            reach_of(self, &domain, address)
        })
    }

    fn leases(&self, network: &str, mac: &str) -> Result<Vec<Lease>, HypervisorError> {
        call(Reads, format_args!("read the leases of network `{network}`"), || {
            leases::leases(self, network, mac)
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct Agents {
    /// The time of the last timeout.
    silent: Cell<Option<Instant>>,
}

impl Agents {
    /// Asks a guest's agent for its interfaces; empty if it does not answer in time.
    fn ask(&self, domain: &Domain) -> Vec<Interface> {
        if self.silent.get().is_some_and(|since| since.elapsed() < AGENT_REST) {
            return Vec::new();
        }
        let (tell, answers) = mpsc::channel();
        let (domain, begun) = (domain.clone(), Instant::now());
        // It is abandoned on a timeout, and ends with the answer or with the program.
        std::thread::spawn(move || {
            let agent = sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT;
            // After a timeout there is no receiver.
            let _ = tell.send(domain.interface_addresses(agent, 0).unwrap_or_default());
        });
        let interfaces = answers.recv_timeout(AGENT_WAIT).unwrap_or_default();
        // A missing agent is reported at once.
        if interfaces.is_empty() && begun.elapsed() > AGENT_WAIT / 2 {
            self.silent.set(Some(Instant::now()));
        }
        interfaces
    }
}

/// The addresses of a guest from the sources in order, until each of these interfaces has one; from
/// all sources if no interface is named. Addresses older than the guest's start are ignored:
/// another system may have booted.
fn addresses(libvirt: &Libvirt, domain: &Domain, macs: &[String]) -> Vec<GuestAddress> {
    let mut known: Vec<GuestAddress> = Vec::new();
    let run = Run {
        libvirt,
        domain,
        age: OnceCell::new(),
        networks: OnceCell::new(),
        live: OnceCell::new(),
    };
    for source in [AddressSource::Lease, AddressSource::Arp, AddressSource::Agent] {
        let is_known = |mac: &String| known.iter().any(|address| address.mac == *mac);
        if !macs.is_empty() && macs.iter().all(is_known) {
            break;
        }
        // An unsupported source, or an agent that does not answer, yields no address.
        let ask = |number| domain.interface_addresses(number, 0).unwrap_or_default();
        let interfaces = match source {
            AddressSource::Lease => ask(sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE),
            AddressSource::Agent => libvirt.agents.ask(domain),
            AddressSource::Arp => ask(sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_ARP),
        };
        let found = interfaces.iter().flat_map(|interface| usable(interface, source));
        let is_new = |address: &GuestAddress| known.iter().all(|k| k.mac != address.mac);
        let found = found.filter(|address| is_new(address) && !run.is_before(address));
        let found: Vec<GuestAddress> = found.filter_map(|address| run.proven(address)).collect();
        known.extend(found);
    }
    known
}

/// How long the answer of a guest of this machine to ARP takes at most.
const ARP_WAIT: Duration = Duration::from_secs(3);

/// Where packets to a guest's address arrive. Of another machine only leases are believed, which
/// its libvirt knows by MAC address: its routes are not known here.
fn reach_of(libvirt: &Libvirt, domain: &Domain, address: &GuestAddress) -> Result<Reach, Failed> {
    if !libvirt.has_guests_here() {
        let is_leased = address.source == AddressSource::Lease;
        return Ok(if is_leased { Reach::Leased } else { Reach::Elsewhere });
    }
    let live = DomainXml::parse(&domain.xml_desc(0)?).map_err(|e| Failed::other(e.to_string()))?;
    let found = reach(&live, &address.mac, address.ip, ARP_WAIT);
    found.map_err(|e| Failed::other(e.to_string()))
}

/// The tolerance in comparing ages: leases and the kernel count in whole seconds.
const BLUR: Duration = Duration::from_secs(2);

/// Whether an event this long ago was after the start of a guest of this age.
fn is_since(age: Duration, ago: Duration) -> bool {
    ago <= age + BLUR
}

struct Run<'a> {
    libvirt: &'a Libvirt,
    domain: &'a Domain,
    /// How long it has been running; `None` if unknown, or it was restored or migrated.
    age: OnceCell<Option<Duration>>,
    /// The networks that it is on.
    networks: OnceCell<Vec<Network>>,
    /// Its running definition; `None` if it cannot be read.
    live: OnceCell<Option<DomainXml>>,
}

impl Run<'_> {
    /// An address as the host sees it: what an agent reports counts as a neighbour's if packets
    /// arrive at the guest. `None` if an entry of the host's neighbour table of which that is not
    /// so, since a guest can have any entered.
    fn proven(&self, address: GuestAddress) -> Option<GuestAddress> {
        if address.source == AddressSource::Lease || !self.libvirt.has_guests_here() {
            return Some(address);
        }
        let live = self.live.get_or_init(|| DomainXml::parse(&self.domain.xml_desc(0).ok()?).ok());
        let patience = Duration::from_millis(200);
        let found = live.as_ref().map(|live| reach(live, &address.mac, address.ip, patience));
        match (found, address.source) {
            (Some(Ok(Reach::Guest)), _) => {
                Some(GuestAddress { source: AddressSource::Arp, ..address })
            }
            (_, AddressSource::Agent) => Some(address),
            _ => None,
        }
    }

    /// Whether an address is known to be older than the guest's start.
    fn is_before(&self, address: &GuestAddress) -> bool {
        if address.source == AddressSource::Agent {
            return false;
        }
        let Some(age) = *self.age.get_or_init(|| self.read_age()) else { return false };
        let answered = |ip| match ip {
            IpAddr::V4(ip) => answered_ago(&address.mac, ip).ok().flatten(),
            IpAddr::V6(_) => None,
        };
        let ip = address.ip;
        if address.source != AddressSource::Lease {
            return answered(ip).is_some_and(|ago| !is_since(age, ago));
        }
        let networks = self.networks.get_or_init(|| self.read_networks());
        let given = networks.iter().find_map(|network| leases::given(network, &address.mac, ip));
        match given {
            None => false,
            Some(Given::Ago(ago)) if is_since(age, ago) => false,
            // An ARP request is sent, and an answer proves that the guest has it since its start.
            Some(Given::Ago(_) | Given::ForEver) => {
                let answers = || answered(ip).is_some_and(|ago| is_since(age, ago));
                !(answers() || (ask_for(ip) && answers()))
            }
        }
    }

    /// Reads how long it has been running on this machine.
    fn read_age(&self) -> Option<Duration> {
        use DomainRunningReason::{FromSnapshot, Migrated, Restored};
        let (_, reason) = self.domain.state().ok()?;
        // None of these is a boot: the guest keeps its addresses.
        let goes_on = matches!(reason, Enum::Known(DomainStateReason::Running(reason))
            if reason.is_any(vec![FromSnapshot, Migrated, Restored]));
        if goes_on || !self.libvirt.has_guests_here() {
            return None;
        }
        let uuid = self.domain.uuid_string().ok()?.to_ascii_lowercase();
        let root = FsRoot::live().ok()?;
        process::age(&root, *process::all(&root).ok()?.get(&uuid)?)
    }

    fn read_networks(&self) -> Vec<Network> {
        let Ok(xml) = self.domain.xml_desc(0) else { return Vec::new() };
        let Ok(xml) = DomainXml::parse(&xml) else { return Vec::new() };
        let root = xml.root();
        let nics =
            root.child("devices").into_iter().flat_map(|devices| devices.children("interface"));
        let names = nics.filter_map(|nic| nic.child("source")?.attr("network"));
        let names: BTreeSet<String> = names.map(|name| name.into_owned()).collect();
        let connection = self.libvirt.connection();
        names.iter().filter_map(|name| connection.lookup_network_by_name(name).ok()).collect()
    }
}

/// Whether an address can reach a guest. A link-local one cannot without the link's name.
fn is_reachable(ip: &IpAddr) -> bool {
    let of_a_link = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast() && !of_a_link
}

/// The addresses of one interface by which the guest can be reached.
fn usable(interface: &Interface, source: AddressSource) -> Vec<GuestAddress> {
    let Some(mac) = interface.hwaddr.as_deref().map(str::to_ascii_lowercase) else {
        return Vec::new();
    };
    let parsed = interface.addrs.iter().filter_map(|a| a.addr.parse::<IpAddr>().ok());
    parsed
        .map(|ip| ip.to_canonical())
        .filter(is_reachable)
        .map(|ip| GuestAddress { mac: mac.clone(), ip, source })
        .collect()
}
