//! Consistency with foreign changes: other domains that float over the cores of a plan, and gpuvm's
//! guests that have lost their cells or gpuvm's metadata.

use super::clauses::{checked, tuned};
use super::pairs::Asked;
use crate::support::{gpuvm, project, run};
use gpuvm::check::judge;
use gpuvm::discover::source::load;
use gpuvm::domain::DomainXml;
use gpuvm::domain::claims::Claims;
use gpuvm::placement::Occupancy;
use gpuvm::topology::Topology;
use gpuvm::tune::{Given, Items, tune};
use gpuvm::versions::Versions;
use std::collections::BTreeMap;

/// A recorded host of the project.
fn host(name: &str) -> Topology {
    load(&project().join(format!("topologies/{name}.json"))).unwrap()
}

/// A guest of a size on a host alone, as it is exported.
fn guest<'t>(topology: &'t Topology, size: &str) -> (Asked<'t>, DomainXml) {
    let asked = Asked::new(topology, size);
    let xml = asked.export(asked.answer.as_ref().unwrap()).unwrap();
    (asked, xml)
}

/// A document without the parts that have these beginnings and ends.
fn without(xml: &DomainXml, parts: &[(&str, &str)]) -> DomainXml {
    let mut text = xml.text().to_owned();
    for (from, to) in parts {
        while let Some(at) = text.find(from) {
            let end = at + text[at..].find(to).unwrap() + to.len();
            text.replace_range(at..end, "");
        }
    }
    DomainXml::parse(&text).unwrap()
}

/// Cells, the nodes of memory, and what ties buses to cells.
const CELLS: [(&str, &str); 3] =
    [("<numa>", "</numa>"), ("<numatune>", "</numatune>"), ("<node>", "</node>")];

/// Tunes every setting.
fn tune_all(xml: &DomainXml, topology: &Topology) -> Result<DomainXml, String> {
    let (others, disks, items) = (Occupancy::default(), BTreeMap::new(), Items::all());
    let given = Given {
        topology,
        others: &others,
        items: &items,
        allow: gpuvm::request::Allow::default(),
        disks: &disks,
        abilities: Default::default(),
        versions: &Versions::default(),
    };
    tune(xml, &given).map(|tuned| tuned.after).map_err(|error| error.to_string())
}

#[test]
fn a_domain_that_floats_over_cores_holds_none_of_them_for_the_plan_and_for_check() {
    let topology = host("dgx-2");
    for (pins, running) in [
        ("<vcpu cpuset='0-23,48-71'>4</vcpu>", true),
        ("<vcpu cpuset='0-23,48-71'>4</vcpu>", false),
        ("<vcpu>1</vcpu><cputune><vcpupin vcpu='0' cpuset='0-7'/></cputune>", false),
        ("<vcpu>1</vcpu><cputune><emulatorpin cpuset='0-95'/></cputune>", true),
    ] {
        let text = format!(
            "<domain type='kvm'><name>floats</name><memory unit='GiB'>4</memory>{pins}</domain>"
        );
        let mut there = Occupancy::default();
        there.domains.push(DomainXml::parse(&text).unwrap().held(running).unwrap());
        let asked = Asked::beside(&topology, "--gpus 1", there.clone());
        let placement = asked.answer.as_ref().unwrap();
        let named = placement.reasons.iter().any(|reason| {
            reason.compromise
                && reason.because.to_string().contains("`floats` may run on the same pcpus")
        });
        assert!(named, "{pins}: {:?}", placement.reasons);
        let xml = asked.export(placement).unwrap();
        assert_eq!(checked(&asked, placement, &xml), [""; 0], "{pins}");
        assert_eq!(tuned(&asked, &xml), [""; 0], "{pins}");
        let notes = judge(&xml, &topology, &there, &Versions::default()).1;
        let of = |rule: &str| notes.iter().any(|note| note.rule == rule);
        assert!(of("pcpu-held") || of("helper-on-held-core"), "{pins}: {notes:?}");
    }
    // A pin to one core holds it; a domain that floats over it has to move.
    let (asked, xml) = guest(&topology, "--gpus 1");
    let mut there = Occupancy::default();
    there.domains.push(xml.held(true).unwrap());
    let found = checked(&asked, asked.answer.as_ref().unwrap(), &xml);
    assert_eq!(found, [""; 0]);
    let wide = "<domain type='kvm'><name>wide</name><memory unit='GiB'>4</memory>\
        <vcpu cpuset='0-23,48-71'>4</vcpu></domain>";
    let found = judge(&DomainXml::parse(wide).unwrap(), &topology, &there, &Versions::default()).0;
    assert!(found.iter().any(|finding| finding.rule == "pcpu-held"), "{found:?}");
}

