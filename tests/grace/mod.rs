//! Hosts with Grace: their discovery, possible guests, and the domains of these.

mod faults;
mod guest;
mod libvirt;
mod srat;
mod verbs;

use crate::support::grace::{Grace, TRAY};
use crate::support::tree::scratch;
use crate::support::{gpuvm, project, run};
use gpuvm::discover::source;
use gpuvm::domain::{DomainXml, Element};
use gpuvm::topology::file::to_json_with;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The first libvirt and QEMU of Debian that have it.
const NEW: [&str; 2] = ["--assume", "libvirt=12.9,qemu=11.1"];

/// Runs a command on a host: exit status, standard output, standard error.
fn on(host: &Path, words: &[&str]) -> (i32, String, String) {
    run(gpuvm(words).arg("--host").arg(host))
}

/// A tray with these changes.
fn tray(change: impl FnOnce(&Path)) -> tempfile::TempDir {
    let dir = scratch();
    Grace::tray().make(dir.path());
    change(dir.path());
    dir
}

/// The domain of a guest with these options.
fn exported(host: &Path, options: &[&str]) -> DomainXml {
    let words: Vec<&str> =
        ["export", "--name", "a"].iter().chain(options).chain(&NEW).copied().collect();
    let (code, out, err) = on(host, &words);
    assert_eq!(code, 0, "{err}");
    DomainXml::parse(&out).unwrap()
}

/// The value of an attribute below an element.
fn attribute(element: Element<'_>, path: &str, name: &str) -> String {
    element.find(path).and_then(|found| found.attr(name)).unwrap_or_default().into_owned()
}

#[test]
fn nodes_and_kernel_are_read() {
    for (name, host) in [("gb200-tray", Grace::tray()), ("gh200", Grace::gh200())] {
        let dir = scratch();
        host.make(dir.path());
        let found = source::load(dir.path()).unwrap();
        let text = to_json_with(&found, Vec::new());
        let file = project().join(format!("tests/golden/grace/{name}.json"));
        if std::env::var_os("GPUVM_RENEW").is_some() {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, &text).unwrap();
        }
        assert_eq!(text, fs::read_to_string(&file).unwrap_or_default(), "GPUVM_RENEW=1 renews it");
        assert_eq!(source::load(&file).unwrap(), found, "{name}");
    }
}

