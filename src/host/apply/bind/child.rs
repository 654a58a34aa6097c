//! Writes to the kernel that may block forever, each by a process of its own with a deadline.

use super::BindError;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tracing::info;

/// How long loading a module may take, in seconds.
const LOAD_S: u64 = 60;
/// How long reading an attribute may take, in seconds.
const READ_S: u64 = 5;

/// Access to the kernel's binding interfaces.
pub trait Kernel {
    /// Writes a text to a file below the root, within this many seconds.
    fn write(&self, path: &str, text: &str, seconds: u64) -> Result<(), BindError>;
    /// Loads a driver's module, by its name or alias.
    fn load(&self, module: &str) -> Result<(), BindError>;
}

/// The kernel of this machine.
#[derive(Debug, Clone, Copy)]
pub struct Live;

impl Kernel for Live {
    fn write(&self, path: &str, text: &str, seconds: u64) -> Result<(), BindError> {
        let path = format!("/{path}");
        let done = run("tee", &[&path], text, Duration::from_secs(seconds))?;
        match done {
            None => Err(BindError::Hangs { path, seconds }),
            Some((status, _)) if status.success() => {
                info!("wrote {path}: {}", text.trim());
                Ok(())
            }
            Some((_, said)) => {
                // `tee: FILE: No such device`
                let reason = said.rsplit(": ").next().unwrap_or_default().to_owned();
                Err(BindError::Refused { path, text: text.trim().to_owned(), reason })
            }
        }
    }

    fn load(&self, module: &str) -> Result<(), BindError> {
        let args = ["--use-blacklist", "--", module];
        let failed = |reason: String| {
            let program = format!("modprobe {module}");
            Err(BindError::Program { program, reason })
        };
        match run("modprobe", &args, "", Duration::from_secs(LOAD_S))? {
            None => failed(format!("it is not done within {LOAD_S} s")),
            Some((status, _)) if status.success() => Ok(()),
            Some((_, said)) => failed(said),
        }
    }
}

/// Refuses a file of this machine that cannot be read in time: the kernel is stuck on its function.
pub fn readable(path: &str) -> Result<(), BindError> {
    match run("cat", &[path], "", Duration::from_secs(READ_S))? {
        Some(_) => Ok(()),
        None => Err(BindError::Hangs { path: path.to_owned(), seconds: READ_S }),
    }
}

/// Runs a program with this input. Returns its status and error output, or none on timeout: it is
/// then signalled and abandoned, since a process waiting in the kernel ignores signals.
fn run(
    program: &str,
    args: &[&str],
    input: &str,
    time: Duration,
) -> Result<Option<(ExitStatus, String)>, BindError> {
    let failed = |error: std::io::Error| BindError::Program {
        program: program.to_owned(),
        reason: error.to_string(),
    };
    let mut command = crate::program::command(program);
    command.args(args).stdin(Stdio::piped());
    // A process group of its own: Ctrl-C at the terminal is for us.
    command.stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let running = crate::trace::Running::begins(&command);
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read reports why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let Some(status) = wait(&mut child, time).map_err(failed)? else {
        let _ = child.kill();
        return Ok(None);
    };
    running.ended(status);
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut said);
    }
    Ok(Some((status, said.trim().to_owned())))
}

/// Waits for a process until its time is over.
fn wait(child: &mut Child, time: Duration) -> std::io::Result<Option<ExitStatus>> {
    let until = Instant::now() + time;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_does_not_end_is_left_in_time() {
        let ended = run("sleep", &["600"], "", Duration::from_millis(50)).unwrap();
        assert!(ended.is_none());
        let (status, said) =
            run("cat", &["/nothing/here"], "", Duration::from_secs(60)).unwrap().unwrap();
        assert!(!status.success());
        assert!(said.ends_with("No such file or directory"), "{said}");
        let error = run("gpuvm-no-such-program", &[], "", Duration::from_secs(1)).unwrap_err();
        assert!(error.to_string().starts_with("cannot run gpuvm-no-such-program: "), "{error}");
    }

    #[test]
    fn a_write_says_what_the_system_says() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        let path = file.to_str().unwrap().trim_start_matches('/');
        Live.write(path, "0000:01:00.0", 60).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "0000:01:00.0");
        let error = Live.write(&format!("{path}/b"), "1", 60).unwrap_err();
        assert!(matches!(&error, BindError::Refused { reason, .. } if reason == "Not a directory"));
    }
}
