//! The steps on a fake hypervisor that fails at configured calls.

use super::*;
use crate::hypervisor::snapshot::Snapshots;
use crate::hypervisor::{
    Addresses, AskedBy, Console, DomainState, DomainSummary, Domains, HypervisorError,
    HypervisorErrorKind, Lease, Live, XmlOf,
};
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::DomainXml;
use gpuvm_core::domain::live::GuestThread;
use gpuvm_core::network::GuestAddress;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

mod network;

/// A hypervisor in memory: each domain with whether it runs.
#[derive(Default)]
struct Fake {
    domains: RefCell<BTreeMap<String, bool>>,
    /// The UUIDs of those that have one, by name.
    uuids: RefCell<BTreeMap<String, String>>,
    /// The number of the run of each that has one.
    runs: RefCell<BTreeMap<String, u32>>,
    /// The calls for which the hypervisor is unreachable.
    away: Vec<usize>,
    /// Calls that change something, so far.
    calls: Cell<usize>,
    fails: Vec<usize>,
    log: RefCell<Vec<String>>,
    /// Whether others start a domain just before it is undefined.
    meddled: bool,
    networks: network::FakeNetworks,
}

impl Fake {
    /// Counts a call, and fails it if configured.
    fn call(&self, doing: &str) -> Result<(), HypervisorError> {
        let number = self.calls.replace(self.calls.get() + 1);
        self.log.borrow_mut().push(doing.to_owned());
        let kind = match (self.fails.contains(&number), self.away.contains(&number)) {
            (false, false) => return Ok(()),
            (_, true) => HypervisorErrorKind::NoConnection,
            _ => HypervisorErrorKind::Other,
        };
        let (doing, message) = (doing.to_owned(), format!("call {number} fails"));
        Err(HypervisorError { kind, doing, message })
    }

    fn set(&self, name: &str, runs: bool) {
        self.domains.borrow_mut().insert(name.to_owned(), runs);
    }
}

impl Hypervisor for Fake {
    fn uri(&self) -> &str {
        "fake:///"
    }
    fn storage(&self) -> &dyn crate::hypervisor::storage::Storage {
        // It has no pools.
        &crate::hypervisor::none::NoHypervisor
    }
    fn networks(&self) -> &dyn crate::hypervisor::network::Networks {
        &self.networks
    }
}

impl Domains for Fake {
    fn domains(&self) -> Result<Vec<DomainSummary>, HypervisorError> {
        let row = |(name, runs): (&String, &bool)| DomainSummary {
            name: name.clone(),
            uuid: self.uuids.borrow().get(name).cloned().unwrap_or_default(),
            state: if *runs { DomainState::Running } else { DomainState::ShutOff },
            persistent: true,
        };
        Ok(self.domains.borrow().iter().map(row).collect())
    }
    fn xml(&self, name: &str, _: XmlOf) -> Result<String, HypervisorError> {
        let known = self.uuids.borrow();
        Ok(known.get(name).map_or(name.to_owned(), |uuid| xml(name, uuid)))
    }
    fn define(&self, xml: &str) -> Result<(), HypervisorError> {
        self.call("define")?;
        let Ok(parsed) = DomainXml::parse(xml) else {
            self.set(xml, false);
            return Ok(());
        };
        self.set(&parsed.name(), false);
        let uuid = parsed.uuid().unwrap_or_default();
        self.uuids.borrow_mut().insert(parsed.name(), uuid);
        Ok(())
    }
    fn undefine(&self, name: &str) -> Result<(), HypervisorError> {
        self.call("undefine")?;
        if self.meddled {
            self.set(name, true);
            return Ok(());
        }
        match self.domains.borrow_mut().remove(name) {
            Some(runs) => assert!(!runs, "undefined while it runs"),
            None => return Err(absent("undefine", name)),
        }
        Ok(())
    }
    fn autostart(&self, _: &str) -> Result<bool, HypervisorError> {
        Ok(false)
    }
    fn set_autostart(&self, _: &str, _: bool) -> Result<(), HypervisorError> {
        Ok(())
    }
}

impl Snapshots for Fake {}

