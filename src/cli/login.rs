//! `ssh` and `cp`: the system's own `ssh` and `scp` at a guest's address.

use super::args::{CpArgs, LoginArgs, SshArgs};
use super::context::Context;
use super::error::{EXIT_DONE, around};
use crate::shell::word;
use anyhow::Context as _;
use gpuvm_host::program::of_caller;
use gpuvm_ops::error::usage;
use gpuvm_ops::login::{Login, LoginWanted, login, wait_for_server};
use nix::unistd::{Gid, Uid, User, geteuid, initgroups, setgid, setuid};
use serde::Serialize;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The command that logs in to a guest.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoginCommand {
    /// The guest.
    #[serde(flatten)]
    pub login: Login,
    /// The words of the command.
    pub command: Vec<String>,
}

/// Runs `ssh`.
pub fn ssh(args: &SshArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let found = find(&args.name, &args.login, cx)?;
    let caller = become_caller()?;
    let options = options(&found, &args.login, caller.as_ref());
    let mut words: Vec<OsString> = vec!["ssh".into()];
    words.extend(options.iter().cloned());
    words.extend(["--".into(), found.address.to_string().into()]);
    // ssh joins its arguments by spaces, and the guest's shell splits them.
    match &args.command[..] {
        [line] => words.push(line.into()),
        several => words.extend(several.iter().map(|part| word(part).into_owned().into())),
    }
    run((words, options, caller), found, args.login.print, cx)
}

/// Runs `scp`.
pub fn cp(args: &CpArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let guest = guest_of(&args.paths)?;
    let found = find(&guest, &args.login, cx)?;
    let caller = become_caller()?;
    let mut words: Vec<OsString> = vec!["scp".into()];
    if args.recursive {
        words.push("-r".into());
    }
    let options = options(&found, &args.login, caller.as_ref());
    words.extend(options.iter().cloned());
    words.push("--".into());
    for path in &args.paths {
        words.push(match in_guest(path) {
            // Brackets are needed for IPv6 and harmless otherwise.
            Some((_, below)) => {
                let mut word = OsString::from(format!("[{}]:", found.address));
                word.push(below);
                word
            }
            // A file name may contain a colon or start with a dash.
            None if Path::new(path).is_relative() => Path::new(".").join(path).into(),
            None => path.clone(),
        });
    }
    run((words, options, caller), found, args.login.print, cx)
}

/// Splits `NAME:PATH`; `None` for a path of this machine.
fn in_guest(path: &OsStr) -> Option<(&str, &OsStr)> {
    let bytes = path.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':').filter(|at| *at > 0)?;
    let (name, below) = (&bytes[..colon], &bytes[colon + 1..]);
    let name = std::str::from_utf8(name).ok().filter(|name| !name.contains('/'))?;
    Some((name, OsStr::from_bytes(below)))
}

/// Returns the guest of these paths: that of the sources, or of the target.
fn guest_of(paths: &[OsString]) -> anyhow::Result<String> {
    let (to, from) = paths.split_last().expect("two paths or more");
    let sources: Vec<Option<&str>> = from.iter().map(|path| Some(in_guest(path)?.0)).collect();
    let first = sources[0];
    let guest = match (first, in_guest(to)) {
        (Some(name), None) if sources.iter().all(|other| *other == Some(name)) => name,
        (None, Some((name, _))) if sources.iter().all(Option::is_none) => name,
        (Some(_), Some(_)) => {
            return Err(usage(
                "`cp` copies between this machine and one guest, not between guests",
                "copy here first: `gpuvm cp NAME:FILE .`",
            )
            .into());
        }
        (None, None) => {
            let hint =
                "`gpuvm cp FILE NAME:` copies to the guest NAME, `gpuvm cp NAME:FILE .` from it";
            return Err(usage("no path is in a guest", hint).into());
        }
        _ => {
            return Err(usage(
                "the files are not all of one guest",
                "copy the files of each guest by themselves",
            )
            .into());
        }
    };
    Ok(guest.to_owned())
}

