//! The steps on a Fabric Manager in memory with configured answers.

use super::*;
use crate::apply::{PartitionChange, Step, StepError};
use gpuvm_core::fabric::{Code, ListedGpu, Pauses, RestoreList};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// A Fabric Manager with partition 1 of modules 1 to 4, and 3 and 4 of two of them each.
#[derive(Default)]
struct Fake {
    active: RefCell<BTreeSet<u32>>,
    calls: RefCell<Vec<String>>,
    /// The results of calls, by number: a code, and whether the change is made anyway.
    codes: Vec<(usize, i32, bool)>,
    /// The call from which it is unreachable.
    away_from: Cell<Option<usize>>,
    /// How many GPUs partition 3 has.
    narrow: Cell<bool>,
}

impl Fake {
    /// Records a call; returns its result, and whether the change is made.
    fn call(&self, call: String) -> (Result<(), ManagerRefusal>, bool) {
        let number = self.calls.borrow().len();
        let name = call.clone();
        self.calls.borrow_mut().push(call);
        let refuse = |code| Err(ManagerRefusal::Call { call: name, code: Code(code) });
        if self.away_from.get().is_some_and(|from| number >= from) {
            return (refuse(-9), false);
        }
        match self.codes.iter().find(|(at, ..)| *at == number) {
            Some((_, 0, done)) => (Ok(()), *done),
            Some((_, code, done)) => (refuse(*code), *done),
            None => (Ok(()), true),
        }
    }
}

impl Partitions for Fake {
    fn list(&self) -> Result<Vec<Listed>, ManagerRefusal> {
        self.call("list".into()).0?;
        let narrow: &[u32] = if self.narrow.get() { &[1] } else { &[1, 3] };
        let sets = [(1, &[1, 2, 3, 4][..]), (3, narrow), (4, &[2, 4])];
        let gpu = |&module: &u32| ListedGpu { module, bus: None, links: 18, most: 18 };
        let active = self.active.borrow();
        let listed = |(id, gpus): (u32, &[u32])| Listed {
            id,
            active: active.contains(&id),
            gpus: gpus.iter().map(gpu).collect(),
        };
        Ok(sets.map(listed).to_vec())
    }
    fn activate(&self, partition: u32, _: &[Bdf], _: Stop<'_>) -> Result<(), ManagerRefusal> {
        let (answer, done) = self.call(format!("activate {partition}"));
        if done {
            self.active.borrow_mut().insert(partition);
        }
        answer
    }
    fn deactivate(&self, partition: u32, _: Stop<'_>) -> Result<(), ManagerRefusal> {
        let (answer, done) = self.call(format!("deactivate {partition}"));
        if done {
            self.active.borrow_mut().remove(&partition);
        }
        answer
    }
    fn pauses(&self) -> Pauses {
        let ms = Duration::from_millis;
        Pauses::new(ms(1), ms(1), ms(3))
    }
}

/// An observer with an optional signal.
#[derive(Default)]
struct Watch {
    notes: Vec<String>,
    signal: bool,
}

impl Observer for Watch {
    fn doing(&mut self, _: &Step) {}
    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }
    fn undoing(&mut self, _: &Step) {}
    fn interrupted(&mut self) -> Option<String> {
        self.signal.then(|| "SIGINT".to_owned())
    }
}

/// Partition 3 for domain `u`.
fn step() -> PartitionStep {
    let gpu = |module, bus| PartitionGpu { module, bdf: Bdf::new(0, bus, 0, 0).unwrap() };
    PartitionStep::new(3, vec![gpu(1, 0x9d), gpu(3, 0xc3)], "u".into())
}

struct End {
    result: Result<(), PartitionError>,
    /// Whether it was written down as begun.
    begun: bool,
    notes: Vec<String>,
    file: Vec<u32>,
}

struct Place(tempfile::TempDir);

