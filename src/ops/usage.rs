//! The usage of a running guest: CPU time and memory of its host, its disks, and its own memory and
//! file systems as its agent reports them.

use crate::agent::Agent;
use crate::discover::process;
use crate::domain::view::{AgentState, View};
use crate::fsroot::FsRoot;
use crate::hypervisor::machine::is_test;
use crate::hypervisor::{DomainState, DomainSummary, Hypervisor};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The time over which CPU use is measured.
const MEASURED: Duration = Duration::from_millis(200);
/// How long the agent may take for all that it is asked.
const AGENT: Duration = Duration::from_secs(4);
/// The most file systems that are listed, and the longest name of one.
const MOST: usize = 32;

/// The usage of a running guest.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Usage {
    /// Seconds since its start; `None` if it does not run, or not on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime_s: Option<u64>,
    /// CPU use now, in percent of one CPU of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u64>,
    /// Memory of the host that its process occupies, in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_memory_kib: Option<u64>,
    /// Memory in use in the guest, in KiB, as its agent reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_memory: Option<Part>,
    /// Its disks, by their names in the guest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskUse>,
    /// The file systems of the guest, as its agent reports them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub file_systems: Vec<FileSystem>,
}

/// A part of a whole, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Part {
    /// The used part.
    pub used_kib: u64,
    /// All of it.
    pub total_kib: u64,
}

/// How large a disk is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskUse {
    /// Its name in the guest.
    pub target: String,
    /// Size seen by the guest, in bytes.
    pub capacity_bytes: u64,
    /// Bytes that it occupies on the host.
    pub allocation_bytes: u64,
}

/// A file system of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileSystem {
    /// Where it is mounted.
    pub mount: String,
    /// How full it is.
    #[serde(flatten)]
    pub part: Part,
}

/// The present usage of a domain. Unknown values are omitted.
pub fn use_of(hypervisor: &dyn Hypervisor, summary: &DomainSummary, view: &View) -> Usage {
    let name = &summary.name;
    let mut usage = Usage::default();
    // Guests of the test driver only seem to run.
    if is_test(hypervisor.uri()) {
        return usage;
    }
    for target in view.disks.iter().map(|disk| &disk.target) {
        if let Ok(Some(size)) = hypervisor.disk_size(name, target) {
            let (target, capacity_bytes) = (target.clone(), size.capacity_bytes);
            let allocation_bytes = size.allocation_bytes;
            usage.disks.push(DiskUse { target, capacity_bytes, allocation_bytes });
        }
    }
    if !summary.state.is_active() {
        return usage;
    }
    usage.uptime_s = uptime(hypervisor, &summary.uuid);
    let (begun, first) = (Instant::now(), hypervisor.used(name).unwrap_or_default());
    usage.host_memory_kib = first.memory_kib;
    if summary.state == DomainState::Running && view.agent == AgentState::Connected {
        ask(hypervisor, name, &mut usage);
    }
    if let Some(before) = first.cpu_ns {
        std::thread::sleep(MEASURED.saturating_sub(begun.elapsed()));
        let after = hypervisor.used(name).ok().and_then(|used| used.cpu_ns);
        let passed = begun.elapsed().as_nanos().max(1);
        let percent = |after: u64| u128::from(after.saturating_sub(before)) * 100 / passed;
        usage.cpu_percent = after.and_then(|after| u64::try_from(percent(after)).ok());
    }
    usage
}

/// Seconds since the start of a guest of this machine.
fn uptime(hypervisor: &dyn Hypervisor, uuid: &str) -> Option<u64> {
    let root = hypervisor.has_guests_here().then(FsRoot::live)?.ok()?;
    let pid = *process::all(&root).ok()?.get(&uuid.to_ascii_lowercase())?;
    process::age(&root, pid).map(|age| age.as_secs())
}

fn ask(hypervisor: &dyn Hypervisor, name: &str, usage: &mut Usage) {
    let Some(agent) = Agent::greet(hypervisor, name, AGENT) else { return };
    usage.guest_memory = agent.read("/proc/meminfo").ok().as_deref().and_then(memory);
    if let Ok(answer) = agent.ask("guest-get-fsinfo", &json!({})) {
        usage.file_systems = file_systems(&answer);
    }
}

fn memory(text: &str) -> Option<Part> {
    let value = |key: &str| -> Option<u64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
        rest.trim_start_matches(':').split_whitespace().next()?.parse().ok()
    };
    let (total_kib, available) = (value("MemTotal")?, value("MemAvailable")?);
    Some(Part { used_kib: total_kib.saturating_sub(available), total_kib })
}

/// The file systems of an answer of `guest-get-fsinfo`, by their names; an old agent reports no
/// sizes.
fn file_systems(answer: &Value) -> Vec<FileSystem> {
    let read = |one: &Value| {
        let mount: String = one["mountpoint"].as_str()?.chars().take(MOST * 8).collect();
        let kib = |key: &str| Some(one[key].as_u64()? / 1024);
        let part = Part { used_kib: kib("used-bytes")?, total_kib: kib("total-bytes")? };
        (part.total_kib > 0).then_some(FileSystem { mount, part })
    };
    let all = answer.as_array().into_iter().flatten();
    let mut all: Vec<FileSystem> = all.filter_map(read).take(MOST).collect();
    all.sort_by(|a, b| a.mount.cmp(&b.mount));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_an_agent_are_read_and_bounded() {
        let text = "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    400 kB\n";
        assert_eq!(memory(text), Some(Part { used_kib: 600, total_kib: 1000 }));
        assert_eq!((memory("MemTotal: 1000 kB"), memory("")), (None, None));
        let one = |mount: &str, used: u64| json!({ "mountpoint": mount, "used-bytes": used << 10, "total-bytes": 100 << 10 });
        let old = json!({ "mountpoint": "/old", "type": "ext4" });
        let read = file_systems(&json!([one("/srv", 7), one("/", 3), old, 1]));
        let (part, mount) = (Part { used_kib: 3, total_kib: 100 }, "/".to_owned());
        assert_eq!(read[0], FileSystem { mount, part });
        assert_eq!((read.len(), read[1].mount.as_str()), (2, "/srv"));
        let many: Vec<Value> = (0..99).map(|at| one(&format!("/{at}"), 1)).collect();
        assert_eq!(file_systems(&many.into()).len(), MOST);
        assert_eq!(file_systems(&json!({})), []);
    }
}
