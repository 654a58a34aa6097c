//! Many recorded hosts: how long `fleet` takes over 200, and how time and memory of `fleet plan`
//! grow to 10,000 hosts with 100,000 guests.
//!
//! Hosts are of five recorded kinds in states that are made once: ten guests each, four in ten of
//! them with one or two GPUs, defined by `gpuvm export`. A file of hosts names kind and state of
//! each; gpuvm reads and parses the ten definitions of each host again.

use crate::measure::{Subject, Verdict, median, rotate};
use crate::support;
use gpuvm_bench::stream::Random;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Kinds of hosts: the records and the share of each in ten.
const KINDS: [(&str, usize); 5] =
    [("dgx-h100", 3), ("dgx-a100", 2), ("dgx-2", 2), ("dgx-1", 1), ("dual-socket", 2)];
const STATES: usize = 20;
const GUESTS: usize = 10;
const SIZES: [usize; 4] = [200, 1000, 3000, 10_000];
/// Limit over 200 hosts, in ms: of the time on CPUs for records alone, and a goal for the clock,
/// and with guests.
const MOST_MS: f64 = 1000.0;
/// Limit of what each further host takes of memory, in KiB: its row, not its layout.
const MOST_KIB: f64 = 8.0;

/// Measures.
pub fn bench(quick: bool) -> Vec<Verdict> {
    let dir = tempfile::tempdir().expect("a temporary directory is made");
    let states = if quick { 2 } else { STATES };
    let made = states_below(dir.path(), states);
    println!("{} states of hosts with {GUESTS} guests each", made.len());
    let mut verdicts = two_hundred(dir.path(), &made);
    let sizes = if quick { &SIZES[..2] } else { &SIZES[..] };
    verdicts.extend(growth(dir.path(), &made, sizes));
    verdicts
}

/// A kind's record, and the folder of the guests of a state.
type State = (PathBuf, PathBuf);

/// Makes the states; those of each kind as often as its share says.
fn states_below(dir: &Path, states: usize) -> Vec<State> {
    let (mut all, mut random) = (Vec::new(), Random(7));
    for (kind, share) in KINDS {
        let record = support::project().join(format!("topologies/{kind}.json"));
        let own: Vec<State> = (0..states)
            .map(|number| {
                let folder = dir.join(format!("{kind}-{number}"));
                std::fs::create_dir(&folder).expect("the folder is new");
                fill(&record, &folder, &mut random);
                (record.clone(), folder)
            })
            .collect();
        (0..share).for_each(|_| all.extend(own.iter().cloned()));
    }
    all
}

/// Defines the guests of a host; one that finds no GPUs does without.
fn fill(record: &Path, folder: &Path, random: &mut Random) {
    for number in 0..GUESTS {
        let gpus = [0, 0, 0, 0, 0, 0, 1, 1, 1, 2][random.below(10)];
        let sizes = [gpus, 1, 0];
        let text = sizes.iter().find_map(|gpus| export(record, folder, number, *gpus));
        let text = text.expect("a guest without GPUs fits");
        std::fs::write(folder.join(format!("{number}.xml")), text).expect("it is written");
    }
}

/// The definition of one more guest; `None` if it does not fit.
fn export(record: &Path, folder: &Path, number: usize, gpus: u32) -> Option<Vec<u8>> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command.args(["export", "--quiet", "--huge-pages", "off"]);
    if gpus == 0 {
        command.args(["--vcpus", "2", "--memory", "4G", "--pins", "none"]);
    } else {
        command.args(["--gpus", &gpus.to_string(), "--allow", "remote"]);
    }
    command.args(["--name", &format!("guest-{number}"), "--host"]).arg(record);
    let made = command.arg("--domain-xml").arg(folder).output().expect("gpuvm runs");
    made.status.success().then_some(made.stdout)
}

/// Writes a file of this many hosts.
fn hosts(dir: &Path, states: &[State], count: usize, has_guests: bool) -> String {
    let (mut text, mut random) = (String::new(), Random(11));
    for number in 0..count {
        let (record, folder) = &states[random.below(states.len())];
        writeln!(text, "[host.n{number:05}]\nrecord = {record:?}").expect("text");
        if has_guests {
            writeln!(text, "domain_xml = {folder:?}").expect("text");
        }
    }
    let file = dir.join(format!("{count}-{has_guests}.toml"));
    std::fs::write(&file, text).expect("it is written");
    file.to_str().expect("a temporary path is UTF-8").to_owned()
}

/// Time of each verb over 200 hosts, records alone and with guests.
fn two_hundred(dir: &Path, states: &[State]) -> Vec<Verdict> {
    let gpuvm = env!("CARGO_BIN_EXE_gpuvm");
    let mut verdicts = Vec::new();
    for has_guests in [false, true] {
        let file = hosts(dir, states, 200, has_guests);
        let file = ["--quiet", "--hosts", &file];
        let mut subjects = [
            Subject::new("list", &[&[gpuvm, "fleet", "list"][..], &file].concat()),
            Subject::new("capacity", &[&[gpuvm, "fleet", "capacity"][..], &file].concat()),
            Subject::new("plan", &[&[gpuvm, "fleet", "plan", "--gpus", "2"][..], &file].concat()),
        ];
        rotate(&mut subjects, 5);
        for subject in &subjects {
            let guests = if has_guests { " with 2,000 guests" } else { "" };
            let what = format!("fleet {}, 200 hosts{guests}", subject.name);
            let (limit, unit) = (MOST_MS, " ms");
            let (cpu, clock) = (median(&subject.cpu_ms), subject.median_ms());
            for (of, value, gate) in [(", CPU", cpu, !has_guests), ("", clock, false)] {
                verdicts.push(Verdict { what: format!("{what}{of}"), value, limit, unit, gate });
            }
        }
    }
    verdicts
}

/// Prints time and memory over numbers of hosts, and judges the cost of one more host.
#[allow(clippy::cast_precision_loss)]
fn growth(dir: &Path, states: &[State], sizes: &[usize]) -> Vec<Verdict> {
    println!(
        "{:>7} {:>8} {:>9} {:>9} {:>15} {:>9}",
        "hosts", "guests", "ms", "CPU ms", "CPU ms per host", "peak MiB"
    );
    let mut points = Vec::new();
    for count in sizes {
        let (gpuvm, file) = (env!("CARGO_BIN_EXE_gpuvm"), hosts(dir, states, *count, true));
        let words = ["fleet", "plan", "--gpus", "2", "--best", "3", "--quiet", "--hosts", &file];
        let mut subject = [Subject::new("plan", &[&[gpuvm][..], &words].concat())];
        rotate(&mut subject, 1);
        let [subject] = subject;
        let (ms, mib) = (median(&subject.cpu_ms), subject.peak_mib);
        let clock = subject.median_ms();
        let guests = count * GUESTS;
        let each = ms / *count as f64;
        println!("{count:>7} {guests:>8} {clock:>9.0} {ms:>9.0} {each:>15.2} {mib:>9.1}");
        points.push((*count as f64, ms, mib));
    }
    let (first, last) = (points[0], points[points.len() - 1]);
    let what = format!("fleet plan, CPU time per host, {} to {} hosts", first.0, last.0);
    let value = (last.1 / last.0) / (first.1 / first.0);
    let time = Verdict { what, value, limit: 1.5, unit: "x", gate: false };
    let what = "fleet plan, memory of each further host".to_owned();
    let value = (last.2 - first.2) * 1024.0 / (last.0 - first.0);
    vec![time, Verdict { what, value, limit: MOST_KIB, unit: " KiB", gate: true }]
}
