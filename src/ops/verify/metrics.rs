//! Metrics for Prometheus in its text format, for the node exporter's textfile collector: a file
//! that is replaced by a rename, so that it is never read half written.

use super::{Compared, LastMeasured};
use crate::error::Result;
use crate::files::write_own;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::fabric::Verdict;
use gpuvm_core::load::{AerCounts, GuestLoad, ThreadKind};
use gpuvm_core::metrics::{METRICS_MARK, Metrics, Sample, bus_id, is_metrics_of};
use gpuvm_core::verify::partition::Partitions;
use gpuvm_core::verify::rules;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Writes the file.
pub fn write(path: &Path, found: &Compared, took: Duration) -> Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let is_ours = |there: &str| is_metrics_of("verify", there);
    write_own(path, METRICS_MARK, is_ours, text(found, now, took).as_bytes())
}

/// The metrics of one run that ended at `now`, since 1970.
fn text(found: &Compared, now: Duration, took: Duration) -> String {
    let Compared { all: answers, partitions, loads, measured } = found;
    let mut out = Metrics::default();
    let mut findings = Vec::new();
    for answer in answers {
        for rule in rules() {
            let count = answer.findings.iter().filter(|found| found.rule == rule.id).count();
            // For a domain that could not be compared, and for no domain, no more is known.
            if count == 0 && (!answer.is_compared() || answer.domain.is_empty()) {
                continue;
            }
            let labels = vec![("domain", answer.domain.clone()), ("rule", rule.id.to_owned())];
            findings.push((labels, count.to_string()));
        }
    }
    out.gauge("gpuvm_verify_findings", "Differences that gpuvm verify found.", findings);
    let running = answers.iter().filter(|answer| !answer.domain.is_empty()).map(|answer| {
        (vec![("domain", answer.domain.clone())], u8::from(answer.running).to_string())
    });
    out.gauge("gpuvm_verify_domain_running", "Whether the domain runs.", running);
    let gauges = partitions.iter().flat_map(of_partitions);
    for (name, help, samples) in gauges.chain(of_loads(loads)).chain(of_measured(measured)) {
        out.gauge(name, help, samples);
    }
    let errors = errors(loads);
    if !errors.is_empty() {
        let help = "PCIe errors that a passed-through function, or the port above it, counted.";
        out.counter("gpuvm_pcie_aer_total", help, errors);
    }
    let seconds = |time: Duration| format!("{:.3}", time.as_secs_f64());
    let help = "How long the comparison took.";
    out.one("gpuvm_verify_duration_seconds", help, seconds(took));
    let help = "When the domains were last compared.";
    out.one("gpuvm_verify_last_success_timestamp_seconds", help, seconds(now));
    out.finish()
}

