//! Passed-through NICs, drives and virtual functions of a guest on a hypervisor in memory: off and
//! running, undone, and killed at every call.

use super::{defined, kept, kill, manner, run};
use crate::bdf::Bdf;
use crate::domain::DomainXml;
use crate::hypervisor::{Domains as _, XmlOf};
use crate::reporter::Answer;
use crate::request::{DeviceWish, Extras, Guard, Request, VfSettings};
use crate::session::{Confirm, Manner, Session};
use crate::set::SetRequest;
use crate::stage::{Stage, UUID, kill_step};
use crate::taken::Taken;
use crate::tune::look;
use crate::undo::{self, Undo};
use gpuvm_core::placement::ExtraKind;
use gpuvm_core::topology::file::from_json;
use gpuvm_core::topology::{Content, Sriov, Topology};
use gpuvm_core::tune::Item;
use gpuvm_core::tune::items::OtherFunctions;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Root ports that a running guest has left.
fn with_spare(text: &str, count: u8) -> String {
    let ports = (0..count).map(|nth| {
        format!(
            "<controller type='pci' index='{}' model='pcie-root-port'><address type='pci' \
             bus='0x00' slot='0x1{nth}'/></controller>\n",
            90 + nth
        )
    });
    text.replacen("</devices>", &format!("{}</devices>", ports.collect::<String>()), 1)
}

/// Guest `a` of this request and with these spare ports on a host.
fn stage_on(host: Topology, request: Request, (runs, spare): (bool, u8)) -> Stage {
    let mut stage = Stage::who_says(Answer::Yes);
    stage.world = stage.world.with_topology(host);
    let alone = Taken { assume_empty: true, ..Taken::default() };
    let request = Request { spare_ports: Some(0), ..request };
    let text = defined(&stage, ("a", UUID), request, alone);
    stage.fake.put_xml(&with_spare(&text, spare), runs);
    stage
}

/// A DGX-2.
fn dgx2() -> Topology {
    from_json(include_str!("../../../../topologies/dgx-2.json")).unwrap()
}

/// The same, with this many NICs.
fn stage(nics: u32, how: (bool, u8)) -> Stage {
    let extras = Extras { nics: DeviceWish::Count(nics), ..Extras::default() };
    stage_on(dgx2(), Request { extras, ..Request::for_gpus(1) }, how)
}

fn wanted(functions: OtherFunctions, live: bool) -> SetRequest {
    SetRequest { name: "a".into(), functions, live, ..SetRequest::default() }
}

fn nics(count: u32, live: bool) -> SetRequest {
    let nics = Some(DeviceWish::Count(count));
    wanted(OtherFunctions { nics, ..OtherFunctions::default() }, live)
}

/// The functions of a kind that the definition has, and those that the running guest has.
fn has(stage: &Stage, kind: ExtraKind) -> [Vec<Bdf>; 2] {
    let topology = stage.world.topology().unwrap();
    let live = stage.fake.xml("a", XmlOf::Live).unwrap_or_default();
    [stage.fake.definition("a"), live].map(|text| {
        let Ok(xml) = DomainXml::parse(&text) else { return Vec::new() };
        let mut all = xml.held(false).unwrap().devices;
        all.retain(|bdf| topology.device(*bdf).and_then(ExtraKind::of) == Some(kind));
        all.sort_unstable();
        all
    })
}

fn undone(stage: &Stage) {
    let wanted = Undo { name: "a".into(), force: false, edited: false };
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    undo::run(&mut session, &stage.world, &wanted).unwrap().unwrap();
}

