//! `verify` on partitions: the findings and metrics of what `fabric show` calls wrong.

use super::machine::{H100, Machine, guest_with, off, shown};
use serde_json::Value;

/// The findings of `verify` on partitions: the exit code, findings as domain, rule and message,
/// skipped checks, and the metrics about them.
pub fn verified(machine: &Machine, uri: &str) -> (i32, Vec<[String; 3]>, String, Vec<String>) {
    let metrics = machine.path("gpuvm.prom");
    let args = ["verify", "--all", "--json", "--metrics", &metrics, "--connect", uri];
    let (code, out, err) = machine.gpuvm(&args, true);
    let all: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (mut findings, mut untold) = (Vec::new(), String::new());
    for one in all.as_array().unwrap() {
        untold += &one["not_checked"].to_string();
        for finding in one["findings"].as_array().unwrap() {
            if text(&finding["rule"]).starts_with("partition-") {
                findings.push([&one["domain"], &finding["rule"], &finding["message"]].map(text));
            }
        }
    }
    let lines = std::fs::read_to_string(&metrics).unwrap();
    let lines = lines.lines().filter(|line| line.starts_with("gpuvm_fabric_"));
    (code, findings, untold, lines.map(str::to_owned).collect())
}

#[test]
fn verify_finds_what_fabric_show_calls_wrong() {
    let Some(machine) = Machine::h100() else { return };
    let ours = "6695eb01-f6a4-8304-79aa-97f2502e193f";
    let remember = |partition: u32, modules: &str| {
        std::fs::create_dir_all(machine.path("var/gpuvm")).unwrap();
        let text = format!(
            "{{\"version\":1,\"partitions\":[{{\"id\":{partition},\"modules\":[{modules}],\
             \"domain\":\"{ours}\"}}]}}"
        );
        std::fs::write(machine.path("var/gpuvm/fabric.json"), text).unwrap();
    };
    let found = |uri: &str| {
        let (code, found, ..) = verified(&machine, uri);
        let found: Vec<String> = found.iter().map(|one| one.join(" ")).collect();
        (code, found)
    };
    // Modules 6 and 8.
    let uri = guest_with(&machine, &["52", "61"]);
    machine.fake("h100", &H100, "active 6");
    assert_eq!(found(&uri).1, [""; 0]);
    for (fake, wanted) in [
        (
            "",
            "train-a partition-missing NVLink partition 6 (modules 6, 8): expected active, found \
             inactive",
        ),
        (
            "active 6\nlinks 8 16",
            "train-a partition-degraded NVLinks of each GPU of NVLink partition 6 (modules 6, 8): \
             expected 18, found 16",
        ),
        (
            "active 6\nactive 12",
            "train-a partition-overlap NVLink partition 12 (module 6): expected inactive, since \
             domain `train-a` has modules 6, 8, found active",
        ),
        (
            "active 6\nactive 3",
            " partition-stale NVLink partition 3 (modules 1, 3): expected inactive, since no \
             running domain uses it, found active",
        ),
    ] {
        machine.fake("h100", &H100, fake);
        assert_eq!(found(&uri), (3, vec![wanted.to_owned()]), "{fake}");
        let (_, document) = shown(&machine, &uri);
        let rule = wanted.split(' ').nth(1).unwrap();
        let verdict = rule.strip_prefix("partition-").unwrap();
        let verdicts = document["partitions"].as_array().unwrap();
        assert!(verdicts.iter().any(|one| one["verdict"] == verdict), "{verdict}: {document}");
    }
    let (_, _, _, metrics) = verified(&machine, &uri);
    for line in [
        "gpuvm_fabric_manager_up 1",
        "gpuvm_fabric_partitions_pending 0",
        "gpuvm_fabric_partitions{verdict=\"ok\"} 1",
        "gpuvm_fabric_partitions{verdict=\"stale\"} 1",
        "gpuvm_fabric_partitions{verdict=\"missing\"} 0",
    ] {
        assert!(metrics.iter().any(|one| one == line), "{line}: {metrics:#?}");
    }
    let (_, out, _) = machine.gpuvm(&["verify", "--all", "-c", &uri], true);
    assert!(out.contains("\nthis host: 1 difference"), "{out}");
    assert!(out.contains("hint: `gpuvm fabric release ") && out.contains(" 3` deactivates it"));
    // Off: the partitions active for it, and those that may be.
    let uri = off(&machine, &uri);
    remember(6, "6,8");
    machine.fake("h100", &H100, "active 6");
    let stale = "train-a partition-stale NVLink partition 6 (modules 6, 8): expected inactive, \
                 since domain `train-a` is off, found active";
    assert_eq!(found(&uri), (3, vec![stale.to_owned()]));
    machine.fake("h100", &H100, "address elsewhere");
    let (code, found, untold, metrics) = verified(&machine, &uri);
    assert_eq!((code, found[0][1].as_str(), found.len()), (3, "partition-pending", 1));
    assert!(untold.contains("NVLink partitions (Fabric Manager at 127.0.0.1 gave no"), "{untold}");
    let wanted = ["gpuvm_fabric_manager_up 0", "gpuvm_fabric_partitions_pending 1"];
    assert_eq!(metrics, wanted);
    // Likewise in the mode for vGPUs; if switches are passed to guests, there is nothing to judge.
    let machine = machine.mode(2);
    let (_, found, _, metrics) = verified(&machine, &uri);
    assert_eq!((found[0][1].as_str(), found.len()), ("partition-pending", 1));
    assert_eq!(metrics, wanted);
    let (_, found, untold, metrics) = verified(&machine.mode(0), &uri);
    assert_eq!((found.len(), metrics.len(), untold.contains("NVLink")), (0, 0, false), "{untold}");
}
