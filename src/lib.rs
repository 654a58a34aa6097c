//! gpuvm: plan, create, tune, verify and undo GPU virtual machines on libvirt.
//!
//! One direction; each arrow is one function, every value on it prints as JSON, only the ends touch the machine:
//!
//! ```text
//! host ───discover──▶ Topology ──┐
//! libvirt ─domains──▶ Occupancy ─┼─plan──▶ Placement ──edits──▶ DomainXml ──steps──▶ [Step] ──apply──▶ verify
//! args ───resolve───▶ Request ───┘  pure               pure                 pure       └ --dry-run prints here
//! ```
//!
//! The rooms: [`gpuvm_core`] decides and touches nothing, [`gpuvm_host`] reads and changes the machine, `cli` takes arguments
//! and prints. Imports point down only.

pub use gpuvm_core::{
    bdf, check, cpuset, domain, finding, hostnet, image, memsize, network, placement, request,
    seed, shell, topology, tune, verify, versions, words,
};
pub use gpuvm_host::{
    apply, blockdev, discover, fsroot, history, holders, hypervisor, input, netlink, program, trace,
};

pub mod cli;

#[cfg(test)]
#[allow(dead_code, clippy::print_stderr)]
#[path = "../tests/support/skip.rs"]
mod skip;
