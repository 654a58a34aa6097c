//! Several guests at once, and a guest's file for NCCL, by the program on a recorded DGX H100.

use super::machine::{H100, Machine, domain_with, embedded, operations, remembering};
use super::restore::restored;
use super::verify::verified;
use crate::support::{gpuvm, project, run};
use serde_json::{Value, json};

/// Three guests of two GPUs each, of partitions 3, 4 and 5; the third is off.
fn three(machine: &Machine) -> String {
    let guest = |name: &str, digit: u32, buses: &[&str], is_off: bool| {
        let uuid = format!("{digit}{digit}111111-2222-3333-4444-555555555555");
        let run = "<domain type='test' xmlns:test='http://libvirt.org/schemas/domain/test/1.0'>\
                   <test:runstate>5</test:runstate>";
        let more = "<memory>65536</memory><vcpu>1</vcpu><os><type>hvm</type></os><devices>";
        let xml = domain_with(&uuid, buses)
            .replace("<name>foreign</name>", &format!("<name>{name}</name>"))
            .replacen("<devices>", more, 1);
        xml.replace("<domain type='kvm'>", if is_off { run } else { "<domain type='test'>" })
    };
    let node = format!(
        "<node>{}{}{}</node>",
        guest("a", 1, &["9d", "c3"], false),
        guest("b", 2, &["d1", "df"], false),
        guest("c", 3, &["1b", "43"], true)
    );
    std::fs::write(machine.path("three.xml"), node).unwrap();
    format!("test://{}", machine.path("three.xml"))
}

#[test]
fn restarted_fabric_manager_gets_two_running_guests_without_a_stopped_one() {
    let Some(machine) = Machine::h100() else { return };
    let uri = three(&machine);
    let entry = |id: u32, modules: [u32; 2], digit: u32| {
        json!({ "id": id, "modules": modules,
                "domain": format!("{digit}{digit}111111-2222-3333-4444-555555555555") })
    };
    let all = [entry(3, [1, 3], 1), entry(4, [2, 4], 2), entry(5, [5, 7], 3)];
    std::fs::create_dir_all(machine.path("var/gpuvm")).unwrap();
    let file = machine.path("var/gpuvm/fabric.json");
    std::fs::write(&file, json!({ "version": 1, "partitions": all }).to_string()).unwrap();
    // All else is refused until the list is passed.
    remembering(&machine, "restart_mode 600000");
    let run = |words: &[&str]| machine.gpuvm(&[words, &["-c", &uri]].concat(), true);
    let (code, out, err) = run(&["fabric", "release", "5", "--yes"]);
    assert!(code == 1 && err.contains("NOT_SUPPORTED (-3)"), "{code} {out}{err}");
    let (code, shown) = restored(&machine, &["-c", &uri]);
    assert_eq!((code, &shown["mode"], &shown["made"]), (0, &json!("restart"), &json!(true)));
    assert_eq!((&shown["partitions"], &shown["unrestored"]), (&json!([3, 4]), &json!([])));
    assert_eq!(operations(&machine), ["fmSetActivatedFabricPartitions 3,4"]);
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(kept["partitions"], json!(all[..2]));
    // The list is passed once.
    let (code, shown) = restored(&machine, &["-c", &uri]);
    assert_eq!((code, &shown["mode"], &shown["made"]), (0, &json!("normal"), &json!(false)));
    assert_eq!(operations(&machine).len(), 1);
    // Both have their partitions, and the third one none.
    let (code, out, err) = run(&["fabric", "show", "--json"]);
    let shown: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{code}: {out}{err}"));
    assert_eq!(code, 0, "{out}");
    for (id, holder, verdict) in [(3, "a", "ok"), (4, "b", "ok"), (5, "", "free")] {
        let one = &shown["partitions"][id];
        let name = one["holder"]["name"].as_str().unwrap_or_default();
        assert_eq!((name, one["verdict"].as_str()), (holder, Some(verdict)), "{one}");
    }
    assert!(verified(&machine, &uri).1.is_empty());
    // Changes go on as before.
    let (code, _, err) = run(&["fabric", "release", "3", "--yes"]);
    assert!(code == 1 && err.contains("domain `a`"), "{err}");
    let uuid = "33111111-2222-3333-4444-555555555555";
    let words = [env!("CARGO_BIN_EXE_gpuvm"), "fabric", "ensure", "--stdin"];
    let (code, _, err) = machine.gpuvm_on(&words, true, &domain_with(uuid, &["1b", "43"]));
    assert_eq!(code, 0, "{err}");
    assert_eq!(operations(&machine)[1..], ["fmActivateFabricPartition 5"]);
}

