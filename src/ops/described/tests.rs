//! Files of guests on a hypervisor in memory, with the processors and GPUs of a DGX-2: made larger,
//! smaller, exchanged, and killed at every call.

use super::*;
use crate::domain::DomainEdit;
use crate::guest::{Extra, GuestRequest, NameRequest, render, resolve};
use crate::hypervisor::{DomainState, Live as _};
use crate::session::Confirm;
use crate::stage::{Stage, UUID, kill, kill_step, manner};
use crate::storage::{SeedRequest, StorageRequest};
use crate::taken::Taken;
use gpuvm_core::topology::file::from_json;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn a_domain_replaced_since_is_not_deleted() {
    let stage = Stage::who_says(Answer::Yes);
    stage.fake.put("a", UUID, false);
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    let set = "training".to_owned();
    // It has the UUID, but no file made it; the one that was listed is gone.
    for uuid in [UUID, "11111111-2222-4333-8444-000000000000"] {
        let (name, uuid) = ("a".to_owned(), uuid.to_owned());
        let row = DomainSummary { name, uuid, state: DomainState::ShutOff, persistent: true };
        let error = prune(&mut session, &row, Some(&set)).unwrap_err();
        assert!(error.to_string().contains("is now a different one"), "{error}");
    }
    assert_eq!(stage.fake.runs("a"), Some(false), "it is deleted");
}

/// The UUID of guest `b`.
const OTHER: &str = "11111111-2222-4333-8444-666666666666";

/// A DGX-2 without guests.
fn dgx2() -> Stage {
    let mut stage = Stage::who_says(Answer::Yes);
    stage.fake.put_network("<network><name>default</name><bridge name='virbr0'/></network>", true);
    let host = from_json(include_str!("../../../topologies/dgx-2.json")).unwrap();
    stage.world = stage.world.with_topology(host);
    stage
}

fn asked(name: &str, gpus: GpuWish) -> DescribedGuest {
    let name = DomainName::new(name).unwrap();
    let memory_kib = Some(crate::memsize::MemSize::from_gib(16));
    let spare_ports = Some(0);
    let request = Request { gpus, vcpus: Some(4), memory_kib, spare_ports, ..Request::for_gpus(0) };
    let guest = GuestRequest {
        request,
        name: NameRequest::Exact(name.clone()),
        template: None,
        virt: VirtType::Kvm,
        networks: Vec::new(),
        taken: Taken::default(),
        place: None,
    };
    let create = CreateRequest {
        guest,
        storage: StorageRequest::default(),
        seed: SeedRequest::default(),
        uuid: None,
        private_net: false,
        without_nics: false,
        reserve_pages: false,
        accept_shared_fabric: true,
        starts: false,
        applied: None,
        job: None,
    };
    DescribedGuest { name, create, autostart: None, may_restart: false, disks: Vec::new() }
}

fn put(stage: &Stage, (name, uuid): (&str, &str), gpus: u32, runs: bool) {
    let wanted = asked(name, GpuWish::Count(gpus)).create.guest;
    let planned = resolve(&stage.world, &wanted, None).unwrap();
    let mut xml = render(&wanted, &planned, &Extra::default()).unwrap();
    xml.apply(&DomainEdit::SetUuid { uuid: uuid.into() }).unwrap();
    stage.fake.put_xml(xml.text(), runs);
}

fn file(guests: Vec<DescribedGuest>) -> ApplyRequest {
    let (path, program) = (PathBuf::from("guests.yaml"), String::new());
    let (set, prune, yes, accept_data_loss) = (None, false, true, false);
    ApplyRequest { path, guests, set, prune, yes, accept_data_loss, program }
}

fn run(stage: &Stage, wanted: &ApplyRequest) -> Result<Drift> {
    let mut session = Session::begin(&stage.world, manner(Confirm::Given))?;
    apply(&mut session, &stage.world, wanted)
}

/// The GPUs of a domain, by index.
fn gpus(stage: &Stage, name: &str) -> Vec<usize> {
    let xml = DomainXml::parse(&stage.fake.definition(name)).unwrap();
    gpu_indexes(&stage.world.topology().unwrap(), &xml.held(false).unwrap().devices)
}

