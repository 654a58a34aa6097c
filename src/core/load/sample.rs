//! Counters of a guest at one moment, as the kernel and libvirt have them. They only grow, so two
//! samples give rates.

use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId, NodeSet, PcpuId};
use crate::memsize::MemSize;
use serde::Serialize;
use std::collections::BTreeMap;

/// The work of a thread of QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ThreadKind {
    /// It runs a vCPU, or with one thread for all vCPUs all of them.
    Vcpu,
    /// It serves disks.
    Iothread,
    /// The main thread and its helpers.
    Emulator,
    /// The kernel's work for network queues.
    Vhost,
}

impl ThreadKind {
    /// Reads the kind and the number of a thread from the name that libvirt makes QEMU set
    /// (`debug-threads=on`): `CPU 0/KVM`, `IO iothread1`, `vhost-4711`.
    pub fn of_name(name: &str) -> (ThreadKind, Option<u32>) {
        let number = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            text[..end].parse().ok()
        };
        if name.starts_with("ALL CPUs/") {
            (ThreadKind::Vcpu, None)
        } else if let Some(vcpu) = name.strip_prefix("CPU ").and_then(number) {
            (ThreadKind::Vcpu, Some(vcpu))
        } else if let Some(id) = name.strip_prefix("IO iothread").and_then(number) {
            (ThreadKind::Iothread, Some(id))
        } else if name.starts_with("vhost-") {
            (ThreadKind::Vhost, None)
        } else {
            (ThreadKind::Emulator, None)
        }
    }

    /// Names a thread of this kind: `vCPU 3`.
    pub fn label(self, index: Option<u32>) -> String {
        let name = match self {
            ThreadKind::Vcpu if index.is_none() => "vCPUs",
            ThreadKind::Vcpu => "vCPU",
            ThreadKind::Iothread => "I/O thread",
            ThreadKind::Emulator => "emulator",
            ThreadKind::Vhost => "vhost",
        };
        index.map_or_else(|| name.to_owned(), |index| format!("{name} {index}"))
    }
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadSample {
    /// Its work.
    pub kind: ThreadKind,
    /// Number of the vCPU or id of the I/O thread.
    pub index: Option<u32>,
    /// Time on a pcpu in ns.
    pub run_ns: u64,
    /// Time in which it could run and waited for a pcpu, in ns.
    pub wait_ns: u64,
    /// The pcpu that it ran on last; `None` if that was not read.
    pub last_pcpu: Option<PcpuId>,
}

/// The control group that a quota holds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaGroup {
    /// All threads of the guest.
    Whole,
    /// A vCPU.
    Vcpu(u32),
}

/// How often, and for how long, a quota has held a group back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Periods in which the quota ran out.
    pub count: u64,
    /// Time held back in ns.
    pub ns: u64,
}

/// Bytes in both directions: read and written, or received and sent by the guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByteCounts {
    /// Read or received.
    pub read: u64,
    /// Written or sent.
    pub written: u64,
}

/// Counters that are read less often than the rest: of disks, which libvirt asks QEMU for, and of
/// virtual functions, which some drivers ask their card for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedBytes {
    /// When they were read, on the clock of the guest's sample.
    pub at_ns: u64,
    /// Bytes by name.
    pub bytes: BTreeMap<String, ByteCounts>,
}

/// Statistics of KVM about all vCPUs of a guest (debugfs, `kvm/PID-FD`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvmCounts {
    /// Exits to the host.
    pub exits: Option<u64>,
    /// Time in which vCPUs that had nothing to do polled for work before they halted, in ns.
    pub halt_poll_ns: Option<u64>,
}

/// Memory of a guest by node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// Memory on normal pages, transparent huge pages included.
    pub normal: BTreeMap<NodeId, MemSize>,
    /// Memory on reserved huge pages, by page size.
    pub huge: BTreeMap<MemSize, BTreeMap<NodeId, MemSize>>,
}

/// Errors that a PCIe function or port has counted (Advanced Error Reporting).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AerCounts {
    /// Corrected by the hardware.
    pub correctable: u64,
    /// Reported to the driver.
    pub nonfatal: u64,
    /// The link was lost or reset.
    pub fatal: u64,
}

