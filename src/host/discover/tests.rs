//! Small made-up hosts: one peculiarity each.

use super::*;
use gpuvm_core::topology::{DriveUse, NetFace};
use std::os::unix::fs::symlink;
use std::path::Path;

/// Makes a host of files (`path`, `text`) and links (`path`, `-> target`); a path that ends with
/// `/` is a directory.
fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    add(dir.path(), files);
    dir
}

/// Adds files and links to a host.
fn add(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let full = root.join(path);
        if path.ends_with('/') {
            std::fs::create_dir_all(&full).unwrap();
            continue;
        }
        std::fs::create_dir_all(full.parent().unwrap()).unwrap();
        match text.strip_prefix("-> ") {
            Some(target) => symlink(target, &full).unwrap(),
            None => std::fs::write(&full, format!("{text}\n")).unwrap(),
        }
    }
}

/// Reads a made-up host without and with identifying data.
fn both(dir: &tempfile::TempDir) -> (Parts, Parts) {
    let root = FsRoot::at(dir.path()).unwrap();
    let plain = discover(&root).unwrap().parts().clone();
    (plain, discover_identified(&root).unwrap().parts().clone())
}

/// One pcpu, so that there is a host at all.
const PCPU: (&str, &str) = ("sys/devices/system/cpu/online", "0");

#[test]
fn a_kernel_without_lists_and_nodes_gives_one_node() {
    let dir = host(&[
        ("sys/devices/system/cpu/cpu0/topology/thread_siblings", "00000000,00000005"),
        ("sys/devices/system/cpu/cpu1/topology/thread_siblings", "0000000a"),
        ("sys/devices/system/cpu/cpu1/topology/physical_package_id", "-1"),
        ("sys/devices/system/cpu/cpu2/online", "1"),
        ("sys/devices/system/cpu/cpu3/online", "0"),
        ("sys/devices/system/cpu/cpufreq/", ""),
        ("proc/meminfo", "MemTotal:        2048 kB\nHugePages_Total: 0"),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2"),
        ("sys/kernel/mm/hugepages/hugepages-65536kB/nr_hugepages", "2"),
        ("sys/kernel/mm/hugepages/hugepages-65536kB/free_hugepages", "5"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "7"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "6"),
    ]);
    let (parts, _) = both(&dir);
    let cores: Vec<_> = parts.cores.iter().map(|c| (c.package, c.pcpus.to_string())).collect();
    assert_eq!(cores, [(0, "0,2".to_owned()), (0, "1".to_owned())]);
    assert_eq!(parts.offline.to_string(), "3");
    let [node] = &parts.nodes[..] else { panic!("{:?}", parts.nodes) };
    assert_eq!((node.pcpus.to_string(), node.memory_kib.kib()), ("0-2".into(), 2048));
    let pools: Vec<_> =
        node.huge_pages.iter().map(|p| (p.page_kib.kib(), p.total, p.free)).collect();
    assert_eq!(pools, [(2048, 7, 6), (65536, 2, 2), (1_048_576, 2, 0)], "no more free than all");
}

#[test]
fn contradictions_become_notes() {
    let node = "sys/devices/system/node";
    let cpu = "sys/devices/system/cpu";
    let pci = "sys/bus/pci/devices/0000:01:00.0";
    let tree = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
    let path = |dir: &str, file: &str| format!("{dir}/{file}");
    let files = [
        (path(cpu, "online"), "0-4"),
        (path(cpu, "cpu0/topology/thread_siblings_list"), "0-1"),
        (path(cpu, "cpu2/topology/thread_siblings_list"), "1-2"),
        (path(cpu, "cpu3/topology/thread_siblings_list"), "3-4"),
        (path(node, "node0/cpulist"), "0-2"),
        (path(node, "node0/distance"), "10"),
        (path(node, "node7/cpulist"), "2-3"),
        (pci.to_owned(), "-> ../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0"),
        (path(tree, "numa_node"), "3"),
        (path(tree, "physfn"), "-> ../0000:02:00.0"),
        ("sys/bus/pci/devices/new_id".to_owned(), ""),
    ];
    let files: Vec<(&str, &str)> =
        files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    let (parts, _) = both(&host(&files));
    let notes = [
        "node 7: pcpus 2 are on another node, too",
        "pcpus 4 are on no node; counted to node 0",
        "node 0: 1 distances for 2 nodes",
        "pcpu 2: its siblings 1-2 are partly those of another core",
        "core of pcpu 3: its pcpus 3-4 are on several nodes",
        "sys/bus/pci/devices/new_id is not a PCI address; passed over",
        "PCI function 0000:01:00.0: the record does not say its vendor",
        "PCI function 0000:01:00.0: it names node 3, which does not exist",
        "PCI function 0000:01:00.0: the bridge 0000:00:01.0 above it is not listed",
        "PCI function 0000:01:00.0: its physical function 0000:02:00.0 is not listed",
    ];
    assert_eq!(parts.notes, notes);
    assert_eq!(parts.devices[0].root.as_deref(), Some("pci0000:00"));
}

