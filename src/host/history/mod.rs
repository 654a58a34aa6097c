//! What was there before our changes, so that each can be taken back: of a domain and of the host every change ([`History`]), of
//! a network the last one ([`network`]); and what was reserved and made for a guest ([`guest`]).
//!
//! It lies in the host's state directory and not in a domain's metadata: a domain that was changed and changed back is the same
//! to the byte, `virsh dumpxml` stays readable, and passwords of consoles stay where only root reads. Which file is of what:
//!
//! | File | Holds |
//! |---|---|
//! | `history/UUID/NUMBER.json`, `history/host/NUMBER.json` | an [`Entry`] |
//! | `networks/UUID.json` | a [`network::NetworkEntry`] |
//! | `reserved/UUID.json` | a [`guest::GuestRecord`] |
//!
//! How they are read and written is in `store`, whose they are is said by [`Owner`]. It knows nothing of why something was
//! changed.

mod entry;
pub mod guest;
pub mod network;
mod owner;
mod store;

#[cfg(test)]
mod tests;

pub use entry::{DiskCopy, Entry};
pub use owner::Owner;

use crate::apply::{Step, kept_in};
use std::io;
use std::path::{Path, PathBuf};

/// The directory of the changes of domains and of the host.
const DIRECTORY: &str = "history";
/// Where changes of the host are, in place of a domain's UUID.
const HOST: &str = "host";

/// The changes of one domain, or of the host.
#[derive(Debug, Clone)]
pub struct History {
    /// Where their files are.
    directory: PathBuf,
    /// The changes, the first one first.
    pub entries: Vec<Entry>,
}

/// Says why what was kept cannot be read.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "history-")]
pub enum HistoryError {
    /// The file system could not.
    #[error("history {}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file is none of ours, or damaged.
    #[error("history {}: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file is of a newer format.
    #[error("history {}: format {format} is of a newer gpuvm; this one reads formats up to {known}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: u32,
        /// The newest that is known here.
        known: u32,
    },
    /// A network that is to be kept has a definition that is not understood.
    #[error("the definition of network `{name}` is not understood: {reason}")]
    #[strum(to_string = "network-definition")]
    Network {
        /// The network.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl History {
    /// Reads the changes of a domain of this machine, by its UUID; `state`: the directory of a caller that keeps them in one of
    /// its own. Errors: a file cannot be read, is damaged, or is of a newer format.
    pub fn of(state: Option<&Path>, uuid: &str) -> Result<History, HistoryError> {
        History::read(kept_in(state, DIRECTORY).join(uuid))
    }

    /// Reads the changes of the host itself. Errors: as those of [`History::of`].
    pub fn of_host(state: Option<&Path>) -> Result<History, HistoryError> {
        History::of(state, HOST)
    }

    /// Reads the changes whose files are in a directory; none where it is not there.
    fn read(directory: PathBuf) -> Result<History, HistoryError> {
        let documents = store::documents(&directory)?;
        let entries = documents.iter().map(|(path, text)| store::parse(path, text));
        let mut entries = entries.collect::<Result<Vec<Entry>, HistoryError>>()?;
        entries.sort_by_key(|entry| entry.number);
        Ok(History { directory, entries })
    }

    /// The entry of the next change, with nothing in it that was not asked of the caller.
    pub fn next(&self, verb: &str, uri: &str, domain: &str, at_s: u64, before: String) -> Entry {
        Entry {
            format: store::FORMAT,
            number: self.entries.last().map_or(1, |last| last.number.saturating_add(1)),
            verb: verb.to_owned(),
            at_s,
            boot: String::new(),
            uri: uri.to_owned(),
            domain: domain.to_owned(),
            what: Vec::new(),
            before,
            after: None,
            steps: Vec::new(),
        }
    }

    /// The step that writes an entry, over what there was of it.
    pub fn remember(&self, entry: &Entry, was: Option<&Entry>) -> Step {
        store::write(self.file(entry.number), entry, was.map(store::text))
    }

    /// The step that takes an entry away.
    pub fn forget(&self, entry: &Entry) -> Step {
        store::remove(self.file(entry.number), store::text(entry))
    }

    /// The steps that take all of them away, the last first.
    pub fn forget_all(&self) -> Vec<Step> {
        self.entries.iter().rev().map(|entry| self.forget(entry)).collect()
    }

    /// The steps that give back what huge pages were reserved for the domain in this boot of the machine, and not yet
    /// given back.
    pub fn give_back_pages(&self, boot: &str) -> Vec<Step> {
        let here = self.entries.iter().rev().filter(|entry| entry.boot == boot);
        let steps = here.flat_map(|entry| entry.steps.iter().rev());
        steps.filter(|step| is_pages(step)).filter_map(Step::reversed).collect()
    }

    /// The steps that forget changes of which nothing is left: pages alone, reserved in another boot of the machine.
    pub fn forget_spent(&self, boot: &str) -> Vec<Step> {
        let spent = |entry: &&Entry| {
            let is_same = entry.after.as_ref() == Some(&entry.before);
            entry.boot != boot && is_same && entry.steps.iter().all(is_pages)
        };
        self.entries.iter().filter(spent).map(|entry| self.forget(entry)).collect()
    }

    /// The file of a change.
    fn file(&self, number: u32) -> PathBuf {
        self.directory.join(format!("{number:04}.json"))
    }
}

/// Whether a step sets a number of huge pages, which no boot of the machine outlives.
fn is_pages(step: &Step) -> bool {
    matches!(step, Step::SetPages(_))
}
