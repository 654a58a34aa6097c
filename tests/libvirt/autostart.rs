//! `autostart` on a real libvirtd: the files present at boot before a guest starts, and that
//! libvirt starts it.

use super::place::until;
use crate::support::daemon::Daemon;
use crate::support::{host_tree, run};
use std::path::{Path, PathBuf};

/// A machine with files of its own for its boot.
struct Machine {
    /// Its libvirtd.
    daemon: Daemon,
    /// The files.
    etc: PathBuf,
}

impl Machine {
    /// Makes it, as the DGX-2 that was recorded or as this machine.
    fn new(host: Option<&Path>) -> Option<Machine> {
        let daemon = Daemon::own(host)?;
        let etc = daemon.own_path("/etc");
        Some(Machine { daemon, etc })
    }

    /// Runs the program on it. Returns its exit code and its output.
    fn gpuvm(&self, args: &[&str]) -> (i32, String) {
        let mut command = self.daemon.within(env!("CARGO_BIN_EXE_gpuvm"));
        command.args(args);
        let (code, out, err) = run(command.stdin(std::process::Stdio::null()));
        (code, out + &err)
    }

    /// Runs the program, which must succeed.
    fn done(&self, args: &[&str]) -> String {
        let (code, said) = self.gpuvm(args);
        assert_eq!(code, 0, "{args:?}: {said}");
        said
    }

    /// A file for the boot; empty if it is not there.
    fn file(&self, path: &str) -> String {
        std::fs::read_to_string(self.etc.join(path)).unwrap_or_default()
    }

    /// Defines a guest with these elements beside its devices, and these devices.
    fn define(&self, name: &str, more: &str, devices: &str) {
        let file = self.etc.join("guest.xml");
        let xml = format!(
            "<domain type='qemu'><name>{name}</name><memory \
             unit='MiB'>64</memory><vcpu>1</vcpu>{more}\
             <os><type arch='x86_64' machine='q35'>hvm</type></os><devices>{devices}</devices></domain>"
        );
        std::fs::write(&file, xml).unwrap();
        let (done, said) = self.daemon.virsh(&["define", file.to_str().unwrap()]);
        assert!(done, "{said}");
    }

    /// Whether libvirt starts a guest with the host.
    fn starts(&self, name: &str) -> bool {
        self.daemon
            .virsh(&["dominfo", name])
            .1
            .lines()
            .any(|line| line.split_whitespace().eq(["Autostart:", "enable"]))
    }
}

