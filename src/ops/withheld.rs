//! GPUs that plans leave out or name, since they are not tested since their last guest.

use crate::discover::test_policy::TestMode;
use crate::error::Result;
use crate::fsroot::FsRoot;
use crate::history::gpus::{GpuRecord, GpuRecords, GpuState};
use crate::placement::{Exclusion, Formerly, Occupancy};
use crate::topology::Topology;

/// Why a GPU is not clean, as a clause; `None` if it is.
pub(crate) fn why(record: &GpuRecord) -> Option<String> {
    Some(match (record.state, &record.by) {
        (GpuState::Clean, _) => return None,
        (GpuState::Used, Some(by)) => format!("domain `{}` had it", by.name),
        (GpuState::Used, None) => "a guest had it".to_owned(),
    })
}

/// Adds GPUs that are not clean by their records.
pub(crate) fn add(
    occupancy: &mut Occupancy,
    mode: TestMode,
    records: &GpuRecords,
    root: &FsRoot,
) -> Result<()> {
    for (bdf, of) in records.located(root)? {
        let Some(why) = of.first().and_then(|document| why(&document.record)) else { continue };
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
