//! Judges the load of the last seconds by the rules of `top`.

use super::rates::{GuestLoad, ThreadLoad};
use super::report::HostLoad;
use super::rules::{AER, EMULATOR, LINK, LoadFinding, OfLoad, PRESSURE, THROTTLED, WAITS};
use super::sample::{GuestPlan, ThreadKind};
use crate::finding::Severity;
use crate::shell::{domain, word};

/// Parts of the time waited from which a vCPU is worth a note, and a warning. Of the whole time,
/// not of the time in which it wanted to run: a vCPU that is idle wakes for microseconds.
const WAITS_NOTE: f64 = 0.01;
const WAITS_WARNING: f64 = 0.05;
/// Part of its pcpus that the emulator may use.
const BUSY: f64 = 0.9;
/// Percent of the time in which all tasks may wait for memory.
const FULL: f64 = 1.0;
/// Neighbours that a finding names.
const NAMED: usize = 3;

/// The findings about a guest, errors first.
pub fn judge(plan: &GuestPlan, load: &GuestLoad) -> Vec<LoadFinding> {
    let waits = |thread: &ThreadLoad| waits(plan, thread, held_back(load, thread));
    let mut found: Vec<LoadFinding> = load.threads.iter().filter_map(waits).collect();
    found.extend(throttled(plan, load));
    found.extend(emulator(plan, load));
    found.extend(devices(load));
    found.sort_by_key(|finding| finding.severity);
    crate::finding::capped(found)
}

/// Whether a vCPU waits so long for the pcpu that it is pinned to that its neighbours matter.
pub fn is_waiting(thread: &ThreadLoad) -> bool {
    let pinned = thread.pcpus.as_ref().is_some_and(|pin| !pin.is_empty());
    thread.kind == ThreadKind::Vcpu && pinned && thread.waited_ratio > WAITS_NOTE
}

/// Part of the time that a quota held a thread back, which the kernel counts as waiting, too. Of a
/// quota of the whole guest each vCPU is taken to have the same share.
fn held_back(load: &GuestLoad, thread: &ThreadLoad) -> f64 {
    let each = load.throttled.iter().map(|quota| match quota.vcpu {
        None => quota.throttled_ratio / f64::from(load.vcpus.max(1)),
        vcpu if vcpu == thread.index => quota.throttled_ratio,
        Some(_) => 0.0,
    });
    each.sum()
}

fn waits(plan: &GuestPlan, thread: &ThreadLoad, held_back: f64) -> Option<LoadFinding> {
    let waited = thread.waited_ratio - held_back;
    if !is_waiting(thread) || waited <= WAITS_NOTE {
        return None;
    }
    let percent = waited * 100.0;
    let mut message = format!("{} waits {percent:.0} % of the time", thread.label());
    let named: Vec<String> =
        thread.neighbours.iter().take(NAMED).map(ToString::to_string).collect();
    let pcpu = thread.pcpu();
    match (pcpu, named.is_empty()) {
        (Some(pcpu), false) => {
            message += &format!(": on pcpu {pcpu} also {}", named.join(", "));
        }
        (Some(pcpu), true) => message += &format!(" for pcpu {pcpu}"),
        (None, _) => {}
    }
    let says = OfLoad { message, at: format!("thread {}", thread.tid) };
    let name = word(&plan.name);
    let hint = format!(
        "`gpuvm top --why {name}` lists all tasks there; `gpuvm check {name}` finds shared pins"
    );
    let finding = LoadFinding::by(&WAITS, says, hint);
    let is_warning = waited > WAITS_WARNING;
    Some(if is_warning { finding } else { LoadFinding { severity: Severity::Note, ..finding } })
}

fn throttled(plan: &GuestPlan, load: &GuestLoad) -> Vec<LoadFinding> {
    let each = load.throttled.iter().map(|quota| {
        let who = quota.vcpu.map_or("the guest".to_owned(), |vcpu| format!("vCPU {vcpu}"));
        let message = format!(
            "a quota held {who} back for {:.0} % of the time, in {} periods",
            quota.throttled_ratio * 100.0,
            quota.periods
        );
        let at = match quota.vcpu {
            Some(vcpu) => format!("cpu.stat of control group vcpu{vcpu}"),
            None => "cpu.stat of the guest's control group".to_owned(),
        };
        let key = if quota.vcpu.is_some() { "vcpu_quota" } else { "global_quota" };
        let hint = format!(
            "`virsh schedinfo {name} --live --set {key}=-1` lifts libvirt's quota",
            name = domain(&plan.name)
        );
        LoadFinding::by(&THROTTLED, OfLoad { message, at }, hint)
    });
    each.collect()
}

fn emulator(plan: &GuestPlan, load: &GuestLoad) -> Option<LoadFinding> {
    let pin = plan.emulator_pin.as_ref().filter(|pin| !pin.is_empty())?;
    let share = load.emulator_ratio / pin.len() as f64;
    if share <= BUSY {
        return None;
    }
    let message = format!("emulator and vhost threads use {:.0} % of pcpus {pin}", share * 100.0);
    let at = format!("process {}", load.pid);
    let hint = format!(
        "`gpuvm tune {} --iothreads on --emulator on` gives disks threads of their own",
        word(&plan.name)
    );
    Some(LoadFinding::by(&EMULATOR, OfLoad { message, at }, hint))
}

fn devices(load: &GuestLoad) -> Vec<LoadFinding> {
    let mut found = Vec::new();
    for device in &load.devices {
        let bdf = device.bdf;
        if let (Some(width), Some(most)) = (device.width, device.max_width)
            && width < most
        {
            let message = format!("{bdf} has {width} PCIe lanes; it and its port have {most}");
            let at = format!("/sys/bus/pci/devices/{bdf}/current_link_width");
            let hint = "stop the guest, power the host off, reseat the card or its riser";
            found.push(LoadFinding::by(&LINK, OfLoad { message, at }, hint));
        }
        if device.new_errors > 0 {
            let count = crate::words::count(
                usize::try_from(device.new_errors).unwrap_or(usize::MAX),
                "new PCIe error",
            );
            let message = format!("{bdf} and its port counted {count}");
            let at = format!("/sys/bus/pci/devices/{bdf}/aer_dev_correctable");
            let hint = "`gpuvm host doctor` reads what the kernel log says of them";
            found.push(LoadFinding::by(&AER, OfLoad { message, at }, hint));
        }
    }
    found
}

/// The findings about the host.
pub fn judge_host(host: &HostLoad) -> Vec<LoadFinding> {
    let memory = host.pressure.get("memory").filter(|pressure| pressure.full > FULL);
    let each = memory.map(|pressure| {
        let message = format!("all tasks wait for memory {:.1} % of the time", pressure.full);
        let at = "/proc/pressure/memory".to_owned();
        let hint = "`gpuvm host pages` shows what huge pages take; stop guests, or release pages";
        LoadFinding::by(&PRESSURE, OfLoad { message, at }, hint)
    });
    each.into_iter().collect()
}
