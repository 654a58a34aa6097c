//! The host's uses of block devices: mounts, swap, and everything that the kernel builds on them
//! (md, device mapper, bcache, btrfs). Uses without a holder in sysfs (ZFS, an inactive LVM group,
//! a stopped array) are detected by udev's record of the device. Opens no device.

use super::hung_mounts::unescaped;
use super::node::kernel_name;
use super::released;
use crate::fsroot::{Dir, FsError, FsRoot, not};
use gpuvm_core::topology::DriveUse;
use procfs::process::MountInfo;
use std::collections::{BTreeMap, BTreeSet};

/// Where the kernel lists block devices.
const BLOCK: &str = "sys/class/block";
/// The most layers on a device: LVM over crypt over LVM over md over multipath is five.
const STOREYS: usize = 16;

/// A mount, as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` of the device.
    pub number: String,
    /// The mounted device: `/dev/md1`.
    pub source: String,
    /// The mount point.
    pub at: String,
    /// Type of the file system.
    pub kind: String,
    /// The directory of the file system that is mounted; `/` for all of it.
    pub root: String,
    /// Options of the mount.
    pub options: String,
}

/// The host's uses, by block device.
#[derive(Debug, Default)]
pub struct Uses {
    mounts: Vec<Mount>,
    swaps: BTreeSet<String>,
    /// Devices of mounted btrfs file systems: names of each file system together.
    btrfs: Vec<Vec<String>>,
    /// Names of device mapper's devices, by the kernel's.
    mapped: BTreeMap<String, String>,
    /// UUIDs of arrays released for guests.
    released: BTreeSet<String>,
    /// Names of loop devices, with the block device below each.
    loops: BTreeMap<String, String>,
}

impl Uses {
    /// Reads mounts and swap space.
    pub fn read(root: &FsRoot) -> Result<Uses, FsError> {
        let mut uses = Uses { released: released::uuids(root), ..Uses::default() };
        // This program's mount namespace may lack mounts of the host: process 1 sees the host's.
        let first = root.read("proc/1/mountinfo").unwrap_or_default();
        uses.read_mountinfo(root, "proc/1/mountinfo", first.as_deref().unwrap_or_default())?;
        match root.read("proc/self/mountinfo")? {
            Some(text) => uses.read_mountinfo(root, "proc/self/mountinfo", &text)?,
            None => uses.read_mounts(root)?,
        }
        let text = root.read("proc/swaps")?.unwrap_or_default();
        let sources = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        uses.swaps.extend(sources.filter_map(device_name).map(str::to_owned));
        for uuid in root.names("sys/fs/btrfs")? {
            let names = root.names(&format!("sys/fs/btrfs/{uuid}/devices"))?;
            uses.btrfs.extend((!names.is_empty()).then_some(names));
        }
        for name in root.names(BLOCK)? {
            if name.starts_with("dm-")
                && let Some(mapped) = root.read(&format!("{BLOCK}/{name}/dm/name"))?
            {
                uses.mapped.insert(name, mapped);
            } else if name.starts_with("loop")
                && let Some(lower) = backing(root, &name)?
            {
                uses.loops.insert(name, lower);
            }
        }
        Ok(uses)
    }

    /// Reads the mounts as seen by one process.
    fn read_mountinfo(&mut self, root: &FsRoot, path: &str, text: &str) -> Result<(), FsError> {
        for (index, line) in text.lines().enumerate() {
            let mount = MountInfo::from_line(line)
                .map_err(|_| root.malformed(path, index + 1, not(line, "a mount")))?;
            // The words before ` - ` are as proc(5) says; the options are the sixth.
            let words: Vec<&str> = line.split(' ').collect();
            self.add(Mount {
                number: mount.majmin,
                source: unescaped(&mount.mount_source.unwrap_or_default()),
                at: unescaped(&mount.mount_point.to_string_lossy()),
                kind: mount.fs_type,
                root: unescaped(&mount.root),
                options: words.get(5).copied().unwrap_or_default().to_owned(),
            });
        }
        Ok(())
    }

