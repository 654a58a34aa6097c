//! `host show`: the host's topology as text; `--json` prints the value itself.

use super::summary::header;
use super::{tables, tree};
use crate::cli::args::{HostShowArgs, TakenArgs};
use crate::cli::colour::{END, Mark};
use crate::cli::context::Context;
use crate::cli::error::{EXIT_DONE, usage};
use crate::cli::names::wrapped;
use crate::cli::offer;
use crate::cli::output::{offered_text, width};
use crate::cli::view;
use crate::placement::capacity;
use crate::request::Request;
use crate::topology::Topology;
use crate::words::count;
use gpuvm_core::view::{Page, Subject};
use gpuvm_ops::capture;
use gpuvm_ops::host_show::{read, shown};
use std::fmt::Write as _;

/// Columns of output that goes to no terminal.
const WIDTH: usize = 100;

/// Runs the verb.
pub fn run(args: &HostShowArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    view::check(&args.view, cx)?;
    if !args.view.is_wanted() && args.held.taken != TakenArgs::default() {
        let plain = offer::without(&["--assume-empty", "--domain-xml"]);
        return Err(usage(
            "--assume-empty and --domain-xml are about the guests of a picture",
            view::drawn("host.html").unwrap_or_default() + &format!("; `{plain}` prints the host"),
        ));
    }
    let topology = read(cx, args.held.assume)?;
    if args.view.is_wanted() && draw(args, cx, &topology)? {
        return Ok(EXIT_DONE);
    }
    let host = shown(cx, &topology)?;
    if cx.output.json {
        cx.output.json("gpuvm-host-show", &host)?;
    } else {
        let width = width().unwrap_or(WIDTH);
        cx.output.marked(&text(&topology, &host.degraded, args.all, width))?;
    }
    Ok(EXIT_DONE)
}

/// Draws the host; returns whether standard output is used.
fn draw(args: &HostShowArgs, cx: &Context<'_>, topology: &Topology) -> anyhow::Result<bool> {
    let held = cx.taken(&args.held)?;
    let _nameless = view::nameless(&args.view);
    let topology = capture::shown(cx, topology, args.view.identify)?;
    let host = shown(cx, &topology)?;
    let mut names: Vec<&str> = held.domains.iter().map(|held| held.domain.as_str()).collect();
    names.dedup();
    let guests = match names.len() {
        0 => "no guest".to_owned(),
        some => count(some, "guest"),
    };
    let gpus = count(topology.gpus().count(), "GPU");
    let memory = topology.memory_warning();
    let notes = host.degraded.iter().chain(&memory).chain(&topology.parts().notes);
    let notes = notes.chain(&topology.fabric().links_unread);
    let fits = capacity(&topology, &held, &Request::for_gpus(1), &[]);
    let shown = Page {
        subject: Subject { topology: &topology, held: &held, planned: &[] },
        verb: "host show",
        verdict: &[format!("{gpus}, {guests}")],
        date: args.view.date.as_deref(),
        placement: None,
        reasons: &[],
        capacity: None,
        fits: Some(&fits),
        changed: &[],
        notes: &view::shown(notes.cloned()),
        commands: &view::shown(["gpuvm capacity".to_owned()]),
        json: &cx.output.json_string("gpuvm-host-show", &host)?,
        offered: offered_text,
    };
    view::write(&args.view, cx, &shown)
}

/// Returns the whole output for a terminal of `width` columns.
fn text(topology: &Topology, degraded: &[String], all: bool, width: usize) -> String {
    let mut text = header(topology, degraded, width);
    let inner = width.saturating_sub(2);
    let sections = [
        ("Nodes", tables::nodes(topology, inner)),
        ("PCIe", tree::tree(topology, all, inner)),
        ("Drives", tables::drives(topology, inner)),
        ("GPU sets", tables::partitions(topology, inner)),
        ("Notes", notes(topology, width)),
    ];
    for (title, body) in sections {
        if !body.is_empty() {
            let begin = Mark::Head.begin();
            write!(text, "\n{begin}{title}{END}\n{body}").expect("text");
        }
    }
    text
}

/// Returns the facts that could not be read, and the source of the fabric's data.
fn notes(topology: &Topology, width: usize) -> String {
    let fabric = topology.fabric();
    let source = fabric.source.iter().filter(|_| fabric.board.is_some());
    let memory = topology.memory_warning();
    let notes = memory.iter().chain(&topology.parts().notes);
    let notes = notes.chain(&fabric.links_unread).chain(source);
    notes.fold(String::new(), |text, note| text + &wrapped("  ", note, width))
}
