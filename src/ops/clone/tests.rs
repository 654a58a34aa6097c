//! Clones on a hypervisor in memory, with the GPUs of a DGX-2: planned, refused, undone, and killed
//! at every call.

use super::*;
use crate::apply::{Step, VolumeStep};
use crate::change::Change;
use crate::delete::{Delete, delete};
use crate::described::describe;
use crate::domain::disk_change::path_of;
use crate::domain::guest::{Disk, DiskFormat, DiskKind, Made, Role, VirtType, VolumeRef};
use crate::domain::{DomainEdit, Element};
use crate::domains::show;
use crate::guest::{Extra, GuestRequest, NameRequest, render, resolve};
use crate::history::guest::{accepts_shared_fabric, creation_options};
use crate::hypervisor::Domains as _;
use crate::hypervisor::storage::NewVolume;
use crate::image;
use crate::reporter::Answer;
use crate::request::{Allow, DomainName, GpuWish, Request};
use crate::session::{Confirm, Done, Session};
use crate::stage::storage::write_on;
use crate::stage::{Stage, UUID, kill, kills, manner};
use crate::storage::{SeedRequest, SeedWanted};
use crate::taken::Taken;
use crate::undo::{self, Undo};
use gpuvm_core::check::check;
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::claims::Claims;
use gpuvm_core::finding::Severity;
use gpuvm_core::guest::Opt;
use gpuvm_core::placement::Occupancy;
use gpuvm_core::topology::file::from_json;
use gpuvm_core::versions::Versions;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;

const OTHER: &str = "33333333-2222-4333-8444-555555555555";

/// A stage with guest `a` of this many GPUs of a DGX-2.
fn stage(gpus: u32, runs: bool) -> Stage {
    let stage = bare();
    put(&stage, gpus, runs, &Extra::default());
    stage
}

fn bare() -> Stage {
    let mut stage = Stage::who_says(Answer::Yes);
    let host = from_json(include_str!("../../../topologies/dgx-2.json")).unwrap();
    stage.world = stage.world.with_topology(host);
    stage
}

/// Adds guest `a`.
fn put(stage: &Stage, gpus: u32, runs: bool, extra: &Extra) {
    let request = GuestRequest {
        request: Request::for_gpus(gpus),
        name: NameRequest::Exact(DomainName::new("a").unwrap()),
        template: None,
        virt: VirtType::Kvm,
        networks: Vec::new(),
        taken: Taken { assume_empty: true, ..Taken::default() },
        place: None,
    };
    let planned = resolve(&stage.world, &request, None).unwrap();
    let mut xml = render(&request, &planned, extra).unwrap();
    xml.apply(&DomainEdit::SetUuid { uuid: UUID.into() }).unwrap();
    stage.fake.put_xml(xml.text(), runs);
}

/// A clone `b` of `a`.
fn wanted() -> CloneRequest {
    CloneRequest {
        name: "a".into(),
        to: DomainName::new("b").unwrap(),
        gpus: None,
        allow: Allow::default(),
        accept_shared_fabric: true,
        uuid: Some(OTHER.into()),
        seed: SeedRequest::default(),
        overlay: false,
        accept_backing: Vec::new(),
    }
}

fn run(stage: &Stage, wanted: &CloneRequest) -> Result<Done<ClonedGuest>> {
    Session::begin(&stage.world, manner(Confirm::Ask))?.run(|world| clone(world, wanted))
}

fn definition(stage: &Stage, name: &str) -> DomainXml {
    DomainXml::parse(&stage.fake.definition(name)).unwrap()
}

/// The pcpus of a domain's vCPUs.
fn pcpus(xml: &DomainXml) -> CpuSet {
    Claims::read(xml).vcpu_pins.iter().flat_map(|pin| pin.cpuset.value.iter()).collect()
}

/// The code and the hint of a refusal.
fn refusal(stage: &Stage, wanted: &CloneRequest) -> (&'static str, String) {
    let error = run(stage, wanted).unwrap_err();
    let refusal = error.refusal().unwrap_or_else(|| panic!("{error}"));
    (refusal.code, refusal.hint.clone())
}

