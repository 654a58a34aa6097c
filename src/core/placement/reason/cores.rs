//! Reasons for cores, as data and as text.

use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId};
use crate::memsize::MemSize;
use crate::placement::explain::{count, domains, list};
use crate::request::Profile;
use crate::shell::word;
use crate::topology::{KeptOffBy, Speed};
use std::fmt;

/// Why a guest sees fewer threads of a core than the host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FewerThreads {
    /// Its vCPUs are spread over this many nodes: with more threads per core, some needed nodes
    /// would have none.
    Spread {
        /// Nodes.
        nodes: usize,
    },
    /// Some of its cores have fewer than the host's common number.
    Uneven,
}

/// The rule for the number of vCPUs on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeRule {
    /// For GPUs of other nodes.
    ForOthers,
    /// The share of its GPUs.
    Share {
        /// Cores of the node.
        cores: usize,
        /// Cores reserved for the host.
        kept: usize,
        /// GPUs of the node.
        gpus: usize,
        /// Cores of each GPU.
        share: usize,
        /// GPUs of the guest there.
        own: usize,
    },
    /// The share of its GPUs on a node without GPUs.
    Annex {
        /// Cores of the node.
        cores: usize,
        /// GPUs that share it.
        gpus: usize,
        /// Cores of each.
        share: usize,
        /// GPUs of the guest among these.
        own: usize,
        /// Cores of its share that others hold.
        taken: usize,
    },
    /// As requested.
    Asked,
    /// The default without GPUs.
    Default {
        /// Cores of the node.
        cores: usize,
        /// Cores that were free.
        free: usize,
    },
}

/// Which cores of a node a rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Only {
    /// All that guests may have.
    All,
    /// Those that the kernel isolates.
    Isolated,
    /// The performance cores among those.
    IsolatedFast,
    /// Those that another setting sets aside for guests.
    ForGuests,
    /// Those that machine.slice confines guests to.
    Slice,
}

/// The setting that sets cores aside for guests; none: the kernel isolates them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetAsideBy(pub Option<KeptOffBy>);

impl fmt::Display for SetAsideBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("isolated"),
            Some(by) => write!(f, "set aside for guests by {}", by.setting()),
        }
    }
}

