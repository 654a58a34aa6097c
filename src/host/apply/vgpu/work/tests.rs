//! vGPUs on a tree with a fake kernel and a fake script.

use super::*;
use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

const PF: &str = "0000:3b:00.0";
const VF: &str = "0000:3b:00.4";
const UUID: &str = "6ab1f0c4-44aa-4d06-8b4e-9cf1c0f0ce6b";

/// A fake kernel on a tree.
struct Played {
    dir: tempfile::TempDir,
    log: RefCell<Vec<String>>,
    /// Whether a guest has the functions.
    is_used: Cell<bool>,
    /// Whether a type that is written stays unwritten.
    is_deaf: bool,
}

/// The script: makes or removes the functions, and leaves the card unbound as often as the file
/// `leaves` has lines.
const SCRIPT: &str = r#"#!/bin/sh
root=$(dirname "$0")/../../..
card=$root/sys/bus/pci/devices/$2
echo "$1" >> "$root/runs"
if [ -s "$root/leaves" ]; then
    sed -i 1d "$root/leaves"
    rm -f "$card/driver"
    exit 1
fi
case $1 in
-e) n=2; ln -sf ../0000:3b:00.4 "$card/virtfn0"; ln -sf ../0000:3b:00.5 "$card/virtfn1";;
-d) n=0; rm -f "$card"/virtfn*;;
esac
echo $n > "$card/sriov_numvfs"
"#;

