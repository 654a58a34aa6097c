//! Answers that must not follow from the driver's list of the moment alone: beside a vGPU it shows
//! one size, and nothing of cards whose functions are off.

use super::{
    Card, H200, ONLY_18C, card, exported, foreign, h200, holds, slots, types, vgpus, whole,
};
use crate::support::tree::Small;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;

const SMALL: [&str; 4] = ["--vcpus", "2", "--memory", "256M"];

/// One card of such ids with 16 functions, of which the first has a vGPU of 18C or not.
fn one(ids: &'static str, is_set: bool) -> Small {
    let host = Small::new(1, 16);
    let card = Card { host: &host, bus: "3b", ids: (ids, ids), driver: "nvidia", total: 16 };
    let vfs = slots(16);
    card.add(&vfs, Some("nvidia"));
    for (at, slot) in vfs.iter().enumerate() {
        let (current, types) = match (is_set, at) {
            (true, 0) => (1437, "ID    : vGPU Name"),
            (true, _) => (0, ONLY_18C),
            (false, _) => (0, H200),
        };
        card.vfio(slot, current, types);
    }
    host
}

/// Runs the first command of a hint.
fn hinted(err: &str) -> (i32, String, String) {
    let (_, hint) = err.split_once("hint: `gpuvm ").unwrap_or_else(|| panic!("{err}"));
    let (command, _) = hint.split_once('`').unwrap();
    let words: Vec<&str> = command.split(' ').collect();
    crate::support::run(&mut crate::support::gpuvm(&words))
}

/// Ids of an H200, and of a model that is not listed.
const IDS: &str = "0302 10de:2335";
const UNLISTED: &str = "0302 10de:fff0";

#[test]
fn one_vgpu_does_not_fill_the_only_card_of_its_model() {
    let host = one(IDS, true);
    let row = card(&host, "0000:3b:00.0");
    assert_eq!(
        (types(&row), &row["types"][0]["max_instances"]),
        (vec![("H200X-18C", 7, 1)], &json!(8))
    );
    let seven = host.json(&[&["plan", "--vgpu", "H200X-18C,count=7"][..], &SMALL].concat());
    assert_eq!(vgpus(&seven).len(), 7);
    holds(host.run(&["plan", "--vgpu", "H200X-18C,count=8"]), 1, &["requested 8", "7 available"]);
    assert_eq!(host.json(&["capacity"])["vgpus"][0]["creatable"], 7);
    let conf = ["slurm", "conf", "--node-name", "n", "--vgpu", "H200X-18C"];
    holds(host.run(&conf), 0, &["Type=h200x_18c Count=8"]);
    // Its part of the node is that of an empty card.
    let vcpus = |host: &Small| {
        let plan = host.json(&["plan", "--vgpu", "H200X-18C"]);
        plan["placement"]["vcpu_pins"].as_array().unwrap().len()
    };
    assert_eq!(vcpus(&host), vcpus(&one(IDS, false)));
    // Its guest gets another one beside it.
    let empty = one(IDS, false);
    let file = exported(&empty, "H200X-18C");
    let two = ["set", file.as_str(), "--vgpu", "H200X-18C,count=2"];
    holds(host.run(&two), 0, &["\"count\":2", "bdf='0000:3b:00.5'"]);
    // A card without room for another one still has those that exist.
    let full = h200(8);
    assert_eq!(types(&card(&full, "0000:3b:00.0")), [("H200X-18C", 0, 8)]);
    holds(full.run(&conf), 0, &["Type=h200x_18c Count=16"]);
}

