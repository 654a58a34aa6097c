//! `network host-bridge`: bridges of the host over its own NICs.

pub(in crate::cli) mod create;
mod delete;
pub mod error;
mod guard;
mod prepare;
pub(in crate::cli) mod show;

pub use delete::{made, run as delete};

use super::super::args::{HostBridgeConfirmArgs, HostBridgeVerb};
use super::super::context::Context;
use super::super::error::{Coded, EXIT_DONE, usage};
use crate::apply::hostnet::{Answer, answer, waiting};
use crate::cli::network::bridge::error::HostBridgeError;
use crate::hostnet::netplan;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The verb that makes one, as histories and journals name it.
const CREATED: &str = "network host-bridge create";
/// The verb that takes one away.
const DELETED: &str = "network host-bridge delete";
/// How long an answered wait may take to end.
const ANSWERED: Duration = Duration::from_secs(10);

/// Runs the verb.
pub fn run(verb: &HostBridgeVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        HostBridgeVerb::Create(args) => create::run(args, cx),
        HostBridgeVerb::Confirm(args) => confirm(args, cx),
        HostBridgeVerb::Show(args) => show::run(args, cx),
        HostBridgeVerb::Delete(args) => delete::run(args, cx),
    }
}

/// Runs `confirm`.
fn confirm(args: &HostBridgeConfirmArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("network host-bridge confirm")?;
    cx.refuse_elsewhere("network host-bridge confirm")?;
    let all = waiting()?;
    let found = match &args.name {
        Some(name) => all.iter().find(|waiting| waiting.bridge == *name),
        None if all.len() > 1 => {
            let names: Vec<&str> = all.iter().map(|waiting| waiting.bridge.as_str()).collect();
            let message = format!("{} wait to be confirmed", names.join(" and "));
            return Err(usage(message, "name one of them"));
        }
        None => all.first(),
    };
    let Some(found) = found else {
        let hint = "`gpuvm network host-bridge show` says what there is; what was not confirmed in time is taken back";
        return Err(match &args.name {
            Some(name) => HostBridgeError::NotWaiting { name: name.to_string() }.hint(hint),
            None => HostBridgeError::NoneWaiting.hint(hint),
        });
    };
    if !answer(&found.bridge, Answer::Keep, ANSWERED)? {
        return Err(HostBridgeError::NotKept {
            bridge: found.bridge.to_string(),
            seconds: ANSWERED.as_secs().to_string(),
        }
        .hint("`gpuvm network host-bridge show` says what became of it"));
    }
    cx.output.progress(&format!("{}: confirmed", found.bridge));
    Ok(EXIT_DONE)
}

/// Where the file of a bridge is that is kept, and where the one is that the next boot forgets.
fn paths(name: &str) -> (PathBuf, PathBuf) {
    let at = |dir: &str| Path::new("/").join(dir).join(netplan::file(name));
    (at(netplan::KEPT), at(netplan::TRIED))
}
