//! A guest's disks on a real libvirtd: their I/O settings, their allocation, and the I/O threads
//! that serve them.

use super::{files, on_dgx2};
use crate::support::daemon::{Daemon, Tiny, daemon, namespaces};
use crate::support::{host_tree, known, project, run, skip};
use gpuvm::domain::guest::{Disk, DiskFormat, DiskIo, DiskKind, Guest, Record, VirtType};
use gpuvm::domain::{DomainXml, edits};
use gpuvm::hypervisor::libvirt::Libvirt;
use gpuvm::hypervisor::{Domains as _, Hypervisor as _, Live as _};
use gpuvm::placement::{Occupancy, plan};
use gpuvm::request::{CellWish, DomainName, PinPolicy, Request};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Makes a guest that is not started, with further options; returns its definition and the
/// program's output.
fn define(daemon: &Daemon, name: &str, options: &[&str]) -> (String, String) {
    let mut line = vec!["create", "--name", name, "--no-start", "--virt-type", "qemu"];
    line.extend(["--pins", "none", "--vcpus", "2", "--memory", "64M"]);
    line.extend(options);
    let (code, out, err) = run(&mut daemon.gpuvm(&line));
    assert_eq!(code, 0, "{out}{err}");
    let (found, xml) = daemon.virsh(&["dumpxml", name]);
    assert!(found, "{xml}");
    (xml, err)
}

#[test]
fn the_storage_of_a_disk_decides_its_write_mode() {
    let Some(daemon) = daemon() else { return };
    let (dir, data) = (daemon.fresh_dir("io"), daemon.fresh_dir("io-data"));
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let options = ["--disk-dir", &text(memory.path()), "--data-dir", &text(&data)];
    let (xml, err) = define(daemon, "io", &[&options[..], &["--data-size", "8M"]].concat());
    let drivers: Vec<&str> =
        xml.lines().filter(|line| line.contains("<driver name='qemu'")).collect();
    let [os, data_driver] = drivers[..] else { panic!("{xml}") };
    assert!(os.contains("cache='writeback' io='threads'"), "{os}");
    assert!(err.contains("io.raw is read and written through the host's page cache"), "{err}");
    assert!(data_driver.contains("cache='none' io='"), "{data_driver}");
    assert!(!data_driver.contains("io='threads'") && !err.contains("vol-io is"), "{err}");
    assert!(xml.contains("<serial>gpuvm-data</serial>"), "{xml}");
    // Preallocated space stays allocated when the guest creates a file system in it.
    assert!(os.contains("discard='unmap'") && data_driver.contains("discard='ignore'"), "{xml}");
    // It is fully allocated and only accessible to its owner; the other disk is sparse.
    let meta = data.join("vol-io").metadata().unwrap();
    assert!(meta.blocks() * 512 >= 8 << 20 && meta.mode() & 0o777 == 0o600, "{meta:?}");
    assert!(memory.path().join("io.raw").metadata().unwrap().blocks() < 64);
    let (code, _, err) = run(&mut daemon.gpuvm(&["delete", "io", "--yes"]));
    assert_eq!(code, 0, "{err}");
    assert_eq!((files(&data), files(memory.path()), files(&dir)), (vec![], vec![], vec![]));
}

#[test]
fn a_disk_that_is_there_is_what_its_bytes_say() {
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("formats");
    let image = |args: &[&str]| {
        let mut command = std::process::Command::new("qemu-img");
        let (code, out, err) = run(command.arg("create").args(args).current_dir(&dir));
        assert_eq!(code, 0, "{out}{err}");
    };
    image(&["-f", "qcow2", "base.qcow2", "1M"]);
    image(&["-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", "over.img"]);
    std::fs::copy(dir.join("base.qcow2"), dir.join("false.raw")).unwrap();
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (xml, err) = define(daemon, "formats", &["--disk", &path("over.img")]);
    assert!(xml.contains("type='qcow2'"), "{xml}");
    assert!(err.contains("over.img is an overlay on base.qcow2"), "{err}");
    let line = ["create", "--name", "false", "--no-start", "--pins", "none", "--vcpus", "1"];
    let belied = path("false.raw");
    let line = [&line[..], &["--memory", "64M", "--disk", &belied]].concat();
    let (code, out, err) = run(&mut daemon.gpuvm(&line));
    assert_eq!((code, &out[..]), (1, ""), "{err}");
    assert!(err.contains("is raw by its name and qcow2 by its content"), "{err}");
    assert_eq!(run(&mut daemon.gpuvm(&["delete", "formats", "--yes"])).0, 0);
    assert_eq!(files(&dir), ["base.qcow2", "false.raw", "over.img"]);
}

