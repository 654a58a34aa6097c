//! Moves of guests on a hypervisor in memory, with the processors and GPUs of a DGX-2: planned,
//! refused, made, and killed at every call.

use super::*;
use crate::domain::guest::VirtType;
use crate::domain::view::gpu_indexes;
use crate::domain::{DomainEdit, DomainXml};
use crate::guest::{Extra, NameRequest, render, resolve};
use crate::hypervisor::Domains as _;
use crate::memsize::MemSize;
use crate::reporter::Answer;
use crate::request::{DeviceWish, DomainName, GpuWish, Near, Request};
use crate::session::Confirm;
use crate::stage::{Stage, UUID, kill, kills, manner};
use crate::taken::Taken;
use gpuvm_core::topology::file::from_json;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A DGX-2 without guests, with a caller who answers.
fn dgx2(answer: Answer) -> Stage {
    let mut stage = Stage::who_says(answer);
    stage.fake.put_network("<network><name>default</name><bridge name='virbr0'/></network>", true);
    let host = from_json(include_str!("../../../topologies/dgx-2.json")).unwrap();
    stage.world = stage.world.with_topology(host);
    stage
}

/// A small guest with these GPUs.
fn asked(name: &str, gpus: GpuWish, movable: bool) -> GuestRequest {
    let memory_kib = Some(MemSize::from_gib(16));
    let base = Request { vcpus: Some(4), memory_kib, spare_ports: Some(0), ..Request::for_gpus(0) };
    GuestRequest {
        request: Request { gpus, movable, ..base },
        name: NameRequest::Exact(DomainName::new(name).unwrap()),
        template: None,
        virt: VirtType::Kvm,
        networks: Vec::new(),
        taken: Taken::default(),
        place: None,
    }
}

fn uuid(number: u32) -> String {
    format!("{}{number:03}", &UUID[..UUID.len() - 3])
}

/// Puts a guest on these GPUs.
fn put(stage: &Stage, (name, number): (&str, u32), gpus: &[u32], (runs, movable): (bool, bool)) {
    let exact = asked(name, GpuWish::Indexes(gpus.to_vec()), movable);
    let mut planned = resolve(&stage.world, &exact, None).unwrap();
    planned.request.gpus = GpuWish::Count(u32::try_from(gpus.len()).unwrap());
    let mut xml = render(&exact, &planned, &Extra::default()).unwrap();
    xml.apply(&DomainEdit::SetUuid { uuid: uuid(number) }).unwrap();
    stage.fake.put_xml(xml.text(), runs);
}

fn eight() -> RoomRequest {
    let (max_stops, max_moves, allow_stop, wait_s) = (None, None, Vec::new(), 0);
    let guest = asked("new", GpuWish::Count(8), false);
    let (options, accept_shared_fabric) = ("--gpus 8".into(), true);
    RoomRequest { guest, options, max_stops, max_moves, allow_stop, wait_s, accept_shared_fabric }
}

/// Guests on both halves, of which `a` may be moved.
fn halves(answer: Answer, runs: bool) -> Stage {
    let stage = dgx2(answer);
    put(&stage, ("a", 1), &[2], (runs, true));
    put(&stage, ("b", 2), &[8], (true, false));
    put(&stage, ("c", 3), &[12], (true, false));
    stage
}

fn run(stage: &Stage, wanted: &RoomRequest, yes: bool) -> Result<RoomPlan> {
    let mut session = Session::begin(&stage.world, manner(Confirm::Given))?;
    make_room(&mut session, &stage.world, wanted, yes)
}

/// The GPUs of a domain, by index.
fn gpus(stage: &Stage, name: &str) -> Vec<usize> {
    let xml = DomainXml::parse(&stage.fake.definition(name)).unwrap();
    gpu_indexes(&stage.world.topology().unwrap(), &xml.held(false).unwrap().devices)
}

