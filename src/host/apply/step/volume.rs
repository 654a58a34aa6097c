//! Steps on pools and volumes of the hypervisor.

use super::StepError;
use super::noun::{Noun, Ours, interruptible};
use crate::apply::domain::refused;
use crate::apply::proven::not_ours;
use crate::apply::secret::Secret;
use crate::apply::volume::{self, volume_file, volume_place};
use crate::apply::{Observer, copy, disk, last_check};
use crate::hypervisor::storage::NewVolume;
use crate::hypervisor::{Hypervisor, HypervisorErrorKind};
use crate::identity::{FileId, Identity, Proof};
use gpuvm_core::domain::guest::VolumeRef;
use gpuvm_core::image::{Sha256, Summing};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::shell::word;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Read;
use std::path::PathBuf;

/// How the name of an empty volume ends that reserves the name of an image while that is copied.
pub const RESERVATION: &str = ".adding";

/// One change of a pool or a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum VolumeStep {
    /// Creates a pool with an unused name on a directory.
    MakePool {
        /// Its name.
        name: String,
        /// The directory.
        path: PathBuf,
    },
    /// Creates a volume with an unused name.
    #[serde(rename = "make-volume")]
    Make {
        /// Its pool.
        pool: String,
        /// The planned volume.
        volume: NewVolume,
        /// The volume whose content it gets; `None` if it is blank.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<VolumeRef>,
    },
    /// Grows a volume; undone with the volume.
    #[serde(rename = "grow-volume")]
    Grow {
        /// Its pool.
        pool: String,
        /// Its name.
        name: String,
        /// Its size, in bytes.
        bytes: u64,
    },
    /// Fills a volume with a file of this machine; undone with the volume.
    #[serde(rename = "fill-volume")]
    Fill {
        /// Its pool.
        pool: String,
        /// Its name.
        name: String,
        /// The file.
        source: PathBuf,
        /// Bytes of the file.
        bytes: u64,
        /// SHA-256 of the file when the change was planned; `None` if not read then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sha256: Option<Sha256>,
    },
    /// Fills a volume with confidential bytes; undone with the volume.
    #[serde(rename = "seal-volume")]
    Seal {
        /// Its pool.
        pool: String,
        /// Its name.
        name: String,
        /// The bytes. They are not written into a journal and not printed.
        #[serde(skip)]
        content: Secret,
    },
    /// Deletes a volume created for a domain; not undone, so it comes last.
    #[serde(rename = "delete-volume")]
    Delete {
        /// Its pool.
        pool: String,
        /// Its name.
        name: String,
        /// Identity of the file; `None` if not on this machine, or recorded by an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<FileId>,
    },
}

impl VolumeStep {
    /// Whether it makes a volume only to reserve the name of an image, or deletes that.
    pub(super) fn reserves(&self) -> bool {
        match self {
            VolumeStep::Make { volume, .. } => {
                volume.name.ends_with(RESERVATION) && volume.capacity_bytes == 0
            }
            VolumeStep::Delete { name, .. } => name.ends_with(RESERVATION),
            _ => false,
        }
    }

    /// Refuses a name that a volume or a file has.
    fn expects_free(
        &self,
        pool: &str,
        name: &str,
        hypervisor: &dyn Hypervisor,
    ) -> Result<(), StepError> {
        if hypervisor.storage().volumes(pool)?.iter().any(|other| other.name == name) {
            let message = "the pool has a volume of this name".to_owned();
            return Err(refused(HypervisorErrorKind::Exists, self, message).into());
        }
        if let Some(path) = volume_place(pool, name, hypervisor)? {
            // Where libvirt cannot make the volume, it deletes an existing file.
            disk::absent(&path)?;
        }
        Ok(())
    }
}

impl Noun for VolumeStep {
    fn expects(&self, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
        match self {
            VolumeStep::MakePool { name, .. }
                if hypervisor.storage().pools()?.iter().any(|pool| pool.name == *name) =>
            {
                let message = format!("{} has a pool of this name", hypervisor.uri());
                Err(refused(HypervisorErrorKind::Exists, self, message).into())
            }
            VolumeStep::Make { pool, volume, .. } => {
                self.expects_free(pool, &volume.name, hypervisor)
            }
            _ => Ok(()),
        }
    }

    fn stays(&self, later: bool, hypervisor: &dyn Hypervisor) -> Result<Option<String>, StepError> {
        match self {
            VolumeStep::Delete { pool, name, file } => {
                last_check::volume_stays((pool, name), file.as_ref(), later, hypervisor)
            }
            _ => Ok(None),
        }
    }

