//! WantedGpus and chosen devices of a host, as data.

use super::extras::Extras;
use super::slots::Mask;
use crate::bdf::Bdf;
use crate::topology::PartitionId;

/// The wanted GPUs of this host.
#[derive(Debug, Clone, Copy)]
pub(super) enum WantedGpus {
    /// This many.
    Any(usize),
    /// These.
    These(Mask),
}

/// The devices passed through to a guest.
#[derive(Debug, Default)]
pub(super) struct Devices {
    pub(super) partition: Option<PartitionId>,
    /// GPUs, by address.
    pub(super) gpus: Vec<Bdf>,
    /// NVSwitches, by address.
    pub(super) switches: Vec<Bdf>,
    /// Functions that it gets in any case.
    pub(super) given: Vec<Bdf>,
    /// NICs, virtual functions and NVMe drives.
    pub(super) extras: Extras,
    /// Functions that have to come along, by address.
    pub(super) companions: Vec<Bdf>,
}

impl Devices {
    /// All of them in guest order.
    pub(super) fn all(&self) -> Vec<Bdf> {
        [self.asked(), self.companions.clone()].concat()
    }

    /// All but those that come along, in guest order.
    pub(super) fn asked(&self) -> Vec<Bdf> {
        let Extras { nics, vfs, nvmes } = &self.extras;
        [&self.gpus[..], &self.switches, &self.given, nics, vfs, nvmes].concat()
    }
}

/// A set of GPUs that was chosen.
#[derive(Debug, Default)]
pub(super) struct Set {
    /// The partition; none if it is not a listed one.
    pub(super) id: Option<PartitionId>,
    pub(super) gpus: Mask,
    pub(super) switches: Mask,
}
