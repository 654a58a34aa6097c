//! The documentation of the modules: their options are those of gpuvm, in its words, and the same
//! as the modules take; the man page lists their errors; all files are installed.

use super::{Controller, Managed};
use crate::manual::{pages, plain};
use crate::support::{gpuvm, project, run, skip};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// The collection.
const COLLECTION: &str = "templates/ansible/ansible_collections/gpuvm/gpuvm";
/// Options of a guest's task that describe no guest.
const OF_TASK: [&str; 11] = [
    "accept_data_loss",
    "address_wait",
    "connect",
    "force",
    "host",
    "keep_data",
    "lock_wait",
    "program",
    "restart",
    "state",
    "wait",
];
/// Prints the options that the modules take, as JSON: kind, choices and default of each.
const SPECS: &str = "
import importlib, json, sys
from ansible_collections.gpuvm.gpuvm.plugins.module_utils import gpuvm
kinds = {gpuvm.text: 'str', gpuvm.text_or_off: 'str', gpuvm.choice: 'str', gpuvm.switch: 'str', gpuvm.path: 'path',
         gpuvm.texts: 'list', gpuvm.paths: 'list'}
all = {}
gpuvm.main = lambda spec, task: all.update({name: dict(gpuvm.common_options(), **spec)})
import runpy
for name in ['gpuvm_guest', 'gpuvm_network', 'gpuvm_host_info']:
    runpy.run_module('ansible_collections.gpuvm.gpuvm.plugins.modules.' + name, run_name='__main__')
shown = lambda one: dict(type=kinds.get(one['type'], one['type']), choices=one.get('choices'), default=one.get('default'),
                         required=one.get('required', False))
print(json.dumps({name: {option: shown(one) for option, one in spec.items()} for name, spec in all.items()}))
";

/// The modules as `ansible-doc` shows them, which must be without a warning.
pub fn shown(controller: &Controller) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for name in ["gpuvm_guest", "gpuvm_network", "gpuvm_host_info"] {
        let full = format!("gpuvm.gpuvm.{name}");
        for form in [&["-t", "module", &full][..], &["-t", "module", "--json", &full]] {
            let mut doc = controller.program("ansible-doc", form);
            let (code, out, err) = run(doc.env_remove("ANSIBLE_STDOUT_CALLBACK"));
            assert_eq!((code, err.as_str()), (0, ""), "{out}");
            if let Ok(text) = serde_json::from_str::<Value>(&out) {
                all.insert(name.to_owned(), text[&full].clone());
            } else {
                assert!(out.contains("EXAMPLES:") && out.contains("RETURN VALUES:"), "{out}");
            }
        }
    }
    assert_eq!(all.len(), 3);
    all
}

#[test]
fn options_are_those_of_gpuvm_in_its_words() {
    let Some(controller) = Controller::of_distribution() else { return };
    let modules = shown(&controller);
    let (code, out, err) = run(&mut gpuvm(&["schema", "gpuvm-guests"]));
    if code != 0 {
        return skip(format!("no schemas: {err}"));
    }
    let schema: Value = serde_json::from_str(&out).unwrap();
    let fields = schema["properties"]["guests"]["items"]["properties"].as_object().unwrap();
    let options = modules["gpuvm_guest"]["doc"]["options"].as_object().unwrap();
    let expected = fields.keys().map(|field| field.replace('-', "_"));
    let expected: BTreeSet<String> = expected.chain(OF_TASK.map(str::to_owned)).collect();
    assert_eq!(options.keys().cloned().collect::<BTreeSet<String>>(), expected);
    for (field, about) in fields {
        let option = &options[&field.replace('-', "_")];
        let choices = about.get("enum").or(about["anyOf"].get(0).and_then(|one| one.get("enum")));
        assert_eq!(option.get("choices"), choices, "{field}");
        let kind = match (about.get("anyOf"), about["type"].as_str()) {
            (Some(_), _) => "list",
            (_, Some("boolean")) => "bool",
            (_, Some("integer")) => "int",
            _ if option["type"] == "path" => "path",
            _ => "str",
        };
        assert_eq!(option["type"], kind, "{field}");
        if ["autostart", "restart", "start"].contains(&field.as_str()) {
            continue;
        }
        let told =
            about["description"].as_str().unwrap().replace('`', "").replace("--gpus", "C(gpus)");
        let told = format!("{}.", told.trim_end_matches("; repeatable"));
        assert_eq!(
            option["description"].get(0).unwrap_or(&option["description"]),
            &json!(told),
            "{field}"
        );
    }
    // And the verb of networks has each option that describes a network.
    let options = modules["gpuvm_network"]["doc"]["options"].as_object().unwrap();
    let (_, help, _) = run(&mut gpuvm(&["network", "create", "--help"]));
    let own = [
        "state",
        "accept_loss",
        "autostart",
        "start",
        "program",
        "name",
        "lock_wait",
        "connect",
        "host",
    ];
    for option in options.keys().filter(|option| !own.contains(&option.as_str())) {
        assert!(help.contains(&format!("--{option}")), "{option}");
    }
    for option in help.lines().filter_map(|line| line.trim_start().strip_prefix("--")) {
        let option = option.split([' ', '=']).next().unwrap();
        let elsewhere = ["dry-run", "diff", "xml", "no-autostart", "no-start", "color", "json"];
        let name = option.replace('-', "_");
        assert!(options.contains_key(&name) || elsewhere.contains(&option), "{option}");
    }
}

