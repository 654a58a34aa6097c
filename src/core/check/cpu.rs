//! Rules on pins and on the CPU that the guest sees.

use super::guest::Guest;
use super::report::Report;
use crate::cpuset::{CpuSet, NodeSet, PcpuId};
use crate::domain::claims::Pin;
use crate::domain::read::At;
use crate::domain::setting::remapping_elements;
use crate::finding::Rule;
use crate::placement::{
    GuestCache, GuestTopology, MOST_VCPUS, Occupancy, has_own_pcpus, idle_cores, shows_caches,
    with_caches,
};
use crate::topology::Topology;
use crate::versions::Versions;
use std::collections::{BTreeMap, BTreeSet};

/// libvirt drops such a pin silently.
const NO_VCPU: Rule = Rule::error("vcpupin-no-vcpu", "a vcpupin for a vCPU that does not exist");
/// The affinity call fails, or QEMU's threads run elsewhere.
const ABSENT: Rule = Rule::error("pin-absent-pcpu", "a pin to a pcpu that the host does not have");
/// Like an absent pcpu until it is switched on.
const OFFLINE: Rule = Rule::error("pin-offline-pcpu", "a pin to a pcpu that is offline");
/// The kernel refuses such an affinity, and libvirt then ends the guest's start.
const CONFINED: Rule =
    Rule::error("pin-outside-slice", "a pin to pcpus that machine.slice keeps from guests");
/// The vCPUs take turns on a pcpu while the guest assumes that they run in parallel.
const CROWDED: Rule = Rule::error("pcpu-twice", "more vCPUs pinned to pcpus than there are");
const PRODUCT: Rule = Rule::error(
    "topology-product",
    "sockets x dies x clusters x cores x threads that are not the vCPUs",
);
/// The guest's scheduler takes unrelated vCPUs for siblings.
const PAIRS: Rule = Rule::warning(
    "vcpu-pair-split",
    "threads of one guest core that are pinned to several host cores",
);
/// Without topoext a guest on AMD ignores `threads` (it sees cores only).
const TOPOEXT: Rule =
    Rule::warning("topoext-missing", "guest threads on an AMD host without the feature topoext");
/// Emulator work interrupts the guest's own CPU.
const EMULATOR: Rule = Rule::warning(
    "emulator-on-vcpu-core",
    "emulator or I/O threads on a core of the guest's vCPUs",
);

/// The others run on any pcpu, and disturb those that are pinned.
const PARTLY: Rule = Rule::warning(
    "vcpu-partly-pinned",
    "vCPUs without a pin beside pinned ones, whose pcpus they may run on",
);
/// The kernel does not move threads between them: all stay on the first.
const ISOLATED: Rule = Rule::warning(
    "pin-over-isolated",
    "vCPUs that may run on several isolated pcpus, between which the kernel does not move them",
);
/// Spinlocks in the guest wait for vCPUs that another thread has preempted.
const DEDICATED: Rule = Rule::warning(
    "hint-dedicated-shared",
    "the hint that vCPUs have their pcpus to themselves, where they do not",
);
const CACHE_MODE: Rule =
    Rule::error("cpu-cache-mode", "the host's caches for a guest whose CPU is not the host's");
/// The guest's scheduler and its libraries distribute work by caches that do not exist.
const CACHES: Rule =
    Rule::warning("guest-caches", "a guest that sees other L3 caches than its vCPUs are below");

/// libvirt before the required version refuses it at define; Linux leaves the other vCPUs offline
/// where KVM offers no wider interrupt destinations (`try_to_enable_x2apic` in Linux).
const REMAPPING: Rule = Rule::warning(
    "vcpus-without-remapping",
    "more than 255 vCPUs on x86 without an IOMMU that remaps interrupts, or without what that \
     needs",
);
/// QEMU exits at start (`vtd_machine_done_notify_one` in its `intel_iommu.c`), or when the guest
/// maps DMA (`amdvi_iommu_notify_flag_changed` in its `amd_iommu.c`).
const CACHING: Rule = Rule::error(
    "iommu-without-caching",
    "passed-through functions beside an Intel IOMMU without caching mode, or AMD's",
);

