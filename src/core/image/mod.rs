//! Disk images: the format, detected from the content and never from the name, and the checksum
//! against the published one. Reads given bytes and knows no file, pool or guest.

mod below;
mod content;
mod listing;
mod snapshots;
mod sums;

pub use below::{Below, BelowError, below, is_untouched};
pub use content::{BACKED, Content, ContentError, Format, Found, HEAD, content, disk, kept};
pub use listing::{fits, newest};
pub use snapshots::{ImageSnapshot, snapshots};
pub use sums::{Computed, Digest, Sha256, Sha512, Sum, SumError, Summing, Sums};

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest name of an image.
const MAX_NAME: usize = 100;

/// An image's name, also used for its volume: no path, no hidden file, no shell metacharacters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageName(String);

/// The error of an invalid image name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "image name {name:?}: 1 to {MAX_NAME} letters, digits, `-`, `_`, `.` and `+`, a letter or \
     digit first"
)]
pub struct ImageNameError {
    name: String,
}

impl ImageName {
    /// Checks a name.
    pub fn new(name: &str) -> Result<ImageName, ImageNameError> {
        let good = |at: usize, c: char| {
            c.is_ascii_alphanumeric() || (at > 0 && matches!(c, '-' | '_' | '.' | '+'))
        };
        let fits = (1..=MAX_NAME).contains(&name.len());
        if fits && name.chars().enumerate().all(|(at, c)| good(at, c)) {
            Ok(ImageName(name.to_owned()))
        } else {
            Err(ImageNameError { name: name.chars().take(40).collect() })
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ImageName {
    type Err = ImageNameError;
    fn from_str(text: &str) -> Result<ImageName, ImageNameError> {
        ImageName::new(text)
    }
}

impl TryFrom<String> for ImageName {
    type Error = ImageNameError;
    fn try_from(text: String) -> Result<ImageName, ImageNameError> {
        ImageName::new(&text)
    }
}

impl From<ImageName> for String {
    fn from(name: ImageName) -> String {
        name.0
    }
}

#[cfg(test)]
mod tests;
