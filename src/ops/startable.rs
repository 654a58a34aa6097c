//! What keeps a guest from starting besides its devices and memory, known before anything is
//! changed: a restart must not power off what it cannot start again, and a preview says what the
//! start would.

use crate::apply::disk_conflict;
use crate::disks;
use crate::domain::DomainXml;
use crate::error::{Coded, Result};
use crate::hypervisor::uses::{Conflict, How};
use crate::shell::word;
use crate::world::World;
use gpuvm_core::check::{self, Finding};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The reason a guest cannot start.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "start-")]
pub enum StartError {
    /// Another uses a disk, or has an image over it.
    #[error("domain `{name}` cannot start: its disk {} is not free: {by}", path.display())]
    DiskInUse {
        /// The domain.
        name: String,
        /// The disk, or its backing file.
        path: PathBuf,
        /// Who uses it, and how.
        by: String,
    },
    /// A file of a disk does not exist.
    #[error("domain `{name}` cannot start: {what}")]
    DiskMissing {
        /// The domain.
        name: String,
        /// The file, and which disk is on it.
        what: String,
    },
    /// A network of its NICs does not exist.
    #[error("domain `{name}` cannot start: there is no network `{network}`")]
    NoNetwork {
        /// The domain.
        name: String,
        /// The network.
        network: String,
    },
    /// A network of its NICs is down.
    #[error("domain `{name}` cannot start: network `{network}` is not active")]
    NetworkDown {
        /// The domain.
        name: String,
        /// The network.
        network: String,
    },
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

/// Finds a network of a guest's NICs that is missing or down, with what helps.
fn network_down(xml: &DomainXml, world: &World) -> Result<Option<(StartError, String)>> {
    let hypervisor = world.hypervisor()?;
    let name = xml.name();
    let named = networks_of(xml);
    if named.is_empty() {
        return Ok(None);
    }
    let known = hypervisor.networks().all_networks()?;
    for network in named {
        let found = known.iter().find(|known| known.name == network);
        return Ok(Some(match found {
            Some(network) if network.active => continue,
            Some(_) => {
                let hint = format!("`virsh net-start {}` starts it", word(&network));
                (StartError::NetworkDown { name, network }, hint)
            }
            None => {
                let hint = format!(
                    "`gpuvm network create {}` makes it, `gpuvm set {} --network NAME` takes \
                     another one",
                    word(&network),
                    word(&name)
                );
                (StartError::NoNetwork { name, network }, hint)
            }
        }));
    }
    Ok(None)
}

/// The names of the networks that a guest's NICs are on.
pub(crate) fn networks_of(xml: &DomainXml) -> BTreeSet<String> {
    let devices = xml.root().children("devices");
    let nics = devices.flat_map(|devices| devices.children("interface"));
    nics.filter_map(|nic| Some(nic.child("source")?.attr("network")?.into_owned())).collect()
}
