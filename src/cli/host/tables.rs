//! The tables of `host show`: nodes, drives, sets of GPUs.

use crate::bdf::Bdf;
use crate::cli::names::{drive_size, plain, short, wrapped};
use crate::cli::table::Table;
use crate::cpuset::{NodeId, NodeSet};
use crate::memsize::MemSize;
use crate::topology::{DeviceKind, Drive, DriveUse, FabricModel, Topology};
use crate::words::{self, natural};
use std::collections::{BTreeMap, BTreeSet};

/// How to treat cells that do not fit.
#[derive(Debug, Clone, Copy)]
pub enum Wide {
    /// They are cut: a tree must keep one line per row.
    Cut,
    /// They continue below.
    Wrap,
}

/// A table of at most `width` columns, indented by two, with the marks of its head.
pub fn table(rows: Vec<Vec<String>>, width: usize, wide: Wide) -> String {
    let rows = rows.into_iter().map(|row| row.iter().map(|cell| plain(cell)).collect());
    let table = Table::of(rows.collect()).indented(2);
    let width = width.max(20) + 2;
    match wide {
        Wide::Cut => table.cut(width),
        Wide::Wrap => table.text(Some(width)),
    }
}

/// Counts the devices of each kind on each node.
fn devices_by_node(topology: &Topology) -> BTreeMap<(NodeId, DeviceKind), usize> {
    let mut devices = BTreeMap::new();
    for device in topology.devices() {
        let is_card = || topology.gpus().any(|gpu| gpu.bdf == device.bdf);
        let is_counted = (!device.is_vf() || is_card()) && topology.set_aside(device).is_none();
        if let Some(node) = device.node.filter(|_| is_counted) {
            *devices.entry((node, device.kind())).or_default() += 1;
        }
    }
    devices
}

/// Makes the table of nodes with their devices; nodes without pcpus, memory and devices are in one
/// line below.
pub fn nodes(topology: &Topology, width: usize) -> String {
    let devices = devices_by_node(topology);
    let mut cores: BTreeMap<NodeId, usize> = BTreeMap::new();
    for core in topology.cores() {
        *cores.entry(core.node).or_default() += 1;
    }
    let kinds = [
        (DeviceKind::Gpu, "GPUs"),
        (DeviceKind::NvSwitch, "NVSwitches"),
        (DeviceKind::Nic, "NICs"),
        (DeviceKind::Nvme, "NVMe"),
    ];
    let kinds: Vec<_> =
        kinds.into_iter().filter(|(kind, _)| devices.keys().any(|(_, k)| k == kind)).collect();
    let pools: BTreeSet<MemSize> = topology
        .nodes()
        .iter()
        .flat_map(|node| node.huge_pages.iter().filter(|pool| pool.total > 0))
        .map(|pool| pool.page_kib)
        .collect();
    let with_distances = (2..=8).contains(&topology.nodes().len())
        && topology.nodes().iter().any(|node| !node.distances.is_empty());
    let mut head = vec!["node".to_owned(), "pcpus".into(), "cores".into(), "memory".into()];
    head.extend(pools.iter().map(|page| format!("{page} free")));
    head.extend(kinds.iter().map(|(_, name)| (*name).to_owned()));
    if with_distances {
        head.push("distances".into());
    }
    let mut rows = vec![head];
    let mut bare = NodeSet::new();
    for node in topology.nodes().iter().filter(|node| !topology.is_gpu_memory(node)) {
        let id = node.os_index;
        let counts = kinds.iter().map(|(kind, _)| devices.get(&(id, *kind)).copied().unwrap_or(0));
        let counts: Vec<usize> = counts.collect();
        if node.pcpus.is_empty() && node.memory_kib.is_zero() && counts.iter().all(|n| *n == 0) {
            bare.insert(id);
            continue;
        }
        let mut row = vec![
            id.to_string(),
            or_dash(node.pcpus.to_string()),
            count(cores.get(&id).copied().unwrap_or(0)),
            if node.memory_kib.is_zero() { "-".into() } else { node.memory_kib.to_string() },
        ];
        for page in &pools {
            let pool = node.huge_pages.iter().find(|pool| pool.page_kib == *page);
            row.push(match pool {
                Some(pool) if pool.total > 0 => format!("{}/{}", pool.free, pool.total),
                _ => "-".into(),
            });
        }
        row.extend(counts.into_iter().map(count));
        if with_distances {
            let distances: Vec<String> = node.distances.iter().map(ToString::to_string).collect();
            row.push(or_dash(distances.join(" ")));
        }
        rows.push(row);
    }
    let mut text = table(rows, width, Wide::Wrap);
    if !bare.is_empty() {
        let nodes = words::count(bare.len(), "node");
        text.push_str(&format!("  {nodes} with neither pcpus nor memory: {bare}\n"));
    }
    text + &gpu_memory(topology, width)
}

