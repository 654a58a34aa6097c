//! No import cycles between files: the imports of each file in a layer are read from its paths, and
//! none may lead back to itself. An item that a third file only re-exports (`pub use`) counts as
//! imported from the file that defines it. A module and the files below it count as one, so imports
//! between these are ignored. The modules right below a crate's root are in no circle either, with
//! all that is below them.

use crate::rooms::sources;
use crate::support::project;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The crates and, of the one whose modules hang below another, that module.
const ROOMS: [(&str, &[&str]); 4] = [("core", &[]), ("host", &[]), ("ops", &[]), ("cli", &["cli"])];

/// A module's path from the root of its crate, or a path in it.
type Names = Vec<String>;

/// The parsed parts of a file.
struct File {
    /// Its code without comments and without its tests.
    code: String,
    /// The items that it imports by each name; those of `use x::*` by `*` and their number.
    imports: BTreeMap<String, Names>,
}

/// The files of a room by their modules.
struct Room(BTreeMap<Names, File>);

/// A path of a use as its parts.
fn names(path: &str) -> Names {
    path.split("::").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

/// The tree of a `use`, flat: the imported items, each with the name that it has here.
fn flat(tree: &str, before: &[String], found: &mut Vec<(String, Names)>) {
    let tree = tree.trim();
    if let Some((head, rest)) = tree.split_once('{') {
        let before = [before, &names(head)].concat();
        let (mut depth, mut start) = (0, 0);
        let inner = rest.trim_end().strip_suffix('}').unwrap_or(rest);
        for (at, letter) in inner.char_indices().chain([(inner.len(), ',')]) {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    flat(&inner[start..at], &before, found);
                    start = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    if tree.is_empty() {
        return;
    }
    let (path, alias) = match tree.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias.trim().to_owned())),
        None => (tree, None),
    };
    let mut path = [before, &names(path)].concat();
    if path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let name = alias.or_else(|| path.last().cloned()).unwrap_or_default();
    let name = if name == "*" { format!("*{}", found.len()) } else { name };
    found.push((name, path));
}

/// Every path of a code that has several parts.
fn paths(code: &str) -> impl Iterator<Item = Names> + '_ {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    code.split(move |letter| !is_part(letter)).filter(|word| word.contains("::")).map(names)
}

impl File {
    /// Reads a file of a module.
    fn read(text: &str) -> File {
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let mut code = String::new();
        let mut found = Vec::new();
        let mut using: Option<String> = None;
        for line in lines {
            let begins = |line: &str| {
                let line = line.trim_start();
                let line =
                    line.strip_prefix("pub").map_or(line, |rest| match rest.strip_prefix('(') {
                        Some(rest) => rest.split_once(')').map_or(rest, |(_, rest)| rest),
                        None => rest,
                    });
                line.trim_start().strip_prefix("use ").map(str::to_owned)
            };
            match (&mut using, begins(line)) {
                (Some(tree), _) => tree.push_str(line),
                (None, Some(tree)) => using = Some(tree),
                (None, None) => {
                    code.push_str(line);
                    code.push('\n');
                }
            }
            if let Some(tree) = using.take_if(|tree| tree.contains(';')) {
                flat(tree.split(';').next().unwrap_or_default(), &[], &mut found);
            }
        }
        File { code, imports: found.into_iter().collect() }
    }

    /// Whether it defines an item of this name.
    fn defines(&self, name: &str) -> bool {
        let kinds = ["struct", "enum", "trait", "type", "fn", "const", "static"];
        let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        kinds.iter().any(|kind| {
            let item = format!("{kind} {name}");
            self.code.match_indices(&item).any(|(at, _)| is_end(&self.code[at + item.len()..]))
        })
    }
}

impl Room {
    /// Reads the files below a folder, whose modules hang below `root`.
    fn read(folder: &Path, root: &[&str]) -> Room {
        let mut files = BTreeMap::new();
        for (path, text) in sources(folder) {
            let place = path.strip_prefix(folder).unwrap().with_extension("");
            let mut parts: Names = root.iter().map(|name| (*name).to_owned()).collect();
            parts.extend(place.iter().map(|part| part.to_str().unwrap().to_owned()));
            if parts.iter().any(|part| part == "tests") {
                continue;
            }
            if matches!(parts.last().map(String::as_str), Some("mod" | "lib")) {
                parts.pop();
            }
            files.insert(parts, File::read(&text));
        }
        // The crate root above a folder, which only declares its modules.
        files.entry(Names::new()).or_insert_with(|| File::read(""));
        Room(files)
    }

