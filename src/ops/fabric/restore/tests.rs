//! Who is believed to run, on a tree with processes.

use super::*;
use crate::topology::file::from_json;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Writes a file of a tree.
fn put(tree: &Path, path: &str, text: &str) {
    let path = tree.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A QEMU of an account, with these arguments and groups of VFIO open.
fn qemu(tree: &Path, pid: u32, uid: u32, uuid: &str, groups: &[usize]) {
    let dir = format!("proc/{pid}");
    put(tree, &format!("{dir}/cmdline"), &format!("qemu\0-uuid\0{uuid}\0"));
    put(tree, &format!("{dir}/status"), &format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n"));
    symlink("/usr/bin/qemu-system-x86_64", tree.join(&dir).join("exe")).unwrap();
    std::fs::create_dir_all(tree.join(&dir).join("fd")).unwrap();
    for group in groups {
        let fd = tree.join(&dir).join(format!("fd/{group}"));
        symlink(format!("/dev/vfio/{group}"), fd).unwrap();
    }
}

#[test]
fn a_claimed_guest_gets_no_partition_and_a_user_of_a_gpu_keeps_it() {
    let host = from_json(include_str!("../../../../topologies/dgx-h100.json")).unwrap();
    let gpus: Vec<Bdf> = host.ruled().collect();
    let modules_of = |at: &[usize]| -> Modules {
        let ids = &host.fabric().module_ids;
        let of = |at: &usize| ids.iter().find(|(bdf, _)| *bdf == gpus[*at]).unwrap().1;
        at.iter().map(of).collect()
    };
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path();
    for (group, gpu) in gpus.iter().enumerate() {
        let device = tree.join(format!("sys/bus/pci/devices/{gpu}"));
        std::fs::create_dir_all(&device).unwrap();
        symlink(format!("../iommu_groups/{group}"), device.join("iommu_group")).unwrap();
        put(tree, &format!("sys/class/vfio/{group}/dev"), &format!("240:{group}\n"));
    }
    let entry = |id: u32, domain: &str, at: &[usize]| RestoreEntry {
        id,
        domain: domain.into(),
        modules: modules_of(at),
        vfs: Vec::new(),
    };
    let list = RestoreList::default().with(entry(3, "b", &[4, 5])).with(entry(2, "c", &[2, 3]));
    // A guest whose devices are seen, with a user's process that has its UUID beside it.
    qemu(tree, 40, 0, "A", &[0, 1]);
    qemu(tree, 90, 1000, "A", &[]);
    // A guest known from the file alone.
    qemu(tree, 41, 0, "b", &[]);
    // A user's process has the UUID of a guest that is off.
    qemu(tree, 91, 1000, "c", &[]);
    // Unknown QEMUs, one of which has the UUID of a known guest.
    qemu(tree, 92, 1000, "d", &[6]);
    qemu(tree, 93, 1000, "a", &[7]);
    let found = by_processes(&FsRoot::at(tree).unwrap(), &host, &list).unwrap();
    let found: Vec<(&str, &str, &Modules)> = found
        .iter()
        .map(|one| (one.domain.name.as_str(), one.domain.uuid.as_str(), &one.modules))
        .collect();
    assert_eq!(
        found,
        [
            ("a", "a", &modules_of(&[0, 1])),
            ("b", "b", &modules_of(&[4, 5])),
            ("d", "d", &modules_of(&[6])),
            ("process 93", "", &modules_of(&[7])),
        ]
    );
}
