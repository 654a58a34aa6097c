//! The remembered health of GPUs, for when the NVIDIA driver does not have them.

use crate::discover::health::{FILE, to_keep};
use crate::error::{Error, Result};
use crate::files;
use crate::fsroot::FsRoot;
use crate::world::World;
use std::path::Path;

/// Stores NVML's report on the health of GPUs, before a change unbinds some from the NVIDIA driver
/// and once it has them back. A failure is only a warning: the GPUs then count as not checked.
pub fn keep(world: &World) -> Result<()> {
    let root = FsRoot::live()?;
    let found = to_keep(&root)?;
    for note in found.notes {
        world.warning(&format!("{note}, and nothing is written over it"));
    }
    if let Some(text) = found.text
        && let Err(error) = write(&root, &text)
    {
        world.warning(&format!("the health of GPUs is not kept in /{FILE}: {error}"));
    }
    Ok(())
}

/// Writes the file atomically.
pub fn write(root: &FsRoot, text: &str) -> Result<()> {
    let file = root.path().join(FILE);
    files::make_dir(file.parent().unwrap_or(Path::new("/"))).map_err(Error::from)?;
    files::write(&file, true, text.as_bytes())
}
