//! vGPUs on an NVSwitch board: partitions that are activated with virtual functions, by a real
//! libvirtd on a tree of files, and a fake Fabric Manager in the mode for vGPUs.

use super::live::{Machine, of};
use super::{Card, H200, slots};
use crate::fabric::fakes;
use crate::libvirt::place::MOST;
use crate::support::tree::Small;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Buses of its GPUs, with module ids in no order of the bus.
const GPUS: [(&str, u32); 4] = [("3b", 3), ("5e", 1), ("86", 4), ("af", 2)];
/// A whole card of each of two.
const PAIR: [&str; 2] = ["--vgpu", "H200X-141C,count=2"];

/// Has the program see Fabric Manager's configuration beside the files of /usr/share.
const SCRIPT: &str = "mount --bind /usr/share DIR/share; mount -t tmpfs tmpfs /usr/share; \
                      ln -s DIR/share/* /usr/share/; rm -f /usr/share/nvidia; \
                      mkdir -p /usr/share/nvidia/nvswitch; \
                      cp DIR/fabricmanager.cfg /usr/share/nvidia/nvswitch/";

/// A board with four H200s, whose VFs have no type yet.
fn tree() -> Small {
    let host = Small::new(1, 32);
    for (bus, _) in GPUS {
        let ids = ("0302 10de:2335", "0302 10de:2335");
        let card = Card { host: &host, bus, ids, driver: "nvidia", total: 16 };
        let vfs = slots(16);
        card.add(&vfs, Some("nvidia"));
        vfs.iter().for_each(|slot| card.vfio(slot, 0, H200));
    }
    let drivers = host.path().join("sys/bus/pci/drivers/nvidia-nvswitch");
    fs::create_dir_all(drivers).unwrap();
    for (bus, group) in [("c1", 901), ("c3", 902), ("c5", 903), ("c7", 904)] {
        let place = format!("pci0000:c0/0000:{bus}:00.0");
        host.function(&place, "0680 10de:22a3", group, &[]);
        let driver = host.path().join(format!("sys/devices/{place}/driver"));
        symlink("../../../bus/pci/drivers/nvidia-nvswitch", driver).unwrap();
    }
    host
}

/// The machine with Fabric Manager in this mode; `more`: of the fake's settings.
fn board(mode: u32, more: &str) -> Option<Machine> {
    let machine = fabric(tree(), mode)?;
    set(&machine, &format!("mode {mode}\n{more}"));
    Some(machine)
}

/// The machine of a tree, with the libraries of the fakes.
fn fabric(host: Small, mode: u32) -> Option<Machine> {
    let mut machine = Machine::on(host, &["3b", "5e", "86", "af"])?;
    let dir = machine.place.daemon.fresh_dir("fm");
    fs::create_dir(dir.join("share")).unwrap();
    fs::write(dir.join("fabricmanager.cfg"), format!("FABRIC_MODE={mode}\n")).unwrap();
    let script = SCRIPT.replace("DIR", dir.to_str().unwrap());
    let libraries = fakes().display().to_string();
    let settings = dir.join("fake").display().to_string();
    let variables = vec![("LD_LIBRARY_PATH", libraries), ("GPUVM_FAKE_NVIDIA", settings)];
    machine.place.before = Some((script, variables));
    Some(machine)
}

/// Writes the fake's settings; its state stays.
fn set(machine: &Machine, more: &str) {
    let (_, variables) = machine.place.before.as_ref().unwrap();
    let file = Path::new(&variables[1].1);
    let dir = file.parent().unwrap().display();
    let gpus: String = GPUS.iter().map(|(bus, id)| format!("gpu 0000:{bus}:00.0 {id}\n")).collect();
    let text = format!("board h100\n{gpus}strict\nstate {dir}/state\ncalls {dir}/calls\n{more}\n");
    fs::write(file, text).unwrap();
}

