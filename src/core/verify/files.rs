//! Compares the number of files that a guest's QEMU opens with its limit.
//!
//! Counted as in QEMU's sources: for each queue of a NIC a tap and, with vhost, a vhost descriptor;
//! for each of its two rings an event for kicks and one for interrupts, with vhost one for masked
//! interrupts and one for errors, too; two events for each queue of a disk; for each vCPU itself
//! and its statistics; two events for each interrupt of a passed-through function, of which NICs
//! and drives have about one per vCPU. A disk or a NIC without a number of queues has one per vCPU
//! (QEMU 5.2 and later), or one. It is an estimate: the sizes of interrupt tables are in the
//! configuration space, which is not read here.

use super::Subject;
use super::report::{Between, Report, Wrong};
use super::tuning::{CONF, MAX_FILES};
use crate::check::guest::Guest;
use crate::domain::{DomainXml, Element};
use crate::finding::Rule;

/// The guest does not start, or its queues are not used.
const FEW: Rule = Rule::warning("open-files", "fewer open files allowed than the guest may need");

/// Rules of this module.
pub const RULES: &[Rule] = &[FEW];

/// Descriptors that every QEMU has open: monitors, consoles, memory, firmware, images.
const BASE: u64 = 96;
/// Descriptors of a passed-through function besides interrupts: group, device, errors, requests.
const FUNCTION: u64 = 6;

/// Returns how many files a guest may open.
pub fn needed(xml: &DomainXml, guest: &Guest<'_>) -> u64 {
    let vcpus = u64::from(guest.vcpus.value);
    let devices = |name: &'static str| {
        let devices = xml.root().child("devices").into_iter();
        devices.flat_map(move |devices| devices.children(name))
    };
    let queues = |device: Element<'_>| -> Option<u64> {
        device.child("driver")?.attr("queues")?.parse().ok()
    };
    let is_virtio = |nic: &Element<'_>| {
        nic.child("model").and_then(|model| model.attr("type")).is_some_and(|t| t == "virtio")
    };
    let nic = |nic: Element<'_>| {
        let qemu = nic.child("driver").and_then(|driver| driver.attr("name"));
        let of_queue = if qemu.is_some_and(|name| name == "qemu") { 5 } else { 10 };
        queues(nic).unwrap_or(1).saturating_mul(of_queue) + 4
    };
    let disk = |disk: Element<'_>| queues(disk).unwrap_or(vcpus).saturating_mul(2) + 4;
    let nics: u64 = devices("interface").filter(is_virtio).map(nic).sum();
    let disks: u64 = devices("disk").map(disk).sum();
    let functions = guest.passed.len() as u64 * (FUNCTION + 2 * (vcpus + 1));
    BASE + 2 * vcpus + nics + disks + functions
}

/// Returns the advised limit: a quarter more than needed, rounded up to a power of two, at least
/// 2048.
pub fn advised(needed: u64) -> u64 {
    (needed.saturating_mul(5) / 4).max(2048).checked_next_power_of_two().unwrap_or(needed)
}

/// Compares with the current limit of a running guest, otherwise with that of the next start.
pub fn compare(subject: &Subject<'_>, report: &mut Report) {
    let running = subject.live.zip(subject.process.and_then(|process| process.file_limit));
    let next = || Some((subject.definition, subject.host?.tuning.file_limit?));
    let Some((xml, allowed)) = running.or_else(next) else { return };
    let needed = needed(xml, &Guest::read(xml));
    if needed <= allowed {
        return;
    }
    let at = match subject.process.filter(|_| running.is_some()) {
        Some(process) => format!("/proc/{}/limits", process.pid),
        None => format!("{} of /{}", MAX_FILES, CONF),
    };
    let hint = format!(
        "`gpuvm host files --count {}`, restart libvirt's daemon, then the guest",
        advised(needed)
    );
    let wrong = Wrong {
        what: "files that it may have open, for its queues".into(),
        expected: format!("{needed} or more"),
        found: allowed.to_string(),
        at,
        hint: &hint,
    };
    report.differs(&FEW, Between::Host, wrong);
}
