//! `host pages`: how many huge pages of a size a node is to have, now and when the machine boots.

use crate::apply::Step;
use crate::apply::boot::steps as boot_steps;
use crate::apply::pages::{PagesError, PagesStep, boot};
use crate::change::Change;
use crate::cpuset::NodeId;
use crate::discover::hugetlb;
use crate::error::{Coded, Result};
use crate::fsroot::FsRoot;
use crate::host_settings::HostVerbError;
use crate::memsize::MemSize;
use crate::pages::refuse_full;
use crate::reporter::Question;

/// How many pages a node is to have.
#[derive(Debug, Clone, Copy)]
pub struct NodePages {
    /// The node.
    pub node: NodeId,
    /// The size of a page.
    pub page: MemSize,
    /// How many.
    pub count: u64,
    /// Whether it has them from now on.
    pub now: bool,
    /// Whether it has them when the machine boots.
    pub at_boot: bool,
}

/// Plans it on this machine. Pages that it has too many are given back, which is asked about.
pub fn set_pages(wanted: &NodePages) -> Result<Change> {
    let steps = steps(wanted)?;
    let lowers = |step: &&Step| matches!(step, Step::SetPages(step) if step.to < step.was);
    let lowered: Vec<String> = steps.iter().filter(lowers).map(Step::to_string).collect();
    let question = (!lowered.is_empty()).then(|| Question::Agree {
        lines: Some(lowered),
        question: "give them back?",
        what: "giving pages back".into(),
    });
    let subject = format!("of {} on node {}", wanted.page, wanted.node);
    Ok(Change { question, ..Change::new("host pages", &subject, steps, ()) })
}

/// The steps that lead there.
fn steps(wanted: &NodePages) -> Result<Vec<Step>> {
    let root = FsRoot::live()?;
    let NodePages { node, page, count, .. } = *wanted;
    let pools = hugetlb::of_node(&root, node)?.ok_or(PagesError::NoNode { node })?;
    let pool = pools.iter().find(|pool| pool.page_kib == page);
    let pool = pool.ok_or(PagesError::NoSize { node, page })?;
    let was = pool.reserved();
    let mut steps = Vec::new();
    if wanted.now && count != was {
        if count < pool.used() {
            let (page, node) = (page.to_string(), node.to_string());
            let (used, count) = (pool.used().to_string(), count.to_string());
            return Err(HostVerbError::PagesInUse { used, page, node, count }
                .hint("`gpuvm list` shows which domains have huge pages"));
        }
        if count > was {
            refuse_full(&root, node, page, count - was)?;
        }
        let step = PagesStep { node, page_kib: page, to: count, was, needed: 0 };
        steps.push(Step::SetPages(step));
    }
    if wanted.at_boot {
        let mut numbers = boot::numbers(&root)?;
        match count {
            0 => numbers.remove(&(node, page)),
            count => numbers.insert((node, page), count),
        };
        steps.extend(boot_steps([boot::file(&numbers)])?);
    }
    Ok(steps)
}
