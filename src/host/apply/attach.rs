//! Attaches a device to a running guest.

use super::StepError;
use super::domain::row;
use crate::hypervisor::{DomainState, Hypervisor, HypervisorErrorKind, XmlOf};
use gpuvm_core::domain::DomainXml;
use gpuvm_core::domain::live::Plugged;

/// Whether a running guest has a device.
fn has(hypervisor: &dyn Hypervisor, name: &str, device: &Plugged) -> Result<bool, StepError> {
    match hypervisor.xml(name, XmlOf::Live) {
        // It has been stopped and is gone.
        Err(error) if error.kind == HypervisorErrorKind::NoDomain => Ok(false),
        live => {
            let live = DomainXml::parse(&live?).ok();
            Ok(live.is_some_and(|live| device.find(&live).is_some()))
        }
    }
}

/// Refuses a device that others have attached, so that undoing does not detach it as ours.
pub(super) fn expects(
    hypervisor: &dyn Hypervisor,
    name: &str,
    device: &Plugged,
) -> Result<(), StepError> {
    if !has(hypervisor, name, device)? {
        return Ok(());
    }
    match device {
        Plugged::Disk(path) => {
            let by = format!("running domain `{name}` already has it");
            Err(StepError::Taken { path: path.into(), by })
        }
        _ => Err(StepError::Plugged { name: name.to_owned(), device: device.clone() }),
    }
}

/// Attaches a device, unless the guest has it already or is off.
pub(super) fn device(
    hypervisor: &dyn Hypervisor,
    name: &str,
    device: &Plugged,
    xml: &str,
) -> Result<(), StepError> {
    if !row(hypervisor, name)?.is_some_and(DomainState::has_guest) {
        return Ok(());
    }
    if has(hypervisor, name, device)? {
        return Ok(());
    }
    Ok(hypervisor.attach(name, xml)?)
}