impl Live for Fake {
    fn start(&self, name: &str) -> Result<(), HypervisorError> {
        self.call("start")?;
        self.set(name, true);
        *self.runs.borrow_mut().entry(name.to_owned()).or_default() += 1;
        Ok(())
    }
    fn run_id(&self, name: &str) -> Result<Option<u32>, HypervisorError> {
        Ok(self.runs.borrow().get(name).copied())
    }
    fn shutdown(&self, name: &str, _: AskedBy) -> Result<(), HypervisorError> {
        self.call("shutdown")?;
        self.set(name, name == "stubborn");
        Ok(())
    }
    fn destroy(&self, name: &str) -> Result<(), HypervisorError> {
        self.call("destroy")?;
        if !self.domains.borrow().contains_key(name) {
            return Err(absent("destroy", name));
        }
        self.set(name, false);
        Ok(())
    }
    fn detach(&self, _: &str, _: &str) -> Result<(), HypervisorError> {
        self.call("detach")
    }
    fn pin(&self, _: &str, thread: GuestThread, _: &CpuSet) -> Result<(), HypervisorError> {
        self.call(&format!("pin {thread}"))
    }
    fn update(&self, _: &str, _: &str) -> Result<(), HypervisorError> {
        self.call("update")
    }
    fn ask_agent(
        &self,
        _: &str,
        _: &str,
        _: std::time::Duration,
    ) -> Result<String, HypervisorError> {
        panic!("no step asks an agent")
    }
    fn console(&self, _: &str, _: bool) -> Result<Box<dyn Console>, HypervisorError> {
        panic!("no step attaches to a console")
    }
}

impl Addresses for Fake {
    fn leases(&self, _: &str, _: &str) -> Result<Vec<Lease>, HypervisorError> {
        Ok(Vec::new())
    }
    fn addresses(&self, _: &str, _: &[String]) -> Result<Vec<GuestAddress>, HypervisorError> {
        Ok(Vec::new())
    }
}

/// The step that asks a guest to shut down, and does not wait.
fn shut_down(name: &str) -> Step {
    let (name, by) = (name.to_owned(), AskedBy::Agent);
    Step::Domain(DomainStep::ShutDown { name, uuid: None, by, wait_s: 0, restarts: false })
}

/// The error that there is no such domain.
fn absent(doing: &str, name: &str) -> HypervisorError {
    let (doing, message) = (doing.to_owned(), format!("no domain `{name}`"));
    HypervisorError { kind: HypervisorErrorKind::NoDomain, doing, message }
}

/// An observer, interrupted after a number of steps has begun.
#[derive(Default)]
struct Watch {
    log: Vec<String>,
    /// Steps after which a signal comes.
    signal_after: Option<usize>,
}

impl Observer for Watch {
    fn doing(&mut self, step: &Step) {
        self.log.push(step.to_string());
    }
    fn undoing(&mut self, step: &Step) {
        self.log.push(format!("undo {step}"));
    }
    fn interrupted(&mut self) -> Option<String> {
        let begun = self.log.len();
        self.signal_after.filter(|&after| begun >= after).map(|_| "SIGTERM".to_owned())
    }
}

fn disk(path: PathBuf, bytes: u64) -> Step {
    Step::File(FileStep::CreateDisk {
        path,
        bytes,
        preallocate: Preallocate::Reserve,
        from: None,
        sha256: None,
    })
}

/// The UUID of the domain that is made here.
const UUID: &str = "11111111-2222-4333-8444-555555555555";

fn xml(name: &str, uuid: &str) -> String {
    format!("<domain><name>{name}</name><uuid>{uuid}</uuid></domain>")
}

/// The steps of a create with two disks.
fn create(dir: &std::path::Path) -> Vec<Step> {
    let name = || "a".to_owned();
    vec![
        disk(dir.join("os.img"), 1 << 20),
        disk(dir.join("data.img"), 1 << 20),
        Step::Domain(DomainStep::Define { name: name(), xml: xml("a", UUID) }),
        Step::Domain(DomainStep::Start { name: name(), uuid: Some(UUID.into()) }),
    ]
}

/// How many files a directory holds, beside the records of which disks were made.
fn files(dir: &std::path::Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name != "disks").count()
}

#[test]
fn a_create_that_fails_at_any_step_leaves_nothing() {
    for failing in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let mut steps = create(dir.path());
        let mut fake = Fake::default();
        match failing {
            // The disks fail because their directory is not there.
            0 | 1 => {
                let path = dir.path().join("absent/x.img");
                steps[failing] = disk(path, 1);
            }
            _ => fake.fails = vec![failing - 2],
        }
        let error = apply(&steps, &fake, &mut Watch::default(), None).unwrap_err();
        assert!(error.left().is_empty(), "{error}");
        assert_eq!(files(dir.path()), 0, "step {failing} left a file");
        assert_eq!(fake.domains().unwrap(), [], "step {failing} left a domain");
        assert!(error.to_string().contains(&steps[failing].to_string()), "{error}");
        assert_eq!(error.to_string().contains("are undone"), failing > 0, "{error}");
    }
}

