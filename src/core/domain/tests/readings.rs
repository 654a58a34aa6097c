//! Values read from documents, and whole guests as they are written: both are kept in
//! `tests/golden/guest`, which `GPUVM_RENEW=1` renews. Of the readings only the values are
//! compared, not the names in the code.

use super::examples::HAND;
use super::guests::{TEMPLATES, guest, host, render};
use crate::domain::claims::Claims;
use crate::domain::disks::named_iothreads;
use crate::domain::guest::VirtType;
use crate::domain::live::live_changes;
use crate::domain::nic_request::{NicModel, NicWish};
use crate::domain::nics::{hooks, takes_queues};
use crate::domain::view::View;
use crate::domain::{DomainXml, differences};
use crate::golden::{compare, values};
use crate::placement::{Occupancy, plan};
use crate::request::Request;
use serde_json::json;
use std::fmt::Write;

pub(crate) const ODD: &str = include_str!("odd.xml");
/// A guest without findings of the checker.
const GOOD: &str = include_str!("../../../../tests/golden/check/good.xml");

/// Changes to the odd document, each of which is read, too.
const CHANGES: &[(&str, &str)] = &[
    ("uuid='99999999", "uuid='11111111"),
    ("'MB'>9000", "'b'>9437184001"),
    ("'MB'>9000", "'KB'>9000"),
    ("'MB'>9000", "'Q'>9000"),
    ("<cell cpus='4-7' memory='4194304'/>", ""),
    (" current='5'", ""),
    (" cpuset='0-7,^3'", ""),
    ("<emulatorpin cpuset='6-7'/>", ""),
    ("<iothreadids><iothread id='2'/><iothread id='7'/></iothreadids>", ""),
    ("<iothreads>2</iothreads>", ""),
    ("<page size='1' unit='GiB' nodeset='1'/>", ""),
    ("<memory mode='preferred' nodeset='1'/>", ""),
    ("bus='010'", "bus='0x100'"),
    ("slot='0x1f'", "slot='0x20'"),
    ("pc-q35-8.2", "pc-i440fx-8.2"),
    ("arch='x86_64'", "arch='aarch64'"),
    ("intremap='on'", "intremap='off'"),
    ("model='intel'", "model='virtio'"),
    ("vcpupin vcpu='0' cpuset='0,8'", "vcpupin vcpu='0' cpuset='1'"),
    ("iothread='7' cpuset='5'", "iothread='7' cpuset='4'"),
    ("average='1000' peak='2000'", "average='1500'"),
    (
        "managed='yes'><source><address domain='0' bus='0x34'",
        "managed='no'><source><address domain='0' bus='0x36'",
    ),
    ("<uuid>11111111-2222-3333-4444-555555555555</uuid>", ""),
    ("type='qcow2' iothread='2' queues='4'", "type='raw'"),
    ("model='nvdimm'", "model='dimm'"),
];

/// Returns the values read from a document, as lines.
fn readings(xml: &DomainXml) -> String {
    let mut text = String::new();
    let mut line = |name: &str, values: String| writeln!(text, "  {name}: {values}").unwrap();
    line("claims", values(&Claims::read(xml)));
    match xml.held(true) {
        Ok(held) => line("held", serde_json::to_string(&held).unwrap().replace("0000:", "")),
        Err(error) => line("held", error.to_string()),
    }
    let kind = [xml.is_pcie(), xml.remaps_interrupts(), xml.is_x86(), xml.is_copy()];
    line("is", values(&(kind, xml.uuid(), xml.recorded_uuid())));
    line("record", values(&(xml.record(), xml.made(), xml.bound(), xml.reserved(), xml.guarded())));
    line("hooks", values(&(hooks(xml), xml.unmanaged())));
    let devices: Vec<_> = xml.root().children("devices").flat_map(|all| all.elements()).collect();
    let nics = devices.iter().filter(|device| device.name() == "interface");
    line("queues", values(&nics.map(|nic| takes_queues(*nic)).collect::<Vec<_>>()));
    line("iothreads", values(&devices.iter().map(|of| named_iothreads(*of)).collect::<Vec<_>>()));
    line("view", values(&View::of(xml, Some(&host("dgx-2")))));
    line("clique", values(&xml.sets_property("x-nv-gpudirect-clique")));
    text
}

