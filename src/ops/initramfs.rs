//! Renewing the initramfs as a step of a change, or by hand after it. Refused where no known program
//! makes it, before anything is changed.

use crate::apply::Step;
use crate::apply::array::ArrayStep;
use crate::apply::bind::boot::COPIED;
use crate::discover::facts::boot::initramfs_tool;
use crate::error::{Coded, Result};
use crate::fsroot::FsRoot;
use gpuvm_core::topology::facts::InitramfsTool;
use std::path::Path;

/// The reason an initramfs is not renewed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "initramfs-")]
pub enum InitramfsError {
    /// No known program makes it.
    #[error("this host has no known program that makes its initramfs")]
    NoTool,
}

impl Coded for InitramfsError {}

/// Returns the step that renews the initramfs of every kernel of this machine.
pub fn renewal() -> Result<Step> {
    if initramfs_tool(&FsRoot::live()?).is_none() {
        return Err(InitramfsError::NoTool.hint(
            "run it without --initramfs, then renew the initramfs with what makes it here; gpuvm \
             knows update-initramfs, dracut and mkinitcpio",
        ));
    }
    Ok(Step::Array(ArrayStep::UpdateInitramfs))
}

/// Says what renews the initramfs after steps; none: they change no file that it has a copy of.
pub fn outdated(steps: &[Step]) -> Result<Option<String>> {
    let is_copied = |path: &Path| COPIED.iter().any(|file| Path::new("/").join(file) == path);
    let has_copy = |step: &Step| matches!(step, Step::SetFile { path, .. } if is_copied(path));
    if !steps.iter().any(has_copy) {
        return Ok(None);
    }
    let tool = initramfs_tool(&FsRoot::live()?).unwrap_or(InitramfsTool::UpdateInitramfs);
    let command = tool.command();
    Ok(Some(format!("the initramfs has its own copies of these files: `{command}` renews them")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_it_has_copies_of_make_it_older() {
        let step = |path: &str| {
            let (path, text) = (Path::new("/").join(path), Some(String::new()));
            Step::SetFile { path, text, was: None, program: false, kept: false }
        };
        let unit = step("etc/systemd/system/gpuvm-vfio.service");
        assert_eq!(outdated(std::slice::from_ref(&unit)).unwrap(), None);
        for file in COPIED {
            let told = outdated(&[unit.clone(), step(file)]).unwrap().unwrap();
            assert!(told.ends_with("` renews them"), "{told}");
        }
    }
}
