//! Drives: whole block devices with their partitions and who uses them. Knows nothing of what is stored on them, so
//! a member of a ZFS pool shows only where the kernel lists a holder.

use super::pci::place;
use crate::bdf::Bdf;
use crate::fsroot::{Dir, FsError, FsRoot, not};
use crate::topology::{Drive, DriveUse, PartitionTableEntry, Parts};
use procfs::process::MountInfo;
use std::collections::{BTreeMap, BTreeSet};

/// Where the kernel lists block devices, whole ones and partitions, as links into its tree of devices.
const BLOCK: &str = "sys/class/block";
/// Bytes of the sectors that the kernel counts sizes in, whatever the drive's own are.
const SECTOR: u64 = 512;

/// Reads every drive into `parts.drives`; `parts.devices` is there already. `identify`: with names that hold serial
/// numbers and with partition UUIDs.
pub fn drives(root: &FsRoot, identify: bool, parts: &mut Parts) -> Result<(), FsError> {
    let Some(list) = root.dir(BLOCK)? else { return Ok(()) };
    let mut targets = BTreeMap::new();
    for name in list.names()? {
        if let Some(target) = list.link(&name)? {
            let path = target.trim_start_matches("../").to_owned();
            targets.insert(name, format!("sys/{path}"));
        }
    }
    let uses = if targets.is_empty() { Uses::default() } else { Uses::read(root)? };
    let udev = if identify { Udev::read(root)? } else { Udev::default() };
    let known: BTreeSet<Bdf> = parts.devices.iter().map(|device| device.bdf).collect();
    for (name, path) in &targets {
        let above = path.rsplit('/').nth(1).unwrap_or_default();
        if targets.contains_key(above) || !is_drive(name, path) {
            continue;
        }
        let Some(dir) = root.dir(path)? else {
            parts.notes.push(format!("{BLOCK}/{name} leads nowhere; passed over"));
            continue;
        };
        let mut drive = drive(&dir, name, &uses, &udev)?;
        let paths = std::iter::once(path.clone()).chain(controllers(root, path)?);
        drive.bdf = paths.filter_map(|path| function_above(&path)).find(|bdf| known.contains(bdf));
        parts.drives.push(drive);
    }
    Ok(())
}

/// Whether a block device is a whole drive: not md, device mapper, loop, RAM or a removable disc, and not the hidden
/// path of a controller to an NVMe namespace (`nvme0c0n1`).
fn is_drive(name: &str, path: &str) -> bool {
    let hidden_path = name
        .strip_prefix("nvme")
        .and_then(|rest| rest.split_once('c'))
        .is_some_and(|(number, rest)| number.parse::<u32>().is_ok() && rest.contains('n'));
    let disc = ["sr", "fd"].iter().any(|kind| {
        name.strip_prefix(kind).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()))
    });
    !hidden_path && !disc && !path.contains("/virtual/block/")
}

/// Reads the directory of a drive.
fn drive(dir: &Dir<'_>, name: &str, uses: &Uses, udev: &Udev) -> Result<Drive, FsError> {
    let mut partitions = Vec::new();
    for child in dir.names()?.iter().filter(|child| child.starts_with(name)) {
        let Some(dir) = dir.dir(child)? else { continue };
        let Some(number) = dir.number("partition")? else { continue };
        partitions.push(PartitionTableEntry {
            name: child.clone(),
            number,
            bytes: bytes(&dir)?,
            partuuid: udev.partuuids.get(child).cloned(),
            used_by: uses.of(&dir, child)?,
        });
    }
    partitions.sort_by_key(|partition| partition.number);
    let model = match dir.dir("device")? {
        Some(device) => device.read_if_any("model")?.filter(|model| !model.is_empty()),
        None => None,
    };
    let rotational = match dir.dir("queue")? {
        Some(queue) => queue.read("rotational")?.is_some_and(|text| text == "1"),
        None => false,
    };
    Ok(Drive {
        name: name.to_owned(),
        bdf: None,
        bytes: bytes(dir)?,
        model,
        rotational,
        stable_ids: udev.ids.get(name).cloned().unwrap_or_default(),
        partitions,
        used_by: uses.of(dir, name)?,
    })
}

/// Reads the size of a drive or partition.
fn bytes(dir: &Dir<'_>) -> Result<u64, FsError> {
    let parse = |text: &str| text.parse::<u64>().ok()?.checked_mul(SECTOR);
    Ok(dir.parse("size", parse, "a number of sectors in range")?.unwrap_or(0))
}

/// Finds the lowest PCI function in the path of a device.
fn function_above(path: &str) -> Option<Bdf> {
    let (index, _) = path.match_indices('/').rev().find(|(index, _)| {
        path[..*index].rsplit('/').next().is_some_and(|name| name.parse::<Bdf>().is_ok())
    })?;
    place(&path[..=index]).0
}

