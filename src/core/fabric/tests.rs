//! The table of decisions, row by row, and reading and restoring the list.

use super::*;
use std::time::Duration;

fn modules(ids: &[u32]) -> Modules {
    ids.iter().copied().collect()
}

/// A partition of a list, its GPUs with 18 NVLinks of 18.
fn listed(id: u32, gpus: &[u32], active: bool) -> Listed {
    let gpu = |&module: &u32| ListedGpu { module, bus: None, links: 18, most: 18 };
    Listed { id, active, gpus: gpus.iter().map(gpu).collect() }
}

/// The list of an H100 board with these partitions active (gpuvm-hardware(7), SHARED NVSWITCH).
fn h100(active: &[u32]) -> Vec<Listed> {
    let sets: [&[u32]; 9] = [
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[1, 2, 3, 4],
        &[5, 6, 7, 8],
        &[1, 3],
        &[2, 4],
        &[5, 7],
        &[6, 8],
        &[1],
        &[2],
    ];
    let all = (0..).zip(sets);
    all.map(|(id, gpus)| listed(id, gpus, active.contains(&id))).collect()
}

/// A domain whose UUID is its name.
fn domain(name: &str) -> Domain {
    Domain { name: name.into(), uuid: name.into() }
}

fn runs(name: &str, gpus: &[u32]) -> Running {
    let none = modules(&[]);
    let (placed, vgpus, parts) = (none.clone(), none.clone(), none);
    let functions = BTreeMap::new();
    Running {
        domain: domain(name),
        modules: modules(gpus),
        unknown: 0,
        placed,
        vgpus,
        parts,
        functions,
    }
}

fn entry(id: u32, gpus: &[u32], domain: &str) -> RestoreEntry {
    RestoreEntry { id, modules: modules(gpus), domain: domain.into(), vfs: Vec::new() }
}

fn file(entries: &[RestoreEntry]) -> RestoreList {
    RestoreList { version: FORMAT, partitions: entries.to_vec() }
}

/// Partition 3 for domain `a`.
fn wanted() -> NeededPartition {
    NeededPartition {
        partition: 3,
        modules: modules(&[1, 3]),
        domain: "a".into(),
        is_shared: false,
    }
}

fn decided(list: &[Listed], running: &[Running], entries: &[RestoreEntry]) -> Decision {
    decide(&wanted(), list, running, &file(entries))
}

fn refusal(list: &[Listed], running: &[Running], entries: &[RestoreEntry]) -> PartitionRefusal {
    match decided(list, running, entries) {
        Decision::Refused(refusal) => refusal,
        decision => panic!("{decision:?}"),
    }
}

#[test]
fn an_inactive_partition_of_the_planned_gpus_is_activated() {
    assert_eq!(decided(&h100(&[]), &[], &[]), Decision::Activate);
    // Other domains do not matter while they have other GPUs; nor do the file's entries of other
    // domains.
    let entries = [entry(3, &[1, 3], "b"), entry(4, &[2, 4], "c")];
    assert_eq!(decided(&h100(&[4, 2]), &[runs("c", &[2, 4])], &entries), Decision::Activate);
    // The domain itself already runs, like one that gets a virtual function later.
    assert_eq!(decided(&h100(&[]), &[runs("a", &[1, 3])], &[]), Decision::Activate);
    // The unknown GPUs of other domains are not in an active partition.
    let unknown = Running { unknown: 2, ..runs("b", &[]) };
    assert_eq!(decided(&h100(&[4]), &[unknown], &[]), Decision::Activate);
}

#[test]
fn one_that_is_active_for_this_domain_is_so_already() {
    assert_eq!(decided(&h100(&[3]), &[], &[entry(3, &[1, 3], "A")]), Decision::AlreadySo);
    assert_eq!(decided(&h100(&[3]), &[runs("a", &[1, 3])], &[]), Decision::AlreadySo);
    // The file is older, from when the number meant other GPUs.
    let stale = PartitionRefusal::Stale { partition: 3 };
    assert_eq!(refusal(&h100(&[3]), &[], &[entry(3, &[1, 2], "a")]), stale);
}

