//! `verify` on a real libvirtd: a guest that gpuvm made is as it should be; then each of its
//! properties is broken from outside, and each is found by its name.

use crate::support::daemon::Daemon;
use crate::support::lawful::NO_HUGE_PAGES;
use crate::support::pool::{self, Pool, number};
use crate::support::{run, skip};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Pages of the guest here.
const PAGES: u64 = 32;
/// The guest.
const NAME: &str = "verified";

/// The guest on its own libvirtd.
struct Guest {
    /// The libvirtd, which ends before the pages are released.
    daemon: Daemon,
    /// Its pages.
    pool: Pool,
    /// Files of the test.
    dir: PathBuf,
}

impl Guest {
    /// Sets up the guest; none, with the reason reported, if this machine cannot have it.
    fn new() -> Option<Guest> {
        let pool = Pool::take()?;
        pool::set(pool.before + PAGES);
        if number("free_hugepages")? < PAGES {
            return skip(NO_HUGE_PAGES);
        }
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            return skip("a guest with a pcpu of its own needs a second one");
        }
        let daemon = Daemon::own(None)?;
        let dir = daemon.fresh_dir("verify");
        let guest = Guest { pool, daemon, dir };
        let disks = guest.daemon.fresh_dir("verify-disks");
        let shape = "--gpus 0 --vcpus 1 --memory 64M --huge-pages 2M --cells 1 --virt-type qemu \
                     --os-size 16M --network default --no-wait";
        let mut create = vec!["create", "--name", NAME, "--disk-dir", disks.to_str().unwrap()];
        create.extend(shape.split_whitespace());
        let (code, out, err) = guest.gpuvm(&create);
        assert_eq!(code, 0, "{out}{err}");
        Some(guest)
    }

    /// The program where its libvirtd is: it sees the same mounts and processes.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.daemon.enter(&["--mount", "--pid"], env!("CARGO_BIN_EXE_gpuvm"));
        command.args(args).stdin(Stdio::null());
        command.env("LIBVIRT_DEFAULT_URI", self.daemon.uri()).env("LC_ALL", "C");
        command
    }

    /// Its exit code, standard output and standard error.
    fn gpuvm(&self, args: &[&str]) -> (i32, String, String) {
        run(&mut self.command(args))
    }

    /// Runs virsh, which must succeed.
    fn virsh(&self, line: &str) -> String {
        let args: Vec<&str> = line.split(' ').collect();
        let (done, text) = self.daemon.virsh(&args);
        assert!(done, "{line}: {text}");
        text.trim().to_owned()
    }

    /// The findings: rule and severity, sorted; the exit code must match.
    fn found(&self, name: &str) -> (Vec<(String, String)>, Value) {
        let (code, out, err) = self.gpuvm(&["verify", name, "--json"]);
        let answer: Value =
            serde_json::from_str(&out).unwrap_or_else(|_| panic!("{code}: {out}{err}"));
        let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
        let findings = answer["findings"].as_array().unwrap();
        let mut found: Vec<_> =
            findings.iter().map(|f| (text(f, "rule"), text(f, "severity"))).collect();
        found.sort();
        assert_eq!(code, if found.is_empty() { 0 } else { 3 }, "{out}{err}");
        (found, answer)
    }

    /// Expects findings of exactly these rules, and this text in the output. While the firmware
    /// reads a disk, a vCPU's thread may start one of QEMU's workers, which then runs where the
    /// vCPU does and ends ten seconds after its last work: that is found too, rightly, and waited
    /// for.
    fn expect(&self, after: &str, rules: &[&str], says: &str) {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            let (found, answer) = self.found(NAME);
            let (_, out, _) = self.gpuvm(&["verify", NAME]);
            let names: Vec<&str> = found.iter().map(|(rule, _)| rule.as_str()).collect();
            let worker = "helper-affinity";
            if (names.contains(&worker) || out.contains(worker)) && Instant::now() < until {
                std::thread::sleep(Duration::from_secs(1));
                continue;
            }
            assert_eq!(names, rules, "after {after}: {answer:#}");
            assert!(out.contains(says), "after {after} it does not say `{says}`:\n{out}");
            return;
        }
    }

    /// Breaks something with virsh, expects the finding, repairs it, and expects no more findings.
    fn breaks(&self, harm: &str, rules: &[&str], says: &str, repair: &str) {
        self.virsh(harm);
        self.expect(harm, rules, says);
        self.virsh(repair);
        self.expect(repair, &[], ": ok, ");
    }

    /// Lets the thread of vCPU 0 run on other pcpus, as an admin with `taskset` does, outside of
    /// libvirt's cgroups.
    fn move_vcpu(&self, pcpus: &str) {
        let uuid = self.virsh(&format!("domuuid {NAME}"));
        let (_, pid, _) = run(Command::new("pgrep").args(["-f", "--", &format!("-uuid {uuid}")]));
        let tasks = format!("/proc/{}/task", pid.trim());
        let threads = std::fs::read_dir(&tasks).unwrap().map(|entry| entry.unwrap());
        let is_vcpu =
            |dir: &PathBuf| std::fs::read_to_string(dir.join("comm")).unwrap() == "CPU 0/TCG\n";
        let thread = threads.map(|entry| entry.path()).find(is_vcpu).unwrap();
        let tid = thread.file_name().unwrap().to_str().unwrap();
        for tasks in ["/sys/fs/cgroup/cpuset/tasks", "/sys/fs/cgroup/cgroup.threads"] {
            let _ = std::fs::write(tasks, tid);
        }
        let (code, _, err) = run(Command::new("taskset").args(["-pc", pcpus, tid]));
        assert_eq!(code, 0, "{err}");
    }
}

