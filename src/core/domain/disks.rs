//! Places of a guest's disks, and the I/O threads that serve their queues.

use super::DomainXml;
use super::DomainXmlError;
use super::addresses::Seats;
use super::device::{disk_path, seat};
use super::element::{Element, number};
use super::guest::Guest;
use super::placed::{DiskSeat, IoThread};
use crate::cpuset::CpuSet;
use crate::placement::{GuestCell, Placement};
use crate::topology::Topology;
use std::collections::BTreeSet;

/// The most queues of a disk: more cost memory and interrupts and gain nothing; the guide of
/// `nvidia-vm` stops here, too (gpuvm-hardware(7), DISKS AND QUEUES). Unlike a NIC's, a disk's
/// queue has no thread of its own: the planned I/O threads serve all of them, so that more queues
/// still help more vCPUs; Linux uses no more than it has CPUs (commit bf348f9b78d4).
const MOST_DISK_QUEUES: u32 = 64;

impl Seats<'_> {
    /// Places the guest's disks, each on all I/O threads or, if the hypervisor does not support
    /// that, on one of them.
    pub(super) fn disks(
        &mut self,
        guest: &Guest,
        topology: &Topology,
    ) -> Result<Vec<DiskSeat>, DomainXmlError> {
        let mapping = guest.abilities.queue_mapping;
        let spread = Spread::new(written_disks(guest), mapping, self.placement, topology);
        let target = |disk: Element<'_>| Some(disk.child("target")?.attr("dev")?.into_owned());
        let mut targets: BTreeSet<String> = self.named("disk").filter_map(target).collect();
        let mut written = 0;
        let mut disks = Vec::new();
        for disk in &guest.disks {
            let found = self.named("disk").find(|d| disk_path(*d).as_ref() == Some(&disk.path));
            let (target, address) = match found {
                Some(found) if seat(found).is_none() => continue,
                Some(found) => (target(found).unwrap_or_else(|| "vda".into()), None),
                None => {
                    let free = (0..).map(disk_name).find(|name| !targets.contains(name));
                    (free.expect("names do not end"), self.port()?)
                }
            };
            targets.insert(target.clone());
            let (mut queues, mut iothreads) = (1, Vec::new());
            if !disk.read_only {
                queues = disk_queues(self.placement.vcpus());
                iothreads = spread.of(written, queues);
                written += 1;
            }
            disks.push(DiskSeat { disk: disk.clone(), target, queues, iothreads, address });
        }
        Ok(disks)
    }
}

/// Returns the queues of a writable disk in a guest with this many vCPUs: the largest power of two
/// not above that number.
pub fn disk_queues(vcpus: u32) -> u32 {
    1 << vcpus.clamp(1, MOST_DISK_QUEUES).ilog2()
}

/// Gives each thread, in this order, a contiguous range of a disk's queues.
pub(super) fn share(queues: u32, threads: &[u32]) -> Vec<IoThread> {
    let count = u32::try_from(threads.len()).unwrap_or(u32::MAX);
    let share = |(at, id): (u32, &u32)| {
        let queues = at * queues / count..(at + 1) * queues / count;
        IoThread { id: *id, queues }
    };
    (0..).zip(threads).map(share).collect()
}

/// The I/O threads that serve a guest's writable disks.
#[derive(Debug, Clone)]
pub struct Spread {
    /// The threads, by number. If all of them serve one disk, they are in the order of the guest's
    /// cells: Linux assigns a disk's first queues to the vCPUs of its first node, and so on, so
    /// that the thread of a cell serves the queues of that cell's vCPUs.
    threads: Vec<u32>,
    /// Whether the queues of one disk are spread over all of them.
    mapping: bool,
}

