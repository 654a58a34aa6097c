//! `export`: returns the definition that a guest would get, or its shape for another platform.
//! Changes nothing, and works without a hypervisor.

use crate::domain::DomainXml;
use crate::domain::guest::VirtType;
use crate::error::{Coded, Error, Result};
use crate::guest::{Extra, GuestRequest, render, resolve};
use crate::networks;
use crate::plan::{maps_queues, warn_of_name, with_disks};
use crate::planned::Planned;
use crate::request::DomainName;
use crate::shell::word;
use crate::storage::{self, DataRequest, Disks, ImageRequest, StorageRequest, remains};
use crate::vfs;
use crate::world::World;
use gpuvm_core::export::kubevirt::{KubeVirtExport, kubevirt};
use gpuvm_core::export::nova::{NovaExport, nova};
use gpuvm_core::export::resource::ResourceWish;
use gpuvm_core::export::{Lost, LostKind, PlatformDisks, PlatformError, PlatformGuest};
use gpuvm_core::memsize::MemSize;
use std::path::PathBuf;

impl Coded for PlatformError {}

/// The name of a guest, and its definition.
pub fn export(
    world: &World,
    wanted: &GuestRequest,
    disks: &StorageRequest,
) -> Result<(DomainName, DomainXml)> {
    let planned = resolve(world, wanted, Some(disks))?;
    warn_of_name(wanted, &planned, world);
    let disks = storage::plan(disks, None, &planned, world)?;
    for notice in &disks.notices {
        world.note(&notice.to_string());
    }
    warn_of_compromises(world, &planned);
    let functions = remains(&planned.topology, &planned.placement.devices);
    for loss in disks.losses.iter().chain(&functions) {
        world.warning(&format!("the guest gets what is on its drives: {loss}"));
    }
    for (gpu, why) in planned.topology.all_aside() {
        // A vGPU's function is the planner's own choice.
        let is_vgpu = planned.placement.vgpus.iter().any(|vgpu| vgpu.function == gpu.bdf);
        if planned.placement.devices.contains(&gpu.bdf) && !is_vgpu {
            world.warning(&format!("{} {}", gpu.bdf, why.costs()));
        }
    }
    let Disks { disks, made, abilities, .. } = disks;
    let assumed = planned.assumed();
    let mut extra = Extra { disks, made, abilities, assumed, ..Extra::default() };
    // A recorded host's networks are not recorded.
    if !world.is_recorded()
        && !wanted.networks.is_empty()
        && let Some(hypervisor) = world.hypervisor_to_look()?
    {
        extra.vf_pools = vfs::pools(&wanted.networks, &planned.occupancy, false, &*hypervisor)?;
        networks::refuse_unfit(&wanted.networks, &*hypervisor)?;
    }
    let xml = render(wanted, &planned, &extra)?;
    Ok((planned.name, xml))
}

/// Warns as `plan` shows compromises, and `create` warns of them or refuses.
fn warn_of_compromises(world: &World, planned: &Planned) {
    for reason in planned.placement.reasons.iter().filter(|reason| reason.compromise) {
        world.warning(&format!("{}: {}", reason.choice, reason.because));
    }
}

/// The shape of a guest for KubeVirt.
pub fn to_kubevirt(
    world: &World,
    wanted: &GuestRequest,
    disks: &StorageRequest,
    resources: &[ResourceWish],
) -> Result<KubeVirtExport> {
    exported(world, wanted, disks, resources, kubevirt)
}

/// The shape of a guest for OpenStack Nova.
pub fn to_nova(
    world: &World,
    wanted: &GuestRequest,
    disks: &StorageRequest,
    resources: &[ResourceWish],
) -> Result<NovaExport> {
    exported(world, wanted, disks, resources, nova)
}

