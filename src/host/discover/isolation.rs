//! Kernel settings that weaken IOMMU isolation: the command line, VFIO's modules and their options.

use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::topology::isolation::acs_override;
use gpuvm_core::topology::{Iommufd, Isolation};
use procfs::{FromRead, KernelCmdline};

/// Where the kernel shows its IOMMU groups.
pub const GROUPS: &str = "sys/kernel/iommu_groups";
/// Where the kernel shows its modules; a record without it lacks their options.
const MODULES: &str = "sys/module";
/// Where files of options for modules are.
const MODPROBE: [&str; 4] =
    ["etc/modprobe.d", "run/modprobe.d", "usr/lib/modprobe.d", "lib/modprobe.d"];
/// A group that VFIO makes for a function without an IOMMU, from the kernel's drivers/vfio/group.c.
const NO_IOMMU_GROUP: &str = "vfio-noiommu";

/// Reads the settings; `None` if the host's files do not contain them.
pub fn settings(root: &FsRoot) -> Result<Option<Isolation>, FsError> {
    let path = "proc/cmdline";
    let Some(text) = root.read(path)?.filter(|_| root.exists(MODULES)) else { return Ok(None) };
    let KernelCmdline(arguments) = KernelCmdline::from_read(text.as_bytes())
        .map_err(|error| root.malformed(path, 1, error))?;
    // A file of options that this user may not read, or that is no text, leaves it unknown.
    let option = |module: &str, option: &str| is_on(root, &arguments, module, option).ok();
    let unsafe_interrupts = option("vfio_iommu_type1", "allow_unsafe_interrupts");
    let no_iommu = option("vfio", "enable_unsafe_noiommu_mode");
    let acs_override = arguments.iter().filter_map(|argument| acs_override(argument)).next_back();
    Ok(unsafe_interrupts.zip(no_iommu).map(|(unsafe_interrupts, no_iommu)| Isolation {
        acs_override,
        unsafe_interrupts,
        no_iommu,
    }))
}

/// Reads the kernel's iommufd support; `None` if the files of a record do not show it.
pub fn iommufd(root: &FsRoot) -> Option<Iommufd> {
    let node = root.exists("dev").then(|| root.exists("dev/iommu"))?;
    let option = "sys/module/iommufd/parameters/allow_unsafe_interrupts";
    let value = root.read(option).ok().flatten();
    let unsafe_interrupts = value.map(|value| is_true(Some(&value)));
    // A kernel without groups makes only the class of the functions' own devices.
    let groups = ["sys/class/vfio", "sys/class/vfio-dev"].map(|class| root.exists(class));
    let groups = groups.contains(&true).then_some(groups[0]);
    Some(Iommufd { node, unsafe_interrupts, groups })
}

/// Reads the number of IOMMU groups; `None` if the host's files do not show it.
pub fn groups(root: &FsRoot, settings: Option<&Isolation>) -> Result<Option<u64>, FsError> {
    // A kernel without an IOMMU has no such directory.
    let has_none = || root.exists("sys/kernel/mm") && (root.is_live() || shows_no_group(root));
    if !root.exists(GROUPS) && !has_none() {
        return Ok(None);
    }
    let mut count = 0;
    for name in root.names(GROUPS)? {
        let is_made_up = settings.is_some_and(|settings| settings.no_iommu)
            && name.parse().is_ok_and(|group| is_made_up(root, group).unwrap_or_default());
        count += u64::from(!is_made_up);
    }
    Ok(Some(count))
}

/// Whether a record has the directories of PCI functions whole, and none of them a group. Records
/// by hwloc, and those written by hand, have a few files of each, and not the link to the bus,
/// which the kernel makes beside that to the group.
fn shows_no_group(root: &FsRoot) -> bool {
    let dir = "sys/bus/pci/devices";
    let names = root.names(dir).unwrap_or_default();
    let functions = || names.iter().filter_map(|name| root.dir(&format!("{dir}/{name}")).ok()?);
    let links = |link: &str| functions().any(|one| matches!(one.link(link), Ok(Some(_))));
    links("subsystem") && links("driver") && !links("iommu_group")
}

/// Reads which of these groups have memory that the firmware keeps for itself; `None` if no file
/// shows it.
pub fn firmware_groups(
    root: &FsRoot,
    groups: impl Iterator<Item = u32>,
) -> Result<Option<Vec<u32>>, FsError> {
    // `direct-relaxable` (USB, displays) keeps nothing from guests.
    let is_direct =
        |text: &str| text.lines().any(|line| line.split_whitespace().nth(2) == Some("direct"));
    let mut found = None;
    for group in groups {
        let path = format!("{GROUPS}/{group}/reserved_regions");
        root.regular(&path)?;
        let Some(text) = root.read(&path)? else { continue };
        found.get_or_insert_with(Vec::new).extend(is_direct(&text).then_some(group));
    }
    Ok(found)
}

