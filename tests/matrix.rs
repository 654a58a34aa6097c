//! `host matrix` equals the tables that were published for the machines, and `host show` its golden
//! copies.

use crate::support::{gpuvm, host_tree, project, run, shared_hosts};
use std::path::{Path, PathBuf};

/// Our recorded hosts.
const HOSTS: [&str; 5] = ["dgx-1", "dgx-2", "dgx-a100", "dgx-h100", "dual-socket"];

/// What `gpuvm --host HOST ARGS` prints.
fn answer(host: &Path, args: &[&str]) -> String {
    let (code, out, err) = run(gpuvm(&["--host", host.to_str().unwrap()]).args(args));
    assert_eq!((code, err.as_str()), (0, ""), "{} {args:?}", host.display());
    out
}

/// The file of a recorded host.
fn file(name: &str) -> PathBuf {
    project().join(format!("topologies/{name}.json"))
}

/// Compares with a golden copy, or renews it.
fn golden(path: &str, found: &str) -> Result<(), String> {
    let file = project().join("tests/golden").join(path);
    if std::env::var_os("GPUVM_RENEW").is_some() {
        std::fs::write(&file, found).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let line = kept.lines().zip(found.lines()).take_while(|(a, b)| a == b).count();
    let (old, new) = (kept.lines().nth(line), found.lines().nth(line));
    if kept == found {
        Ok(())
    } else {
        Err(format!("{path} line {}:\n  {old:?} kept\n  {new:?} printed", line + 1))
    }
}

/// Fails with every difference that was found.
fn all_equal(results: impl IntoIterator<Item = Result<(), String>>) {
    let stale: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    assert!(stale.is_empty(), "GPUVM_RENEW=1 renews tests/golden:\n{}", stale.join("\n"));
}

#[test]
fn the_matrix_equals_the_published_tables() {
    for name in ["dgx-1", "dgx-2", "dgx-a100", "dgx-h100"] {
        let table = project().join(format!("tests/golden/matrix/{name}.tsv"));
        let table = std::fs::read_to_string(table).unwrap();
        assert_eq!(answer(&file(name), &["host", "matrix", "--tsv"]), table, "{name}.json");
        assert_eq!(answer(&host_tree(name), &["host", "matrix", "--tsv"]), table, "{name} tree");
    }
}

#[test]
fn the_matrix_of_each_lstopo_record_is_the_same() {
    let Some(hosts) = shared_hosts() else { return };
    for name in ["dgx1", "dgx2", "dgx-a100", "dgx-h100", "gb300-tray"] {
        let record = hosts.join(format!("synthetic/{name}.hwloc2.xml"));
        let table = std::fs::read_to_string(hosts.join(format!("synthetic/{name}.topo-m.tsv")));
        assert_eq!(answer(&record, &["host", "matrix", "--tsv"]), table.unwrap(), "{name}");
    }
}

#[test]
fn drives_are_added_when_asked_for() {
    let table = answer(&file("dgx-2"), &["host", "matrix", "--tsv", "--nvme"]);
    let head: Vec<&str> = table.lines().next().unwrap().split('\t').collect();
    assert_eq!((head[27], head[36]), ("nvme0n1", "nvme9n1"));
    let cell = |row: &str, column: &str| {
        let at = head.iter().position(|name| *name == column).unwrap();
        let line = table.lines().find(|line| line.split('\t').next() == Some(row)).unwrap();
        line.split('\t').nth(at).unwrap().to_owned()
    };
    let found = ["nvme2n1", "nvme4n1", "nvme6n1"].map(|drive| cell("GPU0", drive));
    assert_eq!(found, ["PXB", "NODE", "SYS"]);
    assert_eq!(cell("nvme2n1", "nvme3n1"), "PIX", "two ports of one switch");
    assert_eq!(cell("nvme0n1", "nvme1n1"), "PHB", "two root ports of one host bridge");
}

#[test]
fn the_matrix_as_json_and_as_text_hold_the_same_words() {
    let json = answer(&file("dgx-1"), &["host", "matrix", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["proximity"][0][0], "X");
    assert_eq!(json["proximity"][0][3], "NV2");
    assert_eq!(json["devices"][0]["bdf"], "0000:06:00.0");
    all_equal(HOSTS.map(|name| {
        golden(&format!("matrix/{name}.txt"), &answer(&file(name), &["host", "matrix"]))
    }));
}

#[test]
fn show_prints_what_it_printed() {
    all_equal(
        HOSTS.map(|name| {
            golden(&format!("host/{name}.txt"), &answer(&file(name), &["host", "show"]))
        }),
    );
}

#[test]
fn pages_are_shown_and_what_lacks_is_a_step() {
    let text = std::fs::read_to_string(file("dgx-2")).unwrap();
    let mut host: serde_json::Value = serde_json::from_str(&text).unwrap();
    host["host"]["machine"]["hugetlbfs"] =
        serde_json::json!([{"page_kib": 2048, "at": "/dev/hugepages"}]);
    host["host"]["nodes"][0]["huge_pages"] = serde_json::json!([
        {"page_kib": 2048, "total": 20, "free": 5, "surplus": 4},
        {"page_kib": 1 << 20, "total": 90, "free": 90},
    ]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("host.json");
    std::fs::write(&file, host.to_string()).unwrap();
    all_equal([golden("host/pages.txt", &answer(&file, &["-q", "host", "pages"]))]);
    let args = ["--host", file.to_str().unwrap(), "host", "pages", "--size", "1G", "--node", "0"];
    let (code, out, err) = run(&mut gpuvm(&args));
    assert_eq!((code, out.lines().count()), (0, 2), "{out}{err}");
    assert!(err.contains("-o pagesize=1G hugetlbfs /dev/hugepages1G"), "{err}");
    let create =
        ["-q", "create", "--gpus", "2", "--gpu-index", "0", "--memory", "96G", "--name", "a"];
    let more = ["--huge-pages", "1G", "--reserve-pages", "--accept-shared-fabric", "--dry-run"];
    let os = ["--disk-dir", "/a", "--no-seed", "--data-size", "none"];
    let steps = answer(&file, &[&create[..], &more, &os].concat());
    assert!(steps.starts_with("reserve 6 pages of 1 GiB on node 0, 96 in all\n"), "{steps}");
    let without =
        answer(&file, &[&create[..], &[more[0], more[1], more[3], more[4]], &os].concat());
    assert!(!without.contains("reserve"), "{without}");
}

#[test]
fn show_keeps_to_the_width() {
    for name in HOSTS {
        let file = file(name);
        let args = ["--host", file.to_str().unwrap(), "host", "show", "--all"];
        // No columns at all is the same as no setting.
        for width in [1, 20, 40, 80, 200] {
            let (code, out, _) = run(gpuvm(&args).env("COLUMNS", width.to_string()));
            assert_eq!(code, 0, "{name} at {width}");
            let tree = out.split("\nPCIe\n").nth(1).unwrap().split("\n\n").next().unwrap();
            let longest = tree.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(longest <= width.max(22), "{name} at {width}: {longest}");
        }
    }
}

#[test]
fn show_all_names_every_function_once() {
    for name in HOSTS {
        let all = answer(&file(name), &["host", "show", "--all"]);
        let json = answer(&file(name), &["host", "show", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let kinds = json["kinds"].as_object().unwrap();
        assert_eq!(kinds.len(), json["host"]["devices"].as_array().unwrap().len());
        let tree = all.split("\nPCIe\n").nth(1).unwrap().split("\n\n").next().unwrap();
        for bdf in kinds.keys() {
            let short = bdf.strip_prefix("0000:").unwrap();
            let found = tree.matches(&format!(" {short} ")).count();
            assert_eq!(found, 1, "{name} {bdf}");
        }
    }
}

#[test]
fn a_capture_is_whole_or_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("host.json");
    let path = file.to_str().unwrap();
    let capture = |more: &[&str]| {
        let tree = host_tree("dgx-2");
        run(gpuvm(&["--host", tree.to_str().unwrap(), "host", "capture", path]).args(more))
    };
    let (code, out, err) = capture(&[]);
    assert_eq!((code, out.as_str()), (0, ""));
    assert_eq!(err, format!("{path}: 96 pcpus, 125 PCI functions\n"));
    let kept = std::fs::read_to_string(project().join("topologies/dgx-2.json")).unwrap();
    // The source of published facts is given only for the project's own record.
    let mut kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    assert!(kept.as_object_mut().unwrap().remove("sources").is_some());
    let text = std::fs::read_to_string(&file).unwrap();
    let mut captured: serde_json::Value = serde_json::from_str(&text).unwrap();
    // What `host doctor` reads of a machine is in no record that was built from published facts.
    let facts = captured["host"].as_object_mut().unwrap().remove("facts");
    assert!(facts.is_some_and(|facts| facts["functions"].as_array().unwrap().len() == 16));
    assert_eq!(captured, kept);
    let (code, _, err) = capture(&[]);
    assert_eq!(code, 1);
    let wanted = format!(
        "error: {path} already exists\nhint: name another file, or replace it with --overwrite\n"
    );
    assert_eq!(err, wanted);
    assert_eq!(capture(&["--overwrite", "--quiet"]), (0, String::new(), String::new()));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn p2p_lists_pairs_below_a_switch_and_what_decides_their_way() {
    let host = file("dgx-2");
    let text = answer(&host, &["host", "p2p"]);
    let first = "GPU0 - mlx5_0    0000:32:00.0  unknown  unknown  12    registers of 0000:33:08.0 are unknown";
    assert!(text.lines().any(|line| line == first), "{text}");
    assert!(text.contains("a record by `sudo gpuvm host capture FILE`"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&answer(&host, &["host", "p2p", "--json"])).unwrap();
    let pairs = json["pairs"].as_array().unwrap();
    let rows = text.lines().filter(|line| line.starts_with("GPU")).count();
    assert_eq!(pairs.len(), rows);
    assert!(pairs.iter().all(|pair| pair["kind"] != "gpu-gpu"), "they have NVLinks: {text}");
    let routes = pairs[0]["routes"].as_array().unwrap();
    assert_eq!(routes.len(), 2, "{routes:?}");
    // Two cards of one host bridge without a switch meet nowhere below it.
    let text = answer(&file("dual-socket"), &["host", "p2p"]);
    assert!(text.starts_with("0 pairs below a switch; "), "{text}");
}
