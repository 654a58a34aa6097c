//! Compares our own reading of this machine's processors and memory with hwloc's. Only for verbs
//! that show or record this machine, since hwloc takes longer than all of our reading. Covers no
//! PCI: hwloc runs without I/O objects.

use gpuvm_core::cpuset::{CpuSet, MAX_ID, PcpuId};
use gpuvm_core::topology::Topology;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{BuildFlags, TypeFilter};
use std::collections::BTreeMap;

/// Compares packages, nodes, cores with their SMT threads, and level-3 caches of this machine with
/// hwloc's; each difference is a sentence.
pub fn crosscheck(topology: &Topology) -> Vec<String> {
    match read_hwloc() {
        Ok(hwloc) => compare(topology, &hwloc),
        Err(error) => vec![format!("hwloc cannot read this machine: {error}")],
    }
}

/// Has hwloc read this machine, with pcpus that this process may not use, without I/O.
fn read_hwloc() -> Result<hwlocality::Topology, Box<dyn std::error::Error>> {
    let builder = hwlocality::Topology::builder().with_flags(BuildFlags::INCLUDE_DISALLOWED)?;
    Ok(builder.with_io_type_filter(TypeFilter::KeepNone)?.build()?)
}

/// Compares a host with hwloc's view of it.
fn compare(topology: &Topology, hwloc: &hwlocality::Topology) -> Vec<String> {
    let sets = |kind| hwloc.objects_with_type(kind).filter_map(pcpus).collect::<Vec<_>>();
    let cores: Vec<CpuSet> = topology.cores().iter().map(|core| core.pcpus.clone()).collect();
    let mut packages = BTreeMap::<u32, CpuSet>::new();
    for core in topology.cores() {
        let package = packages.entry(core.package).or_default();
        *package = package.or(&core.pcpus);
    }
    let l3: Vec<CpuSet> = topology.parts().l3.iter().map(|l3| l3.pcpus.clone()).collect();
    // hwloc assigns nearby pcpus to a node without any, so only the others are compared.
    let node_ids = topology.nodes().iter().filter(|node| !node.pcpus.is_empty());
    let nodes: Vec<CpuSet> = node_ids.clone().map(|node| node.pcpus.clone()).collect();
    let filled =
        |os_index: usize| node_ids.clone().any(|node| node.os_index.0 as usize == os_index);
    let their_nodes: Vec<CpuSet> = hwloc
        .objects_with_type(ObjectType::NUMANode)
        .filter(|node| node.os_index().is_some_and(filled))
        .filter_map(pcpus)
        .collect();
    let packages: Vec<CpuSet> = packages.into_values().collect();
    let mut notes = differences("packages", &packages, &sets(ObjectType::Package));
    notes.extend(differences("nodes", &nodes, &their_nodes));
    notes.extend(differences("cores", &cores, &sets(ObjectType::Core)));
    notes.extend(differences("level-3 caches", &l3, &sets(ObjectType::L3Cache)));
    notes
}

/// The pcpus of an object of hwloc's.
fn pcpus(object: &hwlocality::object::TopologyObject) -> Option<CpuSet> {
    let set = object.cpuset()?;
    // An infinite set does not occur in an object, and would not end.
    let ids = set.iter_set().map(usize::from).take(MAX_ID as usize + 1);
    let ids = ids.filter_map(|id| u32::try_from(id).ok()).filter(|&id| id <= MAX_ID);
    Some(ids.map(PcpuId).collect())
}

/// Reports sets of pcpus that only one side has.
fn differences(kind: &str, ours: &[CpuSet], theirs: &[CpuSet]) -> Vec<String> {
    let only = |a: &[CpuSet], b: &[CpuSet]| {
        let missing = a.iter().filter(|set| !b.contains(set));
        missing.map(|set| format!("{{{set}}}")).collect::<Vec<_>>().join(" ")
    };
    let (ours_only, theirs_only) = (only(ours, theirs), only(theirs, ours));
    if ours_only.is_empty() && theirs_only.is_empty() {
        return Vec::new();
    }
    let shown = |text: String| if text.is_empty() { "none of these".to_owned() } else { text };
    let (ours, theirs) = (shown(ours_only), shown(theirs_only));
    vec![format!("hwloc sees other {kind} than sysfs shows: {theirs} instead of {ours}")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_devices_on_one_side_only() {
        let sets = |lists: &[&str]| lists.iter().map(|l| l.parse().unwrap()).collect::<Vec<_>>();
        let (a, b) = (sets(&["0,2", "1,3"]), sets(&["1,3", "0,2"]));
        assert!(differences("cores", &a, &b).is_empty());
        let notes = differences("cores", &a, &sets(&["0-1", "1,3", "2-3"]));
        let text = "hwloc sees other cores than sysfs shows: {0-1} {2-3} instead of {0,2}";
        assert_eq!(notes, [text]);
        let notes = differences("packages", &sets(&["0-3"]), &[]);
        assert_eq!(notes.len(), 1);
        assert!(notes[0].ends_with("none of these instead of {0-3}"), "{notes:?}");
    }

    #[test]
    fn agrees_on_a_machine_that_hwloc_makes_up() {
        let hwloc = |description: &str| {
            let builder = hwlocality::Topology::builder();
            builder.from_synthetic(description).unwrap().build().unwrap()
        };
        let json = include_str!("../../../topologies/dgx-2.json");
        let host = gpuvm_core::topology::file::from_json(json).unwrap();
        // The same machine in hwloc's synthetic notation: pcpus of a core lie 48 apart.
        let same = "Package:2 [NUMANode(memory=1GB)] L3Cache:1 Core:24 PU:2(indexes=2*48:1*2)";
        let notes = compare(&host, &hwloc(same));
        assert_eq!(notes, [] as [String; 0]);
        let other = "Package:2 [NUMANode(memory=1GB)] L3Cache:2 Core:12 PU:2";
        let notes = compare(&host, &hwloc(other));
        assert_eq!(notes.len(), 4, "{notes:?}");
    }

    #[test]
    fn reads_this_machine() {
        let root = crate::fsroot::FsRoot::live().unwrap();
        let host = crate::discover::discover(&root).unwrap();
        let notes = crosscheck(&host);
        assert!(notes.iter().all(|note| !note.contains("cannot read")), "{notes:?}");
    }
}
