//! ACS control that is cleared after the kernel formed its IOMMU groups, as NCCL's troubleshooting
//! page advises: the groups stay, and nothing keeps devices of one switch apart any more.

use crate::support::tree::{host_text, scratch, unpack};
use crate::support::{gpuvm, run};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The port right below the outer switch, above one GPU and its drives.
const PORT: &str = "0000:02:00.0";
/// The port above the same switch's other GPU.
const OTHER: &str = "0000:02:04.0";
/// A GPU below each of these.
const GPUS: [&str; 2] = ["0000:07:00.0", "0000:0f:00.0"];
/// What Linux sets: source validation, redirection of requests and completions, forwarding.
const SAFE: u16 = 0x1d;

/// Config space of a function with ACS of this control.
fn config(ctl: u16) -> Vec<u8> {
    let mut config = vec![0; 4096];
    config[..4].copy_from_slice(&[0xb5, 0x10, 0x97, 0x97]);
    let [low, high] = ctl.to_le_bytes();
    config[0x100..0x108].copy_from_slice(&[0x0d, 0, 1, 0, 0x5f, 0, low, high]);
    config
}

/// Writes a function's config space.
fn put(tree: &Path, bdf: &str, config: &[u8]) {
    fs::write(tree.join(format!("sys/bus/pci/devices/{bdf}/config")), config).unwrap();
}

/// A recorded host whose bridges are as Linux sets them.
fn tree() -> tempfile::TempDir {
    let dir = scratch();
    unpack(&host_text("dgx-a100"), dir.path()).unwrap();
    for function in fs::read_dir(dir.path().join("sys/bus/pci/devices")).unwrap() {
        let path = function.unwrap().path();
        if fs::read_to_string(path.join("class")).is_ok_and(|class| class.starts_with("0x0604")) {
            fs::write(path.join("config"), config(SAFE)).unwrap();
        }
    }
    dir
}

/// Runs a verb on a tree: the exit code and both outputs.
fn on(tree: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = gpuvm(args);
    command.args(["--connect", "test:///default", "--host", tree.to_str().unwrap()]);
    run(command.env("COLUMNS", "2000"))
}

/// The answer of a verb on a tree as JSON.
#[track_caller]
fn json(tree: &Path, args: &[&str]) -> Value {
    let (code, out, err) = on(tree, &[args, &["--json"]].concat());
    assert!(code == 0 || code == 3, "{args:?}: {code}: {err}");
    serde_json::from_str(&out).unwrap()
}

/// What `plan` says of the IOMMU for a guest with this GPU, and whether as a compromise.
#[track_caller]
fn planned(tree: &Path, gpu: &str) -> (String, bool) {
    let plan = json(tree, &["plan", "--gpu", gpu]);
    let reasons = plan["placement"]["reasons"].as_array().unwrap();
    let of: Vec<&Value> = reasons.iter().filter(|reason| reason["choice"] == "iommu").collect();
    let [of] = of[..] else { panic!("{reasons:?}") };
    (of["because"].as_str().unwrap().to_owned(), of["compromise"] == true)
}

/// The rule's findings of an answer: severity, message and hint.
fn findings(answer: &Value) -> Vec<[String; 3]> {
    let of = answer["findings"].as_array().unwrap().iter().filter(|one| one["rule"] == "acs-off");
    let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
    of.map(|one| ["severity", "message", "hint"].map(|key| text(one, key))).collect()
}

