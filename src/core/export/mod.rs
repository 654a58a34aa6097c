//! A planned guest in the words of other platforms: KubeVirt and OpenStack Nova.
//!
//! These place guests by themselves. The shape of a plan goes over (vCPUs, threads, cells, pages,
//! kinds and numbers of devices, policies), and its pins do not; every export lists lost settings.
//! gpuvm-export(7) has each field with its source.
//!
//! Writes no file, and asks no platform.

pub mod kubevirt;
mod lost;
pub mod nova;
pub mod resource;
mod shape;
#[cfg(test)]
mod tests;
pub mod yaml;

use crate::bdf::Bdf;
use crate::cpuset::NodeSet;
use crate::memsize::MemSize;
use crate::placement::{Occupancy, Placement};
use crate::request::{DomainName, Request};
use crate::topology::Topology;
pub use lost::{Lost, LostKind, comments};
use resource::ResourceWish;

/// A guest to be exported.
#[derive(Debug, Clone, Copy)]
pub struct PlatformGuest<'a> {
    /// Its name.
    pub name: &'a DomainName,
    /// The host that it was planned on.
    pub topology: &'a Topology,
    /// The occupancy of that host.
    pub occupancy: &'a Occupancy,
    /// The request.
    pub request: &'a Request,
    /// The plan.
    pub placement: &'a Placement,
    /// Its disks.
    pub disks: PlatformDisks,
    /// Names of devices that the caller gives.
    pub resources: &'a [ResourceWish],
    /// Losses outside the plan that the caller knows.
    pub lost: &'a [Lost],
}

/// Sizes of a guest's disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlatformDisks {
    /// The boot disk.
    pub os: MemSize,
    /// Whether it has an image's content.
    pub has_image: bool,
    /// The data disk; `None` if it has none.
    pub data: Option<MemSize>,
}

/// The reason a guest cannot be exported to a platform.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "platform-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum PlatformError {
    /// The platform would have to round the memory, as the plan does.
    #[error("{asked} of memory is not a multiple of {of}, and the plan has {planned}")]
    Memory {
        asked: String,
        /// The unit that it must be a multiple of.
        of: String,
        /// The value in the plan.
        planned: String,
    },
    /// A cell's memory is not a whole number of the platform's units.
    #[error("cell {cell} has {memory} of memory, and Nova counts whole MiB")]
    CellMemory { cell: usize, memory: String },
    /// The last core would be shared with another guest.
    #[error(
        "{vcpus} vCPUs do not fill whole cores of {threads} threads, which Nova's thread policy \
         `require` gives"
    )]
    OddVcpus {
        vcpus: u32,
        threads: u32,
        /// The next number of vCPUs that fills whole cores.
        next: u32,
    },
    /// A cell spans several host nodes.
    #[error("cell {cell} has vCPUs on nodes {nodes}, and Nova puts each cell on one node")]
    SpreadCell { cell: usize, nodes: NodeSet },
    /// No name is known for a device.
    #[error("{bdf} is a {ids}, for which gpuvm knows no resource name")]
    UnknownDevice {
        bdf: Bdf,
        ids: String,
        /// A name of the form that the platform takes.
        example: String,
    },
    /// A name was given for a device that the guest does not have.
    #[error("--resource names {ids}, and the guest has no such device")]
    UnusedResource { ids: String, has: String },
    /// Devices are given two names.
    #[error("--resource names {ids} twice: `{first}` and `{second}`")]
    TwoNames { ids: String, first: String, second: String },
    /// The platform does not take the given name of a device.
    #[error("resource name `{name}` of {ids} {why}")]
    ResourceName {
        name: String,
        ids: String,
        why: &'static str,
        /// A name of the form that the platform takes.
        example: String,
    },
    /// Two kinds of devices would have one name.
    #[error("{first} and {second} would both be `{name}`")]
    SameName {
        name: String,
        /// Vendor and device id of the first.
        first: String,
        second: String,
    },
    /// The guest's name is not one of Kubernetes.
    #[error("`{name}` is not a name in Kubernetes: {why}")]
    Name {
        name: String,
        why: String,
        /// The nearest name that is one.
        near: String,
    },
}
