//! Fabric Manager and NVML on a live machine: the program runs as if on a recorded host, and the
//! dynamic loader finds fakes of both libraries (tests/fake-nvfm, tests/fake-nvml).

mod abi;
mod bridges;
mod create;
mod guests;
mod health;
mod hook;
mod library;
mod listed;
mod machine;
mod modules;
mod restore;
mod show;
mod switches;
mod verify;

pub use machine::fakes;
