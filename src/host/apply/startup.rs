//! Files and units that start with the machine for guests that do: a unit that finishes interrupted
//! changes, and the order of libvirt's daemons after the resources of their guests. The files that
//! bind functions, make virtual functions and reserve pages declare themselves that they come
//! before these daemons. A file in the place of one of these that is not proven ours is neither
//! written nor removed.

use crate::apply::boot::{BootFile, unit_word, wants};
use crate::apply::error::BindError;
use crate::apply::file;
use crate::apply::made_files::is_recorded;
use crate::apply::{FileStep, Step};
use crate::fsroot::{FsError, FsRoot};
use std::io;
use std::path::{Path, PathBuf};

/// The unit that completes changes interrupted by a power failure.
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
/// the unit runs; `None` if no guest starts with the machine. `installed`: the unit is there
/// already ([`is_installed`]).
pub fn files(program: Option<&str>, installed: bool) -> [BootFile; 4] {
    let recover = |program: &str| format!("{HEAD}{}", unit(program));
    let daemon = || {
        format!(
            "{HEAD}# Guests need their NVLink partition, their functions and their network when \
             they start.\n[Unit]\n\
             After=nvidia-fabricmanager.service gpuvm-vfio.service gpuvm-vfs.service \
             gpuvm-vgpu.service\n"
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

/// A file or directory in the place of a file of ours, which stays.
#[derive(Debug, PartialEq, Eq)]
pub struct Stranger {
    /// The file.
    pub path: PathBuf,
    /// Its kind.
    pub kind: StrangerKind,
}

/// The kind of another's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrangerKind {
    /// A link to /dev/null: the unit is masked (systemctl(1), `mask`), by the administrator or by
    /// the removal of a package.
    Masked,
    /// A file that was made by others.
    Other,
    /// A file that says it is ours and was changed since.
    Changed,
}

/// The steps on [`files`] below a root, `/` but in tests; none for a file that is already so, nor
/// for one that others made, which are returned beside them.
///
/// # Errors
///
/// If a file cannot be read.
pub fn steps(
    root: &Path,
    program: Option<&str>,
    installed: bool,
) -> Result<(Vec<Step>, Vec<Stranger>), BindError> {
    let (mut steps, mut strangers) = (Vec::new(), Vec::new());
    for (place, text) in files(program, installed) {
        let path = root.join(place);
        let failed = |source| BindError::Configuration { path: path.clone(), source };
        match there(place, &path).map_err(failed)? {
            Err(kind) => strangers.push(Stranger { path, kind }),
            Ok(was) if was == text => {}
            Ok(was) => {
                steps.push(FileStep::Set { path, text, was, program: false, kept: true }.into());
            }
        }
    }
    Ok((steps, strangers))
}

/// The text of our file at a path, if there is one; or the kind of another's. Only regular files
/// are opened.
fn there(place: &str, path: &Path) -> io::Result<Result<Option<String>, StrangerKind>> {
    let meta = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ok(None)),
        meta => meta?,
    };
    let is_unit = place == RECOVER;
    if is_unit && meta.is_symlink() && path.read_link()? == Path::new("/dev/null") {
        return Ok(Err(StrangerKind::Masked));
    }
    if !meta.is_file() {
        return Ok(Err(StrangerKind::Other));
    }
    let Some(text) = file::content(path)? else { return Ok(Ok(None)) };
    Ok(if is_recorded(path, &text) || is_as_made(place, &text) {
        Ok(Some(text))
    } else if text.starts_with(HEAD) {
        Err(StrangerKind::Changed)
    } else {
        Err(StrangerKind::Other)
    })
}

/// Whether a text is exactly that of our file, for any program: older versions kept no record.
fn is_as_made(place: &str, text: &str) -> bool {
    // Whatever the program is, the unit has it in this line only.
    let plain = |text: &str| -> Vec<String> {
        let is_command =
            |line: &str| line.starts_with("ExecStart=") && line.ends_with(" --quiet recover");
        let lines = text.lines().map(|line| if is_command(line) { "ExecStart=" } else { line });
        lines.map(str::to_owned).collect()
    };
    let made = files(Some(PACKAGED), false).into_iter().find(|(path, _)| *path == place);
    made.and_then(|(_, made)| made).is_some_and(|made| plain(&made) == plain(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the files below a directory.
    fn put(dir: &Path, program: Option<&str>) {
        for (path, text) in files(program, false) {
            file::set_file(&dir.join(path), text.as_deref()).unwrap();
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

    /// The steps below a directory, written out, and the entries of others there.
    fn planned(dir: &Path, program: Option<&str>, installed: bool) -> (Vec<String>, Vec<Stranger>) {
        let (steps, strangers) = steps(dir, program, installed).unwrap();
        let words = steps.iter().map(|step| step.to_string().replace(dir.to_str().unwrap(), ""));
        (words.collect(), strangers)
    }

    #[test]
    fn only_files_of_ours_are_replaced_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let unit_at = dir.join(RECOVER);
        let write = |text: &str| {
            std::fs::create_dir_all(unit_at.parent().unwrap()).unwrap();
            std::fs::write(&unit_at, text).unwrap();
        };
        let is_kept = |kind| {
            for (program, installed) in [(None, false), (Some(PACKAGED), true), (Some("/x"), false)]
            {
                let (steps, strangers) = planned(dir, program, installed);
                assert!(steps.iter().all(|step| !step.ends_with(RECOVER)), "{kind:?}: {steps:?}");
                assert_eq!(strangers, [Stranger { path: unit_at.clone(), kind }]);
            }
        };
        assert_eq!(planned(dir, Some(PACKAGED), false).0.len(), 4);
        // `systemctl edit --full` copies the packaged one, and then it is the administrator's.
        write(UNIT);
        is_kept(StrangerKind::Other);
        let made = format!("{HEAD}{}", unit(PACKAGED));
        for changed in
            [format!("{made}Nice=5\n"), made.replace("--quiet recover", "recover"), HEAD.into()]
        {
            write(&changed);
            is_kept(StrangerKind::Changed);
        }
        // As made, for this program or another, of which older versions kept no record.
        for program in [PACKAGED, "/usr/local/bin/gpuvm", "/opt/a b/gpuvm"] {
            write(&format!("{HEAD}{}", unit(program)));
            let (steps, strangers) = planned(dir, None, false);
            assert_eq!((steps, strangers), (vec![format!("remove /{RECOVER}")], vec![]));
            let (steps, _) = planned(dir, Some(PACKAGED), true);
            assert!(steps.contains(&format!("remove /{RECOVER}")), "{steps:?}");
        }
    }

    #[test]
    fn a_masked_unit_stays_masked_and_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(RECOVER);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        for (target, kind) in [
            ("/dev/null", StrangerKind::Masked),
            ("/nothing/here", StrangerKind::Other),
            ("/dev/zero", StrangerKind::Other),
        ] {
            std::os::unix::fs::symlink(target, &path).unwrap();
            for (program, others) in [(None, 0), (Some(PACKAGED), 3)] {
                let (steps, strangers) = planned(dir.path(), program, false);
                assert_eq!(steps.len(), others, "{steps:?}");
                assert_eq!(strangers, [Stranger { path: path.clone(), kind }]);
            }
            assert_eq!(path.read_link().unwrap(), Path::new(target));
            std::fs::remove_file(&path).unwrap();
        }
        std::fs::create_dir(&path).unwrap();
        let (_, strangers) = planned(dir.path(), None, false);
        assert_eq!(strangers, [Stranger { path, kind: StrangerKind::Other }]);
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
