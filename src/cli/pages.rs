//! The man pages of section 1, made from the arguments.

use super::args::{GROUPS, command, exit_status};
use clap::Command;
use clap_mangen::Man;
use roff::{Roff, bold, roman};
use std::io;

/// Every page with its file name, by name.
pub fn all() -> io::Result<Vec<(String, String)>> {
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

/// The date of the pages: that of the version. The pages of section 7 have it, too.
pub const DATE: &str = "2026-11-28";

fn page(command: &Command, path: &str) -> io::Result<String> {
    // Options hidden from `-h` belong on the page, and so does the help of options without a long
    // one.
    let shown = command.clone().mut_args(|arg| arg.hide_short_help(false));
    let shown = shown.after_help(None::<&str>).after_long_help(None::<&str>).version(None::<&str>);
    let groups = if path == "gpuvm" { &GROUPS[..] } else { &[] };
    let shown = if groups.is_empty() {
        shown.subcommand_help_heading("COMMANDS")
    } else {
        // Verbs are listed by group below.
        shown.mut_subcommands(|below| below.hide(true))
    };
    let man = Man::new(shown).title(path.replace(' ', "-")).date(DATE);
    let mut page = Vec::new();
    man.source(format!("gpuvm {}", env!("CARGO_PKG_VERSION"))).render(&mut page)?;
    let page = tidy(&String::from_utf8_lossy(&page));
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

/// Removes the constructs that `mandoc -Tlint` warns of: breaks around a vertical space, which
/// breaks by itself, and spaces at the end of a line.
fn tidy(page: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in page.lines().map(str::trim_end) {
        match (lines.last().copied(), line) {
            (Some(".sp" | ""), ".br") => continue,
            (Some(".br"), ".sp" | "") => {
                lines.pop();
            }
            _ => {}
        }
        lines.push(line);
    }
    lines.join("\n") + "\n"
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

/// Adds the pages beside this one: its parent, and those of section 7 that explain it.
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
