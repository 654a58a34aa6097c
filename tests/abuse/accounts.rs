//! Root and members of group libvirt change the same guests: they share the lock, and each is shown
//! where the other's history is.

use super::uses::Ground;
use crate::libvirt::place::Place;
use crate::support::run;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;

/// The unprivileged user's number: the files of a build directory are readable for it.
const UID: u32 = 65534;
/// The number of group libvirt.
const GROUP: u32 = 64055;

/// A machine on which `ann` is a member of group libvirt.
struct Accounts {
    ground: Ground,
    program: PathBuf,
}

impl Accounts {
    fn new() -> Option<Accounts> {
        let ground = Ground::new()?;
        let place = &ground.place;
        let program = place.disks.join("gpuvm-of-ann");
        fs::copy(env!("CARGO_BIN_EXE_gpuvm"), &program).unwrap();
        let home = place.disks.join("ann");
        fs::create_dir(&home).unwrap();
        chown(&home, Some(UID), Some(UID)).unwrap();
        for dir in [&place.disks, &home] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let accounts = Accounts { ground, program };
        let ann = format!("ann:x:{UID}:{UID}::{}:/bin/sh\n", home.display());
        accounts.instead_of("/etc/passwd", &format!("root:x:0:0::/root:/bin/sh\n{ann}"));
        let groups = format!("root:x:0:\nnogroup:x:{UID}:\nlibvirt:x:{GROUP}:ann\n");
        accounts.instead_of("/etc/group", &groups);
        Some(accounts)
    }

    fn place(&self) -> &Place {
        &self.ground.place
    }

    /// Puts a file in the place of another one, in the mounts of the daemon.
    fn instead_of(&self, path: &str, text: &str) {
        let file = self.place().disks.join(path.rsplit('/').next().unwrap());
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let mut mount = self.place().daemon.enter(&["--mount"], "mount");
        let (code, out, err) = run(mount.arg("--bind").arg(&file).arg(path));
        assert_eq!(code, 0, "{out}{err}");
    }

    /// Runs the program in the mounts of the daemon. `ids`: the user's, or none for root.
    fn as_user(&self, ids: &[String], home: &str, args: &[&str]) -> (i32, String, String) {
        let mut command = self.place().daemon.enter(&["--mount"], "setpriv");
        command.args(ids).arg(&self.program).args(args).env("HOME", home).env("LC_ALL", "C");
        for name in ["XDG_STATE_HOME", "XDG_RUNTIME_DIR", "LIBVIRT_DEFAULT_URI", "SUDO_UID"] {
            command.env_remove(name);
        }
        run(&mut command)
    }

    /// Runs it as root.
    fn root(&self, args: &[&str]) -> (i32, String, String) {
        self.as_user(&["--reuid=0".into()], "/root", args)
    }

    /// Runs it as ann. libvirt's socket is of group root here.
    fn ann(&self, args: &[&str]) -> (i32, String, String) {
        let home = self.place().disks.join("ann");
        let ids =
            [format!("--reuid={UID}"), format!("--regid={UID}"), format!("--groups=0,{GROUP}")];
        self.as_user(&ids, home.to_str().unwrap(), args)
    }
}

#[test]
fn members_of_group_libvirt_share_the_lock_of_root() {
    let Some(accounts) = Accounts::new() else { return };
    let place = accounts.place();
    accounts.ground.other("a", "");
    let tune = ["tune", "a", "--yes", "--emulator", "0", "--lock-wait", "0"];
    let (code, out, err) = accounts.root(&tune);
    assert_eq!(code, 0, "{out}{err}");
    let file = File::open(place.daemon.inside("/run/gpuvm/lock")).unwrap();
    let held = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno).unwrap();
    let more = ["tune", "a", "--yes", "--topology", "1x1x1", "--lock-wait", "0"];
    for (code, out, err) in [accounts.root(&more), accounts.ann(&more)] {
        assert!(code == 1 && err.contains("/run/gpuvm/lock is held by"), "{out}{err}");
    }
    drop(held);
    let (code, out, err) = accounts.ann(&more);
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn root_is_shown_whose_changes_it_does_not_know() {
    let Some(accounts) = Accounts::new() else { return };
    let place = accounts.place();
    accounts.ground.other("a", "");
    let (code, _, err) = accounts.root(&["undo", "a"]);
    assert!(code == 1 && err.contains("has no change to undo"), "{err}");
    assert!(!err.contains("gpuvm delete"), "undo offers to delete the guest: {err}");
    let (code, out, err) = accounts.ann(&["tune", "a", "--yes", "--emulator", "0"]);
    assert_eq!(code, 0, "{out}{err}");
    let directory = place.disks.join("ann/.local/state/gpuvm");
    let whose = format!("changed by ann ({})", directory.display());
    for verb in ["undo", "history"] {
        let (code, out, err) = accounts.root(&[verb, "a"]);
        let hint = format!("hint: `sudo -u ann gpuvm {verb} a`");
        assert!(code == 1 && err.contains(&whose) && err.contains(&hint), "{verb}: {out}{err}");
        assert!(!err.contains("gpuvm delete"), "{err}");
    }
    // Each has changed it.
    let (code, out, err) = accounts.root(&["tune", "a", "--yes", "--topology", "1x1x1"]);
    assert_eq!(code, 0, "{out}{err}");
    let (code, out, err) = accounts.root(&["history", "a"]);
    assert!(code == 0 && out.contains("tune") && err.contains(&whose), "{out}{err}");
    let (code, _, err) = accounts.ann(&["history", "a"]);
    assert!(code == 0 && err.contains("root's records"), "{err}");
    let (code, out, err) = accounts.root(&["undo", "a", "--yes"]);
    assert!(code == 0 && err.contains(&whose), "{out}{err}");
    let (code, out, err) = accounts.ann(&["undo", "a", "--yes"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(!place.virsh(&["dumpxml", "--inactive", "a"]).contains("emulatorpin"));
}
