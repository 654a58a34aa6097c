//! The legend of a picture: guests with their letters, then patterns and marks.

use super::{Area, PAD, WIDTH};
use crate::topology::{DeviceKind, Topology};
use crate::view::guests::{Guest, Role};
use crate::view::markup::cut;
use crate::words::count;

const ROW: u32 = 22;
const COLUMNS: u32 = 4;
const MOST: usize = 40;

/// The subject of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// A guest, by its place.
    Guest(usize),
    /// Free parts.
    Free,
    /// Parts in use by the host.
    Host,
    /// Devices of Fabric Manager.
    FabricManager,
    /// A pcpu that is isolated.
    Isolated,
    /// A pcpu that is offline.
    Offline,
    /// Devices that no guest can have.
    Unusable,
    /// Parts that a planned guest would get.
    Planned,
    /// A mark on a pcpu.
    Mark(Role),
}

/// An entry of the legend.
#[derive(Debug)]
pub struct Entry {
    /// Its place.
    pub area: Area,
    /// The sign that it explains.
    pub sign: Sign,
    /// The words beside the sign.
    pub words: String,
}

/// Places the entries below a line; returns them and the height of all that is drawn.
pub(super) fn entries(topology: &Topology, guests: &[Guest<'_>], top: u32) -> (Vec<Entry>, u32) {
    let guest = |(guest, place): (&Guest<'_>, usize)| {
        let devices = guest.devices().len();
        let vcpus = guest.vcpus().map(|vcpus| count(vcpus, "vCPU"));
        let held = (devices > 0).then(|| count(devices, "device"));
        let facts: Vec<String> =
            [guest.state().to_owned()].into_iter().chain(held).chain(vcpus).collect();
        let facts = facts.join(", ");
        let room = MOST.saturating_sub(facts.chars().count() + 2);
        (Sign::Guest(place), format!("{}: {facts}", cut(guest.name, room.max(8))))
    };
    let mut signs: Vec<(Sign, String)> = guests.iter().zip(0..).map(guest).collect();
    let has_planned = guests.iter().any(|guest| guest.planned);
    let mut fixed: Vec<(Sign, String)> = vec![
        (Sign::Free, "free".into()),
        (Sign::Host, "used by the host, or with data".into()),
        (Sign::Unusable, "not available to guests".into()),
    ];
    let mut switches = topology.of_kind(DeviceKind::NvSwitch).map(|switch| switch.bdf);
    let has_manager = switches.any(|bdf| topology.is_fabric_managers(bdf));
    fixed.extend(has_manager.then(|| (Sign::FabricManager, "Fabric Manager's NVSwitch".into())));
    fixed.extend(has_planned.then(|| (Sign::Planned, "planned: dashed border".into())));
    fixed.extend([
        (Sign::Mark(Role::Vcpu), "vCPU of the guest".into()),
        (Sign::Mark(Role::Emulator), "its emulator".into()),
        (Sign::Mark(Role::Iothread), "its I/O threads".into()),
    ]);
    let host = topology.parts();
    for (sign, word, pcpus) in [
        (Sign::Isolated, "isolated by the kernel", &host.isolated),
        (Sign::Offline, "offline", &host.offline),
    ] {
        let words = cut(&format!("{word}: pcpus {pcpus}"), MOST);
        fixed.extend((!pcpus.is_empty()).then_some((sign, words)));
    }
    // Patterns and marks begin a row of their own.
    let columns = COLUMNS as usize;
    let first = signs.len().next_multiple_of(columns);
    let places = (0..signs.len()).chain(first..);
    let all: Vec<(Sign, String)> = signs.drain(..).chain(fixed).collect();
    let width = (WIDTH - 2 * PAD) / COLUMNS;
    let mut bottom = top;
    let entries = all.into_iter().zip(places).map(|((sign, words), place)| {
        let column = u32::try_from(place % columns).expect("few columns");
        let row = u32::try_from(place / columns).unwrap_or(u32::MAX / ROW / 2);
        let area = Area::new(PAD + column * width, top + PAD + row * ROW, width, ROW);
        bottom = bottom.max(area.bottom());
        Entry { area, sign, words }
    });
    let entries = entries.collect();
    (entries, bottom + PAD)
}
