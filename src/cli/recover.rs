//! `recover`: finishes or undoes what a killed run left.

use super::args::RecoverArgs;
use super::change::Reporter;
use super::context::Context;
use super::error::{EXIT_DONE, hinted, usage};
use crate::apply::{Change, Orphan, Recovery, Step, Way, recover};
use crate::hypervisor::Hypervisor;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Is what is, or would be, done about one change.
#[derive(Debug, Serialize)]
struct Answer {
    /// Its journal.
    journal: PathBuf,
    /// What it was; none: its run was killed before it had planned anything.
    change: Option<Change>,
    /// What is done about it.
    #[serde(flatten)]
    recovery: Recovery,
}

impl Answer {
    /// What a journal calls for.
    fn of(orphan: &Orphan) -> Answer {
        Answer {
            journal: orphan.path().to_owned(),
            change: orphan.story.as_ref().map(|story| story.change.clone()),
            recovery: Recovery::of(orphan.story.as_ref()),
        }
    }

    /// The change in words.
    fn name(&self) -> String {
        match &self.change {
            Some(Change { verb, subject, pid, .. }) => {
                format!("`{verb} {subject}` (process {pid})")
            }
            None => format!("journal {}", self.journal.display()),
        }
    }

    /// What is done, in lines; `done`: it has been.
    fn text(&self, done: bool) -> String {
        let (way, each) = match (self.recovery.way, done) {
            (Way::Forget, _) => ("nothing is left of it to finish or undo", ""),
            (Way::Undo, true) => ("undone", "undone"),
            (Way::Undo, false) => ("would be undone", "undo"),
            (Way::Finish, true) => ("finished", "done"),
            (Way::Finish, false) => ("would be finished", "do"),
        };
        let mut text = format!("{}: {way}\n", self.name());
        for step in &self.recovery.steps {
            writeln!(text, "  {each}: {step}").expect("text");
        }
        text
    }
}

/// Runs the verb.
pub fn run(args: &RecoverArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("recover")?;
    let mut reporter = Reporter::new(cx.output)?;
    let _lock = if args.dry_run { None } else { Some(reporter.lock(&args.lock)?) };
    let mut answers = Vec::new();
    for orphan in Orphan::all()? {
        let answer = Answer::of(&orphan);
        if args.discard {
            discard(args, orphan, &answer, cx)?;
        } else if !args.dry_run {
            match hypervisor(&answer, cx)? {
                Some(hypervisor) => recover(orphan, &*hypervisor, &mut reporter)
                    .map(drop)
                    .map_err(|error| failed(error, &answer))?,
                None => orphan.into_journal().close()?,
            }
        }
        answers.push(answer);
    }
    if cx.output.json {
        cx.output.json(&answers)?;
    } else if answers.is_empty() {
        cx.output.progress("no change was killed half way");
    } else if !args.discard {
        let text: String = answers.iter().map(|answer| answer.text(!args.dry_run)).collect();
        cx.output.text(&text)?;
    }
    Ok(EXIT_DONE)
}

/// The hypervisor of a change; none where nothing is to be done.
fn hypervisor(
    answer: &Answer,
    cx: &Context<'_>,
) -> anyhow::Result<Option<std::rc::Rc<dyn Hypervisor>>> {
    match &answer.change {
        Some(change) if answer.recovery.way != Way::Forget => Ok(Some(cx.hypervisor_of(change)?)),
        _ => Ok(None),
    }
}

/// Says what helps where a change can be neither finished nor undone.
fn failed(error: crate::apply::ApplyError, answer: &Answer) -> anyhow::Error {
    let hint = "remove the cause and run `gpuvm recover` again; `gpuvm recover --discard` forgets the \
                change and leaves what it made";
    let message = format!("{} is neither finished nor undone", answer.name());
    anyhow::Error::from(error).context(super::error::Hinted {
        message,
        hint: hint.into(),
        exit: super::error::EXIT_FAILED,
    })
}

/// Forgets a change, naming what stays.
fn discard(
    args: &RecoverArgs,
    orphan: Orphan,
    answer: &Answer,
    cx: &Context<'_>,
) -> anyhow::Result<()> {
    let stays: Vec<String> = answer.recovery.steps.iter().map(Step::to_string).collect();
    let verb = if answer.recovery.way == Way::Undo { "not undone" } else { "not done" };
    for step in &stays {
        cx.output.warning(&format!("{}: {verb}: {step}", answer.name()));
    }
    if args.dry_run {
        return Ok(());
    }
    if !args.yes {
        return Err(usage(
            format!("forgetting {} is not confirmed", answer.name()),
            "--yes forgets it; without --discard it is finished or undone",
        ));
    }
    orphan.into_journal().close().map_err(|error| hinted(error.to_string(), ""))
}
