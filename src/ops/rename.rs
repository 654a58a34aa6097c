//! `rename`: gives a domain another name. libvirt keeps its UUID, autostart and definition; what
//! the name is part of, and is the domain's own, follows: the file of its firmware's settings, the
//! file of its serial console, its record and its history. Disks and everything else keep their
//! names.

use crate::apply::{DomainStep, FileStep, Step, now_s};
use crate::change::Change;
use crate::domain::DomainXml;
use crate::domain::edit::{DomainEdit, NvramPath};
use crate::domain_history::{boot, refuse_of_another};
use crate::error::{Coded, Error, Result, dump_and_define};
use crate::guest::{refuse_name_taken, stop_first};
use crate::history::{History, guest};
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::snapshot::{Snapshot, SnapshotKind};
use crate::hypervisor::{DomainSummary, Hypervisor, XmlOf};
use crate::identity::FileId;
use crate::lookup::find;
use crate::made::said;
use crate::request::DomainName;
use crate::shell::word;
use crate::world::World;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The ending after a domain's name in the name of the file with its firmware settings, as libvirt
/// names it.
const NVRAM: &str = "_VARS.";
/// The ending after it in the name of the file of its serial console.
const SERIAL_LOG: &str = "-serial.";
/// The most logs of one name that are counted.
const MOST_LOGS: u32 = 1000;

/// The reason a domain is not renamed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "rename-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum RenameError {
    /// The domain runs.
    #[error("domain `{name}` {state}; only a domain that is off can be renamed")]
    Active { name: String, state: &'static str },
    /// The domain has no definition.
    #[error("domain `{name}` has no persistent definition, so it cannot be renamed")]
    NoDefinition { name: String },
    /// libvirt keeps a saved state or snapshots, which contain the old name.
    #[error("domain `{name}` has {what}, which cannot be renamed with it")]
    Kept { name: String, what: String },
    /// A file that would get a new name has it, or is not the domain's alone.
    #[error("{} of domain `{name}` cannot be renamed: {why}", path.display())]
    File { name: String, path: PathBuf, why: String },
}

impl Coded for RenameError {}

/// A request to rename a domain.
#[derive(Debug, Clone)]
pub struct Rename {
    /// Its name.
    pub name: String,
    /// Its new name.
    pub to: DomainName,
}

/// A domain with its new name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RenamedDomain {
    /// Its name.
    pub name: String,
    /// The name that it had.
    pub before: String,
    /// Its UUID, which stays.
    pub uuid: String,
    /// Files that moved with it, by their new paths.
    pub moved: Vec<PathBuf>,
    /// Its definition before and after.
    #[serde(skip)]
    pub definitions: (String, String),
}

/// The new paths of files named after a domain.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// The old and the new path of its firmware's settings.
    nvram: Option<(PathBuf, PathBuf)>,
    /// The same of its serial console.
    serial_log: Option<(PathBuf, PathBuf)>,
}

/// Plans to rename a domain; its data are the domain as it is to be.
pub fn rename(world: &World, wanted: &Rename) -> Result<Change<RenamedDomain>> {
    let hypervisor = &*world.hypervisor()?;
    let (name, to) = (&wanted.name, wanted.to.as_str());
    let row = find(hypervisor, name)?;
    let uuid = row.uuid.clone();
    let (moved_none, same) = (Vec::new(), (String::new(), String::new()));
    let mut about = RenamedDomain {
        name: to.to_owned(),
        before: name.clone(),
        uuid,
        moved: moved_none,
        definitions: same,
    };
    if name == to {
        return Ok(Change::new("rename", name, Vec::new(), about));
    }
    let history = world.history(&row.uuid)?;
    let (mut steps, paths) = renaming(world, hypervisor, &row, to, &history)?;
    about.moved = steps.iter().filter_map(moved).collect();
    let before = hypervisor.xml(name, XmlOf::Inactive)?;
    let mut entry = history.next("rename", hypervisor.uri(), to, now_s(), before);
    entry.what = vec![format!("name: {name} -> {to}")];
    entry.after = Some(paths.put(&entry.before, to)?);
    entry.boot = boot()?;
    let renames = |step: &&Step| matches!(step, Step::Domain(DomainStep::Rename { .. }));
    entry.steps = steps.iter().filter(renames).cloned().collect();
    steps.push(history.remember(&entry, None));
    about.definitions = (entry.before, entry.after.unwrap_or_default());
    let again = format!("gpuvm rename {} {}", word(name), word(to));
    Ok(Change { again, ..Change::new("rename", name, steps, about) })
}

