//! A guest that is sampled: its open files, its plan, and its samples of the last seconds.

use super::Top;
use crate::discover::process::{mapped, threads};
use crate::domain::DomainXml;
use crate::domain::claims::Claims;
use crate::error::{Doing as _, Result};
use crate::fsroot::FsRoot;
use crate::hypervisor::{DomainSummary, Hypervisor, HypervisorErrorKind, XmlOf};
use crate::memsize::MemSize;
use crate::topology::Topology;
use gpuvm_core::cpuset::{CpuSet, NodeSet};
use gpuvm_core::load::{
    GuestLoad, GuestPlan, GuestSample, LoadFinding, NodeMemory, OfLoad, TimedBytes, guest_load,
    is_waiting,
};
use gpuvm_core::verify::of_process;
use gpuvm_core::verify::process::{Mapped, Process};
use gpuvm_host::load::{GuestFiles, GuestSource, Reading, last_pcpu};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time that findings are about.
const WINDOW: Duration = Duration::from_secs(10);
/// How long the running XML is taken to be the same.
const XML_FRESH: Duration = Duration::from_secs(30);
/// The largest guest on normal pages whose process is read for memory by node without being asked:
/// that takes 0.1 s.
const LARGEST_READ: MemSize = MemSize::from_gib(8);
/// The largest page that is not reserved: 64 KiB on some ARM hosts.
const NORMAL_PAGE: MemSize = MemSize::from_kib(64);

/// A guest.
pub(super) struct Tracked {
    files: GuestFiles,
    plan: GuestPlan,
    live: DomainXml,
    /// When the XML was read.
    read: Instant,
    /// Names of its disks.
    disks: Vec<String>,
    last_disks: Option<TimedBytes>,
    /// Memory as its process was read last.
    mapped: Option<Vec<Mapped>>,
    has_huge_pages: bool,
    samples: VecDeque<GuestSample>,
    compared: Vec<LoadFinding>,
}

