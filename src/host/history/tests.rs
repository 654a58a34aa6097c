//! Tests of the store, and of records of earlier versions: `v1` was written by gpuvm itself.

use super::*;
use crate::apply::file::set_private_file;
use crate::apply::pages::PagesStep;
use crate::apply::{CheckStep, Comparison, DomainStep, FileStep, LiveStep, VolumeStep};
use gpuvm_core::cpuset::NodeId;
use gpuvm_core::domain::live::GuestThread;
use gpuvm_core::memsize::MemSize;
use std::path::Path;

/// A history in a directory of its own.
fn history() -> (tempfile::TempDir, History) {
    let root = tempfile::tempdir().unwrap();
    let history = History::read(root.path().join("uuid")).unwrap();
    (root, history)
}

/// Performs a step that writes or removes a file.
fn perform(step: &Step) {
    let Step::File(FileStep::Remember { path, text, .. }) = step else { panic!("{step:?}") };
    set_private_file(path, text.as_deref()).unwrap();
}

#[test]
fn changes_are_numbered_and_go_one_by_one() {
    let (_root, history) = history();
    let first = history.next("tune", "test:///default", "a", 7, "<domain/>".into());
    perform(&history.remember(&first, None));
    let history = History::read(history.directory).unwrap();
    assert_eq!(history.entries, std::slice::from_ref(&first));
    let second = history.next("tune", "test:///default", "a", 8, "<domain></domain>".into());
    assert_eq!(second.number, 2);
    perform(&history.remember(&second, None));
    let read = Entry { after: Some("<domain>after</domain>".into()), ..second.clone() };
    perform(&history.remember(&read, Some(&second)));
    let history = History::read(history.directory).unwrap();
    assert_eq!(history.entries, [first, read.clone()]);
    perform(&history.forget(&read));
    let history = History::read(history.directory).unwrap();
    assert_eq!(history.entries.len(), 1);
    history.forget_all().iter().for_each(perform);
    assert!(!history.directory.exists());
}

#[test]
fn undone_changes_are_remembered_without_their_definitions_and_only_the_last_of_them() {
    let (_root, mut history) = history();
    for at_s in 1..=MOST_UNDONE as u64 + 2 {
        let entry = history.next("set", "test:///default", "a", at_s, "<domain/>".into());
        assert_eq!(u64::from(entry.number), at_s, "a number is used once");
        perform(&history.remember(&entry, None));
        history = History::read(history.directory).unwrap();
        history.undone(&history.entries[0], at_s + 100).iter().for_each(perform);
        history = History::read(history.directory).unwrap();
        assert!(history.entries.is_empty());
    }
    assert_eq!(history.undone.len(), MOST_UNDONE);
    let last = history.undone.last().unwrap();
    assert_eq!((last.number, last.undone_at_s), (22, Some(122)));
    assert_eq!((last.before.as_str(), &last.after, last.steps.len()), ("", &None, 0));
    assert_eq!(history.all().count(), MOST_UNDONE);
    history.forget_all().iter().for_each(perform);
    assert!(!history.directory.exists());
}

#[test]
fn undoing_goes_backwards_and_leaves_what_does_not_run() {
    let (_root, history) = history();
    let mut entry = history.next("tune", "test:///default", "a", 0, "<domain/>".into());
    let name = "a".to_owned();
    let path = PathBuf::from("/etc/x");
    entry.steps = vec![
        Step::File(FileStep::Set {
            path: path.clone(),
            text: Some("new".into()),
            was: None,
            program: false,
            kept: false,
        }),
        Step::Live(LiveStep::Pin {
            name: name.clone(),
            thread: GuestThread::Emulator,
            pcpus: "1".parse().unwrap(),
            was: "0-3".parse().unwrap(),
        }),
    ];
    let file = Step::File(FileStep::Set {
        path,
        text: None,
        was: Some("new".into()),
        program: false,
        kept: false,
    });
    let define = Step::Domain(DomainStep::Redefine {
        name: name.clone(),
        xml: "<domain/>".into(),
        before: "<domain>now</domain>".into(),
    });
    let steps = entry.undo("<domain>now</domain>", false, "b", true);
    assert_eq!(steps, [file.clone(), define]);
    let pin = Step::Live(LiveStep::Pin {
        name,
        thread: GuestThread::Emulator,
        pcpus: "0-3".parse().unwrap(),
        was: "1".parse().unwrap(),
    });
    assert_eq!(entry.undo("<domain/>", true, "b", true), [pin, file]);
}

