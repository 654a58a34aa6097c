//! Files written for later: drives whose addresses have moved by then, and programs that others
//! have replaced by then. The host is a copy of the recorded DGX-2, whose sysfs is files.

use crate::libvirt::place::Place;
use crate::support::daemon::Daemon;
use crate::support::tree::scratch;
use crate::support::{host_tree, run};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// A drive without partitions.
pub(super) const DRIVE: &str = "0000:2e:00.0";
/// Another one of the same model.
pub(super) const OTHER: &str = "0000:2f:00.0";
/// The hook of libvirt.
pub(super) const HOOK: &str = "etc/libvirt/hooks/qemu.d/50-gpuvm";

/// The host, and the directory of its files.
pub(super) fn host() -> Option<(Place, tempfile::TempDir)> {
    let dir = scratch();
    let (code, _, err) = run(Command::new("cp").arg("-aT").arg(host_tree("dgx-2")).arg(dir.path()));
    assert_eq!(code, 0, "{err}");
    let daemon = Daemon::own(Some(dir.path()))?;
    let disks = daemon.fresh_dir("disks");
    Some((Place { daemon, disks, key: None, net: false, before: None }, dir))
}

/// Gives a drive a serial number; `None` if its driver does not report it.
pub(super) fn serial(dir: &Path, bdf: &str, serial: Option<&str>) {
    let of = dir.join("sys/bus/pci/devices").join(bdf);
    let target = fs::read_link(&of).unwrap();
    let target = target.to_str().unwrap().trim_start_matches("../").trim_start_matches('/');
    let at = match target.strip_prefix("sys/") {
        Some(path) => dir.join("sys").join(path),
        None => dir.join("sys").join(target),
    };
    let controllers = fs::read_dir(at.join("nvme")).ok().into_iter().flatten();
    let name = controllers.flatten().next().map_or("nvme9".into(), |found| found.file_name());
    let controller = at.join("nvme").join(name);
    fs::create_dir_all(&controller).unwrap();
    fs::write(controller.join("model"), "Micron_9200_MTFDHAL3T8TCT\n").unwrap();
    match serial {
        Some(text) => fs::write(controller.join("serial"), format!("{text}\n")).unwrap(),
        None => fs::remove_file(controller.join("serial")).unwrap(),
    }
}

/// Defines a guest with this drive without starting it.
pub(super) fn define(place: &Place, name: &str, drive: &str) {
    let disks = place.disks.to_str().unwrap();
    let how = ["create", "--name", name, "--gpus", "0", "--nvme", drive, "--no-start"];
    let size = ["--vcpus", "2", "--memory", "1G", "--disk-dir", disks, "--accept-data-loss"];
    place.done(&[&how[..], &size].concat());
}

