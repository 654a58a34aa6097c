//! Devices, virtual functions and huge pages of others, also of guests that have come meanwhile.
//!
//! The host is a copy of the recorded DGX-2, whose sysfs is files: they contain what would have
//! been written to the kernel. The holder of a function is a process that has `/dev/full` open,
//! which is the node of the function's VFIO group there. tests/vdgx tests the same with a real VFIO
//! (borrowed, midway, twice, behind).

use crate::libvirt::place::Place;
use crate::support::daemon::Daemon;
use crate::support::tree::scratch;
use crate::support::{host_tree, run, skip};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A GPU.
pub(super) const GPU: &str = "0000:34:00.0";
/// Another.
pub(super) const OTHER: &str = "0000:36:00.0";
/// A network card with SR-IOV.
const CARD: &str = "0000:3a:00.0";
/// Its first virtual function.
const VF: &str = "0000:3a:00.1";

/// The host.
pub(super) struct Host {
    /// The machine that imitates it.
    pub place: Place,
    /// Its files.
    dir: tempfile::TempDir,
    /// Prevents other hosts at the same time: files opened by one test's process would be open for
    /// all.
    _alone: MutexGuard<'static, ()>,
}

/// A process that has a VFIO group open; it ends when this is dropped.
struct Holder(Child);

impl Holder {
    /// Starts the process.
    fn new() -> Holder {
        let full = fs::File::open("/dev/full").unwrap();
        let mut sleep = Command::new("sleep");
        sleep.arg("1000").stdin(full).stdout(Stdio::null()).stderr(Stdio::null());
        Holder(sleep.spawn().unwrap())
    }

