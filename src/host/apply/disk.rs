//! Disk images as files. Knows neither domains nor storage pools.

use super::journal::JournalError;
use crate::discover::openers::in_use;
use crate::hypervisor::storage::Progress;
use crate::identity::FileId;
use crate::input::{InputError, open_regular};
use crate::pinned_dir::HeldDir;
use crate::trace;
use gpuvm_core::image::{Sha256, Summing};
use gpuvm_core::shell::word;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FallocateFlags, OFlag, RenameFlags, fallocate, renameat2};
use nix::unistd::{AccessFlags, Whence, access, lseek};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt, FileExt as _, MetadataExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The error of an operation on an image.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "disk-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum DiskError {
    /// The file already exists.
    #[error("{} already exists and is not replaced", path.display())]
    Exists { path: PathBuf },
    /// The directory does not exist.
    #[error("directory {} does not exist", dir.display())]
    NoDirectory { dir: PathBuf },
    /// No space is left.
    #[error("no space is left for {}: {source}", path.display())]
    Full { path: PathBuf, source: io::Error },
    /// The file system cannot preallocate blocks.
    #[error(
        "the file system of {} reserves no blocks: {source}",
        path.display()
    )]
    NoReserve { path: PathBuf, source: io::Error },
    /// Permission denied.
    #[error("not permitted on {}: {source}", path.display())]
    Denied { path: PathBuf, source: io::Error },
    /// It cannot be removed.
    #[error("{} cannot be removed: {source}", path.display())]
    #[strum(to_string = "not-removed")]
    Kept { path: PathBuf, source: io::Error },
    /// The journal could not be written, so that the file's origin would be unknown.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Journal(#[from] JournalError),
    /// Not a regular file, so not ours.
    #[error("{} is not a regular file and is left alone", path.display())]
    NotAFile { path: PathBuf },
    /// A source that is not read.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Input(#[source] InputError),
    /// Anything else.
    #[error("{}: {source}", path.display())]
    #[strum(to_string = "io")]
    Other { path: PathBuf, source: io::Error },
}

impl DiskError {
    /// The same error of a file in a directory that is held, with the path as it was named.
    pub(super) fn named(mut self, held: &HeldDir, dir: &Path) -> DiskError {
        use DiskError::{Denied, Exists, Full, Kept, NoReserve, NotAFile, Other};
        match &mut self {
            Exists { path }
            | Full { path, .. }
            | NoReserve { path, .. }
            | Denied { path, .. }
            | Kept { path, .. }
            | NotAFile { path }
            | Other { path, .. } => {
                if let Ok(rest) = path.strip_prefix(held.path()) {
                    *path = dir.join(rest);
                }
            }
            _ => {}
        }
        self
    }
}

/// Preallocation of a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Preallocate {
    /// Nothing.
    #[default]
    None,
    /// All blocks, reserved but not written.
    Reserve,
    /// All blocks, written with zeros.
    Full,
}

/// Bytes that are reserved between two checks for cancellation.
const RESERVED_AT_ONCE: u64 = 64 << 30;
/// Bytes per write.
const WRITTEN_AT_ONCE: usize = 4 << 20;
/// The alignment of direct writes: no drive has larger sectors.
const ALIGNED: usize = 4096;

/// Creation of a file or a directory such that a run killed at any moment leaves nothing
/// unaccounted for: under an unguessable name until its identity has been recorded.
pub struct Making<'m> {
    /// The name, without its directory.
    pub token: &'m str,
    /// Called with its identity before it gets its final name.
    pub made: &'m mut dyn FnMut(FileId) -> Result<(), JournalError>,
}

/// The name that something has while it is made.
pub fn unfinished(path: &Path, token: &str) -> PathBuf {
    path.with_file_name(format!(".{token}.gpuvm"))
}

/// The content of a new image.
#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    /// The file whose bytes it gets; `None` for zeros.
    pub from: Option<&'a Path>,
    /// The checksum of these bytes; `None` if they are not known.
    pub sha256: Option<Sha256>,
    /// Its preallocation.
    pub preallocate: Preallocate,
}

