//! Loads from tables of counters.

use super::*;
use crate::cpuset::{CpuSet, NodeId, PcpuId};
use crate::finding::Severity;
use crate::memsize::MemSize;
use std::collections::BTreeMap;

/// A second in ns.
const SECOND: u64 = 1_000_000_000;
/// A millisecond in ns.
const MS: u64 = 1_000_000;

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// A guest of two vCPUs, pinned to these pcpus.
fn plan(pins: [&str; 2]) -> GuestPlan {
    GuestPlan {
        name: "a".into(),
        uuid: "u".into(),
        vcpus: 2,
        vcpu_pins: (0..).zip(pins.map(set)).collect(),
        emulator_pin: Some(set("1")),
        nodes: Some("0".parse().unwrap()),
        ..GuestPlan::default()
    }
}

fn thread(name: &str, run_ns: u64, wait_ns: u64) -> ThreadSample {
    let (kind, index) = ThreadKind::of_name(name);
    ThreadSample { kind, index, run_ns, wait_ns, last_pcpu: None }
}

/// A guest with these threads at a moment.
fn sample(at_ns: u64, threads: &[(u32, &str, u64, u64)]) -> GuestSample {
    let each = threads.iter().map(|&(tid, name, run, wait)| (tid, thread(name, run, wait)));
    GuestSample {
        pid: 40,
        started: 7,
        at_ns,
        threads: each.collect(),
        throttled: BTreeMap::new(),
        memory: None,
        io: None,
        nics: BTreeMap::new(),
        disks: None,
        functions: None,
        kvm: None,
        devices: Vec::new(),
        unread: BTreeMap::new(),
    }
}

/// Rules and severities of findings.
fn found(plan: &GuestPlan, load: &GuestLoad) -> Vec<(&'static str, Severity)> {
    judge(plan, load).iter().map(|finding| (finding.rule, finding.severity)).collect()
}

#[test]
fn threads_are_known_by_their_names() {
    use ThreadKind::{Emulator, Iothread, Vcpu, Vhost};
    for (name, kind, index) in [
        ("CPU 12/KVM", Vcpu, Some(12)),
        ("CPU 0/TCG", Vcpu, Some(0)),
        ("ALL CPUs/TCG", Vcpu, None),
        ("IO iothread3", Iothread, Some(3)),
        ("IO mon_iothread", Emulator, None),
        ("vhost-4711", Vhost, None),
        ("qemu-system-x86", Emulator, None),
        ("CPU x", Emulator, None),
        ("", Emulator, None),
    ] {
        assert_eq!(ThreadKind::of_name(name), (kind, index), "{name}");
    }
}

#[test]
fn rates_are_parts_of_the_time_between_the_samples() {
    let before = sample(SECOND, &[(40, "qemu", 0, 0), (41, "CPU 0/KVM", 5, 9)]);
    let after = sample(
        3 * SECOND,
        &[(40, "qemu", SECOND / 2, 0), (41, "CPU 0/KVM", SECOND + 5, SECOND / 2 + 9)],
    );
    let load = guest_load(&plan(["0", "2"]), &before, &after).unwrap();
    assert_eq!((load.cpu_ratio, load.wait_ratio, load.emulator_ratio), (0.5, 0.3333, 0.25));
    let vcpu = &load.threads[0];
    assert_eq!((vcpu.label(), vcpu.run_ratio, vcpu.waited_ratio), ("vCPU 0".into(), 0.5, 0.25));
    assert_eq!(vcpu.pcpu(), Some(PcpuId(0)));
}

