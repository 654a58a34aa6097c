//! Attaches a disk to a running guest.

use super::StepError;
use super::domain::row;
use crate::hypervisor::{DomainState, Hypervisor, HypervisorErrorKind, XmlOf};
use gpuvm_core::domain::DomainXml;

/// Whether a running guest has a disk.
fn has(hypervisor: &dyn Hypervisor, name: &str, path: &str) -> Result<bool, StepError> {
    match hypervisor.xml(name, XmlOf::Live) {
        // It has been stopped and is gone.
        Err(error) if error.kind == HypervisorErrorKind::NoDomain => Ok(false),
        live => {
            let live = DomainXml::parse(&live?).ok();
            Ok(live.is_some_and(|live| live.disk(path).is_some()))
        }
    }
}

/// Refuses a disk that somebody else has attached, so that undoing does not detach it as ours.
pub(super) fn expects(
    hypervisor: &dyn Hypervisor,
    name: &str,
    path: &str,
) -> Result<(), StepError> {
    if !has(hypervisor, name, path)? {
        return Ok(());
    }
    let by = format!("domain `{name}` runs with it already");
    Err(StepError::Taken { path: path.into(), by })
}

/// Attaches a disk, unless the guest has it already or is off.
pub(super) fn disk(
    hypervisor: &dyn Hypervisor,
    name: &str,
    path: &str,
    xml: &str,
) -> Result<(), StepError> {
    if !row(hypervisor, name)?.is_some_and(DomainState::has_guest) {
        return Ok(());
    }
    if has(hypervisor, name, path)? {
        return Ok(());
    }
    Ok(hypervisor.attach(name, xml)?)
}
