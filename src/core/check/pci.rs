//! Rules on the guest's own PCI tree. Of the host's devices it knows only which are GPUs.

use super::guest::{Controller, Guest};
use super::report::Report;
use crate::bdf::Bdf;
use crate::domain::DomainXml;
use crate::domain::claims::Passed;
use crate::domain::read::{At, GuestAddress, Spot};
use crate::finding::Rule;
use crate::topology::vendor::VENDOR_ATI;
use crate::topology::{DeviceKind, PciDevice, Topology};
use std::collections::{BTreeMap, BTreeSet};

const TWICE: Rule = Rule::error("guest-address-twice", "two devices at one address of the guest");
/// The guest's firmware numbers the root's buses into the expander's range; QEMU then hides one of
/// them.
const LOW: Rule =
    Rule::error("pxb-bus-low", "an expander bus whose number the root's own buses reach");
const OVERLAP: Rule =
    Rule::error("pxb-bus-overlap", "expander buses whose bus numbers overlap or end above 255");
const NO_CELL: Rule = Rule::error("pxb-no-cell", "an expander bus of a cell that does not exist");
/// QEMU starts, the guest sees no switch.
const SWITCH: Rule = Rule::error(
    "switch-port-place",
    "a switch upstream port below something other than a root or downstream port, or the reverse",
);
/// CUDA fails on SXM GPUs that are integrated endpoints (gpuvm-hardware(7), GUEST PCIE TREE).
const GPU_FLAT: Rule =
    Rule::error("gpu-on-root-bus", "a passed GPU that is not below a port of its own");
/// Without a port: no PCIe link, no hot reset, no peer-to-peer.
const FLAT: Rule =
    Rule::warning("device-on-root-bus", "a passed device that is not below a port of its own");

/// Its drivers and its firmware look for it there (QEMU, docs/igd-assign.txt).
const IGD: Rule = Rule::warning(
    "intel-graphics-place",
    "the host's Intel graphics at another place of the guest than 00:02.0",
);

/// QEMU leaves PCIe atomics to functions that are alone (`vfio_pci_enable_rp_atomics`).
const ATOMICS: Rule = Rule::note(
    "gpu-without-atomics",
    "an AMD GPU that shares its guest slot with another function, so that QEMU offers it no PCIe \
     atomics, which ROCm needs",
);

/// NCCL prints CPU -1 for them and pins no threads (gpuvm-hardware(7), NCCL TOPOLOGY).
const NO_NODE: Rule = Rule::warning(
    "gpu-near-no-cell",
    "several passed GPUs and NICs of which the guest's kernel sees GPUs near no NUMA node",
);

/// NCCL looks a NIC up by device 00, function 0 of its bus (gpuvm-hardware(7), NCCL TOPOLOGY); the
/// verb `nccl` has no file for such a guest.
const NIC_PLACE: Rule = Rule::warning(
    "nic-place",
    "a passed NIC beside a GPU that is not at slot 0, function 0 of its guest bus",
);

/// nvidia-smi and NCCL distinguish one host bridge (PHB) from several of one node (NODE) by them.
const BRIDGES: Rule = Rule::warning(
    "host-bridge-differs",
    "passed GPUs below one expander bus that are below several host bridges, or the reverse",
);

/// The vendor of GPUs that run CUDA.
const NVIDIA: u16 = 0x10de;

/// The last bus number of PCI, hence also the limit of nested bridges.
pub(super) const LAST_BUS: u32 = 255;

/// Rules of this module.
pub const RULES: &[Rule] = &[
    TWICE, LOW, OVERLAP, NO_CELL, SWITCH, GPU_FLAT, FLAT, IGD, ATOMICS, NO_NODE, NIC_PLACE, BRIDGES,
];

/// Checks the guest's PCI tree.
pub fn check<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    addresses(guest, report);
    buses(guest, report);
    expander_cells(guest, report);
    for controller in guest.controllers.values() {
        switch_port(guest, controller, report);
    }
    for passed in &guest.passed {
        flat(guest, passed, topology, report);
    }
    near_no_cell(guest, topology, report);
    nic_places(guest, topology, report);
    bridges(guest, topology, report);
}