/// Whether there is room for eight GPUs.
fn has_room(stage: &Stage) -> bool {
    look(&stage.world, &eight()).is_ok_and(|room| room.is_done())
}

/// The parts of a definition that a move leaves alone.
fn kept(stage: &Stage, name: &str) -> Vec<String> {
    let text = stage.fake.definition(name);
    let parts = ["<uuid>", "<name>", "<mac ", "<source file", "<memory unit", "<vcpu "];
    let is_kept = |line: &&str| parts.iter().any(|part| line.trim_start().starts_with(part));
    text.lines().filter(is_kept).map(|line| line.trim().to_owned()).collect()
}

#[test]
fn one_stop_makes_room_and_a_second_run_does_nothing() {
    let stage = halves(Answer::Yes, true);
    let (before, others) = (kept(&stage, "a"), stage.fake.definition("b"));
    let shown = look(&stage.world, &eight()).unwrap();
    let [planned] = &shown.moves[..] else { panic!("{shown:?}") };
    assert_eq!((planned.domain.as_str(), &planned.from[..]), ("a", &[2][..]));
    assert!([9, 13].contains(&planned.to[0]), "{planned:?}");
    assert_eq!((shown.cost.stops, shown.cost.memory_gib, shown.is_best), (1, 16, true));
    assert_eq!(shown.gpus, (0..8).collect::<Vec<_>>());
    let made = run(&stage, &eight(), false).unwrap();
    assert_eq!(made.moves, shown.moves);
    assert_eq!(stage.caller.heard("ask"), 1);
    assert_eq!(gpus(&stage, "a"), planned.to);
    assert_eq!((stage.fake.runs("a"), kept(&stage, "a")), (Some(true), before));
    assert_eq!(stage.fake.definition("b"), others);
    let request = |name: &str| {
        let xml = DomainXml::parse(&stage.fake.definition(name)).unwrap();
        xml.record().unwrap().unwrap().request
    };
    assert_eq!((request("a").gpus, request("a").movable), (GpuWish::Count(1), true));
    assert_eq!(stage.world.history(&uuid(1)).unwrap().entries.len(), 1);
    let calls = stage.fake.calls.get();
    assert!(run(&stage, &eight(), false).unwrap().is_done());
    assert_eq!((stage.fake.calls.get(), stage.caller.heard("ask")), (calls, 1));
}

#[test]
fn only_guests_that_may_be_moved_are() {
    let stage = dgx2(Answer::Yes);
    put(&stage, ("a", 1), &[2], (true, false));
    put(&stage, ("b", 2), &[8], (true, false));
    let error = look(&stage.world, &eight()).unwrap_err();
    let refusal = error.refusal().unwrap();
    assert_eq!(refusal.code, "make-room-none-movable");
    assert_eq!(refusal.hint, "`gpuvm make-room --gpus 8 --allow-stop a` moves `a`");
    let named = RoomRequest { allow_stop: vec!["a".into()], ..eight() };
    assert_eq!(look(&stage.world, &named).unwrap().moves.len(), 1);
    // A limit that is too low is reported, with the command that shows the needed one.
    let limited = RoomRequest { max_stops: Some(0), ..named.clone() };
    let error = look(&stage.world, &limited).unwrap_err();
    let refusal = error.refusal().unwrap();
    assert_eq!(refusal.code, "make-room-limits", "{error}");
    assert!(refusal.hint.contains("`gpuvm make-room --gpus 8 --allow-stop a`"), "{}", refusal.hint);
    for (name, code) in [("nobody", "not-found"), ("paused", "make-room-fixed")] {
        stage.fake.put("paused", &uuid(9), true);
        let paused = DomainState::Paused;
        stage.fake.states.borrow_mut().insert("paused".into(), paused);
        let named = RoomRequest { allow_stop: vec![name.into()], ..eight() };
        let error = look(&stage.world, &named).unwrap_err();
        assert_eq!(error.refusal().map(|refusal| refusal.code), Some(code), "{error}");
    }
    // A domain of others is not offered; named it is moved.
    let stage = halves(Answer::Yes, true);
    let text = stage.fake.definition("a");
    let (start, end) = (text.find("<metadata>").unwrap(), text.find("</metadata>").unwrap());
    let foreign = [&text[..start], &text[end + "</metadata>".len()..]].concat();
    stage.fake.put_xml(&foreign, true);
    for name in ["b", "c"] {
        stage.fake.transient.borrow_mut().insert(name.into());
    }
    let error = look(&stage.world, &eight()).unwrap_err();
    assert!(!error.refusal().unwrap().hint.contains("--allow-stop"), "{error}");
    run(&stage, &named, true).unwrap();
    assert!(has_room(&stage) && stage.fake.runs("a") == Some(true));
}