#[test]
fn a_clone_has_a_place_of_its_own_and_goes_again() {
    for gpus in [0, 1, 4] {
        let stage = stage(gpus, false);
        let before = stage.fake.definition("a");
        let made = run(&stage, &wanted()).unwrap().change.about;
        let (source, clone) = (definition(&stage, "a"), definition(&stage, "b"));
        assert_eq!(source.text(), before);
        let (own, others) = (clone.held(false).unwrap(), source.held(false).unwrap());
        assert_eq!((own.devices.len(), &own.devices), (others.devices.len(), &made.devices));
        assert!(own.devices.iter().all(|bdf| !others.devices.contains(bdf)), "{gpus}");
        assert!(!pcpus(&clone).is_empty() && !pcpus(&clone).intersects(&pcpus(&source)), "{gpus}");
        assert_eq!((clone.uuid().as_deref(), clone.is_copy()), (Some(OTHER), false));
        let record = clone.record().unwrap().unwrap();
        assert_eq!(record.request.gpus, GpuWish::Count(gpus));
        assert!(made.macs.iter().all(|mac| !before.contains(mac.as_str())), "{:?}", made.macs);
        // It is as `check` and `tune` would have it, beside the other.
        let topology = stage.world.topology().unwrap();
        let beside = Occupancy { domains: vec![others], ..Occupancy::default() };
        let errors = check(&clone, &topology, &beside, &Versions::default());
        let errors: Vec<_> = errors.iter().filter(|one| one.severity == Severity::Error).collect();
        assert!(errors.is_empty(), "{gpus}: {errors:?}");
        let undo = Undo { name: "b".into(), force: false, edited: false };
        let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
        let undone = undo::run(&mut session, &stage.world, &undo).unwrap().unwrap();
        assert_eq!(undone.what, ["clone of domain `a`"]);
        assert!(stage.fake.runs("b").is_none());
        assert_eq!(stage.fake.definition("a"), before);
        assert!(stage.world.history(OTHER).unwrap().entries.is_empty());
    }
}

/// A definition as libvirt completes it: each PCI controller with the name of its model in QEMU,
/// each root port with its number.
fn completed(text: &str) -> String {
    let mut parts = text.split("<controller type='pci'");
    let mut all = parts.next().unwrap().to_owned();
    for part in parts {
        let (head, rest) = part.split_once('>').unwrap();
        let number = head.split("index='").nth(1).unwrap().split('\'').next().unwrap();
        let more = match head {
            _ if head.contains("pcie-expander-bus") => "<model name='pxb-pcie'/>".to_owned(),
            _ if head.contains("pcie-root-port") => {
                format!("<model name='pcie-root-port'/><target chassis='{number}' port='0x1'/>")
            }
            _ => String::new(),
        };
        all += "<controller type='pci'";
        all += &match head.strip_suffix('/') {
            Some(head) if !more.is_empty() => format!("{head}>{more}</controller>{rest}"),
            _ => format!("{head}>{more}{rest}"),
        };
    }
    all
}

