//! `gpuvm export` from outside.

use crate::support::{gpuvm, project, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Runs `export` on the recorded DGX-2.
fn export(arguments: &[&str]) -> (i32, String, String) {
    let host = project().join("topologies/dgx-2.json");
    let mut all = vec!["export", "--host", host.to_str().unwrap()];
    all.extend(arguments);
    run(&mut gpuvm(&all))
}

#[test]
fn prints_the_domain_as_xml_or_json() {
    let arguments =
        ["--gpus", "2", "--name", "a", "--disk", "/dev/disk/by-id/x", "--disk", "/b.qcow2"];
    let (code, xml, err) = export(&[&arguments[..], &["--quiet"]].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    // Compromises of the plan are reported beside the XML.
    let (_, same, told) = export(&arguments);
    assert_eq!(same, xml);
    for warning in
        ["warning: isolation: not isolated on NVLink", "warning: trust: ", "warning: huge-pages: "]
    {
        assert!(told.contains(warning), "{warning}: {told}");
    }
    for part in ["<name>a</name>", "dev='/dev/disk/by-id/x'", "file='/b.qcow2'", "type='qcow2'"] {
        assert!(xml.contains(part), "{part} in {xml}");
    }
    let (code, json, _) = export(&[&arguments[..], &["--json"]].concat());
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (code, value["name"].as_str(), value["xml"].as_str()),
        (0, Some("a"), Some(xml.as_str()))
    );
}

#[test]
fn writes_a_file_that_is_complete_or_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("guest.xml");
    let path = file.to_str().unwrap();
    let (code, out, err) = export(&["--gpus", "1", "--name", "a", "-o", path, "-q"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    assert!(fs::read_to_string(&file).unwrap().ends_with("</domain>\n"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(export(&["--name", "b", "-o", path]).0, 0);
    assert!(fs::read_to_string(&file).unwrap().contains("<name>b</name>"));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    let (code, _, err) = export(&["-o", dir.path().join("none/guest.xml").to_str().unwrap()]);
    assert!(code == 1 && err.contains("none/guest.xml"), "{code} {err}");
    let (code, _, err) = export(&["-o", dir.path().to_str().unwrap()]);
    assert!(code == 1 && err.contains("is a directory"), "{code} {err}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "something is left");
}

#[test]
fn takes_a_template_or_names_its_fault() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("template.xml");
    let path = file.to_str().unwrap();
    let with = |text: &str| {
        fs::write(&file, text).unwrap();
        export(&["--gpus", "1", "--name", "a", "--template", path])
    };
    let domain =
        "<domain type='kvm'><os><type machine='q35'>hvm</type></os><title>t</title></domain>";
    let (code, out, err) = with(domain);
    assert!(code == 0 && out.contains("<title>t</title>") && out.contains("ua-gpu0"), "{out}{err}");
    let bomb = "<?xml version='1.0'?>\n<!DOCTYPE d [<!ENTITY a 'b'>]>\n<domain>&a;</domain>";
    for (text, part) in [
        (bomb, "line 2: a DOCTYPE"),
        ("<network/>", "<network>"),
        ("", "no element"),
        ("<domain>\n<a></domain>", "line 2"),
        ("<domain><os><type machine='pc'>hvm</type></os></domain>", "domain/os/type/@machine"),
    ] {
        let (code, out, err) = with(text);
        assert!(code == 1 && out.is_empty() && err.contains(part), "{text}: {code} {err}");
    }
    fs::write(&file, [0xff, 0xfe, 0x00]).unwrap();
    let (code, _, err) = export(&["--template", path]);
    assert!(code == 1 && err.contains("template.xml"), "{err}");
    fs::remove_file(&file).unwrap();
    let (code, _, err) = export(&["--template", path]);
    assert!(code == 1 && err.contains("template.xml"), "{err}");
}

#[test]
fn a_template_without_an_agent_lacks_its_channel_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (template, file) = (dir.path().join("template.xml"), dir.path().join("a.xml"));
    let text = fs::read_to_string(project().join("templates/gpu-guest.xml")).unwrap();
    let (before, rest) = text.split_once("    <channel").unwrap();
    let (_, after) = rest.split_once("</channel>\n").unwrap();
    fs::write(&template, format!("{before}{after}")).unwrap();
    let [template, path] = [&template, &file].map(|path| path.to_str().unwrap());
    let arguments = ["--gpus", "2", "--name", "a", "--template", template, "-o", path, "-q"];
    assert_eq!(export(&arguments).0, 0);
    let host = project().join("topologies/dgx-2.json");
    let host = ["--host", host.to_str().unwrap()];
    let tune = |more: &[&str]| run(&mut gpuvm(&[&["tune", path][..], &host, more].concat()));
    // The controller of the channel gets a root port; the places of the GPUs are not other ones.
    let (code, out, _) = tune(&["--check"]);
    assert!(code == 3 && out.contains("agent: no channel -> a channel"), "{out}");
    assert!(!out.contains("pcie:"), "{out}");
    let (code, tuned, err) = tune(&["--quiet"]);
    assert_eq!(code, 0, "{err}");
    fs::write(&file, tuned).unwrap();
    let (code, out, _) = tune(&["--check"]);
    assert_eq!(code, 0, "{out}");
}
