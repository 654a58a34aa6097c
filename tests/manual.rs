//! The pages of section 7: each renders without a warning, its commands exist, its lists are those
//! of the program.

use crate::hints::{parses, shell_words};
use crate::support::{gpuvm, project, run, skip};
use clap::CommandFactory as _;
use gpuvm::check;
use gpuvm::cli::args::Cli;
use gpuvm::cli::error::{EXIT_BUG, EXIT_DONE, EXIT_FAILED, EXIT_FOUND, EXIT_USAGE};
use gpuvm::cli::manual;
use gpuvm::cli::offer::reads_records;
use gpuvm::finding::{Rule, Says, Severity};
use gpuvm::network::doctor;
use gpuvm::verify;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The pages with their names, as roff.
pub fn pages() -> BTreeMap<String, String> {
    let there = fs::read_dir(project().join("man")).unwrap();
    let names = there.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages = names.filter(|name| name.ends_with(".7"));
    pages
        .map(|name| {
            let text = fs::read_to_string(project().join("man").join(&name)).unwrap();
            (name, text)
        })
        .collect()
}

/// A line of roff as it is read: without fonts and with its characters.
pub fn plain(line: &str) -> String {
    let mut text = line.to_owned();
    for (roff, is) in [
        ("\\fB", ""),
        ("\\fI", ""),
        ("\\fR", ""),
        ("\\:", ""),
        ("\\&", ""),
        ("\\-", "-"),
        ("\\(aq", "'"),
        ("\\*(Aq", "'"),
        ("\\(ha", "^"),
        ("\\(ti", "~"),
        ("\\(ga", "`"),
        ("\\e", "\\"),
    ] {
        text = text.replace(roff, is);
    }
    text
}

