//! The hosts that others recorded, beside the project.

use super::shared_hosts;
use super::tree::scratch;
use gpuvm::discover::source::load;
use gpuvm::topology::Topology;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

/// A host that others recorded, unpacked while it is in use.
pub struct Recorded<'a> {
    /// Its file's name.
    pub name: &'a str,
    /// Its lstopo XML, or the directory with its `sys`.
    pub path: &'a Path,
    /// Its topology, as read.
    pub topology: &'a Topology,
    /// The directory that it is unpacked in, which exists as long as this is kept.
    pub unpacked: &'a Arc<TempDir>,
}

/// Calls `look` with every host that loads; returns their number, or none if the hosts are missing.
pub fn each_shared_host(mut look: impl FnMut(&Recorded<'_>)) -> Option<usize> {
    let shared = shared_hosts()?;
    let mut loaded = 0;
    for dir in ["hwloc", "mpibind", "nri", "synthetic"] {
        for entry in std::fs::read_dir(shared.join(dir)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let scratch = Arc::new(scratch());
            let paths = if name.contains(".tar.") {
                let mut tar = Command::new("tar");
                let status = tar.arg("-xf").arg(&path).arg("-C").arg(scratch.path()).status();
                assert!(status.unwrap().success(), "{name}");
                roots(scratch.path(), 3)
            } else if name.ends_with(".xml") {
                vec![path]
            } else {
                continue;
            };
            for path in &paths {
                if let Ok(topology) = load(path) {
                    loaded += 1;
                    look(&Recorded { name: &name, path, topology: &topology, unpacked: &scratch });
                }
            }
        }
    }
    Some(loaded)
}

/// Every directory that contains a `sys`, down to this depth.
fn roots(dir: &Path, depth: usize) -> Vec<PathBuf> {
    if dir.join("sys").is_dir() {
        return vec![dir.to_owned()];
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return vec![] };
    let below = entries.map(|entry| entry.unwrap().path()).filter(|p| depth > 0 && p.is_dir());
    below.flat_map(|path| roots(&path, depth - 1)).collect()
}
