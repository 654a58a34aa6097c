//! `host show`: the host's topology as text; `--json` prints the value itself.

use super::summary::header;
use super::{tables, tree};
use crate::cli::args::HostShowArgs;
use crate::cli::colour::{END, Mark};
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::names::wrapped;
use crate::cli::output::width;
use crate::topology::Topology;
use gpuvm_ops::host_show::{read, shown};
use std::fmt::Write as _;

/// Columns of output that goes to no terminal.
const WIDTH: usize = 100;

/// Runs the verb.
pub fn run(args: &HostShowArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let topology = read(cx)?;
    let host = shown(cx, &topology)?;
    if cx.output.json {
        cx.output.json("gpuvm-host-show", &host)?;
    } else {
        let width = width().unwrap_or(WIDTH);
        cx.output.marked(&text(&topology, &host.degraded, args.all, width))?;
    }
    Ok(EXIT_DONE)
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

/// Returns what could not be read, and the source of the fabric's data.
fn notes(topology: &Topology, width: usize) -> String {
    let fabric = topology.fabric();
    let source = fabric.source.iter().filter(|_| fabric.board.is_some());
    let memory = topology.memory_warning();
    let notes = memory.iter().chain(&topology.parts().notes);
    let notes = notes.chain(&fabric.links_unread).chain(source);
    notes.fold(String::new(), |text, note| text + &wrapped("  ", note, width))
}
