//! The only reader of files that a user names on the command line: definitions, templates, recorded
//! hosts, keys, seeds.
//!
//! The type of the open file is checked before a byte is read: a regular file of a real file
//! system, or a pipe given to this process (`-`, `<(...)`, `/dev/stdin`). Everything else is
//! refused, since opening or reading it may have side effects (a device, /proc/kmsg), block (a
//! named pipe) or never end (/dev/zero). Every kind of input has a size limit.

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::statfs::fstatfs;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The largest domain definition or template in bytes.
pub const DOMAIN_BYTES: u64 = 16 << 20;
/// The largest file of gpuvm's own state in bytes.
pub const STATE_BYTES: u64 = 64 << 20;
/// How long a pipe may be silent.
const SILENCE: Duration = Duration::from_secs(60);
/// Pseudo file systems (statfs(2)), whose files have no known length, and may be endless or
/// consumed by reading.
const PSEUDO: [(i64, &str); 14] = [
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x6360_7470, "configfs"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x7363_6673, "securityfs"),
    (0xf97c_ff8c, "selinuxfs"),
    (0xcafe_4a11, "bpf"),
    (0xde5e_81e4, "efivarfs"),
    (0x6165_676c, "pstore"),
    (0x1cd1, "devpts"),
    (0x1980_0202, "mqueue"),
];

/// The reason a file named by the user is not read.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "input-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum InputError {
    /// The system refuses.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// It is of a kind that is not read.
    #[error("{} is {kind}, not a regular file", path.display())]
    #[strum(to_string = "type")]
    Kind { path: PathBuf, kind: String },
    /// It exceeds the limit of its kind.
    #[error("{} has {}, more than the limit of {limit} bytes", path.display(), size_text(*bytes))]
    #[strum(to_string = "length")]
    Long {
        path: PathBuf,
        /// Its size; `None` if larger than the limit.
        bytes: Option<u64>,
        /// The limit in bytes.
        limit: u64,
    },
    /// It is not text.
    #[error("{} is not UTF-8 text: byte {at}", path.display())]
    NotText {
        path: PathBuf,
        /// Offset of the first invalid byte, from 0.
        at: usize,
    },
    /// A pipe without a writer.
    #[error("no input from {} within {} s", path.display(), SILENCE.as_secs())]
    Silent { path: PathBuf },
}

impl InputError {
    /// Returns a hint if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            InputError::Kind { path, kind } if kind == PIPE => Some(format!(
                "`<(cat {})` in its place passes what is written into it",
                path.display()
            )),
            InputError::Kind { .. } => {
                Some("name a regular file, or `<(COMMAND)` in a shell".into())
            }
            _ => None,
        }
    }
}

/// The name of the kind named pipe.
const PIPE: &str = "a named pipe";

fn size_text(bytes: Option<u64>) -> String {
    bytes.map_or("no end".to_owned(), |bytes| format!("{bytes} bytes"))
}

/// Opens a file named by the user for reading: a regular file or a pipe of this process, nothing
/// else. The type is that of the open file.
pub fn open(path: &Path) -> Result<File, InputError> {
    let unreadable = |source| InputError::Unreadable { path: path.to_owned(), source };
    let is_known = |meta: &Metadata| match refused(path, meta) {
        Some(kind) => Err(InputError::Kind { path: path.to_owned(), kind: kind.to_owned() }),
        None => Ok(()),
    };
    // Opening some devices has side effects; opening does not block on one that replaces the file
    // meanwhile.
    is_known(&path.metadata().map_err(unreadable)?)?;
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    crate::trace::reads(path);
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let file = file.map_err(unreadable)?;
    is_known(&file.metadata().map_err(unreadable)?)?;
    let file_system = fstatfs(&file).map_err(|errno| unreadable(errno.into()))?.filesystem_type().0;
    match PSEUDO.iter().find(|(magic, _)| *magic == file_system as i64) {
        Some((_, name)) => {
            let kind = format!("a file of the kernel's {name}");
            Err(InputError::Kind { path: path.to_owned(), kind })
        }
        None => Ok(file),
    }
}

/// The paths of a directory's entries, in order.
pub fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    crate::trace::reads(dir);
    let entries = std::fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = entries.collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Opens a block device for reading; nothing else is opened.
pub fn open_block(path: &Path) -> io::Result<File> {
    let is_block = |meta: &Metadata| meta.file_type().is_block_device();
    if !is_block(&path.metadata()?) {
        return Err(io::Error::other("it is not a block device"));
    }
    crate::trace::reads(path);
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    if is_block(&file.metadata()?) {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a block device any more"))
    }
}

