//! Which partitions Fabric Manager would not activate for a new guest now, by the decision that
//! `create` and `start` obey, so that a plan avoids them or says why.

use super::{
    Decision, Listed, Modules, NeededPartition, PartitionRefusal, RestoreEntry, RestoreList,
    Running, decide, need,
};
use crate::topology::Topology;
use std::fmt;

/// The reasons why partitions cannot be activated for new guests; by default none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Partitions that are not activated, each with the reason; without those whose GPUs running
    /// domains have.
    pub refused: Vec<PartitionRefusal>,
    /// Why none is activated; `None` if Fabric Manager answers, or is not asked.
    pub unready: Option<Unready>,
    /// Those of the refused partitions that are active for a domain which is off: for it they are
    /// ready.
    pub kept: Vec<RestoreEntry>,
}

/// Why Fabric Manager activates no partition at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unready {
    /// Its answer, or why it is not queried.
    pub why: String,
    /// The remedy.
    pub hint: String,
}

/// Why a partition is not activated now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// This one is not.
    Refused(PartitionRefusal),
    /// None is.
    Unready(Unready),
}

impl Obstacle {
    /// Returns the reason without the remedy.
    pub fn what(&self) -> String {
        match self {
            Obstacle::Refused(why) => why.to_string(),
            Obstacle::Unready(Unready { why, .. }) => {
                format!("NVLink partitions cannot be activated now: {why}")
            }
        }
    }

    /// Returns the remedy.
    pub fn hint(&self) -> String {
        match self {
            Obstacle::Refused(why) => why.hint(),
            Obstacle::Unready(Unready { hint, .. }) => hint.clone(),
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what(), self.hint())
    }
}

impl Readiness {
    /// Returns why a partition is not activated now; `None` if it would be.
    pub fn obstacle(&self, partition: u32) -> Option<Obstacle> {
        let refused = || self.refused.iter().find(|why| why.partition() == partition);
        match &self.unready {
            Some(unready) => Some(Obstacle::Unready(unready.clone())),
            None => refused().cloned().map(Obstacle::Refused),
        }
    }

    /// Returns all messages about it, each cause once: not about partitions that only share GPUs
    /// with an unused one.
    pub fn causes(&self) -> Vec<Obstacle> {
        let shares = |why: &&PartitionRefusal| matches!(why, PartitionRefusal::Overlap { .. });
        let own = self.refused.iter().filter(|why| !shares(why)).cloned();
        let unready = self.unready.iter().cloned().map(Obstacle::Unready);
        unready.chain(own.map(Obstacle::Refused)).collect()
    }

    /// Returns its part that stays when no domain runs.
    pub fn without_domains(&self) -> Readiness {
        let stays = |why: &&PartitionRefusal| !why.is_of_domain();
        let refused = self.refused.iter().filter(stays).cloned().collect();
        Readiness { refused, ..self.clone() }
    }

    /// Returns the obstacles to activating partitions for an existing domain that is off: a
    /// partition still active for it is not refused. `ends`: it is deactivated first.
    pub fn for_domain(&self, uuid: Option<&str>, ends: bool) -> Readiness {
        let is_its = |entry: &&RestoreEntry| {
            uuid.is_some_and(|uuid| entry.domain.eq_ignore_ascii_case(uuid))
        };
        let own: Vec<u32> = self.kept.iter().filter(is_its).map(|entry| entry.id).collect();
        let is_its = |why: &PartitionRefusal| {
            let stale = why.stale().filter(|id| own.contains(id));
            stale.is_some_and(|id| ends || why.partition() == id)
        };
        let refused = self.refused.iter().filter(|why| !is_its(why)).cloned().collect();
        Readiness { refused, ..self.clone() }
    }
}

/// Returns which partitions of a host are not activated for a new guest now, by Fabric Manager's
/// list, the running domains and the recorded activations. Those with GPUs of running domains are
/// left out: these GPUs are known to be taken.
pub fn refusals(
    topology: &Topology,
    listed: &[Listed],
    running: &[Running],
    remembered: &RestoreList,
) -> Readiness {
    let refusal = |gpus: &[_]| {
        let need = need(topology, gpus).ok().flatten()?;
        let modules: Modules = need.placed(listed)?.into_iter().map(|(module, _)| module).collect();
        if running.iter().any(|one| one.has_any(&modules)) {
            return None;
        }
        let (partition, domain) = (need.partition, String::new());
        let wanted = NeededPartition { partition, modules, domain, is_shared: false };
        match decide(&wanted, listed, running, remembered) {
            Decision::Refused(refusal) => Some(refusal),
            Decision::Activate | Decision::AlreadySo => None,
        }
    };
    let all = topology.partitions().iter();
    let refused: Vec<_> = all.filter_map(|partition| refusal(&partition.gpus)).collect();
    let is_same = |entry: &&RestoreEntry| {
        listed.iter().any(|one| one.id == entry.id && one.modules() == entry.modules)
    };
    let kept = remembered.partitions.iter().filter(is_same).cloned().collect();
    Readiness { refused, unready: None, kept }
}
