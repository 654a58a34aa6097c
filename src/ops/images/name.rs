//! The name of an image that is given none.

use crate::error::{Result, usage};
use crate::image::ImageName;
use std::path::Path;

/// Endings of file names that are not part of an image's name.
const ENDINGS: [&str; 4] = [".qcow2", ".img", ".raw", ".qcow"];

/// The image's name, derived from the file's.
pub(super) fn default_name(file: &Path) -> Result<ImageName> {
    let own = file.file_name().unwrap_or_default().to_string_lossy();
    let stem = ENDINGS.iter().find_map(|ending| own.strip_suffix(ending)).unwrap_or(&own);
    ImageName::new(stem).map_err(|error| usage(error.to_string(), "--name NAME names the image"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_files_without_its_ending() {
        for (file, name) in [
            ("/x/debian-13.qcow2", "debian-13"),
            ("noble.img", "noble"),
            ("ubuntu-24.04", "ubuntu-24.04"),
            ("a.b.raw", "a.b"),
        ] {
            assert_eq!(default_name(Path::new(file)).unwrap().as_str(), name);
        }
        for bad in ["..", ".raw", "a b.img", "/", "\u{fc}.img"] {
            assert!(default_name(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
