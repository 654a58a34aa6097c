//! GPUs that wait for a test.

use super::shared;
use crate::bdf::Bdf;
use crate::discover::test_policy::{TestMode, TestPolicy};
use crate::error::Result;
use crate::fsroot::FsRoot;
use crate::history::gpus::{GpuRecord, GpuState};
use crate::topology::{DeviceKind, Topology};
use crate::withheld::outdated;
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};

/// The GPUs that are not tested since their last guest, in groups that a guest had: a partition is
/// tested as a whole, its NVLinks included. GPUs that a domain holds, or that are excluded, are left
/// out, and those that have failed: a person looks at them first.
pub(super) fn pending(
    world: &World,
    root: &FsRoot,
    policy: &TestPolicy,
    topology: &Topology,
) -> Result<Vec<Vec<Bdf>>> {
    if policy.mode == TestMode::Off {
        world.warning("the policy's mode is off: which GPUs guests have had is not recorded");
        return Ok(Vec::new());
    }
    let occupancy = world.occupancy(false)?;
    let held: BTreeSet<Bdf> = occupancy
        .domains
        .iter()
        .flat_map(|held| held.devices.iter().copied())
        .chain(occupancy.excluded.iter().filter(|one| !one.untested).map(|one| one.bdf))
        .collect();
    let records = world.gpu_records(root, policy.mode)?;
    let mut groups: BTreeMap<String, Vec<Bdf>> = BTreeMap::new();
    for (bdf, of) in records.located(root)? {
        let Some(record) = of.first().map(|document| &document.record) else { continue };
        let is_gpu = topology.device(bdf).is_some_and(|gpu| gpu.kind() == DeviceKind::Gpu);
        let is_free = is_gpu && !held.contains(&bdf) && shared(topology, bdf).is_none();
        if !is_free || !waits(record, policy) {
            continue;
        }
        let by = record.by.as_ref().map(|by| by.uuid.clone());
        groups.entry(by.unwrap_or_else(|| bdf.to_string())).or_default().push(bdf);
    }
    Ok(groups.into_values().collect())
}

fn waits(record: &GpuRecord, policy: &TestPolicy) -> bool {
    match record.state {
        GpuState::Used => true,
        GpuState::Clean => outdated(record, policy.max_age_s).is_some(),
        GpuState::Failed => false,
    }
}