#[test]
fn guests_that_share_nvlinks_are_named_before_any_change() {
    let stage = halves(Answer::Yes, true);
    let wanted = RoomRequest { accept_shared_fabric: false, ..eight() };
    let error = run(&stage, &wanted, true).unwrap_err();
    let refusal = error.refusal().unwrap();
    assert!(refusal.code.ends_with("shared-fabric"), "{error}");
    assert!(refusal.hint.contains("--accept-shared-fabric"), "{}", refusal.hint);
    assert_eq!(stage.fake.calls.get(), 0);
}

#[test]
fn declined_and_unaskable_questions_change_nothing() {
    for answer in [Answer::No, Answer::Nobody] {
        let stage = halves(answer, true);
        assert!(run(&stage, &eight(), false).is_err());
        assert_eq!((stage.fake.calls.get(), gpus(&stage, "a")), (0, vec![2]));
    }
}

#[test]
fn a_guest_that_is_off_moves_without_a_stop() {
    let stage = halves(Answer::Yes, false);
    let made = run(&stage, &eight(), true).unwrap();
    assert_eq!((made.cost.stops, made.cost.memory_gib), (0, 0));
    assert_eq!(stage.fake.runs("a"), Some(false));
    assert!(has_room(&stage));
}

/// Kills it at each call in turn; after the recovery the guests are at their old or their new
/// places, and run as they did; run again, it comes to its end.
fn killed(stage: impl Fn() -> Stage, names: &[&str]) -> usize {
    for at in kills() {
        let stage = stage();
        let ran: Vec<_> = names.iter().map(|name| stage.fake.runs(name)).collect();
        *stage.fake.at.borrow_mut() = Some(Box::new(move |number| {
            if number == at {
                kill();
            }
        }));
        let ended = catch_unwind(AssertUnwindSafe(|| run(&stage, &eight(), true).map(drop)));
        *stage.fake.at.borrow_mut() = None;
        if let Ok(done) = ended {
            done.unwrap();
            return at;
        }
        stage.recover();
        let runs: Vec<_> = names.iter().map(|name| stage.fake.runs(name)).collect();
        assert_eq!((runs, stage.journals()), (ran.clone(), 0), "call {at}");
        let mut all: Vec<usize> = names.iter().flat_map(|name| gpus(&stage, name)).collect();
        let number = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), number, "call {at}: a GPU of two guests");
        for name in names {
            let xml = stage.fake.xml(name, crate::hypervisor::XmlOf::Live).unwrap();
            assert_eq!(xml, stage.fake.definition(name), "call {at}: {name} runs elsewhere");
        }
        run(&stage, &eight(), true).unwrap();
        let runs: Vec<_> = names.iter().map(|name| stage.fake.runs(name)).collect();
        assert!(has_room(&stage) && runs == ran, "call {at}");
    }
    unreachable!()
}

#[test]
fn a_move_that_is_killed_at_any_call_is_undone_or_finished() {
    let calls = killed(|| halves(Answer::Yes, true), &["a", "b", "c"]);
    assert!(calls >= 3, "{calls}");
    assert!(killed(|| halves(Answer::Yes, false), &["a", "b", "c"]) >= 1);
}

