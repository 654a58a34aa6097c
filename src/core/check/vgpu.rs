//! Rules on a guest's vGPUs: what their cards, the driver and libvirt refuse at the start.

use super::guest::Guest;
use super::report::Report;
use crate::bdf::Bdf;
use crate::domain::read::Spot;
use crate::finding::Rule;
use crate::host_device::HostDevice;
use crate::occupancy::{GuestVgpu, Occupancy};
use crate::placement::{is_in_mode, mig_words, room_now, shared_cards};
use crate::request::VgpuWish;
use crate::shell::word;
use crate::topology::{Mdev, Topology, Vgpu};
use crate::versions::{LIBVIRT_VGPU, Versions};
use crate::words::count;
use std::collections::BTreeMap;

/// gpuvm clears no type that it did not set, and the driver replaces none.
const RETYPED: Rule =
    Rule::error("vgpu-retyped", "a vGPU whose function or UUID has another type than its guest's");
/// Its guest does not start.
const UNAVAILABLE: Rule = Rule::error(
    "vgpu-unavailable",
    "a vGPU that its guest cannot get: by its parent, the vGPUs or the mode of its GPU, or the \
     version of libvirt",
);

/// Rules of this module.
pub const RULES: &[Rule] = &[RETYPED, UNAVAILABLE];
/// ID of the rule on other types.
pub const RETYPED_ID: &str = RETYPED.id;
/// ID of the rule on vGPUs that a guest does not get at its start.
pub const UNAVAILABLE_ID: &str = UNAVAILABLE.id;

/// Checks the vGPUs that are recorded for a guest; those that it gives up for others are cleared
/// first.
pub fn check<'t>(
    guest: &Guest<'t>,
    (topology, others): (&Topology, &Occupancy),
    versions: &Versions,
    report: &mut Report<'t>,
) {
    old_libvirt(guest, topology, versions, report);
    if topology.devices().is_empty() {
        return;
    }
    let is_given_up = |vgpu: &GuestVgpu| {
        let mut own = others.own_vgpus.vgpus.iter();
        own.any(|own| own.function == vgpu.function)
    };
    let mut unset = Vec::new();
    for vgpu in guest.vgpus.iter().filter(|vgpu| !is_given_up(vgpu)) {
        let now = match vgpu.number() {
            Some(number) => of_function(vgpu, number, topology),
            None => of_mdev(vgpu, topology),
        };
        match now {
            Now::Set => {}
            Now::Other(now) => other_type(guest, vgpu, &now, report),
            Now::Absent => absent(guest, vgpu, report),
            Now::Unset => {
                let is_permitted = modes(guest, vgpu, topology, report);
                let mut given_up = others.own_vgpus.vgpus.iter();
                if is_permitted && given_up.all(|own| own.card != vgpu.card) {
                    unset.push(vgpu);
                }
            }
        }
    }
    no_room(guest, &unset, topology, report);
}

/// What the host has of a vGPU.
enum Now {
    /// The vGPU.
    Set,
    /// Nothing yet: it gets its type, or is made, before the start.
    Unset,
    /// One of another type.
    Other(String),
    /// Nothing that could become it.
    Absent,
}

/// The state of a virtual function. [`super::hostdev`] judges one that no type can be set for.
fn of_function(vgpu: &GuestVgpu, number: u32, topology: &Topology) -> Now {
    match topology.device(vgpu.function).and_then(|function| function.vgpu_type()) {
        Some(now) if now == number => Now::Set,
        Some(now) => Now::Other(now.to_string()),
        None => Now::Unset,
    }
}

/// The state of a mediated device.
fn of_mdev(vgpu: &GuestVgpu, topology: &Topology) -> Now {
    let parent = topology.device(vgpu.function).and_then(|parent| parent.vgpu.as_ref());
    let Some(Vgpu::Mdev { types, devices }) = parent else { return Now::Absent };
    let is_it =
        |mdev: &&Mdev| vgpu.uuid.as_ref().is_some_and(|uuid| uuid.eq_ignore_ascii_case(&mdev.uuid));
    match devices.iter().find(is_it).map(|mdev| mdev.type_id.as_ref()) {
        Some(Some(now)) if *now != vgpu.type_id => Now::Other(now.clone()),
        Some(_) => Now::Set,
        None if types.iter().any(|of| of.id == vgpu.type_id) => Now::Unset,
        None => Now::Absent,
    }
}

/// The element of a vGPU in the definition.
fn place<'t>(guest: &Guest<'t>, vgpu: &GuestVgpu) -> Spot<'t> {
    if vgpu.is_mdev() {
        let is_it = |device: &HostDevice| match (device, &vgpu.uuid) {
            (HostDevice::Mediated(own), Some(uuid)) => own.eq_ignore_ascii_case(uuid),
            _ => false,
        };
        let device = guest.host_devices.iter().find(|device| is_it(&device.value));
        return device.map_or(guest.spot, |device| device.spot);
    }
    let passed = guest.passed.iter().find(|passed| passed.bdf.value == vgpu.function);
    passed.map_or(guest.spot, |passed| passed.bdf.spot)
}

