//! The common procedure of every change: refuse if others are unfinished, plan, ask, plan again
//! with the host's lock, write the journal, perform, keep for `undo`, and read back. The plan alone
//! decides the actions.

mod agreed;

pub use agreed::Agreed;

use crate::apply::{HostLock, Journal, Observer as _, Step, Transaction};
use crate::change::{Change, Hold, Part};
use crate::domain_history::{change_domain, change_host, read_back, refuse_unreadable};
use crate::error::{Class, Error, Result, classed, crashed};
use crate::gpu_health;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::none::{self, NoHypervisor};
use crate::later::refuse_replaceable;
use crate::links;
use crate::lookup::find;
use crate::reporter::{Answer, Asked, Question};
use crate::shell::word;
use crate::unfinished;
use crate::watch::{Keeps, Watch};
use crate::world::World;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Whether consent to a change is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirm {
    /// The caller has given consent.
    Given,
    /// Plan without the lock first, and ask.
    Ask,
    /// Plan with the lock, and release it if there is something to ask.
    IfNeeded,
}

/// The scope of a change, for the journal and for conflicts with unfinished changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Guests of the hypervisor.
    Guests,
    /// The host alone.
    Host,
    /// The host; the hypervisor, if there is one, is queried for the holders of devices.
    HostWithGuests,
}

/// How to make a change.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Whether consent is requested.
    pub confirm: Confirm,
    /// Whether its steps are only shown.
    pub dry_run: bool,
    /// How long to wait for another change of the host.
    pub lock_wait: Duration,
    /// Its scope.
    pub of: Of,
}

/// A change that was made, or only shown.
#[derive(Debug)]
pub struct Done<T> {
    /// The last plan.
    pub change: Change<T>,
    /// Whether something was done: it was not only shown, and there was something to do.
    pub made: bool,
}

/// A change whose steps are done but which is not closed yet: a signal still undoes it.
pub struct Running<'r, 't> {
    /// The steps.
    pub transaction: &'r mut Transaction<'t>,
    /// The hypervisor they were done on.
    pub hypervisor: &'r dyn Hypervisor,
    /// Whether a signal only ends the wait, and completed steps stay.
    keeps: Keeps,
}

impl Running<'_, '_> {
    /// From now on a signal ends the wait, and undoes nothing.
    pub fn keep(&self) {
        self.keeps.set(true);
    }
}

/// One run that changes something.
pub struct Session<'w> {
    world: &'w World,
    manner: Manner,
    /// Signals, the lock, and the reporter.
    watch: Watch,
    said: BTreeSet<String>,
    /// A domain by its name, and the UUID without which nothing is changed.
    only: Option<(String, String)>,
}

