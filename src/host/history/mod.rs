//! The history store: the state before our changes, so that each can be undone: every change of a
//! domain and of the host ([`History`]), the last one of a network ([`network`]); and the resources
//! reserved and made for a guest ([`guest`]).
//!
//! It is in the host's state directory rather than a domain's metadata: a domain changed and
//! changed back is byte-identical, `virsh dumpxml` stays readable, and console passwords stay
//! readable only by root. The files:
//!
//! | File | Holds |
//! |---|---|
//! | `history/UUID/NUMBER.json`, `history/host/NUMBER.json` | an [`Entry`] |
//! | `networks/UUID.json` | a [`network::NetworkEntry`] |
//! | `reserved/UUID.json` | a [`guest::GuestRecord`] |
//! | `measured/UUID.json` | the runs of [`measured`] |
//! | `gpus/NAME.json` | a [`gpus::GpuRecord`] |
//!
//! `store` reads and writes them, [`Owner`] decides whose they are. The store does not know why
//! something was changed.

mod entry;
pub mod gpus;
pub mod guest;
pub mod measured;
pub mod network;
mod owner;
mod store;
mod users;

#[cfg(test)]
mod tests;

pub use entry::{Beyond, DiskCopy, Entry, NewImage};
pub use owner::Owner;
pub use users::{UserRecords, of_users};

use crate::apply::{HostStep, Step, kept_in};
use gpuvm_core::shell::word;
use std::io;
use std::path::{Path, PathBuf};

/// The directory of the changes of domains and of the host.
const DIRECTORY: &str = "history";
/// How many undone changes are kept.
const MOST_UNDONE: usize = 20;
/// The name used for the host in place of a domain's UUID.
const HOST: &str = "host";

/// The changes of one domain, or of the host.
#[derive(Debug, Clone)]
pub struct History {
    directory: PathBuf,
    /// The changes, the first one first.
    pub entries: Vec<Entry>,
    /// Changes that were undone, the first one first, the last [`MOST_UNDONE`].
    pub undone: Vec<Entry>,
}

/// The error of reading the store.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "history-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum HistoryError {
    /// The file system failed.
    #[error("{} {}: {source}", Records::at(path).noun(), path.display())]
    File { path: PathBuf, source: io::Error },
    /// A file is not ours, or damaged.
    #[error("{} {}: {reason}", Records::at(path).noun(), path.display())]
    Damaged { path: PathBuf, reason: String },
    /// A file has a newer format, or a step that a newer gpuvm has.
    #[error("{} {}: {what}", Records::at(path).noun(), path.display())]
    Newer { path: PathBuf, what: String },
    /// The definition of a network to be recorded cannot be parsed.
    #[error("cannot parse the definition of network `{name}`: {reason}")]
    #[strum(to_string = "network-definition")]
    Network { name: String, reason: String },
}

/// The kinds of records, each in a directory of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Records {
    /// Changes of a domain.
    Domain,
    /// Changes of the host.
    Host,
    /// The last changes of networks.
    Networks,
    /// Resources of guests.
    Guests,
    /// Measurements in guests.
    Measured,
    /// States of GPUs.
    Gpus,
}

impl Records {
    /// The kind of a file or directory of the store.
    fn at(path: &Path) -> Records {
        let names = path.ancestors().take(2).filter_map(|path| path.file_name());
        let mut known = names.filter_map(|name| match name.to_str()? {
            guest::DIRECTORY => Some(Records::Guests),
            measured::DIRECTORY => Some(Records::Measured),
            gpus::DIRECTORY => Some(Records::Gpus),
            network::DIRECTORY => Some(Records::Networks),
            HOST => Some(Records::Host),
            _ => None,
        });
        known.next().unwrap_or(Records::Domain)
    }

    fn noun(self) -> &'static str {
        match self {
            Records::Domain => "history",
            Records::Host => "history of the host",
            Records::Networks => "record of a network",
            Records::Guests => "record of a guest's resources",
            Records::Measured => "measurements of a guest",
            Records::Gpus => "record of a GPU",
        }
    }

    /// The consequence of losing a file.
    fn loss(self) -> &'static str {
        match self {
            Records::Domain => {
                "that change of the domain can no longer be undone, and huge pages that it \
                 reserved stay reserved"
            }
            Records::Host => "that change of the host can no longer be undone",
            Records::Networks => "that change of the network can no longer be undone",
            Records::Guests => {
                "resources recorded only there stay allocated: huge pages, virtual functions, \
                 images of a conversion"
            }
            Records::Measured => "later measurements of the guest have nothing to compare with",
            Records::Gpus => "its GPU counts as one that no guest has had, so test it first",
        }
    }
}

impl HistoryError {
    /// Returns a hint if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            HistoryError::Damaged { path, .. } => {
                let (file, loss) = (path.to_string_lossy(), Records::at(path).loss());
                Some(format!("`mv {0} {0}.damaged` puts it away; without it {loss}", word(&file)))
            }
            HistoryError::Newer { .. } => Some(
                "use the gpuvm that wrote it, or a later one: leave the file where it is".into(),
            ),
            HistoryError::File { .. } | HistoryError::Network { .. } => None,
        }
    }
}