#[test]
fn a_card_of_unknown_memory_is_limited_by_its_functions_or_its_bar() {
    let host = one(UNLISTED, true);
    let row = card(&host, "0000:3b:00.0");
    assert_eq!(types(&row), [("H200X-18C", 15, 1)]);
    assert_eq!(row["types"][0]["max_instances"], Value::Null);
    holds(host.run(&["plan", "--vgpu", "H200X-18C"]), 0, &["H200X-18C on 0000:3b:00.0"]);
    let dir = "sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0";
    let bar = |last: &str| {
        let none = "0x0000000000000000 0x0000000000000000 0x0000000000000000";
        let text = format!("{none}\n0x0000380000000000 {last} 0x000000000014220c");
        host.write(&format!("{dir}/resource"), &text);
        types(&card(&host, "0000:3b:00.0"))[0].1
    };
    // 64 GiB, and a window of 16 GiB that does not even show the existing one.
    assert_eq!([bar("0x0000380fffffffff"), bar("0x00003803ffffffff")], [2, 15]);
}

#[test]
fn vgpus_in_an_unknown_number_of_instances_fit_into_the_memory_at_least() {
    let host = Small::new(1, 16);
    let ids = ("0302 10de:2bb5", "0302 10de:2bb5");
    let six = Card { host: &host, bus: "41", ids, driver: "nvidia", total: 48 };
    let vfs = slots(48);
    six.add(&vfs, Some("nvidia"));
    let offered = "1601 : NVIDIA RTX Pro 6000 Blackwell DC-1-2Q\n\
                   1602 : NVIDIA RTX Pro 6000 Blackwell DC-2-48Q";
    vfs.iter().for_each(|slot| six.vfio(slot, 0, offered));
    let plan = |vgpu: &'static str| host.run(&[&["plan", "--vgpu", vgpu][..], &SMALL].concat());
    holds(plan("DC-2-48Q,count=8"), 1, &["requested 8", "2 available", "GPU instances unknown"]);
    holds(plan("DC-2-48Q,count=2"), 0, &["! vgpus", "GPU instances of MIG 0000:41:00.0 has"]);
    let left = host.json(&["capacity"]);
    let of = &left["vgpus"][1];
    assert_eq!((&of["creatable"], &of["unknown_instances"]), (&json!(2), &json!(true)), "{left}");
    let said = "at most: RTX Pro 6000 Blackwell DC-";
    holds(host.run(&["capacity"]), 0, &[said, "GPU instances of MIG is unknown"]);
    let counted = [&["capacity", "--vgpu", "DC-2-48Q"][..], &SMALL].concat();
    holds(host.run(&counted), 0, &[said]);
    let conf = ["slurm", "conf", "--node-name", "n", "--vgpu", "DC-2-48Q"];
    holds(host.run(&conf), 0, &["# at most: ", "dc_2_48q Count=2"]);
    assert!(host.json(&conf)["doubts"][0].to_string().contains("DC-2-48Q"));
    let known = h200(0);
    let (_, out, _) = known.run(&["capacity"]);
    assert!(!out.contains("at most"), "{out}");
    assert_eq!(known.json(&["slurm", "conf", "--vgpu", "H200X-18C"])["doubts"], Value::Null);
}

/// An H200 with functions on NVIDIA's VFIO driver, and one without functions.
fn mixed() -> Small {
    let host = one(IDS, false);
    Card { host: &host, bus: "5e", ids: (IDS, ""), driver: "nvidia", total: 16 }.add(&[], None);
    host
}

#[test]
fn a_card_without_functions_hides_neither_its_guest_nor_the_types_of_others() {
    let host = mixed();
    let on = "`gpuvm vgpu vfs 0000:5e:00.0 --on`";
    let lines = ["types by GPU", "0000:3b:00.0: H200X-141C, H200X-70C", "0000:5e:00.0: not known"];
    holds(host.run(&["plan", "--vgpu", "nosuch"]), 1, &[&lines[..], &[on]].concat());
    let here = ["plan", "--vgpu", "H200X-18C,gpu=5e:00.0"];
    holds(host.run(&here), 1, &["no virtual functions", on]);
    let file = whole(&host, "5e");
    let (code, out, err) = host.run(&[&here[..], &["--domain-xml", &file]].concat());
    assert!(!err.contains("vgpu vfs"), "{err}");
    let held = "0000:5e:00.0 is held by domain `whole`, as a whole";
    holds((code, out, err), 1, &["0 available", held, "hint: `gpuvm delete whole`"]);
    // So is a card with functions.
    let file = whole(&host, "3b");
    let here = ["plan", "--vgpu", "H200X-18C,gpu=0", "--domain-xml", &file];
    holds(host.run(&here), 1, &["0000:3b:00.0 is held by", "hint: `gpuvm delete whole`"]);
}

