//! The lines of `gres.conf` and `slurm.conf` for a node.

use super::{GPU, GRES};
use crate::cpuset::{NodeId, NodeSet};
use crate::memsize::MemSize;
use crate::placement::{UNKNOWN_INSTANCES, whole_gpus};
use crate::topology::model::model;
use crate::topology::{Core, NumaNode, PciDevice, Proximity, Topology, Vgpu};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Seconds that a prolog may take besides filling the guest's memory: two waits for the host's
/// lock, and that for an address.
const PROLOG_S: u64 = 240;
/// How many GiB of memory are filled in a second, at least (gpuvm-tuning(7)).
const GIB_PER_S: u64 = 4;

/// The configuration lines of a node.
#[derive(Debug, Clone, Default)]
pub struct ConfRequest {
    /// The node's name in Slurm.
    pub node: String,
    /// Whether Slurm chooses the GPUs, by their device files.
    pub files: bool,
    /// vGPUs that are counted; none: whole GPUs are.
    pub vgpu: Option<VgpuCount>,
    /// Cores of each NUMA node that stay with the host: the first ones.
    pub reserve_cores: u32,
    /// Memory of each NUMA node that stays with the host.
    pub reserve_memory: MemSize,
}

/// vGPUs of a node.
#[derive(Debug, Clone)]
pub struct VgpuCount {
    /// Name of their type.
    pub name: String,
    /// How many there are at most.
    pub count: u32,
    /// Whether MIG backs them and the number of GPU instances is not known.
    pub unknown_instances: bool,
}

/// An error in the configuration lines.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "slurm-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum SlurmConfError {
    /// The host has no GPUs.
    #[error("the host has no GPUs that a guest could get")]
    NoGpus,
    /// No GPU can go to a guest as a whole.
    #[error("no GPU can be given out whole: {bdf} {why}")]
    NoWholeGpus { bdf: String, why: String },
    /// The device files would have other numbers once a GPU gets or loses a mediated device.
    #[error(
        "the files of GPUs cannot be listed: the driver of {bdf} offers mediated devices, and while \
         there is one the GPUs have other numbers"
    )]
    Mediated { bdf: String },
    /// The kernel has no VFIO groups.
    #[error(
        "this kernel has no VFIO groups (CONFIG_VFIO_GROUP), and thus no file below /dev/vfio for \
         a GPU"
    )]
    NoVfioGroups,
    /// No GPU offers the vGPU type.
    #[error("no GPU of the host has vGPUs of type `{name}` now")]
    NoVgpu { name: String },
    /// The node's name cannot be one.
    #[error("`{name}` is not a node name of Slurm: letters, digits, `-`, `_` and `.`")]
    NodeName { name: String },
    /// A GPU has no IOMMU group, and so no device file.
    #[error("GPU {bdf} has no IOMMU group, and thus no file below /dev/vfio")]
    NoGroup { bdf: String },
    /// Two GPUs share an IOMMU group.
    #[error("GPUs {a} and {b} are in IOMMU group {group}: Slurm takes a file for one GPU only")]
    SharedGroup { a: String, b: String, group: u32 },
    /// More cores are reserved than the smallest node has, or all of them.
    #[error("--reserve-cores {wanted} leaves jobs no core of node {node}, which has {cores}")]
    NoCores { wanted: u32, node: NodeId, cores: u32 },
    /// More memory is reserved than the smallest node has, or all of it.
    #[error("--reserve-memory {wanted} leaves jobs no memory of node {node}, which has {memory}")]
    NoMemory { wanted: MemSize, node: NodeId, memory: MemSize },
    /// Slurm's configuration cannot express which cores are reserved.
    #[error("--reserve-cores: the packages differ, and Slurm knows the number of pcpus alone")]
    UnevenCores,
}

/// The lines for a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Conf {
    /// The node's name in Slurm.
    pub node: String,
    /// The name of the GRES.
    pub gres: String,
    /// GPUs by type.
    pub types: BTreeMap<String, u32>,
    /// Lines of `gres.conf`.
    pub gres_conf: Vec<String>,
    /// The node's line of `slurm.conf`.
    pub node_line: String,
    /// Settings of `slurm.conf` for all nodes.
    pub settings: Vec<String>,
    /// Doubts about the numbers of `gres.conf`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<String>,
    /// Memory that the numbers of the node's line leave out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// Returns the lines for a host.
