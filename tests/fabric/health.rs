//! The health of GPUs on a live machine, as a fake of NVML reports it: a GPU over a limit is not
//! offered, by any verb, and the findings are remembered for when the driver does not have it.

use super::create::makes;
use super::machine::{H100, Machine, embedded, guest_with};
use crate::support::tree::host_text;
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The GPU of the tests, and its UUID.
const GPU: &str = "0000:1b:00.0";
const UUID: &str = "GPU-8b1c1a7d-0d4e-41f2-9c3a-6f00d5e1b2c3";
/// Another UUID.
const OTHER: &str = "GPU-00000000-0d4e-41f2-9c3a-6f00d5e1b2c3";
/// A finding that lasts.
const FAILED: &str = "health 0000:1b:00.0 remap-failed 1";

/// Eight GPUs on a board without switches for guests to share, with `driver`: none is in a
/// partition that another one's health would take away.
fn board(driver: &str) -> Option<Machine> {
    let to = format!("/bus/pci/drivers/{driver}\n");
    let record = host_text("dgx-h100").replace("/bus/pci/drivers/nvidia\n", &to);
    let machine = Machine::new(&record)?.mode(1);
    std::fs::write(machine.path("kmsg"), "6,1,1,-;Linux version\n").unwrap();
    Some(machine)
}

/// Has the driver report this UUID of the GPU; `None` for question marks.
fn uuid(machine: &Machine, uuid: Option<&str>) {
    let dir = machine.path(&format!("nvidia/gpus/{GPU}"));
    std::fs::create_dir_all(&dir).unwrap();
    let uuid = uuid.unwrap_or("GPU-????????-????-????-????-????????????");
    std::fs::write(Path::new(&dir).join("information"), format!("GPU UUID: \t {uuid}\n")).unwrap();
}

/// The row of `gpu list` of a GPU, and the text printed beside it.
fn row(machine: &Machine, gpu: &str) -> (Value, String) {
    let (code, out, err) = machine.gpuvm(&["gpu", "list", "--json", "--assume-empty"], true);
    assert_eq!(code, 0, "{err}");
    let all: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
    let rows = all["rows"].as_array().or(all.as_array()).unwrap_or_else(|| panic!("{out}"));
    let row = rows.iter().find(|row| row["bdf"] == gpu).unwrap_or_else(|| panic!("{out}"));
    (row.clone(), err)
}

/// The codes of a row.
fn codes(row: &Value) -> Vec<&str> {
    let findings = row["health"]["findings"].as_array().into_iter().flatten();
    findings.map(|finding| finding["code"].as_str().unwrap()).collect()
}

/// Whether `plan` gives this GPU, and why not.
fn plan(machine: &Machine, more: &[&str]) -> (i32, String) {
    let (code, out, err) =
        machine.gpuvm(&[&["plan", "--gpu", GPU, "--assume-empty"], more].concat(), true);
    (code, out + &err)
}

/// The file that remembers.
fn file(machine: &Machine) -> String {
    machine.path("var/gpuvm/health.json")
}