/// Our commands in the examples of a page: the typed words, without comments, pipes and
/// redirections.
fn examples(page: &str) -> Vec<String> {
    let blocks = page.split("\n.EX\n").skip(1).map(|rest| rest.split("\n.EE").next().unwrap());
    // A line that ends with a backslash goes on in the next one.
    let lines = blocks.map(|block| plain(block).replace("\\\n", " "));
    let lines: Vec<String> =
        lines.flat_map(|block| block.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let ours = lines.iter().filter_map(|line| line.strip_prefix("gpuvm ").map(str::to_owned));
    let ends = [" #", " >", " |", " <", " &&"];
    let cut = |line: String| {
        let end = ends.iter().filter_map(|end| line.find(end)).min().unwrap_or(line.len());
        line[..end].trim().to_owned()
    };
    ours.map(cut).collect()
}

/// The texts in bold.
pub fn bold(roff: &str) -> Vec<String> {
    let parts = roff.split("\\fB").skip(1);
    parts.map(|rest| plain(rest.split("\\fR").next().unwrap())).collect()
}

/// Our commands in the sentences of a page: `gpuvm` and what follows it in bold.
fn named(page: &str) -> Vec<String> {
    let bold = bold(page).into_iter();
    bold.filter_map(|text| text.strip_prefix("gpuvm ").map(str::to_owned)).collect()
}

/// The fault of a command in a sentence: a verb or option that does not exist.
fn stranger(command: &str) -> Option<String> {
    let mut at = &{
        let mut root = Cli::command();
        root.build();
        root
    };
    // What follows is a command of the guest's.
    for word in command.split_whitespace().take_while(|word| *word != "--") {
        if let Some(option) = word.strip_prefix("--") {
            let option = option.split('=').next().unwrap();
            let has = |arg: &clap::Arg| {
                let aliases = arg.get_all_aliases().unwrap_or_default();
                arg.get_long() == Some(option) || aliases.contains(&option)
            };
            if !at.get_arguments().any(has) {
                return Some(word.to_owned());
            }
        } else if let Some(next) = at.find_subcommand(word) {
            at = next;
        } else if at.get_subcommands().next().is_some() {
            return Some(word.to_owned());
        }
    }
    None
}

#[test]
fn every_command_of_the_pages_is_one_of_ours() {
    let (mut typed, mut said, mut wrong) = (0, 0, Vec::new());
    for (name, page) in pages() {
        for command in examples(&page) {
            typed += 1;
            if !parses(&shell_words(&command)) {
                wrong.push(format!("{name}: gpuvm {command}"));
            }
        }
        for command in named(&page) {
            said += 1;
            if let Some(word) = stranger(&command) {
                wrong.push(format!("{name}: `{word}` of gpuvm {command}"));
            }
        }
    }
    assert!(wrong.is_empty(), "not ours:\n{}", wrong.join("\n"));
    assert!(typed > 60 && said > 40, "{typed} examples, {said} commands in sentences");
}

/// The least number of examples that must be run, so that the test proves something.
const LEAST_RUN: usize = 12;

/// The least number of sections that comments name.
const LEAST_NAMED: usize = 80;

/// The arguments of an example that only reads a recorded host, or asks libvirt's test driver; none
/// of another.
fn of_a_record(command: &str) -> Option<Vec<String>> {
    let mut words = shell_words(command);
    let verb: Vec<&str> = words.iter().map(String::as_str).collect();
    // Its domains and networks are made up, and forgotten at the end.
    if verb.contains(&"test:///default") {
        return Some(words);
    }
    if !reads_records(verb.iter().copied()) || verb.contains(&"--count") {
        return None;
    }
    // Guests of libvirt and files of the reader's are not of the record.
    let takes_guests = ["check", "set", "tune", "list"].contains(&verb[0]);
    let of_here = words.iter().filter(|word| project().join(word).exists()).count();
    let names_a_host = verb.contains(&"--host");
    let writes = verb.contains(&"-o") || verb.contains(&"--output");
    if writes || takes_guests && of_here < 2 || names_a_host && of_here == 0 {
        return None;
    }
    if !names_a_host {
        words.extend(["--host".to_owned(), "topologies/dgx-2.json".to_owned()]);
    }
    Some(words)
}

#[test]
fn the_examples_that_read_a_record_do_it() {
    let mut ran = BTreeSet::new();
    for (name, page) in pages() {
        for words in examples(&page).iter().filter_map(|command| of_a_record(command)) {
            let args: Vec<&str> = words.iter().map(String::as_str).collect();
            let (code, out, err) = run(gpuvm(&args).current_dir(project()));
            assert!([0, 3].contains(&code) && !out.is_empty(), "{name}: {args:?}: {code} {err}");
            ran.insert(words.join(" "));
        }
    }
    assert!(ran.len() >= LEAST_RUN, "{ran:?}");
}

/// Every page is shown whole, without a warning of the formatter and as wide as the terminal.
#[test]
fn the_pages_are_shown() {
    for name in pages().into_keys() {
        let mut man = std::process::Command::new("man");
        man.args(["--warnings", "-l"]).arg(project().join("man").join(&name));
        let Ok(shown) = man.env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8").output() else {
            return skip("man is not installed");
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&shown.stdout), text(&shown.stderr));
        // A terminal has no pages.
        let is_of_paper = |line: &&str| line.ends_with("table text block will not fit on one page");
        let err: String = err.lines().filter(|line| !is_of_paper(line)).collect();
        if out.is_empty() && !err.contains("warning") {
            return skip(format!("man shows no file: {err}"));
        }
        assert_eq!((shown.status.code(), err.as_str()), (Some(0), ""), "{name}");
        for heading in ["NAME", "DESCRIPTION", "SEE ALSO"] {
            assert!(out.lines().any(|line| line == heading), "{name} has no {heading}");
        }
        let wide: Vec<&str> = out.lines().filter(|line| line.chars().count() > 100).collect();
        assert!(wide.is_empty(), "{name}: {wide:?}");
    }
}

/// Pages of both sections that a page of either names exist.
#[test]
fn the_pages_name_pages_that_exist() {
    let mut all = pages();
    all.extend(gpuvm::cli::pages::all().unwrap());
    let mut seen = 0;
    for (name, page) in &all {
        let text = plain(&page.replace('\n', " "));
        for (at, _) in text.match_indices("gpuvm-") {
            let named = &text[at..];
            let end = named.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            let (page, rest) = named.split_at(end.unwrap_or(named.len()));
            let Some(section) = rest.trim_start().strip_prefix('(').and_then(|r| r.get(..2)) else {
                continue;
            };
            seen += 1;
            let file = format!("{page}.{}", section.trim_end_matches(')'));
            assert!(project().join("man").join(&file).exists(), "{name} names {file}");
        }
    }
    assert!(seen > 200, "{seen} pages are named");
}

