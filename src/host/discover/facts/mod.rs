//! The facts that `host doctor` examines beside the topology: power and reset of GPUs, devices kept
//! by the console, bindings at boot, units, kernel settings. Missing and unreadable facts stay
//! unknown, the latter with the reason. Judges nothing.

mod acs;
pub mod boot;
mod devices;
mod services;
mod software;

use super::isolation::{GROUPS, firmware_groups};
use super::{test_policy, tuning};
use crate::fsroot::{FsError, FsRoot, not};
use crate::function_users;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::NodeId;
use gpuvm_core::topology::facts::{FreeBlocks, FunctionUser, KernelSettings};
use gpuvm_core::topology::{DeviceKind, Facts, Topology};
use std::collections::BTreeMap;

/// Free memory by node and size of its blocks.
const BUDDY: &str = "proc/buddyinfo";
/// Blocks of 2 MiB and more, of pages of 4 KiB.
const LARGE_ORDER: usize = 9;

/// Reads the facts of a host.
pub fn read(root: &FsRoot, topology: &Topology) -> Facts {
    let mut reader = Reader { root, unread: BTreeMap::new() };
    let mut facts = needs(&mut reader);
    groups(&mut reader, topology, &mut facts);
    // The topology has these; here it counts why it has not.
    for path in ["proc/cmdline", "proc/sys/kernel/osrelease", "proc/sys/kernel/numa_balancing"] {
        reader.keep(path, |root| text(root, path));
    }
    facts.iommu_tables = reader.keep("sys/firmware/acpi/tables", tables);
    facts.framebuffers = reader.keep("proc/iomem", devices::framebuffers);
    facts.framebuffer_devices =
        reader.keep("sys/bus/platform/devices", devices::framebuffer_devices);
    facts.functions = devices::functions(&mut reader, topology);
    facts.acs_files = acs::files(root, topology);
    facts.boot_drivers = reader.keep("etc/modprobe.d", |root| boot::drivers(root, topology));
    facts.boot_loader = boot::loader(root);
    facts.initramfs = boot::initramfs_tool(root);
    facts.services = reader.keep("proc/PID/comm", services::running);
    facts.users = reader.keep("proc/PID/fd", |root| users(root, topology));
    facts.daemon_units = reader.keep("etc/systemd/system", services::daemon_units);
    facts.irqbalance_banned = reader.keep("etc/default/irqbalance", services::irqbalance);
    facts.libvirt = reader.keep("etc/libvirt/qemu.conf", services::libvirt);
    facts.guests_unit = reader.keep("etc/default/libvirt-guests", services::guests_unit);
    facts.free_blocks = reader.keep(BUDDY, |root| free_blocks(root, topology));
    facts.kernel = KernelSettings { kvm: facts.kernel.kvm, ..kernel(&mut reader) };
    facts.gpu_tests = reader.keep(test_policy::FILE, test_policy::gpu_tests);
    facts.unread = reader.unread;
    facts
}

/// Reads only the host's requirements of every guest: KVM, libvirt, QEMU, firmware.
pub fn read_needs(root: &FsRoot) -> Facts {
    let mut reader = Reader { root, unread: BTreeMap::new() };
    let mut facts = needs(&mut reader);
    facts.unread = reader.unread;
    facts
}

fn needs(reader: &mut Reader<'_>) -> Facts {
    let mut facts = Facts {
        platform: reader.keep("proc/cpuinfo", software::platform),
        software: reader.keep("etc/os-release", software::software),
        ..Facts::default()
    };
    facts.kernel.kvm = software::kvm(reader.root);
    facts
}

/// A host whose unreadable files are remembered.
struct Reader<'r> {
    root: &'r FsRoot,
    /// Facts that could not be read, with the reason.
    unread: BTreeMap<String, String>,
}

impl Reader<'_> {
    /// Reads a fact; an error is remembered below the path that rules name.
    fn keep<T>(
        &mut self,
        path: &str,
        read: impl FnOnce(&FsRoot) -> Result<Option<T>, FsError>,
    ) -> Option<T> {
        read(self.root).unwrap_or_else(|error| {
            self.unread.insert(path.to_owned(), error.to_string());
            None
        })
    }

    /// Reads a setting of the kernel.
    fn setting<T>(&mut self, path: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.keep(path, |root| value(root, path, read))
    }
}

/// Reads a regular file; none where it is missing.
fn text(root: &FsRoot, path: &str) -> Result<Option<String>, FsError> {
    root.regular(path)?;
    root.read(path)
}

/// Reads a file with one value.
fn value<T>(
    root: &FsRoot,
    path: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, FsError> {
    let Some(text) = text(root, path)? else { return Ok(None) };
    let wrong = || root.malformed(path, 1, not(&text, "one of the kernel's values"));
    read(text.trim()).map(Some).ok_or_else(wrong)
}

/// Reads `Y`, `N`, `1`, `0`.
fn flag(text: &str) -> Option<bool> {
    match text {
        "Y" | "1" => Some(true),
        "N" | "0" => Some(false),
        _ => None,
    }
}

/// Returns the significant lines of a configuration, trimmed.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';']))
}

/// Reads which IOMMU groups map strictly, and the unreadable parts.
fn groups(reader: &mut Reader<'_>, topology: &Topology, facts: &mut Facts) {
    // The topology has these; here it counts why it has not.
    let known = super::groups_of(topology.parts());
    reader.keep(&format!("{GROUPS}/N/reserved_regions"), |root| firmware_groups(root, known));
    let numbers: Vec<u32> = reader
        .keep(GROUPS, |root| root.names(GROUPS).map(Some))
        .unwrap_or_default()
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    facts.strict_groups = reader.keep(&format!("{GROUPS}/N/type"), |root| {
        let mut found = None;
        for number in &numbers {
            let Some(text) = text(root, &format!("{GROUPS}/{number}/type"))? else { continue };
            found.get_or_insert_with(Vec::new).extend((text.trim() == "DMA").then_some(*number));
        }
        Ok(found)
    });
}

