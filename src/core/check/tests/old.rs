//! Defects of old kernels, QEMUs and libvirts, or of a host that is not set up.

use super::defects::{Defect, MANY, setting};
use super::setting::{BALLOON, CLIQUE, GIB_PAGES, Setting, bars_on, pages};
use gpuvm_core::topology::Iommufd;
use gpuvm_core::versions::Version;

/// Functions passed through by iommufd.
pub const IOMMUFD: (&str, &str) = ("<features>", "<iommufd enabled='yes'/><features>");
/// A NIC that is passed through by its group all the same.
pub const BY_GROUP: (&str, &str) = (
    BALLOON,
    "<hostdev mode='subsystem' type='pci' managed='no'><driver iommufd='no'/><source><address \
     bus='0x35' slot='0' function='0'/></source></hostdev><memballoon model='none'/>",
);

/// SMMUv3s: nested without a bus, the second without one, two of one bus, of a bus that is not there,
/// nested, and with settings that QEMU or libvirt does not take.
const NO_BUS: (&str, &str) = (
    BALLOON,
    "<iommu model='smmuv3'><driver accel='on'/></iommu>\
     <memballoon model='none'/>",
);
const ONE_BUS: (&str, &str) = (
    BALLOON,
    "<iommu model='smmuv3'><driver pciBus='0'/></iommu>\
     <iommu model='smmuv3'><driver cmdqv='off'/></iommu>\
     <memballoon model='none'/>",
);
const SAME_BUS: (&str, &str) = (
    BALLOON,
    "<iommu model='smmuv3'><driver pciBus='0'/></iommu>\
     <iommu model='smmuv3'><driver pciBus='0'/></iommu>\
     <memballoon model='none'/>",
);
const NO_CONTROLLER: (&str, &str) = (
    BALLOON,
    "<iommu model='smmuv3'><driver pciBus='99'/></iommu>\
     <memballoon model='none'/>",
);
pub const NESTED: (&str, &str) = (
    BALLOON,
    "<iommu model='smmuv3'><driver pciBus='0' accel='on'/></iommu>\
     <memballoon model='none'/>",
);
const OAS: (&str, &str) = (
    BALLOON,
    "<iommu model='smmuv3'><driver pciBus='0' oas='45'/></iommu>\
     <memballoon model='none'/>",
);
const SSIDSIZE: (&str, &str) = (
    BALLOON,
    "<iommu model='smmuv3'><driver pciBus='0' ssidsize='21'/></iommu>\
     <memballoon model='none'/>",
);
const SPELLING: (&str, &str) = (
    BALLOON,
    "<iommu model='smmuv3'><driver pciBus='0' ssidSize='20'/></iommu>\
     <memballoon model='none'/>",
);
/// A window that QEMU's `virt` does not take.
const WINDOW: (&str, &str) = (
    "<controller type='pci' index='0' model='pcie-root'/>",
    "<controller type='pci' index='0' model='pcie-root'>\
     <pcihole64 unit='KiB'>1000</pcihole64></controller>",
);
/// A guest of Arm.
const ARM: (&str, &str) = ("arch='x86_64'", "arch='aarch64'");

/// The place of the first SMMUv3's settings.
const SMMU: &str = "/domain/devices/iommu/driver";

/// The first GPU's binding is libvirt's.
const MANAGED: (&str, &str) = (
    "managed='no'>\n      <source>\n        <address domain='0x0000' bus='0x34'",
    "managed='yes'>\n      <source>\n        <address domain='0x0000' bus='0x34'",
);
/// The first GPU has empty cells.
const CELLS: [(&str, &str); 2] = [
    (
        "<cell id='0' cpus='0-9' memory='188743680' unit='KiB'/>",
        "<cell id='0' cpus='0-9' memory='188743680' unit='KiB'/><cell id='1' memory='0' \
         unit='KiB'/><cell id='2' memory='0' unit='KiB'/><cell id='3' memory='0' unit='KiB'/><cell \
         id='4' memory='0' unit='KiB'/><cell id='5' memory='0' unit='KiB'/><cell id='6' memory='0' \
         unit='KiB'/><cell id='7' memory='0' unit='KiB'/><cell id='8' memory='0' unit='KiB'/>",
    ),
    (
        "<address type='pci' domain='0x0000' bus='0x04' slot='0x00' function='0x0'/>",
        "<acpi nodeset='1-8'/><address type='pci' domain='0x0000' bus='0x04' slot='0x00' \
         function='0x0'/>",
    ),
];
/// An SMMUv3 of the bus that it is below, nested or not.
const OF_BUS: (&str, &str) = (
    BALLOON,
    "<iommu model='smmuv3'><driver pciBus='3' accel='on'/></iommu><memballoon model='none'/>",
);
const NOT_NESTED: (&str, &str) =
    (BALLOON, "<iommu model='smmuv3'><driver pciBus='3'/></iommu><memballoon model='none'/>");