#[test]
fn a_guest_of_ours_without_its_cells_gets_its_plan_back() {
    for (name, size) in [("dgx-a100", "--gpus 8 --vcpus 5"), ("dual-socket", "--gpus 2")] {
        let topology = host(name);
        let (asked, xml) = guest(&topology, size);
        let cells = Claims::read(&xml).cells.len();
        assert!(cells > 1, "{name}");
        let bare = without(&xml, &CELLS);
        let now = tune_all(&bare, &topology).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(Claims::read(&now).cells.len(), cells, "{name}");
        assert_eq!(checked(&asked, asked.answer.as_ref().unwrap(), &now), [""; 0], "{name}");
        assert_eq!(tuned(&asked, &now), [""; 0], "{name}");
    }
}

#[test]
fn a_guest_without_a_record_is_checked_as_tuned() {
    let topology = host("dgx-2");
    for size in ["--gpus 1 --vcpus 5", "--gpus 2 --vcpus 11", "--gpus 1 --vcpus 3"] {
        let (asked, xml) = guest(&topology, size);
        let bare = without(&xml, &[("<metadata>", "</metadata>")]);
        let now = tune_all(&bare, &topology).unwrap();
        assert_eq!(checked(&asked, asked.answer.as_ref().unwrap(), &now), [""; 0], "{size}");
    }
    // The siblings of all cores do not count as left over: a whole core is free.
    let (asked, xml) = guest(&topology, "--gpus 1 --vcpus 4");
    let mut text = without(&xml, &[("<metadata>", "</metadata>")]).text().to_owned();
    for (vcpu, pcpu) in [(0, 0), (1, 1), (2, 2), (3, 3)] {
        let from = text.find(&format!("<vcpupin vcpu='{vcpu}'")).unwrap();
        let end = from + text[from..].find("/>").unwrap() + 2;
        text.replace_range(from..end, &format!("<vcpupin vcpu='{vcpu}' cpuset='{pcpu}'/>"));
    }
    let from = text.find("<emulatorpin").unwrap();
    let end = from + text[from..].find("/>").unwrap() + 2;
    text.replace_range(from..end, "<emulatorpin cpuset='48-51'/>");
    let xml = DomainXml::parse(&text).unwrap();
    let found = checked(&asked, asked.answer.as_ref().unwrap(), &xml).join("\n");
    assert!(found.contains("emulator-on-vcpu-core"), "{found}");
}

#[test]
fn too_few_cores_are_named_only_where_they_are_too_few() {
    let file = project().join("topologies/dgx-a100.json");
    let plan = |line: &str| {
        let words: Vec<&str> = ["plan"].into_iter().chain(line.split_whitespace()).collect();
        run(gpuvm(&words).arg("--host").arg(&file))
    };
    // On cores of one thread each there are enough; memory is short, since the first cell has two
    // of the five.
    let (code, _, said) = plan("--gpus 8 --vcpus 5 --memory 1000G");
    assert_eq!(code, 1);
    assert!(said.contains("memory") && !said.contains("leave GPUs without one"), "{said}");
    let (code, _, said) = plan("--gpus 8 --vcpus 3");
    assert_eq!(code, 1);
    assert!(said.contains("--vcpus 4 at least; `--allow remote`"), "{said}");
}

#[test]
fn a_guest_that_has_lost_the_functions_of_a_node_loses_the_bus_of_its_cell() {
    let topology = host("dual-socket");
    let (_, xml) = guest(&topology, "--gpus 2 --vcpus 8 --memory 8G");
    let mut text = xml.text().to_owned();
    let far = "<address domain='0x0000' bus='0x86'";
    while let Some(at) = text.find(far) {
        let (from, end) = (text[..at].rfind("<hostdev").unwrap(), "</hostdev>");
        let to = at + text[at..].find(end).unwrap() + end.len();
        text.replace_range(from..to, "");
    }
    assert!(text.contains("<node>1</node>") && text.contains("<hostdev"), "{text}");
    let tuned = tune_all(&DomainXml::parse(&text).unwrap(), &topology).unwrap();
    assert!(!tuned.text().contains("<node>1</node>"), "{}", tuned.text());
    assert_eq!(tune_all(&tuned, &topology).unwrap().text(), tuned.text());
}