#[test]
fn resources_of_a_guest_exist_at_boot_and_are_removed_again() {
    let Some(machine) = Machine::new(Some(&host_tree("dgx-2"))) else { return };
    let memory = "<memoryBacking><hugepages><page size='2' unit='MiB'/></hugepages></memoryBacking>\
                  <numatune><memory mode='strict' nodeset='1'/></numatune>";
    let gpu = "<hostdev mode='subsystem' type='pci' managed='no'><source>\
               <address domain='0' bus='0x34' slot='0' function='0'/></source></hostdev>";
    machine.define("boots", memory, gpu);
    let (code, said) = machine.gpuvm(&["autostart", "boots", "on", "--diff"]);
    assert!(code == 0 && said.contains("the definition stays as it is"), "{said}");
    let shown = machine.done(&["autostart", "boots", "on", "--dry-run"]);
    for step in ["gpuvm-vfio.service", "gpuvm-pages.conf", "gpuvm-recover.service", "start with"] {
        assert!(shown.contains(step), "{step}: {shown}");
    }
    assert!(!machine.starts("boots") && machine.file("tmpfiles.d/gpuvm-pages.conf").is_empty());
    let said = machine.done(&["autostart", "boots", "on"]);
    assert!(said.contains("32 pages of 2 MiB on node 1") && said.contains("gpuvm undo boots"));
    let file = |path: &str| machine.file(path);
    assert!(machine.starts("boots"));
    assert!(file("systemd/system/gpuvm-vfio.service").contains("0000:34:00.0=10de:1db8"));
    let pages = "node1/hugepages/hugepages-2048kB/nr_hugepages - - - - 32";
    assert!(file("tmpfiles.d/gpuvm-pages.conf").contains(pages));
    assert!(file("systemd/system/gpuvm-recover.service").contains("gpuvm --quiet recover\n"));
    for daemon in ["libvirtd", "virtqemud"] {
        let drop_in = file(&format!("systemd/system/{daemon}.service.d/gpuvm.conf"));
        assert!(drop_in.contains("After=nvidia-fabricmanager.service gpuvm-vfio.service"));
    }
    assert!(machine.done(&["autostart", "boots", "on"]).contains("with the host; nothing to do"));
    let listed = machine.done(&["list", "--long"]);
    assert!(listed.contains("with host"), "{listed}");
    let shown = machine.done(&["show", "boots"]);
    assert!(shown.contains("with the host") && !shown.contains("missing"), "{shown}");

    // A second one has its pages beside the first one's; undoing removes only its own.
    machine.define("more", memory, "");
    machine.done(&["autostart", "more", "on"]);
    assert!(file("tmpfiles.d/gpuvm-pages.conf").contains("- - - - 64"));
    machine.done(&["undo", "more", "--yes"]);
    assert!(!machine.starts("more") && file("tmpfiles.d/gpuvm-pages.conf").contains(pages));

    // A removed file is reported as missing, and made by the offered command.
    std::fs::remove_file(machine.etc.join("tmpfiles.d/gpuvm-pages.conf")).unwrap();
    let shown = machine.done(&["show", "boots"]);
    assert!(shown.contains("missing: 32 pages of 2 MiB on node 1"), "{shown}");
    assert!(shown.contains("`gpuvm autostart boots on`"), "{shown}");
    machine.done(&["autostart", "boots", "on"]);
    assert!(file("tmpfiles.d/gpuvm-pages.conf").contains(pages));

    // A second one that needs the same keeps it; without one it is named with the command that
    // reverts it.
    let named = |said: &str| {
        let release = "0000:34:00.0 stay bound to vfio-pci at every boot: `gpuvm device release \
                       0000:34:00.0 --at-boot`";
        let count = "`gpuvm host pages --node 1 --size 2M --count 0 --at-boot`";
        (said.contains(release), said.contains(count))
    };
    let dry = machine.done(&["delete", "boots", "--dry-run"]);
    assert_eq!(named(&dry), (true, true), "{dry}");
    machine.done(&["autostart", "more", "on"]);
    let dry = machine.done(&["delete", "boots", "--dry-run"]);
    assert_eq!(named(&dry), (true, false), "{dry}");
    machine.done(&["delete", "more", "--yes"]);
    // What needs the same GPU does not start with the host beside it.
    machine.define("same", "", gpu);
    let (code, said) = machine.gpuvm(&["autostart", "same", "on"]);
    let why = "domain `boots`, which starts with the host, has 0000:34:00.0, too";
    assert!(code == 1 && said.contains(why), "{said}");
    assert!(
        said.contains("`gpuvm autostart boots off` first") && !machine.starts("same"),
        "{said}"
    );
    let said = machine.done(&["autostart", "boots", "off"]);
    assert_eq!(named(&said), (true, true), "{said}");
    assert!(!machine.starts("boots") && file("systemd/system/gpuvm-recover.service").is_empty());
    assert!(!machine.etc.join("systemd/system/libvirtd.service.d").exists());
    // Files that others may need stay.
    assert!(!file("systemd/system/gpuvm-vfio.service").is_empty());
}

