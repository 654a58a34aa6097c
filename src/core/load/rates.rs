//! Rates of a guest between two samples.

use super::counters::{grown, ratio};
use super::neighbours::Neighbour;
use super::rules::LoadFinding;
use super::sample::{
    AerCounts, ByteCounts, GuestPlan, GuestSample, KvmCounts, NodeMemory, QuotaGroup, ThreadKind,
    ThreadSample, Throttling, TimedBytes,
};
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId, NodeSet, PcpuId};
use crate::memsize::MemSize;
use serde::Serialize;
use std::collections::BTreeMap;

/// A thread of a guest over an interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadLoad {
    /// Its work.
    pub kind: ThreadKind,
    /// Number of the vCPU or id of the I/O thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Its id.
    pub tid: u32,
    /// Part of the interval that it ran.
    pub run_ratio: f64,
    /// Part of the time in which it wanted to run that it waited: waited / (run + waited).
    pub wait_ratio: f64,
    /// Part of the interval that it waited.
    pub waited_ratio: f64,
    /// The pcpus that it is pinned to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcpus: Option<CpuSet>,
    /// The pcpu that it ran on last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_pcpu: Option<PcpuId>,
    /// Others on the pcpu that it waits for, by CPU use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub neighbours: Vec<Neighbour>,
}

impl ThreadLoad {
    /// `vCPU 3`, `I/O thread 1`.
    pub fn label(&self) -> String {
        self.kind.label(self.index)
    }

    /// The pcpu that it waits for: the only one of its pin, or else the one that it ran on last.
    pub fn pcpu(&self) -> Option<PcpuId> {
        let only = self.pcpus.as_ref().filter(|pin| pin.len() == 1);
        only.and_then(CpuSet::first).or(self.last_pcpu)
    }
}

/// Memory of a guest.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryLoad {
    /// Memory by node, in KiB.
    pub node_kib: BTreeMap<NodeId, u64>,
    /// Nodes that it should be on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_nodes: Option<NodeSet>,
    /// The part of it that is on these nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_ratio: Option<f64>,
    /// Memory on reserved huge pages, in KiB.
    pub huge_kib: u64,
    /// The largest huge page with memory, in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_kib: Option<u64>,
}

/// Bytes per second in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ByteRate {
    /// Read or received.
    pub read_bytes_s: u64,
    /// Written or sent.
    pub written_bytes_s: u64,
}

/// A disk or a NIC with its rate.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NamedRate {
    /// Name of the disk in the guest, or of the NIC on the host.
    pub name: String,
    /// Its rate.
    #[serde(flatten)]
    pub rate: ByteRate,
}

/// A passed-through function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceLoad {
    /// Its address on the host.
    pub bdf: Bdf,
    /// Lanes in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// The most lanes that both the function and the port above it have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_width: Option<u32>,
    /// Errors of the function so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aer: Option<AerCounts>,
    /// The port above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<Bdf>,
    /// Errors of the port above it so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_aer: Option<AerCounts>,
    /// Errors that both counted in the interval.
    pub new_errors: u64,
}

/// A quota that held a guest back.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QuotaLoad {
    /// The vCPU that was held back; absent: all of the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u32>,
    /// Periods in which its quota ran out.
    pub periods: u64,
    /// Part of the interval that it was held back; of several pcpus the sum.
    pub throttled_ratio: f64,
}

/// A guest over an interval. A value that cannot be read is absent; `unread` says why.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuestLoad {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Its process.
    pub pid: u32,
    /// Number of its vCPUs.
    pub vcpus: u32,
    /// CPU use of its vCPUs; 1 is one pcpu.
    pub cpu_ratio: f64,
    /// Part of the time in which its vCPUs wanted to run that they waited.
    pub wait_ratio: f64,
    /// CPU use of its emulator and vhost threads; 1 is one pcpu.
    pub emulator_ratio: f64,
    /// CPU use of its I/O threads; 1 is one pcpu.
    pub iothread_ratio: f64,
    /// Its threads.
    pub threads: Vec<ThreadLoad>,
    /// Quotas that held it back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttled: Vec<QuotaLoad>,
    /// Its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryLoad>,
    /// Storage read and written by its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<ByteRate>,
    /// Its disks.
    pub disk: Vec<NamedRate>,
    /// Its NICs that are network devices of the host, and its virtual functions (`ens1f0 vf 3`) of
    /// cards whose driver counts them: the received and sent traffic of the guest.
    pub net: Vec<NamedRate>,
    /// Exits of its vCPUs to the host per second, by KVM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exits_s: Option<u64>,
    /// CPU use of its idle vCPUs that poll for work before they halt (KVM's halt polling), which
    /// `cpu_ratio` includes; 1 is one pcpu.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub halt_poll_ratio: Option<f64>,
    /// Its passed-through functions.
    pub devices: Vec<DeviceLoad>,
    /// The findings, errors first.
    pub findings: Vec<LoadFinding>,
    /// Values that could not be read, with the reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unread: BTreeMap<String, String>,
}

