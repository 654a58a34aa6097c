//! The file of activated partitions, used after a restart of Fabric Manager. It is replaced
//! atomically, under an advisory lock: a process that gets the lock of an already replaced file
//! takes that of its successor.

use crate::identity::FileId;
use crate::trace;
use gpuvm_core::fabric::{RestoreList, RestoreListError};
use gpuvm_core::shell::word;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::geteuid;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Its path on this machine.
const PATH: &str = "/var/lib/gpuvm/fabric.json";
/// Mode of the file: root alone.
const MODE: u32 = 0o600;
/// The largest list in bytes: a few partitions.
const MOST_BYTES: u64 = 1 << 20;
/// Permissions that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;
const LOOK: Duration = Duration::from_millis(20);

/// The error of using the file.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "fabric-file-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum RestoreFileError {
    /// The file system failed.
    #[error("list of active partitions {}: {source}", path.display())]
    #[strum(to_string = "unusable")]
    File { path: PathBuf, source: io::Error },
    /// It cannot be parsed.
    #[error("list of active partitions {}: {source}", path.display())]
    #[strum(to_string = "")]
    Damaged { path: PathBuf, source: RestoreListError },
    /// It is not as we made it.
    #[error("{} is not used as the list of active partitions: {reason}", path.display())]
    Foreign { path: PathBuf, reason: String },
    /// Another process changes partitions.
    #[error("{} is locked by another process, which did not release it within {} s", path.display(), waited.as_secs_f32())]
    Held { path: PathBuf, waited: Duration },
}

impl RestoreFileError {
    /// Returns a hint if there is one.
    pub fn hint(&self) -> Option<String> {
        let (path, source) = match self {
            RestoreFileError::Damaged { path, source } => (path, source),
            RestoreFileError::File { path, source } if !is_a_list(source) => {
                return Some(format!(
                    "`mv {0} {0}.damaged` puts it away; `gpuvm fabric show` lists the partitions \
                     that are active",
                    word(&path.to_string_lossy())
                ));
            }
            RestoreFileError::Foreign { path, .. } => {
                return Some(format!(
                    "`ls -l {0}` shows it; `mv {0} {0}.foreign` puts it away, and `gpuvm fabric \
                     show` lists the partitions that are active",
                    word(&path.to_string_lossy())
                ));
            }
            _ => return None,
        };
        Some(match source {
            RestoreListError::Version { .. } => {
                "use the gpuvm that wrote it, or a later one: leave the file where it is".into()
            }
            RestoreListError::Damaged { .. } => format!(
                "`mv {0} {0}.damaged` puts it away; with it which partitions are of guests that \
                 are off is lost: `gpuvm fabric show` lists those that are active",
                word(&path.to_string_lossy())
            ),
        })
    }
}

/// Whether an error of the system may be of a list; not of bytes that are no text, a directory, or
/// a link.
fn is_a_list(error: &io::Error) -> bool {
    let is_link = error.raw_os_error() == Some(Errno::ELOOP as i32);
    let is_other = [io::ErrorKind::InvalidData, io::ErrorKind::IsADirectory];
    !is_link && !is_other.contains(&error.kind())
}

/// The file, locked.
#[derive(Debug)]
pub struct RestoreFile {
    /// Its path.
    path: PathBuf,
    /// The open file that carries the lock.
    file: Flock<File>,
    list: RestoreList,
}

