//! `network delete`: deletes a network after naming the guests on it.

use super::find;
use super::guests::{Guests, effects_on_guests};
use crate::apply::{FileStep, NetworkStep, Step};
use crate::change::Change;
use crate::error::Result;
use crate::history::network::{directory, remember};
use crate::network::Kind;
use crate::reporter::{Deed, Question};
use crate::session::Session;
use crate::shell::word;
use crate::world::World;

/// The remains of a deleted network.
#[derive(Debug)]
pub struct Left {
    /// Whether `network undo` can restore it; a transient one is gone for good.
    pub is_kept: bool,
    /// The card whose virtual functions stay.
    pub card: Option<String>,
}

/// Deletes a network. Returns its remains.
pub fn take_away(session: &mut Session<'_>, name: &str) -> Result<Left> {
    session.check_first(|world| delete(world, name))?;
    Ok(session.run(|world| delete(world, name))?.change.about)
}

/// Plans a deletion; the effect on the guests on the network is listed as lost.
pub fn delete(world: &World, name: &str) -> Result<Change<Left>> {
    let hypervisor = &*world.hypervisor()?;
    let (state, network) = find(hypervisor, name)?;
    let guests = effects_on_guests(&network, &Guests::read(hypervisor)?.on(&network), false);
    let mut steps = if state.persistent {
        remember(&directory(world.state()), &state, hypervisor, None)?
    } else {
        Vec::new()
    };
    let is_kept = steps
        .iter()
        .any(|step| matches!(step, Step::File(FileStep::Remember { text: Some(_), .. })));
    let named = || name.to_owned();
    if state.autostart {
        steps.push(NetworkStep::Autostart { name: named(), on: false }.into());
    }
    if state.active {
        steps.push(NetworkStep::Stop { name: named() }.into());
    }
    if state.persistent {
        steps.push(NetworkStep::Undefine { name: named(), xml: state.xml }.into());
    }
    let card = network.nics.into_iter().next().filter(|_| network.kind == Kind::Sriov);
    let question = Some(Question::Name { deed: Deed::Delete, kind: "network", name: named() });
    let again = format!("gpuvm network delete {}", word(name));
    let change = Change::new("network delete", name, steps, Left { is_kept, card });
    Ok(Change { losses: guests, question, again, ..change })
}
