//! Checksums of images, and the checksum lists that publishers provide.

use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

/// A checksum of `N` bytes, written as hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest<const N: usize>([u8; N]);

/// A SHA-256 checksum.
pub type Sha256 = Digest<32>;
/// A SHA-512 checksum.
pub type Sha512 = Digest<64>;

/// A checksum that a publisher states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sum {
    /// Of SHA-256.
    Sha256(Sha256),
    /// Of SHA-512.
    Sha512(Sha512),
}

impl Sum {
    /// The name of its algorithm.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Sum::Sha256(_) => "SHA-256",
            Sum::Sha512(_) => "SHA-512",
        }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sum::Sha256(sum) => sum.fmt(f),
            Sum::Sha512(sum) => sum.fmt(f),
        }
    }
}

/// The SHA-256 of some bytes, and their SHA-512 if it was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Computed {
    /// SHA-256.
    pub sha256: Sha256,
    /// SHA-512; `None` if not requested.
    pub sha512: Option<Sha512>,
}

impl Computed {
    /// Reads to the end and computes; `progress` as for [`Sha256::of`].
    pub fn of(
        mut from: impl Read,
        wants_sha512: bool,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> io::Result<Computed> {
        let mut wide = wants_sha512.then(sha2::Sha512::new);
        let both = Teed { from: &mut from, into: wide.as_mut() };
        let sha256 = Sha256::of(both, progress)?;
        Ok(Computed { sha256, sha512: wide.map(|wide| Digest(wide.finalize().into())) })
    }

    /// Whether a stated checksum is that of these bytes. One that was not computed is not.
    pub fn is(&self, stated: &Sum) -> bool {
        match stated {
            Sum::Sha256(sum) => *sum == self.sha256,
            Sum::Sha512(sum) => Some(*sum) == self.sha512,
        }
    }
}

/// A reader whose bytes are hashed by SHA-512, too.
struct Teed<'r, R> {
    from: &'r mut R,
    /// The hash; `None` if only read.
    into: Option<&'r mut sha2::Sha512>,
}

impl<R: Read> Read for Teed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.from.read(buffer)?;
        if let Some(hasher) = &mut self.into {
            hasher.update(&buffer[..got]);
        }
        Ok(got)
    }
}

/// A reader or writer that hashes the bytes passing through, so that the checksum is of exactly
/// those bytes.
pub struct Summing<T> {
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
        (Digest(self.hasher.finalize().into()), self.through)
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
#[allow(missing_docs)] // The messages describe the fields.
pub enum SumError {
    /// Not as many hexadecimal digits as the checksum has.
    #[error("{text:?} is not a SHA-{} of {digits} hexadecimal digits", digits * 4)]
    #[strum(to_string = "form")]
    NoSum { text: String, digits: usize },
    /// A line of a list cannot be read.
    #[error("line {line} is neither `SUM  NAME` nor `SHA256 (NAME) = SUM`")]
    Line {
        /// The line, from 1.
        line: usize,
    },
    /// A list names a file twice with different sums.
    #[error("{name:?} appears twice, with different sums")]
    Twice { name: String },
}

impl Sha256 {
    /// Computes the checksum of bytes in memory.
    pub fn of_bytes(bytes: &[u8]) -> Sha256 {
        Digest(sha2::Sha256::digest(bytes).into())
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

impl<const N: usize> fmt::Display for Digest<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<const N: usize> FromStr for Digest<N> {
    type Err = SumError;
    fn from_str(text: &str) -> Result<Digest<N>, SumError> {
        let shown = || text.chars().take(140).collect();
        let no_sum = || SumError::NoSum { text: shown(), digits: 2 * N };
        if text.len() != 2 * N || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(no_sum());
        }
        let mut sum = [0; N];
        for (at, byte) in sum.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| no_sum())?;
        }
        Ok(Digest(sum))
    }
}

impl<const N: usize> TryFrom<String> for Digest<N> {
    type Error = SumError;
    fn try_from(text: String) -> Result<Digest<N>, SumError> {
        text.parse()
    }
}

impl<const N: usize> From<Digest<N>> for String {
    fn from(sum: Digest<N>) -> String {
        sum.to_string()
    }
}

/// A list of checksums by file name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sums(Vec<(String, Sum)>);

impl Sums {
    /// Reads a list in the form of `sha256sum` or of BSD's `sha256`; empty lines, comments and a
    /// surrounding signature are ignored, as are checksums of other algorithms in a mixed list.
    pub fn parse(text: &str) -> Result<Sums, SumError> {
        let mut sums: Vec<(String, Sum)> = Vec::new();
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
            let is_same = |other: &Sum| other.algorithm() == sum.algorithm();
            match sums.iter().find(|(known, other)| known == name && is_same(other)) {
                Some((_, other)) if *other != sum => {
                    return Err(SumError::Twice { name: name.chars().take(80).collect() });
                }
                Some(_) => {}
                None => sums.push((name.to_owned(), sum)),
            }
        }
        Ok(Sums(sums))
    }

    /// Returns the SHA-256 of a file; see [`Sums::stated`].
    pub fn of(&self, name: &str) -> Option<Sha256> {
        self.entries(name).find_map(|sum| match sum {
            Sum::Sha256(sum) => Some(sum),
            Sum::Sha512(_) => None,
        })
    }

    /// Returns the longest checksum of a file by its name without directories: lists name files in
    /// their own directory, some with a leading `./`.
    pub fn stated(&self, name: &str) -> Option<Sum> {
        self.entries(name).max_by_key(Sum::algorithm)
    }

    fn entries<'s>(&'s self, name: &'s str) -> impl Iterator<Item = Sum> + 's {
        let own = move |listed: &str| listed.strip_prefix("./").unwrap_or(listed) == name;
        self.0.iter().filter(move |(listed, _)| own(listed)).map(|(_, sum)| *sum)
    }
}

/// Returns name and checksum of a line; no checksum if it is of another algorithm.
fn entry(line: &str) -> Option<(&str, Option<Sum>)> {
    let hex = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    let sha256 = |text: &str| Some(Sum::Sha256(text.parse().ok()?));
    let sha512 = |text: &str| Some(Sum::Sha512(text.parse().ok()?));
    if let Some((kind, rest)) = line.split_once(" (") {
        let (name, sum) = rest.rsplit_once(") = ")?;
        return match (kind, hex(sum)) {
            ("SHA256", true) => Some((name, Some(sha256(sum)?))),
            ("SHA512", true) => Some((name, sha512(sum))),
            (_, true) => Some((name, None)),
            _ => None,
        };
    }
    let (sum, rest) = line.split_once(' ')?;
    let name = rest.strip_prefix([' ', '*'])?;
    if hex(sum) && !name.is_empty() {
        Some((name, sha256(sum).or_else(|| sha512(sum))))
    } else {
        None
    }
}