#[test]
fn a_copy_goes_after_it_was_compared_or_stays() {
    let (_root, history) = history();
    let mut entry = history.next("tune", "test:///default", "a", 0, "<domain/>".into());
    let (pool, name) = ("p".to_owned(), "a.raw".to_owned());
    let compare = Step::Check(CheckStep::Compare(Comparison {
        domain: "a".into(),
        pool: pool.clone(),
        volume: name.clone(),
        format: "raw".into(),
        capacity_bytes: 1,
        disk: "/p/a.qcow2".into(),
        disk_format: "qcow2".into(),
        content: true,
    }));
    entry.steps = vec![compare.clone()];
    let steps = entry.undo("<domain>now</domain>", false, "b", true);
    let delete = Step::from(VolumeStep::Delete { pool, name, file: None });
    assert!(matches!(&steps[..], [first, Step::Domain(DomainStep::Redefine { .. }), last]
        if *first == compare && *last == delete));
    let steps = entry.undo("<domain>now</domain>", false, "b", false);
    assert!(matches!(steps[..], [Step::Domain(DomainStep::Redefine { .. })]), "{steps:?}");
}

#[test]
fn pages_are_given_back_in_the_boot_that_they_were_reserved_in() {
    let (_root, mut history) = history();
    let mut entry = history.next("tune", "test:///default", "a", 0, "<domain/>".into());
    let pages = |to, was, needed| {
        let (node, page_kib) = (NodeId(1), MemSize::from_kib(2048));
        Step::Host(HostStep::SetPages(PagesStep { node, page_kib, to, was, needed }))
    };
    entry.boot = "one".into();
    entry.steps = vec![pages(10, 2, 8)];
    assert_eq!(entry.undo("<domain/>", false, "one", true), [pages(2, 10, 0)]);
    assert_eq!(entry.undo("<domain/>", false, "two", true), []);
    history.entries.push(entry);
    assert_eq!(history.give_back_pages("one"), [pages(2, 10, 0)]);
    assert_eq!(history.give_back_pages("two"), []);
    // Nothing is left of it in another boot, unless it changed the definition, too.
    assert_eq!(history.forget_spent("two"), []);
    history.entries[0].after = Some("<domain/>".into());
    assert_eq!(history.forget_spent("one"), []);
    assert_eq!(history.forget_spent("two"), [history.forget(&history.entries[0])]);
}

/// Records of format 1 by gpuvm: two changes of a domain, two of the host, a deleted network, and a
/// guest's resources.
const V1: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/history/tests/v1");
const UUID: &str = "a3541664-cd58-49b8-8bf7-79e345bc15d8";

/// A file of format 1.
fn v1(file: &str) -> (PathBuf, String) {
    let path = Path::new(V1).join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    (path, text)
}

#[test]
fn a_domains_changes_of_format_1_are_read_undone_and_written_the_same() {
    let history = History::read(Path::new(V1).join("history").join(UUID)).unwrap();
    let [first, second] = &history.entries[..] else { panic!("{history:?}") };
    assert_eq!((first.number, first.verb.as_str(), first.domain.as_str()), (1, "tune", "b"));
    assert_eq!(first.what, ["emulator: 1 -> 0"]);
    assert!(first.before.contains("emulatorpin cpuset='1'"), "{}", first.before);
    // Older versions can read the present format.
    for entry in [first, second] {
        let (path, text) = v1(&format!("history/{UUID}/{:04}.json", entry.number));
        assert_eq!(store::text(entry), text);
        let step = Step::File(FileStep::Remember { path, text: None, was: Some(text) });
        assert_eq!(history.forget(entry), step);
    }
    let [DiskCopy { pool, name, .. }] = &second.copies().collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!((pool.as_str(), name.as_str()), ("p", "b.qcow2"));
    let now = second.after.as_deref().unwrap();
    let steps = second.undo(now, false, "another boot", true);
    let kind = |step: &Step| match step {
        Step::File(FileStep::Remember { .. }) => "remember",
        Step::Check(CheckStep::Compare(_)) => "compare",
        Step::Domain(DomainStep::Redefine { xml, .. }) if *xml == second.before => "redefine",
        Step::Volume(VolumeStep::Delete { .. }) => "delete",
        _ => "?",
    };
    let kinds: Vec<&str> = steps.iter().map(kind).collect();
    assert_eq!(kinds, ["remember", "compare", "redefine", "delete"], "{steps:?}");
}

