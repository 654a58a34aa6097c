//! `nccl --install` and `--check`: the file in a running guest, written and read by its agent. An
//! interrupted run is simply repeated. An existing file that is not gpuvm's is kept under another
//! name: a link as a link, except NCCL's settings, which are edited at the link's target.

use super::inside::{Backups, Inside, Looked};
use super::{Nccl, nccl};
use crate::error::{Result, usage};
use crate::shell::word;
use crate::source::Source;
use crate::world::World;
use gpuvm_core::nccl::place::{
    CONF, DAEMON, FILE, FOUND_AT, TMPFILES, TMPFILES_NAME, TMPFILES_TEXT, is_ours, is_untouched,
    named, naming,
};
use serde::Serialize;

/// The state of a file of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum State {
    /// It is as required.
    Same,
    /// Missing.
    Missing,
    /// It is another one.
    Differs,
    /// It is gpuvm's and must be removed: NVIDIA's daemon would overwrite the file through the link
    /// that it creates.
    Unwanted,
}

/// A file of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Placed {
    /// Its path.
    pub path: &'static str,
    /// Its state before the change.
    pub state: State,
    /// Where a file that was not gpuvm's is kept; `None` if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// The file that is edited if this path is a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leads_to: Option<String>,
}

/// The files of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Installed {
    /// Name of the domain.
    pub domain: String,
    /// Whether NCCL chooses otherwise with the file than without; a guest that needs none gets
    /// none.
    pub needed: bool,
    /// The file, and the files by which NCCL finds it.
    pub files: Vec<Placed>,
    /// Another file that NCCL uses instead of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overruled_by: Option<String>,
    /// The file of the guest that names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overruled_in: Option<String>,
    /// Whether NCCL of the guest takes the file now.
    pub found: bool,
    /// Whether something was written.
    pub written: bool,
    /// The remedy if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Installed {
    /// Whether the guest needs no further change.
    pub fn is_settled(&self) -> bool {
        let is_done = self.found && self.files.iter().all(|file| file.state == State::Same);
        is_done || (!self.needed && self.files.is_empty())
    }
}

/// The action on a guest's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Compare them.
    Check,
    /// Report the files without writing them.
    DryRun,
    /// Write them.
    Install,
}

/// The name of the domain that a request is about.
pub(super) fn domain<'s>(world: &World, source: &'s Source) -> Result<&'s str> {
    let Source::Domain(name) = source else {
        let message =
            "--install, --uninstall and --check are of a guest that runs, and this is a file";
        let hint = if world.is_recorded() {
            // On the recorded one none runs.
            "name its domain, and leave --host out; `gpuvm list` without --host shows them"
        } else {
            "name its domain; `gpuvm list` shows them"
        };
        return Err(usage(message, hint));
    };
    Ok(name)
}

/// Compares the files of a running guest with their wanted content, and writes them.
pub fn install(world: &World, source: &Source, manner: Manner) -> Result<Installed> {
    let name = domain(world, source)?;
    let hypervisor = world.hypervisor()?;
    let Nccl { file, needed, .. } = nccl(world, source)?;
    let mut done = Installed {
        domain: name.to_owned(),
        needed,
        files: Vec::new(),
        overruled_by: None,
        overruled_in: None,
        found: false,
        written: false,
        hint: None,
    };
    let guest = match Inside::of(&*hypervisor, name) {
        Err(_) if !needed => return Ok(done),
        guest => guest?,
    };
    // An existing file is kept up to date, or removed by --uninstall.
    if !needed && !guest.read(FILE)?.is_some_and(|there| is_ours(&there)) {
        return Ok(done);
    }
    let mut plan = Plan::of(&guest, file, manner)?;
    if manner == Manner::Install {
        plan.write(&guest)?;
    }
    done.hint = plan.hint(name, manner);
    (done.found, done.written) = (plan.found, plan.written);
    if let Some((file, path)) = plan.overruled {
        (done.overruled_in, done.overruled_by) = (Some(file), Some(path));
    }
    done.files = plan.files.into_iter().map(|file| file.placed).collect();
    Ok(done)
}

/// A file with its wanted content.
struct WantedFile {
    placed: Placed,
    /// Its content before; `None` if it did not exist.
    was: Option<String>,
    text: String,
    /// Whether the old file must be renamed to its backup name.
    is_new_name: bool,
}

impl WantedFile {
    /// The path of the file.
    fn path(&self) -> &str {
        self.placed.leads_to.as_deref().unwrap_or(self.placed.path)
    }
}

/// The plan of the changes in a guest.
struct Plan {
    files: Vec<WantedFile>,
    /// The setting that names another file, and that file.
    overruled: Option<(String, String)>,
    /// As in [`Installed`].
    found: bool,
    /// As in [`Installed`].
    written: bool,
}

