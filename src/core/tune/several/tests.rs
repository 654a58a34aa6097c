//! Guests of every recorded host that change together: nothing is held twice at any time, and each
//! has its size in the end.

use super::*;
use crate::check::check;
use crate::domain::guest::VirtType;
use crate::domain::tests::guests::{TEMPLATES, guest, host, render};
use crate::finding::Severity;
use crate::placement::plan;
use crate::request::Allow;
use crate::share::cases;
use crate::versions::Versions;
use std::collections::{BTreeMap, BTreeSet};

struct House {
    topology: Topology,
    held: Occupancy,
    guests: Vec<DomainXml>,
}

impl House {
    fn new(name: &str) -> House {
        House { topology: host(name), held: Occupancy::default(), guests: Vec::new() }
    }

    /// Adds a guest; false if it has no place.
    fn add(&mut self, request: &Request) -> bool {
        let Ok(place) = plan(&self.topology, &self.held, request) else { return false };
        let name = format!("g{}", self.guests.len());
        let guest = guest(&name, VirtType::Kvm, request);
        let xml = render(TEMPLATES[0].1, &guest, &place, &self.topology);
        self.held.domains.push(xml.held(false).unwrap());
        self.guests.push(xml);
        true
    }

    /// The plan of these changes beside new guests.
    fn several(&self, changes: &[Resized<'_>], new: &[Request]) -> Result<Several, NoSeveral> {
        let (items, versions, disks) = (Items::default(), Versions::default(), BTreeMap::new());
        let given = Given {
            topology: &self.topology,
            others: &self.held,
            items: &items,
            allow: Allow::default(),
            disks: &disks,
            abilities: Default::default(),
            versions: &versions,
        };
        let new: Vec<JointGuest<'_>> =
            new.iter().map(|request| JointGuest { name: "new", request, sets: &[] }).collect();
        several(&given, changes, &new)
    }

    /// A guest that gets these GPUs.
    fn with(&self, guest: usize, gpus: GpuWish) -> Resized<'_> {
        let (xml, items) = (&self.guests[guest], Items::default());
        Resized { xml, items, gpus: Some(gpus), allow: Allow::default(), is_off: true }
    }

    fn gpus_of(&self, guest: usize) -> Vec<Bdf> {
        gpus_of(&self.guests[guest], &self.topology)
    }

