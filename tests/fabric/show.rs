//! `fabric show` and `fabric release`: partitions beside the guests that hold them.

use super::machine::{
    A100, H100, Machine, domain_with, guest_with, operations, remembering, shown,
};
use crate::support::tree::host_text;
use serde_json::Value;

#[test]
fn partitions_are_shown_beside_the_guests_that_hold_them_and_stale_ones_released() {
    let Some(machine) = Machine::h100() else { return };
    let module = machine.dir.path().join("host/sys/module/nvidia");
    std::fs::create_dir_all(&module).unwrap();
    std::fs::write(module.join("version"), "570.1\n").unwrap();
    let state = format!("state {}", machine.path("state"));
    machine.fake("h100", &H100, &format!("active 3\nlinks 8 16\n{state}"));
    let verdict = |document: &Value, id: usize| {
        let partition = &document["partitions"][id];
        assert_eq!(partition["id"], id);
        partition["verdict"].as_str().unwrap().to_owned()
    };
    // Modules 1 and 3.
    let uri = guest_with(&machine, &["9d", "c3"]);
    let (code, document) = shown(&machine, &uri);
    assert_eq!((code, verdict(&document, 3).as_str()), (0, "ok"), "{document}");
    assert_eq!(document["partitions"][3]["holder"]["name"], "train-a");
    assert_eq!(
        document["partitions"][3]["gpus"],
        serde_json::json!(["0000:9d:00.0", "0000:c3:00.0"])
    );
    assert_eq!(
        (verdict(&document, 6).as_str(), verdict(&document, 5).as_str()),
        ("degraded", "free")
    );
    let (code, out, err) = machine.gpuvm(&["fabric", "show", "--connect", &uri], true);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let row = out.lines().find(|line| line.starts_with("3 ")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    let wanted = ["3", "1,3", "0000:9d:00.0,0000:c3:00.0", "18", "of", "18", "train-a", "ok"];
    assert_eq!(cells, wanted);
    assert!(out.starts_with("DGX H100: NVSwitches are shared by Fabric Manager"), "{out}");
    // No process of Fabric Manager runs here, although the fake answers.
    assert!(
        out.contains("not checked: whether the running Fabric Manager (version unknown)"),
        "{out}"
    );
    assert_eq!(
        (&document["driver_version"], &document["versions"]),
        (&"570.1".into(), &"not-checked".into())
    );
    // Held.
    let release = |uri: &str, more: &[&str]| {
        let args = [&["fabric", "release", "3", "--yes", "--connect", uri][..], more].concat();
        machine.gpuvm(&args, true)
    };
    let (code, _, err) = release(&uri, &[]);
    assert!(code == 1 && err.contains("partition 3 is held by running domain `train-a`"), "{err}");
    assert!(err.contains("hint: `gpuvm stop ") && err.contains("train-a` ends it"), "{err}");
    // A guest of other GPUs: one is stale, the other missing.
    let uri = guest_with(&machine, &["1b", "43"]);
    let (code, document) = shown(&machine, &uri);
    let verdicts = (verdict(&document, 3), verdict(&document, 5));
    assert_eq!((code, verdicts), (3, ("stale".into(), "missing".into())), "{document}");
    let (code, out, err) = release(&uri, &["--dry-run"]);
    assert!(
        code == 0 && out.contains("deactivate NVLink partition 3 (modules 1, 3)"),
        "{out}{err}"
    );
    let (code, _, err) = release(&uri, &[]);
    assert_eq!(code, 0, "{err}");
    let (_, document) = shown(&machine, &uri);
    assert_eq!(verdict(&document, 3), "free");
    let (code, _, err) = release(&uri, &[]);
    assert!(code == 0 && err.contains("partition 3 is not active; nothing to do"), "{err}");
    // Nothing is asked of it.
    let (code, _, err) = machine.gpuvm(&["fabric", "release", "3", "-c", &uri], true);
    assert!(code == 0 && err.contains("partition 3 is not active; nothing to do"), "{err}");
    let (code, _, err) = machine.gpuvm(&["fabric", "release", "99", "--yes", "-c", &uri], true);
    assert!(code == 1 && err.contains("lists no partition 99, among 15"), "{err}");
    // Also of vGPUs, if no guest has any.
    machine.fake("h100", &H100, "active 3");
    let (code, document) = shown(&machine, &uri);
    assert_eq!((code, verdict(&document, 3).as_str()), (3, "stale"), "{document}");
    let (_, document) = shown(&machine.mode(2), &uri);
    assert_eq!(verdict(&document, 3), "stale", "{document}");
}

#[test]
fn an_unused_partition_is_released_without_module_ids() {
    // All GPUs are bound for guests, and of two the admin's file has the module ids.
    let record = host_text("dgx-h100")
        .replace("product_name = DGXH100", "product_name = SYS-821")
        .replace("/bus/pci/drivers/nvidia\n", "/bus/pci/drivers/vfio-pci\n");
    let Some(machine) = Machine::new(&record) else { return };
    let machine = machine.mode(1);
    std::fs::create_dir_all(machine.path("etc/gpuvm")).unwrap();
    let known = "{\"0000:9d:00.0\": 1, \"0000:c3:00.0\": 3}\n";
    std::fs::write(machine.path("etc/gpuvm/module-ids.json"), known).unwrap();
    remembering(&machine, "active 3\nactive 5");
    let release = |id: &str, uri: &str| {
        let (code, _, err) = machine.gpuvm(&["fabric", "release", id, "--yes", "-c", uri], true);
        (code, err)
    };
    // A guest runs with a GPU of unknown module id: it is neither 1 nor 3, and may be 5 or 7.
    let uri = guest_with(&machine, &["1b"]);
    let (_, document) = shown(&machine, &uri);
    let verdict = |id: usize| document["partitions"][id]["verdict"].clone();
    assert_eq!((verdict(3), verdict(5)), ("stale".into(), "unknown".into()), "{document}");
    let (code, err) = release("5", &uri);
    assert!(code == 1 && err.contains("it is unknown whether domain `train-a` uses it"), "{err}");
    for hint in ["once `gpuvm stop ", " 5` deactivates the partition"] {
        assert!(err.contains(hint), "{err}");
    }
    assert_eq!(operations(&machine), [""; 0]);
    let (code, err) = release("3", &uri);
    assert_eq!(code, 0, "{err}");
    assert_eq!(operations(&machine), ["fmDeactivateFabricPartition 3"]);
    // Nobody has any of those that may be 5 or 7.
    let uri = guest_with(&machine, &["9d", "c3"]);
    let (code, err) = release("5", &uri);
    assert_eq!(code, 0, "{err}");
    assert_eq!(operations(&machine)[1..], ["fmDeactivateFabricPartition 5"]);
    // What libvirt calls once a guest is off asks for no more.
    remembering(&machine, "active 6");
    std::fs::remove_file(machine.path("state")).unwrap();
    std::fs::create_dir_all(machine.path("var/gpuvm")).unwrap();
    let uuid = "11111111-2222-3333-4444-555555555555";
    let text = format!(
        "{{\"version\":1,\"partitions\":[{{\"id\":6,\"modules\":[6,8],\"domain\":\"{uuid}\"}}]}}"
    );
    std::fs::write(machine.path("var/gpuvm/fabric.json"), text).unwrap();
    let words = [env!("CARGO_BIN_EXE_gpuvm"), "fabric", "release", "--stdin"];
    let (code, _, err) = machine.gpuvm_on(&words, true, &domain_with(uuid, &["52", "61"]));
    assert_eq!(code, 0, "{err}");
    assert_eq!(operations(&machine)[2..], ["fmDeactivateFabricPartition 6"]);
}

#[test]
fn pending_deactivations_are_shown_without_fabric_manager() {
    let Some(machine) = Machine::h100() else { return };
    machine.fake("h100", &H100, "address elsewhere");
    let uri = guest_with(&machine, &["1b", "43"]);
    std::fs::create_dir_all(machine.path("var/gpuvm")).unwrap();
    let gone = "11111111-2222-3333-4444-555555555555";
    let text = format!(
        "{{\"version\":1,\"partitions\":[{{\"id\":3,\"modules\":[1,3],\"domain\":\"{gone}\"}},\
         {{\"id\":5,\"modules\":[5,7],\"domain\":\"6695eb01-f6a4-8304-79aa-97f2502e193f\"}}]}}"
    );
    std::fs::write(machine.path("var/gpuvm/fabric.json"), text).unwrap();
    let (code, document) = shown(&machine, &uri);
    assert_eq!(code, 3, "{document}");
    let pending = serde_json::json!([{ "id": 3, "modules": [1, 3], "domain": gone }]);
    assert_eq!((&document["pending"], &document["partitions"]), (&pending, &serde_json::json!([])));
    assert!(document["refusal"].as_str().unwrap().contains("CONNECTION_NOT_VALID (-9)"));
    let (code, _, err) = machine.gpuvm(&["fabric", "show", "-c", &uri], true);
    assert!(
        code == 3 && err.contains("`gpuvm fabric release ") && err.contains(" 3` does it"),
        "{err}"
    );
    let (code, _, err) = machine.gpuvm(&["fabric", "release", "3", "--yes", "-c", &uri], true);
    assert!(code == 1 && err.contains("hint: it does not run, or listens elsewhere"), "{err}");
    std::fs::write(machine.path("var/gpuvm/fabric.json"), "{").unwrap();
    let (code, document) = shown(&machine, &uri);
    assert!(
        code == 3 && document["unread"].as_str().unwrap().contains("fabric.json"),
        "{document}"
    );
    // Somebody else's: it is not read, and what puts it away is said.
    machine.fake("h100", &H100, "");
    let foreign = machine.path("var/gpuvm/fabric.json");
    std::os::unix::fs::chown(&foreign, Some(12345), None).unwrap();
    let text = domain_with("11111111-2222-3333-4444-555555555555", &["9d", "c3"]);
    let words = [env!("CARGO_BIN_EXE_gpuvm"), "fabric", "ensure", "--stdin"];
    let (code, _, err) = machine.gpuvm_on(&words, true, &text);
    assert!(code == 1 && err.contains("it belongs to user 12345"), "{err}");
    assert!(err.contains("hint: `ls -l ") && err.contains(".foreign` puts it away"), "{err}");
    // If switches are passed to guests, there is nothing to release.
    let machine = machine.mode(0);
    let (code, document) = shown(&machine, &uri);
    assert_eq!((code, &document["model"]), (0, &"full-passthrough".into()), "{document}");
    let (code, _, err) = machine.gpuvm(&["fabric", "release", "3", "--yes", "-c", &uri], true);
    assert!(code == 1 && err.contains("NVSwitches are not shared"), "{err}");
}

#[test]
fn a_reset_after_the_activation_is_seen_on_an_a100() {
    let Some(machine) = Machine::new(&host_text("dgx-a100")) else { return };
    let machine = machine.mode(1);
    let uri = guest_with(&machine, &A100.map(|(bus, _)| bus));
    let (state, resets) = (machine.path("state"), machine.path("resets"));
    let fake = format!("active 1\nstate {state}\nresets {resets}");
    machine.fake("a100", &A100, &fake);
    let verdict = || {
        let (_, document) = shown(&machine, &uri);
        let all = document["partitions"].as_array().unwrap();
        let one = all.iter().find(|one| one["id"] == 1).unwrap().clone();
        (one["verdict"].as_str().unwrap().to_owned(), one["links"].as_u64().unwrap())
    };
    assert_eq!(verdict(), ("ok".into(), 12));
    std::fs::write(&resets, "0000:47:00.0\n").unwrap();
    assert_eq!(verdict(), ("degraded".into(), 0));
}
