//! Finds processes that have a block device or a file system open. Limited to processes visible to
//! the caller: without root, only the caller's own.

use super::hung_mounts::Silent;
use crate::fsroot::{Dir, FsError, FsRoot};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{major, minor};
use serde::Serialize;
use std::fmt;
use std::fs::{Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// A process that has something open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Opener {
    /// Its id.
    pub pid: u32,
    /// Its short name, as the kernel has it.
    pub command: String,
}

impl fmt::Display for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.command)
    }
}

/// The target of a search.
#[derive(Debug, Clone, Copy)]
pub enum Sought<'a> {
    /// A block device: its number, `major:minor`, and its path below /dev for use without numbers.
    Device(&'a str, &'a str),
    /// Anything on a file system of this number, or, without numbers, below this path.
    FileSystem(&'a str, &'a str),
}

/// Returns processes that have one of these open, with its index; by process.
pub fn openers(root: &FsRoot, sought: &[Sought<'_>]) -> Result<Vec<(usize, Opener)>, FsError> {
    let mut found = Vec::new();
    if sought.is_empty() {
        return Ok(found);
    }
    let silent = if root.is_live() { Silent::read() } else { Silent::default() };
    let wants_maps = sought.iter().any(|one| matches!(one, Sought::FileSystem(..)));
    for name in root.names("proc")? {
        let Ok(pid) = name.parse::<u32>() else { continue };
        if pid == std::process::id() && root.is_live() {
            continue;
        }
        // A process may end meanwhile, or be inaccessible.
        let Ok(Some(dir)) = root.dir(&format!("proc/{name}")) else { continue };
        let mut has = vec![false; sought.len()];
        let mut look = |dir: &Dir<'_>, file: &str| {
            let Some(file) = dir.opened(file, &silent) else { return };
            for (has, sought) in has.iter_mut().zip(sought) {
                *has = *has || file.is(sought);
            }
        };
        if let Ok(Some(fds)) = dir.dir("fd") {
            for fd in fds.names().unwrap_or_default() {
                look(&fds, &fd);
            }
        }
        if wants_maps {
            ["cwd", "root", "exe"].into_iter().for_each(|file| look(&dir, file));
            let maps = dir.read_if_any("maps").ok().flatten().unwrap_or_default();
            for (has, sought) in has.iter_mut().zip(sought) {
                let Sought::FileSystem(number, _) = sought else { continue };
                *has = *has || maps.lines().any(|line| mapped(line).as_deref() == Some(*number));
            }
        }
        if has.iter().any(|has| *has) {
            let command = dir.read_if_any("comm").ok().flatten().unwrap_or_else(|| "?".to_owned());
            for (at, _) in has.iter().enumerate().filter(|(_, has)| **has) {
                found.push((at, Opener { pid, command: command.clone() }));
            }
        }
    }
    found.sort_by_key(|(at, opener)| (*at, opener.pid));
    Ok(found)
}

/// The number of the file system that a line of /proc/PID/maps maps a file of.
fn mapped(line: &str) -> Option<String> {
    let (high, low) = line.split_whitespace().nth(3)?.split_once(':')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    Some(format!("{}:{}", number(high)?, number(low)?))
}

/// An open file of a process.
struct Opened {
    target: String,
    /// Its device number if it is a block device, and that of its file system; none on a recorded
    /// host.
    numbers: Option<(Option<String>, String)>,
}

impl Opened {
    /// Whether it is the one sought.
    fn is(&self, sought: &Sought<'_>) -> bool {
        match (sought, &self.numbers) {
            (Sought::Device(number, _), Some((device, _))) => device.as_deref() == Some(*number),
            (Sought::FileSystem(number, _), Some((_, on))) => on == number,
            (Sought::Device(_, path), None) => self.target == *path,
            (Sought::FileSystem(_, at), None) => Path::new(&self.target).starts_with(at),
        }
    }
}

impl Dir<'_> {
    /// An open file of a process by the link to it; none if it is not a file, or must not be
    /// inspected because its file system does not respond.
    fn opened(&self, link: &str, silent: &Silent) -> Option<Opened> {
        let target = self.link(link).ok().flatten()?;
        if !target.starts_with('/') || silent.why(Path::new(&target)).is_some() {
            return None;
        }
        let numbers = self.numbers(link).map(|(is_block, rdev, dev)| {
            let text = |number| format!("{}:{}", major(number), minor(number));
            (is_block.then(|| text(rdev)), text(dev))
        });
        Some(Opened { target, numbers })
    }
}

/// Describes the users of a file of this machine now: a process that has it open for writing, or a
/// QEMU on another machine, through a shared file system. `reads`: it will only be read, which is
/// compatible with other readers.
pub fn in_use(path: &Path, reads: bool) -> Option<String> {
    let meta = path.metadata().ok().filter(Metadata::is_file)?;
    match writer(meta.dev(), meta.ino()) {
        Some(writer) => Some(format!("{writer} has it open for writing")),
        None => is_locked(path, reads)
            .then(|| "a QEMU that cannot be seen from here has it locked".into()),
    }
}

