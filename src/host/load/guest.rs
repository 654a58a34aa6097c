//! The files of one guest, kept open while it runs.

use super::cgroup::Groups;
use super::device::device;
use super::function::Functions;
use super::kvm::KvmFiles;
use super::stat::Stat;
use super::tasks::last_pcpu;
use crate::fsroot::{FsRoot, KeptFile, KeptLimit};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::load::{
    ByteCounts, DeviceSample, GuestSample, NodeMemory, ThreadKind, ThreadSample, TimedBytes,
};
use std::collections::BTreeMap;

/// A guest to be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestSource {
    /// Its process.
    pub pid: u32,
    /// Its NICs that are network devices of the host: `vnet0`.
    pub nics: Vec<String>,
    /// Its passed-through functions.
    pub devices: Vec<Bdf>,
}

/// The parts of a reading beside the cheap counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Memory by node, passed devices, and bytes of virtual functions. Otherwise these are those of
    /// the last reading.
    pub slow: bool,
    /// The pcpu that each thread ran on last.
    pub pcpus: bool,
}

/// A thread and its open file.
#[derive(Debug)]
struct ThreadFile {
    kind: ThreadKind,
    index: Option<u32>,
    file: KeptFile,
}

/// A NIC and its open counters.
#[derive(Debug)]
struct NicFiles {
    name: String,
    received: KeptFile,
    sent: KeptFile,
}

/// The open files of a guest.
#[derive(Debug)]
pub struct GuestFiles {
    source: GuestSource,
    started: u64,
    limit: KeptLimit,
    stat: KeptFile,
    io: Option<KeptFile>,
    threads: BTreeMap<u32, ThreadFile>,
    /// The kernel's threads for its network queues, where they are no threads of its own (before
    /// Linux 6.4).
    vhosts: BTreeMap<u32, ThreadFile>,
    groups: Groups,
    nics: Vec<NicFiles>,
    functions: Functions,
    function_bytes: Option<TimedBytes>,
    kvm: Option<KvmFiles>,
    memory: Option<NodeMemory>,
    devices: Vec<DeviceSample>,
    unread: BTreeMap<String, String>,
    buffer: Vec<u8>,
}

impl GuestFiles {
    /// Opens the files of a guest; `None` if its process has ended.
    pub fn open(root: &FsRoot, source: GuestSource, limit: KeptLimit) -> Option<GuestFiles> {
        let pid = source.pid;
        let mut buffer = Vec::new();
        let stat = KeptFile::open(root, &format!("proc/{pid}/stat"), limit).ok()??;
        let started = Stat::parse(stat.read(root, &mut buffer).ok()?)?.started;
        let mut unread = BTreeMap::new();
        let io = match KeptFile::open(root, &format!("proc/{pid}/io"), limit) {
            Ok(file) => file,
            Err(error) => {
                unread.insert("io".to_owned(), error.to_string());
                None
            }
        };
        let counter = |nic: &str, name: &str| {
            let path = format!("sys/class/net/{nic}/statistics/{name}");
            KeptFile::open(root, &path, limit).ok().flatten()
        };
        let nics = source.nics.iter().filter_map(|nic| {
            // The guest receives packets that the host sends on a tap.
            let (received, sent) = (counter(nic, "tx_bytes")?, counter(nic, "rx_bytes")?);
            Some(NicFiles { name: nic.clone(), received, sent })
        });
        let nics = nics.collect();
        let groups = Groups::open(root, pid, limit);
        let functions = Functions::find(root, &source.devices);
        let kvm = match KvmFiles::open(root, pid, limit) {
            Ok(kvm) => Some(kvm),
            Err(why) => {
                unread.insert("exits".to_owned(), why);
                None
            }
        };
        let mut files = GuestFiles {
            source,
            started,
            limit,
            stat,
            io,
            threads: BTreeMap::new(),
            vhosts: BTreeMap::new(),
            groups,
            nics,
            functions,
            function_bytes: None,
            kvm,
            memory: None,
            devices: Vec::new(),
            unread,
            buffer,
        };
        files.list_threads(root);
        files.find_vhosts(root);
        Some(files)
    }

    /// Its process, and the ticks at which that began.
    pub fn process(&self) -> (u32, u64) {
        (self.source.pid, self.started)
    }

    /// The source that it was opened for.
    pub fn source(&self) -> &GuestSource {
        &self.source
    }

    /// Replaces memory by node with values read elsewhere.
    pub fn set_memory(&mut self, memory: NodeMemory) {
        self.unread.remove("memory");
        self.memory = Some(memory);
    }

    /// Whether its control group counts memory by node.
    pub fn counts_memory(&self) -> bool {
        self.groups.counts_memory()
    }