#[test]
fn a_port_that_does_not_redirect_is_no_isolation_in_any_verb() {
    let dir = tree();
    let tree = dir.path();
    let (because, compromise) = planned(tree, GPUS[0]);
    assert!(because.contains("confines these devices") && !compromise, "{because}");
    assert_eq!(findings(&json(tree, &["host", "doctor"])), [[""; 3]; 0]);
    let (_, xml, _) = on(tree, &["export", "--gpu", GPUS[0]]);
    fs::write(tree.join("domain.xml"), xml).unwrap();
    let check = || json(tree, &["check", tree.join("domain.xml").to_str().unwrap()]);
    assert_eq!(findings(&check()), [[""; 3]; 0]);

    // Requests, completions, forwarding and source validation: each alone opens the port.
    for ctl in [0, SAFE & !0x04, SAFE & !0x08, SAFE & !0x01] {
        put(tree, PORT, &config(ctl));
        // The guest below it reaches others, and guests beside it are reached.
        for gpu in GPUS {
            let (because, compromise) = planned(tree, gpu);
            assert!(
                because.starts_with(&format!("not isolated: port {PORT} does not ")),
                "{because}"
            );
            assert!(compromise && !because.contains("confines"), "{because}");
        }
        let (because, compromise) = planned(tree, "0000:47:00.0");
        assert!(because.contains("confines") && !compromise, "another root complex: {because}");
    }
    put(tree, PORT, &config(0));
    let told = format!("not isolated: port {PORT} does not redirect");
    let command = format!("`setpci -s {PORT} ECAP_ACS+6.w=1d:1d`");
    let (_, out, _) = on(tree, &["plan", "--gpu", GPUS[0], "--explain"]);
    assert!(out.contains(&told) && !out.contains("confines these devices"), "{out}");
    let [[severity, message, hint]] = &findings(&check())[..] else { panic!("{}", check()) };
    assert!(
        severity == "warning" && message.starts_with(&told) && hint.contains(&command),
        "{hint}"
    );
    let doctor = json(tree, &["host", "doctor"]);
    let [[severity, message, hint]] = &findings(&doctor)[..] else { panic!("{doctor}") };
    assert!(severity == "error" && message.starts_with(&told) && hint.contains(&command), "{hint}");
    let (code, script, _) = on(tree, &["host", "doctor", "--fix"]);
    let command = command.trim_matches('`');
    assert!(code == 3 && script.lines().any(|line| line == command), "{script}");
    let (_, out, _) = on(tree, &["host", "show"]);
    assert!(out.contains(&told), "{out}");
    let capacity = json(tree, &["capacity", "--gpus", "1"]);
    assert_eq!(capacity["open_ports"], serde_json::json!([1]), "{capacity}");

    put(tree, PORT, &config(SAFE));
    assert!(planned(tree, GPUS[0]).0.contains("confines"));
    assert_eq!(findings(&json(tree, &["host", "doctor"])), [[""; 3]; 0]);
    // DT does not open a port: translated addresses are those of the device's own domain.
    put(tree, PORT, &config(SAFE | 0x40));
    assert!(planned(tree, GPUS[0]).0.contains("confines"));
}

#[test]
fn only_bits_that_a_port_has_are_turned_on() {
    let dir = tree();
    let mut open = config(0);
    open[0x104] = 0x15;
    put(dir.path(), PORT, &open);
    let [[_, message, hint]] = &findings(&json(dir.path(), &["host", "doctor"]))[..] else {
        panic!("no finding");
    };
    assert!(message.contains("ACS SV, RR, UF are off"), "{message}");
    assert!(hint.contains(&format!("`setpci -s {PORT} ECAP_ACS+6.w=15:15`")), "{hint}");
    // Bits that a port lacks are hard-wired.
    open[0x104] = 0x42;
    put(dir.path(), PORT, &open);
    assert_eq!(findings(&json(dir.path(), &["host", "doctor"])), [[""; 3]; 0]);
}

#[test]
fn functions_of_one_guest_or_group_are_not_others() {
    let dir = tree();
    let tree = dir.path();
    // Right above one GPU: opening it leads only to functions below the same port.
    for port in ["0000:06:00.0", "0000:04:00.0"] {
        put(tree, port, &config(SAFE & !0x0c));
    }
    let (because, compromise) = planned(tree, GPUS[0]);
    assert!(compromise && because.contains("port 0000:04:00.0 does not redirect"), "{because}");
    assert!(planned(tree, GPUS[1]).0.contains("confines"));
    // With the drives beside it they are all the guest's.
    let all = ["plan", "--gpu", GPUS[0], "--nvme", "0000:08:00.0", "--nvme", "0000:09:00.0"];
    let (code, _, err) = on(tree, &all);
    if code == 0 {
        let plan = json(tree, &all);
        let text = plan["placement"]["reasons"].to_string();
        assert!(text.contains("confines these devices"), "{text}");
    } else {
        assert!(err.contains("0000:08:00.0") || err.contains("0000:09:00.0"), "{err}");
    }
}

