//! Statements on isolation, nodes and memory, and changes that `tune` would repeat.

use crate::support::tree::{host_text, scratch, unpack};
use crate::support::{gpuvm, project, run, skip};
use crate::tune::corpus::{documents, domains};
use crate::tune::domains::tuned;
use crate::tune::property::cases;
use crate::xml::guests::host;
use gpuvm::domain::DomainXml;
use gpuvm::placement::Occupancy;
use gpuvm::request::PageSize;
use gpuvm::tune::items::PinOrder;
use gpuvm::tune::{Item, Items};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A setting by its words, with its effect on the items.
type Named = (&'static str, fn(&mut Items));

/// Settings of `tune --all` that are named beside it: each alone and each pair is tried.
const NAMED: [Named; 30] = [
    ("pins off", |items| items.pins = Item::Off),
    ("pins keep", |items| items.pins = Item::Keep),
    ("pins thread", |items| items.pins = Item::To(PinOrder::Thread)),
    ("topology off", |items| items.topology = Item::Off),
    ("topology keep", |items| items.topology = Item::Keep),
    ("emulator off", |items| items.emulator = Item::Off),
    ("emulator keep", |items| items.emulator = Item::Keep),
    ("iothreads off", |items| items.iothreads = Item::Off),
    ("iothreads 2", |items| items.iothreads = Item::To(2)),
    ("iothreads keep", |items| items.iothreads = Item::Keep),
    ("iothread-pins off", |items| items.iothread_pins = Item::Off),
    ("iothread-pins keep", |items| items.iothread_pins = Item::Keep),
    ("huge-pages on", |items| items.huge_pages = Item::On),
    ("huge-pages off", |items| items.huge_pages = Item::Off),
    ("huge-pages 1G", |items| items.huge_pages = Item::To(PageSize::OneGib)),
    ("fill off", |items| items.fill = Item::Off),
    ("cells off", |items| items.cells = Item::Off),
    ("cells keep", |items| items.cells = Item::Keep),
    ("cells 2", |items| items.cells = Item::To(2)),
    ("memory-nodes off", |items| items.memory_nodes = Item::Off),
    ("memory-nodes keep", |items| items.memory_nodes = Item::Keep),
    ("memory-rounding keep", |items| items.memory_rounding = Item::Keep),
    ("memory-rounding 2M", |items| items.memory_rounding = Item::To(PageSize::TwoMib)),
    ("disk-queues off", |items| items.disk_queues = Item::Off),
    ("disk-queues 3", |items| items.disk_queues = Item::To(3)),
    ("net-queues off", |items| items.net_queues = Item::Off),
    ("pcie off", |items| items.pcie = Item::Off),
    ("window off", |items| items.window = Item::Off),
    ("maxphysaddr off", |items| items.maxphysaddr = Item::Off),
    ("balloon off", |items| items.balloon = Item::Off),
];

/// One in this many pairs of a document and named settings is tried, so that the whole suite stays
/// short; `GPUVM_CASES` sets another number.
const ONE_OF: u32 = 397;

/// Combinations that once caused repeated changes, tried with every document.
const SEEN: [&str; 3] =
    ["--all pins off, cells off", "--all cells 2, cells 2", " topology off, cells off"];

/// Each named setting alone and each pair, with `--all` and without.
fn combinations() -> Vec<(String, Items)> {
    let mut all = Vec::new();
    for base in [Items::all(), Items::default()] {
        let all_or_not = if base == Items::all() { "--all" } else { "" };
        for (first, (a, set_a)) in NAMED.iter().enumerate() {
            for (b, set_b) in &NAMED[first..] {
                let mut items = base.clone();
                set_a(&mut items);
                set_b(&mut items);
                all.push((format!("{all_or_not} {a}, {b}"), items));
            }
        }
    }
    all
}

/// `tune --all --pins off --cells off` changed 35 of these documents again when it was run twice.
#[test]
fn a_second_tune_with_any_settings_changes_nothing() {
    let Some(dir) = documents() else { return };
    let all = domains(&dir);
    let (dgx2, unoccupied) = (host("dgx-2"), Occupancy::default());
    let combinations = combinations();
    let step = cases(ONE_OF) as usize;
    let mut wrong: Vec<String> = Vec::new();
    let (mut number, mut done) = (0_usize, 0);
    for (file, text) in &all {
        let Ok(xml) = DomainXml::parse(text) else { continue };
        for (named, items) in &combinations {
            number += 1;
            if !SEEN.contains(&named.as_str()) && !number.is_multiple_of(step) {
                continue;
            }
            let Ok(first) = tuned(&xml, &dgx2, &unoccupied, items) else { continue };
            done += 1;
            let name = file.strip_prefix(&dir).unwrap().display();
            match tuned(&first.after, &dgx2, &unoccupied, items) {
                Ok(second) if second.changes.is_empty() => {}
                Ok(second) => wrong.push(format!("{named}: {name}: {:?}", second.changes)),
                Err(error) => wrong.push(format!("{named}: {name}: {error}")),
            }
        }
    }
    eprintln!("{done} tuned twice");
    assert!(done > 2000, "only {done} could be tuned");
    wrong.sort();
    assert!(wrong.is_empty(), "{} not the same twice:\n{}", wrong.len(), wrong.join("\n"));
}

/// A recorded host's tree that can be changed.
fn tree(name: &str) -> tempfile::TempDir {
    let dir = scratch();
    unpack(&host_text(name), dir.path()).unwrap();
    dir
}

/// Runs a verb on a tree: the exit code and both outputs.
fn on(tree: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = gpuvm(args);
    run(command.args(["--connect", "test:///default", "--host", tree.to_str().unwrap()]))
}

/// The answer of a verb on a tree as JSON.
#[track_caller]
fn json(tree: &Path, args: &[&str]) -> Value {
    let (code, out, err) = on(tree, &[args, &["--json"]].concat());
    assert!(code == 0 || code == 3, "{args:?}: {code}: {err}");
    serde_json::from_str(&out).unwrap()
}

/// Writes a file of a tree.
fn put(tree: &Path, path: &str, text: &str) {
    let path = tree.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Appends to the kernel's command line.
fn argument(tree: &Path, argument: &str) {
    let path = tree.join("proc/cmdline");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(path, format!("{} {argument}\n", text.trim_end())).unwrap();
}

/// Removes every function's IOMMU group.
fn no_groups(tree: &Path) {
    for function in fs::read_dir(tree.join("sys/bus/pci/devices")).unwrap() {
        let _ = fs::remove_file(function.unwrap().path().join("iommu_group"));
    }
}

/// The file with VFIO's setting for unsafe interrupts.
const UNSAFE: &str = "sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";

/// "The IOMMU keeps guests apart" was said with `pcie_acs_override=`, with unsafe interrupts and
/// without any IOMMU.
#[test]
fn isolation_is_claimed_only_where_it_was_looked_at() {
    /// A change of the host, the expected statement, and the rule of the finding.
    type Case = (fn(&Path), &'static str, Option<&'static str>);
    let cases: [Case; 8] = [
        (|_| {}, "the IOMMU confines these devices to the guest's memory", None),
        (
            |tree| argument(tree, "iommu.strict=0 iommu=pt"),
            "the IOMMU confines these devices to the guest's memory",
            None,
        ),
        (|tree| fs::remove_dir_all(tree.join("sys/module")).unwrap(), "is unknown", None),
        (
            |tree| argument(tree, "pcie_acs_override=downstream,multifunction"),
            "`pcie_acs_override=downstream,multifunction` splits IOMMU groups",
            Some("acs-override"),
        ),
        (
            |tree| {
                argument(tree, "pcie_acs_override=downstream");
                fs::remove_dir_all(tree.join("sys/module")).unwrap();
            },
            "`pcie_acs_override=downstream` splits IOMMU groups",
            Some("acs-override"),
        ),
        (|tree| put(tree, UNSAFE, "Y\n"), "any interrupt of the host", Some("unsafe-interrupts")),
        (
            |tree| {
                fs::remove_file(tree.join(UNSAFE)).unwrap();
                let options = "options vfio_iommu_type1 allow_unsafe_interrupts=1\n";
                put(tree, "etc/modprobe.d/vfio.conf", options);
            },
            "any interrupt of the host",
            Some("unsafe-interrupts"),
        ),
        (no_groups, "no IOMMU group for 0000:", Some("no-iommu")),
    ];
    for (change, said, rule) in cases {
        let dir = tree("dual-socket");
        let tree = dir.path();
        change(tree);
        let plan = json(tree, &["plan", "--gpus", "1"]);
        let reasons = plan["placement"]["reasons"].as_array().unwrap().clone();
        let text = |reason: &Value| reason["because"].as_str().unwrap().to_owned();
        let found: Vec<&Value> = reasons.iter().filter(|r| r["choice"] == "iommu").collect();
        let [found] = found[..] else { panic!("{said}: {reasons:?}") };
        assert!(text(found).contains(said), "{said}: {found}");
        assert_eq!(found["compromise"], rule.is_some(), "{said}");
        let claims = reasons.iter().filter(|reason| text(reason).contains("keeps")).count();
        assert_eq!(claims == 0, !said.contains("keeps"), "{said}: {reasons:?}");
        let (_, out, err) = on(tree, &["plan", "--gpus", "1"]);
        assert_eq!(
            out.contains(&format!("! iommu        {}", text(found))),
            rule.is_some(),
            "{out}{err}"
        );
        let (code, xml, err) = on(tree, &["export", "--gpus", "1"]);
        assert_eq!(code, 0, "{err}");
        put(tree, "domain.xml", &xml);
        let answer = json(tree, &["check", tree.join("domain.xml").to_str().unwrap()]);
        let rules = ["acs-override", "unsafe-interrupts", "no-iommu"];
        let findings = answer["findings"].as_array().unwrap();
        let found: Vec<&str> = findings.iter().filter_map(|f| f["rule"].as_str()).collect();
        let found: Vec<&str> = found.into_iter().filter(|found| rules.contains(found)).collect();
        assert_eq!(found, Vec::from_iter(rule), "{said}: {answer}");
        let untold = answer["not_checked"].to_string().contains("isolation of passed devices");
        assert_eq!(untold, said == "is unknown", "{said}: {answer}");
    }
}

/// A process of a tree that has this file open.
fn process(tree: &Path, pid: u32, name: &str, file: &str) {
    put(tree, &format!("proc/{pid}/comm"), name);
    let dir = tree.join(format!("proc/{pid}/fd"));
    fs::create_dir_all(&dir).unwrap();
    symlink(file, dir.join("7")).unwrap();
}

/// The real machine's kernel gave -1 as node and 4.5 GiB as the memory of node 0. `gpu list` said
/// `free` of the GPU that nvidia-persistenced had open, `device list` named that process.
#[test]
fn a_real_h100_machine_is_shown_as_it_is() {
    let dir = tree("h100-guest");
    let tree = dir.path();
    let host = gpuvm::discover::source::load(tree).unwrap();
    let [node] = host.nodes() else { panic!("{:?}", host.nodes()) };
    assert_eq!(node.memory_kib.kib(), 131_981_020);
    assert!(host.devices().iter().all(|device| device.node == Some(node.os_index)));
    let gpu = host.gpus().next().unwrap();
    assert_eq!((gpu.bdf.to_string().as_str(), gpu.device), ("0000:00:06.0", 0x2330));
    assert_eq!(gpu.reset_methods.as_deref(), Some(&["flr".to_owned()][..]));
    let bars: Vec<(u8, u64)> = gpu.bars.iter().map(|bar| (bar.index, bar.bytes)).collect();
    assert_eq!(bars, [(0, 16 << 20), (2, 128 << 30), (4, 32 << 20)]);
    let (code, out, err) = on(tree, &["host", "matrix"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let row: Vec<&str> = out.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["GPU0", "X", "0", "0-15", "0000:00:06.0"]);
    let plan = json(tree, &["plan", "--gpus", "1"]);
    assert_eq!(plan["placement"]["cells"][0]["host_nodes"], "0");
    assert!(plan["placement"]["cells"][0]["memory_kib"].as_u64().unwrap() > 119 << 20);
    let (_, xml, _) = on(tree, &["export", "--gpus", "1"]);
    assert!(xml.contains("<pcihole64 unit='KiB'>536870912</pcihole64>"), "{xml}");

    // As `device list` says: its hypervisor gives it no IOMMU.
    assert_eq!(json(tree, &["gpu", "list"])[0]["state"], "blocked");
    process(tree, 812, "nvidia-persiste", "/dev/nvidia0");
    let gpu = json(tree, &["gpu", "list"])[0].clone();
    assert_eq!(gpu["uuid"], "GPU-00000000-0000-0000-0000-000000000001");
    assert_eq!(gpu["node"], 0);
    assert_eq!(gpu["state"], "host");
    let by = "process 812 (nvidia-persiste), which has /dev/nvidia0 open";
    assert_eq!(gpu["why"], format!("is used by {by}"));
    let devices = json(tree, &["device", "list"]);
    let device = devices.as_array().unwrap().iter().find(|d| d["bdf"] == "0000:00:06.0").unwrap();
    assert_eq!(gpu["used_by"], device["used_by"]);
    assert_eq!(device["used_by"][0]["by"], by);
    let (_, out, _) = on(tree, &["gpu", "list"]);
    assert!(out.contains(by) && !out.contains("free"), "{out}");
}

/// Facts that the kernel does not report on a machine with several nodes stay unknown.
#[test]
fn a_device_without_a_node_stays_without_on_several_nodes() {
    let dir = tree("dgx-2");
    let tree = dir.path();
    let node = fs::canonicalize(tree.join("sys/bus/pci/devices/0000:34:00.0/numa_node")).unwrap();
    assert_eq!(json(tree, &["gpu", "list"])[0]["node"], 0);
    fs::write(node, "-1\n").unwrap();
    assert_eq!(json(tree, &["gpu", "list"])[0]["node"], Value::Null);
    let (_, out, _) = on(tree, &["host", "matrix"]);
    let row = out.lines().find(|line| line.starts_with("GPU0")).unwrap();
    assert!(row.split_whitespace().eq(row.split_whitespace().filter(|cell| *cell != "0-23,48-71")));
}

/// Memory that the nodes do not show was left out silently.
#[test]
fn nodes_with_much_less_memory_than_the_machine_are_warned_of() {
    let dir = tree("dual-socket");
    let tree = dir.path();
    let capacity = json(tree, &["capacity"]);
    assert_eq!(capacity.get("warnings"), None);
    let warned = |plan: &Value| {
        let reasons = plan["placement"]["reasons"].as_array().unwrap();
        let is = |reason: &&Value| {
            reason["because"].as_str().unwrap().contains("are not planned with")
                && reason["compromise"] == true
        };
        reasons.iter().filter(is).count()
    };
    assert_eq!(warned(&json(tree, &["plan", "--gpus", "1"])), 0);
    let meminfo = tree.join("proc/meminfo");
    let text = fs::read_to_string(&meminfo).unwrap();
    let more = text.replacen("395807808", "1583231232", 1);
    assert_ne!(more, text);
    fs::write(meminfo, more).unwrap();
    let capacity = json(tree, &["capacity"]);
    let warning = capacity["warnings"][0].as_str().unwrap();
    assert!(warning.contains("of the machine's 1.5 TiB"), "{warning}");
    assert_eq!(warned(&json(tree, &["plan", "--gpus", "1"])), 1);
    for args in [&["capacity"][..], &["host", "show"], &["plan", "--gpus", "1"]] {
        let (code, out, err) = on(tree, args);
        let text = (out + &err).replace("\n  ", " ");
        assert!(code == 0 && text.contains("are not planned with"), "{args:?}: {text}");
    }
}

/// The tests that `gpuvm-safety(7)` names, with whether they are unit tests.
fn named_tests() -> Vec<(bool, String)> {
    let page = fs::read_to_string(project().join("man/gpuvm-safety.7")).unwrap().replace("\\:", "");
    let bold = page.lines().filter_map(|line| line.strip_prefix("Test: \\fB"));
    let names = bold.map(|line| line.strip_suffix("\\fR").unwrap_or_else(|| panic!("{line}")));
    names
        .map(|name| match name.strip_prefix("lib ") {
            Some(name) => (true, name.to_owned()),
            None => (false, name.to_owned()),
        })
        .collect()
}

/// A page that promises what no test tries is worth nothing.
#[test]
fn every_promise_of_the_safety_page_has_a_test_that_is_there() {
    let named = named_tests();
    assert!(named.len() > 20, "{named:?}");
    for (is_unit, name) in named {
        let (module, test) = name.rsplit_once("::").unwrap();
        let path = module.replace("::", "/");
        let files = if is_unit {
            ["src", "src/core", "src/host", "src/ops"]
                .iter()
                .flat_map(|room| {
                    [path.as_str(), path.trim_end_matches("/tests")]
                        .map(|path| format!("{room}/{path}.rs"))
                })
                .collect()
        } else {
            vec![format!("tests/{path}.rs"), format!("tests/{path}/mod.rs")]
        };
        let texts = files.iter().filter_map(|file| fs::read_to_string(project().join(file)).ok());
        let is_there = |text: String| {
            let at = text.find(&format!("fn {test}("))?;
            let before = text[..at].trim_end();
            before.lines().rev().take(3).find(|line| line.trim() == "#[test]").map(|_| ())
        };
        assert!(texts.filter_map(is_there).count() > 0, "no test `{name}` in {files:?}");
    }
}

/// The page is shown whole, and without a warning of the formatter.
#[test]
fn the_safety_page_is_shown() {
    let page = project().join("man/gpuvm-safety.7");
    let mut man = std::process::Command::new("man");
    let man =
        man.args(["--warnings", "-l"]).arg(page).env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8");
    let Ok(shown) = man.output() else {
        return skip("man is not installed");
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&shown.stdout), text(&shown.stderr));
    if out.is_empty() && !err.contains("warning") {
        return skip(format!("man shows no file: {err}"));
    }
    // groff 1.23 (Debian 13) names lines of one long word, such as a path.
    let faults: Vec<&str> = err.lines().filter(|l| !l.ends_with("cannot adjust line")).collect();
    assert_eq!((shown.status.code(), faults.join("\n").as_str()), (Some(0), ""));
    for heading in ["WHAT IS NEVER TOUCHED", "WHAT IS ASKED", "WHAT IS UNDONE", "WHAT IS CLAIMED"] {
        assert!(out.contains(heading), "{out}");
    }
    assert!(out.contains("cargo test --test main abuse::"), "{out}");
}

#[test]
fn a_recorded_host_has_no_guests_to_show() {
    let host = project().join("topologies/dgx-2.json");
    let (code, _, err) = run(gpuvm(&["host", "files"]).arg("--host").arg(&host));
    assert!(code == 2 && !err.contains("changes the machine"), "{code} {err}");
    for verb in [
        "list",
        "show x",
        "ip x",
        "history x",
        "network list",
        "image list",
        "console x",
        "get x",
        "disk list x",
        "snapshot list x",
    ] {
        let args: Vec<&str> = verb.split(' ').collect();
        let (code, out, err) = run(gpuvm(&args).arg("--host").arg(&host));
        assert!(code == 2 && out.is_empty(), "{verb}: {code} {out}{err}");
        assert!(err.contains("asks libvirt") && !err.contains("changes the machine"), "{err}");
    }
    for verb in ["measure x", "measure x --history", "exec x -- true", "shell x"] {
        let args: Vec<&str> = verb.split(' ').collect();
        let (code, out, err) = run(gpuvm(&["--host"]).arg(&host).args(args));
        assert!(code == 2 && out.is_empty(), "{verb}: {code} {out}{err}");
        assert!(err.contains("runs programs in a guest, which a recorded host"), "{verb}: {err}");
        assert!(err.contains("run it on that machine, without --host"), "{verb}: {err}");
    }
}

#[test]
fn verbs_that_read_take_the_guests_of_a_record_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let host = project().join("topologies/dgx-2.json");
    let host = host.to_str().unwrap();
    let on = |verb: &str, files: bool| {
        let mut command = gpuvm(&verb.split(' ').collect::<Vec<_>>());
        command.args(["--host", host]);
        if files {
            command.arg("--domain-xml").arg(dir.path());
        }
        run(&mut command)
    };
    let (code, mine, err) = on("export --gpus 16 --name mine", false);
    assert_eq!(code, 0, "{err}");
    fs::write(dir.path().join("mine.xml"), &mine).unwrap();
    // Each of them reports the holders.
    for verb in ["list", "gpu list", "device list"] {
        let (code, out, err) = on(verb, true);
        assert!(code == 0 && out.contains("mine"), "{verb}: {code} {out}{err}");
    }
    for verb in ["plan --gpus 1", "export --gpus 1", "create --gpus 1 --dry-run"] {
        assert_eq!(on(verb, false).0, 0, "{verb}");
        let (code, out, err) = on(verb, true);
        assert!(code == 1 && err.contains("mine"), "{verb}: {code} {out}{err}");
    }
    assert_ne!(on("capacity", false).1, on("capacity", true).1);
    for verb in ["nic list", "drive list"] {
        let (code, out, err) = on(verb, true);
        assert_eq!(code, 0, "{verb}: {out}{err}");
    }
    let other = tempfile::tempdir().unwrap();
    let file = other.path().join("other.xml");
    fs::write(&file, mine.replace("<name>mine</name>", "<name>other</name>")).unwrap();
    let check = format!("check {}", file.display());
    let (code, out, err) = on(&check, false);
    assert!(!out.contains("`mine`") && code == 0, "{code} {out}{err}");
    assert!(out.contains("--host is given without --domain-xml"), "{out}");
    let (code, out, err) = on(&check, true);
    assert!(code == 3 && out.contains("`mine`"), "{code} {out}{err}");
    // None of them changes anything, and without a record files belong to no host.
    for verb in ["list", "host files", "verify mine", "network doctor mine"] {
        let (code, out, err) = on(verb, false);
        assert!(code == 2 && out.is_empty(), "{verb}: {code} {out}{err}");
        assert!(!err.contains("changes the machine"), "{verb}: {err}");
    }
    for verb in ["list", "gpu list", &check] {
        let mut command = gpuvm(&verb.split(' ').collect::<Vec<_>>());
        let (code, _, err) = run(command.arg("--domain-xml").arg(dir.path()));
        assert!(code != 0 && err.contains("--host is not given"), "{verb}: {code} {err}");
    }
}

/// A name that is a command of its own where a shell reads it without quotes.
const ODD: &str = "a b;touch $PWD/made;'`touch made`$(touch made)";

/// The words that a shell parses from suggested commands: each command prints its words instead of
/// running.
fn pasted(dir: &Path, commands: &[String]) -> Vec<String> {
    let names = ["gpuvm", "virsh", "rm", "ssh", "qemu-img", "mdadm", "df", "ls", "lsblk", "sudo"];
    let stubs = names.map(|name| format!("{name}() {{ printf '%s\\n' \"$@\" >>said; }}"));
    for command in commands {
        let script = format!("{}\n{command}\n", stubs.join("\n"));
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", &script]).current_dir(dir).env("PATH", "/usr/bin:/bin");
        let (_, _, err) = run(&mut bash);
        assert!(!err.contains("syntax error") && !err.contains("unexpected"), "{command}: {err}");
    }
    let said = fs::read_to_string(dir.join("said")).unwrap_or_default();
    said.lines().map(str::to_owned).collect()
}

/// The commands between backticks of a text, of which some hold quoted backticks of a name.
fn offered(text: &str) -> Vec<String> {
    let starts = ["`gpuvm ", "`virsh ", "`rm ", "`ssh "];
    let begins = |start: &&str| text.match_indices(*start).map(|(at, _)| at).collect::<Vec<_>>();
    let mut commands = Vec::new();
    for at in starts.iter().flat_map(begins) {
        let (mut quoted, mut escaped, rest) = (false, false, &text[at + 1..]);
        let end = rest.char_indices().find(|(_, c)| {
            let is_plain = !escaped;
            escaped = !quoted && is_plain && *c == '\\';
            quoted ^= *c == '\'' && is_plain;
            *c == '`' && !quoted
        });
        commands.extend(end.map(|(end, _)| rest[..end].to_owned()));
    }
    commands
}

/// Every command that a verb suggests for a domain, or for its file, is a single command of whole
/// words when pasted.
#[test]
fn offered_commands_can_be_pasted_for_any_name() {
    let Some(place) = crate::libvirt::place::Place::new() else { return };
    let disk = place.disks.join(format!("{}.raw", ODD.replace('/', "_")));
    fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let escaped =
        |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;");
    let xml = format!(
        "<domain type='qemu'><name>{}</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' machine='q35'>hvm</type></os><devices><disk type='file'>\
         <driver name='qemu' type='raw'/><source file='{}'/><target dev='vda' bus='virtio'/></disk>\
         </devices></domain>",
        escaped(&ODD.replace('/', "_")),
        escaped(disk.to_str().unwrap())
    );
    let name = &ODD.replace('/', "_");
    let file = place.disks.join("odd.xml");
    fs::write(&file, xml).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    let lines: [&[&str]; 14] = [
        &["console", name],
        &["ip", name],
        &["history", name, "7"],
        &["undo", name],
        &["undo", name, "--yes"],
        &["tune", name, "--convert", "qcow2"],
        &["tune", name, "--convert", "vdz=raw"],
        &["delete", name],
        &["show", name],
        &["stop", name],
        &["restart", name],
        &["seed", "drop", name],
        &["check", name],
        &["verify", name],
    ];
    let mut commands = Vec::new();
    for line in lines {
        let (_, out, err) = place.gpuvm(line);
        commands.extend(offered(&(out + &err)));
    }
    for line in [&["tune", name, "--convert", "qcow2"][..], &["console", name], &["verify", name]] {
        let (_, out, err) = place.gpuvm(line);
        commands.extend(offered(&(out + &err)));
    }
    place.virsh(&["destroy", name]);
    let dir = scratch();
    let words = pasted(dir.path(), &commands);
    let whole = words.iter().filter(|word| *word == name).count();
    assert!(whole >= 4, "{commands:#?}: {words:#?}");
    let made = |dir: &Path| fs::read_dir(dir).unwrap().flatten().any(|e| e.file_name() != "said");
    assert!(!made(dir.path()), "{commands:#?}");
    // None is a part of it: a word that begins so and is cut.
    let cut = words.iter().find(|word| word.as_str() == "a" || *word == "b;touch");
    assert_eq!(cut, None, "{commands:#?}");
}

/// A record with a name of 9 MB took 20 s to show, and a domain with one as long.
#[test]
fn a_long_name_is_refused_with_its_place() {
    let dir = scratch();
    let long = "x".repeat(7 << 20);
    let record = dir.path().join("host.json");
    fs::write(&record, host_record("dgx-2").replacen("NVIDIA DGX-2", &long, 1)).unwrap();
    let xml = dir.path().join("a.xml");
    let domain = |name: &str, disk: &str| {
        format!(
            "<domain type='kvm'>\n<name>{name}</name><memory>65536</memory><os><type>hvm</type></os>\
             <devices>\n<disk type='file'><source file='{disk}'/></disk></devices></domain>"
        )
    };
    let begun = std::time::Instant::now();
    let refused = |args: &[&str], place: &str| {
        let (code, _, err) = run(&mut gpuvm(args));
        assert!(
            code == 1 && err.contains(place),
            "{args:?}: {code}: {}",
            &err[..err.len().min(400)]
        );
        assert!(err.len() < 4000, "{args:?}: {} bytes are told", err.len());
    };
    refused(&["host", "show", "--host", record.to_str().unwrap()], "line ");
    let dgx2 = project().join("topologies/dgx-2.json");
    let check = ["check", xml.to_str().unwrap(), "--host", dgx2.to_str().unwrap()];
    fs::write(&xml, domain(&long, "/d")).unwrap();
    refused(&check, "line 2");
    fs::write(&xml, domain("a", &long)).unwrap();
    refused(&check, "line 3");
    assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// The text of a record that is part of the program's sources.
fn host_record(name: &str) -> String {
    fs::read_to_string(project().join(format!("topologies/{name}.json"))).unwrap()
}

/// The sources of a directory, and of those in it.
fn sources(dir: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => sources(&path, all),
            false if path.extension().is_some_and(|end| end == "rs") => all.push(path),
            false => {}
        }
    }
}