#[test]
fn nics_come_and_go_while_the_guest_is_off() {
    let stage = stage(1, (false, 0));
    let before = stage.fake.definition("a");
    let [first, _] = has(&stage, ExtraKind::Nic);
    assert!(run(&stage, &nics(3, false)).unwrap().made);
    let [three, _] = has(&stage, ExtraKind::Nic);
    assert!(three.len() == 3 && three.contains(&first[0]), "{three:?}");
    assert!(!run(&stage, &nics(3, false)).unwrap().made, "it has them");
    undone(&stage);
    assert_eq!(stage.fake.definition("a"), before);
    assert!(run(&stage, &nics(0, false)).unwrap().made);
    assert_eq!(has(&stage, ExtraKind::Nic)[0], []);
    let error = run(&stage, &nics(99, false)).unwrap_err();
    assert!(error.whole().contains("99 NICs"), "{}", error.whole());
    assert_eq!(kept(&stage), 1);
}

#[test]
fn an_address_that_is_no_nic_is_refused_with_where_nics_are_shown() {
    let stage = stage(1, (false, 0));
    let exactly = |bdf: &str| {
        let nics = Some(DeviceWish::Exact(vec![bdf.parse().unwrap()]));
        wanted(OtherFunctions { nics, ..OtherFunctions::default() }, false)
    };
    for (bdf, said) in [
        ("0000:34:00.0", "0000:34:00.0 is not a NIC but a GPU"),
        ("0000:36:00.0", "0000:36:00.0 is not a NIC but a GPU"),
        ("0000:99:00.0", "0000:99:00.0 is not a device of this host"),
    ] {
        let error = run(&stage, &exactly(bdf)).unwrap_err();
        assert!(error.whole().contains(said), "{}", error.whole());
        assert_eq!(error.refusal().unwrap().hint, "`gpuvm nic list` shows the NICs");
    }
    // Changes are reported of NICs alone, though the guest has a GPU, too.
    let tuned = look(&stage.world, &exactly("0000:e1:00.0").tuning(None, None)).unwrap();
    let changes = tuned.pairs().flat_map(|(_, tuned)| tuned.changes.clone());
    let said: Vec<String> =
        changes.map(|change| format!("{}: {}", change.item, change.now)).collect();
    assert!(said.contains(&"nic: 0000:e1:00.0".to_owned()), "{said:?}");
    assert!(!said.iter().any(|one| one.starts_with("gpus")), "{said:?}");
}

#[test]
fn a_function_taken_since_is_not_returned() {
    let stage = stage(2, (false, 0));
    let [both, _] = has(&stage, ExtraKind::Nic);
    assert!(run(&stage, &nics(1, false)).unwrap().made);
    let [left, _] = has(&stage, ExtraKind::Nic);
    let gone = both.iter().find(|bdf| !left.contains(bdf)).unwrap();
    let extras = Extras { nics: DeviceWish::Exact(vec![*gone]), ..Extras::default() };
    let request = Request { extras, spare_ports: Some(0), ..Request::for_gpus(0) };
    let alone = Taken { assume_empty: true, ..Taken::default() };
    let other = "22222222-2222-4333-8444-555555555555";
    stage.fake.put_xml(&defined(&stage, ("b", other), request, alone), false);
    let before = stage.fake.definition("a");
    for (dry_run, force) in [(true, false), (false, false), (false, true)] {
        let wanted = Undo { name: "a".into(), force, edited: false };
        let manner = Manner { dry_run, ..manner(Confirm::Given) };
        let mut session = Session::begin(&stage.world, manner).unwrap();
        let error = undo::run(&mut session, &stage.world, &wanted).unwrap_err();
        let says = format!("domain `a` cannot have {gone} back: it is held by domain `b`");
        assert!(error.to_string().contains(&says), "{error}");
    }
    assert_eq!(stage.fake.definition("a"), before);
    stage.fake.domains.borrow_mut().remove("b");
    undone(&stage);
    assert_eq!(has(&stage, ExtraKind::Nic)[0], both);
}

