//! Decides whether a partition may be activated for a domain or deactivated. The list is read again
//! right before either: others may have changed it since the plan.

use super::restore::RestoreList;
use super::{Domain, Listed, Modules, ModulesText, Running};
use crate::shell::word;

/// A partition that a domain needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeededPartition {
    /// Its number when this was planned.
    pub partition: u32,
    /// Module ids of its GPUs when this was planned.
    pub modules: Modules,
    /// UUID of the domain, with dashes.
    pub domain: String,
    /// Whether it is for all guests with vGPUs of its GPU.
    pub is_shared: bool,
}

/// The decision on a partition that a domain needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It is to be activated.
    Activate,
    /// It is active for this domain.
    AlreadySo,
    /// It is not to be activated.
    Refused(PartitionRefusal),
}

/// The decision on a partition to be deactivated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Release {
    /// It is to be deactivated.
    Deactivate,
    /// It is not active.
    AlreadySo,
    /// It is not to be deactivated.
    Refused(PartitionRefusal),
}

/// Why a partition is neither activated nor deactivated.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "partition-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum PartitionRefusal {
    /// A running domain has some of its GPUs.
    #[error("NVLink partition {partition} is held by running domain `{}`", domain.name)]
    Held { partition: u32, domain: Domain },
    /// It is active, and no running domain has any of its GPUs.
    #[error("NVLink partition {partition} is active, and no running domain uses it")]
    Stale { partition: u32 },
    /// Another partition that shares GPUs with it is active.
    #[error(
        "NVLink partition {partition} shares GPUs with partition {with}, which is active for {}",
        domain.as_ref().map_or("no running domain".to_owned(), |d| format!("domain `{}`", d.name))
    )]
    Overlap {
        partition: u32,
        with: u32,
        /// The running domain with GPUs of the other partition; `None` if no domain has any, so
        /// that it is stale.
        domain: Option<Domain>,
    },
    /// It has other GPUs than when this was planned: Fabric Manager has restarted with other
    /// definitions.
    #[error(
        "NVLink partition {partition} has {}; it had {} when this was planned",
        ModulesText(now),
        ModulesText(planned)
    )]
    Changed {
        partition: u32,
        /// Module ids when this was planned.
        planned: Modules,
        now: Modules,
    },
    /// Fabric Manager does not list it.
    #[error("Fabric Manager lists no partition {partition}, among {listed}")]
    NotListed { partition: u32, listed: usize },
    /// It is active, and a running domain may have its GPUs: their module ids are not known.
    #[error(
        "NVLink partition {partition} is active, and it is unknown whether domain `{}` uses it: \
         the module ids of {unknown} of its GPUs are not known",
        domain.name
    )]
    UserUnknown {
        partition: u32,
        domain: Domain,
        /// How many of its GPUs are unknown.
        unknown: usize,
    },
}

impl PartitionRefusal {
    /// Returns the partition that is not activated.
    pub fn partition(&self) -> u32 {
        match self {
            PartitionRefusal::Held { partition, .. }
            | PartitionRefusal::Stale { partition }
            | PartitionRefusal::Overlap { partition, .. }
            | PartitionRefusal::Changed { partition, .. }
            | PartitionRefusal::NotListed { partition, .. }
            | PartitionRefusal::UserUnknown { partition, .. } => *partition,
        }
    }

    /// Whether it would be activated if no domain ran.
    pub fn is_of_domain(&self) -> bool {
        match self {
            PartitionRefusal::Held { .. } | PartitionRefusal::UserUnknown { .. } => true,
            PartitionRefusal::Overlap { domain, .. } => domain.is_some(),
            PartitionRefusal::Stale { .. }
            | PartitionRefusal::Changed { .. }
            | PartitionRefusal::NotListed { .. } => false,
        }
    }

    /// Returns the remedy.
    pub fn hint(&self) -> String {
        if let Some(partition) = self.stale() {
            return format!("`gpuvm fabric release {partition}` deactivates it");
        }
        match self {
            PartitionRefusal::Held { domain, .. }
            | PartitionRefusal::Overlap { domain: Some(domain), .. } => {
                format!("`gpuvm stop {}` ends it", word(&domain.name))
            }
            PartitionRefusal::UserUnknown { domain, partition, .. } => format!(
                "`gpuvm host modules` shows which module ids are known; once `gpuvm stop {}` has \
                 ended it, `gpuvm fabric release {partition}` deactivates the partition",
                word(&domain.name)
            ),
            _ => "`gpuvm fabric show` lists the partitions".into(),
        }
    }

