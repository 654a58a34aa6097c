//! The effect of each edit on a document: the lines removed and added, and nothing else.

use super::examples::{HAND, disk, examples, variant};
use super::guests::made;
use crate::cpuset::NodeId;
use crate::domain::edit::DomainEdit;
use crate::domain::guest::{Made, Record, Reserved};
use crate::domain::placed::DiskSeat;
use crate::domain::{DomainXml, DomainXmlError};
use crate::memsize::MemSize;
use crate::request::Request;
use std::collections::BTreeSet;

/// The lines that differ: `-` removed, `+` added, in order.
pub fn changed(before: &str, after: &str) -> Vec<String> {
    let (a, b): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let mut common = vec![vec![0_usize; b.len() + 1]; a.len() + 1];
    for (i, x) in a.iter().enumerate().rev() {
        for (j, y) in b.iter().enumerate().rev() {
            let longest = common[i + 1][j].max(common[i][j + 1]);
            common[i][j] = if x == y { common[i + 1][j + 1] + 1 } else { longest };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            (i, j) = (i + 1, j + 1);
        } else if i < a.len() && (j == b.len() || common[i + 1][j] >= common[i][j + 1]) {
            lines.push(format!("-{}", a[i]));
            i += 1;
        } else {
            lines.push(format!("+{}", b[j]));
            j += 1;
        }
    }
    lines
}

#[test]
fn each_edit_changes_its_lines_only() {
    for (edit, lines) in examples() {
        let before = DomainXml::parse(HAND).unwrap();
        let mut after = before.clone();
        assert_eq!(before.would_change(&edit), !lines.is_empty(), "{edit:?}");
        after.apply(&edit).unwrap();
        let changed = changed(HAND, after.text());
        let wanted: Vec<&str> = lines.lines().filter(|line| line.starts_with(['-', '+'])).collect();
        assert_eq!(changed, wanted, "{edit:?} gave\n{}", changed.join("\n"));
        assert!(!after.would_change(&edit), "{edit:?} has more to do on\n{}", after.text());
    }
}

#[test]
fn every_edit_has_an_example() {
    let seen: BTreeSet<usize> = examples().iter().map(|(edit, _)| variant(edit)).collect();
    assert!(seen.iter().copied().eq(0..seen.len()), "an edit without example: {seen:?}");
    assert_eq!(seen.len(), 26 + super::settings::VARIANTS, "number of variants");
}

#[test]
fn many_edits_at_once_are_the_same_as_one_by_one() {
    let mut seen = BTreeSet::new();
    // Settings are applied one by one, since several of them are about the same element. So are the
    // UUID's edit, which comes last, and the new name, number of plugged vCPUs and nodes of a guest
    // without cells, which are of the elements of other edits, too.
    let single = |edit: &DomainEdit| {
        use DomainEdit::{Rename, Set, SetMemoryNodes, SetPlugged, SetUuid};
        let is_alike = matches!(edit, Rename { .. } | SetPlugged { .. } | SetMemoryNodes { .. });
        is_alike || matches!(edit, Set { .. } | SetUuid { .. })
    };
    let all = examples().into_iter().filter(|(edit, _)| !single(edit));
    let all = all.filter(|(edit, _)| seen.insert(variant(edit)));
    let edits: Vec<DomainEdit> = all.map(|(edit, _)| edit).collect();
    let (mut at_once, mut each) =
        (DomainXml::parse(HAND).unwrap(), DomainXml::parse(HAND).unwrap());
    at_once.apply_all(&edits).unwrap();
    edits.iter().for_each(|edit| each.apply(edit).unwrap());
    assert_eq!(changed(each.text(), at_once.text()), Vec::<String>::new());
}

#[test]
fn an_edit_that_would_break_the_document_is_refused_and_changes_nothing() {
    let mut xml = DomainXml::parse(HAND).unwrap();
    let error = xml.apply(&DomainEdit::SetName { name: "a\u{1}b".into() }).unwrap_err();
    assert!(matches!(error, DomainXmlError::Syntax { line: 4, .. }), "{error}");
    assert_eq!(xml.text(), HAND);
}

