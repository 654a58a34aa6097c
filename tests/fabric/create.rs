//! `create` and its partition: order of steps, refusals, and undoing whatever Fabric Manager answers.

use super::machine::{H100, Machine, embedded, operations, remembering};
use crate::support::tree::host_text;
use crate::support::{project, run};
use gpuvm_host::fabric::{Limits, limit_this_process};
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

/// A dry run of `create`: the exit code, the steps, and the other output.
pub fn dry_run(machine: &Machine, uri: &str, gpus: &str) -> (i32, Vec<String>, String) {
    let disks = machine.path("disks");
    let args = [
        "-c",
        uri,
        "create",
        "--name",
        "a",
        "--gpus",
        gpus,
        "--dry-run",
        "--no-seed",
        "--disk-dir",
        &disks,
        "--os-size",
        "8M",
        "--data-size",
        "none",
    ];
    let (code, out, err) = machine.gpuvm(&args, true);
    (code, out.lines().map(str::to_owned).collect(), err)
}

#[test]
fn a_guest_gets_its_partition_after_the_resets_or_is_refused_before_anything_is_bound() {
    let Some(machine) = Machine::h100() else { return };
    let Some(uri) = embedded(&machine) else { return };
    let state = format!("state {}", machine.path("state"));
    machine.fake("h100", &H100, &state);
    let plan = |more: &[&str]| {
        let args = [&["-c", &uri, "plan", "--gpus", "2"][..], more].concat();
        let (code, out, err) = machine.gpuvm(&args, true);
        assert_eq!(code, 0, "{err}");
        out
    };
    let planned: Value = serde_json::from_str(&plan(&["--json"])).unwrap();
    let partition = planned["placement"]["partition"].as_u64().unwrap();
    let gpus: Vec<&str> = planned["placement"]["devices"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(Value::as_str)
        .collect();
    let module = |bdf: &&str| H100.iter().find(|(bus, _)| *bus == &bdf[5..7]).map(|(_, id)| *id);
    let mut modules: Vec<String> =
        gpus.iter().filter_map(module).map(|id| id.to_string()).collect();
    modules.sort();
    let called = format!("{partition} (modules {})", modules.join(", "));
    let text = plan(&["--explain"]);
    assert!(text.contains(&format!("{called}, activated by gpuvm before the start")), "{text}");
    assert!(!text.contains("has to be activated"), "{text}");

    let (code, steps, err) = dry_run(&machine, &uri, "2");
    assert_eq!(code, 0, "{err}");
    let activation = format!("activate NVLink partition {called}");
    let at = steps.iter().position(|step| *step == activation);
    let at = at.unwrap_or_else(|| panic!("{activation}: {steps:#?}"));
    let resets: Vec<usize> =
        (0..steps.len()).filter(|&step| steps[step].starts_with("reset 0000:")).collect();
    assert_eq!((resets.len(), resets.iter().max() < Some(&at)), (2, true), "{steps:#?}");
    assert!(steps[at + 1..].iter().any(|step| step.starts_with("define domain")), "{steps:#?}");

    // Another one that has one of its GPUs.
    let other = if partition == 1 { 2 } else { 1 };
    machine.fake("h100", &H100, &format!("{state}y\nactive {other}\nactive 0"));
    let (code, _, err) = dry_run(&machine, &uri, "2");
    assert!(code == 1 && err.contains("which is active for no running domain"), "{err}");
    assert!(err.contains(" 0` deactivates it"), "{err}");

    // Fabric Manager is starting, and the step will wait; it is not running.
    machine.fake("h100", &H100, "fail fmGetSupportedFabricPartitions -8");
    let (code, steps, err) = dry_run(&machine, &uri, "2");
    let activates = |step: &String| step.starts_with("activate NVLink partition ");
    assert!(code == 0 && steps.iter().any(activates), "{steps:#?}{err}");
    machine.fake("h100", &H100, "address elsewhere");
    let (code, steps, err) = dry_run(&machine, &uri, "2");
    assert_eq!((code, steps.len()), (1, 0), "{steps:#?}");
    assert!(err.contains("cannot be activated for domain `a`, which has no working CUDA"), "{err}");
    assert!(err.contains("hint: it does not run, or listens elsewhere"), "{err}");
    // A guest without GPUs needs no query.
    let (code, steps, err) = dry_run(&machine, &uri, "0");
    assert!(code == 0 && !steps.iter().any(activates), "{steps:#?}{err}");
    // In the mode for vGPUs whole GPUs get none.
    let machine = machine.mode(2);
    let (code, steps, err) = dry_run(&machine, &uri, "2");
    assert!(code == 0 && !steps.iter().any(activates), "{steps:#?}{err}");
}

#[test]
fn a_plan_avoids_unused_active_partitions_and_says_what_create_would_refuse() {
    let Some(machine) = Machine::h100() else { return };
    let Some(uri) = embedded(&machine) else { return };
    let run = |verb: &str, size: &str| {
        let (code, out, err) = machine.gpuvm(&["-c", &uri, verb, "--gpus", size], true);
        assert_eq!(code, 0, "{err}");
        out + &err
    };
    let activated = || {
        let (code, steps, err) = dry_run(&machine, &uri, "2");
        assert_eq!(code, 0, "{err}");
        let step = steps.iter().find_map(|step| step.strip_prefix("activate NVLink partition "));
        step.unwrap_or_else(|| panic!("{steps:#?}")).to_owned()
    };
    machine.fake("h100", &H100, "");
    let first = activated();
    let said = "activated by gpuvm before the start";
    assert!(run("plan", "2").contains(&format!("{first}, {said}")), "{}", run("plan", "2"));
    // Nobody runs with it, and another one is free.
    let id = first.split(' ').next().unwrap();
    machine.fake("h100", &H100, &format!("active {id}"));
    let next = activated();
    assert_ne!(next, first);
    assert!(run("plan", "2").contains(&format!("{next}, {said}")), "{}", run("plan", "2"));
    let counted = run("capacity", "2");
    let release = format!(" {id}` deactivates it");
    assert!(counted.contains("`gpuvm fabric release ") && counted.contains(&release), "{counted}");
    // None of this size is; Fabric Manager does not answer.
    for (fake, why) in [
        ("active 3\nactive 4\nactive 5\nactive 6", "`gpuvm fabric release "),
        ("fail fmConnect -9", "fmConnect: CONNECTION_NOT_VALID (-9)"),
    ] {
        machine.fake("h100", &H100, fake);
        let text = run("plan", "2");
        assert!(text.contains("which cannot be activated now") && !text.contains(said), "{text}");
        assert!(text.contains("! partition ") && text.contains(why), "{text}");
        assert!(run("capacity", "2").contains(why), "{}", run("capacity", "2"));
        let (code, _, err) = dry_run(&machine, &uri, "2");
        assert!(code == 1 && err.contains(why), "{err}");
    }
}

/// Has the arguments of a run of the program in a process of this binary that waits for no change
/// longer than 0.3 s.
const HURRIED: &str = "GPUVM_TEST_FABRIC_HURRIED";

/// What another test runs in a process of its own; by itself it does nothing.
#[test]
fn runs_the_program_hurriedly() {
    let Some(line) = std::env::var_os(HURRIED) else { return };
    let change = Duration::from_millis(300);
    limit_this_process(Limits { change, list: Duration::from_secs(20), ..Limits::default() });
    let words = line.to_str().unwrap().split(' ').map(Into::into);
    std::process::exit(
        gpuvm::cli::main([std::ffi::OsString::from("gpuvm")].into_iter().chain(words)).into(),
    );
}

/// A machine on which a guest of one GPU can be made up to its start: its GPUs are bound for
/// guests, as an admin had them.
fn unbound() -> Option<(Machine, String)> {
    let record =
        host_text("dgx-h100").replace("/bus/pci/drivers/nvidia\n", "/bus/pci/drivers/vfio-pci\n");
    let machine = Machine::new(&record)?.mode(1);
    for (bus, _) in H100 {
        let dir = machine.dir.path().join(format!("host/sys/bus/pci/devices/0000:{bus}:00.0"));
        std::fs::write(dir.join("reset"), "").unwrap();
    }
    let uri = embedded(&machine)?;
    Some((machine, uri))
}

/// The words that make a guest of one GPU there.
pub fn makes(machine: &Machine, uri: &str) -> String {
    let disks = machine.path("disks");
    // The embedded driver has no networks, which `create` would make.
    let text = std::fs::read_to_string(project().join("templates/gpu-guest.xml")).unwrap();
    let (before, rest) = text.split_once("<interface").unwrap();
    let (_, after) = rest.split_once("</interface>").unwrap();
    let template = machine.path("template.xml");
    std::fs::write(&template, [before, after].concat()).unwrap();
    format!(
        "-c {uri} create --name a --gpus 1 --no-seed --no-wait --disk-dir {disks} --os-size 8M \
         --data-size none --template {template}"
    )
}

/// Tells the fakes what to be, in the beginning.
fn afresh(machine: &Machine, more: &str) {
    for file in ["state", "calls"] {
        let _ = std::fs::remove_file(machine.path(file));
    }
    remembering(machine, more);
}

/// That nothing is left of a guest that was not made.
fn nothing_is_left(machine: &Machine, uri: &str, case: &str) {
    let state = std::fs::read_to_string(machine.path("state")).unwrap_or_default();
    assert!(!state.contains("active"), "{case}: {state}");
    let file = std::fs::read_to_string(machine.path("var/gpuvm/fabric.json")).unwrap_or_default();
    assert!(!file.contains("domain"), "{case}: {file}");
    let files = |dir: &str| std::fs::read_dir(machine.path(dir)).map_or(0, |dir| dir.count());
    assert_eq!((files("disks"), files("var/gpuvm/journal")), (0, 0), "{case}");
    let (code, out, _) = machine.gpuvm(&["-c", uri, "list"], true);
    assert_eq!((code, out.as_str()), (0, ""), "{case}");
}

#[test]
fn a_create_is_undone_whatever_fabric_manager_answers_or_does_not() {
    let Some((machine, uri)) = unbound() else { return };
    let line = makes(&machine, &uri);
    let words: Vec<&str> =
        [env!("CARGO_BIN_EXE_gpuvm")].into_iter().chain(line.split(' ')).collect();
    let create = || {
        let (code, _, err) = machine.gpuvm_on(&words, true, "");
        (code, operations(&machine), err)
    };
    // All is well up to the start, which this machine's QEMU cannot do: the partition is given
    // back.
    afresh(&machine, "");
    let (code, calls, err) = create();
    let [activated, deactivated] = &calls[..] else { panic!("{calls:?}: {err}") };
    let id =
        activated.strip_prefix("fmActivateFabricPartition ").unwrap_or_else(|| panic!("{err}"));
    assert_eq!((code, deactivated), (1, &format!("fmDeactivateFabricPartition {id}")), "{err}");
    nothing_is_left(&machine, &uri, "start");
    let text = std::fs::read_to_string(machine.path("calls")).unwrap();
    let number = 1 + text.lines().position(|line| line.contains("fmActivate")).unwrap();
    for code in [-7, -17] {
        // It is not active: refused.
        afresh(&machine, &format!("fail fmActivateFabricPartition {code}"));
        let (ended, calls, err) = create();
        assert_eq!((ended, calls.len()), (1, 1), "{code}: {err}");
        assert!(err.contains(&format!("IN_USE ({code})")), "{err}");
        assert!(err.contains("earlier steps are undone"), "{err}");
        nothing_is_left(&machine, &uri, &code.to_string());
        // It is active all the same: that counts.
        afresh(&machine, &format!("fail_nth {number} {code} done"));
        let (ended, calls, err) = create();
        assert_eq!((ended, calls.len()), (1, 2), "{code}: {err}");
        assert!(err.contains(&format!("IN_USE ({code}), and lists it as active")), "{err}");
        nothing_is_left(&machine, &uri, &format!("{code}, and done"));
    }
    // It hangs: given up after its limit.
    afresh(&machine, "hang fmActivateFabricPartition");
    let own = std::env::current_exe().unwrap();
    let own = [
        own.to_str().unwrap(),
        "--exact",
        "fabric::create::runs_the_program_hurriedly",
        "--nocapture",
    ];
    let (ended, _, err) = run(machine.command(&own, true, "").env(HURRIED, &line));
    assert_eq!(ended, 1, "{err}");
    assert!(err.contains("library did not answer within 0.3 s"), "{err}");
    nothing_is_left(&machine, &uri, "hang");
}

#[test]
fn a_signal_ends_the_wait_of_a_create_and_recover_goes_on_where_nothing_is_known() {
    let Some((machine, uri)) = unbound() else { return };
    let line = makes(&machine, &uri);
    // Who starts the tests in the background may have it ignored.
    let program = ["env", "--default-signal=INT", env!("CARGO_BIN_EXE_gpuvm")];
    let words: Vec<&str> = program.into_iter().chain(line.split(' ')).collect();
    // Interrupted once it has been asked for; `then`: what Fabric Manager is from that moment on.
    let interrupted = |then: &str| {
        afresh(&machine, "hang fmActivateFabricPartition");
        let mut command = machine.command(&words, true, "");
        let piped = std::process::Stdio::piped;
        let child = command.stdout(piped()).stderr(piped()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(300);
        while operations(&machine).is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        remembering(&machine, &format!("hang fmActivateFabricPartition\n{then}"));
        let pid = std::fs::read_to_string(machine.path("pid")).unwrap();
        let (code, _, err) = run(Command::new("kill").args(["-INT", pid.trim()]));
        assert_eq!(code, 0, "{err}");
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, err) = interrupted("");
    assert!(code != Some(0) && err.contains("before Fabric Manager answered, and lists"), "{err}");
    assert!(err.contains("interrupted by SIGINT; earlier steps are undone\n"), "{err}");
    nothing_is_left(&machine, &uri, "SIGINT");
    // Nor does it answer afterwards: that is said, and the journal stays.
    let (code, err) = interrupted("hang fmGetSupportedFabricPartitions");
    assert!(
        code != Some(0) && err.contains("so it is not known whether NVLink partition"),
        "{err}"
    );
    assert!(err.contains("undone only in part") && err.contains("gpuvm recover"), "{err}");
    remembering(&machine, "");
    let (code, out, err) = machine.gpuvm(&["recover", "--yes", "-c", &uri], true);
    assert_eq!(code, 0, "{out}{err}");
    nothing_is_left(&machine, &uri, "recover");
}
