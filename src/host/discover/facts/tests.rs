//! Facts from files, and the facts left unknown where these are damaged.

use super::*;
use gpuvm_core::topology::facts::{AddressRange, GpuTests};
use gpuvm_core::topology::file::from_json;
use std::path::Path;

/// Writes files below a directory and reads the facts of the recorded host with them.
fn facts(files: &[(&str, &str)]) -> Facts {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        write(dir.path(), path, text);
    }
    read(&FsRoot::at(dir.path()).unwrap(), &host())
}

fn host() -> Topology {
    from_json(include_str!("../../../../topologies/dual-socket.json")).unwrap()
}

fn write(dir: &Path, path: &str, text: &str) {
    let path = dir.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn nothing_is_known_of_a_host_without_files() {
    let mut none = facts(&[]);
    assert_eq!(none.functions.len(), 2);
    none.functions.clear();
    // A host without a policy requires no tests.
    assert_eq!(none.gpu_tests.take(), Some(GpuTests::default()));
    assert_eq!(none, Facts::default());
}

#[test]
fn capabilities_and_limits_of_units_are_read_as_systemd_does() {
    let d = "etc/systemd/system/libvirtd.service.d";
    let unit = "usr/lib/systemd/system/libvirtd.service";
    for (files, memlock, without) in [
        (vec![(unit, "[Service]\nLimitMEMLOCK=64M\n")], None, None),
        (
            vec![("etc/systemd/system/libvirtd.service", "[Service]\nLimitMEMLOCK=64M\n")],
            None,
            None,
        ),
        (
            vec![("etc/systemd/system/libvirtd.service.d/a.conf", "LimitMEMLOCK=64M\n")],
            Some(64 << 20),
            None,
        ),
        (
            vec![
                ("etc/systemd/system/libvirtd.service.d/a.conf", "LimitMEMLOCK=1G\n"),
                ("etc/systemd/system/libvirtd.service.d/b.conf", "LimitMEMLOCK=1G:infinity\n"),
            ],
            Some(u64::MAX),
            None,
        ),
        (
            vec![(unit, "CapabilityBoundingSet=CAP_NET_ADMIN CAP_IPC_LOCK\n")],
            None,
            Some(vec!["CAP_SYS_RESOURCE"]),
        ),
        (
            vec![
                (unit, "CapabilityBoundingSet=CAP_NET_ADMIN CAP_IPC_LOCK\n"),
                (
                    "etc/systemd/system/libvirtd.service.d/a.conf",
                    "CapabilityBoundingSet=CAP_SYS_RESOURCE\n",
                ),
            ],
            None,
            None,
        ),
        (vec![(unit, "CapabilityBoundingSet=~CAP_IPC_LOCK\n")], None, Some(vec!["CAP_IPC_LOCK"])),
        (vec![(unit, "CapabilityBoundingSet=\n")], None, Some(NEEDED_NAMES.to_vec())),
    ] {
        let units = facts(&files).daemon_units.unwrap();
        let found = units.first();
        assert_eq!(
            found.and_then(|one| one.memlock.as_ref()).map(|(bytes, _)| *bytes),
            memlock,
            "{files:?}"
        );
        let names = found.and_then(|one| one.without.as_ref()).map(|(names, _)| names.clone());
        assert_eq!(
            names,
            without.map(|names| names.into_iter().map(str::to_owned).collect()),
            "{files:?}"
        );
    }
    for (limit, bytes) in [("1P", Some(1 << 50)), ("15E", Some(15 << 60)), ("16E", None)] {
        let found = facts(&[(&format!("{d}/a.conf"), &format!("LimitMEMLOCK={limit}\n"))]);
        let memlock = found.daemon_units.and_then(|units| Some(units.first()?.memlock.clone()?.0));
        assert_eq!(memlock, bytes, "{limit}");
    }
    let damaged = facts(&[(&format!("{d}/a.conf"), "LimitMEMLOCK=much\n")]);
    assert_eq!(damaged.daemon_units, None);
    assert!(damaged.unread["etc/systemd/system"].contains("`much` is not a limit"), "{damaged:?}");
}

const NEEDED_NAMES: [&str; 2] = ["CAP_SYS_RESOURCE", "CAP_IPC_LOCK"];

#[test]
fn addresses_of_bars_and_of_pictures_are_read() {
    let gpu = "sys/bus/pci/devices/0000:86:00.0";
    let resource = "0x00000000c4000000 0x00000000c4ffffff 0x0000000000040200\n\
                    0x0000000000000000 0x0000000fffffffff 0x000000002014220c\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
    let found = facts(&[
        (&format!("{gpu}/resource"), resource),
        (&format!("{gpu}/resource1_resize"), "000000000001ffc0\n"),
        (&format!("{gpu}/reset_method"), "\n"),
        ("proc/iomem", "00001000-0009ffff : System RAM\n  c4100000-c43fffff : BOOTFB\n"),
    ]);
    let function = found.functions[1].clone();
    let memory = function.memory.unwrap();
    assert_eq!(memory[&0], Some(AddressRange { first: 0xc400_0000, last: 0xc4ff_ffff }));
    assert_eq!((memory[&1], memory.len()), (None, 2));
    assert_eq!(function.resizable, Some((64 << 30, 64 << 30)));
    assert_eq!(function.can_reset, Some(true));
    assert_eq!(facts(&[("proc/iomem", "")]).functions[1].can_reset, Some(false), "a missing file");
    let pictures = found.framebuffers.unwrap();
    assert_eq!((pictures[0].name.as_str(), pictures[0].range.first), ("BOOTFB", 0xc410_0000));
    let hidden = facts(&[("proc/iomem", "00000000-00000000 : System RAM\n")]);
    assert!(hidden.framebuffers.is_none() && hidden.unread["proc/iomem"].contains("root only"));
}

#[test]
fn boot_time_driver_bindings_are_read() {
    let found = facts(&[
        (
            "etc/modprobe.d/a.conf",
            "# options vfio-pci ids=1:2\noptions vfio_pci ids=10de:2230,10de:1aef x=1\n",
        ),
        (
            "etc/modprobe.d/b.conf",
            "softdep nvidia pre: vfio-pci\nblacklist nouveau\ninstall i915 /bin/false\n",
        ),
        ("etc/modules", "vfio\n#vfio_virqfd\nvfio_virqfd\n"),
        ("lib/modules/6.1.0-28-amd64/modules.builtin", "kernel/drivers/vfio/pci/vfio-pci.ko\n"),
    ]);
    let drivers = found.boot_drivers.unwrap();
    assert_eq!(drivers.vfio_ids[0].ids, ["10de:2230", "10de:1aef"]);
    assert_eq!(drivers.later, ["nvidia", "nouveau", "i915"]);
    assert_eq!((drivers.virqfd.as_deref(), drivers.built_in), (Some("etc/modules"), Some(true)));
}

#[test]
fn an_initramfs_that_is_older_than_what_it_has_copies_of_is_seen() {
    use std::time::{Duration, SystemTime};
    let (ids, scripts) = ("etc/modprobe.d/a.conf", "etc/initramfs-tools/scripts/init-top");
    let (script, image) = (format!("{scripts}/gpuvm-vfio"), "boot/initrd.img-6.1.0-28-amd64");
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), ids, "options vfio-pci ids=10de:2230\n");
    write(dir.path(), &script, "#!/bin/sh\n");
    write(dir.path(), image, "");
    let stale = |ages: [u64; 4]| {
        for (path, age) in [image, ids, &script, scripts].into_iter().zip(ages) {
            let at = SystemTime::now() - Duration::from_secs(age);
            let file = std::fs::File::open(dir.path().join(path)).unwrap();
            file.set_modified(at).unwrap();
        }
        let drivers = read(&FsRoot::at(dir.path()).unwrap(), &host()).boot_drivers.unwrap();
        drivers.stale.map(|(old, newer)| {
            assert_eq!(old, image);
            newer
        })
    };
    assert_eq!(stale([10, 20, 20, 20]), None);
    assert_eq!(stale([30, 20, 40, 40]).as_deref(), Some(ids));
    assert_eq!(stale([30, 40, 20, 20]).as_deref(), Some(script.as_str()));
    assert_eq!(stale([30, 40, 40, 20]).as_deref(), Some(scripts));
}

