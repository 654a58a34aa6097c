//! Drives on built hosts: the users of each, and which can be passed to a guest and how. On a real
//! kernel with md, LVM and dm-crypt: `tests/vdgx/tests/drives.sh`.

use crate::support::tree::{host_text, scratch, unpack};
use crate::support::{gpuvm, run};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A partition's UUID.
const PARTUUID: &str = "6b1f0a52-3c1e-4d57-9a8c-0d5e2f7a1b01";

/// A DGX-2 with its drives in use: the root on an array of two, LVM, swap, a process, a partition
/// that is free.
fn tree() -> tempfile::TempDir {
    let dir = scratch();
    unpack(&host_text("dgx-2"), dir.path()).unwrap();
    let root = dir.path();
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    };
    let block = |name: &str| {
        let path = root.join("sys/class/block").join(name).canonicalize().unwrap();
        path.strip_prefix(root.canonicalize().unwrap()).unwrap().to_str().unwrap().to_owned()
    };
    // The recorded partitions and array are removed.
    for name in ["nvme0n1p1", "nvme0n1p2", "nvme1n1p2", "md0"] {
        fs::remove_dir_all(root.join(block(name))).unwrap();
        fs::remove_file(root.join("sys/class/block").join(name)).unwrap();
    }
    for number in 0..10 {
        let name = format!("nvme{number}n1");
        write(&format!("{}/dev", block(&name)), &format!("259:{number}"));
        let by_id = root.join("dev/disk/by-id");
        fs::create_dir_all(&by_id).unwrap();
        symlink(format!("../../{name}"), by_id.join(format!("nvme-eui.{number}"))).unwrap();
        symlink(format!("../../{name}"), by_id.join(format!("nvme-MAKER_S{number}"))).unwrap();
    }
    for (name, number, minor) in [("nvme0n1p2", 2, 22), ("nvme1n1p2", 2, 23), ("nvme9n1p1", 1, 91)]
    {
        let path = format!("{}/{name}", block(name.split('p').next().unwrap()));
        write(&format!("{path}/partition"), &number.to_string());
        write(&format!("{path}/dev"), &format!("259:{minor}"));
        write(&format!("{path}/size"), "2097152");
        symlink(
            format!("../../{}", &path["sys/".len()..]),
            root.join("sys/class/block").join(name),
        )
        .unwrap();
    }
    for (lower, upper) in [("nvme0n1p2", "md0"), ("nvme1n1p2", "md0"), ("nvme2n1", "dm-0")] {
        write(&format!("{}/holders/{upper}", block(lower)), "");
    }
    for (path, text) in [
        ("md0/md/level", "raid1"),
        ("md0/dev", "9:0"),
        ("dm-0/dm/uuid", "LVM-x"),
        ("dm-0/dm/name", "vg0-data"),
        ("dm-0/dev", "253:0"),
    ] {
        write(&format!("sys/devices/virtual/block/{path}"), text);
    }
    for name in ["md0", "dm-0"] {
        let target = format!("../../devices/virtual/block/{name}");
        symlink(target, root.join("sys/class/block").join(name)).unwrap();
    }
    write("proc/self/mountinfo", "25 1 9:0 / / rw - ext4 /dev/md0 rw");
    write("proc/swaps", "Filename Type Size Used Priority\n/dev/nvme3n1 partition 1 0 -2");
    write("run/udev/data/b259:4", "E:ID_FS_TYPE=zfs_member\nE:ID_FS_LABEL=tank");
    write("proc/77/comm", "dd");
    fs::create_dir_all(root.join("proc/77/fd")).unwrap();
    symlink("/dev/nvme5n1", root.join("proc/77/fd/3")).unwrap();
    fs::create_dir_all(root.join("dev/disk/by-partuuid")).unwrap();
    symlink("../../nvme9n1p1", root.join("dev/disk/by-partuuid").join(PARTUUID)).unwrap();
    dir
}

/// Runs a verb on a tree; exit code, standard output, standard error.
fn on(tree: &Path, args: &[&str]) -> (i32, String, String) {
    run(gpuvm(args).args(["--host", tree.to_str().unwrap()]))
}

