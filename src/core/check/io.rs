//! Rules on I/O threads, queues and NICs.

use super::guest::Guest;
use super::report::Report;
use crate::domain::nic_request::{MOST_QUEUES, USUAL_QUEUES};
use crate::finding::Rule;
use crate::shell::word;
use crate::words;
use std::collections::BTreeSet;

const NO_THREAD: Rule =
    Rule::error("iothreadpin-undefined", "a pin of an I/O thread that is not defined");
const NO_DISK_THREAD: Rule =
    Rule::error("iothread-undefined", "a device that names an I/O thread that is not defined");
/// Unused threads: the work meant for them runs in the emulator thread (gpuvm-nvidia-vm(7), TRAPS
/// OF THE GUIDE, T21).
const UNUSED: Rule = Rule::warning("iothread-unused", "I/O threads that no device names");
/// More queues than vCPUs are never used (gpuvm-nvidia-vm(7), TRAPS OF THE GUIDE, T22).
const DISK_QUEUES: Rule = Rule::warning("disk-queues", "a disk with more queues than vCPUs");
/// QEMU takes at most 256 queue pairs.
const NET_QUEUES: Rule = Rule::error("net-queues", "an interface with more than 256 queues");
/// As for disks: never used.
const NET_IDLE: Rule = Rule::warning("net-queues-idle", "an interface with more queues than vCPUs");
/// Only a note, since it may be intended: each queue has a host thread.
const NET_MANY: Rule =
    Rule::warning("net-queues-many", "an interface with more queues than it gains from");

/// Switches send frames for both to the one that was heard last, and DHCP gives both one address.
pub(super) const SAME_MAC: Rule = Rule::error("mac-twice", "two interfaces with one MAC address");

/// Each access of the guest to a register leaves it for QEMU; virtio has few.
const EMULATED: Rule = Rule::note(
    "emulated-model",
    "a disk on SATA or IDE, or a NIC of model e1000, e1000e or rtl8139, beside passed devices",
);

/// Rules of this module.
pub const RULES: &[Rule] = &[
    NO_THREAD,
    NO_DISK_THREAD,
    UNUSED,
    DISK_QUEUES,
    NET_QUEUES,
    NET_IDLE,
    NET_MANY,
    SAME_MAC,
    EMULATED,
];

/// Checks I/O threads and queues.
pub fn check<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    threads(guest, report);
    queues(guest, report);
    emulated(guest, report);
    macs(guest, report);
}

/// Checks that each interface has a MAC address of its own.
fn macs<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    let mut seen = BTreeSet::new();
    for mac in guest.macs.iter().filter(|mac| !seen.insert(mac.value.as_str())) {
        let message = format!("another interface of the guest has {}, too", mac.value);
        report.add(
            &SAME_MAC,
            mac.spot,
            message,
            "give each interface its own <mac address='...'/>",
        );
    }
}

/// Checks that I/O threads are defined where they are named, and named where they are defined.
fn threads<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    let defined: Vec<String> = guest.iothreads.keys().take(8).map(u32::to_string).collect();
    let hint = if defined.is_empty() {
        "define it: <iothreads>1</iothreads>".to_owned()
    } else {
        format!("the guest's I/O threads are {}", defined.join(", "))
    };
    let missing = |id: u32| !guest.iothreads.contains_key(&id);
    for pin in guest.iothread_pins.iter().filter(|pin| missing(pin.of.value)) {
        let message = format!("iothread {} is pinned, but not defined", pin.of.value);
        report.add(&NO_THREAD, pin.of.spot, message, hint.as_str());
    }
    let named = || {
        guest
            .queued
            .iter()
            .flat_map(|device| device.iothreads.iter().map(move |id| (device.kind, id)))
    };
    for (kind, id) in named().filter(|(_, id)| missing(id.value)) {
        let message = format!("the {kind} names iothread {}, which is not defined", id.value);
        report.add(&NO_DISK_THREAD, id.spot, message, hint.as_str());
    }
    let used: BTreeSet<u32> = named().map(|(_, id)| id.value).collect();
    let unused: Vec<u32> =
        guest.iothreads.keys().copied().filter(|id| !used.contains(id)).collect();
    if let Some(spot) = unused.first().and_then(|first| guest.iothreads.get(first)) {
        let shown: Vec<String> = unused.iter().take(8).map(u32::to_string).collect();
        let more = if unused.len() > 8 { " and more" } else { "" };
        let message = format!(
            "{} of {} I/O threads are named by no device: {}{more}",
            unused.len(),
            guest.iothreads.len(),
            shown.join(", ")
        );
        let hint = "name them in the disks' drivers (iothread='1'), or define fewer";
        report.add(&UNUSED, *spot, message, hint);
    }
}

/// Checks for devices that virtio does better.
fn emulated<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    if guest.passed.is_empty() {
        return;
    }
    for device in &guest.emulated {
        let message = format!(
            "{}: QEMU emulates every access to it; `tune --convert-devices` moves it to virtio, if \
             the guest has the drivers (Windows: virtio-win)",
            device.value
        );
        report.note(&EMULATED, device.spot, message);
    }
}

fn queues<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    let vcpus = guest.vcpus.value;
    for device in &guest.queued {
        let Some(queues) = &device.queues else { continue };
        let count = queues.value;
        let most = words::count(vcpus.min(MOST_QUEUES), "queue");
        let hint = format!("take at most {most}");
        if device.kind == "interface" && count > MOST_QUEUES {
            let message = format!("{count} queues, QEMU takes at most {MOST_QUEUES}");
            report.add(&NET_QUEUES, queues.spot, message, hint);
        } else if count > vcpus {
            let rule = if device.kind == "interface" { &NET_IDLE } else { &DISK_QUEUES };
            let message =
                format!("{} for {}", words::count(count, "queue"), words::count(vcpus, "vCPU"));
            report.add(rule, queues.spot, message, hint);
        } else if device.kind == "interface" && count > USUAL_QUEUES {
            let message = format!(
                "{count} queues, each with a thread of the host, where {USUAL_QUEUES} usually do: \
                 `gpuvm tune {} --net-queues 8` removes the others",
                word(&guest.name)
            );
            report.note(&NET_MANY, queues.spot, message);
        }
    }
}
