//! Every command in a hint exists, applies to the same host, and fulfils its promise.

mod states;

use crate::support::shared::each_shared_host;
use crate::support::tree::scratch;
use crate::support::{gpuvm, project, run};
use clap::{Command as Clap, CommandFactory as _};
use gpuvm::cli::args::request;
use gpuvm::cli::args::{Cli, Verb};
use gpuvm::cli::offer::{Call, reads_records};
use gpuvm::cli::options::{changes, text_of};
use gpuvm::discover::source::load;
use gpuvm::memsize::MemSize;
use gpuvm::placement::{Occupancy, nearest, plan};
use gpuvm::request::{PinPolicy, Request};
use gpuvm::topology::Topology;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The string literals of a Rust source, with their lines joined.
fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut chars = source.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '/' if chars.peek() == Some(&'/') => while chars.next_if(|&c| c != '\n').is_some() {},
            '\'' if chars.peek() == Some(&'"') => {
                chars.next();
            }
            '"' => {
                let mut text = String::new();
                while let Some(c) = chars.next_if(|&c| c != '"') {
                    match (c, chars.peek()) {
                        ('\\', Some('\n')) => {
                            while chars.next_if(|c| c.is_whitespace()).is_some() {}
                        }
                        ('\\', Some(&next)) => {
                            chars.next();
                            text.push(if next == 'n' { '\n' } else { next });
                        }
                        _ => text.push(c),
                    }
                }
                chars.next();
                found.push(text);
            }
            _ => {}
        }
    }
    found
}

/// The string literals of all sources that are no tests, with the file of each.
fn all_literals() -> Vec<(PathBuf, String)> {
    fn walk(dir: &Path, out: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() && name != "tests" {
                walk(&path, out);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                let source = std::fs::read_to_string(&path).unwrap();
                let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
                out.extend(literals(source).into_iter().map(|text| (path.clone(), text)));
            }
        }
    }
    let mut out = Vec::new();
    walk(&project().join("src"), &mut out);
    assert!(out.len() > 3000, "{} literals", out.len());
    out
}

/// Our commands in a text, after `gpuvm`.
fn offered(text: &str) -> Vec<String> {
    let inside = text.split('`').skip(1).step_by(2);
    inside.filter_map(|part| part.strip_prefix("gpuvm ")).map(str::to_owned).collect()
}

/// A command of a source with `sample` for each value that is filled in when it is printed.
fn filled(command: &str, sample: &str) -> Vec<String> {
    let mut text = String::new();
    let mut rest = command.split(" >").next().unwrap();
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        text += before;
        let option = text.split_whitespace().last().unwrap_or_default().to_owned();
        text += match name {
            _ if option == "--size" => "2M",
            _ if option == "--count" => "4096",
            _ if option == "--node" => "1",
            _ if option == "--address" => "192.0.2.1",
            "" | "0" | "1" | "verb" => sample,
            "option" => "--nvme",
            "bdf" | "pf" | "card" | "device" => "0000:01:00.0",
            "count" | "node" | "total" | "number" | "partition" | "id" => "1",
            _ => "x",
        };
        rest = after;
    }
    text += rest;
    let word = |word: &str| {
        match word {
            "KIND" => "nat",
            "N" | "COUNT" | "SECONDS" => "1",
            "PF" | "BDF" => "0000:01:00.0",
            "SIZE" => "2M",
            other => other,
        }
        .to_owned()
    };
    text.split_whitespace().map(word).collect()
}

/// Whether our parser takes these words; `...` stands for a verb's arguments.
pub fn parses(words: &[String]) -> bool {
    let mut root = Cli::command();
    root.build();
    if words.iter().any(|word| word == "...") {
        let mut at = &root;
        let verbs = words.iter().take_while(|word| *word != "..." && !word.starts_with('-'));
        return verbs.into_iter().all(|word| match at.find_subcommand(word) {
            Some(next) => {
                at = next;
                true
            }
            None => at.get_positionals().next().is_some(),
        });
    }
    let line = std::iter::once("gpuvm").chain(words.iter().map(String::as_str));
    match root.try_get_matches_from(line) {
        Ok(_) => true,
        Err(error) => error.kind() == clap::error::ErrorKind::DisplayHelp,
    }
}