/// Whether a group is one of VFIO's for a function without an IOMMU.
pub fn is_made_up(root: &FsRoot, group: u32) -> Result<bool, FsError> {
    let name = root.read(&format!("{GROUPS}/{group}/name"))?;
    Ok(name.is_some_and(|name| name.trim() == NO_IOMMU_GROUP))
}

/// Whether an option of a module is on: by the loaded module, otherwise as it would be loaded.
fn is_on(root: &FsRoot, arguments: &[String], module: &str, option: &str) -> Result<bool, FsError> {
    if let Some(value) = root.read(&format!("{MODULES}/{module}/parameters/{option}"))? {
        return Ok(is_true(Some(&value)));
    }
    let prefix = format!("{module}.");
    let same = |name: &str| name.replace('-', "_");
    let words = arguments.iter().map(String::as_str);
    if words.filter_map(|word| given(word, &(prefix.clone() + option))).next_back() == Some(true) {
        return Ok(true);
    }
    for path in option_files(root)? {
        let text = root.read(&path)?.unwrap_or_default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if words.next() == Some("options")
                && words.next().is_some_and(|name| same(name) == module)
                && words.filter_map(|word| given(word, option)).next_back() == Some(true)
            {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The files of options for modules.
pub fn option_files(root: &FsRoot) -> Result<Vec<String>, FsError> {
    let mut files = Vec::new();
    for dir in MODPROBE {
        let names = root.names(dir)?.into_iter().filter(|name| name.ends_with(".conf"));
        files.extend(names.map(|name| format!("{dir}/{name}")));
    }
    Ok(files)
}

/// Returns the value of this option in a word; none if it is another option.
fn given(word: &str, option: &str) -> Option<bool> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    (name.replace('-', "_") == option).then(|| is_true(value))
}

/// Whether the kernel parses a value as true; a missing value is true.
fn is_true(value: Option<&str>) -> bool {
    let first = value.map(|value| value.trim().to_ascii_lowercase());
    match first.as_deref() {
        None => true,
        Some(text) => text.starts_with(['y', 't', '1']) || text == "on",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Reads a host of these files.
    fn read(files: &[(&str, &str)]) -> Option<Isolation> {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path: &Path = &dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        settings(&FsRoot::at(dir.path()).unwrap()).unwrap()
    }

    #[test]
    fn each_setting_is_found_where_it_can_be_made() {
        let type1 = "sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";
        let vfio = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
        let modprobe = "etc/modprobe.d/local.conf";
        let cmdline = "proc/cmdline";
        let there = ("sys/module/kvm/refcnt", "0");
        let plain = Isolation::default();
        let acs = |value: &str| Isolation { acs_override: Some(value.into()), ..plain.clone() };
        let interrupts = Isolation { unsafe_interrupts: true, ..plain.clone() };
        let no_iommu = Isolation { no_iommu: true, ..plain.clone() };
        for (files, wanted) in [
            (vec![(cmdline, "ro quiet")], None),
            (vec![there], None),
            (vec![there, (cmdline, "ro intel_iommu=on iommu=pt")], Some(plain.clone())),
            (
                vec![there, (cmdline, "pcie_acs_override=downstream,multifunction")],
                Some(acs("downstream,multifunction")),
            ),
            (vec![there, (cmdline, "pcie-acs-override=id:10de:2330")], Some(acs("id:10de:2330"))),
            (vec![(cmdline, ""), (type1, "Y\n")], Some(interrupts.clone())),
            (vec![(cmdline, ""), (type1, "N\n"), (vfio, "N\n")], Some(plain.clone())),
            // The loaded module's value counts.
            (
                vec![(cmdline, "vfio_iommu_type1.allow_unsafe_interrupts=1"), (type1, "N\n")],
                Some(plain.clone()),
            ),
            (
                vec![there, (cmdline, "vfio-iommu-type1.allow_unsafe_interrupts=on")],
                Some(interrupts.clone()),
            ),
            (
                vec![
                    there,
                    (cmdline, ""),
                    (modprobe, "# a\noptions vfio-iommu-type1 x=1 allow_unsafe_interrupts=1\n"),
                ],
                Some(interrupts),
            ),
            (
                vec![there, (cmdline, ""), (modprobe, "options vfio enable_unsafe_noiommu_mode\n")],
                Some(no_iommu.clone()),
            ),
            (vec![(cmdline, ""), (vfio, "Y\n")], Some(no_iommu)),
            // A directory in place of a file: the setting is unknown.
            (vec![there, (cmdline, ""), ("etc/modprobe.d/a.conf/b", "")], None),
        ] {
            assert_eq!(read(&files), wanted, "{files:?}");
        }
    }
}
