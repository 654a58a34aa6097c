//! Drives of several guests whose addresses have moved: a drive recorded for one guest goes to no
//! other, at whatever address. The host is a copy of the recorded DGX-2, whose sysfs is files.

use super::boot::{DRIVE, HOOK, OTHER, define, host, serial};
use crate::libvirt::place::Place;
use std::fs;
use std::path::Path;

/// A third drive of the same model.
const THIRD: &str = "0000:51:00.0";
/// What domain `b` has.
const OF_B: &str = "is recorded for domain `b`, which had it at 0000:2f:00.0";

/// Runs gpuvm, which must refuse with this exit code and words. Returns its message.
#[track_caller]
fn refused(place: &Place, args: &[&str], code: i32, words: &[&str]) -> String {
    let (found, out, err) = place.gpuvm(args);
    let said = format!("{out}{err}");
    assert_eq!(found, code, "{args:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{args:?}: no {word:?} in {said}");
    }
    said
}

/// Gives a drive of the host a partition.
fn partition(dir: &Path, drive: &str) {
    let list = dir.join("sys/class/block");
    let target = fs::read_link(list.join(drive)).unwrap().to_str().unwrap().to_owned();
    let part = format!("{drive}p1");
    let of = list.join(&target).join(&part);
    fs::create_dir_all(&of).unwrap();
    fs::write(of.join("partition"), "1\n").unwrap();
    fs::write(of.join("size"), "2048\n").unwrap();
    std::os::unix::fs::symlink(format!("{target}/{part}"), list.join(&part)).unwrap();
}

/// Gives a domain a drive by virsh, as others do.
fn attach(place: &Place, name: &str, bus: &str) {
    let xml = format!(
        "<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0x0000' \
         bus='0x{bus}' slot='0x00' function='0x0'/></source></hostdev>"
    );
    let file = place.disks.join("hostdev.xml");
    fs::write(&file, xml).unwrap();
    place.virsh(&["attach-device", name, file.to_str().unwrap(), "--config"]);
}

/// Defines a guest without devices, without starting it.
fn plain(place: &Place, name: &str) {
    let disks = place.disks.to_str().unwrap();
    let how = ["create", "--name", name, "--gpus", "0", "--no-start", "--disk-dir", disks];
    place.done(&[&how[..], &["--vcpus", "2", "--memory", "1G"]].concat());
}

#[test]
fn a_recorded_drive_goes_to_no_other_guest_wherever_it_is() {
    let Some((place, dir)) = host() else { return };
    let put = |bdf, text| serial(dir.path(), bdf, Some(text));
    put(OTHER, "S2B");
    put(THIRD, "S3C");
    define(&place, "b", OTHER);
    plain(&place, "c");
    // A card was added: the guest's drive has moved, and the host's is at its address.
    put(OTHER, "S3C");
    put(THIRD, "S2B");
    let disks = place.disks.to_str().unwrap();
    let size = ["--gpus", "0", "--vcpus", "2", "--memory", "1G"];
    let named = ["--nvme", THIRD];
    let made = ["create", "--name", "d", "--no-start", "--accept-data-loss", "--disk-dir", disks];
    for args in [
        [&["plan"][..], &size, &named].concat(),
        [&["export"][..], &size, &named].concat(),
        [&made[..], &size, &named].concat(),
        [&["set", "c", "--yes", "--accept-data-loss"][..], &named].concat(),
    ] {
        refused(&place, &args, 1, &[THIRD, OF_B]);
    }
    let its = format!("`gpuvm set b --nvme {THIRD}`");
    refused(&place, &["drive", "wipe", THIRD, "--yes"], 1, &["not erased", OF_B, &its]);
    for list in ["drive", "device"] {
        let shown = place.done(&[list, "list"]);
        assert!(shown.contains(OF_B), "{list}: {shown}");
        assert!(place.done(&[list, "list", "--json"]).contains("\"b\""));
    }
    // The one at its old address stays its own, too.
    let counted = [&["plan"][..], &size, &["--nvme", "7"]].concat();
    let held = format!("{OTHER} is held by domain `b`");
    refused(&place, &counted, 1, &[&format!("{THIRD} {OF_B}"), &held]);
    // Somebody has given it to another guest without gpuvm.
    attach(&place, "c", "51");
    refused(&place, &["start", "c"], 1, &[THIRD, OF_B, "`gpuvm set c --no-nvme`"]);
    refused(&place, &["verify", "c"], 3, &[THIRD, OF_B]);
    let said = refused(&place, &["autostart", "c", "on"], 1, &[THIRD, OF_B]);
    assert!(!place.virsh(&["dumpxml", "c"]).contains("serial:S2B"), "{said}");
    place.done(&["set", "c", "--no-nvme", "--yes"]);
    // Its own guest gets it, without a question about its own data.
    partition(dir.path(), "nvme4n1");
    place.done(&["set", "b", "--nvme", THIRD, "--yes"]);
    assert!(place.virsh(&["dumpxml", "b"]).contains("serial:S2B"));
    place.done(&[&["plan"][..], &size, &["--nvme", OTHER]].concat());
    // Moved once more: what erases its data names the drive that has them.
    put(OTHER, "S2B");
    put(THIRD, "S3C");
    let (code, out, err) = place.gpuvm(&["delete", "b", "--yes"]);
    let said = format!("{out}{err}");
    let wipe = |bdf: &str| format!("`gpuvm drive wipe {bdf}`");
    assert!(code == 0 && said.contains(&wipe(OTHER)) && !said.contains(&wipe(THIRD)), "{said}");
}

