//! Rules on the host's PCI functions that are passed to the guest.

use super::guest::Guest;
use super::report::Report;
use crate::bdf::Bdf;
use crate::cpuset::NodeSet;
use crate::domain::claims::Passed;
use crate::domain::read::At;
use crate::finding::Rule;
use crate::host_device::HostDevice;
use crate::topology::{
    Barred, DeviceKind, Isolated, PciDevice, Sriov, Topology, Unsupported, VfKind, Weakness,
    is_vfio,
};
use crate::words::count;
use std::collections::BTreeMap;

const ABSENT: Rule =
    Rule::error("hostdev-absent", "a passed PCI function that the host does not have");
const TWICE: Rule = Rule::error("hostdev-twice", "a PCI function that is passed twice");
const BRIDGE: Rule = Rule::error("hostdev-bridge", "a bridge that is passed");
/// The host would lose its root, its network route or a mounted file system.
const USED: Rule = Rule::error("hostdev-used-by-host", "a passed device that the host uses");
/// VFIO refuses a group while host drivers hold other functions of it.
const MATES: Rule = Rule::error(
    "iommu-group-split",
    "a passed function whose IOMMU group has others that stay with the host",
);
/// `plan`, `export` and `create` refuse it, too.
const UNSUPPORTED: Rule =
    Rule::error("hostdev-unsupported", "a passed function that is not supported yet");
/// The kernel attaches it to no guest, or does not enable it.
const BARRED: Rule = Rule::error(
    "hostdev-barred",
    "a passed function that no guest can get: by the IOMMU, by the firmware, or without addresses",
);
/// Every transfer crosses the link between packages.
const NODE: Rule =
    Rule::warning("device-off-node", "a passed device on a node that the guest has no pcpus on");
/// The firmware would size the BAR window from QEMU's default of 40 address bits.
const PHYSICAL: Rule = Rule::warning(
    "maxphysaddr-missing",
    "large BARs in a guest that does not see the host's address bits",
);
/// VFIO cannot map addresses above.
const LIMIT: Rule = Rule::warning(
    "maxphysaddr-over-iommu",
    "a guest with passed devices that sees more address bits than the IOMMU has",
);
/// SeaBIOS has a fixed window for 64-bit BARs, and leaves BARs that do not fit without an address.
const BIOS: Rule = Rule::warning(
    "bios-huge-bars",
    "passed devices whose BARs need 512 GiB of addresses in a guest that starts with BIOS firmware",
);
/// libvirt would bind it to vfio-pci at each start, where nothing serves it.
const MANAGED: Rule =
    Rule::error("vgpu-managed", "a vGPU that libvirt would take from the vendor's driver");
/// VFIO pins all memory, so a balloon can only do harm.
const BALLOON: Rule =
    Rule::warning("balloon-with-hostdev", "a memory balloon beside passed devices");

/// Groups split by a kernel override say nothing about the hardware's isolation.
const ACS: Rule =
    Rule::warning("acs-override", "passed devices in IOMMU groups split by pcie_acs_override=");
/// Groups say nothing about ACS control that was cleared after they were formed.
const OPEN_PORTS: Rule =
    Rule::warning("acs-off", "passed devices below ports that do not keep IOMMU groups apart");
/// Without interrupt remapping a device can raise any interrupt by message.
const INTERRUPTS: Rule =
    Rule::warning("unsafe-interrupts", "passed devices while VFIO allows unsafe interrupts");
/// Without an IOMMU a device can access all memory.
const NO_IOMMU: Rule =
    Rule::warning("no-iommu", "a passed function that no IOMMU keeps from the host's memory");

/// IDs of the rules that repeat a plan's remarks on the IOMMU.
pub const ISOLATION_IDS: [&str; 4] = [ACS.id, OPEN_PORTS.id, INTERRUPTS.id, NO_IOMMU.id];
/// ID of the rule on ports that do not redirect.
pub const OPEN_PORTS_ID: &str = OPEN_PORTS.id;

