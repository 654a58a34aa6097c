//! The occupancy of domains whose devices have moved: each is held at its present address, by the
//! identity that is recorded for it.

use crate::bdf::Bdf;
use crate::discover::identity::Finder;
use crate::error::Result;
use crate::fsroot::FsRoot;
use crate::placement::{Held, Moved};
use crate::topology::{KnownDevice, Likeness};
use std::collections::BTreeSet;

/// Completes the occupancy of domains by the records about them (`known`, with the domain of each):
/// a device that has moved is held at its present address. Its old address stays held, since the
/// definition has it, unless the device there is proven to be another domain's. The devices of a
/// running domain stay its own.
pub(crate) fn relocate(
    root: &FsRoot,
    domains: &mut [Held],
    known: &[(String, KnownDevice)],
) -> Result<()> {
    let finder = Finder::new(root);
    // A domain and a function that is proven to be its own, or to be another's than it was.
    let (mut own, mut outdated) = (BTreeSet::new(), BTreeSet::new());
    let mut moved = Vec::new();
    for (domain, one) in known {
        let found = finder.whereabouts(one)?;
        match found.likeness {
            Likeness::Same => drop(own.insert((domain, one.bdf))),
            Likeness::Other => drop(outdated.insert((domain, one.bdf))),
            Likeness::Unproven => {}
        }
        let is_drive = one.identity.is_of_drive();
        let is_sure = found.places.len() == 1;
        for bdf in found.places {
            // Of several that report the same, none is proven to be its own.
            if is_sure {
                own.insert((domain, bdf));
            }
            moved.push((domain, Moved { bdf, was: one.bdf, is_drive, is_sure }));
        }
    }
    for held in domains {
        let name = held.domain.clone();
        if !held.active {
            let is_of_another = |bdf: Bdf| own.iter().any(|(of, at)| *at == bdf && **of != name);
            held.devices.retain(|bdf| !outdated.contains(&(&name, *bdf)) || !is_of_another(*bdf));
        }
        let its = moved.iter().filter(|(domain, _)| **domain == name);
        its.for_each(|(_, moved)| held.add_moved(*moved));
    }
    Ok(())
}
