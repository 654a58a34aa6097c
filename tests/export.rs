//! `export --format kubevirt|nova` from outside: documents as agreed, the same values as `--json`,
//! refusals with codes. What KubeVirt's types and Nova's own code say of them is in `tests/export`,
//! which `make test-export` runs.

use crate::support::{gpuvm, project, run};
use serde_json::Value;

/// Runs `export` with these words.
fn export(line: &str) -> (i32, String, String) {
    let words: Vec<&str> = std::iter::once("export").chain(line.split_whitespace()).collect();
    run(gpuvm(&words).current_dir(project()))
}

/// The cases of the golden files: name, and the guest.
const CASES: [(&str, &str); 4] = [
    ("dgx-2", "--host topologies/dgx-2.json --gpus 2 --vcpus 10 --huge-pages 2M --name train-a"),
    (
        "dgx-a100",
        "--host topologies/dgx-a100.json --gpus 4 --nic 2 --profile near --huge-pages 2M --name \
         train-a",
    ),
    ("dgx-1", "--host topologies/dgx-1.json --gpus 1 --huge-pages off --name train-a"),
    (
        "dual-socket",
        "--host topologies/dual-socket.json --gpus 1 --vf 1 --reserve-cores 2 --huge-pages off \
         --resource 15b3:1018=example.com/CX5_VF --data-size 100G --name train-a",
    ),
];

#[test]
fn documents_are_as_they_were_agreed() {
    let dir = project().join("tests/golden/export");
    for (name, guest) in CASES {
        for (end, format) in [
            ("kubevirt.yaml", "kubevirt"),
            ("kubevirt.cluster.yaml", "kubevirt --cluster"),
            ("nova.sh", "nova"),
            ("nova.conf", "nova --host-part"),
        ] {
            let (code, out, err) = export(&format!("{guest} --format {format}"));
            assert_eq!(code, 0, "{name} {format}: {err}");
            let file = dir.join(format!("{name}.{end}"));
            if std::env::var_os("GPUVM_RENEW").is_some() {
                std::fs::create_dir_all(&dir).unwrap();
                std::fs::write(&file, &out).unwrap();
            }
            let kept = std::fs::read_to_string(&file).unwrap_or_default();
            assert!(kept == out, "GPUVM_RENEW=1 renews {}:\n{out}", file.display());
        }
    }
}

/// Plan, definition, KubeVirt and Nova count the same I/O threads.
#[test]
fn io_threads_are_as_many_as_the_plan_has() {
    let host = "--host topologies/dgx-2.json --name a";
    for (gpus, assume, threads) in [
        (8, "libvirt=11.3,qemu=10.0", 1),
        (16, "libvirt=11.3,qemu=10.0", 2),
        // Without queues that several threads serve, one disk has one thread.
        (16, "libvirt=9.0,qemu=8.2", 1),
    ] {
        let guest = format!("{host} --gpus {gpus} --assume {assume}");
        let words = format!("plan --json {guest}");
        let words: Vec<&str> = words.split_whitespace().collect();
        let (code, out, err) = run(gpuvm(&words).current_dir(project()));
        assert_eq!(code, 0, "{guest}: {err}");
        let plan: Value = serde_json::from_str(&out).unwrap();
        let pins = plan["placement"]["iothread_pins"].as_array().unwrap();
        assert_eq!(pins.len(), threads, "{guest}");
        let (_, xml, _) = export(&guest);
        assert!(xml.contains(&format!("<iothreads>{threads}</iothreads>")), "{guest}: {xml}");
        let (_, kube, _) = export(&format!("{guest} --format kubevirt"));
        let pool = format!("supplementalPoolThreadCount: {threads}\n");
        assert!(kube.contains(&pool), "{guest}: {kube}");
        let (_, nova, _) = export(&format!("{guest} --format nova"));
        let lost = format!("and the plan has {threads}");
        assert_eq!(nova.contains(&lost), threads > 1, "{guest}: {nova}");
        assert!(!nova.contains("the plan has 4") && !nova.contains("the plan has 8"), "{nova}");
    }
}

/// A field of a document, by the names on the way to it.
fn at<'v>(document: &'v Value, way: &str) -> &'v Value {
    let step = |value: &'v Value, name: &str| match name.parse::<usize>() {
        Ok(number) => value.get(number),
        Err(_) => value.get(name),
    };
    let found = way.split(' ').try_fold(document, step);
    found.unwrap_or_else(|| panic!("{way} of {document}"))
}