    /// Checks a plan against the rules.
    fn judge(&self, changes: &[Resized<'_>], found: &Several, what: &str) {
        let once = |devices: Vec<Bdf>, at: &str| {
            let all: BTreeSet<Bdf> = devices.iter().copied().collect();
            assert_eq!(all.len(), devices.len(), "{what}: {at}: {devices:?}");
        };
        for turn in &found.turns {
            let own = turn.tuned.after.held(false).unwrap().devices;
            let others = turn.others.domains.iter().flat_map(|held| held.devices.clone());
            once(others.chain(own).collect(), "a turn");
            let errors =
                check(&turn.tuned.after, &self.topology, &turn.others, &Versions::default());
            let errors = errors.iter().filter(|found| found.severity == Severity::Error);
            assert_eq!(errors.count(), 0, "{what}: {}", turn.guest);
        }
        let olds = found.held.domains.iter().flat_map(|held| held.devices.clone());
        let news = found.new.placements.iter().flat_map(|place| place.devices.clone());
        once(olds.chain(news).collect(), "the end");
        for (guest, change) in changes.iter().enumerate() {
            let last = found.turns.iter().rfind(|turn| turn.guest == guest).unwrap();
            assert!(!last.gives_up, "{what}");
            let wanted = change.gpus.as_ref().unwrap().number() as usize;
            assert_eq!(gpus_of(&last.tuned.after, &self.topology).len(), wanted, "{what}");
        }
    }
}

fn sized(gpus: u32, gib: u64) -> Request {
    let memory_kib = Some(MemSize::from_gib(gib));
    Request { vcpus: Some(4), memory_kib, ..Request::for_gpus(gpus) }
}

#[test]
fn guests_that_shrink_make_room_for_guests_that_grow_and_new_ones() {
    let mut house = House::new("dgx-2");
    assert!(house.add(&sized(8, 16)) && house.add(&sized(8, 16)));
    let changes = [house.with(0, GpuWish::Count(16)), house.with(1, GpuWish::Count(0))];
    let found = house.several(&changes, &[]).unwrap();
    let order: Vec<usize> = found.turns.iter().map(|turn| turn.guest).collect();
    assert_eq!(order, [1, 0]);
    house.judge(&changes, &found, "8 and 8 to 16 and 0");
    // All cores go with all GPUs; one that is off and stays so yields its own.
    let mut house = House::new("dgx-2");
    assert!(house.add(&Request::for_gpus(8)) && house.add(&Request::for_gpus(8)));
    let changes = [house.with(0, GpuWish::Count(16)), house.with(1, GpuWish::Count(0))];
    let found = house.several(&changes, &[]).unwrap();
    assert_eq!(found.turns.len(), 2);
    // One that shrinks keeps the GPUs that a new one does not name.
    let mut house = House::new("dgx-h100");
    assert!(house.add(&sized(2, 16)));
    let own = house.gpus_of(0);
    for gpu in &own {
        let changes = [house.with(0, GpuWish::Count(1))];
        let new = Request { gpus: GpuWish::Exact(vec![*gpu]), ..sized(1, 16) };
        let found = house.several(&changes, &[new]).unwrap();
        house.judge(&changes, &found, "the other one");
    }
    // No guest is promised resources that another one gets.
    let mut house = House::new("dgx-2");
    assert!(house.add(&sized(1, 16)));
    let changes = [house.with(0, GpuWish::Count(16))];
    assert!(house.several(&changes, &[sized(8, 16)]).is_err());
}

#[test]
fn guests_that_are_off_exchange_their_gpus() {
    let mut house = House::new("dgx-2");
    assert!(house.add(&sized(2, 16)) && house.add(&sized(2, 16)));
    let (first, second) = (house.gpus_of(0), house.gpus_of(1));
    let mut changes = [
        house.with(0, GpuWish::Exact(second.clone())),
        house.with(1, GpuWish::Exact(first.clone())),
    ];
    let found = house.several(&changes, &[]).unwrap();
    house.judge(&changes, &found, "an exchange");
    let turns: Vec<(usize, bool)> =
        found.turns.iter().map(|turn| (turn.guest, turn.gives_up)).collect();
    assert_eq!(turns, [(0, true), (1, false), (0, false)]);
    assert_eq!(gpus_of(&found.turns[2].tuned.after, &house.topology), second);
    // One that runs gives up nothing while the other one waits.
    changes[0].is_off = false;
    let found = house.several(&changes, &[]).unwrap();
    assert_eq!((found.turns[0].guest, found.turns[0].gives_up), (1, true));
    changes[1].is_off = false;
    let refused = house.several(&changes, &[]).unwrap_err();
    assert!(matches!(refused, NoSeveral::Runs { .. }), "{refused:?}");
}

#[test]
fn guests_move_where_no_plan_has_their_own_gpus() {
    // Three pairs in one half of the board, of which none can grow in its place.
    let mut house = House::new("dgx-2");
    assert!((0..3).all(|_| house.add(&sized(2, 16))));
    let own: BTreeSet<Bdf> = (0..3).flat_map(|guest| house.gpus_of(guest)).collect();
    let half = house
        .topology
        .partitions()
        .iter()
        .find(|one| one.gpus.len() == 8 && own.iter().all(|gpu| one.gpus.contains(gpu)));
    assert!(half.is_some(), "{own:?}");
    let counts = [8, 4, 4];
    let changes: Vec<Resized<'_>> =
        (0..3).map(|guest| house.with(guest, GpuWish::Count(counts[guest]))).collect();
    let found = house.several(&changes, &[]).unwrap();
    house.judge(&changes, &found, "8, 4 and 4 of 2, 2 and 2");
    // Each that can keep its own does.
    let mut house = House::new("dgx-2");
    assert!(house.add(&sized(2, 16)) && house.add(&sized(8, 16)));
    let changes = [house.with(0, GpuWish::Count(4)), house.with(1, GpuWish::Count(4))];
    let found = house.several(&changes, &[]).unwrap();
    house.judge(&changes, &found, "4 and 4 of 2 and 8");
    for (guest, one) in changes.iter().enumerate() {
        let last = found.turns.iter().rfind(|turn| turn.guest == guest).unwrap();
        let (had, gets) = (gpus_of(one.xml, &house.topology), last.gpus.clone().unwrap());
        let kept = had.iter().filter(|gpu| gets.contains(gpu)).count();
        assert_eq!(kept, had.len().min(gets.len()), "{guest}: {had:?} {gets:?}");
    }
    // A number that no partition has is refused as without moving.
    let changes = [house.with(0, GpuWish::Count(14)), house.with(1, GpuWish::Count(1))];
    assert!(house.several(&changes, &[]).is_err());
}

#[test]
fn memory_for_gpus_is_exchanged_too() {
    let mut house = House::new("dual-socket");
    let gpus = house.topology.gpus().count();
    let most = 1 << 12;
    // As much memory as there is beside the other one.
    assert!(gpus >= 2 && house.add(&sized(2, 8)));
    let large = (1..most).rev().step_by(8).find(|gib| {
        plan(
            &house.topology,
            &house.held,
            &Request { pins: crate::request::PinPolicy::None, ..sized(0, *gib) },
        )
        .is_ok()
    });
    let floating = |gib| Request { pins: crate::request::PinPolicy::None, ..sized(0, gib) };
    assert!(house.add(&floating(large.unwrap())));
    let size = |gib| {
        let resize = Resize { memory: Some(MemSize::from_gib(gib)), ..Resize::default() };
        Items { resize: Some(resize), ..Items::default() }
    };
    let changes = [
        Resized { items: size(large.unwrap() / 2), ..house.with(0, GpuWish::Count(1)) },
        Resized { items: size(8), ..house.with(1, GpuWish::Count(1)) },
    ];
    if let Ok(found) = house.several(&changes, &[]) {
        house.judge(&changes, &found, "memory for a GPU");
    }
}

#[test]
fn nothing_is_held_twice_whatever_changes() {
    let mut state: u64 = 11;
    let mut below = |end: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let (mut planned, mut several_turns) = (0, 0);
    let each = cases(6) as usize;
    for name in ["dgx-2", "dgx-a100", "dgx-h100", "dgx-1", "dual-socket"] {
        for case in 0..each {
            let mut house = House::new(name);
            let sizes = [0, 1, 1, 2, 4, 8];
            for _ in 0..2 + below(3) {
                let gpus = sizes[below(6) as usize];
                house.add(&sized(gpus, 4 + below(12)));
            }
            let changes: Vec<Resized<'_>> = (0..house.guests.len())
                .map(|guest| house.with(guest, GpuWish::Count(sizes[below(6) as usize])))
                .collect();
            let new: Vec<Request> =
                (0..below(2)).map(|_| sized(sizes[below(6) as usize], 8)).collect();
            let what = format!("{name}, case {case}");
            let Ok(found) = house.several(&changes, &new) else { continue };
            planned += 1;
            several_turns += usize::from(found.turns.len() > 1);
            house.judge(&changes, &found, &what);
        }
    }
    assert!(
        planned > each && several_turns >= each / 2,
        "{planned} planned, {several_turns} of several"
    );
}