    fn perform(
        &self,
        hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
        ours: &mut Ours<'_>,
    ) -> Result<(), StepError> {
        let storage = hypervisor.storage();
        match self {
            VolumeStep::MakePool { name, path } => {
                Ok(storage.make_pool(name, path, ours.mark.uuid().as_deref())?)
            }
            VolumeStep::Make { pool, volume, from } => {
                let new = volume::New { pool, volume, from: from.as_ref() };
                let token = ours.mark.token();
                volume::make(new, token.as_deref(), hypervisor, observer, ours.made)
            }
            VolumeStep::Grow { pool, name, bytes } => Ok(storage.grow_volume(pool, name, *bytes)?),
            VolumeStep::Fill { pool, name, source, bytes, sha256 } => {
                let mut file = Summing::new(disk::open(source)?);
                fill(hypervisor, observer, (pool, name), &mut file, *bytes)?;
                copy::same(source, file.end(), (*sha256, *bytes))
            }
            VolumeStep::Seal { pool, name, content } => {
                let content = content.bytes()?;
                let bytes = content.len() as u64;
                fill(hypervisor, observer, (pool, name), &mut &content[..], bytes)
            }
            VolumeStep::Delete { pool, name, .. } => Ok(storage.delete_volume(pool, name)?),
        }
    }

    fn made(&self, hypervisor: &dyn Hypervisor) -> Option<Identity> {
        let VolumeStep::Make { pool, volume, .. } = self else { return None };
        let id = hypervisor.storage().volume_id(pool, &volume.name).ok()??;
        let file = volume_file(hypervisor, &id.path).ok()?;
        Some(Identity::Volume { key: id.key, file })
    }

    fn undo(&self, hypervisor: &dyn Hypervisor, proof: &Proof<'_>) -> Result<(), StepError> {
        match self {
            VolumeStep::MakePool { name, .. } => forget_pool(hypervisor, name, proof),
            VolumeStep::Make { pool, volume, .. } => {
                volume::delete_made(hypervisor, pool, volume, proof)
            }
            // With the volume, or not at all.
            VolumeStep::Grow { .. }
            | VolumeStep::Fill { .. }
            | VolumeStep::Seal { .. }
            | VolumeStep::Delete { .. } => Ok(()),
        }
    }

    fn by_hand(&self) -> Option<String> {
        match self {
            VolumeStep::MakePool { name, .. } => Some(format!("virsh pool-destroy {}", word(name))),
            VolumeStep::Make { pool, volume, .. } => {
                Some(format!("virsh vol-delete --pool {} {}", word(pool), word(&volume.name)))
            }
            _ => None,
        }
    }

    fn is_final(&self) -> bool {
        matches!(self, VolumeStep::Delete { .. })
    }
}

impl fmt::Display for VolumeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeStep::MakePool { name, path } => {
                write!(f, "make pool `{name}` over {}", path.display())
            }
            VolumeStep::Make { pool, volume, from } => {
                let size = MemSize::from_kib(volume.capacity_bytes.div_ceil(1024));
                let NewVolume { name, format, preallocated, backing, .. } = volume;
                let taken = if *preallocated { "preallocated" } else { "growing as it is written" };
                write!(f, "make volume `{name}` of {size} in pool `{pool}`, {format}, {taken}")?;
                match (from, backing) {
                    (Some(from), _) => {
                        write!(f, ", a copy of `{}` in pool `{}`", from.name, from.pool)
                    }
                    (None, Some((path, _))) => write!(f, ", over {}", path.display()),
                    (None, None) => Ok(()),
                }
            }
            VolumeStep::Grow { pool, name, bytes } => {
                let size = MemSize::from_kib(bytes.div_ceil(1024));
                write!(f, "grow volume `{name}` of pool `{pool}` to {size}")
            }
            VolumeStep::Fill { pool, name, source, .. } => {
                write!(f, "fill volume `{name}` of pool `{pool}` from {}", source.display())
            }
            VolumeStep::Seal { pool, name, .. } => {
                write!(f, "write the seed into volume `{name}` of pool `{pool}`")
            }
            VolumeStep::Delete { pool, name, .. } => {
                write!(f, "delete volume `{name}` of pool `{pool}`")
            }
        }
    }
}

/// Fills a volume, given by pool and name; a signal cancels.
fn fill(
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    (pool, name): (&str, &str),
    from: &mut dyn Read,
    bytes: u64,
) -> Result<(), StepError> {
    interruptible(observer, bytes, |progress| {
        Ok(hypervisor.storage().upload(pool, name, from, progress)?)
    })
}

/// Undefines a pool that was made, unless others have a volume in it now.
fn forget_pool(
    hypervisor: &dyn Hypervisor,
    name: &str,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    let storage = hypervisor.storage();
    let Some(now) = storage.pool_uuid(name)? else { return Ok(()) };
    if proof.mark.uuid() != Some(now) {
        return not_ours(format!("pool `{name}`"), "its UUID is another");
    }
    let pools = storage.pools()?;
    // An inactive pool cannot be listed, and no volumes can be created in it either.
    let is_active = pools.iter().any(|pool| pool.name == name && pool.active);
    if is_active && let Some(volume) = storage.volumes(name)?.first() {
        let (what, by) = (format!("pool `{name}`"), format!("volume `{}`", volume.name));
        return Err(StepError::InUse { what, by });
    }
    Ok(storage.forget_pool(name)?)
}
