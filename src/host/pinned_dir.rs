//! A directory that is held while files are written in it: it is resolved once, and whoever may
//! write above it cannot put a link or another directory in its way afterwards. A link of another
//! user on the path is refused: root would write wherever that user likes.

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::geteuid;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// The most links on a path, as in the kernel.
const MOST_LINKS: usize = 40;

/// A directory that is held open.
#[derive(Debug)]
pub struct HeldDir {
    fd: OwnedFd,
    /// Its path without the links that were followed.
    resolved: PathBuf,
}

/// Why a directory is not written in.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "directory-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum HeldError {
    /// A link of another user is on its path.
    #[error("{} is a link of another user (UID {uid}), who could lead it anywhere", link.display())]
    ForeignLink { link: PathBuf, uid: u32 },
    /// The system refuses it.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<HeldError> for io::Error {
    fn from(error: HeldError) -> io::Error {
        match error {
            HeldError::System(error) => error,
            foreign => io::Error::new(io::ErrorKind::PermissionDenied, foreign.to_string()),
        }
    }
}

impl HeldDir {
    /// Opens the directory of a file and returns the file's name in it.
    pub fn of(file: &Path) -> Result<(HeldDir, PathBuf), HeldError> {
        let name = file.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
        let held = HeldDir::open(dir.unwrap_or(Path::new(".")))?;
        let path = held.at(name);
        Ok((held, path))
    }

    /// Opens a directory. Its links are followed one by one, if they belong to root or the caller.
    pub fn open(path: &Path) -> Result<HeldDir, HeldError> {
        let mut fd = start(path.is_absolute())?;
        let mut rest: VecDeque<OsString> = parts(path).collect();
        let (mut links, mut shown) = (0, PathBuf::new());
        while let Some(part) = rest.pop_front() {
            if part == "/" {
                (fd, shown) = (start(true)?, PathBuf::from("/"));
                continue;
            }
            match openat(fd.as_fd(), &*part, directory(), Mode::empty()) {
                Ok(next) => fd = next,
                // A link, or no directory.
                Err(Errno::ELOOP | Errno::ENOTDIR) => {
                    let to = link(&fd, &part, &shown.join(&part))?;
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(io::Error::from(Errno::ELOOP).into());
                    }
                    parts(&to).collect::<Vec<_>>().into_iter().rev().for_each(|part| {
                        rest.push_front(part);
                    });
                    continue;
                }
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
            shown.push(&part);
        }
        Ok(HeldDir { fd, resolved: shown })
    }

    /// The same as [`HeldDir::of`] for the file that a link leads to, where its last part is one.
    pub fn of_target(file: &Path) -> Result<(HeldDir, PathBuf), HeldError> {
        let mut file = file.to_owned();
        for _ in 0..MOST_LINKS {
            let (held, path) = HeldDir::of(&file)?;
            if !path.is_symlink() {
                return Ok((held, path));
            }
            let name = path.file_name().unwrap_or_default();
            let to = link(&held.fd, name, &file)?;
            let next = file.parent().unwrap_or(Path::new("")).join(to);
            // A link of /proc leads to an open file, which may have no path.
            if next.symlink_metadata().is_err() && path.metadata().is_ok() {
                return Ok((held, path));
            }
            file = next;
        }
        Err(io::Error::from(Errno::ELOOP).into())
    }

    /// Opens a directory that this call's user has just made in this one.
    pub fn own(&self, name: &OsStr) -> io::Result<HeldDir> {
        let fd = openat(self.fd.as_fd(), name, directory(), Mode::empty())?;
        if fstat(&fd)?.st_uid != geteuid().as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "another user has put a directory in its place",
            ));
        }
        Ok(HeldDir { fd, resolved: self.resolved.join(name) })
    }

    /// The path of a file in it, whatever its own path leads to now; valid while it is held.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// The path of the directory itself, which is valid while it is held. Where /proc is that of
    /// other processes, it is the resolved path.
    pub fn path(&self) -> PathBuf {
        let held = PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()));
        if held.symlink_metadata().is_ok() { held } else { self.resolved.clone() }
    }
}

