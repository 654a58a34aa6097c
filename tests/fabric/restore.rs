//! `fabric restore`: a restarted Fabric Manager gets the partitions of running guests.

use super::machine::{H100, Machine, domain_with, guest_with, operations, remembering};
use serde_json::Value;

/// The document of `fabric restore`, with its exit code.
pub fn restored(machine: &Machine, more: &[&str]) -> (i32, Value) {
    let args = [&["fabric", "restore", "--json"], more].concat();
    let (code, out, err) = machine.gpuvm(&args, true);
    (code, serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}")))
}

#[test]
fn restarted_fabric_manager_gets_active_partitions() {
    let Some(machine) = Machine::h100() else { return };
    let uri = guest_with(&machine, &["9d", "c3"]);
    std::fs::create_dir_all(machine.path("var/gpuvm")).unwrap();
    let ours = "6695eb01-f6a4-8304-79aa-97f2502e193f";
    let gone = "11111111-2222-3333-4444-555555555555";
    let text = format!(
        "{{\"version\":1,\"partitions\":[{{\"id\":3,\"modules\":[1,3],\"domain\":\"{ours}\"}},\
         {{\"id\":5,\"modules\":[5,7],\"domain\":\"{gone}\"}}]}}"
    );
    let fresh = |more: &str| {
        let _ = std::fs::remove_file(machine.path("state"));
        let _ = std::fs::remove_file(machine.path("calls"));
        std::fs::write(machine.path("var/gpuvm/fabric.json"), &text).unwrap();
        let (state, calls) = (machine.path("state"), machine.path("calls"));
        machine.fake("h100", &H100, &format!("{more}\nstate {state}\ncalls {calls}"));
    };
    fresh("restart_mode 600000");
    let (code, shown) = restored(&machine, &["--dry-run", "-c", &uri]);
    let wanted = serde_json::json!([3]);
    assert_eq!((code, &shown["partitions"], &shown["made"]), (0, &wanted, &false.into()));
    assert_eq!(operations(&machine), [""; 0]);
    // One runs, one does not.
    let (code, shown) = restored(&machine, &["-c", &uri]);
    assert_eq!((code, &shown["mode"], &shown["partitions"]), (0, &"restart".into(), &wanted));
    assert_eq!(operations(&machine), ["fmSetActivatedFabricPartitions 3"]);
    let kept = std::fs::read_to_string(machine.path("var/gpuvm/fabric.json")).unwrap();
    assert!(kept.contains(ours) && !kept.contains(gone), "{kept}");
    let (code, shown) = restored(&machine, &["-c", &uri]);
    assert_eq!((code, &shown["mode"], &shown["made"]), (0, &"normal".into(), &false.into()));
    // At boot libvirt is not asked: no process of a guest runs, so no partition is active.
    fresh("restart_mode 600000\nstarting_for_ms 300");
    let (code, shown) = restored(&machine, &["--boot", "-c", "test:///nosuch"]);
    assert_eq!((code, &shown["partitions"]), (0, &serde_json::json!([])), "{shown}");
    assert_eq!(operations(&machine), ["fmSetActivatedFabricPartitions"]);
    // Started plainly: missing partitions are activated, and the guest is broken.
    fresh("answers new");
    let (code, out, err) = machine.gpuvm(&["fabric", "restore", "-c", &uri], true);
    assert_eq!(code, 3, "{out}{err}");
    assert!(out.contains("activated partition 3") && err.contains("power cycle it"), "{out}{err}");
    assert_eq!(operations(&machine), ["fmActivateFabricPartition 3"]);
    fresh("address elsewhere");
    let (code, _, err) = machine.gpuvm(&["fabric", "restore", "-c", &uri], true);
    assert!(code == 1 && err.contains("CONNECTION_NOT_VALID (-9)"), "{err}");
}

#[test]
fn one_guest_that_cannot_be_restored_keeps_no_other_from_it() {
    let Some(machine) = Machine::h100() else { return };
    let guest = |name: &str, digit: u32, buses: &[&str]| {
        let uuid = format!("{digit}{digit}111111-2222-3333-4444-555555555555");
        let xml = domain_with(&uuid, buses)
            .replace("<name>foreign</name>", &format!("<name>{name}</name>"));
        let more = "<memory>65536</memory><vcpu>1</vcpu><os><type>hvm</type></os><devices>";
        xml.replace("type='kvm'", "type='test'").replacen("<devices>", more, 1)
    };
    let node =
        format!("<node>{}{}</node>", guest("a", 1, &["9d", "c3"]), guest("b", 2, &["d1", "df"]));
    std::fs::write(machine.path("two.xml"), node).unwrap();
    let uri = format!("test://{}", machine.path("two.xml"));
    // Operations: the host's list, how it started, the first step's list, its activation.
    remembering(&machine, "fail_nth 4 -10");
    let (code, shown) = restored(&machine, &["-c", &uri]);
    assert_eq!((code, &shown["partitions"]), (3, &serde_json::json!([4])), "{shown}");
    let left = &shown["unrestored"][0];
    assert_eq!((&left["domain"]["name"], &left["partition"]), (&"a".into(), &3.into()), "{shown}");
    assert!(left["why"].as_str().unwrap().contains("NVLINK_ERROR (-10)"), "{shown}");
    let wanted = ["fmActivateFabricPartition 3", "fmActivateFabricPartition 4"];
    assert_eq!(operations(&machine), wanted);
    let (code, _, err) = machine.gpuvm(&["fabric", "restore", "-c", &uri], true);
    assert_eq!(code, 3, "the other is restored, and has lost NVLink: {err}");
    assert!(err.contains("domain `a` ran while its partition was inactive"), "{err}");
    // It hangs: abandoned after its limit, without waiting for the others.
    remembering(&machine, "");
    std::fs::remove_file(machine.path("state")).unwrap();
    remembering(&machine, "hang 2");
    let (code, _, err) = machine.gpuvm(&["fabric", "restore", "-c", &uri], true);
    assert!(code == 1 && err.contains("did not answer within 5 s"), "{err}");
}