#[test]
fn modules_take_the_options_that_they_document() {
    let Some(controller) = Controller::of_distribution() else { return };
    let modules = shown(&controller);
    let mut python = Command::new("/usr/bin/python3");
    controller.settle(python.args(["-c", SPECS])).env("PYTHONPATH", controller.dir.path());
    let (code, out, err) = run(&mut python);
    assert_eq!(code, 0, "{err}");
    let specs: Value = serde_json::from_str(&out).unwrap();
    for (name, about) in &modules {
        let options = about["doc"]["options"].as_object().unwrap();
        let spec = specs[name].as_object().unwrap();
        assert_eq!(options.keys().collect::<BTreeSet<_>>(), spec.keys().collect(), "{name}");
        for (option, told) in options {
            let takes = &spec[option];
            assert_eq!(told["type"], takes["type"], "{name} {option}");
            for part in ["choices", "default"] {
                let told = told.get(part).unwrap_or(&Value::Null);
                assert_eq!(told, &takes[part], "{name} {option} {part}");
            }
            let required = told.get("required").unwrap_or(&json!(false)).clone();
            assert_eq!(required, takes["required"], "{name} {option}");
        }
    }
}

#[test]
fn the_page_lists_the_errors_and_its_playbook_is_one() {
    let page = &pages()["gpuvm-ansible.7"];
    let errors = page.split("\n.SH ERRORS\n").nth(1).unwrap().split("\n.SH ").next().unwrap();
    let listed = errors.split("\n.TP 4\n").skip(1).map(|tag| plain(tag.lines().next().unwrap()));
    let mut raised = BTreeSet::new();
    let (_, files, _) =
        run(Command::new("find").arg(project().join(COLLECTION)).args(["-name", "*.py"]));
    for file in files.lines() {
        let text = std::fs::read_to_string(file).unwrap();
        let codes = text.split("'ansible-").skip(1).map(|rest| rest.split('\'').next().unwrap());
        raised.extend(codes.map(|code| format!("ansible-{code}")));
    }
    assert_eq!(listed.collect::<BTreeSet<_>>(), raised);
    assert!(raised.len() > 5, "{raised:?}");
    let Some(controller) = Controller::of_distribution() else { return };
    let example = page.split("# site.yml\n").nth(1).unwrap().split("\n.EE").next().unwrap();
    let example: Vec<String> = example.lines().map(plain).collect();
    let file = controller.dir.path().join("site.yml");
    std::fs::write(&file, example.join("\n")).unwrap();
    let args = ["--syntax-check", "-i", "localhost,", file.to_str().unwrap()];
    let mut check = controller.program("ansible-playbook", &args);
    let (code, out, err) = run(check.env_remove("ANSIBLE_STDOUT_CALLBACK"));
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn every_file_of_the_collection_is_installed_and_its_version_is_ours() {
    let (_, ours, _) = run(Command::new("find")
        .arg(project().join(COLLECTION))
        .args(["-type", "f", "-not", "-name", "*.pyc", "-printf", "%P\n"]));
    let (code, out, err) =
        run(Command::new(project().join("src/packaging/stage")).args(["/usr", "plain"]));
    assert_eq!(code, 0, "{err}");
    let at = "/usr/share/gpuvm/ansible/ansible_collections/gpuvm/gpuvm/";
    let installed: BTreeSet<&str> = out.lines().filter_map(|line| line.strip_prefix(at)).collect();
    assert_eq!(installed, ours.lines().collect::<BTreeSet<_>>());
    assert!(installed.len() >= 8, "{installed:?}");
    let galaxy = std::fs::read_to_string(project().join(COLLECTION).join("galaxy.yml")).unwrap();
    assert!(galaxy.contains(&format!("\nversion: {}\n", env!("CARGO_PKG_VERSION"))), "{galaxy}");
}

#[test]
fn printed_facts_of_a_host_are_the_read_ones() {
    let Some(managed) = Managed::new() else { return };
    let read = super::Task {
        module: "gpuvm_host_info",
        args: json!({ "program": env!("CARGO_BIN_EXE_gpuvm"),
            "gather_subset": ["host", "capacity", "doctor", "guests", "networks"] }),
        check: true,
    };
    let answer = managed.one(&read);
    assert_eq!(answer["changed"], false);
    for (part, form) in [
        ("host", "gpuvm-host-show"),
        ("capacity", "gpuvm-capacity"),
        ("doctor", "gpuvm-host-doctor"),
    ] {
        assert_eq!(answer[part]["format"], form, "{answer:#}");
    }
    assert!(answer["guests"] == json!([]) && answer["networks"].as_array().unwrap().len() > 1);
    // A recorded host needs no libvirt.
    let record = project().join("topologies/dgx-2.json");
    let recorded = super::Task {
        args: json!({ "program": env!("CARGO_BIN_EXE_gpuvm"), "host": record,
            "gather_subset": ["host", "capacity"] }),
        ..read
    };
    let answer = managed.one(&recorded);
    assert!(answer["capacity"].to_string().contains("16"), "{answer:#}");
}