/// All Rust files below a directory.
fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

/// Comments cite the source of a fact as `gpuvm-hardware(7), BOARDS`.
#[test]
fn the_sections_that_comments_name_exist() {
    let all = pages();
    let heads: BTreeMap<&str, Vec<String>> = all
        .iter()
        .map(|(name, page)| {
            let lines = page.lines().filter_map(|line| line.strip_prefix(".SH "));
            (name.as_str(), lines.map(plain).collect())
        })
        .collect();
    let mut files = Vec::new();
    sources(&project().join("src"), &mut files);
    sources(&project().join("tests"), &mut files);
    let mut seen = 0;
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let comments = text.lines().map(|line| {
            line.trim_start().trim_start_matches('/').trim_start_matches('!').trim_start()
        });
        let text = comments.collect::<Vec<_>>().join(" ");
        // A folder that is not in the repository.
        assert!(!text.contains(concat!("spec", "/")), "{}", file.display());
        for (at, _) in text.match_indices("(7), ") {
            let page = text[..at].rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '-').next();
            let Some(heads) = heads.get(format!("{}.7", page.unwrap()).as_str()) else { continue };
            let section = &text[at + "(7), ".len()..];
            if section.starts_with(|c: char| c.is_ascii_uppercase()) {
                seen += 1;
                let is_one = heads.iter().any(|head| section.starts_with(head.as_str()));
                let named: String = section.chars().take(40).collect();
                let page = page.unwrap();
                assert!(is_one, "{}: {page}(7), {named}", file.display());
            }
        }
    }
    assert!(seen >= LEAST_NAMED, "{seen} sections are named");
}

/// The rules that a section of gpuvm-codes(7) lists, each with its severity.
fn listed(page: &str, section: &str) -> BTreeMap<String, Severity> {
    let start = page.find(&format!("\n.SH {section}\n")).unwrap_or_else(|| panic!("{section}"));
    let text = page[start + 1..].split("\n.SH ").next().unwrap();
    let tags = text.split("\n.TP 4\n").skip(1);
    let mut rules = BTreeMap::new();
    for tag in tags {
        let (head, sentence) = tag.split_once('\n').unwrap();
        let head = plain(head);
        let (rule, severity) = head.split_once(' ').unwrap_or_else(|| panic!("{head}"));
        let severity = match severity {
            "(error)" => Severity::Error,
            "(warning)" => Severity::Warning,
            "(note)" => Severity::Note,
            other => panic!("{rule}: {other}"),
        };
        assert!(sentence.split("\n.").next().unwrap().ends_with('.'), "{rule}: {sentence}");
        assert!(rules.insert(rule.to_owned(), severity).is_none(), "{rule} stands there twice");
    }
    rules
}

/// Rules as a page should list them.
fn as_listed<'r>(rules: impl Iterator<Item = &'r Rule>) -> BTreeMap<String, Severity> {
    rules.map(|rule| (rule.id.to_owned(), rule.severity)).collect()
}

#[test]
fn gpuvm_codes_lists_every_rule_and_no_other() {
    let page = &pages()["gpuvm-codes.7"];
    let check = as_listed(check::InXml::rules());
    assert_eq!(listed(page, "CHECK"), check);
    let mut only_verify = as_listed(verify::Differs::rules());
    only_verify.retain(|rule, _| !check.contains_key(rule));
    assert_eq!(listed(page, "VERIFY"), only_verify);
    let top = as_listed(gpuvm_core::load::OWN_RULES.iter());
    assert_eq!(listed(page, "TOP"), top);
    assert_eq!(listed(page, "NETWORK DOCTOR"), as_listed(doctor::OfHop::rules()));
    let mut host = as_listed(gpuvm_core::doctor::rules());
    for rule in ["governor", "numa-balancing-off", "transparent-huge-pages-off"] {
        // Judged by `verify` for a guest, and only shown for a host.
        assert_eq!(host.insert(rule.to_owned(), Severity::Note), Some(Severity::Warning));
    }
    assert_eq!(listed(page, "HOST DOCTOR"), host);
}

