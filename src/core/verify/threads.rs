//! Compares where the threads of a guest's process may run with the pins of the running XML.
//! Unpinned threads may run anywhere and are not judged.

use super::report::{Between, Report, Wrong};
use crate::check::guest::Guest;
use crate::cpuset::CpuSet;
use crate::domain::claims::VcpuId;
use crate::finding::Rule;
use crate::shell::{domain, word};
use crate::topology::Topology;
use crate::verify::process::{Process, Thread};
use std::collections::BTreeMap;

/// It was unplugged, or QEMU has one thread for all.
const NO_VCPU: Rule = Rule::error("vcpu-thread-missing", "a vCPU that has no thread");
/// Somebody has moved it, or a cgroup holds it back.
const VCPU: Rule = Rule::error("vcpu-affinity", "a vCPU's thread that is not where it is pinned");
/// As for vCPUs: moved, or restricted by a cgroup.
const EMULATOR: Rule =
    Rule::error("emulator-affinity", "a main thread that is not where the emulator is pinned");
/// They use the guest's own pcpus, or those of other guests.
const HELPER: Rule =
    Rule::warning("helper-affinity", "other threads of QEMU outside of the emulator's pcpus");
/// Disks that name it are served by the main thread.
const NO_IOTHREAD: Rule = Rule::error("iothread-missing", "an I/O thread that does not exist");
/// As for vCPUs: moved, or restricted by a cgroup.
const IOTHREAD: Rule =
    Rule::error("iothread-affinity", "an I/O thread that is not where it is pinned");
/// The kernel's work for the guest's network lands on pcpus of vCPUs.
const VHOST: Rule =
    Rule::warning("vhost-affinity", "threads of vhost outside of the emulator's pcpus");

/// Rules of this module.
pub const RULES: &[Rule] = &[NO_VCPU, VCPU, EMULATOR, HELPER, NO_IOTHREAD, IOTHREAD, VHOST];

/// The single thread that runs all vCPUs in turn.
const ALL_VCPUS: &str = "ALL CPUs/";

/// The role of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// It is a vCPU.
    Vcpu(u32),
    /// It is an I/O thread.
    Iothread(u32),
    /// It is a vhost thread of the kernel.
    Vhost,
    /// It is the main thread.
    Main,
    /// It is another thread of the emulator.
    Helper,
    /// Its placement is up to the kernel or QEMU.
    Own,
}

/// Returns the role of a thread by the name that libvirt makes QEMU set (`debug-threads=on`).
fn work(process: &Process, thread: &Thread) -> Work {
    let name = thread.name.as_str();
    let number = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse().ok()
    };
    if thread.tid == process.pid {
        return Work::Main;
    }
    if let Some(vcpu) = name.strip_prefix("CPU ").and_then(number) {
        return Work::Vcpu(vcpu);
    }
    if let Some(id) = name.strip_prefix("IO iothread").and_then(number) {
        return Work::Iothread(id);
    }
    // Preallocation threads choose their own affinity, and that of threads of KVM and io_uring
    // cannot be set.
    let own = ["TC ", "kvm-", "iou-", ALL_VCPUS].iter().any(|start| name.starts_with(start));
    match name.starts_with("vhost-") {
        true => Work::Vhost,
        false if own => Work::Own,
        false => Work::Helper,
    }
}

/// Compares threads with pins.
pub fn compare(live: &Guest<'_>, process: &Process, topology: &Topology, report: &mut Report) {
    let online = topology.pcpus();
    let mut see = Comparison { live, process, online: &online, report };
    let mut vcpus = BTreeMap::new();
    let mut iothreads = BTreeMap::new();
    for thread in &process.threads {
        match work(process, thread) {
            Work::Vcpu(vcpu) => drop(vcpus.insert(vcpu, thread)),
            Work::Iothread(id) => drop(iothreads.insert(id, thread)),
            _ => {}
        }
    }
    if !process.threads.iter().any(|thread| thread.name.starts_with(ALL_VCPUS)) {
        see.vcpus(&vcpus);
    }
    see.iothreads(&iothreads);
    see.helpers();
}

/// A comparison of threads with pins.
struct Comparison<'c, 't> {
    live: &'c Guest<'t>,
    process: &'c Process,
    online: &'c CpuSet,
    report: &'c mut Report,
}

impl Comparison<'_, '_> {
    /// Returns the place of a thread.
    fn at(&self, thread: &Thread) -> String {
        format!("process {}, thread {} `{}`", self.process.pid, thread.tid, thread.name)
    }

    /// Compares one thread with its pin.
    fn exact(
        &mut self,
        rule: &'static Rule,
        thread: &Thread,
        pin: &CpuSet,
        what: &str,
        hint: &str,
    ) {
        let (expected, found) = (pin.and(self.online), thread.pcpus.and(self.online));
        if expected != found {
            let wrong = Wrong {
                what: format!("{what} may run on pcpus"),
                expected: expected.to_string(),
                found: found.to_string(),
                at: self.at(thread),
                hint,
            };
            self.report.differs(rule, Between::Reality, wrong);
        }
    }

