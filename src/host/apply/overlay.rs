//! Images over others: the guest's writes since are in the upper one alone.

use crate::input::open_regular;
use gpuvm_core::domain::DomainXml;
use gpuvm_core::domain::disk_change::path_of;
use gpuvm_core::image::{below, is_untouched as has_no_content};
use std::path::{Path, PathBuf};

/// Whether an image of this machine has no content of its own, so that it shows the image below it;
/// false: it has, or it cannot be read.
pub fn is_untouched(image: &Path) -> bool {
    open_regular(image).is_ok_and(|mut image| has_no_content(&mut image).unwrap_or(false))
}

/// Returns a disk of definition `now` that is an overlay on another file, has content of its own, and is
/// not in the definition `before`: returning to that definition loses the data written.
pub(super) fn written_since(now: &str, before: &str) -> Option<PathBuf> {
    let [now, before] = [now, before].map(DomainXml::parse);
    let files = |xml: &DomainXml| xml.disks().filter_map(path_of).collect::<Vec<_>>();
    let (now, before) = (files(&now.ok()?), files(&before.ok()?));
    let is_over = |path: &Path| {
        let mut image = open_regular(path).ok()?;
        Some(!below(&mut image).ok()?.is_empty())
    };
    let new = now.into_iter().filter(|path| !before.contains(path)).map(PathBuf::from);
    let mut new = new.filter(|path| is_over(path).unwrap_or(false));
    new.find(|path| !is_untouched(path))
}