    /// Whether memory on huge pages was seen.
    fn has_huge_pages(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| !memory.huge.is_empty())
    }

    /// Reads it at this moment; `None` if its process has ended, also where another has its pid.
    pub fn sample(&mut self, root: &FsRoot, at_ns: u64, reading: Reading) -> Option<GuestSample> {
        let stat = Stat::parse(self.stat.read(root, &mut self.buffer).ok()?)?;
        if stat.started != self.started {
            return None;
        }
        if stat.threads != self.threads.len() {
            self.list_threads(root);
        }
        let (mut threads, is_whole) = self.read_threads(root);
        if !is_whole {
            self.list_threads(root);
            threads = self.read_threads(root).0;
        }
        if reading.pcpus {
            for (&tid, thread) in &mut threads {
                let process = if self.threads.contains_key(&tid) { self.source.pid } else { tid };
                thread.last_pcpu = last_pcpu(root, process, tid);
            }
        }
        if reading.slow {
            self.read_slow(root, at_ns);
        }
        let nics = self.nics.iter().filter_map(|nic| {
            let mut count = |file: &KeptFile| -> Option<u64> {
                file.read(root, &mut self.buffer).ok()?.trim().parse().ok()
            };
            let (read, written) = (count(&nic.received)?, count(&nic.sent)?);
            Some((nic.name.clone(), ByteCounts { read, written }))
        });
        let nics = nics.collect();
        let io = self.io.as_ref().and_then(|file| io(file.read(root, &mut self.buffer).ok()?));
        Some(GuestSample {
            pid: self.source.pid,
            started: self.started,
            at_ns,
            threads,
            throttled: self.groups.throttled(root, &mut self.buffer),
            memory: self.memory.clone(),
            io,
            nics,
            disks: None,
            functions: self.function_bytes.clone(),
            kvm: self.kvm.as_ref().map(|kvm| kvm.read(root, &mut self.buffer)),
            devices: self.devices.clone(),
            unread: self.unread.clone(),
        })
    }

    /// Reads the more expensive values: memory by node, passed devices, and bytes of virtual
    /// functions.
    fn read_slow(&mut self, root: &FsRoot, at_ns: u64) {
        match self.groups.memory(root, &mut self.buffer) {
            // A group without huge pages may only lack their controller.
            Some(memory) if memory.huge.is_empty() && self.has_huge_pages() => {}
            Some(memory) => self.set_memory(memory),
            None if self.memory.is_none() => {
                let why = "no control group of version 2 has memory.numa_stat of this guest";
                self.unread.insert("memory".to_owned(), why.to_owned());
            }
            None => {}
        }
        self.name_helpers(root);
        if !self.functions.is_empty() {
            let bytes = self.functions.read(root);
            if bytes.is_empty() {
                let why = "the driver of their card counts no bytes of virtual functions";
                self.unread.insert("functions".to_owned(), why.to_owned());
            } else {
                self.unread.remove("functions");
            }
            self.function_bytes = Some(TimedBytes { at_ns, bytes });
        }
        self.devices = self.source.devices.iter().filter_map(|&bdf| device(root, bdf)).collect();
    }

    /// Opens the threads that are new, and closes those that have ended.
    fn list_threads(&mut self, root: &FsRoot) {
        let tasks = format!("proc/{}/task", self.source.pid);
        let names = root.names(&tasks).unwrap_or_default();
        let now: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
        self.threads.retain(|tid, _| now.contains(tid));
        for tid in now {
            if !self.threads.contains_key(&tid) {
                let opened = open_thread(root, &format!("{tasks}/{tid}"), self.limit);
                self.threads.extend(opened.map(|thread| (tid, thread)));
            }
        }
    }

    /// Reads the names of helpers again: QEMU names a thread after it has begun.
    fn name_helpers(&mut self, root: &FsRoot) {
        let pid = self.source.pid;
        for (tid, thread) in &mut self.threads {
            if thread.kind == ThreadKind::Emulator && *tid != pid {
                let name = root.read(&format!("proc/{pid}/task/{tid}/comm")).ok().flatten();
                let (kind, index) = ThreadKind::of_name(&name.unwrap_or_default());
                (thread.kind, thread.index) = (kind, index);
            }
        }
    }

    /// Finds the kernel's threads for its network queues: they have its pid in their name.
    fn find_vhosts(&mut self, root: &FsRoot) {
        let own = self.threads.values().any(|thread| thread.kind == ThreadKind::Vhost);
        if own || self.nics.is_empty() {
            return;
        }
        let wanted: String = format!("vhost-{}", self.source.pid).chars().take(15).collect();
        for name in root.names("proc").unwrap_or_default() {
            let Ok(tid) = name.parse() else { continue };
            let comm = root.read(&format!("proc/{name}/comm")).ok().flatten();
            if comm.is_some_and(|comm| comm == wanted) {
                let opened = open_thread(root, &format!("proc/{name}/task/{name}"), self.limit);
                self.vhosts.extend(opened.map(|thread| (tid, thread)));
            }
        }
    }

    /// Reads the threads, and whether all were there.
    fn read_threads(&mut self, root: &FsRoot) -> (BTreeMap<u32, ThreadSample>, bool) {
        let mut found = BTreeMap::new();
        for (&tid, thread) in self.threads.iter().chain(&self.vhosts) {
            if let Some((run_ns, wait_ns)) = times(&thread.file, root, &mut self.buffer) {
                let (kind, index) = (thread.kind, thread.index);
                found.insert(tid, ThreadSample { kind, index, run_ns, wait_ns, last_pcpu: None });
            }
        }
        let before = self.threads.len();
        self.threads.retain(|tid, _| found.contains_key(tid));
        (found, self.threads.len() == before)
    }
}

/// Opens a thread; `None` if it has ended.
fn open_thread(root: &FsRoot, path: &str, limit: KeptLimit) -> Option<ThreadFile> {
    let file = KeptFile::open(root, &format!("{path}/schedstat"), limit).ok()??;
    let name = root.read(&format!("{path}/comm")).ok()??;
    let (kind, index) = ThreadKind::of_name(&name);
    Some(ThreadFile { kind, index, file })
}

/// Run and wait time of a thread in ns.
fn times(file: &KeptFile, root: &FsRoot, buffer: &mut Vec<u8>) -> Option<(u64, u64)> {
    let mut words = file.read(root, buffer).ok()?.split_ascii_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// Reads `/proc/PID/io`: bytes that reached storage, without those from caches.
fn io(text: &str) -> Option<ByteCounts> {
    let value = |key: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok()
    };
    Some(ByteCounts { read: value("read_bytes:")?, written: value("write_bytes:")? })
}

#[cfg(test)]
mod tests;
