//! Guests of whole boards: their NVSwitches, and the NICs in front of these.

use super::create::dry_run;
use super::machine::{A100, H100, Machine, domain_with, embedded, shown};
use crate::support::tree::host_text;
use serde_json::Value;
use std::path::{Path, PathBuf};

#[test]
fn before_h100_only_a_guest_of_all_gpus_is_made_in_the_shared_mode() {
    let Some(machine) = Machine::new(&host_text("dgx-a100")) else { return };
    let machine = machine.mode(1);
    let Some(uri) = embedded(&machine) else { return };
    machine.fake("a100", &A100, "");
    let (code, out, err) = machine.gpuvm(&["-c", &uri, "plan", "--gpus", "2"], true);
    assert!(code == 0 && out.contains("would lose its NVLinks at the start"), "{out}{err}");
    let (code, steps, err) = dry_run(&machine, &uri, "2");
    assert_eq!((code, steps.len()), (1, 0), "{err}");
    assert!(err.contains("would lose its NVLinks at the start"), "{err}");
    assert!(err.contains("hint: all GPUs of the host form one guest that works"), "{err}");
    let (code, steps, err) = dry_run(&machine, &uri, "8");
    let activates = |step: &String| step.starts_with("activate NVLink partition ");
    assert!(code == 0 && steps.iter().any(activates), "{steps:#?}{err}");
}

#[test]
fn nvswitches_that_go_to_the_guest_are_reset_and_refused_while_fabric_manager_has_them() {
    let Some(machine) = Machine::h100() else { return };
    let machine = machine.mode(0);
    let Some(uri) = embedded(&machine) else { return };
    machine.fake("h100", &H100, "");
    let resets = |steps: &[String]| -> Vec<String> {
        steps.iter().filter_map(|step| step.strip_prefix("reset ")).map(str::to_owned).collect()
    };
    // The kernel supports no reset of one.
    let (code, steps, err) = dry_run(&machine, &uri, "8");
    assert_eq!((code, resets(&steps).len()), (0, 8), "{steps:#?}{err}");
    let devices = machine.dir.path().join("host/sys/bus/pci/devices");
    let class = |dir: &Path| std::fs::read_to_string(dir.join("class")).unwrap_or_default();
    let all = std::fs::read_dir(&devices).unwrap().map(|entry| entry.unwrap().path());
    let switches: Vec<PathBuf> = all.filter(|dir| class(dir).starts_with("0x0680")).collect();
    assert_eq!(switches.len(), 4);
    for switch in &switches {
        std::fs::write(switch.join("reset"), "").unwrap();
    }
    let (code, steps, err) = dry_run(&machine, &uri, "8");
    let (all, name) = (resets(&steps), |dir: &PathBuf| dir.file_name().unwrap().to_owned());
    assert_eq!((code, all.len()), (0, 12), "{steps:#?}{err}");
    let last: std::collections::BTreeSet<_> = all[8..].iter().map(Into::into).collect();
    assert_eq!(last, switches.iter().map(name).collect(), "after the GPUs: {steps:#?}");
    // Fabric Manager of the host runs: a process of root, in place of another user's.
    let fm = machine.dir.path().join("fm");
    std::fs::create_dir(&fm).unwrap();
    std::fs::write(fm.join("comm"), "nv-fabricmanage\n").unwrap();
    std::fs::write(fm.join("status"), "Name:\tnv-fabricmanage\nUid:\t0\t0\t0\t0\n").unwrap();
    let (code, steps, err) = dry_run(&machine, &uri, "8");
    assert_eq!((code, steps.len()), (1, 0), "{steps:#?}{err}");
    assert!(err.contains("domain `a` needs NVSwitches, and Fabric Manager of the host"), "{err}");
    assert!(err.contains("4 NVSwitches are bound to the nvidia driver"), "{err}");
    assert!(err.contains("hint: `systemctl disable --now nvidia-fabricmanager`"), "{err}");
    let (code, _, err) = dry_run(&machine, &uri, "1");
    assert!(code == 1 && !err.contains("Fabric Manager of the host"), "in nobody's way: {err}");
    let (code, document) = shown(&machine, "test:///default");
    assert_eq!((code, document["managed_switches"].as_array().unwrap().len()), (0, 4));
    let (_, _, err) = machine.gpuvm(&["fabric", "show", "-c", "test:///default"], true);
    assert!(err.contains("manages 4 NVSwitches, which no guest gets meanwhile"), "{err}");
    // Without the driver it has none of them.
    for switch in &switches {
        std::fs::remove_file(switch.join("driver")).unwrap();
    }
    let (code, _, err) = dry_run(&machine, &uri, "8");
    assert_eq!(code, 0, "{err}");
}