/// Two single GPUs in the way of four, which are in the way of eight.
fn chain() -> Stage {
    let stage = dgx2(Answer::Yes);
    put(&stage, ("four", 1), &[0, 1, 2, 3], (true, true));
    put(&stage, ("one", 2), &[8], (true, true));
    put(&stage, ("two", 3), &[12], (true, false));
    stage
}

#[test]
fn guests_that_wait_for_each_other_move_in_turn() {
    let stage = chain();
    let made = run(&stage, &eight(), true).unwrap();
    let order: Vec<&str> = made.moves.iter().map(|one| one.domain.as_str()).collect();
    assert_eq!(order, ["one", "four"]);
    assert!(has_room(&stage));
    assert!(killed(chain, &["four", "one", "two"]) >= 6);
}

#[test]
fn a_guest_that_cannot_start_elsewhere_runs_where_it_was() {
    let stage = halves(Answer::Yes, true);
    let before = stage.fake.definition("a");
    // The call after shutdown, definition.
    stage.fake.refuses_start.set(true);
    let error = run(&stage, &eight(), true).unwrap_err();
    let said = error.whole();
    assert!(said.contains("domain `a` is not moved, and runs where it was"), "{said}");
    assert_eq!((stage.fake.runs("a"), stage.fake.definition("a")), (Some(true), before));
    assert_eq!(stage.journals(), 0);
}

#[test]
fn a_guest_that_does_not_shut_down_stays() {
    let stage = dgx2(Answer::Yes);
    put(&stage, ("stubborn", 1), &[2], (true, true));
    put(&stage, ("b", 2), &[8], (true, false));
    let before = stage.fake.definition("stubborn");
    let error = run(&stage, &eight(), true).unwrap_err();
    let says = "is not moved, and was asked to shut down, which it may still do";
    assert!(error.whole().contains(says), "{}", error.whole());
    assert!(error.refusal().unwrap().hint.contains("--wait SECONDS"), "{error}");
    assert_eq!(stage.fake.definition("stubborn"), before);
    assert_eq!((stage.fake.runs("stubborn"), stage.journals()), (Some(true), 0));
}

/// A guest without GPUs on cores that eight GPUs need, which may be moved, and one of eight GPUs
/// with few cores on the other half; `bound`: whether its memory is on the node of its cores.
fn in_the_way(bound: bool) -> Stage {
    let stage = dgx2(Answer::Yes);
    put(&stage, ("cpus", 2), &[], (true, true));
    if !bound {
        let text = stage.fake.definition("cpus");
        let (start, end) = (text.find("<numatune>").unwrap(), text.find("</numatune>").unwrap());
        let floats = [&text[..start], &text[end + "</numatune>".len()..]].concat();
        stage.fake.put_xml(&floats, true);
    }
    put(&stage, ("large", 1), &[8, 9, 10, 11, 12, 13, 14, 15], (true, false));
    stage
}

