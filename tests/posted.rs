//! Machines for which `nvidia-smi topo -m`, a list of nodes, of IOMMU groups or of functions was
//! posted (tests/posted/README.md): a tree of `/sys` is made from each, its NVLinks come from the
//! posted text, and `host matrix` prints the posted matrix.

mod plans;

use crate::support::tree::scratch;
use crate::support::{gpuvm, project, run};
use gpuvm::topology::{DeviceKind, Topology};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A posted machine.
struct Posted {
    /// The lines above the table, as words.
    lines: Vec<Vec<String>>,
    /// The posted table.
    table: String,
}

/// The names of all posted machines.
fn names() -> Vec<String> {
    let entries = fs::read_dir(project().join("tests/posted")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".txt")?.to_owned())).collect();
    names.sort();
    names
}

/// The ids of a list such as `0-3,8`; `-` is none.
fn ids(list: &str) -> Vec<u32> {
    let number = |text: &str| text.parse::<u32>().unwrap_or_else(|_| panic!("{list}"));
    let part = |part: &str| match part.split_once('-') {
        Some((first, last)) => number(first)..=number(last),
        None => number(part)..=number(part),
    };
    if list == "-" { Vec::new() } else { list.split(',').flat_map(part).collect() }
}

/// An address with its segment.
fn whole(bdf: &str) -> String {
    if bdf.len() > 7 { bdf.to_owned() } else { format!("0000:{bdf}") }
}

/// Writes a file, with the directories above it.
fn put(file: &Path, text: impl std::fmt::Display) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, format!("{text}\n")).unwrap();
}

impl Posted {
    /// Reads one.
    fn read(name: &str) -> Posted {
        let file = project().join(format!("tests/posted/{name}.txt"));
        let text = fs::read_to_string(file).unwrap();
        let (above, table) = text.split_once("\ntopo\n").unwrap();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        assert!(above.starts_with("source https://"), "{name}");
        Posted { lines: above.lines().map(words).collect(), table: table.to_owned() }
    }

    /// The lines of a kind.
    fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a [String]> {
        self.lines.iter().filter(move |words| words[0] == kind).map(|words| &words[1..])
    }

    /// Makes the tree.
    fn make(&self, root: &Path) {
        self.make_cpus(root);
        let (gpus, nics) = (self.of("gpu"), self.of("nic"));
        for words in gpus {
            let extra = words.get(4).map(String::as_str);
            let class = match extra {
                _ if words[0].starts_with("1002:74") => 0x12_0000,
                Some("3d") => 0x03_0200,
                _ => 0x03_0000,
            };
            function(root, &words[1], class, &words[0], &words[3]);
            if extra == Some("audio") {
                let stem = words[1].strip_suffix('0').unwrap();
                for (number, class) in [(1, 0x04_0300), (2, 0x0c_0330), (3, 0x0c_8000)] {
                    function(root, &format!("{stem}{number}"), class, "10de:1aeb", &words[3]);
                }
            }
        }
        for words in nics {
            let ids = words.get(4).map_or("15b3:1021", String::as_str);
            let dir = function(root, &words[1], 0x02_0700, ids, &words[3]);
            fs::create_dir_all(dir.join("infiniband").join(&words[0])).unwrap();
            let below = dir.strip_prefix(root.join("sys")).unwrap();
            let class = root.join("sys/class/infiniband");
            fs::create_dir_all(&class).unwrap();
            let target = Path::new("../..").join(below).join("infiniband").join(&words[0]);
            symlink(target, class.join(&words[0])).unwrap();
        }
        for words in self.of("switch") {
            function(root, &words[0], 0x06_8000, "10de:22a3", &words[2]);
        }
        for words in self.of("other") {
            let class = u32::from_str_radix(words[0].strip_prefix("0x").unwrap(), 16).unwrap();
            function(root, &words[2], class, &words[1], &words[4]);
        }
        for words in self.of("attribute") {
            let dir = root.join("sys/bus/pci/devices").join(whole(&words[0]));
            put(&dir.join(&words[1]), words[2..].join(" ").replace(" | ", "\n"));
        }
        for words in self.of("group") {
            for bdf in &words[1..] {
                let bdf = whole(bdf);
                let dir = root.join(format!("sys/kernel/iommu_groups/{}/devices", words[0]));
                fs::create_dir_all(&dir).unwrap();
                let device = root.join("sys/bus/pci/devices").join(&bdf).canonicalize().unwrap();
                let up = "../".repeat(device.strip_prefix(root).unwrap().components().count() - 1);
                let group = format!("{up}kernel/iommu_groups/{}", words[0]);
                symlink(group, device.join("iommu_group")).unwrap();
                symlink(&device, dir.join(bdf)).unwrap();
            }
        }
    }

