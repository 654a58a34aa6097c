//! The admin's declaration whether the guests of a host trust each other. Written by `gpuvm host
//! trust`; accepted only if it is writable by root alone.

use crate::fsroot::{FileKind, FsError, FsRoot};
use gpuvm_core::topology::Trust;
use serde::{Deserialize, Serialize};

/// The file, below the root.
pub const FILE: &str = "etc/gpuvm/trust.json";

/// The first word of the file.
const FORMAT: &str = "gpuvm-trust";
const VERSION: u32 = 1;
/// Permissions that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// [`FORMAT`].
    format: String,
    /// [`VERSION`].
    version: u32,
    guests: Trust,
}

/// Returns the declaration for a host; `None` if there is none.
pub fn trust(root: &FsRoot) -> Result<Option<Trust>, FsError> {
    if root.is_live() {
        // The files of a record belong to whoever made it.
        owned(root, FILE)?;
    }
    let known = (FORMAT, VERSION);
    let file = root.document(FILE, known, |file: &File| (&file.format, file.version))?;
    Ok(file.map(|file| file.guests))
}

/// Refuses a file that others than root may have written, and paths that are not files.
pub fn owned(root: &FsRoot, file: &str) -> Result<(), FsError> {
    let Some(FileKind { uid, mode, .. }) = root.regular(file)? else { return Ok(()) };
    if uid == 0 && mode & OTHERS_WRITE == 0 {
        return Ok(());
    }
    let reason =
        format!("others than root may have written it: it is of user {uid}, mode {mode:04o}");
    Err(root.malformed(file, 1, reason))
}

/// Returns the text of a file with this declaration.
pub fn to_json(guests: Trust) -> String {
    let file = File { format: FORMAT.into(), version: VERSION, guests };
    serde_json::to_string_pretty(&file).expect("the values have only string keys") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_records_are_believed() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!(trust(&root).unwrap(), None);
        std::fs::create_dir_all(dir.path().join("etc/gpuvm")).unwrap();
        let write = |text: &str| std::fs::write(dir.path().join(FILE), text).unwrap();
        for said in [Trust::OneTenant, Trust::Strangers] {
            write(&to_json(said));
            assert_eq!(trust(&root).unwrap(), Some(said));
        }
        let good = to_json(Trust::OneTenant);
        for (text, reason) in [
            ("", "EOF while parsing a value"),
            ("{\n", "EOF while parsing an object"),
            (&good.replace("one-tenant", "friends"), "line 4: unknown variant `friends`"),
            (
                &good.replace(": 1", ": 2"),
                "version 2 is of a newer gpuvm; this one reads version 1",
            ),
            (&good.replace("gpuvm-trust", "other"), "it is `other` version 1"),
            (&good.replace("\"version\"", "\"more\": 1, \"version\""), "unknown field `more`"),
        ] {
            write(text);
            let error = trust(&root).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("etc/gpuvm/trust.json"), "{error}");
        }
        std::fs::remove_file(dir.path().join(FILE)).unwrap();
        nix::unistd::mkfifo(&dir.path().join(FILE), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(trust(&root).is_err());
    }
}
