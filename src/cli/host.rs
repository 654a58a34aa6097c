//! `host show`, `host matrix`, `host p2p`, `host modules`, `host pages`, `host files`, `host
//! tuning`, `host trust`, `host undo`, `host capture`, `host doctor`.

pub mod capture;
mod doctor;
pub mod files;
pub mod matrix;
pub mod modules;
mod p2p;
pub mod pages;
pub mod show;
mod summary;
mod tables;
mod tree;
pub mod trust;
pub mod tuning;
mod undo;

use super::args::HostVerb;
use super::context::Context;

/// Runs the verb.
pub fn run(verb: &HostVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        HostVerb::Show(args) => show::run(args, cx),
        HostVerb::Matrix(args) => matrix::run(args, cx),
        HostVerb::P2p(args) => p2p::run(args, cx),
        HostVerb::Modules(args) => modules::run(args, cx),
        HostVerb::Pages(args) => pages::run(args, cx),
        HostVerb::Files(args) => files::run(args, cx),
        HostVerb::Tuning(args) => tuning::run(args, cx),
        HostVerb::Trust(args) => trust::run(args, cx),
        HostVerb::Undo(args) => undo::run(args, cx),
        HostVerb::Capture(args) => capture::run(args, cx),
        HostVerb::Doctor(args) => doctor::run(args, cx),
    }
}
