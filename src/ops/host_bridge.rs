//! Bridges of the host over its own NICs: `network host-bridge create`, `confirm`, `delete`, and
//! their reports. The change itself is made by a separate process, which also reverts it
//! ([`guard`]).

mod create;
pub mod delete;
mod error;
pub mod facts;
pub mod guard;

pub use create::{HostBridgePlan, MadeBridge, NewHostBridge, make, prepare, steps};
pub use error::HostBridgeError;

use crate::apply::hostnet::{NetworkVerdict, answer, waiting};
use crate::error::{Coded as _, Result, usage};
use crate::history::Entry;
use crate::hostnet::netplan;
use crate::hypervisor::none;
use crate::unfinished;
use crate::world::World;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The verb that creates a bridge, as in histories and journals.
pub const CREATED: &str = "network host-bridge create";
/// The verb that deletes a bridge.
pub const DELETED: &str = "network host-bridge delete";
/// How long a confirmed bridge may take to be kept.
const ANSWERED: Duration = Duration::from_secs(10);
/// How long a bridge may take to become ready, in seconds: DHCP, and LACP of a bond.
const SETTLE_S: u64 = 45;

/// Confirms the bridge that waits for confirmation, or the named one of several. Returns its name.
pub fn confirm(name: Option<&str>) -> Result<String> {
    let all = waiting()?;
    let found = match name {
        Some(name) => all.iter().find(|waiting| waiting.bridge == name),
        None if all.len() > 1 => {
            let names: Vec<&str> = all.iter().map(|waiting| waiting.bridge.as_str()).collect();
            let message = format!("{} are waiting for confirmation", names.join(" and "));
            return Err(usage(message, "name one of them"));
        }
        None => all.first(),
    };
    let Some(found) = found else {
        let hint = "`gpuvm network host-bridge show` lists bridges and pending changes; a change \
                    not confirmed in time is reverted";
        return Err(match name {
            Some(name) => HostBridgeError::NotWaiting { name: name.to_owned() }.hint(hint),
            None => HostBridgeError::NoneWaiting.hint(hint),
        });
    };
    let bridge = found.bridge.clone();
    if !answer(&bridge, NetworkVerdict::Keep, ANSWERED)? {
        return Err(HostBridgeError::NotKept { bridge, seconds: ANSWERED.as_secs().to_string() }
            .hint("`gpuvm network host-bridge show` shows what became of it"));
    }
    Ok(bridge)
}

/// Refuses to begin while another change of the host is unfinished.
pub fn refuse_unfinished(world: &World) -> Result<()> {
    unfinished::refuse(none::URI, world.state(), |text| world.warning(text))
}

/// The bridge that the last change of the host created; `None` if it did something else.
pub fn last_made(world: &World) -> Result<Option<String>> {
    let history = world.host_history()?;
    Ok(history.entries.last().and_then(made).map(str::to_owned))
}

/// The bridge that a change of the host created, if any.
fn made(entry: &Entry) -> Option<&str> {
    use crate::apply::{HostStep, Step, hostnet::HostNetStep};
    entry.steps.iter().filter(|_| entry.verb == CREATED).find_map(|step| match step {
        Step::Host(HostStep::HostNet(HostNetStep::Await { bridge, .. })) => Some(bridge.as_str()),
        _ => None,
    })
}

/// The paths of a bridge's permanent file and of the one that is lost at the next boot.
fn paths(name: &str) -> (PathBuf, PathBuf) {
    let at = |dir: &str| Path::new("/").join(dir).join(netplan::file(name));
    (at(netplan::KEPT), at(netplan::TRIED))
}

#[cfg(test)]
mod tests;
