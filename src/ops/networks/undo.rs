//! `network undo`: reverts the last change or the deletion of a network, if it has not been edited
//! since.

use super::guests::{Guests, effects_on_guests};
use super::{Answered, NetworkError, answered, read};
use crate::apply::{NetworkStep, Step};
use crate::change::{Change, Hold};
use crate::domain_history::when;
use crate::error::{Class, Coded as _, Result, classed};
use crate::history::network::{self, NetworkEntry};
use crate::hypervisor::machine::command_there;
use crate::hypervisor::network::NetworkState;
use crate::network::Network;
use crate::reporter::Question;
use crate::session::Session;
use crate::shell::word;
use crate::world::World;

/// The plan of an undo.
#[derive(Debug)]
pub struct NetworkUndo {
    /// The history entry that is restored.
    pub entry: NetworkEntry,
    /// The definition now; `None` if the network does not exist.
    pub now: Option<String>,
}

/// The change in words.
pub fn named(entry: &NetworkEntry) -> String {
    let what = if entry.after.is_some() { "change" } else { "deletion" };
    format!("the {what} of network `{}` ({})", entry.name, when(entry.at_s))
}

/// Reverts the last change of a network.
pub fn take_back(
    session: &mut Session<'_>,
    name: &str,
    force: bool,
) -> Result<Answered<NetworkUndo>> {
    answered(session, name, |world| undo(world, name, force), |_| None)
}

/// Plans to undo the last change of a network; `force`: even if it was edited since.
pub fn undo(world: &World, name: &str, force: bool) -> Result<Change<NetworkUndo>> {
    let hypervisor = &*world.hypervisor()?;
    if let Some(host) = hypervisor.machine().elsewhere() {
        let there = command_there(host, &format!("network undo {}", word(name)));
        let message = format!("changes of network `{name}` are kept on its machine `{host}`");
        return Err(classed(Class::OtherMachine, message, format!("`{there}`")));
    }
    let kept = network::directory(world.state());
    let Some(last) = network::last_of(&kept, hypervisor.uri(), name)? else {
        let hint = "`network create --replace` and `network delete` keep what they change; what \
                    `create` made goes with `network delete`";
        let message = format!("network `{name}` has no change to undo");
        return Err(classed(Class::NotFound, message, hint));
    };
    let entry = &last.entry;
    let state = hypervisor.networks().network(name)?;
    let network = state.as_ref().map(read).transpose()?;
    if !force && let Some(since) = since(entry, network.as_ref()) {
        let hint = format!(
            "`gpuvm network undo {name} --diff` shows what would be lost; --force undoes it anyway",
            name = word(name)
        );
        return Err(NetworkError::Edited { since, change: named(entry) }.hint(hint));
    }
    let is_up = |state: &&NetworkState| state.active;
    let lost = match (network, state.as_ref().filter(is_up)) {
        (Some(network), Some(_)) => {
            effects_on_guests(&network, &Guests::read(hypervisor)?.on(&network), entry.active)
        }
        _ => Vec::new(),
    };
    let mut steps: Vec<Step> =
        steps_of(entry, state.as_ref()).into_iter().map(Step::from).collect();
    steps.push(last.forget());
    let question = (!lost.is_empty()).then(|| Question::Agree {
        lines: Some(lost.clone()),
        question: "undo it?",
        what: format!("undoing {}", named(entry)),
    });
    let again = format!("gpuvm network undo {}", word(name));
    let about = NetworkUndo { entry: last.entry, now: state.map(|state| state.xml) };
    let change = Change::new("network undo", name, steps, about);
    Ok(Change { losses: lost, question, again, hold: Hold::Answered, ..change })
}

/// The steps that restore a network.
fn steps_of(entry: &NetworkEntry, state: Option<&NetworkState>) -> Vec<NetworkStep> {
    let named = || entry.name.clone();
    let xml = entry.before.clone();
    let mut steps = Vec::new();
    match state {
        Some(state) => {
            if state.active {
                steps.push(NetworkStep::Stop { name: named() });
            }
            let (xml, before) = (xml.clone(), state.xml.clone());
            steps.push(NetworkStep::Redefine { name: named(), xml, before });
        }
        None => steps.push(NetworkStep::Define { name: named(), xml: xml.clone() }),
    }
    if entry.autostart != state.is_some_and(|state| state.autostart) {
        steps.push(NetworkStep::Autostart { name: named(), on: entry.autostart });
    }
    if entry.active {
        steps.push(NetworkStep::Start { name: named() });
    }
    steps.push(NetworkStep::Check { name: named(), xml, active: entry.active });
    steps
}

/// Changes of the network by others after the change; `None` if there are none.
fn since(entry: &NetworkEntry, now: Option<&Network>) -> Option<String> {
    let name = &entry.name;
    match (&entry.after, now) {
        (None, None) => None,
        (None, Some(_)) => Some(format!("network `{name}` was made again")),
        (Some(_), None) => Some(format!("network `{name}` was deleted by another program")),
        (Some(after), Some(now)) => {
            let same = Network::read(after).is_ok_and(|after| after.differences(now).is_empty());
            (!same).then(|| format!("network `{name}` was edited"))
        }
    }
}