/// A passed-through function and the port above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSample {
    /// Its address on the host.
    pub bdf: Bdf,
    /// Lanes in use; `None` for a function without a link of its own.
    pub width: Option<u32>,
    /// The most lanes that both the function and the port above it have.
    pub max_width: Option<u32>,
    /// Errors of the function; `None` without the capability.
    pub aer: Option<AerCounts>,
    /// The port above it; `None` directly below the host bridge.
    pub port: Option<Bdf>,
    /// Errors of the port above it.
    pub port_aer: Option<AerCounts>,
}

/// A guest at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestSample {
    /// Its process.
    pub pid: u32,
    /// Start of the process in clock ticks since boot: a reused pid has another one.
    pub started: u64,
    /// When it was read, in ns of a clock that never goes back.
    pub at_ns: u64,
    /// Its threads by id.
    pub threads: BTreeMap<u32, ThreadSample>,
    /// The delays by quotas.
    pub throttled: BTreeMap<QuotaGroup, Throttling>,
    /// Its memory.
    pub memory: Option<NodeMemory>,
    /// Bytes that its process read from and wrote to storage.
    pub io: Option<ByteCounts>,
    /// Bytes that the guest received and sent, by the host's name of the NIC.
    pub nics: BTreeMap<String, ByteCounts>,
    /// Its disks, by their names in the guest.
    pub disks: Option<TimedBytes>,
    /// Its NICs that are virtual functions, by device and number on the host: `ens1f0 vf 3`. Read
    /// and written are received and sent by the guest.
    pub functions: Option<TimedBytes>,
    /// Statistics of KVM; `None` if they cannot be read.
    pub kvm: Option<KvmCounts>,
    /// Its passed-through functions.
    pub devices: Vec<DeviceSample>,
    /// Values that could not be read, with the reason.
    pub unread: BTreeMap<String, String>,
}

/// The assigned pins and nodes of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestPlan {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Number of its vCPUs.
    pub vcpus: u32,
    /// Pcpus of pinned vCPUs.
    pub vcpu_pins: BTreeMap<u32, CpuSet>,
    /// Pcpus of pinned I/O threads.
    pub iothread_pins: BTreeMap<u32, CpuSet>,
    /// Pcpus of the emulator and of vhost, if pinned.
    pub emulator_pin: Option<CpuSet>,
    /// Nodes that its memory is bound to, or else those of its pcpus; `None` for any.
    pub nodes: Option<NodeSet>,
}

impl GuestPlan {
    /// The pcpus that a thread is pinned to.
    pub fn pin(&self, kind: ThreadKind, index: Option<u32>) -> Option<&CpuSet> {
        match (kind, index) {
            (ThreadKind::Vcpu, Some(vcpu)) => self.vcpu_pins.get(&vcpu),
            (ThreadKind::Iothread, Some(id)) => self.iothread_pins.get(&id),
            (ThreadKind::Vcpu | ThreadKind::Iothread, None) => None,
            (ThreadKind::Emulator | ThreadKind::Vhost, _) => self.emulator_pin.as_ref(),
        }
    }

    /// All pcpus that any of its threads is pinned to.
    pub fn pcpus(&self) -> CpuSet {
        let pins = self.vcpu_pins.values().chain(self.iothread_pins.values());
        pins.chain(&self.emulator_pin).fold(CpuSet::new(), |all, pin| all.or(pin))
    }
}

/// Any task of the host, as a candidate for a vCPU's wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSample {
    /// The process that it belongs to.
    pub pid: u32,
    /// The kernel's name of it.
    pub name: String,
    /// The pcpu that it ran on last.
    pub pcpu: PcpuId,
    /// Time on a pcpu in ns.
    pub run_ns: u64,
}

/// All tasks of the host at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskScan {
    /// When they were read, in ns.
    pub at_ns: u64,
    /// The tasks by id.
    pub tasks: BTreeMap<u32, TaskSample>,
}
