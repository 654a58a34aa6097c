//! `top`: the usage of running guests, sampled repeatedly. [`gpuvm_core::load`] makes rates and
//! findings of it; this module chooses the guests and the intervals.

mod tracked;

use crate::discover::process;
use crate::error::{Class, Coded, Error, Result, classed};
use crate::fsroot::{FsRoot, KeptLimit};
use crate::hypervisor::machine::{Machine, command_there};
use crate::hypervisor::{DomainSummary, Hypervisor};
use crate::lookup::{LISTED, no_domain};
use crate::shell::word;
use crate::topology::Topology;
use crate::world::World;
use gpuvm_core::load::{LoadReport, TaskScan, is_waiting, judge, judge_host, neighbours};
use gpuvm_host::load;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tracked::Tracked;

/// How often libvirt is asked which guests run.
const LIST_EVERY: Duration = Duration::from_secs(5);
/// How often memory by node and passed devices are read.
const SLOW_EVERY: Duration = Duration::from_secs(5);
/// How often libvirt asks QEMU for the bytes of disks: 0.4 ms of libvirtd for each guest.
const DISKS_EVERY: Duration = Duration::from_secs(5);
/// How often threads are compared with their pins, as `verify` does.
const COMPARE_EVERY: Duration = Duration::from_secs(10);
/// How often all tasks of the host are read while a vCPU waits.
const SCAN_EVERY: Duration = Duration::from_secs(5);

/// The reason why guests cannot be sampled.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "top-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum TopError {
    /// The guests do not really run.
    #[error("guests of libvirt's test driver run on no machine")]
    TestDriver,
    /// Its process is not visible.
    #[error("no process of domain `{name}` is seen on this machine")]
    NoProcess { name: String },
}

impl Coded for TopError {}

/// The guests to be sampled.
#[derive(Debug, Clone, Default)]
pub struct TopRequest {
    /// The guests; empty: all that run.
    pub names: Vec<String>,
    /// Whether only two samples are taken, so that each has everything.
    pub once: bool,
}

/// Something that is done at intervals.
#[derive(Debug, Clone, Copy, Default)]
struct Due(Option<Instant>);

impl Due {
    /// Whether it is to be done now, which is then remembered.
    fn take(&mut self, every: Duration) -> bool {
        let is_due = self.0.is_none_or(|last| last.elapsed() >= every);
        if is_due {
            self.0 = Some(Instant::now());
        }
        is_due
    }
}

/// The times of the last readings.
#[derive(Debug, Default)]
struct Dues {
    list: Due,
    slow: Due,
    disks: Due,
    compare: Due,
    scan: Due,
}

/// Running guests that cannot be sampled.
#[derive(Debug, Default)]
struct Unseen {
    /// Names of those without a process here.
    no_process: Vec<String>,
    /// Those whose definition cannot be read, with the error.
    unread: Vec<(String, Error)>,
}

/// A series of samples.
pub struct Top {
    hypervisor: Rc<dyn Hypervisor>,
    root: FsRoot,
    limit: KeptLimit,
    /// The host, for nodes of pcpus and comparisons; `None` if it cannot be read.
    topology: Option<Topology>,
    request: TopRequest,
    begun: Instant,
    dues: Dues,
    /// The guests by UUID.
    guests: BTreeMap<String, Tracked>,
    /// Names of all guests that run, also those that are not sampled, by process.
    names: BTreeMap<u32, String>,
    /// UUIDs of all that run.
    active: BTreeSet<String>,
    /// The last two scans of all tasks.
    scans: Vec<TaskScan>,
    /// Times of the last two samples in ns.
    times: (u64, u64),
}

