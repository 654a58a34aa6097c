//! Records changes, so that they can be undone: every change of a definition goes through
//! [`change_domain`].

use crate::apply::{Step, Transaction, now_s};
use crate::change::DomainChange;
use crate::domain::{DomainXml, differences};
use crate::error::{Class, Coded, Error, Result, classed, usage};
use crate::fsroot::FsRoot;
use crate::history::guest::creation_options;
use crate::history::{History, Owner, UserRecords};
use crate::hypervisor::machine::command_there;
use crate::hypervisor::{DomainSummary, Hypervisor, Kept, XmlOf, none};
use crate::lookup::find;
use crate::pages::BOOT;
use crate::shell::word;
use crate::world::{World, unread_of_users};
use std::time::{Duration, UNIX_EPOCH};

/// The reason a domain's history is not available.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "history-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum HistoryOfError {
    /// The history belongs to a domain of the same UUID at another connection.
    #[error(
        "the history of domain `{name}` is of the domain of the same UUID at {uri}, not of this one"
    )]
    OfAnother { name: String, uri: String },
    /// Other users have recorded it.
    #[error("the history of domain `{name}` is not root's: {why}")]
    OfUsers { name: String, why: String },
    /// Root has recorded it.
    #[error("permission denied: the history of domain `{name}` is not known, since {why}")]
    OfRoot { name: String, why: String },
}

impl Coded for HistoryOfError {}

/// Refuses to say that nothing is recorded of a domain of which this user has recorded nothing, but
/// root may have; warns of it where there is something.
pub(crate) fn refuse_unread(
    world: &World,
    (verb, name, uuid): (&str, &str, &str),
    history: &History,
) -> Result<()> {
    if let Some(records) = world.records_of_users(uuid) {
        return refuse_of_users(world, (verb, name, uuid), history, &records);
    }
    let Some(why) = world.unread_records() else { return Ok(()) };
    if history.entries.is_empty() && creation_options(world.state(), uuid).is_none() {
        let hint = format!("`sudo gpuvm {verb} {}`", word(name));
        return Err(HistoryOfError::OfRoot { name: name.to_owned(), why }.hint(hint));
    }
    world.warning(&why);
    Ok(())
}

/// The same for root, of a domain that other users have changed.
fn refuse_of_users(
    world: &World,
    (verb, name, uuid): (&str, &str, &str),
    history: &History,
    records: &[UserRecords],
) -> Result<()> {
    let why = unread_of_users(name, records);
    let commands = records
        .iter()
        .map(|one| format!("`sudo -u {} gpuvm {verb} {}`", word(&one.user), word(name)));
    let commands = commands.collect::<Vec<_>>().join(", ");
    if history.entries.is_empty() && creation_options(world.state(), uuid).is_none() {
        return Err(HistoryOfError::OfUsers { name: name.to_owned(), why }.hint(commands));
    }
    world.warning(&format!("{why}; {commands}"));
    Ok(())
}

/// Refuses a verb that needs the history of a domain of another machine, which is kept there, or of
/// another hypervisor of this one.
pub fn refuse_elsewhere(verb: &str, name: &str, world: &World) -> Result<()> {
    let on = &*world.hypervisor()?;
    match world.owner(&find(on, name)?.uuid, on) {
        Owner::This => Ok(()),
        Owner::Machine { host } => {
            let message = format!("the history of domain `{name}` is on its machine `{host}`");
            let there = command_there(&host, &format!("{verb} {}", word(name)));
            Err(classed(Class::OtherMachine, message, format!("`{there}`")))
        }
        Owner::Hypervisor { uri } => {
            Err(HistoryOfError::OfAnother { name: name.to_string(), uri: uri.to_string() }
                .hint(format!("`gpuvm {verb} {} --connect {}`", word(name), word(&uri))))
        }
    }
}

/// A time as `2026-11-21T19:00:00Z`.
pub fn when(at_s: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(at_s)).to_string()
}

/// The changes of a domain, for `verb`, which is named in the error if they are elsewhere.
pub fn history_of(world: &World, verb: &str, name: &str) -> Result<History> {
    let hypervisor = world.hypervisor()?;
    refuse_elsewhere(verb, name, world)?;
    let uuid = find(&*hypervisor, name)?.uuid;
    let history = world.history(&uuid)?;
    refuse_unread(world, (verb, name, &uuid), &history)?;
    Ok(history)
}

/// The definition of a domain before and after one of its changes; no number: the last one.
pub fn change_of(
    world: &World,
    name: &str,
    history: &History,
    number: Option<u32>,
) -> Result<(String, String)> {
    let found = match number {
        None => history.entries.last(),
        Some(number) => history.entries.iter().find(|entry| entry.number == number),
    };
    let Some(entry) = found else {
        let which = number.map_or("no change".to_owned(), |number| format!("no change {number}"));
        let hint = format!("`gpuvm history {name}` lists what there is", name = word(name));
        return Err(usage(format!("domain `{name}` has {which} to show"), hint));
    };
    let after = match &entry.after {
        Some(after) => after.clone(),
        None => world.hypervisor()?.xml(name, XmlOf::Inactive)?,
    };
    Ok((entry.before.clone(), after))
}

