//! Networks of the hypervisor: `network create`, `network delete`, `network undo`, and their
//! reports. Knows which guests are on a network; who reaches whom there, and which network results
//! from a request, is decided in [`crate::network`].

pub mod create;
pub mod delete;
mod demand;
pub mod doctor;
mod error;
pub mod facts;
mod fit;
mod guests;
pub mod undo;

pub use demand::{on_demand, taken_up};
pub use error::NetworkError;
pub use fit::refuse_unfit;
pub use guests::{GuestNic, Guests};

use crate::change::Change;
use crate::error::{Class, Coded as _, Doing as _, Result, classed};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::network::NetworkState;
use crate::network::Network;
use crate::network::host::HostNetwork;
use crate::session::{Done, Running, Session};
use crate::shell::word;
use crate::world::World;

/// The network of a name, with its parsed definition.
pub fn find(hypervisor: &dyn Hypervisor, name: &str) -> Result<(NetworkState, Network)> {
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

/// The result of a change of a network, and the network after it.
#[derive(Debug)]
pub struct Answered<T> {
    /// The change.
    pub done: Done<T>,
    /// The network, as it was while others could not change it through gpuvm.
    pub network: Network,
}

/// Makes a change that results in a network, which is read before others can change it; `now` is
/// the network read by the plan if there is nothing to do.
fn answered<T>(
    session: &mut Session<'_>,
    name: &str,
    plan: impl Fn(&World) -> Result<Change<T>>,
    now: impl FnOnce(&T) -> Option<Network>,
) -> Result<Answered<T>> {
    session.check_first(&plan)?;
    // The change is finished even if the network cannot be read.
    let read = |running: &mut Running<'_, '_>, _: &Change<T>| Ok(find(running.hypervisor, name));
    let (done, read) = session.run_and(plan, read)?;
    let network = match (read, now(&done.change.about)) {
        (Some(read), _) => read?.1,
        (None, Some(now)) => now,
        (None, None) => find(&*session.hypervisor()?, name)?.1,
    };
    Ok(Answered { done, network })
}

/// Parses a network's definition.
pub fn read(state: &NetworkState) -> Result<Network> {
    Network::read(state.now()).map_err(|reason| {
        NetworkError::Definition { name: state.name.clone(), reason }
            .hint(format!("`virsh net-dumpxml {}` shows it", word(&state.name)))
    })
}

/// The links, addresses and routes of the host that guests run on; `None` if it is another one.
fn host(world: &World) -> Result<Option<HostNetwork>> {
    world.has_guests_here()?.then(this_host).transpose()
}

/// This host's links, addresses and routes.
pub fn this_host() -> Result<HostNetwork> {
    crate::discover::network::network()
        .doing(|| "cannot read this host's links, addresses and routes".into())
}

#[cfg(test)]
mod tests;
