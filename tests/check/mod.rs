//! `check` as a command and beside libvirt: libvirt accepts the definitions that the core's table
//! of defects marks as accepted, and nothing is found in gpuvm's own definitions.

#[allow(dead_code)] // read by the core's own tests
#[path = "../../src/core/check/tests/defects.rs"]
mod defects;
mod libvirt;
mod own;
#[allow(dead_code)]
#[path = "../../src/core/check/tests/setting.rs"]
mod setting;

use crate::support;
use gpuvm::check;

/// The correct domain: 2 GPUs of a DGX-2.
fn good() -> String {
    let path = support::project().join("tests/golden/check/good.xml");
    std::fs::read_to_string(path).unwrap()
}

/// The correct domain with edits, each of which must find its place.
fn edited(edits: &[(&str, &str)]) -> String {
    edits.iter().fold(good(), |text, (from, to)| {
        assert!(text.contains(from), "the correct domain has no `{from}`");
        text.replace(from, to)
    })
}

/// Runs `gpuvm check` on the recorded DGX-2 with this text as standard input.
fn check_stdin(text: &str, more: &[&str]) -> (i32, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stdin");
    std::fs::write(&path, text).unwrap();
    let host = support::project().join("topologies/dgx-2.json");
    let mut command = support::gpuvm(&["check", "-", "--host"]);
    command.arg(host).args(more).stdin(std::fs::File::open(path).unwrap());
    support::run(&mut command)
}

#[test]
fn the_command_prints_findings_with_their_places_and_exits_3() {
    let (code, out, err) = check_stdin(&edited(&[("'52'", "'9999'")]), &[]);
    assert_eq!((code, err.as_str()), (3, ""));
    assert_eq!(
        out.lines().next(),
        Some("error: vcpu 9 is pinned to pcpu 9999, which the host does not have")
    );
    assert!(out.contains("  /domain/cputune/vcpupin[10]/@cpuset, line 17 (pin-absent-pcpu)\n"));
    assert!(out.contains("  hint: the host's pcpus are 0-95\n"), "{out}");
    let (code, out, _) = check_stdin(&edited(&[("'52'", "'9999'")]), &["--json"]);
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 3);
    assert_eq!(answer["findings"][0]["rule"], "pin-absent-pcpu");
    assert_eq!(answer["findings"][0]["line"], 17);
}

#[test]
fn the_command_says_what_it_did_not_check() {
    let (code, out, err) = check_stdin(&good(), &[]);
    assert_eq!((code, err.as_str()), (0, ""));
    let start = format!("train-a-2g0-1: nothing found, {} rules checked", check::rules().count());
    assert!(out.starts_with(&start), "{out}");
    assert!(
        out.contains("not checked: other domains (--host is given without --domain-xml)"),
        "{out}"
    );
}

#[test]
fn an_invalid_domain_is_an_error_with_a_hint() {
    let bomb = "<!DOCTYPE d [<!ENTITY a 'aaaaaaaa'><!ENTITY b '&a;&a;&a;'>]><domain>&b;</domain>";
    for text in ["", "garbage", bomb, "<network/>", "<domain><name>x</domain>", "\u{0}"] {
        let (code, out, err) = check_stdin(text, &[]);
        assert_eq!((code, out.as_str()), (1, ""), "{text:?}: {err}");
        assert!(err.starts_with("error: ") && err.contains("\nhint: "), "{text:?}: {err}");
    }
    let host = support::project().join("topologies/dgx-2.json");
    for target in ["/nowhere/x.xml", "x.xml", "./x", "/"] {
        let (code, _, err) = support::run(support::gpuvm(&["check", target, "--host"]).arg(&host));
        assert_eq!(code, 1, "{target}: {err}");
        assert!(err.contains("\nhint: "), "{target}: {err}");
    }
}
