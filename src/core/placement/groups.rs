//! Finds which functions can be passed through, and which have to come along: IOMMU groups, and the
//! host's own use. Does not know how many GPUs are wanted.

use super::kind::Kind;
use super::taken::Taken;
use super::types::DeviceState;
use crate::bdf::Bdf;
use crate::health::Health;
use crate::occupancy::{Exclusion, Occupancy};
use crate::topology::{
    Barred, DeviceKind, Drive, DriveUse, PciDevice, SetAside, Sriov, Topology, Unsupported,
};
use crate::words::count;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

/// Why a function cannot be passed through. Its text is made on demand: most plans never need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block<'a> {
    /// The domain that holds it; `None` if the cause is the host or the device itself.
    pub(super) domain: Option<&'a str>,
    cause: Cause<'a>,
}

/// Why a function cannot be passed through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause<'a> {
    /// A domain holds it; by its record, which names this other address, or by its definition.
    Held(Option<Bdf>),
    /// An admin took it out of use, or it must be tested first.
    Excluded(&'a Exclusion),
    /// The same of the card that it is a virtual function of.
    CardExcluded(&'a Exclusion),
    /// It is over the limits of health.
    Unhealthy(&'a Health),
    /// gpuvm cannot pass it through yet.
    Unsupported(Unsupported),
    /// No guest can get it.
    Barred(Barred),
    /// Its ids read all ones or all zeros: vendor, device.
    Silent(u16, u16),
    /// This many virtual functions are enabled.
    Functions(u32),
    /// It has this many mediated devices.
    Mediated(u32),
    /// A domain has a vGPU of it, of this type.
    Shared(&'a str),
    /// The host uses it.
    Host(HostUse<'a>),
    /// A function that has to come along prevents it: the tie, the function, and its state.
    Shares(Tie, Bdf, Neighbour<'a>),
}

/// Why a function must accompany another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tie {
    /// They are in this IOMMU group.
    Group(u32),
    /// They are functions of one card.
    Card,
}

/// Why a member of an IOMMU group prevents another's passthrough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Neighbour<'a> {
    /// A domain holds it.
    Held,
    /// The host uses it.
    Host(HostUse<'a>),
    /// It has this many virtual functions enabled.
    Functions(u32),
    /// A device of this class that stays with the host.
    Stays(u32),
    /// A GPU that is not handed out.
    Display(SetAside),
}

/// The host's use of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostUse<'a> {
    /// Network, and why.
    Network(&'a str),
    /// Storage: the drive or its partition, and how.
    Drive(&'a str, &'a DriveUse),
}

impl fmt::Display for HostUse<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostUse::Network(why) => write!(f, "network, {why}"),
            HostUse::Drive(name, used) => f.write_str(&used.says(name)),
        }
    }
}

impl<'a> Block<'a> {
    /// Makes a reason that involves no domain.
    fn own(cause: Cause<'a>) -> Block<'a> {
        Block { domain: None, cause }
    }

    /// Returns why no guest can get the function, if that is the reason.
    pub(super) fn barred(&self) -> Option<Barred> {
        match self.cause {
            Cause::Barred(why) => Some(why),
            _ => None,
        }
    }

    /// Whether only a NIC or drive of its group prevents it, which the same guest could have.
    pub(super) fn is_tied(&self) -> bool {
        let Cause::Shares(Tie::Group(_), _, Neighbour::Stays(class)) = self.cause else {
            return false;
        };
        matches!(class >> 16, 0x01 | 0x02)
    }

    /// Which of several neighbours decides: first one that a guest has, last one that could go to
    /// the same guest.
    fn rank(&self) -> u8 {
        match self.cause {
            Cause::Shares(_, _, Neighbour::Held) => 0,
            Cause::Shares(_, _, Neighbour::Host(_)) => 1,
            Cause::Shares(_, _, Neighbour::Stays(_)) if self.is_tied() => 3,
            _ => 2,
        }
    }

    /// Whether a function that has to come along prevents it.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.cause, Cause::Shares(..))
    }

    /// Returns the state of the function.
    pub(super) fn state(&self) -> DeviceState {
        match self.cause {
            Cause::Held(_) | Cause::Shared(_) => DeviceState::Held,
            Cause::Excluded(exclusion) | Cause::CardExcluded(exclusion) if exclusion.untested => {
                DeviceState::Untested
            }
            Cause::Excluded(_) | Cause::CardExcluded(_) => DeviceState::Excluded,
            Cause::Unhealthy(_) => DeviceState::Unhealthy,
            Cause::Silent(..) => DeviceState::Silent,
            Cause::Host(_) => DeviceState::Host,
            Cause::Unsupported(_) => DeviceState::Unsupported,
            Cause::Barred(_) => DeviceState::Barred,
            Cause::Functions(_) | Cause::Mediated(_) | Cause::Shares(..) => DeviceState::Blocked,
        }
    }

    /// Returns the reason as words to follow the names of this many functions: "is held by domain
    /// `x`".
    pub(super) fn why(&self, functions: usize) -> String {
        let verb = |one: &'static str, many| if functions == 1 { one } else { many };
        let domain = self.domain.unwrap_or_default();
        match &self.cause {
            Cause::Held(None) => format!("{} held by domain `{domain}`", verb("is", "are")),
            Cause::Held(Some(was)) => format!(
                "{} recorded for domain `{domain}`, which had it at {was}",
                verb("is", "are")
            ),
            Cause::Excluded(exclusion) => format!("{} {}", verb("is", "are"), exclusion.says()),
            Cause::CardExcluded(exclusion) => {
                format!("{} {}", verb("is", "are"), exclusion.says_of_share())
            }
            Cause::Unhealthy(health) => {
                format!("{} unhealthy: {}", verb("is", "are"), health.why())
            }
            Cause::Unsupported(why) => format!("{} {why}", verb("is", "are")),
            Cause::Barred(why) => why.to_string(),
            Cause::Silent(vendor, device) => format!(
                "{} not answer: vendor and device id read {vendor:#06x}:{device:#06x}",
                verb("does", "do")
            ),
            Cause::Functions(enabled) => {
                format!("{} {} enabled", verb("has", "have"), count(*enabled, "virtual function"))
            }
            Cause::Mediated(number) => {
                format!("{} {}", verb("has", "have"), count(*number, "mediated device"))
            }
            Cause::Shared(name) => {
                format!("{} shared: domain `{domain}` has vGPU {name} of it", verb("is", "are"))
            }
            Cause::Host(used) => format!("{} used by the host: {used}", verb("is", "are")),
            Cause::Shares(tie, other, what) => {
                let what = match what {
                    Neighbour::Held => format!("which is held by domain `{domain}`"),
                    Neighbour::Host(used) => format!("which the host uses: {used}"),
                    Neighbour::Functions(enabled) => {
                        format!("which has {} enabled", count(*enabled, "virtual function"))
                    }
                    Neighbour::Stays(class) => {
                        format!("{} that stays with the host", noun(*class))
                    }
                    Neighbour::Display(why) => format!("which {}", why.why()),
                };
                let tied = match tie {
                    Tie::Group(group) => format!("IOMMU group {group}"),
                    Tie::Card => "a card".to_owned(),
                };
                format!("{} {tied} with {other}, {what}", verb("shares", "share"))
            }
        }
    }
}

/// A device by its class, with its article.
fn noun(class: u32) -> Cow<'static, str> {
    match class >> 8 {
        0x0106 => "a SATA controller".into(),
        0x0108 => "an NVMe drive".into(),
        0x0200 => "a NIC".into(),
        0x0403 => "an audio device".into(),
        0x0c03 => "a USB controller".into(),
        _ => format!("a device of class {class:#08x}").into(),
    }
}

