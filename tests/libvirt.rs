//! The program on libvirt: the test driver, the embedded QEMU driver, and a libvirtd for the tests.

mod applied;
mod autostart;
mod bad;
mod boot;
mod bundled;
mod cloned;
mod concurrent;
mod convert;
mod copies;
mod corpus;
mod disks;
mod driver;
mod embed;
mod faults;
mod guestdisks;
mod guestnics;
mod hostset;
mod image;
mod imagefail;
mod imagefetch;
mod killed;
mod life;
mod makeroom;
mod network;
mod offers;
mod pages;
pub mod place;
mod plugged;
mod resized;
mod seed;
mod setfunctions;
mod setnics;
mod shots;
mod storage;
mod top;
mod traffic;
mod trust;
mod tune;
mod undo;
mod untested;
mod vendor;
mod verbs;
mod verify;
mod view;
mod window;

use crate::support::{host_tree, project};
use std::path::Path;
use std::process::Command;

/// A command line of a shell that runs as if on the recorded DGX-2; `$GPUVM` and variables set on
/// the command reach it.
fn on_dgx2(script: &str) -> Command {
    on_host("dgx-2", script)
}

/// A command line of a shell that runs as if on a recorded host.
fn on_host(host: &str, script: &str) -> Command {
    let mut command = Command::new(project().join("tests/as-host"));
    command.arg(host_tree(host)).args(["bash", "-ec", script]);
    command.env("GPUVM", env!("CARGO_BIN_EXE_gpuvm")).env("LC_ALL", "C").env_remove("COLUMNS");
    command.env_remove("LIBVIRT_DEFAULT_URI");
    command
}

/// The files below a directory, by name; empty if it does not exist.
pub fn files(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<String> =
        entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
