//! `tune`: the vendor guide's examples corrected, documents of every shape, many domains at once.

mod convert;
pub mod corpus;
pub mod domains;
mod edges;
mod guide;
mod many;
mod mutated;
mod posted;
pub mod property;
mod refused;
mod traps;
mod whole;
