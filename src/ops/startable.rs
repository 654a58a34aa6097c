//! What keeps a guest from starting besides its devices and memory, known before anything is
//! changed: a restart must not power off what it cannot start again, and a preview says what the
//! start would.

use crate::apply::disk_conflict;
use crate::disks;
use crate::domain::DomainXml;
use crate::error::{Coded, Result};
use crate::hypervisor::uses::{Conflict, How};
use crate::nic_sources::{self, NoSource};
use crate::shell::word;
use crate::world::World;
use gpuvm_core::check::{self, Finding};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The reason a guest cannot start.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "start-")]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum StartError {
    /// Another uses a disk, or has an image over it.
    #[error("domain `{name}` cannot start: its disk {} is not free: {by}", path.display())]
    DiskInUse {
        name: String,
        /// The disk, or its backing file.
        path: PathBuf,
        by: String,
    },
    /// A file of a disk does not exist.
    #[error("domain `{name}` cannot start: {what}")]
    DiskMissing {
        name: String,
        /// The file, and which disk is on it.
        what: String,
    },
    /// A network of its NICs does not exist.
    #[error("domain `{name}` cannot start: there is no network `{network}`")]
    NoNetwork { name: String, network: String },
    /// A network of its NICs is down.
    #[error("domain `{name}` cannot start: network `{network}` is not active")]
    NetworkDown { name: String, network: String },
    /// A bridge or network device of its NICs does not exist, or takes no guests.
    #[error("domain `{name}` cannot start: {why}")]
    NoLink { name: String, why: String },
}

impl Coded for StartError {}

/// Refuses a guest whose start would write below another's image, or would fail for a disk.
pub(crate) fn refuse_disks(xml: &DomainXml, world: &World) -> Result<()> {
    let hypervisor = world.hypervisor()?;
    let name = xml.name();
    let missing = check::disks(xml, &disks::missing(xml, &*hypervisor)?).into_iter().next();
    if let Some(Finding { says, hint, .. }) = missing {
        return Err(StartError::DiskMissing { name, what: says.message }.hint(hint));
    }
    if let Some(Conflict { path, used, .. }) = disk_conflict(xml, true, &*hypervisor)? {
        let hint = match used.how {
            How::Over => format!(
                "`gpuvm disk list {}` lists the users of each disk; the image over this one is \
                 worthless once the guest writes it, so delete or copy that one first",
                word(&name)
            ),
            _ => format!("`gpuvm disk list {}` lists the users of each disk", word(&name)),
        };
        let by = used.to_string();
        return Err(StartError::DiskInUse { name, path, by }.hint(hint));
    }
    Ok(())
}

/// Says why a guest's start will fail for a network. It is no refusal: the network may come up
/// until then.
pub(crate) fn warn_of_networks_down(xml: &DomainXml, world: &World) -> Result<()> {
    if let Some((error, hint)) = network_down(xml, world)? {
        world.warning(&format!("{error}; {hint}"));
    }
    Ok(())
}

/// Refuses to stop a guest that could not be started again for a network.
pub(crate) fn refuse_networks_down(xml: &DomainXml, world: &World) -> Result<()> {
    network_down(xml, world)?.map_or(Ok(()), |(error, hint)| Err(error.hint(hint)))
}

/// Finds what a guest's NICs are connected to and is missing or down, with what helps.
fn network_down(xml: &DomainXml, world: &World) -> Result<Option<(StartError, String)>> {
    let name = xml.name();
    let first = nic_sources::missing(xml, &*world.hypervisor()?)?.into_iter().next();
    let Some((_, missing)) = first else { return Ok(None) };
    let hint = missing.hint(&name);
    let error = match missing {
        NoSource::Network(network) => StartError::NoNetwork { name, network },
        NoSource::Down(network) => StartError::NetworkDown { name, network },
        NoSource::Bridge(_) | NoSource::Device(_) | NoSource::Loopback(_) => {
            StartError::NoLink { name, why: missing.to_string() }
        }
    };
    Ok(Some((error, hint)))
}

/// The names of the networks that a guest's NICs are on.
pub(crate) fn networks_of(xml: &DomainXml) -> BTreeSet<String> {
    let devices = xml.root().children("devices");
    let nics = devices.flat_map(|devices| devices.children("interface"));
    nics.filter_map(|nic| Some(nic.child("source")?.attr("network")?.into_owned())).collect()
}