#[test]
fn a_file_for_nccl_of_other_addresses_ends_verify_with_3() {
    let Some(machine) = Machine::h100() else { return };
    let Some(uri) = embedded(&machine) else { return };
    // Module ids in the order of the bus, as of the recorded host.
    let modules: Vec<(&str, u32)> = H100.iter().zip(1..).map(|((bus, _), id)| (*bus, id)).collect();
    machine.fake("h100", &modules, "");
    // As `create` defines it, on a KVM that this machine may lack; without an agent, by which the
    // guest may have got another file since.
    let host = project().join("topologies/dgx-h100.json").display().to_string();
    let words = ["create", "--name", "a", "--gpus", "2", "--nic", "2", "--dry-run", "--json"];
    let more = ["--host", &host, "--accept-shared-fabric", "--virt-type", "qemu"];
    let (code, out, err) = run(&mut gpuvm(&[&words[..], &more].concat()));
    assert_eq!(code, 0, "{err}");
    let steps: Value = serde_json::from_str(&out).unwrap();
    let defined = steps.as_array().unwrap().iter().find_map(|step| step["xml"].as_str()).unwrap();
    let (before, rest) = defined.split_once("<channel").unwrap();
    let (_, after) = rest.split_once("</channel>").unwrap();
    // No firmware is installed there.
    let made = [before, after].concat();
    let (before, rest) = made.split_once("<os firmware").unwrap();
    let (_, after) = rest.split_once("</os>").unwrap();
    let made = format!("{before}<os><type arch='x86_64' machine='q35'>hvm</type></os>{after}");
    // Its disks were not made: files stand in for them.
    let disks: Vec<&str> = made.split("<source file='").skip(1).collect();
    let made = disks.iter().enumerate().fold(made.clone(), |made, (number, disk)| {
        let file = machine.path(&format!("disk{number}"));
        std::fs::write(&file, vec![0; 1 << 20]).unwrap();
        made.replace(&format!("'{}'", disk.split('\'').next().unwrap()), &format!("'{file}'"))
    });
    let named = "<name>a</name><uuid>6695eb01-f6a4-8304-79aa-97f2502e193f</uuid>";
    let made = made.replacen("<name>a</name>", named, 1);
    let finds = |xml: &str, what: &str| {
        let file = machine.path("a.xml");
        std::fs::write(&file, xml).unwrap();
        let (code, _, err) = machine.gpuvm_on(&["virsh", "-c", &uri, "define", &file], true, "");
        assert_eq!(code, 0, "{what}: {err}");
        let (code, out, err) = machine.gpuvm(&["-c", &uri, "verify", "a", "--json"], true);
        let answer: Value =
            serde_json::from_str(&out).unwrap_or_else(|_| panic!("{what}, {code}: {out}{err}"));
        let all = answer["findings"].as_array().unwrap();
        let said = |one: &Value| one["message"].as_str().unwrap().to_owned();
        let found: Vec<String> =
            all.iter().filter(|one| one["rule"] == "nccl-file").map(said).collect();
        let rest: Vec<&Value> = all.iter().filter(|one| one["rule"] != "nccl-file").collect();
        (code, found, rest.into_iter().cloned().collect::<Vec<_>>())
    };
    let (code, found, others) = finds(&made, "as it was made");
    assert_eq!((code, found.len(), others.len()), (0, 0, 0), "{found:?} {others:?}");
    // The expander bus of the first cell has another number, and so have the buses below it.
    let at = made.find("busNr='").unwrap() + "busNr='".len();
    let number: u32 = made[at..].split('\'').next().unwrap().parse().unwrap();
    let moved = made.replacen(&format!("busNr='{number}'"), &format!("busNr='{}'", number - 10), 1);
    let (code, found, others) = finds(&moved, "moved");
    assert_eq!((code, others.len()), (3, 0), "{others:?}");
    let (gpu, nic) = (number + 1, number + 2);
    for (function, bus) in [("0000:1b:00.0", gpu), ("0000:18:00.0", nic)] {
        let wanted = format!(
            "address of {function} that NCCL reads: expected 0000:{:02x}:00.0, found \
             0000:{bus:02x}:00.0",
            bus - 10
        );
        assert!(found.contains(&wanted), "{wanted}: {found:?}");
    }
    assert_eq!(found.len(), 2, "{found:?}");
    // For people, with what rewrites it.
    let (code, out, err) = machine.gpuvm(&["-c", &uri, "verify", "a"], true);
    let told = "the file that the guest's seed brought (nccl-file)";
    assert!(code == 3 && out.contains(told) && out.contains(" a --install` rewrites it"), "{err}");
}

#[test]
fn a_guest_that_starts_with_the_host_needs_the_hook_where_nvswitches_are_shared() {
    let Some(machine) = Machine::h100() else { return };
    let Some(uri) = embedded(&machine) else { return };
    machine.fake("h100", &H100, "");
    let uuid = "44111111-2222-3333-4444-555555555555";
    let more = "<memory>65536</memory><vcpu>1</vcpu><os><type arch='x86_64' \
                machine='q35'>hvm</type></os><devices>";
    let xml = domain_with(uuid, &["9d", "c3"]).replacen("<devices>", more, 1);
    let xml = xml.replace("type='kvm'", "type='qemu'");
    let file = machine.path("foreign.xml");
    std::fs::write(&file, xml).unwrap();
    let (code, _, err) = machine.gpuvm_on(&["virsh", "-c", &uri, "define", &file], true, "");
    assert_eq!(code, 0, "{err}");
    let autostart =
        || machine.gpuvm(&["-c", &uri, "autostart", "foreign", "on", "--dry-run"], true);
    let (code, out, err) = autostart();
    let why = "the NVLink partition of domain `foreign` would not be activated";
    assert!(
        code == 1 && err.contains(why) && err.contains("--install` lets libvirt activate it"),
        "{out}{err}"
    );
    // With the hook, and where the switches go to the guest, the partition is activated.
    let (code, _, err) = machine.gpuvm(&["fabric", "hook", "--install"], true);
    assert_eq!(code, 0, "{err}");
    let (_, out, err) = autostart();
    assert!(!err.contains(why), "{out}{err}");
}