/// A reason for cores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoreReason {
    /// Cores of a node.
    Node {
        /// The node.
        node: NodeId,
        /// vCPUs on it.
        vcpus: usize,
        /// Cores of the guest on it.
        cores: usize,
        /// The rule.
        rule: NodeRule,
        /// Which cores of the node the rule counts.
        only: Only,
    },
    /// A guest without pins.
    Floating {
        /// vCPUs.
        vcpus: usize,
        /// The rule of their number.
        rule: Profile,
        /// Whether the number was requested.
        is_asked: bool,
        /// Pcpus of the host.
        pcpus: usize,
    },
    /// Other guests run on the same pcpus.
    Floaters {
        /// Domain names.
        domains: Vec<String>,
    },
    /// Cores of domains that are off, where no others are free.
    Yielded {
        /// Domains, with their pcpus that the guest has too.
        cores: Vec<(String, CpuSet)>,
    },
    /// Pins were left to the planner, and no cores are free.
    NoneLeft,
    /// The kernel reports no node for a GPU.
    NodeUnknown {
        /// The GPU.
        gpu: Bdf,
        /// The node that its cores are taken from.
        from: NodeId,
    },
    /// The node of a GPU has no cores.
    NodeWithoutCores {
        /// The GPU.
        gpu: Bdf,
        /// Its node.
        own: NodeId,
        /// The node that its cores are taken from.
        from: NodeId,
        /// Pcpus of machine.slice, if it has cores but none of these is among them.
        slice: Option<CpuSet>,
    },
    /// A node without GPUs with nothing left for the guest's share.
    AnnexTaken {
        /// The node.
        node: NodeId,
        /// Cores of the share.
        share: usize,
    },
    /// Too few vCPUs for the nodes of these GPUs.
    TooFew {
        /// GPUs.
        gpus: Vec<Bdf>,
    },
    /// vCPUs that are not on the node of their GPUs.
    Lent {
        /// How many.
        lent: usize,
        /// The guest's vCPUs.
        vcpus: usize,
        /// Where they are.
        to: NodeId,
        /// The distance between the nodes.
        distance: Option<u32>,
        /// The node of their GPUs.
        from: NodeId,
    },
    /// Fewer threads of a core than the host has.
    Threads {
        /// Threads that the guest sees.
        threads: usize,
        /// Threads of most cores of the host.
        common: usize,
        /// Why.
        why: FewerThreads,
    },
    /// Threads of the guest's cores that are idle.
    IdleThreads {
        /// vCPUs.
        vcpus: usize,
        /// vCPUs that would fit on the same cores.
        all: usize,
    },
    /// vCPUs that do not fill whole cores.
    Unfilled {
        /// Threads that the guest sees.
        threads: usize,
    },
    /// First threads of all cores first.
    ThreadOrder,
    /// The share of a GPU is one core, and a second one was taken.
    SecondCore {
        /// The node.
        node: NodeId,
    },
    /// Pcpus that are set aside for guests.
    Isolated {
        /// Pcpus.
        pcpus: CpuSet,
        /// The setting; `None` if the kernel isolates them.
        by: Option<KeptOffBy>,
    },
    /// Pcpus of vCPUs that are not set aside, though others of their node are.
    NotIsolated {
        /// Pcpus.
        pcpus: CpuSet,
        /// The setting; `None` if the kernel isolates others.
        by: Option<KeptOffBy>,
    },
    /// Emulator and I/O threads on pcpus that are set aside for vCPUs.
    EmulatorIsolated {
        /// Pcpus.
        pcpus: CpuSet,
        /// Their node.
        node: NodeId,
        /// The setting; `None` if the kernel isolates them.
        by: Option<KeptOffBy>,
    },
    /// The same where guests are confined to these.
    Confined {
        /// Pcpus.
        pcpus: CpuSet,
        /// Pcpus of machine.slice.
        slice: CpuSet,
    },
    /// Pcpus that machine.slice confines the guest to.
    Slice {
        /// These pcpus.
        slice: CpuSet,
        /// Pcpus of the guest on cores that have other threads outside.
        parts: CpuSet,
    },
    /// The size of the L3 caches above the guest's cores, on a host with several sizes.
    L3Size {
        /// Pcpus.
        pcpus: CpuSet,
        /// The size of their caches.
        size: MemSize,
        /// The largest size, where it is another one.
        largest: Option<MemSize>,
    },
    /// All vCPUs are on the fastest cores of a host with several kinds.
    Fastest {
        /// Pcpus of slower cores, which are for the host and for the emulator and I/O threads;
        /// empty: its nodes have none but those set aside for guests.
        slower: CpuSet,
    },
    /// All vCPUs are on slower cores.
    Slower {
        /// The kind.
        kind: Speed,
        /// Nodes of the cores, if none of them has faster ones.
        nodes: Vec<NodeId>,
        /// How the slower ones are set aside for guests, if others are not.
        set_aside: Option<SetAsideBy>,
    },
    /// vCPUs are on cores of several kinds.
    Mixed {
        /// How many are on each.
        vcpus: Vec<(Speed, usize)>,
        /// How all of them are set aside for guests, if others are not.
        set_aside: Option<SetAsideBy>,
    },
    /// The emulator is not pinned, as with `nvidia-vm`.
    EmulatorFree,
    /// A core for emulator and I/O threads.
    EmulatorCore {
        /// Its pcpus.
        pcpus: CpuSet,
        /// The node.
        node: NodeId,
    },
    /// Emulator and I/O threads use the rest of the last vCPU's core.
    EmulatorSpare {
        /// Pcpus.
        pcpus: CpuSet,
        /// The node.
        node: NodeId,
    },
    /// Nodes have no core for emulator and I/O threads.
    EmulatorFloats {
        /// Whether other nodes have one, on which the I/O threads run then.
        threads_only: bool,
        /// Nodes.
        nodes: Vec<NodeId>,
    },
    /// More L3 caches than on the empty node.
    Caches {
        /// The node.
        node: NodeId,
        /// L3 caches.
        caches: usize,
        /// How many would do.
        needed: usize,
    },
    /// An L3 cache is shared with others.
    SharedCache {
        /// Its pcpus.
        pcpus: CpuSet,
        /// Domain names.
        domains: Vec<String>,
    },
    /// I/O threads of a guest with fewer disks than cells.
    FewDisks {
        /// Its disks.
        disks: usize,
        /// How many it has.
        iothreads: u32,
        /// How many it would have with enough disks.
        most: usize,
    },
}

