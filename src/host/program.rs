//! Running of system programs: the only place that makes a [`Command`]. The system, not the caller,
//! decides which file is run and with which environment: `sudo -E`, `su`, and a shell's PATH may
//! lead elsewhere.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::process::Command;

/// Directories of programs, whatever the caller's PATH says.
pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// Variables of the caller's environment kept for this program when it starts itself again.
const KEPT: [&str; 13] = [
    "COLUMNS",
    "HOME",
    "LIBVIRT_AUTH_FILE",
    "LIBVIRT_DEFAULT_URI",
    "LOGNAME",
    "SSH_AUTH_SOCK",
    "SSH_CONNECTION",
    "SUDO_USER",
    "TERM",
    "USER",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];

/// A program of the system, by its name or its path: found in the system's directories only, with a
/// minimal environment and the locale C.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH).env("LC_ALL", "C");
    command
}

/// The same for programs on behalf of the caller (this program again, `ssh`): it passes on the
/// caller's identity, settings and agent connection, but nothing that a loader or an interpreter
/// obeys.
pub fn for_caller(program: impl AsRef<OsStr>) -> Command {
    let mut command = command(program);
    command.envs(KEPT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command
}

/// Runs a program as the caller's shell would, if that gives no extra privileges: with their own
/// PATH and environment. For root it is [`for_caller`] with the caller's locale.
pub fn of_caller(program: impl AsRef<OsStr>) -> Command {
    if !nix::unistd::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = for_caller(program);
    command.env_remove("LC_ALL").envs(std::env::var_os("LANG").map(|lang| ("LANG", lang)));
    command
}

/// The children of this process. A shell that became this program has left it its own ones.
pub fn children() -> BTreeSet<i32> {
    let own = i32::try_from(std::process::id()).ok();
    let Ok(all) = procfs::process::all_processes() else { return BTreeSet::new() };
    let is_own =
        |child: &procfs::process::Process| child.stat().is_ok_and(|stat| Some(stat.ppid) == own);
    all.flatten().filter(is_own).map(|child| child.pid).collect()
}

/// Ends the children that this process has besides these, such as an ssh to a host that does not
/// answer, but not what those started; for a program that ends next.
pub fn end_children_but(kept: &BTreeSet<i32>) {
    for child in children().difference(kept) {
        // One that ended meanwhile needs nothing more.
        let _ = kill(Pid::from_raw(*child), Signal::SIGTERM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_callers_environment_decides_what_runs() {
        // CARGO is set in every test.
        let said = |mut command: Command| {
            let out = command.output().unwrap().stdout;
            String::from_utf8(out).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let mut plain = said(command("env"));
        plain.sort();
        assert_eq!(plain, ["LC_ALL=C".to_owned(), format!("PATH={PATH}")]);
        let ours = said(for_caller("env"));
        let named = |line: &String| line.split('=').next().unwrap_or_default().to_owned();
        let known =
            |name: &String| KEPT.contains(&name.as_str()) || name == "PATH" || name == "LC_ALL";
        assert!(ours.iter().map(named).all(|name| known(&name)), "{ours:?}");
    }
}
