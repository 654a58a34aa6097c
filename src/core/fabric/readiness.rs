//! Which partitions Fabric Manager would not activate for a new guest now, by the decision that
//! `create` and `start` obey, so that a plan avoids them or says why.

use super::{
    Decision, Listed, Modules, PartitionRefusal, RestoreList, Running, Wanted, decide, need,
};
use crate::topology::Topology;
use std::fmt;

/// What keeps partitions from being activated for new guests; by default nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Partitions that are not activated, each with the reason; without those whose GPUs running
    /// domains have.
    pub refused: Vec<PartitionRefusal>,
    /// Why none is activated; none: Fabric Manager answers, or is not asked.
    pub unready: Option<Unready>,
}

/// Why Fabric Manager activates no partition at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unready {
    /// What it says, or why it is not asked.
    pub why: String,
    /// What helps.
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

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Refused(why) => write!(f, "{why}; {}", why.hint()),
            Obstacle::Unready(Unready { why, hint }) => {
                write!(f, "NVLink partitions cannot be activated now: {why}; {hint}")
            }
        }
    }
}

impl Readiness {
    /// Returns why a partition is not activated now; none: it would be.
    pub fn obstacle(&self, partition: u32) -> Option<Obstacle> {
        let refused = || self.refused.iter().find(|why| why.partition() == partition);
        match &self.unready {
            Some(unready) => Some(Obstacle::Unready(unready.clone())),
            None => refused().cloned().map(Obstacle::Refused),
        }
    }

    /// Returns all that is to be said of it, each cause once: not of partitions that only share GPUs
    /// with an unused one.
    pub fn causes(&self) -> Vec<Obstacle> {
        let shares = |why: &&PartitionRefusal| matches!(why, PartitionRefusal::Overlap { .. });
        let own = self.refused.iter().filter(|why| !shares(why)).cloned();
        let unready = self.unready.iter().cloned().map(Obstacle::Unready);
        unready.chain(own.map(Obstacle::Refused)).collect()
    }

    /// Returns what stays of it when no domain runs.
    pub fn without_domains(&self) -> Readiness {
        let stays = |why: &&PartitionRefusal| !why.is_of_domain();
        let refused = self.refused.iter().filter(stays).cloned().collect();
        Readiness { refused, unready: self.unready.clone() }
    }
}

/// Returns the partitions of a host that are not activated for a new guest now, by Fabric Manager's
/// list, the running domains and the recorded activations. Those with GPUs of running domains are
/// left out: these GPUs are known to be taken.
pub fn refusals(
    topology: &Topology,
    listed: &[Listed],
    running: &[Running],
    remembered: &RestoreList,
) -> Vec<PartitionRefusal> {
    let refusal = |gpus: &[_]| {
        let need = need(topology, gpus).ok().flatten()?;
        let modules: Modules = need.placed(listed)?.into_iter().map(|(module, _)| module).collect();
        if running.iter().any(|one| one.has_any(&modules)) {
            return None;
        }
        let wanted = Wanted { partition: need.partition, modules, domain: String::new() };
        match decide(&wanted, listed, running, remembered) {
            Decision::Refused(refusal) => Some(refusal),
            Decision::Activate | Decision::AlreadySo => None,
        }
    };
    topology.partitions().iter().filter_map(|partition| refusal(&partition.gpus)).collect()
}