impl GuestLoad {
    /// Bytes per second of its storage: of its process, or else the sum of its disks.
    pub fn storage(&self) -> Option<ByteRate> {
        self.io.or_else(|| sum(&self.disk))
    }

    /// Bytes per second of all of its NICs.
    pub fn network(&self) -> Option<ByteRate> {
        sum(&self.net)
    }
}

/// The sum of rates; `None` of no rate.
fn sum(rates: &[NamedRate]) -> Option<ByteRate> {
    let each = rates.iter().map(|named| named.rate);
    each.reduce(|a, b| ByteRate {
        read_bytes_s: a.read_bytes_s.saturating_add(b.read_bytes_s),
        written_bytes_s: a.written_bytes_s.saturating_add(b.written_bytes_s),
    })
}

/// An interval between two samples of a guest.
struct Interval {
    /// Its length in ns; never 0.
    ns: u64,
}

impl Interval {
    fn ratio(&self, ns: u64) -> f64 {
        ratio(ns, self.ns)
    }

    /// The rate of bytes; `None` where a counter was reset.
    fn rate(&self, before: ByteCounts, after: ByteCounts) -> Option<ByteRate> {
        Some(ByteRate {
            read_bytes_s: self.per_second(grown(before.read, after.read)?),
            written_bytes_s: self.per_second(grown(before.written, after.written)?),
        })
    }