#[test]
fn one_that_a_running_domain_has_is_held() {
    let held = |name: &str| PartitionRefusal::Held { partition: 3, domain: domain(name) };
    assert_eq!(refusal(&h100(&[3]), &[runs("b", &[1, 3])], &[]), held("b"));
    // Running domains take precedence over the file.
    assert_eq!(refusal(&h100(&[3]), &[runs("b", &[1, 3])], &[entry(3, &[1, 3], "a")]), held("b"));
    // Some of the GPUs are enough, even if Fabric Manager lists the partition as inactive.
    assert_eq!(refusal(&h100(&[3]), &[runs("b", &[3])], &[]), held("b"));
    assert_eq!(refusal(&h100(&[]), &[runs("b", &[1, 3])], &[]), held("b"));
    let said = held("b").to_string();
    assert_eq!(said, "NVLink partition 3 is held by running domain `b`");
}

#[test]
fn an_active_partition_without_a_guest_is_stale() {
    let stale = PartitionRefusal::Stale { partition: 3 };
    for entries in [&[][..], &[entry(3, &[1, 3], "b")]] {
        let refusal = refusal(&h100(&[3]), &[runs("c", &[2, 4])], entries);
        assert_eq!((&refusal, refusal.stale()), (&stale, Some(3)));
    }
    // Unless a running domain may have it.
    let unknown = Running { unknown: 2, ..runs("b", &[]) };
    let untold = PartitionRefusal::UserUnknown { partition: 3, domain: domain("b"), unknown: 2 };
    assert_eq!(refusal(&h100(&[3]), &[unknown], &[]), untold);
    assert_eq!(untold.stale(), None);
}

#[test]
fn an_active_one_that_shares_gpus_is_named_with_its_domain() {
    let overlap = |with, domain| PartitionRefusal::Overlap { partition: 3, with, domain };
    let all = [1, 2, 3, 4];
    let held = refusal(&h100(&[1]), &[runs("b", &all)], &[]);
    assert_eq!((&held, held.stale()), (&overlap(1, Some(domain("b"))), None));
    assert!(held.to_string().ends_with("partition 1, which is active for domain `b`"), "{held}");
    let stale = refusal(&h100(&[1]), &[], &[entry(3, &[1, 3], "a")]);
    assert_eq!((&stale, stale.stale()), (&overlap(1, None), Some(1)));
    // A domain with none of our GPUs still holds the other partition.
    assert_eq!(refusal(&h100(&[1]), &[runs("b", &[2])], &[]), overlap(1, Some(domain("b"))));
    let unknown = Running { unknown: 1, ..runs("b", &[]) };
    let untold = PartitionRefusal::UserUnknown { partition: 1, domain: domain("b"), unknown: 1 };
    assert_eq!(refusal(&h100(&[1]), &[unknown], &[]), untold);
}

#[test]
fn one_of_other_gpus_than_planned_is_refused() {
    let b200 = [listed(3, &[5, 6, 7, 8], false), listed(4, &[1, 2], false)];
    let changed = refusal(&b200, &[], &[]);
    assert_eq!(
        changed.to_string(),
        "NVLink partition 3 has modules 5, 6, 7, 8; it had modules 1, 3 when this was planned"
    );
    let gone = refusal(&b200[1..], &[], &[]);
    assert_eq!(gone, PartitionRefusal::NotListed { partition: 3, listed: 1 });
}

