//! Module ids of GPUs on their board. They never follow from the bus order (gpuvm-hardware(7),
//! MODULE IDS), so they come from NVML, Fabric Manager, the admin's file, or last a publication.
//! This module combines these sources; it reads only the file itself.

use crate::discover::trust::owned;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::fabric::HIGHEST_MODULE as HIGHEST;
use gpuvm_core::shell::word;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The admin's file: a JSON object from address to module id. `gpuvm host modules --write` makes
/// it.
pub const PATH: &str = "/etc/gpuvm/module-ids.json";

/// The source of a module id, the most trusted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The driver that the GPU is bound to.
    Nvml,
    /// Fabric Manager.
    Manager,
    /// The admin's file.
    File,
    /// A publication about the product.
    Published,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Nvml => "NVML",
            Source::Manager => "Fabric Manager",
            Source::File => PATH,
            Source::Published => "publications about this product",
        })
    }
}

/// The known module ids of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Modules {
    /// Module id by address, with its source.
    ids: BTreeMap<Bdf, (u32, Source)>,
    /// Contradictions, for the user.
    pub notes: Vec<String>,
}

impl Modules {
    /// Adds the ids of a source. Ids from a more trusted source stay, and contradictions are noted;
    /// sources must be added in the order of [`Source`].
    pub fn add(&mut self, source: Source, ids: impl IntoIterator<Item = (Bdf, u32)>) {
        for (bdf, id) in ids {
            let other = self.ids.iter().find(|(gpu, (known, _))| *known == id && **gpu != bdf);
            if let Some((known, by)) = self.ids.get(&bdf).copied() {
                if known != id {
                    self.notes.push(format!(
                        "GPU {bdf} is module {known} by {by}, but {id} by {source}; the first \
                         counts"
                    ));
                }
            } else if let Some((gpu, (_, by))) = other {
                self.notes.push(format!(
                    "module {id} is GPU {gpu} by {by}, but {bdf} by {source}; the first counts"
                ));
            } else {
                self.ids.insert(bdf, (id, source));
            }
        }
    }

    /// The module id of a GPU.
    pub fn get(&self, gpu: Bdf) -> Option<u32> {
        self.ids.get(&gpu).map(|(id, _)| *id)
    }

    /// Returns the source of a GPU's module id.
    pub fn source(&self, gpu: Bdf) -> Option<Source> {
        self.ids.get(&gpu).map(|(_, source)| *source)
    }

    /// Module ids by address.
    pub fn iter(&self) -> impl Iterator<Item = (Bdf, u32)> {
        self.ids.iter().map(|(bdf, (id, _))| (*bdf, *id))
    }