    /// Processors and nodes.
    fn make_cpus(&self, root: &Path) {
        let system = root.join("sys/devices/system");
        let off: Vec<u32> = self.of("offline").flat_map(|words| ids(&words[0])).collect();
        let on = |list: &[u32]| -> Vec<u32> {
            list.iter().filter(|cpu| !off.contains(cpu)).copied().collect()
        };
        let (mut all, mut total) = (Vec::new(), 0);
        let nodes: Vec<&[String]> = self.of("node").collect();
        for words in &nodes {
            let (id, package, list) = (&words[0], &words[2], ids(&words[4]));
            for siblings in self.siblings(&list) {
                let (siblings, first) = (on(&siblings), siblings[0]);
                for cpu in &siblings {
                    let topology = system.join(format!("cpu/cpu{cpu}/topology"));
                    put(&topology.join("physical_package_id"), package);
                    put(&topology.join("core_id"), first);
                    put(&topology.join("thread_siblings_list"), joined(&siblings));
                }
            }
            let node = system.join(format!("node/node{id}"));
            let gib: u64 = words.get(6).map_or(64, |gib| gib.parse().unwrap());
            put(&node.join("cpulist"), joined(&on(&list)));
            let memory = format!("Node {id} MemTotal: {} kB\nNode {id} MemFree: 0 kB", gib << 20);
            put(&node.join("meminfo"), memory);
            put(&node.join("distance"), self.distances(words, &nodes));
            all.extend(list);
            total += gib << 20;
        }
        for words in self.of("cores") {
            put(&root.join("sys/devices").join(&words[0]).join("cpus"), &words[1]);
        }
        all.sort_unstable();
        put(&system.join("cpu/online"), joined(&on(&all)));
        for file in ["present", "possible"] {
            put(&system.join("cpu").join(file), joined(&all));
        }
        let list: Vec<&str> = nodes.iter().map(|words| words[0].as_str()).collect();
        put(&system.join("node/online"), list.join(","));
        put(&root.join("proc/meminfo"), format!("MemTotal: {total} kB"));
    }

    /// The pcpus of a node by core.
    fn siblings(&self, list: &[u32]) -> Vec<Vec<u32>> {
        let kinds: Vec<&[String]> = self.of("cores").collect();
        if !kinds.is_empty() {
            let number = |words: &[String]| words[2].parse().unwrap();
            let cores = |words: &&[String]| -> Vec<Vec<u32>> {
                ids(&words[1]).chunks(number(words)).map(<[u32]>::to_vec).collect()
            };
            return kinds.iter().flat_map(cores).collect();
        }
        let threads: usize = self.of("threads").next().unwrap()[0].parse().unwrap();
        let cores = list.len() / threads;
        let core = |core| (0..threads).map(|thread| list[core + thread * cores]).collect();
        (0..cores).map(core).collect()
    }

    /// The distances of a node: those posted, or 10, 12 within a package and 32.
    fn distances(&self, node: &[String], nodes: &[&[String]]) -> String {
        if let Some(words) = self.of("distances").find(|words| words[0] == node[0]) {
            return words[1..].join(" ");
        }
        let distance = |other: &&[String]| match (other[0] == node[0], other[2] == node[2]) {
            (true, _) => "10",
            (_, true) => "12",
            _ => "32",
        };
        nodes.iter().map(distance).collect::<Vec<&str>>().join(" ")
    }
}

/// A list of ids as the kernel writes it, one by one.
fn joined(list: &[u32]) -> String {
    list.iter().map(u32::to_string).collect::<Vec<String>>().join(",")
}

/// Makes a function and the bridges above it; returns its directory.
fn function(root: &Path, path: &str, class: u32, ids: &str, node: &str) -> PathBuf {
    let steps: Vec<String> = path.split('/').map(whole).collect();
    let mut dir = root.join(format!("sys/devices/pci{}", &steps[0][..7]));
    let list = root.join("sys/bus/pci/devices");
    fs::create_dir_all(&list).unwrap();
    for (at, step) in steps.iter().enumerate() {
        dir.push(step);
        let last = at + 1 == steps.len();
        assert!(!last || !dir.exists(), "{step} stands twice");
        if dir.exists() {
            continue;
        }
        let (class, ids) = if last { (class, ids) } else { (0x06_0400, "1000:c010") };
        let (vendor, device) = ids.split_once(':').unwrap();
        put(&dir.join("class"), format!("0x{class:06x}"));
        put(&dir.join("vendor"), format!("0x{vendor}"));
        put(&dir.join("device"), format!("0x{device}"));
        put(&dir.join("numa_node"), node);
        let below = dir.strip_prefix(root.join("sys")).unwrap();
        symlink(Path::new("../../..").join(below), list.join(step)).unwrap();
    }
    dir
}