pub fn conf(topology: &Topology, wanted: &ConfRequest) -> Result<Conf, SlurmConfError> {
    let ConfRequest { node, files, .. } = wanted;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if node.is_empty() || node.starts_with('-') || !node.chars().all(is_name) {
        return Err(SlurmConfError::NodeName { name: node.clone() });
    }
    let types = match &wanted.vgpu {
        Some(VgpuCount { name, count, .. }) => BTreeMap::from([(vgpu_type(name), *count)]),
        None => gpu_types(topology)?,
    };
    let gres = if *files { GPU } else { GRES };
    let gres_conf = if *files {
        by_file(topology, node)?
    } else {
        let line = |(of, count): (&String, &u32)| {
            format!("NodeName={node} Name={gres} Type={of} Count={count}")
        };
        types.iter().map(line).collect()
    };
    refuse_all_reserved(topology, wanted)?;
    let node_line = node_line(topology, wanted, gres, &types)?;
    let settings = settings(topology, gres, *files, types.values().sum());
    let unsure = wanted.vgpu.iter().filter(|counted| counted.unknown_instances);
    let doubts = unsure.map(|of| format!("at most: {}: {UNKNOWN_INSTANCES}", of.name)).collect();
    let (node, gres) = (node.clone(), gres.into());
    let left_out = memory_left_out(topology).into_iter().collect();
    Ok(Conf { node, gres, types, gres_conf, node_line, settings, doubts, left_out })
}

/// The nodes whose memory guests get: those with cores. That of nodes without CPUs, as behind CXL,
/// needs `--allow remote`, and that of a GPU is for no guest.
fn memory_nodes(topology: &Topology) -> Vec<&NumaNode> {
    let with_cores: BTreeSet<NodeId> = topology.cores().iter().map(|core| core.node).collect();
    let is_one =
        |node: &&NumaNode| with_cores.contains(&node.os_index) && !node.memory_kib.is_zero();
    topology.nodes().iter().filter(is_one).collect()
}

/// The memory that guests get.
fn guest_memory(topology: &Topology) -> MemSize {
    memory_nodes(topology).into_iter().map(|node| node.memory_kib).sum()
}

/// Names the memory of nodes without CPUs that is no GPU's.
fn memory_left_out(topology: &Topology) -> Option<String> {
    let counted = memory_nodes(topology);
    let is_out = |node: &&NumaNode| {
        let is_counted = counted.iter().any(|one| one.os_index == node.os_index);
        !is_counted && !node.memory_kib.is_zero() && !topology.is_gpu_memory(node)
    };
    let out: Vec<&NumaNode> = topology.nodes().iter().filter(is_out).collect();
    let memory: MemSize = out.iter().map(|node| node.memory_kib).sum();
    let nodes: NodeSet = out.iter().map(|node| node.os_index).collect();
    let (word, have) = if out.len() == 1 { ("node", "has") } else { ("nodes", "have") };
    (!out.is_empty()).then(|| {
        format!(
            "RealMemory leaves out {memory} of {word} {nodes}, which {have} no CPUs: guests get it \
             with --allow remote alone"
        )
    })
}

/// GPUs by type.
fn gpu_types(topology: &Topology) -> Result<BTreeMap<String, u32>, SlurmConfError> {
    let mut types: BTreeMap<String, u32> = BTreeMap::new();
    for gpu in counted_gpus(topology)? {
        *types.entry(gpu_type(&model(gpu))).or_default() += 1;
    }
    Ok(types)
}

/// The GPUs that jobs can have whole, by address.
fn counted_gpus(topology: &Topology) -> Result<Vec<&PciDevice>, SlurmConfError> {
    let (whole, left_out) = whole_gpus(topology);
    match left_out {
        _ if !whole.is_empty() => Ok(whole),
        None => Err(SlurmConfError::NoGpus),
        Some((bdf, why)) => Err(SlurmConfError::NoWholeGpus { bdf: bdf.to_string(), why }),
    }
}