/// Reads which tables of IOMMUs the firmware has.
fn tables(root: &FsRoot) -> Result<Option<Vec<String>>, FsError> {
    let dir = "sys/firmware/acpi/tables";
    if !root.exists(dir) {
        return Ok(None);
    }
    let known = ["DMAR", "IVRS", "IORT"];
    let names = root.names(dir)?.into_iter();
    Ok(Some(names.filter(|name| known.iter().any(|one| name.starts_with(one))).collect()))
}

/// Reads the users of GPUs; none where no process is visible.
fn users(root: &FsRoot, topology: &Topology) -> Result<Option<Vec<FunctionUser>>, FsError> {
    if !services::has_processes(root)? {
        return Ok(None);
    }
    let gpus: Vec<Bdf> = topology.of_kind(DeviceKind::Gpu).map(|gpu| gpu.bdf).collect();
    let seen = function_users::openers(root, &gpus)?;
    if seen.uses.is_empty() && seen.hidden > 0 {
        let reason = format!("open files of {} processes are hidden", seen.hidden);
        return Err(root.malformed("proc", 1, reason));
    }
    let uses = seen.uses.into_iter().map(|one| FunctionUser { bdf: one.bdf, by: one.by });
    Ok(Some(uses.collect()))
}

/// Reads how free memory lies; only with pages of 4 KiB.
fn free_blocks(root: &FsRoot, topology: &Topology) -> Result<Option<Vec<FreeBlocks>>, FsError> {
    if topology.machine().architecture.as_deref() != Some("x86_64") {
        return Ok(None);
    }
    let Some(text) = text(root, BUDDY)? else { return Ok(None) };
    let mut nodes: BTreeMap<NodeId, (u64, u64)> = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = || root.malformed(BUDDY, number, not(line, "free blocks of a zone"));
        let (node, zone) = line.split_once(',').ok_or_else(wrong)?;
        let node = node.strip_prefix("Node").and_then(|node| node.trim().parse().ok());
        let counts = zone.split_whitespace().skip(2).map(str::parse::<u64>);
        let counts = counts.collect::<Result<Vec<u64>, _>>().map_err(|_| wrong())?;
        let (node, sum) = (NodeId(node.ok_or_else(wrong)?), nodes.len());
        if counts.len() > 32 || sum > 4096 {
            return Err(wrong());
        }
        let free = nodes.entry(node).or_default();
        for (order, count) in counts.iter().enumerate() {
            let kib = count.saturating_mul(4 << order);
            free.0 = free.0.saturating_add(kib);
            free.1 = free.1.saturating_add(if order >= LARGE_ORDER { kib } else { 0 });
        }
    }
    if nodes.is_empty() {
        return Err(root.malformed(BUDDY, 1, "it is empty"));
    }
    let blocks = |(node, (free_kib, large_kib))| FreeBlocks { node, free_kib, large_kib };
    Ok(Some(nodes.into_iter().map(blocks).collect()))
}

fn kernel(reader: &mut Reader<'_>) -> KernelSettings {
    let module = |name: &str| format!("sys/module/{name}");
    let transparent = tuning::TRANSPARENT;
    let word = |text: &str| tuning::chosen(text).map(str::to_owned);
    let modeset = reader.setting(&module("nvidia_drm/parameters/modeset"), flag);
    let consoles = reader.keep("sys/class/graphics", |root| {
        let mut found = None;
        for name in root.names("sys/class/graphics")?.iter().filter(|name| name.starts_with("fb")) {
            let shown = text(root, &format!("sys/class/graphics/{name}/name"))?;
            let is_nvidia = shown.is_some_and(|name| name.contains("nvidia"));
            found = Some(found.unwrap_or(false) || is_nvidia);
        }
        Ok(found)
    });
    KernelSettings {
        idle_d3: reader
            .setting(&module("vfio_pci/parameters/disable_idle_d3"), flag)
            .map(|disabled| !disabled),
        dma_entry_limit: reader
            .setting(&module("vfio_iommu_type1/parameters/dma_entry_limit"), |text| {
                text.parse().ok()
            }),
        ksm: reader
            .setting("sys/kernel/mm/ksm/run", |text| text.parse::<u8>().ok().map(|run| run == 1)),
        aspm: reader.setting(&module("pcie_aspm/parameters/policy"), word),
        governors: reader.keep("sys/devices/system/cpu/cpuN/cpufreq/scaling_governor", |root| {
            let governors = tuning::read(root)?.governors;
            let is_word = |name: &String| {
                !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            };
            if let Some(odd) = governors.keys().find(|name| !is_word(name)) {
                let path = "sys/devices/system/cpu/cpuN/cpufreq/scaling_governor";
                return Err(root.malformed(path, 1, not(odd, "a governor")));
            }
            Ok((!governors.is_empty()).then_some(governors))
        }),
        transparent_huge_pages: reader.setting(transparent, word),
        drm_console: modeset.map(|on| on && consoles == Some(true)),
        sev_snp: reader.setting(&module("kvm_amd/parameters/sev_snp"), flag),
        vhost_net: reader.root.exists("dev").then(|| reader.root.exists("dev/vhost-net")),
        kvm: None,
    }
}

#[cfg(test)]
mod tests;
