//! Pcpus that the admin set aside for guests, and those that guests are confined to.

use super::{Core, Topology};
use crate::cpuset::CpuSet;
use serde::{Deserialize, Serialize};

/// What keeps the host's own tasks off pcpus, beside `isolcpus=`; the first of several counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum KeptOffBy {
    /// `cpuset.cpus` of system.slice.
    SystemSlice,
    /// `CPUAffinity=` of systemd.
    CpuAffinity,
    /// `nohz_full=` of the kernel.
    NohzFull,
    /// `rcu_nocbs=` of the kernel.
    RcuNocbs,
}

impl KeptOffBy {
    /// Returns the setting's name.
    pub fn setting(self) -> &'static str {
        match self {
            KeptOffBy::SystemSlice => "cpuset.cpus of system.slice",
            KeptOffBy::CpuAffinity => "CPUAffinity= of systemd",
            KeptOffBy::NohzFull => "nohz_full=",
            KeptOffBy::RcuNocbs => "rcu_nocbs=",
        }
    }
}

/// Pcpus that a setting keeps the host's own tasks off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KeptOff {
    /// The pcpus.
    pub pcpus: CpuSet,
    /// The setting.
    pub by: KeptOffBy,
}

impl Topology {
    /// Pcpus that the admin set aside for guests: those of `isolcpus=`, otherwise those of another
    /// setting; empty: none.
    pub fn for_guests(&self) -> &CpuSet {
        match &self.parts.kept_off {
            Some(kept) if self.parts.isolated.is_empty() => &kept.pcpus,
            _ => &self.parts.isolated,
        }
    }

    /// The setting, beside `isolcpus=`, by which these are set aside; `None` for that one, or
    /// nothing.
    pub fn kept_off_by(&self) -> Option<KeptOffBy> {
        let kept = self.parts.kept_off.as_ref().filter(|_| self.parts.isolated.is_empty())?;
        Some(kept.by)
    }

    /// Whether all threads of a core are set aside for guests.
    pub fn is_for_guests(&self, core: &Core) -> bool {
        !core.pcpus.is_empty() && core.pcpus.is_subset(self.for_guests())
    }

    /// Pcpus that guests, their emulators included, are confined to (`cpuset.cpus` of
    /// machine.slice); `None` if to none, or to no whole core.
    pub fn confined_to(&self) -> Option<&CpuSet> {
        let slice = self.parts.machine_slice.as_ref()?;
        self.cores().iter().any(|core| core.pcpus.is_subset(slice)).then_some(slice)
    }
}