#[test]
fn counters_that_wrap_go_on_and_those_that_fall_were_reset() {
    for (before, after, grown) in [
        (5, 9, Some(4)),
        (9, 9, Some(0)),
        (u64::MAX - 1, 2, Some(4)),
        (1 << 40, 2, None),
        (0, u64::MAX, Some(u64::MAX)),
    ] {
        assert_eq!(counters::grown(before, after), grown, "{before} to {after}");
    }
    // A NIC whose counter was reset has no rate in this interval.
    let nics = |bytes| BTreeMap::from([("vnet0".to_owned(), bytes)]);
    let with = |at, read, written| GuestSample {
        nics: nics(ByteCounts { read, written }),
        ..sample(at, &[])
    };
    let net = |before, after| guest_load(&plan(["0", "2"]), &before, &after).unwrap().network();
    let rate = ByteRate { read_bytes_s: 4, written_bytes_s: 10 };
    assert_eq!(net(with(0, u64::MAX - 1, 0), with(SECOND, 2, 10)), Some(rate));
    assert_eq!(net(with(0, 1 << 40, 0), with(SECOND, 2, 10)), None);
}

#[test]
fn another_process_and_an_interval_of_zero_have_no_load() {
    let one = sample(SECOND, &[(41, "CPU 0/KVM", 5, 9)]);
    let plan = plan(["0", "2"]);
    let later = GuestSample { at_ns: 2 * SECOND, ..one.clone() };
    assert!(guest_load(&plan, &one, &later).is_some());
    for after in [
        one.clone(),
        GuestSample { at_ns: 0, ..one.clone() },
        GuestSample { started: 8, ..later.clone() },
        GuestSample { pid: 50, ..later },
    ] {
        assert_eq!(guest_load(&plan, &one, &after), None, "{after:?}");
    }
}

#[test]
fn a_thread_that_appears_counts_with_all_of_its_time() {
    let before = sample(0, &[(41, "CPU 0/KVM", 100 * SECOND, 0), (42, "worker", SECOND, 0)]);
    // The id of the worker that ended was given to a vCPU that was plugged in.
    let after = sample(
        SECOND,
        &[
            (41, "CPU 0/KVM", 100 * SECOND + SECOND / 2, 0),
            (42, "CPU 1/KVM", SECOND / 4, SECOND / 4),
            (43, "worker", SECOND / 8, 0),
        ],
    );
    let load = guest_load(&plan(["0", "2"]), &before, &after).unwrap();
    assert_eq!((load.cpu_ratio, load.emulator_ratio), (0.75, 0.125));
    // A wrong counter does not make more than the interval.
    let mad = sample(SECOND, &[(50, "CPU 0/KVM", u64::MAX, u64::MAX)]);
    let load = guest_load(&plan(["0", "2"]), &before, &mad).unwrap();
    assert_eq!((load.cpu_ratio, load.wait_ratio), (1.0, 0.5));
}

/// All tasks at a moment: id, name, pcpu, run time in ms.
fn scan(at_ns: u64, tasks: &[(u32, &str, u32, u64)]) -> TaskScan {
    let each = tasks.iter().map(|&(tid, name, pcpu, ms)| {
        let pid = if name.starts_with("CPU") { 40 } else { tid };
        (tid, TaskSample { pid, name: name.into(), pcpu: PcpuId(pcpu), run_ns: ms * MS })
    });
    TaskScan { at_ns, tasks: each.collect() }
}

