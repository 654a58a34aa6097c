//! The current state of huge pages: the pool of one node, the memory it could still grow by, and
//! mounted hugetlbfs file systems.

use super::cpu::numbered;
use super::memory::{NODES, pools};
use crate::fsroot::{FsError, FsRoot, not};
use gpuvm_core::cpuset::NodeId;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::{HugePagePool, HugetlbMount};
use procfs::process::MountInfo;

/// Where the kernel shows the pools of a host without nodes.
const WHOLE: &str = "sys/kernel/mm/hugepages";
/// Keys of a node's meminfo for memory that is free or reclaimable from caches. Dirty pages count,
/// too, so this is an upper bound.
const AVAILABLE: [&str; 4] = ["MemFree", "Active(file)", "Inactive(file)", "SReclaimable"];

/// The directory of the pools of a node, below the root; that of the host if the kernel has no
/// nodes. `None` if there is no such node.
pub fn directory(root: &FsRoot, node: NodeId) -> Option<String> {
    let own = format!("{NODES}/node{node}");
    match root.exists(&own) {
        true => Some(format!("{own}/hugepages")),
        false if node == NodeId(0) && !root.exists(NODES) => Some(WHOLE.to_owned()),
        false => None,
    }
}

/// The pools of a node now, by page size; none if there is no such node.
pub fn of_node(root: &FsRoot, node: NodeId) -> Result<Option<Vec<HugePagePool>>, FsError> {
    directory(root, node).map(|path| pools(root, &path)).transpose()
}

/// The most memory that a node could give to a pool now; `None` if the kernel does not report it.
/// For a single node this is the machine's, since the node's own numbers lack memory onlined later.
pub fn available(root: &FsRoot, node: NodeId) -> Result<Option<MemSize>, FsError> {
    let (own, whole) = (format!("{NODES}/node{node}/meminfo"), "proc/meminfo");
    let ids = root.names(NODES)?.into_iter();
    let nodes = ids.filter(|name| numbered::<NodeId>(name, "node").is_some()).count();
    let is_own = root.exists(&own) && !(nodes == 1 && root.exists(whole));
    let path = if is_own { own } else { whole.to_owned() };
    let Some(text) = root.read(&path)? else { return Ok(None) };
    let mut sum = None;
    for (number, line) in (1..).zip(text.lines()) {
        let Some((words, value)) = line.split_once(':') else { continue };
        let key = words.split_whitespace().next_back().unwrap_or_default();
        if AVAILABLE.contains(&key) {
            let kib = value.trim().trim_end_matches("kB").trim_end().parse::<u64>();
            let wrong = |_| root.malformed(&path, number, not(value.trim(), "an amount in kB"));
            let kib = MemSize::from_kib(kib.map_err(wrong)?);
            sum = Some(sum.unwrap_or_default() + kib);
        }
    }
    Ok(sum)
}

/// Mounted file systems of huge pages, by page size; none if the mounts are unknown. Mounts of
/// process 1 count, too: libvirt's daemon sees them.
pub fn mounts(root: &FsRoot) -> Result<Option<Vec<HugetlbMount>>, FsError> {
    let first = root.read("proc/1/mountinfo").unwrap_or_default();
    let own = root.read("proc/self/mountinfo")?;
    if first.is_none() && own.is_none() {
        return Ok(None);
    }
    let lines = [first, own].map(Option::unwrap_or_default).join("\n");
    let mut mounts: Vec<HugetlbMount> = lines.lines().filter_map(mount).collect();
    mounts.sort();
    mounts.dedup();
    Ok(Some(mounts))
}

/// Reads a line of mountinfo; none if it is another type. The kernel always names the page size.
fn mount(line: &str) -> Option<HugetlbMount> {
    let mount = MountInfo::from_line(line).ok().filter(|mount| mount.fs_type == "hugetlbfs")?;
    let size = mount.super_options.get("pagesize")?.as_ref()?;
    let at = mount.mount_point.to_str()?.to_owned();
    Some(HugetlbMount { page_kib: size.parse().ok()?, at })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Writes a file of a host.
    fn put(dir: &Path, path: &str, text: &str) {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn mounts_are_those_of_hugetlbfs_by_size() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!(mounts(&root).unwrap(), None, "nothing is known");
        let line = "30 25 0:28 / /dev/hugepages rw,relatime shared:15 - hugetlbfs hugetlbfs \
                    rw,pagesize=2M";
        let text = format!("25 1 8:1 / / rw - ext4 /dev/a rw\nnonsense\n{line}\n");
        put(dir.path(), "proc/self/mountinfo", &text);
        let gib = line.replace("/dev/hugepages", "/huge").replace("=2M", "=1024M");
        put(dir.path(), "proc/1/mountinfo", &format!("{gib}\n{line}\n"));
        let seen = mounts(&root).unwrap().unwrap();
        let seen: Vec<_> = seen.iter().map(|m| (m.page_kib.kib(), m.at.as_str())).collect();
        assert_eq!(seen, [(2048, "/dev/hugepages"), (1 << 20, "/huge")]);
    }

    #[test]
    fn a_node_can_give_what_is_free_and_what_its_caches_hold() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!(available(&root, NodeId(0)).unwrap(), None);
        let text = "Node 1 MemTotal: 900 kB\nNode 1 MemFree:   100 kB\nNode 1 Active(file): 20 kB\n\
                    Node 1 Active(anon): 400 kB\nNode 1 Inactive(file): 3 kB\nNode 1 SReclaimable: 4 kB\n";
        put(dir.path(), "sys/devices/system/node/node1/meminfo", text);
        assert_eq!(available(&root, NodeId(1)).unwrap(), Some(MemSize::from_kib(127)));
        put(dir.path(), "proc/meminfo", "MemTotal: 9000 kB\nMemFree: 8000 kB\n");
        assert_eq!(available(&root, NodeId(1)).unwrap(), Some(MemSize::from_kib(8000)), "the only");
        put(dir.path(), "sys/devices/system/node/node3/meminfo", "Node 3 MemFree: 1 kB\n");
        assert_eq!(available(&root, NodeId(1)).unwrap(), Some(MemSize::from_kib(127)));
        put(dir.path(), "sys/devices/system/node/node1/meminfo", "Node 1 MemFree: much kB\n");
        let error = available(&root, NodeId(1)).unwrap_err().to_string();
        assert!(error.ends_with("meminfo line 1: `much kB` is not an amount in kB"), "{error}");
        assert!(of_node(&root, NodeId(7)).unwrap().is_none());
    }
}