impl Place {
    /// One where these are in the file, each with its domain.
    fn new(entries: &[(u32, &str)]) -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        let mut file = RestoreFile::lock(&place.path(), Duration::ZERO).unwrap();
        for (id, domain) in entries {
            let modules = if *id == 3 { [1, 3].into() } else { [*id].into() };
            let entry =
                RestoreEntry { id: *id, modules, domain: (*domain).into(), vfs: Vec::new() };
            file.write(file.list().with(entry)).unwrap();
        }
        place
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("fabric.json")
    }

    fn list(&self) -> RestoreList {
        RestoreFile::read(&self.path()).unwrap()
    }

    /// Does something with a Fabric Manager; the guest `x` has these functions.
    fn with(
        &self,
        fake: &Fake,
        held: &[Bdf],
        mut watch: Watch,
        work: impl FnOnce(&Switch<'_>, &mut Watched<'_>, Made<'_>) -> Result<(), PartitionError>,
    ) -> End {
        let guests = |functions: &[Bdf]| match functions.iter().find(|bdf| held.contains(bdf)) {
            Some(&bdf) => Err(BindError::InUse { bdf, by: "domain `x`, which runs".into() }),
            None => Ok(()),
        };
        let wait = Duration::ZERO;
        let switch = Switch { manager: fake, file: &self.path(), wait, guests: &guests };
        let mut begun = false;
        let mut made = |identity| {
            assert_eq!(identity, Identity::Partition { partition: 3 });
            begun = true;
            Ok(())
        };
        let result = work(&switch, &mut Watched(Some(&mut watch)), &mut made);
        let file = self.list().partitions.iter().map(|entry| entry.id).collect();
        End { result, begun, notes: watch.notes, file }
    }

    /// Activates partition 3.
    fn activate(&self, fake: &Fake) -> End {
        self.with(fake, &[], Watch::default(), |switch, watched, made| {
            switch.activate(&step(), watched, made)
        })
    }

    /// Deactivates partition 3; `may_wait`: its guest is off.
    fn deactivate(&self, fake: &Fake, may_wait: bool) -> End {
        self.with(fake, &[], Watch::default(), |switch, watched, made| {
            switch.deactivate(&PartitionStep { may_wait, ..step() }, watched, made)
        })
    }
}

/// A Fabric Manager where these are active.
fn active(ids: &[u32]) -> Fake {
    Fake { active: RefCell::new(ids.iter().copied().collect()), ..Fake::default() }
}

#[test]
fn a_partition_is_listed_activated_and_listed_again() {
    let (place, fake) = (Place::new(&[]), active(&[4]));
    let end = place.activate(&fake);
    end.result.unwrap();
    assert_eq!(*fake.calls.borrow(), ["list", "activate 3", "list"]);
    assert_eq!((end.begun, end.file, end.notes.len()), (true, vec![3], 0));
    assert_eq!(place.list().partitions, [step().entry()]);
    // Once more: it is this domain's.
    let end = place.activate(&fake);
    assert!(end.result.is_ok() && !end.begun, "nothing is begun, so nothing is undone");
    fake.calls.borrow_mut().clear();
    let end = place.deactivate(&fake, true);
    end.result.unwrap();
    assert_eq!(*fake.calls.borrow(), ["list", "deactivate 3", "list"]);
    assert_eq!((end.begun, end.file), (true, vec![]));
    let end = place.deactivate(&fake, false);
    assert!(end.result.is_ok() && !end.begun, "it is inactive");
    assert_eq!(*fake.active.borrow(), BTreeSet::from([4]));
}

#[test]
fn occupied_partitions_are_refused_before_any_step() {
    for (ids, entries, reason) in [
        (&[3][..], &[][..], "NVLink partition 3 is active, and no running domain uses it"),
        (&[3], &[(3, "v")], "NVLink partition 3 is active, and no running domain uses it"),
        (&[1], &[(3, "u")], "shares GPUs with partition 1, which is active for no running domain"),
    ] {
        let (place, fake) = (Place::new(entries), active(ids));
        let end = place.activate(&fake);
        let error = end.result.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert!(!end.begun && !error.may_have_done());
        assert_eq!(*fake.calls.borrow(), ["list"]);
        assert_eq!(end.file.len(), entries.len(), "the file has changed");
    }
    let (place, fake) = (Place::new(&[]), active(&[]));
    fake.narrow.set(true);
    let error = place.activate(&fake).result.unwrap_err().to_string();
    assert_eq!(error, "NVLink partition 3 has module 1; it had modules 1, 3 when this was planned");
    let held = [step().gpus[1].bdf];
    let end = place.with(&fake, &held, Watch::default(), |s, w, m| s.activate(&step(), w, m));
    let error = StepError::from(end.result.unwrap_err());
    assert_eq!(error.to_string(), "0000:c3:00.0 is in use by domain `x`, which runs");
}

#[test]
fn in_use_is_success_where_the_list_says_active() {
    for code in [-7, -17] {
        // Active although it was not before: it was activated in between, or the answer was lost.
        let place = Place::new(&[]);
        let end = place.activate(&Fake { codes: vec![(1, code, true)], ..Fake::default() });
        end.result.unwrap();
        assert_eq!((end.begun, end.file, end.notes.len()), (true, vec![3], 1));
        assert!(end.notes[0].contains(&format!("({code}), and lists it as active")));
        let end =
            Place::new(&[]).activate(&Fake { codes: vec![(1, code, false)], ..Fake::default() });
        let error = end.result.unwrap_err();
        assert!(error.to_string().contains(&format!("({code})")) && !error.may_have_done());
        assert_eq!(end.file, [0; 0], "it is not active");
    }
    for code in [-4, -18] {
        let (place, mut fake) = (Place::new(&[(3, "u")]), active(&[3]));
        fake.codes = vec![(1, code, true)];
        let end = place.deactivate(&fake, false);
        assert!(end.result.is_ok() && end.file.is_empty());
        let (place, mut fake) = (Place::new(&[(3, "u")]), active(&[3]));
        fake.codes = vec![(1, code, false)];
        let end = place.deactivate(&fake, false);
        assert!(end.result.is_err() && end.file == [3]);
    }
}

