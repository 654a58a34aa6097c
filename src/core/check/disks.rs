//! Rules on disks that the host or another domain uses. Who uses a disk is found on the machine and
//! passed in as facts.

use super::report::{Finding, Report};
use crate::domain::DomainXml;
use crate::domain::read::Spot;
use crate::finding::Rule;

/// Two guests that write to one disk destroy its contents; libvirt defines both.
const HELD: Rule = Rule::error(
    "disk-held",
    "a disk that another domain has, unless both share it (`<shareable/>`) or both only read it",
);
/// libvirt passes any path to a guest.
const OF_HOST: Rule = Rule::error(
    "disk-of-host",
    "a disk that the host uses: mounted, part of an array or volume group, swap, behind a loop \
     device, a file of its system",
);

/// Rules of this module.
pub const RULES: &[Rule] = &[HELD, OF_HOST];

/// The user of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskFact {
    /// Index of the disk in the definition, from 0.
    pub nth: usize,
    /// Whether the host uses it; otherwise another domain does.
    pub of_host: bool,
    /// Who uses it for what: "/raid/a.raw: domain `b` has it as a disk".
    pub why: String,
}

/// Checks the disks of a domain against the known users of disks.
pub fn disks(domain: &DomainXml, facts: &[DiskFact]) -> Vec<Finding> {
    let devices = domain.root().children("devices");
    let all: Vec<_> = devices.flat_map(|devices| devices.children("disk")).collect();
    let mut report = Report::default();
    for DiskFact { nth, of_host, why } in facts {
        let Some(disk) = all.get(*nth) else { continue };
        let spot = Spot::of(disk.child("source").unwrap_or(*disk));
        let (rule, hint) = if *of_host {
            (&OF_HOST, "give it another disk; what the host uses is not given away")
        } else {
            (&HELD, "give it another disk, or a copy of this one made while nobody writes")
        };
        report.add(rule, spot, why.clone(), hint);
    }
    report.finish()
}
