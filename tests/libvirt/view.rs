//! The guest kernel's view of the PCIe tree that is written for it: the domain of the real command
//! line, on a real libvirtd, started under emulation. Only parts that this machine lacks are
//! replaced: each passed-through function by an endpoint of QEMU at the same guest address, with
//! the function's own link; no pins, no host nodes, no disk. Expander buses, root ports, links,
//! addresses, cells and vCPUs are as they were written.

use super::on_host;
use crate::support::daemon::{Daemon, Tiny, daemon, namespaces};
use crate::support::{project, run, skip};
use gpuvm::bdf::Bdf;
use gpuvm::cpuset::{CpuSet, PcpuId};
use gpuvm::discover::source::load;
use gpuvm::domain::{DomainXml, Element};
use gpuvm::nccl::{Pci, topology};
use gpuvm::placement::{PcieLink, Placement, caches_of};
use gpuvm::topology::Topology;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// A guest under test.
struct Case {
    /// Its name.
    name: &'static str,
    /// The recorded host.
    host: &'static str,
    /// The options for devices and vCPUs; memory is small for all.
    words: &'static str,
    /// Whether it is tested only with `GPUVM_VIEW=all`, because another case covers its size.
    nightly: bool,
}

/// Every size on a DGX-2, and a DGX H100 with faster links, NICs below the GPUs' switches, and
/// drives.
const CASES: [Case; 6] = [
    Case { name: "view-16", host: "dgx-2", words: "--gpus 16 --vcpus 4", nightly: true },
    Case { name: "view-8", host: "dgx-2", words: "--gpus 8 --vcpus 2 --nic 2", nightly: false },
    Case { name: "view-4", host: "dgx-2", words: "--gpus 4 --vcpus 2", nightly: true },
    Case { name: "view-2", host: "dgx-2", words: "--gpus 2 --vcpus 2 --nic 1", nightly: true },
    Case { name: "view-1", host: "dgx-2", words: "--gpus 1 --vcpus 2", nightly: true },
    // By address: the content of a drive that has no node on this machine is unknown.
    Case {
        name: "view-h",
        host: "dgx-h100",
        words: "--gpus 8 --vcpus 4 --nic 4 --nvme 2b:00.0 --nvme ac:00.0",
        nightly: false,
    },
];

/// The expectations of a guest before it starts.
struct Written {
    /// The plan.
    plan: Placement,
    /// The host.
    topology: Topology,
    /// The domain as it was written.
    xml: String,
}

/// The kernel's command line: delays of an emulated machine on a busy one are no errors.
const CMDLINE: &str =
    "console=ttyS0 quiet loglevel=3 mitigations=off nokaslr no_timer_check tsc=reliable nowatchdog";

impl Case {
    /// Asks the program for the plan and for the domain, made from the shipped template that starts
    /// this kernel.
    fn write(&self, daemon: &Daemon, tiny: &Tiny) -> Written {
        let dir = tiny.template.parent().unwrap();
        let file = dir.join(format!("{}.template.xml", self.name));
        std::fs::write(&file, template(self.name, dir, false)).unwrap();
        let words = format!("{} --name {} --memory 512M --assume-empty", self.words, self.name);
        let ask = |verb: &str| {
            let mut command = on_host(self.host, &format!("$GPUVM {verb} {words}"));
            command.env("LIBVIRT_DEFAULT_URI", daemon.uri());
            let (code, out, err) = run(&mut command);
            assert_eq!(code, 0, "{verb} {words}: {err}");
            out
        };
        let answer: serde_json::Value = serde_json::from_str(&ask("plan --json")).unwrap();
        let plan = serde_json::from_value(answer["placement"].clone()).unwrap();
        let export = format!("export --virt-type qemu --template {}", file.display());
        let xml = ask(&export);
        let host = project().join(format!("topologies/{}.json", self.host));
        Written { plan, topology: load(&host).unwrap(), xml }
    }
}

