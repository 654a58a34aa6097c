//! Guests of real people (tests/guests/posted.txt: facts of definitions in public repositories, in
//! our own words). On hosts of one node nothing that their owners chose changes without a fault
//! that `check` names: pins, addresses, aliases, CPU model and topology; and what libvirt makes a
//! command line of is one afterwards, too.

use crate::support::{host_tree, project, skip};
use crate::xml::tools::{as_host, has};
use gpuvm::check::{Finding, judge};
use gpuvm::domain::guest::Abilities;
use gpuvm::domain::{DomainXml, Element};

use gpuvm::placement::Occupancy;
use gpuvm::topology::{Topology, file};
use gpuvm::tune::{Given, Items, Tuned, tune};
use gpuvm::versions::Versions;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

/// Fewer guests than there are.
const FEWEST: usize = 60;

/// A guest: where its definition was found, and the lines about it, as words.
struct Posted {
    /// The repository and its file.
    source: String,
    /// The lines.
    lines: Vec<Vec<String>>,
}

/// Reads all.
fn all() -> Vec<Posted> {
    let text = fs::read_to_string(project().join("tests/guests/posted.txt")).unwrap();
    let stanzas = text.trim_end().split("\n\n").map(|stanza| {
        let mut lines = stanza.lines().filter(|line| !line.starts_with('#'));
        let source = lines.next().unwrap().strip_prefix("guest ").unwrap().to_owned();
        let lines = lines.map(|line| line.split(' ').map(str::to_owned).collect());
        Posted { source, lines: lines.collect() }
    });
    stanzas.collect()
}

/// An address element of libvirt's, from `BB:SS.F`.
fn address(bdf: &str, more: &str) -> String {
    let (bus, rest) = bdf.split_once(':').unwrap();
    let (slot, function) = rest.split_once('.').unwrap();
    format!(
        "<address {more}domain='0x0000' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/>"
    )
}

/// Escapes a value.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

impl Posted {
    /// The lines of a word, without it.
    fn of<'p>(&'p self, word: &'p str) -> impl Iterator<Item = &'p [String]> {
        self.lines.iter().filter(move |line| line[0] == word).map(|line| &line[1..])
    }

    /// The first of them.
    fn one<'p>(&'p self, word: &'p str) -> &'p [String] {
        self.of(word).next().unwrap_or_default()
    }

    /// The machine, with functions in groups of their own, slot by slot.
    fn host(&self) -> Topology {
        let words = self.one("host");
        let cores: u32 = words[0].parse().unwrap();
        let step: u32 = words[5].strip_prefix('+').unwrap().parse().unwrap();
        let pcpus = |core: u32| match step {
            1 => format!("{},{}", 2 * core, 2 * core + 1),
            _ => format!("{core},{}", core + step),
        };
        let of_core = |core| json!({"package": 0, "die": 0, "core_id": core, "node": 0, "pcpus": pcpus(core)});
        let own: u64 = self.one("memory")[0].parse().unwrap();
        let sources: BTreeSet<&str> = self.of("hostdev").map(|words| words[0].as_str()).collect();
        let argument = self.of("argument").filter_map(|words| words[1].split("host=").nth(1));
        let sources: BTreeSet<&str> =
            sources.into_iter().chain(argument.filter_map(|rest| rest.split(',').next())).collect();
        let mut devices: Vec<Value> = Vec::new();
        let mut slots: Vec<&str> = Vec::new();
        for bdf in &sources {
            let slot = &bdf[..5];
            if !slots.contains(&slot) {
                slots.push(slot);
            }
            let group = slots.len();
            let has_audio = sources.contains(format!("{slot}.1").as_str());
            let function = &bdf[6..];
            let (class, vendor) = match function {
                "0" if slot == "00:02" => ("0x030000", "0x8086"),
                "0" if !slot.starts_with("00:") && has_audio => ("0x030000", "0x10de"),
                "1" if !slot.starts_with("00:") => ("0x040300", "0x10de"),
                "2" if !slot.starts_with("00:") => ("0x0c0330", "0x10de"),
                _ if slot.starts_with("00:") => ("0x0c0330", "0x8086"),
                _ => ("0x0c0330", "0x1022"),
            };
            let bus = u32::from_str_radix(&bdf[..2], 16).unwrap();
            let port =
                (bus != 0).then(|| format!("0000:00:{:02x}.{}", 0x10 + bus % 16, bus / 16 % 8));
            let mut device = json!({
                "bdf": format!("0000:{bdf}"), "root": "pci0000:00", "class": class, "vendor": vendor,
                "device": "0x1234", "subsystem_vendor": "0x0000", "subsystem_device": "0x0000",
                "node": 0, "driver": "vfio-pci", "iommu_group": group, "reset_methods": ["flr"],
            });
            if let Some(port) = port {
                device["parent"] = json!(port);
                let port = json!({
                    "bdf": port, "root": "pci0000:00", "class": "0x060400", "vendor": "0x8086",
                    "device": "0x1111", "subsystem_vendor": "0x0000",
                    "subsystem_device": "0x0000", "node": 0, "driver": "pcieport",
                });
                if !devices.iter().any(|other| other["bdf"] == port["bdf"]) {
                    devices.push(port);
                }
            }
            devices.push(device);
        }
        devices.sort_by_key(|device| device["bdf"].as_str().unwrap().to_owned());
        let pools = json!([{"page_kib": 2048, "total": own / 1024, "free": own / 2048}]);
        let host = json!({"format": "gpuvm-host", "version": 1, "host": {
            "machine": {"architecture": "x86_64", "cpu_vendor": "GenuineIntel",
                "physical_address_bits": 46, "kernel_arguments": ["iommu=pt"]},
            "nodes": [{"os_index": 0, "pcpus": format!("0-{}", 2 * cores - 1),
                "memory_kib": 2 * own + (8 << 20), "distances": [10], "huge_pages": pools}],
            "cores": (0..cores).map(of_core).collect::<Vec<_>>(),
            "l3": [{"pcpus": format!("0-{}", 2 * cores - 1), "size_kib": 32768}],
            "offline": "", "isolated": "", "devices": devices, "drives": [],
            "fabric": {"model": "none"},
        }});
        file::from_json(&host.to_string()).unwrap_or_else(|e| panic!("{}: {e}", self.source))
    }

