//! Module ids while GPUs are not bound to `nvidia`, and sets of GPUs that are no partition.

use super::machine::{H100, Machine, on, set, sets, sizes, source};
use crate::support::run;
use crate::support::tree::{host_text, scratch, unpack};
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

#[test]
fn module_ids_are_written_for_gpus_that_leave_the_driver() {
    let record = host_text("dgx-h100").replace("product_name = DGXH100", "product_name = SYS-821");
    let Some(machine) = Machine::new(&record) else { return };
    let machine = machine.mode(1);
    machine.fake("h100", &H100, "");
    let (code, out, err) = machine.gpuvm(&["host", "modules"], true);
    assert_eq!((code, err.as_str()), (0, ""));
    let lines: Vec<Vec<&str>> = out.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["0", "0000:1b:00.0", "5", "NVML"], "{out}");
    assert!(!Path::new(&machine.path("etc/gpuvm/module-ids.json")).exists());
    let links = "/var/lib/gpuvm/nvlinks.json: NVLinks by NVML\n";
    for (links, said) in [(links, "8 module ids"), ("", "already set; nothing to do")] {
        let (code, _, err) = machine.gpuvm(&["host", "modules", "--write"], true);
        let said = format!("{links}/etc/gpuvm/module-ids.json: {said}\n");
        assert_eq!((code, err), (0, said));
    }
    let written = std::fs::read_to_string(machine.path("etc/gpuvm/module-ids.json")).unwrap();
    let written: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(written["0000:9d:00.0"], 1);

    // All GPUs on vfio-pci: NVML is not asked, and the file is used.
    let vfio = record.replace("/bus/pci/drivers/nvidia\n", "/bus/pci/drivers/vfio-pci\n");
    let Some(later) = Machine::new(&vfio) else { return };
    let later = later.mode(1);
    later.fake("h100", &H100, "");
    let (fabric, _) = later.fabric(true);
    assert_eq!(sizes(&fabric), [0, 1, 0, 0, 0], "nobody knows");
    assert!(source(&fabric).contains("`gpuvm host modules --write`"), "{fabric}");
    let (code, _, err) = later.gpuvm(&["host", "modules", "--write"], true);
    assert_eq!(code, 1);
    assert!(err.contains("no module id is known") && err.contains("hint:"), "{err}");
    let file = later.path("etc/gpuvm/module-ids.json");
    std::fs::create_dir_all(later.path("etc/gpuvm")).unwrap();
    std::fs::copy(machine.path("etc/gpuvm/module-ids.json"), &file).unwrap();
    let (fabric, notes) = later.fabric(true);
    assert_eq!(sets(&fabric, 2)[0], set(3, &["9d", "c3"]));
    assert!(source(&fabric).contains("module ids read from /etc/gpuvm/module-ids.json"));
    assert!(!notes.contains("NVML"), "{notes}");

    std::fs::write(&file, "{\n  \"0000:1b:00.0\": 1,\n  \"0000:43:00.0\": 1\n}\n").unwrap();
    let (code, _, err) = later.gpuvm(&["host", "show"], true);
    assert_eq!(code, 1);
    let said = "/etc/gpuvm/module-ids.json line 3: module id 1 appears twice: 0000:1b:00.0 and \
                0000:43:00.0";
    assert!(err.contains(said), "{err}");
    // A file that others than root may have written is ignored, and so is a path that is not a
    // file.
    std::fs::copy(machine.path("etc/gpuvm/module-ids.json"), &file).unwrap();
    let mode = |mode| std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    let refused = |said: &str| {
        for verb in [["host", "show"], ["fabric", "show"], ["host", "modules"]] {
            let (code, _, err) = later.gpuvm(&verb, true);
            assert!(code == 1 && err.contains(said), "{verb:?}: {err}");
            let hint = "hint: `ls -l /etc/gpuvm/module-ids.json` shows it; `mv ";
            assert!(err.contains(hint), "{verb:?}: {err}");
        }
    };
    mode(0o666);
    refused("module-ids.json line 1: others than root may have written it: it is of user 0, mode");
    mode(0o644);
    assert_eq!(later.gpuvm(&["host", "show"], true).0, 0);
    std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
    refused("others than root may have written it: it is of user 12345, mode 0644");
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(Path::new(&file), nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused("module-ids.json line 1: it is not a regular file");
}