    /// A path of a module's code from the root of the crate; `None` if it leads out of it.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module, rest].concat()),
            "super" => {
                let ups = path.iter().take_while(|name| *name == "super").count();
                Some([&module[..module.len().checked_sub(ups)?], &path[ups..]].concat())
            }
            _ => {
                let own = [module, path].concat();
                let import = self.0[module].imports.get(first);
                match import {
                    _ if self.0.contains_key(&own[..module.len() + 1]) => Some(own),
                    Some(import) if import.first() != Some(first) => {
                        self.absolute(module, &[&import[..], rest].concat())
                    }
                    _ => None,
                }
            }
        }
    }

    /// The file that a path from the root ends in.
    fn file(&self, path: &[String], seen: &mut BTreeSet<Names>) -> Names {
        let is_module = |end: &usize| self.0.contains_key(&path[..*end]);
        let end = (1..=path.len()).take_while(is_module).last().unwrap_or(0);
        let (module, rest) = path.split_at(end);
        let Some(name) = rest.first().filter(|_| seen.insert(path.to_vec())) else {
            return module.to_vec();
        };
        let file = &self.0[module];
        if file.defines(name) {
            return module.to_vec();
        }
        let absolute = |import: &Names| self.absolute(module, import);
        if let Some(path) = file.imports.get(name).and_then(absolute) {
            return self.file(&[&path[..], &rest[1..]].concat(), seen);
        }
        let globs = file.imports.iter().filter(|(name, _)| name.starts_with('*'));
        for path in globs.filter_map(|(_, path)| absolute(&path[..path.len() - 1].to_vec())) {
            let found = self.file(&[&path[..], rest].concat(), seen);
            if self.0[&found].defines(name) {
                return found;
            }
        }
        module.to_vec()
    }

    /// The files that each one uses.
    fn uses(&self) -> BTreeMap<Names, BTreeSet<Names>> {
        let of = |module: &Names, file: &File| -> BTreeSet<Names> {
            let all = file.imports.values().cloned().chain(paths(&file.code));
            let all = all.map(|mut path| {
                path.pop_if(|last| last == "*");
                path
            });
            let found = all.filter_map(|path| self.absolute(module, &path));
            let found = found.map(|path| self.file(&path, &mut BTreeSet::new()));
            found.filter(|other| !other.starts_with(module) && !module.starts_with(other)).collect()
        };
        self.0.iter().map(|(module, file)| (module.clone(), of(module, file))).collect()
    }

    /// The folders and files right below a module that each of them uses.
    fn uses_below(&self, root: &[&str]) -> BTreeMap<Names, BTreeSet<Names>> {
        let depth = root.len();
        let top = |module: &Names| {
            let is_below = module.len() > depth && module.iter().zip(root).all(|(a, b)| a == b);
            is_below.then(|| module[..=depth].to_vec())
        };
        let mut tops = BTreeMap::<Names, BTreeSet<Names>>::new();
        for (module, others) in self.uses() {
            let Some(own) = top(&module) else { continue };
            let others = others.iter().filter_map(top).filter(|other| *other != own);
            tops.entry(own.clone()).or_default().extend(others);
        }
        tops
    }
}

/// Each import that is part of a cycle.
fn circles(uses: &BTreeMap<Names, BTreeSet<Names>>) -> Vec<String> {
    let mut found = Vec::new();
    for (module, others) in uses {
        for other in others.iter().filter(|other| reaches(uses, other, module)) {
            found.push(format!("{} -> {}", module.join("::"), other.join("::")));
        }
    }
    found
}

/// Whether the files that a module uses, and those that they use, lead to another.
fn reaches(uses: &BTreeMap<Names, BTreeSet<Names>>, from: &Names, to: &Names) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        if module == to {
            return true;
        }
        next.extend(uses[module].iter().filter(|other| seen.insert(*other)));
    }
    false
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    for (folder, root) in ROOMS {
        let room = Room::read(&project().join("src").join(folder), root);
        assert!(room.0.len() > 50, "{folder}: {} files", room.0.len());
        assert_eq!(circles(&room.uses()), [""; 0], "of {folder}");
    }
}

#[test]
fn no_modules_use_each_other_in_a_circle() {
    for (folder, root) in ROOMS {
        let room = Room::read(&project().join("src").join(folder), root);
        assert_eq!(circles(&room.uses_below(root)), [""; 0], "of {folder}");
    }
}

#[test]
fn a_circle_by_way_of_a_third_file_is_seen() {
    let files = [
        ("lib.rs", "pub mod a;\npub mod b;\nmod c;\npub use c::{Third as Last, *};\n"),
        ("a.rs", "use crate::b::{\n    self,\n    Second,\n};\npub struct First;\n"),
        ("b.rs", "pub struct Second;\nfn f() -> crate::Last { todo(super::a2::X) }\n// crate::a\n"),
        (
            "c.rs",
            "pub struct Third;\nmod low;\npub use low::deep;\nuse super::a as x;\nfn g(_: \
             x::First) {}\n",
        ),
        (
            "c/low.rs",
            "use super::Third;\npub fn deep() {}\n#[cfg(test)]\nmod tests {\n    use \
             crate::b;\n}\n",
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("c")).unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let room = Room::read(folder.path(), &[]);
    assert_eq!(circles(&room.uses()), ["a -> b", "b -> c", "c -> a"]);
    assert_eq!(circles(&room.uses_below(&[])), ["a -> b", "b -> c", "c -> a"]);
}
