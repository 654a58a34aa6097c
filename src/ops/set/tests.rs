//! Another size of a guest on a hypervisor in memory, with the processors of a DGX-2: asked,
//! refused, undone, and killed at every step.

mod functions;

use super::*;
use crate::apply::{ApplyError, LiveStep, Step, StepError};
use crate::bdf::Bdf;
use crate::domain::guest::VirtType;
use crate::domain::{DomainEdit, DomainXml};
use crate::guest::{Extra, GuestRequest, NameRequest, render, resolve};
use crate::history::guest::GuestRecord;
use crate::hypervisor::{Domains as _, XmlOf};
use crate::reporter::Answer;
use crate::request::{DomainName, GpuWish};
use crate::session::{Confirm, Done, Manner, Session};
use crate::stage::{Stage, UUID, kill, kill_step, kills, manner};
use crate::taken::Taken;
use crate::undo::{self, Undo};
use gpuvm_core::topology::file::from_json;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn floating(pins: &str) -> String {
    format!(
        "<domain type='kvm'>\n  <name>a</name>\n  <uuid>{UUID}</uuid>\n  <memory \
         unit='KiB'>4194304</memory>\n  <vcpu>4</vcpu>\n{pins}  <os>\n    <type arch='x86_64' \
         machine='pc-q35-8.2'>hvm</type>\n  </os>\n</domain>\n"
    )
}

/// The pins of four vCPUs on two cores.
const PINS: &str = "  <cputune>\n    <vcpupin vcpu='0' cpuset='0'/>\n    <vcpupin vcpu='1' \
                    cpuset='48'/>\n    <vcpupin vcpu='2' cpuset='1'/>\n    <vcpupin vcpu='3' \
                    cpuset='49'/>\n  </cputune>\n";

/// Domain `a` on a DGX-2, with a caller who answers.
fn stage(answer: Answer, pins: &str, runs: bool) -> Stage {
    let mut stage = Stage::who_says(answer);
    let host = from_json(include_str!("../../../topologies/dgx-2.json")).unwrap();
    stage.world = stage.world.with_topology(host);
    stage.fake.put_xml(&floating(pins), runs);
    stage
}

fn size(vcpus: u32, gib: u64) -> SetRequest {
    SetRequest {
        name: "a".into(),
        vcpus: Some(vcpus),
        memory: Some(MemSize::from_gib(gib)),
        ..SetRequest::default()
    }
}

fn run(stage: &Stage, wanted: &SetRequest) -> Result<Done<Tuning>> {
    Session::begin(&stage.world, manner(Confirm::Ask))?.run(|world| set(world, wanted))
}

/// The number of changes in its history.
fn kept(stage: &Stage) -> usize {
    stage.world.history(UUID).unwrap().entries.len()
}

#[test]
fn a_size_is_asked_for_kept_and_undone() {
    for runs in [false, true] {
        let stage = stage(Answer::Yes, PINS, runs);
        let done = run(&stage, &size(8, 8)).unwrap();
        assert!(done.made);
        assert_eq!(done.change.about.domains(false)[0].waits_for_start, runs);
        let now = stage.fake.definition("a");
        assert!(now.contains(">8</vcpu>") && now.contains(">8388608</memory>"), "{now}");
        assert_eq!(now.matches("<vcpupin ").count(), 8);
        assert_eq!((kept(&stage), stage.journals(), stage.caller.heard("ask")), (1, 0, 1));
        assert!(!run(&stage, &size(8, 8)).unwrap().made, "it is so already");
        let wanted = Undo { name: "a".into(), force: false, edited: false };
        let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
        let undone = undo::run(&mut session, &stage.world, &wanted).unwrap().unwrap();
        assert_eq!(undone.waits_for_start, runs);
        assert_eq!(stage.fake.definition("a"), floating(PINS));
    }
}