#[test]
fn devices_without_vgpus_are_named_with_their_remedy() {
    let host = Small::new(1, 16);
    for (bus, ids, driver, slot) in [
        ("11", ("1200 1002:74a1", "1200 1002:74b5"), "gim", "02.0"),
        ("3b", ("0380 8086:56c0", "0380 8086:56c0"), "i915", "00.1"),
    ] {
        Card { host: &host, bus, ids, driver, total: 8 }.add(&[slot.to_owned()], None);
        let function = format!("0000:{bus}:{slot}");
        let itself = format!("--gpu {function}` plans a guest with the function itself");
        for (at, said) in [
            (
                function.clone(),
                format!("is a virtual function of 0000:{bus}:00.0, whose driver has no vGPU types"),
            ),
            (format!("{bus}:00.0"), format!("0000:{bus}:00.0 has no vGPUs")),
        ] {
            let refused = host.run(&["plan", "--vgpu", &format!("x,gpu={at}")]);
            holds(refused, 1, &[&said, &itself]);
        }
        let refused = host.run(&["plan", "--vgpu", &format!("x,gpu={function}")]);
        holds(hinted(&refused.2), 0, &[&function]);
    }
    let absent = host.run(&["plan", "--vgpu", "x,gpu=3b:09.0"]);
    holds(absent, 1, &["this host has no function 0000:3b:09.0", "gpuvm vgpu list"]);
    let bridge = host.run(&["plan", "--vgpu", "x,gpu=3a:01.0"]);
    holds(bridge, 1, &["0000:3a:01.0 is not a GPU"]);
}

#[test]
fn a_guest_changes_from_whole_gpus_to_vgpus_and_back() {
    let host = mixed();
    let (code, xml, err) = host.run(&["export", "--gpus", "1", "--name", "a"]);
    assert_eq!(code, 0, "{err}");
    let file = host.path().join("whole.xml");
    fs::write(&file, xml).unwrap();
    let file = file.to_str().unwrap();
    let set = |file: &str, more: &[&str]| host.run(&[&["set", file][..], more].concat());
    let both = "a guest has whole GPUs or vGPUs, not both";
    let refused = set(file, &["--vgpu", "H200X-18C"]);
    holds(refused.clone(), 1, &[both, "--gpus 0 --vgpu H200X-18C` replaces its whole GPUs"]);
    let made = hinted(&refused.2);
    holds(made.clone(), 0, &["ua-vgpu0", "gpuvm:vgpus"]);
    assert!(!made.1.contains("ua-gpu0"), "{}", made.1);
    let shared = host.path().join("shared.xml");
    fs::write(&shared, made.1).unwrap();
    let shared = shared.to_str().unwrap();
    let refused = set(shared, &["--gpus", "1"]);
    holds(refused.clone(), 1, &[both, "--gpus 1 --no-vgpu` replaces its vGPUs"]);
    let (code, back, err) = hinted(&refused.2);
    assert_eq!(code, 0, "{err}");
    assert!(back.contains("ua-gpu0") && !back.contains("vgpu"), "{back}");
    let parts = ["--vgpu cannot be used with --gpus 2", "--gpus 2 --no-vgpu`"];
    holds(set(file, &["--gpus", "2", "--vgpu", "H200X-18C"]), 2, &parts);
    // In the other verbs it means the same as --vgpu alone.
    let plan = ["plan", "--vgpu", "H200X-18C", "--name", "a"];
    assert_eq!(host.json(&[&plan[..], &["--gpus", "0"]].concat()), host.json(&plan));
}

