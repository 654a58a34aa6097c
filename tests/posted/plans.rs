//! The results of the verbs on posted machines: GPUs that are linked or below one switch, NICs
//! beside them, cores and memory of the nearest nodes, and a true verdict of `host doctor`.

use super::{Posted, placement, planned, record, whole};
use crate::support::tree::scratch;
use crate::support::{gpuvm, run};
use serde_json::Value;
use std::path::Path;

/// Calls `look` with the record of a posted machine.
fn on(name: &str, look: impl FnOnce(&Path)) {
    let dir = scratch();
    look(&record(name, dir.path()));
}

/// The GPUs of plans with 1, 2, 4 and 8.
fn growing(file: &Path) -> [Vec<usize>; 4] {
    ["1", "2", "4", "8"].map(|gpus| planned(file, &["--gpus", gpus]))
}

/// The first GPUs of a host, up to 8.
fn first() -> [Vec<usize>; 4] {
    [1, 2, 4, 8].map(|number| (0..number).collect())
}

/// The strings of a list.
fn strings(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect()
}

/// The host nodes of each cell.
fn nodes(placement: &Value) -> Vec<&str> {
    let cells = placement["cells"].as_array().unwrap();
    cells.iter().map(|cell| cell["host_nodes"].as_str().unwrap()).collect()
}

/// The exit status and the errors of `host doctor`.
fn verdict(file: &Path) -> (i32, Vec<String>) {
    let mut command = gpuvm(&["--host", file.to_str().unwrap(), "host", "doctor", "--json"]);
    let (code, out, err) = run(&mut command);
    assert_eq!(err, "", "{}", file.display());
    let answer: Value = serde_json::from_str(&out).unwrap();
    let found = answer["findings"].as_array().unwrap().iter();
    (code, found.map(|one| one["message"].as_str().unwrap().to_owned()).collect())
}

#[test]
fn gpus_of_one_switch_and_one_package_go_together() {
    for name in ["rtx-pro-6000-8gpu", "threadripper-7955wx", "mi325x"] {
        on(name, |file| {
            assert_eq!(growing(file), first(), "{name}");
            assert_eq!(verdict(file), (0, Vec::new()), "{name}");
        });
    }
    // GPUs 2 and 3 have a switch for themselves, below that of GPUs 0 and 1.
    on("threadripper-7955wx", |file| {
        let beside = planned(file, &["--gpus", "3"]);
        assert!(beside.iter().all(|gpu| *gpu < 4), "{beside:?}");
    });
}

#[test]
fn islands_of_nvlink_stay_whole_and_have_the_cores_of_both_their_nodes() {
    on("h200-nvl", |file| {
        assert_eq!(growing(file), first());
        let island = placement(file, &["--gpus", "4"]);
        assert_eq!(nodes(&island), ["0", "1"]);
        assert_eq!(nodes(&placement(file, &["--gpus", "8"])), ["0", "1", "2", "3"]);
        // Nodes 2 and 3 have half the memory, so each island has that of its own.
        let kib = |at: usize| island["cells"][at]["memory_kib"].as_u64().unwrap() >> 20;
        assert!(kib(0) > 900 && kib(1) > 900, "{island}");
        assert_eq!(verdict(file), (0, Vec::new()));
    });
}

#[test]
fn each_gpu_has_the_nic_beside_it() {
    let all = ["--gpus", "8", "--nic", "8"];
    on("b300-cx8", |file| {
        assert_eq!(strings(&placement(file, &all)["devices"]).len(), 16);
        // Without module ids of the GPUs only the partition of all is known.
        let mut command = gpuvm(&["--host", file.to_str().unwrap(), "plan", "--gpus", "1"]);
        let (code, _, err) = run(&mut command);
        assert!(code == 1 && err.contains("the module ids of 8 GPUs are unknown"), "{err}");
        assert!(!err.contains("on that machine on"), "{err}");
        assert_eq!(verdict(file), (0, Vec::new()));
    });
    on("mi300x-cx7", |file| {
        let posted = Posted::read("mi300x-cx7");
        let mut seen = 0;
        for words in posted.of("beside") {
            let [gpu, nic] = [0, 1].map(|at| whole(&words[at]));
            let one = placement(file, &["--gpu", &gpu, "--nic", "1"]);
            assert_eq!(strings(&one["devices"]), [gpu, nic]);
            seen += 1;
        }
        assert_eq!(seen, 8);
        assert_eq!(verdict(file), (0, Vec::new()));
    });
}

#[test]
fn links_that_are_not_read_are_not_said_to_be_none() {
    on("mi325x", |file| {
        let says = |gpus: &str| {
            let file = file.to_str().unwrap();
            let args = ["--host", file, "plan", "--gpus", gpus, "--explain"];
            run(&mut gpuvm(&args)).1
        };
        let one = says("1");
        assert!(one.contains("whether Infinity Fabric links lead to 0000:26:00.0"), "{one}");
        assert!(!one.contains("no NVLink leads"), "{one}");
        let all = says("8");
        assert!(!all.contains("Infinity Fabric"), "{all}");
    });
}

