//! Refusals of the modules: values that YAML converted, invalid names, objects of others, hosts
//! without gpuvm, with an older one or without libvirt.

use super::{Managed, Task, guest, is_nightly, network};
use crate::libvirt::place::same;
use crate::support::run;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// A domain that gpuvm did not make.
const FOREIGN: &str = "<domain type='qemu'><name>NAME</name><memory unit='MiB'>64</memory>\
     <vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>";

/// Defines such a domain.
fn put_foreign(managed: &Managed, name: &str) {
    let file = managed.place.daemon.fresh_dir(&format!("of-{}", name.len())).join("foreign.xml");
    std::fs::write(&file, FOREIGN.replace("NAME", name)).unwrap();
    managed.place.virsh(&["define", file.to_str().unwrap()]);
}

/// All definitions, also of names that virsh cannot be asked about.
fn definitions(managed: &Managed) -> String {
    let dir = managed.place.daemon.inside("/etc/libvirt/qemu");
    let mut find = std::process::Command::new("find");
    find.arg(dir).args(["-name", "*.xml", "-printf", "%i %T@ ", "-exec", "cat", "{}", ";"]);
    let (code, text, err) = run(&mut find);
    assert!(code == 0 && text.contains("foreign"), "{text}{err}");
    text + &managed.place.journal()
}

/// Runs tasks that must fail. Returns the code of each, or its message where there is none.
#[track_caller]
fn codes(managed: &Managed, tasks: &[Task]) -> Vec<String> {
    let all = managed.play(tasks);
    let code = |answer: &Value| {
        assert_eq!(answer["failed"], true, "{answer:#}");
        assert!(answer["changed"] != true, "{answer:#}");
        // Ansible 2.19 says of each failure that it has no traceback.
        let traceback = answer.get("exception").and_then(Value::as_str).unwrap_or_default();
        assert!(!traceback.contains("Traceback"), "a module fell over: {answer:#}");
        let text = answer.get("code").or(answer.get("msg")).and_then(Value::as_str);
        text.unwrap().to_owned()
    };
    all.iter().map(code).collect()
}

#[test]
fn foreign_objects_stay_in_each_state() {
    let Some(managed) = Managed::new() else { return };
    // One that looks like an option, and one with a space, exist elsewhere.
    for name in ["foreign", "--yes", "two words"] {
        put_foreign(&managed, name);
    }
    // A copy of a guest is not that guest.
    managed.one(&managed.small("an-orig"));
    let copy = managed.place.virsh(&["dumpxml", "an-orig"]);
    let uuid = copy.split("<uuid>").nth(1).unwrap().split('<').next().unwrap().to_owned();
    let line = format!("  <uuid>{uuid}</uuid>\n");
    let copy = copy.replace(&line, "").replace("<name>an-orig<", "<name>an-copy<");
    let file = managed.place.daemon.fresh_dir("copy").join("copy.xml");
    std::fs::write(&file, copy).unwrap();
    managed.place.virsh(&["define", file.to_str().unwrap()]);
    let before = definitions(&managed);
    let program = env!("CARGO_BIN_EXE_gpuvm");
    let mut tasks = Vec::new();
    for name in ["foreign", "--yes", "two words", "an-copy"] {
        tasks.push(guest(json!({ "name": name, "state": "absent", "program": program })));
        if name != "foreign" && !is_nightly() {
            continue;
        }
        for state in ["present", "stopped", "absent"] {
            tasks.push(managed.small(name).with(&json!({ "state": state })));
        }
        tasks.push(guest(json!({ "name": name, "state": "restarted", "program": program })));
        tasks.push(managed.small(name).with(&json!({ "state": "absent" })).checked());
    }
    let found = codes(&managed, &tasks);
    assert!(found.iter().all(|code| code == "ansible-foreign"), "{found:#?}");
    same(&before, &definitions(&managed), "something of somebody else's changed");
}

