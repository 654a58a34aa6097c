//! A domain to be tuned, as data.

use crate::domain::DomainXml;
use crate::source::Source;

/// A domain to be tuned.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Its name; for a file without one, the file's name.
    pub name: String,
    /// Its argument for `check`: the name, or the file.
    pub(super) called: String,
    /// Its definition.
    pub xml: DomainXml,
    /// Whether it runs.
    pub running: bool,
    /// Whether it is a file, which is never changed.
    pub is_file: bool,
    /// The live XML, if the running guest is to be changed.
    pub live: Option<DomainXml>,
}

impl Subject {
    /// A text whose commands name the source that was read.
    pub(super) fn naming(&self, text: &str) -> String {
        if self.is_file {
            Source::File(self.called.clone()).naming(text, &self.xml.name())
        } else {
            text.to_owned()
        }
    }

    /// Its definition, as it was read.
    pub fn text(&self) -> &str {
        self.xml.text()
    }
}
