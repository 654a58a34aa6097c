//! Verbs that change a host, on a tray: their steps there, and their refusals.

use super::{NEW, on, tray};
use crate::support::grace::{Grace, TRAY};
use crate::support::tree::scratch;
use crate::support::{gpuvm, project, run, skip};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs the program as if this machine were a host: its processor's architecture and its modules,
/// beside what `as-host` shows. None: it needs root.
fn as_tray(host: &Path, words: &[&str]) -> Option<(i32, String, String)> {
    if !nix::unistd::geteuid().is_root() {
        return skip("needs root");
    }
    let script = r#"set -e
        for name in arch osrelease; do
          mount --bind "$HOST/proc/sys/kernel/$name" "/proc/sys/kernel/$name"
        done
        mkdir -p /lib/modules && mount --bind "$HOST/lib/modules" /lib/modules
        exec "$@" -c none:///"#;
    let mut command = Command::new(project().join("tests/as-host"));
    command.arg(host).args(["bash", "-c", script, "as-tray", env!("CARGO_BIN_EXE_gpuvm")]);
    Some(run(command.args(words).env("HOST", host)))
}

/// A tray whose GPUs the host's driver has.
fn of_nvidia() -> tempfile::TempDir {
    let dir = scratch();
    Grace { driver: "nvidia", ..Grace::tray() }.make(dir.path());
    dir
}

#[test]
fn gpus_are_bound_to_their_own_driver_now_and_by_the_unit_at_boot() {
    let host = of_nvidia();
    for gpus in [&TRAY[..1], &TRAY] {
        let words = [&["device", "bind"], gpus, &["--at-boot", "--dry-run"]].concat();
        let Some((code, out, err)) = as_tray(host.path(), &words) else { return };
        assert_eq!(code, 0, "{out}{err}");
        for gpu in gpus {
            let line = format!("bind {gpu} to nvgrace-gpu-vfio-pci, from nvidia\n");
            assert!(out.contains(&line), "{line}: {out}");
        }
        assert!(out.contains("write /etc/systemd/system/gpuvm-vfio.service\n"), "{out}");
        // Options of vfio-pci would give it the GPUs, without their memory.
        assert!(!out.contains("/etc/modprobe.d/"), "{out}");
    }
}

#[test]
fn huge_pages_are_those_of_nodes_with_cpus() {
    let host = of_nvidia();
    let pool = host.path().join("sys/devices/system/node/node2/hugepages/hugepages-2048kB");
    fs::create_dir_all(&pool).unwrap();
    for name in ["nr_hugepages", "free_hugepages", "surplus_hugepages"] {
        fs::write(pool.join(name), "0\n").unwrap();
    }
    let set = |node: &str| {
        let words = ["host", "pages", "--node", node, "--size", "2M", "--count", "10", "--dry-run"];
        as_tray(host.path(), &words)
    };
    let Some((code, out, err)) = set("1") else { return };
    assert!(code == 0 && out == "reserve 10 pages of 2 MiB on node 1, 10 in all\n", "{out}{err}");
    let Some((code, out, err)) = set("2") else { return };
    assert!(code == 1 && out.is_empty(), "{out}{err}");
    assert!(err.contains("memory of node 2 is that of GPU 0008:01:00.0"), "{err}");
    assert!(err.contains("hint: `gpuvm host show"), "{err}");
    let (code, out, _) = on(host.path(), &["host", "pages", "--node", "1"]);
    assert!(code == 0 && out.contains("512 MiB") && !out.contains("1 GiB"), "{out}");
}

#[test]
fn a_whole_tray_is_a_node_of_an_imex_domain_and_a_part_is_not() {
    let host = tray(|_| {});
    let create = |host: &Path, gpus: &str, more: &[&str]| {
        let words = ["create", "--dry-run", "--name", "a", "--image", "none", "--gpus", gpus];
        let words = [&words[..], &["--imex-node", "10.0.0.2,10.0.0.1"], &NEW, more].concat();
        run(gpuvm(&words).arg("--host").arg(host).arg("--accept-shared-fabric"))
    };
    let (code, out, err) = create(host.path(), "4", &[]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("a.seed"), "{out}");
    for gpus in ["1", "2"] {
        let (code, _, err) = create(host.path(), gpus, &[]);
        assert!(code == 1 && err.contains(&format!("has {gpus} of the tray's 4 GPUs")), "{err}");
        assert!(err.contains("hint: request all with `--gpus 4`"), "{err}");
    }
    let h100 = project().join("topologies/dgx-h100.json");
    let (code, _, err) = create(&h100, "8", &[]);
    assert!(code == 1 && err.contains("has no GPU whose NVLinks leave the host"), "{err}");
    let (code, _, err) = create(host.path(), "4", &["--no-seed"]);
    assert!(code == 2 && err.contains("--no-seed"), "{err}");
    let (code, _, err) = create(host.path(), "4", &["--imex-node", "host.lab"]);
    assert!(code == 2 && err.contains("invalid IP address"), "{err}");
}