/// The names that a section of gpuvm-codes(7) lists, each with a sentence.
fn tags(page: &str, section: &str) -> BTreeSet<String> {
    let start = page.find(&format!("\n.SH {section}\n")).unwrap_or_else(|| panic!("{section}"));
    let text = page[start + 1..].split("\n.SH ").next().unwrap();
    let mut names = BTreeSet::new();
    for tag in text.split("\n.TP 4\n").skip(1) {
        let (head, sentence) = tag.split_once('\n').unwrap();
        assert!(sentence.split("\n.").next().unwrap().ends_with('.'), "{head}: {sentence}");
        assert!(names.insert(plain(head)), "{head} stands there twice");
    }
    names
}

#[test]
fn gpuvm_codes_lists_every_code_of_an_error_and_no_other() {
    let codes: Vec<String> = gpuvm::cli::codes::codes().map(str::to_owned).collect();
    let once: BTreeSet<String> = codes.iter().cloned().collect();
    let mut twice = codes.clone();
    once.iter().for_each(|code| drop(twice.remove(twice.iter().position(|c| c == code).unwrap())));
    assert_eq!(twice, [""; 0], "a code names two errors");
    let is_kebab = |code: &&String| {
        !code.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    assert_eq!(once.iter().find(is_kebab), None);
    assert_eq!(tags(&pages()["gpuvm-codes.7"], "CODES OF ERRORS"), once);
}

#[test]
fn gpuvm_codes_lists_every_json_document_and_no_other() {
    let mut known = BTreeSet::from_iter([gpuvm::topology::file::FORMAT.to_owned()]);
    let mut dirs = vec![project().join("src/cli")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            for begin in [".json(", ".json_line(", ".json_document(", "FORMAT: &str ="] {
                let calls = text.split(begin).skip(1).map(str::trim_start);
                let names = calls.filter_map(|call| call.strip_prefix('"')?.split('"').next());
                known.extend(names.map(str::to_owned));
            }
        }
    }
    let mut listed = tags(&pages()["gpuvm-codes.7"], "JSON DOCUMENTS");
    assert!(listed.remove("format") && listed.remove("version"));
    assert_eq!(listed, known);
}

#[test]
fn gpuvm_codes_lists_every_exit_status() {
    let page = &pages()["gpuvm-codes.7"];
    let table = page.split("\n.SH EXIT STATUS\n").nth(1).unwrap().split("\n.SH ").next().unwrap();
    let tags = format!("\n{table}");
    let codes: Vec<u8> = tags
        .split("\n.TP 4\n")
        .skip(1)
        .map(|tag| plain(tag.lines().next().unwrap()).parse().unwrap())
        .collect();
    assert_eq!(codes, [EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_FOUND, EXIT_BUG]);
}

/// The files of the top level that people read first: short, narrow, and their links lead
/// somewhere.
#[test]
fn the_readme_is_short_and_leads_to_every_page() {
    for (name, most) in [("README.md", 200), ("CHANGELOG.md", 160), ("CONTRIBUTING.md", 80)] {
        let text = fs::read_to_string(project().join(name)).unwrap();
        assert!(text.lines().count() <= most, "{name} has more than {most} lines");
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 100).collect();
        assert!(wide.is_empty(), "{name}: {wide:?}");
        let links = text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
        for link in links.filter(|link| !link.contains("://")) {
            assert!(project().join(link).exists(), "{name} links {link}");
        }
    }
    let readme = fs::read_to_string(project().join("README.md")).unwrap();
    for page in pages().into_keys() {
        assert!(readme.contains(&format!("](man/{page})")), "README.md does not name {page}");
    }
}

#[test]
fn every_page_has_the_date_and_the_version() {
    let made = gpuvm::cli::pages::all().unwrap().into_iter();
    let head = format!("{} \"gpuvm {}\"", gpuvm::cli::pages::DATE, env!("CARGO_PKG_VERSION"));
    for (name, page) in made.chain(pages()) {
        let title = page.lines().find(|line| line.starts_with(".TH ")).unwrap();
        assert!(title.contains(&head), "{name}: {title}");
        for break_without_effect in ["\n.br\n.sp\n", "\n.sp\n.br\n", "\n.br\n\n", "\n\n.br\n"] {
            assert!(!page.contains(break_without_effect), "{name}");
        }
    }
}

