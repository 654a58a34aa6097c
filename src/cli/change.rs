//! What the verbs that change the machine share: how a change is shown and asked about, and `--dry-run`.

use super::args::LockArgs;
use super::bar::Bar;
use super::context::Context;
use super::output::{Output, ask, ask_yes, leads_away, tell};
use crate::apply::Step;
use anyhow::Context as _;
use gpuvm_ops::host::setting;
use gpuvm_ops::reporter::{Answer, Asked, Question, Reporter};
use gpuvm_ops::session::{Confirm, Manner, Of, Session};
use gpuvm_ops::unfinished;
use std::io::{self, IsTerminal as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The terminal, as whoever is told and asked.
pub struct Screen {
    /// How to print.
    output: Output,
    /// How far a long step is.
    bar: Mutex<Bar>,
}

impl Screen {
    /// The one of a run.
    pub fn new(output: Output) -> Screen {
        Screen { output, bar: Mutex::new(Bar::new(output)) }
    }

    /// The bar; a thread that panicked leaves it as good as it was.
    fn bar(&self) -> MutexGuard<'_, Bar> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reporter for Screen {
    fn progress(&self, text: &str) {
        self.bar().clear();
        self.output.progress(text);
    }

    fn warning(&self, text: &str) {
        self.bar().clear();
        self.output.warning(text);
    }

    fn bytes(&self, through: u64, of: u64) {
        if of == 0 { self.bar().clear() } else { self.bar().set(through, of) }
    }

    fn leads_away(&self, uri: &str) {
        leads_away(uri);
    }

    fn preview(&self, steps: &[Step]) -> io::Result<()> {
        shown(steps, self.output)
    }

    fn ask(&self, asked: Asked<'_>) -> io::Result<Answer> {
        if matches!(asked.question, Question::Name { .. }) {
            asked.losses.iter().for_each(|loss| self.warning(&format!("this will {loss}")));
        }
        put(asked)
    }
}

/// Asks at the terminal, after it was said what is done.
fn put(asked: Asked<'_>) -> io::Result<Answer> {
    let is_yes = |yes| if yes { Answer::Yes } else { Answer::No };
    let will = |lines: &mut dyn Iterator<Item = String>| {
        lines.for_each(|line| tell(&format!("will {line}")));
    };
    let mut steps = asked.steps.iter().map(Step::to_string);
    let is_terminal = io::stdin().is_terminal();
    match asked.question {
        Question::Name { .. } => will(&mut steps),
        Question::Agree { lines: Some(lines), .. } => will(&mut lines.iter().cloned()),
        Question::Agree { lines: None, .. } => will(&mut steps),
        Question::Losses { name } if is_terminal => {
            let losses = asked.losses.iter().map(|loss| format!("\n  {loss}"));
            let losses: String = losses.collect();
            let told = "gets drives with data on them, and may overwrite it";
            tell(&format!("domain `{name}` {told}{losses}"));
        }
        Question::Losses { .. } | Question::End { .. } | Question::CutPower { .. } => {}
    }
    Ok(match asked.question {
        _ if !is_terminal => Answer::Nobody,
        Question::CutPower { .. } if !io::stderr().is_terminal() => Answer::Nobody,
        Question::Name { deed, kind, name } => {
            let verb = deed.words()[0];
            is_yes(ask(&format!("type the {kind}'s name, `{name}`, to {verb} it:"))? == *name)
        }
        Question::Agree { question, .. } => is_yes(ask_yes(question)?),
        Question::Losses { .. } => is_yes(ask_yes("give them to the guest?")?),
        Question::End { why, name } => {
            let question = format!("{why}, and domain `{name}` runs. Type its name to end it:");
            is_yes(ask(&question)? == *name)
        }
        Question::CutPower { why } => {
            is_yes(ask_yes(&format!("{why}; cut its power, which may lose data?"))?)
        }
    })
}

/// How a verb that asks nothing makes its change.
pub fn manner(lock: &LockArgs) -> Manner {
    let lock_wait = lock.wait();
    Manner { confirm: Confirm::Given, dry_run: false, lock_wait, of: Of::Guests }
}

/// How a verb that asks unless --yes is given makes its change.
pub fn asking(lock: &LockArgs, (yes, dry_run): (bool, bool)) -> Manner {
    let confirm = if yes { Confirm::Given } else { Confirm::Ask };
    Manner { confirm, dry_run, ..manner(lock) }
}

impl LockArgs {
    /// How long the lock is waited for.
    pub fn wait(&self) -> Duration {
        Duration::from_secs(self.lock_wait)
    }
}

/// Makes a change that `steps` plans, or says what it would do; the steps that were made.
pub fn change_host(
    verb: &'static str,
    (lock, dry_run): (&LockArgs, bool),
    steps: impl Fn() -> anyhow::Result<Vec<Step>>,
    cx: &Context<'_>,
) -> anyhow::Result<Vec<Step>> {
    cx.refuse_recorded(verb)?;
    cx.refuse_elsewhere(verb)?;
    let mut session = Session::begin(cx, Manner { dry_run, of: Of::Host, ..manner(lock) })?;
    let done = session.run(|_| steps().map(|steps| setting(verb, steps)))?;
    if dry_run {
        return Ok(Vec::new());
    }
    cx.output.progress(if done.made {
        "`gpuvm host undo` takes it back"
    } else {
        "already set; nothing to do"
    });
    Ok(done.change.steps())
}

/// Names changes that were killed, for a verb that changes nothing.
pub fn name_unfinished(output: Output) {
    unfinished::name(|text| output.warning(text));
}

/// Prints steps that are not done.
pub fn print_steps(steps: &[Step], cx: &Context<'_>) -> io::Result<()> {
    shown(steps, cx.output)
}

/// The same.
fn shown(steps: &[Step], output: Output) -> io::Result<()> {
    if output.json {
        return output.json_rows("gpuvm-steps", &steps);
    }
    if steps.is_empty() {
        return output.text("nothing to do");
    }
    output.text(&steps.iter().map(|step| format!("{step}\n")).collect::<String>())
}

/// The path of this program, for a unit that runs it.
pub fn program() -> anyhow::Result<String> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    Ok(program.to_str().context("this program's path is not UTF-8")?.to_owned())
}
