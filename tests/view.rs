//! `--html` and `--svg` from outside, judged by strict parsers. The tests with a browser are in
//! `tests/browser`, run by `make test-view`.

use crate::support::{gpuvm, project, run};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The arguments that ask about the recorded DGX-2 with its two guests.
const DGX2: [&str; 4] =
    ["--host", "topologies/dgx-2.json", "--domain-xml", "tests/golden/capacity"];

/// Runs a verb on the recorded DGX-2; returns standard output.
fn made(verb: &[&str], more: &[&str]) -> String {
    let args = [verb, &DGX2, more].concat();
    let (code, out, err) = run(gpuvm(&args).current_dir(project()));
    assert_eq!(code, 0, "{args:?}: {err}");
    out
}

/// Asserts that strict parsers take a picture and a page.
fn parses(svg: &Path, html: &Path) {
    let (code, _, err) = run(Command::new("xmllint").args(["--noout", "--nonet"]).arg(svg));
    assert_eq!((code, err.as_str()), (0, ""), "{}", svg.display());
    let strict = "import html5lib,sys\n\
        html5lib.HTMLParser(strict=True).parse(open(sys.argv[1], encoding='utf-8').read())\n";
    let (code, _, err) = run(Command::new("/usr/bin/python3").args(["-c", strict]).arg(html));
    assert_eq!((code, err.as_str()), (0, ""), "{}", html.display());
}

#[test]
fn every_verb_draws_what_strict_parsers_take() {
    let dir = tempfile::tempdir().unwrap();
    let (svg, html) = (dir.path().join("a.svg"), dir.path().join("a.html"));
    let files = ["--svg", svg.to_str().unwrap(), "--html", html.to_str().unwrap()];
    let mut pages = Vec::new();
    for verb in [
        &["host", "show"][..],
        &["plan", "--gpus", "4", "--name", "train-c"],
        &["capacity"],
        &["tune", "tests/golden/capacity/train-a.xml", "--diff"],
    ] {
        // The second run replaces the files of the first one.
        let out = made(verb, &files);
        let first = fs::read_to_string(&html).unwrap();
        assert_eq!(made(verb, &files), out);
        assert!(!out.is_empty() && !out.contains("<svg"), "{verb:?} says what it says without");
        let page = fs::read_to_string(&html).unwrap();
        assert_eq!(first, page, "{verb:?}: the same bytes again");
        parses(&svg, &html);
        let whole = made(verb, &["--svg", "-"]);
        assert_eq!(whole, fs::read_to_string(&svg).unwrap(), "{verb:?}");
        // Without a picture `host show` takes no domains.
        let json = match verb {
            ["host", "show"] => {
                let args = [verb, &DGX2[..2], &["--json"]].concat();
                run(gpuvm(&args).current_dir(project())).1
            }
            _ => made(verb, &["--json"]),
        };
        let (_, rest) = page.split_once("id=\"data\">").unwrap();
        let (island, _) = rest.split_once("</script>").unwrap();
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(island), value(&json), "{verb:?}");
        pages.push(page);
    }
    assert!(pages[0].contains("train-a (A): GPU 0 (0000:34:00.0)"));
    assert!(pages[1].contains("train-c (C): NVLink partition"));
    assert!(pages[2].contains("the largest guest that fits has"));
    assert!(pages[3].contains("1 of 1 domain would change"), "{}", pages[3]);
    for page in &pages {
        let (code, _, _) = run(Command::new("grep").arg("-c").arg("20[0-9][0-9]-").arg(&html));
        assert_eq!(code, 1, "a date: {}", page.len());
    }
}

#[test]
fn hostile_names_of_a_file_stay_text() {
    let dir = tempfile::tempdir().unwrap();
    let xml = fs::read_to_string(project().join("tests/golden/capacity/train-a.xml")).unwrap();
    let (svg, html) = (dir.path().join("a.svg"), dir.path().join("a.html"));
    let long = "n".repeat(300);
    for name in [
        "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;",
        "&quot;'&gt;&amp;lt;",
        "a&#x202e;b",
        &long,
    ] {
        let file = dir.path().join("guest.xml");
        fs::write(&file, xml.replace("train-a", name)).unwrap();
        let args = ["host", "show", "--host", "topologies/dgx-2.json", "--domain-xml"];
        let mut command = gpuvm(&args);
        command.arg(&file).arg("--svg").arg(&svg).arg("--html").arg(&html);
        let (code, _, err) = run(command.current_dir(project()));
        assert_eq!(code, 0, "{name}: {err}");
        parses(&svg, &html);
        let page = fs::read_to_string(&html).unwrap();
        assert!(!page.contains("<script>alert"), "{name}");
        let mut command = gpuvm(&args);
        command.arg(&file).args(["--html", "-"]);
        assert_eq!(run(command.current_dir(project())).1, page, "{name}: on standard output");
    }
}

