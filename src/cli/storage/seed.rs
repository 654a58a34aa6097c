//! The seed: the volume that cloud-init reads a guest's first settings from.

use super::{Disks, Place};

/// Adds the guest's seed where it gets one.
pub(super) fn add(
    _place: &Place<'_>,
    _is_made_of_image: bool,
    _disks: &mut Disks,
) -> anyhow::Result<()> {
    Ok(())
}