    /// Addresses by module id.
    pub fn by_id(&self) -> BTreeMap<u32, Bdf> {
        self.iter().map(|(bdf, id)| (id, bdf)).collect()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the sources in use, the most trusted first.
    pub fn sources(&self) -> BTreeSet<Source> {
        self.ids.values().map(|(_, source)| *source).collect()
    }

    /// The admin's file of these ids.
    pub fn to_file(&self) -> String {
        let lines: Vec<String> =
            self.iter().map(|(bdf, id)| format!("  \"{bdf}\": {id}")).collect();
        format!("{{\n{}\n}}\n", lines.join(",\n"))
    }
}

/// Returns the remedy where an error is about the admin's file; `None` if it is about another.
pub fn hint(error: &FsError) -> Option<String> {
    let (FsError::Malformed { path, .. } | FsError::NotText { path, .. }) = error else {
        return None;
    };
    let file = word(path);
    let anew = if path == PATH {
        "; then `gpuvm host modules --write` rewrites it, while the driver has the GPUs"
    } else {
        ""
    };
    let shown = format!("`ls -l {file}` shows it; `mv {file} {file}.old` puts it away{anew}");
    path.ends_with(PATH).then_some(shown)
}

/// Reads the admin's file; empty if missing. A file that lacks a GPU of the host while naming a
/// nonexistent one was written for other bus numbers: it is ignored, and the second value says so.
pub fn from_file(
    root: &FsRoot,
    gpus: &[Bdf],
) -> Result<(BTreeMap<Bdf, u32>, Option<String>), FsError> {
    let file = PATH.trim_start_matches('/');
    if root.is_live() {
        // The files of a record belong to whoever made it.
        owned(root, file)?;
    } else {
        root.regular(file)?;
    }
    let Some(text) = root.read(PATH)? else { return Ok((BTreeMap::new(), None)) };
    let FileIds(mut ids) = serde_json::from_str(&text).map_err(|error| {
        let whole = error.to_string();
        let reason = whole.split(" at line ").next().unwrap_or_default();
        root.malformed(PATH, error.line().max(1), reason)
    })?;
    let absent = ids.keys().find(|bdf| !gpus.contains(bdf)).copied();
    let unnamed = gpus.iter().find(|gpu| !ids.contains_key(gpu));
    if let (Some(absent), Some(unnamed)) = (absent, unnamed) {
        let note = format!(
            "{PATH} is not used: it names {absent}, which is not a GPU of this host, and not \
             {unnamed}, which is one; `gpuvm host modules --write` rewrites it"
        );
        return Ok((BTreeMap::new(), Some(note)));
    }
    ids.retain(|bdf, _| gpus.contains(bdf));
    Ok((ids, None))
}

/// The admin's file: every address and every id at most once.
struct FileIds(BTreeMap<Bdf, u32>);

impl<'de> Deserialize<'de> for FileIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FileIds, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = FileIds;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object such as {\"0000:1b:00.0\": 1}")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<FileIds, M::Error> {
                let mut ids = BTreeMap::new();
                while let Some(bdf) = map.next_key::<Bdf>()? {
                    let id = map.next_value_seed(FileId { bdf, before: &ids })?;
                    ids.insert(bdf, id);
                }
                Ok(FileIds(ids))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Reads one id; errors are found here, where the parser still knows the line.
struct FileId<'a> {
    bdf: Bdf,
    before: &'a BTreeMap<Bdf, u32>,
}

impl<'de> DeserializeSeed<'de> for FileId<'_> {
    type Value = u32;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u32, D::Error> {
        deserializer.deserialize_u32(self)
    }
}

