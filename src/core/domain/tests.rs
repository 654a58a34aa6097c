//! The effects of edits on documents, and the whole guests that they make. The integration tests
//! ask libvirt about these.
// A table of examples is one table.
#![allow(clippy::too_many_lines)]

mod corpus;
mod edits;
pub(crate) mod examples;
mod functions;
pub(crate) mod guests;
mod made;
pub(crate) mod readings;
mod settings;
