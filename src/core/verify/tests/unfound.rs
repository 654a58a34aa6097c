//! Cases close to a fault that are none, and the limits where a fault begins.

use super::*;
use crate::placement::Held;
use crate::topology::{HugePagePool, Isolation};

/// Changes a good guest, and checks that nothing is found.
fn silent(changes: &[fn(&mut Case)]) {
    for (number, change) in changes.iter().enumerate() {
        let mut case = good();
        change(&mut case);
        assert_eq!(case.found(true), [], "change {number}");
    }
}

/// Replaces a text in the definition and in the running XML.
fn replace(case: &mut Case, from: &str, to: &str) {
    for text in [&mut case.definition, &mut case.live] {
        assert!(text.contains(from), "{from}");
        *text = text.replace(from, to);
    }
}

fn small_pages(case: &mut Case) {
    let pages =
        "<memoryBacking><hugepages>\n<page size='1' unit='GiB'/></hugepages></memoryBacking>";
    replace(case, pages, "");
}

#[test]
fn equivalent_settings_are_not_findings() {
    silent(&[
        |case| {
            replace(case, "name='vhost'", "name='qemu'");
            case.opened().vhosts = 0;
        },
        |case| {
            replace(case, "type='kvm'", "type='qemu'");
            case.opened().vhosts = 0;
        },
        |case| case.opened().vfio = ["devices/vfio0".into(), "devices/vfio1".into()].into(),
        |case| {
            by_iommufd(case, &[3, 4]);
            case.opened().vfio = ["devices/vfio3".into(), "devices/vfio4".into()].into();
        },
        |case| {
            // A vendor's own driver, which makes a device of VFIO.
            by_iommufd(case, &[3, 4]);
            case.opened().vfio = ["devices/vfio3".into(), "devices/vfio4".into()].into();
            for device in case.parts.devices.iter_mut().filter(|device| device.vfio.is_some()) {
                device.driver = Some("nvidia".into());
            }
        },
        |case| case.parts.isolated = set("0"),
        |case| {
            replace(case, "\n<address type='pci' bus='4' slot='0'/></hostdev>", "</hostdev>");
            case.view.functions.as_mut().unwrap()[1].cell = Some(0);
        },
        |case| {
            small_pages(case);
            replace(case, "<memnode cellid='1' mode='strict' nodeset='1'/>", "");
            case.parts.nodes[1].memory_kib = MemSize::default();
            case.parts.machine.numa_balancing = Some(false);
        },
    ]);
}

#[test]
fn vcpus_without_a_pin_of_their_own_keep_to_the_default_one() {
    fn with_default(case: &mut Case) {
        replace(case, "<vcpu>4", "<vcpu cpuset='72'>4");
        replace(case, "\n<vcpupin vcpu='3' cpuset='72'/>", "");
    }
    silent(&[with_default]);
    expect(&[("vcpu-affinity", "vcpu 3 may run on pcpus: expected 72, found 73", |case| {
        with_default(case);
        case.thread("CPU 3/KVM").pcpus = set("73");
    })]);
}

#[test]
fn qemus_own_memory_may_lie_anywhere_up_to_a_size() {
    fn with_own(case: &mut Case, mib: u64) {
        small_pages(case);
        replace(case, "cellid='1' mode='strict' nodeset='1'", "cellid='1' nodeset='0'");
        case.memory(1).nodes = [(NodeId(0), MemSize::from_gib(2))].into();
        let nodes = [(NodeId(1), MemSize::from_kib(mib << 10))].into();
        let page_kib = MemSize::from_kib(4);
        let own = Mapped { cell: None, bound: false, page_kib, nodes };
        case.process.memory.as_mut().unwrap().push(own);
    }
    silent(&[|case| with_own(case, 256)]);
    expect(&[("memory-off-node", "memory of the guest is on node: expected 0", |case| {
        with_own(case, 257);
    })]);
}