#[test]
fn every_user_of_a_drive_is_named() {
    let dir = tree();
    let (code, out, err) = on(dir.path(), &["drive", "list"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let line = |name: &str| {
        let line = out.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("{name} is not in\n{out}")).to_owned()
    };
    for (name, parts) in [
        ("nvme0n1", &["0000:01:00.0", " system ", "nvme-MAKER_S0"][..]),
        ("nvme0n1p2", &["system", "nvme0n1p2 is part of md0 (md raid1), which is mounted at /"]),
        ("nvme2n1", &["0000:2c:00.0", " host ", "nvme2n1 is part of dm-0 (LVM vg0-data)"]),
        ("nvme3n1", &[" host ", "swap space"]),
        ("nvme4n1", &["nvme4n1 is a member of a ZFS pool `tank`"]),
        ("nvme5n1", &["nvme5n1 is open by process 77 (dd)"]),
        ("nvme6n1", &[" free ", " pci,disk ", "nvme-MAKER_S6"]),
        ("nvme9n1", &[" data ", " pci,disk ", "nvme9n1 holds a partition table"]),
        ("nvme9n1p1", &[" free ", " partition ", PARTUUID]),
    ] {
        for part in parts {
            assert!(line(name).contains(part), "{part:?} is not in {}", line(name));
        }
    }
    let (code, out, _) = on(dir.path(), &["drive", "list", "--json"]);
    assert_eq!(code, 0);
    let rows: serde_json::Value = serde_json::from_str(&out).unwrap();
    let free: Vec<&str> = rows
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["give"] == serde_json::json!(["pci", "disk"]))
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(free, ["nvme6n1", "nvme7n1", "nvme8n1", "nvme9n1"]);
    assert_eq!(rows[5]["used_by"][0]["by"], "process");
    assert_eq!(rows[5]["used_by"][0]["pid"], 77);
    assert_eq!(rows[0]["used_by"][0]["use"], "holder");
}

#[test]
fn drives_in_use_are_refused_with_their_user() {
    let dir = tree();
    for (args, part) in [
        (
            ["--drive", "nvme-MAKER_S0"],
            "nvme0n1p2 is part of md0 (md raid1), which is mounted at /",
        ),
        (["--drive", "nvme-MAKER_S0"], "never given away"),
        (["--drive", "/dev/disk/by-id/nvme-MAKER_S2"], "nvme2n1 is part of dm-0 (LVM vg0-data)"),
        (["--drive", "nvme3n1"], "nvme3n1 is swap space"),
        (["--drive", "/dev/nvme4n1"], "nvme4n1 is a member of a ZFS pool `tank`"),
        (["--drive", "nvme5n1"], "nvme5n1 is open by process 77 (dd)"),
        (["--drive", "nvme9n1p1"], "is a partition, not a drive"),
        (["--drive", "nvme9n1p1"], PARTUUID),
        (["--drive", "nvme-MAKER_S9-part1"], "is a partition, not a drive"),
        (["--drive", "nvme-NOBODY"], "this host has no drive nvme-NOBODY"),
        (["--drive", ""], "this host has no drive"),
        (["--partition", "1234"], "no partition with the PARTUUID 1234"),
        (["--nvme", "01:00.0"], "nvme0n1p2 is part of md0 (md raid1), which is mounted at /"),
        (["--nvme", "2e:00.0"], "nvme2n1 is part of dm-0 (LVM vg0-data)"),
        (["--nvme", "2f:00.0"], "nvme3n1 is swap space"),
        (["--nvme", "51:00.0"], "nvme4n1 is a member of a ZFS pool `tank`"),
    ] {
        let (code, out, err) = on(dir.path(), &[&["export", "--name", "a"], &args[..]].concat());
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}: {err}");
        assert!(err.contains(part), "{args:?}: {part:?} is not in {err}");
    }
    for args in [
        &["--drive", "nvme6n1", "--drive", "nvme-MAKER_S6"][..],
        &["--drive", "nvme9n1", "--partition", PARTUUID],
        &["--partition", PARTUUID, "--partition", PARTUUID],
    ] {
        let (code, _, err) = on(dir.path(), &[&["export", "--name", "a"], args].concat());
        assert!(code == 1 && err.contains("is given twice"), "{args:?}: {err}");
    }
    let both = ["export", "--name", "a", "--nvme", "b1:00.0", "--drive", "nvme6n1"];
    let (code, _, err) = on(dir.path(), &both);
    assert!(code == 1 && err.contains("is already passed to the guest as PCI function"), "{err}");
}