#[test]
fn the_share_of_the_data_file_system_fits_or_is_refused() {
    if !namespaces() {
        return skip("namespaces need root");
    }
    if !Path::new("/usr/bin/qemu-system-x86_64").exists() {
        return skip("qemu-system-x86_64 is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("root/etc")).unwrap();
    std::fs::create_dir(dir.path().join("disks")).unwrap();
    let conf = "stdio_handler = \"file\"\nsecurity_driver = \"none\"\nremember_owner = 0\n";
    std::fs::write(dir.path().join("root/etc/qemu.conf"), conf).unwrap();
    let script = "raid=$DISKS/raid; mkdir $raid; mount -t tmpfs -o size=64m tmpfs $raid; trap \
                  'umount $raid' EXIT; new() { $GPUVM create --no-start --accept-shared-fabric \
                  --disk-dir $DISKS \"$@\"; }; new --name two --gpus 2 --preallocate full \
                  --data-dir $raid; stat -c '%n %s' $raid/*; ! new --name all --gpus 4 --data-size \
                  60M --data-dir $raid; new --name none --gpus 1 --data-size none; new --name bare \
                  --gpus 1 --volGB 0; ls $raid; for name in two none bare; do $GPUVM delete $name \
                  --yes; done; ls $raid";
    known::give(&dir.path().join("root").join(known::EMBEDDED), &host_tree("dgx-2"));
    let mut command = on_dgx2(script);
    let uri = format!("qemu:///embed?root={}", dir.path().join("root").display());
    command.env("LIBVIRT_DEFAULT_URI", uri).env("DISKS", dir.path().join("disks"));
    let (code, out, err) = run(&mut command);
    assert_eq!(code, 0, "{out}{err}");
    let volumes: Vec<&str> = out.lines().filter(|line| !line.contains(": create")).collect();
    // 2 of 16 GPUs: an eighth of 64 MiB less the file system's own part, in whole MiB.
    let made = format!("{}/vol-two 7340032", dir.path().join("disks/raid").display());
    assert_eq!(volumes, [&made, "vol-two"], "{out}{err}");
    let refused = "a data disk of 60 MiB does not fit into the file system of ";
    assert!(err.contains(refused) && err.contains("of its 64 MiB are free"), "{err}");
    let warning = "WARNING: Host Data volume not setup, no VM data volume will be created";
    assert_eq!(err.matches(warning).count(), 1, "{err}");
}

#[test]
fn the_queues_of_a_disk_are_spread_over_the_io_threads_of_a_guest_that_runs() {
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("mapping");
    let Some(tiny) = Tiny::new(&dir) else { return };
    let libvirt = Libvirt::open(&daemon.uri()).unwrap();
    let abilities = libvirt.storage().abilities();
    // The features used of libvirt follow from its versions: 10.0 with QEMU 9.0, and io_uring long
    // before.
    let (_, versions) = daemon.virsh(&["version"]);
    let of = |what: &str| {
        let line = versions.lines().find(|line| line.contains(what)).unwrap_or_default();
        let number = line.rsplit(' ').next().and_then(|v| v.split('.').next()?.parse::<u32>().ok());
        number.unwrap_or_else(|| panic!("{what}: {versions}"))
    };
    let is_new = of("Using library: libvirt") >= 10 && of("hypervisor: QEMU") >= 9;
    assert_eq!(abilities.queue_mapping, is_new, "{versions}");
    if !abilities.queue_mapping {
        return skip("this libvirt or QEMU maps no queues");
    }
    let path = dir.join("disk.raw");
    std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    let mut disk = Disk::new(path.to_str().unwrap(), DiskFormat::Raw, DiskKind::File);
    disk.io = if abilities.io_uring { DiskIo::IoUring } else { DiskIo::Native };
    disk.serial = Some("gpuvm-data".into());
    let json = std::fs::read_to_string(project().join("topologies/dgx-2.json")).unwrap();
    let topology = gpuvm::topology::file::from_json(&json).unwrap();
    let request = Request {
        pins: PinPolicy::None,
        vcpus: Some(4),
        threads: Some(2),
        cells: CellWish::Count(2),
        memory_kib: Some(gpuvm::memsize::MemSize::from_kib(512 << 10)),
        ..Request::for_gpus(0)
    };
    let mut place = plan(&topology, &Occupancy::default(), &request).unwrap();
    // As the plan of a guest on two nodes has it; here nothing can be pinned to a second one.
    place.iothread_pins = vec![gpuvm::cpuset::CpuSet::new(); 2];
    let guest = Guest {
        name: DomainName::new("mapping").unwrap(),
        virt: VirtType::Qemu,
        disks: vec![disk],
        networks: Vec::new(),
        added_networks: Vec::new(),
        vf_pools: Vec::new(),
        mac_key: None,
        taken_macs: Vec::new(),
        spare_ports: 0,
        abilities,
        record: Record {
            request,
            made: Vec::new(),
            bound: Vec::new(),
            reserved: Vec::new(),
            guarded: Vec::new(),
            vgpus: Vec::new(),
            nccl: None,
            known: Vec::new(),
            user: None,
            assumed: None,
        },
    };
    let mut xml = DomainXml::parse(&std::fs::read_to_string(&tiny.template).unwrap()).unwrap();
    let changes = edits(&xml, &guest, &place, &topology).unwrap();
    xml.apply_all(&changes).unwrap();
    libvirt.define(xml.text()).unwrap();
    libvirt.start("mapping").unwrap();
    let seen = tiny.wait_for("seen: all");
    assert!(seen.contains("seen: disk vda sectors 32768"), "{seen}");
    let asked = ["qemu-monitor-command", "mapping", "--hmp", "info qtree"];
    let (_, tree) = daemon.virsh(&asked);
    assert!(tree.contains("num-queues = 4"), "{tree}");
    let (_, live) = daemon.virsh(&["dumpxml", "mapping"]);
    let defined = DomainXml::parse(&live).unwrap();
    let differences = gpuvm::domain::differences(&xml, &defined);
    assert!(!differences.iter().any(|d| d.to_string().contains("disk")), "{differences:?}");
    let (_, threads) = daemon.virsh(&["iothreadinfo", "mapping"]);
    assert_eq!(threads.lines().filter(|line| !line.trim().is_empty()).count(), 2, "{threads}");
    libvirt.destroy("mapping").unwrap();
    libvirt.undefine("mapping").unwrap();
}
