//! The comparison on a hypervisor in memory, with changes by others meanwhile.

use super::{verify as compare, *};
use crate::error::coded;
use crate::hypervisor::HypervisorErrorKind;
use crate::reporter::Answer;
use crate::stage::{Stage, UUID};
use watch::Rounds;

const OTHER: &str = "11111111-2222-4333-8444-666666666666";

/// A definition with an agent that listens.
fn with_agent(vcpus: u32) -> String {
    format!(
        "<domain type='kvm'><name>a</name><uuid>{UUID}</uuid><memory>1048576</memory>\
         <vcpu>{vcpus}</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>\
         <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0' \
         state='connected'/></channel></devices></domain>"
    )
}

/// Domains `a` and `b`, both off.
fn stage() -> Stage {
    let stage = Stage::who_says(Answer::Nobody);
    stage.fake.put("a", UUID, false);
    stage.fake.put("b", OTHER, false);
    stage
}

fn verify(world: &World, wanted: &Verify) -> Result<Vec<Verified>> {
    compare(world, wanted).map(|compared| compared.all)
}

/// A request for all domains, or the one of this name, with a time limit for agents.
fn wanted(name: Option<&str>, seconds: u64) -> Verify {
    Verify {
        names: name.map(str::to_owned).into_iter().collect(),
        agent_wait: Duration::from_secs(seconds),
        sample: Duration::ZERO,
    }
}

fn compared(all: &[Verified]) -> Vec<&str> {
    all.iter().filter(|one| one.is_compared()).map(|one| one.domain.as_str()).collect()
}

/// The rules of the findings on the first domain.
fn rules(all: &[Verified]) -> Vec<&str> {
    all[0].findings.iter().map(|finding| finding.rule).collect()
}

#[test]
fn one_that_cannot_be_read_keeps_no_other_from_being_compared() {
    let stage = stage();
    stage.fake.unreadable.borrow_mut().insert("a".into(), HypervisorErrorKind::Denied);
    let all = verify(&stage.world, &wanted(None, 0)).unwrap();
    assert_eq!((all.len(), compared(&all)), (2, vec!["b"]));
    assert!(all[0].findings[0].says.message.contains("it gives no reason"), "{:?}", all[0]);
    // For a named domain there is no more to report.
    assert!(verify(&stage.world, &wanted(Some("a"), 0)).is_err());
    assert_eq!(compared(&verify(&stage.world, &wanted(Some("b"), 0)).unwrap()), ["b"]);
}

#[test]
fn measurements_that_cannot_be_read_are_reported() {
    let stage = stage();
    let file = stage.world.state().unwrap().join(format!("measured/{UUID}.json"));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "{").unwrap();
    assert!(compare(&stage.world, &wanted(None, 0)).unwrap().measured.is_empty());
    assert_eq!(stage.caller.heard("no measurements of `a`: "), 1);
    assert_eq!(stage.caller.heard("no measurements of `b`"), 0);
}

#[test]
fn one_that_is_deleted_since_it_was_listed_is_left_out() {
    let stage = stage();
    stage.fake.unreadable.borrow_mut().insert("a".into(), HypervisorErrorKind::NoDomain);
    let all = verify(&stage.world, &wanted(None, 0)).unwrap();
    assert_eq!((all.len(), compared(&all)), (1, vec!["b"]));
}

#[test]
fn a_connection_that_is_lost_ends_it() {
    let stage = stage();
    stage.fake.unreadable.borrow_mut().insert("b".into(), HypervisorErrorKind::NoConnection);
    let error = verify(&stage.world, &wanted(None, 0)).unwrap_err();
    assert_eq!(kind(&error), Some(HypervisorErrorKind::NoConnection));
    stage.fake.gone.set(true);
    let error = verify(&stage.world, &wanted(None, 0)).unwrap_err();
    assert_eq!(kind(&error), Some(HypervisorErrorKind::NoConnection));
}

#[test]
fn the_kind_of_an_error_is_seen_below_what_was_being_done() {
    let error = HypervisorError {
        kind: HypervisorErrorKind::NoDomain,
        doing: "read".into(),
        message: "gone".into(),
    };
    let error = Err::<(), _>(error).doing(|| "cannot read `a`".into()).unwrap_err();
    assert_eq!(kind(&error), Some(HypervisorErrorKind::NoDomain));
    assert_eq!(kind(&coded("usage", "no", "")), None);
}

#[test]
fn a_name_that_no_domain_has_is_an_error_with_its_code() {
    let error = verify(&stage().world, &wanted(Some("c"), 0)).unwrap_err();
    assert_eq!(error.refusal().map(|refusal| refusal.code), Some("libvirt-no-domain"));
}

#[test]
fn pending_changes_are_found_until_the_guest_stops() {
    let stage = stage();
    stage.fake.put_xml(&with_agent(4), true);
    stage.fake.live.borrow_mut().insert("a".into(), with_agent(2));
    let mut rounds = Rounds::default();
    let round = || verify(&stage.world, &wanted(Some("a"), 0)).unwrap();
    let found = round();
    assert!(found[0].running && rules(&found).contains(&"pending-vcpus"), "{found:?}");
    assert!(!rounds.next(found)[0].appeared.is_empty());
    assert!(rounds.next(round()).is_empty(), "said again");
    stage.fake.put_xml(&with_agent(4), false);
    let ended = rounds.next(round());
    let gone: Vec<&str> = ended[0].gone.iter().map(|finding| finding.rule).collect();
    assert!(gone.contains(&"pending-vcpus") && ended[0].appeared.is_empty(), "{ended:?}");
}

#[test]
fn an_agent_is_asked_only_where_one_listens_and_there_is_time() {
    let stage = stage();
    stage.fake.put_xml(&with_agent(2), true);
    verify(&stage.world, &wanted(Some("a"), 0)).unwrap();
    assert_eq!(stage.fake.asked.get(), 0);
    // It does not answer: nothing is reported about the guest's view.
    let all = verify(&stage.world, &wanted(Some("a"), 10)).unwrap();
    assert_eq!(stage.fake.asked.get(), 1);
    assert!(all[0].not_checked.iter().any(|what| what.contains("no agent answers")), "{all:?}");
    stage.fake.agent.borrow_mut().extend([
        ("guest-ping", "{}"),
        ("guest-get-vcpus", "[{\"logical-id\":0,\"online\":true}]"),
    ]);
    let all = verify(&stage.world, &wanted(Some("a"), 10)).unwrap();
    assert!(rules(&all).contains(&"guest-vcpus"), "{all:?}");
    stage.fake.put_xml(&with_agent(2), false);
    let asked = stage.fake.asked.get();
    let all = verify(&stage.world, &wanted(Some("a"), 10)).unwrap();
    assert!(!all[0].running && stage.fake.asked.get() == asked);
}