impl fmt::Display for CoreReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoreReason::Node { node, vcpus, cores, rule, only } => {
                on_node(f, *node, (*vcpus, *cores), rule, *only)
            }
            CoreReason::Floating { vcpus, rule, is_asked, pcpus } => {
                let rule = match rule {
                    _ if *is_asked => "as requested",
                    Profile::Share | Profile::Near => "as a pinned guest would have",
                    Profile::NvidiaVm => "as `nvidia-vm` gives",
                };
                let vcpus = count(*vcpus, "vCPU");
                write!(f, "{vcpus}, {rule}; not pinned: they float over the {pcpus} pcpus")
            }
            CoreReason::Floaters { domains: names } => write!(
                f,
                "{} may run on the same pcpus: not pinned to single cores",
                domains(names.iter().map(String::as_str))
            ),
            CoreReason::Yielded { cores } => yielded(f, cores),
            CoreReason::NoneLeft => f.write_str(
                "no core is left for it alone, so it is not pinned and shares all pcpus with other \
                 guests",
            ),
            CoreReason::NodeUnknown { gpu, from } => {
                write!(
                    f,
                    "the kernel reports no node for {gpu}; its cores are those of node {from}"
                )
            }
            CoreReason::NodeWithoutCores { gpu, own, from, slice } => {
                without_cores(f, *gpu, (*own, *from), slice.as_ref())
            }
            CoreReason::TooFew { gpus } => {
                write!(f, "too few vCPUs: none is on the node of {}", list(gpus))
            }
            CoreReason::AnnexTaken { node, share } => write!(
                f,
                "node {node} has no GPU and {share} of its cores belong to this guest's share, but \
                 other guests have its cores or its memory"
            ),
            CoreReason::Lent { lent, vcpus, to, distance, from } => {
                write!(f, "{lent} of {} on node {to}", count(*vcpus, "vCPU"))?;
                if let Some(distance) = distance {
                    write!(f, ", distance {distance}")?;
                }
                write!(f, ": node {from} of their GPUs has too few free cores")
            }
            CoreReason::Caches { node, caches, needed } => write!(
                f,
                "the cores on node {node} use {}; {needed} would suffice on an empty node",
                count(*caches, "L3 cache")
            ),
            CoreReason::SharedCache { pcpus, domains: names } => write!(
                f,
                "the L3 cache of pcpus {pcpus} is shared with {}",
                domains(names.iter().map(String::as_str))
            ),
            CoreReason::SecondCore { node } => write!(
                f,
                "the share of a GPU on node {node} is 1 core; a second one was taken for the \
                 emulator"
            ),
            _ => self.threads(f),
        }
    }
}