    /// Reads the mounts from the shorter list, which lacks device numbers.
    fn read_mounts(&mut self, root: &FsRoot) -> Result<(), FsError> {
        let text = root.read("proc/mounts")?.unwrap_or_default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let &[source, at, kind, options, ..] = &words[..] else { continue };
            self.add(Mount {
                number: String::new(),
                source: unescaped(source),
                at: unescaped(at),
                kind: kind.to_owned(),
                root: "/".to_owned(),
                options: options.to_owned(),
            });
        }
        Ok(())
    }

    /// Adds a mount, unless it is known.
    fn add(&mut self, mount: Mount) {
        let same = |other: &Mount| {
            (&other.number, &other.source, &other.at) == (&mount.number, &mount.source, &mount.at)
        };
        if !self.mounts.iter().any(same) {
            self.mounts.push(mount);
        }
    }

    /// The mounts of a block device, by mount point.
    pub fn mounts_of(&self, root: &FsRoot, name: &str) -> Result<Vec<&Mount>, FsError> {
        let number = root.read(&format!("{BLOCK}/{name}/dev"))?.unwrap_or_default();
        let all = self.btrfs.iter().find(|names| names.iter().any(|other| other == name));
        // btrfs mounts have a device number of their own, and name one of several devices.
        let is_named = |source: &str| {
            let Some(source) = device_name(source) else { return false };
            let is = |name: &str| {
                source == name
                    || source.strip_prefix("mapper/").is_some_and(|mapped| {
                        self.mapped.get(name).is_some_and(|known| known == mapped)
                    })
            };
            is(name) || all.is_some_and(|names| names.iter().any(|name| is(name)))
        };
        let is_of = |mount: &&Mount| {
            (!number.is_empty() && mount.number == number) || is_named(&mount.source)
        };
        let mut found: Vec<&Mount> = self.mounts.iter().filter(is_of).collect();
        found.sort_by(|a, b| a.at.cmp(&b.at));
        found.dedup_by(|a, b| a.at == b.at);
        Ok(found)
    }

    /// Every mount of the host.
    pub fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// Returns the block device below a loop device; `None` if not a loop device, or one on a file.
    pub fn below_loop(&self, name: &str) -> Option<&str> {
        self.loops.get(name).map(String::as_str)
    }

    /// Whether a block device is swap space.
    pub fn is_swap(&self, name: &str) -> bool {
        self.swaps.contains(name)
    }

    /// The uses of a block device.
    pub fn of(&self, root: &FsRoot, name: &str) -> Result<Vec<DriveUse>, FsError> {
        let mounts = self.mounts_of(root, name)?;
        let mut uses: Vec<_> =
            mounts.into_iter().map(|mount| DriveUse::Mounted { at: mount.at.clone() }).collect();
        if uses.is_empty() && self.btrfs.iter().flatten().any(|other| other == name) {
            uses.push(DriveUse::Member { of: "a btrfs file system in use".to_owned() });
        }
        if self.is_swap(name) {
            uses.push(DriveUse::Swap);
        }
        for device in root.names(&format!("{BLOCK}/{name}/holders"))? {
            let what = kind(root, &device)?;
            let mut carries = BTreeSet::new();
            self.carried(root, &device, STOREYS, &mut carries)?;
            uses.push(DriveUse::Holder { device, what, carries: carries.into_iter().collect() });
        }
        for (device, _) in self.loops.iter().filter(|(_, lower)| *lower == name) {
            let mut carries = BTreeSet::new();
            self.carried(root, device, STOREYS, &mut carries)?;
            let (device, what) = (device.clone(), Some("loop device".to_owned()));
            uses.push(DriveUse::Holder { device, what, carries: carries.into_iter().collect() });
        }
        if uses.is_empty() {
            uses.extend(self.member(root, name)?.map(|of| DriveUse::Member { of }));
        }
        Ok(uses)
    }

    /// Adds the mount points, and `swap`, of a device and of everything on it or on its partitions.
    fn carried(
        &self,
        root: &FsRoot,
        name: &str,
        storeys: usize,
        carries: &mut BTreeSet<String>,
    ) -> Result<(), FsError> {
        carries.extend(self.mounts_of(root, name)?.into_iter().map(|mount| mount.at.clone()));
        if self.is_swap(name) {
            carries.insert("swap".to_owned());
        }
        let Some(storeys) = storeys.checked_sub(1) else { return Ok(()) };
        let above = root.names(&format!("{BLOCK}/{name}/holders"))?;
        let loops = self.loops.iter().filter(|(_, lower)| *lower == name);
        let above = above.into_iter().chain(loops.map(|(device, _)| device.clone()));
        for other in above.chain(partitions(root, name)?) {
            self.carried(root, &other, storeys, carries)?;
        }
        Ok(())
    }

    /// Returns the set that a device is a member of by udev, ignoring released arrays.
    fn member(&self, root: &FsRoot, name: &str) -> Result<Option<String>, FsError> {
        let udev = udev(root, name)?;
        let word = |key: &str| udev.get(key).map(String::as_str).filter(|word| !word.is_empty());
        let (Some(kind), label, uuid) =
            (word("ID_FS_TYPE"), word("ID_FS_LABEL"), word("ID_FS_UUID"))
        else {
            return Ok(None);
        };
        Ok(self.member_of(kind, label, uuid))
    }

    /// Returns the kind of set that a device with these signatures is a member of; `None` if no
    /// set, or a released array.
    pub fn member_of(&self, kind: &str, label: Option<&str>, uuid: Option<&str>) -> Option<String> {
        let named = |what: &str, name: Option<&str>| match name {
            Some(name) => format!("{what} `{name}`"),
            None => what.to_owned(),
        };
        Some(match kind {
            "zfs_member" => named("a ZFS pool", label),
            "LVM2_member" => "an LVM volume group that is not active".to_owned(),
            "LVM1_member" => "an LVM1 volume group".to_owned(),
            "bcache" => "a bcache".to_owned(),
            "linux_raid_member" => {
                let uuid = uuid.map(released::plain);
                if uuid.as_ref().is_some_and(|uuid| self.released.contains(uuid)) {
                    return None;
                }
                named("an md array that does not run", label.or(uuid.as_deref()))
            }
            other => match other.strip_suffix("_raid_member") {
                Some(maker) => format!("a RAID set of kind {maker}"),
                None => return None,
            },
        })
    }
}

