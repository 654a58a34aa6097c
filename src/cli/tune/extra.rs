//! What is changed beside a tuned definition: huge pages that it is missing, and what runs.

use super::subjects::{Subject, Subjects};
use crate::apply::Step;
use crate::apply::pages::PagesStep;
use crate::cli::args::TuneArgs;
use crate::cli::context::Context;
use crate::cli::live;
use crate::cli::pages::refuse_full;
use crate::cpuset::NodeId;
use crate::domain::live::live_changes;
use crate::fsroot::FsRoot;
use crate::memsize::MemSize;
use crate::request::PageSize;
use crate::topology::Topology;
use crate::tune::{TuneError, Tuned};
use std::collections::BTreeMap;

/// Is what is changed beside a definition.
#[derive(Debug, Default)]
pub struct Extra {
    /// On the host, before the definition is.
    pub first: Vec<Step>,
    /// Of what runs, after it.
    pub last: Vec<Step>,
    /// What of the definition waits for the next start; none: nothing was looked at that runs.
    pub waits: Option<Vec<String>>,
}

/// What is changed beside each definition, in the order of the domains.
pub fn of(
    subjects: &Subjects,
    tuned: &[Result<Tuned, TuneError>],
    args: &TuneArgs,
    cx: &Context<'_>,
) -> anyhow::Result<Vec<Extra>> {
    let topology = subjects.topology();
    let all = topology.pcpus();
    let mut pools = Pools::default();
    let mut extras = Vec::new();
    for (subject, tuned) in subjects.all.iter().zip(tuned) {
        let mut extra = Extra::default();
        if let Ok(tuned) = tuned {
            if args.reserve_pages && !subject.is_file && !subject.running {
                extra.first = pools.missing(tuned, topology, cx)?;
            }
            if let Some(runs) = &subject.live {
                let changes = live_changes(runs, &tuned.after, &all);
                extra.last = live::steps(&subject.name, &changes);
                extra.waits = Some(live::waits(&changes));
            }
        }
        extras.push(extra);
    }
    Ok(extras)
}

/// Whether there is something to do for a domain.
pub fn is_changed(subject: &Subject, tuned: &Tuned, extra: &Extra) -> bool {
    let beside = !extra.first.is_empty() || !extra.last.is_empty();
    !subject.is_file && (!tuned.changes.is_empty() || beside)
}

/// Is how many pages will be reserved of each node and size, by the steps so far.
#[derive(Debug, Default)]
struct Pools(BTreeMap<(NodeId, MemSize), u64>);

impl Pools {
    /// The steps that reserve what a domain is missing. What the domains before it take is not free any more in its plan.
    fn missing(
        &mut self,
        tuned: &Tuned,
        topology: &Topology,
        cx: &Context<'_>,
    ) -> anyhow::Result<Vec<Step>> {
        let Some(placement) = &tuned.placement else { return Ok(Vec::new()) };
        let Some(page_kib) = placement.huge_pages.map(PageSize::size) else {
            return Ok(Vec::new());
        };
        let mut steps = Vec::new();
        for pages in placement.node_pages.iter().filter(|pages| pages.missing() > 0) {
            let node = pages.node;
            let was = *self.0.get(&(node, page_kib)).unwrap_or(&pages.reserved);
            let to = was + pages.missing();
            if cx.global.host.is_none() {
                let so_far = to - reserved(topology, node, page_kib).unwrap_or(pages.reserved);
                refuse_full(&FsRoot::live()?, node, page_kib, so_far)?;
            }
            self.0.insert((node, page_kib), to);
            let needed = pages.needed;
            steps.push(Step::SetPages(PagesStep { node, page_kib, to, was, needed }));
        }
        Ok(steps)
    }
}

/// Pages of a size that a node has reserved, as the host was read.
fn reserved(topology: &Topology, node: NodeId, page: MemSize) -> Option<u64> {
    let node = topology.nodes().iter().find(|n| n.os_index == node)?;
    Some(node.huge_pages.iter().find(|pool| pool.page_kib == page)?.reserved())
}
