//! Writes the error of a shortage, with numbers, holders and a hint. Used only if no place was
//! found.

use super::affinity::Homes;
use super::budget::{Budget, Demand, Room, Short, Solution};
use super::explain::{NOTHING_LEFT, count, list};
use super::taken::Taken;
use super::types::PlanError;
use crate::bdf::Bdf;
use crate::memsize::MemSize;
use crate::request::{L3Wish, Profile};
use crate::topology::Topology;
use crate::words::are;
use std::collections::BTreeSet;

/// The facts that an error is written from.
pub(super) struct Shortage<'a> {
    pub(super) budget: &'a Budget,
    pub(super) topology: &'a Topology,
    pub(super) homes: &'a Homes<'a>,
    pub(super) taken: &'a Taken<'a>,
    pub(super) gpus: &'a [Bdf],
}

/// Whether an error goes away with the guests that hold the missing resources.
fn is_temporary(error: &PlanError) -> bool {
    matches!(error, PlanError::Taken { .. })
}

impl Shortage<'_> {
    /// Writes the error. Memory that the host never has is reported before cores that others hold.
    pub(super) fn error(&self, short: Short) -> PlanError {
        let error = self.first(short);
        let memory = self.budget.request.memory_kib.filter(|_| is_temporary(&error));
        let memory = memory.map(|size| self.memory(None, size));
        memory.filter(|error| !is_temporary(error)).unwrap_or(error)
    }

    /// Writes the error of the first shortage.
    fn first(&self, short: Short) -> PlanError {
        let impossible = |what: String, hint: String| PlanError::Impossible { what, hint };
        match short {
            Short::Refused(error) => error,
            Short::Threads { vcpus, there } => {
                let kept = self.kept();
                let confined = self.topology.confined_to();
                let whose = confined.map_or("this host", |_| "machine.slice");
                let what = format!(
                    "requested {}; {whose} has {}{}{kept}",
                    count(vcpus, "vCPU"),
                    count(there, "hyperthread"),
                    self.below_large()
                );
                impossible(what, NOTHING_LEFT.into())
            }
            Short::Cores { demand, threads } => self.cores(demand, threads.max(1)),
            Short::Everywhere { demand, threads } => self.everywhere(demand, threads.max(1)),
            Short::Nodes { cores, nodes } => {
                let what = format!(
                    "too few vCPUs ({}): each of the GPUs' {} needs at least one core",
                    count(cores as usize, "core"),
                    count(nodes as usize, "node")
                );
                impossible(what, format!("--vcpus {nodes} at least; {}", self.remote()))
            }
            Short::Cells { asked, nodes } => {
                let on = count(nodes as usize, "host node");
                let what = match self.budget.request.profile {
                    Profile::Share | Profile::Near => format!(
                        "a pinned guest on {on} has one cell, or one for each node; requested {}",
                        asked
                    ),
                    Profile::NvidiaVm => {
                        format!(
                            "{}: guests of the profile nvidia-vm have one",
                            count(asked, "cell")
                        )
                    }
                };
                let hint = match nodes {
                    0 | 1 => "--cells 1".to_owned(),
                    _ => format!("--cells 1 or --cells {nodes}"),
                };
                impossible(what, hint)
            }
            Short::Page { asked, cells } => self.page(asked, cells),
            Short::Unknown => impossible(
                "how much memory this host has is not known: the record names none".into(),
                "`gpuvm host capture FILE` records it".into(),
            ),
            Short::Pages { rooms } => self.pages(&rooms),
            Short::Memory { rooms, size } => self.memory(rooms, size),
        }
    }

    /// Returns the host's reservation, as words to follow its resources.
    fn kept(&self) -> String {
        match self.budget.request.reserve.cores {
            0 => String::new(),
            cores => format!(
                " besides the {} of each node that {} kept for it",
                count(cores as usize, "core"),
                are(cores)
            ),
        }
    }

    /// Which cores count, as words to follow their number.
    fn below_large(&self) -> &'static str {
        match self.budget.request.l3 {
            L3Wish::Large => " below the largest L3 caches",
            L3Wish::Any => "",
        }
    }

    /// Makes the error of a node with too few cores: permanent or temporary.
    fn cores(&self, demand: Demand, threads: u32) -> PlanError {
        let (stock, home) = (&self.budget.nodes[demand.node], &self.homes.all()[demand.node]);
        let own = u32::from(demand.own);
        let wanted = demand.vcpus + own;
        let (there, free) = (stock.there(threads), stock.free(threads));
        let own = if demand.own { " and 1 for emulator and I/O threads" } else { "" };
        let what = format!(
            "{} for vCPUs{own} {} needed on node {}",
            count(demand.vcpus as usize, "core"),
            are(wanted),
            stock.id
        );
        if there < wanted {
            let kept = match home.kept {
                0 => String::new(),
                kept => format!(" besides the {kept} kept for the host"),
            };
            let large = self.below_large();
            // A core with a thread that is off does not count.
            let is_whole = there == stock.there(1);
            let each =
                if is_whole { String::new() } else { format!(" with {threads} hyperthreads each") };
            let has = count(there as usize, "core");
            let what = format!("{what}, which has {has}{each}{large}{kept}");
            return PlanError::Impossible { what, hint: self.remote() };
        }
        let what = format!("{what}, {free} of its {there}{} are free", self.below_large());
        let seats: Vec<usize> = home.seats.iter().map(|seat| seat.at).collect();
        let holders = self.taken.core_holders(stock.id, &seats);
        PlanError::Taken { what, holders, hint: self.remote() }
    }

    /// Makes the error of all nodes having too few cores, though any may be used.
    fn everywhere(&self, demand: Demand, threads: u32) -> PlanError {
        let nodes = &self.budget.nodes;
        let is_whole = nodes.iter().all(|stock| stock.there(threads) == stock.there(1));
        let each = if is_whole { String::new() } else { format!(" with {threads} hyperthreads") };
        let what = format!(
            "{} more {}{each} {} needed for vCPUs; node {} and all others have none free",
            demand.vcpus,
            if demand.vcpus == 1 { "core" } else { "cores" },
            are(demand.vcpus),
            nodes[demand.node].id
        );
        let holders: Vec<String> = self
            .homes
            .all()
            .iter()
            .flat_map(|home| {
                let seats: Vec<usize> = home.seats.iter().map(|seat| seat.at).collect();
                self.taken.core_holders(home.id, &seats)
            })
            .collect();
        if holders.is_empty() {
            PlanError::Impossible { what, hint: NOTHING_LEFT.into() }
        } else {
            PlanError::Taken { what, holders, hint: NOTHING_LEFT.into() }
        }
    }

    /// Returns the hint that cores and memory of other nodes would suffice, if they would.
    fn remote(&self) -> String {
        let mut solution = Solution::default();
        let asked = self.budget.request.allow.remote;
        if !asked && self.budget.solve(self.gpus, true, &mut solution).is_ok() {
            "`--allow remote` takes the rest from other nodes".into()
        } else {
            NOTHING_LEFT.into()
        }
    }

    /// Refuses memory that does not give each cell a page.
    fn page(&self, asked: MemSize, cells: usize) -> PlanError {
        let unit = self.budget.unit();
        let is_idle = self.budget.rooms.iter().any(|room| !room.idle.is_zero());
        let least = MemSize::from_kib(unit.kib() * cells as u64);
        let kept = self.budget.request.reserve.memory_kib;
        let what = match self.budget.request.memory_kib {
            None if kept.is_some() => {
                let what = format!(
                    "{} of each node stay with the host, which leaves a guest of default size \
                     {asked}, less than a page of {unit} for each of {}",
                    kept.unwrap_or_default(),
                    count(cells, "cell")
                );
                let nodes = self.topology.nodes().iter();
                let nodes = nodes.map(|node| self.topology.usable(node).memory_kib);
                let most = nodes.filter(|memory| !memory.is_zero()).min().unwrap_or_default();
                let hint = format!("--reserve-memory of less than {most}, the memory of a node");
                return PlanError::Impossible { what, hint };
            }
            None if is_idle => format!(
                "a guest of default size gets {asked} of the memory beside the huge pages, less \
                 than a page of {unit} for each of {}",
                count(cells, "cell")
            ),
            _ => format!(
                "{asked} of memory do not give each of {} a page of {unit}",
                count(cells, "cell")
            ),
        };
        PlanError::Impossible { what, hint: format!("--memory {} at least", least.typed()) }
    }

    /// Makes the error of nodes without pages of the size.
    fn pages(&self, rooms: &[usize]) -> PlanError {
        let nodes = self.topology.nodes();
        let pools = rooms.iter().flat_map(|&at| &nodes[at].huge_pages);
        let sizes: BTreeSet<MemSize> = pools.map(|pool| pool.page_kib).collect();
        let hint = if sizes.is_empty() {
            "leave --huge-pages out".to_owned()
        } else {
            format!("sizes it has: {}", list(sizes))
        };
        let page = self.budget.unit();
        PlanError::Impossible { what: format!("this host has no huge pages of {page}"), hint }
    }

    /// Makes the error of too little memory: permanent or temporary.
    fn memory(&self, rooms: Option<Vec<usize>>, size: MemSize) -> PlanError {
        let budget = self.budget;
        let everywhere = budget.request.allow.remote && budget.is_bound();
        let place = match &rooms {
            Some(rooms) if !everywhere => {
                let noun = if rooms.len() == 1 { "node" } else { "nodes" };
                format!("of {noun} {}", list(rooms.iter().map(|&at| budget.rooms[at].id)))
            }
            _ => "of this host".to_owned(),
        };
        let rooms = match rooms {
            Some(rooms) if !everywhere => rooms,
            _ => {
                let all = budget.rooms.iter().enumerate();
                let of = |room: &Room| if everywhere { room.pages } else { room.usual };
                all.filter(|(_, room)| of(room)).map(|(at, _)| at).collect()
            }
        };
        // Pages of one cell do not straddle nodes, so each node counts in whole pages.
        let unit = if budget.is_bound() { budget.unit() } else { MemSize::from_kib(1) };
        let total = |what: fn(&Room) -> MemSize| -> MemSize {
            rooms.iter().map(|&at| what(&budget.rooms[at]).round_down(unit)).sum()
        };
        let (there, left) = (total(|room| room.there), total(|room| room.left));
        if size > there {
            let all = budget.rooms.iter().filter(|room| room.pages && room.usual);
            let all: MemSize = all.map(|room| room.there).sum();
            let asked = budget.request.memory_kib.unwrap_or(size);
            let is_part = rooms.len() < budget.rooms.len();
            let beyond = if is_part && asked > all && all > there {
                // Memory without pcpus is taken on request only.
                let has_more = budget.rooms.iter().any(|room| room.pages && !room.usual);
                let nodes = if has_more { "all nodes with pcpus" } else { "all nodes" };
                format!("; {nodes} together have {all}")
            } else {
                String::new()
            };
            let kept = match budget.request.reserve.memory_kib {
                Some(kept) => format!(" besides the {kept} of each node that stay with the host"),
                None => String::new(),
            };
            let what = format!(
                "requested {size} of memory; a guest can have at most {there} {place}{kept}{beyond}"
            );
            return PlanError::Impossible { what, hint: self.remote() };
        }
        let mut holders: Vec<String> =
            rooms.iter().flat_map(|&at| self.taken.memory_holders(at)).collect();
        for room in rooms.iter().map(|&at| &budget.rooms[at]).filter(|r| !r.idle.is_zero()) {
            holders.push(format!("{} of node {} are in unused huge pages", room.idle, room.id));
        }
        let what = format!("requested {size} of memory; {left} {place} are free");
        PlanError::Taken { what, holders, hint: self.remote() }
    }
}
