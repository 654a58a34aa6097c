//! Guests of recorded hosts with other NICs, drives and virtual functions: functions that stay keep
//! their places, and the checker, `tune` and `verify` agree with the result.

use super::super::items::OtherFunctions;
use super::super::{Given, Items, TuneError, Tuned, tune};
use super::tests::not_as_asked;
use super::{Kinds, settings_now};
use crate::bdf::Bdf;
use crate::domain::claims::Claims;
use crate::domain::guest::VirtType;
use crate::domain::tests::guests::{TEMPLATES, guest, host, render};
use crate::domain::{DomainXml, Element};
use crate::finding::Severity;
use crate::occupancy::{Held, Occupancy};
use crate::placement::{ExtraKind, plan};
use crate::request::{Allow, DeviceWish, Extras, Guard, Near, Request, VfSettings};
use crate::share::is_all;
use crate::topology::{Sriov, Topology};
use crate::tune::items::Resize;
use crate::versions::Versions;
use std::collections::{BTreeMap, BTreeSet};

/// A guest with these settings, beside others.
fn made_beside(
    xml: &DomainXml,
    topology: &Topology,
    items: &Items,
    others: &Occupancy,
) -> Result<Tuned, TuneError> {
    let versions = Versions::default();
    let given = Given {
        topology,
        others,
        items,
        allow: Allow::default(),
        disks: &BTreeMap::new(),
        abilities: Default::default(),
        versions: &versions,
    };
    tune(xml, &given)
}

fn made(xml: &DomainXml, topology: &Topology, items: &Items) -> Result<Tuned, TuneError> {
    made_beside(xml, topology, items, &Occupancy::default())
}

/// The settings that give a guest these functions.
fn items(functions: OtherFunctions) -> Items {
    Items { resize: Some(Resize { functions, ..Resize::default() }), ..Items::default() }
}

/// This many NICs and drives; `None` if they stay.
fn count(nics: Option<u32>, nvmes: Option<u32>) -> OtherFunctions {
    let [nics, nvmes] = [nics, nvmes].map(|number| number.map(DeviceWish::Count));
    OtherFunctions { nics, nvmes, ..OtherFunctions::default() }
}

fn ours(topology: &Topology, request: &Request) -> DomainXml {
    let place = plan(topology, &Occupancy::default(), request).unwrap();
    render(TEMPLATES[0].1, &guest("a", VirtType::Kvm, request), &place, topology)
}

fn request(gpus: u32, nics: u32, nvmes: u32) -> Request {
    let extras = Extras {
        nics: DeviceWish::Count(nics),
        nvmes: DeviceWish::Count(nvmes),
        ..Extras::default()
    };
    Request { extras, ..Request::for_gpus(gpus) }
}

/// The functions of a kind that it has.
fn of(xml: &DomainXml, topology: &Topology, kind: ExtraKind) -> Vec<Bdf> {
    Kinds::new(topology, xml).passed(&Claims::read(xml), kind)
}

/// The guest addresses of functions, by address on the host, with their aliases.
fn places(xml: &DomainXml) -> BTreeMap<String, (String, String)> {
    let devices = xml.root().child("devices").unwrap();
    let is_passed = |device: &Element<'_>| device.find("source/address").is_some();
    let hostdevs = devices.elements().filter(is_passed).map(|hostdev| {
        let alias = hostdev.child("alias").unwrap().attr("name").unwrap().into_owned();
        let source = hostdev.find("source/address").unwrap().xml().to_owned();
        (source, (alias, hostdev.child("address").unwrap().xml().to_owned()))
    });
    hostdevs.collect()
}