#[test]
fn every_command_that_the_sources_offer_is_one_of_ours() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (path, text) in all_literals() {
        // Headers of files that name the program, and parts of commands.
        let others = ["boot.rs", "netplan.rs", "output.rs", "offer.rs", "args/help.rs"];
        if others.iter().any(|other| path.ends_with(other)) {
            continue;
        }
        for command in offered(&text) {
            seen += 1;
            let samples = ["x", "1", "0000:01:00.0", "2M", "list", "stop"];
            if !samples.iter().any(|sample| parses(&filled(&command, sample))) {
                wrong.push(format!("{}: `gpuvm {command}`", path.display()));
            }
        }
    }
    assert!(seen > 120, "{seen} commands");
    assert!(wrong.is_empty(), "not ours:\n{}", wrong.join("\n"));
}

/// All long options of all verbs.
fn options(command: &Clap, out: &mut BTreeSet<String>) {
    for arg in command.get_arguments() {
        out.extend(arg.get_long().map(|long| format!("--{long}")));
        out.extend(arg.get_all_aliases().unwrap_or_default().iter().map(|l| format!("--{l}")));
    }
    command.get_subcommands().for_each(|below| options(below, out));
}

/// Options of other programs that our messages mention or that we pass on.
const OF_OTHERS: [&str; 15] = [
    "--no-install-recommends",
    "--no-block",
    "--config",
    "--inactive",
    "--regenerate-all",
    "--update-kernel",
    "--uuid",
    "--filename",
    "--unlink",
    "--direct",
    "--ioengine",
    "--rw",
    "--runtime",
    "--bs",
    "--iodepth",
];

