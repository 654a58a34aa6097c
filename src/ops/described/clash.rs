//! A disk that two new guests of a file name: the second one would not be made, once the first one
//! is. Those of existing guests are compared with their definitions.

use super::{DescribedGuest, GuestsError};
use crate::error::{Coded as _, Result};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::file_users::Uses;
use std::path::{Path, PathBuf};

/// A disk that is there already, as a file names it.
#[derive(Debug, Clone)]
pub struct NamedDisk {
    /// The option of `create`, without dashes.
    pub option: String,
    /// Its value.
    pub value: String,
    /// The place in the file.
    pub at: String,
}

impl NamedDisk {
    /// Options that name such disks.
    pub const OPTIONS: [&str; 4] = ["disk", "add-disk", "drive", "partition"];

    fn path(&self) -> PathBuf {
        let path = match self.option.as_str() {
            "drive" => Path::new("/dev/disk/by-id").join(&self.value),
            "partition" => Path::new("/dev/disk/by-partuuid").join(&self.value),
            _ => PathBuf::from(&self.value),
        };
        std::path::absolute(&path).unwrap_or(path)
    }
}

/// Refuses guests, of which these are `missing`, that name one disk twice, under any names, or an
/// image over the disk of another.
pub(super) fn refuse_twice(
    guests: &[DescribedGuest],
    missing: &[usize],
    hypervisor: &dyn Hypervisor,
) -> Result<()> {
    let of = |number: usize| guests[number].disks.iter().map(move |disk| (number, disk));
    let all: Vec<(usize, &NamedDisk)> = missing.iter().copied().flat_map(of).collect();
    if all.len() < 2 {
        return Ok(());
    }
    let uses = Uses::read(hypervisor)?;
    for (nth, (number, disk)) in all.iter().enumerate() {
        let before = all[..nth].iter().find_map(|(other, known)| {
            let is = said(&disk.path(), &known.path(), &uses)?;
            Some((other, known, is))
        });
        let Some((other, known, is)) = before else { continue };
        let who = if other == number {
            "this guest".to_owned()
        } else {
            format!("guest `{}`", guests[*other].name)
        };
        let why = format!("{} {is} `{}` of {who} ({})", disk.value, known.option, known.at);
        let hint = "each guest needs its own disk: `gpuvm drive list` shows drives, `cp \
                    --sparse=always FILE COPY` copies an image";
        return Err(GuestsError::Value { at: disk.at.clone(), why }.hint(hint));
    }
    Ok(())
}

/// The relation of one disk to another one; `None` if they are unrelated.
fn said(disk: &Path, other: &Path, uses: &Uses) -> Option<&'static str> {
    let lies =
        |above: &Path, below: &Path| uses.below(above).iter().any(|file| uses.is_same(file, below));
    let is_on =
        |part: &Path, drive: &Path| drive_of(part).is_some_and(|of| uses.is_same(&of, drive));
    if uses.is_same(disk, other) {
        Some("is also")
    } else if lies(disk, other) {
        Some("is an overlay on")
    } else if lies(other, disk) {
        Some("is the backing file of")
    } else if is_on(disk, other) {
        Some("is a partition of")
    } else if is_on(other, disk) {
        Some("is the whole drive of")
    } else {
        None
    }
}

/// The drive of a partition of this machine; `None` if it is none.
fn drive_of(part: &Path) -> Option<PathBuf> {
    let real = part.canonicalize().ok().filter(|real| real.starts_with("/dev"))?;
    let block = Path::new("/sys/class/block").join(real.file_name()?);
    block.join("partition").metadata().ok()?;
    let drive = block.canonicalize().ok()?.parent()?.file_name()?.to_owned();
    Some(Path::new("/dev").join(drive))
}
