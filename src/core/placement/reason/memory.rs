//! Reasons for memory and its nodes, as data and as text.

use crate::cpuset::{NodeId, NodeSet};
use crate::memsize::MemSize;
use crate::placement::explain::{count, domains, list};
use crate::placement::types::NodePages;
use crate::topology::pages::{how_to_mount, not_mounted};
use crate::words::{are, nouns};
use std::fmt;

/// The cost of normal pages, with sources in gpuvm-tuning(7), HUGE PAGES. The text gives the worst
/// measured values: 4 KiB pages 2.4 to 2.9 GiB/s, 2 MiB pages 9.8 to 10.3 GiB/s.
const SLOWER: &str = "memory is filled at 2.4 instead of 9.8 GiB/s at the start (measured, QEMU \
                      10.0, one thread), and work in it loses up to 20 % (RHEL 6 tuning guide, \
                      4.5.2)";

/// How an amount was rounded to whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Not at all.
    None,
    /// Up, to pages of this size.
    Up(MemSize),
    /// Down, to pages of this size, for lack of memory.
    Down(MemSize),
}

impl fmt::Display for Rounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rounding::None => Ok(()),
            Rounding::Up(page) => write!(f, ", rounded up to whole pages of {page}"),
            Rounding::Down(page) => {
                write!(f, ", rounded down to whole pages of {page}: no room for one more")
            }
        }
    }
}

/// Why a guest whose pages are left to the planner gets normal ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPages {
    /// The record names no pools.
    Unknown,
    /// The host has no pools of a size that guests get.
    NoPools,
    /// Too few pages are free.
    Few,
    /// Pages are free, but no hugetlbfs is mounted for them.
    NotMounted,
}

/// The free part of a node's pool of huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScarcePool {
    /// The node.
    pub node: NodeId,
    /// The free part.
    pub free: MemSize,
    /// The whole pool.
    pub all: MemSize,
}

/// A reason for memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryReason {
    /// Memory of domains that are off, where no other is left.
    Yielded {
        /// Their names.
        domains: Vec<String>,
    },
    /// The requested amount.
    Asked {
        /// The amount.
        memory: MemSize,
    },
    /// The requested amount, in whole pages.
    Rounded {
        /// The amount.
        memory: MemSize,
        /// The requested amount.
        asked: MemSize,
        /// How it was rounded.
        rounding: Rounding,
    },
    /// The default of a guest without GPUs.
    Default {
        /// The amount.
        memory: MemSize,
    },
    /// The share of `nvidia-vm` on a DGX-2.
    Vendor {
        /// The amount.
        memory: MemSize,
        /// GPUs of the guest.
        gpus: usize,
        /// The amount shared among 16.
        whole: MemSize,
        /// How it was rounded.
        rounding: Rounding,
    },
    /// The GPUs' share.
    Share {
        /// The amount.
        memory: MemSize,
        /// GPUs of the guest.
        gpus: usize,
        /// Memory of each node reserved for the host; `None` for the default.
        kept: Option<MemSize>,
        /// Nodes without GPUs whose memory would come with their cores.
        without: NodeSet,
    },
    /// The GPUs' share in the pools of huge pages.
    SharePool {
        /// The amount.
        memory: MemSize,
        /// GPUs of the guest.
        gpus: usize,
        /// Pools with too few free pages for all free GPUs.
        scarce: Vec<ScarcePool>,
    },
    /// A node without memory.
    NoMemory {
        /// The node.
        node: NodeId,
        /// The nearest with memory.
        from: NodeId,
    },
    /// Memory that may be anywhere but on nodes of GPUs.
    NotOfGpus {
        /// Where it is.
        nodes: NodeSet,
        /// Nodes of GPUs.
        of_gpus: NodeSet,
    },
    /// One cell over several nodes.
    OneCell {
        /// Nodes.
        nodes: NodeSet,
    },
    /// Memory that is not on the node of its cell.
    Away {
        /// How much.
        part: MemSize,
        /// Of this amount.
        of: MemSize,
        /// The cell.
        cell: usize,
        /// Where it is.
        from: NodeId,
        /// The distance between the nodes.
        distance: Option<u32>,
        /// The cell's node.
        own: NodeId,
        /// Whether the node where it is has CPUs; memory behind CXL has none.
        has_cpus: bool,
    },
    /// Unused huge pages.
    Idle {
        /// How much.
        memory: MemSize,
        /// The node.
        node: NodeId,
    },
    /// The nodes do not show all of the machine's memory
    /// ([`crate::topology::Topology::memory_warning`]).
    OffNodes {
        /// The warning.
        warning: String,
    },
    /// No hugetlbfs is mounted for pages of this size.
    NotMounted {
        /// Page size.
        page: MemSize,
    },
    /// The record names no pools.
    NoPools {
        /// Page size.
        page: MemSize,
    },
    /// The page size that was left to the planner.
    Chosen {
        /// Page size.
        page: MemSize,
    },
    /// The page size of a guest that has a place on no other pages.
    OnlyPages {
        /// Page size.
        page: MemSize,
    },
    /// Normal pages instead of huge ones.
    Normal {
        /// Why none are used.
        why: NoPages,
        /// Page size to reserve.
        page: MemSize,
        /// Pages to reserve per node.
        nodes: Vec<NodePages>,
        /// Whether libvirt can back guests with them.
        mounted: bool,
    },
    /// Pages of a node.
    Pages {
        /// Page size.
        page: MemSize,
        /// Needed and free pages there.
        pages: NodePages,
    },
}