/// Finds the way into a guest.
fn find(name: &str, args: &LoginArgs, cx: &Context<'_>) -> anyhow::Result<Login> {
    let wanted = LoginWanted {
        name: name.to_owned(),
        user: args.user.clone(),
        user_is_set: args.option.iter().any(|option| is_user(option)),
        address: args.address,
        wait_s: args.wait,
    };
    let since = Instant::now();
    let found = login(cx, &wanted)?;
    if args.print || cx.output.json {
        return Ok(found);
    }
    let left = Duration::from_secs(args.wait).saturating_sub(since.elapsed());
    Ok(wait_for_server(cx, &wanted, found, port(&args.option), left)?)
}

/// The port that an option of ssh names: `Port=NUMBER` or `Port NUMBER`, the first of several.
fn port(options: &[String]) -> u16 {
    let value = |option: &String| {
        let (key, value) = option.trim().split_once(|c: char| c == '=' || c.is_whitespace())?;
        let value = value.trim_start_matches(|c: char| c == '=' || c.is_whitespace());
        key.eq_ignore_ascii_case("port").then(|| value.trim().parse().ok())?
    };
    options.iter().find_map(value).unwrap_or(22)
}

/// Whether an option of ssh names the user: `User=NAME` or `User NAME`.
fn is_user(option: &str) -> bool {
    let key = option.trim_start().split(|c: char| c == '=' || c.is_whitespace()).next();
    key.is_some_and(|key| key.eq_ignore_ascii_case("user"))
}

/// Returns the options of `ssh` and `scp`. The caller's come first, since ssh uses the first of two
/// values.
fn options(found: &Login, args: &LoginArgs, caller: Option<&User>) -> Vec<OsString> {
    let mut options = args.option.clone();
    options.extend(found.user.as_ref().map(|user| format!("User={user}")));
    options.push(format!("HostKeyAlias={}", found.key_alias()));
    let mut asks = by("ssh".as_ref(), caller);
    asks.arg("-G").args(options.iter().flat_map(|option| ["-o", option.as_str()]));
    if !is_strict(asks.arg("--").arg(found.address.to_string())) {
        let unknown = if found.proven { "accept-new" } else { "ask" };
        options.push(format!("StrictHostKeyChecking={unknown}"));
    }
    options.extend(found.safe_options());
    options.into_iter().flat_map(|option| ["-o".into(), option.into()]).collect()
}

/// Whether the caller's own settings of ssh, as this call of it prints them, refuse every host key
/// that is not known yet.
fn is_strict(asks: &mut Command) -> bool {
    let said = asks.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
    // `yes` is printed as `true`.
    let is_set =
        |line: &str| matches!(line, "stricthostkeychecking true" | "stricthostkeychecking yes");
    said.is_ok_and(|said| said.lines().any(is_set))
}

/// Prints the command, or becomes it.
fn run(
    (words, options, caller): (Vec<OsString>, Vec<OsString>, Option<User>),
    found: Login,
    print: bool,
    cx: &Context<'_>,
) -> anyhow::Result<u8> {
    let shown: Vec<String> = words.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    if print || cx.output.json {
        let line: Vec<_> = shown.iter().map(|shown| word(shown)).collect();
        let line = line.join(" ") + "\n";
        let command = LoginCommand { login: found, command: shown };
        if cx.output.json {
            cx.output.json("gpuvm-login", &command)?
        } else {
            cx.output.verbatim(&line)?
        }
        return Ok(EXIT_DONE);
    }
    let error = by("sh".as_ref(), caller.as_ref())
        .args(["-c", &script(&options, &found, caller.as_ref()), "gpuvm"])
        .args(&words)
        .exec();
    Err(around(error, "cannot run sh", "`sudo apt install openssh-client`"))
}

/// A script that runs its words, a command of ssh, and ends with its status. Where it did not get
/// in it is asked once more, without a question and without a command: if the guest refuses every
/// key, the script says so. As a script it needs no gpuvm that waits, and is as deaf to signals as
/// ssh.
fn script(options: &[OsString], found: &Login, caller: Option<&User>) -> String {
    let quoted = |text: &OsStr| word(&text.to_string_lossy()).into_owned();
    let options: Vec<String> = options.iter().map(|option| quoted(option)).collect();
    let again = ["BatchMode=yes", "ConnectTimeout=10", "LogLevel=ERROR"];
    let again: Vec<String> = again.iter().map(|option| format!("-o {option}")).collect();
    let (again, options) = (again.join(" "), options.join(" "));
    let (address, says) = (found.address, explained(found, caller));
    format!(
        "command -v \"$1\" >/dev/null || {{
  printf 'error: cannot run %s\\nhint: `sudo apt install openssh-client`\\n' \"$1\" >&2
  exit 1
}}
\"$@\"
status=$?
if [ $status = 255 ] &&
  ssh {again} {options} -- {address} true </dev/null 2>&1 >/dev/null | grep -q 'Permission denied ('; then
  printf 'hint: %s\\n' {says} >&2
