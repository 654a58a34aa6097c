//! Uses of PCI functions, and whether they may be taken from the host.
//!
//! [`Use`]s come from three places: the topology (drives, networks, virtual functions), the
//! domains, and the kernel's view of processes ([`read()`]). [`Take::new`] judges, without I/O.
//! Knows no libvirt, binds nothing.
//!
//! Never taken, whatever the admin says: functions of a mounted or otherwise used drive, of a NIC
//! with a default route or in a bridge or bond, with virtual functions or mediated devices, or held
//! by a running domain; and every function that shares an IOMMU group with one of these. `--force` overrides
//! processes that have a function open, and a NIC that merely has an address.

mod nodes;
mod processes;
mod take;

pub use processes::{Seen, guest_processes, guests, openers, read};
pub use take::{Hindrance, Take, with_groups};

use gpuvm_core::bdf::Bdf;
use gpuvm_core::placement::Occupancy;
use gpuvm_core::topology::{Drive, DriveUse, Sriov, Topology};
use gpuvm_core::words::count;
use serde::Serialize;

/// The kind of the use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum UseKind {
    /// A domain that runs.
    Domain,
    /// A drive below it is mounted, swap space, or part of an array or volume.
    Drive,
    /// A default route leads over it, or it is in a bridge or bond.
    Network,
    /// It has virtual functions, or mediated devices.
    Functions,
    /// A process has one of its device nodes open.
    Process,
    /// It is up and has an address.
    Address,
    /// The host's console is on it.
    Console,
}

impl UseKind {
    /// Whether `--force` overrides it.
    pub fn yields(self) -> bool {
        matches!(self, UseKind::Process | UseKind::Address | UseKind::Console)
    }
}

/// One use of a function.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Use {
    /// The function.
    pub bdf: Bdf,
    /// Its kind.
    pub kind: UseKind,
    /// Who uses it and how, to be read after "by":
    /// `process 312 (python3), which has /dev/nvidia0 open`.
    pub by: String,
}

/// Returns the uses of these functions known from topology and domains.
pub fn known(topology: &Topology, held: &Occupancy, functions: &[Bdf]) -> Vec<Use> {
    let mut uses = Vec::new();
    for &bdf in functions {
        let mut add = |kind, by: String| uses.push(Use { bdf, kind, by });
        let holders = held.domains.iter().filter(|d| d.active && d.devices.contains(&bdf));
        for domain in holders {
            add(UseKind::Domain, format!("domain `{}`, which runs", domain.domain));
        }
        for drive in topology.parts().drives.iter().filter(|drive| drive.bdf == Some(bdf)) {
            drive_uses(drive, |by| add(UseKind::Drive, by));
        }
        let Some(device) = topology.device(bdf) else { continue };
        for why in device.net.iter().flat_map(|net| &net.used_by) {
            add(UseKind::Network, format!("the host's network: {why}"));
        }
        if let Some(Sriov::Pf { enabled: enabled @ 1.., .. }) = device.sriov {
            add(UseKind::Functions, format!("its {}", count(enabled, "virtual function")));
        }
        if device.mediated > 0 {
            add(UseKind::Functions, format!("its {}", count(device.mediated, "mediated device")));
        }
    }
    uses.sort();
    uses.dedup();
    uses
}

/// Uses of a drive and of its partitions.
fn drive_uses(drive: &Drive, mut add: impl FnMut(String)) {
    for (name, used) in drive.uses() {
        add(match used {
            DriveUse::Mounted { at } => format!("the host, which has {name} mounted at {at}"),
            DriveUse::Swap => format!("the host, which swaps to {name}"),
            DriveUse::Holder { device, what, .. } => {
                let what = what.as_ref().map_or_else(String::new, |what| format!(" ({what})"));
                format!("{device}{what}, of which {name} is a part")
            }
            DriveUse::Member { of } => format!("{of}, of which {name} is a member"),
            DriveUse::Kernel => format!("the kernel, which has {name} open exclusively"),
            DriveUse::EfiSystem => {
                format!("the host, of which {name} is the EFI system partition")
            }
        });
    }
}

#[cfg(test)]
mod tests;