/// Checks a change against the rules for it, and returns it.
fn agreed(
    xml: &DomainXml,
    topology: &Topology,
    functions: OtherFunctions,
    what: &str,
) -> DomainXml {
    let tuned = made(xml, topology, &items(functions.clone())).unwrap();
    for kind in ExtraKind::ALL {
        let (had, has) = (of(xml, topology, kind), of(&tuned.after, topology, kind));
        match functions.of(kind) {
            None => assert_eq!(had, has, "{what}"),
            Some(DeviceWish::Count(number)) => {
                // Others of an IOMMU group come along.
                let groups: BTreeSet<_> =
                    has.iter().map(|bdf| topology.device(*bdf).unwrap().iommu_group).collect();
                let number = *number as usize;
                assert!(groups.len() <= number && number <= has.len(), "{what}: {has:?}");
                let (some, all) = if had.len() < has.len() { (&had, &has) } else { (&has, &had) };
                assert!(some.iter().all(|one| all.contains(one)), "{what}: {had:?} {has:?}");
            }
            Some(DeviceWish::Exact(bdfs)) => assert!(
                has.len() == bdfs.len() && has.iter().all(|bdf| bdfs.contains(bdf)),
                "{what}: {has:?}"
            ),
        }
    }
    let (before, after) = (places(xml), places(&tuned.after));
    for (source, place) in before.iter().filter(|(source, _)| after.contains_key(*source)) {
        assert_eq!(&after[source], place, "{what}: {source} moved");
    }
    let errors = tuned.findings.iter().filter(|found| found.severity == Severity::Error);
    assert_eq!(errors.count(), 0, "{what}: {:?}", tuned.findings);
    let left = made(&tuned.after, topology, &Items::all()).unwrap();
    assert_eq!(left.changes, [], "{what}: tune");
    assert_eq!(not_as_asked(&tuned.after), [""; 0], "{what}: verify");
    let again = made(&tuned.after, topology, &items(functions)).unwrap();
    assert_eq!(again.changes, [], "{what}: a second time");
    tuned.after
}

/// The place of a function in the guest: its bus, slot and function.
fn place_of(xml: &DomainXml, bdf: &str) -> (u64, u64, u64) {
    let claims = Claims::read(xml);
    let passed = claims.passed.iter().find(|passed| passed.bdf.value.to_string() == bdf).unwrap();
    let at = passed.at.as_ref().unwrap().value;
    (at.controller.into(), at.slot.into(), at.function.into())
}

#[test]
fn functions_of_a_card_share_a_slot_as_on_the_host() {
    let topology = host("dual-socket");
    let xml = ours(&topology, &request(2, 0, 0));
    let cards: Vec<String> = topology.gpus().map(|gpu| gpu.bdf.to_string()).collect();
    let mut ports = BTreeSet::new();
    for gpu in &cards {
        let (bus, slot, first) = place_of(&xml, gpu);
        assert_eq!((slot, first), (0, 0), "{gpu}");
        let audio = gpu.replace(".0", ".1");
        assert_eq!(place_of(&xml, &audio), (bus, slot, 1), "{audio}");
        ports.insert(bus);
    }
    assert_eq!(ports.len(), cards.len());
    assert_eq!(xml.text().matches("multifunction='on'/>\n    </hostdev>").count(), cards.len());
    let left = made(&xml, &topology, &Items::all()).unwrap();
    assert_eq!(left.changes, [], "{}", xml.text());
    // Those that have a root port each, as all had before, stay there.
    let request = request(1, 0, 0);
    let mut place = plan(&topology, &Occupancy::default(), &request).unwrap();
    place.guest_pcie.beside_gpu.clear();
    let apart = render(TEMPLATES[0].1, &guest("a", VirtType::Kvm, &request), &place, &topology);
    let buses: BTreeSet<u64> =
        place.devices.iter().map(|bdf| place_of(&apart, &bdf.to_string()).0).collect();
    assert_eq!(buses.len(), place.devices.len());
    assert_eq!(made(&apart, &topology, &Items::all()).unwrap().changes, []);
}

