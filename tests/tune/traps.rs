//! The traps in the vendor guide's own text (gpuvm-nvidia-vm(7), TRAPS OF THE GUIDE) that `tune`
//! and `check` could fall into: the guide's example is the input, and the result must be right.
//! Which trap is tested where stands in `tests/traps.rs`.

use super::domains::{Wanted, tuned};
use crate::xml::guests::host;
use gpuvm::check::check;
use gpuvm::cpuset::{CpuSet, NodeSet};
use gpuvm::domain::DomainXml;
use gpuvm::domain::claims::Claims;
use gpuvm::memsize::MemSize;
use gpuvm::placement::Occupancy;
use gpuvm::request::PageSize;
use gpuvm::tune::{Item, Items};
use gpuvm::versions::Versions;
use std::collections::BTreeSet;

/// The rules that find something in a domain beside others.
fn rules(xml: &DomainXml, others: &Occupancy) -> BTreeSet<&'static str> {
    let found = check(xml, &host("dgx-2"), others, &Versions::default());
    found.into_iter().map(|finding| finding.rule).collect()
}

/// A guest tuned by items, alone on a DGX-2.
fn alone(wanted: &Wanted, items: &Items) -> DomainXml {
    let dgx2 = host("dgx-2");
    let xml = DomainXml::parse(&wanted.xml(&dgx2)).unwrap();
    tuned(&xml, &dgx2, &Occupancy::default(), items).unwrap().after
}

#[test]
fn t2_t3_t4_memory_is_whole_pages_in_each_cell() {
    // The guide's memory of each guest in KiB, in whole pages: one more where it is no whole number
    // of them.
    for (first, count, page, kib) in [
        (0, 16, PageSize::OneGib, 1447 << 20),
        (0, 16, PageSize::TwoMib, 1_516_912_640),
        (8, 8, PageSize::OneGib, 724 << 20),
        (9, 1, PageSize::TwoMib, 92_586 << 10),
        (9, 1, PageSize::OneGib, 91 << 20),
    ] {
        let items = Items { huge_pages: Item::To(page), ..Items::all() };
        let xml = alone(&Wanted::vendor(first, count), &items);
        let claims = Claims::read(&xml);
        assert_eq!(claims.memory.value.kib(), kib, "{count} GPUs, {page:?}");
        assert_eq!(claims.cells.len(), if count == 16 { 2 } else { 1 });
        let cells = claims.cells.iter().map(|cell| cell.memory.value);
        assert!(cells.clone().all(|cell| cell.kib().is_multiple_of(page.size().kib())));
        assert_eq!(cells.sum::<MemSize>(), claims.memory.value, "{count} GPUs, {page:?}");
        assert!(!rules(&xml, &Occupancy::default()).contains("memory-no-page-multiple"));
    }
}

#[test]
fn t3_memory_that_is_no_whole_page_is_found_in_a_domain_of_the_guide() {
    let more = "\n  <memoryBacking>\n    <hugepages>\n      <page size='1' unit='GiB'/>\n    \
                </hugepages>\n  </memoryBacking>";
    let wanted = Wanted { more, ..Wanted::vendor(0, 16) };
    let xml = DomainXml::parse(&wanted.xml(&host("dgx-2"))).unwrap();
    assert!(rules(&xml, &Occupancy::default()).contains("memory-no-page-multiple"));
}

#[test]
fn t6_t7_a_topology_that_does_not_multiply_out_is_mended_where_it_belongs() {
    let dgx2 = host("dgx-2");
    let text = Wanted::vendor(0, 2).xml(&dgx2).replacen(
        "<cpu mode='host-passthrough' check='none'/>",
        "<cpu mode='host-passthrough'><topology sockets='1' cores='23' threads='2'/></cpu>",
        1,
    );
    let xml = DomainXml::parse(&text).unwrap();
    assert!(rules(&xml, &Occupancy::default()).contains("topology-product"));
    let after = tuned(&xml, &dgx2, &Occupancy::default(), &Items::all()).unwrap().after;
    let topology = after.root().find("cpu/topology").unwrap();
    let part = |name| topology.attr(name).unwrap().parse::<u32>().unwrap();
    assert_eq!(part("sockets") * part("cores") * part("threads"), 10);
    assert_eq!(part("threads"), 2);
    assert!(after.root().find("cputune/topology").is_none());
    assert!(!rules(&after, &Occupancy::default()).contains("topology-product"));
}

