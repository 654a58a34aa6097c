//! Compares the running XML with the definition: only one of them was changed. This is not a fault
//! of the running guest, and ends with the next start.

use super::report::{Between, Report, Wrong};
use crate::domain::DomainXml;
use crate::domain::{Difference, differences};
use crate::finding::Rule;
use crate::shell::word;

/// `vcpupin`, `emulatorpin`, `iothreadpin`, shares and quotas.
const PINS: Rule = Rule::warning("pending-pins", "pins that run otherwise than defined");
const MEMORY: Rule = Rule::warning("pending-memory", "memory that runs otherwise than defined");
const CPU: Rule = Rule::warning("pending-vcpus", "vCPUs that run otherwise than defined");
const IOTHREADS: Rule =
    Rule::warning("pending-iothreads", "I/O threads that run otherwise than defined");
/// Cache, io, queues, their I/O threads, files.
const DISK: Rule = Rule::warning("pending-disk", "a disk that runs otherwise than defined");
const NIC: Rule =
    Rule::warning("pending-interface", "an interface that runs otherwise than defined");
const HOSTDEV: Rule =
    Rule::warning("pending-hostdev", "passed devices that run otherwise than defined");
/// Drivers of SCSI controllers, balloon, memory modules.
const DEVICE: Rule = Rule::warning("pending-device", "a device that runs otherwise than defined");

/// Rules of this module.
pub const RULES: &[Rule] = &[PINS, MEMORY, CPU, IOTHREADS, DISK, NIC, HOSTDEV, DEVICE];

/// The rule for differences below each element.
const PLACES: &[(&str, &Rule)] = &[
    ("cputune", &PINS),
    ("vcpu/@cpuset", &PINS),
    ("memory", &MEMORY),
    ("memoryBacking", &MEMORY),
    ("numatune", &MEMORY),
    ("cpu/numa", &MEMORY),
    ("vcpu", &CPU),
    ("vcpus", &CPU),
    ("cpu/topology", &CPU),
    ("cpu/maxphysaddr", &CPU),
    ("iothreads", &IOTHREADS),
    ("iothreadids", &IOTHREADS),
    ("devices/disk", &DISK),
    ("devices/interface", &NIC),
    ("devices/hostdev", &HOSTDEV),
    ("iommufd", &HOSTDEV),
    // Ports are added with devices and remain after them.
    ("devices/controller/driver", &DEVICE),
    ("devices/memballoon", &DEVICE),
    ("devices/memory", &DEVICE),
];

/// Compares the definition with the running XML.
pub fn compare(definition: &DomainXml, live: &DomainXml, report: &mut Report) {
    let hint = format!(
        "`gpuvm restart {}` applies the definition; to keep the running settings, repeat the \
         change by `virsh` with --config",
        word(&definition.name())
    );
    for difference in differences(definition, live) {
        let Difference { path, planned, defined } = difference;
        let Some(rule) = rule_of(&path) else { continue };
        let wrong = Wrong {
            what: format!("{} of what runs", name(definition, &path)),
            expected: planned.unwrap_or_else(|| "nothing".into()),
            found: defined.unwrap_or_else(|| "nothing".into()),
            at: format!("/{path} of the definition"),
            hint: &hint,
        };
        report.differs(rule, Between::Pending, wrong);
    }
}

/// Returns the rule for a path; `None` if libvirt changes it by itself, or it has no effect.
fn rule_of(path: &str) -> Option<&'static Rule> {
    let inner = path.strip_prefix("domain/")?;
    let plain: String = without_numbers(inner);
    let within = |place: &str| {
        plain.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    // The more exact place comes first.
    PLACES.iter().find(|(place, _)| within(place)).map(|(_, rule)| *rule)
}

/// Returns a path without indexes of elements: `devices/disk[2]/driver` is below `devices/disk`.
fn without_numbers(path: &str) -> String {
    let mut plain = String::new();
    let mut inside = false;
    for c in path.chars() {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            c if !inside => plain.push(c),
            _ => {}
        }
    }
    plain
}

/// Names the subject of a path: the vCPU or I/O thread of a pin, otherwise its last two names
/// (`driver/@cache`).
fn name(definition: &DomainXml, path: &str) -> String {
    for (element, of, what) in
        [("vcpupin", "vcpu", "vcpu"), ("iothreadpin", "iothread", "iothread")]
    {
        let Some(rest) = path.strip_prefix(&format!("domain/cputune/{element}")) else { continue };
        let number = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')?.0.parse().ok());
        let place = number.unwrap_or(1usize).saturating_sub(1);
        let tune = definition.root().child("cputune");
        let pin = tune.and_then(|tune| tune.children(element).nth(place));
        if let Some(id) = pin.and_then(|pin| pin.attr(of)) {
            return format!("pin of {what} {id}");
        }
    }
    let names: Vec<&str> = path.rsplitn(3, '/').take(2).collect();
    names.into_iter().rev().collect::<Vec<_>>().join("/")
}