/// The consequence of a group member for the passthrough of another.
enum Member<'a> {
    /// Comes along.
    Along,
    /// A GPU or NVSwitch, which must be among the chosen.
    Peer,
    /// Forbids it.
    Blocks(Block<'a>),
    /// Has no consequence: a bridge, which stays with the host, or a device of the same request.
    Stays,
}

/// Returns why a function cannot be passed through now; `None` if it can.
pub(super) fn block<'a>(topology: &'a Topology, taken: &Taken<'a>, bdf: Bdf) -> Option<Block<'a>> {
    let device = topology.device(bdf)?;
    if let Some(why) = topology.unsupported(device) {
        return Some(Block::own(Cause::Unsupported(why)));
    }
    if let Some(held) = taken.holder(bdf) {
        let cause = Cause::Held(held.moved_from(bdf));
        return Some(Block { domain: Some(&held.domain), cause });
    }
    let is_new = !taken.is_own(bdf);
    // Its own guest may have it already, and keeps it.
    if let Some(why) = is_new.then(|| barred(topology, device)).flatten() {
        return Some(Block::own(Cause::Barred(why)));
    }
    if let Some(exclusion) = taken.excluded(bdf).filter(|_| is_new) {
        let is_own = exclusion.bdf == bdf;
        let cause =
            if is_own { Cause::Excluded(exclusion) } else { Cause::CardExcluded(exclusion) };
        return Some(Block::own(cause));
    }
    if let Some(health) = device.health.as_ref().filter(|health| is_new && health.is_over()) {
        return Some(Block::own(Cause::Unhealthy(health)));
    }
    if device.is_silent() {
        return Some(Block::own(Cause::Silent(device.vendor, device.device)));
    }
    if let Some(Sriov::Pf { enabled: enabled @ 1.., .. }) = device.sriov {
        return Some(Block::own(Cause::Functions(enabled)));
    }
    if device.mediated > 0 {
        return Some(Block::own(Cause::Mediated(device.mediated)));
    }
    if let Some((domain, vgpu)) = taken.sharer(bdf) {
        return Some(Block { domain: Some(domain), cause: Cause::Shared(&vgpu.name) });
    }
    if let Some(used) = host_use(topology, device) {
        return Some(Block::own(Cause::Host(used)));
    }
    let blocks = |(tie, other)| match member(topology, taken, device, tie, other) {
        Member::Blocks(block) => Some(block),
        Member::Along | Member::Peer | Member::Stays => None,
    };
    members(topology, bdf)
        .map(|(group, other)| (Tie::Group(group), other))
        .filter_map(blocks)
        .min_by_key(Block::rank)
        .or_else(|| {
            let mates = card(topology, device).map(|other| (Tie::Card, other));
            mates.chain(beside_card(topology, device)).find_map(|tied| match blocks(tied) {
                // A GPU that only shares a group with a part of this card is not required with it.
                None if is_peer(tied.1) => {
                    let what = Neighbour::Stays(tied.1.class);
                    Some(Block::own(Cause::Shares(tied.0, tied.1.bdf, what)))
                }
                block => block,
            })
        })
}

