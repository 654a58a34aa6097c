//! The domain checker: finds what libvirt accepts although it is plainly wrong (gpuvm-design(7),
//! RULES OF THE DOMAIN), each finding with the place in the XML and the numbers. Pure: takes a
//! domain, a host and the occupancy by other domains, and returns findings. It changes nothing and
//! does not know facts of the machine, such as the format of an image or whether a path exists.

mod coherent;
pub mod cpu;
mod disks;
mod elements;
mod fabric;
pub mod guest;
mod hostdev;
mod io;
mod iommufd;
mod isolation;
pub mod memory;
mod nics;
mod numa;
mod others;
mod pci;
mod report;
mod versions;
pub mod vgpu;

pub(crate) use cpu::helper_pins;
pub use disks::{DiskFact, DiskFault, disks};
pub use hostdev::OPEN_PORTS_ID as OPEN_PORTS;
pub use memory::NOT_MOUNTED_ID as HUGE_PAGES_NOT_MOUNTED;
pub use memory::SHORT_ID as HUGE_PAGES_SHORT;
pub use memory::is_said;
pub use nics::{NicFact, nics};
pub use others::free_cores;
pub use pci::{misplaced, place_hint};
pub use report::{Finding, InXml, Note};
pub(crate) use versions::SLOW_BARS;
pub use vgpu::{RETYPED_ID as VGPU_RETYPED, UNAVAILABLE_ID as VGPU_UNAVAILABLE};

use crate::domain::DomainXml;
use crate::finding::Rule;
use crate::placement::Occupancy;
use crate::topology::{FabricModel, Isolated, Topology};
use crate::versions::Versions;
use guest::Guest;
use report::Report;

/// A value that cannot be parsed, so that no rule can judge it.
const UNREADABLE: Rule =
    Rule::error("unreadable-value", "a value that libvirt does not allow there");

/// Every rule, in the order of its findings.
pub const RULES: &[&[Rule]] = &[
    &[UNREADABLE],
    elements::RULES,
    cpu::RULES,
    isolation::RULES,
    numa::RULES,
    memory::RULES,
    pci::RULES,
    hostdev::RULES,
    fabric::RULES,
    io::RULES,
    others::RULES,
    disks::RULES,
    nics::RULES,
    versions::RULES,
    iommufd::RULES,
    coherent::RULES,
    vgpu::RULES,
];

/// Every rule, one by one.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().copied().flatten()
}

/// Whether a rule is about resources of other domains.
pub fn is_on_others(rule: &str) -> bool {
    others::RULES.iter().chain(disks::ON_OTHERS).any(|other| other.id == rule)
}

/// Whether a rule is about cores and memory that other domains have, too.
pub fn is_on_shared(rule: &str) -> bool {
    others::SHARED.iter().any(|other| other.id == rule)
}

/// Checks a domain against a host, the occupancy by other domains, and the versions it will run on;
/// `others` excludes the domain itself.
pub fn check(
    domain: &DomainXml,
    topology: &Topology,
    others: &Occupancy,
    versions: &Versions,
) -> Vec<Finding> {
    judge(domain, topology, others, versions).0
}

/// Like [`check`], and also returns notes: deviations that are not findings because this host
/// allows nothing better or because they were requested.
pub fn judge(
    domain: &DomainXml,
    topology: &Topology,
    others: &Occupancy,
    versions: &Versions,
) -> (Vec<Finding>, Vec<Note>) {
    let guest = Guest::read(domain);
    let mut report = Report::default();
    for fault in &guest.faults {
        report.add(
            &UNREADABLE,
            fault.spot,
            fault.message.clone(),
            "write a value that libvirt's formatdomain page allows there",
        );
    }
    elements::check(domain, &mut report);
    cpu::check(&guest, topology, others, versions, &mut report);
    isolation::check(&guest, topology, others, &mut report);
    numa::check(&guest, topology, &mut report);
    memory::check(&guest, topology, &mut report);
    pci::check(&guest, topology, &mut report);
    hostdev::check(&guest, topology, &mut report);
    fabric::check(&guest, topology, &mut report);
    fabric::strangers(&guest, topology, others, &mut report);
    fabric::ready(&guest, topology, others, &mut report);
    io::check(&guest, &mut report);
    others::check(&guest, topology, others, &mut report);
    versions::check(&guest, topology, versions, &mut report);
    iommufd::check(&guest, topology, versions, &mut report);
    coherent::check(&guest, topology, &mut report);
    vgpu::check(&guest, (topology, others), versions, &mut report);
    let notes = report.notes();
    (report.finish(), notes)
}

/// Returns the checks that are not possible because the host's record lacks their facts, one phrase
/// each.
pub fn unchecked(topology: &Topology) -> Vec<&'static str> {
    let parts = topology.parts();
    let mut missing = Vec::new();
    if parts.devices.is_empty() {
        missing.push("passed devices (the host's record has no PCI functions)");
    } else if parts.machine.iommu.is_none()
        && parts.devices.iter().all(|device| device.iommu_group.is_none())
    {
        missing.push("IOMMU groups (none in the host's record)");
    }
    if !parts.devices.is_empty() && topology.isolates(&[]) == Isolated::Unknown {
        missing.push("isolation of passed devices (settings of VFIO not in the host's record)");
    }
    if parts.devices.iter().all(|device| device.bars.is_empty()) {
        missing.push("address bits for large BARs (no BAR sizes in the host's record)");
    }
    if parts.nodes.iter().all(|node| node.huge_pages.is_empty()) {
        missing.push("free huge pages (no pools in the host's record)");
    }
    if parts.fabric.model != FabricModel::None && parts.fabric.partitions.is_empty() {
        missing.push("NVLink partitions (unknown for this board)");
    }
    missing
}

#[cfg(test)]
mod tests;
