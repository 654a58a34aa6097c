//! `seed drop`, and `create --drop-seed`: removes a guest's seed once it has been read.

use crate::agent::is_forbidden;
use crate::apply::{ApplyError, DomainStep, LET_GO_S, LiveStep, Step, StepError};
use crate::change::Change;
use crate::domain::DomainXml;
use crate::domain::edit::DomainEdit;
use crate::domain::guest::{Made, Role};
use crate::error::{Class, Coded, Error, Result, classed, dump_and_define};
use crate::guest::has_ended;
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::{Hypervisor, HypervisorError, XmlOf};
use crate::lookup::find;
use crate::made::{Fate, Proof};
use crate::session::Session;
use crate::shell::word;
use crate::world::World;
use std::path::Path;
use std::time::{Duration, Instant};

/// The reason a seed stays.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "seed-drop-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum DropSeedError {
    /// The guest agent is not allowed to report whether cloud-init is done.
    #[error("the agent of `{name}` may not report whether cloud-init is done: {why}")]
    Unknown { name: String, why: String },
    /// The domain is transient.
    #[error("domain `{name}` has no persistent definition")]
    NoDefinition { name: String },
    /// A signal came before the seed was removed.
    #[error("interrupted by {signal}; the seed is left")]
    Interrupted { signal: String },
}

impl Coded for DropSeedError {}

/// The time limit for an agent's answer, so that a hung one does not block others.
const ANSWER: Duration = Duration::from_secs(5);
/// The file that cloud-init writes when it is done, and not before; /run is empty after each boot.
const RESULT: &str = "/run/cloud-init/result.json";

/// How the wait for cloud-init ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstBoot {
    /// It is done.
    Done,
    /// The time limit was reached; the agent's last message.
    Over(String),
    /// The agent is not allowed to answer.
    Unknown(String),
    /// The guest has ended.
    Ended,
}

/// Refuses to remove a seed that may not have been read.
fn refuse_early(ended: &FirstBoot, name: &str, wait_s: u64) -> Result<()> {
    let now = format!("`gpuvm seed drop {} --now` does not ask", word(name));
    match ended {
        FirstBoot::Done => Ok(()),
        FirstBoot::Over(said) => Err(classed(
            Class::Timeout,
            format!("cloud-init of `{name}` is not done after {wait_s} s: {said}"),
            format!("--wait SECONDS waits longer; {now}"),
        )),
        FirstBoot::Ended => {
            let message = format!("domain `{name}` has ended before its cloud-init was done");
            Err(classed(Class::WrongState, message, now))
        }
        FirstBoot::Unknown(why) => {
            Err(DropSeedError::Unknown { name: name.to_string(), why: why.to_string() }.hint(now))
        }
    }
}

