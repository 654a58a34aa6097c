//! Changes of the host itself that `host undo` takes back: each is kept, as those of a domain are, until then.

use crate::apply::text::TextStep;
use crate::apply::{Journal, Step, Transaction, apply, now_s};
use crate::cli::args::{ConfirmWithinArgs, HostBridgeDeleteArgs, HostUndoArgs, LockArgs};
use crate::cli::change::{Agreed, Watch, agree, print_steps, refuse_unfinished, watch};
use crate::cli::codes::Class;
use crate::cli::context::Context;
use crate::cli::error::{EXIT_DONE, classed, hinted};
use crate::cli::network::{delete_bridge, made_bridge};
use crate::discover::tuning::value;
use crate::fsroot::FsRoot;
use crate::history::{Entry, History};
use crate::hypervisor::none::{NoHypervisor, URI};
use anyhow::Context as _;
use gpuvm_ops::domain_history::{boot, when};

/// How long a confirmation of undoing is waited for, in seconds.
const CONFIRM_S: u64 = 120;

/// Makes a change that `steps` plans, or says what it would do; the steps that were made.
pub fn change(
    verb: &str,
    (lock, dry_run): (&LockArgs, bool),
    steps: impl Fn() -> anyhow::Result<Vec<Step>>,
    cx: &Context<'_>,
) -> anyhow::Result<Vec<Step>> {
    cx.refuse_recorded(verb)?;
    cx.refuse_elsewhere(verb)?;
    if dry_run {
        print_steps(&steps()?, cx)?;
        return Ok(Vec::new());
    }
    let mut reporter = watch(cx.output)?;
    let _lock = reporter.lock(lock.wait())?;
    refuse_unfinished(&NoHypervisor, cx.output)?;
    let steps = steps()?;
    if steps.is_empty() {
        cx.output.progress("already set; nothing to do");
        return Ok(steps);
    }
    let history = History::of_host()?;
    let now = now_s();
    let mut entry = history.next(verb, URI, "", now, String::new());
    entry.what = steps.iter().map(Step::to_string).collect();
    entry.boot = boot()?;
    entry.steps.clone_from(&steps);
    let journal = Journal::begin(verb, "", URI)?;
    let mut transaction = Transaction::new(&NoHypervisor, &mut reporter, Some(journal));
    transaction.run(&[history.remember(&entry, None)])?;
    transaction.run(&steps)?;
    transaction.close()?;
    cx.output.progress("`gpuvm host undo` takes it back");
    Ok(steps)
}

/// Makes a change that takes an earlier one back, and so is not kept itself.
pub fn take_back(
    verb: &str,
    lock: &LockArgs,
    steps: impl Fn() -> anyhow::Result<Vec<Step>>,
    cx: &Context<'_>,
) -> anyhow::Result<()> {
    let mut reporter = watch(cx.output)?;
    let _lock = reporter.lock(lock.wait())?;
    refuse_unfinished(&NoHypervisor, cx.output)?;
    through(verb, &steps()?, &mut reporter)
}

/// Does steps, or none of them.
fn through(verb: &str, steps: &[Step], reporter: &mut Watch) -> anyhow::Result<()> {
    let journal = Journal::begin(verb, "", URI)?;
    Ok(apply(steps, &NoHypervisor, reporter, Some(journal))?)
}

/// Runs `host undo`.
pub fn undo(args: &HostUndoArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("host undo")?;
    cx.refuse_elsewhere("host undo")?;
    if let Some(bridge) = last_bridge()?.filter(|_| !args.discard) {
        let (lock, yes, dry_run) = (args.lock.clone(), args.yes, args.dry_run);
        let within = ConfirmWithinArgs { confirm_within: CONFIRM_S };
        let asked = HostBridgeDeleteArgs { name: bridge, within, yes, dry_run, guard: false, lock };
        return delete_bridge(&asked, cx);
    }
    let plan = || back(args.discard);
    if args.dry_run {
        print_steps(&plan()?.1, cx)?;
        return Ok(EXIT_DONE);
    }
    let mut reporter = watch(cx.output)?;
    refuse_unfinished(&NoHypervisor, cx.output)?;
    let mut agreed = Agreed::default();
    if !args.yes {
        let (entry, steps) = plan()?;
        agree(&steps, "undo it?", &format!("undoing {}", named(&entry)))?;
        agreed = Agreed::to(&steps);
    }
    let _lock = reporter.lock(args.lock.wait())?;
    // Once more: it may have been changed while the question stood.
    let (entry, steps) = plan()?;
    agreed.covers(&steps, &[], "gpuvm host undo")?;
    through("host undo", &steps, &mut reporter)?;
    let end = if args.discard { "forgotten; the host stays as it is" } else { "undone" };
    cx.output.progress(&format!("{} is {end}", named(&entry)));
    Ok(EXIT_DONE)
}

/// The bridge that the last change of the host made; none: it did something else. Taking it back may cut a login off, and
/// has its own way.
fn last_bridge() -> anyhow::Result<Option<String>> {
    let history = History::of_host()?;
    Ok(history.entries.last().and_then(made_bridge).cloned())
}

/// A change in words.
fn named(entry: &Entry) -> String {
    format!("change {} of the host ({}, {})", entry.number, entry.verb, when(entry.at_s))
}

/// The last change of the host, and what takes it back, or only forgets it.
fn back(discard: bool) -> anyhow::Result<(Entry, Vec<Step>)> {
    let history = History::of_host()?;
    let Some(entry) = history.entries.last() else {
        let hint = "`gpuvm host files` and `gpuvm host tuning` say how it is";
        return Err(classed(Class::NotFound, "there is no change of the host to undo", hint));
    };
    let root = FsRoot::live()?;
    let mut steps = Vec::new();
    for step in entry.undo("", false, &boot()?, false) {
        match step {
            _ if discard => {}
            Step::EditText(edit) => steps.push(text_back(edit, entry)?),
            Step::Set(mut setting) => {
                // What somebody else has set since stays.
                setting
                    .was
                    .retain(|path, was| value(&root, path).ok().flatten().as_ref() == Some(was));
                setting.to.retain(|path, _| setting.was.contains_key(path));
                if !setting.to.is_empty() {
                    steps.push(Step::Set(setting));
                }
            }
            step => steps.push(step),
        }
    }
    steps.push(history.forget(entry));
    Ok((entry.clone(), steps))
}

/// The step that takes the change of a text back, in the text that is there now.
fn text_back(edit: TextStep, entry: &Entry) -> anyhow::Result<Step> {
    let failed = || format!("cannot read {}", edit.path.display());
    let now = std::fs::read_to_string(&edit.path).with_context(failed)?;
    let Some(back) = edit.back(&now) else {
        let path = edit.path.display();
        let message = format!(
            "{path} was edited since {}, and what that made is not there any more: {}",
            named(entry),
            edit.what
        );
        let hint = "`gpuvm host undo --discard` forgets the change and leaves the file as it is";
        return Err(hinted(message, hint));
    };
    let what = format!("take back: {}", edit.what);
    Ok(Step::EditText(TextStep { before: now, after: back, what, path: edit.path }))
}
