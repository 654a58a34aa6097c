//! From a placement to the edits that turn a document into that guest. Every number comes from the
//! placement; values that are already right are not touched.

use super::edit::DomainEdit;
use super::guest::CpuModel;
use super::guest::{Guest, VirtType};
use super::setting::Setting;
use super::{DomainXml, DomainXmlError, device_edits};
use crate::placement::{MOST_VCPUS, Placement, has_own_pcpus, is_amd, needs_remapping, window};
use crate::request::IommufdWish;
use crate::topology::Topology;

/// The most threads per cell with which QEMU preallocates memory (gpuvm-hardware(7), MEMORY AT
/// START: MAX_MEM_PREALLOC_THREAD_COUNT).
pub const MOST_FILL_THREADS: u32 = 16;

/// Finds the edits that turn a document into the guest at its placement; empty: nothing to change.
pub fn edits(
    current: &DomainXml,
    guest: &Guest,
    placement: &Placement,
    topology: &Topology,
) -> Result<Vec<DomainEdit>, DomainXmlError> {
    check(current, guest, placement, topology)?;
    let mut edits = domain_edits(current, guest, placement, topology);
    if guest.virt == VirtType::Kvm {
        edits.extend(window_edits(current, placement, topology)?);
    }
    edits.extend(device_edits::device_edits(current, guest, placement, topology)?);
    edits.retain(|edit| current.would_change(edit));
    Ok(edits)
}

/// Finds the edits of the window for 64-bit BARs; none without passed-through functions.
pub fn window_edits(
    current: &DomainXml,
    placement: &Placement,
    topology: &Topology,
) -> Result<Vec<DomainEdit>, DomainXmlError> {
    let path = "domain/devices/controller/pcihole64";
    let window = window(placement, topology)
        .map_err(|error| DomainXmlError::Value { path: path.into(), message: error.to_string() })?;
    let Some(window) = window else { return Ok(Vec::new()) };
    let mut edits = vec![DomainEdit::SetPciHole { kib: window.bytes >> 10 }];
    // A larger window already configured for UEFI in the document stays.
    if let Some(mib) = window.explicit_mib()
        && current.is_x86()
        && current.is_uefi()
        && !current.sets_window(mib)
    {
        edits.push(DomainEdit::SetFirmwareWindow { mib });
    }
    Ok(edits)
}

/// Checks that a document and a placement fit together.
fn check(
    current: &DomainXml,
    guest: &Guest,
    placement: &Placement,
    topology: &Topology,
) -> Result<(), DomainXmlError> {
    let crate::placement::GuestTopology { sockets, dies, cores, threads } = placement.topology;
    let vcpus = u128::from(sockets) * u128::from(dies) * u128::from(cores) * u128::from(threads);
    let error = |path: &str, message| {
        let path = path.to_owned();
        Err(DomainXmlError::Value { path, message })
    };
    if vcpus == 0 || vcpus != placement.vcpu_pins.len() as u128 {
        let message =
            format!("the topology gives {vcpus} vCPUs, the plan has {}", placement.vcpu_pins.len());
        return error("domain/cpu/topology", message);
    }
    if placement.cells.is_empty() {
        return error("domain/cpu/numa", "the plan has no cell".into());
    }
    check_architecture(current, guest.virt, topology)?;
    if vcpus > u128::from(MOST_VCPUS) && current.is_x86() && !current.can_remap_interrupts() {
        let message = format!(
            "{vcpus} vCPUs, and more than {MOST_VCPUS} need machine q35 and no <iommu> in the \
             template but Intel's"
        );
        return error("domain/devices/iommu", message);
    }
    if !placement.devices.is_empty() && !current.is_pcie() {
        let path = "domain/os/type/@machine";
        return error(
            path,
            "passed-through devices need a machine with PCI Express, such as q35".into(),
        );
    }
    Ok(())
}

