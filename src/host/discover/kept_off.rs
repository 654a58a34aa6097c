//! Reads which pcpus settings other than `isolcpus=` keep the host's own tasks off: cgroups,
//! systemd's affinity, and the kernel's arguments.

use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::topology::{KeptOff, KeptOffBy, Parts};

/// Where the kernel shows cgroups: version 2, then the cpuset controller of version 1.
const CGROUPS: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/cpuset"];
/// Where systemd reads its own settings, in order (systemd-system.conf(5)).
const SYSTEMD: [&str; 3] = ["usr/lib/systemd", "run/systemd", "etc/systemd"];

/// Reads the settings into a host's data; where they disagree, a note says which one counts.
pub fn kept_off(root: &FsRoot, online: &CpuSet, parts: &mut Parts) -> Result<(), FsError> {
    let is_part = |set: &CpuSet| !set.is_empty() && set.is_subset(online) && set != online;
    // A partition of a sibling takes its pcpus from the others, whatever they have for themselves.
    let own = slice(root, "machine.slice", "cpuset.cpus.effective")?;
    let own =
        own.map_or_else(|| slice(root, "machine.slice", "cpuset.cpus"), |own| Ok(Some(own)))?;
    parts.machine_slice = own.map(|s| s.and(online)).filter(is_part);
    let others = |set: CpuSet| online.minus(&set);
    let arguments = &parts.machine.kernel_arguments;
    let found = [
        (KeptOffBy::SystemSlice, slice(root, "system.slice", "cpuset.cpus")?.map(others)),
        (KeptOffBy::CpuAffinity, affinity(root)?.map(others)),
        (KeptOffBy::NohzFull, argument(arguments, "nohz_full")),
        (KeptOffBy::RcuNocbs, argument(arguments, "rcu_nocbs")),
    ];
    let found = found.into_iter().filter_map(|(by, set)| {
        let pcpus = set?.and(online);
        is_part(&pcpus).then_some(KeptOff { pcpus, by })
    });
    let mut found = found;
    let isolated = (!parts.isolated.is_empty()).then(|| ("isolcpus=", parts.isolated.clone()));
    if isolated.is_none() {
        parts.kept_off = found.next();
    }
    let first = parts.kept_off.as_ref().map(|kept| (kept.by.setting(), kept.pcpus.clone()));
    let Some((setting, pcpus)) = isolated.or(first) else { return Ok(()) };
    for other in found.filter(|other| other.pcpus != pcpus) {
        parts.notes.push(format!(
            "pcpus {pcpus} are for guests by {setting}; {} by {} are ignored",
            other.pcpus,
            other.by.setting()
        ));
    }
    Ok(())
}

/// Reads the pcpus of a slice by this file; `None` if it is not there or empty.
fn slice(root: &FsRoot, name: &str, file: &str) -> Result<Option<CpuSet>, FsError> {
    for groups in CGROUPS {
        let path = format!("{groups}/{name}/{file}");
        let text = root.read(&path)?;
        let set = text.and_then(|text| text.trim().parse::<CpuSet>().ok());
        if let Some(set) = set.filter(|set| !set.is_empty()) {
            return Ok(Some(set));
        }
    }
    Ok(None)
}

/// Reads systemd's `CPUAffinity=`: successive ones add up, and an empty one begins anew. `None` if
/// it is not set, or that of the NUMA policy.
fn affinity(root: &FsRoot) -> Result<Option<CpuSet>, FsError> {
    let mut files: Vec<String> = SYSTEMD.map(|dir| format!("{dir}/system.conf")).into();
    // Of files with one name that of the last folder counts; all are read in the order of names.
    let mut drop_ins = std::collections::BTreeMap::new();
    for dir in SYSTEMD {
        let dir = format!("{dir}/system.conf.d");
        for name in root.names(&dir)?.into_iter().filter(|name| name.ends_with(".conf")) {
            let path = format!("{dir}/{name}");
            drop_ins.insert(name, path);
        }
    }
    files.extend(drop_ins.into_values());
    let mut set = CpuSet::new();
    for path in files {
        // What this user may not read, or is no text, sets nothing.
        let text = root.read(&path).unwrap_or_default().unwrap_or_default();
        let mut section = "";
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line;
            }
            let value = line.split_once('=').filter(|(key, _)| key.trim() == "CPUAffinity");
            let Some((_, value)) = value.filter(|_| section == "[Manager]") else { continue };
            // Numbers and ranges are separated by white space or commas.
            let list = value.split_whitespace().collect::<Vec<_>>().join(",");
            match list.parse::<CpuSet>() {
                Ok(more) if !list.is_empty() => set = set.or(&more),
                _ => set = CpuSet::new(),
            }
        }
    }
    Ok((!set.is_empty()).then_some(set))
}

