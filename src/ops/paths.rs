//! Paths in domain XML.

use crate::error::{Coded, Result};
use std::path::Path;

/// The reason a path is not written into a definition.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "guest-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum PathError {
    /// It is not plain UTF-8 text.
    #[error("path {path} cannot be written in XML")]
    Path { path: String },
}

impl Coded for PathError {}

/// A path as text that XML can hold, made absolute from the working directory.
pub fn path_text(path: &Path) -> Result<String> {
    let path = std::path::absolute(path)?;
    let bad =
        || PathError::Path { path: format!("{path:?}") }.hint("use a path of plain UTF-8 text");
    let text = path.to_str().ok_or_else(bad)?;
    if text.chars().any(char::is_control) { Err(bad()) } else { Ok(text.to_owned()) }
}