/// Changes a domain and records its previous state. The definition is read back; differences by the
/// hypervisor give warnings. To be called with the host's lock.
pub fn change_domain(
    change: &DomainChange,
    hypervisor: &dyn Hypervisor,
    transaction: &mut Transaction<'_>,
    world: &World,
) -> Result<()> {
    let (uuid, name) = (find(hypervisor, &change.name)?.uuid, &change.name);
    let unkept = match world.owner(&uuid, hypervisor) {
        Owner::This => None,
        Owner::Machine { host } => Some(format!(
            "no history is kept of a change from here: domain `{name}` is on machine `{host}`, and \
             `gpuvm undo {typed}` there does not know of it",
            typed = word(name)
        )),
        Owner::Hypervisor { uri } => Some(format!(
            "no history is kept of this change: that of domain `{name}` is of the domain of the \
             same UUID at {uri}"
        )),
    };
    if let Some(why) = unkept {
        world.warning(&why);
        transaction.run(&change.steps())?;
        changed_back(change, hypervisor, world);
        return Ok(());
    }
    let history = world.history(&uuid)?;
    let now = now_s();
    let before = change.before.clone();
    let mut entry = history.next(change.verb, hypervisor.uri(), &change.name, now, before);
    entry.what = change.what.clone();
    entry.boot = boot()?;
    entry.steps = change.first.iter().chain(&change.last).cloned().collect();
    transaction.run(&history.forget_spent(&entry.boot))?;
    transaction.run(&[history.remember(&entry, None)])?;
    transaction.run(&change.steps())?;
    let mut after = entry.clone();
    after.after = changed_back(change, hypervisor, world);
    transaction.run(&[history.remember(&after, Some(&entry))]).map_err(Error::from)
}

/// Refuses a change of a domain whose history cannot be read, before anybody is asked.
pub fn refuse_unreadable(change: &DomainChange, world: &World) -> Result<()> {
    let hypervisor = &*world.hypervisor()?;
    let uuid = find(hypervisor, &change.name)?.uuid;
    match world.owner(&uuid, hypervisor) {
        Owner::This => world.history(&uuid).map(drop),
        Owner::Machine { .. } | Owner::Hypervisor { .. } => Ok(()),
    }
}

/// Returns the id of this boot, until whose end kernel settings last; empty if there is none.
pub fn boot() -> Result<String> {
    Ok(FsRoot::live()?.read(BOOT)?.unwrap_or_default())
}

/// Warns that a guest starts from its saved state, not from its definition.
pub fn warn_of_saved_state(hypervisor: &dyn Hypervisor, name: &str, world: &World) {
    for said in starts_saved(hypervisor, name) {
        world.warning(&format!("domain `{name}` has {said}"));
    }
}

/// The states from which a guest starts instead of its definition, each with the command that
/// removes it.
pub fn starts_saved(hypervisor: &dyn Hypervisor, name: &str) -> Vec<String> {
    let kept = hypervisor.keeps(name).unwrap_or_default();
    let said = |kept: &Kept| {
        format!(
            "{}, from which it starts as it was when it was saved, and not as it is defined now; \
             {}",
            kept.what, kept.hint
        )
    };
    kept.iter().filter(|kept| kept.starts).map(said).collect()
}

/// Makes a change of the host and records it for `host undo`.
pub fn change_host(
    verb: &str,
    steps: &[Step],
    transaction: &mut Transaction<'_>,
    world: &World,
) -> Result<()> {
    let history = world.host_history()?;
    let mut entry = history.next(verb, none::URI, "", now_s(), String::new());
    entry.what = steps.iter().map(Step::to_string).collect();
    entry.boot = boot()?;
    entry.steps = steps.to_vec();
    transaction.run(&[history.remember(&entry, None)])?;
    Ok(transaction.run(steps)?)
}

/// Returns the definition as the hypervisor stored it, after warning of differences from the plan;
/// `None` if it cannot be read.
pub fn read_back(
    name: &str,
    planned: &DomainXml,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Option<String> {
    let read = match hypervisor.xml(name, XmlOf::Inactive) {
        Ok(read) => read,
        Err(error) => {
            world.warning(&format!("the definition could not be read back: {error}"));
            return None;
        }
    };
    if let Ok(defined) = DomainXml::parse(&read) {
        for difference in differences(planned, &defined) {
            world.warning(&format!("libvirt defined it otherwise than planned: {difference}"));
        }
    }
    Some(read)
}

/// The same for a changed domain, which may start from a saved state.
fn changed_back(
    change: &DomainChange,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Option<String> {
    warn_of_saved_state(hypervisor, &change.name, world);
    read_back(&change.name, &change.after, hypervisor, world)
}

/// Refuses a domain whose records are on another machine, or of another hypervisor. `verb`: the
/// command that is to be run there.
pub fn refuse_of_another(
    world: &World,
    row: &DomainSummary,
    hypervisor: &dyn Hypervisor,
    verb: &str,
) -> Result<()> {
    let name = &row.name;
    match world.owner(&row.uuid, hypervisor) {
        Owner::This => Ok(()),
        Owner::Machine { host } => {
            let message =
                format!("domain `{name}` and its record are on machine `{host}`, not on this one");
            let hint = format!("`{}`", command_there(&host, verb));
            Err(classed(Class::OtherMachine, message, hint))
        }
        Owner::Hypervisor { uri } => {
            let hint = format!("`gpuvm {verb} --connect {}`", word(&uri));
            Err(HistoryOfError::OfAnother { name: name.clone(), uri }.hint(hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc() {
        assert_eq!(when(0), "1970-01-01T00:00:00Z");
        assert_eq!(when(1_795_287_000), "2026-11-21T18:50:00Z");
    }
}