impl MemoryReason {
    fn share(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryReason::Share { memory, gpus, kept, without } = self else { return Ok(()) };
        let gpus = count(*gpus, "GPU");
        write!(f, "{memory}: the share of {gpus} in the nodes' memory, of which ")?;
        match kept {
            Some(kept) => write!(f, "{kept} of each stay with the host, as requested")?,
            None => f.write_str("one twentieth and at least 1 GiB stays with the host")?,
        }
        if without.is_empty() {
            return Ok(());
        }
        let (noun, have) = if without.len() == 1 { ("node", "has") } else { ("nodes", "have") };
        let nodes = list(without.iter());
        write!(f, "; nothing from {noun} {nodes}, which {have} no vCPU of this guest")
    }

    /// Writes where memory is that its cell's node lacks.
    fn away(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryReason::Away { part, of, cell, from, distance, own, has_cpus } = self else {
            return Ok(());
        };
        write!(f, "{part} of the {of} of cell {cell} are on node {from}")?;
        if let Some(distance) = distance {
            write!(f, ", distance {distance}")?;
        }
        if !has_cpus {
            f.write_str(", which has no CPUs (memory behind CXL or of a GPU)")?;
        }
        write!(f, ": node {own} has too little left")
    }
}

impl fmt::Display for MemoryReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryReason::Asked { memory } => write!(f, "{memory}, as requested"),
            MemoryReason::Rounded { memory, asked, rounding } => {
                write!(f, "{} KiB: the {} KiB requested{rounding}", memory.kib(), asked.kib())
            }
            MemoryReason::Default { memory } => write!(f, "{memory}, the default without GPUs"),
            MemoryReason::Vendor { memory, gpus, whole, rounding } => write!(
                f,
                "{} KiB: {gpus} of 16 parts of {} KiB as nvidia-vm gave{rounding}",
                memory.kib(),
                whole.kib()
            ),
            MemoryReason::Share { .. } => self.share(f),
            MemoryReason::SharePool { memory, gpus, scarce } => pooled(f, *memory, *gpus, scarce),
            MemoryReason::Yielded { domains: names } => write!(
                f,
                "memory of {}, which {} off, counts as free: not all of them can run beside this \
                 guest",
                domains(names.iter().map(String::as_str)),
                are(names.len())
            ),
            MemoryReason::NoMemory { node, from } => {
                write!(
                    f,
                    "node {node} has no memory; it is taken from node {from}, the nearest with CPUs"
                )
            }
            MemoryReason::NotOfGpus { nodes, of_gpus } => {
                let on = nouns(nodes.len(), "node");
                let of = nouns(of_gpus.len(), "node");
                write!(f, "on {on} {nodes}, so that none is on {of} {of_gpus}, the GPUs'")
            }
            MemoryReason::OneCell { nodes } => write!(
                f,
                "one cell over nodes {}, as requested: the guest does not see which memory is near \
                 which vCPU",
                list(nodes.iter())
            ),
            MemoryReason::Away { .. } => self.away(f),
            MemoryReason::Idle { memory, node } => write!(
                f,
                "{memory} of node {node} are in unused huge pages that this guest did not request"
            ),
            MemoryReason::OffNodes { warning } => f.write_str(warning),
            MemoryReason::NotMounted { page } => {
                write!(f, "{}: {}", not_mounted(*page), how_to_mount(*page))
            }
            MemoryReason::NoPools { page } => {
                write!(f, "free {page} pages are unknown: the record does not list huge page pools")
            }
            MemoryReason::Chosen { page } => {
                write!(f, "pages of {page}, the largest of which enough are free and mounted")
            }
            MemoryReason::OnlyPages { page } => {
                write!(f, "pages of {page}, since too little memory is left beside them")
            }
            MemoryReason::Normal { why, page, nodes, mounted } => {
                normal(f, *why, *page, nodes)?;
                if *mounted { Ok(()) } else { write!(f, "; {}", how_to_mount(*page)) }
            }
            MemoryReason::Pages { page, pages } => on_node(f, *page, pages),
        }
    }
}

