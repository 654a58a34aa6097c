//! `recover`: finishes or undoes what a killed run left.

use super::args::RecoverArgs;
use super::change::{Watch, watch};
use super::codes::Class;
use super::context::Context;
use super::error::{EXIT_DONE, Hinted, around, classed, usage};
use super::output::ask;
use crate::apply::identity::uuid_of;
use crate::apply::{
    ApplyError, Change, Damaged, Journal, Orphan, Orphans, Recovery, Step, Way, apply, recover,
};
use crate::hypervisor::{DomainState, Hypervisor};
use crate::shell::word;
use gpuvm_ops::gone;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::PathBuf;

/// Is what is, or would be, done about one change.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Answer {
    /// Its journal.
    journal: PathBuf,
    /// What it was; none: its run was killed before it had planned anything.
    change: Option<Change>,
    /// What is done about it.
    #[serde(flatten)]
    recovery: Recovery,
    /// Guests that run and are ended by it, once that is confirmed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    runs: Vec<String>,
    /// Why its journal cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<String>,
}

impl Answer {
    /// What a journal calls for.
    fn of(orphan: &Orphan) -> Answer {
        Answer {
            journal: orphan.path().to_owned(),
            change: orphan.story.as_ref().map(|story| story.change.clone()),
            recovery: Recovery::of(orphan.story.as_ref()),
            runs: Vec::new(),
            damaged: None,
        }
    }

    /// What there is to say of a journal that cannot be read.
    fn of_damaged(damaged: &Damaged) -> Answer {
        Answer {
            journal: damaged.path.clone(),
            change: damaged.change.clone(),
            recovery: Recovery::of(None),
            runs: Vec::new(),
            damaged: Some(damaged.error.to_string()),
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
        if let Some(damaged) = &self.damaged {
            return format!("{damaged}\n");
        }
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
        for step in &self.recovery.handed_over {
            writeln!(text, "  left as it is: {step}").expect("text");
        }
        for name in self.runs.iter().filter(|_| !done) {
            writeln!(text, "  domain `{name}` runs, and is ended only by its name: --end {name}")
                .expect("text");
        }
        text
    }
}

/// Runs the verb.
pub fn run(args: &RecoverArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("recover")?;
    let mut reporter = watch(cx.output)?;
    let _lock = if args.dry_run { None } else { Some(reporter.lock(args.lock.wait())?) };
    let Orphans { readable, damaged } = Orphan::all()?;
    let (mut answers, mut failed) = (Vec::new(), Vec::new());
    for orphan in readable {
        let answer = Answer::of(&orphan);
        if args.discard {
            discard(args, orphan, &answer, cx)?;
            answers.push(answer);
            continue;
        }
        match one(args, orphan, answer, &mut reporter, cx) {
            Ok(answer) => answers.push(answer),
            Err(error) => failed.push(error),
        }
    }
    for damaged in damaged {
        let answer = Answer::of_damaged(&damaged);
        match put_away(args, damaged, cx) {
            Ok(()) => answers.push(answer),
            Err(error) => failed.push(error),
        }
    }
    if let Err(error) = leftovers(args, &mut reporter, cx) {
        failed.push(error);
    }
    tell(args, &answers, failed.is_empty(), cx)?;
    let mut failed = failed.into_iter();
    let Some(first) = failed.next() else { return Ok(EXIT_DONE) };
    failed.for_each(|error| cx.output.warning(&super::error::whole(&error)));
    Err(first)
}

/// Names what is left of guests that are gone, and gives it back where that is asked for.
fn leftovers(args: &RecoverArgs, reporter: &mut Watch, cx: &Context<'_>) -> anyhow::Result<()> {
    let all = if args.gone { gone::left(cx)? } else { gone::left_or_warn(cx) };
    for left in all {
        let text = left.text();
        if !args.gone || args.dry_run {
            cx.output.warning(&format!("{text}; `gpuvm recover --gone` gives it back"));
            continue;
        }
        // Once more: the pages of one are counted after those of the one before are given back.
        let Some(left) = gone::left(cx)?.into_iter().find(|now| now.uuid == left.uuid) else {
            continue;
        };
        let hypervisor = cx.hypervisor()?;
        let journal = Journal::begin("recover --gone", &left.name, hypervisor.uri())?;
        apply(&left.steps, &*hypervisor, reporter, Some(journal))?;
        cx.output.progress(&format!("{text}; what could be given back is"));
    }
    Ok(())
}

/// Prints what was, or would be, done; `all`: nothing else was there.
fn tell(
    args: &RecoverArgs,
    answers: &[Answer],
    all: bool,
    cx: &Context<'_>,
) -> std::io::Result<()> {
    if cx.output.json {
        cx.output.json_rows("gpuvm-recover", &answers)?;
    } else if answers.is_empty() && all {
        cx.output.progress("no change was killed half way");
    } else if !args.discard {
        let text: String = answers.iter().map(|answer| answer.text(!args.dry_run)).collect();
        cx.output.text(&text)?;
    }
    Ok(())
}

/// Finishes or undoes one change, or says how.
fn one(
    args: &RecoverArgs,
    orphan: Orphan,
    mut answer: Answer,
    reporter: &mut Watch,
    cx: &Context<'_>,
) -> anyhow::Result<Answer> {
    let Some(hypervisor) = hypervisor(&answer, cx)? else {
        if !args.dry_run {
            orphan.into_journal().close()?;
        }
        return Ok(answer);
    };
    let mut ends = args.end.clone();
    answer.runs = running(&answer, &*hypervisor)?;
    if args.dry_run {
        return Ok(answer);
    }
    for name in answer.runs.iter().filter(|name| !args.end.contains(name)) {
        confirm_end(name, &answer)?;
        ends.push(name.clone());
    }
    let done = recover(orphan, &*hypervisor, reporter, &ends);
    answer.recovery = done.map_err(|error| unfinished(error, &answer))?;
    Ok(answer)
}

/// The guests that run and are ended where a change is undone or finished, by name.
fn running(answer: &Answer, hypervisor: &dyn Hypervisor) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for step in &answer.recovery.steps {
        let (name, uuid) = match (step, answer.recovery.way) {
            (Step::StartDomain { name, uuid }, Way::Undo) => (name, uuid.clone()),
            (Step::DefineDomain { name, xml }, Way::Undo) => (name, uuid_of(xml)),
            // It may have been started again since, and be of use to somebody.
            (
                Step::EndDomain { name, uuid } | Step::ShutDownDomain { name, uuid, .. },
                Way::Finish,
            ) => (name, uuid.clone()),
            _ => continue,
        };
        // Without a UUID, which an older version did not write down, finishing goes by the name.
        let is_it = |theirs: &String| match &uuid {
            Some(uuid) => uuid == theirs,
            None => answer.recovery.way == Way::Finish,
        };
        let row = hypervisor.domain(name)?.filter(|row| is_it(&row.uuid));
        let off = [DomainState::ShutOff, DomainState::Crashed];
        if row.is_some_and(|row| !off.contains(&row.state)) && !names.contains(name) {
            names.push(name.clone());
        }
    }
    Ok(names)
}

