//! Cold commands against `virt-install --print-xml` and `lstopo`: the whole process, from outside.

use crate::guests::{against, before};
use crate::measure::{Subject, Verdict, rotate};
use crate::support;
use std::process::Command;

/// The largest share of virt-install's time that `host show` and `export` may take.
const OF_VIRT_INSTALL: f64 = 0.05;
/// The share of lstopo's time to reach on a live host (gpuvm-placement(7), METRICS). On a recorded
/// one lstopo has no config space to read, which is two thirds of its work elsewhere.
const OF_LSTOPO: f64 = 0.35;
/// Limit of `nccl` for 8 GPUs and 8 NICs, in ms.
const NCCL_MS: f64 = 20.0;
/// Limit of their memory, in MiB.
const PEAK_MIB: f64 = 30.0;

/// Measures and compares.
pub fn bench(quick: bool) -> Vec<Verdict> {
    let gpuvm = env!("CARGO_BIN_EXE_gpuvm");
    let tree = support::host_tree("dgx-2");
    let tree = tree.to_str().expect("a temporary path is UTF-8");
    let json = support::project().join("topologies/dgx-2.json");
    let json = json.to_str().expect("the project's path is UTF-8");
    let mut subjects = vec![
        Subject::new("gpuvm host show, DGX-2 tree", &[gpuvm, "host", "show", "--host", tree]),
        Subject::new("gpuvm host show, DGX-2 JSON", &[gpuvm, "host", "show", "--host", json]),
        Subject::new(
            "gpuvm export, DGX-2 tree",
            &[gpuvm, "export", "--gpus", "2", "--name", "a", "--host", tree],
        ),
        Subject::new(
            "gpuvm export, DGX-2 JSON",
            &[gpuvm, "export", "--gpus", "2", "--name", "a", "--host", json],
        ),
        Subject::new(
            "gpuvm plan, DGX-2 tree",
            &[gpuvm, "plan", "--gpus", "2", "--name", "a", "--host", tree],
        ),
    ];
    let a100 = support::project().join("topologies/dgx-a100.json");
    let a100 = a100.to_str().expect("the project's path is UTF-8");
    let words = [gpuvm, "plan", "--gpus", "8", "--name", "a", "--host", a100];
    subjects.push(Subject::new("gpuvm plan, DGX A100 JSON", &words));
    let ours = subjects.len();
    let dir = tempfile::tempdir().expect("a temporary directory is made");
    let h100 = support::project().join("topologies/dgx-h100.json");
    let h100 = h100.to_str().expect("the project's path is UTF-8");
    let guest = dir.path().join("guest.xml");
    let guest = guest.to_str().expect("a temporary path is UTF-8");
    let words = ["export", "--gpus", "8", "--nic", "8", "--name", "a", "--host", h100];
    let made = Command::new(gpuvm).args(words).output().expect("gpuvm runs");
    std::fs::write(guest, made.stdout).expect("the definition is written");
    let words = [gpuvm, "nccl", guest, "--host", h100];
    subjects.push(Subject::new("gpuvm nccl, DGX H100 JSON", &words));
    let compared = with_older(&mut subjects, ours);
    if works("virt-install") {
        subjects.push(virt_install());
    }
    if works("lstopo-no-graphics") {
        let args = ["lstopo-no-graphics", "--input", tree, "--whole-io", "--of", "xml", "-"];
        subjects.push(Subject::new("lstopo --of xml, DGX-2 tree", &args));
    }
    rotate(&mut subjects, if quick { 5 } else { 21 });
    println!("{:<34} {:>10} {:>10}", "command", "median ms", "peak MiB");
    for subject in &subjects {
        println!("{:<34} {:>10.1} {:>10.1}", subject.name, subject.median_ms(), subject.peak_mib);
    }
    let mut verdicts = Vec::new();
    let peer =
        |name: &str| subjects.iter().find(|s| s.name.starts_with(name)).map(Subject::median_ms);
    for subject in &subjects[..ours] {
        if let Some(peer) = peer("virt-install") {
            let what = format!("{} / virt-install --print-xml", subject.name);
            let value = subject.median_ms() / peer;
            verdicts.push(Verdict { what, value, limit: OF_VIRT_INSTALL, unit: "x", gate: true });
        }
        let what = format!("{}, peak memory", subject.name);
        verdicts.push(Verdict {
            what,
            value: subject.peak_mib,
            limit: PEAK_MIB,
            unit: " MiB",
            gate: true,
        });
    }
    for (at, older) in compared {
        let what = subjects[at].name.trim_start_matches("gpuvm ");
        verdicts.push(against(what, subjects[at].median_ms(), subjects[older].median_ms()));
    }
    let nccl = &subjects[ours];
    let (what, value) = (nccl.name.to_owned(), nccl.median_ms());
    verdicts.push(Verdict { what, value, limit: NCCL_MS, unit: " ms", gate: false });
    if let Some(peer) = peer("lstopo") {
        let what = "gpuvm host show, DGX-2 tree / lstopo --of xml".to_owned();
        let value = subjects[0].median_ms() / peer;
        verdicts.push(Verdict { what, value, limit: OF_LSTOPO, unit: "x", gate: false });
    }
    verdicts
}

/// Adds the first `ours` commands by the earlier program, if one is named and knows them; returns
/// the place of each with that of the other's.
fn with_older(subjects: &mut Vec<Subject>, ours: usize) -> Vec<(usize, usize)> {
    let Some(program) = before() else { return Vec::new() };
    let mut compared = Vec::new();
    for at in 0..ours {
        let mut words: Vec<&str> = subjects[at].command.iter().map(String::as_str).collect();
        words[0] = &program;
        let older = Subject::new("  the same of before", &words);
        let done = Command::new(words[0]).args(&words[1..]).output();
        if done.is_ok_and(|output| output.status.success()) {
            compared.push((at, subjects.len()));
            subjects.push(older);
        }
    }
    compared
}

/// virt-install with a guest of the same kind: 10 vCPUs, pins, NUMA memory, two GPUs.
fn virt_install() -> Subject {
    let mut args = vec![
        "virt-install",
        "--connect",
        "test:///default",
        "--print-xml",
        "--name",
        "a",
        "--memory",
        "4096",
    ];
    args.extend([
        "--vcpus",
        "10,sockets=1,cores=5,threads=2",
        "--import",
        "--disk",
        "none",
        "--network",
        "none",
    ]);
    args.extend([
        "--osinfo",
        "detect=off,require=off",
        "--graphics",
        "none",
        "--numatune",
        "0,mode=strict",
    ]);
    args.extend([
        "--cputune",
        "vcpupin0.vcpu=0,vcpupin0.cpuset=0,vcpupin1.vcpu=1,vcpupin1.cpuset=48",
    ]);
    Subject::new("virt-install --print-xml", &args)
}

/// Whether a program is installed and starts.
fn works(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    if !there {
        println!("skipped: no {program} to compare with");
    }
    there
}