#[test]
fn a_gpu_whose_module_is_unknown_is_refused_by_every_verb() {
    let known = host_text("dgx-h100");
    let record = known.replace("product_name = DGXH100", "product_name = SYS-821");
    let (dir, named) = (scratch(), scratch());
    unpack(&record, dir.path()).unwrap();
    unpack(&known, named.path()).unwrap();
    let why = "no partition of this board has 1 GPU: the module ids of 8 GPUs are unknown";
    let how = "`gpuvm host modules --write`";
    let make = ["--no-seed", "--data-size", "none", "--disk-dir", "/a", "--dry-run"];
    let create = [&["create", "--gpus", "1", "--name", "a"][..], &make].concat();
    for verb in [
        &["plan", "--gpus", "1"][..],
        &["plan", "--gpu", "3"],
        &["export", "--gpus", "1", "--name", "a"],
        &create,
    ] {
        let (code, text) = on(dir.path(), verb);
        assert_eq!(code, 1, "{verb:?}: {text}");
        assert!(text.contains(why) && text.contains(how), "{verb:?}: {text}");
        assert!(!text.contains("1 GPU would fit"), "{verb:?}: {text}");
        let (code, text) = on(named.path(), verb);
        assert_eq!(code, 0, "{verb:?} with known ids: {text}");
    }
    let (code, text) = on(dir.path(), &["capacity", "--json"]);
    let sizes: Value = serde_json::from_str(&text).unwrap();
    let sizes: Vec<(u64, u64)> = sizes["sizes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|size| (size["gpus"].as_u64().unwrap(), size["empty"].as_u64().unwrap()))
        .collect();
    assert_eq!((code, sizes), (0, vec![(1, 0), (8, 1)]), "{text}");
    // A definition exported with known ids is checked without them.
    let (code, out, _) = run(crate::support::gpuvm(&["export", "--gpus", "1", "--name", "a"])
        .args(["--host", named.path().to_str().unwrap()]));
    assert_eq!(code, 0);
    let file = dir.path().join("a.xml");
    std::fs::write(&file, out).unwrap();
    let check = ["check", file.to_str().unwrap()];
    let (_, text) = on(dir.path(), &check);
    assert!(text.contains("gpus-no-partition") && text.contains(how), "{text}");
    let (_, text) = on(named.path(), &check);
    assert!(!text.contains("gpus-no-partition"), "{text}");
    // The partition of all GPUs needs no ids.
    let (code, text) = on(dir.path(), &["plan", "--gpus", "8"]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn a_set_that_was_asked_for_split_is_sound_and_one_of_others_is_not() {
    let dir = scratch();
    unpack(&host_text("dgx-2"), dir.path()).unwrap();
    let wish = ["--gpu", "0", "--gpu", "5", "--name", "a"];
    let split = [&wish[..], &["--allow", "split"]].concat();
    assert_eq!(on(dir.path(), &[&["plan"], &wish[..4]].concat()).0, 1);
    let (code, out, err) = run(crate::support::gpuvm(&["export"])
        .args(&split)
        .args(["--host", dir.path().to_str().unwrap()]));
    assert_eq!(code, 0, "{err}");
    let file = dir.path().join("a.xml");
    std::fs::write(&file, &out).unwrap();
    let check = ["check", file.to_str().unwrap()];
    let (code, text) = on(dir.path(), &check);
    assert_eq!(code, 0, "{text}");
    let make = ["--no-seed", "--data-size", "none", "--disk-dir", "/a", "--dry-run"];
    let create = [&["create", "--accept-shared-fabric"][..], &split, &make].concat();
    let (code, text) = on(dir.path(), &create);
    assert_eq!(code, 0, "{text}");
    // A definition without a requested split.
    std::fs::write(&file, out.replace(r#""split":true"#, r#""split":false"#)).unwrap();
    let (code, text) = on(dir.path(), &check);
    assert!(code == 3 && text.contains("gpus-no-partition"), "{text}");
}