#[test]
fn guests_have_cells_buses_and_smmus_of_their_gpus() {
    let host = tray(|_| {});
    for (gpus, sockets) in [(1, 1), (2, 1), (4, 2)] {
        let xml = exported(host.path(), &["--gpus", &gpus.to_string()]);
        let root = xml.root();
        let cells: Vec<Element<'_>> = root.find("cpu/numa").unwrap().children("cell").collect();
        assert_eq!(cells.len(), sockets + 8 * gpus);
        let is_empty = |cell: &&Element<'_>| cell.attr("cpus").is_none();
        assert_eq!(cells.iter().filter(is_empty).count(), 8 * gpus);
        for cell in &cells {
            let distances = cell.child("distances").unwrap();
            assert_eq!(distances.children("sibling").count(), cells.len());
        }
        assert_eq!(attribute(root, "iommufd", "enabled"), "yes");
        let devices = root.child("devices").unwrap();
        let expanders = devices
            .children("controller")
            .filter(|controller| controller.attr("model").as_deref() == Some("pcie-expander-bus"));
        let expanders: Vec<String> =
            expanders.map(|one| one.attr("index").unwrap().into_owned()).collect();
        let smmus = devices.children("iommu").map(|iommu| attribute(iommu, "driver", "pciBus"));
        assert_eq!(smmus.collect::<Vec<_>>(), expanders);
        assert_eq!(expanders.len(), gpus);
        let nodesets = devices.children("hostdev").map(|one| attribute(one, "acpi", "nodeset"));
        let wanted =
            (0..gpus).map(|at| sockets + 8 * at).map(|first| format!("{first}-{}", first + 7));
        assert_eq!(nodesets.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
        for hostdev in devices.children("hostdev") {
            assert_eq!(hostdev.attr("managed").as_deref(), Some("no"));
        }
        let window = devices.children("controller").find_map(|one| one.child("pcihole64")).unwrap();
        let kib: u64 = window.text().parse().unwrap();
        assert!(kib.is_power_of_two() && kib >= gpus as u64 * (256 << 20), "{kib}");
        let bound = root.child("numatune").unwrap().children("memnode").count();
        assert_eq!(bound, sockets);
        let file = host.path().join("a.xml");
        fs::write(&file, xml.text()).unwrap();
        let (code, out, err) = on(host.path(), &["check", file.to_str().unwrap(), NEW[0], NEW[1]]);
        assert_eq!(code, 0, "{out}{err}");
        let file = project().join(format!("tests/golden/grace/gb200-{gpus}.xml"));
        if std::env::var_os("GPUVM_RENEW").is_some() {
            fs::write(&file, xml.text()).unwrap();
        }
        assert_eq!(xml.text(), fs::read_to_string(&file).unwrap_or_default());
    }
}

/// KubeVirt's converter and NVIDIA's guide, which it quotes, give 1, 2 and 4 TiB to 1, 2 and 4 GPUs
/// of a GB200, and 8 TiB to the 4 of a GB300 (gpuvm-hardware(7), GRACE).
#[test]
fn windows_are_those_of_kubevirt_and_of_nvidias_guide() {
    for (id, product, gpus, tebibytes) in [
        ("0x2941", "GB200 NVL", 1, 1),
        ("0x2941", "GB200 NVL", 2, 2),
        ("0x2941", "GB200 NVL", 4, 4),
        ("0x31c2", "GB300 NVL", 4, 8_u64),
    ] {
        let host = scratch();
        Grace { id, product, ..Grace::tray() }.make(host.path());
        let xml = exported(host.path(), &["--gpus", &gpus.to_string()]);
        let controllers = xml.root().child("devices").unwrap().children("controller");
        let window = { controllers }.find_map(|one| one.child("pcihole64")).unwrap();
        assert_eq!(window.text().parse::<u64>().unwrap(), tebibytes << 30, "{product}, {gpus}");
    }
}

/// KubeVirt saw hosts that report 10 between nodes of one GPU. libvirt refuses that between
/// different cells.
#[test]
fn no_cells_are_as_near_to_each_other_as_to_themselves() {
    let host = tray(|root| {
        for node in 2..34 {
            let file = root.join(format!("sys/devices/system/node/node{node}/distance"));
            let text = fs::read_to_string(&file).unwrap();
            fs::write(&file, text.replace("11", "10")).unwrap();
        }
    });
    let xml = exported(host.path(), &["--gpus", "1"]);
    let cells: Vec<Element<'_>> = xml.root().find("cpu/numa").unwrap().children("cell").collect();
    let siblings = cells[1].child("distances").unwrap();
    let values = siblings.children("sibling").map(|one| one.attr("value").unwrap().into_owned());
    let values: Vec<String> = values.collect();
    assert_eq!(values, ["80", "10", "11", "11", "11", "11", "11", "11", "11"]);
}

#[test]
fn parts_missing_on_a_host_or_in_libvirt_are_named() {
    let ready = tray(|_| {});
    let refused = |host: &Path, words: &[&str], said: &[&str]| {
        let (code, out, err) = on(host, words);
        assert_eq!(code, 1, "{words:?}: {out}{err}");
        for part in said {
            assert!(err.contains(part), "{words:?}: {part} is missing in {err}");
        }
    };
    let with = |words: &[&'static str]| [words, &NEW].concat();
    let [one, two] = [TRAY[1], TRAY[2]];
    refused(ready.path(), &["plan", "--gpus", "1"], &["libvirt 11.3.0", "12.7", "QEMU 11"]);
    refused(ready.path(), &with(&["plan", "--gpus", "3"]), &["3 GPUs of a tray", "all 4"]);
    refused(ready.path(), &with(&["plan", "--gpu", one, "--gpu", two]), &["two sockets"]);
    let groups = with(&["plan", "--gpus", "1", "--iommufd", "off"]);
    refused(ready.path(), &groups, &["only iommufd", "leave --iommufd off out"]);
    refused(ready.path(), &with(&["plan", "--gpus", "1", "--p2p-clique"]), &["NVLink"]);
    let emulated = with(&["export", "--gpus", "1", "--name", "a", "--virt-type", "qemu"]);
    refused(ready.path(), &emulated, &["KVM"]);
    let plan = with(&["plan", "--gpus", "1"]);
    let without = tray(|root| fs::remove_file(root.join("dev/iommu")).unwrap());
    refused(without.path(), &plan, &["/dev/iommu"]);
    let without = tray(|root| fs::remove_dir_all(root.join("sys/class/iommu")).unwrap());
    fs::create_dir_all(without.path().join("sys/class/iommu")).unwrap();
    refused(without.path(), &plan, &["SMMUv3"]);
    let dir = scratch();
    Grace { driver: "nvidia", ..Grace::tray() }.make(dir.path());
    fs::write(dir.path().join("lib/modules/6.17.0-1010-nvidia-64k/modules.dep"), "a.ko:\n")
        .unwrap();
    refused(dir.path(), &plan, &["nvgrace-gpu-vfio-pci", "CONFIG_NVGRACE_GPU_VFIO_PCI"]);
}

#[test]
fn ways_that_a_gpu_cannot_take_are_named() {
    let host = tray(|_| {});
    // A guest that has it cannot have it by groups.
    let file = host.path().join("a.xml");
    fs::write(&file, exported(host.path(), &["--gpus", "1"]).text()).unwrap();
    let tuned = ["tune", file.to_str().unwrap(), "--iommufd", "off", NEW[0], NEW[1]];
    let (code, out, err) = on(host.path(), &tuned);
    assert!(code == 1 && err.contains("leave --iommufd off out"), "{out}{err}");
    assert!(err.contains("only iommufd passes functions to it"), "{err}");
    // A platform carries neither its SMMUv3 nor its cells.
    let name = ["--resource", "10de:2941=nvidia.com/GB200"];
    for (format, more) in [("nova", &[][..]), ("kubevirt", &name)] {
        let words = ["export", "--gpus", "2", "--name", "a", "--format", format, NEW[0], NEW[1]];
        let (code, out, err) = on(host.path(), &[&words[..], more].concat());
        assert_eq!(code, 0, "{err}");
        let text = out.replace("\n#  ", "");
        for part in [
            "lost: nested-smmu: 2 SMMUv3s, nested in the host's, for 0008:01:00.0 0009:01:00.0",
            "lost: cells: 16 empty cells for the memory of 0008:01:00.0 0009:01:00.0",
            "cannot use the GPUs",
        ] {
            assert!(text.contains(part), "{format}: {part} is missing in {out}");
        }
    }
}

/// Slurm's lines and the list of vGPUs take the versions as the list of GPUs does.
#[test]
fn versions_of_a_record_are_named_to_every_list() {
    let record = project().join("tests/golden/grace/gb200-tray.json");
    let conf = ["slurm", "conf", "--node-name", "n"];
    let (code, out, err) = on(&record, &conf);
    assert!(
        code == 1 && err.contains("`--assume libvirt=12.9,qemu=11.1` names them"),
        "{out}{err}"
    );
    let (code, out, err) = on(&record, &[&conf[..], &NEW].concat());
    assert!(code == 0 && out.contains("Name=gpuvm") && out.contains("Count=4"), "{out}{err}");
    let (code, out, err) = on(&record, &[&["vgpu", "list"][..], &NEW].concat());
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn memory_of_gpus_is_for_no_guest() {
    let dir = scratch();
    Grace { gpu_kib: 186 << 20, ..Grace::tray() }.make(dir.path());
    let host = dir.path();
    let (code, out, _) = on(host, &["host", "show"]);
    assert_eq!(code, 0);
    for part in ["memory of GPU 0008:01:00.0: nodes 2-9 (186 GiB)", "32 of them of GPUs"] {
        assert!(out.contains(part), "{part} is missing in {out}");
    }
    let (code, _, err) =
        on(host, &["plan", "--vcpus", "4", "--memory", "970G", "--allow", "remote"]);
    assert_eq!(code, 1, "{err}");
    let words = ["plan", "--vcpus", "4", "--memory", "700G", "--allow", "remote", "--json"];
    let (code, out, err) = on(host, &words);
    assert_eq!(code, 0, "{err}");
    let plan: Value = serde_json::from_str(&out).unwrap();
    let nodes = plan["placement"]["cells"][0]["host_nodes"].as_str().unwrap();
    assert!(["0", "1", "0-1"].contains(&nodes), "{nodes}");
    let xml = exported(host, &["--gpus", "1"]);
    let file = host.join("a.xml");
    fs::write(&file, xml.text().replace("nodeset='0'", "nodeset='2'")).unwrap();
    let (code, out, _) = on(host, &["check", file.to_str().unwrap(), NEW[0], NEW[1]]);
    assert!(code == 3 && out.contains("memory-on-gpu-node"), "{out}");
}

/// The states of GPUs in a list, each with its reason.
fn states(host: &Path, words: &[&str]) -> Vec<(String, String)> {
    let (code, out, err) = on(host, words);
    assert_eq!(code, 0, "{words:?}: {err}");
    let rows: Value = serde_json::from_str(&out).unwrap();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| (text(row, "state"), text(row, "why"))).collect()
}

#[test]
fn an_assumed_libvirt_is_named_as_such_and_replaced_by_the_same_option_everywhere() {
    let host = tray(|_| {});
    let host = host.path();
    let assumed = "assumed since the record names none";
    for (state, why) in states(host, &["gpu", "list", "--json"]) {
        assert!(state == "unsupported" && why.contains(assumed), "{state}: {why}");
        assert!(why.contains("libvirt 12.7 and QEMU 11"), "{why}");
    }
    for (state, why) in states(host, &["gpu", "list", "--json", NEW[0], NEW[1]]) {
        assert_eq!((&*state, &*why), ("free", ""));
    }
    for verb in [&["device", "list"][..], &["host", "show"], &["capacity"]] {
        let (code, out, err) = on(host, verb);
        assert!(code == 0 && out.contains("not supported with libvirt 11.3.0"), "{verb:?}: {out}");
        assert!(err.contains("`--assume libvirt=12.9,qemu=11.1`"), "{verb:?}: {err}");
        let (code, out, err) = on(host, &[verb, &NEW].concat());
        assert!(code == 0 && !out.contains("not supported"), "{verb:?}: {out}{err}");
        assert!(!err.contains("--assume"), "{verb:?}: {err}");
        // Without a record libvirt is asked.
        let (code, _, err) = run(&mut gpuvm(&[verb, &NEW].concat()));
        assert!(code == 2 && err.contains("--host is not given"), "{verb:?}: {err}");
    }
    let (code, _, err) = on(host, &["plan", "--gpus", "1"]);
    assert!(code == 1 && err.contains(assumed), "{err}");
    assert!(err.contains("hint: --assume libvirt=12.9,qemu=11.1 names"), "{err}");
    let room = ["make-room", "--gpus", "1", "--accept-shared-fabric"];
    assert_eq!(on(host, &room).0, 1);
    let (code, out, err) = on(host, &[&room[..], &NEW].concat());
    assert!(code == 0 && out.starts_with("nothing to move: "), "{out}{err}");
    let file = host.join("a.xml");
    fs::write(&file, exported(host, &["--gpus", "1"]).text()).unwrap();
    let (code, _, err) = run(&mut gpuvm(&["check", file.to_str().unwrap(), NEW[0], NEW[1]]));
    assert!(code == 2 && err.contains("--host is not given"), "{err}");
}

#[test]
fn capacity_counts_the_guests_of_a_tray_that_plan_places() {
    let host = tray(|_| {});
    for more in [&[][..], &["--iommufd", "on"]] {
        let (code, out, err) = on(host.path(), &[&["capacity", "--json"], more, &NEW].concat());
        assert!(code == 0 && !err.contains("not counted"), "{out}{err}");
        let capacity: Value = serde_json::from_str(&out).unwrap();
        assert!(capacity["never_placed"].as_array().unwrap().is_empty(), "{capacity}");
        let sizes = capacity["sizes"].as_array().unwrap().iter();
        let sizes: Vec<(u64, u64)> = sizes
            .map(|size| (size["gpus"].as_u64().unwrap(), size["now"].as_u64().unwrap()))
            .collect();
        assert_eq!(sizes, [(1, 4), (2, 2), (4, 1)]);
        for (gpus, _) in sizes {
            let plan = ["plan", "--gpus", &gpus.to_string()].map(str::to_owned);
            let plan: Vec<&str> = plan.iter().map(String::as_str).collect();
            let (code, _, err) = on(host.path(), &[&plan, more, &NEW].concat());
            assert_eq!(code, 0, "{gpus} {more:?}: {err}");
        }
    }
}

#[test]
fn guests_with_coherent_memory_stay_where_they_are() {
    let host = tray(|_| {});
    let mut files: Vec<String> = Vec::new();
    for (name, gpu) in [("a", "0"), ("b", "2")] {
        let shape = ["--vcpus", "4", "--memory", "8G"];
        let words = [&["export", "--name", name, "--gpu", gpu][..], &shape, &NEW].concat();
        let (code, xml, err) = on(host.path(), &words);
        assert_eq!(code, 0, "{err}");
        let file = host.path().join(format!("{name}.xml"));
        fs::write(&file, xml).unwrap();
        files.push(file.to_str().unwrap().to_owned());
    }
    let beside = ["--domain-xml", files[0].as_str(), "--domain-xml", files[1].as_str()];
    let run = |verb: &[&str]| on(host.path(), &[verb, &beside, &NEW].concat());
    let (_, out, err) = run(&["capacity", "--gpus", "4", "--vcpus", "4", "--memory", "8G"]);
    assert!(out.contains("it is off), which cannot be moved"), "{out}{err}");
    assert!(!out.contains("again at GPU"), "{out}");
    let room = ["make-room", "--gpus", "4", "--vcpus", "4", "--memory", "8G", "--allow-stop", "a"];
    let room = [&room[..], &["--accept-shared-fabric"]].concat();
    let (code, _, err) = run(&room);
    let why = "domain `a` cannot be moved: it has GPUs with coherent memory";
    assert!(code == 1 && err.contains(why) && err.contains("delete a --keep-data"), "{err}");
}

#[test]
fn a_fleet_takes_the_versions_of_a_recorded_tray_from_its_file() {
    let host = tray(|_| {});
    let file = host.path().join("hosts.toml");
    let fleet = |assume: &str, verb: &[&str]| {
        let text = format!("[host.tray]\nrecord = {:?}\n{assume}", host.path());
        fs::write(&file, text).unwrap();
        let words = [&["fleet"], verb, &["--json", "--hosts", file.to_str().unwrap()]].concat();
        let (code, out, err) = run(&mut gpuvm(&words));
        (code, serde_json::from_str::<Value>(&out).unwrap_or_else(|_| panic!("{out}{err}")))
    };
    let new = format!("assume = {:?}\n", NEW[1]);
    for (assume, fits) in [("", 0), (&*new, 1)] {
        let (code, answer) = fleet(assume, &["capacity", "--gpus", "4"]);
        assert_eq!((code, answer["fits"]["4"].as_u64()), (0, Some(fits)), "{answer}");
        let (code, answer) = fleet(assume, &["plan", "--gpus", "4"]);
        assert_eq!(code, i32::from(fits == 0), "{answer}");
        assert_eq!(answer["hosts"][0]["gpus"].is_array(), fits == 1, "{answer}");
    }
}

#[test]
fn doctor_judges_libvirt_by_known_versions_alone() {
    let host = tray(|_| {});
    let diagnosed = |more: &[&str]| {
        let (_, out, err) = on(host.path(), &[&["host", "doctor", "--json"], more].concat());
        let answer: Value = serde_json::from_str(&out).unwrap();
        let found = answer["findings"].as_array().unwrap().iter();
        let count = found.filter(|finding| finding["rule"] == "coherent-gpu").count();
        let skipped = answer["not_checked"].as_array().unwrap().iter();
        let skipped: Vec<String> = skipped.map(|text| text.as_str().unwrap().to_owned()).collect();
        let is_skipped = |rule: &str| skipped.iter().any(|text| text.starts_with(rule));
        (count, is_skipped("coherent-gpu ("), is_skipped("libvirt-cves ("), err)
    };
    let (found, is_skipped, no_version, err) = diagnosed(&[]);
    assert_eq!((found, is_skipped, no_version), (0, true, true));
    assert!(err.contains("`--assume libvirt=12.9,qemu=11.1`"), "{err}");
    let (found, is_skipped, no_version, err) = diagnosed(&NEW);
    assert_eq!((found, is_skipped, no_version), (0, false, false));
    assert!(!err.contains("--assume"), "{err}");
    let (found, is_skipped, ..) = diagnosed(&["--assume", "libvirt=11.3,qemu=10.0"]);
    assert_eq!((found, is_skipped), (4, false));
    let (_, out, _) = on(host.path(), &["host", "doctor"]);
    assert!(out.contains("EL2") && !out.contains("modprobe kvm"), "{out}");
}

#[test]
fn gpus_come_and_go_with_a_new_guest_alone() {
    let host = tray(|_| {});
    let host = host.path();
    let file = |name: &str, options: &[&str]| {
        let path = host.join(name);
        fs::write(&path, exported(host, options).text()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let one = file("one.xml", &["--gpus", "1"]);
    let none = file("none.xml", &["--vcpus", "4", "--memory", "16G"]);
    for (file, options, item, words) in [
        (&one, &["--gpus", "2"][..], "--gpus", "--name a --gpus 2`"),
        (&one, &["--gpus", "0"], "--gpus", "--name a --gpus 0`"),
        (&one, &["--gpus", "2", "--memory", "64G"], "--gpus", "--gpus 2 --memory 64G`"),
        (&one, &["--vcpus", "8"], "--vcpus", "--gpus 1 --vcpus 8`"),
        (&one, &["--memory", "64G"], "--memory", "--gpus 1 --memory 64G`"),
        (&none, &["--gpus", "1"], "--gpus", "--name a --gpus 1`"),
    ] {
        let (code, out, err) = on(host, &[&["set", file, "--diff"][..], options, &NEW].concat());
        assert!(code == 1 && out.is_empty(), "{options:?}: {out}{err}");
        assert!(err.contains(&format!("{item}: the cells, buses and SMMUv3s")), "{err}");
        let hint = err.lines().find(|line| line.starts_with("hint: ")).unwrap();
        assert!(hint.contains(words) && hint.contains("gpuvm export "), "{hint}");
        assert!(hint.contains("gpuvm delete a --keep-data"), "{hint}");
    }
    // Its own number, and another size without such GPUs.
    for (file, options) in [(&one, ["--gpus", "1"]), (&none, ["--memory", "32G"])] {
        let (code, _, err) = on(host, &[&["set", file, "--diff"], &options[..], &NEW].concat());
        assert_eq!(code, 0, "{options:?}: {err}");
    }
}

#[test]
fn faults_of_a_guest_with_a_gpu_are_found_with_remedies_that_keep_iommufd() {
    let host = tray(|_| {});
    let sound = exported(host.path(), &["--gpus", "1"]).text().to_owned();
    let without = tray(|root| fs::remove_file(root.join("dev/iommu")).unwrap());
    let found = |host: &Path, from: &str, to: &str| {
        assert!(sound.contains(from), "{from}");
        let file = host.join("a.xml");
        fs::write(&file, sound.replace(from, to)).unwrap();
        let (code, out, err) = on(host, &["check", file.to_str().unwrap(), NEW[0], NEW[1]]);
        assert_eq!(code, 3, "{to}: {out}{err}");
        out
    };
    let host = host.path();
    let start = sound.find("    <iommu model='smmuv3'>").unwrap();
    let end = sound.find("    </iommu>\n").unwrap();
    let smmu = &sound[start..end + "    </iommu>\n".len()];
    for (from, to, rule, hint) in [
        ("managed='no'", "managed='yes'", "coherent-managed", "write managed='no'"),
        (smmu, "", "smmu-missing", "<driver pciBus='6' accel='on'"),
        ("accel='on' ats='on' ril='off' ssidsize='20' oas='48'", "", "smmu-missing", "into its"),
        (
            "<driver name='vfio'/>",
            "<driver name='vfio' iommufd='no'/>",
            "smmu-needs-iommufd",
            "remove iommufd='no'",
        ),
    ] {
        let out = found(host, from, to);
        let lines: Vec<&str> = out.lines().collect();
        let at = lines.iter().position(|line| line.ends_with(&format!("({rule})"))).unwrap();
        assert!(lines[at + 1].contains(hint), "{rule}: {out}");
    }
    let out = found(without.path(), "a", "a");
    assert!(out.contains("(iommufd-missing)") && !out.contains("--iommufd off"), "{out}");
}
