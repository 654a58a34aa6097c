//! The addresses of a guest behind libvirt: leases, the guest's agent, the host's ARP table.

use super::super::{AddressSource, GuestAddress};
use std::cell::Cell;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use virt::domain::{Domain, Interface};
use virt::sys;

/// How long an agent may take to answer. libvirt gives up after 5 s on one that does not answer at all, and never on one
/// that answers only the first message; so that no guest can hold us up, there is a limit of our own.
const AGENT_WAIT: Duration = Duration::from_secs(6);

/// How long after a silence no agent is asked: as long as libvirt holds further questions back, which would let each
/// look at a guest's address take seconds.
const AGENT_REST: Duration = Duration::from_secs(30);

/// Is whether agents are asked.
#[derive(Debug, Default)]
pub(super) struct Agents {
    /// When one was silent last.
    silent: Cell<Option<Instant>>,
}

impl Agents {
    /// What a guest's agent says of its interfaces; nothing where it does not answer in time.
    fn ask(&self, domain: &Domain) -> Vec<Interface> {
        if self.silent.get().is_some_and(|since| since.elapsed() < AGENT_REST) {
            return Vec::new();
        }
        let (tell, told) = mpsc::channel();
        let (domain, begun) = (domain.clone(), Instant::now());
        // It is left behind where the agent is silent, and ends with the answer or with the program.
        std::thread::spawn(move || {
            let agent = sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT;
            // Nobody listens any more where the time was over.
            let _ = tell.send(domain.interface_addresses(agent, 0).unwrap_or_default());
        });
        let interfaces = told.recv_timeout(AGENT_WAIT).unwrap_or_default();
        // One that is not there is told at once.
        if interfaces.is_empty() && begun.elapsed() > AGENT_WAIT / 2 {
            self.silent.set(Some(Instant::now()));
        }
        interfaces
    }
}

/// The addresses of a guest by the sources in their order, until each of these interfaces has one; of all sources where
/// no interface is named.
pub(super) fn addresses(agents: &Agents, domain: &Domain, macs: &[String]) -> Vec<GuestAddress> {
    let mut known: Vec<GuestAddress> = Vec::new();
    for source in [AddressSource::Lease, AddressSource::Agent, AddressSource::Arp] {
        let is_known = |mac: &String| known.iter().any(|address| address.mac == *mac);
        if !macs.is_empty() && macs.iter().all(is_known) {
            break;
        }
        // A source that this driver has not, or an agent that does not answer, knows no address.
        let ask = |number| domain.interface_addresses(number, 0).unwrap_or_default();
        let interfaces = match source {
            AddressSource::Lease => ask(sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE),
            AddressSource::Agent => agents.ask(domain),
            AddressSource::Arp => ask(sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_ARP),
        };
        let found = interfaces.iter().flat_map(|interface| usable(interface, source));
        let is_new = |address: &GuestAddress| known.iter().all(|k| k.mac != address.mac);
        let found: Vec<GuestAddress> = found.filter(is_new).collect();
        known.extend(found);
    }
    known
}

/// The addresses of one interface by which the guest can be reached.
fn usable(interface: &Interface, source: AddressSource) -> Vec<GuestAddress> {
    let Some(mac) = interface.hwaddr.as_deref().map(str::to_ascii_lowercase) else {
        return Vec::new();
    };
    let parsed = interface.addrs.iter().filter_map(|a| a.addr.parse::<std::net::IpAddr>().ok());
    parsed
        .filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
        .map(|ip| GuestAddress { mac: mac.clone(), ip, source })
        .collect()
}
