//! Peer-to-peer transactions between PCIe functions: the registers that decide their way, and the
//! way itself. Pure, and knows nothing of a host: registers and ports in, routes out.

mod registers;
mod route;

pub use registers::{Acs, Ats, Registers, bits, control_at, is_relaxed, names};
pub use route::{Block, Code, End, Op, Port, Route, Translation, Way, route};

#[cfg(test)]
mod tests;
