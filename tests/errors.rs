//! Errors and answers as JSON: one document on standard output with its name and version, whatever
//! fails.

use crate::support::{gpuvm, project, run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A recorded host of the project.
const DGX: &str = "topologies/dgx-2.json";

/// Runs a command line in the project, with `--json` if requested.
fn answer(line: &str, json: bool) -> (i32, String, String) {
    // A command of the guest's follows `--`.
    let (own, others) =
        line.split_once(" -- ").map_or((line, None), |(own, rest)| (own, Some(rest)));
    let others = others.into_iter().flat_map(|rest| ["--"].into_iter().chain(rest.split(' ')));
    let words = own.split_whitespace().chain(json.then_some("--json")).chain(others);
    let words: Vec<&str> = words.collect();
    run(gpuvm(&words).current_dir(project()))
}

#[test]
fn an_error_with_json_is_the_only_document() {
    let here = "--connect test:///default";
    for (line, code, status) in [
        (format!("plan --gpus 99 --host {DGX}"), "plan-impossible", 1),
        ("plan --gpus 2 --host /nonexistent".to_owned(), "host-unreadable", 1),
        ("plan --gpus 2 --host README.md".to_owned(), "host-unknown", 1),
        (format!("check /nonexistent --host {DGX}"), "input-unreadable", 1),
        (format!("show nosuch {here}"), "libvirt-no-domain", 1),
        (format!("verify nosuch {here}"), "libvirt-no-domain", 1),
        (format!("ip nosuch {here}"), "libvirt-no-domain", 1),
        (format!("delete test {here}"), "usage", 2),
        (format!("plan --gpus x --host {DGX}"), "usage", 2),
        ("nosuch".to_owned(), "usage", 2),
        ("create --nosuch".to_owned(), "usage", 2),
        (String::new(), "usage", 2),
    ] {
        let (ended, out, err) = answer(&line, true);
        let failure: Value =
            serde_json::from_str(&out).unwrap_or_else(|e| panic!("{line}: {e}: {out}"));
        assert_eq!((ended, failure["code"].as_str()), (status, Some(code)), "{line}: {out}");
        assert_eq!((&failure["format"], &failure["version"]), (&"gpuvm-error".into(), &1.into()));
        let message = failure["message"].as_str().unwrap();
        let has_text = err.lines().any(|line| line.starts_with("error:") || line.contains(message));
        assert!(!has_text && !message.starts_with("error"), "{line}: {err}");
        let plain = answer(&line, false);
        assert_eq!((plain.0, plain.1.as_str()), (status, ""), "{line}");
        assert!(line.is_empty() || plain.2.contains(message), "{line}: {message}: {}", plain.2);
    }
    // The command of a hint is one that can be run as it is.
    let (_, out, _) = answer(&format!("plan --gpus 99 --host {DGX}"), true);
    let failure: Value = serde_json::from_str(&out).unwrap();
    let command = failure["commands"][0].as_str().unwrap().strip_prefix("gpuvm ").unwrap();
    assert!(failure["hint"].as_str().unwrap().contains("--gpus 16"), "{out}");
    let (ended, out, _) = answer(command, false);
    assert_eq!(
        (ended, serde_json::from_str::<Value>(&out).unwrap()["format"].as_str()),
        (0, Some("gpuvm-plan"))
    );
    // After `--` it is a name.
    let (ended, out, err) = run(&mut gpuvm(&["nosuch", "--", "--json"]));
    assert!((ended, out.as_str()) == (2, "") && err.starts_with("error: "), "{out}{err}");
}

#[test]
fn every_document_says_its_name_and_version() {
    for (line, format) in [
        (format!("plan --gpus 2 --host {DGX}"), "gpuvm-plan"),
        (format!("capacity --host {DGX}"), "gpuvm-capacity"),
        (format!("export --name x --gpus 2 --host {DGX}"), "gpuvm-export"),
        (format!("host show --host {DGX}"), "gpuvm-host-show"),
        (format!("host matrix --host {DGX}"), "gpuvm-matrix"),
        (format!("host capture - --host {DGX}"), "gpuvm-host"),
        ("show test --connect test:///default".to_owned(), "gpuvm-domain"),
        ("start test --connect test:///default".to_owned(), "gpuvm-started"),
    ] {
        let (code, out, err) = answer(&line, true);
        let document: Value =
            serde_json::from_str(&out).unwrap_or_else(|e| panic!("{line}: {e}: {err}"));
        assert_eq!(code, 0, "{line}: {err}");
        let head = (&document["format"], &document["version"]);
        assert_eq!(head, (&format.into(), &1.into()), "{line}");
        for field in ["\"format\"", "\"version\""] {
            let at_the_top = out.lines().filter(|line| line.starts_with(&format!("  {field}:")));
            assert!(at_the_top.count() <= 1, "{line} has {field} twice");
        }
    }
    let (_, out, _) = answer("start test --connect test:///default", true);
    let started: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&started["name"], &started["already"]), (&"test".into(), &true.into()));
}

