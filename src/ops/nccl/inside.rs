//! Files in a running guest, by its agent. Each is written beside its place and then renamed, so
//! that readers see the old or the new file. A file is replaced or removed only if it is the one
//! that was read: a script in the guest compares its checksum at that moment.

use crate::agent::{Agent, NoAnswer, has_agent};
use crate::domain::DomainXml;
use crate::error::{Coded, Error, Result};
use crate::guest::restart_hint;
use crate::hypervisor::{Hypervisor, XmlOf};
use crate::lookup::find;
use crate::shell::word;
use gpuvm_core::nccl::place::{CONF, FILE, FOUND_AT, OVER_CONF, TMPFILES, named_by, sum};
use std::collections::BTreeMap;
use std::time::Duration;

/// The reason a file is not written or read in a guest.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "nccl-install-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum InstallError {
    /// The guest is off.
    #[error("`{name}` is off, and its agent writes the file")]
    Off { name: String },
    /// No agent in the guest answers.
    #[error("no guest agent answers in `{name}`")]
    NoAgent { name: String },
    /// The guest's distribution forbids a command to its agent.
    #[error("the agent of `{name}` may not {what}")]
    Forbidden { name: String, what: &'static str },
    /// The guest does not run Linux, for which NCCL's paths are known.
    #[error("`{name}` does not run Linux")]
    NotLinux { name: String },
    /// The agent refuses a command, or its answer is invalid.
    #[error("the agent of `{name}` failed to {what}")]
    Failed { name: String, what: String },
    /// Somebody else has written a file since it was read.
    #[error("{path} of `{name}` has changed since it was read; it is left as it is")]
    Changed { name: String, path: String },
}

impl Coded for InstallError {}

/// The limit for all commands together.
const WAIT: Duration = Duration::from_secs(60);

/// The exit code of the scripts if a file is not the one that was read.
const CHANGED: i64 = 75;

/// Prints which of the first paths are links and their targets, then the lines of the others that
/// name a file for NCCL.
const LOOK: &str = r#"for path in "$1" "$2" "$3" "$4"; do
  if [ -L "$path" ]; then echo "link $path $(readlink -f "$path")"; fi
done
shift 4
for path in $*; do
  if [ -f "$path" ]; then grep -H NCCL_TOPO_FILE= "$path" /dev/null; fi
done
exit 0"#;

/// Prints the next free backup name of `$1`, then the last one in use; `same`: that one has the
/// checksum `$2`.
const KEPT: &str = r#"number=1; last=; name=$1.before-gpuvm
while [ -e "$name" ] || [ -L "$name" ]; do
  last=$name; number=$((number + 1)); name=$1.before-gpuvm.$number
done
same=
if [ -f "$last" ] && [ ! -L "$last" ] && [ ! -L "$1" ]; then
  now=$(sha256sum <"$last")
  if [ "${now%% *}" = "$2" ]; then same=same; fi
fi
echo "$name $last $same""#;

/// Moves a file `$1` to its place `$2`; `$3`: the backup name of the existing file, if it is kept;
/// `$4`: the checksum of the existing file; `$5`: the mode, otherwise that of the existing file. A
/// link is kept as a link.
const MOVE: &str = r#"set -eu
now=
if [ -e "$2" ]; then now=$(sha256sum <"$2"); now=${now%% *}; fi
if [ "$now" != "$4" ]; then rm -f "$1"; exit 75; fi
if [ -z "$5" ]; then chown "$(stat -L -c %u:%g "$2")" "$1"; fi
chmod "${5:-$(stat -L -c %a "$2")}" "$1"
if [ -n "$3" ]; then ln "$2" "$3"; fi
mv -f "$1" "$2""#;

/// Removes a file `$1` with the checksum `$2`; `$3`: the file that takes its place, if any.
const REMOVE: &str = r#"set -eu
if [ -L "$1" ] || [ ! -f "$1" ]; then exit 75; fi
now=$(sha256sum <"$1")
if [ "${now%% *}" != "$2" ]; then exit 75; fi
if [ -n "$3" ]; then mv -f "$3" "$1"; else rm -f "$1"; fi"#;

