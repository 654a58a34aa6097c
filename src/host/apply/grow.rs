//! Grows a disk of a domain: through its guest, through its pool, or as a file. Never shrinks one.

use super::domain::row;
use super::proven::unseen;
use super::volume::volume_file;
use super::{Observer, StepError, disk};
use crate::hypervisor::storage::VolumeId;
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind};
use crate::identity::FileId;
use gpuvm_core::memsize::MemSize;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// How a domain's disk is grown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum GrowBy {
    /// Through the running guest.
    Guest,
    /// Through its pool, while the domain is off.
    Volume {
        /// The pool.
        pool: String,
        /// The volume.
        name: String,
        /// Its key; `None` if planned by an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// Identity of its file; `None` if it is on another machine, or planned by an older
        /// version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<FileId>,
    },
    /// As a file, while the domain is off.
    File {
        /// The raw image.
        path: PathBuf,
        /// Identity of the file.
        file: FileId,
        /// Whether the new blocks are reserved.
        reserve: bool,
    },
}

/// The growth of a domain's disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GrowStep {
    /// The domain's name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// The disk's name in it.
    pub target: String,
    /// Its size afterwards, in bytes.
    pub bytes: u64,
    /// How it is grown.
    pub by: GrowBy,
}

impl fmt::Display for GrowStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GrowStep { name, target, bytes, by, .. } = self;
        let size = MemSize::from_kib(bytes.div_ceil(1024));
        let of = if *by == GrowBy::Guest { "running domain" } else { "domain" };
        write!(f, "grow disk `{target}` of {of} `{name}` to {size}")
    }
}

impl GrowStep {
    /// Whether it grows a file of this machine.
    pub(super) fn is_of_machine(&self) -> bool {
        matches!(self.by, GrowBy::File { .. })
    }

    /// Grows a disk unless it is large enough. `later`: planned by an interrupted run, so that the
    /// guest may have been stopped or started since.
    pub(super) fn perform(
        &self,
        later: bool,
        hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
    ) -> Result<(), StepError> {
        let GrowStep { name, target, bytes, by, .. } = self;
        let runs = row(hypervisor, name)?.is_some_and(|state| state.is_active());
        let wrong = |message: &str| HypervisorError {
            kind: HypervisorErrorKind::WrongState,
            doing: self.to_string(),
            message: message.to_owned(),
        };
        match by {
            GrowBy::Guest if !runs && later => {
                observer.note(&format!(
                    "domain `{name}` has been stopped; disk `{target}` was not grown"
                ));
                Ok(())
            }
            GrowBy::Guest if !runs => Err(wrong("the guest has been stopped").into()),
            GrowBy::Guest => {
                let size = hypervisor.disk_size(name, target)?;
                if size.is_some_and(|size| size.capacity_bytes >= *bytes) {
                    Ok(())
                } else {
                    Ok(hypervisor.grow_disk(name, target, *bytes)?)
                }
            }
            // Only QEMU may grow a file that it has open.
            _ if runs && later => {
                observer.note(&format!(
                    "domain `{name}` has been started; disk `{target}` was not grown"
                ));
                Ok(())
            }
            _ if runs => Err(wrong("the guest was started meanwhile").into()),
            GrowBy::Volume { pool, name, key, file } => {
                let storage = hypervisor.storage();
                let known = storage.volume_id(pool, name)?;
                if let Some(now) = &known {
                    refuse_another(now, key.as_deref(), file.as_ref(), hypervisor)?;
                }
                if known.is_some_and(|known| known.capacity_bytes >= *bytes) {
                    Ok(())
                } else {
                    Ok(storage.grow_volume(pool, name, *bytes)?)
                }
            }
            GrowBy::File { path, file, reserve } => {
                let now = FileId::at(path).ok().flatten();
                if !now.is_some_and(|now| now.may_be(file)) {
                    let what = "it was replaced by another file".to_owned();
                    return Err(StepError::Changed { path: path.clone(), what });
                }
                Ok(disk::grow(path, *bytes, *reserve)?)
            }
        }
    }
}

/// Refuses a volume with another key or file than when this was planned: it was put in the place of
/// the disk.
fn refuse_another(
    now: &VolumeId,
    key: Option<&str>,
    file: Option<&FileId>,
    hypervisor: &dyn Hypervisor,
) -> Result<(), StepError> {
    let is_same_file = match file {
        None => true,
        Some(file) => volume_file(hypervisor, &now.path)
            .map_err(unseen(&now.path))?
            .is_some_and(|now| now.may_be(file)),
    };
    if is_same_file && key.is_none_or(|key| key == now.key) {
        Ok(())
    } else {
        let what = "it was replaced by another volume".to_owned();
        Err(StepError::Changed { path: now.path.clone(), what })
    }
}
