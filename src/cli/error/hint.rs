//! Hints for errors of the lower crates, one cause at a time.

use super::Hinted;
use crate::apply::bind::BindError;
use crate::apply::pages::PagesError;
use crate::apply::{ApplyError, DiskError, JournalError, LockError, StepError};
use crate::cli::offer;
use crate::discover::DiscoverError;
use crate::discover::fabric::modules;
use crate::discover::lstopo::LstopoError;
use crate::discover::{exclusions, expected, test_policy};
use crate::fsroot::FsError;
use crate::history::HistoryError;
use crate::hypervisor::machine::{command_there, is_plain};
use crate::hypervisor::{HypervisorError, HypervisorErrorKind};
use crate::input::InputError;
use crate::placement::PlanError;
use crate::request::PageSize;
use crate::shell::word;
use gpuvm_core::fabric::PartitionRefusal;
use gpuvm_core::topology::software::Package;
use gpuvm_host::fabric::{ManagerRefusal, RestoreFileError};
use gpuvm_ops::error::Error as OpsError;
use std::path::Path;

/// The hint that one cause carries.
pub(super) fn hint(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    let applied = cause.downcast_ref::<ApplyError>();
    if let Some(StepError::NotConfirmed { name }) = cause.downcast_ref::<StepError>() {
        return Some(format!(
            "`gpuvm recover --end {name}` ends it; `gpuvm recover --discard` lets it run and \
             forgets the change",
            name = word(name)
        ));
    }
    if applied.is_some_and(ApplyError::needs_recovery) {
        return Some("remove the cause, then `gpuvm recover`".into());
    }
    if let Some(OpsError::Changed { again, .. }) = cause.downcast_ref::<OpsError>() {
        // With the caller's own options: without them it might do more.
        let again = offer::instead(&[]).unwrap_or_else(|| again.clone());
        return Some(format!("`{again}` asks for what there is to do now"));
    }
    if let Some(hinted) = cause.downcast_ref::<Hinted>() {
        return Some(hinted.hint.clone()).filter(|hint| !hint.is_empty());
    }
    if let Some(StepError::Elsewhere { host }) = cause.downcast_ref::<StepError>() {
        return Some(format!("there: `{}`", command_there(host, "...")));
    }
    let planned = cause.downcast_ref::<PlanError>();
    if let Some(PlanError::Impossible { hint, .. } | PlanError::Taken { hint, .. }) = planned {
        return Some(hint.clone()).filter(|hint| !hint.is_empty());
    }
    if let Some(bind) = cause.downcast_ref::<BindError>() {
        return bind_hint(bind);
    }
    if let Some(pages) = cause.downcast_ref::<PagesError>() {
        return pages_hint(pages);
    }
    if let Some(disk) = cause.downcast_ref::<DiskError>() {
        return disk_hint(disk);
    }
    if let Some(LstopoError::NoHwloc) = cause.downcast_ref::<LstopoError>() {
        let build = "`cargo build --release --features hwloc` makes a gpuvm that reads it";
        return Some(format!("{build}; `gpuvm host capture FILE` on that host records more"));
    }
    if let Some(input) = cause.downcast_ref::<InputError>() {
        return input.hint();
    }
    if let Some(history) = cause.downcast_ref::<HistoryError>() {
        return history.hint();
    }
    if let Some(hint) = fabric_hint(cause) {
        return Some(hint);
    }
    let journal = match applied {
        Some(ApplyError::Journal(error)) => Some(error),
        _ => cause.downcast_ref::<JournalError>(),
    };
    if let Some(JournalError::File { path, source }) = journal {
        return Some(journal_hint(path, source));
    }
    if let Some(LockError::Held { .. }) = cause.downcast_ref::<LockError>() {
        return Some("try again when it is done, or wait longer with --lock-wait SECONDS".into());
    }
    if let Some(LockError::File { path, source }) = cause.downcast_ref::<LockError>() {
        return Some(lock_hint(path, source));
    }
    if let Some(LockError::Foreign { path, .. }) = cause.downcast_ref::<LockError>() {
        return Some(format!(
            "`ls -ld {0}` shows it; remove it if it is not needed",
            word(&path.to_string_lossy())
        ));
    }
    cause.downcast_ref::<HypervisorError>().and_then(hypervisor_hint)
}

