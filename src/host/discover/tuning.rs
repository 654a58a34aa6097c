//! Reads kernel settings that affect guests: frequencies, transparent huge pages. Does not judge.

use super::cpu::numbered;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::cpuset::PcpuId;
use gpuvm_core::verify::tuning::Tuning;

/// The kernel's setting of transparent huge pages.
pub const TRANSPARENT: &str = "sys/kernel/mm/transparent_hugepage/enabled";
/// The kernel's setting of automatic NUMA balancing.
pub const BALANCING: &str = "proc/sys/kernel/numa_balancing";

/// Reads the kernel's settings.
pub fn read(root: &FsRoot) -> Result<Tuning, FsError> {
    let mut tuning = Tuning::default();
    for name in root.names("sys/devices/system/cpu")? {
        let Some(PcpuId(pcpu)) = numbered(&name, "cpu") else { continue };
        let path = format!("sys/devices/system/cpu/{name}/cpufreq/scaling_governor");
        // The kernel does not report it for an offline pcpu.
        if let Ok(Some(governor)) = root.read(&path) {
            tuning.governors.entry(governor).or_default().insert(PcpuId(pcpu));
        }
    }
    tuning.transparent_huge_pages = value(root, TRANSPARENT)?;
    Ok(tuning)
}

/// Returns the value of a kernel setting; of several listed values the one in brackets; `None` if
/// there is no such setting.
pub fn value(root: &FsRoot, path: &str) -> Result<Option<String>, FsError> {
    let text = root.read(path)?;
    Ok(text.map(|text| chosen(&text).unwrap_or(text.trim()).to_owned()))
}

/// The word in brackets: `always [madvise] never`.
pub(super) fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(chosen, _)| chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_settings_of_a_host() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join("sys").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
        write("devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n");
        write("devices/system/cpu/cpu10/cpufreq/scaling_governor", "powersave\n");
        write("devices/system/cpu/cpufreq/x", "");
        write("devices/system/cpu/cpu2/online", "0\n");
        write("kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
        let tuning = read(&FsRoot::at(dir.path()).unwrap()).unwrap();
        assert_eq!(tuning.governors["powersave"].to_string(), "0,10");
        assert_eq!(tuning.governors["performance"].to_string(), "1");
        assert_eq!(tuning.transparent_huge_pages.as_deref(), Some("never"));
        let empty = tempfile::tempdir().unwrap();
        let none = read(&FsRoot::at(empty.path()).unwrap()).unwrap();
        assert_eq!(none, Tuning::default());
    }
}
