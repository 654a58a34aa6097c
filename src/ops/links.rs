//! What is known of NVLinks, kept for when the driver that tells of them does not have the GPUs.

use crate::discover::fabric::links;
use crate::error::{Error, Result};
use crate::files::write;
use crate::fsroot::FsRoot;
use crate::world::World;
use std::path::Path;

/// Keeps what NVML says of NVLinks, before a change takes GPUs from the driver that tells it; `again`: also what was kept
/// since the last boot. What cannot be kept is a warning: nothing depends on it now. Returns whether something was
/// written.
pub fn keep(again: bool, world: &World) -> Result<bool> {
    let Some(text) = links::to_keep(&FsRoot::live()?, again)? else { return Ok(false) };
    let file = Path::new(links::PATH);
    let dir = file.parent().unwrap_or(Path::new("/"));
    let written = std::fs::create_dir_all(dir)
        .map_err(Error::from)
        .and_then(|()| write(file, true, text.as_bytes()));
    if let Err(error) = &written {
        world.warning(&format!("NVLinks are not kept in {}: {error}", file.display()));
    }
    Ok(written.is_ok())
}