/// Makes an image of zeros, or the copy of a file that is not open, readable only by its owner;
/// libvirt hands it to QEMU's user when the domain starts. `progress` gets the number of bytes so
/// far and may cancel; then, as after any error, nothing is left.
pub fn create(
    path: &Path,
    bytes: u64,
    Content { from, sha256, preallocate }: Content<'_>,
    making: &mut Making<'_>,
    progress: Progress<'_>,
) -> Result<(), DiskError> {
    let source = from.map(|from| Source::open(from, bytes)).transpose()?;
    let (held, place) = HeldDir::of(path).map_err(|e| error(path, e.into()))?;
    let unfinished = unfinished(&place, making.token);
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished);
    let file: File = new.map_err(|e| error(path, e))?;
    let made = file.set_len(bytes).and_then(|()| {
        match preallocate {
            Preallocate::None => {}
            Preallocate::Reserve => reserve(&file, bytes, progress)?,
            Preallocate::Full => {
                // To detect a full file system before hours of writing.
                match reserve(&file, bytes, &mut |_| progress(0)) {
                    Err(e) if e.kind() == ErrorKind::Unsupported => {}
                    reserved => reserved?,
                }
                zero(&file, bytes, progress)?;
            }
        }
        if let Some(source) = &source {
            match sha256 {
                Some(planned) => source.copy_known(&file, planned, progress)?,
                None => source.copy(&file, None, progress)?,
            }
        }
        file.sync_all()
    });
    let made = made.and_then(|()| file.metadata()).map_err(|e| match e.kind() {
        ErrorKind::Unsupported => DiskError::NoReserve { path: path.to_owned(), source: e },
        _ => error(path, e),
    });
    let still =
        made.and_then(|meta| source.map_or(Ok(()), |source| source.expect()).map(|()| meta));
    let named = still.and_then(|meta| {
        (making.made)(FileId::of(&meta))?;
        name(&unfinished, &place)
    });
    if named.is_err() {
        // The file was made by this call; the first error is the one to report.
        let _ = std::fs::remove_file(&unfinished);
    } else {
        trace::wrote(path);
    }
    named.map_err(|error| error.named(&held, path.parent().unwrap_or(Path::new(""))))
}

/// When a file was last written, in nanoseconds since 1970.
pub fn modified_ns(meta: &std::fs::Metadata) -> i64 {
    meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())
}

/// Refuses a file that is open, or has another size, or was written at another time.
pub(super) fn expect_unwritten(path: &Path, bytes: u64, when_ns: i64) -> Result<(), DiskError> {
    let now = path.metadata().map_err(|e| error(path, e))?;
    expect_same(path, &now, (bytes, when_ns))
}

/// The same for these metadata.
fn expect_same(path: &Path, now: &std::fs::Metadata, was: (u64, i64)) -> Result<(), DiskError> {
    let failed = |why: String| Err(error(path, io::Error::other(why)));
    match in_use(path, false) {
        Some(by) => failed(format!("it is in use by {by}")),
        None if (now.len(), modified_ns(now)) == was => Ok(()),
        None => failed("it was written while it was copied".to_owned()),
    }
}

pub(super) struct Source<'a> {
    /// Its path.
    path: &'a Path,
    file: File,
    /// Its state when it was opened.
    was: std::fs::Metadata,
}

