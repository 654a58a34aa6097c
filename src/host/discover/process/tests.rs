use super::*;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Writes a file below a directory.
fn write(dir: &Path, path: &str, text: &str) {
    let path = dir.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A host's /proc with a guest's process 40, a kernel thread 41 of it, and a process that merely
/// mentions its UUID.
fn recorded() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let proc = dir.path().join("proc");
    write(&proc, "7/cmdline", "grep\0-uuid 4-B\0");
    write(&proc, "9/cmdline", "");
    write(&proc, "40/cmdline", "/usr/bin/qemu-system-x86_64\0-name\0guest=a\0-uuid\x004-B\0-x\0");
    let status =
        |pcpus: &str| format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{pcpus}\n");
    for (tid, name, pcpus) in
        [("40", "qemu-system-x86", "5,53"), ("42", "CPU 0/KVM", "0"), ("43", "IO iothread1", "5")]
    {
        write(&proc, &format!("40/task/{tid}/comm"), &format!("{name}\n"));
        write(&proc, &format!("40/task/{tid}/status"), &status(pcpus));
    }
    // It ended meanwhile.
    std::fs::create_dir_all(proc.join("40/task/44")).unwrap();
    write(&proc, "41/comm", "vhost-40\n");
    write(&proc, "41/status", &status("0-95"));
    let maps = "55d0 default file=/usr/bin/qemu-system-x86_64 mapped=90 N0=60 N1=30 kernelpagesize_kB=4\n\
         55d1 default heap anon=5 dirty=5 N1=5 kernelpagesize_kB=4\n55d2 default\n\
         7f00 bind:0 file=/dev/hugepages/libvirt/qemu/1-a/qemu_back_mem.ram-node0.x\\040(deleted) huge N0=32 \
         kernelpagesize_kB=2048\n\
         7f01 bind:1 file=/dev/hugepages/libvirt/qemu/1-a/qemu_back_mem.ram-node1.y huge dirty=2 N0=1 N1=1 \
         kernelpagesize_kB=1048576\n";
    write(&proc, "40/numa_maps", maps);
    let fds = proc.join("40/fd");
    std::fs::create_dir_all(&fds).unwrap();
    for (fd, target) in [
        ("3", "/dev/net/tun"),
        ("4", "/dev/tap12"),
        ("5", "/dev/vhost-net"),
        ("6", "/dev/vfio/vfio"),
        ("7", "/dev/vfio/5005"),
        ("8", "/dev/vfio/devices/vfio3"),
        ("9", "socket:[1]"),
        ("10", "/d/a.raw"),
        ("11", "/d/b.raw"),
    ] {
        symlink(target, fds.join(fd)).unwrap();
    }
    let flags = format!("pos:\t0\nflags:\t0{:o}\n", OFlag::O_DIRECT.bits() | 2);
    write(&proc, "40/fdinfo/10", &flags);
    write(&proc, "40/fdinfo/11", "pos:\t0\nflags:\t0100002\n");
    dir
}

#[test]
fn a_process_is_found_by_its_uuid_and_read() {
    let dir = recorded();
    let root = FsRoot::at(dir.path()).unwrap();
    assert_eq!(all(&root).unwrap(), [("4-b".to_owned(), 40)].into());
    assert_eq!(read(&root, 9).unwrap(), None);
    assert_eq!(read(&root, 8).unwrap(), None);
    let process = read(&root, 40).unwrap().unwrap();
    let threads: Vec<_> =
        process.threads.iter().map(|t| (t.tid, &t.name[..], t.pcpus.to_string())).collect();
    let main = (40, "qemu-system-x86", "5,53".to_owned());
    let rest = [(42, "CPU 0/KVM", "0".to_owned()), (43, "IO iothread1", "5".to_owned())];
    assert_eq!(threads, [&[main][..], &rest[..]].concat());
    assert_eq!(process.vhosts.iter().map(|t| t.tid).collect::<Vec<_>>(), [41]);
    let opened = process.opened.unwrap();
    assert_eq!((opened.taps, opened.vhosts), (2, 1));
    assert_eq!(opened.vfio.iter().collect::<Vec<_>>(), ["5005", "devices/vfio3"]);
    assert_eq!((opened.files["/d/a.raw"], opened.files["/d/b.raw"]), (true, false));
}

#[test]
fn memory_is_summed_by_cell_page_size_and_node() {
    let dir = recorded();
    let process = read(&FsRoot::at(dir.path()).unwrap(), 40).unwrap().unwrap();
    let text = |mapped: &Mapped| {
        let nodes: Vec<String> =
            mapped.nodes.iter().map(|(node, size)| format!("{node}:{size}")).collect();
        format!("{:?} {} {} {}", mapped.cell, mapped.bound, mapped.page_kib, nodes.join(" "))
    };
    let memory: Vec<String> = process.memory.unwrap().iter().map(text).collect();
    let wanted = [
        "None false 4 KiB 0:240 KiB 1:140 KiB",
        "Some(0) true 2 MiB 0:64 MiB",
        "Some(1) true 1 GiB 0:1 GiB 1:1 GiB",
    ];
    assert_eq!(memory, wanted);
}

#[test]
fn what_may_not_be_seen_is_none() {
    let dir = recorded();
    std::fs::remove_file(dir.path().join("proc/40/numa_maps")).unwrap();
    std::fs::remove_dir_all(dir.path().join("proc/40/fd")).unwrap();
    let process = read(&FsRoot::at(dir.path()).unwrap(), 40).unwrap().unwrap();
    assert_eq!((process.memory, process.opened, process.vhosts.len()), (None, None, 0));
}

#[test]
fn how_long_a_process_has_run() {
    let dir = recorded();
    let proc = dir.path().join("proc");
    write(&proc, "uptime", "5400.25 20000.00\n");
    // A program's name may contain anything.
    let fields: Vec<String> = (3..52).map(|field| (field * 10_000).to_string()).collect();
    write(&proc, "40/stat", &format!("40 (q) S (1) {}\n", fields.join(" ")));
    let root = FsRoot::at(dir.path()).unwrap();
    // The 22nd field: 220,000 hundredths of a second after the boot.
    assert_eq!(age(&root, 40), Some(Duration::from_millis(3_200_250)));
    assert_eq!(age(&root, 41), None);
    let own = age(&FsRoot::live().unwrap(), std::process::id()).unwrap();
    assert!(own < Duration::from_secs(24 * 3600), "{own:?}");
}