impl CoreReason {
    /// Writes the text for kinds of cores.
    fn kinds(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoreReason::Isolated { pcpus, by: None } => {
                write!(f, "pcpus {pcpus} are isolated by the kernel command line")
            }
            CoreReason::Isolated { pcpus, by: Some(by) } => {
                write!(f, "pcpus {pcpus} are set aside for guests by {}", by.setting())
            }
            CoreReason::NotIsolated { pcpus, by: None } => write!(
                f,
                "pcpus {pcpus} are not isolated: fewer isolated ones are free than it needs"
            ),
            CoreReason::NotIsolated { pcpus, by: Some(by) } => write!(
                f,
                "pcpus {pcpus} are not set aside for guests by {}: fewer of those are free than it \
                 needs",
                by.setting()
            ),
            CoreReason::EmulatorIsolated { pcpus, node, by } => {
                let noun = if pcpus.len() == 1 { "pcpu" } else { "pcpus" };
                let set_aside = by.map_or("isolated".into(), |by| {
                    format!("set aside for vCPUs by {}", by.setting())
                });
                write!(
                    f,
                    "on {noun} {pcpus}, {} {set_aside}: no other core of node {node} is free",
                    if pcpus.len() == 1 { "which is" } else { "which are" }
                )
            }
            CoreReason::Confined { pcpus, slice } => write!(
                f,
                "on pcpus {pcpus}, which are set aside for vCPUs: machine.slice confines guests, \
                 their emulators included, to pcpus {slice}"
            ),
            CoreReason::L3Size { pcpus, size, largest } => {
                write!(f, "pcpus {pcpus} are below L3 caches of {size}")?;
                match largest {
                    Some(largest) => write!(f, ", and others of {largest}: --l3 large takes those"),
                    None => Ok(()),
                }
            }
            CoreReason::Slice { slice, parts } => confined(f, slice, parts),
            CoreReason::Fastest { slower } if slower.is_empty() => {
                f.write_str("on performance cores")
            }
            CoreReason::Fastest { slower } => write!(
                f,
                "on performance cores; the slower pcpus {slower} are for the host, the emulator, and \
                 I/O threads"
            ),
            CoreReason::Slower { kind, nodes, set_aside } => slower(f, *kind, nodes, *set_aside),
            CoreReason::Mixed { vcpus, set_aside } => {
                let part = |(kind, number): &(Speed, usize)| {
                    format!("{number} on {} cores", kind.as_str())
                };
                let parts: Vec<String> = vcpus.iter().map(part).collect();
                write!(f, "{}: no kind of core alone has as many free", parts.join(", "))?;
                set_aside.map_or(Ok(()), |aside| write!(f, " that are {aside}"))
            }
            _ => Ok(()),
        }
    }

    /// Writes the text for threads: the guest's, the emulator's, I/O threads.
    fn threads(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoreReason::Threads { threads, common, why } => {
                write!(f, "the guest sees {} of a core, ", count(*threads, "thread"))?;
                match why {
                    FewerThreads::Spread { nodes } => write!(
                        f,
                        "although its cores have {common}: its vCPUs are spread over {}",
                        count(*nodes, "node")
                    ),
                    FewerThreads::Uneven => write!(
                        f,
                        "since not all its cores have the {common} that most cores of the host have"
                    ),
                }
            }
            CoreReason::IdleThreads { vcpus, all } => write!(
                f,
                "{} leave threads of their cores idle: `--vcpus {all}` costs no core more",
                count(*vcpus, "vCPU")
            ),
            CoreReason::Unfilled { threads } => write!(
                f,
                "the guest sees cores of {}: its vCPUs do not fill whole cores",
                count(*threads, "thread")
            ),
            CoreReason::ThreadOrder => f.write_str(
                "first threads of all cores first, as requested: the guest does not see which \
                 vCPUs share a core",
            ),
            CoreReason::EmulatorFree => f.write_str("not pinned, as in `nvidia-vm`"),
            CoreReason::EmulatorCore { pcpus, node } => write!(
                f,
                "pcpus {pcpus}, the last core of the guest's on node {node}, so that no vCPU waits \
                 for emulator or I/O threads"
            ),
            CoreReason::EmulatorSpare { pcpus, node } => {
                let noun = if pcpus.len() == 1 { "pcpu" } else { "pcpus" };
                write!(f, "{noun} {pcpus}, the free thread of the last vCPU's core on node {node}")
            }
            CoreReason::EmulatorFloats { threads_only, nodes } => {
                let noun = if nodes.len() == 1 { "node" } else { "nodes" };
                let nodes = list(nodes);
                if *threads_only {
                    write!(
                        f,
                        "I/O threads of {noun} {nodes} run beside the emulator of another node"
                    )?;
                } else {
                    write!(
                        f,
                        "emulator and I/O threads float over the guest's own cores on {noun} {nodes}"
                    )?;
                }
                f.write_str(": a core of their own would cost others")
            }
            CoreReason::FewDisks { disks, iothreads, most } => {
                let disks = match disks {
                    1 => "one disk".to_owned(),
                    disks => format!("{disks} disks"),
                };
                write!(f, "{iothreads} for {disks}, {most} for {most} disks or more")
            }
            _ => self.kinds(f),
        }
    }
}

/// Writes the text for a GPU whose node has no cores for guests, by this node and that of its
/// cores.
fn without_cores(
    f: &mut fmt::Formatter<'_>,
    gpu: Bdf,
    (own, from): (NodeId, NodeId),
    slice: Option<&CpuSet>,
) -> fmt::Result {
    match slice {
        Some(slice) => write!(
            f,
            "machine.slice confines guests to pcpus {slice}, none of which is on node {own} of \
             {gpu}; its cores are taken from node {from}, the nearest"
        ),
        None => write!(
            f,
            "node {own} of {gpu} has no cores; they are taken from node {from}, the nearest"
        ),
    }
}

