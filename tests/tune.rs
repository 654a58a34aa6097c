//! `tune`: the vendor guide's examples corrected, documents of every shape, many domains at once.

mod corpus;
mod domains;
mod guide;
mod many;
mod property;
mod refused;