/// Asks whether a running guest may be ended, by its name.
fn confirm_end(name: &str, answer: &Answer) -> anyhow::Result<()> {
    let hint = format!(
        "`gpuvm recover --end {name}` ends it; `gpuvm recover --discard` lets it run and \
         forgets the change",
        name = word(name)
    );
    let done = if answer.recovery.way == Way::Finish { "finished" } else { "undone" };
    let change = format!("{} would be {done}", answer.name());
    if !std::io::stdin().is_terminal() {
        return Err(classed(
            Class::Declined,
            format!(
                "{change}, and domain `{name}` runs: that it may be ended is not \
                 confirmed, and there is no terminal to ask at"
            ),
            hint,
        ));
    }
    let question = format!("{change}, and domain `{name}` runs. Type its name to end it:");
    match ask(&question)? == name {
        true => Ok(()),
        false => Err(classed(
            Class::Declined,
            format!("domain `{name}` is not ended: its name was not repeated"),
            hint,
        )),
    }
}

/// Puts a journal away that cannot be read, where that is asked for.
fn put_away(args: &RecoverArgs, damaged: Damaged, cx: &Context<'_>) -> anyhow::Result<()> {
    let said = damaged.error.to_string();
    if !args.discard {
        let what = "a change was killed half way, and what it was cannot be read";
        if args.dry_run {
            cx.output.warning(&format!("{what}: {said}"));
            return Ok(());
        }
        let hint = "`gpuvm recover --discard` puts its journal away, so that others go on";
        return Err(around(damaged.error, format!("{what}: {said}"), hint));
    }
    cx.output.warning(&format!("cannot be read, so nothing of it is undone: {said}"));
    if args.dry_run {
        return Ok(());
    }
    if !args.yes {
        return Err(usage(
            format!("putting journal {} away is not confirmed", damaged.path.display()),
            "--yes puts it away",
        ));
    }
    let away = damaged.put_away()?;
    cx.output.progress(&format!("the journal is kept as {}", away.display()));
    Ok(())
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
fn unfinished(error: ApplyError, answer: &Answer) -> anyhow::Error {
    let hint = "remove the cause and run `gpuvm recover` again; `gpuvm recover --discard` forgets the \
                change and leaves what it made";
    let message = format!("{} is neither finished nor undone", answer.name());
    anyhow::Error::from(error).context(Hinted::around(message, hint))
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
    Ok(orphan.into_journal().close()?)
}
