//! Uses of a drive, by any path to it.

#[test]
fn another_path_to_a_drive_in_use_is_in_use() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let block = dir.path().join("sys/class/block");
    let put = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    };
    for (name, number, wwid) in [
        ("sda", "8:0", "naa.5000c500a"),
        ("sdb", "8:16", "naa.5000c500a"),
        ("sdc", "8:32", "naa.9"),
    ] {
        let at = format!("sys/devices/{name}");
        put(&format!("{at}/dev"), number);
        put(&format!("{at}/size"), "2048");
        put(&format!("{at}/device/wwid"), wwid);
        std::fs::create_dir_all(&block).unwrap();
        symlink(format!("../../devices/{name}"), block.join(name)).unwrap();
    }
    put("sys/devices/sda/sda1/dev", "8:1");
    put("sys/devices/sda/sda1/partition", "1");
    symlink("../../devices/sda/sda1", block.join("sda1")).unwrap();
    put("proc/self/mountinfo", "25 1 8:1 / /raid rw - ext4 /dev/sda1 rw");
    let root = crate::fsroot::FsRoot::at(dir.path()).unwrap();
    let phrases = |name: &str| -> Vec<String> {
        super::known_uses(&root, name).unwrap().iter().map(ToString::to_string).collect()
    };
    assert_eq!(phrases("sda"), ["sda1 is mounted at /raid"]);
    assert_eq!(phrases("sdb"), ["sda1 is mounted at /raid"], "the other path");
    assert!(phrases("sdc").is_empty());
}
