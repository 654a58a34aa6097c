//! The report of `gpuvm top`: the host and its guests, and their order.

use super::rates::{ByteRate, GuestLoad};
use super::rules::LoadFinding;
use crate::cpuset::NodeId;
use crate::finding::Severity;
use serde::Serialize;
use std::collections::BTreeMap;

/// Part of the last 10 seconds in which tasks waited for a resource (pressure stall information),
/// in percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pressure {
    /// At least one task waited.
    pub some: f64,
    /// All tasks waited.
    pub full: f64,
}

/// Free huge pages of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FreePages {
    /// The node.
    pub node: NodeId,
    /// Page size.
    pub page_kib: u64,
    /// Number of free pages.
    pub free: u64,
}

/// The host.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostLoad {
    /// Number of pcpus that are online.
    pub pcpus: usize,
    /// Number of pcpus that guests shown here are pinned to.
    pub guest_pcpus: usize,
    /// Pressure by resource: cpu, memory, io; empty without PSI.
    pub pressure: BTreeMap<String, Pressure>,
    /// Free huge pages.
    pub free_pages: Vec<FreePages>,
    /// The frequency governor of the first pcpu.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// The findings.
    pub findings: Vec<LoadFinding>,
}

/// The load of guests over an interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoadReport {
    /// Length of the interval in seconds.
    pub interval_s: f64,
    /// The host.
    pub host: HostLoad,
    /// The guests that ran during all of it.
    pub guests: Vec<GuestLoad>,
}

impl LoadReport {
    /// The worst severity of all findings.
    pub fn worst(&self) -> Option<Severity> {
        let guests = self.guests.iter().flat_map(|guest| &guest.findings);
        guests.chain(&self.host.findings).map(|finding| finding.severity).min()
    }
}

/// The sort order of guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum LoadOrder {
    /// The worst finding first, then CPU use.
    Findings,
    /// Name.
    Name,
    /// CPU use of the vCPUs.
    Cpu,
    /// Waiting of the vCPUs.
    Wait,
    /// The part of the memory on other nodes than planned.
    Memory,
    /// Bytes read and written.
    Disk,
    /// Bytes received and sent.
    Network,
}

impl LoadOrder {
    /// Every order, as the key `s` goes through them.
    pub const ALL: [LoadOrder; 7] = [
        LoadOrder::Findings,
        LoadOrder::Name,
        LoadOrder::Cpu,
        LoadOrder::Wait,
        LoadOrder::Memory,
        LoadOrder::Disk,
        LoadOrder::Network,
    ];

    /// Returns the order after this one.
    pub fn next(self) -> LoadOrder {
        let at = LoadOrder::ALL.iter().position(|order| *order == self).unwrap_or(0);
        LoadOrder::ALL[(at + 1) % LoadOrder::ALL.len()]
    }

    /// Sorts guests; those that are equal by name.
    pub fn sort(self, guests: &mut [GuestLoad]) {
        let bytes = |rate: Option<ByteRate>| {
            rate.map_or(0, |rate| rate.read_bytes_s.saturating_add(rate.written_bytes_s)) as f64
        };
        let far = |guest: &GuestLoad| {
            1.0 - guest.memory.as_ref().and_then(|memory| memory.local_ratio).unwrap_or(1.0)
        };
        let weight = |guest: &GuestLoad| match self {
            LoadOrder::Findings | LoadOrder::Cpu => guest.cpu_ratio,
            LoadOrder::Name => 0.0,
            LoadOrder::Wait => guest.wait_ratio,
            LoadOrder::Memory => far(guest),
            LoadOrder::Disk => bytes(guest.storage()),
            LoadOrder::Network => bytes(guest.network()),
        };
        let rank = |guest: &GuestLoad| {
            let worst = guest.findings.iter().map(|finding| finding.severity).min();
            let rank = worst.map_or(3, |severity| severity as u8);
            if self == LoadOrder::Findings { rank } else { 0 }
        };
        guests.sort_by(|a, b| {
            let by_weight = || weight(b).total_cmp(&weight(a));
            rank(a).cmp(&rank(b)).then_with(by_weight).then_with(|| a.name.cmp(&b.name))
        });
    }
}
