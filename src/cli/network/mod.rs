//! `network list`, `show`, `create`, `delete`, `undo`: libvirt's networks; `network host-bridge`:
//! the host's own bridges; `network doctor`: the paths of a guest's NICs.

pub mod bridge;
pub(super) mod create;
mod delete;
mod doctor;
mod list;
mod show;
mod undo;

use super::args::NetworkVerb;
use super::context::Context;

/// Runs the verb.
pub fn run(verb: &NetworkVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        NetworkVerb::List => list::run(cx),
        NetworkVerb::Show(args) => show::run(args, cx),
        NetworkVerb::Create(args) => create::run(args, cx),
        NetworkVerb::Delete(args) => delete::run(args, cx),
        NetworkVerb::Undo(args) => undo::run(args, cx),
        NetworkVerb::HostBridge(verb) => bridge::run(verb, cx),
        NetworkVerb::Doctor(args) => doctor::run(args, cx),
    }
}
