//! Snapshots whose images, users or guests are others than libvirt knows of, on a real libvirt:
//! nothing of anybody is lost.

use super::copies::{bytes, holds, qemu, snapshots, with_image};
use super::place::{Place, until};
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs the program, which must refuse with these words.
fn refused(place: &Place, args: &[&str], says: &[&str]) {
    let (code, out, err) = place.gpuvm(args);
    assert!(code != 0 && says.iter().all(|text| err.contains(text)), "{args:?}: {out}{err}");
}

/// Adds an image as a second disk; its path.
fn second(place: &Place, name: &str) -> String {
    let image = place.disks.join(format!("{name}-2.qcow2")).to_str().unwrap().to_owned();
    qemu("qemu-img", &["create", "-f", "qcow2", &image, "8M"]);
    place.done(&["disk", "add", name, &image]);
    image
}

#[test]
fn a_snapshot_that_only_the_image_knows_is_not_taken_for_another() {
    let Some(place) = Place::new() else { return };
    let image = with_image(&place, "sa");
    bytes("write", 0x11, &image);
    let shown = place.done(&["--quiet", "snapshot", "create", "sa", "one", "--diff", "--json"]);
    assert!(shown.contains("\"changed\": false") || shown.contains("\"changed\":false"), "{shown}");
    place.done(&["snapshot", "create", "sa", "one"]);
    // libvirt forgets it with the domain; the image does not.
    let file = place.disks.join("sa.xml");
    std::fs::write(&file, place.virsh(&["dumpxml", "--inactive", "sa"])).unwrap();
    place.virsh(&["undefine", "sa", "--snapshots-metadata", "--keep-nvram"]);
    place.virsh(&["define", file.to_str().unwrap()]);
    bytes("write", 0x22, &image);
    let before = snapshots(&place, "sa", &image);
    let knows = "has a snapshot `one`, which libvirt does not know";
    refused(&place, &["snapshot", "create", "sa", "one"], &[knows, "`qemu-img snapshot -l "]);
    assert_eq!(snapshots(&place, "sa", &image), before);
    place.done(&["snapshot", "create", "sa", "two"]);
    bytes("write", 0x33, &image);
    place.done(&["snapshot", "revert", "sa", "two", "--yes"]);
    assert!(holds(0x22, &image));
    let (_, _, err) = place.gpuvm(&["delete", "sa", "--dry-run"]);
    assert!(err.contains("1 snapshot of domain `sa` cannot be reverted to"), "{err}");
    refused(&place, &["snapshot", "create", "sa", "s 2"], &["snapshot name \"s 2\""]);
    // Two of a name: libvirt would take the first.
    qemu("qemu-img", &["snapshot", "-c", "two", &image]);
    for verb in ["revert", "delete"] {
        refused(&place, &["snapshot", verb, "sa", "two", "--yes"], &["has 2 snapshots `two`"]);
    }
}

#[test]
fn disks_are_reverted_all_or_none() {
    let Some(place) = Place::new() else { return };
    let image = with_image(&place, "sa");
    let other = second(&place, "sa");
    bytes("write", 0x11, &image);
    place.done(&["snapshot", "create", "sa", "one"]);
    bytes("write", 0x22, &image);
    // Another image at the path of the second disk.
    std::fs::remove_file(&other).unwrap();
    qemu("qemu-img", &["create", "-f", "qcow2", &other, "8M"]);
    let revert = ["snapshot", "revert", "sa", "one", "--yes"];
    refused(&place, &revert, &["sa-2.qcow2", "has no snapshot `one`"]);
    assert!(holds(0x22, &image));
    place.done(&["snapshot", "delete", "sa", "one", "--yes"]);
    // Disks that libvirt would leave out, or put a file over.
    for kind in ["no", "external"] {
        let file = place.disks.join("sa.xml");
        let xml = place.virsh(&["dumpxml", "--inactive", "sa"]);
        let said = format!("device='disk' snapshot='{kind}'>");
        std::fs::write(&file, xml.replacen("device='disk'>", &said, 1)).unwrap();
        place.virsh(&["define", file.to_str().unwrap()]);
        let says = format!("snapshot='{kind}'");
        refused(&place, &["snapshot", "create", "sa", "one"], &[&says, "`virsh edit sa`"]);
        std::fs::write(&file, xml).unwrap();
        place.virsh(&["define", file.to_str().unwrap()]);
    }
}

