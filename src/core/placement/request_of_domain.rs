//! Derives a request from an existing guest, so that another place can be planned for it.

use crate::bdf::Bdf;
use crate::cpuset::CpuSet;
use crate::host_device::HostDevice;
use crate::memsize::MemSize;
use crate::occupancy::Held;
use crate::request::{DeviceWish, Extras, GpuWish, PageSize, PinPolicy, Request, VgpuWish};
use crate::topology::model::ids;
use crate::topology::{DeviceKind, PciDevice, Topology};

/// Returns the request for a guest like this one: as many GPUs, vCPUs, NICs and NVMe drives, and as
/// much memory, and vGPUs of its type. A domain with a display GPU keeps its GPUs, since no other
/// can replace a display.
pub(super) fn request_of(topology: &Topology, held: &Held) -> Request {
    let devices = || held.devices.iter().filter_map(|&bdf| topology.device(bdf));
    let number = |kind, vf| count(topology.among(&held.devices, kind, vf).len());
    let one_core = |pin: &CpuSet| {
        let core = pin.first().and_then(|pcpu| topology.core_of(pcpu));
        core.is_some_and(|core| pin.is_subset(&core.pcpus))
    };
    let pinned = !held.vcpu_pins.is_empty() && held.vcpu_pins.iter().all(one_core);
    let memory: MemSize = held.memory.iter().map(|(_, size)| *size).sum();
    let pages = [PageSize::TwoMib, PageSize::OneGib].into_iter();
    let is_gpu = |device: &&PciDevice| device.kind() == DeviceKind::Gpu;
    let gpus = || devices().filter(is_gpu).filter(|gpu| !is_share(topology, held, gpu.bdf));
    let shown = gpus().any(|gpu| topology.set_aside(gpu).is_some());
    let model = model_of(topology, &held.devices);
    let gpus: Vec<Bdf> = gpus().map(|gpu| gpu.bdf).collect();
    let vgpu = vgpu_of(held);
    // With vGPUs the number would follow from their part of a card.
    let floating = Some(held.vcpus).filter(|vcpus| vgpu.is_some() && *vcpus > 0);
    Request {
        gpu_model: model.filter(|_| !shown && !gpus.is_empty()),
        vcpus: pinned.then(|| count(held.vcpu_pins.len())).or(floating),
        memory_kib: Some(memory).filter(|memory| memory.kib() >= 1024),
        huge_pages: pages.into_iter().find(|page| Some(page.size()) == held.huge_page_kib).into(),
        pins: if pinned { PinPolicy::Core } else { PinPolicy::None },
        extras: Extras {
            nics: DeviceWish::Count(number(DeviceKind::Nic, false)),
            vfs: DeviceWish::Count(number(DeviceKind::Nic, true)),
            nvmes: DeviceWish::Count(number(DeviceKind::Nvme, false)),
            ..Extras::default()
        },
        gpus: if shown { GpuWish::Exact(gpus) } else { GpuWish::Count(count(gpus.len())) },
        vgpu,
        ..Request::for_gpus(0)
    }
}

/// The recorded vGPUs of a guest, wherever a card has them.
fn vgpu_of(held: &Held) -> Option<VgpuWish> {
    let type_name = held.vgpus.first()?.name.clone();
    Some(VgpuWish { type_name, count: count(held.vgpus.len()), gpu: None })
}

/// Whether a function of a guest is a share of a card, or the parent of one.
fn is_share(topology: &Topology, held: &Held, bdf: Bdf) -> bool {
    topology.is_vgpu_function(bdf) || held.vgpus.iter().any(|vgpu| vgpu.function == bdf)
}

/// Whether a guest stays at its place: its GPUs have coherent memory, by which its cells and buses
/// are made, or it has vGPUs that are not recorded, or of several types, which nothing sets up
/// elsewhere.
pub(super) fn is_fixed(topology: &Topology, held: &Held) -> bool {
    let is_coherent = |bdf: &Bdf| topology.is_coherent(*bdf);
    let is_recorded = |bdf: Bdf| held.vgpus.iter().any(|vgpu| vgpu.function == bdf);
    let is_unknown = |bdf: &Bdf| topology.is_vgpu_function(*bdf) && !is_recorded(*bdf);
    let is_foreign = |device: &HostDevice| match device {
        HostDevice::Mediated(uuid) => !held.vgpus.iter().any(|vgpu| vgpu.is_device(uuid)),
        _ => false,
    };
    let mut types = held.vgpus.iter().map(|vgpu| &vgpu.type_id);
    let first = types.next();
    held.devices.iter().any(|bdf| is_coherent(bdf) || is_unknown(bdf))
        || held.host_devices.iter().any(is_foreign)
        || types.any(|other| Some(other) != first)
}

