//! Compares the guest's own view, as reported by its agent, with the running XML. The report is as
//! trustworthy as the guest: it can fake or hide a difference.

use super::report::{Between, Report, Wrong};
use crate::check::cpu::{comparable_shape, pins_by_vcpu, shown_cache};
use crate::check::guest::Guest;
use crate::domain::Element;
use crate::domain::claims::{VcpuId, VcpuSet};
use crate::domain::read::GuestAddress;
use crate::finding::Rule;
use crate::placement::{caches_of, shows_caches};
use crate::topology::Topology;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Unplugged from inside, or not brought up.
const VCPUS: Rule = Rule::error("guest-vcpus", "a guest that runs on another number of vCPUs");
/// The guest spreads work and memory by another map than the host's.
const CELLS: Rule = Rule::error("guest-cells", "a guest that sees other NUMA cells");
/// The guest's scheduler takes unrelated vCPUs for siblings.
const PAIRS: Rule = Rule::error("guest-threads", "a guest that sees other threads of a core");
/// The guest's scheduler and its libraries distribute work by caches that do not exist.
const CACHES: Rule =
    Rule::warning("guest-l3-caches", "a guest that sees other L3 caches than its vCPUs are below");
/// No driver in the guest, or it was unplugged.
const NICS: Rule = Rule::error("guest-interfaces", "an interface that the guest does not see");
/// As for interfaces: no driver, or unplugged.
const DISKS: Rule = Rule::error("guest-disks", "disks that the guest does not see");
/// The function hangs, or the guest's firmware had no room for its BARs.
const PCI: Rule = Rule::error("guest-devices", "passed functions that the guest does not see");
/// The guest's libraries choose CPUs and NICs by another map than the host's.
const PCI_NODE: Rule =
    Rule::error("guest-device-cell", "passed functions that the guest sees near other cells");

/// Rules of this module.
pub const RULES: &[Rule] = &[VCPUS, CELLS, PAIRS, CACHES, NICS, DISKS, PCI, PCI_NODE];

/// A PCI function that a guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Function {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Its nearest cell; `None` if no particular one, or not reported.
    pub cell: Option<u32>,
}

/// A guest's view of itself. Values that it does not report are none or empty, and named.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct View {
    /// vCPUs that it runs on.
    pub vcpus: Option<u32>,
    /// vCPUs by cell.
    #[serde(skip)]
    pub cells: BTreeMap<u32, VcpuSet>,
    /// vCPUs of the same core, by vCPU.
    #[serde(skip)]
    pub siblings: BTreeMap<u32, VcpuSet>,
    /// vCPUs below one L3 cache, by the first of them.
    #[serde(skip)]
    pub l3: BTreeMap<u32, VcpuSet>,
    /// MAC addresses of its interfaces, lower case.
    pub macs: Option<BTreeSet<String>>,
    /// Whole disks on virtio.
    pub virtio_disks: Option<usize>,
    /// PCI functions.
    pub functions: Option<Vec<Function>>,
    /// Its topology file for NCCL; `None` if it has none, or that was not reported.
    #[serde(skip)]
    pub nccl: Option<String>,
    /// The version of its NVIDIA driver; `None` if none is loaded, or that was not reported.
    #[serde(skip)]
    pub driver: Option<String>,
    /// Values that it did not report, one phrase each.
    pub untold: Vec<&'static str>,
}

/// Compares the guest's view with the running XML.
pub fn compare(live: &Guest<'_>, view: &View, topology: Option<&Topology>, report: &mut Report) {
    let mut seen = Seen { report };
    if let Some(vcpus) = view.vcpus {
        let expected = live.plugged.len().to_string();
        seen.report(
            &VCPUS,
            "vCPUs that the guest runs on",
            expected,
            vcpus.to_string(),
            "guest-get-vcpus",
        );
    }
    if !view.cells.is_empty() {
        seen.cells(live, view);
    }
    seen.pairs(live, view);
    if let Some(topology) = topology {
        seen.caches(live, view, topology);
    }
    seen.devices(live, view);
    if let (Some(functions), Some(topology)) = (&view.functions, topology) {
        seen.functions(live, functions, topology);
    }
}

/// A comparison with a guest's view.
struct Seen<'r> {
    report: &'r mut Report,
}

