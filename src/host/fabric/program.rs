//! Fabric Manager's program on a host: whether it runs, and its version, the driver's and the
//! client library's, which must match. Runs the program only to get its version.

use super::Manager;
use crate::command::output;
use crate::fsroot::{FsError, FsRoot};
use crate::program::PATH;
use gpuvm_core::fabric::FabricVersions;
use std::os::unix::fs::MetadataExt as _;

const PROGRAM: &str = "nv-fabricmanager";
/// Characters of a program's name in the kernel (proc(5), `comm`).
const COMM: usize = 15;
/// Time limit of printing its version, in seconds.
const VERSION_S: u64 = 5;

/// The process of a host's Fabric Manager, by pid; `None` if no process of root has its name.
pub fn process(root: &FsRoot) -> Result<Option<u32>, FsError> {
    for pid in root.names("proc")?.iter().filter_map(|name| name.parse::<u32>().ok()) {
        // A process may have ended since it was listed.
        let comm = root.read(&format!("proc/{pid}/comm")).ok().flatten();
        if comm.is_none_or(|comm| comm != PROGRAM[..COMM]) {
            continue;
        }
        let status = root.read(&format!("proc/{pid}/status")).ok().flatten().unwrap_or_default();
        // Any user may run a program of this name.
        let owner = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        if owner.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0") {
            return Ok(Some(pid));
        }
    }
    Ok(None)
}

/// Reads the versions of this machine.
pub fn versions(root: &FsRoot) -> FabricVersions {
    let driver = root.read("sys/module/nvidia/version").ok().flatten();
    let manager = running_version(root);
    // Compared only with Fabric Manager's.
    let asked = manager.as_ref().and_then(|_| Manager::of_host(root).ok());
    let library = asked.and_then(|asked| asked.library_version());
    FabricVersions { manager, driver, library }
}

/// Returns the version of the installed program; none if it is not installed, or prints none.
pub fn installed_version() -> Option<String> {
    version_of(PROGRAM)
}

/// Returns the version of the running program; none if none runs, or its file was replaced: an
/// upgrade takes effect only after a restart.
fn running_version(root: &FsRoot) -> Option<String> {
    let pid = process(root).ok().flatten().filter(|_| root.is_live())?;
    let of = |path: &str| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let runs = of(&format!("/proc/{pid}/exe"))?;
    // Only the system's own program is run, whatever a process is called: one in a container has
    // other files.
    let mut files = PATH.split(':').map(|dir| format!("{dir}/{PROGRAM}"));
    version_of(&files.find(|file| of(file) == Some(runs))?)
}

/// Returns a program's version: the last word of its output that starts with a digit.
fn version_of(program: &str) -> Option<String> {
    let said = output(&[program, "--version"], VERSION_S).ok()?;
    let is_version = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
    said.split_whitespace().rfind(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_of_roots_is_fabric_manager() {
        let dir = tempfile::tempdir().unwrap();
        let put = |pid: u32, comm: &str, ids: &str| {
            let proc = dir.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&proc).unwrap();
            std::fs::write(proc.join("comm"), format!("{comm}\n")).unwrap();
            std::fs::write(proc.join("status"), format!("Name:\t{comm}\nUid:\t{ids}\n")).unwrap();
        };
        let found = || process(&FsRoot::at(dir.path()).unwrap()).unwrap();
        put(7, "nv-hostengine", "0\t0\t0\t0");
        put(8, "nv-fabricmanage", "1000\t1000\t1000\t1000");
        assert_eq!(found(), None);
        put(9, "nv-fabricmanage", "0\t0\t0\t0");
        assert_eq!(found(), Some(9));
        std::fs::remove_file(dir.path().join("proc/9/status")).unwrap();
        assert_eq!(found(), None, "it has ended");
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!(versions(&root), FabricVersions::default());
    }
}
