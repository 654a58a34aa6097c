//! `network list`, `show`, `create`, `delete`, `undo`: libvirt's networks; `network host-bridge`: the host's own bridges;
//! `network doctor`: the paths of a guest's NICs.

pub mod bridge;
pub(super) mod create;
mod delete;
mod demand;
pub(super) mod doctor;
pub mod error;
mod guests;
pub(super) mod list;
mod prepare;
pub(super) mod show;
mod undo;
mod wishes;

pub use bridge::{delete as delete_bridge, made as made_bridge};
pub use demand::on_demand;
pub use wishes::refuse_unfit;

use super::args::NetworkVerb;
use super::codes::Class;
use super::context::Context;
use super::error::{Coded, classed};
use crate::cli::network::error::NetworkError;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::network::NetworkState;
use crate::network::Network;
use crate::shell::word;

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

/// The network of a name, with what its definition says.
fn find(hypervisor: &dyn Hypervisor, name: &str) -> anyhow::Result<(NetworkState, Network)> {
    let Some(state) = hypervisor.networks().network(name)? else {
        let message = format!("{} has no network `{name}`", hypervisor.uri());
        return Err(classed(
            Class::NotFound,
            message,
            "`gpuvm network list` shows those that are there",
        ));
    };
    let network = read(&state)?;
    Ok((state, network))
}

/// What a network's definition says.
fn read(state: &NetworkState) -> anyhow::Result<Network> {
    Network::read(state.now()).map_err(|reason| {
        NetworkError::Definition { name: state.name.to_string(), reason: reason.to_string() }
            .hint(format!("`virsh net-dumpxml {}` shows it", word(&state.name)))
    })
}