#[test]
fn unreadable_files_are_unknown_and_no_finding() {
    let dir = tree();
    let tree = dir.path();
    let cyclic = {
        let mut config = config(0);
        config[0x100..0x104].copy_from_slice(&[0x01, 0, 1, 0x10]);
        config
    };
    let files: [&[u8]; 6] =
        [&config(0)[..64], &config(0)[..256], &config(0)[..0x106], &[0xff; 4096], &cyclic, &[]];
    for file in files {
        put(tree, PORT, file);
        let doctor = json(tree, &["host", "doctor"]);
        assert_eq!(findings(&doctor), [[""; 3]; 0], "{} bytes", file.len());
        let unread = doctor["not_checked"].to_string();
        assert!(unread.contains("acs-off (/sys/bus/pci/devices/N/config of 1 port"), "{unread}");
        assert!(planned(tree, GPUS[0]).0.contains("confines"));
    }
}

#[test]
fn create_needs_the_flag_below_an_open_port_and_is_refused_for_strangers() {
    let dir = tree();
    let tree = dir.path();
    put(tree, PORT, &config(0));
    let words = ["create", "--gpu", GPUS[0], "--name", "d", "--no-start", "--dry-run"];
    let create = |more: &[&str]| on(tree, &[&words[..], more].concat());
    let (code, _, err) = create(&[]);
    assert_ne!(code, 0, "{err}");
    assert!(err.contains(&format!("port {PORT} does not redirect")), "{err}");
    assert!(err.contains(&format!("setpci -s {PORT} ECAP_ACS+6.w=1d:1d")), "{err}");
    assert!(err.contains("--accept-shared-fabric"), "{err}");
    let (code, _, err) = create(&["--accept-shared-fabric"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains(&format!("port {PORT} does not redirect")), "{err}");
    let trust = |says: &str| {
        let text = format!(r#"{{"format":"gpuvm-trust","version":1,"guests":"{says}"}}"#);
        fs::create_dir_all(tree.join("etc/gpuvm")).unwrap();
        fs::write(tree.join("etc/gpuvm/trust.json"), text).unwrap();
    };
    trust("strangers");
    let (code, _, err) = create(&["--accept-shared-fabric"]);
    assert!(code != 0 && err.contains("does not redirect"), "{code}: {err}");
    assert_eq!(json(tree, &["capacity", "--gpus", "1"])["open_ports"], serde_json::json!([1]));
    trust("one-tenant");
    let (code, _, err) = create(&[]);
    assert_eq!(code, 0, "{err}");
    // A sound host needs no flag.
    put(tree, PORT, &config(SAFE));
    trust("strangers");
    let (code, _, err) = create(&[]);
    assert!(!err.contains("does not redirect"), "{code}: {err}");
}

#[test]
fn doctor_names_the_files_that_clear_acs_control() {
    let dir = tree();
    let tree = dir.path();
    put(tree, OTHER, &config(0));
    for (path, text) in [
        (
            "etc/rc.local",
            "for b in $(lspci -D | cut -d' ' -f1); do\nsetpci -s $b ECAP_ACS+0x6.w=0; done\n",
        ),
        ("etc/systemd/system/p2p.service", "[Service]\nExecStart=/usr/local/bin/p2p\n"),
        ("usr/local/bin/p2p", "#!/bin/sh\nsetpci -s 02:04.0 ECAP_ACS+6.w=0000\n"),
    ] {
        fs::create_dir_all(tree.join(path).parent().unwrap()).unwrap();
        fs::write(tree.join(path), text).unwrap();
    }
    std::os::unix::fs::symlink("..", tree.join("etc/systemd/up")).unwrap();
    let [[_, _, hint]] = &findings(&json(tree, &["host", "doctor"]))[..] else {
        panic!("no finding");
    };
    assert!(hint.contains("/etc/rc.local, /usr/local/bin/p2p may clear them"), "{hint}");
    assert!(!hint.contains("p2p.service"), "{hint}");
    // A record says the same.
    let record = tree.join("record.json");
    let (code, _, err) = run(&mut gpuvm(&[
        "host",
        "capture",
        record.to_str().unwrap(),
        "--host",
        tree.to_str().unwrap(),
    ]));
    assert_eq!(code, 0, "{err}");
    let [[_, _, again]] = &findings(&json(&record, &["host", "doctor"]))[..] else {
        panic!("no finding");
    };
    assert_eq!(again, hint);
    let text: Value = serde_json::from_str(&fs::read_to_string(&record).unwrap()).unwrap();
    let devices = text["host"]["devices"].as_array().unwrap();
    let port = devices.iter().find(|device| device["bdf"] == OTHER).unwrap();
    assert_eq!(port["acs"], serde_json::json!({"cap": 0x5f, "ctl": 0}));
}

#[test]
fn the_note_on_gpus_and_nics_names_the_port_of_the_nic_and_ends_with_both_bits() {
    let dir = tree();
    let tree = dir.path();
    let nic = "0000:0c:00.0";
    let above = "0000:0b:00.0";
    let with_ats = |has: bool, relaxed: bool| {
        let mut config = config(0);
        config[0x100..0x108].copy_from_slice(&[0; 8]);
        if has {
            config[0x100..0x108].copy_from_slice(&[0x0f, 0, 1, 0, 0x20, 0, 0, 0]);
        }
        (config[6], config[0x34], config[0x40], config[0x48]) =
            (0x10, 0x40, 0x10, u8::from(relaxed) << 4);
        config
    };
    let notes = || {
        let doctor = json(tree, &["host", "doctor"]);
        let all = doctor["findings"].as_array().unwrap().clone();
        let of_nic = |one: &Value| {
            one["rule"] == "acs-redirect" && one["message"].as_str().unwrap().contains(nic)
        };
        all.into_iter().filter(|one| of_nic(one)).collect::<Vec<Value>>()
    };
    let text = |note: &Value, key: &str| note[key].as_str().unwrap().to_owned();
    let pass = |port: &str, ctl: u16| put(tree, port, &config(ctl));
    put(tree, nic, &with_ats(false, true));
    let found = notes();
    let said = found.iter().map(|note| text(note, "found")).collect::<Vec<_>>().join("\n");
    assert!(
        said.contains(&format!("{nic} has no ATS"))
            && said.contains(&format!("bit DT of {above} is off")),
        "{said}"
    );
    assert!(
        found
            .iter()
            .any(|note| text(note, "hint")
                .contains(&format!("setpci -s {above} ECAP_ACS+6.w=40:40"))),
        "{found:?}"
    );
    assert!(
        found
            .iter()
            .any(|note| text(note, "hint").contains("1x111x1@0000:00:01.1/00.0/04.0/00.0/00.0")),
        "{found:?}"
    );
    // One without the other does not help.
    put(tree, nic, &with_ats(true, true));
    assert!(!notes().is_empty());
    put(tree, nic, &with_ats(false, true));
    for port in [above, "0000:02:04.0"] {
        pass(port, 0x5d);
    }
    assert!(!notes().is_empty());
    put(tree, nic, &with_ats(true, true));
    assert_eq!(notes(), Vec::<Value>::new());
    // Reads return over the root without relaxed ordering.
    put(tree, nic, &with_ats(true, false));
    let said = text(&notes()[0], "found");
    assert!(said.contains(&format!("relaxed ordering of {nic} is off")), "{said}");
    // The GPU's port alone decides nothing.
    put(tree, nic, &with_ats(true, true));
    pass(above, SAFE);
    pass("0000:0b:10.0", 0x5d);
    assert!(!notes().is_empty());
}
