//! The only reader of the host's files: everything is read below a root directory, so that recorded
//! and live hosts look the same to the rest of the program.
//!
//! On a recorded host no symbolic link leads out of the root: the kernel resolves every path as if
//! the root were `/`, so absolute links and `..` stay inside. Files are opened relative to an open
//! directory: a host has thousands of them, and the long paths of sysfs would otherwise be resolved
//! for each. This module knows nothing of the files' content.

mod head;
mod kept_file;
mod kind;
mod node;

pub use kept_file::{KeptFile, KeptLimit};
pub use kind::FileKind;
pub use node::NodeNumber;

use gpuvm_core::topology::file::MOST_STRING;
use nix::dir::Dir as Listing;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::Mode;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use tracing::debug;

/// The largest sysfs attribute in bytes; longer files are read in pieces.
const PAGE: usize = 4096;
/// The largest file in bytes; the longest one read, mountinfo, has some hundred KiB on busy hosts.
const LARGEST: usize = 8 << 20;
/// Returns the largest size of a file in bytes: files below /sys and /proc/sys have one value each.
fn longest(path: &str) -> usize {
    let path = path.trim_start_matches('/');
    let is_value = |below: &str| path.starts_with(below);
    if is_value("sys/") || is_value("proc/sys/") || path == "proc/cmdline" {
        MOST_STRING
    } else {
        LARGEST
    }
}

/// Whether the kernel generates this file, so that its content cannot be written back.
fn is_of_kernel(path: &str) -> bool {
    let path = path.trim_start_matches('/');
    let is_below = ["proc/", "sys/"].iter().any(|below| path.starts_with(below));
    is_below && !path.ends_with("/driver_override")
}

/// Text that is not UTF-8, with the other bytes as escapes.
fn escaped(error: std::string::FromUtf8Error) -> String {
    readable(error.as_bytes())
}

/// Bytes as text: those that are not UTF-8 become escapes such as `\xfc`.
pub fn readable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text += chunk.valid();
        text.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    text
}

/// The directories of gpuvm's own configuration and state.
const OURS: [&str; 2] = ["etc/gpuvm/", "var/lib/gpuvm/"];
/// The reason not to take a link to nowhere as an absent file.
pub const DANGLING: &str = "it is a symbolic link to a missing file";

/// How often to retry opening a path that the kernel could not keep below the root because of a
/// race.
const RETRIES: usize = 1000;

/// The error of a host's file. Paths are those below the root, prefixed by the root.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "host-file-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum FsError {
    /// The system refuses.
    #[error("cannot read {path}: {source}")]
    Unreadable { path: String, source: std::io::Error },
    /// The file is not text or not of a sensible size.
    #[error("{path}: {reason}")]
    NotText { path: String, reason: String },
    /// Others than root may have written a file that counts only if they cannot.
    #[error("others than root may have written {path}: {why}")]
    Untrusted { path: String, why: String },
    /// The text is not as expected.
    #[error("{path} line {line}: {reason}")]
    Malformed {
        path: String,
        /// Line, from 1.
        line: usize,
        reason: String,
    },
}

/// The root directory that a host's files are read below.
#[derive(Debug)]
pub struct FsRoot {
    root: OwnedFd,
    /// Its path.
    path: PathBuf,
    /// How paths below the root are resolved.
    resolve: Resolve,
}

/// How paths below the root are resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resolve {
    /// This machine: as for any program.
    Live,
    /// A recorded host: the kernel keeps the path below the root.
    InRoot,
    /// A recorded host on a kernel without `openat2` (before 5.6): paths that lead outside count as
    /// missing.
    Checked,
}

/// The beginning of all documents of ours.
#[derive(serde::Deserialize)]
struct Head {
    version: u32,
}

/// How the end of a file is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// By an empty read: files of /proc may return less than requested before the end.
    Empty,
    /// By a read shorter than a page: attributes of /sys. Saves a call for each of some thousand
    /// files.
    Short,
}

