//! The waiting for a guest's address. Meanwhile it listens to what the guest says of itself by ARP: on a bridge or macvtap
//! neither a lease nor the host's own table may know it.

use crate::discover::ear::Ear;
use crate::hypervisor::{DomainState, Hypervisor};
use crate::network::{AddressSource, GuestAddress};
use std::time::{Duration, Instant};

/// How the waiting for an address ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Waited {
    /// With one.
    Found(GuestAddress),
    /// The guest ended before it had one.
    Ended,
    /// The time was over.
    Over,
}

/// A wait for addresses.
#[derive(Debug, Clone, Copy)]
pub struct Wait<'a> {
    /// The domain.
    pub name: &'a str,
    /// MAC addresses of its NICs.
    pub macs: &'a [String],
    /// How long.
    pub wait: Duration,
    /// Whether each NIC has to have one, not any.
    pub each: bool,
}

impl Wait<'_> {
    /// Waits; returns how it ended, and what was heard on the wire. `go_on` is asked twice a second.
    pub fn run<E>(
        &self,
        hypervisor: &dyn Hypervisor,
        mut go_on: impl FnMut() -> Result<(), E>,
    ) -> Result<(Waited, Vec<GuestAddress>), E> {
        let Wait { name, macs, wait, each } = *self;
        let until = Instant::now() + wait;
        // Guests of another host are not heard here; whoever may not listen does without.
        let listens = !wait.is_zero() && hypervisor.has_guests_here();
        let ear = if listens { Ear::open().ok() } else { None };
        let mut heard: Vec<GuestAddress> = Vec::new();
        loop {
            let mut addresses = hypervisor.addresses(name, macs).unwrap_or_default();
            for (mac, ip) in ear.as_ref().map(|ear| ear.hear(macs)).unwrap_or_default() {
                heard.retain(|address| address.mac != mac);
                heard.push(GuestAddress { mac, ip: ip.into(), source: AddressSource::Arp });
            }
            add(&mut addresses, &heard);
            let over = Instant::now() >= until;
            let has = |mac: &String| {
                addresses.iter().any(|address| address.mac == *mac && address.ip.is_ipv4())
            };
            let enough = !each || macs.iter().all(has);
            let best = best(macs, addresses);
            if let Some(found) = best.filter(|found| (found.ip.is_ipv4() && enough) || over) {
                return Ok((Waited::Found(found), heard));
            }
            if over {
                return Ok((Waited::Over, heard));
            }
            let rows = hypervisor.domains().unwrap_or_default();
            if rows.iter().any(|row| row.name == name && row.state == DomainState::ShutOff) {
                return Ok((Waited::Ended, heard));
            }
            go_on()?;
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

/// Adds what was heard of NICs that no other source knows.
pub fn add(known: &mut Vec<GuestAddress>, heard: &[GuestAddress]) {
    for address in heard {
        if known.iter().all(|other| other.mac != address.mac) {
            known.push(address.clone());
        }
    }
}

/// The address to reach a guest by: one of its own NICs. An agent also tells of bridges inside the guest.
fn best(macs: &[String], addresses: Vec<GuestAddress>) -> Option<GuestAddress> {
    let nth = |address: &GuestAddress| macs.iter().position(|mac| *mac == address.mac);
    let own = addresses.into_iter().filter_map(|address| Some((nth(&address)?, address)));
    own.min_by_key(|(nth, address)| (address.ip.is_ipv6(), *nth)).map(|(_, address)| address)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address that a source tells.
    fn told(mac: &str, ip: &str, source: AddressSource) -> GuestAddress {
        GuestAddress { mac: mac.into(), ip: ip.parse().unwrap(), source }
    }

    #[test]
    fn the_best_address_is_ipv4_of_an_own_nic() {
        let macs = ["a".to_owned(), "b".to_owned()];
        let docker = told("x", "172.17.0.1", AddressSource::Agent);
        let six = told("a", "fd00::1", AddressSource::Agent);
        let second = told("b", "10.0.0.2", AddressSource::Lease);
        let first = told("a", "10.0.0.1", AddressSource::Agent);
        let best = |all: &[&GuestAddress]| best(&macs, all.iter().copied().cloned().collect());
        assert_eq!(best(&[&docker]), None);
        assert_eq!(best(&[&docker, &six]), Some(six.clone()));
        assert_eq!(best(&[&six, &second]), Some(second.clone()));
        assert_eq!(best(&[&second, &six, &first]), Some(first));
    }
}