#[test]
fn guests_that_shrink_come_first_and_a_new_guest_gets_the_rest() {
    let stage = dgx2();
    put(&stage, ("a", UUID), 8, false);
    put(&stage, ("b", OTHER), 8, false);
    let wanted = file(vec![asked("a", GpuWish::Count(16)), asked("b", GpuWish::Count(0))]);
    let drift = look(&stage.world, &wanted).unwrap();
    let order: Vec<usize> = drift.turns.iter().map(|turn| turn.number).collect();
    assert_eq!((order, drift.guests[0].gpus.len()), (vec![1, 0], 16));
    foresee(&stage.world, &wanted, &drift).unwrap();
    run(&stage, &wanted).unwrap();
    assert_eq!((gpus(&stage, "a").len(), gpus(&stage, "b")), (16, vec![]));
    assert!(look(&stage.world, &wanted).unwrap().is_none());
    // Resources planned for a new guest are not planned for another one.
    let wanted = file(vec![asked("a", GpuWish::Count(8)), asked("c", GpuWish::Count(8))]);
    let drift = look(&stage.world, &wanted).unwrap();
    let (a, c) = (&drift.guests[0].gpus, &drift.guests[1].gpus);
    assert!(a.len() == 8 && c.len() == 8 && a.iter().all(|gpu| !c.contains(gpu)), "{a:?} {c:?}");
    let (a, c) = (asked("a", GpuWish::Count(16)), asked("c", GpuWish::Count(1)));
    let error = look(&stage.world, &file(vec![a, c])).unwrap_err();
    assert_eq!(error.refusal().map(|refusal| refusal.code), Some("apply-no-place"), "{error}");
}

/// A host whose first GPU is shared among guests by two virtual functions.
fn shared() -> Topology {
    use gpuvm_core::topology::{Sriov, VfioType, Vgpu};
    let host = from_json(include_str!("../../../topologies/dual-socket.json")).unwrap();
    let mut parts = host.parts().clone();
    let first = host.gpus().next().unwrap().bdf;
    let card = parts.devices.iter_mut().find(|device| device.bdf == first).unwrap();
    card.sriov = Some(Sriov::Pf { total: 16, enabled: 2 });
    card.driver = Some("nvidia".into());
    let of = |id, name: &str| VfioType { id, name: name.into(), mig: None };
    let own = card.clone();
    card.vgpu = Some(Vgpu::Card { types: vec![of(7, "X-8C"), of(8, "X-16C")] });
    for (function, group) in [(4, 904), (5, 905)] {
        parts.devices.push(gpuvm_core::topology::PciDevice {
            bdf: first.to_string().replace(".0", &format!(".{function}")).parse().unwrap(),
            sriov: Some(Sriov::Vf { pf: first }),
            vgpu: Some(Vgpu::Vfio { current: 0, creatable: vec![7, 8] }),
            iommu_group: Some(group),
            ..own.clone()
        });
    }
    parts.devices.sort_by_key(|device| device.bdf);
    Topology::new(parts).unwrap()
}

#[test]
fn new_guests_are_listed_with_the_places_of_their_vgpus() {
    let mut stage = dgx2();
    stage.world = stage.world.with_topology(shared());
    let mut guest = asked("a", GpuWish::Count(0));
    let type_name = "X-8C".to_owned();
    guest.create.guest.request.vgpu =
        Some(crate::request::VgpuWish { type_name, count: 2, gpu: None });
    let drift = look(&stage.world, &file(vec![guest])).unwrap();
    let found = &drift.guests[0];
    let card = stage.world.topology().unwrap().gpus().next().unwrap().bdf;
    assert_eq!((found.action, found.gpus.len(), found.vgpus.len()), (GuestAction::Create, 0, 2));
    for (vgpu, function) in found.vgpus.iter().zip([".4", ".5"]) {
        assert_eq!((vgpu.card, vgpu.name.as_str()), (card, "X-8C"));
        assert!(vgpu.function.to_string().ends_with(function), "{vgpu:?}");
    }
}

