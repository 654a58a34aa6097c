//! Files of configuration that are ours alone: complete or not there.

use super::BindError;
use crate::trace;
use std::fs::{DirBuilder, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

/// Puts a file with this text where another may be, or removes it; directories that are made for it go with it when
/// they are empty.
pub fn set_file(path: &Path, text: Option<&str>) -> Result<(), BindError> {
    let modes = Modes { directory: 0o755, file: 0o644 };
    set(path, text, &modes)
        .map_err(|source| BindError::Configuration { path: path.to_owned(), source })
}

/// As [`set_file`], for a file that nobody else may read, in a directory of such files.
pub fn set_private_file(path: &Path, text: Option<&str>) -> Result<(), BindError> {
    let modes = Modes { directory: 0o700, file: 0o600 };
    let done = set(path, text, &modes).map(|()| {
        if let (None, Some(dir)) = (text, path.parent()) {
            // One that holds others stays, as it is not empty.
            let _ = std::fs::remove_dir(dir);
        }
    });
    done.map_err(|source| BindError::Configuration { path: path.to_owned(), source })
}

/// As [`set_file`], for a file that nobody else may read, in a directory that is the system's.
pub fn set_root_file(path: &Path, text: Option<&str>) -> Result<(), BindError> {
    let modes = Modes { directory: 0o755, file: 0o600 };
    set(path, text, &modes)
        .map_err(|source| BindError::Configuration { path: path.to_owned(), source })
}

/// Is who may read a file and a directory that is made for it.
struct Modes {
    /// Mode of the directory.
    directory: u32,
    /// Mode of the file.
    file: u32,
}

/// Does it.
fn set(path: &Path, text: Option<&str>, modes: &Modes) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let Some(text) = text else {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            removed => removed.iter().for_each(|()| trace::removed(path)),
        }
        // A drop-in directory says nothing without its files; one that holds others' stays, as it is not empty.
        if dir.extension().is_some_and(|end| end == "d") && is_drop_in(dir) {
            let _ = std::fs::remove_dir(dir);
        }
        return Ok(());
    };
    DirBuilder::new().recursive(true).mode(modes.directory).create(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(Permissions::from_mode(modes.file))?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    trace::wrote(path);
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

    #[test]
    fn a_private_file_is_read_by_nobody_else_and_goes_with_its_directory() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("history/uuid");
        let (one, two) = (dir.join("1.json"), dir.join("2.json"));
        for file in [&one, &two] {
            set_private_file(file, Some("secret")).unwrap();
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        set_private_file(&one, None).unwrap();
        assert!(two.exists());
        set_private_file(&two, None).unwrap();
        assert!(!dir.exists() && root.path().join("history").is_dir());
    }
}