/// What Fabric Manager was asked for since the last time, without lists.
fn operations(machine: &Machine) -> Vec<String> {
    let (_, variables) = machine.place.before.as_ref().unwrap();
    let file = Path::new(&variables[1].1).with_file_name("calls");
    let text = fs::read_to_string(&file).unwrap_or_default();
    let _ = fs::remove_file(file);
    let calls = text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned());
    let calls = calls.filter(|call| !call.starts_with("fmGet"));
    calls.map(|call| call.replace("FabricPartition", "").replacen("fm", "", 1)).collect()
}

/// The verdict of `fabric show` on a partition, and its holders.
fn verdict(machine: &Machine, id: usize) -> (String, Vec<String>) {
    let (code, out, err) = machine.place.gpuvm(&["fabric", "show", "--json"]);
    let shown: serde_json::Value =
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("{code}: {out}{err}"));
    let one = &shown["partitions"][id];
    let holders = one["holders"].as_array().unwrap_or_else(|| panic!("{shown}")).iter();
    let holders = holders.map(|name| name.as_str().unwrap().to_owned()).collect();
    (one["verdict"].as_str().unwrap().to_owned(), holders)
}

#[test]
fn whole_cards_of_a_guest_are_those_of_a_partition_activated_with_their_functions() {
    let Some(machine) = board(2, "") else { return };
    let made = machine.done(&machine.create("a", &PAIR));
    assert!(made.contains("activate NVLink partition 3 (modules 1, 3)"), "{made}");
    assert_eq!(machine.set_types(), [of("3b:00.4", 1428), of("5e:00.4", 1428)]);
    // In the order of Fabric Manager's GPUs, not of the bus.
    assert_eq!(operations(&machine), ["ActivateWithVFs 3 0000:5e:00.4 0000:3b:00.4"]);
    assert_eq!(verdict(&machine, 3), ("ok".into(), vec!["a".into()]));
    assert_eq!(machine.broken("a"), [""; 0]);
    machine.refused(&["fabric", "release", "3", "--yes"], 1, &["held by running domain `a`"]);
    machine.done(&["stop", "a", "--force"]);
    assert_eq!(operations(&machine), ["Deactivate 3"]);
    assert_eq!(verdict(&machine, 3), ("free".into(), vec![]));
    // Fabric Manager lists the same GPUs in another order now.
    set(&machine, "mode 2\nreversed");
    machine.done(&["start", "a"]);
    assert_eq!(operations(&machine), ["ActivateWithVFs 3 0000:3b:00.4 0000:5e:00.4"]);
    machine.done(&machine.create("b", &["--vgpu", "H200X-141C"]));
    assert_eq!(operations(&machine), ["ActivateWithVFs 10 0000:86:00.4"]);
    machine.done(&["delete", "a", "--yes"]);
    machine.done(&["delete", "b", "--yes"]);
    assert_eq!(operations(&machine), ["Deactivate 3", "Deactivate 10"]);
    assert_eq!(machine.set_types(), []);
}

#[test]
fn sets_that_are_no_partition_are_refused_with_those_that_exist() {
    let Some(machine) = board(2, "") else { return };
    let three = machine.create("a", &["--vgpu", "H200X-141C,count=3"]);
    let parts = ["partitions have 1, 2", "plan --vgpu H200X-141C,count=2` fits"];
    machine.refused(&three, 1, &parts);
    // A GPU of each of two pairs is left: no partition has both.
    machine.done(&machine.create("one", &["--vgpu", "H200X-141C,gpu=0"]));
    machine.done(&machine.create("two", &["--vgpu", "H200X-141C,gpu=2"]));
    machine.refused(&machine.create("a", &PAIR), 1, &["requested 2 vGPUs", "H200X-141C"]);
    // The partition of a guest that is off is active for none.
    let plan = machine.json(&["plan", "--vgpu", "H200X-141C"]);
    assert_eq!(plan["placement"]["devices"][0], "0000:5e:00.4");
}

