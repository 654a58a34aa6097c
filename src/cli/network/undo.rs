//! `network undo`: the last change or the deletion of a network is taken back, if nobody has edited it since.

use super::super::args::NetworkUndoArgs;
use super::super::change::{Agreed, agree, journal, print_steps, refuse_unfinished, watch};
use super::super::codes::Class;
use super::super::context::Context;
use super::super::diff::Diff;
use super::super::error::{Coded, EXIT_DONE, classed};
use super::create::answer;
use super::guests::{Guests, told};
use crate::apply::{NetworkStep, Step, apply};
use crate::cli::network::error::NetworkError;
use crate::history::network::{self, NetworkEntry};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::machine::command_there;
use crate::network::Network;
use crate::shell::word;
use gpuvm_ops::domain_history::when;

/// Is an undoing that can be done.
struct Undo {
    /// What is put back.
    entry: NetworkEntry,
    /// The definition now; none: the network is not there.
    now: Option<String>,
    /// What undoes it.
    steps: Vec<Step>,
    /// What guests lose, a line each.
    lost: Vec<String>,
}

/// Runs the verb.
pub fn run(args: &NetworkUndoArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("network undo")?;
    let name = args.name.as_str();
    let mut reporter = watch(cx.output)?;
    let hypervisor = cx.hypervisor()?;
    if let Some(host) = hypervisor.machine().elsewhere() {
        let there = command_there(host, &format!("network undo {}", word(name)));
        let message = format!("changes of network `{name}` are kept on its machine `{host}`");
        return Err(classed(Class::OtherMachine, message, format!("`{there}`")));
    }
    let previews = args.diff || args.dry_run;
    let Undo { entry, now, steps, lost } = plan(&*hypervisor, name, args.force || previews)?;
    if args.diff {
        Diff::of(name, now.as_deref(), Some(&entry.before)).print(cx.output)?;
        return Ok(EXIT_DONE);
    }
    if args.dry_run {
        for line in &lost {
            cx.output.progress(&format!("this would {line}"));
        }
        print_steps(&steps, cx)?;
        return Ok(EXIT_DONE);
    }
    refuse_unfinished(&*hypervisor, cx.output)?;
    let mut agreed = Agreed::default();
    if !lost.is_empty() && !args.yes {
        agree(&lost, "undo it?", &format!("undoing {}", named(&entry)))?;
        agreed = Agreed::to(&steps).and(&lost);
    }
    let _lock = reporter.lock(args.lock.wait())?;
    // Once more: it may have been changed while the question stood.
    let Undo { steps, lost, .. } = plan(&*hypervisor, name, args.force)?;
    agreed.covers(&steps, &lost, &format!("gpuvm network undo {}", word(name)))?;
    let journal = journal("network undo", name, &*hypervisor)?;
    apply(&steps, &*hypervisor, &mut reporter, Some(journal))?;
    cx.output.progress(&format!("{} is undone", named(&entry)));
    answer(name, true, &*hypervisor, cx)?;
    Ok(EXIT_DONE)
}

/// The change in words.
fn named(entry: &NetworkEntry) -> String {
    let what = if entry.after.is_some() { "change" } else { "deletion" };
    format!("the {what} of network `{}` ({})", entry.name, when(entry.at_s))
}

/// Finds what undoes the last change of a network; `force`: also where it was edited since.
fn plan(hypervisor: &dyn Hypervisor, name: &str, force: bool) -> anyhow::Result<Undo> {
    let Some(last) = network::last_of(hypervisor.uri(), name)? else {
        let hint = "`network create --replace` and `network delete` keep what they change; what `create` made goes with \
                    `network delete`";
        return Err(classed(
            Class::NotFound,
            format!("there is no change of network `{name}` to undo"),
            hint,
        ));
    };
    let entry = &last.entry;
    let state = hypervisor.networks().network(name)?;
    let network = state.as_ref().map(super::read).transpose()?;
    if !force && let Some(since) = since(entry, network.as_ref()) {
        let hint = format!(
            "`gpuvm network undo {name} --diff` shows what would be lost; --force undoes it nevertheless",
            name = word(name)
        );
        return Err(
            NetworkError::Edited { since: since.to_string(), change: named(entry) }.hint(hint)
        );
    }
    let named = || name.to_owned();
    let xml = entry.before.clone();
    let (mut steps, mut lost) = (Vec::new(), Vec::new());
    match &state {
        Some(state) => {
            if state.active {
                steps.push(NetworkStep::Stop { name: named() });
                if let Some(network) = &network {
                    lost = told(network, &Guests::read(hypervisor)?.on(network), entry.active);
                }
            }
            let (xml, before) = (xml.clone(), state.xml.clone());
            steps.push(NetworkStep::Redefine { name: named(), xml, before });
        }
        None => steps.push(NetworkStep::Define { name: named(), xml: xml.clone() }),
    }
    if entry.autostart != state.as_ref().is_some_and(|state| state.autostart) {
        steps.push(NetworkStep::Autostart { name: named(), on: entry.autostart });
    }
    if entry.active {
        steps.push(NetworkStep::Start { name: named() });
    }
    steps.push(NetworkStep::Check { name: named(), xml, active: entry.active });
    let mut steps: Vec<Step> = steps.into_iter().map(Step::Network).collect();
    steps.push(last.forget());
    let now = state.map(|state| state.xml);
    Ok(Undo { entry: last.entry, now, steps, lost })
}

/// What somebody did with the network after the change; none: nothing.
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
