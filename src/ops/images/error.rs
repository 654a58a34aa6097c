//! The errors of images.

use crate::error::Coded;

/// The reason an image is not added, used or removed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "image-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum ImageError {
    /// The pool has an image of this name.
    #[error("pool `{pool_name}` already has an image `{name}`")]
    Exists { pool_name: String, name: String },
    /// The image does not fit into the pool.
    #[error("pool `{pool_name}` has {left} free, and {file} needs {size}")]
    PoolFull { pool_name: String, left: String, file: String, size: String },
    /// The image cannot be used.
    #[error("image `{name}` cannot be used: {fault}")]
    Unusable { name: String, fault: String },
    /// A domain or volume uses the image.
    #[error("image `{name}` is in use, so it is not deleted{users}")]
    InUse { name: String, users: String },
    /// The file of the image cannot be opened.
    #[error("{shown} cannot be used: {error}")]
    NotTaken {
        /// The file, as it was given.
        shown: String,
        error: String,
    },
    /// The file of the image cannot be read to its end.
    #[error("{shown} cannot be read: {error}")]
    NotRead {
        /// The file, as it was given.
        shown: String,
        error: String,
    },
    /// No list of checksums of the vendor has the image.
    #[error("no list of checksums has {url}: {lists}")]
    Unlisted { url: String, lists: String },
    /// The vendor's list of checksums is not signed by the vendor.
    #[error("{list} is not the vendor's: {why}")]
    NotSigned { list: String, why: String },
    /// The server has no image that the pattern of a known one fits.
    #[error("{dir} has nothing named {pattern}")]
    NoneNewest { dir: String, pattern: String },
    /// The image has another checksum than the published one.
    #[error(
        "{shown} is not the image that was published\n  its {algorithm} is {sum}\n  by {who} it is    \
                 {expected}"
    )]
    OtherSum {
        /// The file, as it was given.
        shown: String,
        /// The algorithm: SHA-256 or SHA-512.
        algorithm: &'static str,
        sum: String,
        /// The source of the expected value.
        who: String,
        expected: String,
    },
}

impl Coded for ImageError {}

/// The reason a table of known images is refused.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "images-file-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum ImagesFileError {
    /// It cannot be parsed.
    #[error("{at}: {why}")]
    Syntax { at: String, why: String },
    /// It has a field that is not known.
    #[error("{at}: unknown field `{field}`")]
    Field { at: String, field: String },
    /// A field cannot have this value.
    #[error("{at}: {why}")]
    Value { at: String, why: String },
}

impl Coded for ImagesFileError {}
