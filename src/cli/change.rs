//! What the verbs that change the machine share: the lock, the signals, the telling of steps, `--dry-run`.

use super::args::LockArgs;
use super::bar::Bar;
use super::codes::Class;
use super::context::Context;
use super::error::{classed, usage};
use super::host::capture;
use super::offer;
use super::output::{Output, ask, ask_yes, tell};
use crate::apply::{
    Heard, HostLock, Interrupt, Journal, LockError, Observer, Orphan, Orphans, Recovery, Step,
    StepError, Way,
};
use crate::discover::fabric::links;
use crate::fsroot::FsRoot;
use crate::hypervisor::{Hypervisor, none};
use anyhow::Context as _;
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::IsTerminal as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Tells of steps as progress, and of signals.
pub struct Reporter {
    /// How to print.
    output: Output,
    /// Signals that are held back.
    interrupt: Interrupt,
    /// How far a long step is.
    bar: Bar,
    /// The host's lock, as long as somebody holds it; none: it was never taken.
    lock: Option<Weak<HostLock>>,
    /// How long the caller waits for it.
    wait: Duration,
}

/// How long the undoing of a change waits for another change of the host; then it is undone beside that one.
const UNDO_WAIT: Duration = Duration::from_secs(60);
/// How long a guest that was stopped to be started again waits at the least: what others hold meanwhile they hold for
/// seconds.
const LEAST_WAIT: Duration = Duration::from_secs(5);

impl Reporter {
    /// Holds signals back from now on. It has to come before the hypervisor is opened.
    pub fn new(output: Output) -> anyhow::Result<Reporter> {
        let tell = move |heard, signal: Signal| {
            let name = signal.as_str();
            output.progress(&match heard {
                Heard::First => {
                    format!("{name}: what was begun is undone; another signal ends gpuvm at once")
                }
                Heard::Second => {
                    format!("{name} again: gpuvm ends at once, and `gpuvm recover` does the rest")
                }
            });
        };
        let interrupt = Interrupt::hold(Box::new(tell)).context("cannot hold signals back")?;
        Ok(Reporter { output, interrupt, bar: Bar::new(output), lock: None, wait: Duration::ZERO })
    }

    /// Wipes the bar away, because what was long is over.
    pub fn clear(&mut self) {
        self.bar.clear();
    }

    /// Asks something before anything is begun, so that a signal ends the program as usual.
    pub fn ask<T>(&self, question: impl FnOnce() -> T) -> T {
        question()
    }

    /// Holds signals back from now on, although nothing is begun in this process.
    pub fn hold_at_once(&self) {
        self.interrupt.hold_at_once();
    }

    /// Takes the host's lock.
    pub fn lock(&mut self, args: &LockArgs) -> Result<Rc<HostLock>, LockError> {
        let wait = Duration::from_secs(args.lock_wait);
        self.wait = wait;
        let lock = Rc::new(self.wait_for_lock(wait, |interrupt| interrupt.came().is_some())?);
        self.lock = Some(Rc::downgrade(&lock));
        Ok(lock)
    }

