//! Block devices of small made-up hosts: one use each.

use super::*;
use std::os::unix::fs::symlink;

/// Makes a host of files; `-> target` makes a link, a path that ends with `/` a directory.
fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, FsRoot) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let full = dir.path().join(path);
        std::fs::create_dir_all(full.parent().unwrap()).unwrap();
        if path.ends_with('/') {
            std::fs::create_dir_all(&full).unwrap();
        } else if let Some(target) = text.strip_prefix("-> ") {
            symlink(target, &full).unwrap();
        } else {
            std::fs::write(&full, format!("{text}\n")).unwrap();
        }
    }
    let root = FsRoot::at(dir.path()).unwrap();
    (dir, root)
}

/// The uses of a device as text.
fn says(files: &[(&str, &str)], name: &str) -> String {
    let (_dir, root) = host(files);
    let uses = Uses::read(&root).unwrap().of(&root, name).unwrap();
    uses.iter().map(|used| used.says(name)).collect::<Vec<_>>().join("; ")
}

#[test]
fn a_bad_list_of_mounts_is_named_with_its_line() {
    let (_dir, root) =
        host(&[("proc/self/mountinfo", "25 1 8:1 / / rw - ext4 /dev/a rw\nnonsense")]);
    let error = Uses::read(&root).unwrap_err().to_string();
    assert!(error.contains("proc/self/mountinfo line 2: `nonsense` is not a mount"), "{error}");
}

/// Any user can make such a mount point, for a file system of FUSE.
#[test]
fn a_mount_point_that_is_no_text_counts_as_one() {
    let (dir, root) = host(&[("sys/class/block/a1/dev", "8:1")]);
    let list =
        b"24 1 0:30 / /m\xfcll rw - tmpfs tmpfs rw\n25 1 8:1 / /b\xe4d rw - ext4 /dev/a1 rw\n";
    std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
    std::fs::write(dir.path().join("proc/self/mountinfo"), list).unwrap();
    let uses = Uses::read(&root).unwrap().of(&root, "a1").unwrap();
    assert_eq!(uses.len(), 1);
    assert_eq!(uses[0].says("a1"), "a1 is mounted at /b\\xe4d");
}

#[test]
fn users_of_a_device_are_followed_to_the_top() {
    let md = "sys/class/block/md0";
    let dm = "sys/class/block/dm-3";
    let files = [
        ("sys/class/block/a1/dev", "8:1"),
        ("sys/class/block/a1/holders/md0", "x"),
        (&*format!("{md}/dev"), "9:0"),
        (&*format!("{md}/md/level"), "raid1"),
        (&*format!("{md}/md0p2/partition"), "2"),
        ("sys/class/block/md0p2/dev", "259:7"),
        ("sys/class/block/md0p2/holders/dm-3", "x"),
        (&*format!("{dm}/dev"), "253:3"),
        (&*format!("{dm}/dm/uuid"), "LVM-abc"),
        (&*format!("{dm}/dm/name"), "vg-root"),
        ("proc/self/mountinfo", "25 1 253:3 / / rw - ext4 /dev/mapper/vg-root rw"),
    ];
    assert_eq!(says(&files, "a1"), "a1 is part of md0 (md raid1), which is mounted at /");
    let above = "md0p2 is part of dm-3 (LVM vg-root), which is mounted at /";
    assert_eq!(says(&files, "md0p2"), above);
    let (_dir, root) = host(&files);
    let uses = Uses::read(&root).unwrap().of(&root, "a1").unwrap();
    assert!(uses.iter().all(DriveUse::is_system) && !uses.is_empty());
}