    /// Its name in messages.
    fn named(&self, group: u32) -> String {
        let pid = self.0.id();
        format!("in use by process {pid} (sleep), which has /dev/vfio/{group} open")
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Host {
    /// Sets up the host; none if this machine cannot.
    pub fn new() -> Option<Host> {
        /// The lock of the only host.
        static TURN: Mutex<()> = Mutex::new(());
        let alone = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = scratch();
        let (code, _, err) =
            run(Command::new("cp").arg("-aT").arg(host_tree("dgx-2")).arg(dir.path()));
        assert_eq!(code, 0, "{err}");
        let daemon = Daemon::own(Some(dir.path()))?;
        let disks = daemon.fresh_dir("disks");
        let place = Place { daemon, disks, key: None, net: false, before: None };
        let host = Host { place, dir, _alone: alone };
        for bdf in [GPU, OTHER] {
            host.put(&format!("{}/reset", function(bdf)), "");
            host.put(&format!("{}/driver_override", function(bdf)), "(null)\n");
        }
        fs::create_dir_all(host.path("sys/bus/pci/drivers/vfio-pci")).unwrap();
        Some(host)
    }

    /// The path of one of its files.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// Writes one of its files.
    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Binds a function to vfio-pci. Returns the number of its VFIO group.
    pub fn to_vfio(&self, bdf: &str) -> u32 {
        let at = self.path(&function(bdf));
        let _ = fs::remove_file(at.join("driver"));
        symlink("/sys/bus/pci/drivers/vfio-pci", at.join("driver")).unwrap();
        self.put(&format!("{}/driver_override", function(bdf)), "vfio-pci\n");
        let group = fs::read_link(at.join("iommu_group")).unwrap();
        let group = group.file_name().unwrap().to_str().unwrap().parse().unwrap();
        // `/dev/full` is the device 1:7.
        self.put(&format!("sys/class/vfio/{group}/dev"), "1:7\n");
        group
    }

    /// Expects that no function was reset or taken from its driver, and no virtual function
    /// removed.
    pub fn untouched(&self, said: &str) {
        for bdf in [GPU, OTHER] {
            let reset = fs::read_to_string(self.path(&format!("{}/reset", function(bdf)))).unwrap();
            assert_eq!(reset, "", "{bdf} was reset: {said}");
        }
        for driver in ["vfio-pci", "nvidia"] {
            let unbind = self.path(&format!("sys/bus/pci/drivers/{driver}/unbind"));
            assert!(!unbind.exists(), "{driver} was made to let go: {said}");
        }
    }

    /// Defines a guest with this GPU without starting it.
    pub fn define(&self, name: &str, gpu: &str) {
        let disks = self.place.disks.to_str().unwrap();
        let how = ["create", "--name", name, "--gpu", gpu, "--no-start", "--accept-shared-fabric"];
        self.place.done(&[&how[..], &["--disk-dir", disks]].concat());
    }
}

/// The directory of a function.
pub(super) fn function(bdf: &str) -> String {
    format!("sys/bus/pci/devices/{bdf}")
}

/// Runs a command that is halted when it announces its first step, or after its plan if it
/// announces none; the result of `meanwhile` is kept until it has ended. Returns its exit code and
/// output.
fn halted<T>(host: &Host, args: &[&str], meanwhile: impl Fn() -> T) -> (i32, String, T) {
    for n in 2..20 {
        let mut kept = None;
        let ended = host.place.halted(n, args, |journal| {
            if journal.contains("\"plan\"") {
                kept = Some(meanwhile());
            }
        });
        let Some((code, out, err)) = ended else {
            panic!("{args:?} is done before it is halted: {:?}", host.place.gpuvm(args));
        };
        match kept {
            Some(kept) => return (code, out + &err, kept),
            None => assert_eq!(code, 0, "{args:?}: {out}{err}"),
        }
    }
    panic!("{args:?} writes no plan")
}

#[test]
fn devices_taken_meanwhile_are_neither_reset_nor_returned() {
    let Some(host) = Host::new() else { return };
    host.define("a", GPU);
    let group = host.to_vfio(GPU);
    // Free when it was planned: the step itself detects it.
    let (code, said, holder) = halted(&host, &["start", "a"], Holder::new);
    assert!(code == 1 && said.contains(&holder.named(group)), "{code}: {said}");
    host.untouched(&said);
    assert_eq!(host.place.journal(), "");
    // The plan detects it as well.
    let (code, out, err) = host.place.gpuvm(&["start", "a"]);
    assert!(code == 1 && out.is_empty() && err.contains("is used by process"), "{code}: {err}");
    let (code, _, err) = host.place.gpuvm(&["delete", "a", "--yes"]);
    assert!(code == 0 && err.contains(&holder.named(group)), "{code}: {err}");
    assert!(err.contains(&format!("reset {GPU}")), "{err}");
    assert!(err.contains(&format!("`gpuvm device release {GPU}`")), "{err}");
    host.untouched(&err);
    assert!(!host.place.has("a"));
    assert_eq!(host.place.journal(), "");
    // Nobody has it open any longer.
    drop(holder);
    host.define("b", GPU);
    let (code, _, err) = host.place.gpuvm(&["delete", "b", "--yes"]);
    assert_eq!(code, 0, "{err}");
    let reset = fs::read_to_string(host.path(&format!("{}/reset", function(GPU)))).unwrap();
    assert_eq!(reset, "1", "{err}");
}

#[test]
fn recover_leaves_a_gpu_to_its_new_user() {
    let Some(host) = Host::new() else { return };
    let bind = ["device", "bind", OTHER, "--yes"];
    let killed = (2..20).find(|&n| {
        assert!(!host.place.killed(n, &bind), "it is done before it is killed");
        let is_begun = host.place.journal().contains("{\"begin\":[0,");
        if !is_begun {
            host.place.recover();
        }
        is_begun
    });
    assert!(killed.is_some(), "no step is announced");
    // The step was done when the run was killed, and a guest was started since, unknown to libvirt.
    let group = host.to_vfio(OTHER);
    let holder = Holder::new();
    let said = host.place.recover();
    assert!(said.contains(&holder.named(group)), "{said}");
    host.untouched(&said);
}

#[test]
fn a_guest_whose_function_is_gone_is_refused_before_anything_is_done() {
    let Some(host) = Host::new() else { return };
    host.define("a", GPU);
    host.to_vfio(GPU);
    let vf = "<interface type='hostdev' managed='yes'><source><address type='pci' domain='0' \
              bus='0x3a' slot='0' function='1'/></source></interface>";
    let xml = host.place.virsh(&["dumpxml", "--inactive", "a"]);
    let file = host.place.disks.join("a.xml");
    fs::write(&file, xml.replace("</devices>", &format!("{vf}</devices>"))).unwrap();
    host.place.virsh(&["define", file.to_str().unwrap()]);
    for (name, text) in [("sriov_offset", "1\n"), ("sriov_stride", "1\n")] {
        host.put(&format!("{}/{name}", function(CARD)), text);
    }
    let (code, out, err) = host.place.gpuvm(&["start", "a"]);
    assert!(code == 1 && out.is_empty(), "{code}: {out}{err}");
    assert!(err.contains(&format!("domain `a` needs {VF}, which is missing")), "{err}");
    assert!(err.contains(&format!("hint: `gpuvm nic vfs {CARD} --count 1` may")), "{err}");
    host.untouched(&err);
    // A GPU that fell off its bus.
    fs::remove_file(host.path(&function(GPU))).unwrap();
    let (code, _, err) = host.place.gpuvm(&["start", "a"]);
    assert!(code == 1 && err.contains(&format!("needs {GPU}, {VF}, which are missing")), "{err}");
}

#[test]
fn virtual_functions_are_not_taken_away_under_a_guest_that_came_meanwhile() {
    let Some(host) = Host::new() else { return };
    let numvfs = format!("{}/sriov_numvfs", function(CARD));
    host.put(&numvfs, "1\n");
    let real = Path::new("/sys/devices/pci0000:2b").join(VF);
    let made = host.path(real.strip_prefix("/").unwrap().to_str().unwrap());
    fs::create_dir_all(&made).unwrap();
    for (name, text) in
        [("class", "0x020700"), ("vendor", "0x15b3"), ("device", "0x1018"), ("numa_node", "0")]
    {
        fs::write(made.join(name), format!("{text}\n")).unwrap();
    }
    symlink("/sys/kernel/iommu_groups/900", made.join("iommu_group")).unwrap();
    let to = |target: &Path, from: PathBuf| symlink(target, from).unwrap();
    to(&Path::new("/").join(function(CARD)), made.join("physfn"));
    to(&real, host.path(&function(VF)));
    to(&Path::new("..").join(VF), host.path(&format!("{}/virtfn0", function(CARD))));
    let members = host.path("sys/kernel/iommu_groups/900/devices");
    fs::create_dir_all(&members).unwrap();
    to(&real, members.join(VF));
    host.put("sys/class/vfio/900/dev", "1:7\n");
    symlink("/sys/bus/pci/drivers/vfio-pci", made.join("driver")).unwrap();
    let vfs = ["nic", "vfs", CARD, "--count", "0", "--yes"];
    let (code, said, holder) = halted(&host, &vfs, Holder::new);
    assert!(code == 1 && said.contains(&holder.named(900)), "{code}: {said}");
    assert_eq!(fs::read_to_string(host.path(&numvfs)).unwrap(), "1\n", "{said}");
    assert_eq!(host.place.journal(), "");
}

/// The function of a drive, and the path of its controller.
const NVME: (&str, &str) = (
    "0000:51:00.0",
    "devices/pci0000:4e/0000:4e:00.0/0000:4f:00.0/0000:50:00.0/0000:51:00.0/nvme/nvme4",
);

/// Puts a block device with real bytes in the place of the namespace of [`NVME`].
fn give_bytes(host: &Host, device: &Path) {
    let name = device.file_name().unwrap().to_str().unwrap();
    let number = fs::read_to_string(format!("/sys/class/block/{name}/dev")).unwrap();
    let at = host.path("sys").join(NVME.1);
    fs::rename(at.join("nvme4n1"), at.join(name)).unwrap();
    fs::write(at.join(name).join("dev"), &number).unwrap();
    fs::write(at.join(name).join("size"), "32768\n").unwrap();
    let link = |from: String| {
        let from = host.path(&from);
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&from);
        symlink(format!("../../{}/{name}", NVME.1), from).unwrap();
    };
    fs::remove_file(host.path("sys/class/block/nvme4n1")).unwrap();
    link(format!("sys/class/block/{name}"));
    link(format!("sys/dev/block/{}", number.trim()));
    host.put(&format!("{}/driver_override", function(NVME.0)), "(null)\n");
}

/// Makes a file system on a device.
fn make_fs(device: &Path) {
    let (code, _, err) = run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(device));
    assert_eq!(code, 0, "{err}");
}