#[test]
fn two_vcpus_on_one_busy_pcpu_wait_and_name_each_other() {
    let plan = plan(["7", "7"]);
    let before = sample(0, &[(41, "CPU 0/KVM", 0, 0), (42, "CPU 1/KVM", 0, 0)]);
    let after = sample(
        SECOND,
        &[(41, "CPU 0/KVM", 380 * MS, 620 * MS), (42, "CPU 1/KVM", 510 * MS, 490 * MS)],
    );
    let mut load = guest_load(&plan, &before, &after).unwrap();
    let tasks = |at, ran: u64| {
        scan(
            at,
            &[
                (41, "CPU 0/KVM", 7, 380 * ran),
                (42, "CPU 1/KVM", 7, 510 * ran),
                (99, "kworker/7:1H", 7, 110 * ran),
                (98, "idle", 7, 0),
                (97, "other", 6, 900 * ran),
            ],
        )
    };
    let guests = BTreeMap::from([(40, "a".to_owned())]);
    for thread in &mut load.threads {
        let (first, second) = (tasks(0, 0), tasks(SECOND, 1));
        let pcpu = thread.pcpu().unwrap();
        thread.neighbours = neighbours(&first, &second, &guests, pcpu, thread.tid);
    }
    let findings = judge(&plan, &load);
    let says: Vec<&str> = findings.iter().map(|finding| &*finding.says.message).collect();
    let first = "vCPU 0 waits 62 % of the time: on pcpu 7 also vCPU 1 of `a` 51 %, \
                 `kworker/7:1H` 11 %";
    assert_eq!(says[0], first);
    assert!(says[1].contains("also vCPU 0 of `a` 38 %"), "{says:?}");
    assert_eq!(found(&plan, &load), [("vcpu-waits", Severity::Warning); 2]);
    // The same scan twice has no interval.
    let same = tasks(SECOND, 1);
    assert_eq!(neighbours(&same, &same, &guests, PcpuId(7), 41), []);
}

#[test]
fn only_pinned_vcpus_that_wait_long_are_found() {
    for (pin, waited, expected) in [
        ("0", 5 * MS, None),
        ("0", 11 * MS, Some(Severity::Note)),
        ("0", 50 * MS, Some(Severity::Note)),
        ("0", 51 * MS, Some(Severity::Warning)),
        ("", 500 * MS, None),
    ] {
        let mut plan = plan(["0", "2"]);
        plan.vcpu_pins.retain(|_, _| !pin.is_empty());
        let (before, after) = (
            sample(0, &[(41, "CPU 0/KVM", 0, 0)]),
            sample(SECOND, &[(41, "CPU 0/KVM", MS, waited)]),
        );
        let load = guest_load(&plan, &before, &after).unwrap();
        let expected: Vec<_> =
            expected.map(|severity| ("vcpu-waits", severity)).into_iter().collect();
        assert_eq!(found(&plan, &load), expected, "{pin} {waited}");
    }
}

#[test]
fn quotas_emulators_links_and_errors_are_found() {
    let plan = plan(["0", "2"]);
    let aer = |correctable| Some(AerCounts { correctable, ..AerCounts::default() });
    let device = |width, errors| DeviceSample {
        bdf: "0000:3b:00.0".parse().unwrap(),
        width: Some(width),
        max_width: Some(16),
        aer: aer(0),
        port: None,
        port_aer: aer(errors),
    };
    let at = |at_ns, count, run, device| GuestSample {
        throttled: [(QuotaGroup::Vcpu(1), Throttling { count, ns: count * 50 * MS })].into(),
        devices: vec![device],
        ..sample(at_ns, &[(40, "qemu", run, 0)])
    };
    let before = at(0, 3, 0, device(16, 2));
    let of = |after| found(&plan, &guest_load(&plan, &before, &after).unwrap());
    assert_eq!(of(at(SECOND, 3, 900 * MS, device(16, 2))), []);
    let warning = |rule| (rule, Severity::Warning);
    assert_eq!(
        of(at(SECOND, 13, 950 * MS, device(8, 3))),
        ["vcpu-throttled", "emulator-busy", "link-width", "aer-errors"].map(warning)
    );
    let load = guest_load(&plan, &before, &at(SECOND, 13, 0, device(16, 2))).unwrap();
    let finding = &judge(&plan, &load)[0];
    assert_eq!(
        finding.says.message,
        "a quota held vCPU 1 back for 50 % of the time, in 10 periods"
    );
    assert!(finding.hint.contains("`virsh schedinfo a --live --set vcpu_quota=-1`"));
}

