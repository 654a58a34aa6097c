//! A guest's whole life on a real libvirtd, with its view from inside.

use super::files;
use super::place::until;
use crate::support::daemon::{Daemon, Tiny, daemon};
use crate::support::run;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Runs the program on the daemon and expects success.
fn done(daemon: &Daemon, args: &[&str]) -> (String, String) {
    let (code, out, err) = run(&mut daemon.gpuvm(args));
    assert_eq!(code, 0, "{args:?}: {out}{err}");
    (out, err)
}

#[test]
fn a_guest_sees_its_cells_and_smt_pairs_and_leaves_nothing() {
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("life");
    let Some(tiny) = Tiny::new(&dir) else { return };
    let disks = daemon.fresh_dir("life-disks");
    let (template, disk_dir) = (tiny.template.to_str().unwrap(), disks.to_str().unwrap());
    let shape = "--virt-type qemu --pins none --vcpus 4 --threads 2 --cells 2 --memory 512M";
    let mut create = vec!["create", "--name", "life", "--template", template];
    create.extend(shape.split(' '));
    create.extend(["--disk-dir", disk_dir, "--network", "default", "--wait", "1200"]);
    let (out, err) = done(daemon, &create);
    assert!(!err.contains("otherwise than planned"), "{err}");
    let answer = out.trim_end().split(' ').collect::<Vec<_>>();
    let ["life:", "create", "start", "mac:", mac, "ip:", ip] = answer[..] else {
        panic!("{out}{err}");
    };
    assert!(mac.starts_with("52:54:00:") && ip.starts_with("192.168.122."), "{out}");

    let seen = tiny.wait_for("seen: all");
    for line in [
        "seen: node 0 cpus 0-1 distance 10,20",
        "seen: node 1 cpus 2-3 distance 20,10",
        "seen: cpu 0 siblings 0-1",
        "seen: cpu 1 siblings 0-1",
        "seen: cpu 2 siblings 2-3",
        "seen: cpu 3 siblings 2-3",
        "seen: disk vda sectors 104857600",
        "seen: lease on eth0",
    ] {
        assert!(seen.contains(line), "the guest does not see `{line}`:\n{seen}");
    }

    let (list, _) = done(daemon, &["list"]);
    let row = list.lines().find(|line| line.trim_start().starts_with("life ")).expect("listed");
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(words, ["life", "running", "4", "512", "MiB", "-", ip, "any", "gpuvm"], "{list}");
    let (show, _) = done(daemon, &["show", "life"]);
    assert!(show.contains(&format!("{ip} of {mac} (DHCP lease)")), "{show}");
    assert!(show.contains("life.raw, raw, made for it"), "{show}");
    assert!(done(daemon, &["start", "life"]).1.contains("runs already"));

    // The guest hears the power button and goes down by itself.
    done(daemon, &["stop", "life", "--wait", "600"]);
    assert!(tiny.wait_for("seen: power button").contains("power button"));
    assert!(done(daemon, &["stop", "life"]).1.contains("stopped already"));
    done(daemon, &["start", "life"]);
    let (_, err) = done(daemon, &["delete", "life", "--yes"]);
    assert!(err.contains("end domain `life`") && err.contains("life.raw"), "{err}");
    assert!(!daemon.virsh(&["dominfo", "life"]).0, "the domain is left");
    assert_eq!(files(&disks), [""; 0], "a disk is left");
}

#[test]
fn a_guest_with_uefi_leaves_no_nvram() {
    let Some(daemon) = daemon() else { return };
    let disks = daemon.fresh_dir("uefi-disks");
    let nvram = daemon.inside("/var/lib/libvirt/qemu/nvram");
    let shape = "--virt-type qemu --pins none --vcpus 1 --memory 256M --no-wait";
    let mut create = vec!["create", "--name", "uefi", "--disk-dir", disks.to_str().unwrap()];
    create.extend(shape.split(' '));
    let (out, err) = done(daemon, &create);
    assert!(out.starts_with("uefi: create start mac: 52:54:00:"), "{out}{err}");
    let named = |dir| files(dir).into_iter().filter(|name| name.starts_with("uefi")).count();
    assert_eq!(named(&nvram), 1, "no NVRAM was made: the test proves nothing");
    // A guest without a system does not hear the power button; force cuts its power.
    let (code, _, err) = run(&mut daemon.gpuvm(&["stop", "uefi", "--wait", "1"]));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("still runs after 1 s") && err.contains("stop --force"), "{err}");
    done(daemon, &["stop", "uefi", "--force"]);
    done(daemon, &["delete", "uefi", "--yes"]);
    assert_eq!((named(&nvram), named(&disks)), (0, 0));
}

