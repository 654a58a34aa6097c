//! The command line: one file per verb. Only this crate prints.

pub mod args;
pub mod codes;
pub mod error;
pub mod options;
pub mod output;
pub mod pages;

pub mod apply;
pub mod autostart;
pub mod bar;
pub mod capacity;
pub mod change;
pub mod check;
mod clone;
mod colour;
mod complete;
pub mod console;
pub mod context;
pub mod create;
pub mod delete;
pub mod device;
pub mod diff;
pub mod disk;
pub mod drive;
mod exec;
pub mod export;
mod fabric;
pub mod failure;
mod fleet;
pub mod get;
mod gpu;
pub mod guests;
pub mod history;
pub mod host;
pub mod image;
mod import;
pub mod ip;
pub mod list;
pub mod login;
pub mod logs;
mod make_room;
pub mod manual;
pub mod measure;
mod meta;
mod metrics;
pub mod names;
pub mod nccl;
pub mod network;
pub mod nic;
pub mod offer;
pub mod plan;
pub mod printable;
mod raw;
pub mod recover;
mod refuse;
mod rename;
pub mod restart;
mod room;
#[cfg(feature = "schema")]
pub mod schema;
pub mod seed;
pub mod set;
mod several;
pub mod show;
mod slurm;
mod snapshot;
pub mod start;
pub mod stop;
mod table;
mod terminal;
mod tips;
mod top;
pub mod tune;
pub mod tuned;
pub mod undo;
mod verbose;
pub mod verify;
mod vgpu;
mod view;
mod wrap;

use args::{Cli, Verb};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _};
use colour::ColorArg;
use context::Context;
use error::{EXIT_BUG, EXIT_DONE, EXIT_USAGE};
use failure::Failure;
use std::ffi::OsString;

/// Runs a command line, the program's name first, and returns the exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    #[cfg(feature = "libvirt")]
    crate::hypervisor::lazy::find_programs();
    let words: Vec<OsString> = args.into_iter().collect();
    if complete::answer(&words) {
        return EXIT_DONE;
    }
    let cli = match parse(&words) {
        Ok(cli) => cli,
        Err(mut error) => {
            tips::name_the_verb(&mut error, &words);
            tips::name_the_argument(&mut error, &words);
            tips::name_all(&mut error, &words);
            return unreadable(&error, failure::wants_json(&words));
        }
    };
    let json = cli.global.json;
    std::panic::set_hook(Box::new(move |panic| {
        if json {
            Failure::internal(&panic.to_string()).print()
        } else {
            output::report(&format!("internal error: {panic}"))
        }
    }));
    if json {
        colour::set(ColorArg::Never);
    }
    verbose::listen(cli.global.verbose);
    if !cli.global.quiet {
        crate::hypervisor::slow::report_by(output::report);
    }
    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&cli)));
    match run {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            let code = error::exit_code(&error);
            match json {
                _ if code == EXIT_DONE => {}
                true => Failure::of(&error).print(),
                false => output::report(&error::report(&error)),
            }
            code
        }
        Err(_) => EXIT_BUG,
    }
}

/// Handles a command line that cannot be parsed, or that asks for help.
fn unreadable(error: &clap::Error, json: bool) -> u8 {
    if !error.use_stderr() {
        // A broken pipe is not an error.
        let _ = error.print();
        return EXIT_DONE;
    }
    if json {
        Failure::of_usage(error).print();
    } else {
        // Help is our own text and may have colours; an error repeats the arguments, which may come
        // from others.
        output::report(&error.render().to_string());
    }
    EXIT_USAGE
}

fn parse(words: &[OsString]) -> Result<Cli, clap::Error> {
    colour::choose(words);
    let matches = match Cli::command().try_get_matches_from(words) {
        // Building the parts that only help needs would take longer than a plan.
        Err(error) if asks_for_help(&error) => {
            args::fitted(output::width()).try_get_matches_from(words)?
        }
        // Else the usage line names the option of a value that comes from the environment.
        Err(error) => {
            let bare = Cli::command().mut_arg("connect", |arg| arg.env(None));
            return Err(bare.try_get_matches_from(words).err().unwrap_or(error));
        }
        Ok(matches) => matches,
    };
    offer::remember(&matches);
    let mut cli = Cli::from_arg_matches(&matches)?;
    cli.global.connect_is_given = matches.value_source("connect") == Some(ValueSource::CommandLine);
    Ok(cli)
}