impl Seen<'_> {
    /// Reports that two values differ; `at`: the query to the guest.
    fn report(
        &mut self,
        rule: &'static Rule,
        what: &str,
        expected: String,
        found: String,
        at: &str,
    ) {
        if expected != found {
            let (what, at) = (what.to_owned(), format!("the guest's agent, {at}"));
            let hint = "look into the guest: `lscpu`, `numactl -H`, `lspci -nnk`, `dmesg`";
            let wrong = Wrong { what, expected, found, at, hint };
            self.report.differs(rule, Between::Guest, wrong);
        }
    }

    fn cells(&mut self, live: &Guest<'_>, view: &View) {
        for cell in &live.cells {
            let vcpus = cell.vcpus.as_ref().map(|vcpus| vcpus.value.and(&live.plugged));
            let text = |set: Option<&VcpuSet>| {
                set.filter(|set| !set.is_empty()).map_or("none".to_owned(), ToString::to_string)
            };
            let at = format!("/sys/devices/system/node/node{}/cpulist", cell.id);
            let what = format!("vCPUs of cell {}", cell.id);
            self.report(&CELLS, &what, text(vcpus.as_ref()), text(view.cells.get(&cell.id)), &at);
        }
        // Those of GPUs' memory have no vCPUs.
        let is_empty = |id: &u32| live.empty_cells.iter().any(|cell| cell.value == *id);
        let (empty, others): (Vec<u32>, Vec<u32>) = view.cells.keys().partition(|id| is_empty(id));
        // A guest kernel with CONFIG_NODES_SHIFT=4 drops those above 16.
        let (expected, found) = (live.empty_cells.len().to_string(), empty.len().to_string());
        let at = "/sys/devices/system/node/has_generic_initiator";
        self.report(
            &CELLS,
            "cells for the memory of GPUs that the guest sees",
            expected,
            found,
            at,
        );
        let (expected, found) = (live.cells.len().max(1), others.len());
        let at = "/sys/devices/system/node/online";
        self.report(
            &CELLS,
            "cells that the guest sees",
            expected.to_string(),
            found.to_string(),
            at,
        );
    }

    /// Compares threads of cores: QEMU numbers those of a core one after the other.
    fn pairs(&mut self, live: &Guest<'_>, view: &View) {
        let shown = live.cpu.as_ref().and_then(|cpu| cpu.topology.as_ref());
        let Some(threads) = shown.map(|shown| shown.value[4].max(1)) else { return };
        for (&vcpu, found) in &view.siblings {
            let first = vcpu / threads * threads;
            let all: VcpuSet = (first..first.saturating_add(threads)).map(VcpuId).collect();
            let what = format!("threads of the core of vcpu {vcpu}");
            let at = format!("/sys/devices/system/cpu/cpu{vcpu}/topology/thread_siblings_list");
            let expected = all.and(&live.plugged).to_string();
            self.report(&PAIRS, &what, expected, found.to_string(), &at);
        }
    }

    /// Compares L3 caches with those of the vCPUs on the host, if the XML shows them.
    fn caches(&mut self, live: &Guest<'_>, view: &View, topology: &Topology) {
        let pins = pins_by_vcpu(live);
        let Some((shape, cpu)) = comparable_shape(live).zip(live.cpu.as_ref()) else { return };
        let Some(there) = caches_of(topology, &pins) else { return };
        if shows_caches(topology, &pins, shape, shown_cache(cpu)) != Some(true) {
            return;
        }
        for (&vcpu, found) in &view.l3 {
            let Some(own) = there.get(vcpu as usize) else { continue };
            let same = (0u32..).zip(&there).filter(|(_, cache)| *cache == own);
            let all: VcpuSet = same.map(|(vcpu, _)| VcpuId(vcpu)).collect();
            let what = format!("vCPUs below the L3 cache of vcpu {vcpu}");
            let at = format!("/sys/devices/system/cpu/cpu{vcpu}/cache/index3/shared_cpu_list");
            let expected = all.and(&live.plugged).to_string();
            self.report(&CACHES, &what, expected, found.to_string(), &at);
        }
    }

    fn devices(&mut self, live: &Guest<'_>, view: &View) {
        let devices = live.spot.element().child("devices");
        let named = |name: &'static str| {
            devices.into_iter().flat_map(move |devices| devices.children(name))
        };
        if let Some(macs) = &view.macs {
            let mac = |nic: Element<'_>| Some(nic.child("mac")?.attr("address")?.to_lowercase());
            for mac in named("interface").filter_map(mac).filter(|mac| !macs.contains(mac)) {
                let what = format!("interface with MAC address {mac}");
                let at = "guest-network-get-interfaces";
                self.report(&NICS, &what, "seen".into(), "not seen".into(), at);
            }
        }
        if let Some(found) = view.virtio_disks {
            let virtio = |disk: &Element<'_>| {
                let bus = disk.child("target").and_then(|target| target.attr("bus"));
                bus.as_deref() == Some("virtio")
            };
            let expected = named("disk").filter(virtio).count().to_string();
            self.report(&DISKS, "virtio disks", expected, found.to_string(), "its disks");
        }
    }

    /// Compares passed functions by their ids, and the cells that they are near.
    fn functions(&mut self, live: &Guest<'_>, functions: &[Function], topology: &Topology) {
        let mut wanted: BTreeMap<(u16, u16), Vec<Option<u32>>> = BTreeMap::new();
        for passed in &live.passed {
            let Some(device) = topology.device(passed.bdf.value) else { continue };
            let cell = passed.at.as_ref().and_then(|at| cell_of(live, at.value));
            wanted.entry((device.vendor, device.device)).or_default().push(cell);
        }
        for ((vendor, device), mut wanted) in wanted {
            let of = functions.iter().filter(|f| (f.vendor, f.device) == (vendor, device));
            let mut found: Vec<Option<u32>> = of.map(|function| function.cell).collect();
            let id = format!("{vendor:04x}:{device:04x}");
            let what = format!("functions {id}");
            let (expected, count) = (wanted.len().to_string(), found.len().to_string());
            self.report(&PCI, &what, expected, count, "/proc/bus/pci/devices");
            if wanted.len() == found.len() && wanted.iter().all(Option::is_some) {
                wanted.sort_unstable();
                found.sort_unstable();
                let what = format!("cells of functions {id}");
                let (expected, found) = (cells(&wanted), cells(&found));
                self.report(&PCI_NODE, &what, expected, found, "/sys/bus/pci/devices/*/numa_node");
            }
        }
    }
}

/// Lists cells; `-1` for none, as in the kernel.
fn cells(cells: &[Option<u32>]) -> String {
    let text = |cell: &Option<u32>| cell.map_or("-1".to_owned(), |cell| cell.to_string());
    cells.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Returns the cell of the expander bus above a place; `None` if it is below the root.
fn cell_of(live: &Guest<'_>, at: GuestAddress) -> Option<u32> {
    let mut index = at.controller;
    // No path is longer than there are controllers.
    for _ in 0..live.controllers.len() {
        let controller = live.controller(index)?;
        if let Some(cell) = &controller.cell {
            return Some(cell.value);
        }
        index = controller.address.as_ref()?.controller;
    }
    None
}
