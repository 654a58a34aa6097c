//! Kernel settings at boot: those below /proc/sys by systemd-sysctl, the rest by systemd-tmpfiles.

use crate::apply::boot::{BootFile, read_written, written};
use crate::fsroot::{FsError, FsRoot};
use std::collections::BTreeMap;

/// Our own file for systemd-sysctl. Its name sorts after those starting with a number.
const SYSCTL: &str = "etc/sysctl.d/gpuvm.conf";
const TMPFILES: &str = "etc/tmpfiles.d/gpuvm-tuning.conf";
const HEAD: &str = "# Made by `gpuvm host tuning --at-boot`; `gpuvm host undo` takes it back.\n";
/// Prefix of the settings of systemd-sysctl.
const PROC: &str = "proc/sys/";

/// Values by path below the root.
pub type Values = BTreeMap<String, String>;

/// The values that our files set at boot.
pub fn values(root: &FsRoot) -> Result<Values, FsError> {
    let mut all = Values::new();
    for line in root.read(SYSCTL)?.unwrap_or_default().lines() {
        if let Some((key, value)) = line.split_once('=') {
            let path = format!("{PROC}{}", key.trim().replace('.', "/"));
            all.insert(path, value.trim().to_owned());
        }
    }
    for line in root.read(TMPFILES)?.unwrap_or_default().lines() {
        if let Some((path, value)) = read_written(line) {
            all.insert(path.trim_start_matches('/').to_owned(), value.to_owned());
        }
    }
    Ok(all)
}

/// The files that set this at boot.
pub fn files(values: &Values) -> [BootFile; 2] {
    let (mut sysctl, mut tmpfiles) = (String::new(), String::new());
    for (path, value) in values {
        match path.strip_prefix(PROC) {
            Some(key) => sysctl += &format!("{} = {value}\n", key.replace('/', ".")),
            None => tmpfiles += &written(&format!("/{path}"), value),
        }
    }
    let text = |lines: String| (!lines.is_empty()).then(|| format!("{HEAD}{lines}"));
    [(SYSCTL, text(sysctl)), (TMPFILES, text(tmpfiles))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_settings_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        assert!(values(&root).unwrap().is_empty());
        assert_eq!(files(&Values::new()), [(SYSCTL, None), (TMPFILES, None)]);
        let all: Values = [
            ("proc/sys/kernel/numa_balancing", "1"),
            ("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", "performance"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "madvise"),
        ]
        .map(|(path, value)| (path.to_owned(), value.to_owned()))
        .into();
        for (path, text) in files(&all) {
            crate::apply::file::set_file(&dir.path().join(path), text.as_deref()).unwrap();
        }
        assert_eq!(values(&root).unwrap(), all);
        let text = |file| std::fs::read_to_string(dir.path().join(file)).unwrap();
        assert_eq!(text(SYSCTL), format!("{HEAD}kernel.numa_balancing = 1\n"));
        assert!(
            text(TMPFILES)
                .ends_with("\nw! /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise\n")
        );
    }
}
