//! `--p2p` from outside, on a tree of files: which ports are set for a guest, and which never are.

use crate::support::tree::{host_text, scratch, unpack};
use crate::support::{gpuvm, run};
use gpuvm::bdf::Bdf;
use gpuvm::discover::source::load;
use gpuvm::topology::DeviceKind;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Config space of a function with one extended capability: its id and its two registers.
fn config(id: u8, [low, high]: [u16; 2]) -> Vec<u8> {
    let mut config = vec![0; 4096];
    config[..4].copy_from_slice(&[0xb5, 0x10, 0x97, 0x97]);
    config[0x100..0x104].copy_from_slice(&[id, 0, 1, 0]);
    config[0x104..0x106].copy_from_slice(&low.to_le_bytes());
    config[0x106..0x108].copy_from_slice(&high.to_le_bytes());
    config
}

fn put(tree: &Path, bdf: Bdf, config: &[u8]) {
    fs::write(tree.join(format!("sys/bus/pci/devices/{bdf}/config")), config).unwrap();
}

/// A GPU and a NIC below one switch, and the NIC's port.
struct Found {
    gpu: Bdf,
    nic: Bdf,
    port: Bdf,
}

/// A host whose ports are as Linux sets them and whose NICs have ATS.
fn host() -> (tempfile::TempDir, Found) {
    let dir = scratch();
    unpack(&host_text("dgx-a100"), dir.path()).unwrap();
    let topology = load(dir.path()).unwrap();
    for device in topology.devices() {
        match device.kind() {
            DeviceKind::Bridge => put(dir.path(), device.bdf, &config(0x0d, [0x5f, 0x1d])),
            DeviceKind::Nic => put(dir.path(), device.bdf, &config(0x0f, [0x20, 0])),
            _ => {}
        }
    }
    let free = |nic: &Bdf| {
        let device = topology.device(*nic).unwrap();
        device.net.as_ref().is_none_or(|net| net.used_by.is_empty())
    };
    let nics: Vec<Bdf> =
        topology.of_kind(DeviceKind::Nic).map(|nic| nic.bdf).filter(free).collect();
    let pairs = topology.gpus().flat_map(|gpu| nics.iter().map(move |nic| (gpu.bdf, *nic)));
    let mut meet = pairs.filter(|(gpu, nic)| topology.meeting(*gpu, *nic).is_some());
    let (gpu, nic) = meet.next().expect("a GPU and a NIC below one switch");
    let port = topology.divergence(nic, gpu).unwrap().bdf;
    (dir, Found { gpu, nic, port })
}

/// Plans a guest with the two: the exit code, the answer, and the notes.
fn create(tree: &Path, found: &Found, more: &[&str]) -> (i32, Value, String) {
    let (gpu, nic) = (found.gpu.to_string(), found.nic.to_string());
    let mut command = gpuvm(&["create", "--dry-run", "--accept-shared-fabric", "--name", "a"]);
    command.args(["--gpu", &gpu, "--nic", &nic, "--no-seed", "--json"]).args(more);
    command.args(["--connect", "test:///default", "--host", tree.to_str().unwrap()]);
    let (code, out, err) = run(command.env("COLUMNS", "2000"));
    (code, serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}")), err)
}

/// The steps on ports of an answer.
fn steps(answer: &Value) -> Vec<&Value> {
    let all = answer.as_array().unwrap_or_else(|| panic!("{answer}"));
    all.iter().filter(|step| step["step"] == "p2p").collect()
}

#[test]
fn only_the_port_of_the_guests_own_nic_is_set_and_only_if_requested() {
    let (dir, found) = host();
    let (code, answer, err) = create(dir.path(), &found, &[]);
    assert!(code == 0 && steps(&answer).is_empty(), "{err}");
    let (code, answer, err) = create(dir.path(), &found, &["--p2p", "auto"]);
    assert_eq!(code, 0, "{err}");
    let [set] = steps(&answer)[..] else { panic!("{answer}") };
    assert_eq!(set["do"], "set-direct");
    assert_eq!(set["port"], found.port.to_string());
    assert_eq!(set["was"], 0x1d);
    let (code, answer, _) = create(dir.path(), &found, &["--p2p", "auto", "--no-start"]);
    assert!(code == 0 && steps(&answer).is_empty(), "set when it starts");
    // Without ATS nothing is set, and that is said.
    put(dir.path(), found.nic, &config(0x0b, [0, 0]));
    let (code, answer, err) = create(dir.path(), &found, &["--p2p", "auto"]);
    assert!(code == 0 && steps(&answer).is_empty(), "{err}");
    assert!(err.contains(&format!("{} of `a` has no ATS", found.nic)), "{err}");
}

