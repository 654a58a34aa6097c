//! Many hosts: recorded ones, the test driver, one that refuses and one that is silent.

use crate::support::daemon::daemon;
use crate::support::tree::scratch;
use crate::support::{project, run, skip};
use serde_json::{Value, json as json_of};
use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The result of a run: exit status, standard output, standard error.
type Output = (i32, String, String);

/// A recorded host of the project.
fn record(name: &str) -> String {
    project().join(format!("topologies/{name}.json")).display().to_string()
}

/// Writes a file of hosts.
fn hosts(dir: &Path, hosts: &[(&str, &[(&str, &str)])]) -> PathBuf {
    let mut text = String::new();
    for (name, fields) in hosts {
        writeln!(text, "[host.{name}]").unwrap();
        fields.iter().for_each(|(key, value)| writeln!(text, "{key} = {value:?}").unwrap());
    }
    let file = dir.join("hosts.toml");
    fs::write(&file, text).unwrap();
    file
}

/// Runs a verb on the hosts of a file.
fn fleet(file: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    run(command.arg("fleet").args(words).arg("--hosts").arg(file))
}

/// Its output as JSON.
fn json(output: &Output) -> Value {
    serde_json::from_str(&output.1).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A field of each host.
fn each(answer: &Value, field: &str) -> Vec<Value> {
    answer["hosts"].as_array().unwrap().iter().map(|host| host[field].clone()).collect()
}

#[test]
fn a_refusing_and_a_silent_host_are_findings_and_delay_no_other() {
    let dir = scratch();
    // Connections are accepted by the kernel, without any answer.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("qemu+tcp://127.0.0.1:{}/system", silent.local_addr().unwrap().port());
    let gone = {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("qemu+tcp://127.0.0.1:{}/system", closed.local_addr().unwrap().port())
    };
    let (dgx2, a100) = (record("dgx-2"), record("dgx-a100"));
    let domains = project().join("tests/golden/capacity").display().to_string();
    let file = hosts(
        dir.path(),
        &[
            ("gone", &[("connect", &gone), ("record", &a100)]),
            ("half", &[("record", &dgx2), ("domain_xml", &domains)]),
            ("silent", &[("connect", &silent), ("record", &a100)]),
            ("empty", &[("record", &dgx2)]),
            ("test", &[("connect", "test:///default"), ("record", &a100)]),
            ("lost", &[("connect", "test:///default"), ("record", "lost.json")]),
        ],
    );
    let begun = Instant::now();
    let output = fleet(&file, &["list", "--limit", "2", "--json"]);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!(output.0, 1, "{output:?}");
    let listed = json(&output);
    assert_eq!(each(&listed, "name"), ["gone", "half", "silent", "empty", "test", "lost"]);
    let reached: Vec<Value> = each(&listed, "reached");
    assert_eq!(reached[..5], [false, true, false, true, true]);
    assert_eq!(listed["hosts"][2]["error"]["code"], "fleet-silent");
    assert_eq!(listed["hosts"][3]["free_gpus"], 16);
    assert_eq!(listed["hosts"][4]["running"], 1, "of the test driver");
    assert!(listed["hosts"][1]["free_gpus"].as_u64() < Some(16));
    let text = fleet(&file, &["list", "--limit", "2"]);
    let (_, out, err) = text;
    for row in ["silent  unreachable", "gone    unreachable", "half    recorded", "lost    failed"]
    {
        assert!(out.contains(row), "{row}: {out}");
    }
    assert!(out.contains("test    ok"), "{out}");
    assert!(err.contains("silent: no answer within 2 s"), "{err}");

    let output = fleet(&file, &["capacity", "--limit", "2", "--gpus", "8", "--json"]);
    let counted = json(&output);
    let of: Vec<u64> = [1, 3, 4]
        .iter()
        .map(|at| counted["hosts"][*at]["sizes"][0]["now"].as_u64().unwrap())
        .collect();
    assert_eq!(counted["fits"]["8"].as_u64(), Some(of.iter().sum()));

    let begun = Instant::now();
    let planned = fleet(&file, &["plan", "--gpus", "4", "--limit", "2", "--json"]);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!(planned.0, 0, "a place was found: {planned:?}");
    let planned = json(&planned);
    let lost: Vec<u64> = each(&planned, "lost").iter().filter_map(Value::as_u64).collect();
    assert_eq!(lost.len(), 3);
    assert!(lost.is_sorted(), "{lost:?}");
    assert_eq!(planned["hosts"][0]["name"], "half", "that one is broken into already");
}

#[test]
fn a_machine_without_an_answer_of_its_libvirt_has_no_free_gpus() {
    let dir = scratch();
    // This machine, whose libvirt has no such driver.
    let file = hosts(dir.path(), &[("here", &[("connect", "lxc:///")])]);
    for words in [&["list"][..], &["capacity"], &["plan", "--gpus", "0", "--pins", "none"]] {
        let all = fleet(&file, &[words, &["--json"]].concat());
        let answer = json(&all);
        assert_eq!(
            (all.0, each(&answer, "reached")),
            (1, vec![json_of!(false)]),
            "{words:?}: {all:?}"
        );
        let hint = &answer["hosts"][0]["error"]["hint"];
        assert!(hint.is_null(), "a hint of one connection: {hint}");
        assert!(!all.1.contains("counts as free"), "{words:?}: {all:?}");
    }
    let twice = fleet(Path::new("-"), &["plan", "--plan", "-"]);
    assert!(twice.0 == 2 && twice.2.contains("both read standard input"), "{twice:?}");
}

#[test]
fn the_plan_of_a_fleet_is_that_of_its_host_and_its_command_makes_the_guest() {
    let dir = scratch();
    let dgx2 = record("dgx-2");
    let recorded = hosts(dir.path(), &[("one", &[("record", &dgx2)])]);
    let planned = json(&fleet(&recorded, &["plan", "--gpus", "2", "--json"]));
    assert_eq!(planned["command"], Value::Null, "it has no connection");
    let alone = run(Command::new(env!("CARGO_BIN_EXE_gpuvm"))
        .args(["plan", "--gpus", "2", "--host", &dgx2, "--json"]));
    let alone = json(&alone);
    assert_eq!(
        planned["hosts"][0]["vcpus"].as_u64().map(|vcpus| vcpus as usize),
        alone["placement"]["vcpu_pins"].as_array().map(Vec::len)
    );

    let options = ["plan", "try out", "--vcpus", "1", "--memory", "64M", "--virt-type", "qemu"];
    let bad = fleet(&recorded, &options);
    assert_eq!(bad.0, 2, "a name with a blank: {bad:?}");
    let test = hosts(dir.path(), &[("test", &[("connect", "test:///default")])]);
    let options = [
        "plan",
        "tryout",
        "--vcpus",
        "1",
        "--memory",
        "64M",
        "--huge-pages",
        "off",
        "--limit",
        "100",
        "--json",
    ];
    let planned = json(&fleet(&test, &options));
    let command = planned["command"].as_str().unwrap();
    assert_eq!(
        command,
        "gpuvm create -c test:///default tryout --vcpus 1 --memory 64M --huge-pages off"
    );
}

/// A DGX-1 loses as much as an H100, and has a NIC as near.
#[test]
fn hosts_are_ranked_by_fit_and_those_that_create_refuses_come_last() {
    let dir = scratch();
    let [old, a100, h100, dgx2] = ["dgx-1", "dgx-a100", "dgx-h100", "dgx-2"].map(record);
    let domains = project().join("tests/golden/capacity").display().to_string();
    let all = hosts(
        dir.path(),
        &[
            ("old", &[("record", &old)]),
            ("a100", &[("record", &a100)]),
            ("h100", &[("record", &h100)]),
            ("busy", &[("record", &dgx2), ("domain_xml", &domains)]),
        ],
    );
    let ranked = |gpus: &str| {
        let ranked = json(&fleet(&all, &["plan", "--gpus", gpus, "--json"]));
        let refused: Vec<bool> = each(&ranked, "refused").iter().map(Value::is_string).collect();
        (each(&ranked, "name"), refused)
    };
    let (names, refused) = ranked("8");
    assert_eq!(names[..3], ["h100", "a100", "old"], "by NVLinks, where the loss is the same");
    assert_eq!(refused[..3], [false; 3]);
    // The DGX-2 would lose least; its guest shares NVLinks with others.
    let (names, refused) = ranked("2");
    assert_eq!(names, ["h100", "busy", "old", "a100"]);
    assert_eq!(refused, [false, true, true, true]);
    let (code, out, _) = fleet(&all, &["plan", "--gpus", "2"]);
    assert_eq!(code, 0);
    let busy = out.lines().find(|line| line.starts_with("busy")).unwrap();
    assert!(busy.ends_with("; `create` refuses it"), "{out}");
    assert!(out.ends_with("gpuvm create --gpus 2\n"), "{out}");
}

#[test]
fn a_bad_file_of_hosts_is_refused_with_its_place() {
    let dir = scratch();
    let file = dir.path().join("hosts.toml");
    let (code, _, err) = fleet(&file, &["list"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("No such file") && err.contains("hint: it lists hosts"), "{err}");
    for (text, says) in [
        ("", "the file has no host"),
        ("[hosts.a]\nrecord = \"a\"\n", "hosts.toml:1:2: unknown field `hosts`"),
        ("[host.a]\n", "host `a` has no `connect` and no `record`"),
        ("[host.a]\nrecrod = \"a\"\n", "hosts.toml:2:1: unknown field `recrod`"),
        ("[host.a]\nrecord = 7\nconnect = \"\"\n", "a text is missing here"),
        ("[host.a]\nrecord = \"a\"\n[host.a]\nrecord = \"b\"\n", "duplicate key"),
        ("[host.\"a/../b\"]\nrecord = \"a\"\n", "a host's name has letters"),
        ("host = 3\n", "`host` is to be a table of hosts by name"),
        (
            "[host.a]\nconnect = \"test:///default\"\ndomain_xml = \"d\"\n",
            "`domain_xml` is for hosts without `connect`",
        ),
        (
            "[host.a]\nconnect = \"test:///default\"\nassume = \"libvirt=12.9\"\n",
            "hosts.toml:3:1: `assume` is for hosts without `connect`",
        ),
        ("[host.a]\nrecord = \"a\"\nassume = \"12.9\"\n", "`12.9` is not libvirt=VERSION"),
        ("[host.a\n", "hosts.toml:1:"),
    ] {
        fs::write(&file, text).unwrap();
        let output = fleet(&file, &["list"]);
        let err = &output.2;
        assert_eq!(output.0, 1, "{text}: {output:?}");
        assert!(err.contains(says), "{text}: {err}");
    }
    let missing = fleet(&dir.path().join("none.toml"), &["list"]);
    assert_eq!(missing.0, 1);
    fs::write(&file, "[host.a]\nrecord = \"none.json\"\n").unwrap();
    let output = fleet(&file, &["list", "--only", "b"]);
    assert_eq!(output.0, 2, "{output:?}");
    let output = fleet(&file, &["list", "--json"]);
    assert_eq!(output.0, 1, "{output:?}");
    assert_eq!(json(&output)["hosts"][0]["reached"], true, "a record is all there is of it");
    for option in [&["--assume-empty"][..], &["--domain-xml", "a.xml"]] {
        let output = fleet(&file, &[&["plan", "--gpus", "1"], option].concat());
        assert_eq!(output.0, 2, "{option:?}: {output:?}");
    }
    let named = run(Command::new(env!("CARGO_BIN_EXE_gpuvm"))
        .args(["fleet", "list", "--host", "a.json", "--hosts"])
        .arg(&file));
    assert_eq!(named.0, 2, "{named:?}");
}

#[test]
fn only_a_record_is_replaced_by_a_record() {
    let dir = scratch();
    let own = dir.path().join("own.json");
    fs::write(&own, "mine\n").unwrap();
    // The connection is never opened far enough to be asked.
    let closed = {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("qemu+tcp://127.0.0.1:{}/system", closed.local_addr().unwrap().port())
    };
    let file = hosts(
        dir.path(),
        &[
            ("far", &[("connect", &closed), ("record", "own.json")]),
            ("here", &[("connect", "test:///default"), ("record", "./own.json")]),
            ("none", &[("connect", "test:///default")]),
            ("other", &[("connect", &closed), ("record", "mine.txt")]),
            ("link", &[("connect", &closed), ("record", "link.json")]),
            ("test", &[("connect", "test:///default"), ("record", "new.json")]),
        ],
    );
    fs::write(dir.path().join("mine.txt"), "mine\n").unwrap();
    std::os::unix::fs::symlink(record("dgx-2"), dir.path().join("link.json")).unwrap();
    let output = fleet(&file, &["capture", "--json", "--limit", "100"]);
    assert_eq!(output.0, 1, "{output:?}");
    let answer = json(&output);
    let not = "fleet-not-recorded";
    let codes = [not, not, not, "fleet-not-ours", "output-is-link", not];
    for (host, code) in answer["hosts"].as_array().unwrap().iter().zip(codes) {
        assert_eq!(host["error"]["code"], code, "{host}");
        assert!(host["error"]["hint"].is_string(), "{host}");
    }
    let why = |at: usize| answer["hosts"][at]["error"]["message"].as_str().unwrap().to_owned();
    assert!(why(0).contains("another host has the same `record`"), "{}", why(0));
    assert!(why(5).contains("it is this machine"), "{}", why(5));
    assert!(!dir.path().join("new.json").exists());
    let one = json(&fleet(&file, &["capture", "--json", "--only", "far", "--limit", "100"]));
    assert_eq!(one["hosts"][0]["error"]["code"], not, "{one}");
    assert_eq!(fs::read_to_string(&own).unwrap(), "mine\n");
}

/// `make bench` measures 200 and more with an optimized program.
#[test]
fn sixty_records_are_read_and_ranked() {
    let dir = scratch();
    let kinds = ["dgx-1", "dgx-2", "dgx-a100", "dgx-h100", "dual-socket"].map(record);
    let domains = project().join("tests/golden/capacity").display().to_string();
    let mut text = String::new();
    for at in 0..60 {
        let own = &kinds[at % kinds.len()];
        writeln!(text, "[host.n{at:03}]\nrecord = {own:?}").unwrap();
        if own.ends_with("dgx-2.json") {
            writeln!(text, "domain_xml = {domains:?}").unwrap();
        }
    }
    let file = dir.path().join("hosts.toml");
    fs::write(&file, text).unwrap();
    for words in [&["list"][..], &["capacity"], &["plan", "--gpus", "4", "--best", "3"]] {
        let begun = Instant::now();
        let answer = fleet(&file, &[words, &["--json"]].concat());
        assert_eq!(answer.0, 0, "{words:?}: {}", answer.2);
        assert!(begun.elapsed() < Duration::from_secs(300), "{words:?}: {:?}", begun.elapsed());
        let hosts = json(&answer)["hosts"].as_array().unwrap().len();
        assert_eq!(hosts, if words[0] == "plan" { 3 } else { 60 }, "{words:?}");
    }
}

#[test]
fn one_machine_under_two_names_counts_once() {
    let Some(daemon) = daemon() else { return };
    let dir = scratch();
    let socket = dir.path().join("socket");
    let own = daemon.uri();
    let (_, path) = own.split_once("socket=").unwrap();
    std::os::unix::fs::symlink(path, &socket).unwrap();
    let other = format!("qemu+unix:///system?socket={}", socket.display());
    let file = hosts(
        dir.path(),
        &[
            ("a", &[("connect", &own)]),
            ("b", &[("connect", &other)]),
            ("test", &[("connect", "test:///default")]),
            ("another", &[("connect", "test:///default")]),
        ],
    );
    let output = fleet(&file, &["capacity", "--gpus", "0", "--json", "--limit", "200"]);
    assert_eq!(output.0, 0, "{output:?}");
    let counted = json(&output);
    let none = Value::Null;
    assert_eq!(each(&counted, "same_as"), [none.clone(), "a".into(), none.clone(), none]);
    let of = |at: usize| counted["hosts"][at]["sizes"][0]["now"].as_u64().unwrap();
    let size = counted["hosts"][0]["sizes"][0]["gpus"].to_string();
    assert_eq!(counted["fits"][size].as_u64(), Some(of(0) + of(2) + of(3)), "{counted}");
    let (_, _, err) = fleet(&file, &["list", "--limit", "200"]);
    assert!(err.contains("b: the same machine as `a`"), "{err}");
}

#[test]
fn connections_to_a_silent_host_end_with_the_program() {
    let dir = scratch();
    if !nix::unistd::geteuid().is_root() {
        skip::<()>("only root can put another ssh in the place of the system's");
        return;
    }
    // A stand-in for ssh to a host that is down, in the place of the system's.
    let (ssh, pid) = (dir.path().join("ssh"), dir.path().join("pid"));
    fs::write(&ssh, format!("#!/bin/sh\necho $$ >{}\nexec sleep 3600\n", pid.display())).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let uri = "qemu+ssh://nobody@there.invalid/system";
    let file = hosts(dir.path(), &[("down", &[("connect", uri), ("record", &record("dgx-2"))])]);
    let mut command = Command::new("unshare");
    let mount = format!("mount --bind {} /usr/bin/ssh && exec \"$@\"", ssh.display());
    command.args(["-m", "--propagation", "private", "sh", "-c", &mount, "sh"]);
    command.args([env!("CARGO_BIN_EXE_gpuvm"), "fleet", "list", "--limit", "5", "--hosts"]);
    let output = run(command.arg(&file));
    assert_eq!(output.0, 1, "{output:?}");
    assert!(output.2.contains("no answer within 5 s"), "{output:?}");
    let process = PathBuf::from(format!("/proc/{}", fs::read_to_string(&pid).unwrap().trim()));
    let until = Instant::now() + Duration::from_secs(60);
    let is_ours = || fs::read_to_string(process.join("cmdline")).is_ok_and(|c| c.contains("3600"));
    while is_ours() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!is_ours(), "it goes on");
}

#[test]
fn children_of_the_shell_that_became_the_program_live_on() {
    let dir = scratch();
    let log = dir.path();
    hosts(log, &[("a", &[("record", &record("dgx-2"))])]);
    let script = "sleep 300 & echo $! >pid; exec \"$0\" fleet list --hosts - <hosts.toml";
    let mut shell = Command::new("sh");
    shell.current_dir(log).args(["-c", script, env!("CARGO_BIN_EXE_gpuvm")]);
    shell.stdout(fs::File::create(log.join("out")).unwrap());
    assert!(shell.status().unwrap().success(), "a table of TOML from standard input");
    let pid = fs::read_to_string(log.join("pid")).unwrap();
    let pid = nix::unistd::Pid::from_raw(pid.trim().parse().unwrap());
    let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    assert!(command.starts_with("sleep"), "it was ended");
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    let table = fs::read_to_string(log.join("out")).unwrap();
    assert!(table.contains("recorded"), "{table}");
}
