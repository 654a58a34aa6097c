//! `make demo` on machines as strangers have them: without KVM, with a read-only /sys, without
//! root, in a container that may not mount. Nowhere is a libvirtd needed.

use crate::support::daemon::namespaces;
use crate::support::{project, run};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// The demo and its requirements, readable by everyone, and a file that is no device.
fn copied() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(dir.path().join("hosts")).unwrap();
    for file in ["demo", "as-host", "unpack-host", "hosts/dgx-2.tree"] {
        fs::copy(project().join("tests").join(file), dir.path().join(file)).unwrap();
    }
    fs::copy(env!("CARGO_BIN_EXE_gpuvm"), dir.path().join("gpuvm")).unwrap();
    fs::write(dir.path().join("no-device"), "").unwrap();
    dir
}

/// Runs the demo by a shell script whose `$1` is the folder of [`copied`], and returns its output.
fn shown(dir: &Path, script: &str) -> String {
    let text = format!("set -e\n{script} \"$1/demo\" \"$1/gpuvm\"\n");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "bash", "-c", &text, "demo"]).arg(dir);
    let (code, out, err) = run(command.env("LC_ALL", "C").env_remove("LIBVIRT_DEFAULT_URI"));
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("== 6. This machine") && out.contains("$ gpuvm host show\n"), "{out}");
    out
}

#[test]
fn the_demo_creates_a_guest_without_kvm_and_with_a_read_only_sys() {
    if !namespaces() {
        return;
    }
    let dir = copied();
    let hidden = "[ ! -e /dev/kvm ] || mount --bind \"$1/no-device\" /dev/kvm\n\
                  mount -o remount,ro,bind /sys 2>/dev/null || mount --bind -o ro /sys /sys\n";
    let out = shown(dir.path(), hidden);
    assert!(out.contains("no usable /dev/kvm"), "{out}");
    assert!(out.contains("$ gpuvm delete demo --yes"), "{out}");
    assert!(!Path::new("/dev/kvm").is_file(), "the demo made a file in the place of the device");
}

#[test]
fn the_demo_goes_on_without_root_and_says_what_it_leaves_out() {
    if !namespaces() {
        return;
    }
    let dir = copied();
    let unprivileged = "setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/nonexistent";
    let out = shown(dir.path(), unprivileged);
    assert!(
        out.contains("4 and 5, left out: creating that guest on real libvirt needs root"),
        "{out}"
    );
    assert!(!out.contains("gpuvm create"), "{out}");
}

#[test]
fn the_demo_goes_on_in_a_container_that_may_not_mount() {
    if !namespaces() {
        return;
    }
    let dir = copied();
    let out = shown(dir.path(), "setpriv --bounding-set -sys_admin");
    assert!(
        out.contains(
            "4 and 5, left out: creating that guest on real libvirt needs mount namespaces"
        )
    );
}
