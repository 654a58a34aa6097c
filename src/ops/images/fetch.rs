//! Fetches an image over https, by its URL or by the name under which it is known, with the
//! checksum that its vendor publishes beside it.
//!
//! The list of checksums comes first, and the file of the cache is named after the checksum: so a
//! download that was broken off is continued only with the same image, and an image that the vendor
//! has replaced meanwhile is fetched from the start.

use super::error::ImageError;
use super::name::default_name;
use crate::error::{Class, Coded as _, Error, Refusal, Result, classed, usage};
use crate::fetch::{FetchError, Origin, Part, cache};
use crate::image::{ImageName, Sha256, Sum, Sums, newest};
use crate::shell::word;
use crate::signature::{Signed, check, is_checkable, there};
use crate::world::World;
use serde::Serialize;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// The largest list of checksums, and the largest listing of a directory, in bytes.
const MOST_TEXT: u64 = 10 << 20;
/// The lists that vendors put beside their images. `{file}` is the name of the image's file.
const LISTS: [&str; 4] = ["SHA512SUMS", "SHA256SUMS", "CHECKSUM", "{file}.CHECKSUM"];

/// An image that is known by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KnownImage {
    /// Its name.
    pub name: ImageName,
    /// Its URL. `*` in a part of its path means the newest there, such as the number of a release.
    pub url: String,
    /// Lists of checksums beside it, the first that has it counts; empty: the usual ones.
    pub sums: Vec<String>,
    /// The file with the signature of the list, `{list}` in it for the list's name; `inline`: it is
    /// in the list; `None` if the vendor signs none.
    pub signature: Option<String>,
    /// Keyrings of the vendor on this machine; those that are missing are left out.
    pub keyrings: Vec<PathBuf>,
    /// Certificates of the server's authority; `None` for those of the system.
    pub ca: Option<PathBuf>,
}

/// Who stated the checksum of a fetched image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Published {
    /// The URL of the list.
    pub list: String,
    /// The fingerprint of the key that signed it; `None` if no signature was checked.
    pub signed_by: Option<String>,
}

/// A fetched image.
#[derive(Debug)]
pub struct Fetched {
    /// The file.
    pub part: Part,
    /// Its URL.
    pub url: String,
    /// The stated checksum, and by whom if it was a list; `None` if there is none.
    pub stated: Option<(Sum, Option<Published>)>,
}

impl KnownImage {
    /// An image by its URL alone.
    pub fn at(name: ImageName, url: String) -> KnownImage {
        let (sums, keyrings) = (Vec::new(), Vec::new());
        KnownImage { name, url, sums, signature: None, keyrings, ca: None }
    }

    /// Where something is fetched from its server.
    fn origin<'o>(&'o self, url: &'o str) -> Origin<'o> {
        Origin { url, ca: self.ca.as_deref() }
    }

