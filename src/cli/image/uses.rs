//! Who uses an image: what [`crate::hypervisor::uses`] knows.

pub use crate::hypervisor::uses::{Uses, files_of, volumes};
