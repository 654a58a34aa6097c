//! The guest's bus numbers as its firmware gives them: SeaBIOS and OVMF under emulation, without a guest behind them, and what
//! QEMU shows when they have run. Root ports, switches and expander buses are those of a definition; test devices stand in for
//! what is passed through.

use super::{exported, nccl};
use crate::support::{skip, watch};
use gpuvm::bdf::Bdf;
use gpuvm::check::guest::Guest;
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
    /// Where commands go.
    commands: ChildStdin,
    /// Where answers come from.
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

    /// Gives a command and returns what it returns.
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

    /// The addresses of its devices once firmware has numbered every bus, by the name of the device.
    fn addresses(&mut self) -> BTreeMap<String, Bdf> {
        let (until, mut before) = (Instant::now() + LIMIT, None);
        loop {
            let mut found = BTreeMap::new();
            let mut all_numbered = true;
            for bus in self.ask("query-pci").as_array().unwrap() {
                collect(&bus["devices"], &mut found, &mut all_numbered);
            }
            // Twice the same, since it is numbered while it is looked at.
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

/// QEMU's devices for a definition's PCI controllers and passed-through functions; the latter are named by their host addresses.
fn devices(domain: &DomainXml) -> Vec<Value> {
    let number = |element: Element<'_>, name: &str| {
        let text = element.attr(name).unwrap_or_default();
        text.strip_prefix("0x")
            .map_or(text.parse(), |hex| u32::from_str_radix(hex, 16))
            .unwrap_or(0)
    };
    let place = |device: Element<'_>| {
        let at = device.child("address")?;
        let bus = match number(at, "bus") {
            0 => "pcie.0".to_owned(),
            index => format!("pci.{index}"),
        };
        let multi = at.attr("multifunction").is_some_and(|word| word == "on");
        Some((bus, format!("{:#x}.{}", number(at, "slot"), number(at, "function")), multi))
    };
    let mut all = Vec::new();
    let elements = domain.root().child("devices").unwrap();
    for (controller, chassis) in elements.children("controller").zip(1..) {
        let model = controller.attr("model").unwrap_or_default().into_owned();
        let Some((bus, addr, multifunction)) = place(controller) else { continue };
        let id = format!("pci.{}", number(controller, "index"));
        let mut device = json!({ "id": id, "bus": bus, "addr": addr });
        device["driver"] = match model.as_str() {
            "pcie-expander-bus" => "pxb-pcie".into(),
            "pcie-root-port" => "pcie-root-port".into(),
            "pcie-switch-upstream-port" => "x3130-upstream".into(),
            "pcie-switch-downstream-port" => "xio3130-downstream".into(),
            "pcie-to-pci-bridge" => "pcie-pci-bridge".into(),
            _ => continue,
        };
        if model == "pcie-expander-bus" {
            device["bus_nr"] = number(controller.child("target").unwrap(), "busNr").into();
        } else {
            device["multifunction"] = multifunction.into();
        }
        if matches!(&*model, "pcie-root-port" | "pcie-switch-downstream-port") {
            device["chassis"] = chassis.into();
        }
        all.push((number(controller, "index"), device));
    }
    // Those above before those below.
    all.sort_by_key(|(index, _)| *index);
    let mut all: Vec<Value> = all.into_iter().map(|(_, device)| device).collect();
    for hostdev in elements.children("hostdev") {
        let (bus, addr, _) = place(hostdev).unwrap();
        let id = name(host_address(hostdev));
        all.push(json!({ "driver": "pci-testdev", "id": id, "bus": bus, "addr": addr }));
    }
    all
}

/// The address on the host of a passed-through function.
fn host_address(hostdev: Element<'_>) -> Bdf {
    let source = hostdev.find("source/address").unwrap();
    let field = |name| source.attr(name).unwrap().trim_start_matches("0x").to_owned();
    let [domain, bus, slot, function] = ["domain", "bus", "slot", "function"].map(field);
    format!("{domain}:{bus}:{slot}.{function}").parse().unwrap()
}

