//! PCI functions, network names and drives of an lstopo record.

use super::{Domains, info, pcpus, text};
use crate::discover::fabric::answer::GpuLinks;
use crate::discover::fabric::links::{MOST_LINKS, Read};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::{NodeId, PcpuId};
use gpuvm_core::topology::{DeviceKind, Drive, NetFace, Parts, PciDevice};
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::{
    DownstreamAttributes, ObjectAttributes, PCIDeviceAttributes, UpstreamAttributes,
};
use hwlocality::object::distance::Distances;
use hwlocality::object::types::{OSDeviceType, ObjectType};
use std::collections::{BTreeMap, BTreeSet};

/// NVLinks of GPUs, from hwloc's matrix `NVLinkBandwidth`: MB/s between GPUs, NVSwitches and POWER
/// processors, all links of a pair summed. A link of P100 has 20,000, later ones 25,000 (hwloc,
/// `topology-nvml.c`).
pub fn nvlinks(hwloc: &hwlocality::Topology, domains: &Domains, parts: &Parts) -> Read {
    let by = "the matrix NVLinkBandwidth of the lstopo record".to_owned();
    let is_gpu = |bdf: &Bdf| {
        parts.devices.iter().any(|device| device.bdf == *bdf && device.kind() == DeviceKind::Gpu)
    };
    let matrices = hwloc.distances(None).unwrap_or_default();
    let named = |matrix: &&Distances<'_>| {
        matrix.name().is_some_and(|name| name.to_bytes() == b"NVLinkBandwidth")
    };
    let Some(matrix) = matrices.iter().find(named) else { return Read::default() };
    let on = |object: &TopologyObject| {
        let of = |object: &TopologyObject| function(object, domains).map(|(bdf, _)| bdf);
        of(object).or_else(|| object.ancestors().find_map(of))
    };
    let ends: Vec<Option<Bdf>> = matrix.objects().map(|object| object.and_then(on)).collect();
    let side = ends.len();
    let values = matrix.distances();
    let value = |a: usize, b: usize| if a == b { 0 } else { values[a * side + b] };
    if values.len() != side * side {
        return Read::default();
    }
    let all = (0..side).flat_map(|a| (0..side).map(move |b| (a, b)));
    let common = all.map(|(a, b)| value(a, b)).fold(0, gcd);
    let Some(each) = [25_000, 20_000].into_iter().find(|each| common > 0 && common % each == 0)
    else {
        let note = format!("the lstopo record's NVLinkBandwidth is in no known unit ({common})");
        return Read { note: Some(note).filter(|_| common > 0), ..Read::default() };
    };
    let mut gpus: BTreeMap<Bdf, GpuLinks> = BTreeMap::new();
    for (a, bdf) in ends.iter().enumerate().filter_map(|(a, end)| Some((a, (*end)?))) {
        if !is_gpu(&bdf) {
            continue;
        }
        let links = |b: usize| u32::try_from(value(a, b) / each).unwrap_or(u32::MAX);
        let is_some = |(end, links): &(Bdf, u32)| *end != bdf && (1..=MOST_LINKS).contains(links);
        let to = |b: usize| ends[b].map(|end| (end, links(b))).filter(is_some);
        let (direct, others): (Vec<_>, Vec<_>) =
            (0..side).filter_map(to).partition(|(end, _)| is_gpu(end));
        let switched = others.iter().map(|(_, links)| links).sum();
        gpus.entry(bdf).or_insert(GpuLinks { bdf, direct, switched });
    }
    Read { gpus: gpus.into_values().collect(), by, ..Read::default() }
}

/// The greatest number that divides both.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Adds PCI devices, and drives without one.
pub fn read(
    hwloc: &hwlocality::Topology,
    node_of: &BTreeMap<PcpuId, NodeId>,
    domains: &Domains,
    parts: &mut Parts,
) {
    let function = |object| function(object, domains);
    let mut devices: BTreeMap<Bdf, PciDevice> = BTreeMap::new();
    for object in hwloc.io_objects() {
        let Some((bdf, ids)) = function(object) else { continue };
        let parent = object.parent().and_then(function).map(|(bdf, _)| bdf);
        let device = PciDevice {
            bdf,
            parent,
            root: root(object, domains),
            // The record lacks the programming interface.
            class: u32::from(ids.class_id()) << 8,
            vendor: ids.vendor_id(),
            device: ids.device_id(),
            subsystem_vendor: ids.subvendor_id(),
            subsystem_device: ids.subdevice_id(),
            node: node(object, node_of),
            driver: None,
            iommu_group: None,
            bars: Vec::new(),
            link: None,
            link_max: None,
            sriov: None,
            reset_methods: None,
            net: None,
            boot_vga: false,
            uuid: None,
            health: None,
            acs: None,
            ats: None,
            mediated: 0,
            devctl: None,
            vfio: None,
            vgpu: None,
            mig: None,
            second_display: false,
        };
        // hwloc lists no function twice; in a forged record the first one counts.
        devices.entry(bdf).or_insert(device);
    }
    parts.drives = by_name(hwloc, domains, &mut devices);
    parts.devices = devices.into_values().collect();
}