#[test]
fn another_drive_at_the_address_of_a_guests_drive_is_a_new_one() {
    let Some((place, dir)) = host() else { return };
    let put = |bdf, text| serial(dir.path(), bdf, Some(text));
    put(DRIVE, "S1A");
    put(OTHER, "S2B");
    define(&place, "a", DRIVE);
    define(&place, "b", OTHER);
    // Another guest's drive is there.
    put(OTHER, "S9Z");
    put(DRIVE, "S2B");
    let set = ["set", "a", "--nvme", DRIVE, "--yes"];
    refused(&place, &[&set[..], &["--accept-data-loss"]].concat(), 1, &[DRIVE, OF_B]);
    // A drive of the host is there.
    put(OTHER, "S2B");
    put(DRIVE, "S7X");
    partition(dir.path(), "nvme2n1");
    let before = place.virsh(&["dumpxml", "a"]);
    refused(&place, &set, 2, &["--accept-data-loss", "nvme2n1 holds a partition table"]);
    assert_eq!(place.virsh(&["dumpxml", "a"]), before);
    place.done(&[&set[..], &["--accept-data-loss"]].concat());
    assert!(place.virsh(&["dumpxml", "a"]).contains("serial:S7X"));
    // The same one again is no new one.
    place.done(&set);
    // The guest, or another, has made other namespaces on it: not proven to be as it was.
    let of = dir.path().join("sys/bus/pci/devices").join(DRIVE).join("nvme/nvme2");
    let nguid = |text: &str| {
        fs::create_dir_all(of.join("nvme2n1")).unwrap();
        fs::write(of.join("nvme2n1/nguid"), text).unwrap();
    };
    nguid("a1b2c3d4-0000-0000-0000-000000000001\n");
    place.done(&set);
    assert!(place.virsh(&["dumpxml", "a"]).contains("eui:a1b2c3d4"));
    nguid("a1b2c3d4-0000-0000-0000-000000000002\n");
    refused(&place, &["start", "a"], 1, &["serial number S7X", "EUIs", "`gpuvm set a --nvme"]);
    refused(&place, &set, 2, &["--accept-data-loss"]);
    place.done(&[&set[..], &["--accept-data-loss"]].concat());
}

#[test]
fn guests_whose_drives_changed_places_each_get_their_own_back() {
    let Some((place, dir)) = host() else { return };
    let put = |bdf, text| serial(dir.path(), bdf, Some(text));
    put(DRIVE, "S1A");
    put(OTHER, "S2B");
    define(&place, "a", DRIVE);
    define(&place, "b", OTHER);
    put(DRIVE, "S2B");
    put(OTHER, "S1A");
    partition(dir.path(), "nvme2n1");
    let way = |name: &str, bdf: &str| format!("`gpuvm set {name} --nvme {bdf}`");
    refused(&place, &["start", "a"], 1, &[&way("a", OTHER)]);
    refused(&place, &["verify", "b"], 3, &[&way("b", DRIVE)]);
    // Neither is offered the other's.
    let three = refused(&place, &["set", "a", "--nvme", "9", "--yes"], 1, &["available"]);
    assert!(three.contains(&format!("{DRIVE} {}", OF_B)), "{three}");
    for (name, bdf, serial) in [("a", OTHER, "S1A"), ("b", DRIVE, "S2B")] {
        place.done(&["set", name, "--nvme", bdf, "--yes"]);
        let xml = place.virsh(&["dumpxml", name]);
        assert!(xml.contains(&format!("serial:{serial}")), "{xml}");
    }
    for name in ["a", "b"] {
        let (_, out, err) = place.gpuvm(&["verify", name]);
        assert!(!out.contains("is now") && !out.contains("is held"), "{out}{err}");
    }
}

#[test]
fn of_drives_that_report_the_same_none_is_taken_for_its_own() {
    let Some((place, dir)) = host() else { return };
    let put = |bdf, text| serial(dir.path(), bdf, Some(text));
    put(OTHER, "S1A");
    define(&place, "a", OTHER);
    put(OTHER, "S9Z");
    put(DRIVE, "S1A");
    put(THIRD, "S1A");
    partition(dir.path(), "nvme2n1");
    let set = ["set", "a", "--nvme", DRIVE, "--yes"];
    refused(&place, &set, 2, &["--accept-data-loss", "nvme2n1 holds a partition table"]);
}

