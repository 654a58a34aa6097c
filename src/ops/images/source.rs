//! The source file of an image: its path, its content, and whether its checksum is the published
//! one.

use super::error::ImageError;
use super::fetch::{Fetched, KnownImage, Published};
use super::name::default_name;
use crate::apply::open;
use crate::error::{Coded as _, Error, Refusal, Result, usage};
use crate::image::{
    BACKED, Computed, Content, ContentError, ImageName, Sha256, Sum, Sums, content,
};
use crate::input;
use crate::shell::word as shell_word;
use crate::words::similar;
use serde::Serialize;
use std::fs::File;
use std::io::{ErrorKind, Seek as _, SeekFrom};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// The lists of checksums that publishers put beside their images; the first that has it counts.
const SUMS: [&str; 3] = ["SHA512SUMS", "SHA256SUMS", "CHECKSUM"];
/// The largest such list, in bytes: about a hundred thousand lines.
const MOST_SUMS: u64 = 10 << 20;

/// A request to add a file as an image.
#[derive(Debug, Clone)]
pub struct AddImage {
    /// The file, its URL, or the name of a known image.
    pub file: PathBuf,
    /// The name of the image; `None` if derived from the file's.
    pub name: Option<ImageName>,
    /// The expected checksum; `None` for the one in a list beside the file.
    pub expected: Option<Sum>,
    /// The pool.
    pub pool: String,
    /// Images that are known by name.
    pub known: Vec<KnownImage>,
}

/// The error of an inaccessible file: it may be meant for a known image.
fn not_there(given: &Path, error: &std::io::Error, known: &[KnownImage]) -> Error {
    let text = given.display().to_string();
    let names: Vec<&str> = known.iter().map(|image| image.name.as_str()).collect();
    let hint = match similar(&text, names.iter().copied()) {
        _ if error.kind() != ErrorKind::NotFound => String::new(),
        Some(one) => format!("did you mean `gpuvm image add {one}`?"),
        None => {
            let names = names.join(", ");
            format!("a file, an https URL, or the name of a known image: {names}")
        }
    };
    ImageError::NotTaken { shown: text, error: error.to_string() }.hint(hint)
}

/// Source of the expected sum of the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// The command line.
    Given,
    /// The list beside it.
    Listed(PathBuf),
    /// The list beside its URL.
    Published(Published),
    /// Nobody.
    None,
}

/// A file that can become an image.
pub struct Source {
    /// The path, with links resolved.
    pub path: PathBuf,
    file: File,
    /// Its size.
    pub bytes: u64,
    /// The kind of its content.
    pub content: Content,
    /// The name of the image.
    pub name: ImageName,
    expected: Option<Sum>,
    /// The source of the expected checksum.
    pub word: Word,
    /// Where it was fetched from; `None` if it is a file of the caller.
    pub url: Option<String>,
}

impl Source {
    /// Opens the requested file, and reads its first bytes.
    pub fn open(wanted: &AddImage) -> Result<Source> {
        let given = path(&wanted.file)?;
        given.symlink_metadata().map_err(|error| not_there(&given, &error, &wanted.known))?;
        let name = match &wanted.name {
            Some(name) => name.clone(),
            None => default_name(&given)?,
        };
        let real = given.canonicalize().unwrap_or_else(|_| given.clone());
        let (expected, word) = match wanted.expected {
            Some(sum) => (Some(sum), Word::Given),
            None => listed(&given, &real)?,
        };
        let shown = given.display().to_string();
        Source::at((&given, shown), name, (expected, word), None)
    }

    /// Opens a file that was fetched.
    pub fn fetched(fetched: &Fetched, name: ImageName) -> Result<Source> {
        let (expected, word) = match fetched.stated.clone() {
            Some((sum, Some(published))) => (Some(sum), Word::Published(published)),
            Some((sum, None)) => (Some(sum), Word::Given),
            None => (None, Word::None),
        };
        let url = fetched.url.clone();
        Source::at((&fetched.part.path, url.clone()), name, (expected, word), Some(url))
    }

    fn at(
        (given, shown): (&Path, String),
        name: ImageName,
        (expected, word): (Option<Sum>, Word),
        url: Option<String>,
    ) -> Result<Source> {
        let taken = |error: std::io::Error| {
            ImageError::NotTaken { shown: shown.to_string(), error: error.to_string() }.refusal("")
        };
        let path = given.canonicalize().map_err(taken)?;
        let mut file = open(&path).map_err(|error| {
            ImageError::NotTaken { shown: shown.to_string(), error: error.to_string() }
                .refusal("an image is a file that you may read")
        })?;
        let bytes = file.metadata().map_err(taken)?.len();
        let content = content(&mut file).map_err(|error| {
            let message = format!("{shown} is not accepted: it {error}");
            let hint = match &error {
                ContentError::Qcow2(why) if why == BACKED => format!(
                    "`qemu-img convert -O qcow2 {} {}` makes one with all that it shows",
                    shell_word(&given.to_string_lossy()),
                    shell_word(&given.with_extension("whole.qcow2").to_string_lossy())
                ),
                _ => String::new(),
            };
            Error::from(error).around(Refusal::around(message, hint))
        })?;
        Ok(Source { path, file, bytes, content, name, expected, word, url })
    }

    /// Where it came from: the file or its URL.
    pub fn shown(&self) -> String {
        self.url.clone().unwrap_or_else(|| self.path.display().to_string())
    }

