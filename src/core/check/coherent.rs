//! Rules on guests of Arm with SMMUv3s and with GPUs whose memory is coherent with the CPU's. libvirt
//! 12.9 defines each of these domains, and drops the fault or lets QEMU fail at the start.

use super::guest::Guest;
use super::pci::LAST_BUS;
use super::report::Report;
use crate::cpuset::NodeSet;
use crate::domain::Element;
use crate::domain::claims::Passed;
use crate::domain::iommufd::{is_nested_smmu, is_smmu, own};
use crate::domain::read::{Spot, memory};
use crate::finding::{Rule, Severity};
use crate::shell::{domain, word};
use crate::topology::{NODES_PER_GPU, NumaNode, Topology};
use crate::words::nouns;
use std::collections::BTreeSet;

/// It becomes the machine's IOMMU, without `accel`.
const NO_BUS: Rule = Rule::error(
    "smmu-without-bus",
    "a nested or second SMMUv3 without `pciBus`, which libvirt drops",
);
/// "An iommu is already attached to this bus".
const BUS_TWICE: Rule = Rule::error("smmu-bus-twice", "two SMMUv3s of one bus");
/// "should be attached to .. pcie.0 or a pxb-pcie".
const BUS_KIND: Rule =
    Rule::error("smmu-bus-kind", "an SMMUv3 of a bus that is neither the root nor an expander bus");
const GROUPS: Rule =
    Rule::error("smmu-needs-iommufd", "a nested SMMUv3 over functions that are not by iommufd");
/// QEMU 11.1 takes `oas` 44 or 48 and `ssidsize` 0 to 20; libvirt drops unknown values.
const VALUE: Rule =
    Rule::error("smmu-value", "a setting of an SMMUv3 that QEMU or libvirt does not take");
const NODESET: Rule = Rule::error(
    "gi-nodeset",
    "a nodeset of a passed function with cells that are absent, not empty, or another's",
);
/// The guest's driver finds no memory, and CUDA does not start.
const NO_NODESET: Rule =
    Rule::error("gi-missing", "a GPU with coherent memory without eight empty cells");
/// Guests have one above each such GPU (gpuvm-hardware(7), GRACE).
const NO_SMMU: Rule = Rule::error(
    "smmu-missing",
    "a GPU with coherent memory below a bus without a nested SMMUv3 of its own",
);
/// libvirt gives such a function back to the host's driver.
const MANAGED: Rule = Rule::error(
    "coherent-managed",
    "a GPU with coherent memory that libvirt takes from its driver of VFIO at each stop",
);
/// "highmem-mmio-size is not a power of 2".
const WINDOW: Rule =
    Rule::error("arm-window", "a 64-bit PCI window of an Arm guest that QEMU does not take");
/// NVIDIA's driver gives it to programs of the GPU.
const GPU_NODE: Rule =
    Rule::error("memory-on-gpu-node", "guest memory on a node whose memory is a GPU's");

/// The same where the kernel chooses the node.
const MAYBE_GPU_NODE: Rule = Rule { severity: Severity::Warning, ..GPU_NODE };

/// Rules of this module.
pub const RULES: &[Rule] = &[
    NO_BUS, BUS_TWICE, BUS_KIND, GROUPS, VALUE, NODESET, NO_NODESET, NO_SMMU, MANAGED, WINDOW,
    GPU_NODE,
];

/// Settings of an SMMUv3 in libvirt 12.9.
const SETTINGS: [&str; 7] = ["pciBus", "accel", "ats", "ril", "ssidsize", "oas", "cmdqv"];
/// The model of an expander bus.
const EXPANDER: &str = "pcie-expander-bus";
/// The smallest window of QEMU's `virt`, in KiB.
const LEAST_WINDOW: u64 = 512 << 20;