#[test]
fn users_of_a_nic_are_found_to_the_top() {
    let pci = "sys/bus/pci/devices/0000:00:03.0";
    let virt = "sys/devices/virtual/net";
    let face = |files: &[(&str, &str)]| {
        let dir = host(&[PCPU]);
        add(dir.path(), &[(&format!("{pci}/class"), "0x020000")]);
        add(dir.path(), files);
        both(&dir).0.devices[0].net.clone().unwrap_or_default()
    };
    let used = |face: NetFace| face.used_by.join("; ");
    let eth0 = format!("{pci}/net/eth0");
    let route = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                 eth0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n\
                 eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0";
    assert_eq!(used(face(&[(&format!("{eth0}/mtu"), "1500")])), "");
    let plain = face(&[(&format!("{eth0}/mtu"), "1500"), ("proc/net/route", route)]);
    assert_eq!((plain.netdevs.join(" "), used(plain)), ("eth0".into(), "default route".into()));
    let six = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
               fe800000000000000000000000000001 00000400 00000001 00000000 00000003 br0";
    let stacked = face(&[
        (&format!("{eth0}/master"), "-> ../../../bond0"),
        (&format!("{eth0}/upper_bond0"), "-> ../../../bond0"),
        (&format!("{virt}/bond0/bonding/"), ""),
        (&format!("{virt}/bond0/upper_bond0.7"), "-> ../bond0.7"),
        (&format!("{virt}/bond0.7/master"), "-> ../br0"),
        (&format!("{virt}/br0/bridge/"), ""),
        (&format!("{virt}/br0/upper_bond0"), "-> ../bond0"),
        ("sys/class/net/bond0", "-> ../../devices/virtual/net/bond0"),
        ("sys/class/net/bond0.7", "-> ../../devices/virtual/net/bond0.7"),
        ("sys/class/net/br0", "-> ../../devices/virtual/net/br0"),
        ("proc/net/ipv6_route", six),
    ]);
    let wanted =
        "default route over br0; member of bond bond0; member of bond0.7; member of bridge br0";
    assert_eq!(used(stacked), wanted);
    let virtio = face(&[(&format!("{pci}/virtio1/net/eth9/mtu"), "1500")]);
    assert_eq!(virtio.netdevs, ["eth9"]);
}

#[test]
fn a_bad_route_names_its_line() {
    let dir = host(&[
        PCPU,
        ("sys/bus/pci/devices/0000:00:03.0/class", "0x020000"),
        ("sys/bus/pci/devices/0000:00:03.0/net/eth0/mtu", "1500"),
        ("proc/net/route", "Iface\nlo\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\neth0\tzz"),
    ]);
    let error = discover(&FsRoot::at(dir.path()).unwrap()).unwrap_err().to_string();
    assert!(error.ends_with("proc/net/route line 3: `eth0 zz` is not a route"), "{error}");
}

#[test]
fn identifiers_of_a_host_are_read_on_request_only() {
    let (pci, block) = ("sys/bus/pci/devices/0000:00:03.0", "sys/devices/x/block/sda");
    let dir = host(&[
        PCPU,
        (&format!("{pci}/class"), "0x020000"),
        (&format!("{pci}/net/eth0/address"), "52:54:00:12:34:56"),
        (&format!("{block}/size"), "8"),
        (&format!("{block}/sda1/partition"), "1"),
        ("sys/class/block/sda", "-> ../../devices/x/block/sda"),
        ("sys/class/block/sda1", "-> ../../devices/x/block/sda/sda1"),
        ("dev/disk/by-id/ata-DISK_SERIAL7", "-> ../../sda"),
        ("dev/disk/by-id/ata-DISK_SERIAL7-part1", "-> ../../sda1"),
        ("dev/disk/by-partuuid/0a1b-2c3d", "-> ../../sda1"),
        ("proc/sys/kernel/hostname", "secret-name"),
        ("proc/cmdline", "root=PARTUUID=0a1b-2c3d iommu=pt"),
    ]);
    let (plain, identified) = both(&dir);
    let plain = serde_json::to_string(&plain).unwrap();
    let identified = serde_json::to_string(&identified).unwrap();
    for text in ["52:54:00:12:34:56", "SERIAL7", "0a1b-2c3d", "secret-name"] {
        assert!(!plain.contains(text), "{text} in {plain}");
        assert!(identified.contains(text), "{text} not in {identified}");
    }
    assert!(plain.contains("iommu=pt"));
}

