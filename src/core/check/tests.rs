//! Every rule finds its defects, nothing else, and nothing in a correct domain. The integration
//! tests ask libvirt about the same defects.

mod defects;
mod old;
mod setting;
mod sound;

use crate::check::{self, Finding, InXml};
use crate::cpuset::{NodeId, NodeSet};
use crate::domain::DomainXml;
use crate::domain::tests::examples::HAND;
use crate::domain::tests::guests::hosts;
use crate::domain::tests::readings::ODD;
use crate::finding::Severity;
use crate::golden::{compare, numbers};
use crate::memsize::MemSize;
use crate::placement::{Held, Occupancy};
use crate::share::cases;
use crate::topology::{Parts, Topology, file};
use crate::versions::{Version, Versions};
use defects::{DEFECTS, Defect};
use old::OLD;
use proptest::prelude::*;
use setting::Setting;
use sound::SOUND;
use std::collections::{BTreeMap, BTreeSet};

/// The correct domain: 2 GPUs of a DGX-2.
const GOOD: &str = include_str!("../../../tests/golden/check/good.xml");

/// The recorded DGX-2.
fn dgx2() -> Topology {
    file::from_json(include_str!("../../../topologies/dgx-2.json")).unwrap()
}

/// The correct domain with edits, each of which must match.
fn edited(edits: &[(&str, &str)]) -> String {
    edits.iter().fold(GOOD.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "the correct domain has no `{from}`");
        text.replace(from, to)
    })
}

/// The findings in an edited domain.
fn found(edits: &[(&str, &str)], change: fn(&mut Setting)) -> Vec<Finding> {
    let mut setting = Setting {
        host: dgx2().parts().clone(),
        others: Occupancy::default(),
        versions: Versions::default(),
    };
    change(&mut setting);
    let domain = DomainXml::parse(&edited(edits)).unwrap();
    let host = Topology::new(setting.host).unwrap();
    let (mut found, notes) = check::judge(&domain, &host, &setting.others, &setting.versions);
    // A fault that cannot be fixed in the domain is a note; its place is checked like a finding's.
    found.extend(notes.into_iter().map(|note| Finding {
        rule: note.rule,
        severity: Severity::Warning,
        says: InXml { path: note.path, line: note.line, message: note.message },
        hint: "none".into(),
    }));
    found
}

#[test]
fn every_defect_is_found_where_it_is_and_nothing_else() {
    for Defect { rule, path, also, edits, setting, .. } in DEFECTS.iter().chain(OLD) {
        let findings = found(edits, *setting);
        let here = findings.iter().any(|f| f.rule == *rule && f.says.path == *path);
        assert!(here, "{rule} at {path} is missing in {findings:#?}");
        let rules: BTreeSet<&str> = findings.iter().map(|finding| finding.rule).collect();
        let wanted: BTreeSet<&str> = also.iter().copied().chain([*rule]).collect();
        assert_eq!(rules, wanted, "{findings:#?}");
        for finding in &findings {
            assert!(finding.says.line > 0 && !finding.hint.is_empty(), "{finding:?}");
            assert!(!finding.says.message.ends_with('.'), "{finding:?}");
        }
    }
}

/// GPUs of two host bridges of one node below one expander bus, as written by older versions.
const TWO_BRIDGES: &str = include_str!("../../../tests/check/two-bridges.xml");

