//! Uses of block devices, by any path: the users of one ([`used_by`]), and whether it is held
//! exclusively now ([`is_held`]). The common guard of drives, partitions, and device paths given to
//! guests. Opens devices for reading only; knows no domains.

mod exclusive_drive;
#[cfg(test)]
mod tests;

pub use exclusive_drive::{DriveIdentity, ExclusiveDrive};

use crate::command::CommandError;
use crate::discover::device_users::{Uses, partitions};
use crate::discover::node::{answering, is_held_now, kernel_name};
use crate::discover::signatures;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::topology::DriveUse;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where the kernel lists block devices.
const BLOCK: &str = "sys/class/block";

/// One use of a block device by the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockUse {
    /// The used device, by the kernel's name: the device, a partition of it, the drive that it is a
    /// part of, or a device below it.
    pub name: String,
    /// The kind of use.
    pub used: DriveUse,
}

impl fmt::Display for BlockUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.used.says(&self.name))
    }
}

/// The users of a block device of this machine, by any path to it: mounts, swap, devices built on
/// it or on its partitions (md, device mapper, loop devices), the devices it is part of or built
/// on, and exclusive holds in the kernel. Empty: no known use, or the path is not a block device.
pub fn used_by(root: &FsRoot, path: &Path) -> Result<Vec<BlockUse>, FsError> {
    match kernel_name(path) {
        Some(name) => used_by_name(root, &name, path),
        None => Ok(Vec::new()),
    }
}

/// The same of a device by the kernel's name, whose node has this path if it has one.
fn used_by_name(root: &FsRoot, name: &str, path: &Path) -> Result<Vec<BlockUse>, FsError> {
    let mut found = known_uses(root, name)?;
    // A device that is only marked as a member may be in use by something the kernel does not list,
    // such as a ZFS pool.
    let is_known = |one: &BlockUse| !matches!(one.used, DriveUse::Member { .. });
    if !found.iter().any(is_known) && is_held(path) {
        found.push(BlockUse { name: name.to_owned(), used: DriveUse::Kernel });
    }
    if let Some(of) = efi_system(root, name)? {
        found.push(BlockUse { name: of, used: DriveUse::EfiSystem });
    }
    Ok(found)
}

/// Returns the uses of a device that are known without opening it, by the kernel's name.
fn known_uses(root: &FsRoot, name: &str) -> Result<Vec<BlockUse>, FsError> {
    let uses = Uses::read(root)?;
    let mut look = Look { root, uses: &uses, seen: BTreeSet::new(), found: Vec::new() };
    look.whole(name, None)?;
    look.twins(name)?;
    Ok(look.found)
}

/// Returns the device itself if it is an EFI system partition.
fn efi_system(root: &FsRoot, name: &str) -> Result<Option<String>, FsError> {
    let is_part = root.exists(&format!("{BLOCK}/{name}/partition"));
    Ok((is_part && signatures::is_efi_system(root, name)?).then(|| name.to_owned()))
}

/// Whether a block device is held exclusively: by a file system, an array, swap, a ZFS pool. An
/// unresponsive one counts as held; one that cannot be opened for another reason does not.
pub fn is_held(path: &Path) -> bool {
    answering(&[path.to_owned()]).is_empty() || is_held_now(path)
}

/// The error of a block device that a step is about to give away or overwrite.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "drive-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum BlockError {
    /// Somebody uses it.
    #[error("{} is in use: {by}", path.display())]
    InUse { path: PathBuf, by: String },
    /// The host could not be read, so nothing is proven.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    File(#[from] FsError),
    /// It is not the intended device.
    #[error("{} is not the drive that was planned: {seen}", path.display())]
    #[strum(to_string = "changed")]
    Other { path: PathBuf, seen: String },
    /// A program to erase it failed.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Command(#[from] CommandError),
    /// Something can still be read from it after it was erased.
    #[error("{} is not blank after it was erased: {left}", path.display())]
    NotBlank { path: PathBuf, left: String },
}

/// The last check before a block device of this machine is given to a guest or unbound: an error if
/// it is in use. A path that is not a block device passes.
pub fn refuse_used(root: &FsRoot, path: &Path) -> Result<(), BlockError> {
    refuse_uses(used_by(root, path)?, path)
}

/// Refuses a device with these uses.
fn refuse_uses(mut uses: Vec<BlockUse>, path: &Path) -> Result<(), BlockError> {
    // Mere member signatures seen by udev or blkid were judged when the change was planned.
    uses.retain(|one| !matches!(one.used, DriveUse::Member { .. }));
    match &uses[..] {
        [] => Ok(()),
        uses => {
            let by: Vec<String> = uses.iter().map(ToString::to_string).collect();
            Err(BlockError::InUse { path: path.to_owned(), by: by.join("; ") })
        }
    }
}

