//! What is known about NVLinks, stored for when the GPUs are not bound to the NVIDIA driver that
//! reports them.

use crate::discover::fabric::links;
use crate::error::{Error, Result};
use crate::files::{make_dir, write};
use crate::fsroot::FsRoot;
use crate::world::World;
use std::path::Path;

/// Stores NVML's report on NVLinks before a change unbinds GPUs from the NVIDIA driver; `again`:
/// even if it was stored since the last boot. A failure is only a warning, because nothing depends
/// on it now. Returns whether something was written.
pub fn keep(again: bool, world: &World) -> Result<bool> {
    let Some(text) = links::to_keep(&FsRoot::live()?, again)? else { return Ok(false) };
    let file = Path::new(links::PATH);
    let dir = file.parent().unwrap_or(Path::new("/"));
    let written =
        make_dir(dir).map_err(Error::from).and_then(|()| write(file, true, text.as_bytes()));
    if let Err(error) = &written {
        world.warning(&format!("NVLinks are not kept in {}: {error}", file.display()));
    }
    Ok(written.is_ok())
}
