//! Performs steps on domains.

use super::DomainStep;
use crate::apply::domain::{is_active, row, started_again};
use crate::apply::{Observer, StepError};
use crate::hypervisor::{AskedBy, Hypervisor, HypervisorError, Keep, XmlOf};
use gpuvm_core::domain::DomainXml;
use std::time::{Duration, Instant};

/// Undefines a domain. Its NVRAM and TPM state are removed last, by steps of their own.
pub(super) fn undefine(
    step: &DomainStep,
    hypervisor: &dyn Hypervisor,
    name: &str,
    xml: &str,
) -> Result<(), StepError> {
    let tpm = DomainXml::parse(xml).is_ok_and(|xml| xml.has_tpm());
    hypervisor.undefine_but(name, Keep { nvram: true, tpm, no_tpm: false })?;
    // Started between the last check and the undefine: it keeps running, with disks about to be
    // deleted.
    if is_active(row(hypervisor, name)?) {
        hypervisor.define(xml)?;
        return Err(started_again(step).into());
    }
    Ok(())
}

/// Changes a definition if it is unchanged since the plan: edits of others are never lost.
pub(super) fn redefine(
    hypervisor: &dyn Hypervisor,
    name: &str,
    xml: &str,
    before: &str,
) -> Result<(), StepError> {
    if hypervisor.xml(name, XmlOf::Inactive)? != before {
        return Err(StepError::Edited { name: name.to_owned() });
    }
    Ok(hypervisor.define(xml)?)
}

/// Removes the NVRAM, or (`tpm`) the TPM state, of an undefined domain. A defined one keeps its
/// state, whoever defined it: the same UUID and document do not distinguish an admin's restored
/// backup from a definition that an interrupted run left.
pub(super) fn drop_state(
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    (name, xml, tpm): (&str, &str, bool),
) -> Result<(), HypervisorError> {
    let what = if tpm { "TPM state" } else { "NVRAM" };
    let rows = hypervisor.domains()?;
    let uuid = DomainXml::parse(xml).ok().and_then(|xml| xml.uuid());
    if rows.iter().any(|row| row.name == name || Some(&row.uuid) == uuid.as_ref()) {
        observer.note(&format!("the {what} of domain `{name}` stays: it was defined again"));
        return Ok(());
    }
    match hypervisor.define(xml) {
        // As where swtpm is no longer installed; nothing else is left to do.
        Err(error) if tpm => {
            observer.note(&format!("the TPM state of domain `{name}` was not deleted: {error}"));
            return Ok(());
        }
        defined => defined?,
    }
    let has_tpm = DomainXml::parse(xml).is_ok_and(|xml| xml.has_tpm());
    hypervisor.undefine_but(name, Keep { nvram: tpm, tpm: has_tpm && !tpm, no_tpm: tpm })
}

/// Asks a guest to shut down and waits until it is off.
pub(super) fn shut_down(
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    name: &str,
    by: AskedBy,
    wait_s: u64,
) -> Result<(), StepError> {
    // A transient domain disappears when it stops.
    let is_off = || -> Result<bool, HypervisorError> { Ok(!is_active(row(hypervisor, name)?)) };
    if is_off()? {
        return Ok(());
    }
    let run = hypervisor.run_id(name)?;
    let asked = match hypervisor.shutdown(name, by) {
        Err(error) if by == AskedBy::Agent => {
            observer.note(&format!("the agent does not help ({error}); pressing the power button"));
            hypervisor.shutdown(name, AskedBy::PowerButton)
        }
        asked => asked,
    };
    let until = Instant::now() + Duration::from_secs(wait_s);
    loop {
        if is_off()? {
            return Ok(());
        }
        if hypervisor.run_id(name).is_ok_and(|now| now.is_some() && now != run) {
            observer.note(&format!("domain `{name}` was stopped, but has been started again"));
            return Ok(());
        }
        // A guest whose request fails may still be shutting down.
        asked.clone()?;
        if let Some(signal) = observer.interrupted() {
            return Err(StepError::Signal { signal });
        }
        if Instant::now() >= until {
            return Err(StepError::StillRuns { name: name.to_owned(), wait_s });
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
