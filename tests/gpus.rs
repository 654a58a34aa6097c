//! Degraded hardware: GPUs and NVSwitches that are dead, missing or excluded are never placed, and
//! the rest keeps working; the list of excluded ones through the program, on recorded trees and as
//! if this machine were one.

use crate::support::daemon::namespaces;
use crate::support::tree::{host_text, host_tree, scratch, unpack};
use crate::support::{gpuvm, project, run, skip};
use gpuvm::discover::{discover, discover_identified, identity};
use gpuvm::fsroot::FsRoot;
use gpuvm::history::gpus::{self, GpuRecord, GpuRecords, GpuState, Tenant};
use gpuvm::topology::{DeviceKind, FabricModel};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A UUID.
const UUID: &str = "GPU-8b1c1a7d-0d4e-41f2-9c3a-6f00d5e1b2c3";

/// A DGX-2's tree that can be changed.
fn tree() -> tempfile::TempDir {
    let dir = scratch();
    unpack(&host_text("dgx-2"), dir.path()).unwrap();
    dir
}

/// Writes the list of excluded functions.
fn exclude(tree: &Path, entries: &str) {
    fs::create_dir_all(tree.join("etc/gpuvm")).unwrap();
    let text =
        format!("{{\"format\":\"gpuvm-excluded\",\"version\":1,\"excluded\":[\n{entries}]}}\n");
    fs::write(tree.join("etc/gpuvm/excluded.json"), text).unwrap();
}

/// Writes the NVIDIA driver's report on a GPU.
fn driver_has(tree: &Path, bdf: &str, uuid: &str, excluded: &str) {
    let dir = tree.join("proc/driver/nvidia/gpus").join(bdf);
    fs::create_dir_all(&dir).unwrap();
    let text = format!("Model: \t\t Tesla V100\nGPU UUID: \t {uuid}\nGPU Excluded:\t {excluded}\n");
    fs::write(dir.join("information"), text).unwrap();
}

/// Runs a verb on a tree; the exit code, and both outputs concatenated.
fn on(tree: &Path, args: &[&str]) -> (i32, String) {
    let (code, out, err) = run(gpuvm(args).args(["--host", tree.to_str().unwrap()]));
    (code, out + &err)
}

/// The directory of a function in a tree.
fn function(tree: &Path, bdf: &str) -> std::path::PathBuf {
    tree.join("sys/bus/pci/devices").join(bdf).canonicalize().unwrap()
}

