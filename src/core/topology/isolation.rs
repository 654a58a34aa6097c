//! Whether the IOMMU isolates passed-through functions from memory outside their guest: its groups,
//! and kernel settings that make groups claim more than the hardware isolates, or bypass them.

use super::Topology;
use crate::bdf::Bdf;
use serde::{Deserialize, Serialize};

/// The kernel argument that splits groups; a kernel without the ACS override patch ignores it.
pub const ACS_OVERRIDE: &str = "pcie_acs_override";

/// Kernel settings that weaken IOMMU isolation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Isolation {
    /// Value of `pcie_acs_override=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acs_override: Option<String>,
    /// Whether VFIO passes functions through without interrupt remapping.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsafe_interrupts: bool,
    /// Whether VFIO passes functions through without an IOMMU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_iommu: bool,
}

/// A way in which functions are not isolated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Weakness {
    /// Groups are split by `pcie_acs_override=` with this value.
    AcsOverride(String),
    /// VFIO is allowed without interrupt remapping.
    UnsafeInterrupts,
    /// These functions have no IOMMU group.
    NoIommu(Vec<Bdf>),
}

impl Weakness {
    /// Describes it in a sentence without full stop.
    pub fn says(&self) -> String {
        match self {
            Weakness::AcsOverride(value) => format!(
                "not isolated: `{ACS_OVERRIDE}={value}` splits IOMMU groups that the hardware does \
                 not isolate, so \
                 devices of one guest may reach those of another guest or of the host past the IOMMU"
            ),
            Weakness::UnsafeInterrupts => {
                "not isolated: `allow_unsafe_interrupts` of vfio_iommu_type1 is on, so a \
                 guest may raise any interrupt of the host"
                    .to_owned()
            }
            Weakness::NoIommu(functions) => {
                let names: Vec<String> = functions.iter().map(ToString::to_string).collect();
                format!(
                    "not isolated: no IOMMU group for {}; without an IOMMU a device reads and \
                     writes all memory of the \
                     host and of other guests",
                    names.join(", ")
                )
            }
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Weakness::AcsOverride(_) => {
                "remove pcie_acs_override= from the kernel's arguments, reboot, and look at the \
                 groups again: `gpuvm \
                 device list`"
            }
            Weakness::UnsafeInterrupts => {
                "turn interrupt remapping on in the firmware, and remove the option: `grep -r \
                 allow_unsafe_interrupts /etc/modprobe.d /proc/cmdline`"
            }
            Weakness::NoIommu(_) => {
                "turn the IOMMU on in the firmware and by `intel_iommu=on` or `amd_iommu=on`, then \
                 reboot"
            }
        }
    }
}

/// Whether the IOMMU isolates functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Isolated {
    /// Each has a group, and nothing weakens groups.
    Yes,
    /// No, for these reasons; at least one.
    No(Vec<Weakness>),
    /// The host's record does not tell.
    Unknown,
}

impl Topology {
    /// Whether the IOMMU isolates these functions.
    pub fn isolates(&self, functions: &[Bdf]) -> Isolated {
        let machine = self.machine();
        let given = machine.kernel_arguments.iter().find_map(|argument| acs_override(argument));
        let mut weak = Vec::new();
        let said = machine.isolation.as_ref().and_then(|settings| settings.acs_override.clone());
        // Records older than these facts still have the kernel arguments.
        weak.extend(said.or(given).map(Weakness::AcsOverride));
        let Some(settings) = &machine.isolation else {
            return if weak.is_empty() { Isolated::Unknown } else { Isolated::No(weak) };
        };
        if settings.unsafe_interrupts {
            weak.push(Weakness::UnsafeInterrupts);
        }
        let without = functions.iter().copied().filter(|&bdf| self.iommu_group(bdf).is_none());
        let without: Vec<Bdf> = without.collect();
        if !without.is_empty() {
            weak.push(Weakness::NoIommu(without));
        }
        if weak.is_empty() { Isolated::Yes } else { Isolated::No(weak) }
    }
}

/// The value of `pcie_acs_override=`, if a kernel argument is this one; the kernel treats `-` like
/// `_`.
pub fn acs_override(argument: &str) -> Option<String> {
    let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
    (name.replace('-', "_") == ACS_OVERRIDE).then(|| value.to_owned())
}
