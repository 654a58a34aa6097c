//! Hosts with GPUs whose memory is coherent with the CPU's: which NUMA nodes are a GPU's, and what
//! the kernel has for passing such GPUs through (gpuvm-hardware(7), GRACE). Judges nothing.

use super::cpu::id_list;
use super::memory::NODES;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::{NodeId, NodeSet};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::{
    CoherentHost, CoherentModel, NODES_PER_GPU, NVGRACE, NumaNode, Parts, PciDevice,
};
use std::collections::BTreeMap;

/// The table of the firmware that names generic initiators; only root can read it.
const SRAT: &str = "sys/firmware/acpi/tables/SRAT";
/// Where the kernel lists its IOMMUs.
const IOMMUS: &str = "sys/class/iommu";
/// The size of huge pages that only kernels with normal pages of 64 KiB have, and that of those with
/// 4 KiB, in KiB.
const PAGES: [(&str, u64); 2] = [("hugepages-524288kB", 64), ("hugepages-1048576kB", 4)];

/// Fills in what concerns such GPUs; a host without them stays as it is.
pub fn fill(root: &FsRoot, parts: &mut Parts) -> Result<(), FsError> {
    let is_arm = parts.machine.architecture.as_deref() == Some("aarch64");
    let is_coherent = |device: &&PciDevice| CoherentModel::of(device).is_some();
    let gpus: Vec<&PciDevice> = parts.devices.iter().filter(is_coherent).collect();
    if gpus.is_empty() || !is_arm {
        return Ok(());
    }
    let initiators: Option<NodeSet> = match root.dir(NODES)? {
        Some(dir) => id_list(&dir, "has_generic_initiator")?,
        None => None,
    };
    let is_bare = |node: &&NumaNode| node.pcpus.is_empty();
    let is_listed = |node: &&NumaNode| {
        initiators.as_ref().is_none_or(|initiators| initiators.contains(node.os_index))
    };
    let bare: Vec<&NumaNode> = parts.nodes.iter().filter(is_bare).collect();
    let (listed, others): (Vec<&NumaNode>, Vec<&NumaNode>) = bare.into_iter().partition(is_listed);
    let found = by_table(root, &gpus, &listed)
        .or_else(|| by_distance(&parts.nodes, &gpus, &listed))
        .or_else(|| by_number(&gpus, &listed));
    let left: NodeSet =
        others.iter().filter(|node| node.memory_kib.is_zero()).map(|node| node.os_index).collect();
    if !left.is_empty() {
        let note = format!("nodes {left} have neither CPUs nor memory and are no GPU's: not used");
        parts.notes.push(note);
    }
    if found.is_none() && !listed.is_empty() {
        let nodes: NodeSet = listed.iter().map(|node| node.os_index).collect();
        let note = format!("which GPU each of the nodes {nodes} belongs to is unknown");
        parts.notes.push(note);
    }
    for (node, gpu) in found.unwrap_or_default() {
        let own = parts.nodes.iter_mut().find(|own| own.os_index == node);
        own.into_iter().for_each(|own| own.gpu = Some(gpu));
    }
    parts.machine.coherent = kernel(root, parts)?;
    Ok(())
}

/// The GPU of each node.
type GpuOfNode = BTreeMap<NodeId, Bdf>;

/// Reads the kernel's support; `None` if unknown.
fn kernel(root: &FsRoot, parts: &Parts) -> Result<Option<CoherentHost>, FsError> {
    let units = root.names(IOMMUS)?;
    let smmuv3 = units.iter().filter(|name| name.starts_with("smmu3")).count();
    let is_shown = root.exists(IOMMUS);
    let mut page_kib = None;
    for (pool, kib) in PAGES {
        if root.exists(&format!("sys/kernel/mm/hugepages/{pool}")) {
            page_kib = page_kib.or(Some(MemSize::from_kib(kib)));
        }
    }
    let found = CoherentHost {
        nvgrace: nvgrace(root, parts.machine.kernel_release.as_deref())?,
        smmuv3: is_shown.then(|| u32::try_from(smmuv3).unwrap_or(u32::MAX)),
        page_kib,
    };
    Ok((found != CoherentHost::default()).then_some(found))
}