/// Checks a domain.
pub fn check<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let devices: Vec<Element<'t>> =
        guest.spot.element().child("devices").into_iter().flat_map(Element::elements).collect();
    let smmus: Vec<Element<'t>> = devices.iter().copied().filter(|one| is_smmu(*one)).collect();
    let coherent = |passed: &&Passed<'t>| topology.is_coherent(passed.bdf.value);
    judge_smmus(guest, &smmus, report);
    initiators(guest, &devices, topology, report);
    for passed in guest.passed.iter().filter(coherent).filter(|passed| passed.is_hostdev()) {
        below_smmu(guest, passed, &smmus, report);
        managed(passed, topology, report);
    }
    if !guest.is_x86 {
        window(&devices, report);
    }
    gpu_nodes(guest, topology, report);
}

/// Finds memory that is, or may be, a GPU's.
fn gpu_nodes<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let hint =
        format!("`gpuvm tune {} --memory-nodes on` binds it to nodes with CPUs", word(&guest.name));
    modules(guest, topology, report);
    let mut is_named = false;
    for binding in &guest.bindings {
        let of_gpus = binding.nodes.and(&topology.gpu_memory_nodes());
        if !of_gpus.is_empty() {
            is_named = true;
            let nodes = nouns(of_gpus.len(), "node");
            let message = format!("memory is bound to {nodes} {of_gpus}, whose memory is a GPU's");
            report.add(&GPU_NODE, binding.nodes.spot, message, hint.clone());
        }
    }
    let has_memory = |node: &&NumaNode| topology.is_gpu_memory(node) && !node.memory_kib.is_zero();
    let nodes: NodeSet =
        topology.nodes().iter().filter(has_memory).map(|node| node.os_index).collect();
    if !is_named && !guest.is_bound() && !nodes.is_empty() {
        let bound =
            if guest.bindings.is_empty() { "is bound to no node" } else { "may leave its nodes" };
        let message = format!(
            "memory that {bound} may be on {} {nodes}, whose memory is a GPU's",
            nouns(nodes.len(), "node")
        );
        report.add(&MAYBE_GPU_NODE, guest.memory.spot, message, hint);
    }
}

/// Finds memory modules on nodes of GPUs. They stay as their owner wrote them.
fn modules<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let devices = guest.spot.element().child("devices");
    let all = devices.into_iter().flat_map(|devices| devices.children("memory"));
    let masks = all.filter_map(|module| module.find("source/nodemask"));
    for mask in masks {
        let Ok(nodes) = mask.text().trim().parse::<NodeSet>() else { continue };
        let of_gpus = nodes.and(&topology.gpu_memory_nodes());
        if of_gpus.is_empty() {
            continue;
        }
        let nodes = nouns(of_gpus.len(), "node");
        let message = format!("a module's memory is on {nodes} {of_gpus}, whose memory is a GPU's");
        let hint = format!("`virsh edit {}` names a node with CPUs", domain(&guest.name));
        report.add(&GPU_NODE, Spot::of(mask), message, hint);
    }
}

/// Checks SMMUv3s.
fn judge_smmus<'t>(guest: &Guest<'t>, smmus: &[Element<'t>], report: &mut Report<'t>) {
    let mut buses = BTreeSet::new();
    for smmu in smmus {
        let Some(driver) = smmu.child("driver") else {
            if smmus.len() > 1 {
                without_bus(*smmu, report);
            }
            continue;
        };
        let is_nested = is_nested_smmu(*smmu);
        match driver.attr("pciBus").map(|bus| (bus.parse::<u32>().ok(), bus)) {
            None if is_nested || smmus.len() > 1 => without_bus(driver, report),
            None => {}
            Some((bus, text)) => {
                let controller = bus.and_then(|bus| guest.controllers.get(&bus));
                let model = controller.map(|controller| controller.model.as_str());
                if bus != Some(0) && model != Some(EXPANDER) {
                    let what = model.unwrap_or("no PCI controller");
                    let message = format!("bus {text} of an SMMUv3 is {what}");
                    let hint = "name the pcie-expander-bus above the function, or 0";
                    report.add(&BUS_KIND, Spot::attribute(driver, "pciBus"), message, hint);
                } else if !buses.insert(bus) {
                    let message = format!("bus {text} has an SMMUv3 already");
                    let spot = Spot::attribute(driver, "pciBus");
                    report.add(&BUS_TWICE, spot, message, "give each bus one SMMUv3");
                }
            }
        }
        let by_group = guest.passed.iter().find(|passed| !passed.iommufd);
        if let Some(passed) = by_group.filter(|_| is_nested) {
            let message = "a nested SMMUv3 needs iommufd, and this function is passed through by \
                           its group";
            report.add(&GROUPS, passed.device, message, to_iommufd(guest, passed));
        }
        settings(driver, report);
    }
}

