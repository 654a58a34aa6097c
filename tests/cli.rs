//! The command line from outside: help, man pages, completions, the README's examples, bad host
//! files.

use crate::support::{gpuvm, project, run, skip};
use clap::CommandFactory as _;
use gpuvm::cli::args::Cli;
use std::fs;

/// Whether golden files are to be renewed.
fn renew() -> bool {
    std::env::var_os("GPUVM_RENEW").is_some()
}

#[test]
fn man_pages_are_those_of_the_arguments() {
    let dir = project().join("man");
    let pages = gpuvm::cli::pages::all().unwrap();
    if renew() {
        for (name, page) in &pages {
            fs::write(dir.join(name), page).unwrap();
        }
    }
    let mut there: Vec<String> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".1"))
        .collect();
    there.sort();
    let made: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(there, made, "man/ holds other pages; GPUVM_RENEW=1 cargo test writes them");
    for (name, page) in &pages {
        let text = fs::read_to_string(dir.join(name)).unwrap();
        assert!(text == *page, "man/{name} is stale; GPUVM_RENEW=1 cargo test writes it");
    }
}

#[test]
fn every_verb_has_help_with_its_options_explained() {
    let mut open = vec![(Cli::command().disable_help_subcommand(true), Vec::<String>::new())];
    let mut seen = 0;
    while let Some((command, words)) = open.pop() {
        let below = command.get_subcommands();
        open.extend(below.map(|c| (c.clone(), [&words[..], &[c.get_name().to_owned()]].concat())));
        let args: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
        let (code, out, err) = run(&mut gpuvm(&args));
        assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
        assert!(out.contains("Usage: gpuvm"), "{args:?}: {out}");
        seen += 1;
    }
    assert_eq!(seen, gpuvm::cli::pages::all().unwrap().len());
}

#[test]
fn completions_are_made_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, out, _) = run(&mut gpuvm(&["completions", shell]));
        assert_eq!(code, 0);
        assert!(out.contains("GPUVM_COMPLETE") && out.contains("gpuvm"), "{shell}");
        for (words, index, answer) in [
            (&["gpuvm", "exp"][..], "1", "export"),
            (&["gpuvm", "create", "--gpu-i"], "2", "--gpu-index"),
            (&["gpuvm", "-c", "test:///default", "show", ""], "4", "test"),
        ] {
            let mut asked = gpuvm(&[&["--"], words].concat());
            asked.env("GPUVM_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", index);
            let (code, out, err) = run(&mut asked);
            assert!(code == 0 && out.contains(answer), "{shell} {words:?}: {out}{err}");
        }
    }
    let (code, _, err) = run(&mut gpuvm(&["completions", "csh"]));
    assert_eq!(code, 2);
    assert!(err.contains("csh"), "{err}");
}