/// Guests `a` and `b` with two GPUs each, and the file by which they exchange them.
fn exchange(runs: bool) -> (Stage, ApplyRequest, [Vec<usize>; 2]) {
    let stage = dgx2();
    put(&stage, ("a", UUID), 2, runs);
    put(&stage, ("b", OTHER), 2, runs);
    let had = [gpus(&stage, "a"), gpus(&stage, "b")];
    let named = |gpus: &[usize]| {
        GpuWish::Indexes(gpus.iter().map(|&gpu| u32::try_from(gpu).unwrap()).collect())
    };
    let mut wanted = file(vec![asked("a", named(&had[1])), asked("b", named(&had[0]))]);
    for guest in &mut wanted.guests {
        guest.may_restart = true;
    }
    (stage, wanted, had)
}

#[test]
fn an_exchange_that_is_killed_at_any_call_is_finished_by_the_next_run() {
    let mut at = 0;
    loop {
        let (stage, wanted, [first, second]) = exchange(false);
        *stage.fake.at.borrow_mut() = Some(Box::new(move |number| {
            if number == at {
                kill();
            }
        }));
        let ended = catch_unwind(AssertUnwindSafe(|| run(&stage, &wanted).map(drop)));
        *stage.fake.at.borrow_mut() = None;
        let is_done = ended.is_ok();
        stage.recover();
        let (a, b) = (gpus(&stage, "a"), gpus(&stage, "b"));
        assert!(a.iter().all(|gpu| !b.contains(gpu)), "call {at}: {a:?} {b:?}");
        run(&stage, &wanted).unwrap();
        assert_eq!([gpus(&stage, "a"), gpus(&stage, "b")], [second, first], "call {at}");
        assert_eq!(stage.journals(), 0);
        if is_done {
            assert!(at >= 3, "it was never killed");
            return;
        }
        at += kill_step();
    }
}

#[test]
fn running_guests_exchange_nothing_and_the_refusal_has_an_alternative() {
    let (stage, wanted, had) = exchange(true);
    let error = run(&stage, &wanted).unwrap_err();
    let refusal = error.refusal().unwrap();
    assert_eq!(refusal.code, "apply-no-place", "{error}");
    assert!(refusal.message.contains("all of them run"), "{error}");
    assert!(refusal.hint.starts_with("`gpuvm stop "), "{}", refusal.hint);
    assert_eq!([gpus(&stage, "a"), gpus(&stage, "b")], had);
    // With one of them off it is done, and the other one runs again.
    stage.fake.destroy("b").unwrap();
    run(&stage, &wanted).unwrap();
    let [first, second] = had;
    assert_eq!([gpus(&stage, "a"), gpus(&stage, "b")], [second, first]);
    assert_eq!((stage.fake.runs("a"), stage.fake.runs("b")), (Some(true), Some(false)));
}

#[test]
fn a_running_guest_gets_gpus_where_a_restart_is_allowed() {
    let stage = dgx2();
    put(&stage, ("a", UUID), 1, true);
    let mut wanted = file(vec![asked("a", GpuWish::Count(2))]);
    let drift = run(&stage, &wanted).unwrap();
    assert_eq!(drift.guests[0].action, GuestAction::Pending);
    assert_eq!((gpus(&stage, "a").len(), stage.fake.runs("a")), (1, Some(true)));
    wanted.guests[0].may_restart = true;
    let drift = run(&stage, &wanted).unwrap();
    assert_eq!(drift.guests[0].action, GuestAction::Change);
    assert_eq!((gpus(&stage, "a").len(), stage.fake.runs("a")), (2, Some(true)));
    let calls = stage.fake.definition("a");
    assert!(look(&stage.world, &wanted).unwrap().is_none());
    assert_eq!(stage.fake.definition("a"), calls);
    // The number that it cannot get is refused before it is stopped.
    wanted.guests[0].create.guest.request.gpus = GpuWish::Count(3);
    assert!(run(&stage, &wanted).is_err());
    assert_eq!((gpus(&stage, "a").len(), stage.fake.runs("a")), (2, Some(true)));
}