#[test]
fn gpuvm_man_prints_every_page_of_both_sections() {
    let known = BTreeMap::from_iter(
        manual::PAGES.iter().map(|(name, text)| (format!("{name}.7"), (*text).to_owned())),
    );
    assert_eq!(known, pages(), "src/cli/manual.rs does not have the pages of man");
    let (code, out, err) = run(&mut gpuvm(&["man", "guide"]));
    assert_eq!((code, out.as_str(), err.as_str()), (0, &*known["gpuvm-guide.7"], ""));
    let (code, _, err) = run(&mut gpuvm(&["man", "guides"]));
    assert!(code == 2 && err.contains("did you mean `gpuvm man guide`?"), "{err}");
    let dir = crate::support::tree::scratch();
    // A directory that does not exist yet.
    let dir = dir.path().join("share/man");
    let (code, _, err) = run(gpuvm(&["man", "--dir"]).arg(&dir));
    assert_eq!((code, err.as_str()), (0, ""));
    let written = fs::read_dir(&dir).unwrap().count();
    assert_eq!(written, known.len() + gpuvm::cli::pages::all().unwrap().len());
}

/// The modules that gpuvm-design(7) names in a layer, of those directly below its root.
fn modules_on_the_page(room: &str) -> BTreeSet<String> {
    let page = fs::read_to_string(project().join("man/gpuvm-design.7")).unwrap();
    let rooms = page.split("\n.SH THE ROOMS\n").nth(1).unwrap().split("\n.SH ").next().unwrap();
    let head = format!("\n.TP 4\n\\fBsrc/{room}\\fR\n");
    let entry = rooms.split(&head).nth(1).unwrap().split("\n.TP 4\n").next().unwrap();
    let bold = entry.split("\\fB").skip(1).map(|rest| rest.split("\\fR").next().unwrap());
    let is_module = |name: &&str| name.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_'));
    bold.filter(is_module).map(str::to_owned).collect()
}

#[test]
fn gpuvm_design_names_the_modules_that_there_are() {
    for room in ["core", "host", "ops"] {
        let named = modules_on_the_page(room);
        let lib = fs::read_to_string(project().join("src").join(room).join("lib.rs")).unwrap();
        let public =
            lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
        let public: BTreeSet<String> = public.map(str::to_owned).collect();
        // `undo` is a verb there.
        let absent: Vec<_> = named.difference(&public).filter(|name| *name != "undo").collect();
        assert!(absent.is_empty(), "no module of {room}: {absent:?}");
        let silent: Vec<_> = public.difference(&named).collect();
        // Those of ops are its verbs, which section 1 lists.
        assert!(room == "ops" || silent.is_empty(), "{room}: the page leaves out {silent:?}");
    }
}

#[test]
fn gpuvm_design_names_files_of_owners_that_exist() {
    let page = fs::read_to_string(project().join("man/gpuvm-design.7")).unwrap();
    let table = page.split("\n.SH OWNERSHIP\n").nth(1).unwrap().split("\n.TE\n").next().unwrap();
    let named: Vec<&str> = table.lines().filter_map(|line| line.strip_suffix("|T{")).collect();
    assert!(named.len() > 15, "{named:?}");
    let src = project().join("src");
    let is_file = |name: &str| {
        let path =
            if name.starts_with("ops/") { src.join(name) } else { src.join("host").join(name) };
        path.with_extension("rs").is_file() || path.join("mod.rs").is_file()
    };
    named.iter().for_each(|name| assert!(is_file(name), "{name}"));
}

/// Every verb is explained by a page, and every page but the last ones explains a verb.
#[test]
fn every_verb_has_a_page_that_explains_it() {
    let mut explained = BTreeSet::new();
    for (name, _) in gpuvm::cli::pages::all().unwrap() {
        let verb = name.trim_end_matches(".1").trim_start_matches("gpuvm").trim_matches('-');
        let words: Vec<&str> = verb.split('-').filter(|word| !word.is_empty()).collect();
        let beside = manual::beside(&words);
        assert!(!beside.is_empty(), "{name}");
        if !words.is_empty() {
            explained.extend(beside);
        }
    }
    let general = ["gpuvm-glossary", "gpuvm-design"];
    for (page, _) in manual::PAGES.iter().filter(|(page, _)| !general.contains(page)) {
        assert!(explained.contains(page), "no verb leads to {page}");
    }
}

