//! `host show`, `host matrix`, `host modules`, `host pages`, `host files`, `host tuning`, `host undo`, `host capture`.

pub mod capture;

pub mod files;
pub mod matrix;
pub mod modules;
pub mod pages;
pub mod show;
mod tables;
mod tree;
pub mod tuning;
mod undo;

use super::args::HostVerb;
use super::context::Context;
use crate::discover::crosscheck::crosscheck;
use crate::topology::{Topology, TopologyError};

/// Runs the verb.
pub fn run(verb: &HostVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        HostVerb::Show(args) => show::run(args, cx),
        HostVerb::Matrix(args) => matrix::run(args, cx),
        HostVerb::Modules(args) => modules::run(args, cx),
        HostVerb::Pages(args) => pages::run(args, cx),
        HostVerb::Files(args) => files::run(args, cx),
        HostVerb::Tuning(args) => tuning::run(args, cx),
        HostVerb::Undo(args) => undo::run(args, cx),
        HostVerb::Capture(args) => capture::run(args, cx),
    }
}

/// This machine with notes on what hwloc sees differently.
fn checked(topology: Topology) -> Result<Topology, TopologyError> {
    let notes = crosscheck(&topology);
    if notes.is_empty() {
        return Ok(topology);
    }
    let mut parts = topology.parts().clone();
    parts.notes.extend(notes);
    Topology::new(parts)
}
