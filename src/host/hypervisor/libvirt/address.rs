//! The addresses of a guest behind libvirt: leases, the guest's agent, the host's ARP table.

use super::super::Hypervisor as _;
use super::Libvirt;
use super::leases::{self, Given};
use crate::discover::network::answered_ago;
use crate::discover::process;
use crate::fsroot::FsRoot;
use gpuvm_core::domain::DomainXml;
use gpuvm_core::network::{AddressSource, GuestAddress};
use std::cell::{Cell, OnceCell};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use virt::domain::{Domain, DomainRunningReason, DomainStateReason, Interface};
use virt::enumutil::Enum;
use virt::network::Network;
use virt::sys;

/// How long an agent may take to answer. libvirt gives up after 5 s on one that does not answer at all, and never on one
/// that answers only the first message; so that no guest can hold us up, there is a limit of our own.
const AGENT_WAIT: Duration = Duration::from_secs(6);

/// How long after a silence no agent is asked: as long as libvirt holds further questions back, which would let each
/// look at a guest's address take seconds.
const AGENT_REST: Duration = Duration::from_secs(30);

/// Whether agents are asked.
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
/// no interface is named. What is older than the guest's start is not taken: another system may have booted.
pub(super) fn addresses(libvirt: &Libvirt, domain: &Domain, macs: &[String]) -> Vec<GuestAddress> {
    let mut known: Vec<GuestAddress> = Vec::new();
    let run = Run { libvirt, domain, age: OnceCell::new(), networks: OnceCell::new() };
    for source in [AddressSource::Lease, AddressSource::Agent, AddressSource::Arp] {
        let is_known = |mac: &String| known.iter().any(|address| address.mac == *mac);
        if !macs.is_empty() && macs.iter().all(is_known) {
            break;
        }
        // A source that this driver has not, or an agent that does not answer, knows no address.
        let ask = |number| domain.interface_addresses(number, 0).unwrap_or_default();
        let interfaces = match source {
            AddressSource::Lease => ask(sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE),
            AddressSource::Agent => libvirt.agents.ask(domain),
            AddressSource::Arp => ask(sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_ARP),
        };
        let found = interfaces.iter().flat_map(|interface| usable(interface, source));
        let is_new = |address: &GuestAddress| known.iter().all(|k| k.mac != address.mac);
        let found: Vec<GuestAddress> =
            found.filter(|address| is_new(address) && !run.is_before(address)).collect();
        known.extend(found);
    }
    known
}

/// How much younger than its start what a guest says may seem: leases and the kernel count in whole seconds.
const BLUR: Duration = Duration::from_secs(2);

/// Whether something so long ago was since the start of a guest of this age.
fn is_since(age: Duration, ago: Duration) -> bool {
    ago <= age + BLUR
}

/// Has the kernel ask by ARP who has an address, and waits as long as an answer on one machine takes. Nothing is said but a
/// byte to UDP's discard port (RFC 863), which makes the kernel ask. Whether it could be sent.
fn ask_for(ip: IpAddr) -> bool {
    /// The port.
    const DISCARD: u16 = 9;
    let from: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        // Its neighbours are not looked at.
        IpAddr::V6(_) => return false,
    };
    let socket = UdpSocket::bind((from, 0));
    let is_sent = socket.and_then(|socket| socket.send_to(&[0], (ip, DISCARD))).is_ok();
    if is_sent {
        std::thread::sleep(Duration::from_millis(100));
    }
    is_sent
}

/// A guest since its start.
struct Run<'a> {
    /// Its libvirt.
    libvirt: &'a Libvirt,
    /// The guest.
    domain: &'a Domain,
    /// For how long it has run; none: there is no telling, or it goes on where it was saved or came from.
    age: OnceCell<Option<Duration>>,
    /// The networks that it is on.
    networks: OnceCell<Vec<Network>>,
}

impl Run<'_> {
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
            // Who has it is asked, and what answers was the guest since its start.
            Some(Given::Ago(_) | Given::ForEver) => {
                let answers = || answered(ip).is_some_and(|ago| is_since(age, ago));
                !(answers() || (ask_for(ip) && answers()))
            }
        }
    }

    /// For how long it has run on this machine.
    fn read_age(&self) -> Option<Duration> {
        use DomainRunningReason::{FromSnapshot, Migrated, Restored};
        let (_, reason) = self.domain.state().ok()?;
        // None of these is a boot: the guest keeps the addresses that it had.
        let goes_on = matches!(reason, Enum::Known(DomainStateReason::Running(reason))
            if reason.is_any(vec![FromSnapshot, Migrated, Restored]));
        if goes_on || !self.libvirt.has_guests_here() {
            return None;
        }
        let uuid = self.domain.uuid_string().ok()?.to_ascii_lowercase();
        let root = FsRoot::live().ok()?;
        process::age(&root, *process::all(&root).ok()?.get(&uuid)?)
    }

    /// The networks of its interfaces.
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

/// Whether an address can lead to a guest. One of a link alone cannot without the link's name.
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