fn other_type<'t>(guest: &Guest<'t>, vgpu: &GuestVgpu, now: &str, report: &mut Report<'t>) {
    let what = vgpu.uuid.clone().unwrap_or_else(|| vgpu.function.to_string());
    let GuestVgpu { type_id, name, .. } = vgpu;
    let message = format!("{what} has vGPU type {now}, and the guest's is {type_id} ({name})");
    report.add(&RETYPED, place(guest, vgpu), message, retyped(vgpu, &guest.name));
}

fn absent<'t>(guest: &Guest<'t>, vgpu: &GuestVgpu, report: &mut Report<'t>) {
    let GuestVgpu { card, function, type_id, name, .. } = vgpu;
    let message = format!("{function} offers no mediated devices of vGPU type {type_id} ({name})");
    let hint = if card == function {
        "`gpuvm vgpu list` shows the types that each GPU offers".to_owned()
    } else {
        format!(
            "`gpuvm vgpu vfs {card} --on --at-boot` enables the virtual functions that offer them"
        )
    };
    report.add(&UNAVAILABLE, place(guest, vgpu), message, hint);
}

/// Finds modes of a card that do not permit the type, which the driver then refuses, and returns
/// whether there is none.
fn modes<'t>(
    guest: &Guest<'t>,
    vgpu: &GuestVgpu,
    topology: &Topology,
    report: &mut Report<'t>,
) -> bool {
    let (bdf, spot) = (vgpu.card, place(guest, vgpu));
    let mode = topology.no_vgpu_mode(bdf);
    if let Some(mode) = &mode {
        report.add(&UNAVAILABLE, spot, mode.to_string(), mode.hint());
    }
    let Some(card) = topology.device(bdf).filter(|card| !is_in_mode(card, &vgpu.name)) else {
        return mode.is_none();
    };
    let wanted = u8::from(card.mig.is_some_and(|mig| !mig.enabled));
    let hint = format!(
        "`gpuvm set {} --vgpu TYPE` gives it another type, or `nvidia-smi -i {bdf} -mig {wanted}` \
         while no guest has the GPU",
        crate::shell::domain(&guest.name)
    );
    report.add(&UNAVAILABLE, spot, mig_words(bdf, &vgpu.name), hint);
    false
}

/// Finds vGPUs that the driver does not offer beside those that their card has.
fn no_room<'t>(
    guest: &Guest<'t>,
    unset: &[&GuestVgpu],
    topology: &Topology,
    report: &mut Report<'t>,
) {
    let wish = guest.asked.as_ref().and_then(|asked| asked.vgpu.as_ref());
    for (vgpu, message) in unoffered(unset.iter().copied(), topology) {
        let hint = planned_again(&guest.name, &guest.vgpus, wish, vgpu.card);
        report.add(&UNAVAILABLE, place(guest, vgpu), message, hint);
    }
}

/// vGPUs of a guest that it cannot get now, each with the reason: the other vGPUs of their card
/// leave no room, or are of another size. Of several that have no room together, the first that is
/// too many. Those that exist are left out.
pub fn unoffered<'v>(
    vgpus: impl IntoIterator<Item = &'v GuestVgpu>,
    topology: &Topology,
) -> Vec<(&'v GuestVgpu, String)> {
    let mut found = Vec::new();
    let mut together: BTreeMap<(Bdf, &str), Vec<&GuestVgpu>> = BTreeMap::new();
    for vgpu in vgpus {
        match is_offered(vgpu, topology) {
            None => {}
            Some(true) => together.entry((vgpu.card, &vgpu.type_id)).or_default().push(vgpu),
            Some(false) => found.push((vgpu, not_offered(vgpu, topology))),
        }
    }
    together.retain(|_, vgpus| vgpus.len() > 1);
    if together.is_empty() {
        return found;
    }
    let cards = shared_cards(topology, &Occupancy::default());
    for ((card, type_id), vgpus) in together {
        // The driver lists the type, so there is room for one at least.
        let Some(room) = room_now(&cards, card, type_id).map(|room| room.max(1)) else { continue };
        if let Some(vgpu) = vgpus.get(room as usize) {
            found.push((vgpu, too_many(vgpu, room, vgpus.len(), topology)));
        }
    }
    found
}