/// An error enum that has no codes, or is not known to `codes`, would be reported as an error of
/// the system.
#[test]
fn every_error_enum_has_codes() {
    let known = fs::read_to_string(project().join("src/cli/codes.rs")).unwrap();
    let mut seen = 0;
    let mut dirs = vec![project().join("src")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            for (at, _) in text.match_indices("thiserror::Error") {
                let derives = text[..at].rfind("#[derive(").unwrap();
                let derives = text[derives..].split(")]").next().unwrap();
                let item = text[at..].lines().find(|line| line.starts_with("pub ")).unwrap();
                let Some(name) = item.strip_prefix("pub enum ") else { continue };
                let name = name.split(' ').next().unwrap();
                let place = format!("{} {name}", path.display());
                assert!(derives.contains("strum::VariantNames"), "{place} has no codes");
                let (entry, variants) =
                    (format!("known::<{name}>()"), format!("::{name}::VARIANTS"));
                assert!(known.contains(&entry) || known.contains(&variants), "{place}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 35, "{seen} enums are found");
}

#[test]
fn redacted_secrets_leave_the_document_whole() {
    for gpus in ["<cookie>", "<entry>secret", "passwd='x"] {
        let (code, out, err) =
            run(&mut gpuvm(&["plan", "--host", "topologies/dgx-2.json", "--gpus", gpus, "--json"]));
        let said: Result<Value, _> = serde_json::from_str(&out);
        assert!(code == 2 && err.is_empty() && said.is_ok(), "{gpus}: {out}{err}");
    }
}

#[test]
fn commands_of_an_error_are_commands() {
    let args = ["console", "test", "--json", "--connect", "test:///default"];
    let (code, out, _) = run(&mut gpuvm(&args));
    let said: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 1, "{out}");
    let commands: Vec<&str> =
        said["commands"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    assert!(commands.iter().all(|command| !command.starts_with(['<', '-'])), "{commands:?}");
}

/// An error of every verb that the command line can provoke, on any machine.
const PROVOKED: &[&str] = &[
    "plan --gpus 99 --host topologies/dgx-2.json",
    "plan --gpus 1 --template /nonexistent --host topologies/dgx-2.json",
    "plan --gpus 2 --nvme 99 --host topologies/dgx-2.json",
    "capacity --host /nonexistent",
    "apply -f /nonexistent --connect test:///default",
    "get nosuch --connect test:///default",
    "export --name x --gpus 2 --host topologies/dgx-2.json --output /nonexistent/x",
    "export --name x --gpus 2 --host topologies/dgx-2.json --drive nosuch",
    "check /nonexistent --host topologies/dgx-2.json",
    "check README.md --host topologies/dgx-2.json",
    "nccl tests/golden/check/good.xml --host topologies/dual-socket.json",
    "measure nosuch --connect test:///default",
    "top nosuch --connect test:///default",
    "verify nosuch --connect test:///default",
    "verify test --metrics /nonexistent/x --connect test:///default",
    "list --connect test:///nosuch",
    "show nosuch --connect test:///default",
    "start nosuch --connect test:///default",
    "stop nosuch --connect test:///default",
    "make-room --memory 9999T --connect test:///default",
    "restart nosuch --connect test:///default",
    "autostart nosuch on --connect test:///default",
    "ip nosuch --connect test:///default",
    "console test --connect test:///default",
    "logs test --connect test:///default",
    "ssh nosuch --print --connect test:///default",
    "exec nosuch --connect test:///default -- true",
    "shell nosuch --connect test:///default",
    "pause nosuch --connect test:///default",
    "resume nosuch --connect test:///default",
    "cp README.md nosuch: --print --connect test:///default",
    "cp README.md CHANGELOG.md --connect test:///default",
    "create --name x --gpus 99 --host topologies/dgx-2.json --dry-run",
    "rename nosuch other --connect test:///default",
    "clone nosuch other --connect test:///default",
    "clone test other --connect test:///default",
    "export nosuch --bundle /nonexistent/b --connect test:///default",
    "import /nonexistent --connect test:///default",
    "delete nosuch --yes --connect test:///default",
    "disk list nosuch --connect test:///default",
    "disk add nosuch size=1G --connect test:///default",
    "disk resize test vdz 2G --connect test:///default",
    "disk remove test vdz --connect test:///default",
    "snapshot create nosuch s --connect test:///default",
    "snapshot list nosuch --connect test:///default",
    "snapshot revert nosuch s --yes --connect test:///default",
    "snapshot delete nosuch s --yes --connect test:///default",
    "seed drop nosuch --connect test:///default",
    "slurm conf --node-name a;b --host topologies/dgx-2.json",
    "slurm prolog --host topologies/dgx-2.json",
    "slurm epilog --host topologies/dgx-2.json",
    "slurm reconcile --host topologies/dgx-2.json",
    "set nosuch --vcpus 2 --connect test:///default",
    "set test --vcpus 2 --connect test:///default",
    "tune nosuch --connect test:///default",
    "tune /nonexistent --host topologies/dgx-2.json",
    "history nosuch --connect test:///default",
    "undo nosuch --connect test:///default",
    "recover --end nosuch --host topologies/dgx-2.json",
    "host show --host /nonexistent",
    "host matrix --host README.md",
    "host p2p --host README.md",
    "host doctor --host /nonexistent",
    "host modules --write --host topologies/dgx-2.json",
    "host pages --node 0 --size 2M --count 1 --host topologies/dgx-2.json",
    "host tuning --host topologies/dgx-2.json",
    "host undo --host topologies/dgx-2.json",
    "host capture /nonexistent/x --host topologies/dgx-2.json",
    "host capture README.md --host topologies/dgx-2.json",
    "host capture src --host topologies/dgx-2.json",
    "host capture - --topo README.md --host topologies/dgx-2.json",
    "gpu list --host /nonexistent",
    "gpu exclude 0fff:ff:1f.7 --host topologies/dgx-2.json",
    "gpu include 0fff:ff:1f.7 --host topologies/dgx-2.json",
    "gpu test 0 --host topologies/dgx-2.json",
    "fleet list --hosts /nonexistent",
    "fleet capacity --hosts README.md",
    "fleet plan --gpus 1 --hosts /nonexistent",
    "fleet capture --hosts /nonexistent",
    "fabric show --host /nonexistent",
    "fabric release 1 --host topologies/dgx-h100.json",
    "fabric restore --host topologies/dgx-h100.json",
    "fabric ensure --stdin",
    "fabric hook --install --host topologies/dgx-h100.json",
    "fabric unit --install --host topologies/dgx-h100.json",
    "device list --host /nonexistent",
    "device bind 0fff:ff:1f.7 --dry-run",
    "device release 0fff:ff:1f.7 --dry-run",
    "vgpu list --host /nonexistent",
    "vgpu vfs 0fff:ff:1f.7 --on --dry-run",
    "vgpu vfs 0000:34:00.0 --on --dry-run --host topologies/dgx-2.json",
    "nic list --host /nonexistent",
    "nic vfs nosuch --count 1 --dry-run",
    "nic vfs 0000:5e:00.0 --count 9 --dry-run --host topologies/dgx-2.json",
    "drive list --host /nonexistent",
    "drive release-array /dev/nosuch --dry-run",
    "drive restore-array nosuch --dry-run",
    "drive wipe nosuch --dry-run",
    "drive wipe 0fff:ff:1f.7 --dry-run",
    "network list --connect test:///nosuch",
    "network show nosuch --connect test:///default",
    "network delete nosuch --yes --connect test:///default",
    "network undo nosuch --connect test:///default",
    "network doctor nosuch --connect test:///default",
    "network host-bridge create br9 --nic nosuch --dry-run",
    "network host-bridge confirm br9",
    "network host-bridge show br9",
    "network host-bridge delete br9",
    "image add /nonexistent --connect test:///default",
    "image add https://nosuch.invalid/x --connect test:///default",
    "image add src --connect test:///default",
    "image list --connect test:///nosuch",
    "image remove nosuch --connect test:///default",
    "completions nosuch",
    "man nosuch",
    "schema nosuch",
    "man --dir README.md",
    "schema --dir README.md",
    "network create x --kind bridge --connect test:///default",
    "host files --count 99 --host topologies/dgx-2.json",
    "host trust one-tenant --host topologies/dgx-2.json",
];

/// The words of the verbs that do something, below a command.
fn verbs(command: &clap::Command, path: &str, all: &mut BTreeSet<String>) {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        let path = format!("{path} {}", below.get_name());
        if below.has_subcommands() {
            verbs(below, &path, all);
        } else {
            all.insert(path.trim_start().to_owned());
        }
    }
}

/// A code of last resort says only that something failed.
#[test]
fn no_error_that_can_be_provoked_has_a_code_of_last_resort() {
    let mut missing = BTreeSet::new();
    verbs(&gpuvm::cli::args::command(), "", &mut missing);
    for line in PROVOKED {
        let verb = missing.iter().find(|verb| line.starts_with(&format!("{verb} "))).cloned();
        missing.retain(|other| Some(other) != verb.as_ref());
        let (ended, out, err) = answer(line, true);
        let failure: Value =
            serde_json::from_str(&out).unwrap_or_else(|e| panic!("{line}: {e}: {out}{err}"));
        let code = failure["code"].as_str().unwrap_or_else(|| panic!("{line}: {out}"));
        assert!(ended == 1 || ended == 2, "{line}: {ended} {out}");
        assert!(!["refused", "system", "internal"].contains(&code), "{line}: {out}");
    }
    assert_eq!(missing, BTreeSet::new(), "verbs of which no error is provoked");
}

/// Errors of free text have no code of their own: each belongs to an enum with codes, or to a class
/// that says what to do.
#[test]
fn no_verb_makes_an_error_of_text_alone() {
    // They contain the remaining constructors: of classes, and around causes.
    let allowed = ["src/cli/error.rs", "src/ops/error.rs"];
    let mut found = Vec::new();
    let mut dirs = vec![project().join("src/cli"), project().join("src/ops")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let place = path.strip_prefix(project()).unwrap_or(Path::new("")).to_owned();
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            for (line, number) in code.lines().zip(1..) {
                let ways = ["hinted(", "anyhow!(", "bail!(", "ensure!("];
                let is_way = |way: &&str| line.split("//").next().unwrap().contains(*way);
                if ways.iter().any(is_way) && !allowed.iter().any(|file| place.ends_with(file)) {
                    found.push(format!("{}:{number}: {}", place.display(), line.trim()));
                }
            }
        }
    }
    assert_eq!(found, [""; 0]);
}
