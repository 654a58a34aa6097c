//! Uses of the disks of a domain to be defined or checked, by other domains or the host.

use crate::apply::state_directory;
use crate::bdf::Bdf;
use crate::blockdev::used_by;
use crate::discover::drives::function_of;
use crate::discover::hung_mounts::{Silent, unescaped};
use crate::discover::node::kernel_name;
use crate::discover::openers::in_use;
use crate::discover::vdpa;
use crate::domain::arguments::{self, Arguments, Unread};
use crate::domain::disk_change::target_of;
use crate::domain::{DomainXml, Element};
use crate::error::Result;
use crate::fsroot::FsRoot;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::file_users::{Absent, Twice, User, Uses, files_of};
use crate::pools::IMAGES_DIR;
use crate::topology::DriveUse;
use gpuvm_core::check::{DiskFact, DiskFault};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Directories of the host's own system, in which no guest's disk is.
const SYSTEM: [&str; 12] = [
    "/bin", "/boot", "/dev", "/efi", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys",
    "/usr",
];
/// Directories in them with files of anybody.
const FREE: [&str; 2] = ["/dev/shm", "/dev/hugepages"];
/// Directory of images shipped with the system that guests read: drivers, firmware shells.
const MEDIA: &str = "/usr/share";

/// Returns the uses of a domain's disks. `own_uuid`: its own UUID, if it is defined; `new`: it is
/// to be created, so its disks must be unused now.
pub fn facts(
    xml: &DomainXml,
    own_uuid: Option<&str>,
    new: bool,
    hypervisor: &dyn Hypervisor,
) -> Result<Vec<DiskFact>> {
    let devices = xml.root().children("devices");
    let disks: Vec<Element<'_>> = devices.flat_map(|devices| devices.children("disk")).collect();
    if disks.iter().all(|disk| disk.child("source").is_none()) {
        return Ok(Vec::new());
    }
    let uses = Uses::read(hypervisor)?;
    let mut facts: Vec<DiskFact> = Vec::new();
    for conflict in uses.conflicts(xml, own_uuid) {
        let of_host = matches!(conflict.used.by, User::Loop(_));
        let fault = if of_host { DiskFault::OfHost } else { DiskFault::Held };
        let why = format!("{}: {}", conflict.path.display(), conflict.used);
        facts.push(DiskFact { nth: conflict.nth, fault, why });
    }
    for Twice { nth, first, path, is_over } in uses.twice(xml) {
        let target = disks.get(first).and_then(|disk| target_of(*disk)).unwrap_or_default();
        let has = if is_over { "and this one are in one chain of overlays" } else { "is it, too" };
        let why = format!("{}: disk `{target}` of the same domain {has}", path.display());
        facts.push(DiskFact { nth, fault: DiskFault::Held, why });
    }
    if !hypervisor.machine().is_here() {
        return Ok(facts);
    }
    for (nth, disk) in disks.into_iter().enumerate() {
        let Some(path) = path(disk) else { continue };
        let is_read = disk.child("readonly").is_some()
            || disk.attr("device").is_some_and(|device| device == "cdrom");
        // Uses by a definition were judged already: both may allow sharing.
        let is_known = !uses.others(&path, own_uuid.unwrap_or_default()).is_empty();
        let why = of_host(&path, is_read, new && !is_known)?;
        let fault = DiskFault::OfHost;
        let fact = |why| DiskFact { nth, fault, why: format!("{}: {why}", path.display()) };
        facts.extend(why.map(fact));
    }
    Ok(facts)
}

/// Returns the files of a domain's disks, and those below them, that do not exist: its start fails.
/// Known of domains of this machine only.
pub fn missing(xml: &DomainXml, hypervisor: &dyn Hypervisor) -> Result<Vec<DiskFact>> {
    if !hypervisor.has_guests_here() || xml.disks().next().is_none() {
        return Ok(Vec::new());
    }
    let fact = |Absent { nth, path, over }: Absent| {
        let target = xml.disks().nth(nth).and_then(target_of).unwrap_or_default();
        let has = match over {
            None => format!("disk `{target}` is on it"),
            Some(over) => format!("disk `{target}` is an overlay on it, by {}", over.display()),
        };
        let why = format!("{}: no such file; {has}", path.display());
        DiskFact { nth, fault: DiskFault::Missing, why }
    };
    Ok(Uses::read(hypervisor)?.absent(xml).into_iter().map(fact).collect())
}