/// Refuses a document for another architecture than the host's, which KVM cannot run.
pub fn check_architecture(
    current: &DomainXml,
    virt: VirtType,
    topology: &Topology,
) -> Result<(), DomainXmlError> {
    let arch = topology.machine().architecture.as_deref();
    let named = current.root().find("os/type").and_then(|kind| kind.attr("arch"));
    match (arch, named, virt) {
        (Some(host), Some(named), VirtType::Kvm) if host != named => Err(DomainXmlError::Value {
            path: "domain/os/type/@arch".into(),
            message: format!(
                "the document is for `{named}`, the host is `{host}`; --template FILE names another"
            ),
        }),
        _ => Ok(()),
    }
}

/// Returns all edits except those of the devices, in the order of libvirt's elements.
fn domain_edits(
    current: &DomainXml,
    guest: &Guest,
    placement: &Placement,
    topology: &Topology,
) -> Vec<DomainEdit> {
    let passes = placement.passes_devices();
    let vcpus = placement.vcpus();
    let bound = placement.cells.iter().any(|cell| !cell.host_nodes.is_empty());
    let pinned = placement.vcpu_pins.iter().any(|pin| !pin.is_empty());
    let fill = passes || placement.huge_pages.is_some();
    let mut edits = vec![DomainEdit::SetType { virt: guest.virt }];
    // While its devices have their places in the document.
    edits.extend(passing(current, guest, placement).map(|setting| DomainEdit::Set { setting }));
    if current.name() != guest.name.as_str() {
        edits.push(DomainEdit::SetName { name: guest.name.as_str().to_owned() });
    }
    edits.push(DomainEdit::SetMetadata {
        record: Box::new(guest.record.clone()),
        partition: placement.partition,
        devices: placement.devices.clone(),
    });
    edits.push(DomainEdit::SetMemory { memory: placement.memory() });
    edits.push(DomainEdit::SetMemoryBacking {
        pages: placement.huge_pages,
        threads: fill.then_some(vcpus.min(MOST_FILL_THREADS)),
    });
    edits.extend(shared_memory(current, guest, placement));
    edits.push(DomainEdit::SetVcpus { vcpus, pinned });
    let iothreads = super::disks::iothreads(current, guest, placement);
    let threads = &placement.iothread_pins;
    let threads = &threads[..threads.len().min(iothreads as usize)];
    if iothreads > 0 {
        edits.push(DomainEdit::SetIothreads { iothreads });
    }
    edits.push(DomainEdit::SetCputune {
        vcpus: placement.vcpu_pins.clone(),
        emulator: placement.emulator_pin.clone(),
        iothreads: threads.to_vec(),
    });
    let nodes = placement.cells.iter().map(|cell| cell.host_nodes.clone());
    edits.push(DomainEdit::SetNumatune { cells: nodes.collect() });
    // Expander buses name a cell; mediated devices have none.
    let is_numa = placement.cells.len() > 1 || bound || !placement.devices.is_empty();
    edits.push(DomainEdit::SetCpu {
        model: cpu_model(current, guest.virt, placement),
        topology: match guest.virt {
            VirtType::Kvm => placement.topology,
            VirtType::Qemu => placement.topology.without_dies(),
        },
        topoext: guest.virt == VirtType::Kvm
            && (placement.topology.threads > 1 || placement.cache.is_some())
            && topology.machine().cpu_vendor.as_deref().is_some_and(is_amd),
        cells: if is_numa { placement.cells.clone() } else { Vec::new() },
        initiators: placement.initiators.clone(),
    });
    if let Some(machine) = guest.record.request.machine.clone() {
        edits.push(DomainEdit::Set { setting: Setting::Machine { machine } });
    }
    edits.extend(remapping(current, guest, placement).map(|setting| DomainEdit::Set { setting }));
    if guest.virt == VirtType::Kvm {
        let passes = passes || !guest.vf_pools.is_empty();
        edits.extend(
            kvm_settings(current, placement, passes).map(|setting| DomainEdit::Set { setting }),
        );
    }
    edits
}