impl Played {
    fn new() -> Played {
        let dir = tempfile::tempdir().unwrap();
        let log = RefCell::default();
        let played = Played { dir, log, is_used: Cell::new(false), is_deaf: false };
        played.write(&format!("{}/sriov_numvfs", path(PF.parse().unwrap())), "0\n");
        played.write("sys/bus/pci/drivers/nvidia/bind", "");
        played.link();
        for vf in [VF, "0000:3b:00.5"] {
            let at = format!("{}/nvidia", path(vf.parse().unwrap()));
            played.write(&format!("{at}/current_vgpu_type"), "0\n");
            played.write(&format!("{at}/creatable_vgpu_types"), "1437 : NVIDIA H200X-18C\n");
        }
        played.write(SRIOV_MANAGE, SCRIPT);
        let script = played.at(SRIOV_MANAGE);
        fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
        played
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    fn link(&self) {
        let card = self.at(&path(PF.parse().unwrap()));
        symlink("../../../../bus/pci/drivers/nvidia", card.join("driver")).unwrap();
    }

    fn with<T>(&self, work: impl FnOnce(&Work<'_>, Bdf, Bdf) -> T) -> T {
        let root = FsRoot::at(self.dir.path()).unwrap();
        let is_free = |functions: &[Bdf]| {
            let by = "domain `a`, which runs".to_owned();
            let used = self.is_used.get();
            if used { Err(BindError::InUse { bdf: functions[0], by }) } else { Ok(()) }
        };
        let (pause, again) = (Duration::ZERO, Duration::ZERO);
        let is_open = |group: &str| group == "40" && self.is_used.get();
        let (is_free, is_open) = (&is_free, &is_open);
        let means = Work { root: &root, kernel: self, is_free, is_open, pause, again };
        work(&means, PF.parse().unwrap(), VF.parse().unwrap())
    }

    fn runs(&self) -> String {
        fs::read_to_string(self.at("runs")).unwrap_or_default().replace('\n', " ")
    }
}

impl Kernel for Played {
    fn write(&self, path: &str, text: &str, _: u64) -> Result<(), BindError> {
        self.log.borrow_mut().push(text.to_owned());
        let parent = || path.split("/mdev_supported_types").next().unwrap().to_owned();
        match path.rsplit('/').next().unwrap() {
            "bind" => self.link(),
            "create" => fs::create_dir_all(self.at(&parent()).join(text)).unwrap(),
            "remove" => fs::remove_dir_all(self.at(path).parent().unwrap()).unwrap(),
            _ if self.is_deaf => {}
            _ => fs::write(self.at(path), text).unwrap(),
        }
        Ok(())
    }

    fn load(&self, _: &str) -> Result<(), BindError> {
        Ok(())
    }
}

#[test]
fn functions_are_enabled_and_disabled_by_the_script() {
    let played = Played::new();
    let set = |on| played.with(|work, pf, _| work.set_functions(pf, on, &mut |_| {}));
    set(true).unwrap();
    set(true).unwrap();
    assert_eq!(played.runs(), "-e ");
    // One that has a type ends with them.
    let file = format!("{}/nvidia/current_vgpu_type", path(VF.parse().unwrap()));
    played.write(&file, "1437\n");
    let refused = set(false).unwrap_err().to_string();
    assert_eq!(refused, format!("{VF} of {PF} has vGPU type 1437, which would end"));
    played.write(&file, "0\n");
    played.is_used.set(true);
    assert!(set(false).unwrap_err().to_string().contains("domain `a`, which runs"));
    played.is_used.set(false);
    set(false).unwrap();
    assert_eq!(played.runs(), "-e -d ");
    let expect = |was| played.with(|work, pf, _| work.expect_functions(pf, was, true));
    assert!(expect(false).is_ok());
    assert!(expect(true).unwrap_err().to_string().contains("has 0 virtual functions now"));
}

#[test]
fn a_card_that_the_script_leaves_unbound_is_bound_and_tried_again() {
    let played = Played::new();
    played.write("leaves", "1\n");
    let mut notes = Vec::new();
    let mut note = |text: &str| notes.push(text.to_owned());
    played.with(|work, pf, _| work.set_functions(pf, true, &mut note)).unwrap();
    assert_eq!(played.runs(), "-e -e ");
    assert_eq!(notes, [format!("sriov-manage left {PF} without its driver; it is bound again")]);
    assert_eq!(*played.log.borrow(), [PF]);
    let played = Played::new();
    played.write("leaves", "1\n2\n3\n4\n");
    let failed = played.with(|work, pf, _| work.set_functions(pf, true, &mut |_| {})).unwrap_err();
    assert!(matches!(failed, VgpuError::Unbound { runs: 3, .. }), "{failed}");
    // It has its driver again, whatever else failed.
    assert!(played.at(&path(PF.parse().unwrap())).join("driver").symlink_metadata().is_ok());
}

#[test]
fn functions_without_types_are_an_error() {
    let played = Played::new();
    let file = format!("{}/nvidia/creatable_vgpu_types", path(VF.parse().unwrap()));
    fs::remove_file(played.at(&file)).unwrap();
    let failed = played.with(|work, pf, _| work.set_functions(pf, true, &mut |_| {})).unwrap_err();
    assert!(failed.to_string().contains("lists no vGPU types"), "{failed}");
}

#[test]
fn a_type_is_set_read_back_and_only_ours_is_cleared() {
    let played = Played::new();
    let set = |to| played.with(|work, _, vf| work.set_type(vf, to));
    let back = |to, was| played.with(|work, _, vf| work.revert_type(vf, to, was));
    let is_ours = || played.with(|work, _, vf| ours::is_ours(work.root, vf, 1437));
    assert!(!is_ours());
    set(1437).unwrap();
    assert!(is_ours());
    assert!(!played.with(|work, _, vf| ours::is_ours(work.root, vf, 1430)));
    assert_eq!(*played.log.borrow(), ["1437"]);
    set(1437).unwrap();
    let refused = set(7).unwrap_err().to_string();
    assert_eq!(refused, format!("{VF} offers no vGPU type 7 now; it offers 1437 (H200X-18C)"));
    // Another type by now, and a guest that has it.
    back(1430, 0).unwrap();
    played.is_used.set(true);
    assert!(back(1437, 0).unwrap_err().to_string().contains("which runs"));
    played.is_used.set(false);
    back(1437, 0).unwrap();
    assert_eq!(*played.log.borrow(), ["1437", "0"]);
    assert!(!is_ours());
    // Another sets it: it is theirs.
    let file = format!("{}/nvidia/current_vgpu_type", path(VF.parse().unwrap()));
    played.write(&file, "1437\n");
    set(1437).unwrap();
    assert!(!is_ours());
    played.write(&file, "0\n");
    let expect = |was| played.with(|work, _, vf| work.expect_type(vf, was));
    assert!(expect(0).is_ok());
    assert!(expect(1437).unwrap_err().to_string().contains("it had 1437 when this was planned"));
    let deaf = Played { is_deaf: true, ..Played::new() };
    let failed = deaf.with(|work, _, vf| work.set_type(vf, 1437)).unwrap_err().to_string();
    assert_eq!(failed, format!("{VF}: vGPU type 1437 was written, 0 is read"));
    // A type that another has set since the plan is left.
    let changed = played.with(|work, _, vf| work.change_type(vf, 99, 1437));
    assert!(matches!(changed, Err(VgpuError::TypeChanged { now: 0, was: 99, .. })));
    let absent = played.with(|work, pf, _| work.set_type(pf, 1437)).unwrap_err();
    assert!(matches!(absent, VgpuError::NoFunction { .. }), "{absent}");
}

#[test]
fn a_mediated_device_is_made_where_there_is_room_and_removed() {
    let played = Played::new();
    let room = format!("{}/mdev_supported_types/t/available_instances", path(VF.parse().unwrap()));
    let expect = || played.with(|work, _, vf| work.expect_instance(UUID, vf, "t"));
    assert!(matches!(expect(), Err(VgpuError::NoInstance { .. })));
    played.write(&room, "0\n");
    assert!(matches!(expect(), Err(VgpuError::NoInstance { .. })));
    played.write(&room, "1\n");
    expect().unwrap();
    played.with(|work, _, vf| work.create_mdev(UUID, vf, "t")).unwrap();
    assert!(matches!(expect(), Err(VgpuError::MdevThere { .. })));
    played.with(|work, _, vf| work.create_mdev(UUID, vf, "t")).unwrap();
    let there = played.at(&path(VF.parse().unwrap())).join(UUID);
    symlink("../mdev_supported_types/t", there.join("mdev_type")).unwrap();
    symlink("../../../../kernel/iommu_groups/40", there.join("iommu_group")).unwrap();
    let remove = |of: &str| played.with(|work, _, vf| work.remove_mdev(UUID, vf, of));
    assert!(matches!(remove("other"), Err(VgpuError::MdevChanged { .. })));
    played.is_used.set(true);
    assert!(matches!(remove("t"), Err(VgpuError::MdevOpen { .. })));
    assert!(there.exists());
    played.is_used.set(false);
    remove("t").unwrap();
    remove("t").unwrap();
    assert_eq!(*played.log.borrow(), [UUID, "1"]);
}
