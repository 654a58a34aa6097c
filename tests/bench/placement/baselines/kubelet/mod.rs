//! The kubelet: CPU manager with the static policy, device manager, topology manager; with
//! KubeVirt's mapping of vCPUs on top (gpuvm-placement(7), OTHER PLANNERS).
//!
//! Open choices are made in favour of the peer: no CPUs are reserved for the system, devices
//! without an order are taken by address, odd vCPU counts fall back to guest cores of one thread,
//! and the memory manager is off, as it is by default: with it, a guest whose memory would fit on
//! fewer nodes than its GPUs need is preferred nowhere. NUMA passthrough is on: memory is cut into
//! equal parts over the nodes of the vCPUs, and a node that has not its part refuses. The emulator
//! floats over the vCPUs' pcpus.

mod devices;
mod distributed;
mod hints;
mod kubevirt;
mod packed;
#[cfg(test)]
mod vectors;

use super::super::model::{Ask, Place, Policy};
use super::host::{Device, Host, parts};
use gpuvm_core::cpuset::NodeId;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::Topology;
use hints::{Admission, Hint, Hints, MOST_NODES};

/// How CPUs are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cpus {
    /// Packed.
    Packed,
    /// `distribute-cpus-across-numa`.
    Distributed,
    /// `prefer-align-cpus-by-uncorecache`.
    ByL3,
}

#[derive(Debug, Clone, Copy)]
struct Kubelet {
    cpus: Cpus,
    /// `full-pcpus-only`: requests that do not fill whole cores are refused.
    whole_cores: bool,
    admission: Admission,
    /// Whether the device plugin chooses GPUs by their links (NVIDIA's, for containers); else they
    /// go by address.
    by_links: bool,
}

/// The option sets of the table.
pub fn variants() -> Vec<Box<dyn Policy>> {
    let plain = |cpus, admission| Kubelet { cpus, whole_cores: false, admission, by_links: false };
    let all = [
        plain(Cpus::Packed, Admission::None),
        plain(Cpus::Packed, Admission::BestEffort),
        plain(Cpus::Packed, Admission::Restricted),
        plain(Cpus::Packed, Admission::SingleNode),
        Kubelet { whole_cores: true, ..plain(Cpus::Packed, Admission::Restricted) },
        Kubelet { by_links: true, ..plain(Cpus::Packed, Admission::BestEffort) },
        plain(Cpus::Distributed, Admission::BestEffort),
        plain(Cpus::Distributed, Admission::Restricted),
        plain(Cpus::ByL3, Admission::BestEffort),
        plain(Cpus::ByL3, Admission::SingleNode),
    ];
    all.into_iter().map(|kubelet| Box::new(kubelet) as Box<dyn Policy>).collect()
}

impl Policy for Kubelet {
    fn name(&self) -> String {
        let cpus = match self.cpus {
            Cpus::Packed => "packed",
            Cpus::Distributed => "distributed",
            Cpus::ByL3 => "uncore",
        };
        let admission = match self.admission {
            Admission::None => "none",
            Admission::BestEffort => "best-effort",
            Admission::Restricted => "restricted",
            Admission::SingleNode => "single-numa-node",
        };
        let whole = if self.whole_cores { " full-pcpus-only" } else { "" };
        let links = if self.by_links { " aligned GPUs" } else { "" };
        format!("kubelet {cpus}{whole}{links}, {admission}")
    }

    fn lacks(&self) -> &'static [&'static str] {
        match (self.cpus, self.admission, self.by_links) {
            (_, Admission::None, _) => &[
                "nodes of devices",
                "L3 groups",
                "PCIe switches",
                "NVLink partitions",
                "GPU links",
                "NICs near GPUs",
                "drives near GPUs",
                "memory by node",
            ],
            (Cpus::ByL3, ..) => &[
                "PCIe switches",
                "NVLink partitions",
                "GPU links",
                "NICs on the GPU's switch",
                "more than 8 nodes",
            ],
            (_, _, true) => {
                &["L3 groups", "NVLink partitions", "NICs on the GPU's switch", "more than 8 nodes"]
            }
            _ => &[
                "L3 groups",
                "PCIe switches",
                "NVLink partitions",
                "GPU links",
                "NICs on the GPU's switch",
                "more than 8 nodes",
            ],
        }
    }

    fn place(&self, topology: &Topology, guests: &[Place], ask: &Ask) -> Option<Place> {
        let host = Host::new(topology, guests);
        let mask = self.admit(&host, ask)?;
        let choose = |list: &[Device], number: u32, by_links: bool| {
            devices::choose(&host, list, mask, number as usize, by_links)
        };
        let gpus = choose(&host.gpus, ask.gpus, self.by_links)?;
        let vcpus = ask.vcpus as usize;
        let threads = self.cpus(&host, mask, vcpus)?;
        let smt = host.smt();
        let pairs =
            vcpus.is_multiple_of(smt).then(|| kubevirt::map(&host, &threads, vcpus, smt, true));
        let vcpus = match pairs.flatten() {
            Some(mapped) => mapped,
            None => kubevirt::map(&host, &threads, vcpus, 1, true)?,
        };
        Some(Place {
            along: host.switches(&gpus).unwrap_or_default(),
            gpus,
            nics: choose(&host.nics, ask.nics, false)?,
            nvmes: choose(&host.nvmes, ask.nvmes, false)?,
            memory: memory(&host, &vcpus, ask.memory)?,
            pins: host.pins(&vcpus),
            ..Place::default()
        })
    }
}

