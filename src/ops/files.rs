//! Atomic writing of the caller's files, in a directory that is held meanwhile: the one place where
//! output is written, so that no link of another user leads it elsewhere.

use crate::error::{Class, Coded, Error, Result, classed};
use crate::input;
use crate::pinned_dir::{HeldDir, HeldError};
use gpuvm_core::shell::word;
use nix::unistd::geteuid;
use std::fs::{File, Metadata, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// The reason a file is not written.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "output-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum FileError {
    /// The system refuses to write the file.
    #[error("cannot write {path}")]
    Failed { path: String, source: std::io::Error },
    /// The file to be written is a directory.
    #[error("{shown} is a directory")]
    IsDirectory { shown: String },
    /// The file cannot be written.
    #[error("cannot {what} {shown}: {reason}")]
    Unwritable { what: String, shown: String, reason: String },
    /// The file to be written is a symbolic link.
    #[error("{shown} is a symbolic link")]
    IsLink { shown: String },
    /// The file to be written is not a regular file.
    #[error("{shown} is not a regular file")]
    NotRegular { shown: String },
}

impl Coded for FileError {}

impl FileError {
    /// Makes the error of the system on writing a file.
    pub fn of(path: &Path) -> impl Fn(std::io::Error) -> FileError {
        let path = path.display().to_string();
        move |source| FileError::Failed { path: path.clone(), source }
    }
}

/// Makes a directory, and those above it, as needed.
#[expect(clippy::disallowed_methods, reason = "for a file that is written here")]
pub fn make_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)
}

/// Reads a file of this machine's configuration; none if it is missing. Only regular files are
/// read: others may never end.
pub fn configuration(path: &Path) -> Result<Option<String>> {
    let shown = path.to_string_lossy();
    input::state(path).map_err(|source| match source.kind() {
        ErrorKind::InvalidData => classed(
            Class::System,
            format!("cannot read {shown}: {source}"),
            format!("`ls -l {0}` shows it; `mv {0} {0}.old` puts it away", word(&shown)),
        ),
        _ => {
            Error::Doing { doing: format!("cannot read {shown}"), source: Box::new(source.into()) }
        }
    })
}

/// Refuses to replace a link in the place of a file of gpuvm, whatever it leads to.
pub fn refuse_link(file: &Path) -> Result<()> {
    if !file.is_symlink() {
        return Ok(());
    }
    let shown = file.display().to_string();
    let hint = format!("`ls -l {0}` shows it; `mv {0} {0}.old` puts it away", word(&shown));
    Err(FileError::IsLink { shown }.hint(hint))
}

/// Writes a file that this program may regenerate, atomically. An existing file must begin with
/// `mark` and be whole by `is_whole`, so that neither another's file nor others' additions are
/// replaced; its owner and mode are kept.
pub fn write_own(
    file: &Path,
    mark: &str,
    is_whole: impl Fn(&str) -> bool,
    bytes: &[u8],
) -> Result<()> {
    let mut like = None;
    let place = Place::of(file)?;
    let there = &place.path;
    if there.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
        let begins = input::begins(there, mark.as_bytes());
        let shown = file.display().to_string();
        let unread = |error| -> Error {
            FileError::of(file)(error).hint("name another file, or `-` for standard output")
        };
        if !begins.map_err(unread)? {
            let message = format!("{shown} already exists, and gpuvm did not make it");
            let hint = "name another file, or move that one away first";
            return Err(classed(Class::Exists, message, hint));
        }
        let text = input::state(there).map_err(unread)?.unwrap_or_default();
        if !text.is_empty() && !is_whole(&text) {
            let message = format!("{shown} has been changed since gpuvm made it, or is another's");
            let hint = "name another file, or move that one away first";
            return Err(classed(Class::Exists, message, hint));
        }
        like = Some(there.symlink_metadata().map_err(unread)?);
    } else if there.is_symlink() {
        let hint = "name the file that the link leads to, or `-` for standard output";
        return Err(FileError::IsLink { shown: file.display().to_string() }.hint(hint));
    }
    place.put(true, bytes, like.as_ref())
}

/// Writes a file atomically: beside its place first, then renamed.
pub fn write(file: &Path, overwrite: bool, bytes: &[u8]) -> Result<()> {
    Place::of(file)?.put(overwrite, bytes, None)
}

