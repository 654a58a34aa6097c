//! `disk`: lists, adds, removes and grows disks of an existing domain, whoever made it.

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
