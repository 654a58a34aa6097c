//! Networks on a hypervisor in memory: changes by others between the question and the lock, a
//! network that disappears, repeated runs.

use super::create::{NetworkPlan, NewNetwork, create, make};
use super::delete::{delete, take_away};
use super::undo::{take_back, undo};
use super::{doctor, facts, on_demand, refuse_unfit};
use crate::apply::HostLock;
use crate::change::Hold;
use crate::domain::nic_request::NicWish;
use crate::error::{Error, Result};
use crate::hypervisor::HypervisorErrorKind;
use crate::network::{Kind, Network, Problem};
use crate::reporter::Answer;
use crate::session::{Confirm, Done, Session};
use crate::stage::fake::Fake;
use crate::stage::{Stage, UUID, manner};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::time::Duration;

/// An existing network, of libvirt's kind `nat`.
const LAB: &str = "<network><name>lab</name><uuid>aaaaaaaa-2222-4333-8444-555555555555</uuid>\
    <forward mode='nat'/><bridge name='labbr' stp='on' delay='0'/>\
    <ip address='10.88.0.1' netmask='255.255.255.0'><dhcp>\
    <range start='10.88.0.2' end='10.88.0.254'/></dhcp></ip></network>";

/// The request for network `lab` with these addresses, replacing an existing one.
fn lab(range: &str) -> NewNetwork {
    NewNetwork {
        name: "lab".into(),
        kind: Some(Kind::Nat),
        mode: None,
        nic: None,
        bridge: None,
        range: Some(range.parse().unwrap()),
        dhcp: None,
        statics: Vec::new(),
        mtu: None,
        vfs: None,
        program: None,
        replace: true,
        autostart: true,
        start: true,
    }
}

/// Adds a guest with a NIC on `lab`.
fn put_guest(fake: &Fake, runs: bool) {
    fake.put_xml(
        &format!(
            "<domain type='test'><name>a</name><uuid>{UUID}</uuid><memory>1024</memory><vcpu>1</vcpu>\
             <os><type>hvm</type></os><devices><interface type='network'>\
             <mac address='52:54:00:aa:00:07'/><source network='lab'/></interface></devices></domain>"
        ),
        runs,
    );
}

/// A stage on which `lab` is up, with a caller who answers this.
fn stage(answer: Answer) -> Stage {
    let stage = Stage::who_says(answer);
    stage.fake.put_network(LAB, true);
    stage
}

/// Makes a change; something happens before it is planned for the second time, with the lock held.
fn run<T>(
    stage: &Stage,
    plan: impl Fn(&crate::world::World) -> Result<crate::change::Change<T>>,
    between: impl Fn(&Fake),
) -> Result<Done<T>> {
    let planned = Cell::new(0);
    Session::begin(&stage.world, manner(Confirm::Ask))?.run(|world| {
        if planned.replace(planned.get() + 1) == 1 {
            between(&stage.fake);
        }
        plan(world)
    })
}

/// Makes `lab` with these addresses.
fn made(stage: &Stage, range: &str) -> Result<Done<NetworkPlan>> {
    run(stage, |world| create(world, &lab(range)), |_| {})
}

fn code(error: &Error) -> Option<&'static str> {
    error.refusal().map(|refusal| refusal.code)
}

/// Asserts that nothing was done to `lab` and nothing is left.
fn untouched(stage: &Stage) {
    let lab = stage.fake.network_now("lab").unwrap();
    assert_eq!((lab.xml.as_str(), lab.active), (LAB, true));
    assert_eq!((stage.fake.calls.get(), stage.journals()), (0, 0));
    assert!(!stage.dir.path().join("networks").exists(), "something is kept");
}

#[test]
fn a_second_run_finds_all_as_it_is_wanted() {
    let stage = Stage::who_says(Answer::Nobody);
    let first = made(&stage, "10.88.0.0/24").unwrap();
    let lab = stage.fake.network_now("lab").unwrap();
    assert!(first.made && lab.active && lab.autostart);
    let calls = stage.fake.calls.get();
    assert!(!made(&stage, "10.88.0.0/24").unwrap().made);
    assert_eq!(stage.fake.calls.get(), calls);
    assert_eq!(stage.caller.heard("nothing is checked against them"), 1);
}

#[test]
fn one_that_is_there_is_replaced_only_where_that_is_wanted() {
    let stage = stage(Answer::Yes);
    let wanted = NewNetwork { replace: false, ..lab("10.89.0.0/24") };
    let error = run(&stage, |world| create(world, &wanted), |_| {}).unwrap_err();
    let Error::Around { source, .. } = &error else { panic!("{error:?}") };
    let Error::Network(refused) = &**source else { panic!("{error:?}") };
    assert_eq!(refused.problems, [Problem::Exists]);
    untouched(&stage);
}