    /// Reports that a thread is missing.
    fn missing(&mut self, rule: &'static Rule, what: &str, hint: &str) {
        let wrong = Wrong {
            what: what.to_owned(),
            expected: "a thread".into(),
            found: "none".into(),
            at: format!("process {}", self.process.pid),
            hint,
        };
        self.report.differs(rule, Between::Reality, wrong);
    }

    fn vcpus(&mut self, threads: &BTreeMap<u32, &Thread>) {
        let name = self.live.name.clone();
        let default = self.live.default_pin.as_ref().map(|pin| pin.value.clone());
        for VcpuId(vcpu) in self.live.plugged.iter() {
            let pin = self.live.vcpu_pins.iter().find(|pin| pin.of.value == vcpu);
            let pin = pin.map(|pin| pin.cpuset.value.clone()).or_else(|| default.clone());
            match (threads.get(&vcpu), pin) {
                (None, _) => {
                    let hint = format!("`gpuvm restart {name}`", name = word(&name));
                    self.missing(&NO_VCPU, &format!("vcpu {vcpu}"), &hint);
                }
                (Some(thread), Some(pin)) => {
                    let hint = format!(
                        "`virsh vcpupin {name} {vcpu} {pin} --live` moves it back",
                        name = domain(&name)
                    );
                    self.exact(&VCPU, thread, &pin, &format!("vcpu {vcpu}"), &hint);
                }
                (Some(_), None) => {}
            }
        }
    }

    fn iothreads(&mut self, threads: &BTreeMap<u32, &Thread>) {
        let name = self.live.name.clone();
        let default = self.live.default_pin.as_ref().map(|pin| pin.value.clone());
        for &id in self.live.iothreads.keys() {
            let pin = self.live.iothread_pins.iter().find(|pin| pin.of.value == id);
            let pin = pin.map(|pin| pin.cpuset.value.clone()).or_else(|| default.clone());
            match (threads.get(&id), pin) {
                (None, _) => {
                    let hint = format!("`gpuvm restart {name}`", name = word(&name));
                    self.missing(&NO_IOTHREAD, &format!("iothread {id}"), &hint);
                }
                (Some(thread), Some(pin)) => {
                    let hint = format!(
                        "`virsh iothreadpin {name} {id} {pin} --live` moves it back",
                        name = domain(&name)
                    );
                    self.exact(&IOTHREAD, thread, &pin, &format!("iothread {id}"), &hint);
                }
                (Some(_), None) => {}
            }
        }
    }

    /// Compares the main thread and its helpers. Threads started by I/O threads inherit their
    /// affinity.
    fn helpers(&mut self) {
        let emulator = self.live.emulator_pin.as_ref().or(self.live.default_pin.as_ref());
        let Some(emulator) = emulator.map(|pin| pin.value.clone()) else { return };
        let name = &self.live.name;
        let hint = format!(
            "`virsh emulatorpin {name} {emulator} --live` moves it back",
            name = domain(name)
        );
        let pins = self.live.iothread_pins.iter().map(|pin| &pin.cpuset.value);
        let allowed = pins.fold(emulator.clone(), |all, pin| all.or(pin));
        let mut strays: BTreeMap<(&str, bool, String), Vec<&Thread>> = BTreeMap::new();
        let threads = self.process.threads.iter().chain(&self.process.vhosts);
        for thread in threads {
            let work = if self.process.vhosts.contains(thread) {
                Work::Vhost
            } else {
                work(self.process, thread)
            };
            if work == Work::Main {
                self.exact(&EMULATOR, thread, &emulator, "the main thread", &hint);
            }
            let strays_from = match work {
                Work::Vhost => &emulator,
                Work::Helper => &allowed,
                _ => continue,
            };
            let found = thread.pcpus.and(self.online);
            if !found.is_subset(strays_from) {
                let key = (thread.name.as_str(), work == Work::Vhost, found.to_string());
                strays.entry(key).or_default().push(thread);
            }
        }
        for ((thread, vhost, found), threads) in strays {
            let ids: Vec<String> = threads.iter().map(|thread| thread.tid.to_string()).collect();
            let count = match threads.len() {
                1 => format!("a thread `{thread}` may run on pcpus"),
                many => format!("{many} threads `{thread}` may run on pcpus"),
            };
            let wrong = Wrong {
                what: count,
                expected: format!("within {}", if vhost { &emulator } else { &allowed }),
                found,
                at: format!("process {}, threads {}", self.process.pid, ids.join(", ")),
                hint: "pins that are made while it runs reach only the main thread where libvirt \
                       has no cgroups; a restart puts every thread there, `taskset -p` one",
            };
            let rule = if vhost { &VHOST } else { &HELPER };
            self.report.differs(rule, Between::Reality, wrong);
        }
    }
}