/// The reason why [`missing`] does not know the domains of this hypervisor; `None` if it does.
pub fn unseen(hypervisor: &dyn Hypervisor) -> Option<&'static str> {
    let elsewhere = !hypervisor.machine().is_here();
    elsewhere.then_some("whether the disks exist (the connection is to another machine)")
}

/// The file or device of a disk.
fn path(disk: Element<'_>) -> Option<PathBuf> {
    let source = disk.child("source")?;
    let path = ["file", "dev"].into_iter().find_map(|name| source.attr(name))?;
    path.starts_with('/').then(|| PathBuf::from(path.into_owned()))
}

/// Returns why a file or device belongs to the host; `None` if it does not, or does not exist.
/// `new`: it must not be open for writing.
pub fn of_host(path: &Path, is_read: bool, new: bool) -> Result<Option<String>> {
    if let Some(why) = Silent::read().why(path) {
        return Ok(Some(why));
    }
    let Ok(meta) = path.metadata() else { return Ok(None) };
    let kind = meta.file_type();
    if kind.is_block_device() {
        let mut uses = used_by(&FsRoot::live()?, path)?;
        // Mere member signatures are judged where drives are given away.
        uses.retain(|one| !matches!(one.used, DriveUse::Member { .. }));
        return Ok(uses.first().map(ToString::to_string));
    }
    if !kind.is_file() {
        return Ok(Some("it is neither a file nor a block device".into()));
    }
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let is_free = is_read && real.starts_with(MEDIA) || FREE.iter().any(|at| real.starts_with(at));
    let own = [state_directory("journal"), state_directory("history")];
    let system = SYSTEM.iter().map(Path::new).chain(own.iter().map(PathBuf::as_path));
    if let Some(directory) = system.filter(|_| !is_free).find(|at| real.starts_with(at)) {
        return Ok(Some(format!(
            "it is a file of the host's system, below {}",
            directory.display()
        )));
    }
    if !is_read && real.starts_with(IMAGES_DIR) {
        return Ok(Some("guests are created from this image, and none may write to it".into()));
    }
    if is_swap(&FsRoot::live()?.read("proc/swaps")?.unwrap_or_default(), &meta) {
        return Ok(Some("the host swaps on it".into()));
    }
    Ok(if new { in_use(path, is_read) } else { None })
}

/// Whether the host swaps to a file, by the kernel's list: a line each, the path first, with octal
/// escapes for white space.
fn is_swap(list: &str, file: &std::fs::Metadata) -> bool {
    let paths = list.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    paths.map(unescaped).any(|path| {
        Path::new(&path).metadata().is_ok_and(|m| (m.dev(), m.ino()) == (file.dev(), file.ino()))
    })
}

/// The PCI functions that arguments of a domain of this machine name by a path in sysfs that leads
/// to them, each with the reason why the definition alone does not say which.
pub fn linked_functions(xml: &DomainXml) -> Vec<(String, Bdf)> {
    let follow = |path: &str| {
        let place = std::fs::canonicalize(Path::new("/").join(path)).ok()?;
        let place = place.strip_prefix("/sys/devices").ok()?;
        // A mediated device is below the function that it is a part of.
        place.ancestors().find_map(|part| part.file_name()?.to_str()?.parse().ok())
    };
    let links = Arguments::read(xml.root()).links.into_iter();
    let parts = xml.mediated().into_iter().map(|uuid| Unread {
        message: format!("mediated device {uuid}"),
        link: Some(format!("/sys/bus/mdev/devices/{uuid}")),
    });
    links.chain(parts).filter_map(|unread| Some((unread.message, follow(&unread.link?)?))).collect()
}

