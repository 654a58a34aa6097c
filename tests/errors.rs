//! Errors and answers as JSON: one document on standard output with its name and version, whatever fails.

use crate::support::{gpuvm, project, run};
use serde_json::Value;
use std::fs;

/// A recorded host of the project.
const DGX: &str = "topologies/dgx-2.json";

/// Runs a command line in the project, with `--json` where asked.
fn answer(line: &str, json: bool) -> (i32, String, String) {
    let words: Vec<&str> = line.split_whitespace().chain(json.then_some("--json")).collect();
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

/// An error enum that has no codes, or is not known to `codes`, would be told as an error of the system.
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
fn what_looks_like_a_secret_leaves_the_document_whole() {
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
