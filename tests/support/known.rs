//! What libvirt knows of this machine's QEMU. Asking takes a libvirt seconds of the processor, and every one that starts with
//! directories of its own asks anew; so what the first one has learned is kept for the others of the test run. libvirt itself
//! sees whether that still holds: by the program's times, and by the processor's signature and microcode, as /proc/cpuinfo
//! tells them. Where a recorded host's stands there, these two are that host's.

use super::daemon::copy_files;
use std::path::{Path, PathBuf};

/// Where an embedded driver has it, below its root.
pub const EMBEDDED: &str = "cache/qemu/capabilities";
/// The elements that tell of the processor.
const OF_HOST: [&str; 2] = ["microcodeVersion", "hostCPUSignature"];

/// Where it is kept.
fn kept() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("qemu-capabilities")
}

/// Gives what is kept to a libvirt whose /proc/cpuinfo is that below `host`: a recorded host's directory, or `/`.
pub fn give(into: &Path, host: &Path) {
    copy_files(&kept(), into);
    let cpuinfo = std::fs::read_to_string(host.join("proc/cpuinfo")).unwrap_or_default();
    for path in files(into) {
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, of_host(&text, &cpuinfo)).unwrap();
    }
}

/// Keeps what a libvirt has learned, unless it is known.
pub fn keep(from: &Path) {
    let plain = |path: &Path| std::fs::read_to_string(path).ok().map(|text| of_host(&text, ""));
    let is_known = |path: &PathBuf| {
        let known = kept().join(path.file_name().expect("a file"));
        plain(path).is_some_and(|text| plain(&known) == Some(text))
    };
    if !files(from).iter().all(is_known) {
        copy_files(from, &kept());
    }
}

/// The files of a directory that may be there.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// What libvirt keeps, as it keeps it on the processor of a /proc/cpuinfo: libvirt's `virHostCPUGetSignature` and
/// `virHostCPUGetMicrocodeVersion`.
fn of_host(text: &str, cpuinfo: &str) -> String {
    let first = |key: &str| {
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| name.trim_end() == key).map_or("", |(_, value)| value.trim())
    };
    let microcode = first("microcode").trim_start_matches("0x");
    let values = [
        u32::from_str_radix(microcode, 16).unwrap_or(0).to_string(),
        format!(
            "{}, {}, family: {}, model: {}, stepping: {}",
            first("vendor_id"),
            first("model name"),
            first("cpu family"),
            first("model"),
            first("stepping")
        ),
    ];
    let line = |line: &str| {
        let of = |name: &str| line.trim_start().starts_with(&format!("<{name}>"));
        match OF_HOST.iter().position(|name| of(name)) {
            Some(at) => format!("  <{0}>{1}</{0}>\n", OF_HOST[at], values[at]),
            None => format!("{line}\n"),
        }
    };
    text.lines().map(line).collect()
}
