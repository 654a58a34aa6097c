//! NVIDIA's libraries themselves: missing, of another version, or ended in the middle of a call.

use super::create::dry_run;
use super::machine::{
    H100, Machine, domain_with, embedded, fakes, guest_with, operations, remembering, shown,
};
use crate::support::run;
use crate::support::tree::host_text;
use serde_json::Value;

#[test]
fn a_missing_library_of_nvidia_is_named_and_not_the_guest() {
    let record = host_text("dgx-h100").replace("product_name = DGXH100", "product_name = SYS-821");
    let Some(machine) = Machine::new(&record) else { return };
    let machine = machine.mode(1);
    machine.fake("h100", &H100, "");
    let uuid = "11111111-2222-3333-4444-555555555555";
    let pair = domain_with(uuid, &["9d", "c3"]);
    let ask = |verb: &str| {
        let words = [env!("CARGO_BIN_EXE_gpuvm"), "fabric", verb, "--stdin"];
        machine.gpuvm_on(&words, false, &pair)
    };
    let root = tempfile::tempdir().unwrap();
    let uri = format!("qemu:///embed?root={}", root.path().display());
    let library = "Fabric Manager was not asked: libnvfm.so.1: cannot open shared object file";
    let hint = "development package (nvidia-fabricmanager-dev or -devel) has the library";
    let named = |(code, _, err): (i32, String, String), wanted: i32| {
        assert!(code == wanted && err.contains(library) && err.contains(hint), "{err}");
        assert!(!err.contains("guest") && !err.contains("module"), "{err}");
    };
    named(ask("ensure"), 1);
    for (verb, code) in [(&["show"][..], 3), (&["release", "3", "--yes"], 1), (&["restore"], 1)] {
        let words = [&["fabric"], verb, &["-c", &uri]].concat();
        named(machine.gpuvm(&words, false), code);
    }
    let kept = r#"{"version":1,"partitions":[{"id":3,"modules":[1,3],"domain":"UUID"}]}"#;
    std::fs::create_dir_all(machine.path("var/gpuvm")).unwrap();
    std::fs::write(machine.path("var/gpuvm/fabric.json"), kept.replace("UUID", uuid)).unwrap();
    named(ask("release"), 1);
    // The plan says which library has the module ids.
    let (code, _, err) = machine.gpuvm(&["plan", "--gpus", "2", "--assume-empty"], false);
    assert!(code == 1 && err.contains("NVML has no module ids: libnvidia-ml.so.1"), "{err}");
    assert!(err.contains("libnvidia-ml1 of Debian"), "{err}");
    // Only that one is missing.
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(fakes().join("libnvfm.so.1"), dir.path().join("libnvfm.so.1"))
        .unwrap();
    let words = [env!("CARGO_BIN_EXE_gpuvm"), "fabric", "ensure", "--stdin"];
    let mut command = machine.command(&words, false, &pair);
    let (code, _, err) = run(command.env("LD_LIBRARY_PATH", dir.path()));
    let told = "is unknown: the module ids of 2 of them are not known";
    assert!(code == 1 && err.contains(told), "{err}");
    assert!(err.contains("hint: NVML has no module ids: libnvidia-ml.so.1"), "{err}");
}