/// Writes a file, or whatever a link in its place leads to, atomically. A pipe or a terminal is
/// written directly.
pub fn write_target(file: &Path, bytes: &[u8]) -> Result<()> {
    let place = Place::of_target(file)?;
    match place.path.metadata() {
        Ok(meta) if !meta.is_file() && !meta.is_dir() => place.stream(bytes),
        // Only root gives a file to another user.
        Ok(meta) if geteuid().is_root() || meta.uid() == geteuid().as_raw() => {
            place.put(true, bytes, Some(&meta))
        }
        Ok(_) => place.put(true, bytes, None),
        Err(_) => place.put(true, bytes, None),
    }
}

/// Gives a file the owner and mode of another.
fn alike(file: &File, like: &Metadata) -> std::io::Result<()> {
    let is = file.metadata()?;
    if (is.uid(), is.gid()) != (like.uid(), like.gid()) {
        fchown(file, Some(like.uid()), Some(like.gid()))?;
    }
    file.set_permissions(like.permissions())
}

/// The place of a file in a directory that is held.
struct Place<'f> {
    /// The file, as it was named.
    file: &'f Path,
    held: HeldDir,
    /// Its path below that.
    path: PathBuf,
}

impl Place<'_> {
    /// Opens the directory of a file.
    fn of(file: &Path) -> Result<Place<'_>> {
        Place::held(file, HeldDir::of)
    }

    /// Opens the directory of the file that a link leads to.
    fn of_target(file: &Path) -> Result<Place<'_>> {
        Place::held(file, HeldDir::of_target)
    }

    fn held(
        file: &Path,
        open: impl FnOnce(&Path) -> std::result::Result<(HeldDir, PathBuf), HeldError>,
    ) -> Result<Place<'_>> {
        if file.is_dir() {
            return Err(is_directory(file));
        }
        match open(file) {
            Ok((held, path)) => Ok(Place { file, held, path }),
            Err(HeldError::System(error)) => Err(failed(file, &error, "write")),
            Err(error @ HeldError::ForeignLink { .. }) => {
                let (what, shown) = ("write".to_owned(), file.display().to_string());
                let error = FileError::Unwritable { what, shown, reason: error.to_string() };
                Err(error.hint("name the file that the link leads to, or another directory"))
            }
        }
    }

    /// Writes it atomically. `like`: the file whose owner and mode it gets.
    fn put(&self, overwrite: bool, bytes: &[u8], like: Option<&Metadata>) -> Result<()> {
        let Place { file, held, path } = self;
        let failed = |error: &std::io::Error, what: &str| failed(file, error, what);
        // Checked first for a clear message; the rename below decides.
        let exists = || {
            let hint = "name another file, or replace it with --overwrite";
            classed(Class::Exists, format!("{} already exists", file.display()), hint)
        };
        match path.symlink_metadata() {
            Ok(meta) if meta.is_dir() => return Err(is_directory(file)),
            // Renaming a file over /dev/null would remove it for everybody.
            Ok(meta) if !meta.is_file() && !meta.is_symlink() => {
                let hint = "name a regular file, or `-` for standard output";
                return Err(FileError::NotRegular { shown: file.display().to_string() }.hint(hint));
            }
            Ok(_) if !overwrite => return Err(exists()),
            _ => {}
        }
        let mode = like.map_or(Permissions::from_mode(0o644), Metadata::permissions);
        let mut scratch = tempfile::Builder::new()
            .prefix(".gpuvm-")
            .permissions(mode)
            .tempfile_in(held.path())
            .map_err(|error| failed(&error, "write"))?;
        if let Some(like) = like {
            alike(scratch.as_file(), like).map_err(|error| failed(&error, "keep the owner of"))?;
        }
        scratch.write_all(bytes).map_err(|error| failed(&error, "write"))?;
        scratch.as_file().sync_all().map_err(|error| failed(&error, "write"))?;
        let moved = if overwrite { scratch.persist(path) } else { scratch.persist_noclobber(path) };
        match moved {
            Ok(_) => {
                crate::trace::wrote(file);
                Ok(())
            }
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Err(exists()),
            Err(error) => Err(failed(&error.error, "replace")),
        }
    }

    /// Writes into a pipe, a socket or a character device, such as a terminal.
    #[expect(clippy::disallowed_methods, reason = "the caller asked for it by its name")]
    fn stream(&self, bytes: &[u8]) -> Result<()> {
        let failed = |error: std::io::Error| failed(self.file, &error, "write");
        let mut open = File::options().write(true).open(&self.path).map_err(failed)?;
        let kind = open.metadata().map_err(failed)?.file_type();
        if !kind.is_fifo() && !kind.is_char_device() {
            let hint = "name a regular file, or `-` for standard output";
            let shown = self.file.display().to_string();
            return Err(FileError::NotRegular { shown }.hint(hint));
        }
        open.write_all(bytes).map_err(failed)?;
        crate::trace::wrote(self.file);
        Ok(())
    }
}