    /// Its definition.
    fn xml(&self) -> DomainXml {
        let machine = self.one("machine");
        let vcpus = &self.one("vcpus")[0];
        let memory = self.one("memory");
        let system = self.one("system")[0].as_str();
        let mut text = String::from(
            "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n  \
             <name>posted</name>\n",
        );
        if system == "macos" {
            text += "  <metadata><libosinfo:libosinfo \
                     xmlns:libosinfo='http://libosinfo.org/xmlns/libvirt/domain/1.0'>\
                     <libosinfo:os id='http://apple.com/macos/11'/></libosinfo:libosinfo>\
                     </metadata>\n";
        }
        writeln!(text, "  <memory unit='KiB'>{}</memory>", memory[0]).unwrap();
        if memory.get(1).is_some() {
            text += "  <memoryBacking><hugepages/></memoryBacking>\n";
        }
        writeln!(text, "  <vcpu placement='static'>{vcpus}</vcpu>").unwrap();
        let iothreads = self.one("iothreads");
        if let Some(number) = iothreads.first() {
            writeln!(text, "  <iothreads>{number}</iothreads>").unwrap();
        }
        text += &self.cputune();
        let (kind, firmware) =
            (&machine[0], if machine[1] == "efi" { " firmware='efi'" } else { "" });
        writeln!(text, "  <os{firmware}><type arch='x86_64' machine='{kind}'>hvm</type></os>")
            .unwrap();
        text += "  <features><acpi/><apic/>";
        if system == "windows" {
            text += "<hyperv><relaxed state='on'/><vapic state='on'/></hyperv>";
        }
        text += "</features>\n";
        text += &self.cpu();
        text += "  <devices>\n";
        text += &self.devices();
        text += "  </devices>\n";
        let arguments: Vec<_> = self.of("argument").collect();
        if !arguments.is_empty() {
            text += "  <qemu:commandline>\n";
            for words in arguments {
                for word in [words[0].clone(), words[1..].join(" ")] {
                    writeln!(text, "    <qemu:arg value='{}'/>", escaped(&word)).unwrap();
                }
            }
            text += "  </qemu:commandline>\n";
        }
        text += "</domain>\n";
        DomainXml::parse(&text).unwrap_or_else(|e| panic!("{}: {e}\n{text}", self.source))
    }

