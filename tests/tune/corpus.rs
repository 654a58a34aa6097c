//! Every domain document of libvirt's own tests: read and written back byte for byte, tuned without
//! a panic, not changed by a second tune, and undone byte for byte from the history.
//! `libvirt::corpus` does the same on a real libvirtd.

use super::domains::tuned;
use crate::support::{project, run, skip};
use crate::xml::guests::host;
use gpuvm::apply::{DomainStep, FileStep, Step};
use gpuvm::domain::DomainXml;
use gpuvm::history::{Entry, History};
use gpuvm::placement::Occupancy;
use gpuvm::request::PageSize;
use gpuvm::tune::items::PinOrder;
use gpuvm::tune::{Item, Items, Tuned};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Fewer domain documents than any release of libvirt has carried since 2015.
const FEWEST: usize = 500;

/// The directory of libvirt's documents; none, with the reason reported, if they are not available.
pub fn documents() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libvirt-source");
    let (code, _, err) = run(Command::new(project().join("tests/fetch-libvirt")).arg(&dir));
    if code != 0 {
        return skip(format!("no source package of libvirt: {err}"));
    }
    Some(dir)
}

/// The domain documents below a directory: their root is `<domain>`.
pub fn domains(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for below in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(files) = fs::read_dir(&below) else { continue };
        for file in files.map(|entry| entry.unwrap().path()) {
            let Ok(text) = fs::read_to_string(&file) else { continue };
            let root = text.split('<').find(|part| part.starts_with(|c: char| c.is_alphabetic()));
            let word = root.and_then(|root| root.split(|c: char| !c.is_alphanumeric()).next());
            if word == Some("domain") {
                found.push((file, text));
            }
        }
    }
    found.sort();
    found
}

/// The kept part of a change, as it is read back from its file.
pub fn kept(before: &str, after: &str, name: &str) -> Entry {
    let history = History::of(None, "of-no-domain").unwrap();
    let mut entry = history.next("tune", "test:///default", name, 0, before.to_owned());
    entry.after = Some(after.to_owned());
    let Step::File(FileStep::Remember { text: Some(file), .. }) = history.remember(&entry, None)
    else {
        panic!("a change is kept in a file")
    };
    let read: Entry = serde_json::from_str(&file).unwrap();
    assert_eq!(read, entry);
    read
}

/// The definition after a tune and its undoing; neither has a step where nothing was changed.
pub fn undone(before: &DomainXml, tuned: &Tuned) -> String {
    let mut defined = tuned.after.text().to_owned();
    for step in kept(before.text(), &defined, &before.name()).undo(&defined, false, "", true) {
        let Step::Domain(DomainStep::Redefine { xml, before, .. }) = step else {
            panic!("{step:?}")
        };
        assert_eq!(before, defined, "the step would find another definition than this");
        defined = xml;
    }
    defined
}

#[test]
fn libvirts_own_documents_are_kept_and_tuned_without_a_panic() {
    let Some(dir) = documents() else { return };
    let all = domains(&dir);
    assert!(all.len() >= FEWEST, "only {} documents in {}", all.len(), dir.display());
    let (dgx2, unoccupied, items) = (host("dgx-2"), Occupancy::default(), Items::all());
    let (mut read, mut done) = (0, 0);
    let mut wrong = Vec::new();
    for (file, text) in &all {
        let name = file.display();
        let xml = match DomainXml::parse(text) {
            Ok(xml) => xml,
            // Errors that libvirt's tests contain on purpose.
            Err(error) => {
                eprintln!("not read: {name}: {error}");
                continue;
            }
        };
        read += 1;
        assert_eq!(xml.text(), text, "{name}");
        let Ok(first) = tuned(&xml, &dgx2, &unoccupied, &items) else { continue };
        done += 1;
        assert_eq!(first.changes.is_empty(), first.after.text() == text, "{name}");
        assert_eq!(undone(&xml, &first), *text, "{name}");
        match tuned(&first.after, &dgx2, &unoccupied, &items) {
            Ok(second) if second.changes.is_empty() => {}
            Ok(second) => wrong.push(format!("{name}: {:?}", second.changes)),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    eprintln!("{} documents, {read} read, {done} tuned and undone", all.len());
    assert!(read * 20 >= all.len() * 19, "only {read} of {} were read", all.len());
    assert!(done * 4 >= read, "only {done} of {read} could be tuned");
    assert!(wrong.is_empty(), "{} not the same twice:\n{}", wrong.len(), wrong.join("\n"));
}

/// Option sets of `tune` with their items: alone and with the options that change most.
fn definitions_to_edit() -> Vec<(&'static str, Items)> {
    let all = Items::all;
    let cells = Item::On;
    let two = || Item::To(PageSize::TwoMib);
    vec![
        ("", all()),
        ("--all --huge-pages 2M", Items { huge_pages: two(), ..all() }),
        ("--all --huge-pages 1G", Items { huge_pages: Item::To(PageSize::OneGib), ..all() }),
        ("--all --pins thread", Items { pins: Item::To(PinOrder::Thread), ..all() }),
        ("--all --pins off", Items { pins: Item::Off, ..all() }),
        ("--huge-pages 2M", Items { huge_pages: two(), ..Items::default() }),
        ("--cells on --pins on", Items { cells, pins: Item::On, ..Items::default() }),
        ("--memory-rounding 2M", Items { memory_rounding: two(), ..Items::default() }),
        ("--pcie on", Items { pcie: Item::On, ..Items::default() }),
    ]
}

/// `make test` takes one in this many triples of document, host and option set; GPUVM_LAW=all takes
/// all.
const STRIDE: usize = 83;

#[test]
fn a_second_tune_of_any_domain_on_any_host_changes_nothing() {
    let Some(dir) = documents() else { return };
    let stride = if std::env::var("GPUVM_LAW").is_ok_and(|all| all == "all") { 1 } else { STRIDE };
    let hosts = ["dgx-1", "dgx-2", "dgx-a100", "dgx-h100", "dual-socket", "h100-guest"];
    let hosts: Vec<_> = hosts.into_iter().map(|name| (name, host(name))).collect();
    let (definitions_to_edit, unoccupied, began) =
        (definitions_to_edit(), Occupancy::default(), Instant::now());
    let (mut done, mut tried) = (0, 0);
    let mut wrong = Vec::new();
    for (file, text) in &domains(&dir) {
        let Ok(xml) = DomainXml::parse(text) else { continue };
        for (host, topology) in &hosts {
            for (told, items) in &definitions_to_edit {
                tried += 1;
                if tried % stride != 0 {
                    continue;
                }
                let Ok(first) = tuned(&xml, topology, &unoccupied, items) else { continue };
                done += 1;
                let place = || format!("{} on {host}, tune {told}", file.display());
                match tuned(&first.after, topology, &unoccupied, items) {
                    Ok(second) if second.changes.is_empty() => {
                        assert_eq!(second.after.text(), first.after.text(), "{}", place());
                    }
                    Ok(second) => wrong.push(format!("{}: {:?}", place(), second.changes)),
                    Err(error) => wrong.push(format!("{}: {error}", place())),
                }
            }
        }
    }
    eprintln!("{done} of {tried} tuned twice, {:.1} s", began.elapsed().as_secs_f64());
    assert!(done * stride * 4 >= tried, "only {done} of {} could be tuned", tried / stride);
    assert!(wrong.is_empty(), "{} not the same twice:\n{}", wrong.len(), wrong.join("\n"));
}