/// Rules of this module.
pub const RULES: &[Rule] = &[
    NO_VCPU, ABSENT, OFFLINE, CONFINED, CROWDED, PRODUCT, PAIRS, TOPOEXT, EMULATOR, DEDICATED,
    CACHE_MODE, CACHES, REMAPPING, CACHING, ISOLATED, PARTLY,
];

/// Checks pins and CPU.
pub fn check<'t>(
    guest: &Guest<'t>,
    topology: &Topology,
    others: &Occupancy,
    versions: &Versions,
    report: &mut Report<'t>,
) {
    pins_exist(guest, topology, report);
    crowded(guest, report);
    product(guest, report);
    pairs(guest, topology, report);
    topoext(guest, topology, report);
    emulator(guest, topology, others, report);
    dedicated(guest, others, report);
    caches(guest, topology, report);
    interrupts(guest, versions, report);
    isolated(guest, topology, report);
    partly(guest, report);
}

/// Checks that all vCPUs are pinned where some are.
fn partly<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    let vcpus = guest.vcpus.value;
    let pinned: BTreeSet<u32> =
        live_pins(guest).map(|pin| pin.of.value).filter(|vcpu| *vcpu < vcpus).collect();
    let Some(first) = live_pins(guest).next() else { return };
    let left = vcpus.saturating_sub(u32::try_from(pinned.len()).unwrap_or(u32::MAX));
    // With a common pin they are elsewhere, if its author chose so; and a pin may be there that
    // cannot be read.
    let unread = guest.faults.iter().any(|fault| fault.spot.path().contains("/vcpupin"));
    if pinned.is_empty() || left == 0 || guest.default_pin.is_some() || unread {
        return;
    }
    let rest: CpuSet = (0..vcpus).filter(|vcpu| !pinned.contains(vcpu)).map(PcpuId).collect();
    let message = format!(
        "{} of {vcpus} vCPUs {} no pin ({rest}), and may run on the pcpus of the pinned ones",
        left,
        if left == 1 { "has" } else { "have" }
    );
    let name = crate::shell::word(&guest.name);
    report.add(&PARTLY, first.of.spot, message, format!("`gpuvm tune {name} --pins on`"));
}

/// Checks that no vCPU may run on several isolated pcpus and on no others.
fn isolated<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let isolated = &topology.parts().isolated;
    let own = live_pins(guest).map(|pin| (format!("vCPU {}", pin.of.value), &pin.cpuset));
    let is_left = u32::try_from(live_pins(guest).count()).is_ok_and(|own| own < guest.vcpus.value);
    let common = guest.default_pin.iter().filter(|_| is_left);
    let common = common.map(|pin| ("each vCPU without a pin".to_owned(), pin));
    let mut over =
        own.chain(common).filter(|(_, pin)| pin.value.len() > 1 && pin.value.is_subset(isolated));
    if let Some((first, pin)) = over.next() {
        let others = match over.count() {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let message = format!(
            "{first}{others} may run on isolated pcpus {}, between which the kernel moves no \
             thread: each stays where it starts",
            pin.value
        );
        let hint = "pin each vCPU to one pcpu";
        report.add(&ISOLATED, pin.spot, message, hint);
    }
}

/// Checks that interrupts reach all vCPUs and that the IOMMU allows passthrough.
fn interrupts<'t>(guest: &Guest<'t>, versions: &Versions, report: &mut Report<'t>) {
    let vcpus = &guest.vcpus;
    if guest.is_x86 && vcpus.value > MOST_VCPUS && !guest.remaps_interrupts {
        let message =
            format!("{} vCPUs, and interrupts reach {MOST_VCPUS} unless remapped", vcpus.value);
        let [iommu, ioapic] = remapping_elements(versions.translates_dma());
        let hint = format!("on machine q35 write {iommu} in <devices>, and {ioapic} in <features>");
        report.add(&REMAPPING, vcpus.spot, message, hint);
    }
    if let Some(iommu) = &guest.silent_iommu
        && !guest.passed.is_empty()
    {
        report.add(&CACHING, iommu.spot, iommu.message, iommu.hint);
    }
}

