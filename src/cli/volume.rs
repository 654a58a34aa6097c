//! The data volume of a guest, where the replaced tool put it: a file below /raid, which is the host's data array.

use super::error::hinted;
use crate::apply::Step;
use crate::domain::guest::{Disk, DiskFormat, DiskKind};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What the replaced tool printed for `--volGB 0`; scripts look for it.
pub const NONE: &str = "WARNING: Host Data volume not setup, no VM data volume will be created";

/// Where the host's data array is mounted.
const ARRAY: &str = "/raid";
/// The directory of the volumes on it.
const DIRECTORY: &str = "dgx-kvm";

/// Is a data volume that can be made.
pub struct Volume {
    /// What makes it.
    pub steps: Vec<Step>,
    /// The file.
    pub path: PathBuf,
    /// It as the guest's disk.
    pub disk: Disk,
}

/// Plans the data volume of a guest; none where none is asked for.
pub fn plan(gigabytes: Option<u64>, name: &str) -> anyhow::Result<Option<Volume>> {
    plan_on(Path::new(ARRAY), gigabytes, name)
}

/// Plans it on an array.
fn plan_on(array: &Path, gigabytes: Option<u64>, name: &str) -> anyhow::Result<Option<Volume>> {
    let Some(gigabytes) = gigabytes.filter(|&gigabytes| gigabytes > 0) else { return Ok(None) };
    let array_text = array.display();
    if !is_mount_point(array) {
        return Err(hinted(
            format!("no data volume can be made: {array_text} is not a mounted file system"),
            format!("mount the data array on {array_text}, or leave --volGB out"),
        ));
    }
    let Some(bytes) = gigabytes.checked_mul(1_000_000_000).filter(|b| i64::try_from(*b).is_ok())
    else {
        return Err(hinted(format!("a data volume of {gigabytes} GB is too large"), ""));
    };
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
    steps.push(Step::CreateDisk { path: path.clone(), bytes });
    let text = path.to_string_lossy().into_owned();
    let disk = Disk { path: text, format: DiskFormat::Raw, kind: DiskKind::File };
    Ok(Some(Volume { steps, path, disk }))
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
    fn no_volume_is_made_where_none_is_asked_for_or_no_array_is_mounted() {
        let dir = tempfile::tempdir().unwrap();
        assert!(plan_on(dir.path(), None, "a").unwrap().is_none());
        assert!(plan_on(dir.path(), Some(0), "a").unwrap().is_none());
        let error = plan_on(dir.path(), Some(1), "a").err().unwrap().to_string();
        assert!(error.contains("is not a mounted file system"), "{error}");
        let absent = dir.path().join("absent");
        assert!(plan_on(&absent, Some(1), "a").is_err());
    }

    #[test]
    fn a_volume_lies_where_the_replaced_tool_put_it() {
        // /proc is mounted on every machine that runs this.
        let volume = plan_on(Path::new("/proc"), Some(7), "a-1g0").unwrap().unwrap();
        assert_eq!(volume.path, Path::new("/proc/dgx-kvm/vol-a-1g0"));
        let made = Step::CreateDisk { path: volume.path.clone(), bytes: 7_000_000_000 };
        let directory = Step::CreateDirectory { path: "/proc/dgx-kvm".into() };
        assert_eq!(volume.steps, [directory, made]);
        assert!(plan_on(Path::new("/proc"), Some(u64::MAX), "a").is_err());
    }
}
