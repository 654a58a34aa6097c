//! Proves that the object to be undone is exactly the product of a step, and unused by others.

use super::StepError;
use super::disk::DiskError;
use super::domain::is_active;
use super::last_check::UNBORN;
use crate::discover::hung_mounts::Silent;
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::{Hypervisor, HypervisorErrorKind};
use crate::identity::{FileId, Identity, Proof};
use std::path::Path;

/// Makes the error of something that a step did not make.
pub(super) fn not_ours<T>(what: impl ToString, why: &str) -> Result<T, StepError> {
    Err(StepError::NotOurs { what: what.to_string(), why: why.to_owned() })
}

/// Makes the error of a file that cannot be inspected.
pub(super) fn unseen(path: &Path) -> impl FnOnce(std::io::Error) -> StepError + '_ {
    move |source| DiskError::Other { path: path.to_owned(), source }.into()
}

/// Whether the file at a path is the product of a step; false: it does not exist.
pub(super) fn is_made(path: &Path, proof: &Proof<'_>) -> Result<bool, StepError> {
    if let Some(why) = Silent::read().why(path) {
        return not_ours(path.display(), &why);
    }
    let Some(now) = FileId::at(path).map_err(unseen(path))? else { return Ok(false) };
    match &proof.made {
        Some(Identity::File(made)) if made.is(&now, proof.same_boot) => Ok(true),
        Some(Identity::File(made)) if made.may_be(&now) => not_ours(path.display(), UNBORN),
        Some(_) => not_ours(path.display(), "it was recreated since"),
        // It gets its name only after its identity is in the journal.
        None => not_ours(
            path.display(),
            "it was not made by this gpuvm, but by another tool or an older version",
        ),
    }
}

/// Refuses a file or volume that is in use.
pub(super) fn unused(hypervisor: &dyn Hypervisor, path: &Path) -> Result<(), StepError> {
    let what = || path.display().to_string();
    let users = match Uses::read(hypervisor) {
        // The uses of a definition that cannot be parsed are unknown, so everything stays.
        Err(error) if error.kind == HypervisorErrorKind::BadXml => {
            return Err(StepError::InUse { what: what(), by: format!("perhaps another: {error}") });
        }
        users => users?.of(path),
    };
    let Some(first) = users.first() else { return Ok(()) };
    Err(StepError::InUse { what: what(), by: first.to_string() })
}

/// Whether the same run of the guest whose live state was changed still runs; another run never had
/// that change.
pub(super) fn running(
    hypervisor: &dyn Hypervisor,
    name: &str,
    proof: &Proof<'_>,
) -> Result<bool, StepError> {
    let Some(row) = hypervisor.domain(name)?.filter(|row| is_active(Some(row.state))) else {
        return Ok(false);
    };
    match &proof.made {
        Some(Identity::Run { uuid, id }) => {
            Ok(row.uuid == *uuid && (id.is_none() || hypervisor.run_id(name)? == *id))
        }
        _ => Ok(true),
    }
}