#[test]
fn more_and_fewer_nics_and_drives_on_every_host() {
    let mut seen = 0;
    let names = ["dgx-2", "dgx-a100", "dgx-h100", "dgx-1", "dual-socket", "h100-guest"];
    for (at, name) in (0..).zip(names) {
        let topology = host(name);
        for gpus in (0..3).filter(|gpus| is_all() || (gpus + at) % 3 == 1) {
            if (gpus as usize) > topology.gpus().count() {
                continue;
            }
            let mut xml = ours(&topology, &request(gpus, 0, 0));
            let steps = [(1, 0), (2, 1), (1, 2), (1, 0), (0, 1), (0, 0)];
            for (nics, nvmes) in steps {
                let what = format!("{name}, {gpus} GPUs: {nics} NICs, {nvmes} drives");
                if plan(&topology, &Occupancy::default(), &request(gpus, nics, nvmes)).is_err() {
                    continue; // the host does not have them
                }
                xml = agreed(&xml, &topology, count(Some(nics), Some(nvmes)), &what);
                let extras = xml.record().unwrap().unwrap().request.extras;
                assert_eq!(extras, request(gpus, nics, nvmes).extras, "{what}");
                seen += 1;
            }
        }
    }
    assert!(seen > if is_all() { 40 } else { 12 }, "{seen}");
}

#[test]
fn added_devices_are_as_near_as_those_of_a_new_guest() {
    let topology = host("dgx-2");
    let new = ours(&topology, &request(4, 4, 2));
    let old = ours(&topology, &request(4, 0, 0));
    let after = agreed(&old, &topology, count(Some(4), Some(2)), "four GPUs");
    for kind in [ExtraKind::Nic, ExtraKind::Nvme] {
        assert_eq!(of(&after, &topology, kind), of(&new, &topology, kind));
    }
    // One at a time, those that it has stay.
    let one = agreed(&old, &topology, count(Some(1), None), "the first NIC");
    let four = agreed(&one, &topology, count(Some(4), None), "three more");
    let nics = of(&one, &topology, ExtraKind::Nic);
    assert!(nics.iter().all(|nic| of(&four, &topology, ExtraKind::Nic).contains(nic)));
}

#[test]
fn a_kind_that_is_not_named_stays_and_a_named_one_is_exact() {
    let topology = host("dgx-2");
    let xml = ours(&topology, &request(2, 2, 1));
    let nics = of(&xml, &topology, ExtraKind::Nic);
    let is_free = |nic: &Bdf| {
        let request = Request {
            extras: Extras { nics: DeviceWish::Exact(vec![*nic]), ..Extras::default() },
            ..Request::for_gpus(0)
        };
        !nics.contains(nic) && plan(&topology, &Occupancy::default(), &request).is_ok()
    };
    let all = topology.devices().iter().filter(|d| ExtraKind::of(d) == Some(ExtraKind::Nic));
    let other = all.map(|device| device.bdf).find(is_free).unwrap();
    let named = DeviceWish::Exact(vec![nics[1], other]);
    let wanted = OtherFunctions { nics: Some(named.clone()), ..OtherFunctions::default() };
    let after = agreed(&xml, &topology, wanted, "one stays, one comes, one goes");
    let extras = after.record().unwrap().unwrap().request.extras;
    assert_eq!((extras.nics, extras.nvmes), (named, DeviceWish::Count(1)));
    // Another has it.
    let held = Held { domain: "b".into(), devices: vec![other], ..Held::default() };
    let others = Occupancy { domains: vec![held], ..Occupancy::default() };
    let wanted = OtherFunctions { nics: Some(DeviceWish::Exact(vec![other])), ..count(None, None) };
    let refused = made_beside(&xml, &topology, &items(wanted), &others).unwrap_err();
    assert!(refused.to_string().contains("cannot use NIC"), "{refused}");
    let many = made(&xml, &topology, &items(count(Some(99), None))).unwrap_err();
    assert!(matches!(many, TuneError::Plan(_)), "{many}");
}

