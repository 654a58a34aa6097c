//! What gpuvm reads and changes: the host below a root directory, libvirt, and the steps of a change with their undo and
//! journal. Decides nothing: what is right is said by [`gpuvm_core`].

pub mod fsroot;
pub mod input;
pub mod netlink;
pub mod program;
pub mod trace;

pub mod discover;

pub mod blockdev;
pub mod holders;

pub mod hypervisor;

pub mod apply;

pub mod history;

#[cfg(test)]
#[allow(dead_code, clippy::print_stderr)]
#[path = "../../tests/support/skip.rs"]
mod skip;
