//! Drives: whole block devices with their partitions, and the host's uses of them, from
//! [`super::device_users`].

use super::device_users::{self, Uses};
use super::pci::place;
use super::signatures;
use crate::fsroot::{Dir, FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::{Drive, PartitionTableEntry, Parts};
use std::collections::{BTreeMap, BTreeSet};

/// Where the kernel lists block devices, whole ones and partitions, as links into its tree of
/// devices.
const BLOCK: &str = "sys/class/block";
/// Bytes of the sectors that the kernel counts sizes in, whatever the drive's own are.
const SECTOR: u64 = 512;

/// Reads every drive into `parts.drives`; `parts.devices` must be filled. `identify`: with names
/// containing serial numbers, and partition UUIDs.
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
        let mut drive = drive(root, &dir, name, &uses, &udev)?;
        let paths = std::iter::once(path.clone()).chain(controllers(root, path)?);
        drive.bdf = paths.filter_map(|path| function_above(&path)).find(|bdf| known.contains(bdf));
        parts.drives.push(drive);
    }
    signatures::fill(root, &uses, identify, &mut parts.drives)
}

/// Whether a block device is a whole drive: not md, device mapper, loop, RAM or a removable disc,
/// and not the hidden path of a controller to an NVMe namespace (`nvme0c0n1`).
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
fn drive(
    root: &FsRoot,
    dir: &Dir<'_>,
    name: &str,
    uses: &Uses,
    udev: &Udev,
) -> Result<Drive, FsError> {
    let mut partitions = Vec::new();
    for child in dir.names()?.iter().filter(|child| child.starts_with(name)) {
        let Some(dir) = dir.dir(child)? else { continue };
        let Some(number) = dir.number("partition")? else { continue };
        partitions.push(PartitionTableEntry {
            name: child.clone(),
            number,
            bytes: bytes(&dir)?,
            partuuid: udev.partuuids.get(child).cloned(),
            used_by: uses.of(root, child)?,
            content: None,
            efi_system: false,
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
        used_by: uses.of(root, name)?,
        content: None,
    })
}

/// Reads the size of a drive or partition.
fn bytes(dir: &Dir<'_>) -> Result<u64, FsError> {
    let parse = |text: &str| text.parse::<u64>().ok()?.checked_mul(SECTOR);
    Ok(dir.parse("size", parse, "a number of sectors in range")?.unwrap_or(0))
}

/// Returns the PCI function of a block device, whole or a partition; none for virtual ones.
pub fn function_of(root: &FsRoot, name: &str) -> Result<Option<Bdf>, FsError> {
    let Some(list) = root.dir(BLOCK)? else { return Ok(None) };
    let Some(target) = list.link(name)? else { return Ok(None) };
    let path = format!("sys/{}", target.trim_start_matches("../"));
    let paths = std::iter::once(path.clone()).chain(controllers(root, &path)?);
    Ok(paths.into_iter().find_map(|path| function_above(&path)))
}

/// Names below /dev/disk/by-id of every block device, partitions too, by the kernel's name.
pub fn stable_ids(root: &FsRoot) -> Result<BTreeMap<String, Vec<String>>, FsError> {
    Ok(Udev::read(root)?.ids)
}

/// Returns the preferred name of a device below /dev/disk/by-id: one with vendor, model and serial
/// number before a mere number, and the name of an NVMe drive before that of its namespace (`_1`).
pub fn best_id(ids: &[String]) -> Option<&str> {
    let rank = |id: &&String| {
        let is_number = ["wwn-", "nvme-eui.", "nvme-nvme.", "nvme-uuid.", "dm-", "lvm-", "md-"];
        (is_number.iter().any(|prefix| id.starts_with(prefix)), id.len(), (*id).clone())
    };
    ids.iter().min_by_key(rank).map(String::as_str)
}

/// Finds the lowest PCI function in the path of a device.
pub(super) fn function_above(path: &str) -> Option<Bdf> {
    let (index, _) = path.match_indices('/').rev().find(|(index, _)| {
        path[..*index].rsplit('/').next().is_some_and(|name| name.parse::<Bdf>().is_ok())
    })?;
    place(&path[..=index]).0
}

/// Paths of the controllers of a namespace with native NVMe multipath, which is below a subsystem
/// rather than a function; empty for others.
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

/// The names that udev gave to block devices.
#[derive(Debug, Default)]
pub(super) struct Udev {
    /// Names below /dev/disk/by-id, by the kernel's name.
    ids: BTreeMap<String, Vec<String>>,
    /// Partition UUID by the kernel's name.
    partuuids: BTreeMap<String, String>,
}

impl Udev {
    fn read(root: &FsRoot) -> Result<Udev, FsError> {
        let first = |(name, links): (String, Vec<String>)| Some((name, links.into_iter().next()?));
        Ok(Udev {
            ids: links(root, "disk/by-id")?,
            partuuids: links(root, "disk/by-partuuid")?.into_iter().filter_map(first).collect(),
        })
    }
}

/// The links of a directory below /dev, by the kernel's name of the device that they point to. udev
/// does not always remove links to a recreated partition; if its database lists a device's links in
/// this directory, only these count.
fn links(root: &FsRoot, directory: &str) -> Result<BTreeMap<String, Vec<String>>, FsError> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let Some(dir) = root.dir(&format!("dev/{directory}"))? else { return Ok(found) };
    for link in dir.names()? {
        if let Some(name) = dir.link_name(&link)? {
            found.entry(name).or_default().push(link);
        }
    }
    for (name, links) in &mut found {
        let known = device_users::links(root, name)?;
        let is_known = |link: &String| known.contains(&format!("{directory}/{link}"));
        if links.iter().any(is_known) {
            links.retain(is_known);
        }
    }
    Ok(found)
}
