//! Errors that several of the modules here return.

mod array;
mod bind;

pub use array::ArrayError;
pub use bind::BindError;