/// The passed functions that have no place of their own in the guest, or one that violates a rule;
/// `None` if the fault is not the place of a single function.
pub fn misplaced(domain: &DomainXml, topology: &Topology) -> Option<BTreeSet<Bdf>> {
    let guest = Guest::read(domain);
    let mut report = Report::default();
    check(&guest, topology, &mut report);
    let own = |passed: &&Passed<'_>| passed.is_hostdev();
    let unplaced = guest.passed.iter().filter(own).filter(|passed| passed.at.is_none());
    let mut found: BTreeSet<Bdf> = unplaced.map(|passed| passed.bdf.value).collect();
    for finding in report.finish() {
        let is_at = |passed: &&Passed<'_>| {
            let rest = finding.says.path.strip_prefix(&passed.device.path());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        found.insert(guest.passed.iter().filter(own).find(is_at)?.bdf.value);
    }
    Some(found)
}

/// Checks that no address is used twice.
fn addresses<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    let mut seen: BTreeMap<GuestAddress, Spot<'t>> = BTreeMap::new();
    for address in &guest.addresses {
        if let Some(first) = seen.get(&address.value) {
            let message =
                format!("address {} is that of {} too", address.value, owner(&first.path()));
            report.add(&TWICE, address.spot, message, "give one of them another bus or slot");
        } else {
            seen.insert(address.value, address.spot);
        }
    }
}

/// The element that an address belongs to.
fn owner(path: &str) -> &str {
    path.strip_suffix("/address").unwrap_or(path)
}

/// Whether a controller is a bridge that takes a bus number of its own.
fn takes_bus(controller: &Controller<'_>) -> bool {
    let root = matches!(controller.model.as_str(), "pcie-root" | "pci-root");
    !root && !is_expander(controller)
}

/// Whether a controller is an expander bus.
fn is_expander(controller: &Controller<'_>) -> bool {
    matches!(controller.model.as_str(), "pcie-expander-bus" | "pci-expander-bus")
}

/// The expander bus above a controller; `None` if it is below the root, or libvirt chooses.
fn expander_above(guest: &Guest<'_>, controller: &Controller<'_>) -> Option<u32> {
    let mut next = controller;
    for _ in 0..=LAST_BUS {
        next = guest.controller(next.address.as_ref()?.controller)?;
        if is_expander(next) {
            return Some(next.index);
        }
    }
    None
}

/// Checks the numbers of expander buses: each bridge below takes the next number; those below the
/// root start at 1.
fn buses<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    let mut below: BTreeMap<Option<u32>, u32> = BTreeMap::new();
    for controller in guest.controllers.values().filter(|controller| takes_bus(controller)) {
        *below.entry(expander_above(guest, controller)).or_default() += 1;
    }
    let count = |of: Option<u32>| below.get(&of).copied().unwrap_or(0);
    let mut expanders: Vec<(&Controller<'t>, &At<'t, u32>)> = guest
        .controllers
        .values()
        .filter(|controller| is_expander(controller))
        .filter_map(|controller| Some((controller, controller.bus_number.as_ref()?)))
        .collect();
    expanders.sort_by_key(|(_, number)| number.value);
    let root = count(None);
    for (position, (controller, number)) in expanders.iter().enumerate() {
        let first = number.value;
        let last = first.saturating_add(count(Some(controller.index)));
        if first <= root {
            let message = format!(
                "the expander bus starts at bus {first}, but the root's own buses are 0-{root}"
            );
            report.add(&LOW, number.spot, message, format!("take a busNr above {root}"));
        }
        let next = expanders.get(position + 1).map(|(_, next)| next.value);
        if last > LAST_BUS || next.is_some_and(|next| next <= last) {
            let limit = next.filter(|&next| next <= last).map_or_else(
                || "PCI ends at bus 255".to_owned(),
                |next| format!("the next expander bus starts at {next}"),
            );
            let message = format!("the expander bus needs buses {first}-{last}, but {limit}");
            report.add(&OVERLAP, number.spot, message, "move the busNr further apart");
        }
    }
}

/// Checks that expander buses belong to cells that exist.
fn expander_cells<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    for cell in guest.controllers.values().filter_map(|controller| controller.cell.as_ref()) {
        if !guest.cells.iter().any(|other| other.id == cell.value) {
            let message = format!("the bus belongs to cell {}, which does not exist", cell.value);
            let hint = "name a cell of <cpu><numa>, or leave <node> out";
            report.add(&NO_CELL, cell.spot, message, hint);
        }
    }
}

