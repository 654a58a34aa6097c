//! Output fits the terminal, and has colours only where they are wanted.

use crate::support::{gpuvm, project, run};
use std::path::PathBuf;

/// Recorded hosts.
const HOSTS: [&str; 6] = ["dgx-1", "dgx-2", "dgx-a100", "dgx-h100", "dual-socket", "h100-guest"];

/// Command lines on a recorded host; `{xml}` is a domain of it.
const RECORDED: [&str; 19] = [
    "plan --gpus 2",
    "plan --gpus 2 --explain",
    "plan --gpus 99",
    "plan --gpus 1 --domain-xml {xml}",
    "drive list",
    "device list",
    "device list --domain-xml {xml}",
    "gpu list",
    "gpu list --domain-xml {xml}",
    "nic list",
    "list --domain-xml {xml}",
    "capacity",
    "capacity --domain-xml {xml}",
    "host show",
    "host show --all",
    "host pages",
    "check {xml}",
    "tune {xml} --check",
    "create --gpus 1 --dry-run --accept-shared-fabric --data-size none --no-seed --disk-dir \
     /nowhere",
];

/// Command lines on libvirt's own test host.
const LIVE: [&str; 11] = [
    "list",
    "show test",
    "check test",
    "verify test",
    "history test",
    "network list",
    "network show default",
    "network doctor test",
    "image list --pool default-pool",
    "tune test --check",
    "start nobody",
];

/// Columns of a line.
fn columns(line: &str) -> usize {
    line.chars().count()
}

/// Lines that are wider, except commands to be pasted.
fn too_wide(text: &str, width: usize) -> Vec<&str> {
    let is_command =
        |line: &&str| line.trim_start().starts_with('`') && line.matches('`').count() == 2;
    text.lines().filter(|line| columns(line) > width && !is_command(line)).collect()
}

