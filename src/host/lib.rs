//! The I/O of gpuvm: reads the host below a root directory, talks to libvirt, and performs the
//! steps of a change with undo and journal. Decides nothing: that is left to [`gpuvm_core`].
//!
//! Reads a recorded machine, and this one:
//!
//! ```
//! use gpuvm_host::discover::{discover, source};
//! use gpuvm_host::fsroot::FsRoot;
//! use std::path::Path;
//!
//! # let record = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../topologies/dgx-2.json"));
//! // A file of `gpuvm host capture`, a directory with its `sys` and `proc`, or an XML of lstopo.
//! let dgx = source::load(record)?;
//! assert_eq!(dgx.gpus().count(), 16);
//!
//! let here = discover(&FsRoot::live()?)?;
//! assert!(here.nodes().len() >= 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod child;
pub mod command;
pub mod fetch;
pub mod fsroot;
pub mod identity;
pub mod input;
pub mod later;
mod loaded;
pub mod netlink;
pub mod pinned_dir;
pub mod program;
pub mod quiet;
pub mod trace;
pub mod tree;

pub mod fabric;

pub mod discover;

pub mod blockdev;
pub mod function_users;
pub mod load;

pub mod hypervisor;

pub mod apply;

pub mod history;

pub mod bundle;

pub mod signature;
pub mod slurm;

#[cfg(test)]
#[allow(dead_code, clippy::print_stderr)]
#[path = "../../tests/support/skip.rs"]
mod skip;
