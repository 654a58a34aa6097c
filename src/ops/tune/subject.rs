//! One domain that is tuned, as data.

use crate::domain::DomainXml;

/// One domain that is tuned.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Its name; of a file without one the file's.
    pub name: String,
    /// What `check` takes for it: the name, or the file.
    pub(super) called: String,
    /// Its definition.
    pub xml: DomainXml,
    /// Whether it runs.
    pub running: bool,
    /// Whether it is a file, which is never changed.
    pub is_file: bool,
    /// The domain as it runs, where what runs is to be changed.
    pub live: Option<DomainXml>,
}

impl Subject {
    /// Its definition as it was read.
    pub fn text(&self) -> &str {
        self.xml.text()
    }
}
