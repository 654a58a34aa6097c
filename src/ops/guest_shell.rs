//! A shell in a guest by its agent, on this terminal: without an address, a key or a network.
//!
//! An agent runs programs and reads and writes files, but passes no stream on. So the shell reads a
//! named pipe and writes a file, in a directory of its own in the guest, and both are read and
//! written by the agent. `script` gives it a terminal where the guest has it. It ends with this
//! program: what no longer comes from here for two minutes ends it.

use crate::agent::BASE64;
use crate::error::{Class, Error, Result, classed};
use crate::exec::Inside;
use crate::hypervisor::{Console, ConsoleRead, HypervisorError, HypervisorErrorKind};
use crate::shell::word;
use crate::world::World;
use base64::Engine as _;
use serde_json::json;
use std::time::{Duration, Instant};

/// Makes the directory of a shell, and prints it.
const MAKE: &str = r#"umask 077
d=$(mktemp -d /run/gpuvm-shell.XXXXXX 2>/dev/null || mktemp -d) &&
  mkfifo "$d/in" && : >"$d/out" && : >"$d/alive" && printf %s "$d""#;
/// Becomes a shell in the directory $1, on a terminal of $2 rows and $3 columns of kind $4. What
/// looks whether gpuvm is still there ends it with its terminal.
///
/// `script` of util-linux 2.38 does not end with its shell where its input is no terminal, so the
/// shell ends it, and its status is in a file.
const SHELL: &str = r#"d=$1
export HOME="${HOME-/root}" TERM="$4" SHELL="${SHELL-/bin/sh}"
[ ! -x /bin/bash ] || SHELL=/bin/bash
cd "$HOME" 2>/dev/null || cd /
(
  while sleep 15 && [ -d "$d" ]; do
    [ -n "$(find "$d/alive" -mmin +2)" ] || continue
    kill $$
    rm -rf "$d"
  done
) </dev/null >/dev/null 2>&1 &
exec <>"$d/in" >>"$d/out" 2>&1
if command -v script >/dev/null; then
  exec script -qc "stty rows $2 cols $3; $SHELL -l; echo \$? >'$d/status'; kill \$PPID" /dev/null
fi
"$SHELL" -i
echo $? >"$d/status""#;
/// Ends the shell of directory $1, of process $2 if it still runs, and removes it.
const END: &str = r#"[ -z "$2" ] || kill "$2"
rm -rf "$1""#;
/// The most bytes in one message.
const PIECE: usize = 32 << 10;
/// The shortest and the longest time between two looks at a shell that prints nothing.
const LOOKS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(250)];
/// The interval of the checks whether the shell has ended, which also show it that this program is
/// alive.
const OFTEN: Duration = Duration::from_secs(1);
/// The most bytes before the guest's output file is emptied.
const KEPT: u64 = 4 << 20;

/// The terminal that a shell gets.
#[derive(Debug, Clone)]
pub struct Terminal {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
    /// Its kind, as TERM has it.
    pub kind: String,
}

/// A shell in a guest.
pub struct GuestShell<'h> {
    inside: Inside<'h>,
    dir: String,
    pid: i64,
    /// Handles of its input, its output and the file that says that this program is there.
    handles: [i64; 3],
    /// Bytes of the output that have come.
    through: u64,
    /// When the output is read again, and how long after that.
    look: (Instant, Duration),
    /// When it was last asked whether the shell has ended.
    asked: Instant,
    /// The status that it ended with.
    status: Option<u8>,
}

