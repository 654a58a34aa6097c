//! Numbers of pages on a tree with a fake kernel with a limited amount of unfragmented memory.

use super::*;
use std::cell::{Cell, RefCell};
use std::fs;

/// Pages of 2 MiB.
const PAGE: MemSize = MemSize::from_kib(2048);
const POOL: &str = "sys/devices/system/node/node1/hugepages/hugepages-2048kB";

/// A fake kernel on a tree with the nodes 0 and 1.
struct Played {
    dir: tempfile::TempDir,
    /// How many pages node 1 can have.
    most: Cell<u64>,
    /// How many it can have after compaction.
    compacted: u64,
    read_only: bool,
    log: RefCell<Vec<String>>,
}

impl Played {
    /// Node 1 with this many pages, of which some are in use.
    fn new(total: u64, used: u64) -> Played {
        let dir = tempfile::tempdir().unwrap();
        for path in ["sys/devices/system/node/node0/hugepages", POOL] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let log = RefCell::default();
        let played = Played { dir, most: Cell::new(1000), compacted: 1000, read_only: false, log };
        played.put(total, used);
        let meminfo = "Node 1 MemTotal: 9000000 kB\nNode 1 MemFree: 4096 kB\n";
        fs::write(played.dir.path().join("sys/devices/system/node/node1/meminfo"), meminfo)
            .unwrap();
        played
    }

    /// Sets how many pages there are, and how many of them are in use.
    fn put(&self, total: u64, used: u64) {
        let dir = self.dir.path().join(POOL);
        fs::write(dir.join("nr_hugepages"), format!("{total}\n")).unwrap();
        fs::write(dir.join("free_hugepages"), format!("{}\n", total - used)).unwrap();
        fs::write(dir.join("surplus_hugepages"), "0\n").unwrap();
    }

    fn on<T>(&self, work: impl FnOnce(&Pages<'_>) -> T) -> T {
        let root = FsRoot::at(self.dir.path()).unwrap();
        work(&Pages { root: &root, kernel: self, pause: Duration::ZERO })
    }

    fn total(&self) -> u64 {
        self.on(|pages| pages.pool(NodeId(1), PAGE)).unwrap().total
    }
}

impl Kernel for Played {
    fn write(&self, path: &str, text: &str, _: u64) -> Result<(), BindError> {
        self.log.borrow_mut().push(format!("{text} {}", path.rsplit('/').next().unwrap()));
        if self.read_only {
            let reason = "Read-only file system".to_owned();
            return Err(BindError::Refused { path: path.into(), text: text.into(), reason });
        }
        if path.ends_with("compact_memory") {
            self.most.set(self.compacted);
            return Ok(());
        }
        assert_eq!(path, format!("{POOL}/nr_hugepages"));
        let pool = self.on(|pages| pages.pool(NodeId(1), PAGE)).unwrap();
        let wanted: u64 = text.parse().unwrap();
        assert!(wanted >= pool.used(), "{wanted} are fewer than the {} in use", pool.used());
        self.put(wanted.min(self.most.get().max(pool.total)), pool.used());
        Ok(())
    }