#[test]
fn a_running_guest_is_asked_about_and_a_no_changes_nothing() {
    for (answer, expected) in [(Answer::No, "declined"), (Answer::Nobody, "usage")] {
        let stage = stage(answer);
        put_guest(&stage.fake, true);
        assert_eq!(code(&made(&stage, "10.89.0.0/24").unwrap_err()), Some(expected));
        untouched(&stage);
    }
    let stage = stage(Answer::Yes);
    put_guest(&stage.fake, true);
    let done = made(&stage, "10.89.0.0/24").unwrap();
    assert_eq!(done.change.losses.len(), 1);
    assert_eq!(stage.caller.heard("ask"), 1);
    assert!(stage.fake.network_now("lab").unwrap().xml.contains("10.89.0.1"));
}

#[test]
fn a_guest_that_comes_in_between_keeps_its_link() {
    // Without a guest nothing is asked; a guest that appears in between causes the question.
    let appears = |fake: &Fake| put_guest(fake, true);
    let asked = stage(Answer::No);
    let changed = run(&asked, |world| create(world, &lab("10.89.0.0/24")), appears);
    assert_eq!(code(&changed.unwrap_err()), Some("declined"));
    untouched(&asked);
    let stage = stage(Answer::Yes);
    let deleted = run(&stage, |world| delete(world, "lab"), appears);
    let Error::Changed { what, again } = deleted.unwrap_err() else { panic!("it was deleted") };
    assert!(what.contains("cut the link 52:54:00:aa:00:07"), "{what}");
    assert_eq!(again, "gpuvm network delete lab");
    untouched(&stage);
}

#[test]
fn a_network_changed_in_between_is_not_deleted_and_restored_by_a_replacement() {
    let edited = LAB.replace("labbr", "otherbr");
    let edit = |fake: &Fake| fake.put_network(&edited, true);
    let asked = stage(Answer::Yes);
    let error = run(&asked, |world| delete(world, "lab"), edit).map(drop).unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    assert_eq!(asked.fake.network_now("lab").unwrap().xml, edited);
    assert_eq!((asked.fake.calls.get(), asked.journals()), (0, 0));
    // Nobody was asked: it is planned again from the current state.
    let unasked = stage(Answer::Nobody);
    let done = run(&unasked, |world| create(world, &lab("10.89.0.0/24")), edit).unwrap();
    assert_eq!(done.change.about.before.as_deref(), Some(edited.as_str()));
}

#[test]
fn one_without_a_definition_is_not_replaced() {
    let stage = stage(Answer::Yes);
    stage.fake.networks.borrow_mut().get_mut("lab").unwrap().persistent = false;
    assert_eq!(code(&made(&stage, "10.89.0.0/24").unwrap_err()), Some("network-transient"));
    untouched(&stage);
}

#[test]
fn a_hypervisor_that_goes_away_leaves_the_network_that_was_there() {
    let mut from = 0;
    loop {
        let stage = stage(Answer::Yes);
        stage.fake.away_from.set(Some(from));
        if made(&stage, "10.89.0.0/24").is_ok() {
            break;
        }
        stage.fake.away_from.set(None);
        stage.recover();
        let lab = stage.fake.network_now("lab").unwrap();
        // If links are cut already, an interrupted change is finished; otherwise it is undone.
        let is_new = lab.xml.contains("10.89.0.1");
        assert!(lab.xml == LAB || is_new, "away from call {from}: {}", lab.xml);
        assert_eq!((lab.active, lab.autostart), (true, is_new), "away from call {from}");
        assert_eq!(stage.journals(), 0, "away from call {from}");
        from += 1;
    }
    assert!(from >= 4, "stop, define, autostart, start: {from}");
}

#[test]
fn one_that_does_not_answer_is_an_error_before_anything_is_asked() {
    let stage = stage(Answer::Yes);
    stage.fake.gone.set(true);
    let errors = [
        made(&stage, "10.89.0.0/24").map(drop).unwrap_err(),
        run(&stage, |world| delete(world, "lab"), |_| {}).map(drop).unwrap_err(),
        facts::all(&stage.world).map(drop).unwrap_err(),
    ];
    for error in errors {
        let Error::Hypervisor(error) = error else { panic!("{error}") };
        assert_eq!(error.kind, HypervisorErrorKind::NoConnection);
    }
    stage.fake.gone.set(false);
    assert_eq!(stage.caller.heard("ask"), 0);
    untouched(&stage);
}

