//! Disks of a domain on a hypervisor in memory: added, removed, undone, killed at any step.

use super::add::{AddDisk, add};
use super::list::{DiskSort, DiskWhen, list};
use super::remove::{RemoveDisk, remove};
use super::resize::{self, ResizeDisk, ResizedDisk};
use crate::apply::Preallocate;
use crate::domain::guest::VolumeRef;
use crate::error::Result;
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::{Domains as _, XmlOf};
use crate::reporter::Answer;
use crate::session::{Confirm, Session};
use crate::stage::{Stage, UUID, kill, kill_step, kills, manner};
use crate::storage::NewDisk;
use crate::undo::{self, Undo};
use gpuvm_core::topology::file::from_json;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;

/// Its UUID, of another domain than domain `a`.
const OTHER: &str = "11111111-2222-4333-8444-666666666666";
/// Bytes of a new disk.
const BYTES: u64 = 1 << 16;

/// A guest of ours with a disk, and a root port that is free.
fn guest(name: &str, uuid: &str, disk: &str) -> String {
    format!(
        "<domain type='kvm'>\n  <name>{name}</name>\n  <uuid>{uuid}</uuid>\n  <metadata>\n    \
         <gpuvm:guest xmlns:gpuvm='urn:gpuvm:domain:1' uuid='{uuid}'/>\n  </metadata>\n  <memory \
         unit='KiB'>4194304</memory>\n  <vcpu>4</vcpu>\n  <os>\n    <type arch='x86_64' \
         machine='pc-q35-8.2'>hvm</type>\n  </os>\n  <devices>\n    <disk type='file' \
         device='disk'>\n      <driver name='qemu' type='raw'/>\n      <source \
         file='{disk}'/>\n      <target dev='vda' bus='virtio'/>\n      <address type='pci' \
         domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>\n    </disk>\n    <controller \
         type='pci' index='0' model='pcie-root'/>\n    <controller type='pci' index='1' \
         model='pcie-root-port'>\n      <address type='pci' domain='0x0000' bus='0x00' slot='0x02' \
         function='0x0'/>\n    </controller>\n    <controller type='pci' index='2' \
         model='pcie-root-port'>\n      <address type='pci' domain='0x0000' bus='0x00' slot='0x03' \
         function='0x0'/>\n    </controller>\n  </devices>\n</domain>\n"
    )
}

/// Domain `a` with disk `vda`, and a pool `p`.
fn stage(runs: bool) -> Stage {
    let mut stage = Stage::who_says(Answer::Yes);
    let host = from_json(include_str!("../../../topologies/dgx-2.json")).unwrap();
    stage.world = stage.world.with_topology(host);
    std::fs::write(stage.dir.path().join("a.raw"), vec![1; 4096]).unwrap();
    let disk = stage.dir.path().join("a.raw").display().to_string();
    stage.fake.put_xml(&guest("a", UUID, &disk), runs);
    stage.fake.put_pool("p");
    stage
}

/// A disk of these words for domain `a`.
fn wanted(disk: NewDisk, live: bool) -> AddDisk {
    AddDisk { name: "a".into(), disk, live, accept_backing: Vec::new() }
}

/// A new disk in the pool.
fn blank() -> NewDisk {
    NewDisk::Blank { bytes: BYTES, dir: None, pool: "p".into(), preallocate: Preallocate::None }
}

fn run_add(stage: &Stage, wanted: &AddDisk) -> Result<super::add::ChangedDisk> {
    let mut session = Session::begin(&stage.world, manner(Confirm::Ask)).unwrap();
    Ok(session.run(|world| add(world, wanted))?.change.about)
}

/// Removes disk `vdb` of domain `a`.
fn run_remove(stage: &Stage, live: bool, delete_data: bool) -> Result<super::add::ChangedDisk> {
    let wanted = RemoveDisk { name: "a".into(), target: "vdb".into(), live, delete_data };
    let mut session = Session::begin(&stage.world, manner(Confirm::Ask)).unwrap();
    Ok(session.run(|world| remove(world, &wanted))?.change.about)
}

/// Makes a disk of domain `a` larger.
fn run_resize(stage: &Stage, target: &str, bytes: u64) -> Result<ResizedDisk> {
    let wanted = ResizeDisk { name: "a".into(), target: target.into(), bytes };
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    resize::run(&mut session, &stage.world, &wanted).map(Option::unwrap)
}

