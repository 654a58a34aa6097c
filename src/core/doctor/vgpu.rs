//! Rules on GPUs that guests share: virtual functions that nothing serves, and cards without the
//! driver that serves theirs (gpuvm-hardware(7), VGPU AND MIG).

use super::report::{Report, Wrong};
use super::{Case, name};
use crate::finding::Rule;
use crate::topology::sharing::NVIDIA;
use crate::topology::vendor::VENDOR_NVIDIA;
use crate::topology::{PciDevice, Sriov, VfKind, VgpuInterface, is_vfio};
use crate::words::count;

/// A guest's driver has nothing to talk to.
pub const NO_TYPE: Rule =
    Rule::note("vf-without-type", "virtual functions of a GPU that no vGPU type can be set for");
/// The guest that has the card ends the functions of others.
pub const ON_VFIO: Rule =
    Rule::error("pf-with-vfs-on-vfio", "a GPU on vfio-pci that has virtual functions");
/// NVIDIA's script leaves it so when it fails.
pub const UNBOUND: Rule =
    Rule::error("sriov-unbound", "a GPU without its driver beside others that guests share");

pub(super) fn judge(case: &Case<'_>, report: &mut Report<'_>) {
    for gpu in case.gpus().filter(|gpu| !gpu.is_vf()) {
        untyped(case, gpu, report);
        on_vfio(gpu, report);
        unbound(case, gpu, report);
    }
}

fn untyped(case: &Case<'_>, gpu: &PciDevice, report: &mut Report<'_>) {
    let is_untyped = |vf: &&PciDevice| case.topology.vf_kind(vf) == Some(VfKind::Untyped);
    let mut vfs = case.topology.vfs_of(gpu.bdf).filter(is_untyped);
    let Some(first) = vfs.next() else { return };
    let wrong = Wrong {
        message: format!(
            "{} has {} without vGPU types: no guest can have one",
            name(gpu),
            count(vfs.count() + 1, "virtual function")
        ),
        values: ("NVIDIA's vGPU host driver".into(), "none of its files".into()),
        at: format!("/sys/bus/pci/devices/{}/nvidia", first.bdf),
        hint: format!(
            "`echo 0 > /sys/bus/pci/devices/{}/sriov_numvfs` makes it a whole GPU again; with \
             NVIDIA's licensed vGPU host driver `gpuvm vgpu vfs {} --on` enables vGPUs",
            gpu.bdf, gpu.bdf
        ),
        fix: Vec::new(),
    };
    report.of(&NO_TYPE, gpu.bdf, wrong);
}

fn on_vfio(gpu: &PciDevice, report: &mut Report<'_>) {
    let Some(Sriov::Pf { enabled: enabled @ 1.., .. }) = gpu.sriov else { return };
    let Some(driver) = gpu.driver.as_deref().filter(|driver| is_vfio(driver)) else { return };
    let file = format!("/sys/bus/pci/devices/{}/sriov_numvfs", gpu.bdf);
    let wrong = Wrong {
        message: format!(
            "{} is bound to {driver} and has {}, which end with it",
            name(gpu),
            count(enabled as usize, "virtual function")
        ),
        values: ("no virtual functions, or the vendor's driver".into(), driver.to_owned()),
        at: file.clone(),
        hint: format!("`echo 0 > {file}` once no guest has one of them"),
        fix: vec![format!("# once no guest has one of them: echo 0 > {file}")],
    };
    report.of(&ON_VFIO, gpu.bdf, wrong);
}

fn unbound(case: &Case<'_>, gpu: &PciDevice, report: &mut Report<'_>) {
    let is_candidate = gpu.vendor == VENDOR_NVIDIA
        && gpu.driver.is_none()
        && matches!(gpu.sriov, Some(Sriov::Pf { total: 1.., .. }));
    let is_shared = |(card, interface): (&PciDevice, VgpuInterface)| {
        card.bdf != gpu.bdf && matches!(interface, VgpuInterface::Vfio | VgpuInterface::Mdev)
    };
    if !is_candidate || !case.topology.shared_gpus().any(is_shared) {
        return;
    }
    let bind = format!("echo {} > /sys/bus/pci/drivers/{NVIDIA}/bind", gpu.bdf);
    let wrong = Wrong {
        message: format!("{} has no driver: sriov-manage may have left it so", name(gpu)),
        values: (NVIDIA.to_owned(), "none".to_owned()),
        at: format!("/sys/bus/pci/devices/{}/driver", gpu.bdf),
        hint: format!("`{bind}`, then `gpuvm vgpu vfs {} --on`", gpu.bdf),
        fix: vec![bind.clone()],
    };
    report.of(&UNBOUND, gpu.bdf, wrong);
}