#[test]
fn each_break_of_a_running_guest_is_found_and_named() {
    let Some(guest) = Guest::new() else { return };
    guest.expect("create", &[], "verified (running): ok, ");
    let pins = ["emulator-on-vcpu-core", "emulator-on-vcpu-core", "pending-pins"];
    let says = "pin of vcpu 0 of what runs: expected 0, found 1";
    guest.breaks("vcpupin verified 0 1 --live", &pins, says, "vcpupin verified 0 0 --live");
    let says = "pin of vcpu 0 of what runs: expected 1, found 0";
    guest.breaks("vcpupin verified 0 1 --config", &pins, says, "vcpupin verified 0 0 --config");
    let says = "emulatorpin/@cpuset of what runs: expected 1, found 0";
    guest.breaks(
        "emulatorpin verified 0 --live",
        &pins[1..],
        says,
        "emulatorpin verified 1 --live",
    );
    let says = "pin of iothread 1 of what runs: expected 1, found 0";
    let repair = "iothreadpin verified 1 1 --live";
    guest.breaks("iothreadpin verified 1 0 --live", &pins[1..], says, repair);
    let says = "memory is bound to node 1, which the host does not have";
    let repair = "numatune verified --nodeset 0 --config";
    let rules = ["node-absent", "pending-memory"];
    guest.breaks("numatune verified --nodeset 1 --config", &rules, says, repair);
    let disk = guest.dir.join("more.raw");
    std::fs::write(&disk, [0; 4096]).unwrap();
    let harm = format!("attach-disk verified {} vdb --config", disk.display());
    let repair = "detach-disk verified vdb --config";
    guest.breaks(&harm, &["pending-disk"], "expected <disk", repair);

    guest.move_vcpu("0,1");
    guest.expect("taskset", &["vcpu-affinity"], "vcpu 0 may run on pcpus: expected 0, found 0-1");
    guest.move_vcpu("0");
    guest.expect("taskset", &[], ": ok, ");
    // Pages in use are released with the guest, and none is free.
    pool::set(0);
    let says = "pages of 2 MiB for its next start on node 0: expected 32, found 0";
    guest.expect("pages went", &["huge-pages-next-start"], says);
    pool::set(guest.pool.before + PAGES);
    guest.expect("pages came", &[], ": ok, ");
}