/// H200s of which only those on `with` have virtual functions, as after a restart of the host.
fn restarted(with: &[&str]) -> Small {
    let host = Small::new(1, 16);
    for bus in ["3b", "5e"] {
        let card = Card { host: &host, bus, ids: (IDS, IDS), driver: "nvidia", total: 16 };
        let vfs = if with.contains(&bus) { slots(16) } else { Vec::new() };
        card.add(&vfs, Some("nvidia"));
        vfs.iter().for_each(|slot| card.vfio(slot, 0, H200));
    }
    host
}

#[test]
fn a_guest_loses_its_vgpu_while_the_host_has_no_functions() {
    let empty = h200(0);
    let file = exported(&empty, "H200X-18C");
    let off = restarted(&[]);
    let set = |host: &Small, more: &[&str]| {
        let (code, out, err) = host.run(&[&["set", file.as_str()][..], more].concat());
        assert_eq!(code, 0, "{more:?}: {err}");
        out
    };
    let none = set(&off, &["--no-vgpu"]);
    for gone in ["<hostdev", "gpuvm:vgpus", "0000:3b:00.4", "\"vgpu\""] {
        assert!(!none.contains(gone), "{gone}: {none}");
    }
    let (_, _, said) = off.run(&["set", &file, "--no-vgpu", "--diff"]);
    assert!(!said.contains("gpus:"), "{said}");
    let whole = set(&off, &["--gpus", "1", "--no-vgpu"]);
    assert_eq!((whole.matches("<hostdev").count(), whole.contains("ua-gpu0")), (1, true));
    assert!(!whole.contains("vgpu"), "{whole}");
    // The other card has its functions again.
    let half = restarted(&["5e"]);
    let moved = set(&half, &["--vgpu", "H200X-18C,gpu=1"]);
    assert_eq!(moved.matches("<hostdev").count(), 1, "{moved}");
    assert!(moved.contains("bdf='0000:5e:00.4'") && !moved.contains("0000:3b:00.4"), "{moved}");
}

#[test]
fn a_domain_of_others_loses_vgpus_and_gets_none_that_nothing_sets_up() {
    let host = mixed();
    let file = foreign(&host, "share", ("3b", 4));
    let set = |more: &[&str]| host.run(&[&["set", file.as_str()][..], more].concat());
    let refused = set(&["--vgpu", "H200X-70C"]);
    let hint = "`gpuvm create --name share-vgpu --vgpu H200X-70C` on that machine makes a guest";
    holds(refused, 1, &["--vgpu: gpuvm did not make the guest", hint]);
    let (code, none, err) = set(&["--no-vgpu"]);
    assert_eq!((code, none.contains("<hostdev")), (0, false), "{none}{err}");
    let refused = set(&["--gpus", "1"]);
    holds(refused.clone(), 1, &["--gpus 1 --no-vgpu` replaces its vGPUs"]);
    let (code, whole, err) = hinted(&refused.2);
    assert_eq!((code, whole.matches("<hostdev").count()), (0, 1), "{whole}{err}");
    assert!(whole.contains("ua-gpu0"), "{whole}");
    // A mediated device, too.
    let mediated = fs::read_to_string(&file).unwrap().replace("type='pci'", "type='mdev'");
    let (before, rest) = mediated.split_once("<address").unwrap();
    let (_, after) = rest.split_once("/>").unwrap();
    let uuid = "6ab1f0c4-44aa-4d06-8b4e-9cf1c0f0ce6b";
    fs::write(&file, format!("{before}<address uuid='{uuid}'/>{after}")).unwrap();
    let (code, none, err) = set(&["--no-vgpu"]);
    assert_eq!((code, none.contains(uuid)), (0, false), "{none}{err}");
    // Without any there is nothing to do.
    let bare = host.path().join("bare.xml");
    fs::write(&bare, none).unwrap();
    let again = host.run(&["set", bare.to_str().unwrap(), "--no-vgpu", "--diff"]);
    assert_eq!((again.0, again.1.as_str()), (0, ""), "{}", again.2);
}

