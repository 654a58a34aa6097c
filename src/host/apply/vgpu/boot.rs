//! Enables virtual functions of GPUs at boot, since neither kernel nor driver keep them: a unit of
//! our own, generated from the list of cards, which it contains. It runs after NVIDIA's vGPU daemons
//! and before libvirt starts guests.

use crate::apply::boot::{BootFile, listed, listing, unit, unit_word, wants};
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use std::collections::BTreeSet;

/// The unit.
pub const UNIT: &str = "etc/systemd/system/gpuvm-vgpu.service";
/// The drop-in that makes the boot start the unit, as a symlink would.
pub const WANTED: &str = "etc/systemd/system/multi-user.target.d/gpuvm-vgpu.conf";
/// The first line of each file.
const HEAD: &str = "# Made by `gpuvm vgpu vfs --on --at-boot`; `gpuvm vgpu vfs PF --off --at-boot` \
                    takes it back.\n";

/// The cards that get their functions at boot.
pub fn cards(root: &FsRoot) -> Result<BTreeSet<Bdf>, FsError> {
    let read = |word: &str| word.parse().ok();
    Ok(listed(root, UNIT, "a PCI address", read)?.into_iter().collect())
}

/// Returns the files, each with its text, or none if it must not exist. `program`: the program that
/// the unit runs.
pub fn files(cards: &BTreeSet<Bdf>, program: &str) -> [BootFile; 2] {
    let words: Vec<String> = cards.iter().map(Bdf::to_string).collect();
    let order = "Description=Enable virtual functions of GPUs for vGPU guests\n\
                 After=nvidia-vgpud.service nvidia-vgpu-mgr.service\n\
                 Before=libvirtd.service virtqemud.service\n";
    let command = format!("{} vgpu vfs --early {}", unit_word(program), words.join(" --early "));
    // The script can leave a card without its driver, and works the next time.
    let again = "Restart=on-failure\nRestartSec=30\n";
    let text = || unit(&listing(HEAD, &words), order, &command) + again;
    let is_wanted = !cards.is_empty();
    let wanted = || wants(HEAD, "gpuvm-vgpu.service");
    [(UNIT, is_wanted.then(text)), (WANTED, is_wanted.then(wanted))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::boot::tests::verified;

    /// Writes the files of these cards below a directory.
    fn put(dir: &std::path::Path, names: &[&str]) -> BTreeSet<Bdf> {
        let cards = names.iter().map(|name| name.parse().unwrap()).collect();
        for (path, text) in files(&cards, "/bin/true") {
            crate::apply::file::set_file(&dir.join(path), text.as_deref()).unwrap();
        }
        cards
    }

    #[test]
    fn written_values_are_read_back_and_removed_without_trace() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!(put(dir.path(), &["3b:00.0", "5e:00.0"]), cards(&root).unwrap());
        let text = root.read(UNIT).unwrap().unwrap();
        let start =
            "\nExecStart=/bin/true vgpu vfs --early 0000:3b:00.0 --early 0000:5e:00.0\nRestart=";
        assert!(text.contains(start), "{text}");
        put(dir.path(), &[]);
        assert!(!root.exists(UNIT) && !root.exists("etc/systemd/system/multi-user.target.d"));
    }

    #[test]
    fn systemd_takes_the_unit() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), &["3b:00.0"]);
        let unit = dir.path().join(UNIT);
        verified(&unit, "gpuvm-vgpu");
    }
}