#[test]
fn vcpus_of_a_hybrid_are_on_performance_cores() {
    on("hybrid-13900k", |file| {
        let plan = placement(file, &["--gpus", "1"]);
        let pins: Vec<String> = (0..16).map(|pcpu: u32| pcpu.to_string()).collect();
        assert_eq!(strings(&plan["vcpu_pins"]), pins);
        assert_eq!(plan["topology"]["threads"], 2);
        assert_eq!(plan["emulator_pin"], "16");
        // The card goes with its audio function, and the integrated graphics stays.
        assert_eq!(strings(&plan["devices"]), ["0000:01:00.0", "0000:01:00.1"]);
        let slow = placement(file, &["--gpus", "1", "--vcpus", "20"]);
        assert_eq!(slow["topology"]["threads"], 1);
        assert!(slow["reasons"].to_string().contains("8 on performance cores, 12 on efficiency"));
        assert_eq!(verdict(file), (0, Vec::new()));
    });
}

#[test]
fn a_card_whose_bars_have_no_address_is_for_no_guest_and_every_verb_says_so() {
    on("egpu-macbook", |file| {
        let host = ["--host", file.to_str().unwrap()];
        let asked = |args: &[&str]| run(&mut gpuvm(&[&host, args].concat()));
        let barred = "cannot be passed through: BARs 1 and 3 have no address";
        for gpus in ["--gpus=1", "--gpu=0000:0a:00.0"] {
            let (code, _, err) = asked(&["plan", gpus]);
            assert_eq!(code, 1, "{err}");
            assert!(err.contains(barred) && err.contains("Above 4G Decoding"), "{err}");
        }
        let (_, out, _) = asked(&["capacity", "--json"]);
        assert!(out.contains(barred), "{out}");
        let (_, out, err) = asked(&["gpu", "list", "--json"]);
        assert!(out.contains("barred"), "{out}{err}");
        let why = "GPU 0000:0a:00.0 (10de:1b80): BARs without an address: 1, 3";
        assert_eq!(verdict(file), (3, vec![why.to_owned()]));
    });
}

#[test]
fn memory_on_cxl_is_taken_on_request_only_and_last() {
    on("cxl-expanders", |file| {
        let fits = placement(file, &["--vcpus", "16", "--memory", "50G"]);
        assert_eq!(nodes(&fits), ["0"]);
        let both = placement(file, &["--vcpus", "16", "--memory", "110G"]);
        assert_eq!(nodes(&both), ["0", "1"]);
        let args = ["--host", file.to_str().unwrap(), "plan", "--vcpus", "16", "--memory", "200G"];
        let (code, _, err) = run(&mut gpuvm(&args));
        assert!(
            code == 1 && err.contains("; all nodes with pcpus together have 121.5 GiB"),
            "{err}"
        );
        assert!(err.contains("`--allow remote` takes the rest from other nodes"), "{err}");
        // The firmware calls the expander of node 0 nearer than the memory of node 1; it is not.
        let wish = ["--vcpus", "16", "--memory", "130G", "--allow", "remote"];
        let far = placement(file, &wish);
        assert_eq!(nodes(&far), ["0-2"]);
        let said = far["reasons"].to_string();
        assert!(said.contains("of the 130 GiB of cell 0 are on node 1, distance 21: "), "{said}");
        let expander = "of the 130 GiB of cell 0 are on node 2, distance 14, which has no CPUs";
        assert!(said.contains(expander), "{said}");
        // A host without any PCI function may have GPUs.
        assert_eq!(verdict(file), (0, Vec::new()));
    });
}

#[test]
fn nodes_of_one_processor_are_filled_before_those_of_the_other() {
    on("granite-rapids-snc3", |file| {
        for (vcpus, wanted) in [
            ("60", &["0"][..]),
            ("120", &["0", "1"]),
            ("180", &["0", "1", "2"]),
            ("380", &["0", "1", "2", "3", "4", "5"]),
        ] {
            assert_eq!(nodes(&placement(file, &["--vcpus", vcpus])), wanted);
        }
        // Two cores are left for the emulator, and the I/O threads of four nodes run there, too.
        let full = placement(file, &["--vcpus", "380"]);
        let threads = strings(&full["iothread_pins"]);
        assert_eq!(threads, [&["159,351"; 5][..], &["191,383"]].concat());
        let said = "I/O threads of nodes 0, 1, 2 and 3 run beside the emulator of another node";
        assert!(full["reasons"].to_string().contains(said), "{}", full["reasons"]);
        assert_eq!(verdict(file), (0, Vec::new()));
    });
}
