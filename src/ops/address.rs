//! Waits for a guest's address. Meanwhile it listens to the guest's ARP packets: on a bridge or
//! macvtap neither a lease nor the host's ARP table may have it.

use crate::discover::arp::Ear;
use crate::domain::DomainXml;
use crate::domain::view::View;
use crate::error::{Class, Error, Result, classed};
use crate::guest::{find_alive, has_ended, log_hint, restart_hint};
use crate::hypervisor::{DomainState, Hypervisor, XmlOf};
use crate::lookup::find;
use crate::network::{AddressSource, GuestAddress};
use crate::shell::word;
use crate::world::World;
use serde::Serialize;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long to wait for the first NIC's address once another NIC has one: the guest requests all of
/// them at boot, and the answers arrive one after the other.
const FIRST_GRACE: Duration = Duration::from_secs(10);

/// A request for a guest's addresses.
#[derive(Debug, Clone)]
pub struct AddressWanted {
    /// The domain.
    pub name: String,
    /// How long to wait for them, in seconds.
    pub wait_s: u64,
    /// Whether those of every NIC are wanted, rather than the best one.
    pub all: bool,
}

/// The addresses of a guest.
#[derive(Debug)]
pub enum Addresses {
    /// The best one to reach it.
    Best(GuestAddress),
    /// A line for each address, and for each NIC that has none.
    All(Vec<NicAddress>),
}

/// The known address of a NIC.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NicAddress {
    /// MAC address.
    pub mac: String,
    /// The address; `None` if unknown.
    pub ip: Option<IpAddr>,
    /// Where it was found.
    pub source: Option<AddressSource>,
}

impl From<GuestAddress> for NicAddress {
    fn from(address: GuestAddress) -> NicAddress {
        let GuestAddress { mac, ip, source } = address;
        NicAddress { mac, ip: Some(ip), source: Some(source) }
    }
}

/// Returns the addresses of a running guest, waiting for them.
pub fn addresses(world: &World, wanted: &AddressWanted) -> Result<Addresses> {
    world.refuse_without_guests("ip")?;
    let hypervisor = world.hypervisor()?;
    let name = &wanted.name;
    find_alive(&*hypervisor, name, "it has no address")?;
    let xml = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
    let macs: Vec<String> = View::of(&xml, None)?.nics.into_iter().map(|nic| nic.mac).collect();
    // An unreadable source is an error, not a reason to wait.
    hypervisor.addresses(name, &macs)?;
    let time = Duration::from_secs(wanted.wait_s);
    let wait = Wait { name, macs: &macs, wait: time, each: wanted.all };
    let (waited, heard) = wait.run(&*hypervisor, || Ok::<(), Error>(()))?;
    match waited {
        Waited::Ended => Err(ended(&*hypervisor, name)),
        Waited::Over => Err(none(name, &macs, wanted.wait_s)),
        Waited::Claimed(claimed) if !wanted.all => Err(unproven(name, &claimed)),
        Waited::Found(found) if !wanted.all => Ok(Addresses::Best(found)),
        Waited::Found(_) | Waited::Claimed(_) => {
            let mut known = hypervisor.addresses(name, &[])?;
            add(&mut known, &heard);
            Ok(Addresses::All(merged(&macs, known)))
        }
    }
}

/// Makes the error that a guest stopped during the wait.
fn ended(hypervisor: &dyn Hypervisor, name: &str) -> Error {
    let (is, does) = match find(hypervisor, name) {
        Ok(row) if row.state.is_active() => ("has crashed", restart_hint(name)),
        Ok(row) if row.state == DomainState::ShutOff => {
            ("has ended", format!("`gpuvm start {}` starts it", word(name)))
        }
        // A transient domain is gone with its end.
        _ => ("has ended and is gone", "it had no definition to start it from".into()),
    };
    let message = format!("domain `{name}` {is} before it had an address");
    let hints = [log_hint(hypervisor, name), Some(does)];
    classed(Class::WrongState, message, hints.into_iter().flatten().collect::<Vec<_>>().join("; "))
}

/// Makes the error that there is no address, with a hint.
fn none(name: &str, macs: &[String], seconds: u64) -> Error {
    if macs.is_empty() {
        let hint = format!("`gpuvm console {}` needs no network", word(name));
        return classed(Class::NotFound, format!("domain `{name}` has no NIC"), hint);
    }
    let after = if seconds == 0 { String::new() } else { format!(" after {seconds} s") };
    let hint = format!(
        "no DHCP lease, agent or ARP entry since its start knows one: it may still boot (--wait \
         SECONDS); `gpuvm console {name}` shows",
        name = word(name)
    );
    classed(Class::Timeout, format!("domain `{name}` has no address{after}"), hint)
}

/// Makes the error that only a guest itself reports its address.
fn unproven(name: &str, claimed: &GuestAddress) -> Error {
    let GuestAddress { mac, ip, .. } = claimed;
    let message = format!(
        "the agent of `{name}` reports the address {ip}, but no DHCP lease and no neighbour of this \
         host with MAC address {mac} confirms it"
    );
    let hint = format!(
        "`gpuvm ip {name} --all` lists it; if you know that it is this guest's: `gpuvm ssh {name} \
         --address {ip}`",
        name = word(name)
    );
    classed(Class::Refused, message, hint)
}

