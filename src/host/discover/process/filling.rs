//! How far QEMU is with the memory of a guest that starts: what its command line asks for, and what the process has by now.

use super::all;
use crate::fsroot::FsRoot;
use gpuvm_core::memsize::MemSize;
use serde::Deserialize;
use std::time::Duration;

/// How much memory is filled in a second, in MiB, as measured with QEMU 10.0 and one thread (gpuvm-tuning(7), HUGE PAGES):
/// normal pages, huge ones.
const MIB_A_SECOND: [u64; 2] = [2458, 10_035];

/// The memory of a guest that is filled before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filling {
    /// What the process has.
    pub through: MemSize,
    /// What it will have.
    pub of: MemSize,
    /// Whether in huge pages.
    pub huge: bool,
}

impl Filling {
    /// How long all of it takes, by what was measured.
    pub fn estimate(&self) -> Duration {
        Duration::from_secs((self.of.kib() >> 10) / MIB_A_SECOND[usize::from(self.huge)])
    }
}

/// A memory object of QEMU's command line.
#[derive(Debug, Deserialize)]
struct Object {
    /// Its type.
    #[serde(rename = "qom-type")]
    kind: String,
    /// Its size in bytes.
    size: Option<u64>,
    /// Whether it is filled at once.
    #[serde(default)]
    prealloc: bool,
    /// The file that it is mapped from.
    #[serde(rename = "mem-path")]
    path: Option<String>,
    /// Whether it is of huge pages without a file.
    #[serde(default)]
    hugetlb: bool,
}

impl Object {
    /// Reads an object, in JSON or in the words of older versions; none: it is another.
    fn read(text: &str) -> Option<Object> {
        let object = match text.starts_with('{') {
            true => serde_json::from_str(text).ok()?,
            false => Object::of_words(text)?,
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

    /// Whether it is of huge pages; libvirt puts its files below the mount of them.
    fn is_huge(&self) -> bool {
        self.hugetlb || self.path.as_ref().is_some_and(|path| path.contains("huge"))
    }
}

/// How far the memory of the domain of this UUID is; none: its process is not there, or fills nothing. A guest with functions
/// passed through has all of its memory from the start.
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
    let huge = !filled.is_empty() && filled.iter().all(Object::is_huge);
    (bytes > 0).then(|| Filling { through: MemSize::from_kib(has).min(of), of, huge })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of a process with these arguments and this status.
    fn told(arguments: &[&str], status: &str) -> Option<Filling> {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc/7");
        std::fs::create_dir_all(&proc).unwrap();
        let line = ["qemu", "-uuid", "AB"].iter().chain(arguments);
        let line: String = line.map(|word| format!("{word}\0")).collect();
        std::fs::write(proc.join("cmdline"), line).unwrap();
        std::fs::write(proc.join("status"), status).unwrap();
        std::fs::write(proc.join("cgroup"), "0::/machine.slice/machine-qemu.scope\n").unwrap();
        filling(&FsRoot::at(dir.path()).unwrap(), "ab")
    }

    #[test]
    fn the_memory_that_is_filled_is_what_the_process_has() {
        let status = "Name:\tq\nVmRSS:\t  1024 kB\nHugetlbPages:\t 1048576 kB\n";
        let file = r#"{"qom-type":"memory-backend-file","id":"a","mem-path":"/dev/hugepages/x","prealloc":true,"size":2147483648}"#;
        let found =
            told(&["-object", file, "-object", r#"{"qom-type":"secret","id":"m"}"#], status);
        let found = found.unwrap();
        let gib = |kib: u64| MemSize::from_kib(kib);
        assert_eq!((found.through, found.of), (gib(1_049_600), gib(2 << 20)));
        assert_eq!((found.huge, found.estimate().as_secs()), (true, 0));
        let whole = Filling { of: MemSize::from_gib(1400), ..found };
        assert_eq!(whole.estimate().as_secs(), 142);
        let normal = Filling { huge: false, ..whole };
        assert_eq!(normal.estimate().as_secs(), 583);
        let words = "memory-backend-ram,id=a,size=1073741824,prealloc=yes";
        let found = told(&["-object", words], status).unwrap();
        assert_eq!((found.through, found.of, found.huge), (found.of, gib(1 << 20), false));
        // Nothing is filled, but for functions that are passed through.
        let lazy = "memory-backend-ram,id=a,size=1073741824";
        assert_eq!(told(&["-object", lazy], status), None);
        assert!(told(&["-object", lazy, "-device", "vfio-pci,host=1:0.0"], status).is_some());
        assert_eq!(told(&[], status), None);
    }
}
