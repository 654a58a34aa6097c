//! Numbers for monitoring, in the text format of Prometheus: a host, what of it is held and by
//! whom, and what still fits.
//!
//! Labels join with those of others: `pci_bus_id` and `UUID` are written as dcgm-exporter writes
//! them, `domain` and `uuid` as the exporters of libvirt do. Unknown values are empty labels, which
//! Prometheus takes for missing ones.

use crate::bdf::Bdf;
use crate::cpuset::NodeSet;
use crate::occupancy::{Held, Occupancy};
use crate::placement::{
    Capacity, DeviceState, SharedCard, VgpuOffer, device_states, idle_cores, shared_cards,
};
use crate::topology::model::model;
use crate::topology::{DeviceKind, FabricModel, Partition, PciDevice, Topology};
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

/// The first bytes of every file of metrics: one that begins with them is one of ours, and may be
/// replaced.
pub const METRICS_MARK: &str = "# HELP gpuvm_";

/// Whether all of a file is metrics of this verb: neither another verb's nor a user's own.
pub fn is_metrics_of(verb: &str, text: &str) -> bool {
    let of = format!("{METRICS_MARK}{verb}_");
    let begins = |line: &str| {
        ["gpuvm_", METRICS_MARK, "# TYPE gpuvm_"].iter().any(|begin| line.starts_with(begin))
    };
    text.lines().all(begins) && text.lines().any(|line| line.starts_with(&of))
}

/// A sample: labels by name, and a value.
pub type Sample<'a> = (Vec<(&'a str, String)>, String);

/// Metrics being written.
#[derive(Debug, Default)]
pub struct Metrics(String);

impl Metrics {
    /// Adds a gauge with its samples.
    pub fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = Sample<'a>>,
    ) {
        self.add("gauge", name, help, samples);
    }

    /// Adds a counter with its samples; its name ends with `_total`.
    pub fn counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = Sample<'a>>,
    ) {
        self.add("counter", name, help, samples);
    }

    fn add<'a>(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = Sample<'a>>,
    ) {
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("text");
        for (labels, value) in samples {
            self.0.push_str(name);
            for ((label, text), at) in labels.iter().zip(0..) {
                let begin = if at == 0 { '{' } else { ',' };
                write!(self.0, "{begin}{label}=\"{}\"", escaped(text)).expect("text");
            }
            let end = if labels.is_empty() { "" } else { "}" };
            writeln!(self.0, "{end} {value}").expect("text");
        }
    }

    /// Adds a gauge of one sample without labels.
    pub fn one(&mut self, name: &str, help: &str, value: impl Display) {
        self.gauge(name, help, [(Vec::new(), value.to_string())]);
    }

    /// Returns the text.
    pub fn finish(self) -> String {
        self.0
    }
}

/// A value of a label, escaped for the format.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// An address as NVML writes it, and so dcgm-exporter: eight digits of the segment, upper case.
pub fn bus_id(bdf: Bdf) -> String {
    let (bus, device) = (bdf.bus(), bdf.device());
    format!("{:08X}:{bus:02X}:{device:02X}.{}", bdf.segment(), bdf.function())
}

/// The metrics of a host.
#[derive(Debug, Clone, Copy)]
pub struct HostNumbers<'a> {
    /// The host.
    pub topology: &'a Topology,
    /// The occupancy.
    pub held: &'a Occupancy,
    /// The capacity that is left.
    pub capacity: &'a Capacity,
    /// Cores of every node that stay with the host.
    pub kept_cores: u32,
    /// Version of gpuvm.
    pub version: &'a str,
    /// The commit that it was built from.
    pub commit: &'a str,
    /// When it was found, in seconds since 1970.
    pub at_s: u64,
}

/// Writes the metrics of a host.
pub fn host(host: &HostNumbers<'_>) -> String {
    let HostNumbers { topology, held, capacity, .. } = *host;
    let mut out = Metrics::default();
    let build = vec![("version", host.version.to_owned()), ("commit", host.commit.to_owned())];
    out.gauge("gpuvm_build_info", "Version of gpuvm.", [(build, "1".into())]);
    devices(&mut out, topology, held);
    vgpus(&mut out, topology, held);
    domains(&mut out, held);
    partitions(&mut out, topology, held);
    let of = |gpus: u32, guests: u32| (vec![("gpus", gpus.to_string())], guests.to_string());
    let help = "Guests with this number of GPUs that fit beside the existing ones.";
    out.gauge("gpuvm_capacity_guests", help, capacity.sizes.iter().map(|s| of(s.gpus, s.now)));
    let help = "Guests with this number of GPUs that would fit on the empty host.";
    let empty = capacity.sizes.iter().map(|size| of(size.gpus, size.empty));
    out.gauge("gpuvm_capacity_guests_empty_host", help, empty);
    nodes(&mut out, topology, held, host.kept_cores);
    let help = "When the host was last read.";
    out.one("gpuvm_capacity_last_success_timestamp_seconds", help, host.at_s);
    out.finish()
}