    fn load(&self, module: &str) -> Result<(), BindError> {
        panic!("no module is needed: {module}");
    }
}

/// A change on node 1.
fn step(was: u64, to: u64) -> PagesStep {
    PagesStep { node: NodeId(1), page_kib: PAGE, to, was, needed: 0 }
}

#[test]
fn a_number_is_led_by_difference() {
    for (now, from, to, wanted) in [
        (3, 3, 10, 10),
        // Done already.
        (10, 3, 10, 10),
        // Interrupted half way.
        (7, 3, 10, 10),
        (7, 10, 3, 3),
        // Others have added 5 meanwhile, or taken 2.
        (15, 10, 3, 8),
        (8, 10, 3, 3),
        // Others have taken more than ours: nothing is there to take.
        (1, 10, 3, 1),
        (0, 10, 3, 0),
        // Released, and others have added 4 since: ours are added on top.
        (7, 3, 10, 10),
        (3, 10, 3, 3),
    ] {
        assert_eq!(aim(now, from, to), wanted, "{now} led from {from} to {to}");
    }
}

#[test]
fn pages_come_and_go_and_twice_is_as_good_as_once() {
    for (was, to) in [(0, 16), (5, 6), (16, 2), (4, 4), (7, 0)] {
        let played = Played::new(was, 0);
        let step = step(was, to);
        played.on(|pages| pages.expect(&step)).unwrap();
        for _ in 0..2 {
            played.on(|pages| pages.perform(&step)).unwrap();
            assert_eq!(played.total(), to);
        }
        for _ in 0..2 {
            played.on(|pages| pages.undo(&step)).unwrap();
            assert_eq!(played.total(), was);
        }
        assert_eq!(played.log.borrow().len(), if was == to { 0 } else { 2 }, "{:?}", played.log);
    }
}

#[test]
fn pages_added_or_used_by_others_stay() {
    let played = Played::new(4, 0);
    played.on(|pages| pages.perform(&step(4, 20))).unwrap();
    // Somebody adds 8, none of which is in use.
    played.put(28, 0);
    played.on(|pages| pages.undo(&step(4, 20))).unwrap();
    assert_eq!(played.total(), 12);
    // Somebody uses 18 of ours: all stay until they are free, so that none is released twice.
    let played = Played::new(20, 18);
    let error = played.on(|pages| pages.undo(&step(4, 20))).unwrap_err();
    let said = "cannot release 16 pages of 2 MiB of node 1: only 2 are free";
    assert_eq!((error.to_string().as_str(), played.total()), (said, 20));
    // Surplus pages are the kernel's.
    let played = Played::new(10, 10);
    fs::write(played.dir.path().join(POOL).join("surplus_hugepages"), "6\n").unwrap();
    assert_eq!(played.on(|pages| pages.pool(NodeId(1), PAGE)).unwrap().reserved(), 4);
    played.on(|pages| pages.expect(&step(4, 8))).unwrap();
}

#[test]
fn a_shortfall_is_reported_with_numbers_and_can_be_undone() {
    let mut played = Played::new(2, 1);
    played.most = Cell::new(10);
    played.compacted = 12;
    let error = played.on(|pages| pages.perform(&step(2, 32))).unwrap_err();
    let said = "node 1: requested 30 pages of 2 MiB, got 10; 4 MiB are available there, but not in \
                whole pages";
    assert_eq!(error.to_string(), said);
    assert!(error.may_have_done());
    let (raise, compact) = ("32 nr_hugepages", "1 compact_memory");
    assert_eq!(*played.log.borrow(), [raise, compact, raise, compact, raise]);
    played.on(|pages| pages.undo(&step(2, 32))).unwrap();
    assert_eq!(played.total(), 2);
    // After compaction there is enough.
    let mut played = Played::new(0, 0);
    played.most = Cell::new(10);
    played.on(|pages| pages.perform(&step(0, 32))).unwrap();
    assert_eq!(played.total(), 32);
}

#[test]
fn pages_taken_by_others_are_reported() {
    let played = Played::new(12, 6);
    let taken = PagesStep { needed: 16, ..step(12, 20) };
    let error = played.on(|pages| pages.perform(&taken)).unwrap_err();
    let said = "16 pages of 2 MiB are needed on node 1, only 14 are free";
    assert_eq!(error.to_string(), said);
    assert!(error.may_have_done());
    played.on(|pages| pages.undo(&taken)).unwrap();
    assert_eq!(played.total(), 12);
    played.on(|pages| pages.perform(&PagesStep { needed: 14, ..taken })).unwrap();
}

#[test]
fn missing_nodes_and_pools_are_reported() {
    let played = Played::new(2, 0);
    let refusal = |step: PagesStep| played.on(|pages| pages.expect(&step)).unwrap_err().to_string();
    assert_eq!(refusal(PagesStep { node: NodeId(5), ..step(2, 4) }), "node 5 does not exist");
    let gib = MemSize::from_gib(1);
    let absent = PagesStep { page_kib: gib, ..step(2, 4) };
    assert_eq!(refusal(absent), "node 1 has no pool of 1 GiB pages");
    // The device to be removed is gone.
    played.on(|pages| pages.undo(&absent)).unwrap();
    played.on(|pages| pages.perform(&PagesStep { node: NodeId(5), ..step(4, 2) })).unwrap();
    let changed = "node 1 has 2 pages of 2 MiB reserved; it had 3 when this was planned";
    assert_eq!(refusal(step(3, 9)), changed);
    played.on(|pages| pages.expect(&step(3, 0))).unwrap();
    fs::write(played.dir.path().join(POOL).join("nr_hugepages"), "many\n").unwrap();
    assert!(refusal(step(2, 4)).ends_with("nr_hugepages line 1: `many` is not a number in range"));
    assert!(played.log.borrow().is_empty(), "{:?}", played.log);
}

#[test]
fn a_file_write_error_is_reported() {
    let mut played = Played::new(2, 0);
    played.read_only = true;
    let error = played.on(|pages| pages.perform(&step(2, 4))).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot write `4` to {POOL}/nr_hugepages: Read-only file system")
    );
    assert_eq!(played.total(), 2);
}

#[test]
fn steps_are_described() {
    assert_eq!(step(3, 32).to_string(), "reserve 29 pages of 2 MiB on node 1, 32 in all");
    assert_eq!(step(1, 0).to_string(), "release 1 page of 2 MiB of node 1, none remain");
    let json = serde_json::to_value(crate::apply::Step::from(crate::apply::HostStep::SetPages(
        step(3, 32),
    )))
    .unwrap();
    let wanted = serde_json::json!({"step": "set-pages", "node": 1, "page_kib": 2048, "to": 32, "was": 3, "needed": 0});
    assert_eq!(json, wanted);
}