/// Undoes the last change of domain `a`.
fn run_undo(stage: &Stage) -> Result<()> {
    let wanted = Undo { name: "a".into(), force: false, edited: false };
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    undo::run(&mut session, &stage.world, &wanted).map(drop)
}

/// Whether the definition, and the running domain, has disk `vdb`; the volumes of the pool.
fn state(stage: &Stage) -> (bool, bool, Vec<String>) {
    let defined = stage.fake.definition("a").contains("'vdb'");
    let live = stage.fake.xml("a", XmlOf::Live).unwrap().contains("'vdb'");
    (defined, live, stage.fake.names("p"))
}

/// The changes that are kept of domain `a`.
fn kept(stage: &Stage) -> usize {
    stage.world.history(UUID).unwrap().entries.len()
}

fn code<T>(done: Result<T>) -> &'static str {
    let Err(error) = done else { panic!("it was done") };
    error.refusal().map_or("none", |refusal| refusal.code)
}

#[test]
fn a_driver_without_storage_is_refused_before_anything_begins() {
    let stage = stage(false);
    stage.fake.has_no_storage.set(true);
    let mut disk = blank();
    if let NewDisk::Blank { pool, .. } = &mut disk {
        *pool = "gpuvm-guests".into();
    }
    assert_eq!(code(run_add(&stage, &wanted(disk, false))), "storage-no-storage");
    assert_eq!((kept(&stage), state(&stage).0), (0, false));
}

#[test]
fn a_disk_is_listed_with_its_kind_and_other_users() {
    let stage = stage(true);
    let disk = stage.dir.path().join("a.raw").display().to_string();
    stage.fake.put_xml(&guest("b", OTHER, &disk), false);
    run_add(&stage, &wanted(blank(), false)).unwrap();
    let disks = list(&stage.world, "a").unwrap();
    let [first, second] = &disks[..] else { panic!("{disks:?}") };
    assert_eq!((&*first.target, first.kind, first.bytes), ("vda", DiskSort::File, Some(4096)));
    assert_eq!((first.made, first.when, &*first.bus), (false, DiskWhen::Always, "virtio"));
    assert!(first.used_by[0].contains("domain `b`"), "{first:?}");
    assert_eq!((second.kind, second.when), (DiskSort::Volume, DiskWhen::NextStart));
    assert_eq!((second.made, second.used_by.len()), (true, 0));
    assert_eq!(second.volume.as_ref().unwrap().name, "a-vdb.raw");
    assert_eq!(second.bytes, Some(BYTES));
    assert_eq!(
        list(&stage.world, "nosuch").unwrap_err().to_string(),
        "there is no domain `nosuch`"
    );
}

#[test]
fn a_disk_is_added_for_the_next_start_kept_and_undone() {
    for runs in [false, true] {
        let stage = stage(runs);
        let before = stage.fake.definition("a");
        let added = run_add(&stage, &wanted(blank(), false)).unwrap();
        assert_eq!((added.live, added.waits_for_start, &*added.target), (false, runs, "vdb"));
        let volume = || vec!["a-vdb.raw".to_owned()];
        assert_eq!(state(&stage), (true, !runs, volume()));
        assert_eq!((kept(&stage), stage.journals()), (1, 0));
        assert!(stage.fake.definition("a").contains("volume='a-vdb.raw'"));
        // `vda` has no queues, so its domain is not as tuned, and stays so but for the new disk.
        assert_eq!(stage.fake.definition("a").matches("queues='4'").count(), 1);
        let made = VolumeRef { pool: "p".into(), name: "a-vdb.raw".into() };
        let uses = Uses::read(&*stage.fake).unwrap();
        std::fs::write(&uses.volume(&made).unwrap().path, "written").unwrap();
        run_undo(&stage).unwrap();
        assert_eq!(stage.fake.definition("a"), before);
        // The guest's data stays, and is reported.
        assert_eq!(stage.fake.names("p"), volume());
        assert_eq!(stage.caller.heard("`virsh vol-delete --pool p a-vdb.raw` deletes it"), 1);
    }
}