/// Plans a guest, and takes its shape for a platform.
fn exported<T>(
    world: &World,
    wanted: &GuestRequest,
    disks: &StorageRequest,
    resources: &[ResourceWish],
    shape: impl Fn(PlatformGuest<'_>) -> Result<T, PlatformError>,
) -> Result<T> {
    let mut planned = resolve(world, wanted, None)?;
    let disks_of_it = 1 + usize::from(sizes(disks).data.is_some());
    let mapping = maps_queues(world, &planned);
    with_disks(&mut planned.placement, disks_of_it, 0, mapping);
    let guest = PlatformGuest {
        name: &planned.name,
        topology: &planned.topology,
        occupancy: &planned.occupancy,
        request: &planned.request,
        placement: &planned.placement,
        disks: sizes(disks),
        resources,
        lost: &lost(wanted, disks),
    };
    let made = shape(guest).map_err(helped)?;
    warn_of_compromises(world, &planned);
    Ok(made)
}

/// Sizes of the disks that a platform makes.
fn sizes(disks: &StorageRequest) -> PlatformDisks {
    let data = match disks.data {
        DataRequest::Bytes(bytes) if bytes > 0 => Some(MemSize::from_kib(bytes.div_ceil(1024))),
        _ => None,
    };
    let has_image = disks.image != ImageRequest::Blank && disks.disk_dir.is_none();
    PlatformDisks { os: disks.os_size, has_image, data }
}

/// The parts of a request that no platform takes, and no plan has.
fn lost(wanted: &GuestRequest, disks: &StorageRequest) -> Vec<Lost> {
    let mut lost = Vec::new();
    let mut add = |code, what: String| lost.push(Lost::new(code, what));
    let paths = [&disks.disk, &disks.add_disk].into_iter().flatten();
    let paths = paths.map(|path| path.to_string_lossy().into_owned());
    let named = disks.drive.iter().chain(&disks.partition).cloned();
    for disk in paths.chain(named) {
        add(LostKind::Disks, format!("`{disk}` is a disk of this host"));
    }
    if let ImageRequest::Named(image) = &disks.image {
        add(LostKind::Disks, format!("image `{image}` is one of this host"));
    }
    let has_gpus = wanted.request.gpus.number() > 0;
    for what in of_this_host(disks, has_gpus) {
        add(LostKind::Disks, what);
    }
    for nic in &wanted.networks {
        let network = &nic.network;
        add(LostKind::Networks, format!("`{network}` and its settings are of this host's libvirt"));
    }
    if let Some(template) = &wanted.template {
        let template = template.to_string_lossy();
        add(LostKind::Template, format!("elements of `{template}` that gpuvm does not plan"));
    }
    if wanted.virt == VirtType::Qemu {
        add(LostKind::VirtType, "the platform's own: its hosts have KVM".into());
    }
    lost
}

/// How disks would be made on this host, as far as requested.
fn of_this_host(disks: &StorageRequest, has_gpus: bool) -> Vec<String> {
    let usual = StorageRequest::default();
    let dir = |dir: &Option<PathBuf>, of: &str| {
        dir.as_ref().map(|dir| format!("directory {} of {of}", dir.display()))
    };
    let pool = |name: &String, of: &str| format!("pool `{name}` of {of}");
    let overlay = || "an overlay over the image: the platform makes a disk of its own".to_owned();
    let all = [
        (disks.os_disk != usual.os_disk).then(overlay),
        (disks.image_pool != usual.image_pool).then(|| pool(&disks.image_pool, "images")),
        (disks.pool != usual.pool).then(|| pool(&disks.pool, "the boot disk")),
        dir(&disks.disk_dir, "the boot disk"),
        dir(&disks.data_dir, "the data disk"),
        (disks.preallocate != usual.preallocate).then(|| "preallocation of the data disk".into()),
        (disks.data == DataRequest::Share && has_gpus)
            .then(|| "a data disk as the GPUs' share of this host's data file system".into()),
    ];
    all.into_iter().flatten().collect()
}

/// Adds a hint to the error.
fn helped(error: PlatformError) -> Error {
    let resource = |ids: &str, name: &str| format!("--resource {}", word(&format!("{ids}={name}")));
    let hint = match &error {
        PlatformError::Memory { planned, .. } => format!("--memory {planned}"),
        PlatformError::CellMemory { .. } => {
            "--memory with a multiple of 1M for each cell, or --huge-pages 2M".into()
        }
        PlatformError::SpreadCell { .. } => {
            "--cells auto, and --profile share: one cell for each node".into()
        }
        PlatformError::OddVcpus { next, .. } => format!("--vcpus {next}"),
        PlatformError::UnknownDevice { ids, example, .. }
        | PlatformError::ResourceName { ids, example, .. } => resource(ids, example),
        PlatformError::UnusedResource { has, .. } => format!("its devices are {has}"),
        PlatformError::TwoNames { .. } => "leave one of the two out".into(),
        PlatformError::SameName { second, name, .. } => resource(second, &format!("{name}-2")),
        PlatformError::Name { near, .. } => format!("--name {near}"),
    };
    error.hint(hint)
}