fi
exit $status",
        says = word(&says)
    )
}

/// Explains why a guest refuses, and the remedy.
fn explained(found: &Login, caller: Option<&User>) -> String {
    let own = caller.map(|caller| caller.name.clone());
    let own = own.or_else(|| User::from_uid(geteuid()).ok().flatten().map(|user| user.name));
    let own = own.unwrap_or_else(|| "you".into());
    let name = word(&found.domain).into_owned();
    let user = found.user.as_deref().unwrap_or("the user of your options");
    format!(
        "`{}` accepts no key of `{own}` for {user}: it accepts those that `create` was given \
         (--ssh-key, or ~/.ssh/id_*.pub of who ran it); `gpuvm ssh {name} --user NAME` logs in as \
         another user of the guest, `gpuvm shell {name}` needs no key and can add yours to \
         ~{user}/.ssh/authorized_keys",
        found.domain
    )
}

/// A program as this caller runs it.
fn by(program: &OsStr, caller: Option<&User>) -> Command {
    let mut command = of_caller(program);
    if let Some(caller) = caller {
        command.env("HOME", &caller.dir).env("USER", &caller.name).env("LOGNAME", &caller.name);
    }
    command
}

/// Becomes the user who called by sudo, for good: the files that ssh reads and the programs that it
/// runs are theirs.
fn become_caller() -> anyhow::Result<Option<User>> {
    let Some(caller) = sudo_caller()? else { return Ok(None) };
    become_one(&caller).with_context(|| format!("cannot run ssh as `{}`", caller.name))?;
    Ok(Some(caller))
}

/// Returns the user who called sudo, whose keys are used; `None` without sudo.
pub(super) fn sudo_caller() -> anyhow::Result<Option<User>> {
    let id = std::env::var("SUDO_UID").ok().filter(|id| geteuid().is_root() && id != "0");
    let Some(id) = id else { return Ok(None) };
    let user = id.parse().ok().and_then(|id| User::from_uid(Uid::from_raw(id)).ok().flatten());
    let missing =
        || usage(format!("SUDO_UID is {id}, and there is no such user"), "run it without sudo");
    Ok(Some(user.ok_or_else(missing)?))
}

