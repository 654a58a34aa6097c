//! `network host-bridge delete`: deletes a bridge that `create` made; its NICs get the settings of
//! other files again.

use super::guard::{Guarded, follow};
use super::{ANSWERED, DELETED, HostBridgeError, SETTLE_S, made, paths, refuse_unfinished};
use crate::apply::Step;
use crate::apply::hostnet::{HostNetStep, NetworkVerdict, PlannedNetwork, answer, waiting};
use crate::change::Change;
use crate::error::{Coded as _, Result};
use crate::files::configuration;
use crate::history::History;
use crate::hostnet::netplan::{self, NOTHING};
use crate::network::host::HostNetwork;
use crate::networks::this_host;
use crate::reporter::Question;
use crate::shell::word;
use crate::world::World;

/// A bridge to be deleted.
#[derive(Debug, Clone)]
pub struct DeleteHostBridge {
    /// Its name.
    pub name: String,
    /// How long to wait for confirmation, in seconds.
    pub within_s: u64,
}

/// The current files of a bridge.
pub(super) struct Files {
    pub(super) kept: Option<String>,
    /// The one that is lost at the next boot.
    pub(super) tried: Option<String>,
}

/// Deletes a bridge: one that waits for confirmation at once, any other by the guard after consent.
/// Returns the exit code.
pub fn run(world: &World, wanted: &DeleteHostBridge, guarded: &Guarded) -> Result<u8> {
    let name = &wanted.name;
    if !guarded.dry_run && waiting()?.iter().any(|waiting| waiting.bridge == *name) {
        answer(name, NetworkVerdict::TakeBack, ANSWERED)?;
        world.progress(&format!("{name}: not confirmed, so it is reverted"));
        return Ok(0);
    }
    let change = delete(world, wanted)?;
    if guarded.dry_run {
        for line in &change.losses {
            world.progress(&format!("this would {line}"));
        }
        world.reporter().preview(&change.steps())?;
        return Ok(0);
    }
    refuse_unfinished(world)?;
    follow(world, change.question, guarded)
}

/// Plans the deletion. It reverts an earlier change, so it is not kept in the history itself.
pub fn delete(world: &World, wanted: &DeleteHostBridge) -> Result<Change> {
    let (kept, tried) = paths(&wanted.name);
    let files = Files { kept: configuration(&kept)?, tried: configuration(&tried)? };
    plan(wanted, files, &this_host()?, &world.host_history()?)
}

/// Plans the deletion for the given state of the host.
pub(super) fn plan(
    wanted: &DeleteHostBridge,
    files: Files,
    host: &HostNetwork,
    history: &History,
) -> Result<Change> {
    let DeleteHostBridge { name, within_s } = wanted;
    let (kept, tried) = paths(name);
    // Only the file that holds until the next boot is left if an interrupted change was forgotten
    // (`recover --discard`).
    let Some(text) = files.kept.as_ref().or(files.tried.as_ref()) else {
        let hint = "`gpuvm network host-bridge show` shows who made which bridge";
        let path = kept.display().to_string();
        return Err(HostBridgeError::NotOurs { name: name.clone(), path }.hint(hint));
    };
    if netplan::made(text) != Some(name) {
        return Err(HostBridgeError::Edited { path: kept.display().to_string() }
            .hint("remove it by hand, then `netplan apply`"));
    }
    let links = netplan::links(text);
    let lost = losses(name, &links, &netplan::nics(text), host);
    let default_route =
        host.routes.iter().any(|route| route.is_default() && route.link.as_ref() == Some(name));
    let wait_s = SETTLE_S.min(*within_s);
    let steps = [
        HostNetStep::Try {
            what: format!("remove bridge {name}"),
            path: tried.clone(),
            text: NOTHING.to_owned(),
            was: files.tried,
            makes: Vec::new(),
            takes: links,
        },
        HostNetStep::Check(PlannedNetwork { default_route, wait_s, ..PlannedNetwork::default() }),
        HostNetStep::Await { bridge: name.clone(), within_s: *within_s },
        HostNetStep::Write { path: kept, text: None, was: files.kept },
        HostNetStep::Write { path: tried, text: None, was: Some(NOTHING.to_owned()) },
    ];
    let mut steps: Vec<Step> = steps.into_iter().map(Step::from).collect();
    if let Some(entry) = history.entries.iter().rev().find(|entry| made(entry) == Some(name)) {
        steps.push(history.forget(entry));
    }
    let question = Some(Question::Agree {
        lines: Some(lost.clone()),
        question: "take it away?",
        what: format!("removing bridge {name}"),
    });
    let again = format!("gpuvm {DELETED} {}", word(name));
    Ok(Change { losses: lost, question, again, ..Change::new(DELETED, "", steps, ()) })
}

/// The loss of the host and its guests with a bridge, a line each.
fn losses(name: &str, links: &[String], nics: &[String], host: &HostNetwork) -> Vec<String> {
    let mut lost: Vec<String> =
        links.iter().rev().map(|link| format!("take {link} away")).collect();
    for held in host.addresses.iter().filter(|held| links.contains(&held.link)) {
        let nics = nics.join(" and ");
        lost.push(format!("take {} with it; {nics} get what other files say", held.ip));
    }
    let is_ours = |port: &String| links.contains(port) || nics.contains(port);
    for port in host.links.iter().filter(|link| link.master.as_deref() == Some(name)) {
        if !is_ours(&port.name) {
            let port = &port.name;
            lost.push(format!("cut off {port}, which is a port of it, and the guest behind it"));
        }
    }
    lost
}
