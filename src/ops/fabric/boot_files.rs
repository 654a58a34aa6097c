//! The files that activate partitions without gpuvm's verbs: libvirt's hook, for guests started by
//! others, and the drop-in of Fabric Manager's unit, for its restarts. A file of that name that we
//! did not make is left alone: its own claim does not make it ours.

use crate::apply::boot::unit_word;
use crate::apply::made_files::is_recorded;
use crate::apply::text::TextStep;
use crate::apply::{FileStep, Step};
use crate::error::{Coded, Error, Result};
use crate::files::configuration;
use crate::world::World;
use gpuvm_core::shell::word;
use gpuvm_core::versions::Version;
use gpuvm_host::fabric::config;
use serde::Serialize;
use std::path::Path;

/// libvirt's hook; the directory is read since libvirt 6.5 (libvirt.org/hooks.html).
pub const HOOK: &str = "/etc/libvirt/hooks/qemu.d/50-gpuvm";
/// The first libvirt that reads it (libvirt.org/hooks.html).
const HOOK_SINCE: Version = Version(6, 5, 0);
/// The drop-in of Fabric Manager's unit.
pub const UNIT: &str = "/etc/systemd/system/nvidia-fabricmanager.service.d/50-gpuvm.conf";
/// The command of Fabric Manager's start, by the drop-in and by the packages' gpuvm-fabric.service.
const RESTORE: &str = "fabric restore --boot";
/// The path of Fabric Manager's state with it; systemd makes the directory, by the drop-in.
pub const STATE: &str = "/var/lib/nvidia-fabricmanager/fabricmanager.state";
/// The start of the hook's second line and the drop-in's first.
const MARK: &str = "# Made by gpuvm: ";

/// The reason a file is not installed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "fabric-file-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum BootFileError {
    /// A file of that name was made by others, or was changed.
    #[error("{path} was not made by gpuvm, or was changed since, so it is left as it is")]
    #[strum(to_string = "not-ours")]
    NotOurs { path: String },
    /// The hook would never be called.
    #[error("libvirt {found} does not read {HOOK}: this needs version {HOOK_SINCE} or later")]
    #[strum(to_string = "old-libvirt")]
    OldLibvirt { found: Version },
    /// Fabric Manager's configuration does not exist.
    #[error("{path} does not exist")]
    #[strum(to_string = "no-config")]
    NoConfig { path: String },
}

impl Coded for BootFileError {}

/// A file that gpuvm would install.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FabricFile {
    /// Where it belongs.
    pub path: &'static str,
    /// Its text.
    pub text: String,
    /// Whether it exists with this text.
    pub installed: bool,
}

/// The hook; `program`: the path of gpuvm.
pub fn hook(program: &str) -> Result<FabricFile> {
    let program = word(program);
    let text = format!(
        "#!/bin/sh\n\
         {MARK}`gpuvm fabric hook --install`; `gpuvm fabric hook --remove` takes it away.\n\
         # libvirt runs it as: hook GUEST OPERATION SUBOPERATION EXTRA <XML. Its output is never \
         read as XML.\n\
         case \"$2/$3\" in\n\
         prepare/begin) verb=ensure ;;\n\
         release/end) verb=release ;;\n\
         *) exit 0 ;;\n\
         esac\n\
         if [ ! -x {program} ]; then\n\
         \tcase \"$(cat)\" in *'<hostdev'*) ;; *) exit 0 ;; esac\n\
         \techo \"gpuvm is gone: no NVLink partition for $1; remove {HOOK}\" >&2\n\
         \texit 1\n\
         fi\n\
         exec {program} --quiet fabric \"$verb\" --stdin >/dev/null\n"
    );
    shown(HOOK, text)
}

/// Refuses the hook if libvirt is known to be too old to call it; an unreachable one may be new
/// enough.
pub fn refuse_old_libvirt(world: &World) -> Result<()> {
    let version = world.hypervisor().ok().and_then(|hypervisor| hypervisor.versions().libvirt);
    match too_old(version) {
        Some(error) => Err(error.hint("`gpuvm start NAME` activates partitions without the hook")),
        None => Ok(()),
    }
}

/// The error of a libvirt that does not read the hook.
fn too_old(version: Option<Version>) -> Option<BootFileError> {
    let found = version.filter(|found| *found < HOOK_SINCE)?;
    Some(BootFileError::OldLibvirt { found })
}

/// The drop-in of Fabric Manager's unit; `program`: the path of gpuvm.
pub fn unit(program: &str) -> Result<FabricFile> {
    let text = format!(
        "{MARK}`gpuvm fabric unit --install`; `gpuvm fabric unit --remove` takes it away.\n\
         [Service]\n\
         StateDirectory=nvidia-fabricmanager\n\
         # Whatever becomes of guests, Fabric Manager goes on.\n\
         ExecStartPost=-{} {RESTORE}\n",
        unit_word(program)
    );
    shown(UNIT, text)
}

/// Returns a file with whether it is installed.
fn shown(path: &'static str, text: String) -> Result<FabricFile> {
    let installed = read(path).ok().flatten().as_ref() == Some(&text);
    Ok(FabricFile { path, text, installed })
}

