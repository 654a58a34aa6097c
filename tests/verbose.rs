//! `-v` and `-vv`: the log of a run, which changes nothing else.

use crate::support::{gpuvm, run};

/// The lines of standard error that report this, without the seconds before them.
fn lines(err: &str, of: &str) -> Vec<String> {
    let text = |line: &str| line.split_once(" s ").map(|(_, rest)| rest.to_owned());
    err.lines().filter_map(text).filter(|line| line.starts_with(of)).collect()
}

#[test]
fn a_verbose_plan_logs_reads_and_answers_the_same() {
    let host = crate::support::host_tree("dgx-2");
    let host = host.to_str().unwrap();
    let args = |more: &[&'static str]| {
        let args = ["plan", "--host", host, "--gpus", "2", "--json"];
        run(&mut gpuvm(&[&args[..], more].concat()))
    };
    let (code, plain, err) = args(&[]);
    assert!(code == 0 && err.is_empty(), "{err}");
    // It changes nothing and runs nothing.
    assert_eq!(args(&["-v"]), (0, plain.clone(), String::new()));
    let (code, out, err) = args(&["-vv"]);
    assert!(code == 0 && out == plain, "{err}");
    let read = lines(&err, "read ");
    assert!(read.contains(&format!("read {host}/proc/meminfo")), "{err}");
    assert!(read.len() > 100 && read.len() == err.lines().count(), "{err}");
}

#[test]
fn a_change_logs_libvirt_and_files_by_the_number_of_v() {
    let args = |more: &str| {
        let delete = ["--connect", "test:///default", "delete", "test", "--yes"];
        run(&mut gpuvm(&[&delete[..], &["--lock-wait", "300", more]].concat()))
    };
    let (code, _, err) = args("-v");
    assert_eq!(code, 0, "{err}");
    let asked = lines(&err, "libvirt: ");
    let undefined = |line: &String| line.starts_with("libvirt: undefine domain `test`");
    assert!(asked.iter().any(undefined), "{err}");
    assert!(asked.iter().all(|line| line.ends_with(" s")), "{err}");
    assert!(!err.contains("list the domains") && lines(&err, "read ").is_empty(), "{err}");
    assert!(lines(&err, "wrote ").iter().any(|line| line.ends_with(".jsonl")), "{err}");
    let (code, _, err) = args("-vv");
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("libvirt: XML of domain `test`"), "{err}");
    // How the same run speaks without.
    let (code, _, err) = args("--json");
    assert!(code == 0 && lines(&err, "").is_empty(), "{err}");
}

#[test]
fn an_error_as_json_stays_the_one_document_of_standard_output() {
    let args = ["--connect", "test:///default", "show", "absent", "--json", "-vv"];
    let (code, out, err) = run(&mut gpuvm(&args));
    assert_eq!(code, 1, "{err}");
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["format"], "gpuvm-error");
    assert!(err.contains("libvirt: connect to test:///default"), "{err}");
}
