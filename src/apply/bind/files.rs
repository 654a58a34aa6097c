//! Files of configuration that are ours alone: complete or not there.

use super::BindError;
use std::fs::{DirBuilder, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

/// Puts a file with this text where another may be, or removes it; directories that are made for it go with it when
/// they are empty.
pub fn set_file(path: &Path, text: Option<&str>) -> Result<(), BindError> {
    set(path, text).map_err(|source| BindError::Configuration { path: path.to_owned(), source })
}

/// Does it.
fn set(path: &Path, text: Option<&str>) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let Some(text) = text else {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // A drop-in directory says nothing without its files; one that holds others' stays, as it is not empty.
        if dir.extension().is_some_and(|end| end == "d") && is_drop_in(dir) {
            let _ = std::fs::remove_dir(dir);
        }
        return Ok(());
    };
    DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    std::fs::File::open(dir)?.sync_all()
}

/// Whether a directory belongs to one unit of systemd: `sysinit.target.d`, not `modprobe.d`.
fn is_drop_in(dir: &Path) -> bool {
    let name = dir.file_stem().map(Path::new);
    name.and_then(Path::extension).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_comes_and_goes_with_its_own_directory_only() {
        let root = tempfile::tempdir().unwrap();
        let modprobe = root.path().join("modprobe.d");
        let drop_in = root.path().join("sysinit.target.d");
        for dir in [&modprobe, &drop_in] {
            let file = dir.join("gpuvm-a.conf");
            set_file(&file, None).unwrap();
            for text in ["one\n", "two\n"] {
                set_file(&file, Some(text)).unwrap();
                assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
            }
            assert_eq!(std::fs::read_dir(dir).unwrap().count(), 1);
        }
        for dir in [&modprobe, &drop_in] {
            set_file(&dir.join("gpuvm-a.conf"), None).unwrap();
        }
        assert!(modprobe.is_dir() && !drop_in.exists());
    }
}