#[test]
fn time_held_back_by_a_quota_is_no_waiting() {
    let plan = plan(["0", "2"]);
    let at = |at_ns, held: u64, wait| GuestSample {
        throttled: [(QuotaGroup::Vcpu(0), Throttling { count: held, ns: held * MS })].into(),
        ..sample(at_ns, &[(41, "CPU 0/KVM", 0, wait * MS), (42, "CPU 1/KVM", 0, 0)])
    };
    for (wait, expected) in [
        (500, vec![("vcpu-throttled", Severity::Warning)]),
        (530, vec![("vcpu-throttled", Severity::Warning), ("vcpu-waits", Severity::Note)]),
        (600, vec![("vcpu-waits", Severity::Warning), ("vcpu-throttled", Severity::Warning)]),
    ] {
        let load = guest_load(&plan, &at(0, 0, 0), &at(SECOND, 500, wait)).unwrap();
        assert_eq!(found(&plan, &load), expected, "{wait}");
    }
}

#[test]
fn memory_on_other_nodes_is_counted() {
    let plan = plan(["0", "2"]);
    let nodes = |all: &[(u32, u64)]| -> BTreeMap<NodeId, MemSize> {
        all.iter().map(|&(node, kib)| (NodeId(node), MemSize::from_kib(kib))).collect()
    };
    let of = |memory| {
        let after = GuestSample { memory: Some(memory), ..sample(SECOND, &[]) };
        guest_load(&plan, &sample(0, &[]), &after).unwrap().memory.unwrap()
    };
    let normal = nodes(&[(0, 300), (1, 100)]);
    let load = of(NodeMemory { normal: normal.clone(), huge: BTreeMap::new() });
    assert_eq!((load.local_ratio, load.huge_kib, load.page_kib), (Some(0.75), 0, None));
    // QEMU's own memory does not count beside huge pages.
    let huge = [(MemSize::from_kib(2048), nodes(&[(0, 4096)]))];
    let huge = huge.into_iter().chain([(MemSize::from_gib(1), nodes(&[(0, 0)]))]).collect();
    let load = of(NodeMemory { normal, huge });
    assert_eq!((load.local_ratio, load.huge_kib, load.page_kib), (Some(1.0), 4096, Some(2048)));
    assert_eq!(of(NodeMemory::default()).local_ratio, None);
}

#[test]
fn disks_have_a_clock_of_their_own() {
    let disks = |at_ns, read| {
        let bytes = [("vda".to_owned(), ByteCounts { read, written: 0 })].into();
        Some(TimedBytes { at_ns, bytes })
    };
    let at = |at_ns, disks| GuestSample { disks, ..sample(at_ns, &[]) };
    let of = |before, after| guest_load(&plan(["0", "2"]), &before, &after).unwrap().storage();
    let rate = ByteRate { read_bytes_s: 100, written_bytes_s: 0 };
    assert_eq!(of(at(0, disks(0, 0)), at(9 * SECOND, disks(5 * SECOND, 500))), Some(rate));
    assert_eq!(of(at(0, disks(0, 0)), at(SECOND, disks(0, 0))), None);
    assert_eq!(of(at(0, None), at(SECOND, disks(0, 0))), None);
}

#[test]
fn virtual_functions_count_as_nics_and_kvm_by_the_second() {
    let bytes = |read| [("ens1f0 vf 3".to_owned(), ByteCounts { read, written: 0 })].into();
    let at = |at_ns, read, exits, halt_poll_ns| GuestSample {
        nics: [("vnet0".to_owned(), ByteCounts { read, written: 0 })].into(),
        functions: Some(TimedBytes { at_ns, bytes: bytes(read * 2) }),
        kvm: Some(KvmCounts { exits, halt_poll_ns }),
        ..sample(at_ns, &[])
    };
    let of = |before, after| guest_load(&plan(["0", "2"]), &before, &after).unwrap();
    let load = of(at(0, 0, Some(10), Some(0)), at(2 * SECOND, 500, Some(5010), Some(SECOND)));
    assert_eq!((load.exits_s, load.halt_poll_ratio), (Some(2500), Some(0.5)));
    let rate = ByteRate { read_bytes_s: 750, written_bytes_s: 0 };
    assert_eq!((load.net.len(), load.network()), (2, Some(rate)));
    // A counter that was reset, and one that cannot be read.
    let load = of(at(0, 0, Some(10), None), at(SECOND, 0, Some(9), Some(5)));
    assert_eq!((load.exits_s, load.halt_poll_ratio), (None, None));
}