/// The new path of a file that a step moves.
fn moved(step: &Step) -> Option<PathBuf> {
    match step {
        Step::File(FileStep::Move { to, .. }) => Some(to.clone()),
        _ => None,
    }
}

/// The steps that rename a domain and its own objects, and the paths that follow its name;
/// `history`: the changes that follow it, too.
pub(crate) fn renaming(
    world: &World,
    hypervisor: &dyn Hypervisor,
    row: &DomainSummary,
    to: &str,
    history: &History,
) -> Result<(Vec<Step>, Paths)> {
    refuse(world, hypervisor, row, to)?;
    let name = &row.name;
    let before = hypervisor.xml(name, XmlOf::Inactive)?;
    let xml = DomainXml::parse(&before)?;
    let paths = Paths::of(&xml, name, to);
    let mut steps = Vec::new();
    // The definition before its files: a file that fails to move is then still where the old one
    // has it.
    let after = paths.put(&before, name)?;
    if after != before {
        steps.push(
            DomainStep::Redefine { name: name.clone(), xml: after, before: before.clone() }.into(),
        );
    }
    let uses = Uses::read(hypervisor)?;
    for (from, into) in paths.all() {
        steps.extend(moves((from, into), (row, to), &uses)?);
    }
    let (old, new, uuid) = (name.clone(), to.to_owned(), row.uuid.clone());
    steps.push(DomainStep::Rename { name: old, to: new, uuid }.into());
    let defined = |text: &str| paths.put(text, to).unwrap_or_else(|_| text.to_owned());
    steps.extend(history.rename(name, to, defined));
    steps.extend(guest::rename(world.state(), &row.uuid, to)?);
    Ok((steps, paths))
}

/// Refuses a domain that libvirt does not rename, or only in part, and a name that another one has.
fn refuse(world: &World, hypervisor: &dyn Hypervisor, row: &DomainSummary, to: &str) -> Result<()> {
    let name = &row.name;
    let verb = format!("rename {} {}", word(name), word(to));
    refuse_of_another(world, row, hypervisor, &verb)?;
    if !row.persistent {
        let error = RenameError::NoDefinition { name: name.clone() };
        return Err(error.hint(dump_and_define(name)));
    }
    if row.state.is_active() {
        let (state, hint) = stop_first(row);
        return Err(RenameError::Active { name: name.clone(), state }.hint(hint));
    }
    if let Some(kept) = hypervisor.keeps(name)?.into_iter().next() {
        let is_ours = |one: &Snapshot| one.kind == SnapshotKind::Internal && !kept.starts;
        let first = hypervisor.snapshots(name)?.into_iter().find(is_ours);
        let hint = first.map(|first| {
            let delete = format!("gpuvm snapshot delete {} {}", word(name), word(&first.name));
            format!("{}; `{delete}` deletes one, and its disks keep what they hold", kept.hint)
        });
        let error = RenameError::Kept { name: name.clone(), what: kept.what };
        return Err(error.hint(hint.unwrap_or(kept.hint)));
    }
    refuse_name_taken(hypervisor, to, (format!("rename domain `{name}` to `{to}`"), "name"))
}

/// A path with another name in its file's name; `None` if that is not made of the name.
fn renamed(path: &Path, name: &str, rest: &str, to: &str) -> Option<(PathBuf, PathBuf)> {
    let rest =
        path.file_name()?.to_str()?.strip_prefix(name).filter(|end| end.starts_with(rest))?;
    Some((path.to_owned(), path.with_file_name(format!("{to}{rest}"))))
}