#[test]
fn the_hosts_changes_of_format_1_are_read_and_undone() {
    let history = History::read(Path::new(V1).join("history/host")).unwrap();
    let [files, tuning] = &history.entries[..] else { panic!("{history:?}") };
    assert_eq!([files.verb.as_str(), tuning.verb.as_str()], ["host files", "host tuning"]);
    let steps = files.undo("", false, "another boot", false);
    // The caller reverses an edit based on the file's current content.
    let [Step::Host(HostStep::EditText(edit))] = &steps[..] else { panic!("{steps:?}") };
    assert!(edit.after.contains("= 4096"));
    let [Step::File(FileStep::Set { path, text: None, was: Some(_), .. })] =
        &tuning.undo("", false, "another boot", false)[..]
    else {
        panic!("{tuning:?}")
    };
    assert_eq!(path, Path::new("/etc/sysctl.d/gpuvm.conf"));
    for entry in [files, tuning] {
        assert_eq!(store::text(entry), v1(&format!("history/host/{:04}.json", entry.number)).1);
    }
}

#[test]
fn a_network_of_format_1_is_found_by_name_and_hypervisor() {
    let directory = Path::new(V1).join("networks");
    let uri = "test:///run/gpuvm/node.xml";
    let last = network::last_of(&directory, uri, "lab").unwrap().unwrap();
    assert!(
        last.entry.before.contains("virbr9") && last.entry.active && last.entry.after.is_none()
    );
    assert_eq!(
        store::text(&last.entry),
        v1("networks/aaaaaaaa-2222-4333-8444-555555555555.json").1
    );
    for (uri, name) in [(uri, "labs"), ("qemu:///system", "lab")] {
        assert!(network::last_of(&directory, uri, name).unwrap().is_none(), "{uri} {name}");
    }
    assert!(network::last_of(&directory.join("none"), uri, "lab").unwrap().is_none());
}

#[test]
fn a_guests_record_of_format_1_is_read_and_is_no_other_guests() {
    let (path, text) = v1(&format!("reserved/{UUID}.json"));
    let record = guest::read(&path, &text, UUID).unwrap().unwrap();
    let paths: Vec<&str> = record.made.iter().map(|made| made.path.as_str()).collect();
    assert_eq!(paths, ["/var/lib/libvirt/images/b.raw", "/var/lib/libvirt/images/b.qcow2"]);
    assert_eq!(store::text(&record), text);
    let other = "a3541664-cd58-49b8-8bf7-000000000000";
    assert_eq!(guest::read(&path, &text, other).unwrap(), None);
}

#[test]
fn of_two_networks_that_had_a_name_the_last_one_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (_, text) = v1("networks/aaaaaaaa-2222-4333-8444-555555555555.json");
    for (file, uri, name, at_s) in
        [("1", "a", "lab", 7), ("2", "a", "lab", 6), ("3", "b", "lab", 9), ("4", "a", "x", 9)]
    {
        let mut entry: network::NetworkEntry = serde_json::from_str(&text).unwrap();
        (entry.uri, entry.name) = (uri.into(), name.into());
        (entry.at_s, entry.before) = (at_s, file.into());
        std::fs::write(dir.path().join(format!("{file}.json")), store::text(&entry)).unwrap();
    }
    // The incomplete file of an interrupted run.
    std::fs::write(dir.path().join(".tmpAbCdEf"), "{").unwrap();
    let last = network::last_of(dir.path(), "a", "lab").unwrap().unwrap();
    assert_eq!(last.entry.before, "1");
    std::fs::write(dir.path().join("5.json"), "{").unwrap();
    let error = network::last_of(dir.path(), "a", "lab").unwrap_err().to_string();
    assert!(error.contains("5.json: EOF"), "{error}");
}

