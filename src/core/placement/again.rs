//! What a guest that is there would have asked for, so that another place can be planned for it.

use super::Held;
use crate::cpuset::CpuSet;
use crate::memsize::MemSize;
use crate::request::{DeviceWish, Extras, PageSize, PinPolicy, Request};
use crate::topology::model::ids;
use crate::topology::{DeviceKind, Sriov, Topology};

/// The request that a guest like this one is: as many GPUs, vCPUs, NICs and NVMe drives, and as much memory.
pub(super) fn request_of(topology: &Topology, held: &Held) -> Request {
    let devices = || held.devices.iter().filter_map(|&bdf| topology.device(bdf));
    let number = |kind: DeviceKind, vf: bool| {
        let is = devices().filter(|device| device.kind() == kind);
        count(is.filter(|d| matches!(d.sriov, Some(Sriov::Vf { .. })) == vf).count())
    };
    let one_core = |pin: &CpuSet| {
        let core = pin.first().and_then(|pcpu| topology.core_of(pcpu));
        core.is_some_and(|core| pin.is_subset(&core.pcpus))
    };
    let pinned = !held.vcpu_pins.is_empty() && held.vcpu_pins.iter().all(one_core);
    let memory: MemSize = held.memory.iter().map(|(_, size)| *size).sum();
    let pages = [PageSize::TwoMib, PageSize::OneGib].into_iter();
    // A guest stays on GPUs of its model where the host has others.
    let mut models = devices().filter(|device| device.kind() == DeviceKind::Gpu).map(ids);
    let first = models.next().filter(|first| models.all(|other| other == *first));
    Request {
        gpu_model: first.filter(|_| topology.gpu_models().len() > 1),
        vcpus: pinned.then(|| count(held.vcpu_pins.len())),
        memory_kib: Some(memory).filter(|memory| memory.kib() >= 1024),
        huge_pages: pages.into_iter().find(|page| Some(page.size()) == held.huge_page_kib),
        pins: if pinned { PinPolicy::Core } else { PinPolicy::None },
        extras: Extras {
            nics: DeviceWish::Count(number(DeviceKind::Nic, false)),
            vfs: DeviceWish::Count(number(DeviceKind::Nic, true)),
            nvmes: DeviceWish::Count(number(DeviceKind::Nvme, false)),
            ..Extras::default()
        },
        ..Request::for_gpus(number(DeviceKind::Gpu, false))
    }
}

/// A number as requests have it.
pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