#[test]
fn a_number_of_nvme_drives_takes_none_with_something_on_it() {
    let (Some(host), Some(device)) = (Host::new(), super::drives::Loop::new()) else { return };
    let device = &device.device;
    give_bytes(&host, device);
    let disks = host.place.disks.to_str().unwrap();
    let create = |nvme: &str, more: &[&str]| {
        let wish = ["create", "--name", "n", "--vcpus", "1", "--memory", "64M", "--pins", "none"];
        let disks = ["--disk-dir", disks, "--os-size", "1M", "--virt-type", "qemu", "--dry-run"];
        let (code, out, err) =
            host.place.gpuvm(&[&wish[..], &disks, &["--nvme", nvme], more].concat());
        (code, out + &err)
    };
    // It is empty; the others cannot be read.
    let (code, said) = create("1", &[]);
    assert_eq!(code, 0, "{said}");
    let wish = ["export", "--vcpus", "1", "--memory", "64M", "--pins", "none", "--nvme", "1"];
    assert!(host.place.done(&wish).contains("bus='0x51'"));
    let (code, said) = create("2", &[]);
    assert_eq!(code, 1, "{said}");
    let fill = |bytes: &[u8]| {
        use std::os::unix::fs::FileExt as _;
        let device = fs::OpenOptions::new().write(true).open(device).unwrap();
        device.write_all_at(&vec![0; 16 << 20], 0).unwrap();
        device.write_all_at(bytes, 4096).unwrap();
        device.sync_all().unwrap();
    };
    for what in ["ext4", "data of an unknown kind"] {
        match what {
            "ext4" => make_fs(device),
            _ => fill(b"a database of its own"),
        }
        let (code, said) = create("1", &[]);
        assert!(code == 1, "{what}: {code}: {said}");
        let (code, said) = create("1", &["--accept-data-loss"]);
        assert!(code == 1, "{what}, accepted: {code}: {said}");
        // Its address is named, and consent asked.
        let (code, said) = create(NVME.0, &[]);
        assert!(said.contains(what), "{what}: {code}: {said}");
        let (code, said) = create(NVME.0, &["--accept-data-loss"]);
        assert_eq!(code, 0, "{what}, by address: {said}");
    }
}

