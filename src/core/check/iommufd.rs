//! Rules on functions that are passed through by iommufd rather than by their VFIO groups.

use super::guest::Guest;
use super::report::Report;
use crate::domain::Element;
use crate::domain::read::Spot;
use crate::finding::Rule;
use crate::topology::{DeviceKind, Topology};
use crate::versions::{Defect, KERNEL_PEERS, QEMU_PEERS, QEMU_PRIVATE_MEMORY, Version, Versions};

/// libvirt's message at the start does not say what is missing.
const MISSING: Rule =
    Rule::error("iommufd-missing", "iommufd on a host or with a libvirt that does not have it");
/// QEMU only warns, and the guest runs without transfers between its devices.
const PEERS: Rule = Rule::warning(
    "iommufd-p2p",
    "GPUs and NICs that cannot reach each other by iommufd with this kernel or QEMU",
);
/// Two address spaces: the guest's memory is locked twice.
const MIXED: Rule =
    Rule::warning("iommufd-mixed", "functions of one guest partly by iommufd, partly by groups");
const MEMLOCK: Rule =
    Rule::error("iommufd-memlock", "iommufd with a limit below the memory that it locks");
/// QEMU takes the pages of the file, and the guest has private copies of them.
const PRIVATE: Rule = Rule::error(
    "iommufd-private-memory",
    "iommufd with private memory of files and a QEMU that gives devices other pages",
);
const MEDIATED: Rule =
    Rule::note("iommufd-mdev", "a mediated device in a guest by iommufd: it stays with its group");

/// Rules of this module.
pub const RULES: &[Rule] = &[MISSING, PEERS, MIXED, MEMLOCK, PRIVATE, MEDIATED];

/// The first libvirt that knows `<driver iommufd='yes'/>` of a device.
const OF_DEVICES: Version = Version(12, 1, 0);
/// The first libvirt that knows `<iommufd enabled='yes'/>` of a domain.
const OF_DOMAINS: Version = Version(12, 2, 0);

/// Checks the ways to passed-through functions.
pub fn check<'t>(
    guest: &Guest<'t>,
    topology: &Topology,
    versions: &Versions,
    report: &mut Report<'t>,
) {
    let Some(first) = guest.passed.iter().find(|passed| passed.iommufd) else { return };
    let whole = guest.spot.element().child("iommufd").map(Spot::of);
    let spot = whole.unwrap_or(first.device);
    missing(whole.is_some(), spot, topology, versions, report);
    peers(guest, spot, topology, versions, report);
    // What an argument of QEMU passes is not libvirt's.
    let by_group = guest.passed.iter().find(|passed| !passed.iommufd && !passed.by_argument);
    if let Some(passed) = by_group {
        let message = "other functions of the guest are passed through by iommufd, and this one by \
                       its group: the guest's memory is locked twice";
        report.add(&MIXED, passed.device, message, "pass all of them through in one way");
    }
    limit(guest, report);
    private(guest, versions, report);
    mediated(guest, report);
}

/// Finds a host or a libvirt without iommufd.
fn missing<'t>(
    is_whole: bool,
    spot: Spot<'t>,
    topology: &Topology,
    versions: &Versions,
    report: &mut Report<'t>,
) {
    let needed = if is_whole { OF_DOMAINS } else { OF_DEVICES };
    let hint = "without the element the functions are passed through by their groups";
    if let Some(old) = versions.libvirt.filter(|version| *version < needed) {
        let message = format!("libvirt {old} does not know iommufd there: {needed} does");
        report.add(&MISSING, spot, message, hint);
    } else if topology.machine().iommufd.is_some_and(|iommufd| !iommufd.node) {
        let message = "the host has no /dev/iommu: its kernel is built without CONFIG_IOMMUFD, or \
                       the module iommufd is not loaded";
        report.add(&MISSING, spot, message, format!("`modprobe iommufd` loads it; {hint}"));
    }
}

/// Finds devices that do not reach each other.
fn peers<'t>(
    guest: &Guest<'t>,
    spot: Spot<'t>,
    topology: &Topology,
    versions: &Versions,
    report: &mut Report<'t>,
) {
    let is_peer = |kind| matches!(kind, DeviceKind::Gpu | DeviceKind::Nic);
    let devices = guest.passed.iter().filter(|passed| passed.iommufd);
    let devices = devices.filter_map(|passed| topology.device(passed.bdf.value));
    if devices.filter(|device| is_peer(device.kind())).count() < 2 {
        return;
    }
    let release = topology.machine().kernel_release.as_deref().unwrap_or_default();
    let has = |defect: &Defect, version: Option<Version>| {
        version.filter(|version| defect.is_in(*version, release))
    };
    let found = has(&KERNEL_PEERS, Version::read(release)).map(|version| (KERNEL_PEERS, version));
    let found = found.or(has(&QEMU_PEERS, versions.qemu).map(|version| (QEMU_PEERS, version)));
    if let Some((defect, version)) = found {
        let message = format!("{} {version}: {}", defect.of.name(), defect.what);
        report.add(&PEERS, spot, message, defect.remedy());
    }
}

/// Finds a limit of locked memory below the guest's memory.
fn limit<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    let limit = guest.spot.element().find("memtune/hard_limit");
    let Some(limit) = limit else { return };
    let unit = limit.attr("unit");
    let Ok(size) = crate::domain::read::memory(&limit.text(), unit.as_deref()) else { return };
    if size < guest.memory.value {
        let message =
            format!("a limit of {size}, and iommufd locks the guest's {}", guest.memory.value);
        report.add(&MEMLOCK, Spot::of(limit), message, "remove <hard_limit>, or raise it");
    }
}

/// Finds private memory of files with a QEMU that gives devices other pages.
fn private<'t>(guest: &Guest<'t>, versions: &Versions, report: &mut Report<'t>) {
    let Some(version) = versions.qemu.filter(|one| QEMU_PRIVATE_MEMORY.is_in(*one, "")) else {
        return;
    };
    let root = guest.spot.element();
    let Some(backing) = root.child("memoryBacking") else { return };
    let is = |element: Option<Element<'_>>, name: &str, value: &[&str]| {
        let found = element.and_then(|element| element.attr(name).map(String::from));
        found.is_some_and(|found| value.contains(&&*found))
    };
    let of_file = backing.child("hugepages").is_some()
        || is(backing.child("source"), "type", &["file", "memfd"]);
    let is_shared = is(backing.child("access"), "mode", &["shared"]);
    let cells = root.find("cpu/numa").into_iter().flat_map(|numa| numa.children("cell"));
    let mut cells = cells.map(|cell| is(Some(cell), "memAccess", &["shared"])).peekable();
    let are_shared = cells.peek().is_some() && cells.all(|shared| shared);
    if of_file && !is_shared && !are_shared {
        let message = format!("QEMU {version}: {}", QEMU_PRIVATE_MEMORY.what);
        let hint = format!(
            "write <access mode='shared'/> into <memoryBacking>; {}",
            QEMU_PRIVATE_MEMORY.remedy()
        );
        report.add(&PRIVATE, Spot::of(backing), message, hint);
    }
}

/// Notes mediated devices.
fn mediated<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    let devices = guest.spot.element().child("devices").into_iter();
    let hostdevs = devices.flat_map(|devices| devices.children("hostdev"));
    for device in hostdevs.filter(|one| one.attr("type").as_deref() == Some("mdev")) {
        let message = "a mediated device is passed through by its group, whatever the domain says";
        report.note(&MEDIATED, Spot::of(device), message);
    }
}