#[test]
fn a_partition_of_one_card_stays_active_until_the_last_of_its_guests_is_off() {
    let Some(machine) = board(2, "") else { return };
    for name in ["a", "b"] {
        machine.done(&machine.create(name, &["--vgpu", "H200X-18C"]));
    }
    assert_eq!(machine.set_types(), [of("3b:00.4", 1437), of("3b:00.5", 1437)]);
    assert_eq!(operations(&machine), ["ActivateWithVFs 9 0000:3b:00.4"]);
    assert_eq!(verdict(&machine, 9), ("ok".into(), vec!["a".into(), "b".into()]));
    assert_eq!([machine.broken("a"), machine.broken("b")], [[""; 0], [""; 0]]);
    let said = machine.done(&["stop", "a", "--force"]);
    assert!(said.contains("stays active: another guest has a vGPU of its GPU"), "{said}");
    assert_eq!(verdict(&machine, 9), ("ok".into(), vec!["b".into()]));
    machine.done(&["stop", "b", "--force"]);
    assert_eq!(operations(&machine), ["Deactivate 9"]);
    machine.done(&["start", "b"]);
    assert_eq!(operations(&machine), ["ActivateWithVFs 9 0000:3b:00.5"]);
    machine.done(&["start", "a"]);
    machine.done(&["delete", "b", "--yes"]);
    assert_eq!(operations(&machine), [""; 0]);
    machine.done(&["delete", "a", "--yes"]);
    assert_eq!(operations(&machine), ["Deactivate 9"]);
}

/// Restarts Fabric Manager, with these settings: nothing is active.
fn restart(machine: &Machine, more: &str) {
    let (_, variables) = machine.place.before.as_ref().unwrap();
    let _ = fs::remove_file(Path::new(&variables[1].1).with_file_name("state"));
    set(machine, more);
    operations(machine);
}

/// Sets the mode in Fabric Manager's configuration.
fn configure(machine: &Machine, mode: u32) {
    let (_, variables) = machine.place.before.as_ref().unwrap();
    let file = Path::new(&variables[1].1).with_file_name("fabricmanager.cfg");
    fs::write(file, format!("FABRIC_MODE={mode}\n")).unwrap();
}

#[test]
fn vgpus_of_a_board_need_fabric_manager_in_their_mode() {
    let Some(machine) = board(1, "") else { return };
    let parts = [
        "0000:3b:00.0 is on an NVSwitch board whose Fabric Manager is not in the mode for vGPUs",
        "hint: `sed -i 's/^FABRIC_MODE=.*/FABRIC_MODE=2/'",
    ];
    machine.refused(&machine.create("a", &PAIR), 1, &parts);
    for verb in ["plan", "export"] {
        machine.refused(&[verb, "--vgpu", "H200X-18C", "--name", "b"], 1, &parts);
    }
    let left = machine.json(&["capacity"]);
    assert!(left["vgpus"].as_array().unwrap().iter().all(|of| of["creatable"] == 0), "{left}");
    let counted = machine.done(&["capacity", "--vgpu", "H200X-18C"]);
    assert!(counted.contains("is not in the mode for vGPUs"), "{counted}");
    assert!(machine.done(&["vgpu", "list"]).contains("is not in the mode for vGPUs"));
    assert_eq!((machine.set_types(), operations(&machine)), (vec![], vec![]));
    // The record of such a host says so, too.
    let file = machine.place.disks.with_file_name("record.json");
    let record = file.to_str().unwrap();
    machine.done(&["host", "capture", record]);
    machine.refused(&["plan", "--vgpu", "H200X-18C", "--host", record], 1, &parts);
    // A guest that was made in the other mode is not started.
    configure(&machine, 2);
    machine.done(&machine.create("a", &["--vgpu", "H200X-18C", "--no-start"]));
    configure(&machine, 1);
    machine.refused(&["start", "a"], 1, &[&["domain `a` is not started"], &parts[..]].concat());
    // It does not answer.
    let Some(machine) = board(2, "address elsewhere") else { return };
    machine.refused(&machine.create("a", &PAIR), 1, &["partition 3 cannot be activated"]);
    assert_eq!(machine.set_types(), []);
}