#[test]
fn a_port_that_cannot_be_set_is_refused_with_its_code() {
    let (dir, found) = host();
    for (registers, wanted) in [
        (config(0x0d, [0x1f, 0x1d]), "p2p-dt-unsupported"),
        (config(0x0d, [0x5f, 0x1f]), "p2p-translation-blocked"),
        (vec![0; 64], "p2p-unreadable"),
    ] {
        put(dir.path(), found.port, &registers);
        let (code, answer, err) = create(dir.path(), &found, &["--p2p", "auto"]);
        assert_eq!(code, 1, "{err}");
        assert_eq!(answer["code"], wanted, "{answer}");
        let hint = answer["hint"].as_str().unwrap();
        assert!(hint.contains("--p2p off creates it"), "{hint}");
        // Without the bit they are rejected as well.
        let is_rejecting = wanted == "p2p-translation-blocked";
        assert_eq!(hint.contains("over the root complex"), !is_rejecting, "{hint}");
        let (code, _, err) = create(dir.path(), &found, &["--p2p", "off"]);
        assert_eq!(code, 0, "{err}");
    }
}

/// A running domain with the second function of `recorded`.
const BESIDE: &str = "<domain type='kvm' id='3'><name>b</name>\
    <uuid>11111111-2222-3333-4444-555555555555</uuid><memory unit='GiB'>4</memory>\
    <vcpu>2</vcpu><os><type arch='x86_64' machine='pc-q35-9.0'>hvm</type></os>\
    <devices><hostdev mode='subsystem' type='pci' managed='yes'><source><address \
    domain='0' bus='0x0c' slot='0' function='1'/></source></hostdev></devices></domain>";

