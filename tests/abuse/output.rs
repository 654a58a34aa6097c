//! Links that another user puts in the way of what root writes.

use super::uses::Ground;
use crate::support::{gpuvm, project, run, skip};
use nix::unistd::geteuid;
use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::path::{Path, PathBuf};

/// A user who is not root.
const OTHER: Option<u32> = Some(65534);

/// A directory of another user, in which a link of that user leads to a victim's directory and one
/// to its file.
struct Trap {
    dir: tempfile::TempDir,
}

impl Trap {
    /// Sets it up; none, with the reason reported, if this is not root.
    fn new() -> Option<Trap> {
        if !geteuid().is_root() {
            return skip("only root makes a link of another user");
        }
        let trap = Trap { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(trap.at("victim")).unwrap();
        fs::write(trap.at("victim/file"), "theirs").unwrap();
        fs::create_dir(trap.at("home")).unwrap();
        for (link, to) in [("home/dir", "victim"), ("home/file", "victim/file")] {
            symlink(trap.at(to), trap.at(link)).unwrap();
            lchown(trap.at(link), OTHER, None).unwrap();
        }
        lchown(trap.at("home"), OTHER, None).unwrap();
        Some(trap)
    }

    /// A path in it.
    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Expects that nothing came to the victim.
    fn is_unharmed(&self, said: &str) {
        assert_eq!(crate::libvirt::files(&self.at("victim")), ["file"], "{said}");
        assert_eq!(fs::read_to_string(self.at("victim/file")).unwrap(), "theirs", "{said}");
    }
}

#[test]
fn output_goes_through_no_link_of_another_user() {
    let Some(trap) = Trap::new() else { return };
    let host = project().join("topologies/dgx-2.json");
    let host = host.to_str().unwrap();
    let [export, capture, view] = [
        &["export", "--gpus", "1", "--host", host, "-o"][..],
        &["host", "capture", "--overwrite"],
        &["host", "show", "--host", host, "--html"],
    ];
    let (below, file) = (trap.at("home/dir/new"), trap.at("home/file"));
    let (below, file) = (below.to_str().unwrap(), file.to_str().unwrap());
    for (verb, to) in
        [(export, below), (export, file), (capture, below), (view, below), (view, file)]
    {
        let args = [verb, &[to]].concat();
        let (code, out, err) = run(&mut gpuvm(&args));
        assert!(code != 0 && err.contains("link"), "{args:?}: {out}{err}");
        trap.is_unharmed(&format!("{args:?}: {out}{err}"));
    }
    // A link in the place of the file itself is replaced, not followed.
    let (code, out, err) = run(&mut gpuvm(&[capture, &[file]].concat()));
    trap.is_unharmed(&format!("{out}{err}"));
    assert!(code == 0 && !Path::new(file).is_symlink(), "{out}{err}");
    // A directory of that user without a link is one that was named.
    let own = trap.at("home/own");
    assert_eq!(run(&mut gpuvm(&[export, &[own.to_str().unwrap()]].concat())).0, 0);
    assert!(own.is_file());
}

#[test]
fn a_bundle_goes_through_no_link_of_another_user() {
    let (Some(trap), Some(ground)) = (Trap::new(), Ground::new()) else { return };
    ground.guest("a");
    let bundle = trap.at("home/dir/bundle");
    let args = ["export", "a", "--bundle", bundle.to_str().unwrap()];
    let (code, out, err) = ground.place.gpuvm(&args);
    assert!(code == 1 && err.contains("link of another user"), "{out}{err}");
    trap.is_unharmed(&format!("{out}{err}"));
    let own = trap.at("home/bundle");
    ground.place.done(&["export", "a", "--bundle", own.to_str().unwrap()]);
    assert!(own.join("SHA256SUMS").is_file());
}
