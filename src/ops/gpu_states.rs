//! States of GPUs between guests ([`gpuvm_host::history::gpus`]), by the policy of
//! `/etc/gpuvm/test.toml`: records that a guest has had a GPU, and that an admin accepts it.

use crate::apply::Step;
use crate::bdf::Bdf;
use crate::discover::identity;
use crate::discover::test_policy::{TestMode, test_mode, test_policy};
use crate::domain::DomainXml;
use crate::error::Result;
use crate::fsroot::FsRoot;
use crate::history::gpus::{self, GpuRecord, GpuRecords, GpuState, GpuTest, Tenant};
use crate::topology::{DeviceKind, Topology};
use crate::withheld::why;
use crate::world::World;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The state of a GPU, as it is recorded.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedState {
    /// The state.
    pub state: GpuState,
    /// The last guest that had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<Tenant>,
    /// Since when, in seconds since 1970, UTC.
    pub since_s: u64,
    /// When it was last tested or accepted, in seconds since 1970, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tested_s: Option<u64>,
    /// Its last test by gpuvm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_test: Option<GpuTest>,
}

impl ListedState {
    /// The state as a column shows it.
    pub fn words(&self) -> String {
        match (&self.by, self.state) {
            (Some(by), GpuState::Used) => format!("used by `{}`", by.name),
            _ => self.state.to_string(),
        }
    }
}

/// The mode of the host's policy; off where a host has none.
pub fn mode(world: &World) -> Result<TestMode> {
    Ok(match world.root()? {
        Some(root) => test_mode(&root)?,
        None => TestMode::Off,
    })
}

/// The recorded states of GPUs, by address.
pub fn listed(world: &World) -> Result<BTreeMap<Bdf, ListedState>> {
    let Some(root) = world.root()? else { return Ok(BTreeMap::new()) };
    let records = world.gpu_records(&root, test_mode(&root)?)?;
    let listed = |(bdf, of): (Bdf, Vec<&gpus::GpuDocument>)| {
        let record = of.first()?.record.clone();
        let GpuRecord { state, by, since_s, tested_s, last_test, .. } = record;
        Some((bdf, ListedState { state, by, since_s, tested_s, last_test }))
    };
    Ok(records.located(&root)?.into_iter().filter_map(listed).collect())
}

/// The steps that record that a guest that is deleted has had its GPUs; `definitions`: of the
/// running and the next guest. Where a test is required, it is not deleted unless that is possible.
pub(crate) fn once_gone(world: &World, definitions: &[&DomainXml]) -> Result<Vec<Step>> {
    used(world, definitions).or_else(|error| {
        if mode(world).is_ok_and(|mode| mode == TestMode::Require) {
            return Err(error);
        }
        world.warning(&format!("cannot record that a guest had its GPUs: {}", error.whole()));
        Ok(Vec::new())
    })
}

/// The same for a guest that is stopped, and keeps its GPUs: it stops in any case.
pub(crate) fn once_stopped(world: &World, definition: &DomainXml) -> Vec<Step> {
    used(world, &[definition]).unwrap_or_else(|error| {
        world.warning(&format!("cannot record that a guest had its GPUs: {}", error.whole()));
        Vec::new()
    })
}

/// The same for functions that a guest loses while it is off.
pub(crate) fn once_taken(world: &World, before: &DomainXml, gone: &[Bdf]) -> Result<Vec<Step>> {
    if gone.is_empty() { Ok(Vec::new()) } else { used_of(world, before, gone.to_vec()) }
}

fn used(world: &World, definitions: &[&DomainXml]) -> Result<Vec<Step>> {
    let Some(first) = definitions.first() else { return Ok(Vec::new()) };
    let mut devices = Vec::new();
    for definition in definitions {
        devices.extend(definition.held(true)?.devices);
    }
    used_of(world, first, devices)
}