impl Plan {
    /// Compares the guest with the wanted state.
    fn of(guest: &Inside<'_>, file: String, manner: Manner) -> Result<Plan> {
        let looked = match manner {
            Manner::Check => guest.look()?,
            Manner::DryRun | Manner::Install => Some(guest.look_to_change()?),
        };
        let (at, conf) = (guest.read(FOUND_AT)?, guest.read(CONF)?.unwrap_or_default());
        let first = wanted(guest, looked.as_ref(), FILE, file)?;
        let by_settings = named(&conf);
        let by_conf = by_settings.filter(|path| *path != FILE);
        let by_conf = by_conf.map(|path| (CONF.to_owned(), path.to_owned()));
        let overruled = looked.as_ref().and_then(|looked| looked.over_conf.clone()).or(by_conf);
        let has_daemon = has_daemon(guest)?;
        // Without systemd nothing creates the link, and a file of NVIDIA's daemon or of others at
        // that path stays.
        let is_others = at
            .as_ref()
            .is_some_and(|at| *at != first.text && Some(at) != first.was.as_ref() && !is_ours(at));
        let has_systemd =
            guest.read("/proc/1/comm")?.is_some_and(|program| program.trim() == "systemd");
        let by_link = by_settings != Some(FILE) && !is_others && !has_daemon && has_systemd;
        let mut files = vec![first];
        if by_link {
            files.push(wanted(guest, looked.as_ref(), TMPFILES, TMPFILES_TEXT.to_owned())?);
        } else {
            let text = if by_settings.is_some() { conf.clone() } else { naming(&conf) };
            files.push(wanted(guest, looked.as_ref(), CONF, text)?);
            files.extend(if has_daemon { unwanted(guest)? } else { None });
        }
        let is_found = by_settings == Some(FILE) || at.as_ref() == Some(&files[0].text);
        let found = overruled.is_none() && is_found && files[0].placed.state == State::Same;
        Ok(Plan { files, overruled, found, written: false })
    }

    /// Writes missing files, and reads them back.
    fn write(&mut self, guest: &Inside<'_>) -> Result<()> {
        for file in &self.files {
            match file.placed.state {
                State::Same => continue,
                State::Unwanted => {
                    guest.unlink(FOUND_AT, FILE)?;
                    guest.remove(file.path(), &file.text, None)?;
                }
                State::Missing | State::Differs => {
                    let kept = file.placed.kept.as_deref().filter(|_| file.is_new_name);
                    guest.replace(file.path(), (file.was.as_deref(), &file.text), kept)?;
                }
            }
            self.written = true;
        }
        let links = self.files.iter().any(|file| file.placed.path == TMPFILES)
            && self.files.iter().all(|file| file.placed.state != State::Unwanted);
        if links && !self.found && self.overruled.is_none() {
            guest.make_link(TMPFILES_NAME)?;
            self.written = true;
        }
        let is_there = !links || guest.read(FOUND_AT)?.as_ref() == Some(&self.files[0].text);
        self.found = self.overruled.is_none() && is_there;
        Ok(())
    }

    /// The remedy if NCCL does not use the file.
    fn hint(&self, name: &str, manner: Manner) -> Option<String> {
        let name = word(name);
        if let Some((file, _)) = &self.overruled {
            return Some(format!(
                "take NCCL_TOPO_FILE out of {file} of the guest, or name {FILE} there; `gpuvm nccl \
                 {name} --uninstall` removes gpuvm's file where the other one is to stay"
            ));
        }
        let is_told = manner == Manner::Check && !self.is_same();
        is_told.then(|| format!("`gpuvm nccl {name} --install` writes it"))
    }

    /// Whether there is nothing to do.
    fn is_same(&self) -> bool {
        self.found && self.files.iter().all(|file| file.placed.state == State::Same)
    }
}

/// Whether NVIDIA's daemon is installed in a guest.
fn has_daemon(guest: &Inside<'_>) -> Result<bool> {
    for unit in DAEMON {
        if guest.read(unit)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A file with its current state. `looked`: none if the guest cannot report links.
fn wanted(
    guest: &Inside<'_>,
    looked: Option<&Looked>,
    path: &'static str,
    text: String,
) -> Result<WantedFile> {
    let link = looked.and_then(|looked| looked.links.get(path));
    let leads_to = link.filter(|_| path == CONF).cloned();
    if leads_to.as_ref().is_some_and(String::is_empty) {
        return Err(guest.error(format!("edit {path}, a link that leads nowhere")));
    }
    let is_kept_link = link.is_some() && leads_to.is_none();
    let at = leads_to.as_deref().unwrap_or(path);
    let was = guest.read(at)?;
    let state = match &was {
        Some(there) if *there == text => State::Same,
        None if !is_kept_link => State::Missing,
        _ => State::Differs,
    };
    let is_ours = was.as_deref().is_some_and(is_untouched) && !is_kept_link;
    let (mut kept, mut is_new_name) = (None, false);
    if state == State::Differs && !is_ours {
        let names = match looked {
            None => Backups { free: format!("{at}.before-gpuvm"), last: None, is_same: false },
            Some(_) => guest.kept(at, was.as_deref().unwrap_or_default())?,
        };
        is_new_name = !names.is_same;
        kept = if names.is_same { names.last } else { Some(names.free) };
    }
    Ok(WantedFile { placed: Placed { path, state, kept, leads_to }, was, text, is_new_name })
}

/// The file that creates the link although it must not exist; `None` if there is no such file, or
/// it is not gpuvm's.
fn unwanted(guest: &Inside<'_>) -> Result<Option<WantedFile>> {
    let there = guest.read(TMPFILES)?.filter(|there| is_untouched(there));
    Ok(there.map(|text| {
        let placed = Placed { path: TMPFILES, state: State::Unwanted, kept: None, leads_to: None };
        WantedFile { placed, was: Some(text.clone()), text, is_new_name: false }
    }))
}

#[cfg(test)]
mod tests;