/// Whether help was asked for, or is printed because no verb was given.
fn asks_for_help(error: &clap::Error) -> bool {
    let kind = error.kind();
    matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand)
}

fn run(cli: &Cli) -> anyhow::Result<u8> {
    let cx = Context::new(&cli.global);
    match &cli.verb {
        Verb::Host(verb) => host::run(verb, &cx),
        Verb::Gpu(verb) => gpu::run(verb, &cx),
        Verb::Fabric(verb) => fabric::run(verb, &cx),
        Verb::Fleet(verb) => fleet::run(verb, &cx),
        Verb::Device(verb) => device::run(verb, &cx),
        Verb::Nic(verb) => nic::run(verb, &cx),
        Verb::Vgpu(verb) => vgpu::run(verb, &cx),
        Verb::Network(verb) => network::run(verb, &cx),
        Verb::Drive(verb) => drive::run(verb, &cx),
        Verb::Image(verb) => image::run(verb, &cx),
        Verb::Slurm(verb) => slurm::run(verb, &cx),
        Verb::Plan(args) => plan::run(args, &cx),
        Verb::Capacity(args) => capacity::run(args, &cx),
        Verb::Export(args) => export::run(args, &cx),
        Verb::Disk(verb) => disk::run(verb, &cx),
        Verb::Snapshot(verb) => snapshot::run(verb, &cx),
        Verb::Seed(verb) => seed::run(verb, &cx),
        Verb::Create(args) => create::run(args, &cx),
        Verb::Apply(args) => apply::run(args, &cx),
        Verb::MakeRoom(args) => make_room::run(args, &cx),
        Verb::Get(args) => get::run(args, &cx),
        Verb::List(args) => list::run(args, &cx),
        Verb::Show(args) => show::run(args, &cx),
        Verb::Start(args) => start::run(args, &cx),
        Verb::Stop(args) => stop::run(args, &cx),
        Verb::Restart(args) => restart::run(args, &cx),
        Verb::Pause(args) => stop::pause(args, true, &cx),
        Verb::Resume(args) => stop::pause(args, false, &cx),
        Verb::Autostart(args) => autostart::run(args, &cx),
        Verb::Ip(args) => ip::run(args, &cx),
        Verb::Console(args) => console::run(args, &cx),
        Verb::Exec(args) => exec::run(args, &cx),
        Verb::Shell(args) => exec::shell(args, &cx),
        Verb::Logs(args) => logs::run(args, &cx),
        Verb::Ssh(args) => login::ssh(args, &cx),
        Verb::Cp(args) => login::cp(args, &cx),
        Verb::Rename(args) => rename::run(args, &cx),
        Verb::Clone(args) => clone::run(args, &cx),
        Verb::Import(args) => import::run(args, &cx),
        Verb::Delete(args) => delete::run(args, &cx),
        Verb::Set(args) => set::run(args, &cx),
        Verb::Tune(args) => tune::run(args, &cx),
        Verb::History(args) => history::run(args, &cx),
        Verb::Undo(args) => undo::run(args, &cx),
        Verb::Recover(args) => recover::run(args, &cx),
        Verb::Check(args) => check::run(args, &cx),
        Verb::Verify(args) => verify::run(args, &cx),
        Verb::Top(args) => top::run(args, &cx),
        Verb::Measure(args) => measure::run(args, &cx),
        Verb::Nccl(args) => nccl::run(args, &cx),
        Verb::Completions(args) => meta::completions(args, &cx),
        Verb::Man(args) => meta::man(args, &cx),
        Verb::Schema(args) => meta::schema(args, &cx),
    }
}