#[test]
fn activation_checks_versions_and_deactivation_does_not() {
    let Some(machine) = Machine::h100() else { return };
    remembering(&machine, "");
    let pair = domain_with("11111111-2222-3333-4444-555555555555", &["9d", "c3"]);
    let asks = |verb: &str| {
        let words = [env!("CARGO_BIN_EXE_gpuvm"), "fabric", verb, "--stdin"];
        machine.gpuvm_on(&words, true, &pair)
    };
    let uri = guest_with(&machine, &["9d", "c3"]);
    let restores = |more: &str| {
        let words = [&["fabric", "restore", "-c", &uri][..], &[more]].concat();
        machine.gpuvm(&words[..words.len() - usize::from(more.is_empty())], true)
    };
    let apart = "Fabric Manager has version 570.1, and the driver of this host has 570.2: guests \
                 get NVLink only if they match";
    let hint = "hint: install Fabric Manager 570.2";
    machine.with_versions("570.1", "570.2");
    let refusals = [asks("ensure"), restores(""), restores("--dry-run"), restores("--boot")];
    for (code, out, err) in refusals {
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains(apart) && err.contains(hint), "{err}");
    }
    assert_eq!(operations(&machine), [""; 0]);
    // `create` says the same.
    if let Some(uri) = embedded(&machine) {
        let (code, _, err) = dry_run(&machine, &uri, "2");
        assert!(code == 1 && err.contains(apart) && err.contains(hint), "{err}");
    }
    machine.with_versions("570.2", "570.2");
    assert_eq!(asks("ensure").0, 0);
    assert_eq!(operations(&machine), ["fmActivateFabricPartition 3"]);
    let (code, out, _) = machine.gpuvm(&["fabric", "show", "-c", &uri], true);
    assert!(
        code == 0 && out.contains("not checked: the version of the client library libnvfm"),
        "{out}"
    );
    machine.with_versions("570.1", "570.2");
    assert_eq!(asks("release").0, 0);
    assert_eq!(operations(&machine)[1..], ["fmDeactivateFabricPartition 3"]);

    // The library's own version, if its file's name shows it.
    machine.with_versions("570.2", "570.2");
    let lib = machine.dir.path().join("lib");
    std::fs::create_dir(&lib).unwrap();
    std::fs::copy(fakes().join("libnvfm.so.1"), lib.join("libnvfm.so.570.3")).unwrap();
    std::os::unix::fs::symlink("libnvfm.so.570.3", lib.join("libnvfm.so.1")).unwrap();
    let apart = "Fabric Manager has version 570.2, and its client library libnvfm has 570.3";
    for (code, _, err) in [asks("ensure"), restores("")] {
        assert!(code == 1 && err.contains(apart) && err.contains("of version 570.2\n"), "{err}");
    }
    let (code, document) = shown(&machine, &uri);
    let wanted = ["570.2", "570.3", "differ"].map(Value::from);
    let found = ["manager_version", "library_version", "versions"].map(|key| &document[key]);
    assert_eq!((code, found), (3, [&wanted[0], &wanted[1], &wanted[2]]), "{document}");
    let (_, _, err) = machine.gpuvm(&["fabric", "show", "-c", &uri], true);
    assert!(err.contains(apart), "{err}");
    std::fs::rename(lib.join("libnvfm.so.570.3"), lib.join("libnvfm.so.570.2")).unwrap();
    std::fs::remove_file(lib.join("libnvfm.so.1")).unwrap();
    std::os::unix::fs::symlink("libnvfm.so.570.2", lib.join("libnvfm.so.1")).unwrap();
    assert_eq!(asks("ensure").0, 0);
    let (_, out, _) = machine.gpuvm(&["fabric", "show", "-c", &uri], true);
    assert!(!out.contains("not checked"), "{out}");
}

#[test]
fn a_call_whose_library_ended_is_settled_by_the_list() {
    let Some(machine) = Machine::h100() else { return };
    let pair = domain_with("11111111-2222-3333-4444-555555555555", &["9d", "c3"]);
    let ensure = |fake: &str| {
        let _ = std::fs::remove_file(machine.path("calls"));
        remembering(&machine, fake);
        let words = [env!("CARGO_BIN_EXE_gpuvm"), "fabric", "ensure", "--stdin"];
        let (code, _, err) = machine.gpuvm_on(&words, true, &pair);
        (code, operations(&machine).len(), err)
    };
    let file = || std::fs::read_to_string(machine.path("var/gpuvm/fabric.json")).unwrap();
    // Operations: the host's list, the step's list, the activation.
    let (code, calls, err) = ensure("die_after 3 before");
    assert_eq!((code, calls), (1, 1), "{err}");
    assert!(err.contains("ended without an answer"), "{err}");
    assert!(!file().contains("11111111"), "nothing was done: {}", file());
    std::fs::remove_file(machine.path("state")).unwrap();
    let (code, calls, err) = ensure("die_after 3 after");
    assert_eq!((code, calls), (1, 1), "{err}");
    // It was done: the next start finds it active, and requests nothing.
    assert!(file().contains("11111111"), "{}", file());
    let (code, calls, err) = ensure("");
    assert_eq!((code, calls), (0, 0), "{err}");
    // A release that answers as older ones do: in use, although it was done.
    std::fs::remove_file(machine.path("state")).unwrap();
    std::fs::remove_file(machine.path("var/gpuvm/fabric.json")).unwrap();
    let (code, calls, err) = ensure("answers old\nfail_nth 3 -7 done");
    assert_eq!((code, calls), (0, 1), "{err}");
}
