//! `nccl`.

use super::args::NcclArgs;
use super::context::Context;
use super::error::{EXIT_DONE, EXIT_FOUND};
use gpuvm_ops::nccl::install::{Installed, Manner, State, install};
use gpuvm_ops::nccl::nccl;
use gpuvm_ops::nccl::uninstall::{Removal, Uninstalled, uninstall};
use gpuvm_ops::source::Source;
use std::fmt::Write as _;

/// Runs the verb.
pub fn run(args: &NcclArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let source = Source::named_by(&args.target, cx);
    if args.uninstall {
        let done = uninstall(cx, &source, args.dry_run)?;
        if cx.output.json {
            cx.output.json("gpuvm-nccl-uninstalled", &done)?
        } else {
            cx.output.text(&uninstalled(&done, args.dry_run))?
        }
        return Ok(EXIT_DONE);
    }
    if args.install || args.check {
        let manner = match (args.check, args.dry_run) {
            (true, _) => Manner::Check,
            (false, true) => Manner::DryRun,
            (false, false) => Manner::Install,
        };
        let done = install(cx, &source, manner)?;
        if cx.output.json {
            cx.output.json("gpuvm-nccl-installed", &done)?
        } else {
            cx.output.text(&text(&done, manner))?
        }
        return Ok(if args.check && !done.is_settled() { EXIT_FOUND } else { EXIT_DONE });
    }
    let noted = nccl(cx, &source)?;
    if cx.output.json {
        cx.output.json("gpuvm-nccl", &noted)?;
        return Ok(EXIT_DONE);
    }
    for note in &noted.notes {
        if note.compromise {
            cx.output.warning(&note.says)
        } else {
            cx.output.progress(&format!("note: {}", note.says))
        }
    }
    cx.output.document(&noted.file)?;
    Ok(EXIT_DONE)
}

fn text(done: &Installed, manner: Manner) -> String {
    if !done.needed && done.files.is_empty() {
        return "no file is needed: one GPU and no NIC share nothing\n".into();
    }
    let mut text = String::new();
    for file in &done.files {
        let says = match (file.state, manner) {
            (State::Same, _) => "already so",
            (State::Missing, Manner::Check) => "missing",
            (State::Differs, Manner::Check) => "differs",
            (State::Unwanted, Manner::Check) => {
                "in the way: NVIDIA's nvidia-topologyd would write through its link"
            }
            (State::Unwanted, Manner::DryRun) => "would be removed",
            (State::Unwanted, Manner::Install) => "removed",
            (_, Manner::DryRun) => "would be written",
            (_, Manner::Install) => "written",
        };
        let leads_to = file.leads_to.as_ref().map(|to| format!(" -> {to}")).unwrap_or_default();
        write!(text, "{}{leads_to}: {says}", file.path).expect("text");
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
    match (&done.overruled_by, &done.overruled_in) {
        (Some(path), Some(file)) => {
            writeln!(text, "{file} names {path}: NCCL uses that file").expect("text");
        }
        _ if done.found => text += "NCCL uses the file from its next start\n",
        _ if manner == Manner::DryRun => {}
        _ => text += "NCCL does not use the file\n",
    }
    if let Some(hint) = &done.hint {
        writeln!(text, "hint: {hint}").expect("text");
    }
    text
}

/// Returns the text output of a removal.
fn uninstalled(done: &Uninstalled, is_dry: bool) -> String {
    let mut text = String::new();
    for file in done.files.iter().filter(|file| file.state != Removal::Absent) {
        let says = match file.state {
            Removal::Removed if is_dry => "would be removed",
            Removal::Removed => "removed",
            Removal::Changed => "left: changed since gpuvm wrote it",
            Removal::Foreign => "left: it is not gpuvm's",
            Removal::Absent => continue,
        };
        write!(text, "{}: {says}", file.path).expect("text");
        match (&file.back, is_dry) {
            (Some(back), true) => write!(text, "; {back} would take its place").expect("text"),
            (Some(back), false) => write!(text, "; {back} is back in its place").expect("text"),
            (None, _) => {}
        }
        text.push('\n');
    }
    if text.is_empty() { "nothing of gpuvm's is there\n".into() } else { text }
}