#[test]
fn a_link_that_udev_forgot_names_nothing() {
    let block = "sys/devices/x/block/sda";
    let dir = host(&[
        PCPU,
        (&format!("{block}/dev"), "8:0"),
        (&format!("{block}/sda1/partition"), "1"),
        (&format!("{block}/sda1/dev"), "8:1"),
        ("sys/class/block/sda", "-> ../../devices/x/block/sda"),
        ("sys/class/block/sda1", "-> ../../devices/x/block/sda/sda1"),
        ("dev/disk/by-id/ata-A", "-> ../../sda"),
        ("dev/disk/by-id/ata-B", "-> ../../sda"),
        ("dev/disk/by-partuuid/1-new", "-> ../../sda1"),
        ("dev/disk/by-partuuid/2-old", "-> ../../sda1"),
        ("run/udev/data/b8:0", "E:ID_MODEL=x"),
        ("run/udev/data/b8:1", "S:disk/by-partuuid/1-new\nS:disk/by-label/x\nE:A=b"),
    ]);
    let (_, identified) = both(&dir);
    let drive = &identified.drives[0];
    assert_eq!(drive.partitions[0].partuuid.as_deref(), Some("1-new"));
    // It does not apply to the whole drive.
    assert_eq!(drive.stable_ids, ["ata-A", "ata-B"]);
}

#[test]
fn drives_are_whole_and_know_their_uses() {
    let nvme = "sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0";
    let dir = host(&[
        PCPU,
        ("sys/bus/pci/devices/0000:00:04.0", "-> ../../../devices/pci0000:00/0000:00:04.0"),
        (&format!("{nvme}/nvme0n1/size"), "2048"),
        (&format!("{nvme}/nvme0n1/nvme0n1p10/partition"), "10"),
        (&format!("{nvme}/nvme0n1/nvme0n1p9/partition"), "9"),
        (&format!("{nvme}/nvme0n1/nvme0n1p9/dev"), "259:9"),
        (&format!("{nvme}/nvme0c0n1/hidden"), "1"),
        ("sys/devices/virtual/block/dm-0/size", "8"),
        ("sys/devices/pci0000:00/0000:00:05.0/host0/block/sr0/size", "8"),
        ("sys/class/block/nvme0n1", &format!("-> ../../{}/nvme0n1", &nvme[4..])),
        ("sys/class/block/nvme0n1p9", &format!("-> ../../{}/nvme0n1/nvme0n1p9", &nvme[4..])),
        ("sys/class/block/nvme0n1p10", &format!("-> ../../{}/nvme0n1/nvme0n1p10", &nvme[4..])),
        ("sys/class/block/nvme0c0n1", &format!("-> ../../{}/nvme0c0n1", &nvme[4..])),
        ("sys/class/block/dm-0", "-> ../../devices/virtual/block/dm-0"),
        ("sys/class/block/sr0", "-> ../../devices/pci0000:00/0000:00:05.0/host0/block/sr0"),
        ("proc/1/mountinfo", "26 1 259:9 / /host\\040only rw - ext4 /dev/root rw"),
        ("proc/self/mountinfo", "30 1 0:40 / /sub rw - btrfs /dev/nvme0n1p10 rw"),
    ]);
    let (parts, _) = both(&dir);
    let [drive] = &parts.drives[..] else { panic!("{:?}", parts.drives) };
    assert_eq!((drive.name.as_str(), drive.bytes), ("nvme0n1", 1 << 20));
    assert_eq!(drive.bdf.unwrap().to_string(), "0000:00:04.0");
    let mounts: Vec<_> = drive.partitions.iter().map(|p| (p.number, p.used_by.clone())).collect();
    let mounted = |at: &str| vec![DriveUse::Mounted { at: at.into() }];
    assert_eq!(mounts, [(9, mounted("/host only")), (10, mounted("/sub"))]);
}

#[test]
fn a_shorter_list_of_mounts_will_do() {
    let dir = host(&[
        PCPU,
        ("sys/devices/x/block/vda/size", "8"),
        ("sys/class/block/vda", "-> ../../devices/x/block/vda"),
        ("proc/mounts", "/dev/vda / ext4 rw 0 0\nproc /proc proc rw 0 0\n\nx"),
        ("proc/swaps", "Filename Type\n/dev/vda partition 1 0 -2\n"),
    ]);
    let (parts, _) = both(&dir);
    let uses = [DriveUse::Mounted { at: "/".into() }, DriveUse::Swap];
    assert_eq!(parts.drives[0].used_by, uses);
}