#[test]
fn only_own_files_are_replaced_and_options_agree() {
    let dir = tempfile::tempdir().unwrap();
    let notes = dir.path().join("notes.svg");
    fs::write(&notes, "mine").unwrap();
    let refused = |verb: &[&str], more: &[&str]| {
        let args = [verb, &DGX2, more].concat();
        let (code, out, err) = run(gpuvm(&args).current_dir(project()));
        assert_eq!(out, "", "{args:?}");
        assert!(err.contains("hint: "), "{args:?}: {err}");
        (code, err)
    };
    let show = ["host", "show"];
    let (code, err) = refused(&show, &["--svg", notes.to_str().unwrap()]);
    assert!(code == 1 && err.contains("gpuvm did not make it"), "{err}");
    assert_eq!(fs::read_to_string(&notes).unwrap(), "mine");
    assert_eq!(refused(&show, &["--svg", "/dev/null"]).0, 1);
    assert_eq!(refused(&show, &["--svg", "-", "--html", "-"]).0, 2);
    // With --json the error is JSON on standard output.
    let args = [&show[..], &DGX2, &["--svg", "-", "--json"]].concat();
    let (code, out, _) = run(gpuvm(&args).current_dir(project()));
    assert!(code == 2 && out.contains("\"hint\"") && !out.contains("<svg"), "{out}");
    assert_eq!(refused(&show, &["--identify"]).0, 2);
    assert_eq!(refused(&show, &[]).0, 2);
    assert_eq!(refused(&["tune", "tests/golden/capacity/train-a.xml"], &["--svg", "-"]).0, 2);
}

#[test]
fn pages_leave_out_identifiers_of_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(project().join("topologies/dgx-2.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["host"]["machine"]["host_name"] = "rack7-node3".into();
    record["host"]["drives"][0]["stable_ids"] = serde_json::json!(["nvme-SN12345"]);
    let gpu = record["host"]["devices"].as_array_mut().unwrap();
    gpu.iter_mut().for_each(|device| {
        if device["device"] == "0x1db8" {
            device["uuid"] = "GPU-0a1b".into();
        }
    });
    let file = dir.path().join("host.json");
    fs::write(&file, record.to_string()).unwrap();
    let page = |more: &[&str]| {
        let mut command = gpuvm(&["host", "show", "--html", "-", "--host"]);
        let (code, out, err) = run(command.arg(&file).args(more));
        assert_eq!(code, 0, "{err}");
        out
    };
    let (plain, named) = (page(&[]), page(&["--identify", "--date", "Tuesday <1>"]));
    for word in ["rack7-node3", "nvme-SN12345", "GPU-0a1b"] {
        assert!(!plain.contains(word), "{word}");
        assert!(named.contains(word), "{word}");
    }
    assert!(named.contains("Tuesday &lt;1&gt;"));
}

/// Whoever gets a page learns neither the connection nor whose folders the files are in.
#[test]
fn commands_of_pages_name_no_connection_and_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home/alice");
    fs::create_dir_all(&home).unwrap();
    let at = |name: &str| home.join(name).to_str().unwrap().to_owned();
    let (host, node, guest) = (at("rack.json"), at("node.xml"), at("guest.xml"));
    fs::copy(project().join("topologies/dgx-2.json"), &host).unwrap();
    fs::copy(project().join("tests/golden/capacity/train-a.xml"), &guest).unwrap();
    fs::write(&node, "<node/>\n").unwrap();
    let uri = format!("test://{node}");
    let (svg, html) = (dir.path().join("a.svg"), dir.path().join("a.html"));
    let mut seen = 0;
    for verb in [
        &["host", "show"][..],
        &["capacity"],
        &["plan", "--gpus", "4", "--huge-pages", "auto"],
        &["tune", &guest, "--diff"],
    ] {
        let mut command = gpuvm(verb);
        command.args(["--host", &host, "--domain-xml", &guest, "-c", &uri]);
        let (code, out, err) = run(command.arg("--svg").arg(&svg).arg("--html").arg(&html));
        assert_eq!(code, 0, "{verb:?}: {err}");
        for file in [&svg, &html] {
            let text = fs::read_to_string(file).unwrap();
            let own = dir.path().to_str().unwrap();
            for word in ["alice", "test://", "node.xml", own] {
                assert!(!text.contains(word), "{verb:?}: {word} is in {}", file.display());
            }
            seen += text.matches("--connect URI").count();
        }
        // Messages to the caller can be pasted.
        assert!(!format!("{out}{err}").contains("--connect URI"), "{out}{err}");
    }
    assert!(seen > 0, "no page has a command");
}