/// Waits until cloud-init is done in a guest. `go_on` is called once a second.
pub fn wait_for<E>(
    hypervisor: &dyn Hypervisor,
    name: &str,
    wait: Duration,
    mut go_on: impl FnMut() -> Result<(), E>,
) -> Result<FirstBoot, E> {
    let until = Instant::now() + wait;
    let mut uuid = None;
    loop {
        let said = match is_done(hypervisor, name) {
            Ok(()) => return Ok(FirstBoot::Done),
            Err(error) if is_forbidden(&error) => return Ok(FirstBoot::Unknown(error.message)),
            Err(error) => error.message,
        };
        if has_ended(hypervisor, name, &mut uuid) {
            return Ok(FirstBoot::Ended);
        }
        if Instant::now() >= until {
            return Ok(FirstBoot::Over(said));
        }
        go_on()?;
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Asks a guest's agent whether cloud-init is done: whether it can open the last file that
/// cloud-init writes. The query runs no program in the guest, and no other answer of the guest is
/// trusted.
fn is_done(hypervisor: &dyn Hypervisor, name: &str) -> Result<(), HypervisorError> {
    let ask = |command: serde_json::Value| hypervisor.ask_agent(name, &command.to_string(), ANSWER);
    let file = serde_json::json!({ "path": RESULT, "mode": "r" });
    let open = ask(serde_json::json!({ "execute": "guest-file-open", "arguments": file }))?;
    let handle = serde_json::from_str::<serde_json::Value>(&open).ok();
    if let Some(handle) = handle.as_ref().and_then(|answer| answer["return"].as_i64()) {
        let arguments = serde_json::json!({ "handle": handle });
        // If this fails, it is closed when the agent ends.
        let _ = ask(serde_json::json!({ "execute": "guest-file-close", "arguments": arguments }));
    }
    Ok(())
}

struct Seed {
    name: String,
    runs: bool,
    /// Whether there is a guest to ask.
    has_guest: bool,
    /// Whether the running guest has the disk.
    is_held: bool,
    xml: String,
    made: Made,
    fate: Fate,
}

impl Seed {
    /// Looks for a domain's seed; `None` if it has none, or none of ours.
    fn of(hypervisor: &dyn Hypervisor, state: Option<&Path>, name: &str) -> Result<Option<Seed>> {
        let summary = find(hypervisor, name)?;
        let xml = hypervisor.xml(name, XmlOf::Inactive)?;
        let parsed = DomainXml::parse(&xml)?;
        let mut made = parsed.made().into_iter();
        let Some(made) = made.find(|made| made.role == Role::Seed) else { return Ok(None) };
        if !summary.persistent {
            return Err(
                DropSeedError::NoDefinition { name: name.to_string() }.hint(dump_and_define(name))
            );
        }
        let (runs, has_guest) = (summary.state.is_active(), summary.state.has_guest());
        let is_held = runs && {
            let live = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
            live.disk(&made.path).is_some()
        };
        let uses = Uses::read(hypervisor)?;
        let proof = Proof::of(&parsed, &summary.uuid, &uses, hypervisor, state);
        let fate = proof.fate(&made);
        Ok(Some(Seed { name: name.to_owned(), runs, has_guest, is_held, xml, made, fate }))
    }

    /// Returns the step that detaches it from a running guest; `None` if not attached.
    fn detach(&self) -> Option<Step> {
        let (name, path) = (self.name.clone(), self.made.path.clone());
        self.is_held.then_some(Step::Live(LiveStep::DetachDisk {
            name,
            path,
            wait_s: LET_GO_S,
            xml: None,
        }))
    }

    /// Returns the step that removes it from the definition; `forget`: and from the metadata.
    /// `None` if not in it.
    fn redefine(&self, forget: bool) -> Result<Option<Step>> {
        let mut xml = DomainXml::parse(&self.xml)?;
        let edit = DomainEdit::DropDisk { path: self.made.path.clone(), forget };
        if !xml.would_change(&edit) {
            return Ok(None);
        }
        xml.apply(&edit)?;
        let (name, before) = (self.name.clone(), self.xml.clone());
        Ok(Some(Step::Domain(DomainStep::Redefine { name, xml: xml.text().to_owned(), before })))
    }

    /// The step that deletes it; `None` if it is gone, or stays.
    fn delete(&self) -> Option<Step> {
        match &self.fate {
            Fate::Goes(step) => Some(step.clone()),
            Fate::Gone | Fate::Stays(_) => None,
        }
    }

    fn stays(&self) -> bool {
        matches!(self.fate, Fate::Stays(_))
    }

    /// All steps, if the guest releases it.
    fn steps(&self) -> Result<Vec<Step>> {
        // A volume that stays is removed with the domain, once it is unused.
        let steps = [self.detach(), self.redefine(!self.stays())?, self.delete()];
        Ok(steps.into_iter().flatten().collect())
    }
}

/// A seed being removed.
#[derive(Debug)]
pub struct Dropping {
    /// Whether the guest runs.
    pub runs: bool,
    /// Whether its volume stays.
    pub stays: bool,
    /// Whether there is a guest to ask.
    has_guest: bool,
    /// The step that only removes it from the definition, if the guest does not release it.
    redefine: Option<Step>,
}

/// Plans to remove a domain's seed; `None` if it has none.
pub fn drop_seed(world: &World, name: &str) -> Result<Change<Option<Dropping>>> {
    let hypervisor = world.hypervisor()?;
    let Some(seed) = Seed::of(&*hypervisor, world.state(), name)? else {
        return Ok(Change::new("seed drop", name, Vec::new(), None));
    };
    let (stays, redefine) = (seed.stays(), seed.redefine(false)?);
    let Seed { runs, has_guest, .. } = seed;
    let about = Some(Dropping { runs, stays, has_guest, redefine });
    let mut change = Change::new("seed drop", name, seed.steps()?, about);
    if let Fate::Stays(why) = &seed.fate {
        change.warnings.push(why.clone());
    }
    Ok(change)
}

/// Removes a domain's seed once the guest has read it, waiting `wait_s` seconds; `None` without
/// checking. Returns whether all of it is gone.
pub fn run_when_read(
    session: &mut Session<'_>,
    world: &World,
    name: &str,
    wait_s: Option<u64>,
) -> Result<bool> {
    let Some(seed) = drop_seed(world, name)?.about else {
        world.progress(&format!("domain `{name}` has no seed"));
        return Ok(true);
    };
    if let Some(wait_s) = wait_s.filter(|_| seed.has_guest) {
        world.progress(&format!("waiting up to {wait_s} s for cloud-init"));
        let wait = Duration::from_secs(wait_s);
        let go_on = || interrupted(session);
        let ended = wait_for(&*world.hypervisor()?, name, wait, go_on)?;
        refuse_early(&ended, name, wait_s)?;
    }
    run(session, world, name)
}

/// Ends the wait on a signal; nothing is changed yet.
fn interrupted(session: &mut Session<'_>) -> Result<()> {
    match session.interrupted() {
        None => Ok(()),
        Some(signal) => Err(DropSeedError::Interrupted { signal }.bare()),
    }
}

/// Removes a domain's seed; returns whether all of it is gone.
pub fn run(session: &mut Session<'_>, world: &World, name: &str) -> Result<bool> {
    let error = match session.run(|world| drop_seed(world, name)) {
        Ok(done) => return Ok(done.change.about.is_none_or(|about| !about.stays)),
        Err(error) => error,
    };
    let Error::Apply(ApplyError::Failed { source: held @ StepError::HoldsDisk { .. }, .. }) =
        &error
    else {
        return Err(error);
    };
    // The guest keeps it until it is off; its next start is without.
    session.run(|world| {
        let redefine = drop_seed(world, name)?.about.and_then(|seed| seed.redefine);
        Ok::<_, Error>(Change::new("seed drop", name, redefine.into_iter().collect(), ()))
    })?;
    world.warning(&format!(
        "{held}; its next start has no seed, and the volume is deleted with the domain, or by \
         `gpuvm seed drop {name}` when it has been off",
        name = word(name)
    ));
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hypervisor::HypervisorErrorKind;

    #[test]
    fn an_agent_that_may_not_open_files_is_not_asked_for_ever() {
        let said = |message: &str| HypervisorError {
            kind: HypervisorErrorKind::Other,
            doing: "ask".into(),
            message: message.into(),
        };
        // As qemu-ga 5.2, 7.2 and 10.0 answer, through libvirt.
        for (message, forbidden) in [
            (
                "unable to execute QEMU agent command 'guest-file-open': The command \
                 guest-file-open has been disabled for this instance",
                true,
            ),
            (
                "unable to execute QEMU agent command 'guest-file-open': Command guest-file-open \
                 has been disabled: the command is not allowed",
                true,
            ),
            (
                "unable to execute QEMU agent command 'guest-file-open': The command \
                 guest-file-open has not been found",
                true,
            ),
            (
                "unable to execute QEMU agent command 'guest-file-open': failed to open file \
                 '/run/cloud-init/result.json' (mode: 'r'): No such file or directory",
                false,
            ),
            ("Guest agent is not responding: QEMU guest agent is not connected", false),
        ] {
            assert_eq!(is_forbidden(&said(message)), forbidden, "{message}");
        }
    }
}
