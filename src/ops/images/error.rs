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
    /// The image has another SHA-256 than the published one.
    #[error(
        "{shown} is not the image that was published\n  its SHA-256 is {sum}\n  by {who} it is    \
                 {expected}"
    )]
    OtherSum {
        /// The file, as it was given.
        shown: String,
        /// Its SHA-256.
        sum: String,
        /// The source of the expected value.
        who: String,
        /// The expected SHA-256.
        expected: String,
    },
}

impl Coded for ImageError {}
