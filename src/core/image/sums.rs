//! SHA-256 checksums of images, and the checksum lists that publishers provide.

use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

/// A SHA-256 checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256([u8; 32]);

/// A reader or writer that hashes the bytes passing through, so that the checksum is of exactly
/// those bytes.
pub struct Summing<T> {
    /// The underlying reader or writer.
    inner: T,
    /// The hash of the bytes so far.
    hasher: sha2::Sha256,
    /// The number of bytes so far.
    through: u64,
}

impl<T> Summing<T> {
    /// Wraps a reader or writer.
    pub fn new(inner: T) -> Summing<T> {
        Summing { inner, hasher: sha2::Sha256::new(), through: 0 }
    }

    /// Returns the checksum and the number of bytes that passed through.
    pub fn end(self) -> (Sha256, u64) {
        (Sha256(self.hasher.finalize().into()), self.through)
    }

    /// Adds bytes to the checksum.
    fn add(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.through += bytes.len() as u64;
    }
}

impl<R: Read> Read for Summing<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(into)?;
        self.add(&into[..got]);
        Ok(got)
    }
}

impl<W: Write> Write for Summing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.inner.write(bytes)?;
        self.add(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The error of a checksum or a list of them.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "checksum-")]
pub enum SumError {
    /// Not 64 hexadecimal digits.
    #[error("{text:?} is not a SHA-256 of 64 hexadecimal digits")]
    #[strum(to_string = "form")]
    NoSum {
        /// The text, shortened.
        text: String,
    },
    /// A line of a list cannot be read.
    #[error("line {line} is neither `SUM  NAME` nor `SHA256 (NAME) = SUM`")]
    Line {
        /// The line, from 1.
        line: usize,
    },
    /// A list names a file twice with different sums.
    #[error("{name:?} appears twice, with different sums")]
    Twice {
        /// The file.
        name: String,
    },
}

impl Sha256 {
    /// Computes the checksum of bytes in memory.
    pub fn of_bytes(bytes: &[u8]) -> Sha256 {
        Sha256(sha2::Sha256::digest(bytes).into())
    }

    /// Computes the checksum of everything read; `progress` gets the number of bytes so far and
    /// cancels by returning false.
    pub fn of(from: impl Read, progress: &mut dyn FnMut(u64) -> bool) -> io::Result<Sha256> {
        let mut from = Summing::new(from);
        let mut buffer = vec![0; 1 << 20];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(from.end().0),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if !progress(from.through) {
                return Err(io::Error::other("broken off"));
            }
        }
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Sha256 {
    type Err = SumError;
    fn from_str(text: &str) -> Result<Sha256, SumError> {
        let no_sum = || SumError::NoSum { text: text.chars().take(70).collect() };
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(no_sum());
        }
        let mut sum = [0; 32];
        for (at, byte) in sum.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| no_sum())?;
        }
        Ok(Sha256(sum))
    }
}

impl TryFrom<String> for Sha256 {
    type Error = SumError;
    fn try_from(text: String) -> Result<Sha256, SumError> {
        text.parse()
    }
}

impl From<Sha256> for String {
    fn from(sum: Sha256) -> String {
        sum.to_string()
    }
}

/// A list of checksums by file name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sums(Vec<(String, Sha256)>);

impl Sums {
    /// Reads a list in the form of `sha256sum` or of BSD's `sha256`; empty lines, comments and a
    /// surrounding signature are ignored, as are checksums of other lengths in a mixed list.
    pub fn parse(text: &str) -> Result<Sums, SumError> {
        let mut sums: Vec<(String, Sha256)> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim_end();
            if line.starts_with("-----BEGIN PGP SIGNATURE") {
                break;
            }
            let armour = line.starts_with("-----BEGIN PGP") || line.starts_with("Hash: ");
            if line.is_empty() || line.starts_with('#') || armour {
                continue;
            }
            let Some((name, sum)) = entry(line) else {
                return Err(SumError::Line { line: at + 1 });
            };
            let Some(sum) = sum else { continue };
            match sums.iter().find(|(other, _)| other == name) {
                Some((_, other)) if *other != sum => {
                    return Err(SumError::Twice { name: name.chars().take(80).collect() });
                }
                Some(_) => {}
                None => sums.push((name.to_owned(), sum)),
            }
        }
        Ok(Sums(sums))
    }

    /// Returns the checksum of a file by its name without directories: lists name files in their
    /// own directory, some with a leading `./`.
    pub fn of(&self, name: &str) -> Option<Sha256> {
        let own = |listed: &str| listed.strip_prefix("./").unwrap_or(listed) == name;
        self.0.iter().find(|(listed, _)| own(listed)).map(|(_, sum)| *sum)
    }
}

/// Returns name and checksum of a line; no checksum if it has another length.
fn entry(line: &str) -> Option<(&str, Option<Sha256>)> {
    let hex = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    if let Some((kind, rest)) = line.split_once(" (") {
        let (name, sum) = rest.rsplit_once(") = ")?;
        return match (kind, hex(sum)) {
            ("SHA256", true) => Some((name, Some(sum.parse().ok()?))),
            (_, true) => Some((name, None)),
            _ => None,
        };
    }
    let (sum, rest) = line.split_once(' ')?;
    let name = rest.strip_prefix([' ', '*'])?;
    if hex(sum) && !name.is_empty() { Some((name, sum.parse().ok())) } else { None }
}
