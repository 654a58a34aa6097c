//! `ip`: where a guest answers, and who says so.

use super::args::IpArgs;
use super::codes::Class;
use super::context::Context;
use super::error::{EXIT_DONE, classed};
use crate::domain::DomainXml;
use crate::domain::view::View;
use crate::hypervisor::{DomainState, XmlOf};
use crate::network::{AddressSource, GuestAddress};
use crate::shell::word;
use gpuvm_ops::address::{Wait, Waited, add};
use gpuvm_ops::guest::find;
use serde::Serialize;
use std::net::IpAddr;
use std::time::Duration;

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
    fn every_nic_has_its_line() {
        let macs = ["a".to_owned(), "b".to_owned()];
        let docker = told("x", "172.17.0.1", AddressSource::Agent);
        let second = told("b", "10.0.0.2", AddressSource::Lease);
        let lines = merged(&macs, vec![docker, second]);
        let lines: Vec<_> = lines.iter().map(|line| (&line.mac[..], line.ip.is_some())).collect();
        assert_eq!(lines, [("a", false), ("b", true), ("x", true)]);
    }
}