/// Paths of the controllers of a namespace with native NVMe multipath, which hangs below a subsystem and not below a
/// function; empty for others.
fn controllers(root: &FsRoot, path: &str) -> Result<Vec<String>, FsError> {
    let Some((subsystem, _)) = path.rsplit_once('/') else { return Ok(Vec::new()) };
    if !subsystem.contains("/virtual/nvme-subsystem/") {
        return Ok(Vec::new());
    }
    let Some(dir) = root.dir(subsystem)? else { return Ok(Vec::new()) };
    let mut paths = Vec::new();
    for name in dir.names()?.iter().filter(|name| name.starts_with("nvme")) {
        paths.extend(dir.link(name)?.map(|target| format!("{target}/")));
    }
    Ok(paths)
}

/// Is what the host uses, by block device.
#[derive(Debug, Default)]
struct Uses {
    /// Mount points by `major:minor`.
    by_number: BTreeMap<String, BTreeSet<String>>,
    /// Mount points by the kernel's name: btrfs mounts have a number of their own.
    by_name: BTreeMap<String, BTreeSet<String>>,
    /// Names of swap space.
    swaps: BTreeSet<String>,
}

impl Uses {
    /// Reads what is mounted and what is swap space.
    fn read(root: &FsRoot) -> Result<Uses, FsError> {
        let mut uses = Uses::default();
        // This program may run where less is mounted than the host has: the first process sees the host's mounts.
        let first = root.read("proc/1/mountinfo").unwrap_or_default();
        uses.read_mountinfo(root, "proc/1/mountinfo", first.as_deref().unwrap_or_default())?;
        match root.read("proc/self/mountinfo")? {
            Some(text) => uses.read_mountinfo(root, "proc/self/mountinfo", &text)?,
            None => uses.read_mounts(root)?,
        }
        let text = root.read("proc/swaps")?.unwrap_or_default();
        let sources = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        uses.swaps.extend(sources.filter_map(device_name).map(str::to_owned));
        Ok(uses)
    }

    /// Reads what is mounted in one process's eyes.
    fn read_mountinfo(&mut self, root: &FsRoot, path: &str, text: &str) -> Result<(), FsError> {
        for (index, line) in text.lines().enumerate() {
            let mount = MountInfo::from_line(line)
                .map_err(|_| root.malformed(path, index + 1, not(line, "a mount")))?;
            let at = unescaped(&mount.mount_point.to_string_lossy());
            if let Some(name) = mount.mount_source.as_deref().and_then(device_name) {
                self.by_name.entry(name.to_owned()).or_default().insert(at.clone());
            }
            self.by_number.entry(mount.majmin).or_default().insert(at);
        }
        Ok(())
    }

    /// Reads what is mounted from the shorter list, which has no numbers.
    fn read_mounts(&mut self, root: &FsRoot) -> Result<(), FsError> {
        let text = root.read("proc/mounts")?.unwrap_or_default();
        for line in text.lines() {
            let mut words = line.split(' ');
            if let (Some(source), Some(at)) = (words.next(), words.next())
                && let Some(name) = device_name(source)
            {
                self.by_name.entry(name.to_owned()).or_default().insert(unescaped(at));
            }
        }
        Ok(())
    }

    /// The uses of a block device.
    fn of(&self, dir: &Dir<'_>, name: &str) -> Result<Vec<DriveUse>, FsError> {
        let number = dir.read("dev")?.unwrap_or_default();
        let mut mounts = self.by_number.get(&number).cloned().unwrap_or_default();
        mounts.extend(self.by_name.get(name).into_iter().flatten().cloned());
        let mut uses: Vec<_> = mounts.into_iter().map(|at| DriveUse::Mounted { at }).collect();
        if self.swaps.contains(name) {
            uses.push(DriveUse::Swap);
        }
        if let Some(holders) = dir.dir("holders")? {
            let holder = |device| DriveUse::Holder { device };
            uses.extend(holders.names()?.into_iter().map(holder));
        }
        Ok(uses)
    }
}

/// The kernel's name of a device below /dev; none for other sources of a mount.
fn device_name(source: &str) -> Option<&str> {
    source.strip_prefix("/dev/").filter(|name| !name.contains('/'))
}

/// Replaces the escapes of the kernel's mount lists (`\040` for a blank).
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Is the names that udev gave to block devices.
#[derive(Debug, Default)]
struct Udev {
    /// Names below /dev/disk/by-id, by the kernel's name.
    ids: BTreeMap<String, Vec<String>>,
    /// Partition UUID by the kernel's name.
    partuuids: BTreeMap<String, String>,
}

impl Udev {
    /// Reads the links in /dev/disk.
    fn read(root: &FsRoot) -> Result<Udev, FsError> {
        let mut udev = Udev::default();
        if let Some(dir) = root.dir("dev/disk/by-id")? {
            for link in dir.names()? {
                if let Some(name) = dir.link_name(&link)? {
                    udev.ids.entry(name).or_default().push(link);
                }
            }
        }
        if let Some(dir) = root.dir("dev/disk/by-partuuid")? {
            for link in dir.names()? {
                if let Some(name) = dir.link_name(&link)? {
                    udev.partuuids.insert(name, link);
                }
            }
        }
        Ok(udev)
    }
}
