//! Drives and partitions of the host that a guest gets as disks: refused while in use, and named so
//! that the name is stable across boots.

use super::{Disks, Place, StorageError, StorageRequest};
use crate::bdf::Bdf;
use crate::domain::guest::{Disk, DiskFormat, DiskKind};
use crate::drives::state::{NAMES_HINT as HINT, Reason, State};
use crate::error::{Class, Coded as _, Result, classed};
use crate::topology::{Drive, PartitionTableEntry};
use crate::world::World;
use std::collections::BTreeSet;

/// Adds the drives and partitions that were requested.
pub(super) fn add(place: &Place<'_>, world: &World, disks: &mut Disks) -> Result<()> {
    let wanted = place.wanted;
    if wanted.drive.is_empty() && wanted.partition.is_empty() {
        return Ok(());
    }
    place.refuse_elsewhere("a drive or partition")?;
    let state = State::read(world, place.planned.occupancy.clone())?;
    for drive in choose(wanted, &state, disks)? {
        refuse_function(&place.planned.placement.devices, drive)?;
    }
    Ok(())
}

/// Adds the requested drives and partitions, independently of the guest's placement. Returns the
/// drives that they are or are on.
pub(super) fn choose<'s>(
    wanted: &StorageRequest,
    state: &'s State,
    disks: &mut Disks,
) -> Result<Vec<&'s Drive>> {
    let mut given = BTreeSet::new();
    let mut chosen = Vec::new();
    for text in &wanted.drive {
        let drive = state.find_drive(text)?;
        refuse(&format!("drive {text}"), &state.of_drive(drive))?;
        let path = path(state, drive, text, disks)?;
        let parts = drive.partitions.iter().map(|part| &part.name);
        let mut names = std::iter::once(&drive.name).chain(parts);
        if !names.all(|name| given.insert(name.clone())) {
            return Err(StorageError::DriveTwice { text: text.to_string() }.bare());
        }
        disks.losses.extend(drive.remains());
        disks.disks.push(Disk::new(path, DiskFormat::Raw, DiskKind::Block));
        chosen.push(drive);
    }
    for text in &wanted.partition {
        let (drive, part) = find_partition(state, text)?;
        refuse(&format!("partition {text}"), &state.of_partition(drive, part))?;
        if part.efi_system {
            return Err(StorageError::EfiPartition {
                text: text.to_string(),
                name: part.name.to_string(),
            }
            .hint("no guest gets one; `gpuvm drive list` shows the other partitions"));
        }
        if !given.insert(part.name.clone()) {
            return Err(StorageError::PartitionTwice {
                text: text.to_string(),
                drive: drive.name.to_string(),
            }
            .bare());
        }
        if State::is_system(drive) {
            let name = &drive.name;
            disks.warn(format!(
                "partition {text} is on {name}, from which the host runs: they share its speed and \
                 its end"
            ));
        }
        let path = match &part.partuuid {
            Some(uuid) => format!("/dev/disk/by-partuuid/{uuid}"),
            None => return Err(StorageError::NoPartuuid { text: text.to_string() }.hint(HINT)),
        };
        disks.losses.extend(part.remains());
        disks.disks.push(Disk::new(path, DiskFormat::Raw, DiskKind::Block));
        chosen.push(drive);
    }
    Ok(chosen)
}

/// Refuses a drive or partition that cannot be passed, with every reason.
fn refuse(what: &str, reasons: &[Reason]) -> Result<()> {
    if reasons.is_empty() {
        return Ok(());
    }
    let lines: String = reasons.iter().map(|reason| format!("\n  {reason}")).collect();
    let hint = match &reasons[0] {
        reason if reason.is_system() => "the host runs from it, so it is never given away",
        Reason::Host { used, .. } if used.is_in_array() => {
            "`gpuvm drive release-array /dev/mdX` stops a data array and keeps what restores it"
        }
        Reason::Disk { .. } | Reason::Function { .. } => "`gpuvm list` shows what each guest has",
        _ => "free it first; `gpuvm drive list` shows what can be given away",
    };
    Err(classed(Class::InUse, format!("{what} cannot be given to the guest{lines}"), hint))
}

/// Refuses a drive whose PCI function the same guest gets.
pub(super) fn refuse_function(devices: &[Bdf], drive: &Drive) -> Result<()> {
    match drive.bdf.filter(|bdf| devices.contains(bdf)) {
        None => Ok(()),
        Some(bdf) => {
            Err(StorageError::FunctionToo { drive: drive.name.to_string(), bdf: bdf.to_string() }
                .hint("give it in one way: --nvme, or --drive and --partition"))
        }
    }
}

/// The partition that a PARTUUID names, with its drive.
fn find_partition<'s>(
    state: &'s State,
    text: &str,
) -> Result<(&'s Drive, &'s PartitionTableEntry)> {
    let uuid = text.strip_prefix("/dev/disk/by-partuuid/").unwrap_or(text);
    let drives = state.topology.parts().drives.iter();
    let mut all = drives.flat_map(|drive| drive.partitions.iter().map(move |part| (drive, part)));
    let has = |part: &PartitionTableEntry| {
        part.partuuid.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(uuid))
    };
    let mut found = all.by_ref().filter(|(_, part)| has(part));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(classed(
            Class::NotFound,
            format!("this host has no partition with the PARTUUID {text}"),
            HINT,
        )),
        (Some((_, a)), Some((_, b))) => Err(StorageError::PartuuidTwice {
            first: a.name.to_string(),
            second: b.name.to_string(),
            text: text.to_string(),
        }
        .hint("a drive was copied: `sgdisk --partition-guid` gives one of them another")),
    }
}

/// The path of a drive in the guest's definition.
fn path(state: &State, drive: &Drive, text: &str, disks: &mut Disks) -> Result<String> {
    let name = &drive.name;
    let by_kernel = text.strip_prefix("/dev/").unwrap_or(text) == name;
    let Some(stable) = State::stable_path(drive) else {
        // A recorded host has no serial numbers unless it was captured with them.
        if state.is_complete {
            return Err(StorageError::NoStableName { name: name.to_string() }.hint(
                "a drive without serial number is not given away whole; give it a GPT partition",
            ));
        }
        return Ok(format!("/dev/{name}"));
    };
    if by_kernel {
        disks.warn(format!(
            "{name} is the kernel's name, which may change with every boot; the guest gets {stable}"
        ));
        return Ok(stable);
    }
    let id = text.strip_prefix("/dev/disk/by-id/").unwrap_or(text);
    Ok(format!("/dev/disk/by-id/{id}"))
}
