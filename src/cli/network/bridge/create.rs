//! `network host-bridge create`: plan a bridge, say what the NICs lose, and make it, or print what makes it.

use super::super::super::args::HostBridgeCreateArgs;
use super::super::super::change::{agree, change_host, print_steps, refuse_unfinished, watch};
use super::super::super::context::Context;
use super::super::super::error::{Coded, EXIT_DONE};
use super::prepare::{Made, Prepared, prepare};
use super::{CREATED, guard, show};
use crate::apply::Step;
use crate::cli::network::bridge::error::HostBridgeError;
use crate::hostnet::Planned;
use crate::hostnet::others::Manager;
use crate::hostnet::others::script;
use crate::hypervisor::none::NoHypervisor;
use serde::Serialize;

/// Is what would be done.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Preview<'a> {
    /// The bridge, and what it means.
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
    if args.guard {
        return guarded(args, cx);
    }
    if !args.dry_run && args.print_for.is_none() {
        refuse_unfinished(&NoHypervisor, cx.output)?;
    }
    let prepared = prepare(args)?;
    let planned = &prepared.planned;
    for note in &planned.notes {
        cx.output.warning(note);
    }
    if let Some(manager) = args.print_for {
        cx.output.verbatim(&script(&planned.bridge, manager.into()))?;
        return Ok(EXIT_DONE);
    }
    let Some(made) = &prepared.made else { return Err(elsewhere(&prepared, cx)?) };
    if args.dry_run {
        return preview(planned, made, cx);
    }
    if !args.yes && !planned.lost.is_empty() {
        let _reporter = watch(cx.output)?;
        let what = format!("making bridge {}", args.name);
        agree(&planned.lost, "make it?", &what)?;
    }
    guard::follow(std::env::args_os().skip(1).collect(), cx)
}

/// Makes it, as the process that takes it back.
fn guarded(args: &HostBridgeCreateArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    guard::leave_terminal();
    let steps = || match prepare(args)?.made {
        Some(made) => Ok(made.steps),
        None => Err(HostBridgeError::NoNetplan
            .hint("nothing is done; `--print-for netplan` prints the file")),
    };
    change_host(CREATED, (&args.lock, false), steps, cx)?;
    show::print(Some(&args.name), cx)?;
    Ok(EXIT_DONE)
}

/// Prints what would be done.
fn preview(planned: &Planned, made: &Made, cx: &Context<'_>) -> anyhow::Result<u8> {
    let Made { text, steps } = made;
    if cx.output.json {
        cx.output.json("gpuvm-host-bridge-preview", &Preview { planned, file: text, steps })?;
        return Ok(EXIT_DONE);
    }
    for line in &planned.lost {
        cx.output.progress(&format!("this would {line}"));
    }
    print_steps(steps, cx)?;
    cx.output.verbatim(&format!("\n{text}"))?;
    Ok(EXIT_DONE)
}

/// What makes the bridge, as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Script {
    /// What configures the host's networks.
    manager: Manager,
    /// Commands and files for it.
    script: String,
}

/// Prints what makes the bridge where netplan does not configure the host; the error that nothing is changed.
fn elsewhere(prepared: &Prepared, cx: &Context<'_>) -> anyhow::Result<anyhow::Error> {
    let Prepared { planned, manager, .. } = prepared;
    let script = script(&planned.bridge, *manager);
    if cx.output.json {
        cx.output.json("gpuvm-host-bridge-script", &Script { manager: *manager, script })?;
    } else {
        cx.output.verbatim(&script)?;
    }
    let hint = "what is printed makes the bridge there, without a way back: run it where the host can be reached otherwise; \
                --print-for netplan, networkd, nm or ifupdown prints it for each";
    Ok(HostBridgeError::OtherManager { manager: manager.to_string() }.hint(hint))
}