    /// Returns the unused partition that must be released first.
    pub fn stale(&self) -> Option<u32> {
        match self {
            PartitionRefusal::Stale { partition } => Some(*partition),
            PartitionRefusal::Overlap { with, domain: None, .. } => Some(*with),
            _ => None,
        }
    }
}

/// Decides on a partition that a domain needs, from Fabric Manager's list, the running domains and
/// the recorded activations.
pub fn decide(
    wanted: &NeededPartition,
    listed: &[Listed],
    running: &[Running],
    remembered: &RestoreList,
) -> Decision {
    use PartitionRefusal::{Changed, Held, NotListed, Overlap, Stale, UserUnknown};
    let NeededPartition { partition, modules, domain, is_shared } = wanted;
    let partition = *partition;
    let refused = Decision::Refused;
    let Some(found) = listed.iter().find(|one| one.id == partition) else {
        return refused(NotListed { partition, listed: listed.len() });
    };
    let now = found.modules();
    if now != *modules {
        return refused(Changed { partition, planned: modules.clone(), now });
    }
    let is_ours = |uuid: &str| uuid.eq_ignore_ascii_case(domain);
    let others: Vec<&Running> = running.iter().filter(|one| !is_ours(&one.domain.uuid)).collect();
    let untold = |partition: u32, modules: &Modules| {
        let one = others.iter().find(|one| one.may_have_any(modules))?;
        Some(refused(UserUnknown { partition, domain: one.domain.clone(), unknown: one.unknown }))
    };
    let is_beside = |one: &Running| *is_shared && one.shares(modules);
    let mut holders = others.iter().filter(|one| one.has_any(modules)).peekable();
    let is_used = holders.peek().is_some();
    let holder = holders.find(|one| !is_beside(one));
    if let Some(holder) = holder.filter(|_| found.active) {
        return refused(Held { partition, domain: holder.domain.clone() });
    }
    if found.active && is_used {
        return Decision::AlreadySo;
    }
    if found.active {
        let runs = running.iter().any(|one| is_ours(&one.domain.uuid) && one.modules == *modules);
        let entry = remembered.partitions.iter().find(|entry| entry.id == partition);
        return match entry {
            _ if runs => Decision::AlreadySo,
            Some(entry) if is_ours(&entry.domain) && entry.modules == *modules => {
                Decision::AlreadySo
            }
            _ => untold(partition, modules).unwrap_or_else(|| refused(Stale { partition })),
        };
    }
    if let Some(other) = listed.iter().find(|one| one.active && one.has_any(modules)) {
        let theirs = other.modules();
        let holder = others.iter().find(|one| one.has_any(&theirs)).map(|one| one.domain.clone());
        if holder.is_none()
            && let Some(untold) = untold(other.id, &theirs)
        {
            return untold;
        }
        return refused(Overlap { partition, with: other.id, domain: holder });
    }
    match holder {
        Some(holder) => refused(Held { partition, domain: holder.domain.clone() }),
        None => Decision::Activate,
    }
}

/// Decides on a partition to be deactivated: it stays active if any running domain has GPUs of it.
pub fn release(partition: u32, listed: &[Listed], running: &[Running]) -> Release {
    let Some(found) = listed.iter().find(|one| one.id == partition) else {
        let listed = listed.len();
        return Release::Refused(PartitionRefusal::NotListed { partition, listed });
    };
    if !found.active {
        return Release::AlreadySo;
    }
    let modules = found.modules();
    if let Some(one) = running.iter().find(|one| one.has_any(&modules)) {
        let domain = one.domain.clone();
        return Release::Refused(PartitionRefusal::Held { partition, domain });
    }
    match running.iter().find(|one| one.may_have_any(&modules)) {
        None => Release::Deactivate,
        Some(one) => {
            let (domain, unknown) = (one.domain.clone(), one.unknown);
            Release::Refused(PartitionRefusal::UserUnknown { partition, domain, unknown })
        }
    }
}