#[test]
fn some_gpus_of_an_h100_keep_their_nvlinks_on_unless_they_are_shared() {
    let Some(machine) = Machine::h100() else { return };
    let machine = machine.mode(0);
    machine.fake("h100", &H100, "");
    let said = "not isolated on NVLink: on H100 and later the NVLinks of a guest with some of the \
                board's GPUs stay on";
    let plan = |gpus: &str| {
        let (code, out, err) = machine.gpuvm(&["plan", "--gpus", gpus, "--assume-empty"], true);
        assert_eq!(code, 0, "{err}");
        out + &err
    };
    assert!(plan("1").contains(said), "{}", plan("1"));
    assert!(!plan("8").contains(said) && !plan("8").contains("bridge"), "{}", plan("8"));
    // It is made for who says that this is known.
    if let Some(uri) = embedded(&machine) {
        let (code, steps, err) = dry_run(&machine, &uri, "1");
        assert_eq!((code, steps.len()), (1, 0), "{err}");
        assert!(err.contains(said) && err.contains("--accept-shared-fabric"), "{err}");
        let (code, _, err) = dry_run(&machine, &uri, "8");
        assert_eq!(code, 0, "{err}");
    }
    // So it is with guests that are there, and not where Fabric Manager keeps the NVSwitches.
    let rules = |machine: &Machine, buses: &[&str]| {
        let xml = domain_with("11111111-2222-3333-4444-555555555555", buses);
        std::fs::write(machine.path("guest.xml"), xml).unwrap();
        let (_, out, err) = machine.gpuvm(&["check", &machine.path("guest.xml"), "--json"], true);
        let text = out + &err;
        assert!(text.contains("gpuvm-check"), "{text}");
        text.contains("nvlinks-not-blocked")
    };
    assert!(rules(&machine, &["9d"]));
    assert!(!rules(&machine, &H100.map(|(bus, _)| bus)));
    assert!(!rules(&machine.mode(1), &["9d"]));
}

#[test]
fn nics_in_front_of_nvswitches_go_to_the_guest_of_all_gpus_alone() {
    let record = host_text("dgx-h100")
        .replace("product_name = DGXH100", "product_name = SYS-821")
        .replace("device = 0x2330", "device = 0x2901")
        .replace("v000010DEd00002330", "v000010DEd00002901")
        .replace("class = 0x068000", "class = 0x088000")
        .replace("bc06sc80i00", "bc08sc80i00");
    let Some(machine) = Machine::new(&record) else { return };
    let machine = machine.mode(0);
    machine.fake("b200", &H100, "");
    let run = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (code, out, err) = machine.gpuvm(&words, true);
        (code, out + &err)
    };
    let (code, text) = run("plan --gpus 8 --assume-empty");
    assert!(
        code == 0 && text.contains("behind a ConnectX-7 bridge, whose functions are not"),
        "{text}"
    );
    // The card of one NIC says that it is the bridge.
    let devices = machine.dir.path().join("host/sys/bus/pci/devices");
    let read =
        |bdf: &str, file: &str| std::fs::read_to_string(devices.join(bdf).join(file)).unwrap();
    let names = std::fs::read_dir(&devices).unwrap().map(|one| one.unwrap().file_name());
    let mut nics: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    nics.retain(|bdf| read(bdf, "class").starts_with("0x02"));
    let number = nics.len();
    nics.retain(|bdf| read(bdf, "vendor").contains("15b3"));
    nics.sort();
    let bridge = nics[0].clone();
    std::fs::write(devices.join(&bridge).join("vpd"), b"\x82\x05\0CX7\xff\x90V5\x06SW_MNG\0")
        .unwrap();
    let slot = &bridge[..10];
    let card = nics.iter().filter(|bdf| bdf.starts_with(slot)).count();
    let (_, text) = run("host show --json");
    let shown: Value = serde_json::from_str(&text).unwrap();
    let fabric = &shown["host"]["fabric"];
    assert_eq!(fabric["bridge"].as_array().map(Vec::len), Some(card), "{fabric}");
    assert!(shown["host"]["notes"].to_string().contains(&format!("({bridge}")), "{text}");
    let (code, text) = run("plan --gpus 8 --assume-empty");
    assert!(code == 0 && text.contains(&format!("whose functions {bridge}")), "{text}");
    let all: String = nics
        .iter()
        .filter(|bdf| bdf.starts_with(slot))
        .map(|bdf| format!(" --nic {bdf}"))
        .collect();
    let (code, text) = run(&format!("plan --gpus 8 --assume-empty{all}"));
    assert!(code == 0 && !text.contains("no NVLink in the guest"), "{text}");
    // No number takes it, and no guest gets it while Fabric Manager of the host needs it.
    let (code, text) = run(&format!("plan --gpus 8 --assume-empty --nic {number}"));
    let why = "is in front of the board's NVSwitches, which Fabric Manager reaches by it";
    assert!(code == 1 && text.contains(&format!("{bridge} {why}")), "{text}");
    let machine = machine.mode(1);
    let (code, _, err) =
        machine.gpuvm(&["plan", "--gpus", "8", "--assume-empty", "--nic", &bridge], true);
    assert!(code == 1 && err.contains(why), "{err}");
}