    /// Its pins.
    fn cputune(&self) -> String {
        let mut text = String::new();
        for pin in self.one("pins") {
            let (vcpu, set) = pin.split_once('=').unwrap();
            writeln!(text, "    <vcpupin vcpu='{vcpu}' cpuset='{set}'/>").unwrap();
        }
        if let Some(set) = self.one("emulator").first() {
            writeln!(text, "    <emulatorpin cpuset='{set}'/>").unwrap();
        }
        for pin in self.one("iothreads").iter().skip(1) {
            let (thread, set) = pin.split_once('=').unwrap();
            writeln!(text, "    <iothreadpin iothread='{thread}' cpuset='{set}'/>").unwrap();
        }
        if text.is_empty() { text } else { format!("  <cputune>\n{text}  </cputune>\n") }
    }

    /// Its CPU.
    fn cpu(&self) -> String {
        let words = self.one("cpu");
        let Some(mode) = words.first() else { return String::new() };
        let mut text = match mode.as_str() {
            "custom" => "  <cpu mode='custom' match='exact'>".to_owned(),
            mode => format!("  <cpu mode='{mode}'>"),
        };
        for word in &words[1..] {
            match word.split_once('=') {
                Some(("model", model)) => write!(text, "<model>{model}</model>"),
                Some(("topology", shape)) => {
                    let shape: Vec<&str> = shape.split('x').collect();
                    let [sockets, dies, cores, threads] = shape[..] else { panic!("{word}") };
                    write!(
                        text,
                        "<topology sockets='{sockets}' dies='{dies}' cores='{cores}' \
                         threads='{threads}'/>"
                    )
                }
                Some(("cache", mode)) => write!(text, "<cache mode='{mode}'/>"),
                Some(("bits", "passthrough")) => write!(text, "<maxphysaddr mode='passthrough'/>"),
                Some(("bits", "emulate")) => {
                    write!(text, "<maxphysaddr mode='emulate' bits='40'/>")
                }
                Some(("bits", bits)) => write!(text, "<maxphysaddr mode='emulate' bits='{bits}'/>"),
                _ => {
                    let policy = if word.starts_with('-') { "disable" } else { "require" };
                    write!(text, "<feature policy='{policy}' name='{}'/>", &word[1..])
                }
            }
            .unwrap();
        }
        text + "</cpu>\n"
    }

    /// Its devices.
    fn devices(&self) -> String {
        let mut text = String::new();
        let at = |words: &[String]| {
            let place = words.iter().position(|word| word == "at");
            let multi = words.iter().any(|word| word == "multifunction");
            let more = if multi { "multifunction='on' " } else { "" };
            place.map_or(String::new(), |at| address(&words[at + 1], &format!("type='pci' {more}")))
        };
        for words in self.of("pci") {
            let [index, model] = [&words[0], &words[1]];
            let place = at(words);
            writeln!(
                text,
                "    <controller type='pci' index='{index}' model='{model}'>{place}</controller>"
            )
            .unwrap();
        }
        for (nth, words) in self.of("disk").enumerate() {
            let [bus, dev, device, format] = [&words[0], &words[1], &words[2], &words[3]];
            let thread = words.iter().find_map(|word| word.strip_prefix("iothread="));
            let thread = thread.map_or(String::new(), |id| format!(" iothread='{id}'"));
            writeln!(
                text,
                "    <disk type='file' device='{device}'><driver name='qemu' type='{format}'{thread}/>\
                 <source file='/nowhere/{nth}.img'/><target dev='{dev}' bus='{bus}'/>{}</disk>",
                at(words)
            )
            .unwrap();
        }
        for words in self.of("nic") {
            let model = match words[0].as_str() {
                "none" => String::new(),
                model => format!("<model type='{model}'/>"),
            };
            writeln!(text, "    <interface type='user'>{model}{}</interface>", at(words)).unwrap();
        }
        for words in self.of("hostdev") {
            let managed = if words.iter().any(|word| word == "unmanaged") { "no" } else { "yes" };
            let alias = words.iter().find_map(|word| word.strip_prefix("alias="));
            let alias = alias.map_or(String::new(), |name| format!("<alias name='{name}'/>"));
            writeln!(
                text,
                "    <hostdev mode='subsystem' type='pci' managed='{managed}'><source>{}</source>\
                 {alias}{}</hostdev>",
                address(&words[0], ""),
                at(words)
            )
            .unwrap();
        }
        text
    }
}

