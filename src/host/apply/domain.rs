//! Checks for steps on domains: their machine, their state, their current identity.

use super::{Step, StepError};
use crate::hypervisor::machine::Machine;
use crate::hypervisor::{
    DomainState, DomainSummary, Hypervisor, HypervisorError, HypervisorErrorKind,
};

/// Refuses a step on this machine if the hypervisor's domains are on another: a path, a device or
/// an address there means something else here.
pub(super) fn refuse_elsewhere(step: &Step, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
    match hypervisor.machine() {
        Machine::Elsewhere { host } if step.is_of_machine() => Err(StepError::Elsewhere { host }),
        _ => Ok(()),
    }
}

/// The state of a domain; none: there is none of this name.
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

/// Makes the error of a domain that was off, and runs again.
pub(super) fn started_again(step: &Step) -> HypervisorError {
    let message = "it runs, so somebody has started it again".to_owned();
    let kind = HypervisorErrorKind::WrongState;
    HypervisorError { kind, doing: step.to_string(), message }
}

/// The domain of a name, which must have this UUID; none: there is none of this name.
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
