//! Which functions can be passed through, and which have to come along: IOMMU groups, and what the host uses itself.
//! Knows nothing of how many GPUs are wanted.

use super::taken::Taken;
use crate::bdf::Bdf;
use crate::topology::{DeviceKind, Drive, DriveUse, PciDevice, Sriov, Topology};

/// Is why a function cannot be passed through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    /// The domain that is in the way; none where it is the host or the device itself.
    pub(super) domain: Option<String>,
    /// The reason, to be read after the function's name: "is held by domain `x`".
    pub(super) why: String,
    /// The same of several functions: "are held by domain `x`".
    pub(super) why_many: String,
}

impl Block {
    /// Makes a reason from its verb, singular and plural, and the rest.
    fn new(domain: Option<&str>, verbs: (&str, &str), rest: &str) -> Block {
        let text = |verb: &str| format!("{verb} {rest}");
        Block { domain: domain.map(str::to_owned), why: text(verbs.0), why_many: text(verbs.1) }
    }
}

/// Is what one member of an IOMMU group means for another that is passed through.
enum Member {
    /// Comes along.
    Along,
    /// A GPU or NVSwitch: has to be among the chosen.
    Peer,
    /// Forbids it.
    Blocks(Block),
    /// A bridge: stays with the host.
    Stays,
}

/// Why a function cannot be passed through now; none: it can.
pub(super) fn block(topology: &Topology, taken: &Taken<'_>, bdf: Bdf) -> Option<Block> {
    let device = topology.device(bdf)?;
    if let Some(domain) = taken.device(bdf) {
        return Some(Block::new(
            Some(domain),
            ("is", "are"),
            &format!("held by domain `{domain}`"),
        ));
    }
    if [device.vendor, device.device].iter().any(|&id| id == 0 || id == 0xffff) {
        let ids = format!("{:#06x}:{:#06x}", device.vendor, device.device);
        let rest = format!("not answer: vendor and device id read {ids}");
        return Some(Block::new(None, ("does", "do"), &rest));
    }
    if let Some(Sriov::Pf { enabled: enabled @ 1.., .. }) = device.sriov {
        let rest = format!("{enabled} virtual functions enabled");
        return Some(Block::new(None, ("has", "have"), &rest));
    }
    if let Some(used) = host_use(topology, device) {
        return Some(Block::new(None, ("is", "are"), &format!("used by the host: {used}")));
    }
    members(topology, bdf).find_map(|(group, other)| {
        match member(topology, taken, device, group, other) {
            Member::Blocks(block) => Some(block),
            Member::Along | Member::Peer | Member::Stays => None,
        }
    })
}

/// Functions that have to come along with these, by address.
pub(super) fn companions(topology: &Topology, taken: &Taken<'_>, chosen: &[Bdf]) -> Vec<Bdf> {
    let mut along: Vec<Bdf> = Vec::new();
    for device in chosen.iter().filter_map(|&bdf| topology.device(bdf)) {
        for (group, other) in members(topology, device.bdf) {
            if matches!(member(topology, taken, device, group, other), Member::Along)
                && !along.contains(&other.bdf)
                && !chosen.contains(&other.bdf)
            {
                along.push(other.bdf);
            }
        }
    }
    along.sort();
    along
}

/// A GPU or NVSwitch that shares a group with one of these and is not among them: function, group, stranger.
pub(super) fn stranger(topology: &Topology, chosen: &[Bdf]) -> Option<(Bdf, u32, Bdf)> {
    chosen.iter().find_map(|&bdf| {
        let mut others = members(topology, bdf);
        others
            .find(|(_, other)| is_peer(other) && !chosen.contains(&other.bdf))
            .map(|(group, other)| (bdf, group, other.bdf))
    })
}

/// The other members of a function's IOMMU group, with the group's number.
fn members(topology: &Topology, bdf: Bdf) -> impl Iterator<Item = (u32, &PciDevice)> {
    let group = topology.iommu_group(bdf);
    group.into_iter().flat_map(move |group| {
        let others = group.members.iter().filter(move |&&member| member != bdf);
        others.filter_map(move |&member| Some((group.number, topology.device(member)?)))
    })
}

/// Whether it is a GPU or an NVSwitch.
fn is_peer(device: &PciDevice) -> bool {
    matches!(device.kind(), DeviceKind::Gpu | DeviceKind::NvSwitch)
}

/// What a group's member means for `device`. Bridges stay (only classes 0x0600 and 0x0604 are bridges). Functions of
/// the same slot come along, and elsewhere what has no use of its own to a host: memory and other controllers
/// (classes 0x05, 0x06, 0x08, 0x11, 0xff). Anything else could be taken from under the host, so it forbids.
fn member(
    topology: &Topology,
    taken: &Taken<'_>,
    device: &PciDevice,
    group: u32,
    other: &PciDevice,
) -> Member {
    let share = |domain: Option<&str>, what: &str| {
        let rest = format!("IOMMU group {group} with {}, {what}", other.bdf);
        Member::Blocks(Block::new(domain, ("shares", "share"), &rest))
    };
    if matches!(other.kind(), DeviceKind::Bridge | DeviceKind::HostBridge) {
        return Member::Stays;
    }
    if let Some(domain) = taken.device(other.bdf) {
        return share(Some(domain), &format!("which is held by domain `{domain}`"));
    }
    if let Some(used) = host_use(topology, other) {
        return share(None, &format!("which the host uses: {used}"));
    }
    let slot = |bdf: Bdf| (bdf.segment(), bdf.bus(), bdf.device());
    match other.class >> 16 {
        _ if is_peer(other) => Member::Peer,
        _ if slot(other.bdf) == slot(device.bdf) => Member::Along,
        0x05 | 0x06 | 0x08 | 0x11 | 0xff => Member::Along,
        _ => {
            share(None, &format!("a device of class {:#08x} that stays with the host", other.class))
        }
    }
}

/// What the host uses a function for; none: nothing that is known.
fn host_use(topology: &Topology, device: &PciDevice) -> Option<String> {
    if let Some(why) = device.net.as_ref().and_then(|net| net.used_by.first()) {
        return Some(format!("network, {why}"));
    }
    let drives = topology.parts().drives.iter().filter(|drive| drive.bdf == Some(device.bdf));
    drives.into_iter().find_map(drive_use)
}

/// What the host uses a drive for.
fn drive_use(drive: &Drive) -> Option<String> {
    let parts =
        drive.partitions.iter().flat_map(|part| part.used_by.iter().map(|u| (&part.name, u)));
    let (name, used) = drive.used_by.iter().map(|u| (&drive.name, u)).chain(parts).next()?;
    Some(match used {
        DriveUse::Mounted { at } => format!("{name} is mounted at {at}"),
        DriveUse::Swap => format!("{name} is swap space"),
        DriveUse::Holder { device } => format!("{name} is part of {device}"),
    })
}