/// The constants of the sources that name a file of gpuvm's own on a host, as paths.
fn own_files() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![project().join("src")];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            let named = text.lines().filter(|line| line.contains("const ")).filter_map(|line| {
                let (_, value) = line.split_once(": &str = \"")?;
                Some(value.split('"').next().unwrap().trim_start_matches('/').to_owned())
            });
            let is_ours = |path: &String| {
                let on_host = ["etc/", "run/", "var/"].iter().any(|dir| path.starts_with(dir));
                on_host && path.contains("gpuvm")
            };
            found.extend(named.filter(is_ours).map(|path| format!("/{path}")));
        }
    }
    found
}

#[test]
fn every_file_that_gpuvm_writes_is_in_the_guide() {
    let page = fs::read_to_string(project().join("man/gpuvm-guide.7")).unwrap();
    let files = page.split("\n.SH FILES\n").nth(1).unwrap().split("\n.SH ").next().unwrap();
    let files = files.replace("\\-", "-");
    let listed: Vec<&str> =
        files.lines().filter(|line| line.starts_with('/')).flat_map(|l| l.split(", ")).collect();
    let own = own_files();
    assert!(own.len() > 10, "{own:?}");
    let below =
        |file: &str| listed.iter().any(|path| path.starts_with(file) || file.starts_with(path));
    let missing: Vec<&String> = own.iter().filter(|file| !below(file)).collect();
    assert!(missing.is_empty(), "{missing:?} are not in FILES of gpuvm-guide(7)");
}

/// The files that the package's removal reports: every file for boot, by its directory.
#[test]
fn the_removal_of_the_package_reports_every_file_for_boot() {
    let root = tempfile::tempdir().unwrap();
    let files: Vec<String> = own_files()
        .into_iter()
        .filter(|f| f.starts_with("/etc/") && !f.starts_with("/etc/gpuvm/"))
        .collect();
    assert!(files.len() >= 12, "{files:?}");
    let bridge = "/etc/netplan/90-gpuvm-br0.yaml".to_owned();
    for file in files.iter().chain([&bridge]) {
        let path = root.path().join(&file[1..]);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n# Made by `gpuvm x`; `gpuvm y` takes it back.\n").unwrap();
    }
    fs::write(root.path().join("etc/netplan/theirs.yaml"), "# Made by hand\n").unwrap();
    let mut prerm = std::process::Command::new("sh");
    prerm.arg(project().join("src/packaging/debian/prerm")).arg("remove");
    let (code, out, err) = run(prerm.env("DPKG_ROOT", root.path()));
    assert_eq!((code, err.as_str()), (0, ""));
    for file in files.iter().chain([&bridge]) {
        let line = format!("  {}{file}", root.path().display());
        assert!(out.lines().any(|told| told == line), "prerm does not tell of {file}:\n{out}");
    }
    assert!(!out.contains("theirs"), "{out}");
}

#[test]
fn another_program_named_as_the_vendors_tool_is_not_overwritten() {
    let root = tempfile::tempdir().unwrap();
    let link = root.path().join("usr/local/bin/nvidia-vm");
    let make = |target: &str| {
        let mut command = std::process::Command::new("make");
        command.args(["--no-print-directory", target]).current_dir(project());
        command.env_remove("MAKEFLAGS").env_remove("MAKEOVERRIDES");
        let (code, out, err) = run(command.arg(format!("DESTDIR={}", root.path().display())));
        assert_eq!(code, 0, "{out}{err}");
        out
    };
    assert_eq!(make("install-link"), "");
    assert_eq!(fs::read_link(&link).unwrap().to_str(), Some("gpuvm"));
    assert_eq!(make("install-link"), "", "again");
    fs::remove_file(&link).unwrap();
    fs::write(&link, "theirs").unwrap();
    assert!(make("install-link").contains("is another program and stays"));
    make("uninstall");
    assert_eq!(fs::read_to_string(&link).unwrap(), "theirs");
}