impl Top {
    /// Finds the guests. Refused on a recorded host, and if the guests run elsewhere.
    pub fn open(world: &World, request: TopRequest) -> Result<Top> {
        world.refuse_without_guests("top")?;
        let hypervisor = world.hypervisor()?;
        if let Machine::Elsewhere { host } = hypervisor.machine() {
            let message = format!(
                "the guests of {} run on machine `{host}`, which alone has their counters",
                hypervisor.uri()
            );
            let hint = format!("`{}`", command_there(&host, "top"));
            return Err(classed(Class::OtherMachine, message, hint));
        }
        if !hypervisor.has_guests_here() {
            let hint = "`gpuvm list` lists them; --connect qemu:///system has real ones";
            return Err(TopError::TestDriver.hint(hint));
        }
        let topology = world.topology();
        if let Err(error) = &topology {
            world.warning(&format!("the host is not compared: {}", error.whole()));
        }
        Top::on(world, hypervisor, FsRoot::live()?, topology.ok(), request)
    }

    /// Finds the guests whose processes are below a root.
    fn on(
        world: &World,
        hypervisor: Rc<dyn Hypervisor>,
        root: FsRoot,
        topology: Option<Topology>,
        request: TopRequest,
    ) -> Result<Top> {
        let mut top = Top {
            hypervisor,
            root,
            limit: KeptLimit::raise(),
            topology,
            request,
            begun: Instant::now(),
            dues: Dues::default(),
            guests: BTreeMap::new(),
            names: BTreeMap::new(),
            active: BTreeSet::new(),
            scans: Vec::new(),
            times: (0, 0),
        };
        let Unseen { no_process, unread } = top.list()?;
        let refused = no_process.iter().find(|name| top.request.names.contains(name));
        if let Some(name) = refused {
            let hint = "libvirt may run in a container: run gpuvm in its process namespace";
            return Err(TopError::NoProcess { name: name.clone() }.hint(hint));
        }
        for name in no_process {
            world.warning(&format!("domain `{name}` has no process that is seen here"));
        }
        for (name, error) in unread {
            if top.request.names.contains(&name) {
                return Err(error);
            }
            world.warning(&format!("domain `{name}` is left out: {}", error.whole()));
        }
        top.dues.list.take(LIST_EVERY);
        Ok(top)
    }

    /// Reads which guests run, and returns those that cannot be sampled.
    fn list(&mut self) -> Result<Unseen> {
        let all = self.hypervisor.domains()?;
        self.refuse_absent(&all)?;
        let wanted = |row: &&DomainSummary| {
            let names = &self.request.names;
            row.state.is_active() && (names.is_empty() || names.contains(&row.name))
        };
        let running: Vec<&DomainSummary> = all.iter().filter(wanted).collect();
        let uuids: BTreeSet<String> =
            running.iter().map(|row| row.uuid.to_ascii_lowercase()).collect();
        self.guests.retain(|uuid, _| uuids.contains(uuid));
        let is_known = |row: &&&DomainSummary| {
            self.guests.get(&row.uuid.to_ascii_lowercase()).is_some_and(Tracked::is_fresh)
        };
        let actives = || all.iter().filter(|row| row.state.is_active());
        let active = actives().map(|row| row.uuid.to_ascii_lowercase()).collect();
        if self.active == active && running.iter().filter(is_known).count() == running.len() {
            return Ok(Unseen::default());
        }
        let processes = process::all(&self.root)?;
        let named = actives().filter_map(|row| {
            Some((*processes.get(&row.uuid.to_ascii_lowercase())?, row.name.clone()))
        });
        (self.names, self.active) = (named.collect(), active);
        let mut unseen = Unseen::default();
        for row in running {
            let uuid = row.uuid.to_ascii_lowercase();
            let Some(&pid) = processes.get(&uuid) else {
                unseen.no_process.push(row.name.clone());
                continue;
            };
            if self.guests.get(&uuid).is_some_and(Tracked::is_fresh) {
                continue;
            }
            let known = self.guests.remove(&uuid);
            match Tracked::open(self, row, pid, known) {
                Ok(opened) => self.guests.extend(opened.map(|guest| (uuid, guest))),
                Err(error) => unseen.unread.push((row.name.clone(), error)),
            }
        }
        Ok(unseen)
    }

    /// Refuses names that no running domain has, at first; later they have just ended.
    fn refuse_absent(&self, all: &[DomainSummary]) -> Result<()> {
        if self.dues.list.0.is_some() {
            return Ok(());
        }
        for name in &self.request.names {
            let Some(row) = all.iter().find(|row| row.name == *name) else {
                return Err(no_domain(name, all).hint(LISTED));
            };
            if !row.state.is_active() {
                let message = format!("domain `{name}` is off, so it uses nothing");
                let hint = format!("`gpuvm start {}` starts it", word(name));
                return Err(classed(Class::WrongState, message, hint));
            }
        }
        Ok(())
    }

