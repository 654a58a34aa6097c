//! Answers to a reviewer's first questions, in words: GPUs, partition, isolation, pins, changes.

use super::Writer;
use crate::bdf::Bdf;
use crate::cpuset::CpuSet;
use crate::occupancy::{Held, Occupancy};
use crate::placement::{Topic, shared_fabric};
use crate::topology::{Isolated, Topology};
use crate::view::guests::{Guest, Role};
use crate::words::count;

/// The most guests that are described one by one; the table has all.
const MOST: usize = 8;

/// Numbers with runs shortened: `0-3, 8`.
pub(super) fn runs(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] if run.len() > 2 => format!("{first}-{last}"),
        _ => run.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    });
    runs.collect::<Vec<_>>().join(", ")
}

/// Whether a guest is isolated from the others, and why.
pub(super) struct Standing {
    /// Whether it is; `None` if not known.
    pub(super) isolated: Option<bool>,
    pub(super) words: String,
}

/// Tells guests apart from others, for [`shared_fabric`].
pub(super) struct Others {
    /// The devices of each guest.
    all: Vec<Held>,
}

impl Others {
    pub(super) fn of(guests: &[Guest<'_>]) -> Others {
        let lean = |guest: &Guest<'_>| Held {
            domain: guest.name.to_owned(),
            active: guest.active,
            devices: guest.devices(),
            ..Held::default()
        };
        Others { all: guests.iter().map(lean).collect() }
    }

    pub(super) fn standing(&self, topology: &Topology, guest: &Guest<'_>) -> Standing {
        let devices = guest.devices();
        if devices.is_empty() {
            let words = "it has no devices of the host".to_owned();
            return Standing { isolated: Some(true), words };
        }
        let has_links = topology.is_partitioned() || !topology.fabric().links.is_empty();
        let others = self.all.iter().filter(|held| held.domain != guest.name).cloned();
        let others = || Occupancy { domains: others.collect(), ..Occupancy::default() };
        let open = if has_links { shared_fabric(topology, &others(), &devices) } else { None };
        if let Some(why) = open {
            return Standing { isolated: Some(false), words: why.to_string() };
        }
        let links = if has_links && !guest.gpus(topology).is_empty() { "NVLink and " } else { "" };
        match topology.isolates(&devices) {
            Isolated::Yes => Standing {
                isolated: Some(true),
                words: format!("isolated from other guests on {links}PCIe (IOMMU)"),
            },
            Isolated::No(weak) => {
                let words: Vec<String> = weak.iter().map(|one| one.says()).collect();
                Standing { isolated: Some(false), words: words.join("; ") }
            }
            Isolated::Unknown => Standing {
                isolated: None,
                words: if links.is_empty() {
                    "the record does not tell whether the IOMMU isolates".to_owned()
                } else {
                    "isolated on NVLink; the record does not tell whether the IOMMU isolates"
                        .to_owned()
                },
            },
        }
    }
}

/// The GPUs of a guest, in words.
pub(super) fn gpus(topology: &Topology, guest: &Guest<'_>) -> String {
    let own = guest.gpus(topology);
    if own.is_empty() {
        return "no GPU".into();
    }
    let indexes: Vec<usize> = own.iter().map(|(index, _)| *index).collect();
    let addresses: Vec<String> = own.iter().map(|(_, bdf)| bdf.to_string()).collect();
    format!("GPU {} ({})", runs(&indexes), addresses.join(", "))
}

/// The partition of a guest, in words.
pub(super) fn partition(topology: &Topology, guest: &Guest<'_>) -> String {
    match guest.partition(topology) {
        Some(own) => {
            let links = match own.nvlinks_per_gpu {
                0 => "no NVLinks".to_owned(),
                links => format!("{} per GPU", count(links, "NVLink")),
            };
            format!("NVLink partition {} ({}, {links})", own.id, count(own.gpus.len(), "GPU"))
        }
        None if topology.is_partitioned() => "no NVLink partition".into(),
        None => "this host has no NVLink partitions".into(),
    }
}

/// Pcpus by node: `0-3,48-51 of node 0`.
fn by_node(topology: &Topology, set: &CpuSet) -> String {
    let on = topology.nodes().iter().filter_map(|node| {
        let own = set.and(&node.pcpus);
        (!own.is_empty()).then(|| format!("pcpus {own} of node {}", node.os_index))
    });
    on.collect::<Vec<_>>().join(" and ")
}

/// Where a guest's threads are pinned, in words.
pub(super) fn pins(topology: &Topology, guest: &Guest<'_>) -> String {
    let mut parts = Vec::new();
    for (role, word) in
        [(Role::Vcpu, "vCPUs"), (Role::Emulator, "emulator"), (Role::Iothread, "I/O threads")]
    {
        let (own, wide) = guest.pcpus(topology, role);
        let word = match (role, guest.vcpus()) {
            (Role::Vcpu, Some(vcpus)) => count(vcpus, "vCPU"),
            _ => word.to_owned(),
        };
        if !own.is_empty() {
            parts.push(format!("{word} on {}", by_node(topology, &own)));
        }
        if !wide.is_empty() {
            parts.push(format!("{word} float over {}", by_node(topology, &wide)));
        }
        if role == Role::Vcpu && own.is_empty() && wide.is_empty() {
            parts.push(format!("{word} not pinned"));
        }
    }
    parts.join("; ")
}