/// Pins of vCPUs, vCPU 0 first; an empty set means no pin.
pub fn pins_by_vcpu(guest: &Guest<'_>) -> Vec<CpuSet> {
    let mut pins: Vec<CpuSet> = Vec::new();
    for pin in live_pins(guest) {
        let at = pin.of.value as usize;
        pins.resize(pins.len().max(at + 1), CpuSet::new());
        pins[at].clone_from(&pin.cpuset.value);
    }
    pins.resize(guest.vcpus.value.min(MOST_JUDGED) as usize, CpuSet::new());
    pins
}

/// The most vCPUs whose pins are judged together; QEMU's limit.
const MOST_JUDGED: u32 = 4096;

/// Checks that a guest promised dedicated pcpus has them to itself.
fn dedicated<'t>(guest: &Guest<'t>, others: &Occupancy, report: &mut Report<'t>) {
    let Some(spot) = guest.dedicated else { return };
    let pins = pins_by_vcpu(guest);
    let all = pins.iter().fold(CpuSet::new(), |all, pin| all.or(pin));
    let name = |held: &crate::placement::Held| {
        // A thread that floats over several pcpus occupies none of them.
        let on = |pin: &CpuSet| pin.len() == 1 && pin.intersects(&all);
        let shares = held.active && held.vcpu_pins.iter().any(on);
        shares.then(|| held.domain.clone())
    };
    let message = match others.domains.iter().find_map(name) {
        Some(other) => format!("domain `{other}` has vCPUs on the same pcpus"),
        None if has_own_pcpus(&pins) => return,
        None => "not each vCPU is pinned to a pcpu of its own".to_owned(),
    };
    let hint = "remove <hint-dedicated>, or pin each vCPU to a pcpu that nobody else has";
    report.add(&DEDICATED, spot, message, hint);
}

/// Returns where a guest's cache leaves come from; QEMU by default.
pub fn shown_cache(cpu: &super::guest::Cpu<'_>) -> GuestCache {
    let is_passed = cpu.cache.as_ref().is_some_and(|(_, mode)| mode == "passthrough");
    if is_passed { GuestCache::Passthrough } else { GuestCache::Emulate }
}

/// Returns the CPU topology shown to a guest if it can be compared with the host's caches: on KVM
/// with the host's CPU, without clusters, and with as many vCPUs as the guest has.
pub fn comparable_shape(guest: &Guest<'_>) -> Option<GuestTopology> {
    let cpu = guest.cpu.as_ref().filter(|cpu| cpu.mode == "host-passthrough")?;
    let shown = cpu.topology.as_ref().filter(|_| guest.is_kvm && guest.is_x86)?;
    let [sockets, dies, clusters, cores, threads] = shown.value;
    let product = shown.value.iter().try_fold(1u32, |all, part| all.checked_mul(*part));
    let fits = clusters == 1 && product == Some(guest.vcpus.value);
    fits.then_some(GuestTopology { sockets, dies, cores, threads })
}