#[test]
fn every_rule_has_a_defect_and_a_name_of_its_own() {
    let ids: Vec<&str> = check::rules().map(|rule| rule.id).collect();
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len(), "a name stands twice in {ids:?}");
    let mut tried: BTreeSet<&str> = DEFECTS.iter().chain(OLD).map(|defect| defect.rule).collect();
    // The definition does not show the users of a disk, nor whether it exists.
    let text = "<domain><devices><disk/>\n<disk><source file='/a'/></disk></devices></domain>";
    let domain = DomainXml::parse(text).unwrap();
    use check::DiskFault::{Backing, Direct, Format, Held, Missing, OfHost};
    for fault in [Held, OfHost, Missing, Backing, Format, Direct] {
        let fact = |nth| check::DiskFact { nth, fault, why: "/a: why".into() };
        let findings = check::disks(&domain, &[fact(1), fact(7)]);
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!(finding.says.path, "/domain/devices/disk[2]/source");
        assert_eq!((finding.says.line, &*finding.says.message), (2, "/a: why"));
        tried.insert(finding.rule);
    }
    let text = "<domain><devices><interface type='bridge'><source bridge='x'/></interface></devices></domain>";
    let domain = DomainXml::parse(text).unwrap();
    let fact = |nth| check::NicFact { nth, why: "no x".into(), hint: "make it".into() };
    let findings = check::nics(&domain, &[fact(0), fact(7)]);
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!(finding.says.path, "/domain/devices/interface/source");
    tried.insert(finding.rule);
    // Advice, not a finding: two GPUs of two host bridges of a DGX-2 below one expander bus.
    let notes = check::judge(
        &DomainXml::parse(TWO_BRIDGES).unwrap(),
        &dgx2(),
        &Occupancy::default(),
        &Versions::default(),
    );
    let about = |note: &&check::Note| note.message.contains("as PHB, on the host they are NODE");
    tried.extend(notes.1.iter().find(about).map(|note| note.rule));
    assert_eq!(tried, unique);
}

#[test]
fn remedies_for_a_nested_smmu_name_the_element_and_lead_to_no_groups() {
    let hints = |edits: &[(&str, &str)], change| -> BTreeMap<&str, String> {
        found(edits, change).into_iter().map(|finding| (finding.rule, finding.hint)).collect()
    };
    let groups = hints(&[old::NESTED], |_| {});
    let hint = &groups["smmu-needs-iommufd"];
    assert!(hint.starts_with("write <iommufd enabled='yes'/> into <domain>; "), "{hint}");
    let mixed = hints(&[old::NESTED, old::IOMMUFD, old::BY_GROUP], |_| {});
    let hint = &mixed["smmu-needs-iommufd"];
    assert!(hint.starts_with("remove iommufd='no' from the <driver> of this device; "), "{hint}");
    let hint = &mixed["iommufd-mixed"];
    assert!(hint.contains("--iommufd on") && !hint.contains("off"), "{hint}");
    let plain = hints(&[old::IOMMUFD, old::BY_GROUP], |_| {});
    assert!(plain["iommufd-mixed"].contains("--iommufd off"), "{plain:?}");
    let missing = |edits: &[(&str, &str)], change| hints(edits, change)["iommufd-missing"].clone();
    assert!(missing(&[old::IOMMUFD], old::without_iommufd).contains("--iommufd off"));
    for hint in [
        missing(&[old::IOMMUFD, old::NESTED], old::without_iommufd),
        missing(&[old::IOMMUFD], |s| {
            old::without_iommufd(s);
            old::coherent(s, 0x2941);
        }),
    ] {
        assert!(hint.contains("modprobe iommufd") && !hint.contains("off"), "{hint}");
    }
}

#[test]
fn machine_pc_takes_255_vcpus_whatever_its_iommu_says() {
    let remaps = "<features><ioapic driver='qemu'/>";
    let iommu =
        "<memballoon model='none'/><iommu model='intel'><driver intremap='on' eim='on'/></iommu>";
    let machine = ("machine='q35'", "machine='pc'");
    let many = [defects::MANY[0], defects::MANY[1], defects::MANY[2]];
    let more = [machine, ("<features>", remaps), (setting::BALLOON, iommu)];
    let on_pc = found(&[&many[..], &more[..]].concat(), |_| {});
    let rules: BTreeSet<&str> = on_pc.iter().map(|finding| finding.rule).collect();
    assert!(rules.contains("vcpus-beyond-machine") && rules.contains("vcpus-without-remapping"));
    let few = found(&[machine], |_| {});
    assert!(few.iter().all(|finding| finding.rule != "vcpus-beyond-machine"), "{few:#?}");
}

