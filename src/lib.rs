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
//! Modules in reading order. `topology`, `network`, `hostnet`, `request`, `placement` and `domain` do no I/O and print
//! nothing; only `discover` and `apply` touch the machine; only `cli` prints. Imports point left along the pipe.

pub mod bdf;
pub mod cpuset;
pub mod memsize;
pub mod versions;

pub mod fsroot;
pub mod input;
pub mod netlink;
pub mod program;

pub mod topology;

pub mod network;

pub mod hostnet;

pub mod discover;

pub mod blockdev;

pub mod request;

pub mod placement;

pub mod domain;

pub mod check;

pub mod tune;

pub mod verify;

pub mod holders;

pub mod image;
pub mod seed;
pub mod shell;
pub mod words;

pub mod hypervisor;

pub mod apply;

pub mod history;
pub mod kept;

pub mod cli;
