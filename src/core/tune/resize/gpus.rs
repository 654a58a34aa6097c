//! Guests of every recorded host with another number of GPUs: functions that stay keep their
//! places, and the checker, `tune` and `verify` agree with the result.

use super::super::{Given, Items, TuneError, Tuned, candidates, tune};
use crate::bdf::Bdf;
use crate::domain::claims::Claims;
use crate::domain::tests::guests::{TEMPLATES, guest, host, render};
use crate::domain::{DomainXml, guest::VirtType};
use crate::finding::Severity;
use crate::memsize::MemSize;
use crate::placement::{Occupancy, plan};
use crate::request::{Allow, GpuWish, Request};
use crate::topology::{DeviceKind, Topology};
use crate::tune::items::Resize;
use crate::versions::Versions;
use std::collections::BTreeMap;

fn made(xml: &DomainXml, topology: &Topology, items: &Items) -> Result<Tuned, TuneError> {
    let (others, versions) = (Occupancy::default(), Versions::default());
    let given = Given {
        topology,
        others: &others,
        items,
        allow: Allow::default(),
        disks: &BTreeMap::new(),
        abilities: Default::default(),
        versions: &versions,
    };
    tune(xml, &given)
}

/// A guest of ours with this many GPUs.
fn ours(topology: &Topology, gpus: u32) -> DomainXml {
    let request = Request::for_gpus(gpus);
    let place = plan(topology, &Occupancy::default(), &request).unwrap();
    render(TEMPLATES[0].1, &guest("a", VirtType::Kvm, &request), &place, topology)
}

fn gpus(xml: &DomainXml, topology: &Topology) -> Vec<Bdf> {
    let mut all = xml.held(false).unwrap().devices;
    all.retain(|bdf| topology.device(*bdf).unwrap().kind() == DeviceKind::Gpu);
    all
}

/// The guest with another number of GPUs: the first set that has a place.
fn with(xml: &DomainXml, topology: &Topology, count: u32) -> Option<Tuned> {
    let own = gpus(xml, topology);
    let sets = candidates(topology, &Occupancy::default(), &own, count);
    sets.into_iter().find_map(|gpus| {
        let items = Items { resize: Resize::gpus(Some(gpus)), ..Items::default() };
        match made(xml, topology, &items) {
            Ok(tuned) => Some(tuned),
            Err(TuneError::Plan(_)) => None,
            Err(error) => panic!("{error}"),
        }
    })
}

/// The guest addresses of functions, by alias and address on the host.
fn places(xml: &DomainXml) -> BTreeMap<String, (String, String)> {
    let devices = xml.root().child("devices").unwrap();
    let hostdevs = devices.children("hostdev").map(|hostdev| {
        let alias = hostdev.child("alias").unwrap().attr("name").unwrap().into_owned();
        let source = hostdev.find("source/address").unwrap().xml().to_owned();
        (source, (alias, hostdev.child("address").unwrap().xml().to_owned()))
    });
    hostdevs.collect()
}

/// Changes the number, and checks the result against the rules.
fn changed(xml: &DomainXml, topology: &Topology, count: u32, what: &str) -> Option<DomainXml> {
    let tuned = with(xml, topology, count)?;
    let (own, has) = (gpus(xml, topology), gpus(&tuned.after, topology));
    assert_eq!(has.len(), count as usize, "{what}");
    let (some, all) = if own.len() < has.len() { (&own, &has) } else { (&has, &own) };
    assert!(some.iter().all(|gpu| all.contains(gpu)), "{what}: {own:?} {has:?}");
    let (before, after) = (places(xml), places(&tuned.after));
    for (source, place) in before.iter().filter(|(source, _)| after.contains_key(*source)) {
        assert_eq!(&after[source], place, "{what}: {source} moved");
    }
    let errors = tuned.findings.iter().filter(|found| found.severity == Severity::Error);
    assert_eq!(errors.count(), 0, "{what}: {:?}", tuned.findings);
    let left = made(&tuned.after, topology, &Items::all()).unwrap();
    assert_eq!(left.changes, [], "{what}: tune");
    let request = tuned.after.record().unwrap().unwrap().request;
    assert_eq!(request.gpus, GpuWish::Count(count), "{what}");
    assert_eq!(super::tests::not_as_asked(&tuned.after), [""; 0], "{what}: verify");
    Some(tuned.after)
}

