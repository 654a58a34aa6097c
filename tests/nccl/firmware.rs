//! The guest's bus numbers as its firmware gives them: SeaBIOS and OVMF under emulation, without an
//! operating system, and QEMU's view after they have run. Root ports, switches, expander buses and
//! libvirt's additions are those of a definition; test devices replace passed-through functions.

use super::{exported, nccl};
use crate::support::{skip, watch};
use gpuvm::bdf::Bdf;
use gpuvm::check::guest::Guest;
use gpuvm::domain::read::GuestAddress;
use gpuvm::domain::{DomainXml, Element};
use gpuvm::nccl::bus::Buses;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The emulator.
const QEMU: &str = "/usr/bin/qemu-system-x86_64";
/// OVMF and its variables.
const OVMF: [&str; 2] = ["/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"];
/// How long firmware may take: 7 s on an idle machine.
const LIMIT: Duration = Duration::from_secs(240);

/// A machine that runs its firmware.
struct Machine {
    /// Its process, which ends with the test.
    child: Child,
    /// The stream for commands.
    commands: ChildStdin,
    /// The stream of answers.
    answers: BufReader<ChildStdout>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Machine {
    /// Starts it with these devices; `variables`: those of OVMF, none for SeaBIOS.
    fn start(devices: &[Value], variables: Option<&Path>) -> Machine {
        watch::begin();
        let mut command = Command::new(QEMU);
        command.args(["-M", "q35", "-accel", "tcg", "-m", "256", "-nodefaults"]);
        command.args(["-no-user-config", "-display", "none", "-qmp", "stdio"]);
        if let Some(variables) = variables {
            std::fs::copy(OVMF[1], variables).unwrap();
            let flash = |file: &str, more: &str| format!("if=pflash,format=raw,file={file}{more}");
            command.args(["-drive", &flash(OVMF[0], ",readonly=on")]);
            command.args(["-drive", &flash(variables.to_str().unwrap(), "")]);
        }
        for device in devices {
            command.args(["-device", &device.to_string()]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut machine = Machine { child, commands, answers };
        machine.ask("qmp_capabilities");
        machine
    }

    /// Runs a command. Returns its result.
    fn ask(&mut self, command: &str) -> Value {
        writeln!(self.commands, "{}", json!({ "execute": command })).unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "QEMU has ended");
            let mut answer: Value = serde_json::from_str(&line).unwrap();
            assert!(answer.get("error").is_none(), "{line}");
            if answer.get("return").is_some() {
                return answer["return"].take();
            }
        }
    }

    /// The addresses of its devices once firmware has numbered every bus, by the name of the
    /// device.
    fn addresses(&mut self) -> BTreeMap<String, Bdf> {
        let (until, mut before) = (Instant::now() + LIMIT, None);
        loop {
            let mut found = BTreeMap::new();
            let mut all_numbered = true;
            for bus in self.ask("query-pci").as_array().unwrap() {
                collect(&bus["devices"], &mut found, &mut all_numbered);
            }
            // Read until two results agree, since numbering goes on meanwhile.
            if all_numbered && before.as_ref() == Some(&found) {
                return found;
            }
            assert!(Instant::now() < until, "not numbered after {LIMIT:?}: {found:?}");
            before = Some(found).filter(|_| all_numbered);
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

/// Adds devices and those behind bridges.
fn collect(devices: &Value, found: &mut BTreeMap<String, Bdf>, all_numbered: &mut bool) {
    for device in devices.as_array().into_iter().flatten() {
        let field = |name: &str| u8::try_from(device[name].as_u64().unwrap()).unwrap();
        let address = Bdf::new(0, field("bus"), field("slot"), field("function")).unwrap();
        found.insert(device["qdev_id"].as_str().unwrap_or_default().to_owned(), address);
        if let Some(bridge) = device.get("pci_bridge") {
            *all_numbered &= bridge["bus"]["secondary"] != 0;
            collect(&bridge["devices"], found, all_numbered);
        }
    }
}

/// A number of an attribute; 0 where there is none.
fn number(element: Element<'_>, name: &str) -> u32 {
    let text = element.attr(name).unwrap_or_default();
    text.strip_prefix("0x").map_or(text.parse(), |hex| u32::from_str_radix(hex, 16)).unwrap_or(0)
}

/// Where a device of a definition is; `None` if not on PCI.
fn place(device: Element<'_>) -> Option<GuestAddress> {
    let at = device.child("address").filter(|at| at.attr("type").as_deref() == Some("pci"))?;
    let [controller, slot, function] = ["bus", "slot", "function"].map(|name| number(at, name));
    Some(GuestAddress { segment: 0, controller, slot, function })
}

/// Whether a device is a PCI controller.
fn is_bridge(device: Element<'_>) -> bool {
    device.name() == "controller" && device.attr("type").as_deref() == Some("pci")
}

/// The devices of a definition that are at the end of a branch, with the name of each in QEMU.
fn ends(domain: &DomainXml) -> Vec<(String, Element<'_>)> {
    let elements = domain.root().child("devices").unwrap().elements();
    let ends = elements.filter(|device| !is_bridge(*device) && place(*device).is_some());
    ends.enumerate().map(|(nth, device)| (format!("end{nth}"), device)).collect()
}

/// The device that a PCI controller or another device is in QEMU. Test devices replace
/// passed-through ones, and disks and NICs, which need more than an address.
fn driver(device: Element<'_>) -> &'static str {
    let model = device.attr("model").unwrap_or_default();
    match (device.name(), &*model) {
        (_, "pcie-expander-bus") => "pxb-pcie",
        (_, "pcie-root-port") => "pcie-root-port",
        (_, "pcie-switch-upstream-port") => "x3130-upstream",
        (_, "pcie-switch-downstream-port") => "xio3130-downstream",
        (_, "pcie-to-pci-bridge") => "pcie-pci-bridge",
        (_, "qemu-xhci") => "qemu-xhci",
        (_, "ich9-ehci1") => "ich9-usb-ehci1",
        (_, "ich9-uhci1") => "ich9-usb-uhci1",
        (_, "i6300esb") => "i6300esb",
        ("memballoon", _) => "virtio-balloon-pci",
        ("rng", _) => "virtio-rng-pci",
        ("video", _) => "bochs-display",
        ("controller", _) if device.attr("type").as_deref() == Some("virtio-serial") => {
            "virtio-serial-pci"
        }
        _ => "pci-testdev",
    }
}

/// QEMU's devices for those of a definition that are on PCI.
fn devices(domain: &DomainXml) -> Vec<Value> {
    let made = |id: String, device: Element<'_>| {
        let GuestAddress { controller, slot, function, .. } = place(device)?;
        let bus = match controller {
            0 => "pcie.0".to_owned(),
            index => format!("pci.{index}"),
        };
        let addr = format!("{slot:#x}.{function}");
        let multi = device.child("address")?.attr("multifunction");
        let multi = multi.is_some_and(|word| word == "on");
        let mut made = json!({ "driver": driver(device), "id": id, "bus": bus, "addr": addr });
        if multi {
            made["multifunction"] = true.into();
        }
        Some(made)
    };
    let mut all = Vec::new();
    let elements = domain.root().child("devices").unwrap().elements();
    for (controller, chassis) in elements.filter(|device| is_bridge(*device)).zip(1..) {
        let index = number(controller, "index");
        let Some(mut device) = made(format!("pci.{index}"), controller) else { continue };
        if device["driver"] == "pxb-pcie" {
            device["bus_nr"] = number(controller.child("target").unwrap(), "busNr").into();
        }
        if matches!(driver(controller), "pcie-root-port" | "xio3130-downstream") {
            device["chassis"] = chassis.into();
        }
        all.push((index, device));
    }
    // Those above before those below.
    all.sort_by_key(|(index, _)| *index);
    let all = all.into_iter().map(|(_, device)| device);
    all.chain(ends(domain).into_iter().filter_map(|(id, device)| made(id, device))).collect()
}

/// Random numbers that are the same in every run.
struct Random(u64);

impl Random {
    /// One below a limit.
    fn below(&mut self, limit: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % limit
    }

    /// So many different slots, in any order.
    fn slots(&mut self, count: u32, first: u32) -> Vec<u32> {
        let mut slots: Vec<u32> = (first..31).collect();
        (0..count).map(|_| slots.remove(self.below(slots.len() as u32) as usize)).collect()
    }
}

/// Devices in the making, which are added to a definition.
struct Tree {
    /// Their text.
    text: String,
    /// The index of the next controller.
    next: u32,
    /// Where it takes its shape from.
    random: Random,
}

impl Tree {
    /// Adds a controller and returns its index.
    fn controller(&mut self, model: &str, at: (u32, u32, u32), target: &str) -> u32 {
        let (index, (bus, slot, function)) = (self.next, at);
        let multi = if function == 0 && bus == 0 { " multifunction='on'" } else { "" };
        self.next += 1;
        write!(
            self.text,
            "<controller type='pci' index='{index}' model='{model}'>{target}<address type='pci' \
             bus='{bus}' slot='{slot}' function='{function}'{multi}/></controller>"
        )
        .unwrap();
        index
    }

    /// Adds a device at the end of a branch.
    fn end(&mut self, device: &str, at: (u32, u32, u32)) {
        let (bus, slot, function) = at;
        let name = device.split(' ').next().unwrap();
        let multi = if slot == 0x1d && function == 0 { " multifunction='on'" } else { "" };
        write!(
            self.text,
            "<{device}><address type='pci' bus='{bus}' slot='{slot}' \
             function='{function}'{multi}/></{name}>"
        )
        .unwrap();
    }

    /// Puts a function, a switch or a bridge with functions below a port.
    fn fill(&mut self, port: u32, depth: u32) {
        match self.random.below(4) {
            0 if depth < 2 => {
                let up = self.controller("pcie-switch-upstream-port", (port, 0, 0), "");
                let count = 1 + self.random.below(3);
                let downs = self.random.slots(count, 0);
                let downs: Vec<u32> = downs
                    .into_iter()
                    .map(|slot| self.controller("pcie-switch-downstream-port", (up, slot, 0), ""))
                    .collect();
                downs.into_iter().for_each(|down| self.fill(down, depth + 1));
            }
            1 => {
                let bridge = self.controller("pcie-to-pci-bridge", (port, 0, 0), "");
                self.end("crypto", (bridge, 3, 0));
            }
            _ => self.end("crypto", (port, 0, 0)),
        }
    }

    /// Adds a random part that takes at most this many bus numbers; a larger one is generated
    /// again.
    fn at_most(&mut self, buses: u32, add: impl Fn(&mut Tree)) {
        let (length, first) = (self.text.len(), self.next);
        loop {
            add(self);
            if self.next - first <= buses {
                return;
            }
            self.text.truncate(length);
            self.next = first;
        }
    }

    /// Ports of any place and content below the root bus.
    fn on_root(&mut self) {
        self.at_most(24, |tree| {
            let mut ports = Vec::new();
            for slot in [7, 3] {
                for function in [0, 2, 1] {
                    ports.push(tree.controller("pcie-root-port", (0, slot, function), ""));
                }
            }
            ports.into_iter().for_each(|port| tree.fill(port, 0));
        });
    }

    /// An expander bus of a number, at a slot of the root bus, with ports of any place and content.
    fn expander(&mut self, bus_number: u32, slot: u32) {
        self.at_most(16, |tree| {
            let target = format!("<target busNr='{bus_number}'/>");
            let bus = tree.controller("pcie-expander-bus", (0, slot, 0), &target);
            let count = 1 + tree.random.below(5);
            let slots = tree.random.slots(count, 0).into_iter();
            let ports: Vec<u32> =
                slots.map(|slot| tree.controller("pcie-root-port", (bus, slot, 0), "")).collect();
            ports.into_iter().for_each(|port| tree.fill(port, 0));
        });
    }

    /// Devices that libvirt adds itself, at its addresses: a root port for each PCI Express device,
    /// a bridge for others, companions of a USB controller and a display on the root bus.
    fn of_libvirt(&mut self) {
        let port =
            |tree: &mut Tree, function| tree.controller("pcie-root-port", (0, 1, function), "");
        let usb = port(self, 0);
        self.end("controller type='usb' model='qemu-xhci'", (usb, 0, 0));
        let balloon = port(self, 1);
        self.end("memballoon model='virtio'", (balloon, 0, 0));
        let for_bridge = port(self, 2);
        let bridge = self.controller("pcie-to-pci-bridge", (for_bridge, 0, 0), "");
        self.end("watchdog model='i6300esb'", (bridge, 1, 0));
        self.end("controller type='usb' index='1' model='ich9-uhci1'", (0, 0x1d, 0));
        self.end("controller type='usb' index='1' model='ich9-ehci1'", (0, 0x1d, 7));
        self.end("video", (0, 0x1e, 0));
        // A spare port for hotplug.
        port(self, 3);
        let last = port(self, 4);
        self.end("crypto", (last, 0, 0));
    }
}

/// The definition of a guest with GPUs and NICs, with what libvirt adds, ports and switches of any
/// shape below the root bus, and 12 expander buses of any shape; and the file for NCCL.
fn definition(dir: &Path) -> (DomainXml, Value) {
    let file = exported(dir, "dgx-h100", "--gpus 8 --nic 8");
    let mut tree = Tree { text: String::new(), next: 100, random: Random(3) };
    tree.of_libvirt();
    tree.on_root();
    for (slot, bus_number) in (8..16).chain(24..28).zip((40..).step_by(16)) {
        tree.expander(bus_number, slot);
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("</devices>", &format!("{}</devices>", tree.text));
    std::fs::write(&file, &text).unwrap();
    let (code, out, err) = nccl(&file, "dgx-h100", &["--json"]);
    assert_eq!(code, 0, "{err}");
    (DomainXml::parse(&text).unwrap(), serde_json::from_str(&out).unwrap())
}

/// The guest addresses of a file for NCCL, by those on the host.
fn addresses_of(answer: &Value) -> BTreeMap<Bdf, Bdf> {
    let mut told = BTreeMap::new();
    let mut level: Vec<&Value> = answer["system"]["cpus"].as_array().unwrap().iter().collect();
    while let Some(element) = level.pop() {
        level.extend(element["below"].as_array().into_iter().flatten());
        let address =
            |field: &str| element[field].as_str().map(|text| text.parse::<Bdf>().unwrap());
        let (Some(host), Some(busid)) = (address("host"), address("busid")) else { continue };
        if busid.segment() == 0 {
            told.insert(host, busid);
        }
    }
    told
}

/// Compares the addresses computed for all devices of a definition, and those in its file, with
/// those from firmware; `variables`: those of OVMF, none for SeaBIOS.
fn compare(dir: &Path, variables: Option<&Path>) {
    let (domain, answer) = definition(dir);
    let guest = Guest::read(&domain);
    let buses = Buses::new(&domain, &guest).unwrap();
    let seen = Machine::start(&devices(&domain), variables).addresses();
    let (mut told, no_function) = (addresses_of(&answer), Bdf::new(0, 0, 0, 0).unwrap());
    assert_eq!(told.len(), 16);
    let ends = ends(&domain);
    assert!(ends.len() > 60, "{}", ends.len());
    for (name, device) in &ends {
        let computed = buses.address(place(*device).unwrap(), no_function).unwrap();
        assert_eq!(Some(&computed), seen.get(name), "{}: {}", device.path(), domain.text());
        if device.name() == "hostdev"
            && let Some(busid) = told.remove(&host_address(*device))
        {
            assert_eq!(busid, computed, "{}", device.path());
        }
    }
    assert_eq!(told, BTreeMap::new());
}

/// The address on the host of a passed-through function.
fn host_address(hostdev: Element<'_>) -> Bdf {
    let source = hostdev.find("source/address").unwrap();
    let field = |name| source.attr(name).unwrap().trim_start_matches("0x").to_owned();
    let [domain, bus, slot, function] = ["domain", "bus", "slot", "function"].map(field);
    format!("{domain}:{bus}:{slot}.{function}").parse().unwrap()
}

/// Whether these programs exist; otherwise reports that a test was skipped.
fn has(files: &[&str]) -> bool {
    match files.iter().find(|file| !Path::new(file).exists()) {
        Some(missing) => skip(format!("{missing} is not installed")),
        None => true,
    }
}

#[test]
fn firmware_numbers_buses_as_computed() {
    if !has(&[QEMU, OVMF[0], OVMF[1]]) {
        return;
    }
    // Each firmware once, side by side.
    std::thread::scope(|scope| {
        for is_ovmf in [false, true] {
            scope.spawn(move || {
                let dir = tempfile::tempdir().unwrap();
                let variables = dir.path().join("vars.fd");
                compare(dir.path(), is_ovmf.then_some(&*variables));
            });
        }
    });
}
