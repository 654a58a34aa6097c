//! Tests that depend on libvirt and QEMU, on those of Debian 13 with backports: libvirt 12 and
//! QEMU 11, where `.ci/run` has 11 and 10. `GPUVM_TRIXIE=all`, as in `make test-nightly`, runs all;
//! `GPUVM_TRIXIE=short` those that judge the XML. The first run makes the root: minutes, a network.
//! What needs user-mode Linux is left out: that of Debian 13 ends in its init, and has no libvirt.

use crate::support::daemon::namespaces;
use crate::support::{lawful, project, run, skip};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

/// Those of all and short runs.
const XML: &[&str] = &["iommufd::", "xml::", "grace::libvirt", "libvirt::embed::", "check::"];
/// Guests that show their nodes from inside, on QEMU's emulator.
const NODES: &[&str] = &["grace::guest::"];
/// Whole guests, started and stopped.
const GUESTS: &[&str] = &["libvirt::", "--skip", "libvirt::traffic::"];
/// What is made of definitions.
const DEFINITIONS: &[&str] = &["tune::", "export::", "law::", "day::", "demo::", "doctor::"];
/// Attempts to break promises.
const ATTACKS: &[&str] = &["abuse::", "traps::", "damage::", "--skip", "abuse::drives::"];

/// The tests of one set take the whole machine.
static ONE: Mutex<()> = Mutex::new(());

/// Runs the tests of these names in the other Debian, or reports that they are left out.
fn passes(set: &[&str], is_short: bool) {
    match std::env::var("GPUVM_TRIXIE").as_deref() {
        Ok("all") => {}
        Ok("short") if is_short => {}
        _ => return skip(lawful::NIGHTLY),
    }
    if !namespaces() {
        return skip("namespaces need root");
    }
    let _alone = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("trixie");
    let mut command = Command::new(project().join("tests/trixie/run"));
    command.arg(root).arg("--").arg(std::env::current_exe().unwrap()).args(set);
    // What else the nightly set has whole does not depend on libvirt, and is sampled here.
    let whole = |name: &str, value: &str| name.starts_with("GPUVM_") && value == "all";
    for (name, _) in std::env::vars().filter(|(name, value)| whole(name, value)) {
        command.env_remove(name);
    }
    let (code, out, err) = run(command.env_remove("GPUVM_TRIXIE"));
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn definitions_are_taken_by_libvirt_12() {
    passes(XML, true);
}

#[test]
fn guests_of_qemu_11_show_nodes_buses_and_smmus_from_inside() {
    passes(NODES, false);
}

#[test]
fn guests_run_by_libvirt_12_and_qemu_11() {
    passes(GUESTS, false);
}

#[test]
fn definitions_are_tuned_and_exported_beside_libvirt_12() {
    passes(DEFINITIONS, false);
}

#[test]
fn promises_hold_beside_libvirt_12() {
    passes(ATTACKS, false);
}
