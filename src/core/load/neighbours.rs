//! The tasks that a thread waits for: the others that ran on its pcpu.

use super::counters::{grown, ratio};
use super::sample::{TaskScan, ThreadKind};
use crate::cpuset::PcpuId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// A task on the pcpu that a thread of a guest waits for.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Neighbour {
    /// Its id.
    pub tid: u32,
    /// The kernel's name of it.
    pub name: String,
    /// The guest that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// Its work in that guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ThreadKind>,
    /// Number of the vCPU or id of the I/O thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Part of the interval that it ran.
    pub run_ratio: f64,
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.guest, self.kind) {
            (Some(guest), Some(kind)) => write!(f, "{} of `{guest}`", kind.label(self.index))?,
            _ => write!(f, "`{}`", self.name)?,
        }
        write!(f, " {:.0} %", self.run_ratio * 100.0)
    }
}

/// Returns the tasks that ran on a pcpu between two scans, without the thread `own`, those that ran
/// most first. A task that began meanwhile counts with all of its time. `guests` are named by their
/// processes.
pub fn neighbours(
    before: &TaskScan,
    after: &TaskScan,
    guests: &BTreeMap<u32, String>,
    pcpu: PcpuId,
    own: u32,
) -> Vec<Neighbour> {
    let Some(ns @ 1..) = after.at_ns.checked_sub(before.at_ns) else { return Vec::new() };
    let here = after.tasks.iter().filter(|(tid, task)| task.pcpu == pcpu && **tid != own);
    let mut found: Vec<Neighbour> = here
        .filter_map(|(&tid, task)| {
            let old = before.tasks.get(&tid).map_or(0, |old| old.run_ns);
            let run = grown(old, task.run_ns).unwrap_or(task.run_ns).min(ns);
            let guest = guests.get(&task.pid).cloned();
            let work = guest.as_ref().map(|_| ThreadKind::of_name(&task.name));
            (run > 0).then(|| Neighbour {
                tid,
                name: task.name.clone(),
                guest,
                kind: work.map(|(kind, _)| kind),
                index: work.and_then(|(_, index)| index),
                run_ratio: ratio(run, ns),
            })
        })
        .collect();
    found.sort_by(|a, b| b.run_ratio.total_cmp(&a.run_ratio).then(a.tid.cmp(&b.tid)));
    found
}
