//! The number of virtual functions on a tree with a fake kernel.

use super::*;
use crate::apply::bind::BindError;
use crate::apply::owner::Everyone;
use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

const PF: &str = "0000:86:00.0";

/// A fake kernel on a tree.
struct Played {
    dir: tempfile::TempDir,
    /// The most it makes, whatever is requested.
    most: u32,
    refuses: Vec<&'static str>,
    log: RefCell<Vec<String>>,
}

impl Played {
    /// A PF with this many virtual functions.
    fn new(count: u32) -> Played {
        let dir = tempfile::tempdir().unwrap();
        let (most, refuses) = (u32::MAX, Vec::new());
        let played = Played { dir, most, refuses, log: RefCell::default() };
        fs::create_dir_all(played.pf()).unwrap();
        fs::write(played.pf().join("sriov_drivers_autoprobe"), "1\n").unwrap();
        played.make(count);
        played
    }

    fn pf(&self) -> PathBuf {
        self.dir.path().join(path(PF.parse().unwrap()))
    }

    fn make(&self, count: u32) {
        let devices = self.pf().parent().unwrap().to_owned();
        for nth in 0.. {
            let link = self.pf().join(format!("virtfn{nth}"));
            if link.symlink_metadata().is_err() {
                break;
            }
            fs::remove_file(link).unwrap();
        }
        for nth in 0..count {
            let name = format!("0000:86:10.{nth}");
            fs::create_dir_all(devices.join(&name)).unwrap();
            symlink(format!("../{name}"), self.pf().join(format!("virtfn{nth}"))).unwrap();
        }
        fs::write(self.pf().join("sriov_numvfs"), format!("{count}\n")).unwrap();
    }

    /// Works with it, and returns the values written.
    fn with<T>(&self, work: impl FnOnce(&Functions<'_>, Bdf) -> T) -> (T, Vec<String>) {
        let root = FsRoot::at(self.dir.path()).unwrap();
        let functions =
            Functions { root: &root, kernel: self, owner: &Everyone, pause: Duration::ZERO };
        (work(&functions, PF.parse().unwrap()), self.log.take())
    }
}

impl Kernel for Played {
    fn write(&self, path: &str, text: &str, _: u64) -> Result<(), BindError> {
        self.log.borrow_mut().push(text.to_owned());
        let file = self.dir.path().join(path);
        if path.ends_with("sriov_drivers_autoprobe") {
            fs::write(file, text).unwrap();
            return Ok(());
        }
        let (count, now): (u32, u32) =
            (text.parse().unwrap(), fs::read_to_string(file).unwrap().trim().parse().unwrap());
        let busy = count != 0 && now != 0;
        if busy || self.refuses.contains(&text) {
            let reason = "Device or resource busy".to_owned();
            return Err(BindError::Refused {
                path: path.to_owned(),
                text: text.to_owned(),
                reason,
            });
        }
        self.make(count.min(self.most));
        Ok(())
    }

    fn load(&self, module: &str) -> Result<(), BindError> {
        panic!("{module}: no module is loaded")
    }
}

#[test]
fn a_new_number_goes_by_none() {
    for (was, count, written) in
        [(0, 2, &["2"][..]), (2, 4, &["0", "4"]), (4, 0, &["0"]), (2, 2, &[]), (0, 0, &[])]
    {
        let played = Played::new(was);
        let (done, log) = played.with(|functions, pf| functions.change(pf, was, count));
        done.unwrap();
        assert_eq!(log, written, "{was} to {count}");
        assert_eq!(played.with(|functions, pf| functions.now(pf).unwrap()).0, count);
    }
}

#[test]
fn failed_creation_leaves_the_former_number() {
    let mut played = Played::new(2);
    played.most = 3;
    let (done, log) = played.with(|functions, pf| functions.change(pf, 2, 8));
    let error = done.unwrap_err().to_string();
    assert_eq!(error, "0000:86:00.0: requested 8 virtual functions, got 3");
    assert_eq!(log, ["0", "8", "0", "2"]);
    played.refuses = vec!["0"];
    let error = played.with(|functions, pf| functions.change(pf, 2, 1)).0.unwrap_err().to_string();
    assert!(error.ends_with("sriov_numvfs: Device or resource busy"), "{error}");
    assert_eq!(played.with(|functions, pf| functions.now(pf).unwrap()).0, 2);
    played.refuses = vec!["8", "2"];
    let error = played.with(|functions, pf| functions.change(pf, 2, 8)).0.unwrap_err();
    assert!(matches!(error, NicError::Twice { .. }), "{error}");
}

#[test]
fn a_killed_change_is_undone_from_everywhere() {
    for half in [0, 2, 4] {
        let played = Played::new(half);
        played.with(|functions, pf| functions.set(pf, 2)).0.unwrap();
        assert_eq!(played.with(|functions, pf| functions.now(pf).unwrap()).0, 2, "{half}");
    }
}

#[test]
fn another_number_than_planned_is_refused_and_a_setting_written_once() {
    let played = Played::new(2);
    let error = played.with(|functions, pf| functions.expect(pf, 0)).0.unwrap_err().to_string();
    let wanted = "0000:86:00.0 has 2 virtual functions; it had 0 when this was planned";
    assert_eq!(error, wanted);
    let (_, log) = played.with(|functions, pf| {
        for on in [true, false, false, true] {
            functions.set_autoprobe(pf, on).unwrap();
        }
    });
    assert_eq!(log, ["0", "1"]);
    fs::remove_file(played.pf().join("sriov_numvfs")).unwrap();
    assert!(matches!(
        played.with(|functions, pf| functions.expect(pf, 0)).0,
        Err(NicError::Absent { .. })
    ));
}