/// Memory of a guest, in words.
pub(super) fn memory(guest: &Guest<'_>) -> String {
    let nodes = guest.memory().into_iter().map(|(node, size)| match node {
        Some(node) => format!("{size} on node {node}"),
        None => format!("{size} bound to no node"),
    });
    let parts: Vec<String> = nodes.collect();
    let pages =
        guest.pages().map_or_else(|| "normal pages".into(), |size| format!("pages of {size}"));
    if parts.is_empty() { "not known".into() } else { format!("{}, {pages}", parts.join(", ")) }
}

impl Writer<'_, '_> {
    pub(super) fn answers(&mut self) {
        let (topology, guests) = (self.page.subject.topology, &self.scene.guests);
        let planned: Vec<&Guest<'_>> = guests.iter().filter(|guest| guest.planned).collect();
        let about: Vec<&Guest<'_>> =
            if planned.is_empty() { guests.iter().collect() } else { planned };
        let others = Others::of(guests);
        let each = |tell: &dyn Fn(&Guest<'_>) -> String| -> Vec<String> {
            let shown = about.iter().take(MOST);
            let shown =
                shown.map(|guest| format!("{} ({}): {}", guest.name, guest.letter, tell(guest)));
            let rest = about.len().saturating_sub(MOST);
            let rest = (rest > 0).then(|| format!("and {}, in the table", count(rest, "guest")));
            shown.chain(rest).collect()
        };
        let mut which = each(&|guest| gpus(topology, guest));
        which.extend(self.free_gpus());
        let isolated = each(&|guest| {
            let standing = others.standing(topology, guest);
            let word = match standing.isolated {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "not known",
            };
            format!("{word}: {}", self.say(standing.words))
        });
        let rows = [
            ("fits", "What fits", self.lines_of_fits()),
            ("gpus", "Which GPUs", which),
            ("partition", "Which partition", each(&|guest| partition(topology, guest))),
            ("isolated", "Isolated", isolated),
            ("pins", "Pinned where", each(&|guest| pins(topology, guest))),
            ("changes", "What changes", self.lines_of_changes()),
        ];
        // A question about guests where there are none has no answer.
        let rows = rows.into_iter().filter(|(_, _, lines)| !lines.is_empty());
        self.section("answers", "At a glance");
        self.out.open("dl", &[]);
        for (id, question, lines) in rows {
            let id = format!("answer-{id}");
            self.out.element("dt", &[], question);
            self.out.open("dd", &[("id", &id)]);
            lines.iter().for_each(|line| self.out.element("p", &[], line));
            self.out.close("dd");
        }
        self.out.close("dl");
        self.out.close("section");
        self.out.line();
    }

    fn free_gpus(&self) -> Option<String> {
        let topology = self.page.subject.topology;
        let all: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
        if all.is_empty() {
            return Some(topology.without("GPU"));
        }
        let devices = self.scene.devices();
        let is_free = |bdf: &Bdf| {
            let found = devices.binary_search_by_key(bdf, |device| device.bdf).ok();
            found.is_some_and(|at| devices[at].look == crate::view::Look::Free)
        };
        let free: Vec<usize> =
            all.iter().enumerate().filter(|(_, bdf)| is_free(bdf)).map(|(at, _)| at).collect();
        Some(match free.len() {
            0 => format!("free: none of {}", all.len()),
            number => format!("free: {number} of {}, GPU {}", all.len(), runs(&free)),
        })
    }

    /// The guests that still fit, a line each.
    fn lines_of_fits(&self) -> Vec<String> {
        let Some(capacity) = self.page.fits else { return Vec::new() };
        let open = capacity.not_isolated().into_iter().map(|line| self.say(line));
        capacity.in_a_line().into_iter().chain(open).collect()
    }

    fn lines_of_changes(&self) -> Vec<String> {
        let page = self.page;
        if !page.changed.is_empty() {
            return page.changed.iter().map(|one| one.summary()).collect();
        }
        let Some(placement) = page.placement else { return Vec::new() };
        let compromises = page.reasons.iter().filter(|reason| reason.is_compromise());
        let compromises = compromises.filter(|reason| reason.choice != Topic::Template).count();
        let devices = count(placement.devices.len(), "device");
        let would = match placement.refused(page.subject.topology.machine().trust) {
            Some(why) => {
                format!("nothing: `gpuvm create` refuses this guest: {why}; it would have")
            }
            None => "nothing yet: `gpuvm create` would define a guest with".to_owned(),
        };
        let mut lines = vec![format!(
            "{would} {}, {} and {devices}",
            count(placement.vcpus(), "vCPU"),
            placement.memory()
        )];
        if compromises > 0 {
            lines.push(format!("{} under Why", count(compromises, "compromise")));
        }
        lines
    }
}
