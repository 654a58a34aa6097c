//! Discovery: reads a host's files into a [`Topology`], `discover(&FsRoot) -> Topology`.
//!
//! One file per area; each reads the kernel's files and fills [`Parts`]. Missing values stay empty;
//! harmless contradictions become notes; a value that cannot be parsed is an error with file and
//! line. Nothing here judges whether the host suits a guest.

mod acs;
pub mod arp;
pub mod arrays;
pub mod binding;
mod capability;
pub mod cards;
mod coherent;
mod cpu;
#[cfg(feature = "hwloc")]
pub mod crosscheck;
#[cfg(not(feature = "hwloc"))]
#[path = "crosscheck/none.rs"]
pub mod crosscheck;
pub mod device_users;
pub mod direct;
pub mod drives;
pub mod exclusions;
pub mod expected;
pub mod fabric;
pub mod facts;
pub mod files;
pub mod health;
pub mod hugetlb;
pub mod hung_mounts;
pub mod identity;
pub mod isolation;
mod kept_off;
#[cfg(feature = "hwloc")]
pub mod lstopo;
#[cfg(not(feature = "hwloc"))]
#[path = "lstopo/none.rs"]
pub mod lstopo;
mod machine;
pub mod manager;
mod memory;
pub mod network;
mod nics;
pub mod node;
pub mod openers;
pub mod path;
mod pci;
pub mod process;
pub mod reach;
pub mod released;
pub mod signatures;
pub mod source;
pub mod test_policy;
pub mod topo;
pub mod trust;
pub mod tuning;
pub mod vdpa;
pub mod vgpu;

use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::topology::{Iommu, Parts, Topology, TopologyError, Trust};

/// The error of reading a host.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "discovery-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum DiscoverError {
    /// A file of the host cannot be read.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    File(#[from] FsError),
    /// There is nothing to read.
    #[error("{path} holds no sys/devices/system/cpu with an online pcpu")]
    NoHost { path: String },
    /// The files contradict each other.
    #[error("the files below {path} contradict each other: {source}")]
    #[strum(to_string = "")]
    Contradiction { path: String, source: TopologyError },
}

/// Reads a host; without identifying data: serial numbers, MAC addresses, host name, UUIDs of GPUs
/// and partitions.
pub fn discover(root: &FsRoot) -> Result<Topology, DiscoverError> {
    read(root, false)
}

/// Reads a host with identifying data.
pub fn discover_identified(root: &FsRoot) -> Result<Topology, DiscoverError> {
    read(root, true)
}

/// Reads a host; `identify`: with identifying data.
fn read(root: &FsRoot, identify: bool) -> Result<Topology, DiscoverError> {
    let path = || root.path().display().to_string();
    let mut parts = Parts::default();
    parts.machine = machine::machine(root, identify, &mut parts.notes)?;
    let pcpus = cpu::pcpus(root)?;
    if pcpus.online.is_empty() {
        return Err(DiscoverError::NoHost { path: path() });
    }
    parts.nodes = memory::nodes(root, &pcpus.online, &mut parts.notes)?;
    parts.machine.off_nodes_kib = memory::off_nodes(root, &parts.nodes)?;
    parts.cores = cpu::cores(root, &pcpus.online, &parts.nodes, &mut parts.notes)?;
    parts.l3 = cpu::l3(root, &pcpus.online)?;
    parts.offline = pcpus.offline;
    parts.isolated = pcpus.isolated;
    kept_off::kept_off(root, &pcpus.online, &mut parts)?;
    parts.core_kinds = cpu::kinds(root, &pcpus.online)?;
    pci::devices(root, &mut parts)?;
    coherent::fill(root, &mut parts)?;
    parts.machine.trust = trust::trust(root).unwrap_or_else(|error| {
        // If it cannot be read, no guest is trusted, and the rest continues.
        parts.notes.push(format!("{error}; so guests are treated as strangers"));
        parts.machine.trust_unread = Some(error.to_string());
        Some(Trust::Strangers)
    });
    // Only the command line can fail, which the machine's notes say.
    parts.machine.isolation = isolation::settings(root).unwrap_or_default();
    if parts.machine.isolation.as_ref().is_some_and(|settings| settings.no_iommu) {
        without_made_up_groups(root, &mut parts)?;
    }
    parts.machine.iommu = iommu(root, &parts)?;
    parts.machine.iommufd = isolation::iommufd(root);
    cards::mark_silent(root, &mut parts)?;
    vgpu::lay(root, &mut parts)?;
    if identify {
        cards::identify(root, &mut parts)?;
    }
    nics::faces(root, identify, &mut parts)?;
    drives::drives(root, identify, &mut parts)?;
    // Asked beside the fabric, so that one deadline passes, not two.
    let health = health::begin(root, &parts);
    let (fabric, notes) = fabric::fabric(root, &parts)?;
    parts.fabric = fabric;
    parts.notes.extend(notes);
    health::lay(root, health, &mut parts)?;
    Topology::new(parts).map_err(|source| DiscoverError::Contradiction { path: path(), source })
}

/// Reads the kernel's report of its IOMMU.
fn iommu(root: &FsRoot, parts: &Parts) -> Result<Option<Iommu>, FsError> {
    let settings = parts.machine.isolation.as_ref();
    let Some(groups) = isolation::groups(root, settings)? else { return Ok(None) };
    // One that cannot be read leaves it unknown, which `host doctor` says.
    let firmware_groups = isolation::firmware_groups(root, groups_of(parts)).unwrap_or_default();
    // The functions show that there are groups.
    Ok((groups == 0 || firmware_groups.is_some()).then_some(Iommu { groups, firmware_groups }))
}

/// The IOMMU groups of functions, each once.
fn groups_of(parts: &Parts) -> impl Iterator<Item = u32> + use<> {
    let groups = parts.devices.iter().filter_map(|device| device.iommu_group);
    groups.collect::<std::collections::BTreeSet<u32>>().into_iter()
}

/// Drops the groups that VFIO makes for functions without an IOMMU: they isolate nothing.
fn without_made_up_groups(root: &FsRoot, parts: &mut Parts) -> Result<(), FsError> {
    for device in &mut parts.devices {
        if let Some(group) = device.iommu_group
            && isolation::is_made_up(root, group)?
        {
            device.iommu_group = None;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
