//! Binding on a tree with a fake kernel that fails at each write in turn.

use super::early::Done;
use super::*;
use crate::apply::owner::{Everyone, Hold};
use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const BDF: &str = "0000:34:00.0";

/// A fake kernel on a tree.
struct Played {
    dir: tempfile::TempDir,
    /// Drivers that take an unreserved function, in this order.
    natural: Vec<&'static str>,
    /// Whether vfio-pci has its ids by its options, and so gets it before these.
    by_id: Cell<bool>,
    refusing: Vec<&'static str>,
    /// Drivers that never release a function.
    stuck: Vec<&'static str>,
    /// The write that fails, and every one after it where `all`.
    fails: Option<usize>,
    /// Whether all writes after that fail, too: as if the run was killed there.
    all: bool,
    writes: Cell<usize>,
    log: RefCell<Vec<String>>,
}

impl Played {
    /// A function with this driver and this override; `nvidia`, `vfio-pci` and `nouveau` are
    /// loaded.
    fn new(driver: Option<&str>, reserved: Option<&str>) -> Played {
        let dir = tempfile::tempdir().unwrap();
        let function = dir.path().join("sys/bus/pci/devices").join(BDF);
        fs::create_dir_all(&function).unwrap();
        fs::write(function.join("driver_override"), reserved.unwrap_or("(null)")).unwrap();
        for (file, text) in
            [("modalias", "pci:v000010DE"), ("vendor", "0x10de\n"), ("device", "0x1db8\n")]
        {
            fs::write(function.join(file), text).unwrap();
        }
        for driver in ["nvidia", "vfio-pci", "nouveau"] {
            fs::create_dir_all(dir.path().join("sys/bus/pci/drivers").join(driver)).unwrap();
        }
        let played = Played {
            dir,
            natural: vec!["nvidia"],
            by_id: Cell::new(false),
            refusing: Vec::new(),
            stuck: Vec::new(),
            fails: None,
            all: false,
            writes: Cell::new(0),
            log: RefCell::default(),
        };
        if let Some(driver) = driver {
            played.link(driver);
        }
        played
    }

    fn function(&self) -> PathBuf {
        self.dir.path().join("sys/bus/pci/devices").join(BDF)
    }

    fn link(&self, driver: &str) {
        symlink(format!("../../../bus/pci/drivers/{driver}"), self.function().join("driver"))
            .unwrap();
    }

    fn seen(&self) -> Binding {
        let root = FsRoot::at(self.dir.path()).unwrap();
        binding(&root, BDF.parse().unwrap()).unwrap().unwrap()
    }

