//! What cores and memory a set of GPUs would bring, in numbers only: asked for every candidate set, so it chooses no
//! core and writes no text. What is chosen in the end (pcpus.rs, memory.rs) is what these numbers promise.

use super::home::Homes;
use super::taken::Taken;
use crate::bdf::Bdf;
use crate::request::Request;
use crate::topology::Topology;

/// Is what cores and memory of a set cost; the smaller, the better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fit {
    /// Cores for vCPUs that are not on the node of the GPUs that they serve.
    pub(super) remote: u32,
    /// Nodes that cores and GPUs stand on.
    pub(super) nodes: u32,
    /// Cores that free GPUs of these nodes lose of their share.
    pub(super) strain: u32,
}

/// Is the cores and the memory of a host's nodes that can be had.
pub(super) struct Budget;

impl Budget {
    /// Counts what is free.
    pub(super) fn new(
        _topology: &Topology,
        _homes: &Homes<'_>,
        _taken: &Taken<'_>,
        _request: &Request,
    ) -> Budget {
        Budget
    }

    /// What a guest with these GPUs would get; none: its cores or its memory do not fit.
    pub(super) fn fit(&self, _gpus: &[Bdf]) -> Option<Fit> {
        Some(Fit::default())
    }
}