impl<'w> Session<'w> {
    /// Begins a session: signals are held back once something is done. Must be called before the
    /// hypervisor is opened.
    pub fn begin(world: &'w World, manner: Manner) -> Result<Session<'w>> {
        let watch = Watch::begin(world.reporter().clone())?;
        let watch = watch.with_state(world.settings.state.clone());
        Ok(Session { world, manner, watch, said: BTreeSet::new(), only: None })
    }

    /// Refuses every change unless the domain of this name has this UUID at that moment; `None` if
    /// any has.
    pub fn only(&mut self, name: &str, uuid: Option<&str>) {
        self.only = uuid.map(|uuid| (name.to_owned(), uuid.to_owned()));
    }

    /// Refuses another domain than the requested one.
    fn refuse_another(&self) -> Result<()> {
        let Some((name, uuid)) = &self.only else { return Ok(()) };
        let row = find(&*self.world.hypervisor()?, name)?;
        if row.uuid.eq_ignore_ascii_case(uuid) {
            return Ok(());
        }
        let message = format!("domain `{name}` has UUID {}, not {uuid}", row.uuid);
        let hint = format!("`gpuvm show {}` shows what it is", word(name));
        Err(classed(Class::Changed, message, hint))
    }

    /// Plans a change, for a caller that shows it itself, and reports its warnings.
    pub fn look<T, E>(
        &mut self,
        plan: impl Fn(&World) -> Result<Change<T>, E>,
    ) -> Result<Change<T>, E> {
        let change = plan(self.world)?;
        self.warn(&change);
        Ok(change)
    }

    /// Refuses a change of domains whose history cannot be read.
    fn refuse_unreadable<T>(&self, change: &Change<T>) -> Result<()> {
        refuse_replaceable(&change.steps())?;
        for part in &change.parts {
            if let Part::Domain(change) = part {
                refuse_unreadable(change, self.world)?;
            }
        }
        Ok(())
    }

    /// Makes a change; see the module documentation.
    pub fn run<T, E: From<Error>>(
        &mut self,
        plan: impl Fn(&World) -> Result<Change<T>, E>,
    ) -> Result<Done<T>, E> {
        let none = None::<fn(&mut Running<'_, '_>, &Change<T>) -> Result<(), E>>;
        Ok(self.through(plan, none)?.0)
    }

    /// Makes a change and performs an action before it is closed, without the lock except for
    /// [`Hold::Answered`]. If that fails because of a signal, everything is undone
    /// ([`Transaction::go_on`]).
    pub fn run_and<T, R, E: From<Error>>(
        &mut self,
        plan: impl Fn(&World) -> Result<Change<T>, E>,
        then: impl FnOnce(&mut Running<'_, '_>, &Change<T>) -> Result<R, E>,
    ) -> Result<(Done<T>, Option<R>), E> {
        self.through(plan, Some(then))
    }

    /// Plans a change without the lock and discards the plan, unless it is planned so anyway:
    /// errors in the request are reported at once, and not only after the lock's holder is done.
    /// Must be called before [`Session::run`].
    pub(crate) fn check_first<T>(
        &mut self,
        plan: impl Fn(&World) -> Result<Change<T>>,
    ) -> Result<()> {
        if self.manner.confirm == Confirm::Ask || self.manner.dry_run {
            return Ok(());
        }
        self.refuse_unfinished()?;
        plan(self.world).map(drop)
    }

    /// Examines the state that another change may be halfway through: a failure while one is made
    /// is retried when that has ended, or the wait for it.
    pub(crate) fn settled<T>(&mut self, look: impl Fn(&World) -> Result<T>) -> Result<T> {
        let first = match look(self.world) {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        match self.watch.lock(self.manner.lock_wait) {
            Ok(lock) => drop(lock),
            Err(_) => return Err(first),
        }
        self.refuse_unfinished()?;
        look(self.world)
    }

    fn through<T, R, E: From<Error>>(
        &mut self,
        plan: impl Fn(&World) -> Result<Change<T>, E>,
        then: Option<impl FnOnce(&mut Running<'_, '_>, &Change<T>) -> Result<R, E>>,
    ) -> Result<(Done<T>, Option<R>), E> {
        self.refuse_another()?;
        if self.manner.dry_run {
            let change = self.look(plan)?;
            self.refuse_unreadable(&change)?;
            self.preview(&change)?;
            return Ok((Done { change, made: false }, None));
        }
        self.refuse_unfinished()?;
        let mut agreed = None;
        if self.manner.confirm == Confirm::Ask {
            let change = self.look(&plan)?;
            self.refuse_unreadable(&change)?;
            if change.question.is_some() {
                agreed = Some(self.asked(&change)?);
            }
        }
        let (mut lock, mut change) = self.planned(&plan)?;
        if agreed.is_none() && change.question.is_some() && self.manner.confirm != Confirm::Given {
            // Others need not wait for an answer.
            drop(lock);
            self.warn(&change);
            agreed = Some(self.asked(&change)?);
            (lock, change) = self.planned(&plan)?;
        }
        agreed.unwrap_or_default().covers(&change.steps(), &change.losses, &change.again)?;
        self.warn(&change);
        if change.is_empty() {
            return Ok((Done { change, made: false }, None));
        }
        let then = self.make(&change, Some(lock), then)?;
        Ok((Done { change, made: true }, then))
    }

    fn planned<T, E: From<Error>>(
        &mut self,
        plan: impl Fn(&World) -> Result<Change<T>, E>,
    ) -> Result<(Rc<HostLock>, Change<T>), E> {
        let lock = self.watch.lock(self.manner.lock_wait).map_err(Error::from)?;
        self.refuse_unfinished()?;
        self.refuse_another()?;
        let change = plan(self.world)?;
        self.refuse_unreadable(&change)?;
        Ok((lock, change))
    }

    /// Performs a plan without the lock: for a change that directly follows another.
    pub fn follow<T>(&mut self, change: &Change<T>) -> Result<()> {
        let none = None::<fn(&mut Running<'_, '_>, &Change<T>) -> Result<()>>;
        self.make(change, None, none).map(drop)
    }

    /// Performs the parts of a change.
    fn make<T, R, E: From<Error>>(
        &mut self,
        change: &Change<T>,
        lock: Option<Rc<HostLock>>,
        then: Option<impl FnOnce(&mut Running<'_, '_>, &Change<T>) -> Result<R, E>>,
    ) -> Result<Option<R>, E> {
        let hypervisor = self.hypervisor()?;
        let journal = if change.journal { Some(self.journal(change, &*hypervisor)?) } else { None };
        // It holds its devices already.
        let mut lock = lock.filter(|_| change.hold != Hold::Planning);
        let world = self.world;
        let keeps = self.watch.keeps();
        let mut transaction = Transaction::new(&*hypervisor, &mut self.watch, journal);
        for part in &change.parts {
            make_part(part, change.verb, &*hypervisor, &mut transaction, world)?;
            lock = lock.filter(|_| matches!(change.hold, Hold::Through | Hold::Answered));
        }
        let Some(then) = then else {
            transaction.close().map_err(Error::from)?;
            drop(lock);
            return Ok(None);
        };
        // From here on others see the domains' resources.
        let lock = lock.filter(|_| change.hold == Hold::Answered);
        let (transaction_of, kept) = (&mut transaction, keeps.clone());
        let mut running =
            Running { transaction: transaction_of, hypervisor: &*hypervisor, keeps: kept };
        let after = then(&mut running, change)?;
        // A signal that came until here undoes all of it.
        let kept = keeps.get();
        keeps.set(false);
        if !kept {
            transaction.go_on().map_err(Error::from)?;
        }
        transaction.close().map_err(Error::from)?;
        drop(lock);
        Ok(Some(after))
    }

    /// The hypervisor that the steps are done on.
    pub fn hypervisor(&self) -> Result<Rc<dyn Hypervisor>> {
        match self.manner.of {
            Of::Guests => self.world.hypervisor(),
            Of::Host => Ok(Rc::new(NoHypervisor)),
            Of::HostWithGuests => self.world.hypervisor_or_none(),
        }
    }

    /// Refuses to begin while another change is unfinished.
    pub(crate) fn refuse_unfinished(&self) -> Result<()> {
        let state = self.world.settings.state.as_deref();
        let warn = |text: &str| self.world.warning(text);
        match self.manner.of {
            Of::Guests => unfinished::refuse(self.world.hypervisor()?.uri(), state, warn),
            Of::Host | Of::HostWithGuests => unfinished::refuse(none::URI, state, warn),
        }
    }

    /// Begins the journal of a change.
    fn journal<T>(&self, change: &Change<T>, hypervisor: &dyn Hypervisor) -> Result<Journal> {
        let (verb, subject) = (change.verb, change.subject.as_str());
        let of_host = self.manner.of != Of::Guests;
        let uri = if of_host { none::URI } else { hypervisor.uri() };
        if let Some(state) = &self.world.settings.state {
            return Ok(Journal::begin_in(&state.join("journal"), verb, subject, uri)?);
        }
        Ok(if of_host {
            Journal::begin(verb, subject, uri)?
        } else {
            Journal::begin_on(verb, subject, uri, hypervisor.identity())?
        })
    }

    /// Reports the warnings of a change, each once.
    fn warn<T>(&mut self, change: &Change<T>) {
        for warning in &change.warnings {
            if self.said.insert(warning.clone()) {
                self.world.reporter().warning(warning);
            }
        }
    }

    fn preview<T>(&self, change: &Change<T>) -> Result<()> {
        if self.manner.confirm != Confirm::Given {
            for loss in &change.losses {
                let verb = change.verb;
                self.world
                    .reporter()
                    .warning(&format!("{loss}: `{verb}` asks first, or takes --accept-data-loss"));
            }
        }
        if let Some(Question::EndCrashed { verb, name }) = &change.question {
            let warning = format!("{}: `{verb}` asks first, or takes --force", crashed(name));
            self.world.reporter().warning(&warning);
        }
        Ok(self.world.reporter().preview(&change.steps())?)
    }

    /// Asks about a change, if there is something to ask. Returns the agreement.
    fn asked<T>(&mut self, change: &Change<T>) -> Result<Agreed> {
        let steps = change.steps();
        if let Some(question) = &change.question {
            let answer = self.ask(question, &steps, &change.losses)?;
            question.settle(answer, &change.losses)?;
        }
        Ok(Agreed::to(&steps).and(&change.losses))
    }

    pub(crate) fn world(&self) -> &'w World {
        self.world
    }

    pub(crate) fn manner(&self) -> Manner {
        self.manner
    }

    pub(crate) fn is_preview(&self) -> bool {
        self.manner.dry_run
    }

    pub(crate) fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// Takes the host's lock, for actions that are not a plan of steps.
    pub(crate) fn lock(&mut self) -> Result<Rc<HostLock>> {
        Ok(self.watch.lock(self.manner.lock_wait)?)
    }

    /// The signal that asks to stop, if one has come.
    pub fn interrupted(&mut self) -> Option<String> {
        self.watch.interrupted()
    }

    /// Asks something that belongs to a change.
    pub fn ask(&self, question: &Question, steps: &[Step], losses: &[String]) -> Result<Answer> {
        Ok(self.world.reporter().ask(Asked { question, steps, losses })?)
    }
}

/// Performs one part of a change.
fn make_part(
    part: &Part,
    verb: &str,
    hypervisor: &dyn Hypervisor,
    transaction: &mut Transaction<'_>,
    world: &World,
) -> Result<()> {
    match part {
        Part::Steps(steps) => transaction.run(steps)?,
        Part::Domain(change) => change_domain(change, hypervisor, transaction, world)?,
        Part::Host(steps) => change_host(verb, steps, transaction, world)?,
        Part::Reports => {
            links::keep(false, world)?;
            gpu_health::keep(world)?;
        }
        Part::ReadBack { name, planned } => {
            read_back(name, planned, hypervisor, world);
        }
        Part::Complete => transaction.complete()?,
    }
    Ok(())
}

#[cfg(test)]
mod tests;