/// Checks that an answer is good and holds these texts.
#[track_caller]
fn holds((code, text): (i32, String), wanted: i32, parts: &[&str]) {
    assert_eq!(code, wanted, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn an_excluded_gpu_is_never_placed_and_its_partitions_vanish() {
    let dir = tree();
    let tree = dir.path();
    exclude(tree, "{\"bdf\":\"0000:34:00.0\",\"reason\":\"it is loud\"}");
    let excluded = "GPU 0 (0000:34:00.0) is excluded: it is loud";
    holds(on(tree, &["plan", "--gpus", "16"]), 1, &["no partition of 16 GPUs", excluded]);
    holds(on(tree, &["plan", "--gpu", "0"]), 1, &[excluded]);
    holds(on(tree, &["plan", "--gpus", "8", "--explain"]), 0, &["0000:b7:00.0", excluded]);
    holds(on(tree, &["gpu", "list"]), 0, &["is excluded: it is loud", "free"]);
    holds(on(tree, &["host", "show"]), 0, &["Degraded", excluded]);
    let (code, text) = on(tree, &["host", "show", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &value["degraded"]), (0, &serde_json::json!([excluded])));
    // A guest of two GPUs can do without two of the first board's switches, and one of eight needs
    // all of them.
    exclude(tree, "{\"bdf\":\"0000:61:00.0\"}");
    holds(on(tree, &["plan", "--gpus", "16"]), 1, &["no partition of 16 GPUs", "NVSwitch"]);
    holds(on(tree, &["plan", "--gpus", "8"]), 0, &["0000:b7:00.0"]);
    holds(on(tree, &["plan", "--gpu", "0", "--gpu", "1"]), 0, &["0000:34:00.0"]);
    holds(on(tree, &["host", "show"]), 0, &["NVSwitch 0000:61:00.0 is excluded"]);
}

#[test]
fn an_exclusion_by_uuid_follows_the_gpu() {
    let dir = tree();
    let tree = dir.path();
    exclude(tree, &format!("{{\"bdf\":\"0000:34:00.0\",\"uuid\":\"{UUID}\"}}"));
    let state = |index: usize| {
        let (code, text) = on(tree, &["gpu", "list", "--json"]);
        assert_eq!(code, 0, "{text}");
        let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
        rows[index]["state"].as_str().unwrap().to_owned()
    };
    // No UUID is known: the slot counts.
    assert_eq!([state(0), state(1)], ["excluded", "free"]);
    driver_has(tree, "0000:36:00.0", UUID, "No");
    assert_eq!([state(0), state(1)], ["free", "excluded"]);
    holds(on(tree, &["gpu", "list"]), 0, &["UUID", UUID]);
    driver_has(tree, "0000:36:00.0", "GPU-00000000-0000-0000-0000-000000000001", "No");
    driver_has(tree, "0000:34:00.0", "GPU-00000000-0000-0000-0000-000000000002", "Yes");
    assert_eq!([state(0), state(1)], ["excluded", "free"]);
    holds(on(tree, &["gpu", "list"]), 0, &["is excluded: by the NVIDIA driver"]);
    let root = FsRoot::at(tree).unwrap();
    let uuids =
        |topology: gpuvm::topology::Topology| topology.gpus().filter(|g| g.uuid.is_some()).count();
    assert_eq!(uuids(discover(&root).unwrap()), 0);
    assert_eq!(uuids(discover_identified(&root).unwrap()), 2);
}

#[test]
fn a_damaged_list_is_never_passed_over() {
    let dir = tree();
    exclude(dir.path(), "{\"bdf\":\"0000:34:00.0\"},\n{\"bdf\":17}");
    for verb in [
        &["plan", "--gpus", "1"][..],
        &["gpu", "list"],
        &["host", "show"],
        &["export", "--gpus", "1", "--name", "a"],
    ] {
        holds(on(dir.path(), verb), 1, &["etc/gpuvm/excluded.json line 3: "]);
    }
    // A recorded host is not changed.
    holds(on(dir.path(), &["gpu", "exclude", "34:00.0"]), 2, &["does not take --host"]);
}

/// Writes the policy on tests.
fn policy(tree: &Path, text: &str) {
    fs::create_dir_all(tree.join("etc/gpuvm")).unwrap();
    fs::write(tree.join("etc/gpuvm/test.toml"), text).unwrap();
}

/// Records that a guest has had a GPU.
fn used(tree: &Path, bdf: &str) {
    let root = FsRoot::at(tree).unwrap();
    let bdf = bdf.parse().unwrap();
    let identity = identity::read(&root, bdf).unwrap().unwrap().identity;
    let uuid = "11111111-2222-4333-8444-555555555555".to_owned();
    let mut record = GpuRecord::now(bdf, identity, GpuState::Used);
    record.by = Some(Tenant { uuid, name: "a".to_owned() });
    let records = GpuRecords::of_this_machine(Some(&tree.join("var/lib/gpuvm"))).unwrap();
    gpus::write(&records.replace(&[], &record).unwrap()).unwrap();
}

#[test]
fn an_untested_gpu_is_offered_as_the_policy_says() {
    let dir = tree();
    let tree = dir.path();
    used(tree, "0000:34:00.0");
    let untested = "GPU 0 (0000:34:00.0) is untested: domain `a` had it";
    let noted = "not tested since their last guest: 0000:34:00.0: domain `a` had it";
    let one = ["plan", "--gpu", "0"];
    for (text, wanted) in [
        ("", None),
        ("mode = \"off\"", None),
        ("mode = \"note\"", Some((0, noted))),
        ("mode = \"require\"", Some((1, untested))),
    ] {
        policy(tree, text);
        let (code, said) = on(tree, &one);
        match wanted {
            None => assert!(code == 0 && !said.contains("tested"), "{said}"),
            Some((wanted, part)) => assert!(code == wanted && said.contains(part), "{said}"),
        }
        let (_, list) = on(tree, &["gpu", "list"]);
        assert_eq!(list.contains("used by `a`"), wanted.is_some(), "{list}");
        let (_, json) = on(tree, &["gpu", "list", "--json"]);
        let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(rows[0]["test"]["state"], "used", "{json}");
        assert_eq!(rows[0]["test"]["by"]["name"], "a", "{json}");
    }
    // Every verb sees the same GPUs.
    let why = "is untested: domain `a` had it";
    holds(on(tree, &["plan", "--gpus", "16"]), 1, &["no partition of 16 GPUs", untested]);
    holds(on(tree, &["plan", "--gpus", "8", "--explain"]), 0, &["0000:b7:00.0", untested]);
    holds(on(tree, &["export", "--gpu", "0", "--name", "b"]), 1, &[why, "--untested"]);
    holds(on(tree, &["device", "list"]), 0, &[why]);
    holds(on(tree, &["capacity", "--gpus", "16"]), 0, &[why]);
    let (_, json) = on(tree, &["gpu", "list", "--json"]);
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!([&rows[0]["state"], &rows[1]["state"]], ["untested", "free"]);
    // It is excluded, too: the admin's reason comes first.
    exclude(tree, "{\"bdf\":\"0000:34:00.0\",\"reason\":\"it is loud\"}");
    holds(on(tree, &one), 1, &["is excluded: it is loud"]);
}

#[test]
fn a_damaged_policy_or_record_never_means_clean() {
    let dir = tree();
    let tree = dir.path();
    policy(tree, "# strict\nmode = \"strict\"\n");
    let said = "etc/gpuvm/test.toml line 2: `mode` is `strict`; it must be off, note or require";
    for verb in [&["plan", "--gpus", "1"][..], &["gpu", "list"], &["capacity"]] {
        holds(on(tree, verb), 1, &[said, "hint: ", "gpuvm-guide(7)"]);
    }
    policy(tree, "mode = \"require\"\n");
    used(tree, "0000:34:00.0");
    let file = fs::read_dir(tree.join("var/lib/gpuvm/gpus")).unwrap().next().unwrap().unwrap();
    fs::write(file.path(), "{\"format\":1}").unwrap();
    holds(on(tree, &["plan", "--gpus", "1"]), 1, &["record of a GPU ", "missing field", "hint: "]);
    policy(tree, "mode = \"note\"\n");
    holds(on(tree, &["plan", "--gpus", "1"]), 0, &["warning: record of a GPU "]);
}

#[test]
fn a_gpu_that_reads_all_ones_is_dead_and_the_rest_keeps_working() {
    let dir = tree();
    let tree = dir.path();
    fs::write(function(tree, "0000:34:00.0").join("config"), [0xff; 256]).unwrap();
    // One that answers: NVIDIA, V100.
    fs::write(function(tree, "0000:36:00.0").join("config"), [0xde, 0x10, 0xb8, 0x1d]).unwrap();
    let host = discover(&FsRoot::at(tree).unwrap()).unwrap();
    assert_eq!(host.gpus().count(), 15);
    assert!(!host.fabric().degraded.is_empty());
    holds(on(tree, &["host", "show"]), 0, &["Degraded", "34:00.0"]);
    holds(on(tree, &["gpu", "list"]), 0, &["0000:34:00.0", "does not answer", "free"]);
    holds(on(tree, &["plan", "--gpus", "16"]), 1, &["16 GPUs"]);
    holds(on(tree, &["plan", "--gpus", "8"]), 0, &["0000:b7:00.0"]);
    let partitions = host.partitions();
    assert!(partitions.iter().all(|p| p.gpus.len() < 16) && !partitions.is_empty());
}

#[test]
fn a_missing_switch_takes_its_partitions_with_it() {
    let dir = tree();
    let tree = dir.path();
    fs::remove_dir_all(function(tree, "0000:61:00.0")).unwrap();
    fs::remove_file(tree.join("sys/bus/pci/devices/0000:61:00.0")).unwrap();
    let host = discover(&FsRoot::at(tree).unwrap()).unwrap();
    assert_eq!(host.fabric().model, FabricModel::FullPassthrough);
    assert_eq!(host.of_kind(DeviceKind::NvSwitch).count(), 11);
    assert!(!host.fabric().degraded.is_empty());
    holds(on(tree, &["host", "show"]), 0, &["Degraded"]);
    holds(on(tree, &["plan", "--gpus", "16"]), 1, &["16 GPUs"]);
    holds(on(tree, &["plan", "--gpus", "8"]), 0, &["0000:b7:00.0"]);
    holds(on(tree, &["plan", "--gpus", "1"]), 0, &[]);
}

/// A script that runs the program as if on a DGX-2 with a private `/etc`; `$1` is the program.
const LIVE: &str = r#"
mount -t tmpfs -o mode=755 tmpfs /etc && mkdir -p /run/gpuvm && mount -t tmpfs -o mode=755 tmpfs /run/gpuvm || exit 90
mount -t tmpfs tmpfs /proc/driver && mkdir -p /proc/driver/nvidia/gpus/0000:36:00.0 || exit 90
printf 'GPU UUID: \t %s\n' "$2" >/proc/driver/nvidia/gpus/0000:36:00.0/information
try() { echo "--- $*"; "$program" "$@" 2>&1; echo "= $?"; }
program=$1
try gpu exclude 34:00.0 --reason loud --dry-run
test -e /etc/gpuvm && exit 91
try gpu exclude 34:00.0 --reason loud
try gpu exclude 34:00.0
try gpu exclude "$2" --json
stat -c %a /etc/gpuvm/excluded.json
try plan --gpu 0 --assume-empty
"$program" gpu list --assume-empty | grep -c excluded
try gpu include "$2" --dry-run
try gpu include "$2"
try gpu include 34:00.0
try gpu include 34:00.0
"$program" plan --gpu 0 --assume-empty | grep -c 0000:34:00.0
try gpu exclude 06:00.0
try gpu exclude 07:77.0
try gpu exclude 99:00.0
try gpu exclude GPU-00000000-0000-0000-0000-000000000000
for bus in 34 36 39 3b 57 59; do "$program" -q gpu exclude $bus:00.0 & done; wait
grep -c bdf /etc/gpuvm/excluded.json
echo '{' >/etc/gpuvm/excluded.json
try gpu include 34:00.0
cat /etc/gpuvm/excluded.json
"#;

/// The output of [`LIVE`].
const SAID: &str = r#"--- gpu exclude 34:00.0 --reason loud --dry-run
exclude 0000:34:00.0 in /etc/gpuvm/excluded.json
= 0
--- gpu exclude 34:00.0 --reason loud
0000:34:00.0 is excluded
= 0
--- gpu exclude 34:00.0
0000:34:00.0 is excluded already
= 0
--- gpu exclude UUID --json
{
  "format": "gpuvm-exclusions",
  "version": 1,
  "bdf": "0000:36:00.0",
  "entry": {
    "bdf": "0000:36:00.0",
    "uuid": "UUID"
  },
  "changed": true
}
= 0
644
--- plan --gpu 0 --assume-empty
error: cannot use GPU 0 (0000:34:00.0): GPU 0 (0000:34:00.0) is excluded: loud
HINT
= 1
2
--- gpu include UUID --dry-run
take 0000:36:00.0 out of /etc/gpuvm/excluded.json
= 0
--- gpu include UUID
0000:36:00.0 is in use again
= 0
--- gpu include 34:00.0
0000:34:00.0 is in use again
= 0
--- gpu include 34:00.0
0000:34:00.0 is not excluded
= 0
1
--- gpu exclude 06:00.0
error: 0000:06:00.0 is neither a GPU nor an NVSwitch
HINT
= 1
--- gpu exclude 07:77.0
error: USAGE
= 2
--- gpu exclude 99:00.0
error: this host has no device 0000:99:00.0
HINT
= 1
--- gpu exclude GPU-00000000-0000-0000-0000-000000000000
error: no GPU of this host is known to have the UUID GPU-00000000-0000-0000-0000-000000000000
HINT
= 1
6
--- gpu include 34:00.0
error: /etc/gpuvm/excluded.json line 1: EOF while parsing an object
= 1
{
"#;

#[test]
fn a_gpu_is_excluded_and_included_on_a_machine() {
    if !nix::unistd::geteuid().is_root() || !namespaces() {
        return skip("needs root and namespaces");
    }
    let mut command = Command::new(project().join("tests/as-host"));
    command.arg(host_tree("dgx-2")).args(["bash", "-c", LIVE, "live"]);
    command.args([env!("CARGO_BIN_EXE_gpuvm"), UUID]).env_remove("COLUMNS");
    let (code, out, err) = run(&mut command);
    assert_ne!(code, 90, "no mounts: {err}");
    let mut said = String::new();
    for line in out.replace(UUID, "UUID").lines() {
        match line {
            line if line.starts_with("hint:") => {
                if !said.ends_with("HINT\n") {
                    said.push_str("HINT\n");
                }
            }
            line if line.starts_with("error: invalid value") => said.push_str("error: USAGE\n"),
            "" | "For more information, try '--help'." => {}
            line => said.extend([line, "\n"]),
        }
    }
    assert_eq!(said, SAID, "{err}");
}

#[test]
fn an_excluded_switch_of_a_shared_board_takes_the_partitions_along() {
    let dir = scratch();
    unpack(&host_text("dgx-h100"), dir.path()).unwrap();
    let host = discover(&FsRoot::at(dir.path()).unwrap()).unwrap();
    assert_eq!(host.fabric().model, FabricModel::SharedNvswitch);
    let switch = host.of_kind(DeviceKind::NvSwitch).next().unwrap().bdf;
    holds(on(dir.path(), &["plan", "--gpus", "4"]), 0, &["partition"]);
    exclude(dir.path(), &format!("{{\"bdf\":\"{switch}\",\"reason\":\"SXid 12028\"}}"));
    let gone = format!("{switch} is excluded: SXid 12028");
    holds(on(dir.path(), &["plan", "--gpus", "4"]), 1, &["no partition of 4 GPUs", &gone]);
    holds(on(dir.path(), &["plan", "--gpus", "1"]), 0, &["GPUs"]);
}
