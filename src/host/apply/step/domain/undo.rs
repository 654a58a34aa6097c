//! Undoes steps on domains.

use crate::apply::domain::{is_active, of_uuid, row};
use crate::apply::proven::not_ours;
use crate::apply::{StepError, firmware, overlay};
use crate::hypervisor::{DomainState, Hypervisor, XmlOf};
use crate::identity::{Identity, Proof, sum_of, uuid_of};
use gpuvm_core::domain::{DomainXml, differences};
use std::time::{Duration, Instant};

/// How long a guest that was asked to shut down is watched for its end, in seconds.
const ENDING_S: u64 = 15;

/// Starts a guest that was asked to shut down. One that has not done so yet may still do it.
pub(super) fn run_again(
    hypervisor: &dyn Hypervisor,
    name: &str,
    uuid: Option<&str>,
    wait_s: u64,
) -> Result<(), StepError> {
    let until = Instant::now() + Duration::from_secs(wait_s.min(ENDING_S));
    loop {
        let now = match uuid {
            Some(uuid) => of_uuid(hypervisor, name, uuid)?,
            None => hypervisor.domain(name)?,
        };
        match now {
            None => return Ok(()),
            Some(row) if !row.state.is_active() => return Ok(hypervisor.start(name)?),
            Some(_) if Instant::now() >= until => return Ok(()),
            Some(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// Pauses or resumes a domain's vCPUs, unless another one has its name now or it is off.
pub(super) fn pause(
    hypervisor: &dyn Hypervisor,
    name: &str,
    uuid: &str,
    paused: bool,
) -> Result<(), StepError> {
    let row = hypervisor.domains()?.into_iter().find(|row| row.name == name);
    let was = if paused { DomainState::Running } else { DomainState::Paused };
    match row {
        Some(row) if row.uuid == uuid && row.state == was => Ok(hypervisor.pause(name, paused)?),
        _ => Ok(()),
    }
}

/// Restores whether a domain starts with the host, unless another one has its name now.
pub(super) fn autostart(
    hypervisor: &dyn Hypervisor,
    name: &str,
    uuid: &str,
    on: bool,
) -> Result<(), StepError> {
    match hypervisor.domain(name)? {
        Some(row) if row.uuid == uuid => Ok(hypervisor.set_autostart(name, on)?),
        _ => Ok(()),
    }
}

/// Ends a guest that was started.
pub(super) fn run(
    hypervisor: &dyn Hypervisor,
    name: &str,
    uuid: Option<&str>,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    let made = match &proof.made {
        Some(Identity::Run { uuid, id }) => Some((uuid.as_str(), *id)),
        _ => uuid.map(|uuid| (uuid, None)),
    };
    let Some(row) = hypervisor.domain(name)? else { return Ok(()) };
    if !is_active(Some(row.state)) {
        return Ok(());
    }
    let Some((uuid, id)) = made else {
        return Err(StepError::StartedSince { name: name.to_owned() });
    };
    of_uuid(hypervisor, name, uuid)?;
    let is_it = id.is_none() || hypervisor.run_id(name)? == id;
    end(hypervisor, name, is_it, proof)
}

/// Ends a running guest of ours if it is exactly the run that was started, or if its name was
/// confirmed.
fn end(
    hypervisor: &dyn Hypervisor,
    name: &str,
    is_it: bool,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    match proof.ends {
        Some(names) if names.iter().any(|known| known == name) => {}
        Some(_) => return Err(StepError::NotConfirmed { name: name.to_owned() }),
        None if is_it => {}
        None => return Err(StepError::StartedSince { name: name.to_owned() }),
    }
    Ok(hypervisor.destroy(name)?)
}

/// Removes a definition that was made.
pub(super) fn definition(
    hypervisor: &dyn Hypervisor,
    name: &str,
    xml: &str,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    let Some(row) = hypervisor.domain(name)? else { return Ok(()) };
    let uuid = match &proof.made {
        Some(Identity::Domain { uuid, .. }) => Some(uuid.clone()),
        _ => uuid_of(xml),
    };
    let Some(uuid) = uuid else {
        return not_ours(format!("domain `{name}`"), "an older gpuvm did not record its UUID");
    };
    of_uuid(hypervisor, name, &uuid)?;
    if is_active(Some(row.state)) {
        // Undefined while running, it would disappear when it stops, and its disks with this undo.
        end(hypervisor, name, false, proof)?;
    }
    firmware::undefine_made(hypervisor, (name, &uuid), proof.made.as_ref())
}

/// Restores a removed definition unless its name is taken.
pub(super) fn define_again(
    hypervisor: &dyn Hypervisor,
    name: &str,
    xml: &str,
) -> Result<(), StepError> {
    match (hypervisor.domain(name)?, uuid_of(xml)) {
        (Some(_), Some(uuid)) => of_uuid(hypervisor, name, &uuid).map(drop),
        _ => Ok(hypervisor.define(xml)?),
    }
}

/// Restores a domain's name, unless another one has it now.
pub(super) fn rename_back(
    hypervisor: &dyn Hypervisor,
    name: &str,
    to: &str,
    uuid: &str,
) -> Result<(), StepError> {
    match hypervisor.domain(to)? {
        Some(row) if row.uuid == uuid => {}
        // It was not renamed yet, or others have renamed it back.
        _ => return Ok(()),
    }
    of_uuid(hypervisor, name, uuid)?;
    Ok(hypervisor.rename(to, name)?)
}

/// Restores the previous definition unless others have edited the new one since.
pub(super) fn define_as_before(
    hypervisor: &dyn Hypervisor,
    name: &str,
    (xml, before): (&str, &str),
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    // A domain undefined meanwhile is not restored.
    if row(hypervisor, name)?.is_none() {
        return Ok(());
    }
    if let Some(uuid) = uuid_of(before) {
        of_uuid(hypervisor, name, &uuid)?;
    }
    let now = hypervisor.xml(name, XmlOf::Inactive)?;
    let ours = match &proof.made {
        _ if now == before => return Ok(()),
        Some(Identity::Definition { sum, .. }) => *sum == sum_of(&now),
        // Killed before it was read back.
        _ => match (DomainXml::parse(xml), DomainXml::parse(&now)) {
            (Ok(xml), Ok(now)) => differences(&xml, &now).is_empty(),
            _ => xml == now,
        },
    };
    if !ours {
        return Err(StepError::Edited { name: name.to_owned() });
    }
    // Started since the change was interrupted, it has written where only the new definition looks.
    match overlay::written_since(xml, before).filter(|_| hypervisor.machine().is_here()) {
        Some(path) => Err(StepError::WrittenSince { name: name.to_owned(), path }),
        None => Ok(hypervisor.define(before)?),
    }
}
