//! Why the cores of a plan were chosen, in sentences. Chooses nothing.

use super::explain::{Reasons, count, domains, list};
use super::home::{Home, Moved};
use super::memory::distance;
use super::pcpus::{Cores, GuestCores, NodeCores};
use super::reason::Topic;
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId};
use crate::request::{PinPolicy, Profile};
use std::collections::BTreeSet;

impl Cores<'_> {
    /// Adds why these cores were chosen.
    pub(super) fn explain(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        self.explain_homes(cores, reasons);
        for node in &cores.nodes {
            self.explain_node(node, reasons);
        }
        self.explain_emulator(cores, reasons);
        self.explain_loans(cores, reasons);
        self.explain_threads(cores, reasons);
        for node in &cores.nodes {
            self.explain_caches(node, reasons);
        }
        self.explain_neighbours(cores, reasons);
        let floating = self.taken.floating_over(&cores.pcpus());
        if !floating.is_empty() {
            let text = format!(
                "{} may run on the same pcpus: not pinned to single cores",
                domains(floating)
            );
            reasons.compromise(Topic::Vcpus, text);
        }
    }

    /// Says which GPUs have no cores on their own node.
    fn explain_homes(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        for (&gpu, home) in self.gpus.iter().map(|gpu| (gpu, self.homes.of_gpu(*gpu))) {
            match home {
                (_, None) => {}
                (node, Some(Moved::Unknown)) => reasons.compromise(
                    Topic::Nodes,
                    format!(
                        "the kernel names no node of {gpu}; its cores are taken from node \
                             {node}"
                    ),
                ),
                (node, Some(Moved::NoCores(own))) => reasons.compromise(
                    Topic::Nodes,
                    format!(
                        "node {own} of {gpu} has no cores; they are taken from node {node}, \
                             the nearest"
                    ),
                ),
            }
        }
        let spanned: BTreeSet<NodeId> = cores.nodes.iter().map(|node| node.node).collect();
        let lent: BTreeSet<NodeId> = cores.loans.iter().map(|(from, _, _)| *from).collect();
        let away = self.gpus.iter().filter(|&&gpu| {
            let home = self.homes.of_gpu(gpu).0;
            !spanned.contains(&home) && !lent.contains(&home)
        });
        let away: Vec<&Bdf> = away.collect();
        if !away.is_empty() {
            let text = format!("too few vCPUs to have some on the node of {}", list(away));
            reasons.compromise(Topic::Nodes, text);
        }
    }

    /// Says which vCPUs are not on the node of their GPUs.
    fn explain_loans(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        for &(from, to, number) in &cores.loans {
            let far = distance(self.topology, from, to);
            let far = far.map_or(String::new(), |distance| format!(", distance {distance}"));
            // A last core that is not full may be among those that are lent.
            let vcpus = (number * cores.threads).min(cores.vcpus());
            let text = format!(
                "{vcpus} of {} on node {to}{far}: node {from} of their GPUs has too few free cores",
                count(cores.vcpus(), "vCPU")
            );
            reasons.compromise(Topic::Nodes, text);
        }
    }

    /// Says how the guest's threads differ from the host's.
    fn explain_threads(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        let common = self.homes.common_threads();
        let vcpus = cores.vcpus();
        if cores.threads < common && self.request.vcpus.is_none_or(|n| n as usize >= common) {
            let mut seats = cores.nodes.iter().flat_map(|node| &node.vcpus);
            let why = match seats.all(|seat| seat.threads >= common) {
                // With more of each it would have no vCPU on some of the nodes that it needs for its memory.
                true => format!(
                    "although its cores have {common}: its vCPUs are spread over {}",
                    count(cores.nodes.len(), "node")
                ),
                false => format!(
                    "since not all its cores have the {common} that most cores of the host have"
                ),
            };
            let text =
                format!("the guest sees {} of a core, {why}", count(cores.threads, "thread"));
            reasons.compromise(Topic::Vcpus, text);
        }
        if self.request.profile == Profile::NvidiaVm {
            return;
        }
        let all: usize =
            cores.nodes.iter().flat_map(|node| &node.vcpus).map(|s| s.threads.min(common)).sum();
        if all > vcpus && (!vcpus.is_multiple_of(cores.threads) || cores.threads < common) {
            let text = format!(
                "{} leave threads of their cores idle: `--vcpus {all}` costs no core more",
                count(vcpus, "vCPU")
            );
            reasons.say(Topic::Vcpus, text);
        }
        if !vcpus.is_multiple_of(cores.threads) {
            let text = format!(
                "the guest sees cores of {}: its vCPUs do not fill whole cores",
                count(cores.seen_threads(), "thread")
            );
            reasons.say(Topic::Vcpus, text);
        }
        if self.request.pins == PinPolicy::Thread && cores.threads > 1 {
            let text = "first threads of all cores first, as asked for: the guest does not see which \
                        vCPUs share a core";
            reasons.compromise(Topic::Vcpus, text.into());
        }
    }

    /// Says where the emulator and the I/O threads run.
    fn explain_emulator(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        if self.request.profile == Profile::NvidiaVm {
            reasons.say(Topic::Emulator, "not pinned, as the replaced tool left it".into());
            return;
        }
        let mut none: Vec<NodeId> = Vec::new();
        let mut some = false;
        for node in &cores.nodes {
            let spare = node.spare(cores.threads);
            if let Some(seat) = node.own {
                let text = format!(
                    "pcpus {}, the last core of the guest's on node {}, so that no vCPU waits for \
                     emulator or I/O threads",
                    seat.core.pcpus, node.node
                );
                reasons.say(Topic::Emulator, text);
                some = true;
            } else if !spare.is_empty() {
                let noun = if spare.len() == 1 { "pcpu" } else { "pcpus" };
                let text = format!(
                    "{noun} {spare}, what the last vCPU leaves of its core on node {}",
                    node.node
                );
                reasons.say(Topic::Emulator, text);
                some = true;
            } else {
                none.push(node.node);
            }
        }
        if none.is_empty() {
            return;
        }
        let noun = if none.len() == 1 { "node" } else { "nodes" };
        let who = if some { "I/O threads" } else { "emulator and I/O threads" };
        let text = format!(
            "{who} float over the guest's own cores on {noun} {}: a core of their own would cost \
             others",
            list(none)
        );
        reasons.compromise(Topic::Emulator, text);
    }

    /// Adds why these cores of a node were chosen.
    fn explain_node(&self, cores: &NodeCores<'_>, reasons: &mut Reasons) {
        let node = cores.node;
        let there = self.homes.seats(node).len();
        let gpus = self.homes.gpus(node).len();
        let vcpus = count(cores.number, "vCPU");
        let mine = count(cores.vcpus.len(), "core");
        let own = self.gpus.iter().filter(|g| self.homes.of_gpu(**g).0 == node).count();
        let because = match (self.request.vcpus, self.gpus.is_empty()) {
            (None, false) if own == 0 => {
                format!("{vcpus} on {mine} of node {node}, for GPUs of other nodes")
            }
            (None, false) => {
                let share = self.homes.share(node);
                format!(
                    "node {node} has {}{} and {}: {share} for each, {} for {} of this guest; \
                     {vcpus} on {mine}",
                    count(there, "core"),
                    self.kept(node),
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
        reasons.say(Topic::Vcpus, because);
        let short = self.homes.share(node) == 1 && self.request.vcpus.is_none();
        if short && cores.own.is_some() && own > 0 && cores.vcpus.len() == 1 && own == 1 {
            let text = format!(
                "the share of a GPU on node {node} is 1 core; a second one was taken for the \
                 emulator"
            );
            reasons.compromise(Topic::Vcpus, text);
        }
        let mine = cores.pcpus().and(&self.topology.parts().isolated);
        if !mine.is_empty() {
            let text = format!("pcpus {mine} are isolated by the kernel command line");
            reasons.say(Topic::Vcpus, text);
        }
    }

    /// What of a node is kept for the host, to be read after its cores.
    fn kept(&self, node: NodeId) -> String {
        let home: Option<&Home<'_>> = self.homes.place(node).map(|at| &self.homes.all()[at]);
        match home.map_or(0, |home| home.kept) {
            0 => String::new(),
            kept => format!(" besides the {kept} kept for the host"),
        }
    }

    /// Says where the cores of a node stand on more L3 caches than they would on the empty node.
    fn explain_caches(&self, cores: &NodeCores<'_>, reasons: &mut Reasons) {
        let mine: Vec<usize> =
            cores.vcpus.iter().chain(&cores.own).map(|seat| seat.cache).collect();
        let stood: BTreeSet<usize> = mine.iter().copied().collect();
        let mut sizes: Vec<usize> = Vec::new();
        let mut last = None;
        for seat in self.homes.seats(cores.node) {
            if last != Some(seat.cache) {
                sizes.push(0);
                last = Some(seat.cache);
            }
            if let Some(size) = sizes.last_mut() {
                *size += 1;
            }
        }
        sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
        let mut room = 0;
        let needed = sizes.iter().take_while(|&&size| {
            let more = room < mine.len();
            room += size;
            more
        });
        let needed = needed.count();
        if stood.len() > needed {
            let text = format!(
                "the cores on node {} stand on {}, {needed} would do on the empty node",
                cores.node,
                count(stood.len(), "L3 cache")
            );
            reasons.compromise(Topic::Vcpus, text);
        }
    }

    /// Says which other guests are below the guest's L3 caches.
    fn explain_neighbours(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        let caches: BTreeSet<usize> = cores.seats().map(|seat| seat.cache).collect();
        let mut names: Vec<&str> = Vec::new();
        let mut shared = CpuSet::new();
        for &cache in &caches {
            let below = self.homes.below(cache);
            let before = names.len();
            names.extend(below.iter().filter_map(|&core| self.taken.owner(core)));
            if let (Some(l3), true) = (self.topology.parts().l3.get(cache), names.len() > before) {
                shared = shared.or(&l3.pcpus);
            }
        }
        if !shared.is_empty() {
            let text = format!("the L3 cache of pcpus {shared} is shared with {}", domains(names));
            reasons.compromise(Topic::Vcpus, text);
        }
    }
}