/// The PCI functions of the drives that a domain of this machine has, whole or in part, as disks,
/// those that serve its vDPA NICs, and those that arguments name by a link: they count as held, so
/// that no other guest gets the function. Only functions that could be passed through: disks share
/// an AHCI controller.
pub fn functions_of_disks(xml: &DomainXml) -> Result<Vec<Bdf>> {
    let mut functions: Vec<Bdf> = linked_functions(xml).into_iter().map(|(_, bdf)| bdf).collect();
    let mut files = files_of(xml, &[]);
    files.extend(arguments::paths(xml.root()).into_keys().map(PathBuf::from));
    files.extend(arguments::vdpa_nodes(xml.root()).into_iter().map(PathBuf::from));
    let is_device = |file: &&PathBuf| {
        let kind = file.metadata().map(|meta| meta.file_type());
        file.starts_with("/dev")
            || kind.is_ok_and(|kind| kind.is_block_device() || kind.is_char_device())
    };
    let silent = Silent::read();
    let devices: Vec<_> =
        files.iter().filter(|file| silent.why(file).is_none()).filter(is_device).collect();
    if devices.is_empty() {
        return Ok(functions);
    }
    let root = FsRoot::live()?;
    // `/dev/ng0n1` is namespace `nvme0n1` as a character device.
    let generic =
        |file: &Path| Some(format!("nvme{}", file.file_name()?.to_str()?.strip_prefix("ng")?));
    for file in &devices {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        functions.extend(vdpa::function_of(&root, name)?);
    }
    let names = devices.into_iter().filter_map(|file| kernel_name(file).or_else(|| generic(file)));
    for name in names {
        if name.starts_with("nvme") {
            functions.extend(function_of(&root, &name)?);
        }
    }
    functions.sort();
    functions.dedup();
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_the_host_swaps_on_is_known_by_every_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("swap file"), vec![0; 512]).unwrap();
        std::fs::write(at("other"), vec![0; 512]).unwrap();
        std::fs::hard_link(at("swap file"), at("hard")).unwrap();
        let list = format!(
            "Filename\tType\tSize\tUsed\tPriority\n{}/swap\\040file file 1 0 -2\n",
            dir.path().display()
        );
        let swaps = |name: &str| is_swap(&list, &at(name).metadata().unwrap());
        assert!(swaps("swap file") && swaps("hard") && !swaps("other"));
    }

    #[test]
    fn files_of_the_host_are_distinguished_from_images() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let use_of = |path: &Path, is_read, new| of_host(path, is_read, new).unwrap();
        std::fs::write(at("a.raw"), vec![0; 512]).unwrap();
        assert_eq!(use_of(&at("a.raw"), false, true), None);
        assert_eq!(use_of(&at("absent"), false, true), None);
        std::os::unix::fs::symlink("/etc/passwd", at("link")).unwrap();
        for path in [Path::new("/etc/passwd"), &at("link")] {
            assert!(use_of(path, true, true).unwrap().contains("below /etc"));
        }
        for path in ["/dev/null", "/", "/dev/zero"] {
            assert!(use_of(Path::new(path), true, true).unwrap().contains("neither"), "{path}");
        }
        // This process is ignored.
        let _own = std::fs::OpenOptions::new().write(true).open(at("a.raw")).unwrap();
        assert_eq!(use_of(&at("a.raw"), false, true), None);
        let script = format!("exec 3>>{}; echo; read x", at("a.raw").display());
        let mut shell = gpuvm_host::program::command("sh");
        let pipe = std::process::Stdio::piped;
        let mut shell = shell.args(["-c", &script]).stdin(pipe()).stdout(pipe()).spawn().unwrap();
        let mut line = [0];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
        let said = use_of(&at("a.raw"), false, true).unwrap();
        assert!(said.contains(&format!("process {} (sh) has it open", shell.id())), "{said}");
        assert_eq!(use_of(&at("a.raw"), false, false), None);
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