/// An open directory of a host.
#[derive(Debug)]
pub struct Dir<'r> {
    root: &'r FsRoot,
    fd: OwnedFd,
    /// Its path below the root, for error texts and for [`Dir::dir`].
    path: String,
}

impl FsRoot {
    /// This machine.
    pub fn live() -> Result<FsRoot, FsError> {
        Ok(FsRoot { resolve: Resolve::Live, ..FsRoot::open_root(Path::new("/"))? })
    }

    /// A recorded host: a directory with its `sys` and `proc`.
    pub fn at(dir: &Path) -> Result<FsRoot, FsError> {
        FsRoot::open_root(dir)
    }

    /// Opens the root and finds out how the kernel can keep paths below it.
    fn open_root(dir: &Path) -> Result<FsRoot, FsError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let unreadable =
            |e: Errno| FsError::Unreadable { path: dir.display().to_string(), source: e.into() };
        let root = nix::fcntl::open(dir, flags, Mode::empty()).map_err(unreadable)?;
        let resolve = match openat2(&root, ".", in_root(flags)) {
            Ok(_) => Resolve::InRoot,
            Err(_) => Resolve::Checked,
        };
        Ok(FsRoot { root, path: dir.to_owned(), resolve })
    }

    /// Whether this is the machine that the program runs on.
    pub fn is_live(&self) -> bool {
        self.resolve == Resolve::Live
    }

    /// The root's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory; none where it is missing. `path` is relative to the root and may contain
    /// `..`.
    pub fn dir(&self, path: &str) -> Result<Option<Dir<'_>>, FsError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let fd = absent(self.open(path, flags)).map_err(|e| self.unreadable(path, e))?;
        if fd.is_none() {
            self.refuse_dangling(path)?;
        }
        Ok(fd.map(|fd| Dir { root: self, fd, path: path.to_owned() }))
    }

    /// Whether a file, a directory or the target of a link exists.
    pub fn exists(&self, path: &str) -> bool {
        self.open(path, OFlag::O_PATH).is_ok()
    }

    /// Reads a text file without surrounding white space; none where it is missing.
    pub fn read(&self, path: &str) -> Result<Option<String>, FsError> {
        let fd = absent(self.open(path, OFlag::O_RDONLY)).map_err(|e| self.unreadable(path, e))?;
        if fd.is_none() {
            self.refuse_dangling(path)?;
        }
        fd.map(|fd| self.text(&fd, path, Ends::Empty)).transpose()
    }

    /// Refuses a path of ours that is missing behind a symbolic link: an admin wanted a policy or a
    /// list of exclusions there, and without it GPUs would be offered that it withholds.
    fn refuse_dangling(&self, path: &str) -> Result<(), FsError> {
        let path = path.trim_start_matches('/');
        if !OURS.iter().any(|below| path.starts_with(below)) {
            return Ok(());
        }
        let mut above = Path::new(path).ancestors().filter_map(Path::to_str);
        match above.find(|at| !at.is_empty() && !self.exists(at) && self.is_entry(at)) {
            Some(at) => Err(FsError::Unreadable {
                path: self.shown(at),
                source: std::io::Error::other(DANGLING),
            }),
            None => Ok(()),
        }
    }

    /// Whether a name exists, be it that of a link to nowhere.
    fn is_entry(&self, path: &str) -> bool {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match self.resolve {
            Resolve::Live => openat(&self.root, path, flags, Mode::empty()).is_ok(),
            Resolve::InRoot => openat2(&self.root, path, in_root(flags)).is_ok(),
            Resolve::Checked => self.path.join(path).symlink_metadata().is_ok(),
        }
    }

    /// Reads the whole lines within the first 4 KiB of a text file: /proc/cpuinfo is long and slow
    /// to generate, and its first processor is enough.
    pub fn read_head(&self, path: &str) -> Result<Option<String>, FsError> {
        let fd = absent(self.open(path, OFlag::O_RDONLY)).map_err(|e| self.unreadable(path, e))?;
        let Some(fd) = fd else { return Ok(None) };
        self.reads(path);
        let mut page = [0; PAGE];
        let length = nix::unistd::read(&fd, &mut page).map_err(|e| self.unreadable(path, e))?;
        let end = match page[..length].iter().rposition(|&byte| byte == b'\n') {
            Some(newline) if length == PAGE => newline,
            _ => length,
        };
        self.utf8(page[..end].to_vec(), path).map(Some)
    }

    /// Whether the first 32 KiB of a file, text or not, contain these bytes; false if unreadable.
    pub fn has_bytes(&self, path: &str, bytes: &[u8]) -> bool {
        let all = self.bytes(path).unwrap_or_default();
        all.windows(bytes.len()).any(|window| window == bytes)
    }

    /// Reads the first 32 KiB of a file, text or not; none if it is missing or unreadable.
    pub fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let fd = self.open(path, OFlag::O_RDONLY).ok()?;
        self.reads(path);
        let mut all = vec![0; 8 * PAGE];
        let mut length = 0;
        while let Ok(more @ 1..) = nix::unistd::read(&fd, &mut all[length..]) {
            length += more;
        }
        all.truncate(length);
        Some(all)
    }

    /// Names in a directory, sorted; empty where it is missing.
    pub fn names(&self, path: &str) -> Result<Vec<String>, FsError> {
        match self.dir(path)? {
            Some(dir) => dir.names(),
            None => Ok(Vec::new()),
        }
    }

    /// Opens a path below the root in the way suited to the host.
    fn open(&self, path: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
        let path = match path.trim_start_matches('/') {
            "" => ".",
            path => path,
        };
        let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        match self.resolve {
            Resolve::Live => openat(&self.root, path, flags, Mode::empty()),
            Resolve::InRoot => {
                let flags = if flags.contains(OFlag::O_PATH) { OFlag::O_PATH } else { flags };
                let open = || openat2(&self.root, path, in_root(flags));
                // The kernel returns this if anything on the machine is renamed while it follows a
                // `..`.
                let raced = |fd: &Result<OwnedFd, Errno>| matches!(fd, Err(Errno::EAGAIN));
                (0..RETRIES).map(|_| open()).find(|fd| !raced(fd)).unwrap_or_else(open)
            }
            Resolve::Checked => {
                let inside = |full: &PathBuf| {
                    self.path.canonicalize().is_ok_and(|root| full.starts_with(root))
                };
                match self.path.join(path).canonicalize().ok().filter(inside) {
                    Some(full) => nix::fcntl::open(&full, flags, Mode::empty()),
                    None => Err(Errno::ENOENT),
                }
            }
        }
    }

    /// Reads an open file to its end.
    fn text(&self, fd: &OwnedFd, path: &str, ends: Ends) -> Result<String, FsError> {
        self.reads(path);
        let mut page = [0; PAGE];
        let mut bytes = Vec::new();
        loop {
            let length = nix::unistd::read(fd, &mut page).map_err(|e| self.unreadable(path, e))?;
            if length == 0 || (ends == Ends::Short && length < PAGE && bytes.is_empty()) {
                bytes.extend_from_slice(&page[..length]);
                break;
            }
            let most = longest(path);
            if bytes.len() + length > most {
                let reason = format!("longer than {most} bytes");
                return Err(FsError::NotText { path: self.shown(path), reason });
            }
            bytes.extend_from_slice(&page[..length]);
        }
        self.utf8(bytes, path)
    }

    /// Checks that bytes are text and trims it. Some kernels end a list of pcpus with a zero byte.
    /// Text from the kernel contains names chosen by others, such as mount points, and strings of
    /// the firmware: other bytes in these are shown as escapes.
    fn utf8(&self, bytes: Vec<u8>, path: &str) -> Result<String, FsError> {
        let blank = |c: char| c.is_whitespace() || c == '\0';
        let text = String::from_utf8(bytes);
        let reason = match if is_of_kernel(path) { Ok(text.unwrap_or_else(escaped)) } else { text }
        {
            Ok(text) => {
                let trimmed = text.trim_start().trim_end_matches(blank);
                if !trimmed.contains('\0') {
                    let same = trimmed.len() == text.len();
                    return Ok(if same { text } else { trimmed.to_owned() });
                }
                "not a text: it holds a zero byte".to_owned()
            }
            Err(error) => {
                format!("not a text: byte {} is not UTF-8", error.utf8_error().valid_up_to())
            }
        };
        Err(FsError::NotText { path: self.shown(path), reason })
    }

    /// Makes the error of a refusal by the system.
    fn unreadable(&self, path: &str, errno: Errno) -> FsError {
        FsError::Unreadable { path: self.shown(path), source: errno.into() }
    }

    /// Makes the error for a text that is not as expected; `line` counts from 1.
    pub fn malformed(&self, path: &str, line: usize, reason: impl ToString) -> FsError {
        FsError::Malformed { path: self.shown(path), line, reason: reason.to_string() }
    }

    /// Reads a JSON document of ours, with its format and version as `of` finds them; none where it
    /// is missing.
    pub fn document<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        known: (&str, u32),
        of: impl for<'t> Fn(&'t T) -> (&'t str, u32),
    ) -> Result<Option<T>, FsError> {
        let Some(text) = self.read(path)? else { return Ok(None) };
        // Additions of a newer version would look like damage.
        let head = serde_json::from_str::<Head>(&text).ok();
        if let Some(Head { version }) = head.filter(|head| head.version > known.1) {
            let reason = format!(
                "version {version} is of a newer gpuvm; this one reads version {}",
                known.1
            );
            return Err(self.malformed(path, 1, reason));
        }
        let document: T = serde_json::from_str(&text).map_err(|error| {
            let said = error.to_string();
            let reason = said.rsplit_once(" at line ").map_or(said.as_str(), |(text, _)| text);
            self.malformed(path, error.line().max(1), reason)
        })?;
        let (found, (format, version)) = (of(&document), known);
        if found != known {
            let reason = format!(
                "it is `{}` version {}, not `{format}` version {version}",
                found.0, found.1
            );
            return Err(self.malformed(path, 1, reason));
        }
        Ok(Some(document))
    }

    /// Traces that a file or a directory is read.
    fn reads(&self, path: &str) {
        debug!("read {}", self.shown(path));
    }

    /// Returns a path as shown in errors.
    pub(crate) fn shown(&self, path: &str) -> String {
        self.path.join(path.trim_start_matches('/')).display().to_string()
    }
}

