//! Attempts to make gpuvm lose what is not its own, work on the wrong machine, hang or say what is not so. Each case was
//! once seen to succeed. `cargo test --test main abuse::` runs them alone; they need root for a libvirtd of their own.

mod attack;
mod devices;
mod drives;
mod later;
mod machine;
mod privilege;
mod recover;
mod uses;
mod words;