impl Kubelet {
    /// The topology manager: the nodes to take from (`None` if wherever); no answer: the pod is
    /// refused.
    fn admit(&self, host: &Host<'_>, ask: &Ask) -> Option<Option<u32>> {
        if self.admission == Admission::None {
            return Some(None);
        }
        if host.nodes.len() > MOST_NODES {
            return None;
        }
        let providers = providers(host, ask);
        let Hint { mask, preferred } = hints::merge(host.nodes.len(), &providers, self.admission);
        (preferred || self.admission == Admission::BestEffort).then_some(mask)
    }

    /// The CPU manager: threads from the mask's nodes first, then from anywhere.
    fn cpus(&self, host: &Host<'_>, mask: Option<u32>, need: usize) -> Option<Vec<usize>> {
        let smt = host.smt();
        let open = |thread: usize| {
            host.threads[thread].free
                && (!self.whole_cores || host.is_whole(host.threads[thread].core))
        };
        if self.whole_cores && !need.is_multiple_of(smt) {
            return None;
        }
        let mut free: Vec<bool> = (0..host.threads.len()).map(open).collect();
        let Some(mask) = mask else { return self.take(host, &free, need) };
        let near: Vec<bool> =
            (0..free.len()).map(|t| free[t] && mask >> host.node_of(t) & 1 == 1).collect();
        let aligned = near.iter().filter(|free| **free).count().min(need);
        let mut taken = self.take(host, &near, aligned)?;
        taken.iter().for_each(|&thread| free[thread] = false);
        taken.extend(self.take(host, &free, need - aligned)?);
        Some(taken)
    }

    /// Takes threads by the chosen taker.
    fn take(&self, host: &Host<'_>, free: &[bool], need: usize) -> Option<Vec<usize>> {
        let options = packed::Options { by_l3: self.cpus == Cpus::ByL3, across_cores: false };
        match self.cpus {
            Cpus::Distributed => {
                let group = if self.whole_cores { host.smt() } else { 1 };
                distributed::take(host, free, need, group, options)
            }
            Cpus::Packed | Cpus::ByL3 => packed::take(host, free, need, options),
        }
    }
}

/// Hints of the CPU manager, and of the device manager for each kind asked for.
fn providers(host: &Host<'_>, ask: &Ask) -> Vec<Hints> {
    let nodes = 0..host.nodes.len();
    let cpus: (Vec<u64>, Vec<u64>) = nodes
        .clone()
        .map(|node| (host.all_threads(node) as u64, host.free_threads(node) as u64))
        .unzip();
    let mut all = vec![Some(hints::generate(&cpus.0, &cpus.1, u64::from(ask.vcpus)))];
    for (list, number) in [(&host.gpus, ask.gpus), (&host.nics, ask.nics), (&host.nvmes, ask.nvmes)]
    {
        if number > 0 {
            all.push(devices::hints(host.nodes.len(), list, u64::from(number)));
        }
    }
    all
}

/// NUMA passthrough: equal parts on the nodes of the vCPUs; `None` if a node has not its part.
fn memory(host: &Host<'_>, vcpus: &[usize], size: MemSize) -> Option<Vec<(NodeId, MemSize)>> {
    let mut nodes: Vec<usize> = vcpus.iter().map(|&thread| host.node_of(thread)).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let sizes = parts(size.kib(), nodes.len()).into_iter().map(MemSize::from_kib);
    let part = |(node, size): (usize, MemSize)| {
        let node = &host.nodes[node];
        (node.free >= size).then_some((node.id, size))
    };
    nodes.into_iter().zip(sizes).map(part).collect()
}
