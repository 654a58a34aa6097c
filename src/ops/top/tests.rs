//! Samples of guests in a tree of files.

use super::*;
use crate::reporter::Answer;
use crate::stage::fake::{Fake, xml};
use crate::stage::{Caller, Stage, UUID};
use crate::world::Settings;
use std::path::Path;

/// A tree of the kernel's files, with a guest `a` in process 40.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        tree.write("proc/40/cmdline", &format!("qemu\0-uuid\0{UUID}\0"));
        tree.write("run/libvirt/qemu/a.pid", "40");
        tree.write("sys/devices/system/cpu/online", "0-3\n");
        tree.process(7);
        tree.thread(40, "qemu", 0, 0);
        tree.thread(41, "CPU 0/KVM", 0, 0);
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn process(&self, started: u64) {
        self.write("proc/40/stat", &stat("qemu", started, 0));
    }

    /// A thread that has run and waited for so many seconds.
    fn thread(&self, tid: u32, name: &str, run: u64, wait: u64) {
        let path = format!("proc/40/task/{tid}");
        self.write(&format!("{path}/comm"), name);
        let ns = |seconds: u64| seconds * 1_000_000_000;
        self.write(&format!("{path}/schedstat"), &format!("{} {} 1\n", ns(run), ns(wait)));
        self.write(&format!("{path}/stat"), &stat(name, 7, run));
    }

    fn root(&self) -> FsRoot {
        FsRoot::at(Path::new(self.0.path())).unwrap()
    }
}

/// A line of `/proc/PID/stat` on pcpu 2.
fn stat(name: &str, started: u64, run: u64) -> String {
    let mut fields: Vec<String> = (1..=52).map(|_| "0".to_owned()).collect();
    fields[1] = format!("({name})");
    (fields[13], fields[19], fields[21], fields[38]) =
        ((run * 100).to_string(), "2".into(), started.to_string(), "2".into());
    fields.join(" ")
}

/// A hypervisor with the guest `a`, whose vCPU is pinned.
fn fake() -> Rc<Fake> {
    let fake = Rc::new(Fake::default());
    let pin = "<cputune><vcpupin vcpu='0' cpuset='2'/></cputune></domain>";
    fake.put_xml(&xml("a", UUID).replace("</domain>", pin), true);
    fake
}

fn open(tree: &Tree, fake: &Rc<Fake>, names: &[&str]) -> Result<Top> {
    let caller = Caller::who_says(Answer::Nobody);
    let world = World::on(Rc::clone(fake) as _, Settings::default(), caller);
    let names = names.iter().map(ToString::to_string).collect();
    let request = TopRequest { names, once: true };
    Top::on(&world, Rc::clone(fake) as _, tree.root(), None, request)
}

#[test]
fn a_vcpu_that_waits_is_found_with_its_neighbour() {
    let (tree, fake) = (Tree::new(), fake());
    let mut top = open(&tree, &fake, &[]).unwrap();
    top.sample();
    assert!(top.report().guests.is_empty(), "one sample is no interval");
    tree.thread(41, "CPU 0/KVM", 1, 100);
    tree.write("proc/99/task/99/stat", &stat("yes", 9, 50));
    std::thread::sleep(Duration::from_millis(20));
    top.sample();
    let report = top.report();
    let [guest] = &report.guests[..] else { panic!("{report:?}") };
    assert_eq!((guest.name.as_str(), guest.pid, guest.vcpus), ("a", 40, 1));
    let finding = &guest.findings[0];
    assert_eq!(finding.rule, "vcpu-waits");
    assert!(finding.says.message.contains("on pcpu 2 also `yes` 100 %"), "{finding:?}");
    assert_eq!((report.host.pcpus, report.host.guest_pcpus), (4, 1));
    assert!(guest.unread.contains_key("io") || guest.io.is_none());
}

#[test]
fn a_guest_that_ends_is_dropped_and_one_that_starts_again_is_another() {
    let (tree, fake) = (Tree::new(), fake());
    let mut top = open(&tree, &fake, &["a"]).unwrap();
    top.sample();
    top.sample();
    // The pid is reused by its next start.
    tree.process(8);
    top.sample();
    assert!(top.report().guests.is_empty());
    top.dues.list = Due(None);
    top.dues.list.take(LIST_EVERY);
    assert!(top.list().unwrap().no_process.is_empty());
    top.sample();
    std::thread::sleep(Duration::from_millis(2));
    top.sample();
    assert_eq!(top.report().guests.len(), 1);
    fake.domains.borrow_mut().get_mut("a").unwrap().1 = false;
    assert!(top.list().unwrap().no_process.is_empty());
    assert!(top.guests.is_empty());
}

#[test]
fn a_guest_whose_definition_is_unreadable_ends_no_other() {
    let (tree, fake) = (Tree::new(), fake());
    let uuid = "99999999-2222-4333-8444-777777777777";
    fake.put("sealed", uuid, true);
    tree.write("proc/50/cmdline", &format!("qemu\0-uuid\0{uuid}\0"));
    tree.write("run/libvirt/qemu/sealed.pid", "50");
    let denied = crate::hypervisor::HypervisorErrorKind::Denied;
    fake.unreadable.borrow_mut().insert("sealed".to_owned(), denied);
    let names = |top: &Top| top.guests.values().map(|guest| guest.plan().name.clone()).collect();
    let read: Vec<String> = names(&open(&tree, &fake, &[]).unwrap());
    assert_eq!(read, ["a"]);
    let error = open(&tree, &fake, &["sealed"]).err().unwrap().whole();
    assert!(error.contains("read domain `sealed`"), "{error}");
}

#[test]
fn guests_that_are_absent_off_or_unseen_are_refused_by_name() {
    let (tree, fake) = (Tree::new(), fake());
    fake.put("off", "99999999-2222-4333-8444-555555555555", false);
    fake.put("far", "99999999-2222-4333-8444-666666666666", true);
    for (name, says) in [
        ("nobody", "there is no domain `nobody`"),
        ("off", "domain `off` is off"),
        ("far", "no process of domain `far` is seen"),
    ] {
        let error = open(&tree, &fake, &[name]).err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(open(&tree, &fake, &[]).unwrap().guests.len(), 1);
    // Guests of a test driver run on no machine.
    let stage = Stage::who_says(Answer::Nobody);
    let error = Top::open(&stage.world, TopRequest::default()).err().unwrap().to_string();
    assert!(error.contains("test driver"), "{error}");
}