/// Writes the text for guests confined to a slice, and for pcpus of theirs whose cores have other
/// threads outside.
fn confined(f: &mut fmt::Formatter<'_>, slice: &CpuSet, parts: &CpuSet) -> fmt::Result {
    write!(f, "cpuset.cpus of machine.slice confines guests to pcpus {slice}")?;
    if parts.is_empty() {
        return Ok(());
    }
    let (is, their) = if parts.len() == 1 { ("is", "its core") } else { ("are", "their cores") };
    write!(
        f,
        ", of which {parts} {is} on part of {their} only: tasks of the host on the other threads \
         slow the guest"
    )
}

/// Writes the text for vCPUs on slower cores.
fn slower(
    f: &mut fmt::Formatter<'_>,
    kind: Speed,
    nodes: &[NodeId],
    set_aside: Option<SetAsideBy>,
) -> fmt::Result {
    write!(f, "on {} cores, which are slower: ", kind.as_str())?;
    match (nodes, set_aside) {
        ([], Some(aside)) => write!(f, "too few performance cores that are {aside} are free"),
        ([], None) => f.write_str("too few performance cores are free"),
        ([node], _) => write!(f, "node {node} has no performance cores"),
        (nodes, _) => write!(f, "nodes {} have no performance cores", list(nodes)),
    }
}

/// The words for cores that are also of domains that are off. Pinning these again would only take
/// the cores of others that are off: no other is free.
fn yielded(f: &mut fmt::Formatter<'_>, cores: &[(String, CpuSet)]) -> fmt::Result {
    let lent = |(name, pcpus): &(String, CpuSet)| {
        let noun = if pcpus.len() == 1 { "pcpu" } else { "pcpus" };
        let verb = if pcpus.len() == 1 { "belongs" } else { "belong" };
        format!("{noun} {pcpus} {verb} to domain `{name}`")
    };
    let tunes = cores
        .iter()
        .map(|(name, _)| format!("`gpuvm tune {} --all-settings --pins off`", word(name)));
    let (are, they, float) = match cores.len() {
        1 => ("is", "it", "lets it float over all pcpus instead"),
        _ => ("are", "them", "let them float over all pcpus instead"),
    };
    write!(
        f,
        "{}, which {are} off; no other core is free, and both slow down if they run beside {they}: \
         {} {float}",
        list(cores.iter().map(lent)),
        list(tunes)
    )
}

/// Writes the text for the cores of a node.
fn on_node(
    f: &mut fmt::Formatter<'_>,
    node: NodeId,
    (vcpus, cores): (usize, usize),
    rule: &NodeRule,
    only: Only,
) -> fmt::Result {
    let (vcpus, mine) = (count(vcpus, "vCPU"), count(cores, "core"));
    let counted = |cores: usize| match only {
        Only::All => count(cores, "core"),
        Only::Isolated => count(cores, "isolated core"),
        Only::IsolatedFast => count(cores, "isolated performance core"),
        Only::Slice => format!("{} of machine.slice", count(cores, "core")),
        Only::ForGuests => format!("{} set aside for guests", count(cores, "core")),
    };
    match *rule {
        NodeRule::ForOthers => {
            write!(f, "{vcpus} on {mine} of node {node}, for GPUs of other nodes")
        }
        NodeRule::Share { cores, kept, gpus, share, own } => {
            write!(f, "node {node} has {}", counted(cores))?;
            if kept > 0 {
                write!(f, " besides the {kept} kept for the host")?;
            }
            write!(
                f,
                " and {}: {share} for each, {} for {} of this guest; {vcpus} on {mine}",
                count(gpus, "GPU"),
                share * own,
                count(own, "GPU"),
            )
        }
        NodeRule::Annex { cores, gpus, share, own, taken } => {
            write!(
                f,
                "node {node} has {} and no GPU, and is shared by the {} nearest to it: {share} for \
                 each, {} for {} of this guest; {vcpus} on {mine}",
                counted(cores),
                count(gpus, "GPU"),
                share * own,
                count(own, "GPU"),
            )?;
            if taken > 0 { write!(f, "; other guests have {taken} of them") } else { Ok(()) }
        }
        NodeRule::Asked => write!(f, "{vcpus} on {mine} of node {node}, as requested"),
        NodeRule::Default { cores, free } => write!(
            f,
            "{vcpus} on {mine} of node {node}, the default without GPUs; {free} of its {} were free",
            counted(cores)
        ),
    }
}
