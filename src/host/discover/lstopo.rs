//! Converts an lstopo XML to a [`Topology`] with hwloc's own parser.
//!
//! Such a record contains processors, memory and the PCI tree, but not drivers, IOMMU groups, BARs,
//! link widths, free huge pages and uses of drives, as the notes of the result say. Nothing is read
//! from this machine.

mod error;
mod guard;
mod io;

pub use error::LstopoError;

use gpuvm_core::cpuset::{CpuSet, Id, IdSet, MAX_ID, NodeId, PcpuId};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::{Core, HugePagePool, L3, Machine, NumaNode, Parts, Topology};
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{BuildFlags, TypeFilter};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;

/// Reads a host from an lstopo XML of format 2 (or 1), as `lstopo FILE.xml` of hwloc 2 writes.
pub fn from_lstopo_xml(text: &str) -> Result<Topology, LstopoError> {
    guard::check(text)?;
    let domains = Domains::new(text);
    let narrowed = domains.narrowed(text);
    let text = narrowed.as_deref().unwrap_or(text);
    let refused = |reason: String| LstopoError::Hwloc { reason };
    let hwloc = hwlocality::Topology::builder()
        .from_xml(text)
        .map_err(|e| refused(e.to_string()))?
        // Otherwise pcpus outside the recording process's cgroup are missing.
        .with_flags(BuildFlags::INCLUDE_DISALLOWED)
        .map_err(|e| refused(e.to_string()))?
        .with_io_type_filter(TypeFilter::KeepAll)
        .map_err(|e| refused(e.to_string()))?
        .build()
        .map_err(|e| refused(e.to_string()))?;
    let (mut nodes, mut node_of) = nodes(&hwloc)?;
    let mut notes = homeless(&hwloc, &mut nodes, &mut node_of);
    notes.extend(left_out(&hwloc));
    let mut parts = Parts {
        machine: machine(&hwloc),
        nodes,
        cores: cores(&hwloc, &node_of),
        l3: l3(&hwloc)?,
        offline: offline(&hwloc)?,
        notes,
        ..Parts::default()
    };
    io::read(&hwloc, &node_of, &domains, &mut parts);
    let read = io::nvlinks(&hwloc, &domains, &parts);
    let (fabric, notes) = super::fabric::planned(&parts, &read);
    parts.fabric = fabric;
    parts.notes.extend(notes);
    parts.notes.push(
        "read from an lstopo record, which has no drivers, IOMMU groups, BARs, link widths or uses \
         of drives; huge pages are taken to be free"
            .into(),
    );
    Ok(Topology::new(parts)?)
}

/// The PCI domains of more than 16 bits (Intel VMD's begin at 10000), which hwloc drops with all
/// their devices: they are renumbered to unused 16-bit domains.
struct Domains(Vec<(u32, u16)>);

impl Domains {
    /// The texts before a domain in a record.
    const BEFORE: [&'static str; 3] = ["pci_busid=\"", "bridge_pci=\"", "PCIBusID\" value=\""];

    /// The most domains renumbered; a machine has one for each of its VMD controllers. Each
    /// requires another pass over the record.
    const MOST: usize = 64;

    fn new(text: &str) -> Domains {
        let after = |before: &'static str| {
            text.match_indices(before).filter_map(move |(at, _)| {
                let (domain, _) = text[at + before.len()..].split_once(':')?;
                u32::from_str_radix(domain, 16).ok().filter(|_| domain.len() <= 8)
            })
        };
        let all: BTreeSet<u32> = Domains::BEFORE.into_iter().flat_map(after).collect();
        let mut free = (0..=u16::MAX).rev().filter(|narrow| !all.contains(&u32::from(*narrow)));
        let wide = all.iter().copied().filter(|domain| *domain > u32::from(u16::MAX));
        Domains(wide.zip(&mut free).take(Domains::MOST).collect())
    }

