//! A planned guest, as data.

use crate::placement::{Occupancy, Placement};
use crate::request::{DomainName, Request};
use crate::topology::Topology;
use crate::world::RecordedStack;
use gpuvm_core::versions::Stack;

/// A guest with its placement and name, and the data they were derived from.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The host.
    pub topology: Topology,
    /// The request.
    pub request: Request,
    /// The placement.
    pub placement: Placement,
    /// Its name.
    pub name: DomainName,
    /// The occupancy of the host.
    pub occupancy: Occupancy,
    /// libvirt and QEMU of a recorded host; `None` if it is no record.
    pub stack: Option<RecordedStack>,
}

impl Planned {
    /// The libvirt and QEMU that are assumed of a recorded host; `None` if they are known.
    pub fn assumed(&self) -> Option<Stack> {
        self.stack.filter(|of| of.is_assumed).map(|of| of.stack)
    }
}
