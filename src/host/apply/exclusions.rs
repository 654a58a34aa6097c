//! Writes the list of excluded GPUs and NVSwitches: atomically. The writer holds the host's lock.

use crate::discover::exclusions::{Entry, FILE, to_json};
use std::fs::{DirBuilder, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The error of writing the list; the old one is unchanged.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", path.display())]
pub struct ExclusionsError {
    path: PathBuf,
    source: io::Error,
}

/// Writes the list below a root directory, that of the machine or a test's.
pub fn write_exclusions(root: &Path, entries: &[Entry]) -> Result<(), ExclusionsError> {
    let path = root.join(FILE);
    replace(&path, &to_json(entries)).map_err(|source| ExclusionsError { path, source })
}

/// Replaces a file: the new one is synced before it takes the name.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    crate::trace::wrote(path);
    std::fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::exclusions::entries;
    use crate::fsroot::FsRoot;

    #[test]
    fn only_the_written_content_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let entry = |bus: u8| Entry {
            bdf: gpuvm_core::bdf::Bdf::new(0, bus, 0, 0).unwrap(),
            uuid: Some("GPU-a".into()),
            reason: "it is loud".into(),
        };
        for list in [vec![entry(1)], vec![entry(1), entry(2)], vec![]] {
            write_exclusions(dir.path(), &list).unwrap();
            assert_eq!(entries(&root).unwrap(), list);
        }
        let folder = dir.path().join("etc/gpuvm");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        let mode = std::fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::write(&folder, "").unwrap();
        let error = write_exclusions(dir.path(), &[]).unwrap_err().to_string();
        assert!(error.contains("etc/gpuvm/excluded.json"), "{error}");
    }
}