/// Checks the caches that the guest sees.
fn caches<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let Some(cpu) = &guest.cpu else { return };
    let is_hosts = cpu.mode == "host-passthrough";
    let passes = cpu.cache.as_ref().filter(|(_, mode)| mode == "passthrough");
    if let Some((spot, _)) = passes.filter(|_| !is_hosts && cpu.mode != "maximum") {
        let message = format!("the host's caches with CPU mode `{}`", cpu.mode);
        let hint = "write <cpu mode='host-passthrough'>, or <cache level='3' mode='emulate'/>";
        return report.add(&CACHE_MODE, *spot, message, hint);
    }
    let (Some(shape), Some(shown)) = (comparable_shape(guest), &cpu.topology) else { return };
    let cache = shown_cache(cpu);
    let pins = pins_by_vcpu(guest);
    if shows_caches(topology, &pins, shape, cache) != Some(false) {
        return;
    }
    let all = GuestTopology { dies: 1, cores: shape.dies * shape.cores, ..shape };
    // If no topology would show the caches, the guest is as good as it can be.
    let Some((better, mode)) = with_caches(topology, &pins, all) else { return };
    let message = "the guest sees other L3 caches than those that its vCPUs are below".to_owned();
    let hint = format!(
        "write dies='{}' cores='{}' and <cache{} mode='{}'/>, as `gpuvm tune {} --topology on \
         --cpu-cache on` does",
        better.dies,
        better.cores,
        if mode == GuestCache::Emulate { " level='3'" } else { "" },
        mode.as_str(),
        crate::shell::word(&guest.name)
    );
    // Versions that did not know caches wrote no `<cache>`; such a guest runs as it was requested.
    if cpu.cache.is_none() && shape.dies == 1 {
        return report.note(&CACHES, shown.spot, format!("{message}; {hint}"));
    }
    report.add(&CACHES, shown.spot, message, hint);
}

/// Checks that pinned vCPUs and pcpus are there.
fn pins_exist<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let count = guest.vcpus.value;
    for pin in guest.vcpu_pins.iter().filter(|pin| pin.of.value >= count) {
        let message = format!("vcpu {} is pinned, but the guest has {count} vcpus", pin.of.value);
        let hint = match count.checked_sub(1) {
            Some(last) => format!("remove the vcpupin, or pin one of the vcpus 0-{last}"),
            None => "remove the vcpupin".to_owned(),
        };
        report.add(&NO_VCPU, pin.of.spot, message, hint);
    }
    let (online, offline) = (topology.pcpus(), &topology.parts().offline);
    for (what, cpuset) in all_pins(guest) {
        let missing = cpuset.minus(&online);
        let absent = missing.minus(offline);
        if !absent.is_empty() {
            let message =
                format!("{what} is pinned to pcpu {absent}, which the host does not have");
            report.add(&ABSENT, cpuset.spot, message, format!("the host's pcpus are {online}"));
        }
        let off = missing.and(offline);
        if !off.is_empty() {
            let message = format!("{what} is pinned to pcpu {off}, which is offline");
            let hint = format!("the host's online pcpus are {online}");
            report.add(&OFFLINE, cpuset.spot, message, hint);
        }
        if let Some(open) = topology.confined_to()
            && !missing.intersects(&cpuset.value)
            && !open.intersects(&cpuset.value)
        {
            let message = format!(
                "{what} is pinned to pcpu {}, which machine.slice keeps from guests",
                cpuset.value
            );
            let hint = format!(
                "pin to pcpus {open}, or `systemctl set-property machine.slice AllowedCPUs=` adds \
                 others"
            );
            report.add(&CONFINED, cpuset.spot, message, hint);
        }
    }
}

/// Every pin with the name of the thread it pins.
fn all_pins<'g, 't>(guest: &'g Guest<'t>) -> Vec<(String, &'g At<'t, CpuSet>)> {
    let mut pins: Vec<_> =
        guest.vcpu_pins.iter().map(|p| (format!("vcpu {}", p.of.value), &p.cpuset)).collect();
    pins.extend(guest.default_pin.iter().map(|pin| ("every thread".to_owned(), pin)));
    pins.extend(helper_pins(guest));
    pins
}

