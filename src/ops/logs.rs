//! `logs`: the log files of a guest's serial console and of its QEMU on this machine.

use crate::domain::{DomainXml, Element};
use crate::error::{Class, Coded, Result, classed, usage};
use crate::guest::make_log_dir;
use crate::hypervisor::XmlOf;
use crate::hypervisor::machine::{self, Machine};
use crate::input::{InputError, open_regular};
use crate::lookup::find;
use crate::shell::word;
use crate::world::World;
use serde::Serialize;
use std::fs::File;
use std::io::{Error as IoError, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The most bytes read of a log at once: more than the size at which libvirt rotates it.
const MOST: u64 = 16 << 20;

/// The reason why no log is read.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "logs-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum LogsError {
    /// The serial console of the domain is not logged.
    #[error("the serial console of domain `{name}` is not logged")]
    NotLogged { name: String },
    /// The domain has no serial console.
    #[error("domain `{name}` has no serial console")]
    NoConsole { name: String },
    /// The file does not exist.
    #[error("domain `{name}` has no log {path} yet")]
    Missing { name: String, path: PathBuf },
}

impl Coded for LogsError {}

/// Whose log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LogOf {
    /// The guest's serial console.
    Serial,
    /// QEMU: its command line, its errors, why it ended.
    Qemu,
}

/// A log and the lines read from it.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuestLog {
    /// Name of the domain.
    pub domain: String,
    /// Whose log.
    pub of: LogOf,
    /// The file.
    pub path: PathBuf,
    /// Its lines; only the last ones if limited.
    pub lines: Vec<String>,
}

/// A log that is followed as it grows.
#[derive(Debug)]
pub struct Follow {
    path: PathBuf,
    /// Its inode, and the number of bytes read.
    at: Option<(u64, u64)>,
    /// The last line while it is incomplete.
    rest: Vec<u8>,
}

/// Finds a log and reads its last `lines` lines; `None` for all of them.
pub fn read(
    world: &World,
    name: &str,
    of: LogOf,
    lines: Option<usize>,
) -> Result<(GuestLog, Follow)> {
    world.refuse_without_guests("logs")?;
    let path = path(world, name, of)?;
    let mut follow = Follow { path: path.clone(), at: None, rest: Vec::new() };
    let mut found = match follow.lines() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let hint = format!("`gpuvm start {}` begins one", word(name));
            return Err(LogsError::Missing { name: name.to_owned(), path }.hint(hint));
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let message = format!("cannot read {}: {error}", path.display());
            return Err(classed(
                Class::System,
                message,
                format!("`sudo gpuvm logs {}`", word(name)),
            ));
        }
        found => found?,
    };
    // An incomplete last line is shown as well.
    let rest = String::from_utf8_lossy(&follow.rest).into_owned();
    found.extend((!rest.is_empty()).then_some(rest));
    if let Some(lines) = lines {
        found.drain(..found.len().saturating_sub(lines));
    }
    Ok((GuestLog { domain: name.to_owned(), of, path, lines: found }, follow))
}

/// Returns the path of a log.
fn path(world: &World, name: &str, of: LogOf) -> Result<PathBuf> {
    let hypervisor = world.hypervisor()?;
    let summary = find(&*hypervisor, name)?;
    if let Machine::Elsewhere { host } = world.machine()? {
        let there = machine::command_there(&host, &format!("logs {}", word(name)));
        let message = format!("the logs of domain `{name}` are files of machine `{host}`");
        return Err(classed(Class::OtherMachine, message, format!("`{there}` prints them")));
    }
    match of {
        LogOf::Serial => {
            let which = if summary.state.is_active() { XmlOf::Live } else { XmlOf::Inactive };
            let xml = DomainXml::parse(&hypervisor.xml(name, which)?)?;
            serial_log(&xml).ok_or_else(|| {
                if ports(&xml).next().is_none() {
                    let bare = LogsError::NoConsole { name: name.to_owned() };
                    let qemu = format!("`gpuvm logs {} --qemu` prints QEMU's log", word(name));
                    return bare.hint(qemu);
                }
                LogsError::NotLogged { name: name.to_owned() }.hint(format!(
                    "`gpuvm tune {name} --serial-log on` logs it from its next start on; `gpuvm \
                     console {name}` shows what it writes now",
                    name = word(name)
                ))
            })
        }
        LogOf::Qemu => {
            if let Some(dir) = hypervisor.missing_log_dir() {
                let message = format!("{} is missing, where QEMU writes its log", dir.display());
                return Err(classed(Class::NotFound, message, make_log_dir(&dir)));
            }
            machine::log_of(&hypervisor.opened_uri(), name).ok_or_else(|| {
                usage(
                    format!("no log of QEMU is known for {}", hypervisor.uri()),
                    format!(
                        "`gpuvm --connect qemu:///system logs {} --qemu` reads those of the \
                         system's libvirt",
                        word(name)
                    ),
                )
            })
        }
    }
}