/// Returns the hint for a refusal of Fabric Manager, for a partition in use, or for the file of
/// module ids.
fn fabric_hint(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(refusal) = cause.downcast_ref::<PartitionRefusal>() {
        return Some(refusal.hint());
    }
    if let Some(error) = cause.downcast_ref::<RestoreFileError>() {
        return error.hint();
    }
    let file = match cause.downcast_ref::<DiscoverError>() {
        Some(DiscoverError::File(file)) => Some(file),
        _ => cause.downcast_ref::<FsError>(),
    };
    if let Some(file) = file {
        let hint = modules::hint(file).or_else(|| test_policy::hint(file));
        return hint.or_else(|| expected::hint(file)).or_else(|| exclusions::hint(file));
    }
    cause.downcast_ref::<ManagerRefusal>()?.advice().map(str::to_owned)
}

/// Returns the hint if a lock file cannot be made or opened.
fn lock_hint(path: &Path, source: &std::io::Error) -> String {
    if source.kind() == std::io::ErrorKind::PermissionDenied {
        return "run as root".to_owned();
    }
    let (path, dir) = (path.to_string_lossy(), path.parent().unwrap_or(path).to_string_lossy());
    format!("see `ls -ld {}` and `df {}`", word(&path), word(&dir))
}

/// Returns the hint if a journal cannot be written: without one no change starts.
fn journal_hint(path: &Path, source: &std::io::Error) -> String {
    use std::io::ErrorKind::{PermissionDenied, QuotaExceeded, StorageFull};
    let dir = path.parent().unwrap_or(path).display();
    match source.kind() {
        StorageFull | QuotaExceeded => {
            format!("make room: `df {dir}` shows what is left", dir = word(&dir.to_string()))
        }
        PermissionDenied => "run as root".to_owned(),
        _ => format!(
            "changes are written down there before they are made; see `df {dir}`, `ls -ld {dir}`",
            dir = word(&dir.to_string())
        ),
    }
}

/// Returns the hint for an error with a function's driver.
fn bind_hint(error: &BindError) -> Option<String> {
    Some(match error {
        BindError::Stuck { .. } => {
            "end what holds it (`nvidia-smi -pm 0`, `systemctl stop nvidia-persistenced \
             nvidia-dcgm`) and try again; if the driver still does not let go, only a reboot frees \
             it: --at-boot of `gpuvm device bind BDF` binds it before anything holds it"
                .into()
        }
        BindError::NoReset { bdf, .. } => format!(
            "a GPU that cannot be reset is not for guests: `gpuvm gpu exclude {bdf}` takes it out \
             of use, so that others are chosen"
        ),
        BindError::Hangs { .. } => "the kernel still waits for a driver; a reboot ends that".into(),
        BindError::Changed { .. } => "run it again: it is planned again".into(),
        BindError::NotTaken { .. } | BindError::Program { .. } => {
            "`journalctl -k -n 30` shows what the kernel says".into()
        }
        BindError::Refused { .. } if !nix::unistd::geteuid().is_root() => "run as root".into(),
        _ => return None,
    })
}

/// Returns the hint for an error with huge pages.
fn pages_hint(error: &PagesError) -> Option<String> {
    Some(match error {
        PagesError::Write(error) => return bind_hint(error),
        PagesError::File(_) => return None,
        PagesError::NoNode { .. } => "`gpuvm host pages` shows the nodes".into(),
        PagesError::NoSize { page, .. } => format!(
            "`gpuvm host pages` shows the sizes; the kernel's argument hugepagesz={} adds one that \
             the processor knows",
            page.typed()
        ),
        PagesError::InUse { .. } => {
            "`gpuvm list` shows what each domain holds; `gpuvm recover` gives them back once they \
             are free"
                .into()
        }
        PagesError::Changed { .. } | PagesError::Taken { .. } => {
            "run it again: it is planned again".into()
        }
        PagesError::Short { page, .. } => {
            let smaller = if *page > PageSize::TwoMib.size() {
                "; smaller pages (--huge-pages 2M) are easier to get"
            } else {
                ""
            };
            format!(
                "memory is in pieces: --at-boot of `gpuvm host pages` reserves pages when the \
                 machine boots, while it is whole{smaller}"
            )
        }
    })
}

/// Returns the hint for an error with an image.
fn disk_hint(error: &DiskError) -> Option<String> {
    let hint = match error {
        DiskError::Exists { .. } => "use it as it is with --disk PATH, or choose another --name",
        DiskError::Kept { path, .. } => {
            let path = word(&path.to_string_lossy()).into_owned();
            return Some(format!("`lsattr -d {path}` and `findmnt -T {path}` show what keeps it"));
        }
        DiskError::NoDirectory { .. } | DiskError::Denied { .. } | DiskError::Full { .. } => {
            "--disk-dir DIR names another directory for new disks, --data-dir DIR one for the data \
             disk"
        }
        DiskError::NoReserve { .. } => "--preallocate full and --preallocate none work without",
        DiskError::Journal(JournalError::File { path, source }) => {
            return Some(journal_hint(path, source));
        }
        DiskError::NotAFile { .. }
        | DiskError::Journal(_)
        | DiskError::Other { .. }
        | DiskError::Input(_) => {
            return None;
        }
    };
    Some(hint.into())
}