#[test]
fn usage_errors_end_with_2_and_say_what_is_wrong() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["frobnicate"], "frobnicate"),
        (&["launch"], "`gpuvm create`: Plan, define and start a guest"),
        (&["destroy", "x"], "`gpuvm delete`: Delete a domain"),
        (&["network", "add"], "`gpuvm network create`"),
        (&["plan", "--gpus", "two"], "two"),
        (&["plan", "--gpus", "-1"], "-1"),
        (&["plan", "--memory", "12"], "did you mean 12G?"),
        (&["plan", "--memory", "12X"], "180G"),
        (&["plan", "--gpu", "34:00"], "0000:34:00.0"),
        (&["plan", "--gpus", "1", "--gpu", "34:00.0"], "cannot be used with"),
        (&["plan", "--huge-pages", "4K"], "2M"),
        (&["plan", "--name", "a/b"], "'/' at 2"),
        (&["plan", "--name", ".."], "'.' at 1"),
        (&["plan", "--name", "a\nb"], "a\\nb"),
        (&["plan", "--name", "\"x\""], "\\\"x"),
        (&["delete"], "<NAME>"),
        (&["create", "--host", "x", "--domain", "a", "--name", "b"], "cannot be used with"),
        (&["man", "frobnicate"], "no man page `gpuvm-frobnicate`\nhint: `gpuvm -h` lists the"),
        (&["man", "frobnicate"], "other pages: guide, tuning, networks, drives, placement,"),
        (&["man", "tunning"], "hint: did you mean `gpuvm man tuning`?"),
        (&["man", "host shwo"], "hint: did you mean `gpuvm man host-show`?"),
        (&["host", "pages", "--count", "3"], "--node <NODE>"),
        (&["host", "pages", "--node", "0", "--size", "4K"], "2M"),
        (&["host", "pages", "--node", "0", "--size", "2M", "--count", "-1"], "-1"),
        (&["host", "pages", "--node", "0", "--size", "2M", "--count", "many"], "many"),
        (&["host", "pages", "--at-boot"], "--count <N>"),
    ];
    for (args, text) in cases {
        let (code, out, err) = run(&mut gpuvm(args));
        assert_eq!(code, 2, "{args:?}: {err}");
        assert_eq!(out, "", "{args:?}");
        assert!(err.contains(text), "{args:?}: {err}");
    }
    let (_, _, err) = run(&mut gpuvm(&["man", "frobnicate"]));
    assert!(err.contains("codes") && !err.contains("export"), "a page of a command, too: {err}");
    let long = "x".repeat(300);
    let (code, _, err) = run(&mut gpuvm(&["plan", "--name", &long]));
    assert_eq!(code, 2);
    assert!(err.contains("1 to 128 characters"), "{err}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = gpuvm(&["man", "create"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn libvirt_is_not_loaded_before_it_is_needed() {
    let output = std::process::Command::new("ldd").arg(env!("CARGO_BIN_EXE_gpuvm")).output();
    let Ok(output) = output else {
        return skip("ldd is not installed");
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("libc.so"), "{text}");
    if cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        assert!(!text.contains("libvirt"), "a libvirt function has no stub: {text}");
    }
}

#[test]
fn host_files_that_are_none_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let deep =
        format!("{{\"format\":\"gpuvm-host\",\"version\":1,\"host\":{}", "[".repeat(100_000));
    let bomb = "<!DOCTYPE a [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><topology \
                version=\"2.0\">&b;</topology>";
    let cases = [
        (write("empty", b""), "empty"),
        (write("new.json", br#"{"format":"gpuvm-host","version":99,"host":{}}"#), "version 99"),
        (write("other.json", br#"{"format":"x","version":1}"#), "`x`"),
        (write("none.json", b"{}"), "missing"),
        (write("broken.json", b"{\n\"format\": \"gpuvm-host\",\n\"version\": }"), "line 3"),
        (write("deep.json", deep.as_bytes()), "line 1"),
        (write("binary", &[0xff, 0xfe, 0, 1, 2]), "binary"),
        (write("bomb.xml", bomb.as_bytes()), "document type"),
        (dir.path().join("absent").into_os_string().into_string().unwrap(), "absent"),
        (dir.path().join("").into_os_string().into_string().unwrap(), "sys/"),
    ];
    for (path, text) in &cases {
        for args in [&["host", "show"][..], &["plan", "--gpus", "1"], &["export", "--gpus", "1"]] {
            let (code, out, err) = run(gpuvm(args).args(["--host", path]));
            assert_eq!((code, out.as_str()), (1, ""), "{path} {args:?}: {err}");
            assert!(err.starts_with("error: ") && err.contains(text), "{path} {args:?}: {err}");
        }
    }
}

/// Runs `capacity` for the recorded DGX-2.
fn capacity(line: &str) -> (i32, String, String) {
    let host = project().join("topologies/dgx-2.json");
    let mut args = vec!["capacity", "--host", host.to_str().unwrap()];
    args.extend(line.split_whitespace());
    run(gpuvm(&args).current_dir(project()))
}

#[test]
fn capacity_says_what_fits_and_what_would_free_more() {
    let (code, out, err) = capacity("");
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("\n16               1\n") && !out.contains("do not fit"), "{out}");
    let two = "--domain-xml tests/golden/capacity";
    let (_, out, _) = capacity(two);
    assert!(out.contains("8 GPUs do not fit now: no partition of 8 GPUs is free"), "{out}");
    assert!(
        out.contains("stop `train-a` (1 GPU) and start it at GPU 9: then partition 1"),
        "{out}"
    );
    let (_, out, _) = capacity(&format!("{two} --gpus 16"));
    assert!(out.contains("only by ending a guest: ") && !out.contains("\n  8 "), "{out}");
    let (_, out, _) = capacity(&format!("{two} --gpus 8 --json"));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["sizes"], serde_json::json!([{ "gpus": 8, "now": 0, "empty": 2 }]));
    assert_eq!(json["next"]["advice"]["guests"][0]["to"]["gpus"], serde_json::json!([9]));
    let (_, out, _) = capacity("--gpus 4 --memory 9T");
    assert!(out.contains("do not fit, even on the empty host: requested 9 TiB"), "{out}");
}

#[test]
fn capacity_refuses_nonsense() {
    let file = "--domain-xml tests/golden/capacity/train-a.xml";
    for (line, code, text) in [
        ("--gpus two", 2, "two"),
        ("--nic-near switch", 2, "--nic-near is given"),
        (&format!("{file} --assume-empty"), 2, "cannot be used with"),
        (&format!("{file} --domain-xml nowhere.xml"), 1, "nowhere.xml"),
        ("--domain-xml README.md", 1, "README.md"),
    ] {
        let (status, out, err) = capacity(line);
        assert_eq!((status, out.as_str()), (code, ""), "{line}: {err}");
        assert!(err.contains(text), "{line}: {err}");
    }
    let here = format!("capacity --connect test:///default {file}");
    let here: Vec<&str> = here.split_whitespace().collect();
    let (code, _, err) = run(gpuvm(&here).current_dir(project()));
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("--host is not given"), "{err}");
}