#[test]
fn a_gpu_over_a_limit_is_offered_by_no_verb() {
    let Some(machine) = board("nvidia") else { return };
    let said = "is unhealthy: remapping a row of its memory failed";
    machine.fake("h100", &H100, "");
    assert_eq!(plan(&machine, &[]).0, 0);
    let (healthy, err) = row(&machine, GPU);
    assert_eq!((codes(&healthy), err.as_str()), (vec![], ""));
    assert_eq!(healthy["health"]["source"], "nvml");

    let more = format!(
        "{FAILED}\nhealth 0000:43:00.0 remap-pending 1\nhealth 0000:52:00.0 handle 15\n\
         health 0000:61:00.0 sram-exceeded 1\nhealth 0000:9d:00.0 crc-data 7\n\
         health 0000:c3:00.0 every 16\nhealth 0000:d1:00.0 uncorrected 2"
    );
    machine.fake("h100", &H100, &more);
    for (gpu, state, expected) in [
        (GPU, "unhealthy", "remap-failed"),
        ("0000:43:00.0", "free", "remap-pending"),
        ("0000:52:00.0", "unhealthy", "gpu-lost"),
        ("0000:61:00.0", "unhealthy", "sram-threshold"),
        ("0000:9d:00.0", "free", "nvlink-errors"),
        ("0000:c3:00.0", "unhealthy", "reset-required"),
        ("0000:d1:00.0", "unhealthy", "uncorrected-ecc"),
    ] {
        let (row, _) = row(&machine, gpu);
        assert_eq!((row["state"].as_str(), codes(&row)), (Some(state), vec![expected]), "{row}");
    }
    let (_, text, _) = machine.gpuvm(&["gpu", "list", "--assume-empty"], true);
    assert!(text.contains("HEALTH") && text.contains("over limit"), "{text}");
    assert!(text.contains("a row is remapped at the next reset"), "{text}");

    machine.fake("h100", &H100, &format!("health {GPU} mig 1\nhealth {GPU} mig-pending 1"));
    let (mig, _) = row(&machine, GPU);
    assert_eq!(mig["mig"], serde_json::json!({ "enabled": true, "pending": true }));

    machine.fake("h100", &H100, FAILED);
    let (code, text) = plan(&machine, &[]);
    assert!(code == 1 && text.contains(said), "{code} {text}");
    assert!(text.contains(&format!("`gpuvm gpu include {GPU} --despite-health`")), "{text}");
    let all = ["--assume-empty", "--gpus", "8"];
    let (code, _, err) = machine.gpuvm(&[&["plan"], &all[..]].concat(), true);
    assert!(code == 1 && err.contains(said), "{code} {err}");
    let (code, _, err) = machine.gpuvm(&[&["export"], &all[..]].concat(), true);
    assert!(code == 1 && err.contains(said), "{code} {err}");
    let (_, out, err) = machine.gpuvm(&["capacity", "--assume-empty"], true);
    assert!(out.contains(said), "{out}{err}");
    let (_, out, _) = machine.gpuvm(&["host", "show"], true);
    assert!(out.contains(&format!("GPU 0 ({GPU}) {said}")), "{out}");
    let (_, out, _) = machine.gpuvm(&["device", "list", "--json"], true);
    assert!(out.contains(said), "{out}");
    // Another one, of a number, is not that GPU.
    let (code, out, err) =
        machine.gpuvm(&["plan", "--gpus", "1", "--assume-empty", "--json"], true);
    assert!(code == 0 && !out.contains(&format!("\"devices\":[\"{GPU}")), "{out}{err}");

    // A recorded host carries it, and one without it was not checked.
    let record = machine.path("record.json");
    let (code, _, err) = machine.gpuvm(&["host", "capture", &record], true);
    assert_eq!(code, 0, "{err}");
    let (code, text) = plan(&machine, &["--host", &record]);
    assert!(code == 1 && text.contains(said), "{code} {text}");
}

#[test]
fn an_admin_accepts_a_finding_once_and_revokes_it() {
    let Some(machine) = board("nvidia") else { return };
    uuid(&machine, Some(UUID));
    machine.fake("h100", &H100, FAILED);
    let include = |more: &[&str]| {
        let (code, out, err) = machine.gpuvm(&[&["gpu", "include", GPU], more].concat(), true);
        assert_eq!(code, 0, "{err}");
        out + &err
    };
    let told = include(&[]);
    assert!(told.contains("--despite-health") && told.contains("is not excluded"), "{told}");
    let told = include(&["--despite-health", "--dry-run"]);
    assert!(told.contains("offer 0000:1b:00.0 to guests despite its health"), "{told}");
    assert!(!Path::new(&file(&machine)).exists());
    include(&["--despite-health"]);
    assert_eq!(plan(&machine, &[]).0, 0);
    let (accepted, _) = row(&machine, GPU);
    assert_eq!(accepted["state"], "free");
    assert_eq!(accepted["health"]["accepted"][0], "remap-failed");
    let (_, text, _) = machine.gpuvm(&["gpu", "list", "--assume-empty"], true);
    assert!(text.contains("remapping a row of its memory failed (accepted)"), "{text}");
    // Later faults were not accepted.
    machine.fake("h100", &H100, &format!("{FAILED}\nhealth {GPU} sram-exceeded 1"));
    let (code, text) = plan(&machine, &[]);
    assert!(code == 1 && text.contains("is unhealthy: SRAM errors over the threshold"), "{text}");
    machine.fake("h100", &H100, FAILED);
    // It follows the GPU, not the slot.
    uuid(&machine, Some(OTHER));
    assert_eq!(plan(&machine, &[]).0, 1);
    uuid(&machine, Some(UUID));
    assert_eq!(plan(&machine, &[]).0, 0);
    include(&[]);
    assert_eq!(plan(&machine, &[]).0, 1);
}

