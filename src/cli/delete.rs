//! `delete`.

use super::args::DeleteArgs;
use super::change::manner;
use super::context::Context;
use super::diff::Diff;
use super::error::EXIT_DONE;
use super::several::{self, Chosen};
use crate::hypervisor::XmlOf;
use gpuvm_ops::delete::{Delete, delete};
use gpuvm_ops::lookup::find;
use gpuvm_ops::session::{Confirm, Manner, Session};

/// Runs the verb.
pub fn run(args: &DeleteArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("delete")?;
    let names: Vec<String> = args.names.iter().chain(&args.domain).cloned().collect();
    let all = Chosen::by_names(&names, Some(&args.only))?;
    several::each(&all, cx, |chosen, cx| one(args, chosen, cx))
}

fn one(args: &DeleteArgs, Chosen { name, uuid }: &Chosen, cx: &Context<'_>) -> anyhow::Result<u8> {
    let wanted = Delete { name: name.clone(), keep_data: args.keep_data };
    let confirm = if args.yes { Confirm::Given } else { Confirm::Ask };
    let mut session = Session::begin(
        cx,
        Manner { confirm, dry_run: args.change.dry_run, ..manner(&args.change.lock) },
    )?;
    session.only(name, uuid.as_deref());
    if args.change.diff && !args.change.dry_run {
        let hypervisor = cx.hypervisor()?;
        let xml = hypervisor.xml(&find(&*hypervisor, name)?.name, XmlOf::Public)?;
        Diff::of(name, Some(&xml), None).print(cx.output)?;
        return Ok(EXIT_DONE);
    }
    let done = session.run(|world| delete(world, &wanted))?;
    if done.made {
        cx.output.progress(&format!("domain `{name}` is deleted"));
        done.change.about.iter().for_each(|line| cx.output.progress(line));
    }
    Ok(EXIT_DONE)
}
