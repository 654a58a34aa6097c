//! What edits do to documents, and the whole guests that they make. What libvirt says to these is asked by the
//! integration tests.

mod corpus;
mod edits;
mod examples;
mod functions;
mod guests;
mod made;
mod readings;
mod settings;
