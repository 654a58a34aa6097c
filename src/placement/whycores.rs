//! Why the cores of a plan were chosen, in sentences. Chooses nothing.

use super::explain::{Reasons, count, domains, list, numbers};
use super::home::Moved;
use super::pcpus::{Cores, GuestCores, NodeCores};
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId};
use crate::request::Request;
use std::collections::BTreeSet;

impl Cores<'_> {
    /// Adds why these cores were chosen.
    pub(super) fn explain(
        &self,
        request: &Request,
        cores: &GuestCores<'_>,
        common: usize,
        reasons: &mut Reasons,
    ) {
        for (&gpu, home) in self.gpus.iter().map(|gpu| (gpu, self.homes.of_gpu(*gpu))) {
            match home {
                (_, None) => {}
                (node, Some(Moved::Unknown)) => reasons.compromise(
                    "nodes",
                    format!(
                        "the kernel names no node of {gpu}; its cores are taken from node \
                             {node}"
                    ),
                ),
                (node, Some(Moved::NoCores(own))) => reasons.compromise(
                    "nodes",
                    format!(
                        "node {own} of {gpu} has no cores; they are taken from node {node}, \
                             the nearest"
                    ),
                ),
            }
        }
        let spanned: BTreeSet<NodeId> = cores.nodes.iter().map(|node| node.node).collect();
        let away = self.gpus.iter().filter(|&&gpu| !spanned.contains(&self.homes.of_gpu(gpu).0));
        let away: Vec<&Bdf> = away.collect();
        if !away.is_empty() {
            let text = format!("too few vCPUs to have some on the node of {}", list(away));
            reasons.compromise("nodes", text);
        }
        for node in &cores.nodes {
            self.explain_node(request, node, cores.threads, reasons);
        }
        if cores.threads < common && request.vcpus.is_none_or(|n| n as usize >= common) {
            let text = format!(
                "the guest sees {} of a core, since not all its cores have the {common} that most \
                 cores of the host have",
                count(cores.threads, "thread")
            );
            reasons.compromise("vcpus", text);
        }
        let floating = self.taken.floating_over(&cores.pcpus());
        if !floating.is_empty() {
            let text = format!(
                "{} may run on the same pcpus: not pinned to single cores",
                domains(floating)
            );
            reasons.compromise("vcpus", text);
        }
    }

    /// Adds why these cores of a node were chosen.
    fn explain_node(
        &self,
        request: &Request,
        cores: &NodeCores<'_>,
        threads: usize,
        reasons: &mut Reasons,
    ) {
        let node = cores.node;
        let there = self.homes.cores(node).len();
        let gpus = self.homes.gpus(node).count();
        let vcpus = count(cores.vcpus.len() * threads, "vCPU");
        let mine = count(cores.vcpus.len(), "core");
        let because = match (request.vcpus, self.gpus.is_empty()) {
            (None, false) => {
                let own = self.gpus.iter().filter(|g| self.homes.of_gpu(**g).0 == node).count();
                let share = self.homes.share(node);
                format!(
                    "node {node} has {} and {}: {share} for each, {} for {} of this guest; \
                     {vcpus} on {mine}",
                    count(there, "core"),
                    count(gpus, "GPU"),
                    share * own,
                    count(own, "GPU"),
                )
            }
            (Some(_), _) => format!("{vcpus} on {mine} of node {node}, as asked for"),
            (None, true) => format!(
                "{vcpus} on {mine} of node {node}, the default without GPUs; {} of its {there} \
                 cores were free",
                self.free(node).count(),
            ),
        };
        reasons.say("vcpus", because);
        match cores.own {
            Some(core) => {
                let text = format!(
                    "pcpus {}, the last core of the guest's on node {node}, so that no vCPU waits for \
                     emulator or I/O threads",
                    core.pcpus
                );
                reasons.say("emulator", text);
            }
            None => reasons.say("emulator", "not pinned, as the replaced tool left it".into()),
        }
        let short = self.homes.share(node) == 1 && request.vcpus.is_none() && cores.own.is_some();
        if short && !self.gpus.is_empty() && cores.vcpus.len() == 1 {
            let text = format!(
                "the share of a GPU on node {node} is 1 core; a second one was taken for the \
                 emulator"
            );
            reasons.compromise("vcpus", text);
        }
        let isolated = self.topology.parts().isolated.clone();
        let mine =
            cores.vcpus.iter().fold(CpuSet::new(), |set, core| set.or(&core.pcpus)).and(&isolated);
        if !mine.is_empty() {
            let text = format!(
                "pcpus {} are isolated by the kernel command line",
                numbers(mine.iter().map(|p| p.0 as usize))
            );
            reasons.say("vcpus", text);
        }
    }
}
