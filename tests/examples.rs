//! The files installed below share/doc/gpuvm/examples work as documented. Whether HCL's parser and
//! cloud-init accept them is tested in `tests/packages/examples`, with a network.

use crate::support::{gpuvm, project, run};
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A file of the examples.
fn example(name: &str) -> PathBuf {
    project().join("templates/examples").join(name)
}

/// Runs the program of the data source as its provider does, in the folder of the project.
fn place(query: &Value) -> (i32, String, String) {
    let mut child = Command::new("/usr/bin/python3")
        .arg(example("opentofu/place.py"))
        .env("GPUVM", env!("CARGO_BIN_EXE_gpuvm"))
        .current_dir(project())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(query.to_string().as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

/// The words after each occurrence of a prefix, up to the end of the name.
fn names_after<'t>(text: &'t str, prefix: &str) -> Vec<&'t str> {
    let rest = text.split(prefix).skip(1);
    rest.map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap())
        .collect()
}

#[test]
fn the_data_source_answers_with_the_plan_in_texts() {
    let config = std::fs::read_to_string(example("opentofu/main.tf")).unwrap();
    assert!(config.contains("program = [\"python3\", \"${path.module}/place.py\"]"), "{config}");
    let block = config.split("query = {").nth(1).unwrap().split('}').next().unwrap();
    let keys: Vec<&str> =
        block.lines().filter_map(|line| Some(line.split_once(" = ")?.0.trim())).collect();
    assert_eq!(keys, ["name", "host", "gpus"]);
    let host = "topologies/dgx-2.json";
    let (code, out, err) = place(&json!({ "name": "train-a", "host": host, "gpus": "2" }));
    assert_eq!(code, 0, "{err}");
    let answer: Value = serde_json::from_str(&out).unwrap();
    let texts = answer.as_object().unwrap();
    assert!(texts.values().all(Value::is_string), "{out}");
    let used = names_after(&config, "data.external.place.result.");
    assert!(used.len() >= 4, "{used:?}");
    used.iter().for_each(|name| assert!(texts.contains_key(*name), "{name} is not in {out}"));
    let words = ["plan", "--name", "train-a", "--host", host, "--gpus", "2", "--json"];
    let (_, planned, _) = run(gpuvm(&words).current_dir(project()));
    let planned: Value = serde_json::from_str(&planned).unwrap();
    assert_eq!(serde_json::from_str::<Value>(texts["plan"].as_str().unwrap()).unwrap(), planned);
    let placed = &planned["placement"];
    let devices: Vec<&str> =
        placed["devices"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
    assert_eq!(texts["devices"], devices.join(","));
    assert_eq!(texts["vcpus"], placed["vcpu_pins"].as_array().unwrap().len().to_string());
    assert_eq!(texts["memory_kib"], placed["cells"][0]["memory_kib"].to_string());
    // The place can be had by that text.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.json");
    std::fs::write(&file, texts["plan"].as_str().unwrap()).unwrap();
    let words = ["create", "--dry-run", "--accept-shared-fabric", "--host", host, "--plan"];
    let (code, _, err) = run(gpuvm(&words).arg(&file).current_dir(project()));
    assert_eq!(code, 0, "{err}");
}

#[test]
fn refusals_of_the_data_source_are_errors_of_the_provider() {
    let host = "topologies/dgx-2.json";
    for (query, said) in [
        (json!({ "host": host, "gpus": "3" }), "no partition of this board has 3 GPUs\nsizes on"),
        (json!({ "host": host, "gpus": "x" }), "'x'"),
        (json!({ "host": "", "gpus": "1", "host_file": host }), "`host_file` is not known"),
        (json!({ "host": "/nonexistent" }), "No such file"),
    ] {
        let (code, out, err) = place(&query);
        assert_eq!((code, out.as_str()), (1, ""), "{query}: {err}");
        assert!(err.contains(said) && !err.contains("Traceback"), "{query}: {err}");
    }
}

#[test]
fn the_user_data_leaves_what_gpuvm_writes() {
    let file = example("cloud-init/gpu-operator.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    for word in ["version: \"570\"", "nvidia-container-toolkit", "nvidia-peermem"] {
        assert!(text.contains(word), "{word}");
    }
    let words = ["create", "--name", "node-a", "--gpus", "8", "--dry-run", "--user-data"];
    let mut command = gpuvm(&words);
    command.arg(&file).args(["--host", "topologies/dgx-h100.json"]);
    let (code, _, err) = run(command.current_dir(project()));
    assert_eq!(code, 0, "{err}");
    for word in ["runcmd", "write_files", "second start", "--install`"] {
        assert!(!err.contains(word), "gpuvm's own is lost: {err}");
    }
}
