//! The open-files limit of a guest's QEMU: libvirt's configuration, the limit of its daemon, and
//! that of a process.
//!
//! libvirt sets `max_files` of qemu.conf as limit of every QEMU that it starts; if it is 0 or
//! unset, a QEMU inherits the daemon's limit (comment of libvirt's qemu.conf). That is 1024 soft
//! and 524288 hard with systemd (libvirt's libvirtd.service and virtqemud.service), 8192 in older
//! ones. QEMU 9.0 and later raises its soft limit to the hard one (QEMU commit 03e471c41d
//! "qemu_init: increase NOFILE soft limit on POSIX", which names NICs with many queues as the
//! cause). The DGX guide asks for 2048, since 1024 may keep guests with many queues from starting.

use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::verify::tuning::{CONF, MAX_FILES};
use gpuvm_core::versions::Version;
use serde::Serialize;

/// The daemons that start QEMU, as the kernel names them.
const DAEMONS: [&str; 2] = ["libvirtd", "virtqemud"];
/// The first QEMU that raises its limit to the hard one.
const RAISES: Version = Version(9, 0, 0);

/// The limit of open files of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limit {
    /// The limit in force.
    pub soft: u64,
    /// The limit that it can be raised to.
    pub hard: u64,
}

/// A daemon that starts guests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Daemon {
    /// Its name, which is also that of systemd's service.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its limit.
    pub limit: Limit,
}

/// The settings that limit the open files of a guest that starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Files {
    /// `max_files` of qemu.conf; `None` if not set, or 0.
    pub set: Option<u64>,
    /// Running daemons.
    pub daemons: Vec<Daemon>,
}

/// The error of a configuration that cannot be parsed or must not be changed.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "qemu-conf-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum ConfError {
    /// The key occurs twice.
    #[error("/{CONF} sets {MAX_FILES} in lines {first} and {second}")]
    Twice {
        /// Line, from 1.
        first: usize,
        /// Line, from 1.
        second: usize,
    },
    /// The value is not a number.
    #[error("/{CONF}, line {line}: {value:?} is not a number of files")]
    NoNumber {
        /// Line, from 1.
        line: usize,
        value: String,
    },
}

/// The limit of a process; `None` if it has ended, or this user may not see it.
pub fn limit(root: &FsRoot, pid: u32) -> Option<Limit> {
    let text = root.read(&format!("proc/{pid}/limits")).ok()??;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let mut words = line.split_whitespace();
    let mut number = || match words.next()? {
        "unlimited" => Some(u64::MAX),
        word => word.parse().ok(),
    };
    Some(Limit { soft: number()?, hard: number()? })
}

/// Reads the limits. An unreadable or unparsable configuration is an error.
pub fn read(root: &FsRoot) -> Result<Files, FsError> {
    let text = root.read(CONF)?.unwrap_or_default();
    let set = match line_of(&text) {
        Ok(found) => found.map(|(_, number)| number).filter(|number| *number > 0),
        Err(error) => return Err(root.malformed(CONF, 1, error)),
    };
    let mut daemons = Vec::new();
    for name in root.names("proc")? {
        let Ok(pid) = name.parse() else { continue };
        // A process may end while it is read.
        let comm = root.read(&format!("proc/{name}/comm")).ok().flatten().unwrap_or_default();
        if DAEMONS.contains(&comm.trim())
            && let Some(limit) = limit(root, pid)
        {
            daemons.push(Daemon { name: comm.trim().to_owned(), pid, limit });
        }
    }
    Ok(Files { set, daemons })
}

impl Files {
    /// Returns the limit of a guest that starts now; with several daemons the lowest. `None` if
    /// unknown.
    pub fn of_next_guest(&self, qemu: Option<Version>) -> Option<u64> {
        let raises = qemu.is_some_and(|qemu| qemu >= RAISES);
        let own = |daemon: &Daemon| if raises { daemon.limit.hard } else { daemon.limit.soft };
        self.set.or_else(|| self.daemons.iter().map(own).min())
    }
}

