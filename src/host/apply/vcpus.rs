//! vCPUs of a running guest.

use super::StepError;
use crate::hypervisor::{Hypervisor, XmlOf};
use gpuvm_core::domain::DomainXml;
use gpuvm_core::domain::claims::Claims;

/// Has a running guest have this number of vCPUs. Refuses to take some of an emulated one: QEMU
/// does not tell when that has released them, so that libvirt would wait for it in vain.
pub(super) fn plug(hypervisor: &dyn Hypervisor, name: &str, vcpus: u32) -> Result<(), StepError> {
    let live = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?);
    let keeps = |live: &DomainXml| live.is_emulated() && has(live) > vcpus as usize;
    if live.as_ref().is_ok_and(keeps) {
        return Err(StepError::KeepsVcpus { name: name.to_owned() });
    }
    Ok(hypervisor.plug_vcpus(name, vcpus)?)
}

/// Takes back what was plugged into a guest, or plugs again what was taken. An emulated guest keeps
/// what it was given until it is off.
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