#[test]
fn a_bad_file_is_named_with_its_line() {
    let cpu = "sys/devices/system/cpu";
    let pci = "sys/bus/pci/devices/0000:00:03.0";
    for (path, text, reason) in [
        (format!("{cpu}/online"), "0-x", "line 1: `0-x` in pcpu list"),
        (format!("{cpu}/online"), "0-99999", "line 1: pcpu 99999 is above 65535"),
        (format!("{cpu}/cpu0/topology/core_id"), "one", "line 1: `one` is not a number"),
        (format!("{cpu}/cpu0/topology/thread_siblings"), "1,+f", "is not a mask such as"),
        (format!("{cpu}/cpu0/cache/index3/size"), "12", "is not a size such as"),
        ("sys/devices/system/node/node0/distance".into(), "10 -1", "`-1` is not a distance"),
        (
            "sys/devices/system/node/node0/meminfo".into(),
            "Node 0 MemFree: 1 kB\nNode 0 MemTotal: much",
            "line 2: `much` is not an amount",
        ),
        (
            "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages".into(),
            "-4",
            "is not a number in range",
        ),
        (format!("{pci}/vendor"), "10de", "is not a number such as 0x10de"),
        (format!("{pci}/class"), "0x1000000", "above 24 bits"),
        (format!("{pci}/numa_node"), "x", "is not a number"),
        (format!("{pci}/resource"), "0x0 0x0 0x0\n0x2 0x1 0x200", "line 2: `0x2 0x1 0x200`"),
        (format!("{pci}/iommu_group"), "-> ../x", "`x` is not a group's number"),
        (format!("{pci}/sriov_totalvfs"), "many", "is not a number"),
        (format!("{pci}/physfn"), "-> ../x", "`x` is not a PCI address"),
    ] {
        let dir = host(&[(&format!("{cpu}/cpu0/cache/index3/level"), "3")]);
        if !path.ends_with("/online") {
            add(dir.path(), &[PCPU]);
        }
        add(dir.path(), &[(&format!("{pci}/enable"), "1"), (&path, text)]);
        let error = discover(&FsRoot::at(dir.path()).unwrap()).expect_err(&path).to_string();
        assert!(error.contains(reason), "{error}");
        assert!(error.contains(dir.path().join(&path).to_str().unwrap()), "{error}");
    }
}

#[test]
fn kinds_of_cores_are_recognised_by_counters_or_capacity() {
    let cpu = "sys/devices/system/cpu";
    let kinds = |files: &[(&str, &str)]| -> Vec<(&'static str, String)> {
        let dir = host(&[&[("sys/devices/system/cpu/online", "0-3")], files].concat());
        let (parts, _) = both(&dir);
        parts.core_kinds.iter().map(|kind| (kind.kind.as_str(), kind.pcpus.to_string())).collect()
    };
    let intel = kinds(&[
        ("sys/devices/cpu_core/cpus", "0-1"),
        ("sys/devices/cpu_atom/cpus", "2,4-5"),
        ("sys/devices/cpu_lowpower/cpus", "3"),
    ]);
    let wanted = [("performance", "0-1"), ("efficiency", "2"), ("low-power", "3")];
    assert_eq!(intel, wanted.map(|(kind, pcpus)| (kind, pcpus.to_owned())));
    assert!(kinds(&[("sys/devices/cpu_core/cpus", "0-3")]).is_empty(), "one kind");
    let capacities = |of: [&str; 4]| {
        let paths = [0, 1, 2, 3].map(|at| format!("{cpu}/cpu{at}/cpu_capacity"));
        let files: Vec<(&str, &str)> = paths.iter().map(String::as_str).zip(of).collect();
        kinds(&files)
    };
    let arm = capacities(["446", "446", "1024", "990"]);
    assert_eq!(arm, [("performance", "2-3".to_owned()), ("efficiency", "0-1".to_owned())]);
    assert!(capacities(["1024", "1024", "1010", "1024"]).is_empty(), "clocks differ a little");
    assert!(kinds(&[("sys/devices/system/cpu/cpu0/cpu_capacity", "512")]).is_empty(), "in part");
}

#[test]
fn mediated_devices_below_a_function_are_counted() {
    let gpu = "sys/devices/pci0000:00/0000:00:01.0";
    let uuid = "11111111-2222-3333-4444-555555555555";
    let path = |file: &str| format!("{gpu}/{file}");
    let files = [path("class"), path("vendor"), path("device"), path(&format!("{uuid}/"))];
    let types = path("mdev_supported_types/");
    let dir = host(&[
        PCPU,
        ("sys/bus/pci/devices/0000:00:01.0", "-> ../../../devices/pci0000:00/0000:00:01.0"),
        (&files[0], "0x030200"),
        (&files[1], "0x10de"),
        (&files[2], "0x20b0"),
        (&files[3], ""),
        (&types, ""),
    ]);
    let (parts, _) = both(&dir);
    assert_eq!(parts.devices[0].mediated, 1);
}