/// A table by row and column; the columns behind the devices are `cpus` and `node`.
fn cells(table: &str, named: &BTreeMap<String, String>) -> BTreeMap<(String, String), String> {
    let mut lines = table.lines();
    let name = |word: &str| named.get(word).map_or(word, String::as_str).to_owned();
    let Some(head) = lines.next() else { return BTreeMap::new() };
    let mut columns: Vec<String> =
        head.split_whitespace().take_while(|word| *word != "CPU").map(name).collect();
    columns.extend(["cpus".to_owned(), "node".into()]);
    let mut cells = BTreeMap::new();
    for line in lines {
        let mut words = line.split_whitespace();
        let row = name(words.next().unwrap());
        for (column, cell) in columns.iter().zip(words) {
            cells.insert((row.clone(), column.clone()), cell.to_owned());
        }
    }
    cells
}

/// Records a posted machine from its tree and its table. Returns the record's file.
fn record(name: &str, dir: &Path) -> PathBuf {
    let posted = Posted::read(name);
    posted.make(&dir.join("tree"));
    let mut command = gpuvm(&["--host", dir.join("tree").to_str().unwrap(), "host", "capture"]);
    let file = dir.join("host.json");
    command.arg(&file);
    if posted.table.contains("GPU0 ") && posted.table.trim_start().starts_with("GPU0") {
        let table = dir.join("topo.txt");
        fs::write(&table, &posted.table).unwrap();
        command.arg("--topo").arg(&table);
    }
    let (code, _, err) = run(&mut command);
    assert_eq!(code, 0, "{name}: {err}");
    assert!(!err.contains("by the PCIe tree"), "{name}: {err}");
    file
}

/// Calls `look` with the name and the record of every posted machine.
pub fn each_posted(mut look: impl FnMut(&str, &Path)) {
    for name in names() {
        let dir = scratch();
        look(&name, &record(&name, dir.path()));
    }
}