#[test]
fn a_deletion_is_undone_once() {
    let stage = stage(Answer::Yes);
    let left = run(&stage, |world| delete(world, "lab"), |_| {}).unwrap();
    assert!(left.change.about.is_kept && stage.fake.network_now("lab").is_none());
    assert_eq!(stage.caller.heard("ask"), 1);
    let again = run(&stage, |world| delete(world, "lab"), |_| {}).unwrap_err();
    assert_eq!(code(&again), Some("not-found"));
    assert!(run(&stage, |world| undo(world, "lab", false), |_| {}).unwrap().made);
    let lab = stage.fake.network_now("lab").unwrap();
    assert_eq!((lab.xml.as_str(), lab.active, lab.autostart), (LAB, true, false));
    let again = run(&stage, |world| undo(world, "lab", false), |_| {}).unwrap_err();
    assert_eq!(code(&again), Some("not-found"));
}

#[test]
fn later_edits_are_not_undone_without_force() {
    let stage = stage(Answer::Yes);
    made(&stage, "10.89.0.0/24").unwrap();
    put_guest(&stage.fake, true);
    let edit = |fake: &Fake| fake.put_network(&LAB.replace("10.88", "10.90"), true);
    let undone = run(&stage, |world| undo(world, "lab", false), edit);
    assert_eq!(code(&undone.unwrap_err()), Some("network-edited"));
    assert!(stage.fake.network_now("lab").unwrap().xml.contains("10.90.0.1"));
    let done = run(&stage, |world| undo(world, "lab", true), |_| {}).unwrap();
    assert_eq!((done.change.losses.len(), stage.caller.heard("ask")), (1, 2));
    assert_eq!(stage.fake.network_now("lab").unwrap().xml, LAB);
}

#[test]
fn networks_that_are_known_by_name_are_made_on_demand() {
    let stage = stage(Answer::Nobody);
    let demand = |names: &[&str]| {
        on_demand(names.iter().copied(), &*stage.fake, &stage.world).unwrap().len()
    };
    // Defined, autostarted, started, read back; a pool of virtual functions needs a card.
    assert_eq!(demand(&["default", "lab", "iovnet0", "unknown"]), 4);
    assert_eq!(demand(&["default", "private-net"]), 8);
    let wish = |text: &str| [text.parse::<NicWish>().unwrap()];
    assert!(refuse_unfit(&wish("lab,mtu=1400"), &*stage.fake).is_ok());
    let error = refuse_unfit(&wish("lab,vlan=5"), &*stage.fake).unwrap_err();
    assert_eq!(code(&error), Some("network-nic-setting"));
    assert!(refuse_unfit(&wish("iovnet0,mtu=1400"), &*stage.fake).is_err());
}

#[test]
fn reports_name_guests_and_broken_connections() {
    let stage = stage(Answer::Nobody);
    put_guest(&stage.fake, true);
    let rows = facts::all(&stage.world).unwrap();
    assert_eq!((rows.len(), rows[0].guests.len(), rows[0].active), (1, 1, true));
    assert_eq!(facts::one(&stage.world, "lab").unwrap().guests[0].domain, "a");
    assert_eq!(code(&facts::one(&stage.world, "x").unwrap_err()), Some("not-found"));
    let diagnose = || doctor::diagnose(&stage.world, "a", Duration::ZERO).unwrap();
    let well = diagnose();
    assert_eq!((well.broken, well.nics[0].network.as_deref()), (false, Some("lab")));
    stage.fake.networks.borrow_mut().clear();
    assert!(diagnose().broken, "its network is gone");
}

#[test]
fn a_wrong_name_is_reported_while_the_lock_is_held() {
    let stage = stage(Answer::Nobody);
    let _held = HostLock::take_in(stage.dir.path(), Duration::ZERO, |_| ControlFlow::Continue(()));
    let session = || Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    let wrong = [
        make(&mut session(), &NewNetwork { name: "no name".into(), ..lab("10.89.0.0/24") }).err(),
        make(&mut session(), &NewNetwork { replace: false, ..lab("10.89.0.0/24") }).err(),
        take_away(&mut session(), "none").err(),
        take_back(&mut session(), "lab", false).err(),
    ];
    for error in wrong {
        let error = error.unwrap();
        assert!(!matches!(error, Error::Lock(_)), "{error:?}");
    }
    let error = take_away(&mut session(), "lab").unwrap_err();
    assert!(matches!(error, Error::Lock(_)), "the lock is not held: {error:?}");
    untouched(&stage);
}

#[test]
fn the_answer_is_the_network_as_it_was_made_and_as_it_is() {
    let stage = Stage::who_says(Answer::Yes);
    for made in [true, false] {
        let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
        let answered = make(&mut session, &lab("10.88.0.0/24")).unwrap();
        assert_eq!(answered.done.made, made);
        assert_eq!(answered.done.change.hold, Hold::Answered);
        assert_eq!(answered.network.name, "lab");
        let now = stage.fake.network_now("lab").unwrap();
        assert_eq!(answered.network, Network::read(now.now()).unwrap(), "{made}");
    }
}