/// Why no guest can get a function, or one that goes with it.
fn barred(topology: &Topology, device: &PciDevice) -> Option<Barred> {
    let along = [device].into_iter().chain(card(topology, device));
    along.filter_map(|function| topology.barred(function)).next()
}

/// GPUs that a request by number can get whole, now or later, by address, and the first of the
/// others with the reason, to follow its address. Only cards and their groups count, as
/// they are: guests, exclusions and health come and go, and the numbers that Slurm gives to GPUs stay.
pub fn whole_gpus(topology: &Topology) -> (Vec<&PciDevice>, Option<(Bdf, String)>) {
    // A guest keeps its own, excluded or unhealthy.
    let own_devices = topology.gpus().map(|gpu| gpu.bdf).collect();
    let nothing = Occupancy { own_devices, ..Occupancy::default() };
    let taken = Taken::new(topology, &nothing);
    let why_not = |gpu: &PciDevice| {
        let barred = barred(topology, gpu).map(|why| why.to_string());
        barred.or_else(|| Some(block(topology, &taken, gpu.bdf)?.why(1)))
    };
    let (mut whole, mut left_out) = (Vec::new(), None);
    for gpu in topology.gpus() {
        match why_not(gpu) {
            None => whole.push(gpu),
            Some(why) => _ = left_out.get_or_insert((gpu.bdf, why)),
        }
    }
    (whole, left_out)
}

