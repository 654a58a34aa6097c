//! Virtual functions of a recorded card, with guests on a hypervisor in memory. None is created:
//! this machine has no such card.

use super::{Functions, set_functions};
use crate::bdf::Bdf;
use crate::error::{Error, Result};
use crate::network::Card;
use crate::reporter::Answer;
use crate::session::{Confirm, Done, Manner, Of, Session};
use crate::stage::fake::Fake;
use crate::stage::{Stage, UUID, manner};
use gpuvm_core::topology::file::from_json;
use std::cell::Cell;

/// The host whose card 3b:00.0 has four virtual functions, of the eight that it can have.
fn stage(answer: Answer) -> Stage {
    let mut stage = Stage::who_says(answer);
    let host = from_json(include_str!("../../../topologies/dual-socket.json")).unwrap();
    stage.world = stage.world.with_topology(host);
    stage
}

/// Adds a guest that has the first of them.
fn put_guest(fake: &Fake, runs: bool) {
    fake.put_xml(
        &format!(
            "<domain type='test'><name>a</name><uuid>{UUID}</uuid><memory>1024</memory><vcpu>1</vcpu>\
             <os><type>hvm</type></os><devices><hostdev mode='subsystem' type='pci' managed='yes'>\
             <source><address domain='0x0000' bus='0x3b' slot='0x00' function='0x2'/></source>\
             </hostdev></devices></domain>"
        ),
        runs,
    );
}

/// Sets their number; something happens once the question is answered, before the lock is taken.
fn set(stage: &Stage, count: u32, between: impl Fn(&Fake)) -> Result<Done<Bdf>> {
    let card = Card::Netdev("ens1f0np0".into());
    let wanted = Functions { card, count, host_drivers: false, at_boot: None };
    let happened = Cell::new(false);
    let manner = Manner { of: Of::HostWithGuests, ..manner(Confirm::IfNeeded) };
    Session::begin(&stage.world, manner)?.run(|world| {
        if stage.caller.heard("ask") > 0 && !happened.replace(true) {
            between(&stage.fake);
        }
        set_functions(world, &wanted)
    })
}

fn code(error: &Error) -> Option<&'static str> {
    error.refusal().map(|refusal| refusal.code)
}

#[test]
fn matching_settings_are_neither_asked_nor_changed() {
    let stage = stage(Answer::Nobody);
    put_guest(&stage.fake, true);
    assert!(!set(&stage, 4, |_| {}).unwrap().made);
    assert_eq!((stage.caller.heard("ask"), stage.journals()), (0, 0));
}

#[test]
fn those_that_are_there_go_only_after_a_yes() {
    for (answer, expected) in [(Answer::No, "declined"), (Answer::Nobody, "usage")] {
        let stage = stage(answer);
        assert_eq!(code(&set(&stage, 2, |_| {}).unwrap_err()), Some(expected));
        assert_eq!((stage.caller.heard("ask"), stage.journals()), (1, 0));
    }
}

#[test]
fn a_guest_that_is_started_in_between_keeps_its_own() {
    let stage = stage(Answer::Yes);
    put_guest(&stage.fake, false);
    let error = set(&stage, 2, |fake| put_guest(fake, true)).unwrap_err();
    assert_eq!(code(&error), Some("card-in-use"), "{error}");
    assert!(error.to_string().contains("0000:3b:00.2 is used by"), "{error}");
    assert_eq!((stage.caller.heard("ask"), stage.journals()), (1, 0));
    // A stopped guest does not prevent it, and is reported once.
    assert_eq!(stage.caller.heard("domain `a`, which is off, has 0000:3b:00.2"), 1);
}
