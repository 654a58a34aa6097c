//! Tuning on a hypervisor in memory, with the processors of a DGX-2: changes by others between the
//! question and the lock.

use super::*;
use crate::apply::ApplyError;
use crate::error::Error;
use crate::hypervisor::HypervisorErrorKind;
use crate::reporter::Answer;
use crate::session::{Confirm, Done, Session};
use crate::stage::fake::Fake;
use crate::stage::{Stage, UUID, manner};
use crate::undo::{self, Undo};
use gpuvm_core::topology::file::from_json;
use gpuvm_core::tune::Item;
use std::cell::Cell;

const OTHER: &str = "11111111-2222-4333-8444-666666666666";

fn floating(name: &str, uuid: &str) -> String {
    format!(
        "<domain type='kvm'>\n  <name>{name}</name>\n  <uuid>{uuid}</uuid>\n  <memory \
         unit='KiB'>4194304</memory>\n  <vcpu>4</vcpu>\n  <os>\n    <type arch='x86_64' \
         machine='pc-q35-8.2'>hvm</type>\n  </os>\n</domain>\n"
    )
}

/// Domain `a` on a DGX-2, with a caller who answers yes.
fn stage(runs: bool) -> Stage {
    let mut stage = Stage::who_says(Answer::Yes);
    let host = from_json(include_str!("../../../topologies/dgx-2.json")).unwrap();
    stage.world = stage.world.with_topology(host);
    stage.fake.put_xml(&floating("a", UUID), runs);
    stage
}

/// The request to pin the vCPUs of these domains.
fn pins(names: &[&str]) -> Tune {
    Tune {
        sources: names.iter().map(|&name| Source::Domain(name.into())).collect(),
        items: Items { pins: Item::On, ..Items::default() },
        ..Tune::default()
    }
}

/// Tunes; something happens once the question is answered, before the lock is taken.
fn run(stage: &Stage, wanted: &Tune, between: impl Fn(&Fake)) -> Result<Done<Tuning>> {
    let happened = Cell::new(false);
    Session::begin(&stage.world, manner(Confirm::Ask))?.run(|world| {
        if stage.caller.heard("ask") > 0 && !happened.replace(true) {
            between(&stage.fake);
        }
        tune(world, wanted)
    })
}

/// The number of changes in a domain's history.
fn kept(stage: &Stage, uuid: &str) -> usize {
    stage.world.history(uuid).unwrap().entries.len()
}

fn is_pinned(xml: &str) -> bool {
    xml.contains("<vcpupin ")
}

/// Asserts that domain `a` is unchanged and has no history.
fn assert_untouched(stage: &Stage) {
    assert_eq!(stage.fake.definition("a"), floating("a", UUID));
    assert_eq!((kept(stage, UUID), stage.journals()), (0, 0));
}

#[test]
fn a_confirmed_change_is_made_once_recorded_and_undone() {
    let stage = stage(false);
    assert!(run(&stage, &pins(&["a"]), |_| {}).unwrap().made);
    assert!(is_pinned(&stage.fake.definition("a")));
    assert_eq!((stage.caller.heard("ask"), kept(&stage, UUID), stage.journals()), (1, 1, 0));
    let calls = stage.fake.calls.get();
    let again = run(&stage, &pins(&["a"]), |_| {}).unwrap();
    assert!(!again.made && !again.change.about.differs());
    assert_eq!((stage.caller.heard("ask"), kept(&stage, UUID)), (1, 1));
    assert_eq!(stage.fake.calls.get(), calls, "it was defined again");
    let wanted = Undo { name: "a".into(), force: false, edited: false };
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    let undone = undo::run(&mut session, &stage.world, &wanted).unwrap().unwrap();
    assert_eq!((undone.number, undone.waits_for_start), (1, false));
    assert_untouched(&stage);
}

#[test]
fn a_domain_that_is_edited_meanwhile_keeps_the_edit() {
    let stage = stage(false);
    let edited = floating("a", UUID).replace("<vcpu>4<", "<vcpu>6<");
    let error = run(&stage, &pins(&["a"]), |fake| fake.put_xml(&edited, false)).unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    assert_eq!(stage.fake.definition("a"), edited);
    assert_eq!((kept(&stage, UUID), stage.journals()), (0, 0));
}

#[test]
fn an_edit_that_makes_it_so_leaves_nothing_to_do() {
    let stage = stage(false);
    let tuned = look(&stage.world, &pins(&["a"])).unwrap();
    let tuned = tuned.tuned[0].as_ref().unwrap().after.text().to_owned();
    let done = run(&stage, &pins(&["a"]), |fake| fake.put_xml(&tuned, false)).unwrap();
    assert!(!done.made);
    assert_eq!((stage.fake.calls.get(), kept(&stage, UUID)), (0, 0));
}

#[test]
fn one_that_is_started_meanwhile_is_changed_for_its_next_start() {
    let stage = stage(false);
    let start = |fake: &Fake| fake.put_xml(&floating("a", UUID), true);
    let done = run(&stage, &pins(&["a"]), start).unwrap();
    assert!(done.made && is_pinned(&stage.fake.definition("a")));
    assert!(done.change.about.domains(false)[0].waits_for_start);
}

#[test]
fn a_guest_started_since_the_question_is_not_changed() {
    let stage = stage(false);
    let wanted = Tune { live: true, ..pins(&["a"]) };
    let start = |fake: &Fake| fake.put_xml(&floating("a", UUID), true);
    let error = run(&stage, &wanted, start).unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    assert_eq!(stage.fake.calls.get(), 0);
    assert_untouched(&stage);
}

