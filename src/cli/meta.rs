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
        for (name, page) in &pages {
            let path = dir.join(name);
            std::fs::write(&path, page)
                .map_err(|e| anyhow::Error::from(e).context(format!("write {}", path.display())))?;
        }
        return Ok(EXIT_DONE);
    }
    let wanted = match &args.verb {
        Some(verb) => format!("gpuvm-{}.1", verb.replace(' ', "-")),
        None => "gpuvm.1".to_owned(),
    };
    match pages.iter().find(|(name, _)| *name == wanted) {
        Some((_, page)) => cx.output.text(page)?,
        None => {
            let verbs: Vec<&str> =
                pages.iter().filter_map(|(name, _)| name.strip_prefix("gpuvm-")).collect();
            let verbs = verbs.join(", ").replace(".1", "");
            return Err(usage(format!("no man page `{wanted}`"), format!("pages: {verbs}")));
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