#[test]
fn a_guest_without_gpus_gets_other_cores_while_it_runs() {
    let stage = in_the_way(false);
    let pins = || {
        let xml = DomainXml::parse(&stage.fake.definition("cpus")).unwrap();
        let held = xml.held(false).unwrap();
        let pins = held.vcpu_pins.iter().chain(&held.emulator_pin);
        let all = pins.fold(crate::cpuset::CpuSet::new(), |all, pin| all.or(pin));
        all.to_string()
    };
    let on_node = |node: &str| {
        pins().split(['-', ',']).all(|pcpu| {
            let pcpu: u32 = pcpu.parse().unwrap();
            (pcpu % 48 < 24) == (node == "0")
        })
    };
    assert!(on_node("0"), "{}", pins());
    let mut wanted = eight();
    wanted.guest.request.vcpus = Some(46);
    let shown = look(&stage.world, &wanted).unwrap();
    let [planned] = &shown.moves[..] else { panic!("{shown:?}") };
    assert!(planned.live && !planned.stops, "{planned:?}");
    assert_eq!((shown.cost.stops, shown.cost.memory_gib), (0, 0));
    assert!(planned.line().starts_with("pin `cpus`, which runs on, to pcpus "));
    assert_eq!(planned.notes, ["its 16 GiB of memory stay where they are, near its old cores"]);
    run(&stage, &wanted, true).unwrap();
    assert!(on_node("1"), "{}", pins());
    assert_eq!(stage.fake.runs("cpus"), Some(true));
    assert_eq!(stage.caller.heard("shut down"), 0);
    assert!(look(&stage.world, &wanted).unwrap().is_done());
    // Memory that is bound cannot follow: the guest is stopped.
    let stage = in_the_way(true);
    let shown = look(&stage.world, &wanted).unwrap();
    assert!(shown.moves[0].stops && !shown.moves[0].live, "{shown:?}");
    run(&stage, &wanted, true).unwrap();
    assert!(look(&stage.world, &wanted).unwrap().is_done());
}

/// Changes by others while the question is open, and the error of the moves then.
fn meanwhile(stage: &Stage, wanted: &RoomRequest, then: impl Fn(&Stage)) -> String {
    let planned = look(&stage.world, wanted).unwrap();
    then(stage);
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    let error = moves(&mut session, &stage.world, wanted, planned).unwrap_err();
    assert_eq!((stage.journals(), gpus(stage, "a")), (0, vec![2]), "{error}");
    error.whole()
}

#[test]
fn changes_since_the_question_are_not_made() {
    let off = || halves(Answer::Yes, false);
    let start = |stage: &Stage| {
        let text = stage.fake.definition("a");
        stage.fake.put_xml(&text, true);
    };
    let said = meanwhile(&off(), &eight(), start);
    assert!(
        said.contains("`a` was started since the plan; it was to be moved while off"),
        "{said}"
    );
    let pause = |stage: &Stage| {
        let paused = DomainState::Paused;
        stage.fake.states.borrow_mut().insert("a".into(), paused);
    };
    let said = meanwhile(&halves(Answer::Yes, true), &eight(), pause);
    assert!(said.contains("domain `a` cannot be moved: it is paused"), "{said}");
    let unmark = |stage: &Stage| {
        let text = stage.fake.definition("a").replace(",\"movable\":true", "");
        stage.fake.put_xml(&text, false);
    };
    let said = meanwhile(&off(), &eight(), unmark);
    assert!(said.contains("domain `a` was edited meanwhile"), "{said}");
    // Somebody else gets a GPU of the new guest.
    let take = |stage: &Stage| put(stage, ("y", 7), &[0], (false, false));
    let said = meanwhile(&off(), &eight(), take);
    assert!(said.contains("has been taken by domain `y` since the plan"), "{said}");
}

#[test]
fn a_move_changes_no_size() {
    let stage = dgx2(Answer::Yes);
    // Its sizes followed from its GPU, and one was edited since.
    let planned = |text: &str| {
        let xml = DomainXml::parse(text).unwrap();
        let held = xml.held(false).unwrap();
        let memory: MemSize = held.memory.iter().map(|(_, size)| *size).sum();
        (held.vcpu_pins.len(), memory)
    };
    let mut request = asked("a", GpuWish::Indexes(vec![2]), true);
    (request.request.vcpus, request.request.memory_kib) = (None, None);
    let mut given = resolve(&stage.world, &request, None).unwrap();
    given.request.gpus = GpuWish::Count(1);
    let mut xml = render(&request, &given, &Extra::default()).unwrap();
    xml.apply(&DomainEdit::SetUuid { uuid: uuid(1) }).unwrap();
    let (_, size) = planned(xml.text());
    let edited =
        xml.text().replace(&size.kib().to_string(), &MemSize::from_gib(40).kib().to_string());
    assert_eq!(planned(&edited).1, MemSize::from_gib(40));
    stage.fake.put_xml(&edited, false);
    put(&stage, ("b", 2), &[8], (true, false));
    put(&stage, ("c", 3), &[12], (true, false));
    run(&stage, &eight(), true).unwrap();
    assert_ne!(gpus(&stage, "a"), [2]);
    assert_eq!(planned(&stage.fake.definition("a")), planned(&edited));
}

