//! The vGPU types that gpuvm has set since the host started: a type of the same number that another
//! has set is not cleared. Types are lost at a restart of the host, and so is this memory.

use crate::fsroot::FsRoot;
use gpuvm_core::bdf::Bdf;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};

/// A file for each function with the number of its type; writable by root only.
const DIR: &str = "run/gpuvm/vgpu-types";

/// Remembers a type that was set. Where that fails, the type stays at the removal of its guest,
/// which says so.
pub(super) fn remember(root: &FsRoot, vf: Bdf, number: u32) {
    let _ = keep(root, vf, number);
}

fn keep(root: &FsRoot, vf: Bdf, number: u32) -> io::Result<()> {
    let dir = root.path().join(DIR);
    DirBuilder::new().recursive(true).mode(0o755).create(&dir)?;
    let new = dir.join(format!(".{vf}.{}", std::process::id()));
    std::fs::write(&new, format!("{number}\n"))?;
    std::fs::set_permissions(&new, Permissions::from_mode(0o644))?;
    std::fs::rename(new, dir.join(vf.to_string()))
}

/// Forgets the type of a function that is cleared.
pub(super) fn forget(root: &FsRoot, vf: Bdf) {
    let _ = std::fs::remove_file(root.path().join(DIR).join(vf.to_string()));
}

/// Whether gpuvm has set this type of a function since the host started.
pub fn is_ours(root: &FsRoot, vf: Bdf, number: u32) -> bool {
    let file = root.path().join(DIR).join(vf.to_string());
    let is_roots = |at: &std::path::Path| {
        let meta = at.symlink_metadata();
        meta.is_ok_and(|meta| {
            !meta.is_symlink() && (!root.is_live() || meta.uid() == 0 && meta.mode() & 0o022 == 0)
        })
    };
    let text = root.read(&format!("{DIR}/{vf}")).ok().flatten();
    file.ancestors().take(3).all(is_roots)
        && text.is_some_and(|text| text.trim().parse() == Ok(number))
}