/// The pins of the emulator and of the I/O threads.
pub fn helper_pins<'g, 't>(guest: &'g Guest<'t>) -> Vec<(String, &'g At<'t, CpuSet>)> {
    let emulator = guest.emulator_pin.iter().map(|pin| ("the emulator".to_owned(), pin));
    let threads = guest.iothread_pins.iter();
    emulator.chain(threads.map(|p| (format!("iothread {}", p.of.value), &p.cpuset))).collect()
}

/// Pins of vCPUs that exist.
pub fn live_pins<'g, 't>(guest: &'g Guest<'t>) -> impl Iterator<Item = &'g Pin<'t>> {
    guest.vcpu_pins.iter().filter(|pin| pin.of.value < guest.vcpus.value)
}

/// Checks that no set of pcpus carries more vCPUs than it has pcpus.
fn crowded<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    let mut users: BTreeMap<&CpuSet, Vec<&Pin<'t>>> = BTreeMap::new();
    for pin in live_pins(guest) {
        users.entry(&pin.cpuset.value).or_default().push(pin);
    }
    // A subset starts with a pcpu of the larger set.
    let mut by_first: BTreeMap<Option<PcpuId>, Vec<&CpuSet>> = BTreeMap::new();
    for set in users.keys() {
        by_first.entry(set.first()).or_default().push(set);
    }
    for (&set, own) in &users {
        let firsts = set.iter().filter(|_| set.len() > 1);
        let near = firsts.filter_map(|pcpu| by_first.get(&Some(pcpu))).flatten();
        let within = near.filter(|&&other| other != set && other.is_subset(set));
        let inside: usize = within.filter_map(|other| users.get(other)).map(Vec::len).sum();
        let (wanted, there) = (own.len() + inside, set.len());
        if wanted <= there {
            continue;
        }
        let Some(last) = own.last() else { continue };
        let names: Vec<String> = own.iter().take(4).map(|p| p.of.value.to_string()).collect();
        let more = if own.len() > 4 { " and more" } else { "" };
        let message = if there == 1 && inside == 0 {
            format!("vcpus {}{more} are all pinned to pcpu {set}", names.join(", "))
        } else {
            format!("{wanted} vcpus are pinned within the {there} pcpus {set}")
        };
        report.add(&CROWDED, last.cpuset.spot, message, "give every vcpu a pcpu of its own");
    }
}

/// Checks that the guest's CPU topology multiplies out.
fn product<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    let Some(topology) = guest.cpu.as_ref().and_then(|cpu| cpu.topology.as_ref()) else { return };
    let product = topology.value.iter().try_fold(1u32, |all, &n| all.checked_mul(n));
    if product == Some(guest.vcpus.value) {
        return;
    }
    let [sockets, dies, clusters, cores, threads] = topology.value;
    let product = product.map_or("too many".to_owned(), |product| product.to_string());
    let message = format!(
        "sockets {sockets} x dies {dies} x clusters {clusters} x cores {cores} x threads {threads} \
         is {product}, but the guest has {} vcpus",
        guest.vcpus.value
    );
    report.add(&PRODUCT, topology.spot, message, "make the product equal the number of vcpus");
}

/// Checks that the threads of a guest core sit on one host core. vCPUs that float are not judged.
fn pairs<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let shown = guest.cpu.as_ref().and_then(|cpu| cpu.topology.as_ref());
    let threads = shown.map_or(1, |shown| shown.value[4]);
    if threads < 2 {
        return;
    }
    let most = topology.cores().iter().map(|core| core.pcpus.len()).max();
    if let (Some(shown), Some(most)) =
        (shown, most.filter(|most| (*most as u64) < u64::from(threads)))
    {
        let message = format!("{threads} threads a guest core, and cores of this host have {most}");
        let hint = format!("show threads='{most}', or threads='1'");
        report.add(&PAIRS, shown.spot, message, hint);
        return;
    }
    let mut cores: BTreeMap<u32, Vec<(&Pin<'t>, PcpuId)>> = BTreeMap::new();
    for pin in live_pins(guest) {
        if let [core] = cores_of(topology, &pin.cpuset).into_iter().collect::<Vec<_>>()[..] {
            cores.entry(pin.of.value / threads).or_default().push((pin, core));
        }
    }
    for pins in cores.values() {
        let Some(((first, home), rest)) = pins.split_first() else { continue };
        if let Some((other, _)) = rest.iter().find(|(_, core)| core != home) {
            let message = format!(
                "vcpus {} and {} are threads of one guest core, but pcpus {} and {} are on \
                 different host cores",
                first.of.value, other.of.value, first.cpuset.value, other.cpuset.value
            );
            let siblings = topology.core_of(*home).map(|core| core.pcpus.to_string());
            let siblings = siblings.unwrap_or_default();
            let hint = format!("pin both to the core with pcpus {siblings}, or show threads='1'");
            report.add(&PAIRS, other.cpuset.spot, message, hint);
        }
    }
}

