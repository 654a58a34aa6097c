//! Changes the number of huge pages of one size on one node.
//!
//! The kernel keeps one number for all users of pages there, so others may raise or lower it while
//! ours is in effect. Hence undoing is by difference: it subtracts from the current number what we
//! added, or adds what we removed, and no more. If the number is between ours and the previous one,
//! the write was interrupted, and undoing ends at the previous number. Raising is refused if the
//! number has changed since the plan: the number of missing pages would be different. Lowering
//! never goes below the pages in use: the kernel would keep them and drop each as it is freed, from
//! under a guest about to start with them. Surplus pages, which the kernel adds by itself, are not
//! counted.
//!
//! If the kernel does not reach a number because memory is fragmented, it is tried again after
//! compaction; then it is an error with the number reached, and the step is undone. The write is
//! made by a process of its own, as for drivers (`bind`), so that it completes even if the run is
//! killed.

pub mod boot;

use super::bind::{BindError, Kernel, Live};
use crate::discover::hugetlb;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::cpuset::NodeId;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::HugePagePool;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// How long the kernel may take to allocate pages, in seconds: on a node of a terabyte it moves
/// much of the memory.
const GATHER_S: u64 = 600;
/// How often to check whether pages in use are free now: those of a guest just terminated follow a
/// little later.
const LOOKS: u32 = 20;

/// A change of the number of huge pages of one size on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PagesStep {
    /// The node.
    pub node: NodeId,
    /// Page size.
    pub page_kib: MemSize,
    /// The number that is wanted.
    pub to: u64,
    /// The number when this was planned.
    pub was: u64,
    /// The number of them that must be free once reserved: others may take some first.
    #[serde(default)]
    pub needed: u64,
}

impl fmt::Display for PagesStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PagesStep { node, page_kib, to, was, .. } = self;
        let number = to.abs_diff(*was);
        let noun = if number == 1 { "page" } else { "pages" };
        match to >= was {
            false if *to == 0 => {
                write!(f, "release {number} {noun} of {page_kib} of node {node}, none remain")
            }
            true => write!(f, "reserve {number} {noun} of {page_kib} on node {node}, {to} in all"),
            false => write!(f, "release {number} {noun} of {page_kib} of node {node}, {to} remain"),
        }
    }
}

/// The error of changing the number of pages.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "pages-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum PagesError {
    /// Reading the host's files failed.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    File(#[from] FsError),
    /// The number cannot be written.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Write(#[from] BindError),
    /// There is no such node.
    #[error("node {node} does not exist")]
    NoNode { node: NodeId },
    /// There are no pages of this size.
    #[error("node {node} has no pool of {page} pages")]
    NoSize { node: NodeId, page: MemSize },
    /// The number has changed since the plan.
    #[error("node {node} has {now} pages of {page} reserved; it had {was} when this was planned")]
    Changed { node: NodeId, page: MemSize, now: u64, was: u64 },
    /// The kernel gave fewer.
    #[error(
        "node {node}: requested {wanted} pages of {page}, got {got}{}",
        available.map(|left| format!("; {left} are available there, but not in whole pages")).unwrap_or_default()
    )]
    Short {
        node: NodeId,
        page: MemSize,
        wanted: u64,
        got: u64,
        /// Memory that the node has left, if the kernel reports it.
        available: Option<MemSize>,
    },
    /// Pages to be released are in use.
    #[error("cannot release {goes} pages of {page} of node {node}: only {free} are free")]
    InUse { node: NodeId, page: MemSize, free: u64, goes: u64 },
    /// Others took pages meanwhile.
    #[error("{needed} pages of {page} are needed on node {node}, only {free} are free")]
    Taken { node: NodeId, page: MemSize, free: u64, needed: u64 },
}

impl PagesError {
    /// Whether the number may have changed.
    pub fn may_have_done(&self) -> bool {
        use PagesError::{Short, Taken, Write};
        matches!(self, Short { .. } | Taken { .. } | Write(_))
    }
}

/// Returns the number to write for a change from `from` to `to` if `now` is current: by difference,
/// so that changes by others stay, and ending at `to` from anywhere in between.
fn aim(now: u64, from: u64, to: u64) -> u64 {
    if to >= from {
        now.saturating_add(to - from).min(now.max(to))
    } else {
        now.saturating_sub(from - to).max(now.min(to))
    }
}

/// Sets numbers of pages.
pub struct Pages<'a> {
    /// The host's files.
    pub root: &'a FsRoot,
    /// The writer to the kernel.
    pub kernel: &'a dyn Kernel,
    /// How long to wait between two checks.
    pub pause: Duration,
}