#[test]
fn json_has_every_part_and_the_losses() {
    let json = |case: usize, format: &str| -> Value {
        let (code, out, err) = export(&format!("{} --format {format} --json", CASES[case].1));
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    };
    let domain = "virtual_machine spec template spec domain";
    let small = json(0, "kubevirt");
    assert_eq!(small["format"], "gpuvm-export-kubevirt");
    let cpu = at(&small, &format!("{domain} cpu"));
    assert_eq!(
        [&cpu["sockets"], &cpu["cores"], &cpu["threads"]].map(|number| number.as_u64().unwrap()),
        [1, 5, 2]
    );
    assert_eq!(at(&small, &format!("{domain} memory hugepages pageSize")), "2Mi");
    assert_eq!(at(&small, &format!("{domain} devices gpus")).as_array().unwrap().len(), 2);
    // Twelve pcpus, as the plan takes.
    assert_eq!(small["pcpus"], 12);
    let lost = small["lost"].as_array().unwrap();
    let what = |code: &str| {
        let found = lost.iter().find(|one| one["code"] == code);
        found.unwrap_or_else(|| panic!("{code}: {lost:?}"))["what"].as_str().unwrap()
    };
    assert!(what("partition").contains("partition 7") && what("pins").contains("0-4,48-52"));
    assert!(!what("mmio-window").is_empty());

    let large = json(1, "kubevirt");
    assert_eq!(at(&large, &format!("{domain} cpu sockets")), 2);
    assert!(at(&large, &format!("{domain} cpu numa guestMappingPassthrough")).is_object());
    assert_eq!(at(&large, &format!("{domain} devices hostDevices")).as_array().unwrap().len(), 2);
    let permitted = "cluster spec configuration permittedHostDevices pciHostDevices";
    assert_eq!(at(&large, permitted)[0]["externalResourceProvider"], true);

    let large = json(1, "nova");
    assert_eq!(large["format"], "gpuvm-export-nova");
    let specs = at(&large, "flavor extra_specs");
    assert_eq!(specs["hw:numa_nodes"], "2");
    assert_eq!(specs["pci_passthrough:alias"], "a100:4,cx6:2");
    assert_eq!(at(&large, "host alias 0 device_type"), "type-PF");
    assert_eq!(at(&json(2, "nova"), "host alias 0 device_type"), "type-PCI");
    let kept = json(3, "nova");
    assert_eq!(at(&kept, "host cpu_shared_set"), "0-1,16-17,32-33,48-49");
    assert_eq!(at(&kept, "flavor ephemeral"), 100);
}

#[test]
fn unsupported_requests_are_refused_with_a_code() {
    let dgx2 = "--host topologies/dgx-2.json --gpus 1";
    for (line, status, code, hint) in [
        (
            "--memory 65537M --huge-pages 2M --format kubevirt",
            1,
            "platform-memory",
            "--memory 65538M",
        ),
        ("--memory 65537M --huge-pages 2M --format nova", 1, "platform-memory", "--memory 65538M"),
        ("--vcpus 5 --format nova", 1, "platform-odd-vcpus", "--vcpus 6"),
        (
            "--nvme 1 --format kubevirt",
            1,
            "platform-unknown-device",
            "--resource 1344:51a2=example.com/NVME",
        ),
        ("--name Train_A --format kubevirt", 1, "platform-name", "--name train-a"),
        ("--resource 10de:2330=x --format nova", 1, "platform-unused-resource", "10de:1db8"),
        (
            "--resource 10de:1db8=x --format kubevirt",
            1,
            "platform-resource-name",
            "--resource 10de:1db8=nvidia.com/V100_SXM3_32_GB",
        ),
        ("--cluster --format nova", 2, "usage", "--format kubevirt"),
        ("--host-part", 2, "usage", "--format nova"),
        ("--resource 10de:1db8=x", 2, "usage", "--format kubevirt"),
        ("--resource 10de=x --format nova", 2, "usage", ""),
    ] {
        let (ended, out, err) = export(&format!("{dgx2} {line} --json"));
        let failure: Value =
            serde_json::from_str(&out).unwrap_or_else(|e| panic!("{line}: {e}: {err}"));
        assert_eq!((ended, failure["code"].as_str()), (status, Some(code)), "{line}: {out}");
        let said = failure["hint"].as_str().unwrap_or_default();
        assert!(said.contains(hint), "{line}: {said}");
    }
}

#[test]
fn the_form_of_libvirt_stays_the_default() {
    let dgx2 = "--host topologies/dgx-2.json --gpus 1 --name train-a";
    let (_, plain, _) = export(dgx2);
    assert!(plain.contains("<domain type='kvm'"), "{plain}");
    for name in ["libvirt", "xml"] {
        assert_eq!(export(&format!("{dgx2} --format {name}")).1, plain);
    }
    // Names of others cannot end a comment.
    let args = [
        "export",
        "--host",
        "topologies/dgx-2.json",
        "--gpus",
        "1",
        "--format",
        "nova",
        "--network",
        "a\nopenstack flavor delete b",
    ];
    let (code, out, _) = run(gpuvm(&args).current_dir(project()));
    assert!(
        code == 2 || !out.lines().any(|line| line.starts_with("openstack flavor delete")),
        "{out}"
    );
}

#[test]
fn kept_settings_are_not_listed_as_lost() {
    for (line, not) in [
        ("--host topologies/dgx-2.json --gpus 0 --format kubevirt", "data disk"),
        ("--host topologies/dgx-2.json --gpus 2 --os-disk overlay --format nova", "claim"),
        ("--host topologies/h100-guest.json --gpus 1 --format nova", "have one pcpu"),
    ] {
        let (code, out, err) = export(line);
        assert!(code == 0 && !format!("{out}{err}").contains(not), "{line}: {code}: {out}{err}");
    }
    let (_, out, err) = export("--host topologies/dgx-2.json --gpus 1 --format nova");
    assert!(format!("{out}{err}").contains("have one pcpu"), "{out}{err}");
}

