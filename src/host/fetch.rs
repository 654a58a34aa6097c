//! Fetches files over https by the system's curl, which knows proxies, certificates and redirects:
//! a dozen crates less than a client of our own.
//!
//! A file is written here, and not by curl: so what fills the disk is known exactly, and a curl
//! whose gpuvm was killed ends with its pipe. A file that was broken off is continued where it
//! ends.

use crate::program::command;
use crate::trace::{Running, removed, wrote};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::fstatvfs;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

/// Variables of the caller's environment that name a proxy.
const PROXIES: [&str; 6] =
    ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"];
/// Seconds without a byte after which a transfer is broken off.
const SILENT_S: &str = "60";
/// Seconds that a text may take.
const TEXT_S: &str = "300";
/// How often a transfer that breaks off is continued without a byte in between.
const TRIES: u32 = 3;
/// How often it is continued at all.
const MOST_TRIES: u32 = 100;
/// Bytes left free on the file system of a fetched file.
const LEFT_FREE: u64 = 16 << 20;
/// How long curl's output on one stream may be behind the other.
const LAG: Duration = Duration::from_secs(2);
/// The largest part of curl's messages that is kept.
const MOST_SAID: usize = 64 << 10;

/// The reason a file is not fetched.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "fetch-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum FetchError {
    /// curl is missing.
    #[error("curl is not installed, which fetches {url}")]
    NoCurl { url: String },
    /// The server has no such file.
    #[error("{url} does not exist on the server (HTTP status {status})")]
    #[strum(to_string = "absent")]
    Absent {
        url: String,
        /// 404 or 410.
        status: u16,
    },
    /// The server refuses.
    #[error("the server of {url} refuses: HTTP status {status}")]
    Status { url: String, status: u16 },
    /// The server cannot be reached.
    #[error("{url} cannot be reached: {message}")]
    Unreachable { url: String, message: String },
    /// The server does not prove who it is.
    #[error("the server of {url} does not prove its identity: {message}")]
    Untrusted { url: String, message: String },
    /// It leads to a URL that is not https, or to ever more others.
    #[error("{url} redirects where gpuvm does not follow: {message}")]
    Redirected { url: String, message: String },
    /// The transfer was broken off again and again.
    #[error("the transfer of {url} broke off at {at} bytes: {message}")]
    BrokenOff {
        url: String,
        /// The bytes so far.
        at: u64,
        message: String,
    },
    /// The file is larger than expected of its kind.
    #[error("{url} is longer than {limit} bytes")]
    TooLong { url: String, limit: u64 },
    /// The file changed on the server meanwhile.
    #[error("{url} changed on the server while it was fetched")]
    Changed { url: String },
    /// The disk has no room for it.
    #[error("{} has {free} bytes free, and {url} needs {needs} more", dir.display())]
    DiskFull {
        dir: PathBuf,
        /// Free bytes.
        free: u64,
        url: String,
        /// The bytes that are missing of it, as far as known.
        needs: u64,
    },
    /// Something else failed.
    #[error("{url} cannot be fetched: {message}")]
    Failed { url: String, message: String },
}

/// Where something is fetched from.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'o> {
    /// Its URL, of scheme https.
    pub url: &'o str,
    /// The certificates of its server's authority; `None` for those of the system.
    pub ca: Option<&'o Path>,
}

/// The server's response about a file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Head {
    status: u16,
    /// The length of the whole file.
    total: Option<u64>,
}

/// The output of curl: the last answer's head, and its messages.
#[derive(Debug, Default)]
struct Said {
    head: Head,
    messages: String,
}

/// A file that is fetched, locked against other runs.
#[derive(Debug)]
pub struct Part {
    /// Its path.
    pub path: PathBuf,
    file: Flock<File>,
}

/// Returns the directory of fetched files: the host's for root, otherwise the user's own. It is
/// made as needed, and refused if others may write into it.
pub fn cache() -> io::Result<PathBuf> {
    let is_root = nix::unistd::geteuid().is_root();
    let own = || {
        let xdg = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|x| x.is_absolute());
        xdg.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
    };
    let base = if is_root { Some(PathBuf::from("/var/cache")) } else { own() };
    let dir = base.ok_or_else(|| io::Error::other("HOME is not set"))?.join("gpuvm");
    DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    let meta = dir.symlink_metadata()?;
    let is_own = meta.is_dir() && meta.uid() == nix::unistd::geteuid().as_raw();
    if !is_own || meta.mode() & 0o022 != 0 {
        let why = "others may write into it, or it is another user's";
        return Err(io::Error::other(format!("{}: {why}", dir.display())));
    }
    Ok(dir)
}

