//! The identity of what a step has made, to recognize it later.

use super::Step;
use super::firmware::is_bare;
use crate::hypervisor::storage::is_file_pool;
use crate::hypervisor::{Hypervisor, HypervisorError, XmlOf};
use crate::identity::{FileId, Identity, sum_of};
use std::io;
use std::path::{Path, PathBuf};

/// Returns the identity of what a completed step has made, as far as visible.
pub(super) fn made(step: &Step, hypervisor: &dyn Hypervisor) -> Option<Identity> {
    let uuid = |name: &str| Some(hypervisor.domain(name).ok()??.uuid);
    match step {
        Step::DefineDomain { name, .. } => {
            let bare = is_bare(hypervisor, name).unwrap_or(false);
            Some(Identity::Domain { uuid: uuid(name)?, bare })
        }
        Step::StartDomain { name, .. }
        | Step::PinThread { name, .. }
        | Step::PlugVcpus { name, .. }
        | Step::AttachDisk { name, .. }
        | Step::DetachDisk { name, xml: Some(_), .. }
        | Step::AttachDevice { name, .. }
        | Step::DetachDevice { name, .. }
        | Step::UpdateDevice { name, .. } => {
            Some(Identity::Run { uuid: uuid(name)?, id: hypervisor.run_id(name).ok()? })
        }
        Step::RedefineDomain { name, .. } => {
            let sum = sum_of(&hypervisor.xml(name, XmlOf::Inactive).ok()?);
            Some(Identity::Definition { uuid: uuid(name)?, sum })
        }
        Step::MakeVolume { pool, volume, .. } => {
            let id = hypervisor.storage().volume_id(pool, &volume.name).ok()??;
            let file = volume_file(hypervisor, &id.path).ok()?;
            Some(Identity::Volume { key: id.key, file })
        }
        _ => None,
    }
}

/// Where a volume of a pool is, or will be; none: in no file of this machine.
pub fn volume_place(
    pool: &str,
    volume: &str,
    hypervisor: &dyn Hypervisor,
) -> Result<Option<PathBuf>, HypervisorError> {
    if !hypervisor.has_guests_here() {
        return Ok(None);
    }
    let pools = hypervisor.storage().pools()?;
    let pool = pools.into_iter().find(|known| known.name == pool && is_file_pool(&known.kind));
    Ok(pool.and_then(|pool| pool.path).map(|dir| dir.join(volume)))
}

/// The file of a volume; none: it is not a file of this machine.
pub fn volume_file(hypervisor: &dyn Hypervisor, path: &Path) -> io::Result<Option<FileId>> {
    match path.symlink_metadata() {
        _ if !hypervisor.machine().is_here() => Ok(None),
        Ok(meta) if meta.is_file() => Ok(Some(FileId::of(&meta))),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(None),
    }
}
