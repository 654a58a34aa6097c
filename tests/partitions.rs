//! Fabric Manager's partitions, listed, activated and deactivated through a fake of its library
//! (tests/fake-nvfm), with the steps killed at every moment. Each query runs in its own process,
//! which is this test binary again: the loader and the fake are configured by its environment.

use crate::fabric::fakes;
use crate::support::daemon::namespaces;
use crate::support::tree::scratch;
use crate::support::{run, skip};
use gpuvm::apply::partition::{PartitionGpu, PartitionStep};
use gpuvm::apply::{
    FileStep, Journal, Observer, Orphan, PartitionChange, Step, apply, recover, state_directory,
};
use gpuvm::hypervisor::none::NoHypervisor;
use gpuvm_host::fabric::config::Address;
use gpuvm_host::fabric::{Limits, Manager, RestoreFile, limit_this_process};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Names the file that a process of this binary writes its answers to.
const ANSWERS: &str = "GPUVM_TEST_FABRIC_ANSWERS";
/// Names the actions of such a process, separated by semicolons.
const ASKS: &str = "GPUVM_TEST_FABRIC_ASKS";

/// A Fabric Manager of tests.
struct Fm {
    /// Its settings and state, and the program's files of /var/lib.
    dir: tempfile::TempDir,
}

impl Fm {
    /// A Fabric Manager for a board, with more settings.
    fn new(board: &str, more: &str) -> Fm {
        let fm = Fm { dir: scratch() };
        for dir in ["var", "made"] {
            fs::create_dir(fm.path(dir)).unwrap();
        }
        fm.configure(board, more);
        fm
    }

    /// Changes its settings; its state stays.
    fn configure(&self, board: &str, more: &str) {
        let gpus: String = (1..=8).map(|id| format!("gpu 0000:{id:02x}:00.0 {id}\n")).collect();
        let files: String = ["state", "calls", "resets"]
            .map(|name| format!("{name} {}\n", self.path(name).display()))
            .concat();
        fs::write(self.path("fake"), format!("board {board}\n{gpus}{files}{more}\n")).unwrap();
    }

    /// One of its files.
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command of a process that does these things. It sees a /var/lib of its own.
    fn process(&self, asks: &str, answers: &Path) -> Command {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-ec"]);
        let pci = "[ ! -d \"$DIR/pci\" ] || mount --bind \"$DIR/pci\" /sys/bus/pci";
        command.arg(format!("mount --bind \"$DIR/var\" /var/lib; {pci}; exec \"$@\"")).arg("sh");
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", "partitions::acts_in_a_process_of_its_own", "--nocapture"]);
        command.env("DIR", self.dir.path()).env("GPUVM_FAKE_NVIDIA", self.path("fake"));
        command.env("LD_LIBRARY_PATH", fakes()).env(ASKS, asks).env(ANSWERS, answers);
        command
    }

    /// Performs these actions in one process. Returns the answer of each; a killed process has
    /// given fewer.
    fn ask(&self, asks: &str) -> Vec<Value> {
        let answers = self.path("answers");
        let _ = fs::remove_file(&answers);
        run(&mut self.process(asks, &answers));
        let text = fs::read_to_string(answers).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The operations that Fabric Manager was asked for, without `Fabric` and `Partition` in their
    /// names.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let short = |line: &str| {
            let (_, call) = line.split_once(' ').unwrap();
            call.replace("fm", "")
                .replace("Supported", "")
                .replace("Fabric", "")
                .replace("Partition", "")
        };
        text.lines().map(short).collect()
    }

    /// Partitions that are active, by Fabric Manager's own state.
    fn active(&self) -> BTreeSet<u32> {
        let text = fs::read_to_string(self.path("state")).unwrap_or_default();
        let active = text.lines().filter_map(|line| line.strip_prefix("active "));
        active.map(|rest| rest.split(' ').next().unwrap().parse().unwrap()).collect()
    }

    /// Partitions of the program's file, with their domains.
    fn remembered(&self) -> Vec<(u32, String)> {
        let list = RestoreFile::read(&self.path("var/gpuvm/fabric.json")).unwrap();
        list.partitions.into_iter().map(|entry| (entry.id, entry.domain)).collect()
    }

    /// Replaces this machine's PCI bus by one with GPUs bound for guests.
    fn with_gpus(self, modules: &[u32]) -> Fm {
        for module in modules {
            let dir = self.path(&format!("pci/devices/0000:{module:02x}:00.0"));
            fs::create_dir_all(&dir).unwrap();
            symlink("../../drivers/vfio-pci", dir.join("driver")).unwrap();
            fs::write(dir.join("driver_override"), "vfio-pci\n").unwrap();
            fs::write(dir.join("reset"), "").unwrap();
        }
        fs::create_dir_all(self.path("pci/drivers/vfio-pci")).unwrap();
        self
    }

    /// The text written to the reset of a GPU.
    fn reset(&self, module: u32) -> String {
        let path = self.path(&format!("pci/devices/0000:{module:02x}:00.0/reset"));
        fs::read_to_string(path).unwrap()
    }

    /// How many journals are left.
    fn journals(&self) -> usize {
        let dir = fs::read_dir(self.path("var/gpuvm/journal"));
        dir.map_or(0, |dir| dir.count())
    }
}

