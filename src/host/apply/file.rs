//! Atomic writing of files: written beside their place, synced, then renamed. Our own files get the
//! mode of their kind and may be removed; others' files keep their mode, owner and symlinks.

use super::error::BindError;
use crate::input;
use crate::trace;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, fchown};
use std::path::Path;

/// Modes of a file of ours, and of a directory that is made for it.
struct Modes {
    directory: u32,
    file: u32,
}

/// A file that everybody may read.
const PUBLIC: Modes = Modes { directory: 0o755, file: 0o644 };
/// A file that everybody may run.
const PROGRAM: Modes = Modes { directory: 0o755, file: 0o755 };
/// A file readable only by its owner, in a directory of such files.
const PRIVATE: Modes = Modes { directory: 0o700, file: 0o600 };
/// A file readable only by its owner, in a system directory.
const ROOTS: Modes = Modes { directory: 0o755, file: 0o600 };

/// Writes or replaces a file, or removes it; directories made for it are removed with it when
/// empty.
pub fn set_file(path: &Path, text: Option<&str>) -> Result<(), BindError> {
    set(path, text, &PUBLIC).map_err(|source| failed(path, source))
}

/// As [`set_file`], for an executable file.
pub fn set_program(path: &Path, text: Option<&str>) -> Result<(), BindError> {
    set(path, text, &PROGRAM).map_err(|source| failed(path, source))
}

/// As [`set_file`], for a file readable only by its owner, in a directory of such files.
pub fn set_private_file(path: &Path, text: Option<&str>) -> Result<(), BindError> {
    set(path, text, &PRIVATE).map_err(|source| failed(path, source))?;
    if let (None, Some(dir)) = (text, path.parent()) {
        // A directory with other files stays, as it is not empty.
        let _ = fs::remove_dir(dir);
    }
    Ok(())
}

/// As [`set_file`], for a file readable only by its owner, in a system directory.
pub fn set_root_file(path: &Path, text: Option<&str>) -> Result<(), BindError> {
    set(path, text, &ROOTS).map_err(|source| failed(path, source))
}

fn failed(path: &Path, source: io::Error) -> BindError {
    BindError::Configuration { path: path.to_owned(), source }
}

/// Reads a text file; none where it is missing.
pub(super) fn content(path: &Path) -> io::Result<Option<String>> {
    input::state(path)
}

/// Writes or removes a file of ours.
fn set(path: &Path, text: Option<&str>, modes: &Modes) -> io::Result<()> {
    let Some(text) = text else {
        remove(path)?;
        // An empty drop-in directory has no effect and is removed; one with others' files stays, as
        // it is not empty.
        let dir = directory(path);
        if dir.extension().is_some_and(|end| end == "d") && is_drop_in(dir) {
            let _ = fs::remove_dir(dir);
        }
        return Ok(());
    };
    put(path, text, modes.directory, |file| {
        file.set_permissions(Permissions::from_mode(modes.file))
    })
}

/// Writes or removes a file of others; the target of a link is replaced, not the link.
pub(super) fn replace(path: &Path, text: Option<&str>) -> io::Result<()> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let Some(text) = text else { return remove(&real) };
    put(&real, text, PUBLIC.directory, |file| match real.metadata() {
        Ok(there) => {
            fchown(file, Some(there.uid()), Some(there.gid()))?;
            file.set_permissions(there.permissions())
        }
        Err(_) => file.set_permissions(Permissions::from_mode(PUBLIC.file)),
    })
}

/// Writes a file beside its place, sets its access, and renames it.
fn put(
    path: &Path,
    text: &str,
    directory_mode: u32,
    access: impl FnOnce(&fs::File) -> io::Result<()>,
) -> io::Result<()> {
    let dir = directory(path);
    DirBuilder::new().recursive(true).mode(directory_mode).create(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(text.as_bytes())?;
    access(file.as_file())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    trace::wrote(path);
    fs::File::open(dir)?.sync_all()
}

/// Removes a file, unless it is gone.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        removed => {
            removed.iter().for_each(|()| trace::removed(path));
            Ok(())
        }
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
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
                assert_eq!(fs::read_to_string(&file).unwrap(), text);
            }
            assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
        }
        for dir in [&modprobe, &drop_in] {
            set_file(&dir.join("gpuvm-a.conf"), None).unwrap();
        }
        assert!(modprobe.is_dir() && !drop_in.exists());
    }

    #[test]
    fn a_private_file_is_unreadable_for_others_and_goes_with_its_directory() {
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
