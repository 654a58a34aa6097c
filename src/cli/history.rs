//! `history`, and the keeping of it: every change of a definition goes through [`change_domain`].

use super::args::HistoryArgs;
use super::codes::Class;
use super::context::Context;
use super::diff::Diff;
use super::error::{EXIT_DONE, classed, hinted, usage};
use super::output::Output;
use super::pages::BOOT;
use super::show::find;
use super::table::Table;
use crate::apply::{ApplyError, Step, Transaction, now_s};
use crate::domain::{DomainXml, differences};
use crate::fsroot::FsRoot;
use crate::history::{Entry, History};
use crate::hypervisor::machine::{Machine, command_there};
use crate::hypervisor::{Hypervisor, XmlOf};
use crate::kept;
use crate::shell::word;
use std::time::{Duration, UNIX_EPOCH};

/// Runs the verb.
pub fn run(args: &HistoryArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("history")?;
    let hypervisor = cx.hypervisor()?;
    refuse_elsewhere("history", &args.name, &*hypervisor)?;
    let history = History::of(&find(&*hypervisor, &args.name)?.uuid)?;
    if let Some(number) = args.diff {
        let entry = chosen(&history, number, &args.name)?;
        let after = match &entry.after {
            Some(after) => after.clone(),
            None => hypervisor.xml(&args.name, XmlOf::Inactive)?,
        };
        Diff::of(&args.name, Some(&entry.before), Some(&after)).print(cx.output)?;
    } else if cx.output.json {
        cx.output.json_rows(&history.entries)?;
    } else if history.entries.is_empty() {
        cx.output.progress(&format!("nothing was changed of domain `{}`", args.name));
    } else {
        cx.output.table(&table(&history.entries))?;
    }
    Ok(EXIT_DONE)
}

/// Refuses what needs the history of a domain of another machine, which is there.
pub fn refuse_elsewhere(verb: &str, name: &str, on: &dyn Hypervisor) -> anyhow::Result<()> {
    let Machine::Elsewhere { host } = on.machine() else { return refuse_other(verb, name, on) };
    let message = format!("the history of domain `{name}` is on its machine `{host}`");
    Err(classed(
        Class::OtherMachine,
        message,
        format!("`{}`", command_there(&host, &format!("{verb} {}", word(name)))),
    ))
}

/// Refuses what needs the history of a domain of another hypervisor of this machine that has one of the same UUID.
fn refuse_other(verb: &str, name: &str, on: &dyn Hypervisor) -> anyhow::Result<()> {
    let Some(uri) = kept::elsewhere(&find(on, name)?.uuid, on) else { return Ok(()) };
    let message = format!(
        "the history of domain `{name}` is of the domain of the same UUID at {uri}, not of this one"
    );
    Err(hinted(message, format!("`gpuvm {verb} {} --connect {}`", word(name), word(&uri))))
}

/// The change of a number, or the last one.
fn chosen<'a>(history: &'a History, number: Option<u32>, name: &str) -> anyhow::Result<&'a Entry> {
    let last = history.entries.last();
    let found = match number {
        None => last,
        Some(number) => history.entries.iter().find(|entry| entry.number == number),
    };
    found.ok_or_else(|| {
        let which = number.map_or("no change".to_owned(), |number| format!("no change {number}"));
        let hint = format!("`gpuvm history {name}` lists what there is", name = word(name));
        usage(format!("domain `{name}` has {which} to show"), hint)
    })
}

/// The changes as a table.
fn table(entries: &[Entry]) -> Table {
    let mut table = Table::new(["NUMBER", "WHEN (UTC)", "VERB", "WHAT"]);
    for entry in entries {
        let (number, what) = (entry.number.to_string(), entry.what.join("\n"));
        table.push([number, when(entry.at_s), entry.verb.clone(), what]);
    }
    table
}

/// A time as `2026-11-21T19:00:00Z`.
pub fn when(at_s: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(at_s)).to_string()
}

