//! `ip`: the addresses of a guest, and their sources.

use super::args::IpArgs;
use super::context::Context;
use super::error::EXIT_DONE;
use crate::network::{AddressSource, GuestAddress};
use gpuvm_ops::address::{AddressWanted, Addresses, NicAddress, addresses};

/// Runs the verb.
pub fn run(args: &IpArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let wait_s = args.wait.unwrap_or_default();
    let wanted = AddressWanted { name: args.name.clone(), wait_s, all: args.all };
    match addresses(cx, &wanted)? {
        Addresses::All(lines) => all(lines, cx)?,
        Addresses::Best(found) if cx.output.json => {
            cx.output.json("gpuvm-address", &NicAddress::from(found))?;
        }
        Addresses::Best(GuestAddress { mac, ip, source }) => {
            cx.output.progress(&format!("{ip} of {mac}, by {}", source_word(source)));
            cx.output.text(&ip.to_string())?;
        }
    }
    Ok(EXIT_DONE)
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

/// Returns the word for the source of an address.
fn source_word(source: AddressSource) -> &'static str {
    match source {
        AddressSource::Lease => "lease",
        AddressSource::Agent => "agent",
        AddressSource::Arp => "arp",
    }
}
