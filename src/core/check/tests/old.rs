//! Defects of old kernels, QEMUs and libvirts, or of a host that is not set up.

use super::defects::{Defect, MANY, setting};
use super::setting::{BALLOON, CLIQUE, GIB_PAGES, bars_on, pages};
use gpuvm_core::versions::Version;

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
];