#[test]
fn other_guests_on_its_pcpu_are_found_and_those_that_are_off_are_compared_too() {
    let Some(guest) = Guest::new() else { return };
    let file = guest.dir.join("other.xml");
    let xml = "<domain type='qemu'><name>other</name><memory unit='MiB'>16</memory><vcpu>1</vcpu><cputune>
        <vcpupin vcpu='0' cpuset='0'/><emulatorpin cpuset='1'/></cputune><os><type machine='q35'>hvm</type></os>
        <devices><memballoon model='none'/></devices></domain>";
    std::fs::write(&file, xml).unwrap();
    guest.virsh(&format!("define {}", file.display()));
    let held = |severity: &str| vec![("pcpu-held".to_owned(), severity.to_owned())];
    // One that is off yields its cores, unless it starts with the host.
    guest.expect("another is off", &[], ": ok, ");
    guest.virsh("autostart other");
    let (found, answer) = guest.found(NAME);
    assert_eq!(found, held("warning"), "{answer:#}");
    guest.virsh("start other");
    let (found, answer) = guest.found(NAME);
    assert_eq!(found, held("error"), "{answer:#}");
    // A domain that gpuvm did not make is compared with itself.
    let (found, answer) = guest.found("other");
    assert_eq!(found, held("error"), "{answer:#}");
    let unchecked = answer["not_checked"].to_string();
    assert!(unchecked.contains("the plan (gpuvm did not make it)"), "{unchecked}");
    guest.virsh("destroy other");

    // The numbers of all domains, and their changes during a watch.
    let prom = guest.dir.join("gpuvm.prom");
    let args = ["verify", "--all", "--metrics", prom.to_str().unwrap()];
    assert_eq!(guest.gpuvm(&args).0, 3);
    let numbers = std::fs::read_to_string(&prom).unwrap();
    for line in [
        "gpuvm_verify_findings{domain=\"verified\",rule=\"pcpu-held\"} 1",
        "gpuvm_verify_findings{domain=\"verified\",rule=\"vcpu-affinity\"} 0",
        "gpuvm_verify_domain_running{domain=\"verified\"} 1",
        "gpuvm_verify_domain_running{domain=\"other\"} 0",
    ] {
        assert!(numbers.lines().any(|other| other == line), "{line}\n{numbers}");
    }
    guest.virsh("undefine other");
    let mut watch = guest.command(&["verify", "--all", "--watch", "1", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(watch.stderr.take().unwrap()).lines();
    // On a busy machine its vCPUs may wait.
    let first = said.next().unwrap().unwrap();
    assert!(["1 domain, 0 differences", "1 domain, 1 difference"].contains(&&*first), "{first}");
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    for (pcpus, key) in [("0,1", "appeared"), ("0", "gone")] {
        guest.move_vcpu(pcpus);
        // Threads of QEMU that come and go may be in the same change.
        let is_it = |change: &Value| {
            let mut rows = change[key].as_array().into_iter().flatten();
            rows.any(|row| row["rule"] == "vcpu-affinity")
        };
        let mut changes =
            lines.by_ref().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        assert!(changes.any(|change| is_it(&change)), "{key}");
    }
    watch.kill().unwrap();
    watch.wait().unwrap();

    guest.virsh(&format!("destroy {NAME}"));
    let (found, answer) = guest.found(NAME);
    assert_eq!((found, &answer["running"]), (vec![], &Value::Bool(false)));
    assert!(answer["not_checked"].to_string().contains("the domain is off"), "{answer}");
    guest.virsh("vcpupin verified 0 0-1 --config");
    let (found, _) = guest.found(NAME);
    let rules: Vec<&str> = found.iter().map(|(rule, _)| rule.as_str()).collect();
    assert!(rules.contains(&"plan-pins"), "{rules:?}");
    let (code, out, err) = guest.gpuvm(&["verify", "nobody"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("there is no domain `nobody`\nhint: "), "{err}");
    assert_eq!(guest.gpuvm(&["verify"]).0, 2);
    assert_eq!(guest.gpuvm(&["verify", NAME, "--host", "topologies/dgx-2.json"]).0, 2);
}
