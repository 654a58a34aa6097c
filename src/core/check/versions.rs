//! Rules on versions of kernel, QEMU and libvirt with known defects that affect the guest, by the
//! table of [`crate::versions`]. An unknown version is not judged.

use super::guest::Guest;
use super::report::Report;
use crate::finding::Rule;
use crate::topology::{DeviceKind, Topology};
use crate::versions::{self, Component, Defect, Version, Versions};

/// Without huge mappings each access to a BAR's decode bit maps it again in 4 KiB pieces, about 2 s
/// for 128 GiB and 20 to 40 times a boot: with 8 GPUs up to half an hour. Kernel 6.12 maps them in
/// one piece, QEMU 9.2 aligns them for it (gpuvm-hardware(7), LARGE BARS AND VERSIONS).
pub(crate) const SLOW_BARS: Rule =
    Rule::warning("slow-large-bars", "a kernel or QEMU that maps large BARs in small pieces");
/// BARs of 256 GiB took minutes to an hour with QEMU 8.2 and no such time with 10.1
/// (gpuvm-hardware(7), LARGE BARS AND VERSIONS).
const HUGE_BARS: Rule =
    Rule::warning("slow-huge-bars", "a QEMU with which BARs of 256 GiB take long");
/// libvirt has the element since 8.7 (gpuvm-hardware(7), BARS AND THE MMIO WINDOW).
const ADDRESS_BITS: Rule = Rule::error(
    "maxphysaddr-unknown",
    "host address bits asked of a libvirt that does not know them",
);
/// QEMU puts the capability where GPUs since Turing have another onebefore 8.1 (gpuvm-hardware(7),
/// PEER-TO-PEER CLIQUES).
const CLIQUE: Rule =
    Rule::warning("clique-misplaced", "cliques with a QEMU that puts them over another capability");
/// QEMU before 9.0 preallocates cells one after the other (gpuvm-hardware(7), MEMORY AT START:
/// commit b41484ccb6).
const FILL: Rule =
    Rule::warning("cells-filled-in-turn", "huge pages of several cells that QEMU fills in turn");

/// `cpu-max` of QEMU 10.0's `query-machines`: 255 of pc-i440fx; of q35 255 up to pc-q35-2.7, 288 up
/// to 8.0, 1024 up to 8.2, 4096 from 9.0 on.
const MACHINE: Rule =
    Rule::error("vcpus-beyond-machine", "more vCPUs than the machine type of this QEMU takes");

/// Rules of this module.
pub const RULES: &[Rule] = &[SLOW_BARS, HUGE_BARS, ADDRESS_BITS, CLIQUE, FILL, MACHINE];

/// The guest's properties that traps depend on.
struct Facts {
    /// The largest passed-through BAR, in GiB.
    bar_gib: u64,
    /// Whether the guest asks for the host's address bits.
    address_bits: bool,
    /// Whether a GPU gets a clique.
    clique: bool,
    /// Cells of a guest backed by huge pages; 0 for others.
    huge_cells: usize,
}

/// A defect that matters to some guests.
struct Trap {
    rule: &'static Rule,
    /// Whether it matters to a guest.
    matters: fn(&Facts) -> bool,
    defect: Defect,
}

/// Makes an entry of the table.
const fn trap(rule: &'static Rule, defect: Defect, matters: fn(&Facts) -> bool) -> Trap {
    Trap { rule, matters, defect }
}

const TRAPS: &[Trap] = &[
    trap(&SLOW_BARS, versions::KERNEL_SMALL_MAPS, |facts| facts.bar_gib >= 64),
    trap(&SLOW_BARS, versions::QEMU_SMALL_MAPS, |facts| facts.bar_gib >= 64),
    trap(&HUGE_BARS, versions::QEMU_HUGE_BARS, |facts| facts.bar_gib >= 256),
    trap(&ADDRESS_BITS, versions::LIBVIRT_ADDRESS_BITS, |facts| facts.address_bits),
    trap(&CLIQUE, versions::QEMU_CLIQUE, |facts| facts.clique),
    trap(&FILL, versions::QEMU_FILL, |facts| facts.huge_cells > 1),
];

/// Checks versions.
pub fn check<'t>(
    guest: &Guest<'t>,
    topology: &Topology,
    versions: &Versions,
    report: &mut Report<'t>,
) {
    machine(guest, versions, report);
    let facts = facts(guest, topology);
    let release = topology.machine().kernel_release.as_deref().unwrap_or_default();
    let kernel = Version::read(release);
    for trap in TRAPS.iter().filter(|trap| (trap.matters)(&facts)) {
        let version = match trap.defect.of {
            Component::Kernel => kernel,
            Component::Qemu => versions.qemu,
            Component::Libvirt => versions.libvirt,
        };
        let has = |version: &Version| trap.defect.is_in(*version, release);
        let Some(old) = version.filter(has) else { continue };
        let message = format!("{} {old}: {}", trap.defect.of.name(), trap.defect.what);
        let hint = trap.defect.remedy();
        // No other definition would start faster.
        if [SLOW_BARS.id, HUGE_BARS.id].contains(&trap.rule.id) {
            report.note(trap.rule, guest.spot, format!("{message}; {hint}"));
            continue;
        }
        report.add(trap.rule, guest.spot, message, hint);
    }
}

/// Checks that the machine type supports this many vCPUs. A type without a version is QEMU's
/// newest.
fn machine<'t>(guest: &Guest<'t>, versions: &Versions, report: &mut Report<'t>) {
    let Some(name) = &guest.machine else { return };
    let is_pc = guest.is_x86 && (name == "pc" || name.starts_with("pc-i440fx-"));
    let version = match name.strip_prefix("pc-q35-") {
        Some(of) => Version::read(of),
        None => versions.qemu.filter(|_| name == "q35"),
    };
    let most = match version {
        _ if is_pc => 255,
        None => return,
        Some(version) => {
            let steps = [((9, 0), 4096), ((8, 1), 1024), ((2, 8), 288)];
            let is_since = |(major, minor)| version >= Version(major, minor, 0);
            steps.into_iter().find(|(of, _)| is_since(*of)).map_or(255, |(_, most)| most)
        }
    };
    if guest.vcpus.value > most {
        let message =
            format!("{} vCPUs, but machine {name} supports at most {most}", guest.vcpus.value);
        let hint = match most {
            4096 => "4096 vCPUs are the limit".to_owned(),
            _ => "QEMU 9.0 and later takes 4096 with machine q35, 8.1 takes 1024".to_owned(),
        };
        report.add(&MACHINE, guest.vcpus.spot, message, hint);
    }
}

/// Returns the properties of a guest that traps depend on.
fn facts(guest: &Guest<'_>, topology: &Topology) -> Facts {
    let devices = guest.passed.iter().filter_map(|passed| topology.device(passed.bdf.value));
    let bars = devices.clone().flat_map(|device| &device.bars).filter(|bar| bar.index < 6);
    let is_gpu = devices.clone().any(|device| device.kind() == DeviceKind::Gpu);
    Facts {
        bar_gib: bars.map(|bar| bar.bytes >> 30).max().unwrap_or(0),
        address_bits: guest.cpu.as_ref().is_some_and(|cpu| cpu.address_bits == Some(None)),
        clique: is_gpu && guest.has_clique,
        huge_cells: if guest.huge_pages.is_some() { guest.cells.len() } else { 0 },
    }
}
