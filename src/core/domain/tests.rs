//! What edits do to documents, and the whole guests that they make. What libvirt says to these is asked by the
//! integration tests.

mod corpus;
mod edits;
pub(crate) mod examples;
mod functions;
pub(crate) mod guests;
mod made;
pub(crate) mod readings;
mod settings;
