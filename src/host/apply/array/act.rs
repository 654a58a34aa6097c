//! Performs steps on arrays and file systems: replaces files of /etc, and runs mdadm and
//! util-linux.

use super::{ArrayError, Assembly, CommandError, Mounting, output};
use crate::discover::facts::boot::initramfs_tool;
use crate::discover::hung_mounts::unescaped;
use crate::discover::node::kernel_name;
use crate::discover::released::{FileSystem, Released, plain};
use crate::discover::signatures::foreign;
use crate::fsroot::{FsRoot, readable};
use gpuvm_core::topology::facts::InitramfsTool;
use std::fs;
use std::path::{Path, PathBuf};

/// Time limit of mdadm in seconds: stopping waits for writes under way.
const MDADM_S: u64 = 120;
/// Time limit of mounting and unmounting in seconds: cached data is written first.
const MOUNT_S: u64 = 900;
/// Time limit of making a file system in seconds: drives without discard are written in part.
const MKFS_S: u64 = 3600;
/// Time limit of rebuilding the initramfs of every kernel, in seconds.
const INITRAMFS_S: u64 = 1800;

/// Makes systemd regenerate its units from fstab, since an outdated unit would mount the file
/// system again.
pub(super) fn reload_units() -> Result<(), ArrayError> {
    if Path::new("/run/systemd/system").is_dir() {
        output(&["systemctl", "daemon-reload"], MDADM_S)?;
    }
    Ok(())
}

/// Whether the file system is mounted on its mount point, the last one that was mounted there.
fn is_mounted(mounting: &Mounting) -> bool {
    is_mounted_by(&fs::read("/proc/self/mounts").unwrap_or_default(), mounting)
}

/// The same by this list of mounts, in which others chose names of any bytes.
fn is_mounted_by(mounts: &[u8], mounting: &Mounting) -> bool {
    let text = readable(mounts);
    let mut all = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((unescaped(words.next()?), unescaped(words.next()?)))
    });
    let last = all.rfind(|(_, at)| *at == mounting.at);
    let real = |path: &str| Path::new(path).canonicalize().ok();
    last.is_some_and(|(source, _)| {
        source == mounting.device
            || (real(&source).is_some() && real(&source) == real(&mounting.device))
    })
}

/// Unmounts, unless it is not mounted. Never lazily: a file system in use stays mounted.
pub(super) fn unmount(mounting: &Mounting) -> Result<(), ArrayError> {
    if is_mounted(mounting) {
        output(&["umount", "--", &mounting.at], MOUNT_S)?;
    }
    Ok(())
}

pub(super) fn mount(mounting: &Mounting) -> Result<(), ArrayError> {
    let Mounting { device, at, kind, options } = mounting;
    if !is_mounted(mounting) {
        output(&["mount", "-t", kind, "-o", options, "--", device, at], MOUNT_S)?;
    }
    Ok(())
}

/// Returns the directory of the members of this device's array.
fn slaves(device: &str) -> Option<PathBuf> {
    kernel_name(Path::new(device))
        .map(|name| Path::new("/sys/class/block").join(name).join("slaves"))
}

/// Whether an array of this device runs; its members are held then.
fn runs(device: &str) -> bool {
    slaves(device)
        .and_then(|dir| fs::read_dir(dir).ok())
        .is_some_and(|mut slaves| slaves.next().is_some())
}

/// Whether a drive is in an array.
fn is_member(device: &str, member: &str) -> bool {
    let link = slaves(device).zip(kernel_name(Path::new(member))).map(|(dir, name)| dir.join(name));
    link.is_some_and(|link| link.exists())
}

/// Refuses a device that is not proven to be the array of this UUID: array names are reassigned at
/// each boot.
pub(super) fn prove(device: &str, uuid: &str) -> Result<(), ArrayError> {
    if uuid.is_empty() {
        return Err(ArrayError::Unproven { device: device.to_owned() });
    }
    let detail = output(&["mdadm", "--detail", "--export", device], MDADM_S)?;
    let found = detail.lines().find_map(|line| line.strip_prefix("MD_UUID=")).unwrap_or("unknown");
    if plain(found) == plain(uuid) {
        return Ok(());
    }
    let seen = format!("its UUID is {found}, not {uuid}");
    Err(ArrayError::OtherArray { device: device.to_owned(), seen })
}