/// Is a change of a domain that is to be made and kept.
pub struct DomainChange<'a> {
    /// The verb.
    pub verb: &'a str,
    /// The domain's name.
    pub name: &'a str,
    /// What is changed, a line each.
    pub what: Vec<String>,
    /// Its definition before, as it was read.
    pub before: &'a str,
    /// Its definition after.
    pub after: &'a DomainXml,
    /// What is changed beside the definition before it is.
    pub first: Vec<Step>,
    /// What is changed beside the definition after it was: what runs.
    pub last: Vec<Step>,
}

impl DomainChange<'_> {
    /// The step that changes the definition.
    fn redefine(&self) -> Step {
        Step::RedefineDomain {
            name: self.name.to_owned(),
            xml: self.after.text().to_owned(),
            before: self.before.to_owned(),
        }
    }

    /// All steps.
    pub fn steps(&self) -> Vec<Step> {
        let is_same = self.before == self.after.text();
        let redefine = (!is_same).then(|| self.redefine());
        let all = self.first.iter().cloned().chain(redefine);
        all.chain(self.last.iter().cloned()).collect()
    }
}

/// Changes a domain and keeps what it was. The definition is read back; what the hypervisor made otherwise of it is
/// warned of. To be called with the host's lock.
pub fn change_domain(
    change: &DomainChange<'_>,
    hypervisor: &dyn Hypervisor,
    transaction: &mut Transaction<'_>,
    output: Output,
) -> anyhow::Result<()> {
    if let Machine::Elsewhere { host } = hypervisor.machine() {
        let name = change.name;
        output.warning(&format!(
            "no history is kept of a change from here: domain `{name}` is on machine `{host}`, \
             and `gpuvm undo {typed}` there does not know of it",
            typed = word(name)
        ));
        transaction.run(&change.steps())?;
        read_back(change, hypervisor, output);
        return Ok(());
    }
    let uuid = find(hypervisor, change.name)?.uuid;
    if let Some(uri) = kept::elsewhere(&uuid, hypervisor) {
        let name = change.name;
        output.warning(&format!(
            "no history is kept of this change: that of domain `{name}` is of the domain of the same UUID at {uri}"
        ));
        transaction.run(&change.steps())?;
        read_back(change, hypervisor, output);
        return Ok(());
    }
    let history = History::of(&uuid)?;
    let now = now_s();
    let before = change.before.to_owned();
    let mut entry = history.next(change.verb, hypervisor.uri(), change.name, now, before);
    entry.what = change.what.clone();
    entry.boot = boot()?;
    entry.steps = change.first.iter().chain(&change.last).cloned().collect();
    transaction.run(&history.forget_spent(&entry.boot))?;
    transaction.run(&[history.remember(&entry, None)])?;
    transaction.run(&change.steps())?;
    let mut after = entry.clone();
    after.after = read_back(change, hypervisor, output);
    transaction.run(&[history.remember(&after, Some(&entry))]).map_err(ApplyError::into)
}

/// The number of this boot of the machine, with which what was set in the kernel ends; empty where there is none.
pub fn boot() -> anyhow::Result<String> {
    Ok(FsRoot::live()?.read(BOOT)?.unwrap_or_default())
}

/// Says that a guest starts as it was saved, and not as it is defined.
pub fn tell_saved(hypervisor: &dyn Hypervisor, name: &str, output: Output) {
    let kept = hypervisor.keeps(name).unwrap_or_default();
    for kept in kept.iter().filter(|kept| kept.starts) {
        output.warning(&format!(
            "domain `{name}` has {}, from which it starts as it was when it was saved, and not as it is defined now; {}",
            kept.what, kept.hint
        ));
    }
}

/// The definition as the hypervisor took it; none: it cannot be read.
fn read_back(
    change: &DomainChange<'_>,
    hypervisor: &dyn Hypervisor,
    output: Output,
) -> Option<String> {
    tell_saved(hypervisor, change.name, output);
    let read = match hypervisor.xml(change.name, XmlOf::Inactive) {
        Ok(read) => read,
        Err(error) => {
            output.warning(&format!("the definition could not be read back: {error}"));
            return None;
        }
    };
    if let Ok(defined) = DomainXml::parse(&read) {
        for difference in differences(change.after, &defined) {
            output.warning(&format!("libvirt defined it otherwise than planned: {difference}"));
        }
    }
    Some(read)
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