/// Rules of this module.
pub const RULES: &[Rule] = &[
    ABSENT,
    TWICE,
    BRIDGE,
    USED,
    MATES,
    UNSUPPORTED,
    BARRED,
    NODE,
    PHYSICAL,
    LIMIT,
    BIOS,
    MANAGED,
    BALLOON,
    ACS,
    OPEN_PORTS,
    INTERRUPTS,
    NO_IOMMU,
    UNREAD,
];

/// It may be a device that another guest gets, too.
const UNREAD: Rule = Rule::warning(
    "argument-unread",
    "an argument of QEMU whose device cannot be determined from the definition",
);

/// A BAR of this size or more does not fit below 4 GiB.
const LARGE_BAR: u64 = 4 << 30;
/// The addresses that SeaBIOS has for 64-bit BARs (`BUILD_PCIMEM64_START` to `BUILD_PCIMEM64_END`).
const BIOS_WINDOW: u64 = 512 << 30;

/// Checks passed-through functions.
pub fn check<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let known = !topology.devices().is_empty();
    let nodes = nodes_of(guest, topology);
    let mut seen = BTreeMap::new();
    for passed in &guest.passed {
        let bdf = passed.bdf.value;
        if let Some(first) = seen.insert(bdf, passed.device) {
            let message = format!("{bdf} is passed by {} already", first.path());
            report.add(&TWICE, passed.bdf.spot, message, "pass it once");
            continue;
        }
        match topology.device(bdf) {
            None if known => {
                let message = format!("the host has no PCI function {bdf}");
                report.add(
                    &ABSENT,
                    passed.bdf.spot,
                    message,
                    "`gpuvm host show` lists what it has",
                );
            }
            None => {}
            Some(device) => {
                used(passed, device, topology, report);
                managed(passed, topology, report);
                if let Some(why) = topology.unsupported(device).filter(|why| !may_work(why)) {
                    let message = format!("{bdf} is {why}");
                    report.add(&UNSUPPORTED, passed.bdf.spot, message, instead(&why));
                }
                if let Some(why) = topology.barred(device) {
                    let message = format!("{bdf} {why}");
                    report.add(&BARRED, passed.bdf.spot, message, why.hint());
                }
                mates(guest, passed, device, topology, report);
                off_node(guest, passed, device, &nodes, topology, report);
            }
        }
    }
    for unread in &guest.unread {
        let hint = "pass devices by <hostdev>, which libvirt binds and gpuvm can count";
        report.add(&UNREAD, unread.spot, unread.message.clone(), hint);
    }
    physical(guest, topology, report);
    isolation(guest, topology, report);
    let is_mdev = |one: &At<'_, HostDevice>| matches!(one.value, HostDevice::Mediated(_));
    let is_pinned = !guest.passed.is_empty() || guest.host_devices.iter().any(is_mdev);
    if let Some(balloon) = guest.balloon.filter(|_| is_pinned) {
        let message = "libvirt gives the guest a memory balloon, but passed devices pin its memory";
        report.add(&BALLOON, balloon, message, "write <memballoon model='none'/>");
    }
}

/// Whether a function may work once the guest starts: a slot for a vGPU gets its type by then.
fn may_work(why: &Unsupported) -> bool {
    matches!(why, Unsupported::VgpuSlot(_, VfKind::FreeSlot | VfKind::Vgpu))
}

/// What to give the guest in place of an unsupported function.
fn instead(why: &Unsupported) -> &'static str {
    match why {
        Unsupported::VgpuSlot(_, VfKind::MdevParent) => {
            "pass a mediated device of it: `gpuvm vgpu list` shows the types"
        }
        Unsupported::VgpuSlot(..) => {
            "`gpuvm host doctor` says how it gets a vGPU type, or its card becomes a whole GPU again"
        }
        Unsupported::Coherent(_) => "`gpuvm host doctor` shows what the host lacks for it",
        Unsupported::Gb10 => "leave it to the host",
        Unsupported::Domain => "turn VMD off in the firmware's setup, or pass another device",
    }
}

