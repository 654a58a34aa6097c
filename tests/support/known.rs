//! A cache of the capabilities that libvirt finds in this machine's QEMU. Probing takes seconds of
//! CPU time, and every libvirt that starts with its own directories probes again; so the results of
//! the first are kept for the others of the test run. libvirt itself detects outdated ones: by the
//! program's times, and by the processor's signature and microcode in /proc/cpuinfo. If that file
//! is a recorded host's, these two are replaced by that host's.

use super::daemon::copy_files;
use std::path::{Path, PathBuf};

/// The directory of an embedded driver's cache, below its root.
pub const EMBEDDED: &str = "cache/qemu/capabilities";
/// The elements that describe the processor.
const OF_HOST: [&str; 2] = ["microcodeVersion", "hostCPUSignature"];

/// The directory of the cache.
fn kept() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("qemu-capabilities")
}

/// Copies the cache to a libvirt whose /proc/cpuinfo is that below `host`: a recorded host's
/// directory, or `/`.
pub fn give(into: &Path, host: &Path) {
    copy_files(&kept(), into);
    let cpuinfo = std::fs::read_to_string(host.join("proc/cpuinfo")).unwrap_or_default();
    for path in files(into) {
        let text = std::fs::read_to_string(&path).unwrap();
        let text = if Path::new("/dev/kvm").exists() { text } else { without_kvm(&text) };
        std::fs::write(&path, of_host(&text, &cpuinfo)).unwrap();
    }
}

/// Stores the cache of a libvirt, unless there is one already.
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

/// The files of a directory, which need not exist.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// A cache file of libvirt without what QEMU can do by KVM: as it is written where there is no
/// /dev/kvm. libvirt does not believe another one there, and probes again; on user-mode Linux,
/// which has no KVM, that takes a minute.
fn without_kvm(text: &str) -> String {
    let mut until = None;
    let mut all = String::new();
    for line in text.lines() {
        let word = line.trim_start();
        if let Some(end) = until {
            until = Some(end).filter(|end| word != *end);
            continue;
        }
        let of_kvm = |name: &str| word.starts_with(&format!("<{name} type='kvm'"));
        match ["hostCPU", "cpu", "machine"].into_iter().find(|name| of_kvm(name)) {
            Some(_) if word.ends_with("/>") => {}
            Some("hostCPU") => until = Some("</hostCPU>"),
            Some(_) => until = Some("</cpu>"),
            None if word == "<flag name='kvm'/>" => {}
            None => all += &format!("{line}\n"),
        }
    }
    all
}

/// A cache file of libvirt, adapted to the processor of a /proc/cpuinfo: libvirt's
/// `virHostCPUGetSignature` and `virHostCPUGetMicrocodeVersion`.
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

#[test]
fn capabilities_without_kvm_are_those_of_tcg() {
    let text = "<qemuCaps>\n  <flag name='kvm'/>\n  <flag name='kvm-pit'/>\n  <hostCPU type='kvm' \
                model='base'>\n    <property name='a'/>\n  </hostCPU>\n  <cpu type='kvm' \
                name='max'/>\n  <cpu type='kvm' name='b' usable='no'>\n    <blocker name='c'/>\n  \
                </cpu>\n  <machine type='kvm' name='q35'/>\n  <hostCPU type='tcg'>\n    <property \
                name='a'/>\n  </hostCPU>\n  <cpu type='tcg' name='d'>\n    <blocker name='e'/>\n  \
                </cpu>\n</qemuCaps>\n";
    let left = "<qemuCaps>\n  <flag name='kvm-pit'/>\n  <hostCPU type='tcg'>\n    <property \
                name='a'/>\n  </hostCPU>\n  <cpu type='tcg' name='d'>\n    <blocker name='e'/>\n  \
                </cpu>\n</qemuCaps>\n";
    assert_eq!(without_kvm(text), left);
    assert_eq!(without_kvm(left), left);
}