#[test]
fn the_distance_of_its_request_is_kept_unless_another_is_named() {
    let topology = host("dgx-2");
    let mut near = request(1, 1, 0);
    near.extras.nic_near = Near::Switch;
    let xml = ours(&topology, &near);
    let all = made(&xml, &topology, &items(count(Some(8), None)));
    assert!(all.unwrap_err().to_string().contains("below one PCIe switch"));
    let wanted = OtherFunctions { nic_near: Some(Near::Any), ..count(Some(8), None) };
    let after = agreed(&xml, &topology, wanted, "eight from anywhere");
    assert_eq!(after.record().unwrap().unwrap().request.extras.nic_near, Near::Any);
}

/// A DGX-2 whose first free NIC has four virtual functions.
fn with_vfs() -> (Topology, Vec<Bdf>) {
    let plain = host("dgx-2");
    let mut parts = plain.parts().clone();
    let is_free = |device: &&crate::topology::PciDevice| {
        let used = device.net.as_ref().is_some_and(|net| !net.used_by.is_empty());
        ExtraKind::of(device) == Some(ExtraKind::Nic) && !used
    };
    let pf = parts.devices.iter().find(is_free).unwrap().clone();
    let mut vfs = Vec::new();
    for function in 1..5 {
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
        device.sriov = Some(Sriov::Pf { total: 8, enabled: 4 });
        device.class = 0x02_0000;
        let net = serde_json::json!({"netdevs": ["ens1"]});
        device.net = Some(serde_json::from_value(net).unwrap());
    }
    parts.devices.sort_by_key(|device| device.bdf);
    (Topology::new(parts).unwrap(), vfs)
}

/// The MAC address and VLAN of each virtual function.
fn macs(xml: &DomainXml, vfs: &[Bdf]) -> Vec<(Option<String>, Option<u16>)> {
    let settings = vfs.iter().map(|vf| settings_now(xml, *vf));
    settings.map(|settings| (settings.mac, settings.vlan)).collect()
}

#[test]
fn virtual_functions_come_as_nics_with_settings_and_keep_what_is_not_named() {
    let (topology, vfs) = with_vfs();
    let wish = |vfs: DeviceWish, settings: Vec<VfSettings>| OtherFunctions {
        vfs: Some(vfs),
        vf_settings: settings,
        ..OtherFunctions::default()
    };
    let vlan = |vlan| VfSettings { vlan: Some(vlan), ..VfSettings::default() };
    let xml = ours(&topology, &request(1, 0, 0));
    let two = agreed(&xml, &topology, wish(DeviceWish::Count(2), vec![vlan(5)]), "two");
    let has = of(&two, &topology, ExtraKind::Vf);
    let was = macs(&two, &has);
    assert!(was.iter().all(|(mac, vlan)| mac.is_some() && *vlan == Some(5)), "{was:?}");
    assert_ne!(was[0].0, was[1].0);
    let extras = two.record().unwrap().unwrap().request.extras;
    assert_eq!((extras.vfs, extras.vf_settings), (DeviceWish::Count(2), vec![vlan(5)]));
    // One more without settings: those that are there keep theirs, and the record names them.
    let three = agreed(&two, &topology, wish(DeviceWish::Count(3), vec![]), "three");
    assert_eq!(macs(&three, &has), was);
    let new: Vec<Bdf> = of(&three, &topology, ExtraKind::Vf);
    let new: Vec<Bdf> = new.into_iter().filter(|vf| !has.contains(vf)).collect();
    let settings = macs(&three, &new);
    assert!(settings[0].0.is_some() && settings[0].1.is_none(), "{settings:?}");
    assert!(!was.contains(&settings[0]));
    let extras = three.record().unwrap().unwrap().request.extras;
    assert!(matches!(&extras.vfs, DeviceWish::Exact(all) if all.len() == 3), "{extras:?}");
    assert_eq!(extras.settings_of(has[0]), vlan(5));
    assert_eq!(extras.settings_of(new[0]), VfSettings::default());
    // Settings of one that stays.
    let guard = Guard { trust: Some(true), spoof: None };
    let trusted = VfSettings { vlan: Some(7), guard, ..VfSettings::default() };
    let named = wish(DeviceWish::Exact(vec![has[0]]), vec![trusted]);
    let one = agreed(&three, &topology, named, "one with other settings");
    assert_eq!(macs(&one, &has[..1]), [(was[0].0.clone(), Some(7))]);
    assert_eq!(settings_now(&one, has[0]).guard, guard);
    // The address of another NIC is refused.
    let mac = was[0].0.clone();
    let twice = VfSettings { mac, ..VfSettings::default() };
    let named = wish(DeviceWish::Exact(vec![has[0], has[1]]), vec![VfSettings::default(), twice]);
    let error = made(&one, &topology, &items(named)).unwrap_err();
    assert!(error.to_string().contains("another NIC has the MAC address"), "{error}");
    let none = agreed(&one, &topology, wish(DeviceWish::Count(0), vec![]), "none");
    assert_eq!(none.record().unwrap().unwrap().request.extras, Extras::default());
    assert!(vfs.iter().all(|vf| !none.text().contains(&vf.to_string()[5..])));
}