#[test]
fn t8_a_pin_for_a_vcpu_that_is_not_there_goes_and_no_core_is_split() {
    let dgx2 = host("dgx-2");
    let wanted = Wanted { vcpus: 10, pins: (0..6).chain(48..53).collect(), ..Wanted::vendor(0, 2) };
    let xml = DomainXml::parse(&wanted.xml(&dgx2)).unwrap();
    assert!(rules(&xml, &Occupancy::default()).contains("vcpupin-no-vcpu"));
    let after = alone(&wanted, &Items::all());
    let claims = Claims::read(&after);
    assert_eq!(claims.vcpu_pins.len(), 10);
    let pinned: CpuSet = claims.vcpu_pins.iter().flat_map(|pin| pin.cpuset.value.iter()).collect();
    assert_eq!(pinned.len(), 10);
    assert!(
        pinned.iter().all(|pcpu| dgx2.core_of(pcpu).unwrap().pcpus.is_subset(&pinned)),
        "{pinned}"
    );
}

#[test]
fn t10_each_cells_vcpus_are_pinned_to_the_node_of_its_memory() {
    let dgx2 = host("dgx-2");
    // As the guide has it: the pins of `nvidia-vm`, and its two cells over them.
    let cells = "<cpu mode='host-passthrough' check='none'><numa>\
                 <cell id='0' cpus='0-45' memory='758456320' unit='KiB'/>\
                 <cell id='1' cpus='46-91' memory='758456320' unit='KiB'/></numa></cpu>";
    let nodes = "\n  <numatune>\n    <memnode cellid='0' mode='strict' nodeset='0'/>\n    <memnode \
                 cellid='1' mode='strict' nodeset='1'/>\n  </numatune>";
    let wanted = Wanted { more: nodes, ..Wanted::vendor(0, 16) };
    let text = wanted.xml(&dgx2);
    let text = text.replacen("<cpu mode='host-passthrough' check='none'/>", cells, 1);
    let guides = DomainXml::parse(&text).unwrap();
    assert!(rules(&guides, &Occupancy::default()).contains("vcpu-far-from-memory"));
    let after = tuned(&guides, &dgx2, &Occupancy::default(), &Items::all()).unwrap().after;
    assert!(!rules(&after, &Occupancy::default()).contains("vcpu-far-from-memory"));
    for (first, count) in [(9, 1), (2, 2), (4, 4), (8, 8), (0, 16)] {
        let xml = alone(&Wanted::vendor(first, count), &Items::all());
        let claims = Claims::read(&xml);
        for cell in &claims.cells {
            let bound = &claims.binding(Some(cell.id)).unwrap().nodes.value;
            for vcpu in cell.vcpus.as_ref().unwrap().value.iter() {
                let pin = claims.vcpu_pins.iter().find(|pin| pin.of.value == vcpu.0).unwrap();
                let pcpus = pin.cpuset.value.iter();
                let on: NodeSet = pcpus.map(|pcpu| dgx2.core_of(pcpu).unwrap().node).collect();
                assert_eq!(&on, bound, "{count} GPUs, vcpu {}", vcpu.0);
            }
        }
    }
}

#[test]
fn t12_vcpus_that_are_in_no_cell_get_one() {
    let dgx2 = host("dgx-2");
    let cells = "<cpu mode='host-passthrough' check='none'><numa>\
                 <cell id='0' cpus='0-45' memory='758456320' unit='KiB'/>\
                 id='1' cpus='46-91' memory='758456320' unit='KiB'/></numa></cpu>";
    let text = Wanted::vendor(0, 16).xml(&dgx2);
    let text = text.replacen("<cpu mode='host-passthrough' check='none'/>", cells, 1);
    let xml = DomainXml::parse(&text).unwrap();
    assert!(rules(&xml, &Occupancy::default()).contains("vcpu-in-no-cell"));
    let after = tuned(&xml, &dgx2, &Occupancy::default(), &Items::all()).unwrap().after;
    assert!(!rules(&after, &Occupancy::default()).contains("vcpu-in-no-cell"));
    assert_eq!(Claims::read(&after).cells.len(), 2);
}

