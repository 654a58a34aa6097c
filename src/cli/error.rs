//! Errors as people see them: headline, causes level by level, hint. The only place that knows exit codes.

use super::codes::{Class, told_by};
use super::offer;
use crate::apply::bind::BindError;
use crate::apply::pages::PagesError;
use crate::apply::{ApplyError, DiskError, JournalError, LockError, StepError};
use crate::discover::lstopo::LstopoError;
use crate::hypervisor::machine::command_there;
use crate::hypervisor::{HypervisorError, HypervisorErrorKind};
use crate::input::InputError;
use crate::placement::PlanError;
use crate::placement::explain::NOTHING_LEFT;
use crate::shell::word;
use gpuvm_core::fabric::PartitionRefusal;
use gpuvm_host::fabric::{ManagerRefusal, RestoreFileError};
use gpuvm_ops::error::Error as OpsError;
use gpuvm_ops::error::NoPlace;
pub use gpuvm_ops::error::{Coded, Refusal as Hinted, dump_and_define};
use std::fmt::Write as _;
use std::path::Path;

/// Done, already so, or the reader went away.
pub const EXIT_DONE: u8 = 0;
/// Cannot, or failed.
pub const EXIT_FAILED: u8 = 1;
/// The command line cannot be meant.
pub const EXIT_USAGE: u8 = 2;
/// A check found something.
pub const EXIT_FOUND: u8 = 3;
/// Internal error.
pub const EXIT_BUG: u8 = 70;

/// Makes such an error of a class that says more.
pub fn classed(class: Class, message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    coded(class.into(), message, hint)
}

/// Makes such an error with the code of what it tells of.
pub fn coded(
    code: &'static str,
    message: impl Into<String>,
    hint: impl Into<String>,
) -> anyhow::Error {
    Hinted::coded(code, message, hint).into()
}

/// Makes an error with a hint that ends the program with [`EXIT_USAGE`].
pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    classed(Class::Usage, message, hint)
}

/// What an error of another module means here, with what helps; it keeps its code.
pub fn around<E>(error: E, message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error
where
    E: std::error::Error + Send + Sync + 'static,
{
    anyhow::Error::from(error).context(Hinted::around(message, hint))
}

/// An error with all of its causes in one line, each once.
pub fn whole(error: &anyhow::Error) -> String {
    let told = error.chain().map(ToString::to_string);
    told.reduce(|text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") })
        .unwrap_or_default()
}

/// The parts of an error, for people and for programs.
#[derive(Debug)]
pub struct Told {
    /// What failed; the first line is the headline.
    pub message: String,
    /// Why, level by level, and what it names.
    pub causes: Vec<String>,
    /// What would help.
    pub hint: Option<String>,
    /// The command of a request that would fit.
    pub command: Option<String>,
}

impl Told {
    /// Takes an error apart.
    pub fn of(error: &anyhow::Error) -> Told {
        let message = error.to_string();
        let mut causes = Vec::new();
        let mut said = message.clone();
        for cause in error.chain().skip(1).map(ToString::to_string) {
            if !said.contains(&cause) {
                said.push_str(&cause);
                causes.push(cause);
            }
        }
        let planned = error.chain().find_map(|cause| cause.downcast_ref::<PlanError>());
        if let Some(PlanError::Taken { holders, .. }) = planned {
            causes.extend_from_slice(holders);
        }
        let applied = error.chain().find_map(|cause| cause.downcast_ref::<ApplyError>());
        let left = applied.iter().flat_map(|error| error.left());
        causes.extend(left.map(ToString::to_string));
        let refused = error.chain().find_map(|cause| cause.downcast_ref::<NoPlace>());
        let (nearest, command) = refused.map(offer::nearest).unwrap_or_default();
        // What stands around a cause as its context is seen through the whole error only.
        let around = told_by(error).map(|hinted| hinted.hint.clone());
        let around = around.filter(|hint| !hint.is_empty());
        let hint = around.or_else(|| error.chain().find_map(hint)).map(offer::fitting);
        Told {
            message,
            causes,
            hint: with_nearest(hint.filter(|hint| !hint.is_empty()), &nearest),
            command,
        }
    }
}

/// The text of an error for people; ends with a newline.
pub fn report(error: &anyhow::Error) -> String {
    let told = Told::of(error);
    let mut text = format!("error: {}\n", told.message);
    for cause in &told.causes {
        writeln!(text, "  {cause}").expect("text");
    }
    if let Some(hint) = told.hint {
        writeln!(text, "hint: {hint}").expect("text");
    }
    if let Some(command) = told.command {
        writeln!(text, "hint: `{command}`").expect("text");
    }
    text
}

/// A planner's hint with the nearest requests that it does not name itself.
fn with_nearest(hint: Option<String>, nearest: &[String]) -> Option<String> {
    // What would fit says more than where to look.
    let parts = |hint: String| {
        let said: Vec<&str> = hint.split("; ").filter(|part| *part != NOTHING_LEFT).collect();
        Some(said.join("; ")).filter(|said| !said.is_empty())
    };
    let hint = if nearest.is_empty() { hint } else { hint.and_then(parts) };
    let said = hint.as_deref().unwrap_or_default();
    let more: Vec<&str> =
        nearest.iter().map(String::as_str).filter(|option| !said.contains(option)).collect();
    match (hint, more.is_empty()) {
        (hint, true) => hint,
        (None, false) => Some(format!("would fit now: {}", more.join("; "))),
        (Some(hint), false) => Some(format!("{hint}; would fit now: {}", more.join("; "))),
    }
}

/// The exit code of an error.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(broken_pipe) {
        return EXIT_DONE;
    }
    let below = || error.chain().find_map(|cause| cause.downcast_ref::<Hinted>());
    let is_usage = told_by(error).or_else(below).is_some_and(Hinted::is_usage);
    if is_usage { EXIT_USAGE } else { EXIT_FAILED }
}