#[test]
fn libvirt_starts_it_when_the_machine_boots() {
    let Some(machine) = Machine::new(None) else { return };
    machine.define("boots", "", "");
    machine.define("stays", "", "");
    let json = machine.done(&["--quiet", "autostart", "boots", "on", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&json).expect(&json);
    assert_eq!((&told["autostart"], &told["was"]), (&true.into(), &false.into()), "{json}");
    // libvirt notes in its run directory that it has started them, once a boot.
    let note = machine.daemon.inside("/run/libvirt/qemu/autostarted");
    let _ = std::fs::remove_file(note);
    machine.daemon.restart();
    let state = |name: &str| machine.daemon.virsh(&["domstate", name]).1.trim().to_owned();
    until("it is started", || state("boots") == "running");
    assert_eq!(state("stays"), "shut off");
    assert!(machine.daemon.virsh(&["destroy", "boots"]).0);
    assert!(!machine.file("systemd/system/gpuvm-recover.service").is_empty());
    // What serves every guest that starts with the host goes with the last of them.
    machine.done(&["autostart", "stays", "on"]);
    machine.done(&["undo", "boots", "--yes"]);
    assert!(!machine.starts("boots") && machine.starts("stays"));
    assert!(!machine.file("systemd/system/gpuvm-recover.service").is_empty());
    machine.done(&["autostart", "boots", "on"]);
    machine.done(&["undo", "stays", "--yes"]);
    assert!(!machine.file("systemd/system/gpuvm-recover.service").is_empty());
    machine.done(&["delete", "boots", "--yes"]);
    assert!(machine.file("systemd/system/gpuvm-recover.service").is_empty());
    assert!(!machine.etc.join("systemd/system/libvirtd.service.d").exists());
    let (code, said) = machine.gpuvm(&["autostart", "none", "on"]);
    assert!(code == 1 && said.contains("`gpuvm list`"), "{said}");
}

/// An administrator's copy of the unit (`systemctl edit --full`) and a masked one stay, whatever
/// becomes of the guests that start with the host.
#[test]
fn a_foreign_unit_stays_and_is_reported() {
    let Some(machine) = Machine::new(None) else { return };
    machine.define("boots", "", "");
    let unit = machine.etc.join("systemd/system/gpuvm-recover.service");
    let wanted = machine.etc.join("systemd/system/multi-user.target.d/gpuvm-recover.conf");
    std::fs::create_dir_all(unit.parent().unwrap()).unwrap();
    // Every way in which the last guest that starts with the host goes.
    let off = ["autostart", "boots", "off"];
    let undo = ["undo", "boots", "--yes"];
    let theirs = "[Service]\nExecStart=/usr/bin/gpuvm recover\n";
    for way in [&off, &undo] {
        std::fs::write(&unit, theirs).unwrap();
        let said = machine.done(&["autostart", "boots", "on"]);
        assert!(said.contains("gpuvm-recover.service was not made by gpuvm and stays"), "{said}");
        assert!(machine.starts("boots") && wanted.exists());
        let said = machine.done(way);
        assert!(!said.contains("stays") && !machine.starts("boots") && !wanted.exists(), "{said}");
        assert_eq!(std::fs::read_to_string(&unit).unwrap(), theirs);
        std::fs::remove_file(&unit).unwrap();

        std::os::unix::fs::symlink("/dev/null", &unit).unwrap();
        let said = machine.done(&["autostart", "boots", "on"]);
        assert!(said.contains("`systemctl unmask gpuvm-recover.service`"), "{said}");
        machine.done(way);
        assert_eq!(unit.read_link().unwrap(), Path::new("/dev/null"));
        std::fs::remove_file(&unit).unwrap();
    }
    // Ours, and changed since.
    machine.done(&["autostart", "boots", "on"]);
    let changed = std::fs::read_to_string(&unit).unwrap() + "Nice=5\n";
    std::fs::write(&unit, &changed).unwrap();
    let said = machine.done(&["delete", "boots", "--yes"]);
    assert!(said.contains("gpuvm-recover.service was changed since gpuvm made it"), "{said}");
    assert_eq!(std::fs::read_to_string(&unit).unwrap(), changed);
    assert!(!wanted.exists());
    std::fs::remove_file(&unit).unwrap();
}

#[test]
fn a_file_of_guests_says_which_start_with_the_host() {
    let Some(machine) = Machine::new(None) else { return };
    let disks = machine.daemon.fresh_dir("disks");
    let file = machine.etc.join("guests.yaml");
    let apply = |starts: &str, more: &[&str]| {
        let text = format!(
            "format: gpuvm-guests\nversion: 1\nguests:\n- {{name: au-a, virt-type: qemu, pins: \
             none, vcpus: 1, memory: 256M, os-size: 16M, data-size: none, disk-dir: {}, start: \
             false, autostart: {starts}}}\n",
            disks.display()
        );
        std::fs::write(&file, text).unwrap();
        machine.gpuvm(&[&["apply", "-f", file.to_str().unwrap()], more].concat())
    };
    let (code, said) = apply("true", &[]);
    assert!(code == 0 && machine.starts("au-a"), "{said}");
    let described = machine.done(&["get", "au-a"]);
    for line in ["  autostart: true\n", "  os-size: 16M\n", "  memory: 256M\n"] {
        assert!(described.contains(line), "{described}");
    }
    let (code, said) = apply("false", &["--dry-run"]);
    assert!(code == 3 && said.contains("au-a: would be changed: autostart on -> off"), "{said}");
    // A size that waits for a restart does not keep it back.
    machine.done(&["start", "au-a"]);
    std::fs::write(&file, described.replace("256M", "320M").replace("start: true", "start: false"))
        .unwrap();
    let (code, said) = machine.gpuvm(&["apply", "-f", file.to_str().unwrap()]);
    assert!(code == 3 && said.contains("au-a: pending") && !machine.starts("au-a"), "{said}");
    machine.done(&["delete", "au-a", "--yes"]);
}