    /// Works with a binder on it.
    fn bind<T>(&self, work: impl FnOnce(&Binder<'_>, Bdf) -> T) -> T {
        self.owned(&Everyone, work)
    }

    /// The same, with this owner of the function.
    fn owned<T>(&self, owner: &dyn Owner, work: impl FnOnce(&Binder<'_>, Bdf) -> T) -> T {
        let root = FsRoot::at(self.dir.path()).unwrap();
        let binder = Binder { root: &root, kernel: self, owner, pause: Duration::ZERO };
        work(&binder, BDF.parse().unwrap())
    }
}

impl Kernel for Played {
    fn write(&self, path: &str, text: &str, seconds: u64) -> Result<(), BindError> {
        let number = self.writes.replace(self.writes.get() + 1);
        self.log.borrow_mut().push(format!("{} {}", text.trim(), path.rsplit('/').next().unwrap()));
        let refused = || BindError::Refused {
            path: path.to_owned(),
            text: text.to_owned(),
            reason: "No such device".to_owned(),
        };
        if self.fails.is_some_and(|at| at == number || (self.all && number > at)) {
            return Err(refused());
        }
        let file = self.dir.path().join(path);
        let parent = file.parent().and_then(Path::file_name).unwrap().to_str().unwrap();
        let link = self.function().join("driver");
        match path.rsplit('/').next().unwrap() {
            "driver_override" => {
                let text = if text == "\n" { "(null)" } else { text };
                fs::write(file, text).unwrap();
            }
            "unbind" => {
                let bound = fs::read_link(&link).map_err(|_| refused())?;
                assert!(bound.ends_with(parent), "unbound from {parent}, bound to {bound:?}");
                if self.stuck.contains(&parent) {
                    return Err(BindError::Hangs { path: path.to_owned(), seconds });
                }
                fs::remove_file(&link).unwrap();
            }
            "drivers_probe" if link.symlink_metadata().is_err() => {
                let reserved = self.seen().driver_override;
                let by_id = self.by_id.get().then_some(&"vfio-pci");
                let natural = || by_id.or(self.natural.first()).map(|name| (*name).to_owned());
                let driver = reserved.or_else(natural);
                let good = |name: &String| {
                    let there = self.dir.path().join("sys/bus/pci/drivers").join(name).is_dir();
                    there && !self.refusing.contains(&name.as_str())
                };
                if let Some(driver) = driver.filter(good) {
                    self.link(&driver);
                }
            }
            "drivers_probe" => {}
            "remove_id" if self.by_id.get() => {
                assert_eq!((parent, text), ("vfio-pci", "10de 1db8"));
                self.by_id.set(false);
            }
            "remove_id" => return Err(refused()),
            "reset" => fs::write(file, text).unwrap(),
            other => panic!("{other}: new ids and other files are never written"),
        }
        Ok(())
    }

    fn load(&self, module: &str) -> Result<(), BindError> {
        self.log.borrow_mut().push(format!("load {module}"));
        if module == "no-such-module" {
            let (program, reason) = ("modprobe".to_owned(), "not found".to_owned());
            return Err(BindError::Program { program, reason });
        }
        let drivers = self.dir.path().join("sys/bus/pci/drivers");
        if !module.contains(':') {
            fs::create_dir_all(drivers.join(module)).unwrap();
        }
        Ok(())
    }
}

fn bound(driver: Option<&str>, reserved: Option<&str>) -> Binding {
    let own = |text: Option<&str>| text.map(str::to_owned);
    Binding { driver: own(driver), driver_override: own(reserved) }
}

fn bindings() -> Vec<Binding> {
    let names = [None, Some("nvidia"), Some("vfio-pci"), Some("nouveau")];
    let all = names.iter().flat_map(|driver| names.iter().map(|other| bound(*driver, *other)));
    all.collect()
}

#[test]
fn every_binding_is_reached_from_every_other_and_twice_is_as_good_as_once() {
    for from in bindings() {
        for to in bindings() {
            let played = Played::new(from.driver.as_deref(), from.driver_override.as_deref());
            for _ in 0..2 {
                played.bind(|binder, bdf| binder.change(bdf, &from, &to)).unwrap();
                assert_eq!(played.seen(), to, "from {from:?}");
            }
            played.bind(|binder, bdf| binder.set(bdf, &from)).unwrap();
            assert_eq!(played.seen(), from, "undone from {to:?}");
            if from == to {
                assert!(played.log.borrow().is_empty(), "{:?}", played.log);
            }
        }
    }
}

#[test]
fn a_gpu_is_reserved_before_it_is_unbound() {
    let played = Played::new(Some("nvidia"), None);
    played.bind(|b, bdf| b.change(bdf, &bound(Some("nvidia"), None), &Binding::vfio())).unwrap();
    let wanted = ["vfio-pci driver_override", "0000:34:00.0 unbind", "0000:34:00.0 drivers_probe"];
    assert_eq!(*played.log.borrow(), wanted);
}

#[test]
fn a_write_that_fails_leaves_it_as_it_was() {
    let was = bound(Some("nvidia"), None);
    for number in 0..10 {
        let mut played = Played::new(Some("nvidia"), None);
        played.fails = Some(number);
        let done = played.bind(|b, bdf| b.change(bdf, &was, &Binding::vfio()));
        match done {
            Ok(()) => return assert!(number >= 3, "only {number} writes: this proves nothing"),
            Err(error) => assert!(error.to_string().contains("No such device"), "{error}"),
        }
        assert_eq!(played.seen(), was, "write {number} failed");
    }
    panic!("it never comes to its end");
}

#[test]
fn a_run_that_is_killed_at_any_write_is_undone_and_finished_from_there() {
    let pairs = [
        (bound(Some("nvidia"), None), Binding::vfio()),
        (Binding::vfio(), bound(Some("nvidia"), None)),
        (bound(None, None), Binding::vfio()),
        (Binding::vfio(), bound(None, None)),
        (bound(Some("nouveau"), Some("nouveau")), Binding::vfio()),
    ];
    for (from, to) in pairs {
        for number in 0..8 {
            for goal in [&from, &to] {
                let mut played =
                    Played::new(from.driver.as_deref(), from.driver_override.as_deref());
                (played.fails, played.all) = (Some(number), true);
                let _ = played.bind(|b, bdf| b.set(bdf, &to));
                played.fails = None;
                played.bind(|b, bdf| b.set(bdf, goal)).unwrap();
                assert_eq!(&played.seen(), goal, "{from:?} to {to:?} killed at {number}");
            }
        }
    }
}

#[test]
fn a_driver_that_does_not_let_go_is_left_alone() {
    let mut played = Played::new(Some("nvidia"), None);
    played.stuck = vec!["nvidia"];
    let was = bound(Some("nvidia"), None);
    let error = played.bind(|b, bdf| b.change(bdf, &was, &Binding::vfio())).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("driver nvidia did not release 0000:34:00.0 within 60 s"), "{text}");
    // Any further write would wait for the driver, too.
    assert_eq!(played.writes.get(), 2);
}

#[test]
fn a_driver_that_takes_nothing_gives_way_to_the_one_before() {
    let mut played = Played::new(Some("nvidia"), None);
    played.refusing = vec!["vfio-pci"];
    let was = bound(Some("nvidia"), None);
    let error = played.bind(|b, bdf| b.change(bdf, &was, &Binding::vfio())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "driver vfio-pci did not bind 0000:34:00.0: it is bound to no driver"
    );
    assert_eq!(played.seen(), was);
    played.refusing.push("nvidia");
    let error = played.bind(|b, bdf| b.change(bdf, &was, &Binding::vfio())).unwrap_err();
    assert!(error.to_string().contains("; restoring it also failed: "), "{error}");
}

#[test]
fn a_module_that_is_not_loaded_is_and_one_that_is_not_there_changes_nothing() {
    let played = Played::new(Some("nvidia"), None);
    fs::remove_dir(played.dir.path().join("sys/bus/pci/drivers/vfio-pci")).unwrap();
    let was = bound(Some("nvidia"), None);
    played.bind(|b, bdf| b.change(bdf, &was, &Binding::vfio())).unwrap();
    assert_eq!(played.log.borrow()[0], "load vfio-pci");
    let played = Played::new(Some("nvidia"), None);
    let other = bound(Some("no-such-module"), None);
    played.bind(|b, bdf| b.change(bdf, &was, &other)).unwrap_err();
    assert_eq!((played.seen(), played.writes.get()), (was, 0));
}

#[test]
fn a_release_accepts_any_driver_but_vfio() {
    for (natural, driver) in
        [(vec!["nvidia"], Some("nvidia")), (vec!["nouveau"], Some("nouveau")), (vec![], None)]
    {
        let mut played = Played::new(Some("vfio-pci"), Some("vfio-pci"));
        played.natural = natural;
        played.bind(|b, bdf| b.release(bdf, &Binding::vfio())).unwrap();
        assert_eq!(played.seen(), bound(driver, None));
        played.bind(|b, bdf| b.set(bdf, &Binding::vfio())).unwrap();
        assert_eq!(played.seen(), Binding::vfio());
    }
    let mut played = Played::new(Some("vfio-pci"), Some("vfio-pci"));
    played.natural = vec!["vfio-pci"];
    let error = played.bind(|b, bdf| b.release(bdf, &Binding::vfio())).unwrap_err();
    assert!(error.to_string().contains("knows its ids by its options"), "{error}");
    assert_eq!(played.seen(), Binding::vfio());
}

#[test]
fn a_release_of_what_was_bound_by_its_id_takes_the_id_from_the_driver() {
    for (natural, driver) in [(vec!["nvidia"], Some("nvidia")), (vec![], None)] {
        let mut played = Played::new(Some("vfio-pci"), None);
        played.natural = natural;
        played.by_id.set(true);
        let was = bound(Some("vfio-pci"), None);
        played.bind(|b, bdf| b.release(bdf, &was)).unwrap();
        assert_eq!((played.seen(), played.by_id.get()), (bound(driver, None), false));
        played.bind(|b, bdf| b.set(bdf, &was)).unwrap();
        assert_eq!(played.seen(), was);
    }
}

#[test]
fn functions_rebound_meanwhile_are_refused() {
    let played = Played::new(Some("nouveau"), None);
    let was = bound(Some("nvidia"), None);
    let error = played.bind(|b, bdf| b.expect(bdf, &was)).unwrap_err();
    let text = "0000:34:00.0 is bound to nouveau; it was nvidia when this was planned";
    assert_eq!(error.to_string(), text);
    played.bind(|b, bdf| b.expect(bdf, &bound(Some("nouveau"), None))).unwrap();
    let absent = played.bind(|b, _| b.expect("35:00.0".parse().unwrap(), &was)).unwrap_err();
    assert_eq!(absent.to_string(), "0000:35:00.0 is not there");
}

/// An owner that appears after this many queries.
struct Comes {
    after: Cell<usize>,
}

impl Owner for Comes {
    fn free(&self, functions: &[Bdf]) -> Result<Hold, BindError> {
        let Some(left) = self.after.get().checked_sub(1) else {
            return Err(BindError::InUse { bdf: functions[0], by: "domain `b`".into() });
        };
        self.after.set(left);
        Ok(Hold::default())
    }
}

#[test]
fn whoever_comes_before_the_write_keeps_the_function_as_it_is() {
    for from in bindings().into_iter().filter(|from| from.driver.is_some()) {
        for to in bindings().into_iter().filter(|to| to.driver != from.driver) {
            for after in 0..2 {
                for undo in [false, true] {
                    let played =
                        Played::new(from.driver.as_deref(), from.driver_override.as_deref());
                    let owner = Comes { after: Cell::new(after) };
                    let error = played.owned(&owner, |b, bdf| {
                        if undo { b.set(bdf, &to) } else { b.change(bdf, &from, &to) }
                    });
                    assert!(matches!(error, Err(BindError::InUse { .. })), "{error:?}");
                    assert_eq!(played.seen(), from, "to {to:?}, {:?}", played.log);
                    let log = played.log.borrow();
                    assert!(log.iter().all(|line| !line.ends_with(" unbind")), "{log:?}");
                    assert!(after == 1 || log.is_empty(), "{log:?}");
                }
            }
        }
    }
    let played = Played::new(Some("vfio-pci"), None);
    fs::write(played.function().join("reset"), "").unwrap();
    let nobody = Comes { after: Cell::new(0) };
    assert!(played.owned(&nobody, |b, bdf| b.reset(bdf)).is_err());
    assert!(
        played.owned(&nobody, |b, bdf| b.release(bdf, &bound(Some("vfio-pci"), None))).is_err()
    );
    assert_eq!(played.seen(), bound(Some("vfio-pci"), None));
    assert!(
        !played.log.borrow().iter().any(|line| line.contains("bind") || line.contains("reset"))
    );
}

#[test]
fn only_free_functions_are_reset() {
    for (driver, has_reset, wanted) in [
        (Some("vfio-pci"), true, Ok(())),
        (None, true, Ok(())),
        (
            Some("nvidia"),
            true,
            Err("0000:34:00.0 is bound to nvidia; it was vfio-pci when this was planned"),
        ),
        (
            Some("vfio-pci"),
            false,
            Err("0000:34:00.0 cannot be reset: the kernel knows no way for it"),
        ),
    ] {
        let played = Played::new(driver, None);
        if has_reset {
            fs::write(played.function().join("reset"), "").unwrap();
        }
        let done = played.bind(|b, bdf| b.reset(bdf)).map_err(|error| error.to_string());
        assert_eq!(done, wanted.map_err(str::to_owned));
        assert_eq!(played.writes.get(), usize::from(done.is_ok()));
    }
    let mut played = Played::new(Some("vfio-pci"), None);
    played.fails = Some(0);
    fs::write(played.function().join("reset"), "").unwrap();
    let error = played.bind(|b, bdf| b.reset(bdf)).unwrap_err();
    assert_eq!(error.to_string(), "0000:34:00.0 cannot be reset: No such device");
}

/// A drive with this serial number and driver.
fn drive(serial: &str, driver: Option<&str>, reserved: Option<&str>) -> Played {
    let mut played = Played::new(driver, reserved);
    played.natural = vec!["nvme"];
    let function = played.function();
    let controller = function.join("nvme/nvme0");
    fs::create_dir_all(&controller).unwrap();
    fs::create_dir_all(played.dir.path().join("sys/bus/pci/drivers/nvme")).unwrap();
    for (file, text) in [("modalias", "pci:x"), ("vendor", "0x144d\n"), ("device", "0xa80a\n")] {
        fs::write(function.join(file), text).unwrap();
    }
    fs::write(function.join("class"), "0x010802\n").unwrap();
    fs::write(controller.join("model"), "SAMSUNG MZQL2\n").unwrap();
    fs::write(controller.join("serial"), format!("{serial}\n")).unwrap();
    played
}

/// Binds the function at boot if it is the one that is recorded so.
fn early(played: &Played, word: &str) -> (Done, Option<String>) {
    let recorded: gpuvm_core::topology::DeviceIdentity = word.parse().unwrap();
    let mut done = played.bind(|binder, bdf| early::bind(binder, &[(bdf, recorded)]));
    (done.pop().unwrap().1.unwrap(), binding_of(played).driver)
}

/// The binding of the function; none if it is gone.
fn binding_of(played: &Played) -> Binding {
    let root = FsRoot::at(played.dir.path()).unwrap();
    binding(&root, BDF.parse().unwrap()).unwrap().unwrap_or(bound(None, None))
}

#[test]
fn a_gpu_that_another_is_in_the_place_of_goes_back_to_the_host_at_boot() {
    let word = "10de:1db8:0000:0000=dsn:0000000000000012";
    let gpu = |driver, number: u64| {
        let played = Played::new(driver, driver);
        let mut config = vec![0; 4096];
        config[0x100..0x104].copy_from_slice(&[0x03, 0x00, 0x01, 0x00]);
        config[0x104..0x10c].copy_from_slice(&number.to_le_bytes());
        fs::write(played.function().join("config"), config).unwrap();
        fs::write(played.function().join("class"), "0x030200\n").unwrap();
        played
    };
    for by_id in [false, true] {
        let played = gpu(Some("vfio-pci"), 0x34);
        played.by_id.set(by_id);
        let (Done::Left(why), driver) = early(&played, word) else { panic!("{:?}", played.log) };
        assert!(why.contains("not bound: 10de:1db8 with PCI serial number"), "{why}");
        assert_eq!(driver.as_deref(), Some("nvidia"), "{:?}", played.log);
    }
    assert_eq!(early(&gpu(Some("vfio-pci"), 0x12), word).0, Done::Already);
    // Its word is all that there is.
    for driver in [None, Some("nvidia")] {
        assert_eq!(
            early(&gpu(driver, 0), word),
            (Done::Bound("vfio-pci"), Some("vfio-pci".to_owned()))
        );
    }
}

#[test]
fn a_virtual_function_for_vgpus_stays_with_its_driver_at_boot() {
    for (file, is_vf, stays) in [
        ("nvidia/current_vgpu_type", true, true),
        ("mdev_supported_types/nvidia-468/name", true, true),
        // A card whose driver offers mediated devices was listed to be whole.
        ("mdev_supported_types/nvidia-222/name", false, false),
        ("numa_node", true, false),
    ] {
        let played = Played::new(Some("nvidia"), None);
        let file = played.function().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "0\n").unwrap();
        fs::write(played.function().join("class"), "0x030200\n").unwrap();
        if is_vf {
            fs::create_dir(played.function().join("physfn")).unwrap();
        }
        let (done, driver) = early(&played, "10de:1db8:0000:0000");
        if stays {
            let Done::Left(why) = done else { panic!("{done:?}") };
            assert!(why.contains("a virtual function for vGPUs"), "{why}");
            assert_eq!((driver.as_deref(), played.writes.get()), (Some("nvidia"), 0));
        } else {
            assert_eq!((done, driver.as_deref()), (Done::Bound("vfio-pci"), Some("vfio-pci")));
        }
    }
}