#[test]
fn a_controller_that_becomes_another_keeps_nothing_of_the_first() {
    let stage = stage(2, false);
    // The GPUs of the clones have other host bridges, so that their buses are arranged otherwise.
    let models = |xml: &DomainXml| -> BTreeMap<String, String> {
        let devices = xml.root().child("devices").unwrap();
        let all = devices.children("controller").filter(|one| one.attr("type").unwrap() == "pci");
        let attr = |one: Element<'_>, name| one.attr(name).unwrap_or_default().into_owned();
        all.map(|one| (attr(one, "index"), attr(one, "model"))).collect()
    };
    let (before, mut became) = (models(&definition(&stage, "a")), 0);
    for name in ["b", "c", "d", "e", "f"] {
        let first = completed(&stage.fake.definition("a"));
        stage.fake.put_xml(&first, false);
        let to = DomainName::new(name).unwrap();
        let uuid = Some(OTHER.replace("33333333", &format!("3333333{name}")));
        run(&stage, &CloneRequest { to, uuid, ..wanted() }).unwrap();
        let clone = definition(&stage, name);
        let now = models(&clone);
        became += before.iter().filter(|(i, was)| now.get(*i).is_some_and(|m| m != *was)).count();
        let devices = clone.root().child("devices").unwrap();
        for controller in devices.children("controller") {
            let model = controller.attr("model").unwrap_or_default().into_owned();
            let qemu = controller.child("model").and_then(|model| model.attr("name"));
            let target = |name| controller.child("target").is_some_and(|t| t.attr(name).is_some());
            let is_right = match &*model {
                "pcie-expander-bus" => {
                    qemu.is_none_or(|name| name == "pxb-pcie") && !target("chassis")
                }
                "pcie-root-port" => {
                    qemu.is_none_or(|name| name == "pcie-root-port") && !target("busNr")
                }
                _ => true,
            };
            assert!(is_right, "{name}: {}", clone.text());
        }
    }
    assert!(became > 0, "no controller became another: the test proves nothing");
}

#[test]
fn a_clone_remembers_that_others_may_reach_its_nvlinks() {
    for accepts in [true, false] {
        let stage = stage(1, false);
        run(&stage, &CloneRequest { accept_shared_fabric: accepts, ..wanted() }).unwrap();
        assert_eq!(accepts_shared_fabric(stage.world.state(), OTHER), accepts);
        assert_eq!(creation_options(stage.world.state(), OTHER), None);
        let options = show(&stage.world, "b").unwrap().options.unwrap();
        assert_eq!(options.contains(&(Opt::AcceptSharedFabric, Vec::new())), accepts);
        let described = describe(&stage.world, "b").unwrap().fields;
        let has = described.iter().any(|(field, _)| *field == Opt::AcceptSharedFabric.field());
        assert_eq!(has, accepts);
    }
}

#[test]
fn an_impossible_clone_is_refused_with_an_alternative() {
    assert_eq!(
        refusal(&stage(1, true), &wanted()),
        ("clone-active", "`gpuvm stop a` first".into())
    );
    let all = stage(16, false);
    let (code, hint) = refusal(&all, &wanted());
    assert_eq!(
        (code, hint.as_str()),
        ("clone-no-place", "`gpuvm clone a b --no-seed --accept-shared-fabric --gpus 0`")
    );
    assert_eq!(all.journals(), 0);
    // Also a number that no board has, and at once.
    let many = CloneRequest { gpus: Some(u32::MAX), ..wanted() };
    let (code, hint) = refusal(&all, &many);
    assert_eq!(
        (code, hint.as_str()),
        ("clone-no-place", "`gpuvm clone a b --no-seed --accept-shared-fabric --gpus 0`")
    );
    let two = stage(1, false);
    let strict = CloneRequest { accept_shared_fabric: false, gpus: Some(4), ..wanted() };
    assert_eq!(refusal(&two, &strict).0, "clone-shared-fabric");
    let (code, hint) =
        refusal(&two, &CloneRequest { to: DomainName::new("a").unwrap(), ..wanted() });
    assert_eq!((code, hint.contains("choose another name")), ("libvirt-exists", true), "{hint}");
    let theirs = two.fake.definition("a").replace(UUID, OTHER);
    let theirs = theirs.replacen(&format!("uuid='{OTHER}'"), &format!("uuid='{UUID}'"), 1);
    two.fake.put_xml(&theirs, false);
    let (code, hint) = refusal(&two, &wanted());
    assert_eq!((code, hint.contains("virt-clone --original a --name b")), ("clone-not-ours", true));
}