#[test]
fn only_what_no_running_domain_has_is_released() {
    let list = h100(&[3, 4]);
    assert_eq!(release(3, &list, &[runs("b", &[2, 4])]), Release::Deactivate);
    assert_eq!(release(5, &list, &[]), Release::AlreadySo);
    for gpus in [&[1, 3][..], &[3], &[1, 2, 3, 4]] {
        let held = PartitionRefusal::Held { partition: 3, domain: domain("a") };
        assert_eq!(release(3, &list, &[runs("a", gpus)]), Release::Refused(held));
    }
    let unknown = Running { unknown: 1, ..runs("b", &[]) };
    let untold = PartitionRefusal::UserUnknown { partition: 3, domain: domain("b"), unknown: 1 };
    assert_eq!(release(3, &list, std::slice::from_ref(&unknown)), Release::Refused(untold));
    // Its unknown GPU is not one whose module id is known, so it is not in a partition of these.
    let elsewhere = Running { placed: modules(&[1, 3, 5]), ..unknown.clone() };
    assert_eq!(release(3, &list, std::slice::from_ref(&elsewhere)), Release::Deactivate);
    let stale = PartitionRefusal::Stale { partition: 3 };
    assert_eq!(refusal(&list, std::slice::from_ref(&elsewhere), &[]), stale);
    assert_eq!(states(&list, &[elsewhere])[3].verdict, Verdict::Stale);
    let perhaps = Running { placed: modules(&[1, 5]), ..unknown };
    assert_eq!(states(&list, std::slice::from_ref(&perhaps))[3].verdict, Verdict::Unknown);
    assert!(matches!(release(3, &list, &[perhaps]), Release::Refused(_)));
    let none = PartitionRefusal::NotListed { partition: 99, listed: 9 };
    assert_eq!(release(99, &list, &[]), Release::Refused(none));
}

#[test]
fn codes_mean_what_their_call_says() {
    use Call::{Activate, Deactivate, List, SetActivated};
    use Meaning::*;
    let all = [List, Activate, Deactivate, SetActivated];
    for (code, meanings) in [
        (0, [Done; 4]),
        (-1, [Failed, NoPartition, NoPartition, NoPartition]),
        (-2, [Failed; 4]),
        (-3, [WrongMode; 4]),
        (-4, [Failed, Failed, AlreadyInactive, Failed]),
        (-5, [Failed; 4]),
        (-6, [Failed; 4]),
        (-7, [Failed, AlreadyActive, Failed, Failed]),
        (-8, [Starting; 4]),
        (-9, [Unreachable; 4]),
        (-10, [LinksFailed; 4]),
        (-11, [Failed; 4]),
        (-12, [Failed; 4]),
        (-13, [Failed; 4]),
        (-14, [Failed; 4]),
        (-15, [Starting; 4]),
        (-16, [Failed; 4]),
        (-17, [Failed, AlreadyActive, Failed, Failed]),
        (-18, [Failed, Failed, AlreadyInactive, Failed]),
        (-19, [Failed; 4]),
        (-20, [Failed; 4]),
        (-21, [Failed; 4]),
        (-22, [Starting; 4]),
        (-99, [Failed; 4]),
        (1, [Failed; 4]),
    ] {
        assert_eq!(all.map(|call| Code(code).meaning(call)), meanings, "{code}");
    }
}

#[test]
fn codes_have_names() {
    for (code, text) in [
        (-1, "BADPARAM (-1)"),
        (-8, "NOT_CONFIGURED (-8)"),
        (-18, "PARTITION_ID_NOT_IN_USE (-18)"),
        (-22, "NOT_READY (-22)"),
        (-29, "PARTITION_ROUTE_PROGRAMMING_ERROR (-29)"),
        (-30, "unknown code -30"),
        (1, "unknown code 1"),
        (i32::MIN, "unknown code -2147483648"),
    ] {
        assert_eq!(Code(code).to_string(), text);
    }
    assert!(
        (-10..=-1).all(|code| Code(code).advice(Call::List).is_some()),
        "each that is published for lists"
    );
    // For a call that changes a partition, the same code is about the partition.
    for (code, call, advice) in [
        (-1, Call::Deactivate, "`gpuvm fabric show` lists the partitions"),
        (-4, Call::Deactivate, "`gpuvm fabric show` tells which partitions are active"),
        (-7, Call::Activate, "`gpuvm fabric show` tells which partitions are active"),
    ] {
        assert_eq!(Code(code).advice(call), Some(advice));
        assert_ne!(Code(code).advice(Call::List), Some(advice));
    }
}

#[test]
fn a_starting_service_is_asked_again_for_half_a_minute() {
    let seconds: Vec<u64> = Pauses::default().map(|pause| pause.as_secs()).collect();
    assert_eq!(seconds, [1, 2, 4, 8, 8, 7]);
    let short = Pauses::new(Duration::from_millis(1), Duration::from_millis(1), Duration::ZERO);
    assert_eq!(short.count(), 0);
}

