//! Domain XML: what edits do, and what libvirt says to the result.

mod corpus;
mod disks;
mod edits;
mod examples;
mod export;
mod functions;
pub mod guests;
mod recorded;
mod settings;
pub mod tools;