#[test]
fn an_added_disk_is_deleted_by_undo_unless_something_was_written_on_it() {
    for (runs, is_written) in [(false, false), (true, false), (false, true)] {
        let stage = stage(runs);
        let (dir, pool) = (Some(stage.dir.path().to_owned()), "p".to_owned());
        let disk = NewDisk::Blank { bytes: BYTES, dir, pool, preallocate: Preallocate::None };
        run_add(&stage, &wanted(disk, false)).unwrap();
        let file = stage.dir.path().join("a-vdb.raw");
        assert_eq!(file.metadata().unwrap().len(), BYTES);
        if is_written {
            let written = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&written, b"x", BYTES - 1).unwrap();
        }
        let wanted = Undo { name: "a".into(), force: false, edited: false };
        let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
        let undone = undo::run(&mut session, &stage.world, &wanted).unwrap().unwrap();
        // The running guest never had it, so nothing waits for its next start.
        assert!(!undone.waits_for_start, "{runs} {is_written}");
        assert_eq!(file.exists(), is_written);
        let stays = stage.caller.heard("is kept with the guest's data");
        assert_eq!(stays, usize::from(is_written));
        let history = stage.world.history(UUID).unwrap();
        assert_eq!((history.entries.len(), history.undone.len()), (0, 1));
        assert!(history.undone[0].undone_at_s.is_some() && history.undone[0].steps.is_empty());
    }
}

#[test]
fn a_running_guest_gets_it_at_once_and_loses_it_again() {
    let stage = stage(true);
    let added = run_add(&stage, &wanted(blank(), true)).unwrap();
    assert!(added.live && !added.waits_for_start);
    assert_eq!((state(&stage).0, state(&stage).1), (true, true));
    // Both below the port that was free.
    let live = stage.fake.xml("a", XmlOf::Live).unwrap();
    assert_eq!(live.matches("bus='0x02'").count(), 1);
    assert_eq!(stage.fake.definition("a").matches("bus='0x02'").count(), 1);
    // The only port is in use.
    assert_eq!(code(run_add(&stage, &wanted(blank(), true))), "guest-disk-no-port");
    run_undo(&stage).unwrap();
    assert_eq!((state(&stage).0, state(&stage).1), (false, false));
    assert_eq!((kept(&stage), stage.journals()), (0, 0));
}

#[test]
fn a_disk_is_removed_and_given_back_and_its_data_stays() {
    for live in [false, true] {
        let stage = stage(true);
        run_add(&stage, &wanted(blank(), true)).unwrap();
        let with = stage.fake.definition("a");
        let removed = run_remove(&stage, live, false).unwrap();
        assert_eq!((removed.live, removed.waits_for_start, removed.deleted), (live, !live, false));
        assert_eq!(state(&stage), (false, !live, vec!["a-vdb.raw".to_owned()]));
        assert!(!stage.fake.definition("a").contains("volume="), "it is remembered");
        run_undo(&stage).unwrap();
        assert_eq!(stage.fake.definition("a"), with);
        assert_eq!((state(&stage).0, state(&stage).1), (true, true));
    }
}

#[test]
fn a_disk_that_is_gone_is_not_given_back() {
    let stage = stage(false);
    let dir = Some(stage.dir.path().to_owned());
    let disk =
        NewDisk::Blank { bytes: BYTES, dir, pool: "p".into(), preallocate: Preallocate::None };
    run_add(&stage, &wanted(disk, false)).unwrap();
    let path = stage.dir.path().join("a-vdb.raw");
    run_remove(&stage, false, false).unwrap();
    assert_eq!(stage.caller.heard(&format!("`rm {}` removes it", path.display())), 1);
    std::fs::remove_file(&path).unwrap();
    let error = run_undo(&stage).unwrap_err();
    assert!(error.to_string().contains("the file does not exist any more"), "{error}");
    assert!(!state(&stage).0);
    let wanted = Undo { name: "a".into(), force: true, edited: false };
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    undo::run(&mut session, &stage.world, &wanted).unwrap();
    assert!(state(&stage).0);
}

#[test]
fn no_command_takes_a_disk_from_under_the_guest_that_writes_it() {
    for live in [false, true] {
        let stage = stage(true);
        run_add(&stage, &wanted(blank(), true)).unwrap();
        run_remove(&stage, live, false).unwrap();
        let lines = ["`virsh vol-delete --pool p a-vdb.raw` removes it", "has it until it is off"];
        let heard = lines.map(|text| stage.caller.heard(text));
        assert_eq!(heard, if live { [1, 0] } else { [0, 1] });
    }
}