#[test]
fn documents_are_read_as_they_were() {
    let mut text = String::new();
    let odd = DomainXml::parse(ODD).unwrap();
    let mut documents = vec![("hand", HAND), ("good", GOOD), ("odd", ODD)];
    documents.extend(TEMPLATES);
    for (name, document) in documents {
        text += &format!("{name}\n{}", readings(&DomainXml::parse(document).unwrap()));
    }
    let all = "0-15".parse().unwrap();
    let base = readings(&odd);
    for (from, to) in CHANGES {
        assert!(ODD.contains(from), "{from}");
        let changed = DomainXml::parse(&ODD.replacen(from, to, 1)).unwrap();
        writeln!(text, "{from} -> {to}").unwrap();
        let read = readings(&changed);
        for (was, is) in base.lines().zip(read.lines()).filter(|(was, is)| was != is) {
            assert_ne!(was, is);
            writeln!(text, "{is}").unwrap();
        }
        for difference in differences(&odd, &changed) {
            writeln!(text, "  differs {}", values(&difference)).unwrap();
        }
        writeln!(text, "  live {}", values(&live_changes(&changed, &odd, &all))).unwrap();
    }
    compare(
        "guest/readings.txt",
        include_str!("../../../../tests/golden/guest/readings.txt"),
        &text,
    );
}

#[test]
fn a_nic_has_as_many_queues_as_vcpus_at_most() {
    let mut nic = NicWish::on("lan");
    assert_eq!(nic.too_many_queues(1), None);
    nic.settings.queues = Some(257);
    for (vcpus, most) in [(8, "8"), (300, "256")] {
        let why = nic.too_many_queues(vcpus).unwrap();
        assert!(why.contains("257") && why.ends_with(most), "{why}");
    }
    nic.settings.queues = Some(8);
    assert_eq!(nic.too_many_queues(8), None);
    assert!(!nic.settings.is_plain() && !nic.settings.is_emulated());
    nic.settings.model = Some(NicModel::E1000e);
    assert!(nic.settings.is_emulated());
    assert_eq!(nic.settings.words(), ["model=", "queues="]);
}

#[test]
fn whole_guests_are_written_as_they_were() {
    let cases = [
        (
            "dgx-h100-crowded.xml",
            include_str!("../../../../tests/golden/guest/dgx-h100-crowded.xml"),
            ("dgx-h100", TEMPLATES[2].1, VirtType::Kvm),
            json!({"gpus": {"count": 2}, "huge_pages": "1G",
                "extras": {"nics": {"count": 1}, "nvmes": {"count": 1}}}),
        ),
        (
            "dgx-2-two-cells.xml",
            include_str!("../../../../tests/golden/guest/dgx-2-two-cells.xml"),
            ("dgx-2", TEMPLATES[0].1, VirtType::Kvm),
            json!({"gpus": {"count": 16}, "vcpus": 16}),
        ),
        (
            "dual-socket-tiny.xml",
            include_str!("../../../../tests/golden/guest/dual-socket-tiny.xml"),
            ("dual-socket", TEMPLATES[1].1, VirtType::Qemu),
            json!({"gpus": {"count": 1}, "pins": "none", "vcpus": 4, "threads": 2, "cells": {"count": 2}}),
        ),
    ];
    for (name, was, (on, template, virt), fields) in cases {
        let mut request = serde_json::to_value(Request::for_gpus(0)).unwrap();
        let fields = fields.as_object().unwrap().clone();
        request.as_object_mut().unwrap().extend(fields);
        let request: Request = serde_json::from_value(request).unwrap();
        let topology = host(on);
        let place = plan(&topology, &Occupancy::default(), &request).unwrap();
        let xml = render(template, &guest("whole", virt, &request), &place, &topology);
        compare(&format!("guest/{name}"), was, xml.text());
    }
}