/// The new path of a renamed log: a free one, since the log of a deleted guest may be left, which
/// must not be removed.
fn renamed_log(path: &Path, name: &str, to: &str) -> Option<(PathBuf, PathBuf)> {
    let (from, _) = renamed(path, name, SERIAL_LOG, to)?;
    let named = |number: u32| match number {
        0 => from.with_file_name(format!("{to}{SERIAL_LOG}log")),
        number => from.with_file_name(format!("{to}{SERIAL_LOG}{number}.log")),
    };
    let free = (0..MOST_LOGS).map(named).find(|path| path.symlink_metadata().is_err())?;
    Some((from, free))
}

impl Paths {
    fn of(xml: &DomainXml, name: &str, to: &str) -> Paths {
        let settings = xml.nvram().and_then(|path| renamed(Path::new(&path), name, NVRAM, to));
        let log = serial_log(xml).and_then(|path| renamed_log(&path, name, to));
        Paths { nvram: settings, serial_log: log }
    }

    fn all(&self) -> impl Iterator<Item = &(PathBuf, PathBuf)> {
        self.nvram.iter().chain(&self.serial_log)
    }

    /// Puts the new paths, and this name, into a definition of the domain; one that has other paths
    /// keeps them.
    fn put(&self, text: &str, name: &str) -> Result<String> {
        let mut xml = DomainXml::parse(text)?;
        let new = |path: &Path, known: &Option<(PathBuf, PathBuf)>| {
            let known = known.as_ref().filter(|(from, _)| from == path);
            known.and_then(|(_, to)| Some(to.to_str()?.to_owned()))
        };
        let settings = xml.nvram().and_then(|path| new(Path::new(&path), &self.nvram));
        let is_source = xml.root().find("os/nvram/source").is_some();
        let settings = settings.map(|path| NvramPath { path, is_source });
        let log = serial_log(&xml).and_then(|path| {
            let to = new(&path, &self.serial_log)?;
            Some((path.to_str()?.to_owned(), to))
        });
        if settings.is_some() || log.is_some() || xml.name() != name {
            let name = name.to_owned();
            xml.apply(&DomainEdit::Rename { name, nvram: settings, serial_log: log })?;
        }
        Ok(xml.text().to_owned())
    }
}

/// The step that moves a file of a domain that gets another name; `None` if it is not there yet.
/// Refused if others have it, or its new path.
fn moves(
    (from, to): (&PathBuf, &PathBuf),
    (row, name): (&DomainSummary, &str),
    uses: &Uses,
) -> Result<Option<Step>> {
    let refused =
        |why: String| RenameError::File { name: row.name.clone(), path: from.clone(), why };
    let others = uses.others(from, &row.uuid);
    if !others.is_empty() {
        let hint = format!("`gpuvm show {}` shows what it has", word(&row.name));
        return Err(refused(said(&others)).hint(hint));
    }
    let at = |path: &Path| {
        FileId::at(path).map_err(|error| -> Error {
            let again = format!("gpuvm rename {} {}", word(&row.name), word(name));
            refused(error.to_string()).hint(format!("run it as root: `sudo {again}`"))
        })
    };
    if at(to)?.is_some() {
        let there = word(&to.to_string_lossy()).into_owned();
        let why = format!("there is {} already", to.display());
        return Err(refused(why).hint(format!(
            "`ls -l {there}` shows it, `mv -n {there} {there}.old` keeps it under another name; \
             another NEW does without"
        )));
    }
    let Some(file) = at(from)? else { return Ok(None) };
    if !from.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
        let hint = format!("`ls -l {}` shows it", word(&from.to_string_lossy()));
        return Err(refused("it is not a regular file".to_owned()).hint(hint));
    }
    Ok(Some(Step::File(FileStep::Move { from: from.clone(), to: to.clone(), file })))
}

/// The file that a domain's first serial console is written to.
fn serial_log(xml: &DomainXml) -> Option<PathBuf> {
    let devices = xml.root().child("devices")?;
    let log = devices.children("serial").next()?.child("log")?;
    Some(PathBuf::from(log.attr("file")?.into_owned()))
}