#[test]
fn a_guest_stays_on_its_model_of_gpu() {
    let mut stage = halves(Answer::Yes, false);
    // GPUs 9, 10 and 11 are of another model.
    let text = include_str!("../../../topologies/dgx-2.json");
    let models: Vec<&str> = text.split("\"0x1db8\"").collect();
    let mut host = models[0].to_owned();
    for (gpu, rest) in models[1..].iter().enumerate() {
        host += if (9..12).contains(&gpu) { "\"0x1db1\"" } else { "\"0x1db8\"" };
        host += rest;
    }
    let plain = look(&stage.world, &eight()).unwrap();
    assert_eq!(plain.moves[0].to, [9]);
    stage.world = stage.world.with_topology(from_json(&host).unwrap());
    let shown = look(&stage.world, &eight()).unwrap();
    assert!(shown.moves[0].to[0] > 12, "{:?}", shown.moves);
    run(&stage, &eight(), true).unwrap();
    assert_eq!(gpus(&stage, "a"), shown.moves[0].to);
}

#[test]
fn a_guest_stays_as_near_to_its_nic_as_it_was_made() {
    for near in [Near::Switch, Near::Node, Near::Any] {
        let stage = dgx2(Answer::Yes);
        let mut request = asked("a", GpuWish::Indexes(vec![2]), true);
        request.request.extras.nics = DeviceWish::Count(1);
        request.request.extras.nic_near = near;
        let mut given = resolve(&stage.world, &request, None).unwrap();
        given.request.gpus = GpuWish::Count(1);
        let mut xml = render(&request, &given, &Extra::default()).unwrap();
        xml.apply(&DomainEdit::SetUuid { uuid: uuid(1) }).unwrap();
        stage.fake.put_xml(xml.text(), false);
        put(&stage, ("b", 2), &[8], (true, false));
        put(&stage, ("c", 3), &[12], (true, false));
        let found = look(&stage.world, &eight());
        if near == Near::Any {
            assert_eq!(found.unwrap().moves[0].domain, "a");
            continue;
        }
        // The other half of the GPUs is on the other node.
        let error = found.unwrap_err();
        let says = error.to_string();
        assert!(says.contains("domain `a` cannot be moved: it was made with --nic-near"), "{says}");
        assert!(!error.refusal().unwrap().hint.is_empty());
    }
}

#[test]
fn a_guest_that_runs_otherwise_than_it_is_defined_is_not_moved() {
    let stage = halves(Answer::Yes, true);
    let text = stage.fake.definition("a");
    let disk =
        "<disk type='file' device='disk'><source file='/x'/><target dev='vdz'/></disk></devices>";
    let live = text.replacen("</devices>", disk, 1);
    stage.fake.live.borrow_mut().insert("a".into(), live);
    let named = RoomRequest { allow_stop: vec!["a".into()], ..eight() };
    let error = look(&stage.world, &named).unwrap_err();
    assert!(error.whole().contains("it runs with other disks than it is defined with"), "{error}");
    assert!(error.refusal().unwrap().hint.starts_with("`gpuvm restart a`"), "{error}");
}

