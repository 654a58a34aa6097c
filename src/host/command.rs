//! Runs external commands with a time limit: a command on drives may hang in the kernel forever,
//! and one that reads a whole disk is cancelled by a signal.

use crate::program::{command, for_caller};
use crate::trace::Running;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a command's output that are kept.
const LARGEST: usize = 16 << 20;
/// How long to wait for a stream after its program has ended.
const LEFT_OPEN: Duration = Duration::from_secs(2);

/// The error of a command.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "program-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum CommandError {
    /// It could not be started.
    #[error("cannot run `{program}`: {source}")]
    #[strum(to_string = "not-started")]
    Unstarted { program: String, source: io::Error },
    /// It failed.
    #[error("`{command}` failed: {message}")]
    Failed {
        command: String,
        /// Its exit status; `None` if a signal ended it.
        status: Option<i32>,
        /// The last lines that it printed.
        message: String,
    },
    /// It did not end in time.
    #[error("`{command}` did not end within {seconds} s")]
    #[strum(to_string = "timeout")]
    Late {
        command: String,
        /// How long it waited, in seconds.
        seconds: u64,
    },
}

/// Runs a command without a terminal or a shell, and returns its output.
pub fn output(argv: &[&str], seconds: u64) -> Result<String, CommandError> {
    let until = Instant::now() + Duration::from_secs(seconds);
    let out = output_unless(argv, &mut || Instant::now() >= until)?;
    out.ok_or_else(|| CommandError::Late { command: argv.join(" "), seconds })
}

/// The same for arguments that may not be text, as paths of others.
pub fn output_of(
    program: &str,
    arguments: &[&OsStr],
    seconds: u64,
) -> Result<String, CommandError> {
    let until = Instant::now() + Duration::from_secs(seconds);
    let make = |program: &str| {
        let mut command = command(program);
        command.args(arguments);
        command
    };
    let out = run(make, &[program], &mut || Instant::now() >= until)?;
    out.ok_or_else(|| CommandError::Late { command: program.to_owned(), seconds })
}

/// The same for a command on behalf of the caller, which needs their keys and settings: `ssh`.
pub fn output_for_caller(argv: &[&str], seconds: u64) -> Result<String, CommandError> {
    let until = Instant::now() + Duration::from_secs(seconds);
    let out = run(|program| for_caller(program), argv, &mut || Instant::now() >= until)?;
    out.ok_or_else(|| CommandError::Late { command: argv.join(" "), seconds })
}

/// Like [`output`]; none if `stops` cancels the wait.
pub fn output_unless(
    argv: &[&str],
    stops: &mut dyn FnMut() -> bool,
) -> Result<Option<String>, CommandError> {
    run(|program| command(program), argv, stops)
}

fn run(
    make: impl Fn(&str) -> Command,
    argv: &[&str],
    stops: &mut dyn FnMut() -> bool,
) -> Result<Option<String>, CommandError> {
    let program = argv.first().copied().unwrap_or_default();
    let shown = argv.join(" ");
    let mut command = make(program);
    command.args(argv.get(1..).unwrap_or_default());
    let ended = end_of(command, stops);
    let ended =
        ended.map_err(|source| CommandError::Unstarted { program: program.to_owned(), source })?;
    let Some(Ended { status, stdout, stderr }) = ended else { return Ok(None) };
    let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
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

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// Its standard output, at most 16 MiB.
    pub stdout: Vec<u8>,
    /// Its standard error, at most 16 MiB.
    pub stderr: Vec<u8>,
}

/// Runs a command without standard input to its end, whatever its status; `None` if `stops`
/// cancels the wait. Errors: it could not be started.
pub fn end_of(mut command: Command, stops: &mut dyn FnMut() -> bool) -> io::Result<Option<Ended>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::begins(&command);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            running.failed(&error);
            return Err(error);
        }
    };
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if stops() {
            // A process stuck in the kernel ends later, and is not waited for.
            let _ = child.kill();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    running.ended(status);
    Ok(Some(Ended { status, stdout: read(&out), stderr: read(&err) }))
}

/// The output of a child's stream, and its reader.
struct Stream {
    /// The bytes so far.
    bytes: Arc<Mutex<Vec<u8>>>,
    /// The reader, until the stream ends.
    reader: JoinHandle<()>,
}

/// Reads a stream of a child as it comes, so that the child never waits for a reader.
fn reader<R: Read + Send + 'static>(stream: Option<R>) -> Stream {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&bytes);
    let reader = std::thread::spawn(move || {
        let Some(mut stream) = stream else { return };
        let mut part = vec![0; 64 << 10];
        loop {
            let got = match stream.read(&mut part) {
                Ok(got @ 1..) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                _ => return,
            };
            let mut bytes = into.lock().unwrap_or_else(PoisonError::into_inner);
            let room = LARGEST.saturating_sub(bytes.len());
            bytes.extend_from_slice(&part[..got.min(room)]);
        }
    });
    Stream { bytes, reader }
}

/// Returns a stream's output at its end. A process left behind by the child may hold it open; then
/// this is the output so far.
fn read(stream: &Stream) -> Vec<u8> {
    let until = Instant::now() + LEFT_OPEN;
    while !stream.reader.is_finished() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::mem::take(&mut *stream.bytes.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_failing_and_hanging_programs_are_distinguished() {
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

    #[test]
    fn leftover_children_of_a_program_are_not_waited_for() {
        let begun = Instant::now();
        let said = output(&["sh", "-c", "sleep 60 & echo done"], 60).unwrap();
        assert!(said == "done\n" && begun.elapsed() < Duration::from_secs(45), "{said}");
    }
}