    /// The record with narrow numbers; `None` if nothing must be renumbered.
    fn narrowed(&self, text: &str) -> Option<String> {
        let mut narrowed = None::<String>;
        for (wide, narrow) in &self.0 {
            for before in Domains::BEFORE {
                let text = narrowed.as_deref().unwrap_or(text);
                let to = format!("{before}{narrow:04x}:");
                narrowed = Some(text.replace(&format!("{before}{wide:x}:"), &to));
            }
        }
        narrowed
    }

    /// The domain that the record gave.
    fn wide(&self, domain: u16) -> u32 {
        let found = self.0.iter().find(|(_, narrow)| *narrow == domain);
        found.map_or(u32::from(domain), |(wide, _)| *wide)
    }
}

fn text(text: &CStr) -> String {
    text.to_string_lossy().trim().to_owned()
}

/// Returns a nonempty info attribute.
fn info(object: &TopologyObject, key: &str) -> Option<String> {
    object.info(key).map(text).filter(|value| !value.is_empty())
}

/// Converts a set of hwloc; none if it is infinite or above [`MAX_ID`].
fn set<I: Id>(ids: impl Iterator<Item = usize>, last: Option<usize>) -> Option<IdSet<I>> {
    // Without a last id a set is empty or infinite.
    let last = last.unwrap_or(0);
    let ids = ids.take_while(|&id| id <= last);
    ids.map(|id| u32::try_from(id).ok().filter(|&id| id <= MAX_ID).map(I::from_u32)).collect()
}

fn pcpus(object: &TopologyObject, owner: &'static str) -> Result<CpuSet, LstopoError> {
    let Some(cpuset) = object.cpuset() else { return Ok(CpuSet::new()) };
    let bad = LstopoError::Set { kind: "pcpu", owner };
    if cpuset.weight().is_none() {
        return Err(bad);
    }
    let last = cpuset.last_set().map(usize::from);
    set(cpuset.iter_set().map(usize::from), last).ok_or(bad)
}

/// The number that the kernel gave an object, if it fits.
fn os_index(object: &TopologyObject) -> Option<u32> {
    object.os_index().and_then(|index| u32::try_from(index).ok())
}

fn machine(hwloc: &hwlocality::Topology) -> Machine {
    let root = hwloc.root_object();
    let package = hwloc.objects_with_type(ObjectType::Package).next();
    let cpu = |key| package.and_then(|p| info(p, key)).or_else(|| info(root, key));
    Machine {
        vendor: info(root, "DMISysVendor").or_else(|| info(root, "DMIBoardVendor")),
        product: info(root, "DMIProductName"),
        architecture: info(root, "Architecture"),
        cpu_vendor: cpu("CPUVendor"),
        cpu_model: cpu("CPUModel"),
        kernel_release: info(root, "OSRelease"),
        ..Machine::default()
    }
}

/// Nodes by number, and the node of each pcpu. hwloc assigns nearby pcpus to memory-only nodes; the
/// kernel gives each pcpu one node, taken to be the one with the fewest pcpus and, among these, the
/// lowest number.
fn nodes(
    hwloc: &hwlocality::Topology,
) -> Result<(Vec<NumaNode>, BTreeMap<PcpuId, NodeId>), LstopoError> {
    let mut found: Vec<(CpuSet, NodeId, &TopologyObject)> = Vec::new();
    for object in hwloc.objects_with_type(ObjectType::NUMANode) {
        let id = NodeId(os_index(object).unwrap_or(0));
        found.push((pcpus(object, "a NUMA node")?, id, object));
    }
    found.sort_by_key(|(pcpus, id, _)| (pcpus.len(), *id));
    let mut node_of = BTreeMap::new();
    for (pcpus, id, _) in &found {
        for pcpu in pcpus.iter() {
            node_of.entry(pcpu).or_insert(*id);
        }
    }
    found.sort_by_key(|(_, id, _)| *id);
    let distances = distances(hwloc, &found);
    let mut own: BTreeMap<NodeId, CpuSet> = BTreeMap::new();
    for (pcpu, id) in &node_of {
        own.entry(*id).or_default().insert(*pcpu);
    }
    let nodes = found
        .iter()
        .zip(distances)
        .map(|((_, id, object), distances)| {
            let (memory_kib, huge_pages) = memory(object);
            let pcpus = own.remove(id).unwrap_or_default();
            NumaNode { os_index: *id, pcpus, memory_kib, distances, huge_pages, gpu: None }
        })
        .collect();
    Ok((nodes, node_of))
}

