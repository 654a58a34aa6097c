//! The disks of guests: what stands in the way of new ones, and how they are read and written best.

mod error;
pub mod room;
mod tuning;

pub use error::StorageError;
pub use tuning::{abilities, best_io};
