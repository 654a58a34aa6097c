//! `network create`: plan a network, define it, start it, read it back, and say who reaches whom.

use super::super::args::NetworkCreateArgs;
use super::super::change::{Agreed, agree, journal, print_steps, refuse_unfinished, watch};
use super::super::context::Context;
use super::super::diff::Diff;
use super::super::error::EXIT_DONE;
use super::prepare::{Prepared, prepare};
use super::show::{facts, reach};
use super::{find, show};
use crate::apply::{Step, apply};
use crate::hypervisor::Hypervisor;
use crate::network::{Network, Reach};
use crate::shell::word;
use serde::Serialize;

/// Is what `network create` and `network undo` answer.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Created {
    /// The network as it is now.
    #[serde(flatten)]
    network: Network,
    /// Whether anything was changed.
    changed: bool,
    /// Who reaches whom.
    reach: Option<Reach>,
}

/// Is what would be done.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Preview<'a> {
    /// The network.
    network: &'a Network,
    /// Its definition.
    xml: String,
    /// The steps.
    steps: &'a [Step],
    /// What guests and the host would lose.
    lost: &'a [String],
    /// What is worth knowing.
    notes: &'a [String],
    /// Who would reach whom.
    reach: Option<Reach>,
}

/// Runs the verb.
pub fn run(args: &NetworkCreateArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("network create")?;
    let mut reporter = watch(cx.output)?;
    let hypervisor = cx.hypervisor()?;
    if !cx.has_guests_here()? {
        let told = "links, addresses and routes of that host are not known here, so nothing is checked against them";
        cx.output.warning(told);
    }
    let first = prepare(args, &*hypervisor, cx)?;
    for note in &first.notes {
        cx.output.warning(note);
    }
    if args.xml || args.diff || args.dry_run {
        preview(args, &first, cx)?;
        return Ok(EXIT_DONE);
    }
    refuse_unfinished(&*hypervisor, cx.output)?;
    let mut agreed = Agreed::default();
    if !first.lost.is_empty() && !args.yes {
        let what = format!("changing network `{}`", args.name);
        agree(&first.lost, "change it?", &what)?;
        agreed = Agreed::to([]).and(&first.lost);
    }
    let _lock = reporter.lock(args.lock.wait())?;
    // Once more: it may have been changed while the question stood.
    let Prepared { steps, lost, .. } = prepare(args, &*hypervisor, cx)?;
    let again = format!("gpuvm network create {} --replace --dry-run", word(&args.name));
    agreed.covers([], &lost, &again)?;
    if steps.is_empty() {
        cx.output.progress(&format!("network `{}`: already set; nothing to do", args.name));
    } else {
        let journal = journal("network create", &args.name, &*hypervisor)?;
        apply(&steps, &*hypervisor, &mut reporter, Some(journal))?;
    }
    answer(&args.name, !steps.is_empty(), &*hypervisor, cx)?;
    Ok(EXIT_DONE)
}

/// Prints a network as it is now.
pub(super) fn answer(
    name: &str,
    changed: bool,
    hypervisor: &dyn Hypervisor,
    cx: &Context<'_>,
) -> anyhow::Result<()> {
    let (_, network) = find(hypervisor, name)?;
    let created = Created { changed, reach: Reach::of(network.kind), network };
    if cx.output.json {
        cx.output.json("gpuvm-network-created", &created)?;
    } else {
        cx.output.text(&(facts(&created.network) + &reach(created.reach)))?;
    }
    Ok(())
}

/// Prints what would be done.
fn preview(args: &NetworkCreateArgs, first: &Prepared, cx: &Context<'_>) -> anyhow::Result<()> {
    let Prepared { network, notes, before, steps, lost } = first;
    let xml = network.xml();
    if args.xml {
        cx.output.document(&xml)?;
        return Ok(());
    }
    if args.diff {
        Diff::of(&network.name, before.as_deref(), Some(&xml)).print(cx.output)?;
        return Ok(());
    }
    let reach = Reach::of(network.kind);
    if cx.output.json {
        cx.output
            .json("gpuvm-network-preview", &Preview { network, xml, steps, lost, notes, reach })?;
        return Ok(());
    }
    for line in lost {
        cx.output.progress(&format!("this would {line}"));
    }
    print_steps(steps, cx)?;
    cx.output.text(&show::reach(reach))?;
    Ok(())
}