#[test]
fn a_preview_reports_an_unreadable_history_and_lost_edits() {
    let stage = stage(Answer::Yes, PINS, false);
    assert!(run(&stage, &size(8, 8)).unwrap().made);
    let edited = stage.fake.definition("a").replace("</name>", "</name><title>mine</title>");
    stage.fake.put_xml(&edited, false);
    let mut session =
        Session::begin(&stage.world, Manner { dry_run: true, ..manner(Confirm::Given) }).unwrap();
    let mut undo = |force| {
        let wanted = Undo { name: "a".into(), force, edited: false };
        undo::run(&mut session, &stage.world, &wanted).map(|done| done.is_none())
    };
    assert!(undo(false).unwrap_err().to_string().contains("was edited since change 1"));
    assert!(undo(true).unwrap());
    assert_eq!(stage.caller.heard("edits of domain `a` since change 1"), 1);
    let dir = stage.world.state().unwrap().join("history").join(UUID);
    let mut files = std::fs::read_dir(dir).unwrap();
    let file = files.next().unwrap().unwrap().path();
    std::fs::write(&file, "{").unwrap();
    let shown = look(&stage.world, &size(6, 8)).unwrap();
    let real = run(&stage, &size(6, 8)).unwrap_err();
    let said = shown.refuse_unreadable(&stage.world).unwrap_err();
    assert_eq!(said.to_string(), real.to_string());
    let shown = session.run(|world| set(world, &size(6, 8))).unwrap_err();
    assert_eq!((shown.to_string(), stage.caller.heard("ask")), (real.to_string(), 1));
}

#[test]
fn a_declined_question_changes_nothing() {
    let stage = stage(Answer::No, PINS, false);
    let error = run(&stage, &size(8, 8)).unwrap_err();
    assert_eq!(error.refusal().map(|refusal| refusal.code), Some("declined"), "{error}");
    assert_eq!(stage.fake.definition("a"), floating(PINS));
    assert_eq!((kept(&stage), stage.journals()), (0, 0));
}

