//! What starts with the machine for guests that do: a unit that finishes interrupted changes, and
//! the order of libvirt's daemons after what their guests need. The files that bind functions, make
//! virtual functions and reserve pages say themselves that they come before these daemons.

use crate::apply::boot::{BootFile, unit, unit_word, wants};

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

/// Returns the files, each with its text, or none if it must not exist. `program`: the program that
/// the unit runs; none: no guest starts with the machine.
pub fn files(program: Option<&str>) -> [BootFile; 4] {
    let recover = |program: &str| {
        // Guests that are half made are known to libvirt only.
        let order = "Description=Finish or undo interrupted changes of guests\n\
                     ConditionDirectoryNotEmpty=/var/lib/gpuvm/journal\n\
                     After=libvirtd.service virtqemud.service virtnetworkd.service \
                     virtstoraged.service\n\
                     After=nvidia-fabricmanager.service gpuvm-vfio.service gpuvm-vfs.service\n";
        unit(HEAD, order, &format!("{} --quiet recover", unit_word(program)))
    };
    let daemon = || {
        format!(
            "{HEAD}# Guests need their NVLink partition, their functions and their network when \
             they start.\n[Unit]\n\
             After=nvidia-fabricmanager.service gpuvm-vfio.service gpuvm-vfs.service\n"
        )
    };
    let is_wanted = program.is_some();
    [
        (RECOVER, program.map(recover)),
        (WANTED, is_wanted.then(|| wants(HEAD, "gpuvm-recover.service"))),
        (DAEMONS[0], is_wanted.then(daemon)),
        (DAEMONS[1], is_wanted.then(daemon)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fsroot::FsRoot;

    /// Writes the files below a directory.
    fn put(dir: &std::path::Path, program: Option<&str>) {
        for (path, text) in files(program) {
            crate::apply::file::set_file(&dir.join(path), text.as_deref()).unwrap();
        }
    }

    #[test]
    fn they_come_and_go_without_trace() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        put(dir.path(), Some("/usr/bin/gpuvm"));
        let text = root.read(RECOVER).unwrap().unwrap();
        assert!(text.ends_with("\nExecStart=/usr/bin/gpuvm --quiet recover"), "{text}");
        assert!(DAEMONS.iter().all(|path| root.exists(path)) && root.exists(WANTED));
        put(dir.path(), None);
        assert!(!root.exists(RECOVER) && !root.exists("etc/systemd/system/libvirtd.service.d"));
    }

    #[test]
    fn a_program_with_a_space_in_its_path_is_one_word() {
        let [(_, recover), ..] = files(Some("/opt/a b/gpuvm"));
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
