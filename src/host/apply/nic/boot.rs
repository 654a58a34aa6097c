//! Recreates virtual functions at boot, since the kernel does not keep their number: a unit of our
//! own, generated from the list of PFs, which it contains. It runs once the network devices have
//! their names and before libvirt starts guests.

use crate::apply::boot::{BootFile, listed, listing, unit, unit_word, wants};
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::DeviceIdentity;
use std::collections::BTreeMap;

/// The unit.
pub const UNIT: &str = "etc/systemd/system/gpuvm-vfs.service";
/// The drop-in that makes the boot start the unit, as a symlink would.
pub const WANTED: &str = "etc/systemd/system/multi-user.target.d/gpuvm-vfs.conf";
/// The first line of each file.
const HEAD: &str =
    "# Made by `gpuvm nic vfs --at-boot`; `gpuvm nic vfs PF --count 0 --at-boot` takes it back.\n";

/// The setup of a PF at boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtBoot {
    /// Its identity, so that another device at its address is not mistaken for it.
    pub id: DeviceIdentity,
    /// How many virtual functions.
    pub count: u32,
    /// Whether drivers of the host take them.
    pub host_drivers: bool,
}

impl AtBoot {
    /// Formats it with its address: `0000:86:00.0=15b3:1017=16`, with `=host` where drivers of the
    /// host take them.
    pub fn word(&self, pf: Bdf) -> String {
        let host = if self.host_drivers { "=host" } else { "" };
        format!("{pf}={}={}{host}", String::from(self.id.clone()), self.count)
    }

    /// Parses that form.
    pub fn parse(word: &str) -> Option<(Bdf, AtBoot)> {
        let (pf, rest) = word.split_once('=')?;
        let (rest, host_drivers) = match rest.strip_suffix("=host") {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let (id, count) = rest.rsplit_once('=')?;
        let at_boot = AtBoot { id: id.parse().ok()?, count: count.parse().ok()?, host_drivers };
        Some((pf.parse().ok()?, at_boot))
    }
}

/// The PFs that get virtual functions at boot.
pub fn functions(root: &FsRoot) -> Result<BTreeMap<Bdf, AtBoot>, FsError> {
    Ok(listed(root, UNIT, "BDF=ID=COUNT", AtBoot::parse)?.into_iter().collect())
}

/// Returns the files, each with its text, or none if it must not exist. `program`: the program that
/// the unit runs.
pub fn files(functions: &BTreeMap<Bdf, AtBoot>, program: &str) -> [BootFile; 2] {
    let words: Vec<String> = functions.iter().map(|(pf, at_boot)| at_boot.word(*pf)).collect();
    let order = "Description=Make virtual functions of network cards for \
                 guests\nAfter=network.target\n\
                 Before=libvirtd.service virtqemud.service virtnetworkd.service\n";
    let command = format!("{} nic vfs --early {}", unit_word(program), words.join(" --early "));
    let text = || unit(&listing(HEAD, &words), order, &command);
    let is_wanted = !functions.is_empty();
    let wanted = || wants(HEAD, "gpuvm-vfs.service");
    [(UNIT, is_wanted.then(text)), (WANTED, is_wanted.then(wanted))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::boot::tests::verified;

    /// Writes the files of these PFs below a directory.
    fn put(dir: &std::path::Path, words: &[&str]) -> BTreeMap<Bdf, AtBoot> {
        let functions = words.iter().map(|word| AtBoot::parse(word).unwrap()).collect();
        for (path, text) in files(&functions, "/bin/true") {
            crate::apply::file::set_file(&dir.join(path), text.as_deref()).unwrap();
        }
        functions
    }

    #[test]
    fn written_values_are_read_back_and_removed_without_trace() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let words =
            ["0000:86:00.0=15b3:1017=16", "0000:86:00.1=15b3:1017:15b3:0001=mac:b8+3A59=4=host"];
        assert_eq!(put(dir.path(), &words), functions(&root).unwrap());
        let text = root.read(UNIT).unwrap().unwrap();
        let start =
            "\nExecStart=/bin/true nic vfs --early 0000:86:00.0=15b3:1017=16 --early 0000:86:00.1=";
        assert!(text.contains(start), "{text}");
        put(dir.path(), &[]);
        assert!(!root.exists(UNIT) && !root.exists("etc/systemd/system/multi-user.target.d"));
        let bad = ["", "86:00.0", "86:00.0=15b3:1017=x", "86:00.0=15b3:1017=1=guest"];
        for bad in bad.into_iter().chain(["x=15b3:1017=1", "86:00.0=a:b=1"]) {
            assert!(AtBoot::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn systemd_takes_the_unit() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), &["0000:86:00.0=15b3:1017=16"]);
        let unit = dir.path().join(UNIT);
        verified(&unit, "gpuvm-vfs");
    }

    #[test]
    fn a_damaged_list_is_an_error_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let unit = dir.path().join(UNIT);
        crate::apply::file::set_file(&unit, Some("#\n# Functions: 86:00.0\n")).unwrap();
        let error = functions(&root).unwrap_err().to_string();
        assert!(
            error.contains("gpuvm-vfs.service line 2: `86:00.0` is not BDF=ID=COUNT"),
            "{error}"
        );
    }
}
