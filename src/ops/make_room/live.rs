//! Guests that get other cores while they run, so that none must be stopped: those without
//! passed-through functions whose memory is bound to no node, since it stays where it is, and
//! `check` takes no cores of another node than that of bound memory.

use super::rules::{anew, refuse_impassable, refuse_shared};
use super::{PlannedMove, RoomPlan, RoomRequest, Target};
use crate::cpuset::{CpuSet, NodeId};
use crate::memsize::MemSize;
use crate::placement::{Held, Occupancy, plan};
use crate::request::{Allow, Request};
use crate::topology::Topology;
use crate::tune::subject::Subject;
use crate::tune::subjects::Subjects;
use crate::world::World;
use gpuvm_core::placement::room::MoveCost;
use gpuvm_core::tune::{Given, Item, Items, TuneError, Tuned, together, tune};

/// The most guests of which every set is tried.
const MOST: usize = 8;

pub(super) struct Live<'a> {
    /// The host and hypervisor of the operation.
    pub world: &'a World,
    /// The host.
    pub topology: &'a Topology,
    /// The occupancy of the domains.
    pub held: &'a Occupancy,
    /// The request that needs a place.
    pub request: &'a Request,
    /// The request.
    pub wanted: &'a RoomRequest,
    /// The guests that may be moved.
    pub subjects: &'a Subjects,
}

impl Live<'_> {
    /// The guests with the fewest pins whose move makes room; `None` if no such moves do.
    pub fn find(&self, most: Option<u32>) -> Option<RoomPlan> {
        let mut some = self.guests();
        some.truncate(MOST);
        let set = |bits: u32| -> Vec<&Subject> {
            let is_in = |(at, _): &(usize, &&Subject)| bits >> at & 1 == 1;
            some.iter().enumerate().filter(is_in).map(|(_, subject)| *subject).collect()
        };
        let pins = |set: &[&Subject]| -> usize {
            set.iter().map(|subject| self.pins(&subject.name).len()).sum()
        };
        let mut sets: Vec<Vec<&Subject>> = (1..1_u32 << some.len()).map(set).collect();
        sets.retain(|set| most.is_none_or(|most| set.len() <= most as usize));
        sets.sort_by_key(|set| (pins(set), set.len()));
        let found = sets.iter().find_map(|set| self.with(set));
        found.map(|room| RoomPlan { is_best: self.guests().len() <= MOST, ..room })
    }

    /// Whether there are guests that could be tried.
    pub fn has_guests(&self) -> bool {
        !self.guests().is_empty()
    }

    /// The guests that can get other cores while they run.
    fn guests(&self) -> Vec<&Subject> {
        let is_live = |subject: &&Subject| {
            let has_functions = subject.xml.held(false).is_ok_and(|held| !held.devices.is_empty());
            subject.running && !has_functions && !self.pins(&subject.name).is_empty()
        };
        self.subjects.all.iter().filter(is_live).collect()
    }

    /// The pins of the vCPUs of a guest.
    fn pins(&self, name: &str) -> &[CpuSet] {
        let held = self.held.domains.iter().find(|held| held.domain == name);
        held.map_or(&[], |held| &held.vcpu_pins)
    }

    /// The moves of these guests; `None` if they do not make room.
    fn with(&self, set: &[&Subject]) -> Option<RoomPlan> {
        let mut now = self.held.clone();
        for held in now.domains.iter_mut().filter(|held| is_of(held, set)) {
            *held = floating(held);
        }
        let placement = plan(self.topology, &now, self.request).ok()?;
        refuse_shared(self.topology, self.wanted, &placement).ok()?;
        let asked = (self.wanted, self.request);
        refuse_impassable(self.world, self.topology, asked, &placement).ok()?;
        let mut planned = RoomPlan::of_new(self.topology, &placement);
        for subject in set {
            let tuned = repinned(subject, self.subjects, &now, &planned.new).ok()?;
            let new = tuned.after.held(false).ok()?;
            for held in now.domains.iter_mut().filter(|held| held.domain == subject.name) {
                let Held { vcpu_pins, emulator_pin, iothread_pins, .. } = new.clone();
                *held = Held { vcpu_pins, emulator_pin, iothread_pins, ..held.clone() };
            }
            let pins = u32::try_from(new.vcpu_pins.len()).unwrap_or(u32::MAX);
            planned.cost = planned.cost + MoveCost { pins, ..MoveCost::default() };
            planned.moves.push(self.words(subject, &new));
            let (name, uuid) = (subject.name.clone(), subject.xml.uuid().unwrap_or_default());
            let before = subject.text().to_owned();
            let (gpus, vgpu, live, stops) = (Vec::new(), None, true, false);
            planned.legs.push(vec![Target { name, uuid, before, gpus, vgpu, live, stops }]);
        }
        // Its memory may be where theirs is.
        plan(self.topology, &now, self.request).is_ok().then_some(planned)
    }

    /// A move in words and numbers.
    fn words(&self, subject: &Subject, new: &Held) -> PlannedMove {
        let all = |pins: &[CpuSet]| pins.iter().fold(CpuSet::new(), |all, pin| all.or(pin));
        let pcpus = all(&new.vcpu_pins);
        let nodes = |pcpus: &CpuSet| -> Vec<NodeId> {
            let nodes = self.topology.nodes().iter();
            nodes.filter(|node| node.pcpus.intersects(pcpus)).map(|node| node.os_index).collect()
        };
        let held = self.held.domains.iter().find(|held| held.domain == subject.name);
        let memory: MemSize =
            held.iter().flat_map(|held| &held.memory).map(|(_, size)| *size).sum();
        let note = format!("its {memory} of memory stay where they are, near its old cores");
        let is_elsewhere = nodes(&pcpus) != nodes(&all(self.pins(&subject.name)));
        PlannedMove {
            domain: subject.name.clone(),
            stops: false,
            live: true,
            from: Vec::new(),
            to: Vec::new(),
            pcpus: pcpus.to_string(),
            memory_gib: 0,
            with: Vec::new(),
            notes: is_elsewhere.then_some(note).into_iter().collect(),
        }
    }
}

/// Whether it belongs to one of these guests.
fn is_of(held: &Held, set: &[&Subject]) -> bool {
    set.iter().any(|subject| subject.name == held.domain)
}

fn floating(held: &Held) -> Held {
    let (vcpu_pins, iothread_pins) = (Vec::new(), Vec::new());
    Held { vcpu_pins, emulator_pin: None, iothread_pins, ..held.clone() }
}

/// A guest with other pins, beside the resources of others and of the new guest.
pub(super) fn repinned(
    subject: &Subject,
    subjects: &Subjects,
    now: &Occupancy,
    new: &Held,
) -> Result<Tuned, TuneError> {
    let items = Items {
        pins: Item::On,
        emulator: anew(&subject.xml, "cputune/emulatorpin"),
        iothread_pins: anew(&subject.xml, "cputune/iothreadpin"),
        unnamed: Items::all().unnamed,
        ..Items::default()
    };
    let mut others = together::without_member(now, &subject.xml, false);
    others.domains.push(new.clone());
    let given = subjects.beside(&others, &items, subjects.topology());
    tune(&subject.xml, &Given { allow: Allow { remote: true, ..given.allow }, ..given })
}