/// Advises where GPUs that share a cell are closer to each other in the guest than on the host.
/// Advice only: it works, and another bus would rename the guest's devices.
fn bridges<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let is_gpu = |passed: &&Passed<'t>| {
        topology.device(passed.bdf.value).is_some_and(|d| d.kind() == DeviceKind::Gpu)
    };
    let expander = |passed: &Passed<'t>| {
        let port = guest.controller(passed.at.as_ref()?.controller)?;
        expander_above(guest, port)
    };
    let placed: Vec<_> = guest
        .passed
        .iter()
        .filter(is_gpu)
        .filter_map(|passed| {
            Some((passed, expander(passed)?, topology.host_bridge(passed.bdf.value)?))
        })
        .collect();
    let cell = |bus: u32| guest.controller(bus).and_then(|c| c.cell.as_ref().map(|c| c.value));
    for (at, (passed, bus, bridge)) in placed.iter().enumerate() {
        let mut before = placed[..at].iter();
        let other = before.find(|(_, other_bus, other)| {
            cell(*bus) == cell(*other_bus) && (bus == other_bus) != (bridge == other)
        });
        let Some((other, other_bus, _)) = other else { continue };
        let (seen, there) = if bus == other_bus { ("PHB", "NODE") } else { ("NODE", "PHB") };
        let message = format!(
            "the guest sees GPUs {} and {} as {seen}, on the host they are {there}: `gpuvm tune {} \
             --pcie on` puts one expander bus for each host bridge",
            other.bdf.value,
            passed.bdf.value,
            crate::shell::word(&guest.name)
        );
        return report.note(&BRIDGES, passed.bdf.spot, message);
    }
}

/// The remedy where a NIC is at another place of its guest bus than NCCL expects. `named`: the
/// domain or file, as a command names it.
pub fn place_hint(named: &str) -> String {
    format!(
        "write slot='0x00' function='0x0' in its guest address; where it shares its bus, `gpuvm \
         tune {named} --pcie on` gives each a root port of its own first"
    )
}

/// Checks that NCCL finds the NICs of a guest with GPUs: each at slot 0, function 0 of its bus, or
/// a port of one that is.
fn nic_places<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let is = |passed: &Passed<'t>, kind: DeviceKind| {
        topology.device(passed.bdf.value).is_some_and(|device| device.kind() == kind)
    };
    if !guest.passed.iter().any(|passed| is(passed, DeviceKind::Gpu)) {
        return;
    }
    let nics = || guest.passed.iter().filter(|passed| is(passed, DeviceKind::Nic));
    let first: Vec<(u32, u32)> = nics()
        .filter_map(|passed| Some(passed.at.as_ref()?.value))
        .filter(|at| (at.slot, at.function) == (0, 0))
        .map(|at| (at.segment, at.controller))
        .collect();
    for passed in nics() {
        let Some(At { value: at, spot }) = &passed.at else { continue };
        let port = guest.controller(at.controller);
        let is_port = at.slot == 0 && first.contains(&(at.segment, at.controller));
        // One directly on a root bus has a finding of its own.
        if is_port || !port.is_some_and(takes_bus) || (at.slot, at.function) == (0, 0) {
            continue;
        }
        let message = format!(
            "NIC {} is at slot {:#04x}, function {:#x} of its guest bus, where NCCL does not find \
             it: the guest gets no topology file",
            passed.bdf.value, at.slot, at.function
        );
        report.add(&NIC_PLACE, *spot, message, place_hint(&crate::shell::word(&guest.name)));
    }
}

/// Checks that the ports of a switch hang where QEMU can use them.
fn switch_port<'t>(guest: &Guest<'t>, controller: &Controller<'t>, report: &mut Report<'t>) {
    let allowed: &[&str] = match controller.model.as_str() {
        "pcie-switch-upstream-port" => &["pcie-root-port", "pcie-switch-downstream-port"],
        "pcie-switch-downstream-port" => &["pcie-switch-upstream-port"],
        _ => return,
    };
    let Some(address) = &controller.address else { return };
    let above = guest.controller(address.controller).map(|above| above.model.as_str());
    // Controller 0 may be left out.
    let above = above.or((address.controller == 0).then_some("pcie-root"));
    if let Some(above) = above.filter(|above| !allowed.contains(above)) {
        let message =
            format!("a {} hangs on controller {}, a {above}", controller.model, address.controller);
        let hint = format!("put it below a {}", allowed.join(" or a "));
        report.add(&SWITCH, address.spot, message, hint);
    }
}

/// Checks that an AMD GPU is alone in its slot.
fn atomics<'t>(
    guest: &Guest<'t>,
    passed: &Passed<'t>,
    topology: &Topology,
    report: &mut Report<'t>,
) {
    let is_amds =
        |device: &PciDevice| device.kind() == DeviceKind::Gpu && device.vendor == VENDOR_ATI;
    let Some(at) = passed.at.as_ref().filter(|at| at.controller != 0) else { return };
    if !topology.device(passed.bdf.value).is_some_and(is_amds) {
        return;
    }
    let shares = |other: &&Passed<'_>| {
        other.at.as_ref().is_some_and(|place| {
            (place.controller, place.slot) == (at.controller, at.slot)
                && place.function != at.function
        })
    };
    if let Some(other) = guest.passed.iter().find(shares) {
        let message = format!(
            "{} shares its guest slot with {}, so the guest has no PCIe atomics for it; for ROCm give \
             the other function a root port of its own",
            passed.bdf.value, other.bdf.value
        );
        report.note(&ATOMICS, at.spot, message);
    }
}

