//! The command: one file per verb. Only this module prints.

pub mod args;
pub mod error;
pub mod options;
pub mod output;

pub mod bar;
pub mod capacity;
pub mod change;
pub mod check;
pub mod claim;
mod colour;
pub mod console;
pub mod context;
pub mod create;
pub mod delete;
pub mod device;
pub mod diff;
pub mod disks;
pub mod drive;
pub mod export;
pub mod gone;
mod gpu;
pub mod guest;
pub mod history;
pub mod host;
pub mod image;
pub mod ip;
pub mod list;
pub mod live;
pub mod made;
pub mod manual;
pub mod meta;
pub mod network;
pub mod nic;
pub mod offer;
pub mod pages;
pub mod plan;
pub mod printable;
pub mod recover;
pub mod remote;
pub mod render;
pub mod restart;
pub mod seed;
pub mod show;
pub mod start;
pub mod stop;
pub mod storage;
mod table;
pub mod tune;
pub mod undo;
pub mod verify;
pub mod vfs;
pub mod view;
mod wrap;

use args::{Cli, ColorArg, Verb};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _};
use context::Context;
use error::{EXIT_BUG, EXIT_DONE, EXIT_USAGE};
use std::ffi::OsString;

/// Runs a command line, the program's name first, and returns the exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    #[cfg(feature = "libvirt")]
    crate::hypervisor::lazy::find_programs();
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { EXIT_USAGE } else { EXIT_DONE };
            // Help is ours, and may have colours; an error repeats what was typed, which others may have made up.
            if code == EXIT_USAGE {
                output::tell(&error.render().to_string());
            } else if error.print().is_err() {
                return EXIT_DONE;
            }
            return code;
        }
    };
    std::panic::set_hook(Box::new(|panic| output::tell(&format!("internal error: {panic}"))));
    if cli.global.json {
        colour::set(ColorArg::Never);
    }
    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&cli)));
    match run {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            let code = error::exit_code(&error);
            if code != EXIT_DONE {
                output::tell(&error::report(&error));
            }
            code
        }
        Err(_) => EXIT_BUG,
    }
}

/// Reads a command line.
fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    colour::choose(&words);
    let read = |command: clap::Command| command.try_get_matches_from(&words);
    let matches = match read(Cli::command()) {
        // What only help needs takes half as long to make as all else that reads arguments.
        Err(error) if asks_for_help(&error) => read(args::command())?,
        matches => matches?,
    };
    offer::remember(&matches);
    let mut cli = Cli::from_arg_matches(&matches)?;
    cli.global.connect_is_given = matches.value_source("connect") == Some(ValueSource::CommandLine);
    Ok(cli)
}

/// Whether help was asked for, or is printed because nothing was.
fn asks_for_help(error: &clap::Error) -> bool {
    let kind = error.kind();
    matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand)
}

/// Runs the verb.
fn run(cli: &Cli) -> anyhow::Result<u8> {
    let cx = Context::new(&cli.global);
    match &cli.verb {
        Verb::Host(verb) => host::run(verb, &cx),
        Verb::Gpu(verb) => gpu::run(verb, &cx),
        Verb::Device(verb) => device::run(verb, &cx),
        Verb::Nic(verb) => nic::run(verb, &cx),
        Verb::Network(verb) => network::run(verb, &cx),
        Verb::Drive(verb) => drive::run(verb, &cx),
        Verb::Image(verb) => image::run(verb, &cx),
        Verb::Plan(args) => plan::run(args, &cx),
        Verb::Capacity(args) => capacity::run(args, &cx),
        Verb::Export(args) => export::run(args, &cx),
        Verb::Seed(verb) => seed::run(verb, &cx),
        Verb::Create(args) => create::run(args, &cx),
        Verb::List(args) => list::run(args, &cx),
        Verb::Show(args) => show::run(args, &cx),
        Verb::Start(args) => start::run(args, &cx),
        Verb::Stop(args) => stop::run(args, &cx),
        Verb::Restart(args) => restart::run(args, &cx),
        Verb::Ip(args) => ip::run(args, &cx),
        Verb::Console(args) => console::run(args, &cx),
        Verb::Delete(args) => delete::run(args, &cx),
        Verb::Tune(args) => tune::run(args, &cx),
        Verb::History(args) => history::run(args, &cx),
        Verb::Undo(args) => undo::run(args, &cx),
        Verb::Recover(args) => recover::run(args, &cx),
        Verb::Check(args) => check::run(args, &cx),
        Verb::Verify(args) => verify::run(args, &cx),
        Verb::Completions(args) => meta::completions(args, &cx),
        Verb::Man(args) => meta::man(args, &cx),
    }
}