#[test]
fn each_partition_gets_a_verdict() {
    let mut list = h100(&[1, 3, 4, 5]);
    list.push(listed(20, &[9, 10], true));
    let running = [runs("a", &[1, 3]), runs("b", &[7]), runs("d", &[6, 8])];
    let got: Vec<(u32, String, Option<String>)> = states(&list, &running)
        .into_iter()
        .map(|state| (state.id, state.verdict.to_string(), state.holder.map(|d| d.name)))
        .collect();
    let wanted = [
        (0, "taken", None),
        (1, "overlap", Some("a")),
        (2, "taken", None),
        (3, "overlap", Some("a")),
        (4, "overlap", None),
        (5, "overlap", Some("b")),
        (6, "missing", Some("d")),
        (7, "taken", None),
        (8, "taken", None),
        (20, "stale", None),
    ];
    let wanted = wanted.map(|(id, verdict, name)| (id, verdict.into(), name.map(str::to_owned)));
    assert_eq!(got, wanted);
}

#[test]
fn a_verdict_weighs_what_runs_against_what_is_active() {
    use Verdict::{Degraded, Free, Missing, Ok, Overlap, Stale, Unknown};
    let worn = |active: &[u32]| {
        let mut list = h100(active);
        list[3].gpus[1].links = 16;
        list
    };
    let (a, blind) = (runs("a", &[1, 3]), Running { unknown: 1, ..runs("b", &[]) });
    for (list, running, verdict) in [
        (h100(&[3]), vec![a.clone()], Ok),
        (h100(&[]), vec![a.clone()], Missing),
        (h100(&[3]), vec![blind], Unknown),
        (h100(&[3]), vec![runs("c", &[2, 4])], Stale),
        (h100(&[3]), vec![runs("c", &[3])], Overlap),
        (h100(&[]), vec![runs("c", &[3])], Free),
        (worn(&[3]), vec![a.clone()], Degraded),
        (worn(&[]), vec![], Degraded),
        (worn(&[]), vec![a], Missing),
        (worn(&[3]), vec![], Stale),
    ] {
        assert_eq!(states(&list, &running)[3].verdict, verdict, "{running:?}");
    }
    let state = states(&worn(&[]), &[]).remove(3);
    assert_eq!((state.links, state.links_at_most, state.holder), (16, 18, None));
    let wrong: Vec<Verdict> =
        Verdict::ALL.into_iter().filter(|verdict| verdict.is_wrong()).collect();
    assert_eq!(wrong, [Stale, Missing, Overlap]);
}

#[test]
fn the_file_is_written_and_read_in_the_published_form() {
    let list = file(&[entry(3, &[1, 3], "u")]);
    let text = "{\"version\":1,\"partitions\":[{\"id\":3,\"modules\":[1,3],\"domain\":\"u\"}]}\n";
    assert_eq!(list.text(), text);
    assert_eq!(RestoreList::parse(text), Ok(list.clone()));
    for (damaged, line, said) in [
        ("", 1, "it is empty"),
        (" \n", 1, "it is empty"),
        (
            "{\"version\":1,\"partitions\":[{\"id\":3,\"modules\":[1],\"domain\":\"u\"},\n\
             {\"id\":3,\"modules\":[2],\"domain\":\"v\"}]}",
            2,
            "partition 3 appears twice",
        ),
    ] {
        let Err(RestoreListError::Damaged { line: at, reason }) = RestoreList::parse(damaged)
        else {
            panic!("{damaged}: accepted");
        };
        assert!(at == line && reason.contains(said), "{damaged}: line {at}: {reason}");
    }
    let later = RestoreList::parse("{\"version\":2,\"partition\":{}}");
    assert_eq!(later, Err(RestoreListError::Version { version: 2 }));
    for broken in ["{", "[]", "{\"version\":1}", "{\"version\":1,\"partitions\":[{\"id\":3}]}"] {
        let error = RestoreList::parse(broken).unwrap_err();
        assert!(matches!(error, RestoreListError::Damaged { line: 1, .. }), "{broken}: {error}");
    }
    let two = list.with(entry(4, &[2, 4], "v"));
    assert_eq!(two.partitions, [entry(3, &[1, 3], "u"), entry(4, &[2, 4], "v")]);
    let again = two.with(entry(3, &[1, 3], "w"));
    assert_eq!(again.partitions, [entry(4, &[2, 4], "v"), entry(3, &[1, 3], "w")]);
    assert_eq!(again.without(3).partitions, [entry(4, &[2, 4], "v")]);
    assert_eq!(again.get(3).map(|entry| entry.domain.as_str()), Some("w"));
}

