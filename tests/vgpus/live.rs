//! vGPUs of real domains: a libvirtd of the test's own on a tree with two H200s. The kernel's part
//! is files: a type that is written is read back. QEMU gets no function, and has its group open.

mod direct;
mod tested;

use super::{h200, slots};
use crate::libvirt::place::{MOST, Place};
use crate::support::tree::Small;
use crate::support::{project, run};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

/// QEMU without the functions of its command line; it has their groups open, as QEMU has.
const QEMU: &str = r#"#!/bin/bash
words=()
while [ $# -gt 0 ]; do
  if [ "$1" = -device ] && [[ $2 == *vfio-pci* ]]; then
    at=${2#*\"host\":\"}; at=${at%%\"*}
    group=$(readlink "/sys/bus/pci/devices/$at/iommu_group")
    exec {open}<>"/dev/vfio/${group##*/}" || exit 1
    shift 2
  else
    words+=("$1"); shift
  fi
done
exec REAL "${words[@]}"
"#;

/// Types of an H200: number, name, how many a card has.
const TYPES: [(u32, &str, usize); 3] =
    [(1428, "H200X-141C", 1), (1430, "H200X-70C", 2), (1437, "H200X-18C", 8)];

/// A machine with H200s.
pub(super) struct Machine {
    pub host: Small,
    pub place: Place,
    /// Their buses.
    buses: &'static [&'static str],
    /// The template of its guests, without a NIC: libvirt may not raise the limit of locked memory
    /// in containers.
    template: String,
}

impl Machine {
    /// One with two; none if this machine cannot have it.
    fn new() -> Option<Machine> {
        Machine::on(h200(0), &["3b", "5e"])
    }

    /// Sets up one of such a tree.
    pub fn on(host: Small, buses: &'static [&'static str]) -> Option<Machine> {
        host.write("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 16000000 kB");
        for entry in fs::read_dir(host.path().join("sys/bus/pci/devices")).unwrap() {
            let (dir, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name());
            let link = dir.join("iommu_group");
            let group = fs::read_link(&link).unwrap().file_name().unwrap().to_owned();
            let group = Path::new("/sys/kernel/iommu_groups").join(group);
            // libvirt follows it.
            fs::remove_file(&link).unwrap();
            symlink(&group, link).unwrap();
            let members = host.path().join(group.strip_prefix("/").unwrap()).join("devices");
            fs::create_dir_all(&members).unwrap();
            symlink(Path::new("/sys/bus/pci/devices").join(&name), members.join(name)).unwrap();
            fs::create_dir_all(dir.join("vfio-dev/vfio0")).unwrap();
            fs::write(dir.join("config"), [0; 256]).unwrap();
        }
        let place = Place::on(Some(host.path()))?;
        let template = place.daemon.fresh_dir("templates").join("limited.xml");
        let text = fs::read_to_string(project().join("templates/gpu-guest.xml")).unwrap();
        let limit = "<memtune><hard_limit unit='KiB'>8192</hard_limit></memtune>\n  <os ";
        let (before, rest) = text.split_once("<interface").unwrap();
        let (_, after) = rest.split_once("</interface>").unwrap();
        let text = format!("{before}{after}").replacen("<os ", limit, 1);
        fs::write(&template, text).unwrap();
        let template = template.display().to_string();
        let machine = Machine { host, place, buses, template };
        machine.give_qemu();
        Some(machine)
    }

    /// Leaves the limit of locked memory out of the template, which no bundle contains: its guests
    /// are not started.
    fn lift_limit(&self) {
        let text = fs::read_to_string(&self.template).unwrap();
        let (before, rest) = text.split_once("<memtune>").unwrap();
        let (_, after) = rest.split_once("</memtune>").unwrap();
        fs::write(&self.template, format!("{before}{after}")).unwrap();
    }

    /// Gives libvirtd a QEMU that starts without functions, and the nodes of VFIO.
    fn give_qemu(&self) {
        let dir = self.place.daemon.fresh_dir("qemu");
        let (real, ours) = (dir.join("real-qemu"), dir.join("ours"));
        fs::write(&real, "").unwrap();
        fs::write(&ours, QEMU.replace("REAL", real.to_str().unwrap())).unwrap();
        fs::set_permissions(&ours, fs::Permissions::from_mode(0o755)).unwrap();
        let script = "set -e; umask 0; qemu=/usr/bin/qemu-system-x86_64; mount --bind $qemu \
                      \"$1\"; mount --bind \"$2\" $qemu; mkdir -p /dev/vfio; mount -t tmpfs \
                      tmpfs /dev/vfio; mkdir -p /lib/modules; mount -t tmpfs tmpfs /lib/modules; \
                      modules=/lib/modules/$(uname -r); mkdir $modules; >$modules/modules.alias; \
                      for node in vfio $(ls /sys/kernel/iommu_groups); do mknod \
                      /dev/vfio/$node c 1 3; done";
        let mut inside = self.place.daemon.enter(&["--mount"], "bash");
        let (code, out, err) = run(inside.args(["-c", script, "bash"]).arg(real).arg(ours));
        assert_eq!(code, 0, "{out}{err}");
    }

    /// Gives the group of a function a node that no other has (null(4)), as the kernel shows it.
    pub fn give_node(&self, slot: &str, number: &str) {
        let link = self.host.path().join(format!("sys/bus/pci/devices/0000:{slot}/iommu_group"));
        let group = fs::read_link(link).unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        self.host.write(&format!("sys/class/vfio/{group}/dev"), number);
        let (major, minor) = number.split_once(':').unwrap();
        let script = "umask 0; rm /dev/vfio/$1; mknod /dev/vfio/$1 c $2 $3";
        let mut inside = self.place.daemon.enter(&["--mount"], "bash");
        let (code, out, err) = run(inside.args(["-ec", script, "bash", &group, major, minor]));
        assert_eq!(code, 0, "{out}{err}");
    }

    fn file(slot: &str, name: &str) -> String {
        format!("sys/bus/pci/devices/0000:{slot}/nvidia/{name}")
    }

    /// The type of a function.
    fn current(&self, slot: &str) -> u32 {
        let file = self.host.path().join(Machine::file(slot, "current_vgpu_type"));
        fs::read_to_string(file).unwrap().trim().parse().unwrap()
    }

    /// Functions with a type, each with it.
    pub fn set_types(&self) -> Vec<(String, u32)> {
        let cards = self.buses.iter();
        let all = cards.flat_map(|bus| slots(16).into_iter().map(move |at| format!("{bus}:{at}")));
        let typed = all.map(|slot| (self.current(&slot), slot)).filter(|(number, _)| *number != 0);
        typed.map(|(number, slot)| (slot, number)).collect()
    }

    /// Sets a type, as another program or a restart of the host does.
    pub fn set(&self, slot: &str, number: u32) {
        self.host.write(&Machine::file(slot, "current_vgpu_type"), &number.to_string());
        self.settle();
    }

    /// Has each function offer what its card can have, as the driver does: one size per card.
    fn settle(&self) {
        for bus in self.buses {
            let all: Vec<String> = slots(16).iter().map(|at| format!("{bus}:{at}")).collect();
            let set: Vec<u32> =
                all.iter().map(|at| self.current(at)).filter(|number| *number != 0).collect();
            let fits = |(number, _, most): &&(u32, &str, usize)| {
                set.iter().all(|other| other == number) && set.len() < *most
            };
            let lines = TYPES.iter().filter(fits);
            let lines = lines.map(|(number, name, _)| format!("{number}  : NVIDIA {name}\n"));
            let text = format!("ID    : vGPU Name\n{}", lines.collect::<String>());
            for slot in all {
                self.host.write(&Machine::file(&slot, "creatable_vgpu_types"), &text);
            }
        }
    }

    /// The arguments of a create, with more.
    pub fn create<'a>(&'a self, name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let disks = self.place.disks.to_str().unwrap();
        let small = ["--disk-dir", disks, "--data-size", "none", "--os-size", "1M"];
        let from = ["--template", self.template.as_str()];
        self.place.create(name, &[&small[..], &from, more].concat())
    }

    /// Runs the program, which must succeed, and lets the driver follow. Returns its output.
    #[track_caller]
    pub fn done(&self, args: &[&str]) -> String {
        let (code, out, err) = self.place.gpuvm(args);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        self.settle();
        out + &err
    }

    /// Runs it; it must fail with this code and these texts.
    #[track_caller]
    pub fn refused(&self, args: &[&str], wanted: i32, parts: &[&str]) {
        super::holds(self.place.gpuvm(args), wanted, parts);
    }

    /// The JSON of a verb.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let (code, out, err) = self.place.gpuvm(&[args, &["--json"]].concat());
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        serde_json::from_str(&out).unwrap()
    }

    /// The rules that a guest breaks.
    pub fn broken(&self, name: &str) -> Vec<String> {
        let (_, out, err) = self.place.gpuvm(&["verify", name, "--json"]);
        let shown: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        let all = shown["findings"].as_array().unwrap().iter();
        all.map(|one| one["rule"].as_str().unwrap().to_owned()).collect()
    }

    /// The vGPUs of the first card in `vgpu list`: function, type, domains.
    fn listed(&self) -> Vec<[String; 3]> {
        let rows = self.json(&["vgpu", "list"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let all = rows[0]["vgpus"].as_array().unwrap().iter();
        let row = |one: &Value| {
            let domains = one["domains"].as_array().unwrap().iter().map(text);
            let domains = domains.collect::<Vec<_>>().join(",");
            [text(&one["function"]), text(&one["name"]), domains]
        };
        all.map(row).collect()
    }
}

const VGPU: [&str; 2] = ["--vgpu", "H200X-18C"];

/// A type that is set, as [`Machine::set_types`] lists it.
pub(super) fn of(slot: &str, number: u32) -> (String, u32) {
    (slot.to_owned(), number)
}

#[test]
fn a_guest_gets_its_vgpu_has_it_after_a_restart_of_the_host_and_gives_it_back() {
    let Some(machine) = Machine::new() else { return };
    let made = machine.done(&machine.create("a", &VGPU));
    assert!(made.contains("set vGPU type 1437 for 0000:3b:00.4"), "{made}");
    assert_eq!(machine.set_types(), [of("3b:00.4", 1437)]);
    let xml = machine.place.virsh(&["dumpxml", "--inactive", "a"]).replace('"', "'");
    for part in [
        "<hostdev mode='subsystem' type='pci' managed='no'",
        "<address domain='0x0000' bus='0x3b' slot='0x00' function='0x4'/>",
        "ua-vgpu0",
        "bdf='0000:3b:00.4' card='0000:3b:00.0' type='1437' name='H200X-18C'",
    ] {
        assert!(xml.contains(part), "{part}: {xml}");
    }
    assert_eq!(machine.broken("a"), [""; 0]);
    assert_eq!(machine.listed(), [["0000:3b:00.4", "H200X-18C", "a"]]);
    let shown = machine.done(&["show", "a"]);
    for part in ["--vgpu H200X-18C", "H200X-18C of 0000:3b:00.0, 0000:3b:00.4"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // A stopped guest keeps its type; the host restarts without.
    machine.done(&["stop", "a", "--force"]);
    assert_eq!(machine.set_types(), [of("3b:00.4", 1437)]);
    machine.set("3b:00.4", 0);
    assert_eq!(machine.broken("a"), [""; 0]);
    assert_eq!(machine.listed()[0][2], "a");
    machine.done(&["start", "a"]);
    assert_eq!(machine.set_types(), [of("3b:00.4", 1437)]);
    // The running guest has lost it.
    machine.set("3b:00.4", 1430);
    assert_eq!(machine.broken("a"), ["vgpu-type"]);
    let clears = "echo 0 > /sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type";
    machine.refused(&["verify", "a"], 3, &["gpuvm stop a", clears, "gpuvm start a"]);
    machine.done(&["stop", "a", "--force"]);
    machine.refused(&["start", "a"], 1, &["has vGPU type 1430, not 1437", clears]);
    machine.set("3b:00.4", 0);
    machine.done(&["start", "a"]);
    assert_eq!(machine.set_types(), [of("3b:00.4", 1437)]);
    let gone = machine.done(&["delete", "a", "--yes"]);
    assert!(gone.contains("clear vGPU type 1437 of 0000:3b:00.4"), "{gone}");
    assert_eq!(machine.set_types(), []);
}

#[test]
fn two_guests_on_one_card_have_vgpus_of_one_size() {
    let Some(machine) = Machine::new() else { return };
    for name in ["a", "b"] {
        machine.done(&machine.create(name, &VGPU));
    }
    assert_eq!(machine.set_types(), [of("3b:00.4", 1437), of("3b:00.5", 1437)]);
    let both = ["a", "b"].map(|name| machine.broken(name));
    assert_eq!(both, [[""; 0], [""; 0]]);
    let other = machine.create("c", &["--vgpu", "H200X-70C,gpu=0"]);
    machine.refused(&other, 1, &["0000:3b:00.0: H200X-18C", "-shm 1 -i 0000:3b:00.0"]);
    machine.done(&machine.create("c", &["--vgpu", "H200X-70C"]));
    assert_eq!(machine.set_types()[2..], [of("5e:00.4", 1430)]);
    // The name is taken: nothing changes.
    let again = machine.create("b", &VGPU);
    machine.refused(&again, 1, &["has a domain of this name"]);
    assert_eq!(machine.set_types().len(), 3);
    machine.refused(&["vgpu", "vfs", "3b:00.0", "--off"], 1, &["is held by domain `a`"]);
    machine.done(&["delete", "a", "--yes"]);
    assert_eq!(machine.set_types(), [of("3b:00.5", 1437), of("5e:00.4", 1430)]);
    assert_eq!(machine.broken("b"), [""; 0]);
    machine.done(&["delete", "b", "--yes"]);
    machine.done(&["delete", "c", "--yes"]);
    assert_eq!(machine.set_types(), []);
}

#[test]
fn a_card_of_a_guest_as_a_whole_keeps_its_functions_off_and_the_reverse() {
    let Some(machine) = Machine::new() else { return };
    let whole = "<domain type='qemu'><name>whole</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>\
                 <os><type arch='x86_64' machine='q35'>hvm</type></os><devices><hostdev \
                 mode='subsystem' type='pci' managed='yes'><source><address domain='0' bus='0x5e' \
                 slot='0' function='0'/></source></hostdev></devices></domain>";
    let file = machine.place.disks.join("whole.xml");
    fs::write(&file, whole).unwrap();
    machine.place.virsh(&["define", file.to_str().unwrap()]);
    let held = "0000:5e:00.0 is held by domain `whole`, as a whole";
    let parts = [held, "`gpuvm delete whole`, or `gpuvm set whole --gpus 0`"];
    // Also where the functions are there already: it could not start any more.
    machine.refused(&["vgpu", "vfs", "5e:00.0", "--on"], 1, &parts);
    machine.refused(&["vgpu", "vfs", "5e:00.0", "--on", "--at-boot", "--dry-run"], 1, &parts);
    machine.refused(&machine.create("a", &["--vgpu", "H200X-18C,gpu=1"]), 1, &[held]);
    let two = machine.create("a", &["--vgpu", "H200X-141C,count=2"]);
    machine.refused(&two, 1, &["1 available", held]);
    assert!(machine.done(&["vgpu", "list"]).contains(held));
    machine.refused(&["start", "whole"], 1, &["0000:5e:00.0", "16 virtual functions"]);
    assert_eq!(machine.set_types(), []);
    machine.done(&machine.create("a", &VGPU));
    machine.refused(&["vgpu", "vfs", "3b:00.0", "--off"], 1, &["held by domain `a`"]);
    machine.refused(&["plan", "--gpu", "3b:00.0"], 1, &["16 virtual functions enabled"]);
    machine.done(&["delete", "a", "--yes"]);
}

#[test]
fn functions_for_vgpus_are_not_bound_and_excluded_ones_not_chosen() {
    let Some(machine) = Machine::new() else { return };
    machine.set("3b:00.5", 1437);
    let bind = |slot: &str, more: &[&str]| {
        let words = [&["device", "bind", slot, "--yes"][..], more].concat();
        let what = format!("0000:{slot} is a");
        let parts = [what.as_str(), "of 0000:3b:00.0", "gpuvm create --vgpu TYPE"];
        machine.refused(&words, 1, &parts);
    };
    for slot in ["3b:00.4", "3b:00.5"] {
        for more in [&[][..], &["--force"], &["--at-boot"], &["--dry-run"]] {
            bind(slot, more);
        }
    }
    machine.done(&["gpu", "exclude", "3b:00.4"]);
    machine.done(&machine.create("a", &VGPU));
    assert_eq!(machine.set_types(), [of("3b:00.5", 1437), of("3b:00.6", 1437)]);
    machine.done(&["gpu", "include", "3b:00.4"]);
    machine.done(&machine.create("b", &VGPU));
    assert_eq!(machine.set_types()[0], of("3b:00.4", 1437));
    // A guest that is off needs the card on its driver, too.
    machine.done(&["stop", "a", "--force"]);
    let shared = "0000:3b:00.0 is shared: domain `a` has vGPU H200X-18C of it";
    for more in [&[][..], &["--dry-run"], &["--force", "--yes"]] {
        let words = [&["device", "bind", "3b:00.0"][..], more].concat();
        machine.refused(&words, 1, &[shared, "gpuvm set a --no-vgpu"]);
    }
}

#[test]
fn a_card_with_vgpus_is_not_bound_by_way_of_another_function_of_its_group() {
    let host = h200(0);
    host.function("pci0000:3a/0000:3a:01.0/0000:3b:00.1", "0403 10de:22ba", 5901, &[]);
    let Some(machine) = Machine::on(host, &["3b", "5e"]) else { return };
    machine.done(&machine.create("a", &VGPU));
    machine.done(&["stop", "a", "--force"]);
    let shared = "0000:3b:00.0 is shared: domain `a` has vGPU H200X-18C of it";
    machine.refused(&["device", "bind", "3b:00.1", "--dry-run"], 1, &[shared]);
}

#[test]
fn a_type_that_another_has_set_is_never_cleared() {
    let Some(machine) = Machine::new() else { return };
    machine.set("3b:00.4", 1437);
    machine.done(&machine.create("a", &VGPU));
    let theirs = of("3b:00.4", 1437);
    assert_eq!(machine.set_types(), [theirs.clone(), of("3b:00.5", 1437)]);
    assert_eq!(machine.broken("a"), ["vgpu-orphan"]);
    assert_eq!(machine.listed()[0][2], "");
    // A guest that has never run: the type that its record names was set by another.
    machine.done(&machine.create("never", &[&VGPU[..], &["--no-start"]].concat()));
    machine.set("3b:00.6", 1437);
    let gone = machine.done(&["delete", "never", "--yes"]);
    assert!(gone.contains("vGPU type 1437 of 0000:3b:00.6 was not set by gpuvm"), "{gone}");
    // One that starts with the type of another, after a restart of the host.
    machine.done(&["stop", "a", "--force"]);
    machine.set("3b:00.5", 0);
    fs::remove_dir_all(machine.place.daemon.own_path("/run/gpuvm/vgpu-types")).unwrap();
    machine.set("3b:00.5", 1437);
    machine.done(&["start", "a"]);
    machine.done(&["delete", "a", "--yes"]);
    let all = ["3b:00.4", "3b:00.5", "3b:00.6"].map(|slot| of(slot, 1437));
    assert_eq!(machine.set_types(), all);
    // Meanwhile it has another type.
    machine.set("3b:00.5", 0);
    machine.done(&machine.create("b", &VGPU));
    machine.done(&["stop", "b", "--force"]);
    machine.set("3b:00.5", 1430);
    let gone = machine.done(&["delete", "b", "--yes"]);
    assert!(gone.contains("has vGPU type 1430, and had 1437 for this guest"), "{gone}");
    assert_eq!(machine.current("3b:00.5"), 1430);
}

#[test]
fn the_vgpu_of_a_copy_of_its_guest_is_left() {
    let Some(machine) = Machine::new() else { return };
    machine.done(&machine.create("a", &VGPU));
    let text = machine.place.virsh(&["dumpxml", "--inactive", "a"]);
    let (before, rest) = text.split_once("<uuid>").unwrap();
    let (_, after) = rest.split_once("</uuid>").unwrap();
    let copy = format!("{before}{after}").replacen("<name>a</name>", "<name>copy</name>", 1);
    let file = machine.place.disks.join("copy.xml");
    fs::write(&file, copy).unwrap();
    machine.place.virsh(&["define", file.to_str().unwrap()]);
    let gone = machine.done(&["delete", "a", "--yes"]);
    assert!(gone.contains("domain `copy` has vGPU 0000:3b:00.4, too: it is left"), "{gone}");
    assert_eq!(machine.set_types(), [of("3b:00.4", 1437)]);
}

#[test]
fn a_type_is_not_cleared_while_a_process_has_the_function_open() {
    let Some(machine) = Machine::new() else { return };
    machine.done(&machine.create("a", &VGPU));
    machine.done(&["stop", "a", "--force"]);
    // The node of the group is one that no other process has open.
    let link = machine.host.path().join("sys/bus/pci/devices/0000:3b:00.4/iommu_group");
    let group = fs::read_link(link).unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    machine.host.write(&format!("sys/class/vfio/{group}/dev"), "1:7");
    let full = fs::File::open("/dev/full").unwrap();
    let mut opener = Command::new("sleep").arg("600").stdin(full).spawn().unwrap();
    let (code, out, err) = machine.place.gpuvm(&["delete", "a", "--yes"]);
    opener.kill().unwrap();
    opener.wait().unwrap();
    let said = format!("in use by process {}", opener.id());
    super::holds((code, out, err), 0, &[&said, "left as it is"]);
    assert_eq!(machine.set_types(), [of("3b:00.4", 1437)]);
}

/// Kills a change at one in `stride` of the records of its journal, and expects after each
/// `recover` that there are guest and type, or neither; `begin` and `end` surround each run.
fn killed(machine: &Machine, args: &[&str], begin: &dyn Fn(), least: usize) {
    let stride = if std::env::var("GPUVM_KILLS").is_ok_and(|kills| kills == "all") { 1 } else { 3 };
    for n in (1..MOST).step_by(stride) {
        begin();
        let is_done = machine.place.killed(n, args);
        machine.settle();
        let said = machine.place.recover();
        machine.settle();
        let has = machine.place.has("a");
        let typed = machine.set_types();
        assert!(has || typed.is_empty(), "record {n}: {typed:?}: {said}");
        assert!(typed.is_empty() || typed == [of("3b:00.4", 1437)], "record {n}: {typed:?}");
        if has {
            machine.done(&["delete", "a", "--yes"]);
        }
        assert_eq!(machine.set_types(), [], "record {n}: {said}");
        assert!(crate::libvirt::files(&machine.place.disks).is_empty(), "record {n}");
        if is_done {
            assert!(n >= least, "only {n} records were seen: the test proves nothing");
            return;
        }
    }
    panic!("it never comes to its end");
}

#[test]
fn a_create_with_a_vgpu_killed_at_any_record_leaves_nothing() {
    let Some(machine) = Machine::new() else { return };
    killed(&machine, &machine.create("a", &VGPU), &|| {}, 9);
}

#[test]
fn a_start_and_a_delete_with_a_vgpu_killed_at_any_record_are_recovered() {
    let Some(machine) = Machine::new() else { return };
    let off = || {
        machine.done(&machine.create("a", &[&VGPU[..], &["--no-start"]].concat()));
    };
    killed(&machine, &["start", "a"], &off, 3);
    let on = || {
        machine.done(&machine.create("a", &VGPU));
    };
    killed(&machine, &["delete", "a", "--yes"], &on, 6);
}

#[test]
fn a_guest_keeps_its_vgpu_where_it_is_changed_and_gets_another_one_on_request() {
    let Some(machine) = Machine::new() else { return };
    machine.done(&machine.create("a", &[&VGPU[..], &["--no-start"]].concat()));
    let xml = |name: &str| machine.place.virsh(&["dumpxml", "--inactive", name]);
    let own = "bdf='0000:3b:00.4' card='0000:3b:00.0' type='1437' name='H200X-18C'";
    for change in
        [&["set", "a", "--vcpus", "2"][..], &["tune", "a"], &["set", "a", "--memory", "300M"]]
    {
        machine.done(&[change, &["--yes"]].concat());
        let xml = xml("a").replace('"', "'");
        assert!(xml.contains(own) && xml.contains("function='0x4'"), "{change:?}: {xml}");
    }
    machine.done(&["start", "a"]);
    let other = ["set", "a", "--vgpu", "H200X-70C", "--yes"];
    machine.refused(&other, 1, &["vGPUs can only be added or removed while it is off"]);
    machine.done(&["stop", "a", "--force"]);
    let said = machine.done(&other);
    assert!(said.contains("vgpu: 0000:3b:00.4 -> 0000:5e:00.4"), "{said}");
    assert_eq!(machine.set_types(), []);
    machine.done(&["start", "a"]);
    assert_eq!(machine.set_types(), [of("5e:00.4", 1430)]);
    assert_eq!(machine.broken("a"), [""; 0]);
    machine.done(&["stop", "a", "--force"]);
    machine.done(&["undo", "a", "--yes"]);
    assert_eq!(machine.set_types(), []);
    assert!(xml("a").replace('"', "'").contains(own));
    // A copy has a vGPU of its own.
    let said = machine.done(&["clone", "a", "bare", "--gpus", "0", "--dry-run"]);
    assert!(said.contains("domain `bare` gets no vGPU"), "{said}");
    machine.done(&["clone", "a", "b"]);
    for name in ["a", "b"] {
        machine.done(&["start", name]);
        assert_eq!(machine.broken(name), [""; 0]);
        machine.done(&["stop", name, "--force"]);
    }
    assert_eq!(machine.set_types(), [of("3b:00.4", 1437), of("3b:00.5", 1437)]);
    machine.done(&["delete", "b", "--yes"]);
    machine.done(&["set", "a", "--no-vgpu", "--yes"]);
    assert!(!xml("a").contains("<hostdev") && !xml("a").contains("gpuvm:vgpus"), "{}", xml("a"));
    assert_eq!(machine.set_types(), []);
}

#[test]
fn a_bundle_takes_the_type_of_a_vgpu_to_another_place() {
    let Some(machine) = Machine::new() else { return };
    machine.lift_limit();
    machine.done(&machine.create("a", &[&VGPU[..], &["--no-start"]].concat()));
    let bundle = machine.place.daemon.own_path("bundle").display().to_string();
    machine.done(&["export", "a", "--bundle", &bundle]);
    let disks = machine.place.disks.to_str().unwrap();
    let import = |name| ["import", &bundle, "--copy", "--name", name, "--disks", disks];
    machine.done(&import("b"));
    let xml = |name: &str| machine.place.virsh(&["dumpxml", "--inactive", name]);
    let own = "bdf='0000:3b:00.5' card='0000:3b:00.0' type='1437' name='H200X-18C'";
    let imported = xml("b").replace('"', "'");
    assert!(imported.contains(own) && imported.contains("'type':'H200X-18C'"), "{imported}");
    assert_eq!(machine.broken("b"), [""; 0]);
    // Where no card has such a place, that is said.
    for slot in ["3b:00.6", "5e:00.6"] {
        machine.set(slot, 1428);
    }
    let none = ["no place", "with 1 vGPU H200X-18C", "--name c", "--gpus 0`"];
    machine.refused(&import("c"), 1, &none);
    let left_out = "domain `c` gets no vGPU, and `a` has 1 vGPU H200X-18C";
    let said = machine.done(&[&import("c")[..], &["--gpus", "0"]].concat());
    assert!(said.contains(left_out) && said.contains("gpuvm set c --vgpu H200X-18C`"), "{said}");
    assert!(!xml("c").contains("<hostdev") && !xml("c").contains("gpuvm:vgpus"), "{}", xml("c"));
}

#[test]
fn a_guest_with_a_mediated_device_is_copied_with_one_of_its_own() {
    let Some(machine) = Machine::on(super::t4(), &[]) else { return };
    machine.lift_limit();
    let own = ["--vgpu", "T4-4Q", "--no-start"];
    machine.done(&machine.create("a", &own));
    machine.done(&["clone", "a", "b"]);
    let bundle = machine.place.daemon.own_path("bundle").display().to_string();
    machine.done(&["export", "a", "--bundle", &bundle]);
    let disks = machine.place.disks.to_str().unwrap();
    machine.done(&["import", &bundle, "--copy", "--name", "c", "--disks", disks]);
    let mut uuids: Vec<String> = Vec::new();
    for name in ["a", "b", "c"] {
        let xml = machine.place.virsh(&["dumpxml", "--inactive", name]).replace('"', "'");
        assert_eq!(xml.matches("type='mdev'").count(), 1, "{xml}");
        let (_, rest) = xml.split_once("<address uuid='").unwrap();
        let uuid = rest.split_once('\'').unwrap().0.to_owned();
        let record = format!("type='nvidia-222' name='T4-4Q' uuid='{uuid}'");
        assert!(xml.contains(&record), "{record}: {xml}");
        uuids.push(uuid);
    }
    uuids.sort_unstable();
    uuids.dedup();
    assert_eq!(uuids.len(), 3);
}

#[test]
fn the_type_of_a_guest_is_cleared_before_the_next_one_is_set_on_its_card() {
    let Some(machine) = Machine::new() else { return };
    machine.done(&machine.create("a", &VGPU));
    machine.done(&["stop", "a", "--force"]);
    assert_eq!(machine.set_types(), [of("3b:00.4", 1437)]);
    let large = ["set", "a", "--vgpu", "H200X-70C,gpu=0", "--yes"];
    let said = machine.done(&large);
    assert!(said.contains("clear vGPU type 1437 of 0000:3b:00.4"), "{said}");
    assert_eq!(machine.set_types(), []);
    machine.done(&["start", "a"]);
    assert_eq!(machine.set_types(), [of("3b:00.4", 1430)]);
    assert_eq!(machine.broken("a"), [""; 0]);
    machine.done(&["stop", "a", "--force"]);
    // A type that another has set stays, and leaves no room for another size.
    fs::remove_dir_all(machine.place.daemon.own_path("/run/gpuvm/vgpu-types")).unwrap();
    let small = ["set", "a", "--vgpu", "H200X-18C,gpu=0", "--yes"];
    let parts =
        ["0000:3b:00.4 keeps its type 1430", "`echo 0 > /sys/bus/pci/devices/0000:3b:00.4/"];
    machine.refused(&small, 1, &parts);
    assert_eq!(machine.set_types(), [of("3b:00.4", 1430)]);
    machine.done(&["set", "a", "--vgpu", "H200X-18C", "--yes"]);
}

#[test]
fn a_guest_leaves_its_card_to_one_that_needs_all_of_it() {
    let Some(machine) = Machine::new() else { return };
    machine.done(&machine.create("a", &[&VGPU[..], &["--movable"]].concat()));
    machine.done(&["stop", "a", "--force"]);
    assert_eq!(machine.set_types(), [of("3b:00.4", 1437)]);
    let small = ["--vcpus", "1", "--memory", "256M"];
    let whole = ["--vgpu", "H200X-18C,count=8,gpu=0"];
    let said = machine.done(&[&["make-room", "--yes"][..], &whole, &small].concat());
    assert!(said.contains("clear vGPU type 1437 of 0000:3b:00.4"), "{said}");
    assert!(said.contains("then `gpuvm create --vgpu"), "{said}");
    assert_eq!(machine.set_types(), []);
    let xml = machine.place.virsh(&["dumpxml", "--inactive", "a"]).replace('"', "'");
    assert!(xml.contains("bdf='0000:5e:00.4' card='0000:5e:00.0' type='1437'"), "{xml}");
    // It has still not named a card.
    assert!(xml.contains("'vgpu':{'type':'H200X-18C','count':1}"), "{xml}");
    machine.done(&machine.create("b", &[&whole[..], &["--no-start"]].concat()));
    machine.done(&["start", "a"]);
    assert_eq!(machine.set_types(), [of("5e:00.4", 1437)]);
    assert_eq!(machine.broken("a"), [""; 0]);
    // It runs, and comes back on the other card once it has shut down, which it does without an
    // operating system only by the hand of the test.
    machine.done(&["delete", "b", "--yes"]);
    let room = ["make-room", "--yes", "--allow-stop", "a", "--wait", "90"];
    let whole = ["--vgpu", "H200X-18C,count=8,gpu=1"];
    let mut ends = machine.place.daemon.enter(&["--mount"], "bash");
    let script = "until grep -qs . /var/lib/gpuvm/journal/*; do sleep 0.2; done; sleep 2; \
                  virsh -c qemu:///system destroy a";
    let mut ends = ends.args(["-c", script]).stdout(Stdio::null()).spawn().unwrap();
    let said = machine.done(&[&room[..], &whole, &small].concat());
    assert!(ends.wait().unwrap().success());
    assert!(said.contains("clear vGPU type 1437 of 0000:5e:00.4"), "{said}");
    assert_eq!(machine.set_types(), [of("3b:00.4", 1437)]);
    assert_eq!(machine.place.virsh(&["domstate", "a"]).trim(), "running");
    assert_eq!(machine.broken("a"), [""; 0]);
    machine.done(&["stop", "a", "--force"]);
}

#[test]
fn a_file_of_guests_names_the_vgpu_and_changes_it() {
    let Some(machine) = Machine::new() else { return };
    machine.done(&machine.create("a", &[&VGPU[..], &["--no-start"]].concat()));
    let (_, text, _) = machine.place.gpuvm(&["get", "a"]);
    assert!(text.contains("vgpu: H200X-18C"), "{text}");
    let file = machine.place.disks.with_file_name("guests.yaml");
    let apply = |text: &str| {
        fs::write(&file, text).unwrap();
        machine.done(&["apply", "-f", file.to_str().unwrap(), "--yes"])
    };
    for name in ["H200X-18C", "h200x-18c", "1437"] {
        let same = apply(&text.replace("vgpu: H200X-18C", &format!("vgpu: {name}")));
        assert!(!same.contains("vgpu"), "{same}");
    }
    let other = text.replace("vgpu: H200X-18C", "vgpu: H200X-70C");
    // Before it is made, the places are shown.
    fs::write(&file, &other).unwrap();
    let dry = ["apply", "-f", file.to_str().unwrap(), "--dry-run"];
    let (_, out, err) = machine.place.gpuvm(&dry);
    assert!(out.contains("1 vGPU H200X-70C of 0000:3b:00.0 (0000:3b:00.4)"), "{out}{err}");
    let (_, out, err) = machine.place.gpuvm(&[&dry[..], &["--json"]].concat());
    let shown: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    let vgpu = &shown["guests"][0]["vgpus"][0];
    assert_eq!((&vgpu["function"], &vgpu["name"]), (&"0000:3b:00.4".into(), &"H200X-70C".into()));
    let changed = apply(&other);
    assert!(changed.contains("vgpu H200X-18C -> H200X-70C"), "{changed}");
    let (_, text, _) = machine.place.gpuvm(&["get", "a"]);
    assert!(text.contains("vgpu: H200X-70C"), "{text}");
    let shown = machine.done(&["show", "a"]);
    assert!(shown.contains("--vgpu H200X-70C"), "{shown}");
    machine.done(&["start", "a"]);
    assert_eq!(machine.set_types(), [of("3b:00.4", 1430)]);
    // Its card has another size after a restart of the host, and so has the other one.
    machine.done(&["stop", "a", "--force"]);
    machine.set("3b:00.4", 0);
    machine.set("3b:00.6", 1437);
    machine.set("5e:00.6", 1437);
    let lacks = "0000:3b:00.4 does not offer vGPU type 1430 (H200X-70C) now";
    let same = apply(&text);
    assert!(same.contains(&format!("domain `a` cannot start now: {lacks}")), "{same}");
    machine.refused(&["start", "a"], 1, &[lacks, "gpuvm set a --vgpu H200X-70C` plans it again"]);
    let kept = machine.done(&["set", "a", "--vgpu", "H200X-70C", "--vcpus", "2", "--yes"]);
    assert!(kept.contains(lacks) && !kept.contains("vgpu: "), "{kept}");
    machine.set("5e:00.6", 0);
    let moved = machine.done(&["set", "a", "--vgpu", "H200X-70C", "--yes"]);
    assert!(moved.contains("vgpu: 0000:3b:00.4 -> 0000:5e:00.4"), "{moved}");
    assert!(!moved.contains("request"), "{moved}");
    // The warning of a copy without vGPUs has their number.
    machine.done(&["set", "a", "--vgpu", "H200X-18C,count=2", "--yes"]);
    let said = machine.done(&["clone", "a", "bare", "--gpus", "0", "--dry-run"]);
    let two = "gpuvm set bare --vgpu H200X-18C,count=2` plans 2 of the type for it";
    assert!(said.contains(two), "{said}");
}