/// Returns the log file of the first serial port or console that has one.
fn serial_log(xml: &DomainXml) -> Option<PathBuf> {
    ports(xml).find_map(|port| Some(PathBuf::from(&*port.child("log")?.attr("file")?)))
}

fn ports(xml: &DomainXml) -> impl Iterator<Item = Element<'_>> {
    let devices = xml.root().child("devices").into_iter().flat_map(Element::elements);
    devices.filter(|device| matches!(device.name(), "serial" | "console"))
}

/// Opens a log. It may be a named pipe, on which a plain call would block forever.
fn open(path: &Path) -> Result<File, IoError> {
    open_regular(path).map_err(|error| match error {
        InputError::Unreadable { source, .. } => source,
        other => IoError::other(other),
    })
}

impl Follow {
    /// Returns the new lines; from the beginning if the file was replaced or truncated.
    pub fn lines(&mut self) -> Result<Vec<String>, IoError> {
        let mut file = open(&self.path)?;
        let meta = file.metadata()?;
        let from = match self.at {
            Some((inode, read)) if inode == meta.ino() && read <= meta.len() => read,
            _ => {
                self.rest.clear();
                meta.len().saturating_sub(MOST)
            }
        };
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        let read = file.take(MOST).read_to_end(&mut bytes)?;
        self.at = Some((meta.ino(), from + read as u64));
        self.rest.append(&mut bytes);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(Vec::new());
        };
        let rest = self.rest.split_off(end + 1);
        let whole = std::mem::replace(&mut self.rest, rest);
        let text = String::from_utf8_lossy(&whole).into_owned();
        Ok(text.lines().map(|line| line.trim_end_matches('\r').to_owned()).collect())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::Answer;
    use crate::stage::{Stage, UUID};
    use std::io::Write as _;

    /// A guest whose serial port has this log.
    fn stage(log: &str) -> Stage {
        let stage = Stage::who_says(Answer::Nobody);
        let xml = format!(
            "<domain type='test'><name>a</name><uuid>{UUID}</uuid><memory>1024</memory><vcpu>1</vcpu><os><type>hvm\
             </type></os><devices><serial type='pty'>{log}<target port='0'/></serial></devices></domain>"
        );
        stage.fake.domains.borrow_mut().insert("a".into(), (xml, true));
        stage
    }

    fn code(stage: &Stage, name: &str, of: LogOf) -> &'static str {
        let error = read(&stage.world, name, of, None).unwrap_err();
        error.refusal().map_or("of another", |refusal| refusal.code)
    }

    #[test]
    fn a_log_that_is_not_there_is_refused_with_what_makes_one() {
        let bare = stage("");
        assert_eq!(code(&bare, "a", LogOf::Serial), "logs-not-logged");
        assert_eq!(code(&bare, "b", LogOf::Serial), "of another");
        let (xml, active) = bare.fake.domains.borrow()["a"].clone();
        let none = xml.replace("serial", "parallel");
        bare.fake.domains.borrow_mut().insert("a".into(), (none, active));
        assert_eq!(code(&bare, "a", LogOf::Serial), "logs-no-console");
        bare.fake.domains.borrow_mut().insert("a".into(), (xml, active));
        let error = read(&bare.world, "a", LogOf::Serial, None).unwrap_err();
        let hint = &error.refusal().unwrap().hint;
        assert!(hint.contains("`gpuvm tune a --serial-log on`"), "{hint}");
        assert_eq!(code(&bare, "a", LogOf::Qemu), "usage");
        assert_eq!(
            code(&stage("<log file='/nonexistent/a'/>"), "a", LogOf::Serial),
            "logs-missing"
        );
    }

    #[test]
    fn a_pipe_in_the_place_of_a_log_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let stage = stage(&format!("<log file='{}'/>", path.display()));
        let error = read(&stage.world, "a", LogOf::Serial, None).unwrap_err().to_string();
        assert!(error.contains("a named pipe"), "{error}");
    }

    #[test]
    fn a_log_is_read_on_and_from_the_beginning_where_it_was_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        std::fs::write(&path, b"one\r\ntwo\nthr").unwrap();
        let stage = stage(&format!("<log file='{}' append='off'/>", path.display()));
        let (log, mut follow) = read(&stage.world, "a", LogOf::Serial, None).unwrap();
        assert_eq!(
            (log.lines, &*log.path),
            (vec!["one".into(), "two".into(), "thr".to_owned()], &*path)
        );
        let (last, _) = read(&stage.world, "a", LogOf::Serial, Some(1)).unwrap();
        assert_eq!(last.lines, ["thr"]);
        assert_eq!(follow.lines().unwrap(), [""; 0]);
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"ee\nf\xff\n").unwrap();
        assert_eq!(follow.lines().unwrap(), ["three", "f\u{fffd}"]);
        std::fs::write(&path, b"anew\n").unwrap();
        assert_eq!(follow.lines().unwrap(), ["anew"]);
        std::fs::rename(&path, dir.path().join("a.log.0")).unwrap();
        std::fs::write(&path, b"another file\n").unwrap();
        assert_eq!(follow.lines().unwrap(), ["another file"]);
    }
}