/// The findings of `check` in a guest beside another domain: rule and severity.
fn by_rules(case: &Case, runs: bool, other: Option<Held>) -> Vec<(&'static str, Severity)> {
    let parse = |text: &str| DomainXml::parse(text).unwrap();
    let (definition, live) = (parse(&case.definition), parse(&case.live));
    let topology = Topology::new(case.parts.clone()).unwrap();
    let others = Occupancy { domains: other.into_iter().collect(), ..Occupancy::default() };
    let (tuning, versions) = (&case.tuning, &Versions::default());
    let subject = Subject {
        definition: &definition,
        live: runs.then_some(&live),
        process: None,
        guest: None,
        host: Some(Host { topology: &topology, tuning, others: &others, versions, manager: None }),
        partitions: None,
    };
    verify(&subject).into_iter().map(|finding| (finding.rule, finding.severity)).collect()
}

#[test]
fn resources_of_stopped_guests_block_no_start() {
    let held = |active, autostart| {
        let other = "<domain type='kvm'><name>other</name><memory \
                     unit='GiB'>1</memory><vcpu>1</vcpu>\
                     <cputune><vcpupin vcpu='0' cpuset='24'/></cputune></domain>";
        let held = DomainXml::parse(other).unwrap().held(active).unwrap();
        Held { autostart, ..held }
    };
    for (active, autostart, severity) in [
        (true, false, Some(Severity::Error)),
        (false, true, Some(Severity::Warning)),
        (false, false, None),
    ] {
        let found = by_rules(&good(), true, Some(held(active, autostart)));
        let found = found.into_iter().find(|(rule, _)| *rule == "pcpu-held");
        assert_eq!(found.map(|(_, severity)| severity), severity, "active: {active}");
    }
}

#[test]
fn pages_for_the_start_are_judged_of_a_guest_that_is_off() {
    let mut case = good();
    for node in &mut case.parts.nodes {
        let page_kib = MemSize::from_gib(1);
        node.huge_pages = vec![HugePagePool { page_kib, total: 2, free: 0, surplus: 0 }];
    }
    let short =
        |runs| by_rules(&case, runs, None).iter().any(|(rule, _)| *rule == check::HUGE_PAGES_SHORT);
    assert!(short(false));
    assert!(!short(true));
}

#[test]
fn a_guest_that_the_iommu_does_not_isolate_is_warned_of() {
    let found = |change: fn(&mut Isolation)| {
        let mut case = good();
        change(case.parts.machine.isolation.insert(Isolation::default()));
        let all = by_rules(&case, true, None);
        all.into_iter()
            .filter(|(rule, _)| rule.contains("acs") || rule.contains("unsafe"))
            .collect()
    };
    let none: [(&str, Severity); 0] = [];
    let is = |found: Vec<(&'static str, Severity)>, wanted: &[(&str, Severity)]| {
        assert_eq!(found, wanted);
    };
    is(found(|_| {}), &none);
    is(found(|i| i.unsafe_interrupts = true), &[("unsafe-interrupts", Severity::Warning)]);
    let split = |i: &mut Isolation| i.acs_override = Some("downstream".into());
    is(found(split), &[("acs-override", Severity::Warning)]);
}

#[test]
fn of_one_rule_no_more_is_shown_than_anybody_reads() {
    let mut report = Report::default();
    for number in 0..25 {
        let (what, at) = (format!("thing {number}"), String::new());
        let (expected, found) = ("a".into(), "b".into());
        let wrong = report::Wrong { what, expected, found, at, hint: "" };
        report.differs(&host::RULES[0], Between::Host, wrong);
    }
    let findings = report.finish();
    assert_eq!(findings.len(), 20);
    assert!(
        findings[19].says.message.ends_with(" (and 5 more like it)"),
        "{}",
        findings[19].says.message
    );
    assert!(findings[..19].iter().all(|finding| !finding.says.message.contains("more like it")));
}
