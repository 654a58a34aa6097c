//! Tunes a guest's disks: cache and I/O, queues, the file with the content.

use super::work::Work;
use super::{Item, ItemName, TuneError};
use crate::domain::Element;
use crate::domain::disks::disk_queues;
use crate::domain::guest::{DiskIo, Made};
use crate::domain::setting::{DiskTuning, Put, Setting};

/// A writable disk of a document.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    /// Index among the document's disks.
    pub nth: usize,
    target: String,
    /// Path on the host; `None` if it is neither a file nor a block device.
    path: Option<String>,
    /// Whether it is on virtio, so that it has queues and I/O threads.
    pub virtio: bool,
    cache: Option<String>,
    /// How QEMU reads and writes it.
    io: Option<String>,
}

pub(super) fn disks(work: &Work<'_>) -> Vec<Disk> {
    let devices = work.xml.root().child("devices");
    let all = devices.into_iter().flat_map(|devices| devices.children("disk")).enumerate();
    let read = |(nth, disk): (usize, Element<'_>)| {
        let is_disk = disk.attr("device").is_none_or(|device| device == "disk");
        // A disk served by another process uses that process' queues and threads.
        let is_served = disk.attr("type").is_some_and(|kind| kind == "vhostuser");
        if !is_disk || is_served || disk.child("readonly").is_some() {
            return None;
        }
        let text = |element: Option<Element<'_>>, name: &str| {
            element.and_then(|element| element.attr(name)).map(|text| text.into_owned())
        };
        let (source, target, driver) =
            (disk.child("source"), disk.child("target"), disk.child("driver"));
        let name = text(target, "dev").unwrap_or_default();
        let bus = text(target, "bus");
        Some(Disk {
            nth,
            path: text(source, "file").or_else(|| text(source, "dev")),
            virtio: bus.map_or(name.starts_with("vd"), |bus| bus == "virtio"),
            target: name,
            cache: text(driver, "cache"),
            io: text(driver, "io"),
        })
    };
    all.filter_map(read).collect()
}

/// Returns the queues that a disk will have.
pub(super) fn queues_of(work: &Work<'_>, disk: &Disk) -> u32 {
    match work.given.items.disk_queues {
        Item::On => disk_queues(work.vcpus()),
        Item::To(queues) => queues,
        Item::Off => 1,
        Item::Keep => {
            let devices = work.xml.root().child("devices");
            let element = devices.and_then(|devices| devices.children("disk").nth(disk.nth));
            let queues = element.and_then(|disk| disk.child("driver")?.attr("queues"));
            queues.and_then(|text| text.parse().ok()).unwrap_or(1)
        }
    }
}

/// Tunes cache and I/O of disks.
pub(super) fn driver_words(work: &mut Work<'_>) -> Result<(), TuneError> {
    let items = work.given.items;
    if items.disk_cache.is_kept() && items.disk_io.is_kept() {
        return Ok(());
    }
    let (mut caches, mut ios) = (Vec::new(), Vec::new());
    for disk in disks(work) {
        let Some(path) = &disk.path else { continue };
        let best = work.given.disks.get(path).copied().unwrap_or_default();
        let (cache, io) =
            (put(&items.disk_cache, best, &disk, 0), put(&items.disk_io, best, &disk, 1));
        let will = |put: &Put<String>, now: &Option<String>| match put {
            Put::Stays => now.clone(),
            Put::Gone => None,
            Put::Is(word) => Some(word.clone()),
        };
        let direct = will(&cache, &disk.cache);
        let direct = matches!(direct.as_deref(), Some("none" | "directsync"));
        if will(&io, &disk.io).as_deref() == Some("native") && !direct {
            let message =
                format!("disk `{}` cannot be read natively through the host's cache", disk.target);
            let (item, hint) = if items.disk_io.is_kept() {
                (ItemName::DiskCache, "add --disk-io on")
            } else {
                (ItemName::DiskIo, "add --disk-cache on")
            };
            return Err(TuneError::item(item, message, hint));
        }
        caches.push(DiskTuning { nth: disk.nth, cache, ..DiskTuning::default() });
        ios.push(DiskTuning { nth: disk.nth, io, ..DiskTuning::default() });
    }
    work.set(ItemName::DiskCache, Setting::Disks { disks: caches })?;
    work.set(ItemName::DiskIo, Setting::Disks { disks: ios })
}

/// Returns the change of a disk's cache (`at` 0) or I/O (`at` 1). A disk that already bypasses the
/// cache, in any mode, is as good.
fn put(item: &Item<String>, best: DiskIo, disk: &Disk, at: usize) -> Put<String> {
    match item {
        Item::Keep => Put::Stays,
        Item::Off => Put::Gone,
        Item::To(word) => Put::Is(word.clone()),
        Item::On => {
            let cached = !matches!(disk.cache.as_deref(), Some("none" | "directsync"));
            let slow = !matches!(disk.io.as_deref(), Some("native" | "io_uring"));
            if best != DiskIo::Threads && !cached && !slow {
                return Put::Stays;
            }
            let (cache, io) = best.words();
            Put::Is([cache, io][at].to_owned())
        }
    }
}

/// Switches disks to the file that their content was converted to.
pub(super) fn convert(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::Convert;
    let made = work.xml.made();
    let mut converted = Vec::new();
    for disk in disks(work) {
        let new = disk.path.and_then(|path| Some((work.given.items.convert.get(&path)?, path)));
        let Some((new, path)) = new else { continue };
        let (format, file) = (Put::Is(new.format.clone()), Put::Is(new.made.path.clone()));
        converted.push(DiskTuning { nth: disk.nth, format, file, ..DiskTuning::default() });
        // The record of a disk made for the guest is replaced, too.
        if let Some(old) = made.iter().find(|made| made.path == path) {
            let disk = Made { role: old.role, ..new.made.clone() };
            work.set(item, Setting::Made { disk })?;
        }
    }
    work.set(item, Setting::Disks { disks: converted })
}

pub(super) fn queues(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::DiskQueues;
    let vcpus = work.vcpus();
    match work.given.items.disk_queues {
        Item::Keep => return Ok(()),
        Item::To(queues) if queues == 0 || queues > vcpus => {
            let message =
                format!("{queues} queues, and a disk takes 1 to {vcpus}, one for each vCPU");
            return Err(TuneError::item(item, message, "--disk-queues on"));
        }
        _ => {}
    }
    let put = |disk: &Disk| match work.given.items.disk_queues {
        Item::Off => Put::Gone,
        _ => Put::Is(queues_of(work, disk)),
    };
    let disks = disks(work).into_iter().filter(|disk| disk.virtio);
    let disks =
        disks.map(|disk| DiskTuning { nth: disk.nth, queues: put(&disk), ..DiskTuning::default() });
    let disks = disks.collect();
    work.set(item, Setting::Disks { disks })
}
