//! The one description of a guest: the options that request it, its present values, and the
//! differences. Knows no hypervisor, no verb and no file.

mod differences;
mod now;
mod opt;
mod options;

pub(crate) use differences::are_same_vgpus;
pub use differences::{Found, GuestDifference, differences, running};
pub use now::{Guest, functions_of, gpus_of, now};
pub use opt::{Opt, Shape};
pub use options::{Changed, GPU_OPTIONS, changes, options};

#[cfg(test)]
mod tests;