#[test]
fn a_drive_that_no_size_mends_is_refused_before_sizes_are_offered() {
    let dir = tree();
    for (verb, args) in [
        ("export", ["--drive", "nvme2n1"]),
        ("create", ["--drive", "nvme2n1"]),
        ("export", ["--drive", "no-such-drive"]),
        ("create", ["--partition", "00000000-0000-0000-0000-000000000000"]),
    ] {
        let more = if verb == "create" { &["--dry-run"][..] } else { &[] };
        let line = [&[verb, "--name", "a", "--gpus", "1", "--vcpus", "4000"], &args[..], more];
        let (code, _, err) = on(dir.path(), &line.concat());
        let is_told = err.contains(args[1]) && !err.contains("would fit now");
        assert!(code == 1 && is_told, "{verb} {args:?}: {err}");
    }
    // A usable drive does not hide missing ones.
    let args = ["export", "--name", "a", "--vcpus", "4000", "--drive", "nvme6n1"];
    let (code, _, err) = on(dir.path(), &args);
    assert!(code == 1 && err.contains("would fit now: --vcpus 96"), "{err}");
}

#[test]
fn a_free_drive_becomes_a_disk_by_a_stable_name() {
    let dir = tree();
    let args = [
        "export",
        "--name",
        "a",
        "--vcpus",
        "4",
        "--drive",
        "nvme6n1",
        "--drive",
        "nvme-eui.7",
        "--partition",
        PARTUUID,
    ];
    let (code, out, err) = on(dir.path(), &args);
    assert_eq!(code, 0, "{err}");
    for path in [
        "/dev/disk/by-id/nvme-MAKER_S6",
        "/dev/disk/by-id/nvme-eui.7",
        &format!("/dev/disk/by-partuuid/{PARTUUID}"),
    ] {
        let at = out.find(&format!("<source dev='{path}'/>"));
        let at = at.or_else(|| out.find(&format!("<source dev=\"{path}\"/>")));
        let at = at.unwrap_or_else(|| panic!("{path} is not in {out}"));
        let disk = &out[out[..at].rfind("<disk ").unwrap()..at];
        for word in ["block", "cache=", "none", "io_uring", "discard=", "iothread=", "queues="] {
            assert!(disk.contains(word), "{word} is not in {disk}");
        }
    }
}

#[test]
fn a_function_that_a_guest_has_is_not_given_as_a_disk() {
    let dir = tree();
    let (code, xml, err) = on(dir.path(), &["export", "--name", "a", "--nvme", "b1:00.0"]);
    assert_eq!(code, 0, "{err}");
    let file = dir.path().join("a.xml");
    fs::write(&file, xml).unwrap();
    let taken = ["--domain-xml", file.to_str().unwrap()];
    let args = [&["export", "--name", "b", "--drive", "nvme6n1"], &taken[..]].concat();
    let (code, _, err) = on(dir.path(), &args);
    assert!(code == 1 && err.contains("0000:b1:00.0 is held by domain `a`"), "{err}");
    let (_, out, _) = on(dir.path(), &[&["drive", "list"], &taken[..]].concat());
    let line = out.lines().find(|line| line.contains("nvme6n1")).unwrap();
    assert!(line.contains(" guest ") && line.contains("held by domain `a`"), "{line}");
}

#[test]
fn arrays_of_recorded_hosts_are_left_alone() {
    let dir = tree();
    for verb in ["release-array", "restore-array"] {
        let (code, _, err) = on(dir.path(), &["drive", verb, "md0", "--yes"]);
        assert!(code == 2 && err.contains("does not take --host"), "{err}");
    }
    let (code, _, err) = run(&mut gpuvm(&["drive", "release-array", "/dev/null", "--yes"]));
    assert!(code == 1 && err.contains("/dev/null is not a block device"), "{err}");
}
