//! Runs programs in a guest by the system's `ssh`, without questions: for guests whose agent runs
//! nothing. The address, the user and the host key are those of `gpuvm ssh`; a key that is not
//! known yet is not accepted.

use crate::error::{Coded, Result};
use crate::exec::{BOUNDED, Executed, MOST_OUTPUT};
use crate::login::{Login, LoginWanted, login};
use crate::shell::word;
use crate::world::World;
use gpuvm_core::measure::one_line;
use gpuvm_host::command::end_of;
use gpuvm_host::program::of_caller;
use nix::unistd::User;
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long to wait for the guest's address, in seconds.
const ADDRESS_S: u64 = 10;
/// The most time of the first command.
const FIRST: Duration = Duration::from_secs(30);
/// The status of ssh itself.
const OWN_STATUS: u8 = 255;

/// The reason why no program is run in a guest by ssh.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "ssh-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum SshError {
    /// Its host key is not known, or is another one.
    #[error("the host key of `{name}` is not known, or has changed")]
    HostKey { name: String },
    /// It accepts no key of the caller.
    #[error("`{name}` accepts no key for {user} without a question")]
    Denied { name: String, user: String },
    /// No connection.
    #[error("ssh does not reach `{name}` at {address}: {message}")]
    Unreached { name: String, address: IpAddr, message: String },
    /// No program `ssh`.
    #[error("cannot run ssh: {message}")]
    NoSsh { message: String },
}

impl Coded for SshError {}

/// The way by ssh, as far as the caller names it.
#[derive(Debug, Clone, Default)]
pub struct SshWanted {
    /// The user in the guest; `None` for the recorded one.
    pub user: Option<String>,
    /// The address, which the caller answers for; `None` for the one that is proven.
    pub address: Option<IpAddr>,
    /// The user of this machine whose keys and settings are used; `None` for this process's.
    pub caller: Option<User>,
}

/// A guest that is entered by ssh.
pub struct BySsh {
    found: Login,
    caller: Option<User>,
    /// The program; another one in tests.
    program: OsString,
}

/// A program that runs in the background; ended on drop.
pub struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl BySsh {
    /// Finds the way into a guest, and tries it.
    pub fn open(world: &World, name: &str, wanted: &SshWanted) -> Result<BySsh> {
        let SshWanted { user, address, caller } = wanted.clone();
        let name = name.to_owned();
        let wanted = LoginWanted { name, user, user_is_set: false, address, wait_s: ADDRESS_S };
        let found = login(world, &wanted)?;
        BySsh { found, caller, program: "ssh".into() }.tried()
    }

    /// Whether a command gets in, and why not.
    fn tried(self) -> Result<BySsh> {
        let ended = self.run(&["true".to_owned()], FIRST)?;
        if ended.status != OWN_STATUS {
            return Ok(self);
        }
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        let (name, shown) = (self.found.domain.clone(), word(&self.found.domain).into_owned());
        if said.contains("Host key verification failed") {
            let hint =
                format!("`gpuvm ssh {shown} -- true` once as this user, which stores the key");
            return Err(SshError::HostKey { name }.hint(hint));
        }
        if said.contains("Permission denied (") {
            let user = self.found.user.clone().unwrap_or_default();
            let hint = format!(
                "load the key into ssh-agent if it has a passphrase; `gpuvm shell {shown}` can add \
                 yours to ~{user}/.ssh/authorized_keys"
            );
            return Err(SshError::Denied { name, user }.hint(hint));
        }
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no answer");
        let message = one_line(last.trim());
        let hint = format!("`gpuvm network doctor {shown}` looks into it");
        Err(SshError::Unreached { name, address: self.found.address, message }.hint(hint))
    }

    /// The address at which the guest is entered.
    pub fn address(&self) -> IpAddr {
        self.found.address
    }

    /// Runs a program and waits for its end. Its outputs are bounded in the guest, and again here.
    pub fn run(&self, command: &[String], limit: Duration) -> Result<Executed> {
        let until = Instant::now() + limit;
        let ended = end_of(self.command(command), &mut || Instant::now() >= until);
        let ended = ended.map_err(|error| no_ssh(&error))?;
        let domain = self.found.domain.clone();
        let Some(ended) = ended else {
            let stderr = format!("ssh did not end within {} s", limit.as_secs()).into_bytes();
            let (status, stdout) = (OWN_STATUS, Vec::new());
            return Ok(Executed { domain, status, stdout, stderr, cut_off: false });
        };
        let (mut stdout, mut stderr) = (ended.stdout, ended.stderr);
        let cut_off = stdout.len() >= MOST_OUTPUT || stderr.len() >= MOST_OUTPUT;
        stdout.truncate(MOST_OUTPUT);
        stderr.truncate(MOST_OUTPUT);
        let status = ended.status.code().and_then(|code| u8::try_from(code).ok());
        Ok(Executed { domain, status: status.unwrap_or(OWN_STATUS), stdout, stderr, cut_off })
    }

    /// Starts a program whose output is not read.
    pub fn begin(&self, command: &[String]) -> Result<Background> {
        let mut command = self.command(command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Background).map_err(|error| no_ssh(&error))
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = of_caller(&self.program);
        if let Some(caller) = &self.caller {
            command.env("HOME", &caller.dir).env("USER", &caller.name).env("LOGNAME", &caller.name);
            command.uid(caller.uid.as_raw()).gid(caller.gid.as_raw());
        }
        for option in self.options() {
            command.arg("-o").arg(option);
        }
        // ssh joins its arguments by spaces, and the guest's shell splits them. A pipe, which
        // `head` gives, can be opened again as /dev/stdout; a socket, as sshd has it, cannot.
        let script = BOUNDED.replace("LIMIT", &MOST_OUTPUT.to_string());
        let before = ["/bin/sh", "-c", &script, "gpuvm"].map(str::to_owned);
        let words = before.iter().chain(words).map(|text| word(text).into_owned());
        command.arg("-T").arg("--").arg(self.found.address.to_string());
        command.arg(words.collect::<Vec<String>>().join(" "));
        command
    }

    /// Options of ssh; the caller's settings hold for all others.
    fn options(&self) -> Vec<String> {
        let mut options: Vec<String> = [
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            "ConnectTimeout=10",
            "ServerAliveInterval=15",
            "LogLevel=ERROR",
            "ClearAllForwardings=yes",
            "PermitLocalCommand=no",
            "RemoteCommand=none",
        ]
        .map(str::to_owned)
        .into();
        options.extend(self.found.user.as_ref().map(|user| format!("User={user}")));
        options.push(format!("HostKeyAlias={}", self.found.key_alias()));
        options.extend(self.found.safe_options());
        options
    }
}