/// The cores that a set touches, each by its lowest pcpu.
pub fn cores_of(topology: &Topology, cpuset: &CpuSet) -> BTreeSet<PcpuId> {
    cpuset.iter().filter_map(|pcpu| topology.core_of(pcpu)?.pcpus.first()).collect()
}

/// Checks that an AMD guest that is shown threads can see them.
fn topoext<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let amd =
        matches!(topology.machine().cpu_vendor.as_deref(), Some("AuthenticAMD" | "HygonGenuine"));
    let Some(cpu) = guest.cpu.as_ref().filter(|_| amd) else { return };
    let threads = cpu.topology.as_ref().map_or(1, |shown| shown.value[4]);
    if threads > 1 && cpu.mode == "host-passthrough" && !cpu.topoext {
        let message =
            format!("threads={threads} on an AMD host, but the feature topoext is not requested");
        let hint = "add <feature policy='require' name='topoext'/> to <cpu>";
        report.add(&TOPOEXT, cpu.spot, message, hint);
    }
}

/// Checks that emulator and I/O threads stay off the cores of vCPUs that are pinned to one core,
/// unless their nodes have no other free core.
fn emulator<'t>(
    guest: &Guest<'t>,
    topology: &Topology,
    others: &Occupancy,
    report: &mut Report<'t>,
) {
    let mut owned = BTreeSet::new();
    for pin in live_pins(guest) {
        let cores = cores_of(topology, &pin.cpuset);
        if cores.len() == 1 {
            owned.extend(cores);
        }
    }
    for (what, cpuset) in helper_pins(guest) {
        let shared: CpuSet = cores_of(topology, cpuset).intersection(&owned).copied().collect();
        if shared.is_empty() {
            continue;
        }
        let all: CpuSet = shared
            .iter()
            .filter_map(|pcpu| topology.core_of(pcpu))
            .flat_map(|core| core.pcpus.iter())
            .collect();
        let message =
            format!("{what} may run on pcpus {all}, whose cores carry vcpus of this guest");
        let nodes: NodeSet =
            shared.iter().filter_map(|pcpu| Some(topology.core_of(pcpu)?.node)).collect();
        let kept = guest.asked.as_ref().map_or(0, |asked| asked.reserve.cores);
        let idle = idle_cores(topology, others, kept, &nodes);
        // The planner leaves them like this: on one core of a node, in guests whose vCPUs nearly
        // fill their share.
        let is_left = !live_pins(guest).any(|pin| pin.cpuset.intersects(cpuset));
        if is_left && (guest.asked.is_some() || shared.len() <= nodes.len()) {
            report.note(&EMULATOR, cpuset.spot, format!("{message}, on threads that these leave"));
            continue;
        }
        if cores_of(topology, &idle).is_subset(&owned) {
            let message = format!("{message}: node {nodes} has no other core that is free");
            report.note(&EMULATOR, cpuset.spot, message);
            continue;
        }
        let hint = "pin it to a core of the guest's share that carries no vcpu";
        report.add(&EMULATOR, cpuset.spot, message, hint);
    }
}
