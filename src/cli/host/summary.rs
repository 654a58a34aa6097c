//! The first lines of `host show`: the machine in sentences.

use crate::cli::names::{model, plain, wrapped};
use crate::memsize::MemSize;
use crate::topology::{
    DeviceKind, FabricModel, Isolated, NVGRACE, PciDevice, SetAside, Topology, Trust,
    VgpuInterface, Weakness,
};
use crate::words;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The machine in a few lines.
pub fn header(topology: &Topology, degraded: &[String], width: usize) -> String {
    let machine = topology.machine();
    let name = machine.title().unwrap_or_else(|| match &machine.vendor {
        Some(vendor) if !vendor.is_empty() => format!("{vendor} unknown machine"),
        _ => "unknown machine".to_owned(),
    });
    let mut text = plain(&name);
    if let Some(host_name) = &machine.host_name {
        write!(text, " ({})", plain(host_name)).expect("text");
    }
    text.push('\n');
    let lines = [
        ("CPU", cpu(topology)),
        ("Layout", layout(topology)),
        ("Memory", memory(topology)),
        ("Devices", devices(topology)),
        ("vGPU", vgpu(topology)),
        ("NVLink", nvlink(topology)),
        ("C2C", coherent(topology)),
        ("IOMMU", iommu(topology)),
        ("Guests", trust(topology)),
        ("Kernel", kernel(topology)),
        ("Degraded", degraded.join("; ")),
    ];
    for (title, line) in lines {
        if !line.is_empty() {
            text.push_str(&wrapped(&format!("  {title:<9} "), &line, width));
        }
    }
    text
}

/// Whether guests trust each other; empty if not declared.
fn trust(topology: &Topology) -> String {
    match topology.machine().trust {
        _ if topology.machine().trust_unread.is_some() => {
            "treated as strangers (the trust file is ignored): none is made that shares NVLink"
                .into()
        }
        Some(Trust::OneTenant) => "of one tenant: they may share NVLink".into(),
        Some(Trust::Strangers) => "of strangers: none is made that shares NVLink".into(),
        None => String::new(),
    }
}

fn packages(topology: &Topology) -> usize {
    topology.cores().iter().map(|core| core.package).collect::<BTreeSet<u32>>().len()
}

fn cpu(topology: &Topology) -> String {
    let machine = topology.machine();
    let model = machine.cpu_model.as_deref().unwrap_or("unknown processor");
    let mut parts = vec![format!("{} × {model}", packages(topology))];
    parts.extend(machine.architecture.clone());
    parts.extend(machine.physical_address_bits.map(|bits| format!("{bits} address bits")));
    parts.join(", ")
}

fn layout(topology: &Topology) -> String {
    let dies: BTreeSet<_> =
        topology.cores().iter().filter_map(|c| Some((c.package, c.die?))).collect();
    let cores = topology.cores();
    let mut parts = vec![words::count(packages(topology), "package")];
    if dies.len() > packages(topology) {
        parts.push(words::count(dies.len(), "die"));
    }
    let of_gpus = topology.gpu_memory_nodes().len();
    let nodes = words::count(topology.nodes().len(), "NUMA node");
    parts.push(match of_gpus {
        0 => nodes,
        of_gpus => format!("{nodes}, {of_gpus} of them of GPUs"),
    });
    parts.push(words::count(cores.len(), "core"));
    let threads: BTreeSet<usize> = cores.iter().map(|core| core.pcpus.len()).collect();
    let pcpus = words::count(topology.pcpus().len(), "pcpu");
    parts.push(match threads.into_iter().collect::<Vec<_>>()[..] {
        [1] => format!("{pcpus}, one per core"),
        [threads] => format!("{pcpus}, {threads} per core"),
        _ => format!("{pcpus}, not as many on every core"),
    });
    let host = topology.parts();
    for (set, word) in [(&host.offline, "offline"), (&host.isolated, "isolated")] {
        if !set.is_empty() {
            parts.push(format!("{word} {set}"));
        }
    }
    if let Some(by) = topology.kept_off_by() {
        parts.push(format!("set aside for guests {} ({})", topology.for_guests(), by.setting()));
    }
    if let Some(slice) = topology.confined_to() {
        parts.push(format!("guests confined to {slice} (cpuset.cpus of machine.slice)"));
    }
    for kind in &host.core_kinds {
        parts.push(format!("{} cores {}", kind.kind.as_str(), kind.pcpus));
    }
    parts.join(", ")
}

/// Memory and pools of huge pages.
fn memory(topology: &Topology) -> String {
    let total: MemSize = topology.nodes().iter().map(|node| topology.usable(node).memory_kib).sum();
    let mut pools: BTreeMap<MemSize, (u64, u64)> = BTreeMap::new();
    for pool in topology.nodes().iter().flat_map(|node| &node.huge_pages) {
        let (free, all) = pools.entry(pool.page_kib).or_default();
        *free = free.saturating_add(pool.free);
        *all = all.saturating_add(pool.total);
    }
    let mut text = total.to_string();
    let reserved: Vec<String> = pools
        .iter()
        .filter(|(_, (_, all))| *all > 0)
        .map(|(page, (free, all))| format!("{free} of {all} huge pages of {page} free"))
        .collect();
    if reserved.is_empty() {
        text.push_str(", no huge pages reserved")
    } else {
        write!(text, ", {}", reserved.join(", ")).expect("text")
    }
    text
}