/// Writes the text for a share of huge pages; `scarce`: the free part on nodes with too few.
fn pooled(
    f: &mut fmt::Formatter<'_>,
    memory: MemSize,
    gpus: usize,
    scarce: &[ScarcePool],
) -> fmt::Result {
    let gpus = count(gpus, "GPU");
    write!(f, "{memory}: the share of {gpus} in the huge pages of the nodes")?;
    scarce.iter().try_for_each(|ScarcePool { node, free, all }| {
        write!(f, "; of node {node} {free} of {all} are free")
    })
}

/// Writes the text for the pages of a node.
fn on_node(f: &mut fmt::Formatter<'_>, page: MemSize, pages: &NodePages) -> fmt::Result {
    let NodePages { node, needed, free, reserved } = pages;
    let (wanted, are_free) = (count(*needed, &format!("page of {page}")), are(*free));
    let missing = pages.missing();
    if missing == 0 {
        return write!(f, "{wanted} on node {node}, {free} {are_free} free");
    }
    write!(
        f,
        "{wanted} {} needed on node {node}, {free} {are_free} free; `gpuvm host pages --node \
         {node} --size {} --count {}` reserves the {missing} that {} missing, as --reserve-pages \
         of create, start and tune does",
        are(*needed),
        page.typed(),
        reserved.saturating_add(missing),
        are(missing),
    )
}

/// Writes the text for normal pages: their cost, and the command that reserves others.
fn normal(
    f: &mut fmt::Formatter<'_>,
    why: NoPages,
    page: MemSize,
    nodes: &[NodePages],
) -> fmt::Result {
    f.write_str("normal pages, since ")?;
    match why {
        NoPages::Unknown => f.write_str("the record names no pools of huge ones"),
        NoPages::NoPools => f.write_str("this host has no pools of 1 GiB or 2 MiB pages"),
        NoPages::Few => f.write_str("too few huge pages are free"),
        NoPages::NotMounted => {
            write!(f, "no hugetlbfs is mounted for the free pages of {page}")
        }
    }?;
    write!(f, ": {SLOWER}")?;
    let number = |pages: &NodePages| pages.reserved.saturating_add(pages.missing());
    let command = |pages: &NodePages| {
        let (node, size) = (pages.node, page.typed());
        format!("gpuvm host pages --node {node} --size {size} --count {}", number(pages))
    };
    let commands: Vec<String> =
        nodes.iter().filter(|pages| pages.missing() > 0).map(command).collect();
    match why {
        NoPages::Unknown => f.write_str("; --huge-pages 1G or 2M takes them all the same"),
        NoPages::NoPools | NoPages::NotMounted => Ok(()),
        NoPages::Few if commands.is_empty() => Ok(()),
        NoPages::Few => match &commands[..] {
            [command] => write!(f, "; `{command}` reserves huge pages"),
            _ => f.write_str("; --reserve-pages of create, start and tune reserves huge pages"),
        },
    }
}