/// The NVSwitches in the picture of a recorded DGX H100, and the text of each verb.
#[test]
fn nvswitches_of_fabric_manager_are_free_in_no_verb() {
    let dir = tempfile::tempdir().unwrap();
    let html = dir.path().join("a.html");
    let on = ["--host", "topologies/dgx-h100.json"];
    let said = |verb: &[&str], more: &[&str]| {
        let (code, out, err) = run(gpuvm(&[verb, &on, more].concat()).current_dir(project()));
        assert_eq!(code, 0, "{err}");
        out
    };
    let all = "stays with Fabric Manager, which sets up the NVLinks of guests";
    for verb in [["device", "list"], ["gpu", "list"]] {
        let out = said(&verb, &[]);
        let lines: Vec<&str> = out.lines().filter(|line| line.contains("NVSwitch 3")).collect();
        assert_eq!(lines.len(), 4, "{out}");
        assert!(lines.iter().all(|line| line.ends_with(all)), "{out}");
        assert!(out.lines().any(|line| line.ends_with("free")), "{out}");
    }
    let out = said(&["host", "show"], &["--html", html.to_str().unwrap()]);
    assert!(out.contains("NVSwitches stay with Fabric Manager"), "{out}");
    let page = fs::read_to_string(&html).unwrap();
    assert_eq!(page.matches(">FM</text>").count(), 5, "four and the legend");
    assert_eq!(page.matches(&format!("not for guests: it {all}</td>")).count(), 4);
    // Guests of a DGX-2 get its NVSwitches.
    let out =
        run(gpuvm(&["gpu", "list", "--host", "topologies/dgx-2.json"]).current_dir(project())).1;
    assert!(!out.contains("Fabric Manager"), "{out}");
}

/// The page of `capacity` and its text say the same, the answer first; without guests `host show`
/// says what fits.
#[test]
fn pages_begin_with_what_fits() {
    let text = made(&["capacity"], &[]);
    let page = made(&["capacity"], &["--html", "-"]);
    let (header, rest) = page.split_once("</header>").unwrap();
    let line = "what still fits: 14 guests with 1 GPU, 6 with 2 GPUs, 2 with 4 GPUs, none with 8 or \
                16 GPUs";
    assert!(header.contains(&format!("<strong>{line}</strong>")), "{header}");
    assert!(rest.starts_with("\n<main><section id=\"capacity\""), "{}", &rest[..200]);
    let (section, _) = rest.split_once("</section>").unwrap();
    let advice = text.lines().last().unwrap();
    assert!(advice.starts_with("stop `train-a`"), "{text}");
    assert!(section.contains(&format!("<p>{advice}</p>")), "{section}");
    let on = ["host", "show", "--host", "topologies/dgx-2.json", "--assume-empty", "--html", "-"];
    let (code, page, err) = run(gpuvm(&on).current_dir(project()));
    assert_eq!(code, 0, "{err}");
    let line = "16 guests with 1 GPU, 8 with 2 GPUs, 4 with 4 GPUs, 2 with 8 GPUs, 1 with 16 GPUs";
    let (_, answer) = page.split_once("<dd id=\"answer-fits\">").unwrap();
    assert!(answer.starts_with(&format!("<p>{line}</p>")), "{}", &answer[..300]);
    assert!(!page.contains("no guest is there"));
}