/// Returns the GPUs in the order of their device files in `gres.conf`. Slurm numbers GPUs by these
/// lines, so SLURM_JOB_GPUS of a prolog is read by the same list. A GPU whose driver offers
/// mediated devices is whole only while there is none, which would move the numbers of all others.
pub fn gpus_by_file(topology: &Topology) -> Result<Vec<&PciDevice>, SlurmConfError> {
    let offers = |gpu: &&PciDevice| matches!(gpu.vgpu, Some(Vgpu::Mdev { .. }));
    if let Some(gpu) = topology.gpus().find(offers) {
        return Err(SlurmConfError::Mediated { bdf: gpu.bdf.to_string() });
    }
    counted_gpus(topology)
}

/// Returns Slurm's word for a vGPU type: `h200x_18c`.
pub fn vgpu_type(name: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    name.chars().map(word).collect()
}

/// Returns Slurm's word for a GPU model: its words up to the first that has a digit, such as
/// `h100` or `rtx_a6000`.
pub fn gpu_type(model: &str) -> String {
    let mut said = String::new();
    for word in model.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        if !said.is_empty() {
            said.push('_');
        }
        said += &word.to_ascii_lowercase();
        if word.contains(|c: char| c.is_ascii_digit()) {
            // An unlisted model is known by its ids, as in 10de:2330.
            if !model.contains(':') || said.contains('_') {
                break;
            }
        }
    }
    if said.is_empty() { "unknown".into() } else { said }
}

/// Cores as Slurm counts them: by package, then by their first pcpu.
fn cores(topology: &Topology) -> Vec<&Core> {
    let mut cores: Vec<&Core> = topology.cores().iter().collect();
    cores.sort_by_key(|core| (core.package, core.pcpus.iter().next()));
    cores
}

/// Cores that are the same in all packages.
struct Even {
    packages: usize,
    each: usize,
    threads: usize,
}

/// How the packages are made; `None` if they differ.
fn even(cores: &[&Core]) -> Option<Even> {
    let mut packages: BTreeMap<u32, usize> = BTreeMap::new();
    for core in cores {
        *packages.entry(core.package).or_default() += 1;
    }
    let threads = cores.first().map_or(1, |core| core.pcpus.iter().count());
    let each = packages.values().next().copied().unwrap_or_default();
    let is_even = packages.values().all(|count| *count == each)
        && cores.iter().all(|core| core.pcpus.iter().count() == threads);
    is_even.then_some(Even { packages: packages.len(), each, threads })
}

/// A line for each GPU, with its device file, the cores of its node, and its links to the others.
fn by_file(topology: &Topology, node: &str) -> Result<Vec<String>, SlurmConfError> {
    if topology.lacks_vfio_groups() {
        return Err(SlurmConfError::NoVfioGroups);
    }
    let gpus = gpus_by_file(topology)?;
    let cores = cores(topology);
    // Slurm counts cores only if they are configured.
    let is_even = even(&cores).is_some();
    let mut groups = BTreeMap::new();
    let mut lines = Vec::new();
    for gpu in &gpus {
        let group = topology.iommu_group(gpu.bdf).map(|group| group.number);
        let group = group.ok_or_else(|| SlurmConfError::NoGroup { bdf: gpu.bdf.to_string() })?;
        if let Some(other) = groups.insert(group, gpu.bdf) {
            let (a, b) = (other.to_string(), gpu.bdf.to_string());
            return Err(SlurmConfError::SharedGroup { a, b, group });
        }
        let links: Vec<String> = gpus
            .iter()
            .map(|other| match topology.proximity(gpu.bdf, other.bdf) {
                Proximity::Same => "-1".into(),
                // NVLinks come before every way over PCIe.
                Proximity::NvLink(links) => (4 + links).to_string(),
                Proximity::Pix => "4".into(),
                Proximity::Pxb => "3".into(),
                Proximity::Phb | Proximity::Node => "2".into(),
                Proximity::Sys => "1".into(),
            })
            .collect();
        let is_own = |core: &Core| is_even && Some(core.node) == gpu.node;
        let own = cores.iter().enumerate().filter(|(_, core)| is_own(core));
        let own = ranges(own.map(|(number, _)| number));
        let mut line = format!(
            "NodeName={node} Name={GPU} Type={} File=/dev/vfio/{group} Links={}",
            gpu_type(&model(gpu)),
            links.join(",")
        );
        if !own.is_empty() {
            write!(line, " Cores={own}").expect("text");
        }
        lines.push(line);
    }
    Ok(lines)
}

