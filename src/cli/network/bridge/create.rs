//! `network host-bridge create`: makes a bridge, or prints the configuration.

use super::show;
use crate::apply::Step;
use crate::cli::args::HostBridgeCreateArgs;
use crate::cli::change::{change_host, print_steps};
use crate::cli::context::Context;
use crate::cli::error::{Coded, EXIT_DONE};
use crate::cli::network::create::would;
use crate::hostnet::netplan::script;
use crate::hostnet::{Addressing, Planned, Request};
use gpuvm_ops::host_bridge::guard::{Guarded, leave_terminal};
use gpuvm_ops::host_bridge::{
    CREATED, HostBridgeError, HostBridgePlan, MadeBridge, NewHostBridge, make, prepare,
    refuse_unfinished, steps,
};
use serde::Serialize;
use std::net::Ipv4Addr;

/// What would be done.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Preview<'a> {
    /// The bridge, and its effects.
    #[serde(flatten)]
    planned: &'a Planned,
    /// Netplan's file.
    file: &'a str,
    /// The steps.
    steps: &'a [Step],
}

/// Runs the verb.
pub fn run(args: &HostBridgeCreateArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded(CREATED)?;
    cx.refuse_elsewhere(CREATED)?;
    let wanted = wanted(args);
    if args.guard {
        leave_terminal();
        change_host(CREATED, &args.lock, false, || Ok(steps(&wanted)?), cx)?;
        show::print(Some(&args.name), cx)?;
        return Ok(EXIT_DONE);
    }
    if !args.dry_run && args.print_for.is_none() {
        refuse_unfinished(cx)?;
    }
    let prepared = prepare(&wanted)?;
    let planned = &prepared.planned;
    for note in &planned.notes {
        cx.output.warning(note);
    }
    if args.print_for.is_some() {
        cx.output.verbatim(&script(&planned.bridge))?;
        return Ok(EXIT_DONE);
    }
    let Some(made) = &prepared.made else { return Err(elsewhere(&prepared)) };
    if args.dry_run {
        return preview(planned, made, cx);
    }
    let words = std::env::args_os().skip(1).chain(["--guard".into()]).collect();
    Ok(make(cx, planned, &Guarded { asks: !args.yes, dry_run: false, words })?)
}

/// Converts the arguments to a request.
fn wanted(args: &HostBridgeCreateArgs) -> NewHostBridge {
    let addressing = match args.address {
        Some(address) => {
            Addressing::Static { address, gateway: args.gateway, dns: args.dns.clone() }
        }
        None if args.dhcp => Addressing::Dhcp,
        None => Addressing::None,
    };
    let request = Request {
        name: args.name.clone(),
        nics: args.nic.clone(),
        bond: args.bond,
        addressing,
        vlan: args.vlan,
        mtu: args.mtu,
    };
    let (within_s, only_shown) = (args.within.confirm_within, args.print_for.is_some());
    NewHostBridge { request, within_s, login: login(), only_shown }
}

/// Returns the host's address that the current SSH login uses: the third field of SSH_CONNECTION
/// (ssh(1)).
fn login() -> Option<Ipv4Addr> {
    std::env::var("SSH_CONNECTION").ok()?.split_whitespace().nth(2)?.parse().ok()
}

fn preview(planned: &Planned, made: &MadeBridge, cx: &Context<'_>) -> anyhow::Result<u8> {
    let MadeBridge { text, steps } = made;
    if cx.output.json {
        cx.output.json("gpuvm-host-bridge-preview", &Preview { planned, file: text, steps })?;
        return Ok(EXIT_DONE);
    }
    would(&planned.lost, cx);
    print_steps(steps, cx)?;
    cx.output.verbatim(&format!("\n{text}"))?;
    Ok(EXIT_DONE)
}

/// Makes the refusal of a host that netplan does not configure.
fn elsewhere(prepared: &HostBridgePlan) -> anyhow::Error {
    let manager = prepared.manager.to_string();
    HostBridgeError::OtherManager { manager }.hint(
        "`gpuvm man networks` has its configuration, under OTHER NETWORK MANAGERS; nothing is \
               changed",
    )
}