/// Whether a QEMU has a disk open, on this machine or another: each locks bytes for its permissions
/// (from 100) and for those it denies to others (from 200), the second of each for writing, as
/// `docs/system/qemu-block-drivers.rst.inc` of QEMU says under "Disk image file locking";
/// `block/file-posix.c` has the numbers.
fn is_locked(path: &Path, written: bool) -> bool {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path) else {
        return false;
    };
    let (l_start, l_len) = if written { (101, 1) } else { (100, 200) };
    let mut asked = nix::libc::flock {
        l_type: nix::libc::F_WRLCK as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start,
        l_len,
        l_pid: 0,
    };
    let answered = fcntl(&file, FcntlArg::F_OFD_GETLK(&mut asked));
    answered.is_ok() && i32::from(asked.l_type) != nix::libc::F_UNLCK
}

/// A process that has a file open for writing; inaccessible processes are not seen.
fn writer(dev: u64, ino: u64) -> Option<Opener> {
    let (own, silent) = (std::process::id(), Silent::read());
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        for file in files.flatten().filter(|_| pid != own) {
            let target = || std::fs::read_link(file.path()).unwrap_or_default();
            if !silent.is_empty() && silent.why(&target()).is_some() {
                continue;
            }
            // A cheap filter: few of the many files are this one.
            if !file.path().metadata().is_ok_and(|m| m.dev() == dev && m.ino() == ino) {
                continue;
            }
            let info = process.path().join("fdinfo").join(file.file_name());
            if writes(&std::fs::read_to_string(info).unwrap_or_default()) {
                let command = std::fs::read_to_string(process.path().join("comm"));
                let command = command.map_or("?".into(), |name| name.trim().to_owned());
                return Some(Opener { pid, command });
            }
        }
    }
    None
}

/// Whether a file is open for writing, by `flags:` of its fdinfo, in octal.
fn writes(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & 3 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn processes_of_a_recorded_host_are_found_by_their_links() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc");
        for pid in ["7", "12", "self", "13"] {
            std::fs::create_dir_all(proc.join(pid).join("fd")).unwrap();
            std::fs::write(proc.join(pid).join("comm"), format!("p{pid}\n")).unwrap();
        }
        symlink("/dev/nvme0n1", proc.join("12/fd/5")).unwrap();
        symlink("/dev/nvme0n10", proc.join("7/fd/5")).unwrap();
        symlink("socket:[1]", proc.join("7/fd/6")).unwrap();
        symlink("/raid/x", proc.join("7/cwd")).unwrap();
        symlink("/raids", proc.join("12/cwd")).unwrap();
        std::fs::write(proc.join("13/maps"), "7f-7f r-xp 00000000 09:01 12   /raid/lib\nx\n")
            .unwrap();
        std::fs::create_dir_all(proc.join("99")).unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let sought = [Sought::Device("259:0", "/dev/nvme0n1"), Sought::FileSystem("9:1", "/raid")];
        let found: Vec<String> = openers(&root, &sought)
            .unwrap()
            .iter()
            .map(|(at, opener)| format!("{at} {opener}"))
            .collect();
        assert_eq!(found, ["0 process 12 (p12)", "1 process 7 (p7)", "1 process 13 (p13)"]);
        assert!(openers(&root, &[]).unwrap().is_empty());
    }

    #[test]
    fn a_process_of_this_machine_is_found_by_the_file_system_it_stands_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = crate::program::command("sleep");
        let mut child = child.arg("60").current_dir(dir.path()).spawn().unwrap();
        let dev = dir.path().metadata().unwrap().dev();
        let number = format!("{}:{}", major(dev), minor(dev));
        let root = FsRoot::live().unwrap();
        let found = openers(&root, &[Sought::FileSystem(&number, "")]).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.iter().any(|(_, opener)| opener.pid == child.id()), "{found:?}");
    }

    #[test]
    fn a_file_that_is_written_or_locked_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.raw");
        std::fs::write(&path, vec![0; 512]).unwrap();
        let in_use_of = |path: &Path| in_use(path, false);
        assert_eq!(in_use_of(&path), None);
        assert_eq!(in_use_of(&dir.path().join("absent")), None);
        let locker = std::fs::File::open(&path).unwrap();
        let lock = |at, kind| {
            let lock = nix::libc::flock {
                l_type: kind as i16,
                l_whence: nix::libc::SEEK_SET as i16,
                l_start: at,
                l_len: 1,
                l_pid: 0,
            };
            fcntl(&locker, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
        };
        // A byte that QEMU does not use.
        lock(99, nix::libc::F_RDLCK);
        assert_eq!(in_use_of(&path), None);
        lock(201, nix::libc::F_RDLCK);
        assert!(in_use_of(&path).unwrap().contains("locked"));
        // A reader is compatible with other readers.
        assert_eq!(in_use(&path, true), None);
        lock(101, nix::libc::F_RDLCK);
        assert!(in_use(&path, true).unwrap().contains("locked"));
        lock(101, nix::libc::F_UNLCK);
        lock(201, nix::libc::F_UNLCK);
        assert_eq!(in_use_of(&path), None);
        assert!(writes("pos:\t0\nflags:\t0100002\n") && !writes("flags:\t0100000\n"));
    }
}