impl History {
    /// Reads the changes of a domain of this machine, by its UUID; `state`: a caller's own state
    /// directory. Errors: a file cannot be read, is damaged, or has a newer format.
    pub fn of(state: Option<&Path>, uuid: &str) -> Result<History, HistoryError> {
        History::read(kept_in(state, DIRECTORY).join(uuid))
    }

    /// Reads the changes of the host itself. Errors: as those of [`History::of`].
    pub fn of_host(state: Option<&Path>) -> Result<History, HistoryError> {
        History::of(state, HOST)
    }

    /// Reads the changes whose files are in a directory; none if it does not exist.
    fn read(directory: PathBuf) -> Result<History, HistoryError> {
        let documents = store::documents(&directory)?;
        let entries = documents.iter().map(|(path, text)| store::parse(path, text));
        let mut entries = entries.collect::<Result<Vec<Entry>, HistoryError>>()?;
        entries.sort_by_key(|entry| entry.number);
        let (undone, entries) = entries.into_iter().partition(|entry| entry.undone_at_s.is_some());
        Ok(History { directory, entries, undone })
    }

    /// Makes the entry of the next change, with only the caller's values.
    pub fn next(&self, verb: &str, uri: &str, domain: &str, at_s: u64, before: String) -> Entry {
        Entry {
            format: store::FORMAT,
            number: self.all().map(|entry| entry.number).max().unwrap_or(0).saturating_add(1),
            verb: verb.to_owned(),
            at_s,
            boot: String::new(),
            uri: uri.to_owned(),
            domain: domain.to_owned(),
            what: Vec::new(),
            before,
            after: None,
            steps: Vec::new(),
            undone_at_s: None,
        }
    }

    /// All changes, undone ones too.
    pub fn all(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().chain(&self.undone)
    }

    /// Returns the steps that record a change as undone, and remove the record of the oldest undone
    /// ones.
    pub fn undone(&self, entry: &Entry, at_s: u64) -> Vec<Step> {
        let undone = Entry {
            before: String::new(),
            after: None,
            steps: Vec::new(),
            undone_at_s: Some(at_s),
            ..entry.clone()
        };
        let old = (self.undone.len() + 1).saturating_sub(MOST_UNDONE);
        let oldest = self.undone.iter().take(old).map(|entry| self.forget(entry));
        oldest.chain([self.remember(&undone, Some(entry))]).collect()
    }

    /// Returns the step that writes an entry, replacing its old content.
    pub fn remember(&self, entry: &Entry, was: Option<&Entry>) -> Step {
        store::write(self.file(entry.number), entry, was.map(store::text))
    }

    /// Returns the steps that give its domain another name in all entries, so that they can be
    /// undone; `defined` does so in a definition.
    pub fn rename(&self, name: &str, to: &str, defined: impl Fn(&str) -> String) -> Vec<Step> {
        let its = self.entries.iter().filter(|entry| entry.domain == name);
        let renamed = |entry: &Entry| {
            let mut new = entry.clone();
            to.clone_into(&mut new.domain);
            // The names of an earlier renaming stay.
            if !matches!(entry.beyond(), Some(Beyond::Renamed(_))) {
                new.before = defined(&entry.before);
                new.after = entry.after.as_deref().map(&defined);
            }
            new.steps = entry.steps.iter().map(|step| step.renamed(name, to)).collect();
            self.remember(&new, Some(entry))
        };
        its.map(renamed).collect()
    }

    /// Returns the step that removes an entry.
    pub fn forget(&self, entry: &Entry) -> Step {
        store::remove(self.file(entry.number), store::text(entry))
    }

    /// Returns the steps that remove all entries, the last first.
    pub fn forget_all(&self) -> Vec<Step> {
        self.entries.iter().rev().chain(&self.undone).map(|entry| self.forget(entry)).collect()
    }

    /// Returns the steps that release huge pages reserved for the domain in this boot and not yet
    /// released.
    pub fn give_back_pages(&self, boot: &str) -> Vec<Step> {
        let here = self.entries.iter().rev().filter(|entry| entry.boot == boot);
        let steps = here.flat_map(|entry| entry.steps.iter().rev());
        steps.filter(|step| is_pages(step)).filter_map(Step::reversed).collect()
    }

    /// Returns the steps that remove changes without remaining effect: only pages, reserved in
    /// another boot.
    pub fn forget_spent(&self, boot: &str) -> Vec<Step> {
        let spent = |entry: &&Entry| {
            let is_same = entry.after.as_ref() == Some(&entry.before);
            entry.boot != boot && is_same && entry.steps.iter().all(is_pages)
        };
        self.entries.iter().filter(spent).map(|entry| self.forget(entry)).collect()
    }

    fn file(&self, number: u32) -> PathBuf {
        self.directory.join(format!("{number:04}.json"))
    }
}

/// Whether a step sets a number of huge pages, which does not survive a reboot.
fn is_pages(step: &Step) -> bool {
    matches!(step, Step::Host(HostStep::SetPages(_)))
}
