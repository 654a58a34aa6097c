//! Drives, arrays and block devices that the host or others need.

use crate::support::daemon::skip;
use crate::support::{gpuvm, run, uml};
use std::path::{Path, PathBuf};
use std::process::Command;

/// On user-mode Linux with drives of its own: every kind of content, every kind of use, `drive wipe`.
#[test]
fn drives_with_something_on_them_are_not_given_away_unasked() {
    let words = ["tests/uml/drives.sh", env!("CARGO_BIN_EXE_gpuvm")];
    let options = [["--disk", "64M"].repeat(4), vec!["--timeout", "600"]].concat();
    uml::succeeds(&options, &words, &[], "drives: no failures");
}

/// Is a loop device over an image; both go with it.
struct Loop {
    /// The device.
    device: PathBuf,
    /// The image.
    _image: tempfile::NamedTempFile,
}

impl Loop {
    /// Makes one over 16 MiB; none, with the reason told, where the machine cannot.
    fn new() -> Option<Loop> {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(16 << 20).unwrap();
        let (code, out, err) =
            run(Command::new("losetup").args(["--find", "--show"]).arg(image.path()));
        if code != 0 {
            return skip(&format!("no loop devices: {err}"));
        }
        Some(Loop { device: out.trim().into(), _image: image })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run(Command::new("losetup").arg("--detach").arg(&self.device));
    }
}

/// What `create --disk` says of a path, as a guest of libvirt's test driver that is only defined; exit code and text.
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
    // Nobody has it mounted: what is on it is named, and asked.
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
        skip::<()>(&format!("no mounts: {err}"));
        return;
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