#[test]
fn a_running_guest_gets_a_free_port_and_nothing_else_moves() {
    let topology = host("dgx-2");
    for gpus in [0, 1] {
        let xml = ours(&topology, &request(gpus, 0, 0));
        let ports = xml.all_ports_without(&[]).unwrap();
        let live = |ports: &BTreeSet<u8>, nics| OtherFunctions {
            ports: Some(ports.clone()),
            ..count(Some(nics), None)
        };
        let none = made(&xml, &topology, &items(live(&BTreeSet::new(), 1))).unwrap_err();
        assert_eq!(none, TuneError::NoPort { what: "NIC" });
        let text = xml.text();
        let at = text.rfind("</devices>").unwrap();
        let port = |index: u8| {
            format!(
                "<controller type='pci' index='{index}' model='pcie-root-port'>\
                 <address type='pci' bus='0x00' slot='0x0f' function='{}'/></controller>\n",
                index - 98
            )
        };
        // The functions of one IOMMU group come together.
        let spare = format!("{}{}{}{}", &text[..at], port(98), port(99), &text[at..]);
        let xml = DomainXml::parse(&spare).unwrap();
        let ports = xml.all_ports_without(&[]).unwrap().union(&ports).copied().collect();
        let tuned = made(&xml, &topology, &items(live(&ports, 1))).unwrap();
        let nics = of(&tuned.after, &topology, ExtraKind::Nic);
        let (before, after) = (Claims::read(&xml), Claims::read(&tuned.after));
        assert_eq!(before.vcpu_pins.len(), after.vcpu_pins.len());
        assert_eq!(before.memory.value, after.memory.value);
        let ports = |xml: &DomainXml| xml.text().matches("pcie-root-port").count();
        assert_eq!(ports(&xml), ports(&tuned.after));
        let devices = tuned.after.root().child("devices").unwrap();
        let seats = devices.children("hostdev").filter(|hostdev| {
            let bus = hostdev.child("address").and_then(|at| at.attr("bus"));
            bus.is_some_and(|bus| bus == "0x62" || bus == "0x63")
        });
        assert_eq!(seats.count(), nics.len(), "{}", tuned.after.text());
        // It stays there: `tune` does not move it unasked.
        let left = made(&tuned.after, &topology, &Items::all()).unwrap();
        let moved = left.changes.iter().find(|change| change.item == crate::tune::ItemName::Pcie);
        assert_eq!(moved, None);
        assert_eq!(not_as_asked(&tuned.after), [""; 0]);
        let gone = made(&tuned.after, &topology, &items(live(&BTreeSet::new(), 0))).unwrap();
        assert!(of(&gone.after, &topology, ExtraKind::Nic).is_empty());
        assert_eq!(ports(&gone.after), ports(&xml));
    }
}