impl Tracked {
    /// Begins with a guest, or continues with a known one whose XML is old; `None` if it has just
    /// ended.
    pub(super) fn open(
        top: &Top,
        row: &DomainSummary,
        pid: u32,
        known: Option<Tracked>,
    ) -> Result<Option<Tracked>> {
        let text = match top.hypervisor.xml(&row.name, XmlOf::Live) {
            Err(error) if error.kind == HypervisorErrorKind::NoDomain => return Ok(None),
            text => text?,
        };
        let live = DomainXml::parse(&text).doing(|| format!("cannot read `{}`", row.name))?;
        let claims = Claims::read(&live);
        let devices = live.root().child("devices");
        let named = |kind: &'static str| {
            let all = devices.into_iter().flat_map(move |devices| devices.children(kind));
            let targets = all.filter_map(|device| device.child("target")?.attr("dev"));
            targets.map(|name| name.into_owned()).collect::<Vec<_>>()
        };
        let passed = claims.passed.iter().map(|passed| passed.bdf.value).collect();
        let source = GuestSource { pid, nics: named("interface"), devices: passed };
        let plan = GuestPlan::of(&live, |pcpus| nodes_of(top.topology.as_ref(), pcpus));
        let (has_huge_pages, disks) = (claims.huge_pages.is_some(), named("disk"));
        let is_small = claims.memory.value <= LARGEST_READ;
        drop(claims);
        let read = Instant::now();
        if let Some(known) = known.filter(|known| *known.files.source() == source) {
            return Ok(Some(Tracked { plan, live, read, disks, has_huge_pages, ..known }));
        }
        let Some(files) = GuestFiles::open(&top.root, source, top.limit) else { return Ok(None) };
        let mut guest = Tracked {
            files,
            plan,
            live,
            read,
            disks,
            last_disks: None,
            mapped: None,
            has_huge_pages,
            samples: VecDeque::new(),
            compared: Vec::new(),
        };
        // Of huge pages there are few entries.
        if has_huge_pages || is_small && !guest.files.counts_memory() {
            guest.read_memory(&top.root);
        }
        Ok(Some(guest))
    }

    /// Whether its XML was read just now.
    pub(super) fn is_fresh(&self) -> bool {
        self.read.elapsed() < XML_FRESH
    }

    pub(super) fn plan(&self) -> &GuestPlan {
        &self.plan
    }

    pub(super) fn last(&self) -> Option<&GuestSample> {
        self.samples.back()
    }

    /// The load between the last two samples; `None` before the second one.
    pub(super) fn load(&self) -> Option<GuestLoad> {
        let before = self.samples.len().checked_sub(2)?;
        guest_load(&self.plan, &self.samples[before], self.last()?).map(|load| self.with_slow(load))
    }

    /// The load of the last seconds.
    pub(super) fn window(&self) -> Option<GuestLoad> {
        guest_load(&self.plan, self.samples.front()?, self.last()?)
    }

    /// Adds the rates of disks and of virtual functions, which are read less often: those of the
    /// whole window.
    fn with_slow(&self, mut load: GuestLoad) -> GuestLoad {
        let has_functions = self.last().is_some_and(|last| last.functions.is_some());
        if !load.disk.is_empty() && !has_functions {
            return load;
        }
        let Some(window) = self.window() else { return load };
        if load.disk.is_empty() {
            load.disk = window.disk;
        }
        for nic in window.net {
            if load.net.iter().all(|known| known.name != nic.name) {
                load.net.push(nic);
            }
        }
        load
    }

    /// Takes a sample; false if its process has ended.
    pub(super) fn sample(
        &mut self,
        root: &FsRoot,
        clock: &dyn Fn() -> u64,
        reading: Reading,
    ) -> bool {
        let Some(mut sample) = self.files.sample(root, clock(), reading) else { return false };
        sample.disks = self.last_disks.clone();
        let begin = sample.at_ns.saturating_sub(u64::try_from(WINDOW.as_nanos()).unwrap_or(0));
        self.samples.push_back(sample);
        // At least two, however long the interval is.
        while self.samples.len() > 2 && self.samples[0].at_ns < begin {
            self.samples.pop_front();
        }
        true
    }

    /// Asks libvirt for the bytes of its disks, for the last sample and those after it.
    pub(super) fn read_disks(&mut self, hypervisor: &dyn Hypervisor, clock: &dyn Fn() -> u64) {
        let name = &self.plan.name;
        let read = |target: &String| {
            let counts = hypervisor.disk_bytes(name, target).ok().flatten()?;
            Some((target.clone(), counts))
        };
        let at_ns = clock();
        let disks = TimedBytes { at_ns, bytes: self.disks.iter().filter_map(read).collect() };
        if let Some(last) = self.samples.back_mut() {
            last.disks = Some(disks.clone());
        }
        self.last_disks = Some(disks);
    }

    /// Finds the pcpus of waiting threads that may run on several.
    pub(super) fn find_pcpus(&mut self, root: &FsRoot) {
        let Some(window) = self.window() else { return };
        let pid = window.pid;
        let Some(last) = self.samples.back_mut() else { return };
        for thread in window.threads.iter().filter(|thread| is_waiting(thread)) {
            if let Some(sample) = last.threads.get_mut(&thread.tid) {
                sample.last_pcpu = last_pcpu(root, pid, thread.tid);
            }
        }
    }

    /// Reads memory by node from its process.
    pub(super) fn read_memory(&mut self, root: &FsRoot) {
        let pid = self.files.source().pid;
        let Some(mapped) = mapped(root, pid) else { return };
        self.files.set_memory(by_node(&mapped));
        self.mapped = Some(mapped);
    }

    /// Compares its threads and memory with its XML, as `verify` does.
    pub(super) fn compare(&mut self, root: &FsRoot, topology: &Topology) {
        let pid = self.files.source().pid;
        let Ok(threads) = threads(root, pid) else { return };
        let counted = self.last().and_then(|sample| sample.memory.as_ref());
        // Without the controller of huge pages their memory would seem to be missing.
        let counted = counted.filter(|memory| !self.has_huge_pages || !memory.huge.is_empty());
        let memory = self.mapped.clone().or_else(|| counted.map(as_mapped));
        let process =
            Process { pid, threads, vhosts: Vec::new(), memory, opened: None, file_limit: None };
        let found = of_process(&self.live, &process, topology).into_iter().map(|finding| {
            let says = OfLoad { message: finding.says.message, at: finding.says.at };
            let (rule, severity, hint) = (finding.rule, finding.severity, finding.hint);
            LoadFinding { rule, severity, says, hint }
        });
        self.compared = found.collect();
    }

    /// The differences from its XML.
    pub(super) fn compared(&self) -> &[LoadFinding] {
        &self.compared
    }
}

/// Nodes of pcpus; empty on an unknown host.
fn nodes_of(topology: Option<&Topology>, pcpus: &CpuSet) -> NodeSet {
    let nodes = topology.into_iter().flat_map(Topology::nodes);
    nodes.filter(|node| node.pcpus.intersects(pcpus)).map(|node| node.os_index).collect()
}

fn by_node(mapped: &[Mapped]) -> NodeMemory {
    let mut memory = NodeMemory::default();
    for part in mapped {
        let nodes = if part.page_kib > NORMAL_PAGE {
            memory.huge.entry(part.page_kib).or_default()
        } else {
            &mut memory.normal
        };
        for (node, size) in &part.nodes {
            let sum = nodes.entry(*node).or_default();
            *sum = *sum + *size;
        }
    }
    memory
}

/// Memory of control groups, of which cells are not known.
fn as_mapped(memory: &NodeMemory) -> Vec<Mapped> {
    let part = |page_kib, nodes: &std::collections::BTreeMap<_, _>| Mapped {
        cell: None,
        bound: true,
        page_kib,
        nodes: nodes.clone(),
    };
    let huge = memory.huge.iter().map(|(page, nodes)| part(*page, nodes));
    huge.chain([part(MemSize::from_kib(4), &memory.normal)]).collect()
}