#[test]
fn t17_t18_t19_malformed_xml_is_refused_with_its_line() {
    for (trap, text) in [
        ("T17", "<interface type='bridge'>\n<source bridge=br0/></interface>"),
        ("T18", "<disk type='block'>\n<driver name='qemu' type='raw'>\n</disk>"),
        ("T19", "<source network='n' mode='bridge'\n<model type='virtio'/>"),
    ] {
        let text = format!("<domain type='kvm'><name>a</name>\n{text}\n</domain>");
        let error = DomainXml::parse(&text).unwrap_err().to_string();
        assert!(error.contains("line "), "{trap}: {error}");
    }
}

#[test]
fn t13_the_emulator_leaves_the_cores_of_others() {
    let dgx2 = host("dgx-2");
    let other = Wanted { name: "other", ..Wanted::vendor(1, 1) };
    let other = DomainXml::parse(&other.xml(&dgx2)).unwrap().held(true).unwrap();
    let others = Occupancy { domains: vec![other], ..Occupancy::default() };
    let pin = "<cputune>\n    <emulatorpin cpuset='50,53,56,59,62,65,68,71'/>";
    let text = Wanted::vendor(0, 1).xml(&dgx2).replacen("<cputune>", pin, 1);
    let xml = DomainXml::parse(&text).unwrap();
    assert!(rules(&xml, &others).contains("helper-on-held-core"));
    let after = tuned(&xml, &dgx2, &others, &Items::all()).unwrap().after;
    assert!(!rules(&after, &others).contains("helper-on-held-core"));
    assert_eq!(Claims::read(&after).emulator_pin.unwrap().value.to_string(), "50");
}

#[test]
fn t20_the_format_of_a_disk_is_never_touched() {
    for (first, count) in [(9, 1), (0, 16)] {
        let wanted = Wanted::vendor(first, count);
        let formats = |xml: &DomainXml| {
            let disks = xml.root().child("devices").unwrap().children("disk");
            let format = |disk: gpuvm::domain::Element<'_>| {
                disk.child("driver")?.attr("type").map(std::borrow::Cow::into_owned)
            };
            disks.map(format).collect::<Vec<_>>()
        };
        let qcow2 = Some("qcow2".to_owned());
        assert_eq!(formats(&alone(&wanted, &Items::all())), [qcow2.clone(), qcow2]);
    }
}

#[test]
fn t21_no_more_iothreads_than_disks_use_and_each_is_named() {
    let wanted = Wanted { more: "\n  <iothreads>46</iothreads>", ..Wanted::vendor(0, 8) };
    let xml = DomainXml::parse(&wanted.xml(&host("dgx-2"))).unwrap();
    assert!(rules(&xml, &Occupancy::default()).contains("iothread-unused"));
    let after = alone(&wanted, &Items::all());
    assert!(!rules(&after, &Occupancy::default()).contains("iothread-unused"));
    assert!(after.text().contains(" iothread='1'"), "{}", after.text());
}

#[test]
fn t39_a_guest_of_one_gpu_with_an_odd_number_of_vcpus_keeps_to_its_own_three_cores() {
    let dgx2 = host("dgx-2");
    for gpu in 0..16 {
        let text = Wanted::vendor(gpu, 1).xml(&dgx2);
        let xml = DomainXml::parse(&text).unwrap();
        let after = tuned(&xml, &dgx2, &Occupancy::default(), &Items::all()).unwrap().after;
        let cores = |xml: &DomainXml| {
            let claims = Claims::read(xml);
            let pins = claims.vcpu_pins.iter().map(|pin| &pin.cpuset.value);
            let pins = pins.chain(claims.emulator_pin.as_ref().map(|pin| &pin.value));
            let pcpus = pins.flat_map(CpuSet::iter);
            pcpus.map(|pcpu| dgx2.core_place(pcpu).unwrap()).collect::<BTreeSet<_>>()
        };
        assert_eq!(cores(&after), cores(&xml), "GPU {gpu}");
        assert_eq!(cores(&xml).len(), 3);
    }
}
