//! The reporter of a terminal: shows steps and asks questions.

use super::bar::Bar;
use super::output::{Output, ask, ask_yes, leads_away, report};
use crate::apply::Step;
use gpuvm_ops::error::crashed;
use gpuvm_ops::reporter::{Answer, Asked, Question, Reporter};
use std::io::{self, IsTerminal as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The reporter of a terminal.
pub struct Screen {
    output: Output,
    bar: Mutex<Bar>,
}

impl Screen {
    /// Makes the reporter of a run.
    pub fn new(output: Output) -> Screen {
        Screen { output, bar: Mutex::new(Bar::new(output)) }
    }

    /// The bar; it stays usable after a panic of another thread.
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

    fn detail(&self, text: &str) {
        tracing::info!("{text}");
    }

    fn bytes(&self, through: u64, of: u64) {
        if of == 0 {
            return self.bar().clear();
        }
        let line = self.bar().set(through, of);
        if let Some(line) = line {
            self.output.progress(&line);
        }
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

/// Asks at the terminal, after showing the planned steps.
fn put(asked: Asked<'_>) -> io::Result<Answer> {
    let is_yes = |yes| if yes { Answer::Yes } else { Answer::No };
    let will = |lines: &mut dyn Iterator<Item = String>| {
        lines.for_each(|line| report(&format!("will {line}")));
    };
    let steps = asked.steps.iter().filter(|step| is_shown(step));
    let mut steps = steps.map(Step::to_string);
    let is_terminal = io::stdin().is_terminal();
    match asked.question {
        Question::Name { .. } => will(&mut steps),
        Question::Agree { lines: Some(lines), .. } => will(&mut lines.iter().cloned()),
        Question::Agree { lines: None, .. } => will(&mut steps),
        Question::Losses { name } if is_terminal => {
            let losses = asked.losses.iter().map(|loss| format!("\n  {loss}"));
            let losses: String = losses.collect();
            let what = "gets drives with data on them, and may overwrite it";
            report(&format!("domain `{name}` {what}{losses}"));
        }
        Question::Losses { .. }
        | Question::End { .. }
        | Question::EndCrashed { .. }
        | Question::CutPower { .. } => {}
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
            let question =
                format!("{why}, and domain `{name}` is running. Type its name to end it:");
            is_yes(ask(&question)? == *name)
        }
        Question::EndCrashed { name, .. } => {
            is_yes(ask_yes(&format!("{}; end it and lose that?", crashed(name)))?)
        }
        Question::CutPower { why } => {
            is_yes(ask_yes(&format!("{why}; cut its power, which may lose data?"))?)
        }
    })
}

/// Prints steps that are not done.
pub fn shown(steps: &[Step], output: Output) -> io::Result<()> {
    if output.json {
        return output.json_rows("gpuvm-steps", &steps);
    }
    if steps.is_empty() {
        return output.text("nothing to do");
    }
    let shown = steps.iter().filter(|step| is_shown(step));
    output.text(&shown.map(|step| format!("{step}\n")).collect::<String>())
}

/// Whether a step is shown: bookkeeping is only with `-v`.
fn is_shown(step: &Step) -> bool {
    !step.is_internal() || tracing::enabled!(tracing::Level::INFO)
}
