//! Rules on GPUs whose memory is coherent with the CPU's (gpuvm-hardware(7), GRACE).

use super::report::{Report, Wrong};
use super::{Case, name};
use crate::finding::Rule;
use crate::topology::{CoherentLack, NVGRACE, PciDevice, Unsupported, is_vfio};

/// The guest would have no memory of the GPU, or does not start.
pub const COHERENT: Rule = Rule::error(
    "coherent-gpu",
    "a GPU with coherent memory that no guest can have, or by a driver without its memory",
);

pub(super) fn judge(case: &Case<'_>, report: &mut Report<'_>) {
    if case.topology.has_coherent_gpus() && case.versions.libvirt.is_none() {
        let why = "whether libvirt and QEMU pass such GPUs through: their versions are not known";
        report.skip_part(&COHERENT, why);
    }
    for gpu in case.gpus() {
        match case.topology.unsupported(gpu) {
            Some(Unsupported::Coherent(lack)) => missing(gpu, lack, report),
            Some(_) => {}
            None => driver(case, gpu, report),
        }
    }
}

/// Reports features that the host lacks for a GPU.
fn missing(gpu: &PciDevice, lack: CoherentLack, report: &mut Report<'_>) {
    let (expected, found, at, hint) = match lack {
        CoherentLack::Id(id) => (
            "a GPU of the driver's table",
            format!("10de:{id:04x}"),
            "lspci -nn",
            "a kernel whose nvgrace-gpu-vfio-pci has this id in its modules.alias",
        ),
        CoherentLack::Driver => (
            NVGRACE,
            "none".to_owned(),
            "modules.dep of the kernel",
            "a kernel with CONFIG_NVGRACE_GPU_VFIO_PCI; Debian's arm64 kernel has it off",
        ),
        CoherentLack::Iommufd => (
            "/dev/iommu",
            "none".to_owned(),
            "/dev/iommu",
            "`modprobe iommufd`, or a kernel with CONFIG_IOMMUFD and CONFIG_VFIO_DEVICE_CDEV",
        ),
        CoherentLack::Cdev => (
            "a file dev",
            "none".to_owned(),
            "vfio-dev/vfioN of the GPU in sysfs",
            "a kernel with CONFIG_VFIO_DEVICE_CDEV",
        ),
        CoherentLack::Smmu => (
            "smmu3 units",
            "none".to_owned(),
            "/sys/class/iommu",
            "turn the SMMU on in the firmware's setup",
        ),
        CoherentLack::Stack(old) => (
            "libvirt 12.7 and QEMU 11",
            old.to_string(),
            "libvirt",
            "take both from the distribution's backports, or build them",
        ),
    };
    let wrong = Wrong {
        message: format!("{} is {lack}", name(gpu)),
        values: (expected.to_owned(), found),
        at: at.to_owned(),
        hint: hint.to_owned(),
        fix: Vec::new(),
    };
    report.of(&COHERENT, gpu.bdf, wrong);
}

/// Finds a GPU that is bound to vfio-pci instead of its own driver.
fn driver(case: &Case<'_>, gpu: &PciDevice, report: &mut Report<'_>) {
    let is_coherent = case.topology.coherent_model(gpu).is_some();
    let bound = gpu.driver.as_deref().filter(|driver| is_coherent && is_vfio(driver));
    let Some(bound) = bound.filter(|driver| !case.topology.passes_by(gpu.bdf, driver)) else {
        return;
    };
    let wrong = Wrong {
        message: format!(
            "{} is bound to {bound}, which passes it through without its memory",
            name(gpu)
        ),
        values: (NVGRACE.to_owned(), bound.to_owned()),
        at: format!("/sys/bus/pci/devices/{}/driver", gpu.bdf),
        hint: format!("`gpuvm device bind {}` binds it to {NVGRACE}", gpu.bdf),
        fix: vec![format!("gpuvm device bind {}", gpu.bdf)],
    };
    report.of(&COHERENT, gpu.bdf, wrong);
}
