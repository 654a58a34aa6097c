//! The control groups of a guest: delays by quotas, and memory by node.

use crate::fsroot::{FsRoot, KeptFile, KeptLimit};
use gpuvm_core::cpuset::NodeId;
use gpuvm_core::load::{NodeMemory, QuotaGroup, Throttling};
use gpuvm_core::memsize::MemSize;
use std::collections::BTreeMap;

/// Where the second version is mounted.
const V2: &str = "sys/fs/cgroup";
/// Where the first version has its controller of CPU time.
const V1_CPU: [&str; 2] = ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"];

/// The open files of a guest's control groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    quotas: Vec<(QuotaGroup, KeptFile)>,
    memory: Option<KeptFile>,
    /// By page size.
    huge: Vec<(MemSize, KeptFile)>,
}

impl Groups {
    /// Opens the groups of a process, as far as they are there.
    pub(super) fn open(root: &FsRoot, pid: u32, limit: KeptLimit) -> Groups {
        let mut groups = Groups::default();
        let text = root.read(&format!("proc/{pid}/cgroup")).ok().flatten().unwrap_or_default();
        let Some(path) = cpu_directory(root, &text) else { return groups };
        groups.open_quotas(root, &path, limit);
        groups.memory = kept(root, &format!("{path}/memory.numa_stat"), limit);
        let names = root.names(&path).unwrap_or_default();
        for name in &names {
            let size =
                name.strip_prefix("hugetlb.").and_then(|name| name.strip_suffix(".numa_stat"));
            let size = size.and_then(|size| size.trim_end_matches('B').parse().ok());
            let file = kept(root, &format!("{path}/{name}"), limit);
            groups.huge.extend(size.zip(file));
        }
        groups
    }

    fn open_quotas(&mut self, root: &FsRoot, path: &str, limit: KeptLimit) {
        let whole = kept(root, &format!("{path}/cpu.stat"), limit);
        self.quotas.extend(whole.map(|file| (QuotaGroup::Whole, file)));
        // libvirt has the threads below `libvirt` in the second version, so that systemd may not
        // move them.
        for below in [path.to_owned(), format!("{path}/libvirt")] {
            for name in root.names(&below).unwrap_or_default() {
                let Some(Ok(vcpu)) = name.strip_prefix("vcpu").map(str::parse) else { continue };
                let file = kept(root, &format!("{below}/{name}/cpu.stat"), limit);
                self.quotas.extend(file.map(|file| (QuotaGroup::Vcpu(vcpu), file)));
            }
        }
    }

    /// The delays by quotas so far.
    pub(super) fn throttled(
        &self,
        root: &FsRoot,
        buffer: &mut Vec<u8>,
    ) -> BTreeMap<QuotaGroup, Throttling> {
        let each = self
            .quotas
            .iter()
            .filter_map(|(group, file)| Some((*group, throttling(file.read(root, buffer).ok()?)?)));
        each.collect()
    }

    /// Whether the kernel counts memory by node.
    pub(super) fn counts_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Memory by node; `None` if the kernel does not say.
    pub(super) fn memory(&self, root: &FsRoot, buffer: &mut Vec<u8>) -> Option<NodeMemory> {
        let normal = normal_memory(self.memory.as_ref()?.read(root, buffer).ok()?);
        let mut huge = BTreeMap::new();
        for (size, file) in &self.huge {
            let text = file.read(root, buffer).ok()?;
            huge.insert(*size, nodes(text.lines().next().unwrap_or_default()));
        }
        Some(NodeMemory { normal, huge })
    }
}

fn kept(root: &FsRoot, path: &str, limit: KeptLimit) -> Option<KeptFile> {
    KeptFile::open(root, path, limit).ok().flatten()
}

/// Returns the directory of a guest's group for CPU time, from `/proc/PID/cgroup`: that of the
/// whole guest, above those of its threads.
fn cpu_directory(root: &FsRoot, text: &str) -> Option<String> {
    let whole = |path: &str| {
        let path = path.strip_suffix("/emulator").unwrap_or(path);
        path.strip_suffix("/libvirt").unwrap_or(path).to_owned()
    };
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let mounts: &[&str] = match controllers {
            "" => &[V2],
            of if of.split(',').any(|name| name == "cpu") => &V1_CPU,
            _ => continue,
        };
        // The group of all processes is not the guest's.
        let mut found = mounts.iter().filter(|_| path != "/");
        let has_stat = |path: &String| root.exists(&format!("{path}/cpu.stat"));
        let found =
            found.find_map(|mount| Some(format!("{mount}{}", whole(path))).filter(has_stat));
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Reads `cpu.stat` of either version; `None` without a quota's numbers.
fn throttling(text: &str) -> Option<Throttling> {
    let value = |key: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    };
    // In us in the second version, in ns in the first.
    let us = value("throttled_usec").map(|us| us.saturating_mul(1000));
    let ns = us.or_else(|| value("throttled_time")).unwrap_or_default();
    Some(Throttling { count: value("nr_throttled")?, ns })
}