#[test]
fn documents_without_line_breaks_get_none() {
    let mut xml = DomainXml::parse("<domain><name>a</name><devices/></domain>").unwrap();
    let pages = |node| Reserved {
        node: NodeId(node),
        page_kib: MemSize::from_gib(1),
        count: 723,
        boot: "0b7f".into(),
    };
    let record = Record {
        request: Request::for_gpus(1),
        made: vec![made("<&>\t\n'\"")],
        bound: Vec::new(),
        reserved: vec![pages(0), pages(1)],
        guarded: Vec::new(),
        vgpus: Vec::new(),
        nccl: None,
        known: Vec::new(),
        user: None,
        assumed: None,
    };
    let devices = Vec::new();
    let metadata =
        DomainEdit::SetMetadata { record: Box::new(record.clone()), partition: None, devices };
    let disk = DiskSeat {
        disk: disk("/x"),
        target: "vda".into(),
        queues: 2,
        iothreads: vec![],
        address: None,
    };
    xml.apply_all(&[metadata, DomainEdit::SetDisks { disks: vec![disk] }]).unwrap();
    assert!(!xml.text().contains('\n'), "{}", xml.text());
    assert_eq!(xml.record().unwrap(), Some(record));
}

#[test]
fn a_disk_goes_from_the_devices_and_where_asked_from_what_is_remembered() {
    let xml = DomainXml::parse("<domain><name>a</name><devices/></domain>").unwrap();
    let (odd, other) = ("/x'<y>&.seed", "/z.os");
    let seat = |path: &str| DiskSeat {
        disk: disk(path),
        target: "vda".into(),
        queues: 1,
        iothreads: Vec::new(),
        address: None,
    };
    for (remembered, left) in [(vec![odd, other], vec![other]), (vec![odd], vec![])] {
        let mut xml = xml.clone();
        let made: Vec<Made> = remembered.iter().map(|path| made(path)).collect();
        let record = Box::new(Record {
            request: Request::for_gpus(1),
            made: made.clone(),
            bound: Vec::new(),
            reserved: Vec::new(),
            guarded: Vec::new(),
            vgpus: Vec::new(),
            nccl: None,
            known: Vec::new(),
            user: None,
            assumed: None,
        });
        let metadata = DomainEdit::SetMetadata { record, partition: None, devices: Vec::new() };
        let disks = vec![seat(odd), DiskSeat { target: "vdb".into(), ..seat(other) }];
        xml.apply_all(&[metadata, DomainEdit::SetDisks { disks }]).unwrap();
        xml.apply(&DomainEdit::DropDisk { path: odd.into(), forget: false }).unwrap();
        assert!(xml.disk(odd).is_none() && xml.disk(other).is_some(), "{}", xml.text());
        assert_eq!(xml.made(), made);
        let forget = DomainEdit::DropDisk { path: odd.into(), forget: true };
        xml.apply(&forget).unwrap();
        assert!(!xml.would_change(&forget));
        let paths: Vec<String> = xml.made().into_iter().map(|made| made.path).collect();
        assert_eq!(paths, left, "{}", xml.text());
        assert!(xml.record().unwrap().is_some(), "{}", xml.text());
    }
}

#[test]
fn a_mediated_device_comes_and_goes() {
    let mut xml = DomainXml::parse(HAND).unwrap();
    let uuid = || "6ab1f0c4-44aa-4d06-8b4e-9cf1c0f0ce6b".to_owned();
    xml.apply(&DomainEdit::AddMdev { uuid: uuid() }).unwrap();
    assert_eq!(xml.mdevs(), [uuid()]);
    xml.apply(&DomainEdit::DropMdev { uuid: uuid() }).unwrap();
    assert_eq!(xml.text(), HAND);
}