#[test]
fn a_running_guest_is_changed_at_once_or_not_at_all() {
    let stage_of = || stage(1, (true, 2));
    let stage = stage_of();
    let error = run(&stage, &nics(2, false)).unwrap_err();
    let refusal = error.refusal().unwrap();
    assert_eq!(refusal.code, "set-runs");
    assert!(refusal.hint.starts_with("`gpuvm set a --nic 2 --live`"), "{refusal:?}");
    // Its pages cannot change at once.
    let pages = SetRequest { huge_pages: Item::Off, ..nics(2, false) };
    let error = run(&stage, &pages).unwrap_err();
    assert_eq!(error.refusal().unwrap().hint, "`gpuvm stop a` first");
    let before = (stage.fake.definition("a"), has(&stage, ExtraKind::Nic));
    let done = run(&stage, &nics(2, true)).unwrap();
    assert!(done.made && !done.change.about.domains(false)[0].waits_for_start);
    let [defined, live] = has(&stage, ExtraKind::Nic);
    assert!(defined.len() == 2 && defined == live, "{defined:?} {live:?}");
    undone(&stage);
    assert_eq!((stage.fake.definition("a"), has(&stage, ExtraKind::Nic)), before);
    // Three more than there are ports, and none at all.
    let error = run(&stage, &nics(4, true)).unwrap_err();
    assert!(error.whole().contains("no free root port for another NIC"), "{error:?}");
    let hint = &error.refusal().unwrap().hint;
    assert!(hint.starts_with("`gpuvm stop a`, then `gpuvm set a --nic 4`"), "{hint}");
    assert!(run(&stage, &nics(0, true)).unwrap().made);
    assert_eq!(has(&stage, ExtraKind::Nic), [Vec::new(), Vec::new()]);
    // A guest that keeps its NIC is as it was.
    let stage = stage_of();
    stage.fake.holds.set(true);
    let before = (stage.fake.definition("a"), has(&stage, ExtraKind::Nic));
    assert!(run(&stage, &nics(0, true)).is_err());
    assert_eq!((stage.fake.definition("a"), has(&stage, ExtraKind::Nic)), before);
    for wanted in [nics(2, true), nics(0, true)] {
        let mut at = 0;
        loop {
            let stage = stage_of();
            *stage.fake.at.borrow_mut() = Some(Box::new(move |number| {
                if number == at {
                    kill();
                }
            }));
            let made = catch_unwind(AssertUnwindSafe(|| run(&stage, &wanted).map(drop)));
            *stage.fake.at.borrow_mut() = None;
            if let Ok(made) = made {
                assert!(made.is_ok() && at > 1, "{at} calls were seen: the test proves nothing");
                break;
            }
            stage.recover();
            let [defined, live] = has(&stage, ExtraKind::Nic);
            assert_eq!(defined, live, "killed at call {at}");
            at += kill_step();
        }
    }
}

#[test]
fn killed_while_it_is_off_it_is_as_it_was_or_whole() {
    super::killed(|| stage(1, (false, 0)), &nics(2, false));
    super::killed(|| stage(2, (false, 0)), &nics(0, false));
}

/// A DGX-2 whose first free NIC has two virtual functions.
fn with_vfs() -> (Topology, Vec<Bdf>) {
    let mut parts = dgx2().parts().clone();
    let is_free = |device: &&gpuvm_core::topology::PciDevice| {
        let used = device.net.as_ref().is_some_and(|net| !net.used_by.is_empty());
        ExtraKind::of(device) == Some(ExtraKind::Nic) && !used
    };
    let pf = parts.devices.iter().find(is_free).unwrap().clone();
    let mut vfs = Vec::new();
    for function in 1..3 {
        let at = pf.bdf;
        let bdf = Bdf::new(at.segment(), at.bus(), at.device(), function).unwrap();
        let mut vf = pf.clone();
        (vf.bdf, vf.sriov, vf.net) = (bdf, Some(Sriov::Vf { pf: at }), None);
        vf.iommu_group = pf.iommu_group.map(|_| 900 + u32::from(function));
        vf.bars = Vec::new();
        vfs.push(bdf);
        parts.devices.push(vf);
    }
    for device in parts.devices.iter_mut().filter(|device| device.bdf == pf.bdf) {
        device.sriov = Some(Sriov::Pf { total: 8, enabled: 2 });
        device.class = 0x02_0000;
        // The permissions of its functions are queried from an existing network device.
        let net = serde_json::json!({"netdevs": ["lo"]});
        device.net = Some(serde_json::from_value(net).unwrap());
    }
    parts.devices.sort_by_key(|device| device.bdf);
    (Topology::new(parts).unwrap(), vfs)
}