fn used_of(world: &World, definition: &DomainXml, mut devices: Vec<Bdf>) -> Result<Vec<Step>> {
    if world.is_test() || !world.has_guests_here()? {
        return Ok(Vec::new());
    }
    let Some(root) = world.root()? else { return Ok(Vec::new()) };
    let mode = test_mode(&root).unwrap_or_else(|error| {
        // Once the file is repaired, a GPU must not count as one that no guest had.
        world.warning(&format!("{error}; the guest's GPUs are recorded as used"));
        TestMode::Note
    });
    if mode == TestMode::Off {
        return Ok(Vec::new());
    }
    devices.sort();
    devices.dedup();
    if devices.is_empty() {
        return Ok(Vec::new());
    }
    let topology = world.topology()?;
    devices.retain(|bdf| is_whole_gpu(&topology, *bdf));
    let uuid = definition.uuid().unwrap_or_default();
    let tenant = Tenant { uuid, name: definition.name() };
    marks(&root, &world.gpu_records(&root, TestMode::Note)?, &devices, &tenant)
}

/// Whether a function is a GPU itself. A share of one says nothing of the whole.
fn is_whole_gpu(topology: &Topology, bdf: Bdf) -> bool {
    topology.device(bdf).is_some_and(|gpu| gpu.kind() == DeviceKind::Gpu && !gpu.is_vf())
}

/// The steps that record that a guest has had these GPUs.
fn marks(root: &FsRoot, records: &GpuRecords, gpus: &[Bdf], tenant: &Tenant) -> Result<Vec<Step>> {
    let located = records.located(root)?;
    let mut steps = Vec::new();
    for &bdf in gpus {
        let old = located.get(&bdf).map_or(&[][..], Vec::as_slice);
        let before = old.first().map(|document| &document.record);
        let is_known = |before: &GpuRecord| match before.state {
            GpuState::Used => before.by.as_ref() == Some(tenant),
            GpuState::Clean => false,
            // Only a test or an admin ends that.
            GpuState::Failed => true,
        };
        if before.is_some_and(is_known) {
            continue;
        }
        let known = before.map(|before| &before.identity);
        let Some(identity) = identity::renewed(root, bdf, known)? else { continue };
        let mut record = GpuRecord::now(bdf, identity, GpuState::Used);
        record.by = Some(tenant.clone());
        record.tested_s = before.and_then(|before| before.tested_s);
        record.last_test = before.and_then(|before| before.last_test.clone());
        steps.extend(records.replace(old, &record)?);
    }
    Ok(steps)
}

/// The findings of [`accept`].
#[derive(Debug, Default)]
pub(crate) struct Acceptance {
    /// The steps that record it as clean.
    pub(crate) steps: Vec<Step>,
    /// Why it is not offered; empty: it is.
    pub(crate) why: Option<String>,
}

/// Looks at the state of a GPU that an admin returns to use. `accepts`: it is offered without a
/// test.
pub(crate) fn accept(
    root: &FsRoot,
    state: Option<&Path>,
    bdf: Bdf,
    accepts: bool,
) -> Result<Acceptance> {
    let mut records = GpuRecords::of_this_machine(state)?;
    // It may be the one of this GPU.
    if !records.damaged.is_empty() && accepts {
        return Err(records.damaged.swap_remove(0).into());
    }
    let records = records;
    let located = records.located(root)?;
    let old = located.get(&bdf).map_or(&[][..], Vec::as_slice);
    let Some(before) = old.first().map(|document| &document.record) else {
        return Ok(Acceptance::default());
    };
    let policy = match test_policy(root) {
        Ok(policy) => Some(policy),
        Err(error) if accepts => return Err(error.into()),
        Err(error) => {
            let why = Some(error.to_string());
            return Ok(Acceptance { why, ..Acceptance::default() });
        }
    };
    // A test that is too old withholds a GPU as a guest does.
    let Some(why) = why(before, policy.as_ref().and_then(|policy| policy.max_age_s)) else {
        return Ok(Acceptance::default());
    };
    if !accepts {
        let is_required = policy.is_some_and(|policy| policy.mode == TestMode::Require);
        return Ok(Acceptance { why: is_required.then_some(why), ..Acceptance::default() });
    }
    let identity = identity::renewed(root, bdf, Some(&before.identity))?;
    let identity = identity.unwrap_or_else(|| before.identity.clone());
    let mut record = GpuRecord::now(bdf, identity, GpuState::Clean);
    record.by.clone_from(&before.by);
    record.tested_s = Some(record.since_s);
    record.last_test.clone_from(&before.last_test);
    Ok(Acceptance { steps: records.replace(old, &record)?, why: None })
}

#[cfg(test)]
mod tests;