#[test]
fn reports_of_the_driver_are_remembered_after_it_loses_the_gpu() {
    let Some(machine) = board("nvidia") else { return };
    uuid(&machine, Some(UUID));
    machine.fake("h100", &H100, FAILED);
    // The kernel of this machine binds nothing here, so the bind itself fails.
    let bind = ["device", "bind", GPU, "--yes", "-c", "none:///"];
    let (_, _, err) = machine.gpuvm(&bind, true);
    let text = std::fs::read_to_string(file(&machine)).unwrap_or_else(|e| panic!("{e}: {err}"));
    assert!(text.contains("remap-failed") && text.contains(UUID), "{text}");
    assert_eq!(std::fs::metadata(file(&machine)).unwrap().permissions().mode() & 0o777, 0o644);

    let Some(later) = board("vfio-pci") else { return };
    std::fs::create_dir_all(later.path("var/gpuvm")).unwrap();
    later.fake("h100", &H100, "crash nvmlInitWithFlags");
    let put = |text: &str| std::fs::write(file(&later), text).unwrap();
    assert!(row(&later, GPU).0["health"].is_null(), "not checked");
    put(&text);
    let (known, err) = row(&later, GPU);
    assert_eq!((known["state"].as_str(), err.as_str()), (Some("unhealthy"), ""), "{known}");
    assert_eq!(known["health"]["source"], "remembered");
    assert_eq!(plan(&later, &[]).0, 1);
    // The driver has a GPU with another UUID there now; and one whose UUID it does not know.
    uuid(&later, Some(OTHER));
    assert!(row(&later, GPU).0["health"].is_null(), "another GPU");
    uuid(&later, None);
    assert_eq!(row(&later, GPU).0["state"], "unhealthy");

    // A damaged file, or one of others, is ignored, and that is reported.
    let boot = "\"boot\": \"0\"";
    for (text, reason) in [
        (text[..text.len() / 2].to_owned(), "EOF"),
        (text.replace("gpuvm-health", "gpuvm-host"), "it is `gpuvm-host`"),
        (String::new(), "EOF"),
    ] {
        put(&text);
        let (unknown, err) = row(&later, GPU);
        assert!(unknown["health"].is_null(), "{unknown}");
        assert!(err.contains(reason) && err.contains("health.json"), "{err}");
        let (_, out, _) = later.gpuvm(&["host", "show", "--json"], true);
        assert!(out.contains("health.json"), "{out}");
    }
    put(&text);
    std::fs::set_permissions(file(&later), Permissions::from_mode(0o666)).unwrap();
    let (unknown, err) = row(&later, GPU);
    assert!(unknown["health"].is_null() && err.contains("mode 0666"), "{err}");
    std::fs::set_permissions(file(&later), Permissions::from_mode(0o644)).unwrap();
    let line = text.lines().find(|line| line.contains("\"boot\"")).unwrap();
    put(&text.replace(line.trim().trim_end_matches(','), boot));
    assert_eq!(row(&later, GPU).0["health"]["source"], "earlier-boot");
}

