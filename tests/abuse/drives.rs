//! Drives, arrays and block devices that the host or others need.

use crate::support::lawful::NO_LOOP;
use crate::support::{gpuvm, run, skip, uml};
use gpuvm::apply::{DomainStep, Observer, Step, apply};
use gpuvm::hypervisor::Domains as _;
use gpuvm::hypervisor::libvirt::Libvirt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// On user-mode Linux with drives of its own: every kind of content, every kind of use,
/// `drive wipe`.
#[test]
fn drives_with_something_on_them_are_not_given_away_unasked() {
    let words = ["tests/uml/drives.sh", env!("CARGO_BIN_EXE_gpuvm")];
    let options = [["--disk", "16M"].repeat(4), vec!["--timeout", "600"]].concat();
    uml::succeeds(&options, &words, &[], "drives: no failures");
}

/// A loop device over an image; both are removed when this is dropped.
pub(super) struct Loop {
    /// The device.
    pub device: PathBuf,
    /// The image.
    _image: tempfile::NamedTempFile,
}

impl Loop {
    /// Sets up one of 16 MiB; none, with the reason reported, if the machine cannot.
    pub fn new() -> Option<Loop> {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(16 << 20).unwrap();
        let (code, out, _) =
            run(Command::new("losetup").args(["--find", "--show"]).arg(image.path()));
        if code != 0 {
            return skip(NO_LOOP);
        }
        Some(Loop { device: out.trim().into(), _image: image })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run(Command::new("losetup").arg("--detach").arg(&self.device));
    }
}

/// Runs `create --disk` with a path for a guest that is only defined, on libvirt's test driver.
/// Returns exit code and output.
fn given(disk: &Path, options: &[&str]) -> (i32, String) {
    let mut command = gpuvm(&["--connect", "test:///default", "create", "--name", "abuse-drives"]);
    command.args(["--vcpus", "1", "--memory", "64M", "--pins", "none", "--no-start"]);
    let (code, out, err) = run(command.arg("--disk").arg(disk).args(options));
    (code, out + &err)
}

#[test]
fn a_device_with_a_mounted_file_system_is_no_disk_whatever_its_name() {
    let Some(device) = Loop::new() else { return };
    let (code, _, err) = run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&device.device));
    assert_eq!(code, 0, "{err}");
    // It is not mounted: its content is named, and consent asked.
    let (code, said) = given(&device.device, &[]);
    assert!(code == 2 && said.contains("holds ext4"), "{code}: {said}");
    assert!(said.contains("--accept-data-loss"), "{said}");
    let (code, said) = given(&device.device, &["--accept-data-loss", "--dry-run"]);
    assert_eq!(code, 0, "{said}");
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("at");
    std::fs::create_dir(&at).unwrap();
    let (code, _, err) = run(Command::new("mount").arg(&device.device).arg(&at));
    if code != 0 {
        return skip(format!("no mounts: {err}"));
    }
    let node = dir.path().join("other");
    let number = |what| {
        let (_, out, _) = run(Command::new("stat").args(["--format", what]).arg(&device.device));
        u32::from_str_radix(out.trim(), 16).unwrap().to_string()
    };
    let (code, _, err) =
        run(Command::new("mknod").arg(&node).args(["b", &number("%t"), &number("%T")]));
    assert_eq!(code, 0, "{err}");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&node, &link).unwrap();
    let said: Vec<(i32, String)> =
        [&device.device, &node, &link].map(|path| given(path, &["--accept-data-loss"])).into();
    run(Command::new("umount").arg(&at));
    for (code, said) in said {
        assert!(code == 1 && said.contains("is mounted at"), "{code}: {said}");
    }
}

/// Watches nothing.
struct Watch;

impl Observer for Watch {
    fn doing(&mut self, _: &Step) {}
    fn undoing(&mut self, _: &Step) {}
    fn interrupted(&mut self) -> Option<String> {
        None
    }
}

#[test]
fn a_drive_that_is_mounted_after_the_plan_goes_into_no_definition_and_no_guest() {
    // Private mounts: namespaces created meanwhile would keep a copy of the mounts here.
    const OWN: &str = "GPUVM_TEST_OWN_MOUNTS";
    if std::env::var_os(OWN).is_none() {
        let mut again = Command::new("unshare");
        again.args(["-m", "--propagation", "private"]).arg(std::env::current_exe().unwrap());
        let name = "abuse::drives::a_drive_that_is_mounted_after_the_plan_goes_into_no_definition_and_no_guest";
        again.args(["--exact", name]).env(OWN, "1");
        let (code, out, err) = run(&mut again);
        assert!(code == 0 && out.contains("1 passed"), "{out}{err}");
        return;
    }
    let Some(device) = Loop::new() else { return };
    let (code, _, err) = run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&device.device));
    assert_eq!(code, 0, "{err}");
    let at = tempfile::tempdir().unwrap();
    let mount = || run(Command::new("mount").arg(&device.device).arg(at.path()));
    let unmount = || assert_eq!(run(Command::new("umount").arg(at.path())).0, 0);
    let (code, _, err) = mount();
    if code != 0 {
        return skip(format!("no mounts: {err}"));
    }
    let libvirt = Libvirt::open("test:///default").unwrap();
    let name = "last-look".to_owned();
    let xml = format!(
        "<domain type='test'><name>{name}</name><memory \
         unit='MiB'>64</memory><os><type>hvm</type></os><devices>\
         <disk type='block' device='disk'><source dev='{}'/><target dev='vda' bus='virtio'/></disk></devices></domain>",
        device.device.display()
    );
    let define = [Step::Domain(DomainStep::Define { name: name.clone(), xml })];
    let start = [Step::Domain(DomainStep::Start { name: name.clone(), uuid: None })];
    let does = |steps: &[Step]| match apply(steps, &libvirt, &mut Watch, None) {
        Ok(()) => "done".to_owned(),
        Err(error) => std::error::Error::source(&error).unwrap().to_string(),
    };
    let mounted = format!("is mounted at {}", at.path().display());
    let said = does(&define);
    let is_defined = libvirt.domain(&name).unwrap().is_some();
    unmount();
    assert!(said.contains(&mounted) && !is_defined, "{said}");
    assert_eq!(does(&define), "done");
    assert_eq!(mount().0, 0);
    let said = does(&start);
    unmount();
    assert!(said.contains(&mounted), "{said}");
    assert_eq!(does(&start), "done");
}