#[test]
fn the_matrix_matches_the_posted_one() {
    let mut wrong = String::new();
    let all = names();
    assert!(all.len() >= 10, "{all:?}");
    for name in all {
        let dir = scratch();
        let file = record(&name, dir.path());
        let posted = Posted::read(&name);
        let host = gpuvm::discover::source::load(&file).unwrap();
        let mut named = BTreeMap::new();
        for (at, words) in posted.of("nic").enumerate() {
            named.insert(format!("NIC{at}"), words[0].clone());
        }
        // If functions are named, they are the rows.
        for (at, gpu) in host.gpus().enumerate() {
            named.insert(gpu.bdf.to_string()[5..].to_owned(), format!("GPU{at}"));
        }
        let (code, out, err) =
            run(&mut gpuvm(&["--host", file.to_str().unwrap(), "host", "matrix", "--tsv"]));
        assert_eq!(code, 0, "{name}: {err}");
        // An empty cell of the columns behind the devices would shift those behind it.
        let out = out.replace("\t\t", "\t-\t").replace("\t\t", "\t-\t");
        let answer = cells(&out, &BTreeMap::new());
        let wanted = cells(&posted.table, &named);
        let told = |cell: &str| !matches!(cell, "?" | "N/A");
        let mut seen = 0;
        for words in posted.of("distances") {
            let id: u32 = words[0].parse().unwrap();
            let node = host.parts().nodes.iter().find(|node| node.os_index.0 == id).unwrap();
            let row: Vec<String> = node.distances.iter().map(ToString::to_string).collect();
            assert_eq!(row, words[1..], "{name}: distances of node {id}");
            seen += row.len();
        }
        for (place, cell) in wanted.iter().filter(|(_, cell)| told(cell)) {
            seen += 1;
            let found = answer.get(place).map_or("nothing", String::as_str);
            if found != cell {
                writeln!(wrong, "{name} {place:?}: {found}, posted {cell}").unwrap();
            }
        }
        assert!(seen > 0, "{name}");
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// The GPUs, by index, of a plan on a record.
fn planned(file: &Path, args: &[&str]) -> Vec<usize> {
    let host: Topology = gpuvm::discover::source::load(file).unwrap();
    let devices = placement(file, args)["devices"].to_string();
    let gpus = host.gpus().enumerate().filter(|(_, gpu)| gpu.kind() == DeviceKind::Gpu);
    gpus.filter(|(_, gpu)| devices.contains(&gpu.bdf.to_string())).map(|(at, _)| at).collect()
}

/// The places of a plan on a record.
fn placement(file: &Path, args: &[&str]) -> serde_json::Value {
    let mut command = gpuvm(&["--host", file.to_str().unwrap(), "plan", "--json"]);
    let (code, out, err) = run(command.args(args));
    assert_eq!(code, 0, "{}: {err}", file.display());
    let mut plan: serde_json::Value = serde_json::from_str(&out).unwrap();
    plan["placement"].take()
}

#[test]
fn the_pair_with_a_bridge_is_chosen_though_others_are_nearer() {
    let dir = scratch();
    let file = record("3090-cross-bridges", dir.path());
    let pair = planned(&file, &["--gpus", "2"]);
    assert!(pair == [0, 2] || pair == [1, 3], "{pair:?}");
    // Without the table, the nearest GPUs are chosen.
    let tree = dir.path().join("tree");
    assert_eq!(planned(&tree, &["--gpus", "2"]), [0, 1]);
}

#[test]
fn a_text_of_another_host_is_refused_with_its_place() {
    let dir = scratch();
    record("3090-cross-bridges", dir.path());
    let tree = dir.path().join("tree");
    let text = dir.path().join("text");
    for (table, said) in [
        ("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n", "the table has 2 GPUs, this host has 4 of NVIDIA"),
        ("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV3 X\n", "line 3 column 6: GPU1 to GPU0 is NV3"),
        ("hello\n", "no header row that begins with `GPU0`"),
    ] {
        fs::write(&text, table).unwrap();
        let mut command = gpuvm(&["--host", tree.to_str().unwrap(), "host", "capture", "-"]);
        let (code, out, err) = run(command.arg("--topo").arg(&text));
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains(&format!("error: {}: {said}", text.display())), "{err}");
        assert!(err.contains("hint: "), "{err}");
    }
}

#[test]
fn one_package_comes_before_nics_where_gpus_have_no_nvlink() {
    // Two nodes of one package without NICs near, and two of two packages with them.
    let text = "source https://none\nthreads 1\n\
        node 0 package 0 pcpus 0-15\nnode 1 package 0 pcpus 16-31\n\
        node 2 package 1 pcpus 32-47\nnode 3 package 1 pcpus 48-63\n\
        gpu 10de:20f1 10:01.0/11:00.0/12:00.0/13:00.0 node 0\n\
        gpu 10de:20f1 20:01.0/21:00.0/22:00.0/23:00.0 node 1\n\
        gpu 10de:20f1 80:01.0/81:00.0/82:00.0/83:00.0 node 2\n\
        gpu 10de:20f1 90:01.0/91:00.0/92:00.0/93:00.0 node 3\n\
        nic mlx5_0 20:01.0/21:00.0/22:01.0/24:00.0 node 1\n\
        nic mlx5_1 80:01.0/81:00.0/82:01.0/84:00.0 node 2";
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    let machine = Posted { lines: text.lines().map(words).collect(), table: String::new() };
    let dir = scratch();
    machine.make(dir.path());
    let wish = ["--gpus", "2", "--nic", "2"];
    let with = |more: &[&str]| planned(dir.path(), &[&wish[..], more].concat());
    assert_eq!(with(&[]), [0, 1], "one package");
    assert_eq!(with(&["--prefer", "package"]), [0, 1]);
    assert_eq!(with(&["--prefer", "nic"]), [1, 2], "each beside its NIC");
    // NVLinks between all GPUs carry their mutual traffic: then NICs come first.
    let table = "GPU0 GPU1 GPU2 GPU3\nGPU0 X NV4 NV4 NV4\nGPU1 NV4 X NV4 NV4\n\
                 GPU2 NV4 NV4 X NV4\nGPU3 NV4 NV4 NV4 X\n";
    fs::write(dir.path().join("topo"), table).unwrap();
    let file = dir.path().join("host.json");
    let mut command = gpuvm(&["--host", dir.path().to_str().unwrap(), "host", "capture"]);
    command.arg(&file).arg("--topo").arg(dir.path().join("topo"));
    let (code, _, err) = run(&mut command);
    assert_eq!(code, 0, "{err}");
    let with = |more: &[&str]| planned(&file, &[&wish[..], more].concat());
    assert_eq!(with(&[]), [1, 2]);
    assert_eq!(with(&["--prefer", "package"]), [0, 1]);
}

#[test]
fn the_order_of_criteria_stands_in_the_manual_as_in_the_scorer() {
    let text = |path: &str| fs::read_to_string(project().join(path)).unwrap();
    let rows = |text: String, starts: &str| -> Vec<String> {
        let rows = text.lines().filter_map(|line| line.strip_prefix(starts).map(str::to_owned));
        let named = |row: String| {
            let mut cells = row.split('|').map(str::trim);
            let number: usize = cells.next()?.parse().ok()?;
            Some(format!("{number} {}", cells.next()?))
        };
        rows.filter_map(named).collect()
    };
    let in_source = rows(text("src/core/placement/score.rs"), "//! | ");
    let in_manual = rows(text("man/gpuvm-placement.7").replace('\\', ""), "");
    assert!(in_source.len() >= 13, "{in_source:?}");
    assert_eq!(in_source, in_manual);
}
