//! `set`.

use super::args::SetArgs;
use super::change::{asking, print_steps};
use super::context::Context;
use super::error::EXIT_DONE;
use super::tuned::{print, print_diffs, print_file};
use crate::apply::Step;
use gpuvm_ops::change::DomainChange;
use gpuvm_ops::pages;
use gpuvm_ops::session::Session;
use gpuvm_ops::set::{explained, look, look_at_file, set};
use gpuvm_ops::source::Source;
use gpuvm_ops::tune::Tuning;

const FORMAT: &str = "gpuvm-set";

/// Runs the verb.
pub fn run(args: &SetArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if args.reserve_pages {
        pages::refuse_elsewhere("set", cx)?;
    }
    let wanted = args.wanted(cx)?;
    if cx.is_recorded() || matches!(wanted.source, Some(Source::File(_))) {
        return file(args, &look_at_file(cx, &wanted)?, cx);
    }
    if args.change.diff {
        let tuning = look(cx, &wanted)?;
        print_diffs(&tuning, cx.output)?;
        tuning.warn_of_saved_state(cx)?;
        return Ok(EXIT_DONE);
    }
    if args.change.dry_run {
        let tuning = look(cx, &wanted)?;
        tuning.refuse_unreadable(cx)?;
        let changes = tuning.changes("set");
        let steps: Vec<Step> = changes.iter().flat_map(DomainChange::steps).collect();
        print(FORMAT, &tuning.domains(args.explain), cx.output, &steps, false)?;
        for loss in tuning.losses().filter(|_| !args.accept_data_loss) {
            cx.output.warning(&format!("{loss}: `set` asks first, or takes --accept-data-loss"));
        }
        tuning.warn_of_saved_state(cx)?;
        if !steps.is_empty() && !cx.output.json {
            print_steps(&steps, cx)?;
        }
        return Ok(EXIT_DONE);
    }
    let mut session = Session::begin(cx, asking(&args.change.lock, (args.yes, false)))?;
    let done = session.run(|world| {
        let change = set(world, &wanted)?;
        if args.yes {
            // It agrees to the change, and not to the loss of data.
            change.refuse_losses()?;
        }
        Ok(change)
    });
    let tuning = done.map_err(|error| explained(error, &wanted))?.change.about;
    for warning in tuning.warnings(cx, args.explain)? {
        cx.output.warning(&warning);
    }
    print(FORMAT, &tuning.domains(args.explain), cx.output, &[], true)?;
    Ok(EXIT_DONE)
}

/// Prints the changed definition of a file or of a recorded host's domain.
fn file(args: &SetArgs, tuning: &Tuning, cx: &Context<'_>) -> anyhow::Result<u8> {
    if args.change.diff {
        print_diffs(tuning, cx.output)?;
    } else if args.change.dry_run {
        print(FORMAT, &tuning.domains(args.explain), cx.output, &[], false)?;
    } else {
        print_file(tuning, args.explain, cx)?;
    }
    Ok(EXIT_DONE)
}
