//! Hosts with Grace: their discovery, possible guests, and the domains of these.

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

#[test]
fn lists_say_why_no_guest_gets_these_gpus() {
    let host = tray(|_| {});
    let (code, out, _) = on(host.path(), &["gpu", "list"]);
    assert!(code == 0 && out.contains("libvirt 12.7 and QEMU 11"), "{out}");
    let (_, out, _) = on(host.path(), &["capacity", "--json"]);
    let capacity: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(capacity["largest"], Value::Null);
    assert!(capacity["never_placed"][0].as_str().unwrap().contains("12.7"), "{capacity}");
    let (code, out, _) = on(host.path(), &["host", "doctor"]);
    assert!(code == 3 && out.contains("(coherent-gpu)"), "{out}");
}