/// Opens a file that is too large to be read whole: a regular file and nothing else.
pub fn open_regular(path: &Path) -> Result<File, InputError> {
    let file = open(path)?;
    let unreadable = |source| InputError::Unreadable { path: path.to_owned(), source };
    if file.metadata().map_err(unreadable)?.is_file() {
        Ok(file)
    } else {
        Err(InputError::Kind { path: path.to_owned(), kind: "a pipe".into() })
    }
}

/// The same with an error of the system, without the path.
pub fn regular(path: &Path) -> io::Result<File> {
    open_regular(path).map_err(invalid)
}

/// Reads a file of gpuvm's own state or of the host's configuration; none where it is missing.
/// Errors: as those of the system, or `InvalidData` if it is not a regular file, or longer than
/// [`STATE_BYTES`].
pub fn state_bytes(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let read = || {
        let file = open_regular(path)?;
        let unreadable = |source| InputError::Unreadable { path: path.to_owned(), source };
        let bytes = Some(file.metadata().map_err(unreadable)?.len());
        if bytes > Some(STATE_BYTES) {
            return Err(InputError::Long { path: path.to_owned(), bytes, limit: STATE_BYTES });
        }
        bounded(Source::File(file), path, STATE_BYTES)
    };
    match read() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(InputError::Unreadable { source, .. }) => match source.kind() {
            io::ErrorKind::NotFound => Ok(None),
            _ => Err(source),
        },
        Err(error) => Err(invalid(error)),
    }
}

/// Whether a regular file begins with these bytes, or is empty. Errors: as [`state_bytes`].
pub fn begins(path: &Path, mark: &[u8]) -> io::Result<bool> {
    let mut start = Vec::new();
    open_regular(path).map_err(invalid)?.take(mark.len() as u64).read_to_end(&mut start)?;
    Ok(start.is_empty() || start == mark)
}

/// The text of such a file; `InvalidData` also if it is not UTF-8.
pub fn state(path: &Path) -> io::Result<Option<String>> {
    let bytes = state_bytes(path)?;
    bytes.map(|bytes| utf8(bytes, path).map_err(invalid)).transpose()
}