/// Reads `memory.numa_stat` of the second version: memory of the process itself and shared memory,
/// without the page cache of its disks.
fn normal_memory(text: &str) -> BTreeMap<NodeId, MemSize> {
    let mut sums: BTreeMap<NodeId, MemSize> = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("anon ").or_else(|| line.strip_prefix("shmem ")) else {
            continue;
        };
        for (node, size) in nodes(rest) {
            let sum = sums.entry(node).or_default();
            *sum = *sum + size;
        }
    }
    sums
}

/// Reads `N0=4096 N1=0`, in bytes.
fn nodes(text: &str) -> BTreeMap<NodeId, MemSize> {
    let each = text.split_ascii_whitespace().filter_map(|word| {
        let (node, bytes) = word.strip_prefix('N')?.split_once('=')?;
        let bytes: u64 = bytes.parse().ok()?;
        Some((NodeId(node.parse().ok()?), MemSize::from_kib(bytes / 1024)))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn write(dir: &Path, path: &str, text: &str) {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn open(dir: &Path) -> (FsRoot, Groups) {
        let root = FsRoot::at(dir).unwrap();
        let groups = Groups::open(&root, 40, KeptLimit::NONE);
        (root, groups)
    }

    #[test]
    fn the_second_version_has_quotas_and_memory() {
        let dir = tempfile::tempdir().unwrap();
        let scope = "machine.slice/machine-qemu\\x2d1\\x2da.scope";
        let path = format!("sys/fs/cgroup/{scope}");
        write(dir.path(), "proc/40/cgroup", &format!("0::/{scope}/libvirt/emulator\n"));
        let stat = "usage_usec 5\nnr_periods 9\nnr_throttled 3\nthrottled_usec 70\n";
        write(dir.path(), &format!("{path}/cpu.stat"), "usage_usec 5\n");
        write(dir.path(), &format!("{path}/libvirt/vcpu1/cpu.stat"), stat);
        write(dir.path(), &format!("{path}/libvirt/emulator/cpu.stat"), stat);
        let memory = "anon N0=2097152 N1=1048576\nfile N0=9999999 N1=0\nshmem N0=0 N1=1048576\n";
        write(dir.path(), &format!("{path}/memory.numa_stat"), memory);
        write(dir.path(), &format!("{path}/hugetlb.2MB.numa_stat"), "total=4 N0=4194304 N1=0\n");
        let (root, groups) = open(dir.path());
        let buffer = &mut Vec::new();
        let throttled = groups.throttled(&root, buffer);
        let expected = Throttling { count: 3, ns: 70_000 };
        assert_eq!(throttled, [(QuotaGroup::Vcpu(1), expected)].into());
        let NodeMemory { normal, huge } = groups.memory(&root, buffer).unwrap();
        let mib = |mib: u64| MemSize::from_kib(mib << 10);
        assert_eq!(normal, [(NodeId(0), mib(2)), (NodeId(1), mib(2))].into());
        let pages = [(NodeId(0), mib(4)), (NodeId(1), mib(0))].into();
        assert_eq!(huge, [(mib(2), pages)].into());
    }

    #[test]
    fn the_first_version_has_quotas() {
        for mount in ["cpu", "cpu,cpuacct"] {
            let dir = tempfile::tempdir().unwrap();
            let text = "5:cpu,cpuacct:/machine/qemu-1-a.libvirt-qemu/emulator\n0::/\n";
            write(dir.path(), "proc/40/cgroup", text);
            let path = format!("sys/fs/cgroup/{mount}/machine/qemu-1-a.libvirt-qemu");
            let stat = "nr_periods 9\nnr_throttled 3\nthrottled_time 70\n";
            write(dir.path(), &format!("{path}/cpu.stat"), stat);
            write(dir.path(), &format!("{path}/vcpu0/cpu.stat"), stat);
            let (root, groups) = open(dir.path());
            let throttled = groups.throttled(&root, &mut Vec::new());
            let expected = Throttling { count: 3, ns: 70 };
            let both = [(QuotaGroup::Whole, expected), (QuotaGroup::Vcpu(0), expected)].into();
            assert_eq!(throttled, both, "{mount}");
            assert!(groups.memory(&root, &mut Vec::new()).is_none());
        }
    }

    #[test]
    fn a_process_in_no_group_of_its_own_has_none() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "proc/40/cgroup", "0::/\n");
        write(dir.path(), "sys/fs/cgroup/cpu.stat", "nr_throttled 3\n");
        let (root, groups) = open(dir.path());
        assert!(groups.throttled(&root, &mut Vec::new()).is_empty());
    }
}