#[test]
fn a_damaged_file_is_not_written_over_and_two_at_once_lose_nothing() {
    let Some(machine) = board("nvidia") else { return };
    uuid(&machine, Some(UUID));
    machine.fake("h100", &H100, FAILED);
    std::fs::create_dir_all(machine.path("var/gpuvm")).unwrap();
    std::fs::write(file(&machine), "{").unwrap();
    let bind = ["device", "bind", GPU, "--yes", "-c", "none:///"];
    let (_, _, err) = machine.gpuvm(&bind, true);
    assert!(err.contains("nothing is written over it"), "{err}");
    assert_eq!(std::fs::read_to_string(file(&machine)).unwrap(), "{");
    let (code, _, err) = machine.gpuvm(&["gpu", "include", GPU, "--despite-health"], true);
    assert!(code == 1 && err.contains("health.json"), "{code} {err}");
    std::fs::remove_file(file(&machine)).unwrap();

    let more = format!("{FAILED}\nhealth 0000:43:00.0 remap-failed 1");
    machine.fake("h100", &H100, &more);
    let gpuvm = env!("CARGO_BIN_EXE_gpuvm");
    let script = format!(
        "{gpuvm} gpu include {GPU} --despite-health & {gpuvm} gpu include 0000:43:00.0 \
         --despite-health & wait"
    );
    machine.gpuvm_on(&["bash", "-c", &script], true, "");
    for gpu in [GPU, "0000:43:00.0"] {
        assert_eq!(row(&machine, gpu).0["state"], "free", "{gpu}");
    }
    let left = std::fs::read_dir(machine.path("var/gpuvm")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".gpuvm-")), "{left:?}");
}

#[test]
fn xid_messages_of_this_boot_count_whoever_has_the_gpu() {
    let Some(machine) = board("vfio-pci") else { return };
    machine.fake("h100", &H100, "");
    let log = |number: u32| {
        let line = format!("3,9,9,-;NVRM: Xid (PCI:0000:1b:00): {number}, pid=1, text\n");
        std::fs::write(machine.path("kmsg"), line).unwrap();
        row(&machine, GPU).0
    };
    assert!(log(31)["health"].is_null(), "a program's error");
    let reset = log(119);
    assert_eq!((reset["state"].as_str(), codes(&reset)), (Some("free"), vec!["xid"]), "{reset}");
    let lost = log(79);
    assert_eq!((lost["state"].as_str(), codes(&lost)), (Some("unhealthy"), vec!["xid-fatal"]));
    assert_eq!(lost["health"]["source"], "kernel-log");
    let (code, text) = plan(&machine, &[]);
    assert!(code == 1 && text.contains("Xid 79 (fallen off the bus) in this boot"), "{text}");
}

#[test]
fn a_library_that_fails_leaves_health_unknown_and_guests_are_not_touched() {
    let Some(machine) = board("nvidia") else { return };
    for (setting, reason) in [
        ("crash nvmlDeviceGetRemappedRows", "crashed with SIGABRT"),
        ("fail nvmlInitWithFlags 18", "Driver/library version mismatch (18)"),
        ("fail nvmlDeviceGetHandleByPciBusId_v2 6", "Not Found (6)"),
    ] {
        machine.fake("h100", &H100, setting);
        let (unknown, err) = row(&machine, GPU);
        assert!(unknown["health"].is_null() && err.contains(reason), "{err}");
        assert_eq!(plan(&machine, &[]).0, 0);
    }
    // Calls that this GPU does not have say nothing; the others count.
    machine.fake("h100", &H100, &format!("{FAILED}\nfail nvmlDeviceGetSramEccErrorStatus 4"));
    assert_eq!(codes(&row(&machine, GPU).0), ["remap-failed"]);
    // A guest that has it keeps it.
    let uri = guest_with(&machine, &["1b"]);
    let (_, out, err) = machine.gpuvm(&["-c", &uri, "gpu", "list"], true);
    assert!(out.contains("is held by domain `train-a`"), "{out}{err}");
}

#[test]
fn create_refuses_it_before_anything_is_done() {
    let Some(machine) = board("vfio-pci") else { return };
    let Some(uri) = embedded(&machine) else { return };
    machine.fake("h100", &H100, "");
    let line = "3,9,9,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1, text\n";
    std::fs::write(machine.path("kmsg"), line).unwrap();
    let words = makes(&machine, &uri).replace("--gpus 1", &format!("--gpu {GPU}"));
    let words: Vec<&str> = words.split(' ').collect();
    let (code, _, err) = machine.gpuvm(&words, true);
    assert!(code == 1 && err.contains("is unhealthy: Xid 79"), "{code} {err}");
    assert_eq!(std::fs::read_dir(machine.path("disks")).unwrap().count(), 0);
}