impl Source<'_> {
    /// Opens a file of this size that is not open elsewhere.
    pub fn open(path: &Path, bytes: u64) -> Result<Source<'_>, DiskError> {
        let file = open(path)?;
        let failed = |e| error(path, e);
        let was = file.metadata().map_err(failed)?;
        let source = Source { path, file, was };
        if source.was.len() != bytes {
            return Err(failed(io::Error::other("it has another size by now")));
        }
        source.expect().map(|()| source)
    }

    /// Refuses a file that is open elsewhere, or was written since it was opened.
    pub fn expect(&self) -> Result<(), DiskError> {
        let now = self.file.metadata().map_err(|e| error(self.path, e))?;
        expect_same(self.path, &now, (self.was.len(), modified_ns(&self.was)))
    }

    /// Reads all of it, holes too.
    pub fn read(&self, to: &mut dyn Write) -> Result<(), DiskError> {
        let mut buffer = vec![0; WRITTEN_AT_ONCE];
        let mut from = 0;
        while from < self.was.len() {
            let rest = usize::try_from(self.was.len() - from).unwrap_or(usize::MAX);
            let part = &mut buffer[..rest.min(WRITTEN_AT_ONCE)];
            let read = self.file.read_exact_at(part, from).and_then(|()| to.write_all(part));
            read.map_err(|e| error(self.path, e))?;
            from += part.len() as u64;
        }
        Ok(())
    }

    /// The same for bytes of this checksum.
    fn copy_known(&self, to: &File, planned: Sha256, progress: Progress<'_>) -> io::Result<()> {
        let mut sum = Summing::new(io::sink());
        self.copy(to, Some(&mut sum), progress)?;
        let (sum, _) = sum.end();
        if sum == planned {
            return Ok(());
        }
        let path = self.path.display();
        Err(io::Error::other(format!("{path} changed: its SHA-256 was {planned} and is {sum}")))
    }

    /// Writes its bytes into a new file of zeros, but for zeros; `also` gets all of them. Without
    /// it, holes are not even read.
    pub fn copy(
        &self,
        to: &File,
        mut also: Option<&mut dyn Write>,
        progress: Progress<'_>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; WRITTEN_AT_ONCE];
        let bytes = self.was.len();
        let is_sparse = also.is_none();
        let data_from = |from| if is_sparse { self.data_from(from, bytes) } else { from };
        let mut from = data_from(0);
        while from < bytes {
            let rest = usize::try_from(bytes - from).unwrap_or(usize::MAX);
            let part = &mut buffer[..rest.min(WRITTEN_AT_ONCE)];
            self.file.read_exact_at(part, from)?;
            if let Some(also) = &mut also {
                also.write_all(part)?;
            }
            if part.iter().any(|byte| *byte != 0) {
                to.write_all_at(part, from)?;
            }
            from = data_from(from + part.len() as u64);
            go_on(progress(from))?;
        }
        Ok(())
    }

    /// Where its next data begins, at `from` or behind, as far as its file system says; `bytes` if
    /// there is none.
    fn data_from(&self, from: u64, bytes: u64) -> u64 {
        let Ok(at) = i64::try_from(from) else { return from };
        match lseek(&self.file, at, Whence::SeekData) {
            Ok(data) => u64::try_from(data).unwrap_or(from).min(bytes),
            Err(Errno::ENXIO) => bytes,
            Err(_) => from,
        }
    }
}

/// Makes a raw image larger, unless it is as large already; `reserve`: its new blocks are taken
/// from the file system at once.
pub fn grow(path: &Path, bytes: u64, reserve: bool) -> Result<(), DiskError> {
    let failed = |e| error(path, e);
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new().write(true).custom_flags(flags).open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(DiskError::NotAFile { path: path.to_owned() });
    }
    let before = meta.len();
    if before >= bytes {
        return Ok(());
    }
    let grown = if reserve {
        let signed = |number: u64| i64::try_from(number).map_err(|_| ErrorKind::FileTooLarge);
        let range = signed(before).and_then(|from| Ok((from, signed(bytes - before)?)));
        range.map_err(io::Error::from).and_then(|(from, length)| {
            fallocate(&file, FallocateFlags::empty(), from, length).map_err(io::Error::from)
        })
    } else {
        file.set_len(bytes)
    };
    let synced = grown.and_then(|()| file.sync_all());
    synced.map(|()| trace::wrote(path)).map_err(|e| match e.kind() {
        ErrorKind::Unsupported => DiskError::NoReserve { path: path.to_owned(), source: e },
        _ => failed(e),
    })
}

/// Gives a file or a directory its name, unless the name is taken.
pub(super) fn name(unfinished: &Path, path: &Path) -> Result<(), DiskError> {
    let flags = RenameFlags::RENAME_NOREPLACE;
    match renameat2(AT_FDCWD, unfinished, AT_FDCWD, path, flags) {
        // Not every file system supports it. A directory then replaces at most an empty one, and a
        // hard link never replaces a file.
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) if unfinished.is_dir() => {
            std::fs::rename(unfinished, path).map_err(|e| error(path, e))
        }
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => {
            std::fs::hard_link(unfinished, path).map_err(|e| error(path, e))?;
            std::fs::remove_file(unfinished).map_err(|e| error(unfinished, e))
        }
        named => named.map_err(|errno| error(path, errno.into())),
    }
}

/// Takes the blocks of a file from its file system, in parts.
fn reserve(file: &File, bytes: u64, progress: Progress<'_>) -> io::Result<()> {
    // A file that cannot fit must not take the last block from others before failing.
    let stat = nix::sys::statvfs::fstatvfs(file)?;
    if stat.blocks_free().saturating_mul(stat.fragment_size()) < bytes {
        return Err(ErrorKind::StorageFull.into());
    }
    let mut from = 0;
    while from < bytes {
        let part = RESERVED_AT_ONCE.min(bytes - from);
        let signed = |number: u64| i64::try_from(number).map_err(|_| ErrorKind::FileTooLarge);
        match fallocate(file, FallocateFlags::empty(), signed(from)?, signed(part)?) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(()) => from += part,
        }
        go_on(progress(from))?;
    }
    Ok(())
}

