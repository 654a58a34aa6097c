//! vGPUs: trees of every generation, rebuilt from their documentation, and gpuvm's answers for
//! them. No machine of the tests has such a card. The cases that must hold, each with its tests;
//! `vdgx` are scripts of tests/vdgx/tests:
//!
//! - 48 functions without the host driver are one card:
//!   [`virtual_functions_without_the_host_driver_are_no_cards`]
//! - GIM's eight functions are the cards, and no PF:
//!   [`functions_of_other_makers_are_recognised_by_their_driver`]
//! - nine of 18C are eight on a card and one on the next; 141C beside an 18C is on another card:
//!   [`a_vgpu_is_planned_on_the_fullest_card_with_its_part_of_the_node`],
//!   `live::two_guests_on_one_card_have_vgpus_of_one_size`; vdgx vgpu.sh
//! - a create killed after the write leaves no type:
//!   `live::a_create_with_a_vgpu_killed_at_any_record_leaves_nothing`; vdgx vgpu.sh
//! - a foreign type is never cleared: `live::a_type_that_another_has_set_is_never_cleared`; vdgx
//!   vgpu.sh
//! - a delete while a process has the function names it:
//!   `live::a_type_is_not_cleared_while_a_process_has_the_function_open`; vdgx vgpu.sh
//! - a reboot makes the functions and a start the type:
//!   `live::a_guest_gets_its_vgpu_has_it_after_a_restart_of_the_host_and_gives_it_back`; vdgx
//!   vgpuboot.sh
//! - 24 devices of mtty and one more: [`the_last_mediated_device_is_followed_by_a_refusal`]; vdgx
//!   vgpu.sh
//! - sriov-manage leaves the card unbound once:
//!   `a_card_that_the_script_leaves_unbound_is_bound_and_tried_again` of gpuvm-host; vdgx vgpu.sh
//! - cards of no partition: `board::sets_that_are_no_partition_are_refused_with_those_that_exist`

mod board;
mod known;
mod live;

use crate::support::tree::Small;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A card below a root port of its own, with this many virtual functions from `first` on.
struct Card<'h> {
    host: &'h Small,
    bus: &'static str,
    /// Class and ids of the card, and ids of its virtual functions.
    ids: (&'static str, &'static str),
    driver: &'static str,
    total: u32,
}

impl Card<'_> {
    fn place(&self, slot: &str) -> String {
        format!("{}/0000:{}:{slot}", self.port(), self.bus)
    }

    /// The place of its root port, on the bus before its own.
    fn port(&self) -> String {
        let root = u8::from_str_radix(self.bus, 16).unwrap() - 1;
        format!("pci0000:{root:02x}/0000:{root:02x}:01.0")
    }

    fn dir(&self, slot: &str) -> String {
        format!("sys/devices/{}", self.place(slot))
    }

    /// Adds it with its virtual functions; `driver`: of these.
    fn add(&self, vfs: &[String], driver: Option<&str>) -> &Self {
        let Card { host, bus, ids: (ids, vf_ids), total, .. } = self;
        let group = u32::from_str_radix(bus, 16).unwrap() * 100;
        host.function(&self.port(), "0604 8086:347a", group, &[]);
        let (total, enabled) = (total.to_string(), vfs.len().to_string());
        let files = [("sriov_totalvfs", &*total), ("sriov_numvfs", &*enabled)];
        host.function(&self.place("00.0"), ids, group + 1, &files);
        self.bind("00.0", self.driver);
        for (number, slot) in (2..).zip(vfs) {
            host.function(&self.place(slot), vf_ids, group + number, &[]);
            symlink("../0000:".to_owned() + bus + ":00.0", self.at(slot).join("physfn")).unwrap();
            let name = format!("virtfn{}", number - 2);
            symlink(format!("../0000:{bus}:{slot}"), self.at("00.0").join(name)).unwrap();
            driver.iter().for_each(|driver| self.bind(slot, driver));
        }
        self
    }

    fn at(&self, slot: &str) -> std::path::PathBuf {
        self.host.path().join(self.dir(slot))
    }

    fn bind(&self, slot: &str, driver: &str) {
        let drivers = self.host.path().join("sys/bus/pci/drivers").join(driver);
        fs::create_dir_all(&drivers).unwrap();
        symlink(
            Path::new("../../../../bus/pci/drivers").join(driver),
            self.at(slot).join("driver"),
        )
        .unwrap();
    }

    /// Gives a function the files of NVIDIA's VFIO driver.
    fn vfio(&self, slot: &str, current: u32, creatable: &str) {
        let dir = self.dir(slot);
        self.host.write(&format!("{dir}/nvidia/current_vgpu_type"), &current.to_string());
        self.host.write(&format!("{dir}/nvidia/creatable_vgpu_types"), creatable);
    }

    /// Gives a function a type of mediated devices of 4 GiB, of which a card has ten.
    fn mdev(&self, slot: &str, id: &str, name: &str, available: u32) {
        self.mdev_of(slot, (id, name), available, (4096, 10));
    }

    /// Gives a function a type of mediated devices with this frame buffer, in MiB, of which a card
    /// has so many.
    fn mdev_of(&self, slot: &str, (id, name): (&str, &str), available: u32, size: (u32, u32)) {
        let dir = format!("{}/mdev_supported_types/{id}", self.dir(slot));
        self.host.write(&format!("{dir}/name"), name);
        self.host.write(&format!("{dir}/available_instances"), &available.to_string());
        self.host.write(&format!("{dir}/device_api"), "vfio-pci");
        let (mib, most) = size;
        let text = format!(
            "num_heads=1, frl_config=60, framebuffer={mib}M, max_resolution=4096x2160, \
             max_instance={most}"
        );
        self.host.write(&format!("{dir}/description"), &text);
    }
}

/// Slots of virtual functions, eight to a device, from 00.4 on as NVIDIA's cards have them.
fn slots(number: usize) -> Vec<String> {
    (4..4 + number).map(|at| format!("{:02x}.{}", at / 8, at % 8)).collect()
}

/// The types of an H200 with no vGPU.
const H200: &str = "ID    : vGPU Name\n1428  : NVIDIA H200X-141C\n1430  : NVIDIA H200X-70C\n\
                    1437  : NVIDIA H200X-18C";
/// The remaining types beside one of 18C.
const ONLY_18C: &str = "ID    : vGPU Name\n1437  : NVIDIA H200X-18C";

/// Two H200s on one node with VFs on NVIDIA's VFIO driver; the first has `set` vGPUs of 18C.
fn h200(set: usize) -> Small {
    let host = Small::new(1, 16);
    for (bus, set) in [("3b", set), ("5e", 0)] {
        let ids = ("0302 10de:2335", "0302 10de:2335");
        let card = Card { host: &host, bus, ids, driver: "nvidia", total: 16 };
        let vfs = slots(16);
        card.add(&vfs, Some("nvidia"));
        for (at, slot) in vfs.iter().enumerate() {
            let (current, types) = match () {
                () if at < set => (1437, "ID    : vGPU Name"),
                () if set >= 8 => (0, "ID    : vGPU Name"),
                () if set > 0 => (0, ONLY_18C),
                () => (0, H200),
            };
            card.vfio(slot, current, types);
        }
    }
    host
}

/// The row of a card in `vgpu list`.
fn card(host: &Small, bdf: &str) -> Value {
    let rows = host.json(&["vgpu", "list"]);
    let row = rows.as_array().unwrap().iter().find(|row| row["bdf"] == bdf);
    row.unwrap_or_else(|| panic!("{rows}")).clone()
}

/// Name, creatable and in use of each type of a card.
fn types(card: &Value) -> Vec<(&str, u64, u64)> {
    let of = |of: &'_ Value| (of["creatable"].as_u64().unwrap(), of["in_use"].as_u64().unwrap());
    let all = card["types"].as_array().unwrap().iter();
    all.map(|one| (one["name"].as_str().unwrap(), of(one).0, of(one).1)).collect()
}