#[test]
fn permissions_of_virtual_functions_are_recorded_and_removed_with_them() {
    let (host, vfs) = with_vfs();
    let stage = stage_on(host, Request::for_gpus(0), (false, 0));
    let guard = Guard { trust: Some(true), spoof: None };
    let trusted = VfSettings { vlan: Some(5), guard, ..VfSettings::default() };
    let named = |vfs: &[Bdf], settings: Vec<VfSettings>| {
        let vfs = Some(DeviceWish::Exact(vfs.to_vec()));
        wanted(OtherFunctions { vfs, vf_settings: settings, ..OtherFunctions::default() }, false)
    };
    assert!(run(&stage, &named(&vfs[..1], vec![trusted.clone()])).unwrap().made);
    let xml = || DomainXml::parse(&stage.fake.definition("a")).unwrap();
    let guarded = xml().guarded().unwrap();
    assert_eq!((guarded[0].bdf, guarded[0].to), (vfs[0], guard));
    // Another one is added, the first keeps its permissions.
    assert!(run(&stage, &named(&vfs, vec![])).unwrap().made);
    assert_eq!(xml().guarded().unwrap(), guarded);
    assert!(stage.fake.definition("a").contains("<tag id='5'/>"));
    assert!(run(&stage, &named(&vfs[1..], vec![])).unwrap().made);
    assert_eq!(xml().guarded().unwrap(), []);
    undone(&stage);
    assert_eq!(xml().guarded().unwrap(), guarded);
    // A card without a network device gets no settings.
    let (mut parts, vfs) = (stage.world.topology().unwrap().parts().clone(), vfs);
    parts.devices.iter_mut().for_each(|device| device.net = None);
    let bare = stage_on(Topology::new(parts).unwrap(), Request::for_gpus(0), (false, 0));
    let error = run(&bare, &named(&vfs[..1], vec![trusted])).unwrap_err();
    assert_eq!(error.refusal().map(|refusal| refusal.code), Some("vf-no-netdev"), "{error}");
}

#[test]
fn drives_with_data_are_asked_about_and_those_of_the_host_refused() {
    let mut parts = dgx2().parts().clone();
    let of = |is_used: bool| {
        let is_so = |drive: &&gpuvm_core::topology::Drive| drive.uses().next().is_some() == is_used;
        parts.drives.iter().filter(is_so).filter_map(|drive| drive.bdf).collect::<Vec<Bdf>>()
    };
    let (free, used) = (of(false), of(true));
    assert!(!free.is_empty() && !used.is_empty(), "{free:?} {used:?}");
    let full = parts.drives.iter_mut().find(|drive| drive.bdf == Some(free[0])).unwrap();
    full.content = Some(Content::Unread("it does not answer".into()));
    let stage = stage_on(Topology::new(parts).unwrap(), Request::for_gpus(1), (false, 0));
    let drive = |bdf: Bdf| {
        let nvmes = Some(DeviceWish::Exact(vec![bdf]));
        wanted(OtherFunctions { nvmes, ..OtherFunctions::default() }, false)
    };
    let error = run(&stage, &drive(used[0])).unwrap_err();
    assert!(error.whole().contains("is used by the host"), "{}", error.whole());
    let change = crate::set::set(&stage.world, &drive(free[0])).unwrap();
    assert_eq!(change.losses.len(), 1, "{:?}", change.losses);
    assert!(change.refuse_losses().is_err());
    let accepted = SetRequest { accept_data_loss: true, ..drive(free[0]) };
    assert!(crate::set::set(&stage.world, &accepted).unwrap().losses.is_empty());
    assert!(run(&stage, &drive(free[0])).unwrap().made, "who is asked says yes");
    assert_eq!(has(&stage, ExtraKind::Nvme)[0], [free[0]]);
}