/// Writes zeros over a file, bypassing the page cache if the file system allows it: a disk may be
/// larger than memory.
fn zero(file: &File, bytes: u64, progress: Progress<'_>) -> io::Result<()> {
    let buffer = vec![0; WRITTEN_AT_ONCE + ALIGNED];
    let start = buffer.as_ptr().align_offset(ALIGNED).min(ALIGNED);
    let zeros = &buffer[start..start + WRITTEN_AT_ONCE];
    // Reopens the same file, whatever its present path.
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct = OpenOptions::new().write(true).custom_flags(OFlag::O_DIRECT.bits()).open(again);
    let direct = direct.as_ref().unwrap_or(file);
    let mut from = 0;
    while from < bytes {
        let left = bytes - from;
        match usize::try_from(left) {
            Ok(left) if left < WRITTEN_AT_ONCE => {
                let aligned = left / ALIGNED * ALIGNED;
                direct.write_all_at(&zeros[..aligned], from)?;
                file.write_all_at(&zeros[aligned..left], from + aligned as u64)?;
                from = bytes;
            }
            _ => {
                direct.write_all_at(zeros, from)?;
                from += WRITTEN_AT_ONCE as u64;
            }
        }
        go_on(progress(from))?;
    }
    Ok(())
}

/// Makes the error of a cancellation.
fn go_on(yes: bool) -> io::Result<()> {
    if yes { Ok(()) } else { Err(ErrorKind::Interrupted.into()) }
}

/// Opens a file to be copied, and nothing but a file: opening a device may have side effects,
/// opening a FIFO may block.
pub fn open(path: &Path) -> Result<File, DiskError> {
    let wrong = |source: io::Error| match source.kind() {
        ErrorKind::NotFound => DiskError::Other { path: path.to_owned(), source },
        _ => error(path, source),
    };
    open_regular(path).map_err(|refused| match refused {
        InputError::Unreadable { source, .. } => wrong(source),
        other => DiskError::Input(other),
    })
}

/// The size of a file system and its free space, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub total: u64,
    /// The space that the caller can still use; for root including its reserve.
    pub free: u64,
}

/// Asks the file system of a directory for its size; none if that fails.
pub fn space(directory: &Path) -> Option<Space> {
    let stat = nix::sys::statvfs::statvfs(directory).ok()?;
    let is_root = nix::unistd::geteuid().is_root();
    let free = if is_root { stat.blocks_free() } else { stat.blocks_available() };
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    Some(Space { total: bytes(stat.blocks()), free: bytes(free) })
}

/// Refuses a path where something is, be it a link to nothing.
pub fn absent(path: &Path) -> Result<(), DiskError> {
    match path.symlink_metadata() {
        Ok(_) => Err(DiskError::Exists { path: path.to_owned() }),
        // Any other problem is reported when it is made.
        Err(_) => Ok(()),
    }
}

/// Makes a directory for images that only its owner writes and everyone enters, QEMU's user too.
pub fn create_directory(path: &Path, making: &mut Making<'_>) -> Result<(), DiskError> {
    let unfinished = unfinished(path, making.token);
    let made = std::fs::DirBuilder::new().mode(0o755).create(&unfinished);
    let meta = made.and_then(|()| unfinished.metadata()).map_err(|e| error(path, e))?;
    let named = (making.made)(FileId::of(&meta))
        .map_err(DiskError::from)
        .and_then(|()| name(&unfinished, path));
    if named.is_err() {
        // The directory was made by this call; the first error is the one to report.
        let _ = std::fs::remove_dir(&unfinished);
    } else {
        trace::wrote(path);
    }
    named
}

/// Removes a directory if it is empty.
pub fn delete_directory(path: &Path) -> Result<(), DiskError> {
    match std::fs::remove_dir(path) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => Ok(()),
        removed => removed.map(|()| trace::removed(path)).map_err(|e| error(path, e)),
    }
}

/// Returns why not even root can remove a file; `None` if it can be removed, or does not exist.
pub fn locked_in(path: &Path) -> Option<String> {
    let fixed = |path: &Path| match access(path, AccessFlags::W_OK) {
        Err(Errno::EPERM) => {
            let path = word(&path.to_string_lossy()).into_owned();
            Some(format!("{path} is immutable, until `chattr -i {path}`"))
        }
        Err(Errno::EROFS) => Some("its file system is read-only".to_owned()),
        _ => None,
    };
    if path.symlink_metadata().is_err() {
        return None;
    }
    fixed(path).or_else(|| fixed(path.parent()?))
}

