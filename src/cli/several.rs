//! Verbs on several domains: each domain is a change of its own, and one that is refused does not
//! prevent the others.

use super::args::{NamesArgs, OnlyArgs, StopArgs};
use super::codes::{Class, code};
use super::context::Context;
use super::error::{self, EXIT_DONE, EXIT_FOUND, classed, usage};
use super::failure::Failure;
use super::output;
use crate::hypervisor::DomainState;
use crate::words::count;
use std::io::IsTerminal as _;

/// One of the domains of a verb.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// Its name.
    pub name: String,
    /// Its UUID: another domain of this name is not meant. `None` if whatever has the name.
    pub uuid: Option<String>,
}

impl Chosen {
    /// The domains that are named.
    pub fn by_names(names: &[String], only: Option<&OnlyArgs>) -> anyhow::Result<Vec<Chosen>> {
        let uuid = only.and_then(|only| only.uuid.clone());
        if uuid.is_some() && names.len() > 1 {
            return Err(usage("--uuid is the UUID of one domain", "name that domain alone"));
        }
        let mut all: Vec<Chosen> = Vec::new();
        for name in names {
            if all.iter().all(|one| one.name != *name) {
                all.push(Chosen { name: name.clone(), uuid: uuid.clone() });
            }
        }
        Ok(all)
    }
}

/// The domains of a verb: those that are named, or with --all those whose state is `wanted`.
pub fn chosen(
    args: &NamesArgs,
    only: Option<&OnlyArgs>,
    wanted: fn(DomainState) -> bool,
    cx: &Context<'_>,
) -> anyhow::Result<Vec<Chosen>> {
    if !args.all {
        return Chosen::by_names(&args.names, only);
    }
    if only.is_some_and(|only| only.uuid.is_some()) {
        return Err(usage("--uuid is the UUID of one domain", "name that domain, without --all"));
    }
    let all = cx.hypervisor()?.domains()?.into_iter().filter(|one| wanted(one.state));
    Ok(all.map(|one| Chosen { name: one.name, uuid: Some(one.uuid) }).collect())
}

/// Takes the domains of `stop` or `restart` down, each by `one`; with --all it asks first.
pub fn down(
    verb: &str,
    args: &StopArgs,
    cx: &Context<'_>,
    one: impl FnMut(&Chosen, &Context<'_>) -> anyhow::Result<u8>,
) -> anyhow::Result<u8> {
    let all = chosen(&args.names, Some(&args.only), DomainState::is_active, cx)?;
    if all.is_empty() {
        cx.output.progress("no domain is running");
    } else if args.names.all && !args.yes && !args.dry_run {
        ask(verb, &all)?;
    }
    each(&all, cx, one)
}

/// Asks before a verb, such as `stop`, is carried out on all domains.
fn ask(verb: &str, all: &[Chosen]) -> anyhow::Result<()> {
    let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    let guests = format!("{verb} {}: {}", count(names.len(), "domain"), names.join(", "));
    if !std::io::stdin().is_terminal() {
        let message = format!("`{verb} --all` asks first, and there is no terminal");
        return Err(usage(message, format!("add --yes to {guests}")));
    }
    if output::ask_yes(&format!("{guests}?"))? {
        return Ok(());
    }
    Err(classed(Class::Declined, "declined; nothing is changed", ""))
}

/// Carries a verb out on each domain, and returns the worst exit code. An error of one of several
/// is printed in its place; after a signal the others are left alone.
pub fn each(
    all: &[Chosen],
    cx: &Context<'_>,
    mut verb: impl FnMut(&Chosen, &Context<'_>) -> anyhow::Result<u8>,
) -> anyhow::Result<u8> {
    if let [one] = all {
        return verb(one, cx);
    }
    let mut worst = EXIT_DONE;
    for one in all {
        let done = match verb(one, &Context::new(cx.global)) {
            Ok(done) => done,
            Err(error) if code(&error).ends_with("interrupted") => return Err(error),
            Err(error) => {
                if cx.output.json {
                    Failure::of(&error).print();
                } else {
                    output::report(&error::report(&error));
                }
                error::exit_code(&error)
            }
        };
        let is_worse = worst == EXIT_DONE || worst == EXIT_FOUND && done != EXIT_DONE;
        worst = if is_worse { done } else { worst };
    }
    Ok(worst)
}
