//! Pools and volumes on a real libvirtd, through the library.

use super::files;
use crate::support::daemon::daemon;
use gpuvm::apply::{Journal, Observer, Orphan, Secret, Step, VolumeStep, Way, apply, recover};
use gpuvm::domain::guest::VolumeRef;
use gpuvm::hypervisor::libvirt::Libvirt;
use gpuvm::hypervisor::storage::NewVolume;
use gpuvm::hypervisor::{Hypervisor as _, HypervisorErrorKind};
use gpuvm::seed::{Seed, is_seed};
use std::os::unix::fs::MetadataExt as _;

/// A new volume of one MiB.
fn volume(name: &str, format: &str) -> NewVolume {
    NewVolume {
        name: name.into(),
        format: format.into(),
        capacity_bytes: 1 << 20,
        preallocated: false,
        backing: None,
        mode: 0o600,
    }
}

#[test]
fn volumes_are_made_filled_read_and_deleted() {
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("pool").join("below");
    let libvirt = Libvirt::open(&daemon.uri()).unwrap();
    let storage = libvirt.storage();
    storage.make_pool("images-test", &dir, None).unwrap();
    assert!(storage.make_pool("images-test", &dir, None).is_err(), "a pool was made twice");
    let pools = storage.pools().unwrap();
    let pool = pools.iter().find(|pool| pool.name == "images-test").unwrap();
    assert_eq!((&pool.kind[..], pool.path.as_deref(), pool.active), ("dir", Some(&*dir), true));
    assert!(pool.available_bytes > 0 && pool.available_bytes <= pool.capacity_bytes);

    let path = storage.make_volume("images-test", &volume("a.img", "raw")).unwrap();
    assert_eq!(path, dir.join("a.img"));
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    let again = storage.make_volume("images-test", &volume("a.img", "raw")).unwrap_err();
    assert_eq!(again.kind, HypervisorErrorKind::Exists, "{again}");
    let content: Vec<u8> = (0..700_000u32).map(|at| (at % 251) as u8).collect();
    let mut told = Vec::new();
    let mut progress = |through| {
        told.push(through);
        true
    };
    storage.upload("images-test", "a.img", &mut &content[..], &mut progress).unwrap();
    assert_eq!(told.last(), Some(&700_000));
    assert!(told.len() > 1 && told.is_sorted(), "{told:?}");
    let mut back = Vec::new();
    storage.download("images-test", "a.img", 0..700_000, &mut back).unwrap();
    assert!(back == content, "what came back is not what went in");
    let mut part = Vec::new();
    storage.download("images-test", "a.img", 251..261, &mut part).unwrap();
    assert_eq!(part, (0..10).collect::<Vec<u8>>());
    let broken = storage.upload("images-test", "a.img", &mut &content[..], &mut |_| false);
    assert!(broken.unwrap_err().message.contains("broken off"));

    let mut over = volume("b.qcow2", "qcow2");
    over.capacity_bytes = 2 << 20;
    over.backing = Some((dir.join("a.img"), "raw".into()));
    storage.make_volume("images-test", &over).unwrap();
    storage.copy_volume("images-test", &volume("c.img", "raw"), ("images-test", "a.img")).unwrap();
    storage.grow_volume("images-test", "c.img", 3 << 20).unwrap();
    let full = NewVolume { preallocated: true, ..volume("d.img", "raw") };
    storage.make_volume("images-test", &full).unwrap();
    let volumes = storage.volumes("images-test").unwrap();
    let seen: Vec<_> = volumes
        .iter()
        .map(|v| (&v.name[..], &v.format[..], v.capacity_bytes >> 20, v.backing.clone()))
        .collect();
    let base = Some(dir.join("a.img"));
    let expected =
        [("a.img", "raw", 1, None), ("b.qcow2", "qcow2", 2, base), ("c.img", "raw", 3, None)];
    assert_eq!(seen[..3], expected);
    assert!(volumes[3].allocation_bytes >= 1 << 20, "not preallocated: {:?}", volumes[3]);
    let copied = std::fs::read(dir.join("c.img")).unwrap();
    assert!(copied[..700_000] == content[..] && copied.len() == 3 << 20);

    for name in ["a.img", "b.qcow2", "c.img", "d.img"] {
        storage.delete_volume("images-test", name).unwrap();
    }
    let gone = storage.delete_volume("images-test", "a.img").unwrap_err();
    assert_eq!(gone.kind, HypervisorErrorKind::NoVolume, "{gone}");
    assert_eq!(files(&dir), [""; 0]);
    std::fs::write(dir.join("another's"), "").unwrap();
    storage.forget_pool("images-test").unwrap();
    assert_eq!(storage.volumes("images-test").unwrap_err().kind, HypervisorErrorKind::NoVolume);
    assert_eq!(files(&dir), ["another's"], "forgetting a pool removed what is in it");
}

/// A watch that stops everything after this many bytes of a volume.
#[derive(Default)]
struct Watch {
    /// Bytes of the filling so far.
    through: u64,
    /// Bytes after which a signal comes.
    stop_at: Option<u64>,
}