#[test]
fn a_record_of_what_others_took_out_of_a_definition_holds_nothing() {
    let Some((place, dir)) = host() else { return };
    let put = |bdf, text| serial(dir.path(), bdf, Some(text));
    put(OTHER, "S2B");
    put(THIRD, "S3C");
    define(&place, "b", OTHER);
    let file = place.disks.join("hostdev.xml");
    let xml = place.virsh(&["dumpxml", "b"]);
    let (_, rest) = xml.split_once("<hostdev").unwrap();
    let (hostdev, _) = rest.split_once("</hostdev>").unwrap();
    fs::write(&file, format!("<hostdev{hostdev}</hostdev>")).unwrap();
    place.virsh(&["detach-device", "b", file.to_str().unwrap(), "--config"]);
    define(&place, "c", OTHER);
    put(OTHER, "S9Z");
    put(THIRD, "S2B");
    place.done(&["set", "c", "--nvme", THIRD, "--yes"]);
    assert!(place.virsh(&["dumpxml", "b"]).contains("serial:S2B"));
    let said = place.done(&["set", "b", "--no-nvme", "--yes"]);
    assert!(!place.virsh(&["dumpxml", "b"]).contains("serial:S2B"), "{said}");
    assert!(place.virsh(&["dumpxml", "c"]).contains("serial:S2B"));
}

#[test]
fn undo_does_not_restore_devices_of_another_guest() {
    let Some((place, dir)) = host() else { return };
    let put = |bdf, text| serial(dir.path(), bdf, Some(text));
    put(OTHER, "S2B");
    put(THIRD, "S3C");
    define(&place, "b", OTHER);
    let saved = place.disks.join("saved.xml");
    fs::write(&saved, place.virsh(&["dumpxml", "b"])).unwrap();
    place.done(&["set", "b", "--no-nvme", "--yes"]);
    put(OTHER, "S9Z");
    put(THIRD, "S2B");
    define(&place, "c", THIRD);
    let said = ["cannot have", "serial number S2B is now at 0000:51:00.0, which domain `c` has"];
    refused(&place, &["undo", "b", "--yes"], 1, &said);
    // Somebody defines it as it was: the guest that has the drive is not kept from it.
    place.virsh(&["define", saved.to_str().unwrap()]);
    let (code, out, err) = place.gpuvm(&["start", "c", "--dry-run"]);
    assert!(!err.contains("recorded for domain"), "{code}: {out}{err}");
}

#[test]
fn a_drive_of_which_nothing_is_recorded_is_named_and_accepted_like_a_new_one() {
    let Some((place, dir)) = host() else { return };
    serial(dir.path(), OTHER, Some("000000"));
    let disks = place.disks.to_str().unwrap();
    let how = ["create", "--name", "a", "--gpus", "0", "--nvme", OTHER, "--no-start"];
    let size = ["--vcpus", "2", "--memory", "1G", "--disk-dir", disks, "--accept-data-loss"];
    let (code, out, err) = place.gpuvm(&[&how[..], &size].concat());
    assert_eq!(code, 0, "{out}{err}");
    let first = format!("`gpuvm device release {OTHER}`");
    assert!(err.contains("nothing records which drive") && err.contains(&first), "{err}");
    serial(dir.path(), OTHER, Some("S7X"));
    partition(dir.path(), "nvme3n1");
    let set = ["set", "a", "--nvme", OTHER, "--yes"];
    refused(&place, &set, 2, &["--accept-data-loss"]);
    place.done(&[&set[..], &["--accept-data-loss"]].concat());
    assert!(place.virsh(&["dumpxml", "a"]).contains("serial:S7X"));
}

#[test]
fn own_drives_that_changed_places_are_not_asked_about() {
    let Some((place, dir)) = host() else { return };
    let put = |bdf, text| serial(dir.path(), bdf, Some(text));
    put(DRIVE, "S1A");
    put(OTHER, "S2B");
    let disks = place.disks.to_str().unwrap();
    let how = ["create", "--name", "b", "--gpus", "0", "--nvme", DRIVE, "--nvme", OTHER];
    let size = ["--vcpus", "2", "--memory", "1G", "--disk-dir", disks, "--accept-data-loss"];
    place.done(&[&how[..], &size, &["--no-start"]].concat());
    put(DRIVE, "S2B");
    put(OTHER, "S1A");
    partition(dir.path(), "nvme2n1");
    let way = format!("`gpuvm set b --nvme {DRIVE} --nvme {OTHER}`");
    refused(&place, &["verify", "b"], 3, &[&way]);
    place.done(&["set", "b", "--nvme", DRIVE, "--nvme", OTHER, "--yes"]);
    assert_eq!(place.gpuvm(&["verify", "b"]).1.matches("is now").count(), 0);
    // One is gone, and the other is in its place.
    put(OTHER, "S2B");
    put(DRIVE, "S9Z");
    refused(&place, &["verify", "b"], 3, &[&format!("`gpuvm set b --nvme {OTHER}`")]);
}