#[test]
fn a_clone_killed_at_any_call_is_gone_or_whole() {
    for at in kills() {
        let stage = stage(1, false);
        let before = stage.fake.definition("a");
        *stage.fake.at.borrow_mut() = Some(Box::new(move |number| {
            if number == at {
                kill();
            }
        }));
        let ended = catch_unwind(AssertUnwindSafe(|| run(&stage, &wanted()).map(|_| ())));
        if let Ok(ended) = ended {
            ended.unwrap();
            assert!(at > 0, "it was never killed");
            return;
        }
        *stage.fake.at.borrow_mut() = None;
        stage.recover();
        assert!(stage.fake.runs("b").is_none(), "call {at}");
        assert_eq!((stage.fake.definition("a"), stage.journals()), (before, 0));
        assert!(stage.world.history(OTHER).unwrap().entries.is_empty());
        assert!(run(&stage, &wanted()).unwrap().made);
    }
}

const POOL: &str = "p";

/// A stage with guest `a` that is off, with a disk that gpuvm made in a pool.
fn with_disk() -> Stage {
    let stage = bare();
    stage.fake.put_pool(POOL);
    let volume = NewVolume {
        name: "a.os".into(),
        format: "raw".into(),
        capacity_bytes: 4096,
        preallocated: false,
        backing: None,
        mode: 0o600,
    };
    let make = Step::Volume(VolumeStep::Make { pool: POOL.into(), volume, from: None });
    let making = || Change::new("create", "a", vec![make.clone()], ());
    Session::begin(&stage.world, manner(Confirm::Given))
        .unwrap()
        .run(|_| Ok::<_, crate::error::Error>(making()))
        .unwrap();
    let path = at(&stage, "a.os").display().to_string();
    let volume = Some(VolumeRef { pool: POOL.into(), name: "a.os".into() });
    let extra = Extra {
        disks: vec![Disk::new(&path, DiskFormat::Raw, DiskKind::File)],
        made: vec![Made { role: Role::Os, path, volume }],
        ..Extra::default()
    };
    put(&stage, 0, false, &extra);
    stage
}

/// The path of a volume.
fn at(stage: &Stage, name: &str) -> PathBuf {
    stage.fake.volume(POOL, name)
}

/// A clone of `a` over its disk.
fn over(to: &str) -> CloneRequest {
    let seed = SeedRequest { wanted: SeedWanted::No, ..SeedRequest::default() };
    let uuid = OTHER.replacen("333", &format!("33{to}"), 1);
    let to = DomainName::new(to).unwrap();
    CloneRequest { to, uuid: Some(uuid), overlay: true, seed, ..wanted() }
}

/// The file of a domain's first disk, and the files below it, the next one first.
fn chain(stage: &Stage, name: &str) -> Vec<String> {
    let xml = definition(stage, name);
    let disk = xml.disks().next().unwrap();
    let mut path = path_of(disk).map(PathBuf::from);
    let mut names = Vec::new();
    while let Some(image) = path {
        names.push(image.file_name().unwrap().to_str().unwrap().to_owned());
        let mut file = std::fs::File::open(&image).unwrap();
        path = image::below(&mut file).unwrap().pop().map(|below| below.name.into());
    }
    names
}

/// Undoes the last change of a domain.
fn undo_of(stage: &Stage, name: &str, force: bool) -> Result<()> {
    let undo = Undo { name: name.into(), force, edited: false };
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    undo::run(&mut session, &stage.world, &undo).map(drop)
}

fn remove(stage: &Stage, name: &str) -> Vec<String> {
    let wanted = Delete { name: name.into(), keep_data: false };
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    session.run(|world| delete(world, &wanted)).unwrap().change.warnings
}