#[test]
fn device_mapper_devices_are_recognised_by_uuid() {
    for (uuid, says_of) in [
        ("CRYPT-LUKS2-00-safe", "dm-crypt x"),
        ("mpath-360a98", "multipath x"),
        ("part1-mpath-360a98", "multipath x"),
        ("LVM-00", "LVM x"),
        ("", "device mapper x"),
        ("stratis-1-private", "device mapper x"),
    ] {
        let files = [
            ("sys/class/block/a/dev", "8:0"),
            ("sys/class/block/a/holders/dm-0", "x"),
            ("sys/class/block/dm-0/dm/uuid", uuid),
            ("sys/class/block/dm-0/dm/name", "x"),
            ("sys/class/block/dm-0/dev", "253:0"),
            ("proc/swaps", "Filename Type\n/dev/dm-0 partition 1 0 -2"),
        ];
        let wanted = format!("a is part of dm-0 ({says_of}), which is swap space");
        assert_eq!(says(&files, "a"), wanted, "{uuid}");
    }
}

#[test]
fn a_member_without_holder_shows_by_what_udev_read() {
    for (lines, says_of) in [
        ("E:ID_FS_TYPE=zfs_member\nE:ID_FS_LABEL=tank", "a is a member of a ZFS pool `tank`"),
        ("E:ID_FS_TYPE=LVM2_member", "a is a member of an LVM volume group that is not active"),
        (
            "E:ID_FS_TYPE=linux_raid_member\nE:ID_FS_LABEL=dgx:1\nE:ID_FS_UUID=b-a-d",
            "a is a member of an md array that does not run `dgx:1`",
        ),
        ("E:ID_FS_TYPE=isw_raid_member", "a is a member of a RAID set of kind isw"),
        ("E:ID_FS_TYPE=ext4\nS:disk/by-id/x\n\nE:broken", ""),
        ("E:ID_FS_TYPE=", ""),
    ] {
        let files = [("sys/class/block/a/dev", "8:0"), ("run/udev/data/b8:0", lines)];
        assert_eq!(says(&files, "a"), says_of, "{lines}");
    }
}

#[test]
fn every_device_of_a_mounted_btrfs_is_in_use() {
    let files = [
        ("sys/class/block/a/dev", "8:0"),
        ("sys/class/block/b/dev", "8:16"),
        ("sys/class/block/c/dev", "8:32"),
        ("sys/fs/btrfs/u-1/devices/a", "x"),
        ("sys/fs/btrfs/u-1/devices/b", "x"),
        ("sys/fs/btrfs/features/", ""),
        ("proc/self/mountinfo", "25 1 0:40 /sub /data rw - btrfs /dev/a rw"),
    ];
    assert_eq!(says(&files, "a"), "a is mounted at /data");
    assert_eq!(says(&files, "b"), "b is mounted at /data");
    assert_eq!(says(&files, "c"), "");
}

#[test]
fn members_of_a_released_array_are_free() {
    let record = |uuid: &str| {
        format!(
            r#"{{"format":"gpuvm-array","version":1,"name":"md1","uuid":"{uuid}","level":"raid0",
            "metadata":"1.2","bytes":1,"members":[],"mdadm_conf":"/etc/mdadm/mdadm.conf"}}"#
        )
    };
    let udev = "E:ID_FS_TYPE=linux_raid_member\nE:ID_FS_UUID=0123ABCD-0123-0123-0123-0123456789ab";
    let wanted =
        "a is a member of an md array that does not run `0123abcd0123012301230123456789ab`";
    for (record, wanted) in [
        (record("0123abcd:01230123:01230123:456789ab"), ""),
        (record("0123abcd:01230123:01230123:456789ac"), wanted),
        // An unreadable record releases nothing.
        ("{}".to_owned(), wanted),
        (record("0123abcd:01230123:01230123:456789ab").replace("\"md1\"", "\"md2\""), wanted),
    ] {
        let files = [
            ("sys/class/block/a/dev", "8:0"),
            ("run/udev/data/b8:0", udev),
            ("var/lib/gpuvm/arrays/md1.json", &record),
        ];
        assert_eq!(says(&files, "a"), wanted, "{record}");
    }
}
