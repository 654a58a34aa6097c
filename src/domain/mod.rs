//! Domain XML: read, changed in place, compared. What is not ours stays byte-identical. No I/O.

pub mod claims;
mod element;
mod held;
pub mod read;
mod tree;

pub use element::Element;

/// Is a libvirt domain's XML, well-formed and with `<domain>` at its root.
#[derive(Clone)]
pub struct DomainXml {
    /// The document and where its elements stand.
    tree: tree::Tree,
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
        Ok(DomainXml { tree: tree::Tree::parse(text.to_owned())? })
    }

    /// The document.
    pub fn text(&self) -> &str {
        &self.tree.text
    }

    /// Its root, to read.
    pub fn root(&self) -> Element<'_> {
        self.tree.root()
    }

    /// The domain's name; empty where it has none.
    pub fn name(&self) -> String {
        self.root().child("name").map(|name| name.text().into_owned()).unwrap_or_default()
    }

    /// The domain's UUID; none where libvirt is to choose one.
    pub fn uuid(&self) -> Option<String> {
        self.root().child("uuid").map(|uuid| uuid.text().into_owned())
    }
}

impl PartialEq for DomainXml {
    fn eq(&self, other: &DomainXml) -> bool {
        self.text() == other.text()
    }
}

impl Eq for DomainXml {}

impl std::fmt::Debug for DomainXml {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}