/// Stops an array, unless it does not run.
pub(super) fn stop(assembly: &Assembly) -> Result<(), ArrayError> {
    if runs(&assembly.device) {
        prove(&assembly.device, &assembly.uuid)?;
        output(&["mdadm", "--stop", &assembly.device], MDADM_S)?;
        settle();
    }
    Ok(())
}

/// Assembles an array, unless it runs. mdadm's configuration is left out: it may say that the array
/// is to be ignored.
pub(super) fn assemble(assembly: &Assembly) -> Result<(), ArrayError> {
    let Assembly { device, uuid, members, degraded } = assembly;
    if !runs(device) {
        let uuid = format!("--uuid={uuid}");
        let mut argv = vec!["mdadm", "--assemble", "--config=none", device, &uuid];
        argv.extend(degraded.then_some("--run"));
        argv.extend(members.iter().map(String::as_str));
        output(&argv, MDADM_S)?;
        settle();
    }
    Ok(())
}

/// Refuses a drive with content that was not known when its overwriting was planned.
fn refuse_foreign(member: &str, uuid: &str, known: Option<&[String]>) -> Result<(), ArrayError> {
    let known = known.unwrap_or_default();
    let phrases = foreign(Path::new(member), uuid).says(member);
    match phrases.into_iter().find(|phrase| !known.contains(phrase)) {
        None => Ok(()),
        Some(found) => Err(ArrayError::Become { found }),
    }
}

/// Adds drives to an array, unless they are in it.
pub(super) fn add(
    device: &str,
    members: &[String],
    known: Option<&[String]>,
    uuid: &str,
) -> Result<(), ArrayError> {
    for member in members {
        if is_member(device, member) {
            continue;
        }
        prove(device, uuid)?;
        refuse_foreign(member, uuid, known)?;
        output(&["wipefs", "--all", "--quiet", member], MDADM_S)?;
        output(&["mdadm", "--manage", device, "--add", member], MDADM_S)?;
    }
    settle();
    Ok(())
}

/// Recreates an array with its former UUID, name and layout, so that the lines of mdadm.conf apply
/// again; unless an interrupted run has made it.
pub(super) fn create(
    device: &str,
    array: &Released,
    known: Option<&[String]>,
) -> Result<(), ArrayError> {
    if runs(device) {
        let detail = output(&["mdadm", "--detail", "--export", device], MDADM_S)?;
        let found = detail.lines().find_map(|line| line.strip_prefix("MD_UUID="));
        if found.map(plain) == Some(plain(&array.uuid)) {
            return Ok(());
        }
    }
    let count = array.members.len().to_string();
    let mut argv: Vec<String> =
        ["mdadm", "--create", device, "--run", "--level", &array.level].map(str::to_owned).into();
    argv.extend([format!("--metadata={}", array.metadata), format!("--uuid={}", array.uuid)]);
    // Only superblocks of version 1 have a name; it is prefixed by the host's name.
    if let Some(name) = array.md_name.as_ref().filter(|_| array.metadata.starts_with("1.")) {
        let (host, name) = name.split_once(':').unwrap_or(("any", name));
        argv.extend([format!("--homehost={host}"), format!("--name={name}")]);
    }
    argv.extend(array.layout.iter().map(|layout| format!("--layout={layout}")));
    argv.extend(array.chunk_bytes.iter().map(|chunk| format!("--chunk={}K", chunk / 1024)));
    argv.push(format!("--raid-devices={count}"));
    argv.extend(array.members.iter().map(|member| member.id.clone()));
    for member in &array.members {
        refuse_foreign(&member.id, &array.uuid, known)?;
    }
    // Remains of a guest, such as a partition table, would be detected besides the array.
    for member in &array.members {
        output(&["wipefs", "--all", "--quiet", &member.id], MDADM_S)?;
    }
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    output(&argv, MDADM_S)?;
    settle();
    Ok(())
}

