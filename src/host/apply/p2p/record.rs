//! The ports that gpuvm has set since the host started, and the guests that need them. Registers of
//! ports are lost at a restart of the host, and so is this memory.

use crate::fsroot::FsRoot;
use gpuvm_core::bdf::Bdf;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// The state of a port that gpuvm has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// It has the value that was written.
    Set,
    /// It has the value before: a reset of the port has cleared the bit.
    Lost,
    /// It has a value that gpuvm has not written.
    Changed,
    /// Another device is at the address.
    Replaced,
}

/// A file for each port; writable by root only.
pub const DIR: &str = "run/gpuvm/p2p";

/// What gpuvm has written to a port, and for whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRecord {
    /// The port.
    pub port: Bdf,
    /// Vendor and device id: another device at the address is not the one that was set.
    pub ids: (u16, u16),
    /// ACS control before.
    pub was: u16,
    /// ACS control as written.
    pub set: u16,
    /// UUIDs of the guests that need it.
    pub guests: BTreeSet<String>,
}

impl PortRecord {
    /// Judges the port by its device's ids and its ACS control now.
    pub fn state(&self, ids: (u16, u16), now: u16) -> PortState {
        match now {
            _ if ids != self.ids => PortState::Replaced,
            now if now == self.set => PortState::Set,
            now if now == self.was => PortState::Lost,
            _ => PortState::Changed,
        }
    }

    /// Reads the record of a port; `None` if there is none, or others than root may have written
    /// it.
    pub fn read(root: &FsRoot, port: Bdf) -> Option<PortRecord> {
        let file = root.path().join(DIR).join(format!("{port}.json"));
        let is_roots = |at: &Path| {
            let meta = at.symlink_metadata();
            meta.is_ok_and(|meta| {
                !meta.is_symlink()
                    && (!root.is_live() || meta.uid() == 0 && meta.mode() & 0o022 == 0)
            })
        };
        if !file.ancestors().take(3).all(is_roots) {
            return None;
        }
        let text = root.read(&format!("{DIR}/{port}.json")).ok().flatten()?;
        serde_json::from_str::<PortRecord>(&text).ok().filter(|record| record.port == port)
    }

    /// Writes it, so that a kill leaves the old one or the new one.
    pub fn write(&self, root: &FsRoot) -> io::Result<()> {
        let dir = root.path().join(DIR);
        DirBuilder::new().recursive(true).mode(0o755).create(&dir)?;
        let new = dir.join(format!(".{}.{}", self.port, std::process::id()));
        let mut file = File::create(&new)?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(serde_json::to_string(self)?.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(new, dir.join(format!("{}.json", self.port)))
    }

    /// Removes the record of a port, if there is one.
    pub fn remove(root: &FsRoot, port: Bdf) -> io::Result<()> {
        match std::fs::remove_file(root.path().join(DIR).join(format!("{port}.json"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

/// Returns the records of all ports that gpuvm has set.
pub fn records(root: &FsRoot) -> Vec<PortRecord> {
    let names = root.names(DIR).unwrap_or_default();
    let ports = names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok());
    ports.filter_map(|port| PortRecord::read(root, port)).collect()
}

/// Returns the ports that gpuvm has set, with the UUIDs of their guests.
pub fn owners(root: &FsRoot) -> BTreeMap<Bdf, BTreeSet<String>> {
    records(root).into_iter().map(|record| (record.port, record.guests)).collect()
}
