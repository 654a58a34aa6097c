//! Attempts to make gpuvm destroy others' data, work on the wrong machine, hang or report
//! falsehoods. Each of these attacks once succeeded. `cargo test --test main abuse::` runs them
//! alone; they need root for a libvirtd of their own.

mod accounts;
mod acs;
mod arguments;
mod attack;
mod boot;
mod busy;
mod clock;
mod devices;
mod drives;
mod elsewhere;
mod headers;
mod identity;
mod later;
mod machine;
mod output;
mod privilege;
mod recover;
mod uses;
mod words;