/// Plain vfio-pci passes no memory of such a GPU through; the same ids on x86 are another board's.
#[test]
fn a_gpu_with_coherent_memory_gets_its_own_driver_at_boot() {
    for (architecture, wanted) in [("aarch64", "nvgrace-gpu-vfio-pci"), ("x86_64", "vfio-pci")] {
        for driver in [None, Some("nvidia"), Some("vfio-pci"), Some("nvgrace-gpu-vfio-pci")] {
            let played = Played::new(driver, driver);
            for (file, text) in [("device", "0x2941\n"), ("class", "0x030200\n")] {
                fs::write(played.function().join(file), text).unwrap();
            }
            let kernel = played.dir.path().join("proc/sys/kernel");
            fs::create_dir_all(&kernel).unwrap();
            fs::write(kernel.join("arch"), format!("{architecture}\n")).unwrap();
            let (done, now) = early(&played, "10de:2941:0000:0000");
            let is_there = driver.is_some_and(|driver| {
                driver == wanted || (wanted == "vfio-pci" && driver != "nvidia")
            });
            assert_eq!(done == Done::Already, is_there, "{architecture} {driver:?}: {done:?}");
            let kept = driver.filter(|_| is_there).unwrap_or(wanted);
            assert_eq!(now.as_deref(), Some(kept), "{architecture} {driver:?}");
        }
    }
}

