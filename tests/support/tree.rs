//! Recorded hosts of `tests/hosts`: one text file per host, unpacked into a directory on first use.
//! The format is described in `tests/pack-host`.

use super::project;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Directories that were unpacked in this run, by host.
static UNPACKED: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);

/// The text of a recorded host.
pub fn host_text(name: &str) -> String {
    let file = project().join(format!("tests/hosts/{name}.tree"));
    fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// The directory of a recorded host, with `sys` and `proc` in it. All tests share it, so nothing in
/// it may be changed.
pub fn host_tree(name: &str) -> PathBuf {
    let mut unpacked = UNPACKED.lock().unwrap();
    let unpacked = unpacked.get_or_insert_default();
    if let Some(dir) = unpacked.get(name) {
        return dir.clone();
    }
    let text = host_text(name);
    let hosts = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hosts");
    fs::create_dir_all(&hosts).unwrap();
    let (dir, stamp) = (hosts.join(name), hosts.join(format!("{name}.unpacked")));
    // Another test program may unpack the same host: one at a time.
    let lock = fs::File::create(hosts.join("lock")).unwrap();
    lock.lock().unwrap();
    if fs::read_to_string(&stamp).is_ok_and(|stamp| stamp == text) && dir.is_dir() {
        unpacked.insert(name.to_owned(), dir.clone());
        return dir;
    }
    let scratch = tempfile::tempdir_in(&hosts).unwrap();
    unpack(&text, &scratch.path().join("new")).unwrap();
    if dir.is_dir() {
        fs::rename(&dir, scratch.path().join("old")).unwrap();
    }
    fs::rename(scratch.path().join("new"), &dir).unwrap();
    fs::write(&stamp, &text).unwrap();
    unpacked.insert(name.to_owned(), dir.clone());
    dir
}

/// Creates the directory that a recorded host's text describes.
pub fn unpack(text: &str, root: &Path) -> std::io::Result<()> {
    let mut dir = root.to_owned();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(entry) = line.strip_prefix("  ") else {
            if let Some(path) = line.strip_suffix('/').filter(|_| !line.starts_with('#')) {
                dir = root.join(path);
                fs::create_dir_all(&dir)?;
            }
            continue;
        };
        if let Some((name, target)) = entry.split_once(" -> ") {
            std::os::unix::fs::symlink(target, dir.join(name))?;
        } else if let Some((name, value)) = entry.split_once(" =") {
            fs::write(dir.join(name), format!("{}\n", value.strip_prefix(' ').unwrap_or(value)))?;
        } else if let Some(name) = entry.strip_suffix(':') {
            let mut content = String::new();
            let below = |line: &&str| line.is_empty() || line.starts_with("    ");
            while let Some(line) = lines.next_if(below) {
                content.push_str(line.strip_prefix("    ").unwrap_or(line));
                content.push('\n');
            }
            fs::write(dir.join(name), content)?;
        } else {
            return Err(std::io::Error::other(format!("no entry of a recorded host: {line}")));
        }
    }
    Ok(())
}

/// A temporary directory: in memory if possible, since a host has ten thousand files.
pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let in_memory = if memory.is_dir() { tempfile::tempdir_in(memory).ok() } else { None };
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// The tree of a small host that a test builds.
pub struct Small {
    /// Its directory.
    pub dir: tempfile::TempDir,
}

impl Small {
    /// A host with these nodes, each with this many cores of two threads, 16 GiB of memory, and no
    /// functions. The kernel numbers the first threads of all cores first.
    pub fn new(nodes: usize, cores: usize) -> Small {
        let small = Small { dir: scratch() };
        let all = nodes * cores;
        let write = |path: &str, text: String| small.write(path, &text);
        let range = |first: usize, number: usize| format!("{first}-{}", first + number - 1);
        for name in ["online", "present"] {
            write(&format!("sys/devices/system/cpu/{name}"), range(0, 2 * all));
        }
        for cpu in 0..2 * all {
            let core = cpu % all;
            let dir = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            write(&format!("{dir}/physical_package_id"), "0".into());
            write(&format!("{dir}/core_id"), core.to_string());
            write(&format!("{dir}/thread_siblings_list"), format!("{core},{}", core + all));
        }
        for node in 0..nodes {
            let dir = format!("sys/devices/system/node/node{node}");
            let (first, second) = (range(node * cores, cores), range(all + node * cores, cores));
            write(&format!("{dir}/cpulist"), format!("{first},{second}"));
            write(&format!("{dir}/meminfo"), format!("Node {node} MemTotal: {} kB", 16 << 20));
            let distance = |to| if to == node { "10" } else { "21" };
            let distances: Vec<&str> = (0..nodes).map(distance).collect();
            write(&format!("{dir}/distance"), distances.join(" "));
        }
        let cpu = "processor : 0\nvendor_id : GenuineIntel\nmodel name : of a test\n\
                   address sizes : 46 bits physical, 48 bits virtual\n";
        write("proc/cpuinfo", cpu.into());
        fs::create_dir_all(small.dir.path().join("sys/bus/pci/devices")).unwrap();
        small
    }

    /// The root of its tree.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file of it.
    pub fn write(&self, path: &str, text: &str) {
        let file = self.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{text}\n")).unwrap();
    }

    /// Adds a PCI function by its place below `sys/devices`, such as
    /// `pci0000:00/0000:00:01.0/0000:01:00.0`, with class and ids as `lspci -nn` prints them
    /// (`0300 10de:2684`), its IOMMU group, and more files.
    pub fn function(&self, place: &str, ids: &str, group: u32, files: &[(&str, &str)]) -> &Small {
        let (class, ids) = ids.split_once(' ').unwrap();
        let (vendor, device) = ids.split_once(':').unwrap();
        let dir = format!("sys/devices/{place}");
        self.write(&format!("{dir}/class"), &format!("0x{class}00"));
        self.write(&format!("{dir}/vendor"), &format!("0x{vendor}"));
        self.write(&format!("{dir}/device"), &format!("0x{device}"));
        let node =
            if files.iter().any(|(name, _)| *name == "numa_node") { None } else { Some("0") };
        for (name, text) in files.iter().copied().chain(node.map(|node| ("numa_node", node))) {
            self.write(&format!("{dir}/{name}"), text);
        }
        let link =
            |target: String, name: PathBuf| std::os::unix::fs::symlink(target, name).unwrap();
        let own = self.path().join(&dir);
        link(format!("../../../kernel/iommu_groups/{group}"), own.join("iommu_group"));
        let name = place.rsplit('/').next().unwrap();
        link(
            format!("../../../devices/{place}"),
            self.path().join("sys/bus/pci/devices").join(name),
        );
        self
    }

    /// Runs a verb on it; the exit code, standard output and standard error.
    pub fn run(&self, args: &[&str]) -> (i32, String, String) {
        super::run(super::gpuvm(args).args(["--host", self.path().to_str().unwrap()]))
    }

    /// The JSON that a verb prints; an error if it fails.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let (code, out, err) = self.run(&[args, &["--json"]].concat());
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        serde_json::from_str(&out).unwrap()
    }
}