/// The other functions of a GPU's card (audio, USB, UCSI), which go where it goes: those of its
/// slot that are neither GPUs, NICs nor drives. Those in its own IOMMU group are left out. None for
/// virtual functions, which share their card with all others, and for integrated GPUs, whose slot
/// has other functions of the processor.
fn card<'a>(topology: &'a Topology, gpu: &'a PciDevice) -> impl Iterator<Item = &'a PciDevice> {
    let is_virtual = |device: &PciDevice| device.is_vf();
    let whole = gpu.kind() == DeviceKind::Gpu
        && !is_virtual(gpu)
        && topology.set_aside(gpu) != Some(SetAside::Integrated);
    let mates = whole.then(|| topology.slot_of(gpu.bdf)).into_iter().flatten();
    mates.filter(move |mate| {
        let apart = gpu.iommu_group.is_none() || mate.iommu_group != gpu.iommu_group;
        apart && mate.kind() == DeviceKind::Other && !is_virtual(mate)
    })
}

/// Returns the functions that share an IOMMU group with another function of a GPU's card.
fn beside_card<'a>(
    topology: &'a Topology,
    gpu: &'a PciDevice,
) -> impl Iterator<Item = (Tie, &'a PciDevice)> {
    let of = |mate: &'a PciDevice| members(topology, mate.bdf);
    let all = card(topology, gpu).flat_map(of).filter(|(_, other)| other.bdf != gpu.bdf);
    all.map(|(group, other)| (Tie::Group(group), other))
}