#[test]
fn a_disk_below_an_image_of_another_was_made_for_its_guest_all_the_same() {
    let stage = stage(false);
    run_add(&stage, &wanted(blank(), false)).unwrap();
    let path = stage.fake.volume("p", "a-vdb.raw").display().to_string();
    let over = format!(
        "<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source \
         file='/over.qcow2'/><backingStore type='file'><format type='raw'/><source \
         file='{path}'/></backingStore><target dev='vdb' bus='virtio'/></disk></devices>"
    );
    let other = guest("b", OTHER, "/other.raw").replace("</devices>", &over);
    stage.fake.put_xml(&other, false);
    let disks = list(&stage.world, "a").unwrap();
    assert!(disks[1].made && disks[1].used_by[0].contains("domain `b`"), "{disks:?}");
}

#[test]
fn other_devices_of_a_guest_are_no_disks_of_it() {
    let stage = stage(false);
    let path = stage.dir.path().join("a_VARS.fd");
    std::fs::write(&path, vec![1; 4096]).unwrap();
    let nvram = format!("<nvram>{}</nvram></os>", path.display());
    let text = stage.fake.definition("a").replace("</os>", &nvram);
    stage.fake.put_xml(&text, false);
    let error = run_add(&stage, &wanted(NewDisk::Path(path), false)).unwrap_err();
    assert!(error.to_string().contains("has it as its NVRAM"), "{error}");
    assert_eq!(stage.fake.definition("a"), text);
}

#[test]
fn data_is_deleted_only_if_it_is_the_guests_own_and_unused() {
    let stage = stage(true);
    run_add(&stage, &wanted(blank(), true)).unwrap();
    assert_eq!(code(run_remove(&stage, false, true)), "guest-disk-runs");
    let path = stage.fake.volume("p", "a-vdb.raw").display().to_string();
    stage.fake.put_xml(&guest("b", OTHER, &path), false);
    assert_eq!(code(run_remove(&stage, true, true)), "guest-disk-not-ours");
    stage.fake.domains.borrow_mut().remove("b");
    assert!(run_remove(&stage, true, true).unwrap().deleted);
    assert_eq!(state(&stage), (false, false, Vec::new()));
    assert_eq!(code(run_undo(&stage)), "undo-data-deleted");
    // A file that existed before must not be deleted.
    let path = stage.dir.path().join("b.raw");
    std::fs::write(&path, vec![1; 4096]).unwrap();
    run_add(&stage, &wanted(NewDisk::Path(path.clone()), false)).unwrap();
    assert_eq!(code(run_remove(&stage, false, true)), "guest-disk-not-ours");
    run_remove(&stage, false, false).unwrap();
    assert!(path.exists());
}

#[test]
fn a_file_in_a_disks_place_is_not_deleted() {
    let stage = stage(false);
    let bytes = 1 << 16;
    let dir = Some(stage.dir.path().to_owned());
    let disk = NewDisk::Blank { bytes, dir, pool: "p".into(), preallocate: Preallocate::None };
    run_add(&stage, &wanted(disk, false)).unwrap();
    let path = stage.dir.path().join("a-vdb.raw");
    let made = || list(&stage.world, "a").unwrap().iter().any(|disk| disk.made);
    assert!(made() && path.exists());
    let (other, aside) = (stage.dir.path().join("other.raw"), stage.dir.path().join("aside"));
    std::fs::rename(&path, &aside).unwrap();
    std::fs::write(&other, "theirs").unwrap();
    std::fs::rename(&other, &path).unwrap();
    assert_eq!(code(run_remove(&stage, false, true)), "guest-disk-not-ours");
    assert!(!made() && std::fs::read_to_string(&path).unwrap() == "theirs");
    // The one that was made is known again when it is back.
    std::fs::rename(&aside, &path).unwrap();
    assert!(made());
    assert!(run_remove(&stage, false, true).unwrap().deleted);
    assert!(!path.exists());
    let records = std::fs::read_dir(stage.world.state().unwrap().join("disks"));
    assert_eq!(records.map_or(0, Iterator::count), 0, "no record of it is left");
}