/// A recorded DGX-2 with two guests, which are named by files.
fn record_with_guests() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let host = format!("--host topologies/dgx-2.json --domain-xml {}", dir.path().display());
    for (name, gpus) in [("a", "--gpus 4"), ("b", "--gpu 8")] {
        let (code, xml, err) = export(&format!("{gpus} --name {name} {host}"));
        assert_eq!(code, 0, "{err}");
        std::fs::write(dir.path().join(format!("{name}.xml")), xml).unwrap();
    }
    (dir, host)
}

#[test]
fn set_prints_what_a_guest_of_a_record_would_get() {
    let (dir, host) = record_with_guests();
    let gpuvm = |line: &str| {
        let line = format!("{line} {host}");
        let words: Vec<&str> = line.split_whitespace().collect();
        run(gpuvm(&words).current_dir(project()))
    };
    let before = std::fs::read_to_string(dir.path().join("a.xml")).unwrap();
    let (code, xml, err) = gpuvm("set a --vcpus 8");
    assert_eq!(code, 0, "{err}");
    assert!(xml.contains(">8</vcpu>") && before != xml, "{xml}");
    let file = dir.path().join("a.xml");
    let (code, by_file, err) = gpuvm(&format!("set {} --vcpus 8", file.display()));
    assert_eq!((code, by_file), (0, xml), "{err}");
    let (code, diff, _) = gpuvm("set a --vcpus 8 --diff");
    assert!(code == 0 && diff.contains("+") && diff.contains(">8</vcpu>"), "{diff}");
    let (code, told, _) = gpuvm("set a --vcpus 8 --dry-run");
    assert!(code == 0 && told.starts_with("a would change\n  vcpus: "), "{told}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before, "only printed");
    for (line, says) in [
        ("set c --vcpus 8", "none of the files of --domain-xml has domain `c`"),
        ("set a --vcpus 8 --live", "--live changes a machine"),
        ("set a --vcpus 900", "domain `a` cannot be changed so"),
    ] {
        let (code, _, err) = gpuvm(line);
        assert!(code != 0 && err.contains(says), "{line}: {code} {err}");
    }
    let (code, xml, err) = gpuvm("tune b --pins thread");
    assert!(code == 0 && xml.contains("<name>b</name>"), "{err}");
}

#[test]
fn make_room_says_what_it_would_move_on_a_record() {
    let (_dir, host) = record_with_guests();
    let line = format!("make-room --gpus 8 --allow-stop b --accept-shared-fabric {host}");
    let words: Vec<&str> = line.split_whitespace().collect();
    let (code, told, err) = run(gpuvm(&words).current_dir(project()));
    assert_eq!(code, 0, "{err}");
    let moves = "move `b`, which is off, from GPU 8 to GPU 4";
    let then = "then `gpuvm create --gpus 8 --accept-shared-fabric` on that machine has room";
    assert!(told.starts_with(moves) && told.contains(then), "{told}");
    // Without names the hint has them: exported guests are ours, though they have no UUID yet.
    let line = format!("make-room --gpus 8 {host}");
    let words: Vec<&str> = line.split_whitespace().collect();
    let (code, _, err) = run(gpuvm(&words).current_dir(project()));
    assert!(code == 1 && err.contains(" --allow-stop a` moves `a`"), "{err}");
    let (code, _, err) = run(gpuvm(&["make-room", "--gpus", "8", "--allow-stop", "x"])
        .args(["--host", "topologies/dgx-2.json"])
        .current_dir(project()));
    assert!(code != 0 && err.contains("--allow-stop: "), "{err}");
    assert!(err.contains("hint: add --domain-xml PATH with the domain's definition"), "{err}");
    let line = format!("make-room --gpus 8 --allow-stop x {host}");
    let words: Vec<&str> = line.split_whitespace().collect();
    let (code, _, err) = run(gpuvm(&words).current_dir(project()));
    assert!(code != 0 && err.contains("hint: `gpuvm list --host "), "{err}");
    assert!(err.contains("--domain-xml"), "{err}");
}

#[test]
fn fabric_show_lists_the_partitions_of_a_record() {
    let show = |host: &str| {
        let line = ["fabric", "show", "--host", host];
        run(gpuvm(&line).current_dir(project()))
    };
    let (code, told, err) = show("topologies/dgx-h100.json");
    assert!(code == 0 && err.is_empty(), "{told}{err}");
    let shared = "NVSwitches are shared by Fabric Manager of unknown version\n";
    assert!(told.contains(shared), "{told}");
    assert_eq!(told.lines().filter(|line| line.ends_with(" free")).count(), 15, "{told}");
    let (code, told, _) = show("topologies/dgx-2.json");
    assert!(code == 0 && told.contains("NVSwitches go to guests"), "{told}");
}
