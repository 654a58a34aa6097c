//! `clone`: a copy of a guest that is off, with a name, a UUID, MAC addresses, settings of
//! firmware, disks and a seed of its own. Its disks are whole copies, so that neither guest needs
//! the other, or with --overlay images over those of the first, which are not written any more; its
//! place and its GPUs are planned as those of a new guest. It is not started, and `undo` deletes it
//! again.

#[cfg(test)]
mod tests;

pub use crate::copied::{CloneError, CloneRequest, Copied};

use crate::bdf::Bdf;
use crate::change::Change;
use crate::copied::{
    Another, Overlays, another, copies, is_ours, overlays, refuse_busy, refuse_devices,
};
use crate::domain::DomainXml;
use crate::error::{Coded as _, Result};
use crate::guest::refuse_name_taken;
use crate::hypervisor::XmlOf;
use crate::hypervisor::file_users::Uses;
use crate::lookup::{find, refuse_unread};
use crate::shell::word;
use crate::world::World;
use gpuvm_core::guest::gpus_of;
use serde::Serialize;

/// A guest that is a clone.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClonedGuest {
    /// Its name.
    pub name: String,
    /// The guest that it was made of.
    pub of: String,
    /// Its UUID; `None` if libvirt chooses one.
    pub uuid: Option<String>,
    /// Its passed-through functions.
    pub devices: Vec<Bdf>,
    /// The MAC addresses of its NICs.
    pub macs: Vec<String>,
    /// Its copies of disks, or its images over those.
    pub disks: Vec<Copied>,
    /// The images that the other has got over its disks, too; empty: its disks stay as they are.
    pub original: Vec<Copied>,
    /// Its definition.
    #[serde(skip)]
    pub definition: String,
    /// The definition of the other before and after; `None` if that stays as it is.
    #[serde(skip)]
    pub changed: Option<(String, String)>,
}

/// Plans a clone; its data is the guest as it is to be.
pub fn clone(world: &World, wanted: &CloneRequest) -> Result<Change<ClonedGuest>> {
    let hypervisor = &*world.hypervisor()?;
    let (name, to) = (&wanted.name, wanted.to.as_str());
    let row = find(hypervisor, name)?;
    let again = wanted.again();
    refuse_busy(world, hypervisor, &row, &again[6..])?;
    refuse_name_taken(hypervisor, to, (format!("clone domain `{name}` to `{to}`"), "name"))?;
    let source = DomainXml::parse(&hypervisor.xml(name, XmlOf::Inactive)?)?;
    refuse_unread(&source)?;
    if !is_ours(&source) {
        let hint = format!(
            "`virt-clone --original {} --name {} --auto-clone` clones a domain of anybody",
            word(name),
            word(to)
        );
        return Err(CloneError::NotOurs { name: name.clone() }.hint(hint));
    }
    let topology = world.topology()?;
    refuse_devices(name, &source, &topology)?;
    let uses = Uses::read(hypervisor)?;
    let gpus = u32::try_from(gpus_of(&source, &topology).len()).unwrap_or(u32::MAX);
    let made = if wanted.overlay {
        overlays(&source, wanted, &row, &uses, hypervisor, world)?
    } else {
        let copies = copies(&source, wanted, &row, &uses, hypervisor, &world.state_root())?;
        Overlays { copies, source, first: None, disks: Vec::new() }
    };
    let Overlays { copies, source, first, disks: original } = made;
    let both = first.as_ref().map(|first| (first.before.clone(), first.after.text().to_owned()));
    let of = Another {
        verb: "clone",
        again,
        what: format!("clone of domain `{name}`"),
        source: &source,
        gpus,
        copies,
        first,
        stays: None,
        is_elsewhere: false,
    };
    another(world, wanted, of, |made| ClonedGuest {
        name: made.name,
        of: name.clone(),
        uuid: made.uuid,
        devices: made.devices,
        macs: made.macs,
        disks: made.disks,
        original,
        definition: made.definition,
        changed: both,
    })
}
