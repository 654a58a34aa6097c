//! The stored facts about NVLinks, for when the GPUs are not bound to the NVIDIA driver that
//! reports them.

use crate::discover::fabric::links;
use crate::error::{Error, Result, coded};
use crate::files::{make_dir, refuse_link, write};
use crate::fsroot::FsRoot;
use crate::world::World;
use gpuvm_core::shell::word;
use std::path::Path;

/// Stores NVML's report on NVLinks before a change unbinds GPUs from the NVIDIA driver; `again`:
/// even if it was stored since the last boot. A failure is only a warning, because nothing depends
/// on it now. Returns whether something was written.
pub fn keep(again: bool, world: &World) -> Result<bool> {
    let Some(text) = links::to_keep(&FsRoot::live()?, again)? else { return Ok(false) };
    let file = Path::new(links::PATH);
    if again {
        refuse_foreign(&FsRoot::live()?)?;
    } else if refuse_foreign(&FsRoot::live()?).is_err() {
        // The host's notes name it.
        return Ok(false);
    }
    let dir = file.parent().unwrap_or(Path::new("/"));
    let written =
        make_dir(dir).map_err(Error::from).and_then(|()| write(file, true, text.as_bytes()));
    if let Err(error) = &written {
        world.warning(&format!("NVLinks are not kept in {}: {error}", file.display()));
    }
    Ok(written.is_ok())
}

/// Refuses to replace a file that this gpuvm did not write: a newer one's, one of others, a link.
pub(crate) fn refuse_foreign(root: &FsRoot) -> Result<()> {
    let shown = Path::new("/").join(links::PATH);
    refuse_link(&shown)?;
    links::refuse_foreign(root).map_err(|error| {
        let file = word(links::PATH);
        let hint = format!("`mv {file} {file}.old` puts it away");
        coded((&error).into(), error.to_string(), hint)
    })
}