/// The line that sets the key, from 0, and its value; `None` if it is not set.
fn line_of(text: &str) -> Result<Option<(usize, u64)>, ConfError> {
    let mut found: Option<(usize, &str)> = None;
    for (at, line) in text.lines().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix(MAX_FILES) else { continue };
        let Some(value) = rest.trim_start().strip_prefix('=') else { continue };
        if let Some((first, _)) = found {
            return Err(ConfError::Twice { first: first + 1, second: at + 1 });
        }
        found = Some((at, value.split('#').next().unwrap_or_default().trim()));
    }
    let Some((at, value)) = found else { return Ok(None) };
    let wrong = |_| ConfError::NoNumber { line: at + 1, value: value.to_owned() };
    Ok(Some((at, value.parse().map_err(wrong)?)))
}

/// Returns the configuration with a limit of at least this many files, one line changed or added;
/// `None` if already set. A commented-out line stays, and the new one is added below it.
pub fn with_limit(text: &str, count: u64) -> Result<Option<String>, ConfError> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    if let Some((at, now)) = line_of(text)? {
        if now >= count {
            return Ok(None);
        }
        let line = lines[at];
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let blanks = value.len() - value.trim_start().len();
        let (blanks, value) = value.split_at(blanks);
        let rest = value.trim_start_matches(|c: char| c.is_ascii_digit());
        let line = format!("{key}={blanks}{count}{rest}");
        return Ok(Some([&lines[..at], &[line.as_str()], &lines[at + 1..]].concat().concat()));
    }
    let is_default = |line: &&str| {
        let line = line.trim_start();
        line.strip_prefix('#').is_some_and(|line| line.trim_start().starts_with(MAX_FILES))
    };
    let at = lines.iter().rposition(is_default).map_or(lines.len(), |at| at + 1);
    let before = lines[..at].concat();
    let ends = before.is_empty() || before.ends_with('\n');
    let line =
        if ends { format!("{MAX_FILES} = {count}\n") } else { format!("\n{MAX_FILES} = {count}") };
    Ok(Some(before + &line + &lines[at..].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_changed_and_all_else_stays() {
        for (before, after) in [
            ("", Some("max_files = 2048\n")),
            ("a = 1", Some("a = 1\nmax_files = 2048")),
            (
                "#max_processes = 0\n#max_files = 0\n\nb = 2\n",
                Some("#max_processes = 0\n#max_files = 0\nmax_files = 2048\n\nb = 2\n"),
            ),
            ("# max_files is\na = 1\n", Some("# max_files is\nmax_files = 2048\na = 1\n")),
            (
                "x = 1\n  max_files=1024   # ours\r\ny = 2\n",
                Some("x = 1\n  max_files=2048   # ours\r\ny = 2\n"),
            ),
            ("max_files = 0", Some("max_files = 2048")),
            ("max_files = 2048\n", None),
            ("#max_files = 1\nmax_files = 32768\n", None),
        ] {
            assert_eq!(with_limit(before, 2048).unwrap().as_deref(), after, "{before:?}");
            if let Some(after) = after {
                assert_eq!(with_limit(after, 2048).unwrap(), None, "{after:?}");
            }
        }
        let twice = "max_files = 1\na = 1\nmax_files = 2\n";
        assert_eq!(with_limit(twice, 9), Err(ConfError::Twice { first: 1, second: 3 }));
        let odd = with_limit("\nmax_files = \"many\"\n", 9).unwrap_err();
        assert_eq!(odd, ConfError::NoNumber { line: 2, value: "\"many\"".into() });
    }

    #[test]
    fn the_limit_is_that_of_the_configuration_else_the_daemons() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/7/comm", "libvirtd\n");
        write(
            "proc/7/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 \
             524288               files     \n",
        );
        write("proc/8/comm", "bash\n");
        let root = FsRoot::at(dir.path()).unwrap();
        let files = read(&root).unwrap();
        assert_eq!(files.daemons.len(), 1);
        assert_eq!(files.of_next_guest(Some(Version(8, 2, 0))), Some(1024));
        assert_eq!(files.of_next_guest(Some(Version(10, 0, 2))), Some(524_288));
        assert_eq!(files.of_next_guest(None), Some(1024));
        write("etc/libvirt/qemu.conf", "max_files = 4096\n");
        assert_eq!(read(&root).unwrap().of_next_guest(None), Some(4096));
        write("etc/libvirt/qemu.conf", "max_files = many\n");
        assert!(read(&root).unwrap_err().to_string().contains("is not a number of files"));
        assert_eq!(Files::default().of_next_guest(None), None);
    }
}