impl RestoreFile {
    /// Returns its path on this machine.
    pub fn here() -> &'static Path {
        Path::new(PATH)
    }

    /// Reads a file without locking it; empty if it is missing.
    pub fn read(path: &Path) -> Result<RestoreList, RestoreFileError> {
        let mut open = OpenOptions::new();
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let opened = open.read(true).custom_flags(flags.bits()).open(path);
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(RestoreList::default()),
            Err(error) => Err(failed(path)(error)),
            Ok(mut file) => {
                is_ours(path, &file)?;
                content(path, &mut file)
            }
        }
    }

    /// Locks and reads a file, creating it if missing; waits at most `wait`.
    pub fn lock(path: &Path, wait: Duration) -> Result<RestoreFile, RestoreFileError> {
        let until = Instant::now() + wait;
        if let Some(dir) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(failed(path))?;
        }
        loop {
            let mut open = OpenOptions::new();
            let open = open.read(true).write(true);
            let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
            let mut file = match open.custom_flags(flags.bits()).open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    make(path).map_err(failed(path))?;
                    continue;
                }
                opened => opened.map_err(failed(path))?,
            };
            is_ours(path, &file)?;
            let mut file = loop {
                match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                    Ok(file) => break file,
                    Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) => file = back,
                    Err((_, errno)) => return Err(failed(path)(errno.into())),
                }
                if Instant::now() >= until {
                    return Err(RestoreFileError::Held { path: path.to_owned(), waited: wait });
                }
                std::thread::sleep(LOOK);
            };
            // It may have been replaced during the wait: its successor counts.
            let now = FileId::at(path).map_err(failed(path))?;
            let meta = file.metadata().map_err(failed(path))?;
            if now.is_some_and(|now| now.device == meta.dev() && now.inode == meta.ino()) {
                let list = content(path, &mut file)?;
                return Ok(RestoreFile { path: path.to_owned(), file, list });
            }
        }
    }

    /// Returns its content.
    pub fn list(&self) -> &RestoreList {
        &self.list
    }

    /// Replaces it, keeping the lock. Unchanged content is not written.
    pub fn write(&mut self, list: RestoreList) -> Result<(), RestoreFileError> {
        if list == self.list {
            return Ok(());
        }
        let failed = failed(&self.path);
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        let replace = || -> io::Result<Flock<File>> {
            let mut new = tempfile::NamedTempFile::new_in(dir)?;
            new.write_all(list.text().as_bytes())?;
            new.as_file().set_permissions(Permissions::from_mode(MODE))?;
            new.as_file().sync_all()?;
            // Locked before it gets its name, so that no other process can get in between.
            let locked = Flock::lock(new.reopen()?, FlockArg::LockExclusiveNonblock)
                .map_err(|(_, errno)| io::Error::from(errno))?;
            new.persist(&self.path)?;
            File::open(dir)?.sync_all()?;
            Ok(locked)
        };
        self.file = replace().map_err(failed)?;
        trace::wrote(&self.path);
        self.list = list;
        Ok(())
    }
}

/// Makes the file with an empty list, unless others have made it. It never exists without a list,
/// so that an empty file is known to be damaged.
fn make(path: &Path) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let mut new = tempfile::NamedTempFile::new_in(dir)?;
    new.write_all(RestoreList::default().text().as_bytes())?;
    new.as_file().set_permissions(Permissions::from_mode(MODE))?;
    new.as_file().sync_all()?;
    match new.persist_noclobber(path) {
        Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
        _ => File::open(dir)?.sync_all(),
    }
}

/// Makes our error of the system's.
fn failed(path: &Path) -> impl Fn(io::Error) -> RestoreFileError + use<> {
    let path = path.to_owned();
    move |source| RestoreFileError::File { path: path.clone(), source }
}

fn content(path: &Path, file: &mut File) -> Result<RestoreList, RestoreFileError> {
    trace::reads(path);
    let mut text = String::new();
    (&*file).take(MOST_BYTES).read_to_string(&mut text).map_err(failed(path))?;
    if text.is_empty() && is_unwritten(file) {
        return Ok(RestoreList::default());
    }
    let damaged = |source| RestoreFileError::Damaged { path: path.to_owned(), source };
    RestoreList::parse(&text).map_err(damaged)
}

/// Whether nothing was ever written to a file: gpuvm of before made it empty, and with it a list
/// only where there was something to remember. One that was emptied has changed since its birth.
fn is_unwritten(file: &File) -> bool {
    let meta = file.metadata();
    meta.is_ok_and(|meta| meta.created().is_ok_and(|birth| meta.modified().ok() == Some(birth)))
}