#[test]
fn taken_or_existing_targets_are_refused() {
    let stage = stage(false);
    let path = |name: &str| stage.dir.path().join(name);
    let of = |path: PathBuf| run_add(&stage, &wanted(NewDisk::Path(path), false));
    assert_eq!(code(of(path("a.raw"))), "guest-disk-present");
    std::os::unix::fs::symlink(path("a.raw"), path("link.raw")).unwrap();
    assert_eq!(code(of(path("link.raw"))), "guest-disk-present");
    std::fs::write(path("b.raw"), vec![1; 4096]).unwrap();
    stage.fake.put_xml(&guest("b", OTHER, &path("b.raw").display().to_string()), false);
    assert_eq!(code(of(path("b.raw"))), "in-use");
    assert_eq!(code(of("/etc/passwd".into())), "storage-of-host");
    assert_eq!(code(of(path("nosuch"))), "storage-unreadable");
    let missing = NewDisk::Blank {
        bytes: BYTES,
        dir: Some(path("no dir")),
        pool: "p".into(),
        preallocate: Preallocate::None,
    };
    let error = run_add(&stage, &wanted(missing, false)).unwrap_err();
    let refusal = error.refusal().unwrap();
    assert_eq!(refusal.code, "storage-no-directory");
    assert!(refusal.hint.starts_with("`mkdir -p '/"), "{}", refusal.hint);
    assert_eq!(code(run_add(&stage, &wanted(blank(), true))), "guest-disk-not-running");
    assert_eq!(code(run_remove(&stage, false, false)), "guest-disk-not-found");
    stage.fake.transient.borrow_mut().insert("a".into());
    assert_eq!(code(run_add(&stage, &wanted(blank(), false))), "guest-disk-no-definition");
    assert_eq!((stage.fake.calls.get(), kept(&stage)), (0, 0));
}

#[test]
fn a_disk_grows_by_its_guest_its_pool_or_as_a_file_and_never_shrinks() {
    let length = |path: PathBuf| path.metadata().unwrap().len();
    for runs in [true, false] {
        let stage = stage(runs);
        run_add(&stage, &wanted(blank(), runs)).unwrap();
        let text = stage.fake.definition("a");
        let grown = run_resize(&stage, "vdb", 2 * BYTES).unwrap();
        assert_eq!((grown.before_bytes, grown.live), (BYTES, runs));
        assert_eq!(length(stage.fake.volume("p", "a-vdb.raw")), 2 * BYTES);
        let inside = grown.guest.unwrap();
        assert!(inside.done.is_empty() && inside.left.contains(&"lsblk".to_owned()));
        // Once more is nothing to do, and less is refused.
        let again = run_resize(&stage, "vdb", 2 * BYTES).unwrap();
        assert_eq!((again.guest, kept(&stage)), (None, 2));
        assert_eq!(code(run_resize(&stage, "vdb", BYTES)), "guest-disk-smaller");
        // Of a file that is in no pool only its domain, which is off, or its guest knows.
        assert_eq!(run_resize(&stage, "vda", 8192).unwrap().live, runs);
        assert_eq!(length(stage.dir.path().join("a.raw")), 8192);
        assert_eq!(kept(&stage), 3);
        for _ in 0..2 {
            run_undo(&stage).unwrap();
        }
        assert_eq!(stage.caller.heard("grown to 8 KiB, is not made smaller"), 1);
        assert_eq!((stage.fake.definition("a"), kept(&stage)), (text, 1));
        let path = stage.dir.path().join("a.raw").display().to_string();
        stage.fake.put_xml(&guest("b", OTHER, &path), false);
        assert_eq!(code(run_resize(&stage, "vda", 16384)), "in-use");
    }
}

#[test]
fn a_foreign_volume_in_the_disks_place_does_not_grow() {
    let mut refused = 0;
    for number in 0..5 {
        let stage = stage(false);
        run_add(&stage, &wanted(blank(), false)).unwrap();
        let path = stage.fake.volume("p", "a-vdb.raw");
        let (count, there) = (Mutex::new(0), path.clone());
        stage.caller.at(move |_| {
            let mut count = count.lock().unwrap();
            *count += 1;
            if *count == number + 1 {
                std::fs::rename(&there, there.with_extension("was")).unwrap();
                std::fs::File::create(&there).unwrap().set_len(BYTES).unwrap();
            }
        });
        let done = run_resize(&stage, "vdb", 2 * BYTES);
        stage.caller.at(|_| {});
        refused += usize::from(done.is_err());
        if path.with_extension("was").exists() {
            assert_eq!(path.metadata().unwrap().len(), BYTES, "at {number}");
        }
    }
    assert!(refused > 0);
}

#[test]
fn a_disk_that_the_running_guest_gets_at_its_next_start_does_not_grow() {
    let stage = stage(true);
    run_add(&stage, &wanted(blank(), false)).unwrap();
    let error = run_resize(&stage, "vdb", 2 * BYTES).map(drop).unwrap_err();
    let refusal = error.refusal().unwrap();
    assert_eq!(refusal.code, "guest-disk-fixed");
    assert!(refusal.hint.contains("`gpuvm restart a`"), "{}", refusal.hint);
    assert_eq!((kept(&stage), stage.journals()), (1, 0));
}