/// A boot sector that reports a panic to QEMU's pvpanic device (I/O port 0x505), and halts: `mov
/// al, 1; mov dx, 0x505; out dx, al; hlt; jmp` back.
const PANICS: [u8; 9] = [0xb0, 0x01, 0xba, 0x05, 0x05, 0xee, 0xf4, 0xeb, 0xfd];

#[test]
fn a_crashed_guest_that_keeps_its_process_counts_as_active() {
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("crashed");
    let mut sector = [0; 512];
    sector[..PANICS.len()].copy_from_slice(&PANICS);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    let (disk, file) = (dir.join("disk.raw"), dir.join("domain.xml"));
    fs::write(&disk, sector).unwrap();
    let xml = format!(
        "<domain type='qemu'><name>crashed</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' machine='pc'>hvm</type></os><on_crash>preserve</on_crash><devices>\
         <disk type='file'><driver name='qemu' type='raw'/><source file='{}'/>\
         <target dev='hda' bus='ide'/></disk><panic model='isa'/></devices></domain>",
        disk.display()
    );
    fs::write(&file, xml).unwrap();
    assert!(daemon.virsh(&["define", file.to_str().unwrap()]).0);
    let crash = || {
        until("a crash", || daemon.virsh(&["domstate", "crashed"]).1.trim() == "crashed");
        daemon.virsh(&["domid", "crashed"]).1.trim().to_owned()
    };
    done(daemon, &["start", "crashed"]);
    let first = crash();
    assert!(first.parse::<u32>().is_ok(), "it has no process, so the test proves nothing: {first}");
    for verb in [&["list"][..], &["show", "crashed"]] {
        let (out, _) = done(daemon, verb);
        assert!(out.contains("crashed (still holds its devices)"), "{out}");
    }
    let (code, _, err) = run(&mut daemon.gpuvm(&["start", "crashed"]));
    assert!(code == 1 && err.contains("has crashed and still holds its devices"), "{code}: {err}");
    assert!(err.contains("gpuvm restart --force crashed"), "{err}");

    // Its memory may be wanted: it is ended on request only.
    for verb in ["stop", "restart"] {
        let (code, _, err) = run(&mut daemon.gpuvm(&[verb, "crashed"]));
        assert!(code == 2 && err.contains("its process is kept with its memory"), "{code}: {err}");
        assert!(err.contains("virsh dump --memory-only crashed crashed.dump"), "{err}");
        assert!(err.contains(&format!("gpuvm {verb} --force crashed")), "{err}");
        let (out, err) = done(daemon, &[verb, "crashed", "--dry-run"]);
        assert!(out.contains("end domain `crashed`") && err.contains("--force"), "{out}{err}");
    }
    assert_eq!(crash(), first, "it was ended");
    let dump = dir.join("crashed.dump");
    assert!(daemon.virsh(&["dump", "--memory-only", "crashed", dump.to_str().unwrap()]).0);
    done(daemon, &["restart", "crashed", "--force"]);
    assert_ne!(crash(), first, "it was not ended");
    // No guest is asked to shut down, so there is nothing to wait for.
    let begun = Instant::now();
    done(daemon, &["stop", "crashed", "--force", "--wait", "600"]);
    assert!(begun.elapsed() < Duration::from_secs(300));
    assert_eq!(daemon.virsh(&["domstate", "crashed"]).1.trim(), "shut off");
    assert!(done(daemon, &["stop", "crashed"]).1.contains("stopped already"));
    done(daemon, &["start", "crashed"]);
    crash();
    let (_, err) = done(daemon, &["delete", "crashed", "--yes"]);
    assert!(err.contains("end domain `crashed`") && err.contains("which is lost"), "{err}");
    assert!(!daemon.virsh(&["dominfo", "crashed"]).0, "the domain is left");
}

