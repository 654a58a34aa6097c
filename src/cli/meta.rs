//! `completions` and `man`: both are made from the argument types.

use super::args::{CompletionsArgs, GROUPS, ManArgs, SchemaArgs, command, exit_status};
use super::context::Context;
#[cfg(not(feature = "schema"))]
use super::error::classed;
use super::error::{EXIT_DONE, usage};
use clap::Command;
use clap_mangen::Man;
use gpuvm_ops::files::FileError;
use roff::{Roff, bold, roman};
use std::io;

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "gpuvm", &mut script);
    cx.output.verbatim(&String::from_utf8_lossy(&script))?;
    Ok(EXIT_DONE)
}

/// Prints a man page, or writes all of them.
pub fn man(args: &ManArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let pages = pages()?;
    if let Some(dir) = &args.dir {
        let written = super::manual::PAGES.iter();
        let written = written.map(|(name, page)| (format!("{name}.7"), (*page).to_owned()));
        for (name, page) in pages.into_iter().chain(written) {
            let path = dir.join(name);
            std::fs::write(&path, page).map_err(FileError::of(&path))?;
        }
        return Ok(EXIT_DONE);
    }
    if let Some(text) = args.verb.as_deref().and_then(super::manual::find) {
        cx.output.verbatim(text)?;
        return Ok(EXIT_DONE);
    }
    let wanted = match &args.verb {
        Some(verb) if verb != "gpuvm" => {
            format!("gpuvm-{}.1", verb.trim_start_matches("gpuvm-").replace(' ', "-"))
        }
        _ => "gpuvm.1".to_owned(),
    };
    match pages.iter().find(|(name, _)| *name == wanted) {
        Some((_, page)) => cx.output.verbatim(page)?,
        None => {
            let names = pages.iter().map(|(name, _)| name.trim_end_matches(".1"));
            let names = names.chain(super::manual::PAGES.iter().map(|(name, _)| *name));
            let names: Vec<&str> = names.filter_map(|name| name.strip_prefix("gpuvm-")).collect();
            let names = names.join(", ");
            return Err(usage(format!("no man page `{wanted}`"), format!("pages: {names}")));
        }
    }
    Ok(EXIT_DONE)
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
        for name in names() {
            let path = dir.join(format!("{name}.json"));
            std::fs::write(&path, text(name).unwrap_or_default())
                .map_err(|e| anyhow::Error::from(e).context(format!("write {}", path.display())))?;
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

/// Says that there are none.
#[cfg(not(feature = "schema"))]
pub fn schema(_: &SchemaArgs, _: &Context<'_>) -> anyhow::Result<u8> {
    let message = "this gpuvm was built without schemas (cargo feature `schema`)";
    let class = super::codes::Class::NotFound;
    Err(classed(class, message, "`cargo build --release --features schema` builds it with them"))
}

/// Every page with its file name, by name.
pub fn pages() -> io::Result<Vec<(String, String)>> {
    let mut root = command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    collect(&root, "gpuvm", &mut pages)?;
    pages.sort();
    Ok(pages)
}

/// Adds the page of a command and of those below it.
fn collect(command: &Command, path: &str, pages: &mut Vec<(String, String)>) -> io::Result<()> {
    pages.push((format!("{}.1", path.replace(' ', "-")), page(command, path)?));
    for below in command.get_subcommands() {
        collect(below, &format!("{path} {}", below.get_name()), pages)?;
    }
    Ok(())
}

/// The page of a command.
fn page(command: &Command, path: &str) -> io::Result<String> {
    // What `-h` leaves out belongs to the page, and so does the help of options that have no long one.
    let shown = command.clone().mut_args(|arg| arg.hide_short_help(false));
    let shown = shown.after_help(None::<&str>).after_long_help(None::<&str>).version(None::<&str>);
    let groups = if path == "gpuvm" { &GROUPS[..] } else { &[] };
    let shown = match groups.is_empty() {
        true => shown.subcommand_help_heading("COMMANDS"),
        // They are listed by group below.
        false => shown.mut_subcommands(|below| below.hide(true)),
    };
    let man = Man::new(shown).title(path.replace(' ', "-")).date("");
    let mut page = Vec::new();
    man.source(format!("gpuvm {}", env!("CARGO_PKG_VERSION"))).render(&mut page)?;
    let page = String::from_utf8_lossy(&page).into_owned();
    let mut more = Roff::new();
    if !groups.is_empty() {
        more.control("SH", ["COMMANDS"]);
    }
    for (group, verbs) in groups {
        more.control("SS", [*group]);
        for below in verbs.iter().filter_map(|verb| command.find_subcommand(verb)) {
            let about = below.get_about().map(ToString::to_string).unwrap_or_default();
            more.control("TP", []);
            more.text([bold(format!("gpuvm-{}", below.get_name())), roman("(1)")]);
            more.text([roman(about)]);
        }
    }
    examples(command, &mut more);
    more.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in exit_status(path) {
        more.control("TP", []);
        more.text([bold(code.to_string())]);
        more.text([roman(meaning)]);
    }
    see_also(path, &mut more);
    Ok(page + &more.to_roff().replace('\'', "\\(aq"))
}

/// Adds the examples of the help.
fn examples(command: &Command, page: &mut Roff) {
    let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let Some((_, rest)) = help.split_once("Examples:\n") else { return };
    page.control("SH", ["EXAMPLES"]);
    page.control("nf", []);
    for line in rest.lines().take_while(|line| !line.is_empty()) {
        page.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    page.control("fi", []);
}

/// Adds the pages beside this one: that above it, and those of section 7 that explain it.
fn see_also(path: &str, page: &mut Roff) {
    let words: Vec<&str> = path.split(' ').skip(1).collect();
    let above = path.rsplit_once(' ').map(|(above, _)| (above.replace(' ', "-"), 1));
    let topics = super::manual::beside(&words).into_iter().map(|name| (name.to_owned(), 7));
    let mut line = Vec::new();
    for (name, section) in above.into_iter().chain(topics) {
        let before = if line.is_empty() { "" } else { ", " };
        line.extend([roman(before), bold(name), roman(format!("({section})"))]);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text(line);
}