#[test]
fn partitions_with_functions_are_restored_from_our_record_alone() {
    let Some(machine) = board(2, "") else { return };
    machine.done(&machine.create("a", &PAIR));
    // The group of the third guest's function has a node of its own, so that its QEMU is seen.
    machine.give_node("86:00.5", "1:7");
    for name in ["b", "c"] {
        machine.done(&machine.create(name, &["--vgpu", "H200X-18C,gpu=2"]));
    }
    let restored = |args: &[&str], code: i32, made: &[&str]| {
        let args = [&["fabric", "restore", "--json"], args].concat();
        let (found, out, err) = machine.place.gpuvm(&args);
        assert_eq!(operations(&machine), made, "{args:?}: {out}{err}");
        assert_eq!(found, code, "{args:?}: {out}{err}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()
    };
    let pair = "ActivateWithVFs 3 0000:5e:00.4 0000:3b:00.4";
    // Restarted with --restart, it waits for the list, and NVLinks stay up.
    restart(&machine, "mode 2\nrestart_mode 600000");
    restored(&["--dry-run"], 0, &[]);
    restored(&[], 0, &["SetActivateds 3,10"]);
    assert_eq!(verdict(&machine, 10), ("ok".into(), vec!["b".into(), "c".into()]));
    // Started plainly.
    restart(&machine, "mode 2");
    let shown = restored(&[], 3, &[pair, "ActivateWithVFs 10 0000:86:00.4"]);
    let broken: Vec<&str> = shown["broken"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!((&shown["unplaced"], &broken[..]), (&serde_json::json!([]), &["a", "b", "c"][..]));
    restored(&[], 0, &[]);
    // The guest that the shared one is recorded for is off. At boot libvirt is not asked.
    machine.done(&["stop", "b", "--force"]);
    for more in [&["--boot"][..], &[]] {
        restart(&machine, "mode 2");
        restored(more, 3, &[pair, "ActivateWithVFs 10 0000:86:00.5"]);
    }
    // One that is not recorded, as if another program had activated it, is named and left.
    let file = machine.place.daemon.own_path("/var/lib/gpuvm/fabric.json");
    let mut list: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    list["partitions"].as_array_mut().unwrap().retain(|one| one["id"] != 3);
    fs::write(&file, list.to_string()).unwrap();
    for (more, code, made) in [
        ("restart_mode 600000", 3, "SetActivateds 10"),
        ("answers new", 3, "ActivateWithVFs 10 0000:86:00.5"),
    ] {
        restart(&machine, &format!("mode 2\n{more}"));
        let shown = restored(&[], code, &[made]);
        assert_eq!(shown["unplaced"][0]["name"], "a", "{shown}");
        assert!(shown["unrestored"][0]["hint"].as_str().unwrap().contains("restart a"), "{shown}");
    }
    for name in ["a", "b", "c"] {
        machine.done(&["delete", name, "--yes"]);
    }
    assert_eq!(machine.set_types(), []);
}

#[test]
fn vgpus_that_mig_backs_are_limited_by_the_instances_that_nvml_reports() {
    let host = tree();
    let of = |bus: &str, types: &str| {
        slots(16).iter().for_each(|slot| {
            let file = format!("sys/bus/pci/devices/0000:{bus}:{slot}/nvidia/creatable_vgpu_types");
            host.write(&file, types);
        });
    };
    of("3b", "1501 : NVIDIA H200X-1-18C\n1502 : NVIDIA H200X-1-9C\n1503 : NVIDIA H200X-2-35C");
    let Some(machine) = fabric(host, 2) else { return };
    let gpu = "0000:3b:00.0";
    let mig = format!("health {gpu} mig 1\nhealth {gpu} mig-pending 1\n");
    // Profile 19 has three instances: one vGPU of 18 GiB each, or two of 9 GiB.
    let known = "backed 1501 19 1\nbacked 1502 19 2\nbacked 1503 14 -\n";
    let of_19 = format!("instances {gpu} 19 3\n");
    set(&machine, &format!("mode 2\n{mig}{known}{of_19}"));
    let rows = machine.json(&["vgpu", "list"]);
    let types = rows[0]["types"].as_array().unwrap().iter();
    let creatable: Vec<u64> = types.map(|of| of["creatable"].as_u64().unwrap()).collect();
    // Of the third NVML does not report enough: as many as the memory has room for.
    assert_eq!(creatable, [3, 6, 4], "{rows}");
    let shown = machine.place.done(&["vgpu", "list"]);
    for part in ["3 GPU instances for 2 each", "number of GPU instances unknown"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let counted =
        machine.json(&["capacity", "--vgpu", "H200X-1-9C", "--vcpus", "1", "--memory", "256M"]);
    assert_eq!(counted["vgpus"][0]["guests"]["now"], 6, "{counted}");
    let why = ["3 creatable, 0 in use, 3 GPU instances for 1 each", "requested 4 vGPUs"];
    machine.refused(&["plan", "--vgpu", "H200X-1-18C,count=4"], 1, &why);
    let said = "how many GPU instances of MIG 0000:3b:00.0 has for them is unknown";
    let unknown = machine.place.done(&["plan", "--vgpu", "H200X-2-35C"]);
    assert!(unknown.contains(said), "{unknown}");
    let known = machine.place.done(&["plan", "--vgpu", "H200X-1-9C", "--explain"]);
    assert!(!known.contains(said) && !known.contains("must be bound"), "{known}");
    // Two of 9 GiB take an instance from those of 18 GiB.
    machine.place.gpuvm(&["vgpu", "list"]);
    machine.host.write("sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "1502");
    let rows = machine.json(&["vgpu", "list"]);
    assert_eq!([&rows[0]["types"][0]["creatable"], &rows[0]["types"][1]["creatable"]], [2, 5]);
    // None has room.
    set(&machine, &format!("mode 2\n{mig}backed 1501 19 1\ninstances {gpu} 19 0\n"));
    machine.refused(
        &["plan", "--vgpu", "H200X-1-18C"],
        1,
        &["nvidia-smi mig -i 0000:3b:00.0 -cgi 19"],
    );
}

#[test]
fn a_change_with_a_partition_of_functions_killed_at_any_record_is_recovered() {
    let Some(machine) = board(2, "") else { return };
    let create = machine.create("a", &PAIR);
    let delete = vec!["delete", "a", "--yes"];
    let stride = if std::env::var("GPUVM_KILLS").is_ok_and(|kills| kills == "all") { 1 } else { 3 };
    for (args, is_made, least) in [(&create, false, 10), (&delete, true, 6)] {
        let mut ended = None;
        for n in (1..MOST).step_by(stride) {
            if is_made {
                machine.done(&create);
            }
            let is_done = machine.place.killed(n, args);
            let said = machine.place.recover();
            // The driver follows.
            machine.done(&["vgpu", "list"]);
            let has = machine.place.has("a");
            if has {
                machine.done(&delete);
            }
            let (state, holders) = verdict(&machine, 3);
            assert_eq!((state.as_str(), holders.len()), ("free", 0), "record {n}: {said}");
            assert_eq!(machine.set_types(), [], "record {n}: {said}");
            if is_done {
                ended = Some(n);
                break;
            }
        }
        assert!(ended.is_some_and(|n| n >= least), "{args:?}: {ended:?}");
    }
}
