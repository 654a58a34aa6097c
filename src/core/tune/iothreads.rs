//! Tunes a guest's I/O threads: their number, the disks each serves, their pins.

use super::disks::{Disk, disks, queues_of};
use super::work::Work;
use super::{Item, ItemName, TuneError};
use crate::cpuset::CpuSet;
use crate::domain::Element;
use crate::domain::claims::IothreadSet;
use crate::domain::disks::{Spread, named_iothreads};
use crate::domain::placed::IoThread;
use crate::domain::setting::{DiskTuning, Put, Setting};
use crate::placement::Placement;

pub(super) fn apply(work: &mut Work<'_>) -> Result<(), TuneError> {
    iothreads(work)?;
    iothread_pins(work)
}

/// Returns the I/O threads named by devices other than these disks.
fn named_by_others(work: &Work<'_>, disks: &[Disk]) -> u32 {
    let devices = work.xml.root().child("devices").into_iter().flat_map(Element::elements);
    let mut at = 0;
    let others = devices.filter(|device| {
        if device.name() != "disk" {
            return true;
        }
        at += 1;
        !disks.iter().any(|disk| disk.virtio && disk.nth + 1 == at)
    });
    others.flat_map(named_iothreads).max().unwrap_or(0)
}

/// Adapts a plan to this many I/O threads, taking those of the nodes in turn.
fn with_threads(placement: &Placement, number: u32) -> Placement {
    let pins = placement.iothread_pins.iter().cycle().take(number as usize).cloned().collect();
    Placement { iothread_pins: pins, ..placement.clone() }
}

/// Tunes the number of I/O threads, and the disks each serves.
fn iothreads(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::Iothreads;
    let all = disks(work);
    let virtio: Vec<&Disk> = all.iter().filter(|disk| disk.virtio).collect();
    let mapping = work.given.abilities.queue_mapping;
    let named = named_by_others(work, &all);
    let spread = match (work.given.items.iothreads, work.placement) {
        (Item::Keep, _) | (Item::On | Item::To(_), None) => return Ok(()),
        (Item::Off, _) => None,
        (Item::On, Some(placement)) => {
            let spread = |placement: &Placement| {
                Spread::new(virtio.len(), mapping, placement, work.given.topology)
            };
            let usual = spread(placement);
            // More than usual are the choice of its owner.
            let own = u32::try_from(work.guest.claims.iothreads.len()).unwrap_or(u32::MAX);
            let items = work.given.items;
            let is_unnamed = items.resize.is_none() && items.unnamed.contains(&item);
            let is_kept = is_unnamed && own > usual.threads();
            let kept = is_kept.then(|| spread(&with_threads(placement, own)));
            Some(kept.filter(|kept| kept.threads() == own).unwrap_or(usual))
        }
        (Item::To(number), Some(placement)) => {
            let wanted = with_threads(placement, number);
            let spread = Spread::new(virtio.len(), mapping, &wanted, work.given.topology);
            let used = spread.threads().max(named);
            if used < number {
                let message = format!("{number} threads, and the guest's disks can use {used}");
                return Err(TuneError::item(item, message, format!("--iothreads {used}")));
            }
            Some(spread)
        }
    };
    let number = spread.as_ref().map_or(0, Spread::threads).max(named);
    let serve = |(at, disk): (usize, &&Disk)| {
        let queues = queues_of(work, disk);
        let threads: Vec<IoThread> = spread.as_ref().map(|s| s.of(at, queues)).unwrap_or_default();
        DiskTuning { nth: disk.nth, iothreads: Put::Is(threads), ..DiskTuning::default() }
    };
    let disks: Vec<DiskTuning> = virtio.iter().enumerate().map(serve).collect();
    if !work.guest.claims.iothreads.keys().copied().eq(1..=number) {
        work.set(item, Setting::Iothreads { number })?;
        // libvirt refuses the pin of a thread that does not exist.
        let pins = work.guest.claims.iothread_pins.iter();
        if pins.clone().any(|pin| pin.of.value > number) {
            let mut kept = vec![CpuSet::new(); number as usize];
            for pin in pins {
                if let Some(place) = kept.get_mut((pin.of.value as usize).wrapping_sub(1)) {
                    place.clone_from(&pin.cpuset.value);
                }
            }
            work.set(item, Setting::IothreadPins { pins: kept })?;
        }
        schedulers(work, item, number)?;
    }
    work.set(item, Setting::Disks { disks })
}

/// Removes threads that no longer exist from the scheduler settings, which libvirt would refuse.
fn schedulers(work: &mut Work<'_>, item: ItemName, number: u32) -> Result<(), TuneError> {
    let tune = work.xml.root().child("cputune");
    let all = tune.into_iter().flat_map(|tune| tune.children("iothreadsched")).enumerate();
    let fewer = |(nth, element): (usize, Element<'_>)| {
        let named: IothreadSet = element.attr("iothreads")?.parse().ok()?;
        let left: IothreadSet = named.iter().filter(|id| id.0 <= number).collect();
        (left != named).then_some((nth, left))
    };
    let threads: Vec<_> = all.filter_map(fewer).collect();
    if threads.is_empty() {
        Ok(())
    } else {
        work.set(item, Setting::IothreadSchedulers { threads })
    }
}

fn iothread_pins(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::IothreadPins;
    let claims = crate::domain::claims::Claims::read(&work.xml);
    let number = claims.iothreads.len();
    let consecutive = claims.iothreads.keys().copied().eq(1..=u32::try_from(number).unwrap_or(0));
    let pins = match (&work.given.items.iothread_pins, work.placement) {
        (Item::Keep, _) | (Item::On, None) => return Ok(()),
        (Item::Off, _) => Vec::new(),
        (Item::To(pin), _) => {
            super::cpu::there(work.given.topology, pin, item)?;
            vec![pin.clone(); number]
        }
        (Item::On, Some(placement)) => {
            placement.iothread_pins.iter().cycle().take(number).cloned().collect()
        }
    };
    if !pins.is_empty() && !consecutive {
        let ids: Vec<String> = claims.iothreads.keys().map(ToString::to_string).collect();
        let message = format!("the I/O threads have the ids {}", ids.join(", "));
        return Err(TuneError::item(item, message, "add --iothreads on, which renumbers them"));
    }
    work.set(item, Setting::IothreadPins { pins })
}