/// Memory and pools of huge pages of a node. The number of free pages is not recorded: all count as
/// free.
fn memory(node: &TopologyObject) -> (MemSize, Vec<HugePagePool>) {
    let Some(ObjectAttributes::NUMANode(numa)) = node.attributes() else {
        return (MemSize::default(), Vec::new());
    };
    let memory = MemSize::from_kib(numa.local_memory().map_or(0, |bytes| bytes.get() >> 10));
    let mut pools: Vec<HugePagePool> = numa
        .page_types()
        .iter()
        .filter(|page| page.size().get() > 64 << 10)
        .map(|page| HugePagePool {
            page_kib: MemSize::from_kib(page.size().get() >> 10),
            total: page.count(),
            free: page.count(),
            surplus: 0,
        })
        .collect();
    pools.sort_by_key(|pool| pool.page_kib);
    (memory, pools)
}

/// The kernel's distances, a row for each node in their order; empty rows if not all are recorded.
fn distances(
    hwloc: &hwlocality::Topology,
    nodes: &[(CpuSet, NodeId, &TopologyObject)],
) -> Vec<Vec<u32>> {
    let none = vec![Vec::new(); nodes.len()];
    let matrices = hwloc.distances(None).unwrap_or_default();
    for matrix in &matrices {
        if matrix.name().is_none_or(|name| name.to_bytes() != b"NUMALatency") {
            continue;
        }
        let of: BTreeMap<u64, usize> = matrix
            .objects()
            .enumerate()
            .filter_map(|(place, object)| Some((object?.global_persistent_index(), place)))
            .collect();
        let places: Option<Vec<usize>> = nodes
            .iter()
            .map(|(_, _, node)| of.get(&node.global_persistent_index()).copied())
            .collect();
        let side = matrix.num_objects();
        let values = matrix.distances();
        let Some(places) = places else { continue };
        let value = |a: usize, b: usize| {
            values.get(a * side + b).and_then(|value| u32::try_from(*value).ok())
        };
        let rows: Option<Vec<Vec<u32>>> =
            places.iter().map(|&a| places.iter().map(|&b| value(a, b)).collect()).collect();
        return rows.unwrap_or(none);
    }
    none
}

/// Gives pcpus that are on no recorded node (those of a Threadripper's dies without memory, which
/// hwloc may leave out, or of nodes not allowed to the recording process) to the nearest one: the
/// lowest of the smallest object around them that has nodes. Returns notes.
fn homeless(
    hwloc: &hwlocality::Topology,
    nodes: &mut Vec<NumaNode>,
    node_of: &mut BTreeMap<PcpuId, NodeId>,
) -> Vec<String> {
    let mut given: BTreeMap<NodeId, CpuSet> = BTreeMap::new();
    for pu in hwloc.objects_with_type(ObjectType::PU) {
        let Some(pcpu) = os_index(pu).filter(|&id| id <= MAX_ID).map(PcpuId) else { continue };
        if node_of.contains_key(&pcpu) {
            continue;
        }
        let around = |object: &TopologyObject| {
            let first = object.nodeset()?.first_set().map(usize::from)?;
            let first = NodeId(u32::try_from(first).ok()?);
            nodes.iter().any(|node| node.os_index == first).then_some(first)
        };
        let lowest = || nodes.first().map_or(NodeId(0), |node| node.os_index);
        let node = pu.ancestors().find_map(around).unwrap_or_else(lowest);
        given.entry(node).or_default().insert(pcpu);
    }
    let mut notes = Vec::new();
    for (id, pcpus) in given {
        node_of.extend(pcpus.iter().map(|pcpu| (pcpu, id)));
        notes.push(format!("pcpus {pcpus} are on no recorded node; counted to node {id}"));
        match nodes.iter_mut().find(|node| node.os_index == id) {
            Some(node) => node.pcpus = node.pcpus.or(&pcpus),
            None => nodes.push(NumaNode {
                os_index: id,
                pcpus,
                memory_kib: MemSize::default(),
                distances: Vec::new(),
                huge_pages: Vec::new(),
                gpu: None,
            }),
        }
    }
    notes
}

