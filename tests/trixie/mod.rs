//! Tests that depend on libvirt and QEMU, on those of Debian 13 with backports: libvirt 12 and
//! QEMU 11, where `.ci/run` has 11 and 10. They are ignored except by `make test-nightly`; those
//! that judge the XML: `--ignored definitions_are_taken`. The first run makes the root: minutes, a
//! network.
//! What needs user-mode Linux is left out: that of Debian 13 ends in its init, and has no libvirt.

use crate::support::daemon::namespaces;
use crate::support::{project, run, skip, tamper};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

/// Those of all and short runs.
const XML: &[&str] = &["iommufd::", "xml::", "grace::libvirt", "libvirt::embed::", "check::"];
/// Guests that show their nodes from inside, on QEMU's emulator.
const NODES: &[&str] = &["grace::guest::"];
/// Whole guests, started and stopped.
const GUESTS: &[&str] = &[
    "libvirt::",
    "--skip",
    "libvirt::traffic::",
    // The image of its guest is made by debootstrap.
    "--skip",
    "libvirt::boot::",
    "--skip",
    "libvirt::offers::each_command_that_is_offered",
];
/// Products of definitions.
const DEFINITIONS: &[&str] = &["tune::", "export::", "law::", "day::", "demo::", "doctor::"];
/// Attempts to break promises.
const ATTACKS: &[&str] = &["abuse::", "traps::", "damage::", "--skip", "abuse::drives::"];

/// The tests of one set take the whole machine.
static ONE: Mutex<()> = Mutex::new(());

/// Runs the tests of these names in the other Debian.
fn passes(set: &[&str]) {
    if !namespaces() {
        return skip("namespaces need root");
    }
    let _alone = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("trixie");
    let mut command = Command::new(project().join("tests/trixie/run"));
    command.arg(&root).arg("--").arg(std::env::current_exe().unwrap()).args(set);
    // There is no toolchain.
    let libraries = root.join("libraries");
    std::fs::create_dir_all(&libraries).unwrap();
    for (source, name) in tamper::LIBRARIES {
        tamper::library(&libraries, source, name);
    }
    command.env(tamper::MADE, libraries);
    // Other sets of the nightly run do not depend on libvirt, and are sampled here.
    let whole = |name: &str, value: &str| name.starts_with("GPUVM_") && value == "all";
    for (name, _) in std::env::vars().filter(|(name, value)| whole(name, value)) {
        command.env_remove(name);
    }
    let (code, out, err) = run(&mut command);
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
#[ignore = "nightly: debootstrap makes a Debian 13 of 1 GB"]
fn definitions_are_taken_by_libvirt_12() {
    passes(XML);
}

#[test]
#[ignore = "nightly: in that Debian 13, and two guests are booted by emulation"]
fn guests_of_qemu_11_show_nodes_buses_and_smmus_from_inside() {
    passes(NODES);
}

#[test]
#[ignore = "nightly: runs whole sets of tests in that Debian 13"]
fn guests_run_by_libvirt_12_and_qemu_11() {
    passes(GUESTS);
}

#[test]
#[ignore = "nightly: runs whole sets of tests in that Debian 13"]
fn definitions_are_tuned_and_exported_beside_libvirt_12() {
    passes(DEFINITIONS);
}

#[test]
#[ignore = "nightly: runs whole sets of tests in that Debian 13"]
fn promises_hold_beside_libvirt_12() {
    passes(ATTACKS);
}
