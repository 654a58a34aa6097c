//! Judges whether functions may be taken from the host together. No I/O.

use super::{Use, UseKind};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::{DeviceKind, PciDevice, Topology, is_vfio, leaves_group};
use serde::Serialize;

/// Why a function may not be taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hindrance {
    /// The requested function.
    pub bdf: Bdf,
    /// The reason, to be read after its address: "is used by ..".
    pub why: String,
    /// The use that is behind it; `None` if it is not a use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<UseKind>,
}

/// The consequences of taking functions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Take {
    /// Functions that are taken: the requested ones and those that must be included, by address.
    pub functions: Vec<Bdf>,
    /// The hindrances; empty: it may be taken.
    pub hindrances: Vec<Hindrance>,
}

impl Take {
    /// Judges whether the functions `asked` may be taken together. `uses` has those of all members
    /// of their IOMMU groups. Bridges stay with the host and do not matter; functions of the same
    /// slot, and members without a driver, come along; a member that is not requested prevents it
    /// with its driver, unless that leaves the group alone.
    pub fn new(topology: &Topology, uses: &[Use], asked: &[Bdf]) -> Take {
        let mut take = Take { functions: asked.to_vec(), hindrances: Vec::new() };
        for &bdf in asked {
            let mut refuse = |why: String, kind| {
                take.hindrances.push(Hindrance { bdf, why, kind });
            };
            let Some(device) = topology.device(bdf) else {
                refuse("is not there".into(), None);
                continue;
            };
            if is_bridge(device) {
                refuse("is a bridge, which cannot be passed through".into(), None);
                continue;
            }
            for used in uses.iter().filter(|used| used.bdf == bdf) {
                refuse(format!("is used by {}", used.by), Some(used.kind));
            }
            if let Some(why) = topology.barred(device) {
                refuse(why.to_string(), None);
                continue;
            }
            let Some(group) = topology.iommu_group(bdf) else {
                refuse("has no IOMMU group: the IOMMU is off or absent".into(), None);
                continue;
            };
            for other in group.members.iter().filter_map(|&member| topology.device(member)) {
                if is_bridge(other) || asked.contains(&other.bdf) {
                    continue;
                }
                let shares = format!("shares IOMMU group {} with {}", group.number, other.bdf);
                for used in uses.iter().filter(|used| used.bdf == other.bdf) {
                    refuse(format!("{shares}, which is used by {}", used.by), Some(used.kind));
                }
                let slot = |bdf: Bdf| (bdf.segment(), bdf.bus(), bdf.device());
                match &other.driver {
                    Some(driver) if slot(other.bdf) != slot(bdf) && !is_vfio(driver) => {
                        // A driver that leaves the group alone stays.
                        if !leaves_group(driver) {
                            refuse(format!("{shares}, which driver {driver} has"), None);
                        }
                    }
                    _ => take.functions.push(other.bdf),
                }
            }
        }
        take.functions.sort();
        take.functions.dedup();
        take
    }

    /// Returns the hindrances; with `force` only those that cannot be overridden.
    pub fn refusals(&self, force: bool) -> Vec<&Hindrance> {
        self.hindrances.iter().filter(|h| !(force && h.kind.is_some_and(UseKind::yields))).collect()
    }
}

/// Functions with all endpoints of their IOMMU groups, by address: those whose uses [`Take::new`]
/// needs.
pub fn with_groups(topology: &Topology, asked: &[Bdf]) -> Vec<Bdf> {
    let members = asked.iter().filter_map(|&bdf| topology.iommu_group(bdf));
    let mut all: Vec<Bdf> = members.flat_map(|group| group.members.iter().copied()).collect();
    all.retain(|&bdf| topology.device(bdf).is_some_and(|device| !is_bridge(device)));
    all.extend(asked);
    all.sort();
    all.dedup();
    all
}

/// Whether it is a bridge, of which an IOMMU group may have any number.
fn is_bridge(device: &PciDevice) -> bool {
    matches!(device.kind(), DeviceKind::Bridge | DeviceKind::HostBridge)
}