/// Partition 3 of an H100 for a domain, as a word that [`acts_in_a_process_of_its_own`] reads.
fn three(domain: &str) -> String {
    step_word(3, &[1, 3], domain)
}

/// A step on a partition, as such a word.
fn step_word(partition: u32, modules: &[u32], domain: &str) -> String {
    let gpus = modules.iter().map(|&module| PartitionGpu {
        module,
        bdf: format!("0000:{module:02x}:00.0").parse().unwrap(),
    });
    let step = PartitionStep::new(partition, gpus.collect(), domain.to_owned());
    serde_json::to_string(&step).unwrap()
}

/// Watches a run of steps.
#[derive(Default)]
struct Watch {
    /// The messages.
    notes: Vec<String>,
    /// Whether a signal comes once Fabric Manager was asked for a change.
    is_signalled: bool,
}

impl Observer for Watch {
    fn doing(&mut self, _: &Step) {}
    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }
    fn undoing(&mut self, _: &Step) {}
    fn interrupted(&mut self) -> Option<String> {
        let calls = Path::new(&std::env::var_os("DIR")?).join("calls");
        let text = fs::read_to_string(calls).unwrap_or_default();
        (self.is_signalled && text.contains("ctivate")).then(|| "SIGINT".to_owned())
    }
}

/// Does steps with a journal: a directory before and after those that are given, as a guest's disk
/// and definition.
fn does_steps(words: &str, mut watch: Watch) -> Value {
    let made = std::env::var_os("DIR").map(|dir| Path::new(&dir).join("made")).unwrap();
    let directory = |name: &str| Step::File(FileStep::CreateDirectory { path: made.join(name) });
    let step = |word: &str| match word.split_once(' ').unwrap() {
        ("activate", step) => {
            Step::Partition(PartitionChange::Activate(serde_json::from_str(step).unwrap()))
        }
        ("fail", name) => directory(name),
        ("deactivate", step) => {
            Step::Partition(PartitionChange::Deactivate(serde_json::from_str(step).unwrap()))
        }
        (other, _) => panic!("{other} is no step"),
    };
    let mut steps: Vec<Step> = words.split(" then ").map(step).collect();
    if matches!(steps[0], Step::Partition(PartitionChange::Activate(_))) {
        steps.insert(0, directory("before"));
        steps.push(directory("after"));
    }
    let journal = Journal::begin("create", "a", "test:///default").unwrap();
    let done = apply(&steps, &NoHypervisor, &mut watch, Some(journal));
    let error = done.err().map(|error| whole(&error));
    json!({ "error": error, "notes": watch.notes })
}

/// An error with its causes.
fn whole(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {}", whole(cause)));
    format!("{error}{}", cause.unwrap_or_default())
}

