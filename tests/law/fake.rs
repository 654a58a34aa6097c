//! A simulated running guest, and the findings of `verify`. It is built from the plan, not from the
//! XML, so that the two are compared once more.

use super::pairs::Asked;
use gpuvm::cpuset::CpuSet;
use gpuvm::domain::DomainXml;
use gpuvm::domain::claims::{VcpuId, VcpuSet};
use gpuvm::memsize::MemSize;
use gpuvm::placement::{Occupancy, Placement};
use gpuvm::request::PageSize;
use gpuvm::topology::Topology;
use gpuvm::verify::guest::{Function, View};
use gpuvm::verify::process::{Mapped, Opened, Process, Thread};
use gpuvm::verify::tuning::Tuning;
use gpuvm::verify::{Host, Subject, verify};
use gpuvm::versions::Versions;

/// The findings of `verify` in the running guest of a plan.
pub fn verified(asked: &Asked<'_>, placement: &Placement, xml: &DomainXml) -> Vec<String> {
    let topology = bound(asked.topology, placement);
    let live = DomainXml::parse(
        &xml.text().replacen("<domain type=\"kvm\"", "<domain id='7' type='kvm'", 1).replacen(
            "<domain type='kvm'",
            "<domain id='7' type='kvm'",
            1,
        ),
    )
    .unwrap();
    let (process, view) = (process(&topology, placement), view(&topology, placement));
    let (tuning, others, versions) = (Tuning::default(), Occupancy::default(), Versions::default());
    let subject = Subject {
        definition: xml,
        live: Some(&live),
        process: Some(&process),
        guest: Some(&view),
        host: Some(Host {
            topology: &topology,
            tuning: &tuning,
            others: &others,
            versions: &versions,
            manager: None,
        }),
        partitions: None,
    };
    let findings = verify(&subject).into_iter();
    findings.map(|finding| format!("{} ({})", finding.says.message, finding.rule)).collect()
}

/// The host once the guest has started: its functions are bound.
fn bound(topology: &Topology, placement: &Placement) -> Topology {
    let mut parts = topology.parts().clone();
    for device in parts.devices.iter_mut().filter(|d| placement.devices.contains(&d.bdf)) {
        device.driver = Some("vfio-pci".into());
    }
    Topology::new(parts).unwrap()
}

/// Its process.
fn process(topology: &Topology, placement: &Placement) -> Process {
    let anywhere = topology.pcpus();
    let on = |pin: &CpuSet| if pin.is_empty() { anywhere.clone() } else { pin.clone() };
    let thread = |tid, name: String, pin: &CpuSet| Thread { tid, name, pcpus: on(pin) };
    let mut threads = vec![thread(100, "qemu-system-x86".into(), &placement.emulator_pin)];
    for (tid, pin) in (0..).zip(&placement.vcpu_pins) {
        threads.push(thread(101 + tid, format!("CPU {tid}/KVM"), pin));
    }
    for (id, pin) in (1..).zip(&placement.iothread_pins) {
        threads.push(thread(90_000 + id, format!("IO iothread{id}"), pin));
    }
    let page_kib = placement.huge_pages.map_or(MemSize::from_kib(4), PageSize::size);
    let first = topology.nodes().iter().find(|node| !node.memory_kib.is_zero());
    let memory = (0..).zip(&placement.cells).filter_map(|(id, cell)| {
        let node = cell.host_nodes.first().or(first.map(|node| node.os_index))?;
        let nodes = [(node, cell.memory_kib)].into();
        Some(Mapped { cell: Some(id), bound: !cell.host_nodes.is_empty(), page_kib, nodes })
    });
    let memory = Some(memory.collect());
    let devices = placement.devices.iter().filter_map(|bdf| topology.device(*bdf));
    let by_iommufd = placement.initiators.is_some();
    let name = |device: &gpuvm::topology::PciDevice| match device.vfio {
        Some(vfio) if by_iommufd => Some(format!("devices/vfio{}", vfio.number)),
        _ => device.iommu_group.map(|group| group.to_string()),
    };
    let files = by_iommufd.then(|| ("/dev/iommu".to_owned(), false)).into_iter().collect();
    let opened = Opened { vfio: devices.filter_map(name).collect(), files, ..Opened::default() };
    let vhosts = Vec::new();
    Process { pid: 100, threads, vhosts, memory, opened: Some(opened), file_limit: None }
}

/// The guest's view.
fn view(topology: &Topology, placement: &Placement) -> View {
    let set = |vcpus: std::ops::Range<u32>| vcpus.map(VcpuId).collect::<VcpuSet>();
    let cells = (0..).zip(&placement.cells).map(|(id, cell)| (id, set(cell.vcpus.clone())));
    let empty = placement.initiators.iter().flat_map(|all| &all.gpus);
    let empty = empty.flat_map(|own| own.cells.clone()).map(|id| (id, VcpuSet::new()));
    let cells = cells.chain(empty);
    let threads = placement.topology.threads;
    let siblings = (0..placement.vcpus()).map(|vcpu| {
        let first = vcpu / threads * threads;
        (vcpu, set(first..first + threads))
    });
    let groups = placement.guest_pcie.groups.iter();
    let functions = groups.flat_map(|group| {
        let devices = group.devices.iter().filter_map(|bdf| topology.device(*bdf));
        let see = |device: &gpuvm::topology::PciDevice| Function {
            vendor: device.vendor,
            device: device.device,
            cell: group.cell,
        };
        devices.map(see).collect::<Vec<_>>()
    });
    View {
        vcpus: Some(placement.vcpus()),
        cells: cells.collect(),
        siblings: siblings.collect(),
        functions: Some(functions.collect()),
        ..View::default()
    }
}
