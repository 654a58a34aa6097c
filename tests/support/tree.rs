//! Recorded hosts of `tests/hosts`: one text file per host, unpacked into a directory when a test asks for it. The
//! form is described in `tests/pack-host`.

use super::project;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Directories that were unpacked in this run, by host.
static UNPACKED: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);

/// The text of a recorded host.
pub fn host_text(name: &str) -> String {
    let file = project().join(format!("tests/hosts/{name}.tree"));
    fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// The directory of a recorded host, with `sys` and `proc` in it. It is shared by all tests: nothing may be changed in
/// it.
pub fn host_tree(name: &str) -> PathBuf {
    let mut unpacked = UNPACKED.lock().unwrap();
    let unpacked = unpacked.get_or_insert_default();
    if let Some(dir) = unpacked.get(name) {
        return dir.clone();
    }
    let text = host_text(name);
    let hosts = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hosts");
    fs::create_dir_all(&hosts).unwrap();
    let (dir, stamp) = (hosts.join(name), hosts.join(format!("{name}.unpacked")));
    if fs::read_to_string(&stamp).is_ok_and(|stamp| stamp == text) && dir.is_dir() {
        unpacked.insert(name.to_owned(), dir.clone());
        return dir;
    }
    // Another test program may unpack the same host now: each works on its own, and renaming decides.
    let scratch = tempfile::tempdir_in(&hosts).unwrap();
    unpack(&text, &scratch.path().join("new")).unwrap();
    if dir.is_dir() {
        fs::rename(&dir, scratch.path().join("old")).unwrap();
    }
    fs::rename(scratch.path().join("new"), &dir).unwrap();
    fs::write(&stamp, &text).unwrap();
    unpacked.insert(name.to_owned(), dir.clone());
    dir
}

/// Makes the directory that a recorded host's text describes.
pub fn unpack(text: &str, root: &Path) -> std::io::Result<()> {
    let mut dir = root.to_owned();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(entry) = line.strip_prefix("  ") else {
            if let Some(path) = line.strip_suffix('/').filter(|_| !line.starts_with('#')) {
                dir = root.join(path);
                fs::create_dir_all(&dir)?;
            }
            continue;
        };
        if let Some((name, target)) = entry.split_once(" -> ") {
            std::os::unix::fs::symlink(target, dir.join(name))?;
        } else if let Some((name, value)) = entry.split_once(" =") {
            fs::write(dir.join(name), format!("{}\n", value.strip_prefix(' ').unwrap_or(value)))?;
        } else if let Some(name) = entry.strip_suffix(':') {
            let mut content = String::new();
            let below = |line: &&str| line.is_empty() || line.starts_with("    ");
            while let Some(line) = lines.next_if(below) {
                content.push_str(line.strip_prefix("    ").unwrap_or(line));
                content.push('\n');
            }
            fs::write(dir.join(name), content)?;
        } else {
            return Err(std::io::Error::other(format!("no entry of a recorded host: {line}")));
        }
    }
    Ok(())
}

/// A directory that goes with its value: in memory where the system offers that, since a host has ten thousand files.
pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let in_memory = if memory.is_dir() { tempfile::tempdir_in(memory).ok() } else { None };
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}
