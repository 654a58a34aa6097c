//! Fabric Manager's program on a host: whether it runs, and its version beside that of the driver, which have to be the
//! same. Asks the program for nothing but its version.

use crate::command::output;
use crate::fsroot::{FsError, FsRoot};
use crate::program::PATH;
use gpuvm_core::fabric::FabricVersions;
use std::os::unix::fs::MetadataExt as _;

/// The name of its program.
const PROGRAM: &str = "nv-fabricmanager";
/// Characters of a program's name that the kernel keeps for its processes (proc(5), `comm`).
const COMM: usize = 15;
/// How long it may take to tell its version, in seconds.
const VERSION_S: u64 = 5;

/// The process of a host's Fabric Manager, by its number; none: none of root's has its name.
pub fn process(root: &FsRoot) -> Result<Option<u32>, FsError> {
    for pid in root.names("proc")?.iter().filter_map(|name| name.parse::<u32>().ok()) {
        // One that has ended since it was listed is none.
        let comm = root.read(&format!("proc/{pid}/comm")).ok().flatten();
        if comm.is_none_or(|comm| comm != PROGRAM[..COMM]) {
            continue;
        }
        let status = root.read(&format!("proc/{pid}/status")).ok().flatten().unwrap_or_default();
        // Anybody may call a program so.
        let owner = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        if owner.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0") {
            return Ok(Some(pid));
        }
    }
    Ok(None)
}

/// What is known of the versions of this machine.
pub fn versions(root: &FsRoot) -> FabricVersions {
    let driver = root.read("sys/module/nvidia/version").ok().flatten();
    FabricVersions { manager: running_version(root), driver }
}

/// The version of the program that is installed; none where it is not, or does not tell.
pub fn installed_version() -> Option<String> {
    version_of(PROGRAM)
}

/// The version of the program that runs on this machine; none where none runs, or the file is another one by now: an
/// upgrade counts only once it was started again.
fn running_version(root: &FsRoot) -> Option<String> {
    let pid = process(root).ok().flatten().filter(|_| root.is_live())?;
    let of = |path: &str| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let runs = of(&format!("/proc/{pid}/exe"))?;
    // Only the system's own program is run, whatever a process calls itself: one in a container has other files.
    let mut files = PATH.split(':').map(|dir| format!("{dir}/{PROGRAM}"));
    version_of(&files.find(|file| of(file) == Some(runs))?)
}

/// What a program tells as its version: the last word with a digit in front.
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
