//! Runs of the program whose journal is tampered with (tests/tamper): killed, signalled, halted, or
//! without space at its n-th record.

use super::{project, run};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where the libraries are for tests on a machine without a toolchain (tests/trixie).
pub const MADE: &str = "GPUVM_TEST_LIBRARIES";

/// The libraries that tests use: the directory of the source, the file.
pub const LIBRARIES: [(&str, &str); 3] =
    [("tamper", "libtamper.so"), ("fake-nvfm", "libnvfm.so.1"), ("fake-nvml", "libnvidia-ml.so.1")];

/// Compiles a library with the toolchain that builds the tests; PATH may lack it under sudo. Returns
/// its file, which is complete once it is in the directory.
pub fn library(dir: &Path, source: &str, name: &str) -> PathBuf {
    if let Some(made) = std::env::var_os(MADE) {
        std::fs::copy(Path::new(&made).join(name), dir.join(name)).unwrap();
        return dir.join(name);
    }
    let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
    let made = tempfile::tempdir_in(dir).unwrap();
    let file = made.path().join(name);
    let mut compile = Command::new(&rustc);
    compile.args(["--edition", "2024", "--crate-type", "cdylib", "-D", "warnings", "-o"]);
    compile.arg(&file).arg(project().join("tests").join(source).join("lib.rs"));
    let (code, _, err) = run(&mut compile);
    assert_eq!(code, 0, "{source}: {err}");
    std::fs::rename(file, dir.join(name)).unwrap();
    dir.join(name)
}

/// Arguments of `env` that tamper with the program behind them and with its children:
/// `signal=KILL:when=3`, `error=ENOSPC:when=3+`. `log`: the file for [`halted`].
pub fn variables(tamper: &str, log: Option<&Path>) -> Vec<String> {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tamper");
        std::fs::create_dir_all(&dir).unwrap();
        library(&dir, "tamper", "libtamper.so")
    });
    let log = log.map(|log| format!("GPUVM_TAMPER_LOG={}", log.display()));
    let words = [format!("LD_PRELOAD={}", library.display()), format!("GPUVM_TAMPER={tamper}")];
    words.into_iter().chain(log).collect()
}

/// The process that is halted, by its log; none as long as it is not.
pub fn halted(log: &Path) -> Option<Pid> {
    let pid = std::fs::read_to_string(log).ok()?.lines().next()?.parse().ok()?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let is_stopped = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
    is_stopped.then(|| Pid::from_raw(pid))
}