/// The shipped template with a kernel of ours and its console in a file. Without UEFI it is
/// SeaBIOS, which starts faster and hands the kernel the same ACPI tables, QEMU's.
pub fn template(name: &str, dir: &Path, uefi: bool) -> String {
    let shipped = std::fs::read_to_string(project().join("templates/gpu-guest.xml")).unwrap();
    let xml = DomainXml::parse(&shipped).unwrap();
    let part = |path: &str| xml.root().find(path).unwrap().xml().to_owned();
    let dir = dir.display();
    let kernel = format!(
        "<kernel>{dir}/vmlinuz</kernel><initrd>{dir}/initramfs</initrd><cmdline>{CMDLINE}</cmdline>"
    );
    let os = if uefi {
        part("os").replace("<boot dev='hd'/>", &kernel)
    } else {
        format!("<os><type arch='x86_64' machine='q35'>hvm</type>{kernel}</os>")
    };
    let console = |word: &str, port: &str| {
        format!("<{word} type='file'><source path='{dir}/{name}.log'/><target {port}/></{word}>")
    };
    shipped
        .replace(&part("os"), &os)
        .replace(&part("devices/serial"), &console("serial", "port='0'"))
        .replace(&part("devices/console"), &console("console", "type='serial' port='0'"))
}

/// An attribute that is a number.
pub fn number(element: Element<'_>, name: &str) -> u64 {
    let text = element.attr(name).unwrap_or_else(|| panic!("{name} of {}", element.xml()));
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

/// The serial number of a stand-in: the function's address without its punctuation.
fn serial(bdf: Bdf) -> u64 {
    u64::from_str_radix(&bdf.to_string().replace([':', '.'], ""), 16).unwrap()
}

impl Written {
    /// The domain with everything that this machine lacks removed or replaced.
    fn with_stand_ins(&self) -> String {
        with_stand_ins(&self.xml, |hostdev, port| self.stand_in(hostdev, port).into())
    }

    /// QEMU's arguments for the replacement of a passed-through function: the one endpoint whose
    /// link can be set. It is a memory device, whose memory is not used.
    fn stand_in(&self, hostdev: Element<'_>, port: &str) -> [String; 4] {
        let source = hostdev.find("source/address").unwrap();
        let field = |name| number(source, name);
        let bdf = format!(
            "{:04x}:{:02x}:{:02x}.{}",
            field("domain"),
            field("bus"),
            field("slot"),
            field("function")
        );
        let bdf: Bdf = bdf.parse().unwrap();
        let at = hostdev.child("address").unwrap();
        let serial = serial(bdf);
        let (speed, width) = self.own_link(bdf).unwrap_or((25, 1));
        let speed = if speed == 25 { "2_5".to_owned() } else { (speed / 10).to_string() };
        // In JSON, as libvirt's own: QEMU makes all others before them.
        let device = serde_json::json!({
            "driver": "cxl-type3",
            "id": format!("d{serial}"),
            "volatile-memdev": format!("m{serial}"),
            "sn": serial,
            "bus": port,
            "addr": format!("{:#x}.{:#x}", number(at, "slot"), number(at, "function")),
            "x-speed": speed,
            "x-width": width.to_string(),
        });
        let memory = format!("memory-backend-ram,id=m{serial},size=256M,reserve=off");
        ["-object".into(), memory, "-device".into(), device.to_string()]
    }

    /// The best link that a function of the host can have by itself.
    fn own_link(&self, bdf: Bdf) -> Option<(u32, u8)> {
        let link = self.topology.device(bdf)?.link_max.as_ref()?;
        link.speed_dgts.zip(link.width)
    }
}

/// A domain with everything that this machine lacks removed, and QEMU's arguments for each
/// passed-through function, made of its element and of the name of its port.
pub fn with_stand_ins(xml: &str, stand_in: impl Fn(Element<'_>, &str) -> Vec<String>) -> String {
    let document = DomainXml::parse(xml).unwrap();
    let (root, mut text) = (document.root(), xml.to_owned());
    let devices = root.child("devices").unwrap();
    let gone = ["cputune", "numatune", "memoryBacking"].into_iter().filter_map(|n| root.child(n));
    for element in gone.chain(devices.children("disk")).chain(devices.children("hostdev")) {
        text = text.replacen(element.xml(), "", 1);
    }
    let mut line = String::new();
    for hostdev in devices.children("hostdev") {
        let bus = number(hostdev.child("address").unwrap(), "bus");
        let is_its_port = |controller: &Element<'_>| {
            controller.attr("type").is_some_and(|kind| kind == "pci")
                && number(*controller, "index") == bus
        };
        let port = devices.children("controller").find(is_its_port).expect("it has a port");
        // libvirt names a controller by its number unless it has an alias.
        let named = port.child("alias").and_then(|alias| alias.attr("name"));
        let named = named.map_or_else(|| format!("pci.{bus}"), |name| name.into_owned());
        for argument in stand_in(hostdev, &named) {
            write!(line, "<qemu:arg value='{argument}'/>").unwrap();
        }
    }
    let mut namespace = "xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'";
    if text.contains(namespace) {
        namespace = "";
    }
    let end = "</qemu:commandline>";
    if !text.contains(end) {
        text = text.replace("</domain>", "<qemu:commandline></qemu:commandline></domain>");
    }
    text.replacen("<domain ", &format!("<domain {namespace} "), 1).replacen(
        end,
        &format!("{line}{end}"),
        1,
    )
}

/// A PCI function as the guest's kernel shows it.
#[derive(Debug)]
struct Function {
    /// The root and the functions above it, and itself.
    way: Vec<String>,
    /// Node; -1 for none.
    node: i64,
    /// The best link that it can have: speed in 0.1 GT/s, lanes.
    max: Option<(u32, u8)>,
    /// The link that it has.
    now: Option<(u32, u8)>,
    /// The number that a stand-in is known by.
    serial: Option<u64>,
}

impl Function {
    /// Reads a line of the guest's.
    fn read(line: &str) -> Option<Function> {
        let words: Vec<&str> = line.trim_end().strip_prefix("seen: pci ")?.split(' ').collect();
        let [way, "node", node, "max", max, "now", now, "serial", serial] = words[..] else {
            panic!("not a function: {line}");
        };
        let link = |text: &str| {
            let (speed, width) = text.split_once(',').unwrap();
            let speed: f64 = speed.parse().ok()?;
            Some(((speed * 10.0).round() as u32, width.parse().ok()?))
        };
        let dwords: Vec<u64> =
            serial.split(',').filter_map(|word| u64::from_str_radix(word, 16).ok()).collect();
        let serial = match dwords[..] {
            // The capability of a serial number, and the number, its low half first.
            [head, low, high] if head & 0xffff == 3 => Some(high << 32 | low),
            _ => None,
        };
        let way = way.split('/').map(str::to_owned).collect();
        Some(Function { way, node: node.parse().unwrap(), max: link(max), now: link(now), serial })
    }
}

/// Compares the tree that a guest sees with the plan.
fn compare_tree(written: &Written, functions: &[Function]) {
    let pcie = &written.plan.guest_pcie;
    let links: BTreeMap<Bdf, &PcieLink> =
        pcie.links.iter().map(|link| (link.device, link)).collect();
    assert!(!links.is_empty(), "the plan knows no link");
    let (mut roots, mut ports, mut planned) = (BTreeSet::new(), BTreeSet::new(), 0);
    for group in &pcie.groups {
        let cell = i64::from(group.cell.expect("the cells of these hosts have devices"));
        let mut ways = Vec::new();
        for &bdf in &group.devices {
            let mut found = functions.iter().filter(|seen| seen.serial == Some(serial(bdf)));
            let seen = found.next().unwrap_or_else(|| panic!("{bdf} is not seen"));
            assert!(found.next().is_none(), "{bdf} is seen twice");
            let [_, above, _] = &seen.way[..] else {
                panic!("{bdf} is not below one port: {seen:?}")
            };
            let port = functions.iter().find(|port| port.way == seen.way[..2]).expect("its port");
            assert!(ports.insert(above.clone()), "{bdf} shares its port: {seen:?}");
            assert_eq!((seen.node, port.node), (cell, cell), "{bdf}: {seen:?} below {port:?}");
            assert_eq!(seen.max, written.own_link(bdf), "{bdf}: {seen:?}");
            if let Some(link) = links.get(&bdf) {
                let link = Some((link.speed_dgts, link.width));
                assert_eq!((port.max, port.now), (link, link), "{bdf}: {port:?}");
            }
            ways.push(seen.way.clone());
            planned += 1;
        }
        assert!(ways.iter().all(|way| way[0] == ways[0][0]), "not below one bus: {ways:?}");
        assert!(roots.insert(ways[0][0].clone()), "the bus of another group: {ways:?}");
        let bridges: BTreeSet<_> =
            group.devices.iter().map(|bdf| written.topology.host_bridge(*bdf)).collect();
        assert_eq!(bridges.len(), 1, "host bridges of one bus: {group:?}");
        assert!(ways.is_sorted(), "numbered otherwise than by the host: {ways:?}");
    }
    assert_eq!(planned, written.plan.devices.len());
    compare_busids(written, functions);
    // Beside the ports and passed-through functions nothing is on a cell's bus, and nothing on a
    // cell.
    for other in
        functions.iter().filter(|f| f.serial.is_none() && !ports.contains(f.way.last().unwrap()))
    {
        assert!(!roots.contains(&other.way[0]) && other.node == -1, "{other:?}");
    }
}

/// Compares the addresses in NCCL's topology file with those in the guest's kernel.
fn compare_busids(written: &Written, functions: &[Function]) {
    let domain = DomainXml::parse(&written.xml).unwrap();
    let told = topology(&domain, &written.topology).unwrap();
    let mut level: Vec<&Pci> = told.system.cpus.iter().flat_map(|cpu| &cpu.below).collect();
    let mut compared = 0;
    while let Some(pci) = level.pop() {
        level.extend(&pci.below);
        if pci.ids.is_none() {
            let seen = functions.iter().find(|seen| seen.serial == Some(serial(pci.host)));
            let at = seen.and_then(|seen| seen.way.last());
            assert_eq!(at, Some(&pci.busid.to_string()), "{}", pci.host);
            compared += 1;
        }
    }
    assert!(compared > 0);
}

/// Compares the L3 caches that a guest sees with its packages, whose vCPUs are below one each on
/// these hosts. The host's own leaves and several dies are nothing that an emulated CPU can show;
/// QEMU's CPU of AMD's family has no such leaf.
fn compare_caches(written: &Written, shown: &str) {
    let plan = &written.plan;
    if plan.topology.threads < 2 {
        return;
    }
    let below = caches_of(&written.topology, &plan.vcpu_pins).expect("pins");
    let lines = shown.lines().filter_map(|line| line.trim_end().strip_prefix("seen: cpu "));
    let mut compared = 0;
    for line in lines {
        let (number, seen) = line.split_once(" siblings ").expect("a vCPU");
        let seen: CpuSet = seen.split_once(" l3 ").expect("a cache").1.parse().unwrap();
        let own = below[number.parse::<usize>().unwrap()];
        let same = (0u32..).zip(&below).filter(|(_, cache)| **cache == own);
        assert_eq!(seen, same.map(|(at, _)| PcpuId(at)).collect(), "{line} of {:?}", plan.topology);
        compared += 1;
    }
    assert_eq!(compared, plan.vcpu_pins.len());
}

/// Compares the cells that a guest sees with the plan's.
fn compare_cells(written: &Written, shown: &str) {
    let seen: Vec<Vec<&str>> = shown
        .lines()
        .filter_map(|line| Some(line.trim_end().strip_prefix("seen: node ")?.split(' ').collect()))
        .collect();
    assert_eq!(seen.len(), written.plan.cells.len(), "{seen:?}");
    for (number, (seen, cell)) in seen.iter().zip(&written.plan.cells).enumerate() {
        let [node, "cpus", cpus, "distance", distance, "memory", memory] = seen[..] else {
            panic!("{seen:?}")
        };
        let distances: Vec<String> = cell.distances.iter().map(ToString::to_string).collect();
        assert_eq!(
            (node, cpus),
            (&*number.to_string(), &*format!("{}-{}", cell.vcpus.start, cell.vcpus.end - 1))
        );
        assert!(cell.distances.is_empty() || distance == distances.join(","), "{seen:?}");
        let (memory, planned): (u64, u64) = (memory.parse().unwrap(), cell.memory_kib.kib());
        assert!(memory <= planned && memory + (100 << 10) > planned, "{memory} KiB of {planned}");
    }
}

/// All that a guest's console shows, once the guest has shown its tree. QEMU 10.0 ends some of them
/// while they set up their functions, with `iotlb_to_section: Assertion ... failed`, if its vCPUs
/// are emulated by threads of their own on a busy machine, and others wait forever for a timer
/// before any output: such a guest is started again, a few times.
fn seen(daemon: &Daemon, dir: &Path, name: &str) -> String {
    let [console, file] = ["log", "xml"].map(|end| dir.join(format!("{name}.{end}")));
    let (until, mut starts) = (Instant::now() + Duration::from_secs(1200), 1);
    let mut begun = Instant::now();
    loop {
        let is_there = daemon.virsh(&["domstate", name]).0;
        let shown = std::fs::read(&console).unwrap_or_default();
        let shown = String::from_utf8_lossy(&shown).into_owned();
        if shown.contains("seen: tree") {
            return shown;
        }
        assert!(Instant::now() < until, "{name} does not show its tree:\n{shown}");
        let silence = begun.elapsed();
        let is_silent = shown.is_empty() && silence > Duration::from_secs(180);
        if !is_there || is_silent {
            let log = daemon.inside(&format!("/var/log/libvirt/qemu/{name}.log"));
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            let is_known = is_silent || log.contains("iotlb_to_section");
            assert!(is_known && starts < 5, "{name} was started {starts} times:\n{log}{shown}");
            eprintln!("{name} is started again after {} s", silence.as_secs());
            daemon.virsh(&["destroy", name]);
            let (started, text) = daemon.virsh(&["create", file.to_str().unwrap()]);
            assert!(started, "{name}: {text}");
            (starts, begun) = (starts + 1, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// QEMU's command line for a guest that libvirt treats as a KVM guest: no machine with KVM is
/// needed, since libvirt writes the same for its largest emulated CPU. Only KVM can show the effect
/// in the guest.
#[test]
fn qemu_gets_pinned_vcpus_the_hosts_caches_and_the_clock() {
    if !namespaces() {
        return skip("namespaces need root");
    }
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("told");
    let told = |words: &str| {
        let (code, xml, err) = run(&mut on_host("dgx-a100", &format!("$GPUVM export {words}")));
        assert_eq!(code, 0, "{words}: {err}");
        let mut text = with_stand_ins(&xml, |_, _| Vec::new());
        let document = DomainXml::parse(&xml).unwrap();
        let devices = document.root().child("devices").unwrap();
        for nic in devices.children("interface") {
            text = text.replacen(nic.xml(), "", 1);
        }
        let os = document.root().child("os").unwrap();
        let bare = "<os><type arch='x86_64' machine='q35'>hvm</type></os>";
        text = text.replacen(os.xml(), bare, 1).replacen("type='kvm'", "type='qemu'", 1);
        text = text.replacen("mode='host-passthrough'", "mode='maximum'", 1);
        let file = dir.join("told.xml");
        std::fs::write(&file, text).unwrap();
        let (is_done, said) =
            daemon.virsh(&["domxml-to-native", "qemu-argv", file.to_str().unwrap()]);
        assert!(is_done, "{words}: {said}");
        said
    };
    let line = told("--gpus 8 --name whole --assume-empty --memory 4G");
    for wanted in [
        "migratable=off",
        "topoext=on",
        "kvm-hint-dedicated=on",
        "kvm-poll-control=on",
        "host-cache-info=on,l3-cache=off",
        "240,sockets=2,dies=4,clusters=1,cores=15,threads=2",
    ] {
        assert!(line.contains(wanted), "{wanted}: {line}");
    }
    let line = told("--gpus 8 --name few --assume-empty --memory 4G --vcpus 8");
    assert!(line.contains("l3-cache=on,host-cache-info=off"), "{line}");
    assert!(line.contains("8,sockets=2,dies=2,clusters=1,cores=1,threads=2"), "{line}");
    let line = told("--gpus 0 --name floats --assume-empty --memory 1G --pins none --vcpus 4");
    for absent in ["kvm-hint", "kvm-poll", "host-cache-info", "migratable=off"] {
        assert!(!line.contains(absent), "{absent}: {line}");
    }
}

#[test]
fn the_guests_kernel_sees_the_tree_that_was_planned() {
    if !namespaces() {
        return skip("namespaces need root");
    }
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("view");
    let Some(tiny) = Tiny::new(&dir) else { return };
    let start = |case: &'static Case| {
        let written = case.write(daemon, &tiny);
        let file = dir.join(format!("{}.xml", case.name));
        std::fs::write(&file, written.with_stand_ins()).unwrap();
        let (started, text) = daemon.virsh(&["create", file.to_str().unwrap()]);
        assert!(started, "{}: {text}", case.name);
        (case, written)
    };
    // Two at a time: the next starts before the previous one is examined.
    let all = std::env::var("GPUVM_VIEW").is_ok_and(|value| value == "all");
    let mut next = CASES.iter().filter(|case| all || !case.nightly);
    let mut running: Vec<_> = next.by_ref().take(1).map(start).collect();
    while let Some((case, written)) = running.pop() {
        running.extend(next.next().map(start));
        let shown = seen(daemon, &dir, case.name);
        let (gone, text) = daemon.virsh(&["destroy", case.name]);
        assert!(gone, "{text}");
        let functions: Vec<Function> = shown.lines().filter_map(Function::read).collect();
        eprintln!("{}: {} functions", case.name, functions.len());
        compare_tree(&written, &functions);
        compare_cells(&written, &shown);
        compare_caches(&written, &shown);
    }
}