#[test]
fn the_list_is_the_proof() {
    let lies = |active_before: &[u32]| Fake {
        codes: vec![(1, 0, false)],
        active: RefCell::new(active_before.iter().copied().collect()),
        ..Fake::default()
    };
    let end = Place::new(&[]).activate(&lies(&[]));
    let error = end.result.unwrap_err();
    assert!(error.to_string().ends_with("lists NVLink partition 3 as inactive"), "{error}");
    assert_eq!((end.file.len(), error.may_have_done()), (0, false));
    let end = Place::new(&[(3, "u")]).deactivate(&lies(&[3]), false);
    let error = end.result.unwrap_err().to_string();
    assert!(error.ends_with("lists NVLink partition 3 as active") && end.file == [3], "{error}");
}

#[test]
fn a_failure_in_the_middle_is_undone_where_it_may_have_been_done() {
    // NVLinks could not be trained, and the partition counts as active.
    let place = Place::new(&[]);
    let fake = Fake { codes: vec![(1, -10, true)], ..Fake::default() };
    let end = place.activate(&fake);
    let error = end.result.unwrap_err();
    assert!(error.may_have_done() && end.begun && end.file == [3], "{error}");
    let undone = place.with(&fake, &[], Watch::default(), |s, _, _| s.undo_activation(&step()));
    assert!(undone.result.is_ok() && undone.file.is_empty());
    assert!(fake.active.borrow().is_empty());
    // The same if it does not: nothing is left to undo.
    let end = Place::new(&[]).activate(&Fake { codes: vec![(1, -10, false)], ..Fake::default() });
    assert!(!end.result.unwrap_err().may_have_done() && end.file.is_empty());
    // Unreachable after the activation: the state is unknown.
    let fake = Fake { away_from: Cell::new(Some(2)), ..Fake::default() };
    let place = Place::new(&[]);
    let end = place.activate(&fake);
    assert!(end.result.unwrap_err().may_have_done() && end.file == [3]);
    let undone = place.with(&fake, &[], Watch::default(), |s, _, _| s.undo_activation(&step()));
    assert!(matches!(undone.result, Err(PartitionError::Manager(_))), "the journal stays");
    assert_eq!(undone.file, [3]);
}

#[test]
fn partitions_taken_since_are_not_undone() {
    let (place, fake) = (Place::new(&[(3, "v")]), active(&[3]));
    let undone = place.with(&fake, &[], Watch::default(), |s, _, _| s.undo_activation(&step()));
    let error = StepError::from(undone.result.unwrap_err());
    assert!(error.is_handed_over() && fake.active.borrow().contains(&3), "{error}");
    let held = [step().gpus[0].bdf];
    let (place, fake) = (Place::new(&[(3, "u")]), active(&[3]));
    let undone = place.with(&fake, &held, Watch::default(), |s, _, _| s.undo_activation(&step()));
    let error = StepError::from(undone.result.unwrap_err());
    assert!(error.is_handed_over() && fake.active.borrow().contains(&3), "{error}");
    // A partition with its GPUs was activated since.
    let (place, fake) = (Place::new(&[]), active(&[1]));
    let undone = place.with(&fake, &[], Watch::default(), |s, _, _| s.undo_deactivation(&step()));
    assert!(StepError::from(undone.result.unwrap_err()).is_handed_over());
    let fake = active(&[4]);
    let undone = place.with(&fake, &[], Watch::default(), |s, _, _| s.undo_deactivation(&step()));
    assert!(undone.result.is_ok() && undone.file == [3] && fake.active.borrow().contains(&3));
}

#[test]
fn a_starting_fabric_manager_is_waited_for() {
    for code in [-8, -15, -22] {
        let codes = vec![(0, code, false), (1, code, false), (3, code, false)];
        let fake = Fake { codes, ..Fake::default() };
        let end = Place::new(&[]).activate(&fake);
        end.result.unwrap();
        let calls = ["list", "list", "list", "activate 3", "activate 3", "list"];
        assert_eq!((&fake.calls.borrow()[..], end.notes.len()), (&calls.map(str::to_owned)[..], 2));
    }
    let codes = (0..9).map(|number| (number, -8, false)).collect();
    let fake = Fake { codes, ..Fake::default() };
    let error = Place::new(&[]).activate(&fake).result.unwrap_err();
    assert!(error.to_string().contains("NOT_CONFIGURED (-8)"), "{error}");
    assert_eq!(fake.calls.borrow().len(), 4, "three pauses");
    let fake = Fake { codes: vec![(0, -8, false)], ..Fake::default() };
    let watch = Watch { signal: true, ..Watch::default() };
    let end = Place::new(&[]).with(&fake, &[], watch, |s, w, m| s.activate(&step(), w, m));
    let error = StepError::from(end.result.unwrap_err());
    assert!(matches!(error, StepError::Signal { .. }), "{error}");
}

