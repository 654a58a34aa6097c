//! The errors of images.

use crate::error::Coded;

/// The reason an image is not added, used or removed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "image-")]
pub enum ImageError {
    /// The pool has an image of this name.
    #[error("pool `{pool_name}` already has an image `{name}`")]
    Exists {
        /// The pool.
        pool_name: String,
        /// Its name.
        name: String,
    },
    /// The image does not fit into the pool.
    #[error("pool `{pool_name}` has {left} free, and {file} needs {size}")]
    PoolFull {
        /// The pool.
        pool_name: String,
        /// The free space.
        left: String,
        /// The file.
        file: String,
        /// The space it needs.
        size: String,
    },
    /// The image cannot be used.
    #[error("image `{name}` cannot be used: {fault}")]
    Unusable {
        /// Its name.
        name: String,
        /// What is wrong with it.
        fault: String,
    },
    /// A domain or volume uses the image.
    #[error("image `{name}` is in use, so it is not deleted{users}")]
    InUse {
        /// Its name.
        name: String,
        /// Its users, one line each.
        users: String,
    },
    /// The file of the image cannot be opened.
    #[error("{shown} cannot be used: {error}")]
    NotTaken {
        /// The file, as it was given.
        shown: String,
        /// The system's error.
        error: String,
    },
    /// The file of the image cannot be read to its end.
    #[error("{shown} cannot be read: {error}")]
    NotRead {
        /// The file, as it was given.
        shown: String,
        /// The system's error.
        error: String,
    },
    /// No list of checksums of the vendor has the image.
    #[error("no list of checksums has {url}: {lists}")]
    Unlisted {
        /// The URL of the image.
        url: String,
        /// The lists.
        lists: String,
    },
    /// The vendor's list of checksums is not signed by the vendor.
    #[error("{list} is not the vendor's: {why}")]
    NotSigned {
        /// The URL of the list.
        list: String,
        /// What is wrong.
        why: String,
    },
    /// The server has no image that the pattern of a known one fits.
    #[error("{dir} has nothing named {pattern}")]
    NoneNewest {
        /// The directory.
        dir: String,
        /// The pattern.
        pattern: String,
    },
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
        /// Its checksum.
        sum: String,
        /// The source of the expected value.
        who: String,
        /// The expected checksum.
        expected: String,
    },
}

impl Coded for ImageError {}

/// The reason a table of known images is refused.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "images-file-")]
pub enum ImagesFileError {
    /// It cannot be parsed.
    #[error("{at}: {why}")]
    Syntax {
        /// The place in the file.
        at: String,
        /// What is wrong.
        why: String,
    },
    /// It has a field that is not known.
    #[error("{at}: unknown field `{field}`")]
    Field {
        /// The place in the file.
        at: String,
        /// The field.
        field: String,
    },
    /// A field cannot have this value.
    #[error("{at}: {why}")]
    Value {
        /// The place in the file.
        at: String,
        /// What is wrong.
        why: String,
    },
}

impl Coded for ImagesFileError {}