/// Returns the nodes of the pcpus that vCPUs are pinned to; without pins, those of the bound
/// memory.
fn nodes_of(guest: &Guest<'_>, topology: &Topology) -> NodeSet {
    let pins = super::cpu::live_pins(guest).map(|pin| &pin.cpuset).chain(&guest.default_pin);
    let pcpus = pins.flat_map(|cpuset| cpuset.iter());
    let nodes: NodeSet = pcpus.filter_map(|p| Some(topology.core_of(p)?.node)).collect();
    if nodes.is_empty() {
        return guest.bindings.iter().fold(nodes, |all, binding| all.or(&binding.nodes));
    }
    nodes
}

/// Checks that the host can do without a device.
fn used<'t>(passed: &Passed<'t>, device: &PciDevice, topology: &Topology, report: &mut Report<'t>) {
    let bdf = device.bdf;
    if matches!(device.kind(), DeviceKind::Bridge | DeviceKind::HostBridge) {
        let message = format!("{bdf} is a bridge, and only endpoints can be passed");
        report.add(&BRIDGE, passed.bdf.spot, message, "pass the endpoints below it");
        return;
    }
    if let Some(reason) = uses(device, topology).first() {
        let message = format!("the host uses {bdf}: {reason}");
        report.add(&USED, passed.bdf.spot, message, "free it first, or pass another device");
    }
}

/// Checks that a vGPU stays on the vendor's driver.
fn managed<'t>(passed: &Passed<'t>, topology: &Topology, report: &mut Report<'t>) {
    let bdf = passed.bdf.value;
    let managed = passed.device.element().attr("managed");
    if topology.is_vgpu_function(bdf) && managed.is_some_and(|managed| managed == "yes") {
        let message =
            format!("libvirt would bind vGPU {bdf} to vfio-pci, and VFIO could not open it");
        report.add(&MANAGED, passed.device, message, "write managed='no'");
    }
}

/// Returns the host's uses of a device.
fn uses(device: &PciDevice, topology: &Topology) -> Vec<String> {
    let mut reasons = Vec::new();
    for drive in topology.parts().drives.iter().filter(|d| d.bdf == Some(device.bdf)) {
        reasons.extend(drive.uses().map(|(name, used)| used.says(name)));
    }
    reasons.extend(device.net.iter().flat_map(|net| net.used_by.iter().cloned()));
    // They end once its driver lets it go, whoever has them.
    let is_away = device.driver.as_deref().is_some_and(is_vfio);
    match device.sriov {
        Some(Sriov::Pf { enabled: enabled @ 1.., .. }) if !is_away => {
            reasons.push(format!("{} enabled", count(enabled, "virtual function")));
        }
        _ => {}
    }
    if device.mediated > 0 {
        reasons.push(count(device.mediated, "mediated device"));
    }
    reasons
}

/// Checks that the host keeps no other function of the IOMMU group. Bridges go along by themselves.
fn mates<'t>(
    guest: &Guest<'t>,
    passed: &Passed<'t>,
    device: &PciDevice,
    topology: &Topology,
    report: &mut Report<'t>,
) {
    let Some(group) = topology.iommu_group(device.bdf) else { return };
    let left = group
        .members
        .iter()
        .filter(|&&member| !guest.passed.iter().any(|other| other.bdf.value == member))
        .filter_map(|&member| topology.device(member))
        .filter(|mate| !matches!(mate.kind(), DeviceKind::Bridge | DeviceKind::HostBridge));
    // VFIO takes a group whose other functions have no driver, or its own. A record without any
    // driver does not show this.
    let tells = topology.devices().iter().any(|device| device.driver.is_some());
    let is_free = |mate: &&PciDevice| tells && mate.driver.as_deref().is_none_or(is_vfio);
    let (free, used): (Vec<&PciDevice>, Vec<_>) = left.partition(is_free);
    let names = |all: &[&PciDevice]| {
        let all: Vec<String> = all.iter().map(|mate| mate.bdf.to_string()).collect();
        all.join(", ")
    };
    let together = |with: String| {
        let (bdf, group) = (device.bdf, group.number);
        format!(
            "{bdf} is in IOMMU group {group} together with {with}, which the guest does not get"
        )
    };
    if !used.is_empty() {
        let hint = "pass the whole group, or none of it";
        report.add(&MATES, passed.bdf.spot, together(names(&used)), hint);
    } else if !free.is_empty() {
        let message =
            together(names(&free)) + ": no driver of the host has it, so the guest starts";
        report.note(&MATES, passed.bdf.spot, message);
    }
}