/// A recorded host whose NIC 0c:00.0, beside a GPU, has a second function.
fn recorded(dir: &Path) -> String {
    let text = include_str!("../topologies/dgx-a100.json");
    let mut host: Value = serde_json::from_str(text).unwrap();
    let devices = host["host"]["devices"].as_array_mut().unwrap();
    for device in devices.iter_mut() {
        let class = device["class"].as_str().unwrap().to_owned();
        let is_bridge = class.starts_with("0x0604");
        let acs = if is_bridge { [0x5f, 0x1d] } else { [0, 0] };
        device["acs"] = serde_json::json!({ "cap": acs[0], "ctl": acs[1] });
        let present = class.starts_with("0x02");
        device["ats"] = serde_json::json!({ "present": present, "enabled": false });
        device["devctl"] = 0x10.into();
    }
    let at = devices.iter().position(|device| device["bdf"] == "0000:0c:00.0").unwrap();
    let mut second = devices[at].clone();
    second["bdf"] = "0000:0c:00.1".into();
    second["iommu_group"] = 900.into();
    second.as_object_mut().unwrap().remove("net");
    devices.insert(at + 1, second);
    let file = dir.join("host.json");
    fs::write(&file, host.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn functions_of_recorded_domains_count_for_the_ports_of_a_new_one() {
    let dir = scratch();
    let host = recorded(dir.path());
    let other = dir.path().join("b.xml");
    fs::write(&other, BESIDE).unwrap();
    let created = |more: &[&str]| {
        let mut command = gpuvm(&["create", "--dry-run", "--accept-shared-fabric", "--name", "a"]);
        command.args(["--gpu", "0000:0f:00.0", "--nic", "0000:0c:00.0", "--no-seed", "--json"]);
        command.args(["--p2p", "auto", "--host", &host]).args(more);
        let (code, out, err) = run(command.env("COLUMNS", "2000"));
        (code, serde_json::from_str::<Value>(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}")))
    };
    let (code, answer) = created(&[]);
    assert!(code == 0 && steps(&answer).len() == 1, "{answer}");
    let (code, answer) = created(&["--domain-xml", other.to_str().unwrap()]);
    assert_eq!((code, answer["code"].as_str()), (1, Some("p2p-other-guest")), "{answer}");
}

#[test]
fn a_plan_says_which_way_transfers_take() {
    let (dir, found) = host();
    let (gpu, nic) = (found.gpu.to_string(), found.nic.to_string());
    let said = |p2p: &str| -> String {
        let mut command = gpuvm(&["plan", "--gpu", &gpu, "--nic", &nic, "--p2p", p2p, "--json"]);
        command.args(["--host", dir.path().to_str().unwrap()]);
        let (code, out, err) = run(&mut command);
        assert_eq!(code, 0, "{err}");
        let answer: Value = serde_json::from_str(&out).unwrap();
        let all =
            answer["placement"]["reasons"].as_array().unwrap_or_else(|| panic!("{answer}")).iter();
        let of = |why: &&Value| why["choice"] == "p2p";
        let all: Vec<&str> = all.filter(of).map(|why| why["because"].as_str().unwrap()).collect();
        all.join("\n")
    };
    let port = found.port;
    let meet = format!("NIC {nic} and GPU {gpu} meet at switch ");
    let auto = said("auto");
    assert!(auto.starts_with(&meet), "{auto}");
    assert!(auto.contains(&format!(": direct, as bit DT of {port} is set before")), "{auto}");
    let off = said("off");
    assert!(off.contains(&format!(
        "over the root complex at about half the rate: bit DT of {port} is off"
    )));
    assert!(off.ends_with(&format!("; --p2p auto sets bit DT of {port}")), "{off}");
    put(dir.path(), found.nic, &config(0x0b, [0, 0]));
    assert!(said("auto").contains(&format!("half the rate: {nic} has no ATS")));
    put(dir.path(), port, &config(0x0d, [0x1f, 0x1d]));
    put(dir.path(), found.nic, &config(0x0f, [0x20, 0]));
    assert!(said("auto").contains("no port is set for --p2p auto: "));
    put(dir.path(), port, &config(0x0d, [0x5f, 0x1f]));
    assert!(said("off").ends_with(&format!(": rejected: bit TB of {port} is on")));
}

#[test]
fn other_platforms_lose_the_option_and_say_so() {
    let (dir, found) = host();
    let gpu = found.gpu.to_string();
    for format in ["kubevirt", "nova"] {
        let lost = |p2p: &str| {
            let mut command = gpuvm(&["export", "--name", "a", "--gpu", &gpu, "--format", format]);
            command.args(["--p2p", p2p]);
            let (code, out, err) = run(command.args(["--host", dir.path().to_str().unwrap()]));
            assert_eq!(code, 0, "{err}");
            out.contains("# lost: p2p: ")
        };
        assert_eq!((lost("auto"), lost("off")), (true, false), "{format}");
    }
    // The definition for libvirt has it in its record.
    let mut command = gpuvm(&["export", "--name", "a", "--gpu", &gpu, "--p2p", "auto"]);
    command.args(["--host", dir.path().to_str().unwrap()]);
    let (code, out, err) = run(&mut command);
    assert!(code == 0 && out.contains("\"p2p\":\"auto\""), "{out}{err}");
}

#[test]
fn a_port_that_rejects_a_nic_with_ats_is_an_error_of_the_host() {
    let (dir, found) = host();
    let doctor = || -> Vec<Value> {
        let root = dir.path().to_str().unwrap();
        let (_, out, err) = run(&mut gpuvm(&["host", "doctor", "--json", "--host", root]));
        let answer: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {err}"));
        let all = answer["findings"].as_array().unwrap().iter();
        all.filter(|one| one["rule"] == "p2p-rejected").cloned().collect()
    };
    put(dir.path(), found.port, &config(0x0d, [0x5f, 0x1f]));
    // Its ATS is off as long as no guest has it.
    assert!(doctor().is_empty());
    put(dir.path(), found.nic, &config(0x0f, [0x20, 0x8000]));
    let found_errors = doctor();
    let [one] = &found_errors[..] else { panic!("{found_errors:?}") };
    assert_eq!(
        (&one["severity"], &one["device"]),
        (&"error".into(), &found.nic.to_string().into())
    );
    let port = found.port.to_string();
    assert!(one["message"].as_str().unwrap().starts_with(&format!("port {port} rejects requests")));
    assert!(
        one["hint"].as_str().unwrap().contains(&format!("setpci -s {port} ECAP_ACS+6.w=00:02"))
    );
}

#[test]
fn an_unknown_guest_of_a_record_is_answered_with_a_command_that_works() {
    let dir = scratch();
    let host = recorded(dir.path());
    let p2p = |more: &[&str]| {
        let line = ["host", "p2p", "--guest", "x", "--host", &host];
        run(gpuvm(&line).args(more).env("COLUMNS", "2000"))
    };
    let (code, _, err) = p2p(&[]);
    assert!(code == 1 && err.contains("there is no domain `x`"), "{err}");
    assert!(err.contains("hint: add --domain-xml PATH with the domain's definition"), "{err}");
    let other = dir.path().join("b.xml");
    fs::write(&other, BESIDE).unwrap();
    let (code, _, err) = p2p(&["--domain-xml", other.to_str().unwrap()]);
    assert!(code == 1 && err.contains("hint: `gpuvm list --host "), "{err}");
}

#[test]
fn restore_is_of_this_machine_and_its_options_belong_to_it() {
    for (args, part) in [
        (&["restore", "--host", "x.json"][..], "does not take --host"),
        (&["restore", "--guest", "a"], "cannot be used with"),
        (&["--at-boot"], "required arguments were not provided"),
        (&["restore", "--remove"], "required arguments were not provided"),
        (&["reset"], "invalid value"),
    ] {
        let (code, _, err) = run(gpuvm(&["host", "p2p"]).args(args));
        assert!(code == 2 && err.contains(part), "{args:?}: {code} {err}");
    }
}
