//! The JSON Schemas: they equal those in `src/cli/schemas`, and the output of `--json` matches them
//! exactly, without further fields.

use crate::rooms::sources;
use crate::support::{gpuvm, host_tree, project, run};
use gpuvm::cli::schema::{find, names};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Documents that need a machine to change, or devices that are not recorded.
const ELSEWHERE: [&str; 37] = [
    "gpuvm-apply", // a file is needed
    "gpuvm-log",   // no guest of the test driver has one
    "gpuvm-addresses",
    "gpuvm-created",
    "gpuvm-diffs",
    "gpuvm-disk-changed",
    "gpuvm-disk-resized",
    "gpuvm-dropped-seed",
    "gpuvm-exclusions",
    "gpuvm-executed",
    "gpuvm-fabric-ensure",
    "gpuvm-fabric-file",
    "gpuvm-fabric-restore",
    "gpuvm-fabric-show",
    "gpuvm-gpu-test", // a guest boots in it
    "gpuvm-host-bridge-preview",
    "gpuvm-image-added",
    "gpuvm-nccl-installed",
    "gpuvm-nccl-uninstalled",
    "gpuvm-network-created",
    "gpuvm-set", // the test driver has no domain of QEMU
    "gpuvm-cloned",
    "gpuvm-exported",
    "gpuvm-imported",
    "gpuvm-renamed",
    "gpuvm-snapshot-changed",
    "gpuvm-slurm-epilog",
    "gpuvm-slurm-prolog",
    "gpuvm-slurm-reconcile",
    "gpuvm-snapshot-list",
    "gpuvm-measure",         // the test driver has no guest with an agent
    "gpuvm-measure-history", // nor one that was measured
    "gpuvm-top",             // guests of the test driver have no process
    "gpuvm-undone",
    "gpuvm-verify",
    "gpuvm-verify-change",
    "gpuvm-wiped-drive",
];

#[test]
fn schemas_are_written_to_a_directory_that_does_not_exist_yet() {
    let dir = tempfile::tempdir().unwrap();
    let new = dir.path().join("share/schemas");
    let (code, out, err) = run(gpuvm(&["schema", "--dir"]).arg(&new));
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    assert_eq!(std::fs::read_dir(&new).unwrap().count(), names().count());
    // The object in its place is named.
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (code, _, err) = run(gpuvm(&["schema", "--dir"]).arg(file.join("below")));
    assert!(code == 1 && err.contains("cannot write ") && err.contains("file/below"), "{err}");
}

#[test]
fn schemas_are_those_of_the_types() {
    let dir = project().join("src/cli/schemas");
    let text = |name| serde_json::to_string_pretty(&find(name).unwrap()).unwrap() + "\n";
    let made: BTreeMap<String, String> =
        names().map(|name| (format!("{name}.json"), text(name))).collect();
    if std::env::var_os("GPUVM_RENEW").is_some() {
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        for (name, text) in &made {
            std::fs::write(dir.join(name), text).unwrap();
        }
    }
    let files = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let kept: BTreeMap<String, String> =
        files.map(|path| (name(&path), std::fs::read_to_string(&path).unwrap())).collect();
    let other: Vec<&String> = made.iter().chain(&kept).map(|(name, _)| name).collect();
    let other: BTreeSet<_> = other.into_iter().filter(|n| made.get(*n) != kept.get(*n)).collect();
    assert!(other.is_empty(), "{other:?}; GPUVM_RENEW=1 renews them");
}

#[test]
fn every_answer_that_is_printed_has_a_schema() {
    let calls = ["json(", "json_rows(", "json_line(", "json_document(", "FORMAT: &str = "];
    let mut printed = BTreeSet::new();
    for (path, text) in sources(&project().join("src/cli")) {
        for call in calls {
            let after =
                text.split(call).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
            let names = after.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()));
            for name in names {
                assert!(find(&name).is_some(), "{}: `{name}` has no schema", path.display());
                printed.insert(name);
            }
        }
    }
    let silent: Vec<&str> = names().filter(|name| !printed.contains(*name)).collect();
    // A recorded host is printed as its file, which has its own version.
    assert_eq!(silent, ["gpuvm-host"], "schemas of what nothing prints");
}