/// A domain that gpuvm did not make: 8 vCPUs on cores 20 to 23 of the first node, the emulator on 26,
/// and two cells whose vCPUs alternate, if any.
fn of_others(topology: &Topology, cells: &str) -> DomainXml {
    let core = |nth: usize| topology.cores()[nth].pcpus.iter();
    let pins = (20..24).flat_map(core).enumerate();
    let pins: String =
        pins.map(|(vcpu, pcpu)| format!("<vcpupin vcpu='{vcpu}' cpuset='{}'/>", pcpu.0)).collect();
    let emulator: Vec<String> = core(26).map(|pcpu| pcpu.0.to_string()).collect();
    DomainXml::parse(&format!(
        "<domain type='kvm'>\n<name>a</name>\n<memory unit='GiB'>16</memory>\n<vcpu>8</vcpu>\n\
         <cputune>{pins}<emulatorpin cpuset='{}'/></cputune>\n<os><type arch='x86_64' \
         machine='q35'>hvm</type></os>\n<cpu mode='host-passthrough'>{cells}</cpu>\n<devices/>\n\
         </domain>",
        emulator.join(",")
    ))
    .unwrap()
}

/// Its owner chose where it is: each size comes and goes, and nothing else.
#[test]
fn a_pinned_guest_of_others_keeps_its_places_with_another_size() {
    let topology = host("dgx-a100");
    let cells = "<numa><cell id='0' cpus='0,2,4,6' memory='12' unit='GiB'/>\
                 <cell id='1' cpus='1,3,5,7' memory='4' unit='GiB'/></numa>";
    let (plain, divided) = (of_others(&topology, ""), of_others(&topology, cells));
    let size = |vcpus: Option<u32>, gib: Option<u64>| {
        let memory = gib.map(MemSize::from_gib);
        let resize = Some(Resize { vcpus, memory, ..Resize::default() });
        Items { resize, ..Items::default() }
    };
    for (xml, to, back, changes) in [
        (&plain, size(Some(12), None), size(Some(8), None), &["vcpus", "pins"][..]),
        (&plain, size(Some(6), None), size(Some(8), None), &["vcpus", "pins"]),
        (&plain, size(None, Some(20)), size(None, Some(16)), &["memory"]),
        (&divided, size(None, Some(20)), size(None, Some(16)), &["memory", "cells"]),
    ] {
        let tuned = made(xml, &topology, &to).unwrap();
        let items: Vec<&str> = tuned.changes.iter().map(|change| change.item.as_str()).collect();
        assert_eq!(items, changes, "{:?}", tuned.changes);
        let returned = made(&tuned.after, &topology, &back).unwrap().after;
        let (was, is) = (Claims::read(xml), Claims::read(&returned));
        let pins = |claims: &Claims<'_>| {
            let pins = claims.vcpu_pins.iter().map(|pin| (pin.of.value, pin.cpuset.value.clone()));
            pins.collect::<Vec<_>>()
        };
        assert_eq!(pins(&was), pins(&is));
        let emulator =
            |claims: &Claims<'_>| claims.emulator_pin.as_ref().map(|pin| pin.value.clone());
        assert_eq!(emulator(&was), emulator(&is));
        let cells = |claims: &Claims<'_>| {
            let cells = claims
                .cells
                .iter()
                .map(|cell| (cell.vcpus.as_ref().map(|set| set.value.clone()), cell.memory.value));
            cells.collect::<Vec<_>>()
        };
        assert_eq!(cells(&was), cells(&is));
    }
}

/// Its owner gave it no cells, and vCPUs that float have no node.
#[test]
fn a_floating_guest_with_a_gpu_gets_no_cell_with_its_size() {
    let topology = host("dgx-a100");
    let gpu = topology.gpus().next().unwrap().bdf;
    let xml = DomainXml::parse(&format!(
        "<domain type='kvm'>\n<name>a</name>\n<memory unit='GiB'>16</memory>\n<vcpu>8</vcpu>\n\
         <os><type arch='x86_64' machine='q35'>hvm</type></os>\n<devices>\n\
         <hostdev mode='subsystem' type='pci' managed='yes'><source><address \
         domain='0x{:04x}' bus='0x{:02x}' slot='0x{:02x}' function='0x0'/></source></hostdev>\n\
         </devices>\n</domain>",
        gpu.segment(),
        gpu.bus(),
        gpu.device()
    ))
    .unwrap();
    let resize = Resize { vcpus: Some(10), ..Resize::default() };
    let items = Items { resize: Some(resize), ..Items::default() };
    let tuned = made(&xml, &topology, &items).unwrap();
    let changed: Vec<String> = tuned.changes.iter().map(ToString::to_string).collect();
    assert_eq!(changed, ["vcpus: 8 -> 10"], "{}", tuned.after.text());
}