#[test]
fn a_snapshot_is_not_removed_from_an_image_of_another_guest() {
    let Some(place) = Place::new() else { return };
    let (image, _) = (with_image(&place, "sa"), with_image(&place, "sb"));
    let moved = second(&place, "sa");
    place.done(&["snapshot", "create", "sa", "one"]);
    place.done(&["disk", "remove", "sa", "vdb", "--yes"]);
    place.done(&["disk", "add", "sb", &moved]);
    let delete = ["snapshot", "delete", "sa", "one", "--yes"];
    refused(&place, &delete, &["does not belong to domain", "domain `sb`"]);
    let inside = || qemu("qemu-img", &["snapshot", "-l", &moved]).lines().skip(2).count();
    assert_eq!(inside(), 1);
    place.done(&["disk", "remove", "sb", "vdb", "--yes"]);
    // Somebody has it open: libvirt does not say that it could not delete the snapshot.
    let mut open = Command::new("qemu-io");
    open.args(["-f", "qcow2", &moved]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut open = open.spawn().unwrap();
    let files = format!("/proc/{}/fd", open.id());
    let is_open = || {
        let links = std::fs::read_dir(&files).into_iter().flatten().flatten();
        links.flat_map(|link| link.path().read_link()).any(|to| to == Path::new(&moved))
    };
    until("qemu-io opens the image", is_open);
    refused(&place, &delete, &["has it open", "qemu-io"]);
    drop(open.stdin.take());
    open.wait().unwrap();
    place.done(&delete);
    assert_eq!(inside(), 0);
    // Images that were put over it by hand: beside it, and in an unknown pool.
    place.done(&["snapshot", "create", "sa", "two"]);
    let pool = place.daemon.fresh_dir("pool");
    let target = pool.to_str().unwrap();
    place.virsh(&["pool-create-as", "byhand", "dir", "--target", target]);
    let revert = ["snapshot", "revert", "sa", "two", "--yes"];
    for (dir, says) in [(&place.disks, "image "), (&pool, "volume `byhand/over.qcow2`")] {
        let over = dir.join("over.qcow2").display().to_string();
        qemu("qemu-img", &["create", "-f", "qcow2", "-b", &image, "-F", "qcow2", &over]);
        bytes("write", 0x44, &image);
        refused(&place, &revert, &[says, "over.qcow2", "is an overlay on it"]);
        assert!(holds(0x44, &image));
        std::fs::remove_file(over).unwrap();
    }
    place.done(&revert);
    // It blocks another name, and the named command removes it from there.
    let delete = "`gpuvm snapshot delete sa two` deletes one";
    refused(&place, &["rename", "sa", "sc"], &["has 1 snapshot", delete]);
    place.done(&["snapshot", "delete", "sa", "two", "--yes"]);
    place.done(&["rename", "sa", "sc"]);
}

#[test]
fn a_revert_is_not_finished_over_later_writes() {
    let Some(place) = Place::new() else { return };
    let image = with_image(&place, "sa");
    bytes("write", 0x11, &image);
    place.done(&["snapshot", "create", "sa", "one"]);
    let revert = ["snapshot", "revert", "sa", "one", "--yes"];
    // Begun, before the state of its disks is recorded: nothing was done, and nothing is finished.
    bytes("write", 0x22, &image);
    assert!(!place.killed(5, &revert));
    place.done(&["recover"]);
    assert!(holds(0x22, &image));
    // Begun, and nothing of it done.
    assert!(!place.killed(6, &revert));
    place.virsh(&["start", "sa"]);
    refused(&place, &["recover"], &["domain `sa` is running", "`gpuvm recover --end sa`"]);
    assert_eq!(place.virsh(&["domstate", "sa"]).trim(), "running");
    place.virsh(&["destroy", "sa"]);
    bytes("write", 0x33, &image);
    let says = [
        "may have been written since",
        "would be lost",
        "`gpuvm recover --yes`",
        "--discard --yes`",
    ];
    refused(&place, &["recover"], &says);
    assert!(holds(0x33, &image));
    place.done(&["recover", "--discard", "--yes"]);
    assert!(holds(0x33, &image));
    assert!(!place.killed(6, &revert));
    bytes("write", 0x44, &image);
    place.done(&["recover", "--yes"]);
    assert!(holds(0x11, &image));
    // Somebody starts it between the question and the deed.
    let (code, out, err) = place
        .halted(4, &revert, |_| drop(place.virsh(&["start", "sa"])))
        .expect("it is halted before it begins");
    assert!(code == 1 && err.contains("somebody has started it"), "{code}: {out}{err}");
    assert_eq!(place.virsh(&["domstate", "sa"]).trim(), "running");
}

#[test]
fn a_name_that_is_free_again_brings_no_second_mac_address() {
    let Some(place) = Place::new() else { return };
    let mac = |name: &str| {
        let listed = place.virsh(&["domiflist", name]);
        listed.split_whitespace().last().unwrap().to_owned()
    };
    with_image(&place, "ma");
    let first = mac("ma");
    place.done(&["rename", "ma", "mb"]);
    with_image(&place, "ma2");
    let image = place.disks.join("new.qcow2").to_str().unwrap().to_owned();
    qemu("qemu-img", &["create", "-f", "qcow2", &image, "8M"]);
    place.done(&place.create("ma", &["--no-start", "--disk", &image]));
    assert!(mac("mb") == first && mac("ma") != first, "{first}");
    // One that others have defined so.
    let file = place.disks.join("ma.xml");
    let xml = place.virsh(&["dumpxml", "--inactive", "ma"]).replace(&mac("ma"), &first);
    std::fs::write(&file, xml).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    let (_, out, err) = place.gpuvm(&["check", "ma"]);
    let said = format!("an interface of domain `mb` (defined) has {first}, too");
    assert!(out.contains(&said) || err.contains(&said), "{out}{err}");
    place.virsh(&["start", "mb"]);
    let (code, out, err) = place.gpuvm(&["check", "ma"]);
    assert!(code == 3 && format!("{out}{err}").contains("mac-twice"), "{code}: {out}{err}");
    place.virsh(&["destroy", "mb"]);
}

#[test]
fn a_snapshot_whose_name_is_the_id_of_another_is_not_mistaken_for_it() {
    let Some(place) = Place::new() else { return };
    let image = with_image(&place, "sn");
    refused(&place, &["snapshot", "create", "sn", "2"], &["is a number", "create sn s2`"]);
    // One that others have made, whose id in the image is 1.
    bytes("write", 0x11, &image);
    place.virsh(&["snapshot-create-as", "sn", "2"]);
    bytes("write", 0x22, &image);
    place.done(&["snapshot", "create", "sn", "b"]);
    bytes("write", 0x33, &image);
    let revert = ["snapshot", "revert", "sn", "2", "--yes"];
    let way = format!("`qemu-img snapshot -a 1 {image}` reverts");
    refused(&place, &revert, &["has snapshot `b` with the id 2", &way]);
    assert!(holds(0x33, &image), "a refused revert changed the disk");
    qemu("qemu-img", &["snapshot", "-a", "1", &image]);
    assert!(holds(0x11, &image));
    place.done(&["snapshot", "revert", "sn", "b", "--yes"]);
    assert!(holds(0x22, &image));
    place.done(&["snapshot", "delete", "sn", "2", "--yes"]);
    let left = qemu("qemu-img", &["snapshot", "-l", &image]);
    assert!(left.lines().skip(2).count() == 1 && left.contains(" b "), "{left}");
}