/// An observer that writes into a file before the step of a number.
struct Meddler(usize, PathBuf);

impl Observer for Meddler {
    fn doing(&mut self, _: &Step) {
        if self.0 == 0 {
            std::fs::write(&self.1, "b").unwrap();
        }
        self.0 = self.0.wrapping_sub(1);
    }
    fn undoing(&mut self, _: &Step) {}
    fn interrupted(&mut self) -> Option<String> {
        None
    }
}

#[test]
fn copies_of_files_of_different_times_are_not_kept() {
    for (before, is_kept) in [(1, false), (2, false), (usize::MAX, true)] {
        let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let names = ["os.img", "data.img"];
        let mut steps = Vec::new();
        let mut checks = Vec::new();
        for name in names {
            let from = dir.path().join(name);
            std::fs::write(&from, "a").unwrap();
            // Long ago: the clock of files is coarse.
            let file = std::fs::File::options().write(true).open(&from).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
            let meta = from.metadata().unwrap();
            let (path, preallocate) = (to.path().join(name), Preallocate::None);
            let of = Some(from.clone());
            steps.push(
                FileStep::CreateDisk { path, bytes: 1, preallocate, from: of, sha256: None }.into(),
            );
            let modified_ns = modified_ns(&meta);
            checks.push(CheckStep::Source { path: from, bytes: 1, modified_ns }.into());
        }
        steps.extend(checks);
        let mut meddler = Meddler(before, dir.path().join(names[0]));
        let end = apply(&steps, &Fake::default(), &mut meddler, None);
        let left = if is_kept { names.len() } else { 0 };
        assert_eq!((end.is_ok(), files(to.path())), (is_kept, left), "before step {before}");
        if let Err(error) = end {
            let said = error.to_string();
            assert!(said.contains("has not been written since"), "{said}");
        }
    }
}

#[test]
fn a_create_that_is_interrupted_leaves_nothing() {
    for after in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let mut watch = Watch { signal_after: Some(after), ..Watch::default() };
        let error = apply(&create(dir.path()), &fake, &mut watch, None).unwrap_err();
        assert!(matches!(error, ApplyError::Interrupted { .. }));
        assert_eq!((files(dir.path()), fake.domains().unwrap().len()), (0, 0));
    }
}

#[test]
fn a_signal_after_the_last_step_undoes_it_too() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let mut watch = Watch { signal_after: Some(4), ..Watch::default() };
    let mut transaction = Transaction::new(&fake, &mut watch, None);
    transaction.run(&create(dir.path())).unwrap();
    assert!(fake.domains.borrow()["a"]);
    let error = transaction.go_on().unwrap_err();
    assert_eq!(error.to_string(), "interrupted by SIGTERM; earlier steps are undone");
    assert_eq!((files(dir.path()), fake.domains().unwrap().len()), (0, 0));
    let undone: Vec<&str> = watch.log[4..].iter().map(|text| &text[..10]).collect();
    assert_eq!(undone, ["undo start", "undo defin", "undo creat", "undo creat"]);
}

#[test]
fn a_failed_undo_is_reported_with_the_first_error() {
    let dir = tempfile::tempdir().unwrap();
    // Define succeeds, start fails; the undefine that undoes the define fails, too.
    let fake = Fake { fails: vec![1, 2], ..Fake::default() };
    let error = apply(&create(dir.path()), &fake, &mut Watch::default(), None).unwrap_err();
    assert!(error.to_string().starts_with("cannot start domain `a`"), "{error}");
    assert!(error.to_string().ends_with("only in part"), "{error}");
    let left: Vec<String> = error.left().iter().map(ToString::to_string).collect();
    assert_eq!(left[0], "not undone: define domain `a`: undefine: call 2 fails");
    assert!(left.len() == 3 && left[1].ends_with("the step after it is not undone"), "{left:?}");
    // The domain that is still defined has them.
    assert_eq!(files(dir.path()), 2, "disks of a domain that is there are gone");
}