/// Whether the kernel has the driver: it is loaded, or among the modules; `None` if neither is
/// shown.
fn nvgrace(root: &FsRoot, release: Option<&str>) -> Result<Option<bool>, FsError> {
    let is_loaded = root.exists(&format!("sys/bus/pci/drivers/{NVGRACE}"));
    if is_loaded {
        return Ok(Some(true));
    }
    let Some(release) = release else { return Ok(None) };
    let dir = format!("lib/modules/{release}");
    let name = format!("{NVGRACE}.ko");
    let mut is_known = false;
    for list in ["modules.dep", "modules.builtin"] {
        let Some(text) = root.read(&format!("{dir}/{list}"))? else { continue };
        is_known = true;
        let is_it = |line: &str| line.split(':').next().is_some_and(|path| path.contains(&name));
        if text.lines().any(is_it) {
            return Ok(Some(true));
        }
    }
    Ok(is_known.then_some(false))
}

/// An entry of the SRAT that names a proximity domain.
struct Affinity {
    domain: u32,
    /// The PCI function that is a generic initiator of it; `None` if it is of CPUs or memory.
    function: Option<Bdf>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Reads an entry (ACPI 6.5, 5.2.16); `None` if it is of another type, disabled, or cut off. The
/// bus is before device and function, as QEMU writes it and the kernel reads it.
fn affinity(entry: &[u8]) -> Option<Affinity> {
    let plain = |domain, flags: usize| {
        let is_enabled = word(entry, flags)? & 1 == 1;
        is_enabled.then_some(Affinity { domain, function: None })
    };
    match entry.first()? {
        // The bytes of a local APIC's domain are in two places.
        0 => plain(u32::from(*entry.get(2)?) | word(entry, 8)? & 0xffff_ff00, 4),
        1 => plain(word(entry, 2)?, 28),
        2 => plain(word(entry, 4)?, 12),
        3 => plain(word(entry, 2)?, 10),
        5 if entry.get(3) == Some(&1) && word(entry, 24)? & 1 == 1 => {
            let segment = u32::from(*entry.get(8)?) | u32::from(*entry.get(9)?) << 8;
            let (bus, slot) = (*entry.get(10)?, *entry.get(11)?);
            let function = Bdf::new(segment, bus, slot >> 3, slot & 7).ok()?;
            Some(Affinity { domain: word(entry, 4)?, function: Some(function) })
        }
        5 => plain(word(entry, 4)?, 24),
        _ => None,
    }
}

/// Entries in the order in which Linux meets them: those of memory after all others (`acpi_numa_init`
/// of drivers/acpi/numa/srat.c).
fn entries(table: &[u8]) -> Vec<Affinity> {
    let (mut first, mut of_memory) = (Vec::new(), Vec::new());
    let mut rest = table.get(48..).unwrap_or_default();
    while let [kind, length, ..] = rest {
        let length = usize::from(*length);
        let Some(entry) = rest.get(..length).filter(|_| length > 1) else { break };
        let list = if *kind == 1 { &mut of_memory } else { &mut first };
        list.extend(affinity(entry));
        rest = &rest[length..];
    }
    first.extend(of_memory);
    first
}

/// Reads the GPU of each node from the firmware's table. Linux numbers nodes as it meets their
/// proximity domains; a result that the kernel's list of initiators contradicts is none.
fn by_table(root: &FsRoot, gpus: &[&PciDevice], listed: &[&NumaNode]) -> Option<GpuOfNode> {
    let table = root.bytes(SRAT)?;
    let entries = entries(&table);
    let mut numbers: BTreeMap<u32, NodeId> = BTreeMap::new();
    let mut found = GpuOfNode::new();
    for Affinity { domain, function } in &entries {
        let next = NodeId(u32::try_from(numbers.len()).ok()?);
        let node = *numbers.entry(*domain).or_insert(next);
        let gpu = function.filter(|bdf| gpus.iter().any(|gpu| gpu.bdf == *bdf));
        found.extend(gpu.map(|gpu| (node, gpu)));
    }
    let is_same = !found.is_empty()
        && found.len() == listed.len()
        && listed.iter().all(|node| found.contains_key(&node.os_index));
    is_same.then_some(found)
}

/// Groups nodes that are nearer to each other than to any CPU, and gives them to the GPUs of their
/// nearest CPUs in the order of both; `None` if distances are unknown, or there are not as many
/// groups.
fn by_distance(nodes: &[NumaNode], gpus: &[&PciDevice], listed: &[&NumaNode]) -> Option<GpuOfNode> {
    let place = |id: NodeId| nodes.iter().position(|node| node.os_index == id);
    let distance = |a: &NumaNode, b: NodeId| a.distances.get(place(b)?).copied();
    let nearest = |node: &NumaNode| {
        let cpus = nodes.iter().filter(|other| !other.pcpus.is_empty());
        let far = cpus.filter_map(|other| Some((distance(node, other.os_index)?, other.os_index)));
        far.min()
    };
    let mut groups: Vec<(NodeId, Vec<&NumaNode>)> = Vec::new();
    for node in listed {
        let (to_cpus, home) = nearest(node)?;
        let is_near = |(_, group): &&mut (NodeId, Vec<&NumaNode>)| {
            distance(group[0], node.os_index).is_some_and(|between| between < to_cpus)
        };
        match groups.iter_mut().find(is_near) {
            Some((_, group)) => group.push(node),
            None => groups.push((home, vec![node])),
        }
    }
    let mut found = GpuOfNode::new();
    let homes: std::collections::BTreeSet<NodeId> = groups.iter().map(|(home, _)| *home).collect();
    for home in homes {
        let own: Vec<_> = groups.iter().filter(|(of, _)| *of == home).collect();
        let near: Vec<_> = gpus.iter().filter(|gpu| gpu.node == Some(home)).collect();
        if own.len() != near.len() {
            return None;
        }
        for ((_, group), gpu) in own.into_iter().zip(near) {
            found.extend(group.iter().map(|node| (node.os_index, gpu.bdf)));
        }
    }
    (!found.is_empty()).then_some(found)
}

/// Gives each GPU the next eight nodes, where there are just as many.
fn by_number(gpus: &[&PciDevice], listed: &[&NumaNode]) -> Option<GpuOfNode> {
    if listed.len() != gpus.len() * NODES_PER_GPU {
        return None;
    }
    let groups = listed.chunks(NODES_PER_GPU).zip(gpus);
    Some(
        groups.flat_map(|(group, gpu)| group.iter().map(|node| (node.os_index, gpu.bdf))).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry of a generic initiator.
    fn initiator(domain: u32, function: &str) -> Vec<u8> {
        let bdf: Bdf = function.parse().unwrap();
        let mut entry = vec![0; 32];
        (entry[0], entry[1], entry[3]) = (5, 32, 1);
        entry[4..8].copy_from_slice(&domain.to_le_bytes());
        entry[8..10].copy_from_slice(&u16::try_from(bdf.segment()).unwrap().to_le_bytes());
        (entry[10], entry[11]) = (bdf.bus(), bdf.device() << 3 | bdf.function());
        entry[24] = 1;
        entry
    }

    /// A processor's entry.
    fn processor(domain: u32) -> Vec<u8> {
        let mut entry = vec![0; 18];
        (entry[0], entry[1], entry[10]) = (3, 18, 1);
        entry[2..6].copy_from_slice(&domain.to_le_bytes());
        entry
    }

    fn function(bdf: &str) -> PciDevice {
        let json = serde_json::json!({ "bdf": bdf, "class": "0x030200", "vendor": "0x10de",
            "device": "0x2941" });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn nodes_are_numbered_as_linux_meets_their_domains() {
        let dir = tempfile::tempdir().unwrap();
        let gpus = ["0008:01:00.0", "0009:01:00.0"].map(function);
        let gpus: Vec<&PciDevice> = gpus.iter().collect();
        let json = |id: u32| serde_json::json!({ "os_index": id, "memory_kib": 0 });
        let nodes: Vec<NumaNode> =
            (1..5).map(|id| serde_json::from_value(json(id)).unwrap()).collect();
        let listed: Vec<&NumaNode> = nodes.iter().collect();
        let found = |table: &[Vec<u8>]| {
            let file = dir.path().join(SRAT);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, [vec![0; 48], table.concat()].concat()).unwrap();
            by_table(&FsRoot::at(dir.path()).unwrap(), &gpus, &listed)
        };
        let [a, b] = ["0008:01:00.0", "0009:01:00.0"];
        let shuffled = [
            processor(0),
            initiator(4, b),
            initiator(1, a),
            initiator(3, b),
            initiator(2, a),
            // A generic port.
            vec![6, 4, 0, 0],
        ];
        let of = |bdf: &str| bdf.parse::<Bdf>().unwrap();
        let wanted = [(1, of(b)), (2, of(a)), (3, of(b)), (4, of(a))];
        let wanted: GpuOfNode = wanted.map(|(id, bdf)| (NodeId(id), bdf)).into();
        assert_eq!(found(&shuffled), Some(wanted));
        // A processor of x86.
        let mut local_apic = vec![0; 16];
        (local_apic[1], local_apic[4]) = (16, 1);
        let of_x86 = [&[local_apic], &shuffled[1..]].concat();
        assert_eq!(found(&of_x86), found(&shuffled));
        // The kernel lists others; an entry is cut off; there is none.
        assert_eq!(found(&shuffled[1..]), None);
        assert_eq!(found(&[processor(0), initiator(4, b)[..30].to_vec()]), None);
        assert_eq!(found(&[]), None);
    }
}
