//! Reads the counters of running guests from the kernel: of threads, control groups, NICs, passed
//! devices and the host. Files that are read each second stay open. Judges nothing.

mod cgroup;
mod device;
mod function;
mod guest;
mod host;
mod kvm;
mod stat;
mod tasks;

pub use guest::{GuestFiles, GuestSource, Reading};
pub use host::host;
pub use tasks::{last_pcpu, scan};