#[test]
fn a_drive_that_is_mounted_after_the_plan_is_not_bound() {
    let (Some(host), Some(device)) = (Host::new(), super::drives::Loop::new()) else { return };
    give_bytes(&host, &device.device);
    let at = tempfile::tempdir().unwrap();
    let mount = || run(Command::new("mount").arg(&device.device).arg(at.path())).0 == 0;
    make_fs(&device.device);
    if !mount() {
        return skip("no mounts");
    }
    run(Command::new("umount").arg(at.path()));
    let bind = ["device", "bind", NVME.0, "--yes"];
    let (code, said, mounted) = halted(&host, &bind, mount);
    run(Command::new("umount").arg(at.path()));
    assert!(mounted && code == 1 && said.contains("is in use"), "{code}: {said}");
    let unbind = host.path("sys/bus/pci/drivers/nvme/unbind");
    assert!(!unbind.exists(), "{said}");
    assert_eq!(host.place.journal(), "");
}

#[test]
fn a_frozen_libvirtd_hinders_no_later_change_of_devices() {
    let Some(host) = Host::new() else { return };
    let pid = host.place.daemon.libvirtd();
    let frozen = super::machine::Frozen::new(pid);
    let vfs = format!("{}/sriov_numvfs", function(CARD));
    host.put(&vfs, "0\n");
    let begun = std::time::Instant::now();
    let bind = ["device", "bind", OTHER, "--yes", "--lock-wait", "300"];
    let nic = ["nic", "vfs", CARD, "--count", "1", "--yes", "--lock-wait", "300"];
    let run = |args: &[&str]| {
        let mut command = host.place.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for child in [run(&bind), run(&nic)] {
        let ended = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.code() == Some(1) && err.contains("has not answered"), "{err}");
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(240), "{:?}", begun.elapsed());
    host.untouched("frozen");
    assert_eq!(fs::read_to_string(host.path(&vfs)).unwrap(), "0\n");
    assert_eq!(host.place.journal(), "");
    // Nobody holds the lock.
    let mut flock = host.place.daemon.within("flock");
    let (code, _, err) = crate::support::run(flock.args(["-n", "/run/gpuvm/lock", "true"]));
    assert_eq!(code, 0, "{err}");
    drop(frozen);
}