/// Returns the note that the record was made in a cpuset and lacks part of the machine.
fn left_out(hwloc: &hwlocality::Topology) -> Option<String> {
    let root = hwloc.root_object();
    let count = |set: Option<usize>| set.unwrap_or(0);
    let nodes = count(root.complete_nodeset().and_then(|set| set.weight()));
    let there = count(root.nodeset().and_then(|set| set.weight()));
    (nodes > there).then(|| {
        format!(
            "recorded in a cpuset that has {there} of the machine's {nodes} nodes: the others and \
             their pcpus are missing; `lstopo --disallowed --of xml` records all"
        )
    })
}

/// Cores by lowest pcpu; a pcpu without a core is one of its own.
fn cores(hwloc: &hwlocality::Topology, node_of: &BTreeMap<PcpuId, NodeId>) -> Vec<Core> {
    let mut cores: BTreeMap<u64, Core> = BTreeMap::new();
    for pu in hwloc.objects_with_type(ObjectType::PU) {
        let Some(pcpu) = os_index(pu).filter(|&id| id <= MAX_ID).map(PcpuId) else { continue };
        let ancestor = |kind| pu.first_ancestor_with_type(kind);
        let core = ancestor(ObjectType::Core).unwrap_or(pu);
        let entry = cores.entry(core.global_persistent_index()).or_insert_with(|| Core {
            package: ancestor(ObjectType::Package).and_then(os_index).unwrap_or(0),
            die: ancestor(ObjectType::Die).and_then(os_index),
            core_id: os_index(core).unwrap_or(pcpu.0),
            node: node_of.get(&pcpu).copied().unwrap_or(NodeId(0)),
            pcpus: CpuSet::new(),
        });
        entry.pcpus.insert(pcpu);
    }
    let mut cores: Vec<Core> = cores.into_values().collect();
    cores.sort_by_key(|core| core.pcpus.first());
    cores
}

/// Level-3 caches by lowest pcpu.
fn l3(hwloc: &hwlocality::Topology) -> Result<Vec<L3>, LstopoError> {
    let mut caches = Vec::new();
    for object in hwloc.objects_with_type(ObjectType::L3Cache) {
        let size_kib = match object.attributes() {
            Some(ObjectAttributes::Cache(cache)) => {
                cache.size().map(|bytes| MemSize::from_kib(bytes.get() >> 10))
            }
            _ => None,
        };
        caches.push(L3 { pcpus: pcpus(object, "a cache")?, size_kib });
    }
    caches.sort_by_key(|cache| cache.pcpus.first());
    Ok(caches)
}

/// Pcpus that are there but not online.
fn offline(hwloc: &hwlocality::Topology) -> Result<CpuSet, LstopoError> {
    let root = hwloc.root_object();
    let online = pcpus(root, "the machine")?;
    let bad = LstopoError::Set { kind: "pcpu", owner: "the machine" };
    let Some(complete) = root.complete_cpuset().filter(|set| set.weight().is_some()) else {
        return Ok(CpuSet::new());
    };
    let last = complete.last_set().map(usize::from);
    let complete: CpuSet = set(complete.iter_set().map(usize::from), last).ok_or(bad)?;
    Ok(complete.minus(&online))
}