#[test]
fn oversized_requests_are_refused_with_the_nearest_fit() {
    let stage = stage(Answer::Yes, PINS, false);
    let no = |wanted: &SetRequest| match run(&stage, wanted).unwrap_err() {
        Error::Around { source, .. } => match *source {
            Error::NoPlace(no) => no,
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    };
    let refused = no(&SetRequest { memory: None, ..size(500, 8) });
    let [nearest] = &refused.nearest[..] else { panic!("{refused:?}") };
    let most = nearest.vcpus.unwrap();
    assert!(most < 500 && most > 4, "{most}");
    assert!(run(&stage, &SetRequest { memory: None, ..size(most, 8) }).is_ok(), "{most}");
    let refused = no(&SetRequest { vcpus: None, ..size(4, 1 << 20) });
    let memory = refused.nearest[0].memory_kib.unwrap();
    assert!(run(&stage, &SetRequest { memory: Some(memory), ..size(most, 8) }).is_ok(), "{memory}");
    assert_eq!(no(&size(500, 1 << 20)).nearest.len(), 1, "both are less");
    assert_eq!(stage.journals(), 0);
}

/// Kills it at each call of the hypervisor in turn, until it comes to its end.
fn killed(stage: impl Fn() -> Stage, wanted: &SetRequest) {
    for at in kills() {
        let stage = stage();
        let before = stage.fake.definition("a");
        *stage.fake.at.borrow_mut() = Some(Box::new(move |number| {
            if number == at {
                kill();
            }
        }));
        let ended = catch_unwind(AssertUnwindSafe(|| run(&stage, wanted).map(|_| ())));
        if let Ok(ended) = ended {
            ended.unwrap();
            assert!(at > 0, "it was never killed");
            return;
        }
        *stage.fake.at.borrow_mut() = None;
        stage.recover();
        assert_eq!(stage.fake.definition("a"), before, "call {at}");
        assert_eq!(stage.journals(), 0);
        assert!(run(&stage, wanted).unwrap().made);
    }
}

#[test]
fn killed_at_any_step_it_is_as_it_was_or_whole() {
    killed(|| stage(Answer::Yes, PINS, false), &size(8, 8));
    let more = SetRequest { accept_shared_fabric: true, ..gpus(4) };
    killed(|| with_gpus(1, false), &more);
    killed(|| with_gpus(2, false), &gpus(0));
}

/// A stage with guest `a` of this many GPUs of a DGX-2.
fn with_gpus(gpus: u32, runs: bool) -> Stage {
    let stage = stage(Answer::Yes, "", false);
    let alone = Taken { assume_empty: true, ..Taken::default() };
    stage.fake.put_xml(&defined(&stage, ("a", UUID), Request::for_gpus(gpus), alone), runs);
    stage
}

fn defined(stage: &Stage, (name, uuid): (&str, &str), request: Request, taken: Taken) -> String {
    let request = GuestRequest {
        request,
        name: NameRequest::Exact(DomainName::new(name).unwrap()),
        template: None,
        virt: VirtType::Kvm,
        networks: Vec::new(),
        taken,
        place: None,
    };
    let planned = resolve(&stage.world, &request, None).unwrap();
    let mut xml = render(&request, &planned, &Extra::default()).unwrap();
    xml.apply(&DomainEdit::SetUuid { uuid: uuid.into() }).unwrap();
    xml.text().to_owned()
}

fn gpus(count: u32) -> SetRequest {
    SetRequest { vcpus: None, memory: None, gpus: Some(count), ..size(1, 1) }
}

/// The passed-through functions of the definition.
fn passed(stage: &Stage) -> Vec<Bdf> {
    DomainXml::parse(&stage.fake.definition("a")).unwrap().held(false).unwrap().devices
}

#[test]
fn gpus_come_and_go_while_the_guest_is_off() {
    let stage = with_gpus(1, false);
    let (before, own) = (stage.fake.definition("a"), passed(&stage));
    let error = run(&stage, &gpus(4)).unwrap_err();
    let code = error.refusal().map(|refusal| refusal.code);
    assert_eq!((code, stage.fake.definition("a")), (Some("set-shared-fabric"), before.clone()));
    let four = SetRequest { accept_shared_fabric: true, ..gpus(4) };
    assert!(run(&stage, &four).unwrap().made);
    let more = passed(&stage);
    assert!(more.len() >= 4 && own.iter().all(|bdf| more.contains(bdf)), "{own:?} {more:?}");
    assert!(!run(&stage, &gpus(4)).unwrap().made, "it has them");
    let wanted = Undo { name: "a".into(), force: false, edited: false };
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    undo::run(&mut session, &stage.world, &wanted).unwrap().unwrap();
    assert_eq!(stage.fake.definition("a"), before);
    assert!(run(&stage, &gpus(0)).unwrap().made);
    assert_eq!(passed(&stage), []);
}

/// A neighbour with NVSwitches was accepted for itself: not for a guest that holds none.
#[test]
fn acceptances_for_a_neighbour_do_not_count() {
    let stage = with_gpus(1, false);
    let other = ("b", "22222222-2222-3333-4444-555555555555");
    // On the other board, out of the way.
    let topology = stage.world.topology().unwrap();
    let far = topology.gpus().map(|gpu| gpu.bdf).skip(8).take(2).collect();
    let far = Request { gpus: GpuWish::Exact(far), ..Request::for_gpus(2) };
    stage.fake.put_xml(&defined(&stage, other, far, Taken::default()), false);
    let before = stage.fake.definition("a");
    for count in [2, 4] {
        let error = run(&stage, &gpus(count)).unwrap_err();
        let code = error.refusal().map(|refusal| refusal.code);
        assert_eq!(code, Some("set-shared-fabric"), "{count}: {error:?}");
    }
    assert_eq!(stage.fake.definition("a"), before);
    // Its own record counts.
    let mut record = GuestRecord::new(UUID, "a", "test:///fake");
    for (said, is_accepted) in [("false", false), ("true", true)] {
        record.creation_options = Some([("accept-shared-fabric".into(), vec![said.into()])].into());
        let dir = stage.world.state().unwrap().join("reserved");
        std::fs::create_dir_all(&dir).unwrap();
        let text = serde_json::to_string(&record).unwrap();
        std::fs::write(dir.join(format!("{UUID}.json")), text).unwrap();
        assert_eq!(run(&stage, &gpus(2)).is_ok(), is_accepted, "{said}");
    }
    std::fs::remove_dir_all(stage.world.state().unwrap().join("reserved")).unwrap();
    // NVLinks that it shared before through NVSwitches of its own are accepted, too.
    assert!(run(&stage, &gpus(4)).unwrap().made);
}

#[test]
fn gpus_of_a_running_guest_and_a_number_without_a_set_are_refused() {
    let refusal = |stage: &Stage, count| {
        let error = run(stage, &gpus(count)).unwrap_err();
        error.refusal().map(|refusal| (refusal.code, refusal.hint.clone())).unwrap()
    };
    let runs = with_gpus(1, true);
    assert_eq!(refusal(&runs, 2), ("set-runs", "`gpuvm stop a` first".into()));
    let off = with_gpus(2, false);
    assert_eq!(refusal(&off, 3), ("set-no-set", "`gpuvm set a --gpus 4`".into()));
    assert_eq!((kept(&runs), kept(&off)), (0, 0));
}

#[test]
fn a_guest_that_keeps_a_nic_is_reported_with_both_ways() {
    let wanted = SetRequest {
        vcpus: None,
        memory: None,
        networks: Some(vec!["lan,mtu=9000".parse().unwrap()]),
        live: true,
        ..size(1, 1)
    };
    let device = crate::domain::live::Plugged::Nic("52:54:00:00:00:01".into());
    let source =
        StepError::HoldsDevice { name: "a".into(), device: device.clone(), wait_s: 30, why: None };
    let (name, xml) = ("a".to_owned(), String::new());
    let step = Box::new(Step::Live(LiveStep::DetachDevice { name, device, wait_s: 30, xml }));
    let failed = ApplyError::Failed {
        step,
        source,
        aftermath: crate::apply::Aftermath::Undone { undone: 0, left: Vec::new() },
    };
    let error = explained(failed.into(), &wanted);
    let refusal = error.refusal().unwrap();
    assert!(refusal.message.contains("NIC 52:54:00:00:00:01 is not removed"), "{refusal:?}");
    for line in
        ["`gpuvm set a --network lan,mtu=9000 --live`", "`gpuvm set a --network lan,mtu=9000`"]
    {
        assert!(refusal.hint.contains(line), "{refusal:?}");
    }
    let none = SetRequest { networks: Some(Vec::new()), live: false, ..wanted };
    assert_eq!(none.line(false), "gpuvm set a --no-network");
    let page = SetRequest { huge_pages: Item::Off, networks: None, ..size(4, 8) };
    assert_eq!(page.line(true), "gpuvm set a --vcpus 4 --memory 8G --huge-pages off --live");
}

/// Domain `a` that runs with 2 vCPUs of 4, of which it can lose one.
fn roomy() -> Stage {
    let stage = stage(Answer::Yes, "", false);
    let text = floating("").replace("<vcpu>4", "<vcpu current='2'>4");
    stage.fake.put_xml(&text, true);
    let one = |id: u32, enabled: &str, plugs: &str| {
        format!("<vcpu id='{id}' enabled='{enabled}' hotpluggable='{plugs}'/>")
    };
    let all = [one(0, "yes", "no"), one(1, "yes", "yes"), one(2, "no", "yes"), one(3, "no", "yes")];
    let live = text.replace("</vcpu>", &format!("</vcpu>\n<vcpus>{}</vcpus>", all.concat()));
    stage.fake.live.borrow_mut().insert("a".into(), live);
    stage
}

/// How many vCPUs `a` has: of its definition, and running.
fn vcpus(stage: &Stage) -> (usize, usize) {
    let has = |text: &str| {
        let xml = DomainXml::parse(text).unwrap();
        gpuvm_core::domain::claims::Claims::read(&xml).plugged.len()
    };
    let live = stage.fake.xml("a", XmlOf::Live).unwrap();
    (has(&stage.fake.definition("a")), has(&live))
}

#[test]
fn vcpus_of_a_running_guest_come_and_go_with_those_of_its_definition() {
    let live = |vcpus| SetRequest { memory: None, live: true, ..size(vcpus, 1) };
    for (wanted, step) in [(4, "from 2 to 4"), (1, "from 2 to 1")] {
        let stage = roomy();
        let done = run(&stage, &live(wanted)).unwrap();
        let report = &done.change.about.domains(false)[0];
        assert!(!report.waits_for_start && report.beside.iter().any(|said| said.contains(step)));
        assert_eq!(vcpus(&stage), (wanted as usize, wanted as usize));
        let undo = Undo { name: "a".into(), force: false, edited: false };
        let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
        undo::run(&mut session, &stage.world, &undo).unwrap().unwrap();
        assert_eq!(vcpus(&stage), (2, 2));
        let mut at = 0;
        loop {
            let stage = roomy();
            *stage.fake.at.borrow_mut() = Some(Box::new(move |number| {
                if number == at {
                    kill();
                }
            }));
            let made = catch_unwind(AssertUnwindSafe(|| run(&stage, &live(wanted)).map(drop)));
            *stage.fake.at.borrow_mut() = None;
            if let Ok(made) = made {
                assert!(made.is_ok() && at > 1, "{at} calls were seen: the test proves nothing");
                break;
            }
            stage.recover();
            let (has, runs) = vcpus(&stage);
            assert_eq!(has, runs, "killed at call {at}");
            at += kill_step();
        }
    }
    let code = |stage: &Stage, wanted: &SetRequest| {
        let error = run(stage, wanted).unwrap_err();
        assert_eq!(vcpus(stage), (2, 2), "a refusal changed something");
        error.refusal().map(|refusal| refusal.code)
    };
    let stage = roomy();
    assert_eq!(code(&stage, &live(5)), Some("set-no-room"));
    let (text, fixed) = (stage.fake.xml("a", XmlOf::Live).unwrap(), "no'/><vcpu id='2'");
    let text = text.replacen("yes'/><vcpu id='2'", fixed, 1);
    stage.fake.live.borrow_mut().insert("a".into(), text);
    assert_eq!(code(&stage, &live(1)), Some("set-started-with"));
    let max = SetRequest { max_vcpus: Some(4), vcpus: None, ..live(1) };
    assert_eq!(code(&stage, &max), Some("set-not-live"));
}

#[test]
fn the_number_that_it_has_adds_the_nvswitches_that_it_lacks() {
    let stage = with_gpus(2, false);
    let whole = passed(&stage);
    assert_eq!(whole.len(), 3, "two GPUs and a switch: {whole:?}");
    assert!(!run(&stage, &gpus(2)).unwrap().made, "it has all of its partition");
    let keep: Vec<Bdf> = whole[..2].to_vec();
    let hostdevs = stage.fake.definition("a");
    let cut = hostdevs.rfind("<hostdev").unwrap();
    let end = cut + hostdevs[cut..].find("</hostdev>").unwrap() + "</hostdev>".len();
    stage.fake.put_xml(&format!("{}{}", &hostdevs[..cut], &hostdevs[end..]), false);
    assert_eq!(passed(&stage), keep);
    let error = run(&stage, &gpus(2)).unwrap_err();
    let code = error.refusal().map(|refusal| refusal.code);
    assert_eq!(code, Some("set-shared-fabric"), "a switch reaches the other guests' GPUs");
    let wanted = SetRequest { accept_shared_fabric: true, ..gpus(2) };
    assert!(run(&stage, &wanted).unwrap().made);
    assert_eq!(passed(&stage), whole);
}

#[test]
fn other_gpus_are_taken_where_they_were_only_counted_or_with_consent() {
    // The other GPU of its pair is taken.
    let counted = with_gpus(1, false);
    let own = passed(&counted)[0];
    let topology = counted.world.topology().unwrap();
    let pairs = topology.partitions().iter().filter(|one| one.gpus.len() == 2);
    let pair = pairs.clone().find(|one| one.gpus.contains(&own)).unwrap();
    let mate = pair.gpus.iter().copied().find(|gpu| *gpu != own).unwrap();
    let other = ("b", "22222222-2222-3333-4444-555555555555");
    let taken = Request { gpus: GpuWish::Exact(vec![mate]), ..Request::for_gpus(1) };
    let beside = defined(&counted, other, taken, Taken::default());
    counted.fake.put_xml(&beside, false);
    let accepted = SetRequest { accept_shared_fabric: true, ..gpus(2) };
    assert!(run(&counted, &accepted).unwrap().made);
    let gets = passed(&counted);
    assert!(!gets.contains(&own) && gets.len() == 3, "{gets:?}");

    let named = with_gpus(1, false);
    let text =
        named.fake.definition("a").replace("{\"count\":1}", &format!("{{\"exact\":[\"{own}\"]}}"));
    named.fake.put_xml(&text, false);
    named.fake.put_xml(&beside, false);
    let error = run(&named, &accepted).unwrap_err();
    let refusal = error.refusal().unwrap();
    assert_eq!(refusal.code, "set-other-gpus", "{refusal:?}");
    assert_eq!(refusal.hint, "`gpuvm set a --gpus 2 --move` takes them");
    // A record of another domain says nothing of this one.
    let copied = with_gpus(1, false);
    let text = copied.fake.definition("a").replace(" uuid='", " was='");
    copied.fake.put_xml(&text, false);
    copied.fake.put_xml(&beside, false);
    let code = run(&copied, &accepted).unwrap_err().refusal().map(|refusal| refusal.code);
    assert_eq!(code, Some("set-other-gpus"));
    let moved = SetRequest { may_move: true, ..accepted };
    assert!(run(&named, &moved).unwrap().made);
    assert_eq!(passed(&named), gets);
}