#[test]
fn get_has_the_words_by_which_gpus_were_requested_last() {
    let stage = dgx2();
    put(&stage, ("a", UUID), 2, false);
    let fields = || describe(&stage.world, "a").unwrap().fields;
    let printed = |option: &str| {
        let field = fields().into_iter().find(|(name, _)| *name == option);
        field.map(|(_, value)| value.to_string())
    };
    let run_of = GpuWish::Run { first: 8, count: 8 };
    for (wish, gpus, index, gpu) in [
        (GpuWish::Count(4), Some("4"), None, None),
        (run_of, Some("8"), Some("8"), None),
        (GpuWish::Indexes(vec![2, 3]), None, None, Some(r#"["2","3"]"#)),
        (GpuWish::Count(4), Some("4"), None, None),
    ] {
        let wanted = file(vec![asked("a", wish.clone())]);
        run(&stage, &wanted).unwrap();
        let found = [printed("gpus"), printed("gpu-index"), printed("gpu")];
        let found: Vec<Option<&str>> = found.iter().map(Option::as_deref).collect();
        assert_eq!(found, [gpus, index, gpu], "{wish:?}");
        assert!(look(&stage.world, &wanted).unwrap().is_none(), "{wish:?}");
    }
}

#[test]
fn shared_fabric_is_accepted_by_a_field_and_printed() {
    let stage = dgx2();
    let mut wanted = file(vec![asked("a", GpuWish::Count(2))]);
    wanted.guests[0].create.accept_shared_fabric = false;
    let drift = look(&stage.world, &wanted).unwrap();
    let error = foresee(&stage.world, &wanted, &drift).unwrap_err();
    // It has no image, either.
    let Error::Several(Obstacles { errors }) = &error else { panic!("{error}") };
    let refusal = errors[0].refusal().unwrap();
    assert_eq!((refusal.code, errors.len()), ("create-shared-fabric", 2), "{error}");
    assert!(refusal.message.starts_with("guest `a`: "), "{error}");
    assert!(refusal.hint.contains("`accept-shared-fabric: true`"), "{}", refusal.hint);
    assert!(!refusal.hint.contains("--accept"), "{}", refusal.hint);
}

#[test]
fn a_new_guest_without_a_place_comes_with_the_nearest_that_has_one() {
    let stage = dgx2();
    let mut large = asked("c", GpuWish::Count(1));
    large.create.guest.request.memory_kib = Some(crate::memsize::MemSize::from_gib(9000));
    let error = look(&stage.world, &file(vec![asked("a", GpuWish::Count(1)), large])).unwrap_err();
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
    let no = { causes }.find_map(|cause| cause.downcast_ref::<NoPlace>()).unwrap();
    let fits = no.nearest.first().and_then(|near| near.memory_kib).unwrap();
    assert!(fits.kib() < 9000 << 20, "{fits}");
    let mut smaller = asked("c", GpuWish::Count(1));
    smaller.create.guest.request.memory_kib = Some(fits);
    look(&stage.world, &file(vec![asked("a", GpuWish::Count(1)), smaller])).unwrap();
}

#[test]
fn a_copy_of_a_guest_was_not_made_by_gpuvm() {
    let stage = dgx2();
    put(&stage, ("a", UUID), 0, true);
    let made = |name: &str| {
        let xml = DomainXml::parse(&stage.fake.definition(name)).unwrap();
        let shown = crate::domains::show(&stage.world, name).unwrap();
        assert_eq!(shown.view.remembered.is_some(), xml.is_ours());
        xml.is_ours()
    };
    assert!(made("a"));
    let text = stage.fake.definition("a").replace("<name>a<", "<name>b<");
    // Of another UUID, and of one that the metadata does not have.
    let other = text.replacen(&format!("<uuid>{UUID}"), &format!("<uuid>{OTHER}"), 1);
    let without = other.replace(&format!(" uuid='{UUID}'"), "");
    assert!(other != without && other != text);
    for copy in [other, without] {
        stage.fake.put_xml(&copy, true);
        stage.fake.transient.borrow_mut().insert("b".into());
        assert!(!made("b"), "{copy}");
    }
}

/// By a later version of gpuvm, say: it is ours to delete, and nothing is guessed of it.
#[test]
fn a_guest_whose_record_is_not_understood_is_named_as_such_by_every_verb() {
    let stage = dgx2();
    put(&stage, ("a", UUID), 0, false);
    let text = stage.fake.definition("a");
    let later = text.replace("\"profile\":\"share\"", "\"profile\":\"quantum\"");
    let (from, to) = ("<gpuvm:request", "</gpuvm:request>");
    let (from, to) = (text.find(from).unwrap(), text.find(to).unwrap() + to.len());
    let edited = format!("{}{}", &text[..from], &text[to..]);
    let damaged = text.replace("\"profile\":\"share\"", "\"profile\":");
    for (definition, why) in
        [(later, "quantum"), (edited, "there is no request"), (damaged, "expected value")]
    {
        assert_ne!(definition, text);
        stage.fake.put_xml(&definition, false);
        let unread = |error: Error| {
            let said = error.whole();
            let wanted = "gpuvm made domain `a`, and its record cannot be read: ";
            assert!(said.starts_with(wanted) && said.contains(why), "{said}");
        };
        unread(describe(&stage.world, "a").unwrap_err());
        unread(run(&stage, &file(vec![asked("a", GpuWish::Count(0))])).unwrap_err());
        assert_eq!(stage.caller.heard(why), 0);
        crate::domains::show(&stage.world, "a").unwrap();
        assert_eq!(stage.caller.heard(why), 1);
        assert!(describe_all(&stage.world).unwrap().is_empty());
    }
}

#[test]
fn a_removed_device_is_missing_in_get_and_restored_by_apply() {
    let stage = dgx2();
    put(&stage, ("a", UUID), 2, false);
    let text = stage.fake.definition("a");
    let (start, end) = (text.find("<hostdev").unwrap(), text.find("</hostdev>").unwrap());
    let less = [&text[..start], &text[end + "</hostdev>".len()..]].concat();
    stage.fake.put_xml(&less, false);
    let described = describe(&stage.world, "a").unwrap();
    let field = |name: &str| described.fields.iter().find(|(key, _)| *key == name);
    assert_eq!(field("gpus").map(|(_, value)| value.clone()), Some(1.into()));
    assert!(!described.is_told);
    let as_it_is = file(vec![asked("a", GpuWish::Count(1))]);
    assert!(look(&stage.world, &as_it_is).unwrap().is_none());
    let as_it_was = file(vec![asked("a", GpuWish::Count(2))]);
    let drift = look(&stage.world, &as_it_was).unwrap();
    assert_eq!(drift.guests[0].action, GuestAction::Change);
    run(&stage, &as_it_was).unwrap();
    assert_eq!(gpus(&stage, "a").len(), 2);
}

/// The NICs that a domain's definition passes through.
fn nics(stage: &Stage, name: &str) -> usize {
    use gpuvm_core::placement::ExtraKind;
    let topology = stage.world.topology().unwrap();
    let xml = DomainXml::parse(&stage.fake.definition(name)).unwrap();
    let devices = xml.held(false).unwrap().devices.into_iter();
    let kinds = devices.filter_map(|bdf| topology.device(bdf).and_then(ExtraKind::of));
    kinds.filter(|kind| *kind == ExtraKind::Nic).count()
}

#[test]
fn nics_of_a_guest_follow_the_file_and_a_running_one_takes_the_least_disruptive_way() {
    let with_nics = |number: u32, may_restart: bool| {
        let mut guest = asked("a", GpuWish::Count(1));
        guest.create.guest.request.extras.nics = crate::request::DeviceWish::Count(number);
        guest.may_restart = may_restart;
        file(vec![guest])
    };
    let stage = dgx2();
    put(&stage, ("a", UUID), 1, false);
    let drift = look(&stage.world, &with_nics(2, false)).unwrap();
    assert_eq!(drift.guests[0].action, GuestAction::Change, "{:?}", drift.guests);
    run(&stage, &with_nics(2, false)).unwrap();
    assert_eq!(nics(&stage, "a"), 2);
    assert!(look(&stage.world, &with_nics(2, false)).unwrap().is_none());
    // It runs without a free port: more NICs take a restart, fewer do not.
    let stage = dgx2();
    put(&stage, ("a", UUID), 1, true);
    let drift = look(&stage.world, &with_nics(1, false)).unwrap();
    assert_eq!(drift.guests[0].action, GuestAction::Pending, "{:?}", drift.guests);
    run(&stage, &with_nics(1, true)).unwrap();
    assert_eq!((nics(&stage, "a"), stage.fake.runs("a")), (1, Some(true)));
    assert!(look(&stage.world, &with_nics(1, false)).unwrap().is_none());
    let drift = look(&stage.world, &with_nics(0, false)).unwrap();
    assert_eq!(drift.guests[0].action, GuestAction::Change, "{:?}", drift.guests);
    run(&stage, &with_nics(0, false)).unwrap();
    assert_eq!((nics(&stage, "a"), stage.fake.runs("a")), (0, Some(true)));
    assert!(look(&stage.world, &with_nics(0, false)).unwrap().is_none());
}

#[test]
fn a_running_guest_is_not_stopped_for_a_drive_with_data() {
    use gpuvm_core::topology::{Content, Topology};
    let mut stage = dgx2();
    let mut parts = stage.world.topology().unwrap().parts().clone();
    let full = parts.drives.iter_mut().find(|drive| drive.uses().next().is_none()).unwrap();
    full.content = Some(Content::Unread("it does not answer".into()));
    let drive = full.bdf.unwrap();
    stage.world = stage.world.with_topology(Topology::new(parts).unwrap());
    put(&stage, ("a", UUID), 1, true);
    let mut guest = asked("a", GpuWish::Count(1));
    guest.create.guest.request.extras.nvmes = crate::request::DeviceWish::Exact(vec![drive]);
    guest.may_restart = true;
    let wanted = file(vec![guest]);
    let before = stage.fake.definition("a");
    assert!(look(&stage.world, &wanted).is_ok(), "what would be done is shown");
    let error = run(&stage, &wanted).unwrap_err();
    assert!(error.whole().contains("does not answer"), "{}", error.whole());
    assert_eq!((stage.fake.runs("a"), stage.fake.definition("a")), (Some(true), before));
    run(&stage, &ApplyRequest { accept_data_loss: true, ..wanted.clone() }).unwrap();
    assert!(stage.fake.definition("a").contains("ua-pci0"));
    assert_eq!(stage.fake.runs("a"), Some(true));
}

#[test]
fn nics_that_an_interrupted_run_has_set_come_with_a_restart() {
    let stage = dgx2();
    put(&stage, ("a", UUID), 0, true);
    let mut guest = asked("a", GpuWish::Count(0));
    guest.create.guest.networks = vec!["default".parse().unwrap(), "default".parse().unwrap()];
    guest.may_restart = true;
    let networks = Some(guest.create.guest.networks.clone());
    let wanted = SetRequest { name: "a".into(), networks, ..SetRequest::default() };
    // It was killed before the restart.
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    assert!(session.run(|world| set(world, &wanted)).unwrap().made);
    drop(session);
    let wanted = file(vec![guest]);
    let drift = look(&stage.world, &wanted).unwrap();
    assert_eq!(drift.guests[0].action, GuestAction::Change, "{:?}", drift.guests);
    run(&stage, &wanted).unwrap();
    assert_eq!(stage.fake.runs("a"), Some(true));
    assert!(look(&stage.world, &wanted).unwrap().is_none(), "it runs with them");
}

/// It lets a guest have a worse place, so a file without it takes it away.
#[test]
fn rules_that_may_be_broken_are_as_the_file_says() {
    let stage = dgx2();
    put(&stage, ("a", UUID), 0, false);
    let rules = |stage: &Stage| {
        let xml = DomainXml::parse(&stage.fake.definition("a")).unwrap();
        xml.record().unwrap().unwrap().request.allow.to_string()
    };
    for (remote, split, said) in [
        (true, true, "none -> remote,split"),
        (false, true, "remote,split -> split"),
        (false, false, "split -> none"),
    ] {
        let mut guest = asked("a", GpuWish::Count(0));
        (guest.create.guest.request.allow.remote, guest.create.guest.request.allow.split) =
            (remote, split);
        let wanted = file(vec![guest]);
        let drift = look(&stage.world, &wanted).unwrap();
        let differences: Vec<String> =
            drift.guests[0].differences.iter().map(ToString::to_string).collect();
        assert_eq!(differences, [format!("allow {said}")]);
        run(&stage, &wanted).unwrap();
        assert_eq!(Some(rules(&stage).as_str()), said.rsplit(' ').next());
        assert!(look(&stage.world, &wanted).unwrap().is_none());
    }
}