#[test]
fn t41_a_start_that_takes_long_is_announced_and_not_given_up() {
    let Some(daemon) = Daemon::own(None) else { return };
    // Longer than the time limit for a daemon that does not answer: this one answers, and starts
    // the guest meanwhile.
    let hooks = daemon.inside("/etc/libvirt/hooks");
    fs::create_dir_all(&hooks).unwrap();
    let hook = hooks.join("qemu");
    fs::write(&hook, "#!/bin/sh\n[ \"$2\" != prepare ] || sleep 32\n").unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    // gpuvm's own hook, which must not keep libvirtd waiting for itself; its commands are noted.
    let (ran, notes) = (hooks.join("gpuvm"), daemon.fresh_dir("hook").join("ran"));
    let program = env!("CARGO_BIN_EXE_gpuvm");
    let noted = format!("#!/bin/sh\necho \"$3\" >>{}\nexec {program} \"$@\"\n", notes.display());
    let (code, printed, err) = run(&mut crate::support::gpuvm(&["fabric", "hook", "--print"]));
    assert_eq!(code, 0, "{err}");
    let own = printed.replace(program, "/etc/libvirt/hooks/gpuvm");
    fs::create_dir_all(hooks.join("qemu.d")).unwrap();
    for (file, text) in [(&ran, &noted), (&hooks.join("qemu.d/50-gpuvm"), &own)] {
        fs::write(file, text).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    // libvirtd looks for hooks when it starts.
    daemon.restart();
    let disk = daemon.fresh_dir("long").join("disk.raw");
    fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let shape = "create --name long --virt-type qemu --pins none --vcpus 1 --memory 64M --no-start";
    let mut create: Vec<&str> = shape.split(' ').collect();
    create.extend(["--disk", disk.to_str().unwrap()]);
    done(&daemon, &create);
    let begun = Instant::now();
    let mut start =
        daemon.gpuvm(&["start", "long"]).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut said = String::new();
    let mut lines = BufReader::new(start.stderr.take().unwrap());
    while !said.contains("start domain `long`") {
        assert_ne!(lines.read_line(&mut said).unwrap(), 0, "it was not announced: {said}");
    }
    assert!(start.try_wait().unwrap().is_none(), "it was announced when it was over: {said}");
    let succeeded = start.wait().unwrap().success();
    std::io::Read::read_to_string(&mut lines, &mut said).unwrap();
    assert!(succeeded, "{said}");
    assert!(begun.elapsed() > Duration::from_secs(32), "the hook did not run");
    assert_eq!(daemon.virsh(&["domstate", "long"]).1.trim(), "running");
    assert_eq!(fs::read_to_string(&notes).unwrap(), "ensure\n");
    assert!(daemon.virsh(&["destroy", "long"]).0);
    assert_eq!(fs::read_to_string(&notes).unwrap(), "ensure\nrelease\n");
}

#[test]
fn a_guest_of_288_vcpus_is_defined_and_starts() {
    let Some(daemon) = daemon() else { return };
    let disks = daemon.fresh_dir("many-disks");
    let shape =
        "create --name many --virt-type qemu --pins none --vcpus 288 --memory 512M --no-wait";
    let mut create: Vec<&str> = shape.split(' ').collect();
    create.extend(["--disk-dir", disks.to_str().unwrap(), "--os-size", "16M"]);
    let started = Instant::now();
    let (code, out, err) = run(&mut daemon.gpuvm(&create));
    eprintln!("288 vCPUs: {:.1} s", started.elapsed().as_secs_f64());
    assert_eq!(code, 0, "{out}{err}");
    assert!(!err.contains("differs from the plan"), "{err}");
    let xml = daemon.virsh(&["dumpxml", "many"]).1;
    let driver = "<driver intremap='on' caching_mode='on' eim='on' dma_translation='off'/>";
    assert!(xml.contains(driver) && xml.contains("<ioapic driver='qemu'/>"), "{xml}");
    let live = daemon.virsh(&["vcpucount", "many", "--live", "--current"]).1;
    assert_eq!(live.trim(), "288");
    let (code, out, err) = run(&mut daemon.gpuvm(&["check", "many"]));
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(run(&mut daemon.gpuvm(&["delete", "many", "--yes"])).0, 0);
}