/// Elements below these names.
fn below<'x>(xml: &'x DomainXml, path: &[&str]) -> Vec<Element<'x>> {
    let deeper = |all: Vec<Element<'x>>, name: &&str| {
        all.into_iter().flat_map(|one| one.children(name).collect::<Vec<_>>()).collect()
    };
    path.iter().fold(vec![xml.root()], deeper)
}

/// The attributes of an element, in words; nothing: there is no element.
fn attributes(of: Option<Element<'_>>, names: &[&str]) -> String {
    let value = |of: Element<'_>, name: &str| Some(format!("{name}={} ", of.attr(name)?));
    let words = of.map(|of| names.iter().filter_map(|name| value(of, name)).collect());
    words.unwrap_or_default()
}

/// What an owner chose, by aspect.
fn chosen(xml: &DomainXml) -> BTreeMap<&'static str, Vec<String>> {
    let list = |path: &[&str], names: &[&str]| -> Vec<String> {
        below(xml, path).into_iter().map(|one| attributes(Some(one), names)).collect()
    };
    let of_hostdevs = |child: &str, names: &[&str]| -> Vec<String> {
        let all = below(xml, &["devices", "hostdev"]).into_iter();
        all.map(|one| attributes(one.child(child), names)).collect()
    };
    BTreeMap::from([
        ("vcpu pins", list(&["cputune", "vcpupin"], &["vcpu", "cpuset"])),
        ("emulator pin", list(&["cputune", "emulatorpin"], &["cpuset"])),
        ("cpu mode", list(&["cpu"], &["mode"])),
        ("topology", list(&["cpu", "topology"], &["sockets", "dies", "cores", "threads"])),
        ("cells", list(&["cpu", "numa"], &[])),
        ("aliases", of_hostdevs("alias", &["name"])),
        ("addresses", of_hostdevs("address", &["bus", "slot", "function", "multifunction"])),
    ])
}

/// The rules of `check` that each aspect may change for.
fn cures(aspect: &str) -> &'static [&'static str] {
    match aspect {
        "vcpu pins" => &["vcpu-partly-pinned", "vcpu-pair-split"],
        "emulator pin" => &["emulator-on-vcpu-core", "vcpu-partly-pinned"],
        "cpu mode" => &["maxphysaddr-missing"],
        "topology" => &["vcpu-pair-split"],
        "addresses" => &["gpu-on-root-bus", "device-on-root-bus"],
        _ => &[],
    }
}

/// Whether a rule names the fault of each thing of an aspect that is otherwise afterwards.
fn is_cured(
    guest: &DomainXml,
    aspect: &str,
    (was, is): (&[String], &[String]),
    found: &[Finding],
) -> bool {
    let named = |finding: &&Finding| cures(aspect).contains(&finding.rule);
    if aspect != "addresses" {
        return found.iter().any(|finding| named(&finding));
    }
    // Of each function that moves.
    let sources = below(guest, &["devices", "hostdev", "source", "address"]);
    let bdf = |at: usize| {
        let value =
            |name: &str| sources[at].attr(name).unwrap().trim_start_matches("0x").to_owned();
        format!("0000:{}:{}.{}", value("bus"), value("slot"), value("function"))
    };
    let moved = (0..was.len()).filter(|at| was[*at] != is[*at] && !was[*at].is_empty());
    moved.map(bdf).all(|bdf| found.iter().filter(named).any(|f| f.says.message.contains(&bdf)))
}

/// Tunes a guest on its host.
fn tuned(xml: &DomainXml, host: &Topology) -> Result<Tuned, String> {
    let given = Given {
        topology: host,
        others: &Occupancy::default(),
        items: &Items::all(),
        allow: gpuvm::request::Allow::default(),
        disks: &BTreeMap::new(),
        abilities: Abilities::default(),
        versions: &Versions::default(),
    };
    tune(xml, &given).map_err(|error| error.to_string())
}