    /// Waits for the host's lock, unless `stops`.
    fn wait_for_lock(
        &self,
        wait: Duration,
        stops: impl Fn(&Interrupt) -> bool,
    ) -> Result<HostLock, LockError> {
        let mut told = false;
        HostLock::take(wait, |holder| {
            if !told {
                let who = holder.map_or(String::new(), |pid| format!(" (process {pid})"));
                self.output.progress(&format!("waiting for another change of this host{who}"));
                told = true;
            }
            if stops(&self.interrupt) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }
}

impl Observer for Reporter {
    fn doing(&mut self, step: &Step) {
        self.bar.clear();
        self.output.progress(&step.to_string());
    }

    fn note(&mut self, text: &str) {
        self.bar.clear();
        self.output.progress(text);
    }

    fn progress(&mut self, through: u64, bytes: u64) {
        self.bar.set(through, bytes);
    }

    fn handed_over(&mut self, step: &Step, why: &StepError) {
        self.bar.clear();
        // No command takes from others what they have by now.
        let others = matches!(why, StepError::InUse { .. } | StepError::OtherDomain { .. });
        let by_hand = step.by_hand().filter(|_| !others);
        let by_hand = by_hand
            .map(|command| format!("; where nobody needs it, by hand: `{command}`"))
            .unwrap_or_default();
        self.output.warning(&format!("{step}: {why}, so it is left as it is{by_hand}"));
        if let Step::BindDevice { bdf, .. } = step {
            let told =
                format!("once it is free, `gpuvm device release {bdf}` gives it to the host");
            self.output.progress(&told);
        }
    }

    fn guard(&mut self, undoes: bool) -> Result<Option<HostLock>, LockError> {
        if self.lock.as_ref().is_none_or(|taken| taken.strong_count() > 0) {
            return Ok(None);
        }
        // A signal has come by now in many cases, and ends nothing any more.
        let (wait, stops) = match undoes {
            true => (UNDO_WAIT, false),
            false => (self.wait.max(LEAST_WAIT), true),
        };
        self.wait_for_lock(wait, |interrupt| stops && interrupt.came().is_some()).map(Some)
    }

    fn undoing(&mut self, step: &Step) {
        self.bar.clear();
        self.output.progress(&format!("undo: {step}"));
    }

    fn interrupted(&mut self) -> Option<String> {
        self.interrupt.came().map(|signal| signal.as_str().to_owned())
    }
}

/// Refuses a change while one of the same hypervisor is half done, because its run was killed.
/// Names what cannot be read of such changes.
pub fn refuse_unfinished(hypervisor: &dyn Hypervisor, output: Output) -> anyhow::Result<()> {
    refuse_unfinished_at(hypervisor.uri(), output)
}

/// Refuses a change while one of the hypervisor at this URI is half done.
pub fn refuse_unfinished_at(uri: &str, output: Output) -> anyhow::Result<()> {
    let orphans = Orphan::all()?;
    if uri != none::URI {
        name_damaged(&orphans, output);
    }
    refuse_these(orphans, uri)
}

/// Names what cannot be read of changes that were killed.
fn name_damaged(orphans: &Orphans, output: Output) {
    for damaged in &orphans.damaged {
        output.warning(&format!(
            "a change was killed half way, and what it was cannot be read: {}; `gpuvm recover \
             --discard` puts its journal away",
            damaged.error
        ));
    }
}

/// Names changes that were killed, for a verb that changes nothing.
pub fn name_unfinished(output: Output) {
    match Orphan::all() {
        Ok(orphans) => {
            name_damaged(&orphans, output);
            for story in orphans.readable.iter().filter_map(|orphan| orphan.story.as_ref()) {
                if Recovery::of(Some(story)).way != Way::Forget {
                    output.warning(&format!(
                        "`{} {}` was killed half way; `gpuvm recover` finishes or undoes it",
                        story.change.verb, story.change.subject
                    ));
                }
            }
        }
        Err(error) => output.warning(&format!("not checked: changes that were killed: {error}")),
    }
}

/// Refuses a change while one of these of the hypervisor at a URI is half done.
fn refuse_these(orphans: Orphans, uri: &str) -> anyhow::Result<()> {
    // What a change of a guest has left of it is seen when the next is planned. What one of the host has left half done is
    // not: it is told by its journal alone.
    if let Some(damaged) = orphans.damaged.first().filter(|_| uri == none::URI) {
        return Err(classed(
            Class::Unfinished,
            format!(
                "a change was killed half way, and what it was cannot be read: {}",
                damaged.error
            ),
            "`gpuvm recover --discard` puts its journal away, so that others go on",
        ));
    }
    for orphan in orphans.readable {
        let Some(story) = &orphan.story else { continue };
        let recovery = Recovery::of(Some(story));
        let ours = story.change.uri == uri;
        if recovery.way != Way::Forget && (ours || recovery.steps.iter().any(Step::is_of_host)) {
            let message = format!(
                "`{} {}` was killed half way (process {})",
                story.change.verb, story.change.subject, story.change.pid
            );
            return Err(classed(
                Class::Unfinished,
                message,
                "`gpuvm recover` finishes or undoes it; with --dry-run it says how",
            ));
        }
    }
    Ok(())
}

/// Begins the journal of a change, unless another is half done.
pub fn journal(verb: &str, name: &str, hypervisor: &dyn Hypervisor) -> anyhow::Result<Journal> {
    refuse_these(Orphan::all()?, hypervisor.uri())?;
    Ok(Journal::begin_on(verb, name, (hypervisor.uri(), hypervisor.identity()))?)
}

/// Names all that goes with a thing of a kind (`domain`), and asks for its name.
pub fn confirm(steps: &[Step], kind: &str, name: &str) -> anyhow::Result<()> {
    for step in steps {
        tell(&format!("will {step}"));
    }
    if !std::io::stdin().is_terminal() {
        return Err(usage(
            format!(
                "deleting {kind} `{name}` is not confirmed, and there is no terminal to ask at"
            ),
            "--yes deletes without asking",
        ));
    }
    if ask(&format!("type the {kind}'s name to delete it:"))? == name {
        return Ok(());
    }
    Err(classed(
        Class::Declined,
        format!("{kind} `{name}` is not deleted: the name was not repeated"),
        "",
    ))
}

/// Names what a change does and asks whether it may; `what` is said where nobody can be asked, or says no: "taking devices
/// from the host".
pub fn agree<T: Display>(steps: &[T], question: &str, what: &str) -> anyhow::Result<()> {
    for step in steps {
        tell(&format!("will {step}"));
    }
    if !std::io::stdin().is_terminal() {
        return Err(usage(
            format!("{what} is not confirmed, and there is no terminal to ask at"),
            "--yes does it without asking",
        ));
    }
    match ask_yes(question)? {
        true => Ok(()),
        false => {
            Err(classed(Class::Declined, format!("{what} was declined; nothing is changed"), ""))
        }
    }
}

/// Keeps what NVML says of NVLinks, before a change takes GPUs from the driver that tells it; `again`: also what was kept
/// since the last boot. What cannot be kept is a warning: nothing depends on it now. Returns whether something was
/// written.
pub fn keep_links(again: bool, output: Output) -> anyhow::Result<bool> {
    let Some(text) = links::to_keep(&FsRoot::live()?, again)? else { return Ok(false) };
    let file = Path::new(links::PATH);
    let dir = file.parent().unwrap_or(Path::new("/"));
    let written = std::fs::create_dir_all(dir)
        .map_err(anyhow::Error::from)
        .and_then(|()| capture::write(file, true, text.as_bytes()));
    if let Err(error) = &written {
        output.warning(&format!("NVLinks are not kept in {}: {error}", file.display()));
    }
    Ok(written.is_ok())
}

/// Is what a person has agreed to; everything where nothing was asked. Between the question and the lock a guest may have been
/// started, another may have got the name, another change may have become the last: what was not shown is not done.
#[derive(Debug, Default)]
pub struct Agreed(Option<BTreeSet<String>>);

impl Agreed {
    /// To these steps.
    pub fn to<'s>(steps: impl IntoIterator<Item = &'s Step>) -> Agreed {
        Agreed(Some(steps.into_iter().map(meant).collect()))
    }

    /// To these lines, too.
    pub fn and(mut self, lines: &[String]) -> Agreed {
        self.0.get_or_insert_default().extend(lines.iter().cloned());
        self
    }

    /// Refuses steps and lines that were not agreed to; `again` is the command that asks anew, where the call is not known.
    pub fn covers<'s>(
        &self,
        steps: impl IntoIterator<Item = &'s Step>,
        lines: &[String],
        again: &str,
    ) -> anyhow::Result<()> {
        let Some(agreed) = &self.0 else { return Ok(()) };
        let steps = steps.into_iter().map(|step| (meant(step), step.to_string()));
        let lines = lines.iter().map(|line| (line.clone(), line.clone()));
        // What ends by itself need not be asked for.
        let new =
            steps.chain(lines).find(|(meant, _)| !meant.is_empty() && !agreed.contains(meant));
        let Some((_, words)) = new else { return Ok(()) };
        // With the caller's own options: without them it might do more.
        let again = offer::instead(&[]).unwrap_or_else(|| again.to_owned());
        Err(classed(
            Class::Changed,
            format!(
                "something has changed since it was asked for, and this was not: {words}; nothing is done"
            ),
            format!("`{again}` asks for what there is to do now"),
        ))
    }
}