/// What helps against a refusal of Fabric Manager, or against what keeps a partition.
fn fabric_hint(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(refusal) = cause.downcast_ref::<PartitionRefusal>() {
        return Some(gpuvm_ops::partition::hint(refusal));
    }
    if let Some(RestoreFileError::Damaged { path, .. }) = cause.downcast_ref::<RestoreFileError>() {
        let path = path.to_string_lossy();
        return Some(format!("`mv {0} {0}.damaged` puts it away", word(&path)));
    }
    cause.downcast_ref::<ManagerRefusal>()?.advice().map(str::to_owned)
}

/// The hint that one cause carries.
fn hint(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    let applied = cause.downcast_ref::<ApplyError>();
    if let Some(StepError::NotConfirmed { name }) = cause.downcast_ref::<StepError>() {
        return Some(format!(
            "`gpuvm recover --end {name}` ends it; `gpuvm recover --discard` lets it run and forgets the change",
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
    if let Some(LockError::Foreign { path, .. }) = cause.downcast_ref::<LockError>() {
        return Some(format!(
            "`ls -ld {0}` shows it; remove it if it is not needed",
            word(&path.to_string_lossy())
        ));
    }
    cause.downcast_ref::<HypervisorError>().and_then(hypervisor_hint)
}

/// What helps where a journal cannot be written: without one no change is begun.
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

/// What helps against an error with a function's driver.
fn bind_hint(error: &BindError) -> Option<String> {
    Some(match error {
        BindError::Stuck { .. } => {
            "end what holds it (`nvidia-smi -pm 0`, `systemctl stop nvidia-persistenced \
             nvidia-dcgm`) and try again; if the driver still does not let go, only a reboot \
             frees it: --at-boot of `gpuvm device bind BDF` binds it before anything holds it"
                .into()
        }
        BindError::NoReset { bdf, .. } => format!(
            "a GPU that cannot be reset is not for guests: `gpuvm gpu exclude {bdf}` takes it out \
             of use, so that others are chosen"
        ),
        BindError::Hangs { .. } => "the kernel still waits for a driver; a reboot ends that".into(),
        BindError::Changed { .. } => "run it again: it is planned anew".into(),
        BindError::NotTaken { .. } | BindError::Program { .. } => {
            "`journalctl -k -n 30` shows what the kernel says".into()
        }
        BindError::Refused { .. } if !nix::unistd::geteuid().is_root() => "run as root".into(),
        _ => return None,
    })
}

/// What helps against an error with huge pages.
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
            "`gpuvm list` shows what each domain holds; `gpuvm recover` gives them back once they are free"
                .into()
        }
        PagesError::Changed { .. } | PagesError::Taken { .. } => {
            "run it again: it is planned anew".into()
        }
        PagesError::Short { .. } => {
            "memory is in pieces: --at-boot of `gpuvm host pages` reserves pages when the machine \
             boots, while it is whole; smaller pages (--huge-pages 2M) are easier to get"
                .into()
        }
    })
}

/// What helps against an error with an image.
fn disk_hint(error: &DiskError) -> Option<String> {
    let hint = match error {
        DiskError::Exists { .. } => "use it as it is with --disk PATH, or choose another --name",
        DiskError::Kept { path, .. } => {
            let path = word(&path.to_string_lossy()).into_owned();
            return Some(format!("`lsattr -d {path}` and `findmnt -T {path}` show what keeps it"));
        }
        DiskError::NoDirectory { .. } | DiskError::Denied { .. } | DiskError::Full { .. } => {
            "--disk-dir DIR names another directory for new disks, --data-dir DIR one for the data disk"
        }
        DiskError::NoReserve { .. } => "--preallocate full, or none, needs no such thing",
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

/// What helps against a hypervisor's error.
fn hypervisor_hint(error: &HypervisorError) -> Option<String> {
    let hint = match error.kind {
        HypervisorErrorKind::NoLibrary => "install libvirt's client library: apt install libvirt0",
        HypervisorErrorKind::NoConnection if error.is_silent() => {
            "it is frozen or waits for a disk: `systemctl status libvirtd virtqemud` and `journalctl -u libvirtd -n 30` \
             there; guests run on without it"
        }
        HypervisorErrorKind::NoConnection => {
            "is libvirtd running there? `systemctl start libvirtd`, or name another connection with --connect URI"
        }
        HypervisorErrorKind::Denied => {
            "run as root, or join the group libvirt: `sudo usermod -aG libvirt $USER`, then log in again"
        }
        HypervisorErrorKind::NoVolume => {
            "`virsh pool-list --all` shows the pools, `virsh vol-list POOL` the volumes of one"
        }
        HypervisorErrorKind::NoDomain => "`gpuvm list` shows the domains that are there",
        HypervisorErrorKind::Exists => {
            "choose another --name, or delete the domain that is there: `gpuvm delete NAME`"
        }
        HypervisorErrorKind::WrongState => "`gpuvm list` shows the state of each domain",
        HypervisorErrorKind::NoNetwork => {
            "`gpuvm network list` shows the networks, `gpuvm network create NAME` makes one, `virsh net-start NAME` starts \
             one that is down"
        }
        HypervisorErrorKind::Busy | HypervisorErrorKind::BadXml | HypervisorErrorKind::Other => {
            return None;
        }
    };
    Some(hint.into())
}