#[test]
fn of_one_that_is_stopped_meanwhile_only_the_definition_is_changed() {
    let pinned = |stops: bool| {
        let stage = stage(true);
        let wanted = Tune { live: true, ..pins(&["a"]) };
        let stop = |fake: &Fake| {
            if stops {
                fake.put_xml(&floating("a", UUID), false);
            }
        };
        assert!(run(&stage, &wanted, stop).unwrap().made);
        assert!(is_pinned(&stage.fake.definition("a")));
        stage.fake.calls.get()
    };
    assert_eq!((pinned(true), pinned(false)), (1, 1 + 4));
}

#[test]
fn one_that_is_deleted_meanwhile_is_missed_before_anything_is_done() {
    let stage = stage(false);
    let delete = |fake: &Fake| drop(fake.domains.borrow_mut().remove("a"));
    let error = run(&stage, &pins(&["a"]), delete).unwrap_err();
    assert_eq!(error.refusal().map(|refusal| refusal.code), Some("not-found"), "{error}");
    assert_eq!((stage.fake.calls.get(), stage.journals()), (0, 0));
}

#[test]
fn one_of_several_that_is_refused_keeps_those_that_are_named_and_not_all() {
    for all_domains in [false, true] {
        let stage = stage(false);
        let foreign = floating("b", OTHER).replace("type='kvm'", "type='xen'");
        stage.fake.put_xml(&foreign, false);
        let named = if all_domains { &[][..] } else { &["a", "b"] };
        let done = run(&stage, &Tune { all_domains, ..pins(named) }, |_| {});
        assert_eq!(stage.fake.definition("b"), foreign);
        if all_domains {
            let done = done.unwrap();
            assert!(done.made && !done.change.about.is_whole());
            assert!(is_pinned(&stage.fake.definition("a")));
            assert_eq!(stage.caller.heard("warning: domain `b` cannot be tuned"), 1);
        } else {
            let error = done.unwrap_err();
            assert!(error.whole().contains("domain `b` cannot be tuned"), "{error}");
            assert_eq!(stage.caller.heard("ask"), 0);
            assert_untouched(&stage);
        }
    }
}

#[test]
fn several_are_tuned_beside_each_other_and_one_that_is_edited_keeps_all() {
    let stage = stage(false);
    stage.fake.put_xml(&floating("b", OTHER), false);
    let edited = floating("b", OTHER).replace("<vcpu>4<", "<vcpu>6<");
    let error = run(&stage, &pins(&["a", "b"]), |fake| fake.put_xml(&edited, false)).unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    assert_untouched(&stage);
    stage.fake.put_xml(&floating("b", OTHER), false);
    Session::begin(&stage.world, manner(Confirm::Given))
        .unwrap()
        .run(|world| tune(world, &pins(&["a", "b"])))
        .unwrap();
    assert_eq!((kept(&stage, UUID), kept(&stage, OTHER)), (1, 1));
    let pcpus = |name: &str| -> Vec<String> {
        let xml = stage.fake.definition(name);
        let pins = xml.split("cpuset='").skip(1);
        pins.map(|rest| rest.split('\'').next().unwrap().to_owned()).collect()
    };
    let (a, b) = (pcpus("a"), pcpus("b"));
    assert!(!a.is_empty() && a.iter().all(|pcpu| !b.contains(pcpu)), "{a:?} {b:?}");
}

#[test]
fn a_hypervisor_that_goes_away_leaves_the_domain_as_it_was() {
    let before = stage(false);
    let error = run(&before, &pins(&["a"]), |fake| fake.gone.set(true)).unwrap_err();
    assert!(
        matches!(&error, Error::Hypervisor(error) if error.kind == HypervisorErrorKind::NoConnection),
        "{error}"
    );
    before.fake.gone.set(false);
    assert_untouched(&before);
    let at_it = stage(false);
    at_it.fake.away_from.set(Some(0));
    let error = run(&at_it, &pins(&["a"]), |_| {}).unwrap_err();
    let Error::Apply(applied) = &error else { panic!("{error}") };
    assert_eq!(ApplyError::needs_recovery(applied), at_it.journals() == 1, "{error}");
    at_it.fake.away_from.set(None);
    at_it.recover();
    assert_untouched(&at_it);
    assert!(run(&at_it, &pins(&["a"]), |_| {}).unwrap().made);
}

#[test]
fn a_definition_that_does_not_outlive_its_domain_and_a_file_among_domains_are_refused() {
    let stage = stage(false);
    let code = |wanted: &Tune| {
        let error = look(&stage.world, wanted).unwrap_err();
        error.refusal().map(|refusal| refusal.code)
    };
    stage.fake.put_xml(&floating("b", OTHER), true);
    stage.fake.transient.borrow_mut().insert("b".into());
    assert_eq!(code(&pins(&["b"])), Some("tuned-no-definition"));
    let all = look(&stage.world, &Tune { all_domains: true, ..pins(&[]) }).unwrap();
    assert_eq!(all.subjects.all.len(), 1);
    assert_eq!(stage.caller.heard("warning: b: skipped, since it has no persistent definition"), 1);
    assert_eq!(code(&pins(&["absent"])), Some("not-found"));
    let mixed = Tune {
        sources: vec![Source::Domain("a".into()), Source::File("b.xml".into())],
        ..pins(&[])
    };
    assert_eq!(code(&mixed), Some("usage"));
    let convert = Convert { disk: None, format: crate::domain::guest::DiskFormat::Raw };
    let file =
        Tune { sources: vec![Source::File("b.xml".into())], convert: vec![convert], ..pins(&[]) };
    assert_eq!(code(&file), Some("usage"));
}
