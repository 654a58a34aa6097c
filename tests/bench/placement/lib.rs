//! Planners against each other on the same hosts and the same streams of guests.
//!
//! `cargo bench -- placement` prints the table and writes the picture; the parts that need no clock
//! are tested here. Peers are models written from their documentation (gpuvm-placement(7), OTHER
//! PLANNERS); each is checked by vectors of the kind that its project publishes.

#![allow(clippy::unwrap_used, clippy::missing_docs_in_private_items)]

pub mod baselines;
pub mod beside;
pub mod build;
pub mod causes;
pub mod compare;
pub mod exact;
pub mod hosts;
pub mod joint;
pub mod metrics;
pub mod model;
pub mod optimum;
pub mod ours;
pub mod picture;
pub mod room;
pub mod run;
pub mod stream;
pub mod table;

#[cfg(test)]
mod exacttests;
#[cfg(test)]
mod gates;
#[cfg(test)]
mod judgetests;
#[cfg(test)]
mod optimumtests;
