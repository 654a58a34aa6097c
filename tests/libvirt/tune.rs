//! `tune` on a real libvirt: a domain that `virt-install` made by its defaults is tuned, kept by
//! libvirt as it was tuned, started by emulation, and has nothing more to do.

use crate::support::daemon::{Daemon, Tiny};
use crate::support::pool::{Pool, number};
use crate::support::{run, skip};
use crate::xml::tools::has;
use gpuvm::domain::{DomainXml, differences};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The domain's name.
const NAME: &str = "made-by-others";
/// Pages of a guest of 128 MiB.
const PAGES: u64 = 64;

/// Runs the program, which must end with this code. Returns its standard output.
fn gpuvm(daemon: &Daemon, code: i32, args: &[&str]) -> String {
    let (found, out, err) = run(daemon.within(env!("CARGO_BIN_EXE_gpuvm")).args(args));
    assert_eq!(found, code, "{args:?}: {out}{err}");
    out
}

/// Runs virsh, which must succeed.
fn virsh(daemon: &Daemon, args: &[&str]) -> String {
    let (done, text) = daemon.virsh(args);
    assert!(done, "{args:?}: {text}");
    text
}

/// The definition as libvirt has it.
fn defined(daemon: &Daemon) -> DomainXml {
    let args = ["dumpxml", "--inactive", "--security-info", NAME];
    DomainXml::parse(&virsh(daemon, &args)).unwrap()
}

/// Creates the domain with the defaults of `virt-install`.
fn virt_install(daemon: &Daemon, dir: &Path, tiny: &Tiny) {
    let disk = dir.join("disk.qcow2");
    let mut make = Command::new("qemu-img");
    assert_eq!(run(make.args(["create", "-q", "-f", "qcow2"]).arg(&disk).arg("64M")).0, 0);
    let boot = format!(
        "kernel={0}/vmlinuz,initrd={0}/initramfs,kernel_args=console=ttyS0 quiet no_timer_check",
        dir.display()
    );
    let serial = format!("file,path={}", tiny.console.display());
    let disk = format!("path={},format=qcow2,bus=virtio", disk.display());
    let mut install = Command::new("virt-install");
    install.args(["--connect", &daemon.uri(), "--name", NAME, "--virt-type", "qemu"]);
    install.args(["--memory", "128", "--vcpus", "2", "--osinfo", "detect=off,require=off"]);
    install.args(["--machine", "q35", "--network", "network=default,model=virtio"]);
    install.args(["--disk", &disk, "--boot", &boot, "--serial", &serial, "--graphics", "none"]);
    install.args(["--noautoconsole", "--print-xml"]).env("LC_ALL", "C");
    let (code, xml, err) = run(&mut install);
    assert_eq!(code, 0, "{err}");
    let file = dir.join("made.xml");
    std::fs::write(&file, xml).unwrap();
    virsh(daemon, &["define", file.to_str().unwrap()]);
}

/// Ensures that the daemon finds pages of 2 MiB, or returns the reason.
fn mounted(daemon: &Daemon) -> Result<(), String> {
    let script = "mkdir -p /dev/hugepages; mountpoint -q /dev/hugepages || mount -t hugetlbfs -o \
                  pagesize=2M hugetlbfs /dev/hugepages";
    let mut mount = daemon.enter(&["--mount"], "bash");
    let (code, _, err) = run(mount.args(["-c", script]));
    if code != 0 {
        return Err(format!("no pages of 2 MiB can be mounted here: {err}"));
    }
    // libvirtd looks for mounts of huge pages when it starts.
    daemon.restart();
    Ok(())
}

/// Starts the guest until its kernel runs, and ends it. QEMU 10.0 ends an emulated guest at times
/// by an assertion of its own (`iotlb_to_section`), and a guest of two emulated vCPUs hangs at
/// times: then it is started again.
fn boots(daemon: &Daemon, tiny: &Tiny) {
    const SAYS: &str = "seen: cpu 1";
    /// Two minutes on two cores that others have, too.
    const LIMIT: Duration = Duration::from_secs(240);
    let runs = || virsh(daemon, &["domstate", NAME]).trim() == "running";
    for _ in 0..3 {
        let _ = std::fs::remove_file(&tiny.console);
        virsh(daemon, &["start", NAME]);
        let begun = Instant::now();
        while runs() && !tiny.shows(SAYS) && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(500));
        }
        let (seen, runs) = (tiny.shows(SAYS), runs());
        if runs {
            virsh(daemon, &["destroy", NAME]);
        }
        if seen && runs {
            return;
        }
        let shown = std::fs::read_to_string(&tiny.console).unwrap_or_default();
        let what = if runs { "hangs" } else { "has ended by itself" };
        eprintln!("{NAME} {what} and is started again; it said:\n{shown}");
    }
    panic!("{NAME} ended by itself or hung three times");
}

