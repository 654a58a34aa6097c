//! Shared support of the integration tests: the program, the recorded hosts, the machine's
//! facilities.

pub mod daemon;
pub mod grace;
pub mod known;
pub mod lawful;
pub mod machine;
pub mod pool;
pub mod shared;
pub mod skip;
pub mod tamper;
pub mod tree;
pub mod uml;
pub mod watch;

pub use skip::skip;
pub use tree::host_tree;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The program under test, with an environment free of the caller's settings.
pub fn gpuvm(args: &[&str]) -> Command {
    watch::begin();
    machine::enter();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command.args(args).env_remove("LIBVIRT_DEFAULT_URI").env_remove("COLUMNS").env("LC_ALL", "C");
    command.env("HOME", home());
    command
}

/// The home directory of who calls the program: with a key, without which no guest is made of an
/// image.
fn home() -> &'static Path {
    /// Where it is.
    static HOME: OnceLock<PathBuf> = OnceLock::new();
    HOME.get_or_init(|| {
        let home = machine::of_run().join("home");
        std::fs::create_dir_all(home.join(".ssh")).unwrap();
        let key = format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA{} tests\n", "a".repeat(44));
        std::fs::write(home.join(".ssh/id_ed25519.pub"), key).unwrap();
        home
    })
}

/// Runs a command and returns its exit code, standard output and standard error.
pub fn run(command: &mut Command) -> (i32, String, String) {
    watch::begin();
    machine::enter();
    let Output { status, stdout, stderr } = command.output().expect("the command starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

/// The project's root.
pub fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The recorded hosts beside the project, if they exist; tests that need them are otherwise
/// reported as skipped.
pub fn shared_hosts() -> Option<PathBuf> {
    let dir = project().join("../shared/hosts");
    if dir.is_dir() {
        return dir.canonicalize().ok();
    }
    skip(lawful::NO_SHARED_HOSTS)
}