/// The error of a directory in the place of a file.
fn is_directory(file: &Path) -> Error {
    let hint = "name a file in it, or `-` for standard output";
    FileError::IsDirectory { shown: file.display().to_string() }.hint(hint)
}

/// The error of a file that the system does not write.
fn failed(file: &Path, error: &std::io::Error, what: &str) -> Error {
    let reason = error.to_string();
    // The scratch file's name, added by `tempfile`, would be confusing.
    let reason = reason.split(" at path ").next().unwrap_or_default();
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let hint = match error.kind() {
        ErrorKind::NotFound => format!("make the directory first: mkdir -p {}", dir.display()),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "name a file in a directory that you may write to, or `-` for standard output".into()
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "make room, or name a file on another file system; nothing was left behind".into()
        }
        _ => String::new(),
    };
    FileError::Unwritable {
        what: what.to_string(),
        shown: file.display().to_string(),
        reason: reason.to_string(),
    }
    .hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_a_configurations_place_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.conf");
        assert_eq!(configuration(&path).unwrap(), None);
        std::fs::write(&path, "x = 1\n").unwrap();
        assert_eq!(configuration(&path).unwrap().as_deref(), Some("x = 1\n"));
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let Error::Refused(refusal) = configuration(&path).unwrap_err() else { panic!() };
        assert!(refusal.message.contains("a named pipe, not a regular file"), "{refusal:?}");
        assert!(refusal.hint.contains(&format!("`mv {0} {0}.old`", path.display())));
    }

    #[test]
    fn refuses_before_it_writes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("host.json");
        write(&file, false, b"one").unwrap();
        let again = write(&file, false, b"two").unwrap_err();
        assert!(again.refusal().unwrap().hint.contains("--overwrite"));
        assert!(write(dir.path(), true, b"two").is_err());
        assert!(write(&dir.path().join("none/host.json"), true, b"two").is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"one");
        write(&file, true, b"two").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no scratch file stays");
    }

    #[test]
    fn only_own_files_are_renewed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.svg");
        let is_whole = |text: &str| text.ends_with("</svg>") || text.ends_with("/>");
        write_own(&file, "<svg", is_whole, b"<svg/>").unwrap();
        write_own(&file, "<svg", is_whole, b"<svg>2</svg>").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"<svg>2</svg>");
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(12), Some(34)).unwrap();
        }
        let was = file.metadata().unwrap();
        write_own(&file, "<svg", is_whole, b"<svg>3</svg>").unwrap();
        let is = file.metadata().unwrap();
        assert_eq!((is.uid(), is.gid(), is.mode()), (was.uid(), was.gid(), was.mode()));
        for changed in ["<svg>3</svg><!-- my notes -->", "<svg and my own text"] {
            std::fs::write(&file, changed).unwrap();
            let refused = write_own(&file, "<svg", is_whole, b"<svg/>").unwrap_err();
            assert!(refused.to_string().contains("has been changed since"), "{refused}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), changed);
        }
        for foreign in [&b"notes"[..], b"<sv", b" <svg/>"] {
            std::fs::write(&file, foreign).unwrap();
            let refused = write_own(&file, "<svg", is_whole, b"<svg/>").unwrap_err();
            assert!(refused.to_string().ends_with("gpuvm did not make it"), "{refused}");
            assert_eq!(std::fs::read(&file).unwrap(), foreign);
        }
        std::fs::write(&file, "").unwrap();
        write_own(&file, "<svg", is_whole, b"<svg/>").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(write_own(&link, "<svg", is_whole, b"<svg/>").is_err());
        assert!(write_own(Path::new("/dev/full"), "<svg", is_whole, b"<svg/>").is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "something is left");
    }

    #[test]
    fn a_link_in_the_place_of_a_file_of_ours_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("ids.json"), dir.path().join("link"));
        refuse_link(&file).unwrap();
        std::fs::write(&file, "{}").unwrap();
        refuse_link(&file).unwrap();
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        let error = refuse_link(&link).unwrap_err();
        assert!(error.refusal().unwrap().hint.contains("puts it away"), "{error}");
    }

    #[test]
    fn devices_are_not_replaced() {
        let error = write(Path::new("/dev/full/host.json"), true, b"x").unwrap_err();
        assert!(error.to_string().starts_with("cannot write /dev/full/host.json"), "{error}");
        assert!(!error.to_string().contains(".gpuvm-"), "{error}");
        let error = write(Path::new("/dev/full"), true, b"x").unwrap_err();
        assert_eq!(error.to_string(), "/dev/full is not a regular file");
    }
}
