//! `completions` and `man`: both are made from the argument types.

use super::args::{Cli, CompletionsArgs, ManArgs};
use super::context::Context;
use super::error::{EXIT_DONE, usage};
use clap::CommandFactory;

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "gpuvm", &mut script);
    cx.output.text(&String::from_utf8_lossy(&script))?;
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
            std::fs::write(&path, page)
                .map_err(|e| anyhow::Error::from(e).context(format!("write {}", path.display())))?;
        }
        return Ok(EXIT_DONE);
    }
    if let Some(text) = args.verb.as_deref().and_then(super::manual::find) {
        cx.output.text(text)?;
        return Ok(EXIT_DONE);
    }
    let wanted = match &args.verb {
        Some(verb) => format!("gpuvm-{}.1", verb.replace(' ', "-")),
        None => "gpuvm.1".to_owned(),
    };
    match pages.iter().find(|(name, _)| *name == wanted) {
        Some((_, page)) => cx.output.text(page)?,
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

/// Every page with its file name, by name.
pub fn pages() -> std::io::Result<Vec<(String, String)>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, "gpuvm", &mut pages)?;
    pages.sort();
    Ok(pages)
}

/// Adds the page of a command and of those below it.
fn collect(
    command: &clap::Command,
    name: &str,
    pages: &mut Vec<(String, String)>,
) -> std::io::Result<()> {
    let mut page = Vec::new();
    let man = clap_mangen::Man::new(command.clone()).title(name.to_owned()).date("");
    man.source(format!("gpuvm {}", env!("CARGO_PKG_VERSION"))).render(&mut page)?;
    pages.push((format!("{name}.1"), String::from_utf8_lossy(&page).into_owned()));
    for below in command.get_subcommands().filter(|c| c.get_name() != "help") {
        collect(below, &format!("{name}-{}", below.get_name()), pages)?;
    }
    Ok(())
}