/// Checks that an answer has this exit code and holds these texts.
#[track_caller]
fn holds((code, out, err): (i32, String, String), wanted: i32, parts: &[&str]) {
    let text = out + &err;
    assert_eq!(code, wanted, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn types_of_the_vendors_vfio_driver_are_listed_with_what_fits() {
    let host = h200(0);
    let empty = card(&host, "0000:3b:00.0");
    assert_eq!((&empty["interface"], &empty["enabled_vfs"]), (&json!("vfio"), &json!(16)));
    let all = [("H200X-141C", 1, 0), ("H200X-70C", 2, 0), ("H200X-18C", 8, 0)];
    assert_eq!(types(&empty), all);
    assert_eq!(empty["vgpus"], json!([]));
    assert_eq!(empty["vfs"][0]["kind"], "free-slot");
    let host = h200(3);
    let used = card(&host, "0000:3b:00.0");
    // The driver offers no other size, which the other card still does.
    assert_eq!(types(&used), [("H200X-18C", 5, 3)]);
    assert_eq!(types(&card(&host, "0000:5e:00.0")), all);
    let vgpu = &used["vgpus"][0];
    let expected = json!({ "function": "0000:3b:00.4", "type_id": "1437", "name": "H200X-18C",
        "domains": [] });
    assert_eq!(*vgpu, expected);
    assert_eq!(used["vfs"][0]["kind"], "vgpu");
    holds(host.run(&["vgpu", "list"]), 0, &["unknown holder", "H200X-141C", "16 of 16 VFs"]);
    holds(host.run(&["gpu", "list"]), 0, &["vfio, 3 x H200X-18C", "has 16 virtual functions"]);
    let gpu = &host.json(&["gpu", "list"])[0];
    let shared = json!({ "interface": "vfio", "vfs": 16, "vgpus": { "H200X-18C": 3 } });
    assert_eq!(gpu["vgpu"], shared);
    let shown = ["2 GPUs", "0000:3b:00.0 by vfio: 3 x H200X-18C", "0000:5e:00.0 by vfio: none"];
    holds(host.run(&["host", "show"]), 0, &shown);
    holds(host.run(&["host", "show", "--all"]), 0, &["vGPU H200X-18C"]);
    let full = card(&h200(8), "0000:3b:00.0");
    let eight = vec![("H200X-18C", 0, 8)];
    assert_eq!((types(&full), full["vgpus"].as_array().unwrap().len()), (eight, 8));
    // Names are those of another card of the model.
    assert_eq!(full["vgpus"][7]["name"], "H200X-18C");
}

#[test]
fn a_card_with_virtual_functions_goes_to_no_guest_as_a_whole() {
    let host = h200(1);
    holds(host.run(&["plan", "--gpus", "1"]), 1, &["have 16 virtual functions enabled"]);
    let (vgpu, slot) = ("with a vGPU type", "without a vGPU type");
    holds(host.run(&["plan", "--gpu", "3b:00.4"]), 1, &[vgpu]);
    holds(host.run(&["plan", "--gpu", "3b:00.5"]), 1, &[slot]);
    holds(host.run(&["export", "--gpu", "3b:00.5", "--name", "a"]), 1, &[slot]);
}

#[test]
fn a_record_keeps_what_was_read_of_vgpus() {
    let host = h200(3);
    let record = host.path().join("record.json");
    let (code, out, err) = host.run(&["host", "capture", record.to_str().unwrap()]);
    assert_eq!(code, 0, "{out}{err}");
    let record = record.to_str().unwrap();
    let (code, out, err) = crate::support::run(
        crate::support::gpuvm(&["vgpu", "list", "--json"]).args(["--host", record]),
    );
    assert_eq!(code, 0, "{err}");
    let rows: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(rows, host.json(&["vgpu", "list"]));
}

/// An RTX PRO 6000 with 48 unprepared VFs: one card, not 49.
#[test]
fn virtual_functions_without_the_host_driver_are_no_cards() {
    let host = Small::new(1, 16);
    let ids = ("0302 10de:2bb5", "0302 10de:2bb5");
    let six = Card { host: &host, bus: "41", ids, driver: "nvidia", total: 48 };
    six.add(&slots(48), None);
    holds(host.run(&["host", "show"]), 0, &["1 GPU (", "48 virtual functions of GPUs"]);
    let capacity = host.json(&["capacity"]);
    assert_eq!(capacity["largest"], Value::Null, "{capacity}");
    holds(host.run(&["export", "--gpus", "1", "--name", "a"]), 1, &["has 48 virtual functions"]);
    holds(host.run(&["plan", "--gpu", "41:00.4"]), 1, &["of 0000:41:00.0 without a vGPU type"]);
    let bound = Small::new(1, 16);
    Card { host: &bound, ..six }.add(&slots(2), Some("vfio-pci"));
    holds(bound.run(&["plan", "--gpu", "41:00.4"]), 1, &["without a vGPU type"]);
    holds(bound.run(&["plan", "--gpus", "1"]), 1, &["has 2 virtual functions"]);
    assert_eq!(host.json(&["vgpu", "list"]), json!([]));
    assert_eq!(host.json(&["gpu", "list"]).as_array().unwrap().len(), 1);
}

#[test]
fn names_with_blanks_and_mig_backed_types_are_kept() {
    let host = Small::new(1, 16);
    let ids = ("0302 10de:2bb5", "0302 10de:2bb5");
    let six = Card { host: &host, bus: "41", ids, driver: "nvidia", total: 48 };
    let vfs = slots(48);
    six.add(&vfs, Some("nvidia"));
    let types = "1601 : NVIDIA RTX Pro 6000 Blackwell DC-1-2Q\n\
                 1622 : NVIDIA RTX Pro 6000 Blackwell DC-96Q";
    vfs.iter().for_each(|slot| six.vfio(slot, 0, types));
    let card = card(&host, "0000:41:00.0");
    let all = [("RTX Pro 6000 Blackwell DC-1-2Q", 48, 0), ("RTX Pro 6000 Blackwell DC-96Q", 1, 0)];
    assert_eq!(self::types(&card), all);
    assert_eq!(
        (&card["types"][0]["mig_backed"], &card["types"][1]["mig_backed"]),
        (&json!(true), &json!(false))
    );
}

#[test]
fn mediated_devices_are_counted_below_a_card_and_below_its_functions() {
    // Turing: at the card.
    let host = Small::new(1, 8);
    let turing = ("0302 10de:1eb8", "");
    let t4 = Card { host: &host, bus: "3b", ids: turing, driver: "nvidia", total: 0 };
    t4.add(&[], None);
    t4.mdev("00.0", "nvidia-222", "GRID T4-4Q", 3);
    make_mdev(&t4, "00.0", "nvidia-222");
    let row = card(&host, "0000:3b:00.0");
    assert_eq!((&row["interface"], types(&row)), (&json!("mdev"), vec![("T4-4Q", 3, 1)]));
    assert_eq!(
        (&row["vgpus"][0]["uuid"], &row["vgpus"][0]["name"]),
        (&json!(UUID), &json!("T4-4Q"))
    );
    holds(host.run(&["plan", "--gpus", "1"]), 1, &["has 1 mediated device"]);
    // Ampere before kernel 6.8: at each function, one each.
    let host = Small::new(1, 8);
    let ids = ("0302 10de:20b0", "0302 10de:20b0");
    let a100 = Card { host: &host, bus: "3b", ids, driver: "nvidia", total: 16 };
    let vfs = slots(16);
    a100.add(&vfs, Some("nvidia"));
    vfs.iter().for_each(|slot| a100.mdev(slot, "nvidia-468", "GRID A100-4C", 1));
    let row = card(&host, "0000:3b:00.0");
    assert_eq!((&row["interface"], types(&row)), (&json!("mdev"), vec![("A100-4C", 10, 0)]));
    assert_eq!(row["vfs"][0]["kind"], "mdev-parent");
    let why = "goes to guests as mediated devices only";
    holds(host.run(&["plan", "--gpu", "3b:00.4"]), 1, &[why]);
}

#[test]
fn before_virtual_functions_are_enabled_the_interface_is_not_known() {
    let host = Small::new(1, 8);
    let ids = ("0302 10de:20b0", "");
    Card { host: &host, bus: "3b", ids, driver: "nvidia", total: 16 }.add(&[], None);
    let row = card(&host, "0000:3b:00.0");
    assert_eq!((&row["interface"], types(&row)), (&json!("unknown"), vec![]));
    holds(host.run(&["vgpu", "list"]), 0, &["gpuvm vgpu vfs 0000:3b:00.0 --on"]);
    // An ordinary whole card.
    holds(host.run(&["plan", "--gpus", "1"]), 0, &["0000:3b:00.0"]);
    assert_eq!(host.json(&["gpu", "list"])[0]["vgpu"], Value::Null);
    let vfio = Small::new(1, 8);
    Card { host: &vfio, bus: "3b", ids, driver: "vfio-pci", total: 16 }.add(&[], None);
    assert_eq!(vfio.json(&["vgpu", "list"]), json!([]));
}

#[test]
fn functions_of_other_makers_are_recognised_by_their_driver() {
    // GIM: eight cards, each by its one function.
    let host = Small::new(2, 32);
    for bus in ["11", "22", "33", "44", "55", "66", "77", "88"] {
        let ids = ("1200 1002:74a1", "1200 1002:74b5");
        let card = Card { host: &host, bus, ids, driver: "gim", total: 8 };
        card.add(&["02.0".to_owned()], None);
    }
    holds(host.run(&["host", "show"]), 0, &["8 GPUs", "GPU7", "88:02.0"]);
    holds(host.run(&["plan", "--gpus", "1"]), 0, &[":02.0"]);
    holds(host.run(&["gpu", "list"]), 0, &["has 1 virtual function enabled"]);
    holds(host.run(&["plan", "--gpu", "11:00.0"]), 1, &["0000:11:00.0", "1 virtual function"]);
    assert_eq!(host.json(&["vgpu", "list"]), json!([]));
    // A plan with such a card is taken as it is.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.json");
    fs::write(&file, host.json(&["plan", "--gpus", "1"]).to_string()).unwrap();
    holds(host.run(&["export", "--plan", file.to_str().unwrap()]), 0, &["<hostdev "]);
    // Flex 170 on xe: shares of a card, by address.
    let host = Small::new(1, 8);
    let ids = ("0380 8086:56c0", "0380 8086:56c0");
    let flex = Card { host: &host, bus: "3b", ids, driver: "i915", total: 31 };
    flex.add(&["00.1".to_owned(), "00.2".to_owned()], None);
    holds(host.run(&["host", "show"]), 0, &["1 GPU", "2 virtual functions of GPUs"]);
    holds(host.run(&["plan", "--gpu", "3b:00.1"]), 0, &["a share of that card"]);
    // Half of the 8 cores, less one for the emulator; both have all, less one.
    let vcpus = |gpus: &[&str]| {
        let named = gpus.iter().flat_map(|gpu| ["--gpu", gpu]);
        let plan = host.json(&[&["plan"], &named.collect::<Vec<_>>()[..]].concat());
        plan["placement"]["vcpu_pins"].as_array().unwrap().len()
    };
    assert_eq!((vcpus(&["3b:00.1"]), vcpus(&["3b:00.1", "3b:00.2"])), (6, 14));
    let explained = host.run(&["plan", "--gpu", "3b:00.2", "--explain"]);
    holds(explained, 0, &["as 50.0 % of a card's share of its node"]);
    fs::write(&file, host.json(&["plan", "--gpu", "3b:00.1"]).to_string()).unwrap();
    holds(host.run(&["export", "--plan", file.to_str().unwrap()]), 0, &["<hostdev "]);
    holds(host.run(&["plan", "--gpus", "1"]), 1, &["has 2 virtual functions enabled"]);
}

/// The functions and the types of a plan's vGPUs.
fn vgpus(plan: &Value) -> Vec<(&str, &str)> {
    let all = plan["placement"]["vgpus"].as_array().unwrap().iter();
    all.map(|one| (one["function"].as_str().unwrap(), one["name"].as_str().unwrap())).collect()
}

#[test]
fn a_vgpu_is_planned_on_the_fullest_card_with_its_part_of_the_node() {
    let host = h200(0);
    let plan = host.json(&["plan", "--vgpu", "H200X-18C"]);
    assert_eq!(vgpus(&plan), [("0000:3b:00.4", "H200X-18C")]);
    assert_eq!(plan["placement"]["devices"], json!(["0000:3b:00.4"]));
    // An eighth of half of 16 cores, and of 15 GiB.
    assert_eq!(plan["placement"]["vcpu_pins"].as_array().unwrap().len(), 2);
    assert_eq!(plan["placement"]["cells"][0]["memory_kib"], 960 << 10);
    let shown = ["vGPUs        H200X-18C on 0000:3b:00.0", "vgpus"];
    holds(host.run(&["plan", "--vgpu", "1437", "--explain"]), 0, &shown);
    let sized = ["plan", "--vgpu", "h200x-18c", "--vcpus", "4", "--memory", "2G"];
    assert_eq!(host.json(&sized)["placement"]["vcpu_pins"].as_array().unwrap().len(), 4);
    // Eight fit on a card; the ninth is of the next one.
    let nine = host.json(&["plan", "--vgpu", "H200X-18C,count=9"]);
    let cards: Vec<&str> = vgpus(&nine).iter().map(|(function, _)| &function[..7]).collect();
    assert_eq!(cards, [vec!["0000:3b"; 8], vec!["0000:5e"]].concat());
    // Where one runs others follow, so that the other card stays whole.
    let host = h200(3);
    assert_eq!(
        vgpus(&host.json(&["plan", "--vgpu", "H200X-18C"])),
        [("0000:3b:00.7", "H200X-18C")]
    );
    let other = host.json(&["plan", "--vgpu", "H200X-18C,gpu=1"]);
    assert_eq!(vgpus(&other), [("0000:5e:00.4", "H200X-18C")]);
    // Another size goes to the other card.
    let large = host.json(&["plan", "--vgpu", "H200X-141C"]);
    assert_eq!(vgpus(&large), [("0000:5e:00.4", "H200X-141C")]);
    let here = host.run(&["plan", "--vgpu", "H200X-141C,gpu=3b:00.0"]);
    holds(here, 1, &["types by GPU", "0000:3b:00.0: H200X-18C", "-shm 1 -i 0000:3b:00.0"]);
    holds(
        host.run(&["plan", "--vgpu", "H200X-141C,count=2"]),
        1,
        &["requested 2 vGPUs", "1 avail"],
    );
}

#[test]
fn unavailable_vgpus_are_refused_with_a_remedy() {
    let host = h200(0);
    holds(host.run(&["plan", "--vgpu", "A16-4Q"]), 1, &["no GPU can have a vGPU of type `A16-4Q`"]);
    holds(host.run(&["plan", "--vgpu", "H200X-18C", "--gpus", "1"]), 2, &["cannot be used with"]);
    holds(host.run(&["plan", "--vgpu", "H200X-18C,gpu=7"]), 1, &["this host has no GPU 7"]);
    let function = ["0000:3b:00.4 is a virtual function", "`--vgpu H200X-18C,gpu=0000:3b:00.0`"];
    holds(host.run(&["plan", "--vgpu", "H200X-18C,gpu=3b:00.4"]), 1, &function);
    // Mixed mode is named for types of the model that are of another size.
    let used = h200(1);
    let small = ["plan", "--vgpu", "H200X-35C,gpu=3b:00.0"];
    holds(used.run(&small), 1, &["nvidia-smi vgpu -shm 1 -i 0000:3b:00.0"]);
    holds(
        used.run(&["plan", "--vgpu", "A16-4Q,gpu=3b:00.0"]),
        1,
        &["hint: `gpuvm vgpu list", "shows the types"],
    );
    holds(host.run(&["vgpu", "vfs", "3b:00.0", "--dry-run"]), 2, &["--on or --off is needed"]);
    let clique = ["plan", "--vgpu", "H200X-18C", "--p2p-clique"];
    holds(host.run(&clique), 1, &["--p2p-clique is of whole GPUs"]);
    let before = Small::new(1, 8);
    let ids = ("0302 10de:20b0", "");
    Card { host: &before, bus: "3b", ids, driver: "nvidia", total: 16 }.add(&[], None);
    let on = "`gpuvm vgpu vfs 0000:3b:00.0 --on`";
    holds(before.run(&["plan", "--vgpu", "A100-4C"]), 1, &["no virtual functions", on]);
    let none = Small::new(1, 8);
    Card { host: &none, bus: "3b", ids, driver: "vfio-pci", total: 0 }.add(&[], None);
    holds(none.run(&["plan", "--vgpu", "A100-4C"]), 1, &["this host has no GPU set up for vGPUs"]);
}

#[test]
fn virtual_functions_are_enabled_and_kept_while_one_has_a_type() {
    let dry = ["--dry-run"];
    let run = |host: &Small, words: &[&str]| host.run(&[&["vgpu", "vfs"], words, &dry].concat());
    let before = Small::new(1, 8);
    let ids = ("0302 10de:20b0", "");
    Card { host: &before, bus: "3b", ids, driver: "nvidia", total: 16 }.add(&[], None);
    let enable = "enable the virtual functions of 0000:3b:00.0 by sriov-manage";
    holds(run(&before, &["3b:00.0", "--on"]), 0, &[enable]);
    holds(run(&before, &["3b:01.0", "--on"]), 1, &["0000:3b:01.0 is not a GPU of this host"]);
    holds(run(&h200(0), &["3b:00.0", "--off"]), 0, &["disable the virtual functions"]);
    holds(run(&h200(0), &["3b:00.4", "--off"]), 1, &["is a virtual function itself"]);
    let console = Small::new(1, 8);
    let ids = ("0300 10de:20b0", "");
    let card = Card { host: &console, bus: "3b", ids, driver: "nvidia", total: 16 };
    card.add(&[], None);
    console.write(&format!("{}/boot_vga", card.dir("00.0")), "1");
    holds(run(&console, &["3b:00.0", "--on"]), 1, &["is the host's boot display", "firmware"]);
    let used = run(&h200(1), &["3b:00.0", "--off"]);
    holds(used, 1, &["0000:3b:00.4 has vGPU type 1437, and an unknown holder"]);
}

#[test]
fn a_definition_has_the_vgpu_on_the_vendors_driver_and_holds_it() {
    let host = h200(0);
    let (code, xml, err) = host.run(&["export", "--vgpu", "H200X-18C", "--name", "a"]);
    assert_eq!(code, 0, "{err}");
    for part in ["managed='no'", "ua-vgpu0", "bus='0x3b' slot='0x00' function='0x4'", "gpuvm:vgpus"]
    {
        assert!(xml.contains(part), "{part}: {xml}");
    }
    let file = host.path().join("a.xml");
    fs::write(&file, xml).unwrap();
    let file = file.to_str().unwrap();
    let (code, out, err) = host.run(&["check", file]);
    assert!(!out.contains("hostdev"), "{code} {out}{err}");
    let next = host.json(&["plan", "--vgpu", "H200X-18C", "--domain-xml", file]);
    assert_eq!(vgpus(&next), [("0000:3b:00.5", "H200X-18C")]);
    // Its type is not set yet, and counts all the same.
    let other = host.json(&["plan", "--vgpu", "H200X-70C", "--domain-xml", file]);
    assert_eq!(vgpus(&other), [("0000:5e:00.4", "H200X-70C")]);
    holds(host.run(&["vgpu", "list", "--domain-xml", file]), 0, &["domain `a`"]);
    holds(host.run(&["plan", "--gpus", "1", "--domain-xml", file]), 1, &["virtual functions"]);
}

/// A guest of another program that has a card as a whole.
fn whole(host: &Small, bus: &str) -> String {
    foreign(host, "whole", (bus, 0))
}

/// A guest of another program that has a function, by bus and number.
fn foreign(host: &Small, name: &str, (bus, function): (&str, u32)) -> String {
    let file = host.path().join(format!("{name}.xml"));
    let text = format!(
        "<domain type='kvm'><name>{name}</name><memory unit='GiB'>1</memory><vcpu>1</vcpu><os>\
         <type machine='q35'>hvm</type></os><devices><hostdev mode='subsystem' type='pci' \
         managed='yes'><source><address domain='0' bus='0x{bus}' slot='0' function='{function}'/></source>\
         </hostdev></devices></domain>"
    );
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_card_that_a_guest_has_as_a_whole_gives_no_vgpus() {
    let host = h200(0);
    let file = whole(&host, "3b");
    let beside = ["--domain-xml", file.as_str()];
    let on = |words: &[&str]| host.run(&[words, &beside].concat());
    let held = "0000:3b:00.0 is held by domain `whole`, as a whole";
    let next = host.json(&[&["plan", "--vgpu", "H200X-18C"][..], &beside].concat());
    assert_eq!(vgpus(&next), [("0000:5e:00.4", "H200X-18C")]);
    holds(on(&["plan", "--vgpu", "H200X-18C,gpu=0"]), 1, &[held]);
    holds(on(&["vgpu", "list"]), 0, &[held]);
    let left = host.json(&[&["capacity"][..], &beside].concat());
    assert_eq!(left["vgpus"][2]["creatable"], 8, "{left}");
    // Its guest runs: the card is on vfio-pci, where nothing shows that it could be shared.
    let bound = Small::new(1, 8);
    let ids = ("0302 10de:2335", "");
    Card { host: &bound, bus: "3b", ids, driver: "vfio-pci", total: 16 }.add(&[], None);
    let file = whole(&bound, "3b");
    // On a record the hint says where.
    let hint = "`gpuvm delete whole`";
    for vgpu in ["H200X-18C", "H200X-18C,gpu=0", "H200X-18C,gpu=3b:00.0"] {
        let refused = bound.run(&["plan", "--vgpu", vgpu, "--domain-xml", &file]);
        holds(refused, 1, &["0 available", held, hint]);
    }
    let counted = bound.run(&["capacity", "--vgpu", "H200X-18C", "--domain-xml", &file]);
    holds(counted, 1, &[held, hint]);
}

#[test]
fn a_card_of_which_a_guest_has_a_vgpu_goes_to_none_as_a_whole() {
    let (code, xml, err) = h200(0).run(&["export", "--vgpu", "H200X-18C", "--name", "a"]);
    assert_eq!(code, 0, "{err}");
    // The host has restarted without virtual functions.
    let host = without_functions();
    let file = host.path().join("a.xml");
    fs::write(&file, xml).unwrap();
    let beside = ["--domain-xml", file.to_str().unwrap()];
    let on = |words: &[&str]| host.run(&[words, &beside].concat());
    let shared = "is shared: domain `a` has vGPU H200X-18C of it";
    holds(on(&["plan", "--gpu", "3b:00.0"]), 1, &["0000:3b:00.0", shared]);
    let next = host.json(&[&["plan", "--gpus", "1"][..], &beside].concat());
    assert_eq!(next["placement"]["devices"], json!(["0000:5e:00.0"]));
    holds(on(&["plan", "--gpus", "2"]), 1, &[shared]);
    holds(on(&["gpu", "list"]), 0, &[shared]);
    let left = host.json(&[&["capacity"][..], &beside].concat());
    assert_eq!(left["largest"], 1, "{left}");
    // A definition with the card, beside it; and the reverse, while its functions are there.
    let other = whole(&host, "3b");
    holds(on(&["check", &other]), 3, &["device-held", "domain `a` (defined) has vGPU H200X-18C"]);
    let now = h200(0);
    let other = whole(&now, "3b");
    let checked = now.run(&["check", beside[1], "--domain-xml", &other]);
    holds(checked, 3, &["device-held", "0000:3b:00.0, the card of 0000:3b:00.4, is held by"]);
}

#[test]
fn a_mediated_device_is_defined_by_its_uuid() {
    let host = Small::new(1, 8);
    let ids = ("0302 10de:20b0", "0302 10de:20b0");
    let a100 = Card { host: &host, bus: "3b", ids, driver: "nvidia", total: 16 };
    let vfs = slots(16);
    a100.add(&vfs, Some("nvidia"));
    vfs.iter().for_each(|slot| a100.mdev(slot, "nvidia-468", "GRID A100-4C", 1));
    let (code, xml, err) = host.run(&["export", "--vgpu", "A100-4C,count=2", "--name", "a"]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(xml.matches("type='mdev' model='vfio-pci' managed='no'").count(), 2, "{xml}");
    assert!(!xml.contains("type='pci' managed"), "{xml}");
    let file = host.path().join("a.xml");
    fs::write(&file, xml).unwrap();
    let next = ["plan", "--vgpu", "A100-4C", "--domain-xml", file.to_str().unwrap()];
    assert_eq!(vgpus(&host.json(&next)), [("0000:3b:00.6", "A100-4C")]);
    // None is left.
    vfs.iter().for_each(|slot| a100.mdev(slot, "nvidia-468", "GRID A100-4C", 0));
    holds(host.run(&["plan", "--vgpu", "A100-4C"]), 1, &["requested 1 vGPU of", "0 available"]);
}

/// The definition of a guest with such vGPUs, which is off.
fn exported(host: &Small, vgpu: &str) -> String {
    let (code, xml, err) = host.run(&["export", "--vgpu", vgpu, "--name", "a"]);
    assert_eq!(code, 0, "{err}");
    let file = host.path().join("a.xml");
    fs::write(&file, xml).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_function_of_a_guest_that_is_off_has_room_for_no_other_type() {
    let host = Small::new(1, 8);
    let ids = ("0302 10de:20b0", "0302 10de:20b0");
    let a100 = Card { host: &host, bus: "3b", ids, driver: "nvidia", total: 16 };
    let vfs = slots(16);
    a100.add(&vfs, Some("nvidia"));
    for slot in &vfs {
        a100.mdev(slot, "nvidia-468", "GRID A100-4C", 1);
        a100.mdev(slot, "nvidia-500", "GRID A100-4Q", 1);
        a100.mdev_of(slot, ("nvidia-470", "GRID A100-10C"), 1, (10240, 4));
        a100.mdev_of(slot, ("nvidia-475", "GRID A100-1-5C"), 1, (4864, 7));
    }
    let file = exported(&host, "A100-4C");
    let on = |vgpu: &'static str| ["plan", "--vgpu", vgpu, "--domain-xml", file.as_str()];
    for name in ["A100-4C", "A100-4Q"] {
        assert_eq!(vgpus(&host.json(&on(name))), [("0000:3b:00.5", name)]);
    }
    // Nor one that needs the other MIG mode.
    let held = ["0 available", "domain `a` has vGPUs there"];
    for name in ["A100-10C", "A100-1-5C"] {
        holds(host.run(&on(name)), 1, &held);
    }
}

#[test]
fn a_card_whose_guest_is_off_gets_no_vgpus_of_another_size() {
    let host = Small::new(1, 16);
    for bus in ["3b", "5e"] {
        let ids = ("0302 10de:1eb8", "");
        let t4 = Card { host: &host, bus, ids, driver: "nvidia", total: 0 };
        t4.add(&[], None);
        t4.mdev_of("00.0", ("nvidia-222", "GRID T4-4Q"), 4, (4096, 4));
        t4.mdev_of("00.0", ("nvidia-223", "GRID T4-8Q"), 2, (8192, 2));
    }
    let file = exported(&host, "T4-4Q");
    let beside = ["--domain-xml", file.as_str()];
    let on = |words: &[&'static str]| [words, &beside].concat();
    let same = host.json(&on(&["plan", "--vgpu", "T4-4Q"]));
    assert_eq!(vgpus(&same), [("0000:3b:00.0", "T4-4Q")]);
    let other = host.json(&on(&["plan", "--vgpu", "T4-8Q"]));
    assert_eq!(vgpus(&other), [("0000:5e:00.0", "T4-8Q")]);
    let small = ["--vcpus", "1", "--memory", "256M", "--pins", "none"];
    let words = [&["capacity", "--vgpu", "T4-8Q"][..], &small, &beside].concat();
    let counted = host.json(&words);
    let of = &counted["vgpus"][0];
    assert_eq!((&of["creatable"], &of["guests"]["now"]), (&json!(2), &json!(2)), "{counted}");
    let here = host.run(&on(&["plan", "--vgpu", "T4-8Q,gpu=3b:00.0"]));
    holds(here, 1, &["0 available", "domain `a` has vGPUs there"]);
}

#[test]
fn a_function_that_a_guest_has_without_a_type_leaves_no_whole_card() {
    let host = h200(0);
    let file = foreign(&host, "other", ("3b", 4));
    let beside = ["--domain-xml", file.as_str()];
    let on = |words: &[&'static str]| [words, &beside].concat();
    for vgpu in ["H200X-18C", "H200X-141C"] {
        let next = host.json(&on(&["plan", "--vgpu", vgpu]));
        assert_eq!(vgpus(&next), [("0000:5e:00.4", vgpu)]);
    }
    let left = host.json(&on(&["capacity"]));
    let all = left["vgpus"].as_array().unwrap().iter();
    let all: Vec<_> = all.map(|of| of["creatable"].as_u64().unwrap()).collect();
    // Beside it at most seven of the smallest type fit, and one of the next.
    assert_eq!(all, [1, 3, 15], "{left}");
    let here = host.run(&on(&["plan", "--vgpu", "H200X-141C,gpu=3b:00.0"]));
    holds(here, 1, &["0 available", "domain `other` has vGPUs there"]);
}

#[test]
fn a_guest_gets_as_many_as_all_cards_of_its_node_have() {
    // Five are left of one card, and eight of the other.
    let many = h200(3).run(&["plan", "--vgpu", "H200X-18C,count=14"]);
    holds(many, 1, &["requested 14 vGPUs of vGPU type `H200X-18C`, 13 available"]);
}

#[test]
fn a_card_with_mig_on_has_none_of_a_type_that_mig_does_not_back() {
    let host = h200(0);
    let guest = exported(&host, "H200X-18C");
    let file = host.path().join("record.json");
    let (code, _, err) = host.run(&["host", "capture", file.to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    let mut record: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    for device in record["host"]["devices"].as_array_mut().unwrap() {
        if device["bdf"] == "0000:3b:00.0" {
            device["mig"] = json!({ "enabled": true, "pending": true });
        }
    }
    fs::write(&file, record.to_string()).unwrap();
    let on = |words: &[&str]| on_record(file.to_str().unwrap(), words);
    let (_, out, err) = on(&["vgpu", "list", "--json"]);
    let rows: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!(types(&rows[0]), [("H200X-141C", 0, 0), ("H200X-70C", 0, 0), ("H200X-18C", 0, 0)]);
    assert_eq!(types(&rows[1]), [("H200X-141C", 1, 0), ("H200X-70C", 2, 0), ("H200X-18C", 8, 0)]);
    let mig = "MIG of 0000:3b:00.0 is on, and vGPU type `H200X-18C` is not backed by MIG";
    let here = ["8 available", mig, "0000:5e:00.0: 8 creatable"];
    holds(on(&["plan", "--vgpu", "H200X-18C,count=9"]), 1, &here);
    holds(on(&["plan", "--vgpu", "H200X-18C,gpu=3b:00.0"]), 1, &[mig, "-mig 0"]);
    holds(on(&["check", &guest]), 3, &["vgpu-unavailable", mig, "-mig 0"]);
    let conf = ["slurm", "conf", "--node-name", "n", "--vgpu", "H200X-18C"];
    holds(on(&conf), 0, &["Type=h200x_18c Count=8"]);
    for device in record["host"]["devices"].as_array_mut().unwrap() {
        if device["bdf"] == "0000:5e:00.0" {
            device["mig"] = json!({ "enabled": true, "pending": true });
        }
    }
    fs::write(&file, record.to_string()).unwrap();
    holds(on(&conf), 1, &["no GPU of the host has vGPUs of type `H200X-18C` now"]);
}

#[test]
fn the_last_mediated_device_is_followed_by_a_refusal() {
    let host = Small::new(1, 8);
    let ids = ("0302 10de:2330", "");
    let card = Card { host: &host, bus: "3b", ids, driver: "nvidia", total: 0 };
    card.add(&[], None);
    let of = format!("{}/mdev_supported_types/mtty-1", card.dir("00.0"));
    host.write(&format!("{of}/name"), "Single port serial");
    let left = |number: &str| host.write(&format!("{of}/available_instances"), number);
    left("1");
    let device = |number: u32| {
        let dir = card.at("00.0").join(format!("00000000-0000-4000-8000-{number:012}"));
        fs::create_dir_all(&dir).unwrap();
        symlink("../mdev_supported_types/mtty-1", dir.join("mdev_type")).unwrap();
    };
    (0..23).for_each(device);
    assert_eq!(vgpus(&host.json(&["plan", "--vgpu", "mtty-1"])).len(), 1);
    // A guest that has one of the card itself does not hold the card as a whole.
    let (code, xml, err) = host.run(&["export", "--vgpu", "mtty-1", "--name", "a"]);
    assert_eq!(code, 0, "{err}");
    let other = host.path().join("a.xml");
    fs::write(&other, xml).unwrap();
    left("2");
    let beside = ["plan", "--vgpu", "mtty-1", "--domain-xml", other.to_str().unwrap()];
    assert_eq!(vgpus(&host.json(&beside)).len(), 1);
    left("0");
    device(23);
    let refused = host.run(&["plan", "--vgpu", "mtty-1"]);
    holds(refused, 1, &["requested 1 vGPU", "0000:3b:00.0: 0 creatable, 24 in use"]);
}

/// What MIG is like is in the record, where NVML has reported it.
#[test]
fn mig_is_said_where_it_costs_nvlink() {
    let host = Small::new(1, 16);
    for bus in ["3b", "5e"] {
        let ids = ("0302 10de:20b0", "");
        Card { host: &host, bus, ids, driver: "vfio-pci", total: 0 }.add(&[], None);
    }
    let file = host.path().join("record.json");
    let (code, _, err) = host.run(&["host", "capture", file.to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    let mut record: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    for device in record["host"]["devices"].as_array_mut().unwrap() {
        if device["bdf"] == "0000:5e:00.0" {
            device["mig"] = json!({ "enabled": true, "pending": true });
        }
    }
    fs::write(&file, record.to_string()).unwrap();
    let on = |words: &[&str]| {
        let file = file.to_str().unwrap();
        crate::support::run(crate::support::gpuvm(words).args(["--host", file]))
    };
    let said = "MIG is on in 0000:5e:00.0";
    let accepts = ["-i 0000:5e:00.0 -mig 0", "`--allow mig` accepts it"];
    holds(on(&["plan", "--gpus", "2"]), 1, &[&[said][..], &accepts].concat());
    holds(on(&["capacity", "--gpus", "2"]), 0, &[said]);
    holds(on(&["plan", "--gpus", "2", "--allow", "mig", "--explain"]), 0, &[said, "-mig 0"]);
    let (_, out, err) = on(&["plan", "--gpus", "1", "--explain"]);
    assert!(!(out + &err).contains(said));
    holds(on(&["gpu", "list"]), 0, &["MIG", "on"]);
    holds(on(&["host", "show"]), 0, &["MIG on"]);
    let (_, xml, _) = on(&["export", "--gpus", "1", "--name", "a"]);
    let one = host.path().join("a.xml");
    fs::write(&one, xml).unwrap();
    let set = ["set", one.to_str().unwrap(), "--gpus", "2", "--diff"];
    holds(on(&set), 1, &[&[said][..], &accepts].concat());
    // Its record keeps it for later changes.
    let recorded = "\"allow\":{\"remote\":false,\"split\":false,\"mig\":true}";
    holds(on(&[&set[..], &["--allow", "mig"]].concat()), 0, &["5e", recorded]);
}

#[test]
fn capacity_counts_the_guests_that_plan_accepts() {
    let host = h200(3);
    let small = ["--vcpus", "1", "--memory", "256M", "--pins", "none"];
    let counted = |vgpu: &str| {
        let shown = host.json(&[&["capacity", "--vgpu", vgpu][..], &small].concat());
        let [of] = &shown["vgpus"].as_array().unwrap()[..] else { panic!("{shown}") };
        (of["creatable"].as_u64().unwrap(), of["guests"]["now"].as_u64().unwrap())
    };
    assert_eq!(counted("H200X-18C"), (13, 13));
    assert_eq!(counted("h200x-18c,count=2"), (13, 6));
    assert_eq!(counted("H200X-70C"), (2, 2));
    assert_eq!(counted("H200X-18C,gpu=0"), (5, 5));
    let absent = host.run(&["capacity", "--vgpu", "H200X-18C,gpu=9"]);
    holds(absent, 1, &["this host has no GPU 9", "hint: "]);
    holds(
        host.run(&["capacity", "--vgpu", "H200X-18C"]),
        0,
        &["GUESTS THAT FIT", "no further one"],
    );
    holds(host.run(&["capacity", "--vgpu", "A16-4Q"]), 1, &["no GPU can have a vGPU of type"]);
    holds(host.run(&["capacity"]), 0, &["vGPU TYPE", "H200X-141C", "never placed"]);
    // As many as plans give, one after the other.
    let each = host.json(&["capacity"]);
    let listed: Vec<(&str, u64)> = each["vgpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| (of["name"].as_str().unwrap(), of["creatable"].as_u64().unwrap()))
        .collect();
    assert_eq!(listed, [("H200X-18C", 13), ("H200X-141C", 1), ("H200X-70C", 2)]);
}

#[test]
fn metrics_have_types_and_holders() {
    let host = h200(3);
    let (code, text, err) = host.run(&["capacity", "--metrics", "-"]);
    assert_eq!(code, 0, "{err}");
    let card = "pci_bus_id=\"00000000:3B:00.0\"";
    for line in [
        format!("gpuvm_vgpu_creatable{{{card},type=\"H200X-18C\"}} 5"),
        format!("gpuvm_vgpu_in_use{{{card},type=\"H200X-18C\"}} 3"),
        format!(
            "gpuvm_vgpu_holder{{{card},function=\"0000:3b:00.4\",type=\"H200X-18C\",domain=\"\",uuid=\"\"}} 1"
        ),
    ] {
        assert!(text.lines().any(|other| other == line), "{line}: {text}");
    }
}

#[test]
fn slurm_counts_vgpus_of_a_type() {
    let host = h200(3);
    let conf =
        |more: &[&str]| host.run(&[&["slurm", "conf", "--node-name", "n"][..], more].concat());
    let line = "NodeName=n Name=gpuvm Type=h200x_18c Count=16";
    holds(conf(&["--vgpu", "H200X-18C"]), 0, &[line, "Gres=gpuvm:h200x_18c:16"]);
    holds(conf(&["--vgpu", "A16-4Q"]), 1, &["vGPUs of type `A16-4Q`", "gpuvm vgpu list"]);
    // No card of this host goes to a job as a whole.
    let none = ["no GPU can be given out whole", "--vgpu TYPE"];
    holds(conf(&[]), 1, &none);
    holds(conf(&["--files"]), 1, &none);
}

/// Writes the list of functions that an admin took out of use.
fn exclude(host: &Small, bdfs: &[&str]) {
    let entries = bdfs.iter().map(|bdf| json!({ "bdf": bdf, "reason": "it is loud" }));
    let excluded: Vec<Value> = entries.collect();
    let file = json!({ "format": "gpuvm-excluded", "version": 1, "excluded": excluded });
    host.write("etc/gpuvm/excluded.json", &file.to_string());
}

#[test]
fn slurm_counts_and_numbers_the_cards_that_guests_get_whole() {
    let conf = |host: &Small, more: &[&str]| {
        host.run(&[&["slurm", "conf", "--node-name", "n"][..], more].concat())
    };
    let host = h200(0);
    let ids = ("0302 10de:2330", "");
    Card { host: &host, bus: "71", ids, driver: "vfio-pci", total: 16 }.add(&[], None);
    let (code, out, err) = conf(&host, &["--files"]);
    assert_eq!(code, 0, "{err}");
    // Its number is that of a job then, whatever its index is.
    assert_eq!(out.matches(" File=").count(), 1, "{out}");
    let group = 0x71 * 100 + 1;
    assert!(out.contains(&format!("Type=h100 File=/dev/vfio/{group} Links=-1")), "{out}");
    assert_eq!(host.json(&["gpu", "list"])[2]["bdf"], "0000:71:00.0");
    // Cards with mediated devices of their own.
    let host = t4();
    holds(conf(&host, &[]), 0, &["Type=t4 Count=1", "Gres=gpuvm:t4:1"]);
    let offers = ["the driver of 0000:3b:00.0 offers mediated devices", "gpuvm chooses the GPUs"];
    holds(conf(&host, &["--files"]), 1, &offers);
}

#[test]
fn an_excluded_function_gets_no_vgpu() {
    for (host, name, next) in
        [(h200(0), "H200X-18C", "0000:3b:00.6"), (a100(), "A100-4C", "0000:3b:00.6")]
    {
        exclude(&host, &["0000:3b:00.4", "0000:3b:00.5"]);
        assert_eq!(vgpus(&host.json(&["plan", "--vgpu", name])), [(next, name)]);
        let why = "0000:3b:00.4 is excluded: it is loud; 0000:3b:00.5 is excluded: it is loud";
        holds(host.run(&["vgpu", "list"]), 0, &[why]);
        let row = card(&host, "0000:3b:00.0");
        assert_eq!(row["vfs"][1]["excluded"], "excluded: it is loud");
        assert_eq!(row["vfs"][2]["excluded"], Value::Null);
        let excluded = "0000:3b:00.4 0000:3b:00.5 excluded";
        holds(host.run(&["gpu", "list"]), 0, &[excluded]);
        let gpu = &host.json(&["gpu", "list"])[0];
        assert_eq!(gpu["vgpu"]["excluded"], json!(["0000:3b:00.4", "0000:3b:00.5"]));
    }
    // Where fewer functions are left than vGPUs fit, these count.
    let host = h200(0);
    let all: Vec<String> = slots(16).iter().map(|slot| format!("0000:3b:{slot}")).collect();
    exclude(&host, &all.iter().skip(3).map(String::as_str).collect::<Vec<_>>());
    let left = card(&host, "0000:3b:00.0");
    assert_eq!(types(&left), [("H200X-141C", 1, 0), ("H200X-70C", 2, 0), ("H200X-18C", 3, 0)]);
    assert_eq!(host.json(&["capacity"])["vgpus"][2]["creatable"], 11);
    let many = host.run(&["plan", "--vgpu", "H200X-18C,count=12"]);
    holds(many, 1, &["11 available", "13 virtual functions excluded"]);
}

#[test]
fn an_excluded_card_takes_its_functions_out_of_use() {
    let host = Small::new(2, 32);
    for (bus, vfs) in [("11", vec!["02.0"]), ("22", vec!["02.0", "02.1"])] {
        let ids = ("1200 1002:74a1", "1200 1002:74b5");
        let card = Card { host: &host, bus, ids, driver: "gim", total: 8 };
        card.add(&vfs.into_iter().map(str::to_owned).collect::<Vec<_>>(), None);
    }
    exclude(&host, &["0000:22:00.0"]);
    let why = "excluded with the card 0000:22:00.0: it is loud";
    let states = host.json(&["gpu", "list"]);
    let states: Vec<&Value> = (0..5).map(|at| &states[at]["state"]).collect();
    assert_eq!(states, ["free", "excluded", "excluded", "blocked", "excluded"]);
    holds(host.run(&["gpu", "list"]), 0, &[&format!("is {why}"), "is excluded: it is loud"]);
    holds(host.run(&["plan", "--gpus", "2"]), 1, &["1 of 3 available", &format!("are {why}")]);
    holds(host.run(&["plan", "--gpu", "22:02.1"]), 1, &[&format!("is {why}")]);
    let capacity = host.json(&["capacity"]);
    assert_eq!(capacity["largest"], 1, "{capacity}");
    assert!(capacity["never_placed"].to_string().contains(why), "{capacity}");
    // A share that only its address takes.
    let host = Small::new(1, 8);
    let ids = ("0380 8086:56c0", "0380 8086:56c0");
    let flex = Card { host: &host, bus: "3b", ids, driver: "i915", total: 31 };
    flex.add(&["00.1".to_owned()], None);
    holds(host.run(&["plan", "--gpu", "3b:00.1"]), 0, &["a share of that card"]);
    exclude(&host, &["0000:3b:00.0"]);
    holds(host.run(&["plan", "--gpu", "3b:00.1"]), 1, &["excluded with the card 0000:3b:00.0"]);
}

#[test]
fn a_share_and_its_card_in_two_domains_are_found_both_ways() {
    /// Checks both ways that a share of a card collides with the card as a whole.
    #[track_caller]
    fn collide(host: &Small, share: &str, bus: &str, [of_whole, of_share]: [&str; 2]) {
        let whole = whole(host, bus);
        for (checked, other, said) in [(&*whole, share, of_whole), (share, &*whole, of_share)] {
            let checked = host.run(&["check", checked, "--domain-xml", other]);
            holds(checked, 3, &["device-held", said]);
        }
    }
    // A virtual function of another program's guest.
    let host = h200(1);
    let share = foreign(&host, "share", ("3b", 4));
    let said = [
        "domain `share` (defined) has 0000:3b:00.4 of 0000:3b:00.0",
        "0000:3b:00.0, the card of 0000:3b:00.4, is held by domain `whole` (defined)",
    ];
    collide(&host, &share, "3b", said);
    let (_, out, err) = host.run(&["check", &share, "--domain-xml", &whole(&host, "5e")]);
    assert!(!out.contains("device-held"), "{out}{err}");
    // A mediated device that is recorded, and not made yet.
    let host = t4();
    let share = exported(&host, "T4-4Q,gpu=1");
    let said = [
        "domain `a` (defined) has vGPU T4-4Q of 0000:5e:00.0",
        "0000:5e:00.0, the card of vGPU T4-4Q, is held by domain `whole` (defined)",
    ];
    collide(&host, &share, "5e", said);
    // One of another program, below a card and below a function.
    for host in [t4(), a100_with_mdev()] {
        let of_share = format!("the card of mediated device {UUID}, is held by domain `whole`");
        let of_whole = format!("has mediated device {UUID} of 0000:3b:00.0");
        for share in [mediated(&host, "share"), mediated_by_argument(&host, "share")] {
            collide(&host, &share, "3b", [&of_whole, &of_share]);
        }
    }
}

/// A guest of another program that has a mediated device.
fn mediated(host: &Small, name: &str) -> String {
    let file = foreign(host, name, ("3b", 4));
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replace("type='pci' managed='yes'", "type='mdev' model='vfio-pci'");
    let (before, rest) = text.split_once("<address ").unwrap();
    let (_, after) = rest.split_once("/>").unwrap();
    // libvirt takes any case.
    let uuid = UUID.to_uppercase();
    fs::write(&file, format!("{before}<address uuid='{uuid}'/>{after}")).unwrap();
    file
}

/// One that has it by an argument of QEMU.
fn mediated_by_argument(host: &Small, name: &str) -> String {
    let file = host.path().join(format!("{name}-argument.xml"));
    let text = format!(
        "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><name>{name}\
         </name><memory unit='GiB'>1</memory><vcpu>1</vcpu><os><type machine='q35'>hvm</type></os>\
         <devices/><qemu:commandline><qemu:arg value='-device'/><qemu:arg \
         value='vfio-pci,sysfsdev=/sys/bus/mdev/devices/{UUID}'/></qemu:commandline></domain>"
    );
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_mediated_device_of_an_argument_is_listed_with_its_domain() {
    let host = t4();
    let file = mediated_by_argument(&host, "arg");
    let rows = host.json(&["vgpu", "list", "--domain-xml", &file]);
    assert_eq!(rows[0]["vgpus"][0]["domains"], json!(["arg"]), "{rows}");
    let other = mediated(&host, "other");
    let checked = host.run(&["check", &other, "--domain-xml", &file]);
    holds(checked, 3, &[&format!("domain `arg` (defined) has mediated device {UUID}, too")]);
    let by_argument = [&*format!("mediated device {UUID} by an argument of QEMU"), "virsh edit"];
    for change in [&["--no-vgpu"][..], &["--gpus", "1"], &["--gpus", "1", "--no-vgpu"]] {
        holds(host.run(&[&["set", &file, "--diff"][..], change].concat()), 1, &by_argument);
    }
}

#[test]
fn a_card_whose_functions_share_a_group_leaves_others_their_place() {
    let host = h200(0);
    let plan = ["plan", "--vgpu", "H200X-18C"];
    assert_eq!(vgpus(&host.json(&plan)), [("0000:3b:00.4", "H200X-18C")]);
    let groups = host.path().join("sys/kernel/iommu_groups");
    let own = |slot: &str| host.path().join("sys/bus/pci/devices").join(format!("0000:3b:{slot}"));
    let one = groups.join("9000/devices");
    fs::create_dir_all(&one).unwrap();
    for slot in slots(16) {
        let link = fs::canonicalize(own(&slot)).unwrap().join("iommu_group");
        fs::remove_file(&link).unwrap();
        symlink(groups.join("9000"), &link).unwrap();
        symlink(own(&slot), one.join(format!("0000:3b:{slot}"))).unwrap();
    }
    assert_eq!(vgpus(&host.json(&plan)), [("0000:5e:00.4", "H200X-18C")]);
}

#[test]
fn a_vgpu_that_the_start_refuses_is_found() {
    // The type of another is set on its function.
    let host = h200(1);
    let here = host.path().join("a.xml");
    let text = h200(0).run(&["export", "--vgpu", "H200X-70C", "--name", "a"]).1;
    fs::write(&here, text).unwrap();
    let here = here.to_str().unwrap();
    let clears = "echo 0 > /sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type";
    let said = ["vgpu-retyped", "0000:3b:00.4 has vGPU type 1437, and the guest's is 1430", clears];
    holds(host.run(&["check", here]), 3, &said);
    // Its card has no functions, below which its mediated device was made.
    let text = a100().run(&["export", "--vgpu", "A100-4C", "--name", "a"]).1;
    let before = Small::new(1, 8);
    let ids = ("0302 10de:20b0", "");
    Card { host: &before, bus: "3b", ids, driver: "nvidia", total: 16 }.add(&[], None);
    let here = before.path().join("a.xml");
    fs::write(&here, text).unwrap();
    let here = here.to_str().unwrap();
    let enables = "gpuvm vgpu vfs 0000:3b:00.0 --on --at-boot";
    holds(before.run(&["check", here]), 3, &["vgpu-unavailable", "no mediated devices", enables]);
    // It is listed where its card is.
    let rows = before.json(&["vgpu", "list", "--domain-xml", here]);
    let vgpu = &rows[0]["vgpus"][0];
    assert_eq!((&vgpu["name"], &vgpu["domains"]), (&json!("A100-4C"), &json!(["a"])), "{rows}");
}

#[test]
fn a_vgpu_that_others_leave_no_room_for_is_found_and_planned_again() {
    // Its function has lost its type by a restart of the host, and another guest got one of 18C.
    let host = h200(1);
    let of = |slot: &str| format!("sys/bus/pci/devices/0000:3b:{slot}/nvidia");
    for (slot, current) in [("00.4", "0"), ("00.5", "1437")] {
        host.write(&format!("{}/current_vgpu_type", of(slot)), current);
    }
    host.write(&format!("{}/creatable_vgpu_types", of("00.4")), ONLY_18C);
    let file = host.path().join("a.xml");
    let export = |of: &Small, of_type| of.run(&["export", "--vgpu", of_type, "--name", "a"]).1;
    fs::write(&file, export(&h200(0), "H200X-70C")).unwrap();
    let here = file.to_str().unwrap();
    let said =
        "0000:3b:00.4 does not offer vGPU type 1430 (H200X-70C) now: its GPU has 1 x H200X-18C";
    let hint = "--vgpu H200X-70C` plans it again, where a GPU has room";
    holds(host.run(&["check", here]), 3, &["vgpu-unavailable", said, hint]);
    let moved = host.run(&["set", here, "--vgpu", "H200X-70C"]);
    assert_eq!(moved.0, 0, "{moved:?}");
    fs::write(&file, moved.1).unwrap();
    holds(host.run(&["check", here]), 0, &[]);
    // The same type has room.
    fs::write(&file, export(&h200(0), "H200X-18C")).unwrap();
    holds(host.run(&["check", here]), 0, &[]);
    // Another size of mediated devices is on the card.
    let host = t4();
    let text = host.run(&["export", "--vgpu", "T4-4Q", "--name", "a"]).1;
    let types = "sys/bus/pci/devices/0000:3b:00.0/mdev_supported_types";
    for id in fs::read_dir(host.path().join(types)).unwrap() {
        let id = id.unwrap().file_name().into_string().unwrap();
        host.write(&format!("{types}/{id}/available_instances"), "0");
    }
    let file = host.path().join("a.xml");
    fs::write(&file, text).unwrap();
    let said = ["vgpu-unavailable", "0000:3b:00.0 does not offer vGPU type"];
    holds(host.run(&["check", file.to_str().unwrap()]), 3, &said);
}

/// Has each function of a card of [`h200`] offer these types.
fn offer(host: &Small, bus: &str, types: &str) {
    for slot in slots(16) {
        let file = format!("sys/bus/pci/devices/0000:{bus}:{slot}/nvidia/creatable_vgpu_types");
        host.write(&file, &format!("ID    : vGPU Name\n{types}"));
    }
}

#[test]
fn vgpus_of_one_guest_need_room_together_and_keep_their_request() {
    // Another guest has one of 70C, and the other card has no room.
    let host = h200(0);
    offer(&host, "3b", "1430  : NVIDIA H200X-70C");
    offer(&host, "5e", "");
    host.write("sys/bus/pci/devices/0000:3b:00.6/nvidia/current_vgpu_type", "1430");
    let file = host.path().join("a.xml");
    let here = file.to_str().unwrap();
    let has = |vgpu: &str| {
        let text = h200(0).run(&["export", "--vgpu", vgpu, "--name", "a"]).1;
        fs::write(&file, text).unwrap();
    };
    let room = "0000:3b:00.0 has room for 1 more vGPU of type 1430 (H200X-70C) now, and the guest \
                needs 2: the GPU has 1 x H200X-70C";
    has("H200X-70C");
    holds(host.run(&["check", here]), 0, &[]);
    has("H200X-70C,count=2,gpu=0");
    let elsewhere = "--vgpu H200X-70C,count=2` plans them on another GPU than 0000:3b:00.0, if one";
    holds(host.run(&["check", here]), 3, &["vgpu-unavailable", room, elsewhere]);
    has("H200X-70C,count=2");
    let again = "--vgpu H200X-70C,count=2` plans them again, where a GPU has room";
    holds(host.run(&["check", here]), 3, &["vgpu-unavailable", room, again]);
    // Without another place it keeps them, and the fault is shown.
    let same = ["set", here, "--vgpu", "H200X-70C,count=2"];
    let before = fs::read_to_string(&file).unwrap();
    let kept = host.run(&same);
    assert_eq!(kept.1, before, "{kept:?}");
    holds(kept, 0, &[room]);
    let dry = [&same[..], &["--dry-run"]].concat();
    let larger = host.run(&[&dry[..], &["--vcpus", "4"]].concat());
    assert!(!larger.1.contains("vgpu: "), "{larger:?}");
    holds(larger, 0, &["vcpus: ", room]);
    // It moves once there is one, which is all that changes.
    offer(&host, "5e", "1430  : NVIDIA H200X-70C\n1428  : NVIDIA H200X-141C");
    let said = "a would change\n  vgpu: 0000:3b:00.4, 0000:3b:00.5 -> 0000:5e:00.4, 0000:5e:00.5\n";
    assert_eq!(host.run(&dry).1, said);
    fs::write(&file, host.run(&same).1).unwrap();
    holds(host.run(&["check", here]), 0, &[]);
}

#[test]
fn mediated_devices_of_one_guest_need_room_together() {
    // By the number that the driver says.
    let host = t4();
    let file = exported(&host, "T4-4Q,count=3");
    holds(host.run(&["check", &file]), 0, &[]);
    let types = "sys/bus/pci/devices/0000:3b:00.0/mdev_supported_types";
    host.write(&format!("{types}/nvidia-222/available_instances"), "2");
    let room = "0000:3b:00.0 has room for 2 more vGPUs of type nvidia-222 (T4-4Q) now, and the \
                guest needs 3: the GPU has 1 x T4-4Q";
    holds(host.run(&["check", &file]), 3, &["vgpu-unavailable", room]);
    let again = ["set", &file, "--vgpu", "T4-4Q,count=3", "--dry-run"];
    holds(host.run(&again), 0, &["a would change\n  vgpu: "]);
    // By frame buffer, where each function offers one.
    let host = a100();
    let ids = ("0302 10de:20b0", "0302 10de:20b0");
    let card = Card { host: &host, bus: "3b", ids, driver: "nvidia", total: 16 };
    for slot in slots(16) {
        card.mdev_of(&slot, ("nvidia-471", "GRID A100-20C"), 1, (20480, 2));
    }
    let file = exported(&host, "A100-20C,count=2");
    holds(host.run(&["check", &file]), 0, &[]);
    make_mdev(&card, "00.6", "nvidia-471");
    let room = "0000:3b:00.0 has room for 1 more vGPU of type nvidia-471 (A100-20C) now";
    holds(host.run(&["check", &file]), 3, &["vgpu-unavailable", room]);
}

#[test]
fn names_that_are_no_types_and_functions_of_a_shared_card_have_a_way() {
    let host = h200(0);
    let types = "H200X-141C, H200X-70C, H200X-18C";
    let profile = "is a profile of MIG, which is not a vGPU type; no GPU can have";
    for name in ["1g.18gb", "1g.18gb+me", "MIG 3g.71gb"] {
        holds(host.run(&["plan", "--vgpu", name]), 1, &[profile, types]);
    }
    let (code, out, err) = host.run(&["plan", "--vgpu", "18c,count=2"]);
    assert!(!err.contains("MIG"), "{err}");
    holds((code, out, err), 1, &["`--vgpu H200X-18C,count=2` names the type in full"]);
    let at_card = ["plan", "--vgpu", "H200X-18C,count=2,gpu=3b:00.4"];
    holds(host.run(&at_card), 1, &["`--vgpu H200X-18C,count=2,gpu=0000:3b:00.0` names its card"]);
    let share = "`--vgpu TYPE,gpu=0000:3b:00.0` gives it a share";
    for host in [host, h200(1), a100()] {
        holds(host.run(&["plan", "--gpu", "3b:00.4"]), 1, &[share]);
    }
}

#[test]
fn a_libvirt_without_vgpus_on_virtual_functions_is_named() {
    let old = ["--assume", "libvirt=9.0,qemu=7.0"];
    let said = "libvirt is 9.0.0, and vGPUs on virtual functions need 10.0.0 or later";
    let host = h200(0);
    let file = exported(&host, "H200X-18C");
    let on = |words: &[&str]| host.run(&[words, &old].concat());
    for verb in ["plan", "capacity"] {
        holds(on(&[verb, "--vgpu", "H200X-18C"]), 1, &[said, "`virsh version` shows it"]);
    }
    holds(on(&["export", "--vgpu", "H200X-18C", "--name", "b"]), 1, &[said]);
    holds(on(&["check", &file]), 3, &["vgpu-unavailable", said]);
    holds(on(&["vgpu", "list"]), 0, &["H200X-18C"]);
    // Mediated devices need none.
    let host = t4();
    holds(host.run(&[&["plan", "--vgpu", "T4-4Q"][..], &old].concat()), 0, &["T4-4Q"]);
}

/// Two H200s without virtual functions.
fn without_functions() -> Small {
    let host = Small::new(1, 16);
    for bus in ["3b", "5e"] {
        let ids = ("0302 10de:2335", "");
        Card { host: &host, bus, ids, driver: "nvidia", total: 16 }.add(&[], None);
    }
    host
}

#[test]
fn functions_of_a_card_that_a_guest_has_as_a_whole_are_not_recommended() {
    let host = without_functions();
    let (code, xml, err) = host.run(&["export", "--gpu", "3b:00.0", "--name", "whole"]);
    assert_eq!(code, 0, "{err}");
    let first = host.path().join("whole.xml").to_str().unwrap().to_owned();
    fs::write(&first, xml).unwrap();
    let second = foreign(&host, "other", ("5e", 0));
    let enable = |bdf: &str| format!("gpuvm vgpu vfs {bdf} --on");
    let (held, free) = (enable("0000:3b:00.0"), enable("0000:5e:00.0"));
    let (code, out, err) = host.run(&["vgpu", "list", "--domain-xml", &first]);
    assert!(code == 0 && out.contains(&free) && !out.contains(&held), "{out}{err}");
    // The guest's own card comes last.
    let set = |more: &[&str]| {
        host.run(&[&["set", &first, "--gpus", "0", "--vgpu", "H200X-18C"][..], more].concat())
    };
    holds(set(&[]), 1, &["0000:5e:00.0 has no virtual functions", &free]);
    let own = "give 0000:3b:00.0 back first (--gpus 0 without --vgpu)";
    holds(set(&["--domain-xml", &second]), 1, &[own, &held]);
}

#[test]
fn remedies_fit_the_state_of_the_card() {
    // A card in mixed mode has vGPUs of two sizes.
    let host = Small::new(1, 16);
    let ids = ("0302 10de:2335", "0302 10de:2335");
    for (bus, set) in [("3b", &[1437, 1430][..]), ("5e", &[])] {
        let card = Card { host: &host, bus, ids, driver: "nvidia", total: 16 };
        let vfs = slots(16);
        card.add(&vfs, Some("nvidia"));
        for (at, slot) in vfs.iter().enumerate() {
            let types = if set.is_empty() { H200 } else { ONLY_18C };
            card.vfio(slot, set.get(at).copied().unwrap_or(0), types);
        }
    }
    let refused = host.run(&["plan", "--vgpu", "H200X-141C,gpu=0"]);
    let other = "`--vgpu H200X-141C,gpu=0000:5e:00.0` names a GPU that has it";
    assert!(!refused.2.contains("-shm 1"), "{refused:?}");
    holds(refused, 1, &["the vGPUs of 0000:3b:00.0 leave no room for this size", other]);
    // All functions are excluded.
    let host = h200(0);
    let all: Vec<String> = ["3b", "5e"]
        .iter()
        .flat_map(|bus| slots(16).into_iter().map(move |slot| format!("0000:{bus}:{slot}")))
        .collect();
    exclude(&host, &all.iter().map(String::as_str).collect::<Vec<_>>());
    let include = ["16 virtual functions excluded", "gpuvm gpu include 0000:3b:00.4"];
    holds(host.run(&["plan", "--vgpu", "H200X-18C"]), 1, &include);
}

#[test]
fn mediated_devices_pin_memory_as_functions_do() {
    for (host, vgpu) in [(t4(), "T4-4Q"), (a100(), "A100-4C"), (h200(0), "H200X-18C")] {
        let file = exported(&host, vgpu);
        let xml = fs::read_to_string(&file).unwrap();
        for part in ["<memballoon model='none'/>", "<allocation mode='immediate'"] {
            assert!(xml.contains(part), "{vgpu}: {part}: {xml}");
        }
        let (_, out, err) = host.run(&["check", &file]);
        assert!(!out.contains("balloon-with-hostdev"), "{out}{err}");
        // It has all settings of such a guest.
        let (code, out, err) = host.run(&["tune", &file, "--balloon", "on", "--fill", "on"]);
        assert!(code == 0 && !out.contains("memballoon model='virtio'"), "{out}{err}");
    }
    let host = t4();
    for share in [mediated(&host, "a"), mediated_by_argument(&host, "a")] {
        holds(host.run(&["check", &share]), 3, &["balloon-with-hostdev"]);
    }
}

#[test]
fn a_kernel_without_vfio_groups_is_named_by_every_list() {
    let host = h200(0);
    let ids = ("0302 10de:2330", "");
    Card { host: &host, bus: "71", ids, driver: "vfio-pci", total: 16 }.add(&[], None);
    let (with, without) = (recorded(&host, "7.3.4", true), recorded(&host, "7.3.4", false));
    let lack = "this kernel has no VFIO groups (CONFIG_VFIO_GROUP)";
    let state = |file: &str, verb: &str| {
        let (code, out, err) = on_record(file, &[verb, "list", "--json"]);
        assert_eq!(code, 0, "{err}");
        let rows: Value = serde_json::from_str(&out).unwrap();
        let row = rows.as_array().unwrap().iter().find(|row| row["bdf"] == "0000:71:00.0");
        row.unwrap_or_else(|| panic!("{rows}")).clone()
    };
    assert_eq!(state(&with, "gpu")["state"], "free");
    let gpu = state(&without, "gpu");
    assert_eq!(gpu["state"], "barred");
    assert!(gpu["why"].as_str().unwrap().starts_with("cannot be passed through: this kernel"));
    assert_eq!(
        (&state(&with, "device")["passable"], &state(&without, "device")["passable"]),
        (&json!(true), &json!(false))
    );
    holds(on_record(&without, &["gpu", "list"]), 0, &[lack]);
    let rule = "no-vfio-groups";
    holds(on_record(&without, &["host", "doctor"]), 3, &[rule, lack]);
    let (_, out, err) = on_record(&with, &["host", "doctor"]);
    assert!(!out.contains(rule), "{out}{err}");
    let conf = ["slurm", "conf", "--node-name", "n"];
    let files = [&conf[..], &["--files"]].concat();
    // Each plan of this host is refused, too.
    holds(on_record(&without, &files), 1, &[lack]);
    holds(on_record(&without, &conf), 1, &[lack]);
    holds(on_record(&with, &files), 0, &["File=/dev/vfio/"]);
    holds(on_record(&with, &conf), 0, &["Count=1"]);
}

#[test]
fn doctor_names_cards_whose_functions_nothing_serves() {
    let ours = ["pf-with-vfs-on-vfio", "sriov-unbound", "vf-without-type"];
    let found = |host: &Small| -> Vec<&str> {
        let (_, out, err) = host.run(&["host", "doctor", "--json"]);
        let shown: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        let all = shown["findings"].as_array().unwrap_or_else(|| panic!("{shown}"));
        ours.into_iter().filter(|rule| all.iter().any(|one| one["rule"] == *rule)).collect()
    };
    assert_eq!(found(&h200(1)), [""; 0]);
    let six = |driver, vf_driver| {
        let host = Small::new(1, 16);
        let ids = ("0302 10de:2bb5", "0302 10de:2bb5");
        Card { host: &host, bus: "41", ids, driver, total: 48 }.add(&slots(48), vf_driver);
        host
    };
    assert_eq!(found(&six("nvidia", None)), ["vf-without-type"]);
    assert_eq!(found(&six("vfio-pci", None)), ["pf-with-vfs-on-vfio", "vf-without-type"]);
    let unbound = h200(1);
    fs::remove_file(unbound.path().join("sys/bus/pci/devices/0000:5e:00.0/driver")).unwrap();
    assert_eq!(found(&unbound), ["sriov-unbound"]);
}

#[test]
fn a_vgpu_that_libvirt_would_bind_is_found() {
    let host = h200(0);
    let (code, xml, err) = host.run(&["export", "--vgpu", "H200X-18C", "--name", "a"]);
    assert_eq!(code, 0, "{err}");
    let file = host.path().join("a.xml");
    fs::write(&file, xml.replace("managed='no'", "managed='yes'")).unwrap();
    let (_, out, err) = host.run(&["check", file.to_str().unwrap()]);
    assert!(out.contains("vgpu-managed") && out.contains("managed='no'"), "{out}{err}");
}

#[test]
fn a_function_that_no_guest_can_use_is_found_in_a_domain() {
    let check = |host: &Small, at: (&str, u32)| {
        let file = foreign(host, "other", at);
        let (_, out, err) = host.run(&["check", "--json", &file]);
        let shown: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        let all = shown["findings"].as_array().unwrap_or_else(|| panic!("{shown}")).clone();
        all.into_iter().find(|one| one["rule"] == "hostdev-unsupported")
    };
    let six = Small::new(1, 16);
    let ids = ("0302 10de:2bb5", "0302 10de:2bb5");
    let card = Card { host: &six, bus: "41", ids, driver: "nvidia", total: 48 };
    card.add(&slots(4), None);
    let found = check(&six, ("41", 4)).unwrap();
    assert!(
        found["message"].to_string().contains("of 0000:41:00.0 without a vGPU type"),
        "{found}"
    );
    assert!(found["hint"].to_string().contains("gpuvm host doctor"), "{found}");
    let found = check(&a100(), ("3b", 4)).unwrap();
    assert!(found["hint"].to_string().contains("pass a mediated device of it"), "{found}");
    // A slot gets its type before its guest starts.
    assert_eq!(check(&h200(1), ("3b", 4)), None);
    assert_eq!(check(&h200(1), ("3b", 5)), None);
}

/// A libvirt and a QEMU that know iommufd.
const NEW: [&str; 2] = ["--assume", "libvirt=12.9,qemu=11.1"];

/// A record of a host with this kernel, and with VFIO groups or not; its file is below the host's.
fn recorded(host: &Small, kernel: &str, groups: bool) -> String {
    let file = host.path().join(format!("{kernel}-{groups}.json"));
    let (code, _, err) = host.run(&["host", "capture", file.to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    let mut record: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let machine = &mut record["host"]["machine"];
    machine["kernel_release"] = json!(kernel);
    machine["iommufd"] = json!({ "node": true, "groups": groups });
    fs::write(&file, record.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Runs a command line on a recorded host.
fn on_record(file: &str, words: &[&str]) -> (i32, String, String) {
    crate::support::run(crate::support::gpuvm(words).args(["--host", file]))
}

/// The UUID of a mediated device.
const UUID: &str = "6ab1f0c4-44aa-4d06-8b4e-9cf1c0f0ce6b";

/// Makes a mediated device of this type below a function.
fn make_mdev(card: &Card<'_>, slot: &str, of: &str) {
    let dir = card.at(slot).join(UUID);
    fs::create_dir_all(&dir).unwrap();
    symlink(format!("../mdev_supported_types/{of}"), dir.join("mdev_type")).unwrap();
}

/// Two T4s with mediated devices of their own; the first has one.
fn t4() -> Small {
    let host = Small::new(1, 16);
    for bus in ["3b", "5e"] {
        let t4 = Card { host: &host, bus, ids: ("0302 10de:1eb8", ""), driver: "nvidia", total: 0 };
        t4.add(&[], None);
        t4.mdev_of("00.0", ("nvidia-222", "GRID T4-4Q"), 3, (4096, 4));
        if bus == "3b" {
            make_mdev(&t4, "00.0", "nvidia-222");
        }
    }
    host
}

/// The same A100 with a mediated device of its first function.
fn a100_with_mdev() -> Small {
    let host = a100();
    let ids = ("0302 10de:20b0", "0302 10de:20b0");
    let card = Card { host: &host, bus: "3b", ids, driver: "nvidia", total: 16 };
    make_mdev(&card, "00.4", "nvidia-468");
    host
}

/// An A100 with 16 functions that are parents of mediated devices.
fn a100() -> Small {
    let host = Small::new(1, 8);
    let ids = ("0302 10de:20b0", "0302 10de:20b0");
    let card = Card { host: &host, bus: "3b", ids, driver: "nvidia", total: 16 };
    let vfs = slots(16);
    card.add(&vfs, Some("nvidia"));
    vfs.iter().for_each(|slot| card.mdev(slot, "nvidia-468", "GRID A100-4C", 1));
    host
}

#[test]
fn platforms_name_the_vgpus_that_they_lose() {
    let (vfs, mdevs) = (h200(0), a100());
    for (host, vgpu, said) in [
        (&vfs, "H200X-18C,count=2", "2 vGPUs of type H200X-18C (0000:3b:00.4 0000:3b:00.5)"),
        (&mdevs, "A100-4C", "1 vGPU of type"),
    ] {
        for format in ["nova", "kubevirt"] {
            let size = ["--name", "a", "--vcpus", "2", "--memory", "1G"];
            let line = [&["export", "--vgpu", vgpu, "--format", format][..], &size].concat();
            let (code, out, err) = host.run(&line);
            assert_eq!(code, 0, "{err}");
            let text = out.replace("\n#  ", "");
            assert_eq!(text.matches("carries no vGPUs").count(), 1, "{out}");
            assert!(text.contains(said), "{out}");
            assert!(!text.contains("lost: companions"), "{out}");
            let shown = host.json(&line).to_string();
            assert!(shown.contains(said) && !shown.contains("\"companions\""), "{shown}");
        }
    }
}

#[test]
fn mediated_devices_need_vfio_groups_whatever_the_domain_says() {
    let host = a100();
    let (with, without) = (recorded(&host, "7.3.4", true), recorded(&host, "7.3.4", false));
    let words = |verb: &'static str| {
        let vgpu = [verb, "--vgpu", "A100-4C", "--name", "a"];
        [&vgpu[..], &NEW].concat()
    };
    for verb in ["plan", "export"] {
        holds(on_record(&without, &words(verb)), 1, &["CONFIG_VFIO_GROUP"]);
    }
    let (code, xml, err) = on_record(&with, &words("export"));
    assert_eq!(code, 0, "{err}");
    let file = host.path().join("a.xml");
    let check = |host: &str, xml: &str| {
        fs::write(&file, xml).unwrap();
        on_record(host, &[&["check", file.to_str().unwrap(), "--json"][..], &NEW].concat())
    };
    let (_, out, err) = check(&with, &xml);
    assert!(!out.contains("iommufd-"), "{out}{err}");
    holds(check(&without, &xml), 3, &["iommufd-missing", "CONFIG_VFIO_GROUP"]);
    let says = xml.replacen("<features>", "<iommufd enabled='yes'/>\n  <features>", 1);
    assert!(says.contains("<iommufd enabled"), "{says}");
    let (_, out, err) = check(&with, &says);
    assert!(out.contains("iommufd-mdev"), "{out}{err}");
}

#[test]
fn capacity_by_iommufd_counts_the_vgpus_that_plan_accepts() {
    let host = h200(0);
    let old = recorded(&host, "6.17.0-5-generic", true);
    let small = ["--iommufd", "on", "--vcpus", "1", "--memory", "256M", "--pins", "none"];
    for (vgpu, code, said) in [
        ("H200X-18C", 0, "H200X-18C"),
        ("H200X-18C,count=2", 1, "devices of this guest could not reach each other"),
    ] {
        for verb in ["plan", "capacity"] {
            let words = [&[verb, "--vgpu", vgpu][..], &small, &NEW].concat();
            let (is, out, err) = on_record(&old, &words);
            assert!(!err.contains("are not counted"), "{verb} {vgpu}: {err}");
            holds((is, out, err), code, &[said]);
        }
    }
    // Mediated devices go by their groups, and none of them counts.
    let host = a100();
    let old = recorded(&host, "6.17.0-5-generic", true);
    for verb in ["plan", "capacity"] {
        let words = [&[verb, "--vgpu", "A100-4C,count=2"][..], &small, &NEW].concat();
        holds(on_record(&old, &words), 0, &["A100-4C"]);
    }
}

#[test]
fn a_plan_whose_mediated_devices_have_changed_is_refused() {
    let host = a100();
    let mut plan = host.json(&["plan", "--vgpu", "A100-4C", "--name", "a"]);
    let file = host.path().join("plan.json");
    let made = |plan: &Value| {
        fs::write(&file, plan.to_string()).unwrap();
        host.run(&["export", "--plan", file.to_str().unwrap()])
    };
    holds(made(&plan), 0, &["type='mdev'"]);
    plan["placement"]["vgpus"][0]["function"] = json!("0000:3b:00.6");
    holds(made(&plan), 1, &["other devices"]);
}

#[test]
fn a_default_name_has_the_number_and_type_of_vgpus() {
    let name = |host: &Small, vgpu: &str| {
        host.json(&["plan", "--vgpu", vgpu])["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(name(&h200(0), "H200X-18C,count=16"), "gpuvm-16v-H200X-18C");
    let named = name(&a100(), "A100-4C,count=2");
    assert!(named.starts_with("gpuvm-2v-") && named.ends_with("A100-4C"), "{named}");
}

#[test]
fn functions_of_cards_of_other_vendors_are_left_to_their_drivers() {
    for (ids, driver, said) in [
        (("1200 1002:74a1", "1200 1002:74b5"), "gim", "AMD's driver gim"),
        (("0380 8086:56c0", "0380 8086:56c0"), "i915", "0000:3b:00.0/sriov_numvfs"),
    ] {
        let host = Small::new(1, 8);
        Card { host: &host, bus: "3b", ids, driver, total: 8 }.add(&[], None);
        for way in ["--on", "--off"] {
            let (code, out, err) = host.run(&["vgpu", "vfs", "3b:00.0", way, "--dry-run"]);
            assert!(!err.contains("device release"), "{err}");
            holds((code, out, err), 1, &["is not a GPU by NVIDIA", said]);
        }
    }
}