#[test]
fn both_guests_have_an_image_over_a_read_only_base() {
    let stage = with_disk();
    let made = run(&stage, &over("b")).unwrap().change.about;
    assert_eq!(chain(&stage, "a"), ["a.os-2", "a.os"]);
    assert_eq!(chain(&stage, "b"), ["b.os", "a.os"]);
    assert_eq!((made.disks.len(), made.original.len()), (1, 1));
    for name in ["a", "b"] {
        let xml = definition(&stage, name);
        let disk = xml.disks().next().unwrap();
        assert_eq!(disk.child("driver").unwrap().attr("type").unwrap(), "qcow2");
        let roles: Vec<_> = xml.made().into_iter().map(|made| made.role).collect();
        assert!(roles.contains(&Role::Base) && roles.contains(&Role::Os), "{roles:?}");
    }
    // An image that `a` has not written since lies below the next clone, too, and `a` stays as it
    // is.
    let before = stage.fake.definition("a");
    let second = run(&stage, &over("c")).unwrap().change.about;
    assert!(second.original.is_empty());
    assert_eq!(
        (chain(&stage, "c"), stage.fake.definition("a")),
        (vec!["c.os".into(), "a.os".into()], before)
    );
    // One that it has written does not.
    write_on(&at(&stage, "a.os-2"));
    run(&stage, &over("d")).unwrap();
    assert_eq!(chain(&stage, "a"), ["a.os-3", "a.os-2", "a.os"]);
    assert_eq!(chain(&stage, "d"), ["d.os-2", "a.os-2", "a.os"]);
    // Each base goes with the last guest that needs it, whoever that is.
    let said = remove(&stage, "a");
    assert!(
        said.iter().any(|line| {
            line.contains("a.os stays: domain `b` has an image over it, and 2 more")
        }),
        "{said:?}"
    );
    assert_eq!(stage.fake.names(POOL), ["a.os", "a.os-2", "b.os", "c.os", "d.os-2"]);
    remove(&stage, "d");
    assert_eq!(stage.fake.names(POOL), ["a.os", "b.os", "c.os"]);
    remove(&stage, "b");
    let said = remove(&stage, "c");
    assert_eq!((stage.fake.names(POOL), said), (Vec::<String>::new(), Vec::new()));
}

#[test]
fn a_base_that_another_has_put_there_stays() {
    let stage = with_disk();
    run(&stage, &over("b")).unwrap();
    let (base, other) = (at(&stage, "a.os"), stage.dir.path().join("other"));
    std::fs::write(&other, vec![0; 4096]).unwrap();
    std::fs::rename(&other, &base).unwrap();
    remove(&stage, "b");
    let said = remove(&stage, "a");
    assert!(said.iter().any(|line| line.contains("not proven that gpuvm made it")), "{said:?}");
    assert_eq!(stage.fake.names(POOL), ["a.os"]);
}

#[test]
fn undo_reverts_unwritten_disks_and_refuses_the_rest() {
    let stage = with_disk();
    let before = stage.fake.definition("a");
    run(&stage, &over("b")).unwrap();
    let refused = |name: &str, force: bool| {
        let error = undo_of(&stage, name, force).unwrap_err();
        let refusal = error.refusal().unwrap_or_else(|| panic!("{error}"));
        (refusal.code, refusal.hint.clone())
    };
    // Also by force: the clone would read data that `a` writes.
    for force in [false, true] {
        assert_eq!(refused("a", force), ("undo-below", "`gpuvm delete b` first".into()));
    }
    write_on(&at(&stage, "b.os"));
    let (code, hint) = refused("b", false);
    assert!(code == "undo-written" && hint.contains("`gpuvm undo b --force`"), "{code}: {hint}");
    undo_of(&stage, "b", true).unwrap();
    assert_eq!(stage.fake.names(POOL), ["a.os", "a.os-2"]);
    undo_of(&stage, "a", true).unwrap();
    assert_eq!(stage.fake.definition("a"), before);
    // Its remains are in the way until they are deleted.
    assert_eq!(refusal(&stage, &over("b")).0, "clone-disk");
    std::fs::remove_file(at(&stage, "a.os-2")).unwrap();
    run(&stage, &over("b")).unwrap();
    undo_of(&stage, "b", false).unwrap();
    assert!(stage.fake.runs("b").is_none());
}

#[test]
fn a_copy_that_was_written_is_not_undone_unasked() {
    let stage = with_disk();
    run(&stage, &wanted()).unwrap();
    undo_of(&stage, "b", false).unwrap();
    run(&stage, &wanted()).unwrap();
    // The bytes count, and no time: the clock may have been set back.
    let file = at(&stage, "b.os");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let disk = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    disk.set_modified(std::time::UNIX_EPOCH).unwrap();
    let error = undo_of(&stage, "b", false).unwrap_err();
    let refusal = error.refusal().unwrap();
    assert!(error.whole().contains("may have written on disk"), "{}", error.whole());
    assert!(refusal.hint.contains("`gpuvm undo b --force`"), "{}", refusal.hint);
    assert_eq!(stage.fake.names(POOL), ["a.os", "b.os"]);
    undo_of(&stage, "b", true).unwrap();
    assert_eq!(stage.fake.names(POOL), ["a.os"]);
}