/// Has a kernel without iommufd.
pub fn without_iommufd(s: &mut Setting) {
    s.host.machine.iommufd = Some(Iommufd { node: false, unsafe_interrupts: None, groups: None });
}

/// Has Arm processors, and a GPU with coherent memory.
pub fn coherent(s: &mut Setting, id: u16) {
    s.host.machine.architecture = Some("aarch64".into());
    s.host.devices.iter_mut().find(|d| d.bdf.bus() == 0x34).unwrap().device = id;
}

/// The defects.
pub const OLD: &[Defect] = &[
    setting(
        "huge-pages-not-mounted",
        "/domain/memoryBacking/hugepages/page/@size",
        |s| {
            pages(s, 200);
            s.host.machine.hugetlbfs = Some(Vec::new());
        },
        &[GIB_PAGES],
    ),
    setting(
        "slow-large-bars",
        "/domain",
        |s| bars_on(s, 64, |s| s.host.machine.kernel_release = Some("5.15.0-1040".into())),
        &[],
    ),
    setting(
        "slow-large-bars",
        "/domain",
        |s| bars_on(s, 64, |s| s.versions.qemu = Some(Version(8, 2, 2))),
        &[],
    ),
    setting(
        "slow-huge-bars",
        "/domain",
        |s| bars_on(s, 256, |s| s.versions.qemu = Some(Version(10, 0, 2))),
        &[],
    )
    .also(&["bios-huge-bars"]),
    setting("iommufd-missing", "/domain/iommufd", without_iommufd, &[IOMMUFD]),
    setting(
        "iommufd-missing",
        "/domain/iommufd",
        |s| s.versions.libvirt = Some(Version(12, 1, 0)),
        &[IOMMUFD],
    ),
    setting(
        "iommufd-p2p",
        "/domain/iommufd",
        |s| s.host.machine.kernel_release = Some("6.17.0-5-generic".into()),
        &[IOMMUFD],
    ),
    setting(
        "iommufd-p2p",
        "/domain/iommufd",
        |s| s.versions.qemu = Some(Version(10, 0, 2)),
        &[IOMMUFD],
    ),
    setting("iommufd-mixed", "/domain/devices/hostdev[4]", |_| (), &[IOMMUFD, BY_GROUP]),
    setting(
        "iommufd-mdev",
        "/domain/devices/hostdev[4]",
        |_| (),
        &[
            IOMMUFD,
            (
                BALLOON,
                "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address \
                 uuid='c2177883-f1bb-47f0-914d-32a22e3a8804'/></source></hostdev><memballoon \
                 model='none'/>",
            ),
        ],
    ),
    setting(
        "iommufd-memlock",
        "/domain/memtune/hard_limit",
        |_| (),
        &[IOMMUFD, ("<os>", "<memtune><hard_limit unit='MiB'>64</hard_limit></memtune><os>")],
    ),
    setting(
        "iommufd-private-memory",
        "/domain/memoryBacking",
        |s| {
            pages(s, 200);
            s.versions.qemu = Some(Version(11, 0, 1));
        },
        &[IOMMUFD, GIB_PAGES],
    ),
    setting(
        "iommufd-private-memory",
        "/domain/memoryBacking",
        |s| s.versions.qemu = Some(Version(11, 0, 1)),
        &[IOMMUFD, ("<os>", "<memoryBacking><source type='memfd'/></memoryBacking><os>")],
    ),
    setting("maxphysaddr-unknown", "/domain", |s| s.versions.libvirt = Some(Version(8, 0, 0)), &[]),
    setting("clique-misplaced", "/domain", |s| s.versions.qemu = Some(Version(8, 0, 4)), &[CLIQUE]),
    setting(
        "vcpus-beyond-machine",
        "/domain/vcpu",
        |s| s.versions.qemu = Some(Version(8, 0, 4)),
        &[
            MANY[0],
            MANY[1],
            MANY[2],
            ("<features>", "<features><ioapic driver='qemu'/>"),
            (
                BALLOON,
                "<memballoon model='none'/><iommu model='intel'><driver intremap='on' \
                 caching_mode='on' eim='on'/></iommu>",
            ),
        ],
    )
    .also(&["vcpu-partly-pinned"]),
    setting(
        "cells-filled-in-turn",
        "/domain",
        |s| {
            pages(s, 200);
            s.versions.qemu = Some(Version(8, 2, 2));
        },
        &[
            GIB_PAGES,
            (
                "<cell id='0' cpus='0-9' memory='188743680' unit='KiB'/>",
                "<cell id='0' cpus='0-3' memory='94371840' unit='KiB'/><cell id='1' cpus='4-9' \
                 memory='94371840' unit='KiB'/>",
            ),
            (
                "<memnode cellid='0' mode='strict' nodeset='0'/>",
                "<memnode cellid='0' mode='strict' nodeset='0'/><memnode cellid='1' mode='strict' \
                 nodeset='0'/>",
            ),
        ],
    ),
    setting("smmu-without-bus", SMMU, |_| {}, &[NO_BUS, IOMMUFD]),
    setting("smmu-without-bus", "/domain/devices/iommu[2]/driver", |_| {}, &[ONE_BUS]),
    setting("smmu-bus-twice", "/domain/devices/iommu[2]/driver/@pciBus", |_| {}, &[SAME_BUS]),
    setting("smmu-bus-kind", "/domain/devices/iommu/driver/@pciBus", |_| {}, &[NO_CONTROLLER]),
    setting("smmu-needs-iommufd", "/domain/devices/hostdev[1]", |_| {}, &[NESTED]),
    setting(
        "smmu-needs-iommufd",
        "/domain/devices/hostdev[4]",
        |_| {},
        &[NESTED, IOMMUFD, BY_GROUP],
    )
    .also(&["iommufd-mixed"]),
    setting("smmu-value", SMMU, |_| {}, &[OAS]),
    setting("smmu-value", SMMU, |_| {}, &[SSIDSIZE]),
    setting("smmu-value", SMMU, |_| {}, &[SPELLING]),
    setting(
        "gi-nodeset",
        "/domain/devices/hostdev[1]/acpi/@nodeset",
        |_| {},
        &[(
            "<address type='pci' domain='0x0000' bus='0x04' slot='0x00' function='0x0'/>",
            "<acpi nodeset='7'/><address type='pci' domain='0x0000' bus='0x04' slot='0x00' \
             function='0x0'/>",
        )],
    ),
    setting(
        "gi-missing",
        "/domain/devices/hostdev[1]",
        |s| coherent(s, 0x2941),
        &[IOMMUFD, OF_BUS],
    ),
    setting("smmu-missing", "/domain/devices/hostdev[1]", |s| coherent(s, 0x2941), &CELLS),
    setting(
        "smmu-missing",
        "/domain/devices/hostdev[1]",
        |s| coherent(s, 0x2941),
        &[CELLS[0], CELLS[1], IOMMUFD, NESTED],
    ),
    setting(
        "smmu-missing",
        "/domain/devices/hostdev[1]",
        |s| coherent(s, 0x2941),
        &[CELLS[0], CELLS[1], NOT_NESTED],
    ),
    setting(
        "coherent-managed",
        "/domain/devices/hostdev[1]",
        |s| coherent(s, 0x2941),
        &[CELLS[0], CELLS[1], IOMMUFD, OF_BUS, MANAGED],
    ),
    setting("arm-window", "/domain/devices/controller[1]/pcihole64", |_| {}, &[ARM, WINDOW]),
    setting(
        "memory-on-gpu-node",
        "/domain/numatune/memory/@nodeset",
        |s| s.host.nodes[0].gpu = Some(s.host.devices[0].bdf),
        &[],
    ),
];