#[test]
fn a_stopped_guests_partition_is_left_for_later_without_fabric_manager() {
    let away = || Fake { away_from: Cell::new(Some(0)), ..active(&[3]) };
    let place = Place::new(&[(3, "u")]);
    let end = place.deactivate(&away(), true);
    end.result.unwrap();
    assert_eq!((end.begun, end.file), (false, vec![3]), "it is still to be done");
    let note = "NVLink partition 3 (modules 1, 3) stays active until Fabric Manager is asked again";
    assert!(end.notes[0].starts_with(note), "{:?}", end.notes);
    let end = place.deactivate(&away(), false);
    assert!(matches!(end.result, Err(PartitionError::Manager(_))));
    // Nor is the partition of a running guest.
    let held = [step().gpus[0].bdf];
    let may_wait = PartitionStep { may_wait: true, ..step() };
    let end =
        place.with(&active(&[3]), &held, Watch::default(), |s, w, m| s.deactivate(&may_wait, w, m));
    let error = StepError::from(end.result.unwrap_err());
    assert!(error.lets_be(&Step::Partition(PartitionChange::Deactivate(may_wait))), "{error}");
}

#[test]
fn the_steps_are_said_and_written_in_a_stable_form() {
    let (on, off) = (
        Step::Partition(PartitionChange::Activate(step())),
        Step::Partition(PartitionChange::Deactivate(step())),
    );
    assert_eq!(on.to_string(), "activate NVLink partition 3 (modules 1, 3)");
    assert_eq!(off.to_string(), "deactivate NVLink partition 3 (modules 1, 3)");
    let text = r#"{"step":"activate-partition","partition":3,"gpus":[{"module":1,"bdf":"0000:9d:00.0"},{"module":3,"bdf":"0000:c3:00.0"}],"domain":"u"}"#;
    assert_eq!(serde_json::to_string(&on).unwrap(), text);
    assert_eq!(serde_json::from_str::<Step>(text).unwrap(), on);
    assert_eq!((on.reversed(), off.reversed()), (Some(off.clone()), Some(on.clone())));
    assert!(on.is_of_machine() && on.ends_with_boot() && on.is_undone() && !on.takes_away());
    assert!(off.takes_away() && off.gives_back() && off.is_undone() && !off.is_final());
    let made = serde_json::to_string(&Identity::Partition { partition: 3 }).unwrap();
    assert_eq!(made, r#"{"partition":{"partition":3}}"#);
}

#[test]
fn a_guest_that_starts_while_fabric_manager_is_waited_for_keeps_its_partition() {
    // Checked three times: at the start, before the journal record, and before each attempt.
    for free in 0..4 {
        let (place, mut fake) = (Place::new(&[(3, "u")]), active(&[3]));
        fake.codes = vec![(1, -8, false)];
        let looks = Cell::new(0);
        let guests = |functions: &[Bdf]| {
            looks.set(looks.get() + 1);
            if looks.get() > free {
                Err(BindError::InUse { bdf: functions[0], by: "domain `x`".into() })
            } else {
                Ok(())
            }
        };
        let path = place.path();
        let switch = Switch { manager: &fake, file: &path, wait: Duration::ZERO, guests: &guests };
        let mut watch = Watch::default();
        let ended = switch.deactivate(&step(), &mut Watched(Some(&mut watch)), &mut |_| Ok(()));
        assert!(matches!(ended, Err(PartitionError::Guest(_))), "{free}: {ended:?}");
        assert!(fake.active.borrow().contains(&3), "{free}: it is a guest's");
        assert_eq!(place.list().partitions.len(), 1, "{free}");
    }
}

#[test]
fn an_entry_now_of_other_gpus_stays() {
    let place = Place::new(&[]);
    let mut file = RestoreFile::lock(&place.path(), Duration::ZERO).unwrap();
    let other = RestoreEntry { id: 3, modules: [5, 7].into(), domain: "v".into(), vfs: Vec::new() };
    file.write(file.list().with(other.clone())).unwrap();
    drop(file);
    place.deactivate(&active(&[]), false).result.unwrap();
    assert_eq!(place.list().partitions, [other]);
}
