//! `create`: plan, check, define and start a guest, and print its address. It is created completely
//! or not at all.

use super::args::{ChangeArgs, CreateArgs};
use super::change::manner;
use super::codes::refusal_of;
use super::context::Context;
use super::diff::Diff;
use super::error::{EXIT_DONE, EXIT_FAILED, EXIT_FOUND};
use super::output::{Output, ask_yes};
use super::room;
use crate::identity::random_uuid;
use crate::shell::word;
use anyhow::Context as _;
use gpuvm_host::hypervisor::DomainSummary;
use gpuvm_ops::compare;
use gpuvm_ops::create::{self, CreateRequest, Created, Waits};
use gpuvm_ops::session::{Confirm, Manner, Session};
use gpuvm_ops::storage::Keyless;
use nix::sys::signal::Signal;
use std::io::IsTerminal as _;

/// The error code of a guest without any login.
const NO_LOGIN: &str = "storage-no-login";

/// Runs the verb.
pub fn run(args: &CreateArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let made = match made(args, None, cx) {
        Err(error) if asks(&error, cx)? => made(args, Some(Keyless::Accepted), cx),
        made => made,
    };
    made.map_err(|error| room::of_error(error, &(&args.guest.taken).into(), cx))
}

/// Asks at a terminal whether to create a guest without any login.
fn asks(error: &anyhow::Error, cx: &Context<'_>) -> anyhow::Result<bool> {
    let is_it = refusal_of(error).is_some_and(|refusal| refusal.code == NO_LOGIN);
    if !is_it || cx.output.json || !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    Ok(ask_yes(&format!("{error}; make it all the same?"))?)
}

/// Makes the guest, or shows how. `keyless`: the answer about a guest without any login.
fn made(args: &CreateArgs, keyless: Option<Keyless>, cx: &Context<'_>) -> anyhow::Result<u8> {
    if !args.change.dry_run && !args.change.diff {
        cx.refuse_recorded("create")?;
    }
    let mut wanted = args.request()?;
    wanted.seed.keyless = keyless.unwrap_or(wanted.seed.keyless);
    create::refuse_without_libvirt(cx, &wanted)?;
    let existing = if args.if_absent { compare::is_there(cx, &wanted)? } else { None };
    let confirm = if args.accept_data_loss { Confirm::Given } else { Confirm::IfNeeded };
    let ChangeArgs { dry_run, diff, ref lock } = args.change;
    let address_s = if args.no_wait { 0 } else { args.wait };
    let runs = existing.as_ref().is_some_and(|existing| existing.state.is_active());
    if let Some(existing) = existing.as_ref().filter(|_| runs || diff || args.no_start) {
        return there(existing, cx);
    }
    let mut session = Session::begin(cx, Manner { confirm, dry_run, ..manner(lock) })?;
    let starts = |session: &mut Session<'_>, name: &str, wanted: &CreateRequest| {
        let waits = Waits { address_s, seed_s: None };
        let made = create::start_existing(session, cx, name, wanted, waits)?;
        if dry_run { Ok(EXIT_DONE) } else { ended(&made, address_s, cx.output) }
    };
    if let Some(existing) = &existing {
        return starts(&mut session, &existing.name, &wanted);
    }
    if diff {
        let change = session.look(|world| create::create(world, &wanted))?;
        for loss in change.losses.iter().filter(|_| !args.accept_data_loss) {
            cx.output.warning(&format!("{loss}: `create` asks first, or takes --accept-data-loss"));
        }
        let diff = Diff::of(&change.subject, None, Some(change.about.text()));
        return diff.print(cx.output).map(|()| EXIT_DONE).map_err(Into::into);
    }
    if dry_run {
        // It prints the same each time, so no UUID is chosen.
        session.run(|world| create::create(world, &wanted))?;
        return Ok(EXIT_DONE);
    }
    wanted.uuid = Some(random_uuid().context("cannot choose a UUID")?);
    let waits = Waits { address_s, seed_s: args.seed.drop_seed.then_some(args.wait) };
    let made = if args.if_absent {
        match compare::create_if_absent(&mut session, cx, &wanted, waits)? {
            Ok(made) => made,
            // Another has made it since it was looked for.
            Err(existing) if existing.state.is_active() || args.no_start => {
                return there(&existing, cx);
            }
            Err(existing) => return starts(&mut session, &existing.name, &wanted),
        }
    } else {
        create::run(&mut session, cx, &wanted, waits)?
    };
    if wanted.storage.copies_raw() {
        cx.output.progress(&format!(
            "its boot disk is raw: the fastest, and without snapshots (`gpuvm tune {} --convert \
             vda=qcow2` while it is off, or `create --os-disk qcow2`)",
            word(&made.name)
        ));
    }
    ended(&made, address_s, cx.output)
}

/// Prints the answer; a guest without an address in time is not all that was asked for.
fn ended(made: &Created, address_s: u64, output: Output) -> anyhow::Result<u8> {
    answer(made, output)?;
    if let Some(signal) = &made.signal {
        // As a shell has it, 130 for Ctrl-C.
        let number = signal.parse::<Signal>().map_or(0, |signal| signal as i32);
        return Ok(u8::try_from(128 + number).unwrap_or(EXIT_FAILED));
    }
    let is_awaited = made.started && made.mac.is_some() && address_s > 0;
    Ok(if is_awaited && made.ip.is_none() { EXIT_FOUND } else { EXIT_DONE })
}

/// Says that the guest exists as requested.
fn there(existing: &DomainSummary, cx: &Context<'_>) -> anyhow::Result<u8> {
    let DomainSummary { name, state, .. } = existing;
    if cx.output.json {
        let (name, started) = (name.clone(), state.is_active());
        let same = Created { name, started, ..Created::default() };
        cx.output.json("gpuvm-created", &same)?;
    } else {
        cx.output.progress(&format!("domain `{name}` exists as requested; nothing to do"));
    }
    Ok(EXIT_DONE)
}

/// Prints the answer, in the form of `nvidia-vm`.
fn answer(created: &Created, output: Output) -> std::io::Result<()> {
    if output.json {
        return output.json("gpuvm-created", created);
    }
    let Created { name, started, mac, ip, user, .. } = created;
    let mac = mac.as_deref().unwrap_or("-");
    if !started {
        return output.verbatim(&format!("{name}: create mac: {mac}"));
    }
    let shown = ip.map_or("-".to_owned(), |ip| ip.to_string());
    output.verbatim(&format!("{name}: create start mac: {mac} ip: {shown}"))?;
    if let Some(ip) = ip {
        let login = if user.is_some() { "" } else { " --user NAME" };
        output.progress(&format!("{name} runs at {ip}: gpuvm ssh {}{login}", word(name)));
    }
    Ok(())
}
