//! `nccl --uninstall`: removes what `--install` and a seed wrote into a guest, and restores what
//! was there before. Only files that are gpuvm's to the byte are removed; of NCCL's settings only
//! the line that names the file.

use super::inside::{Inside, Looked};
use super::install::domain;
use crate::error::Result;
use crate::source::Source;
use crate::world::World;
use gpuvm_core::nccl::place::{
    CONF, FILE, FOUND_AT, TMPFILES, is_ours, is_untouched, named, naming, unnaming,
};
use serde::Serialize;

/// The fate of a file of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Removal {
    /// Removed; of NCCL's settings only the line that names the file.
    Removed,
    /// Missing; NCCL's settings do not name the file.
    Absent,
    /// Written by gpuvm and changed since; it is kept.
    Changed,
    /// Not gpuvm's; it is kept.
    Foreign,
}

/// A file of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RemovedFile {
    /// Its path.
    pub path: &'static str,
    /// Its fate.
    pub state: Removal,
    /// Files from before gpuvm that are restored, by the name under which they were kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back: Option<String>,
}

/// The previous files of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Uninstalled {
    /// Name of the domain.
    pub domain: String,
    /// The files.
    pub files: Vec<RemovedFile>,
    /// Whether something was removed.
    pub written: bool,
}

/// Removes gpuvm's files from a running guest; `is_dry`: only reports them.
pub fn uninstall(world: &World, source: &Source, is_dry: bool) -> Result<Uninstalled> {
    let name = domain(world, source)?;
    let hypervisor = world.hypervisor()?;
    let guest = Inside::of(&*hypervisor, name)?;
    let looked = guest.look_to_change()?;
    let file = whole(&guest, &looked, FILE)?;
    // A file that stays is named as before.
    let is_named = matches!(file.removed.state, Removal::Changed | Removal::Foreign);
    let all = [conf(&guest, &looked, is_named)?, whole(&guest, &looked, TMPFILES)?, file];
    let mut written = false;
    for one in all.iter().filter(|one| one.removed.state == Removal::Removed && !is_dry) {
        match &one.after {
            Some(after) => guest.replace(&one.at, (Some(&one.text), after), None)?,
            None => guest.remove(&one.at, &one.text, one.removed.back.as_deref())?,
        }
        if one.removed.path == TMPFILES {
            guest.unlink(FOUND_AT, FILE)?;
        }
        written = true;
    }
    let files = all.into_iter().map(|one| one.removed).collect();
    Ok(Uninstalled { domain: name.to_owned(), files, written })
}

/// A file with its fate.
struct Going {
    removed: RemovedFile,
    /// Its path.
    at: String,
    text: String,
    /// Its content afterwards; `None` if it is removed.
    after: Option<String>,
}

impl Going {
    fn stays(path: &'static str, state: Removal) -> Going {
        let removed = RemovedFile { path, state, back: None };
        Going { removed, at: path.to_owned(), text: String::new(), after: None }
    }
}

/// A file that gpuvm writes as a whole.
fn whole(guest: &Inside<'_>, looked: &Looked, path: &'static str) -> Result<Going> {
    if looked.links.contains_key(path) {
        return Ok(Going::stays(path, Removal::Foreign));
    }
    let Some(text) = guest.read(path)? else { return Ok(Going::stays(path, Removal::Absent)) };
    if !is_untouched(&text) {
        let state = if is_ours(&text) { Removal::Changed } else { Removal::Foreign };
        return Ok(Going::stays(path, state));
    }
    let back = guest.kept(path, &text)?.last;
    let removed = RemovedFile { path, state: Removal::Removed, back };
    Ok(Going { removed, at: path.to_owned(), text, after: None })
}

/// NCCL's settings. Their backup is restored if nothing else was changed since. `is_named`: the
/// file stays, and so does a line that gpuvm may not have written.
fn conf(guest: &Inside<'_>, looked: &Looked, is_named: bool) -> Result<Going> {
    let at = looked.links.get(CONF).filter(|to| !to.is_empty());
    let at = at.map_or(CONF, String::as_str);
    let text = guest.read(at)?.unwrap_or_default();
    if named(&text) != Some(FILE) {
        return Ok(Going::stays(CONF, Removal::Absent));
    }
    let last = guest.kept(at, &text)?.last;
    let was = last.as_deref().map(|last| guest.read(last)).transpose()?.flatten();
    let back = last.filter(|_| was.is_some_and(|was| naming(&was) == text));
    if is_named && back.is_none() {
        return Ok(Going::stays(CONF, Removal::Foreign));
    }
    let is_whole = back.is_some() || text == naming("");
    let after = (!is_whole).then(|| unnaming(&text));
    let removed = RemovedFile { path: CONF, state: Removal::Removed, back };
    Ok(Going { removed, at: at.to_owned(), text, after })
}
