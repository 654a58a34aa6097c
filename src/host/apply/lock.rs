//! The host's lock: one change of the host's domains at a time, from reading the occupancy to the
//! definition that changes it.
//!
//! Root's lock is `/run/gpuvm/lock`, in a directory writable only by root, so that others cannot
//! replace or hold it: whoever may open a lock may keep it. Members of libvirt's group, who change
//! the same machine, open it for reading. Every other user has a lock beside their own journals,
//! for their own domains only. The caller's identity decides which one is used, never the presence
//! of a path: a file with other properties than ours is refused.

use super::state::state_directory;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::libc;
use nix::sys::stat::{Mode, fchmod, fstat, major, minor};
use nix::unistd::{Group, Uid, fchown, geteuid};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The directory of the host's lock.
const SHARED: &str = "/run/gpuvm";
const FILE: &str = "lock";
/// The group whose members libvirt lets change the machine, as distributions name it.
const GROUP: &str = "libvirt";
/// Mode of the host's lock: root and that group may open it.
const SHARED_MODE: u32 = 0o640;
/// Permissions that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// The host's lock; held while it lives, and released when the process is killed.
#[derive(Debug)]
pub struct HostLock {
    /// The open file that carries the lock. The file stays: removing it would let two processes
    /// lock two files.
    _file: Flock<File>,
}

/// The error of taking the lock.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "lock-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum LockError {
    /// Another process holds it.
    #[error("{} is held by {}", path.display(), holder_text(*holder))]
    Held {
        path: PathBuf,
        /// The process, if the kernel reports it.
        holder: Option<i32>,
    },
    /// The file cannot be opened.
    #[error("lock file {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// It is not the file that we make there.
    #[error("{} is not used as the lock: {reason}", path.display())]
    Foreign { path: PathBuf, reason: String },
    /// The wait was cancelled.
    #[error("interrupted while waiting for {}", path.display())]
    Interrupted { path: PathBuf },
}

fn holder_text(holder: Option<i32>) -> String {
    holder.map_or("another process".to_owned(), |pid| format!("process {pid}"))
}

impl HostLock {
    /// Takes the lock of this host, waiting up to `wait`; `waiting` is called about ten times a
    /// second meanwhile, with the process that holds it.
    pub fn take(
        wait: Duration,
        waiting: impl FnMut(Option<i32>) -> ControlFlow<()>,
    ) -> Result<HostLock, LockError> {
        let (path, file) = match geteuid() {
            uid if uid.is_root() => made(Path::new(SHARED), uid, true)?,
            uid => match existing(Path::new(SHARED))? {
                Some(shared) => shared,
                None => made(&state_directory(FILE), uid, false)?,
            },
        };
        lock(path, file, wait, waiting)
    }

    /// Takes the lock of a directory of the caller's own.
    pub fn take_in(
        dir: &Path,
        wait: Duration,
        waiting: impl FnMut(Option<i32>) -> ControlFlow<()>,
    ) -> Result<HostLock, LockError> {
        let (path, file) = made(dir, geteuid(), false)?;
        lock(path, file, wait, waiting)
    }
}

fn lock(
    path: PathBuf,
    mut file: File,
    wait: Duration,
    mut waiting: impl FnMut(Option<i32>) -> ControlFlow<()>,
) -> Result<HostLock, LockError> {
    let until = Instant::now() + wait;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => return Ok(HostLock { _file: file }),
            Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) => file = back,
            Err((_, errno)) => return Err(LockError::File { path, source: errno.into() }),
        }
        let holder = holder(&file);
        if Instant::now() >= until {
            return Err(LockError::Held { path, holder });
        }
        if waiting(holder).is_break() {
            return Err(LockError::Interrupted { path });
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Opens the lock of a directory that is this user's own, making both if missing; `shared`: it is
/// for the members of libvirt's group, too.
fn made(dir: &Path, uid: Uid, shared: bool) -> Result<(PathBuf, File), LockError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| LockError::File { path, source }
    };
    let mode = if shared { 0o755 } else { 0o700 };
    DirBuilder::new().recursive(true).mode(mode).create(dir).map_err(failed(dir))?;
    let opened = directory(dir).map_err(failed(dir))?;
    is_owned(&opened, dir, uid, true)?;
    let path = dir.join(FILE);
    let flags = OFlag::O_RDONLY | OFlag::O_CREAT;
    let file = open_in(&opened, flags).map_err(|error| foreign_or(error, &path))?;
    is_owned(&file, &path, uid, false)?;
    if shared {
        // Corrects for the caller's umask, or a group created later.
        let group = Group::from_name(GROUP).ok().flatten().map(|group| group.gid);
        let set = |errno: Errno| failed(&path)(errno.into());
        fchmod(&opened, Mode::from_bits_truncate(mode)).map_err(set)?;
        fchown(&file, None, group).map_err(set)?;
        fchmod(&file, Mode::from_bits_truncate(SHARED_MODE)).map_err(set)?;
    }
    Ok((path, file))
}