/// Recovers every change whose run was killed.
fn recovers() -> Value {
    // A killed run's child is killed with it, a moment later, and has its lock until then.
    let until = Instant::now() + Duration::from_secs(60);
    let orphans = loop {
        let orphans = Orphan::all_in(&state_directory("journal")).unwrap().readable;
        if !orphans.is_empty() || Instant::now() > until {
            break orphans;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut ways = Vec::new();
    for orphan in orphans {
        match recover(orphan, &NoHypervisor, &mut Watch::default(), &[]) {
            Ok(recovery) => ways.push(serde_json::to_value(recovery.way).unwrap()),
            Err(error) => ways.push(whole(&error).into()),
        }
    }
    ways.into()
}

/// One thing that a process of this binary does.
fn does(ask: &str) -> Value {
    let (verb, rest) = ask.split_once(' ').unwrap_or((ask, ""));
    let ms = Duration::from_millis;
    let limits =
        Limits { connect_ms: 50, list: ms(20_000), change: ms(20_000), ..Limits::default() };
    let mut manager = Manager::at(Address::Inet("127.0.0.1".into()));
    manager.limits = match verb {
        "hurried" => Limits { change: ms(200), ..limits },
        _ => limits,
    };
    let number = |text: &str| text.parse::<u32>().unwrap();
    let numbers = |text: &str| text.split(',').filter(|id| !id.is_empty()).map(number).collect();
    let answer = match verb {
        "list" => manager.list().map(|listed| {
            let row = |one: &gpuvm_core::fabric::Listed| {
                let links = one.gpus.iter().map(|gpu| gpu.links).min();
                (one.id, one.modules(), one.active, links)
            };
            json!(listed.iter().map(row).collect::<Vec<_>>())
        }),
        "activate" | "hurried" => {
            let mut words = rest.split(' ');
            let id = number(words.next().unwrap());
            let vfs: Vec<_> = words.map(|word| word.parse().unwrap()).collect();
            manager.activate(id, &vfs, &mut || None).map(|()| "done".into())
        }
        "deactivate" => manager.deactivate(number(rest), &mut || None).map(|()| "done".into()),
        "set" => {
            let ids: Vec<u32> = numbers(rest);
            manager.set_activated(&ids).map(|()| "done".into())
        }
        "failed" => manager.failed_devices().map(|devices| json!(devices)),
        "unsupported" => manager.unsupported().map(|partitions| json!(partitions)),
        "steps" => return does_steps(rest, Watch::default()),
        "hurried-steps" => {
            limit_this_process(Limits { change: ms(300), ..limits });
            return does_steps(rest, Watch::default());
        }
        // A signal comes once the first change is asked for, which takes as long as it likes.
        "interrupted-steps" => {
            limit_this_process(Limits { list: ms(300), change: ms(600_000), ..limits });
            return does_steps(rest, Watch { is_signalled: true, ..Watch::default() });
        }
        "recover" => return recovers(),
        other => panic!("{other} is no question"),
    };
    answer.unwrap_or_else(|refusal| refusal.to_string().into())
}

/// The entry point that the other tests run in a separate process; by itself it does nothing.
#[test]
fn acts_in_a_process_of_its_own() {
    let (Some(asks), Some(answers)) = (std::env::var_os(ASKS), std::env::var_os(ANSWERS)) else {
        return;
    };
    for ask in asks.to_str().unwrap().split(';') {
        let text = format!("{}\n", does(ask));
        let mut file = fs::File::options().append(true).create(true).open(&answers).unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    }
}

/// Whether this machine can run such processes.
fn can() -> bool {
    namespaces() || skip("namespaces need root")
}

#[test]
fn partitions_are_activated_and_deactivated_over_the_library() {
    if !can() {
        return;
    }
    for (board, id, modules) in [("h100", 3, [1, 3]), ("b200", 4, [1, 2])] {
        let fm = Fm::new(board, "");
        let answers = fm.ask(&format!("activate {id};list;deactivate {id}"));
        assert_eq!((&answers[0], &answers[2]), (&json!("done"), &json!("done")), "{answers:?}");
        let pair = json!([id, modules, true, 18]);
        assert!(answers[1].as_array().unwrap().contains(&pair), "{board}: {}", answers[1]);
        let calls = [format!("Activate {id}"), "Gets".to_owned(), format!("Deactivate {id}")];
        assert_eq!(fm.calls(), calls, "{board}");
        assert!(fm.active().is_empty());
    }
    // A partition of one GPU, and one that shares it.
    for (answers, codes) in [
        ("old", ["IN_USE (-7)", "UNINITIALIZED (-4)"]),
        ("new", ["PARTITION_ID_IN_USE (-17)", "PARTITION_ID_NOT_IN_USE (-18)"]),
    ] {
        let fm = Fm::new("h100", &format!("answers {answers}"));
        let said =
            fm.ask("activate 7;activate 7;activate 3;deactivate 3;activate 99;deactivate 99");
        let refused = |call: &str, code: &str| {
            json!(format!("Fabric Manager: fm{call}FabricPartition: {code}"))
        };
        let wanted = [
            json!("done"),
            refused("Activate", codes[0]),
            refused("Activate", codes[0]),
            refused("Deactivate", codes[1]),
            refused("Activate", "BADPARAM (-1)"),
            refused("Deactivate", "BADPARAM (-1)"),
        ];
        assert_eq!(said, wanted, "{answers}");
        assert_eq!(fm.active(), BTreeSet::from([7]));
    }
}

#[test]
fn virtual_functions_go_along_in_the_mode_for_vgpu() {
    if !can() {
        return;
    }
    let fm = Fm::new("h100", "mode 2");
    let said = fm.ask("activate 3 0000:9d:00.4 0001:c3:01.5;activate 4 0000:9d:00.4");
    assert_eq!(said[0], "done", "{said:?}");
    assert!(said[1].as_str().unwrap().ends_with("BADPARAM (-1)"), "one function for two GPUs");
    assert_eq!(fm.calls()[0], "ActivateWithVFs 3 0000:9d:00.4 0001:c3:01.5");
    let fm = Fm::new("h100", "mode 1");
    let said = fm.ask("activate 3 0000:9d:00.4 0001:c3:01.5");
    assert!(said[0].as_str().unwrap().ends_with("NOT_SUPPORTED (-3)"), "{said:?}");
    let fm = Fm::new("h100", "mode 0");
    assert!(fm.ask("list")[0].as_str().unwrap().ends_with("NOT_SUPPORTED (-3)"));
}

#[test]
fn a_restarted_fabric_manager_gets_active_partitions_once() {
    if !can() {
        return;
    }
    let fm = Fm::new("h100", "restart_mode 600000");
    let said = fm.ask("list;activate 3;set 3,3;set 99;set 3,4;set 3,4;list");
    for (number, code) in [(0, -3), (1, -3), (2, -1), (3, -1), (5, -3)] {
        assert!(said[number].as_str().unwrap().ends_with(&format!("({code})")), "{said:?}");
    }
    assert_eq!((&said[4], fm.active()), (&json!("done"), BTreeSet::from([3, 4])));
    assert_eq!(said[6].as_array().unwrap().len(), 15);
    // None may run.
    let fm = Fm::new("h100", "restart_mode 600000");
    assert_eq!(fm.ask("set")[0], "done");
    // If not given the list in time, it ends.
    let fm = Fm::new("h100", "restart_mode 0");
    fm.ask("list");
    std::thread::sleep(Duration::from_millis(5));
    assert!(fm.ask("set 3")[0].as_str().unwrap().ends_with("CONNECTION_NOT_VALID (-9)"));
    let said = Fm::new("h100", "").ask("set 3");
    assert!(said[0].as_str().unwrap().ends_with("NOT_SUPPORTED (-3)"), "it has not restarted so");
}

#[test]
fn failed_devices_and_their_cost_are_reported_on_a100_only() {
    if !can() {
        return;
    }
    let more = "failed 2 5 7\ngone 3";
    let said = Fm::new("a100", more).ask("failed;unsupported");
    let gpu = json!({ "uuid": "GPU-2", "bus": "0000:02:00.0", "ports": [5, 7] });
    assert_eq!(said[0], json!({ "gpus": [gpu], "switches": [] }));
    let of = |partition: &Value| partition["id"].as_u64().unwrap();
    let ids: Vec<u64> = said[1].as_array().unwrap().iter().map(of).collect();
    assert_eq!(ids, [1, 7, 12, 21], "all of 8, of 4, of 2, and of the GPU alone");
    assert_eq!(said[1][2]["modules"], json!([3, 4]));
    let said = Fm::new("h100", more).ask("failed;unsupported;list");
    assert_eq!((&said[0], &said[1]), (&json!({ "gpus": [], "switches": [] }), &json!([])));
    assert_eq!(said[2].as_array().unwrap().len(), 15, "H100 lists what is broken, too");
}

#[test]
fn a_reset_after_the_activation_costs_an_a100_its_links() {
    if !can() {
        return;
    }
    for (board, id, modules, links) in [("a100", 11, [1, 2], 0), ("h100", 3, [1, 3], 18)] {
        let fm = Fm::new(board, "");
        let most = if board == "a100" { 12 } else { 18 };
        fs::write(fm.path("resets"), "0000:01:00.0\n").unwrap();
        let list = |fm: &Fm| fm.ask("list").remove(0).as_array().unwrap().clone();
        fm.ask(&format!("activate {id}"));
        assert!(list(&fm).contains(&json!([id, modules, true, most])), "reset before: {board}");
        fs::write(fm.path("resets"), "0000:01:00.0\n0000:01:00.0\n").unwrap();
        assert!(list(&fm).contains(&json!([id, modules, true, links])), "reset after: {board}");
    }
}

#[test]
fn a_library_that_hangs_or_dies_is_given_up() {
    if !can() {
        return;
    }
    let begun = Instant::now();
    let said = Fm::new("h100", "hang 1").ask("hurried 3");
    assert_eq!(said[0], "Fabric Manager's library did not answer within 0.2 s");
    assert!(begun.elapsed() < Duration::from_secs(60));
    for (when, active) in [("before", BTreeSet::new()), ("after", BTreeSet::from([3]))] {
        let fm = Fm::new("h100", &format!("die_after 1 {when}"));
        let said = fm.ask("activate 3");
        assert_eq!(said[0], "Fabric Manager's library ended without an answer");
        assert_eq!(fm.active(), active, "{when}");
    }
    // Connecting is tried three times, not more.
    let fm = Fm::new("h100", "");
    let journal = fm.path("journal");
    fm.configure("h100", &format!("address elsewhere\njournal {}", journal.display()));
    assert!(fm.ask("list")[0].as_str().unwrap().ends_with("fmConnect: CONNECTION_NOT_VALID (-9)"));
    let text = fs::read_to_string(journal).unwrap();
    assert_eq!(text.lines().filter(|line| *line == "fmConnect").count(), 3, "{text}");
}

#[test]
fn steps_activate_and_deactivate_and_remember() {
    if !can() {
        return;
    }
    let fm = Fm::new("h100", "starting_for_ms 300");
    let said = fm.ask(&format!("steps activate {}", three("u"))).remove(0);
    assert_eq!(said["error"], Value::Null, "{said}");
    assert!(
        said["notes"][0].as_str().unwrap().contains("NOT_CONFIGURED (-8); it is still starting")
    );
    assert_eq!(fm.calls(), ["Gets", "Gets", "Activate 3", "Gets"]);
    assert_eq!((fm.remembered(), fm.journals()), (vec![(3, "u".into())], 0));
    assert_eq!(fs::read_dir(fm.path("made")).unwrap().count(), 2);
    let file = fs::read_to_string(fm.path("var/gpuvm/fabric.json")).unwrap();
    let form = "{\"version\":1,\"partitions\":[{\"id\":3,\"modules\":[1,3],\"domain\":\"u\"}]}\n";
    assert_eq!(file, form);
    fs::remove_file(fm.path("calls")).unwrap();
    let said = fm.ask(&format!("steps deactivate {}", three("u"))).remove(0);
    assert_eq!(said, json!({ "error": null, "notes": [] }));
    assert_eq!(fm.calls(), ["Gets", "Deactivate 3", "Gets"]);
    assert_eq!((fm.remembered(), fm.active()), (vec![], BTreeSet::new()));
}

#[test]
fn refusals_of_fabric_manager_change_nothing() {
    if !can() {
        return;
    }
    for (more, reason) in [
        ("active 3", "NVLink partition 3 is active, and no running domain uses it"),
        ("active 1", "shares GPUs with partition 1, which is active for no running domain"),
        ("fail_nth 2 -10", "fmActivateFabricPartition: NVLINK_ERROR (-10)"),
        ("fail_nth 2 -10 done", "fmActivateFabricPartition: NVLINK_ERROR (-10)"),
        ("fail_nth 2 -17", "fmActivateFabricPartition: PARTITION_ID_IN_USE (-17)"),
        ("fail_nth 2 -7", "fmActivateFabricPartition: IN_USE (-7)"),
        ("fail_nth 2 0", "lists NVLink partition 3 as inactive"),
        ("die_after 2 after", "Fabric Manager's library ended without an answer"),
        ("address elsewhere", "fmConnect: CONNECTION_NOT_VALID (-9)"),
        ("mode 0", "fmGetSupportedFabricPartitions: NOT_SUPPORTED (-3)"),
    ] {
        let fm = Fm::new("h100", more);
        let said = fm.ask(&format!("steps activate {}", three("u"))).remove(0);
        let error = said["error"].as_str().unwrap_or_else(|| panic!("{more}: {said}"));
        assert!(
            error.contains(reason) || error.contains(&reason.replace("its", "Manager's")),
            "{more}: {error}"
        );
        assert_eq!((fm.remembered(), fm.journals()), (vec![], 0), "{more}");
        assert_eq!(fs::read_dir(fm.path("made")).unwrap().count(), 0, "{more}");
        let before: Option<u32> = more.strip_prefix("active ").map(|id| id.parse().unwrap());
        let mut left = fm.active();
        left.remove(&3);
        assert!(
            before == Some(3) || fm.active() == before.into_iter().collect(),
            "{more}: {left:?}"
        );
    }
    // -17, or -7 of older versions, although its list shows inactive before and active after.
    for code in [-17, -7] {
        let fm = Fm::new("h100", &format!("fail_nth 2 {code} done"));
        let said = fm.ask(&format!("steps activate {}", three("u"))).remove(0);
        let notes = said["notes"].as_array().unwrap();
        assert_eq!((&said["error"], notes.len()), (&Value::Null, 1), "{said}");
        assert!(notes[0].as_str().unwrap().ends_with(", and lists it as active"), "{said}");
        assert_eq!((fm.remembered().len(), fm.active()), (1, BTreeSet::from([3])));
    }
}

#[test]
fn another_definition_file_since_the_plan_is_noticed() {
    if !can() {
        return;
    }
    // Fabric Manager has restarted with other definitions: 3 is now of modules 5 to 8.
    let fm = Fm::new("b200", "");
    let said = fm.ask(&format!("steps activate {}", three("u"))).remove(0);
    let error = said["error"].as_str().unwrap_or_else(|| panic!("{said}"));
    let told =
        "NVLink partition 3 has modules 5, 6, 7, 8; it had modules 1, 3 when this was planned";
    assert!(error.contains(told), "{error}");
    assert_eq!((fm.calls(), fm.active(), fm.journals()), (vec!["Gets".into()], BTreeSet::new(), 0));
    assert_eq!(fs::read_dir(fm.path("made")).unwrap().count(), 0);
    // The number is another guest's now, which keeps it.
    let fm = Fm::new("h100", "");
    fm.ask(&format!("steps activate {}", three("u")));
    fs::remove_file(fm.path("state")).unwrap();
    fm.configure("b200", "active 3");
    let said = fm.ask(&format!("steps deactivate {}", three("u"))).remove(0);
    assert_eq!(said["error"], Value::Null, "{said}");
    assert_eq!((fm.active(), fm.remembered()), (BTreeSet::from([3]), vec![]));
}

#[test]
fn a_hang_in_the_middle_ends_the_change_and_leaves_all_as_it_was() {
    if !can() {
        return;
    }
    // List, activate, list: a hanging call is abandoned, its process ended, and the steps before
    // undone.
    let fm = Fm::new("h100", "hang 2");
    let begun = Instant::now();
    let said = fm.ask(&format!("hurried-steps activate {}", three("u"))).remove(0);
    let error = said["error"].as_str().unwrap_or_else(|| panic!("{said}"));
    assert!(error.contains("library did not answer within 0.3 s"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(50), "the usual limit is 60 s");
    assert_eq!((fm.active(), fm.remembered(), fm.journals()), (BTreeSet::new(), vec![], 0));
    assert_eq!(fs::read_dir(fm.path("made")).unwrap().count(), 0);
    // Once a guest is off it is left for later.
    let off = three("u").replace("\"domain\":\"u\"", "\"domain\":\"u\",\"may_wait\":true");
    let fm = Fm::new("h100", "");
    fm.ask(&format!("steps activate {}", three("u")));
    fs::remove_file(fm.path("state")).unwrap();
    fm.configure("h100", "active 3\nhang 2");
    let said = fm.ask(&format!("hurried-steps deactivate {off}")).remove(0);
    let note = said["notes"][0].as_str().unwrap_or_else(|| panic!("{said}"));
    assert!(
        said["error"].is_null() && note.contains("stays active until Fabric Manager"),
        "{said}"
    );
    assert_eq!((fm.remembered(), fm.journals()), (vec![(3, "u".into())], 0));
}

#[test]
fn a_signal_ends_the_wait_and_leftovers_are_reported_and_recovered() {
    if !can() {
        return;
    }
    // The activation hangs; Fabric Manager answers again, or neither to the lists after it nor to
    // the undoing.
    let begun = Instant::now();
    let three = three("u");
    for (hangs, note, error, left) in [
        (
            "hang 2",
            "interrupted by SIGINT before Fabric Manager answered, and lists NVLink partition 3 \
             (modules 1, 3) as inactive",
            "interrupted by SIGINT; earlier steps are undone",
            0,
        ),
        (
            "hang 2\nhang 3\nhang 4",
            "interrupted by SIGINT before Fabric Manager answered, so it is not known whether \
             NVLink partition 3 (modules 1, 3) is active",
            "interrupted by SIGINT; earlier steps are undone only in part",
            1,
        ),
    ] {
        let fm = Fm::new("h100", hangs);
        let said = fm.ask(&format!("interrupted-steps activate {three}")).remove(0);
        assert_eq!((&said["error"], &said["notes"]), (&json!(error), &json!([note])), "{said}");
        assert_eq!((fm.journals(), fm.active()), (left, BTreeSet::new()), "{hangs}");
        fm.configure("h100", "");
        if left > 0 {
            assert_eq!(fm.ask("recover"), [json!(["undo"])]);
        }
        assert_eq!((fm.journals(), fm.remembered()), (0, vec![]), "{hangs}");
        assert_eq!(fs::read_dir(fm.path("made")).unwrap().count(), 0, "{hangs}");
    }
    // A deactivation by itself, as `fabric release` has it.
    let fm = Fm::new("h100", "");
    fm.ask(&format!("steps activate {three}"));
    for file in ["state", "calls"] {
        fs::remove_file(fm.path(file)).unwrap();
    }
    fm.configure("h100", "active 3\nhang 2");
    let said = fm.ask(&format!("interrupted-steps deactivate {three}")).remove(0);
    let note = said["notes"][0].as_str().unwrap_or_else(|| panic!("{said}"));
    assert!(note.ends_with("and lists NVLink partition 3 (modules 1, 3) as active"), "{said}");
    assert_eq!((&said["error"], fm.journals()), (&json!("interrupted by SIGINT"), 0));
    assert_eq!((fm.remembered(), fm.active()), (vec![(3, "u".into())], BTreeSet::from([3])));
    assert!(begun.elapsed() < Duration::from_secs(300), "{:?}", begun.elapsed());
}

#[test]
fn failures_after_the_activation_reset_the_gpus() {
    if !can() {
        return;
    }
    let fm = Fm::new("h100", "").with_gpus(&[1, 2, 3]);
    let said = fm.ask(&format!("steps activate {} then fail no/such", three("u"))).remove(0);
    assert!(said["error"].as_str().is_some_and(|error| error.contains("no/such")), "{said}");
    assert_eq!(fm.calls(), ["Gets", "Activate 3", "Gets", "Gets", "Deactivate 3", "Gets"]);
    assert_eq!((fm.active(), fm.remembered(), fm.journals()), (BTreeSet::new(), vec![], 0));
    let resets = [1, 2, 3].map(|module| fm.reset(module));
    assert_eq!(resets, ["1", "", "1"], "those of the partition, and no other one");
}

#[test]
fn failures_after_the_stop_leave_the_partition_inactive() {
    if !can() {
        return;
    }
    // As a stop has it: the guest is off all the same.
    let off = three("u").replace("\"domain\":\"u\"", "\"domain\":\"u\",\"may_wait\":true");
    let fm = Fm::new("h100", "");
    fm.ask(&format!("steps activate {}", three("u")));
    fs::remove_file(fm.path("calls")).unwrap();
    let said = fm.ask(&format!("steps deactivate {off} then fail no/such")).remove(0);
    assert!(said["error"].as_str().is_some_and(|error| error.contains("no/such")), "{said}");
    assert_eq!(fm.calls(), ["Gets", "Deactivate 3", "Gets"]);
    assert_eq!((fm.active(), fm.remembered(), fm.journals()), (BTreeSet::new(), vec![], 0));
}

#[test]
fn a_run_that_is_killed_at_any_call_is_recovered() {
    if !can() {
        return;
    }
    // List, activate, list: the run is killed in each of them.
    for (number, when) in [(1, "before"), (1, "after"), (2, "before"), (2, "after"), (3, "after")] {
        let fm = Fm::new("h100", &format!("kill_caller {number} {when}"));
        assert_eq!(fm.ask(&format!("steps activate {}", three("u"))), [Value::Null; 0], "killed");
        assert_eq!(fm.journals(), 1, "{number} {when}");
        assert_eq!(fm.active().contains(&3), number > 2 || (number, when) == (2, "after"));
        fm.configure("h100", "");
        assert_eq!(fm.ask("recover"), [json!(["undo"])], "{number} {when}");
        assert_eq!((fm.active(), fm.remembered()), (BTreeSet::new(), vec![]), "{number} {when}");
        let made = fs::read_dir(fm.path("made")).unwrap().count();
        assert_eq!((made, fm.journals()), (0, 0), "{number} {when}");
    }
    // A deactivation is finished: its guest no longer exists.
    for (number, when) in [(1, "after"), (2, "before"), (2, "after"), (3, "after")] {
        let fm = Fm::new("h100", "");
        fm.ask(&format!("steps activate {}", three("u")));
        fs::remove_file(fm.path("state")).unwrap();
        fm.configure("h100", &format!("active 3\nkill_caller {number} {when}"));
        assert_eq!(fm.ask(&format!("steps deactivate {}", three("u"))), [Value::Null; 0]);
        fm.configure("h100", "");
        assert_eq!(fm.ask("recover"), [json!(["finish"])], "{number} {when}");
        assert_eq!((fm.active(), fm.remembered()), (BTreeSet::new(), vec![]), "{number} {when}");
    }
    // Fabric Manager does not run during the recovery: the journal stays until it runs again.
    let fm = Fm::new("h100", "kill_caller 2 after");
    fm.ask(&format!("steps activate {}", three("u")));
    fm.configure("h100", "address elsewhere");
    let said = fm.ask("recover");
    assert!(said[0][0].as_str().unwrap().contains("CONNECTION_NOT_VALID (-9)"), "{said:?}");
    assert_eq!((fm.journals(), fm.active()), (1, BTreeSet::from([3])));
    fm.configure("h100", "");
    assert_eq!(fm.ask("recover"), [json!(["undo"])]);
    assert_eq!((fm.journals(), fm.active()), (0, BTreeSet::new()));
}

#[test]
fn sixteen_at_once_never_overlap() {
    if !can() {
        return;
    }
    let fm = Fm::new("h100", "");
    let sets: [(u32, &[u32]); 4] = [(1, &[1, 2, 3, 4]), (3, &[1, 3]), (5, &[5, 7]), (7, &[1])];
    let processes: Vec<_> = (0..16)
        .map(|number| {
            let (id, modules) = sets[number % sets.len()];
            let asks = format!("steps activate {}", step_word(id, modules, &number.to_string()));
            let answers = fm.path(&format!("answers-{number}"));
            // Each process has its own directory.
            let own = fm.path(&format!("own-{number}"));
            fs::create_dir_all(own.join("made")).unwrap();
            symlink(fm.path("var"), own.join("var")).unwrap();
            let mut process = fm.process(&asks, &answers);
            let process = process.env("DIR", &own).stdout(Stdio::null());
            let child = process.spawn().unwrap();
            (id, answers, child)
        })
        .collect();
    let mut succeeded = BTreeSet::new();
    for (id, answers, mut child) in processes {
        child.wait().unwrap();
        let said: Value = serde_json::from_str(&fs::read_to_string(answers).unwrap()).unwrap();
        match said["error"].as_str() {
            None => assert!(succeeded.insert(id), "partition {id} was activated twice"),
            Some(error) => assert!(error.contains("is active"), "{error}"),
        }
    }
    assert_eq!((fm.active(), succeeded.len()), (succeeded, 2), "one of modules 1 to 4, and 5");
    let refused = fm.calls().iter().filter(|call| call.starts_with("Activate")).count();
    assert_eq!(refused, 2, "none was refused by Fabric Manager: none was requested in vain");
    assert_eq!(fm.remembered().len(), 2);
}