/// Reads a file; `None` if it is missing. A dangling link belongs to others.
fn read(path: &str) -> Result<Option<String>> {
    match configuration(Path::new(path))? {
        None if Path::new(path).is_symlink() => Err(not_ours(path)),
        read => Ok(read),
    }
}

/// Whether the existing file is the one that we made. Older versions kept no record: their file is
/// ours if it is a plain file with our mark and exactly the expected content.
fn is_ours(file: &FabricFile, was: &str) -> bool {
    let path = Path::new(file.path);
    let is_plain = || path.symlink_metadata().is_ok_and(|meta| meta.is_file());
    let says_so = || was.lines().take(2).any(|line| line.starts_with(MARK));
    is_recorded(path, was) || (says_so() && was == file.text && is_plain())
}

/// The error that a file stays as it is, with the way out.
fn not_ours(path: &str) -> Error {
    let file = word(path);
    let error = BootFileError::NotOurs { path: path.into() };
    let show = if Path::new(path).is_symlink() { "ls -l" } else { "cat" };
    error.hint(format!("`{show} {file}` shows it; `mv {file} {file}.old` puts it away"))
}

/// Returns the steps that install or (`remove`) remove a file; none if already so.
pub fn steps(file: &FabricFile, remove: bool) -> Result<Vec<Step>> {
    let was = read(file.path)?;
    if was.as_ref().is_some_and(|was| !is_ours(file, was)) {
        return Err(not_ours(file.path));
    }
    let text = (!remove).then(|| file.text.clone());
    if text == was {
        return Ok(Vec::new());
    }
    let program = file.path == HOOK;
    Ok(vec![Step::File(FileStep::Set { path: file.path.into(), text, was, program, kept: true })])
}

/// Returns the steps that move Fabric Manager's state to a directory that is never cleaned, after
/// copying its file; with the changed lines. None unless it is below /tmp. A copy that is there and
/// not ours is left alone.
pub fn config_steps() -> Result<(Vec<Step>, Vec<String>)> {
    let path = Path::new("/").join(config::PATH);
    let Some(before) = read(&path.to_string_lossy())? else {
        let error = BootFileError::NoConfig { path: path.display().to_string() };
        return Err(error.hint("it comes with Fabric Manager; is nvidia-fabricmanager installed?"));
    };
    let Some((after, lines)) = config::with_state_file(&before, STATE) else {
        return Ok((Vec::new(), Vec::new()));
    };
    let copy = format!("{}.before-gpuvm", path.display());
    let was = read(&copy)?;
    let mut steps = Vec::new();
    if was.as_ref() != Some(&before) {
        if was.as_ref().is_some_and(|was| !is_recorded(Path::new(&copy), was)) {
            return Err(not_ours(&copy));
        }
        let (path, text) = (copy.into(), Some(before.clone()));
        steps.push(FileStep::Set { path, text, was, program: false, kept: true }.into());
    }
    let what = "have Fabric Manager keep its state in /var/lib".to_owned();
    steps.push(TextStep { path, before, after, what }.into());
    Ok((steps, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_quoted_as_systemd_reads_it() {
        for (path, wanted) in [
            ("/usr/bin/gpuvm", "/usr/bin/gpuvm"),
            ("/opt/a b/gpuvm", "\"/opt/a b/gpuvm\""),
            ("/opt/it's/gpuvm", "\"/opt/it's/gpuvm\""),
            ("/opt/50%\"/g\\", "\"/opt/50%%\\\"/g\\\\\""),
        ] {
            assert_eq!(unit_word(path), wanted);
            let text = unit(path).unwrap().text;
            assert!(text.contains(&format!("ExecStartPost=-{wanted} fabric restore")), "{text}");
        }
    }

    /// The unit of the packages has the effect of the drop-in, and only where that is missing.
    #[test]
    fn the_packaged_unit_agrees_with_the_drop_in() {
        let packaged = include_str!("../../packaging/units/gpuvm-fabric.service");
        let has = |line: &str| assert!(packaged.lines().any(|l| l == line), "{line}: {packaged}");
        has(&format!("ExecStart=/usr/bin/gpuvm {RESTORE}"));
        has(&format!("ConditionPathExists=!{UNIT}"));
    }

    #[test]
    fn a_link_to_a_file_that_is_not_there_is_not_ours() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("50-gpuvm");
        let name = path.to_str().unwrap();
        assert_eq!(read(name).unwrap(), None);
        std::os::unix::fs::symlink("gone", &path).unwrap();
        let error = read(name).unwrap_err().to_string();
        assert!(error.ends_with("was changed since, so it is left as it is"), "{error}");
    }

    #[test]
    fn a_libvirt_that_calls_no_hook_is_refused() {
        let old = too_old(Some(Version(6, 4, 9))).unwrap();
        assert!(old.to_string().starts_with("libvirt 6.4.9 does not read /etc/libvirt"), "{old}");
        for version in [None, Some(Version(6, 5, 0)), Some(Version(11, 3, 0))] {
            assert!(too_old(version).is_none(), "{version:?}");
        }
    }
}