impl Part {
    /// Opens a file to fetch into, which is made if it is missing; `None` if another run is
    /// fetching it.
    pub fn open(path: &Path) -> io::Result<Option<Part>> {
        let mut options = OpenOptions::new();
        let no_link = nix::fcntl::OFlag::O_NOFOLLOW.bits();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(no_link).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other(format!("{} is not a regular file", path.display())));
        }
        let part = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Part { path: path.to_owned(), file },
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, errno)) => return Err(errno.into()),
        };
        // The one who had it may have removed it meanwhile.
        if part.is_there() { Ok(Some(part)) } else { Ok(None) }
    }

    /// Whether the file at the path is still this one.
    fn is_there(&self) -> bool {
        let id = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        let here = self.file.metadata().map(id).ok();
        here.is_some() && self.path.symlink_metadata().map(id).ok() == here
    }

    /// The bytes so far.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Forgets the bytes so far.
    pub fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Removes the file, unless another is in its place.
    pub fn remove(self) -> io::Result<()> {
        if self.is_there() {
            std::fs::remove_file(&self.path)?;
            removed(&self.path);
        }
        Ok(())
    }

    /// Bytes free on its file system.
    fn free(&self) -> Option<u64> {
        let stat = fstatvfs(&*self.file).ok()?;
        Some(stat.blocks_available().saturating_mul(stat.fragment_size()))
    }

    /// Fetches the missing part of the file. `progress` gets the bytes so far and the total, as far
    /// as known.
    pub fn fetch(
        &mut self,
        origin: Origin<'_>,
        progress: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<(), FetchError> {
        let failed = |error: io::Error| origin.failed(error);
        let (mut idle, mut total, mut restarts) = (0, None, 0);
        for round in 0.. {
            let from = self.bytes().map_err(failed)?;
            let ended = self.attempt(origin, from, &mut total, progress)?;
            let Some((code, said)) = ended else { return Ok(()) };
            let through = self.bytes().map_err(failed)?;
            idle = if through > from { 0 } else { idle + 1 };
            match (code, said.head.status) {
                // The file is complete, or it was replaced by another one.
                (_, 416) if from > 0 && said.head.total == Some(from) => return Ok(()),
                (22, 416) | (33, _) if from > 0 && restarts < TRIES => {
                    restarts += 1;
                    total = None;
                    self.restart().map_err(failed)?;
                }
                _ if is_passing(code, said.head.status) && idle < TRIES && round < MOST_TRIES => {
                    sleep(Duration::from_secs(1 << idle.min(3)));
                }
                _ if through > 0 && (code == 33 || is_passing(code, said.head.status)) => {
                    return Err(origin.broken_off(through, &said));
                }
                _ => return Err(origin.refused(code, &said)),
            }
        }
        unreachable!("it ends by a return")
    }

    /// Fetches once, from this byte on; returns curl's exit status and its message, `None` if it
    /// succeeded.
    fn attempt(
        &mut self,
        origin: Origin<'_>,
        from: u64,
        total: &mut Option<u64>,
        progress: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<Option<(i32, Said)>, FetchError> {
        let mut curl = origin.curl();
        curl.args(["--dump-header", "/dev/stderr", "--speed-limit", "1", "--speed-time", SILENT_S]);
        if from > 0 {
            curl.args(["--continue-at", &from.to_string()]);
        }
        let mut running = origin.start(curl)?;
        let mut through = from;
        self.file.seek(SeekFrom::Start(from)).map_err(|error| origin.failed(error))?;
        let mut buffer = vec![0; 1 << 20];
        let mut out = running.child.stdout.take().expect("it is piped");
        progress(through, *total);
        loop {
            let got = match out.read(&mut buffer) {
                Ok(0) => break,
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(origin.failed(error)),
            };
            if through == from {
                let head = running.head();
                // Another length is another file.
                if total.is_some() && head.total.is_some() && *total != head.total {
                    return Err(FetchError::Changed { url: origin.url.to_owned() });
                }
                *total = head.total.or(*total);
            }
            let needs = total.map_or(got as u64, |total| total.saturating_sub(through));
            let full = |free: u64| FetchError::DiskFull {
                dir: self.path.parent().unwrap_or(&self.path).to_owned(),
                free,
                url: origin.url.to_owned(),
                needs,
            };
            if let Some(free) = self.free().filter(|free| *free < needs + LEFT_FREE) {
                return Err(full(free));
            }
            (&*self.file).write_all(&buffer[..got]).map_err(|error| match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => full(0),
                _ => origin.failed(error),
            })?;
            through += got as u64;
            progress(through, *total);
        }
        wrote(&self.path);
        let (status, said) = running.end().map_err(|error| origin.failed(error))?;
        Ok(if status.success() { None } else { Some((status.code().unwrap_or(-1), said)) })
    }
}