fn ranges(numbers: impl Iterator<Item = usize>) -> String {
    let mut all: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match all.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => all.push((number, number)),
        }
    }
    let said = |(first, last): (usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    all.into_iter().map(said).collect::<Vec<_>>().join(",")
}

/// Refuses to reserve all that a node has.
fn refuse_all_reserved(topology: &Topology, wanted: &ConfRequest) -> Result<(), SlurmConfError> {
    let (reserved, memory) = (wanted.reserve_cores, wanted.reserve_memory);
    let mut cores: BTreeMap<NodeId, u32> = BTreeMap::new();
    for core in topology.cores() {
        *cores.entry(core.node).or_default() += 1;
    }
    if let Some((node, cores)) = cores.iter().find(|(_, cores)| reserved > 0 && **cores <= reserved)
    {
        return Err(SlurmConfError::NoCores { wanted: reserved, node: *node, cores: *cores });
    }
    let nodes = memory_nodes(topology).into_iter();
    let mut small = nodes.filter(|node| memory.kib() > 0 && node.memory_kib <= memory);
    match small.next() {
        None => Ok(()),
        Some(node) => {
            let (node, memory) = (node.os_index, node.memory_kib);
            Err(SlurmConfError::NoMemory { wanted: wanted.reserve_memory, node, memory })
        }
    }
}

/// The line of `slurm.conf`. If packages differ, the line has the number of pcpus only.
fn node_line(
    topology: &Topology,
    wanted: &ConfRequest,
    gres: &str,
    types: &BTreeMap<String, u32>,
) -> Result<String, SlurmConfError> {
    let cores = cores(topology);
    let pcpus: usize = cores.iter().map(|core| core.pcpus.iter().count()).sum();
    let mut line = format!("NodeName={} CPUs={pcpus}", wanted.node);
    let even = even(&cores);
    if let Some(Even { packages, each, threads }) = even {
        write!(
            line,
            " Boards=1 SocketsPerBoard={packages} CoresPerSocket={each} ThreadsPerCore={threads}"
        )
        .expect("text");
    }
    write!(line, " RealMemory={}", guest_memory(topology).kib() / 1024).expect("text");
    let nodes = memory_nodes(topology).len() as u64;
    let kept = wanted.reserve_memory.kib().saturating_mul(nodes) / 1024;
    if kept > 0 {
        write!(line, " MemSpecLimit={kept}").expect("text");
    }
    if wanted.reserve_cores > 0 {
        let Some(Even { threads, .. }) = even else { return Err(SlurmConfError::UnevenCores) };
        let mut left: BTreeMap<_, u32> = BTreeMap::new();
        let mut ids = Vec::new();
        for (number, core) in cores.iter().enumerate() {
            let taken = left.entry(core.node).or_default();
            if *taken < wanted.reserve_cores {
                *taken += 1;
                ids.extend(number * threads..(number + 1) * threads);
            }
        }
        write!(line, " CpuSpecList={}", ranges(ids.into_iter())).expect("text");
    }
    let gres: Vec<String> =
        types.iter().map(|(of, count)| format!("{gres}:{of}:{count}")).collect();
    write!(line, " Gres={}", gres.join(",")).expect("text");
    Ok(line)
}

fn settings(topology: &Topology, gres: &str, files: bool, gpus: u32) -> Vec<String> {
    let memory = guest_memory(topology).kib();
    // Whole minutes.
    let seconds = (PROLOG_S + (memory >> 20).div_ceil(GIB_PER_S)).next_multiple_of(60);
    let mut lines = vec![
        format!("GresTypes={gres}"),
        "SelectType=select/cons_tres".to_owned(),
        // Guests' memory is counted by gpuvm; with CR_Core_Memory a job without --mem would take
        // that of the whole node.
        "SelectTypeParameters=CR_Core".to_owned(),
        "PrologFlags=Alloc".to_owned(),
        "Prolog=/etc/slurm/prolog.d/gpuvm".to_owned(),
        "Epilog=/etc/slurm/epilog.d/gpuvm".to_owned(),
        format!("PrologEpilogTimeout={seconds}"),
        "HealthCheckProgram=/etc/slurm/gpuvm-reconcile".to_owned(),
        "HealthCheckInterval=300".to_owned(),
    ];
    if files && gpus > 0 {
        lines.push(format!("DefCpuPerGPU={}", topology.pcpus().iter().count() / gpus as usize));
    }
    lines
}
