//! `nccl`.

use super::args::NcclArgs;
use super::context::Context;
use super::error::{EXIT_DONE, EXIT_FOUND};
use gpuvm_ops::nccl::install::{Installed, Manner, State, install};
use gpuvm_ops::nccl::nccl;
use gpuvm_ops::source::Source;
use std::fmt::Write as _;

/// Runs the verb.
pub fn run(args: &NcclArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let source = Source::guess(&args.target);
    if args.install || args.check {
        let manner = match (args.check, args.dry_run) {
            (true, _) => Manner::Check,
            (false, true) => Manner::DryRun,
            (false, false) => Manner::Install,
        };
        let done = install(cx, &source, manner)?;
        match cx.output.json {
            true => cx.output.json("gpuvm-nccl-installed", &done)?,
            false => cx.output.text(&text(&done, manner))?,
        }
        let differs = !done.found || done.files.iter().any(|file| file.state != State::Same);
        return Ok(if args.check && differs { EXIT_FOUND } else { EXIT_DONE });
    }
    let told = nccl(cx, &source)?;
    if cx.output.json {
        cx.output.json("gpuvm-nccl", &told)?;
        return Ok(EXIT_DONE);
    }
    for note in &told.notes {
        match note.compromise {
            true => cx.output.warning(&note.says),
            false => cx.output.progress(&format!("note: {}", note.says)),
        }
    }
    cx.output.document(&told.file)?;
    Ok(EXIT_DONE)
}

/// The answer for people.
fn text(done: &Installed, manner: Manner) -> String {
    let mut text = String::new();
    for file in &done.files {
        let says = match (file.state, manner) {
            (State::Same, _) => "already so",
            (State::Missing, Manner::Check) => "missing",
            (State::Differs, Manner::Check) => "differs",
            (_, Manner::DryRun) => "would be written",
            (_, Manner::Install) => "written",
        };
        write!(text, "{}: {says}", file.path).expect("text");
        match (&file.kept, manner) {
            (Some(_), Manner::Check) => text += "; it is not gpuvm's",
            (Some(kept), Manner::DryRun) => {
                write!(text, "; what is there stays as {kept}").expect("text")
            }
            (Some(kept), Manner::Install) => {
                write!(text, "; what was there is kept as {kept}").expect("text")
            }
            (None, _) => {}
        }
        text.push('\n');
    }
    match &done.overruled_by {
        Some(path) => {
            writeln!(text, "/etc/nccl.conf names {path}: NCCL takes that file").expect("text");
        }
        None if done.found => text += "NCCL takes the file from its next start on\n",
        None if manner == Manner::DryRun => {}
        None => text += "NCCL does not take the file\n",
    }
    text
}
