//! `completions`, `man`, `schema`.

use super::args::{CompletionsArgs, ManArgs, SchemaArgs};
use super::complete;
use super::context::Context;
#[cfg(not(feature = "schema"))]
use super::error::classed;
use super::error::{EXIT_DONE, usage};
use super::pages;
use crate::words::similar;
use anyhow::Context as _;
use gpuvm_host::program::of_caller;
use gpuvm_ops::files::{FileError, write};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::Stdio;

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let shell = args.shell.to_string();
    let script = complete::script(&shell).with_context(|| format!("no script for {shell}"))?;
    cx.output.verbatim(&String::from_utf8_lossy(&script))?;
    Ok(EXIT_DONE)
}

/// Prints a man page, or writes all of them.
pub fn man(args: &ManArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let pages = pages::all()?;
    if let Some(dir) = &args.dir {
        make(dir)?;
        let written = super::manual::PAGES.iter();
        let written = written.map(|(name, page)| (format!("{name}.7"), (*page).to_owned()));
        for (name, page) in pages.into_iter().chain(written) {
            let path = dir.join(name);
            write(&path, true, page.as_bytes())?;
        }
        return Ok(EXIT_DONE);
    }
    if let Some(text) = args.verb.as_deref().and_then(super::manual::find) {
        return shown(text, cx);
    }
    let wanted = match &args.verb {
        Some(verb) if verb != "gpuvm" => {
            format!("gpuvm-{}.1", verb.trim_start_matches("gpuvm-").replace(' ', "-"))
        }
        _ => "gpuvm.1".to_owned(),
    };
    match pages.iter().find(|(name, _)| *name == wanted) {
        Some((_, page)) => shown(page, cx),
        None => {
            let own = pages.iter().map(|(name, _)| name.trim_end_matches(".1"));
            Err(no_page(wanted.trim_end_matches(".1"), &own.collect::<Vec<_>>()))
        }
    }
}

/// The error that there is no page of this name. `own`: the names of the pages of commands.
fn no_page(wanted: &str, own: &[&str]) -> anyhow::Error {
    let written = super::manual::PAGES.iter().filter_map(|(name, _)| name.strip_prefix("gpuvm-"));
    let written: Vec<&str> = written.collect();
    let own: Vec<&str> = own.iter().filter_map(|name| name.strip_prefix("gpuvm-")).collect();
    let all = own.iter().chain(&written).copied();
    let hint = match similar(wanted.trim_start_matches("gpuvm-"), all) {
        Some(near) => format!("did you mean `gpuvm man {near}`?"),
        None => {
            let topics: Vec<&str> =
                written.iter().copied().filter(|name| !own.contains(name)).collect();
            format!("`gpuvm -h` lists the commands; other pages: {}", topics.join(", "))
        }
    };
    usage(format!("no man page `{wanted}`"), hint)
}

/// Shows a page by `man` on a terminal; elsewhere, or without `man`, prints its source.
fn shown(page: &str, cx: &Context<'_>) -> anyhow::Result<u8> {
    if io::stdout().is_terminal() && show(page).is_ok() {
        return Ok(EXIT_DONE);
    }
    cx.output.verbatim(page)?;
    Ok(EXIT_DONE)
}

/// Shows a page by `man`.
fn show(page: &str) -> io::Result<()> {
    let mut man = of_caller("man").args(["-l", "-"]).stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = man.stdin.take() {
        // A reader that quits early is done with it.
        let _ = input.write_all(page.as_bytes());
    }
    man.wait().map(|_| ())
}

/// Makes a directory for files unless it is there.
fn make(dir: &Path) -> Result<(), FileError> {
    std::fs::create_dir_all(dir).map_err(FileError::of(dir))
}

/// Prints the schema of a document, or writes all of them.
#[cfg(feature = "schema")]
pub fn schema(args: &SchemaArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    use super::schema::{find, names};
    let text = |name: &str| {
        let schema = find(name)?;
        Some(serde_json::to_string_pretty(&schema).expect("a schema is plain JSON") + "\n")
    };
    if let Some(dir) = &args.dir {
        make(dir)?;
        for name in names() {
            let path = dir.join(format!("{name}.json"));
            write(&path, true, text(name).unwrap_or_default().as_bytes())?;
        }
        return Ok(EXIT_DONE);
    }
    match &args.name {
        Some(name) => match text(name) {
            Some(text) => cx.output.json_text(&text)?,
            None => {
                return Err(usage(format!("no schema `{name}`"), "`gpuvm schema` lists all names"));
            }
        },
        None if cx.output.json => {
            cx.output.json_rows("gpuvm-schema-list", &names().collect::<Vec<_>>())?;
        }
        None => cx.output.verbatim(&names().collect::<Vec<_>>().join("\n"))?,
    }
    Ok(EXIT_DONE)
}

/// Reports that this build has no schemas.
#[cfg(not(feature = "schema"))]
pub fn schema(_: &SchemaArgs, _: &Context<'_>) -> anyhow::Result<u8> {
    let message = "this gpuvm was built without schemas (cargo feature `schema`)";
    let class = super::codes::Class::NotFound;
    Err(classed(class, message, "`cargo build --release --features schema` builds it with them"))
}