/// Opens root's lock as another user: none if root has made none, or this user may not open it.
fn existing(dir: &Path) -> Result<Option<(PathBuf, File)>, LockError> {
    let path = dir.join(FILE);
    let opened = match directory(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|source| LockError::File { path: dir.to_owned(), source })?,
    };
    is_owned(&opened, dir, Uid::from_raw(0), true)?;
    let file = match open_in(&opened, OFlag::O_RDONLY) {
        Err(Errno::ENOENT | Errno::EACCES) => return Ok(None),
        file => file.map_err(|errno| foreign_or(errno, &path))?,
    };
    is_owned(&file, &path, Uid::from_raw(0), false)?;
    Ok(Some((path, file)))
}

/// Opens a directory; a link is not followed.
fn directory(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
}

/// Opens the lock file of an open directory. A link is not followed, and nothing is waited for.
/// Reading is enough for a lock.
fn open_in(dir: &File, flags: OFlag) -> Result<File, Errno> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    openat(dir, FILE, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(File::from)
}

/// The error of a lock file that cannot be opened.
fn foreign_or(errno: Errno, path: &Path) -> LockError {
    let path = path.to_owned();
    match errno {
        Errno::ELOOP => LockError::Foreign { path, reason: "it is a symbolic link".into() },
        errno => LockError::File { path, source: errno.into() },
    }
}

/// Refuses an open file of another kind, or owned or writable by others.
fn is_owned(file: &File, path: &Path, uid: Uid, is_dir: bool) -> Result<(), LockError> {
    let stat = fstat(file)
        .map_err(|errno| LockError::File { path: path.to_owned(), source: errno.into() })?;
    let kind = if is_dir { libc::S_IFDIR } else { libc::S_IFREG };
    let reason = if stat.st_mode & libc::S_IFMT != kind {
        format!("it is not a {}", if is_dir { "directory" } else { "regular file" })
    } else if stat.st_uid != uid.as_raw() {
        format!("it belongs to user {}, not to user {uid}", stat.st_uid)
    } else if stat.st_mode & OTHERS_WRITE != 0 {
        format!("mode {:04o} lets others write it", stat.st_mode & 0o7777)
    } else {
        return Ok(());
    };
    Err(LockError::Foreign { path: path.to_owned(), reason })
}

/// The process that holds the lock, from the kernel's list of locks.
fn holder(file: &File) -> Option<i32> {
    let meta = file.metadata().ok()?;
    let (dev, inode) = (meta.dev(), meta.ino());
    let is_ours = |lock: &procfs::Lock| {
        (u64::from(lock.devmaj), u64::from(lock.devmin)) == (major(dev), minor(dev))
            && lock.inode == inode
    };
    procfs::locks().ok()?.into_iter().find(is_ours)?.pid
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    /// Opens this user's own lock below a directory.
    fn open(dir: &Path) -> Result<(PathBuf, File), LockError> {
        made(&dir.join("own"), geteuid(), false)
    }

    #[test]
    fn a_second_taker_waits_and_then_names_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let take = |wait, waiting: &mut dyn FnMut(Option<i32>) -> ControlFlow<()>| {
            let (path, file) = open(dir.path()).unwrap();
            lock(path, file, wait, waiting)
        };
        let go_on = &mut |_| ControlFlow::Continue(());
        let first = take(Duration::ZERO, go_on).unwrap();
        let mut asked = 0;
        let wait = Duration::from_millis(250);
        let second = take(wait, &mut |holder| {
            asked += 1;
            assert_eq!(holder, i32::try_from(std::process::id()).ok());
            ControlFlow::Continue(())
        });
        let text = second.unwrap_err().to_string();
        assert!(text.contains(&format!("held by process {}", std::process::id())), "{text}");
        assert!(asked >= 2, "asked {asked} times");
        let broken = take(wait, &mut |_| ControlFlow::Break(()));
        assert!(matches!(broken, Err(LockError::Interrupted { .. })));
        drop(first);
        take(Duration::ZERO, go_on).unwrap();
    }

    #[test]
    fn a_changed_object_is_refused_and_left() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        let (path, _) = open(dir.path()).unwrap();
        assert_eq!(own.metadata().unwrap().mode() & 0o7777, 0o700);
        let refused = |reason: &str| {
            let text = open(dir.path()).unwrap_err().to_string();
            assert!(text.contains(reason), "{text}");
        };
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&path, 0o666);
        refused("mode 0666 lets others write it");
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        refused("is not a regular file");
        std::fs::remove_file(&path).unwrap();
        symlink(dir.path().join("elsewhere"), &path).unwrap();
        refused("is a symbolic link");
        assert!(!dir.path().join("elsewhere").exists());
        std::fs::remove_file(&path).unwrap();
        mode(&own, 0o777);
        refused("mode 0777 lets others write it");
        std::fs::remove_dir(&own).unwrap();
        symlink(dir.path(), &own).unwrap();
        assert!(open(dir.path()).is_err(), "a link to a directory");
        assert!(!dir.path().join(FILE).exists());
        // Another user's file is not accepted as root's.
        std::fs::remove_file(&own).unwrap();
        assert!(existing(&own).unwrap().is_none(), "root has made none");
        open(dir.path()).unwrap();
        if !geteuid().is_root() {
            assert!(matches!(existing(&own), Err(LockError::Foreign { .. })));
        }
    }
}
