//! Renewing the initramfs as a step of a change. Refused where no known program makes it, before
//! anything is changed.

use crate::apply::Step;
use crate::apply::array::ArrayStep;
use crate::discover::facts::boot::initramfs_tool;
use crate::error::{Coded, Result};
use crate::fsroot::FsRoot;

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
