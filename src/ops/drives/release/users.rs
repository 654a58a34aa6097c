//! Users of an array, and properties that could not be restored.

use super::super::error::ArrayVerbError;
use crate::discover::arrays::{Array, layout};
use crate::discover::device_users::{Mount, Uses};
use crate::discover::node::kernel_name;
use crate::discover::openers::{Sought, openers};
use crate::error::{Coded as _, Result};
use crate::fsroot::FsRoot;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::file_users::Uses as Disks;
use crate::shell::word;
use crate::topology::DriveUse;
use std::collections::BTreeSet;
use std::path::Path;

/// An array with its known users.
pub(super) struct Found<'a> {
    /// This machine.
    pub root: &'a FsRoot,
    /// The array.
    pub array: &'a Array,
    /// The host's uses.
    pub uses: &'a Uses,
    /// Where the array is mounted.
    pub mounts: &'a [Mount],
}

impl Found<'_> {
    /// Refuses an array that the host needs to boot.
    pub fn refuse_system(&self) -> Result<()> {
        let name = &self.array.name;
        let names = std::iter::once(name).chain(&self.array.partitions);
        for name in names {
            let uses = self.uses.of(self.root, name)?;
            if let Some(used) = uses.iter().find(|used| used.is_system()) {
                return Err(ArrayVerbError::OfSystem {
                    name: self.array.name.clone(),
                    why: used.says(name),
                }
                .hint("the host does not boot without it, so it is never released"));
            }
        }
        Ok(())
    }

    /// Returns properties of the array that could not be restored.
    pub fn shape(&self) -> Vec<String> {
        let Array { name, level, metadata, members, wanted, action, partitions, .. } = self.array;
        let mut reasons = Vec::new();
        if !metadata.starts_with(|c: char| c.is_ascii_digit()) {
            reasons.push(format!(
                "{name} has superblocks of kind `{metadata}`, which are not restored"
            ));
        }
        if members.len() != *wanted || members.iter().any(|(slot, _)| slot.is_none()) {
            reasons.push(format!(
                "{name} has {} of {wanted} members (including spares and failed): repair it first",
                members.len()
            ));
        }
        if !matches!(action.as_str(), "" | "idle" | "frozen") {
            reasons.push(format!("{name} is under {action}, which would be broken off"));
        }
        if let Err(number) = layout(level, self.array.layout) {
            reasons.push(format!("{name} has layout {number}, which is not known"));
        }
        if !partitions.is_empty() {
            reasons.push(format!(
                "{name} has partitions ({}), which are not restored",
                partitions.join(", ")
            ));
        }
        reasons
    }

    /// Returns its uses by the host.
    pub fn users(&self, unmount: bool) -> Result<Vec<String>> {
        let name = &self.array.name;
        let mut reasons = Vec::new();
        for used in self.uses.of(self.root, name)? {
            match &used {
                DriveUse::Mounted { .. } if unmount => {}
                used => reasons.push(used.says(name)),
            }
        }
        for mount in self.mounts.iter().filter(|mount| mount.root != "/") {
            reasons.push(format!("{} of it is mounted at {}", mount.root, mount.at));
        }
        let below = |path: &str| self.mount_above(Path::new(path)).is_some();
        for other in self.uses.mounts().iter().filter(|other| below(&other.at)) {
            if !self.mounts.iter().any(|own| own.at == other.at) {
                reasons.push(format!("{} is mounted at {}, below it", other.source, other.at));
            }
        }
        let swaps = self.root.read("proc/swaps")?.unwrap_or_default();
        let files = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        reasons
            .extend(files.filter(|file| below(file)).map(|file| format!("{file} is swap space")));
        for device in self.root.names("sys/class/block")? {
            let backing = self.root.read(&format!("sys/class/block/{device}/loop/backing_file"))?;
            if let Some(file) = backing.filter(|file| below(file)) {
                reasons.push(format!("{file} is loop device {device}"));
            }
        }
        Ok(reasons)
    }

    /// The mount point of the array that a path is below.
    fn mount_above(&self, path: &Path) -> Option<&Mount> {
        self.mounts.iter().find(|mount| path.starts_with(&mount.at))
    }

    /// Guests that have a disk on it, or one of its members.
    pub fn domains(&self, hypervisor: &dyn Hypervisor) -> Result<Vec<String>> {
        let disks = Disks::read(hypervisor)?;
        let members: BTreeSet<&str> =
            self.array.members.iter().map(|(_, member)| member.as_str()).collect();
        let mut reasons = Vec::new();
        for (domain, files) in &disks.files() {
            for file in files {
                let real = file.canonicalize().unwrap_or_else(|_| file.clone());
                let is_device = kernel_name(file).is_some_and(|device| {
                    device == self.array.name || members.contains(device.as_str())
                });
                if is_device || self.mount_above(&real).is_some() {
                    reasons.push(format!("domain `{domain}` has {} as a disk", file.display()));
                }
            }
        }
        for pool in hypervisor.storage().pools()?.into_iter().filter(|pool| pool.active) {
            let path = pool.path.unwrap_or_default();
            let real = path.canonicalize().unwrap_or(path);
            if self.mount_above(&real).is_some() {
                let name = &pool.name;
                reasons.push(format!(
                    "pool `{name}` is active on {}: `virsh pool-destroy {name}` stops it and \
                     leaves its files",
                    real.display(),
                    name = word(name)
                ));
            }
        }
        Ok(reasons)
    }

    /// Processes that have it, or something on it, open.
    pub fn processes(&self) -> Result<Vec<String>> {
        let name = &self.array.name;
        let number = self.root.read(&format!("sys/class/block/{name}/dev"))?.unwrap_or_default();
        let path = format!("/dev/{name}");
        let mut sought = vec![Sought::Device(&number, &path)];
        sought.extend(self.mounts.iter().map(|m| Sought::FileSystem(&m.number, &m.at)));
        let found = openers(self.root, &sought)?.into_iter().map(|(at, opener)| match at {
            0 => format!("{opener} has {path} open"),
            at => format!("{opener} has something open on {}", self.mounts[at - 1].at),
        });
        Ok(found.collect())
    }
}