/// Functions that have to come along with these, by address.
pub(super) fn companions<'a>(
    topology: &'a Topology,
    taken: &Taken<'a>,
    chosen: &[Bdf],
) -> Vec<Bdf> {
    let mut along: Vec<Bdf> = Vec::new();
    for device in chosen.iter().filter_map(|&bdf| topology.device(bdf)) {
        let group = members(topology, device.bdf).map(|(group, other)| (Tie::Group(group), other));
        let mates = card(topology, device).map(|other| (Tie::Card, other));
        for (tie, other) in group.chain(mates).chain(beside_card(topology, device)) {
            if matches!(member(topology, taken, device, tie, other), Member::Along)
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

/// A GPU or NVSwitch that shares a group with one of these and is not among them: function, group,
/// stranger.
pub(super) fn stranger(topology: &Topology, chosen: &[Bdf]) -> Option<(Bdf, u32, Bdf)> {
    chosen.iter().find_map(|&bdf| {
        let mut others = strangers(topology, bdf, chosen);
        others.next().map(|(group, other)| (bdf, group, other))
    })
}

/// All of them for one function, each with the group.
pub(super) fn strangers<'a>(
    topology: &'a Topology,
    bdf: Bdf,
    chosen: &'a [Bdf],
) -> impl Iterator<Item = (u32, Bdf)> + use<'a> {
    let others = members(topology, bdf);
    others
        .filter(|(_, other)| is_peer(other) && !chosen.contains(&other.bdf))
        .map(|(group, other)| (group, other.bdf))
}

/// Why a NIC or drive is not available by itself: it shares its group with a GPU or NVSwitch. Words
/// to follow its name.
pub(super) fn beside_peer(topology: &Topology, bdf: Bdf) -> Option<String> {
    let (_, group, other) = stranger(topology, &[bdf])?;
    let what = topology.device(other).map(PciDevice::kind);
    let what = if what == Some(DeviceKind::Gpu) { "a GPU" } else { "an NVSwitch" };
    Some(format!("shares IOMMU group {group} with {other}, {what}"))
}

/// The options by which a guest gets a function's whole IOMMU group, which has GPUs, NICs or drives
/// of several slots; `None` if no guest can have it, or it needs no option.
pub fn whole_group(topology: &Topology, bdf: Bdf) -> Option<String> {
    let group = topology.iommu_group(bdf)?;
    let slot = |bdf: Bdf| (bdf.segment(), bdf.bus(), bdf.device());
    let mut options = Vec::new();
    for member in group.members.iter().filter_map(|&bdf| topology.device(bdf)) {
        let has_functions = matches!(member.sriov, Some(Sriov::Pf { enabled: 1.., .. }));
        let is_refused = host_use(topology, member).is_some()
            || topology.unsupported(member).is_some()
            || topology.barred(member).is_some();
        if has_functions || member.mediated > 0 || is_refused {
            return None;
        }
        match (member.kind(), Kind::of(member)) {
            (DeviceKind::Bridge | DeviceKind::HostBridge, _) => {}
            (DeviceKind::Gpu, _) => options.push(format!("--gpu {}", member.bdf)),
            (DeviceKind::NvSwitch, _) => return None,
            (_, Some(kind)) => options.push(format!("{} {}", kind.flag(), member.bdf)),
            (_, None) => {
                let comes = is_peers(topology, member) || goes_along(member.class);
                let is_mate = slot(member.bdf) == slot(bdf);
                (comes || is_mate).then_some(())?;
            }
        }
    }
    options.sort();
    let slots: BTreeSet<_> = group.members.iter().map(|&bdf| slot(bdf)).collect();
    (options.len() > 1 && slots.len() > 1).then(|| options.join(" "))
}

/// The options of [`whole_group`] if a new guest can have the group now: nothing but NICs and drives
/// of the group, which the options name, prevents that.
pub(super) fn whole_group_now(topology: &Topology, taken: &Taken<'_>, bdf: Bdf) -> Option<String> {
    let options = whole_group(topology, bdf)?;
    let is_free = |member: &PciDevice| {
        matches!(member.kind(), DeviceKind::Bridge | DeviceKind::HostBridge)
            || taken.device(member.bdf).is_none()
                && block(topology, taken, member.bdf).is_none_or(|block| block.is_tied())
    };
    let all = members(topology, bdf).map(|(_, other)| other).chain(topology.device(bdf));
    all.into_iter().all(is_free).then_some(options)
}

/// Whether the domain that holds a function holds all of its IOMMU group but bridges.
pub(super) fn is_held_whole(topology: &Topology, taken: &Taken<'_>, bdf: Bdf) -> bool {
    let is_same = |(_, other): (u32, &PciDevice)| {
        matches!(other.kind(), DeviceKind::Bridge | DeviceKind::HostBridge)
            || taken.device(other.bdf) == taken.device(bdf)
    };
    taken.device(bdf).is_some() && members(topology, bdf).all(is_same)
}

/// Whether a function of a group that a host does not use by itself comes along: memory and other
/// controllers.
fn goes_along(class: u32) -> bool {
    matches!(class >> 16, 0x05 | 0x06 | 0x08 | 0x11 | 0xff)
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

/// Whether a function belongs to the card of a GPU or NVSwitch of its IOMMU group that may be
/// chosen: passing `device` requires that one, too.
fn is_peers(topology: &Topology, other: &PciDevice) -> bool {
    let mut slot = topology.slot_of(other.bdf);
    slot.any(|mate| is_peer(mate) && mate.iommu_group == other.iommu_group)
}

/// Returns the consequence of a group member for `device`. Bridges stay (only classes 0x0600 and
/// 0x0604 are bridges). Functions of the same slot come along, as do those of the slot of another
/// GPU of the group, and, elsewhere, functions that [`goes_along`] says. Anything else may be in use
/// by the host and blocks, unless the request names it, too.
fn member<'a>(
    topology: &'a Topology,
    taken: &Taken<'a>,
    device: &PciDevice,
    tie: Tie,
    other: &'a PciDevice,
) -> Member<'a> {
    let share = |domain: Option<&'a str>, what: Neighbour<'a>| {
        Member::Blocks(Block { domain, cause: Cause::Shares(tie, other.bdf, what) })
    };
    if matches!(other.kind(), DeviceKind::Bridge | DeviceKind::HostBridge) {
        return Member::Stays;
    }
    if let Some(domain) = taken.device(other.bdf) {
        return share(Some(domain), Neighbour::Held);
    }
    if let Some(used) = host_use(topology, other) {
        return share(None, Neighbour::Host(used));
    }
    if let Some(Sriov::Pf { enabled: enabled @ 1.., .. }) = other.sriov {
        return share(None, Neighbour::Functions(enabled));
    }
    let slot = |bdf: Bdf| (bdf.segment(), bdf.bus(), bdf.device());
    match () {
        () if is_peer(other) => match topology.set_aside(other) {
            Some(why) if !taken.asks_for(other.bdf) => share(None, Neighbour::Display(why)),
            _ => Member::Peer,
        },
        () if slot(other.bdf) == slot(device.bdf) => Member::Along,
        () if is_peers(topology, other) || goes_along(other.class) => Member::Along,
        // It goes to the same guest.
        () if taken.names(other.bdf) => Member::Stays,
        () => share(None, Neighbour::Stays(other.class)),
    }
}