/// An error of a file's content as one of the system, without the path, which its reader names.
fn invalid(error: InputError) -> io::Error {
    let reason = match error {
        InputError::Unreadable { source, .. } => return source,
        InputError::Kind { kind, .. } => format!("it is {kind}, not a regular file"),
        InputError::Long { bytes, limit, .. } => {
            format!("it has {}, more than the limit of {limit} bytes", size_text(bytes))
        }
        InputError::NotText { at, .. } => format!("it is not UTF-8 text: byte {at}"),
        InputError::Silent { .. } => "it is a pipe without a writer".to_owned(),
    };
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Returns the kind of a refused file; `None` if it is accepted.
fn refused(path: &Path, meta: &Metadata) -> Option<&'static str> {
    let kind = meta.file_type();
    if kind.is_file() || (kind.is_fifo() && is_own(path)) {
        None
    } else if kind.is_fifo() {
        Some(PIPE)
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_char_device() {
        Some("a character device")
    } else if kind.is_block_device() {
        Some("a block device")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        Some("of an unknown kind")
    }
}

/// Whether a path names a file that this process has open, as shells do for `<(...)`.
fn is_own(path: &Path) -> bool {
    let Some(path) = path.to_str() else { return false };
    let number = ["/dev/fd/", "/proc/self/fd/"].iter().find_map(|dir| path.strip_prefix(dir));
    path == "/dev/stdin"
        || number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Reads a file that a user has named; `limit`: its largest size in bytes.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, InputError> {
    let file = open(path)?;
    let meta = file
        .metadata()
        .map_err(|source| InputError::Unreadable { path: path.to_owned(), source })?;
    if meta.is_file() && meta.len() > limit {
        return Err(InputError::Long { path: path.to_owned(), bytes: Some(meta.len()), limit });
    }
    bounded(if meta.is_file() { Source::File(file) } else { Source::Pipe(file) }, path, limit)
}

/// Reads a file of text that a user has named; `-` is not accepted.
pub fn text(path: &Path, limit: u64) -> Result<String, InputError> {
    utf8(read(path, limit)?, path)
}

/// Reads a file of text, or standard input for `-`.
pub fn text_or_stdin(path: &Path, limit: u64) -> Result<String, InputError> {
    if path != Path::new("-") {
        return text(path, limit);
    }
    let named = Path::new("standard input");
    utf8(bounded(Source::Stdin(io::stdin().lock()), named, limit)?, named)
}

/// Reads a file, or standard input for `-`, as text; bytes that are not UTF-8 are replaced.
pub fn lossy_or_stdin(path: &Path, limit: u64) -> Result<String, InputError> {
    let bytes = if path == Path::new("-") {
        bounded(Source::Stdin(io::stdin().lock()), Path::new("standard input"), limit)?
    } else {
        read(path, limit)?
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Bytes as text. The error does not contain them: they may be secret.
fn utf8(bytes: Vec<u8>, path: &Path) -> Result<String, InputError> {
    String::from_utf8(bytes).map_err(|error| InputError::NotText {
        path: path.to_owned(),
        at: error.utf8_error().valid_up_to(),
    })
}

/// The source of bytes.
enum Source {
    /// A regular file.
    File(File),
    /// A pipe, read with a time limit.
    Pipe(File),
    /// Standard input, where a user may type.
    Stdin(io::StdinLock<'static>),
}

/// Reads to the end, up to a limit.
fn bounded(source: Source, path: &Path, limit: u64) -> Result<Vec<u8>, InputError> {
    let mut bytes = Vec::new();
    let most = limit.saturating_add(1);
    let read = match source {
        Source::File(file) => file.take(most).read_to_end(&mut bytes),
        Source::Stdin(stdin) => stdin.take(most).read_to_end(&mut bytes),
        Source::Pipe(pipe) => Patient(pipe).take(most).read_to_end(&mut bytes),
    };
    match read {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            Err(InputError::Silent { path: path.to_owned() })
        }
        Err(source) => Err(InputError::Unreadable { path: path.to_owned(), source }),
        Ok(_) if bytes.len() as u64 > limit => {
            Err(InputError::Long { path: path.to_owned(), bytes: None, limit })
        }
        Ok(_) => Ok(bytes),
    }
}

/// A nonblocking pipe, read with a limit on silence.
struct Patient(File);

impl Read for Patient {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let until = Instant::now() + SILENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut polled = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut polled, wait) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            match self.0.read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    /// The error of reading a path.
    fn said(path: &Path) -> String {
        text(path, 16).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files_of_a_fit_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, "0123456789abcdef").unwrap();
        assert_eq!(text(&path, 16).unwrap(), "0123456789abcdef");
        std::fs::write(&path, "0123456789abcdefg").unwrap();
        assert!(said(&path).ends_with("has 17 bytes, more than the limit of 16 bytes"));
        std::fs::write(&path, b"secret\xff").unwrap();
        assert!(said(&path).ends_with("is not UTF-8 text: byte 6"));
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(said(&fifo).ends_with("is a named pipe, not a regular file"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        assert!(said(&link).ends_with("is a character device, not a regular file"));
        assert!(said(dir.path()).ends_with("is a directory, not a regular file"));
        assert!(said(Path::new("/proc/self/environ")).contains("a file of the kernel's proc"));
        assert!(said(Path::new("/sys/kernel/uevent_seqnum")).contains("sysfs"));
        assert!(said(Path::new("/nothing/here")).contains("No such file"));
        std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap();
        assert!(said(&dir.path().join("s")).contains("is a socket"));
    }

    #[test]
    fn a_file_of_the_state_is_a_regular_one_of_a_fit_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        assert_eq!(state(&path).unwrap(), None);
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(state(&path).unwrap().as_deref(), Some("{}"));
        std::fs::write(&path, b"\xff").unwrap();
        let refused = |reason: &str| {
            let error = state(&path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(error.to_string().contains(reason), "{error}");
        };
        refused("not UTF-8 text: byte 0");
        // Sparse: nothing of it is read.
        File::create(&path).unwrap().set_len(3 << 30).unwrap();
        refused("it has 3221225472 bytes, more than");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        refused("it is a directory");
        std::fs::remove_dir(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        refused("it is a named pipe");
    }

    #[test]
    fn a_pipe_of_this_process_is_read_up_to_its_limit() {
        let (input, mut writing) = io::pipe().unwrap();
        let path = PathBuf::from(format!("/dev/fd/{}", input.as_raw_fd()));
        writing.write_all(b"0123456789abcdef").unwrap();
        writing.write_all(b"more").unwrap();
        assert!(said(&path).ends_with("has no end, more than the limit of 16 bytes"));
        let (input, mut writing) = io::pipe().unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", input.as_raw_fd()));
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            writing.write_all(b"abc").unwrap();
        });
        assert_eq!(text(&path, 16).unwrap(), "abc");
        late.join().unwrap();
        for not in ["/dev/fd/", "/dev/fd/1/x", "/dev/fd/x", "/proc/1/fd/0", "dev/fd/0"] {
            assert!(!is_own(Path::new(not)), "{not}");
        }
    }
}
