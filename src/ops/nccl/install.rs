//! `nccl --install` and `--check`: the file in a guest that runs, written and read by its agent. Each file is written beside its
//! place and moved there, so that NCCL sees the old one or the new one, and a run that was killed is simply run again. What
//! is there and not gpuvm's is kept under another name.

use super::{Nccl, nccl};
use crate::agent::{Agent, Untold, has_agent};
use crate::domain::DomainXml;
use crate::error::{Coded, Result, usage};
use crate::guest::find;
use crate::hypervisor::{DomainState, XmlOf};
use crate::shell::word;
use crate::source::Source;
use crate::world::World;
use gpuvm_core::nccl::place::{
    CONF, FILE, FOUND_AT, TMPFILES, TMPFILES_NAME, TMPFILES_TEXT, is_ours, named, naming,
};
use serde::Serialize;
use std::time::Duration;

/// How long all of it may take.
const WAIT: Duration = Duration::from_secs(60);

/// Moves a file to its place; `$3`: where what is there is kept, if it is.
const MOVE: &str = r#"set -eu
chmod 0644 "$1"
if [ -n "$3" ]; then ln "$2" "$3"; fi
mv -f "$1" "$2""#;

/// Says why the file is not written into a guest, or not read.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "nccl-install-")]
pub enum InstallError {
    /// The guest is off.
    #[error("`{name}` is off, and its agent writes the file")]
    Off {
        /// Its name.
        name: String,
    },
    /// Nothing in the guest answers.
    #[error("no agent answers in `{name}`")]
    NoAgent {
        /// Its name.
        name: String,
    },
    /// The guest's distribution forbids a command to its agent.
    #[error("the agent of `{name}` may not {what}")]
    Forbidden {
        /// Its name.
        name: String,
        /// What.
        what: &'static str,
    },
    /// NCCL's places are those of Linux.
    #[error("`{name}` does not run Linux")]
    NotLinux {
        /// Its name.
        name: String,
    },
    /// The agent refuses something, or says nothing sensible.
    #[error("the agent of `{name}` failed to {what}")]
    Failed {
        /// Its name.
        name: String,
        /// What.
        what: String,
    },
}

impl Coded for InstallError {}

/// What a file of the guest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum State {
    /// It is as it has to be.
    Same,
    /// It is not there.
    Missing,
    /// It is another one.
    Differs,
}

/// A file of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Placed {
    /// Its path.
    pub path: &'static str,
    /// What it was before anything was done.
    pub state: State,
    /// Where what was there and not gpuvm's is kept; none: nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
}

/// What a guest has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Installed {
    /// Name of the domain.
    pub domain: String,
    /// The file, and what NCCL finds it by.
    pub files: Vec<Placed>,
    /// Another file that NCCL's settings name in place of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overruled_by: Option<String>,
    /// Whether NCCL of the guest takes the file now.
    pub found: bool,
    /// Whether something was written.
    pub written: bool,
}

/// What is done with a guest's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// They are compared.
    Check,
    /// It is told what would be written.
    DryRun,
    /// They are written.
    Install,
}

/// Compares the files of a guest that runs with what they have to be, and writes them.
pub fn install(world: &World, source: &Source, manner: Manner) -> Result<Installed> {
    let Source::Domain(name) = source else {
        let message = "--install and --check are of a guest that runs, and this is a file";
        return Err(usage(message, "name its domain; `gpuvm list` shows them"));
    };
    let hypervisor = world.hypervisor()?;
    let off = || InstallError::Off { name: name.clone() };
    if matches!(find(&*hypervisor, name)?.state, DomainState::ShutOff | DomainState::Crashed) {
        return Err(off().hint(format!("`gpuvm start {}` starts it", word(name))));
    }
    let Nccl { file, .. } = nccl(world, source)?;
    let live = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
    let listens = has_agent(&live).then(|| Agent::greet(&*hypervisor, name, WAIT)).flatten();
    let Some(agent) = listens else {
        let hint = format!(
            "install qemu-guest-agent in the guest (`gpuvm tune {name} --agent on` gives it the channel), or {}",
            by_hand(name),
            name = word(name)
        );
        return Err(InstallError::NoAgent { name: name.clone() }.hint(hint));
    };
    let guest = Guest { agent, name };
    guest.refuse_other_system()?;
    let mut plan = guest.plan(file)?;
    if manner == Manner::Install {
        guest.write(&mut plan)?;
    }
    let Plan { files, overruled_by, found, written } = plan;
    let files = files.into_iter().map(|file| file.placed).collect();
    Ok(Installed { domain: name.clone(), files, overruled_by, found, written })
}

/// How an admin does it.
fn by_hand(name: &str) -> String {
    format!("copy what `gpuvm nccl {}` prints to {FILE} of the guest", word(name))
}

/// A file with what has to be in it.
struct Wanted {
    /// What was there.
    placed: Placed,
    /// What has to be.
    text: String,
}

/// What is to be done in a guest.
struct Plan {
    /// The files.
    files: Vec<Wanted>,
    /// As in [`Installed`].
    overruled_by: Option<String>,
    /// As in [`Installed`].
    found: bool,
    /// As in [`Installed`].
    written: bool,
}

/// A guest whose agent answers.
struct Guest<'a> {
    /// Its agent.
    agent: Agent<'a>,
    /// Its name.
    name: &'a str,
}