/// Checks that a device is on a node of the guest. NVSwitches serve a whole board, and a node
/// without pcpus has no vCPUs to be near to.
fn off_node<'t>(
    guest: &Guest<'t>,
    passed: &Passed<'t>,
    device: &PciDevice,
    nodes: &NodeSet,
    topology: &Topology,
    report: &mut Report<'t>,
) {
    let Some(node) = device.node.filter(|node| !nodes.is_empty() && !nodes.contains(*node)) else {
        return;
    };
    let has_pcpus = topology.node(node).is_some_and(|node| !node.pcpus.is_empty());
    if has_pcpus && device.kind() != DeviceKind::NvSwitch {
        let message =
            format!("{} is on node {node}, the guest's vcpus are on node {nodes}", device.bdf);
        // Without a requirement on how near NICs and drives are, the planner took the nearest free
        // ones.
        let is_gpu = device.kind() == DeviceKind::Gpu;
        if let Some(asked) = guest.asked.as_ref().filter(|asked| asked.allow.remote || !is_gpu) {
            let why =
                if asked.allow.remote { "as was allowed" } else { "which its request allows" };
            report.note(&NODE, passed.bdf.spot, format!("{message}, {why}"));
            return;
        }
        let hint = format!("pin the vcpus to node {node}, or pass a device of node {nodes}");
        report.add(&NODE, passed.bdf.spot, message, hint);
    }
}

/// Checks that a guest with large BARs has enough physical address bits. The firmware's window is
/// an eighth of the address space (gpuvm-hardware(7), BARS AND THE MMIO WINDOW).
fn physical<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    // An emulated CPU has the address bits of its model, whatever the host has.
    let is_foreign =
        topology.machine().architecture.as_deref().is_some_and(|arch| arch != "x86_64");
    if is_foreign || !guest.is_kvm {
        return;
    }
    over_iommu(guest, topology, report);
    bios(guest, topology, report);
    let devices = guest.passed.iter().filter_map(|passed| topology.device(passed.bdf.value));
    let large = |device: &PciDevice| device.bars.iter().map(|bar| bar.bytes).max().unwrap_or(0);
    let sizes: Vec<u64> = devices.map(large).filter(|&bytes| bytes >= LARGE_BAR).collect();
    if sizes.is_empty() {
        return;
    }
    // A port takes twice its largest BAR, since the small BARs beside it push the next port to the
    // next boundary.
    let window = sizes.iter().fold(0u64, |all, size| all.saturating_add(size.saturating_mul(2)));
    let needed = window.checked_next_power_of_two().map_or(64, |window| window.ilog2() + 3);
    let enough = match guest.cpu.as_ref().map(|cpu| (cpu.mode.as_str(), cpu.address_bits)) {
        Some((_, Some(Some(bits)))) => bits >= needed,
        // QEMU passes the host's own bits on with the host's CPU, unless others are named
        // (`host-phys-bits` of its CPU model `host`).
        Some(("host-passthrough" | "maximum", None | Some(None))) => true,
        _ => false,
    };
    if !enough {
        let spot = guest.cpu.as_ref().map_or(guest.spot, |cpu| cpu.spot);
        let message = format!(
            "BARs of {} are up to {} GiB large, which needs {needed} address bits",
            count(sizes.len(), "passed device"),
            sizes.iter().max().unwrap_or(&0) >> 30
        );
        let hint = "write <cpu mode='host-passthrough'><maxphysaddr mode='passthrough'/></cpu>";
        report.add(&PHYSICAL, spot, message, hint);
    }
}