/// Checks that a passed function is below a port.
fn flat<'t>(guest: &Guest<'t>, passed: &Passed<'t>, topology: &Topology, report: &mut Report<'t>) {
    let Some(at) = &passed.at else { return };
    if topology.device(passed.bdf.value).is_some_and(PciDevice::is_intel_graphics) {
        let place = at.value;
        if (place.controller, place.slot, place.function) != (0, 2, 0) {
            let message = format!(
                "{} is Intel graphics at {place} of the guest, and its drivers look for it at 00:02.0",
                passed.bdf.value
            );
            let hint = "write <address type='pci' bus='0x00' slot='0x02' function='0x0'/>";
            report.add(&IGD, at.spot, message, hint);
        }
        return;
    }
    atomics(guest, passed, topology, report);
    let written = guest.controller(at.controller).map(|bus| bus.model.as_str());
    // Controller 0 may be left out, and so may its model.
    let implied = at.controller == 0 && guest.is_pcie;
    let implied = implied.then_some("pcie-root");
    let Some(bus) = written.filter(|model| !model.is_empty()).or(implied) else { return };
    if !matches!(bus, "pcie-root" | "pcie-expander-bus") {
        return;
    }
    let device = topology.device(passed.bdf.value);
    let is_gpu = device.is_some_and(|device| device.kind() == DeviceKind::Gpu);
    // Functions built into the host's root complex have no port there either.
    if !is_gpu && device.is_some_and(|device| device.parent.is_none()) {
        return;
    }
    let rule = if is_gpu { &GPU_FLAT } else { &FLAT };
    let mut message =
        format!("{} sits right on controller {}, a {bus}", passed.bdf.value, at.controller);
    if is_gpu && topology.device(passed.bdf.value).is_some_and(|device| device.vendor == NVIDIA) {
        message += ": CUDA and NCCL in the guest find no link width and no NUMA node";
    } else if is_gpu {
        message += ": its driver in the guest finds no PCI Express link";
    }
    let hint = format!(
        "give it a pcie-root-port of its own, as `gpuvm tune {} --pcie on` does",
        crate::shell::word(&guest.name)
    );
    report.add(rule, at.spot, message, hint);
}

/// Checks that the GPUs and NICs of a guest with several cells have a node in the guest: a place
/// below a cell's expander bus.
fn near_no_cell<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let kind = |passed: &Passed<'t>| topology.device(passed.bdf.value).map(|d| d.kind());
    let is_gpu = |passed: &&Passed<'t>| kind(passed) == Some(DeviceKind::Gpu);
    let counts =
        |passed: &&Passed<'t>| matches!(kind(passed), Some(DeviceKind::Gpu | DeviceKind::Nic));
    // On one node all are near.
    let nodes = topology.nodes().iter().filter(|node| !node.pcpus.is_empty()).count();
    if !guest.is_pcie || nodes < 2 || guest.passed.iter().filter(counts).count() < 2 {
        return;
    }
    let is_far = |passed: &&Passed<'t>| {
        let port = passed.at.as_ref().and_then(|at| guest.controller(at.controller));
        // A device directly on a root bus has a finding of its own.
        let Some(port) = port.filter(|port| takes_bus(port)) else { return false };
        // In a guest with cells, a device of a node without its vCPUs is near none.
        expander_above(guest, port).is_none() || guest.cells.is_empty()
    };
    let far: Vec<_> = guest.passed.iter().filter(is_gpu).filter(is_far).collect();
    let [first, rest @ ..] = &far[..] else { return };
    let others = match rest.len() {
        0 => String::new(),
        count => format!(" and {}", crate::words::count(count, "other GPU")),
    };
    let message = format!(
        "{}{others} below no expander bus of a cell: NCCL in the guest finds no NUMA node",
        first.bdf.value
    );
    let cells = if guest.cells.is_empty() { " --cells on" } else { "" };
    let name = crate::shell::word(&guest.name);
    let hint = format!("`gpuvm tune {name}{cells} --pcie on` puts them near their own");
    report.add(&NO_NODE, first.bdf.spot, message, hint);
}
