//! Metrics of recorded hosts with guests.

use super::*;
use crate::placement::{capacity, plan};
use crate::request::Request;
use crate::topology::file::from_json;

#[allow(clippy::disallowed_methods)] // Reads files of the project.
fn recorded(name: &str) -> Topology {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../topologies");
    from_json(&std::fs::read_to_string(format!("{root}/{name}.json")).unwrap()).unwrap()
}

fn text(topology: &Topology, held: &Occupancy) -> String {
    let capacity = capacity(topology, held, &Request::for_gpus(1), &[]);
    host(&HostNumbers {
        topology,
        held,
        capacity: &capacity,
        kept_cores: 0,
        version: "1.2.3",
        commit: "0a1b",
        at_s: 1_700_000_000,
    })
}

/// The value of each sample, by the text before it; every sample occurs once.
fn samples(text: &str) -> BTreeMap<&str, &str> {
    let mut all = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert_eq!(all.insert(series, value), None, "{series} twice");
    }
    all
}

#[test]
fn metrics_of_a_dgx2_with_guests() {
    let mut topology = recorded("dgx-2");
    let mut held = Occupancy::default();
    for (name, gpus, active) in [("a\"\\b", 4, true), ("off", 2, false)] {
        let placement = plan(&topology, &held, &Request::for_gpus(gpus)).unwrap();
        let own = Held { active, uuid: Some(format!("uuid-{gpus}")), ..placement.held(name) };
        held.domains.push(own.clone());
        if active {
            // The definition of a running domain repeats its live state.
            held.domains.push(Held { active: false, ..own });
        }
    }
    let mut parts = topology.parts().clone();
    let first = topology.gpus().next().unwrap().bdf;
    let at = parts.devices.iter().position(|device| device.bdf == first).unwrap();
    parts.devices[at].uuid = Some("GPU-1".into());
    topology = Topology::new(parts).unwrap();
    let excluded = topology.gpus().last().unwrap().bdf;
    held.excluded.push(crate::occupancy::Exclusion::new(excluded, ""));
    let text = text(&topology, &held);
    assert!(text.starts_with(METRICS_MARK), "{text}");
    assert!(is_metrics_of("capacity", &text) && !is_metrics_of("verify", &text));
    assert!(!is_metrics_of("capacity", &format!("{text}my_metric 1\n")));
    let all = samples(&text);
    let of = |series: &str| *all.get(series).unwrap_or_else(|| panic!("{series}\n{text}"));
    assert_eq!(of("gpuvm_build_info{version=\"1.2.3\",commit=\"0a1b\"}"), "1");
    let info = "gpuvm_gpu_info{pci_bus_id=\"00000000:34:00.0\",index=\"0\",UUID=\"GPU-1\",\
                model=\"V100 SXM3 32 GB\",node=\"0\",driver=\"nvidia\",";
    assert!(all.keys().any(|series| series.starts_with(info)), "{text}");
    let holder = |bus: &str, rest: &str| {
        of(&format!("gpuvm_gpu_holder{{pci_bus_id=\"00000000:{bus}:00.0\",{rest}}}")).to_owned()
    };
    let guest = "kind=\"guest\",domain=\"a\\\"\\\\b\",uuid=\"uuid-4\"";
    assert_eq!(holder("34", guest), "1");
    assert_eq!(holder("E7", "kind=\"excluded\",domain=\"\",uuid=\"\""), "1");
    assert_eq!(holder("E5", "kind=\"free\",domain=\"\",uuid=\"\""), "1");
    let number = |start: &str| all.keys().filter(|series| series.starts_with(start)).count();
    assert_eq!(number("gpuvm_gpu_holder{"), 16);
    assert_eq!(number("gpuvm_nvswitch_holder{"), 12);
    assert_eq!(number("gpuvm_nvswitch_info{"), 12);
    assert_eq!(number("gpuvm_partition_active{"), topology.partitions().len());
    let active: Vec<&&str> = all
        .iter()
        .filter(|(series, value)| series.starts_with("gpuvm_partition_active") && **value == "1")
        .map(|(series, _)| series)
        .collect();
    // The guest that is off has its partition, but no NVLink of it is in use.
    assert_eq!(active.len(), 1, "{active:?}");
    assert!(active[0].ends_with(",gpus=\"4\"}"), "{active:?}");
    assert_eq!(of("gpuvm_domain_active{domain=\"off\",uuid=\"uuid-2\"}"), "0");
    assert_eq!(of("gpuvm_domain_active{domain=\"a\\\"\\\\b\",uuid=\"uuid-4\"}"), "1");
    let pcpus = |node: u32, state: &str| -> u32 {
        of(&format!("gpuvm_pcpus{{node=\"{node}\",state=\"{state}\"}}")).parse().unwrap()
    };
    for node in [0, 1] {
        let of_node = |state| pcpus(node, state);
        assert_eq!(of_node("held") + of_node("free") + of_node("reserved"), 48);
    }
    assert_eq!(pcpus(0, "held") + pcpus(1, "held"), 24 + 12);
    // The excluded GPU is not there for guests of an empty host, either.
    assert_eq!(of("gpuvm_capacity_guests_empty_host{gpus=\"16\"}"), "0");
    assert_eq!(of("gpuvm_capacity_guests_empty_host{gpus=\"8\"}"), "1");
    assert_eq!(of("gpuvm_capacity_guests{gpus=\"16\"}"), "0");
    assert_eq!(of("gpuvm_capacity_last_success_timestamp_seconds"), "1700000000");
}

#[test]
fn numbers_agree_with_capacity_on_every_recorded_host() {
    for name in ["dgx-1", "dgx-2", "dgx-a100", "dgx-h100", "dual-socket", "h100-guest"] {
        let (topology, held) = (recorded(name), Occupancy::default());
        let text = text(&topology, &held);
        let all = samples(&text);
        let counted = capacity(&topology, &held, &Request::for_gpus(1), &[]);
        for size in &counted.sizes {
            let series = format!("gpuvm_capacity_guests{{gpus=\"{}\"}}", size.gpus);
            assert_eq!(all[series.as_str()], size.now.to_string(), "{name}");
        }
        let gpus = all.keys().filter(|series| series.starts_with("gpuvm_gpu_info{")).count();
        assert_eq!(gpus, topology.gpus().count(), "{name}");
        // Each gauge is announced once, before its samples.
        let names: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len(), "{name}");
    }
}

#[test]
fn a_bus_id_is_written_as_nvml_does() {
    assert_eq!(bus_id("0000:0f:00.0".parse().unwrap()), "00000000:0F:00.0");
    assert_eq!(bus_id("1000a:c4:1f.7".parse().unwrap()), "0001000A:C4:1F.7");
}

#[test]
fn labels_are_escaped() {
    let mut out = Metrics::default();
    out.gauge("a", "b", [(vec![("c", "x\"\\\ny{}".to_owned())], "1".into())]);
    out.one("d", "e", 2);
    let text = "# HELP a b\n# TYPE a gauge\na{c=\"x\\\"\\\\\\ny{}\"} 1\n# HELP d e\n# TYPE d \
                gauge\nd 2\n";
    assert_eq!(out.finish(), text);
}