#[test]
fn a_growth_killed_at_any_step_is_finished_or_not_begun() {
    for (runs, number) in (0..4).flat_map(|number| [(true, number), (false, number)]) {
        let stage = stage(runs);
        run_add(&stage, &wanted(blank(), runs)).unwrap();
        let length = || stage.fake.volume("p", "a-vdb.raw").metadata().unwrap().len();
        let count = Mutex::new(0);
        stage.caller.at(move |_| {
            let mut count = count.lock().unwrap();
            *count += 1;
            if *count == number + 1 {
                drop(count);
                kill();
            }
        });
        let _ = catch_unwind(AssertUnwindSafe(|| run_resize(&stage, "vdb", 2 * BYTES)));
        stage.caller.at(|_| {});
        stage.recover();
        assert_eq!(stage.journals(), 0);
        assert!([BYTES, 2 * BYTES].contains(&length()), "{} at {number}", length());
        run_resize(&stage, "vdb", 2 * BYTES).unwrap();
        assert_eq!(length(), 2 * BYTES);
    }
    // Killed at the call itself: the begun step is done.
    let stage = stage(true);
    run_add(&stage, &wanted(blank(), true)).unwrap();
    let from = stage.fake.calls.get();
    *stage.fake.at.borrow_mut() = Some(Box::new(move |call| {
        if call == from {
            kill()
        }
    }));
    let _ = catch_unwind(AssertUnwindSafe(|| run_resize(&stage, "vdb", 2 * BYTES)));
    *stage.fake.at.borrow_mut() = None;
    stage.recover();
    let bytes = stage.fake.volume("p", "a-vdb.raw").metadata().unwrap().len();
    assert_eq!((bytes, stage.journals()), (2 * BYTES, 0));
}

/// Kills a change at each report and at each call, and recovers; only the earlier or the planned
/// state may be found then.
fn killed(prepare: impl Fn(&Stage), run: impl Fn(&Stage), least: usize) {
    for telling in [true, false] {
        let mut seen = 0;
        for number in kills() {
            let stage = stage(true);
            prepare(&stage);
            let (before, kept_before) = (state(&stage), kept(&stage));
            let text = stage.fake.definition("a");
            let from = stage.fake.calls.get();
            if telling {
                let count = Mutex::new(0);
                stage.caller.at(move |text| {
                    let mut count = count.lock().unwrap();
                    if text != "ask" && !text.starts_with("warning") {
                        *count += 1;
                        if *count == number + 1 {
                            drop(count);
                            kill();
                        }
                    }
                });
            } else {
                let at = move |call| {
                    if call == from + number {
                        kill()
                    }
                };
                *stage.fake.at.borrow_mut() = Some(Box::new(at));
            }
            let done = Cell::new(false);
            let _ = catch_unwind(AssertUnwindSafe(|| {
                run(&stage);
                done.set(true);
            }));
            *stage.fake.at.borrow_mut() = None;
            stage.caller.at(|_| {});
            if done.get() {
                break;
            }
            seen += kill_step();
            stage.recover();
            assert_eq!(stage.journals(), 0);
            let is_before = state(&stage) == before && stage.fake.definition("a") == text;
            if !is_before {
                // A deletion that was begun is finished.
                assert_eq!(state(&stage), (false, false, Vec::new()), "killed at {number}");
                continue;
            }
            assert_eq!(kept(&stage), kept_before, "killed at {number}");
            // And it can be done again.
            run(&stage);
        }
        assert!(seen >= least, "only {seen} kills: the test proves nothing");
    }
}

#[test]
fn an_addition_killed_at_any_step_is_undone() {
    killed(|_| {}, |stage| drop(run_add(stage, &wanted(blank(), true)).unwrap()), 3);
}

#[test]
fn a_removal_killed_at_any_step_is_undone() {
    let prepare = |stage: &Stage| drop(run_add(stage, &wanted(blank(), true)).unwrap());
    killed(prepare, |stage| drop(run_remove(stage, true, false).unwrap()), 2);
}

#[test]
fn a_deletion_killed_at_any_step_is_undone_or_finished() {
    let prepare = |stage: &Stage| drop(run_add(stage, &wanted(blank(), true)).unwrap());
    killed(prepare, |stage| drop(run_remove(stage, true, true).unwrap()), 3);
}
