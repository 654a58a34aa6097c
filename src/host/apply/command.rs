//! Commands of other programs, with an end that is set from outside: a command that touches drives may hang in the kernel
//! for ever, and one that reads a whole disk is broken off by a signal.

use crate::program::{command, for_caller};
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a command's output that are kept.
const LARGEST: u64 = 16 << 20;

/// Says why a command did not do what it was to do.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "program-")]
pub enum CommandError {
    /// It could not be started.
    #[error("cannot run `{program}`: {source}")]
    #[strum(to_string = "not-started")]
    Unstarted {
        /// The program.
        program: String,
        /// What the system says.
        source: io::Error,
    },
    /// It failed.
    #[error("`{command}` failed: {message}")]
    Failed {
        /// The command.
        command: String,
        /// Its exit status; none: a signal ended it.
        status: Option<i32>,
        /// The last lines that it printed.
        message: String,
    },
    /// It did not end in time.
    #[error("`{command}` did not end within {seconds} s")]
    #[strum(to_string = "timeout")]
    Late {
        /// The command.
        command: String,
        /// How long was waited.
        seconds: u64,
    },
}

/// Runs a command without a terminal, and returns what it printed; nothing of it is read by a shell.
pub fn output(argv: &[&str], seconds: u64) -> Result<String, CommandError> {
    let until = Instant::now() + Duration::from_secs(seconds);
    let out = output_unless(argv, &mut || Instant::now() >= until)?;
    out.ok_or_else(|| CommandError::Late { command: argv.join(" "), seconds })
}

/// The same of a command that acts on behalf of the caller, whose keys and settings it is to find: `ssh`.
pub fn output_for_caller(argv: &[&str], seconds: u64) -> Result<String, CommandError> {
    let until = Instant::now() + Duration::from_secs(seconds);
    let out = run(|program| for_caller(program), argv, &mut || Instant::now() >= until)?;
    out.ok_or_else(|| CommandError::Late { command: argv.join(" "), seconds })
}

/// What `output` returns; none where `stops` says that it is to be waited for no longer.
pub fn output_unless(
    argv: &[&str],
    stops: &mut dyn FnMut() -> bool,
) -> Result<Option<String>, CommandError> {
    run(|program| command(program), argv, stops)
}

/// Runs a command that is made so.
fn run(
    make: fn(&str) -> Command,
    argv: &[&str],
    stops: &mut dyn FnMut() -> bool,
) -> Result<Option<String>, CommandError> {
    let program = argv.first().copied().unwrap_or_default();
    let shown = argv.join(" ");
    let mut command = make(program);
    command.args(argv.get(1..).unwrap_or_default());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let unstarted = |source| CommandError::Unstarted { program: program.to_owned(), source };
    let mut child = command.spawn().map_err(unstarted)?;
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = loop {
        if let Some(status) = child.try_wait().map_err(unstarted)? {
            break status;
        }
        if stops() {
            // A process that hangs in the kernel ends when that lets go of it, and is not waited for.
            let _ = child.kill();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let (out, err) = (read(out), read(err));
    if status.success() {
        return Ok(Some(out));
    }
    let said = if err.trim().is_empty() { &out } else { &err };
    let last: Vec<&str> =
        said.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
    let message = match &last[..] {
        [] => status.to_string(),
        lines => lines.iter().rev().copied().collect::<Vec<_>>().join("; "),
    };
    Err(CommandError::Failed { command: shown, status: status.code(), message })
}

/// Reads a stream of a child as it comes, so that the child never waits for a reader.
fn reader<R: Read + Send + 'static>(stream: Option<R>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.by_ref().take(LARGEST).read_to_end(&mut bytes);
            let _ = io::copy(&mut stream, &mut io::sink());
        }
        bytes
    })
}

/// What a reader has read.
fn read(reader: JoinHandle<Vec<u8>>) -> String {
    String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_run_fails_or_hangs_is_told_apart() {
        let error = output(&["gpuvm-no-such-program"], 1).unwrap_err();
        assert!(matches!(error, CommandError::Unstarted { .. }), "{error}");
        assert!(output(&[], 1).is_err());
        let error = output(&["ls", "/gpuvm-absent"], 60).unwrap_err();
        let CommandError::Failed { status: Some(2), message, .. } = error else {
            panic!("{error}");
        };
        assert!(message.contains("No such file"), "{message}");
        let error = output(&["sleep", "60"], 0).unwrap_err().to_string();
        assert_eq!(error, "`sleep 60` did not end within 0 s");
        assert_eq!(output(&["echo", "a b", "$HOME"], 60).unwrap(), "a b $HOME\n");
    }
}