/// GPUs and NVSwitches with their holders.
fn devices(out: &mut Metrics, topology: &Topology, held: &Occupancy) {
    let gpus: Vec<&PciDevice> = topology.gpus().collect();
    let switches: Vec<&PciDevice> = topology.of_kind(DeviceKind::NvSwitch).collect();
    let of = |device: &PciDevice, index: usize| {
        let module = topology.fabric().module_ids.iter().find(|(bdf, _)| *bdf == device.bdf);
        vec![
            ("pci_bus_id", bus_id(device.bdf)),
            ("index", index.to_string()),
            ("UUID", device.uuid.clone().unwrap_or_default()),
            ("model", model(device)),
            ("node", text_or_empty(device.node)),
            ("driver", device.driver.clone().unwrap_or_default()),
            ("module_id", text_or_empty(module.map(|(_, id)| id))),
            ("iommu_group", text_or_empty(device.iommu_group)),
        ]
    };
    for (name, help, all) in [
        ("gpuvm_gpu_info", "A GPU; index is that of gpuvm host show.", &gpus),
        ("gpuvm_nvswitch_info", "An NVSwitch; index is that of gpuvm host show.", &switches),
    ] {
        let samples = all.iter().zip(0..).map(|(device, index)| (of(device, index), "1".into()));
        out.gauge(name, help, samples);
    }
    for (name, help, all) in [
        ("gpuvm_gpu_holder", "Who has a GPU; kind free: nobody.", &gpus),
        ("gpuvm_nvswitch_holder", "Who has an NVSwitch; kind free: nobody.", &switches),
    ] {
        let functions: Vec<Bdf> = all.iter().map(|device| device.bdf).collect();
        let states = device_states(topology, held, &functions);
        let mut samples = Vec::new();
        for (bdf, (state, _)) in functions.into_iter().zip(states) {
            let own = guests(held).into_values().filter(|own| own.devices.contains(&bdf));
            let mut holders: Vec<(&str, String, String)> =
                own.map(|own| ("guest", own.name.to_owned(), own.uuid.to_owned())).collect();
            if holders.is_empty() {
                holders.push((kind(state), String::new(), String::new()));
            }
            for (kind, domain, uuid) in holders {
                let labels = vec![
                    ("pci_bus_id", bus_id(bdf)),
                    ("kind", kind.to_owned()),
                    ("domain", domain),
                    ("uuid", uuid),
                ];
                samples.push((labels, "1".to_owned()));
            }
        }
        out.gauge(name, help, samples);
    }
}

/// vGPUs by card and type, and each that exists with its holder.
fn vgpus(out: &mut Metrics, topology: &Topology, held: &Occupancy) {
    let cards = shared_cards(topology, held);
    if cards.is_empty() {
        return;
    }
    let offers = cards.iter().flat_map(|card| card.offers.iter().map(move |of| (card, of)));
    let of = |(card, of): (&SharedCard, &VgpuOffer), number: u32| {
        let labels = vec![("pci_bus_id", bus_id(card.bdf)), ("type", of.name.clone())];
        (labels, number.to_string())
    };
    let help = "vGPUs of a type that a GPU can have beside its own.";
    let creatable = offers.clone().map(|one| of(one, one.1.creatable));
    out.gauge("gpuvm_vgpu_creatable", help, creatable);
    let help = "vGPUs of a type that a GPU has.";
    out.gauge("gpuvm_vgpu_in_use", help, offers.map(|one| of(one, one.1.in_use)));
    let all = cards.iter().flat_map(|card| card.existing.iter().map(move |one| (card, one)));
    let samples = all.map(|(card, one)| {
        let domain = one.domains.first().cloned().unwrap_or_default();
        let own = guests(held).into_values().find(|own| own.name == domain);
        let labels = vec![
            ("pci_bus_id", bus_id(card.bdf)),
            ("function", one.uuid.clone().unwrap_or_else(|| one.function.to_string())),
            ("type", one.name.clone().or_else(|| one.type_id.clone()).unwrap_or_default()),
            ("domain", domain),
            ("uuid", own.map_or_else(String::new, |own| own.uuid.to_owned())),
        ];
        (labels, "1".to_owned())
    });
    let help = "Who has a vGPU; no domain: an unknown holder.";
    out.gauge("gpuvm_vgpu_holder", help, samples);
}