#[test]
fn a_place_that_others_reach_is_refused_as_create_does() {
    let wanted = |number: u32| RoomRequest {
        guest: asked("new", GpuWish::Count(number), false),
        options: format!("--gpus {number}"),
        accept_shared_fabric: false,
        ..eight()
    };
    // Also where there is room, and where pins alone would make it.
    let stage = dgx2(Answer::Yes);
    let error = look(&stage.world, &wanted(4)).unwrap_err();
    assert!(error.refusal().unwrap().code.ends_with("shared-fabric"), "{error}");
    let stage = in_the_way(false);
    let mut four = wanted(4);
    four.guest.request.vcpus = Some(46);
    let error = look(&stage.world, &four).unwrap_err();
    assert!(error.refusal().unwrap().code.ends_with("shared-fabric"), "{error}");
    let shared = RoomRequest { accept_shared_fabric: true, ..four.clone() };
    assert!(look(&stage.world, &shared).unwrap().moves[0].live);
    let offered = offer(&stage.world, &four).unwrap().command;
    assert_eq!(offered, "gpuvm make-room --gpus 4 --accept-shared-fabric");
}

#[test]
fn a_guest_that_could_not_start_again_is_not_offered_to_move() {
    let stage = halves(Answer::Yes, true);
    stage.fake.put_network("<network><name>default</name><bridge name='virbr0'/></network>", false);
    for name in ["b", "c"] {
        stage.fake.transient.borrow_mut().insert(name.into());
    }
    let shown = look(&stage.world, &eight()).unwrap_err();
    assert!(shown.whole().contains("default"), "{}", shown.whole());
    assert!(offer(&stage.world, &eight()).is_none());
    assert_eq!(run(&stage, &eight(), true).unwrap_err().whole(), shown.whole());
    assert_eq!(stage.fake.calls.get(), 0);
}

#[test]
fn hints_of_sizes_are_of_the_host_as_it_is() {
    let stage = halves(Answer::Yes, false);
    let mut wanted = eight();
    wanted.guest.request.gpus = GpuWish::Count(99);
    let Error::NoPlace(no) = look(&stage.world, &wanted).unwrap_err() else { panic!() };
    let held = stage.world.occupancy(false).unwrap();
    let topology = stage.world.topology().unwrap();
    assert!(!no.nearest.is_empty());
    for one in &no.nearest {
        assert!(crate::placement::plan(&topology, &held, one).is_ok(), "{one:?}");
    }
}

#[test]
fn two_that_change_places_are_both_off_first() {
    let stage = dgx2(Answer::Yes);
    put(&stage, ("a", 1), &[2], (true, true));
    put(&stage, ("b", 2), &[8], (true, true));
    let devices = |name: &str| {
        let xml = DomainXml::parse(&stage.fake.definition(name)).unwrap();
        xml.held(false).unwrap().devices
    };
    let (of_a, of_b) = (devices("a"), devices("b"));
    let target = |name: &str, number, gpus: Vec<Bdf>| {
        let (before, uuid) = (stage.fake.definition(name), uuid(number));
        let (name, gpus) = (name.to_owned(), gpus[..1].to_vec());
        Target { name, uuid, before, gpus, vgpu: None, live: false, stops: true }
    };
    let leg = [target("a", 1, of_b.clone()), target("b", 2, of_a.clone())];
    let new = Held { domain: "the new guest".into(), active: true, ..Held::default() };
    let wanted = eight();
    let plan = |world: &World| move_guests(world, &leg, &new, &wanted);
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    let done = session.run(plan).unwrap();
    let steps: Vec<String> = done.change.steps().iter().map(ToString::to_string).collect();
    let at = |what: &str| steps.iter().position(|step| step.starts_with(what)).unwrap();
    assert!(at("shut down domain `b`") < at("change the definition of domain `a`"), "{steps:?}");
    assert_eq!((gpus(&stage, "a"), gpus(&stage, "b")), (vec![8], vec![2]));
    assert_eq!((stage.fake.runs("a"), stage.fake.runs("b")), (Some(true), Some(true)));
}