#[test]
fn pressure_on_memory_is_found() {
    let host = |full| HostLoad {
        pressure: [("memory".to_owned(), Pressure { some: 9.0, full })].into(),
        ..HostLoad::default()
    };
    assert_eq!(judge_host(&HostLoad::default()), []);
    assert_eq!(judge_host(&host(1.0)), []);
    assert_eq!(judge_host(&host(1.5))[0].rule, "host-pressure");
}

#[test]
fn guests_are_sorted_by_their_worst_finding_then_by_use() {
    let guest = |name: &str, run, waited| {
        let plan = GuestPlan { name: name.into(), ..plan(["0", "2"]) };
        let after = sample(SECOND, &[(41, "CPU 0/KVM", run, waited)]);
        let load = guest_load(&plan, &sample(0, &[(41, "CPU 0/KVM", 0, 0)]), &after).unwrap();
        GuestLoad { findings: judge(&plan, &load), ..load }
    };
    let mut all =
        [guest("b", 9, 0), guest("a", 9, 0), guest("c", 99 * MS, 0), guest("d", 0, 90 * MS)];
    let mut by = |order: LoadOrder| {
        order.sort(&mut all);
        all.iter().map(|guest| guest.name.clone()).collect::<String>()
    };
    assert_eq!(by(LoadOrder::Findings), "dcab");
    assert_eq!(by(LoadOrder::Name), "abcd");
    assert_eq!(by(LoadOrder::Cpu), "cabd");
    assert_eq!(by(LoadOrder::Wait), "dabc");
    let round = LoadOrder::ALL.iter().fold(LoadOrder::Findings, |order, _| order.next());
    assert_eq!(round, LoadOrder::Findings);
}

#[test]
fn every_rule_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<&str> = rules().map(|rule| rule.id).collect();
    assert_eq!(names.len(), rules().count());
}

#[test]
fn a_plan_has_the_pins_and_nodes_of_the_running_xml() {
    let of = |xml: &str| {
        let xml = format!("<domain><name>a</name><uuid>U-1</uuid>{xml}</domain>");
        let xml = crate::domain::DomainXml::parse(&xml).unwrap();
        GuestPlan::of(&xml, |pcpus| {
            if pcpus.is_empty() { Default::default() } else { "3".parse().unwrap() }
        })
    };
    let plan = of("<vcpu cpuset='4-7'>2</vcpu><iothreads>1</iothreads><cputune>\
                   <vcpupin vcpu='1' cpuset='9'/></cputune>\
                   <numatune><memory mode='strict' nodeset='1'/></numatune>");
    assert_eq!((plan.name.as_str(), plan.uuid.as_str(), plan.vcpus), ("a", "u-1", 2));
    assert_eq!(plan.vcpu_pins, [(0, set("4-7")), (1, set("9"))].into());
    assert_eq!(plan.pin(ThreadKind::Iothread, Some(1)), Some(&set("4-7")));
    assert_eq!(plan.pin(ThreadKind::Vhost, None), Some(&set("4-7")));
    assert_eq!((plan.nodes.clone(), plan.pcpus()), ("1".parse().ok(), set("4-7,9")));
    let plan = of("<vcpu>2</vcpu><cputune><vcpupin vcpu='1' cpuset='9'/></cputune>");
    assert_eq!((plan.vcpu_pins.len(), plan.emulator_pin.clone()), (1, None));
    assert_eq!(plan.nodes, "3".parse().ok());
    assert_eq!(of("<vcpu>2</vcpu>").nodes, None);
}
