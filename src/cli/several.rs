//! Verbs on several domains: each domain is a change of its own, and one that is refused does not
//! prevent the others.

use super::args::{NamesArgs, OnlyArgs};
use super::codes::{Class, code};
use super::context::Context;
use super::error::{self, EXIT_DONE, EXIT_FOUND, classed, usage};
use super::failure::Failure;
use super::output;
use crate::hypervisor::DomainState;
use crate::words::count;
use std::io::IsTerminal as _;

/// The domains of a verb: those that are named, or with --all those whose state is `wanted`.
pub fn named(
    args: &NamesArgs,
    wanted: fn(DomainState) -> bool,
    cx: &Context<'_>,
) -> anyhow::Result<Vec<String>> {
    if !args.all {
        return Ok(args.names.clone());
    }
    let all = cx.hypervisor()?.domains()?;
    Ok(all.into_iter().filter(|one| wanted(one.state)).map(|one| one.name).collect())
}

/// Asks before a verb, such as `stop`, is carried out on all domains.
pub fn ask(verb: &str, names: &[String]) -> anyhow::Result<()> {
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

/// Carries a verb out on each domain, and returns the worst exit code. An error of one of several is
/// printed in its place; after a signal the others are left alone.
pub fn each(
    names: &[String],
    only: Option<&OnlyArgs>,
    cx: &Context<'_>,
    mut verb: impl FnMut(&str, &Context<'_>) -> anyhow::Result<u8>,
) -> anyhow::Result<u8> {
    if let [name] = names {
        return verb(name, cx);
    }
    if only.is_some_and(|only| only.uuid.is_some()) {
        return Err(usage("--uuid is the UUID of one domain", "name that domain alone"));
    }
    let mut worst = EXIT_DONE;
    for (number, name) in names.iter().enumerate() {
        if names[..number].contains(name) {
            continue;
        }
        let done = match verb(name, &Context::new(cx.global)) {
            Ok(done) => done,
            Err(error) if code(&error).ends_with("interrupted") => return Err(error),
            Err(error) => {
                if cx.output.json {
                    Failure::of(&error).print();
                } else {
                    output::tell(&error::report(&error));
                }
                error::exit_code(&error)
            }
        };
        let is_worse = worst == EXIT_DONE || worst == EXIT_FOUND && done != EXIT_DONE;
        worst = if is_worse { done } else { worst };
    }
    Ok(worst)
}
