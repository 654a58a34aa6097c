//! Renewing the initramfs as a step of a change, or by hand after it. Refused where no known
//! program makes it, before anything is changed.

use crate::apply::array::ArrayStep;
use crate::apply::bind::boot::COPIED;
use crate::apply::{FileStep, Step};
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
    Ok(ArrayStep::UpdateInitramfs.into())
}

/// Describes the command that renews an initramfs of this machine whose copies are named by these
/// words; `has_option`: whether the verb does it with --initramfs.
pub fn renewed_by(copies: &str, has_option: bool) -> Result<String> {
    Ok(match initramfs_tool(&FsRoot::live()?).map(InitramfsTool::command) {
        Some(command) if has_option => {
            format!("the initramfs {copies}: `{command}` renews it (--initramfs runs it)")
        }
        Some(command) => format!("the initramfs {copies}: `{command}` renews it"),
        None => format!(
            "if this machine has an initramfs, it {copies}: renew it with the program that makes \
             it; gpuvm knows update-initramfs, dracut and mkinitcpio"
        ),
    })
}

/// Describes the command that renews the initramfs after steps, as [`renewed_by`]; `None` if they
/// change no file that it has a copy of.
pub fn outdated(steps: &[Step], has_option: bool) -> Result<Option<String>> {
    let is_copied = |path: &Path| COPIED.iter().any(|file| Path::new("/").join(file) == path);
    let has_copy =
        |step: &Step| matches!(step, Step::File(FileStep::Set { path, .. }) if is_copied(path));
    let is_older = steps.iter().any(has_copy);
    is_older.then(|| renewed_by("has its own copies of these files", has_option)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_it_has_copies_of_make_it_older() {
        let step = |path: &str| {
            let (path, text) = (Path::new("/").join(path), Some(String::new()));
            Step::File(FileStep::Set { path, text, was: None, program: false, kept: false })
        };
        let unit = step("etc/systemd/system/gpuvm-vfio.service");
        assert_eq!(outdated(std::slice::from_ref(&unit), true).unwrap(), None);
        for file in COPIED {
            for has_option in [false, true] {
                let advice = outdated(&[unit.clone(), step(file)], has_option).unwrap().unwrap();
                let knows = initramfs_tool(&FsRoot::live().unwrap()).is_some();
                assert!(advice.contains("has its own copies of these files: "), "{advice}");
                assert_eq!(
                    advice.contains("(--initramfs runs it)"),
                    has_option && knows,
                    "{advice}"
                );
                assert_eq!(advice.contains("with the program that makes it"), !knows, "{advice}");
            }
        }
    }
}