/// Makes a file system with its former UUID and label, so that the lines of fstab apply again.
pub(super) fn make(device: &str, file_system: &FileSystem) -> Result<(), ArrayError> {
    let FileSystem { kind, uuid, label } = file_system;
    let uuid = uuid.as_deref().unwrap_or_default();
    let label = label.as_deref().unwrap_or_default();
    let program = format!("mkfs.{kind}");
    let xfs_uuid = format!("uuid={uuid}");
    let mut argv = vec![program.as_str()];
    let (force, uuid_flag) = match kind.as_str() {
        "ext2" | "ext3" | "ext4" => (["-q", "-F"].as_slice(), ["-U", uuid]),
        "xfs" => (["-q", "-f"].as_slice(), ["-m", xfs_uuid.as_str()]),
        "btrfs" => (["-q", "-f"].as_slice(), ["-U", uuid]),
        _ => return Err(ArrayError::UnknownKind { kind: kind.clone() }),
    };
    argv.extend(force);
    argv.extend(uuid_flag.into_iter().filter(|_| !uuid.is_empty()));
    argv.extend(["-L", label].into_iter().filter(|_| !label.is_empty()));
    argv.push(device);
    output(&argv, MKFS_S)?;
    settle();
    Ok(())
}

/// Kinds of file systems that [`super::ArrayStep::MakeFileSystem`] makes.
pub fn can_make(kind: &str) -> bool {
    matches!(kind, "ext2" | "ext3" | "ext4" | "xfs" | "btrfs")
}

/// Refuses a device that holds another file system, or none.
pub(super) fn check(device: &str, wanted: &FileSystem) -> Result<(), ArrayError> {
    let found = signature(device)?;
    let same_uuid = |a: &str, b: &str| plain(a) == plain(b);
    let is_same = found.as_ref().is_some_and(|found| {
        found.kind == wanted.kind
            && match (&found.uuid, &wanted.uuid) {
                (Some(found), Some(wanted)) => same_uuid(found, wanted),
                (_, wanted) => wanted.is_none(),
            }
    });
    if is_same {
        return Ok(());
    }
    let found = found.map_or_else(|| "nothing that is known".to_owned(), |found| words(&found));
    Err(ArrayError::OtherContent { device: device.to_owned(), found, wanted: words(wanted) })
}

/// Returns blkid's findings on a device; `None` if it knows none. Needs permission to read the
/// device.
pub fn signature(device: &str) -> Result<Option<FileSystem>, CommandError> {
    let text = match output(&["blkid", "--probe", "--output", "export", device], MDADM_S) {
        // Nothing, or several contradictory signatures.
        Err(CommandError::Failed { status: Some(2 | 8), .. }) => return Ok(None),
        text => text?,
    };
    let value = |key: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        found.map(|value| value.replace("\\ ", " "))
    };
    Ok(value("TYPE").map(|kind| FileSystem { kind, uuid: value("UUID"), label: value("LABEL") }))
}

/// Waits until udev has processed the changes, so that links and its database match the devices;
/// without udev there is nothing to wait for.
fn settle() {
    let _ = output(&["udevadm", "settle", "--timeout=30"], 60);
}

pub(super) fn words(file_system: &FileSystem) -> String {
    match &file_system.uuid {
        Some(uuid) => format!("{} {uuid}", file_system.kind),
        None => file_system.kind.clone(),
    }
}

/// The command that rebuilds the initramfs of every kernel.
pub(super) fn initramfs_command() -> &'static str {
    let root = FsRoot::live().ok();
    let tool = root.as_ref().and_then(initramfs_tool).unwrap_or(InitramfsTool::UpdateInitramfs);
    tool.command()
}