/// Says which nodes are those of GPUs' memory, a line for each GPU; empty where there are none.
fn gpu_memory(topology: &Topology, width: usize) -> String {
    let mut text = String::new();
    let mut known: BTreeMap<Option<Bdf>, (NodeSet, MemSize)> = BTreeMap::new();
    for node in topology.nodes().iter().filter(|node| topology.is_gpu_memory(node)) {
        let (nodes, memory) = known.entry(node.gpu).or_default();
        nodes.insert(node.os_index);
        *memory = *memory + node.memory_kib;
    }
    for (gpu, (nodes, memory)) in known {
        let whose = gpu.map_or("GPUs".to_owned(), |gpu| format!("GPU {}", short(gpu)));
        let there = if memory.is_zero() { "empty".to_owned() } else { memory.to_string() };
        let line = format!("{nodes} ({there}), for no guest");
        text += &wrapped(&format!("  memory of {whose}: nodes "), &line, width);
    }
    text
}

/// Makes the table of drives with their users; empty if there are none.
pub fn drives(topology: &Topology, width: usize) -> String {
    let drives = &topology.parts().drives;
    if drives.is_empty() {
        return String::new();
    }
    let head = ["drive", "address", "node", "size", "model", "used by"];
    let mut rows = vec![head.map(ToOwned::to_owned).to_vec()];
    let mut sorted: Vec<&Drive> = drives.iter().collect();
    sorted.sort_by(|a, b| natural(&a.name, &b.name));
    for drive in sorted {
        let node = drive.bdf.and_then(|bdf| topology.device(bdf)?.node);
        rows.push(vec![
            drive.name.clone(),
            drive.bdf.map_or("-".into(), short),
            node.map_or("-".into(), |node| node.to_string()),
            drive_size(drive.bytes),
            drive.model.clone().unwrap_or_else(|| "-".into()),
            or_dash(uses(drive).join(", ")),
        ]);
    }
    table(rows, width, Wide::Wrap)
}

/// Returns the users of a drive and its partitions.
fn uses(drive: &Drive) -> Vec<String> {
    let words = |name: &str, used: &DriveUse| match used {
        DriveUse::Mounted { at } => format!("{at} ({name})"),
        DriveUse::Swap => format!("swap ({name})"),
        DriveUse::Holder { device, .. } => format!("{device} ({name})"),
        DriveUse::Member { of } => format!("{of} ({name})"),
        DriveUse::Kernel => format!("kernel ({name})"),
        DriveUse::EfiSystem => format!("EFI ({name})"),
    };
    let mut uses: Vec<String> = drive.uses().map(|(name, used)| words(name, used)).collect();
    if uses.is_empty() && !drive.partitions.is_empty() {
        uses.push(words::count(drive.partitions.len(), "idle partition"));
    }
    uses
}

/// The sets of GPUs that may form a guest, by size; empty if any set may.
pub fn partitions(topology: &Topology, width: usize) -> String {
    let partitions = topology.partitions();
    if partitions.is_empty() {
        return String::new();
    }
    let index: BTreeMap<Bdf, usize> =
        topology.gpus().enumerate().map(|(index, gpu)| (gpu.bdf, index)).collect();
    let passed = topology.fabric().model == FabricModel::FullPassthrough;
    let mut sizes: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut needs: BTreeMap<usize, (u32, u32)> = BTreeMap::new();
    for partition in partitions {
        let size = partition.gpus.len();
        let gpus = partition.gpus.iter().filter_map(|gpu| index.get(gpu).copied());
        sizes.entry(size).or_default().push(ranges(gpus));
        needs.insert(size, (partition.nvlinks_per_gpu, partition.nvswitches));
    }
    let mut head = vec!["GPUs".to_owned(), "sets".into(), "NVLinks per GPU".into()];
    if passed {
        head.push("NVSwitches".into());
    }
    head.push("by GPU index".into());
    let mut rows = vec![head];
    for (size, sets) in sizes.iter().rev() {
        let (links, switches) = needs.get(size).copied().unwrap_or_default();
        let mut row = vec![size.to_string(), sets.len().to_string(), links.to_string()];
        if passed {
            row.push(switches.to_string());
        }
        let all = sets.len() == index.len() && *size == 1;
        row.push(if all { "each".into() } else { sets.join("  ") });
        rows.push(row);
    }
    let active = partitions.iter().filter(|partition| partition.active).map(|partition| {
        let gpus = partition.gpus.iter().filter_map(|gpu| index.get(gpu).copied());
        format!("partition {} (GPUs {})", partition.id, ranges(gpus))
    });
    let active: Vec<String> = active.collect();
    let mut text = table(rows, width, Wide::Wrap);
    if !active.is_empty() {
        text += &wrapped("  active in Fabric Manager: ", &active.join(", "), width);
    }
    text
}

/// Indices as ranges: `0-3,6`.
fn ranges(indices: impl Iterator<Item = usize>) -> String {
    let ids = indices.filter_map(|index| u32::try_from(index).ok()).map(NodeId);
    ids.filter(|id| id.0 <= crate::cpuset::MAX_ID).collect::<NodeSet>().to_string()
}

/// A text, or a dash where it is empty.
fn or_dash(text: String) -> String {
    if text.is_empty() { "-".into() } else { text }
}

/// A count, or a dash for none.
fn count(count: usize) -> String {
    if count == 0 { "-".into() } else { count.to_string() }
}