#[test]
fn free_memory_is_counted_by_node_and_size() {
    let found = facts(&[(
        BUDDY,
        "Node 0, zone   DMA32 1 0 0 0 0 0 0 0 0 0 1\nNode 0, zone  Normal 2 0 0 0 0 0 0 0 0 1 0\n\
         Node 1, zone Normal 0 1 0 0 0 0 0 0 0 0 0\n",
    )]);
    let blocks = found.free_blocks.unwrap();
    assert_eq!((blocks[0].free_kib, blocks[0].large_kib), (12 + 4096 + 2048, 4096 + 2048));
    assert_eq!((blocks[1].node, blocks[1].free_kib, blocks[1].large_kib), (NodeId(1), 8, 0));
    for text in ["", "Node", "Node x, zone A 1", "Node 0, zone A x"] {
        let damaged = facts(&[(BUDDY, text)]);
        assert!(damaged.free_blocks.is_none() && damaged.unread.contains_key(BUDDY), "{text}");
    }
}

#[test]
fn libvirts_configuration_is_read() {
    let conf = |text: &str| facts(&[("etc/libvirt/qemu.conf", text)]).libvirt.unwrap();
    let list = conf(
        "#cgroup_device_acl = [ \"/dev/x\" ]\ncgroup_device_acl = [\n  \"/dev/null\", \"/dev/vfio/vfio\",\n  # more\n]\nuser = \"svc\"\n",
    );
    assert_eq!(list.device_acl.unwrap(), ["/dev/null", "/dev/vfio/vfio"]);
    assert_eq!(list.user.as_deref(), Some("svc"));
    assert!(conf("auto_shutdown_try_save = \"persistent\"\n").auto_shutdown);
    assert!(!conf("auto_shutdown_try_save = \"none\"\n").auto_shutdown);
}