/// What a step means, to the last detail that makes a difference to who agrees to it; empty: it makes none.
fn meant(step: &Step) -> String {
    match step {
        Step::ReleaseLease { .. } => String::new(),
        // Its text bears the time.
        Step::Remember { path, text, .. } => format!("{} {}", path.display(), text.is_some()),
        step => serde_json::to_string(step).expect("plain values"),
    }
}

/// Prints steps that are not done.
pub fn print_steps(steps: &[Step], cx: &Context<'_>) -> std::io::Result<()> {
    if cx.output.json {
        return cx.output.json_rows(&steps);
    }
    if steps.is_empty() {
        return cx.output.text("nothing to do");
    }
    cx.output.text(&steps.iter().map(|step| format!("{step}\n")).collect::<String>())
}

/// The path of this program, for a unit that runs it.
pub fn program() -> anyhow::Result<String> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    Ok(program.to_str().context("this program's path is not UTF-8")?.to_owned())
}

/// The steps that bring files that are ours alone to a text or away, by their paths below the root; none for one that is
/// so already.
pub fn file_steps<'p>(
    files: impl IntoIterator<Item = (&'p str, Option<String>)>,
) -> anyhow::Result<Vec<Step>> {
    let mut steps = Vec::new();
    for (path, text) in files {
        let path = Path::new("/").join(path);
        let was = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            was => Some(was.with_context(|| format!("cannot read {}", path.display()))?),
        };
        if text != was {
            steps.push(Step::SetFile { path, text, was });
        }
    }
    Ok(steps)
}