/// The remedy for a function that is passed through by its group.
fn to_iommufd(guest: &Guest<'_>, passed: &Passed<'_>) -> String {
    let tune = format!("`gpuvm tune {} --iommufd on` does so", word(&guest.name));
    if !passed.is_hostdev() {
        return "pass it by <hostdev>, which libvirt passes through by iommufd".to_owned();
    }
    if own(passed.device.element()) == Some(false) {
        return format!("remove iommufd='no' from the <driver> of this device; {tune}");
    }
    format!("write <iommufd enabled='yes'/> into <domain>; {tune}")
}

/// Checks that a nested SMMUv3 is of the bus that a GPU is below.
fn below_smmu<'t>(
    guest: &Guest<'t>,
    passed: &Passed<'t>,
    smmus: &[Element<'t>],
    report: &mut Report<'t>,
) {
    let bus = passed.at.as_ref().and_then(|at| root_above(guest, at.controller));
    let of = |smmu: &Element<'t>| smmu.child("driver")?.attr("pciBus")?.parse::<u32>().ok();
    // One without a bus has a finding of its own, and libvirt may choose the place of the GPU.
    let covers = |smmu: &Element<'t>| match (of(smmu), bus) {
        (Some(of), Some(bus)) => of == bus,
        _ => true,
    };
    if smmus.iter().any(|smmu| is_nested_smmu(*smmu) && covers(smmu)) {
        return;
    }
    let bdf = passed.bdf.value;
    let whole = |bus: &str| {
        format!(
            "write <iommu model='smmuv3'><driver pciBus='{bus}' accel='on' ats='on' ril='off' \
             ssidsize='20' oas='48'/></iommu> into <devices>"
        )
    };
    let (message, hint) = match bus.filter(|bus| *bus != 0) {
        Some(bus) if smmus.iter().any(|smmu| of(smmu) == Some(bus)) => (
            format!("the SMMUv3 of bus {bus}, which {bdf} is below, is not nested in the host's"),
            "write accel='on' ats='on' ril='off' ssidsize='20' oas='48' into its <driver>".into(),
        ),
        Some(bus) => (
            format!("no nested SMMUv3 is of bus {bus}, which {bdf} is below"),
            whole(&bus.to_string()),
        ),
        None => (
            format!("no nested SMMUv3 is of an expander bus above {bdf}"),
            format!("put it below a pcie-expander-bus N of its own, and {}", whole("N")),
        ),
    };
    report.add(&NO_SMMU, passed.device, message, hint);
}

/// The index of the root or expander bus above a controller, or the controller's own; `None` where
/// libvirt chooses its place.
fn root_above(guest: &Guest<'_>, controller: u32) -> Option<u32> {
    let mut index = controller;
    for _ in 0..=LAST_BUS {
        if index == 0 {
            return Some(0);
        }
        let controller = guest.controller(index)?;
        if controller.model == EXPANDER {
            return Some(index);
        }
        index = controller.address.as_ref()?.controller;
    }
    None
}

/// Checks that a GPU stays on its driver of VFIO.
fn managed<'t>(passed: &Passed<'t>, topology: &Topology, report: &mut Report<'t>) {
    if passed.device.element().attr("managed").is_some_and(|managed| managed == "yes") {
        let bdf = passed.bdf.value;
        let driver = topology.passing_driver(bdf);
        let message = format!("libvirt would take {bdf} from {driver} when the guest stops");
        let hint =
            format!("write managed='no'; `gpuvm device bind {bdf} --at-boot` binds it to {driver}");
        report.add(&MANAGED, passed.device, message, hint);
    }
}