/// A schema by which a document has no field that the schema does not name.
fn strict(name: &str) -> Value {
    let mut schema = find(name).unwrap_or_else(|| panic!("{name} has no schema")).to_value();
    let mut open = BTreeSet::new();
    parts(&schema, &mut open);
    let close = |schema: &mut Value| {
        let Some(object) = schema.as_object_mut() else { return };
        let is_object = object.contains_key("properties") || object.contains_key("oneOf");
        if is_object && !object.contains_key("additionalProperties") {
            object.insert("unevaluatedProperties".into(), false.into());
        }
    };
    close(&mut schema);
    if let Some(defined) = schema.get_mut("$defs").and_then(Value::as_object_mut) {
        let whole = defined.iter_mut().filter(|(name, _)| !open.contains(*name));
        whole.for_each(|(_, schema)| close(schema));
    }
    schema
}

/// The definitions that describe only a part of an object, as those of tagged variants do.
fn parts(schema: &Value, found: &mut BTreeSet<String>) {
    if let (Some(of), Some(_)) = (schema["$ref"].as_str(), schema.get("properties")) {
        found.insert(of.trim_start_matches("#/$defs/").to_owned());
    }
    match schema {
        Value::Array(items) => items.iter().for_each(|item| parts(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| parts(field, found)),
        _ => {}
    }
}

/// The differences between a document and its schema, one per line.
pub fn faults(name: &str, document: &Value) -> String {
    let validator = jsonschema::draft202012::new(&strict(name)).expect("a valid schema");
    let faults = validator.iter_errors(document);
    faults.map(|fault| format!("{name} at {}: {fault}\n", fault.instance_path)).collect()
}

/// Command lines that print documents, with the names of their schemas.
fn commands(guest: &str) -> Vec<(String, &'static str)> {
    let mut all: Vec<(String, &str)> = Vec::new();
    for host in ["dgx-2", "dgx-a100", "dual-socket"] {
        for (verb, name) in [
            ("host show", "gpuvm-host-show"),
            ("host matrix", "gpuvm-matrix"),
            ("host p2p", "gpuvm-host-p2p"),
            ("host doctor", "gpuvm-host-doctor"),
            ("host capture -", "gpuvm-host"),
            ("host modules", "gpuvm-host-modules"),
            ("host pages", "gpuvm-host-pages"),
            ("host trust", "gpuvm-host-trust"),
            ("host tuning", "gpuvm-host-tuning"),
            ("capacity", "gpuvm-capacity"),
            ("plan --gpus 1 --explain", "gpuvm-plan"),
            ("plan --vcpus 2 --nic 1 --nic-near any", "gpuvm-plan"),
            ("export --name a --gpus 1", "gpuvm-export"),
            ("export --name a --gpus 1 --format kubevirt", "gpuvm-export-kubevirt"),
            ("export --name a --gpus 1 --format nova", "gpuvm-export-nova"),
            ("create --name a --gpus 1 --diff", "gpuvm-diff"),
            ("gpu list", "gpuvm-gpu-list"),
            ("device list", "gpuvm-device-list"),
            ("vgpu list", "gpuvm-vgpu-list"),
            ("nic list", "gpuvm-nic-list"),
            ("drive list", "gpuvm-drive-list"),
            ("slurm conf --node-name n", "gpuvm-slurm-conf"),
        ] {
            all.push((format!("{verb} --host {}", host_tree(host).display()), name));
        }
    }
    let host = host_tree("dgx-2").display().to_string();
    for (line, name) in [
        ("list --host HOST --domain-xml GUEST", "gpuvm-list"),
        ("check GUEST --host HOST", "gpuvm-check"),
        ("nccl GUEST --host HOST", "gpuvm-nccl"),
        ("tune GUEST --host HOST --explain", "gpuvm-tuned-domain"),
        ("tune GUEST --host HOST --dry-run", "gpuvm-tune"),
        ("plan --gpus 99 --host HOST", "gpuvm-error"),
        ("plan --gpus", "gpuvm-error"),
        ("host files", "gpuvm-host-files"),
        ("schema", "gpuvm-schema-list"),
        ("list TEST", "gpuvm-list"),
        ("get --all TEST", "gpuvm-guests"),
        ("show test TEST", "gpuvm-domain"),
        ("show --all TEST", "gpuvm-domains"),
        ("start test TEST", "gpuvm-started"),
        ("autostart test on TEST", "gpuvm-autostart"),
        ("ip test TEST", "gpuvm-address"),
        ("ssh test --user me TEST", "gpuvm-login"),
        ("check test --host HOST TEST", "gpuvm-check"),
        ("verify --all TEST", "gpuvm-verify-all"),
        ("disk list test TEST", "gpuvm-disk-list"),
        ("history test TEST", "gpuvm-history"),
        ("make-room --pins none --memory 64M --dry-run TEST", "gpuvm-make-room"),
        ("delete test --dry-run TEST", "gpuvm-steps"),
        ("network list TEST", "gpuvm-network-list"),
        ("network show default TEST", "gpuvm-network"),
        ("network create lab --kind private --dry-run TEST", "gpuvm-network-preview"),
        ("network doctor test TEST", "gpuvm-network-doctor"),
        ("network host-bridge show TEST", "gpuvm-host-bridge-list"),
        ("image list TEST", "gpuvm-image-list"),
        ("image list --known TEST", "gpuvm-image-known"),
        ("recover --dry-run TEST", "gpuvm-recover"),
        ("fleet list --hosts MANY", "gpuvm-fleet-list"),
        ("fleet capacity --hosts MANY", "gpuvm-fleet-capacity"),
        ("fleet plan --gpus 2 --hosts MANY", "gpuvm-fleet-plan"),
        ("fleet capture --hosts MANY", "gpuvm-fleet-captured"),
    ] {
        let line = line.replace("TEST", "--connect test:///default").replace("HOST", &host);
        let many = Path::new(guest).with_file_name("hosts.toml");
        let line = line.replace("MANY", many.to_str().unwrap());
        all.push((line.replace("GUEST", guest), name));
    }
    all
}

#[test]
fn printed_documents_match_their_schemas() {
    let dir = tempfile::tempdir().unwrap();
    let host = host_tree("dgx-2").display().to_string();
    let guest = dir.path().join("guest.xml");
    let export = ["export", "--name", "a", "--gpus", "2", "--host", &host];
    let (code, xml, err) = run(&mut gpuvm(&export));
    assert_eq!(code, 0, "{err}");
    std::fs::write(&guest, xml).unwrap();
    let many = format!("[host.a]\nrecord = {host:?}\n[host.b]\nrecord = \"none.json\"\n");
    std::fs::write(dir.path().join("hosts.toml"), many).unwrap();
    let commands = commands(guest.to_str().unwrap());
    let mut wrong = String::new();
    for (line, name) in &commands {
        let args: Vec<&str> = line.split(' ').chain(["--json"]).collect();
        let (_, out, err) = run(&mut gpuvm(&args));
        let document: Value =
            serde_json::from_str(&out).unwrap_or_else(|e| panic!("{line}: {e}: {out}{err}"));
        assert_eq!(document["format"].as_str().unwrap_or(name), *name, "{line}: {out}");
        let faults = faults(name, &document);
        if !faults.is_empty() {
            wrong += &format!("{line}\n{faults}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let seen = |name: &str| commands.iter().any(|(_, seen)| *seen == name);
    let other: Vec<&str> = names().filter(|name| seen(name) == ELSEWHERE.contains(name)).collect();
    assert!(other.is_empty(), "{other:?}: checked here or named as elsewhere, one of them");
}

#[test]
fn a_field_too_many_or_too_few_is_found() {
    let error = json!({ "format": "gpuvm-error", "version": 1, "code": "usage", "message": "a",
        "causes": [], "hint": null, "commands": [] });
    assert_eq!(faults("gpuvm-error", &error), "");
    for change in [json!({ "more": 1 }), json!({ "version": 2 }), json!({ "causes": "a" })] {
        let mut bad = error.clone();
        bad.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        assert_ne!(faults("gpuvm-error", &bad), "", "{change}");
    }
    let mut bad = error;
    bad.as_object_mut().unwrap().remove("code");
    assert_ne!(faults("gpuvm-error", &bad), "");
}