impl Spread {
    /// Spreads this many disks over the planned I/O threads.
    pub fn new(
        written: usize,
        mapping: bool,
        placement: &Placement,
        topology: &Topology,
    ) -> Spread {
        let mut threads: Vec<u32> = (1..=used_iothreads(written, mapping, placement)).collect();
        let is_of = |cell: &GuestCell, pin: &CpuSet| {
            let nodes = cell.host_nodes.iter().filter_map(|node| topology.node(node));
            pin.first()
                .is_some_and(|first| nodes.into_iter().any(|node| node.pcpus.contains(first)))
        };
        if mapping {
            threads.sort_by_key(|thread| {
                let pin = &placement.iothread_pins[*thread as usize - 1];
                placement.cells.iter().position(|cell| is_of(cell, pin))
            });
        }
        Spread { threads, mapping }
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> u32 {
        u32::try_from(self.threads.len()).unwrap_or(u32::MAX)
    }

    /// Returns the threads that serve disk number `disk`, from 0, with this many queues.
    pub fn of(&self, disk: usize, queues: u32) -> Vec<IoThread> {
        if self.mapping || self.threads.is_empty() {
            return share(queues, &self.threads);
        }
        let one = disk % self.threads.len();
        share(queues, &self.threads[one..=one])
    }
}

/// Counts the writable disks of a guest.
fn written_disks(guest: &Guest) -> usize {
    guest.disks.iter().filter(|disk| !disk.read_only).count()
}

/// Returns how many of the planned I/O threads a guest with this many writable disks uses: a thread
/// that no disk names would only idle (gpuvm-nvidia-vm(7), TRAPS OF THE GUIDE, T21).
pub fn used_iothreads(written: usize, mapping: bool, placement: &Placement) -> u32 {
    let planned = u32::try_from(placement.iothread_pins.len()).unwrap_or(u32::MAX);
    let most = match (written, mapping) {
        (0, _) => 0,
        (_, true) => disk_queues(placement.vcpus()),
        (written, false) => u32::try_from(written).unwrap_or(u32::MAX),
    };
    planned.min(most)
}

/// Returns how many I/O threads the guest gets: those its disks use and those the document's own
/// disks name.
pub(super) fn iothreads(current: &DomainXml, guest: &Guest, placement: &Placement) -> u32 {
    let is_ours = |path: &str| guest.disks.iter().any(|disk| disk.path == path);
    let named = most_named_iothread(current, is_ours);
    used_iothreads(written_disks(guest), guest.abilities.queue_mapping, placement).max(named)
}

/// Returns the highest I/O thread number that a document's devices name, except disks with
/// `left_out` paths.
pub fn most_named_iothread(document: &DomainXml, left_out: impl Fn(&str) -> bool) -> u32 {
    let devices = document.root().child("devices").into_iter().flat_map(Element::elements);
    let others = devices.filter(|device| !disk_path(*device).is_some_and(|path| left_out(&path)));
    others.flat_map(named_iothreads).max().unwrap_or(0)
}

/// The I/O threads that a device's driver names.
pub fn named_iothreads(device: Element<'_>) -> Vec<u32> {
    let Some(driver) = device.child("driver") else { return Vec::new() };
    let mapped = driver.child("iothreads").into_iter();
    let mapped = mapped.flat_map(Element::elements).filter_map(|thread| thread.attr("id"));
    driver.attr("iothread").into_iter().chain(mapped).filter_map(|id| number(&id)).collect()
}

/// Returns the name of virtio disk number `number`: `vda`, `vdz`, `vdaa`.
pub(crate) fn disk_name(number: usize) -> String {
    let mut rest = number + 1;
    let mut letters = Vec::new();
    while rest > 0 {
        rest -= 1;
        letters.push(char::from(b'a' + u8::try_from(rest % 26).unwrap_or(0)));
        rest /= 26;
    }
    format!("vd{}", letters.into_iter().rev().collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_disks_as_the_kernel_does() {
        let names =
            [(0, "vda"), (25, "vdz"), (26, "vdaa"), (27, "vdab"), (701, "vdzz"), (702, "vdaaa")];
        for (number, name) in names {
            assert_eq!(disk_name(number), name);
        }
    }

    #[test]
    fn queues_are_shared_in_runs() {
        let runs = |queues, threads: &[u32]| {
            let shared = share(queues, threads).into_iter();
            shared.map(|thread| (thread.id, thread.queues)).collect::<Vec<_>>()
        };
        assert_eq!(runs(8, &[]), []);
        assert_eq!(runs(8, &[3]), [(3, 0..8)]);
        assert_eq!(runs(8, &[2, 1]), [(2, 0..4), (1, 4..8)]);
        assert_eq!(runs(4, &[1, 2, 3]), [(1, 0..1), (2, 1..2), (3, 2..4)]);
    }

    #[test]
    fn a_spread_has_so_many_threads() {
        let spread = |threads: &[u32]| Spread { threads: threads.to_vec(), mapping: false };
        assert_eq!((spread(&[]).threads(), spread(&[2, 1]).threads()), (0, 2));
    }
}