impl Observer for Watch {
    fn doing(&mut self, _: &Step) {}
    fn undoing(&mut self, _: &Step) {}
    fn progress(&mut self, through: u64, _: u64) {
        self.through = through;
    }
    fn interrupted(&mut self) -> Option<String> {
        self.stop_at.filter(|&at| self.through >= at).map(|_| "SIGTERM".to_owned())
    }
}

#[test]
fn steps_on_volumes_are_done_undone_and_recovered() {
    let Some(daemon) = daemon() else { return };
    let (dir, journals) = (daemon.fresh_dir("pool-steps"), daemon.fresh_dir("pool-journals"));
    let libvirt = Libvirt::open(&daemon.uri()).unwrap();
    let pool = || "steps-test".to_owned();
    let source = dir.join("source.img");
    std::fs::write(&source, vec![7u8; 3 << 20]).unwrap();
    let below = dir.join("volumes");
    let make = |name: &str, mib: u64, from: Option<&str>| {
        Step::Volume(VolumeStep::Make {
            pool: pool(),
            volume: NewVolume { capacity_bytes: mib << 20, ..volume(name, "raw") },
            from: from.map(|name| VolumeRef { pool: pool(), name: name.to_owned() }),
        })
    };
    let name = || "base".to_owned();
    let content = Secret::of(Seed { host_name: "who-may-log-in".into(), ..Seed::default() });
    let steps = [
        Step::Volume(VolumeStep::MakePool { name: pool(), path: below.clone() }),
        make("base", 3, None),
        Step::Volume(VolumeStep::Fill {
            pool: pool(),
            name: name(),
            source: source.clone(),
            bytes: 3 << 20,
            sha256: None,
        }),
        make("os", 3, Some("base")),
        Step::Volume(VolumeStep::Grow { pool: pool(), name: "os".into(), bytes: 5 << 20 }),
        make("seed", 4, None),
        Step::Volume(VolumeStep::Seal { pool: pool(), name: "seed".into(), content }),
    ];
    let begin = || Journal::begin_in(&journals, "create", "x", libvirt.uri()).unwrap();
    // A signal in the middle of the filling undoes all, the pool too.
    let mut stopped = Watch { stop_at: Some(1 << 20), ..Watch::default() };
    let error = apply(&steps, &libvirt, &mut stopped, Some(begin())).unwrap_err().to_string();
    assert_eq!(error, "interrupted by SIGTERM; earlier steps are undone");
    assert_eq!((files(&below), files(&journals)), (vec![], vec![]));
    assert!(!libvirt.storage().pools().unwrap().iter().any(|p| p.name == pool()));
    assert!(!below.exists(), "the directory of a pool that was unmade is left");

    apply(&steps, &libvirt, &mut Watch::default(), Some(begin())).unwrap();
    assert_eq!(files(&below), ["base", "os", "seed"]);
    assert_eq!(std::fs::metadata(below.join("os")).unwrap().len(), 5 << 20);
    let sealed = std::fs::read(below.join("seed")).unwrap();
    assert!(is_seed(&sealed) && String::from_utf8_lossy(&sealed).contains("who-may-log-in"));
    let again = apply(&steps[1..2], &libvirt, &mut Watch::default(), None).unwrap_err();
    assert!(format!("{:?}", again).contains("has a volume of this name"), "{again:?}");

    // An interrupted run: begun deletions are completed, begun creations are undone.
    let gone = |name: &str| {
        Step::Volume(VolumeStep::Delete { pool: pool(), name: name.into(), file: None })
    };
    let gone = ["os", "seed"].map(gone);
    let mut journal = begin();
    journal.plan(&gone).unwrap();
    journal.begins(0).unwrap();
    drop(journal);
    let text: String = files(&journals)
        .iter()
        .map(|file| std::fs::read_to_string(journals.join(file)).unwrap())
        .collect();
    assert!(text.contains("delete-volume") && !text.contains("log-in"), "{text}");
    let orphan = Orphan::all_in(&journals).unwrap().readable.remove(0);
    assert_eq!(recover(orphan, &libvirt, &mut Watch::default(), &[]).unwrap().way, Way::Finish);
    assert_eq!(files(&below), ["base"]);
    let mut journal = begin();
    journal.plan(&steps[..2]).unwrap();
    journal.begins(0).unwrap();
    journal.done(0, None).unwrap();
    journal.begins(1).unwrap();
    drop(journal);
    // The pool and the volume of these names are those of the change before, and stay.
    let orphan = Orphan::all_in(&journals).unwrap().readable.remove(0);
    let recovery = recover(orphan, &libvirt, &mut Watch::default(), &[]).unwrap();
    assert_eq!((recovery.way, recovery.steps.len(), recovery.handed_over.len()), (Way::Undo, 0, 2));
    assert_eq!((files(&below), files(&journals)), (vec!["base".to_owned()], vec![]));
}
