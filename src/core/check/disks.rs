//! Rules on disks that the host or another domain uses, and on those that do not exist. The facts
//! are read on the machine and passed in.

use super::report::{Finding, Report};
use crate::domain::disk_change::target_of;
use crate::domain::read::Spot;
use crate::domain::{DomainXml, Element};
use crate::finding::Rule;
use crate::shell::word;

/// Two guests that write to one disk destroy its contents; libvirt defines both.
const HELD: Rule = Rule::error(
    "disk-held",
    "a disk that another domain has, or the domain itself a second time, unless both share it \
     (`<shareable/>`) or both only read it",
);
/// libvirt passes any path to a guest.
const OF_HOST: Rule = Rule::error(
    "disk-of-host",
    "a disk that the host uses: mounted, part of an array or volume group, swap, behind a loop \
     device, a file of its system",
);

/// libvirt defines it, and its start fails.
const MISSING: Rule =
    Rule::error("disk-missing", "a disk whose file, or a file below it, does not exist");

/// A header is the word of whoever wrote the image, possibly a guest.
const BACKING: Rule = Rule::note(
    "disk-backing",
    "a disk whose image names a file outside its directory, another guest's disk or a server below \
     itself, and whose definition does not state it: QEMU opens whatever the image names",
);

/// The guest sees QEMU's own tables in place of its partitions.
const FORMAT: Rule =
    Rule::warning("disk-format", "a disk declared as raw whose file is a qcow2 image");
const DIRECT: Rule = Rule::error(
    "disk-cache-none",
    "cache='none' or 'directsync' on a file system that takes no O_DIRECT",
);

/// Rules of this module.
pub const RULES: &[Rule] = &[HELD, OF_HOST, MISSING, BACKING, FORMAT, DIRECT];
/// Those that are about other users.
pub(super) const ON_OTHERS: &[Rule] = &[HELD, OF_HOST];

/// A fault of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// Another domain uses it.
    Held,
    /// The host uses it.
    OfHost,
    /// It does not exist, or a file below it does not.
    Missing,
    /// Its image names others that nothing vouches for.
    Backing,
    /// It is declared as raw, and is none.
    Format,
    /// It cannot be opened past the host's page cache, as its definition asks.
    Direct,
}

/// Known facts about a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskFact {
    /// Index of the disk in the definition, from 0.
    pub nth: usize,
    /// The fault.
    pub fault: DiskFault,
    /// The file, and why: "/raid/a.raw: domain `b` has it as a disk".
    pub why: String,
}

/// Checks the disks of a domain against the known facts.
pub fn disks(domain: &DomainXml, facts: &[DiskFact]) -> Vec<Finding> {
    let devices = domain.root().children("devices");
    let all: Vec<_> = devices.flat_map(|devices| devices.children("disk")).collect();
    let mut report = Report::default();
    for DiskFact { nth, fault, why } in facts {
        let Some(disk) = all.get(*nth) else { continue };
        let spot = Spot::of(disk.child("source").unwrap_or(*disk));
        let (rule, hint) = match fault {
            DiskFault::OfHost => {
                (&OF_HOST, "use another disk: this one is in use by the host".to_owned())
            }
            DiskFault::Held => {
                let hint = "use another disk, or a copy made while it is not written";
                (&HELD, hint.to_owned())
            }
            DiskFault::Missing => (&MISSING, back_or_gone(domain, *disk)),
            DiskFault::Backing => {
                let hint = "`qemu-img info` shows the image's backing file; if it is intended, add \
                it to the definition (`<backingStore>`)";
                (&BACKING, hint.to_owned())
            }
            DiskFault::Format => {
                let hint = "`qemu-img info` shows its format; if it is meant as an image, write \
                            <driver type='qcow2'/>";
                (&FORMAT, hint.to_owned())
            }
            DiskFault::Direct => {
                let hint = "leave cache= out, or put the disk on a file system with O_DIRECT";
                (&DIRECT, hint.to_owned())
            }
        };
        report.add(rule, spot, why.clone(), hint);
    }
    report.finish()
}

/// The remedy where a file of a disk does not exist.
fn back_or_gone(domain: &DomainXml, disk: Element<'_>) -> String {
    let back = "put the file back where it was";
    match target_of(disk) {
        Some(target) => {
            let name = word(&domain.name()).into_owned();
            let target = word(&target);
            format!("{back}; or `gpuvm disk remove {name} {target}` takes the disk from the domain")
        }
        None => back.to_owned(),
    }
}
