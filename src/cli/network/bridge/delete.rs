//! `network host-bridge delete`: a bridge that `create` made goes, and its NICs get back what other files say.

use super::super::super::args::HostBridgeDeleteArgs;
use super::super::super::change::{
    agree, print_steps, refuse_unfinished, take_back_on_host, watch,
};
use super::super::super::context::Context;
use super::super::super::error::{Coded, EXIT_DONE};
use super::prepare::SETTLE_S;
use super::{ANSWERED, CREATED, DELETED, guard, paths};
use crate::apply::Step;
use crate::apply::hostnet::{Answer, HostNetStep, Wanted, answer, waiting};
use crate::cli::network::bridge::error::HostBridgeError;
use crate::history::{Entry, History};
use crate::hostnet::netplan::{self, NOTHING};
use crate::hypervisor::none::NoHypervisor;
use anyhow::Context as _;
use gpuvm_ops::networks::this_host as host;
use std::path::Path;

/// Is a deletion that can be done.
struct Deletion {
    /// What is lost, a line each.
    lost: Vec<String>,
    /// The steps.
    steps: Vec<Step>,
}

/// Runs the verb.
pub fn run(args: &HostBridgeDeleteArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded(DELETED)?;
    cx.refuse_elsewhere(DELETED)?;
    let name = &args.name;
    if args.guard {
        guard::leave_terminal();
        take_back_on_host(DELETED, &args.lock, || Ok(plan(args)?.steps), cx)?;
        cx.output.progress(&format!("bridge {name} is gone"));
        return Ok(EXIT_DONE);
    }
    if !args.dry_run && waiting()?.iter().any(|waiting| waiting.bridge == *name) {
        answer(name, Answer::TakeBack, ANSWERED)?;
        cx.output.progress(&format!("{name}: not confirmed, so it is taken back"));
        return Ok(EXIT_DONE);
    }
    let Deletion { lost, steps } = plan(args)?;
    if args.dry_run {
        for line in &lost {
            cx.output.progress(&format!("this would {line}"));
        }
        print_steps(&steps, cx)?;
        return Ok(EXIT_DONE);
    }
    refuse_unfinished(&NoHypervisor, cx.output)?;
    if !args.yes {
        let _reporter = watch(cx.output)?;
        let what = format!("taking bridge {name} away");
        agree(&lost, "take it away?", &what)?;
    }
    let mut words: Vec<String> = DELETED.split(' ').map(str::to_owned).collect();
    words.push(name.clone());
    let numbers =
        [("--confirm-within", args.within.confirm_within), ("--lock-wait", args.lock.lock_wait)];
    words.extend(
        numbers.into_iter().flat_map(|(option, number)| [option.into(), number.to_string()]),
    );
    words.extend(cx.output.quiet.then(|| "--quiet".to_owned()));
    guard::follow(words.into_iter().map(Into::into).collect(), cx)
}

/// Plans it.
fn plan(args: &HostBridgeDeleteArgs) -> anyhow::Result<Deletion> {
    let name = &args.name;
    let (kept, tried) = paths(name);
    // One that holds until the next boot alone is left where a killed change was forgotten (`recover --discard`).
    let (is_kept, was_tried) = (read(&kept)?, read(&tried)?);
    let Some(text) = is_kept.clone().or_else(|| was_tried.clone()) else {
        let hint = "`gpuvm network host-bridge show` says who made which bridge";
        return Err(HostBridgeError::NotOurs {
            name: name.to_string(),
            path: kept.display().to_string(),
        }
        .hint(hint));
    };
    if netplan::made(&text) != Some(name) {
        return Err(HostBridgeError::Edited { path: kept.display().to_string() }
            .hint("take it away by hand, then `netplan apply`"));
    }
    let host = host()?;
    let (links, nics) = (netplan::links(&text), netplan::nics(&text));
    let mut lost: Vec<String> =
        links.iter().rev().map(|link| format!("take {link} away")).collect();
    for held in host.addresses.iter().filter(|held| links.contains(&held.link)) {
        lost.push(format!(
            "take {} with it; {} get what other files say",
            held.ip,
            nics.join(" and ")
        ));
    }
    let ours = |port: &str| links.iter().chain(&nics).any(|own| own == port);
    for port in host.links.iter().filter(|link| link.master.as_ref() == Some(name)) {
        if !ours(&port.name) {
            lost.push(format!(
                "cut off {}, which is a port of it, and the guest behind it",
                port.name
            ));
        }
    }
    let default_route =
        host.routes.iter().any(|route| route.is_default() && route.link.as_ref() == Some(name));
    let within_s = args.within.confirm_within;
    let wanted = Wanted { default_route, wait_s: SETTLE_S.min(within_s), ..Wanted::default() };
    let hidden = || Some(NOTHING.to_owned());
    let steps = [
        HostNetStep::Try {
            what: format!("take bridge {name} away"),
            path: tried.clone(),
            text: NOTHING.to_owned(),
            was: was_tried,
            makes: Vec::new(),
            takes: links,
        },
        HostNetStep::Check(wanted),
        HostNetStep::Await { bridge: name.clone(), within_s },
        HostNetStep::Write { path: kept, text: None, was: is_kept },
        HostNetStep::Write { path: tried, text: None, was: hidden() },
    ];
    let mut steps: Vec<Step> = steps.into_iter().map(Step::HostNet).collect();
    let history = History::of_host()?;
    if let Some(entry) = history.entries.iter().rev().find(|entry| made(entry) == Some(name)) {
        steps.push(history.forget(entry));
    }
    Ok(Deletion { lost, steps })
}

/// The text of a file; none: it is not there.
fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        text => Ok(Some(text.with_context(|| format!("cannot read {}", path.display()))?)),
    }
}

/// The bridge that a change of the host made; none: it made none.
pub fn made(entry: &Entry) -> Option<&String> {
    entry.steps.iter().filter(|_| entry.verb == CREATED).find_map(|step| match step {
        Step::HostNet(HostNetStep::Await { bridge, .. }) => Some(bridge),
        _ => None,
    })
}
