//! What the verbs that change the machine share: the lock, the signals, the telling of steps, `--dry-run`.

use super::context::Context;
use super::output::Output;
use crate::apply::{HostLock, Interrupt, LockError, Observer, Step};
use anyhow::Context as _;
use std::ops::ControlFlow;
use std::time::Duration;

/// How long another change of this host is waited for. A change holds the lock from the reading of what is taken to
/// the definition of the domain, which takes seconds.
const LOCK_WAIT: Duration = Duration::from_secs(60);

/// Tells of steps as progress, and of signals.
pub struct Reporter {
    /// How to print.
    output: Output,
    /// Signals that are held back.
    interrupt: Interrupt,
}

impl Reporter {
    /// Holds signals back from now on. It has to come before the hypervisor is opened.
    pub fn new(output: Output) -> anyhow::Result<Reporter> {
        let interrupt = Interrupt::hold().context("cannot hold signals back")?;
        Ok(Reporter { output, interrupt })
    }

    /// Asks something while a signal ends the program as usual.
    pub fn ask<T>(&self, question: impl FnOnce() -> T) -> T {
        self.interrupt.let_through(question)
    }

    /// Takes the host's lock.
    pub fn lock(&mut self) -> Result<HostLock, LockError> {
        let mut told = false;
        HostLock::take(LOCK_WAIT, |holder| {
            if !told {
                let who = holder.map_or(String::new(), |pid| format!(" (process {pid})"));
                self.output.progress(&format!("waiting for another change of this host{who}"));
                told = true;
            }
            match self.interrupt.came() {
                None => ControlFlow::Continue(()),
                Some(_) => ControlFlow::Break(()),
            }
        })
    }
}

impl Observer for Reporter {
    fn doing(&mut self, step: &Step) {
        self.output.progress(&step.to_string());
    }

    fn undoing(&mut self, step: &Step) {
        self.output.progress(&format!("undo: {step}"));
    }

    fn interrupted(&mut self) -> Option<String> {
        self.interrupt.came().map(|signal| signal.as_str().to_owned())
    }
}

/// Prints steps that are not done.
pub fn print_steps(steps: &[Step], cx: &Context<'_>) -> std::io::Result<()> {
    if cx.output.json {
        return cx.output.json(&steps);
    }
    if steps.is_empty() {
        return cx.output.text("nothing to do");
    }
    cx.output.text(&steps.iter().map(|step| format!("{step}\n")).collect::<String>())
}
