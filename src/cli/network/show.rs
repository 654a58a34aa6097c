//! `network show`: one network, its leases and guests, and who reaches whom.

use crate::cli::args::NetworkShowArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::network::{Network, Reach, Span};
use gpuvm_ops::networks::facts::{NetworkShown, one};
use gpuvm_ops::networks::find;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

/// Runs the verb.
pub fn run(args: &NetworkShowArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("network show")?;
    if args.xml {
        cx.output.document(&find(&*cx.hypervisor()?, &args.name)?.0.xml)?;
        return Ok(EXIT_DONE);
    }
    let shown = one(cx, &args.name)?;
    if cx.output.json {
        cx.output.json("gpuvm-network", &shown)?;
    } else {
        cx.output.text(&text(&shown))?;
    }
    Ok(EXIT_DONE)
}

/// Returns the text output, one fact a line.
fn text(shown: &NetworkShown) -> String {
    let mut text = facts(&shown.network);
    let mut line = |what: &str, value: String| {
        writeln!(text, "{what:<15}{value}").expect("text");
    };
    let kept = if shown.persistent { "" } else { ", gone when it ends" };
    line("state", format!("{}{kept}", if shown.active { "up" } else { "down" }));
    line("started", if shown.autostart { "with libvirt" } else { "by hand" }.into());
    for lease in &shown.leases {
        let name = lease.host_name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        let ends = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(lease.expires_s));
        let until = ends.map_or(String::new(), |ends| {
            format!(", until {}", humantime::format_rfc3339_seconds(ends))
        });
        line("lease", format!("{} of {}{name}{until}", lease.ip, lease.mac));
    }
    for guest in &shown.guests {
        let state = if guest.running { "running" } else { "off" };
        line("guest", format!("{} with {}, {state}", guest.domain, guest.mac));
    }
    text + &reach(shown.reach)
}

/// Describes a network, one fact a line.
pub fn facts(network: &Network) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: Option<String>| {
        if let Some(value) = value {
            writeln!(text, "{what:<15}{value}").expect("text");
        }
    };
    let each = |values: Vec<String>| (!values.is_empty()).then(|| values.join(", "));
    line("name", Some(network.name.clone()));
    line("kind", Some(network.kind.to_string()));
    line("nic", each(network.nics.clone()));
    line("bridge", network.bridge.clone());
    line("mtu", network.mtu.map(|mtu| format!("{mtu} bytes")));
    line("range", network.range.map(|range| range.to_string()));
    line("host", network.own.map(|own| own.to_string()));
    let counted = |span: &Span| format!("{span}, {} addresses", span.count());
    line("dhcp", each(network.dhcp.iter().map(counted).collect()));
    for fixed in &network.statics {
        let name = fixed.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        line("static", Some(format!("{} of {}{name}", fixed.ip, fixed.mac)));
    }
    text
}

/// Describes who reaches whom, a line each.
pub fn reach(reach: Option<Reach>) -> String {
    let lines = reach.into_iter().flat_map(Reach::lines);
    lines.map(|(who, how)| format!("{who:<15}{how}\n")).collect()
}
