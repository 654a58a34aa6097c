//! The data volume of a guest, where the replaced tool put it: a file below /raid, which is the host's data array.

use super::super::args::DataSize;
use super::super::error::hinted;
use super::super::render::path_text;
use super::{Disks, Place};
use crate::apply::Step;
use crate::domain::guest::{Disk, DiskFormat, DiskKind, Made, Role};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// What the replaced tool printed for `--volGB 0`; scripts look for it.
pub const NONE: &str = "WARNING: Host Data volume not setup, no VM data volume will be created";

/// Where the host's data array is mounted.
const ARRAY: &str = "/raid";
/// The directory of the volumes on it.
const DIRECTORY: &str = "dgx-kvm";

/// Adds the guest's data disk where it gets one.
pub(super) fn add(place: &Place<'_>, disks: &mut Disks) -> anyhow::Result<()> {
    let bytes = match (place.args.data_size, place.args.vol_gb) {
        (Some(DataSize::Of(size)), _) => size.kib() * 1024,
        (None, Some(gigabytes)) if gigabytes > 0 => gigabytes
            .checked_mul(1_000_000_000)
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .ok_or_else(|| hinted(format!("a data volume of {gigabytes} GB is too large"), ""))?,
        (None, Some(_)) => {
            disks.warnings.push(NONE.to_owned());
            return Ok(());
        }
        _ => return Ok(()),
    };
    on(Path::new(ARRAY), bytes, place.planned.name.as_str(), disks)
}

/// Adds a data disk on an array.
fn on(array: &Path, bytes: u64, name: &str, disks: &mut Disks) -> anyhow::Result<()> {
    let array_text = array.display();
    if !is_mount_point(array) {
        return Err(hinted(
            format!("no data volume can be made: {array_text} is not a mounted file system"),
            format!("mount the data array on {array_text}, or leave --volGB out"),
        ));
    }
    let directory = array.join(DIRECTORY);
    let path = directory.join(format!("vol-{name}"));
    let mut steps = Vec::new();
    match directory.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            steps.push(Step::CreateDirectory { path: directory });
        }
        // Anything else wrong with it is told when the volume is made.
        _ => {}
    }
    let text = path_text(&path)?;
    steps.push(Step::CreateDisk { path, bytes });
    let disk = Disk::new(&text, DiskFormat::Raw, DiskKind::File);
    disks.make(steps, disk, Made { role: Role::Data, path: text, volume: None });
    Ok(())
}

/// Whether a file system is mounted on a directory.
fn is_mount_point(directory: &Path) -> bool {
    let device = |path: &Path| path.metadata().map(|meta| meta.dev()).ok();
    let above = directory.parent().and_then(device);
    directory.is_dir() && device(directory).is_some() && device(directory) != above
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_disk_is_made_where_no_array_is_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let mut disks = Disks::default();
        let error = on(dir.path(), 1, "a", &mut disks).unwrap_err().to_string();
        assert!(error.contains("is not a mounted file system"), "{error}");
        assert!(on(&dir.path().join("absent"), 1, "a", &mut disks).is_err());
        assert!(disks.steps.is_empty() && disks.disks.is_empty());
    }

    #[test]
    fn a_disk_lies_where_the_replaced_tool_put_it() {
        // /proc is mounted on every machine that runs this.
        let mut disks = Disks::default();
        on(Path::new("/proc"), 7_000_000_000, "a-1g0", &mut disks).unwrap();
        assert_eq!(disks.made[0].path, "/proc/dgx-kvm/vol-a-1g0");
        let made =
            Step::CreateDisk { path: disks.made[0].path.clone().into(), bytes: 7_000_000_000 };
        let directory = Step::CreateDirectory { path: "/proc/dgx-kvm".into() };
        assert_eq!(disks.steps, [directory, made]);
    }
}
