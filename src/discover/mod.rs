//! From a host's files to a [`crate::topology::Topology`].