/// Begins a shell in a guest.
pub fn begin<'w>(
    hypervisor: &'w dyn crate::hypervisor::Hypervisor,
    world: &World,
    name: &str,
    terminal: &Terminal,
) -> Result<GuestShell<'w>> {
    world.refuse_without_running_guests("shell")?;
    let inside = Inside::of(hypervisor, name)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    let kind = Some(&terminal.kind).filter(|kind| !kind.is_empty() && kind.chars().all(is_plain));
    let kind = kind.map_or("dumb", String::as_str);
    let dir = String::from_utf8(run(&inside, MAKE, &[])?).ok().filter(|dir| dir.starts_with('/'));
    let Some(dir) = dir else {
        let message = format!("no shell can be started in `{name}`: it has no place for its files");
        let hint = format!("`gpuvm exec {} -- mktemp -d` says why", word(name));
        return Err(classed(Class::Refused, message, hint));
    };
    let words = [&dir, &terminal.rows.to_string(), &terminal.columns.to_string(), kind];
    let pid = inside.start(SHELL, &words.map(str::to_owned), None);
    let open = |file: &str, mode: &str| -> Result<i64> {
        let arguments = json!({ "path": format!("{dir}/{file}"), "mode": mode });
        let handle = inside.ask("guest-file-open", &arguments)?;
        handle.as_i64().ok_or_else(|| classed(Class::System, "the agent cannot open files", ""))
    };
    // The pipe is opened last: by then the shell has it open, too, or this would wait for it.
    let opened = pid.and_then(|pid| {
        let (output, alive) = (open("out", "r")?, open("alive", "w")?);
        wait_for_reader(&inside, &dir)?;
        Ok((pid, [open("in", "w")?, output, alive]))
    });
    let (pid, handles) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let _ = run(&inside, END, &[dir, String::new()]);
            return Err(error);
        }
    };
    let (now, through, status) = (Instant::now(), 0, None);
    let look = (now, LOOKS[0]);
    Ok(GuestShell { inside, dir, pid, handles, through, look, asked: now, status })
}

/// Waits until the shell has its end of the pipe: an agent that opens one without a reader hangs.
fn wait_for_reader(inside: &Inside<'_>, dir: &String) -> Result<()> {
    // Writing to a pipe without a reader waits, and `timeout` ends that.
    let script = "i=0
until timeout 1 sh -c ': >\"$1/in\"' sh \"$1\"; do i=$((i+1)); [ $i -lt 20 ] || exit; done; echo ok";
    if run(inside, script, std::slice::from_ref(dir))?.is_empty() {
        return Err(classed(Class::Timeout, "the shell in the guest does not start", ""));
    }
    Ok(())
}

