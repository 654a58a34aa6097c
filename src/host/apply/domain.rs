//! Checks for steps on domains: their state, their current identity.

use super::StepError;
use crate::hypervisor::{
    DomainState, DomainSummary, Hypervisor, HypervisorError, HypervisorErrorKind,
};
use std::fmt;

/// The state of a domain; `None` if there is none of this name.
pub(super) fn row(
    hypervisor: &dyn Hypervisor,
    name: &str,
) -> Result<Option<DomainState>, HypervisorError> {
    Ok(hypervisor.domain(name)?.map(|row| row.state))
}

/// Whether a domain in this state has a QEMU.
pub(super) fn is_active(state: Option<DomainState>) -> bool {
    state.is_some_and(DomainState::is_active)
}

/// Makes the error of a step whose subject is not as expected.
pub(super) fn refused(
    kind: HypervisorErrorKind,
    step: &impl fmt::Display,
    message: String,
) -> HypervisorError {
    HypervisorError { kind, doing: step.to_string(), message }
}

/// Makes the error of a domain that was off, and runs again.
pub(super) fn started_again(step: &impl fmt::Display) -> HypervisorError {
    let message = "it runs, so somebody has started it again".to_owned();
    refused(HypervisorErrorKind::WrongState, step, message)
}

/// The domain of a name, which must have this UUID; `None` if there is none of this name.
pub(super) fn of_uuid(
    hypervisor: &dyn Hypervisor,
    name: &str,
    uuid: &str,
) -> Result<Option<DomainSummary>, StepError> {
    match hypervisor.domain(name)? {
        Some(row) if row.uuid != uuid => Err(StepError::OtherDomain {
            name: name.to_owned(),
            uuid: uuid.to_owned(),
            theirs: row.uuid,
        }),
        row => Ok(row),
    }
}

/// Treats a missing domain, pool or volume as removed.
pub(super) fn gone_is_good(result: Result<(), StepError>) -> Result<(), StepError> {
    let gone = [HypervisorErrorKind::NoDomain, HypervisorErrorKind::NoVolume];
    match result {
        Err(StepError::Hypervisor(error)) if gone.contains(&error.kind) => Ok(()),
        result => result,
    }
}
