//! Damaged records: they give an error or a host, never a panic or an endless run.

use crate::support::project;
use crate::support::tree::{host_text, scratch, unpack};
use gpuvm::discover::source;
use gpuvm::topology::file::{from_json, to_json};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longer than any damaged record takes, on a busy machine and without optimization.
const END: Duration = Duration::from_secs(90);

/// Texts in place of a number, a list, a size or a name.
const GARBAGE: [&str; 24] = [
    "",
    "\n",
    "-1",
    "0",
    "1",
    "x",
    "0x",
    "0xffffffffffffffff",
    "99999999999999999999",
    "4294967295",
    "65535",
    "65536",
    "2147483648",
    "0-4294967295",
    "0-65535",
    "5-1",
    "0-1,0-1",
    ",,,",
    "(null)",
    "é",
    "\u{0}\u{0}",
    "8.0 GT/s PCIe",
    "Node 0 MemTotal: 99999999999999999 kB",
    "0x0 0xffffffffffffffff 0x200",
];

/// Damages a file or link. Returns the data to restore it.
fn damage(path: &Path, kind: u8, text: &str) {
    let link = fs::read_link(path).ok();
    let old = fs::read(path).unwrap_or_default();
    if link.is_some() || path.is_file() {
        fs::remove_file(path).unwrap();
    } else {
        return;
    }
    match kind {
        0 => {}
        1 => fs::write(path, &old[..old.len() / 2]).unwrap(),
        2 => fs::write(path, b"\xff\xfe\x00\x80").unwrap(),
        3 => fs::create_dir(path).unwrap(),
        4 => symlink(path.file_name().unwrap(), path).unwrap(),
        5 => symlink("/etc/passwd", path).unwrap(),
        6 => symlink(format!("../../../{text}").replace('\0', ""), path).unwrap(),
        7 => nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        8 => fs::write(path, old.repeat(5000)).unwrap(),
        9 => fs::write(path, [&old[..], b" ", text.as_bytes()].concat()).unwrap(),
        _ => fs::write(path, text).unwrap(),
    }
}

/// Puts a file or link back.
fn restore(path: &Path, link: Option<&Path>, content: &[u8]) {
    if path.is_dir() && !path.is_symlink() {
        fs::remove_dir(path).unwrap();
    } else if path.is_symlink() || path.exists() {
        fs::remove_file(path).unwrap();
    }
    match link {
        Some(target) => symlink(target, path).unwrap(),
        None => fs::write(path, content).unwrap(),
    }
}

/// Files and links of a directory by kind: their name without digits, so that the many files of
/// every pcpu do not dominate.
fn by_kind(root: &Path) -> Vec<Vec<PathBuf>> {
    let mut kinds = BTreeMap::<String, Vec<PathBuf>>::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        let mut entries: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() && !path.is_symlink() {
                dirs.push(path);
                continue;
            }
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            let area: String = name.chars().filter(|c| !c.is_ascii_digit()).take(14).collect();
            let name = name.rsplit('/').next().unwrap().replace(|c: char| c.is_ascii_digit(), "");
            kinds.entry(format!("{area} {name}")).or_default().push(path);
        }
    }
    kinds.into_values().collect()
}

/// Damages a record again and again.
fn damage_tree(name: &str, cases: u32) {
    let dir = scratch();
    let root = dir.path().join(name);
    unpack(&host_text(name), &root).unwrap();
    let whole = source::load(&root).unwrap();
    let kinds = by_kind(&root);
    assert!(kinds.len() > 50, "{} kinds of files", kinds.len());
    let one =
        (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..14u8, 0..GARBAGE.len());
    let damages = prop::collection::vec(one, 1..4);
    let mut runner =
        TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let refused = std::cell::Cell::new(0);
    runner
        .run(&damages, |damages| {
            let mut undo: Vec<(PathBuf, Option<PathBuf>, Vec<u8>)> = Vec::new();
            for (kind, place, how, text) in damages {
                let kind = kind.get(&kinds);
                let path = place.get(kind).clone();
                if undo.iter().any(|(done, ..)| *done == path) {
                    continue;
                }
                let content = fs::read(&path).unwrap_or_default();
                undo.push((path.clone(), fs::read_link(&path).ok(), content));
                damage(&path, how, GARBAGE[text]);
            }
            let start = Instant::now();
            let loaded = source::load(&root);
            let took = start.elapsed();
            for (path, link, content) in undo.iter().rev() {
                restore(path, link.as_deref(), content);
            }
            prop_assert!(took < END, "took {took:?}");
            match loaded {
                Ok(host) => prop_assert_eq!(from_json(&to_json(&host)).unwrap(), host),
                Err(error) => {
                    refused.set(refused.get() + 1);
                    let error = error.to_string();
                    prop_assert!(error.contains(root.to_str().unwrap()), "{}", error);
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(refused.get() > cases / 20, "only {} of {cases} were refused", refused.get());
    assert_eq!(source::load(&root).unwrap(), whole, "the damage was undone");
}

#[test]
fn a_damaged_tree_is_an_error_or_a_host() {
    damage_tree("dgx-2", 60);
    damage_tree("dual-socket", 300);
}

#[test]
fn a_damaged_file_is_an_error_or_a_host() {
    let file = project().join("topologies/dual-socket.json");
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut runner =
        TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let one = (any::<prop::sample::Index>(), 0..6u8, 0..GARBAGE.len());
    runner
        .run(&prop::collection::vec(one, 1..4), |damages| {
            let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            for (place, how, garbage) in damages {
                let at = place.index(lines.len());
                let garbage = GARBAGE[garbage];
                let line = lines[at].clone();
                let key = line.split_once(": ").map_or("", |(key, _)| key);
                match how {
                    0 => drop(lines.remove(at)),
                    1 => lines.insert(at, line),
                    2 => lines.truncate(at + 1),
                    3 => lines[at] = format!("{key}: {garbage},"),
                    4 => lines[at] = format!("{key}: {},", serde_json::json!(garbage)),
                    _ => lines[at].push_str(garbage),
                }
            }
            if let Ok(host) = from_json(&lines.join("\n")) {
                prop_assert_eq!(from_json(&to_json(&host)).unwrap(), host);
            }
            Ok(())
        })
        .unwrap();
}