/// Runs libvirt's hook as libvirt does before a guest starts.
fn hook(place: &Place, name: &str) -> (i32, String) {
    let xml = place.virsh(&["dumpxml", name]);
    let mut command = place.within(&format!("/{HOOK}"));
    command.args([name, "prepare", "begin", "-"]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(xml.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    (done.status.code().unwrap_or(-1), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn drives_that_changed_places_go_to_no_guest() {
    let Some((place, dir)) = host() else { return };
    let put = |bdf, text| serial(dir.path(), bdf, text);
    put(DRIVE, Some("S1A %n$(id) \"'"));
    put(OTHER, Some("S2B"));
    define(&place, "a", DRIVE);
    let xml = place.virsh(&["dumpxml", "a"]);
    assert!(xml.contains("serial:S1A+20+25n"), "{xml}");
    place.done(&["autostart", "a", "on"]);
    assert_eq!(hook(&place, "a"), (0, String::new()));
    // A card was added: both drives have moved.
    put(DRIVE, Some("S2B"));
    put(OTHER, Some("S1A %n$(id) \"'"));
    let model = "Micron_9200_MTFDHAL3T8TCT with serial number";
    let now = format!("{DRIVE} is now {model} S2B; `a` had {model} S1A %n$(id)");
    let place_now = format!("which is now at {OTHER}");
    let (code, said) = hook(&place, "a");
    assert!(code != 0 && said.contains(&now) && said.contains(&place_now), "{code}: {said}");
    for verb in [&["start", "a"][..], &["autostart", "a", "on"]] {
        let (code, out, err) = place.gpuvm(verb);
        assert!(code == 1 && err.contains(&now) && err.contains(&place_now), "{out}{err}");
        assert!(err.contains(&format!("`gpuvm set a --nvme {OTHER}`")), "{err}");
    }
    let (code, out, err) = place.gpuvm(&["verify", "a"]);
    assert!(code == 3 && out.contains(&now), "{out}{err}");
    // The command of the hint gives it the same drive.
    place.done(&["set", "a", "--nvme", OTHER, "--accept-data-loss", "--yes"]);
    assert_eq!(hook(&place, "a"), (0, String::new()));
    // The drive is gone, and another is in its place; that one is accepted by name only.
    put(OTHER, Some("S3C"));
    let (code, said) = hook(&place, "a");
    assert!(code != 0 && said.contains("which is not found"), "{code}: {said}");
    place.done(&["set", "a", "--vcpus", "3", "--yes"]);
    assert_ne!(hook(&place, "a").0, 0, "another change accepts nothing");
    let (code, out, err) = place.gpuvm(&["set", "a", "--nvme", OTHER, "--yes"]);
    assert!(code == 2 && err.contains("--accept-data-loss"), "{code}: {out}{err}");
    place.done(&["set", "a", "--nvme", OTHER, "--accept-data-loss", "--yes"]);
    assert_eq!(hook(&place, "a"), (0, String::new()));
    // Without its serial number it is not proven to be the same.
    put(OTHER, Some("000000"));
    let (code, said) = hook(&place, "a");
    assert!(code != 0 && said.contains("does not report its serial number"), "{code}: {said}");
}

#[test]
fn a_guest_of_an_older_version_is_named_and_recorded() {
    let Some((place, dir)) = host() else { return };
    serial(dir.path(), DRIVE, Some("S1A"));
    define(&place, "a", DRIVE);
    let xml = place.virsh(&["dumpxml", "a"]);
    let (before, rest) = xml.split_once("<gpuvm:known>").unwrap();
    let (_, after) = rest.split_once("</gpuvm:known>").unwrap();
    let file = place.disks.join("old.xml");
    fs::write(&file, format!("{before}{after}")).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    let (_, out, err) = place.gpuvm(&["start", "a", "--dry-run"]);
    let way = format!("`gpuvm set a --nvme {DRIVE}` records it");
    assert!(err.contains("nothing records which drive") && err.contains(&way), "{out}{err}");
    let (_, out, _) = place.gpuvm(&["verify", "a"]);
    assert!(out.contains("drive-unrecorded"), "{out}");
    // Nothing proves that it is the drive which the guest got: its content is asked about.
    let (code, out, err) = place.gpuvm(&["set", "a", "--nvme", DRIVE, "--yes"]);
    assert!(code == 2 && err.contains("--accept-data-loss"), "{code}: {out}{err}");
    place.done(&["set", "a", "--nvme", DRIVE, "--accept-data-loss", "--yes"]);
    assert!(place.virsh(&["dumpxml", "a"]).contains("serial:S1A"));
    // Others' guests have no record: libvirt would start them with any drive.
    let foreign = xml.replace("<name>a<", "<name>f<");
    let (head, rest) = foreign.split_once("<metadata>").unwrap();
    let (_, rest) = rest.split_once("</metadata>").unwrap();
    let (start, end) = (rest.find("<uuid>"), rest.find("</uuid>"));
    let rest = match (start, end) {
        (Some(start), Some(end)) => format!("{}{}", &rest[..start], &rest[end + 7..]),
        _ => rest.to_owned(),
    };
    let head = match (head.find("<uuid>"), head.find("</uuid>")) {
        (Some(start), Some(end)) => format!("{}{}", &head[..start], &head[end + 7..]),
        _ => head.to_owned(),
    };
    place.done(&["delete", "a", "--yes"]);
    fs::write(&file, format!("{head}{rest}")).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    let (code, out, err) = place.gpuvm(&["autostart", "f", "on"]);
    assert!(code == 1 && err.contains("was not made by gpuvm"), "{out}{err}");
}

#[test]
fn devices_listed_for_boot_keep_their_identity() {
    let Some((place, dir)) = host() else { return };
    serial(dir.path(), DRIVE, Some("S1A"));
    serial(dir.path(), OTHER, Some("S2B"));
    for bdf in [DRIVE, OTHER] {
        let at = dir.path().join("sys/bus/pci/devices").join(bdf).join("driver_override");
        // An absolute path leads out of the copy.
        if let Ok(real) = at.parent().unwrap().canonicalize()
            && real.starts_with(dir.path())
        {
            fs::write(real.join("driver_override"), "(null)\n").unwrap();
        }
    }
    let unit = || {
        let path = place.daemon.own_path("/etc/systemd/system/gpuvm-vfio.service");
        fs::read_to_string(path).unwrap_or_default()
    };
    let shown = place.done(&["device", "bind", DRIVE, "--at-boot", "--dry-run"]);
    assert!(shown.contains("gpuvm-vfio.service"), "{shown}");
    let old = "# Made by `gpuvm device bind --at-boot`; `gpuvm device release --at-boot` takes it \
               back.\n# Functions: 0000:2e:00.0=1344:5180:1344:1100=serial:S1A\n";
    let path = place.daemon.own_path("/etc/systemd/system/gpuvm-vfio.service");
    fs::write(&path, old).unwrap();
    // Another drive is there now, and a GPU is added to the list.
    serial(dir.path(), DRIVE, Some("S9Z"));
    let (code, out, err) = place.gpuvm(&["nic", "list"]);
    assert_eq!(code, 0, "{out}{err}");
    let (_, out, err) = place.gpuvm(&["device", "release", OTHER, "--at-boot"]);
    assert!(unit().contains("serial:S1A") && !unit().contains("S9Z"), "{}: {out}{err}", unit());
}

#[test]
fn a_guest_unrecognisable_at_boot_does_not_autostart() {
    let Some((place, dir)) = host() else { return };
    serial(dir.path(), DRIVE, Some("S1A"));
    define(&place, "a", DRIVE);
    // libvirt leaves its binding to the unit, which an older version has listed by its address.
    let xml = place.virsh(&["dumpxml", "--inactive", "a"]);
    assert!(xml.contains("managed='yes'"), "{xml}");
    let file = place.disks.join("a.xml");
    fs::write(&file, xml.replace("managed='yes'", "managed='no'")).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    let unit = place.daemon.own_path("/etc/systemd/system/gpuvm-vfio.service");
    let old = format!("# Made by `gpuvm device bind --at-boot`\n# Functions: {DRIVE}\n");
    serial(dir.path(), DRIVE, None);
    for text in ["", &old] {
        fs::write(&unit, text).unwrap();
        let (code, out, err) = place.gpuvm(&["autostart", "a", "on"]);
        assert!(code == 1 && err.contains("could not be recognised at boot"), "{out}{err}");
        assert_eq!(fs::read_to_string(&unit).unwrap(), text);
    }
    // While vfio-pci has it, nothing reads it: the way that doctor names begins with its driver.
    let release = format!("`gpuvm device release {DRIVE}`");
    let hint = || {
        let (_, out, err) = place.gpuvm(&["host", "doctor"]);
        assert!(out.contains("boot-unidentified"), "{out}{err}");
        out.contains(&release)
    };
    assert!(!hint());
    let function = dir.path().join("sys/bus/pci/devices").join(DRIVE).canonicalize().unwrap();
    assert!(function.starts_with(dir.path()));
    let driver = function.join("driver");
    let was = fs::read_link(&driver).ok();
    let _ = fs::remove_file(&driver);
    std::os::unix::fs::symlink("../../../../bus/pci/drivers/vfio-pci", &driver).unwrap();
    assert!(hint());
    fs::remove_file(&driver).unwrap();
    if let Some(was) = was {
        std::os::unix::fs::symlink(was, &driver).unwrap();
    }
    // It reports its serial number again, which the list then has.
    serial(dir.path(), DRIVE, Some("S1A"));
    let said = place.done(&["autostart", "a", "on"]);
    assert!(fs::read_to_string(&unit).unwrap().contains("=serial:S1A"), "{said}");
}

#[test]
fn nothing_for_later_names_a_program_that_others_can_replace() {
    let Some((place, dir)) = host() else { return };
    serial(dir.path(), DRIVE, Some("S1A"));
    define(&place, "a", DRIVE);
    // Like `sudo ~/gpuvm` or `sudo /tmp/gpuvm`.
    let theirs = tempfile::tempdir().unwrap();
    let program = theirs.path().join("gpuvm");
    let built = env!("CARGO_BIN_EXE_gpuvm");
    if fs::hard_link(built, &program).is_err() {
        fs::copy(built, &program).unwrap();
    }
    for verb in [
        &["autostart", "a", "on"][..],
        &["device", "bind", DRIVE, "--at-boot", "--yes"],
        &["fabric", "hook", "--install"],
        &["fabric", "unit", "--install"],
        &["fabric", "unit", "--install", "--dry-run"],
    ] {
        let mut command = place.within(program.to_str().unwrap());
        let (code, out, err) = run(command.args(verb).stdin(Stdio::null()));
        assert_eq!(code, 1, "{verb:?}: {out}{err}");
        assert!(err.contains("as root, which others can replace: /tmp has mode"), "{err}");
        assert!(err.contains("hint: install it first"), "{err}");
    }
    assert!(!place.daemon.own_path(HOOK).exists());
    assert!(!place.virsh(&["dominfo", "a"]).contains("Autostart:      enable"));
    // What an older version wrote is named.
    let unit = place.daemon.own_path("/etc/systemd/system/gpuvm-recover.service");
    fs::write(unit, format!("[Service]\nExecStart={} --quiet recover\n", program.display()))
        .unwrap();
    let (_, out, err) = place.gpuvm(&["host", "doctor"]);
    assert!(out.contains("gpuvm-recover.service runs") && out.contains("replace"), "{out}{err}");
}