    /// A text of its server; `None` if there is no such file.
    fn text(&self, url: &str) -> Result<Option<Vec<u8>>> {
        match self.origin(url).text(MOST_TEXT) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(FetchError::Absent { .. }) => Ok(None),
            Err(error) => Err(refused(error)),
        }
    }

    /// Its URL with the newest of each `*`.
    fn newest(&self) -> Result<String> {
        let mut url = String::new();
        for (at, part) in self.url.split('/').enumerate() {
            if at > 0 {
                url.push('/');
            }
            // The first three are the scheme, nothing, and the server.
            if at > 2 && part.contains('*') {
                url += &self.newest_in(&url, part)?;
            } else {
                url += part;
            }
        }
        Ok(url)
    }

    /// The newest name that a pattern fits in a directory.
    fn newest_in(&self, dir: &str, pattern: &str) -> Result<String> {
        let listing = self.text(dir)?.unwrap_or_default();
        newest(&String::from_utf8_lossy(&listing), pattern).ok_or_else(|| {
            ImageError::NoneNewest { dir: dir.to_owned(), pattern: pattern.to_owned() }.hint(
                "the vendor may have moved it; name the image's URL, or correct the entry in \
                 /etc/gpuvm/images.toml",
            )
        })
    }

    /// Its checksum by the vendor's list; `None` if no list beside it has it.
    fn stated(&self, url: &str, world: &World) -> Result<Option<(Sum, Published)>> {
        let (dir, file) = url.rsplit_once('/').unwrap_or(("", url));
        let usual: Vec<String> = LISTS.iter().map(|&list| list.to_owned()).collect();
        let lists = if self.sums.is_empty() { &usual } else { &self.sums };
        for list in lists {
            let mut name = list.replace("{file}", file);
            if name.contains('*') {
                name = self.newest_in(&format!("{dir}/"), &name)?;
            }
            let list = format!("{dir}/{name}");
            let Some(bytes) = self.text(&list)? else { continue };
            let (bytes, signed_by) = self.signed(bytes, &list, world)?;
            let sums = Sums::parse(&String::from_utf8_lossy(&bytes)).map_err(|error| {
                let message = format!("{list} cannot be used: {error}");
                Error::from(error)
                    .around(Refusal::around(message, "--sha256 HEX states the checksum instead"))
            })?;
            if let Some(sum) = sums.stated(file) {
                return Ok(Some((sum, Published { list, signed_by })));
            }
        }
        Ok(None)
    }

    /// A list as far as it is signed, and the key that signed it; `None` if it was not checked.
    fn signed(&self, list: Vec<u8>, url: &str, world: &World) -> Result<(Vec<u8>, Option<String>)> {
        let Some(signature) = &self.signature else { return Ok((list, None)) };
        let keyrings = there(&self.keyrings);
        if !is_checkable(&keyrings) {
            let names: Vec<String> =
                self.keyrings.iter().map(|path| path.display().to_string()).collect();
            world.note(&format!(
                "the signature of {url} is not checked, which needs gpgv and one of: {}",
                names.join(", ")
            ));
            return Ok((list, None));
        }
        let refused = |why: String| {
            ImageError::NotSigned { list: url.to_owned(), why }.hint(
                "do not use the image; if the vendor has a new key, install its current keyring",
            )
        };
        let detached = match signature.as_str() {
            "inline" => None,
            name => {
                let dir = url.rsplit_once('/').map_or("", |(dir, _)| dir);
                let list = url.rsplit_once('/').map_or(url, |(_, list)| list);
                let at = format!("{dir}/{}", name.replace("{list}", list));
                let bytes = self.text(&at)?;
                Some(bytes.ok_or_else(|| refused(format!("there is no {at}")))?)
            }
        };
        match check(&keyrings, &list, detached.as_deref()) {
            Ok(Signed::By { key, text }) => Ok((text, Some(key))),
            Ok(Signed::Unchecked { why }) => {
                world.note(&format!("the signature of {url} is not checked: {why}"));
                Ok((list, None))
            }
            Err(error) => Err(refused(error.to_string())),
        }
    }

    /// Fetches the image. `given`: the checksum that the caller states.
    pub fn fetch(&self, given: Option<Sum>, world: &World) -> Result<Fetched> {
        let url = self.newest()?;
        let stated = match given {
            Some(sum) => Some((sum, None)),
            None => self.stated(&url, world)?.map(|(sum, by)| (sum, Some(by))),
        };
        if stated.is_none() && !self.sums.is_empty() {
            let lists = self.sums.join(", ");
            return Err(ImageError::Unlisted { url, lists }
                .hint("--sha256 HEX or --sha512 HEX states the checksum instead"));
        }
        let key = match &stated {
            Some((sum, _)) => sum.to_string(),
            None => Sha256::of_bytes(url.as_bytes()).to_string(),
        };
        let no_cache = |error: std::io::Error| {
            let message = format!("the cache of images cannot be used: {error}");
            classed(Class::System, message, "`image add` of a file needs none")
        };
        let path = cache().map_err(no_cache)?.join(format!("{key}.part"));
        let Some(mut part) = Part::open(&path).map_err(no_cache)? else {
            let message = format!("another gpuvm is fetching {url}");
            return Err(classed(Class::InUse, message, "wait for it, and try again"));
        };
        // Without a checksum nothing says that the server still has the same image.
        if stated.is_none() {
            part.restart().map_err(no_cache)?;
        }
        let begun = part.bytes().map_err(no_cache)?;
        let more =
            if begun > 0 { format!(", of which {begun} bytes are here") } else { String::new() };
        world.progress(&format!("fetch {url}{more}"));
        let reporter = world.reporter();
        let fetched = part.fetch(self.origin(&url), &mut |through, of| {
            if let Some(of) = of {
                reporter.bytes(through, of);
            }
        });
        reporter.bytes(0, 0);
        fetched.map_err(refused)?;
        Ok(Fetched { part, url, stated })
    }
}

