//! Tests for which libvirt's test driver is enough: it runs in this process, reads its domains from
//! a file, and acts as another machine.

use crate::support::{gpuvm, run};
use serde_json::Value;
use std::path::Path;

/// Writes a test host with these domains, and returns its URI.
fn host(dir: &Path, domains: &[String]) -> String {
    let file = dir.join("host.xml");
    std::fs::write(&file, format!("<node>{}</node>", domains.concat())).unwrap();
    format!("test://{}", file.display())
}

/// A domain of this name with this in its metadata.
fn domain(name: &str, metadata: &str) -> String {
    format!(
        "<domain type='test'><name>{name}</name><memory>65536</memory><vcpu>1</vcpu>\
         <metadata>{metadata}</metadata><os><type>hvm</type></os></domain>"
    )
}

#[test]
fn one_domain_that_cannot_be_read_does_not_keep_the_others_from_being_verified() {
    let dir = tempfile::tempdir().unwrap();
    // Nested deeper than gpuvm reads, and well within what libvirt keeps.
    let deep = format!("<x:a xmlns:x='http://x/'>{}{}</x:a>", "<b>".repeat(80), "</b>".repeat(80));
    let uri = host(dir.path(), &[domain("a", ""), domain("deep", &deep), domain("z", "")]);
    let prom = dir.path().join("x.prom");
    let all = ["--connect", &uri, "verify", "--all", "--metrics", prom.to_str().unwrap()];
    let (code, out, err) = run(&mut gpuvm(&all));
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("nest deeper than 64") && out.contains("deep (running): not compared"));
    for name in ["a", "z"] {
        assert!(out.contains(&format!("\n{name} (running): ")) || out.starts_with(name), "{out}");
    }
    let numbers = std::fs::read_to_string(&prom).unwrap();
    assert!(numbers.contains("{domain=\"deep\",rule=\"not-compared\"} 1"), "{numbers}");
    let (code, out, _) = run(&mut gpuvm(&[&all[..], &["--json"]].concat()));
    let answers: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, answers[1]["findings"][0]["rule"].as_str()), (1, Some("not-compared")));
    assert_eq!((&answers[0]["domain"], &answers[2]["domain"]), (&"a".into(), &"z".into()));
    // Asked for by its name there is nothing else to say.
    let (code, out, err) = run(&mut gpuvm(&["--connect", &uri, "verify", "deep"]));
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("cannot read `deep`"), "{err}");
}

#[test]
fn pages_are_not_reserved_on_another_machine() {
    let create = ["create", "--name", "x", "--gpus", "0", "--huge-pages", "2M"];
    for args in [&create[..], &["tune", "test", "--huge-pages", "2M"], &["tune", "--all"]] {
        for uri in ["test:///default", "qemu+ssh://root@elsewhere.invalid/system"] {
            let verb = args[0];
            let args = [args, &["--reserve-pages", "--connect", uri]].concat();
            for more in [&[][..], &["--dry-run"]] {
                let (code, out, err) = run(&mut gpuvm(&[&args[..], more].concat()));
                assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
                let said = format!("pages cannot be reserved on the machine of {uri}");
                let hint = format!("hint: `gpuvm {verb} ... --reserve-pages` there");
                assert!(err.contains(&said) && err.contains(&hint), "{err}");
            }
        }
    }
}

/// A request is in `show` with all its options, and `list` and `show` agree on the maker of a
/// guest: one whose record has no UUID has none.
#[test]
fn list_and_show_say_the_same_of_a_guest() {
    let uuid = "11111111-2222-3333-4444-555555555555";
    let request = "{\"gpus\":{\"count\":1},\"vcpus\":null,\"memory_kib\":null,\
                   \"huge_pages\":\"auto\",\"profile\":\"near\",\"pins\":\"auto\",\
                   \"cells\":\"auto\",\"threads\":null,\"spare_ports\":3,\
                   \"reserve\":{\"cores\":1},\"movable\":true}";
    let guest = |name: &str, id: &str, uuid: &str| {
        let record = format!(
            "<g:guest xmlns:g='urn:gpuvm:domain:1'{id}><g:request>{request}</g:request></g:guest>"
        );
        domain(name, &record).replace("</name>", &format!("</name><uuid>{uuid}</uuid>"))
    };
    let dir = tempfile::tempdir().unwrap();
    let own = guest("own", &format!(" uuid='{uuid}'"), uuid);
    let uri = host(dir.path(), &[own, guest("copied", "", &uuid.replace('1', "6"))]);
    let (code, listed, err) = run(&mut gpuvm(&["-c", &uri, "list"]));
    assert_eq!(code, 0, "{err}");
    for (name, by) in [("own", "gpuvm"), ("copied", "other")] {
        let row = listed.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(row.trim_end().ends_with(by), "{listed}");
        let (code, shown, err) = run(&mut gpuvm(&["-c", &uri, "show", name]));
        assert_eq!(code, 0, "{err}");
        assert!(shown.contains(&format!("made by   {by}\n")), "{shown}");
        let all =
            "request   --spare-ports 3 --pins none --profile near --reserve-cores 1 --movable\n";
        assert_eq!(shown.contains(all), by == "gpuvm", "{shown}");
    }
}
