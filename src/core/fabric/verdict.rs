//! Judges Fabric Manager's list against the running domains.

use super::{Domain, Listed, Modules, Running};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The verdict on a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Active, and a running domain has exactly its GPUs.
    Ok,
    /// Inactive, and no running domain needs it.
    Free,
    /// Inactive, and an active partition has some of its GPUs.
    Taken,
    /// Active, and no running domain has any of its GPUs.
    Stale,
    /// Inactive, and a running domain has exactly its GPUs: CUDA does not start there.
    Missing,
    /// Active; another active partition, or a domain with other GPUs, has some of its GPUs.
    Overlap,
    /// Like `ok` or `free`, but some of its GPUs have fewer NVLinks than they should.
    Degraded,
    /// Active; not all GPUs of running domains are known, so one of these may use it.
    Unknown,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Verdict; 8] = [
        Verdict::Ok,
        Verdict::Free,
        Verdict::Taken,
        Verdict::Stale,
        Verdict::Missing,
        Verdict::Overlap,
        Verdict::Degraded,
        Verdict::Unknown,
    ];

    /// Whether it needs repair: a guest is broken, or GPUs are unusable for guests.
    pub fn is_wrong(self) -> bool {
        matches!(self, Verdict::Stale | Verdict::Missing | Verdict::Overlap)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Ok => "ok",
            Verdict::Free => "free",
            Verdict::Taken => "taken",
            Verdict::Stale => "stale",
            Verdict::Missing => "missing",
            Verdict::Overlap => "overlap",
            Verdict::Degraded => "degraded",
            Verdict::Unknown => "unknown",
        })
    }
}

/// One partition of the list, with its holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartitionState {
    /// Its number.
    pub id: u32,
    /// Module ids of its GPUs.
    pub modules: Modules,
    /// NVLinks of the GPU that has the fewest.
    pub links: u32,
    /// NVLinks that each of its GPUs should have in it.
    pub links_at_most: u32,
    /// Whether it is active.
    pub active: bool,
    /// The running domain that has GPUs of it; of an inactive one only where it has exactly these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Domain>,
    /// The verdict on it.
    pub verdict: Verdict,
}

/// Module ids of all GPUs of a list.
pub fn modules_of(listed: &[Listed]) -> Modules {
    listed.iter().flat_map(Listed::modules).collect()
}

/// Judges every partition of a list, by number.
pub fn states(listed: &[Listed], running: &[Running]) -> Vec<PartitionState> {
    let all = modules_of(listed);
    let mut states: Vec<_> = listed.iter().map(|one| state(one, listed, running, &all)).collect();
    states.sort_by_key(|state| state.id);
    states
}

/// Judges one partition. `all`: the GPUs of all partitions.
fn state(one: &Listed, listed: &[Listed], running: &[Running], all: &Modules) -> PartitionState {
    let modules = one.modules();
    let exact = running.iter().find(|r| r.has_exactly(&modules, all));
    let any = running.iter().find(|r| r.has_any(&modules));
    let shares = |other: &&Listed| other.id != one.id && other.active && other.has_any(&modules);
    let is_shared = listed.iter().any(|other| shares(&other));
    let is_worn = one.gpus.iter().any(|gpu| gpu.links < gpu.most);
    let verdict = match (one.active, exact, any) {
        (true, ..) if is_shared => Verdict::Overlap,
        (true, None, Some(holder)) if holder.may_have(&modules) => Verdict::Unknown,
        (true, None, Some(_)) => Verdict::Overlap,
        (true, None, None) if running.iter().any(|r| r.may_have_any(&modules)) => Verdict::Unknown,
        (true, None, None) => Verdict::Stale,
        (false, Some(_), _) => Verdict::Missing,
        (false, None, _) if is_shared => Verdict::Taken,
        _ if is_worn => Verdict::Degraded,
        (true, Some(_), _) => Verdict::Ok,
        (false, None, _) => Verdict::Free,
    };
    let holder = exact.or(any.filter(|_| one.active)).map(|r| r.domain.clone());
    PartitionState {
        id: one.id,
        links: one.gpus.iter().map(|gpu| gpu.links).min().unwrap_or_default(),
        links_at_most: one.gpus.iter().map(|gpu| gpu.most).max().unwrap_or_default(),
        active: one.active,
        modules,
        holder,
        verdict,
    }
}