#[test]
fn a_delete_that_cannot_remove_a_disk_keeps_the_domain() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.set("a", true);
    let name = || "a".to_owned();
    let steps = [
        Step::Domain(DomainStep::End { name: name(), uuid: None }),
        Step::Domain(DomainStep::Undefine { name: name(), xml: name() }),
        // A directory is no image of ours.
        Step::File(FileStep::DeleteDisk { path: dir.path().to_owned(), file: None }),
    ];
    let error = apply(&steps, &fake, &mut Watch::default(), None).unwrap_err();
    assert!(error.to_string().contains("cannot delete disk"), "{error}");
    assert_eq!(fake.domains.borrow().get("a"), Some(&false));
}

#[test]
fn a_late_shutdown_is_reported() {
    for (name, goes) in [("docile", true), ("stubborn", false)] {
        let fake = Fake::default();
        fake.set(name, true);
        let steps = [shut_down(name)];
        let end = apply(&steps, &fake, &mut Watch::default(), None);
        assert_eq!(end.is_ok(), goes, "{name}");
    }
}

#[test]
fn a_guest_whose_agent_does_not_answer_is_asked_by_the_power_button() {
    // The agent is call 0, the power button call 1.
    for (fails, goes) in [(vec![0], true), (vec![0, 1], false)] {
        let fake = Fake { fails, ..Fake::default() };
        fake.set("a", true);
        let end = apply(&[shut_down("a")], &fake, &mut Watch::default(), None);
        assert_eq!((end.is_ok(), fake.calls.get()), (goes, 2));
    }
}

#[test]
fn a_step_follows_the_new_name_of_its_domain_alone() {
    let (name, uuid) = ("a".to_owned(), "u".to_owned());
    let step = Step::Domain(DomainStep::Autostart { name, uuid, on: true });
    let Step::Domain(DomainStep::Autostart { name, .. }) = step.renamed("a", "b") else {
        panic!("another step")
    };
    assert_eq!(name, "b");
    assert_eq!(step.renamed("c", "b"), step);
}

#[test]
fn steps_print_as_json() {
    let steps = create(std::path::Path::new("/d"));
    let json = serde_json::to_value(&steps[0]).unwrap();
    assert_eq!(json["step"], "create-disk");
    assert_eq!(json["bytes"], 1 << 20);
}

#[test]
fn a_guest_that_is_started_while_it_is_undefined_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("os.img");
    std::fs::write(&path, "x").unwrap();
    let fake = Fake { meddled: true, ..Fake::default() };
    fake.set("a", false);
    let name = || "a".to_owned();
    let steps = [
        Step::Domain(DomainStep::Undefine { name: name(), xml: name() }),
        Step::File(FileStep::DeleteDisk { path: path.clone(), file: None }),
    ];
    let error = apply(&steps, &fake, &mut Watch::default(), None).unwrap_err();
    assert!(format!("{error:?}").contains("somebody has started it again"), "{error:?}");
    assert!(path.exists(), "the disk of a running guest is deleted");
    assert_eq!(*fake.log.borrow(), ["undefine", "define"], "its definition is not back");
}