#[test]
fn choices_of_owners_stay_unless_a_rule_names_a_fault() {
    let guests = all();
    assert!(guests.len() >= FEWEST, "{}", guests.len());
    let mut wrong = Vec::new();
    let mut refused = 0;
    for guest in &guests {
        let (host, xml) = (guest.host(), guest.xml());
        let after = match tuned(&xml, &host) {
            Ok(tuned) => tuned.after,
            Err(why) => {
                refused += 1;
                eprintln!("{}: {why}", guest.source);
                continue;
            }
        };
        let (found, _) = judge(&xml, &host, &Occupancy::default(), &Versions::default());
        let rules: BTreeSet<&str> = found.iter().map(|finding| finding.rule).collect();
        let (before, now) = (chosen(&xml), chosen(&after));
        for (aspect, was) in &before {
            let is = &now[aspect];
            // To have no cells is a choice, too.
            let is_chosen = *aspect == "cells" || was.iter().any(|one| !one.is_empty());
            if was != is && is_chosen && !is_cured(&xml, aspect, (was, is), &found) {
                wrong.push(format!("{}: {aspect}: {was:?} -> {is:?}; {rules:?}", guest.source));
            }
        }
        match tuned(&after, &host) {
            Ok(again) if again.changes.is_empty() => {}
            Ok(again) => wrong.push(format!("{}: again: {:?}", guest.source, again.changes)),
            Err(why) => wrong.push(format!("{}: again: {why}", guest.source)),
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "{}", wrong.join("\n"));
    assert!(refused <= 3, "{refused}");
}

/// What tuning changes of each guest, and the rules that find fault with it as it is: kept, so that
/// who changes a rule sees whose guests it reaches.
#[test]
fn changes_of_each_setting_match_the_recorded_ones() {
    let mut table = String::new();
    for guest in all() {
        let (host, xml) = (guest.host(), guest.xml());
        let (found, _) = judge(&xml, &host, &Occupancy::default(), &Versions::default());
        let rules: BTreeSet<&str> = found.iter().map(|finding| finding.rule).collect();
        let rules: Vec<&str> = rules.into_iter().collect();
        writeln!(table, "{}\n  found: {}", guest.source, rules.join(" ")).unwrap();
        match tuned(&xml, &host) {
            Ok(tuned) => {
                tuned.changes.iter().for_each(|change| writeln!(table, "  {change}").unwrap());
            }
            Err(why) => writeln!(table, "  refused: {why}").unwrap(),
        }
    }
    let path = project().join("tests/guests/tuned.txt");
    if std::env::var_os("GPUVM_RENEW").is_some() {
        fs::write(&path, &table).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == table, "GPUVM_RENEW=1 renews {}:\n{table}", path.display());
}

#[test]
fn valid_domains_stay_valid_for_libvirt() {
    if !nix::unistd::geteuid().is_root() {
        return skip("needs root");
    }
    if !has("virsh") || !has("qemu-system-x86_64") {
        return;
    }
    let dir = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .unwrap();
    fs::create_dir_all(dir.path().join("embedded/etc")).unwrap();
    let (mut commands, mut names) = (Vec::new(), Vec::new());
    for (nth, guest) in all().iter().enumerate() {
        let (host, xml) = (guest.host(), guest.xml());
        let Ok(tuned) = tuned(&xml, &host) else { continue };
        names.push(guest.source.clone());
        for (which, xml) in [("before", &xml), ("after", &tuned.after)] {
            let file = format!("{nth}-{which}.xml");
            // The newest machine types and pages of this size are not everywhere.
            let text = xml.text().replace("<hugepages/>", "");
            fs::write(dir.path().join(&file), with_any_machine(&text)).unwrap();
            commands.push(format!("domxml-to-native qemu-argv {file}"));
        }
    }
    let said = as_host(&host_tree("dgx-2"), dir.path(), &commands);
    let (mut taken, mut wrong) = (0, Vec::new());
    for (name, said) in names.iter().zip(said.chunks(2)) {
        let [before, after] = said else { panic!("{name}: {said:?}") };
        if before.contains("error:") {
            eprintln!("{name}: {before}");
            continue;
        }
        taken += 1;
        if after.contains("error:") {
            wrong.push(format!("{name}: {after}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "{}", wrong.join("\n"));
    assert!(taken >= FEWEST / 2, "{taken}");
}

/// A definition with a machine type that each QEMU has.
fn with_any_machine(text: &str) -> String {
    // The embedded driver has no default for it.
    let mut out =
        text.replace("<source><address domain", "<driver name='vfio'/><source><address domain");
    for (family, any) in [("pc-q35-", "q35"), ("pc-i440fx-", "pc")] {
        while let Some(at) = out.find(&format!("machine='{family}")) {
            let from = at + "machine='".len();
            let end = from + out[from..].find('\'').unwrap();
            out.replace_range(from..end, any);
        }
    }
    out
}
