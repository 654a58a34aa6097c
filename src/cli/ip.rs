//! `ip`: where a guest answers, and who says so. And the waiting for it, which `create` does too. While it waits it listens
//! to what the guest says of itself by ARP: on a bridge or macvtap neither a lease nor the host's own table may know it.

use super::args::IpArgs;
use super::codes::Class;
use super::context::Context;
use super::error::{EXIT_DONE, classed};
use crate::discover::ear::Ear;
use crate::domain::DomainXml;
use crate::domain::view::View;
use crate::hypervisor::{DomainState, Hypervisor, XmlOf};
use crate::network::{AddressSource, GuestAddress};
use crate::shell::word;
use gpuvm_ops::guest::find;
use serde::Serialize;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Is what is known of a NIC's address.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct NicAddress {
    /// MAC address.
    mac: String,
    /// The address; none is known.
    ip: Option<IpAddr>,
    /// Where it was found.
    source: Option<AddressSource>,
}

impl From<GuestAddress> for NicAddress {
    fn from(address: GuestAddress) -> NicAddress {
        let GuestAddress { mac, ip, source } = address;
        NicAddress { mac, ip: Some(ip), source: Some(source) }
    }
}

/// Is how the waiting for an address ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Waited {
    /// With one.
    Found(GuestAddress),
    /// The guest ended before it had one.
    Ended,
    /// The time was over.
    Over,
}

/// Runs the verb.
pub fn run(args: &IpArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("ip")?;
    let hypervisor = cx.hypervisor()?;
    let name = &args.name;
    if matches!(find(&*hypervisor, name)?.state, DomainState::ShutOff | DomainState::Crashed) {
        let message = format!("domain `{name}` does not run, so it has no address");
        return Err(classed(
            Class::WrongState,
            message,
            format!("`gpuvm start {name}` starts it", name = word(name)),
        ));
    }
    let xml = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
    let macs: Vec<String> = View::of(&xml, None)?.nics.into_iter().map(|nic| nic.mac).collect();
    // What cannot be read at all is an error, and no reason to wait.
    hypervisor.addresses(name, &macs)?;
    let seconds = args.wait.unwrap_or_default();
    let wait = Wait { name, macs: &macs, wait: Duration::from_secs(seconds), each: args.all };
    let (waited, heard) = wait.run(&*hypervisor, || anyhow::Ok(()))?;
    let found = match waited {
        Waited::Found(found) => found,
        Waited::Ended => {
            let message = format!("domain `{name}` has ended before it had an address");
            return Err(classed(
                Class::WrongState,
                message,
                format!("`gpuvm start {name}` starts it", name = word(name)),
            ));
        }
        Waited::Over => return Err(none(name, &macs, seconds)),
    };
    if args.all {
        let mut known = hypervisor.addresses(name, &[])?;
        add(&mut known, &heard);
        all(merged(&macs, known), cx)?;
    } else if cx.output.json {
        cx.output.json("gpuvm-address", &NicAddress::from(found))?;
    } else {
        let GuestAddress { mac, ip, source } = &found;
        cx.output.progress(&format!("{ip} of {mac}, by {}", source_word(*source)));
        cx.output.text(&found.ip.to_string())?;
    }
    Ok(EXIT_DONE)
}

/// Is a wait for addresses.
struct Wait<'a> {
    /// The domain.
    name: &'a str,
    /// MAC addresses of its NICs.
    macs: &'a [String],
    /// How long.
    wait: Duration,
    /// Whether each NIC has to have one, not any.
    each: bool,
}

impl Wait<'_> {
    /// Waits; returns how it ended, and what was heard on the wire. `go_on` is asked twice a second.
    fn run<E>(
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
fn add(known: &mut Vec<GuestAddress>, heard: &[GuestAddress]) {
    for address in heard {
        if known.iter().all(|other| other.mac != address.mac) {
            known.push(address.clone());
        }
    }
}

/// Waits until one of these NICs has an address, the first NIC before the others and IPv4 before IPv6, which is taken
/// when the time is over. `go_on` is asked twice a second.
pub fn wait_for<E>(
    hypervisor: &dyn Hypervisor,
    name: &str,
    macs: &[String],
    wait: Duration,
    go_on: impl FnMut() -> Result<(), E>,
) -> Result<Waited, E> {
    let wait = Wait { name, macs, wait, each: false };
    Ok(wait.run(hypervisor, go_on)?.0)
}

/// The address to reach a guest by: one of its own NICs. An agent also tells of bridges inside the guest.
fn best(macs: &[String], addresses: Vec<GuestAddress>) -> Option<GuestAddress> {
    let nth = |address: &GuestAddress| macs.iter().position(|mac| *mac == address.mac);
    let own = addresses.into_iter().filter_map(|address| Some((nth(&address)?, address)));
    own.min_by_key(|(nth, address)| (address.ip.is_ipv6(), *nth)).map(|(_, address)| address)
}

/// Every NIC with its addresses, then what the agent tells besides.
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

/// Prints every address.
fn all(lines: Vec<NicAddress>, cx: &Context<'_>) -> std::io::Result<()> {
    if cx.output.json {
        return cx.output.json_rows("gpuvm-addresses", &lines);
    }
    let mut text = String::new();
    for NicAddress { mac, ip, source } in lines {
        let ip = ip.map_or("-".to_owned(), |ip| ip.to_string());
        text += &format!("{mac} {ip} {}\n", source.map_or("-", source_word));
    }
    cx.output.verbatim(&text)
}

/// Where an address was found, in a word.
fn source_word(source: AddressSource) -> &'static str {
    match source {
        AddressSource::Lease => "lease",
        AddressSource::Agent => "agent",
        AddressSource::Arp => "arp",
    }
}

/// Says that there is no address, and what helps.
fn none(name: &str, macs: &[String], seconds: u64) -> anyhow::Error {
    if macs.is_empty() {
        let hint = format!(
            "`gpuvm console {name}` needs no network; `gpuvm create --network NAME` gives a NIC"
        );
        return classed(Class::NotFound, format!("domain `{name}` has no NIC"), hint);
    }
    let after = if seconds == 0 { String::new() } else { format!(" after {seconds} s") };
    let hint = format!(
        "no DHCP lease, agent or ARP entry since its start knows one: it may still boot (--wait SECONDS); `gpuvm \
         console {name}` shows",
        name = word(name)
    );
    classed(Class::Timeout, format!("domain `{name}` has no address{after}"), hint)
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

    #[test]
    fn every_nic_has_its_line() {
        let macs = ["a".to_owned(), "b".to_owned()];
        let docker = told("x", "172.17.0.1", AddressSource::Agent);
        let second = told("b", "10.0.0.2", AddressSource::Lease);
        let lines = merged(&macs, vec![docker, second]);
        let lines: Vec<_> = lines.iter().map(|line| (&line.mac[..], line.ip.is_some())).collect();
        assert_eq!(lines, [("a", false), ("b", true), ("x", true)]);
    }
}