#[test]
fn the_guid_of_an_infiniband_adapter_is_read_by_its_module_at_boot() {
    for (class, loads) in [("0x020700", true), ("0x020000", false)] {
        let mut played = Played::new(None, None);
        played.natural = vec!["mlx5_core"];
        fs::create_dir_all(played.dir.path().join("sys/bus/pci/drivers/mlx5_core")).unwrap();
        fs::write(played.function().join("class"), format!("{class}\n")).unwrap();
        let (done, driver) = early(&played, "10de:1db8:0000:0000=guid:0c42a10300aabbcc");
        assert!(matches!(done, Done::Left(_)), "{done:?}");
        assert_eq!(driver.as_deref(), Some("mlx5_core"));
        let loaded = played.log.borrow().iter().any(|line| line == "load mlx5_ib");
        assert_eq!(loaded, loads, "{:?}", played.log);
    }
}

#[test]
fn all_functions_together_wait_no_longer_than_one_at_boot() {
    let played = drive("", Some("nvme"), None);
    let recorded: gpuvm_core::topology::DeviceIdentity =
        "144d:a80a:0000:0000=serial:S1A".parse().unwrap();
    let root = FsRoot::at(played.dir.path()).unwrap();
    let mut patience = identity::Patience::default();
    let before = format!("{patience:?}");
    let mut look = || {
        identity::settled_at_boot(&root, BDF.parse().unwrap(), &mut patience).unwrap();
        format!("{patience:?}")
    };
    let after = look();
    assert_ne!(before, after);
    assert_eq!(look(), after, "it waits again");
    let both = [(BDF.parse().unwrap(), recorded.clone()), (BDF.parse().unwrap(), recorded)];
    let done = played.bind(|binder, _| early::bind(binder, &both));
    assert!(done.iter().all(|(_, done)| matches!(done, Ok(Done::Left(_)))), "{done:?}");
}

