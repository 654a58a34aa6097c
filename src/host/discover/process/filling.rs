//! Progress of preallocating a starting guest's memory: the size in QEMU's command line, and the
//! process's present memory.

use super::all;
use crate::discover::hugetlb;
use crate::fsroot::FsRoot;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::HugetlbMount;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// MiB preallocated in a second, as measured with QEMU 10.0 and one thread (gpuvm-tuning(7), HUGE
/// PAGES): normal pages, huge ones.
const MIB_A_SECOND: [u64; 2] = [2458, 10_035];

/// The memory of a guest that is preallocated before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filling {
    /// Memory that the process has.
    pub through: MemSize,
    /// Memory that it will have.
    pub of: MemSize,
    /// Whether in huge pages.
    pub huge: bool,
}

impl Filling {
    /// Estimates the duration of all of it from the measurement.
    pub fn estimate(&self) -> Duration {
        Duration::from_secs((self.of.kib() >> 10) / MIB_A_SECOND[usize::from(self.huge)])
    }
}

/// A memory object of QEMU's command line.
#[derive(Debug, Deserialize)]
struct Object {
    #[serde(rename = "qom-type")]
    kind: String,
    /// Its size in bytes.
    size: Option<u64>,
    #[serde(default)]
    prealloc: bool,
    #[serde(rename = "mem-path")]
    path: Option<String>,
    /// Whether it is of huge pages without a file (memfd).
    #[serde(default)]
    hugetlb: bool,
}

impl Object {
    /// Reads an object in JSON or in the syntax of older versions; `None` if not a memory object.
    fn read(text: &str) -> Option<Object> {
        let object = if text.starts_with('{') {
            serde_json::from_str(text).ok()?
        } else {
            Object::of_words(text)?
        };
        object.kind.starts_with("memory-backend-").then_some(object)
    }

    /// Reads `memory-backend-ram,id=ram-node0,prealloc=yes,size=1073741824`.
    fn of_words(text: &str) -> Option<Object> {
        let (kind, words) = text.split_once(',')?;
        let value = |name: &str| {
            words.split(',').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        let is_on = |name| matches!(value(name), Some("on" | "yes"));
        Some(Object {
            kind: kind.to_owned(),
            size: value("size").and_then(|size| size.parse().ok()),
            prealloc: is_on("prealloc"),
            path: value("mem-path").map(str::to_owned),
            hugetlb: is_on("hugetlb"),
        })
    }

    /// Whether it is of huge pages; libvirt puts its files below a mounted hugetlbfs.
    fn is_huge(&self, mounts: &[HugetlbMount]) -> bool {
        let is_below = |path: &String| mounts.iter().any(|m| Path::new(path).starts_with(&m.at));
        self.hugetlb || self.path.as_ref().is_some_and(is_below)
    }
}

/// Returns the progress for the domain of this UUID; `None` if it has no process, or preallocates
/// nothing. A guest with passed-through functions has all of its memory from the start.
pub fn filling(root: &FsRoot, uuid: &str) -> Option<Filling> {
    let pid = *all(root).ok()?.get(&uuid.to_ascii_lowercase())?;
    let dir = root.dir(&format!("proc/{pid}")).ok()??;
    let arguments = dir.zero_ended("cmdline");
    let of = |option: &str| {
        let pairs = arguments.windows(2).filter(move |pair| pair[0] == option);
        pairs.map(|pair| pair[1].as_str()).collect::<Vec<_>>()
    };
    let passes = of("-device").iter().any(|device| device.contains("vfio-pci"));
    let objects = of("-object").into_iter().filter_map(Object::read);
    let filled: Vec<Object> = objects.filter(|object| object.prealloc || passes).collect();
    let bytes: u64 = filled.iter().filter_map(|object| object.size).sum();
    let status = dir.read_if_any("status").ok()??;
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let has = kib("VmRSS:").unwrap_or(0) + kib("HugetlbPages:").unwrap_or(0);
    let of = MemSize::from_kib(bytes >> 10);
    let mounts = hugetlb::mounts(root).ok().flatten().unwrap_or_default();
    let huge = !filled.is_empty() && filled.iter().all(|object| object.is_huge(&mounts));
    (bytes > 0).then(|| Filling { through: MemSize::from_kib(has).min(of), of, huge })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The progress of a process with these arguments and this status.
    fn progress(arguments: &[&str], status: &str) -> Option<Filling> {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc/7");
        std::fs::create_dir_all(&proc).unwrap();
        let line = ["qemu", "-uuid", "AB"].iter().chain(arguments);
        let line: String = line.map(|word| format!("{word}\0")).collect();
        std::fs::write(proc.join("cmdline"), line).unwrap();
        std::fs::write(proc.join("status"), status).unwrap();
        std::fs::write(proc.join("cgroup"), "0::/machine.slice/machine-qemu.scope\n").unwrap();
        let mount = "30 25 0:28 / /mnt/1G rw - hugetlbfs hugetlbfs rw,pagesize=1024M\n";
        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        std::fs::write(dir.path().join("proc/self/mountinfo"), mount).unwrap();
        filling(&FsRoot::at(dir.path()).unwrap(), "ab")
    }

    #[test]
    fn the_memory_that_is_filled_is_what_the_process_has() {
        let status = "Name:\tq\nVmRSS:\t  1024 kB\nHugetlbPages:\t 1048576 kB\n";
        let file = r#"{"qom-type":"memory-backend-file","id":"a","mem-path":"/mnt/1G/x","prealloc":true,"size":2147483648}"#;
        let found =
            progress(&["-object", file, "-object", r#"{"qom-type":"secret","id":"m"}"#], status);
        let found = found.unwrap();
        let gib = |kib: u64| MemSize::from_kib(kib);
        assert_eq!((found.through, found.of), (gib(1_049_600), gib(2 << 20)));
        assert_eq!((found.huge, found.estimate().as_secs()), (true, 0));
        let whole = Filling { of: MemSize::from_gib(1400), ..found };
        assert_eq!(whole.estimate().as_secs(), 142);
        // A file elsewhere is of normal pages, whatever its name.
        let shared = file.replace("/mnt/1G/", "/var/lib/huge/");
        assert!(!progress(&["-object", &shared], status).unwrap().huge);
        let normal = Filling { huge: false, ..whole };
        assert_eq!(normal.estimate().as_secs(), 583);
        let words = "memory-backend-ram,id=a,size=1073741824,prealloc=yes";
        let found = progress(&["-object", words], status).unwrap();
        assert_eq!((found.through, found.of, found.huge), (found.of, gib(1 << 20), false));
        // Nothing is filled, but for functions that are passed through.
        let lazy = "memory-backend-ram,id=a,size=1073741824";
        assert_eq!(progress(&["-object", lazy], status), None);
        assert!(progress(&["-object", lazy, "-device", "vfio-pci,host=1:0.0"], status).is_some());
        assert_eq!(progress(&[], status), None);
    }
}
