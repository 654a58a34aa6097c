//! The guests of a picture: each has a letter and a hue, and its pcpus, memory and devices.

use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId, PcpuId};
use crate::memsize::MemSize;
use crate::occupancy::Held;
use crate::placement::floats;
use crate::topology::{Partition, Topology};
use std::collections::BTreeMap;

/// Hues of guests; more guests than these repeat them, and only their letters differ.
pub(super) const HUES: usize = 12;

/// A guest of a picture.
#[derive(Debug, Clone)]
pub struct Guest<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its letter: A to Z, then AA, AB and so on.
    pub letter: String,
    /// Its hue, below `HUES`.
    pub hue: usize,
    /// Whether it runs.
    pub active: bool,
    /// Whether it is planned only.
    pub planned: bool,
    /// Its resources: of its definition, and, while it runs, of its live state.
    pub held: Vec<&'a Held>,
}

/// The role of a guest on a pcpu.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A vCPU runs there.
    Vcpu,
    /// Its emulator does.
    Emulator,
    /// An I/O thread does.
    Iothread,
}

/// A guest's use of a pcpu.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The guest, by its place in [`super::Scene::guests`].
    pub guest: usize,
    /// Its role there.
    pub role: Role,
    /// Number of the vCPU or of the I/O thread, if known.
    pub number: Option<usize>,
}

/// Returns a guest's letter by its place.
pub(super) fn letter(place: usize) -> String {
    let mut rest = place + 1;
    let mut letters = Vec::new();
    while rest > 0 {
        rest -= 1;
        letters.push(char::from(b'A' + u8::try_from(rest % 26).expect("below 26")));
        rest /= 26;
    }
    letters.iter().rev().collect()
}

/// Collects guests: those that are there, in their order, then planned ones. A planned guest
/// replaces the one of its name.
pub(super) fn guests<'a>(domains: &'a [Held], planned: &'a [Held]) -> Vec<Guest<'a>> {
    let mut guests: Vec<Guest<'a>> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let is_replaced = |held: &&Held| planned.iter().any(|new| new.domain == held.domain);
    let there = domains.iter().filter(|held| !is_replaced(held)).map(|held| (held, false));
    for (held, is_planned) in there.chain(planned.iter().map(|held| (held, true))) {
        let place = *places.entry(&held.domain).or_insert(guests.len());
        if place == guests.len() {
            guests.push(Guest {
                name: &held.domain,
                letter: letter(place),
                hue: place % HUES,
                active: false,
                planned: is_planned,
                held: Vec::new(),
            });
        }
        guests[place].active |= held.active;
        guests[place].held.push(held);
    }
    guests
}

impl Guest<'_> {
    /// Its state in a word or two.
    pub fn state(&self) -> &'static str {
        match (self.planned, self.active) {
            (true, _) => "planned",
            (false, true) => "running",
            (false, false) => "off",
        }
    }

    /// Passed-through functions, by address.
    pub fn devices(&self) -> Vec<Bdf> {
        let mut all: Vec<Bdf> = self.held.iter().flat_map(|held| held.devices.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// GPUs of the host that it has, with their index.
    pub fn gpus(&self, topology: &Topology) -> Vec<(usize, Bdf)> {
        let own = self.devices();
        let all = topology.gpus().map(|gpu| gpu.bdf).enumerate();
        all.filter(|(_, bdf)| own.binary_search(bdf).is_ok()).collect()
    }

    /// The NVLink partition of its GPUs; `None` if it has none, or the host has no partitions.
    pub fn partition<'t>(&self, topology: &'t Topology) -> Option<&'t Partition> {
        let ruled: Vec<Bdf> = topology.ruled().collect();
        let own = self.gpus(topology).into_iter().map(|(_, bdf)| bdf);
        let own: Vec<Bdf> = own.filter(|bdf| ruled.contains(bdf)).collect();
        if own.is_empty() { None } else { topology.partition_of(&own).ok().flatten() }
    }

    /// vCPUs; `None` if not known.
    pub fn vcpus(&self) -> Option<u32> {
        self.held.iter().map(|held| held.vcpus).max().filter(|vcpus| *vcpus > 0)
    }

    /// Memory by node: memory bound to one node, and shares of memory bound to several. Unbound
    /// memory is at `None`.
    pub fn memory(&self) -> BTreeMap<Option<NodeId>, MemSize> {
        let mut by_node = BTreeMap::new();
        let mut add = |node, size: MemSize| {
            let all = by_node.entry(node).or_insert(MemSize::from_kib(0));
            *all = *all + size;
        };
        // The definition of a running guest repeats its live state.
        let first = self.held.first().map(|held| &held.memory[..]).unwrap_or_default();
        for (nodes, size) in first {
            let number = nodes.len() as u64;
            match number {
                0 => add(None, *size),
                _ => nodes.iter().for_each(|node| add(Some(node), size.share(1, number))),
            }
        }
        by_node
    }

    /// Page size of its memory; `None` for normal pages.
    pub fn pages(&self) -> Option<MemSize> {
        self.held.first()?.huge_page_kib
    }

    /// Pcpus of its vCPUs, emulator and I/O threads: those that it holds, and those that it floats
    /// over.
    pub fn pcpus(&self, topology: &Topology, role: Role) -> (CpuSet, CpuSet) {
        let (mut own, mut wide) = (CpuSet::new(), CpuSet::new());
        for set in self.held.iter().flat_map(|held| pins(held, role)).map(|(_, set)| set) {
            let all = if floats(topology, set) { &mut wide } else { &mut own };
            *all = all.or(set);
        }
        (own, wide)
    }
}

