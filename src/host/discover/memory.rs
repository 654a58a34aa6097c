//! NUMA nodes: pcpus, memory, distances, pools of huge pages. Knows nothing of cores.

use super::cpu::{id_list, mask, numbered};
use crate::fsroot::{Dir, FsError, FsRoot, not};
use gpuvm_core::cpuset::{CpuSet, NodeId};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::{HugePagePool, NumaNode};

pub(super) const NODES: &str = "sys/devices/system/node";
/// One in this many parts of the machine's memory may be missing on the nodes.
const MISSING: u64 = 8;

/// Reads nodes by id; a host whose kernel has none is one node. Every online pcpu ends up on
/// exactly one.
pub fn nodes(
    root: &FsRoot,
    online: &CpuSet,
    notes: &mut Vec<String>,
) -> Result<Vec<NumaNode>, FsError> {
    let mut nodes = Vec::new();
    let mut rest = online.clone();
    let mut ids: Vec<NodeId> =
        root.names(NODES)?.iter().filter_map(|name| numbered(name, "node")).collect();
    ids.sort_unstable();
    for os_index in ids {
        let Some(dir) = root.dir(&format!("{NODES}/node{os_index}"))? else { continue };
        let node = node(root, &dir, os_index)?;
        let said = node.pcpus.and(online);
        let pcpus = said.and(&rest);
        if pcpus != said {
            let twice = said.minus(&pcpus);
            notes.push(format!("node {os_index}: pcpus {twice} are on another node, too"));
        }
        rest = rest.minus(&pcpus);
        nodes.push(NumaNode { pcpus, ..node });
    }
    if nodes.is_empty() {
        return Ok(vec![only_node(root, online)?]);
    }
    if let [only] = &mut nodes[..] {
        // The node's own number lacks memory onlined later.
        let all = machine_memory(root)?;
        only.memory_kib = if all.is_zero() { only.memory_kib } else { all };
    }
    if !rest.is_empty() {
        let first = &mut nodes[0];
        notes.push(format!("pcpus {rest} are on no node; counted to node {}", first.os_index));
        first.pcpus = first.pcpus.or(&rest);
    }
    let count = nodes.len();
    for node in nodes.iter_mut().filter(|n| !n.distances.is_empty() && n.distances.len() != count) {
        let said = node.distances.len();
        notes.push(format!("node {}: {said} distances for {count} nodes", node.os_index));
        node.distances.clear();
    }
    Ok(nodes)
}

/// Reads the directory of a node; its pcpus as reported by the kernel.
fn node(root: &FsRoot, dir: &Dir<'_>, os_index: NodeId) -> Result<NumaNode, FsError> {
    let pcpus = match id_list(dir, "cpulist")? {
        Some(pcpus) => pcpus,
        None => mask(dir, "cpumap")?.unwrap_or_default(),
    };
    let distances = match dir.read("distance")? {
        Some(text) => text
            .split_whitespace()
            .map(|word| word.parse().map_err(|_| not(word, "a distance")))
            .collect::<Result<_, _>>()
            .map_err(|reason| dir.malformed("distance", 1, reason))?,
        None => Vec::new(),
    };
    let memory_kib = match dir.read("meminfo")? {
        Some(text) => memory(root, &dir.path_of("meminfo"), &text)?,
        None => MemSize::default(),
    };
    let huge_pages = pools(root, &dir.path_of("hugepages"))?;
    Ok(NumaNode { os_index, pcpus, memory_kib, distances, huge_pages, gpu: None })
}

/// Makes the one node of a host whose kernel shows none.
fn only_node(root: &FsRoot, online: &CpuSet) -> Result<NumaNode, FsError> {
    Ok(NumaNode {
        os_index: NodeId(0),
        pcpus: online.clone(),
        memory_kib: machine_memory(root)?,
        distances: Vec::new(),
        huge_pages: pools(root, "sys/kernel/mm/hugepages")?,
        gpu: None,
    })
}

/// The machine's memory; zero if unknown.
fn machine_memory(root: &FsRoot) -> Result<MemSize, FsError> {
    let path = "proc/meminfo";
    match root.read(path)? {
        Some(text) => memory(root, path, &text),
        None => Ok(MemSize::default()),
    }
}

/// Returns the machine's memory not on any node; none if that is less than an eighth of it.
pub fn off_nodes(root: &FsRoot, nodes: &[NumaNode]) -> Result<Option<MemSize>, FsError> {
    let all = machine_memory(root)?;
    let shown = nodes.iter().map(|node| node.memory_kib).sum();
    let missing = all.saturating_sub(shown);
    Ok(Some(missing).filter(|missing| *missing > all.share(1, MISSING)))
}

/// Finds `MemTotal:` in a meminfo of the host or, with `Node 0` in front, of a node.
fn memory(root: &FsRoot, path: &str, text: &str) -> Result<MemSize, FsError> {
    for (index, line) in text.lines().enumerate() {
        let Some((_, value)) = line.split_once("MemTotal:") else { continue };
        let kib = value.trim().strip_suffix("kB").and_then(|kib| kib.trim().parse().ok());
        return match kib.filter(|&kib: &u64| kib < 1 << 53) {
            Some(kib) => Ok(MemSize::from_kib(kib)),
            None => Err(root.malformed(path, index + 1, not(value.trim(), "an amount in kB"))),
        };
    }
    Ok(MemSize::default())
}

/// Reads pools of huge pages below a directory, by page size.
pub(super) fn pools(root: &FsRoot, path: &str) -> Result<Vec<HugePagePool>, FsError> {
    let mut pools = Vec::new();
    for name in root.names(path)? {
        let size = name.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB"));
        let size = size.and_then(|kib| kib.parse::<u64>().ok()).filter(|&kib| kib > 0);
        let Some(kib) = size.filter(|&kib| kib < 1 << 53) else { continue };
        let Some(dir) = root.dir(&format!("{path}/{name}"))? else { continue };
        let total = dir.number("nr_hugepages")?.unwrap_or(0);
        // The files are read one after the other, so that the pool may have grown in between.
        let free = dir.number("free_hugepages")?.unwrap_or(0).min(total);
        let surplus = dir.number("surplus_hugepages")?.unwrap_or(0);
        pools.push(HugePagePool { page_kib: MemSize::from_kib(kib), total, free, surplus });
    }
    pools.sort_by_key(|pool| pool.page_kib);
    Ok(pools)
}