fn no_ssh(error: &std::io::Error) -> crate::error::Error {
    let message = error.to_string();
    SshError::NoSsh { message }.hint("`sudo apt install openssh-client`")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    /// A way into a guest `g` by a script in place of ssh, which writes down its arguments. It
    /// fails with `says`, or runs the command here if that is empty.
    pub(crate) fn by_script(dir: &Path, says: &str) -> BySsh {
        let path = dir.join("ssh");
        let text = format!(
            "#!/bin/sh\nprintf '%s\\n' \"$@\" >\"$0.args\"\n\
             if [ -n '{says}' ]; then echo '{says}' >&2; exit 255; fi\n\
             while [ \"$1\" != -- ]; do shift; done\nshift 2\nexec /bin/sh -c \"$*\"\n"
        );
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let found = Login {
            domain: "g".into(),
            uuid: "u".into(),
            address: "192.0.2.7".parse().unwrap(),
            proven: true,
            user: Some("lab".into()),
            through: None,
        };
        BySsh { found, caller: None, program: path.into() }
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn a_program_runs_without_questions_or_new_host_keys() {
        let dir = tempfile::tempdir().unwrap();
        let way = by_script(dir.path(), "").tried().ok().unwrap();
        let command =
            ["sh", "-c", "printf '%s|' \"$@\"; echo bad >&2; exit 7", "sh", "a b", "$HOME"];
        let ended = way.run(&words(&command), FIRST).unwrap();
        assert_eq!(
            (ended.status, &*ended.stdout, &*ended.stderr),
            (7, &b"a b|$HOME|"[..], &b"bad\n"[..])
        );
        let args = std::fs::read_to_string(dir.path().join("ssh.args")).unwrap();
        for option in [
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            "User=lab",
            "HostKeyAlias=gpuvm-u",
            "ForwardAgent=no",
            "ControlPath=none",
            "ProxyCommand=none",
            "192.0.2.7",
        ] {
            assert!(args.lines().any(|line| line == option), "{option}: {args}");
        }
        // Output without end is cut off, also where the guest does not bound it.
        let ended = way.run(&words(&["yes"]), Duration::from_secs(600)).unwrap();
        assert!(ended.cut_off && ended.stdout.len() == MOST_OUTPUT);
        // A program that writes to /dev/stdout by name.
        let ended = way.run(&words(&["sh", "-c", "echo x >/dev/stdout"]), FIRST).unwrap();
        assert_eq!((ended.status, &*ended.stdout), (0, &b"x\n"[..]));
        let ended = way.run(&words(&["sleep", "60"]), Duration::from_millis(50)).unwrap();
        assert_eq!(ended.status, OWN_STATUS);
        assert!(way.begin(&words(&["sleep", "60"])).is_ok());
    }

    #[test]
    fn a_guest_that_cannot_be_entered_is_refused_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        for (says, code, part) in [
            ("Host key verification failed.", "ssh-host-key", "gpuvm ssh g -- true"),
            ("lab@x: Permission denied (publickey).", "ssh-denied", "gpuvm shell g"),
            ("ssh: connect to host x: Connection refused", "ssh-unreached", "network doctor g"),
        ] {
            let error = by_script(dir.path(), says).tried().err().unwrap();
            let refusal = error.refusal().unwrap();
            assert_eq!(refusal.code, code);
            assert!(refusal.hint.contains(part), "{}", refusal.hint);
        }
        let missing = BySsh { program: "/nonexistent".into(), ..by_script(dir.path(), "") };
        assert_eq!(missing.tried().err().unwrap().refusal().unwrap().code, "ssh-no-ssh");
    }
}
