//! The decisions of gpuvm: where a GPU guest is placed, the content of its libvirt domain, and the
//! faults of an existing one.
//!
//! ```text
//! Topology ──┐
//! Occupancy ─┼─plan──▶ Placement ──edits──▶ DomainXml
//! Request ───┘
//! ```
//!
//! Values in, values out: nothing here opens a file, reads the clock or the environment, or starts
//! a process. Imports point left along the pipe.
//!
//! Plans two GPUs of a recorded DGX-2:
//!
//! ```
//! use gpuvm_core::placement::{Occupancy, plan};
//! use gpuvm_core::request::Request;
//! use gpuvm_core::topology::file::from_json;
//!
//! # let record = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../topologies/dgx-2.json"));
//! // What `gpuvm host capture FILE` has written.
//! let host = from_json(record)?;
//! let placement = plan(&host, &Occupancy::default(), &Request::for_gpus(2))?;
//! assert_eq!(placement.vcpu_pins.len(), 10);
//! assert_eq!(placement.vcpu_pins[1].to_string(), "48", "the other thread of the first core");
//! for reason in &placement.reasons {
//!     println!("{reason:?}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod bdf;
pub mod cpuset;
pub mod ethernet;
pub mod finding;
pub mod host_device;
pub mod measure;
pub mod memsize;
pub mod p2p;
pub mod shell;
pub mod versions;
pub mod words;
pub mod xid;

pub mod fabric;
pub mod health;
pub mod topology;

pub mod iommufd;

pub mod hostnet;
pub mod network;

pub mod request;

pub mod occupancy;
pub mod placement;

pub mod domain;

pub mod guest;

pub mod check;
pub mod doctor;
pub mod fleet;
pub mod load;
pub mod nccl;
pub mod tune;
pub mod user;
pub mod verify;

pub mod export;
pub mod metrics;
pub mod view;

pub mod bundle;
pub mod image;
#[cfg(feature = "schema")]
mod schema;
pub mod seed;
pub mod slurm;

// Test tables shared with the integration tests refer to the crate by name.
#[cfg(test)]
extern crate self as gpuvm_core;
#[cfg(test)]
pub(crate) mod golden;
#[cfg(test)]
pub(crate) mod share;