/// Checks that a guest with huge BARs has firmware that gives them addresses.
fn bios<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    if !guest.is_bios {
        return;
    }
    let largest = |passed: &Passed<'_>| {
        let bars = topology.device(passed.bdf.value).map_or(&[][..], |device| &device.bars);
        bars.iter().map(|bar| bar.bytes).max().filter(|bytes| *bytes >= LARGE_BAR)
    };
    let large = guest.passed.iter().filter_map(|passed| Some((passed, largest(passed)?)));
    let large: Vec<(&Passed<'_>, u64)> = large.collect();
    // A port takes twice its largest BAR, as in `physical`.
    let window =
        large.iter().fold(0u64, |all, (_, bytes)| all.saturating_add(bytes.saturating_mul(2)));
    let Some((first, _)) = large.first().filter(|_| window >= BIOS_WINDOW) else { return };
    let message = format!(
        "the BARs of {} and what is passed with it need {} GiB of addresses, and SeaBIOS has {} GiB unless it is new",
        first.bdf.value,
        window >> 30,
        BIOS_WINDOW >> 30
    );
    let hint = "UEFI makes room for it: <os firmware='efi'>; the installed system must be one that \
                starts with UEFI";
    report.add(&BIOS, first.bdf.spot, message, hint);
}

/// Checks that a guest sees no more address bits than the IOMMU has: its firmware places BARs at
/// the top of the addresses.
fn over_iommu<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let machine = topology.machine();
    let (Some(most), Some(cpu)) = (machine.address_limit(), &guest.cpu) else { return };
    let seen = match (cpu.mode.as_str(), cpu.address_bits) {
        (_, Some(Some(bits))) => Some(bits),
        ("host-passthrough" | "maximum", _) | (_, Some(None)) => {
            let bits = machine.physical_address_bits.map(u32::from);
            bits.map(|bits| cpu.address_limit.map_or(bits, |limit| bits.min(limit)))
        }
        _ => None,
    };
    if let Some(seen) = seen.filter(|seen| *seen > u32::from(most) && !guest.passed.is_empty()) {
        let message = format!(
            "the guest's CPU has {seen} address bits and the IOMMU {most}: BARs and memory above \
             these cannot be mapped for devices"
        );
        let hint = format!("write <maxphysaddr mode='passthrough' limit='{most}'/> into <cpu>");
        report.add(&LIMIT, cpu.spot, message, hint);
    }
}

/// Checks that the IOMMU isolates passed-through devices; if the record does not contain it,
/// [`super::unchecked`] lists it.
fn isolation<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let Some(first) = guest.passed.first() else { return };
    let there = |passed: &&Passed<'t>| topology.device(passed.bdf.value).is_some();
    let functions: Vec<Bdf> =
        guest.passed.iter().filter(there).map(|passed| passed.bdf.value).collect();
    let Isolated::No(weak) = topology.isolates(&functions) else { return };
    let is_barred = |bdf: &Bdf| {
        let barred = topology.device(*bdf).and_then(|device| topology.barred(device));
        barred == Some(Barred::IommuOff)
    };
    for weakness in weak {
        let rule = match &weakness {
            Weakness::AcsOverride(_) => &ACS,
            Weakness::OpenPorts(_) => &OPEN_PORTS,
            Weakness::UnsafeInterrupts => &INTERRUPTS,
            // Said of each function already.
            Weakness::NoIommu(all) if all.iter().any(is_barred) => continue,
            Weakness::NoIommu(_) => &NO_IOMMU,
        };
        report.add(rule, first.bdf.spot, weakness.says(), weakness.hint());
    }
}