#[test]
fn no_overlay_is_made_over_a_disk_of_another_guest() {
    let stage = with_disk();
    run(&stage, &over("b")).unwrap();
    stage.fake.put_with_disk("other", &at(&stage, "a.os"));
    let error = run(&stage, &over("c")).unwrap_err().to_string();
    let used = "a.os is in use: domain `other` has it as a disk";
    assert!(error.contains(used), "{error}");
}

#[test]
fn no_command_is_offered_that_deletes_a_used_file() {
    let stage = with_disk();
    run(&stage, &over("b")).unwrap();
    remove(&stage, "a");
    // The base of `b` has the name of the disk of a new `a`.
    let to_a = |name: &str| {
        let name = name.to_owned();
        let to = DomainName::new("a").unwrap();
        let error = run(&stage, &CloneRequest { name, to, ..wanted() }).unwrap_err();
        let hint = error.refusal().unwrap().hint.clone();
        (error.to_string(), hint)
    };
    let (error, hint) = to_a("b");
    assert!(error.contains("`a.os`: domain `b` has an image over it"), "{error}");
    assert!(!hint.contains("vol-delete") && hint.contains("another name"), "{hint}");
    // Nobody uses that one.
    stage.fake.domains.borrow_mut().remove("b");
    std::fs::remove_file(at(&stage, "b.os")).unwrap();
    put(&stage, 0, false, &Extra::default());
    let text = stage.fake.definition("a").replace("<name>a<", "<name>c<");
    stage.fake.domains.borrow_mut().remove("a");
    let path = at(&stage, "c.os");
    std::fs::copy(at(&stage, "a.os"), &path).unwrap();
    let disk = format!(
        "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{}'/><target dev='vda' bus='virtio'/></disk></devices>",
        path.display()
    );
    stage.fake.put_xml(&text.replace("</devices>", &disk), false);
    let (error, hint) = to_a("c");
    assert!(error.contains("`a.os`: no domain uses it"), "{error}");
    assert!(hint.contains("`virsh vol-delete --pool p a.os` deletes"), "{hint}");
}

#[test]
fn an_overlay_is_refused_with_an_alternative() {
    let copy = "`gpuvm clone a b --no-seed --accept-shared-fabric` copies it whole";
    let stage = with_disk();
    assert_eq!(refusal(stage_off(&stage, true), &over("b")).0, "clone-active");
    stage_off(&stage, false);
    // A file that gpuvm did not make, or in the place of the one that it made.
    let (base, other) = (at(&stage, "a.os"), stage.dir.path().join("other"));
    let kept = std::fs::read(&base).unwrap();
    std::fs::write(&other, &kept).unwrap();
    std::fs::rename(&other, &base).unwrap();
    assert_eq!(refusal(&stage, &over("b")), ("clone-overlay", copy.into()));
    // One in no pool.
    let stage = with_disk();
    let file = stage.dir.path().join("a.raw");
    std::fs::write(&file, vec![0; 4096]).unwrap();
    let text = stage.fake.definition("a");
    let named = text.replace(at(&stage, "a.os").to_str().unwrap(), file.to_str().unwrap());
    stage.fake.put_xml(&named, false);
    let (code, hint) = refusal(&stage, &over("b"));
    assert!(
        code == "clone-overlay" && hint.contains("pool-create-as") && hint.contains(copy),
        "{hint}"
    );
    // A disk of others.
    stage.fake.put_xml(&text, false);
    stage.fake.put_with_disk("other", &at(&stage, "a.os"));
    assert_eq!(refusal(&stage, &over("b")).0, "clone-disk");
    stage.fake.domains.borrow_mut().remove("other");
    // A drive, and a guest without disks.
    let drive =
        text.replace("type='file'", "type='block'").replace("<source file=", "<source dev=");
    stage.fake.put_xml(&drive, false);
    assert_eq!(refusal(&stage, &over("b")).0, "clone-disk");
    let none = self::stage(0, false);
    assert_eq!(
        refusal(&none, &over("b")),
        (
            "clone-no-overlay",
            "`gpuvm clone a b --no-seed --accept-shared-fabric` makes a clone".into()
        )
    );
    assert_eq!(stage.fake.names(POOL), ["a.os"]);
}

