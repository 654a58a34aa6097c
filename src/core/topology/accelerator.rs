//! The table of PCI functions that are GPUs or accelerators, by class and id; the only such place.

use super::Topology;
use super::vendor::{
    DISPLAY, PROCESSING, THREE_D, VENDOR_ATI, VENDOR_HABANA, VENDOR_INTEL, VENDOR_NVIDIA,
    VENDOR_QUALCOMM, VGA,
};
use crate::bdf::Bdf;

/// A row of the table: functions that are GPUs or accelerators.
struct Row {
    vendor: u16,
    classes: &'static [u32],
    /// Device ids; empty: all.
    ids: &'static [u16],
    but: &'static [u16],
}

/// The functions that count as GPUs. Class 0x1200 alone is not enough: Intel's NPUs and FPGA cards
/// have it, too, and QAT is a co-processor (0x0b40), so it counts only for certain vendors.
/// NVSwitches are class 0x0680, NICs and DPUs 0x02.
const TABLE: &[Row] = &[
    Row { vendor: VENDOR_NVIDIA, classes: &[VGA, THREE_D, DISPLAY], ids: &[], but: &[] },
    // Rage XL (0x4752), ES1000 (0x515e, 0x5969): VGA adapters of old management controllers, by the
    // PCI ID list.
    Row {
        vendor: VENDOR_ATI,
        classes: &[VGA, THREE_D, DISPLAY],
        ids: &[],
        but: &[0x4752, 0x515e, 0x5969],
    },
    // Instinct: MI300X 0x74a1, MI325X 0x74a5, their VFs 0x74b5; MI200 as `lspci` shows it on some
    // hosts. The kernel's amdgpu binds every function of this vendor and class
    // (drivers/gpu/drm/amd/amdgpu/amdgpu_drv.c).
    Row { vendor: VENDOR_ATI, classes: &[PROCESSING], ids: &[], but: &[] },
    // Arc, Data Center GPU Flex and Max (0x0380): i915 and xe bind them by these classes
    // (include/drm/intel/pciids.h).
    Row { vendor: VENDOR_INTEL, classes: &[VGA, THREE_D, DISPLAY], ids: &[], but: &[] },
    // Goya, Gaudi 1 to 3: drivers/accel/habanalabs/common/habanalabs_drv.c and the PCI ID list.
    Row { vendor: VENDOR_HABANA, classes: &[PROCESSING], ids: &[], but: &[] },
    // Cloud AI 100 and 80: drivers/accel/qaic/qaic_drv.c.
    Row { vendor: VENDOR_QUALCOMM, classes: &[PROCESSING], ids: &[0xa080, 0xa100], but: &[] },
];

/// Whether a function with these ids and this class (without programming interface) is a GPU or an
/// accelerator.
pub(super) fn is_gpu(vendor: u16, device: u16, class: u32) -> bool {
    TABLE.iter().any(|row| {
        row.vendor == vendor
            && row.classes.contains(&class)
            && (row.ids.is_empty() || row.ids.contains(&device))
            && !row.but.contains(&device)
    })
}

impl Topology {
    /// Returns the GPUs outside a set that those of the set may have Infinity Fabric links with.
    /// AMD's Instinct have some, alone or on a board; only its driver (`amdgpu`) shows where they
    /// lead, and not while a GPU is bound to vfio-pci.
    pub(crate) fn links_unread(&self, gpus: &[Bdf]) -> Vec<Bdf> {
        let is_instinct = |bdf: &Bdf| {
            self.device(*bdf).filter(|gpu| gpu.vendor == VENDOR_ATI && gpu.class >> 8 != VGA)
        };
        let models: Vec<u16> = gpus.iter().filter_map(is_instinct).map(|gpu| gpu.device).collect();
        let others = self.gpus().filter(|gpu| !gpus.contains(&gpu.bdf));
        let alike = others.filter(|gpu| gpu.vendor == VENDOR_ATI && models.contains(&gpu.device));
        alike.map(|gpu| gpu.bdf).collect()
    }
}