/// Lists every NIC with its addresses, then further ones reported by the agent.
fn merged(macs: &[String], mut addresses: Vec<GuestAddress>) -> Vec<NicAddress> {
    let mut lines = Vec::new();
    for mac in macs.iter().filter(|mac| !mac.is_empty()) {
        let (own, others) = addresses.into_iter().partition(|address| address.mac == *mac);
        let own: Vec<GuestAddress> = own;
        addresses = others;
        if own.is_empty() {
            lines.push(NicAddress { mac: mac.clone(), ip: None, source: None });
        }
        lines.extend(own.into_iter().map(NicAddress::from));
    }
    lines.extend(addresses.into_iter().map(NicAddress::from));
    lines
}

/// How the wait for an address ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Waited {
    /// With an address.
    Found(GuestAddress),
    /// With an address that only the guest's agent reports.
    Claimed(GuestAddress),
    /// The guest ended before it had one.
    Ended,
    /// The time limit was reached.
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
    /// Whether each NIC must have one, rather than any.
    pub each: bool,
}

impl Wait<'_> {
    /// Waits; returns how it ended, and the addresses heard by ARP. `go_on` is called twice a
    /// second.
    pub fn run<E>(
        &self,
        hypervisor: &dyn Hypervisor,
        mut go_on: impl FnMut() -> Result<(), E>,
    ) -> Result<(Waited, Vec<GuestAddress>), E> {
        let Wait { name, macs, wait, each } = *self;
        let until = Instant::now() + wait;
        let (mut since, mut claimed_since, mut uuid) = (None, None, None);
        // Guests of another host cannot be heard here; without permission to listen it is skipped.
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
            let is_claim = |address: &&GuestAddress| {
                address.source == AddressSource::Agent && macs.contains(&address.mac)
            };
            let claimed = addresses.iter().find(is_claim).cloned();
            let best = best(macs, addresses);
            let good = best.as_ref().filter(|found| found.ip.is_ipv4() && enough);
            let is_due = good.is_some_and(|found| {
                let waited = since.get_or_insert_with(Instant::now).elapsed();
                macs.first() == Some(&found.mac) || waited >= FIRST_GRACE
            });
            if let Some(found) = best.filter(|_| is_due || over) {
                return Ok((Waited::Found(found), heard));
            }
            let is_late = claimed.is_some() && {
                let waited = claimed_since.get_or_insert_with(Instant::now).elapsed();
                (each && enough) || (!each && waited >= FIRST_GRACE)
            };
            match claimed {
                Some(claimed) if over || is_late => return Ok((Waited::Claimed(claimed), heard)),
                _ if over => return Ok((Waited::Over, heard)),
                _ => {}
            }
            if has_ended(hypervisor, name, &mut uuid) {
                return Ok((Waited::Ended, heard));
            }
            go_on()?;
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

/// Adds heard addresses of NICs unknown to other sources.
fn add(known: &mut Vec<GuestAddress>, heard: &[GuestAddress]) {
    for address in heard {
        let is_claim = |other: &GuestAddress| other.source == AddressSource::Agent;
        if known.iter().all(|other| other.mac != address.mac || is_claim(other)) {
            known.push(address.clone());
        }
    }
}

/// Returns the best address to reach a guest: one of its own NICs. An address that only its agent
/// reports is not used: a guest could send others to any machine.
pub(crate) fn best(macs: &[String], addresses: Vec<GuestAddress>) -> Option<GuestAddress> {
    let nth = |address: &GuestAddress| macs.iter().position(|mac| *mac == address.mac);
    let seen = addresses.into_iter().filter(|address| address.source != AddressSource::Agent);
    let own = seen.filter_map(|address| Some((nth(&address)?, address)));
    own.min_by_key(|(nth, address)| (address.ip.is_ipv6(), *nth)).map(|(_, address)| address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::Answer;
    use crate::stage::Caller;
    use crate::stage::fake::{Fake, xml};
    use crate::world::Settings;
    use std::rc::Rc;

    #[test]
    fn the_first_nic_is_waited_for_a_while() {
        let macs = ["a".to_owned(), "b".to_owned()];
        let fake = Fake::default();
        fake.put("g", crate::stage::UUID, true);
        let second = guest_address("b", "10.0.1.1", AddressSource::Lease);
        fake.addresses.replace(vec![second]);
        let wait = Wait { name: "g", macs: &macs, wait: Duration::from_secs(60), each: false };
        // The first NIC's own address comes a little later.
        let come = || {
            fake.addresses.borrow_mut().push(guest_address("a", "10.0.0.1", AddressSource::Lease));
            Ok::<(), Error>(())
        };
        let (waited, _) = wait.run(&fake, come).unwrap();
        let first = guest_address("a", "10.0.0.1", AddressSource::Lease);
        assert_eq!(waited, Waited::Found(first));
    }

    #[test]
    fn a_guest_that_ends_is_waited_for_no_longer() {
        let macs = ["a".to_owned()];
        let wait = Wait { name: "g", macs: &macs, wait: Duration::from_secs(60), each: false };
        let other = "22222222-2222-4333-8444-555555555555";
        // It is off; it was transient and is gone; another one has its name now; it has crashed.
        let ends: [fn(&Fake, &str); 4] = [
            |fake, _| fake.put("g", crate::stage::UUID, false),
            |fake, _| assert!(fake.domains.borrow_mut().remove("g").is_some()),
            |fake, other| fake.put("g", other, true),
            |fake, _| assert!(fake.crashed.borrow_mut().insert("g".into())),
        ];
        let hints = ["`gpuvm start g`", "no definition", "", "`gpuvm restart --force g`"];
        for (end, hint) in ends.into_iter().zip(hints) {
            let fake = Fake::default();
            fake.put("g", crate::stage::UUID, true);
            let mut asked = 0;
            let go_on = || {
                asked += 1;
                assert!(asked < 3, "it is waited for");
                end(&fake, other);
                Ok::<(), Error>(())
            };
            assert_eq!(wait.run(&fake, go_on).unwrap().0, Waited::Ended, "{hint}");
            let Error::Refused(said) = ended(&fake, "g") else { panic!("{hint}") };
            assert!(said.hint.contains(hint), "{}", said.hint);
        }
        // A hypervisor that does not answer does not say that it has ended.
        let fake = Fake::default();
        fake.put("g", crate::stage::UUID, true);
        let mut asked = 0;
        let go_on = || {
            asked += 1;
            fake.gone.set(asked < 3);
            let back = guest_address("a", "10.0.0.1", AddressSource::Lease);
            fake.addresses.replace(if asked < 3 { Vec::new() } else { vec![back] });
            Ok::<(), Error>(())
        };
        assert!(matches!(wait.run(&fake, go_on).unwrap().0, Waited::Found(_)));
    }

    /// An address with its source.
    fn guest_address(mac: &str, ip: &str, source: AddressSource) -> GuestAddress {
        GuestAddress { mac: mac.into(), ip: ip.parse().unwrap(), source }
    }

    #[test]
    fn an_address_that_only_the_agent_reports_is_refused_and_still_listed() {
        let fake = Rc::new(Fake::default());
        let nic = "<devices><interface type='bridge'><mac address='52:54:00:00:00:01'/><source \
                   bridge='br0'/></interface></devices></domain>";
        fake.put_xml(&xml("g", crate::stage::UUID).replace("</domain>", nic), true);
        let lie = guest_address("52:54:00:00:00:01", "192.0.2.7", AddressSource::Agent);
        fake.addresses.replace(vec![lie]);
        let world = World::on(fake, Settings::default(), Caller::who_says(Answer::Nobody));
        let mut wanted = AddressWanted { name: "g".into(), wait_s: 0, all: false };
        let error = addresses(&world, &wanted).unwrap_err();
        let Error::Refused(said) = &error else { panic!("{error}") };
        assert!(said.message.contains("reports the address 192.0.2.7"), "{said:?}");
        assert!(said.hint.contains("gpuvm ssh g --address 192.0.2.7"), "{said:?}");
        wanted.all = true;
        let Addresses::All(lines) = addresses(&world, &wanted).unwrap() else { panic!("one") };
        assert_eq!(lines[0].source, Some(AddressSource::Agent));
    }

    #[test]
    fn every_nic_has_its_line() {
        let macs = ["a".to_owned(), "b".to_owned()];
        let docker = guest_address("x", "172.17.0.1", AddressSource::Agent);
        let second = guest_address("b", "10.0.0.2", AddressSource::Lease);
        let lines = merged(&macs, vec![docker, second]);
        let lines: Vec<_> = lines.iter().map(|line| (&line.mac[..], line.ip.is_some())).collect();
        assert_eq!(lines, [("a", false), ("b", true), ("x", true)]);
    }

    #[test]
    fn the_best_address_is_ipv4_of_an_own_nic() {
        let macs = ["a".to_owned(), "b".to_owned()];
        let docker = guest_address("x", "172.17.0.1", AddressSource::Agent);
        let six = guest_address("a", "fd00::1", AddressSource::Arp);
        let second = guest_address("b", "10.0.0.2", AddressSource::Lease);
        let first = guest_address("a", "10.0.0.1", AddressSource::Arp);
        let claimed = guest_address("a", "10.0.0.9", AddressSource::Agent);
        let best = |all: &[&GuestAddress]| best(&macs, all.iter().copied().cloned().collect());
        assert_eq!(best(&[&docker]), None);
        assert_eq!(best(&[&claimed]), None);
        assert_eq!(best(&[&claimed, &second]), Some(second.clone()));
        assert_eq!(best(&[&docker, &six]), Some(six.clone()));
        assert_eq!(best(&[&six, &second]), Some(second.clone()));
        assert_eq!(best(&[&second, &six, &first]), Some(first));
    }
}