#[test]
fn in_restart_mode_the_running_domains_partitions_are_set() {
    let list = file(&[entry(3, &[1, 3], "a"), entry(4, &[2, 4], "b"), entry(5, &[5, 7], "c")]);
    let set = |ids: &[u32], unplaced: &[&str]| Restore::Set {
        ids: ids.to_vec(),
        unplaced: unplaced.iter().map(|name| domain(name)).collect(),
    };
    let restored = |running: &[Running], known: &[KnownPartition]| {
        restore(&Mode::Restart, &list, Some(running), known)
    };
    let (a, b) = (runs("a", &[1, 3]), runs("b", &[2, 4]));
    assert_eq!(restored(&[a.clone(), b.clone()], &[]), set(&[3, 4], &[]), "one was stopped");
    assert_eq!(restored(&[], &[]), set(&[], &[]), "none runs, which is passed on, too");
    // The running domain has other GPUs than the file says; the running domain counts.
    let moved = runs("a", &[6, 8]);
    assert_eq!(restored(std::slice::from_ref(&moved), &[]), set(&[], &["a"]));
    assert_eq!(
        restored(&[moved], &[KnownPartition { id: 6, modules: modules(&[6, 8]) }]),
        set(&[6], &[])
    );
    // A domain without an entry whose GPUs have one.
    assert_eq!(restored(&[runs("x", &[5, 7])], &[]), set(&[5], &[]));
    // Its GPUs are unknown; the file records those it was started with.
    let blind = Running { unknown: 2, ..runs("b", &[]) };
    assert_eq!(restored(&[blind], &[]), set(&[4], &[]));
    assert_eq!(restored(&[Running { unknown: 1, ..runs("z", &[]) }], &[]), set(&[], &["z"]));
    assert_eq!(restored(&[runs("no-gpu", &[])], &[]), set(&[], &[]));
    // libvirt is not up: the file decides, and of two that share GPUs the later one.
    let blind = restore(&Mode::Restart, &list.with(entry(1, &[1, 2, 3, 4], "d")), None, &[]);
    assert_eq!(blind, set(&[1, 5], &[]));
}

#[test]
fn missing_partitions_are_activated_in_normal_mode() {
    let activate = |entries: &[RestoreEntry], unplaced: &[&str]| Restore::Activate {
        entries: entries.to_vec(),
        unplaced: unplaced.iter().map(|name| domain(name)).collect(),
    };
    let restored = |active: &[u32], running: Option<&[Running]>| {
        restore(&Mode::Normal(h100(active)), &file(&[entry(3, &[1, 3], "a")]), running, &[])
    };
    let (a, b) = (runs("a", &[1, 3]), runs("b", &[2, 4]));
    let both = [b.clone(), a.clone()];
    let all = [entry(3, &[1, 3], "a"), entry(4, &[2, 4], "b")];
    assert_eq!(restored(&[], Some(&both)), activate(&all, &[]));
    assert_eq!(restored(&[3], Some(&both)), activate(&all[1..], &[]));
    assert_eq!(restored(&[1], Some(&both)), activate(&[], &["b", "a"]), "another has their GPUs");
    assert_eq!(restored(&[], Some(&[runs("c", &[1, 2])])), activate(&[], &["c"]));
    assert_eq!(restored(&[], None), activate(&[], &[]));
    let blind = Running { unknown: 2, ..runs("a", &[]) };
    assert_eq!(restored(&[], Some(&[blind])), activate(&all[..1], &[]));
}