#[test]
fn nonsense_is_refused_with_its_reason() {
    let Some(managed) = Managed::new() else { return };
    let before = managed.place.state();
    let small = |more: Value| managed.small("an-v").with(&more);
    let cases = [
        // Of names, the planner's own rule counts.
        (managed.small("two words"), "guests-value"),
        (managed.small("ü;rm -rf ~"), "guests-value"),
        (managed.small("--help"), "guests-value"),
        (managed.small(""), "guests-value"),
        (managed.small("a b").with(&json!({ "state": "absent" })), "ansible-name"),
        (managed.small("").with(&json!({ "state": "absent" })), "ansible-name"),
        (managed.small("a\nb"), "control character"),
        // YAML has made something else of these.
        (small(json!({ "name": ["a"] })), "it takes one text"),
        (small(json!({ "user": { "a": 1 } })), "it takes one text"),
        (small(json!({ "gpu": [2040.0] })), "number 2040.0"),
        (small(json!({ "gpu": 2040.0 })), "number 2040.0"),
        (small(json!({ "image": true })), "boolean"),
        (small(json!({ "gpus": "two" })), "gpus"),
        (small(json!({ "gpus": -1 })), "guests-value"),
        (small(json!({ "pins": "all" })), "value of pins must be one of"),
        (small(json!({ "disk_dir": "disks" })), "absolute path of the managed host"),
        (small(json!({ "state": "gone" })), "value of state must be one of"),
        (small(json!({ "gpuz": 1 })), "gpuz"),
        (small(json!({ "memory": "lots" })), "guests-value"),
        // What does not go together, or does not fit, says gpuvm.
        (small(json!({ "os_disk": "overlay" })), "guests-value"),
        (small(json!({ "memory": "900T" })), "apply-no-place"),
        (
            small(json!({ "connect": "qemu+unix:///system?socket=/nowhere" })),
            "libvirt-no-connection",
        ),
        (
            small(json!({ "connect": "qemu+unix:///system?socket=/nowhere", "state": "absent" })),
            "libvirt-no-connection",
        ),
        (
            network(
                json!({ "name": "an-n", "program": env!("CARGO_BIN_EXE_gpuvm"), "kind": "nat", "range": "10.0.0.0/33" }),
            ),
            "usage",
        ),
        (network(json!({ "name": "an-n", "program": env!("CARGO_BIN_EXE_gpuvm") })), "usage"),
        (
            network(
                json!({ "name": "--yes", "program": env!("CARGO_BIN_EXE_gpuvm"), "kind": "nat" }),
            ),
            "usage",
        ),
        (
            network(
                json!({ "name": "an-n", "program": env!("CARGO_BIN_EXE_gpuvm"), "kind": "nat", "mtu": 7 }),
            ),
            "network-mtu-range",
        ),
    ];
    let (tasks, reasons): (Vec<Task>, Vec<&str>) = cases.into_iter().unzip();
    let checked: Vec<Task> = tasks.iter().map(Task::checked).collect();
    for tasks in [tasks, checked].into_iter().take(if is_nightly() { 2 } else { 1 }) {
        let found = codes(&managed, &tasks);
        let wrong: Vec<_> = found
            .iter()
            .zip(&reasons)
            .filter(|(found, reason)| !found.contains(**reason))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
    same(&before, &managed.place.state(), "what was refused changed something");
}

#[test]
fn an_error_has_the_words_of_gpuvm() {
    let Some(managed) = Managed::new() else { return };
    let large = managed.small("an-w").with(&json!({ "memory": "900T" }));
    let answer = managed.play(std::slice::from_ref(&large)).remove(0);
    let said = answer["msg"].as_str().unwrap();
    let [message, hint] = ["message", "hint"].map(|name| answer[name].as_str().unwrap());
    assert!(said.starts_with(message) && said.ends_with(&format!("; hint: {hint}")), "{answer:#}");
    assert!(message.contains("an-w") && answer["rc"] == 1, "{answer:#}");
    assert!(answer["cmd"].to_string().contains("apply"), "{answer:#}");
    // A position in text written by the module is useless to its user.
    let odd = managed.small("an-w").with(&json!({ "memory": "lots" }));
    let answer = managed.play(std::slice::from_ref(&odd)).remove(0);
    let message = answer["message"].as_str().unwrap();
    assert!(!message.starts_with('-') && message.contains("lots"), "{message}");
    // A password's file is not shown.
    let secret = managed.small("an-w").with(&json!({ "password_hash": "/nowhere/$6$secret" }));
    let answer = managed.play(std::slice::from_ref(&secret)).remove(0);
    assert!(answer["failed"] == true && !answer.to_string().contains("$6$secret"), "{answer:#}");
}

/// A program in place of gpuvm.
fn instead(managed: &Managed, name: &str, text: &str) -> PathBuf {
    let path = managed.place.daemon.fresh_dir(name).join("gpuvm");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_host_without_gpuvm_or_with_another_is_reported() {
    let Some(managed) = Managed::new() else { return };
    let with = |program: &str| guest(json!({ "name": "an-p", "program": program }));
    let at = |name: &str, text: &str| instead(&managed, name, text).display().to_string();
    let new = "if [ \"$1\" = --version ]; then echo 'gpuvm 9.0.0'; exit; fi\n";
    let cases = [
        (with("/nowhere/gpuvm"), "ansible-no-program"),
        (with("no-such-gpuvm"), "ansible-no-program"),
        (with(&at("older", "echo 'gpuvm 0.0.9'")), "ansible-old-program"),
        (with("/bin/true"), "ansible-other-program"),
        (with(&at("failing", "echo no >&2; exit 7")), "ansible-other-program"),
        (with(&at("silent", new)), "ansible-bad-answer"),
        (with(&at("words", &format!("{new}echo hello"))), "ansible-bad-answer"),
        (
            with(&at(
                "format",
                &format!("{new}echo '{{\"format\": \"gpuvm-domain\", \"version\": 2}}'"),
            )),
            "ansible-bad-answer",
        ),
        (with(&at("killed", &format!("{new}kill -9 $$"))), "ansible-bad-answer"),
    ];
    let (tasks, reasons): (Vec<Task>, Vec<&str>) = cases.into_iter().unzip();
    assert_eq!(codes(&managed, &tasks), reasons);
}
