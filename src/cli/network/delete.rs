//! `network delete`: a network goes, after the guests on it are named.

use super::super::args::NetworkDeleteArgs;
use super::super::change::{Agreed, confirm, journal, print_steps, refuse_unfinished, watch};
use super::super::context::Context;
use super::super::error::EXIT_DONE;
use super::find;
use super::guests::{Guests, told};
use crate::apply::{NetworkStep, Step, apply};
use crate::history;
use crate::hypervisor::Hypervisor;
use crate::network::Kind;
use crate::shell::word;

/// Is a deletion that can be done.
struct Deletion {
    /// Its steps.
    steps: Vec<Step>,
    /// What becomes of the guests, a line each.
    guests: Vec<String>,
    /// The card whose virtual functions stay.
    card: Option<String>,
}

/// Runs the verb.
pub fn run(args: &NetworkDeleteArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("network delete")?;
    let name = args.name.as_str();
    let mut reporter = watch(cx.output)?;
    let hypervisor = cx.hypervisor()?;
    let Deletion { steps, guests, card } = plan(&*hypervisor, name)?;
    if args.dry_run {
        for line in &guests {
            cx.output.progress(&format!("this would {line}"));
        }
        print_steps(&steps, cx)?;
        return Ok(EXIT_DONE);
    }
    refuse_unfinished(&*hypervisor, cx.output)?;
    let mut agreed = Agreed::default();
    if !args.yes {
        for line in &guests {
            cx.output.warning(&format!("this will {line}"));
        }
        confirm(&steps, "network", name)?;
        agreed = Agreed::to(&steps).and(&guests);
    }
    let _lock = reporter.lock(args.lock.wait())?;
    // Once more: it may have been changed while the question stood.
    let Deletion { steps, guests, .. } = plan(&*hypervisor, name)?;
    agreed.covers(&steps, &guests, &format!("gpuvm network delete {}", word(name)))?;
    let journal = journal("network delete", name, &*hypervisor)?;
    apply(&steps, &*hypervisor, &mut reporter, Some(journal))?;
    // One that was defined nowhere is gone for good.
    let is_kept = steps.iter().any(|step| matches!(step, Step::Remember { text: Some(_), .. }));
    let again = match is_kept {
        true => format!("; `gpuvm network undo {name}` makes it again", name = word(name)),
        false => String::new(),
    };
    cx.output.progress(&format!("network `{name}` is deleted{again}"));
    if let Some(card) = card {
        let hint = format!("`gpuvm nic vfs {card} --count 0 --at-boot` takes them away");
        cx.output.progress(&format!("the virtual functions of {card} stay: {hint}"));
    }
    Ok(EXIT_DONE)
}

/// The steps of a deletion.
fn plan(hypervisor: &dyn Hypervisor, name: &str) -> anyhow::Result<Deletion> {
    let (state, network) = find(hypervisor, name)?;
    let guests = told(&network, &Guests::read(hypervisor)?.on(&network), false);
    let kept = match state.persistent {
        true => history::network::remember(&state, hypervisor, None)?,
        false => Vec::new(),
    };
    let mut steps = Vec::new();
    let named = || name.to_owned();
    if state.autostart {
        steps.push(NetworkStep::Autostart { name: named(), on: false });
    }
    if state.active {
        steps.push(NetworkStep::Stop { name: named() });
    }
    if state.persistent {
        steps.push(NetworkStep::Undefine { name: named(), xml: state.xml });
    }
    let card = if network.kind == Kind::Sriov { network.nics.first().cloned() } else { None };
    let steps = kept.into_iter().chain(steps.into_iter().map(Step::Network)).collect();
    Ok(Deletion { steps, guests, card })
}