impl Pages<'_> {
    /// The pool now.
    pub fn pool(&self, node: NodeId, page: MemSize) -> Result<HugePagePool, PagesError> {
        let pools = hugetlb::of_node(self.root, node)?.ok_or(PagesError::NoNode { node })?;
        let pool = pools.into_iter().find(|pool| pool.page_kib == page);
        pool.ok_or(PagesError::NoSize { node, page })
    }

    /// Refuses to raise a number that has changed.
    pub fn expect(&self, step: &PagesStep) -> Result<(), PagesError> {
        let &PagesStep { node, page_kib: page, to, was, .. } = step;
        if to < was {
            return Ok(());
        }
        match self.pool(node, page)?.reserved() {
            now if now == was => Ok(()),
            now => Err(PagesError::Changed { node, page, now, was }),
        }
    }

    /// Performs the step.
    pub fn perform(&self, step: &PagesStep) -> Result<(), PagesError> {
        self.lead(step, step.was, step.to)?;
        let &PagesStep { node, page_kib: page, needed, .. } = step;
        if needed > 0 {
            let free = self.pool(node, page)?.free;
            if free < needed {
                return Err(PagesError::Taken { node, page, free, needed });
            }
        }
        Ok(())
    }

    /// Undoes the step. If pages are in use, none is released: their user needs them all, and a
    /// part released now would be released again later.
    pub fn undo(&self, step: &PagesStep) -> Result<(), PagesError> {
        let &PagesStep { node, page_kib: page, to, was, .. } = step;
        if to > was {
            let mut looks = 0;
            loop {
                let pool = match self.pool(node, page) {
                    Err(PagesError::NoNode { .. } | PagesError::NoSize { .. }) => return Ok(()),
                    pool => pool?,
                };
                let goes = pool.reserved() - aim(pool.reserved(), to, was).min(pool.reserved());
                if pool.free >= goes {
                    break;
                }
                looks += 1;
                if looks > LOOKS {
                    return Err(PagesError::InUse { node, page, free: pool.free, goes });
                }
                std::thread::sleep(self.pause);
            }
        }
        self.lead(step, step.to, step.was)
    }

    /// Changes the number from one to the other. Removing pages that no longer exist does nothing.
    fn lead(&self, step: &PagesStep, from: u64, to: u64) -> Result<(), PagesError> {
        let (node, page) = (step.node, step.page_kib);
        let pool = match self.pool(node, page) {
            Err(PagesError::NoNode { .. } | PagesError::NoSize { .. }) if to < from => {
                return Ok(());
            }
            pool => pool?,
        };
        let now = pool.reserved();
        let wanted = aim(now, from, to);
        if wanted < now {
            return self.lower(step, wanted);
        }
        if wanted == now {
            return Ok(());
        }
        let mut got = self.write(step, wanted)?;
        // Each attempt frees memory for the next, until one gets no page more.
        let mut before = None;
        while got < wanted && before != Some(got) {
            before = Some(got);
            self.compact(node);
            got = self.write(step, wanted)?;
        }
        if got >= wanted {
            return Ok(());
        }
        let available = hugetlb::available(self.root, node)?;
        let (wanted, got) = (wanted - now, got.saturating_sub(now));
        Err(PagesError::Short { node, page, wanted, got, available })
    }

    /// Lowers a number, but not below the pages in use; waits a little for those to become free.
    fn lower(&self, step: &PagesStep, wanted: u64) -> Result<(), PagesError> {
        let mut pool = self.pool(step.node, step.page_kib)?;
        for _ in 0..LOOKS {
            if pool.used() <= wanted {
                break;
            }
            std::thread::sleep(self.pause);
            pool = self.pool(step.node, step.page_kib)?;
        }
        let wanted = wanted.max(pool.used());
        if wanted < pool.reserved() {
            self.write(step, wanted)?;
        }
        Ok(())
    }

    /// Writes a number; returns the resulting one.
    fn write(&self, step: &PagesStep, number: u64) -> Result<u64, PagesError> {
        let (node, page) = (step.node, step.page_kib);
        let dir = hugetlb::directory(self.root, node).ok_or(PagesError::NoNode { node })?;
        let path = format!("{dir}/hugepages-{}kB/nr_hugepages", page.kib());
        self.kernel.write(&path, &number.to_string(), GATHER_S)?;
        Ok(self.pool(node, page)?.reserved())
    }

    /// Asks the kernel to compact memory, of the node alone if supported. A failure is ignored: the
    /// result counts.
    fn compact(&self, node: NodeId) {
        let own = format!("sys/devices/system/node/node{node}/compact");
        let path = if self.root.exists(&own) { &own } else { "proc/sys/vm/compact_memory" };
        let _ = self.kernel.write(path, "1", GATHER_S);
    }
}

/// Sets numbers on this machine.
pub fn on_this_machine<T>(
    work: impl FnOnce(&Pages<'_>) -> Result<T, PagesError>,
) -> Result<T, PagesError> {
    let root = FsRoot::live()?;
    work(&Pages { root: &root, kernel: &Live, pause: Duration::from_millis(100) })
}

#[cfg(test)]
mod tests;
