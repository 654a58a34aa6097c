//! Steps that look at disks and change nothing.

use super::StepError;
use super::noun::{Noun, Ours};
use crate::apply::compare::{self, Comparison, MadeAs};
use crate::apply::copy::WrittenVolume;
use crate::apply::{Observer, disk};
use crate::hypervisor::Hypervisor;
use crate::identity::Proof;
use gpuvm_core::memsize::MemSize;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// One check of a disk, which changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum CheckStep {
    /// Refuses a volume whose format, as detected by the hypervisor, is not the intended one, or
    /// whose bytes are not those that were written.
    #[serde(rename = "check-volume")]
    Volume(WrittenVolume),
    /// Refuses a volume whose content differs from another disk's, and a running domain, which may
    /// write to either.
    #[serde(rename = "compare-disk")]
    Compare(Comparison),
    /// Refuses a disk that has changed since a guest was made with it: its guest has written to it.
    /// Judged by its bytes alone.
    #[serde(rename = "check-as-made")]
    AsMade {
        /// The domain that uses it.
        domain: String,
        /// The file.
        path: PathBuf,
        /// Its recorded state.
        made: MadeAs,
    },
    /// Refuses a file that was copied if it was written since the change was planned, or is open: a
    /// guest that ran between two copies has them of different times.
    #[serde(rename = "check-source")]
    Source {
        /// The file.
        path: PathBuf,
        /// Its size, in bytes.
        bytes: u64,
        /// When it was last written, in nanoseconds since 1970.
        modified_ns: i64,
    },
}

impl CheckStep {
    /// The name of the domain that uses the disk; `None` if unknown.
    pub(super) fn name_mut(&mut self) -> Option<&mut String> {
        match self {
            CheckStep::Compare(Comparison { domain, .. }) | CheckStep::AsMade { domain, .. } => {
                Some(domain)
            }
            CheckStep::Volume(_) | CheckStep::Source { .. } => None,
        }
    }
}

impl Noun for CheckStep {
    fn perform(
        &self,
        hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
        _ours: &mut Ours<'_>,
    ) -> Result<(), StepError> {
        match self {
            CheckStep::Volume(volume) => volume.check(hypervisor, observer),
            CheckStep::Compare(comparison) => comparison.perform(hypervisor, observer),
            CheckStep::AsMade { domain, path, made } => {
                compare::as_made(domain, path, made, hypervisor, observer)
            }
            CheckStep::Source { path, bytes, modified_ns } => {
                Ok(disk::expect_unwritten(path, *bytes, *modified_ns)?)
            }
        }
    }

    fn undo(&self, _: &dyn Hypervisor, _: &Proof<'_>) -> Result<(), StepError> {
        Ok(())
    }

    fn leaves_nothing(&self) -> bool {
        true
    }

    fn is_of_machine(&self) -> bool {
        match self {
            CheckStep::Volume(_) => false,
            CheckStep::Compare(comparison) => comparison.content,
            CheckStep::AsMade { .. } | CheckStep::Source { .. } => true,
        }
    }
}

impl fmt::Display for CheckStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckStep::Volume(WrittenVolume { pool, name, format, capacity_bytes, .. }) => {
                let size = MemSize::from_kib(capacity_bytes.div_ceil(1024));
                write!(f, "verify that volume `{name}` of pool `{pool}` is {format} of {size}")
            }
            CheckStep::Compare(Comparison { pool, volume, disk, content, .. }) => {
                let how = if *content { "byte for byte" } else { "by its size" };
                let disk = disk.display();
                write!(f, "compare volume `{volume}` of pool `{pool}` with {disk} {how}")
            }
            CheckStep::AsMade { domain, path, .. } => {
                let path = path.display();
                write!(f, "verify that domain `{domain}` has not written to {path}")
            }
            CheckStep::Source { path, .. } => {
                write!(f, "verify that {} has not been written since", path.display())
            }
        }
    }
}
