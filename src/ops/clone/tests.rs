//! Clones on a hypervisor in memory, with the GPUs of a DGX-2: planned anew, refused, undone, and
//! killed at every call.

use super::*;
use crate::domain::guest::VirtType;
use crate::domain::{DomainEdit, Element};
use crate::guest::{Extra, GuestRequest, NameRequest, render, resolve};
use crate::reporter::Answer;
use crate::request::{DomainName, GpuWish, Request};
use crate::session::{Confirm, Done, Session};
use crate::stage::{Stage, UUID, kill, manner};
use crate::storage::SeedRequest;
use crate::taken::Taken;
use crate::undo::{self, Undo};
use gpuvm_core::check::check;
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::claims::Claims;
use gpuvm_core::finding::Severity;
use gpuvm_core::placement::Occupancy;
use gpuvm_core::topology::file::from_json;
use gpuvm_core::versions::Versions;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The UUID of the clone.
const OTHER: &str = "33333333-2222-4333-8444-555555555555";

/// A stage with guest `a` of this many GPUs of a DGX-2.
fn stage(gpus: u32, runs: bool) -> Stage {
    let mut stage = Stage::who_says(Answer::Yes);
    let host = from_json(include_str!("../../../topologies/dgx-2.json")).unwrap();
    stage.world = stage.world.with_topology(host);
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
    let mut xml = render(&request, &planned, &Extra::default()).unwrap();
    xml.apply(&DomainEdit::SetUuid { uuid: UUID.into() }).unwrap();
    stage.fake.put_xml(xml.text(), runs);
    stage
}

/// A clone `b` of `a`.
fn wanted() -> CloneRequest {
    CloneRequest {
        name: "a".into(),
        to: DomainName::new("b").unwrap(),
        gpus: None,
        allow_remote: false,
        allow_split: false,
        accept_shared_fabric: true,
        uuid: Some(OTHER.into()),
        seed: SeedRequest::default(),
    }
}

/// Makes it.
fn run(stage: &Stage, wanted: &CloneRequest) -> Result<Done<ClonedGuest>> {
    Session::begin(&stage.world, manner(Confirm::Ask))?.run(|world| clone(world, wanted))
}

/// The definition of a domain.
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

/// A definition as libvirt completes it: each PCI controller with the name of its model in QEMU, each
/// root port with its number.
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
fn what_cannot_be_cloned_is_refused_with_what_can() {
    assert_eq!(
        refusal(&stage(1, true), &wanted()),
        ("clone-active", "`gpuvm stop a` first".into())
    );
    let all = stage(16, false);
    let (code, hint) = refusal(&all, &wanted());
    assert_eq!((code, hint.as_str()), ("clone-no-place", "`gpuvm clone a b --gpus 0`"));
    assert_eq!(all.journals(), 0);
    // Also a number that no board has, and at once.
    let many = CloneRequest { gpus: Some(u32::MAX), ..wanted() };
    let (code, hint) = refusal(&all, &many);
    assert_eq!((code, hint.as_str()), ("clone-no-place", "`gpuvm clone a b --gpus 0`"));
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
    for at in 0.. {
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
