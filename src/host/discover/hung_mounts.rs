//! Unresponsive file systems of this machine: an unreachable server, a hung FUSE daemon. Accessing
//! a file on one blocks forever, and under the host's lock blocks everybody else. So another
//! program probes such file systems first, and files on an unresponsive one are known by name only.

use crate::command::{CommandError, output_of};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The kernel's list of mounts for this process.
const MOUNTS: &str = "/proc/self/mountinfo";
/// File system types served over a network or by a process; FUSE types have a suffix after `.`.
const SERVED: [&str; 17] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse",
    "fuseblk",
    "gfs2",
    "glusterfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "smb3",
    "virtiofs",
];
/// Time limit for a file system to report its size, in seconds.
const ANSWER_S: u64 = 5;
/// File systems probed at the same time.
const AT_ONCE: usize = 32;
/// How long a result is valid.
const COUNTS: Duration = Duration::from_secs(30);
/// The most links of one path that the kernel follows.
const MOST_LINKS: usize = 40;

/// The mount points of unresponsive file systems.
#[derive(Debug, Clone, Default)]
pub struct Silent(Vec<PathBuf>);

impl Silent {
    /// Probes all file systems that can be unresponsive.
    pub fn read() -> Silent {
        /// The last result and its time.
        static LAST: Mutex<Option<(Instant, Silent)>> = Mutex::new(None);
        let served = served(&std::fs::read(MOUNTS).unwrap_or_default());
        if served.is_empty() {
            return Silent::default();
        }
        let Ok(mut last) = LAST.lock() else { return Silent::default() };
        if let Some((at, silent)) = &*last
            && at.elapsed() < COUNTS
        {
            return silent.clone();
        }
        let silent = match (answer(&served), &served[..]) {
            (true, _) => Silent::default(),
            (false, [_]) => Silent(served),
            (false, _) => Silent(none_of(served)),
        };
        last.insert((Instant::now(), silent)).1.clone()
    }

    /// Whether all respond.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns why a path cannot be accessed; `None` if it can.
    pub fn why(&self, path: &Path) -> Option<String> {
        let at = self.at(path)?;
        Some(format!("the file system at {} does not answer", at.display()))
    }

    /// Returns the unresponsive file system that a path leads to or through, without accessing it.
    fn at(&self, path: &Path) -> Option<&Path> {
        if self.0.is_empty() {
            return None;
        }
        let parts = |path: &Path| -> Vec<OsString> {
            let parts = path.components().rev();
            let named =
                parts.filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
            named.map(|part| part.as_os_str().to_owned()).collect()
        };
        let (mut rest, mut here, mut links) = (parts(path), PathBuf::from("/"), 0);
        while let Some(part) = rest.pop() {
            if part == ".." {
                here.pop();
                continue;
            }
            here.push(part);
            if let Some(silent) = self.0.iter().find(|silent| **silent == here) {
                return Some(silent);
            }
            let Ok(target) = std::fs::read_link(&here) else { continue };
            links += 1;
            if links > MOST_LINKS {
                return None;
            }
            here =
                if target.is_absolute() { PathBuf::from("/") } else { here.parent()?.to_owned() };
            rest.extend(parts(&target));
        }
        None
    }
}

/// Returns the mount points of file systems that can be unresponsive.
fn served(mounts: &[u8]) -> Vec<PathBuf> {
    let line = |line: &[u8]| {
        let mut words = line.split(|&byte| byte == b' ');
        let at = bytes_of(words.nth(4)?);
        let kind = words.skip_while(|word| *word != b"-").nth(1)?;
        let is_served =
            kind.starts_with(b"fuse.") || SERVED.iter().any(|served| served.as_bytes() == kind);
        is_served.then(|| PathBuf::from(OsString::from_vec(at)))
    };
    mounts.split(|&byte| byte == b'\n').filter_map(line).collect()
}

/// Returns those that do not report their size in time, each probed separately, many in parallel.
fn none_of(mut mounts: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut silent = Vec::new();
    while !mounts.is_empty() {
        let some: Vec<PathBuf> = mounts.drain(..mounts.len().min(AT_ONCE)).collect();
        std::thread::scope(|scope| {
            let ask = |at: PathBuf| {
                scope.spawn(move || (!answer(std::slice::from_ref(&at))).then_some(at))
            };
            let asked: Vec<_> = some.into_iter().map(ask).collect();
            silent.extend(asked.into_iter().filter_map(|asked| asked.join().ok().flatten()));
        });
    }
    silent
}

/// Whether all of these report their size in time.
fn answer(mounts: &[PathBuf]) -> bool {
    let options = ["--file-system", "--format=", "--"];
    let paths = mounts.iter().map(|at| at.as_os_str());
    let arguments: Vec<&OsStr> = options.iter().map(OsStr::new).chain(paths).collect();
    !matches!(output_of("stat", &arguments, ANSWER_S), Err(CommandError::Late { .. }))
}

/// The escapes of the kernel's mount lists, each with its byte.
const ESCAPES: [(&str, u8); 5] =
    [("\\040", b' '), ("\\011", b'\t'), ("\\012", b'\n'), ("\\043", b'#'), ("\\134", b'\\')];

/// Replaces the escapes of the kernel's mount lists (`\040` for a blank).
pub fn unescaped(text: &str) -> String {
    ESCAPES.iter().fold(text.to_owned(), |text, (from, to)| {
        text.replace(from, char::from(*to).encode_utf8(&mut [0; 4]))
    })
}

/// Replaces the escapes of a word of these lists, a backslash and three octal digits, in a name
/// that may not be text.
pub(crate) fn bytes_of(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let text = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match text.and_then(|text| u8::from_str_radix(text, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_may_hang_are_recognised_by_type() {
        let mounts = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      30 22 0:41 / /mnt/my\\040share rw shared:1 - nfs4 server:/x rw\n\
                      31 22 0:42 / /run/f rw - fuse.sshfs h:/ rw\n32 22 0:43 / /sys/f rw - fusectl f rw\n\
                      33 22 0:44 / /m\xfc\\043l\\134040 rw - nfs s:/ rw\n";
        let latin = PathBuf::from(OsString::from_vec(b"/m\xfc#l\\040".to_vec()));
        let paths = ["/mnt/my share".into(), "/run/f".into(), latin];
        assert_eq!(served(mounts), paths);
        assert!(answer(&["/".into(), "/proc".into()]) && answer(&["/absent".into()]));
        assert_eq!(none_of(vec!["/".into(); AT_ONCE + 1]), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_path_leads_to_a_silent_file_system_by_links_too() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        std::fs::create_dir(at("dead")).unwrap();
        std::os::unix::fs::symlink("dead/below", at("relative")).unwrap();
        std::os::unix::fs::symlink(at("relative"), at("absolute")).unwrap();
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        let silent = Silent(vec![at("dead")]);
        for path in ["dead", "dead/a", "relative/a", "absolute", "x/../dead/a"] {
            assert_eq!(silent.at(&at(path)), Some(&*at("dead")), "{path}");
        }
        for path in ["deader/a", "a", "loop/a"] {
            assert_eq!(silent.at(&at(path)), None, "{path}");
        }
        assert!(silent.why(&at("dead/a")).unwrap().contains("does not answer"));
        assert_eq!(Silent::default().why(&at("dead/a")), None);
    }
}