#[test]
fn irregular_files_are_refused_with_a_command_to_move_them() {
    let dir = tempfile::tempdir().unwrap();
    let state = Some(dir.path());
    let reserved = dir.path().join(format!("reserved/{UUID}.json"));
    let host = dir.path().join("history/host/0099.json");
    let network = dir.path().join("networks/a.json");
    for path in [&reserved, &host, &network] {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    }
    let read = || {
        [
            (&reserved, guest::forget(state, UUID).unwrap_err(), "record of a guest's resources"),
            (&host, History::of_host(state).unwrap_err(), "history of the host"),
            (
                &network,
                network::last_of(&dir.path().join("networks"), "u", "n").unwrap_err(),
                "record of a network",
            ),
        ]
    };
    for kind in ["pipe", "directory", "bytes"] {
        for path in [&reserved, &host, &network] {
            match kind {
                "pipe" => nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
                "directory" => std::fs::create_dir(path).unwrap(),
                _ => std::fs::write(path, b"\xff").unwrap(),
            }
        }
        for (path, error, noun) in read() {
            let (said, file) = (error.to_string(), path.display());
            assert!(said.starts_with(&format!("{noun} {file}: ")), "{kind}: {said}");
            let hint = error.hint().unwrap();
            let command = format!("`mv {file} {file}.damaged` puts it away; without it ");
            assert!(hint.starts_with(&command), "{kind}: {hint}");
            // The hint works.
            std::fs::rename(path, format!("{file}.damaged-{kind}")).unwrap();
        }
        assert!(guest::forget(state, UUID).unwrap().is_none());
        assert!(History::of_host(state).unwrap().entries.is_empty());
    }
}

/// The errors that a text gives, read as each of the documents.
fn errors(text: &str) -> [HistoryError; 3] {
    let path = Path::new("/x/0001.json");
    [
        store::parse::<Entry>(path, text).unwrap_err(),
        store::parse::<network::NetworkEntry>(path, text).unwrap_err(),
        guest::read(path, text, UUID).unwrap_err(),
    ]
}

#[test]
fn a_damaged_document_is_named_and_a_newer_one_is_not_called_damaged() {
    for (text, reason) in
        [("", "EOF"), ("{}", "missing field"), ("{\"format\": 1}", "missing field"), ("[]", "")]
    {
        for error in errors(text) {
            assert!(matches!(error, HistoryError::Damaged { .. }), "{error:?}");
            let said = error.to_string();
            assert!(said.contains("/x/0001.json") && said.contains(reason), "{text}: {said}");
        }
    }
    // A truncated document, as after a power failure on a file system without ordering.
    let (_, whole) = v1(&format!("history/{UUID}/0001.json"));
    for error in errors(&whole[..whole.len() / 2]) {
        assert!(matches!(error, HistoryError::Damaged { .. }), "{error:?}");
    }
    for text in ["{\"format\": 9}", "{\"format\": 2, \"more\": [1], \"number\": \"x\"}"] {
        for error in errors(text) {
            assert!(matches!(error, HistoryError::Newer { .. }), "{error:?}");
            assert!(!error.hint().unwrap().contains("mv "), "{error}");
            assert!(error.to_string().contains("/x/0001.json: format "), "{error}");
            assert!(error.to_string().contains("reads formats up to 1"), "{error}");
        }
    }
    // A change with a step that only a newer gpuvm has, and one whose known step lacks a field.
    let step = |step: &str| {
        let mut entry: serde_json::Value = serde_json::from_str(&whole).unwrap();
        entry["steps"] = serde_json::json!([{ "step": step, "of": "gpu" }]);
        store::parse::<Entry>(Path::new("/x/0001.json"), &entry.to_string()).unwrap_err()
    };
    let newer = step("polish-lens");
    assert!(newer.to_string().ends_with("/x/0001.json: step `polish-lens` is of a newer gpuvm"));
    assert!(!newer.hint().unwrap().contains("mv "), "{newer}");
    assert!(matches!(step("delete-disk"), HistoryError::Damaged { .. }));
}

#[test]
fn permissions_of_virtual_functions_are_written_replaced_and_removed() {
    use gpuvm_core::domain::guest::Guarded;
    use gpuvm_core::request::Guard;
    let state = tempfile::tempdir().unwrap();
    let uuid = "11111111-2222-4333-8444-555555555555";
    let set = |guarded: &[Guarded]| {
        guest::set_guarded(Some(state.path()), (uuid, "a", "test:///default"), guarded).unwrap()
    };
    let guard = Guard { trust: Some(true), spoof: None };
    let one = Guarded { bdf: "3b:00.2".parse().unwrap(), to: guard, was: Guard::default() };
    assert_eq!(set(&[]), None, "there is nothing to write");
    perform(&set(std::slice::from_ref(&one)).unwrap());
    assert_eq!(set(std::slice::from_ref(&one)), None, "it is written");
    let known = guest::all(Some(state.path())).unwrap();
    assert_eq!(known[0].record.as_ref().unwrap().guarded, [one]);
    perform(&set(&[]).unwrap());
    assert!(guest::all(Some(state.path())).unwrap().is_empty());
}
