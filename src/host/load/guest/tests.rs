//! Guests in trees of files.

use super::*;
use gpuvm_core::cpuset::PcpuId;
use std::path::PathBuf;

/// A tree with the process 40 of a guest.
struct Tree {
    dir: tempfile::TempDir,
    root: FsRoot,
}

impl Tree {
    fn new() -> Tree {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let tree = Tree { dir, root };
        tree.write("proc/40/io", "rchar: 9\nread_bytes: 100\nwrite_bytes: 7\n");
        tree.write("proc/40/cgroup", "0::/\n");
        tree.process(7, 2);
        tree.thread(40, "qemu-system-x86", 1, 0, 0);
        tree.thread(41, "CPU 0/KVM", 5, 9, 3);
        tree
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// The process with this start and number of threads.
    fn process(&self, started: u64, threads: usize) {
        self.write("proc/40/stat", &stat("qemu-system-x86", threads, started, 0));
    }

    fn thread(&self, tid: u32, name: &str, run: u64, wait: u64, pcpu: u32) {
        let path = format!("proc/40/task/{tid}");
        self.write(&format!("{path}/comm"), &format!("{name}\n"));
        self.write(&format!("{path}/schedstat"), &format!("{run} {wait} 1\n"));
        self.write(&format!("{path}/stat"), &stat(name, 2, 7, pcpu));
    }

    fn open(&self, nics: &[&str]) -> Option<GuestFiles> {
        let nics = nics.iter().map(ToString::to_string).collect();
        let source = GuestSource { pid: 40, nics, devices: vec!["0000:3b:00.0".parse().unwrap()] };
        GuestFiles::open(&self.root, source, KeptLimit::NONE)
    }
}

/// A line of `/proc/PID/stat`.
fn stat(name: &str, threads: usize, started: u64, pcpu: u32) -> String {
    let mut fields: Vec<String> = (1..=52).map(|number| number.to_string()).collect();
    fields[1] = format!("({name})");
    (fields[19], fields[21], fields[38]) =
        (threads.to_string(), started.to_string(), pcpu.to_string());
    fields.join(" ") + "\n"
}

/// Run times by thread.
fn runs(sample: &GuestSample) -> Vec<(u32, u64)> {
    sample.threads.iter().map(|(tid, thread)| (*tid, thread.run_ns)).collect()
}

#[test]
fn counters_of_a_guest_are_read() {
    let tree = Tree::new();
    tree.write("sys/class/net/vnet3/statistics/rx_bytes", "11\n");
    tree.write("sys/class/net/vnet3/statistics/tx_bytes", "22\n");
    let mut files = tree.open(&["vnet3", "vnet9"]).unwrap();
    assert_eq!((files.process(), files.source().pid), ((40, 7), 40));
    let all = Reading { slow: true, pcpus: true };
    let sample = files.sample(&tree.root, 99, all).unwrap();
    assert_eq!((sample.pid, sample.started, sample.at_ns), (40, 7, 99));
    assert_eq!(sample.io, Some(ByteCounts { read: 100, written: 7 }));
    let nics = [("vnet3".to_owned(), ByteCounts { read: 22, written: 11 })].into();
    assert_eq!(sample.nics, nics, "what the host sends, the guest receives");
    let vcpu = &sample.threads[&41];
    assert_eq!((vcpu.kind, vcpu.index), (ThreadKind::Vcpu, Some(0)));
    assert_eq!((vcpu.run_ns, vcpu.wait_ns, vcpu.last_pcpu), (5, 9, Some(PcpuId(3))));
    assert!(sample.unread.contains_key("memory") && sample.memory.is_none(), "{sample:?}");
    assert!(sample.devices.is_empty());
    files.set_memory(NodeMemory::default());
    let sample = files.sample(&tree.root, 100, Reading::default()).unwrap();
    assert!(sample.memory.is_some(), "{sample:?}");
    let unread: Vec<&str> = sample.unread.keys().map(String::as_str).collect();
    assert_eq!((unread, sample.kvm), (vec!["exits"], None));
    assert_eq!(sample.threads[&41].last_pcpu, None);
}

#[test]
fn threads_come_go_and_are_named_later() {
    let tree = Tree::new();
    let mut files = tree.open(&[]).unwrap();
    let mut sample = |reading| files.sample(&tree.root, 1, reading).unwrap();
    assert_eq!(runs(&sample(Reading::default())), [(40, 1), (41, 5)]);
    // A vCPU is plugged in, and has the name of its parent at first.
    tree.thread(43, "qemu-system-x86", 8, 0, 0);
    tree.process(7, 3);
    let found = sample(Reading::default());
    assert_eq!((runs(&found).len(), found.threads[&43].kind), (3, ThreadKind::Emulator));
    tree.thread(43, "CPU 1/KVM", 8, 0, 0);
    let found = sample(Reading { slow: true, pcpus: false });
    assert_eq!(found.threads[&43].kind, ThreadKind::Emulator, "renamed for the next reading");
    assert_eq!(sample(Reading::default()).threads[&43].index, Some(1));
    // One ends and another begins: the number is the same.
    std::fs::remove_dir_all(tree.path("proc/40/task/41")).unwrap();
    tree.thread(44, "worker", 2, 0, 0);
    assert_eq!(runs(&sample(Reading::default())), [(40, 1), (43, 8), (44, 2)]);
    // A file of a thread vanishes while it is read.
    std::fs::remove_file(tree.path("proc/40/task/44/schedstat")).unwrap();
    assert_eq!(runs(&sample(Reading::default())), [(40, 1), (43, 8)]);
}

#[test]
fn a_guest_that_ended_has_no_sample_also_where_its_pid_is_reused() {
    let tree = Tree::new();
    let mut files = tree.open(&[]).unwrap();
    tree.process(8, 2);
    assert_eq!(files.sample(&tree.root, 1, Reading::default()), None);
    tree.process(7, 2);
    assert!(files.sample(&tree.root, 1, Reading::default()).is_some());
    std::fs::remove_dir_all(tree.path("proc/40")).unwrap();
    assert_eq!(files.sample(&tree.root, 1, Reading::default()), None);
    assert!(tree.open(&[]).is_none());
}

#[test]
fn vhost_threads_of_older_kernels_are_found_by_name() {
    let tree = Tree::new();
    let thread = |path: &str, name: &str| {
        tree.write(&format!("{path}/comm"), &format!("{name}\n"));
        tree.write(&format!("{path}/schedstat"), "6 0 1\n");
    };
    for (tid, name) in [(60, "vhost-40"), (61, "vhost-41")] {
        thread(&format!("proc/{tid}"), name);
        thread(&format!("proc/{tid}/task/{tid}"), name);
    }
    for nic in ["rx_bytes", "tx_bytes"] {
        tree.write(&format!("sys/class/net/vnet0/statistics/{nic}"), "0\n");
    }
    let mut files = tree.open(&["vnet0"]).unwrap();
    let sample = files.sample(&tree.root, 1, Reading::default()).unwrap();
    assert_eq!(sample.threads[&60].kind, ThreadKind::Vhost);
    assert!(!sample.threads.contains_key(&61));
}

#[test]
fn statistics_of_kvm_and_virtual_functions_without_bytes() {
    let tree = Tree::new();
    tree.write("sys/kernel/debug/kvm/40-11/exits", "5\n");
    let devices = tree.path("sys/bus/pci/devices");
    std::fs::create_dir_all(devices.join("0000:3a:00.0/net/ens1f0")).unwrap();
    std::fs::create_dir_all(devices.join("0000:3b:00.0")).unwrap();
    std::os::unix::fs::symlink("../0000:3a:00.0", devices.join("0000:3b:00.0/physfn")).unwrap();
    std::os::unix::fs::symlink("../0000:3b:00.0", devices.join("0000:3a:00.0/virtfn0")).unwrap();
    let mut files = tree.open(&[]).unwrap();
    let sample = files.sample(&tree.root, 7, Reading { slow: true, pcpus: false }).unwrap();
    assert_eq!(sample.kvm.unwrap().exits, Some(5));
    assert_eq!(sample.functions, Some(TimedBytes { at_ns: 7, bytes: BTreeMap::new() }));
    assert!(sample.unread["functions"].contains("driver of their card"), "{sample:?}");
}

#[test]
fn a_scan_has_every_task_and_its_pcpu() {
    let tree = Tree::new();
    tree.write("proc/meminfo", "x\n");
    let scan = crate::load::scan(&tree.root, 5).unwrap();
    assert_eq!((scan.at_ns, scan.tasks.len()), (5, 2));
    let task = &scan.tasks[&41];
    assert_eq!((task.pid, task.name.as_str(), task.pcpu), (40, "CPU 0/KVM", PcpuId(3)));
    assert_eq!(last_pcpu(&tree.root, 40, 41), Some(PcpuId(3)));
    assert_eq!(last_pcpu(&tree.root, 40, 99), None);
}