fn become_one(user: &User) -> anyhow::Result<()> {
    initgroups(&CString::new(user.name.as_str())?, user.gid)?;
    setgid(Gid::from_raw(user.gid.as_raw()))?;
    setuid(user.uid)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guest of these paths, or the fault.
    fn guest(paths: &[&str]) -> Result<String, String> {
        let paths: Vec<OsString> = paths.iter().map(OsString::from).collect();
        guest_of(&paths).map_err(|error| error.to_string())
    }

    #[test]
    fn one_side_of_a_copy_is_one_guest() {
        assert_eq!(guest(&["a", "b", "vm:"]), Ok("vm".into()));
        assert_eq!(guest(&["vm:a", "vm:b", "."]), Ok("vm".into()));
        // A colon after a slash belongs to a file name.
        assert_eq!(guest(&["./a:b", "vm:x:y"]), Ok("vm".into()));
        assert!(guest(&["a", "./b:c"]).unwrap_err().contains("no path"));
        assert!(guest(&["vm:a", "other:b", "."]).unwrap_err().contains("one guest"));
        assert!(guest(&["vm:a", "b", "."]).unwrap_err().contains("one guest"));
        assert!(guest(&["vm:a", "other:"]).unwrap_err().contains("between guests"));
        assert!(guest(&[":a", "b"]).unwrap_err().contains("no path"));
    }

    #[test]
    fn the_callers_options_come_first() {
        let found = Login {
            domain: "g".into(),
            uuid: "u".into(),
            address: "192.0.2.7".parse().unwrap(),
            proven: true,
            user: Some("me".into()),
            through: Some(vec!["-l".into(), "root".into(), "--".into(), "fe80::1%eth0".into()]),
        };
        let args = LoginArgs {
            user: None,
            address: None,
            option: vec!["Port=22".into()],
            wait: 0,
            print: true,
        };
        let said: Vec<OsString> = options(&found, &args, None);
        let said: Vec<_> =
            said.iter().skip(1).step_by(2).map(|word| word.to_str().unwrap()).collect();
        assert_eq!(
            said,
            [
                "Port=22",
                "User=me",
                "HostKeyAlias=gpuvm-u",
                "StrictHostKeyChecking=accept-new",
                "ForwardAgent=no",
                "ForwardX11=no",
                "GSSAPIDelegateCredentials=no",
                "ControlPath=none",
                "ProxyCommand=ssh -W '[%h]:%p' -l root -- fe80::1%%eth0",
            ]
        );
    }

    #[test]
    fn a_guest_that_refuses_every_key_is_explained_and_other_failures_are_not() {
        let found = Login {
            domain: "g".into(),
            uuid: "u".into(),
            address: "192.0.2.7".parse().unwrap(),
            proven: true,
            user: Some("lab".into()),
            through: None,
        };
        let options: Vec<OsString> = vec!["-o".into(), "User=it's".into()];
        let dir = tempfile::tempdir().unwrap();
        let ssh = dir.path().join("ssh");
        let run = |says: &str, status: i32| {
            let text = format!(
                "#!/bin/sh\necho \"$*\" >>\"$0.asked\"\necho '{says}' >&2\nexit {status}\n"
            );
            std::fs::write(&ssh, text).unwrap();
            std::fs::set_permissions(&ssh, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .unwrap();
            let mut sh = gpuvm_host::program::command("sh");
            sh.env("PATH", format!("{}:/usr/bin:/bin", dir.path().display()));
            sh.args(["-c", &script(&options, &found, None), "gpuvm", "ssh", "a b"]);
            let out = sh.output().unwrap();
            (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
        };
        let (status, said) = run("lab@192.0.2.7: Permission denied (publickey).", 255);
        assert!(status == 255 && said.contains("hint: `g` accepts no key of"), "{said}");
        let asked = std::fs::read_to_string(dir.path().join("ssh.asked")).unwrap();
        let again = "-o BatchMode=yes -o ConnectTimeout=10 -o LogLevel=ERROR -o User=it's -- 192.0.2.7 true";
        assert_eq!(asked, format!("a b\n{again}\n"));
        for (says, status) in [("Connection refused", 255), ("Permission denied (x", 1), ("", 0)] {
            let (ended, said) = run(says, status);
            assert!(ended == status && !said.contains("hint"), "{said}");
        }
    }

    #[test]
    fn the_port_of_the_options_is_found() {
        let of = |options: &[&str]| {
            let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
            port(&options)
        };
        assert_eq!(
            (of(&[]), of(&["Port=2222"]), of(&["User=a", " port 23 ", "Port=24"])),
            (22, 2222, 23)
        );
        assert_eq!((of(&["Port = 25"]), of(&["Port=x"]), of(&["PortX=1"])), (25, 22, 22));
    }

    #[test]
    fn options_that_name_the_user_are_found() {
        for option in ["User=me", "user me", " USER=me", "User\tme"] {
            assert!(is_user(option), "{option:?}");
        }
        for option in ["UserKnownHostsFile=/x", "Port=22", "", "=User"] {
            assert!(!is_user(option), "{option:?}");
        }
    }

    #[test]
    fn the_stricter_of_two_settings_is_kept() {
        // As `ssh -G` prints yes, ask, no and accept-new.
        for (set, is_kept) in
            [("true", true), ("ask", false), ("false", false), ("accept-new", false)]
        {
            let line = format!("echo user me; echo stricthostkeychecking {set}; echo port 22");
            let mut asks = gpuvm_host::program::command("sh");
            assert_eq!(is_strict(asks.args(["-c", &line])), is_kept, "{set}");
        }
        assert!(!is_strict(&mut gpuvm_host::program::command("/nonexistent")));
    }
}