#[test]
fn only_the_drive_that_reports_the_recorded_serial_number_is_bound_at_boot() {
    let left = |played: &Played, word: &str| match early(played, word) {
        (Done::Left(why), driver) => (why, driver),
        other => panic!("{other:?}"),
    };
    let nvme = Some("nvme".to_owned());
    // The listed one, at first without a driver, as in a boot without an initramfs.
    for driver in [Some("nvme"), None] {
        let played = drive("S1A", driver, None);
        let done = early(&played, "144d:a80a:0000:0000=serial:S1A");
        assert_eq!(
            done,
            (Done::Bound("vfio-pci"), Some("vfio-pci".to_owned())),
            "{:?}",
            played.log
        );
    }
    // One that the initramfs has kept from every driver.
    let played = drive("S1A", None, Some("gpuvm-boot"));
    let done = early(&played, "144d:a80a:0000:0000=serial:S1A");
    assert_eq!(done, (Done::Bound("vfio-pci"), Some("vfio-pci".to_owned())), "{:?}", played.log);
    // Another one of the same model, also where an older initramfs has reserved it.
    for (driver, reserved) in [
        (Some("nvme"), None),
        (None, Some("gpuvm-boot")),
        (None, None),
        (None, Some("vfio-pci")),
        (Some("vfio-pci"), Some("vfio-pci")),
    ] {
        let played = drive("S2B", driver, reserved);
        let (why, driver) = left(&played, "144d:a80a:0000:0000=model:X+20Y=serial:S1A");
        let said = "0000:34:00.0 is now SAMSUNG MZQL2 with serial number S2B; not bound: X Y with \
                    serial number S1A was listed, which is not found";
        assert_eq!((why.as_str(), driver), (said, nvme.clone()), "{:?}", played.log);
        assert_eq!(played.seen().driver_override, None);
    }
    // Listed by an older version, or without a serial number now.
    let (why, driver) = left(&drive("S1A", Some("nvme"), None), "144d:a80a");
    assert!(why.contains("an older gpuvm listed it"), "{why}");
    assert_eq!(driver, nvme);
    for serial in ["", "00000000"] {
        let played = drive(serial, Some("nvme"), None);
        let (why, driver) = left(&played, "144d:a80a:0000:0000=serial:S1A");
        assert!(why.contains("does not report what identifies"), "{why}");
        assert_eq!(driver, nvme);
    }
    let gone = drive("S1A", None, None);
    fs::remove_dir_all(gone.function()).unwrap();
    let (done, _) = early(&gone, "144d:a80a=serial:S1A");
    assert!(matches!(done, Done::Left(why) if why.contains("is not there")));
}

#[test]
fn a_listed_drive_that_is_mounted_is_left_at_boot() {
    let played = drive("S1A", Some("nvme"), None);
    let root = played.dir.path();
    let block = played.function().join("nvme/nvme0/nvme0n1");
    fs::create_dir_all(&block).unwrap();
    fs::create_dir_all(root.join("sys/class/block")).unwrap();
    fs::write(block.join("dev"), "259:0\n").unwrap();
    let target = "../../bus/pci/devices/0000:34:00.0/nvme/nvme0/nvme0n1";
    symlink(target, root.join("sys/class/block/nvme0n1")).unwrap();
    fs::create_dir_all(root.join("proc/self")).unwrap();
    let mounts = "36 35 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n";
    fs::write(root.join("proc/self/mountinfo"), mounts).unwrap();
    let (done, _) = early(&played, "144d:a80a:0000:0000=serial:S1A");
    let Done::Left(why) = done else { panic!("it is bound: {:?}", played.log) };
    assert!(why.contains("/data"), "{why}");
    assert_eq!(played.seen().driver.as_deref(), Some("nvme"));
}
