//! What a domain was before our changes, whole, so that each can be undone: one file for each change, in a directory for
//! each domain, by UUID.
//!
//! It lies beside the domain and not in its metadata: a domain that was changed and changed back is the same to the
//! byte, `virsh dumpxml` stays readable, and passwords of consoles stay where only root reads. The files are written and
//! removed by steps, so a killed change leaves none of its own. It knows nothing of why a domain was changed.

use crate::apply::{Step, state_directory};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The version of the files.
const FORMAT: u32 = 1;

/// Is one change of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The version of the files.
    format: u32,
    /// Which change of this domain it was, from 1.
    pub number: u32,
    /// The verb: `tune`.
    pub verb: String,
    /// When, in seconds since 1970, UTC.
    pub at_s: u64,
    /// The boot of the machine that it was made in, with which huge pages end.
    pub boot: String,
    /// The hypervisor's URI.
    pub uri: String,
    /// The domain's name then.
    pub domain: String,
    /// What was changed, a line each.
    pub what: Vec<String>,
    /// The definition before.
    pub before: String,
    /// The definition after, as the hypervisor gave it back; none: it was not read.
    pub after: Option<String>,
    /// What was changed beside the definition, in this order.
    pub steps: Vec<Step>,
}

/// Is a copy of a disk that a change made, and that the domain has had since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskCopy {
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub name: String,
    /// Whether it can be compared with the disk.
    pub comparable: bool,
}

/// Is what is known of the changes of one domain.
#[derive(Debug, Clone)]
pub struct History {
    /// Where their files are.
    directory: PathBuf,
    /// The changes, the first one first.
    pub entries: Vec<Entry>,
}

/// Says why a history cannot be read.
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
}

impl History {
    /// Reads the changes of a domain on this machine, by its UUID.
    pub fn of(uuid: &str) -> Result<History, HistoryError> {
        History::read(state_directory("history").join(uuid))
    }

