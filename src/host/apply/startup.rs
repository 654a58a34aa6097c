//! What starts with the machine for guests that do: a unit that finishes interrupted changes, and
//! the order of libvirt's daemons after what their guests need. The files that bind functions, make
//! virtual functions and reserve pages say themselves that they come before these daemons.

use crate::apply::boot::{BootFile, unit_word, wants};
use crate::fsroot::{FsError, FsRoot};

/// The unit that finishes what was interrupted when the power failed.
pub const RECOVER: &str = "etc/systemd/system/gpuvm-recover.service";
/// The drop-in that makes the boot start it, as a symlink would.
pub const WANTED: &str = "etc/systemd/system/multi-user.target.d/gpuvm-recover.conf";
/// The drop-ins of libvirt's daemons: of the one that does everything, and of the one for QEMU
/// alone.
pub const DAEMONS: [&str; 2] = [
    "etc/systemd/system/libvirtd.service.d/gpuvm.conf",
    "etc/systemd/system/virtqemud.service.d/gpuvm.conf",
];
/// The first line of each file.
const HEAD: &str = "# Made by `gpuvm autostart NAME on`; `gpuvm autostart NAME off` of the last \
                    guest takes it back.\n";
/// The unit as packages have it.
const UNIT: &str = include_str!("../../packaging/units/gpuvm-recover.service");
/// The program that it runs.
const PACKAGED: &str = "/usr/bin/gpuvm";
/// The places of units that packages and `make install` bring (systemd.unit(5)).
const INSTALLED: [&str; 3] = [
    "usr/local/lib/systemd/system/gpuvm-recover.service",
    "usr/lib/systemd/system/gpuvm-recover.service",
    "lib/systemd/system/gpuvm-recover.service",
];

/// Whether an installed unit already is the one that runs `program`: a second one is not made.
///
/// # Errors
///
/// If an installed unit cannot be read.
pub fn is_installed(root: &FsRoot, program: &str) -> Result<bool, FsError> {
    let wanted = unit(program);
    for place in INSTALLED {
        // The first one counts, as for systemd.
        if let Some(text) = root.read(place)? {
            return Ok(text.trim_end() == wanted.trim_end());
        }
    }
    Ok(false)
}

/// The unit for a program.
fn unit(program: &str) -> String {
    UNIT.replace(PACKAGED, &unit_word(program))
}

/// Returns the files, each with its text, or none if it must not exist. `program`: the program that
/// the unit runs; none: no guest starts with the machine. `installed`: the unit is there already
/// ([`is_installed`]).
pub fn files(program: Option<&str>, installed: bool) -> [BootFile; 4] {
    let recover = |program: &str| format!("{HEAD}{}", unit(program));
    let daemon = || {
        format!(
            "{HEAD}# Guests need their NVLink partition, their functions and their network when \
             they start.\n[Unit]\n\
             After=nvidia-fabricmanager.service gpuvm-vfio.service gpuvm-vfs.service\n"
        )
    };
    let is_wanted = program.is_some();
    [
        (RECOVER, program.filter(|_| !installed).map(recover)),
        (WANTED, is_wanted.then(|| wants(HEAD, "gpuvm-recover.service"))),
        (DAEMONS[0], is_wanted.then(daemon)),
        (DAEMONS[1], is_wanted.then(daemon)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the files below a directory.
    fn put(dir: &std::path::Path, program: Option<&str>) {
        for (path, text) in files(program, false) {
            crate::apply::file::set_file(&dir.join(path), text.as_deref()).unwrap();
        }
    }

    #[test]
    fn they_come_and_go_without_trace() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        put(dir.path(), Some("/usr/bin/gpuvm"));
        let text = root.read(RECOVER).unwrap().unwrap();
        assert!(text.contains("\nExecStart=/usr/bin/gpuvm --quiet recover\n"), "{text}");
        assert!(DAEMONS.iter().all(|path| root.exists(path)) && root.exists(WANTED));
        put(dir.path(), None);
        assert!(!root.exists(RECOVER) && !root.exists("etc/systemd/system/libvirtd.service.d"));
    }

    #[test]
    fn an_installed_unit_of_the_same_program_is_not_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let installed = |program| is_installed(&root, program).unwrap();
        assert!(!installed(PACKAGED));
        let place = dir.path().join(INSTALLED[1]);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, UNIT).unwrap();
        assert!(installed(PACKAGED) && !installed("/usr/local/bin/gpuvm"));
        // An older one in a place that systemd reads first.
        let first = dir.path().join(INSTALLED[0]);
        std::fs::create_dir_all(first.parent().unwrap()).unwrap();
        std::fs::write(&first, UNIT.replace("--quiet recover", "recover")).unwrap();
        assert!(!installed(PACKAGED));
        let made = files(Some(PACKAGED), true).map(|(path, text)| (path, text.is_some()));
        assert_eq!(made.map(|(_, made)| made), [false, true, true, true]);
    }

    #[test]
    fn a_program_with_a_space_in_its_path_is_one_word() {
        let [(_, recover), ..] = files(Some("/opt/a b/gpuvm"), false);
        let text = recover.unwrap();
        assert!(text.contains("\nExecStart=\"/opt/a b/gpuvm\" --quiet recover\n"), "{text}");
    }

    #[test]
    fn systemd_takes_the_unit() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), Some("/bin/true"));
        let mut verify = crate::program::command("systemd-analyze");
        match verify.args(["verify", "--man=no"]).arg(dir.path().join(RECOVER)).output() {
            Err(error) => crate::skip::skip(format!("systemd-analyze: {error}")),
            Ok(done) => {
                let said = String::from_utf8_lossy(&done.stderr).into_owned();
                let ours = said.lines().filter(|line| line.contains("gpuvm-recover")).count();
                assert!(done.status.success() && ours == 0, "{said}");
            }
        }
    }
}