/// The same stage with `a` on or off.
fn stage_off(stage: &Stage, runs: bool) -> &Stage {
    stage.fake.domains.borrow_mut().get_mut("a").unwrap().1 = runs;
    stage
}

#[test]
fn a_clone_over_a_disk_killed_at_any_call_is_gone_or_whole() {
    // `writes`: the first guest was started and ended before the recovery, and has written.
    for (at_call, writes) in kills().flat_map(|at| [(at, false), (at, true)]) {
        let stage = with_disk();
        let before = stage.fake.definition("a");
        stage.fake.calls.set(0);
        *stage.fake.at.borrow_mut() = Some(Box::new(move |number| {
            if number == at_call {
                kill();
            }
        }));
        let ended = catch_unwind(AssertUnwindSafe(|| run(&stage, &over("b")).map(|_| ())));
        if let Ok(ended) = ended {
            ended.unwrap();
            assert!(at_call > 3, "it was killed {at_call} times only");
            return;
        }
        *stage.fake.at.borrow_mut() = None;
        let moved = stage.fake.definition("a") != before;
        if writes && moved {
            write_on(&at(&stage, "a.os-2"));
        }
        stage.recover();
        assert!(stage.fake.runs("b").is_none(), "call {at_call}");
        assert_eq!(stage.journals(), 0);
        if writes && moved {
            // Its data is kept.
            assert_eq!(chain(&stage, "a"), ["a.os-2", "a.os"], "call {at_call}");
            assert_eq!(stage.fake.names(POOL), ["a.os", "a.os-2"], "call {at_call}");
            remove(&stage, "a");
            assert_eq!(stage.fake.names(POOL), [""; 0], "call {at_call}");
            continue;
        }
        assert_eq!(stage.fake.definition("a"), before, "call {at_call}");
        assert_eq!(stage.fake.names(POOL), ["a.os"], "call {at_call}");
        assert!(stage.world.history(UUID).unwrap().entries.is_empty());
        assert!(run(&stage, &over("b")).unwrap().made);
    }
}

#[test]
fn no_clone_lies_over_a_disk_that_a_guest_writes_which_was_started_meanwhile() {
    for at_call in 0.. {
        let stage = with_disk();
        let before = stage.fake.definition("a");
        stage.fake.calls.set(0);
        let fake = Rc::clone(&stage.fake);
        *stage.fake.at.borrow_mut() = Some(Box::new(move |number| {
            if number == at_call {
                fake.domains.borrow_mut().get_mut("a").unwrap().1 = true;
            }
        }));
        let made = run(&stage, &over("b")).is_ok();
        *stage.fake.at.borrow_mut() = None;
        if stage.fake.runs("a") == Some(false) {
            assert!(made && at_call > 2, "it was never started, or only {at_call} times");
            return;
        }
        let live = stage.fake.xml("a", XmlOf::Live).unwrap();
        let writes_base = live.contains(at(&stage, "a.os").to_str().unwrap())
            && !live.contains(at(&stage, "a.os-2").to_str().unwrap());
        assert_eq!(made, stage.fake.runs("b").is_some());
        assert!(!(made && writes_base), "call {at_call}");
        if !made {
            assert_eq!(stage.fake.definition("a"), before, "call {at_call}");
            assert_eq!(stage.fake.names(POOL), ["a.os"], "call {at_call}");
        }
        assert_eq!(stage.journals(), 0);
    }
}
