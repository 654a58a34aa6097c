//! One change of the host's domains at a time: from the reading of what is taken to the definition that takes it.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::{major, minor};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The lock's file name.
const FILE: &str = "gpuvm.lock";

/// Is the host's lock; held while it lives, also by a process that is killed only so long.
#[derive(Debug)]
pub struct HostLock {
    /// The open file that carries the lock. The file stays: removing it would let two processes lock two files.
    _file: Flock<File>,
}

/// Says why the lock was not had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("{} is held by {}", path.display(), holder_text(*holder))]
    Held {
        /// The lock file.
        path: PathBuf,
        /// The process, where the kernel tells.
        holder: Option<i32>,
    },
    /// The file cannot be opened.
    #[error("lock file {}: {source}", path.display())]
    File {
        /// The lock file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The waiting was broken off.
    #[error("interrupted while waiting for {}", path.display())]
    Interrupted {
        /// The lock file.
        path: PathBuf,
    },
}

/// The holder in words.
fn holder_text(holder: Option<i32>) -> String {
    holder.map_or("another process".to_owned(), |pid| format!("process {pid}"))
}

impl HostLock {
    /// Takes the lock of this host, waiting up to `wait`; `waiting` is called about ten times a second meanwhile, with
    /// the process that holds it.
    pub fn take(
        wait: Duration,
        waiting: impl FnMut(Option<i32>) -> ControlFlow<()>,
    ) -> Result<HostLock, LockError> {
        let shared = Path::new("/run/lock").join(FILE);
        let own = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join(FILE));
        let (path, file) = match (open(&shared), own) {
            (Ok(file), _) => (shared, file),
            (Err(source), None) => return Err(LockError::File { path: shared, source }),
            (Err(_), Some(own)) => match open(&own) {
                Ok(file) => (own, file),
                Err(source) => return Err(LockError::File { path: own, source }),
            },
        };
        lock(path, file, wait, waiting)
    }
}

/// Locks an open file.
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

/// Opens the lock file, making it where it is not there. Reading is enough for a lock, so a file that another user
/// made is no hindrance. It is never opened and made in one go: in a sticky directory the kernel refuses that for
/// another user's file (fs.protected_regular). A link is not followed.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW.bits();
    for _ in 0..3 {
        match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            opened => return opened,
        }
        let mut new = OpenOptions::new();
        match new.write(true).create_new(true).mode(0o644).custom_flags(flags).open(path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            made => return made,
        }
    }
    Err(io::Error::other("it comes and goes"))
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

    #[test]
    fn a_second_taker_waits_and_then_names_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let go_on = |_| ControlFlow::Continue(());
        let first = lock(path.clone(), open(&path).unwrap(), Duration::ZERO, go_on).unwrap();
        let mut asked = 0;
        let wait = Duration::from_millis(250);
        let second = lock(path.clone(), open(&path).unwrap(), wait, |holder| {
            asked += 1;
            assert_eq!(holder, i32::try_from(std::process::id()).ok());
            ControlFlow::Continue(())
        });
        let text = second.unwrap_err().to_string();
        assert!(text.contains(&format!("held by process {}", std::process::id())), "{text}");
        assert!(asked >= 2, "asked {asked} times");
        let stop = |_| ControlFlow::Break(());
        let broken = lock(path.clone(), open(&path).unwrap(), wait, stop);
        assert!(matches!(broken, Err(LockError::Interrupted { .. })));
        drop(first);
        lock(path.clone(), open(&path).unwrap(), Duration::ZERO, go_on).unwrap();
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join(FILE);
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
        assert!(open(&link).is_err());
        assert!(!dir.path().join("elsewhere").exists());
    }
}