/// Returns why an NVMe function is given only when named by address, as words to follow its name:
/// data on its drives, or unknown content. `None` if its drives are blank, or unknown on a recorded
/// host.
pub(super) fn remains(topology: &Topology, bdf: Bdf) -> Option<String> {
    let device = topology.device(bdf).filter(|device| device.kind() == DeviceKind::Nvme)?;
    let mut drives = topology.parts().drives.iter().filter(|drive| drive.bdf == Some(bdf));
    let contents: Vec<String> = drives.by_ref().flat_map(Drive::remains).collect();
    if !contents.is_empty() {
        return Some(format!("has data: {}", contents.join(", ")));
    }
    let has_drive = topology.parts().drives.iter().any(|drive| drive.bdf == Some(bdf));
    let is_away = device.driver.as_deref().is_some_and(crate::topology::is_vfio);
    (!has_drive && is_away).then(|| "is bound to vfio-pci, so its content is unknown".to_owned())
}

/// Returns the host's use of a function; none if none is known.
fn host_use<'a>(topology: &'a Topology, device: &'a PciDevice) -> Option<HostUse<'a>> {
    if let Some(why) = device.net.as_ref().and_then(|net| net.used_by.first()) {
        return Some(HostUse::Network(why));
    }
    let drives = topology.parts().drives.iter().filter(|drive| drive.bdf == Some(device.bdf));
    drives.into_iter().find_map(drive_use)
}

/// Returns the host's use of a drive.
fn drive_use(drive: &Drive) -> Option<HostUse<'_>> {
    let (name, used) = drive.uses().next()?;
    Some(HostUse::Drive(name, used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_the_device_in_a_gpus_slot() {
        use crate::placement::tests::testhost::{HostSpec, device};
        let mut parts = HostSpec::even(1, 8, 64, 1).parts();
        let gpu = parts.devices[0].bdf;
        let mut audio = device(0x10, 0x04_0300, 0x10f0, None);
        audio.bdf = gpu.to_string().replace(".0", ".1").parse().unwrap();
        audio.iommu_group = Some(99);
        parts.devices.push(audio.clone());
        let mates = |parts: &crate::topology::Parts| {
            let host = Topology::new(parts.clone()).unwrap();
            card(&host, host.device(gpu).unwrap()).map(|mate| mate.bdf).collect::<Vec<_>>()
        };
        assert_eq!(mates(&parts), [audio.bdf]);
        // Members of the GPU's own group go with the group.
        parts.devices[1].iommu_group = parts.devices[0].iommu_group;
        assert_eq!(mates(&parts), []);
        parts.devices[1].iommu_group = Some(99);
        let pf = device(0x60, 0x03_0200, 0x1db8, None);
        parts.devices[0].sriov = Some(Sriov::Vf { pf: pf.bdf });
        parts.devices.push(pf);
        assert_eq!(mates(&parts), [], "a virtual function has a card in common with others");
    }

    #[test]
    fn functions_without_a_driver_come_with_their_group() {
        use crate::placement::tests::testhost::{HostSpec, device};
        for (class, comes) in [
            (0x05_0000, true),
            (0x06_8000, true),
            (0x08_8000, true),
            (0x11_8000, true),
            (0xff_0000, true),
            (0x0c_0300, false),
        ] {
            let mut parts = HostSpec::even(1, 8, 64, 1).parts();
            let mut other = device(0x40, class, 0x1234, None);
            other.vendor = 0x8086;
            other.iommu_group = parts.devices[0].iommu_group;
            parts.devices.push(other.clone());
            let host = Topology::new(parts).unwrap();
            let held = Occupancy::default();
            let request = crate::request::Request::for_gpus(1);
            let placement = crate::placement::plan(&host, &held, &request);
            let along = placement.is_ok_and(|placement| placement.devices.contains(&other.bdf));
            assert_eq!(along, comes, "class {class:06x}");
        }
    }
}
