//! Restores ports of guests that libvirt starts at boot, which pass no gpuvm: a unit of our own that
//! runs once libvirt's daemon has started them.

use crate::apply::boot::{BootFile, unit, unit_word, wants};

/// The unit.
pub const UNIT: &str = "etc/systemd/system/gpuvm-p2p.service";
/// The drop-in that makes the boot start the unit, as a symlink would.
pub const WANTED: &str = "etc/systemd/system/multi-user.target.d/gpuvm-p2p.conf";
/// The first line of each file.
const HEAD: &str = "# Made by `gpuvm host p2p restore --at-boot`; `gpuvm host p2p restore --at-boot \
                    --remove` removes it.\n";

/// Returns the files, each with its text, or none if it must not exist. `program`: the program that
/// the unit runs; `None` to remove the files.
pub fn files(program: Option<&str>) -> [BootFile; 2] {
    // libvirt answers once it has started the guests of the boot.
    let order = "Description=Set bits for direct transfers at PCIe ports of GPU guests\n\
                 After=libvirtd.service virtqemud.service gpuvm-recover.service\n";
    let command = |program| format!("{} host p2p restore --lock-wait 600", unit_word(program));
    let text = program.map(|program| unit(HEAD, order, &command(program)));
    let wanted = program.map(|_| wants(HEAD, "gpuvm-p2p.service"));
    [(UNIT, text), (WANTED, wanted)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::boot::tests::verified;
    use std::path::Path;

    fn put(dir: &Path, program: Option<&str>) {
        for (path, text) in files(program) {
            crate::apply::file::set_file(&dir.join(path), text.as_deref()).unwrap();
        }
    }

    #[test]
    fn systemd_takes_the_unit_and_its_removal_leaves_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), Some("/bin/true"));
        let unit = dir.path().join(UNIT);
        let text = std::fs::read_to_string(&unit).unwrap();
        assert!(
            text.contains("\nExecStart=/bin/true host p2p restore --lock-wait 600\n"),
            "{text}"
        );
        verified(&unit, "gpuvm-p2p");
        put(dir.path(), None);
        assert!(!unit.exists() && !dir.path().join(WANTED).parent().unwrap().exists());
    }
}
