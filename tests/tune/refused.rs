//! Domains that are not tuned, each with its reason.

use super::domains::{Wanted, tuned};
use crate::xml::guests::host;
use gpuvm::domain::DomainXml;
use gpuvm::placement::Occupancy;
use gpuvm::tune::{Item, Items, TuneError};

/// The error of a domain that must be refused.
fn refused(xml: &str, items: &Items) -> String {
    let xml = DomainXml::parse(xml).unwrap();
    tuned(&xml, &host("dgx-2"), &Occupancy::default(), items).unwrap_err().to_string()
}

#[test]
fn unknown_values_are_refused_with_their_place() {
    let domain = |inside: &str| {
        format!(
            "<domain type='kvm'>\n<name>x</name><memory unit='GiB'>4</memory><vcpu>4</vcpu>
             {inside}</domain>"
        )
    };
    let cells = |cells: &str| domain(&format!("<cpu><numa>{cells}</numa></cpu>"));
    for (xml, said) in [
        ("<domain type='lxc'><name>x</name></domain>".to_owned(), "`lxc`"),
        ("<domain type='xen'><name>x</name></domain>".to_owned(), "`xen`"),
        ("<domain><name>x</name></domain>".to_owned(), "type is ``"),
        (domain("<cputune><vcpupin vcpu='0' cpuset='a'/></cputune>"), "cpuset"),
        (
            domain(
                "<cputune><vcpupin vcpu='1' cpuset='1'/><vcpupin vcpu='1' cpuset='2'/></cputune>",
            ),
            "vCPU 1 is pinned twice",
        ),
        (
            cells("<cell id='0' cpus='0-2' memory='1'/><cell id='1' cpus='2-3' memory='1'/>"),
            "vCPU 2 is in two cells",
        ),
        (
            cells("<cell id='0' cpus='0-1' memory='1'/><cell id='0' cpus='2-3' memory='1'/>"),
            "two cells have id 0",
        ),
        (
            cells("<cell id='0' cpus='0-1' memory='1'/><cell id='2' cpus='2-3' memory='1'/>"),
            "not consecutive",
        ),
        (cells("<cell id='0' cpus='0-4' memory='1'/>"), "vCPU 4 is in a cell, and there are 4"),
        (cells("<cell id='0' cpus='0-3'/>"), "`memory` is missing"),
        (domain("<numatune/><numatune/>"), "a second <numatune>"),
        (domain("<os><type arch='aarch64'>hvm</type></os>"), "for `aarch64`, the host is `x86_64`"),
    ] {
        let error = refused(&xml, &Items::all());
        assert!(error.contains(said), "{xml}\n{error}");
    }
    let doctype = "<!DOCTYPE domain>\n<domain type='kvm'><name>x</name></domain>";
    assert!(DomainXml::parse(doctype).unwrap_err().to_string().contains("DOCTYPE"));
}

#[test]
fn a_pin_to_an_absent_pcpu_is_mended() {
    let dgx2 = host("dgx-2");
    let wanted = Wanted { pins: vec![500, 501, 502, 503, 504], ..Wanted::vendor(9, 1) };
    let xml = DomainXml::parse(&wanted.xml(&dgx2)).unwrap();
    let tuned = tuned(&xml, &dgx2, &Occupancy::default(), &Items::all()).unwrap();
    let pins = tuned.placement.unwrap().vcpu_pins;
    let node = dgx2.node(gpuvm::cpuset::NodeId(1)).unwrap();
    assert!(pins.iter().all(|pin| pin.is_subset(&node.pcpus)), "{pins:?}");
}

#[test]
fn cores_that_are_not_free_are_refused_with_who_holds_them() {
    let dgx2 = host("dgx-2");
    let wanted = Wanted::vendor(8, 8);
    let holder = Wanted {
        name: "holder",
        vcpus: 40,
        gpus: 0..0,
        pins: (24..44).chain(72..92).collect(),
        memory_kib: 1 << 20,
        more: "",
    };
    let holder = DomainXml::parse(&holder.xml(&dgx2)).unwrap().held(true).unwrap();
    let others = Occupancy { domains: vec![holder], ..Occupancy::default() };
    let xml = DomainXml::parse(&wanted.xml(&dgx2)).unwrap();
    let error = tuned(&xml, &dgx2, &others, &Items::all()).unwrap_err();
    let TuneError::Plan(gpuvm::placement::PlanError::Taken { holders, .. }) = error else {
        panic!("{error:?}");
    };
    assert!(holders.iter().any(|line| line.contains("`holder`")), "{holders:?}");
}

#[test]
fn contradictions_with_kept_settings_are_refused() {
    let dgx2 = host("dgx-2");
    let vendor = Wanted::vendor(0, 8);
    let with = |change: fn(&mut Items)| {
        let mut items = Items::default();
        change(&mut items);
        items
    };
    // A guest without cells is planned with one on each node.
    let near = with(|items| {
        items.pins = Item::On;
        items.memory_nodes = Item::On;
    });
    let error = refused(&Wanted::vendor(0, 16).xml(&dgx2), &near);
    assert!(error.contains("no NUMA cell whose memory could be bound"), "{error}");
    let wide = Wanted {
        pins: Vec::new(),
        more: "\n  <cputune>\n    <vcpupin vcpu='0' cpuset='0-23'/>\n  </cputune>",
        ..vendor
    };
    let error = refused(&wide.xml(&dgx2), &with(|items| items.emulator = Item::On));
    assert!(error.contains("not each is on one pcpu"), "{error}");
}
