//! Pcpus that the admin set aside for guests, and those that guests are confined to.

use super::{Core, Parts, Topology};
use crate::cpuset::{CpuSet, NodeId};
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

    /// Whether the cores of a node that are set aside are so for guests: fewer than half, both of
    /// all and of the fastest kind, are for something else.
    pub fn has_guest_cores(&self, node: NodeId) -> bool {
        if self.for_guests().is_empty() {
            return false;
        }
        let fastest = self.parts.core_kinds.first().map(|kind| kind.kind);
        let cores: Vec<&Core> = self.open_cores().filter(|core| core.node == node).collect();
        let is_half = |all: bool| {
            let those = || cores.iter().filter(|core| all || self.speed(core) == fastest);
            let aside = those().filter(|core| self.is_for_guests(core)).count();
            aside > 0 && 2 * aside >= those().count()
        };
        is_half(true) || is_half(false)
    }

    /// Pcpus that guests, their emulators included, are confined to (`cpuset.cpus` of
    /// machine.slice); `None` if to none, or to none of this host.
    pub fn confined_to(&self) -> Option<&CpuSet> {
        self.parts.machine_slice.as_ref().filter(|_| self.confined.is_some())
    }

    /// How many pcpus guests may have.
    pub fn guest_pcpus(&self) -> usize {
        self.confined_to().map_or_else(|| self.pcpus().len(), CpuSet::len)
    }

    /// The part of a core, by its place in [`Topology::cores`], that guests may have; none: they
    /// may not have it.
    pub fn open_core(&self, at: usize) -> Option<&Core> {
        match &self.confined {
            None => self.parts.cores.get(at),
            Some(cores) => cores.get(at)?.as_ref(),
        }
    }

    /// The cores that guests may have, or their parts, by lowest pcpu.
    pub fn open_cores(&self) -> impl Iterator<Item = &Core> {
        (0..self.parts.cores.len()).filter_map(|at| self.open_core(at))
    }
}

/// The part of each core in machine.slice. Where few cores of a node have all threads there, others
/// are open with some; otherwise only those are, since the host's own tasks run on the other
/// threads of the others. None: guests are confined to no pcpu of this host.
pub(super) fn confined(parts: &Parts) -> Option<Vec<Option<Core>>> {
    let slice = parts.machine_slice.as_ref()?;
    let takes_whole = |node: NodeId| {
        let of_node = || parts.cores.iter().filter(|core| core.node == node);
        let whole = of_node().filter(|core| core.pcpus.is_subset(slice)).count();
        2 * whole >= of_node().filter(|core| core.pcpus.intersects(slice)).count()
    };
    let part = |core: &Core| {
        let pcpus = core.pcpus.and(slice);
        let is_whole = pcpus == core.pcpus;
        let is_open = !pcpus.is_empty() && (is_whole || !takes_whole(core.node));
        is_open.then(|| Core { pcpus, ..core.clone() })
    };
    let cores: Vec<Option<Core>> = parts.cores.iter().map(part).collect();
    cores.iter().any(Option::is_some).then_some(cores)
}