/// The drives; names of network interfaces are put to their functions.
fn by_name(
    hwloc: &hwlocality::Topology,
    domains: &Domains,
    devices: &mut BTreeMap<Bdf, PciDevice>,
) -> Vec<Drive> {
    let mut drives: BTreeMap<String, Drive> = BTreeMap::new();
    for object in hwloc.objects_with_type(ObjectType::OSDevice) {
        let Some(ObjectAttributes::OSDevice(attributes)) = object.attributes() else { continue };
        let Some(name) = object.name().map(text).filter(|name| !name.is_empty()) else { continue };
        let mut functions = object.ancestors().filter_map(|object| function(object, domains));
        let on = functions.next().map(|(bdf, _)| bdf);
        let device = on.and_then(|bdf| devices.get_mut(&bdf));
        match attributes.device_type() {
            OSDeviceType::Storage => {
                let bdf = device.map(|device| device.bdf);
                if let Some(drive) = drive(object, &name, bdf) {
                    drives.entry(name).or_insert(drive);
                }
            }
            OSDeviceType::Network => {
                if let Some(device) = device {
                    device.net.get_or_insert_with(NetFace::default).netdevs.push(name);
                }
            }
            OSDeviceType::OpenFabrics => {
                if let Some(device) = device {
                    device.net.get_or_insert_with(NetFace::default).rdma.push(name);
                }
            }
            _ => {}
        }
    }
    for net in devices.values_mut().filter_map(|device| device.net.as_mut()) {
        net.netdevs.sort_unstable();
        net.rdma.sort_unstable();
    }
    drives.into_values().collect()
}

/// Address and ids of a PCI function, endpoint or bridge; none for anything else.
fn function<'a>(
    object: &'a TopologyObject,
    domains: &Domains,
) -> Option<(Bdf, &'a PCIDeviceAttributes)> {
    let ids = match object.attributes()? {
        ObjectAttributes::PCIDevice(ids) => ids,
        ObjectAttributes::Bridge(bridge) => match bridge.upstream_attributes()? {
            UpstreamAttributes::PCI(ids) => ids,
        },
        _ => return None,
    };
    let segment = domains.wide(ids.domain());
    Some((Bdf::new(segment, ids.bus_id(), ids.bus_device(), ids.function()).ok()?, ids))
}

/// The root complex above a function, in the kernel's notation.
fn root(object: &TopologyObject, domains: &Domains) -> Option<String> {
    let top = object.ancestors().take_while(|above| above.object_type().is_io()).last()?;
    match top.attributes()? {
        ObjectAttributes::Bridge(bridge) if bridge.upstream_attributes().is_none() => {
            let DownstreamAttributes::PCI(bus) = bridge.downstream_attributes()?;
            let domain = domains.wide(bus.domain());
            Some(format!("pci{domain:04x}:{:02x}", bus.secondary_bus()))
        }
        _ => None,
    }
}

/// The node of a function: that of its nearby pcpus, if these are of a single node.
fn node(object: &TopologyObject, node_of: &BTreeMap<PcpuId, NodeId>) -> Option<NodeId> {
    let near = pcpus(object.first_non_io_ancestor()?, "an I/O object").ok()?;
    let nodes: BTreeSet<NodeId> =
        near.iter().filter_map(|pcpu| node_of.get(&pcpu).copied()).collect();
    match nodes.into_iter().collect::<Vec<_>>()[..] {
        [node] => Some(node),
        _ => None,
    }
}

/// A drive; none for a non-volatile memory module and a tape.
fn drive(object: &TopologyObject, name: &str, bdf: Option<Bdf>) -> Option<Drive> {
    let subtype = object.subtype().map(text).or_else(|| info(object, "Type"));
    if subtype.is_some_and(|kind| kind != "Disk") {
        return None;
    }
    let kib = info(object, "Size").and_then(|size| size.parse::<u64>().ok()).unwrap_or(0);
    Some(Drive {
        name: name.to_owned(),
        bdf,
        bytes: kib.saturating_mul(1024),
        model: info(object, "Model"),
        rotational: false,
        stable_ids: Vec::new(),
        partitions: Vec::new(),
        used_by: Vec::new(),
        content: None,
    })
}
