//! How a guest that runs is given a disk.

use super::StepError;
use super::domain::row;
use crate::hypervisor::{DomainState, Hypervisor, HypervisorErrorKind, XmlOf};
use gpuvm_core::domain::DomainXml;

/// Whether a guest that runs has a disk.
fn has(hypervisor: &dyn Hypervisor, name: &str, path: &str) -> Result<bool, StepError> {
    match hypervisor.xml(name, XmlOf::Live) {
        // It has ended since.
        Err(error) if error.kind == HypervisorErrorKind::NoDomain => Ok(false),
        live => {
            let live = DomainXml::parse(&live?).ok();
            Ok(live.is_some_and(|live| live.disk(path).is_some()))
        }
    }
}

/// Refuses a disk that somebody else has given the guest, so that it is not taken away again as ours.
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

/// Gives a guest a disk, unless it has it, or does not run.
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