/// The same for every namespace of a PCI function's drives.
pub fn refuse_used_function(root: &FsRoot, bdf: gpuvm_core::bdf::Bdf) -> Result<(), BlockError> {
    for name in root.names(BLOCK)? {
        let is_part = root.exists(&format!("{BLOCK}/{name}/partition"));
        if !is_part && crate::discover::drives::function_of(root, &name)? == Some(bdf) {
            let path = Path::new("/dev").join(&name);
            refuse_uses(used_by_name(root, &name, &path)?, &path)?;
        }
    }
    Ok(())
}

/// A search for the uses of a device.
struct Look<'a> {
    root: &'a FsRoot,
    uses: &'a Uses,
    seen: BTreeSet<String>,
    found: Vec<BlockUse>,
}

impl Look<'_> {
    /// Adds the uses of one device, except by the device that the search came from.
    fn add(&mut self, name: &str, from: Option<&str>) -> Result<(), FsError> {
        for used in self.uses.of(self.root, name)? {
            let is_from =
                matches!(&used, DriveUse::Holder { device, .. } if Some(&**device) == from);
            let one = BlockUse { name: name.to_owned(), used };
            if !is_from && !self.found.contains(&one) {
                self.found.push(one);
            }
        }
        Ok(())
    }

    /// Adds the uses of the same drive by another path to it: without multipath running, each path
    /// of a multipath device is a separate device, and using one means using the others.
    fn twins(&mut self, name: &str) -> Result<(), FsError> {
        let whole = self.drive_of(name)?.unwrap_or_else(|| name.to_owned());
        let known = |name: &str| {
            let word =
                |file: &str| self.root.read(&format!("{BLOCK}/{name}/{file}")).ok().flatten();
            let wwid = word("wwid").or_else(|| word("device/wwid")).filter(|word| !word.is_empty());
            Some((wwid?, word("size")?))
        };
        let Some(this) = known(&whole) else { return Ok(()) };
        let all = self.root.names(BLOCK)?;
        let is_twin = |other: &&String| **other != whole && known(other).as_ref() == Some(&this);
        let twins: Vec<String> = all.iter().filter(is_twin).cloned().collect();
        twins.iter().try_for_each(|twin| self.whole(twin, None))
    }

    /// Adds the uses of a device, of its partitions, of the drive that it is part of, and of the
    /// devices below it.
    fn whole(&mut self, name: &str, from: Option<&str>) -> Result<(), FsError> {
        if !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        self.add(name, from)?;
        for part in partitions(self.root, name)? {
            self.add(&part, from)?;
        }
        let whole = self.drive_of(name)?;
        if let Some(whole) = &whole {
            self.add(whole, from)?;
        }
        for at in std::iter::once(name.to_owned()).chain(whole) {
            self.below(&at)?;
        }
        Ok(())
    }

    /// Adds the uses of the devices below. Other volumes on the same physical volume are not a use
    /// of this one; a file system directly on it is.
    fn below(&mut self, name: &str) -> Result<(), FsError> {
        if let Some(lower) = self.uses.below_loop(name) {
            self.whole(lower, Some(name))?;
        }
        for lower in self.root.names(&format!("{BLOCK}/{name}/slaves"))? {
            if !self.seen.insert(lower.clone()) {
                continue;
            }
            let before = self.found.len();
            self.add(&lower, Some(name))?;
            let whole = self.drive_of(&lower)?;
            if let Some(whole) = &whole {
                self.add(whole, Some(name))?;
            }
            let is_own =
                |one: &BlockUse| matches!(one.used, DriveUse::Mounted { .. } | DriveUse::Swap);
            let mut at = 0;
            self.found.retain(|one| {
                at += 1;
                at <= before || is_own(one)
            });
            for at in std::iter::once(lower).chain(whole) {
                self.below(&at)?;
            }
        }
        Ok(())
    }

    /// The drive that a partition is a part of.
    fn drive_of(&self, name: &str) -> Result<Option<String>, FsError> {
        let Some(list) = self.root.dir(BLOCK)? else { return Ok(None) };
        if !self.root.exists(&format!("{BLOCK}/{name}/partition")) {
            return Ok(None);
        }
        let target = list.link(name)?.unwrap_or_default();
        Ok(target.rsplit('/').nth(1).map(str::to_owned))
    }
}
