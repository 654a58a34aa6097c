//! gpuvm: plan, create, tune, verify and undo GPU virtual machines on libvirt.
//!
//! One direction; each arrow is one function, every value on it prints as JSON, only the ends touch
//! the machine:
//!
//! ```text
//! host ───discover──▶ Topology ──┐
//! libvirt ─domains──▶ Occupancy ─┼─plan──▶ Placement ──edits──▶ DomainXml ──steps──▶ [Step] ──apply──▶ verify
//! args ───resolve───▶ Request ───┘  pure               pure                 pure       └ --dry-run prints here
//! ```
//!
//! The rooms: [`gpuvm_core`] decides and touches nothing, [`gpuvm_host`] reads and changes the
//! machine, `cli` takes arguments and prints. Imports point down only.
//!
//! A program that has a command line of its own may run one of gpuvm's:
//!
//! ```
//! # let record = concat!(env!("CARGO_MANIFEST_DIR"), "/topologies/dgx-2.json");
//! let code = gpuvm::cli::main(["gpuvm", "plan", "--gpus", "2", "--host", record].map(Into::into));
//! assert_eq!(code, 0);
//! ```
//!
//! One that has none asks the rooms themselves: [`gpuvm_core`] plans, [`gpuvm_host`] discovers, and
//! `gpuvm_ops` creates, starts and stops; each begins with an example.

pub use gpuvm_core::{
    bdf, check, cpuset, domain, finding, health, hostnet, image, memsize, nccl, network, placement,
    request, seed, shell, topology, tune, verify, versions, words,
};
pub use gpuvm_host::{
    apply, blockdev, command, discover, fetch, fsroot, function_users, history, hypervisor,
    identity, input, netlink, pinned_dir, program, signature, trace, tree,
};

pub mod cli;