/// The model that a guest with these functions stays on; `None` if the host has one only, or the
/// guest has several.
pub fn model_of(topology: &Topology, devices: &[Bdf]) -> Option<String> {
    let devices = devices.iter().filter_map(|&bdf| topology.device(bdf));
    let mut models = devices.filter(|device| device.kind() == DeviceKind::Gpu).map(ids);
    let first = models.next().filter(|first| models.all(|other| other == *first));
    first.filter(|_| topology.gpu_models().len() > 1)
}

/// Converts a count to the type used in requests.
pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{Occupancy, capacity, plan};
    use super::*;
    use crate::placement::tests::testhost::{HostSpec, held};

    /// Two cards and, before them, the host's display, whose node is unknown; node 1 has most of
    /// the cores.
    fn desktop() -> Topology {
        let mut spec = HostSpec::even(2, 8, 64, 2);
        spec.nodes[1].cores = 24;
        spec.gpus.insert(0, None);
        let mut parts = spec.parts();
        parts.devices[0].boot_vga = true;
        Topology::new(parts).unwrap()
    }

    #[test]
    fn a_display_is_no_gpu_that_another_stands_in_for() {
        let host = desktop();
        let all: Vec<Bdf> = host.of_kind(DeviceKind::Gpu).map(|gpu| gpu.bdf).collect();
        let guest = |gpus: &[Bdf]| {
            let wish = GpuWish::Exact(gpus.to_vec());
            let request = Request { gpus: wish, vcpus: Some(2), ..Request::for_gpus(0) };
            held("a", &plan(&host, &Occupancy::default(), &request).unwrap())
        };
        assert_eq!(request_of(&host, &guest(&all[..1])).gpus, GpuWish::Exact(all[..1].to_vec()));
        assert_eq!(request_of(&host, &guest(&all[..2])).gpus, GpuWish::Exact(all[..2].to_vec()));
        assert_eq!(request_of(&host, &guest(&all[1..])).gpus, GpuWish::Count(2));
    }

    #[test]
    fn whoever_has_the_display_can_go_where_no_gpu_is_free() {
        let host = desktop();
        let gpus: Vec<Bdf> = host.of_kind(DeviceKind::Gpu).map(|gpu| gpu.bdf).collect();
        let wish = |gpu: Bdf, vcpus| Request {
            gpus: GpuWish::Exact(vec![gpu]),
            vcpus: Some(vcpus),
            memory_kib: Some(MemSize::from_gib(4)),
            ..Request::for_gpus(0)
        };
        let mut taken = Occupancy::default();
        for (name, gpu, vcpus) in [("job", gpus[2], 8), ("screen", gpus[1], 12)] {
            let placement = plan(&host, &taken, &wish(gpu, vcpus)).unwrap();
            taken.domains.push(held(name, &placement));
        }
        // Its cores are near a card that others could have, and its GPU is the display.
        taken.domains[1].devices = vec![gpus[0]];
        let like = Request { vcpus: Some(14), ..Request::for_gpus(0) };
        let next = capacity(&host, &taken, &like, &[1]).next.unwrap();
        let advice = next.advice.unwrap();
        let guests: Vec<(&str, bool, usize)> = advice
            .guests
            .iter()
            .map(|guest| (&*guest.domain, guest.to.is_some(), guest.gpus))
            .collect();
        assert_eq!((guests, advice.restarted), (vec![("screen", true, 0)], 0));
    }

    #[test]
    fn virtual_functions_are_wanted_again() {
        use crate::placement::tests::testhost::device;
        use crate::topology::Sriov;
        let mut parts = HostSpec::even(1, 8, 64, 1).parts();
        let card = device(0x50, 0x02_0000, 0x1017, None);
        let mut vf = device(0x51, 0x02_0000, 0x1018, None);
        vf.sriov = Some(Sriov::Vf { pf: card.bdf });
        parts.devices.extend([card.clone(), vf.clone()]);
        let host = Topology::new(parts).unwrap();
        let held = Held { devices: vec![vf.bdf], ..Held::default() };
        let extras = request_of(&host, &held).extras;
        assert_eq!((extras.vfs, extras.nics), (DeviceWish::Count(1), DeviceWish::Count(0)));
        let held = Held { devices: vec![card.bdf], ..Held::default() };
        let extras = request_of(&host, &held).extras;
        assert_eq!((extras.vfs, extras.nics), (DeviceWish::Count(0), DeviceWish::Count(1)));
    }
}