fn directory() -> OFlag {
    OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

/// Where a path begins.
fn start(is_absolute: bool) -> io::Result<OwnedFd> {
    let from = if is_absolute { "/" } else { "." };
    Ok(nix::fcntl::open(from, directory(), Mode::empty())?)
}

/// The parts of a path, with `/` as that of an absolute one.
fn parts(path: &Path) -> impl Iterator<Item = OsString> + use<'_> {
    path.components().map(Component::as_os_str).filter(|part| *part != ".").map(OsStr::to_owned)
}

/// Where a link leads to, unless it belongs to another user.
fn link(dir: &OwnedFd, name: &OsStr, shown: &Path) -> Result<PathBuf, HeldError> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let link = openat(dir.as_fd(), name, flags, Mode::empty()).map_err(io::Error::from)?;
    let stat = fstat(&link).map_err(io::Error::from)?;
    // Its target is read of the very link whose owner was read.
    let to = match readlinkat(link.as_fd(), "") {
        Ok(to) => PathBuf::from(to),
        Err(_) => return Err(io::Error::from(Errno::ENOTDIR).into()),
    };
    let own = [0, geteuid().as_raw()];
    if own.contains(&stat.st_uid) {
        return Ok(to);
    }
    Err(HeldError::ForeignLink { link: shown.to_owned(), uid: stat.st_uid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn a_directory_is_held_whatever_its_path_leads_to_later() {
        let dir = tempfile::tempdir().unwrap();
        let [own, other] = ["own", "other"].map(|name| dir.path().join(name));
        std::fs::create_dir(&own).unwrap();
        std::fs::create_dir(&other).unwrap();
        let (held, path) = HeldDir::of(&own.join("a")).unwrap();
        std::fs::rename(&own, dir.path().join("away")).unwrap();
        symlink(&other, &own).unwrap();
        std::fs::write(&path, "x").unwrap();
        assert!(dir.path().join("away/a").exists() && !other.join("a").exists());
        drop(held);
        // A link of one's own is followed, and so is one to a link, and `..`.
        symlink("own/../own", dir.path().join("again")).unwrap();
        let (_held, path) = HeldDir::of(&dir.path().join("again/./b")).unwrap();
        std::fs::write(&path, "x").unwrap();
        assert!(other.join("b").exists());
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(HeldDir::open(&dir.path().join("loop")).is_err());
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(HeldDir::open(&dir.path().join("file")).is_err());
        assert!(HeldDir::open(&dir.path().join("none")).is_err());
    }

    #[test]
    fn a_link_of_another_user_is_not_followed() {
        if !geteuid().is_root() {
            return crate::skip::skip("only root makes a link of another user");
        }
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink("/etc", &link).unwrap();
        HeldDir::open(&link).unwrap();
        let file = dir.path().join("file");
        symlink("/dev/null", &file).unwrap();
        assert_eq!(HeldDir::of_target(&file).unwrap().1.file_name(), Some("null".as_ref()));
        lchown(&file, Some(12345), None).unwrap();
        assert!(HeldDir::of_target(&file).is_err());
        lchown(&link, Some(12345), None).unwrap();
        let error = HeldDir::open(&link).unwrap_err();
        assert!(matches!(error, HeldError::ForeignLink { uid: 12345, .. }), "{error}");
        assert!(error.to_string().contains(link.to_str().unwrap()), "{error}");
    }

    #[test]
    fn a_directory_that_another_user_has_put_there_is_not_used() {
        if !geteuid().is_root() {
            return crate::skip::skip("only root makes a directory of another user");
        }
        let dir = tempfile::tempdir().unwrap();
        let held = HeldDir::open(dir.path()).unwrap();
        let own = dir.path().join("own");
        std::fs::create_dir(&own).unwrap();
        held.own("own".as_ref()).unwrap();
        lchown(&own, Some(12345), None).unwrap();
        assert!(held.own("own".as_ref()).is_err());
        symlink("/etc", dir.path().join("link")).unwrap();
        assert!(held.own("link".as_ref()).is_err());
    }
}
