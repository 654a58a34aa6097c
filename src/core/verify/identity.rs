//! Compares the devices at a guest's addresses with those that its metadata records.

use super::report::{Between, Differs, Finding};
use crate::bdf::Bdf;
use crate::domain::DomainXml;
use crate::finding::Rule;
use crate::shell::word;
use crate::topology::{DeviceIdentity, Likeness};

/// Its next start is refused, or would take another's drive.
const OTHER: Rule =
    Rule::error("device-replaced", "another device at the address of a guest's device");
/// A change of hardware is not noticed.
const UNRECORDED: Rule =
    Rule::warning("drive-unrecorded", "a passed-through drive whose identity is not recorded");

/// Rules of this module.
pub const RULES: &[Rule] = &[OTHER, UNRECORDED];

/// A function of a guest, with its record and the device at its address now.
#[derive(Debug, Clone)]
pub struct Presence {
    /// The address.
    pub bdf: Bdf,
    /// The recorded identity; `None` if written by an older version.
    pub recorded: Option<DeviceIdentity>,
    /// How the two compare; `None` if nothing is recorded.
    pub likeness: Option<Likeness>,
    /// The identity now; `None` if the host has no function there.
    pub now: Option<DeviceIdentity>,
    /// The driver now.
    pub driver: Option<String>,
    /// Where the recorded device is now, if another is at its address; several: they cannot be
    /// distinguished.
    pub places: Vec<Bdf>,
    /// Whether it is a drive or a controller with drives.
    pub is_storage: bool,
    /// The option of `set` that names it.
    pub option: &'static str,
}

/// The command that gives a guest the devices that are present now.
pub fn hint(name: &str, all: &[Presence]) -> String {
    let others = all.iter().filter(|one| one.is_other());
    let is_gpus = others.clone().all(|one| one.option == "--gpu");
    if is_gpus {
        let count = all.iter().filter(|one| one.option == "--gpu").count();
        let name = word(name);
        return format!(
            "`gpuvm set {name} --gpus 0`, and then `gpuvm set {name} --gpus {count}`, plans its \
             GPUs again"
        );
    }
    let command = command(name, all).unwrap_or_default();
    format!("`{command}` names its devices as they are now")
}

/// The command that gives a guest its devices of the first kind that differs: those that have
/// moved, from where they are now; those that are gone, as the devices in their place.
fn command(name: &str, all: &[Presence]) -> Option<String> {
    let is_other = |one: &&Presence| one.is_other() && one.option != "--gpu";
    let first = all.iter().find(is_other)?;
    let same = all.iter().filter(|one| one.option == first.option);
    // One that is missing and found nowhere is left out.
    let place = |one: &Presence| one.place().or(one.now.as_ref().map(|_| one.bdf));
    let mut places: Vec<Bdf> = same.filter_map(place).collect();
    // A device that is gone has the address at which another of the guest's is now.
    places.sort();
    places.dedup();
    let none = format!(" --no{}", &first.option[1..]);
    let words = match &places[..] {
        [] => none,
        some => some.iter().map(|bdf| format!(" {} {bdf}", first.option)).collect(),
    };
    Some(format!("gpuvm set {}{words}", word(name)))
}

impl Presence {
    /// Whether another device is at its address, or none while it is at another one. One that is
    /// found nowhere is missing, which is a finding of the checker: a virtual function may need to
    /// be created first.
    pub fn is_other(&self) -> bool {
        let is_seen = self.now.is_some() || !self.places.is_empty();
        self.likeness == Some(Likeness::Other) && is_seen
    }

    /// Where the recorded device is now, if it is at one other address.
    fn place(&self) -> Option<Bdf> {
        match self.places[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Says that another device is there.
    pub fn differs(&self, name: &str) -> String {
        let Presence { bdf, recorded, now, places, .. } = self;
        let had = recorded.as_ref().map_or_else(|| "another device".into(), ToString::to_string);
        let place = match &places[..] {
            [] => "which is not found".to_owned(),
            [place] => format!("which is now at {place}"),
            several => {
                let all: Vec<String> = several.iter().map(Bdf::to_string).collect();
                format!("and each of {} reports to be it", all.join(", "))
            }
        };
        match now {
            Some(now) => format!("{bdf} is now {now}; `{name}` had {had}, {place}"),
            None => format!("{bdf} is missing; `{name}` had {had}, {place}"),
        }
    }
}

/// Adds the differences to the findings on a domain of ours.
pub fn with_devices(
    mut findings: Vec<Finding>,
    definition: &DomainXml,
    all: &[Presence],
) -> Vec<Finding> {
    let name = definition.name();
    let of = word(&name).into_owned();
    for one in all {
        let bdf = one.bdf;
        let at = format!("/sys/bus/pci/devices/{bdf}");
        let is_unrecorded = one.recorded.is_none() && one.is_storage && definition.is_ours();
        if one.is_other() {
            let says = Differs {
                between: Between::Reality,
                message: one.differs(&name),
                expected: one.recorded.as_ref().map(ToString::to_string),
                found: one.now.as_ref().map(ToString::to_string),
                at,
            };
            let hint = hint(&name, all);
            findings.push(Finding::by(&OTHER, says, hint));
        } else if is_unrecorded {
            let message = format!("which drive {bdf} is, is not recorded");
            let (expected, found) = (None, None);
            let says = Differs { between: Between::Plan, message, expected, found, at };
            let option = one.option;
            let hint = format!("`gpuvm set {of} {option} {bdf}` records it");
            findings.push(Finding::by(&UNRECORDED, says, hint));
        }
    }
    findings.sort_by_key(|finding| (finding.severity, finding.says.between));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::MarkKind;

    #[test]
    fn a_missing_virtual_function_is_not_taken_from_a_guest_whose_drive_has_moved() {
        let one = |bdf: &str, option, mark, places: &[&str], is_there: bool| {
            let mut identity = DeviceIdentity::new((0x144d, 0xa808), (0, 0));
            identity.add(mark, "S1A2B3");
            Presence {
                bdf: bdf.parse().unwrap(),
                likeness: Some(Likeness::Other),
                now: is_there.then(|| identity.clone()),
                recorded: Some(identity),
                driver: None,
                places: places.iter().map(|place| place.parse().unwrap()).collect(),
                is_storage: option == "--nvme",
                option,
            }
        };
        let (vf, drive, place) = ("0000:12:00.2", "0000:2f:00.0", "0000:51:00.0");
        let vf = one(vf, "--vf", MarkKind::Mac, &[], false);
        let moved = one(drive, "--nvme", MarkKind::Serial, &[place], false);
        assert!(!vf.is_other() && moved.is_other());
        assert_eq!(
            hint("a", &[vf, moved.clone()]),
            format!("`gpuvm set a --nvme {place}` names its devices as they are now")
        );
        // One that is found nowhere is left out beside it.
        let gone = one("0000:30:00.0", "--nvme", MarkKind::Serial, &[], false);
        assert!(hint("a", &[gone, moved]).contains(&format!("set a --nvme {place}`")));
        let replaced = one(drive, "--nvme", MarkKind::Serial, &[], true);
        assert!(hint("a", &[replaced]).contains(&format!("set a --nvme {drive}`")));
    }
}