/// The pcpus of a kernel argument; the last one counts.
fn argument(arguments: &[String], name: &str) -> Option<CpuSet> {
    let value = arguments.iter().rev().find_map(|argument| {
        let (key, value) = argument.split_once('=')?;
        (key == name).then_some(value)
    });
    value?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::topology::KeptOffBy::{CpuAffinity, NohzFull, RcuNocbs, SystemSlice};

    /// What is read on a host of 16 pcpus with these files and kernel arguments.
    fn read(files: &[(&str, &str)], arguments: &str, isolated: &str) -> Parts {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let mut parts = Parts { isolated: isolated.parse().unwrap(), ..Parts::default() };
        parts.machine.kernel_arguments = arguments.split(' ').map(str::to_owned).collect();
        let online = "0-15".parse().unwrap();
        kept_off(&FsRoot::at(dir.path()).unwrap(), &online, &mut parts).unwrap();
        parts
    }

    #[test]
    fn each_setting_is_read() {
        let system = "sys/fs/cgroup/system.slice/cpuset.cpus";
        let old = "sys/fs/cgroup/cpuset/system.slice/cpuset.cpus";
        let conf = "etc/systemd/system.conf";
        let drop_in = "etc/systemd/system.conf.d/a.conf";
        let lib = "usr/lib/systemd/system.conf.d/a.conf";
        for (files, arguments, wanted) in [
            (vec![], "ro nohz_full=4-15", Some(("4-15", NohzFull))),
            (vec![], "ro rcu_nocbs=8-15", Some(("8-15", RcuNocbs))),
            (vec![], "rcu_nocbs=all nohz_full=", None),
            (vec![(system, "0-3\n")], "", Some(("4-15", SystemSlice))),
            (vec![(old, "0-3\n")], "", Some(("4-15", SystemSlice))),
            (vec![(system, "\n"), (old, "0-15")], "", None),
            (vec![(conf, "[Manager]\nCPUAffinity=0-2 3\n")], "", Some(("4-15", CpuAffinity))),
            (vec![(conf, "[Manager]\n#CPUAffinity=0-3\n")], "", None),
            (vec![(conf, "[Other]\nCPUAffinity=0-3\n")], "", None),
            (
                vec![(conf, "[Manager]\nCPUAffinity=0\n"), (drop_in, "[Manager]\nCPUAffinity=1\n")],
                "",
                Some(("2-15", CpuAffinity)),
            ),
            (
                vec![
                    (conf, "[Manager]\nCPUAffinity=0-7\n"),
                    (drop_in, "[Manager]\nCPUAffinity=\nCPUAffinity=0,1\n"),
                    (lib, "[Manager]\nCPUAffinity=9\n"),
                ],
                "",
                Some(("2-15", CpuAffinity)),
            ),
        ] {
            let parts = read(&files, arguments, "");
            let found = parts.kept_off.map(|kept| (kept.pcpus.to_string(), kept.by));
            let wanted = wanted.map(|(pcpus, by): (&str, _)| (pcpus.to_owned(), by));
            assert_eq!(found, wanted, "{files:?} {arguments}");
            assert_eq!((parts.machine_slice, parts.notes), (None, vec![]), "{files:?}");
        }
    }

    #[test]
    fn a_siblings_partition_takes_pcpus_from_machine_slice() {
        let own = "sys/fs/cgroup/machine.slice/cpuset.cpus";
        let effective = "sys/fs/cgroup/machine.slice/cpuset.cpus.effective";
        for (files, wanted) in [
            (vec![(own, "\n"), (effective, "4-15\n")], Some("4-15")),
            (vec![(own, "0-11\n"), (effective, "4-11\n")], Some("4-11")),
            (vec![(own, "0-11\n")], Some("0-11")),
            (vec![(own, "\n"), (effective, "0-15\n")], None),
        ] {
            let found = read(&files, "", "").machine_slice.map(|set| set.to_string());
            assert_eq!(found.as_deref(), wanted, "{files:?}");
        }
    }

    #[test]
    fn of_settings_that_disagree_the_one_that_counts_is_said() {
        let system = ("sys/fs/cgroup/system.slice/cpuset.cpus", "0-3");
        let machine = ("sys/fs/cgroup/machine.slice/cpuset.cpus", "4-15");
        let parts = read(&[system, machine], "nohz_full=8-15 rcu_nocbs=4-15", "");
        assert_eq!(parts.machine_slice.unwrap().to_string(), "4-15");
        assert_eq!(parts.kept_off.unwrap().by, SystemSlice);
        let note = "pcpus 4-15 are for guests by cpuset.cpus of system.slice; 8-15 by nohz_full= \
                    are ignored";
        assert_eq!(parts.notes, [note]);
        let parts = read(&[system], "isolcpus=8-15 nohz_full=8-15", "8-15");
        assert_eq!(parts.kept_off, None);
        let note = "pcpus 8-15 are for guests by isolcpus=; 4-15 by cpuset.cpus of system.slice \
                    are ignored";
        assert_eq!(parts.notes, [note]);
    }
}
