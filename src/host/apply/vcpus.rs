//! vCPUs of a running guest.

use super::StepError;
use crate::hypervisor::{Hypervisor, XmlOf};
use gpuvm_core::domain::DomainXml;
use gpuvm_core::domain::claims::Claims;

/// Sets the number of vCPUs of a running guest. Refuses to remove any from an emulated one: QEMU
/// does not report their release, so libvirt would wait in vain.
pub(super) fn plug(hypervisor: &dyn Hypervisor, name: &str, vcpus: u32) -> Result<(), StepError> {
    let live = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?);
    let keeps = |live: &DomainXml| live.is_emulated() && has(live) > vcpus as usize;
    if live.as_ref().is_ok_and(keeps) {
        return Err(StepError::KeepsVcpus { name: name.to_owned() });
    }
    Ok(hypervisor.plug_vcpus(name, vcpus)?)
}

/// Unplugs vCPUs that were plugged into a guest, or plugs removed ones again. An emulated guest
/// keeps added ones until it is off.
pub(super) fn unplug(hypervisor: &dyn Hypervisor, name: &str, was: u32) -> Result<(), StepError> {
    match plug(hypervisor, name, was) {
        Err(StepError::KeepsVcpus { .. }) => Ok(()),
        done => done,
    }
}

/// How many vCPUs a running guest has.
fn has(live: &DomainXml) -> usize {
    Claims::read(live).plugged.len()
}