    /// Computes the SHA-256 of the whole file, and refuses it if its checksum is not the expected
    /// one. `progress` gets the number of bytes read so far, and cancels by returning false.
    pub fn sum(&mut self, progress: &mut dyn FnMut(u64) -> bool) -> Result<Sha256> {
        let shown = self.shown();
        let wide = matches!(self.expected, Some(Sum::Sha512(_)));
        let read = self.file.seek(SeekFrom::Start(0));
        let read = read.and_then(|_| Computed::of(&self.file, wide, progress));
        let computed = read.map_err(|error| {
            ImageError::NotRead { shown: shown.clone(), error: error.to_string() }.refusal("")
        })?;
        let Some(expected) = self.expected.filter(|expected| !computed.is(expected)) else {
            return Ok(computed.sha256);
        };
        let algorithm = expected.algorithm();
        let who = match &self.word {
            Word::Listed(list) => list.display().to_string(),
            Word::Published(published) => published.list.clone(),
            _ => format!("--{}", algorithm.to_ascii_lowercase().replace('-', "")),
        };
        let sum = computed.sha512.filter(|_| wide).map(|sum| sum.to_string());
        let sum = sum.unwrap_or_else(|| computed.sha256.to_string());
        let expected = expected.to_string();
        Err(ImageError::OtherSum { shown, algorithm, sum, who, expected }.hint(if self.url.is_some() {
            "the same command fetches it again; a vendor that has just published a new image may \
             still have the list of the old one"
        } else {
            "fetch it again; it may have been cut off or changed on the way"
        }))
    }
}

/// The path of a path or of a `file` URL.
fn path(given: &Path) -> Result<PathBuf> {
    let bytes = given.as_os_str().as_bytes();
    let scheme_end = bytes.windows(3).position(|three| three == b"://").filter(|&end| {
        end > 0 && bytes[..end].iter().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b))
    });
    let scheme = scheme_end.map(|end| String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase());
    let rest = match scheme.as_deref() {
        None => match bytes.strip_prefix(b"file:/") {
            Some(rest) => [b"/", rest].concat(),
            None => return Ok(given.to_owned()),
        },
        Some("file") => bytes["file://".len()..].to_owned(),
        Some(other) => {
            return Err(usage(
                format!(
                    "{} is a URL of scheme `{other}`; images come from files and by https",
                    given.display()
                ),
                "fetch it first, and put the list of its checksums beside it",
            ));
        }
    };
    let rest = rest.strip_prefix(b"localhost").unwrap_or(&rest);
    match unescaped(rest).filter(|path| path.starts_with(b"/") && !path.contains(&0)) {
        Some(path) => Ok(PathBuf::from(std::ffi::OsString::from_vec(path))),
        None => Err(usage(
            format!("{} is not the URL of a file on this machine", given.display()),
            "file:///PATH is, with %XX for bytes that a URL cannot have; a path alone will do, too",
        )),
    }
}

/// A URL's path with its `%XX` as bytes (RFC 3986, 2.1); none if an escape is incomplete.
fn unescaped(path: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, after)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = after;
            continue;
        }
        let digits = after.get(..2).filter(|two| two.iter().all(u8::is_ascii_hexdigit))?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = &after[2..];
    }
    Some(bytes)
}

/// The file's checksum in a list beside it: beside the given path, otherwise beside the link's
/// target.
fn listed(given: &Path, real: &Path) -> Result<(Option<Sum>, Word)> {
    for (image, list) in [given, real].iter().flat_map(|at| SUMS.map(|list| (at, list))) {
        let (Some(dir), Some(name)) = (image.parent(), image.file_name()) else { continue };
        let list = dir.join(list);
        if list.symlink_metadata().is_err() {
            continue;
        }
        let sums = read_sums(&list).map_err(|reason| {
            let message = format!("{} cannot be used: {reason}", list.display());
            reason.around(Refusal::around(message, "--sha256 HEX says the sum instead"))
        })?;
        if let Some(sum) = name.to_str().and_then(|name| sums.stated(name)) {
            return Ok((Some(sum), Word::Listed(list)));
        }
    }
    Ok((None, Word::None))
}

fn read_sums(list: &Path) -> Result<Sums> {
    Ok(Sums::parse(&input::text(list, MOST_SUMS)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The resolved path, or the error.
    fn meant(given: &str) -> String {
        match path(Path::new(given)) {
            Ok(path) => path.display().to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_path_or_a_url_of_a_file_is_meant() {
        for (given, expected) in [
            ("a.img", "a.img"),
            ("/x/y z", "/x/y z"),
            ("file:///x/y%20z", "/x/y z"),
            ("FILE://localhost/x", "/x"),
            ("file:/x", "/x"),
            ("./file:x", "./file:x"),
            ("a:b://c/../d e", "a:b://c/../d e"),
        ] {
            assert_eq!(meant(given), expected, "{given}");
        }
        for bad in ["file://other/x", "file://", "file:///x%2", "file:///%zz", "file:///%00"] {
            assert!(meant(bad).contains("not the URL of a file on this machine"), "{bad}");
        }
        for scheme in ["http", "s3", "ssh+x"] {
            let text = meant(&format!("{scheme}://h/a.img"));
            assert!(text.contains(&format!("scheme `{scheme}`")), "{text}");
        }
    }
}