impl Visitor<'_> for FileId<'_> {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a module id, 1 to {HIGHEST}")
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<u32, E> {
        let FileId { bdf, before } = self;
        let id =
            u32::try_from(id).ok().filter(|id| (1..=HIGHEST).contains(id)).ok_or_else(|| {
                E::custom(format_args!("module id {id} of {bdf} is not 1 to {HIGHEST}"))
            })?;
        if before.contains_key(&bdf) {
            return Err(E::custom(format_args!("{bdf} appears twice")));
        }
        match before.iter().find(|(_, known)| **known == id) {
            Some((other, _)) => {
                Err(E::custom(format_args!("module id {id} appears twice: {other} and {bdf}")))
            }
            None => Ok(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first function of a bus.
    fn bdf(bus: u8) -> Bdf {
        Bdf::new(0, bus, 0, 0).unwrap()
    }

    /// Reads a text as the file of a host with GPUs on buses 0x1b and 0x43.
    fn read(text: &str) -> Result<(BTreeMap<Bdf, u32>, Option<String>), FsError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("etc/gpuvm")).unwrap();
        std::fs::write(dir.path().join(&PATH[1..]), text).unwrap();
        from_file(&FsRoot::at(dir.path()).unwrap(), &[bdf(0x1b), bdf(0x43)])
    }

    #[test]
    fn a_damaged_file_is_an_error_with_its_line() {
        for (text, line, reason) in [
            ("", 1, "EOF while parsing"),
            ("[]", 1, "expected an object such as"),
            ("{\n \"0000:1b:00.0\": 1,\n \"0000:1b:00.9\": 2}", 3, "PCI function 0x9 is above 0x7"),
            ("{\n \"0000:1b:00.0\": 1,\n \"0000:43:00.0\": 1\n}", 3, "appears twice: 0000:1b:00.0"),
            ("{\"0000:1b:00.0\": 1,\n\"0000:1b:00.0\": 2}", 2, "0000:1b:00.0 appears twice"),
            ("{\"0000:1b:00.0\": 0}", 1, "module id 0 of 0000:1b:00.0 is not 1 to 16"),
            ("{\"0000:1b:00.0\": 17}", 1, "is not 1 to 16"),
            ("{\"0000:1b:00.0\": -1}", 1, "invalid type"),
            ("{\"0000:1b:00.0\": \"1\"}", 1, "invalid type"),
            ("{\"0000:1b:00.0\": 1} x", 1, "trailing characters"),
        ] {
            let Err(FsError::Malformed { path, line: at, reason: said }) = read(text) else {
                panic!("{text}: accepted");
            };
            assert!(path.ends_with(PATH), "{path}");
            assert_eq!(at, line, "{text}: {said}");
            assert!(said.contains(reason) && !said.contains("column"), "{text}: {said}");
        }
    }

    #[test]
    fn a_file_of_another_kind_is_named_with_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("etc/gpuvm")).unwrap();
        let fifo = dir.path().join(&PATH[1..]);
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = from_file(&FsRoot::at(dir.path()).unwrap(), &[bdf(0x1b)]).unwrap_err();
        assert!(error.to_string().ends_with("it is not a regular file"), "{error}");
        let advice = hint(&error).unwrap();
        assert!(advice.contains(&format!("`mv {0} {0}.old`", fifo.display())), "{advice}");
        assert!(!advice.contains("--write"), "a record is not this host: {advice}");
        let here = FsError::NotText { path: PATH.into(), reason: String::new() };
        assert!(hint(&here).unwrap().contains("`gpuvm host modules --write`"));
        let other = FsError::NotText { path: "/etc/gpuvm/other".into(), reason: String::new() };
        assert_eq!(hint(&other), None);
    }

    #[test]
    fn a_file_of_other_bus_numbers_is_not_used() {
        let both = read("{\"0000:1b:00.0\": 2, \"0000:43:00.0\": 7}").unwrap();
        assert_eq!(both, (BTreeMap::from([(bdf(0x1b), 2), (bdf(0x43), 7)]), None));
        // A GPU that fell off the bus does not matter to the others.
        let gone = "{\"0000:1b:00.0\": 2, \"0000:43:00.0\": 7, \"0000:52:00.0\": 3}";
        assert_eq!(read(gone).unwrap(), both);
        assert_eq!(read("{\"0000:1b:00.0\": 2}").unwrap().0.len(), 1, "a GPU may be left out");
        let (ids, note) = read("{\"0000:1b:00.0\": 2, \"0000:44:00.0\": 7}").unwrap();
        assert!(ids.is_empty());
        let note = note.unwrap();
        assert!(note.contains("names 0000:44:00.0") && note.contains("not 0000:43:00.0"), "{note}");
    }

    #[test]
    fn the_more_trusted_source_counts() {
        let mut modules = Modules::default();
        modules.add(Source::Nvml, [(bdf(1), 3), (bdf(2), 1)]);
        modules.add(Source::File, [(bdf(1), 3), (bdf(2), 2), (bdf(3), 1), (bdf(4), 4)]);
        let ids: Vec<_> = modules.iter().collect();
        assert_eq!(ids, [(bdf(1), 3), (bdf(2), 1), (bdf(4), 4)]);
        assert_eq!(modules.notes.len(), 2, "{:?}", modules.notes);
        assert!(modules.notes[0].contains("GPU 0000:02:00.0 is module 1 by NVML, but 2 by /etc"));
        assert!(
            modules.notes[1].contains("module 1 is GPU 0000:02:00.0 by NVML, but 0000:03:00.0")
        );
        assert_eq!(modules.source(bdf(4)), Some(Source::File));
    }

    #[test]
    fn written_values_are_read() {
        let mut modules = Modules::default();
        modules.add(Source::Nvml, [(bdf(0x43), 1), (bdf(0x1b), 2)]);
        let (ids, _) = read(&modules.to_file()).unwrap();
        assert_eq!(ids.into_iter().collect::<Vec<_>>(), modules.iter().collect::<Vec<_>>());
    }
}
