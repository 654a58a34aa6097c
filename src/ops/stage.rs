//! A test machine: a hypervisor in memory, with lock and journals in a temporary directory, and a
//! caller that records messages and answers questions.

pub(crate) mod agent;
pub(crate) mod fake;
pub(crate) mod local;
mod networks;
pub(crate) mod storage;

use crate::apply::{DomainStep, FileStep, HostLock, Orphan, Step, recover};
use crate::change::Change;
use crate::error::Result;
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind};
use crate::reporter::{Answer, Asked, Question, Reporter};
use crate::session::{Confirm, Done, Manner, Of, Session};
use crate::watch::Watch;
use crate::world::{Settings, World};
use fake::{Fake, xml};
use std::io;
use std::panic::resume_unwind;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A running guest `g`, whose agent is connected or not, and runs programs of this machine.
pub(crate) fn guest(state: &str) -> Stage {
    let stage = Stage::who_says(Answer::Nobody);
    let channel = format!(
        "<devices><channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0' \
         state='{state}'/></channel></devices></domain>"
    );
    stage.fake.put_xml(&xml("g", UUID).replace("</domain>", &channel), true);
    stage.fake.local.replace(Some(local::LocalAgent::default()));
    stage
}

/// UUID of the domain that is created here.
pub(crate) const UUID: &str = "11111111-2222-4333-8444-555555555555";

/// An action at a message or question.
pub(crate) type Happens = Box<dyn Fn(&str) + Send>;

/// A caller that records messages and answers questions, with an optional action at each.
pub(crate) struct Caller {
    pub(crate) said: Mutex<Vec<String>>,
    pub(crate) answer: Answer,
    /// The action; a question is passed to it as `ask`.
    pub(crate) happens: Mutex<Option<Happens>>,
}

impl Caller {
    /// A caller who gives this answer.
    pub(crate) fn who_says(answer: Answer) -> Arc<Caller> {
        Arc::new(Caller { said: Mutex::default(), answer, happens: Mutex::default() })
    }

    /// Sets the action for every message from now on.
    pub(crate) fn at(&self, happens: impl Fn(&str) + Send + 'static) {
        *self.happens.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(happens));
    }

    pub(crate) fn hear(&self, text: String) {
        let happens = self.happens.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(happens) = &*happens {
            happens(&text);
        }
        self.said.lock().unwrap().push(text);
    }

    /// The number of messages that contain a text.
    pub(crate) fn heard(&self, part: &str) -> usize {
        let is_it = |text: &&String| text.contains(part) && (part != "ask" || *text == "ask");
        self.said.lock().unwrap().iter().filter(is_it).count()
    }
}

impl Reporter for Caller {
    fn progress(&self, text: &str) {
        self.hear(text.to_owned());
    }
    fn detail(&self, text: &str) {
        self.hear(text.to_owned());
    }
    fn warning(&self, text: &str) {
        self.hear(format!("warning: {text}"));
    }
    fn preview(&self, steps: &[Step]) -> io::Result<()> {
        self.hear(format!("preview of {}", steps.len()));
        Ok(())
    }
    fn ask(&self, _: Asked<'_>) -> io::Result<Answer> {
        self.hear("ask".into());
        Ok(self.answer)
    }
}

pub(crate) struct Stage {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) fake: Rc<Fake>,
    pub(crate) caller: Arc<Caller>,
    pub(crate) world: World,
}

impl Stage {
    /// An empty machine with a caller who gives this answer.
    pub(crate) fn who_says(answer: Answer) -> Stage {
        let (dir, fake) = (tempfile::tempdir().unwrap(), Rc::new(Fake::default()));
        let caller = Caller::who_says(answer);
        let state = Some(dir.path().to_owned());
        let settings = Settings { connect: "test:///fake".into(), state, ..Settings::default() };
        let world = World::on(Rc::clone(&fake) as Rc<dyn Hypervisor>, settings, caller.clone());
        Stage { dir, fake, caller, world }
    }

    pub(crate) fn create(&self, confirm: Confirm) -> Result<Done<()>> {
        Session::begin(&self.world, manner(confirm))?.run(|world| self.plan(world))
    }

    /// Plans a guest: a file, its definition, its start.
    pub(crate) fn plan(&self, world: &World) -> Result<Change> {
        world.warning("it is planned");
        let path = self.dir.path().join("note");
        let name = || "a".to_owned();
        let steps = vec![
            Step::File(FileStep::Remember { path, text: Some("x".into()), was: None }),
            Step::Domain(DomainStep::Define { name: name(), xml: xml("a", UUID) }),
            Step::Domain(DomainStep::Start { name: name(), uuid: Some(UUID.into()) }),
        ];
        let question =
            Question::Agree { lines: None, question: "go on?", what: "making it".into() };
        Ok(Change { question: Some(question), ..Change::new("create", "a", steps, ()) })
    }

    pub(crate) fn journals(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("journal")).map_or(0, Iterator::count)
    }

    /// Whether nothing that the change creates exists.
    pub(crate) fn is_untouched(&self) -> bool {
        let note = self.dir.path().join("note").exists();
        self.fake.runs("a").is_none() && !note && self.journals() == 0
    }

    pub(crate) fn recover(&self) {
        let orphans = Orphan::all_in(&self.dir.path().join("journal")).unwrap();
        assert!(orphans.damaged.is_empty(), "{:?}", orphans.damaged.first().map(|one| &one.error));
        let mut watch = Watch::begin(Caller::who_says(Answer::Nobody)).unwrap();
        for orphan in orphans.readable {
            recover(orphan, &*self.fake, &mut watch, &["a".into()]).unwrap();
        }
    }
}

pub(crate) fn manner(confirm: Confirm) -> Manner {
    Manner { confirm, dry_run: false, lock_wait: Duration::ZERO, of: Of::Guests }
}

/// Whether the lock of a directory is free.
pub(crate) fn is_free(state: &Path) -> bool {
    HostLock::take_in(state, Duration::ZERO, |_| std::ops::ControlFlow::Continue(())).is_ok()
}

/// The distance of the calls at which changes are killed: every second one is, and all with
/// `GPUVM_KILLS=all`.
pub(crate) fn kill_step() -> usize {
    if std::env::var("GPUVM_KILLS").is_ok_and(|value| value == "all") { 1 } else { 2 }
}

/// The calls at which a change is killed in turn, until it comes to its end.
pub(crate) fn kills() -> impl Iterator<Item = usize> {
    (0..).step_by(kill_step())
}

/// Ends the test's change as if the program were killed at this point: nothing more is done.
pub(crate) fn kill() {
    resume_unwind(Box::new("killed"));
}

fn failed(doing: &str, kind: HypervisorErrorKind) -> HypervisorError {
    let message = match kind {
        HypervisorErrorKind::NoDomain => "there is none",
        HypervisorErrorKind::NoConnection => "it is gone",
        _ => "it gives no reason",
    };
    HypervisorError { kind, doing: doing.to_owned(), message: message.into() }
}