#[test]
fn the_readme_does_what_it_says() {
    let bin = env!("CARGO_BIN_EXE_gpuvm");
    trycmd::TestCases::new()
        .register_bin("gpuvm", trycmd::schema::Bin::Path(bin.into()))
        .env("COLUMNS", "100")
        .case("README.md");
}

#[test]
fn a_usage_line_names_no_option_that_the_environment_gives() {
    for words in [&["completions"][..], &["stop"], &["rename", "a"]] {
        let (code, _, err) = run(gpuvm(words).env("LIBVIRT_DEFAULT_URI", "test:///default"));
        assert_eq!(code, 2);
        assert!(err.contains("Usage: gpuvm") && !err.contains("--connect"), "{err}");
    }
}

#[test]
fn an_image_that_is_not_there_has_the_names_of_known_ones() {
    for (name, hint) in
        [("debian13", " debian-13`?"), ("nosuch.qcow2", "the name of a known image: debian-12, ")]
    {
        let (code, _, err) =
            run(&mut gpuvm(&["image", "add", name, "--connect", "test:///default"]));
        assert_eq!(code, 1);
        assert!(err.contains(&format!("{name} cannot be used: No such file")), "{err}");
        assert!(err.contains(hint), "{err}");
    }
}

#[test]
fn a_blank_disk_may_be_in_a_directory_and_an_image_may_not() {
    let dir = tempfile::tempdir().unwrap();
    let create = |image: &str| {
        let line = ["-c", "test:///default", "create", "--name", "blank", "--dry-run"];
        let more = ["--pins", "none", "--vcpus", "1", "--memory", "64M", "--data-size", "none"];
        let disks = ["--no-login", "--no-start", "--os-size", "8M", "--disk-dir"];
        let words = [&line[..], &more, &disks, &[dir.path().to_str().unwrap(), "--image", image]];
        run(&mut gpuvm(&words.concat()))
    };
    let (code, _, err) = create("none");
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = create("debian-13");
    assert!(code == 2 && err.contains("--disk-dir is for a blank boot disk"), "{err}");
}