fn devices(topology: &Topology) -> String {
    let mut models: BTreeMap<String, usize> = BTreeMap::new();
    for gpu in topology.gpus() {
        *models.entry(model(gpu)).or_default() += 1;
    }
    let mut parts: Vec<String> = match models.len() {
        0 => vec!["no GPU".into()],
        1 => models.iter().map(|(m, n)| format!("{} ({m})", words::count(*n, "GPU"))).collect(),
        _ => models.iter().map(|(m, n)| format!("{n} × {m}")).collect(),
    };
    let shares = topology.all_aside().filter(|(_, why)| matches!(why, SetAside::Share(_))).count();
    if shares > 0 {
        parts.push(format!("{} of GPUs", words::count(shares, "virtual function")));
    }
    for (kind, noun) in [
        (DeviceKind::NvSwitch, "NVSwitch"),
        (DeviceKind::Nic, "NIC function"),
        (DeviceKind::Nvme, "NVMe drive"),
    ] {
        let is_share = |device: &&PciDevice| device.drive_share().is_some();
        let (shares, own): (Vec<_>, Vec<_>) = topology.of_kind(kind).partition(is_share);
        if !own.is_empty() {
            parts.push(words::count(own.len(), noun));
        }
        if !shares.is_empty() {
            parts.push(format!("{} of drives", words::count(shares.len(), "virtual function")));
        }
    }
    parts.join(", ")
}

/// Support for GPUs with coherent memory; empty without such a GPU.
fn coherent(topology: &Topology) -> String {
    let coherent = |gpu: &&PciDevice| topology.coherent_model(gpu).is_some();
    let Some(gpu) = topology.of_kind(DeviceKind::Gpu).find(coherent) else { return String::new() };
    let host = topology.machine().coherent.unwrap_or_default();
    let mut parts = vec!["memory of GPUs is coherent with the CPU's".to_owned()];
    parts.push(match host.nvgrace {
        Some(true) => format!("driver {NVGRACE} is there"),
        Some(false) => format!("driver {NVGRACE} is missing"),
        None => format!("driver {NVGRACE}: unknown"),
    });
    parts.extend(host.smmuv3.map(|units| words::count(units as usize, "SMMUv3")));
    parts.extend(host.page_kib.map(|page| format!("normal pages of {page}")));
    let text = parts.join(", ");
    match topology.unsupported(gpu) {
        Some(why) => format!("{text}; passthrough is {why}"),
        None => text,
    }
}

/// How GPUs are shared among guests, with their vGPUs; empty where none is set up for it.
fn vgpu(topology: &Topology) -> String {
    let is_set_up = |(_, interface): &(&PciDevice, VgpuInterface)| {
        matches!(interface, VgpuInterface::Mdev | VgpuInterface::Vfio)
    };
    let cards = topology.shared_gpus().filter(is_set_up).map(|(card, interface)| {
        let vgpus = topology.vgpus_of(card);
        let each = vgpus.iter().map(|(name, number)| format!("{number} x {name}"));
        let all = each.collect::<Vec<_>>().join(", ");
        let all = if all.is_empty() { "none".to_owned() } else { all };
        format!("{} by {}: {all}", card.bdf, interface.word())
    });
    cards.collect::<Vec<_>>().join("; ")
}

/// The fabric in a line; empty where there is none.
fn nvlink(topology: &Topology) -> String {
    let fabric = topology.fabric();
    let Some(board) = &fabric.board else { return fabric.source.clone().unwrap_or_default() };
    let model = match fabric.model {
        FabricModel::None => "any set of GPUs may form a guest",
        FabricModel::FullPassthrough => "guests get NVSwitches along with GPUs",
        FabricModel::SharedNvswitch => "NVSwitches stay with Fabric Manager",
    };
    format!("{board}: {model}")
}

/// Describes whether devices can be passed through.
fn iommu(topology: &Topology) -> String {
    let groups: BTreeSet<u32> =
        topology.devices().iter().filter_map(|device| device.iommu_group).collect();
    match (groups.len(), topology.devices().is_empty()) {
        (_, true) => String::new(),
        (0, false) if topology.machine().iommu.is_some() => "off: the host has no group".into(),
        (0, false) => "no groups: it is off, or the record has none".into(),
        (count, false) => match topology.isolates(&[]) {
            Isolated::No(weak) => {
                let weak: Vec<String> = weak.iter().map(Weakness::says).collect();
                format!("on, {}; {}", words::count(count, "group"), weak.join("; "))
            }
            _ => format!("on, {}", words::count(count, "group")),
        },
    }
}

/// Kernel release and arguments that affect guests.
fn kernel(topology: &Topology) -> String {
    let machine = topology.machine();
    let mut words: Vec<String> = machine.kernel_release.iter().cloned().collect();
    words.extend(machine.kernel_arguments.iter().cloned());
    words.join(" ")
}