fn text_or_empty(number: Option<impl Display>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

/// The kind of holder of a function in this state.
fn kind(state: DeviceState) -> &'static str {
    match state {
        DeviceState::Free => "free",
        DeviceState::Held => "guest",
        DeviceState::Excluded => "excluded",
        DeviceState::Untested => "untested",
        DeviceState::Unhealthy => "unhealthy",
        DeviceState::Silent => "silent",
        DeviceState::Host => "host",
        DeviceState::Blocked => "blocked",
        DeviceState::Data => "data",
        DeviceState::Display => "display",
        DeviceState::Unsupported => "unsupported",
        DeviceState::Barred => "barred",
    }
}

/// A domain, of whose definition and live state each holds something.
#[derive(Default)]
struct Own<'a> {
    name: &'a str,
    /// Its UUID; empty: not known.
    uuid: &'a str,
    active: bool,
    devices: Vec<Bdf>,
}

fn guests(held: &Occupancy) -> BTreeMap<&str, Own<'_>> {
    let mut all: BTreeMap<&str, Own<'_>> = BTreeMap::new();
    for Held { domain, uuid, active, devices, .. } in &held.domains {
        let own = all.entry(domain).or_default();
        own.name = domain;
        own.uuid = uuid.as_deref().unwrap_or(own.uuid);
        own.active |= active;
        own.devices.extend(devices);
    }
    all
}

fn domains(out: &mut Metrics, held: &Occupancy) {
    let samples = guests(held).into_values().map(|own| {
        let labels = vec![("domain", own.name.to_owned()), ("uuid", own.uuid.to_owned())];
        (labels, u8::from(own.active).to_string())
    });
    out.gauge("gpuvm_domain_active", "Whether a domain runs; 0: it is only defined.", samples);
}

/// NVLink partitions. Fabric Manager has them active, or, where guests get the NVSwitches, a
/// running guest makes them so.
fn partitions(out: &mut Metrics, topology: &Topology, held: &Occupancy) {
    if !topology.is_partitioned() {
        return;
    }
    let running: Vec<Vec<Bdf>> = guests(held)
        .into_values()
        .filter(|own| own.active)
        .map(|own| topology.ruled().filter(|bdf| own.devices.contains(bdf)).collect())
        .collect();
    let is_active = |partition: &Partition| match topology.fabric().model {
        FabricModel::SharedNvswitch => partition.active,
        _ => running.iter().any(|gpus| {
            let own = topology.partition_of(gpus).ok().flatten();
            !gpus.is_empty() && own.is_some_and(|own| own.id == partition.id)
        }),
    };
    let samples = topology.partitions().iter().map(|partition| {
        let gpus = partition.gpus.len().to_string();
        let labels = vec![("partition", partition.id.to_string()), ("gpus", gpus)];
        (labels, u8::from(is_active(partition)).to_string())
    });
    out.gauge("gpuvm_partition_active", "Whether an NVLink partition is in use.", samples);
}

/// Pcpus and huge pages of nodes.
fn nodes(out: &mut Metrics, topology: &Topology, held: &Occupancy, kept: u32) {
    let mut pcpus = Vec::new();
    let mut pages: [Vec<Sample<'_>>; 2] = [Vec::new(), Vec::new()];
    for node in topology.nodes() {
        let own = NodeSet::of(node.os_index);
        let nobody = Occupancy::default();
        let seats = idle_cores(topology, &nobody, kept, &own).len();
        let free = idle_cores(topology, held, kept, &own).len();
        let reserved = node.pcpus.len().saturating_sub(seats);
        let held = seats.saturating_sub(free);
        for (state, number) in [("held", held), ("free", free), ("reserved", reserved)] {
            let labels = vec![("node", node.os_index.to_string()), ("state", state.to_owned())];
            pcpus.push((labels, number.to_string()));
        }
        for pool in &node.huge_pages {
            let labels = vec![
                ("node", node.os_index.to_string()),
                ("size_bytes", (pool.page_kib.kib() * 1024).to_string()),
            ];
            pages[0].push((labels.clone(), pool.total.to_string()));
            pages[1].push((labels, pool.free.to_string()));
        }
    }
    let help = "Pcpus: of cores that guests hold, free for guests, or not for guests.";
    out.gauge("gpuvm_pcpus", help, pcpus);
    let [all, free] = pages;
    out.gauge("gpuvm_hugepages", "Huge pages of a node's pool.", all);
    out.gauge("gpuvm_hugepages_free", "Huge pages of a node's pool that are free.", free);
}

#[cfg(test)]
mod tests;