#[test]
fn undo_runs_under_the_lock() {
    /// Counts the requests for the lock.
    #[derive(Default)]
    struct Guarded(Watch, usize);
    impl Observer for Guarded {
        fn doing(&mut self, step: &Step) {
            self.0.doing(step);
        }
        fn guard(&mut self, _: bool) -> Result<Option<HostLock>, LockError> {
            self.0.log.push("guard".into());
            self.1 += 1;
            Ok(None)
        }
        fn undoing(&mut self, step: &Step) {
            self.0.undoing(step);
        }
        fn interrupted(&mut self) -> Option<String> {
            None
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake { fails: vec![1], ..Fake::default() };
    let mut watch = Guarded::default();
    apply(&create(dir.path()), &fake, &mut watch, None).unwrap_err();
    let at = |text: &str| watch.0.log.iter().position(|line| line.starts_with(text)).unwrap();
    // Once for the start that fails.
    assert!(watch.1 == 2 && at("guard") < at("undo"), "{:?}", watch.0.log);
    // Nothing was done, so nothing is undone.
    std::fs::write(dir.path().join("os.img"), "somebody's").unwrap();
    let mut watch = Guarded::default();
    apply(&create(dir.path())[..1], &Fake::default(), &mut watch, None).unwrap_err();
    assert_eq!(watch.1, 0);
}

#[test]
fn nothing_is_deleted_below_a_guest_that_cannot_be_ended() {
    // The hypervisor disconnects when the guest is to be ended, and is still unreachable at the
    // retry.
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake { away: vec![2, 3], ..Fake::default() };
    let mut watch = Watch { signal_after: Some(4), ..Watch::default() };
    let journal = Journal::begin_in(&dir.path().join("journal"), "create", "a", fake.uri());
    let mut transaction = Transaction::new(&fake, &mut watch, Some(journal.unwrap()));
    transaction.run(&create(dir.path())).unwrap();
    let error = transaction.go_on().unwrap_err();
    assert_eq!(error.left().len(), 4, "{error}");
    assert!(error.needs_recovery());
    assert!(fake.domains.borrow()["a"], "it is ended");
    assert_eq!(files(dir.path()), 3, "a disk of a running guest is gone");
    // Only briefly: the connection is reestablished, and everything is undone.
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake { away: vec![2], ..Fake::default() };
    let mut watch = Watch { signal_after: Some(4), ..Watch::default() };
    let mut transaction = Transaction::new(&fake, &mut watch, None);
    transaction.run(&create(dir.path())).unwrap();
    let error = transaction.go_on().unwrap_err();
    assert_eq!((error.left().len(), files(dir.path())), (0, 0), "{error}");
}

#[test]
fn a_guest_started_by_others_is_not_ended() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let mut watch = Watch { signal_after: Some(4), ..Watch::default() };
    let mut transaction = Transaction::new(&fake, &mut watch, None);
    transaction.run(&create(dir.path())).unwrap();
    fake.destroy("a").unwrap();
    fake.start("a").unwrap();
    let error = transaction.go_on().unwrap_err();
    assert!(error.left()[0].to_string().contains("was not started by this change"), "{error}");
    assert!(fake.domains.borrow()["a"] && files(dir.path()) == 2);
}

#[test]
fn a_domain_that_took_the_name_is_left_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let mut watch = Watch { signal_after: Some(4), ..Watch::default() };
    let mut transaction = Transaction::new(&fake, &mut watch, None);
    transaction.run(&create(dir.path())).unwrap();
    fake.uuids.borrow_mut().insert("a".into(), "another".into());
    let error = transaction.go_on().unwrap_err();
    assert!(error.left().is_empty(), "{error}");
    assert!(fake.domains.borrow()["a"], "another's guest is ended");
    // Its disks are unused.
    assert_eq!(files(dir.path()), 0);
}

mod killed;

#[test]
fn a_domain_that_is_defined_again_keeps_its_nvram_and_tpm_state() {
    let other = "22222222-2222-4333-8444-555555555555";
    let step = |tpm| {
        Step::Domain(DomainStep::DropNvram { name: "a".to_owned(), xml: xml("a", UUID), tpm })
    };
    for tpm in [false, true] {
        for (name, uuid) in [("a", UUID), ("a", other), ("b", UUID)] {
            let fake = Fake::default();
            fake.set(name, true);
            fake.uuids.borrow_mut().insert(name.to_owned(), uuid.to_owned());
            apply(&[step(tpm)], &fake, &mut Watch::default(), None).unwrap();
            assert_eq!(fake.log.borrow().len(), 0, "{name} {uuid} {tpm}: {:?}", fake.log);
            assert!(fake.domains.borrow().contains_key(name));
        }
        // One that is gone is defined for a moment.
        let fake = Fake::default();
        apply(&[step(tpm)], &fake, &mut Watch::default(), None).unwrap();
        assert!(fake.domains.borrow().is_empty() && fake.log.borrow().len() == 2);
    }
}

#[test]
fn a_record_that_cannot_be_removed_stays_and_the_rest_is_done() {
    /// An observer of what stays.
    #[derive(Default)]
    struct Left(Vec<String>);

    impl Observer for Left {
        fn doing(&mut self, _: &Step) {}
        fn undoing(&mut self, step: &Step) {
            panic!("{step} is not undone");
        }
        fn left(&mut self, text: &str) {
            self.0.push(text.to_owned());
        }
        fn interrupted(&mut self) -> Option<String> {
            None
        }
    }

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.json");
    std::fs::create_dir(&path).unwrap();
    let file = crate::identity::FileId::at(&path).unwrap().unwrap();
    let mut left = Left::default();
    let steps = [Step::File(FileStep::Forget { path: path.clone(), file })];
    apply(&steps, &Fake::default(), &mut left, None).unwrap();
    let [said] = &left.0[..] else { panic!("{:?}", left.0) };
    assert!(said.contains("Is a directory") && said.ends_with("so this record stays"), "{said}");
    assert!(path.exists());
}
