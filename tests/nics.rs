//! `nic list` and the refusals of `nic vfs`, on the recorded host that has virtual functions.

use crate::support::{gpuvm, project, run};

/// Runs a command line on that host. Returns its exit code and output.
fn outcome(line: &str) -> (i32, String, String) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let host = project().join("topologies/dual-socket.json");
    run(gpuvm(&words).arg("--host").arg(host))
}

#[test]
fn cards_are_listed_with_their_virtual_functions() {
    let (code, out, err) = outcome("nic list");
    assert_eq!((code, err.as_str()), (0, ""));
    let file = project().join("tests/golden/nic/dual-socket.txt");
    if std::env::var_os("GPUVM_RENEW").is_some() {
        std::fs::write(&file, &out).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(kept == out, "GPUVM_RENEW=1 renews {}:\n{out}", file.display());
    let (code, out, _) = outcome("nic list --json");
    let cards: serde_json::Value = serde_json::from_str(&out).unwrap();
    let card = cards.as_array().unwrap().iter().find(|card| card["bdf"] == "0000:3b:00.0").unwrap();
    assert_eq!((code, &card["total_vfs"], &card["enabled_vfs"]), (0, &8.into(), &4.into()));
    let vfs = card["vfs"].as_array().unwrap();
    assert_eq!(
        (vfs.len(), &vfs[3]["number"], &vfs[3]["bdf"]),
        (4, &3.into(), &"0000:3b:00.5".into())
    );
}

#[test]
fn a_number_is_planned_by_steps() {
    for (line, steps) in [
        ("3b:00.1 --count 8", "make 8 virtual functions of 0000:3b:00.1\n"),
        ("ens1f1np1 --count 8", "make 8 virtual functions of 0000:3b:00.1\n"),
        ("ens1f0np0 --count 2", "remove the 4 virtual functions of 0000:3b:00.0 and make 2\n"),
        ("ens1f0np0 --count 0", "remove the 4 virtual functions of 0000:3b:00.0\n"),
        ("ens1f0np0 --count 4", "nothing to do\n"),
    ] {
        let (code, out, err) = outcome(&format!("nic vfs {line} --dry-run"));
        assert_eq!((code, out.trim_end(), err.as_str()), (0, steps.trim_end(), ""), "{line}");
    }
}

#[test]
fn unsuitable_devices_are_refused_with_the_reason() {
    for (line, exit, said) in [
        ("3b:00.1 --count 9", 1, "0000:3b:00.1 can have 8 virtual functions, not 9"),
        ("3b:00.2 --count 1", 1, "3b:00.2 is a virtual function itself, of 0000:3b:00.0"),
        ("eth9 --count 1", 1, "this host has no network card eth9"),
        ("3b:00.1 --count 0 --host-drivers", 2, "--count is 0"),
        ("3b:00.1 --count 1 --at-boot", 2, "does not take --host"),
        ("3b:00.1", 2, "--count <N>"),
    ] {
        let (code, out, err) = outcome(&format!("nic vfs {line} --dry-run"));
        assert_eq!((code, out.as_str()), (exit, ""), "{line}: {err}");
        assert!(err.contains(said), "{line}: {err}");
    }
    let (code, _, err) = outcome("nic vfs 3b:00.1 --count 1");
    assert!(code == 2 && err.contains("changes the machine"), "{err}");
}

#[test]
fn a_guest_has_a_virtual_function_as_a_nic_of_its_own_address() {
    let (code, out, err) = outcome("export --name a --vf 1,vlan=5,trust=on");
    assert_eq!(code, 0, "{err}");
    let nic = "    <interface type='hostdev' managed='yes'>
      <mac address='52:54:00:56:c2:f5'/>
      <source>
        <address domain='0x0000' bus='0x3b' slot='0x00' function='0x2' type='pci'/>
      </source>
      <vlan>
        <tag id='5'/>
      </vlan>
      <alias name='ua-vf0'/>
";
    assert!(out.contains(nic), "{out}");
    let (_, two, _) = outcome("export --name a --vf 2");
    assert!(two.contains("52:54:00:56:c2:f5") && two.contains("<alias name='ua-vf1'/>"), "{two}");
    assert!(!two.contains("<vlan>"), "{two}");
    let (_, named, _) = outcome("export --name a --vf 3b:00.3,mac=52:54:00:00:00:09");
    assert!(named.contains("<mac address='52:54:00:00:00:09'/>"), "{named}");
}

#[test]
fn permissions_of_a_virtual_function_are_a_step() {
    let (code, out, err) = outcome("create --name a --vf 3b:00.3,trust=on,spoof=off --dry-run");
    assert_eq!(code, 0, "{err}");
    let step =
        "set trust on, spoof check off for virtual function 1 of ens1f0np0\ndefine domain `a`";
    assert!(out.contains(step), "{out}");
    let (code, _, err) = outcome("create --name a --vf 2,mac=52:54:00:00:00:09 --dry-run");
    assert!(code == 2 && err.contains("mac= is of one virtual function"), "{err}");
}

#[test]
fn a_virtual_function_near_a_gpu_is_taken_and_the_plan_says_so() {
    let (code, out, err) = outcome("plan --gpus 1 --vf 1 --explain");
    assert_eq!(code, 0, "{err}");
    let said = "0000:3b:00.2 beside GPU 0 (NODE), of 4 virtual functions available";
    assert!(out.contains(said), "{out}");
    let (code, _, err) = outcome("plan --gpus 1 --vf 1 --nic-near switch");
    assert!(code == 1 && err.contains("virtual function"), "{err}");
}