/// Rebuilds the initramfs of every kernel.
pub(super) fn update_initramfs() -> Result<(), ArrayError> {
    let words: Vec<&str> = initramfs_command().split(' ').collect();
    output(&words, INITRAMFS_S)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::ArrayStep;
    use super::*;
    use crate::apply::{HostStep, Step};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_text_is_replaced_and_restored_unless_changed_since() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/fstab");
        let step = |before: Option<&str>, after: Option<&str>| ArrayStep::ReplaceText {
            path: path.clone(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
            what: "edit it".into(),
            units: false,
        };
        let make = step(None, Some("a\n"));
        make.undo().unwrap();
        make.expects().unwrap();
        make.perform().unwrap();
        assert!(matches!(make.expects(), Err(ArrayError::Changed { .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let edit = step(Some("a\n"), Some("b"));
        for _ in 0..2 {
            edit.perform().unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "b");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        for _ in 0..2 {
            edit.undo().unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\n");
        fs::write(&path, "c").unwrap();
        assert!(matches!(edit.undo(), Err(ArrayError::Changed { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "c");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        crate::apply::file::replace(&link, Some("d")).unwrap();
        assert!(link.is_symlink() && fs::read_to_string(&path).unwrap() == "d");
        crate::apply::file::replace(&path, None).unwrap();
        crate::apply::file::replace(&path, None).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_mount_is_found_beside_names_that_are_no_text() {
        let mounting = |at: &str| Mounting {
            device: "/dev/md-gpuvm-none".into(),
            at: at.into(),
            kind: "ext4".into(),
            options: "rw".into(),
        };
        let mounts =
            b"tmpfs /m\xfcll tmpfs rw 0 0\n/dev/md-gpuvm-none /raid\\043\\0401 ext4 rw 0 0\n\
                       /dev/md-gpuvm-none /b\xe4d ext4 rw 0 0\n";
        for at in ["/raid# 1", "/b\\xe4d"] {
            assert!(is_mounted_by(mounts, &mounting(at)), "{at}");
        }
        for at in ["/raid", "/m\\xfcll"] {
            assert!(!is_mounted_by(mounts, &mounting(at)), "{at}");
        }
    }

    #[test]
    fn inactive_arrays_are_not_stopped_and_unmounted_ones_stay_so() {
        let assembly = Assembly {
            device: "/dev/md-gpuvm-none".into(),
            uuid: String::new(),
            members: Vec::new(),
            degraded: false,
        };
        ArrayStep::Stop(assembly.clone()).perform().unwrap();
        ArrayStep::Assemble(assembly).undo().unwrap();
        let mounting = Mounting {
            device: "/dev/md-gpuvm-none".into(),
            at: "/proc".into(),
            kind: "ext4".into(),
            options: "rw".into(),
        };
        ArrayStep::Unmount(mounting.clone()).perform().unwrap();
        ArrayStep::Mount(mounting).undo().unwrap();
        let image = tempfile::NamedTempFile::new().unwrap();
        let device = image.path().to_str().unwrap();
        assert_eq!(signature(device).unwrap(), None);
        let wanted = FileSystem { kind: "ext4".into(), uuid: None, label: None };
        let error = check(device, &wanted).unwrap_err().to_string();
        assert!(error.ends_with("holds nothing that is known, not ext4"), "{error}");
        assert!(make(device, &FileSystem { kind: "vfat".into(), ..wanted }).is_err());
    }

    #[test]
    fn steps_read_back_as_they_were_written() {
        let step = Step::Host(HostStep::Array(ArrayStep::Stop(Assembly {
            device: "/dev/md1".into(),
            uuid: "u".into(),
            members: vec!["/dev/disk/by-id/a".into()],
            degraded: false,
        })));
        let text = serde_json::to_string(&step).unwrap();
        assert!(text.starts_with(r#"{"step":"array","do":"stop","device":"/dev/md1""#), "{text}");
        assert_eq!(serde_json::from_str::<Step>(&text).unwrap(), step);
    }
}