/// The definition of a guest with this vGPU beside others, which is off.
fn beside(host: &Small, (name, vgpu): (&str, &str), others: &[String]) -> String {
    let mut words = vec!["export", "--name", name, "--vgpu", vgpu, "--pins", "none"];
    words.extend(SMALL);
    others.iter().for_each(|file| words.extend(["--domain-xml", file.as_str()]));
    let (code, xml, err) = host.run(&words);
    assert_eq!(code, 0, "{err}");
    let file = host.path().join(format!("{name}.xml"));
    fs::write(&file, xml).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn vgpus_move_to_another_card_to_make_room() {
    let host = h200(0);
    let file = beside(&host, ("a", "H200X-18C"), &[]);
    let room = ["make-room", "--vgpu", "H200X-141C,gpu=0", "--domain-xml", &file, "--dry-run"];
    let on = |more: &[&str]| host.run(&[&room[..], &SMALL, more].concat());
    holds(on(&[]), 1, &["no guest may be moved", "--allow-stop a` moves `a`"]);
    let moved = ["move `a`, which is off, from GPU 0 to GPU 1", "on that machine has room"];
    holds(on(&["--allow-stop", "a"]), 0, &moved);
    // Its type is still set: it is cleared by the move.
    let set = h200(1);
    let room = [&room[..], &SMALL, &["--allow-stop", "a"]].concat();
    holds(set.run(&room), 0, &moved);
}

#[test]
fn capacity_advises_the_moves_of_vgpus_that_make_room_makes() {
    let host = Small::new(1, 16);
    for bus in ["3b", "5e"] {
        let t4 = Card { host: &host, bus, ids: ("0302 10de:1eb8", ""), driver: "nvidia", total: 0 };
        t4.add(&[], None);
        t4.mdev_of("00.0", ("nvidia-222", "GRID T4-4Q"), 4, (4096, 4));
        t4.mdev_of("00.0", ("nvidia-224", "GRID T4-16Q"), 1, (16384, 1));
    }
    let first = beside(&host, ("a", "T4-4Q,gpu=0"), &[]);
    let on = |verb: &[&str], second: &str| {
        let files = ["--domain-xml", first.as_str(), "--domain-xml", second];
        host.run(&[verb, &files, &SMALL].concat())
    };
    let capacity = ["capacity", "--gpus", "1"];
    let room = ["make-room", "--gpus", "1", "--allow-stop", "a", "--allow-stop", "b"];
    let small = beside(&host, ("b", "T4-4Q,gpu=1"), std::slice::from_ref(&first));
    holds(
        on(&capacity, &small),
        0,
        &["plan `a` (1 vGPU, it is off) again at GPU 1: then GPU 0 is"],
    );
    holds(on(&room, &small), 0, &["move `a`, which is off, from GPU 0 to GPU 1", "has room"]);
    // Beside a vGPU of the whole card there is no place.
    let large = beside(&host, ("b", "T4-16Q,gpu=1"), std::slice::from_ref(&first));
    holds(on(&capacity, &large), 0, &["(1 vGPU, it is off), which fits nowhere else"]);
    holds(on(&room, &large), 1, &["no moves of the 2 guests that may be moved make room"]);
    // What gpuvm did not set up stays.
    let text = fs::read_to_string(&first).unwrap();
    let (before, rest) = text.split_once("<metadata>").unwrap();
    let (_, after) = rest.split_once("</metadata>").unwrap();
    fs::write(&first, format!("{before}{after}")).unwrap();
    holds(on(&room, &small), 1, &["domain `a` cannot be moved: it has a vGPU that gpuvm did not"]);
}

#[test]
fn the_only_vgpu_of_a_card_counts_as_cleared_for_its_guest() {
    let empty = one(IDS, false);
    let file = exported(&empty, "H200X-18C");
    let set = |host: &Small, vgpu: &'static str| host.run(&["set", &file, "--vgpu", vgpu]);
    // The driver of this host lists no type of another size, so that its number is not known.
    let host = one(IDS, true);
    for vgpu in ["H200X-141C", "1428"] {
        let refused = set(&host, vgpu);
        holds(refused.clone(), 1, &["types by GPU", "--no-vgpu` clears", "then `gpuvm set"]);
        holds(hinted(&refused.2), 0, &["<domain"]);
    }
    holds(set(&host, "A16-4Q"), 1, &["hint: `gpuvm vgpu list", "shows the types"]);
    // Another card of the model lists it, and has it itself unless a card is named.
    let host = h200(1);
    holds(set(&host, "H200X-141C"), 0, &["bdf='0000:5e:00.4'", "type='1428'"]);
    let own = "bdf='0000:3b:00.4' card='0000:3b:00.0' type='1428' name='H200X-141C'";
    holds(set(&host, "H200X-141C,gpu=3b:00.0"), 0, &[own]);
    holds(set(&host, "H200X-70C,gpu=0,count=2"), 0, &["type='1430'"]);
    holds(set(&host, "H200X-70C,gpu=0,count=3"), 1, &["2 available"]);
    // Beside vGPUs of others the card has their size.
    let two = h200(2);
    holds(set(&two, "H200X-141C,gpu=0"), 1, &["0000:3b:00.0: H200X-18C"]);
    // The same type by another name is no change.
    for vgpu in ["h200x-18c", "1437", "NVIDIA H200X-18C"] {
        let (code, out, err) = host.run(&["set", &file, "--vgpu", vgpu, "--diff"]);
        assert_eq!((code, out.as_str()), (0, ""), "{err}");
    }
}

#[test]
fn a_mediated_device_of_the_guest_itself_leaves_room_for_others() {
    let host = Small::new(1, 16);
    let t4 =
        Card { host: &host, bus: "3b", ids: ("0302 10de:1eb8", ""), driver: "nvidia", total: 0 };
    t4.add(&[], None);
    let left = |small: u32, large: u32| {
        t4.mdev_of("00.0", ("nvidia-222", "GRID T4-4Q"), small, (4096, 4));
        t4.mdev_of("00.0", ("nvidia-223", "GRID T4-8Q"), large, (8192, 2));
    };
    left(4, 2);
    let file = exported(&host, "T4-4Q");
    let xml = fs::read_to_string(&file).unwrap();
    let (_, rest) = xml.split_once("<address uuid='").unwrap();
    let (uuid, _) = rest.split_once('\'').unwrap();
    let device = |uuid: &str| {
        let dir = t4.at("00.0").join(uuid);
        fs::create_dir_all(&dir).unwrap();
        symlink("../mdev_supported_types/nvidia-222", dir.join("mdev_type")).unwrap();
    };
    // Beside it the driver offers no other size.
    device(uuid);
    left(3, 0);
    let set = |vgpu: &'static str| host.run(&["set", &file, "--vgpu", vgpu]);
    holds(set("T4-8Q,count=2"), 0, &["type='nvidia-223'"]);
    holds(set("T4-4Q,count=4"), 0, &["\"count\":4"]);
    holds(set("T4-4Q,count=5"), 1, &["4 available"]);
    device("00000000-0000-4000-8000-000000000001");
    left(2, 0);
    holds(set("T4-8Q"), 1, &["0 available"]);
    holds(set("T4-4Q,count=3"), 0, &["\"count\":3"]);
}
