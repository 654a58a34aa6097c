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
    write(&proc, "40/status", "Name:\tqemu\nUid:\t0\t0\t0\t0\n");
    symlink("/usr/bin/qemu-system-x86_64", proc.join("40/exe")).unwrap();
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
    let maps = "55d0 default file=/usr/bin/qemu-system-x86_64 mapped=90 N0=60 N1=30 \
         kernelpagesize_kB=4\n\
         55d1 default heap anon=5 dirty=5 N1=5 kernelpagesize_kB=4\n55d2 default\n\
         7f00 bind:0 file=/dev/hugepages/libvirt/qemu/1-a/qemu_back_mem.ram-node0.x\\040(deleted) \
         huge N0=32 \
         kernelpagesize_kB=2048\n\
         7f01 bind:1 file=/dev/hugepages/libvirt/qemu/1-a/qemu_back_mem.ram-node1.y huge dirty=2 \
         N0=1 N1=1 \
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
fn hidden_processes_are_none() {
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

/// Writes a process of an account that runs a program and says that it runs domain `u`.
fn claims_u(dir: &Path, pid: u32, uid: u32, program: &str) {
    let proc = dir.join(format!("proc/{pid}"));
    write(&proc, "cmdline", "/usr/bin/qemu-system-x86_64\0-uuid\0U\0");
    write(&proc, "status", &format!("Name:\tq\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"));
    symlink(program, proc.join("exe")).unwrap();
}

#[test]
fn a_domain_is_not_claimed_by_arguments_alone() {
    let dir = tempfile::tempdir().unwrap();
    let root = FsRoot::at(dir.path()).unwrap();
    let qemu = "/usr/bin/qemu-system-x86_64";
    write(
        dir.path(),
        "etc/passwd",
        "root:x:0:0::/:/x\nlibvirt-qemu:x:64055:1::/:/x\nal:x:1000:1::/:/x\n",
    );
    // A user's sleep and a user's QEMU, and a program of root's that was given such arguments.
    claims_u(dir.path(), 90, 1000, "/usr/bin/sleep");
    claims_u(dir.path(), 91, 1000, qemu);
    claims_u(dir.path(), 92, 0, "/usr/bin/sudo");
    assert_eq!(all(&root).unwrap(), [].into());
    let pids: Vec<u32> = claims(&root).unwrap().iter().map(|claim| claim.pid).collect();
    assert_eq!(pids, [90, 91, 92]);
    // libvirt's, which it may have lost; a program that is replaced meanwhile.
    claims_u(dir.path(), 50, 64055, "/usr/bin/qemu-system-x86_64 (deleted)");
    assert_eq!(all(&root).unwrap(), [("u".to_owned(), 50)].into());
    // One that has libvirt's word counts more, whoever it runs as and whatever its program is
    // called.
    claims_u(dir.path(), 60, 1001, "/opt/emulator");
    write(
        dir.path(),
        "proc/60/cgroup",
        "0::/machine.slice/machine-qemu\\x2d1\\x2du.scope/libvirt/emulator\n",
    );
    assert_eq!(all(&root).unwrap()["u"], 60);
    std::fs::remove_file(dir.path().join("proc/60/cgroup")).unwrap();
    assert_eq!(all(&root).unwrap()["u"], 50);
    write(dir.path(), "run/libvirt/qemu/u.pid", "60\n");
    assert_eq!(all(&root).unwrap()["u"], 60);
    // A group that a user may make is none of libvirt's.
    write(
        dir.path(),
        "proc/91/cgroup",
        "0::/user.slice/user-1000.slice/machine.slice/machine-qemu-u\n",
    );
    assert_eq!(claims(&root).unwrap().iter().filter(|claim| claim.proof.is_some()).count(), 2);
}

#[test]
fn the_account_that_is_configured_is_libvirts() {
    for user in ["\"al\"", "\"+1000\"", "\"1000\" # so"] {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        write(dir.path(), "etc/passwd", "al:x:1000:1::/:/x\n");
        claims_u(dir.path(), 91, 1000, "/usr/libexec/qemu-kvm");
        assert_eq!(all(&root).unwrap().len(), 0);
        write(dir.path(), "etc/libvirt/qemu.conf", &format!("#user = \"x\"\nuser = {user}\n"));
        assert_eq!(all(&root).unwrap().len(), 1, "{user}");
    }
}