impl<'r> Dir<'r> {
    /// Its path below the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The path of a file in it, below the root.
    pub fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Reads a file of the directory without surrounding white space; none where it is missing.
    /// `name` has no `/`.
    pub fn read(&self, name: &str) -> Result<Option<String>, FsError> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let flags = if self.root.is_live() { flags } else { flags | OFlag::O_NOFOLLOW };
        debug_assert!(!name.contains('/') && name != "..", "{name} is in another directory");
        match absent(openat(&self.fd, name, flags, Mode::empty())) {
            Ok(Some(fd)) => self.root.text(&fd, &self.path_of(name), Ends::Short).map(Some),
            Ok(None) => Ok(None),
            Err(errno) => Err(self.root.unreadable(&self.path_of(name), errno)),
        }
    }

    /// Reads a file that the kernel refuses if the hardware has no value (a link speed of a
    /// function that is not PCIe, a partition of a removed drive): also none.
    pub fn read_if_any(&self, name: &str) -> Result<Option<String>, FsError> {
        match self.read(name) {
            Err(FsError::Unreadable { .. }) => Ok(None),
            other => other,
        }
    }

    /// Reads a decimal number; none where the file is missing.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, FsError> {
        self.parse(name, |text| text.parse().ok(), "a number in range")
    }

    /// Reads a hexadecimal number with the prefix `0x`; none where the file is missing.
    pub fn hex<T: TryFrom<u32>>(&self, name: &str) -> Result<Option<T>, FsError> {
        let parse = |text: &str| {
            let digits = text.strip_prefix("0x")?;
            let value = u32::from_str_radix(digits, 16).ok()?;
            if digits.starts_with('+') { None } else { T::try_from(value).ok() }
        };
        self.parse(name, parse, "a number such as 0x10de in range")
    }

    /// Reads one value; `wanted` describes the expected value in errors.
    pub fn parse<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Option<T>,
        wanted: &str,
    ) -> Result<Option<T>, FsError> {
        let Some(text) = self.read(name)? else { return Ok(None) };
        match parse(&text) {
            Some(value) => Ok(Some(value)),
            None => Err(self.malformed(name, 1, not(&text, wanted))),
        }
    }

    /// Returns the target of a symbolic link, unresolved; none if it is missing or not a link. The
    /// tools that made some records add a slash to every target, which the kernel never does.
    pub fn link(&self, name: &str) -> Result<Option<String>, FsError> {
        match readlinkat(&self.fd, name) {
            Ok(target) => match target.into_string() {
                Ok(target) => Ok(Some(target.trim_end_matches('/').to_owned())),
                // A file that a process has open can have any name.
                Err(target) if is_of_kernel(&self.path) => Ok(Some(readable(target.as_bytes()))),
                Err(_) => {
                    let reason = "the link's target is not UTF-8".into();
                    Err(FsError::NotText { path: self.root.shown(&self.path_of(name)), reason })
                }
            },
            Err(Errno::EINVAL) => Ok(None),
            Err(errno) => {
                absent(Err(errno)).map_err(|errno| self.root.unreadable(&self.path_of(name), errno))
            }
        }
    }

    /// The last name in a symbolic link's target: the kernel names drivers, groups and bridges like
    /// this.
    pub fn link_name(&self, name: &str) -> Result<Option<String>, FsError> {
        let target = self.link(name)?;
        Ok(target.and_then(|t| t.rsplit('/').next().filter(|n| !n.is_empty()).map(str::to_owned)))
    }

    /// Names in it, sorted.
    pub fn names(&self) -> Result<Vec<String>, FsError> {
        self.root.reads(&self.path);
        let unreadable = |errno| self.root.unreadable(&self.path, errno);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut listing =
            Listing::openat(&self.fd, ".", flags, Mode::empty()).map_err(unreadable)?;
        let mut names = Vec::new();
        for entry in listing.iter() {
            let entry = entry.map_err(unreadable)?;
            match entry.file_name().to_str() {
                Ok("." | "..") => {}
                Ok(name) => names.push(name.to_owned()),
                Err(_) => {
                    let reason = "a name in it is not UTF-8".into();
                    return Err(FsError::NotText { path: self.root.shown(&self.path), reason });
                }
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Opens a directory below this one; none where it is missing.
    pub fn dir(&self, name: &str) -> Result<Option<Dir<'r>>, FsError> {
        self.root.dir(&self.path_of(name))
    }

    /// Makes the error for a text that is not as expected; `line` counts from 1.
    pub fn malformed(&self, name: &str, line: usize, reason: impl ToString) -> FsError {
        self.root.malformed(&self.path_of(name), line, reason)
    }
}

/// Returns the flags that keep a path below the root; without magic links, which lead anywhere.
fn in_root(flags: OFlag) -> OpenHow {
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    OpenHow::new().flags(flags).resolve(resolve)
}

/// Converts the error of a missing file to none.
fn absent<T>(result: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns the message that a text is not as wanted; with its start only.
pub fn not(text: &str, wanted: &str) -> String {
    let start: String =
        text.chars().take(40).map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("`{start}` is not {wanted}")
}

#[cfg(test)]
mod tests;
