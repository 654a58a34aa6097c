//! Connections to other machines.