/// A gauge: its name, its help, its samples.
type Gauge = (&'static str, &'static str, Vec<Sample<'static>>);

/// The gauges of NVLink partitions. Only Fabric Manager reports how many there are of each verdict.
fn of_partitions(all: &Partitions) -> Vec<Gauge> {
    let one = |value: usize| vec![(Vec::new(), value.to_string())];
    let answers = usize::from(all.listed.is_some());
    let mut gauges = vec![
        ("gpuvm_fabric_manager_up", "Whether Fabric Manager lists partitions.", one(answers)),
        (
            "gpuvm_fabric_partitions_pending",
            "Partitions of guests that are off, still to be deactivated.",
            one(all.pending()),
        ),
    ];
    if let Some(states) = all.states() {
        let sample = |verdict: Verdict| {
            let count = states.iter().filter(|state| state.verdict == verdict).count();
            (vec![("verdict", verdict.to_string())], count.to_string())
        };
        let samples = Verdict::ALL.map(sample).to_vec();
        gauges.push(("gpuvm_fabric_partitions", "NVLink partitions, as fabric show.", samples));
    }
    gauges
}

/// The gauges of a sample; none without one.
fn of_loads(loads: &[GuestLoad]) -> Vec<Gauge> {
    let domain = |load: &GuestLoad| ("domain", load.name.clone());
    let vcpus = loads.iter().flat_map(|load| {
        let vcpus = load.threads.iter().filter(|thread| thread.kind == ThreadKind::Vcpu);
        vcpus.filter_map(move |thread| {
            let labels = vec![domain(load), ("vcpu", thread.index?.to_string())];
            Some((labels, thread.waited_ratio.to_string()))
        })
    });
    let local = loads.iter().filter_map(|load| {
        Some((vec![domain(load)], load.memory.as_ref()?.local_ratio?.to_string()))
    });
    let gauges = [
        (
            "gpuvm_vcpu_wait_ratio",
            "Part of the time that the vCPU waited for a pcpu.",
            vcpus.collect::<Vec<_>>(),
        ),
        ("gpuvm_memory_local_ratio", "Part of the memory on its planned nodes.", local.collect()),
    ];
    gauges.into_iter().filter(|(.., samples)| !samples.is_empty()).collect()
}

/// The gauges of measurements in guests; none if no guest was measured.
fn of_measured(all: &[LastMeasured]) -> Vec<Gauge> {
    let domain = |one: &LastMeasured| ("domain", one.domain.clone());
    let values = all.iter().flat_map(|one| {
        one.readings.iter().map(move |(suite, reading)| {
            let device = reading.device.clone().unwrap_or_default();
            let suite = suite.map_or_else(|| "unknown".to_owned(), |suite| suite.to_string());
            let (tool, what) = (reading.what.tool(), reading.what);
            let labels = vec![
                domain(one),
                ("tool", tool.to_string()),
                ("what", what.to_string()),
                ("device", device),
                ("suite", suite),
            ];
            (labels, reading.value.to_string())
        })
    });
    let times = all.iter().map(|one| (vec![domain(one)], one.at_s.to_string()));
    let gauges = [
        (
            "gpuvm_measured",
            "The last values of gpuvm measure in the guest.",
            values.collect::<Vec<_>>(),
        ),
        ("gpuvm_measured_timestamp_seconds", "When the guest was last measured.", times.collect()),
    ];
    gauges.into_iter().filter(|(.., samples)| !samples.is_empty()).collect()
}

/// The errors of functions and of the ports above them, each port once.
fn errors(loads: &[GuestLoad]) -> Vec<Sample<'static>> {
    let devices = loads.iter().flat_map(|load| &load.devices);
    let all: BTreeMap<Bdf, AerCounts> = devices
        .flat_map(|device| {
            [device.aer.map(|aer| (device.bdf, aer)), device.port.zip(device.port_aer)]
        })
        .flatten()
        .collect();
    let each = all.into_iter().flat_map(|(bdf, AerCounts { correctable, nonfatal, fatal })| {
        [("correctable", correctable), ("nonfatal", nonfatal), ("fatal", fatal)].map(
            |(severity, count)| {
                let labels = vec![("pci_bus_id", bus_id(bdf)), ("severity", severity.to_owned())];
                (labels, count.to_string())
            },
        )
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::super::Verified;
    use super::*;
    use gpuvm_core::fabric::{Listed, RestoreList};
    use gpuvm_core::finding::Severity;
    use gpuvm_core::verify::{Between, Differs, Finding, not_compared};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn every_rule_of_every_domain_has_a_number_and_labels_are_escaped() {
        let finding = Finding {
            rule: "vcpu-affinity",
            severity: Severity::Error,
            says: Differs {
                between: Between::Reality,
                message: "m".into(),
                expected: None,
                found: None,
                at: "a".into(),
            },
            hint: "h".into(),
        };
        let answer = |domain: &str, findings| Verified {
            domain: domain.into(),
            running: true,
            findings,
            rules: 1,
            not_checked: vec![],
        };
        let of_host = Finding { rule: "partition-stale", ..finding.clone() };
        let all = vec![
            answer("a\"\\b", vec![finding.clone(), finding]),
            answer("c", vec![]),
            answer("d", vec![not_compared("d", "why".into())]),
            answer("", vec![of_host]),
        ];
        let found = Compared { all, partitions: None, loads: vec![], measured: vec![] };
        let text = text(&found, Duration::from_millis(1_500), Duration::from_millis(20));
        assert!(!text.contains("gpuvm_fabric"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        for line in [
            "# TYPE gpuvm_verify_findings gauge",
            "gpuvm_verify_findings{domain=\"a\\\"\\\\b\",rule=\"vcpu-affinity\"} 2",
            "gpuvm_verify_findings{domain=\"c\",rule=\"vcpu-affinity\"} 0",
            "gpuvm_verify_findings{domain=\"c\",rule=\"pcpu-held\"} 0",
            "gpuvm_verify_findings{domain=\"d\",rule=\"not-compared\"} 1",
            "gpuvm_verify_findings{domain=\"\",rule=\"partition-stale\"} 1",
            "gpuvm_verify_domain_running{domain=\"c\"} 1",
            "gpuvm_verify_duration_seconds 0.020",
            "gpuvm_verify_last_success_timestamp_seconds 1.500",
        ] {
            assert!(lines.contains(&line), "{line}\n{text}");
        }
        let samples = lines.iter().filter(|l| l.starts_with("gpuvm_verify_findings{")).count();
        assert_eq!(samples, 2 * rules().count() + 2);
        assert!(!text.contains("running{domain=\"\""), "{text}");
        let names: std::collections::BTreeSet<&str> = rules().map(|rule| rule.id).collect();
        assert_eq!(names.len(), rules().count(), "two rules of one name");
    }

    #[test]
    fn a_sample_has_the_waits_of_each_vcpu_and_local_memory() {
        use gpuvm_core::cpuset::NodeId;
        use gpuvm_core::load::{
            DeviceSample, GuestPlan, GuestSample, NodeMemory, ThreadSample, guest_load,
        };
        use gpuvm_core::measure::{Reading, Suite, What};
        use gpuvm_core::memsize::MemSize;
        let at = |at_ns, wait_ns| {
            let (kind, index) = (ThreadKind::Vcpu, Some(3));
            let thread = ThreadSample { kind, index, run_ns: 0, wait_ns, last_pcpu: None };
            let nodes = [0, 1].map(|node| (NodeId(node), MemSize::from_gib(1))).into();
            GuestSample {
                pid: 40,
                started: 7,
                at_ns,
                threads: [(41, thread)].into(),
                throttled: Default::default(),
                memory: Some(NodeMemory { normal: nodes, ..NodeMemory::default() }),
                io: None,
                nics: Default::default(),
                disks: None,
                functions: None,
                kvm: None,
                devices: vec![DeviceSample {
                    bdf: "0000:3b:00.0".parse().unwrap(),
                    width: None,
                    max_width: None,
                    aer: Some(AerCounts { correctable: 4, nonfatal: 0, fatal: 1 }),
                    port: "0000:3a:00.0".parse().ok(),
                    port_aer: Some(AerCounts { correctable: 7, nonfatal: 2, fatal: 0 }),
                }],
                unread: Default::default(),
            }
        };
        let nodes = "1".parse().ok();
        let plan = GuestPlan { name: "a".into(), nodes, ..GuestPlan::default() };
        let loads = vec![guest_load(&plan, &at(0, 0), &at(1000, 250)).unwrap()];
        let device = Some("GPU 0".to_owned());
        let reading = Reading { what: What::HostToDevice, device, value: 51.5 };
        let full = Reading { value: 52.5, ..reading.clone() };
        let readings = vec![(Some(Suite::Quick), reading), (Some(Suite::Full), full)];
        let measured = vec![LastMeasured { domain: "a".into(), at_s: 9, readings }];
        let found = Compared { all: vec![], partitions: None, loads, measured };
        let text = text(&found, Duration::ZERO, Duration::ZERO);
        for line in [
            "gpuvm_vcpu_wait_ratio{domain=\"a\",vcpu=\"3\"} 0.25",
            "gpuvm_memory_local_ratio{domain=\"a\"} 0.5",
            "# TYPE gpuvm_pcie_aer_total counter",
            "gpuvm_pcie_aer_total{pci_bus_id=\"00000000:3B:00.0\",severity=\"fatal\"} 1",
            "gpuvm_pcie_aer_total{pci_bus_id=\"00000000:3A:00.0\",severity=\"correctable\"} 7",
            "gpuvm_measured{domain=\"a\",tool=\"nvbandwidth\",what=\"host-to-device\",\
             device=\"GPU 0\",suite=\"quick\"} 51.5",
            "gpuvm_measured{domain=\"a\",tool=\"nvbandwidth\",what=\"host-to-device\",\
             device=\"GPU 0\",suite=\"full\"} 52.5",
            "gpuvm_measured_timestamp_seconds{domain=\"a\"} 9",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
    }

    #[test]
    fn partitions_are_counted_if_fabric_manager_lists_them() {
        let partitions = |listed| Partitions {
            listed,
            running: vec![],
            remembered: RestoreList::parse(
                r#"{"version":1,"partitions":[{"id":3,"modules":[],"domain":"u"}]}"#,
            )
            .unwrap(),
        };
        let text = |listed| {
            let found = Compared {
                all: vec![],
                partitions: Some(partitions(listed)),
                loads: vec![],
                measured: vec![],
            };
            text(&found, Duration::ZERO, Duration::ZERO)
        };
        let listed = text(Some(vec![Listed { id: 3, active: true, gpus: vec![] }]));
        for line in [
            "gpuvm_fabric_manager_up 1",
            "gpuvm_fabric_partitions_pending 1",
            "gpuvm_fabric_partitions{verdict=\"stale\"} 1",
            "gpuvm_fabric_partitions{verdict=\"ok\"} 0",
        ] {
            assert!(listed.lines().any(|one| one == line), "{line}\n{listed}");
        }
        let silent = text(None);
        assert!(silent.contains("\ngpuvm_fabric_manager_up 0\n"), "{silent}");
        assert!(!silent.contains("verdict="), "{silent}");
    }

    #[test]
    fn the_file_is_replaced_whole_and_all_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpuvm.prom");
        std::fs::write(&path, "# HELP gpuvm_verify_old x\n").unwrap();
        let nothing = Compared { all: vec![], partitions: None, loads: vec![], measured: vec![] };
        write(&path, &nothing, Duration::ZERO).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("# HELP"));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        let foreign = dir.path().join("notes");
        for text in ["mine", "# HELP gpuvm_build_info x\n# HELP gpuvm_capacity_guests x\n"] {
            std::fs::write(&foreign, text).unwrap();
            assert!(write(&foreign, &nothing, Duration::ZERO).is_err());
            assert_eq!(std::fs::read(&foreign).unwrap(), text.as_bytes());
        }
        std::fs::remove_file(&foreign).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something is left");
        assert!(write(&dir.path().join("no/x.prom"), &nothing, Duration::ZERO).is_err());
    }
}