/// Whether a transfer that ended so may succeed if it is continued: exit statuses of curl(1).
fn is_passing(code: i32, status: u16) -> bool {
    matches!(code, 16 | 18 | 28 | 52 | 55 | 56 | 92 | 95)
        || code == 22 && matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

/// A curl that is running. Dropped early, it is ended.
struct Curl {
    child: Child,
    /// Heads of answers, as they come.
    heads: Receiver<Head>,
    reader: Option<JoinHandle<Said>>,
    trace: Option<Running>,
}

impl Curl {
    /// The head of the answer whose content has begun to come.
    fn head(&self) -> Head {
        loop {
            // Another thread reads it, which may be a moment behind.
            match self.heads.recv_timeout(LAG) {
                Ok(head) if (200..300).contains(&head.status) => return head,
                Ok(_) => {}
                Err(_) => return Head::default(),
            }
        }
    }

    fn end(mut self) -> io::Result<(ExitStatus, Said)> {
        let status = self.child.wait()?;
        if let Some(trace) = self.trace.take() {
            trace.ended(status);
        }
        // Its messages have come when its end of the channel is gone.
        let is_read = loop {
            match self.heads.recv_timeout(LAG) {
                Ok(_) => {}
                Err(error) => break error == RecvTimeoutError::Disconnected,
            }
        };
        let reader = self.reader.take().filter(|_| is_read);
        Ok((status, reader.and_then(|reader| reader.join().ok()).unwrap_or_default()))
    }
}

impl Drop for Curl {
    fn drop(&mut self) {
        // One that has ended is only reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Origin<'_> {
    /// A curl for this URL that prints the file.
    fn curl(&self) -> Command {
        let mut curl = command("curl");
        let proxies = PROXIES.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        // No user's settings, since the user may differ: this must be the first option.
        curl.envs(proxies).args(["--disable", "--silent", "--show-error", "--fail"]);
        curl.args(["--globoff", "--location", "--max-redirs", "10", "--suppress-connect-headers"]);
        curl.args(["--proto", "=https", "--proto-redir", "=https", "--connect-timeout", "30"]);
        if let Some(ca) = self.ca {
            curl.arg("--cacert").arg(ca);
        }
        curl
    }

    fn start(&self, mut curl: Command) -> Result<Curl, FetchError> {
        curl.args(["--url", self.url]);
        curl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let trace = Running::begins(&curl);
        let mut child = match curl.spawn() {
            Ok(child) => child,
            Err(error) => {
                trace.failed(&error);
                return Err(match error.kind() {
                    ErrorKind::NotFound => FetchError::NoCurl { url: self.url.to_owned() },
                    _ => self.failed(error),
                });
            }
        };
        let (send, heads) = channel();
        let from = child.stderr.take().expect("it is piped");
        let reader = Some(spawn(move || read(from, |head| _ = send.send(head))));
        Ok(Curl { child, heads, reader, trace: Some(trace) })
    }

    /// Fetches a text of at most so many bytes.
    pub fn text(&self, limit: u64) -> Result<Vec<u8>, FetchError> {
        let mut tries = 0;
        loop {
            let (code, said) = match self.text_once(limit)? {
                Ok(bytes) => return Ok(bytes),
                Err(ended) => ended,
            };
            tries += 1;
            if tries == TRIES || !is_passing(code, said.head.status) {
                return Err(self.refused(code, &said));
            }
            sleep(Duration::from_secs(1));
        }
    }

    /// The same without a retry; curl's exit status and message if it failed.
    fn text_once(&self, limit: u64) -> Result<Result<Vec<u8>, (i32, Said)>, FetchError> {
        let mut curl = self.curl();
        curl.args(["--dump-header", "/dev/stderr", "--max-time", TEXT_S]);
        let mut running = self.start(curl)?;
        let mut bytes = Vec::new();
        let out = running.child.stdout.take().expect("it is piped");
        out.take(limit + 1).read_to_end(&mut bytes).map_err(|error| self.failed(error))?;
        if bytes.len() as u64 > limit {
            return Err(FetchError::TooLong { url: self.url.to_owned(), limit });
        }
        let (status, said) = running.end().map_err(|error| self.failed(error))?;
        if status.success() {
            return Ok(Ok(bytes));
        }
        Ok(Err((status.code().unwrap_or(-1), said)))
    }

    fn failed(&self, error: io::Error) -> FetchError {
        FetchError::Failed { url: self.url.to_owned(), message: error.to_string() }
    }

    /// The error of a transfer that breaks off again and again.
    fn broken_off(&self, at: u64, said: &Said) -> FetchError {
        FetchError::BrokenOff { url: self.url.to_owned(), at, message: said.message() }
    }

    /// The error of an exit status of curl(1).
    fn refused(&self, code: i32, said: &Said) -> FetchError {
        let (url, message, status) = (self.url.to_owned(), said.message(), said.head.status);
        match code {
            22 if matches!(status, 404 | 410) => FetchError::Absent { url, status },
            22 if status > 0 => FetchError::Status { url, status },
            5 | 6 | 7 | 28 | 97 => FetchError::Unreachable { url, message },
            35 | 51 | 53 | 54 | 58 | 59 | 60 | 66 | 77 | 80 | 82 | 83 | 90 | 91 => {
                FetchError::Untrusted { url, message }
            }
            1 | 47 => FetchError::Redirected { url, message },
            code if is_passing(code, status) => FetchError::BrokenOff { url, at: 0, message },
            _ => FetchError::Failed { url, message },
        }
    }
}

impl Said {
    /// The last message, in one line.
    fn message(&self) -> String {
        let last = self.messages.lines().rfind(|line| !line.trim().is_empty());
        let last = last.unwrap_or("curl says nothing");
        // `curl: (7) ` leads it.
        let text = last.strip_prefix("curl: (").and_then(|rest| Some(rest.split_once(") ")?.1));
        text.unwrap_or(last).chars().take(300).collect()
    }

    /// Reads a line of a head, or of a message; returns whether it ends a head.
    fn line(&mut self, line: &str) -> bool {
        let line = line.trim_end();
        let number = |text: &str| text.trim().parse().ok();
        if let Some(rest) = line.strip_prefix("HTTP/") {
            let status = rest.split(' ').nth(1).and_then(|status| status.parse().ok());
            self.head = Head { status: status.unwrap_or(0), total: None };
        } else if line.is_empty() {
            return self.head.status > 0;
        } else if let Some((key, value)) = line.split_once(':') {
            match key.to_ascii_lowercase().as_str() {
                // The length of the whole file, whatever part of it comes.
                "content-range" => {
                    self.head.total = value.rsplit_once('/').and_then(|(_, total)| number(total));
                }
                "content-length" if self.head.status == 200 => self.head.total = number(value),
                "curl" if self.messages.len() < MOST_SAID => {
                    self.messages += line;
                    self.messages.push('\n');
                }
                _ => {}
            }
        }
        false
    }
}

/// Reads heads and messages as they come.
fn read(from: ChildStderr, mut came: impl FnMut(Head)) -> Said {
    let mut said = Said::default();
    let mut lines = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut lines).take(MOST_SAID as u64).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return said,
            Ok(_) => {}
        }
        if said.line(&String::from_utf8_lossy(&line)) {
            came(said.head);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_messages_are_distinguished() {
        let mut said = Said::default();
        let mut heads = Vec::new();
        for line in [
            "HTTP/1.1 302 Found\r\n",
            "Content-Length: 7\r\n",
            "\r\n",
            "HTTP/2 206 \r\n",
            "content-range: bytes 4-9/10\r\n",
            "Content-Length: 6\r\n",
            "\r\n",
            "curl: (18) transfer closed with 3 bytes remaining to read\n",
        ] {
            if said.line(line) {
                heads.push(said.head);
            }
        }
        let redirect = Head { status: 302, total: None };
        assert_eq!(heads, [redirect, Head { status: 206, total: Some(10) }]);
        assert_eq!(said.message(), "transfer closed with 3 bytes remaining to read");
        let mut other = Said::default();
        ["HTTP/1.1 200 OK", "content-length: 12", ""].iter().for_each(|line| {
            other.line(line);
        });
        assert_eq!((other.head.total, other.message()), (Some(12), "curl says nothing".into()));
    }

    #[test]
    fn a_part_is_fetched_by_one_run_and_only_that_one_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.part");
        let part = Part::open(&path).unwrap().unwrap();
        assert!(Part::open(&path).unwrap().is_none());
        // Another file is in its place by then.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "theirs").unwrap();
        part.remove().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
        let mut part = Part::open(&path).unwrap().unwrap();
        assert_eq!(part.bytes().unwrap(), 6);
        part.restart().unwrap();
        assert_eq!(part.bytes().unwrap(), 0);
        part.remove().unwrap();
        assert!(!path.exists());
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(Part::open(&path).is_err());
    }
}