#[test]
fn a_guest_of_unknown_modules_keeps_no_other_from_being_restored() {
    let blind = |known: &[u32], unknown| Running { unknown, ..runs("b", known) };
    let restored = |running: &[Running], entries: &[RestoreEntry]| match restore(
        &Mode::Normal(h100(&[])),
        &file(entries),
        Some(running),
        &[],
    ) {
        Restore::Activate { entries, unplaced } => {
            let ids: Vec<u32> = entries.iter().map(|entry| entry.id).collect();
            (ids, unplaced.into_iter().map(|domain| domain.name).collect::<Vec<_>>())
        }
        other => panic!("{other:?}"),
    };
    let a = runs("a", &[1, 3]);
    let b = || vec!["b".to_owned()];
    // One GPU is known, and the partition of that GPU alone is not the guest's.
    assert_eq!(restored(&[blind(&[2], 1), a.clone()], &[]), (vec![3], b()));
    assert_eq!(restored(&[blind(&[], 1), a.clone()], &[]), (vec![3], b()));
    assert_eq!(restored(&[blind(&[2], 1), a], &[entry(4, &[2, 4], "b")]), (vec![3, 4], vec![]));
    // All GPUs are in one partition, in whatever order.
    assert_eq!(restored(&[blind(&[], 8)], &[]), (vec![0], vec![]));
    assert_eq!(restored(&[blind(&[], 7)], &[]), (vec![], b()));
}

#[test]
fn partitions_not_yet_deactivated_are_pending() {
    let list = file(&[entry(3, &[1, 3], "a"), entry(4, &[2, 4], "b")]);
    let ids = |running: &[Running], listed: Option<&[Listed]>| -> Vec<u32> {
        pending(&list, running, listed).into_iter().map(|entry| entry.id).collect()
    };
    let a = [runs("A", &[1, 3])];
    assert_eq!(ids(&a, None), [4], "Fabric Manager is away");
    assert_eq!(ids(&a, Some(&h100(&[3, 4]))), [4]);
    assert_eq!(ids(&a, Some(&h100(&[3]))), [0; 0]);
    assert_eq!(ids(&[], Some(&h100(&[]))), [0; 0], "nothing is active since the host has booted");
}

/// A host of eight GPUs whose NVSwitches Fabric Manager controls, with these partitions and module
/// ids by GPU.
fn shared(partitions: &[(u32, &[u32])], known: &[u32]) -> crate::topology::Topology {
    use crate::topology::{FabricModel, Partition, PartitionId};
    let text = include_str!("../../../topologies/dgx-h100.json");
    let mut parts = crate::topology::file::from_json(text).unwrap().parts().clone();
    let host = crate::topology::Topology::new(parts.clone()).unwrap();
    let gpus: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
    let fabric = &mut parts.fabric;
    fabric.model = FabricModel::SharedNvswitch;
    fabric.module_ids = known.iter().map(|&id| (gpus[id as usize - 1], id)).collect();
    let partition = |(id, modules): &(u32, &[u32])| Partition {
        id: PartitionId(*id),
        gpus: modules.iter().map(|&id| gpus[id as usize - 1]).collect(),
        nvlinks_per_gpu: 18,
        nvswitches: 0,
        nvswitch_pool: Vec::new(),
        active: false,
    };
    fabric.partitions = partitions.iter().map(partition).collect();
    crate::topology::Topology::new(parts).unwrap()
}

#[test]
fn a_set_of_gpus_needs_the_partition_of_exactly_these() {
    let all = [1, 2, 3, 4, 5, 6, 7, 8];
    let host = shared(&[(0, &all), (3, &[1, 3]), (7, &[1])], &all);
    let gpus: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
    let of = |places: &[usize]| {
        let devices: Vec<_> = places.iter().map(|place| gpus[place - 1]).collect();
        need(&host, &devices)
    };
    let pair = of(&[3, 1]).unwrap().unwrap();
    assert_eq!((pair.partition, pair.modules()), (3, modules(&[1, 3])));
    assert_eq!(pair.placed(&[]).unwrap(), [(1, gpus[0]), (3, gpus[2])]);
    assert_eq!(of(&[1]).unwrap().unwrap().partition, 7, "one GPU needs its own");
    assert_eq!(of(&[]).unwrap(), None);
    let error = of(&[1, 2]).unwrap_err();
    let text = "no NVLink partition has exactly 2 GPUs of this guest (modules 1, 2): partitions \
                have 1, 2, 8 GPUs";
    assert_eq!(
        (error.to_string(), error.hint()),
        (text.into(), "partitions of 2 GPUs: modules 1, 3".into())
    );
    let error = of(&[1, 2, 3]).unwrap_err();
    assert!(error.hint().contains("`gpuvm fabric show` lists"), "{}", error.hint());
}