/// A name is put into a suggested command only by `shell::word`.
#[test]
fn names_are_quoted_in_every_command_of_the_sources() {
    let mut files = Vec::new();
    sources(&project().join("src"), &mut files);
    let programs = ["gpuvm", "virsh", "rm", "mdadm", "qemu-img", "cat /proc", "ip link set"];
    let names = ["{name}", "{path}", "{dir}", "{device}", "{bridge}", "{pool}"];
    let mut wrong = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for at in programs
            .iter()
            .flat_map(|p| text.match_indices(&format!("`{p} ")).map(|m| m.0).collect::<Vec<_>>())
        {
            let Some(command) = text[at + 1..].split('`').next().filter(|c| c.len() < 200) else {
                continue;
            };
            // In the arguments that follow, or at the assignment of the name above.
            let after: String = text[at..].chars().take(500).collect();
            let quoted = ["word(", "pasted(", "domain("].iter().any(|call| after.contains(call));
            let begin = text[..at].rfind("fn ").unwrap_or_default();
            let quoted = quoted
                || text[begin..at].contains("let name = ") && text[begin..at].contains("word(");
            // Nobody pastes from the comments of written files.
            let is_head = file.ends_with("hostnet/netplan.rs");
            if names.iter().any(|name| command.contains(name)) && !quoted && !is_head {
                wrong.push(format!("{}: {command}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
