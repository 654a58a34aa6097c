//! `network create`.

use super::show;
use super::show::{facts, reach};
use crate::apply::Step;
use crate::cli::args::NetworkCreateArgs;
use crate::cli::change::{asking, print_steps, program};
use crate::cli::context::Context;
use crate::cli::diff::Diff;
use crate::cli::error::EXIT_DONE;
use crate::network::{Network, Reach};
use gpuvm_ops::change::Change;
use gpuvm_ops::networks::Answered;
use gpuvm_ops::networks::create::{NetworkPlan, NewNetwork, create, make};
use gpuvm_ops::session::Session;
use serde::Serialize;

/// The result of `network create` and `network undo`.
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

/// What would be done.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Preview<'a> {
    /// The network.
    network: &'a Network,
    /// Its definition.
    xml: String,
    /// The steps.
    steps: &'a [Step],
    /// The losses of guests and the host.
    lost: &'a [String],
    /// Notes.
    notes: &'a [String],
    /// Who would reach whom.
    reach: Option<Reach>,
}

/// Runs the verb.
pub fn run(args: &NetworkCreateArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("network create")?;
    let wanted = wanted(args)?;
    let mut session = Session::begin(cx, asking(&args.lock, (args.yes, false)))?;
    if args.xml || args.diff || args.dry_run {
        preview(args, &session.look(|world| create(world, &wanted))?, cx)?;
        return Ok(EXIT_DONE);
    }
    let Answered { done, network } = make(&mut session, &wanted)?;
    if !done.made {
        cx.output.progress(&format!("network `{}`: already set; nothing to do", args.name));
    }
    answer(network, done.made, cx)?;
    Ok(EXIT_DONE)
}

/// Converts the arguments to a request.
fn wanted(args: &NetworkCreateArgs) -> anyhow::Result<NewNetwork> {
    Ok(NewNetwork {
        name: args.name.clone(),
        kind: args.kind.map(Into::into),
        mode: args.mode.map(Into::into),
        nic: args.nic.clone(),
        bridge: args.bridge.clone(),
        range: args.range,
        dhcp: args.dhcp,
        statics: args.statics.clone(),
        mtu: args.mtu,
        vfs: args.vfs,
        program: args.vfs.map(|_| program()).transpose()?,
        replace: args.replace,
        autostart: !args.no_autostart,
        start: !args.no_start,
    })
}

/// Prints a network as it is after its change.
pub(super) fn answer(network: Network, changed: bool, cx: &Context<'_>) -> anyhow::Result<()> {
    let created = Created { changed, reach: Reach::of(network.kind), network };
    if cx.output.json {
        cx.output.json("gpuvm-network-created", &created)?;
    } else {
        cx.output.text(&(facts(&created.network) + &reach(created.reach)))?;
    }
    Ok(())
}

fn preview(
    args: &NetworkCreateArgs,
    change: &Change<NetworkPlan>,
    cx: &Context<'_>,
) -> anyhow::Result<()> {
    let NetworkPlan { network, notes, before, .. } = &change.about;
    let xml = network.xml();
    if args.xml {
        cx.output.document(&xml)?;
        return Ok(());
    }
    if args.diff {
        Diff::of(&network.name, before.as_deref(), Some(&xml)).print(cx.output)?;
        return Ok(());
    }
    let (reach, steps, lost) = (Reach::of(network.kind), change.steps(), &change.losses[..]);
    if cx.output.json {
        let preview = Preview { network, xml, steps: &steps, lost, notes, reach };
        cx.output.json("gpuvm-network-preview", &preview)?;
        return Ok(());
    }
    would(lost, cx);
    print_steps(&steps, cx)?;
    cx.output.text(&show::reach(reach))?;
    Ok(())
}

/// Prints the losses of guests and the host.
pub(super) fn would(lost: &[String], cx: &Context<'_>) {
    for line in lost {
        cx.output.progress(&format!("this would {line}"));
    }
}