/// The name of a device of QEMU's.
fn name(bdf: Bdf) -> String {
    format!("h{}", bdf.to_string().replace([':', '.'], "-"))
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

/// A definition in the making.
struct Tree {
    /// Its devices.
    text: String,
    /// Controllers so far, the root included.
    controllers: u32,
    /// Functions so far.
    functions: u8,
    /// Where it takes its shape from.
    random: Random,
}

impl Tree {
    /// Adds a controller and returns its index.
    fn controller(&mut self, model: &str, at: (u32, u32, u32), target: &str) -> u32 {
        let (index, (bus, slot, function)) = (self.controllers, at);
        let multi = if function == 0 && bus == 0 { " multifunction='on'" } else { "" };
        self.controllers += 1;
        write!(
            self.text,
            "<controller type='pci' index='{index}' model='{model}'>{target}<address type='pci' bus='{bus}' \
             slot='{slot}' function='{function}'{multi}/></controller>"
        )
        .unwrap();
        index
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
                self.function(bridge, 3);
            }
            _ => self.function(port, 0),
        }
    }

    /// Adds a function that is passed through.
    fn function(&mut self, bus: u32, slot: u32) {
        self.functions += 1;
        write!(
            self.text,
            "<hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='{:#04x}' slot='0x00' \
             function='0x0'/></source><address type='pci' bus='{bus}' slot='{slot}' function='0'/></hostdev>",
            self.functions
        )
        .unwrap();
    }

    /// A definition of any shape.
    fn any(seed: u64) -> DomainXml {
        let random = Random(seed);
        let mut tree = Tree { text: String::new(), controllers: 1, functions: 0, random };
        let mut ports = Vec::new();
        for slot in [7, 3] {
            for function in [0, 2, 1] {
                ports.push(tree.controller("pcie-root-port", (0, slot, function), ""));
            }
        }
        for (number, slot) in [(150, 20), (60, 21), (200, 22), (105, 19)] {
            let target = format!("<target busNr='{number}'/>");
            let expander = tree.controller("pcie-expander-bus", (0, slot, 0), &target);
            let count = 1 + tree.random.below(5);
            for slot in tree.random.slots(count, 0) {
                ports.push(tree.controller("pcie-root-port", (expander, slot, 0), ""));
            }
        }
        ports.into_iter().for_each(|port| tree.fill(port, 0));
        let os = "<os><type arch='x86_64' machine='q35'>hvm</type></os>";
        let text = format!("<domain>{os}<devices>{}</devices></domain>", tree.text);
        DomainXml::parse(&text).unwrap()
    }
}

/// Compares what is computed for a definition's functions with what firmware gives.
fn compare(domain: &DomainXml, variables: Option<&Path>) {
    let guest = Guest::read(domain);
    let buses = Buses::new(domain, &guest).unwrap();
    let seen = Machine::start(&devices(domain), variables).addresses();
    assert!(guest.passed.len() > 5);
    for passed in &guest.passed {
        let bdf = passed.bdf.value;
        let computed = buses.address(passed.at.as_ref().unwrap().value, bdf).unwrap();
        assert_eq!(Some(&computed), seen.get(&name(bdf)), "{bdf}: {}", domain.text());
    }
}

/// Compares the addresses that the file of a guest names with what firmware gives.
fn compare_file(dir: &Path, variables: Option<&Path>) {
    let file = exported(dir, "dgx-h100", "--gpus 8 --nic 8");
    let (code, out, err) = nccl(&file, "dgx-h100", &["--json"]);
    assert_eq!(code, 0, "{err}");
    let domain = DomainXml::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let seen = Machine::start(&devices(&domain), variables).addresses();
    let answer: Value = serde_json::from_str(&out).unwrap();
    let mut compared = 0;
    let mut level: Vec<&Value> = answer["system"]["cpus"].as_array().unwrap().iter().collect();
    while let Some(element) = level.pop() {
        level.extend(element["below"].as_array().into_iter().flatten());
        let address =
            |field: &str| element[field].as_str().map(|text| text.parse::<Bdf>().unwrap());
        let (Some(host), Some(busid)) = (address("host"), address("busid")) else { continue };
        if busid.segment() == 0 {
            assert_eq!(Some(&busid), seen.get(&name(host)), "{host}");
            compared += 1;
        }
    }
    assert_eq!(compared, 16);
}

/// Whether the emulator is there; says that a test was skipped where it is not.
fn has(files: &[&str]) -> bool {
    match files.iter().find(|file| !Path::new(file).exists()) {
        Some(missing) => skip(format!("{missing} is not installed")),
        None => true,
    }
}

#[test]
fn seabios_numbers_buses_as_computed() {
    if !has(&[QEMU]) {
        return;
    }
    compare_file(tempfile::tempdir().unwrap().path(), None);
    for seed in 0..8 {
        compare(&Tree::any(seed), None);
    }
}

#[test]
fn ovmf_numbers_buses_as_computed() {
    if !has(&[QEMU, OVMF[0], OVMF[1]]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let variables = dir.path().join("vars.fd");
    compare_file(dir.path(), Some(&variables));
    compare(&Tree::any(3), Some(&variables));
}
