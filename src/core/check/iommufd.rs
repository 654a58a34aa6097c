//! Rules on functions that are passed through by iommufd rather than by their VFIO groups.

use super::guest::Guest;
use super::report::Report;
use crate::bdf::Bdf;
use crate::domain::claims::Passed;
use crate::domain::claims::needs_iommufd;
use crate::domain::iommufd::has_private_files;
use crate::domain::read::Spot;
use crate::finding::Rule;
use crate::iommufd::{Lack, Way, or_back};
use crate::shell::word;
use crate::topology::Topology;
use crate::versions::{QEMU_PRIVATE_MEMORY, Versions};

/// libvirt's message at the start does not name the missing part. Without VFIO groups it passes no
/// function through by these either.
const MISSING: Rule =
    Rule::error("iommufd-missing", "iommufd on a host or with a libvirt that does not have it");
/// QEMU only warns, and the guest runs without transfers between its devices.
const PEERS: Rule = Rule::warning(
    "iommufd-p2p",
    "GPUs and NICs that cannot reach each other by iommufd with this kernel or QEMU",
);
/// Two address spaces: the guest's memory is locked twice. QEMU 11.1.3 ends when a function by group
/// is added after one by iommufd: "VFIO_IOMMU_LEGACY: Object .. is not an instance" (tests/vdgx).
const MIXED: Rule =
    Rule::warning("iommufd-mixed", "functions of one guest partly by iommufd, partly by groups");
const MEMLOCK: Rule =
    Rule::error("iommufd-memlock", "iommufd with a limit below the memory that it locks");
/// QEMU takes the pages of the file, and the guest has private copies of them.
const PRIVATE: Rule = Rule::error(
    "iommufd-private-memory",
    "private file-backed memory with iommufd: QEMU maps other pages for devices than the guest's",
);
const MEDIATED: Rule =
    Rule::note("iommufd-mdev", "a mediated device in a guest by iommufd: it stays with its group");

/// Rules of this module.
pub const RULES: &[Rule] = &[MISSING, PEERS, MIXED, MEMLOCK, PRIVATE, MEDIATED];

/// Checks the ways to passed-through functions.
pub fn check<'t>(
    guest: &Guest<'t>,
    topology: &Topology,
    versions: &Versions,
    report: &mut Report<'t>,
) {
    let way = Way { topology, versions: *versions, offered: None };
    if let Some(first) = guest.passed.iter().find(|passed| passed.iommufd) {
        by_iommufd(guest, first, &way, report);
        limit(guest, report);
        private(guest, versions, report);
    } else {
        by_groups(guest, &way, report);
    }
    if guest.is_by_iommufd || guest.passed.iter().any(|passed| passed.iommufd) {
        mediated(guest, report);
    }
}

/// Finds the lack of VFIO groups for a guest without functions by iommufd.
fn by_groups<'t>(guest: &Guest<'t>, way: &Way<'_>, report: &mut Report<'t>) {
    let passed = guest.passed.iter().find(|passed| !passed.by_argument);
    let first = passed.map(|passed| passed.device).or_else(|| mdevs(guest).next());
    if let (Some(spot), Some(Lack { what, remedy, .. })) = (first, way.groups()) {
        report.add(&MISSING, spot, what, remedy);
    }
}

/// Finds missing parts for a guest by iommufd, and functions that go another way. `first`: its first one.
fn by_iommufd<'t>(guest: &Guest<'t>, first: &Passed<'t>, way: &Way<'_>, report: &mut Report<'t>) {
    let whole = guest.spot.element().child("iommufd").map(Spot::of);
    let spot = whole.unwrap_or(first.device);
    let passed = guest.passed.iter().filter(|passed| passed.iommufd);
    let functions: Vec<Bdf> = passed.map(|passed| passed.bdf.value).collect();
    let needs_it = needs_iommufd(guest.spot.element(), &guest.passed, way.topology);
    for Lack { what, remedy, by_groups_too } in way.lacks(whole.is_some(), &functions) {
        let hint = or_back(&remedy, &guest.name, needs_it || by_groups_too);
        report.add(&MISSING, spot, what, hint);
    }
    if let Some((defect, version)) = way.unreached(&functions) {
        let message = format!("{} {version}: {}", defect.of.name(), defect.what);
        report.add(&PEERS, spot, message, or_back(&defect.remedy(), &guest.name, needs_it));
    }
    // A function passed by an argument of QEMU is not libvirt's.
    let by_group = guest.passed.iter().find(|passed| !passed.iommufd && !passed.by_argument);
    if let Some(passed) = by_group {
        let message = "other functions of the guest are passed through by iommufd, and this one by \
                       its group: the guest's memory is locked twice, and QEMU 11.1 does not start \
                       such a guest";
        let name = word(&guest.name);
        let hint = if needs_it {
            format!("`gpuvm tune {name} --iommufd on` passes all through by iommufd")
        } else {
            format!("`gpuvm tune {name} --iommufd off`, or on, passes all through in one way")
        };
        report.add(&MIXED, passed.device, message, hint);
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

/// Finds private file-backed memory with a QEMU that maps other pages for devices.
fn private<'t>(guest: &Guest<'t>, versions: &Versions, report: &mut Report<'t>) {
    let Some(version) = versions.qemu.filter(|one| QEMU_PRIVATE_MEMORY.is_in(*one, "")) else {
        return;
    };
    let root = guest.spot.element();
    if !has_private_files(root) {
        return;
    }
    let backing = root.child("memoryBacking").map_or(guest.spot, Spot::of);
    let message = format!("QEMU {version}: {}", QEMU_PRIVATE_MEMORY.what);
    let hint = format!(
        "`gpuvm tune {} --iommufd on` writes <access mode='shared'/> into <memoryBacking>; {}",
        word(&guest.name),
        QEMU_PRIVATE_MEMORY.remedy()
    );
    report.add(&PRIVATE, backing, message, hint);
}

/// Notes mediated devices.
fn mediated<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    for spot in mdevs(guest) {
        let message = "a mediated device is passed through by its group, whatever the domain says";
        report.note(&MEDIATED, spot, message);
    }
}

/// The mediated devices of a guest.
fn mdevs<'t>(guest: &Guest<'t>) -> impl Iterator<Item = Spot<'t>> {
    let devices = guest.spot.element().child("devices").into_iter();
    let hostdevs = devices.flat_map(|devices| devices.children("hostdev"));
    hostdevs.filter(|one| one.attr("type").as_deref() == Some("mdev")).map(Spot::of)
}