/// The guest's missing pages are reserved by its tuning, are enough for it, and are released by
/// `undo`.
fn pages_come_and_go(daemon: &Daemon, tiny: &Tiny, all: &[&str]) {
    let reserve = [all, &["--reserve-pages"]].concat();
    let pool = match (mounted(daemon), Pool::take()) {
        (Ok(()), Some(pool)) => pool,
        (why, _) => {
            return skip(format!("not started in huge pages: {why:?}"));
        }
    };
    let free = number("free_hugepages").unwrap();
    let missing = PAGES.saturating_sub(free);
    let dry = gpuvm(daemon, 0, &[&reserve[..], &["--dry-run"]].concat());
    assert_eq!(dry.contains(&format!("reserve {missing} pages of 2 MiB")), missing > 0, "{dry}");
    gpuvm(daemon, 0, &reserve);
    assert_eq!(number("nr_hugepages"), Some(pool.before + missing));
    boots(daemon, tiny);
    gpuvm(daemon, 0, &["undo", NAME, "--yes"]);
    assert_eq!(number("nr_hugepages"), Some(pool.before));
}

#[test]
fn guests_of_virt_install_are_tuned_kept_and_started() {
    if !has("virt-install") || !has("qemu-img") {
        return;
    }
    if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 2 {
        return skip("two vCPUs need two pcpus");
    }
    let Some(daemon) = Daemon::own(None) else { return };
    let dir = daemon.fresh_dir("tune");
    let Some(tiny) = Tiny::new(&dir) else { return };
    virt_install(&daemon, &dir, &tiny);
    let before = defined(&daemon);
    // Nothing is changed without a request.
    let diff = gpuvm(&daemon, 0, &["tune", NAME, "--diff"]);
    assert!(diff.contains("+    <vcpupin vcpu='1'"), "{diff}");
    gpuvm(&daemon, 3, &["tune", NAME, "--check"]);
    let steps = gpuvm(&daemon, 0, &["tune", NAME, "--dry-run"]);
    assert!(steps.contains(&format!("change the definition of domain `{NAME}`")), "{steps}");
    let (code, _, err) = run(daemon
        .within(env!("CARGO_BIN_EXE_gpuvm"))
        .args(["tune", NAME])
        .stdin(std::process::Stdio::null()));
    assert_eq!(code, 2, "{err}");
    assert_eq!(defined(&daemon).text(), before.text());
    // On a host of one node a guest gets no cells unasked.
    let all = ["tune", NAME, "--yes", "--all-settings", "--huge-pages", "2M", "--cells", "on"];
    let said = gpuvm(&daemon, 0, &all);
    for item in
        ["pins", "emulator", "iothreads", "huge-pages", "cells", "disk-queues", "net-queues"]
    {
        assert!(said.contains(&format!("  {item}: ")), "{item}: {said}");
    }
    let tuned = defined(&daemon);
    let of = |path: &str| tuned.root().find(path).is_some();
    for path in [
        "cputune/vcpupin",
        "numatune/memnode",
        "memoryBacking/hugepages/page",
        "cpu/numa/cell",
        "iothreads",
    ] {
        assert!(of(path), "{path} is missing:\n{}", tuned.text());
    }
    assert_eq!(gpuvm(&daemon, 0, &all), format!("{NAME}: nothing to do\n"));
    assert_eq!(defined(&daemon).text(), tuned.text());
    gpuvm(&daemon, 0, &["tune", "--all", "--check"]);
    gpuvm(&daemon, 0, &["undo", NAME, "--yes"]);
    assert_eq!(defined(&daemon).text(), before.text(), "what was undone is not what it was");
    pages_come_and_go(&daemon, &tiny, &all);
    assert_eq!(defined(&daemon).text(), before.text());
    gpuvm(&daemon, 0, &all);
    assert_eq!(defined(&daemon).text(), tuned.text());
    gpuvm(&daemon, 0, &["tune", NAME, "--yes", "--huge-pages", "off"]);
    boots(&daemon, &tiny);
    assert_eq!(differences(&defined(&daemon), &tuned).len(), 0, "only the pages went");
    // The running guest is not changed, and that is reported.
    virsh(&daemon, &["start", NAME]);
    let said = gpuvm(&daemon, 0, &["tune", NAME, "--yes", "--disk-queues", "off"]);
    assert!(said.contains("at its next start"), "{said}");
    assert!(virsh(&daemon, &["dumpxml", NAME]).contains("queues="), "the running guest changed");
    virsh(&daemon, &["destroy", NAME]);
}