/// libvirt 12.9 adds the missing settings for more than 255 vCPUs (measured).
#[test]
fn an_amd_iommu_is_for_many_vcpus_without_passed_functions() {
    let rules = |driver: &str| {
        let iommu = format!("<memballoon model='none'/><iommu model='amd'>{driver}</iommu>");
        let edits = [
            defects::MANY[0],
            defects::MANY[1],
            defects::MANY[2],
            (setting::BALLOON, iommu.as_str()),
        ];
        let found = found(&edits, |_| {});
        found.into_iter().map(|finding| finding.rule).collect::<BTreeSet<&str>>()
    };
    for driver in ["", "<driver intremap='on' xtsup='on'/>"] {
        let found = rules(driver);
        assert!(!found.contains("vcpus-without-remapping"), "{driver}: {found:?}");
        assert!(found.contains("iommu-without-caching"), "{driver}: {found:?}");
    }
    assert!(rules("<driver xtsup='off'/>").contains("vcpus-without-remapping"));
}

#[test]
fn fixes_by_check_are_the_settings_of_create() {
    let on = |libvirt| {
        let domain = DomainXml::parse(&edited(&defects::MANY)).unwrap();
        let on = Versions { libvirt: Some(libvirt), ..Versions::default() };
        let found = check::check(&domain, &dgx2(), &Occupancy::default(), &on);
        found.into_iter().find(|found| found.rule == "vcpus-without-remapping").unwrap().hint
    };
    assert!(
        on(Version(11, 3, 0)).contains("eim='on' dma_translation='off'/></iommu> in <devices>")
    );
    assert!(on(Version(11, 2, 0)).contains("caching_mode='on' eim='on'/></iommu> in <devices>"));
}

#[test]
fn a_correct_domain_has_no_findings() {
    for (edits, setting) in SOUND {
        let findings = found(edits, *setting);
        assert!(findings.is_empty(), "{edits:?}: {findings:#?}");
    }
}

/// The findings in a document on a host, one line each, without their messages.
fn lines(name: &str, document: &str, host: &Topology, others: &Occupancy, on: &Versions) -> String {
    let domain = DomainXml::parse(document).unwrap();
    let (found, notes) = check::judge(&domain, host, others, on);
    let mut text = format!("{name}\n");
    for Finding { rule, says, hint, .. } in found {
        let InXml { path, line, message } = says;
        let (message, hint) = (numbers(&message), numbers(&hint));
        text += &format!("  {rule} {path} {line}: {message} hint {hint}\n");
    }
    for note in notes {
        text += &format!("  note {} {} {}\n", note.rule, note.path, numbers(&note.message));
    }
    text
}

#[test]
fn findings_have_the_numbers_that_they_had() {
    let mut text = String::new();
    let on = Versions::default();
    for (name, host) in hosts() {
        text += &format!("== {name}: {}\n", check::unchecked(&host).len());
        let empty = Occupancy::default();
        let mut full = Occupancy::default();
        full.domains.extend(DomainXml::parse(GOOD).unwrap().held(true));
        for (document, of) in [("good", GOOD), ("odd", ODD), ("hand", HAND)] {
            text += &lines(document, of, &host, &empty, &on);
            text += &lines(document, of, &host, &full, &on);
        }
    }
    for Defect { rule, edits, setting, .. } in DEFECTS.iter().chain(OLD) {
        let host = dgx2().parts().clone();
        let mut case =
            Setting { host, others: Occupancy::default(), versions: Versions::default() };
        setting(&mut case);
        let host = Topology::new(case.host).unwrap();
        text += &lines(rule, &edited(edits), &host, &case.others, &case.versions);
    }
    compare("check/findings.txt", include_str!("../../../tests/golden/check/findings.txt"), &text);
}

#[test]
fn facts_missing_from_a_record_are_not_checked() {
    let mut parts = dgx2().parts().clone();
    let left = |parts: &Parts| check::unchecked(&Topology::new(parts.clone()).unwrap()).len();
    let before = left(&parts);
    parts.nodes.iter_mut().for_each(|node| node.huge_pages.clear());
    assert_eq!(left(&parts), before + 1);
    parts.fabric.partitions.clear();
    assert_eq!(left(&parts), before + 2);
}

