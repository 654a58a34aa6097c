//! What netplan makes of its files, asked of netplan itself, in a directory of its own.

use super::HostNetError;
use crate::apply::array::output;
use crate::discover::manager::NETPLAN;
use gpuvm_core::hostnet::units::Unit;
use nix::unistd::geteuid;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Where what lives until the next boot lies, and only root writes.
const RUN: &str = "/run";
/// How long netplan may take, in seconds.
const GENERATE_S: u64 = 60;
/// Where systemd-networkd's units are, those first that hide others of the same name.
const UNITS: [&str; 4] = [
    "etc/systemd/network",
    "run/systemd/network",
    "usr/lib/systemd/network",
    "lib/systemd/network",
];
/// Where netplan puts what NetworkManager is to do.
const NM: &str = "run/NetworkManager/system-connections";
/// Begins the name of what netplan makes.
const OURS: &str = "10-netplan-";

/// What netplan makes.
#[derive(Debug)]
pub struct Made {
    /// systemd-networkd's units, with those of the host that are not netplan's.
    pub units: Vec<Unit>,
    /// Files of NetworkManager's.
    pub nm: Vec<String>,
}

/// What netplan makes of the host's files and of one more, given by name and text; of a file of the same name the given
/// one counts.
pub fn units(more: Option<(&str, &str)>) -> Result<Made, HostNetError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| HostNetError::File { path, source }
    };
    let dir = private_directory()?;
    for from in NETPLAN {
        let to = dir.path().join(from);
        DirBuilder::new().recursive(true).mode(0o700).create(&to).map_err(failed(&to))?;
        for (name, text) in files(&Path::new("/").join(from), ".yaml")? {
            if more.is_none_or(|(more, _)| more != name) {
                write_private(&to.join(&name), &text).map_err(failed(&to))?;
            }
        }
    }
    if let Some((name, text)) = more {
        let path = dir.path().join("run/netplan").join(name);
        write_private(&path, text).map_err(failed(&path))?;
    }
    let root = dir.path().to_string_lossy();
    output(&["netplan", "generate", "--root-dir", &root], GENERATE_S)?;
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for from in UNITS {
        let of_host = files(&Path::new("/").join(from), "")?.into_iter();
        let of_host =
            of_host.filter(|(name, _)| from != "run/systemd/network" || !name.starts_with(OURS));
        let new = if from == "run/systemd/network" {
            files(&dir.path().join(from), "")?
        } else {
            Vec::new()
        };
        for (name, text) in of_host.chain(new) {
            all.entry(name).or_insert(text);
        }
    }
    let is_unit = |name: &str| name.ends_with(".network") || name.ends_with(".netdev");
    let units = all.iter().filter(|(name, _)| is_unit(name));
    let nm = files(&dir.path().join(NM), "")?.into_iter().map(|(name, _)| name).collect();
    Ok(Made { units: units.map(|(name, text)| Unit::read(name, text)).collect(), nm })
}

/// A directory that nobody else enters: netplan's files hold keys of networks, and what netplan makes of them is readable
/// by all. Root's lies below /run, where no caller's TMPDIR leads and no other user can write.
fn private_directory() -> Result<tempfile::TempDir, HostNetError> {
    let below = if geteuid().is_root() { PathBuf::from(RUN) } else { std::env::temp_dir() };
    let mut builder = tempfile::Builder::new();
    let dir = builder.prefix("gpuvm-netplan-").permissions(Permissions::from_mode(0o700));
    dir.tempdir_in(&below).map_err(|source| HostNetError::File { path: below, source })
}

/// Writes a new file that only its owner reads.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut new = OpenOptions::new();
    new.write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())?;
    crate::trace::wrote(path);
    Ok(())
}

/// The files of a directory whose names end so, with their texts; empty where it is not there.
fn files(dir: &Path, end: &str) -> Result<Vec<(String, String)>, HostNetError> {
    let failed = |source| HostNetError::File { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(end) && entry.path().is_file() {
            let bytes = fs::read(entry.path()).map_err(failed)?;
            files.push((name, String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    Ok(files)
}
