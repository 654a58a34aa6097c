//! vGPUs of the host's cards: their types and holders, the virtual functions that they need, and
//! those of a guest.

pub mod claim;
pub mod list;
pub mod vfs;