#[test]
fn the_partition_of_all_gpus_needs_no_module_ids() {
    let all = [1, 2, 3, 4, 5, 6, 7, 8];
    let host = shared(&[(0, &all)], &[2]);
    let gpus: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
    let whole = need(&host, &gpus).unwrap().unwrap();
    assert_eq!((whole.partition, whole.placed(&[])), (0, None));
    let placed = whole.placed(&h100(&[])).unwrap();
    assert_eq!(placed.iter().map(|(id, _)| *id).collect::<Modules>(), modules(&all));
    assert!(placed.contains(&(2, gpus[1])), "the one that is known keeps its own: {placed:?}");
    assert_eq!(placed.iter().map(|(_, gpu)| gpu).collect::<BTreeSet<_>>().len(), 8);
    assert_eq!(whole.placed(&[listed(0, &[1, 2], false)]), None, "another number of them");
    let error = need(&host, &gpus[..2]).unwrap_err();
    assert!(matches!(error, NeedRefusal::UnknownGpus { gpus: 2, unknown: 1, .. }), "{error}");
    assert!(error.to_string().ends_with("the module id of 1 of them is not known"), "{error}");
    assert!(error.hint().starts_with("NVML reports module ids only while"), "{}", error.hint());
    let mut parts = host.parts().clone();
    parts.fabric.modules_untold = Some("no library".into());
    let host = crate::topology::Topology::new(parts).unwrap();
    let hint = need(&host, &gpus[..2]).unwrap_err().hint();
    assert!(hint.starts_with("NVML has no module ids: no library; once it has, `gpuvm host"));
}

#[test]
fn where_a_reset_cuts_links_only_all_gpus_are_activated_for() {
    let all = [1, 2, 3, 4, 5, 6, 7, 8];
    let mut parts = shared(&[(0, &all), (3, &[1, 3])], &all).parts().clone();
    parts.fabric.reset_cuts_links = true;
    let host = crate::topology::Topology::new(parts).unwrap();
    let gpus: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
    assert_eq!(need(&host, &[gpus[0], gpus[2]]), Err(NeedRefusal::ResetCutsLinks { partition: 3 }));
    assert_eq!(need(&host, &gpus).unwrap().unwrap().partition, 0);
}

#[test]
fn versions_that_are_not_known_are_not_compared() {
    let versions = |manager: &str, driver: &str| FabricVersions {
        manager: Some(manager.to_owned()).filter(|text| !text.is_empty()),
        driver: Some(driver.to_owned()).filter(|text| !text.is_empty()),
        library: None,
    };
    for (manager, driver, check, of_guests) in [
        ("570.1", "570.1", VersionCheck::Same, Some("570.1")),
        ("570.1", "570.10", VersionCheck::Differ, Some("570.1")),
        ("", "570.1", VersionCheck::NotChecked, Some("570.1")),
        ("570.1", "", VersionCheck::NotChecked, Some("570.1")),
        ("", "", VersionCheck::NotChecked, None),
    ] {
        let versions = versions(manager, driver);
        assert_eq!((versions.check(), versions.of_guests()), (check, of_guests), "{versions:?}");
    }
    for (manager, driver, library, check) in [
        ("570.1", "570.1", "570.1", VersionCheck::Same),
        ("570.1", "570.1", "570.2", VersionCheck::Differ),
        ("570.1", "", "570.2", VersionCheck::Differ),
        ("570.1", "", "570.1", VersionCheck::NotChecked),
        ("", "570.1", "570.2", VersionCheck::NotChecked),
    ] {
        let known = FabricVersions { library: Some(library.into()), ..versions(manager, driver) };
        assert_eq!(known.check(), check, "{known:?}");
        assert_eq!(known.apart().is_some(), check == VersionCheck::Differ, "{known:?}");
    }
}