/// Whether the driver offers the type of a vGPU that does not exist yet; `None` if it exists, or is
/// not to be made by its function.
fn is_offered(vgpu: &GuestVgpu, topology: &Topology) -> Option<bool> {
    match topology.device(vgpu.function)?.vgpu.as_ref()? {
        Vgpu::Vfio { current: 0, creatable } => Some(creatable.contains(&vgpu.number()?)),
        Vgpu::Mdev { types, devices } => {
            let is_it = |mdev: &Mdev| vgpu.is_device(&mdev.uuid);
            let offered = types.iter().find(|of| of.id == vgpu.type_id);
            offered.filter(|_| !devices.iter().any(is_it)).map(|of| of.available > 0)
        }
        _ => None,
    }
}

fn not_offered(vgpu: &GuestVgpu, topology: &Topology) -> String {
    let GuestVgpu { card, function, type_id, name, .. } = vgpu;
    let message = format!("{function} does not offer vGPU type {type_id} ({name}) now");
    match present(*card, topology) {
        Some(there) => format!("{message}: its GPU has {there}"),
        None => message,
    }
}

fn too_many(vgpu: &GuestVgpu, room: u32, wanted: usize, topology: &Topology) -> String {
    let GuestVgpu { card, type_id, name, .. } = vgpu;
    let room = count(room, "more vGPU");
    let message = format!(
        "{card} has room for {room} of type {type_id} ({name}) now, and the guest needs {wanted}"
    );
    match present(*card, topology) {
        Some(there) => format!("{message}: the GPU has {there}"),
        None => message,
    }
}

/// The vGPUs that a card has: `1 x H200X-18C`; `None` if it has none.
fn present(card: Bdf, topology: &Topology) -> Option<String> {
    let there = topology.vgpus_of(topology.device(card)?);
    let there: Vec<String> =
        there.iter().map(|(name, number)| format!("{number} x {name}")).collect();
    (!there.is_empty()).then(|| there.join(", "))
}

/// The way of a guest to other vGPUs where it cannot get its own: the recorded request, `wish`, on
/// any card. `card`: the one that has no room.
pub fn planned_again(
    domain: &str,
    vgpus: &[GuestVgpu],
    wish: Option<&VgpuWish>,
    card: Bdf,
) -> String {
    let number = u32::try_from(vgpus.len()).unwrap_or(u32::MAX);
    let of_name = || vgpus.first().map(|vgpu| vgpu.name.clone()).unwrap_or_default();
    let wanted = VgpuWish {
        type_name: wish.map_or_else(of_name, |wish| wish.type_name.clone()),
        count: wish.map_or(1, |wish| wish.count).max(number),
        gpu: None,
    };
    let it = if wanted.count == 1 { "it" } else { "them" };
    let place = if wish.is_some_and(|wish| wish.gpu.is_some()) {
        format!("plans {it} on another GPU than {card}, if one has room")
    } else {
        format!("plans {it} again, where a GPU has room")
    };
    format!(
        "`gpuvm set {} --vgpu {}` {place}; `gpuvm vgpu list` shows who has which vGPU",
        crate::shell::domain(domain),
        word(&wanted.to_string())
    )
}

/// Finds a libvirt that does not pass functions on the vendor's driver through.
fn old_libvirt<'t>(
    guest: &Guest<'t>,
    topology: &Topology,
    versions: &Versions,
    report: &mut Report<'t>,
) {
    let Some(version) = versions.libvirt.filter(|version| *version < LIBVIRT_VGPU) else { return };
    let is_vgpu = |function| {
        let mut recorded = guest.vgpus.iter().filter(|vgpu| !vgpu.is_mdev());
        topology.is_vgpu_function(function) || recorded.any(|vgpu| vgpu.function == function)
    };
    let mut passed = guest.passed.iter().filter(|passed| !passed.by_argument);
    if let Some(passed) = passed.find(|passed| is_vgpu(passed.bdf.value)) {
        let message = format!(
            "libvirt is {version}, and vGPUs on virtual functions need {LIBVIRT_VGPU} or later"
        );
        let hint = "`virsh version` shows it; take libvirt from the distribution's backports";
        report.add(&UNAVAILABLE, passed.bdf.spot, message, hint);
    }
}

/// The way of a guest that is off to its own type where its function, or its UUID, has another one:
/// gpuvm clears no type that it did not set for the guest.
pub fn retyped(vgpu: &GuestVgpu, domain: &str) -> String {
    let clears = match &vgpu.uuid {
        Some(uuid) => format!("echo 1 > /sys/bus/mdev/devices/{uuid}/remove"),
        None => clearing(vgpu.function),
    };
    format!(
        "if no guest uses it, `{clears}` clears it; then `gpuvm start {}` sets its own",
        word(domain)
    )
}

/// The command that clears the type of a function.
pub fn clearing(function: Bdf) -> String {
    format!("echo 0 > /sys/bus/pci/devices/{function}/nvidia/current_vgpu_type")
}