    fn per_second(&self, count: u64) -> u64 {
        let count = u128::from(count) * 1_000_000_000 / u128::from(self.ns);
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    fn named(
        &self,
        before: &BTreeMap<String, ByteCounts>,
        after: &BTreeMap<String, ByteCounts>,
    ) -> Vec<NamedRate> {
        let each = after.iter().filter_map(|(name, counts)| {
            let rate = self.rate(*before.get(name)?, *counts)?;
            Some(NamedRate { name: name.clone(), rate })
        });
        each.collect()
    }

    /// Run and wait time of a thread. One that is new, also under the id of another, has spent all
    /// of its time in the interval.
    fn times(&self, before: Option<&ThreadSample>, after: &ThreadSample) -> (u64, u64) {
        let known = before.and_then(|before| {
            let run = grown(before.run_ns, after.run_ns)?;
            Some((run, grown(before.wait_ns, after.wait_ns)?))
        });
        let (run, wait) = known.unwrap_or((after.run_ns, after.wait_ns));
        (run.min(self.ns), wait.min(self.ns))
    }
}

/// Returns the load of a guest between two samples; `None` if they are of different processes or of
/// the same moment.
pub fn guest_load(
    plan: &GuestPlan,
    before: &GuestSample,
    after: &GuestSample,
) -> Option<GuestLoad> {
    if (before.pid, before.started) != (after.pid, after.started) {
        return None;
    }
    let ns = after.at_ns.checked_sub(before.at_ns).filter(|ns| *ns > 0)?;
    let interval = Interval { ns };
    let mut sums: BTreeMap<ThreadKind, (u64, u64)> = BTreeMap::new();
    let mut threads = Vec::with_capacity(after.threads.len());
    for (&tid, thread) in &after.threads {
        let (run, wait) = interval.times(before.threads.get(&tid), thread);
        let sum = sums.entry(thread.kind).or_default();
        *sum = (sum.0 + run, sum.1 + wait);
        threads.push(ThreadLoad {
            kind: thread.kind,
            index: thread.index,
            tid,
            run_ratio: interval.ratio(run),
            wait_ratio: ratio(wait, run + wait),
            waited_ratio: interval.ratio(wait),
            pcpus: plan.pin(thread.kind, thread.index).cloned(),
            last_pcpu: thread.last_pcpu,
            neighbours: Vec::new(),
        });
    }
    threads.sort_by_key(|thread| (thread.kind, thread.index, thread.tid));
    let of = |kind| sums.get(&kind).copied().unwrap_or_default();
    let (run, wait) = of(ThreadKind::Vcpu);
    Some(GuestLoad {
        name: plan.name.clone(),
        uuid: plan.uuid.clone(),
        pid: after.pid,
        vcpus: plan.vcpus,
        cpu_ratio: interval.ratio(run),
        wait_ratio: ratio(wait, run + wait),
        emulator_ratio: interval.ratio(of(ThreadKind::Emulator).0 + of(ThreadKind::Vhost).0),
        iothread_ratio: interval.ratio(of(ThreadKind::Iothread).0),
        threads,
        throttled: throttled(&interval, &before.throttled, &after.throttled),
        memory: after.memory.as_ref().map(|memory| memory_load(plan, memory)),
        io: before.io.zip(after.io).and_then(|(before, after)| interval.rate(before, after)),
        disk: timed(before.disks.as_ref(), after.disks.as_ref()),
        net: [
            interval.named(&before.nics, &after.nics),
            timed(before.functions.as_ref(), after.functions.as_ref()),
        ]
        .concat(),
        exits_s: kvm(before, after, |kvm| kvm.exits).map(|exits| interval.per_second(exits)),
        halt_poll_ratio: kvm(before, after, |kvm| kvm.halt_poll_ns).map(|ns| interval.ratio(ns)),
        devices: devices(before, after),
        findings: Vec::new(),
        unread: after.unread.clone(),
    })
}

fn throttled(
    interval: &Interval,
    before: &BTreeMap<QuotaGroup, Throttling>,
    after: &BTreeMap<QuotaGroup, Throttling>,
) -> Vec<QuotaLoad> {
    let each = after.iter().filter_map(|(group, after)| {
        let before = before.get(group)?;
        let periods = grown(before.count, after.count).filter(|count| *count > 0)?;
        let ns = grown(before.ns, after.ns).unwrap_or_default();
        let vcpu = match group {
            QuotaGroup::Whole => None,
            QuotaGroup::Vcpu(vcpu) => Some(*vcpu),
        };
        Some(QuotaLoad { vcpu, periods, throttled_ratio: interval.ratio(ns) })
    });
    each.collect()
}

/// The rates between two readings that are less frequent than samples; none if they are the same
/// one.
fn timed(before: Option<&TimedBytes>, after: Option<&TimedBytes>) -> Vec<NamedRate> {
    let (Some(before), Some(after)) = (before, after) else { return Vec::new() };
    match after.at_ns.checked_sub(before.at_ns) {
        Some(ns @ 1..) => Interval { ns }.named(&before.bytes, &after.bytes),
        _ => Vec::new(),
    }
}

/// The growth of one of KVM's counters.
fn kvm(
    before: &GuestSample,
    after: &GuestSample,
    of: impl Fn(&KvmCounts) -> Option<u64>,
) -> Option<u64> {
    let (before, after) = (before.kvm.as_ref().and_then(&of)?, after.kvm.as_ref().and_then(&of)?);
    grown(before, after)
}

fn memory_load(plan: &GuestPlan, memory: &NodeMemory) -> MemoryLoad {
    let huge = || memory.huge.values().flatten();
    let huge_kib: u64 = huge().map(|(_, size)| size.kib()).sum();
    let mut node_kib: BTreeMap<NodeId, u64> = BTreeMap::new();
    // QEMU's own memory may be on any node, and is little beside that of a guest on huge pages.
    let own = memory.normal.iter().filter(|_| huge_kib == 0);
    for (node, size) in huge().chain(own) {
        *node_kib.entry(*node).or_default() += size.kib();
    }
    let local_ratio = plan.nodes.as_ref().and_then(|nodes| {
        let local = node_kib.iter().filter(|(node, _)| nodes.contains(**node));
        let all: u64 = node_kib.values().sum();
        (all > 0).then(|| ratio(local.map(|(_, kib)| kib).sum(), all))
    });
    let used = |nodes: &BTreeMap<NodeId, MemSize>| nodes.values().any(|size| size.kib() > 0);
    let page = memory.huge.iter().rev().find(|(_, nodes)| used(nodes));
    MemoryLoad {
        node_kib,
        planned_nodes: plan.nodes.clone(),
        local_ratio,
        huge_kib,
        page_kib: page.map(|(page, _)| page.kib()),
    }
}

fn devices(before: &GuestSample, after: &GuestSample) -> Vec<DeviceLoad> {
    let new = |before: Option<AerCounts>, after: Option<AerCounts>| {
        let (Some(before), Some(after)) = (before, after) else { return 0 };
        let pairs = [
            (before.correctable, after.correctable),
            (before.nonfatal, after.nonfatal),
            (before.fatal, after.fatal),
        ];
        pairs.into_iter().filter_map(|(before, after)| grown(before, after)).sum::<u64>()
    };
    let each = after.devices.iter().map(|device| {
        let old = before.devices.iter().find(|old| old.bdf == device.bdf);
        DeviceLoad {
            bdf: device.bdf,
            width: device.width,
            max_width: device.max_width,
            aer: device.aer,
            port: device.port,
            port_aer: device.port_aer,
            new_errors: old
                .map_or(0, |old| new(old.aer, device.aer) + new(old.port_aer, device.port_aer)),
        }
    });
    each.collect()
}