#[test]
fn more_and_fewer_gpus_on_every_host() {
    let mut seen = 0;
    for (name, steps) in [
        ("dgx-2", &[1, 2, 4, 8, 16, 4, 1, 0, 2][..]),
        ("dgx-a100", &[1, 2, 4, 8, 2, 0]),
        ("dgx-h100", &[1, 2, 4, 8, 4, 1, 0, 1]),
        ("dgx-1", &[1, 2, 4, 2, 0, 1]),
        ("dual-socket", &[1, 2, 1, 0, 1]),
    ] {
        let topology = host(name);
        let mut xml = ours(&topology, steps[0]);
        for &count in &steps[1..] {
            let what = format!("{name}: {} to {count}", gpus(&xml, &topology).len());
            // Some have no place.
            let Some(after) = changed(&xml, &topology, count, &what) else { continue };
            seen += 1;
            xml = after;
        }
    }
    assert!(seen > 20, "{seen}");
}

/// The cell of each expander bus, by index.
fn cells_of_buses(xml: &DomainXml) -> Vec<String> {
    let devices = xml.root().child("devices").unwrap();
    let controllers = devices.children("controller");
    let expanders =
        controllers.filter(|one| one.attr("model").as_deref() == Some("pcie-expander-bus"));
    let cell =
        |one: crate::domain::Element<'_>| one.find("target/node").unwrap().text().into_owned();
    expanders.map(cell).collect()
}

#[test]
fn the_bus_of_a_gpu_follows_to_the_cell_that_another_size_gives_it() {
    let topology = host("dgx-a100");
    let with = |xml: &DomainXml, vcpus| {
        let items = Items {
            resize: Some(Resize { vcpus: Some(vcpus), ..Resize::default() }),
            ..Items::default()
        };
        let tuned = made(xml, &topology, &items).unwrap();
        let errors = tuned.findings.iter().filter(|found| found.severity == Severity::Error);
        assert_eq!(errors.count(), 0, "{vcpus} vCPUs: {:?}", tuned.findings);
        assert_eq!(
            places(&tuned.after).keys().collect::<Vec<_>>(),
            places(xml).keys().collect::<Vec<_>>()
        );
        let left = made(&tuned.after, &topology, &Items::all()).unwrap();
        assert_eq!(left.changes, [], "{vcpus} vCPUs: tune");
        tuned.after
    };
    // A default guest has cores of two nodes, its GPU on the second of them.
    let one = ours(&topology, 1);
    let cells = cells_of_buses(&one);
    let few = with(&one, 4);
    assert_ne!(cells_of_buses(&few), cells, "a guest of a single cell has its bus there");
    let claims = Claims::read(&one);
    let again = with(&few, claims.vcpus.value);
    assert_eq!(cells_of_buses(&again), cells);
    let four = ours(&topology, 4);
    with(&with(&four, 16), 60);
}

#[test]
fn sizes_follow_the_gpus_where_they_did_and_stay_where_they_were_named() {
    let topology = host("dgx-2");
    let one = ours(&topology, 1);
    let two = with(&one, &topology, 2).unwrap().after;
    let fresh = ours(&topology, 2);
    let size = |xml: &DomainXml| {
        let claims = Claims::read(xml);
        (claims.vcpus.value, claims.memory.value)
    };
    assert_eq!(size(&two), size(&fresh));
    let request = Request { vcpus: Some(4), ..Request::for_gpus(1) };
    let place = plan(&topology, &Occupancy::default(), &request).unwrap();
    let named = render(TEMPLATES[0].1, &guest("a", VirtType::Kvm, &request), &place, &topology);
    assert_eq!(size(&with(&named, &topology, 2).unwrap().after).0, 4);
}

#[test]
fn a_partition_that_does_not_have_them_is_none() {
    let topology = host("dgx-h100");
    let one = ours(&topology, 2);
    let own = gpus(&one, &topology);
    assert!(candidates(&topology, &Occupancy::default(), &own, 3).is_empty());
    assert!(!candidates(&topology, &Occupancy::default(), &own, 4).is_empty());
}