    /// Time since the begin in ns: the clock of the samples.
    fn now_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Takes a sample. A guest that has ended is dropped.
    pub fn sample(&mut self) {
        // An answer that libvirt owes does not stop the counters of the kernel.
        if self.dues.list.take(LIST_EVERY) {
            let _ = self.list();
        }
        let once = self.request.once;
        let slow = self.dues.slow.take(SLOW_EVERY) || once;
        let disks = self.dues.disks.take(DISKS_EVERY) || once;
        self.times = (self.times.1, self.now_ns());
        let reading = load::Reading { slow, pcpus: once };
        let begun = self.begun;
        let clock = move || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut ended = Vec::new();
        for (uuid, guest) in &mut self.guests {
            if !guest.sample(&self.root, &clock, reading) {
                ended.push(uuid.clone());
            } else if disks {
                guest.read_disks(&*self.hypervisor, &clock);
            }
        }
        ended.iter().for_each(|uuid| drop(self.guests.remove(uuid)));
        if let Some(topology) = &self.topology
            && self.dues.compare.take(COMPARE_EVERY)
        {
            for guest in self.guests.values_mut() {
                guest.compare(&self.root, topology);
            }
        }
        self.scan();
    }

    /// Scans all tasks while a vCPU waits: two scans give the tasks that ran between them.
    fn scan(&mut self) {
        let waits = self
            .guests
            .values()
            .any(|guest| guest.window().is_some_and(|load| load.threads.iter().any(is_waiting)));
        if !waits && !self.request.once {
            return self.scans.clear();
        }
        let is_second = self.scans.len() < 2;
        if !self.dues.scan.take(SCAN_EVERY) && !is_second {
            return;
        }
        for guest in self.guests.values_mut() {
            guest.find_pcpus(&self.root);
        }
        if let Ok(scan) = load::scan(&self.root, self.now_ns()) {
            self.scans.push(scan);
            let old = self.scans.len().saturating_sub(2);
            self.scans.drain(..old);
        }
    }

    /// Reads the memory of a guest by node from the process itself, which takes 12 to 20 ms for
    /// each GiB of normal pages.
    pub fn read_memory(&mut self, name: &str) {
        let found = self.guests.values_mut().find(|guest| guest.plan().name == name);
        if let Some(guest) = found {
            guest.read_memory(&self.root);
        }
    }

    /// The load between the last two samples. Findings are about the last 10 seconds.
    pub fn report(&self) -> LoadReport {
        let mut host = load::host(&self.root);
        let pcpus = self.guests.values().map(|guest| guest.plan().pcpus());
        let pcpus = pcpus.fold(crate::cpuset::CpuSet::new(), |all, pins| all.or(&pins));
        host.guest_pcpus = pcpus.len();
        host.findings = judge_host(&host);
        let guests = self.guests.values().filter_map(|guest| {
            let (mut load, mut window) = (guest.load()?, guest.window()?);
            if let [before, after] = self.scans.as_slice() {
                for (thread, now) in window.threads.iter_mut().zip(&mut load.threads) {
                    if let Some(pcpu) = thread.pcpu().filter(|_| is_waiting(thread)) {
                        let found = neighbours(before, after, &self.names, pcpu, thread.tid);
                        (now.neighbours, thread.neighbours) = (found.clone(), found);
                    }
                }
            }
            load.findings = judge(guest.plan(), &window);
            load.findings.extend(guest.compared().iter().cloned());
            load.findings.sort_by_key(|finding| finding.severity);
            Some(load)
        });
        let seconds = Duration::from_nanos(self.times.1.saturating_sub(self.times.0));
        let interval_s = (seconds.as_secs_f64() * 1000.0).round() / 1000.0;
        LoadReport { interval_s, guests: guests.collect(), host }
    }
}

#[cfg(test)]
mod tests;