/// The refusal of an unavailable image, with its remedy.
fn refused(error: FetchError) -> Error {
    let hint = match &error {
        FetchError::NoCurl { .. } => "`apt install curl`, on Fedora `dnf install curl`".to_owned(),
        FetchError::Absent { .. } => {
            "correct the URL; `gpuvm image list --known` has the images that are known by name"
                .into()
        }
        FetchError::Unreachable { .. } => {
            "behind a proxy, set https_proxy=http://HOST:PORT (after \
                                           sudo: `sudo https_proxy=... gpuvm image add ...`)"
                .into()
        }
        FetchError::Untrusted { .. } => "certificates of an authority of your own go to the \
                                         system's, or into `ca` of an entry in \
                                         /etc/gpuvm/images.toml"
            .into(),
        FetchError::BrokenOff { .. } => "the same command continues where it broke off".into(),
        FetchError::DiskFull { dir, .. } => format!(
            "make room, and the same command continues; `ls -lt {}` shows downloads that were broken \
             off, which may be deleted",
            word(&dir.to_string_lossy())
        ),
        FetchError::Changed { .. } => "the same command starts over".into(),
        FetchError::Status { .. }
        | FetchError::Redirected { .. }
        | FetchError::TooLong { .. }
        | FetchError::Failed { .. } => {
            "fetch it by other means, and add the file with its list of checksums beside it".into()
        }
    };
    error.hint(hint)
}

/// The meaning of the argument of `image add`.
pub enum Meant<'a> {
    /// A file, or the URL of one on this machine.
    Local,
    /// An image to fetch.
    Fetch(Cow<'a, KnownImage>),
}

/// Determines the meaning: `given` is a path, a URL, or a known name.
pub fn meant<'a>(
    given: &Path,
    name: Option<&ImageName>,
    known: &'a [KnownImage],
) -> Result<Meant<'a>> {
    let Some(text) = given.to_str() else { return Ok(Meant::Local) };
    if text.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://")) {
        let bad = text.chars().any(|c| c.is_whitespace() || c.is_control());
        let path = text.split(['?', '#']).next().unwrap_or_default();
        let file = path[8..].rsplit_once('/').map_or("", |(_, file)| file);
        if bad || file.is_empty() {
            let message = format!("{text:?} is not the URL of a file");
            return Err(usage(message, "https://SERVER/PATH, with %XX for blanks"));
        }
        let name = match name {
            Some(name) => name.clone(),
            None => default_name(Path::new(file))?,
        };
        return Ok(Meant::Fetch(Cow::Owned(KnownImage::at(name, text.to_owned()))));
    }
    let Some(entry) = known.iter().find(|known| known.name.as_str() == text) else {
        return Ok(Meant::Local);
    };
    if given.exists() {
        return Err(usage(
            format!("`{text}` is a file here, and the name of an image that can be fetched"),
            format!(
                "`gpuvm image add ./{text}` adds the file; fetch the image in another directory"
            ),
        ));
    }
    Ok(Meant::Fetch(Cow::Borrowed(entry)))
}
