//! Frames at several widths, as they were kept.

use super::super::super::colour::marked;
use super::*;
use gpuvm_core::cpuset::NodeId;
use gpuvm_core::load::{
    ByteCounts, DeviceSample, FreePages, GuestPlan, GuestSample, HostLoad, KvmCounts, NodeMemory,
    OfLoad, Pressure, QuotaGroup, ThreadKind, ThreadSample, Throttling, guest_load, judge,
};
use gpuvm_core::memsize::MemSize;
use std::path::Path;

/// A second, and a hundredth of it, in ns.
const SECOND: u64 = 1_000_000_000;
const PERCENT: u64 = SECOND / 100;

/// A guest of ten vCPUs at a moment; each has run and waited this many percent of a second.
fn sample(at: u64, (run, wait): (u64, u64), bytes: u64) -> GuestSample {
    let vcpus = (0..10).map(|vcpu| {
        let (run_ns, wait_ns) = (run * PERCENT * at, wait * PERCENT * at);
        let (kind, index) = (ThreadKind::Vcpu, Some(vcpu));
        (41 + vcpu, ThreadSample { kind, index, run_ns, wait_ns, last_pcpu: None })
    });
    let both = ByteCounts { read: bytes * at, written: bytes / 400 * at };
    let throttling = Throttling { count: 3 * at, ns: at * wait * PERCENT };
    GuestSample {
        pid: 40,
        started: 7,
        at_ns: at * SECOND,
        threads: vcpus.collect(),
        throttled: [(QuotaGroup::Vcpu(3), throttling)].into_iter().filter(|_| wait > 30).collect(),
        memory: Some(NodeMemory {
            normal: [(NodeId(0), MemSize::from_gib(5)), (NodeId(1), MemSize::from_gib(3))].into(),
            huge: std::iter::once((
                MemSize::from_kib(2048),
                [(NodeId(0), MemSize::from_gib(4))].into(),
            ))
            .filter(|_| wait == 0)
            .collect(),
        }),
        io: Some(both).filter(|_| wait == 0),
        nics: [("vnet0".to_owned(), both)].into(),
        disks: None,
        functions: None,
        kvm: Some(KvmCounts { exits: Some(12_300 * at), halt_poll_ns: Some(run * PERCENT * at) })
            .filter(|_| wait == 0),
        devices: vec![DeviceSample {
            bdf: "0000:3b:00.0".parse().unwrap(),
            width: Some(8),
            max_width: Some(16),
            aer: None,
            port: None,
            port_aer: None,
        }],
        unread: BTreeMap::new(),
    }
}

fn guest(name: &str, times: (u64, u64), bytes: u64) -> GuestLoad {
    let plan = GuestPlan {
        name: name.to_owned(),
        vcpus: 10,
        vcpu_pins: [(3, "7".parse().unwrap())].into(),
        nodes: Some("0".parse().unwrap()),
        ..GuestPlan::default()
    };
    let load = guest_load(&plan, &sample(1, times, bytes), &sample(2, times, bytes)).unwrap();
    GuestLoad { findings: judge(&plan, &load), ..load }
}

fn report() -> LoadReport {
    let pressure = |some, full| Pressure { some, full };
    let host = HostLoad {
        pcpus: 96,
        guest_pcpus: 18,
        pressure: [("cpu", pressure(0.42, 0.0)), ("memory", pressure(3.0, 0.04))]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        free_pages: [(0, 400), (1, 12)]
            .map(|(node, free)| FreePages { node: NodeId(node), page_kib: 2048, free })
            .into(),
        ..HostLoad::default()
    };
    let mut quiet = guest("train-a", (98, 0), 1_234_000_000);
    quiet.findings.clear();
    let guests = vec![
        guest("a-guest-of-a-long-name", (61, 38), 900),
        quiet,
        GuestLoad { memory: None, ..guest("train-c", (1, 4), 0) },
    ];
    LoadReport { interval_s: 1.0, host, guests }
}

/// A frame as a terminal without colours shows it.
fn frame(width: usize, height: usize, selected: Option<&str>) -> String {
    let look = Look {
        clock: "14:02:11Z".into(),
        width,
        height,
        selected: selected.map(str::to_owned),
        footer: "q quit  s order: findings  n memory by node  Enter verify".into(),
    };
    marked(&(screen(&report(), &look).join("\n") + "\n"), false).into_owned()
}

#[test]
fn frames_are_as_they_were_kept() {
    let mut stale = Vec::new();
    for (name, text) in [
        ("40", frame(40, 24, None)),
        ("80", frame(80, 24, Some("a-guest-of-a-long-name"))),
        ("100", frame(100, 24, Some("train-a"))),
        ("200", frame(200, 24, None)),
        ("once", marked(&table(&report(), "14:02:11Z".into(), Some(80)), false).into_owned()),
    ] {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/top/{name}.txt"));
        if std::env::var_os("GPUVM_RENEW").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        if std::fs::read_to_string(&file).unwrap_or_default() != text {
            stale.push(format!("{name}:\n{text}"));
        }
    }
    assert!(stale.is_empty(), "GPUVM_RENEW=1 renews:\n{}", stale.join("\n"));
}

#[test]
fn no_line_is_wider_than_the_terminal_and_no_frame_higher() {
    for width in (0..=220).step_by(5) {
        for height in [1, 2, 5, 9, 24] {
            let frame = frame(width, height, Some("train-c"));
            let lines: Vec<&str> = frame.lines().collect();
            let wide = lines.iter().find(|line| get_text_width(line) > width.max(LEAST));
            assert_eq!(wide, None, "{width}:\n{frame}");
            assert!(lines.len() <= height.max(2), "{height}:\n{frame}");
        }
    }
}

#[test]
fn the_selected_guest_is_always_on_the_screen() {
    let mut report = report();
    let one = report.guests[1].clone();
    report.guests = (0..50).map(|at| GuestLoad { name: format!("g{at}"), ..one.clone() }).collect();
    for selected in ["g0", "g20", "g49"] {
        let look = Look {
            clock: String::new(),
            width: 80,
            height: 10,
            selected: Some(selected.to_owned()),
            footer: "keys".into(),
        };
        let lines = screen(&report, &look);
        assert_eq!((lines.len(), lines.last().map(String::as_str)), (10, Some("keys")));
        let shown = lines.iter().filter(|line| line.starts_with(&format!(">{selected} "))).count();
        assert_eq!(shown, 1, "{lines:?}");
    }
    report.guests.clear();
    let text = table(&report, String::new(), None);
    assert!(text.contains("0 guests"), "{text}");
}

#[test]
fn findings_have_colours_by_severity_and_the_name_of_their_rule() {
    let mut report = report();
    report.guests.truncate(1);
    for (severity, mark) in [(Severity::Error, Mark::Bad), (Severity::Warning, Mark::Busy)] {
        let says = OfLoad { message: "m".into(), at: "a".into() };
        let finding = LoadFinding { rule: "vcpu-affinity", severity, says, hint: "h".into() };
        report.guests[0].findings = vec![finding];
        let text = table(&report, String::new(), Some(120));
        assert!(text.contains(&format!("{}vcpu-affinity{END}", mark.begin())), "{text}");
    }
}