#[test]
fn the_hook_stays_for_other_guests_when_a_start_with_the_host_is_undone() {
    let Some((place, dir)) = host() else { return };
    serial(dir.path(), DRIVE, Some("S1A"));
    serial(dir.path(), OTHER, Some("S2B"));
    define(&place, "a", DRIVE);
    define(&place, "b", OTHER);
    place.done(&["autostart", "b", "on"]);
    place.done(&["autostart", "a", "on"]);
    let hook = place.daemon.own_path(&format!("/{HOOK}"));
    assert!(hook.exists());
    place.done(&["undo", "b", "--yes"]);
    assert!(hook.exists(), "{}", hook.display());
    // A file removed by others is missing for its start with the host, and verify reports that.
    fs::remove_file(&hook).unwrap();
    let way = "`gpuvm autostart a on` writes it";
    refused(&place, &["verify", "a"], 3, &["boot-lacks", "libvirt compares its devices", way]);
    place.done(&["autostart", "a", "on"]);
    let (_, out, err) = place.gpuvm(&["verify", "a"]);
    assert!(!out.contains("boot-lacks"), "{out}{err}");
}

/// Takes a function out of the host.
fn unplug(dir: &Path, bdf: &str) {
    fs::remove_file(dir.join("sys/bus/pci/devices").join(bdf)).unwrap_or_else(|_| {
        fs::remove_dir_all(dir.join("sys/bus/pci/devices").join(bdf)).unwrap();
    });
}

#[test]
fn a_drive_whose_old_address_is_empty_is_found_at_its_new_one() {
    let Some((place, dir)) = host() else { return };
    let put = |bdf, text| serial(dir.path(), bdf, Some(text));
    put(OTHER, "S2B");
    define(&place, "b", OTHER);
    put(THIRD, "S2B");
    unplug(dir.path(), OTHER);
    let now_at = format!("which is now at {THIRD}");
    let set = format!("`gpuvm set b --nvme {THIRD}`");
    refused(&place, &["start", "b"], 1, &["0000:2f:00.0 is missing", &now_at, &set]);
    refused(&place, &["verify", "b"], 3, &["0000:2f:00.0 is missing", &now_at, &set]);
    let shown = place.done(&["set", "b", "--nvme", THIRD, "--yes"]);
    let xml = place.virsh(&["dumpxml", "b"]);
    assert!(!xml.contains("bus='0x2f'") && xml.contains("serial:S2B"), "{shown}{xml}");
    // One that is found nowhere goes, too, and names no address.
    unplug(dir.path(), THIRD);
    refused(&place, &["start", "b"], 1, &["needs 0000:51:00.0, which is missing"]);
    place.done(&["set", "b", "--no-nvme", "--yes"]);
    let xml = place.virsh(&["dumpxml", "b"]);
    assert!(!xml.contains("<hostdev") && !xml.contains("serial:S2B"), "{xml}");
    place.done(&["delete", "b", "--yes"]);
}

#[test]
fn a_card_that_serves_a_vdpa_nic_of_a_guest_goes_to_no_other() {
    let Some((place, dir)) = host() else { return };
    let devices = dir.path().join("sys/bus/pci/devices");
    let is_nic = |bdf: &String| {
        fs::read_to_string(devices.join(bdf).join("class"))
            .is_ok_and(|class| class.starts_with("0x02"))
    };
    let names = fs::read_dir(&devices).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let nic = names.filter(is_nic).max().unwrap();
    let size = ["--gpus", "0", "--vcpus", "2", "--memory", "1G", "--nic"];
    let plan = [&["plan"][..], &size, &[&nic]].concat();
    place.done(&plan);
    let class = dir.path().join("sys/class/vhost-vdpa");
    fs::create_dir_all(&class).unwrap();
    let target = format!("../../devices/pci0000:00/{nic}/vdpa0/vhost-vdpa-0");
    std::os::unix::fs::symlink(target, class.join("vhost-vdpa-0")).unwrap();
    plain(&place, "v");
    let file = place.disks.join("vdpa.xml");
    fs::write(&file, "<interface type='vdpa'><source dev='/dev/vhost-vdpa-0'/></interface>")
        .unwrap();
    place.virsh(&["attach-device", "v", file.to_str().unwrap(), "--config"]);
    refused(&place, &plan, 1, &["is held by domain `v`"]);
}