/// Removes an image; one that no longer exists counts as removed.
pub fn delete(path: &Path) -> Result<(), DiskError> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(error(path, e)),
        Ok(meta) if !meta.is_file() => {
            return Err(DiskError::NotAFile { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    let removed = std::fs::remove_file(path).map(|()| trace::removed(path));
    removed.map_err(|source| DiskError::Kept { path: path.to_owned(), source })
}

/// Converts an error of the system.
pub(super) fn error(path: &Path, source: io::Error) -> DiskError {
    let path = path.to_owned();
    match source.kind() {
        ErrorKind::AlreadyExists => DiskError::Exists { path },
        ErrorKind::NotFound => {
            let dir = path.parent().unwrap_or(&path).to_owned();
            DiskError::NoDirectory { dir }
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            DiskError::Full { path, source }
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            DiskError::Denied { path, source }
        }
        _ => DiskError::Other { path, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sparse(path: &Path, bytes: u64) -> Result<(), DiskError> {
        made(path, bytes, Preallocate::None, &mut |_| true)
    }

    fn made(
        path: &Path,
        bytes: u64,
        how: Preallocate,
        progress: Progress<'_>,
    ) -> Result<(), DiskError> {
        let mut identity = None;
        let mut tell = |id| {
            identity = Some(id);
            Ok(())
        };
        let content = Content { from: None, sha256: None, preallocate: how };
        let mut making = Making { token: "t", made: &mut tell };
        let made = create(path, bytes, content, &mut making, progress);
        assert!(!unfinished(path, "t").exists(), "an unfinished file is left");
        if made.is_ok() {
            assert_eq!(FileId::at(path).unwrap(), identity);
        }
        made
    }

    fn directory(path: &Path) -> Result<(), DiskError> {
        create_directory(path, &mut Making { token: "t", made: &mut |_| Ok(()) })
    }
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_copy_has_every_byte_and_is_refused_of_a_file_that_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["a.img", "b.img"].map(|name| dir.path().join(name));
        let bytes = 3 * WRITTEN_AT_ONCE as u64 + 512;
        let file = File::create(&from).unwrap();
        file.set_len(bytes).unwrap();
        file.write_all_at(b"first", WRITTEN_AT_ONCE as u64 + 7).unwrap();
        file.write_all_at(b"last", bytes - 4).unwrap();
        let copy = |bytes: u64, progress: Progress<'_>| {
            let content =
                Content { from: Some(&from), sha256: None, preallocate: Preallocate::None };
            let mut making = Making { token: "t", made: &mut |_| Ok(()) };
            create(&to, bytes, content, &mut making, progress)
        };
        drop(file);
        assert!(copy(bytes + 512, &mut |_| true).unwrap_err().to_string().contains("another size"));
        let error = copy(bytes, &mut |_| {
            std::fs::write(&from, b"other").unwrap();
            true
        });
        assert!(error.is_err() && !to.exists(), "{error:?}");
        std::fs::remove_file(&from).unwrap();
        let file = File::create(&from).unwrap();
        file.set_len(bytes).unwrap();
        file.write_all_at(b"first", WRITTEN_AT_ONCE as u64 + 7).unwrap();
        file.write_all_at(b"last", bytes - 4).unwrap();
        drop(file);
        copy(bytes, &mut |_| true).unwrap();
        assert_eq!(std::fs::read(&from).unwrap(), std::fs::read(&to).unwrap());
        let meta = to.metadata().unwrap();
        assert!(meta.blocks() * 512 < bytes, "{} blocks", meta.blocks());
        assert_eq!(meta.mode() & 0o777, 0o600);
        // Bytes that were summed before are those, or nothing is left.
        let known = |sha256: Sha256| {
            std::fs::remove_file(&to).unwrap();
            let content =
                Content { from: Some(&from), sha256: Some(sha256), preallocate: Preallocate::None };
            let mut making = Making { token: "t", made: &mut |_| Ok(()) };
            create(&to, bytes, content, &mut making, &mut |_| true)
        };
        known(Sha256::of_bytes(&std::fs::read(&from).unwrap())).unwrap();
        let error = known(Sha256::of_bytes(b"")).unwrap_err().to_string();
        assert!(error.contains("changed: its SHA-256 was") && !to.exists(), "{error}");
    }

    #[test]
    fn holes_of_a_copied_file_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["a.img", "b.img"].map(|name| dir.path().join(name));
        let bytes = 50 << 30;
        let file = File::create(&from).unwrap();
        file.set_len(bytes).unwrap();
        for at in [5, 20 << 30, bytes - 4] {
            file.write_all_at(b"data", at).unwrap();
        }
        let content = Content { from: Some(&from), sha256: None, preallocate: Preallocate::None };
        let mut making = Making { token: "t", made: &mut |_| Ok(()) };
        let mut reports = Vec::new();
        let mut progress = |through| {
            reports.push(through);
            // Thousands of parts of zeros would take minutes.
            reports.len() < 10
        };
        create(&to, bytes, content, &mut making, &mut progress).unwrap();
        assert_eq!(reports.last(), Some(&bytes));
        let copy = File::open(&to).unwrap();
        for at in [5, 20 << 30, bytes - 4] {
            let mut part = [0; 4];
            copy.read_exact_at(&mut part, at).unwrap();
            assert_eq!(&part, b"data");
        }
        assert!(copy.metadata().unwrap().blocks() * 512 < 64 << 20);
    }

    #[test]
    fn an_image_is_sparse_and_never_replaces_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        sparse(&path, 50 << 30).unwrap();
        let meta = path.metadata().unwrap();
        assert_eq!(meta.len(), 50 << 30);
        assert!(meta.blocks() < 64, "{} blocks are used", meta.blocks());
        assert!(matches!(sparse(&path, 1), Err(DiskError::Exists { .. })));
        assert_eq!(path.metadata().unwrap().len(), 50 << 30);
        delete(&path).unwrap();
        delete(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn irregular_files_and_full_disks_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let absent = dir.path().join("absent/a.img");
        assert!(matches!(sparse(&absent, 1), Err(DiskError::NoDirectory { .. })));
        assert!(matches!(delete(dir.path()), Err(DiskError::NotAFile { .. })));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert!(matches!(delete(&link), Err(DiskError::NotAFile { .. })));
        assert!(matches!(sparse(&link, 1), Err(DiskError::Exists { .. })));
        let below = dir.path().join("new");
        directory(&below).unwrap();
        assert!(matches!(directory(&below), Err(DiskError::Exists { .. })));
        sparse(&below.join("a.img"), 1).unwrap();
        delete_directory(&below).unwrap();
        assert!(below.exists(), "a directory with a file was removed");
        delete(&below.join("a.img")).unwrap();
        delete_directory(&below).unwrap();
        assert!(!below.exists());
        let huge = dir.path().join("huge.img");
        assert!(sparse(&huge, u64::MAX).is_err());
        assert!(!huge.exists(), "a file is left of a size that cannot be");
    }

    #[test]
    fn preallocated_space_exists_and_is_zero() {
        let dir = tempfile::tempdir().unwrap();
        // The end lies in the middle of a block.
        let bytes = (9 << 20) + 700;
        for how in [Preallocate::Reserve, Preallocate::Full] {
            let path = dir.path().join(format!("{how:?}"));
            let mut reports = Vec::new();
            let mut progress = |through| {
                reports.push(through);
                true
            };
            made(&path, bytes, how, &mut progress).unwrap();
            let meta = path.metadata().unwrap();
            assert_eq!((meta.len(), meta.mode() & 0o777), (bytes, 0o600));
            assert!(meta.blocks() * 512 >= bytes, "{how:?}: {} blocks", meta.blocks());
            assert_eq!(reports.last(), Some(&bytes));
            assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn nothing_is_left_of_aborted_or_oversized_copies() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        for how in [Preallocate::Reserve, Preallocate::Full] {
            let broken = made(&path, 9 << 20, how, &mut |through| through < 8 << 20);
            assert!(broken.is_err());
            assert!(!path.exists(), "{how:?} left a file");
            // More than any file system has, less than any refuses as a size.
            let full = made(&path, 8 << 40, how, &mut |_| true);
            assert!(matches!(full, Err(DiskError::Full { .. })), "{how:?}: {full:?}");
            assert!(!path.exists(), "{how:?} left a file");
        }
        let Some(Space { total, free }) = space(dir.path()) else { panic!("no size") };
        assert!(free > 0 && free < total, "{free} of {total}");
    }
}