/// A domain for a recorded host.
fn domain(host: &str, dir: &std::path::Path) -> PathBuf {
    let file = dir.join(format!("{host}.xml"));
    let export = ["export", "--host", &format!("topologies/{host}.json"), "--gpus", "1"];
    let more = ["--name", "guest-of-a-long-name"];
    let (code, xml, err) = run(gpuvm(&[&export[..], &more].concat()).current_dir(project()));
    assert_eq!(code, 0, "{host}: {err}");
    std::fs::write(&file, xml).unwrap();
    file
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let mut wide = Vec::new();
    let mut look = |line: &str, words: &[&str]| {
        for width in [80, 100] {
            let command = &mut gpuvm(words);
            let command = command.current_dir(project()).env("COLUMNS", width.to_string());
            let (_, out, err) = run(command);
            assert!(!(out.is_empty() && err.is_empty()), "{line}: nothing was printed");
            let found = [too_wide(&out, width), too_wide(&err, width)].concat();
            wide.extend(found.into_iter().map(|text| format!("{line} at {width}: {text}")));
        }
    };
    for host in HOSTS {
        let xml = domain(host, dir.path()).display().to_string();
        for line in RECORDED {
            let line = format!("{line} --host topologies/{host}.json").replace("{xml}", &xml);
            look(&line, &line.split(' ').collect::<Vec<_>>());
        }
    }
    for line in LIVE {
        let line = format!("{line} --connect test:///default");
        look(&line, &line.split(' ').collect::<Vec<_>>());
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

#[test]
fn lists_and_plans_at_80_columns_are_as_they_were_kept() {
    let mut stale = Vec::new();
    for (name, line) in [
        ("drives", "drive list --host topologies/dual-socket.json"),
        ("devices", "device list --host topologies/dgx-a100.json"),
        ("nics", "nic list --host topologies/dual-socket.json"),
        ("plan", "plan --gpus 2 --explain --host topologies/dgx-2.json"),
        ("refused", "plan --gpus 3 --host topologies/dgx-2.json"),
        ("networks", "network list --connect test:///default"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let command = &mut gpuvm(&words);
        let (_, out, err) = run(command.current_dir(project()).env("COLUMNS", "80"));
        let file = project().join(format!("tests/golden/screen/{name}.txt"));
        if std::env::var_os("GPUVM_RENEW").is_some() {
            std::fs::write(&file, format!("{out}{err}")).unwrap();
        }
        if std::fs::read_to_string(&file).unwrap_or_default() != format!("{out}{err}") {
            stale.push(format!("{}:\n{out}{err}", file.display()));
        }
    }
    assert!(stale.is_empty(), "GPUVM_RENEW=1 renews:\n{}", stale.join("\n"));
}

#[test]
fn a_pipe_gets_a_record_a_line() {
    let list = ["--host", "topologies/dgx-2.json", "device", "list"];
    let (code, out, err) = run(gpuvm(&list).current_dir(project()));
    assert_eq!((code, err.as_str()), (0, ""));
    let json = run(gpuvm(&list).arg("--json").current_dir(project())).1;
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(out.lines().count(), rows.as_array().unwrap().len() + 1);
    assert!(out.lines().any(|line| columns(line) > 80), "{out}");
}

#[test]
fn pasteable_commands_are_whole_at_any_width() {
    let plan = ["--host", "topologies/dgx-2.json", "plan", "--gpus", "3"];
    let hints = |width: &str| {
        let (code, _, err) = run(gpuvm(&plan).current_dir(project()).env("COLUMNS", width));
        assert_eq!(code, 1);
        let hints: Vec<String> = err.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        hints
    };
    assert_eq!(hints("20"), hints("1000"));
    assert!(!hints("20").is_empty() && hints("20").iter().all(|hint| !hint.contains('\n')));
}

/// The output of a command line with this environment.
fn coloured(line: &str, set: &[(&str, &str)]) -> (String, String) {
    let words: Vec<&str> = line.split(' ').collect();
    let mut command = gpuvm(&words);
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    let (_, out, err) = run(command.current_dir(project()).envs(set.iter().copied()));
    (out, err)
}

#[test]
fn colours_are_where_they_are_wanted() {
    let list = "--host topologies/dgx-2.json gpu list";
    let (plain, _) = coloured(list, &[]);
    assert!(!plain.contains('\u{1b}'), "{plain}");
    let (out, _) = coloured(&format!("{list} --color always"), &[]);
    assert!(out.contains("\u{1b}[1mADDRESS"), "{out}");
    assert!(out.contains("\u{1b}[32mfree\u{1b}[0m\n"), "{out}");
    let bare = |text: &str| {
        let mut parts = text.split('\u{1b}');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + part.split_once('m').unwrap().1)
    };
    let trimmed = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.trim_end().to_owned()).collect()
    };
    assert_eq!(trimmed(&bare(&out)), trimmed(&plain), "colours change the words");
    let (_, err) = coloured("--color=always --host topologies/dgx-2.json plan --gpus 3", &[]);
    assert!(err.starts_with("\u{1b}[1m\u{1b}[31merror:\u{1b}[0m "), "{err}");
    assert!(err.contains("\n\u{1b}[1m\u{1b}[36mhint:\u{1b}[0m "), "{err}");
    let (out, err) = coloured(&format!("{list} --json --color always"), &[]);
    assert!(!out.contains('\u{1b}') && err.is_empty(), "{out}{err}");
    let (help, _) = coloured("--help --color always", &[]);
    let (dull, _) = coloured("--help --color never", &[("CLICOLOR_FORCE", "1")]);
    assert!(help.contains('\u{1b}') && !dull.contains('\u{1b}'), "{help}{dull}");
    let forced = [("CLICOLOR_FORCE", "1")];
    assert!(coloured(list, &forced).0.contains('\u{1b}'));
    let without = [("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")];
    assert!(!coloured(list, &without).0.contains('\u{1b}'));
}

/// What `script` sees of a command line at a terminal; `set`: its environment.
fn at_a_terminal(line: &str, set: &[(&str, &str)]) -> String {
    let line = format!("{} {line}", env!("CARGO_BIN_EXE_gpuvm"));
    let mut command = std::process::Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(project());
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "CI"] {
        command.env_remove(name);
    }
    command.env("TERM", "xterm").envs(set.iter().copied());
    run(&mut command).1
}

#[test]
fn a_terminal_gets_colours_unless_it_says_otherwise() {
    let list = "--host topologies/dgx-2.json gpu list";
    assert!(at_a_terminal(list, &[]).contains("\u{1b}[1mADDRESS"));
    for set in [&[("NO_COLOR", "1")][..], &[("TERM", "dumb")]] {
        let shown = at_a_terminal(list, set);
        assert!(shown.contains("ADDRESS") && !shown.contains('\u{1b}'), "{set:?}: {shown}");
    }
    let shown = at_a_terminal(&format!("{list} --json"), &[]);
    assert!(shown.contains("\"bdf\"") && !shown.contains('\u{1b}'), "{shown}");
}
