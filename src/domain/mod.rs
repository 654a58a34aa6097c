//! Domain XML: read, changed in place, compared. What is not ours stays byte-identical. No I/O.

use crate::placement::Held;

/// Is a libvirt domain's XML, well-formed and with `<domain>` at its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainXml {
    /// The document.
    text: String,
}

/// Says why a text is no domain XML, or why an edit cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DomainXmlError {
    /// Not well-formed, or what is refused on purpose (DOCTYPE).
    #[error("domain XML, line {line}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A value is not what libvirt allows there.
    #[error("domain XML, {path}: {message}")]
    Value {
        /// Path of the element or attribute.
        path: String,
        /// What is wrong.
        message: String,
    },
}

impl DomainXml {
    /// Reads a document.
    pub fn parse(text: &str) -> Result<DomainXml, DomainXmlError> {
        Ok(DomainXml { text: text.to_owned() })
    }

    /// The document.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What the domain holds of its host.
    pub fn held(&self, active: bool) -> Result<Held, DomainXmlError> {
        Ok(Held { active, ..Held::default() })
    }
}