/// Refuses a file of another kind, or owned or writable by others.
fn is_ours(path: &Path, file: &File) -> Result<(), RestoreFileError> {
    let meta = file.metadata().map_err(failed(path))?;
    let uid = geteuid().as_raw();
    let reason = if !meta.is_file() {
        "it is not a regular file".to_owned()
    } else if meta.len() > MOST_BYTES {
        format!("it has {} bytes, more than the limit of {MOST_BYTES}", meta.len())
    } else if meta.uid() != uid {
        format!("it belongs to user {}, not to user {uid}", meta.uid())
    } else if meta.mode() & OTHERS_WRITE != 0 {
        format!("mode {:04o} lets others write it", meta.mode() & 0o7777)
    } else {
        return Ok(());
    };
    Err(RestoreFileError::Foreign { path: path.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::fabric::RestoreEntry;

    fn entry(id: u32) -> RestoreEntry {
        RestoreEntry { id, modules: [id].into(), domain: "u".into(), vfs: Vec::new() }
    }

    #[test]
    fn it_is_written_whole_for_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpuvm/fabric.json");
        assert_eq!(RestoreFile::read(&path).unwrap(), RestoreList::default());
        let mut file = RestoreFile::lock(&path, Duration::ZERO).unwrap();
        assert_eq!(RestoreFile::read(&path).unwrap(), RestoreList::default(), "just made");
        for id in [3, 4] {
            let list = file.list().with(entry(id));
            file.write(list).unwrap();
        }
        let read = RestoreFile::read(&path).unwrap();
        assert_eq!(&read, file.list());
        assert_eq!(read.partitions, [entry(3), entry(4)]);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_of_another_kind_or_that_others_may_write_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fabric.json");
        std::fs::write(&path, RestoreList::default().text()).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let open = RestoreFile::read(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let pipe = RestoreFile::read(&path).unwrap_err();
        for error in [open, pipe] {
            assert!(matches!(error, RestoreFileError::Foreign { .. }), "{error}");
        }
    }

    #[test]
    fn the_lock_outlives_a_write_and_its_next_holder_reads_the_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fabric.json");
        let mut file = RestoreFile::lock(&path, Duration::ZERO).unwrap();
        // Opened before the file is replaced: it waits for the lock of the old one.
        let waits = std::thread::spawn({
            let path = path.clone();
            move || RestoreFile::lock(&path, Duration::from_secs(60)).unwrap().list().clone()
        });
        let list = file.list().with(entry(3));
        file.write(list.clone()).unwrap();
        let held = RestoreFile::lock(&path, Duration::from_millis(1)).unwrap_err();
        assert!(matches!(held, RestoreFileError::Held { .. }), "{held}");
        assert!(!waits.is_finished());
        drop(file);
        assert_eq!(waits.join().unwrap(), list);
    }

    #[test]
    fn an_unreadable_list_has_a_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fabric.json");
        let way_out = || {
            let error = RestoreFile::lock(&path, Duration::ZERO).unwrap_err();
            let hint = error.hint().unwrap_or_else(|| panic!("{error}"));
            assert!(hint.contains("fabric.json.damaged` puts it away"), "{error}: {hint}");
        };
        std::fs::write(&path, b"\xff\xfe{").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        way_out();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nowhere", &path).unwrap();
        way_out();
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        way_out();
    }

    #[test]
    fn a_changed_object_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fabric.json");
        let refused = |reason: &str| {
            let error = RestoreFile::lock(&path, Duration::ZERO).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("fabric.json"), "{error}");
        };
        std::fs::write(&path, "{").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        refused("line 1");
        assert!(RestoreFile::read(&path).is_err());
        std::fs::set_permissions(&path, Permissions::from_mode(0o622)).unwrap();
        refused("mode 0622 lets others write it");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        // Sparse: nothing of it is read.
        File::options().write(true).open(&path).unwrap().set_len(3 << 30).unwrap();
        refused("it has 3221225472 bytes, more than");
        std::fs::write(&path, "{\"version\": 9}").unwrap();
        let newer = RestoreFile::read(&path).unwrap_err();
        assert!(newer.to_string().contains("its version is 9"), "{newer}");
        assert!(!newer.hint().unwrap().contains("mv "), "{newer}");
        let entry = "{\"id\":3,\"modules\":[1],\"domain\":\"u\"}";
        let twice = format!("{{\"version\":1,\"partitions\":[{entry},{entry}]}}");
        for (text, said) in [
            ("{", "line 1: EOF"),
            ("", "line 1: it is empty"),
            (&twice, "partition 3 appears twice"),
        ] {
            std::fs::write(&path, text).unwrap();
            refused(said);
            let error = RestoreFile::read(&path).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
            assert!(error.hint().unwrap().starts_with("`mv "), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "it is left as it is");
        }
        std::fs::remove_file(&path).unwrap();
        // As builds of before left it where there was nothing to remember.
        let mut as_made = OpenOptions::new();
        as_made.write(true).create_new(true).mode(MODE).open(&path).unwrap();
        assert_eq!(RestoreFile::read(&path).unwrap(), RestoreList::default());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
        refused("symbolic links");
        assert!(!dir.path().join("elsewhere").exists());
    }
}