#[test]
fn every_option_that_the_sources_speak_of_is_one_of_ours() {
    let mut ours = BTreeSet::new();
    let mut root = Cli::command();
    root.build();
    options(&root, &mut ours);
    let mut wrong = Vec::new();
    for (path, text) in all_literals() {
        let parts = text.split('`').enumerate();
        let parts = parts.filter(|(at, part)| {
            at % 2 == 0 || part.starts_with("--") || part.starts_with("gpuvm ")
        });
        for (_, part) in parts.filter(|_| text.contains(' ')) {
            for word in part.split(|c: char| c.is_whitespace() || "=,;:|/()[]'".contains(c)) {
                let word = word.trim_end_matches('.');
                let is_option = word.strip_prefix("--").is_some_and(|name| {
                    name.starts_with(|c: char| c.is_ascii_lowercase())
                        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
                });
                if is_option && !ours.contains(word) && !OF_OTHERS.contains(&word) {
                    wrong.push(format!("{}: {word} in {text:?}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "not ours:\n{}", wrong.join("\n"));
}

/// All verbs with the words that the parser wants at least.
fn verbs(command: &Clap, path: &mut Vec<String>, out: &mut Vec<(Vec<String>, Vec<String>)>) {
    let below: Vec<&Clap> = command.get_subcommands().filter(|c| c.get_name() != "help").collect();
    if below.is_empty() {
        let mut line = path.clone();
        for arg in command.get_arguments().filter(|arg| arg.is_required_set()) {
            line.extend(arg.get_long().map(|long| format!("--{long}")));
            let values = arg.get_possible_values();
            line.push(values.first().map_or("0000:01:00.0", |v| v.get_name()).to_owned());
        }
        out.push((path.clone(), line));
    }
    for next in below {
        path.push(next.get_name().to_owned());
        verbs(next, path, out);
        path.pop();
    }
}

#[test]
fn the_verbs_that_read_records_are_those_that_offers_name_the_record_to() {
    let mut root = Cli::command();
    root.build();
    let mut all = Vec::new();
    verbs(&root, &mut Vec::new(), &mut all);
    assert!(all.len() > 40, "{} verbs", all.len());
    let record = project().join("topologies/dual-socket.json");
    let dir = scratch();
    let mut readers = 0;
    for (verb, line) in all {
        let path: Vec<&str> = verb.iter().map(String::as_str).collect();
        let mut args: Vec<&str> = line.iter().map(String::as_str).collect();
        // `tune` changes domains of libvirt, and prints files; a pool of pages is shown, and set
        // where its size is given.
        if path == ["tune"] {
            args.push("--check");
        }
        args.extend(["--host", record.to_str().unwrap()]);
        let mut command = gpuvm(&args);
        // `host capture` writes a file.
        command.current_dir(dir.path()).env("LIBVIRT_DEFAULT_URI", "test:///default");
        let (_, _, err) = run(&mut command);
        let refused = err.contains("not take --host");
        let reads = reads_records(path.iter().copied());
        assert!(!(reads && refused), "{args:?}: {err}");
        readers += usize::from(reads);
        if refused {
            let hint = err.lines().find(|line| line.starts_with("hint: "));
            assert!(hint.is_some(), "{args:?}: {err}");
        }
    }
    assert_eq!(readers, 20, "a verb that reads records is marked in its arguments");
}

/// Requests that are impossible on any or most hosts.
const REFUSED: [&str; 22] = [
    "--gpus 3",
    "--gpus 5 --huge-pages 2M",
    "--gpus 17",
    "--gpu-index 5 --gpu-count 4",
    "--gpu-index 90",
    "--gpu 0000:99:00.0",
    "--gpus 3 --vcpus 100 --memory 9T",
    "--gpus 1 --vcpus 200 --explain",
    "--vcpus 97",
    "--vcpus 130 --reserve-cores 2 --allow remote",
    "--gpus 1 --cells 3",
    "--memory 4T",
    "--memory 1.9T --huge-pages 1G",
    "--gpus 2 --memory 900G --name x",
    "--gpus 2 --nic 3 --nic-near switch",
    "--gpus 1 --nic 40",
    "--gpus 1 --vf 3",
    "--gpus 1 --nvme 90 --nvme-near switch",
    "--pins none --vcpus 5 --threads 2",
    "--pins none --cells 90 --vcpus 90",
    "--gpus 1 --p2p-clique --vcpus 99",
    "--gpu 0 --gpu 3 --gpu 5",
];

/// Runs each of our read-only commands that a text suggests. Returns their number.
fn run_offered(text: &str, context: &str) -> usize {
    let mut ran = 0;
    for command in offered(text) {
        let words = shell_words(&command);
        assert!(command.contains("...") || parses(&words), "{context}: `gpuvm {command}`");
        let verb: Vec<&str> = words.iter().map(String::as_str).collect();
        let lists = verb.starts_with(&["network", "list"]) || verb.starts_with(&["image", "list"]);
        let is_read = lists || reads_records(verb.iter().copied());
        let is_filled = !verb.iter().any(|word| ["FILE", "NAME", "-", "--count"].contains(word));
        if is_read && is_filled {
            let (code, _, err) = run(&mut gpuvm(&verb));
            assert_eq!(code, 0, "{context}: `gpuvm {command}`: {err}");
            ran += 1;
        }
    }
    ran
}

/// The words of a command as a shell splits them: our commands need only quotes.
pub fn shell_words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in command.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            _ => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn plans_offered_instead_of_a_refused_one_succeed() {
    let dir = scratch();
    let mut ran = 0;
    for host in ["dgx-2", "dgx-a100", "dual-socket", "h100-guest"] {
        // A name that must be quoted.
        let record = dir.path().join(format!("{host} of mine.json"));
        std::fs::copy(project().join(format!("topologies/{host}.json")), &record).unwrap();
        let record = record.to_str().unwrap();
        for line in REFUSED {
            let mut args = vec!["plan", "--host", record];
            args.extend(line.split_whitespace());
            let (code, out, err) = run(&mut gpuvm(&args));
            assert!([0, 1].contains(&code), "{host} {line}: {err}");
            if host == "dgx-2" {
                ran += run_offered(&format!("{out}{err}"), &format!("{host} {line}"));
            }
            if code == 1 {
                assert!(err.contains("\nhint: "), "{host} {line}: {err}");
                assert!(!err.contains("1 GPUs") && !err.contains("1 vCPUs"), "{err}");
            }
        }
    }
    assert!(ran > 20, "{ran} commands were run");
}

#[test]
fn a_host_without_gpus_or_memory_gets_a_remedy() {
    let mut parts = load(&project().join("topologies/dual-socket.json")).unwrap().parts().clone();
    let is_gpu = |class: u32| class >> 16 == 0x03;
    parts.devices.retain(|device| !is_gpu(device.class));
    let dir = scratch();
    let write = |name: &str, parts| {
        let host = Topology::new(parts).unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, gpuvm::topology::file::to_json(&host)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let bare = write("bare.json", parts.clone());
    parts.nodes.iter_mut().for_each(|node| {
        (node.memory_kib, node.huge_pages) = (MemSize::default(), Vec::new());
    });
    let empty = write("empty.json", parts);
    let (code, _, err) = run(&mut gpuvm(&["plan", "--gpus", "1", "--host", &bare]));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("requested 1 GPU, this host has none"), "{err}");
    assert!(err.contains("leave --gpus") && !err.contains("gpuvm list"), "{err}");
    run_offered(&err, "bare");
    let (code, _, err) = run(&mut gpuvm(&["plan", "--vcpus", "2", "--host", &empty]));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("memory this host has is not known") && !err.contains("page"), "{err}");
}

#[test]
fn commands_offered_for_a_record_name_it_unless_they_change_the_machine() {
    let record = project().join("topologies/dgx-2.json");
    let dir = scratch();
    let guest = dir.path().join("a guest.xml");
    let export = ["export", "--name", "a", "--host", record.to_str().unwrap()];
    let (_, text, _) = run(&mut gpuvm(&export));
    std::fs::write(&guest, text.replace("x86_64", "aarch64")).unwrap();
    let dual = load(&project().join("topologies/dual-socket.json")).unwrap();
    let mut unlisted = dual.parts().clone();
    unlisted.devices.clear();
    unlisted.drives.clear();
    let unlisted = Topology::new(unlisted).unwrap();
    let bare = dir.path().join("unlisted.json");
    std::fs::write(&bare, gpuvm::topology::file::to_json(&unlisted)).unwrap();
    let mut kinds = BTreeSet::new();
    for (host, line) in [
        (&record, "plan --gpus 1 --huge-pages 2M"),
        (&record, "create --gpus 16 --name a --huge-pages 1G --dry-run"),
        (&record, "list"),
        (&record, "ip x"),
        (&record, "tune GUEST --check"),
        (&bare, "gpu list"),
        (&bare, "device list"),
        (&bare, "nic list"),
        (&bare, "host matrix"),
        (&bare, "capacity"),
        (&bare, "plan --gpus 1"),
        (&bare, "plan --gpu 0"),
        (&bare, "plan --nic 1"),
    ] {
        let word = |word| if word == "GUEST" { guest.to_str().unwrap() } else { word };
        let mut args: Vec<&str> = line.split_whitespace().map(word).collect();
        args.extend(["--host", host.to_str().unwrap()]);
        let (code, out, err) = run(&mut gpuvm(&args));
        let said = format!("{out}{err}");
        assert!([0, 1, 2].contains(&code), "{line}: {said}");
        if host == &bare {
            assert!(said.contains("not known"), "{line}: {said}");
        }
        for command in offered(&said) {
            let words = shell_words(&command);
            let verb: Vec<&str> = words.iter().map(String::as_str).collect();
            let names = verb.contains(&"--host");
            assert!(
                !said.contains(&format!("`gpuvm {command}` without --host")) || !names,
                "{said}"
            );
            assert!(!verb.contains(&"--count") || !names, "{said}");
            if names {
                let (code, _, err) = run(&mut gpuvm(&verb));
                assert!([0, 3].contains(&code), "{line}: `gpuvm {command}`: {err}");
            }
            kinds.insert(verb[..verb.len().min(2)].join(" "));
        }
    }
    assert!(kinds.contains("host pages") && kinds.iter().any(|k| k.starts_with("check")));
}

/// Options that one verb takes are not repeated to another that refuses them.
#[test]
fn a_host_assumed_empty_is_offered_commands_that_run() {
    let (mut ran, mut shows) = (0, 0);
    for host in ["dgx-2", "dual-socket"] {
        let host = project().join(format!("topologies/{host}.json"));
        let host = host.to_str().unwrap();
        for line in [
            "host show",
            "host show --identify",
            "capacity",
            "capacity --gpus 5",
            "plan --gpu 99",
            "plan --gpus 1 --nic 40",
            "plan --gpus 17 --memory 9T",
            "plan --gpus 1 --huge-pages 2M",
        ] {
            let mut args: Vec<&str> = line.split_whitespace().collect();
            args.extend(["--host", host, "--assume-empty"]);
            let dir = scratch();
            let (_, out, err) = run(gpuvm(&args).current_dir(dir.path()));
            for command in offered(&format!("{out}{err}")) {
                let words = shell_words(&command);
                let verb: Vec<&str> = words.iter().map(String::as_str).collect();
                if reads_records(verb.iter().copied()) && verb.contains(&"--host") {
                    let (code, _, err) = run(gpuvm(&verb).current_dir(dir.path()));
                    assert_eq!(code, 0, "{line}: `gpuvm {command}`: {err}");
                    assert!(verb.contains(&host), "{line}: `gpuvm {command}`");
                    shows += usize::from(verb.starts_with(&["host", "show"]));
                    ran += 1;
                }
            }
        }
    }
    assert!(ran > 8 && shows > 4, "{ran} commands, {shows} of them `host show`");
}

#[test]
fn commands_offered_for_a_file_name_it() {
    let record = project().join("topologies/dgx-2.json");
    let dir = scratch();
    let guest = dir.path().join("a guest.xml");
    // GPUs of two host bridges below one expander bus, as older versions wrote it.
    std::fs::copy(project().join("tests/check/two-bridges.xml"), &guest).unwrap();
    let (guest, record) = (guest.to_str().unwrap(), record.to_str().unwrap());
    let (code, out, err) = run(&mut gpuvm(&["check", guest, "--host", record]));
    let said = format!("{out}{err}");
    assert_eq!(code, 3, "{said}");
    let tunes = offered(&said).into_iter().filter(|command| command.starts_with("tune"));
    let tunes: Vec<String> = tunes.collect();
    assert!(!tunes.is_empty(), "{said}");
    for command in tunes {
        let words = shell_words(&command);
        assert!(words.iter().any(|word| word == guest), "`gpuvm {command}`");
        let (code, out, err) =
            run(&mut gpuvm(&words.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(code, 0, "`gpuvm {command}`: {err}");
        assert!(out.contains("<domain"), "`gpuvm {command}`: {out}");
    }
}

/// The commands of ours in the strings of a JSON document.
fn offered_in(value: &serde_json::Value, out: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::String(text) => out.extend(offered(text)),
        serde_json::Value::Array(items) => items.iter().for_each(|item| offered_in(item, out)),
        serde_json::Value::Object(fields) => fields.values().for_each(|v| offered_in(v, out)),
        _ => {}
    }
}

#[test]
fn commands_in_json_are_those_of_the_text() {
    let dir = scratch();
    // A name that JSON and a shell have to quote.
    let record = dir.path().join("a \"dgx-2\" of mine.json");
    std::fs::copy(project().join("topologies/dgx-2.json"), &record).unwrap();
    let record = record.to_str().unwrap();
    let guest = dir.path().join("guest.xml");
    let export = ["export", "--name", "a", "--gpus", "1", "--host", record];
    let (_, text, err) = run(&mut gpuvm(&export));
    std::fs::write(&guest, text.replace("domain=\"0x0000\"", "domain=\"0x0007\"")).unwrap();
    let guest = guest.to_str().unwrap();
    let mut seen = 0;
    for args in [
        &["plan", "--gpus", "16", "--huge-pages", "2M", "--explain"][..],
        &["check", guest],
        &["device", "list"],
        &["list", "--domain-xml", guest],
    ] {
        let args = [args, &["--host", record, "--connect", "test:///default"]].concat();
        let (_, text, said) = run(&mut gpuvm(&args));
        let (code, json, _) = run(&mut gpuvm(&[&args[..], &["--json"]].concat()));
        assert!([0, 3].contains(&code), "{args:?}: {said}{err}");
        let mut commands = BTreeSet::new();
        offered_in(&serde_json::from_str(&json).expect(&json), &mut commands);
        let told: BTreeSet<String> = offered(&format!("{text}{said}")).into_iter().collect();
        assert!(commands.is_subset(&told), "{args:?}: {commands:#?} and {told:#?}");
        for command in &commands {
            let words = shell_words(command);
            let reads = reads_records(words.iter().map(String::as_str));
            let counts = words.iter().any(|word| word == "--count");
            assert_eq!(words.iter().any(|word| word == record), reads && !counts, "{command}");
            assert!(command.contains("--connect test:///default"), "{command}");
            seen += 1;
        }
    }
    assert!(seen > 1, "{seen} commands");
}

#[test]
fn drives_are_offered_for_erasing_only_where_that_makes_enough() {
    let mut parts = load(&project().join("topologies/dual-socket.json")).unwrap().parts().clone();
    let is_drive = |class: u32| class >> 8 == 0x0108;
    let all = parts.devices.iter_mut().filter(|device| is_drive(device.class));
    let drives = all.map(|device| device.driver = Some("vfio-pci".into())).count();
    parts.drives.clear();
    assert!(drives > 0);
    let dir = scratch();
    let path = dir.path().join("away.json");
    let host = Topology::new(parts).unwrap();
    std::fs::write(&path, gpuvm::topology::file::to_json(&host)).unwrap();
    for (number, is_offered) in [(drives, true), (drives + 1, false)] {
        let args = ["plan", "--nvme", &number.to_string(), "--host", path.to_str().unwrap()];
        let (code, _, err) = run(&mut gpuvm(&args));
        assert_eq!((code, err.contains("drive wipe")), (1, is_offered), "{number}: {err}");
    }
}

#[test]
fn changes_of_a_recorded_host_are_to_be_run_there() {
    for (host, line, there) in [
        (
            "dgx-2",
            "create --gpus 2 --name a --dry-run",
            "`gpuvm host trust one-tenant` on that machine once",
        ),
        ("dgx-2", "plan --gpus 2", "` on that machine reserves"),
        ("dgx-2", "plan --gpus 16 --huge-pages 2M", "` on that machine reserves"),
    ] {
        let record = project().join(format!("topologies/{host}.json"));
        let mut args: Vec<&str> = line.split_whitespace().collect();
        args.extend(["--explain", "--host", record.to_str().unwrap()]);
        args.retain(|word| *word != "--explain" || line.starts_with("plan"));
        let (_, out, err) = run(&mut gpuvm(&args));
        let said = format!("{out}{err}").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(there), "{line}: {said}");
        let commands = said.split("`gpuvm ").skip(1).filter_map(|part| part.split_once('`'));
        let changes = commands.filter(|(command, _)| {
            command.starts_with("host trust one-tenant") || command.contains("--count")
        });
        for (command, rest) in changes {
            assert!(rest.starts_with(" on that machine"), "{line}: `gpuvm {command}`{rest}");
        }
    }
}

#[test]
fn words_of_other_tools_get_ours() {
    let line = ["-c", "test:///default", "export", "--gpus", "1", "a b"];
    let (code, _, err) = run(&mut gpuvm(&line));
    assert!(code == 2 && err.contains("a name has letters, digits"), "{err}");
    // Options of other tools.
    for (line, tip) in [
        (&["apply", "g 1.yaml"][..], "`-f 'g 1.yaml'` names the file"),
        (&["make-room", "8"], "`--gpus 8`"),
        (&["create", "-f", "g.yaml"], "`gpuvm apply -f FILE`"),
        (&["create", "--name", "a", "--ram", "4096"], "`--memory SIZE`"),
        (&["create", "--name", "a", "--os-variant", "x"], "no option depends on it"),
        (&["create", "--name", "a", "--hostdev", "01:00.0"], "`--gpu`, `--nic` and `--nvme`"),
        (&["list", "--all"], "all domains are listed"),
        (&["ls", "-a"], "all domains are listed"),
        (&["ssh", "a", "uptime"], "`-- uptime` runs it in the guest"),
        (&["start", "--name", "a"], "the name follows the verb"),
        (&["diff"], "`gpuvm apply --dry-run`"),
    ] {
        let (code, _, err) = run(&mut gpuvm(line));
        assert!(code == 2 && err.contains(tip), "{line:?}: {err}");
        assert!(err.matches("tip:").count() == 1, "{line:?}: {err}");
    }
    for line in [&["create", "--name", "a", "b"][..], &["create", "--nosuch"]] {
        let (code, _, err) = run(&mut gpuvm(line));
        assert!(code == 2 && !err.contains("tip:"), "{line:?}: {err}");
    }
}

#[test]
fn offers_of_another_connection_lead_there() {
    for line in [
        "show nosuch",
        "start nosuch",
        "history nosuch",
        "network show nosuch",
        "delete nosuch --yes",
        "tune nosuch",
        "verify nosuch",
        "create --gpus 1 --name test --virt-type qemu",
    ] {
        let mut args = vec!["-c", "test:///default"];
        args.extend(line.split_whitespace());
        let (code, _, err) = run(&mut gpuvm(&args));
        assert!(code != 0 && code != 70, "{line}: {err}");
        for command in offered(&err) {
            assert!(command.contains("--connect test:///default"), "{line}: {err}");
        }
        run_offered(&err, line);
    }
}

#[test]
fn devices_without_a_node_are_unknown_in_every_verb() {
    let mut parts = load(&project().join("topologies/dual-socket.json")).unwrap().parts().clone();
    parts.devices.iter_mut().for_each(|device| device.node = None);
    let dir = scratch();
    let path = dir.path().join("host.json");
    let host = Topology::new(parts).unwrap();
    std::fs::write(&path, gpuvm::topology::file::to_json(&host)).unwrap();
    for (line, said) in [
        ("host matrix", "or unknown: the kernel reports no node for GPU0, GPU1, mlx5_0"),
        ("plan --gpus 1", "0000:18:00.0, node unknown"),
        ("plan --gpus 1", "the kernel reports no node for 0000:18:00.0"),
        ("plan --gpus 1 --nic 1", "is on the node of a GPU of the guest is unknown"),
        ("plan --gpus 1 --nic 1 --nic-near node", "the kernel reports no node for"),
    ] {
        let mut args: Vec<&str> = line.split(' ').collect();
        args.extend(["--host", path.to_str().unwrap()]);
        let (_, out, err) = run(&mut gpuvm(&args));
        let text = out + &err;
        assert!(text.contains(said), "{line}: {text}");
        for wrong in ["not on the node", "no cell is on their node"] {
            assert!(!text.contains(wrong), "{line}: {text}");
        }
    }
    // If there is one node, every device is on it.
    let mut parts = load(&project().join("topologies/h100-guest.json")).unwrap().parts().clone();
    assert_eq!(parts.nodes.len(), 1);
    parts.devices.iter_mut().for_each(|device| device.node = None);
    let host = Topology::new(parts).unwrap();
    std::fs::write(&path, gpuvm::topology::file::to_json(&host)).unwrap();
    for line in ["host matrix", "plan --gpus 1", "gpu list", "host show"] {
        let mut args: Vec<&str> = line.split(' ').collect();
        args.extend(["--host", path.to_str().unwrap()]);
        let (code, out, err) = run(&mut gpuvm(&args));
        assert!(code == 0 && !out.contains("unknown:"), "{line}: {out}{err}");
        assert!(!out.contains("node unknown"), "{line}: {out}");
    }
}

/// Requests that exceed a host: more of each resource than there is.
fn too_much(topology: &Topology) -> [Request; 4] {
    let gpus = u32::try_from(topology.gpus().count()).unwrap();
    let vcpus = u32::try_from(topology.pcpus().len()).unwrap() + 1;
    let memory: MemSize = topology.nodes().iter().map(|node| node.memory_kib).sum();
    let memory_kib = Some(memory + MemSize::from_gib(64));
    [
        Request::for_gpus(gpus + 1),
        Request { vcpus: Some(vcpus), ..Request::for_gpus(0) },
        Request { memory_kib, ..Request::for_gpus(gpus.min(1)) },
        Request { vcpus: Some(vcpus), memory_kib, ..Request::for_gpus(gpus + 1) },
    ]
}

/// Checks the nearest requests to impossible ones on a host. Returns their number.
fn check_nearest(name: &str, topology: &Topology) -> usize {
    let empty = Occupancy::default();
    let usual = Request { pins: PinPolicy::Auto, ..Request::for_gpus(0) };
    let mut seen = 0;
    for asked in too_much(topology) {
        // The options of the request itself, as they would have been typed.
        let line: Vec<String> = text_of(&changes(&usual, &asked))
            .split(' ')
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect();
        let line = ["gpuvm", "plan"].into_iter().map(str::to_owned).chain(line);
        let call = Call::new(&Cli::command().try_get_matches_from(line).unwrap());
        for near in nearest(topology, &empty, &asked) {
            seen += 1;
            let command = call.with(&changes(&asked, &near));
            let read = <Cli as clap::Parser>::try_parse_from(shell_words(&command)).unwrap();
            let Verb::Plan(args) = read.verb else { panic!("{command}") };
            let typed = request(&args.guest.gpus, &args.guest.shape).unwrap();
            assert_eq!(typed, near, "{name}: {command}");
            let planned = plan(topology, &empty, &typed);
            assert!(planned.is_ok(), "{name}: {command}: {planned:?}");
        }
    }
    seen
}

#[test]
fn the_nearest_requests_are_planned_on_every_host_as_they_are_typed() {
    let mut seen = 0;
    for entry in std::fs::read_dir(project().join("topologies")).unwrap() {
        let path = entry.unwrap().path();
        seen += check_nearest(path.to_str().unwrap(), &load(&path).unwrap());
    }
    assert!(seen >= 25, "{seen} requests");
    let mut more = 0;
    let hosts = each_shared_host(|host| more += check_nearest(host.name, host.topology));
    assert!(hosts.is_none_or(|hosts| hosts > 40 && more > 100), "{more} requests on {hosts:?}");
}