impl Guest<'_> {
    /// What the agent did not do.
    fn failed(&self, untold: &Untold, what: String, may: &'static str) -> crate::error::Error {
        let name = self.name.to_owned();
        match untold {
            Untold::Forbidden => {
                InstallError::Forbidden { name, what: may }.hint(by_hand(self.name))
            }
            _ => InstallError::Failed { name, what }.hint(by_hand(self.name)),
        }
    }

    /// Reads a file; none: it is not there.
    fn read(&self, path: &str) -> Result<Option<String>> {
        match self.agent.read(path) {
            Ok(text) => Ok(Some(text)),
            Err(Untold::Absent) => Ok(None),
            Err(untold) => Err(self.failed(&untold, format!("read {path}"), "open files")),
        }
    }

    /// Refuses what is not Linux, by what only Linux has.
    fn refuse_other_system(&self) -> Result<()> {
        match self.read("/proc/sys/kernel/ostype")?.as_deref().map(str::trim) {
            Some("Linux") => Ok(()),
            _ => Err(InstallError::NotLinux { name: self.name.to_owned() }
                .hint("NCCL's file is of no use there")),
        }
    }

    /// Looks at what is there.
    fn plan(&self, file: String) -> Result<Plan> {
        let (at, conf) = (self.read(FOUND_AT)?, self.read(CONF)?.unwrap_or_default());
        let mut files = vec![self.wanted(FILE, file.clone())?];
        let by_settings = named(&conf);
        let overruled_by = by_settings.filter(|path| *path != FILE).map(str::to_owned);
        // Without systemd nobody makes the link, and where NVIDIA's daemon has its own file that stays.
        let is_daemons = at.as_ref().is_some_and(|at| *at != file && !is_ours(at));
        let has_systemd =
            self.read("/proc/1/comm")?.is_some_and(|program| program.trim() == "systemd");
        if by_settings == Some(FILE) || is_daemons || !has_systemd {
            let text = if by_settings.is_some() { conf.clone() } else { naming(&conf) };
            files.push(self.wanted(CONF, text)?);
        } else {
            files.push(self.wanted(TMPFILES, TMPFILES_TEXT.to_owned())?);
        }
        let is_found =
            overruled_by.is_none() && (by_settings.is_some() || at.as_ref() == Some(&file));
        let found = is_found && files[0].placed.state == State::Same;
        Ok(Plan { files, overruled_by, found, written: false })
    }

    /// A file with what is there now.
    fn wanted(&self, path: &'static str, text: String) -> Result<Wanted> {
        let there = self.read(path)?;
        let state = match &there {
            None => State::Missing,
            Some(there) if *there == text => State::Same,
            Some(_) => State::Differs,
        };
        let is_foreign = state == State::Differs && !there.is_some_and(|t| is_ours(&t));
        let kept = if is_foreign { Some(self.free_name(path)?) } else { None };
        Ok(Wanted { placed: Placed { path, state, kept }, text })
    }

    /// A name beside a file that nothing has.
    fn free_name(&self, path: &str) -> Result<String> {
        let mut number = 1;
        loop {
            let end = if number == 1 { String::new() } else { format!(".{number}") };
            let name = format!("{path}.before-gpuvm{end}");
            if self.read(&name)?.is_none() {
                return Ok(name);
            }
            number += 1;
        }
    }

    /// Writes what is not there yet, and reads it back.
    fn write(&self, plan: &mut Plan) -> Result<()> {
        for Wanted { placed, text } in &plan.files {
            if placed.state != State::Same {
                self.replace(placed, text)?;
                plan.written = true;
            }
        }
        let links = plan.files.iter().any(|file| file.placed.path == TMPFILES);
        if links && !plan.found && plan.overruled_by.is_none() {
            self.run("/usr/bin/env", &["systemd-tmpfiles", "--create", TMPFILES_NAME])?;
            plan.written = true;
        }
        let file = &plan.files[0].text;
        let is_there = !links || self.read(FOUND_AT)?.as_ref() == Some(file);
        plan.found = plan.overruled_by.is_none() && is_there;
        Ok(())
    }

    /// Puts a file in its place.
    fn replace(&self, placed: &Placed, text: &str) -> Result<()> {
        let path = placed.path;
        let new = format!("{path}.gpuvm-new");
        self.agent
            .write(&new, text)
            .map_err(|untold| self.failed(&untold, format!("write {new}"), "write files"))?;
        let kept = placed.kept.as_deref().unwrap_or_default();
        let moved = self.run("/bin/sh", &["-c", MOVE, "sh", &new, path, kept]);
        if moved.is_err() {
            let _ = self.agent.run("/bin/sh", &["-c", "rm -f \"$1\"", "sh", &new]);
        }
        moved?;
        match self.read(path)?.as_deref() == Some(text) {
            true => Ok(()),
            false => {
                let (name, what) =
                    (self.name.to_owned(), format!("keep what was written to {path}"));
                Err(InstallError::Failed { name, what }.hint(by_hand(self.name)))
            }
        }
    }

    /// Runs a program in the guest, which has to succeed.
    fn run(&self, program: &str, words: &[&str]) -> Result<()> {
        let what = || format!("run {program}");
        let done = self.agent.run(program, words);
        match done.map_err(|untold| self.failed(&untold, what(), "run programs"))? {
            0 => Ok(()),
            code => {
                let what = format!("run {program}: it ended with {code}");
                Err(InstallError::Failed { name: self.name.to_owned(), what }
                    .hint(by_hand(self.name)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