/// Returns the hint for an error of libvirt about a file whose directory of logs is missing:
/// `Unable to open file '/var/log/libvirt/qemu/a-serial.log': No such file or directory`.
fn no_log_dir(message: &str) -> Option<String> {
    let (before, _) = message.split_once(": No such file or directory")?;
    let path = before.rsplit([' ', '\'']).find(|part| part.starts_with('/'))?;
    let dir = Path::new(path).parent().filter(|_| path.ends_with(".log"))?;
    Some(gpuvm_ops::guest::make_log_dir(dir))
}

/// Returns the hint if no libvirt answers, by the software of this machine if the connection is
/// local.
fn no_connection_hint(doing: &str) -> String {
    let uri = doing.strip_prefix("connect to ").unwrap_or_default();
    let is_here = is_plain(uri) && uri.starts_with("qemu");
    let software = is_here.then(gpuvm_ops::doctor::software).flatten();
    let start = match software.map(|software| software.daemon) {
        Some(None) => install(&[Package::Daemon]).map_or_else(
            || "install libvirt's daemon with its QEMU driver".to_owned(),
            |install| format!("libvirt is not installed: {install}"),
        ),
        Some(Some(daemon)) => format!("`sudo {}` starts it, also at each boot", daemon.start()),
        None => "is libvirtd running there? `systemctl start libvirtd`".to_owned(),
    };
    format!("{start}, or name another connection with --connect URI")
}

/// Returns the command that installs packages on this machine; `None` for an unknown
/// distribution.
fn install(packages: &[Package]) -> Option<String> {
    let command = gpuvm_ops::doctor::software()?.install(packages, Some(std::env::consts::ARCH))?;
    Some(format!("`sudo {command}`"))
}

/// Returns the hint for a hypervisor's error.
fn hypervisor_hint(error: &HypervisorError) -> Option<String> {
    let hint = match error.kind {
        HypervisorErrorKind::NoLibrary => {
            let install = install(&[Package::Library]);
            return Some(install.unwrap_or_else(|| "install libvirt's client library".into()));
        }
        HypervisorErrorKind::NoConnection if error.is_silent() => {
            "libvirt hangs, perhaps on a disk: check `systemctl status libvirtd virtqemud` and \
             `journalctl -u libvirtd -n 30` on that host; running guests are not affected"
        }
        HypervisorErrorKind::NoConnection => return Some(no_connection_hint(&error.doing)),
        HypervisorErrorKind::Denied => {
            "run as root, or join the group libvirt: `sudo usermod -aG libvirt $USER`, then log in \
             again"
        }
        HypervisorErrorKind::NoVolume => {
            "`virsh pool-list --all` shows the pools, `virsh vol-list POOL` the volumes of one"
        }
        HypervisorErrorKind::NoDomain => "`gpuvm list` shows the domains that are there",
        HypervisorErrorKind::Exists => {
            "somebody else made it meanwhile: choose another name, or run it again once that one \
             is gone"
        }
        HypervisorErrorKind::WrongState => "`gpuvm list` shows the state of each domain",
        HypervisorErrorKind::NoNetwork => {
            "`gpuvm network list` shows the networks, `gpuvm network create NAME` makes one, \
             `virsh net-start NAME` starts one that is down"
        }
        HypervisorErrorKind::Busy | HypervisorErrorKind::BadXml => return None,
        HypervisorErrorKind::Other => return no_log_dir(&error.message),
    };
    Some(hint.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_of_logs_is_made() {
        let says = |message: &str| no_log_dir(message);
        let advice = says(
            "Unable to open file '/var/log/libvirt/qemu/a-serial.log': No such file or directory",
        );
        let hint = "`install -d -m 0755 /var/log/libvirt/qemu` makes it";
        assert_eq!(advice.as_deref(), Some(hint));
        let advice = says("cannot open /var/log/libvirt/qemu/a.log: No such file or directory");
        assert_eq!(advice.as_deref(), Some(hint));
        for other in ["/a/b.raw: No such file or directory", "/a/b.log: Permission denied", ""] {
            assert_eq!(says(other), None, "{other}");
        }
    }
}
