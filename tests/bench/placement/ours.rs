//! This project's planner as one of the policies.

use super::model::{Ask, Place, Policy};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::placement::{Held, Occupancy, Placement, plan};
use gpuvm_core::request::{Allow, DeviceWish, Profile, Request};
use gpuvm_core::topology::{DeviceKind, Topology};

/// Our planner with its switches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ours {
    /// Rules that may be broken.
    pub allow: Allow,
    /// Whether GPUs also get a share of nodes without GPUs, as by default. No peer has such a
    /// share, and the comparison is about the nodes of the GPUs; so it is off unless set.
    pub wide: bool,
}

impl Policy for Ours {
    fn name(&self) -> String {
        match (self.allow.remote, self.allow.split) {
            (false, false) => "gpuvm".into(),
            (true, true) => "gpuvm --allow remote,split".into(),
            (true, false) => "gpuvm --allow remote".into(),
            (false, true) => "gpuvm --allow split".into(),
        }
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[]
    }

    fn place(&self, host: &Topology, guests: &[Place], ask: &Ask) -> Option<Place> {
        let occupancy = Occupancy {
            domains: guests.iter().enumerate().map(|(at, guest)| held(host, at, guest)).collect(),
            ..Occupancy::default()
        };
        let profile = if self.wide { Profile::Share } else { Profile::Near };
        let request = Request { profile, ..request(ask, self.allow) };
        let placement = plan(host, &occupancy, &request).ok()?;
        Some(placed(host, &placement, ask))
    }
}

/// The request of an ask.
pub fn request(ask: &Ask, allow: Allow) -> Request {
    let mut request = Request::for_gpus(ask.gpus);
    request.vcpus = Some(ask.vcpus);
    request.memory_kib = Some(ask.memory);
    request.extras.nics = DeviceWish::Count(ask.nics);
    request.extras.nvmes = DeviceWish::Count(ask.nvmes);
    request.allow = allow;
    request.profile = Profile::Near;
    request
}

/// The resources of a guest. Each core of its emulator is also listed as an I/O thread's, since a
/// pin over several cores alone would hold none of them.
pub fn held(host: &Topology, at: usize, guest: &Place) -> Held {
    let some = |set: &CpuSet| (!set.is_empty()).then(|| set.clone());
    let cores = host.cores().iter().map(|core| core.pcpus.and(&guest.emulator));
    Held {
        domain: format!("guest-{at}"),
        active: true,
        vcpu_pins: guest.pins.clone(),
        emulator_pin: some(&guest.emulator),
        iothread_pins: cores.filter(|pin| !pin.is_empty()).collect(),
        devices: [&guest.gpus[..], &guest.along, &guest.nics, &guest.nvmes].concat(),
        memory: guest.memory.iter().map(|(n, size)| ([*n].into_iter().collect(), *size)).collect(),
        ..Held::default()
    }
}

/// A placement in the shoot-out's terms. Devices passed along because of an IOMMU group come last.
fn placed(host: &Topology, placement: &Placement, ask: &Ask) -> Place {
    let of = |kind: DeviceKind, number: u32| -> Vec<Bdf> {
        let is = |bdf: &&Bdf| host.device(**bdf).is_some_and(|device| device.kind() == kind);
        placement.devices.iter().filter(is).copied().take(number as usize).collect()
    };
    let gpus = of(DeviceKind::Gpu, ask.gpus);
    let (nics, nvmes) = (of(DeviceKind::Nic, ask.nics), of(DeviceKind::Nvme, ask.nvmes));
    let known = |bdf: &&Bdf| gpus.contains(bdf) || nics.contains(bdf) || nvmes.contains(bdf);
    let along = placement.devices.iter().filter(|bdf| !known(bdf)).copied().collect();
    let vcpus = placement.vcpu_pins.iter().fold(CpuSet::new(), |all, pin| all.or(pin));
    let share = |size: MemSize, nodes: usize| MemSize::from_kib(size.kib() / nodes.max(1) as u64);
    let memory = placement.cells.iter().flat_map(|cell| {
        let nodes = cell.host_nodes.len();
        cell.host_nodes.iter().map(move |node| (node, share(cell.memory_kib, nodes)))
    });
    Place {
        along,
        pins: placement.vcpu_pins.clone(),
        emulator: placement.emulator_pin.minus(&vcpus),
        memory: memory.collect(),
        gpus,
        nics,
        nvmes,
    }
}