/// The pins of a role, with the number of each if known.
fn pins(held: &Held, role: Role) -> Vec<(Option<usize>, &CpuSet)> {
    // Fewer pins than vCPUs do not say whose they are.
    let all = held.vcpu_pins.len() == held.vcpus as usize;
    match role {
        Role::Vcpu => {
            let numbered = held.vcpu_pins.iter().enumerate();
            numbered.map(|(at, set)| (all.then_some(at), set)).collect()
        }
        Role::Emulator => held.emulator_pin.iter().map(|set| (None, set)).collect(),
        Role::Iothread => {
            let numbered = held.iothread_pins.iter().zip(1..);
            numbered.map(|(set, number)| (Some(number), set)).collect()
        }
    }
}

/// Returns the holder of each pcpu, by pcpu number: pins that cover several cores hold none.
/// Running guests come first.
pub(super) fn uses(topology: &Topology, guests: &[Guest<'_>]) -> BTreeMap<PcpuId, Vec<Use>> {
    let mut all: BTreeMap<PcpuId, Vec<Use>> = BTreeMap::new();
    for (guest, place) in guests.iter().zip(0..) {
        for role in [Role::Vcpu, Role::Emulator, Role::Iothread] {
            // Floating vCPUs share one pin, which is judged once.
            let mut last: Option<(&CpuSet, bool)> = None;
            for (number, set) in guest.held.iter().flat_map(|held| pins(held, role)) {
                let wide = match last {
                    Some((same, wide)) if same == set => wide,
                    _ => floats(topology, set),
                };
                last = Some((set, wide));
                for pcpu in set.iter().filter(|pcpu| !wide && topology.core_of(*pcpu).is_some()) {
                    let new = Use { guest: place, role, number };
                    let uses = all.entry(pcpu).or_default();
                    if !uses.contains(&new) {
                        uses.push(new);
                    }
                }
            }
        }
    }
    for uses in all.values_mut() {
        uses.sort_by_key(|one| (!guests[one.guest].active, one.guest, one.role, one.number));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_go_on_after_z() {
        let all: Vec<String> = [0, 25, 26, 51, 52, 701, 702].into_iter().map(letter).collect();
        assert_eq!(all, ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]);
    }

    #[test]
    fn a_planned_guest_replaces_the_one_of_its_name() {
        let held = |name: &str, active| Held { domain: name.into(), active, ..Held::default() };
        let there = [held("a", true), held("b", true), held("b", false)];
        let planned = [held("a", false)];
        let all = guests(&there, &planned);
        let found: Vec<_> = all.iter().map(|g| (g.name, g.state(), g.held.len())).collect();
        assert_eq!(found, [("b", "running", 2), ("a", "planned", 1)]);
    }
}