/// Removes a link `$1` to `$2`.
const UNLINK: &str = r#"if [ "$(readlink "$1")" = "$2" ]; then rm -f "$1"; fi"#;

/// A guest whose agent answers and that runs Linux.
pub(super) struct Inside<'a> {
    agent: Agent<'a>,
    name: &'a str,
}

/// Facts that only a program in the guest can report.
#[derive(Default)]
pub(super) struct Looked {
    /// Links with their final targets; empty: dangling.
    pub links: BTreeMap<String, String>,
    /// A file that names another one for NCCL, and that one.
    pub over_conf: Option<(String, String)>,
}

/// Backups of a file of the guest that was not gpuvm's.
pub(super) struct Backups {
    /// A free name beside it.
    pub free: String,
    /// The last name in use, which holds a backup.
    pub last: Option<String>,
    /// Whether that backup equals the current file.
    pub is_same: bool,
}

impl<'a> Inside<'a> {
    /// Connects to the agent of a guest.
    pub fn of(hypervisor: &'a dyn Hypervisor, name: &'a str) -> Result<Inside<'a>> {
        let off = || InstallError::Off { name: name.to_owned() };
        let state = find(hypervisor, name)?.state;
        if state.is_active() && !state.has_guest() {
            return Err(InstallError::NoAgent { name: name.to_owned() }.hint(restart_hint(name)));
        }
        if !state.is_active() {
            return Err(off().hint(format!("`gpuvm start {}` starts it", word(name))));
        }
        let live = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
        let has_channel = has_agent(&live);
        let listens = has_channel.then(|| Agent::greet(hypervisor, name, WAIT)).flatten();
        let Some(agent) = listens else {
            let channel = if has_channel {
                String::new()
            } else {
                format!(" (`gpuvm tune {} --agent on` gives it the channel)", word(name))
            };
            let by_hand = by_hand(name);
            let hint = format!("install qemu-guest-agent in the guest{channel}, or {by_hand}");
            return Err(InstallError::NoAgent { name: name.to_owned() }.hint(hint));
        };
        let inside = Inside { agent, name };
        // Recognised by a file that only Linux has.
        match inside.read("/proc/sys/kernel/ostype")?.as_deref().map(str::trim) {
            Some("Linux") => Ok(inside),
            _ => Err(InstallError::NotLinux { name: name.to_owned() }
                .hint("the NCCL file has no effect there")),
        }
    }

    /// The error of something the agent did not do.
    fn failed(&self, untold: &NoAnswer, what: String, may: &'static str) -> Error {
        match untold {
            NoAnswer::Forbidden => {
                InstallError::Forbidden { name: self.name.to_owned(), what: may }
                    .hint(by_hand(self.name))
            }
            _ => self.error(what),
        }
    }

    /// The error of something that was not done.
    pub fn error(&self, what: String) -> Error {
        InstallError::Failed { name: self.name.to_owned(), what }.hint(by_hand(self.name))
    }

    /// Reads a file; `None` if it does not exist.
    pub fn read(&self, path: &str) -> Result<Option<String>> {
        match self.agent.read(path) {
            Ok(text) => Ok(Some(text)),
            Err(NoAnswer::Absent) => Ok(None),
            Err(untold) => Err(self.failed(&untold, format!("read {path}"), "open files")),
        }
    }

    /// Collects the facts that only a program in the guest can report; `None` if its agent may not
    /// run any.
    pub fn look(&self) -> Result<Option<Looked>> {
        let words = ["-c", LOOK, "sh", FILE, TMPFILES, CONF, FOUND_AT];
        let (code, output) = match self.agent.run("/bin/sh", &[&words[..], &OVER_CONF].concat()) {
            Err(NoAnswer::Forbidden) => return Ok(None),
            done => done.map_err(|untold| self.failed(&untold, "run sh".into(), ""))?,
        };
        if code != 0 {
            return Err(self.error(format!("run sh: it ended with {code}")));
        }
        let mut looked = Looked::default();
        for line in output.lines() {
            if let Some((link, to)) = line.strip_prefix("link ").and_then(|l| l.split_once(' ')) {
                looked.links.insert(link.to_owned(), to.to_owned());
            } else if let Some((file, line)) = line.split_once(':')
                && let Some(path) = named_by(line).filter(|path| *path != FILE)
            {
                looked.over_conf.get_or_insert((file.to_owned(), path.to_owned()));
            }
        }
        Ok(Some(looked))
    }

    /// Like `look`, for a change, which requires that programs can be run.
    pub fn look_to_change(&self) -> Result<Looked> {
        let forbidden = || self.failed(&NoAnswer::Forbidden, String::new(), "run programs");
        self.look()?.ok_or_else(forbidden)
    }

    /// The backups of a file whose content is `text`.
    pub fn kept(&self, path: &str, text: &str) -> Result<Backups> {
        let (_, output) = self.exec("/bin/sh", &["-c", KEPT, "sh", path, &sum(text)])?;
        let mut words = output.split_whitespace().map(str::to_owned);
        let free =
            words.next().ok_or_else(|| self.error(format!("list what is kept of {path}")))?;
        Ok(Backups { free, last: words.next(), is_same: words.next().is_some() })
    }

    /// Replaces the file that was read with a text; `kept`: the backup name, if it is kept.
    pub fn replace(
        &self,
        path: &str,
        (was, text): (Option<&str>, &str),
        kept: Option<&str>,
    ) -> Result<()> {
        let new = format!("{path}.gpuvm-new");
        self.agent
            .write(&new, text)
            .map_err(|untold| self.failed(&untold, format!("write {new}"), "write files"))?;
        let was = was.map(sum).unwrap_or_default();
        // NCCL's settings may be for some users only.
        let mode = if was.is_empty() || path == FILE || path == TMPFILES { "0644" } else { "" };
        let words = [&new, path, kept.unwrap_or_default(), &was, mode];
        let moved = self.script(MOVE, path, &words);
        if moved.is_err() {
            let _ = self.agent.run("/bin/sh", &["-c", "rm -f \"$1\"", "sh", &new]);
        }
        moved?;
        if self.read(path)?.as_deref() == Some(text) {
            Ok(())
        } else {
            Err(self.error(format!("keep what was written to {path}")))
        }
    }

    /// Removes a file with this text; `back`: the file that takes its place, if any.
    pub fn remove(&self, path: &str, text: &str, back: Option<&str>) -> Result<()> {
        self.script(REMOVE, path, &[path, &sum(text), back.unwrap_or_default()])
    }

    /// Removes a link with this target.
    pub fn unlink(&self, link: &str, to: &str) -> Result<()> {
        self.script(UNLINK, link, &[link, to])
    }

    /// Runs a script on a file, which must succeed.
    fn script(&self, script: &str, path: &str, words: &[&str]) -> Result<()> {
        match self.exec("/bin/sh", &[&["-c", script, "sh"], words].concat())?.0 {
            0 => Ok(()),
            CHANGED => {
                let (name, path) = (self.name.to_owned(), path.to_owned());
                Err(InstallError::Changed { name, path }.hint("run the command again"))
            }
            code => Err(self.error(format!("change {path}: sh ended with {code}"))),
        }
    }

    /// Applies a file of tmpfiles.d.
    pub fn make_link(&self, name: &str) -> Result<()> {
        match self.exec("/usr/bin/env", &["systemd-tmpfiles", "--create", name])?.0 {
            0 => Ok(()),
            code => Err(self.error(format!("run systemd-tmpfiles: it ended with {code}"))),
        }
    }

    /// Runs a program in the guest. Returns its exit code and output.
    fn exec(&self, program: &str, words: &[&str]) -> Result<(i64, String)> {
        let what = || format!("run {program}");
        let done = self.agent.run(program, words);
        done.map_err(|untold| self.failed(&untold, what(), "run programs"))
    }
}

/// How an admin does it without the agent.
fn by_hand(name: &str) -> String {
    format!("copy what `gpuvm nccl {}` prints to {FILE} of the guest", word(name))
}