    /// Reads the changes whose files are in a directory; none where it is not there.
    fn read(directory: PathBuf) -> Result<History, HistoryError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| HistoryError::File { path, source }
        };
        let mut entries = Vec::new();
        let files = match std::fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(History { directory, entries });
            }
            files => files.map_err(failed(&directory))?,
        };
        for file in files {
            let path = file.map_err(failed(&directory))?.path();
            // What a killed run left of a file that it was writing is hidden.
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            crate::trace::reads(&path);
            let text = std::fs::read_to_string(&path).map_err(failed(&path))?;
            entries.push(entry(&path, &text)?);
        }
        entries.sort_by_key(|entry: &Entry| entry.number);
        Ok(History { directory, entries })
    }

    /// The entry of the next change, with nothing in it that was not asked of the caller.
    pub fn next(&self, verb: &str, uri: &str, domain: &str, at_s: u64, before: String) -> Entry {
        Entry {
            format: FORMAT,
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
        let text =
            |entry: &Entry| serde_json::to_string_pretty(entry).expect("plain values") + "\n";
        let path = self.file(entry.number);
        Step::Remember { path, text: Some(text(entry)), was: was.map(text) }
    }

    /// The step that takes an entry away.
    pub fn forget(&self, entry: &Entry) -> Step {
        self.remember(entry, None).reversed().expect("a file comes and goes")
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

impl Entry {
    /// The steps that undo it, where the domain is defined as `now`; `runs`: what runs is changed back, too; `boot`: the
    /// boot of the machine now; `copies`: copies of disks go, once it is seen that nothing was written on them since; else
    /// they stay.
    pub fn undo(&self, now: &str, runs: bool, boot: &str, copies: bool) -> Vec<Step> {
        let back = self.steps.iter().rev().filter(|step| runs || !step.is_of_running());
        let stands = |step: &&Step| match step {
            Step::CompareDisk { .. } => copies,
            Step::SetPages(_) | Step::Set(_) => self.boot == boot,
            _ => true,
        };
        let mut steps: Vec<Step> = back.filter(stands).filter_map(Step::reversed).collect();
        if now != self.before {
            let (name, xml) = (self.domain.clone(), self.before.clone());
            steps.push(Step::RedefineDomain { name, xml, before: now.to_owned() });
        }
        if copies {
            let gone = |copy: DiskCopy| Step::DeleteVolume {
                pool: copy.pool,
                name: copy.name,
                file: None,
            };
            steps.extend(self.copies().map(gone));
        }
        steps
    }

    /// The copies of disks that it made, the last one first.
    pub fn copies(&self) -> impl Iterator<Item = DiskCopy> {
        self.steps.iter().rev().filter_map(|step| match step {
            Step::CompareDisk { pool, volume, content, .. } => {
                let (pool, name) = (pool.clone(), volume.clone());
                Some(DiskCopy { pool, name, comparable: *content })
            }
            _ => None,
        })
    }
}

/// Whether a step sets a number of huge pages, which no boot of the machine outlives.
fn is_pages(step: &Step) -> bool {
    matches!(step, Step::SetPages(_))
}

/// Reads one file.
fn entry(path: &Path, text: &str) -> Result<Entry, HistoryError> {
    let damaged = |reason: String| HistoryError::Damaged { path: path.to_owned(), reason };
    let entry: Entry = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    if entry.format != FORMAT {
        return Err(damaged(format!(
            "format {} is not {FORMAT}, the one known here",
            entry.format
        )));
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::bind::set_private_file;
    use crate::apply::pages::PagesStep;
    use gpuvm_core::cpuset::NodeId;
    use gpuvm_core::domain::live::GuestThread;
    use gpuvm_core::memsize::MemSize;

    /// A history in a directory of its own.
    fn history() -> (tempfile::TempDir, History) {
        let root = tempfile::tempdir().unwrap();
        let history = History::read(root.path().join("uuid")).unwrap();
        (root, history)
    }

    /// Does a step that writes or removes a file.
    fn perform(step: &Step) {
        let Step::Remember { path, text, .. } = step else { panic!("{step:?}") };
        set_private_file(path, text.as_deref()).unwrap();
    }

    #[test]
    fn changes_are_numbered_and_go_one_by_one() {
        let (_root, history) = history();
        let first = history.next("tune", "test:///default", "a", 7, "<domain/>".into());
        perform(&history.remember(&first, None));
        let history = History::read(history.directory).unwrap();
        assert_eq!(history.entries, std::slice::from_ref(&first));
        let second = history.next("tune", "test:///default", "a", 8, "<domain></domain>".into());
        assert_eq!(second.number, 2);
        perform(&history.remember(&second, None));
        let read = Entry { after: Some("<domain>after</domain>".into()), ..second.clone() };
        perform(&history.remember(&read, Some(&second)));
        let history = History::read(history.directory).unwrap();
        assert_eq!(history.entries, [first, read.clone()]);
        perform(&history.forget(&read));
        let history = History::read(history.directory).unwrap();
        assert_eq!(history.entries.len(), 1);
        history.forget_all().iter().for_each(perform);
        assert!(!history.directory.exists());
    }

    #[test]
    fn undoing_goes_backwards_and_leaves_what_does_not_run() {
        let (_root, history) = history();
        let mut entry = history.next("tune", "test:///default", "a", 0, "<domain/>".into());
        let name = "a".to_owned();
        let path = PathBuf::from("/etc/x");
        entry.steps = vec![
            Step::SetFile { path: path.clone(), text: Some("new".into()), was: None },
            Step::PinThread {
                name: name.clone(),
                thread: GuestThread::Emulator,
                pcpus: "1".parse().unwrap(),
                was: "0-3".parse().unwrap(),
            },
        ];
        let file = Step::SetFile { path, text: None, was: Some("new".into()) };
        let define = Step::RedefineDomain {
            name: name.clone(),
            xml: "<domain/>".into(),
            before: "<domain>now</domain>".into(),
        };
        let steps = entry.undo("<domain>now</domain>", false, "b", true);
        assert_eq!(steps, [file.clone(), define]);
        let pin = Step::PinThread {
            name,
            thread: GuestThread::Emulator,
            pcpus: "0-3".parse().unwrap(),
            was: "1".parse().unwrap(),
        };
        assert_eq!(entry.undo("<domain/>", true, "b", true), [pin, file]);
    }

    #[test]
    fn a_copy_goes_after_it_was_compared_or_stays() {
        let (_root, history) = history();
        let mut entry = history.next("tune", "test:///default", "a", 0, "<domain/>".into());
        let (pool, name) = ("p".to_owned(), "a.raw".to_owned());
        let compare = Step::CompareDisk {
            domain: "a".into(),
            pool: pool.clone(),
            volume: name.clone(),
            format: "raw".into(),
            capacity_bytes: 1,
            disk: "/p/a.qcow2".into(),
            disk_format: "qcow2".into(),
            content: true,
        };
        entry.steps = vec![compare.clone()];
        let steps = entry.undo("<domain>now</domain>", false, "b", true);
        assert!(matches!(&steps[..], [first, Step::RedefineDomain { .. }, last]
            if *first == compare && *last == Step::DeleteVolume { pool, name, file: None }));
        let steps = entry.undo("<domain>now</domain>", false, "b", false);
        assert!(matches!(steps[..], [Step::RedefineDomain { .. }]), "{steps:?}");
    }

    #[test]
    fn pages_are_given_back_in_the_boot_that_they_were_reserved_in() {
        let (_root, mut history) = history();
        let mut entry = history.next("tune", "test:///default", "a", 0, "<domain/>".into());
        let pages = |to, was, needed| {
            let (node, page_kib) = (NodeId(1), MemSize::from_kib(2048));
            Step::SetPages(PagesStep { node, page_kib, to, was, needed })
        };
        entry.boot = "one".into();
        entry.steps = vec![pages(10, 2, 8)];
        assert_eq!(entry.undo("<domain/>", false, "one", true), [pages(2, 10, 0)]);
        assert_eq!(entry.undo("<domain/>", false, "two", true), []);
        history.entries.push(entry);
        assert_eq!(history.give_back_pages("one"), [pages(2, 10, 0)]);
        assert_eq!(history.give_back_pages("two"), []);
        // Nothing is left of it in another boot, unless it changed the definition, too.
        assert_eq!(history.forget_spent("two"), []);
        history.entries[0].after = Some("<domain/>".into());
        assert_eq!(history.forget_spent("one"), []);
        assert_eq!(history.forget_spent("two"), [history.forget(&history.entries[0])]);
    }

    #[test]
    fn a_damaged_file_is_named() {
        for (text, reason) in [
            ("", "EOF"),
            ("{}", "missing field"),
            ("{\"format\": 1, \"more\": 2}", "unknown field"),
        ] {
            let error = entry(Path::new("/x/0001.json"), text).unwrap_err().to_string();
            assert!(error.contains("/x/0001.json") && error.contains(reason), "{error}");
        }
        let (_root, history) = history();
        let mut later = history.next("tune", "", "a", 0, String::new());
        later.format = 9;
        let text = serde_json::to_string(&later).unwrap();
        let error = entry(Path::new("/x/0001.json"), &text).unwrap_err().to_string();
        assert!(error.contains("format 9 is not 1"), "{error}");
    }
}