/// How a guest's functions are passed through: GPUs with coherent memory only by iommufd.
fn way(guest: &Guest, placement: &Placement) -> IommufdWish {
    match guest.record.request.iommufd {
        IommufdWish::Auto if placement.initiators.is_some() => IommufdWish::On,
        said => said,
    }
}

/// The setting of that way, where it is not left to libvirt.
fn passing(current: &DomainXml, guest: &Guest, placement: &Placement) -> Option<Setting> {
    match way(guest, placement) {
        IommufdWish::Auto => None,
        said => Some(Setting::iommufd(current, said == IommufdWish::On)),
    }
}

/// The IOMMU that remaps interrupts, where a guest has so many vCPUs that it needs one.
fn remapping(current: &DomainXml, guest: &Guest, placement: &Placement) -> Option<Setting> {
    let many = needs_remapping(placement.topology) && current.is_x86();
    let lacks = many && !current.remaps_interrupts() && current.can_remap_interrupts();
    // A template's own IOMMU keeps its DMA settings.
    let is_own = || current.root().find("devices/iommu").is_some();
    lacks.then(|| Setting::RemapInterrupts {
        translates_dma: guest.abilities.translates_dma || is_own(),
    })
}

/// The edit that has a guest by iommufd share its memory in files. On every QEMU, since a
/// definition outlives the QEMU that it was made for, and shared huge pages cost nothing.
fn shared_memory(current: &DomainXml, guest: &Guest, placement: &Placement) -> Option<DomainEdit> {
    let is_by_iommufd = match way(guest, placement) {
        IommufdWish::Auto => current.is_by_iommufd(),
        said => said == IommufdWish::On,
    };
    let source = current.root().find("memoryBacking/source").and_then(|one| one.attr("type"));
    let is_file = source.is_some_and(|kind| kind != "anonymous");
    let is_due = is_by_iommufd && (is_file || placement.huge_pages.is_some());
    is_due.then_some(DomainEdit::Set { setting: Setting::SharedMemory })
}

/// Returns the edits that only guests on KVM get: an emulator has no use for the hints and shows no
/// CPUID leaf of the host.
fn kvm_settings(
    current: &DomainXml,
    placement: &Placement,
    passes: bool,
) -> impl Iterator<Item = Setting> {
    let hints = Setting::KvmHints { on: has_own_pcpus(&placement.vcpu_pins) };
    let is_x86 = current.is_x86();
    let cache = placement.cache.filter(|_| is_x86);
    let cache = cache.map(|cache| Setting::CpuCache { cache: Some(cache) });
    let fixed = (passes && is_x86).then_some(Setting::Migratable { is_off: true });
    is_x86.then_some(hints).into_iter().chain(cache).chain(fixed)
}

/// Returns the CPU model of a guest. An emulator's `maximum` is an AMD model without `topoext`,
/// which hides threads, so guests that show threads get an Intel model; a model that the document
/// names is kept.
fn cpu_model(current: &DomainXml, virt: VirtType, placement: &Placement) -> CpuModel {
    let cpu = current.root().child("cpu");
    let mode = cpu.and_then(|cpu| cpu.attr("mode"));
    let is_named = cpu.is_some_and(|cpu| cpu.child("model").is_some());
    match virt {
        VirtType::Kvm => CpuModel::HostPassthrough {
            maxphysaddr: current.is_x86(),
            limit: placement.address_limit,
        },
        VirtType::Qemu if is_named && mode.is_none_or(|mode| mode == "custom") => CpuModel::Kept,
        VirtType::Qemu if placement.topology.threads > 1 && current.is_x86() => {
            CpuModel::Named("Haswell-noTSX")
        }
        VirtType::Qemu => CpuModel::Maximum,
    }
}