fn without_bus<'t>(at: Element<'t>, report: &mut Report<'t>) {
    let message =
        "libvirt makes an SMMUv3 without a bus that of the machine, and drops its settings";
    let hint = "write pciBus='N', the index of the expander bus above the function";
    report.add(&NO_BUS, Spot::of(at), message, hint);
}

/// Checks the settings of an SMMUv3.
fn settings<'t>(driver: Element<'t>, report: &mut Report<'t>) {
    for (name, value) in driver.attrs() {
        let is_good = match name {
            "oas" => matches!(&*value, "44" | "48"),
            "ssidsize" => value.parse::<u32>().is_ok_and(|bits| bits <= 20),
            name => SETTINGS.contains(&name),
        };
        if !is_good {
            let message = format!("{name}='{value}' of an SMMUv3");
            let hint = "oas is 44 or 48, ssidsize 0 to 20; libvirt knows pciBus, accel, ats, ril, \
                        ssidsize, oas and cmdqv";
            report.add(&VALUE, Spot::of(driver), message, hint);
        }
    }
}

/// Checks the empty cells that passed functions name.
fn initiators<'t>(
    guest: &Guest<'t>,
    devices: &[Element<'t>],
    topology: &Topology,
    report: &mut Report<'t>,
) {
    let empty: NodeSet = guest
        .empty_cells
        .iter()
        .filter(|cell| cell.value <= crate::cpuset::MAX_ID)
        .map(|cell| crate::cpuset::NodeId(cell.value))
        .collect();
    let mut taken = NodeSet::new();
    for device in devices.iter().filter(|device| device.name() == "hostdev") {
        let acpi = device.child("acpi");
        let nodeset = acpi.and_then(|acpi| acpi.attr("nodeset")?.parse::<NodeSet>().ok());
        let path = Spot::of(*device).path();
        let passed = guest.passed.iter().find(|passed| passed.device.path() == path);
        let is_coherent = passed.is_some_and(|passed| topology.is_coherent(passed.bdf.value));
        let count = nodeset.as_ref().map_or(0, NodeSet::len);
        if is_coherent && count != NODES_PER_GPU {
            let message = format!("{count} empty cells for a GPU that needs {NODES_PER_GPU}");
            let hint = "`gpuvm export --gpus 1` shows a domain with them";
            report.add(&NO_NODESET, Spot::of(*device), message, hint);
        }
        let (Some(acpi), Some(nodeset)) = (acpi, nodeset) else { continue };
        let wrong = nodeset.minus(&empty);
        let twice = nodeset.and(&taken);
        let spot = Spot::attribute(acpi, "nodeset");
        let hint = "name cells with memory='0' and without cpus, each for one function";
        if !wrong.is_empty() {
            let message = format!("cells {wrong} are absent or not empty");
            report.add(&NODESET, spot, message, hint);
        } else if !twice.is_empty() {
            let message = format!("cells {twice} are those of another function, too");
            report.add(&NODESET, spot, message, hint);
        }
        taken = taken.or(&nodeset);
    }
}

/// Checks the window for 64-bit BARs.
fn window<'t>(devices: &[Element<'t>], report: &mut Report<'t>) {
    let windows = devices.iter().filter_map(|device| device.child("pcihole64"));
    for window in windows {
        let Ok(size) = memory(&window.text(), window.attr("unit").as_deref()) else { continue };
        let kib = size.kib();
        if !kib.is_power_of_two() || kib < LEAST_WINDOW {
            let message = format!("{kib} KiB: QEMU takes powers of two from {LEAST_WINDOW} KiB on");
            let hint = format!("write {} KiB", kib.max(LEAST_WINDOW).next_power_of_two());
            report.add(&WINDOW, Spot::of(window), message, hint);
        }
    }
}