/// Returns the kernel's name of the block device below a loop device; `None` for a file, or
/// nothing.
fn backing(root: &FsRoot, name: &str) -> Result<Option<String>, FsError> {
    let Some(dir) = root.dir(&format!("{BLOCK}/{name}/loop"))? else { return Ok(None) };
    let Some(file) = dir.read_if_any("backing_file")? else { return Ok(None) };
    // The node may have been taken away since.
    let path = file.strip_suffix(" (deleted)").unwrap_or(&file);
    if root.is_live()
        && let Some(name) = kernel_name(std::path::Path::new(path))
    {
        return Ok(Some(name));
    }
    let Some((directory, last)) = path.rsplit_once('/').filter(|_| path.starts_with("/dev/"))
    else {
        return Ok(None);
    };
    let linked = match root.dir(directory)? {
        Some(dir) => dir.link_name(last)?,
        None => None,
    };
    let known = linked.unwrap_or_else(|| last.to_owned());
    Ok(Some(known).filter(|name| root.exists(&format!("{BLOCK}/{name}"))))
}

/// Names of the partitions of a block device.
pub fn partitions(root: &FsRoot, name: &str) -> Result<Vec<String>, FsError> {
    let path = format!("{BLOCK}/{name}");
    let mut found = Vec::new();
    for child in root.names(&path)?.into_iter().filter(|child| child.starts_with(name)) {
        if root.exists(&format!("{path}/{child}/partition")) {
            found.push(child);
        }
    }
    Ok(found)
}

/// Returns the kind of a stacked device if the kernel reports it.
fn kind(root: &FsRoot, name: &str) -> Result<Option<String>, FsError> {
    let Some(dir) = root.dir(&format!("{BLOCK}/{name}"))? else { return Ok(None) };
    if let Some(md) = dir.dir("md")? {
        return Ok(Some(match md.read_if_any("level")?.filter(|level| !level.is_empty()) {
            Some(level) => format!("md {level}"),
            None => "md".to_owned(),
        }));
    }
    if let Some(dm) = dir.dir("dm")? {
        return mapper(&dm).map(Some);
    }
    Ok(dir.dir("bcache")?.map(|_| "bcache".to_owned()))
}

/// Returns the kind of a device-mapper device by the prefix of its UUID, set by its creator
/// (libdevmapper).
fn mapper(dm: &Dir<'_>) -> Result<String, FsError> {
    let (uuid, name) = (dm.read("uuid")?.unwrap_or_default(), dm.read("name")?.unwrap_or_default());
    let what = match uuid.split('-').next().unwrap_or_default() {
        "LVM" => "LVM",
        "CRYPT" => "dm-crypt",
        "mpath" => "multipath",
        part if part.starts_with("part") && uuid.contains("mpath-") => "multipath",
        _ => "device mapper",
    };
    Ok(format!("{what} {name}").trim_end().to_owned())
}

/// Reads udev's properties of a block device: the `E:` lines of its database, which anyone may
/// read.
pub fn udev(root: &FsRoot, name: &str) -> Result<BTreeMap<String, String>, FsError> {
    let text = database(root, name)?;
    let entry = |line: &str| {
        let (key, value) = line.strip_prefix("E:")?.split_once('=')?;
        Some((key.to_owned(), value.to_owned()))
    };
    Ok(text.lines().filter_map(entry).collect())
}

/// The links below /dev that udev's database gives a block device: `disk/by-id/ata-A`.
pub fn links(root: &FsRoot, name: &str) -> Result<Vec<String>, FsError> {
    let text = database(root, name)?;
    Ok(text.lines().filter_map(|line| line.strip_prefix("S:")).map(str::to_owned).collect())
}

/// Udev's database of a block device; empty where it has none.
fn database(root: &FsRoot, name: &str) -> Result<String, FsError> {
    let Some(number) = root.read(&format!("{BLOCK}/{name}/dev"))? else {
        return Ok(String::new());
    };
    Ok(root.read(&format!("run/udev/data/b{number}"))?.unwrap_or_default())
}

/// The name of a device below /dev: the kernel's, or `mapper/NAME`; none for other sources of a
/// mount.
fn device_name(source: &str) -> Option<&str> {
    let name = source.strip_prefix("/dev/")?;
    let plain = name.strip_prefix("mapper/").unwrap_or(name);
    (!plain.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests;