/// Runs a short script, and returns its output.
fn run(inside: &Inside<'_>, script: &str, words: &[String]) -> Result<Vec<u8>> {
    let pid = inside.start(script, words, Some(&[]))?;
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(ended) = inside.ended(pid)? {
            return Ok(ended.stdout);
        }
        if Instant::now() > until {
            return Err(classed(Class::Timeout, "a program in the guest does not end", ""));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl GuestShell<'_> {
    /// Ends the shell, and removes its directory in the guest. Returns its status; `None` if it was
    /// left.
    pub fn end(self) -> Result<Option<u8>> {
        for handle in self.handles {
            // Those that it has ended with are closed.
            let _ = self.inside.ask("guest-file-close", &json!({ "handle": handle }));
        }
        let pid = if self.status.is_some() { String::new() } else { self.pid.to_string() };
        run(&self.inside, END, &[self.dir, pid])?;
        Ok(self.status)
    }

    /// Writes to a file of the shell.
    fn put(&self, handle: i64, bytes: &[u8]) -> Result<usize> {
        let arguments = json!({ "handle": handle, "buf-b64": BASE64.encode(bytes) });
        let written = self.inside.ask("guest-file-write", &arguments)?;
        self.inside.ask("guest-file-flush", &json!({ "handle": handle }))?;
        let count = written["count"].as_u64().and_then(|count| usize::try_from(count).ok());
        Ok(count.unwrap_or(0).min(bytes.len()))
    }

    /// Reads the shell's output.
    fn get(&mut self, most: usize) -> Result<Vec<u8>> {
        let arguments = json!({ "handle": self.handles[1], "count": most });
        let read = self.inside.ask("guest-file-read", &arguments)?;
        let bytes = BASE64.decode(read["buf-b64"].as_str().unwrap_or_default());
        let mut bytes = bytes.unwrap_or_default();
        bytes.truncate(most);
        self.through += bytes.len() as u64;
        Ok(bytes)
    }

    /// Looks whether the shell has ended, and says that this program is there.
    fn has_ended(&mut self) -> Result<bool> {
        self.asked = Instant::now();
        self.put(self.handles[2], b".")?;
        if self.through > KEPT {
            // The file is appended to, so further output is at its begin.
            run(&self.inside, ": >\"$1/out\"", std::slice::from_ref(&self.dir))?;
            let begin = json!({ "handle": self.handles[1], "offset": 0, "whence": 0 });
            self.inside.ask("guest-file-seek", &begin)?;
            self.through = 0;
        }
        if let Some(ended) = self.inside.ended(self.pid)? {
            let read = run(&self.inside, "cat \"$1/status\"", std::slice::from_ref(&self.dir))?;
            let read = String::from_utf8_lossy(&read).trim().parse().ok();
            self.status = Some(read.unwrap_or(ended.status));
        }
        Ok(self.status.is_some())
    }

    /// Reads the available output, or finds that it has ended.
    fn next(&mut self, most: usize) -> Result<Option<Vec<u8>>> {
        let now = Instant::now();
        if now < self.look.0 {
            return Ok(Some(Vec::new()));
        }
        let bytes = self.get(most)?;
        if !bytes.is_empty() {
            self.look = (now, LOOKS[0]);
            return Ok(Some(bytes));
        }
        if self.status.is_some() {
            return Ok(None);
        }
        self.look = (now + self.look.1, (self.look.1 * 2).min(LOOKS[1]));
        if now >= self.asked + OFTEN && self.has_ended()? {
            // Its last words may have come since.
            self.look = (now, LOOKS[0]);
        }
        Ok(Some(Vec::new()))
    }
}

/// An error as the console has it.
fn of_console(error: &Error) -> HypervisorError {
    let (kind, doing) = (HypervisorErrorKind::Other, "use the shell in the guest".to_owned());
    HypervisorError { kind, doing, message: error.to_string() }
}

impl Console for &mut GuestShell<'_> {
    fn read(&mut self, into: &mut [u8]) -> Result<ConsoleRead, HypervisorError> {
        match self.next(into.len().min(PIECE)).map_err(|error| of_console(&error))? {
            None => Ok(ConsoleRead::End),
            Some(bytes) if bytes.is_empty() => Ok(ConsoleRead::Nothing),
            Some(bytes) => {
                into[..bytes.len()].copy_from_slice(&bytes);
                Ok(ConsoleRead::Bytes(bytes.len()))
            }
        }
    }

    fn write(&mut self, from: &[u8]) -> Result<usize, HypervisorError> {
        let taken = &from[..from.len().min(PIECE)];
        // Typed input is answered soon.
        self.look = (Instant::now(), LOOKS[0]);
        self.put(self.handles[0], taken).map_err(|error| of_console(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::guest;

    /// Types into a shell of this machine until it has printed a text; returns all that it printed.
    fn until(shell: &mut GuestShell<'_>, typed: &str, text: &str) -> String {
        let mut console = shell;
        let mut all = String::new();
        assert_eq!(console.write(typed.as_bytes()).unwrap(), typed.len());
        let begun = Instant::now();
        let mut buffer = [0; 4096];
        while !all.contains(text) {
            match console.read(&mut buffer).unwrap() {
                ConsoleRead::Bytes(got) => all += &String::from_utf8_lossy(&buffer[..got]),
                ConsoleRead::Nothing => std::thread::sleep(Duration::from_millis(5)),
                ConsoleRead::End => all += "<end>",
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "no {text:?} in {all:?}");
        }
        all
    }

    #[test]
    fn a_shell_keeps_its_state_has_a_terminal_and_ends_with_its_status() {
        let stage = guest("connected");
        let terminal = Terminal { rows: 30, columns: 100, kind: "xterm".into() };
        let mut shell = begin(&*stage.fake, &stage.world, "g", &terminal).unwrap();
        let dir = std::path::PathBuf::from(&shell.dir);
        assert!(dir.is_dir());
        until(&mut shell, "cd /tmp; A=1\r", "");
        until(&mut shell, "echo at-$PWD-$((A + 1)) $TERM\r", "at-/tmp-2 xterm");
        if std::path::Path::new("/usr/bin/script").exists() {
            until(&mut shell, "stty size\r", "30 100");
        }
        let said = until(&mut shell, "exit 7\r", "<end>");
        assert!(!said.contains("fail"), "{said}");
        assert_eq!(shell.end().unwrap(), Some(7));
        assert!(!dir.exists());
    }

    #[test]
    fn partial_files_in_the_guest_are_removed_and_a_leftover_shell_ends() {
        let stage = guest("connected");
        let terminal = Terminal { rows: 24, columns: 80, kind: String::new() };
        let mut shell = begin(&*stage.fake, &stage.world, "g", &terminal).unwrap();
        until(&mut shell, "echo a-$TERM\r", "a-dumb");
        shell.through = KEPT + 1;
        shell.asked = Instant::now() - OFTEN;
        until(&mut shell, "sleep 2; echo b-$((1 + 1))\r", "b-2");
        assert!(shell.through < 4096, "{}", shell.through);
        let dir = std::path::PathBuf::from(&shell.dir);
        assert_eq!(shell.end().unwrap(), None);
        assert!(!dir.exists());
    }
}
