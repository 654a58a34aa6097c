//! GPUs that plans leave out or name, since they are not tested since their last guest.

use crate::apply::now_s;
use crate::discover::test_policy::{TestMode, TestPolicy};
use crate::error::Result;
use crate::fsroot::FsRoot;
use crate::history::gpus::{GpuRecord, GpuRecords, GpuState};
use crate::placement::{Exclusion, Formerly, Occupancy};
use crate::topology::Topology;

/// Why the last test of a GPU does not count, as a clause; `None` if it does.
pub(crate) fn outdated(record: &GpuRecord, max_age_s: Option<u64>) -> Option<&'static str> {
    // With a clock that was wrong, the age is not known; it must not count for ever.
    match now_s().checked_sub(record.tested_s.unwrap_or(record.since_s)) {
        _ if max_age_s.is_none() => None,
        None => Some("its last test is dated in the future, so its age is not known"),
        age_s if age_s > max_age_s => Some("its last test is older than `max_age` of the policy"),
        Some(_) => None,
    }
}

/// Why a GPU is not clean, as a clause; `None` if it is. `max_age_s`: for how long a test counts.
pub(crate) fn why(record: &GpuRecord, max_age_s: Option<u64>) -> Option<String> {
    Some(match (record.state, &record.by) {
        (GpuState::Clean, _) => return outdated(record, max_age_s).map(str::to_owned),
        (GpuState::Failed, _) => {
            let why = record.last_test.as_ref().map(|test| test.why.join("; "));
            let why = why.filter(|why| !why.is_empty());
            let failed = Exclusion::FAILED;
            why.map_or(failed.to_owned(), |why| format!("{failed}: {why}"))
        }
        (GpuState::Used, Some(by)) => format!("domain `{}` had it", by.name),
        (GpuState::Used, None) => "a guest had it".to_owned(),
    })
}

/// Adds GPUs that are not clean by their records.
pub(crate) fn add(
    occupancy: &mut Occupancy,
    policy: &TestPolicy,
    records: &GpuRecords,
    root: &FsRoot,
) -> Result<()> {
    let (mode, max_age_s) = (policy.mode, policy.max_age_s);
    for (bdf, of) in records.located(root)? {
        let Some(why) = of.first().and_then(|document| why(&document.record, max_age_s)) else {
            continue;
        };
        match mode {
            TestMode::Off => {}
            TestMode::Note => occupancy.formerly.push(Formerly { bdf, why }),
            TestMode::Require => occupancy.excluded.push(Exclusion::untested(bdf, why)),
        }
    }
    Ok(())
}

/// Adds all GPUs of a host whose records cannot be read, for this reason.
pub(crate) fn add_all(occupancy: &mut Occupancy, topology: &Topology, why: &str) {
    let gpus = topology.gpus().map(|gpu| Exclusion::untested(gpu.bdf, why));
    occupancy.excluded.extend(gpus);
}
