//! `disk`: the disks of a domain that is there, whoever made it: which it has, one more, one less, a larger one.

pub mod add;
pub mod error;
pub mod inside;
pub mod list;
pub mod remove;
pub mod resize;
mod settled;
mod subject;
#[cfg(test)]
mod tests;