/// The correct domain with quoted values and some texts replaced; each change is a place and its
/// new text.
fn garbled(changes: &[(usize, String)]) -> String {
    let text = GOOD;
    let mut pieces: Vec<&str> = text.split('\'').collect();
    let values: Vec<usize> = (1..pieces.len()).step_by(2).collect();
    for (place, value) in changes {
        pieces[values[place % values.len()]] = value;
    }
    pieces.join("'")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(200)))]
    #[test]
    fn no_value_makes_it_panic(
        changes in proptest::collection::vec(
            (0usize..400, "[-0-9a-fx,^ ]{0,8}|1|65535|4294967295|18446744073709551615|pcie-[a-z-]*"),
            1..6,
        ),
    ) {
        if let Ok(domain) = DomainXml::parse(&garbled(&changes)) {
            let host = dgx2();
            let mut others = Occupancy::default();
            others.domains.extend(domain.held(true));
            check::check(&domain, &host, &others, &Versions::default());
        }
    }
}

/// The findings and the notes in the correct domain beside another with these pins, by rule.
fn beside(other: &Held) -> (Vec<&'static str>, Vec<&'static str>) {
    let domain = DomainXml::parse(GOOD).unwrap();
    let others = Occupancy { domains: vec![other.clone()], ..Occupancy::default() };
    let (found, notes) = check::judge(&domain, &dgx2(), &others, &Versions::default());
    let found = found.iter().map(|finding| finding.rule).collect();
    (found, notes.iter().map(|note| note.rule).collect())
}

#[test]
fn resources_of_a_stopped_domain_are_only_noted() {
    let held = DomainXml::parse(GOOD).unwrap().held(false).unwrap();
    let off = Held { domain: "off".into(), devices: Vec::new(), ..held };
    let (found, notes) = beside(&off);
    assert_eq!(found, [""; 0]);
    assert!(notes.contains(&"pcpu-held"), "{notes:?}");
    for firm in [Held { active: true, ..off.clone() }, Held { autostart: true, ..off.clone() }] {
        assert!(beside(&firm).0.contains(&"pcpu-held"));
    }
    // Its devices are its own, and wide pins are judged alike.
    let gpu = DomainXml::parse(GOOD).unwrap().held(false).unwrap().devices;
    assert_eq!(beside(&Held { devices: gpu, ..off.clone() }).0.first(), Some(&"device-held"));
    let whole = vec![(NodeSet::of(NodeId(0)), MemSize::from_gib(1 << 20))];
    let large = Held { memory: whole, vcpu_pins: Vec::new(), emulator_pin: None, ..off };
    assert!(beside(&large).1.contains(&"memory-held"));
    assert!(beside(&Held { active: true, ..large }).0.contains(&"memory-held"));
}

#[test]
fn long_lists_are_cut() {
    let all = |number: usize| -> Vec<Finding> {
        let pin = |vcpu: usize, now: &str| {
            (format!("vcpu='{vcpu}' cpuset='{now}'"), format!("vcpu='{vcpu}' cpuset='0'"))
        };
        let pins = [(1, "48"), (2, "1"), (3, "49"), (4, "2")];
        let edits: Vec<(String, String)> =
            pins[..number - 1].iter().map(|(vcpu, now)| pin(*vcpu, now)).collect();
        let edits: Vec<(&str, &str)> = edits.iter().map(|(a, b)| (&**a, &**b)).collect();
        found(&edits, |_| {})
    };
    let crowded = |number| {
        let found = all(number);
        let mut says = found.iter().map(|finding| finding.says.message.clone());
        says.find(|message| message.contains("all pinned to pcpu 0")).unwrap()
    };
    assert_eq!(crowded(4), "vcpus 0, 1, 2, 3 are all pinned to pcpu 0");
    assert_eq!(crowded(5), "vcpus 0, 1, 2, 3 and more are all pinned to pcpu 0");
    for (threads, end) in [("9", "2, 3, 4, 5, 6, 7, 8, 9"), ("10", "7, 8, 9 and more")] {
        let count = format!("<iothreads>{threads}</iothreads>");
        let found = found(&[("<iothreads>1</iothreads>", &count)], |_| {});
        let mut says = found.iter().map(|finding| &finding.says.message);
        let unused = says.find(|message| message.contains("named by no device")).unwrap();
        assert!(unused.ends_with(end), "{unused}");
    }
}
